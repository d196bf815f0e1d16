"""Summaries of sections by a language model; SmartChunk embeds them as the vectors of parents."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from qrag_jax.annotate.ask_chunks import CALL_FAILED, Progressed, Reading, chunk_prompt, reading_of
from qrag_jax.chunking.text.spans import readable
from qrag_jax.llm.calls import ask_all
from qrag_jax.llm.prompts import load_prompt
from qrag_jax.types import Generation, InputError, Sampling, TextGenerator, check_fields

EMPTY = "empty summary"
_PROMPT = "summary"
_STAGE = "summaries"


@dataclass(frozen=True)
class SummariesConfig:
    """How a language model writes summaries.

    Attributes:
        max_tokens: of a summary, the paper's 128; a longer summary is cut there.
        sampling: of all calls, except `max_tokens`.
        prompts: folder of the user's templates; None uses the built-in ones.
    """

    max_tokens: int = 128
    sampling: Sampling = Sampling()
    prompts: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self, "summaries", positive=("max_tokens",))


@dataclass(frozen=True)
class Summaries:
    """The summaries of texts.

    Attributes:
        texts: the summary of each text, or None.
        left_out: number of texts without a summary, by reason.
        reading: the cost of the calls.
    """

    texts: tuple[str | None, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)


def summarise(
    generator: TextGenerator,
    texts: Sequence[str],
    config: SummariesConfig | None = None,
    *,
    progress: Progressed | None = None,
) -> Summaries:
    """Summarises texts, one in each call; equal texts share a call.

    Args:
        generator: writes the summaries; with a journal (`llm/journal`), no finished call is repeated.
        texts: of sections; lone surrogates become U+FFFD.
        config: None uses the defaults.
        progress: called for every answer, in the stage `summaries`.

    Raises:
        InputError: all calls failed, or the generator breaks its contract.
        UsageError: a template of the user cannot be used.
    """
    config = config or SummariesConfig()
    template = load_prompt(_PROMPT, config.prompts)
    different = list(dict.fromkeys(readable(text) for text in texts))
    answered = 0

    def tell(place: int, generation: Generation) -> None:
        nonlocal answered
        answered += 1
        if progress is not None:
            progress(_STAGE, answered, len(different), generation)

    prompts = [chunk_prompt(template, text) for text in different]
    answers = ask_all(generator, prompts, sampling=replace(config.sampling, max_tokens=config.max_tokens), tell=tell)
    reading = sum(
        (reading_of([answer], answer.error if answer.is_failed else None) for answer in answers), Reading(len(texts))
    )
    if different and reading.num_failed == len(different):
        raise InputError(
            f"{_STAGE}: all {len(different):,} calls of the language model failed; the first one: {reading.errors[0]}"
        )
    known = dict(zip(different, answers, strict=True))
    found = [known[readable(text)] for text in texts]
    summaries = tuple(" ".join(answer.text.split()) or None for answer in found)
    left_out = Counter(CALL_FAILED if one.is_failed else EMPTY for one in found if not one.text.strip())
    return Summaries(summaries, left_out, reading)


def summaries_fingerprint(generator: TextGenerator, config: SummariesConfig | None = None) -> str:
    """A fingerprint that is equal for the same model, prompt and sampling."""
    config = config or SummariesConfig()
    template = load_prompt(_PROMPT, config.prompts)
    return f"{generator.model} {template.sha256[:16]} {replace(config.sampling, max_tokens=config.max_tokens)}"
