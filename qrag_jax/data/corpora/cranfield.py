"""Reader of the Cranfield collection in its TREC form: 1,400 abstracts on aerodynamics, 225 questions.

The numbers of the questions have holes (1, 2, 4, 8, ...), but the judgements number them 1 to 225: the first question
is 1, the second 2, and so on. Read by their own numbers, 73 would have no judgement and most others wrong ones.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.data.dataset_rows import one_line, short
from qrag_jax.files.text_files import numbered_lines, plain_or_gz, read_text_file
from qrag_jax.types import Document, InputError

NO_RELEVANT = "no relevant document with a text"
# The one reason that counts documents, not questions.
EMPTY_DOCUMENT = "documents without text"

_DOCUMENTS = "cran.all.1400.xml of the Cranfield collection (<doc> with <docno>, <title>, <text>)"
_QUERIES = "cran.qry.xml of the Cranfield collection (<top> with <num> and <title>)"
_QRELS = "cranqrel.trec.txt of the Cranfield collection (query number, 0, document number, relevance)"
# The files have no root and may hold bare `<` and `&`, so they are no XML; nothing but these five is ever expanded.
_ENTITY = re.compile("&(lt|gt|quot|apos|amp);")
_MEANING = {"lt": "<", "gt": ">", "quot": '"', "apos": "'", "amp": "&"}


def read_cranfield(path: Path, name: str, split: SplitSentences = split_sentences) -> StudyTask:
    """Reads `cran.all.1400.xml`, `cran.qry.xml` and `cranqrel.trec.txt`, each also as .gz; kind "documents".

    The text of a document begins with its title in this collection; where it does not, the title is put before it. A
    document is relevant if its relevance is above 0. Documents without text are left out and counted.

    Args:
        split: not used: documents are labelled, not sentences.
    """
    left_out: Counter[str] = Counter()
    documents = tuple(_documents(plain_or_gz(path / "cran.all.1400.xml"), left_out))
    known = {document.id for document in documents}
    texts = list(_queries(plain_or_gz(path / "cran.qry.xml")))
    judged = _judgements(plain_or_gz(path / "cranqrel.trec.txt"), len(texts))
    questions = []
    for number, text in enumerate(texts, start=1):
        relevant = tuple(document for document in judged[number] if document in known)
        if relevant:
            questions.append(StudyQuestion(str(number), text, relevant))
        else:
            left_out[NO_RELEVANT] += 1
    return StudyTask(name, "documents", documents, tuple(questions), left_out=dict(left_out))


def _documents(path: Path, left_out: Counter[str]) -> Iterator[Document]:
    for where, body in _elements(path, "doc", _DOCUMENTS):
        number = _inner(body, "docno", where).strip()
        title = one_line(_inner(body, "title", where))
        text = _inner(body, "text", where).strip()
        if not text:
            left_out[EMPTY_DOCUMENT] += 1
            continue
        if title and not one_line(text).startswith(title):
            text = f"{title}\n{text}"
        yield Document(number, text, {"title": title})


def _queries(path: Path) -> Iterator[str]:
    for where, body in _elements(path, "top", _QUERIES):
        _inner(body, "num", where)
        yield one_line(_inner(body, "title", where))


def _judgements(path: Path, num_queries: int) -> dict[int, list[str]]:
    """Number of the question in its file, from 1 -> relevant documents, each once."""
    judged: dict[int, dict[str, None]] = {}
    for number, line in numbered_lines(read_text_file(path, _QRELS)):
        fields = line.split()
        if len(fields) != 4 or not re.fullmatch(r"\d{1,9}", fields[0]) or not re.fullmatch(r"-?\d{1,9}", fields[3]):
            raise InputError(f"{path}:{number}: {short(line)}: expected {_QRELS}")
        documents = judged.setdefault(int(fields[0]), {})
        if int(fields[3]) > 0:
            documents[fields[2]] = None
    if judged.keys() != set(range(1, num_queries + 1)):
        raise InputError(
            f"{path}: judges {len(judged)} questions, numbered up to {max(judged, default=0)}, but there are "
            f"{num_queries}: Cranfield's judgements number the questions from 1 in the order of their file; use files "
            "that fit together"
        )
    return {query: list(documents) for query, documents in judged.items()}


def _elements(path: Path, tag: str, what: str) -> Iterator[tuple[str, str]]:
    """(`file:line`, inside) of every element of that name; they do not nest."""
    text = read_text_file(path, what)
    line, done, count = 1, 0, 0
    for match in re.finditer(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL):
        line += text.count("\n", done, match.start())
        done = match.start()
        if f"<{tag}>" in match[1]:
            raise InputError(f"{path}:{line}: <{tag}> without its end; expected {what}")
        count += 1
        yield f"{path}:{line}", match[1]
    if count != text.count(f"<{tag}>") or not count:
        raise InputError(f"{path}: {text.count(f'<{tag}>')} <{tag}>, {count} of them whole; expected {what}")


def _inner(body: str, tag: str, where: str) -> str:
    match = re.search(rf"<{tag}>(.*?)</{tag}>", body, re.DOTALL)
    if match is None:
        raise InputError(f"{where}: no <{tag}>; is the file whole?")
    return _ENTITY.sub(lambda entity: _MEANING[entity[1]], match[1])
