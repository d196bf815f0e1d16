"""The files of `examples/`: what they say of each other is so."""

import json
from pathlib import Path

import pytest

from qrag_jax.chunking.units import unit_chunks
from qrag_jax.config import flatten, load_config, to_dict
from qrag_jax.data.questions.examples import read_examples
from qrag_jax.documents.read import read_files
from qrag_jax.files.strict_yaml import parse_yaml
from qrag_jax.qrag.chunk_encoder import one_line
from qrag_jax.train.qrag.config import RunConfig

FOLDER = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def documents():
    return {Path(document.id).name: document for document in read_files(FOLDER / "station")}


def test_evidence_stands_in_its_file_once(documents):
    rows = [json.loads(line) for line in (FOLDER / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(documents) == 6 and len(rows) >= 8
    for row in rows:
        for one in row["evidence"]:
            assert documents[one["file"]].text.count(one["text"]) == 1


@pytest.mark.parametrize("name", ["train.jsonl", "valid.jsonl"])
def test_chunks_of_a_question_are_what_a_run_reads_of_a_file(documents, name):
    read = {
        tuple(one_line(document.text[slice(*chunk.spans[0])]) for chunk in unit_chunks(document, len))
        for document in documents.values()
    }
    found = read_examples(FOLDER / name)
    assert found and {one.chunks for one in found} <= read


def test_no_question_is_in_two_files():
    questions = [one.question for name in ("train.jsonl", "valid.jsonl") for one in read_examples(FOLDER / name)]
    questions += [json.loads(line)["question"] for line in (FOLDER / "questions.jsonl").read_text().splitlines()]
    assert len(set(questions)) == len(questions)


ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "configs/qrag").rglob("*.yaml"))
names = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


@names
def test_it_loads_and_says_what_it_sets(path):
    config = flatten(to_dict(load_config(RunConfig, path)))
    given = flatten(parse_yaml(path.read_text(), str(path)))
    assert given and {name: config[name] for name in given} == given


def test_the_paper_s_hyper_parameters():
    """BabiLong row of the paper's table, and what it shares with the other rows (one Q head, as in the text)."""
    config = load_config(RunConfig, ROOT / "configs/qrag/paper_babilong_contriever.yaml")
    learner, model, data = config.learner, config.model, config.data
    assert (learner.lambda_, learner.tau, learner.gamma, learner.clip_norm) == (0.65, 0.1, 0.99, 2.0)
    assert (learner.adam_b1, learner.adam_b2, learner.adam_eps, learner.weight_decay) == (0.9, 0.98, 1e-6, 0.01)
    rate, alpha = learner.learning_rate, learner.temperature
    assert (rate.start, rate.end, rate.kind, rate.warmup * config.num_updates) == (5e-5, 0.0, "linear", 1000)
    assert (alpha.start, alpha.kind) == (0.01, "linear") and alpha.end <= 1e-4
    assert (config.num_updates, data.batch_size, data.num_chunks, config.env.num_steps) == (50_000, 64, 100, 6)
    assert (model.mode, model.encoder.source, model.encoder.num_layers) == ("text", "facebook/contriever", None)
    assert (model.encoder.window, model.scale, config.env.num_q_heads) == (64, 10.0, 1)
    assert (config.env.positions, config.env.delta, config.env.ell) == ("relative", 10.0, 9.0)
