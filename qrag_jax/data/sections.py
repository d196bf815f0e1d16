"""Documents as headings and passages in order: Markdown, WikiText-2, CL-SciSumm."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from qrag_jax.chunking.text.blocks import Block, find_blocks
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.tree.points import section_levels
from qrag_jax.data.files.documents import read_files
from qrag_jax.types import Document, Span

_TAG = re.compile(r"<[^>]*>")
_WHOLE = ("list", "table", "fence", "code")  # cut at their own parts


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
    """A Markdown file, or the files of a folder (`data/files/documents.py:read_files`)."""
    for document in read_files(path):
        yield markdown_parts(document)


def markdown_parts(document: Document) -> Sectioned:
    """The blocks of a Markdown text; levels by `chunking/tree/points.py:section_levels`."""
    text = document.text
    blocks = find_blocks(text)
    heads = [block for block in blocks if _has_words(block)]
    titles = [" ".join(text[slice(*head.title)].split()) for head in heads if head.title]
    opens = bool(heads) and next(block for block in blocks if not _is_mark(text, block)) == heads[0]
    levels = section_levels([head.level for head in heads], titles, opens=opens)
    headings = {head.start: (level, title) for head, level, title in zip(heads, levels, titles, strict=True)}
    parts: list[Heading | Passage] = []
    for block in blocks:
        written = text[block.start : block.end]
        if block.start in headings:
            parts.append(Heading(*headings[block.start], written))
        else:
            parts.append(Passage(written, _units(written, block), _is_mark(text, block)))
    return Sectioned(document.id, tuple(parts))


def _is_mark(text: str, block: Block) -> bool:
    if block.kind == "html":
        return not _TAG.sub("", text[block.start : block.end]).strip()
    return block.kind == "rule" or (block.kind == "heading" and not _has_words(block))


def _has_words(block: Block) -> bool:
    return block.title is not None and block.title[0] < block.title[1]


def _units(written: str, block: Block) -> tuple[Span, ...]:
    if block.kind in _WHOLE:
        parts = block.parts or ((block.start, block.end),)
        return tuple((start - block.start, end - block.start) for start, end in parts)
    return tuple(split_sentences(written))


def read_wikitext2(path: str) -> Iterator[Sectioned]:
    """WikiText-2 articles."""
    raise NotImplementedError


def read_scisumm(path: str) -> Iterator[Sectioned]:
    """CL-SciSumm papers."""
    raise NotImplementedError
