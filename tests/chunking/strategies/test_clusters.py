"""The clustering chunkers: the paper's figures, lambda = 1, sizes, windows, noise, bad embedders and configs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.chunking.strategies.clusters import DbscanConfig, LinkageConfig, group_labels, make_dbscan, make_linkage
from qrag_jax.chunking.strategies.fixed import FixedConfig, make_fixed
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.types import InputError, UsageError

# Sentences of each chunk in the single-linkage rows of Figures 6 and 7 (lambda 0.5), counted from 1 as printed there.
FIGURE_6 = [[1, 2, 3, 4], [5, 6, 7, 16], [8, 9, 10, 11], [12, 13, 14, 15]]
FIGURE_7 = [[1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11], [12, 13, 14, 15]]


def sentence_text(num_sentences):
    sentences = [f"Sentence {i}." for i in range(num_sentences)]
    starts = np.cumsum([0, *(len(sentence) + 1 for sentence in sentences)]).tolist()
    spans = tuple((start, start + len(sentence)) for start, sentence in zip(starts, sentences, strict=False))
    return SentenceText(" ".join(sentences), spans)


def chunks(config, vectors):
    """Sentence numbers of every chunk, from 1."""
    make = make_linkage if isinstance(config, LinkageConfig) else make_dbscan
    text = sentence_text(len(vectors))
    groups = make(config, lambda texts: vectors)(text)
    assert all(group.level == 1 for group in groups)
    return [[text.sentences.index(span) + 1 for span in group.spans] for group in groups]


def topic_vectors(topics, own=0.5, others=()):
    """A unit vector per sentence: its topic's direction and one of its own; two of a topic have cosine 1 - own."""
    num_sentences = len(topics)
    vectors = np.zeros((num_sentences, max(topics) + 1 + num_sentences))
    for i, topic in enumerate(topics):
        vectors[i, topic], vectors[i, max(topics) + 1 + i] = (1 - own) ** 0.5, own**0.5
    for i, vector in others:
        vectors[i - 1] = 0
        vectors[i - 1, : len(vector)] = vector
        vectors[i - 1, max(topics) + i] = (1 - np.square(vector).sum()) ** 0.5
    return vectors


def topics_of(groups):
    topics = {sentence: topic for topic, group in enumerate(groups) for sentence in group}
    return [topics[sentence] for sentence in sorted(topics)]


def fixed_chunks(num_sentences, num_chunks):
    """The paper's fixed-size chunks without overlap."""
    text = sentence_text(num_sentences)
    groups = make_fixed(FixedConfig(num_chunks=num_chunks, overlap=0), len)(text)
    return [[text.sentences.index(span) + 1 for span in group.spans] for group in groups]


def test_figure_6():
    """Sentence 16 ends the fourth document, but that chunk is full, and it is like the second in spite of its place."""
    documents = [0] * 4 + [1] * 3 + [2] * 4 + [3] * 5
    vectors = topic_vectors(documents, own=0.2, others=[(16, [0, 0.68, 0, 0.2])])
    assert chunks(LinkageConfig(num_clusters=4), vectors) == FIGURE_6
    unlike = topic_vectors(
        documents, own=0.2, others=[(16, [0, 0.1, 0, 0.2])]
    )  # further than the stop distance from the second
    assert chunks(LinkageConfig(num_clusters=4), unlike) == [[1, 2, 3, 4], [5, 6, 7], *FIGURE_6[2:], [16]]


def test_figure_7():
    """Sentences 8 and 9 go to the chunk before their section. Its sizes, 4, 5, 2, 4, are above the cap that 4 chunks
    of 15 sentences have by the rule that the paper's code follows, so a cap of 5 stands in for it."""
    vectors = topic_vectors(topics_of(FIGURE_7))
    assert chunks(LinkageConfig(max_sentences=5, stop_distance=0.4), vectors) == FIGURE_7
    assert max(map(len, chunks(LinkageConfig(num_clusters=4, stop_distance=0.4), vectors))) == 15 // 4


@pytest.mark.parametrize("num_clusters", range(1, 11))
def test_position_alone_gives_fixed_chunks(num_clusters):
    rng = np.random.default_rng(num_clusters)
    for num_sentences in [1, 2, 3, 7, 12, 23, 40, 59]:
        vectors = rng.normal(size=(num_sentences, 4))
        config = LinkageConfig(num_clusters=num_clusters, lambda_=1)
        assert chunks(config, vectors) == fixed_chunks(num_sentences, num_clusters)
        size = max(num_sentences // num_clusters, 1)
        assert chunks(LinkageConfig(max_sentences=size, lambda_=1), vectors) == chunks(config, vectors)


@examples(200)
@given(
    seed=st.integers(0, 10_000),
    num_sentences=st.integers(1, 40),
    config=st.one_of(
        st.builds(
            LinkageConfig,
            num_clusters=st.one_of(st.none(), st.integers(1, 12)),
            lambda_=st.sampled_from([0, 0.25, 0.5, 1]),
            stop_distance=st.sampled_from([None, 0, 0.3, 0.5]),
        ),
        st.builds(
            DbscanConfig,
            eps=st.sampled_from([0.1, 0.3, 0.5, 1]),
            min_samples=st.integers(1, 5),
            lambda_=st.sampled_from([0, 0.25, 0.5, 1]),
            noise=st.sampled_from(["single", "chunk", "nearest"]),
        ),
    ),
)
def test_every_sentence_is_in_one_chunk(seed, num_sentences, config):
    vectors = np.random.default_rng(seed).normal(size=(num_sentences, 3))
    found = chunks(config, vectors)
    assert sorted(sum(found, [])) == list(range(1, num_sentences + 1))
    assert all(group == sorted(group) for group in found) and found == sorted(found)
    assert chunks(config, vectors) == found
    if isinstance(config, LinkageConfig):
        cap = 10 if config.num_clusters is None else max(num_sentences // config.num_clusters, 1)
        assert max(map(len, found)) <= cap


def test_sizes():
    same = np.ones((25, 2))
    assert [len(group) for group in chunks(LinkageConfig(), same)] == [10, 10, 5]
    assert [len(group) for group in chunks(LinkageConfig(max_sentences=4), same)] == [4] * 6 + [1]
    assert [len(group) for group in chunks(LinkageConfig(num_clusters=3), same)] == [8] * 3 + [1]
    assert [len(group) for group in chunks(LinkageConfig(num_clusters=1), same)] == [25]
    assert [len(group) for group in chunks(LinkageConfig(num_clusters=99), same)] == [1] * 25


def test_meaning_alone_ignores_the_place():
    vectors = np.array([[1.0, 0.0], [0.0, 1.0]] * 6)
    config = LinkageConfig(max_sentences=6, lambda_=0)
    assert chunks(config, vectors) == [[1, 3, 5, 7, 9, 11], [2, 4, 6, 8, 10, 12]]
    assert chunks(DbscanConfig(lambda_=0), vectors) == chunks(config, vectors)


def test_the_stop_distance_leaves_sentences_alone():
    """n = 4: two that have nothing in common are 0.5 * 1 / 4 + 0.5 = 0.625 apart, the pair of 2 and 4 only 0.25."""
    vectors = np.eye(3)[[0, 1, 2, 1]]
    assert chunks(LinkageConfig(), vectors) == [[1], [2, 4], [3]]
    assert chunks(LinkageConfig(stop_distance=0.2), vectors) == [[1], [2], [3], [4]]
    assert chunks(LinkageConfig(stop_distance=0.25), vectors) == [[1], [2, 4], [3]]
    assert chunks(LinkageConfig(stop_distance=None), vectors) == [[1, 2, 3, 4]]


def test_a_long_document_is_linked_in_windows(monkeypatch):
    """Of 25 sentences 8, 8 and 9; distances stay those of the whole document."""
    monkeypatch.setattr("qrag_jax.chunking.strategies.clusters.EXACT_SENTENCES", 10)
    with pytest.warns(UserWarning, match="25 sentences are linked in 3 windows of at most 10; no chunk crosses"):
        found = chunks(LinkageConfig(num_clusters=1), np.ones((25, 2)))
    assert found == [list(range(1, 9)), list(range(9, 17)), list(range(17, 26))]
    with pytest.warns(UserWarning, match="windows"):  # neighbours are 1 / 25 apart, in a window of its own 1 / 8
        found = chunks(LinkageConfig(num_clusters=1, lambda_=1, stop_distance=0.05), np.ones((25, 2)))
    assert len(found) == 3
    assert chunks(LinkageConfig(num_clusters=1), np.ones((10, 2))) == [list(range(1, 11))]  # and no warning


def test_noise():
    """Two clusters, and three sentences that are like nothing."""
    vectors = topic_vectors([0, 0, 0, 1, 2, 2, 2, 3, 4], own=0.1)
    config = {"eps": 0.2, "min_samples": 2}
    assert chunks(DbscanConfig(**config, noise="single"), vectors) == [[1, 2, 3], [4], [5, 6, 7], [8], [9]]
    assert chunks(DbscanConfig(**config, noise="chunk"), vectors) == [[1, 2, 3], [4, 8, 9], [5, 6, 7]]
    assert chunks(DbscanConfig(**config, noise="nearest"), vectors) == [[1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert chunks(DbscanConfig(), np.eye(3)) == [[1], [2], [3]]  # nothing to be near to
    assert chunks(DbscanConfig(noise="chunk"), np.eye(3)) == [[1, 2, 3]]


@pytest.mark.parametrize("config", [LinkageConfig(), DbscanConfig()])
def test_few_sentences(config):
    assert chunks(config, np.zeros((0, 2))) == []
    assert chunks(config, np.ones((1, 2))) == [[1]]
    assert chunks(config, np.ones((2, 2))) == [[1, 2]]
    assert chunks(config, np.zeros((2, 2))) == [[1], [2]]  # nothing is known of either


@pytest.mark.parametrize("config", [LinkageConfig(), DbscanConfig()])
@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.array([[1.0], [np.inf]]), "vector of 'Sentence 1.' is not finite, it has inf"),
        (np.ones((2, 2, 2)), r"gave \(2, 2, 2\) for 2 texts"),
    ],
)
def test_an_embedder_that_misbehaves(config, vectors, message):
    with pytest.raises(InputError, match=message):
        chunks(config, vectors)


def test_groups_are_ordered_by_their_first_member():
    groups = group_labels(np.array([5, 2, 5, -1, 2, 9]))
    assert [group.tolist() for group in groups] == [[0, 2], [1, 4], [3], [5]]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LinkageConfig(2, 5), "linkage.num_clusters 2 and linkage.max_sentences 5: both limit"),
        (LinkageConfig(lambda_=1.5), "linkage.lambda_ 1.5: must lie in"),
        (DbscanConfig(noise="drop"), "dbscan.noise 'drop': choose one of single, chunk, nearest"),
    ],
)
def test_refusals(config, message):
    make = make_linkage if isinstance(config, LinkageConfig) else make_dbscan
    with pytest.raises(UsageError, match=message):
        make(config, lambda texts: np.ones((len(texts), 2)))
