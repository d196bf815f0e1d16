import os

import pytest

from qrag_jax.documents.found import find_files
from qrag_jax.documents.read import read_files
from qrag_jax.documents.told import warn_of_found
from qrag_jax.files.reading import read_with
from qrag_jax.types import InputWarning, UsageError

FILES = (
    "a.md", "drafts/b.md", "docs/drafts/c.txt", "docs/d.rst", "docs/keep.log", "docs/e.log", ".hidden.md", ".git/f.md",
    "node_modules/g/h.js", "src/i.py", "src/j.min.js", "src/__pycache__/k.py", "env/pyvenv.cfg", "env/l.py",
    "package-lock.json", "README", "Makefile",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in FILES:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("The lamp is lit.")
    monkeypatch.chdir(tmp_path / "in")
    return tmp_path / "in"


def found(*paths, **how):
    result = find_files(paths or ["."], **how)
    return {file.id for file in result.files}, dict(result.left_aside)


USUAL = {"a.md", "drafts/b.md", "docs/drafts/c.txt", "docs/d.rst", "docs/keep.log", "docs/e.log", "src/i.py", "README"}


def test_hidden_names_and_files_of_tools_are_passed_over_and_counted(folder):
    assert found() == (USUAL, {"hidden": 2, "of tools": 4})
    with pytest.warns(InputWarning, match=r"passed over 6 names in folders \(4 of tools, 2 hidden; .*no_ignore=True\)"):
        assert len(read_files(".")) == len(USUAL)
    assert found("node_modules", ".git", ".hidden.md")[0] == {"node_modules/g/h.js", ".git/f.md", ".hidden.md"}


def test_all_is_read_on_demand(folder):
    with read_with(no_ignore=True):
        names, aside = found()
    assert names == {*FILES} - {"Makefile", "package-lock.json"} and aside == {}


def test_git_rules_are_respected_also_of_deeper_folders(folder):
    (folder / ".gitignore").write_text("*.log\n/drafts/\n# a.md\n\n!\n")
    (folder / "docs/.gitignore").write_text("!keep.log\nd.*\n")
    assert found() == (
        USUAL - {"docs/e.log", "drafts/b.md", "docs/d.rst"}, {"hidden": 2, "of tools": 4, "in .gitignore": 3}
    )  # fmt: skip
    assert found(str(folder / "docs/drafts"))[0] == {str(folder / "docs/drafts/c.txt")}  # rules above do not count
    assert found("docs")[0] == {"docs/drafts/c.txt", "docs/keep.log", "docs/e.log"}
    assert "docs/e.log" in found("docs/e.log")[0]
    with read_with(no_ignore=True):
        assert "drafts/b.md" in found()[0]


def test_rules_that_take_long_or_are_none_are_skipped(folder):
    (folder / ".gitignore").write_bytes(b"*a*a*a*a*a*b\n!\n\xff\xfe\n[z-a]\na.md\n")
    (folder / ("a" * 200 + ".md")).write_text("The lamp.")
    assert found() == (USUAL - {"a.md"} | {"a" * 200 + ".md"}, {"hidden": 2, "of tools": 4, "in .gitignore": 1})
    (folder / ".gitignore").unlink()
    os.mkfifo(folder / ".gitignore")  # would block for ever
    assert found()[0] == USUAL | {"a" * 200 + ".md"}


@pytest.mark.parametrize(
    ("patterns", "out"),
    [
        (["drafts/"], {"drafts/b.md", "docs/drafts/c.txt"}),
        (["drafts"], {"drafts/b.md", "docs/drafts/c.txt"}),
        (["drafts/*"], {"drafts/b.md", "docs/drafts/c.txt"}),
        (["docs/drafts/*"], {"docs/drafts/c.txt"}),
        (["*.log", "src"], {"docs/e.log", "docs/keep.log", "src/i.py"}),
        (["README/"], set()),
        (["README"], {"README"}),
        (["src/[ij].py"], {"src/i.py"}),
    ],
)
def test_excludes_leave_out_files_and_folders(folder, patterns, out):
    assert found(exclude=patterns)[0] == USUAL - out
    with read_with(exclude=patterns):
        assert found()[0] == USUAL - out
        assert found(*sorted(USUAL))[0] == USUAL - out  # named, as by a shell's *


def test_excludes_are_counted_also_if_they_match_nothing(folder):
    with pytest.warns(InputWarning, match="excluded 2 names"):
        warn_of_found(find_files("docs", exclude=["*.log"]))
    with pytest.warns(InputWarning, match="excluded 0 names"):
        read_files("docs", exclude=["nothing"])
    with pytest.raises(UsageError, match="no file of a type that is read in folders.* 4 excluded"):
        read_files("docs", exclude=["*"])


def test_accents_match_in_either_unicode_form(folder):
    (folder / "Gro\u0308ße.md").write_text("The lamp.")
    assert found(exclude=["Gr\u00f6ße*"])[0] == USUAL
