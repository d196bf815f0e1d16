"""Tasks of a study: which reader reads them, samples of them, dev and test parts."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

import numpy as np

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.data.corpora.stitch import named_rng, stitch
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.study.config import TaskConfig
from qrag_jax.names import TASKS
from qrag_jax.types import InputError, UsageError

# Why a question is left out.
NOT_SAMPLED = "relevant documents not in the sample"
ON_BOTH_SIDES = "relevant documents in both dev and test"

_FEWEST_GROUPS = 10  # with fewer documents, whole ones would not split anywhere near the wanted share


def load_task(name: str, config: TaskConfig, data: str, seed: int, split: SplitSentences) -> StudyTask:
    """Reads a task, takes the samples that the config asks for, and stitches documents.

    First documents are drawn: a question keeps those of its relevant documents (and evidence) that are in the sample,
    and is left out and counted if none is. Then questions are drawn; then documents are stitched. Samples keep the
    order of the data. Where there are fewer than are asked for, all are taken. Draws depend on seed and name only.

    Args:
        name: of the task.
        config: what to read, and how much of it.
        data: folder that paths of the config are relative to.
        seed: of samples and stitching.
        split: finds sentences if the data has none.

    Raises:
        UsageError: a file is missing, an unknown encoding, or scope `document` where documents are asked for.
        InputError: broken data, or no question left.
    """
    return load_with_problems(name, config, data, seed, split)[0]


def load_with_problems(
    name: str, config: TaskConfig, data: str, seed: int, split: SplitSentences
) -> tuple[StudyTask, tuple[str, ...]]:
    """`load_task`, and for `files` a line `FILE:LINE: error` for each question that could not be asked."""
    task, problems = _read(name, config, Path(data), split)
    if config.scope == "document" and task.kind == "documents":
        raise UsageError(
            f"tasks.{name}.scope: document: searches only the relevant documents, so all strategies "
            "would be right; choose corpus, or questions with evidence"
        )
    if config.num_documents is not None and config.num_documents < len(task.documents):
        task = _sample_documents(task, config.num_documents, seed)
    if config.num_questions is not None and config.num_questions < len(task.questions):
        drawn = named_rng(seed, name, "questions").permutation(len(task.questions))[: config.num_questions]
        task = replace(task, questions=tuple(task.questions[i] for i in sorted(drawn)))
    if config.stitch_sentences is not None:
        task = stitch(task, config.stitch_sentences, seed, split)
    return task, problems


def split_task(
    task: StudyTask, config: TaskConfig, dev_share: float, min_dev_questions: int, seed: int
) -> tuple[StudyTask | None, StudyTask]:
    """The dev part, which chooses configs, and the test part, which is reported.

    `config.split` "questions": both parts have all documents. Questions about one document stay on one side where every
    question has exactly one relevant document and these are at least 10; else single questions are drawn. "documents":
    documents are drawn for dev, both parts have only their own, and a question is asked where all its relevant
    documents are; those with some on each side are left out and counted, in both parts.

    Args:
        task: of `load_task`.
        dev_share: of the questions, or of the documents, between 0 and 1.
        min_dev_questions: a dev part with fewer would choose by chance.
        seed: together with the name of the task.

    Returns:
        (dev, test); (None, the whole task) where dev would have too few questions, or test none.
    """
    rng = named_rng(seed, task.name, "split")
    if config.split == "documents":
        names = [document.id for document in task.documents]
        drawn = {names[i] for i in rng.permutation(len(names))[: round(dev_share * len(names))]}
        sides = (drawn, set(names) - drawn)
        asked = [[question for question in task.questions if set(question.relevant) <= side] for side in sides]
        lost = len(task.questions) - len(asked[0]) - len(asked[1])
        left_out = {ON_BOTH_SIDES: lost} if lost else {}
    else:
        dev_ids = _dev_questions(task.questions, dev_share, rng)
        everything = {document.id for document in task.documents}
        sides = (everything, everything)
        asked = [[one for one in task.questions if (one.id in dev_ids) == is_dev] for is_dev in (True, False)]
        left_out = {}
    if len(asked[0]) < max(1, min_dev_questions) or not asked[1]:
        return None, task
    dev, test = (_restrict(task, side, part, left_out) for side, part in zip(sides, asked, strict=True))
    return dev, test


def _read(name: str, config: TaskConfig, data: Path, split: SplitSentences) -> tuple[StudyTask, tuple[str, ...]]:
    read, path = TASKS.load(config.kind), data / config.path
    if config.kind in TASKS.choices("files"):
        return read(path, data / config.questions, name, split, config.encoding)
    return read(path, name, split, *filter(None, [config.questions])), ()


def _sample_documents(task: StudyTask, num_documents: int, seed: int) -> StudyTask:
    drawn = named_rng(seed, task.name, "documents").permutation(len(task.documents))[:num_documents]
    names = {task.documents[i].id for i in drawn}
    questions = []
    for question in task.questions:
        relevant = tuple(name for name in question.relevant if name in names)
        evidence = tuple(piece for piece in question.evidence if piece.document_id in names)
        if evidence if task.kind == "evidence" else relevant:
            questions.append(replace(question, relevant=relevant, evidence=evidence))
    lost = len(task.questions) - len(questions)
    if not questions:
        raise InputError(
            f"{task.name}: no question is about the sample of {num_documents} of {len(task.documents)} documents: "
            "raise num_documents"
        )
    return _restrict(task, names, questions, {NOT_SAMPLED: lost} if lost else {})


def _restrict(
    task: StudyTask, names: Set[str], questions: Sequence[StudyQuestion], left_out: Mapping[str, int]
) -> StudyTask:
    """The task with these documents, in the order of the corpus, and these questions."""
    return replace(
        task,
        documents=tuple(document for document in task.documents if document.id in names),
        questions=tuple(questions),
        sentences={name: spans for name, spans in task.sentences.items() if name in names},
        left_out={**task.left_out, **left_out},
        sections={name: found for name, found in task.sections.items() if name in names},
    )


def _dev_questions(questions: Sequence[StudyQuestion], dev_share: float, rng: np.random.Generator) -> set[str]:
    """Ids of dev questions: all of a document, or single ones; see `split_task`."""
    wanted = dev_share * len(questions)
    groups: dict[str, list[str]] = {}
    for question in questions:
        groups.setdefault(question.relevant[0], []).append(question.id)
    if len(groups) < _FEWEST_GROUPS or any(len(question.relevant) > 1 for question in questions):
        return {questions[i].id for i in rng.permutation(len(questions))[: round(wanted)]}
    members = list(groups.values())
    dev: set[str] = set()
    for index in rng.permutation(len(members)):
        if len(dev) + len(members[index]) / 2 <= wanted:  # nearer to the share with it than without it
            dev.update(members[index])
    return dev
