"""Trees of neighbouring sentences joined by meaning: the contiguous clustering that levels by sizes are compared with.

From the finest size to the coarsest, the two neighbours that are nearest are joined as long as together they keep the
size; what one size leaves is what the next one starts from, so levels nest.

    distance(g, h) = 1 - cos(v_g, v_h),    v_g = sum_{s in g} num_tokens(s) * v_s
"""

import heapq
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from qrag_jax.chunking.size.budget import fit_groups
from qrag_jax.chunking.size.packing import capped
from qrag_jax.chunking.text.blocks import join_heading_units, make_block_splitter, make_unit_splitter
from qrag_jax.chunking.text.chunks import Group, SentenceText, SplitSentences
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.tree.build import tree_from_levels
from qrag_jax.chunking.tree.level_trees import check_sizes
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import CountTokens, Document, Embed, InputError
from qrag_jax.unit_rows import unit_rows


def make_cluster_trees(
    sizes: Sequence[int], count: CountTokens, embed: Embed, split: SplitSentences = split_sentences
) -> Callable[[Document], ChunkTree]:
    """A function from a document to its tree, whose levels are those of `size_tree` by the same sizes.

    Args:
        sizes: most tokens of a span at each level, decreasing, at least one.
        count: tokens of a text.
        embed: sentences -> vectors.
        split: text -> sentences; one over the smallest size is cut finer.

    Raises:
        UsageError: the sizes do not decrease.
    """
    check_sizes(sizes)
    units, cut, size = make_unit_splitter(split), make_block_splitter(split), lambda text: count(readable(text))

    def build(document: Document) -> ChunkTree:
        """Makes the tree of one document.

        Raises:
            InputError: there is no text but blank space, or a character has more tokens than the smallest size.
        """
        whole = join_heading_units(SentenceText(document.text, tuple(units(document.text))))
        try:
            parts = fit_groups(document.text, [Group((one,)) for one in whole.sentences], sizes[-1], size, cut)
        except InputError as error:
            raise InputError(f"{document.id}: {error}") from error
        spans = tuple((part.spans[0][0], part.spans[-1][1]) for part in parts)
        text = SentenceText(document.text, spans)
        if not spans:
            raise InputError(f"{document.id}: empty document: leave it out")
        vectors = unit_rows(np.asarray(embed([readable(one) for one in text.texts()]), np.float32))
        return tree_from_levels(text, cluster_labels(text, vectors, sizes, size), document.id)

    return build


def cluster_labels(
    text: SentenceText, vectors: Float[np.ndarray, "sentences dim"], sizes: Sequence[int], count: CountTokens
) -> list[np.ndarray]:
    """For each size a label of every sentence, the largest size first; labels of one refine those of the one before.

    Args:
        text: with sentences that keep the smallest size.
        vectors: of the sentences, length 1 or 0.
        sizes: most tokens of a cluster, decreasing.
        count: tokens of a text, counted on that of every cluster.
    """
    sums = [vector * max(1, count(one)) for vector, one in zip(vectors.astype(np.float64), text.texts(), strict=True)]
    ends = list(range(1, len(text) + 1))  # of the cluster that begins at a sentence, one behind its last
    alive = [True] * len(text)  # whether a cluster begins there
    before = list(range(-1, len(text) - 1))  # where the cluster in front begins
    labels = []
    for size in reversed(sizes):
        _join(text, sums, ends, alive, before, size, capped(count, size))
        labels.append(np.cumsum(alive) - 1)
    return labels[::-1]


def _join(
    text: SentenceText,
    sums: list[np.ndarray],
    ends: list[int],
    alive: list[bool],
    before: list[int],
    size: int,
    count: CountTokens,
) -> None:
    """Joins neighbours up to one size, nearest first, the first of equally near ones first; writes into the lists."""
    waiting: list[tuple[float, int, int, int]] = []  # distance, left, right, end: what has changed since is stale

    def offer(left: int) -> None:
        right = ends[left]
        if right < len(text):
            lengths = float(np.linalg.norm(sums[left]) * np.linalg.norm(sums[right]))
            nearness = float(sums[left] @ sums[right]) / lengths if lengths else 0.0
            heapq.heappush(waiting, (round(1 - nearness, 9), left, right, ends[right]))

    for left in range(len(text)):
        if alive[left]:
            offer(left)
    while waiting:
        _, left, right, end = heapq.heappop(waiting)
        if not (alive[left] and alive[right]) or ends[left] != right or ends[right] != end:
            continue
        if count(text.text[text.sentences[left][0] : text.sentences[end - 1][1]]) > size:
            continue  # and for good, as both only grow
        sums[left], ends[left], alive[right] = sums[left] + sums[right], end, False
        if end < len(text):
            before[end] = left
        offer(left)
        if before[left] >= 0:
            offer(before[left])
