"""GGUF models in this process by llama.cpp, which the wheel `xllamacpp` (the extra `llamacpp`) brings.

llama.cpp reads more families and formats than the JAX decoder, and computes with the blocks of the file. Its server
object works on several prompts at once, keeps their beginnings, and holds answers to grammars. Nobody else can reach
it: it listens on a socket in a private folder, which only the tokenizer uses.
"""

import contextlib
import hashlib
import http.client
import importlib.metadata
import importlib.util
import json
import os
import socket
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any, Literal

import numpy as np

from qrag_jax.llm.thinking import is_mark
from qrag_jax.models.gguf.file import read_gguf
from qrag_jax.models.gguf.tokenizer import ends_of_gguf, marks_of_gguf, template_of_gguf
from qrag_jax.models.grammar.compile import compile_grammar, lark_of
from qrag_jax.models.weights.machine import available_bytes
from qrag_jax.models.weights.packages import sha256_of
from qrag_jax.types import InputError, Sampling, UsageError

_WHEEL = "xllamacpp"
NO_TEMPLATE = (
    "this model has no chat template, so it cannot answer questions; use a model trained on conversations "
    '("instruct", "chat")'
)
INSTALL = "pip install 'qrag_jax[llamacpp]'"
_CACHE_BYTES = 2**31  # of keys and values, at most; where one prompt needs more, it gets it
_FIRST_CACHE_BYTES = 2**28
_PREFIX_MIB = 512  # of earlier prompts that are kept beside the cache
_MIN_CONTEXT = 2048


def is_installed() -> bool:
    """True if the wheel is there."""
    return importlib.util.find_spec(_WHEEL) is not None


@dataclass(frozen=True)
class Said:
    """The answer to one prompt.

    Attributes:
        text: with marks of thinking, without other special tokens, cut before a stop text.
        num_tokens: as llama.cpp counts them, the one that ended the answer among them.
        logprobs: as `Generation.logprobs`; empty if not asked for. A character of several tokens has that of its last.
        ids: always empty; llama.cpp does not tell them.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    num_tokens: int
    logprobs: tuple[float, ...] = ()
    ids: tuple[int, ...] = ()


class LlamaCpp:
    """A model of a GGUF file that continues prompts.

    Attributes:
        window: most tokens of a prompt and its answer together.
        tokenizer: of the file.
        fingerprint: sha256 of the file.
        name: of llama.cpp with its version.
    """

    def __init__(
        self,
        path: Path,
        *,
        fingerprint: str | None = None,
        batch_size: int = 8,
        window: int | None = None,
    ) -> None:
        """Loads the model.

        Args:
            path: a `.gguf` file.
            fingerprint: sha256 of the file if it is known.
            batch_size: most prompts that are worked on at once.
            window: None is the whole window of the model.

        Raises:
            UsageError: the wheel is missing, the model does not fit into memory, or a setting does not fit the model.
            InputError: a damaged file, one without a chat template, or a model that llama.cpp does not read.
        """
        if not is_installed():
            raise UsageError(f"language model {str(path)!r}: the engine llamacpp is not installed; run: {INSTALL}")
        file = read_gguf(path)
        self._path, self._rows = path, batch_size
        self._shape = _Shape.of(file.metadata, path)
        self.window = self._shape.window if window is None else window
        if batch_size < 1:
            raise UsageError(f"batch_size {batch_size} must be at least 1")
        if not 2 <= self.window <= self._shape.window:
            raise UsageError(f"window {window}: choose 2 to {self._shape.window}, the positions of the model")
        owner = weakref.proxy(self)  # memory is given back when nobody holds the model, not some time later
        self.tokenizer = LlamaTokenizer(file.metadata, str(path), lambda *what, **more: owner._post(*what, **more))
        self._preserved = [text for text in self.tokenizer.token_texts.values() if is_mark(text)]
        short = None if len(tempfile.gettempdir()) < 80 else "/tmp"  # names of sockets have 107 bytes
        self._folder = tempfile.TemporaryDirectory(prefix="qrag-", dir=short)
        self._busy, self._door, self._context = Lock(), Lock(), 0
        self._server: Any = None
        with ThreadPoolExecutor(1) as pool:
            hashed = pool.submit(sha256_of, path) if fingerprint is None else None
            first = max(_MIN_CONTEXT, _FIRST_CACHE_BYTES // self._shape.token_bytes)
            self._start(1 << (min(first, self.window).bit_length() - 1))
            self.fingerprint = fingerprint if hashed is None else hashed.result()
        self.name = f"llamacpp-{importlib.metadata.version(_WHEEL)}"

    def generate_ids(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        finished: Callable[[int, Said], None],
        heard: Callable[[int, Said], None] | None = None,
    ) -> None:
        """Answers every prompt; `finished` gets the place and the answer of each as soon as it is complete.

        `heard` gets the place and what is there of an answer, while it is written, in another thread.

        An answer depends on the model, the prompt and the sampling, seed included. What else is computed at the same
        time changes the rounding of logits, which decides where two tokens are as good as equal.

        Raises:
            UsageError: a grammar that cannot be read, or a prompt whose cache does not fit into memory.
            InputError: llama.cpp refuses a prompt, or breaks the grammar.
        """
        if not prompts:
            return
        request = self._request(sampling)
        with self._busy:
            rows = self._make_room([min(len(prompt) + sampling.max_tokens, self.window) for prompt in prompts])
            cancelled, pool = Event(), ThreadPoolExecutor(rows)
            try:
                # Neighbours have the longest beginnings in common.
                order = sorted(range(len(prompts)), key=lambda place: tuple(prompts[place]))
                working: dict[Future[Said], int] = {
                    pool.submit(
                        self._answer, prompts[place], request, sampling, cancelled, heard and partial(heard, place)
                    ): place
                    for place in order
                }
                for done in as_completed(working):
                    finished(working[done], done.result())
            finally:
                cancelled.set()  # of an error or an interrupt: the others stop at their next token
                pool.shutdown(cancel_futures=True)

    def _request(self, sampling: Sampling) -> dict[str, Any]:
        """The fields that all prompts share. The model's file may name other defaults, so all are given."""
        request: dict[str, Any] = {
            "stream": True,  # so that it can be stopped
            "temperature": sampling.temperature,
            "samplers": ["temperature", "top_k", "top_p"],
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": 0.0,
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop": list(sampling.stop),
            "preserved_tokens": self._preserved,
        }
        if sampling.logprobs:
            request["logprobs"] = 1
        if sampling.grammar is not None:
            request["grammar"] = lark_of(sampling.grammar)
        return request

    def _answer(
        self,
        prompt: Sequence[int],
        request: Mapping[str, Any],
        sampling: Sampling,
        cancelled: Event,
        heard: Callable[[Said], None] | None,
    ) -> Said:
        parts: list[dict[str, Any]] = []
        text = ""

        def hear(part: dict[str, Any]) -> bool:
            nonlocal text
            parts.append(part)
            if heard is not None and part.get("choices"):
                text += part["choices"][0]["text"]
                heard(Said(text.rstrip("\ufffd"), "length", 0, ()))
            return cancelled.is_set()

        own = {
            "prompt": list(prompt),
            "max_tokens": min(sampling.max_tokens, self.window - len(prompt)),
            "seed": _seed(prompt, sampling.seed),
        }
        self._server.handle_completions({**request, **own}, hear)
        last = parts[-1] if parts else {}
        if "error" in last or "usage" not in last:
            reason = last.get("error", {}).get("message", "the answer has no end")
            raise InputError(f"llama.cpp gives no answer: {reason}", file=self._path)
        said = _said(parts)
        if sampling.grammar is not None:
            place = compile_grammar(sampling.grammar).fault(said.text)
            if place is not None and (place < len(said.text) or said.finish_reason == "stop"):
                raise InputError(
                    f"llama.cpp breaks the grammar {str(sampling.grammar):.200} at character {place} of "
                    f"{said.text!r:.80}; use the engine jax"
                )
        return said

    def _make_room(self, needs: Sequence[int]) -> int:
        """Prompts at work at once; starts again with a larger cache where the largest of them need it."""
        limit = max(_CACHE_BYTES // self._shape.token_bytes, max(needs))
        sums = np.cumsum(sorted(needs, reverse=True)[: self._rows])
        rows = int(np.searchsorted(sums, limit, side="right")) or 1
        needed = int(sums[rows - 1])
        if needed > self._context:
            with self._door:
                self._start(max(needed, min(limit, 1 << (needed - 1).bit_length())))
        return rows

    def _start(self, context: int) -> None:
        """Loads the model with a cache of so many tokens."""
        import xllamacpp

        native: Any = xllamacpp
        self._server = None  # frees the old one first
        _check_memory(self._path, context, context * self._shape.token_bytes)
        params = native.CommonParams()
        params.model.path = str(self._path)
        params.hostnames = [str(self._socket(context))]
        params.verbosity = -1
        params.n_ctx, params.n_parallel, params.kv_unified = context, self._rows, True
        params.cache_ram_mib = _PREFIX_MIB
        params.load_mode = native.llama_load_mode.LLAMA_LOAD_MODE_NONE  # a mapped file counts twice: it is repacked
        params.warmup = params.fit_params = params.ui = params.endpoint_slots = False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _num_threads()
        try:
            self._server = native.Server(params)
        except RuntimeError as error:
            raise InputError(
                f"llama.cpp (xllamacpp {importlib.metadata.version(_WHEEL)}) does not load it: it is damaged, or of a "
                f"family {self._shape.family!r} that this version does not read; upgrade it (pip install -U "
                f"{_WHEEL}), or use the engine jax, which reads Llama, Qwen2 and Qwen3",
                file=self._path,
            ) from error
        # An answer shows that its loop runs: an object that is freed before its loop begins waits for it for ever.
        self._server.handle_completions({"prompt": [0], "max_tokens": 1, "cache_prompt": False})
        self._context = context

    def _socket(self, context: int) -> Path:
        return Path(self._folder.name) / f"{context}.sock"

    def _post(self, path: str, **values: Any) -> dict[str, Any]:
        """Asks for what the server object tells only over its socket."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        with self._door, contextlib.closing(connection):
            connection.sock.connect(str(self._socket(self._context)))
            connection.request("POST", path, json.dumps(values), {"Content-Type": "application/json"})
            told = json.loads(connection.getresponse().read())
        if "error" in told:
            raise InputError(f"llama.cpp, {path}: {told['error'].get('message')}", file=self._path)
        return told


class LlamaTokenizer:
    """The tokenizer of a GGUF file as llama.cpp reads it. What it has in common with `DecoderTokenizer` means the same.

    Attributes:
        special_tokens, other_tokens, token_texts, bos_token, eos_token, eos_ids, chat_template: see `DecoderTokenizer`.
        is_of_bytes: True: llama.cpp knows the bytes of every token.
    """

    is_of_bytes = True

    def __init__(self, metadata: Mapping[str, Any], source: str, post: Callable[..., dict[str, Any]]) -> None:
        """Reads the marks of the vocabulary.

        Args:
            metadata: of the file.
            source: names it in errors.
            post: sends a request to the server of the model.
        """
        self._post = post
        special, other = marks_of_gguf(metadata, source)
        bos_id, eos_id, self.eos_ids = ends_of_gguf(metadata, source)
        self.special_tokens, self.other_tokens = tuple(special.values()), tuple(other.values())
        self.token_texts = special | other
        texts = metadata["tokenizer.ggml.tokens"]
        self.bos_token, self.eos_token = (None if number is None else texts[number] for number in (bos_id, eos_id))
        self.chat_template: str = template_of_gguf(metadata, source) or ""
        if not self.chat_template:
            raise InputError(NO_TEMPLATE)

    def encode(self, text: str, special: bool) -> list[int]:
        """Token ids of a text, nothing put before or after it; see `DecoderTokenizer.encode`."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"text: {text!r:.60} cannot be read as Unicode text ({error.reason})") from error
        return self._post("/tokenize", content=text, add_special=False, parse_special=special)["tokens"]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._post("/detokenize", tokens=list(ids))["content"]


@dataclass(frozen=True)
class _Shape:
    """The family of a model, the positions that it was trained with, and about how many bytes a cached token takes."""

    family: str
    window: int
    token_bytes: int

    @classmethod
    def of(cls, metadata: Mapping[str, Any], path: Path) -> "_Shape":
        family = metadata.get("general.architecture")

        def number(name: str, default: int | None = None) -> int:
            value = metadata.get(f"{family}.{name}", default)
            value = int(value.max()) if isinstance(value, np.ndarray) and value.size else value  # one a layer
            if type(value) is not int or value < 1:
                raise InputError(f"{family}.{name} is {value!r:.100}, a whole number from 1 on is needed", file=path)
            return value

        heads = number("attention.head_count", 1)
        size = number("attention.key_length", max(1, number("embedding_length") // heads))
        both = size + number("attention.value_length", size)
        token_bytes = 2 * number("block_count") * number("attention.head_count_kv", heads) * both  # float16
        return cls(str(family), number("context_length"), token_bytes)


def _check_memory(path: Path, context: int, cache: int) -> None:
    """Raises an error for a model that does not fit into the memory of this machine."""
    available, size = available_bytes(), path.stat().st_size
    if available is not None and size + cache > available:
        raise UsageError(
            f"language model {str(path)!r}: its weights take at least {size / 1e9:,.2f} GB and a cache of {context:,} "
            f"tokens {cache / 1e9:,.2f} GB, and {available / 1e9:,.2f} GB of memory are available: use a smaller "
            "model, or one with fewer bits, or shorter prompts"
        )


def _said(parts: Sequence[Mapping[str, Any]]) -> Said:
    """An answer from its parts."""
    choices = [part["choices"][0] for part in parts if part.get("choices")]
    reason = "length" if choices[-1]["finish_reason"] == "length" else "stop"
    tokens = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["content"]]
    if reason == "stop" and tokens and not tokens[-1]["bytes"]:
        tokens = tokens[:-1]  # the end of the answer
    logprobs = tuple(float(token["logprob"]) for token in tokens)
    text = "".join(choice["text"] for choice in choices)
    if reason == "length":
        text = text.rstrip("\ufffd")  # the first bytes of a character
    return Said(text, reason, parts[-1]["usage"]["completion_tokens"], logprobs)


def _num_threads() -> int:
    """Threads that compute: OMP_NUM_THREADS, or the cores that this process may use; -1 is llama.cpp's choice.

    Its threads wait for each other at every step, so one without a core makes all of them slow.
    """
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit():
        return max(1, int(named))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else -1
    return cores if cores < (os.cpu_count() or 1) else -1


def _seed(prompt: Sequence[int], seed: int) -> int:
    """The seed of a prompt's draws: other prompts have other draws. Below 2**32 - 1, which llama.cpp takes for none."""
    digest = hashlib.blake2b(repr((seed, *prompt)).encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1
