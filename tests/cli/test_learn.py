"""`qrag learn`: a run from documents without labels, its files, and what is refused."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from support.encoders import small_minilm

from qrag_jax.annotate.made_questions import Made, MadeQuestion
from qrag_jax.config import load_config
from qrag_jax.data.questions.pairs import read_pairs
from qrag_jax.index.load import load_index
from qrag_jax.qrag.env import PoolConfig
from qrag_jax.qrag.pool_sets import corpus_pool
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.pool_texts import PoolTexts
from qrag_jax.service.learning import LearnRequest, _drawn, _held_out, _some_parts, _tasks, learn_config
from qrag_jax.train.qrag.config import RunConfig
from qrag_jax.types import NOBODY, Chunk, Document, InputError, UsageError

CONSONANTS, VOWELS = "bdfgklmnprst", "aeiou"
PLOTS = ("a storm", "two brothers", "an old mill", "the harbour", "a lost letter", "the winter war", "a violin")


def name(number):
    """A word that no other number has."""
    letters = [(CONSONANTS, number // 60 % 12), (VOWELS, number // 12 % 5), (CONSONANTS, number % 12)]
    return "".join(alphabet[place] for alphabet, place in letters).capitalize() + "er"


@pytest.fixture
def pages(tmp_path):
    """64 pages: films, and their directors in pages of their own."""
    folder, words = tmp_path / "pages", map(name, count())
    folder.mkdir()
    for number in range(32):
        film, first, last = (next(words) for _ in range(3))
        plot = PLOTS[number % len(PLOTS)]
        text = f"{film} Valley is a film about {plot}. It was directed by {first} {last} during {1930 + number}.\n"
        (folder / f"{film} Valley.txt").write_text(text)
        text = f"{first} {last} studied painting in town {number}. Critics praised the calm pictures of {plot}.\n"
        (folder / f"{first} {last}.txt").write_text(text)
    return folder


@pytest.fixture
def smaller(monkeypatch):
    def config(*args):
        made = learn_config(*args)
        env = replace(made.env, num_steps=2, pool=PoolConfig(nearest=4, words=2, links=2, base="hybrid"))
        return replace(made, env=env, data=replace(made.data, batch_size=4))

    monkeypatch.setattr("qrag_jax.service.learning.learn_config", config)


@pytest.mark.slow
def test_a_run_learns_from_an_index_and_searches_it(tmp_path, command, pages, smaller):
    index, out, told = str(tmp_path / "index"), tmp_path / "run", tmp_path / "told.json"
    with small_minilm(tmp_path / "minilm"):
        assert command("index", "build", index, str(pages))[0] == 0
        flags = ["--num_updates", "2", "--most", "60", "--show", "5", "--json", str(told)]
        code, printed, said = command("learn", index, "--out", str(out), *flags)
        assert code == 0 and "to train on" in said and "held-out questions" in said
        assert f'next: qrag find {out} {index} "question"' in said
        assert sum(" -> " in line for line in printed.splitlines()) == 5
        found = json.loads(told.read_text())
        assert found["kinds"]["bridge"] >= 20 and found["update"] in (0, 1, 2)
        assert {row["method"] for row in found["rows"]} == {"trained", "hybrid"}
        whole = [row for row in found["rows"] if not row["kind"]]
        assert {row["n"] for row in whole} == {found["gain"]["n"]}
        assert len(found["questions"]) == sum(found["kinds"].values())
        logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert max(line.get("dev_return", 0.0) for line in logged) > 0.2  # held-out questions are read as what they are

        code, printed, _ = command("find", str(out), index, "Who directed the film about a violin?", "--json")
        assert code == 0 and len(json.loads(printed)["steps"]) == 2
        corpus = load_index(index)
        task = corpus_pool(corpus, index, [str(out / "questions.jsonl")])
        assert len(task) == len(found["questions"]) and task.num_left_out == 0
        lines = [json.loads(line) for line in (out / "questions.jsonl").read_text().splitlines()]
        held_out = {line["question"] for line in lines if line.get("held_out")}
        pairs = read_pairs([out / "pairs.jsonl"])
        assert pairs and held_out and held_out.isdisjoint(pair.question for pair in pairs)
        assert all(pair.positive not in pair.negatives for pair in pairs)

        changed = next(iter(sorted(pages.glob("*Valley.txt"))))
        changed.write_text("This page says nothing of the kind any more, and is as long as it was before today.\n")
        assert command("index", "add", index, str(pages))[0] == 0
        with pytest.raises(InputError, match=f"questions.jsonl:.*{changed.name} has 'This page says nothing"):
            corpus_pool(load_index(index), index, [str(out / "questions.jsonl")])
        code, _, said = command("learn", index, "--out", str(out))
        assert code == 2 and "already contains a trained run" in said


def test_one_short_document_and_documents_that_share_nothing_are_refused(tmp_path, command):
    short = tmp_path / "short.txt"
    short.write_text("The key is in the garden.\n")
    apart = tmp_path / "apart"
    apart.mkdir()
    for number in range(150):
        own = " ".join(f"{name(number)}{place}".lower() for place in "abcdefghijklmnopqrst")
        (apart / f"{number}.txt").write_text(f"we saw {own} there.\n")
    with small_minilm(tmp_path / "minilm"):
        code, _, told = command("learn", str(short), "--out", str(tmp_path / "run"))
        assert code == 1 and "1 chunks give" in told and "give more documents, or longer ones" in told
        code, _, told = command("learn", str(apart), "--out", str(tmp_path / "run"))
        assert code == 1 and "hardly two chunks share a title" in told
    assert not any((tmp_path / "run").glob("step_*"))


def test_the_config_is_a_file_of_configs(tmp_path):
    request = LearnRequest((str(tmp_path),), "runs/mine", seed=3)
    path = Path(__file__).parents[2] / "configs/qrag/learn_latent.yaml"
    fields = ["seed=3", "data.paths=[runs/mine/questions.jsonl]"]
    assert learn_config(request) == load_config(RunConfig, path, fields)


@pytest.mark.parametrize("field", ["most", "num_updates", "max_chunks", "num_asked"])
def test_numbers_below_one_are_refused(field):
    with pytest.raises(UsageError, match=field):
        LearnRequest(("x",), "y", **{field: 0})


def test_a_path_that_is_not_there(tmp_path, command):
    code, _, told = command("learn", str(tmp_path / "nowhere"), "--out", str(tmp_path / "run"))
    assert code == 2 and "nowhere" in told


def test_results_in_the_documents_are_refused(tmp_path, command, pages):
    page = next(pages.glob("*.txt"))
    before = page.read_text()
    code, _, told = command("learn", str(pages), "--out", str(tmp_path / "run"), "--json", str(page))
    assert code == 2 and f"--json {page}: is in {pages}, which is read" in told and page.read_text() == before
    code, _, told = command("learn", str(pages), "--out", str(pages / "run"))
    assert code == 2 and f"--out {pages / 'run'}: is in {pages}" in told


def test_parts_share_no_document_and_no_question_is_trained_on_that_a_held_out_one_answers():
    documents = np.repeat(np.arange(40), np.arange(40) % 7 + 1)
    part = _held_out(documents, 0)
    assert [len(set(part[documents == one])) for one in range(40)] == [1] * 40
    assert all(0 < (part == one).sum() <= round(0.1 * len(part)) for one in (1, 2))
    few = _held_out(np.repeat([0, 1], 50), 0)  # two documents: pieces of five chunks
    assert (few == 1).sum() == (few == 2).sum() == 10
    questions = tuple(
        MadeQuestion("bridge", f"one two three {a} {b}", (a, b)) for a in range(len(documents)) for b in (a - 1, a - 5)
    )  # fmt: skip
    pool = PoolTexts([f"text {i}" for i in range(len(documents))], [""] * len(documents), documents)
    parts = _tasks(Made(questions), pool, 0)
    trained, choosing, judging = (np.array([questions[i].gold for i in own]) for own in parts.numbers)
    assert not part[trained].any()
    assert set(part[choosing[:, 0]]) == {1} and set(part[judging[:, 0]]) == {2}
    assert len(parts.train) == len(trained) and parts.judging.questions is parts.train.questions


def test_documents_are_drawn_up_to_a_number_of_chunks():
    parts = np.repeat(np.arange(33), [300, 300, 300, *[5] * 30])
    for seed in range(5):
        chosen = _some_parts(parts, 100, np.random.default_rng(seed))
        assert len(chosen) == 20 and min(chosen) > 2
    assert _some_parts(np.array([0, 0, 0, 4, 4]), 1, np.random.default_rng(0)) == [4]  # none fits: the smallest


def test_copies_are_learned_from_once(tmp_path):
    """Two equal documents: a copy of a gold passage would else be wrong, or be in another part."""
    texts = ["Red River was directed by Ann Lee.", "Ann Lee lives in Rome.", "Red  River was directed by Ann Lee."]
    documents = tuple(Document(str(i), text) for i, text in enumerate(texts))
    nodes = tuple(
        Chunk(id=f"{i}", document_id=f"{i}", spans=((0, len(text)),), num_tokens=6, level=0)
        for i, text in enumerate(texts)
    )
    corpus = Corpus(documents, nodes, np.eye(3, dtype=np.float32))
    pool, chunks = _drawn(corpus, LearnRequest(("x",), "y"), NOBODY)
    assert [chunk.id for chunk in chunks] == ["0", "1"] and len(pool.texts) == len(pool.vectors) == 2
