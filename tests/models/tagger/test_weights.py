import io
import json

import numpy as np
import pytest

from qrag_jax.checkpoint import save_checkpoint
from qrag_jax.models.tagger.features import Basis
from qrag_jax.models.tagger.surface import NUM_CUES
from qrag_jax.models.tagger.tagger import NUM_CLASSES, Tagger, describe_tagger, load_tagger, save_tagger, tagger_arrays
from qrag_jax.types import InputError, UsageError


def random_tagger(num_features=5, dim=6, threshold=0.25):
    rng = np.random.default_rng(0)
    basis = Basis(rng.normal(size=dim), rng.normal(size=(dim, 2)), rng.normal(size=num_features), np.ones(num_features))
    params = {
        "weights": rng.normal(size=(num_features, NUM_CLASSES)),
        "cues": rng.normal(size=(NUM_CUES, NUM_CLASSES)),
        "bias": rng.normal(size=NUM_CLASSES),
    }
    return Tagger(params, basis, threshold, "f" * 64, "minilm", {"num_documents": 2})


def same(first, second, tolerance):
    assert (first.threshold, first.fingerprint, first.encoder) == (
        second.threshold,
        second.fingerprint,
        second.encoder,
    )
    for name, array in tagger_arrays(first).items():
        np.testing.assert_allclose(tagger_arrays(second)[name], array, rtol=tolerance, atol=tolerance)


def test_a_file_gives_the_tagger_back(tmp_path):
    tagger = random_tagger()
    save_tagger(tagger, tmp_path / "t.npz")
    again = load_tagger(tmp_path / "t.npz")
    same(tagger, again, 1e-3)
    assert again.trained_on == {"num_documents": 2}
    save_tagger(again, tmp_path / "u.npz")
    assert (tmp_path / "t.npz").read_bytes() == (tmp_path / "u.npz").read_bytes()


def test_a_run_gives_the_tagger_back(tmp_path):
    tagger = random_tagger()
    save_checkpoint(tmp_path / "run", 3, {"tagger": tagger_arrays(tagger)}, {}, metadata=describe_tagger(tagger))
    same(tagger, load_tagger(tmp_path / "run"), 1e-6)


def test_another_run_is_refused(tmp_path):
    save_checkpoint(tmp_path / "run", 3, {"params": {"x": np.zeros(2)}}, {}, metadata={"task": "worlds"})
    with pytest.raises(UsageError, match="is not a tagger: give a folder that `qrag train tagger"):
        load_tagger(tmp_path / "run")
    with pytest.raises(UsageError, match=r"nowhere: no such folder or file; give a folder that `qrag train tagger"):
        load_tagger(tmp_path / "nowhere")


def test_damaged_bytes_are_refused(tmp_path):
    path = tmp_path / "t.npz"
    save_tagger(random_tagger(), path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(60, len(whole) - 1_000, 20).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(damaged))
        try:
            same(load_tagger(path), random_tagger(), 1e-3)  # a bit of a header that says nothing
        except InputError as error:
            assert str(path) in str(error)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="damaged"):
        load_tagger(path)


def rewritten(path, about=None, **changed):
    tagger = random_tagger()
    facts = describe_tagger(tagger) | (about or {})
    arrays = tagger_arrays(tagger) | changed
    content = io.BytesIO()
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    np.savez(content, about=text, **{name: array for name, array in arrays.items() if array is not None})
    path.write_bytes(content.getvalue())
    return path


@pytest.mark.parametrize(
    ("about", "arrays", "message"),
    [
        ({"kind": "retriever"}, {}, "does not say that it is a tagger"),
        ({"threshold": 1.5}, {}, "threshold 1.5 is not in"),
        ({"fingerprint": 3}, {}, "fingerprint is not a str"),
        ({"format": 2}, {}, "format 2, this version reads 1"),
        ({}, {"bias": None}, "bias missing"),
        ({}, {"std": np.zeros(5)}, "std is not positive"),
        ({}, {"bias": np.full(NUM_CLASSES, np.nan)}, "bias is not finite"),
        ({}, {"weights": np.zeros((4, NUM_CLASSES))}, r"weights is \[4, 4\] and not \[5, 4\]"),
        ({}, {"mean": np.zeros((5, 1)), "std": np.ones((5, 1))}, r"mean is \[5, 1\] and not \[5\] \(features\)"),
        ({}, {"centre": np.zeros(7)}, r"components is \[6, 2\] and not \[7, 2\] \(dim, components\)"),
        (
            {},
            {name: np.zeros(()) for name in ("centre", "components")},
            r"centre is \[\] and not \[\] \(dim\); components is",
        ),
        ({}, {"bias": np.array(list("abcd"))}, "bias is not finite"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, about, arrays, message):
    with pytest.raises(InputError, match=message):
        load_tagger(rewritten(tmp_path / "t.npz", about, **arrays))


def test_pickled_arrays_are_never_read(tmp_path):
    content = io.BytesIO()
    np.savez(content, about=np.array([{"kind": "tagger"}], object))
    (tmp_path / "t.npz").write_bytes(content.getvalue())
    with pytest.raises(InputError, match="damaged, or not a file of a tagger"):
        load_tagger(tmp_path / "t.npz")
