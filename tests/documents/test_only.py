import pytest

from qrag_jax.documents.found import Found, Only, Skipped
from qrag_jax.documents.read import read_files
from qrag_jax.types import UsageError

NAMES = ["docs/reports/a.md", "docs/reports/old/b.md", "docs/notes.md", "reports.md"]


@pytest.mark.parametrize(
    ("patterns", "taken"),
    [
        ([], [0, 1, 2, 3]),
        (["reports/*"], [0, 1]),
        (["docs/reports/*"], [0, 1]),
        (["old/*"], [1]),
        (["*.md"], [0, 1, 2, 3]),
        (["notes.md", "a.*"], [0, 2]),
        (["report?.md"], [3]),
        (["[ab].md"], [0, 1]),
    ],
)
def test_which_names_patterns_take(patterns, taken):
    assert Only(patterns).of_names(NAMES) == [NAMES[i] for i in taken]


def test_a_pattern_is_no_beginning_and_no_regular_expression():
    with pytest.raises(UsageError, match=r"fits none of 4 documents \(docs/reports/a.md, ") as error:
        Only(["report", "note..md"]).of_names(NAMES)
    assert (error.value.field, error.value.value) == ("only", ("report", "note..md"))


def test_only_what_is_asked_for_is_read(tmp_path, monkeypatch, recwarn):
    """A bad file of another name is as if it were not there, a bad one of such a name is still told."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("Mary has it.")
    (tmp_path / "docs/notes.md").write_bytes(b"\xff")
    (tmp_path / "docs/picture.png").write_bytes(b"\x89PNG")
    assert [one.id for one in read_files("docs", only=["reports/*"])] == NAMES[:2]
    assert not recwarn.list
    with pytest.warns(UserWarning, match="left out 1 file in folders"):
        assert [one.id for one in read_files("docs", only=["a.md", "notes.md"])] == NAMES[:1]


def test_what_was_left_out_is_told_of_such_names_alone():
    found = Found((), (Skipped("a.md", "blank"), Skipped("b.md", "blank")), {".png": 2})
    assert Only(["a.*"]).of_found(found) == Found((), (Skipped("a.md", "blank"),))
    assert Only([]).of_found(found) == found
