"""The notes of an index at the command line: made, shown, searched with."""

import json
from pathlib import Path

import pytest
from support.encoders import random_encoder
from support.indices import write_notes

from qrag_jax.models.encoder.weights import save_encoder

FILM, LEE, RAIN = (
    "Up Down is a film by Ann Lee.",
    "She was born in Graz and has lived there ever since.",
    "It rained all day.",
)
QUESTION = "Who made the film?"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", [FILM, LEE, RAIN, QUESTION])
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    return str(folder)


@pytest.fixture
def qrag(tmp_path, monkeypatch, command, encoder):
    """(arguments) -> (exit code, standard output, standard error), beside an index `i` of the folder `notes`."""
    monkeypatch.chdir(tmp_path)
    write_notes("notes", up_down=FILM, ann_lee=LEE, weather=RAIN)
    code, out, err = command("index", "build", "i", "notes", "--model", encoder)
    assert (code, err) == (0, "") and out.endswith("3 of 3 chunks embedded; 1 note, 1 embedded\n")
    return command


def found(qrag, *flags):
    code, out, err = qrag("find", "i", QUESTION, "--json", *flags)
    assert code == 0, err
    return json.loads(out)


def test_a_passage_says_which_note_brought_it_in(qrag):
    told = found(qrag, "--retriever", "bm25")
    assert (told["notes_mode"], told["retriever"]) == ("best_of", "bm25")
    own, named = told["passages"]
    assert (own["file"], own["notes"]) == ("notes/up_down.md", [])
    assert (named["file"], named["text"]) == ("notes/ann_lee.md", LEE)  # the document's own text
    (note,) = named["notes"]
    assert note["text"] == FILM and note["reader"] == "mentions"
    assert note["source"] == {"file": "notes/up_down.md", "line": 1, "start": 0, "end": len(FILM)}
    evidence = {"file": "notes/ann_lee.md", "line": 1, "start": 0, "end": len(LEE), "text": LEE}
    assert note["evidence"] == evidence
    lines = qrag("find", "i", QUESTION, "--retriever", "bm25")[1].splitlines()
    assert lines[2:] == [" 2  notes/ann_lee.md:1", f"    {LEE}", f"    note from notes/up_down.md:1: {FILM}"]
    assert len(found(qrag, "--retriever", "bm25", "--notes_mode", "none")["passages"]) == 1


def test_an_answer_has_the_passages_that_notes_bring_in(qrag):
    code, out, err = qrag("ask", "i", QUESTION, "--no_llm", "--retriever", "bm25", "--json")
    assert code == 0, err
    texts = [one["text"] for one in json.loads(out)["context"]["passages"]]
    assert set(texts) == {FILM, LEE}
    code, out, _ = qrag("ask", "i", QUESTION, "--no_llm", "--retriever", "bm25", "--json", "--notes_mode", "none")
    assert [one["text"] for one in json.loads(out)["context"]["passages"]] == [FILM]


def test_list_shows_every_note_and_where_it_comes_from(qrag):
    assert qrag("notes", "list", "i")[:2] == (0, f"notes/ann_lee.md:1  from notes/up_down.md:1: {FILM}\n")
    told = json.loads(qrag("notes", "list", "i", "--json")[1])
    assert (told["index"], told["reader"], told["num_notes"], told["is_current"]) == ("i", "mentions", 1, True)
    assert told["notes"][0]["text"] == FILM and told["left_out"] == {}
    assert qrag("notes", "list", "i", "--json", "out.json")[1] == ""
    assert json.loads(Path("out.json").read_text()) == told


def test_export_has_a_line_a_note_and_pairs_have_both_chunks(qrag):
    code, out, err = qrag("notes", "export", "i")
    assert (code, err) == (0, "1 of 1 notes; 0 ask a question\n") and json.loads(out)["text"] == FILM
    row = json.loads(qrag("notes", "export", "i", "--pairs")[1])
    assert row["question"] is None
    assert row["asking"] == {"file": "notes/up_down.md", "line": 1, "spans": [[0, len(FILM)]], "text": FILM}
    assert row["answering"] == {"file": "notes/ann_lee.md", "line": 1, "spans": [[0, len(LEE)]], "text": LEE}
    assert row["evidence"]["text"] == LEE


@pytest.mark.parametrize(
    "argv, message",
    [
        (("list",), "qrag notes list: give the folder of an index"),
        (("list", "i", "--pairs"), "--pairs: does not work with list"),
        (("export", "i", "--json"), "--json: does not work with export"),
        (("export", "i", "--reader", "mentions"), "--reader: works only with eval, not with export"),
        (("list", "i", "--estimate"), "--estimate: works only with eval, not with list"),
        (
            ("list", "i", "--json", "i/catalogue.sqlite"),
            "--json i/catalogue.sqlite: is inside the index i; name a file",
        ),
        (("export", "i", "--llm", "scripted"), "--llm: works only with eval, not with export"),
        (("eval", "i", "--hotpot", "x"), "i: works only with list and export; give eval a set"),
        (("eval",), "qrag notes eval: give one of --hotpot FILE"),
    ],
)
def test_what_does_not_belong_together_is_refused(qrag, encoder, argv, message):
    qrag("index", "build", "plain", "notes", "--notes", "none", "--model", encoder)
    code, _, err = qrag("notes", *argv)
    assert code == 2 and message in err


SCRIPT = [
    {"match": "Write 2 different questions", "answer": '{"questions": ["Where was Ann Lee born?"]}'},
    {"match": "born in Graz", "answer": '{"answer": "In Graz", "evidence": "She was born in Graz"}'},
    {"answer": '{"answer": "", "evidence": ""}'},
]
FAILS = {"match": "born in Graz", "error": "the server is down"}


@pytest.fixture
def model(qrag):
    """Flags of a language model by a script."""
    Path("script.jsonl").write_text("\n".join(map(json.dumps, SCRIPT)))
    return ("--llm", "scripted", "--llm_model", "script.jsonl", "--num_questions_a_chunk", "2", "--journal", "j.sqlite")


def test_a_language_model_writes_the_notes_and_is_paid_once(qrag, model):
    code, out, err = qrag("index", "add", "i", "notes", "--notes", "llm", *model, "--estimate")
    assert code == 0 and out.startswith("at most 21 calls of the language model, ") and "nothing was asked" in out
    assert "1 by mentions" in qrag("index", "info", "i")[1] and found(qrag)  # whose notes are what they were
    code, out, err = qrag("index", "add", "i", "notes", "--notes", "llm", *model)
    assert code == 0 and "6 new calls and 0 from the journal" in err
    assert out.endswith("0 of 0 chunks embedded; 1 note, 2 embedded\n")
    (note,) = json.loads(qrag("notes", "list", "i", "--json")[1])["notes"]
    assert note["question"] == "Where was Ann Lee born?" and note["evidence"]["text"] == LEE
    # A document more: its own question is asked, and what it may answer; of the others nothing.
    write_notes("notes", more="Nobody was there.")
    code, out, err = qrag("index", "add", "i", "notes", *model)
    assert code == 0 and "2 new calls and 6 from the journal" in err
    Path("notes/more.md").unlink()
    code, out, err = qrag("index", "remove", "i", "notes/more.md", *model)
    assert code == 0 and "0 new calls and 6 from the journal" in err
    # The note is found, shown apart from the passage, and cited by what it was read from.
    reply = json.dumps({"answer": "In Graz [4]."})
    Path("reply.jsonl").write_text(reply)
    argv = ("ask", "i", "Where was Ann Lee born?", "--llm", "scripted", "--llm_model", "reply.jsonl", "--no_journal")
    answer = json.loads(qrag(*argv, "--json", "--max_context_tokens", "900")[1])
    assert answer["notes_mode"] == "best_of"
    (given,) = answer["context"]["notes"]
    assert (given["number"], given["note"], given["text"]) == (4, "Where was Ann Lee born? In Graz", LEE)
    assert [(one["number"], one["file"]) for one in answer["citations"]] == [(4, "notes/ann_lee.md")]


def test_another_language_model_is_not_taken_unasked(qrag, model):
    assert qrag("index", "add", "i", "notes", "--notes", "llm", *model)[0] == 0
    for argv in (("add", "i", "notes"), ("remove", "i", "notes/up_down.md"), ("add", "i", "notes", *model[:4])):
        code, _, err = qrag("index", *argv)
        assert code == 2 and "its notes are by scripted script.jsonl (2 questions a chunk, 40 to each" in err
    assert len(json.loads(qrag("index", "info", "i", "--json")[1])["documents"]) == 3


def test_what_failed_is_asked_for_again_and_nothing_else(qrag, model):
    Path("script.jsonl").write_text("\n".join(map(json.dumps, [SCRIPT[0], FAILS, SCRIPT[2]])))
    code, out, err = qrag("index", "add", "i", "notes", "--notes", "llm", *model)
    assert code == 0 and "0 notes, 6 new calls" in err and "1 calls failed" in err
    told = json.loads(qrag("index", "info", "i", "--json")[1])["notes"]
    assert told["is_current"] and told["left_out"]["call failed"] == 1
    Path("script.jsonl").write_text("\n".join(map(json.dumps, SCRIPT)))
    code, out, err = qrag("index", "add", "i", "notes", *model)
    assert code == 0 and "1 notes, 6 new calls" in err and "failed" not in err
    assert qrag("index", "add", "i", "notes", *model)[2] == ""  # no call failed: nothing is to be done


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("build", "k", "notes", "--notes", "llm", "--num_shards", "2", "--shard", "0"),
            "--notes llm: does not work with shards",
        ),
        (("info", "i", "--llm_model", "x"), "--llm_model: works only with build, add and remove, not with info"),
        (
            ("add", "i", "notes", "--notes", "none", "--estimate"),
            "--estimate: works only with --notes llm, not with none",
        ),
        (
            ("add", "i", "notes", "--llm", "scripted"),
            "--llm: works only with --notes llm, but notes of i are by mentions",
        ),
        (
            ("build", "k", "notes", "--estimate"),
            "--estimate: works only with --notes llm, but notes of k are by mentions",
        ),
    ],
)
def test_flags_of_language_models_stay_with_their_notes(qrag, argv, message):
    code, _, err = qrag("index", *argv)
    assert code == 2 and message in err
