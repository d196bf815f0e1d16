"""A language model in this process: a decoder in JAX with its own chat template. Of `llm/`, only this imports JAX."""

from collections.abc import Sequence
from pathlib import Path

from jax.sharding import Mesh

from qrag_jax.models.chat_template import defuse, render_chat
from qrag_jax.models.decoder import ComputeDtype
from qrag_jax.models.decoder_sources import SMOLLM2
from qrag_jax.models.decoder_tokenizer import DecoderTokenizer
from qrag_jax.models.decoder_weights import LoadedDecoder, load_decoder
from qrag_jax.models.generation import Decoded, make_decoder
from qrag_jax.types import Finished, Generation, InputError, Message, Sampling


class LocalGenerator:
    """Answers by a decoder in this process. Satisfies `types.TextGenerator`.

    Attributes:
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
        mesh: Mesh | None = None,
    ) -> None:
        """Loads the decoder.

        Args:
            source: "smollm2", a folder, a `.gguf` file, a hub id, or a decoder that is loaded already.
            revision: commit or tag of a hub id.
            batch_size: most prompts that are worked on at once.
            window: None is all that the model has.
            dtype: of parameters and computation; of a decoder that is loaded already, of the computation.
            mesh: with an axis "model", which the parameters are split over.

        Raises:
            UsageError: there is no such source, or a setting that the model cannot have.
            InputError: a broken file, or a model without a chat template.
        """
        loaded = source if isinstance(source, LoadedDecoder) else load_decoder(source, revision=revision, dtype=dtype)
        if loaded.tokenizer.chat_template is None:
            raise InputError(
                "this model has no chat template: it continues texts and does not answer. Use one that is trained on "
                'conversations ("instruct", "chat")'
            )
        self._tokenizer, self._template = loaded.tokenizer, loaded.tokenizer.chat_template
        self._decoding = make_decoder(loaded, batch_size=batch_size, window=window, compute_dtype=dtype, mesh=mesh)
        self.window = self._decoding.window
        self._model = f"local:{loaded.fingerprint}:{dtype}:{self.window}"

    @property
    def model(self) -> str:
        """Fingerprint of the model's files, what it computes in, and its window."""
        return self._model

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> list[Generation]:
        """Answers every prompt; see `models/generation.py` for what an answer depends on.

        A conversation that the model's chat template turns down, or that leaves no room in the window, is an error of
        this prompt alone; nothing is cut. An answer that fills the window ends there, as "length".

        Args:
            prompts: conversations.
            sampling: of all of them.
            finished: called as soon as each is over.

        Raises:
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

        self._decoding.generate_ids(list(readable.values()), sampling, decoded)
        return [generations[place] for place in range(len(prompts))]

    def count_tokens(self, text: str) -> int:
        """Tokens of a text as part of a message. Satisfies `types.CountTokens`."""
        return len(self._tokenizer.encode(text, special=False))

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation as the model reads it.

        Raises:
            InputError: the chat template turns it down, a text could end its turn, or it leaves no room for an answer.
        """
        tokenizer = self._tokenizer
        for message in messages:
            _check_content(message.content, tokenizer)
        text = render_chat(
            self._template,
            messages,
            tokenizer.special_tokens,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
        )
        ids = tokenizer.encode(text, special=True)
        if len(ids) >= self.window:
            raise InputError(
                f"prompt of {len(ids)} tokens: the model's window is {self.window}, prompt and answer together; "
                "give fewer or shorter passages"
            )
        return ids


def _check_content(text: str, tokenizer: DecoderTokenizer) -> None:
    """A normaliser may spell a special token where there was none, say of full-width letters."""
    if tokenizer.eos_ids.intersection(tokenizer.encode(defuse(text, tokenizer.special_tokens), special=True)):
        raise InputError("text: this model's tokenizer reads a special token in it that ends an answer: alter it")
