"""Prompts of token ids to answers: prompts of about one length are read together, then answered in blocks of tokens.

Prompts are padded on the left to one of few lengths, so that all rows of a batch write the same slot of its cache and
nothing is compiled for one prompt. Between two blocks the host looks for end tokens and stop texts.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh

from qrag_jax.models.decoder.constraint import Automata, Constraint
from qrag_jax.models.decoder.network import ComputeDtype
from qrag_jax.models.decoder.sharding import decoder_shardings
from qrag_jax.models.decoder.steps import Draws, Rows, compiled_steps
from qrag_jax.models.decoder.weights import LoadedDecoder
from qrag_jax.types import InputError, Sampling, UsageError

_CACHE_BYTES = 2**31
_SMALLEST = 64


@dataclass(frozen=True)
class Decoded:
    """The answer to one prompt.

    Attributes:
        ids: new tokens, without the one that ended the answer; with those of a stop text, whose last one is the last.
        logprobs: natural logarithms of their probabilities, without temperature and grammar, one each.
        finish_reason: "stop" (an end token or a stop text) or "length".
        text: what `ids` spell, special tokens left out, cut before the stop text.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    text: str

    @property
    def num_tokens(self) -> int:
        """The number of new tokens."""
        return len(self.ids)


@dataclass
class _Answer:
    """The answer to one prompt of a batch, as far as it is drawn."""

    place: int  # of the prompt
    room: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Decoding:
    """A decoder that continues prompts; made by `make_decoder`.

    Attributes:
        window: most tokens of a prompt and its answer together.
        batch_size: most prompts that are worked on at once.
        automata: of the grammars that answers were held to.
    """

    def __init__(
        self,
        loaded: LoadedDecoder,
        batch_size: int,
        window: int,
        compute_dtype: ComputeDtype,
        mesh: Mesh | None,
        cache_bytes: int,
    ) -> None:
        """Use `make_decoder`, which checks its arguments."""
        self.window, self.batch_size = window, batch_size
        self._config, self._tokenizer, self._cache_bytes = loaded.config, loaded.tokenizer, cache_bytes
        placed = None if mesh is None else decoder_shardings(mesh, loaded.config, loaded.params)
        # Arguments of what is compiled, not constants: they would be copied into every shape.
        self._params = jax.device_put(loaded.params, placed)
        self._ends = loaded.tokenizer.eos_ids
        self.automata = Automata(loaded.tokenizer, loaded.config.vocab_size)
        self._read, self._write = compiled_steps(loaded.config, compute_dtype, tuple(sorted(self._ends)), mesh)
        numbers = 2 * self._config.num_layers * self._config.num_kv_heads * self._config.head_dim
        self._slot_bytes = numbers * jax.numpy.dtype(compute_dtype).itemsize

    def generate_ids(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        finished: Callable[[int, Decoded], None] | None = None,
        heard: Callable[[int, Decoded], None] | None = None,
    ) -> list[Decoded]:
        """Answers every prompt.

        An answer depends on the model, the prompt and the sampling, seed included: its draws come from a key made of
        seed and prompt alone, so that equal prompts get equal answers. The other prompts of a batch change the shapes
        that it is computed in, and so the rounding of its logits, which decides where two tokens are as good as equal.

        Args:
            prompts: token ids; any number, none among them.
            sampling: of all of them. An answer also ends, as "length", where prompt and answer fill the window.
            finished: called with a prompt's place and its answer as soon as that is over, in any order.
            heard: called with a prompt's place and what there is of its answer, after each block of tokens.
        """
        for place, prompt in enumerate(prompts):
            self._check(place, prompt)
        answers: dict[int, Decoded] = {}
        for batch in self._batches(prompts, sampling):
            for place, answer in self._answers(batch, prompts, sampling, heard):
                answers[place] = answer
                if finished is not None:
                    finished(place, answer)
        return [answers[place] for place in range(len(prompts))]

    def _batches(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[list[int]]:
        """Places of prompts of about one length, as many as rows and cache allow."""
        order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]), reverse=True)
        while order:
            longest = len(prompts[order[0]])
            slots = padded_size(padded_size(longest) + min(sampling.max_tokens, self.window - 1))
            count = max(1, min(self.batch_size, self._cache_bytes // (self._slot_bytes * slots)))
            yield order[:count]
            order = order[count:]

    def _answers(
        self,
        batch: Sequence[int],
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        heard: Callable[[int, Decoded], None] | None,
    ) -> Iterator[tuple[int, Decoded]]:
        """Works on one batch until every prompt has its answer."""
        answers = [_Answer(at, min(sampling.max_tokens, self.window - len(prompts[at]))) for at in batch]
        count = 1 << (len(batch) - 1).bit_length()  # of rows; those without a prompt are dead
        size = padded_size(max(len(prompts[at]) for at in batch))
        tokens, lengths, rooms = np.zeros((count, size), np.int32), np.ones(count, np.int32), np.ones(count, np.int32)
        hashes = np.zeros((count, 2), np.uint32)
        for row, answer in enumerate(answers):
            prompt = prompts[answer.place]
            tokens[row, size - len(prompt) :], lengths[row], rooms[row] = prompt, len(prompt), answer.room
            hashes[row] = prompt_hash(prompt, sampling.seed)
        rows = Rows(np.int32(size), lengths, hashes, rooms, Draws.of(sampling))
        constraint = None if sampling.grammar is None else self.automata.constraint(sampling.grammar, count)
        live = np.arange(count) < len(batch)
        written = self._read(self._params, tokens, lengths, slots=padded_size(size + int(rooms.max())))
        while live.any():
            written, told, where = self._write(self._params, written, rows, live, constraint)
            constraint = None if constraint is None else Constraint(constraint.tables, where)
            new, logprobs, steps = jax.device_get(told)
            for row in np.flatnonzero(live):
                if decoded := self._hear(answers[row], new[row, :steps], logprobs[row, :steps], sampling):
                    live[row] = False
                    yield answers[row].place, decoded
                elif heard is not None:
                    ids = tuple(answers[row].ids)
                    heard(answers[row].place, Decoded(ids, (), "length", self._tokenizer.decode(ids).rstrip("\ufffd")))

    def _check(self, place: int, prompt: Sequence[int]) -> None:
        if not len(prompt):
            raise InputError(f"prompt {place}: no tokens; give it a text")
        if len(prompt) >= self.window:
            raise InputError(
                f"prompt {place}: {len(prompt)} tokens leave no room for an answer in the model's window of "
                f"{self.window}: shorten it"
            )
        if min(prompt) < 0 or max(prompt) >= self._config.vocab_size:
            raise InputError(f"prompt {place}: ids must lie in [0, {self._config.vocab_size}), the model's vocabulary")

    def _hear(self, answer: _Answer, tokens: np.ndarray, logprobs: np.ndarray, sampling: Sampling) -> Decoded | None:
        """Takes new tokens; the whole answer where an end token, a stop text or its room ends it."""
        heard, ended, ids = len(answer.ids), False, answer.ids
        for token, logprob in zip(tokens.tolist(), logprobs.tolist(), strict=True):
            if math.isnan(logprob):
                raise InputError(
                    "the model gives NaN: its weights are damaged, or too large for its dtype (use float32)"
                )
            if ended := token in self._ends:
                break
            ids.append(token)
            answer.logprobs.append(logprob)
            if len(ids) == answer.room:
                break
        decode = self._tokenizer.decode
        if (found := find_stop(decode, ids, heard, sampling.stop)) is not None:
            count, text = found
            return Decoded(tuple(ids[:count]), tuple(answer.logprobs[:count]), "stop", text)
        if not ended and len(ids) < answer.room:
            return None
        # A cut may leave the first bytes of a character, which are no text.
        text = decode(ids) if ended else decode(ids).rstrip("\ufffd")
        return Decoded(tuple(ids), tuple(answer.logprobs), "stop" if ended else "length", text)


def padded_size(length: int) -> int:
    """The next of 64, 96, 128, 192, ...: prompts and caches of few lengths compile few programs."""
    size = _SMALLEST
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def find_stop(
    decode: Callable[[Sequence[int]], str], ids: Sequence[int], heard: int, stop: Sequence[str]
) -> tuple[int, str] | None:
    """The first number of tokens whose text holds a stop text, and the text before it; None if there is none.

    The text is decoded as a whole each time, so stop texts may span tokens, and a character whose bytes are split over
    tokens is looked at when it is complete.

    Args:
        ids: of the answer so far.
        heard: how many of them were searched before.
        stop: texts, none of them empty.
    """
    if not any(text in decode(ids) for text in stop):
        return None
    for count in range(heard + 1, len(ids) + 1):
        text = decode(ids[:count])
        ends = [place for place in (text.find(each) for each in stop) if place >= 0]
        if ends:
            return count, text[: min(ends)]
    return None


def prompt_hash(prompt: Sequence[int], seed: int) -> np.ndarray:
    """uint32 [2]: what the random key of a prompt's answer is made of; sha256 of the seed and the ids."""
    content = f"{seed}:" + ",".join(str(int(token)) for token in prompt)
    return np.frombuffer(hashlib.sha256(content.encode()).digest()[:8], "<u4").astype(np.uint32)


def make_decoder(
    loaded: LoadedDecoder,
    *,
    batch_size: int = 8,
    window: int | None = None,
    compute_dtype: ComputeDtype | None = None,
    mesh: Mesh | None = None,
    cache_bytes: int = _CACHE_BYTES,
) -> Decoding:
    """A decoder that continues prompts.

    Args:
        loaded: the decoder; its parameters are put on the device once, or split over `mesh`.
        batch_size: most prompts that are worked on at once.
        window: most tokens of prompt and answer; None is all that the model has.
        compute_dtype: of matrix products and cache; None is that of the parameters.
        mesh: with an axis "model", which the parameters are split over.
        cache_bytes: most memory of a batch's cache; where a batch needs more it has fewer rows, at least one.
    """
    most = loaded.config.max_positions
    window = most if window is None else window
    if batch_size < 1:
        raise UsageError(f"batch_size {batch_size} must be at least 1")
    if not 2 <= window <= most:
        raise UsageError(f"window {window}: choose 2 to {most}, the positions of the model")
    dtype: Any = compute_dtype or str(loaded.params["norm"]["scale"].dtype)
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"compute_dtype {dtype}: float32 or bfloat16")
    return Decoding(loaded, batch_size, window, dtype, mesh, cache_bytes)
