from dataclasses import replace
from functools import partial

import pytest
from support.encoders import random_encoder
from support.passages import documents, lines_corpus, ranked, split_lines

from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.cli.find import format_hits
from qrag_jax.cli.output import excerpt_with, format_copies, place_to_json, say_converted
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.search.answer import find_passages
from qrag_jax.search.citations import cite
from qrag_jax.search.copies import rank_distinct, without_copies
from qrag_jax.search.corpus import build_corpus
from qrag_jax.search.hits import make_hits
from qrag_jax.search.hybrid import make_single_step, rank_bm25
from qrag_jax.search.sentences import make_place, passage_sentences
from qrag_jax.types import Document

TOPICS = ["Market: opens at nine", "Boats: painted in spring", "Storm code: red lamp above the gate", "Thank you"]
SLIDES = [f"{topic}\n- first point of slide {number}\n- second point" for number, topic in enumerate(TOPICS, 1)]


def in_one_passage(name, pages, **metadata):
    """A document of pages whose only chunk is all of it."""
    text, starts = "\n\n".join(pages), [0]
    for page in pages[:-1]:
        starts.append(starts[-1] + len(page) + 2)
    document = Document(name, text, {"pages": tuple(starts), "converted": "pdf", **metadata})
    return build_corpus([document], lambda one: [make_chunk(one, ((0, len(text)),), 1, len)])


def hits_of(corpus, question):
    return make_hits(question, corpus, rank_bm25(question, corpus))


@pytest.mark.parametrize(
    ("question", "page", "line"), [("storm code?", 3, 9), ("When does the market open?", 1, 1), ("painted boats", 2, 5)]
)
def test_a_hit_names_the_page_and_line_of_the_sentence_that_answers(question, page, line):
    (hit,) = hits_of(in_one_passage("deck.pdf", SLIDES), question)
    assert (hit.sentence.place.page, hit.sentence.place.line) == (page, line) and hit.place.start == 0
    place, shown = format_hits([hit]).splitlines()
    assert place == f" 1  deck.pdf#page={page}" and TOPICS[page - 1] in shown


def test_an_excerpt_shows_the_sentence():
    (hit,) = hits_of(in_one_passage("deck.pdf", SLIDES), "storm code?")
    assert excerpt_with(hit.text, hit.sentence, 60) == "... Storm code: red lamp above the gate - first point of ..."
    assert excerpt_with(hit.text, hit.sentence, 300).startswith("Market: opens at nine - first point of slide 1")


ROWS = "Revenue 383 394\nCost of sales 214 223\nGross margin 169 170\nResearch 29 26"
LINES = "Harbour plan for the year of the storm\nMarket: nine\nGate: red lamp\nThe crane is\nalways free."
PROSE = "The keeper of the old lighthouse writes\nMonday and Tuesday in his book, and he\nleaves out Sunday."


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (ROWS, ROWS.split("\n")),
        (LINES, [*LINES.split("\n")[:3], "The crane is\nalways free."]),
        (PROSE, [PROSE]),
        (f"The keeper\n{PROSE}", ["The keeper", PROSE]),
        ("One line.", ["One line."]),
        (f"So it ended on that day. The keeper\n{PROSE}", ["So it ended on that day.", f"The keeper\n{PROSE}"]),
        ("A\n \tB 1\nC 2", ["A", "B 1", "C 2"]),
        ("| a long row of words |\n| another row?", ["| a long row of words |", "| another row?"]),
    ],
)
def test_lines_without_full_stops_are_sentences_of_their_own(text, pieces):
    spans = passage_sentences(Document("a", text), [(0, len(text))])
    assert [text[slice(*span)] for span in spans] == pieces


def test_a_heading_answers_if_no_sentence_has_a_word_of_the_question():
    corpus = build_corpus(
        [Document("a.md", "# Posts\n\nAmazon\n\n## Kernels\n\nIt rained.")],
        lambda one: [make_chunk(one, ((0, len(one.text)),), 1, len)],
    )
    assert [hit.sentence.place.line for hit in hits_of(corpus, "the kernels")] == [5]
    assert [hit.sentence.place.line for hit in hits_of(corpus, "amazon kernels")] == [3]


@pytest.mark.parametrize(
    ("answer", "page"),
    [
        ("A red lamp hangs there [1].", 3),  # the words of the answer decide
        ("They are painted. [1]", 2),
        ("As [1] says, it opens at nine. The storm code is red.", 1),
        ("Yes [1].", 3),  # the words of the question do
        ("[1]", 3),
    ],
)
def test_a_citation_names_the_page_of_what_is_cited(answer, page):
    corpus = in_one_passage("deck.pdf", SLIDES, left_out={"comments": 2})
    question = "What is the storm code?"
    found = find_passages(question, corpus, rank_bm25)
    (citation,) = cite(answer, found.context, corpus.by_id, question).citations
    assert citation.page == page and citation.left_out == {"comments": 2}
    assert found.given[0].page == 3


def test_places_in_converted_files_say_so():
    place = make_place(Document("manual.docx", "one\ntwo", {"converted": "docx"}), (4, 5))
    assert str(place) == "manual.docx:2 of the text"
    assert place_to_json(place) == {"file": "manual.docx", "line": 2, "converted": "docx"}
    assert str(make_place(Document("a.md", "one\ntwo"), (4, 5))) == "a.md:2"


def test_the_text_that_lines_count_in_can_be_seen(capsys):
    (hit,) = hits_of(lines_corpus("A lamp."), "lamp")
    for converted, page in (("docx", None), ("pdf", 3), (None, None)):
        place = replace(hit.sentence.place, document="a b.docx", converted=converted, page=page)
        say_converted([replace(hit, sentence=replace(hit.sentence, place=place))])
    assert capsys.readouterr().err == "lines of the text: `qrag chunk 'a b.docx' --text` prints this text\n"


COPIED = (
    "The lamp is red.\nA boat.",
    "The  lamp is\tred.",
    "The lamp is red.\nThe lamp is green.",
    "The lamp is blue.",
)


@pytest.mark.parametrize("name", ["hybrid", "dense", "bm25"])
def test_copies_are_shown_once_with_their_places(name):
    embed = make_embedder(random_encoder("bert", COPIED))
    corpus = build_corpus(documents(*COPIED), split_lines, embed)
    found = rank_distinct(make_single_step(name, embed), "red lamp", corpus, 3)
    hits = make_hits("red lamp", corpus, found)
    assert len({" ".join(hit.text.split()) for hit in hits}) == 3
    (red,) = [hit for hit in hits if "red" in hit.text]
    assert sorted(str(place) for place in (red.sentence.place, *red.copies)) == ["a.txt:1", "b.txt:1", "c.txt:1"]
    assert [hit.rank for hit in hits] == [1, 2, 3]


def test_copies_of_equal_scores_are_found_and_worse_ones_are_not_looked_for():
    corpus = lines_corpus("a", "b", "a", "c", "a", "d")
    found = without_copies(ranked(0, 1, 2, 3, 4, 5, scores=[3, 2, 2, 2, 1, 1]), corpus, 2)
    assert found.ids.tolist() == [0, 1] and found.copies == {0: [2]}
    found = without_copies(ranked(0, 1, 2, 3, 4, 5), corpus)
    assert found.ids.tolist() == [0, 1, 3, 5] and found.copies == {0: [2, 4]}


def test_many_copies_hide_no_other_passage():
    corpus = lines_corpus(*["red lamp"] * 5, "a lamp")
    counted = []

    def retrieve(question, corpus, top_k):
        counted.append(top_k)
        return rank_bm25(question, corpus, top_k)

    found = rank_distinct(retrieve, "red lamp", corpus, 1)
    assert (found.ids.tolist(), found.copies, counted) == ([0], {0: [1, 2, 3, 4]}, [4, 64])
    assert [hit.text for hit in make_hits("red lamp", corpus, rank_distinct(retrieve, "red lamp", corpus, 2))] == [
        "red lamp",
        "a lamp",
    ]


def test_a_context_holds_a_passage_once_and_knows_its_copies():
    corpus = lines_corpus("x\nThe lamp is red.", "The  lamp is red.", "A lamp.")
    found = find_passages("red lamp", corpus, partial(rank_distinct, rank_bm25))
    assert [one.document_id for one in found.given] == ["a.txt", "c.txt"]
    assert [str(place) for place in found.given[0].copies] == ["b.txt:1"]
    (cited,) = cite("Red [1].", found.context, corpus.by_id).citations
    assert [str(place) for place in cited.copies] == ["b.txt:1"]


def test_copies_are_listed_below_a_passage():
    corpus = lines_corpus(*["The lamp is red."] * 6)
    (hit,) = make_hits("lamp", corpus, rank_distinct(rank_bm25, "lamp", corpus, 5))
    assert format_hits([hit]).splitlines()[2] == "    also in b.txt:1, c.txt:1, d.txt:1 and 2 more"
    assert format_copies((*hit.copies[:1] * 3, hit.copies[1])) == "also in b.txt:1, c.txt:1"
