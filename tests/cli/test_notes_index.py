"""The notes of an index at the command line: made, shown, searched with."""

import json
from pathlib import Path

import pytest
from support.encoders import random_encoder
from support.indices import write_notes

from qrag_jax.annotate.mentions import mention_notes
from qrag_jax.cli.main import main
from qrag_jax.index.build import load_noted_index
from qrag_jax.index.index import open_index
from qrag_jax.index.settings import NotesSetting, read_settings, write_settings
from qrag_jax.index.update import Plan
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.names import NOTE_MODES
from qrag_jax.types import UsageError

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
def qrag(tmp_path, monkeypatch, capsys, encoder):
    """(arguments) -> (exit code, standard output, standard error), beside an index `i` of the folder `notes`."""
    monkeypatch.chdir(tmp_path)
    write_notes("notes", up_down=FILM, ann_lee=LEE, weather=RAIN)

    def run(*argv):
        code = main(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    code, out, err = run("index", "build", "i", "notes", "--model", encoder)
    assert (code, err) == (0, "") and out.endswith("3 of 3 chunks embedded; 1 note, 1 embedded\n")
    return run


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


@pytest.mark.parametrize("mode", [mode for mode in NOTE_MODES if mode != "walk"])
@pytest.mark.parametrize("retriever", ["hybrid", "dense"])
def test_every_mode_ranks_every_chunk_and_shows_what_stood_in_it(qrag, mode, retriever):
    told = found(qrag, "--notes_mode", mode, "--retriever", retriever)
    assert told["notes_mode"] == mode and {one["text"] for one in told["passages"]} == {FILM, LEE, RAIN}
    notes = {one["file"]: [note["text"] for note in one["notes"]] for one in told["passages"]}
    assert notes["notes/weather.md"] == notes["notes/up_down.md"] == []
    stood_in_it = mode in ("insert", "all", "random") or (mode == "best_of" and retriever == "hybrid")
    if mode == "none" or stood_in_it:
        assert notes["notes/ann_lee.md"] == [FILM] * stood_in_it


def test_an_index_whose_notes_are_none_is_searched_as_one_without(qrag):
    write_notes("notes", up_down="Nothing.")
    assert qrag("index", "build", "i", "notes")[1].endswith("1 of 1 chunk embedded\n")
    for retriever in ("hybrid", "dense"):
        with_notes, without = (found(qrag, "--retriever", retriever, *mode) for mode in ([], ["--notes_mode", "none"]))
        assert with_notes["notes_mode"] == "best_of" and with_notes["passages"] == without["passages"]


def test_an_answer_has_the_passages_that_notes_bring_in(qrag):
    code, out, err = qrag("ask", "i", QUESTION, "--no_llm", "--retriever", "bm25", "--json")
    assert code == 0, err
    texts = [one["text"] for one in json.loads(out)["context"]["passages"]]
    assert set(texts) == {FILM, LEE}
    code, out, _ = qrag("ask", "i", QUESTION, "--no_llm", "--retriever", "bm25", "--json", "--notes_mode", "none")
    assert [one["text"] for one in json.loads(out)["context"]["passages"]] == [FILM]


def test_of_trees_the_smallest_parts_have_notes(qrag, encoder):
    write_notes("notes", ann_lee=f"# Ann Lee\n\n{LEE}\n\n## Her House\n\n{RAIN}\n", mill="The mill is Her House.")
    flags = ("--strategy", "tree", "--max_tokens", "16")
    code, out, err = qrag("index", "build", "j", "notes", "--model", encoder, *flags)
    assert code == 0 and "2 notes, 2 embedded" in out, err
    told = json.loads(qrag("notes", "list", "j", "--json")[1])["notes"]
    assert {one["evidence"]["text"]: one["text"] for one in told} == {
        "# Ann Lee": FILM,
        "## Her House": "The mill is Her House.",
    }
    assert qrag("find", "j", QUESTION, "--retriever", "bm25")[1].splitlines()[-1].endswith(FILM)


def test_chosen_documents_have_no_notes_of_others(qrag):
    told = found(qrag, "--only", "notes/ann_lee.md")
    assert [(one["text"], one["notes"]) for one in told["passages"]] == [(LEE, [])]


@pytest.mark.parametrize(
    "argv, message",
    [
        (
            ("notes", "Where?", "--notes_mode", "best_of"),
            "--notes_mode best_of: only an index has notes; or leave it out",
        ),
        (
            ("plain", "Where?", "--notes_mode", "all"),
            "plain has no notes: `qrag index add plain PATHS... --notes mentions`",
        ),
    ],
)
def test_notes_are_refused_where_there_are_none(qrag, encoder, argv, message):
    qrag("index", "build", "plain", "notes", "--notes", "none", "--model", encoder)
    for verb in ("find", "ask"):
        code, _, err = qrag(verb, *argv)
        assert code == 2 and message in err
    assert "none (--notes)" in qrag("index", "info", "plain")[1]
    assert found(qrag)["notes_mode"] == "best_of" and "notes_mode" in found(qrag, "--notes_mode", "none")


def test_the_reader_is_chosen_with_the_index_and_changed_later(qrag):
    assert read_settings("i").notes == NotesSetting("mentions")
    assert qrag("index", "add", "i", "notes", "--notes", "none")[0] == 0
    assert not read_settings("i").has_notes and found(qrag)["notes_mode"] == "none"
    assert qrag("index", "add", "i", "notes")[0] == 0 and not read_settings("i").has_notes  # stays
    code, out, _ = qrag("index", "add", "i", "notes", "--notes", "mentions", "--json")
    told = json.loads(out)
    assert code == 0 and told["num_same"] == 3 and told["notes"] == {"num_notes": 1, "num_embedded": 1, "left_out": {}}
    assert qrag("index", "info", "i", "--notes", "none")[0] == 2


def test_removing_a_document_takes_its_sentences_out_of_the_notes(qrag):
    assert qrag("index", "remove", "i", "notes/up_down.md")[:2] == (0, "removed 1 document\n")
    assert qrag("notes", "list", "i")[1:] == ("", "i: has no note\n")


def test_info_says_what_was_left_out_and_whether_notes_are_of_the_documents(qrag):
    write_notes("notes", **{f"n{number}": f"Ann Lee said {number}." for number in range(12)})
    qrag("index", "build", "i", "notes")
    lines = qrag("index", "info", "i")[1].splitlines()
    assert "notes     8 by mentions; left out: beyond the most notes of a chunk 5" in lines
    write_settings(
        Path("i"), read_settings("i").__class__(**{**vars(read_settings("i")), "notes": NotesSetting("llm")})
    )
    told = json.loads(qrag("index", "info", "i", "--json")[1])["notes"]
    assert told["is_current"] is False and told["num_notes"] == 8
    with pytest.warns(UserWarning, match="i: its notes are of an older state"):
        found(qrag)


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
        (("list",), "qrag notes list: give the folder of an index behind it"),
        (("list", "notes"), "notes: not an index"),
        (("list", "i", "--pairs"), "--pairs: not of list; export prints JSON Lines"),
        (("export", "i", "--json"), "--json: not of export"),
        (("export", "i", "--reader", "mentions"), "--reader: belongs to eval, not to export"),
        (("list", "i", "--hotpot", "x"), "--hotpot: belongs to eval, not to list"),
        (("list", "i", "--estimate"), "--estimate: belongs to eval, not to list"),
        (("list", "i", "--k", "1"), "--k: belongs to eval, not to list"),
        (("list", "i", "--max_share", "0"), "--max_share: belongs to eval, not to list"),
        (("list", "i", "--model", "minilm"), "--model: belongs to eval, not to list"),
        (("list", "i", "--json", "i/catalogue.sqlite"), "--json i/catalogue.sqlite: is in the index i; name a file"),
        (("export", "i", "--llm", "scripted"), "--llm: belongs to eval, not to export"),
        (("eval", "i", "--hotpot", "x"), "i: belongs to list and export; eval reads a set"),
        (("eval",), "qrag notes eval: give one of --hotpot FILE"),
        (("list", "plain"), "plain: has no notes: `qrag index add plain PATHS... --notes mentions` has them written"),
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
    assert code == 0 and out.startswith("at most 21 calls of the language model, ") and "nothing is asked" in out
    assert "1 by mentions" in qrag("index", "info", "i")[1] and found(qrag)  # whose notes are what they were
    code, out, err = qrag("index", "add", "i", "notes", "--notes", "llm", *model)
    assert code == 0 and "6 calls now and 0 of the journal" in err
    assert out.endswith("0 of 0 chunks embedded; 1 note, 2 embedded\n")
    (note,) = json.loads(qrag("notes", "list", "i", "--json")[1])["notes"]
    assert note["question"] == "Where was Ann Lee born?" and note["evidence"]["text"] == LEE
    # A document more: its own question is asked, and what it may answer; of the others nothing.
    write_notes("notes", more="Nobody was there.")
    code, out, err = qrag("index", "add", "i", "notes", *model)
    assert code == 0 and "2 calls now and 6 of the journal" in err
    Path("notes/more.md").unlink()
    code, out, err = qrag("index", "remove", "i", "notes/more.md", *model)
    assert code == 0 and "0 calls now and 6 of the journal" in err
    # The note is found, shown apart from the passage, and cited by what it was read from.
    reply = json.dumps({"answer": "In Graz [4]."})
    Path("reply.jsonl").write_text(reply)
    argv = ("ask", "i", "Where was Ann Lee born?", "--llm", "scripted", "--llm_model", "reply.jsonl", "--no_journal")
    answer = json.loads(qrag(*argv, "--json", "--max_context_tokens", "900")[1])
    assert answer["notes_mode"] == "best_of"
    (given,) = answer["context"]["notes"]
    assert (given["number"], given["note"], given["text"]) == (4, "Where was Ann Lee born? In Graz", LEE)
    assert [(one["number"], one["file"]) for one in answer["citations"]] == [(4, "notes/ann_lee.md")]


def test_an_index_of_a_language_model_is_kept_up_from_python_too(qrag, model):
    assert qrag("index", "add", "i", "notes", "--notes", "llm", *model)[0] == 0
    with pytest.raises(UsageError, match="which is to be handed in: give `read_notes`"):
        open_index("i").remove("notes/weather.md")
    plan = Plan(read_notes=mention_notes)
    assert open_index("i").remove("notes/weather.md", plan) == ("notes/weather.md",)
    assert open_index("i").add("notes", plan).num_read == 1
    assert [one.text for one in load_noted_index("i").notes] == [FILM]


def test_another_language_model_is_not_taken_unasked(qrag, model):
    assert qrag("index", "add", "i", "notes", "--notes", "llm", *model)[0] == 0
    for argv in (("add", "i", "notes"), ("remove", "i", "notes/up_down.md"), ("add", "i", "notes", *model[:4])):
        code, _, err = qrag("index", *argv)
        assert code == 2 and "its notes were asked of scripted script.jsonl (2 questions a chunk, 40 to each" in err
    assert len(json.loads(qrag("index", "info", "i", "--json")[1])["documents"]) == 3


def test_what_failed_is_asked_for_again_and_nothing_else(qrag, model):
    Path("script.jsonl").write_text("\n".join(map(json.dumps, [SCRIPT[0], FAILS, SCRIPT[2]])))
    code, out, err = qrag("index", "add", "i", "notes", "--notes", "llm", *model)
    assert code == 0 and "0 notes, 6 calls now" in err and "1 calls failed" in err
    told = json.loads(qrag("index", "info", "i", "--json")[1])["notes"]
    assert told["is_current"] and told["left_out"]["call failed"] == 1
    Path("script.jsonl").write_text("\n".join(map(json.dumps, SCRIPT)))
    code, out, err = qrag("index", "add", "i", "notes", *model)
    assert code == 0 and "1 notes, 6 calls now" in err and "failed" not in err
    assert qrag("index", "add", "i", "notes", *model)[2] == ""  # no call failed: nothing is to be done


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("build", "k", "notes", "--notes", "llm", "--num_shards", "2", "--shard", "0"), "--notes llm: not of shards"),
        (("info", "i", "--llm_model", "x"), "--llm_model: belongs to build, add and remove, not to info"),
        (("add", "i", "notes", "--notes", "none", "--estimate"), "--estimate: belongs to --notes llm, not to none"),
        (("add", "i", "notes", "--llm", "scripted"), "--llm: belongs to --notes llm, and notes of i are by mentions"),
        (("build", "k", "notes", "--estimate"), "--estimate: belongs to --notes llm, and notes of k are by mentions"),
        (
            ("add", "i", "notes", "--notes", "llm", "--tokens_per_second", "5"),
            "--tokens_per_second: two numbers above 0",
        ),
        (("remove", "i", "notes/weather.md", "--estimate"), "--estimate: belongs to build and add, not to remove"),
    ],
)
def test_flags_of_language_models_stay_with_their_notes(qrag, argv, message):
    code, _, err = qrag("index", *argv)
    assert code == 2 and message in err
