import json
import os

import numpy as np
import pytest

from qrag_jax.retrieval.mdp.batching import Sample
from qrag_jax.retrieval.mdp.tasks import examples_task
from qrag_jax.train.q.saving import save_batch
from qrag_jax.types import Example


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
