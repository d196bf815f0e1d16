import errno
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.encoders import random_encoder
from support.indices import write_notes

from qrag_jax.cli.main import main
from qrag_jax.index.build import index_method
from qrag_jax.index.load import load_index
from qrag_jax.index.methods import multi_step_method
from qrag_jax.index.settings import read_settings
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.retriever import load_retriever
from qrag_jax.types import InputError, UsageError

WORDS = "Mary has the key of the garden. John went home and it rained all day."


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", [WORDS])
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    return str(folder)


@pytest.fixture
def index(tmp_path, monkeypatch, command, encoder):
    """(arguments) -> (exit code, standard output, standard error) of `qrag index`, beside a folder of notes."""
    monkeypatch.chdir(tmp_path)
    write_notes("notes", a="Mary has the key.", b="John went home.")

    return partial(command, "index")


def test_build_info_add_remove(index, encoder):
    code, out, err = index("build", "i", "notes", "--model", encoder, "--strategy", "fixed")
    assert (code, out) == (0, "2 documents read, 0 unchanged, 0 removed, 0 failed; 2 of 2 chunks embedded\n"), err
    write_notes("more", c="It rained all day.")
    assert index("add", "i", "more")[1].startswith("1 document read, 0 unchanged, 0 removed")
    code, out, _ = index("info", "i", "--verify")
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("i: 3 documents, 3 chunks, ")
    assert lines[1].startswith(f"encoder   {encoder} (")
    assert lines[2:] == [
        "chunks    --strategy fixed --max_tokens 200; 0 longer than the encoder reads",
        "notes     0 by mentions; left out: none",
        "verified  every document matches its hash",
    ]
    assert index("remove", "i", "more/c.md", "notes/b.md")[1] == "removed 2 documents\n"
    told = json.loads(index("info", "i", "--json")[1])
    assert [one["id"] for one in told["documents"]] == ["notes/a.md"] and told["num_chunks"] == 1
    assert told["settings"]["chunking"]["strategy"] == "fixed" and told["damaged"] == []


@pytest.mark.slow
def test_runs_on_one_encoder_share_an_index_and_others_are_refused(index, save_untrained):
    save_untrained("one")
    save_untrained("two", env=EnvConfig(num_steps=2))
    save_untrained("text", mode="text")
    code, out, err = index("build", "i", "notes", "--retriever", "one")
    assert (code, out) == (0, "2 documents read, 0 unchanged, 0 removed, 0 failed; 2 of 2 chunks embedded\n"), err
    settings, corpus = read_settings("i"), load_index("i")
    question = "Where is the milk?"
    for run in ("one", "two"):
        files = multi_step_method(load_retriever(run))
        kept = index_method(settings, run).retrieve(question, corpus, 2)
        fresh = files.retrieve(question, files.build(corpus.documents), 2)
        assert kept.ids.tolist() == fresh.ids.tolist()
        np.testing.assert_allclose(kept.scores, fresh.scores, atol=1e-5)
    assert len(index_method(settings).retrieve(question, corpus, 2)) == 2  # the run that it was made with
    assert len(index_method(settings, "single_step").retrieve(question, corpus, 2)) == 2
    with pytest.raises(InputError, match=r"its vectors were made by the encoder of .*one .*, but that of text differs"):
        index_method(settings, "text")
    Path("one").rename("moved")
    with pytest.raises(UsageError, match=r"the index was made with the run .*/one: .*; if the run has moved"):
        index_method(settings)
    assert len(index_method(settings, "moved").retrieve(question, corpus, 2)) == 2
    code, _, err = index("build", "i", "notes", "--strategy", "fixed")
    assert code == 2 and "i: was made with the sentences of a run (--retriever), not with --strategy fixed" in err


def test_half_an_index_is_not_taken_for_files(index, encoder, capsys):
    for shard in ("0", "1"):
        index("build", "i", "notes", "--model", encoder, "--num_shards", "2", "--shard", shard)
    Path("site/shards/0-of-2").mkdir(parents=True)  # names that others give too
    Path("site/index.json").write_text("{}")
    Path("site/a.md").write_text("Mary has the key.")
    asked = ["Who has the key?", "--retriever", "bm25", "--model", encoder]
    assert main(["find", "site", *asked]) == 0 and "site/a.md:1" in capsys.readouterr().out
    asked = asked[:3]
    assert main(["find", "i", *asked]) == 2
    assert (
        "i: an index in shards that are not merged; finish all shards, then run `qrag index merge i`"
        in capsys.readouterr().err
    )
    index("merge", "i")
    Path("i/catalogue.sqlite").unlink()
    assert main(["find", "i", *asked]) == 1
    assert "i: an index without its catalogue.sqlite; copy the index again" in capsys.readouterr().err


def test_bad_files_are_named_and_stop_no_other(index, encoder):
    Path("notes/bad.md").write_bytes(b"\xff")
    Path("notes/table.dat").write_text("1")
    with pytest.warns(UserWarning, match=r"did not read 1 file of other types \(1 .dat\)"):
        code, out, err = index("build", "i", "notes", "--model", encoder)
    assert code == 0 and out.startswith("2 documents read, 0 unchanged, 0 removed, 1 failed")
    assert "1 file could not be read:\n  notes/bad.md: not UTF-8 at byte 0" in err
    Path("notes/table.dat").unlink()
    assert index("build", "i", "notes", "notes/bad.md", "--json")[0] == 1  # it was named
    assert json.loads(index("info", "i", "--json")[1])["failed"][0]["file"] == "notes/bad.md"


def test_a_document_whose_file_became_bad_is_kept_and_told(index, encoder, capsys):
    index("build", "i", "notes", "--model", encoder)
    Path("notes/a.md").write_text("")
    code, out, err = index("build", "i", "notes")
    assert (code, out) == (
        1, "0 documents read, 1 unchanged, 0 removed, 1 failed, 1 kept; 0 of 0 chunks embedded\n"
    )  # fmt: skip
    assert "1 document kept, because the file or folder cannot be read (`qrag index remove` removes" in err
    assert "  notes/a.md: empty document; leave this file out" in err
    assert "failed    notes/a.md: old version kept; empty document" in index("info", "i")[1]
    told = json.loads(index("info", "i", "--json")[1])
    assert (told["kept"], told["num_documents"]) == (["notes/a.md"], 2)
    assert main(["find", "i", "Who has the key?", "--retriever", "bm25"]) == 0
    assert "notes/a.md:1" in capsys.readouterr().out
    code, out, err = index("add", "i", "notes", "--strict")
    assert (code, out) == (1, "") and "qrag: error: notes/a.md: empty document" in err
    assert index("remove", "i", "notes/a.md")[0] == 0 and index("info", "i", "--verify")[0] == 0


def test_the_encoding_that_a_document_was_read_in_needs_no_second_naming(index, encoder):
    Path("notes/a.md").write_bytes("Das Caf\u00e9.".encode("latin-1"))
    assert index("build", "i", "notes/a.md", "--model", encoder, "--encoding", "latin-1")[0] == 0
    assert index("build", "i", "notes/a.md")[1].startswith("0 documents read, 1 unchanged")
    code, out, err = index("add", "i", "notes/a.md", "--encoding", "nope")
    assert (code, out) == (2, "") and "encoding 'nope': Python knows no text encoding of that name" in err


def test_a_folder_without_rights_is_named(index, monkeypatch):
    """Root, who runs tests in places, may look into every folder."""
    listdir = os.listdir

    def refuse(path="."):
        if Path(path).name in ("shut", "shards"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listdir(path)

    for name in ("shut", "i"):
        Path(name).mkdir()
    monkeypatch.setattr(os, "listdir", refuse)
    for argv, name in (("build shut notes", "shut"), ("info shut", "shut"), ("build i notes", "i/shards")):
        code, out, err = index(*argv.split())
        assert (code, out) == (2, "") and f"{name}: the folder cannot be read (Permission denied)" in err


def test_damage_is_exit_code_one(index, encoder):
    index("build", "i", "notes", "--model", encoder)
    path = Path("i/catalogue.sqlite")
    path.write_bytes(path.read_bytes().replace(b"Mary has the key.", b"Mary had the key."))
    code, out, err = index("info", "i", "--verify")
    assert (code, out.splitlines()[-1]) == (1, "damaged   notes/a.md")
    assert "i: damaged: notes/a.md; repair it with `qrag index add i PATHS... --verify`" in err
    code, out, err = index("add", "i", "notes")
    assert code == 0 and "1 document repaired: notes/a.md" in err and out.startswith("1 document read, 1 unchanged")


def test_an_index_in_its_own_folder_is_left_out(index, encoder):
    index("build", "notes/i", "notes", "--model", encoder)
    Path("notes/i/readme.md").write_text("No note.")
    _, out, err = index("build", "notes/i", "notes")
    assert "note: notes/i is inside the folders to read; the index itself is left out" in err
    assert out.startswith("0 documents read, 2 unchanged")


def test_the_names_that_a_refusal_points_to_are_there(index, encoder):
    index("build", "i", "notes", "--model", encoder)
    code, _, said = index("remove", "i", "nowhere.md")
    assert code == 2 and "nowhere.md: not in the index i" in said
    assert json.loads(index("info", "i", "--json")[1])["documents"][0]["id"].startswith("notes/")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("build i", "qrag index build: give at least one file or folder after i"),
        ("info i notes", "notes: qrag index info takes no paths"),
        ("info i --model m", "--model: works only with build and add, not with info; leave it out"),
        ("add i notes --shard 1", "--shard: works only with build, not with add"),
        ("build i notes --shard 0", "--num_shards, --shard: give both or neither"),
        (
            "build i notes --retriever r --strategy fixed",
            "--strategy: does not work with --retriever: a run reads sentences",
        ),
        ("build i notes --store milvus", "--store 'milvus': needs the address of its server; give it (--uri)"),
        ("build i notes --uri http://localhost:1", "--store 'sqlite': has no server; leave --uri out"),
        ("build i notes --store milvus --uri host:1", "--uri 'host:1': is no address of a Milvus server; give http://"),
        ("info i --uri http://localhost:1", "--uri: works only with build and add, not with info; leave it out"),
        ("merge i --engine ray", "--engine: works only with build and add, not with merge; leave it out"),
        ("add i notes", "i: not an index (no such folder)"),
        ("remove i notes", "i: not an index (no such folder)"),
    ],
)
def test_what_is_asked_wrongly_is_refused(index, argv, said):
    code, out, err = index(*argv.split())
    assert (code, out) == (2, "") and said in err


def test_late_stores_what_a_search_would_compute(index, encoder, command):
    code, _, err = index("build", "i", "notes", "--model", encoder, "--strategy", "fixed", "--late")
    assert code == 0 and "token vectors take up to " in err and "the disk has " in err
    assert index("build", "j", "notes", "--model", encoder, "--strategy", "fixed")[0] == 0
    told = json.loads(index("info", "i", "--json")[1])["late"]
    assert told["num_chunks"] == 2 and told["bytes"] == 16 * (5 + 4)  # words and full stops of size 16
    assert "\nlate      0.0 MB of token vectors, 0.1 kB a chunk\n" in index("info", "i", "--verify")[1]
    found = []
    for folder in ("i", "j"):
        code, out, err = command("find", folder, "Who has the key?", "--late", "--json")
        assert code == 0, err
        found.append(json.loads(out))
    kept, computed = ([one["late_score"] for one in told["passages"]] for told in found)
    np.testing.assert_allclose(kept, computed, atol=0.01)  # rounding to int8, in another shape
    assert found[0]["late"] == {"model": "late", "weight": 4.0, "num_passages": 2, "num_passages_cut": 0}
    assert found[0]["cost"]["seconds"]["late"] >= 0
    assert [one["file"] for one in found[0]["passages"]] == [one["file"] for one in found[1]["passages"]]
    code, _, err = index("build", "j", "notes", "--late")
    assert code == 2 and "j: was made without token vectors (--late); build another index" in err
    code, _, err = command("find", "i", "Who has the key?", "--late", "--retriever", "bm25")
    assert code == 2 and "--late: bm25 compares words only" in err
