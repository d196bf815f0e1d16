import numpy as np
import pytest
from support.headed_documents import hashed_vectors, headed_document

from qrag_jax.data.corpora.headed_documents import HeadedDocument
from qrag_jax.train.learners.compressor_data import (
    Section,
    Shape,
    ask_sections,
    draw_batch,
    make_lead_targets,
    read_sections,
    section_spans,
)
from qrag_jax.unit_rows import unit_rows

SHAPE = Shape(num_sections=6, num_children=5, num_questions=2, from_document=2)


def count(text):
    return len(text.split()) + 2


def read(numbers=range(3), **given):
    return read_sections(
        [headed_document(number) for number in numbers], hashed_vectors, count, hashed_vectors, **given
    )


def test_sections_lie_between_points_and_have_two_sentences():
    document = headed_document(0)
    text, points = document.text, ((2, 1), (3, 2), (len(document.text) - 2, 1))
    own = HeadedDocument("d", text, points, (("t",),) * 3)
    assert section_spans(own) == [(0, 2), (3, len(text) - 2), (len(text) - 2, len(text))]
    assert section_spans(HeadedDocument("d", text, ((0, 1),), (("t",),))) == [(0, len(text))]


def test_sections_have_the_vectors_of_their_sentences_and_the_target_of_their_text():
    told = []
    sections = read(range(2), report=lambda *row: told.append(row[:3]))
    assert told == [("embed", told[0][2], told[0][2])]
    documents = [headed_document(number) for number in range(2)]
    spans = [(number, *span) for number in range(2) for span in section_spans(documents[number])]
    assert len(sections) == len(spans)
    for section, (number, first, end) in zip(sections, spans, strict=True):
        texts = documents[number].text.texts()[first:end]
        assert section.document == number
        np.testing.assert_allclose(section.children, unit_rows(hashed_vectors(texts)), rtol=1e-6)
        assert section.num_tokens.tolist() == [count(text) for text in texts]
        np.testing.assert_array_equal(section.target, hashed_vectors([" ".join(texts)])[0])


def test_a_question_is_never_among_the_children():
    batch = draw_batch(read(), SHAPE, 0, 0)
    assert batch.asked.any(axis=1).all() and batch.mask.any(axis=1).all()
    alike = np.einsum("sqd,scd->sqc", batch.questions, batch.children)
    assert not (np.isclose(alike, 1) & batch.asked[:, :, None] & batch.mask[:, None, :]).any()
    assert not batch.children[~batch.mask].any() and not batch.questions[~batch.asked].any()


def test_a_batch_is_a_function_of_seed_and_number():
    sections = read()
    first, again = draw_batch(sections, SHAPE, 0, 3), draw_batch(sections, SHAPE, 0, 3)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(first.children, draw_batch(sections, SHAPE, 0, 4).children)
    assert not np.array_equal(first.children, draw_batch(sections, SHAPE, 1, 3).children)


def test_a_batch_has_sections_of_one_document_but_of_others_too():
    sections = read()
    of_target = {section.target.tobytes(): section.document for section in sections}
    documents = [of_target[target.tobytes()] for target in draw_batch(sections, SHAPE, 0, 0).targets]
    assert sorted(documents.count(number) for number in set(documents)) == [2, 2, 2]
    assert len(draw_batch(sections, Shape(num_sections=99), 0, 0).targets) == len(sections)  # all, each once


def test_short_sentences_do_not_ask():
    vectors = np.eye(4, dtype=np.float32)
    section = Section(0, vectors, np.array([3, 3, 9, 3]), vectors[0])
    asked = ask_sections([section, section], 6, 0)
    assert asked.right.tolist() == [0, 1]
    np.testing.assert_array_equal(asked.questions, vectors[[2, 2]])
    np.testing.assert_array_equal(asked.sections[0].children, vectors[[0, 1, 3]])
    assert asked.sections[0].num_tokens.tolist() == [3, 3, 3]


@pytest.mark.parametrize(("most", "number"), [(2, 2), (9, 3)])
def test_one_sentence_in_four_asks(most, number):
    vectors = unit_rows(np.random.default_rng(0).normal(size=(13, 4)).astype(np.float32))
    asked = ask_sections([Section(0, vectors, np.full(13, 20), vectors[0])], most, 0)
    assert len(asked.questions) == number and len(asked.sections[0].children) == 13 - number


def test_leads_are_the_first_words():
    read_texts = []

    def embed(texts):
        read_texts.extend(texts)
        return 2 * np.ones((len(texts), 4), np.float32)

    found = make_lead_targets(embed, count, 5)(["one two three four five", "short text"])
    assert read_texts == ["one two three", "short text"]
    np.testing.assert_allclose(found, np.full((2, 4), 0.5))
