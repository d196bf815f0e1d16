"""Lets a language model read documents window by window: one window of each document in a round, until all are read."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qrag_jax.annotate.ask_chunks import AnswerForm, Desk, Progressed, Reading
from qrag_jax.annotate.numbered_lines import Lines
from qrag_jax.chunking.tree.boundaries import Point, TextFault
from qrag_jax.llm.prompts import PromptTemplate, fence
from qrag_jax.types import Message


@dataclass(frozen=True)
class PointsReading:
    """The result and cost of finding boundaries in some texts.

    Attributes:
        num_texts: texts read.
        num_windows: windows that the model was asked about.
        num_rows: valid statements in its answers, including those that a later window replaced.
        num_points: boundaries found.
        dropped: invalid statements, unreadable answers and failed calls, by reason.
        calls: the cost.
    """

    num_texts: int = 0
    num_windows: int = 0
    num_rows: int = 0
    num_points: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    calls: Reading = field(default_factory=Reading)


@dataclass(frozen=True)
class Walk:
    """The progress through the windows of a document.

    Attributes:
        lines: of the whole document.
        first: first new line of the next window.
        residual: earlier lines that come before it in the window, in order.
        points: settled boundaries, all at lines up to `first`.
    """

    lines: Lines
    first: int = 0
    residual: tuple[int, ...] = ()
    points: tuple[Point, ...] = ()

    @property
    def is_done(self) -> bool:
        """True if every line is read; a document of a single line needs no question."""
        return self.first >= len(self.lines) or len(self.lines) == 1


# (document, the value of the answer or None) -> (document, number of valid statements, invalid ones by reason).
Advance = Callable[[Walk, Any], tuple[Walk, int, Counter[str]]]


def read_windows(
    desk: Desk,
    documents: Sequence[Walk],
    form: Callable[[Walk], AnswerForm],
    max_tokens: int,
    *,
    prompt: Callable[[Walk], tuple[Message, ...]],
    advance: Advance,
    finished: Callable[[PointsReading], None] | None = None,
) -> list[list[Point]]:
    """Finds the boundaries of all documents.

    Args:
        desk: asks the model; its `progress` receives the lines read in earlier rounds, in the stage `lines`.
        documents: at their beginnings.
        form: of the answer to a document's next window; windows with the same form are asked in one batch.
        max_tokens: most tokens of an answer.
        prompt: of a document's next window.
        advance: the document after the answer; every window must advance it.
        finished: called with the result and cost, even if a call failed.

    Raises:
        TextFault: calls failed. Their documents are not read further; all others are read to their ends.
    """
    now, failed = list(documents), dict[int, str]()
    desk = replace(desk, progress=_progress_by_lines(now, desk.progress))
    num_windows = num_rows = 0
    while going := [place for place, one in enumerate(now) if not one.is_done and place not in failed]:
        batches: dict[AnswerForm, list[int]] = {}
        for place in going:
            batches.setdefault(form(now[place]), []).append(place)
        for kind, places in batches.items():
            prompts = (prompt(now[place]) for place in places)
            outcomes = desk.outcomes("windows", prompts, len(places), kind, max_tokens)
            for place, outcome in zip(places, outcomes, strict=True):
                if (last := outcome.generations[-1]).is_failed:
                    failed[place] = str(last.error)
                    continue
                now[place], rows, dropped = advance(now[place], outcome.value)
                desk.left_out += dropped
                num_rows += rows
        num_windows += len(going)
    if desk.progress is not None and num_windows:
        desk.progress("windows", 0, 0, None)
    if finished is not None:
        num_points = sum(len(one.points) for one in now)
        finished(PointsReading(len(now), num_windows, num_rows, num_points, desk.reasons, desk.reading))
    if failed:
        place, error = min(failed.items())
        raise TextFault(
            f"a call of the language model failed: {error}; {len(failed):,} of {len(now):,} texts have no boundaries; "
            "run again (with a journal, only failed calls are repeated)",
            place,
        )
    return [list(one.points) for one in now]


def _progress_by_lines(now: Sequence[Walk], progress: Progressed | None) -> Progressed | None:
    """Reports progress as lines of all documents, because the number of windows is unknown."""
    if progress is None:
        return None
    of = sum(len(one.lines) for one in now)
    return lambda stage, done, total, generation: progress("lines", sum(one.first for one in now), of, generation)


def lines_prompt(template: PromptTemplate, lines: str, **numbers: int) -> tuple[Message, ...]:
    """The conversation about a window.

    Args:
        template: built-in, or the user's.
        lines: from `Lines.written`.
        numbers: line numbers, by their names in the template.
    """
    mark, fenced = fence([lines], "lines")
    return template.fill(mark=mark, lines=fenced, **{name: str(number) for name, number in numbers.items()})
