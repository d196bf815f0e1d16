import io
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.documents import tiny_pdf
from support.encoders import random_encoder
from support.tiers import PATIENCE

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.chunking.tree.tree_files import load_trees
from qrag_jax.cli.chunk import VERB, format_json
from qrag_jax.cli.main import main
from qrag_jax.config import to_dict
from qrag_jax.documents.kinds import is_installed
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.names import CHUNKERS
from qrag_jax.types import Chunk, Document

STORY = (
    "# Diary\r\n\r\nMary went to the kitchen. It rained all day long. Mary picked up\r\nthe milk there.\r\n\r\n"
    "## Garden\r\n\r\nJohn travelled to the garden. 今天很冷。我们回家。 The rain did not stop.\r\n"
)
WINDOW = ("--set", "late.window_tokens=24", "--set", "late.overlap_tokens=6")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A folder with a small BERT of random weights that knows the words of the story."""
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", [STORY])
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    return SimpleNamespace(folder=str(folder), tokenizer=loaded.tokenizer)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "story.txt").write_bytes(STORY.encode())
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "b.md").write_bytes(b"\xef\xbb\xbf# Notes\n\nSandra journeyed to the office.\n")
    return tmp_path


@pytest.fixture
def chunk(encoder, files, command):
    """(arguments) -> (exit code, standard output, standard error) of `qrag chunk`."""
    return partial(command, "chunk", "--model", encoder.folder)


def rows_of(out):
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("strategy", CHUNKERS.names)
def test_every_strategy_proves_where_its_chunks_come_from(strategy, chunk, encoder):
    flags = ("story.txt", "notes", "--strategy", strategy, "--max_tokens", "9", "--json")
    code, out, err = chunk(*flags)
    assert (code, err) == (0, "")
    texts = {"story.txt": STORY, "notes/b.md": "# Notes\n\nSandra journeyed to the office.\n"}
    rows = rows_of(out)
    assert [row["file"] for row in rows] == sorted((row["file"] for row in rows), reverse=True)
    covered = {name: set() for name in texts}
    for row in rows:
        assert list(row) == ["id", "file", "spans", "level", "num_tokens"]
        text, spans = texts[row["file"]], [tuple(span) for span in row["spans"]]
        document = Document(row["file"], text)
        expected = make_chunk(document, spans, row["level"], encoder.tokenizer.count)
        assert Chunk(row["id"], row["file"], tuple(spans), row["level"], row["num_tokens"]) == expected
        assert 0 < row["num_tokens"] <= 9
        covered[row["file"]] |= {i for start, end in spans for i in range(start, end)}
    for name, text in texts.items():
        assert all(i in covered[name] for i, character in enumerate(text) if not character.isspace())
    assert len({row["id"] for row in rows}) == len(rows)
    assert chunk(*flags) == (0, out, "")


def test_json_is_ascii_and_gives_any_file_name_back():
    document = Document("é\udcff\n.txt", "One.")
    line = format_json(document, [Chunk("ab", document.id, ((0, 4),), 1, 2)])
    assert line.isascii() and line.count("\n") == 1
    assert json.loads(line) == {"id": "ab", "file": document.id, "spans": [[0, 4]], "level": 1, "num_tokens": 2}


def test_standard_input(chunk, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"It rained. The rain did not stop.")))
    code, out, _ = chunk("-", "--json", "--set", "fixed.sentences_per_chunk=1")
    assert code == 0
    assert [(row["file"], row["spans"]) for row in rows_of(out)] == [("-", [[0, 10]]), ("-", [[11, 33]])]


def test_parameters_come_from_a_file_then_set_then_flags(chunk, files):
    (files / "c.yaml").write_text("strategy: document\nmax_tokens: 3\nfixed: {sentences_per_chunk: 2}\n")
    given = ("story.txt", "--json", "--config_path", "c.yaml")
    assert {row["level"] for row in rows_of(chunk(*given, "--set", "max_tokens=null")[1])} == {0}
    assert max(row["num_tokens"] for row in rows_of(chunk(*given)[1])) == 3
    flags = ("--strategy", "fixed", "--set", "max_tokens=null", "--set", "strategy=recursive")
    two = rows_of(chunk(*given, *flags)[1])
    one = rows_of(chunk(*given, *flags, "--set", "fixed.sentences_per_chunk=1")[1])
    assert len(one) > len(two) > 1 and {row["level"] for row in one + two} == {1}


def test_a_page(chunk, files):
    (files / "<b>.txt").write_text("<script>alert(1)</script> It rained.")
    code, out, _ = chunk("story.txt", "<b>.txt", "--strategy", "headings", "--html", "new/out.html", "--json")
    page = (files / "new" / "out.html").read_text(encoding="utf-8")
    assert code == 0 and "<script" not in page and "&lt;script&gt;alert(1)" in page and "&lt;b&gt;.txt" in page
    for row in rows_of(out):
        assert f'title="{row["id"]}: level {row["level"]}, {row["num_tokens"]} tokens"' in page


def test_vectors_of_late_chunks_in_printed_order(chunk, files):
    flags = ("--strategy", "late", "--set", "late.num_tokens=8", *WINDOW)
    code, out, err = chunk("story.txt", "notes", *flags, "--vectors", "new/v", "--json")
    assert (code, err) == (0, "")
    vectors = np.load(files / "new" / "v")
    assert vectors.dtype == np.float32 and vectors.shape == (len(rows_of(out)), 16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    chunk("notes", *flags, "--vectors", "w.npy")
    np.testing.assert_allclose(np.load(files / "w.npy"), vectors[-1:], atol=1e-5)


def test_what_the_window_cuts_is_said(chunk, files):
    (files / "long.txt").write_text("the " * 100 + "rain. It rained.")
    code, _, err = chunk("long.txt", "--strategy", "breakpoint")
    assert code == 0
    assert err.startswith("1 of 2 texts are longer than the 64 tokens that ")


def test_warnings_are_said_with_the_file(chunk, files, monkeypatch):
    monkeypatch.setattr("qrag_jax.chunking.strategies.clusters.EXACT_SENTENCES", 4)
    code, out, err = chunk("story.txt", "--strategy", "linkage", "--json")
    assert code == 0 and rows_of(out)
    assert err.startswith("story.txt: linkage: ") and err.count("\n") == 1 and "windows" in err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["story.txt", "empty.txt"], 1, "empty.txt: empty document"),
        (["story.txt", "--vectors", "v.npy"], 2, "--vectors: strategy fixed makes no vectors"),
        (["story.txt", "--tree", "t.json"], 2, "t.json: unknown kind of file for trees; give .parquet or .arrow"),
        (["story.txt", "--tree", "t.arrow", "--strategy=late"], 2, "--tree: strategy late makes no tree; choose"),
        (
            ["story.txt", "--tree", "t.arrow", "--set", "strategy=late"],
            2,
            "--tree: strategy late makes no tree; choose",
        ),
        (["story.txt", "--tree", "t.arrow", "--config_path=l.yaml"], 2, "--tree: strategy linkage makes no tree"),
        (["story.txt", "--strategy=tree", "--vectors", "v"], 2, "--vectors: strategy tree makes no vectors"),
        (["story.txt", "--tree", "o.parquet", "--html", "o.parquet"], 2, "--tree o.parquet: is the output of --html"),
        (["story.txt", "--html", "notes"], 2, "--html notes: is a folder; name another file"),
        (["story.txt", "--html", "./story.txt"], 2, "--html ./story.txt: is an input file"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_anything_is_printed(chunk, files, argv, code, message):
    for name, content in (("empty.txt", b""), ("blank.txt", b" \n\xe3\x80\x80\n"), ("zero.txt", b"abc\0d")):
        (files / name).write_bytes(content)
    (files / "l.yaml").write_text("strategy: linkage")
    found, out, err = chunk(*argv)
    assert (found, out) == (code, "") and message in err
    assert (files / "story.txt").read_bytes() == STORY.encode()


def test_the_help_knows_every_parameter_of_every_strategy():
    for name, part in to_dict(ChunkConfig()).items():
        if isinstance(part, dict):
            _, _, described = f"\n{VERB.details}".partition(f"\n  {name} ")
            parameters = described[: described.index(")")].rpartition("(")[2]
            assert re.split(r",\s+", parameters) == list(part)


def test_strategies_without_vectors_import_no_jax(encoder, files):
    code = """
import sys
from qrag_jax.cli.main import main
for strategy in ("fixed", "recursive", "late", "headings", "document", "tree"):
    argv = ["chunk", "story.txt", "--strategy", strategy, "--max_tokens", "9", "--html", "o.html", "--json"]
    assert main([*argv, "--model", sys.argv[1]]) == 0
print(sorted({module.partition(".")[0] for module in sys.modules} & {"jax", "jaxlib", "flax", "torch"}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, encoder.folder], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[]"


PROC = pytest.mark.skipif(not os.path.ismount("/proc"), reason="a container may have an empty folder there")


@pytest.mark.parametrize("path", ["story.txt/page.html", pytest.param("/proc/page.html", marks=PROC)])
def test_a_page_that_cannot_be_written_is_refused_before_any_chunk(chunk, files, path):
    code, out, err = chunk("story.txt", "--html", path)
    assert (code, out) == (2, "")
    assert f"--html {path}: cannot be written" in err and "name another file" in err


def test_a_run_that_fails_leaves_no_empty_page_and_the_old_one_as_it_was(chunk, files):
    (files / "old.html").write_text("old")
    for name in ("new.html", "old.html"):
        assert chunk("story.txt", "--html", name, "--model", "nowhere/at/all")[0] == 2
    assert not (files / "new.html").exists() and (files / "old.html").read_text() == "old"


TREE = "# A\r\n\r\nthe rain\r\n\r\nit\r\n\r\n## B\r\n\r\nrain the. It rained all day.\r\n\r\n- the\r\n- it\r\n"


def test_a_tree_is_shown_by_levels(chunk, files):
    (files / "t.md").write_bytes(TREE.encode())
    code, out, err = chunk("t.md", "--strategy", "tree", "--max_tokens", "6")
    assert (code, err) == (0, "")
    # tokens are words and marks, each # its own; "## B" and its paragraph are cut apart, the list fits
    assert out.splitlines() == [
        f"t.md:0-{len(TREE) - 2}   0  20  # A the rain it ## B rain the. It rained all day. - the - it",
        "t.md:0-15   2   4      # A the rain",
        "t.md:19-21  2   1      it",
        "t.md:25-76  2  15      ## B rain the. It rained all day. - the - it",
        "t.md:25-61  3  11        ## B rain the. It rained all day.",
        "t.md:25-29  4   3          ## B",
        "t.md:33-42  4   3          rain the.",
        "t.md:43-61  4   5          It rained all day.",
        "t.md:65-76  3   4        - the - it",
    ]


def test_the_flag_for_trees_wins_over_a_config_and_no_encoder_is_loaded_for_its_strategy(chunk, files, monkeypatch):
    (files / "t.md").write_bytes(TREE.encode())
    wanted = chunk("t.md", "--strategy", "tree", "--max_tokens", "6")
    monkeypatch.setattr("qrag_jax.models.encoder.weights.load_encoder", None)
    found = chunk("t.md", "--strategy", "tree", "--max_tokens", "6", "--set", "strategy=linkage", "--tree", "o.parquet")
    assert found == wanted and wanted[0] == 0


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_trees_of_all_files_are_written_as_they_are_shown(chunk, files, encoder, suffix):
    code, out, err = chunk("story.txt", "notes", "--tree", f"new/t.{suffix}", "--max_tokens", "9", "--json")
    assert (code, err) == (0, "")
    documents = {"story.txt": STORY, "notes/b.md": "# Notes\n\nSandra journeyed to the office.\n"}
    documents = {name: Document(name, text) for name, text in documents.items()}
    trees = load_trees(files / "new" / f"t.{suffix}", documents)
    assert [tree.document_id for tree in trees] == list(documents)
    count = encoder.tokenizer.count
    nodes = [chunk for tree in trees for chunk in tree.node_chunks(documents[tree.document_id], count)]
    assert out == "".join(format_json(documents[node.document_id], [node]) for node in nodes)
    assert all(leaf.num_tokens <= 9 for tree in trees for leaf in tree.chunks(documents[tree.document_id], count))
    assert chunk("story.txt", "notes", "--strategy", "tree", "--max_tokens", "9", "--json") == (0, out, "")


@pytest.mark.skipif(not is_installed(), reason="the extra `documents` is not installed")
def test_chunks_of_a_pdf_name_their_page(encoder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.pdf").write_bytes(tiny_pdf([["One is here."], ["Two is there."]]))
    Path("b.txt").write_text("One is here.")
    assert main(["chunk", "a.pdf", "b.txt", "--model", encoder.folder, "--max_tokens", "6", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.get("page") for row in rows] == [1, 2, None]


def test_a_bad_member_of_a_folder_is_left_out_and_refused_when_that_is_asked_for(
    encoder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    for name, text in (("a.txt", "One is here."), ("b.txt", ""), ("c.png", "")):
        Path("docs", name).write_text(text)
    with pytest.warns(UserWarning, match=r"left out 1 file in folders \(docs/b.txt: empty .*\); strict.* 1 file of"):
        assert main(["chunk", "docs", "--model", encoder.folder]) == 0
    assert "docs/a.txt" in capsys.readouterr().out
    assert main(["chunk", "docs", "--strict"]) == 1
    assert "docs/b.txt: empty document; leave this file out" in capsys.readouterr().err


def test_the_text_of_a_file_is_printed_as_it_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.md").write_bytes(b"# One\r\n\r\nTwo\x1b.\r\n")
    assert main(["chunk", "a.md", "--text"]) == 0
    assert capsys.readouterr().out == "# One\n\nTwo\ufffd.\n\n"
    (tmp_path / "b.md").write_text("Three.")
    assert main(["chunk", ".", "--text"]) == 2
    assert "--text: prints the text of one file, but there are 2; name one of them" in capsys.readouterr().err


def test_256_tokens_are_a_bound_and_a_chunk_inside_a_table_tells_its_head(files, capsys):
    rows = [f"| B{n} | {100 + n} | {50 + n} | no |" for n in range(1, 91)]
    (files / "fees.md").write_text(
        "\n".join(["# Fees\n", "| Berth | Summer fee | Winter fee | Power |", "|---|---|---|---|", *rows])
    )
    (files / "line.txt").write_text("harbour " * 25_000)
    assert main(["chunk", "line.txt", "fees.md", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert max(one["num_tokens"] for one in found) <= 256
    first, *others = [one for one in found if one["file"] == "fees.md"]
    assert "context" not in first and len(others) == 3
    assert {one["context"] for one in others} == {"Fees\n| Berth | Summer fee | Winter fee | Power |"}
