"""Trees with named levels: section, subsection, paragraph and sentence, or spans of limited token sizes.

With names, every border of a level is also one of all finer levels, so an undivided part represents those too
(`tree/level_ranges.py:nodes_in`). With sizes, a text is cut into spans of the largest size, each of these into spans of
the next one, and so on.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from qrag_jax.chunking.size.budget import fit_groups
from qrag_jax.chunking.size.packing import capped, pack_spans
from qrag_jax.chunking.text.blocks import find_blocks, join_heading_units, join_headings, make_block_splitter
from qrag_jax.chunking.text.chunks import DEFAULT_NUM_TOKENS, Group, SentenceText, SplitSentences
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.tree.boundaries import PredictPoints, predict_checked, starts_paragraph
from qrag_jax.chunking.tree.build import refine_leaves, tree_from_sections
from qrag_jax.chunking.tree.level_ranges import NAMES
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import CountTokens, InputError, UsageError

SECTION, SUBSECTION, PARAGRAPH, SENTENCE = range(1, len(NAMES))


def named_tree(
    text: SentenceText,
    document_id: str,
    predict: PredictPoints,
    max_tokens: int,
    count: CountTokens,
    split: SplitSentences,
) -> ChunkTree:
    """The tree of a text with the levels of `NAMES`.

    - Boundaries of level 1 begin sections, all deeper ones subsections.
    - Text of a section before its first subsection is a subsection too; likewise text before the first section. A
      heading alone is none: it belongs to the text after it.
    - Paragraphs are Markdown's blocks, a heading together with the next block; in a text of one block, its lines. If
      the only paragraph of a part has more than 256 tokens, the text is taken to have no paragraphs, and runs of
      sentences of up to 256 tokens are used.
    - A leaf is a sentence, a list item, a row or a line, with a heading before it; a leaf over `max_tokens` is cut.

    Args:
        text: of the document, by `blocks.make_unit_splitter`.
        max_tokens: most tokens of a leaf.
    """
    (points,) = predict_checked(predict, [text], [document_id])
    units = join_heading_units(text)
    parts = _parts(text, [(text.sentences[unit][0], min(level, SUBSECTION)) for unit, level in points])
    borders = {start: PARAGRAPH for start in _paragraphs(text, units, sorted(parts), count)}
    for start, level in parts.items():
        borders[start] = min(level, borders.get(start, level))
    for start, _ in units.sentences:
        borders.setdefault(start, SENTENCE)
    return refine_leaves(_nested(text, borders, document_id), units, max_tokens, count, make_block_splitter(split))


def size_tree(
    text: SentenceText, document_id: str, sizes: Sequence[int], count: CountTokens, split: SplitSentences
) -> ChunkTree:
    """The tree of nested spans: a node of level k has at most `sizes[k - 1]` tokens.

    Sentences are packed in order, as many as fit, first into spans of the largest size, then those of each span into
    spans of the next. A sentence over a size is cut between words, then between characters.

    Args:
        text: of the document, by `blocks.make_unit_splitter`.
        sizes: most tokens of a span at each level, decreasing.
    """
    check_sizes(sizes)
    cut, size = make_block_splitter(split), lambda piece: count(readable(piece))
    units = join_heading_units(text).sentences
    groups = [Group(units)] if units else []  # none for blank text, which `_nested` refuses
    borders: dict[int, int] = {}
    try:
        for level, num_tokens in enumerate(sizes, start=1):
            groups = [part for group in groups for part in fit_groups(text.text, [group], num_tokens, size, cut)]
            for group in groups:
                borders.setdefault(group.spans[0][0], level)
    except InputError as error:
        raise InputError(str(error), file=document_id) from error
    return _nested(text, borders, document_id, deepest=len(sizes))


def check_sizes(sizes: Sequence[int]) -> None:
    """Refuses sizes that do not decrease."""
    if any(size < 1 for size in sizes) or any(coarse <= fine for coarse, fine in pairwise(sizes)):
        raise UsageError(
            f"levels.sizes {list(sizes)}: give tokens, each fewer than the one before, the last at least 1"
        )


def _nested(text: SentenceText, borders: dict[int, int], document_id: str, deepest: int = SENTENCE) -> ChunkTree:
    """The tree of borders; each border is also one of all finer levels."""
    sections = [(start, finer) for start, level in borders.items() for finer in range(level, deepest + 1)]
    return tree_from_sections(text, sections, document_id)


def _parts(text: SentenceText, points: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The starts of sections and subsections: the first character of each, and the coarser of the two levels.

    A subsection after a heading alone begins with that heading; text before the first border begins a section.
    """
    blocks = find_blocks(text.text)
    firsts, ends = [block.start for block in blocks], [block.end for block in blocks]
    said = list(accumulate((block.kind != "heading" for block in blocks), initial=0))  # blocks before each but headings
    parts: dict[int, int] = {}
    start, level = next(iter(text.sentences), (0, 0))[0], 0  # the open part: first the document itself
    for at, deeper in sorted(points):
        if deeper > level and said[bisect_left(firsts, at)] == said[bisect_right(ends, start)]:
            parts[start] = min(deeper, parts.get(start, deeper))
        else:
            parts.setdefault(start, SECTION)
            parts[at] = deeper
            start = at
        level = deeper
    return parts


def _paragraphs(text: SentenceText, units: SentenceText, parts: Sequence[int], count: CountTokens) -> list[int]:
    """The starts of paragraphs."""
    blocks = find_blocks(text.text)
    starts = [start for start, _ in join_headings(blocks)]
    if len(blocks) == 1:
        starts = [span[0] for span, begins in zip(text.sentences, starts_paragraph(text), strict=True) if begins]
    size = capped(lambda piece: count(readable(piece)), DEFAULT_NUM_TOKENS)
    firsts = [start for start, _ in units.sentences]
    found = list(starts)
    for start, end in pairwise([*(parts or [0]), len(text.text)]):
        is_one = bisect_right(starts, start) == bisect_left(starts, end)
        if is_one and size(text.text[start:end].strip()) > DEFAULT_NUM_TOKENS:
            sentences = units.sentences[bisect_left(firsts, start) : bisect_left(firsts, end)]
            found += [spans[0][0] for spans in pack_spans(text.text, sentences, DEFAULT_NUM_TOKENS, size)]
    return found
