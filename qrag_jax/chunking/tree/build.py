"""Builds chunk trees from headings, or from (sentence, level) boundaries.

A part of level k begins at its boundary and goes on to the next boundary of level k or less, so deeper ones nest in it.
All builders give the normal form of `chunking/tree/tree.py`:

- text of a part before its first subpart becomes a leaf next to the subparts; a part without text is left out;
- an only child replaces its parent and keeps the parent's level, so siblings stay equal and the root stays 0;
- siblings of different levels (a level 3 before the first level 2) all get the smallest of them.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby

import numpy as np

from qrag_jax.chunking.size.budget import check_budget, fit_groups
from qrag_jax.chunking.size.packing import capped, longest_run, run_counter
from qrag_jax.chunking.text.chunks import Group, SentenceText, SplitSentences
from qrag_jax.chunking.text.spans import readable, strip_span
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import CountTokens, Document, InputError, Span, UsageError


class _Draft:
    """Nodes in preorder before the normal form; those with a span have text, and those without text are dropped."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.level: list[int | None] = []  # None: that of the siblings
        self.span: list[Span | None] = []

    def add(self, parent: int, level: int | None, span: Span | None = None) -> int:
        """Appends a node and returns its number."""
        self.parent.append(parent)
        self.level.append(level)
        self.span.append(span)
        return len(self.parent) - 1


def tree_from_sections(text: SentenceText, sections: Iterable[tuple[int, int]], document_id: str) -> ChunkTree:
    """The tree of sections that begin at characters, as headings do.

    Args:
        text: of the document; sections may begin inside sentences.
        sections: (first character, level from 1), in any order; equal ones count once. Several levels may begin at one
            character: a section and its first subsection. Text before the first section is a leaf.
        document_id: its document.

    Raises:
        InputError: an offset is outside the text, a level is below 1, or the text is blank.
    """
    points = sorted(set(sections))
    for place, level in points:
        if not 0 <= place < len(text.text):
            raise InputError(f"section at {place}: not in the text of {len(text.text)} characters", file=document_id)
        if level < 1:
            raise InputError(
                f"section at {place}: level {level}: levels start at 1, because the document is 0", file=document_id
            )
    draft = _Draft()
    opened = [draft.add(-1, 0)]
    starts = [(0, []), *((place, [level for _, level in group]) for place, group in groupby(points, lambda p: p[0]))]
    ends = [place for place, _ in starts[1:]] + [len(text.text)]
    for (start, levels), end in zip(starts, ends, strict=True):
        for level in levels:
            while (draft.level[opened[-1]] or 0) >= level:
                opened.pop()
            opened.append(draft.add(opened[-1], level))
        body = strip_span(text.text, start, end)
        if body:
            draft.add(opened[-1], None, body)
    return _normal_tree(draft, document_id)


def tree_from_points(text: SentenceText, points: Iterable[tuple[int, int]], document_id: str) -> ChunkTree:
    """The tree of parts that begin with sentences: `tree_from_sections` at their first characters.

    Args:
        text: of the document.
        points: (sentence from 0, level from 1); sentence 0 always begins the document. Without points the tree is one
            leaf, the whole document.
        document_id: its document.

    Raises:
        InputError: a sentence does not exist, a level is below 1, or there is no sentence.
    """
    points = list(points)
    for sentence, level in points:
        if not 0 <= sentence < len(text):
            raise InputError(
                f"point ({sentence}, {level}): there are only {len(text)} sentences, counted from 0", file=document_id
            )
        if level < 1:
            raise InputError(
                f"point ({sentence}, {level}): levels start at 1, because the document is 0", file=document_id
            )
    return tree_from_sections(text, [(text.sentences[sentence][0], level) for sentence, level in points], document_id)


def cap_levels(tree: ChunkTree, most: int) -> ChunkTree:
    """The tree without nodes below a level: their parents become leaves, so deeper splits are joined again."""
    if most < 0:
        raise UsageError(f"most {most}: give at least 0, which is the whole document")
    draft, kept = _Draft(), {-1: -1}
    leaves = set(tree.cut(most).tolist())
    for node in np.flatnonzero(tree.level <= most).tolist():
        span = tree.span(node) if node in leaves else None
        kept[node] = draft.add(kept[int(tree.parent[node])], int(tree.level[node]), span)
    return _normal_tree(draft, tree.document_id)


def merge_runs(
    text: SentenceText, points: Sequence[tuple[int, int]], num_tokens: int, count: CountTokens
) -> list[tuple[int, int]]:
    """Leaves out boundaries between small neighbouring pieces, for fewer and larger leaves.

    A piece goes from one boundary to the next. From the first on, a piece takes in those after it while their levels do
    not fall and all together have at most `num_tokens` tokens. It keeps its own level, so a section takes in its
    subsections before its siblings. Text before the first boundary is a piece of that boundary's level.

    Args:
        points: (sentence from 0, level from 1), ascending, one for each sentence.
        num_tokens: most tokens of joined pieces; a larger piece is unchanged.
    """
    if num_tokens < 1:
        raise UsageError(f"num_tokens {num_tokens}: give at least 1, or leave the merging out")
    if not points:
        return []
    points = list(points) if points[0][0] == 0 else [(0, points[0][1]), *points]
    stops = [sentence for sentence, _ in points[1:]] + [len(text)]
    pieces = [
        (text.sentences[sentence][0], text.sentences[stop - 1][1])
        for (sentence, _), stop in zip(points, stops, strict=True)
    ]
    capped_count = capped(count, num_tokens)
    sums = list(accumulate((capped_count(text.text[start:end]) for start, end in pieces), initial=0))
    tokens = run_counter(text.text, pieces, capped_count, num_tokens)
    kept, first = [], 0
    for last, (_, level) in enumerate(points):
        if last + 1 < len(points) and points[last + 1][1] >= level:
            continue
        while first <= last:  # levels from `first` to `last` do not fall
            kept.append(points[first])
            first += max(1, longest_run(tokens, first, num_tokens, sums[: last + 2]))
    return kept


def refine_leaves(
    tree: ChunkTree, text: SentenceText, max_tokens: int, count: CountTokens, split: SplitSentences
) -> ChunkTree:
    """The tree with every leaf over the size limit cut into smaller leaves, one level deeper.

    Leaves are filled with sentences in order; a sentence that is too long is cut between words, then between characters
    (`budget.fit_groups`). Other nodes are unchanged.

    Args:
        tree: of the text.
        text: leaves are cut between its sentences.
        max_tokens: most tokens of a leaf.
        count: text -> its tokens.
        split: a piece of text that is not a sentence of `text` -> its sentences.

    Raises:
        UsageError: `max_tokens` is below 1.
        InputError: a single character has more tokens than that, or the tree belongs to another text.
    """
    check_budget(max_tokens, None)
    count = lambda text, given=count: given(readable(text))  # noqa: E731
    document = Document(tree.document_id, text.text)
    tree.check_document(document)
    inside = dict(zip(tree.leaves.tolist(), _sentences_of_leaves(tree, text), strict=True))
    draft, kept = _Draft(), {-1: -1}
    for node, (parent, level) in enumerate(zip(tree.parent.tolist(), tree.level.tolist(), strict=True)):
        kept[node] = draft.add(kept[parent], level)
        if node in inside:  # if the leaf fits, its only part replaces it
            for part in _parts(tree.document_id, text.text, Group(inside[node], level + 1), max_tokens, count, split):
                draft.add(kept[node], part.level, (part.spans[0][0], part.spans[-1][1]))
    refined = _normal_tree(draft, tree.document_id)
    refined.check_document(document)  # `split` may be custom
    return refined


def _parts(
    document_id: str, text: str, group: Group, max_tokens: int, count: CountTokens, split: SplitSentences
) -> list[Group]:
    try:
        return fit_groups(text, [group], max_tokens, count, split)
    except InputError as error:
        raise InputError(str(error), file=document_id) from error


def _sentences_of_leaves(tree: ChunkTree, text: SentenceText) -> list[tuple[Span, ...]]:
    """The sentences of each leaf, cut at its borders."""
    spans = np.array(text.sentences, np.int64).reshape(-1, 2)
    firsts = np.searchsorted(spans[:, 1], tree.start[tree.leaves], side="right").tolist()
    stops = np.searchsorted(spans[:, 0], tree.end[tree.leaves]).tolist()
    found = []
    for leaf, first, stop in zip(tree.leaves.tolist(), firsts, stops, strict=True):
        start, end = tree.span(leaf)
        pieces = [strip_span(text.text, max(s, start), min(e, end)) for s, e in text.sentences[first:stop]]
        found.append(tuple(piece for piece in pieces if piece))
    return found


def _normal_tree(draft: _Draft, document_id: str) -> ChunkTree:
    """Drops parts without text and only children, fits spans around leaves, and makes siblings' levels equal."""
    below = [0 if span is None else 1 for span in draft.span]  # children with text; own text counts as one
    for node in range(len(below) - 1, 0, -1):
        below[draft.parent[node]] += below[node] > 0
    if not below[0]:
        raise InputError("empty document; leave it out", file=document_id)
    place: dict[int, int] = {}  # draft node -> node of the tree
    kept: list[int] = []
    spans: list[Span | None] = []
    for node, parent in enumerate(draft.parent):
        if not below[node]:
            continue
        if parent >= 0 and below[parent] == 1:
            place[node] = place[parent]
        else:
            place[node] = len(kept)
            kept.append(node)
            spans.append(None)
        spans[place[node]] = draft.span[node] or spans[place[node]]
    parents = [-1] + [place[draft.parent[node]] for node in kept[1:]]
    return _fitted(document_id, parents, [draft.level[node] for node in kept], spans)


def _fitted(document_id: str, parents: list[int], levels: Sequence[int | None], spans: list[Span | None]) -> ChunkTree:
    """The tree of nodes in preorder; only leaves have spans, and parents' spans and siblings' levels follow."""
    leaves = [node for node, span in enumerate(spans) if span]
    least: dict[int, int] = {}
    for parent, level in zip(parents, levels, strict=True):
        if level is not None:
            least[parent] = min(level, least.get(parent, level))
    fitted: list[Span] = [span or (-1, -1) for span in spans]
    for node in range(len(parents) - 1, 0, -1):
        parent, (start, end) = parents[node], fitted[node]
        fitted[parent] = start, max(end, fitted[parent][1])
    return ChunkTree(
        document_id,
        np.array([start for start, _ in fitted], np.int64),
        np.array([end for _, end in fitted], np.int64),
        np.array([least[parent] for parent in parents], np.int64),
        np.array(parents, np.int64),
        np.array(leaves, np.int64),
    )
