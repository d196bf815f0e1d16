import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.measures.evidence_scores import (
    FoundScore,
    belonging,
    cut_long,
    evidence_scores,
    index_sentences,
    make_sentence_finders,
    touched,
)
from qrag_jax.types import InputError

TEXT = "One two. Three four five. Six."
SENTENCES = ((0, 8), (9, 25), (26, 30))  # 7, 14 and 4 characters that are not blank


def of(*numbers, document="d"):
    return frozenset((document, number) for number in numbers)


# --- which sentences a chunk holds


def test_more_than_half_of_the_characters_by_hand():
    index = index_sentences(TEXT, SENTENCES)
    assert belonging([(0, 30)], index) == [0, 1, 2]
    assert belonging([(0, 8)], index) == [0]
    assert belonging([(0, 5)], index) == [0]  # "One t": 4 of 7
    assert belonging([(0, 4)], index) == []  # "One ": 3 of 7
    assert belonging([(4, 17)], index) == [0]  # "two." is 4 of 7, "Three fo" 7 of 14 is not more than half
    assert belonging([(4, 18)], index) == [0, 1]
    assert belonging([(9, 12), (16, 25)], index) == [1]  # "Thr" and "our five.": 11 of 14 together
    assert belonging([(9, 12), (26, 30)], index) == [2]
    assert belonging([(8, 9)], index) == []
    assert index.sizes.tolist() == [7, 14, 4]


def test_finders_tell_the_sentences_of_each_document():
    held, evident = make_sentence_finders({"d": TEXT, "e": "x" * 400}, {"d": SENTENCES, "e": ((0, 400),)})
    assert held("d", ((4, 17),)) == of(0) and evident("d", ((4, 17),)) == of(0, 1)
    assert held("e", ((0, 400),)) == of(0, 1, document="e")  # a long one is cut


def test_blank_space_does_not_count():
    """8 blanks and 2 letters in the chunk are less than 3 letters outside of it."""
    index = index_sentences("a        b ccc.", ((0, 15),))
    assert belonging([(0, 10)], index) == []
    assert belonging([(10, 15)], index) == [0]


def test_evidence_touches_sentences_by_hand():
    index = index_sentences(TEXT, SENTENCES)
    assert touched([(7, 10)], index) == [0, 1]  # "." and "T"
    assert touched([(8, 10)], index) == [1]  # " T": the blank is of no sentence
    assert touched([(8, 9)], index) == []
    assert touched([(26, 27), (0, 1), (0, 5)], index) == [0, 2]  # in any order, overlapping
    inside_blank = index_sentences("a  b. c", ((0, 5), (6, 7)))
    assert touched([(1, 3)], inside_blank) == []  # blanks inside a sentence hold nothing


def test_sentences_need_not_cover_the_text():
    index = index_sentences(TEXT, ((9, 25),))
    assert belonging([(0, 8)], index) == belonging([(26, 30)], index) == touched([(0, 8), (26, 30)], index) == []
    assert belonging([(0, 30)], index) == [0]


letters = st.text(st.sampled_from("ab  \n"), min_size=4, max_size=40).filter(str.strip)


@st.composite
def cut_texts(draw):
    """A text, its sentences between some cuts, and chunks between others, which cover it without overlap."""
    text = draw(letters)
    cuts = [sorted(draw(st.sets(st.integers(1, len(text) - 1), max_size=6))) for _ in range(2)]
    pieces = [list(zip([0, *c], [*c, len(text)], strict=True)) for c in cuts]
    keep = [draw(st.booleans()) for _ in pieces[0]]
    sentences = tuple(piece for piece, kept in zip(pieces[0], keep, strict=True) if kept) or ((0, len(text)),)
    return text, sentences, pieces[1]


def solid(text, *spans):
    """Positions of characters that are not blank."""
    return {i for start, end in spans for i in range(start, end) if not text[i].isspace()}


@given(cut_texts(), st.randoms())
def test_against_sets_of_characters(case, rnd):
    text, sentences, pieces = case
    index = index_sentences(text, sentences)
    chunk = sorted(rnd.sample(pieces, rnd.randint(1, len(pieces))))
    in_chunk = solid(text, *chunk)
    held = [len(solid(text, sentence) & in_chunk) for sentence in sentences]
    sizes = [len(solid(text, sentence)) for sentence in sentences]
    assert belonging(chunk, index) == [
        i for i, (part, size) in enumerate(zip(held, sizes, strict=True)) if part > size / 2
    ]
    assert touched(chunk, index) == [i for i, part in enumerate(held) if part]


@given(cut_texts())
def test_a_sentence_belongs_to_one_of_disjoint_chunks_at_most(case):
    text, sentences, chunks = case
    index = index_sentences(text, sentences)
    found = [number for chunk in chunks for number in belonging([chunk], index)]
    assert len(found) == len(set(found))
    assert belonging([(0, len(text))], index) == touched([(0, len(text))], index)


# --- long sentences


def test_long_sentences_are_cut_at_lines_then_words_then_anywhere():
    row = "| " + "a" * 96 + " |"  # 100 characters
    table = "\n".join([row] * 4)
    assert cut_long(table, [(0, len(table))]) == [(0, 201), (202, 403)]  # two rows and the line end between
    words = " ".join(["abcdefghi"] * 61)  # 609 characters
    assert cut_long(words, [(0, 609)]) == [(0, 299), (300, 599), (600, 609)]
    endless = "x" * 650
    assert cut_long(f"Yes. {endless}", [(0, 4), (5, 655)]) == [(0, 4), (5, 305), (305, 605), (605, 655)]
    assert cut_long("y" * 300, [(0, 300)]) == [(0, 300)]


@given(st.lists(st.text("ab \n\r\u3000", max_size=200), max_size=8))
def test_parts_hold_all_that_the_sentence_holds(pieces):
    text = f"({'x' * 290}".join(["", *pieces]).strip()
    parts = cut_long(text, [(0, len(text))]) if text else []
    assert all(0 < end - start <= 300 for start, end in parts)
    assert "".join("".join(text[start:end] for start, end in parts).split()) == "".join(text.split())
    assert all(end <= after for (_, end), (after, _) in zip(parts, parts[1:], strict=False))


def test_all_thirds_of_a_long_sentence_are_all_of_it():
    text = ("word " * 150).strip()
    index = index_sentences(text, cut_long(text, [(0, len(text))]))
    thirds = [(0, 250), (250, 500), (500, len(text))]
    held = [frozenset(("d", number) for number in belonging([third], index)) for third in thirds]
    gold = frozenset(("d", number) for number in touched([(0, len(text))], index))
    assert evidence_scores(held, gold, 3).recall == 1


# --- the measures


def test_measures_by_hand():
    """Chunks overlap in sentence 2; gold are 2, 3 and one of another document."""
    retrieved = [of(1, 2), of(2, 3, 4), of(7, document="e"), of()]
    gold = of(2, 3) | of(7, document="other")
    assert evidence_scores(retrieved, gold, 1) == FoundScore(1 / 3, 1 / 2, pytest.approx(0.4))
    assert evidence_scores(retrieved, gold, 2) == FoundScore(2 / 3, 2 / 5, pytest.approx(0.5))
    assert evidence_scores(retrieved, gold, 3) == FoundScore(2 / 3, 2 / 6, pytest.approx(4 / 9))
    # The last chunk holds no whole sentence, and is read all the same.
    assert evidence_scores(retrieved, gold, 4) == FoundScore(2 / 3, 2 / 7, pytest.approx(2 / 5))
    assert evidence_scores(retrieved, gold, 4) == evidence_scores(retrieved, gold, 9)
    assert evidence_scores(retrieved[:3], gold, 9) == evidence_scores(retrieved, gold, 3)


def test_overlap_costs_precision_and_never_recall():
    gold = of(0)
    assert evidence_scores([of(0), of(0)], gold, 1) == FoundScore(1.0, 1.0, 1.0)
    assert evidence_scores([of(0), of(0)], gold, 2) == FoundScore(1.0, 0.5, pytest.approx(2 / 3))


def test_no_sentence_retrieved_is_zero():
    assert evidence_scores([], of(1), 5) == evidence_scores([of()], of(1), 5) == FoundScore(0.0, 0.0, 0.0)


chunks = st.lists(st.frozensets(st.tuples(st.sampled_from("de"), st.integers(0, 5))), max_size=6)
golds = st.frozensets(st.tuples(st.sampled_from("de"), st.integers(0, 5)), min_size=1)


@given(chunks, golds, st.integers(1, 7))
def test_against_counting_sentence_by_sentence(retrieved, gold, k):
    score = evidence_scores(retrieved, gold, k)
    seen = [sentence for chunk in retrieved[:k] for sentence in (chunk or {None})]
    right = sum(sentence in seen for sentence in gold)
    assert score.recall == right / len(gold)
    assert score.precision == (right / len(seen) if seen else 0)
    assert score.f1 == pytest.approx(2 * right / (len(seen) + len(gold)))
    assert 0 <= score.precision <= 1 and 0 <= score.recall <= 1
    assert score.recall <= evidence_scores(retrieved, gold, k + 1).recall


def test_refusals():
    with pytest.raises(InputError, match="gold is empty"):
        evidence_scores([of(0)], of(), 1)
    with pytest.raises(InputError, match="the text is blank"):
        index_sentences("  ", ((0, 1),))
