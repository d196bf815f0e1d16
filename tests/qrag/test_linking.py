from dataclasses import replace

import numpy as np
import pytest

from qrag_jax.qrag import batching as linking
from qrag_jax.qrag.batching import MAX_LINKED, Contexts, Packer, make_linker
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.text_links import BRIDGES, LINKS, MAX_WORDS, bridge_features, link_features, shared_words
from qrag_jax.types import InputError, UsageError

TEXTS = ["Ada: met Bo", "Bo: saw Cy in 1979", "Cy: a cat", "a dog", "Bo: again"]
QUESTIONS = ["who is Bo", "what did Ada do"]
LINKED = EnvConfig(links=True)


def make_contexts():
    chunks = np.array([[3, 0, 1, 2], [1, 4, -1, -1], [2, 1, 0, -1]], np.int32)
    return Contexts(np.array([1, 0, 0], np.int32), chunks, chunks == 1)


def test_a_batch_is_a_loop_over_single_contexts_and_padding_is_zero():
    contexts = make_linker(replace(LINKED, coverage=True, bridges=True), TEXTS, QUESTIONS)(make_contexts())
    assert contexts.links.shape == (3, 5, 4, len(LINKS) + len(BRIDGES))
    assert contexts.words.shape == (3, 5, MAX_WORDS)
    for row, (question, chunks) in enumerate(zip(contexts.questions, contexts.chunks, strict=True)):
        links, words = contexts.links[row], contexts.words[row]
        n = int((chunks >= 0).sum())
        texts = QUESTIONS[question], [TEXTS[i] for i in chunks[:n]]
        for alone, columns in ((link_features, slice(len(LINKS))), (bridge_features, slice(len(LINKS), None))):
            np.testing.assert_array_equal(links[: 1 + n, :n, columns], alone(*texts))
            assert alone(*texts).any()
        np.testing.assert_array_equal(words[: 1 + n], shared_words(*texts))
        assert words.any()
        assert not words[1 + n :].any()
        assert not links[1 + n :].any()
        assert not links[:, n:].any()


def test_a_context_is_read_once(monkeypatch):
    calls = []
    monkeypatch.setattr(linking, "link_features", lambda *texts: calls.append(texts) or link_features(*texts))
    link = make_linker(LINKED, TEXTS, QUESTIONS)
    first = link(make_contexts())
    np.testing.assert_array_equal(link(make_contexts()).links, first.links)
    assert len(calls) == 3


def test_parts_of_a_packed_batch_have_their_own_links():
    contexts = make_contexts()
    two = make_linker(LINKED, TEXTS, QUESTIONS)(
        Contexts(*(getattr(contexts, f)[:2] for f in ("questions", "chunks", "gold")))
    )
    assert two.words is None  # nobody asked
    sample = Packer(multiple=4).stack(two, np.tile(np.arange(4), (2, 1)), np.array([4, 2]), 2)
    np.testing.assert_array_equal(sample.links[:, 0], two.links)


def test_a_run_without_bridges_reads_links_alone():
    links = make_linker(LINKED, TEXTS, QUESTIONS)(make_contexts()).links
    more = make_linker(replace(LINKED, bridges=True), TEXTS, QUESTIONS)(make_contexts()).links
    np.testing.assert_array_equal(links, more[..., : len(LINKS)])


def test_a_run_without_links_reads_nothing():
    contexts = make_contexts()
    assert make_linker(EnvConfig(), np.zeros((5, 2)), QUESTIONS)(contexts) is contexts


def test_refusals():
    vectors = np.zeros((5, 2), np.float32)
    for pools in ((vectors, QUESTIONS), (TEXTS, vectors), (None, QUESTIONS)):
        with pytest.raises(UsageError, match="env.links=true compares the texts of a context, and these are vectors"):
            make_linker(LINKED, *pools)
    width = MAX_LINKED + 1
    link = make_linker(LINKED, ["a"] * width, ["q"])
    ids = np.arange(width, dtype=np.int32)[None]
    with pytest.raises(InputError, match="a context of 65 chunks: .* for at most 64; use a run with env.links=false"):
        link(Contexts(np.zeros(1, np.int32), ids, ids == 0))
    link(Contexts(np.zeros(1, np.int32), np.where(ids < MAX_LINKED, ids, -1), ids == 0))
