"""Short documents joined to long ones that change their subject in the middle: where chunkers can show what they do."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.types import Document, Span

_GAP = " "  # as between two sentences: a blank line would show chunkers that read layout where the seams are


def named_rng(seed: int, *names: str) -> np.random.Generator:
    """Random numbers that depend on the seed and a name, so a task draws the same whatever other tasks do."""
    digest = hashlib.sha256("\0".join([str(seed), *names]).encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def stitch(task: StudyTask, num_sentences: int, seed: int, split: SplitSentences) -> StudyTask:
    """The task over joined documents: in random order, with a blank between, until each has enough sentences.

    A joined document is relevant if any of its parts is; evidence and sentences move along. Every document is a part
    of exactly one joined document; the last one may be short. `metadata["parts"]` contains (id, start, end) of each
    part.

    Args:
        num_sentences: a joined document ends with the part that brings it to at least this number.
        seed: of the order, together with the name of the task.
        split: counts the sentences of a part, unless the task has sentences.
    """
    order = named_rng(seed, task.name, "stitch").permutation(len(task.documents))
    shuffled = [task.documents[i] for i in order]
    counts = [len(task.sentences.get(document.id) or split(document.text)) for document in shuffled]
    documents: list[Document] = []
    sentences: dict[str, tuple[Span, ...]] = {}
    places: dict[str, tuple[str, int]] = {}  # part -> the document that it is in, and where it starts there
    for parts in _groups(shuffled, counts, num_sentences):
        document = _join(f"stitched-{len(documents)}", parts)
        documents.append(document)
        starts = [start for _, start, _ in document.metadata["parts"]]  # pyright: ignore[reportGeneralTypeIssues]
        places |= {part.id: (document.id, start) for part, start in zip(parts, starts, strict=True)}
        if task.kind == "evidence":
            sentences[document.id] = _moved(parts, starts, task.sentences)
    questions = tuple(_move(question, places) for question in task.questions)
    return StudyTask(task.name, task.kind, tuple(documents), questions, sentences, task.left_out)


def _groups(documents: Sequence[Document], counts: Sequence[int], enough: int) -> Iterator[list[Document]]:
    group: list[Document] = []
    total = 0
    for document, count in zip(documents, counts, strict=True):
        group.append(document)
        total += count
        if total >= enough:
            yield group
            group, total = [], 0
    if group:
        yield group


def _join(name: str, parts: Sequence[Document]) -> Document:
    spans = []
    start = 0
    for part in parts:
        spans.append((part.id, start, start + len(part.text)))
        start += len(part.text) + len(_GAP)
    return Document(name, _GAP.join(part.text for part in parts), {"parts": tuple(spans)})


def _moved(
    parts: Sequence[Document], starts: Sequence[int], sentences: Mapping[str, Sequence[Span]]
) -> tuple[Span, ...]:
    return tuple(
        (start + first, start + last)
        for part, start in zip(parts, starts, strict=True)
        for first, last in sentences[part.id]
    )


def _move(question: StudyQuestion, places: Mapping[str, tuple[str, int]]) -> StudyQuestion:
    relevant = tuple(dict.fromkeys(places[part][0] for part in question.relevant))
    evidence = []
    for piece in question.evidence:
        document, start = places[piece.document_id]
        evidence.append(Evidence(document, start + piece.start, start + piece.end))
    return StudyQuestion(question.id, question.text, relevant, tuple(evidence), question.answers)
