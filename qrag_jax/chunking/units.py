"""Units of a text: sentences, headings, list items, table rows and code fences, each as an exact character span.

A trained retriever reads these units. `chunking/text/blocks.py` defines the blocks of a text. Markdown and plain text
are treated alike here; where the two differ, plain text wins:

- `•` and `(1)` begin list items like `-` and `1)`; a number of four digits is a year, one alone on its line a title;
- a line of `=` is always a rule; a form feed at the start of a line ends a paragraph;
- a line that begins with `|` is a row, even if it is not part of a valid table;
- link definitions are paragraphs, and so is indented text unless the document is a Markdown file;
- HTML tags, comments, scripts and styles are not text; text between tags is read as Markdown.

Marks are outside the units: `#`, `-`, `1.`, `>`, fences, underlines, rules, tags. A `>` or a tag inside a unit stays in
its span but has no effect. A code fence is one unit, or as few as fit a window of tokens.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from qrag_jax.chunking.size.packing import pack_spans
from qrag_jax.chunking.text.blocks import BYTE_ORDER_MARK, block_parser, end_of_front_matter, line_starts
from qrag_jax.chunking.text.chunks import SplitSentences, make_chunk
from qrag_jax.chunking.text.html_tags import find_tags, masked, without
from qrag_jax.chunking.text.sentences import BLANK_LINE, split_sentences
from qrag_jax.chunking.text.spans import cut_text, strip_span
from qrag_jax.types import Chunk, CountTokens, Document, InputError, Span

_MARKDOWN_SUFFIXES = (".md", ".markdown", ".mdown", ".mkd", ".mdx")  # of documents in which an indented block is code
_MAX_CODE = 1_000  # characters; encoders read about this many, and cut off the rest
_ITEM_MARK = re.compile(r"[ \t>]*(?:[-+*]|\d+[.)])")
_LINE = r"(?<![^\r\n])"  # start of a line; ^ ignores carriage returns
# Plain-text notation -> its Markdown equivalent, character for character.
_REPLACED = (
    (re.compile(r"\0|[^\S \t\r\n]"), "\ufffd"),  # the parser replaces NUL like this, and strips other blank space
    (re.compile(rf"{_LINE}([ \t>]*)\u2022(?=[ \t])"), r"\1-"),
    (re.compile(rf"{_LINE}([ \t>]*)\((?=\d{{1,3}}\)[ \t])"), r"\1 "),
    (re.compile(rf"{_LINE}([ \t>]*(?:\d{{4,}}|\d+(?=[.)](?![^\r\n]))))[.)]"), r"\1,"),
    (re.compile(rf"{_LINE}[ \t]*=(?:[ \t]*=){{2,}}[ \t]*(?![^\r\n])"), lambda match: match[0].replace("=", "-")),
)


def unit_chunks(
    document: Document, count: CountTokens, split: SplitSentences = split_sentences, window: int | None = None
) -> list[Chunk]:
    """The units of a document as chunks of one span and level 1, in order; see the module.

    Args:
        document: its indented text is code if its id ends like the name of a Markdown file.
        count: text -> its tokens.
        split: paragraph -> its sentences.
        window: most tokens that a run reads of a chunk, [CLS] and [SEP] included; a longer code fence is cut between
            lines. None cuts at 1,000 characters.

    Raises:
        InputError: the document has no letter and no digit.
    """
    is_markdown = document.id.lower().endswith(_MARKDOWN_SUFFIXES)
    code = CodeSize() if window is None else CodeSize(window - 2, count)
    spans = find_units(document.text, indented_code=is_markdown, split=split, code=code)
    if not spans:
        raise InputError("has no sentence to search; leave this file out", file=document.id)
    return [make_chunk(document, [span], 1, count) for span in spans]


@dataclass(frozen=True)
class CodeSize:
    """The size limit of a unit of code: at most `most`, as counted by `count`."""

    most: int = _MAX_CODE
    count: CountTokens = len


def find_units(
    text: str,
    *,
    indented_code: bool = False,
    split: SplitSentences = split_sentences,
    code: CodeSize = CodeSize(),  # noqa: B008
) -> list[Span]:
    """The units of a text in order. Each has a letter or digit; all other text except marks is in one of them.

    Args:
        indented_code: a block that is indented by four spaces is code, as in Markdown, and not a paragraph.
        code: size limit of a unit of code; a larger one is cut between lines.
    """
    source = " " + text[1:] if text.startswith(BYTE_ORDER_MARK) else text
    for pattern, mark in _REPLACED:
        source = pattern.sub(mark, source)
    starts = line_starts(text)
    tags = find_tags(text, _code_spans(source, starts, indented_code)) if "<" in text else []
    read = without(text, tags)
    units = _Reader(text, masked(source, tags), read, starts, split, code).units(indented_code)
    if tags:
        units = filter(None, (strip_span(read, *span) for span in units))
    return [span for span in units if any(map(str.isalnum, read[slice(*span)]))]


def _code_spans(source: str, starts: Sequence[int], indented_code: bool) -> list[Span]:
    """The blocks of code of a text, in which tags are text."""
    front = end_of_front_matter(source, starts)
    tokens = _parser(indented_code).parse(source[starts[front] :])
    lines = [token.map for token in tokens if token.type in ("fence", "code_block") and token.map]
    return [(starts[front + first], starts[front + last]) for first, last in lines]


def _parser(indented_code: bool) -> MarkdownIt:
    return block_parser("html_block", "reference", *(() if indented_code else ("code",)))


@dataclass(frozen=True)
class _Reader:
    """A text, its versions for the parser and the sentence splitter, and the starts of its lines."""

    text: str
    source: str
    read: str
    starts: Sequence[int]
    split: SplitSentences
    code: CodeSize

    def units(self, indented_code: bool) -> Iterator[Span]:
        front = end_of_front_matter(self.text, self.starts)
        if front:
            yield from self._sentences(self.starts[1], self.starts[front - 1], [])
        tokens = _parser(indented_code).parse(self.source[self.starts[front] :])
        marks = Counter(front + token.map[0] for token in tokens if token.type == "list_item_open" and token.map)
        for token, inside in pairwise([*tokens, Token("", "", 0)]):
            first = front + (token.map or [0])[0]
            if token.type == "heading_open" and token.markup.startswith("#"):
                yield from self._words(first, inside.content)
            elif token.type in ("paragraph_open", "heading_open"):
                yield from self._paragraph(first, inside.content.split("\n"))
            elif token.type == "tr_open":
                yield from self._row(first, marks[first])
            elif token.type in ("fence", "code_block"):
                yield from self._code(first + (token.type == "fence"), token.content.split("\n"))

    def _words(self, line: int, words: str) -> list[Span]:
        start = self._place(line, words)
        return cut_text(self.text, [start, start + len(words)])

    def _row(self, line: int, num_marks: int) -> list[Span]:
        """A row of a table, after its quotation mark and `num_marks` marks of list items."""
        start, end = self.starts[line : line + 2]
        for _ in range(num_marks):
            start += len(_ITEM_MARK.match(self.source, start, end)[0])  # pyright: ignore[reportOptionalSubscript]
        marks = len(self.source[start:end]) - len(self.source[start:end].lstrip(" \t>"))
        return cut_text(self.text, [start + marks, end])

    def _paragraph(self, first: int, lines: Sequence[str]) -> Iterator[Span]:
        """Sentences across line breaks; a row or a form feed begins a new unit."""
        begins = [
            i == 0 or "|" in (line[:1], lines[i - 1][:1]) or self.text.startswith("\f", self.starts[first + i])
            for i, line in enumerate(map(str.lstrip, lines))
        ]
        borders = [i for i, begin in enumerate(begins) if begin] + [len(lines)]
        for begin, end in pairwise(borders):
            place = self._place(first + begin, lines[begin])
            marks = [(self.starts[first + i], self._place(first + i, lines[i])) for i in range(begin + 1, end)]
            yield from self._sentences(place, self.starts[first + end], marks)

    def _sentences(self, start: int, end: int, marks: Sequence[Span]) -> Iterator[Span]:
        """Sentences between two characters, read as if `marks` between them were blank."""
        parts, done = [], start
        for first, last in marks:
            parts += [self.read[done:first], " " * (last - first)]
            done = last
        for first, last in self.split("".join(parts) + self.read[done:end]):
            yield start + first, start + last

    def _code(self, first: int, lines: Sequence[str]) -> Iterator[Span]:
        """All lines as one unit; if that is too large, as few units of whole lines, preferably cut at blank lines."""
        written = [i for i, line in enumerate(lines) if line.strip()]
        if not written:
            return
        span = self._place(first + written[0], lines[written[0]]), self.starts[first + written[-1] + 1]
        parts = cut_text(self.text, [span[0], *(gap.end() for gap in BLANK_LINE.finditer(self.text, *span)), span[1]])
        for group in pack_spans(self.text, parts, self.code.most, self.code.count, (_cut_lines,)):
            yield group[0][0], group[-1][1]

    def _place(self, line: int, words: str) -> int:
        """The start of the words of a line, after the marks of its lists and quotations."""
        start, end = self.starts[line : line + 2]
        return self.source.rfind(words.strip(), start, end) if words.strip() else start


def _cut_lines(text: str, span: Span) -> list[Span]:
    inside = [span[0] + start for start in line_starts(text[slice(*span)])]
    return cut_text(text, inside)
