"""The sections under Markdown headings, each as one group with its depth.

The rules, where Markdown leaves a choice:

- Only headings at the top level of the text count, not those in lists, quotations, code or HTML.
- A section's level is one more than that of the section around it, whatever its number of marks: `#`, `###`, `##` have
  the levels 1, 2, 2, and a text that begins with `##` begins at level 1. No level is skipped.
- Text before the first heading is a section of level 1 without a title.
- A section ends where the next one begins; text of its subsections belongs only to those.
- A heading with no text under it says too little for a chunk, so it joins the section after it, or at the end the one
  before. So a title, its subtitle and the first paragraph are one group, with the level of the last heading.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from qrag_jax.chunking.strategies.kind import ChunkerKind
from qrag_jax.chunking.text.blocks import Block, find_blocks, join_headings
from qrag_jax.chunking.text.chunks import Group, SentenceText, Strategy
from qrag_jax.chunking.tree.build import tree_from_sections
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import Span, UsageError


@dataclass(frozen=True)
class HeadingsConfig:
    """Which headings begin a section.

    Attributes:
        max_level: headings with more marks than this (1 to 6) are part of the text around them.
    """

    max_level: int = 6


@dataclass(frozen=True)
class Section:
    """A heading and the text under it, up to the next heading.

    Attributes:
        start, end: half-open character offsets, without outer white space.
        level: depth, from 1.
        title_span: the words of the heading, without marks, empty if it has none; None before the first heading.
    """

    start: int
    end: int
    level: int
    title_span: Span | None


@dataclass(frozen=True)
class _Part:
    """A section with its blocks."""

    section: Section
    blocks: tuple[Block, ...]

    @property
    def is_bare(self) -> bool:
        return all(block.kind in ("heading", "rule") for block in self.blocks)


def find_sections(text: str, max_level: int = 6) -> list[Section]:
    """The sections of a Markdown text, in order; every character that is not white space is in exactly one.

    Args:
        max_level: as in `HeadingsConfig`.
    """
    return [part.section for part in _find_parts(text, max_level)]


def make_headings(config: HeadingsConfig) -> Strategy:
    """One group for each section: its own text, with the level of the section; see the module for the rules.

    The spans are Markdown blocks, so a fence, a table or a paragraph stays whole where it fits; a heading and a
    paragraph after it are one span. What is too long itself is best cut by `blocks.make_block_splitter`.
    """
    _check(config)

    def strategy(text: SentenceText) -> list[Group]:
        groups = []
        for parts in _join_bare(_find_parts(text.text, config.max_level)):
            blocks = [block for part in parts for block in part.blocks]
            groups.append(Group(tuple(join_headings(blocks)), _main(parts).section.level))
        return groups

    return strategy


def heading_tree(
    text: SentenceText, document_id: str, config: HeadingsConfig | None = None, *, paragraphs: bool = False
) -> ChunkTree:
    """The sections of a Markdown text as a tree. Its leaves are the groups of `make_headings`, or parts of them.

    Args:
        text: of the document; its sentences are not used.
        document_id: its document.
        config: None is the default.
        paragraphs: cut the groups further, into one paragraph, list, table or fence each.

    Raises:
        UsageError: `max_level` is not 1 to 6.
        InputError: the text is blank.
    """
    config = config or HeadingsConfig()
    _check(config)
    points = []
    for parts in _join_bare(_find_parts(text.text, config.max_level)):
        main = _main(parts)
        levels = [main.section.level]
        for part in reversed(parts[: parts.index(main)]):
            if part.section.level < levels[-1]:  # a title without text of its own, around the following sections
                levels.append(part.section.level)
        points += [(parts[0].section.start, level) for level in levels]
        if paragraphs:
            spans = join_headings([block for part in parts for block in part.blocks])
            points += [(start, main.section.level + 1) for start, _ in spans]
    return tree_from_sections(text, points, document_id)


def _check(config: HeadingsConfig) -> None:
    if not 1 <= config.max_level <= 6:
        raise UsageError(f"headings.max_level {config.max_level}: Markdown has levels 1 to 6; give one of these")


def _find_parts(text: str, max_level: int) -> list[_Part]:
    """Sections with their blocks, in order."""
    runs: list[list[Block]] = []
    for block in find_blocks(text):
        if not runs or 1 <= block.level <= max_level:
            runs.append([])
        runs[-1].append(block)
    parts: list[_Part] = []
    marks: list[int] = []  # written levels of the headings around the section, its own last
    for blocks in runs:
        head = blocks[0]
        is_section = 1 <= head.level <= max_level
        if is_section:
            while marks and marks[-1] >= head.level:
                marks.pop()
            marks.append(head.level)
        section = Section(head.start, blocks[-1].end, max(1, len(marks)), head.title if is_section else None)
        parts.append(_Part(section, tuple(blocks)))
    return parts


def _join_bare(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Joins headings that have no text with the next part that has some; trailing ones with the last such part."""
    joined: list[list[_Part]] = []
    is_open = False
    for part in parts:
        if is_open:
            joined[-1].append(part)
        else:
            joined.append([part])
        is_open = part.is_bare
    if is_open and len(joined) > 1:
        joined[-2:] = [joined[-2] + joined[-1]]
    return joined


def _main(parts: Sequence[_Part]) -> _Part:
    """The part that has text, or the first of only bare headings."""
    return next((part for part in parts if not part.is_bare), parts[0])


KIND = ChunkerKind(HeadingsConfig, lambda config, _: make_headings(config))
