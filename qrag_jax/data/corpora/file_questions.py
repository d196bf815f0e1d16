"""Reader of a user's questions over files: JSON Lines with the places of the answers in the files.

    {"question": "...", "evidence": [{"file": "a.md", "start": 10, "end": 90}, {"file": "b.md", "text": "..."}, "..."]}

Evidence is a list or a single item. An item names a file (`file`; also `document`, `path`, `filename`, `doc_id`,
`source`) with character offsets (`start` and `end`, `span`: [start, end], or `spans`, a list of them) or with a
`text` that it contains once; a text without a file, alone or in an object, is searched for in all files. `file` may
also be given once next to the question, or the folder may have only one file; then [start, end] is enough, or offsets
next to the question.
Optional: `id`, `answer` or `answers`. Where no line has evidence, each says with `relevant`: ["a.md", ...] which files
answer it, and files are counted instead of sentences.

Offsets count characters from 0, `end` is after the last one. The line end of Windows counts two and a byte order mark
none: in Python those of `open(file, encoding="utf-8-sig", newline="").read()`. With a `text`, offsets that count each
line end as one character are accepted too; if these do not fit either, the only place of the text in the file is
taken.

A text is looked for exactly; if no file has it so, with other white space; if none has it so either, by its letters and
digits only (other quotation marks, dashes, accents, case).

Files are named relative to the folder. Also accepted: `./a.md`, backslashes, a path that begins with the folder's
name, and the last parts of a path or a name without suffix if only one file matches.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.file_evidence import (
    FILE_FIELDS,
    SPAN_FIELDS,
    Corpus,
    NotFound,
    find_file,
    is_pair,
    locate,
    named_file,
)
from qrag_jax.data.corpora.study_task import Evidence, Kind, StudyQuestion, StudyTask
from qrag_jax.data.dataset_rows import full_text, id_field, optional_text, read_rows
from qrag_jax.documents.read import read_files
from qrag_jax.types import Document, InputError

NO_EVIDENCE = "no evidence"  # why a question is left out, beside the reasons of `file_evidence.py`
BLANK_FILES = "blank files"  # left out too

_EXPECTED = 'lines {"question": str, "evidence": [...] or "relevant": [file, ...]}, optional "id", "answer", "answers"'
_EVIDENCE = ("evidence", "span", "spans", "start")  # fields of a line that say where in a file
_FILE = ("file", "document", "path", "filename", "file_name")  # of a line; a question's `source` may be anything
_NAMED = 3  # problems in an error message


def read_with_problems(
    corpus: Path, questions: Path, name: str, split: SplitSentences = split_sentences, encoding: str = "utf-8"
) -> tuple[StudyTask, tuple[str, ...]]:
    """Reads the files of a folder (as `files.documents.read_files`) and the questions over them.

    The module says how a line looks. Places in PDF, HTML, DOCX and EPUB are those of their Markdown.

    The id of a document is its path below the folder. A question whose evidence cannot be found, or is found in several
    places, is left out and counted by reason, and so is one without evidence where others have some. Blank files of a
    folder are left out and counted too.

    Args:
        questions: .jsonl, or .json with one list; also as .gz.
        split: finds the sentences in which evidence is counted.
        encoding: of the text files, by any name that Python knows; questions are UTF-8.

    Returns:
        The task, of kind "evidence" if any line has evidence, else "documents"; and for each blank file and each
        omitted question a line `FILE: blank file` or `FILE:LINE: error`.
    """
    base = corpus if corpus.is_dir() else corpus.parent
    documents, blank = _read_corpus(corpus, base, encoding)
    known = Corpus({document.id: document.text for document in documents}, base.absolute().as_posix())
    asked, problems, kind = _asked(questions, known)
    for where, question in asked:
        if kind == "evidence" and not question.evidence:
            problems.append((where, NotFound(NO_EVIDENCE, "this line names files only, others say where in them")))
    told = (*blank, *(f"{where}: {problem}" for where, problem in problems))
    kept = tuple(question for _, question in asked if question.evidence or kind == "documents")
    if not kept:
        raise InputError(f"{questions}: none of {len(problems)} questions can be asked: {'; '.join(told[:_NAMED])}")
    sentences = {document.id: split(document.text) for document in documents} if kind == "evidence" else {}
    left_out = Counter([problem.reason for _, problem in problems] + [BLANK_FILES] * len(blank))
    return StudyTask(name, kind, documents, kept, sentences, dict(left_out)), told


def read_questions(
    questions: Path, corpus: Corpus, needs_evidence: bool = True
) -> tuple[list[StudyQuestion], list[tuple[str, NotFound]]]:
    """Questions over documents that are known, and for each one that is left out its line and the reason.

    Args:
        needs_evidence: False also takes lines that have an answer, without evidence or with some that is not found.
    """
    asked, problems, _ = _asked(questions, corpus, needs_evidence)
    return [question for _, question in asked], problems


def _asked(
    questions: Path, corpus: Corpus, needs_evidence: bool = True
) -> tuple[list[tuple[str, StudyQuestion]], list[tuple[str, NotFound]], Kind]:
    """Questions and their lines, those left out, and "evidence" if any line has some."""
    asked: dict[str, tuple[str, StudyQuestion]] = {}  # by id
    problems: list[tuple[str, NotFound]] = []
    kind: Kind = "documents"
    for where, default, row in read_rows(questions, _EXPECTED):
        kind = "evidence" if _has_evidence(row) else kind
        try:
            question = _question(row, corpus, default, where, needs_evidence)
        except NotFound as problem:
            answered = None if needs_evidence else _answered(row, default, where)
            if answered is None:
                problems.append((where, problem))
                continue
            question = answered
        if question.id in asked:
            raise InputError(f"{where}: id {question.id!r} was used before at {asked[question.id][0]}")
        asked[question.id] = where, question
    return list(asked.values()), problems, kind


def _read_corpus(corpus: Path, base: Path, encoding: str) -> tuple[tuple[Document, ...], tuple[str, ...]]:
    """Documents by their path below `base`, and a line for each blank file, of which a folder may have some."""
    # Strict: what is measured must not depend on which files could be read.
    found = read_files(corpus, encoding, keep_blank=corpus.is_dir(), strict=True)
    documents = (replace(one, id=Path(one.id).relative_to(base).as_posix()) for one in found if one.text.strip())
    return tuple(documents), tuple(f"{one.id}: blank file" for one in found if not one.text.strip())


def _answered(row: Mapping[str, object], default: str, where: str) -> StudyQuestion | None:
    """A question whose answer alone is known; None without one."""
    answers = tuple(_answers(row, where))
    name = id_field(default if row.get("id") is None else row["id"], "id", where)
    return StudyQuestion(name, full_text(row.get("question"), "question", where), (), (), answers) if answers else None


def _question(
    row: Mapping[str, object], corpus: Corpus, default: str, where: str, needs_evidence: bool
) -> StudyQuestion:
    text = full_text(row.get("question"), "question", where)
    name = id_field(default if row.get("id") is None else row["id"], "id", where)
    answers = tuple(_answers(row, where))
    name_of_file = named_file(row, where, _FILE)
    if name_of_file is None and not any(field in row for field in (*_EVIDENCE, "relevant")):
        if not needs_evidence:
            raise NotFound(NO_EVIDENCE, "no place and no file")
        raise InputError(f"{where}: neither evidence nor relevant; expected {_EXPECTED}")
    only = next(iter(corpus.texts)) if len(corpus.texts) == 1 else None
    file = only if name_of_file is None else find_file(name_of_file, corpus, "file")
    evidence = tuple(dict.fromkeys(_evidence(row, corpus, file, where)))
    named = [full_text(item, "relevant", where) for item in _several(row.get("relevant"))]
    files = [find_file(item, corpus, "relevant") for item in named]
    files += [] if name_of_file is None or file is None else [file]
    relevant = tuple(dict.fromkeys(files + [piece.document_id for piece in evidence]))
    if not relevant:
        raise NotFound(NO_EVIDENCE, "an empty list")
    return StudyQuestion(name, text, relevant, evidence, answers)


def _evidence(row: Mapping[str, object], corpus: Corpus, file: str | None, where: str) -> Iterator[Evidence]:
    """Places of all items; a line may also be an item itself, with offsets next to the question."""
    value = row.get("evidence")
    if value is None and _has_evidence(row):
        value = {field: row[field] for field in (*FILE_FIELDS, *SPAN_FIELDS) if field in row}
    items = [value] if is_pair(value) else _several(value)
    for index, item in enumerate(items):
        yield from locate(item, corpus, file, f"evidence[{index}]" if items is value else "evidence", where)


def _has_evidence(row: Mapping[str, object]) -> bool:
    return any(row.get(field) not in (None, [], "") for field in _EVIDENCE)


def _answers(row: Mapping[str, object], where: str) -> Iterator[str]:
    """Texts of `answer` and `answers`, either of which may be one text or several; numbers as they are written."""
    for field in ("answer", "answers"):
        for answer in _several(row.get(field)):
            if isinstance(answer, int | float) and not isinstance(answer, bool):
                yield str(answer)
            elif optional_text(answer, field, where).strip():
                yield optional_text(answer, field, where)


def _several(value: object) -> Sequence[object]:
    """A list unchanged, None as an empty list, anything else as a list with this element."""
    return value if isinstance(value, list) else [] if value is None else [value]
