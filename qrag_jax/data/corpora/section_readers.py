"""Documents as headings and passages in order: Markdown, WikiText-2, CL-SciSumm."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qrag_jax.chunking.text.blocks import Block, block_units, find_blocks, is_mark, opens_with_heading
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import join_pieces
from qrag_jax.chunking.tree.boundaries import section_levels
from qrag_jax.data.corpora.scisumm import Paper, read_papers
from qrag_jax.data.dataset_rows import entries, full_text, int_field, one_line
from qrag_jax.documents.read import read_files
from qrag_jax.files.text_files import numbered_lines, plain_or_gz, read_json_lines, read_text_file, usual_file
from qrag_jax.types import Document, InputError, Span

_TOKEN_HEADING = re.compile(r"\s*(?P<marks>=(?: =)*) (?P<words>[^=\s](?:.*[^=\s])?) (?P=marks)\s*")
_ARTICLE_NAMES = ("articles.jsonl",)
_ARTICLES = 'lines {"title", "items": [{"text"} or {"heading", "level"}, ...]}, or the tokens of WikiText-2'
_PAPER_NAMES = ("cited_papers.jsonl", "other_papers.jsonl")
_MAX_MARKS = 6  # of a heading in Markdown
_PAPERS = "papers of CL-SciSumm"


@dataclass(frozen=True)
class Heading:
    """A heading.

    Attributes:
        level: from 1; 0 is the title of the document.
        title: its words on one line, not empty.
        written: with its Markdown marks.
    """

    level: int
    title: str
    written: str


@dataclass(frozen=True)
class Passage:
    """A paragraph, or another block of text.

    Attributes:
        text: stripped, not empty.
        units: its sentences or lines, as offsets in `text`.
        is_mark: a rule or an anchor: it shows where a section begins, and says nothing.
    """

    text: str
    units: tuple[Span, ...]
    is_mark: bool = False


@dataclass(frozen=True)
class Sectioned:
    """A document's headings and passages in order."""

    id: str
    parts: tuple[Heading | Passage, ...]


def read_markdown(path: str) -> Iterator[Sectioned]:
    """A Markdown file, or the files of a folder (`documents/read.py:read_files`)."""
    for document in read_files(path):
        yield markdown_parts(document)


def markdown_parts(document: Document) -> Sectioned:
    """The blocks of a Markdown text."""
    text = document.text
    parts: list[Heading | Passage] = []
    blocks = find_blocks(text)
    for block in blocks:
        written = text[block.start : block.end]
        if title := _title(text, block):
            parts.append(Heading(block.level, title, written))
        else:
            units = block_units(text, block, split_sentences)
            inside = tuple((start - block.start, end - block.start) for start, end in units)
            parts.append(Passage(written, inside, is_mark(text, block)))
    return Sectioned(document.id, _leveled(parts, opens=opens_with_heading(text, blocks)))


def _leveled(parts: Sequence[Heading | Passage], *, opens: bool) -> tuple[Heading | Passage, ...]:
    """The parts with the levels of `chunking/tree/boundaries.py:section_levels` instead of the written ones."""
    heads = [part for part in parts if isinstance(part, Heading)]
    levels = iter(section_levels([head.level for head in heads], [head.title for head in heads], opens=opens))
    return tuple(replace(part, level=next(levels)) if isinstance(part, Heading) else part for part in parts)


def _title(text: str, block: Block) -> str:
    return "" if block.title is None else one_line(text[slice(*block.title)])


def read_wikitext2(path: str) -> Iterator[Sectioned]:
    """WikiText-2 articles: as JSON lines, or the tokens as they were published, with headings ` = = Words = = `.

    The sentences of a paragraph are those of `split_sentences`; words stay as they are, `<unk>` too.

    Args:
        path: file, or a folder with `articles.jsonl`, plain or as .gz.
    """
    file = usual_file(Path(path), _ARTICLE_NAMES, _ARTICLES)
    if file.name.endswith((".jsonl", ".jsonl.gz")):
        yield from (_article(row, where) for where, row in read_json_lines(file, _ARTICLES))
    else:
        yield from _articles_of_tokens(file)


def _article(row: Mapping[str, object], where: str) -> Sectioned:
    title = one_line(full_text(row.get("title"), "title", where))
    parts: list[Heading | Passage] = [_marked(1, title)]
    for index, item in enumerate(entries(row, "items", (), where)):
        place = f"{where}: items[{index}]"
        if "heading" in item:
            level = int_field(item.get("level"), "level", place)
            if level < 1:
                raise InputError(f"{place}: level {level}: levels count from 1, the title of the article")
            parts.append(_marked(level, one_line(full_text(item["heading"], "heading", place))))
        else:
            parts.append(_paragraph(full_text(item.get("text"), "text", place).strip()))
    return Sectioned(title, _leveled(parts, opens=True))


def _articles_of_tokens(file: Path) -> Iterator[Sectioned]:
    parts: list[Heading | Passage] = []
    for number, line in numbered_lines(read_text_file(file, _ARTICLES)):
        found = _TOKEN_HEADING.fullmatch(line)
        heading = _marked(len(found["marks"].split()), found["words"]) if found else None
        if heading is not None and heading.level == 1:
            yield from _sectioned(parts)
            parts = []
        elif not parts:
            raise InputError(f"{file}:{number}: text before a line ` = Title = `; expected {_ARTICLES}")
        parts.append(_paragraph(line.strip()) if heading is None else heading)
    yield from _sectioned(parts)


def _sectioned(parts: Sequence[Heading | Passage]) -> Iterator[Sectioned]:
    if parts and isinstance(parts[0], Heading):
        yield Sectioned(parts[0].title, _leveled(parts, opens=True))


def read_scisumm(path: str) -> Iterator[Sectioned]:
    """CL-SciSumm papers; units are the data's own sentences.

    The data has no paragraphs: all sentences of a section are one passage; a section without a title joins the one
    before.

    Args:
        path: a file of papers, or a folder with cited_papers and other_papers or one of them (.jsonl or .jsonl.gz).
    """
    there = [file for name in _PAPER_NAMES if (file := plain_or_gz(Path(path) / name)).is_file()]
    for file in there or [usual_file(Path(path), _PAPER_NAMES, _PAPERS)]:
        for paper in read_papers(file):
            yield _paper(paper)


def _paper(paper: Paper) -> Sectioned:
    parts: list[Heading | Passage] = [_marked(1, paper.title)] if paper.title else []
    waiting: list[str] = []
    for section in paper.sections:
        if section.title:
            parts += _passage(waiting)
            parts.append(_marked(2, section.title))
            waiting = []
        waiting += [sentence for _, sentence in section.sentences]
    return Sectioned(paper.id, _leveled([*parts, *_passage(waiting)], opens=bool(paper.title)))


def _passage(sentences: Sequence[str]) -> list[Heading | Passage]:
    return [Passage(*join_pieces(sentences))] if sentences else []


def _paragraph(text: str) -> Passage:
    return Passage(text, tuple(split_sentences(text)))


def _marked(level: int, title: str) -> Heading:
    return Heading(level, title, f"{'#' * min(level, _MAX_MARKS)} {title}")
