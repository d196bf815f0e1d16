"""Measures of a ranking against graded judgements, by the conventions of trec_eval 9.

- A document is relevant when its judgement is above 0; unjudged ones and those judged 0 or below are not.
- Documents are ranked by score, best first; equal scores by document id, largest first (by code points, which is the
  order of UTF-8 bytes). Scores are compared as 32-bit floats: what differs beyond their 7 digits is equal.
- A query without a relevant document has 0 in every measure, and counts in a mean.

Judgements and rankings as TREC files, which trec_eval, ir_measures, ranx and others read.

    qrels: query 0 document judgement        run: query Q0 document rank score tag

Columns are parted by blank space, so ids cannot hold any: they are written percent-encoded (as in URLs: blank space, %,
control characters, everything beyond ASCII, a # in front) and decoded when read. Other ids are written as they are.
Lines that begin with # are comments.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

import numpy as np

from qrag_jax.files.text_files import numbered_lines, read_text_file
from qrag_jax.files.whole_file import write_whole
from qrag_jax.types import InputError


def rank_documents(scores: Mapping[str, float]) -> list[str]:
    """Document ids, best first; ties as the module says."""
    for document, score in scores.items():
        if score != score:
            raise InputError(f"document {document!r}: score NaN has no rank; mend what gave it")
    with np.errstate(over="ignore"):  # beyond the largest float32 all are equal
        rounded = np.array(list(scores.values()), np.float64).astype(np.float32).tolist()
    return [document for _, document in sorted(zip(rounded, scores, strict=True), reverse=True)]


def falling_scores(ranked: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Document id -> score of a ranking, so that every tool ranks the documents in this order.

    A document that comes again keeps its first place. Scores fall strictly, also as 32-bit floats: one that would tie
    or rise becomes the next smaller number.

    Args:
        ranked: document ids and scores, best first.
    """
    scores: dict[str, float] = {}
    last = np.float32(np.inf)
    for document, score in ranked:
        if document not in scores:
            last = min(np.float32(score), np.nextafter(last, np.float32(-np.inf)))
            scores[document] = float(last)
    return scores


def precision_at(ranking: Sequence[str], judged: Mapping[str, int], k: int) -> float:
    """P@k = relevant documents among the first k / k, also where fewer than k are ranked.

    Args:
        ranking: document ids, best first, each once.
        k: at least 1.
    """
    return sum(_hits(ranking, judged, _checked(k))) / k


def recall_at(ranking: Sequence[str], judged: Mapping[str, int], k: int) -> float:
    """R@k = relevant documents among the first k / relevant documents. Arguments and errors as of `precision_at`."""
    return _share(sum(_hits(ranking, judged, _checked(k))), _num_relevant(judged))


def reciprocal_rank(ranking: Sequence[str], judged: Mapping[str, int]) -> float:
    """RR = 1 / rank of the first relevant document, counted from 1; 0 where none is ranked."""
    hits = _hits(ranking, judged)
    return 1 / (1 + hits.index(True)) if any(hits) else 0.0


def average_precision(ranking: Sequence[str], judged: Mapping[str, int]) -> float:
    """AP = sum of P@rank over the ranks of relevant documents / relevant documents, ranked or not."""
    ranks = np.flatnonzero(_hits(ranking, judged)) + 1
    return _share(float(np.sum(np.arange(1, ranks.size + 1) / ranks)), _num_relevant(judged))


def ndcg(ranking: Sequence[str], judged: Mapping[str, int], k: int | None = None) -> float:
    """nDCG@k with the judgement itself as gain (not 2^judgement - 1), of the whole ranking where k is None.

    DCG = sum over ranks i = 1 .. k of gain_i / log2(i + 1);   nDCG = DCG / DCG of the best order of all relevant ones
    """
    hits = _hits(ranking, judged, None if k is None else _checked(k))
    gains = [judged[document] if hit else 0 for document, hit in zip(ranking, hits, strict=False)]
    best = sorted((value for value in judged.values() if value > 0), reverse=True)[:k]
    return _share(_dcg(gains), _dcg(best))


def score_run(
    run: Mapping[str, Mapping[str, float]], qrels: Mapping[str, Mapping[str, int]], ks: Sequence[int]
) -> dict[str, dict[str, float]]:
    """Every measure of every judged query, by trec_eval's names.

    Args:
        run: query id -> document id -> score, as `trec.read_run` gives it; queries without judgements are left out.
        qrels: query id -> document id -> judgement.
        ks: of `P_k`, `recall_k` and `ndcg_cut_k`.

    Returns:
        query id -> {"map", "recip_rank", "ndcg", "P_5", "recall_5", "ndcg_cut_5", ...}, in the order of `qrels`. A
        query that the run leaves out has 0 in all of them (trec_eval's flag -c): skipping it would reward silence.

    Raises:
        InputError: no query of the run is judged, a score is NaN, or a k is below 1.
    """
    if not any(query in qrels for query in run):
        raise InputError(f"run and qrels share no query: {list(run)[:3]} and {list(qrels)[:3]}; are the ids the same?")
    return {query: _score(rank_documents(run.get(query, {})), judged, ks) for query, judged in qrels.items()}


def _score(ranking: Sequence[str], judged: Mapping[str, int], ks: Sequence[int]) -> dict[str, float]:
    found = {
        "map": average_precision(ranking, judged),
        "recip_rank": reciprocal_rank(ranking, judged),
        "ndcg": ndcg(ranking, judged),
    }
    for k in ks:
        found[f"P_{k}"] = precision_at(ranking, judged, k)
        found[f"recall_{k}"] = recall_at(ranking, judged, k)
        found[f"ndcg_cut_{k}"] = ndcg(ranking, judged, k)
    return found


def _hits(ranking: Sequence[str], judged: Mapping[str, int], k: int | None = None) -> list[bool]:
    """Which of the first k are relevant."""
    if len(set(ranking)) != len(ranking):
        twice = next(document for i, document in enumerate(ranking) if document in ranking[:i])
        raise InputError(f"document {twice!r} is ranked twice; rank each once")
    return [judged.get(document, 0) > 0 for document in ranking[:k]]


def _num_relevant(judged: Mapping[str, int]) -> int:
    return sum(value > 0 for value in judged.values())


def _dcg(gains: Sequence[int]) -> float:
    """Rounded once, so that zeros at the end of a ranking do not change the last digit."""
    return math.fsum(np.asarray(gains, np.float64) / np.log2(np.arange(2, len(gains) + 2)))


def _share(part: int | float, whole: int | float) -> float:
    return part / whole if whole else 0.0


def _checked(k: int) -> int:
    if k < 1:
        raise InputError(f"k {k}: give at least 1")
    return k


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
