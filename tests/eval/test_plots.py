import importlib.util

import pytest
from matplotlib.figure import Figure

from qrag_jax.eval.tables import check_png, write_png
from qrag_jax.types import UsageError


class HalfFigure(Figure):
    """Fails while it is written, as a plot with a broken formula does."""

    def savefig(self, fname, **options):
        fname.write(b"half")
        raise ValueError("no such symbol")


def test_a_plot_that_fails_leaves_the_one_of_before(tmp_path):
    path = tmp_path / "new" / "plot.png"
    write_png(path, Figure(figsize=(1, 1), dpi=10))
    drawn = path.read_bytes()
    assert drawn.startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no such symbol"):
        write_png(path, HalfFigure())
    assert path.read_bytes() == drawn and list(path.parent.iterdir()) == [path]


def test_paths_that_cannot_be_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_png(tmp_path / "file" / "plot.png", Figure(figsize=(1, 1), dpi=10))
    with pytest.raises(UsageError, match=r"plot.svg: plots are written as .png"):
        check_png(tmp_path / "plot.svg")
    check_png(str(tmp_path / "plot.png"))


def test_absent_matplotlib_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs? the package matplotlib, .* pip install 'qrag_jax\[train\]'"):
        check_png(tmp_path / "plot.png")
