"""Auto-Merge by hand, beside a slow reading of its algorithm, and what every merged context keeps."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import count, documents, lines_corpus, ranked, split_lines
from support.tiers import examples
from support.trees import cases

from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.tree.build import tree_from_points
from qrag_jax.search.answer import find_passages, make_fill
from qrag_jax.search.context.auto_merge import MergeRules, merge_context
from qrag_jax.search.context.pack import Budget
from qrag_jax.search.corpus import Corpus, tree_corpus
from qrag_jax.types import Document, InputError, UsageError


def pointed_corpus(*texts_and_points):
    """Trees whose leaves are the lines of a text; a line without a point belongs to the part above."""
    found, trees = documents(*(text for text, _ in texts_and_points)), []
    for document, (_, points) in zip(found, texts_and_points, strict=True):
        lines = tuple(chunk.spans[0] for chunk in split_lines(document))
        trees.append(tree_from_points(SentenceText(document.text, lines), points, document.id))
    return tree_corpus(found, trees, count)


# a.txt: root 0, section 1 (leaves 2, 3, 4: 2, 3, 1 words), section 5 (leaves 6, 7: 4, 2); b.txt: root 8, leaves 9, 10.
TWO = pointed_corpus(
    ("a b\nc d e\nf\ng h i j\nk l\n", [(0, 1), (0, 2), (1, 2), (2, 2), (3, 1), (3, 2), (4, 2)]),
    ("m n\no\n", [(0, 1), (1, 1)]),
)


def merged(ids, most, rules=None, overhead=0, corpus=TWO):
    return merge_context(corpus, ranked(*ids, scores=np.linspace(1, 0, len(ids))), Budget(most, count, overhead), rules)


def nodes(context):
    return [passage.node for passage in context.passages]


def test_the_tree_of_the_examples():
    assert TWO.leaves.tolist() == [2, 3, 4, 6, 7, 9, 10]
    assert [node.num_tokens for node in TWO.nodes] == [12, 6, 2, 3, 1, 6, 4, 2, 3, 2, 1]


def test_by_hand():
    """3 and 4 are 4 of the 6 words of section 1, of which (1 + 4 / 12) / 3 = .44 is asked, and 2 words are missing."""
    assert nodes(merged([3, 4], 12)) == [1]
    assert nodes(merged([3, 9], 12)) == [3, 9]
    context = merged([9, 4, 6, 3, 7], 13)
    assert nodes(context) == [1, 6, 9]
    assert [(p.rank, p.score, p.num_tokens) for p in context.passages] == [(2, 0.75, 6), (3, 0.5, 4), (1, 1.0, 2)]
    assert (context.num_tokens, context.max_tokens, context.num_left_out) == (12, 13, 1)
    assert context.passages[0].text == "a b\nc d e\nf" and context.passages[0].spans == ((0, 11),)


def test_a_section_that_took_its_place_is_a_child_that_is_retrieved():
    """Section 1, then leaf 6: one direct child of the root and one leaf, so only with 7 the root has two."""
    assert nodes(merged([2, 3, 6], 20)) == [1, 6]
    assert nodes(merged([2, 3, 6, 7], 20)) == [0]
    assert nodes(merged([2, 6, 3, 7], 13)) == [0]
    assert nodes(merged([2, 6, 3, 7], 12)) == [1, 6, 7]  # full: nothing is merged any more


def test_each_condition_alone():
    """Leaves 4 and 2 are half of section 1, 4 alone a sixth; what is missing of the section is 3 words."""
    only = {
        "siblings": MergeRules(share=False, room=False),
        "share": MergeRules(siblings=False, room=False),
        "room": MergeRules(siblings=False, share=False),
    }
    assert nodes(merged([4, 2], 6)) == [1]  # (1 + 3 / 6) / 3 is a half, and there is room for 3 words
    assert nodes(merged([4, 2], 5)) == nodes(merged([4, 2], 4)) == [2, 4]
    assert nodes(merged([4, 2], 5, only["siblings"])) == [1]  # cut at 5 words
    assert nodes(merged([4], 7)) == [4]
    assert nodes(merged([4], 7, only["room"])) == [1]
    assert nodes(merged([4], 5, only["room"])) == [4]
    assert nodes(merged([3], 10, only["share"])) == [1]  # a half, .43 is asked; then a half, and .53
    assert nodes(merged([4, 2], 12, only["siblings"])) == [1]


def test_theta_is_a_third_of_an_empty_context_and_two_thirds_of_a_full_one():
    """A section of 12 leaves of a word: more than 4 of them at first, 8 where the budget is nearly used up."""
    lines = "\n".join("x" * 12)
    one = pointed_corpus((lines, [(i, 1) for i in range(12)]), ("y " * 87 + "\nz", [(0, 1), (1, 1)]))
    leaves = one.leaves.tolist()

    def need(ids, most, theta=1 / 3):
        rules = MergeRules(theta=theta)
        return next(n for n in range(1, 13) if 0 in nodes(merged(ids + leaves[:n], most, rules, corpus=one)))

    assert need([], 10_000) == 5  # just above a third: 4 are a third, and the context is not empty
    assert need([leaves[12]], 100) == 8  # 87 + 7 of 100: .647 of 12 are 7.8
    assert need([], 10_000, theta=0.0) == 2 and need([], 10_000, theta=0.5) == 7
    assert 0 not in nodes(merged(leaves[:12], 10_000, MergeRules(theta=1.0), corpus=one))  # more than all of it


def test_what_the_prompt_writes_around_a_passage_counts_and_merging_gives_it_back():
    """Leaves 3 and 4 take 4 words and 2 fences of 3; the section 6 and 3: one less."""
    assert nodes(merged([3, 4], 10, overhead=3)) == [3, 4]  # full
    context = merged([3, 4, 9], 14, overhead=3)
    assert nodes(context) == [1, 9] and context.num_tokens == 6 + 3 + 2 + 3 == 14


def test_rank_order_gives_a_section_the_place_of_its_best_leaf():
    context = merged([4, 9, 3], 12, MergeRules(order="rank"))
    assert nodes(context) == [1, 9] and [p.number for p in context.passages] == [1, 2]
    assert nodes(merged([9, 4, 3], 12, MergeRules(order="rank"))) == [9, 1]
    assert nodes(merged([9, 4, 3], 12)) == [1, 9]


def test_without_room_a_section_is_cut_at_the_budget():
    context = merged([3, 4], 5, MergeRules(room=False))
    assert [passage.text for passage in context.passages] == ["a b\nc d e"] and context.num_tokens == 5


def test_the_last_leaf_is_cut_where_the_budget_says_so():
    budget = Budget(5, count, cut_last=True)
    context = merge_context(TWO, ranked(9, 6, 2), budget)
    assert [(p.text, p.num_tokens) for p in context.passages] == [("g h i", 3), ("m n", 2)]
    assert context.num_left_out == 1
    assert merge_context(TWO, ranked(6), Budget(1, count, 1, cut_last=True)).passages == ()


def test_most_passages_counts_leaves():
    budget = Budget(50, count, max_passages=2)
    assert nodes(merge_context(TWO, ranked(3, 4, 6, 7), budget)) == [1]


# --- the algorithm read slowly ---------------------------------------------------------------------------------------


def slow(corpus: Corpus, ids: list[int], most: int, overhead: int, rules: MergeRules) -> list[int] | None:
    """Algorithm 2 with sets of characters; nodes in rank order, None where the best leaf does not fit."""

    def inside(node):
        name, (span,) = corpus.nodes[node].document_id, corpus.nodes[node].spans
        return {(name, place) for place in range(*span)}

    def parent(node):
        around = [n for n in range(len(corpus)) if n < node and inside(node) <= inside(n)]
        return max(around, default=None)

    length = lambda node: count_characters(corpus.texts[node])  # noqa: E731
    taken: list[int] = []
    used = lambda: sum(length(node) + overhead for node in taken)  # noqa: E731
    for leaf in ids:
        if any(inside(leaf) <= inside(node) for node in taken):
            continue
        if used() + length(leaf) + overhead > most:
            return taken or None
        taken.append(leaf)
        p = parent(leaf)
        while p is not None:
            children = [node for node in taken if parent(node) == p]
            under = [node for node in taken if inside(node) <= inside(p)]
            share = sum(length(node) for node in children)
            enough = share >= rules.theta * (1 + used() / most) * length(p)
            growth = length(p) + overhead - sum(length(node) + overhead for node in under)
            fits = growth <= most - used()
            holds = (len(children) >= 2 or not rules.siblings) and (enough or not rules.share)
            if used() >= most or not holds or not (fits or not rules.room):
                break
            place = taken.index(under[0])
            taken = [node for node in taken if node not in under]
            taken.insert(place, p)
            p = parent(p)
    return taken


def count_characters(text: str) -> int:
    return len(text)


@st.composite
def rankings(draw):
    """Documents with trees, an order of their leaves, a share of these, a budget, what is written around, rules."""
    found = draw(st.lists(cases(10), min_size=1, max_size=3))
    order = draw(st.permutations(range(sum(len(tree.leaves) for _, tree in found))))
    total = sum(len(document.text) for document, _ in found)
    rules = MergeRules(draw(st.booleans()), draw(st.booleans()), True, draw(st.sampled_from([0.0, 0.25, 1 / 3, 1.0])))
    most = draw(st.integers(1, total + 10 * len(order)))
    return found, order[: draw(st.integers(1, len(order)))], most, draw(st.integers(0, 3)), rules


def corpus_of_case(found, order):
    """The corpus, and the nodes that are ranked."""
    texts = [Document(f"{i}.txt", document.text) for i, (document, _) in enumerate(found)]
    trees = [replace(tree, document_id=text.id) for text, (_, tree) in zip(texts, found, strict=True)]
    corpus = tree_corpus(texts, trees, count_characters)
    return corpus, corpus.leaves[order].tolist()


@examples(600)
@given(rankings(), st.booleans())
def test_equal_to_the_slow_reading(case, is_counted):
    found, order, most, overhead, rules = case
    corpus, ids = corpus_of_case(found, order)
    expected = slow(corpus, ids, most, overhead, rules)
    budget = Budget(most, count_characters if is_counted else None, overhead)
    in_rank_order = MergeRules(rules.siblings, rules.share, rules.room, rules.theta, "rank")
    if expected is None:
        with pytest.raises(InputError, match="best passage has"):
            merge_context(corpus, ranked(*ids), budget, rules)
        return
    scores = np.linspace(1, 0, len(ids))
    assert nodes(merge_context(corpus, ranked(*ids, scores=scores), budget, in_rank_order)) == expected
    assert nodes(merge_context(corpus, ranked(*ids, scores=scores), budget, rules)) == sorted(expected)


def characters_of(context):
    """(document, place) of every character of the passages, which are checked to hold none twice."""
    seen = [(p.document_id, place) for p in context.passages for place in range(*p.spans[0])]
    assert len(seen) == len(set(seen))
    return set(seen)


@examples(300)
@given(rankings(), st.booleans(), st.booleans())
def test_what_every_merged_context_keeps(case, has_room, cuts):
    """Within the budget, no character twice, texts as they stand."""
    found, order, most, overhead, rules = case
    corpus, ids = corpus_of_case(found, order)
    if not cuts and corpus.nodes[ids[0]].num_tokens + overhead > most:
        return
    scores, budget = np.linspace(1, 0, len(ids)), Budget(most, count_characters, overhead, cut_last=cuts)
    context = merge_context(corpus, ranked(*ids, scores=scores), budget, replace(rules, room=has_room))
    assert context.num_tokens == sum(len(p.text) + overhead for p in context.passages) <= most
    characters_of(context)
    for passage in context.passages:
        assert corpus.by_id[passage.document_id].text[slice(*passage.spans[0])] == passage.text


@examples(200)
@given(rankings())
def test_no_leaf_that_was_retrieved_is_lost(case):
    """Each further leaf keeps all that was there, and is there itself, unless it goes beyond the budget."""
    found, order, most, overhead, rules = case
    corpus, ids = corpus_of_case(found, order)
    before, used = set(), 0
    for number, leaf in enumerate(ids, start=1):
        own = {(corpus.nodes[leaf].document_id, place) for place in range(*corpus.nodes[leaf].spans[0])}
        fits = own <= before or used + corpus.nodes[leaf].num_tokens + overhead <= most
        if not fits:
            break
        scores = np.linspace(1, 0, number)
        budget = Budget(most, count_characters, overhead)
        context = merge_context(corpus, ranked(*ids[:number], scores=scores), budget, rules)
        assert before | own <= characters_of(context) and context.num_left_out == 0
        before, used = characters_of(context), context.num_tokens


def test_tokens_of_a_node_are_counted_once():
    asked: list[str] = []

    def counting(text):
        asked.append(text)
        return count(text)

    merge_context(TWO, ranked(*TWO.leaves.tolist(), scores=np.linspace(1, 0, 7)), Budget(15, counting))
    assert len(asked) == len(set(asked)) > 7


def test_a_fill_merges_where_it_is_told_to():
    fill = make_fill(Budget(12, count), merge=MergeRules())
    found = find_passages("why", TWO, lambda question, corpus, top_k: ranked(3, 4), fill=fill)
    assert [citation.text for citation in found.given] == ["a b\nc d e\nf"]
    with pytest.raises(UsageError, match="cannot be both widened by 2 sentences and merged"):
        make_fill(Budget(12, count), 2, MergeRules())


def test_refusals():
    with pytest.raises(UsageError, match="theta 1.5: must lie in"):
        MergeRules(theta=1.5)
    with pytest.raises(UsageError, match="theta nan"):
        MergeRules(theta=float("nan"))
    with pytest.raises(
        InputError,
        match="best passage has 3 tokens, including citation marks, but the context has room for only 2; allow more",
    ):
        merged([3], 2)
    with pytest.raises(InputError, match=r"its documents have no trees .* --strategy tree"):
        merge_context(lines_corpus("a\nb"), ranked(0), Budget(5, count))
    with pytest.raises(InputError, match="node 11: not in the 11 nodes and 2 trees"):
        merged([2, 11], 12)
    with pytest.raises(InputError, match=r"node 5 of a.txt: has children; rank only leaves"):
        merged([2, 5], 12)
    with pytest.raises(UsageError, match="budget: .* has no `count`"):
        merge_context(TWO, ranked(9, 6), Budget(5, cut_last=True))
