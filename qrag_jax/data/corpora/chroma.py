"""Reader of Chroma's chunking benchmark: long texts, and questions with the exact characters that answer them.

Conventions:

- The corpora that questions name are the documents; other files of the folder are not read.
- A reference that is not at its offsets is searched for in its corpus; a question with a reference that is missing or
  ambiguous is left out.
- Evidence is counted in the sentences of our splitter, because the data has none.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.data.dataset_rows import any_text, entries, full_text, int_field
from qrag_jax.files.text_files import read_json_lines, read_text_file, usual_file
from qrag_jax.types import Document, InputError, Span

# Why a question is left out.
NO_REFERENCE = "no reference"
NOT_IN_CORPUS = "reference not in its corpus exactly once"
EMPTY_QUESTION = "empty question"

_NAMES = ("questions.jsonl", "questions_df.csv")
_COLUMNS = ("question", "references", "corpus_id")
_MAX_NAME = 252  # bytes, with .md those of a file name
_WHAT = (
    'questions {"question", "references": [{"content", "start_index", "end_index"}, ...], "corpus_id"}, one a line or '
    "a .csv with these columns, next to the corpora CORPUS_ID.md"
)


def read_chroma(path: Path, name: str, split: SplitSentences = split_sentences) -> StudyTask:
    """Reads questions in the order of the file; `CORPUS_ID.N` is the id of question N, counted from 1.

    Args:
        path: questions as JSON Lines (`references` may be JSON text) or .csv, either one also as .gz, or a folder with
            one of them as questions.jsonl or questions_df.csv. The corpora, CORPUS_ID.md, are in the same folder or
            in its folder `corpora`; a corpus_id is a document's id.
        split: gives the sentences of a corpus.
    """
    file = usual_file(path, _NAMES, _WHAT)
    documents: dict[str, Document] = {}
    questions: list[StudyQuestion] = []
    left_out: Counter[str] = Counter()
    for number, (where, row) in enumerate(_rows(file), start=1):
        corpus = _corpus_id(row, where)
        if corpus not in documents:
            documents[corpus] = Document(corpus, _corpus_text(file.parent, corpus, where))
        posed = _question(row, where, f"{corpus}.{number}", documents[corpus])
        if isinstance(posed, str):
            left_out[posed] += 1
        else:
            questions.append(posed)
    sentences = {document.id: split(document.text) for document in documents.values()}
    return StudyTask(name, "evidence", tuple(documents.values()), tuple(questions), sentences, dict(left_out))


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    if not path.name.endswith((".csv", ".csv.gz")):
        yield from read_json_lines(path, _WHAT)
        return
    reader = csv.DictReader(io.StringIO(read_text_file(path, _WHAT), newline=""), strict=True)
    try:
        if not set(_COLUMNS) <= set(reader.fieldnames or ()):
            raise InputError(f"{path}:1: columns {list(reader.fieldnames or ())}; expected {_WHAT}")
        for row in reader:
            yield f"{path}:{reader.line_num}", row
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num + 1}: not CSV ({error}); expected {_WHAT}") from error


def _corpus_id(row: Mapping[str, object], where: str) -> str:
    corpus = full_text(row.get("corpus_id"), "corpus_id", where)
    if Path(corpus).name != corpus or len(corpus.encode("utf-8", "surrogatepass")) > _MAX_NAME:
        raise InputError(
            f"{where}: corpus_id {corpus!r:.80} must be the name of a file next to the questions, without .md"
        )
    return corpus


def _corpus_text(folder: Path, corpus: str, where: str) -> str:
    nested = folder / "corpora" / f"{corpus}.md"
    path = nested if nested.is_file() else folder / f"{corpus}.md"
    return read_text_file(path, f"the corpus that {where} names")


def _question(row: Mapping[str, object], where: str, name: str, document: Document) -> StudyQuestion | str:
    """The question, or the reason why it is left out."""
    question = any_text(row.get("question"), "question", where)
    references = entries(row, "references", (), where)
    if not question.strip():
        return EMPTY_QUESTION
    if not references:
        return NO_REFERENCE
    spans = [_place(entry, f"{where}: references[{i}]", document.text) for i, entry in enumerate(references)]
    found = [span for span in spans if span is not None]
    if len(found) < len(spans):
        return NOT_IN_CORPUS
    evidence = tuple(Evidence(document.id, start, end) for start, end in sorted(set(found)))
    return StudyQuestion(name, question, (document.id,), evidence)


def _place(reference: Mapping[str, object], where: str, text: str) -> Span | None:
    """The place of a reference: its offsets, else the only place with its text, else None."""
    content = full_text(reference.get("content"), "content", where)
    start, end = (int_field(reference.get(field), field, where) for field in ("start_index", "end_index"))
    if start >= 0 and end == start + len(content) and text.startswith(content, start):
        return start, end
    first = text.find(content)
    return (first, first + len(content)) if first >= 0 and first == text.rfind(content) else None
