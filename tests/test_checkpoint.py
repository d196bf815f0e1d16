import json
import shutil
import subprocess
import sys
from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from qrag_jax import __version__
from qrag_jax.checkpoint import checkpoint_steps, load_checkpoint, require_same_config, save_checkpoint
from qrag_jax.types import InputError, UsageError

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
    env = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "elsewhere")], capture_output=True, text=True, env=env, timeout=120
    )
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


@pytest.mark.parametrize("harm", ["truncate", "flip", "delete"])
def test_a_harmed_file_is_named(tmp_path, harm):
    step = save(tmp_path / "whole")
    names = [path.relative_to(step).as_posix() for path in sorted(step.rglob("*")) if path.is_file()]
    assert {"config.yaml", "metadata.json", "manifest.json", "files/tokenizer.json"} < set(names)
    assert any(name.startswith("arrays/") for name in names)
    for name in names:
        victim = shutil.copytree(step, tmp_path / "harmed" / "step_12") / name
        content = victim.read_bytes()
        if harm == "delete":
            victim.unlink()
        elif harm == "truncate":
            victim.write_bytes(content[: len(content) // 2])
        else:
            middle = len(content) // 2
            victim.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        with pytest.raises(InputError) as caught:
            load_checkpoint(tmp_path / "harmed")
        # a flipped bit in the manifest itself makes it accuse the file it describes, or stop being JSON
        assert name in str(caught.value) or name == "manifest.json"
        assert "again" in str(caught.value)
        shutil.rmtree(tmp_path / "harmed")


def test_an_empty_step_folder_is_not_taken_for_a_checkpoint(tmp_path):
    save_checkpoint(tmp_path, 1, {"x": 1}, {})
    (tmp_path / "step_2").mkdir()
    with pytest.raises(InputError, match=r"step_2: no manifest.json.*delete this step's folder"):
        load_checkpoint(tmp_path)


def test_absent_folder_step_and_group(tmp_path):
    with pytest.raises(UsageError, match=r"absent: no such checkpoint folder"):
        load_checkpoint(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"no checkpoint here \(no step_<n> folder\)"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, 3, {"x": 1, "y": 2}, {})
    with pytest.raises(UsageError, match=r"no checkpoint of step 4; there are 3"):
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


def test_names_that_could_not_be_told_apart_are_refused(tmp_path):
    with pytest.raises(InputError, match="rename the key"):
        save_checkpoint(tmp_path, 1, {"params": {"a/b": jnp.zeros(1)}}, {})


def test_arguments():
    with pytest.raises(ValueError, match="step = -1 must be >= 0"):
        save_checkpoint("x", -1, {}, {})
    with pytest.raises(ValueError, match="keep = 0 must be >= 1"):
        save_checkpoint("x", 1, {}, {}, keep=0)


def test_a_newer_format_says_which_version_to_install(tmp_path):
    from qrag_jax.manifest import write_manifest

    step = save_checkpoint(tmp_path, 1, {"x": 1}, {})
    record = json.loads((step / "metadata.json").read_text())
    (step / "metadata.json").write_text(json.dumps(record | {"format": 99, "versions": {"qrag_jax": "9.0"}}))
    write_manifest(step)
    with pytest.raises(InputError, match=r"checkpoint format 99, this qrag_jax .* reads 1; .* 9\.0"):
        load_checkpoint(tmp_path)


def test_a_manifest_cannot_point_outside(tmp_path):
    step = save_checkpoint(tmp_path, 1, {"x": 1}, {})
    (step / "manifest.json").write_text(json.dumps({"files": {"../../etc/passwd": {"bytes": 1, "sha256": ""}}}))
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
