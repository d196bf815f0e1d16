"""Everything that cuts a text, held to its promise on any text: exact places, nothing lost, no chunk too large."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from support.markdown_text import check_cover
from support.odd_texts import COUNTERS, check_chunks, embed_by_hash, readable, times_covered
from trust.mutations import checksum
from trust.samples import PROSE, Reader, texts

from qrag_jax.chunking.chunker import ChunkConfig, make_chunker, make_tree_builder
from qrag_jax.chunking.text.blocks import find_blocks
from qrag_jax.chunking.text.sentences import make_splitter, split_sentences
from qrag_jax.chunking.units import find_units, unit_chunks
from qrag_jax.names import CHUNKERS
from qrag_jax.types import Document, InputError, Span

LONG = (
    PROSE
    + "\n\n## Mills\n\n> He said: \u201cNo.\u201d It is 5 p.m. now.\n\n1. one\n2. two\n   - deep\n\n```py\nx = 1\n"
    "\ny = 2\n```\n\nTitle\n=====\n\n\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u3002 Caf\u00e9, "
    "e\u0301te\u0301\u2026 antidisestablishmentarianism " + "x" * 120 + ". The end.\n[a]: b\n---\n"
)
_SIZES = ((None, None), (1, None), (3, 2), (12, None), (40, 9))  # most and least tokens of a chunk


def _text(folder: Path) -> str:
    """Bytes that are no UTF-8 become lone surrogates, which documents may hold."""
    return (folder / "a.md").read_bytes().decode("utf-8", "surrogateescape")


def _cut(config: ChunkConfig, folder: Path) -> None:
    text = _text(folder)
    drawn = checksum(text.encode("utf-8", "surrogatepass"))
    count, (most, least) = COUNTERS[drawn % len(COUNTERS)], _SIZES[drawn // 7 % len(_SIZES)]
    document = Document("document", text)
    config = replace(config, max_tokens=most, min_tokens=least)
    try:
        chunks = make_chunker(config, count, embed_by_hash)(document)
    except InputError:  # the refusals: of a text without a word, and of a character that is too large by itself
        assert not text.strip() or (
            most is not None and any(count(readable(one)) > most for one in text if one.strip())
        )
        raise
    check_chunks(document, chunks, count, most)
    assert times_covered(text, chunks) == {1}


def _build_tree(folder: Path) -> None:
    document = Document("document", _text(folder))
    tree = make_tree_builder(ChunkConfig("headings", max_tokens=12), COUNTERS[0])(document)
    tree.check_document(document)
    assert all(chunk.num_tokens <= 12 for chunk in tree.chunks(document, COUNTERS[0]))


def _split(split: Callable[[str], list[Span]], folder: Path) -> None:
    text = _text(folder)
    check_cover(text, split(text))


def _blocks(text: str) -> list[Span]:
    return [(block.start, block.end) for block in find_blocks(text)]


def _units(folder: Path) -> None:
    text, done = _text(folder), 0
    for start, end in find_units(text, indented_code=bool(checksum(text.encode("utf-8", "surrogatepass")) % 2)):
        assert done <= start < end <= len(text) and text[start:end] == text[start:end].strip()
        done = end
    for chunk in unit_chunks(Document("document", text), COUNTERS[0]):
        assert all(0 <= start < end <= len(text) for start, end in chunk.spans)


_sample = texts({"a.md": LONG})
CUTTERS = (
    *(Reader(f"chunks: {name}", _sample, partial(_cut, ChunkConfig(name)), cases=2_000) for name in CHUNKERS),
    Reader("chunk tree", _sample, _build_tree, cases=2_000),
    Reader("sentences", _sample, partial(_split, split_sentences)),
    Reader("sentences by NLTK", _sample, lambda folder: _split(make_splitter("nltk"), folder)),
    Reader("Markdown blocks", _sample, partial(_split, _blocks)),
    Reader("text units", _sample, _units),
)
