"""Shows chunks as one HTML page: nested blocks in the text, a colour for each chunk, a legend.

The page needs no script, no network and no other file. Everything from a document or file name is escaped, and the
page's own policy forbids scripts, images, frames, forms and other styles. So markup in a document is shown and never
executed.
"""

import base64
import hashlib
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence

from qrag_jax.markup import escape
from qrag_jax.types import Chunk, Document, Span

_NUM_HUES = 36
_HUE_STEP = 13  # of 36, so neighbours differ by 130 degrees
_DEEPEST = 8  # blocks shown around one place of the text; more of the outermost ones are only counted
_OPEN_LEGEND = 40  # a longer legend starts folded

_STYLE = """
:root { color-scheme: light dark; --back: 92%; --line: 42%; --ink: #1a1a1a; --page: #ffffff; --quiet: #5c5c5c; }
@media (prefers-color-scheme: dark) {
  :root { --back: 19%; --line: 62%; --ink: #ececec; --page: #141414; --quiet: #a8a8a8; }
}
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.25rem; } h2 { font-size: 1.1rem; overflow-wrap: anywhere; }
p { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: plaintext; }
a { color: inherit; }
.about, .label, .none { color: var(--quiet); } .label { display: block; font-size: .72rem; }
.chunk { margin: .25rem 0; padding: .15rem .5rem .25rem; background: hsl(var(--hue) 55% var(--back));
  border-left: .3rem solid hsl(var(--hue) 65% var(--line));
  content-visibility: auto; contain-intrinsic-size: auto 4rem; }
.chunk:target { outline: .2rem solid hsl(var(--hue) 80% var(--line)); }
.more { border-left-style: dashed; } .none { padding-left: .8rem; font-style: italic; }
details { margin: .5rem 0 1rem; } table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .1rem .8rem .1rem 0; text-align: left; vertical-align: top; }
td:nth-child(2), td:nth-child(3), th:nth-child(2), th:nth-child(3) { text-align: right; }
code { padding: 0 .3rem; border-left: .8rem solid hsl(var(--hue) 65% var(--line)); }
""" + "".join(
    f".h{i} {{ --hue: {i * _HUE_STEP * 360 // _NUM_HUES % 360}; }}\n" for i in range(_NUM_HUES)
) + "".join(f".d{i} {{ margin-left: {i * 1.2:.1f}rem; }}\n" for i in range(1, _DEEPEST + 1))  # fmt: skip
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"


def html_page(documents: Iterable[tuple[Document, Sequence[Chunk]]]) -> Iterator[str]:
    """An HTML page in pieces, to be written in order as UTF-8.

    Every document is a section: a legend (id, level, tokens, spans), then the text. A chunk is a block with one colour
    for all its spans. A chunk in another one is a block inside its block, and text that two chunks share is in both
    blocks. A chunk is indented if its level has no surrounding block. Blank space between chunks is left out; text in
    no chunk has no colour.

    Args:
        documents: each with its chunks, in the order of the legend.
    """
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>Chunks</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Chunks</h1>\n"
        '<p class="about">A block is a chunk, a block inside it a part of it; blocks of one colour and id are one '
        "chunk of several spans. Point at a block for its id.</p>\n"
    )
    for number, (document, chunks) in enumerate(documents):
        # A file name that changes the direction of text could pass for another one.
        name = "".join(character if character.isprintable() else "\ufffd" for character in document.id)
        yield f"<section>\n<h2><bdi>{escape(name)}</bdi></h2>\n"
        yield from _legend(chunks, number)
        yield from _blocks(document.text, chunks, number)
        yield "</section>\n"
    yield "</body>\n</html>\n"


def segments(chunks: Sequence[Chunk]) -> Iterator[tuple[Span, tuple[tuple[int, int], ...]]]:
    """The text cut at every border of a chunk, in order.

    Returns:
        (span, ((chunk, part), ...)) for each piece between two borders: the numbers of its chunks and of their spans.
        The outermost come first: lower levels, then those that begin earlier and end later.
    """
    begins: dict[int, list[tuple[int, int, int, int, int]]] = {}
    ends: dict[int, list[tuple[int, int, int, int, int]]] = {}
    for number, chunk in enumerate(chunks):
        for part, (start, end) in enumerate(chunk.spans):
            entry = (chunk.level, start, -end, number, part)
            begins.setdefault(start, []).append(entry)
            ends.setdefault(end, []).append(entry)
    around: list[tuple[int, int, int, int, int]] = []
    borders = sorted({*begins, *ends})
    for start, end in zip(borders, borders[1:], strict=False):
        for entry in ends.get(start, ()):
            around.remove(entry)
        for entry in begins.get(start, ()):
            insort(around, entry)
        yield (start, end), tuple((number, part) for *_, number, part in around)


def _legend(chunks: Sequence[Chunk], document: int) -> Iterator[str]:
    """A foldable table of the chunks, indented by level, each with a link to its start."""
    sizes = [chunk.num_tokens for chunk in chunks]
    least, most = min(sizes, default=0), max(sizes, default=0)
    size = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    yield f"<details{' open' if len(chunks) <= _OPEN_LEGEND else ''}>"
    yield f"<summary>{len(chunks):,} chunk{'' if len(chunks) == 1 else 's'} of {size} tokens</summary>\n<table>\n"
    yield "<tr><th>id</th><th>level</th><th>tokens</th><th>characters</th></tr>\n"
    for number, chunk in enumerate(chunks):
        where = ", ".join(f"{start}-{end}" for start, end in chunk.spans)
        yield (
            f'<tr><td><code class="{_hue(number)} {_depth(chunk.level - 1)}">'
            f'<a href="#{_anchor(document, number, 0)}">{escape(chunk.id)}</a></code></td>'
            f"<td>{chunk.level}</td><td>{chunk.num_tokens}</td><td>{where}</td></tr>\n"
        )
    yield "</table>\n</details>\n"


def _blocks(text: str, chunks: Sequence[Chunk], document: int) -> Iterator[str]:
    """The text as nested blocks; a block stays open between neighbouring pieces that share it."""
    stack: list[tuple[int, int]] = []
    seen: set[tuple[int, int]] = set()
    done = 0
    for (start, end), around in segments(chunks):
        yield from _close(stack, _shared(stack, around[-_DEEPEST:]))
        if not stack and text[done:start].strip():
            yield _plain(text[done:start])
        done = end
        for entry in around[-_DEEPEST:][len(stack) :]:
            outer = chunks[stack[-1][0]].level if stack else 0
            yield _open(chunks[entry[0]], entry, document, outer, entry in seen, hidden=len(around) - _DEEPEST)
            stack.append(entry)
            seen.add(entry)
        piece = text[start:end].strip()
        if piece:
            yield f'<p dir="auto">{escape(piece)}</p>\n' if stack else _plain(piece)
    yield from _close(stack, 0)
    if text[done:].strip():
        yield _plain(text[done:])


def _open(chunk: Chunk, entry: tuple[int, int], document: int, outer: int, again: bool, hidden: int) -> str:
    """The start of a block: colour, indentation and label.

    Args:
        entry: number of the chunk and of its span.
        outer: level of the block around it, 0 for none.
        again: the span continues an earlier block, which already has the anchor.
        hidden: number of surrounding chunks without a block here, because there are too many; none if not positive.
    """
    number, part = entry
    label = f"level {chunk.level}, {chunk.num_tokens} tokens"
    if len(chunk.spans) > 1:
        following = _anchor(document, number, (part + 1) % len(chunk.spans))
        label += f', <a href="#{following}">span {part + 1} of {len(chunk.spans)}</a>'
    label += ", continues" if again else ""
    label += f", {hidden} more around it" if hidden > 0 else ""
    anchor = "" if again else f' id="{_anchor(document, number, part)}"'
    title = f"{chunk.id}: level {chunk.level}, {chunk.num_tokens} tokens"
    classes = ["chunk", _hue(number), "more" if again or part else "", _depth(chunk.level - max(outer, 1))]
    names = " ".join(filter(None, classes))
    return f'<div class="{names}"{anchor} title="{escape(title)}"><span class="label">{label}</span>\n'


def _close(stack: list[tuple[int, int]], keep: int) -> Iterator[str]:
    """Closes the blocks above the first `keep`, and takes them from the stack."""
    while len(stack) > keep:
        stack.pop()
        yield "</div>\n"


def _shared(stack: Sequence[tuple[int, int]], around: Sequence[tuple[int, int]]) -> int:
    """The number of blocks, from the outermost on, that stay open."""
    same = 0
    while same < min(len(stack), len(around)) and stack[same] == around[same]:
        same += 1
    return same


def _plain(text: str) -> str:
    return f'<p class="none" dir="auto" title="in no chunk">{escape(text.strip())}</p>\n'


def _anchor(document: int, chunk: int, part: int) -> str:
    return f"d{document}c{chunk}s{part}"


def _hue(number: int) -> str:
    return f"h{number % _NUM_HUES}"


def _depth(levels: int) -> str:
    return f"d{min(levels, _DEEPEST)}" if levels > 0 else ""
