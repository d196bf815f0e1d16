"""Contexts of a study: trees whose leaves are the chunks, budgets kept to the word, recall by hand."""

import numpy as np
import pytest
from support.passages import count
from support.study import WordEmbedder, fixed, make_encoder, make_task

from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.chunking.strategies.clusters import LinkageConfig
from qrag_jax.chunking.strategies.fixed import FixedConfig
from qrag_jax.chunking.strategies.headings import HeadingsConfig
from qrag_jax.chunking.strategies.hierarchy import HierarchyConfig
from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.eval.study.cells.filled_contexts import (
    Contexts,
    FilledCorpus,
    known_points,
    question_pieces,
    section_points,
)
from qrag_jax.models.tagger.tagger import load_tagger
from qrag_jax.search.corpus import build_corpus
from qrag_jax.types import Document, InputError

TEXT = "# A\n\n## B\n\nOne two. Three four.\n\nFive six.\n\n## C\n\nSeven eight nine.\n\nTen.\n"
HIERARCHY = ChunkConfig("hierarchy", 4, hierarchy=HierarchyConfig("headings", merge_tokens=0))


def filled(text, config, points=None):
    documents = [Document("a.md", text)]
    known = known_points(config, points, WordEmbedder(), "")
    chunk = make_chunker(config, count, WordEmbedder(), split_sentences, known)
    chunks = build_corpus(documents, chunk, chunking=config)
    return chunks, FilledCorpus(chunks, count, split_sentences, known)


def ranking(*places):
    return np.array(places), np.linspace(1, 0, len(places))


def spans_of(corpus):
    return [corpus.nodes[node].spans for node in corpus.leaves.tolist()]


@pytest.mark.parametrize(
    "config",
    [
        HIERARCHY,
        ChunkConfig("headings", 4),
        ChunkConfig("headings", 8, min_tokens=4),
        ChunkConfig("headings", 4, headings=HeadingsConfig(max_level=1)),
        fixed(5),
        ChunkConfig("breakpoint", 6),
        ChunkConfig("document"),
        ChunkConfig("levels", 4),
        ChunkConfig("levels", levels=LevelsConfig(sizes=(8, 4))),
    ],
    ids=lambda config: f"{config.strategy} {config.max_tokens}",
)
def test_the_leaves_are_the_chunks(config):
    chunks, found = filled(TEXT, config)
    assert found.corpus.trees and spans_of(found.corpus) == [node.spans for node in chunks.nodes]
    assert [found.corpus.nodes[n].num_tokens for n in found.corpus.leaves.tolist()] == [
        n.num_tokens for n in chunks.nodes
    ]


def test_by_hand():
    """Section B is `## B` with three sentences of 2 words: two of these are half of it, and bring all of it."""
    text = "## B\n\nOne two.\n\nThree four.\n\nFive six.\n\n## C\n\nSeven eight.\n\nTen ten.\n"
    _, found = filled(text, ChunkConfig("hierarchy", 2, hierarchy=HierarchyConfig("headings", merge_tokens=0)))
    texts = [found.corpus.texts[node] for node in found.corpus.leaves.tolist()]
    assert texts == ["## B", "One two.", "Three four.", "Five six.", "## C", "Seven eight.", "Ten ten."]

    def read(fill, *places):
        context = found.fill(fill, ranking(*places), 13)
        assert context is not None
        return [passage.text for passage in context.passages]

    assert read("plain", 1, 3) == ["One two.", "Five six."]
    assert read("merge", 1, 3) == ["## B\n\nOne two.\n\nThree four.\n\nFive six."]
    assert read("merge", 1, 5) == ["One two.", "Seven eight."]
    assert read("widen", 5) == ["## C\n\nSeven eight.\n\nTen ten."]


def test_every_fill_has_exactly_as_much_to_read():
    task = make_task()
    for config in (fixed(7), ChunkConfig("breakpoint", 20)):
        chunks = build_corpus(
            task.documents, make_chunker(config, count, WordEmbedder(), split_sentences), chunking=config
        )
        found, order = FilledCorpus(chunks, count, split_sentences), np.random.default_rng(0).permutation(len(chunks))
        for budget in (5, 23, 61):
            for fill in ("plain", "widen", "merge"):
                context = found.fill(fill, ranking(*order), budget)
                assert context is not None and context.num_tokens == budget
                assert sum(count(passage.text) for passage in context.passages) == budget


def test_chunks_of_several_spans_are_filled_plainly_alone():
    config = ChunkConfig("linkage", linkage=LinkageConfig(max_sentences=3))
    chunks, found = filled(" ".join(f"Word{i % 3} word{i % 3}." for i in range(9)), config)
    if any(len(node.spans) > 1 for node in chunks.nodes):
        assert found.fill("merge", ranking(0), 5) is None and found.fill("plain", ranking(0), 5) is not None
    overlap = ChunkConfig("fixed", fixed=FixedConfig(sentences_per_chunk=3, overlap=1))
    chunks, found = filled("One. Two. Three. Four. Five.", overlap)
    assert len(chunks) > 1 and not found.corpus.trees and found.fill("widen", ranking(0), 5) is None


def test_a_question_whose_evidence_has_no_word_is_named():
    document = Document("a.md", "One two. *** Three.")
    question = StudyQuestion("q7", "What?", ("a.md",), (Evidence("a.md", 9, 12),))
    task = StudyTask("t", "evidence", (document,), (question,), {"a.md": ((0, 8), (9, 12), (13, 19))})
    _, found = filled(document.text, fixed(3))
    with pytest.raises(InputError, match="t: question 'q7': its evidence has no word"):
        list(found.recall(task, question, ranking(0), Contexts((5,), ("plain",))))


def removed_task():
    """Headings that are not in the text: B begins with sentence 0, C with 2."""
    text = "One two. Three four.\n\nFive six. Seven eight."
    sentences = tuple(split_sentences(text))
    question = StudyQuestion("q", "A: C", ("a.md",), (Evidence("a.md", 22, 44),))
    sections = {"a.md": ((0, 1), (22, 1))}
    return StudyTask("t", "evidence", (Document("a.md", text),), (question,), {"a.md": sentences}, {}, sections)


def test_sections_whose_headings_are_removed_are_known_to_a_hierarchy_by_headings_alone():
    task = removed_task()
    points = section_points(task)
    config = ChunkConfig("hierarchy", 2, hierarchy=HierarchyConfig("headings", merge_tokens=0))
    _, found = filled(task.documents[0].text, config, points)
    assert [(node.spans[0], node.level) for node in found.corpus.nodes if node.level == 1] == [
        ((0, 20), 1),
        ((22, 44), 1),
    ]
    assert known_points(fixed(3), points, WordEmbedder(), "") is None
    assert known_points(ChunkConfig("levels"), points, WordEmbedder(), "") is points
    of = lambda name: ChunkConfig("hierarchy", hierarchy=HierarchyConfig(name))  # noqa: E731
    assert known_points(of("rule"), points, WordEmbedder(), "") is None
    assert known_points(of("tagger"), points, WordEmbedder(), load_tagger().fingerprint) is not None
    with pytest.raises(InputError, match="tagger: trained on vectors of the encoder 'minilm'"):
        known_points(of("tagger"), points, WordEmbedder(), "words")
    assert section_points(make_task()) is None


def test_recall_by_hand():
    """Evidence `Five six. Seven eight.` is 8 and 11 letters: a context of `five six` alone has 8 of 19."""
    task = removed_task()
    (question,) = task.questions
    assert question_pieces(task, question) == ["Five six.", "Seven eight."]
    config = ChunkConfig("hierarchy", 2, hierarchy=HierarchyConfig("headings", merge_tokens=0))
    _, found = filled(task.documents[0].text, config, section_points(task))
    contexts = Contexts((2, 4, 8), ("plain", "merge"))
    assert dict(found.recall(task, question, ranking(2, 0, 3, 1), contexts)) == pytest.approx(
        {"plain@2": 8 / 19, "plain@4": 8 / 19, "plain@8": 1, "merge@2": 8 / 19, "merge@4": 8 / 19, "merge@8": 1}
    )
    assert dict(found.recall(task, question, ranking(0, 1, 2, 3), contexts))["plain@4"] == 0


def test_a_larger_budget_never_finds_less():
    task, config = make_task(), fixed(9)
    encoder = make_encoder()
    chunks = build_corpus(task.documents, make_chunker(config, count, None, split_sentences), chunking=config)
    found = FilledCorpus(chunks, encoder.count, split_sentences)
    rng = np.random.default_rng(1)
    for question in task.questions:
        order = ranking(*rng.permutation(len(chunks)))
        values = dict(found.recall(task, question, order, Contexts((10, 40, 160, 10_000), ("plain",))))
        assert list(values.values()) == sorted(values.values()) and values["plain@10000"] == 1
