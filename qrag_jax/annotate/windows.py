"""Documents that a language model reads window by window: one window of each in a round, until all are read."""

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
    """What finding the points of some texts took.

    Attributes:
        num_texts: that were read.
        num_windows: that the model was asked about.
        num_rows: statements of its answers that count, those among them that a later window took back.
        num_points: that were found.
        dropped: statements that do not count, answers that cannot be read and calls that failed, by reason.
        calls: what they cost.
    """

    num_texts: int = 0
    num_windows: int = 0
    num_rows: int = 0
    num_points: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    calls: Reading = field(default_factory=Reading)


@dataclass(frozen=True)
class Walk:
    """A document on its way through its windows.

    Attributes:
        lines: of the whole document.
        first: new line with which the next window begins.
        residual: lines read before, which stand in front of it; rising.
        points: that are settled, all of lines up to `first`.
    """

    lines: Lines
    first: int = 0
    residual: tuple[int, ...] = ()
    points: tuple[Point, ...] = ()

    @property
    def is_done(self) -> bool:
        """Every line was read; a single one has nothing to ask."""
        return self.first >= len(self.lines) or len(self.lines) == 1


# (document, the value of the answer or None) -> (document, statements that count, those that do not by reason).
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
    """The points of all documents, read to their ends.

    Args:
        desk: where the model is asked; its `progress` is told how many lines were read in the rounds before, in the
            stage `lines`.
        form: of the answer to a document's next window; those of one form are asked in one batch.
        prompt: of a document's next window.
        advance: a document behind it; every window must bring it on.
        finished: told what was read, also where a call has failed.

    Raises:
        TextFault: calls have failed. Documents that they belong to are read no further, all others to their ends.
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
                if (error := outcome.generations[-1].error) is not None:
                    failed[place] = error
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
            f"a call of the language model failed: {error}; {len(failed):,} of {len(now):,} texts have no points "
            "(with a journal, asking again asks for these only)",
            place,
        )
    return [list(one.points) for one in now]


def _progress_by_lines(now: Sequence[Walk], progress: Progressed | None) -> Progressed | None:
    """What a desk tells of every answer, as lines of all documents: how many windows there will be is not known."""
    if progress is None:
        return None
    of = sum(len(one.lines) for one in now)
    return lambda stage, done, total, generation: progress("lines", sum(one.first for one in now), of, generation)


def lines_prompt(template: PromptTemplate, lines: str, **numbers: int) -> tuple[Message, ...]:
    """The conversation about a window.

    Args:
        template: that asks, ours or the user's.
        lines: as `Lines.written` gives them.
        numbers: of lines, by their names in the template.
    """
    mark, fenced = fence([lines], "lines")
    return template.fill(mark=mark, lines=fenced, **{name: str(number) for name, number in numbers.items()})
