from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.passages import count
from support.study import Counts
from support.tiers import examples

from qrag_jax.data.stories.story_notes import read_stories
from qrag_jax.names import NOTE_MODES
from qrag_jax.search.corpus import Corpus, embed_corpus
from qrag_jax.search.hybrid import make_single_step, rank_dense, rank_hybrid
from qrag_jax.search.note_search import (
    INSERTING,
    NoteSearch,
    best_of_scores,
    make_noted_retrieve,
    note_corpus,
    rank_noted,
    rank_noted_words,
    select_notes,
    walk_order,
)
from qrag_jax.types import Chunk, Document, InputError, Note, UsageError

WORDS = ["film", "lee", "rome", "rain", "key"]
TEXTS = ["The film was made by Lee.", "She lives in Rome. Lee has a key.", "Rain in Rome. Rain. Rain.", "Key and key."]
QUESTION = "Where is the film key?"


def embed(texts):
    """One component a word."""
    rows = [[text.lower().replace(".", "").split().count(word) for word in WORDS] for text in texts]
    return np.array(rows, np.float32).reshape(-1, len(WORDS)) + 1e-3


class Cutting:
    """Reads so many words of a text."""

    fingerprint = ""

    def __init__(self, window):
        self.window, self.counts = window, Counts()

    def __call__(self, texts, progress=None):
        words = [text.split() for text in texts]
        cut = sum(len(some) > self.window for some in words)
        self.counts = replace(self.counts, num_texts_cut=self.counts.num_texts_cut + cut)
        return embed([" ".join(some[: self.window]) for some in words])


class Counting:
    def __init__(self):
        self.texts = []

    def __call__(self, texts):
        self.texts += texts
        return embed(texts)


def corpus_of(texts=TEXTS):
    documents = tuple(Document(str(i), text) for i, text in enumerate(texts))
    nodes = tuple(Chunk(f"c{i}", str(i), ((0, len(text)),), 1, count(text)) for i, text in enumerate(texts))
    return embed_corpus(Corpus(documents, nodes), embed)


def note(asking, answering, source, evidence, question="", answer=""):
    start, begin = TEXTS[asking].index(source), TEXTS[answering].index(evidence)
    return Note(
        f"c{asking}",
        f"c{answering}",
        f"{question} {answer}" if question else source,
        (start, start + len(source)),
        (begin, begin + len(evidence)),
        evidence,
        "mentions",
        question,
        answer,
    )


FILM = note(0, 1, "The film was made by Lee.", "Lee has a key.")
RAIN = note(2, 1, "Rain in Rome.", "She lives in Rome.")


def noted(*notes):
    return note_corpus(corpus_of(), notes, embed, count)


def ranks(question, corpus, embedder=embed, **config):
    return rank_noted(question, corpus, embedder, NoteSearch(**config)).ids.tolist()


def test_a_note_finds_its_chunk():
    corpus = noted(FILM)
    assert ranks("film", corpus, mode="none") == [0, 1, 2, 3]
    found = rank_noted("film", corpus, embed)  # best_of
    assert found.ids.tolist()[:2] == [0, 1] and found.scores[0] == found.scores[1]
    assert rank_noted("film", corpus, embed, top_k=1).ids.tolist() == [0]


def test_without_notes_every_mode_is_dense():
    corpus = noted()
    expected = rank_dense(QUESTION, corpus.corpus, embed).ids.tolist()
    for mode in NOTE_MODES:
        assert ranks(QUESTION, corpus, mode=mode) == expected


def test_the_inserted_texts_by_hand():
    corpus = noted(FILM, RAIN)
    both = {1: "She lives in Rome. (Rain in Rome.) Lee has a key. (The film was made by Lee.)"}
    assert corpus.texts_with([0, 1], 2.0) == both == corpus.texts_with([1, 0], 2.0)
    assert corpus.texts_with([0, 1], 1.0) == {1: "She lives in Rome. Lee has a key. (The film was made by Lee.)"}
    assert corpus.texts_with([1, 0], 1.0) == {1: "She lives in Rome. (Rain in Rome.) Lee has a key."}
    assert corpus.texts_with([0, 1], 0.1) == {} == corpus.texts_with([], 1.0)


def test_a_text_comes_into_a_chunk_once():
    again = replace(FILM, evidence=RAIN.evidence, quote=RAIN.quote)
    assert noted(FILM, again).texts_with([0, 1], 9.0) == {
        1: "She lives in Rome. Lee has a key. (The film was made by Lee.)"
    }


def test_words_of_a_text_that_a_chunk_gets_twice_count_once():
    again = replace(FILM, evidence=RAIN.evidence, quote=RAIN.quote)
    np.testing.assert_array_equal(noted(FILM, again).words.scores("film"), noted(FILM).words.scores("film"))


def test_only_chunks_that_got_a_note_are_embedded():
    corpus = noted(FILM, RAIN)
    spent = {}
    for mode in NOTE_MODES:
        embedder = Counting()
        ranks(QUESTION, corpus, embedder, mode=mode)
        ranks(QUESTION, corpus, embedder, mode=mode)
        spent[mode] = len(embedder.texts)
    assert spent == {"none": 2, "best_of": 2, "insert": 4, "all": 3, "random": 4, "walk": 2}


@pytest.mark.parametrize("mode", INSERTING)
def test_a_chunk_that_its_notes_take_beyond_the_window_is_warned_of(mode):
    length = count(TEXTS[1]) + count(FILM.text)
    assert ranks("film", noted(FILM), Cutting(length), mode=mode) == ranks("film", noted(FILM), mode=mode)
    with pytest.warns(UserWarning, match="exceed the encoder's window"):
        ranks("film", noted(FILM), Cutting(length - 1), mode=mode)
    assert ranks("film", noted(FILM), Cutting(1)) == ranks("film", noted(FILM))  # best_of embeds the question alone


def test_insert_counts_the_chunk_as_it_is_with_its_notes():
    corpus = noted(FILM)
    found = rank_noted("film", corpus, embed, NoteSearch("insert"))
    vectors = embed([TEXTS[0], f"{TEXTS[1]} ({TEXTS[0]})", *TEXTS[2:]])
    asked = embed(["film"])[0]
    cosines = vectors @ asked / np.linalg.norm(vectors, axis=1) / np.linalg.norm(asked)
    np.testing.assert_allclose(found.scores, sorted(cosines, reverse=True), atol=1e-6)
    np.testing.assert_allclose(rank_noted("film", corpus, embed, NoteSearch("all")).scores, found.scores)


def test_random_takes_as_many_and_others_by_seed_and_question():
    corpus = noted(FILM, RAIN, note(3, 2, "Key and key.", "Rain."), note(3, 0, "Key and key.", TEXTS[0]))
    taken = set()
    for seed in range(8):
        embedder = Counting()
        ranks("film", corpus, embedder, mode="random", num_notes=1, seed=seed)
        assert len(embedder.texts) == 2
        again = Counting()
        ranks("film", corpus, again, mode="random", num_notes=1, seed=seed)
        assert again.texts == embedder.texts
        taken.add(embedder.texts[1])
    assert len(taken) > 1


def test_walk_by_hand():
    asking, answering = np.array([2, 2, 0, 2]), np.array([0, 3, 1, 2])
    assert walk_order(np.array([2, 1, 3, 0]), asking, answering).tolist() == [2, 3, 1, 0]
    assert walk_order(np.array([1, 2, 3, 0]), asking, answering).tolist() == [1, 2, 3, 0]  # names none
    assert walk_order(np.array([], np.int64), asking, answering).tolist() == []
    assert ranks("film", noted(FILM), mode="walk") == [0, 1, 2, 3]


def test_selection_by_hand():
    scores, groups = np.array([0.1, 0.9, 0.5, 0.2, 0.5]), np.array([0, 1, 2, 1, 3])
    assert select_notes(scores, groups, 1).tolist() == [1, 3]  # all answers of the nearest question
    assert select_notes(scores, groups, 2).tolist() == [1, 3]
    assert select_notes(scores, groups, 3).tolist() == [1, 3, 2]  # the equal one behind it stays away
    assert select_notes(scores, groups, 9).tolist() == [1, 3, 2, 4, 0]
    assert select_notes(scores[:0], groups[:0], 2).tolist() == []


def test_answers_of_one_question_are_selected_together():
    question = "Who made the film?"
    asked = (note(0, 1, TEXTS[0], "Lee has a key.", question, "Lee."), note(0, 2, TEXTS[0], "Rain.", question, "Rain."))
    corpus = noted(*asked, RAIN)
    assert corpus.groups.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(corpus.keys[0], corpus.keys[1])
    assert (corpus.vectors[0] != corpus.vectors[1]).any()
    embedder = Counting()
    ranks("film", corpus, embedder, mode="insert", num_notes=1)
    assert embedder.texts[1:] == [
        f"She lives in Rome. Lee has a key. ({question} Lee.)",
        f"Rain in Rome. Rain. ({question} Rain.) Rain.",
    ]


def test_words_are_those_of_the_texts_with_notes():
    corpus = noted(FILM)
    plain = rank_noted("film", corpus, embed, NoteSearch("none", words_weight=0.5))
    hybrid = rank_hybrid("film", corpus.corpus, embed, weight=0.5)
    assert plain.ids.tolist() == hybrid.ids.tolist()
    np.testing.assert_allclose(plain.scores, hybrid.scores, atol=1e-6)
    assert corpus.words.scores("film")[1] > 0 == corpus.corpus.words.scores("film")[1]
    words_only = rank_noted("film", corpus, embed, NoteSearch("best_of", words_weight=1.0))
    assert words_only.ids.tolist() == [0, 1, 2, 3]


UNIT = st.floats(-1, 1, width=32)


@examples(100)
@given(st.data())
def test_best_of_is_brute_force(data):
    own = data.draw(arrays.arrays(np.float64, st.integers(1, 6), elements=UNIT))
    notes = data.draw(arrays.arrays(np.float64, st.integers(0, 8), elements=UNIT))
    answering = np.array([data.draw(st.integers(0, len(own) - 1)) for _ in notes], np.int64)
    found = best_of_scores(own, notes, answering)
    for chunk, score in enumerate(own):
        assert found[chunk] == max([score, *(n for n, at in zip(notes, answering, strict=True) if at == chunk)])
    asking = np.array([data.draw(st.integers(0, len(own) - 1)) for _ in notes], np.int64)
    capped = best_of_scores(own, notes, answering, asking)
    for chunk, score in enumerate(own):
        own_notes = [min(n, own[a]) for n, at, a in zip(notes, answering, asking, strict=True) if at == chunk]
        assert capped[chunk] == max([score, *own_notes])
    assert (own <= capped).all() and (capped <= found).all()
    assert capped.max() == own.max()  # no note leads where no chunk does


PEOPLE, PLACES = ("Mary", "John", "Sandra"), ("kitchen", "garden", "office")
FACTS = [f"{person} took the milk." for person in PEOPLE]
FACTS += [f"{person} went to the {place}." for person in PEOPLE for place in PLACES]


def test_a_note_that_counts_as_much_as_its_chunk_leaves_that_in_front():
    """The chunk that the note lifts stands before it in the corpus, and as high as it."""
    told = note(1, 0, "Lee has a key.", "The film was made by Lee.")
    ranked = rank_noted("Lee key", noted(told), embed)
    assert ranked.ids.tolist()[:2] == [1, 0] and ranked.scores[0] == ranked.scores[1]
    assert rank_noted("Lee key", noted(told), embed, top_k=1).ids.tolist() == [1]


@examples(50)
@given(st.data())
def test_the_first_of_best_of_is_the_first_without_notes(data):
    chosen = data.draw(
        st.lists(st.sampled_from([FILM, RAIN, note(1, 0, "Lee has a key.", "The film was made by Lee.")]))
    )
    question = " ".join(data.draw(st.lists(st.sampled_from(WORDS), min_size=1)))
    first, alone = (rank_noted(question, noted(*chosen), embed, NoteSearch(mode), 1) for mode in ("best_of", "none"))
    assert first.ids.tolist() == alone.ids.tolist() and first.scores.tolist() == alone.scores.tolist()


@pytest.mark.parametrize("question", ["Where is the milk?", "Who went to the office?", *FACTS])
def test_a_note_that_lies_does_not_beat_the_text(question):
    words = sorted({word.strip(".,?") for text in FACTS for word in text.split()})

    def by_words(texts):
        split = [text.replace(".", " ").replace(",", " ").replace("?", " ").split() for text in texts]
        return np.array([[row.count(word) for word in words] for row in split], np.float32) + 1e-3

    documents = (Document("story", " ".join(FACTS)),)
    ends = np.cumsum([len(text) + 1 for text in FACTS]) - 1
    spans = zip([0, *(ends[:-1] + 1).tolist()], ends.tolist(), strict=True)
    nodes = tuple(Chunk(f"c{i}", "story", (span,), 1, 4) for i, span in enumerate(spans))
    corpus = embed_corpus(Corpus(documents, nodes), by_words)
    lies = note_corpus(corpus, read_stories(documents, nodes, wrong_share=1.0).notes, by_words, count)
    assert len(lies.notes) == 9 and not any(note.answer[7:-1] in note.quote for note in lies.notes)

    own = rank_noted(question, lies, by_words, NoteSearch("none"))
    found = rank_noted(question, lies, by_words, NoteSearch("best_of"))
    by_text, by_notes = (dict(zip(one.ids.tolist(), one.scores, strict=True)) for one in (own, found))
    for chunk, score in by_notes.items():  # no chunk above the text that a note of it comes from
        told = [by_text[asking] for asking, at in zip(lies.asking, lies.answering, strict=True) if at == chunk]
        assert score <= max([by_text[chunk], *told])
    assert by_notes[own.ids[0]] == found.scores[0] == own.scores[0]  # what the text puts first stays there
    for mode in NOTE_MODES:
        rank_noted(question, lies, by_words, NoteSearch(mode))
    assert corpus.texts == tuple(FACTS)  # and what is read of it is its own


@pytest.mark.parametrize("mode", NOTE_MODES)
@pytest.mark.parametrize("words_weight", [0.0, 0.5])
def test_the_first_are_those_of_all(mode, words_weight):
    if mode == "walk" and words_weight:
        return
    corpus = noted(FILM, RAIN, note(3, 2, "Key and key.", "Rain."), note(1, 0, "Lee has a key.", TEXTS[0]))
    for question in ("film", "key of rome", "rain"):
        search = NoteSearch(mode, words_weight=words_weight)
        every = rank_noted(question, corpus, embed, search)
        for top_k in (1, 2, 3, 9):
            found = rank_noted(question, corpus, embed, search, top_k)
            assert found.ids.tolist() == every.first(top_k).ids.tolist()
            np.testing.assert_array_equal(found.scores, every.first(top_k).scores)


@examples(100)
@given(st.lists(st.integers(0, 3), max_size=8), st.integers(1, 9), st.data())
def test_selected_are_whole_questions_and_the_best(numbers, most, data):
    groups = np.array(numbers, np.int64)
    scores = np.array([data.draw(st.sampled_from([0.1, 0.2, 0.3])) for _ in numbers])
    chosen = select_notes(scores, groups, most)
    assert len(set(chosen.tolist())) == len(chosen) >= min(most, len(groups))
    taken = set(groups[chosen].tolist())
    assert sorted(chosen) == [i for i, group in enumerate(numbers) if group in taken]
    best = {group: scores[groups == group].max() for group in numbers}
    assert all(best[group] >= best[other] for group in taken for other in set(numbers) - taken)
    assert len(chosen) - np.count_nonzero(groups == groups[chosen[-1]]) < most if len(chosen) else True


def test_inserted_notes_keep_the_cap():
    for share in (0.2, 0.5, 1.0, 2.0):
        for leaf, text in noted(FILM, RAIN).texts_with([0, 1], share).items():
            assert count(text) - count(TEXTS[leaf]) <= share * count(TEXTS[leaf])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"answering": "c9"}, "note 0 .*: its answering chunk 'c9' is not a leaf of the corpus"),
        ({"asking": "c9"}, "its asking chunk 'c9' is not a leaf"),
        ({"evidence": (0, 99)}, r"\[0, 99\) is not in its answering chunk at"),
        ({"evidence": (4, 4)}, r"\[4, 4\) is not in its answering chunk"),
        ({"quote": "Lee has no key"}, "'1' has 'Lee has a key.' at .*, not 'Lee has no key'; the document has changed"),
        ({"text": "The film."}, "'0' has 'The film was made by Lee.' at .*, not 'The film.'"),
    ],
)
def test_a_note_that_does_not_prove_itself_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        noted(replace(FILM, **change))


@pytest.mark.parametrize(
    "config, message",
    [
        ({"mode": "best"}, "mode 'best': choose one of none, best_of"),
        ({"num_notes": 0}, "num_notes 0: at least 1"),
        ({"max_share": 0}, "max_share 0: must lie in"),
        ({"max_share": float("nan")}, "max_share nan"),
        ({"seed": -1}, "seed -1: at least 0"),
        ({"words_weight": 1.5}, "words_weight 1.5"),
        ({"mode": "walk", "words_weight": 0.5}, "walk gives no scores"),
    ],
)
def test_bad_settings_are_refused(config, message):
    with pytest.raises(UsageError, match=message):
        NoteSearch(**config)


def test_vectors_of_another_encoder_are_refused():
    def wider(texts):
        return np.ones((len(texts), 7), np.float32)

    with pytest.raises(InputError, match="its vector has 7 components, those of the corpus have 5"):
        rank_noted("film", noted(FILM), wider)
    with pytest.raises(InputError, match="notes: vectors of 7 components, those of the corpus have 5"):
        note_corpus(corpus_of(), [FILM], wider, count)
    with pytest.raises(InputError, match="2 token counts"):
        replace(noted(FILM), num_tokens=np.zeros(2, np.int64))


@pytest.mark.parametrize("name", ["hybrid", "dense", "bm25"])
@pytest.mark.parametrize("mode", ["best_of", "insert", "all", "random"])
def test_a_retriever_without_notes_gives_what_it_gives_alone(name, mode):
    empty = noted()
    retrieve, alone = make_noted_retrieve(name, empty, embed, mode), make_single_step(name, embed)
    for question in ("film", QUESTION, "nothing of it"):
        for top_k in (1, 2, None):
            found, expected = (search(question, empty.corpus, top_k) for search in (retrieve, alone))
            np.testing.assert_array_equal(found.ids, expected.ids)
            np.testing.assert_array_equal(found.scores, expected.scores)
            assert all(found.notes_of(node) == () for node in found.ids.tolist())


def test_a_retriever_is_that_of_its_corpus():
    with pytest.raises(UsageError, match="notes: belong to another corpus"):
        make_noted_retrieve("dense", noted(FILM), embed, "best_of")("film", corpus_of(), 1)
    with pytest.raises(UsageError, match="retriever hybrid: needs an embedder"):
        make_noted_retrieve("hybrid", noted(FILM), None, "best_of")


def test_a_ranking_says_which_notes_brought_a_chunk_in():
    corpus = noted(RAIN, FILM)
    found = rank_noted("film", corpus, embed)
    assert {node: found.notes_of(node) for node in found.ids.tolist()} == {0: (), 1: (FILM,), 2: (), 3: ()}
    assert found.first(2).notes_of(1) == (FILM,) and found.notes_of(9) == ()
    assert rank_noted("film", corpus, embed, NoteSearch("insert", num_notes=1)).notes_of(1) == (FILM,)
    assert rank_noted("film", corpus, embed, NoteSearch("all", max_share=2.0)).notes_of(1) == (RAIN, FILM)
    assert rank_noted("film", corpus, embed, NoteSearch("none")).notes_of(1) == ()
    assert rank_noted("key", corpus, embed).notes_of(1) == ()  # the text alone is nearer


def test_a_note_tells_by_words_that_its_chunk_has_not():
    corpus = noted(RAIN, FILM)
    assert rank_noted_words("film", corpus).ids.tolist() == [0, 1]
    assert rank_noted_words("film", corpus).notes_of(1) == (FILM,)
    assert rank_noted_words("Rain on a film made in Rome", corpus).notes_of(1) == (FILM, RAIN)  # two words and one
    assert rank_noted_words("Lee lives in Rome", corpus).notes_of(1) == ()  # it says all of that itself
    assert rank_noted("film", corpus, embed, NoteSearch("none", words_weight=1.0)).notes_of(1) == ()


@examples(100)
@given(st.data())
def test_notes_that_tell_are_those_that_lift_their_chunk(data):
    corpus = noted(FILM, RAIN, note(3, 2, "Key and key.", "Rain."), note(1, 0, "Lee has a key.", TEXTS[0]))
    question = " ".join(data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4)))
    (asked,) = embed([question])
    near = [round(float(asked @ v / np.linalg.norm(asked) / np.linalg.norm(v)), 6) for v in embed(TEXTS)]
    found = rank_noted(question, corpus, embed)
    for node, score in zip(found.ids.tolist(), found.scores.tolist(), strict=True):
        capped = {}
        for one in corpus.notes:
            (vector,) = embed([one.text])
            told = float(asked @ vector / np.linalg.norm(asked) / np.linalg.norm(vector))
            if one.answering == f"c{node}":
                capped[one] = min(round(told, 6), near[int(one.asking[1])])
        expected = {one for one, value in capped.items() if value > near[node]}
        assert set(found.notes_of(node)) == expected
        assert score == pytest.approx(max([near[node], *capped.values()]), abs=1e-5)
