import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.chunking.text.words import bm25_tokens
from qrag_jax.search.sentences import best_sentences, make_place, passage_sentences, score_sentences
from qrag_jax.types import Chunk, Document, InputError

KEY = Document("key.md", "# The key\r\n\r\nThe key hangs here. Nobody knows.\r\n\r\n- A key, a key.\r\n- No door.\r\n")
WORDS = ["key", "door", "nobody"]


def embed(texts):
    """One component a word, and one that all texts share."""
    return np.array([[1, *(bm25_tokens(text).count(word) for word in WORDS)] for text in texts], np.float32)


def whole(document):
    return Chunk("c", document.id, ((0, len(document.text)),), 0, 1)


def texts_of(document, spans):
    return [document.text[start:end] for start, end in passage_sentences(document, spans)]


def score(question, passages, documents, embed=None):
    """Of every sentence by its text."""
    scored = score_sentences(question, passages, {document.id: document for document in documents}, embed)
    texts = {document.id: document.text for document in documents}
    return [
        {texts[passage.document_id][slice(*span)]: one for span, one in scores.items()}
        for passage, scores in zip(passages, scored, strict=True)
    ]


def test_what_a_passage_may_answer_with():
    text = (
        "---\ntitle: keys\n---\n# Keys\n\nOne. Two\nlines.\n\n***\n\n| a | b |\n|---|---|\n| c | d |\n\n"
        "<a id='x'></a>\n\n```sh\nrun me\n```\n\n- item one. More.\n- item two\n\n[k]: http://k\n"
    )
    assert texts_of(Document("a", text), [(0, len(text))]) == [
        *("One.", "Two\nlines.", "| c | d |", "run me", "- item one. More.", "- item two"),
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ["The gull flies high", "The tide runs low", "The mole stands by", "The winds all blow"],
        ["2024-01-01 INFO it starts", "2024-01-01 WARN disk 7 is full", "2024-01-02 INFO ends", "2024-01-03 INFO ends"],
        ["+-----+----+", "| K60 | 85 |", "+-----+----+", "| K61 | 80 |", "+-----+----+"],
    ],
)
def test_lines_of_poems_logs_and_grids_answer_alone(lines):
    document = Document("a.txt", "\n".join(lines))
    assert texts_of(document, [(0, len(document.text))]) == lines


def test_what_says_nothing_is_taken_where_nothing_else_is_there():
    document = Document("a", "# Keys\n\n---\n\n```\n```\n")
    assert texts_of(document, [(0, len(document.text))]) == ["# Keys", "---", "```", "```"]


def test_sentences_of_spans_stay_within_them():
    document = Document("a", "One is here. Two is there. Three is gone.")
    assert texts_of(document, [(4, 12), (13, 22)]) == ["is here.", "Two is th"]


def test_words_by_hand():
    (found,) = score("key?", [whole(KEY)], [KEY])
    # Sentences of 4, 2, 4 and 2 words: 1.5 * (.25 + .75 * 4 / 3) = 1.875. Of one word rarity and bound are the same.
    expected = [1 / (1 + 1.875), 0, 2 / (2 + 1.875), 0]
    assert list(found) == ["The key hangs here.", "Nobody knows.", "- A key, a key.", "- No door."]
    np.testing.assert_allclose(list(found.values()), expected, atol=1e-9)


def test_vectors_and_words_by_hand():
    (found,) = score("key?", [whole(KEY)], [KEY], embed)
    (words,) = score("key?", [whole(KEY)], [KEY])
    near = [1, 0.5, 3 / 10**0.5, 0.5]  # (1, 1) with (1, 1), (1, 0, 0, 1), (1, 2), (1, 0, 1)
    expected = [0.5 * cosine + 0.5 * by_words for cosine, by_words in zip(near, words.values(), strict=True)]
    np.testing.assert_allclose(list(found.values()), expected, atol=1e-7)


@examples(40)
@given(st.integers(0, 10_000))
def test_scores_equal_a_slow_loop(seed):
    rng = np.random.default_rng(seed)
    lines = [" ".join(rng.choice(["key", "door", "nobody", "here"], rng.integers(1, 6))) + "." for _ in range(6)]
    documents = [Document("a", "\n\n".join(lines[:4])), Document("b", "\n\n".join(lines[4:]))]
    question = " ".join(rng.choice(["key", "door", "nowhere"], 3))
    found = score(question, [whole(document) for document in documents], documents, embed)
    counts = [Counter(bm25_tokens(line)) for line in lines]
    mean = np.mean([sum(count.values()) for count in counts])
    asked = embed([question])[0]
    for line, count in zip(lines, counts, strict=True):
        words = bound = 0.0
        for word in bm25_tokens(question):
            num_with = sum(word in other for other in counts)
            rarity = np.log(1 + (6 - num_with + 0.5) / (num_with + 0.5))
            bound += rarity
            length = 0.25 + 0.75 * sum(count.values()) / mean
            words += rarity * count[word] / (count[word] + 1.5 * length)
        vector = embed([line])[0]
        cosine = vector @ asked / np.linalg.norm(vector) / np.linalg.norm(asked)
        assert (found[0] | found[1])[line] == pytest.approx(0.5 * cosine + 0.5 * words / bound, abs=1e-6)


@pytest.mark.parametrize("embedder", [None, embed])
def test_the_best_sentence_and_its_place(embedder):
    first, second = (Chunk("c", "key.md", (span,), 1, 1) for span in ((13, 46), (0, len(KEY.text))))
    one, other = best_sentences("Where is the key?", [first, second], {"key.md": KEY}, embedder)
    assert (one.text, one.place.line, str(one.place)) == ("The key hangs here.", 3, "key.md:3")
    assert other.place == one.place and other.score == one.score  # one sentence, once counted
    (door,) = best_sentences("door", [second], {"key.md": KEY}, embedder)
    assert (door.text, door.place.line) == ("- No door.", 6)


def test_lines_and_pages():
    text = "a\r\nb\rc\nd"
    places = [make_place(Document("a", text, {"pages": [0, 5]}), (at, at + 1)) for at in (0, 3, 5, 7)]
    assert [(place.line, place.page) for place in places] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert make_place(Document("a", text), (3, 4)).page is None


@pytest.mark.parametrize("embedder", [None, embed])
def test_equal_scores_give_the_first(embedder):
    document = Document("a", "Here it is. There it is. Here it is.")
    for question in ("it", "nothing shared"):
        (found,) = best_sentences(question, [whole(document)], {"a": document}, embedder)
        assert found.place.start == 0


def test_equal_texts_are_embedded_once():
    seen = []

    def listening(texts):
        seen.extend(texts)
        return embed(texts)

    document = Document("a", "Here it is. There it is. Here it is.")
    best_sentences("it", [whole(document)], {"a": document}, listening)
    assert sorted(seen) == ["Here it is.", "There it is.", "it"]


def test_no_passage_has_no_sentence():
    assert best_sentences("key", [], {}) == []


def test_vectors_that_are_no_numbers():
    with pytest.raises(InputError):
        best_sentences("key", [whole(KEY)], {"key.md": KEY}, lambda texts: np.full((len(texts), 2), np.nan))


TEXT = st.text(st.sampled_from("ab.!\r\n #-|`>\u3000\ud800é1*"), min_size=1, max_size=60)


@examples(200)
@given(TEXT, st.data())
def test_a_sentence_is_the_document_and_lies_in_its_passage(text, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), min_size=2, max_size=4)))
    spans = tuple(zip(cuts[::2], cuts[1::2], strict=False))
    document = Document("a", text)
    found = passage_sentences(document, spans)
    assert found and found == sorted(found)
    assert all(any(begin <= start < end <= stop for begin, stop in spans) for start, end in found)
    (best,) = best_sentences("a b", [Chunk("c", "a", spans, 0, 1)], {"a": document})
    place = best.place
    assert best.text == text[place.start : place.end] and (place.start, place.end) in found
    assert place.line == 1 + sum(end.end() <= place.start for end in re.finditer(r"\r\n?|\n", text))
