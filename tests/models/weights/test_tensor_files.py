import json
import resource

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from qrag_jax.models.weights.tensor_files import FolderTensors, save_tensors
from qrag_jax.types import InputError

TENSORS = {name: np.full((2, 3), value, np.float32) for value, name in enumerate("abc")}
SHARDS = {"a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",
          "c": "model-00002-of-00002.safetensors"}  # fmt: skip


@pytest.fixture
def sharded(tmp_path):
    for shard in set(SHARDS.values()):
        save_file({name: TENSORS[name] for name in SHARDS if SHARDS[name] == shard}, tmp_path / shard)
    index(tmp_path)
    return tmp_path


def index(folder, weight_map=SHARDS):
    content = {"metadata": {"total_size": 72}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def assert_complete(tensors):
    assert sorted(tensors) == ["a", "b", "c"] and len(tensors) == 3
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], tensor)


def test_one_file_and_several_are_the_same(sharded, tmp_path):
    tensors = FolderTensors(sharded)
    assert_complete(tensors)
    assert [path.name for path in tensors.files] == sorted(set(SHARDS.values()))
    (tmp_path / "one").mkdir()
    save_file(TENSORS, tmp_path / "one/model.safetensors")
    assert_complete(FolderTensors(tmp_path / "one"))


def test_one_file_counts_more_than_an_index(sharded):
    save_file({"a": TENSORS["c"]}, sharded / "model.safetensors")
    tensors = FolderTensors(sharded)
    assert list(tensors) == ["a"] and tensors["a"][0, 0] == 2


def test_half_precision(tmp_path):
    save_file({"a": np.ones(2, np.float16), "b": np.ones(2, ml_dtypes.bfloat16)}, tmp_path / "model.safetensors")
    assert {name: tensor.dtype.name for name, tensor in FolderTensors(tmp_path).items()} == {
        "a": "float16", "b": "bfloat16",
    }  # fmt: skip


def test_links_are_followed_as_the_cache_of_the_hub_has_them(sharded, tmp_path):
    (tmp_path / "snapshot").mkdir()
    for path in sharded.glob("model*"):
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    assert_complete(FolderTensors(tmp_path / "snapshot"))


@pytest.mark.parametrize(
    "name",
    ["../model.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", "", "a\\b.safetensors", "model.bin",
     "C:\\x.safetensors", "x\0.safetensors", "x" * 5_000 + ".safetensors",
     "\U00101c75" * 100 + ".safetensors"],
)  # fmt: skip
def test_an_index_that_names_other_places_is_refused(sharded, name):
    save_file(TENSORS, sharded.parent / "model.safetensors")  # a step up there is one indeed
    index(sharded, SHARDS | {"c": name})
    with pytest.raises(InputError, match="is not a safetensors file of this folder; do not trust this model"):
        FolderTensors(sharded)


def test_a_shape_that_no_array_has_is_refused(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(InputError, match="model.safetensors: a: cannot be read"):
        FolderTensors(tmp_path)["a"]


@pytest.mark.parametrize("weight_map", [None, [], {"a": 3}, "x"])
def test_an_index_of_another_form_is_refused(sharded, weight_map):
    index(sharded, weight_map)
    with pytest.raises(InputError, match="index.json: weight_map, an object of file names by tensor, is needed"):
        FolderTensors(sharded)


def test_an_index_that_does_not_fit_its_files_names_all_tensors(sharded):
    first, second = sorted(set(SHARDS.values()))
    index(sharded, {"a": first, "b": second, "d": second})
    with pytest.raises(InputError) as error:
        FolderTensors(sharded)
    assert f"missing: b ({second}), d ({second}); left over: b ({first}), c ({second})" in str(error.value)


def test_missing_and_broken_files(sharded):
    first, second = sorted(set(SHARDS.values()))
    whole = (sharded / second).read_bytes()
    for content in (whole[:-1], whole[:20], b"", b"\xff" * 8 + whole[8:], whole + b"x"):
        (sharded / second).write_bytes(content)
        with pytest.raises(InputError, match=f"{second}: broken safetensors file"):
            FolderTensors(sharded)
    (sharded / second).unlink()
    with pytest.raises(InputError, match=f"{second}: no such file, model.safetensors.index.json needs it"):
        FolderTensors(sharded)


def test_other_dtypes_are_named(tmp_path):
    header = json.dumps({name: {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]} for name in "a"}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"12")
    with pytest.raises(InputError, match="dtypes that are not read: a: F8_E4M3; save the model in float32, float16"):
        FolderTensors(tmp_path)


def test_no_weights(tmp_path):
    with pytest.raises(InputError, match="neither model.safetensors nor model.safetensors.index.json; save"):
        FolderTensors(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    (tmp_path / "m.gguf").write_bytes(b"")
    with pytest.raises(InputError, match=r"found m.gguf, pytorch_model.bin: pickle is not read, a .gguf file is given"):
        FolderTensors(tmp_path)


def test_one_file_takes_the_place_of_several(sharded):
    save_tensors(sharded, TENSORS)
    assert_complete(FolderTensors(sharded))
    assert [path.name for path in sharded.iterdir()] == ["model.safetensors"]


def test_a_header_larger_than_any_models_is_not_read(tmp_path):
    header = b'{"a":' + b" " * 2**23 + b"}"
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(InputError, match="model.safetensors: broken safetensors file .a header of 8,388,614 bytes, at"):
        FolderTensors(tmp_path)


def test_a_file_that_the_disk_has_no_room_for_is_named_and_what_was_there_stays(sharded):
    files = sorted(sharded.iterdir())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"model\.safetensors: cannot be written \(.*\): make room there"):
            save_tensors(sharded, TENSORS | {"a": np.zeros(1000, np.float32)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(sharded.iterdir()) == files
    assert_complete(FolderTensors(sharded))
