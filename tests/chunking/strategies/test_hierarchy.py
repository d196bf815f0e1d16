"""Points into trees and chunks: by hand, and what holds under any points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import count as words
from support.tiers import examples
from support.trees import fields_of, obeys

from qrag_jax.chunking.chunker import ChunkConfig, make_chunker, make_tree_builder
from qrag_jax.chunking.strategies.hierarchy import HierarchyConfig
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.tree.build import merge_runs, tree_from_points
from qrag_jax.types import Document, InputError, UsageError

BOOK = Document(
    "book.md",
    "# Book\n\nAbout it all.\n\n## One\n\nOne begins here. It goes on.\n\n### Deep\n\nDeep text stands here.\n\n"
    "## Two\n\nTwo has a few words.\n",
)


def found(config: ChunkConfig, document: Document = BOOK, predict=None) -> list[tuple[str, int]]:
    """Text and level of the chunks."""
    chunks = make_chunker(config, words, predict=predict)(document)
    return [(document.text[slice(*chunk.spans[0])], chunk.level) for chunk in chunks]


def hierarchy(max_tokens: int | None = None, **values) -> ChunkConfig:
    return ChunkConfig("hierarchy", max_tokens, hierarchy=HierarchyConfig(**values))


def test_sections_are_leaves_where_nothing_is_joined():
    assert found(hierarchy(merge_tokens=0)) == [
        ("# Book\n\nAbout it all.", 1),
        ("## One\n\nOne begins here. It goes on.", 2),
        ("### Deep\n\nDeep text stands here.", 2),
        ("## Two\n\nTwo has a few words.", 1),
    ]


def test_small_parts_are_joined_while_levels_do_not_fall():
    # 5 + 8 + 6 words; the last section would fit too, but its level falls
    assert [text.split()[1] for text, _ in found(hierarchy(99))] == ["Book", "Two"]
    assert [text.split()[1] for text, _ in found(hierarchy(18))] == ["Book", "Deep", "Two"]
    assert found(hierarchy(merge_tokens=99)) == found(hierarchy(99))


def test_a_cap_joins_what_is_deeper_and_a_size_cuts_it():
    assert found(hierarchy(merge_tokens=0, level_cap=1))[1:] == [
        ("## One\n\nOne begins here. It goes on.\n\n### Deep\n\nDeep text stands here.", 1),
        ("## Two\n\nTwo has a few words.", 1),
    ]
    # "## One" with its first sentence, the second one, "### Deep" with its sentence: no leaf ends with a heading
    assert [words(text) for text, _ in found(hierarchy(7, merge_tokens=0, level_cap=1))] == [5, 5, 3, 6, 7]


def test_points_come_from_what_is_handed_in():
    seen = []

    def predict(texts):
        seen.extend(texts)
        return [[(2, 1)] for _ in texts]

    got = found(hierarchy(points="tagger", merge_tokens=0), predict=predict)
    assert [text[:6] for text, _ in got] == ["# Book", "## One"]
    assert seen[0].texts()[:4] == ["# Book", "About it all.", "## One", "One begins here."]


def test_headings_keep_to_themselves_without_a_blank_line():
    document = Document("a.md", "# T\nText one.\n## A\nText two.\n## B\nText three.")
    assert [text for text, _ in found(hierarchy(merge_tokens=0), document)] == [
        "# T\nText one.",
        "## A\nText two.",
        "## B\nText three.",
    ]


def test_other_sources_need_nothing_but_the_text():
    document = Document("a.txt", "Methods\n\nWe tried this. It works.\n\nResults\n\nIt did.")
    assert [text for text, _ in found(hierarchy(points="rule", merge_tokens=0), document)] == [
        "Methods\n\nWe tried this. It works.",
        "Results\n\nIt did.",
    ]
    assert len(found(hierarchy(points="paragraphs", merge_tokens=0), document)) == 4
    assert len(found(hierarchy(merge_tokens=0), document)) == 1  # no heading of Markdown


@pytest.mark.parametrize(
    "values, message",
    [
        ({"points": "magic"}, "hierarchy.points 'magic': choose one of headings, rule"),
    ],
)
def test_configs_out_of_range_are_refused(values, message):
    with pytest.raises(UsageError, match=message):
        object.__new__(ChunkConfig).__init__("hierarchy", hierarchy=_unchecked(values))


def _unchecked(values):
    config = HierarchyConfig()
    for name, value in values.items():
        object.__setattr__(config, name, value)
    return config


@pytest.mark.parametrize("name", ["tagger", "llm"])
def test_a_model_that_is_not_handed_in_is_asked_for(name):
    for make in (make_chunker, make_tree_builder):
        with pytest.raises(UsageError, match=f"hierarchy.points {name}: needs a model"):
            make(hierarchy(points=name), words)


def test_a_source_that_gives_no_points_is_refused_by_document():
    with pytest.raises(InputError, match=r"book\.md.*points\[0\] \(99, 1\): there are only 9 sentences"):
        make_tree_builder(hierarchy(), words, predict=lambda texts: [[(99, 1)]])(BOOK)


# --- joining ---------------------------------------------------------------------------------------------------------


def line(*sizes: int) -> SentenceText:
    """Sentences of so many words each."""
    text, spans = "", []
    for size in sizes:
        spans.append((len(text), len(text) + 2 * size - 1))
        text += " ".join("x" * size) + "\n\n"
    return SentenceText(text, tuple(spans))


@pytest.mark.parametrize(
    "points, size, kept",
    [
        ([(0, 1), (1, 1), (2, 1)], 10, [(0, 1)]),
        ([(0, 1), (1, 1), (2, 1)], 6, [(0, 1), (2, 1)]),
        ([(0, 1), (1, 2), (2, 1)], 10, [(0, 1), (2, 1)]),  # the level falls
        ([(0, 2), (1, 1), (2, 2)], 10, [(0, 2), (1, 1)]),
        ([(0, 1), (1, 1), (2, 1)], 2, [(0, 1), (1, 1), (2, 1)]),  # each is too large alone
        ([(2, 3)], 10, [(0, 3)]),  # what stands before the first point is a piece of its level
        ([(2, 3)], 6, [(0, 3), (2, 3)]),
        ([], 10, []),
    ],
)
def test_joining_by_hand(points, size, kept):
    assert merge_runs(line(3, 3, 3), points, size, words) == kept


def slow_joined(sizes, points, most):
    """Piece by piece, each count anew."""
    if not points:
        return []
    points = list(points) if points[0][0] == 0 else [(0, points[0][1]), *points]
    stops = [point[0] for point in points[1:]] + [len(sizes)]
    kept = [points[0]]
    for before, point, stop in zip(points, points[1:], stops[1:], strict=False):
        if point[1] < before[1] or sum(sizes[kept[-1][0] : stop]) > most:
            kept.append(point)
    return kept


pointed = st.lists(st.integers(1, 6), min_size=1, max_size=9).flatmap(
    lambda sizes: st.tuples(
        st.just(sizes),
        st.dictionaries(st.integers(0, len(sizes) - 1), st.integers(1, 4)).map(lambda found: sorted(found.items())),
        st.integers(1, 20),
    )
)


@given(pointed)
@examples(100)
def test_joining_is_that_of_a_slow_reading(case):
    sizes, points, most = case
    assert merge_runs(line(*sizes), points, most, words) == slow_joined(sizes, points, most)


@given(pointed)
@examples(60)
def test_joined_parts_make_valid_trees_with_fewer_leaves(case):
    sizes, points, most = case
    text = line(*sizes)
    merged = tree_from_points(text, merge_runs(text, points, most, words), "doc")
    plain = tree_from_points(text, points, "doc")
    assert len(merged.leaves) <= len(plain.leaves)
    assert {int(start) for start in merged.start[merged.leaves]} <= {int(start) for start in plain.start[plain.leaves]}
    assert merge_runs(text, points, 10**9, words) == slow_joined(sizes, points, 10**9)


@given(pointed, st.sampled_from([None, 1, 2]), st.sampled_from([None, 0, 5]))
@examples(60)
def test_trees_under_any_points_are_whole_and_keep_the_size(case, cap, merge_tokens):
    sizes, points, most = case
    document = Document("doc", line(*sizes).text)
    config = hierarchy(most, level_cap=cap, merge_tokens=merge_tokens)
    tree = make_tree_builder(config, words, predict=lambda texts: [points for _ in texts])(document)
    assert obeys(fields_of(tree), document.text)
    assert all(words(document.text[slice(*tree.span(leaf))]) <= most for leaf in tree.leaves.tolist())
    assert cap is None or int(tree.level.max()) <= cap + 1  # one more where a leaf was cut
