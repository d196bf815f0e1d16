import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.eval.study.cells.costs import Meter
from qrag_jax.eval.study.cells.sentence_cache import SentenceCache
from qrag_jax.types import InputError

TEXTS = ["one", "two", "\ud800 lone"]
VECTORS = np.array([[0.6, 0.8], [1.0, -0.0], [np.float32(1) / 3, 0.0]], np.float32)
COST = Meter(0.125, 21, 3e7, 3, 1)


@pytest.fixture
def cache(tmp_path):
    return SentenceCache(tmp_path / "sentences")


def test_what_is_kept_comes_back_to_the_bit(cache):
    assert cache.get("minilm", TEXTS) is None
    cache.put("minilm", TEXTS, VECTORS, COST)
    vectors, cost = cache.get("minilm", TEXTS)
    assert vectors.tobytes() == VECTORS.tobytes() and vectors.dtype == np.float32 and cost == COST
    assert len(list(cache.folder.iterdir())) == 1


def test_a_call_is_its_encoder_and_all_its_texts_in_order(cache):
    cache.put("minilm", TEXTS, VECTORS, COST)
    for texts in (TEXTS[:2], TEXTS[::-1], [*TEXTS, ""], ["onetwo", *TEXTS[2:]], []):
        assert cache.get("minilm", texts) is None
    assert cache.get("other", TEXTS) is None


def test_no_texts(cache):
    cache.put("minilm", [], np.zeros((0, 2), np.float32), Meter())
    vectors, cost = cache.get("minilm", [])
    assert vectors.shape == (0, 2) and cost == Meter()


@given(a=st.lists(st.text(max_size=3), max_size=3), b=st.lists(st.text(max_size=3), max_size=3))
def test_different_calls_have_different_files(a, b):
    cache = SentenceCache(Path("nowhere"))
    assert (cache.path("f", a) == cache.path("f", b)) == (a == b)


def test_every_damaged_byte_and_every_missing_end_is_found(cache):
    cache.put("minilm", TEXTS, VECTORS, COST)
    path = cache.path("minilm", TEXTS)
    whole = path.read_bytes()
    damaged = [whole[:size] for size in range(len(whole))]
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    for content in [*damaged, whole + b"\0"]:
        path.write_bytes(content)
        with pytest.warns(UserWarning, match=r"\.vectors: damaged \(its sha256 differs\); its sentences are embedded"):
            assert cache.get("minilm", TEXTS) is None
    cache.put("minilm", TEXTS, VECTORS, COST)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get("minilm", TEXTS) is not None


def test_the_file_of_another_call_is_not_taken(cache):
    cache.put("minilm", TEXTS, VECTORS, COST)
    path = cache.path("minilm", ["a", "b", "c"])
    cache.path("minilm", TEXTS).rename(path)
    with pytest.warns(UserWarning, match="it contains another call"):
        assert cache.get("minilm", ["a", "b", "c"]) is None


def test_wrong_vectors_are_never_kept(cache):
    with pytest.raises(InputError):
        cache.put("minilm", TEXTS, np.array([[np.nan, 0], [1, 0], [0, 1]], np.float32), COST)
    assert not cache.folder.exists()
