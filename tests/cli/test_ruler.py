"""`qrag eval --ruler` of a run over many documents and of one that picks from a context."""

import json

import pytest

from qrag_jax.eval.retrieval.ruler_sets import default_steps
from qrag_jax.names import POOL_METHODS
from qrag_jax.qrag.env import EnvConfig, PoolConfig

HOTPOT = [
    {"_id": f"q{i}", "question": f"Who wrote book {i}?", "answer": f"Ann {i}",
     "context": [[f"Book {i}", [f"Book {i} was written by Ann {i} in a house."]],
                 [f"Ann {i}", [f"Ann {i} was a writer of many long books."]],
                 [f"Town {i}", [f"Town {i} is a town of some people and of a river."]]],
     "supporting_facts": [[f"Book {i}", 0], [f"Ann {i}", 0]]}
    for i in range(8)
]  # fmt: skip


@pytest.fixture(scope="module")
def pool_run(tmp_path_factory, save_untrained):
    folder = tmp_path_factory.mktemp("ruler") / "pool"
    env = EnvConfig(num_steps=2, positions="none", pool=PoolConfig(nearest=8, words=4, links=2, per_document=1))
    save_untrained(folder, env=env)
    return str(folder)


def test_a_run_over_many_documents(tmp_path, command, pool_run, haystack):
    hotpot, rows, picks = tmp_path / "hotpot.jsonl", tmp_path / "rows.json", tmp_path / "picks.jsonl"
    hotpot.write_text("".join(json.dumps(row) + "\n" for row in HOTPOT))
    flags = ["--num_questions", "3", "--seed", "5", "--haystack", str(haystack), "--json", str(rows)]
    tasks = f"niah_multikey_1,vt,qa_2:{hotpot}"
    code, table, told = command(
        "eval", pool_run, "--ruler", tasks, "--num_tokens", "600,160", "--per_query", str(picks), *flags
    )  # fmt: skip
    assert code == 2 and "--num_tokens 160: is too short for niah_multikey_1; give at least" in told
    code, table, told = command(
        "eval", pool_run, "--ruler", "niah_multikey_1,vt", "--num_tokens", "700", "--num_steps", "5",
        "--per_query", str(picks), *flags,
    )  # fmt: skip
    assert code == 0 and "95% interval" in table
    found = json.loads(rows.read_text())
    assert [(row["task"], row["method"], row["k"]) for row in found] == [
        (task, method, 5) for task in ("niah_multikey_1", "vt") for method in POOL_METHODS
    ]
    assert all((row["n"], row["seed"], row["num_tokens"], row["ceiling"]) == (3, 5, 700, 1) for row in found)
    records = [json.loads(line) for line in picks.read_text().splitlines()]
    assert len(records) == 2 * 3 * len(POOL_METHODS) and all(len(set(record["picks"])) == 5 for record in records)
    by_words = next(row for row in found if row["method"] == "bm25")
    own = [r for r in records if (r["task"], r["method"]) == ("niah_multikey_1", "bm25")]
    assert by_words["all_gold"] == sum(set(r["gold"]) <= set(r["picks"]) for r in own) / 3 == 1

    code, printed, told = command(
        "eval", pool_run, "--ruler", f"qa_2:{hotpot}", "--num_tokens", "140", "--num_steps", "1", "--methods", "hybrid",
        "--num_questions", "9", "--json", "-",
    )  # fmt: skip
    (row,) = json.loads(printed)
    assert code == 0 and (row["k"], row["n"], row["ceiling"], row["all_gold"]) == (1, 8, 0, 0)
    assert "qa_2: its file has 8 questions only" in told
    assert "questions have up to 2 gold chunks, which 1 picks cannot contain; raise --num_steps" in told


def test_as_many_picks_as_a_task_has_gold_chunks():
    assert [default_steps(task, 2) for task in ("niah_single_1", "vt", "qa_1", "qa_2")] == [4, 5, 2, 2]
    assert [default_steps(task, 6) for task in ("niah_multivalue", "vt", "qa_2")] == [6, 6, 6]


def test_a_run_that_picks_from_a_context(tmp_path, command, run):
    rows, picks, tests = tmp_path / "rows.json", tmp_path / "picks.jsonl", tmp_path / "tests.json"
    code, table, _ = command(
        "eval", run.folder, "--ruler", "niah_single_1,vt", "--num_tokens", "600", "--num_questions", "3",
        "--methods", "trained,bm25", "--protocol", "fixed,oracle", "--json", str(rows), "--per_query", str(picks),
        "--tests", str(tests),
    )  # fmt: skip
    assert code == 0 and "trained, oracle" in table and "paired differences" in table
    found = json.loads(rows.read_text())
    assert [(row["task"], row["num_tokens"], row["k"]) for row in found[::4]] == [
        ("niah_single_1", 600, 4), ("vt", 600, 5)
    ]  # fmt: skip
    assert [(row["method"], row["protocol"]) for row in found[:4]] == [
        (method, protocol) for method in ("trained", "bm25") for protocol in ("fixed", "oracle")
    ]
    records = [json.loads(line) for line in picks.read_text().splitlines()]
    for row, own in zip(found, [records[i : i + 3] for i in range(0, len(records), 3)], strict=True):
        shares = [len(set(r["gold"]) & set(r["chosen"])) / len(r["gold"]) for r in own]
        assert row["recall"] == pytest.approx(sum(shares) / 3)
        assert row["all_gold"] == sum(share == 1 for share in shares) / 3
        assert {r["method"] for r in own} == {row["method"]}


def test_answers_from_the_picks_of_a_pool_by_string_match(tmp_path, command, pool_run):
    script, out = tmp_path / "script.jsonl", tmp_path / "answers.jsonl"
    own = [
        "--ruler",
        "vt",
        "--num_tokens",
        "700",
        "--num_questions",
        "3",
        "--methods",
        "hybrid,bm25",
        "--num_steps",
        "5",
    ]
    own += ["--json", "-", "--no_journal", "--llm", "scripted", "--llm_model", str(script)]
    script.write_text(json.dumps({"answer": "none of them"}) + "\n")
    code, printed, told = command("eval", pool_run, *own, "--answers", str(out))
    assert code == 0, told
    assert [(row["string_match"], row["num_failed"]) for row in json.loads(printed)] == [(0, 0), (0, 0)]
    names = json.loads(out.read_text().splitlines()[0])["answers"]
    script.write_text(json.dumps({"answer": f"They are {names[0].lower()}, {names[1]}."}) + "\n")
    code, printed, told = command("eval", pool_run, *own, "--answers", str(out))
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert (
        len(names) == 5
        and code == 0
        and {record["answer"] for record in records} == {f"They are {names[0].lower()}, {names[1]}."}
    )
    by_hand = [
        sum(n.lower() in r["answer"].lower() for n in r["answers"]) / 5 for r in records if r["method"] == "bm25"
    ]
    row = json.loads(printed)[1]
    assert row["string_match"] == pytest.approx(sum(by_hand) / 3) and by_hand[0] == 0.4
    script.write_text(json.dumps({"error": "down"}) + "\n")
    code, printed, told = command("eval", pool_run, *own, "--answers", str(out))
    assert code == 1 and "the language model gave no answer: down" in told
    assert [(row["string_match"], row["num_failed"]) for row in json.loads(printed)] == [(None, 3), (None, 3)]


def test_answers_and_rankings_of_a_context(tmp_path, command, run):
    script, rows = tmp_path / "script.jsonl", tmp_path / "answers.json"
    script.write_text(json.dumps({"match": "VAR", "answer": "ABCDE"}) + "\n")
    code, printed, told = command(
        "eval", run.folder, "--ruler", "vt", "--num_tokens", "600", "--num_questions", "2", "--methods", "bm25",
        "--answers", str(tmp_path / "answers.jsonl"), "--answer_rows", str(rows), "--json", "-", "--no_journal",
        "--llm", "scripted", "--llm_model", str(script), "--trec", str(tmp_path / "trec"),
    )  # fmt: skip
    assert code == 0, told
    found = json.loads(printed)
    assert [row["task"] for row in found["facts"]] == ["vt"] and found["answers"][0]["task"] == "vt 600"
    assert json.loads(rows.read_text())[0]["n"] == 2 and (tmp_path / "trec").is_dir()


def test_refusals(command, run, pool_run):
    for flags, words in (
        (["--ruler", "niah_x"], "no such task of RULER: choose from niah (all needles), niah_single_1"),
        (["--ruler", "vt,qa_1"], "--ruler 'qa_1': needs questions of SQuAD: give qa_1:FILE"),
        (["--ruler", "vt:x.txt"], "--ruler 'vt:x.txt': reads no file"),
        (["--ruler", "niah,niah_single_1"], "niah_single_1 is given twice"),
        (["--ruler", "vt", "--num_tokens", "900,900"], "--num_tokens 900,900: contains a length twice"),
        (["--ruler", "vt", "--num_tokens", "90"], "--num_tokens 90: is too short for vt; give at least"),
        (["--ruler", "vt", "--num_questions", "0"], "'0' is not an integer of at least 1"),
        (["--ruler", "vt", "--pooled"], "--pooled: does not go with --ruler"),
        (["--jsonl", "x.jsonl", "--num_tokens", "900"], "--num_tokens: needs --ruler"),
    ):
        assert_refused(command, run.folder, flags, words)
    for flags, words in (
        (["--answers", "--answer_bounds"], "--answer_bounds: this run searches many documents"),
        (["--answers", "--answer_measures", "f1"], "--answer_measures: this run searches many documents"),
        (["--answers", "--answer_rows", "r.json"], "--answer_rows: works only with a run that picks from one context"),
        (["--protocol", "fixed"], "--protocol: this run searches many documents"),
        (["--beam_width", "2"], "--beam_width: this run searches many documents"),
        (["--rerank", "x"], "--rerank: this run searches many documents"),
        (["--tests", "t.json"], "--tests: works only with a run that picks from one context"),
        (["--num_tokens", "700", "--num_steps", "90"], "chunks, which cannot give 90 picks"),
    ):
        assert_refused(command, pool_run, ["--ruler", "vt", *flags], words)


def assert_refused(command, folder, flags, words):
    try:
        code, _, told = command("eval", folder, *flags)
    except SystemExit as end:  # argparse
        assert end.code == 2
    else:
        assert code == 2 and words in told, told
