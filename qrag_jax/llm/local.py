"""Language models in this process, with their chat templates. Only this module of `llm/` imports JAX."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from qrag_jax.llm.calls import writing_of
from qrag_jax.llm.llamacpp import INSTALL, NO_TEMPLATE, LlamaCpp, LlamaTokenizer, Said, is_installed
from qrag_jax.llm.thinking import answer_of, is_mark, opened_by, separate
from qrag_jax.models.chat.render import render_chat
from qrag_jax.models.decoder.generation import Decoded, make_decoder
from qrag_jax.models.decoder.likelihood import AnswerLikelihood, fast_dtype
from qrag_jax.models.decoder.network import ComputeDtype
from qrag_jax.models.decoder.sources import SMOLLM2, SMOLLM2_SHA256, find_decoder, names_gguf
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.decoder.weights import LoadedDecoder, load_decoder
from qrag_jax.names import Engine
from qrag_jax.types import Finished, Generation, Grammar, InputError, Message, Sampling, UsageError


class LocalGenerator:
    """Answers with a decoder in this process. Satisfies `types.TextGenerator`.

    Attributes:
        model: fingerprint of the model's files, its dtype or the version of llama.cpp, and its window.
        engine: what computes it.
        decoding: continues prompts of token ids.
        window: most tokens of a prompt (with its template) and its answer together.
    """

    def __init__(
        self,
        source: str | Path | LoadedDecoder = SMOLLM2,
        *,
        engine: Engine | None = None,
        revision: str | None = None,
        batch_size: int = 8,
        window: int | None = None,
        dtype: ComputeDtype | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        """Loads the decoder.

        Args:
            source: "smollm2", a folder, a `.gguf` file, a hub id, or a loaded decoder.
            engine: what computes the model. None is "llamacpp" for a GGUF file ("smollm2" is one) on a CPU, if its
                extra is installed and neither dtype nor mesh is given; else "jax".
            revision: commit or tag of a hub id.
            batch_size: most prompts in a batch.
            window: None is the whole window of the model.
            dtype: jax: of the computation, and of the parameters that are loaded; None is "float32".
            mesh: jax: with an axis "model" to split the parameters over.

        Raises:
            UsageError: the source does not exist, a setting does not fit the model or the engine, or the engine is
                not installed.
            InputError: a damaged file, or a model without a chat template.
        """
        self.engine = _engine(source, engine, asks_jax=mesh is not None or dtype is not None)
        sizes: dict[str, Any] = {"batch_size": batch_size, "window": window}
        if self.engine == "llamacpp" and not isinstance(source, LoadedDecoder):
            path, known = find_decoder(source, revision), SMOLLM2_SHA256 if source == SMOLLM2 else None
            self.decoding = LlamaCpp(path, fingerprint=known, **sizes)
            self._tokenizer, fingerprint, kept = self.decoding.tokenizer, self.decoding.fingerprint, self.decoding.name
        else:
            kept = dtype or "float32"
            loaded = source if isinstance(source, LoadedDecoder) else _loaded(source, revision, kept)
            self._tokenizer, fingerprint = loaded.tokenizer, loaded.fingerprint
            self.decoding = make_decoder(loaded, compute_dtype=kept, mesh=mesh, **sizes)
        self.window = self.decoding.window
        self._chat = Conversations(self._tokenizer, self.window)
        self.model = f"local:{fingerprint}:{kept}:{self.window}"

    def takes_grammar(self, grammar: Grammar) -> bool:
        """True if the vocabulary has all bytes and a token that ends an answer."""
        return self._tokenizer.is_of_bytes and bool(self._tokenizer.eos_ids)

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> list[Generation]:
        """Answers every prompt; `models/decoder/generation.py` says on what an answer depends.

        If the chat template refuses a conversation, or it leaves no room for an answer, only that prompt fails. Nothing
        is cut. An answer that fills the window ends there, with "length".

        Args:
            prompts: conversations.
            sampling: of all prompts.
            finished: called with each answer as soon as it is complete.

        Raises:
            UsageError: a grammar that the model cannot follow; before any token is generated.
            InputError: the model gives NaN.
        """
        generations: dict[int, Generation] = {}
        readable: dict[int, list[int]] = {}
        opened: dict[int, str] = {}

        def note(place: int, generation: Generation) -> None:
            generations[place] = generation
            if finished is not None:
                finished(place, generation)

        for place, messages in enumerate(prompts):
            try:
                readable[place], text = self._chat.read(messages)
                opened[place] = opened_by(text)
            except InputError as error:
                note(place, Generation("", "error", error=str(error)))
        places = list(readable)

        def decoded(number: int, answer: Decoded | Said) -> None:
            place = places[number]
            logprobs = answer.logprobs if sampling.logprobs else None
            counts = len(readable[place]), answer.num_tokens
            said = Generation(answer.text, answer.finish_reason, *counts, logprobs=logprobs)
            if sampling.grammar is None:  # else the text has the form that was asked for
                said = answer_of(replace(said, text=opened[place] + self._marked(answer)))
            note(place, said)

        def heard(number: int, answer: Decoded | Said) -> None:
            assert write is not None  # else nobody listens
            write(places[number], separate(opened[places[number]] + self._marked(answer)).text)

        write = writing_of(finished)
        self.decoding.generate_ids(list(readable.values()), sampling, decoded, write and heard)
        return [generations[place] for place in range(len(prompts))]

    def _marked(self, answer: Decoded | Said) -> str:
        """The text of an answer with the marks of thinking that the tokenizer drops; llama.cpp keeps them."""
        decode, texts = self._tokenizer.decode, self._tokenizer.token_texts
        marks = [place for place, number in enumerate(answer.ids) if is_mark(texts.get(number, ""))]
        text = answer.text
        if marks:
            parts = [decode(answer.ids[start + 1 : end]) for start, end in pairwise([-1, *marks, len(answer.ids)])]
            after = decode(answer.ids)[len(text) :]  # behind a stop text, or bytes of half a character
            named = [texts[answer.ids[place]] for place in marks]
            text = "".join(part + mark for part, mark in zip(parts, [*named, ""], strict=True)).removesuffix(after)
        return text

    def count_tokens(self, text: str) -> int:
        """Tokens of a text as part of a message. Satisfies `types.CountTokens`."""
        return len(self._tokenizer.encode(text, special=False))

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation as the model reads it; errors as of `Conversations.read`."""
        return self._chat.read(messages)[0]


class Conversations:
    """Turns conversations into token ids by the chat template of a model."""

    def __init__(self, tokenizer: DecoderTokenizer | LlamaTokenizer, window: int) -> None:
        """Refuses a model without a chat template; `window` are the most tokens of a prompt and its answer."""
        if tokenizer.chat_template is None:
            raise InputError(NO_TEMPLATE)
        self._tokenizer, self._template, self._window = tokenizer, tokenizer.chat_template, window

    def read(self, messages: Sequence[Message]) -> tuple[list[int], str]:
        """The conversation as token ids, and as text.

        Raises:
            InputError: the chat template refuses it or makes no tokens, a text could end its turn, or there is no room
                for an answer.
        """
        ids, rendered = self._rendered(messages)
        if not ids:
            raise InputError("this model's chat template makes no tokens from the conversation; give it a text")
        self._check_marks(messages, ids)
        if len(ids) >= self._window:
            raise InputError(
                f"prompt of {len(ids)} tokens: the model's window is {self._window} for prompt and answer together; "
                "give fewer or shorter passages"
            )
        return ids, rendered

    def _rendered(self, messages: Sequence[Message]) -> tuple[list[int], str]:
        tokenizer = self._tokenizer
        text = render_chat(
            self._template,
            messages,
            tokenizer.special_tokens,
            other_tokens=tokenizer.other_tokens,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
        )
        return tokenizer.encode(text, special=True), text

    def _check_marks(self, messages: Sequence[Message], ids: Sequence[int]) -> None:
        """Refuses contents that become special tokens.

        Contents have no special tokens when they enter the template. But a template that changes or splits text can
        create one, and so can a normaliser, for example of full-width letters. Rendering the same roles with a harmless
        text shows which special tokens the template writes itself, and in which order. Contents may make them fewer,
        but not more.

        Ordinary tokens such as `<think>` count too if the template writes them itself, unless the model's own turns
        contain some, which templates keep or leave out.
        """
        tokenizer = self._tokenizer
        harmless = [replace(each, content="x" if each.content.strip() else each.content) for each in messages]
        plain, _ = self._rendered(harmless)
        said = [each.content for each in messages if each.role == "assistant"]
        own = () if any(token in text for token in tokenizer.other_tokens for text in said) else plain
        counted = {*tokenizer.special_tokens, *(text for text in self._marks(own) if len(text) > 1)}
        counted = {text for text in counted if text.strip()}  # white space does not mark a turn
        left: Iterator[str] = self._marks(plain)
        for mark in self._marks(ids):
            # `in` consumes `left` up to the first equal mark.
            if mark in counted and mark not in left:
                raise InputError(
                    f"text: the model's chat template or tokenizer turns it into the special token {mark!r}, which "
                    "could end its turn; change the text"
                )

    def _marks(self, ids: Sequence[int]) -> Iterator[str]:
        texts = self._tokenizer.token_texts
        return (texts[number] for number in ids if number in texts)


class LocalLikelihood:
    """Tells how likely an answer is, by a decoder in this process. Satisfies `types.TextGenerator`.

    The last message of a conversation is the answer. It is read and comes back as the text, with the log-probabilities
    of its tokens in `Generation.logprobs`; nothing is written, and the sampling is not read.

    Attributes:
        model: fingerprint of the model's files, and its dtype.
        window: most tokens of a prompt and its answer together.
    """

    def __init__(self, source: str | Path | LoadedDecoder = SMOLLM2, *, dtype: ComputeDtype | None = None) -> None:
        """Loads the decoder; sources and errors as of `LocalGenerator`.

        Args:
            dtype: of the parameters and the computation; None is the faster one of this machine.
        """
        kept = dtype or fast_dtype()
        loaded = source if isinstance(source, LoadedDecoder) else _loaded(source, None, kept)
        self._tokenizer, self._likelihood = loaded.tokenizer, AnswerLikelihood(loaded, kept)
        self.window, self.model = self._likelihood.window, f"likelihood:{loaded.fingerprint}:{kept}"
        self._chat = Conversations(loaded.tokenizer, self.window)

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> list[Generation]:
        """Reads every conversation; one that the model cannot read fails alone.

        Raises:
            InputError: the model gives NaN.
        """
        generations: dict[int, Generation] = {}
        readable: dict[int, tuple[list[int], list[int]]] = {}

        def note(place: int, generation: Generation) -> None:
            generations[place] = generation
            if finished is not None:
                finished(place, generation)

        for place, messages in enumerate(prompts):
            try:
                readable[place] = self._ids(messages)
            except InputError as error:
                note(place, Generation("", "error", error=str(error)))
        places = list(readable)

        def told(number: int, logprobs: tuple[float, ...]) -> None:
            place = places[number]
            num_tokens = sum(map(len, readable[place]))
            note(place, Generation(prompts[place][-1].content, "stop", num_tokens, logprobs=logprobs))

        if readable:
            ids = list(readable.values())
            self._likelihood([prompt for prompt, _ in ids], [answer for _, answer in ids], told)
        return [generations[place] for place in range(len(prompts))]

    def _ids(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        *before, last = messages or (Message("user", ""),)
        if last.role != "assistant" or not last.content:
            raise InputError("the last message must be an answer of the assistant, and not empty")
        prompt, text = self._chat.read(before)
        if opened_by(text):
            raise InputError(
                "the model's chat template begins every answer with a thought; choose a model that answers"
            )
        answer = self._tokenizer.encode(last.content, special=False)
        if len(prompt) + len(answer) > self.window:
            raise InputError(
                f"prompt and answer have {len(prompt) + len(answer)} tokens, but the model reads {self.window}; give "
                "fewer or shorter passages"
            )
        return prompt, answer


def _engine(source: str | Path | LoadedDecoder, asked: Engine | None, asks_jax: bool) -> Engine:
    """Chooses the engine of a model; no other place decides this."""
    is_gguf = not isinstance(source, LoadedDecoder) and names_gguf(source)
    if asked == "llamacpp":
        if not is_gguf:
            raise UsageError("engine llamacpp: it reads .gguf files; convert the model, or use the engine jax")
        if asks_jax:
            raise UsageError("engine llamacpp: dtype and mesh are settings of the engine jax; leave them out")
    is_better = is_gguf and not asks_jax and is_installed() and jax.default_backend() == "cpu"
    return asked or ("llamacpp" if is_better else "jax")


def _loaded(source: str | Path, revision: str | None, dtype: ComputeDtype) -> LoadedDecoder:
    """The decoder of the engine jax; its errors about a GGUF file name the other engine, which may read it."""
    try:
        return load_decoder(source, revision=revision, dtype=dtype)
    except UsageError:
        raise
    except InputError as error:
        if not names_gguf(source):
            raise
        other = "leave the engine out" if is_installed() else f"install the extra llamacpp ({INSTALL})"
        remedy = f"llama.cpp reads more models: {other}"
        raise InputError(error.text(with_file=False), file=error.file, line=error.line, remedy=remedy) from error
