import json
import os
from pathlib import Path

import numpy as np
import pytest

from qrag_jax.checkpoint import Checkpoint
from qrag_jax.qrag.batching import Sample
from qrag_jax.qrag.tasks import examples_task
from qrag_jax.train.qrag.saving import check_same_encoder, save_batch
from qrag_jax.types import Example, InputError


def test_a_bad_batch_is_saved_whole_or_not_at_all(tmp_path, monkeypatch):
    """A full disk leaves what an earlier run wrote there as it is."""
    task = examples_task("own", [Example("q0", "Where?", ("here", "there", "nowhere"), (1,))])
    ids, one = np.arange(3)[None], np.zeros(1, int)
    sample = Sample(ids[0], one, ids, ids, one + 3, ids >= 0, ids == 1, one)
    path = save_batch(tmp_path, 7, {"loss": float("nan")}, task, sample)
    saved = path.read_bytes()
    assert json.loads(saved) == {
        "update": 7,
        "metrics": {"loss": "nan"},
        "environments": [{"question": "Where?", "chunks": ["here", "there", "nowhere"], "gold": [1]}],
    }

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save_batch(tmp_path, 7, {"loss": float("inf")}, task, sample)
    assert path.read_bytes() == saved and list(tmp_path.iterdir()) == [path]


def test_a_run_goes_on_under_another_release_of_transformers():
    """Each writes its number, and other defaults, into `config.json`; what the encoder is made from is compared."""
    shape = {"model_type": "bert", "hidden_size": 4, "layer_norm_eps": 1e-12}

    def files(values, weights=b"w"):
        return {"encoder/config.json": json.dumps(values).encode(), "encoder/model.safetensors": weights}

    saved = Checkpoint(Path("run/step_1"), 1, {}, {}, files({**shape, "transformers_version": "5.23.0"}), {}, {})
    now = {**shape, "transformers_version": "5.24.0", "is_decoder": False}
    check_same_encoder(saved, files(now))
    with pytest.raises(InputError, match=r"run/step_1: files/encoder/config\.json is not what model\.encoder\.source"):
        check_same_encoder(saved, files({**now, "hidden_size": 8}))
    with pytest.raises(InputError, match=r"files/encoder/model\.safetensors is not"):
        check_same_encoder(saved, files(now, b"v"))
    with pytest.raises(InputError, match=r"files/encoder/config\.json is not"):
        check_same_encoder(saved, {"encoder/model.safetensors": b"w"})
