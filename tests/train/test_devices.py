"""One run on 1 device, on 8 virtual ones, in 2 processes, and in parts: the same losses but for rounding."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from support.runs import make_config, make_task
from support.tiers import PATIENCE

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.config import dump_config
from qrag_jax.sharding import MeshConfig
from qrag_jax.train.log import read_lines
from qrag_jax.train.qrag.config import DevConfig, RunConfig
from qrag_jax.train.qrag.loop import train
from qrag_jax.types import UsageError

NUM_UPDATES = 8


@pytest.fixture(autouse=True)
def split_small_arrays(monkeypatch):
    """Towers of tests are small: FSDP splits them all the same."""
    monkeypatch.setattr("qrag_jax.sharding.SMALLEST_SPLIT", 16)


def run_config(mode, accumulate=1, **options):
    num_steps = 2 if mode == "latent" else 1  # one step holds all that the encoder does, and compiles sooner
    config = make_config(
        mode,
        accumulate=accumulate,
        num_steps=num_steps,
        num_updates=NUM_UPDATES,
        log_every=1,
        save_every=NUM_UPDATES,
        **options,
    )
    return replace(config, data=replace(config.data, batch_size=16))


def losses(folder):
    return [line["loss"] for line in read_lines(folder / "metrics.jsonl")[1:]]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """By mode (its config, folder, result) of a run on one device."""

    @cache
    def train_one(mode):
        config, folder = run_config(mode), tmp_path_factory.mktemp("one") / mode
        return config, folder, train(config, make_task(), folder, dev=make_task(5, "dog"))

    return train_one


@pytest.mark.full  # in the quick tier: test_learner.py:test_eight_devices_give_the_losses_of_one
@pytest.mark.parametrize("mode", ["latent", "text"])
def test_devices_and_parts_do_not_change_the_losses(mode, one, tmp_path):
    """8 devices (latent); 2 groups of 2 that split parameters, and 2 parts one after the other (text)."""
    config, alone, result = one(mode)
    parts = replace(config.learner, accumulate=2)
    split = replace(config, mesh=MeshConfig(2, 2), learner=parts)
    # Text towers compile for minutes on eight virtual devices.
    kind = split if mode == "text" else replace(config, mesh=MeshConfig(8, 1))
    expected = losses(alone)
    assert len(expected) == NUM_UPDATES and max(expected) > 1e-3
    found = train(kind, make_task(), tmp_path, dev=make_task(5, "dog"))
    np.testing.assert_allclose(losses(tmp_path), expected, rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), found.params, result.params)


@pytest.mark.slow
def test_parameters_of_fsdp_are_split_while_a_run_lasts(tmp_path, monkeypatch):
    """Every device holds a quarter of each large array; the folder and the result hold whole ones."""
    import qrag_jax.train.qrag.loop as loop

    seen = []
    save = loop.save_run
    monkeypatch.setattr(
        loop, "save_run", lambda out, config, state, *rest: (seen.append(state), save(out, config, state, *rest))
    )
    config = replace(run_config("latent"), num_updates=2, mesh=MeshConfig(2, 4))
    trained = train(config, make_task(), tmp_path)
    state = seen[-1]
    quarters = [
        x for x in jax.tree.leaves((state.params, state.opt_state)) if x.addressable_shards[0].data.size * 4 == x.size
    ]
    assert len(quarters) > 10
    assert all(
        isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) == 1 for leaf in jax.tree.leaves(trained.params)
    )
    saved = load_checkpoint(tmp_path).arrays["params"]
    jax.tree.map(np.testing.assert_array_equal, saved, trained.params)


@pytest.mark.slow
def test_bfloat16_computes_with_float32_parameters(one, tmp_path):
    """Another rounding, the same learning; what is stored is float32."""
    trained = train(run_config("latent", dtype="bfloat16", dev=DevConfig()), make_task(), tmp_path)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(trained.params)} == {"float32"}
    found, expected = losses(tmp_path), losses(one("latent")[1])
    assert found != expected
    np.testing.assert_allclose(found[:3], expected[:3], rtol=0.1, atol=0.02)


@pytest.mark.parametrize(
    ("mesh", "accumulate", "message"),
    [
        (
            MeshConfig(3, 1),
            1,
            "data.batch_size=16 must be a multiple of mesh.data=3 x mesh.fsdp=1 x learner.accumulate=1",
        ),
        (
            MeshConfig(2, 4),
            4,
            "data.batch_size=16 must be a multiple of mesh.data=2 x mesh.fsdp=4 x learner.accumulate=4",
        ),
        (MeshConfig(16, 1), 1, "mesh.data=16 x mesh.fsdp=1 needs 16 devices, but there are 8"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(mesh, accumulate, message, tmp_path):
    config = run_config("latent", accumulate=accumulate)
    with pytest.raises(UsageError, match=message):
        train(replace(config, mesh=mesh), make_task(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


PROCESS = """\
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import qrag_jax.sharding
from qrag_jax.sharding import start_processes
qrag_jax.sharding.SMALLEST_SPLIT = 16
start_processes("localhost:{port}", 2, int(sys.argv[1]))
from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.config import load_config
from qrag_jax.train.qrag.loop import train
from qrag_jax.train.qrag.config import RunConfig
from qrag_jax.types import Stopped
from support.runs import after, make_task
config, out = load_config(RunConfig, {config!r}), Path({out!r})
task, dev = make_task(), make_task(5, "dog")
try:  # the second process alone is asked to stop; both do
    train(config, task, out, dev=dev, stop=after(4) if sys.argv[1] == "1" else lambda: False)
except Stopped:
    train(config, task, out, dev=dev, start=load_checkpoint(out, groups=()))
"""


@pytest.mark.slow
def test_two_processes_train_as_one(one, tmp_path):
    """Each with 2 devices, of which 2 split the parameters; stopped and resumed on the way."""
    config, alone, _ = one("latent")
    both = replace(config, mesh=MeshConfig(2, 2))
    (tmp_path / "both.yaml").write_text(dump_config(both))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    tests = str(Path(__file__).parent.parent)
    script = PROCESS.format(
        tests=tests,
        port=port,
        config=str(tmp_path / "both.yaml"),
        out=str(tmp_path / "both"),
    )
    two_devices = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=2")
    flags = {"XLA_FLAGS": two_devices, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(i)], env={**os.environ, **flags}, stderr=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    np.testing.assert_allclose(losses(tmp_path / "both"), losses(alone), rtol=1e-5, atol=1e-5)
    expected, found = (load_checkpoint(folder) for folder in (alone, tmp_path / "both"))
    assert found.metadata["dev"]["update"] == expected.metadata["dev"]["update"]
    params = (saved.arrays["params"] for saved in (expected, found))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), *params)


def test_a_run_config_with_a_mesh_comes_back(tmp_path):
    from qrag_jax.config import load_config

    (tmp_path / "x.yaml").write_text(dump_config(RunConfig(mesh=MeshConfig(4, 2))))
    assert load_config(RunConfig, tmp_path / "x.yaml").mesh == MeshConfig(4, 2)
