"""Reader of BEIR folders, the layout of most document retrieval sets: corpus, queries, relevance judgements."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from qrag_jax.chunking.groups import SplitSentences
from qrag_jax.chunking.sentences import split_sentences
from qrag_jax.data.fields import full_text, id_field, optional_text
from qrag_jax.data.packed import plain_or_gz
from qrag_jax.data.rows import short
from qrag_jax.data.study_task import StudyQuestion, StudyTask
from qrag_jax.data.textfile import numbered_lines, read_json_lines, read_text_file
from qrag_jax.types import Document, InputError, UsageError

# Why a question is left out.
NO_RELEVANT = "no relevant document"
NOT_IN_CORPUS = "relevant documents not in the corpus"
LOST_RELEVANT = "judgements of relevant documents not in the corpus"
NO_QUERY = "judged, but not among the queries"
# The one reason that counts documents, not questions.
EMPTY_DOCUMENT = "documents without title and text"

_CORPUS = 'lines {"_id", "text"[, "title"]} of a BEIR folder'
_QUERIES = 'lines {"_id", "text"} of a BEIR folder'
_QRELS = "a header and lines query id, document id, score with tabs between, of a BEIR folder"


def read_beir(path: Path, name: str, split: SplitSentences = split_sentences, qrels: str = "test") -> StudyTask:
    """Reads `corpus.jsonl`, `queries.jsonl` and `qrels/QRELS.tsv`, each also as .gz, as a task of kind "documents".

    The text of a document is its title on a line of its own, then its text. A document is relevant if its score is
    above 0. The questions are those that this qrels file judges, in the order of the queries; those without a relevant
    document in the corpus are left out and counted, and so are documents without title and text.

    Args:
        path: the folder.
        name: of the task.
        split: not used: documents are labelled, not sentences.
        qrels: which judgements: "test", "dev", "train".

    Raises:
        UsageError: a file is missing.
        InputError: a broken line (file, line and field named), an id that is there twice, no question left.
    """
    left_out: Counter[str] = Counter()
    documents = tuple(_documents(path, left_out))
    known = {document.id for document in documents}
    judged = _judgements(path, qrels)
    queries = _queries(path)
    left_out[NO_QUERY] += len(judged.keys() - queries.keys())
    questions = []
    for query, text in queries.items():
        if query not in judged:  # of another qrels file
            continue
        wanted = [document for document, score in judged[query].items() if score > 0]
        relevant = tuple(document for document in wanted if document in known)
        if relevant:
            questions.append(StudyQuestion(query, text, relevant))
            left_out[LOST_RELEVANT] += len(wanted) - len(relevant)
        else:
            left_out[NOT_IN_CORPUS if wanted else NO_RELEVANT] += 1
    counts = {reason: count for reason, count in left_out.items() if count}
    if not questions:
        raise InputError(f"{path}: no question of qrels/{qrels}.tsv can be asked: {counts or 'it has none'}")
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


def _queries(folder: Path) -> dict[str, str]:
    seen: set[str] = set()
    return {
        _new_id(row, seen, where): full_text(row.get("text"), "text", where)
        for where, row in read_json_lines(plain_or_gz(folder / "queries.jsonl"), _QUERIES)
    }


def _judgements(folder: Path, qrels: str) -> dict[str, dict[str, float]]:
    """Query id -> document id -> score, in the order of the file."""
    path = plain_or_gz(folder / "qrels" / f"{qrels}.tsv")
    if not path.is_file():
        there = sorted(file.name.split(".tsv")[0] for file in path.parent.glob("*.tsv*"))
        raise UsageError(f"{path}: no such file; this folder has the qrels {', '.join(there) or '(none)'}")
    judged: dict[str, dict[str, float]] = {}
    for index, (number, line) in enumerate(numbered_lines(read_text_file(path, _QRELS))):
        where = f"{path}:{number}"
        fields = line.split("\t")
        if len(fields) != 3:
            raise InputError(f"{where}: {len(fields)} fields: expected {_QRELS}")
        score = _score(fields[2])
        if score is None and index:  # the first line is the header
            raise InputError(f"{where}: score must be a number, got {short(fields[2])}")
        if score is not None:
            query, document = id_field(fields[0], "query id", where), id_field(fields[1], "document id", where)
            if document in judged.setdefault(query, {}):
                raise InputError(f"{where}: query {query} and document {document} were judged before: leave one line")
            judged[query][document] = score
    return judged


def _score(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _new_id(row: Mapping[str, object], seen: set[str], where: str) -> str:
    name = id_field(row.get("_id"), "_id", where)
    if name in seen:
        raise InputError(f"{where}: _id {name!r} was used before: ids must be distinct")
    seen.add(name)
    return name
