"""Vectors of parents out of their texts: the beginning, windows, summaries and what stands in for these."""

import numpy as np
import pytest
from support.passages import count

from qrag_jax.annotate.summaries import SummariesConfig
from qrag_jax.index.parent_texts import text_parents, window_vectors
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.types import InputError, UsageError

WORDS = ["a", "b", "c", "x"]
SUMMARY = {"a a": "x.", "b b": "  ", "c": "c"}


def embed(texts):
    """Of the first three words, as an encoder reads that has a window of 5 with [CLS] and [SEP]."""
    return np.array([[text.replace(".", "").split()[:3].count(word) for word in WORDS] for text in texts], np.float32)


def generator(failing=()):
    def script(prompt):
        text = prompt[-1].content.split("\n")[1]
        return failed("no answer") if text in failing else SUMMARY[text]

    return ScriptedGenerator(script)


def test_windows_by_hand():
    # windows "a a b" (3 tokens) and "b b" (2): (3 (2, 1) / sqrt 5 + 2 (0, 1)) at length 1
    found = window_vectors(["a a b b b", "a b", "\ud800"], embed, count, 5)
    mean = 3 * np.array([2, 1]) / 5**0.5 + np.array([0, 2])
    np.testing.assert_allclose(found[0, :2], mean / np.linalg.norm(mean), atol=1e-6)
    np.testing.assert_allclose(found[1], [0.5**0.5, 0.5**0.5, 0, 0], atol=1e-6)
    assert found.dtype == np.float32 and not found[2].any()


def test_direct_reads_the_beginning_and_one_window_is_direct():
    direct, windows = (text_parents(name, embed, count, window_tokens=5) for name in ("direct", "windows"))
    assert direct.of_texts is not None and windows.of_texts is not None
    np.testing.assert_allclose(direct.of_texts(["a a a b b"]), [[1, 0, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(direct.of_texts(["a b c"]), windows.of_texts(["a b c"]), atol=1e-6)
    assert (direct.most_tokens, windows.most_tokens) == (3, None)
    assert windows.fingerprint == "windows of 5 tokens" and not direct.fingerprint


def test_summaries_and_windows_where_there_is_none():
    told = []
    parents = text_parents("summary", embed, count, window_tokens=5, generator=generator({"c"}), finished=told.append)
    assert parents.of_texts is not None and parents.most_tokens == 128
    with pytest.warns(UserWarning, match=r"2 of 3 parts have none \(empty summary: 1, call failed: 1\); their"):
        found = parents.of_texts(["a a", "b b", "c"])
    np.testing.assert_allclose(found, [[0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]], atol=1e-6)
    (summaries,) = told
    assert summaries.texts == ("x.", None, None) and summaries.reading.num_calls == 3
    np.testing.assert_allclose(parents.of_texts(["a a"]), [[0, 0, 0, 1]], atol=1e-6)  # nothing is lost, nothing said
    other = text_parents("summary", embed, count, generator=generator(), summaries=SummariesConfig(64))
    assert other.fingerprint != parents.fingerprint and "scripted" in other.fingerprint


def test_what_is_refused():
    with pytest.raises(UsageError, match="parents 'mean': .* choose one of direct, windows, summary"):
        text_parents("mean", embed, count)
    with pytest.raises(UsageError, match="window_tokens 2: give at least 3"):
        text_parents("windows", embed, count, window_tokens=2)
    with pytest.raises(UsageError, match="parents summary: needs a language model"):
        text_parents("summary", embed, count)
    all_fail = text_parents("summary", embed, count, generator=generator(SUMMARY))
    assert all_fail.of_texts is not None
    with pytest.raises(InputError, match="all 2 calls of the language model failed; the first one: no answer"):
        all_fail.of_texts(["a a", "c"])
