import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score import rouge_scorer

from qrag_jax.chunking.text.words import plain_tokens
from qrag_jax.measures import answer_scores as rouge
from qrag_jax.measures.answer_scores import check_rouge, rouge_l
from qrag_jax.types import InputError, UsageError


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("police killed the gunman", "police kill the gunman", 3 / 4),
        ("the gunman kill police", "police kill the gunman", 2 / 4),  # `the gunman`: order counts
        ("the cat", "the black cat sat", 2 * (1 * 0.5) / 1.5),
        ("一只黑猫坐着", "黑猫坐着", 2 * (4 / 6) / (4 / 6 + 1)),
        ("Élan", "élan", 1),
        ("", "a cat", 0),
        ("...", "a cat", 0),
    ],
)
def test_scores_by_hand(answer, reference, expected):
    assert rouge_l(answer, [reference]) == pytest.approx(expected)


def test_the_best_reference_counts():
    assert rouge_l("a b c", ["x y", "a b", "b c a"]) == pytest.approx(4 / 5)


def slow_lcs(one, other):
    """Length of a longest common subsequence: all subsequences of the shorter one are tried."""
    if len(one) > len(other):
        one, other = other, one
    best = 0
    for mask in range(2 ** len(one)):
        part = [token for place, token in enumerate(one) if mask >> place & 1]
        rest = iter(other)
        if len(part) > best and all(token in rest for token in part):
            best = len(part)
    return best


_TEXTS = st.lists(st.sampled_from(["a", "b", "C", "c", "d", "ß", "猫", "-", "e2"]), max_size=7).map(" ".join)


@given(_TEXTS, _TEXTS)
def test_scores_are_those_of_a_slow_reading(answer, reference):
    said, right = plain_tokens(answer), plain_tokens(reference)
    if not right:
        with pytest.raises(InputError, match="holds no word"):
            rouge_l(answer, [reference])
        return
    common = slow_lcs(said, right)
    expected = 2 * common / (len(said) + len(right)) if common else 0.0
    assert rouge_l(answer, [reference]) == pytest.approx(expected)


@given(st.text(st.characters(max_codepoint=127), max_size=30), st.text(st.characters(max_codepoint=127), min_size=1))
def test_ascii_texts_have_the_scores_of_the_package_alone(answer, reference):
    own = rouge_scorer.RougeScorer(["rougeL"])
    if plain_tokens(reference):
        assert rouge_l(answer, [reference]) == pytest.approx(own.score(reference, answer)["rougeL"].fmeasure)


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(InputError, match="without reference answers"):
        rouge_l("a", [])
    with pytest.raises(InputError, match="reference answer '!!' holds no word"):
        rouge_l("a", ["a", "!!"])


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="rouge_score")

    rouge._scorer.cache_clear()
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UsageError, match=r"pip install 'qrag_jax\[eval\]'"):
        check_rouge()
    rouge._scorer.cache_clear()
