"""What belongs to an index, where its files cannot all be seen."""

import pytest

from qrag_jax.documents import kinds
from qrag_jax.documents.read import DocumentFile, Found
from qrag_jax.index.remove import gone


@pytest.mark.parametrize(("is_installed", "kept"), [(False, ("notes/a.pdf",)), (True, ())])
def test_an_extra_that_is_absent_removes_nothing(tmp_path, monkeypatch, is_installed, kept):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kinds.FileKind, "is_installed", is_installed)
    (tmp_path / "notes").mkdir()
    for name in ("a.pdf", "b.md"):
        (tmp_path / "notes" / name).write_text("x")
    known = ["notes/a.pdf", "notes/b.md", "notes/gone.pdf"]
    found = Found((DocumentFile("notes/b.md", tmp_path / "notes" / "b.md", named=False),))
    removed = tuple(name for name in known[::2] if name not in kept)
    assert gone(known, ["notes"], found, []) == (removed, kept)
