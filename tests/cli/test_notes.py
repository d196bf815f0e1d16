import json
from functools import partial

import pytest
from support.encoders import random_encoder

from qrag_jax.annotate import chunk_questions as questions
from qrag_jax.annotate import propositions
from qrag_jax.models.encoder import embedder
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.names import NOTE_MODES, NOTE_READERS

FIELDS = (
    "task mode reader k all_gold low high recall ceiling n n_chunks n_notes cross_chunk_share embedded_at_query "
    "noted_chunks cut_chunks cut_questions seconds seed"
)
WORDS = "The film was made by Ann Lee . She lives in Rome : who directed it ? Mary went to kitchen took milk"
ROWS = [
    {
        "_id": "1",
        "question": "Where does the director of the film live?",
        "context": [
            ["Film", ["The film was made by Ann Lee."]],
            ["Ann Lee", ["She lives in Rome."]],
            ["Sea", ["Grey."]],
        ],
        "supporting_facts": [["Film", 0], ["Ann Lee", 0]],
    }
]
BABI = """\
1 Mary went to the kitchen.
2 Mary took the milk there.
3 Where is the milk?\tkitchen\t2 1
1 John got the apple there.
2 John moved to the office.
3 Where is the apple?\toffice\t1 2
"""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", [WORDS])
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    return str(folder)


@pytest.fixture
def evaluate(tmp_path, monkeypatch, command, encoder):
    """(flags) -> exit code, standard output, standard error of `qrag notes eval`, beside its files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dev.json").write_text(json.dumps(ROWS))
    (tmp_path / "more.json").write_text(json.dumps({"Far": ["away."]}))
    (tmp_path / "qa2.txt").write_text(BABI)

    def call(*argv):
        return command("notes", "eval", *argv, "--model", encoder)

    return call


def test_names_of_the_parser_are_those_of_the_library():
    assert all(callable(NOTE_READERS.load(name)) for name in NOTE_READERS)
    assert NOTE_READERS.choices("llm") == (questions.READER, propositions.READER)


def test_rows_of_paragraphs(evaluate):
    code, out, err = evaluate("--hotpot", "dev.json", "--distractors", "more.json", "--k", "2,4", "--json", "rows.json")
    assert code == 0, err
    with open("rows.json") as file:
        rows = json.load(file)
    assert list(rows[0]) == FIELDS.split()
    assert [(row["mode"], row["k"]) for row in rows] == [(mode, k) for mode in NOTE_MODES for k in (2, 4)]
    assert {row["task"] for row in rows} == {"hotpot, more distractors"} and {row["n_chunks"] for row in rows} == {4}
    assert all(row["all_gold"] == 1 for row in rows if row["k"] == 4)
    assert len(out.splitlines()) == 1 + len(rows) + 1
    assert out.splitlines()[-1] == "1 notes by mentions in 4 chunks, 100% from another chunk"


def test_chunks_that_their_notes_take_beyond_the_window_are_told(evaluate, monkeypatch):
    flags = ("--hotpot", "dev.json", "--modes", "none,insert", "--max_share", "3", "--k", "2,4")
    code, _, err = evaluate(*flags)
    assert code == 0 and "longer than the encoder's" not in err
    monkeypatch.setattr(embedder, "make_embedder", partial(embedder.make_embedder, window=8))
    code, _, err = evaluate(*flags)
    assert code == 0
    told = "chunks with notes longer than the encoder's 8 tokens, for each question: insert 1.0 of 1.0 (100% "
    assert f"{told}of questions)\n" in err


def test_a_k_below_the_number_of_gold_chunks_is_told(evaluate):
    code, out, _ = evaluate("--hotpot", "dev.json", "--modes", "none", "--k", "1,2")
    assert code == 0 and out.splitlines()[-1].endswith(
        "; all gold can be at most .000 at k = 1, because the other questions have more gold chunks"
    )


def test_rows_of_stories_on_standard_output(evaluate):
    flags = ("--filler", "stories", "--chunk_sentences", "1", "--num_chunks", "3", "--reader", "scripted")
    code, out, err = evaluate("--babi", "qa2.txt", *flags, "--modes", "none,best_of+bm25", "--k", "1", "--json", "-")
    assert code == 0, err
    rows = json.loads(out)
    assert [row["mode"] for row in rows] == ["none", "best_of+bm25"]
    assert {(row["task"], row["reader"], row["n"], row["n_chunks"]) for row in rows} == {
        ("qa2, stories", "scripted", 2, 6)
    }


def test_a_reader_that_lies_is_named_in_its_rows(evaluate):
    flags = ("--chunk_sentences", "1", "--num_chunks", "3", "--modes", "insert", "--k", "1", "--json", "-")
    code, out, _ = evaluate("--babi", "qa2.txt", *flags, "--wrong_share", ".2")
    assert code == 0 and [row["reader"] for row in json.loads(out)] == ["scripted, wrong 0.2"]


def test_notes_that_are_left_out_are_told_beside_the_rows(evaluate):
    same = [{"title": "Ann Lee", "text": f"Page {number}."} for number in range(3)]  # four pages of one title
    with open("more.json", "w") as file:
        json.dump(same, file)
    code, out, err = evaluate("--hotpot", "dev.json", "--distractors", "more.json", "--modes", "none", "--json", "-")
    assert code == 0 and "notes left out: 1 (name of too many chunks)" in err.splitlines()
    assert list(json.loads(out)[0]) == FIELDS.split()


def test_questions_that_cannot_be_posed_are_told(evaluate):
    blank = {**ROWS[0], "_id": "blank", "question": " "}
    with open("dev.json", "w") as file:
        json.dump([*ROWS, blank], file)
    code, _, err = evaluate("--hotpot", "dev.json", "--modes", "none", "--k", "2")
    assert code == 0 and f"dev.json: {len(ROWS)} questions" in err and "left out: 1" in err


def test_a_bad_file_is_told_before_a_model_is_loaded(evaluate, monkeypatch):
    monkeypatch.setattr("qrag_jax.models.encoder.weights.load_encoder", None)  # a call would fail
    with open("dev.json", "w") as file:
        file.write("[{}]")
    code, _, err = evaluate("--hotpot", "dev.json")
    assert code == 1 and "dev.json" in err
    code, _, err = evaluate("--babi", "qa2.txt", "--num_chunks", "1", "--chunk_sentences", "1")
    assert code == 1 and "none of 2 stories fits" in err
    code, _, err = evaluate("--babi", "qa2.txt", "--filler", "no-such-folder")
    assert code == 2 and "no-such-folder" in err


SCRIPT = [
    {"match": "Write each fact of this passage", "answer": '{"statements": ["The film was made by Ann Lee."]}'},
    {"match": "Write 2 different questions", "answer": '{"questions": ["Who made it?"]}'},
    {"match": "Film: The film", "answer": '{"evidence": "made by Ann Lee", "answer": "Ann Lee"}'},
    {"answer": '{"evidence": "", "answer": ""}'},
]


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.jsonl").write_text("\n".join(map(json.dumps, SCRIPT)))
    (tmp_path / "prices.yaml").write_text("prompt_per_million_tokens: 10\ncompletion_per_million_tokens: 100\n")
    return ["--hotpot", "dev.json", "--llm", "scripted", "--llm_model", "script.jsonl", "--journal", "j.sqlite"]


def test_notes_by_a_language_model(evaluate, script):
    flags = ["--reader", "llm", "--num_questions_a_chunk", "2", "--modes", "none,best_of", "--k", "2", "--json", "-"]
    for paid in ("6 new calls and 0 from the journal", "0 new calls and 6 from the journal"):
        code, out, err = evaluate(*script, *flags)
        assert code == 0, err
        assert {(row["reader"], row["n_notes"], row["cross_chunk_share"]) for row in json.loads(out)} == {("llm", 1, 0)}
        assert "at most 21 calls of the language model" in err  # 3 chunks, 2 questions each
        assert f"3 chunks, 1 questions, 3 pairs of chunk and question, 1 notes, {paid}" in err


def test_an_estimate_asks_nothing(evaluate, script):
    flags = ["--reader", "llm", "--estimate", "--prices", "prices.yaml", "--tokens_per_second", "100,10"]
    code, out, err = evaluate(*script, *flags)
    assert code == 0, err
    # 3 chunks, 30 questions to each; an answer has 200 tokens at most, the questions of a chunk 420.
    assert out.startswith("at most 93 calls of the language model, ")
    assert f"{3 * 420 + 90 * 200:,} written, $" in out and out.endswith(" hours\n")


def test_statements_by_a_language_model(evaluate, script):
    code, out, err = evaluate(*script, "--reader", "propositions", "--modes", "best_of", "--k", "2", "--json", "-")
    assert code == 0, err
    (row,) = json.loads(out)
    assert (row["reader"], row["n_notes"], row["cross_chunk_share"]) == ("propositions", 1, 0)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--hotpot", "dev.json", "--filler", "stories"], "--filler: works only with --babi"),
        (["--babi", "qa2.txt", "--distractors", "more.json"], "--distractors: does not work with --babi"),
        (["--hotpot", "dev.json", "--json", "./dev.json"], "--json ./dev.json: is the input of --hotpot; name"),
        (
            ["--hotpot", "dev.json", "--reader", "llm", "--journal", "j", "--json", "j"],
            "--json j: is the input of --journal; name another",
        ),
        (["--hotpot", "dev.json", "--temperature", "1"], "--temperature: works only with --reader llm or propositions"),
        (["--hotpot", "dev.json", "--reader", "scripted"], "--reader scripted: reads only bAbI stories"),
        (["--hotpot", "dev.json", "--wrong_share", ".2"], "--wrong_share: works only with --babi"),
        (["--babi", "qa2.txt", "--wrong_share", "1.2"], "--wrong_share 1.2: must lie in [0, 1]"),
        (
            ["--babi", "qa2.txt", "--reader", "mentions", "--wrong_share", ".2"],
            "--wrong_share: works only with --reader scri",
        ),
        (
            ["--hotpot", "dev.json", "--reader", "propositions", "--num_questions_a_chunk", "3"],
            "--num_questions_a_chunk: works only with --reader llm, not with propositions",
        ),
        (
            ["--hotpot", "dev.json", "--reader", "llm", "--tokens_per_second", "3"],
            "--tokens_per_second: give two numbers",
        ),
    ],
)
def test_wrong_flags(evaluate, flags, message):
    code, _, err = evaluate(*flags)
    assert code == 2 and message in err
