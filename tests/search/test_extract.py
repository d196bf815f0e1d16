import pytest

from qrag_jax.search.context.pack import Passage
from qrag_jax.search.extract import extract
from qrag_jax.types import Document, UsageError


def passages_of(texts, ranks=None):
    """A document each, passages in their order; and the documents by id."""
    documents = {str(number): Document(str(number), text) for number, text in enumerate(texts)}
    ranks = ranks or range(1, len(texts) + 1)
    passages = [
        Passage(number, str(number - 1), ((0, len(text)),), text, 1, -float(rank), rank, 0)
        for number, (text, rank) in enumerate(zip(texts, ranks, strict=True), start=1)
    ]
    return passages, documents


def quoted(question, texts, ranks=None, **options):
    found = extract(question, *passages_of(texts, ranks), **options)
    return [quote.text for quote in found.quotes]


def test_the_best_sentence_is_quoted_with_its_place():
    passages, documents = passages_of(["No. Nothing.\nThe key hangs here.", "A door is open."])
    (quote,) = extract("Where does the key hang?", passages, documents).quotes
    assert (quote.text, str(quote.place)) == ("The key hangs here.", "0:2")
    assert documents["0"].text[quote.place.start : quote.place.end] == quote.text


def test_further_quotes_are_nearly_as_good():
    texts = ["key here.", "key there.", "a very long line in which the key stands among many other words.", "none."]
    assert quoted("key", texts) == ["key here.", "key there."]
    assert quoted("key", texts, num_quotes=1) == ["key here."]
    assert quoted("key", [text.replace("key", "the key") for text in texts], num_quotes=1) == ["the key here."]


def test_the_same_words_are_quoted_once():
    assert quoted("key", ["the\nkey", "the key", "key the"]) == ["the\nkey", "key the"]


def test_equal_scores_go_by_rank():
    assert quoted("key", ["the key", "a key", "my key"], ranks=(3, 1, 2)) == ["a key", "my key", "the key"]


def test_the_sentences_of_five_passages_are_looked_at():
    assert quoted("key", ["nothing"] * 5 + ["the key"]) == ["nothing"]
    assert quoted("key", ["nothing"] * 4 + ["the key"]) == ["the key"]


def test_a_question_that_shares_no_word_gets_one_quote():
    assert quoted("key", ["One. Two. Three."]) == ["One."]


def test_no_passage_has_no_quote():
    assert quoted("key", []) == []


def test_at_least_one_quote_is_asked_for():
    with pytest.raises(UsageError):
        quoted("key", ["key"], num_quotes=0)
