import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import corpus_of, count, documents, ranked, split_lines
from support.tiers import examples

from qrag_jax.search.context.pack import Budget, fill_context
from qrag_jax.search.context.widen import fill_widened, widen_context
from qrag_jax.types import Chunk, InputError, UsageError

TWO = documents("s0\n- s1\ns2 x\ns3\ns4 y z\ns5\n", "t0\nt1\n")
LINES = [chunk for document in TWO for chunk in split_lines(document)]
SENTENCES = [  # the marker of the list item is no part of its sentence, as in `qrag find`
    Chunk(c.id, c.document_id, ((c.spans[0][0] + 2 * (i == 1), c.spans[0][1]),), 1, 1) for i, c in enumerate(LINES)
]
CORPUS = corpus_of(TWO, SENTENCES)


def widened(ids, num_around, most=100, overhead=0):
    budget = Budget(most, count, overhead)
    context = fill_context(CORPUS, ranked(*ids), budget)
    return widen_context(CORPUS, context, budget, num_around)


def texts(context):
    return [passage.text for passage in context.passages]


def test_by_hand():
    assert texts(widened([3, 7], 0)) == ["s3", "t1"]
    assert texts(widened([3, 7], 1)) == ["s2 x\ns3\ns4 y z", "t0\nt1"]
    assert texts(widened([3, 7], 2)) == ["s1\ns2 x\ns3\ns4 y z\ns5", "t0\nt1"]
    assert texts(widened([3], 9)) == ["s0\n- s1\ns2 x\ns3\ns4 y z\ns5"]
    assert [p.spans for p in widened([3], 1).passages] == [((8, 22),)]


def test_passages_that_meet_become_one_and_keep_the_best_rank():
    context = widened([4, 2, 7], 1)
    assert texts(context) == ["s1\ns2 x\ns3\ns4 y z\ns5", "t0\nt1"]
    assert [(passage.rank, passage.score, passage.number) for passage in context.passages] == [(1, 1.0, 1), (3, 0.8, 2)]


def test_the_best_passage_is_widened_first_while_the_budget_holds():
    assert texts(widened([7, 2], 1, most=4)) == ["s2 x", "t0\nt1"]
    assert texts(widened([2, 7], 1, most=4)) == ["s1\ns2 x", "t1"]


def test_a_sentence_that_does_not_fit_does_not_stop_a_smaller_one():
    assert texts(widened([3, 7], 1, most=4)) == ["s2 x\ns3", "t1"]
    assert texts(widened([5, 7], 1, most=4)) == ["s5", "t0\nt1"]


def test_joining_gives_back_what_the_prompt_writes_around_a_passage():
    """Apart the picks take 2 + 4 and 1 + 4 tokens, which is all; as one they take 3 + 4, and leave room for more."""
    assert texts(widened([2, 3], 0, most=11, overhead=4)) == ["s2 x", "s3"]
    assert texts(widened([2, 3], 1, most=11, overhead=4)) == ["s2 x\ns3"]
    context = widened([2, 3], 2, most=11, overhead=4)
    assert texts(context) == ["s1\ns2 x\ns3\ns4 y z"] and context.num_tokens == 7 + 4


@examples(80)
@given(st.permutations(range(8)), st.integers(1, 3), st.integers(0, 4), st.integers(3, 40), st.integers(0, 3))
def test_what_every_widened_context_keeps(order, num_picks, num_around, extra, overhead):
    ids, by_id = order[:num_picks], {document.id: document.text for document in TWO}
    budget = Budget(extra + overhead, count, overhead)
    before = fill_context(CORPUS, ranked(*ids), budget)
    after = widen_context(CORPUS, before, budget, num_around)
    assert after.num_tokens == sum(count(p.text) + overhead for p in after.passages) <= budget.max_tokens
    assert after.num_left_out == before.num_left_out
    places = [(passage.document_id, *passage.spans[0]) for passage in after.passages]
    assert places == sorted(places)
    for (one, _, end), (other, start, _) in zip(places, places[1:], strict=False):
        assert one != other or end <= start
    for (document, start, end), passage in zip(places, after.passages, strict=True):
        assert by_id[document][start:end] == passage.text
    for pick in before.passages:
        (start, end), name = pick.spans[0], pick.document_id
        assert any(d == name and low <= start and end <= high for d, low, high in places)


def test_refusals():
    with pytest.raises(UsageError, match="num_around -1: must be at least 0"):
        widened([0], -1)
    several = [Chunk("i", "a.txt", ((0, 2), (5, 7)), 1, 2)]
    corpus = corpus_of(TWO, several)
    context = fill_context(corpus, ranked(0), Budget(9, count))
    with pytest.raises(InputError, match="a.txt: a passage of several spans cannot be widened"):
        widen_context(corpus, context, Budget(9, count), 1)


def test_leaves_are_taken_with_their_neighbours_by_hand():
    """s3 (1 word) and its neighbours s2 x and s4 y z are 6 words; t1 and t0 then fit into 8, s0 with s1 does not."""

    def fill(ids, most, around=1, **more):
        return fill_widened(CORPUS, ranked(*ids), Budget(most, count, **more), around)

    context = fill([3, 7, 0], 8)
    assert texts(context) == ["s2 x\ns3\ns4 y z", "t0\nt1"] and context.num_left_out == 1
    assert texts(fill([3, 7, 0], 4)) == ["s2 x\ns3", "t1"]  # s4 y z does not fit, nor does t0
    assert [(p.rank, p.score) for p in fill([4, 2, 7], 30).passages] == [(1, 1.0), (3, 0.8)]
    assert texts(fill([2], 30, 3)) == ["s0\n- s1\ns2 x\ns3\ns4 y z\ns5"]
    assert texts(fill([6], 30)) == ["t0\nt1"]  # no neighbour is in another document
    assert texts(fill([4], 2, cut_last=True)) == ["s4 y"]
    with pytest.raises(InputError, match="best passage has 3 tokens"):
        fill([4], 2)


@examples(80)
@given(st.permutations(range(8)), st.integers(1, 8), st.integers(0, 3), st.integers(3, 40), st.integers(0, 3))
def test_what_every_context_of_widened_leaves_keeps(order, num_picks, num_around, extra, overhead):
    """With no neighbours and nothing around, the plain fill but for leaves side by side; never over the budget."""
    ids, by_id = order[:num_picks], {document.id: document.text for document in TWO}
    budget = Budget(extra + overhead, count, overhead)
    context = fill_widened(CORPUS, ranked(*ids), budget, num_around)
    assert context.num_tokens == sum(count(p.text) + overhead for p in context.passages) <= budget.max_tokens
    places = [(passage.document_id, *passage.spans[0]) for passage in context.passages]
    for (one, _, end), (other, start, _) in zip(places, places[1:], strict=False):
        assert one != other or end < start
    for (document, start, end), passage in zip(places, context.passages, strict=True):
        assert by_id[document][start:end] == passage.text
    picks = [(SENTENCES[i].document_id, SENTENCES[i].spans[0][0]) for i in ids]
    inside = [any(d == name and low <= start < high for d, low, high in places) for name, start in picks]
    assert inside.count(False) == context.num_left_out and inside[0]
    if num_around == overhead == 0:
        plain = fill_context(CORPUS, ranked(*ids), budget)
        assert plain.num_left_out == len(ids) - len(plain.passages) >= context.num_left_out
        assert all(any(p.text in other.text for other in context.passages) for p in plain.passages)
