"""PNG files of plots, written whole. matplotlib is loaded by who draws, and no display is needed."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.files.whole_file import write_whole
from qrag_jax.types import UsageError

if TYPE_CHECKING:
    import matplotlib.figure


def check_png(path: str | os.PathLike) -> None:
    """Refuses the path of a plot before anything is drawn."""
    if Path(path).suffix != ".png":
        raise UsageError(f"{path}: plots are written as .png; change the ending")


def write_png(path: str | os.PathLike, figure: "matplotlib.figure.Figure") -> None:
    """Writes a figure, the whole file or nothing; its folder is made."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write_whole(path, content.getvalue())
