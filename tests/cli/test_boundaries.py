"""`qrag boundaries`, and points in `qrag chunk --strategy hierarchy`."""

import json

import pytest
from support.encoders import random_encoder

from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.names import BOUNDARY_SOURCES

BOOK = (
    "# Book\n\nAbout it. All of it.\n\n## One\n\nOne begins here. It goes on.\n\nMore of one.\n\n### Deep\n\n"
    "Deep text stands here.\n\n## Two\n\nTwo has a few words. It ends.\n"
)
ROW = [
    "method", "view", "f1_l1", "f1_l2", "f1_any", "low", "high", "pk", "window_diff", "n_documents", "n_points",
    "seconds",
]  # fmt: skip


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", [BOOK])
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    return str(folder)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.md").write_text(BOOK)
    (tmp_path / "other.md").write_text("Text.\n\n# A\n\nText of it.\n\n# B\n\nText of that.\n")
    return tmp_path


@pytest.fixture
def run(folder, command):
    """(arguments) -> (exit code, standard output, standard error)."""
    return command


def rows_of(run, *argv):
    code, out, err = run("boundaries", *argv, "--json", "-")
    assert code == 0, err
    return json.loads(out)


def test_rows_by_hand(run):
    rows = rows_of(run, "book.md", "other.md", "--methods", "paragraphs,none")
    assert [list(row) for row in rows] == [ROW, ROW] and [row["method"] for row in rows] == ["paragraphs", "none"]
    # Book: parts at 2 (One), 5 (Deep), 6 (Two) of 8 units, paragraphs at 2, 4, 5, 6. Other: parts at 1 and 2 of 3, and
    # no paragraphs, as each would be a part.
    paragraphs, none = rows
    assert paragraphs["f1_any"] == pytest.approx(2 * 3 / (5 + 4)) and paragraphs["view"] == "removed"
    assert paragraphs["f1_l1"] == pytest.approx(2 * 2 / (4 + 4)) and paragraphs["f1_l2"] == 0
    assert paragraphs["low"] <= paragraphs["f1_any"] <= paragraphs["high"]
    assert (none["f1_any"], none["n_documents"], none["n_points"]) == (0, 2, 5)
    assert paragraphs["window_diff"] < none["window_diff"] and paragraphs["seconds"] > 0


@pytest.mark.parametrize("view", ["kept", "plain"])
def test_no_visible_heading_is_scored_without_the_removed_row(view, run):
    rows = rows_of(run, "book.md", "--view", view, "--methods", "headings,rule")
    assert [(row["method"], row["view"]) for row in rows] == [
        ("headings", view), ("headings", "removed"), ("rule", view), ("rule", "removed"),
    ]  # fmt: skip
    assert rows[0]["f1_any"] == (1 if view == "kept" else 0) and rows[1]["f1_any"] == rows[3]["f1_any"] == 0
    assert rows[2]["f1_any"] == 1  # the title, which looks like a heading too, is sentence 0
    assert {row["n_documents"] for row in rows} == {1}


def test_methods_that_read_vectors(run, encoder):
    rows = rows_of(run, "book.md", "other.md", "--model", encoder, "--methods", "breakpoint,linkage,equal",
                   "--equal_length", "2", "--linkage_sentences", "1", "--breakpoint_value", "0")  # fmt: skip
    breakpoint, linkage, equal = rows
    # No two sentences are joined: every one is a point. Above the least distance all gaps but one of a document.
    assert linkage["f1_any"] == pytest.approx(2 * 5 / (5 + 9))
    assert 2 * 3 / (5 + 7) <= breakpoint["f1_any"] <= 2 * 5 / (5 + 7)
    assert equal["f1_any"] == pytest.approx(2 * 3 / (5 + 4))


def test_a_table_and_a_file(run, folder):
    code, out, err = run("boundaries", "book.md", "--methods", "rule", "--view", "plain", "--json", "rows.json")
    assert code == 0 and not err
    lines = out.splitlines()
    assert lines[0].split() == [*ROW[:9], "seconds"] and lines[1].split()[:2] == ["rule", "plain"]
    assert lines[-2:] == ["plain: 1 documents, 3 boundaries", "removed: 1 documents, 3 boundaries"]
    assert [row["view"] for row in json.loads((folder / "rows.json").read_text())] == ["plain", "removed"]


@pytest.mark.parametrize("path", ["book.md", ".", "./book.md"])
def test_rows_take_no_place_of_a_document(path, run, folder):
    for place in ("other.md", "book.md") if path == "." else ("book.md",):
        code, _, err = run("boundaries", path, "--methods", "none", "--json", place)
        assert code == 2 and f"--json {place}: is an input file; name another file" in err
    assert (folder / "book.md").read_text() == BOOK
    assert run("boundaries", path, "--methods", "none", "--json", "rows.json")[0] == 0


def test_the_default_is_all_that_need_no_headings_and_no_language_model(run, encoder):
    rows = rows_of(run, "other.md", "--model", encoder)
    assert [row["method"] for row in rows] == [
        name for name in BOUNDARY_SOURCES.choices(without="llm") if name not in ("headings", "tagger")
    ]


def test_bad_input(run, folder):
    (folder / "bare.md").write_text("Text.")
    assert run("boundaries", "bare.md")[0] == 1
    with pytest.warns(UserWarning, match=r"1 documents without a section are left out: .*bare\.md"):
        assert run("boundaries", ".", "--methods", "none")[0] == 0
    code, _, err = run("boundaries", "nothing.md")
    assert code == 2 and "nothing.md" in err
    code, _, err = run("boundaries", "book.md", "--methods", "none", "--json", "book.md/x")
    assert code == 2 and "is not a folder" in err
    with pytest.raises(SystemExit):
        run("boundaries", "book.md", "--methods", "magic")
    with pytest.raises(SystemExit):
        run("boundaries", "book.md", "--view", "bare")


def chunks_of(run, *argv):
    code, out, err = run("chunk", *argv, "--json")
    assert code == 0, err
    return [(row["spans"][0], row["level"], row["num_tokens"]) for row in map(json.loads, out.splitlines())]


def test_points_of_another_source(run, encoder, folder):
    (folder / "plain.txt").write_text("Methods\n\nWe tried. It works.\n\nResults\n\nIt did.\n")
    config = ("--strategy", "hierarchy", "--model", encoder, "--set", "hierarchy.merge_tokens=0")
    assert len(chunks_of(run, "plain.txt", *config)) == 1
    by_flag = chunks_of(run, "plain.txt", *config, "--points", "rule")
    assert [start for (start, _), *_ in by_flag] == [0, 30]
    assert chunks_of(run, "plain.txt", *config, "--set", "hierarchy.points=rule") == by_flag


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--points", "rule"], "--points: works only with --strategy hierarchy or levels; choose that strategy, or"),
        (["--strategy", "tree", "--tree", "o.parquet", "--level_cap", "2"], "--level_cap: works only with"),
        (["--strategy", "hierarchy", "--min_tokens", "2"], "min_tokens 2: has no effect on trees"),
        (
            ["--strategy", "hierarchy", "--sizes", "8,4"],
            "--sizes: works only with --strategy levels; choose that strategy",
        ),
        (["--strategy", "levels", "--sizes", "8,4", "--points", "rule"], "--points: levels of 8,4 tokens have no"),
        (["--tagger", "run"], "--tagger: works only with --strategy hierarchy or levels; choose that strategy, or"),
        (["--strategy", "hierarchy", "--vectors", "o.npy"], "--vectors: strategy hierarchy makes no vectors"),
    ],
)
def test_flags_that_do_not_go_together(argv, message, run, encoder):
    code, _, err = run("chunk", "book.md", "--model", encoder, *argv)
    assert code == 2 and message in err
