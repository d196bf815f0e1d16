"""The tasks of RULER by name: checked names, data sets of the QA tasks, and the questions of each task and length."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.data.corpora.squad import read_squad
from qrag_jax.data.questions.multihop import read_hotpot
from qrag_jax.data.stories.ruler import NEEDLES, NUM_HOPS, QA, TASKS, VARIABLES, NeedleMaker
from qrag_jax.data.stories.ruler_context import CountAll, RulerQuestion
from qrag_jax.data.stories.ruler_qa import QaQuestion, QaSet, qa_questions
from qrag_jax.types import InputError, Span, UsageError

_ALL_NEEDLES = "niah"
_MOST_GOLD = {VARIABLES: NUM_HOPS + 1, "qa_1": 1, "qa_2": 2}  # other tasks: 4
_FILES = {"qa_1": "SQuAD", "qa_2": "HotpotQA"}


@dataclass(frozen=True)
class RulerSet:
    """The questions of a task at one length.

    Attributes:
        task: its name.
        num_tokens: most tokens of a context.
        questions: with their contexts.
    """

    task: str
    num_tokens: int
    questions: Sequence[RulerQuestion]


def check_tasks(names: Sequence[str]) -> dict[str, str | None]:
    """The tasks, each with its file or None.

    Args:
        names: of `TASKS`, qa tasks as NAME:FILE; `niah` is all tasks with needles.

    Raises:
        UsageError: an unknown name, a task twice, or a file that lacks or is too much.
    """
    found: dict[str, str | None] = {}
    for given in names:
        name, _, path = given.partition(":")
        if name not in (*TASKS, _ALL_NEEDLES):
            choices = f"choose from {_ALL_NEEDLES} (all needles), {', '.join(TASKS)}"
            raise UsageError(f"there is no such task of RULER: {choices}", field="ruler", value=given)
        if name in QA and not path:
            reason = f"needs questions of {_FILES[name]}: give {name}:FILE"
            raise UsageError(reason, field="ruler", value=given)
        if path and name not in QA:
            raise UsageError(f"reads no file: give {name}", field="ruler", value=given)
        for task in NEEDLES if name == _ALL_NEEDLES else (name,):
            if task in found:
                raise UsageError(f"{task} is given twice", field="ruler", value=given)
            found[task] = path or None
    if not found:
        raise UsageError(f"give at least one of {', '.join(TASKS)}", field="ruler")
    return found


def default_steps(task: str, num_steps: int) -> int:
    """Picks where none are named: those of the run, or as many as the task has gold chunks if these are more."""
    return max(num_steps, _MOST_GOLD.get(task, 4))


def read_qa(task: str, path: str) -> QaSet:
    """The questions and paragraphs of SQuAD (qa_1) or HotpotQA (qa_2); a paragraph is `TITLE: TEXT`."""
    return _read_squad(Path(path)) if task == "qa_1" else _read_hotpot(path)


def make_sets(
    tasks: dict[str, str | None],
    lengths: Sequence[int],
    num_questions: int,
    seed: int,
    count: CountAll,
    essays: Callable[[], Sequence[str]],
    chunk_tokens: int,
) -> Iterator[RulerSet]:
    """The questions of each task and length, in this order.

    Args:
        tasks: as `check_tasks` gives them.
        lengths: most tokens of a context.
        num_questions: of each; a QA task has at most those of its file.
        seed: of all draws.
        count: texts -> tokens of each.
        essays: gives the sentences of the essays.
        chunk_tokens: most tokens of a chunk of sentences.
    """
    maker = NeedleMaker(count, essays, seed, chunk_tokens)
    for task, path in tasks.items():
        data = None if path is None else read_qa(task, path)
        for length in lengths:
            if data is None:
                questions = maker.questions(task, length, num_questions)
            else:
                questions = qa_questions(task, data, length, num_questions, seed, maker.counts)
            yield RulerSet(task, length, questions)


def _read_hotpot(path: str) -> QaSet:
    read = read_hotpot(path)
    questions = [
        QaQuestion(one.query_id, one.question, tuple(dict.fromkeys(one.chunks[i] for i in one.gold)), answers)
        for one, answers in zip(read.examples, read.answers, strict=True)
    ]
    return QaSet(path, questions, read.titles, is_one_title=True)


def _read_squad(path: Path) -> QaSet:
    """The paragraphs of all articles; the gold one has the sentence of the answer."""
    read = read_squad(path, path.name, split=_by_paragraph)
    titles: dict[str, str] = {}
    texts: dict[str, dict[Span, str]] = {}
    for document in read.documents:
        own, title = texts.setdefault(document.id, {}), document.id.replace("_", " ")
        for start, end in _by_paragraph(document.text):
            own[start, end] = f"{title}: {' '.join(document.text[start:end].split())}"
            titles.setdefault(own[start, end], title)
    questions = [
        QaQuestion(one.id, one.text, tuple(texts[part.document_id][part.start, part.end] for part in one.evidence[:1]),
                   one.answers)
        for one in read.questions
    ]  # fmt: skip
    if not questions:
        raise InputError("no question has an answer in its paragraph", file=path)
    return QaSet(str(path), questions, titles, is_one_title=False)


def _by_paragraph(text: str) -> list[Span]:
    """The spans between blank lines."""
    spans, start = [], 0
    for part in text.split("\n\n"):
        if part.strip():
            spans.append((start, start + len(part)))
        start += len(part) + 2
    return spans
