"""Boundaries by a language model that reads a document window by window: HiChunk (sec. 4, Algorithm 1).

    predict = make_hichunk(generator, count)
    points = predict(texts)

A window is numbered lines, one for each sentence. The model names the lines that begin a part, with their levels. A
long document has several windows. The next window begins at the last part of level 1, or with residual lines: earlier
lines that show the levels. Without them a model treats the first part of a window as level 1, and levels drift.

All documents are read together, one window of each in a round.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from qrag_jax.annotate.ask_chunks import Desk, Estimate, Progressed, prompt_tokens
from qrag_jax.annotate.numbered_lines import MAX_RISING, Answer, Lines, RowsForm, good_rows, number_lines
from qrag_jax.annotate.windows import PointsReading, Walk, lines_prompt, read_windows
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.tree.boundaries import Point, PredictPoints
from qrag_jax.llm.calls import takes_grammar
from qrag_jax.llm.prompts import PromptTemplate, load_prompt
from qrag_jax.types import CountTokens, Message, Sampling, TextGenerator, check_fields

_PROMPT = "hichunk"
_FORM_LINES = (8, 16, 32, 64, 128, MAX_RISING)  # window sizes of grammars with ordered lines; each is an automaton
RESIDUAL_SHARE = 8  # residual lines take at most 1/8 of a window


@dataclass(frozen=True)
class Clips:
    """The choice of residual lines from a part of level 1, which its boundaries of level 2 divide into clips.

    Attributes:
        first: number of clips from its beginning.
        last: number of clips from its end.
        lines: number of first lines of each clip.
    """

    first: int
    last: int
    lines: int


@dataclass(frozen=True)
class HiChunkConfig:
    """How a language model finds boundaries.

    Attributes:
        window_tokens: of the lines of a window, including residual lines, without the prompt and the answer.
        window_lines: most lines of a window, including residual lines; None is no limit. Up to 200 (rounded up to the
            next grammar), the grammar allows only rows in the order of lines; above that, in any order.
        max_chars: characters of a sentence to show.
        residuals: choices to try in turn until one has at most 1/8 of the window; if none has, there are no residual
            lines.
        min_advance: the next window begins at the last boundary of level 1 if at least this share of the window's new
            lines is before it; else after the window. 0 is exactly Algorithm 1, which asks once for each line if a
            model finds all parts at the beginning of its windows.
        max_answer_tokens: of all rows of a window, about 10 each.
        sampling: of all calls, except `max_tokens`.
        max_asks: most calls for a prompt; an answer without rows is asked again with the reason.
        prompts: folder of the user's templates; None uses the built-in ones.
    """

    window_tokens: int = 16_384
    window_lines: int | None = None
    max_chars: int = 100
    residuals: tuple[Clips, ...] = (Clips(2, 3, 20), Clips(1, 2, 15), Clips(1, 1, 5), Clips(1, 1, 1))
    min_advance: float = 0.25
    max_answer_tokens: int = 2_000
    sampling: Sampling = Sampling()
    max_asks: int = 2
    prompts: Path | None = None

    def __post_init__(self) -> None:
        least = {"window_tokens": 64, "window_lines": 2, "max_chars": 1, "max_answer_tokens": 1, "max_asks": 1}
        check_fields(self, "hichunk", at_least=least, shares=("min_advance",))


def make_hichunk(
    generator: TextGenerator,
    count: CountTokens,
    config: HiChunkConfig | None = None,
    *,
    progress: Progressed | None = None,
    finished: Callable[[PointsReading], None] | None = None,
) -> PredictPoints:
    """Makes a source of boundaries that asks a language model; see the module.

    Args:
        generator: gives the rows; with a journal, no finished call is repeated.
        count: counts tokens like the model.
        config: None uses the defaults.
        progress: called for every answer, in the stage `lines`, with the lines read in earlier rounds.
        finished: called with the result and cost, even if a call failed.

    Returns:
        Texts -> their boundaries. A window with an unreadable answer has none; this is counted. After a failed call its
        text is not read further. When all other texts are read, it raises InputError, because missing boundaries would
        look like a document without parts.

    Raises:
        UsageError: a template of the user cannot be used.
    """
    config = config or HiChunkConfig()
    template, again = load_prompt(_PROMPT, config.prompts), load_prompt("again", config.prompts)
    is_held = takes_grammar(generator, RowsForm().grammar)

    def predict(texts: Sequence[SentenceText]) -> list[list[Point]]:
        return read_windows(
            Desk(generator, config.sampling, config.max_asks, again, progress),
            [Walk(_lines(text, count, config)) for text in texts],
            lambda walk: _form(walk, config) if is_held else RowsForm(),
            config.max_answer_tokens,
            prompt=lambda walk: _window_prompt(template, walk, config),
            advance=lambda walk, answer: advance(walk, answer or Answer(()), config),
            finished=finished,
        )

    return predict


def advance(walk: Walk, answer: Answer, config: HiChunkConfig) -> tuple[Walk, int, Counter[str]]:
    """The walk after the answer to its next window.

        the window reached the end:               all its points, done
        two or more points of level 1, last at b: the points up to b; the next window begins with b
        else:                                     all its points; the next window begins after it, with residual lines

    A point at the beginning of the window is already settled, with level 1.

    Args:
        answer: to the window that `window` gives.

    Returns:
        (walk, number of rows that count, numbers of other rows by reason).
    """
    shown, stop = window(walk, config)
    settled = {len(walk.residual): 1} if walk.points and walk.points[-1][0] == walk.first else {}
    rows, dropped = good_rows(answer, len(walk.residual), len(shown), settled)
    found = [(shown[line], level) for line, level in rows.items()]
    tops = [walk.first] * len(settled) + [line for line, level in found if level == 1]
    points = (*walk.points, *found)
    is_end = stop == len(walk.lines)
    if not is_end and len(tops) > 1 and tops[-1] - walk.first >= config.min_advance * (stop - walk.first):
        points = tuple(point for point in points if point[0] <= tops[-1])
        return Walk(walk.lines, tops[-1], (), points), len(rows), dropped
    residual = () if is_end else residual_lines(points, stop, walk.lines, config)
    return Walk(walk.lines, stop, residual, points), len(rows), dropped


def window(walk: Walk, config: HiChunkConfig) -> tuple[list[int], int]:
    """The lines of the next window, residual lines first, and the line after its last one."""
    costs = sum(walk.lines.costs[line] for line in walk.residual)
    most = None if config.window_lines is None else config.window_lines - len(walk.residual)
    stop = walk.lines.stop(walk.first, config.window_tokens - costs, most)
    return [*walk.residual, *range(walk.first, stop)], stop


def residual_lines(points: Sequence[Point], stop: int, lines: Lines, config: HiChunkConfig) -> tuple[int, ...]:
    """Earlier lines that show the levels to the next window, from the clips of the last part of level 1.

    Args:
        points: settled, in order. Without a point of level 1, the document's beginning counts as one.
        stop: first line of the next window.
        config: its `residuals` are tried in turn until one fits.
    """
    begin = max((line for line, level in points if level == 1), default=0)
    starts = [begin, *(line for line, level in points if level == 2 and line > begin)]
    clips = [range(start, end) for start, end in zip(starts, [*starts[1:], stop], strict=True)]
    tokens, most = _residual_room(config)
    for take in config.residuals:
        chosen = [*clips[: take.first], *clips[max(take.first, len(clips) - take.last) :]]
        found = tuple(line for clip in chosen for line in clip[: take.lines])
        if sum(lines.costs[line] for line in found) <= tokens and (most is None or len(found) <= most):
            return found
    return ()


def estimate_hichunk(
    texts: Sequence[SentenceText], count: CountTokens, config: HiChunkConfig | None = None
) -> Estimate:
    """An upper bound of the cost, for any answers of the model.

    It assumes that every window except the last advances only by `min_advance`, with as many residual lines as allowed.

    Args:
        texts: as given to the source.
        count: counts tokens.
        config: as for `make_hichunk`.
    """
    config = config or HiChunkConfig()
    template = load_prompt(_PROMPT, config.prompts)
    empty = lines_prompt(template, "", first=0, last=0)
    around, shared = (prompt_tokens(part, count) for part in (empty, empty[:-1]))
    total = Estimate()
    for text in texts:
        lines = _lines(text, count, config)
        num_calls = _max_windows(lines, config)
        tokens = num_calls * (around + min(config.window_tokens, sum(lines.costs)))
        fresh = tokens - num_calls * shared
        total += Estimate(num_calls, tokens, fresh, num_calls * config.max_answer_tokens)
    return replace(total, new_prompt_tokens=total.new_prompt_tokens + shared) if total.num_calls else total


def _form(walk: Walk, config: HiChunkConfig) -> RowsForm:
    """The form of the next window, with its lines rounded up; windows of the same form are asked together."""
    size = next((size for size in _FORM_LINES if size >= len(window(walk, config)[0])), None)
    return RowsForm(size if config.window_lines is None or size is None else min(size, config.window_lines))


def _lines(text: SentenceText, count: CountTokens, config: HiChunkConfig) -> Lines:
    room = config.window_tokens - _residual_room(config)[0]
    return number_lines(text.texts(), count, max_chars=config.max_chars, tokens=room)


def _residual_room(config: HiChunkConfig) -> tuple[int, int | None]:
    """The most tokens and lines of residual lines."""
    lines = config.window_lines
    return config.window_tokens // RESIDUAL_SHARE, None if lines is None else max(1, lines // RESIDUAL_SHARE)


def _max_windows(lines: Lines, config: HiChunkConfig) -> int:
    tokens, most = _residual_room(config)
    room = config.window_tokens - tokens
    room_lines = None if config.window_lines is None or most is None else config.window_lines - most
    first = number = 0
    while first < len(lines) > 1:
        number += 1
        stop = lines.stop(first, room, room_lines)
        if stop == len(lines):
            break
        first += max(1, ceil(config.min_advance * (stop - first)))
    return number


def _window_prompt(template: PromptTemplate, walk: Walk, config: HiChunkConfig) -> tuple[Message, ...]:
    shown, _ = window(walk, config)
    return lines_prompt(template, walk.lines.written(shown), first=len(walk.residual), last=len(shown) - 1)
