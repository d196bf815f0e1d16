"""Reader of MultiRC's paragraphs with the numbers of the sentences that each question needs.

Conventions:

- A document is the data set's sentences joined by a blank; they are also the units in which evidence is counted.
- Of several evidence sets the union counts: a chunk that holds a sentence of any of them is right, and recall asks for
  all of them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import join_pieces
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.data.dataset_rows import any_text, entries, full_text, id_field, int_field, must_be
from qrag_jax.files.text_files import read_json_lines, usual_file
from qrag_jax.types import Document, InputError, Span

# Why a question is left out.
NO_EVIDENCE = "no evidence sentence"
OUT_OF_RANGE = "evidence sentence out of range"
EMPTY_QUESTION = "empty question"

_NAMES = ("evidence.jsonl",)
_WHAT = (
    'lines {"doc_id", "sentences": [text, ...], "questions": [{"question", "evidence_sets": [[sentence number, ...], '
    "...]}, ...]} of MultiRC"
)


def read_multirc(path: Path, name: str, split: SplitSentences = split_sentences) -> StudyTask:
    """Reads paragraphs in the order of the file; `DOC_ID.N` is the id of the paragraph's question N, counted from 1.

    Args:
        path: JSON Lines, plain or .gz, or a folder with them as evidence.jsonl. Sentence numbers count from 0.
        split: not used, as the data has its own sentences; here because all readers take it.
    """
    del split
    documents: dict[str, Document] = {}
    sentences: dict[str, Sequence[Span]] = {}
    questions: list[StudyQuestion] = []
    left_out: Counter[str] = Counter()
    for where, row in read_json_lines(usual_file(path, _NAMES, _WHAT), _WHAT):
        doc_id = id_field(row.get("doc_id"), "doc_id", where)
        if doc_id in documents:
            raise InputError(f"{where}: doc_id {doc_id!r} was used before: ids must be distinct")
        text, sentences[doc_id] = join_pieces(_sentences(row, where))
        documents[doc_id] = Document(doc_id, text)
        for index, entry in enumerate(entries(row, "questions", (), where)):
            place = f"{where}: questions[{index}]"
            posed = _question(entry, place, f"{doc_id}.{index + 1}", doc_id, sentences[doc_id])
            if isinstance(posed, str):
                left_out[posed] += 1
            else:
                questions.append(posed)
    return StudyTask(name, "evidence", tuple(documents.values()), tuple(questions), sentences, dict(left_out))


def _sentences(row: Mapping[str, object], where: str) -> list[str]:
    value = row.get("sentences")
    if not isinstance(value, list) or not value:
        raise must_be(where, "sentences", "a list of texts, at least one", value)
    return [full_text(sentence, f"sentences[{index}]", where) for index, sentence in enumerate(value)]


def _question(
    entry: Mapping[str, object], where: str, name: str, doc_id: str, sentences: Sequence[Span]
) -> StudyQuestion | str:
    """The question, or the reason why it is left out."""
    question = any_text(entry.get("question"), "question", where)
    numbers = _numbers(entry.get("evidence_sets"), where)
    if not question.strip():
        return EMPTY_QUESTION
    if not numbers:
        return NO_EVIDENCE
    if not (numbers[0] >= 0 and numbers[-1] < len(sentences)):
        return OUT_OF_RANGE
    evidence = tuple(Evidence(doc_id, *sentences[number]) for number in numbers)
    return StudyQuestion(name, question, (doc_id,), evidence)


def _numbers(sets: object, where: str) -> list[int]:
    """Distinct sentence numbers of all sets, increasing."""
    if not isinstance(sets, list) or not all(isinstance(numbers, list) for numbers in sets):
        raise must_be(where, "evidence_sets", "a list of lists of sentence numbers", sets)
    return sorted({int_field(number, "a number in evidence_sets", where) for numbers in sets for number in numbers})
