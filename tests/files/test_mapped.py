import errno
import io
import tempfile

import numpy as np
import pytest

from qrag_jax.files import mapped
from qrag_jax.files.mapped import mapped_array
from qrag_jax.types import InputError


def test_an_array_keeps_what_is_written_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(mapped, "_WRITTEN_AT_ONCE", 100)  # so that the last part is a smaller one
    made = mapped_array((7, 5))
    assert made.shape == (7, 5) and made.dtype == np.float32 and not made.any()
    made[3] = np.arange(5)
    np.testing.assert_array_equal(made.sum(axis=1), [0, 0, 0, 10, 0, 0, 0])
    assert mapped_array((3,), bool).dtype == bool
    assert list(tmp_path.iterdir()) == []


class FullDisk(io.BytesIO):
    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_said_before_anything_is_computed(monkeypatch):
    monkeypatch.setattr(mapped.tempfile, "TemporaryFile", FullDisk)
    with pytest.raises(InputError, match=r"cannot write 4 MiB of temporary data .*No space left.*set TMPDIR"):
        mapped_array((1024, 1024))
