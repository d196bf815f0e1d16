"""Notes behind passages: chosen, fenced, cited."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import corpus_of, count, documents, ranked, split_lines
from support.tiers import examples

from qrag_jax.llm.prompts import load_prompt
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.search.answer import answer_question, make_fill, make_prompt
from qrag_jax.search.citations import cite, render
from qrag_jax.search.context.pack import Budget, fill_context
from qrag_jax.search.hybrid import Ranked
from qrag_jax.types import Document, InputError, Note, UsageError

TWO = documents("Ann made Up.\nIt was long and wide and blue.\n", "Ann was born in the town of Ash.\n")
CHUNKS = [chunk for document in TWO for chunk in split_lines(document)]
CORPUS = corpus_of(TWO, CHUNKS)
MADE, LONG, BORN = CHUNKS
NAMED = Note(MADE.id, BORN.id, "Ann made Up.", (0, 12), (0, 32), "Ann was born in the town of Ash.", "mentions")
ASKED = Note(
    LONG.id,
    BORN.id,
    "Who made it? Ann.",
    (13, 43),
    (0, 3),
    "Ann",
    "llm",
    question="Who made it?",
    answer="Ann.",
)


@dataclass(frozen=True)
class Found(Ranked):
    notes: tuple[Note, ...] = ()
    at: int = 2

    def notes_of(self, node):
        return self.notes if node == self.at else ()


def found(*ids, notes=(), at=2):
    return Found(ranked(*ids).ids, ranked(*ids).scores, tuple(notes), at)


def test_a_note_stands_behind_its_passage_with_its_place():
    context = fill_context(CORPUS, found(2, 1, notes=[NAMED, ASKED]), Budget(99, count, overhead=2))
    assert [(one.number, one.passage, one.note) for one in context.notes] == [(3, 2, NAMED), (4, 2, ASKED)]
    assert [one.head for one in context.notes] == [
        '[3] note on [2], said in "a.txt" at 0-12:',
        '[4] note on [2], read in "a.txt" at 13-43:',
    ]
    assert [one.place for one in context.notes] == [("a.txt", (0, 12)), ("b.txt", (0, 3))]
    (first,) = fill_context(CORPUS, found(2, 1, notes=[NAMED, ASKED]), Budget(99, count, max_notes=1)).notes
    assert first.note == NAMED


def test_tokens_of_notes_are_of_the_budget():
    notes = [NAMED]
    alone = fill_context(CORPUS, ranked(2, 1), Budget(99, count, overhead=2))
    both = fill_context(CORPUS, found(2, 1, notes=notes), Budget(99, count, overhead=2))
    assert both.passages == alone.passages
    assert both.num_tokens == alone.num_tokens + 3 + 9 + 2  # words of the note and of its head, what is around it


def test_a_sentence_that_is_given_as_a_passage_is_no_note():
    """Ranked above, and ranked below; an answer is not told twice by the passage that raised its question."""
    for order in ([2, 0], [0, 2]):
        assert not fill_context(CORPUS, found(*order, notes=[NAMED]), Budget(99, count)).notes
    assert fill_context(CORPUS, found(2, 1, notes=[ASKED]), Budget(99, lambda text: 1)).notes


def test_a_note_has_no_more_tokens_than_its_passage_and_never_takes_the_room_of_a_better_one():
    long = replace(ASKED, evidence=(0, 12), quote="Ann made Up.", answering=MADE.id)  # 4 words, and 3 of the passage
    assert not fill_context(CORPUS, found(0, notes=[long], at=0), Budget(99, count)).notes
    assert len(fill_context(CORPUS, found(2, notes=[ASKED, ASKED, NAMED]), Budget(99, count)).notes) == 2  # of 8 words
    for room, held in ((8 + 3 + 8, 0), (8 + 3 + 9, 1)):
        assert len(fill_context(CORPUS, found(2, notes=[NAMED]), Budget(room, count)).notes) == held
    assert not fill_context(CORPUS, found(2, notes=[NAMED]), Budget(99, count, max_notes=0)).notes
    with pytest.raises(UsageError, match="max_notes -1: at least 0"):
        Budget(9, count, max_notes=-1)


def test_a_cited_note_is_cited_by_the_place_that_proves_it():
    context = fill_context(CORPUS, found(2, 1, notes=[NAMED, ASKED]), Budget(99, lambda text: 1))
    assert [one.number for one in context.notes] == [3]  # one token of room each
    cited = cite("[3] and [2], [4]", context, {one.id: one for one in TWO})
    assert [(c.number, c.place, c.text, c.note) for c in cited.citations] == [
        (3, "a.txt:0-12", "Ann made Up.", "Ann made Up."),
        (2, "b.txt:0-32", "Ann was born in the town of Ash.", None),
    ]
    assert cited.unknown == (4,)
    assert render("[3]", cited) == "[3 a.txt:0-12]"
    context = fill_context(CORPUS, found(2, 1, notes=[ASKED]), Budget(99, lambda text: 1))
    (citation,) = cite("[3]", context, {one.id: one for one in TWO}).citations
    assert (citation.place, citation.text, citation.note) == ("b.txt:0-3", "Ann", "Who made it? Ann.")


@pytest.mark.parametrize(
    "note", [replace(NAMED, source=(1, 13)), replace(NAMED, source=(0, 99)), replace(ASKED, quote="Bob")]
)
def test_a_note_that_does_not_stand_there_is_refused(note):
    context = fill_context(CORPUS, found(2, 1, notes=[note]), Budget(99, lambda text: 1))
    with pytest.raises(InputError, match=r"\.txt: (note at|passage at)"):
        cite("[3]", context, {one.id: one for one in TWO})


def test_the_prompt_shows_a_note_apart_from_its_passage():
    context = fill_context(CORPUS, found(2, 1, notes=[ASKED]), Budget(99, lambda text: 1))
    template = load_prompt("answer")
    plain = make_prompt(template, "Who?", [passage.text for passage in context.passages])
    noted = make_prompt(template, "Who?", [passage.text for passage in context.passages], context.notes)
    mark = noted[-1].content.split("<", 1)[1].split(">", 1)[0]
    added = f'[3] note on [2], read in "a.txt" at 13-43:\n<{mark}>\nWho made it? Ann.\n</{mark}>\n\n'
    assert noted[0] == plain[0]
    assert noted[-1].content.replace(added, "") == plain[-1].content


def test_from_a_question_to_a_cited_note():
    def retrieve(question, corpus, top_k):
        return found(2, 1, notes=[ASKED])

    answer = answer_question(
        "Who?", CORPUS, retrieve, ScriptedGenerator(["Ann [3]."]), fill=make_fill(Budget(99, lambda text: 1))
    )
    assert [(c.number, c.place) for c in answer.cited.citations] == [(3, "b.txt:0-3")]
    assert [citation.note for citation in answer.given_notes] == ["Who made it? Ann."]


@given(st.text(st.characters(exclude_categories=[]), max_size=300), st.text(max_size=80))
@examples(60)
def test_no_name_and_no_note_leaves_its_fence(name, text):
    """Names of files and texts of notes are a stranger's: the line above stays one line, the mark is in neither."""
    documents = [Document(name or "x", "Ann made Up."), Document((name or "x") + "2", "Ann was born in Ash.")]
    chunks = [chunk for document in documents for chunk in split_lines(document)]
    note = replace(
        ASKED, asking=chunks[0].id, answering=chunks[1].id, source=(0, 12), question=text or "?", text=f"{text} Ann."
    )
    corpus = corpus_of(documents, chunks)
    context = fill_context(corpus, found(1, notes=[note], at=1), Budget(99, lambda text: 1))
    content = make_prompt(load_prompt("answer"), "Who?", ["Ann was born in Ash."], context.notes)[-1].content
    (one,) = context.notes
    assert one.head.isprintable() and len(one.head) < 6 * 200 + 60
    mark = content.split("<", 1)[1].split(">", 1)[0]
    assert content.count(mark) == 4
