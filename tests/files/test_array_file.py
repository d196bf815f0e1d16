import numpy as np
import pytest

from qrag_jax.files.array_file import ArrayFile, write_arrays
from qrag_jax.files.sqlite import Damaged

BLOCK = 1 << 20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "one.arrays"


def write(path):
    long = np.arange(3 * BLOCK // 4 + 5, dtype=np.int32)
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    write_arrays(path, {"kind": "x"}, {"long": [long[:7], long[7:]], "none": [long[:0]], "rows": [rows]}, ["rows"])
    return long, rows


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_what_was_written_is_read(path):
    long, rows = write(path)
    file = ArrayFile(path)
    assert file.about == {"kind": "x"}
    assert np.array_equal(file.read("long"), long) and np.array_equal(file.read("long", 5, 9), long[5:9])
    assert len(file.read("none")) == 0 and np.array_equal(file.unchecked("rows"), rows)
    assert file.offset("rows") % 4096 == 0
    with pytest.raises(ValueError, match="read-only"):
        file.read("long")[0] = 1


def test_a_changed_block_is_found_when_it_is_read(path):
    long, _ = write(path)
    flip(path, ArrayFile(path).offset("long") + 2 * BLOCK + 10)
    file = ArrayFile(path)
    assert np.array_equal(file.read("long", 0, BLOCK // 2), long[: BLOCK // 2])
    for look in (lambda: file.read("long"), lambda: file.read("long", 3 * BLOCK // 4 - 2), file.check):
        with pytest.raises(Damaged, match="one.arrays: damaged .block 2 of long has changed.*remove this file"):
            look()


def test_an_array_without_hashes_is_left_to_its_reader(path):
    write(path)
    flip(path, ArrayFile(path).offset("rows"))
    ArrayFile(path).check()


@pytest.mark.parametrize("size", [0, 5, 40, 5000, -1])
def test_a_file_that_was_cut_off_is_said(path, size):
    write(path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(Damaged, match="no file of arrays, or was cut off|header has changed"):
        ArrayFile(path)


@pytest.mark.parametrize("place", [0, -5, -45, -60])
def test_a_changed_header_is_said(path, place):
    write(path)
    flip(path, place)
    with pytest.raises(Damaged):
        ArrayFile(path)
