import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.processes import held
from support.tiers import PATIENCE

from qrag_jax import __version__, checkpoint
from qrag_jax.checkpoint import (
    load_checkpoint,
    newest_valid_step,
    require_same_config,
    save_checkpoint,
)
from qrag_jax.files.manifest import write_manifest
from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.files.whole_file import write_json
from qrag_jax.types import InputError, UsageError

# Of a process that starts another JAX, with one device.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
CONFIG = {"learner": {"gamma": 0.9, "sizes": [1, 2]}, "name": "run"}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    w: object
    step: object


def make_arrays():
    params = {"enc": {"kernel": jnp.arange(6.0).reshape(3, 2), "none": None}, "half": jnp.ones(2, jnp.bfloat16)}
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=1e-2))
    opt_state = optimiser.init(params)
    _, opt_state = optimiser.update(jax.tree.map(jnp.ones_like, params), opt_state, params)
    return {
        "params": params,
        "opt_state": opt_state,
        "state": State(w=[jnp.zeros((0, 3)), jnp.array(True)], step=jnp.int32(7)),
        "key": jax.random.key(3),
        "keys": {"rbg": jax.random.split(jax.random.key(1, impl="rbg"), 4)},
        "step": 12,
        "numpy": np.float64(0.1),
        "nothing": optax.EmptyState(),
    }


def save(folder, step=12, **changes):
    return save_checkpoint(folder, step, make_arrays() | changes, CONFIG, {"tokenizer.json": '{"é": 1}'}, {"loss": 0.5})


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        if jnp.issubdtype(getattr(b, "dtype", np.dtype(int)), jax.dtypes.prng_key):
            assert a.dtype == b.dtype
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_round_trip_into_templates(tmp_path):
    arrays = make_arrays()
    save(tmp_path)
    loaded = load_checkpoint(tmp_path, templates=jax.tree.map(lambda x: x, arrays))
    for group, wanted in arrays.items():
        assert_same(loaded.arrays[group], wanted)
    assert isinstance(loaded.arrays["opt_state"][1][0], optax.ScaleByAdamState)
    assert isinstance(loaded.arrays["step"], int)
    assert isinstance(loaded.arrays["params"]["half"], jax.Array)
    assert isinstance(loaded.arrays["numpy"], np.ndarray)
    assert loaded.config == CONFIG
    assert loaded.files == {"tokenizer.json": '{"é": 1}'.encode()}
    assert (loaded.step, loaded.metadata) == (12, {"loss": 0.5})
    assert loaded.versions["qrag_jax"] == __version__ and {"jax", "flax", "python"} <= set(loaded.versions)


def test_round_trip_into_shapes(tmp_path):
    arrays = make_arrays()
    save(tmp_path)
    shapes = {g: jax.eval_shape(lambda t=arrays[g]: t) for g in ("params", "opt_state", "key", "keys", "state")}
    loaded = load_checkpoint(tmp_path, shapes, groups=list(shapes))
    assert list(loaded.arrays) == list(shapes)
    for group in shapes:
        assert_same(loaded.arrays[group], arrays[group])
    # the key goes on where it stopped
    np.testing.assert_array_equal(jax.random.normal(loaded.arrays["key"], (3,)), jax.random.normal(arrays["key"], (3,)))


def test_without_templates_nested_dicts_of_numpy(tmp_path):
    save(tmp_path)
    arrays = load_checkpoint(tmp_path).arrays
    assert set(arrays) == set(make_arrays())
    assert isinstance(arrays["params"]["enc"]["kernel"], np.ndarray)
    np.testing.assert_array_equal(arrays["params"]["enc"]["kernel"], np.arange(6.0).reshape(3, 2))
    assert arrays["params"]["half"].dtype == jnp.bfloat16
    assert arrays["opt_state"]["1"]["0"]["count"] == 1
    assert arrays["state"]["w"]["0"].shape == (0, 3)
    assert arrays["step"] == 12 and arrays["nothing"] == {}
    assert jax.random.key_impl(arrays["keys"]["rbg"]) == "rbg"


def test_a_python_number_fits_an_array_of_its_kind(tmp_path):
    save_checkpoint(tmp_path, 1, {"step": 5, "array": jnp.int32(6)}, {})
    arrays = load_checkpoint(tmp_path, {"step": jax.eval_shape(lambda: 0), "array": 0}).arrays
    assert arrays["step"].dtype == jnp.int32 and arrays["step"] == 5
    assert arrays["array"] == 6 and isinstance(arrays["array"], int)
    with pytest.raises(InputError, match=r"step is int64\[\] in the checkpoint and float32\[\] in the model"):
        load_checkpoint(tmp_path, {"step": jnp.float32(0)})


@pytest.mark.parametrize("kind", [">f4", ">i8", "<f4"])
def test_numbers_of_another_byte_order_come_back(tmp_path, kind):
    values = {"w": np.arange(3, dtype=kind), "empty": np.zeros(0, kind)}
    save_checkpoint(tmp_path, 1, {"params": values}, CONFIG)
    found, again = (load_checkpoint(tmp_path, like).arrays["params"] for like in (None, {"params": values}))
    for name, value in values.items():
        assert found[name].dtype == value.dtype.newbyteorder("=") and again[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)
        np.testing.assert_array_equal(again[name], value)


def test_the_byte_order_that_older_checkpoints_tell_is_no_damage(tmp_path):
    step = save_checkpoint(tmp_path, 1, {"params": {"w": np.arange(3, dtype=np.float32)}}, CONFIG)
    path = step / "metadata.json"
    path.write_text(path.read_text().replace('"float32"', '">f4"'))
    write_manifest(step)
    found = load_checkpoint(tmp_path).arrays["params"]["w"]
    assert found.dtype == np.float32 and found.tolist() == [0, 1, 2]


def test_what_is_restored_may_be_donated(tmp_path):
    wanted = {"w": jnp.arange(1024.0)}
    save_checkpoint(tmp_path, 1, {"params": wanted}, {})
    restored = load_checkpoint(tmp_path, {"params": wanted}).arrays["params"]
    again = jax.jit(lambda p: jax.tree.map(lambda x: x + 1, p), donate_argnums=0)(restored)
    chex.assert_trees_all_equal(again, {"w": jnp.arange(1024.0) + 1})


def test_sharded_arrays_come_back_sharded_and_on_another_number_of_devices(tmp_path):
    def sharding(num_devices):
        mesh = jax.make_mesh((num_devices,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
        return NamedSharding(mesh, P("d"))

    value = jnp.arange(64.0).reshape(8, 8)
    save_checkpoint(tmp_path, 1, {"params": {"w": jax.device_put(value, sharding(8))}}, {})
    for num_devices in (8, 2):
        template = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=sharding(num_devices))}
        found = load_checkpoint(tmp_path, {"params": template}).arrays["params"]["w"]
        assert found.sharding == sharding(num_devices)
        np.testing.assert_array_equal(found, value)


@pytest.mark.slow
def test_a_checkpoint_of_eight_devices_opens_in_a_process_with_one(tmp_path):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    value = jax.device_put(jnp.arange(64.0).reshape(8, 8), NamedSharding(mesh, P("d")))
    save_checkpoint(tmp_path / "run", 1, {"params": {"w": value}, "key": jax.random.key(0)}, {})
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")  # and after being moved
    code = """
import sys, jax
from qrag_jax.checkpoint import load_checkpoint
assert len(jax.devices()) == 1
print(load_checkpoint(sys.argv[1]).arrays["params"]["w"].sum())
"""
    argv = [sys.executable, "-c", code, str(tmp_path / "elsewhere")]
    done = subprocess.run(argv, capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 63 * 64 / 2


def test_a_moved_checkpoint_loads_and_holds_no_path_of_its_birth(tmp_path):
    place = tmp_path / "a-place-to-be-born"
    save(place)
    for path in place.rglob("*"):
        assert not path.is_file() or str(place).encode() not in path.read_bytes(), path
    shutil.move(place, tmp_path / "moved")
    assert load_checkpoint(tmp_path / "moved").step == 12
    assert load_checkpoint(tmp_path / "moved" / "step_12").step == 12


def test_newest_is_default_and_only_the_newest_stay(tmp_path):
    for step in (5, 30, 9, 100):
        save_checkpoint(tmp_path, step, {"step": step}, {}, keep=None)
    assert checkpoint_steps(tmp_path) == [5, 9, 30, 100]
    assert load_checkpoint(tmp_path).arrays["step"] == 100
    assert load_checkpoint(tmp_path, step=9).arrays["step"] == 9
    save_checkpoint(tmp_path, 200, {"step": 200}, {}, keep=2)
    assert checkpoint_steps(tmp_path) == [100, 200]
    save_checkpoint(tmp_path, 1, {"step": 1}, {}, keep=1)  # the one just written always stays
    assert checkpoint_steps(tmp_path) == [1]


def test_a_step_written_again_is_replaced(tmp_path):
    save_checkpoint(tmp_path, 5, {"x": jnp.zeros(3)}, {})
    save_checkpoint(tmp_path, 5, {"x": jnp.ones(3)}, {})
    np.testing.assert_array_equal(load_checkpoint(tmp_path).arrays["x"], np.ones(3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_5"]


def test_a_failed_save_leaves_the_old_step_and_no_litter(tmp_path):
    save_checkpoint(tmp_path, 5, {"x": jnp.zeros(3)}, {})
    with pytest.raises(TypeError, match="cannot be written to a config"):
        save_checkpoint(tmp_path, 5, {"x": jnp.ones(3)}, {"bad": object()})
    np.testing.assert_array_equal(load_checkpoint(tmp_path).arrays["x"], np.zeros(3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_5"]


def test_a_killed_save_is_not_a_checkpoint_and_does_not_hinder_the_next(tmp_path):
    (tmp_path / ".tmp-step_7" / "arrays").mkdir(parents=True)
    (tmp_path / ".tmp-step_7" / "arrays" / "torn").write_bytes(b"x")
    assert checkpoint_steps(tmp_path) == []
    save_checkpoint(tmp_path, 7, {"x": 1}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_7"]
    assert not (tmp_path / "step_7" / "arrays" / "torn").exists()


class KilledError(BaseException):
    """As SIGKILL: once it was raised, nothing is renamed or deleted any more, not even in `finally`."""


class Life:
    """Ends before the n-th rename, or in the middle of the n-th deletion of a folder."""

    def __init__(self, patch, num_deeds):
        self.left, self.rename, self.rmtree = num_deeds, Path.rename, shutil.rmtree
        patch.setattr(Path, "rename", lambda path, to: self.spend() and self.rename(path, to))
        patch.setattr(shutil, "rmtree", self.delete)

    def spend(self):
        if self.left <= 0:
            self.left = -1
            raise KilledError
        self.left -= 1
        return True

    def delete(self, path, ignore_errors=False):
        if Path(path).exists():
            if self.left == 0:
                next(file for file in sorted(Path(path).rglob("*")) if file.is_file()).unlink()
            self.spend()
            self.rmtree(path, ignore_errors=ignore_errors)


@pytest.mark.parametrize(("saved", "keep", "num_deaths"), [(3, 1, 5), (2, 2, 3)])
def test_a_save_that_is_killed_anywhere_loses_no_more_than_itself(tmp_path, monkeypatch, saved, keep, num_deaths):
    """A step is added, or replaced: what is newest afterwards is whole, and the old or the new one to the bit."""
    deaths = 0
    while True:
        folder = tmp_path / str(deaths)
        for step in (1, 2):
            save_checkpoint(folder, step, {"x": step}, {})
        with monkeypatch.context() as patch:
            Life(patch, deaths)
            try:
                save_checkpoint(folder, saved, {"x": 10}, {}, keep=keep)
                break
            except KilledError:
                deaths += 1
        step, skipped = newest_valid_step(folder)
        loaded = load_checkpoint(folder)
        assert step in (2, saved) and skipped == () and loaded.step == step
        assert loaded.arrays["x"] in ((2, 10) if saved == 2 else (2,) if step == 2 else (10,))
        assert load_checkpoint(loaded.folder).arrays == loaded.arrays
        save_checkpoint(folder, 4, {"x": 4}, {})  # and the next save tidies up
        assert all(path.name.startswith("step_") for path in folder.iterdir())
        assert load_checkpoint(folder, step=step).arrays == loaded.arrays
    assert deaths == num_deaths


def test_a_step_that_was_moved_aside_and_not_replaced_is_found_and_put_back(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 5, {"x": 1}, {})
    with monkeypatch.context() as patch:
        Life(patch, 1)
        with pytest.raises(KilledError):
            save_checkpoint(tmp_path, 5, {"x": 2}, {})
    aside, begun = sorted(p.name for p in tmp_path.iterdir())
    assert aside == ".old-step_5" and begun.startswith(f".tmp-step_5-{os.getpid()}-")
    assert checkpoint_steps(tmp_path) == [5] and newest_valid_step(tmp_path) == (5, ())
    for wanted in ({}, {"step": 5}):
        assert load_checkpoint(tmp_path, **wanted).arrays == {"x": 1}
    save_checkpoint(tmp_path, 6, {"x": 3}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_5", "step_6"]
    assert load_checkpoint(tmp_path, step=5).arrays == {"x": 1}


def test_a_step_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """Every file and folder of the step is synced, then it is renamed, then the folder that holds the name is."""
    synced, order = set(), []
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.add(os.fstat(fd).st_ino), order.append("sync"), fsync(fd)))
    monkeypatch.setattr(Path, "rename", lambda path, to: (order.append(path.name[:12]), rename(path, to)))
    step = save_checkpoint(tmp_path, 1, {"x": jnp.ones(3)}, {}, {"a/b/c": "x"})
    everything = {path.stat().st_ino for path in (tmp_path, step, *step.rglob("*"))}
    assert synced == everything
    assert order.index(".tmp-step_1-") == len(order) - 2 and order[-1] == "sync"


def test_who_saves_while_another_does_is_refused(tmp_path, monkeypatch):
    """Two processes with a save of the same step in hand: one is told of the other, whose step is whole."""
    save_checkpoint(tmp_path, 1, {"x": 1}, {})
    with held(tmp_path, "a save of step 2") as other:
        begun = tmp_path / f".tmp-step_2-{other.pid}-00000000"
        begun.mkdir()
        with pytest.raises(UsageError, match=rf"in use by a save of step 2 \(process {other.pid} on "):
            save_checkpoint(tmp_path, 2, {"x": 2}, {})
        assert begun.is_dir()  # the living are let be
    save_checkpoint(tmp_path, 2, {"x": 3}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_1", "step_2"]
    assert load_checkpoint(tmp_path).arrays == {"x": 3}


@pytest.mark.parametrize("deed", ["delete", "write", "alter"])
def test_files_that_change_while_they_are_written_make_no_step(tmp_path, monkeypatch, deed):
    """Somebody who holds no lock, as of a version that had none: the manifest must not call a mixture whole."""
    save_checkpoint(tmp_path, 1, {"x": jnp.zeros(3)}, {})
    manifest = checkpoint.write_manifest

    def interfere(folder):
        path = folder / (
            "arrays/more" if deed == "write" else "arrays/_METADATA" if deed == "delete" else "config.yaml"
        )
        path.unlink() if deed == "delete" else path.write_text("seed: 2\n")
        return manifest(folder)

    monkeypatch.setattr(checkpoint, "write_manifest", interfere)
    with pytest.raises(InputError, match="changed while the step was written: another process works in") as caught:
        save_checkpoint(tmp_path, 2, {"x": jnp.ones(3)}, {"seed": 1})
    assert str(tmp_path) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_the_newest_valid_step(tmp_path, caplog):
    assert newest_valid_step(tmp_path / "absent") == newest_valid_step(tmp_path) == (None, ())
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, step, {"x": step}, {}, metadata={"group": "x"})
    assert newest_valid_step(tmp_path) == (10, ())
    assert load_checkpoint(tmp_path).skipped == () and not caplog.records
    (tmp_path / "step_11").mkdir()
    (tmp_path / "step_10" / "config.yaml").unlink()
    bad = (
        f"{tmp_path}/step_11: no manifest.json, so the checkpoint is incomplete",
        f"{tmp_path}/step_10/config.yaml: missing",
    )
    assert newest_valid_step(tmp_path) == (2, bad) and not caplog.records
    loaded = load_checkpoint(tmp_path, groups=lambda metadata: [metadata["group"]])
    assert (loaded.step, loaded.arrays, loaded.skipped, loaded.folder) == (2, {"x": 2}, bad, tmp_path / "step_2")
    (record,) = caplog.records
    assert record.getMessage().startswith(f"damaged and skipped: {bad[0]}; {bad[1]}. {tmp_path}/step_2 is read")
    for asked in ({"folder": tmp_path, "step": 10}, {"folder": tmp_path / "step_10"}):
        with pytest.raises(InputError, match=r"step_10/config.yaml: missing; delete this step's folder"):
            load_checkpoint(**asked)
    shutil.rmtree(tmp_path / "step_1")
    (tmp_path / "step_2" / "metadata.json").write_text("")
    with pytest.raises(InputError, match=r"every checkpoint here is damaged: .*step_11: no manifest.*/step_2/metadata"):
        load_checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"every checkpoint here is damaged: .*step_10/config.yaml: missing"):
        newest_valid_step(tmp_path)


def test_absent_folder_step_and_group(tmp_path):
    with pytest.raises(UsageError, match=r"absent: no such checkpoint folder"):
        load_checkpoint(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"no checkpoint here \(no step_<n> folder\)"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, 3, {"x": 1, "y": 2}, {})
    with pytest.raises(UsageError, match=r"no checkpoint of step 4; choose from 3"):
        load_checkpoint(tmp_path, step=4)
    with pytest.raises(InputError, match=r"no group params, z in this checkpoint; it has x, y"):
        load_checkpoint(tmp_path, {"z": 1}, groups=["x", "params"])


def test_what_does_not_fit_the_template_is_named_together(tmp_path):
    save_checkpoint(tmp_path, 1, {"params": {"a": jnp.zeros((2, 3)), "b": jnp.zeros(2), "old": jnp.zeros(1)}}, {})
    template = {"a": jnp.zeros((3, 2)), "b": jnp.zeros(2, jnp.bfloat16), "new": jnp.zeros(1)}
    with pytest.raises(InputError) as caught:
        load_checkpoint(tmp_path, {"params": template})
    for part in (
        "params/new is not in the checkpoint",
        "params/old is not in the model",
        "params/a is float32[2, 3] in the checkpoint and float32[3, 2] in the model",
        "params/b is float32[2] in the checkpoint and bfloat16[2] in the model",
        "config.yaml",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("leaf", ["text", object(), np.array(["a"])])
def test_only_arrays_and_numbers_are_saved(tmp_path, leaf):
    with pytest.raises(InputError, match=r"params/x: .* cannot be saved as an array"):
        save_checkpoint(tmp_path, 1, {"params": {"x": leaf}}, {})


@pytest.mark.parametrize("name", ["../x", "/x", "a\\b", "", "C:x", "a/../../x"])
def test_extra_files_stay_in_the_folder(tmp_path, name):
    with pytest.raises(InputError, match="is not a file name under the checkpoint"):
        save_checkpoint(tmp_path, 1, {"x": 1}, {}, {name: b""})


def test_what_the_manifest_does_not_list_is_not_read(tmp_path):
    files = save_checkpoint(tmp_path, 1, {}, {}, {"encoder/config.json": "{}"}) / "files"
    (files / ".DS_Store").write_bytes(b"x")
    (tmp_path / "id_rsa").write_text("A private key.")
    (files / "encoder" / "notes.txt").symlink_to(tmp_path / "id_rsa")
    assert load_checkpoint(tmp_path).files == {"encoder/config.json": b"{}"}


def test_names_that_could_not_be_told_apart_are_refused(tmp_path):
    with pytest.raises(InputError, match="rename the key"):
        save_checkpoint(tmp_path, 1, {"params": {"a/b": jnp.zeros(1)}}, {})


def test_arguments():
    with pytest.raises(ValueError, match="step = -1 must be >= 0"):
        save_checkpoint("x", -1, {}, {})
    with pytest.raises(ValueError, match="keep = 0 must be >= 1"):
        save_checkpoint("x", 1, {}, {}, keep=0)


def test_a_newer_format_says_which_version_to_install(tmp_path):
    step = save_checkpoint(tmp_path, 1, {"x": 1}, {})
    record = json.loads((step / "metadata.json").read_text())
    (step / "metadata.json").write_text(json.dumps(record | {"format": 99, "versions": {"qrag_jax": "9.0"}}))
    write_manifest(step)
    with pytest.raises(InputError, match=r"checkpoint format 99, this qrag_jax .* reads 1; .* 9\.0"):
        load_checkpoint(tmp_path)


def test_a_manifest_cannot_point_outside(tmp_path):
    step = save_checkpoint(tmp_path, 1, {"x": 1}, {})
    write_json(step / "manifest.json", {"files": {"../../etc/passwd": {"bytes": 1, "sha256": ""}}}, indent=1)
    with pytest.raises(InputError, match="is not a file name under the checkpoint"):
        load_checkpoint(tmp_path)


def test_require_same_config():
    saved = {"learner": {"gamma": 0.9, "steps": 3}, "seed": 1, "old": True}
    require_same_config(saved, saved)
    require_same_config(saved, {"learner": {"gamma": 0.9, "steps": 3}, "seed": 2}, ["learner"])
    with pytest.raises(InputError) as caught:
        require_same_config(saved, {"learner": {"gamma": 0.5, "steps": 3}, "seed": 2}, source="runs/a")
    message = str(caught.value)
    assert message.startswith("runs/a: made with another config: ")
    assert "learner.gamma is 0.9 there and 0.5 here" in message
    assert "seed is 1 there and 2 here" in message
    assert "old is True there and 'absent' here" in message
    assert "steps" not in message and "or another run folder" in message


def sharded_tree(num_devices):
    """A little training state over the first devices of all processes: split, replicated, and off the devices."""
    devices = np.array(jax.devices()[:num_devices])
    mesh = jax.sharding.Mesh(devices, ("d",))
    rng = np.random.default_rng(0)

    def put(value, *spec):
        sharding = NamedSharding(mesh, P(*spec))
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    data = np.arange(2, dtype=np.uint32)
    return {
        "params": {
            "rows": put(rng.normal(size=(16, 3)).astype(np.float32), "d"),
            "columns": put(rng.normal(size=(3, 8)).astype(jnp.bfloat16), None, "d"),
            "bias": put(rng.normal(size=5).astype(np.float32)),
            "count": put(np.asarray(7, np.int32)),
        },
        "key": jax.random.wrap_key_data(put(data)),
        "step": 12,
        "mean": rng.normal(size=3),
        "local": jnp.arange(3),
        "empty": np.zeros((0, 2), np.float32),
    }


def assert_same_shards(found, wanted):
    """Every leaf has the sharding and, on the devices of this process, the bits that are wanted."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert type(a) is type(b)
        if not isinstance(b, jax.Array):
            np.testing.assert_array_equal(a, b)
            continue
        assert a.dtype == b.dtype and a.sharding.is_equivalent_to(b.sharding, b.ndim)
        if jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        for mine, theirs in zip(a.addressable_shards, b.addressable_shards, strict=True):
            assert mine.index == theirs.index and mine.device == theirs.device
            assert np.asarray(mine.data).tobytes() == np.asarray(theirs.data).tobytes()


def take_part(port, index, there, here):
    """One of two processes with two devices each: reads what one process saved, saves in common, judges damage."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, int(index))
    assert (jax.process_count(), len(jax.devices()), len(jax.local_devices())) == (2, 4, 2)
    tree, here = sharded_tree(4), Path(here)
    read = load_checkpoint(there, tree)
    assert_same_shards(read.arrays, tree)
    saved = read.arrays | {"key": jax.random.fold_in(read.arrays["key"], 1)}  # what is restored can be worked with
    assert newest_valid_step(here) == (None, ())
    for step in (1, 2, 3):
        save_checkpoint(here, step, saved, CONFIG, {"tokenizer.json": "{}"}, {"loss": 0.5}, keep=2)
    assert sorted(path.name for path in here.iterdir()) == ["step_2", "step_3"]
    assert_same_shards(load_checkpoint(here, tree, step=3).arrays, saved)
    assert newest_valid_step(here) == (3, ())  # both wait for the answer, so both have read
    if index == "0":  # reading alone waits for nobody
        assert load_checkpoint(here, groups=["step"]).arrays == {"step": 12}
        (here / "step_3" / "config.yaml").unlink()
    bad = f"{here}/step_3/config.yaml: missing"
    assert newest_valid_step(here) == (2, (bad,) if index == "0" else ())
    for kept in (2, 3):
        if index == "0":
            shutil.copytree(here / f"step_{kept}", here.with_name("copy") / f"step_{kept}")
            (here / f"step_{kept}" / "manifest.json").unlink()
    with pytest.raises(InputError, match=f"{here}: every checkpoint"):
        newest_valid_step(here)
    with pytest.raises(InputError, match="bad: a object cannot be saved"):  # by all, before anybody waits
        save_checkpoint(here, 4, saved | {"bad": object()}, {})
    print("all went well")


@pytest.mark.slow
def test_two_processes_save_and_restore_what_one_restores_and_saved(tmp_path):
    save_checkpoint(tmp_path / "one", 1, sharded_tree(8), CONFIG)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    env = ENVIRONMENT | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    argv = [sys.executable, __file__, port]
    folders = [str(tmp_path / "one"), str(tmp_path / "two")]
    workers = [
        subprocess.Popen([*argv, str(i), *folders], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for i in range(2)
    ]
    try:
        said = [worker.communicate(timeout=PATIENCE) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert all(out.endswith("all went well\n") for out, _ in said), said
    for num_devices in (8, 2, 1):
        template = sharded_tree(num_devices)
        wanted = template | {"key": jax.random.fold_in(template["key"], 1)}
        found = load_checkpoint(tmp_path / "copy", template)
        assert_same_shards(found.arrays, wanted)
    assert (found.step, found.config, found.metadata) == (2, CONFIG, {"loss": 0.5})
    assert "step_3/config.yaml: missing" in found.skipped[0]


def test_saved_on_eight_devices_restored_on_fewer(tmp_path):
    save_checkpoint(tmp_path, 1, sharded_tree(8), CONFIG)
    for num_devices in (8, 2, 1):
        tree = sharded_tree(num_devices)
        assert_same_shards(load_checkpoint(tmp_path, tree).arrays, tree)


if __name__ == "__main__":
    take_part(*sys.argv[1:])
