"""Reader of FinanceBench: questions about company filings, with the passages of the pages that answer them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import cut_text, join_pieces, strip_span
from qrag_jax.data.corpora.find_text import find_letters
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.data.dataset_rows import full_text, id_field, int_field, list_field, must_be, one_line, optional_text
from qrag_jax.files.text_files import plain_or_gz, read_json_lines
from qrag_jax.types import Document, InputError, Span

# Why a question is left out.
NO_FILING = "filing not in the corpus"
NO_PAGE = "page of the evidence not in the filing, or blank"
NO_EVIDENCE = "no evidence"

_PAGES = 'lines {"doc_name", "pages": [text, ...]} of FinanceBench'
_QUESTIONS = (
    'lines {"financebench_id", "question", "answer", "evidence": [{"evidence_text", "evidence_page_num", "doc_name"}]} '
    "of FinanceBench"
)

_MAX_LINES = 10  # of a sentence


@dataclass(frozen=True)
class _Filing:
    name: str
    text: str
    pages: tuple[Span, ...]  # of every page, blank ones as empty spans


class _NotPosed(Exception):
    """A question that cannot be asked; its argument is the reason."""


def read_financebench(path: Path, name: str, split: SplitSentences = split_sentences) -> StudyTask:
    """Reads `pages.jsonl` and `questions.jsonl`, each also as .gz; kind "evidence".

    A document is a filing: its pages with a blank line between, their offsets in `metadata["pages"]`, by page from 0.
    The evidence is found on its page by letters and digits (`places.find_letters`), because passages and pages were
    made by different programs; where it is not found, the whole page is taken and counted in
    `metadata["whole_page_evidence"]`. Evidence is counted in sentences, and in rows of tables.

    Args:
        split: finds sentences outside of tables.
    """
    filings = {filing.name: filing for filing in _filings(plain_or_gz(path / "pages.jsonl"))}
    left_out: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    questions = []
    for where, row in read_json_lines(plain_or_gz(path / "questions.jsonl"), _QUESTIONS):
        try:
            questions.append(_question(row, filings, whole, where))
        except _NotPosed as reason:
            left_out[str(reason)] += 1
    if not questions:
        raise InputError(f"{path}: no question of questions.jsonl can be asked: {dict(left_out)}")
    documents = tuple(
        Document(key, filing.text, {"pages": filing.pages, "whole_page_evidence": whole[key]})
        for key, filing in filings.items()
    )
    units = {key: tuple(_units(filing, split)) for key, filing in filings.items()}
    return StudyTask(name, "evidence", documents, tuple(questions), units, dict(left_out))


def _filings(path: Path) -> Iterator[_Filing]:
    seen: set[str] = set()
    for where, row in read_json_lines(path, _PAGES):
        name = full_text(row.get("doc_name"), "doc_name", where)
        pages = [optional_text(page, "pages", where) for page in list_field(row.get("pages"), "pages", where)]
        if name in seen or not any(page.strip() for page in pages):
            raise InputError(f"{where}: filing {name} {'was there before' if name in seen else 'has no text'}")
        seen.add(name)
        text, spans = join_pieces([page for page in pages if page.strip()], "\n\n")
        following = iter(spans)
        end = 0
        places: list[Span] = []
        for page in pages:
            start, end = next(following) if page.strip() else (end, end)
            places.append((start, end))
        yield _Filing(name, text, tuple(places))


def _question(
    row: Mapping[str, object], filings: Mapping[str, _Filing], whole: Counter[str], where: str
) -> StudyQuestion:
    evidence: list[Evidence] = []
    for index, item in enumerate(list_field(row.get("evidence"), "evidence", where)):
        if not isinstance(item, dict):
            raise must_be(where, f"evidence[{index}]", "an object", item)
        name = full_text(item.get("doc_name", row.get("doc_name")), "doc_name", where)
        if name not in filings:
            raise _NotPosed(NO_FILING)
        place, found = _place(item, filings[name], f"{where}: evidence[{index}]")
        evidence.append(Evidence(name, *place))
        whole[name] += not found
    if not evidence:
        raise _NotPosed(NO_EVIDENCE)
    relevant = tuple(dict.fromkeys(piece.document_id for piece in evidence))
    text = one_line(full_text(row.get("question"), "question", where))
    answer = optional_text(row.get("answer"), "answer", where)
    name = id_field(row.get("financebench_id"), "financebench_id", where)
    return StudyQuestion(name, text, relevant, tuple(dict.fromkeys(evidence)), (answer,) if answer.strip() else ())


def _place(item: Mapping[str, object], filing: _Filing, where: str) -> tuple[Span, bool]:
    """The place of the passage and True; if it is not found, the whole page and False."""
    number = int_field(item.get("evidence_page_num"), "evidence_page_num", where)
    text = full_text(item.get("evidence_text"), "evidence_text", where)
    start, end = filing.pages[number] if 0 <= number < len(filing.pages) else (0, 0)
    if start == end:
        raise _NotPosed(NO_PAGE)
    found = find_letters(filing.text[start:end], text)
    return ((start + found[0][0], start + found[0][1]), True) if found else ((start, end), False)


def _units(filing: _Filing, split: SplitSentences) -> Iterator[Span]:
    """Sentences, and rows of tables; none goes over the end of a page."""
    for first, last in filing.pages:
        prose = first  # where the text begins that is in no unit yet
        line_start = first
        while line_start < last:
            line_end = filing.text.find("\n", line_start, last)
            line_end = last if line_end < 0 else line_end
            row = strip_span(filing.text, line_start, line_end)
            if row and _is_table_row(filing.text[slice(*row)]):
                yield from _sentences(filing.text, prose, line_start, split)
                yield row
                prose = line_end
            line_start = line_end + 1
        yield from _sentences(filing.text, prose, last, split)


def _sentences(text: str, start: int, end: int, split: SplitSentences) -> Iterator[Span]:
    """Sentences; one of very many lines is a list without full stops, and its lines are units."""
    for first, last in split(text[start:end]):
        first, last = start + first, start + last
        if text.count("\n", first, last) < _MAX_LINES:
            yield first, last
        else:
            breaks = [place for place in range(first, last) if text[place] == "\n"]
            yield from cut_text(text, [first, *breaks, last])


def _is_table_row(line: str) -> bool:
    """True if the line ends in two numbers, dashes or signs; prose that ends in a date has a comma between."""
    last = line.split()[-2:]
    return len(last) == 2 and not last[0].endswith(",") and not any(letter.isalpha() for letter in "".join(last))
