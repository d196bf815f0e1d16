"""Reader of BEIR folders, the layout of most document retrieval sets: corpus, queries, relevance judgements."""

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.data.dataset_rows import full_text, id_field, optional_text, short
from qrag_jax.files.text_files import numbered_lines, plain_or_gz, read_json_lines, read_text_file
from qrag_jax.types import Document, InputError, InputWarning, UsageError

# Why a question is left out; the last three count judgements and documents, as they say.
NO_RELEVANT = "no relevant document"
NOT_IN_CORPUS = "relevant documents not in the corpus"
NO_QUERY = "judged, but not among the queries"
LOST_RELEVANT = "judgements of relevant documents not in the corpus"
EMPTY_DOCUMENT = "documents without title and text"
NOT_ASKED = (NO_RELEVANT, NOT_IN_CORPUS, NO_QUERY)
ITSELF = "documents with the id of a question, in its ranking"

_CORPUS = 'lines {"_id", "text"[, "title"]} of a BEIR folder'
_QUERIES = 'lines {"_id", "text"} of a BEIR folder'
_QRELS = "lines query id, document id, score with tabs between, of a BEIR folder"
# What a header calls its columns, without the marks between words; one of them is enough.
_COLUMNS = {"queryid", "qid", "query", "corpusid", "docid", "documentid", "score", "relevance", "rel", "label"}
_Judged = dict[str, dict[str, tuple[float, int]]]  # query id -> document id -> score, and the line that gives it


def read_beir(path: Path, name: str, split: SplitSentences = split_sentences, qrels: str = "test") -> StudyTask:
    """Reads `corpus.jsonl`, `queries.jsonl` and `qrels/QRELS.tsv`, each also as .gz, as a task of kind "documents".

    The text of a document is its title on a separate line, then its text. A document is relevant if its score is
    above 0. The questions are those that this qrels file judges, in the order of the queries; questions without a
    relevant document in the corpus and documents without title and text are left out and counted. Judgements may
    begin with a header and repeat lines. White space at the ends of ids does not count.

    Some sets ask for documents like one of their own (ArguAna, Quora). As in BEIR, a document with the id of a question
    is not ranked for it, and is counted, unless it is relevant.

    Args:
        split: not used: documents are labelled, not sentences.
        qrels: which judgements: "test", "dev", "train".

    Warns of the first judgement whose query or document is not in the folder.
    """
    left_out: Counter[str] = Counter()
    documents = tuple(_documents(path, left_out))
    known = {document.id for document in documents}
    judged = _judgements(path, qrels)
    queries = _queries(path, judged.keys())
    left_out[NO_QUERY] += len(judged.keys() - queries.keys())
    questions = []
    for query, text in queries.items():
        wanted = [document for document, (score, _) in judged[query].items() if score > 0]
        relevant = tuple(document for document in wanted if document in known)
        if relevant:
            itself = query if query in known and query not in relevant else ""
            questions.append(StudyQuestion(query, text, relevant, itself=itself))
            left_out[ITSELF] += bool(itself)
            left_out[LOST_RELEVANT] += len(wanted) - len(relevant)
        else:
            left_out[NOT_IN_CORPUS if wanted else NO_RELEVANT] += 1
    counts = {reason: count for reason, count in left_out.items() if count}
    unknown = _first_unknown(judged, queries.keys(), known)
    if not questions:
        why = f"{counts or 'it has none'}" + ("" if unknown is None else f"; line {unknown[0]}: {unknown[1]}")
        raise InputError(f"{path}: no question of qrels/{qrels}.tsv can be asked: {why}")
    if unknown is not None:
        line, what = unknown
        told = InputWarning(f"{what}; such judgements are left out", file=_qrels_file(path, qrels), line=line)
        warnings.warn(told, stacklevel=2)
    return StudyTask(name, "documents", documents, tuple(questions), left_out=counts)


def _documents(folder: Path, left_out: Counter[str]) -> Iterator[Document]:
    seen: set[str] = set()
    for where, row in read_json_lines(plain_or_gz(folder / "corpus.jsonl"), _CORPUS):
        name = _new_id(row, seen, where)
        parts = [optional_text(row.get(field), field, where).strip() for field in ("title", "text")]
        if any(parts):
            yield Document(name, "\n".join(filter(None, parts)), {"title": parts[0]} if parts[0] else {})
        else:
            left_out[EMPTY_DOCUMENT] += 1


def _queries(folder: Path, judged: Set[str]) -> dict[str, str]:
    """Texts of the judged queries by id; others, of another qrels file, may be without."""
    seen: set[str] = set()
    queries: dict[str, str] = {}
    for where, row in read_json_lines(plain_or_gz(folder / "queries.jsonl"), _QUERIES):
        name = _new_id(row, seen, where)
        if name in judged:
            queries[name] = full_text(row.get("text"), "text", where)
    return queries


def whole_judgements(folder: Path, qrels: str = "test") -> dict[str, dict[str, int]]:
    """Query id -> document id -> score, of all judgements; refuses scores that TREC files cannot hold."""
    found: dict[str, dict[str, int]] = {}
    for query, own in _judgements(folder, qrels).items():
        for document, (score, line) in own.items():
            if score != int(score):
                raise InputError(f"score {score} is no whole number", file=_qrels_file(folder, qrels), line=line)
            found.setdefault(query, {})[document] = int(score)
    return found


def _judgements(folder: Path, qrels: str) -> _Judged:
    """The judgements in the order of the file."""
    path = _qrels_file(folder, qrels)
    if not path.is_file():
        there = sorted(file.name.split(".tsv")[0] for file in path.parent.glob("*.tsv*"))
        raise UsageError(f"{path}: no such file; this folder has the qrels {', '.join(there) or '(none)'}")
    judged: _Judged = {}
    for index, (number, line) in enumerate(numbered_lines(read_text_file(path, _QRELS))):
        where = f"{path}:{number}"
        fields = line.split("\t")
        if len(fields) != 3:
            raise InputError(f"{where}: {len(fields)} fields: expected {_QRELS}")
        score = _score(fields[2])
        if score is None and not index and _is_header(fields):
            continue
        if score is None:
            raise InputError(f"{where}: score must be a number, got {short(fields[2])}; expected {_QRELS}")
        query = id_field(fields[0], "query id", where).strip()
        document = id_field(fields[1], "document id", where).strip()
        if judged.setdefault(query, {}).setdefault(document, (score, number))[0] != score:
            raise InputError(f"{where}: query {query} and document {document} had another score before: leave one line")
    return judged


def _qrels_file(folder: Path, qrels: str) -> Path:
    return plain_or_gz(folder / "qrels" / f"{qrels}.tsv")


def _first_unknown(judged: _Judged, queries: Set[str], documents: Set[str]) -> tuple[int, str] | None:
    """The line of the first judgement of something that the folder does not have, and what that is."""
    for query, own in judged.items():
        for document, (_, line) in own.items():
            if query not in queries:
                return line, f"queries.jsonl has no query {query!r}"
            if document not in documents:
                return line, f"corpus.jsonl has no document {document!r} with a text"
    return None


def _score(text: str) -> float | None:
    try:
        score = float(text)
    except ValueError:
        return None
    return score if math.isfinite(score) else None


def _is_header(fields: Sequence[str]) -> bool:
    return any(re.sub(r"[\W_]", "", field).lower() in _COLUMNS for field in fields)


def _new_id(row: Mapping[str, object], seen: set[str], where: str) -> str:
    name = id_field(row.get("_id"), "_id", where).strip()
    if name in seen:
        raise InputError(f"{where}: _id {name!r} was used before: ids must be distinct")
    seen.add(name)
    return name
