"""Arrays on the disk: the system keeps in memory only those of their pages that are in use."""

import math
import tempfile

import numpy as np
from numpy.typing import DTypeLike

from qrag_jax.types import InputError

_WRITTEN_AT_ONCE = 1 << 20


def mapped_array(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> np.ndarray:
    """An array of zeros in a temporary file without a name, which the system removes with the array.

    The file is in the folder of temporary files (`TMPDIR`). It is written in full at once, because a page for which a
    full disk has no room would end the process without a message.

    Raises:
        InputError: the disk is full.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    with tempfile.TemporaryFile() as file:
        try:
            for start in range(0, size, _WRITTEN_AT_ONCE):
                file.write(bytes(min(_WRITTEN_AT_ONCE, size - start)))
            file.flush()
        except OSError as error:
            raise InputError(
                f"cannot write {size / 2**20:,.0f} MiB of temporary data ({error}); free space, or set TMPDIR to a "
                "folder on a larger disk",
                file=tempfile.gettempdir(),
            ) from error
        return np.asarray(np.memmap(file, dtype, "r+", shape=shape))
