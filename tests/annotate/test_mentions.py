import time
from itertools import count as numbers

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import count as words
from support.tiers import examples

from qrag_jax.annotate.mentions import (
    BEYOND_MOST,
    NAME_AMBIGUOUS,
    NAME_COMMON,
    SENTENCE_TOO_LONG,
    MentionsConfig,
    mention_notes,
)
from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.types import Chunk, Document, InputError, UsageError


def pages(*texts):
    """(title, text): a document of one chunk each."""
    documents = [Document(str(i), text, {"title": title}) for i, (title, text) in enumerate(texts)]
    return documents, [make_chunk(document, [(0, len(document.text))], 1, words) for document in documents]


def by_sentence(*documents):
    """Documents cut into a chunk a sentence."""
    return list(documents), [
        make_chunk(document, [span], 1, words) for document in documents for span in split_sentences(document.text)
    ]


def told(documents, chunks, **config):
    """(asking place, answering place, text) of each note, and what was left out."""
    read = mention_notes(documents, chunks, MentionsConfig(**config))
    place = {chunk.id: number for number, chunk in enumerate(chunks)}
    return [(place[note.asking], place[note.answering], note.text) for note in read.notes], read.left_out


def test_a_sentence_that_names_a_page_is_a_note_of_that_page():
    documents, chunks = pages(
        ("Up, Down", "It is long. The film Up, Down was made by Ann Lee. It rained."),
        ("Ann Lee (director)", "She lives in Rome. Ann Lee made films."),
    )
    (note,) = mention_notes(documents, chunks).notes
    assert (note.asking, note.answering) == (chunks[0].id, chunks[1].id)
    assert note.text == "The film Up, Down was made by Ann Lee." == documents[0].text[slice(*note.source)]
    assert note.quote == "Ann Lee made films." == documents[1].text[slice(*note.evidence)]
    assert (note.reader, note.question, note.answer) == ("mentions", "", "")


def test_a_page_that_does_not_say_its_name_gets_notes_at_its_first_sentence():
    documents, chunks = pages(("A", "We met Ann Lee."), ("Ann Lee", "She made films. She won."))
    (note,) = mention_notes(documents, chunks).notes
    assert note.quote == "She made films."


def test_a_title_in_chinese_names_its_page():
    documents, chunks = pages(
        ("\u8fd9\u90e8\u7535\u5f71", "\u5b83\u5f88\u957f\u3002\u5bfc\u6f14\u662f\u674e\u5c0f\u660e\u534e\u3002"),
        ("\u674e\u5c0f\u660e\u534e", "\u5979\u4f4f\u5728\u7f57\u9a6c\u3002"),
    )
    assert told(documents, chunks)[0] == [(0, 1, "\u5bfc\u6f14\u662f\u674e\u5c0f\u660e\u534e\u3002")]


def test_headings_and_file_names_are_names():
    text = "# Guide\n\nRead the Rain Gauge part.\n\n## Rain gauge\n\nA tube."
    guide = Document("g", text, {"path": "x/key_list.md"})
    other = Document("o", "The rain gauge leaks. See the key list.")
    second = text.index("## Rain")
    places = [(guide, (0, second - 2)), (guide, (second, len(text))), (other, (0, len(other.text)))]
    chunks = [make_chunk(document, [span], 1, words) for document, span in places]
    found, _ = told([guide, other], chunks)
    assert found == [
        (2, 0, "See the key list."),
        (0, 1, "Read the Rain Gauge part."),
        (2, 1, "The rain gauge leaks."),
    ]


def test_a_heading_outside_of_all_chunks_names_none():
    document = Document("g", "# Rain gauge\n\nA tube. The Rain Gauge leaks.")
    start = document.text.index("A tube")
    chunks = [make_chunk(document, [(start, start + 7)], 1, words), make_chunk(document, [(start + 8, 43)], 1, words)]
    assert mention_notes([document], chunks).notes == ()


def test_a_name_that_a_text_introduces_belongs_to_where_it_is_said_first():
    one = Document("1", "The keeper is Olga Brandt. It rained. Olga Brandt has the key.")
    other = Document("2", "A letter came to Olga Brandt.")  # of another document: no order between them
    assert told(*by_sentence(one, other)) == ([], {})  # unless it is asked for
    found, _ = told(*by_sentence(one, other), max_introduced=5)
    assert found == [(2, 0, "Olga Brandt has the key.")]


def test_a_name_of_many_chunks_of_its_document_is_not_introduced():
    text = " ".join(f"Here is Olga Brandt with {n}." for n in ("one", "two", "three"))
    assert len(told(*by_sentence(Document("1", text)), max_introduced=3)[0]) == 2
    assert told(*by_sentence(Document("1", text)), max_introduced=2)[0] == []


def test_a_name_that_every_chunk_has_is_no_name():
    documents, chunks = pages(("Then", "Then it rained."), *((f"P{i}", "And Then it rained.") for i in range(4)))
    assert len(told(documents, chunks)[0]) == 1  # one text four times
    assert told(documents, chunks, max_naming=4) == ([], {NAME_COMMON: 1})
    short = pages(("The", "The sun."), ("Sun", "The moon."))
    assert told(*short) == ([], {})  # three letters


def test_documents_of_one_title_share_notes_up_to_a_number():
    same = [("Mercury (planet)", "It is hot."), ("Mercury (god)", "He is quick.")]
    documents, chunks = pages(*same, ("A", "They saw Mercury."))
    assert told(documents, chunks)[0] == [(2, 0, "They saw Mercury."), (2, 1, "They saw Mercury.")]
    assert told(documents, chunks, max_owners=1) == ([], {NAME_AMBIGUOUS: 1})


def test_a_title_is_named_as_it_is_written():
    texts = [("The Family", "A film."), ("Rain gauge", "A tube."), ("", "She left the family with a rain gauge.")]
    assert told(*pages(*texts)) == ([(2, 1, "She left the family with a rain gauge.")], {})
    assert told(*pages(*texts, ("", "She saw the Family.")))[0][0] == (3, 0, "She saw the Family.")


def test_an_ambiguous_name_hides_the_shorter_one_inside_of_it():
    texts = [("York", "It has walls."), *[("New York", f"It has {i} bridges.") for i in range(4)]]
    found, left_out = told(*pages(*texts, ("", "She left New York."), ("", "She left York.")))
    assert found == [(6, 0, "She left York.")] and left_out == {NAME_AMBIGUOUS: 1}


def test_a_chunk_keeps_the_notes_of_its_most_specific_names():
    documents, chunks = pages(
        ("Ann Lee", "# Ann Lee\n\n## Rain Gauge\n\nA tube."),
        ("A", "Ann Lee came."),
        ("B", "Ann Lee went. The Rain Gauge leaks."),
    )
    found, left_out = told(documents, chunks, max_notes=1)
    assert found == [(2, 0, "The Rain Gauge leaks.")]  # named by one chunk, the other name by two
    assert left_out == {BEYOND_MOST: 2}


def test_a_long_sentence_is_no_note():
    documents, chunks = pages(("Ann Lee", "She."), ("A", f"Ann Lee saw {'very ' * 20}much."))
    assert told(documents, chunks, max_chars=50) == ([], {SENTENCE_TOO_LONG: 1})


def test_a_heading_that_is_nothing_but_the_name_is_no_note():
    assert told(*pages(("Ann Lee", "She."), ("A", "## Ann Lee\n\nIt rained."))) == ([], {})


def test_a_sentence_that_two_chunks_hold_is_a_note_of_neither():
    text = "# Rome\n\nIt is old. See New York too.\n\n# New York\n\nIt is loud."
    document, shared = Document("0", text), text.index("See")
    chunks = [make_chunk(document, [span], 1, words) for span in ((0, text.index("\n\n# New")), (shared, len(text)))]
    assert told([document], chunks) == ([], {})
    assert told([document], [chunks[0], make_chunk(document, [(text.index("# New"), len(text))], 1, words)]) == (
        [(0, 1, "See New York too.")],
        {},
    )


def test_a_chunk_of_blanks_alone_has_no_name():
    documents = [Document("0", "  \n\nShe is here.", {"title": "Ann Lee"}), Document("1", "We met Ann Lee.")]
    chunks = [
        make_chunk(documents[number], [span], 1, words) for number, span in ((0, (0, 2)), (0, (4, 16)), (1, (0, 15)))
    ]
    assert told(documents, chunks) == ([(2, 1, "We met Ann Lee.")], {})


def test_an_empty_pool_and_one_without_names_have_no_notes():
    assert mention_notes([], []).notes == ()
    assert mention_notes(*pages(("", "it rained"))).notes == ()


def test_a_chunk_of_no_document_is_refused():
    with pytest.raises(InputError, match="chunk 0: its document 'x' is missing"):
        mention_notes([], [Chunk("c", "x", ((0, 1),), 1, 1)])


def test_a_config_below_1_is_refused():
    with pytest.raises(UsageError, match=r"mentions.max_notes 0: at least 1"):
        MentionsConfig(max_notes=0)
    with pytest.raises(UsageError, match=r"mentions.max_introduced -1: at least 0"):
        MentionsConfig(max_introduced=-1)


@pytest.mark.slow
def test_a_million_characters_of_names_are_read_in_seconds():
    names = (f"Aaaa{i} Bbbb{i}" for i in numbers())
    text = ""
    lines = []
    while sum(map(len, lines)) < 1_000_000:
        lines.append(" and ".join(next(names) for _ in range(20)) + ".")
    text = "\n\n".join(lines)
    start = time.process_time()
    read = mention_notes(*by_sentence(Document("1", text)), MentionsConfig(max_introduced=5))
    assert read.notes == ()
    assert time.process_time() - start < 120  # quadratic would be hours


PARTS = ["Ann Lee", "Rome", "It rained", "saw", "# Rome\n\n", ". ", ".\n\n", " ", "\ud800", "Mercury", "(x)"]


@examples(100)
@given(
    st.lists(st.tuples(st.sampled_from(["Ann Lee", "Rome (city)", "", "Mercury"]), st.lists(st.sampled_from(PARTS))))
)
def test_every_note_proves_itself(texts):
    documents = [Document(str(i), "".join(parts), {"title": title}) for i, (title, parts) in enumerate(texts)]
    documents, chunks = by_sentence(*documents)
    by_id, of = {chunk.id: chunk for chunk in chunks}, {document.id: document for document in documents}
    read = mention_notes(documents, chunks, MentionsConfig(max_notes=2, max_introduced=5))
    assert len(set(read.notes)) == len(read.notes)
    for note in read.notes:
        asking, answering = by_id[note.asking], by_id[note.answering]
        assert asking is not answering
        assert of[asking.document_id].text[slice(*note.source)] == note.text
        assert of[answering.document_id].text[slice(*note.evidence)] == note.quote
        assert any(a <= note.source[0] < note.source[1] <= b for a, b in asking.spans)
        assert any(a <= note.evidence[0] < note.evidence[1] <= b for a, b in answering.spans)
    assert all(sum(note.answering == chunk.id for note in read.notes) <= 2 for chunk in chunks)
