"""Damage is found: a step that cannot be restored, and every fault that a foreign weights file can show.

Flips, cuts and losses in a checkpoint are those of tests/trust/test_corruption.py.
"""

import ast
import json
import re
import shutil
import struct
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file, save_file
from support.encoders import random_encoder
from support.syntax import syntax_tree

from qrag_jax.checkpoint import load_checkpoint, newest_valid_step, save_checkpoint
from qrag_jax.files.manifest import write_manifest
from qrag_jax.models.encoder.weights import load_encoder, save_encoder
from qrag_jax.types import InputError

ROOT = Path(__file__).parents[1]
KERNEL = "encoder.layer.0.intermediate.dense.weight"


def arrays_of(seed):
    params = {"enc": {"kernel": jax.random.normal(jax.random.key(seed), (16, 8)), "half": jnp.ones(3, jnp.bfloat16)}}
    return {"params": params, "opt_state": optax.adam(1e-3).init(params), "key": jax.random.key(seed), "step": seed}


@pytest.fixture(scope="module")
def encoder_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    sizes = {"num_layers": 1, "hidden_size": 4, "num_heads": 2, "intermediate_size": 6, "max_positions": 8}
    made = random_encoder("bert", ["mary went to the kitchen"], **sizes)
    pooler = {"pooler.dense.weight": np.eye(4, dtype=np.float32), "pooler.dense.bias": np.ones(4, np.float32)}
    save_encoder(folder, made.config, made.params, made.tokenizer, pooler=pooler)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def run(tmp_path, encoder_files):
    """A run folder with two whole steps, as training leaves it."""
    files = {f"encoder/{name}": content for name, content in encoder_files.items()}
    for step in (1, 2):
        save_checkpoint(tmp_path / "run", step, arrays_of(step), {"seed": step}, files, {"task": "worlds"})
    return tmp_path / "run"


@pytest.fixture
def encoder(tmp_path, encoder_files):
    """A folder with an encoder, as it comes from elsewhere."""
    for name, content in encoder_files.items():
        (tmp_path / "encoder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "encoder" / name).write_bytes(content)
    return tmp_path / "encoder"


def flipped(content, byte, bit):
    return content[:byte] + bytes([content[byte] ^ 1 << bit]) + content[byte + 1 :]


def lose(name):
    return lambda step: (step / "arrays" / name).unlink()


def add_leaf(step):
    """metadata.json names one that the store does not have; a scalar, whose shape any number has."""
    record = json.loads((step / "metadata.json").read_text())
    record["leaves"]["params/more"] = {"shape": [], "dtype": "float32"}
    (step / "metadata.json").write_text(json.dumps(record))


def change_leaf(**facts):
    def harm(step):
        record = json.loads((step / "metadata.json").read_text())
        record["leaves"]["params/enc/kernel"] |= facts
        (step / "metadata.json").write_text(json.dumps(record))

    return harm


# Where a file is gone, Orbax leaves a future of its own behind.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("harm", "file", "reason"),
    [
        (lose("manifest.ocdbt"), "arrays", r"cannot be restored \(ValueError: "),
        (lambda step: shutil.rmtree(step / "arrays" / "d"), "arrays", r"cannot be restored \(ValueError: "),
        (lambda step: shutil.rmtree(step / "arrays"), "arrays", r"cannot be restored \(FileNotFoundError: "),
        (lambda step: (step / "arrays" / "_METADATA").write_text("{}"), "arrays", r"cannot be restored \(\w+Error: "),
        (add_leaf, "arrays", r"params/more is nothing there, float32\[\] in metadata.json"),
        (
            change_leaf(shape=[8, 16]),
            "arrays",
            r"params/enc/kernel is float32\[16, 8\] there, float32\[8, 16\] in metadata.json",
        ),
        (change_leaf(dtype="<foo"), "metadata.json", "leaves: params/enc/kernel: no dtype"),
        (change_leaf(key_impl="none"), "arrays", r"params/enc/kernel .*none.*, float32\[16, 8\] in metadata.json"),
        (lambda step: (step / "config.yaml").write_text("a: ["), "config.yaml", r"config.yaml:1: malformed YAML"),
        (lambda step: (step / "config.yaml").unlink(), "config.yaml", "no such file"),
        (lambda step: (step / "metadata.json").unlink(), "metadata.json", "no such file"),
    ],
)
def test_a_step_that_its_manifest_calls_whole_and_that_cannot_be_restored_is_passed_over(
    run, caplog, harm, file, reason
):
    """What two savers left who mixed their files: it is a fault of the step, not of the program that reads it."""
    harm(run / "step_2")
    write_manifest(run / "step_2")
    loaded = load_checkpoint(run, arrays_of(0))
    assert loaded.step == 1 and loaded.arrays["step"] == 1
    (fault,) = loaded.skipped
    assert fault.startswith(f"{run / 'step_2' / file}: ") and re.search(reason, fault) and "\n" not in fault
    assert fault in caplog.text
    step, (found,) = newest_valid_step(run)  # what `--resume` goes on from
    assert step == 1 and found.startswith(f"{run / 'step_2' / file}: ")
    with pytest.raises(InputError, match=reason):
        load_checkpoint(run, arrays_of(0), step=2)


def test_an_empty_step_folder_is_passed_over(run, caplog):
    (run / "step_3").mkdir()
    loaded = load_checkpoint(run, arrays_of(0))
    assert loaded.step == 2 and loaded.skipped == (f"{run}/step_3: no manifest.json, so the checkpoint is incomplete",)
    assert f"{run}/step_3: no manifest.json" in caplog.text
    chex.assert_trees_all_equal(loaded.arrays["params"], arrays_of(2)["params"])


def test_a_folder_with_nothing_but_damage_is_refused(run):
    """Never as if there were none: who goes on from here would start from zero."""
    (run / "step_3").mkdir()
    bad = [run / "step_2" / "manifest.json", run / "step_1" / "files" / "encoder" / "tokenizer.json"]
    for path in bad:
        path.write_bytes(flipped(path.read_bytes(), 5, 0))
    for read in (load_checkpoint, newest_valid_step):
        with pytest.raises(InputError) as caught:
            read(run)
        message = str(caught.value)
        assert message.startswith(f"{run}: every checkpoint here is damaged: {run}/step_3: no manifest.json")
        assert all(f"{path}: changed" in message for path in bad[1:]) and f"{bad[0]}: " in message
        assert "Copy the folder again" in message


def test_what_somebody_else_wrote_with_orbax_is_refused(tmp_path):
    """It has no hashes, and what it says of itself cannot be told from what a bad disk made of it."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "step_1", {"w": np.ones(3)})
    for folder in (tmp_path, tmp_path / "step_1"):
        with pytest.raises(InputError, match=r"step_1: no manifest\.json, so the checkpoint is incomplete"):
            load_checkpoint(folder)
    write_manifest(tmp_path / "step_1")
    with pytest.raises(InputError, match=r"metadata\.json: no such file"):
        load_checkpoint(tmp_path)


def change(encoder, **tensors):
    """Another tensor under a name; None takes it away."""
    path = encoder / "model.safetensors"
    changed = load_file(path) | tensors
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, path)


def refusal(encoder):
    with pytest.raises(InputError) as caught:
        load_encoder(encoder)
    message = str(caught.value)
    assert str(encoder / "model.safetensors") in message
    return message


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (None, "missing: {}"),
        (np.ones((6, 5), np.float32), "{}: shape (6, 5), needed (6, 4)"),
        (np.ones((4, 6), np.float32), "{}: shape (4, 6), needed (6, 4)"),
        (np.ones((6, 4), np.int32), "{}: dtype int32, a float is needed"),
        (np.full((6, 4), np.nan, np.float32), "{}: contains NaN or infinity"),
        (np.array([[np.inf, -np.inf, 1, 1]] * 6, np.float16), "{}: contains NaN or infinity"),
        (np.full((6, 4), -np.inf, jnp.bfloat16), "{}: contains NaN or infinity"),
        (np.full((6, 4), -1e39), "{}: contains numbers beyond float32"),
    ],
)
def test_a_wrong_tensor_is_named(encoder, tensor, message):
    load_encoder(encoder)
    change(encoder, **{KERNEL: tensor})
    assert message.format(KERNEL) in refusal(encoder)


@pytest.mark.parametrize("tensor", [None, np.ones(5, np.float32), np.full(4, np.nan, np.float32)])
def test_a_wrong_pooler_is_named(encoder, tensor):
    change(encoder, **{"pooler.dense.bias": tensor})
    assert "pooler.dense.bias: " in refusal(encoder)


def test_all_wrong_tensors_are_named_together(encoder):
    change(encoder, **{KERNEL: None, "embeddings.LayerNorm.bias": np.full(4, np.inf, np.float32), "more": np.ones(1)})
    message = refusal(encoder)
    assert f"missing: {KERNEL}" in message and "left over: more" in message
    assert "embeddings.LayerNorm.bias: contains NaN or infinity" in message


def header_of(content):
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def test_a_dtype_that_numpy_has_not(encoder):
    path = encoder / "model.safetensors"
    header, data = header_of(path.read_bytes())
    header[KERNEL] |= {"dtype": "F8_E4M3", "shape": [24, 4]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    assert f"dtypes that are not read: {KERNEL}: F8_E4M3" in refusal(encoder)


def test_cuts_of_a_weights_file(encoder):
    path = encoder / "model.safetensors"
    content = path.read_bytes()
    for size in [0, 1, 7, 8, 9, *range(100, len(content), 500), len(content) - 1]:
        path.write_bytes(content[:size])
        assert "broken safetensors file" in refusal(encoder)
    path.write_bytes(content + b"\0")
    assert "broken safetensors file" in refusal(encoder)


def test_flips_in_the_header_of_a_weights_file(encoder):
    """Each is refused, but for those in the free text that says what wrote the file: no tensor hangs on that."""
    path = encoder / "model.safetensors"
    content, params = path.read_bytes(), load_encoder(encoder).params
    header = 8 + struct.unpack("<Q", content[:8])[0]
    first = content.index(b"}") + 2  # after {"__metadata__":{"format":"pt"},
    rng = np.random.default_rng(0)
    for place in [*range(9), *rng.choice(np.arange(first, header), 50, replace=False)]:
        path.write_bytes(flipped(content, int(place), int(rng.integers(8))))
        refusal(encoder)
    path.write_bytes(content.replace(b'"format":"pt"', b'"format":"np"'))
    chex.assert_trees_all_equal(load_encoder(encoder).params, params)


def test_a_flip_in_the_numbers_takes_a_hash(encoder):
    """Without a manifest it cannot be found; with one of ours it is. A manifest of somebody else is no manifest."""
    (encoder / "manifest.json").write_text('{"name": "an app"}')
    load_encoder(encoder)
    (encoder / "manifest.json").unlink()
    write_manifest(encoder)
    load_encoder(encoder)
    path = encoder / "model.safetensors"
    path.write_bytes(flipped(path.read_bytes(), path.stat().st_size - 100, 0))
    assert "changed since it was written (sha256 differs)" in refusal(encoder)
    (encoder / "manifest.json").unlink()
    load_encoder(encoder)


def pickle_calls(source):
    """Calls that may unpickle: torch.load at all, np.load without a literal allow_pickle=False, and their imports."""
    found = []
    if not re.search("load|pickle", source):
        return found
    for node in ast.walk(syntax_tree(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("numpy", "torch"):
            found += [f"from {node.module} import load" for alias in node.names if alias.name == "load"]
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        allowed = [word.value for word in node.keywords if word.arg == "allow_pickle"]
        if not allowed and node.func.attr not in ("load", "read_pickle"):
            continue
        name = ast.unparse(node.func)
        is_safe = [isinstance(value, ast.Constant) and value.value is False for value in allowed]
        if name in ("torch.load", "pandas.read_pickle", "pd.read_pickle") or not all(is_safe):
            found.append(name)
        elif name in ("np.load", "numpy.load", "jnp.load", "jax.numpy.load") and not allowed:
            found.append(name)
    return found


def test_nothing_unpickles():
    assert pickle_calls("np.load(p); np.load(p, allow_pickle=x); torch.load(p); from numpy import load") == [
        "from numpy import load", "np.load", "np.load", "torch.load",
    ]  # fmt: skip
    assert pickle_calls("np.load(p, allow_pickle=False); json.load(p)") == []
    sources = [path for folder in ("qrag_jax", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {path.relative_to(ROOT).as_posix(): pickle_calls(path.read_text(encoding="utf-8")) for path in sources}
    assert len(found) > 60 and {path: calls for path, calls in found.items() if calls} == {}
