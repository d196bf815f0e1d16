import json

import numpy as np
import pytest
from support.passages import count
from support.study import Counts

from qrag_jax.annotate.mentions import mention_notes
from qrag_jax.data.stories.babi import read_babi
from qrag_jax.data.stories.filler import stories_filler
from qrag_jax.data.stories.story_notes import read_stories
from qrag_jax.eval.notes.note_scores import EVAL_MODES, check_modes, gold_ceiling, score_notes
from qrag_jax.eval.notes.note_sets import passage_pool, read_babi_task, read_multihop_task, story_pool
from qrag_jax.measures.aggregate import mean_interval
from qrag_jax.search.note_search import NoteSearch
from qrag_jax.types import Example, InputError, ReadNotes, UsageError

WORDS = ["film", "lee", "rome", "rain", "key", "born", "made"]
FILM, LEE, RAIN = "Up: The film was made by Lee Brown.", "Lee Brown: She was born in Rome.", "Rain: It is wet."
TITLES = {FILM: "Up", LEE: "Lee Brown", RAIN: "Rain"}
EXAMPLES = [
    Example("1", "Where was the one who made the film born?", (RAIN, FILM, LEE), (1, 2)),
    Example("2", "Is rain wet?", (RAIN, LEE), (0,)),
]
BABI = """\
1 Mary went to the kitchen.
2 Mary took the milk there.
3 Where is the milk?\tkitchen\t2 1
1 John got the apple there.
2 John moved to the office.
3 Where is the apple?\toffice\t1 2
1 Sandra went to the hallway.
2 Sandra went to the garden.
3 Sandra went to the office.
4 Sandra went to the hallway.
5 Sandra went to the garden.
6 Where is Sandra?\tgarden\t5
"""


class Words:
    """One component a word."""

    fingerprint = "words"

    def __init__(self):
        self.counts = Counts(0, 0, 0)

    def __call__(self, texts, progress=None):
        self.counts = Counts(self.counts.num_texts + len(texts), 0, 0)
        cleaned = [text.lower().translate(str.maketrans(".:?", "   ")).split() for text in texts]
        rows = [[words.count(word) for word in WORDS] for words in cleaned]
        return np.array(rows, np.float32).reshape(-1, len(WORDS)) + 1e-3


def scores_of(pool, **changes):
    settings = {
        "reader_name": "mentions",
        "modes": EVAL_MODES,
        "ks": (1, 2),
        "search": NoteSearch(max_share=2.0),
    } | changes
    return score_notes("tiny", [pool], mention_notes, Words(), count, **settings)


def test_a_pool_holds_each_paragraph_once():
    pool = passage_pool(EXAMPLES, TITLES, count, [("Rain", "It is wet."), ("", "More.")])
    assert [document.text for document in pool.documents] == [RAIN, FILM, LEE, "More."]
    assert [document.metadata["title"] for document in pool.documents] == ["Rain", "Up", "Lee Brown", ""]
    assert [asked.gold for asked in pool.asked] == [{1, 2}, {0}]
    with pytest.raises(InputError, match="no question to ask"):
        passage_pool([], {}, count)


def test_what_a_reader_leaves_out_is_counted_over_all_pools():
    pool = passage_pool(EXAMPLES, TITLES, count)
    reader = lambda documents, chunks: ReadNotes((), {"too long": 2, "no name": 1})  # noqa: E731
    scores = score_notes("tiny", [pool, pool], reader, Words(), count, reader_name="none", ks=(1,))
    assert scores.left_out == {"too long": 4, "no name": 2}


def test_scores_by_hand():
    scores = scores_of(passage_pool(EXAMPLES, TITLES, count, [("Key", "Born in Rome and made in rain.")]))
    assert scores.num_notes == 1 == scores.num_cross_chunk
    none, best = scores.modes["none"], scores.modes["best_of"]
    np.testing.assert_array_equal(none.all_gold, [[0, 0], [1, 1]])  # the distractor has two words of the question
    np.testing.assert_array_equal(best.all_gold, [[0, 1], [1, 1]])
    np.testing.assert_array_equal(best.recall, [[0.5, 1], [1, 1]])
    assert scores.difference("best_of", "none", 2).mean == 0.5
    assert {mode: found.embedded.tolist() for mode, found in scores.modes.items() if found.embedded.any()} == {
        "insert": [1, 1],
        "random": [1, 1],
        "insert+bm25": [1, 1],
    }


def test_chunks_that_their_notes_take_beyond_the_window_are_counted_by_hand():
    pool = passage_pool(EXAMPLES, TITLES, count)
    with_note = f"{LEE} ({FILM})"  # in all three modes: there is one note, and it is of this chunk
    for window, cut in [(None, 0), (count(with_note) + 2, 0), (count(with_note) + 1, 1)]:
        for mode, found in scores_of(pool, window=window).modes.items():
            inserts = mode.removesuffix("+bm25") in ("insert", "all", "random")
            np.testing.assert_array_equal(found.noted, [inserts, inserts], mode)
            np.testing.assert_array_equal(found.cut, [cut * inserts, cut * inserts], mode)
    row = scores_of(pool, window=3, modes=("insert",), ks=(1,)).rows()[0]
    assert (row.noted_chunks, row.cut_chunks, row.cut_questions) == (1, 1, 1)


def test_rows_say_what_was_searched():
    scores = scores_of(passage_pool(EXAMPLES, TITLES, count), modes=("best_of",), seed=3)
    first, second = scores.rows()
    assert (first.task, first.mode, first.reader, first.k, second.k) == ("tiny", "best_of", "mentions", 1, 2)
    assert (first.n, first.n_chunks, first.n_notes, first.cross_chunk_share, first.seed) == (2, 3, 1, 1.0, 3)
    expected = mean_interval(np.array([0.0, 1.0]), seed=3)
    assert (first.all_gold, first.low, first.high) == (expected.mean, expected.low, expected.high)
    assert first.recall == 0.75 and first.seconds > 0
    assert (first.ceiling, second.ceiling) == (0.5, 1.0)  # two gold chunks, and one


def test_a_ceiling_by_hand():
    assert [gold_ceiling([2, 3, 4, 2], k) for k in (1, 2, 3, 4)] == [0, 0.5, 0.75, 1]


def test_no_mode_is_above_its_ceiling():
    for row in scores_of(passage_pool(EXAMPLES, TITLES, count)).rows():
        assert row.all_gold <= row.ceiling


def test_without_notes_all_modes_agree():
    example = Example("1", "Is rain wet?", ("it is wet", "a film"), (0,))
    pool = passage_pool([example], dict.fromkeys(example.chunks, ""), count)
    scores = scores_of(pool)
    assert scores.num_notes == 0 and scores.rows()[0].cross_chunk_share == 0
    for found in scores.modes.values():
        np.testing.assert_array_equal(found.embedded, [0])
    plain = [scores.modes[mode].all_gold for mode in ("none", "best_of", "insert", "all", "random", "walk")]
    assert all((found == plain[0]).all() for found in plain)


@pytest.mark.parametrize(
    "modes, ks, message",
    [
        (("best",), (1,), "mode 'best': choose from none, best_of"),
        (("walk+bm25",), (1,), "mode 'walk.bm25'"),
        ((), (1,), "modes : give at least one"),
        (("none", "none"), (1,), "none twice"),
        (("none",), (), "k : give at least one"),
        (("none",), (0,), "k 0: give at least one, from 1"),
        (("none",), (2, 2), "k 2,2: .*none twice"),
    ],
)
def test_bad_modes_and_ks_are_refused(modes, ks, message):
    with pytest.raises(UsageError, match=message):
        check_modes(modes, ks)


@pytest.fixture
def babi(tmp_path):
    path = tmp_path / "qa2_tiny.txt"
    path.write_text(BABI)
    return path


def test_a_story_is_cut_where_its_sentences_end(babi):
    stories = read_babi(babi)
    rng = np.random.default_rng(0)
    pool = story_pool(stories, 0, stories_filler(stories), count, rng, num_chunks=3, chunk_sentences=2)
    texts = [pool.documents[0].text[slice(*chunk.spans[0])] for chunk in pool.chunks]
    assert len(texts) == 3 and " ".join(texts) == pool.documents[0].text
    assert all(text.count(".") == 2 and text.endswith(".") for text in texts)
    (asked,) = pool.asked
    gold = " ".join(texts[place] for place in sorted(asked.gold))
    assert all(fact in gold for fact in stories.fact_texts(0)) and asked.question == "Where is the milk?"


def test_stories_that_do_not_fit_are_left_out_and_a_story_is_hidden_alike_among_any(babi):
    task = read_babi_task(babi, "stories", num_chunks=2, chunk_sentences=2)(count)
    assert (task.name, len(task.pools)) == ("qa2_tiny, stories", 2)
    assert task.about == "qa2_tiny.txt: 3 stories; left out: 1 longer than 2 chunks"
    fewer = read_babi_task(babi, "stories", num_chunks=2, chunk_sentences=2, num_questions=1)(count)
    assert fewer.pools[0] in task.pools
    other = read_babi_task(babi, "stories", num_chunks=2, chunk_sentences=2, seed=1)(count)
    assert other.pools != task.pools
    with pytest.raises(InputError, match="none of 3 stories fits into 1 chunks .*the shortest has 2 facts"):
        read_babi_task(babi, "stories", num_chunks=1, chunk_sentences=1)(count)
    with pytest.raises(UsageError, match="num_chunks 0"):
        read_babi_task(babi, "stories", num_chunks=0)(count)


def test_a_book_is_filler(babi, tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("The ship was old. The sea was grey. A storm came up. They went below.")
    task = read_babi_task(babi, str(book), num_chunks=2, chunk_sentences=3)(count)
    assert task.name == "qa2_tiny, book"
    assert {"ship", "sea", "storm", "below"} & set(task.pools[0].documents[0].text.replace(".", "").split())
    scores = score_notes("b", task.pools, read_stories, Words(), count, reader_name="scripted", ks=(1,))
    assert scores.num_notes >= 2 and scores.rows()[0].n == 3


def test_questions_are_drawn_with_their_paragraphs(tmp_path):
    rows = [
        {"_id": str(i), "question": f"Q {i}?", "context": [[f"T{i}", ["a."]]], "supporting_facts": [[f"T{i}", 0]]}
        for i in range(6)
    ]
    source, more = tmp_path / "dev.json", tmp_path / "more.json"
    source.write_text(json.dumps(rows))
    more.write_text(json.dumps([{"title": "M", "text": "b."}]))
    task = read_multihop_task("hotpot", source, num_questions=2, distractors=more)(count)
    (pool,) = task.pools
    assert task.name == "hotpot, more distractors" and len(pool.asked) == 2 and len(pool.chunks) == 3
    assert read_multihop_task("hotpot", source, num_questions=9)(count).pools[0].asked[0].question == "Q 0?"
