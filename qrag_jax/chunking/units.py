"""Units of a text: a sentence, heading, list item, table row or fence of code each, as exact character spans.

They are what a trained retriever reads. `chunking/text/blocks.py` says what the blocks of the text are; here Markdown
and plain text are one, so where the two differ plain text is right:

- `•` and `(1)` begin list items as `-` and `1)` do; a number of four digits is a year, one alone on its line a title;
- a line of `=` is a rule wherever it stands, a form feed at the start of a line ends a paragraph;
- a line that begins with `|` is a row even where no table can be made of it;
- link definitions are paragraphs, and so is what is indented unless the document is a Markdown file;
- tags of HTML are no text, nor are comments, scripts and styles: what stands between them is read as Markdown.

Marks stand outside of the units: `#`, `-`, `1.`, `>`, fences, underlines, rules, tags. A `>` or a tag inside of a unit
stays in its span but decides nothing. A fence of code is one unit, or as few as a window of tokens takes.
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

_MARKDOWN_SUFFIXES = (".md", ".markdown")  # of documents in which an indented block is code
_MAX_CODE = 1_000  # characters; encoders read about as much, and only the beginning of more
_ITEM_MARK = re.compile(r"[ \t>]*(?:[-+*]|\d+[.)])")
_LINE = r"(?<![^\r\n])"  # its beginning; ^ knows no carriage return
# What plain text writes -> what Markdown reads as the same, character for character.
_REPLACED = (
    (re.compile(r"\0|[^\S \t\r\n]"), "\ufffd"),  # the parser does so with NUL, and strips blank space of other kinds
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
        document: one text; what is indented is code in it if its id ends as the name of a Markdown file does.
        count: tokens of a text.
        split: sentences of a paragraph.
        window: most tokens that a run reads of a chunk, [CLS] and [SEP] counted; more of a fence of code is cut between
            lines. None cuts at 1,000 characters.

    Raises:
        InputError: there is no letter and no digit in the document.
    """
    is_markdown = document.id.lower().endswith(_MARKDOWN_SUFFIXES)
    code = CodeSize() if window is None else CodeSize(window - 2, count)
    spans = find_units(document.text, indented_code=is_markdown, split=split, code=code)
    if not spans:
        raise InputError("holds no sentence to search in; leave this file out", file=document.id)
    return [make_chunk(document, [span], 1, count) for span in spans]


@dataclass(frozen=True)
class CodeSize:
    """How large a unit of code may be: `most` of what `count` counts of a text."""

    most: int = _MAX_CODE
    count: CountTokens = len


def find_units(
    text: str,
    *,
    indented_code: bool = False,
    split: SplitSentences = split_sentences,
    code: CodeSize = CodeSize(),  # noqa: B008
) -> list[Span]:
    """The units of a text in order, each with a letter or digit; all others are in one of them, those of marks aside.

    Args:
        indented_code: a block that is indented by four spaces is code, as in Markdown, and no paragraph.
        code: size of a unit of code; what has more is cut between lines.
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
    """A text, what the parser reads in its place, what sentences are read in, and where the lines of all begin."""

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
        """A row of a table, behind the quotation and the so many items of lists that begin with it."""
        start, end = self.starts[line : line + 2]
        for _ in range(num_marks):
            start += len(_ITEM_MARK.match(self.source, start, end)[0])  # pyright: ignore[reportOptionalSubscript]
        marks = len(self.source[start:end]) - len(self.source[start:end].lstrip(" \t>"))
        return cut_text(self.text, [start + marks, end])

    def _paragraph(self, first: int, lines: Sequence[str]) -> Iterator[Span]:
        """Sentences of lines that were wrapped; rows, and what follows a form feed, begin anew."""
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
        """Sentences from one character to another, read as if `marks` between them were blank."""
        parts, done = [], start
        for first, last in marks:
            parts += [self.read[done:first], " " * (last - first)]
            done = last
        for first, last in self.split("".join(parts) + self.read[done:end]):
            yield start + first, start + last

    def _code(self, first: int, lines: Sequence[str]) -> Iterator[Span]:
        """All lines as one unit; of too many as few units of whole lines, best between blank ones."""
        written = [i for i, line in enumerate(lines) if line.strip()]
        if not written:
            return
        span = self._place(first + written[0], lines[written[0]]), self.starts[first + written[-1] + 1]
        parts = cut_text(self.text, [span[0], *(gap.end() for gap in BLANK_LINE.finditer(self.text, *span)), span[1]])
        for group in pack_spans(self.text, parts, self.code.most, self.code.count, (_cut_lines,)):
            yield group[0][0], group[-1][1]

    def _place(self, line: int, words: str) -> int:
        """Where the words of a line begin, behind the marks of the lists and quotations that it stands in."""
        start, end = self.starts[line : line + 2]
        return self.source.rfind(words.strip(), start, end) if words.strip() else start


def _cut_lines(text: str, span: Span) -> list[Span]:
    inside = [span[0] + start for start in line_starts(text[slice(*span)])]
    return cut_text(text, inside)
