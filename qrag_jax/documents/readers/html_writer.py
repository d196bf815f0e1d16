"""Writes blocks of Markdown while it walks over the elements of a page."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from os.path import commonprefix

from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

from qrag_jax.types import InputError

MAX_DEEP = 1_000  # nested elements; a page has a few dozen, one with missing end tags some hundreds
BREAK = "\0"  # a line break within a paragraph
DEFINITION = ": "
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")

_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure "
    "footer form frameset h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav noframes noscript ol "
    "optgroup p search section summary tbody td tfoot th thead tr ul".split()
)
_NEVER_SHOWN = frozenset(
    "area base colgroup datalist defs desc link map meta metadata param rp style symbol template title".split()
)
_HIDDEN_STYLE = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\b", re.IGNORECASE)
_BLOCK_STYLE = re.compile(r"(?:^|;)\s*display\s*:\s*(?:block|flex|grid|list-item|table)\b", re.IGNORECASE)
_SCRIPT_STYLE = re.compile(r"(?:^|;)\s*vertical-align\s*:\s*(sup|sub)", re.IGNORECASE)  # `super` too
_MAX_INDENT = 40  # characters before a line, of nested lists and quotes; deeper ones are not indented further
_WHITE = re.compile("[ \t\n\r\f\xa0]+")
_WORD = re.compile(r"\w+")


def too_deep() -> InputError:
    """The refusal of a page that is nested too deep."""
    return InputError(f"HTML with more than {MAX_DEEP:,} nested elements is damaged or hostile; leave it out")


def count_words(text: str) -> int:
    """Runs of letters and digits."""
    return len(_WORD.findall(text))


def is_hidden(element: Element) -> bool:
    """True if a browser shows nothing of an element before a person or a script acts; but `details` count as shown.

    Style sheets do not count, because a page is read without them.
    """
    tag, get = element.tag, element.attrib.get
    if (
        tag in ("noembed", "noframes", "noscript")
        or (tag == "dialog" and get("open") is None)
        or get("popover") is not None
    ):
        return True
    if get("aria-hidden") == "true" and "katex-html" in get("class", ""):
        return True  # draws the formula that is also there in MathML
    return get("hidden", "until-found").lower() != "until-found" or bool(_HIDDEN_STYLE.search(get("style", "")))


class Writer:
    """Writes Markdown from elements.

    Attributes:
        blocks: what is written, with the white space between blocks.
        left_out: kind -> number.
        pieces: text of the paragraph in progress.
        num_flat: elements in progress whose text becomes one line.
        is_raw: the text of an element in progress keeps its white space.
        found: `block` (a heading, lines of code) or `table`, where an element in progress becomes one line.
        num_layouts: tables in progress that are layout.
    """

    def __init__(
        self,
        writers: Mapping[str, Callable[["Writer", Element], None]],
        with_navigation: bool = True,
        with_hidden: bool = False,
    ) -> None:
        """Starts without text.

        Args:
            writers: tag -> writes such an element; others are written as paragraphs or parts of lines.
            with_navigation: write navigation too, instead of counting it.
            with_hidden: write hidden text too, instead of counting it.
        """
        self.blocks: list[str] = []
        self.left_out: Counter[str] = Counter()
        self.pieces: list[str] = []
        self.num_flat = self.num_layouts = 0
        self.found: set[str] = set()
        self.between = "\n\n"  # before the next block
        self._writers, self._with_navigation, self._with_hidden = writers, with_navigation, with_hidden
        self._prefix = self._last_prefix = ""  # of each line, and of those of the last block
        self._marker: str | None = None  # of the next line, in place of the prefix
        self._depth, self.is_raw = 0, False

    @property
    def in_list(self) -> bool:
        """True within an item of a list."""
        return bool(self._prefix.replace("> ", ""))

    def element(self, element: Element) -> None:
        """Writes an element with everything in it."""
        tag = element.tag
        if (tag in _NEVER_SHOWN and not element.get("shadowrootmode")) or self.leaves_out(element):
            return
        if tag == "span" and (script := _SCRIPT_STYLE.search(element.get("style", ""))):
            element.tag = tag = script[1].lower()
        if element.get("role") == "heading" and tag not in HEADINGS:
            tag = level if (level := f"h{element.get('aria-level', '2')}") in HEADINGS else "h6"
        if write := self._writers.get(tag):
            write(self, element)
        elif tag in _BLOCKS or _BLOCK_STYLE.search(element.get("style", "")):
            self.block(element)
        else:
            self.children(element)

    def children(self, element: Element) -> None:
        """Writes what is in an element."""
        self._depth += 1
        if self._depth > MAX_DEEP:
            raise too_deep()
        self.pieces.append(element.text or "")
        for child in element:
            self.element(child)
            self.pieces.append(child.tail or "")
        self._depth -= 1

    def block(self, element: Element) -> None:
        """Writes an element that begins and ends a paragraph."""
        self.end_block()
        self.children(element)
        self.end_block()

    def within(self, element: Element, marker: str, indent: str) -> None:
        """Writes an element whose first line has a marker, and whose lines are indented."""
        self.end_block()
        outer = self._prefix
        self._marker = (outer if self._marker is None else self._marker) + marker
        if len(outer) < _MAX_INDENT:
            self._prefix += indent
        self.children(element)
        self.end_block()
        self._prefix, self._marker = outer if self._prefix else "", None  # a heading has ended the list

    def heading(self, text: str, level: int) -> None:
        """Writes a heading. It ends a list that it is in, because sections are not parts of lists; a number stays."""
        if self._prefix and ">" not in self._prefix:
            text = f"{(self._marker or '').strip(' -')} {text}".strip()
            self._prefix, self._marker, self.between = "", None, "\n\n"
        self.write([f"{'#' * level} {text}"], is_paragraph=False)

    def definition(self, element: Element) -> None:
        """Writes an element below the term that it defines."""
        self.end_block()
        if not self.num_flat and self.blocks:
            self.between, self._marker = "\n", self._prefix + DEFINITION
        self.block(element)
        self.end_definition()

    def end_definition(self) -> None:
        """Takes back the mark of a definition, because it is empty or begins with a list, a table or code."""
        if self._marker == self._prefix + DEFINITION:
            self._marker, self.between = None, "\n\n"

    def end_block(self) -> None:
        """Ends the paragraph in progress."""
        if self.is_raw:
            self.pieces.append("" if "".join(self.pieces[-9:])[-1:] in ("", "\n", BREAK) else "\n")
        elif self.num_flat:
            self.pieces.append(" ")
        else:
            text, self.pieces = "".join(self.pieces), []
            lines: list[str] = []
            for line in text.split(BREAK):
                if words := _WHITE.sub(" ", line).strip():
                    lines.append(words)
                else:
                    self.write(lines)
                    lines = []
            self.write(lines)

    def write(self, lines: list[str], is_paragraph: bool = True) -> None:
        """Writes the lines of a block."""
        if not lines:
            return
        if not is_paragraph:
            self.end_definition()
        quote = commonprefix((self._last_prefix, self._prefix)).rstrip() if self._prefix else ""
        between = self.between.replace("\n\n", f"\n{quote}\n") if self.blocks else ""
        first = self._prefix if self._marker is None else self._marker
        self.blocks.append(f"{between}{first}" + f"\n{self._prefix}".join(lines))
        self._marker, self.between, self._last_prefix = None, "\n\n", self._prefix

    def flat(self, element: Element, is_raw: bool = False) -> str:
        """The text of an element, on one line or with its white space (`is_raw`)."""
        outer, self.pieces = (self.pieces, self.is_raw), []
        self.num_flat, self.is_raw = self.num_flat + 1, is_raw
        self.children(element)
        text = "".join(self.pieces)
        self.num_flat, (self.pieces, self.is_raw) = self.num_flat - 1, outer
        if is_raw:
            return text.replace(BREAK, "\n").replace("\xa0", " ")
        return _WHITE.sub(" ", text.replace(BREAK, " ")).strip()

    def leaves_out(self, element: Element) -> bool:
        """True if an element is not written; counts its words."""
        if not self._with_navigation and (element.tag == "nav" or element.get("role") == "navigation"):
            kind = "words of navigation"
        elif not self._with_hidden and is_hidden(element):
            kind = "hidden words"
        else:
            return False
        shown = [part for part in element.iter() if part.tag not in _NEVER_SHOWN and part.tag != "script"]
        texts = [part.text or "" for part in shown] + [part.tail or "" for part in shown if part is not element]
        if number := count_words(" ".join(texts)):
            self.left_out[kind] += number
        return True
