"""A task of a study: documents, questions, and the places of their answers in the documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from qrag_jax.types import Document, InputError, Span

Kind = Literal["documents", "evidence"]


@dataclass(frozen=True)
class Evidence:
    """Characters [start, end) of a document that answer a question."""

    document_id: str
    start: int
    end: int


@dataclass(frozen=True)
class StudyQuestion:
    """A question and its labels.

    Attributes:
        id: distinct in its task, not empty.
        text: of the question.
        relevant: ids of the documents that answer it, each once; at least one, unless only an answer is known.
        evidence: the characters that answer it; empty where only documents are labelled.
        answers: reference answers, for answer generation; may be empty.
        itself: id of the document that is the question itself, which is not ranked for it; empty if there is none.
    """

    id: str
    text: str
    relevant: tuple[str, ...]
    evidence: tuple[Evidence, ...] = ()
    answers: tuple[str, ...] = ()
    itself: str = ""


@dataclass(frozen=True)
class StudyTask:
    """Documents and questions over them; validated when made.

    Attributes:
        name: for tables and file names.
        kind: "documents": which documents are found counts; "evidence": which sentences are.
        documents: the corpus, in a fixed order.
        questions: in a fixed order.
        sentences: of "evidence", by document id: the units in which evidence is counted, ordered and disjoint. Those of
            the data set where it has its own, else those of our splitter.
        sections: (first character, level from 1) of the sections of documents whose headings are not in the text, by
            document id; empty where they are, or are not known.
        left_out: reason -> number of omitted questions, or of other things that the reason names.
    """

    name: str
    kind: Kind
    documents: tuple[Document, ...]
    questions: tuple[StudyQuestion, ...]
    sentences: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    sections: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        texts = {document.id: document.text for document in self.documents}
        if not self.documents or not self.questions:
            why = "".join(f"; left out, {reason}: {number}" for reason, number in self.left_out.items())
            raise InputError(
                f"{self.name}: {len(texts)} documents and {len(self.questions)} questions: none to study{why}"
            )
        _check_distinct(self.name, "document id", [document.id for document in self.documents])
        _check_distinct(self.name, "question id", [question.id for question in self.questions])
        for question in self.questions:
            _check_question(self, question, texts)
        if self.kind == "evidence":
            for name, text in texts.items():
                _check_sentences(f"{self.name}: document {name}", self.sentences.get(name, ()), len(text))


def _check_distinct(task: str, what: str, names: Sequence[str]) -> None:
    seen = set()
    for name in names:
        if name in seen or not name:
            raise InputError(f"{task}: {what} {name!r} is {'given twice' if name else 'empty'}: ids must be distinct")
        seen.add(name)


def _check_question(task: StudyTask, question: StudyQuestion, texts: Mapping[str, str]) -> None:
    where = f"{task.name}: question {question.id}"
    if not question.text.strip():
        raise InputError(f"{where}: has no text")
    if not all(answer.strip() for answer in question.answers):
        raise InputError(f"{where}: answers {list(question.answers)}: one is blank; leave it out")
    if not question.relevant or len(set(question.relevant)) != len(question.relevant):
        raise InputError(f"{where}: relevant {list(question.relevant)}: name at least one document, each once")
    for name in question.relevant:
        if name not in texts:
            raise InputError(f"{where}: relevant document {name!r} is not in the corpus")
    if task.kind == "evidence" and not question.evidence:
        raise InputError(f"{where}: has no evidence")
    for part in question.evidence:
        if part.document_id not in question.relevant:
            raise InputError(f"{where}: evidence in {part.document_id!r}, which is not among its relevant documents")
        if not 0 <= part.start < part.end <= len(texts[part.document_id]):
            raise InputError(
                f"{where}: evidence [{part.start}, {part.end}) must be a range inside {part.document_id!r}, which has "
                f"{len(texts[part.document_id])} characters"
            )


def _check_sentences(where: str, sentences: Sequence[Span], length: int) -> None:
    done = 0
    for start, end in sentences:
        if not done <= start < end <= length:
            raise InputError(f"{where}: sentence [{start}, {end}) after character {done} of {length}")
        done = end
    if not sentences:
        raise InputError(f"{where}: has no sentences to count evidence in")
