import jax
import numpy as np
import pytest

from qrag_jax.checkpoint import save_checkpoint
from qrag_jax.models.compressor import Compressor, describe_compressor, init, load_compressor
from qrag_jax.names import COMPRESSOR_KINDS
from qrag_jax.types import InputError, UsageError


def random_compressor(kind="both"):
    params = {name: np.array(array) for name, array in init(jax.random.key(0), kind, 6, 4).items()}
    return Compressor(params, kind, "f" * 64, "minilm", {"num_sections": 2})


def save(folder, compressor, **changed):
    about = describe_compressor(compressor) | changed
    save_checkpoint(folder, 3, {"compressor": dict(compressor.params)}, {}, metadata=about)
    return folder


@pytest.mark.parametrize("kind", COMPRESSOR_KINDS)
def test_a_run_gives_the_compressor_back(kind, tmp_path):
    compressor = random_compressor(kind)
    again = load_compressor(save(tmp_path / "run", compressor))
    assert (again.kind, again.fingerprint, again.encoder) == (kind, "f" * 64, "minilm")
    assert describe_compressor(again) == describe_compressor(compressor) | {"dim": 6, "hidden": 4}
    assert again.identity == compressor.identity
    for name, array in compressor.params.items():
        np.testing.assert_array_equal(again.params[name], array)


def test_another_run_is_refused(tmp_path):
    save_checkpoint(tmp_path / "run", 3, {"params": {"x": np.zeros(2)}}, {}, metadata={"kind": "tagger"})
    with pytest.raises(UsageError, match="is not a compressor: give a folder that `qrag train compressor"):
        load_compressor(tmp_path / "run")
    with pytest.raises(UsageError, match="nowhere: no such folder; give one that `qrag train compressor"):
        load_compressor(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file: no such folder; give one that `qrag train compressor"):
        load_compressor(tmp_path / "file")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"network": "lstm"}, "network 'lstm' is not one of mlp, attention, both"),
        ({"network": "mlp"}, "parameters are not child, child_bias"),
        ({"dim": 7}, r"child is \[6, 4\] and not \[7, 4\]"),
        ({"format": 2}, "format 2, this version reads 1"),
        ({"fingerprint": None}, "fingerprint is not a str"),
    ],
)
def test_what_does_not_fit_is_refused(changed, message, tmp_path):
    with pytest.raises(InputError, match=message):
        load_compressor(save(tmp_path / "run", random_compressor(), **changed))


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    compressor = random_compressor()
    compressor.params["out"][0, 0] = np.nan
    with pytest.raises(InputError, match="out is not finite; copy it again, or train it again"):
        load_compressor(save(tmp_path / "run", compressor))
