"""Points by a language model that names where the content changes: LumberChunker, a flat baseline.

    predict = make_lumber(generator, count)
    points = predict(texts)

A window is numbered paragraphs, and the model names the first one that is about another matter than those before it.
There a part begins, and so does the next window. All points are of level 1.
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
    """How a language model finds where the content changes.

    Attributes:
        window_tokens: of the paragraphs of a window; the prompt around them and the answer come on top. One paragraph
            is shown with at most half of them.
        max_answer_tokens: of a number.
        sampling: of all calls, but for `max_tokens`.
        max_asks: calls of a prompt, at most: an answer without a number is asked for again with the reason.
        prompts: folder of the user's templates; None takes ours.
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
    """Answers of one number; an `AnswerForm`."""

    @property
    def grammar(self) -> Grammar:
        """A number, or `none`."""
        return Regex(rf"{NO_ROWS}|[1-9][0-9]{{0,4}}")

    def read(self, text: str) -> int | None:
        """The number of an answer, whatever stands around it; None where there is none to name."""
        numbers = {number.lstrip("0") or "0" for number in _NUMBER.findall(text)}
        if len(numbers) == 1:
            return int(numbers.pop()[:_MAX_DIGITS])  # of more digits than any window has lines: out of range either way
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
    """A source of points that asks a language model; see the module.

    Paragraphs are those of `tree/boundaries.py:starts_paragraph`; of a text without any, its sentences.

    Args:
        generator: of the numbers; with a journal around it no finished call is made again.
        count: tokens of a text, as of the model.
        config: None takes the defaults.
        progress: told of every answer, in the stage `lines`: how many were read in the rounds before.
        finished: told what was read, also where a call has failed.

    Returns:
        Texts -> their points; failed calls are errors as of `hichunk.make_hichunk`.

    Raises:
        UsageError: a prompt of the user's that cannot be used.
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
    """The walk, whose points are paragraphs, after its next window was answered.

    Where a paragraph was named, a part and the next window begin with it; in the document's last one nothing begins.
    Else the next window begins with the last paragraph of this one, so that the one behind it can be named; at the
    document's end that is all.

    Args:
        number: in the window, of the paragraph that was named; None where none was. The first one cannot be.

    Returns:
        (walk, statements that count, those that do not by reason).
    """
    stop = walk.lines.stop(walk.first, config.window_tokens)
    if number is not None and 1 <= number < stop - walk.first:
        line = walk.first + number
        first = stop if line == len(walk.lines) - 1 else line
        return Walk(walk.lines, first, points=(*walk.points, (line, 1))), 1, Counter()
    first = stop if stop == len(walk.lines) else stop - 1
    return replace(walk, first=first), 0, Counter({OUT_OF_RANGE: int(number is not None)})


def estimate_lumber(texts: Sequence[SentenceText], count: CountTokens, config: LumberConfig | None = None) -> Estimate:
    """What finding the points will take at most: the model names the next paragraph every time.

    Args:
        texts: as given to the source.
        count: tokens of a text.
        config: as of `make_lumber`.
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
    """The sentences with which paragraphs begin; all of them where there is one paragraph."""
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
