"""HTML from Python, safe by construction: what is not `Html` is escaped. Imports nothing of qrag_jax."""

import html
import re
from collections.abc import Iterable, Iterator, Sequence

# Characters that HTML cannot contain (controls except tab and line ends, lone surrogates, noncharacters), that turn
# the direction of the text around them, or that are a hidden copy of ASCII.
_UNSHOWN = re.compile(
    r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufdd0-\ufdef\ufff9-\ufffb\ud800-\udfff\ufffe\uffff"
    r"\U000e0000-\U000e007f]"
)
_WITHOUT_END = {"br", "input", "link", "meta"}


class Html(str):
    """Text that is HTML already, made by this module."""

    __slots__ = ()


def escape(text: str) -> Html:
    """Escapes text for HTML, between tags and in attributes; what would be unseen or harmful becomes U+FFFD."""
    return text if isinstance(text, Html) else Html(html.escape(_UNSHOWN.sub("\ufffd", text)))


def join(parts: Iterable[str], between: str = "") -> Html:
    """Parts one after another; those that are not `Html` are escaped."""
    return Html(escape(between).join(map(escape, parts)))


def start_tag(name: str, /, **attributes: str | int | float | bool | None) -> Html:
    """The tag that begins an element.

    Args:
        attributes: True gives one without a value, False and None give none. An underline in a name becomes a hyphen,
            and one at its end is dropped (`class_`).
    """
    given = [(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items()]
    written = (
        f" {key}" if value is True else f' {key}="{escape(str(value))}"'
        for key, value in given
        if value is not None and value is not False
    )
    return Html(f"<{name}{''.join(written)}>")


def element(name: str, /, *inside: str, **attributes: str | int | float | bool | None) -> Html:
    """An element; what is inside is escaped unless it is `Html`. Attributes as in `start_tag`."""
    begin = start_tag(name, **attributes)
    return begin if name in _WITHOUT_END else Html(f"{begin}{join(inside)}</{name}>")


def pieces(span: tuple[int, int], inner: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """A span cut at the ends of others: (start, end, whether one of them covers it), in order.

    Args:
        span: half-open.
        inner: half-open spans in any order; they may overlap, and reach out of the span.
    """
    done, stop = span
    for start, end in sorted(inner):
        start, end = max(start, done), min(end, stop)
        if start >= end:
            continue
        if done < start:
            yield done, start, False
        yield start, end, True
        done = end
    if done < stop:
        yield done, stop, False


def marked(text: str, spans: Sequence[tuple[int, int]]) -> Html:
    """Escaped text with `<mark>` around each of the spans, which are half-open characters of the text."""
    return join(
        element("mark", text[start:end]) if is_inside else text[start:end]
        for start, end, is_inside in pieces((0, len(text)), spans)
    )


# --- for notebooks: in the colours around it, without ids, because cells share a page

_LINE = "1px solid color-mix(in srgb, currentColor 30%, transparent)"
_CARD = f"border: {_LINE}; border-radius: 4px; padding: 6px 10px; margin: 6px 0; text-align: left;"
_TEXT = "white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: plaintext; margin: 4px 0;"
_QUIET = "opacity: 0.75; font-size: 0.9em; overflow-wrap: anywhere;"


def card(head: str, *inside: str) -> Html:
    """A box with a head, for a cell of a notebook."""
    return element("div", element("div", element("strong", element("bdi", head))), *inside, style=_CARD)


def text_part(text: str) -> Html:
    """Text with its line breaks, for a cell of a notebook."""
    return element("div", text, style=_TEXT)


def quiet_part(text: str) -> Html:
    """Text beside the main one, for a cell of a notebook."""
    return element("div", text, style=_QUIET)


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """A table, for a cell of a notebook."""
    head = element("tr", *(element("th", name) for name in names))
    return element("table", head, *(element("tr", *(element("td", cell) for cell in row)) for row in rows))
