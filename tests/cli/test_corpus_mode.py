"""A run over many documents from end to end: index, train, find and both evaluations."""

import json
from pathlib import Path

import pytest
from support.encoders import small_minilm

from qrag_jax.names import POOL_METHODS

CONFIG = Path(__file__).parents[2] / "configs" / "qrag" / "corpus_latent.yaml"
PAGES = {
    "Red River": "The film Red River was directed by Howard Hawks.",
    "Howard Hawks": "He was born in Goshen, in a house by the water.",
    "Goshen": "A city in the state of Indiana.",
    "Blue Lake": "The lake Blue Lake was painted by Mary Cook.",
    "Mary Cook": "She was a painter from Leeds.",
    "Leeds": "A city in the north of England.",
}
PAIRS = (("Where was the director of Red River born?", "Red River", "Howard Hawks"),
         ("Where is the painter of Blue Lake from?", "Blue Lake", "Mary Cook"),
         ("In which state is the place where Howard Hawks was born?", "Howard Hawks", "Goshen"))  # fmt: skip


@pytest.fixture
def minilm(tmp_path):
    with small_minilm(tmp_path / "minilm"):
        yield


@pytest.mark.slow
def test_index_train_find_and_eval(tmp_path, command, minilm):
    texts, index, out = tmp_path / "texts", str(tmp_path / "index"), str(tmp_path / "run")
    texts.mkdir()
    for title, text in PAGES.items():
        (texts / f"{title}.txt").write_text(text)
    asked = [
        {"id": str(i), "question": question,
         "evidence": [{"file": f"{title}.txt", "start": 0, "end": len(PAGES[title])} for title in titles]}
        for i, (question, *titles) in enumerate(PAIRS)
    ]  # fmt: skip
    lost = {"question": "Who is Cid?", "evidence": [{"file": "Cid.txt", "start": 0, "end": 3}]}
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (*asked, lost)))
    assert command("index", "build", index, str(texts))[0] == 0
    fields = [f"data.corpus={index}", f"data.paths=[{path}]", "num_updates=2", "data.batch_size=4",
              "model.latent.num_layers=1",
              "dev.share=0.34", "env.num_steps=2", "env.pool.nearest=3", "env.pool.words=2", "env.pool.links=2",
              "log_every=1"]  # fmt: skip
    code, _, told = command("train", "--config_path", str(CONFIG), "--out", out, *fields)
    assert code == 0 and "1 questions left out: names a file that is not in the corpus" in told
    code, found, _ = command("find", out, index, "Where was the director of Red River born?", "--json")
    steps = json.loads(found)
    assert code == 0 and len(steps["steps"]) == 2

    rows = tmp_path / "rows.json"
    code, table, _ = command(
        "eval", out, "--corpus", index, "--jsonl", str(path), "--k", "2,4", "--beam_width", "1,3", "--json", str(rows)
    )  # fmt: skip
    scored = json.loads(rows.read_text())
    assert code == 0 and "95% interval" in table and "trained, beam 3" in table
    assert {(row["method"], row["beam_width"], row["k"]) for row in scored["rows"]} == {
        (method, width, k)
        for method, width in [*((method, 1) for method in POOL_METHODS), ("trained", 3)]
        for k in (2, 4)
    }
    beams = [row for row in scored["questions"] if row["beam_width"] == 3]
    assert [len(set(row["picks"])) for row in beams] == [2] * 3 + [4] * 3  # a plan for each k
    of_run = [row for row in scored["questions"] if row["method"] == "trained" and row["beam_width"] == 1]
    assert [row["id"] for row in of_run] == ["0", "1", "2"]
    assert all(len(set(row["picks"])) == 4 and 1 <= row["kept"] <= 4 for row in of_run)

    hotpot = tmp_path / "hotpot.jsonl"
    context = [[title, [text]] for title, text in PAGES.items()]
    facts = [{"_id": str(i), "question": question, "context": context, "supporting_facts": [[one, 0], [two, 0]]}
             for i, (question, one, two) in enumerate(PAIRS)]  # fmt: skip
    hotpot.write_text("".join(json.dumps(row) + "\n" for row in facts))
    more = tmp_path / "more.json"
    more.write_text(json.dumps([{"title": "Rome", "text": "A city in Italy."}]))
    flags = ["--pooled", "--distractors", str(more), "--k", "2", "--methods", "trained", "--json", "-"]
    code, printed, _ = command("eval", out, "--hotpot", str(hotpot), *flags)
    assert code == 0 and json.loads(printed)["rows"][0]["num_chunks"] == 7


def test_refusals_of_eval(tmp_path, command, run):
    code, _, told = command("eval", run.folder, "--hotpot", "x.jsonl", "--pooled")
    assert code == 2 and "trained to pick from one context" in told
    code, _, told = command("eval", run.folder, "--hotpot", "x.jsonl", "--distractors", "y.json")
    assert code == 2 and "--distractors: needs --pooled" in told
    code, _, told = command("eval", run.folder, "--hotpot", "x.jsonl", "--corpus", "index")
    assert code == 2 and "--jsonl" in told
    code, _, told = command("eval", run.folder, "--babi", "x.txt", "--pooled")
    assert code == 2 and "has no pool" in told
