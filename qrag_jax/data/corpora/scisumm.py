"""Reader of CL-SciSumm: cited papers, and citing sentences with the sentences of the paper that they refer to.

Conventions:

- A document is a paper as Markdown: `# ` its title, `## ` each section's title, a section's sentences joined by a
  blank, blank lines between. A section without a title continues the one before it. White space inside a sentence or
  title is one space. If a section's text begins with marks that Markdown would read as a heading, code or HTML, a
  backslash precedes it, outside the sentence.
- Evidence is counted in the sentences of the data set and in the paper's title, which citations call sentence 0.
- A citing sentence (citance) is a question. A citance that occurs several times for a paper (mostly from several
  annotators) is one question with the evidence of all, because copies would make intervals too narrow.
- A citance with a label that the paper does not have is left out, because its evidence is incomplete.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import join_pieces
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.data.dataset_rows import (
    any_text,
    entries,
    full_text,
    id_field,
    must_be,
    one_line,
    optional_text,
    text_field,
)
from qrag_jax.files.text_files import read_json_lines, usual_file
from qrag_jax.types import Document, InputError, Span

# Why a citance is left out.
NOT_VALID = "labels marked as not valid"
NO_LABEL = "no evidence sentence"
UNKNOWN_PAPER = "cited paper not there"
UNKNOWN_SENTENCE = "evidence sentence not in the paper"
EMPTY_QUESTION = "empty question"

_TITLE_SID = "0"
_MARKS = re.compile(r"#{1,6}(\s|$)|```|~~~|<")  # what may swallow or fake a heading; lists and quotations cannot
_PAPER_NAMES = ("cited_papers.jsonl",)
_CITANCE_NAMES = ("citances.jsonl",)
_PAPERS = 'lines {"id", "title", "sections": [{"title", "sentences": [[sid, text], ...]}, ...]} of CL-SciSumm'
_CITANCES = 'lines {"ref", "citance", "ref_sids": [sid, ...][, "sids_valid"]} of CL-SciSumm'


@dataclass(frozen=True)
class Section:
    """A section as the data has it.

    Attributes:
        title: one line, number included; may be empty.
        sentences: (id, text on one line); may be none.
    """

    title: str
    sentences: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Paper:
    """A paper as the data has it; `where` is `file:line`, its title may be empty."""

    where: str
    id: str
    title: str
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class _Piece:
    """A part of a paper's Markdown.

    Attributes:
        gap: between it and the piece before.
        marks: Markdown in front of its text.
        text: one line, not empty.
        sid: id of the sentence in its paper, empty if it has none; None if it is no sentence.
    """

    gap: str
    marks: str
    text: str
    sid: str | None


@dataclass(frozen=True)
class _Paper:
    """A paper as Markdown, its sentences, and the places of those that have an id."""

    document: Document
    sentences: tuple[Span, ...]
    places: Mapping[str, Span]


def read_scisumm(path: Path, name: str, split: SplitSentences = split_sentences) -> StudyTask:
    """Reads papers and citances in the order of their files; `REF.N` is the id of citance N of the file, from 1.

    Args:
        path: a folder with cited_papers and citances, each as .jsonl.gz or .jsonl; or the file of papers; that of
            citances is in the same folder.
        split: not used, as the data has its own sentences; here because all readers take it.
    """
    del split
    file = usual_file(path, _PAPER_NAMES, _PAPERS)
    citances = usual_file(file.parent, _CITANCE_NAMES, _CITANCES)
    papers: dict[str, _Paper] = {}
    for paper in read_papers(file):
        if paper.id in papers:
            raise InputError(f"{paper.where}: id {paper.id!r} was used before: ids must be distinct")
        papers[paper.id] = _laid_out(paper)
    questions: dict[tuple[str, str], StudyQuestion] = {}
    left_out: Counter[str] = Counter()
    for number, (where, row) in enumerate(read_json_lines(citances, _CITANCES), start=1):
        posed = _question(row, where, number, papers)
        if isinstance(posed, str):
            left_out[posed] += 1
        else:
            key = posed.relevant[0], posed.text
            questions[key] = _joined(questions[key], posed) if key in questions else posed
    documents = tuple(paper.document for paper in papers.values())
    sentences = {paper.document.id: paper.sentences for paper in papers.values()}
    return StudyTask(name, "evidence", documents, tuple(questions.values()), sentences, dict(left_out))


def read_papers(file: Path) -> Iterator[Paper]:
    """The papers of a file, sections as they are there: title and sentences may be missing."""
    for where, row in read_json_lines(file, _PAPERS):
        paper_id = id_field(row.get("id"), "id", where)
        title = one_line(optional_text(row.get("title"), "title", where))
        sections = enumerate(entries(row, "sections", (), where))
        yield Paper(where, paper_id, title, tuple(_section(one, f"{where}: sections[{i}]") for i, one in sections))


def _section(section: Mapping[str, object], where: str) -> Section:
    sentences = section.get("sentences")
    if not isinstance(sentences, list):
        raise must_be(where, "sentences", "a list", sentences)
    found = []
    for index, entry in enumerate(sentences):
        if not isinstance(entry, list) or len(entry) < 2:
            raise must_be(where, f"sentences[{index}]", "[sid, text]", entry)
        sid = text_field(entry[0], f"sentences[{index}] sid", where)
        found.append((sid, one_line(full_text(entry[1], f"sentences[{index}] text", where))))
    return Section(one_line(optional_text(section.get("title"), "title", where)), tuple(found))


def _laid_out(paper: Paper) -> _Paper:
    """A paper as Markdown."""
    pieces = [_Piece("", "# ", paper.title, _TITLE_SID)] if paper.title else []
    for section in paper.sections:
        pieces += _section_pieces(section)
    if not pieces:
        raise InputError(f"{paper.where}: the paper has no title and no sentence: leave it out")
    text, spans = join_pieces([piece.marks + piece.text for piece in pieces], [piece.gap for piece in pieces[1:]])
    sentences: list[Span] = []
    places: dict[str, Span] = {}
    for piece, (start, end) in zip(pieces, spans, strict=True):
        if piece.sid is None:
            continue
        if piece.sid in places:
            raise InputError(f"{paper.where}: sentence id {piece.sid!r} occurs twice: ids must be distinct in a paper")
        sentences.append((start + len(piece.marks), end))
        if piece.sid:
            places[piece.sid] = sentences[-1]
    return _Paper(Document(paper.id, text, {"title": paper.title}), tuple(sentences), places)


def _section_pieces(section: Section) -> list[_Piece]:
    """The heading, if it has words, and the sentences."""
    pieces = [_Piece("\n\n", "## ", section.title, None)] if section.title else []
    for index, (sid, sentence) in enumerate(section.sentences):
        marks = "\\" if not index and _MARKS.match(sentence) else ""
        pieces.append(_Piece(" " if index else "\n\n", marks, sentence, sid))
    return pieces


def _question(row: Mapping[str, object], where: str, number: int, papers: Mapping[str, _Paper]) -> StudyQuestion | str:
    """The question, or the reason why the citance is left out."""
    ref = id_field(row.get("ref"), "ref", where)
    question = any_text(row.get("citance"), "citance", where)
    sids, valid = row.get("ref_sids"), row.get("sids_valid", True)
    if not isinstance(sids, list) or not all(isinstance(sid, str) for sid in sids):
        raise must_be(where, "ref_sids", "a list of texts", sids)
    if not isinstance(valid, bool):
        raise must_be(where, "sids_valid", "true or false", valid)
    if not valid:
        return NOT_VALID
    if not question.strip():
        return EMPTY_QUESTION
    if not sids:
        return NO_LABEL
    if ref not in papers:
        return UNKNOWN_PAPER
    places = papers[ref].places
    if not set(sids) <= set(places):
        return UNKNOWN_SENTENCE
    evidence = tuple(Evidence(ref, *places[sid]) for sid in sorted(set(sids), key=places.__getitem__))
    return StudyQuestion(f"{ref}.{number}", question, (ref,), evidence)


def _joined(first: StudyQuestion, again: StudyQuestion) -> StudyQuestion:
    """A citance with the evidence of another copy of it too, in document order."""
    both = {*first.evidence, *again.evidence}
    return replace(first, evidence=tuple(sorted(both, key=lambda part: part.start)))
