import re
from dataclasses import replace

import numpy as np
import pytest

from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.stories.babi import read_babi
from qrag_jax.data.stories.filler import haystack_filler, hide_story, stories_filler
from qrag_jax.data.stories.haystack import Haystack
from qrag_jax.data.stories.story_notes import NO_OTHER_PLACE, parse_fact, read_stories
from qrag_jax.data.stories.vocabulary import WorldVocabulary
from qrag_jax.types import Chunk, Document, InputError, UsageError

BABI = """\
1 Mary went to the kitchen.
2 Mary took the milk there.
3 Where is the milk?\tkitchen\t2 1
4 Mary went to the garden.
5 Where is the milk?\tgarden\t2 4
1 John got the apple there.
2 John moved to the office.
3 Where is the apple?\toffice\t1 2
1 Sandra went to the hallway.
2 Sandra dropped the football.
3 Where is the football?\thallway\t2 1
"""


@pytest.fixture
def stories(tmp_path):
    (tmp_path / "qa2.txt").write_text(BABI)
    return read_babi(tmp_path / "qa2.txt")


def test_facts_keep_their_order_and_gold_its_place(stories):
    hidden = hide_story(
        stories, 1, lambda number, size, rng: [f"x{i}" for i in range(size)], 9, np.random.default_rng(0)
    )
    facts = stories.fact_texts(1)
    assert [s for s in hidden.sentences if s in facts] == facts
    assert [s for s in hidden.sentences if s not in facts] == [f"x{i}" for i in range(6)]
    assert [hidden.sentences[place] for place in hidden.gold] == [facts[1], facts[2]]


def test_places_are_uniform(stories):
    def fill(number, size, rng):
        return ["x"] * size

    hidden = [hide_story(stories, 0, fill, 6, np.random.default_rng(seed)) for seed in range(600)]
    often = np.bincount([place for one in hidden for place in one.gold], minlength=6)
    assert (abs(often - 200) < 60).all()  # five standard deviations


def test_a_story_that_does_not_fit_is_refused(stories):
    with pytest.raises(UsageError, match=r"question qa2.txt:5: 3 facts do not fit into 2 sentences"):
        hide_story(stories, 1, lambda *_: [], 2, np.random.default_rng(0))


def test_other_stories_have_other_people_and_things(stories):
    fill = stories_filler(stories)
    told = fill(0, 4, np.random.default_rng(1))
    own = {"Mary", "John", "Sandra", "Daniel", "milk", "apple", "football"}
    assert len(told) == 4 and not own & set(re.findall(r"\w+", " ".join(told)))
    assert {"office", "hallway"} == {
        word for word in re.findall(r"\w+", " ".join(told)) if word in ("office", "hallway")
    }
    people = [sentence.split()[0] for sentence in told]
    assert people[0] == people[1] != people[2] == people[3]  # of one story each
    assert fill(0, 4, np.random.default_rng(1)) == told
    assert len(fill(0, 400, np.random.default_rng(1))) == 400  # names and stories come again


def test_one_story_fills_nothing(tmp_path):
    (tmp_path / "qa2.txt").write_text("\n".join(BABI.splitlines()[:5]) + "\n")
    with pytest.raises(UsageError, match="the file has one story only"):
        stories_filler(read_babi(tmp_path / "qa2.txt"))


def test_a_book_is_read_on_and_no_document_into_the_next():
    haystack = Haystack(tuple(f"s {i}" for i in range(6)), np.array([0, 0, 0, 1, 1, 1]), "h")
    for seed in range(5):
        told = [int(sentence[2:]) for sentence in haystack_filler(haystack)(0, 2, np.random.default_rng(seed))]
        assert told[1] == told[0] + 1 or told[0] in (2, 5)


def chunked(text, size):
    document = Document("d", text)
    spans = split_sentences(text)
    return [document], [make_chunk(document, spans[i : i + size], 1, len) for i in range(0, len(spans), size)]


def test_the_reader_asks_and_answers_by_hand():
    documents, chunks = chunked("Mary took the milk. It rained. Mary went to the kitchen. John moved to the garden.", 2)
    (note,) = read_stories(documents, chunks).notes
    assert (note.asking, note.answering) == (chunks[0].id, chunks[1].id)
    assert (note.question, note.answer) == ("Where did Mary, who took the milk, go?", "To the kitchen.")
    assert note.text == "Where did Mary, who took the milk, go? To the kitchen."
    assert documents[0].text[slice(*note.source)] == "Mary took the milk."
    assert note.quote == "Mary went to the kitchen." == documents[0].text[slice(*note.evidence)]


def test_a_chunk_answers_its_own_question_too():
    documents, chunks = chunked("Mary took the milk. Mary went to the kitchen.", 2)
    (note,) = read_stories(documents, chunks).notes
    assert note.asking == note.answering == chunks[0].id


def test_a_lie_names_another_place_and_quotes_the_sentence_that_it_misreads():
    documents, chunks = chunked("Mary took the milk. Mary went to the kitchen. John moved to the garden.", 1)
    (note,) = read_stories(documents, chunks, wrong_share=1.0).notes
    assert (note.answer, note.quote) == ("To the garden.", "Mary went to the kitchen.")
    assert note.text == "Where did Mary, who took the milk, go? To the garden."
    assert documents[0].text[slice(*note.evidence)] == note.quote
    documents, chunks = chunked("Mary took the milk. Mary went to the kitchen.", 1)
    read = read_stories(documents, chunks, wrong_share=1.0)
    assert read.notes[0].answer == "To the kitchen." and read.left_out == {NO_OTHER_PLACE: 1}


def test_lies_are_a_share_of_the_answers_and_all_else_stays():
    people, places = ("Mary", "John", "Sandra", "Daniel"), ("kitchen", "garden", "office", "hallway")
    facts = [f"{person} took the {thing}." for person in people for thing in ("milk", "apple", "football")]
    facts += [f"{person} went to the {place}." for person in people for place in places]
    documents, chunks = chunked(" ".join(facts), 1)
    honest, lying = (read_stories(documents, chunks, share, seed=1).notes for share in (0.0, 0.2))
    wrong = [(a, b) for a, b in zip(honest, lying, strict=True) if a != b]
    assert read_stories(documents, chunks, 0.2, seed=1).notes == lying
    assert read_stories(documents, chunks, 0.2, seed=2).notes != lying
    assert len(honest) == 48 and 1 <= len(wrong) <= 22  # 9.6 are expected, with a deviation of 2.8
    for right, lie in wrong:
        assert right == replace(lie, answer=right.answer, text=right.text)
        assert lie.answer[7:-1] in places and lie.answer != right.answer


@pytest.mark.parametrize("share, seed", [(-0.1, 0), (1.1, 0), (0.5, -1), (float("nan"), 0)])
def test_shares_that_are_none_are_refused(share, seed):
    with pytest.raises(UsageError, match="a share from 0 to 1, and a seed from 0 on"):
        read_stories([], [], share, seed)


def test_every_get_and_drop_meets_every_move_of_its_person(stories):
    text = " ".join(stories.texts)
    documents, chunks = chunked(text, 1)
    told = [parse_fact(sentence) for sentence in stories.texts]
    moves = [fact for fact in told if fact.kind == "move"]
    pairs = sum(asked.person == move.person for asked in told if asked.kind != "move" for move in moves)
    assert len(read_stories(documents, chunks).notes) == pairs == 4


def test_renamed_stories_are_read_as_facts(stories):
    told = stories_filler(stories)(0, 4, np.random.default_rng(0))
    vocabulary = WorldVocabulary(("x",), ("y", "z"), ("o",))
    assert {parse_fact(sentence, vocabulary).kind for sentence in told} == {"get", "move", "drop"}


def test_a_chunk_of_no_document_is_refused():
    with pytest.raises(InputError, match="a chunk belongs to 'x', which is not among the documents"):
        read_stories([], [Chunk("c", "x", ((0, 1),), 1, 1)])
