"""Markdown blocks as exact character spans: the paragraphs, lists, tables, fences and headings of a text.

`markdown-it-py` parses the text. Its line numbers are turned into offsets of the original text, so line ends and
replaced characters do not matter (it reads a carriage return as a line feed and NUL as U+FFFD). Front matter is removed
first, because Markdown would read it as a rule and a heading. The parser leaves link definitions out; they are found as
gaps.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.token import Token

from qrag_jax.chunking.text.chunks import SentenceText, SplitSentences
from qrag_jax.chunking.text.html_tags import find_tags, without
from qrag_jax.chunking.text.spans import cut_text
from qrag_jax.types import Span

BlockKind = Literal[
    "heading", "paragraph", "list", "quote", "table", "fence", "code", "html", "rule", "definitions", "front_matter"
]

_KINDS: dict[str, BlockKind] = {
    "heading_open": "heading",
    "paragraph_open": "paragraph",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "blockquote_open": "quote",
    "table_open": "table",
    "fence": "fence",
    "code_block": "code",
    "html_block": "html",
    "hr": "rule",
}
_NO_SENTENCES: tuple[BlockKind, ...] = ("heading", "list", "table", "fence", "code", "rule")
_LINE_END = re.compile(r"\r\n?|\n")
BYTE_ORDER_MARK = "\ufeff"
_FENCES = {"---": ("---", "..."), "+++": ("+++",)}  # YAML and TOML front matter: first line -> last line
_FIRST_KEY = re.compile(r"[^\s:=\-][^:=]*(?::(?:\s|$)|=)|\[")
# Nesting of lists and quotations: deeper lines are read as text. The parser's own limit drops the rest of the text.
_MAX_NESTING = 40


@dataclass(frozen=True)
class Block:
    """A part of a Markdown text at its top level, not inside a list or a quotation.

    Attributes:
        kind: its kind. `definitions` are link reference definitions.
        start, end: half-open character offsets, without outer white space.
        level: 1 to 6 for a heading as written, 0 for everything else.
        title: for a heading: the span of its words, without marks; empty if it has none.
        parts: where it may be cut: lines of tables and code, items of lists, paragraphs of quotations. They cover it;
            empty if there are not two.
    """

    kind: BlockKind
    start: int
    end: int
    level: int = 0
    title: Span | None = None
    parts: tuple[Span, ...] = ()


def find_blocks(text: str) -> list[Block]:
    """The blocks of a Markdown text, in order; every character that is not white space is in exactly one of them."""
    starts = line_starts(text)
    front = end_of_front_matter(text, starts)
    blocks = _block(text, starts, "front_matter", 0, front, [])
    done = front
    for tokens in _top_level(parse_blocks(text, starts[front])):
        first, last = (front + line for line in tokens[0].map or (0, 0))
        blocks += _block(text, starts, "definitions", done, first, [])
        blocks += _block(text, starts, _KINDS.get(tokens[0].type, "paragraph"), first, last, tokens, front)
        done = last
    return blocks + _block(text, starts, "definitions", done, len(starts) - 1, [])


def is_mark(text: str, block: Block) -> bool:
    """True if a block contains no text: a rule, an anchor, a comment, a heading without words."""
    if block.kind == "heading":
        return block.title is None or not text[slice(*block.title)].strip()
    if block.kind in ("html", "paragraph"):
        written = text[block.start : block.end]
        return not without(written, find_tags(written)).strip()
    return block.kind == "rule"


def opens_with_heading(text: str, blocks: Sequence[Block]) -> bool:
    """True if a text begins with a heading, apart from front matter."""
    said = (block for block in blocks if block.kind != "front_matter" and not is_mark(text, block))
    first = next(said, None)
    return first is not None and first.kind == "heading"


def join_headings(blocks: Sequence[Block]) -> list[Span]:
    """The spans of blocks, with headings joined to the next paragraph, because a heading says little alone.

    A heading before a table or a fence stays apart, so that it does not cause them to be cut.
    """
    spans: list[Span] = []
    num_headings = 0
    for block in blocks:
        if num_headings and block.kind == "paragraph":
            spans[-num_headings:] = [(spans[-num_headings][0], block.end)]
        else:
            spans.append((block.start, block.end))
        num_headings = num_headings + 1 if block.kind == "heading" else 0
    return spans


def make_block_splitter(split: SplitSentences) -> SplitSentences:
    """A splitter for Markdown that is too long: into blocks, a block into its `parts`, otherwise into sentences.

    Lists are cut between items, tables and code between lines, and a heading stays with the first piece after it. Every
    piece is at most as large as the input, and can be cut again down to single sentences and lines.
    """

    def split_blocks(text: str) -> list[Span]:
        blocks = find_blocks(text)
        spans = join_headings(blocks)
        if len(spans) != 1:
            return spans
        *headings, body = blocks
        parts = list(body.parts)
        if not parts:
            parts = [(body.start + start, body.start + end) for start, end in split(text[body.start : body.end])]
        if headings and len(parts) > 1:
            return [(headings[0].start, parts[0][1]), *parts[1:]]
        return [*((heading.start, heading.end) for heading in headings), *parts]

    return split_blocks


def make_unit_splitter(split: SplitSentences) -> SplitSentences:
    """A splitter into units that can begin a part of a document: headings, sentences, items, rows and lines.

    A heading is always a separate unit, even without a blank line after it.
    """

    def split_units(text: str) -> list[Span]:
        return [unit for block in find_blocks(text) for unit in block_units(text, block, split)]

    return split_units


def join_heading_units(text: SentenceText) -> SentenceText:
    """The text with every heading joined to the unit after it, because a leaf should not end with a heading."""
    heads = {block.start for block in find_blocks(text.text) if block.kind == "heading"}
    units: list[Span] = []
    is_open = False
    for start, end in text.sentences:
        if is_open:
            units[-1] = units[-1][0], end
        else:
            units.append((start, end))
        is_open = start in heads
    return SentenceText(text.text, tuple(units))


def block_units(text: str, block: Block, split: SplitSentences) -> list[Span]:
    """The units of one block: a whole heading; the `parts` of a block without sentences; otherwise its sentences."""
    if block.kind in _NO_SENTENCES:
        return list(block.parts) or [(block.start, block.end)]
    return [(block.start + start, block.start + end) for start, end in split(text[block.start : block.end])]


def line_starts(text: str) -> list[int]:
    """The starts of the lines of a text, then its end; lines as Markdown and editors count them."""
    return [0, *(match.end() for match in _LINE_END.finditer(text)), len(text)]


@cache
def block_parser(*without: str) -> MarkdownIt:
    """CommonMark with tables, without inline parsing, which is not needed here and costs most.

    Args:
        without: names of rules of `markdown-it-py` to leave out; their text becomes paragraphs.
    """
    parser = MarkdownIt("commonmark", {"maxNesting": 10 * _MAX_NESTING}).enable("table").disable(list(without))
    parser.core.ruler.enableOnly(["normalize", "block"])
    parser.block.ruler.before("table", "too_deep", _read_line_too_deep)
    return parser


def _read_line_too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A block rule: below our limit of nesting, a line is a paragraph."""
    if silent or state.level < _MAX_NESTING:
        return False
    state.line = start + 1
    parts: list[tuple[str, Literal[-1, 0, 1]]] = [("paragraph_open", 1), ("inline", 0), ("paragraph_close", -1)]
    for kind, nesting in parts:
        token = state.push(kind, "p", nesting)
        token.map = [start, start + 1]
        token.content = state.getLines(start, start + 1, state.blkIndent, False).strip()
    return True


def parse_blocks(text: str, start: int, *without: str) -> list[Token]:
    """The tokens of a text from a character on; their lines count from there. For `without`, see `block_parser`."""
    source = text[start:]
    if source.startswith(BYTE_ORDER_MARK):
        source = " " + source[1:]  # otherwise "# Title" after it would not be a heading
    return block_parser(*without).parse(source)


def _top_level(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """The tokens of each block, including those inside it."""
    block: list[Token] = []
    for token in tokens:
        if token.level == 0 and token.nesting >= 0 and block:
            yield block
            block = []
        block.append(token)
    if block:
        yield block


def _block(
    text: str, starts: Sequence[int], kind: BlockKind, first: int, last: int, tokens: Sequence[Token], front: int = 0
) -> list[Block]:
    """The block of the lines [first, last), or none if they are blank."""
    spans = cut_text(text, [starts[first], starts[last]])
    if not spans:
        return []
    ((start, end),) = spans
    if kind == "heading":
        underlined = tokens[0].markup[0] != "#"
        title = _underlined_title(text, start, starts[last - 1]) if underlined else _title(text, start, starts[last])
        return [Block(kind, start, end, level=int(tokens[0].tag[1:]), title=title)]
    if kind in ("paragraph", "rule"):
        return [Block(kind, start, end)]
    if kind in ("list", "quote"):
        lines = [front + line for line in _inner_lines(tokens)]
    else:
        lines = [line for line in range(first, last) if kind != "table" or line != first + 1]  # head and its underline
    parts = cut_text(text, [starts[line] for line in (first, *lines[1:], last)])
    return [Block(kind, start, end, parts=tuple(parts) if len(parts) > 1 else ())]


def _inner_lines(tokens: Sequence[Token]) -> list[int]:
    """First lines of the parts of a list or quotation, at the first depth with more than one part."""
    for depth in range(1, _MAX_NESTING):
        inside = [token for token in tokens if token.level == depth and token.nesting >= 0 and token.type != "inline"]
        lines = sorted({token.map[0] for token in inside if token.map})
        if len(lines) > 1 or not inside:
            return lines
    return []


def _title(text: str, start: int, end: int) -> Span:
    """The words of a heading `## words ##`; closing marks count only after a space."""
    line = text[start:end].rstrip("\r\n \t")
    words = line.lstrip(BYTE_ORDER_MARK + " \t").lstrip("#")
    open_end = words.rstrip("#")
    words = open_end if open_end.endswith((" ", "\t")) else words
    first = start + len(line) - len(line.lstrip(BYTE_ORDER_MARK + " \t").lstrip("#"))
    return _words(text, first, first + len(words))


def _underlined_title(text: str, start: int, end: int) -> Span:
    return _words(text, start + text.startswith(BYTE_ORDER_MARK, start), end)


def _words(text: str, start: int, end: int) -> Span:
    (span,) = cut_text(text, [start, end]) or [(start, start)]
    return span


def end_of_front_matter(text: str, starts: Sequence[int]) -> int:
    """Number of lines of YAML or TOML at the beginning, 0 if there is none.

    Two rules with text between them look the same, so the first line inside, apart from comments, must begin with a
    key.
    """
    lines = (text[start:end].rstrip() for start, end in zip(starts, starts[1:], strict=False))
    ends = _FENCES.get(next(lines).removeprefix(BYTE_ORDER_MARK))
    if not ends:
        return 0
    has_key = False
    for number, line in enumerate(lines, start=2):
        if line in ends:
            return number if has_key else 0
        if not has_key and not line.startswith("#"):
            if not _FIRST_KEY.match(line):
                return 0
            has_key = True
    return 0
