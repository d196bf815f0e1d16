"""A language model in this process: a decoder in JAX with its own chat template. Of `llm/`, only this imports JAX."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from jax.sharding import Mesh

from qrag_jax.models.chat.render import render_chat
from qrag_jax.models.decoder.causal_lm import ComputeDtype
from qrag_jax.models.decoder.generation import Decoded, make_decoder
from qrag_jax.models.decoder.sources import SMOLLM2
from qrag_jax.models.decoder.weights import LoadedDecoder, best_storage, load_decoder
from qrag_jax.names import Storage
from qrag_jax.types import Finished, Generation, Grammar, InputError, Message, Sampling, UsageError


class LocalGenerator:
    """Answers by a decoder in this process. Satisfies `types.TextGenerator`.

    Attributes:
        model: fingerprint of the model's files, what it computes in, and its window.
        decoding: what continues the ids of prompts.
        window: most tokens of a prompt, its template counted, and its answer together.
    """

    def __init__(
        self,
        source: str | Path | LoadedDecoder = SMOLLM2,
        *,
        revision: str | None = None,
        batch_size: int = 8,
        window: int | None = None,
        dtype: ComputeDtype = "float32",
        storage: Storage | None = None,
        mesh: Mesh | None = None,
        prefix_bytes: int | None = None,
    ) -> None:
        """Loads the decoder.

        Args:
            source: "smollm2", a folder, a `.gguf` file, a hub id, or a decoder that is loaded already.
            revision: commit or tag of a hub id.
            batch_size: most prompts that are worked on at once.
            window: None is all that the model has.
            dtype: of the computation, and of parameters that are plain numbers.
            storage: how matrices are kept ("float32", "bfloat16", "int8", "file"; see `load_decoder`). None is the best
                for the source: as they are in a GGUF file on a CPU with the extra `cpu`, in `dtype` otherwise and with
                a mesh. Of a decoder that is loaded already it is left out.
            mesh: with an axis "model", which the parameters are split over.
            prefix_bytes: most memory of prompts that were read, from which later ones that begin alike go on; 0 is
                none, None 512 MiB.

        Raises:
            UsageError: there is no such source, or a setting that the model cannot have.
            InputError: a broken file, or a model without a chat template.
        """
        if isinstance(source, LoadedDecoder):
            if storage not in (None, source.storage):
                raise UsageError(
                    f"storage {storage}: this decoder is loaded already, as {source.storage}; leave it out"
                )
            loaded = source
        else:
            found = storage or (best_storage(source) if mesh is None and dtype == "float32" else dtype)
            loaded = load_decoder(source, revision=revision, storage=found)
        if loaded.tokenizer.chat_template is None:
            raise InputError(
                "this model has no chat template: it continues texts and does not answer. Use one that is trained on "
                'conversations ("instruct", "chat")'
            )
        self._tokenizer, self._template = loaded.tokenizer, loaded.tokenizer.chat_template
        self.decoding = make_decoder(
            loaded,
            batch_size=batch_size,
            window=window,
            compute_dtype=dtype,
            mesh=mesh,
            prefix_bytes=prefix_bytes,
        )
        self.window = self.decoding.window
        kept = dtype if loaded.storage in ("float32", dtype) else f"{loaded.storage}-{dtype}"
        self.model = f"local:{loaded.fingerprint}:{kept}:{self.window}"

    def takes_grammar(self, grammar: Grammar) -> bool:
        """True if the vocabulary is one of bytes and has a token that ends an answer."""
        return self._tokenizer.is_of_bytes and bool(self._tokenizer.eos_ids)

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> list[Generation]:
        """Answers every prompt; see `models/decoder/generation.py` for what an answer depends on.

        A conversation that the model's chat template turns down, or that leaves no room in the window, is an error of
        this prompt alone; nothing is cut. An answer that fills the window ends there, as "length".

        Args:
            prompts: conversations.
            sampling: of all of them.
            finished: called as soon as each is over.

        Raises:
            UsageError: a grammar that the model cannot be held to, or a `prefix_bytes` below one of the prompts;
                before any token is made.
            InputError: the model gives NaN.
        """
        generations: dict[int, Generation] = {}
        readable: dict[int, list[int]] = {}

        def note(place: int, generation: Generation) -> None:
            generations[place] = generation
            if finished is not None:
                finished(place, generation)

        for place, messages in enumerate(prompts):
            try:
                readable[place] = self.prompt_ids(messages)
            except InputError as error:
                note(place, Generation("", "error", error=str(error)))
        places = list(readable)

        def decoded(number: int, answer: Decoded) -> None:
            place = places[number]
            logprobs = answer.logprobs if sampling.logprobs else None
            counts = len(readable[place]), len(answer.ids)
            note(place, Generation(answer.text, answer.finish_reason, *counts, logprobs=logprobs))

        self.decoding.generate_ids(list(readable.values()), sampling, decoded)
        return [generations[place] for place in range(len(prompts))]

    def count_tokens(self, text: str) -> int:
        """Tokens of a text as part of a message. Satisfies `types.CountTokens`."""
        return len(self._tokenizer.encode(text, special=False))

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation as the model reads it.

        Raises:
            InputError: the chat template turns it down or makes nothing of it, a text could end its turn, or it leaves
                no room for an answer.
        """
        ids = self._rendered(messages)
        if not ids:
            raise InputError("this model's chat template makes no tokens of the conversation: give it a text")
        self._check_marks(messages, ids)
        if len(ids) >= self.window:
            raise InputError(
                f"prompt of {len(ids)} tokens: the model's window is {self.window}, prompt and answer together; "
                "give fewer or shorter passages"
            )
        return ids

    def _rendered(self, messages: Sequence[Message]) -> list[int]:
        tokenizer = self._tokenizer
        text = render_chat(
            self._template,
            messages,
            tokenizer.special_tokens,
            other_tokens=tokenizer.other_tokens,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
        )
        return tokenizer.encode(text, special=True)

    def _check_marks(self, messages: Sequence[Message], ids: Sequence[int]) -> None:
        """Refuses contents that special tokens come out of.

        They go into the template with none. But one that changes letters or takes a text apart may spell one anew, and
        so may a normaliser, of full-width letters say. The same roles with a text that spells nothing show which ones
        the template writes by itself, and in which order: contents may make them fewer, never more.

        Tokens that are not special, `<think>` say, count where the template writes them itself, unless the model's own
        turns hold some, which templates keep or leave out.
        """
        tokenizer = self._tokenizer
        plain = self._rendered(
            [replace(each, content="x" if each.content.strip() else each.content) for each in messages]
        )
        said = [each.content for each in messages if each.role == "assistant"]
        own = () if any(token in text for token in tokenizer.other_tokens for text in said) else plain
        counted = {*tokenizer.special_tokens, *(text for text in self._marks(own) if len(text) > 1)}
        counted = {text for text in counted if text.strip()}  # white space is no mark of a turn
        left: Iterator[str] = self._marks(plain)
        for mark in self._marks(ids):
            # Taken out of what is left up to the first equal one.
            if mark in counted and mark not in left:
                raise InputError(
                    f"text: the model's chat template or tokenizer makes the special token {mark!r} of it, which could "
                    "end its turn: alter it"
                )

    def _marks(self, ids: Sequence[int]) -> Iterator[str]:
        texts = self._tokenizer.token_texts
        return (texts[number] for number in ids if number in texts)
