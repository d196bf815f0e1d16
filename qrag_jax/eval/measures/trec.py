"""Judgements and rankings as TREC files, which trec_eval, ir_measures, ranx and others read.

    qrels: query 0 document judgement        run: query Q0 document rank score tag

Columns are parted by blank space, so ids cannot hold any: they are written percent-encoded (as in URLs: blank space, %,
control characters, everything beyond ASCII, a # in front) and decoded when read. Other ids are written as they are.
Lines that begin with # are comments.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

from qrag_jax.data.files.textfile import numbered_lines, read_text_file
from qrag_jax.eval.measures.ranking import rank_documents
from qrag_jax.files.whole_file import write_whole
from qrag_jax.types import InputError

_Value = TypeVar("_Value", int, float)
_QRELS = "lines of 4 columns: query, 0, document, judgement (a whole number)"
_RUN = "lines of 6 columns: query, Q0, document, rank, score, tag"
_AS_IT_IS = "!\"#$&'()*+,/:;<=>?@[\\]^`{|}"  # printable ASCII without blank and %; quote adds letters, digits, _.-~
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,300}")  # Python itself ends at some thousands
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Query id -> document id -> judgement, in the order of the file (.gz too); the second column is ignored."""
    found: dict[str, dict[str, int]] = {}
    for where, (query, _, document, value) in _columns(path, _QRELS, 4):
        if not _WHOLE_NUMBER.fullmatch(value):
            raise InputError(f"{where}: judgement {value!r:.80} is no whole number; expected {_QRELS}")
        _add(found, query, document, int(value), where)
    return found


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Query id -> document id -> score, in the order of the file (.gz too); rank and tag are ignored (trec_eval)."""
    found: dict[str, dict[str, float]] = {}
    for where, (query, _, document, _, value, _) in _columns(path, _RUN, 6):
        score = float(value) if _NUMBER.fullmatch(value) else math.nan
        if not math.isfinite(score):
            raise InputError(f"{where}: score {value!r} is no finite number; expected {_RUN}")
        _add(found, query, document, score, where)
    return found


def write_qrels(path: Path, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Writes judgements in their order; `read_qrels` gives them back."""
    for query, judged in qrels.items():
        if not judged:
            raise InputError(f"{path}: query {query!r} has no judgement: the file would lose it; leave it out")
    rows = [(query, document, value) for query, judged in qrels.items() for document, value in judged.items()]
    _write(path, [f"{_encoded(query)} 0 {_encoded(document)} {value}" for query, document, value in rows])


def write_run(path: Path, run: Mapping[str, Mapping[str, float]], tag: str) -> None:
    """Writes rankings, best first; `read_run` gives the same scores back.

    Ranks count from 1, with ties broken as `ranking.rank_documents` does; tools that break them again by id see encoded
    ids, whose order may be another one. A query that found nothing has no line.

    Args:
        run: query id -> document id -> score.
        tag: name of the run, without blank space.
    """
    if tag.split() != [tag]:
        raise InputError(f"{path}: tag {tag!r}: one word without blank space")
    lines = []
    for query, scores in run.items():
        for document, score in scores.items():
            if not math.isfinite(score):
                raise InputError(f"{path}: query {query!r}, document {document!r}: score {score} is not finite")
        for rank, document in enumerate(rank_documents(scores), start=1):
            lines.append(f"{_encoded(query)} Q0 {_encoded(document)} {rank} {float(scores[document])!r} {tag}")
    _write(path, lines)


def _columns(path: Path, what: str, number: int) -> Iterator[tuple[str, list[str]]]:
    """(`file:line`, columns with ids decoded) of every line."""
    empty = True
    for line_number, line in numbered_lines(read_text_file(path, what)):
        if line.startswith("#"):
            continue
        where, columns = f"{path}:{line_number}", line.split()
        if len(columns) != number:
            raise InputError(f"{where}: {len(columns)} columns; expected {what}")
        columns[0], columns[2] = _decoded(columns[0], where), _decoded(columns[2], where)
        empty = False
        yield where, columns
    if empty:
        raise InputError(f"{path}: empty file; expected {what}")


def _add(found: dict[str, dict[str, _Value]], query: str, document: str, value: _Value, where: str) -> None:
    documents = found.setdefault(query, {})
    if document in documents:
        raise InputError(f"{where}: query {query!r} has document {document!r} twice; keep one of the lines")
    documents[document] = value


def _write(path: Path, lines: Sequence[str]) -> None:
    if not lines:
        raise InputError(f"{path}: nothing to write")
    write_whole(path, "".join(f"{line}\n" for line in lines))


def _encoded(name: str) -> str:
    if not name:
        raise InputError("an id is empty: the file would lose a column; name it")
    encoded = quote(name, safe=_AS_IT_IS, errors="surrogatepass")  # surrogates: names of files that are not UTF-8
    return f"%23{encoded[1:]}" if encoded.startswith("#") else encoded


def _decoded(name: str, where: str) -> str:
    try:
        return unquote(name, errors="surrogatepass")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: id {name!r} is no percent-encoded UTF-8; write a % of its own as %25") from error
