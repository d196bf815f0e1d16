"""Boundaries by a language model that names where the topic changes: LumberChunker, a baseline with one level.

    predict = make_lumber(generator, count)
    points = predict(texts)

A window is numbered paragraphs. The model names the first one about another topic than those before it. A part begins
there, and so does the next window. All boundaries have level 1.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qrag_jax.annotate.ask_chunks import Desk, Estimate, Progressed, prompt_tokens
from qrag_jax.annotate.numbered_lines import NO_ROWS, OUT_OF_RANGE, Lines, number_lines
from qrag_jax.annotate.windows import PointsReading, Walk, lines_prompt, read_windows
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.tree.boundaries import Point, PredictPoints, starts_paragraph
from qrag_jax.llm.prompts import PromptTemplate, load_prompt
from qrag_jax.types import CountTokens, Grammar, InputError, Message, Regex, Sampling, TextGenerator, check_fields

_PROMPT = "lumber"
_NUMBER = re.compile(r"\d+")
_MAX_DIGITS = 9


@dataclass(frozen=True)
class LumberConfig:
    """How a language model finds changes of topic.

    Attributes:
        window_tokens: of the paragraphs of a window, without the prompt and the answer. A paragraph is cut to half of
            them.
        max_answer_tokens: of a number.
        sampling: of all calls, except `max_tokens`.
        max_asks: most calls for a prompt; an answer without a number is asked again with the reason.
        prompts: folder of the user's templates; None uses the built-in ones.
    """

    window_tokens: int = 550
    max_answer_tokens: int = 16
    sampling: Sampling = Sampling()
    max_asks: int = 2
    prompts: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self, "lumber", positive=("max_answer_tokens", "max_asks"), at_least={"window_tokens": 32})


@dataclass(frozen=True)
class NumberForm:
    """The form of an answer with one number; an `AnswerForm`."""

    @property
    def grammar(self) -> Grammar:
        """A number, or `none`."""
        return Regex(rf"{NO_ROWS}|[1-9][0-9]{{0,4}}")

    def read(self, text: str) -> int | None:
        """The number in an answer, with any text around it; None for the answer `none`.

        Raises:
            InputError: the answer has no number, or several.
        """
        numbers = {number.lstrip("0") or "0" for number in _NUMBER.findall(text)}
        if len(numbers) == 1:
            return int(numbers.pop()[:_MAX_DIGITS])  # more digits are out of range of any window anyway
        if not numbers and text.strip(" \n.`'\"").lower() == NO_ROWS:
            return None
        raise InputError(f"it holds {len(numbers)} numbers; it must be one, or {NO_ROWS!r}")


def make_lumber(
    generator: TextGenerator,
    count: CountTokens,
    config: LumberConfig | None = None,
    *,
    progress: Progressed | None = None,
    finished: Callable[[PointsReading], None] | None = None,
) -> PredictPoints:
    """Makes a source of boundaries that asks a language model; see the module.

    Paragraphs are those of `tree/boundaries.py:starts_paragraph`, or the sentences of a text without paragraphs.

    Args:
        generator: gives the numbers; with a journal, no finished call is repeated.
        count: counts tokens like the model.
        config: None uses the defaults.
        progress: called for every answer, in the stage `lines`, with the lines read in earlier rounds.
        finished: called with the result and cost, even if a call failed.

    Returns:
        Texts -> their boundaries; failed calls are errors as in `hichunk.make_hichunk`.

    Raises:
        UsageError: a template of the user cannot be used.
    """
    config = config or LumberConfig()
    template, again = load_prompt(_PROMPT, config.prompts), load_prompt("again", config.prompts)

    def predict(texts: Sequence[SentenceText]) -> list[list[Point]]:
        starts = [_paragraph_starts(text) for text in texts]
        found = read_windows(
            Desk(generator, config.sampling, config.max_asks, again, progress),
            [Walk(_lines(text, own, count, config)) for text, own in zip(texts, starts, strict=True)],
            lambda _: NumberForm(),
            config.max_answer_tokens,
            prompt=lambda walk: _window_prompt(template, walk, config),
            advance=lambda walk, number: advance(walk, number, config),
            finished=finished,
        )
        named = zip(found, starts, strict=True)
        return [[(own[line], level) for line, level in points] for points, own in named]

    return predict


def advance(walk: Walk, number: int | None, config: LumberConfig) -> tuple[Walk, int, Counter[str]]:
    """The walk, whose points are paragraphs, after the answer to its next window.

    A part and the next window begin with the named paragraph; after the document's last paragraph the walk is done.
    Without a name, the next window begins with the last paragraph of this one, so the paragraph after it can be named.

    Args:
        number: of the named paragraph in the window; None if none was named. The first one cannot be named.

    Returns:
        (walk, number of statements that count, numbers of other statements by reason).
    """
    stop = walk.lines.stop(walk.first, config.window_tokens)
    if number is not None and 1 <= number < stop - walk.first:
        line = walk.first + number
        first = stop if line == len(walk.lines) - 1 else line
        return Walk(walk.lines, first, points=(*walk.points, (line, 1))), 1, Counter()
    first = stop if stop == len(walk.lines) else stop - 1
    return replace(walk, first=first), 0, Counter({OUT_OF_RANGE: int(number is not None)})


def estimate_lumber(texts: Sequence[SentenceText], count: CountTokens, config: LumberConfig | None = None) -> Estimate:
    """An upper bound of the cost: the model names the next paragraph every time.

    Args:
        texts: as given to the source.
        count: counts tokens.
        config: as for `make_lumber`.
    """
    config = config or LumberConfig()
    template = load_prompt(_PROMPT, config.prompts)
    empty = lines_prompt(template, "", last=0)
    around, shared = (prompt_tokens(part, count) for part in (empty, empty[:-1]))
    total = Estimate()
    for text in texts:
        lines = _lines(text, _paragraph_starts(text), count, config)
        stops = [lines.stop(first, config.window_tokens) for first in range(len(lines) - 1)]
        tokens = sum(around + sum(lines.costs[first:stop]) for first, stop in enumerate(stops))
        total += Estimate(len(stops), tokens, tokens - len(stops) * shared, len(stops) * config.max_answer_tokens)
    return total + Estimate(new_prompt_tokens=shared if total.num_calls else 0)


def _paragraph_starts(text: SentenceText) -> list[int]:
    """The first sentences of paragraphs; all sentences if there is only one paragraph."""
    starts = np.flatnonzero(starts_paragraph(text)).tolist()
    return list(range(len(text))) if len(starts) == 1 else starts


def _lines(text: SentenceText, starts: Sequence[int], count: CountTokens, config: LumberConfig) -> Lines:
    ends = [text.sentences[start - 1][1] for start in starts[1:]] + [text.sentences[-1][1]] if starts else []
    paragraphs = [text.text[text.sentences[start][0] : end] for start, end in zip(starts, ends, strict=True)]
    tokens = config.window_tokens // 2
    return number_lines(paragraphs, count, max_chars=max(map(len, paragraphs), default=0), tokens=tokens)


def _window_prompt(template: PromptTemplate, walk: Walk, config: LumberConfig) -> tuple[Message, ...]:
    stop = walk.lines.stop(walk.first, config.window_tokens)
    return lines_prompt(template, walk.lines.written(range(walk.first, stop)), last=stop - walk.first - 1)
