"""ERec by hand, beside a slow reading over words, and its relations."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.measures.evidence_recall import evidence_pieces, evidence_recall
from qrag_jax.types import InputError

_WORDS = st.lists(st.sampled_from(["the", "A", "key", "Key,", "is", "is.", "red", "-", "garden's", "x"]), max_size=7)
_TEXTS = _WORDS.map(" ".join)


def test_by_hand():
    """`key is red` has 10 characters, `it rained` 9: the articles and marks of either side do not count."""
    pieces = ["The key is red.", "It rained!"]
    assert evidence_recall(pieces, "a KEY is -- red, they said") == pytest.approx(10 / 19)
    assert evidence_recall(pieces, "It\n\nrained. Then: the key is the red.") == 1.0
    assert evidence_recall(pieces, "it rain ed") == 0.0
    assert evidence_recall(["key"], "keys monkey") == 0.0
    assert evidence_recall(["the key", "key", "..."], "key") == 1.0
    assert evidence_recall(["x y"], "") == 0.0


def test_scripts_without_blanks_are_compared_by_characters():
    """6 characters of the first piece, 5 of the second; letters that stand among them stay words."""
    pieces = ["我们去公园。", "明天下雨。"]
    assert evidence_recall(pieces, "今天天气很好。我们去公园。然后走了。") == pytest.approx(6 / 11)
    assert evidence_recall(pieces, "我们去公 园。\n\n明天下雨。不出门") == 1.0
    assert evidence_recall(["GPT模型"], "用GPT模型。") == 1.0 and evidence_recall(["PT模型"], "用GPT模型。") == 0.0


def slow(pieces, context):
    """Words in lists, every place tried."""

    def words(text):
        kept = "".join(character for character in text.lower() if character not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", kept).split()

    found = total = 0
    said = words(context)
    for piece in map(words, pieces):
        size = sum(map(len, piece)) + max(0, len(piece) - 1)
        total += size
        starts = range(len(said) - len(piece) + 1)
        found += size if piece and any(said[i : i + len(piece)] == piece for i in starts) else 0
    return found / total


@examples(200)
@given(st.lists(_TEXTS, min_size=1, max_size=4), _TEXTS, _TEXTS)
def test_equal_to_a_slow_reading_and_more_context_never_finds_less(pieces, context, more):
    pieces = [*pieces, "red key"]
    found = evidence_recall(pieces, context)
    assert found == pytest.approx(slow(pieces, context))
    assert found <= evidence_recall(pieces, f"{context}\n{more}") <= evidence_recall(pieces, f"{' '.join(pieces)}") == 1


def test_pieces_are_what_of_each_sentence_is_evidence():
    text = "One is. Two is here. Three is."
    sentences = [(0, 7), (8, 20), (21, 30)]
    assert evidence_pieces(text, sentences, [(0, 7)]) == ["One is."]
    assert evidence_pieces(text, sentences, [(4, 30)]) == ["is.", "Two is here.", "Three is."]
    assert evidence_pieces(text, sentences, [(12, 17), (8, 14), (7, 8)]) == ["Two is", "he"]
    long = "word " * 100
    pieces = evidence_pieces(long, [(0, 499)], [(0, 499)])
    assert len(pieces) == 2 and " ".join(pieces) == long.strip()


def test_evidence_without_a_word_is_refused():
    for pieces in ([], ["..."], ["the"]):
        with pytest.raises(InputError, match="evidence has no word"):
            evidence_recall(pieces, "x")


@pytest.mark.parametrize(
    ("piece", "context"),
    [
        ("Zo\u00eb's caf\u00e9", "It is Zoe\u0308's cafe\u0301."),  # accents joined to their letters, and apart
        ("Zoe\u0308's cafe\u0301", "It is Zo\u00eb's caf\u00e9."),
        ("key 42", "the \uff2b\uff45\uff59\u3000\uff14\uff12\uff01"),  # full width
        ("\u30ab\u30ae", "\uff76\uff77\uff9e\u3002"),  # half-width kana, whose voice mark is a character
        ("of\ufb01ce", "the office"),  # a ligature
    ],
)
def test_forms_of_unicode_do_not_count(piece, context):
    assert evidence_recall([piece], context) == 1.0
