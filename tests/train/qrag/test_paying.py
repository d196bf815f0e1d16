"""Episodes that a language model pays: what it reads, what is learned, what is dropped and what is refused."""

import json
import math
import shutil
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import LATENT

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.data.questions.examples import read_examples
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.qrag.batching import Packer, materialise
from qrag_jax.qrag.env import EnvConfig, PoolConfig
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig
from qrag_jax.qrag.tasks import PoolQuestion, examples_task, pool_task, subset
from qrag_jax.search.pool_texts import PoolTexts
from qrag_jax.train.answer_rewards import AnswerRewardConfig, Asked
from qrag_jax.train.optimise import ScheduleConfig
from qrag_jax.train.qrag.config import DataConfig, DevConfig, RunConfig, make_sampler, training_tasks
from qrag_jax.train.qrag.job import first_state, prepare
from qrag_jax.train.qrag.learner import LearnerConfig, RewardSource
from qrag_jax.train.qrag.loop import train, train_together
from qrag_jax.train.qrag.paying import Payer, Reader
from qrag_jax.train.qrag.saving import Member
from qrag_jax.types import Example, InputError, InputWarning, UsageError

COLOURS = ("red", "blue", "green", "gold", "black", "white", "pink", "grey")
SCRATCH = EncoderSpec("scratch", num_layers=1, window=8, question_window=8, hidden_size=16, num_heads=2)


def make_examples(gold=True, answer="yes"):
    """The question names two colours; the chunks of these colours answer it."""
    rng, examples = np.random.default_rng(0), []
    for i in range(24):
        shown = rng.permutation(COLOURS)[:5].tolist()
        right = sorted(rng.permutation(5)[:2].tolist())
        asked = " ".join(shown[j] for j in right)
        examples.append(
            Example(
                f"q{i}", f"what of {asked}", tuple(f"{one} box" for one in shown), tuple(right) if gold else (), answer
            )
        )
    return examples


def make_run(reward: RewardSource = "answers", **options):
    model = ModelConfig(mode="latent", encoder=SCRATCH, latent=replace(LATENT, dim=16))
    data = DataConfig(task="jsonl", paths=("given",), batch_size=12, stretch=1.0)
    learner = LearnerConfig(reward=reward, learning_rate=ScheduleConfig(0.01, 0.0))
    fixed = {"num_updates": 3, "log_every": 1, "model": model, "data": data, "learner": learner}
    whole: dict[str, Any] = fixed | {"env": EnvConfig(num_steps=2, reward="at_end", penalty=False)} | options
    return RunConfig(**whole)


def is_right(one):
    return set(one.question.split()[2:]) == {passage.split()[0] for passage in one.passages}


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()[1:]]


def test_passages_come_in_the_order_of_the_document_and_gold_is_not_read():
    task, asked = examples_task("t", make_examples(gold=False)), []

    def reward(batch):
        asked.extend(batch)
        return [0.5] * len(batch)

    config = make_run()
    sample = make_sampler(task, Packer(), config)(0)
    actions = np.array([[3, 1]] * 12)
    paid = Payer(task, Reader(reward), "answers")(sample, actions)
    examples = [make_examples()[int(query)] for query in sample.queries]
    assert [one.passages for one in asked] == [(e.chunks[1], e.chunks[3]) for e in examples]
    assert [one.question for one in asked] == [e.question for e in examples]
    assert {one.references for one in asked} == {("yes",)}
    assert paid.values.tolist() == [0.5] * 12 and paid.is_known.all() and paid.by_answer.all()


def test_each_question_is_asked_once_with_the_same_passages():
    task, sizes = examples_task("t", make_examples()), []

    def reward(batch):
        sizes.append(len(batch))
        return [1.0] * len(batch)

    payer = Payer(task, Reader(reward), "answers")
    sample = make_sampler(task, Packer(), make_run())(0)
    payer(sample, np.array([[3, 1]] * 12))
    payer(sample, np.array([[1, 3]] * 11 + [[0, 1]]))
    assert sizes == [12, 1] and payer.reader.totals()["read"] == 13


def test_a_mixture_is_paid_by_gold_where_there_is_some():
    examples = [replace(one, gold=one.gold if i % 2 else ()) for i, one in enumerate(make_examples())]
    task = examples_task("t", examples)
    config = make_run("mixed")
    sample = make_sampler(task, Packer(), config)(0)
    paid = Payer(task, Reader(lambda asked: [-1.0] * len(asked)), "mixed")(sample, np.array([[0, 1]] * 12))
    assert paid.by_answer.tolist() == [not examples[int(query)].gold for query in sample.queries]
    assert paid.is_known.all() and paid.values.tolist() == [-1.0 if by else 0.0 for by in paid.by_answer]


def prepared(config, task, reward=None):
    """A run before its first update, and what that reads; compiled once for all tests that share it."""
    job = prepare([Member(config, None)], task, None, lambda *_: None, reward)
    state, sample = first_state(job)[0], make_sampler(task, Packer(), config)(0)
    batch = materialise(job.towers.chunks, job.towers.questions, jax.tree.map(jnp.asarray, sample))
    play, update = jax.jit(job.learner.play), jax.jit(job.learner.update)
    actions = np.asarray(play(state, batch))
    return SimpleNamespace(
        task=task, state=state, sample=sample, batch=batch, play=play, update=update, actions=actions
    )


@cache
def before_update(source: RewardSource = "answers"):
    reward = None if source == "gold" else lambda asked: [1.0] * len(asked)
    return prepared(make_run(source), examples_task("t", make_examples()), reward)


def pay(run, reward=lambda asked: [1.0] * len(asked)):
    return Payer(run.task, Reader(reward), "answers")(run.sample, run.actions)


@pytest.mark.slow
def test_an_update_by_answers_equals_one_by_gold_that_pays_the_same():
    run, gold = before_update(), before_update("gold")
    paid = pay(run, lambda asked: [float(is_right(one)) for one in asked])
    after, metrics = run.update(run.state, run.batch, paid)
    wanted, gold_metrics = gold.update(gold.state, gold.batch)
    assert paid.values.sum() > 0  # else both would learn from nothing
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), after.params, wanted.params)
    assert metrics["return"] == pytest.approx(gold_metrics["return"]) and metrics["unpaid"] == 0
    assert "complete" not in metrics  # gold is not read


def test_an_episode_that_nobody_paid_changes_nothing():
    run, some = before_update(), np.arange(12) < 5
    paid = pay(run)
    dropped = replace(paid, is_known=some)
    other = replace(dropped, values=np.where(some, paid.values, 77.0).astype(np.float32))
    one, two, whole, nothing = (
        run.update(run.state, run.batch, each)
        for each in (dropped, other, paid, replace(paid, is_known=np.zeros(12, bool)))
    )
    jax.tree.map(np.testing.assert_array_equal, one[0].params, two[0].params)
    assert one[1]["unpaid"] == pytest.approx(7 / 12) and one[1]["return"] == 1.0
    assert whole[1]["loss"] != one[1]["loss"] and whole[1]["unpaid"] == 0
    metrics = nothing[1]
    assert metrics["grad_norm"] == metrics["loss"] == metrics["return"] == 0 and metrics["unpaid"] == 1


def test_an_episode_of_other_actions_is_not_paid():
    run = before_update()
    moved = run.actions.copy()
    moved[:3] = moved[:3, ::-1]
    metrics = run.update(run.state, run.batch, replace(pay(run), actions=moved))[1]
    assert metrics["unpaid"] == pytest.approx(3 / 12)


COLD = ("blue", "black", "grey")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:answers. no reward for")
def test_it_learns_from_answers_alone_and_counts_failed_calls(tmp_path):
    """Cold colours are paid; some questions always fail, and is never taken as 0."""
    task = examples_task("t", make_examples(gold=False))

    def reward(asked):
        cold = [sum(passage.split()[0] in COLD for passage in one.passages) / 2 for one in asked]
        return [None if hash_of(one) % 3 == 0 else value for one, value in zip(asked, cold, strict=True)]

    learner = replace(make_run().learner, lambda_=1.0, learning_rate=ScheduleConfig(0.02, 0.0))
    train(make_run(num_updates=60, learner=learner), task, tmp_path / "run", reward=reward)
    lines = lines_of(tmp_path / "run")
    best = np.mean([min(2, sum(c.split()[0] in COLD for c in one.chunks)) / 2 for one in make_examples()])
    assert lines[0]["return"] < 0.6 * best < 0.9 * best < lines[-1]["return"]
    assert any(line["unpaid"] for line in lines)
    assert 10 < load_checkpoint(tmp_path / "run", groups=()).metadata["reader"]["read"] <= 24 * math.comb(5, 2)


def hash_of(one):
    return sum(map(ord, one.question))


def test_three_updates_in_a_row_without_pay_end_the_run_with_the_reason():
    task, down = (
        examples_task("t", make_examples(gold=False)),
        ScriptedGenerator(lambda _: failed("down")),
    )
    reader = Reader.of("em", down)
    sample = make_sampler(task, Packer(), make_run())(0)
    payer = Payer(task, reader, "answers")
    with pytest.warns(InputWarning, match=r"no reward for 'what of .*': down; such episodes are left out and counted"):
        paid = payer(sample, np.array([[0, 1]] * 12))
    assert not paid.is_known.any()
    for _ in range(2):
        reader.heard(paid)
    reader.heard(replace(paid, is_known=~paid.is_known))
    for _ in range(2):
        reader.heard(paid)
    with pytest.raises(InputError, match="all calls of 3 updates in a row failed: down; nothing can be learned"):
        reader.heard(paid)


def test_gold_that_is_missing_is_not_a_reward():
    with pytest.raises(
        InputError, match=r"24 of 24 questions have no gold chunk, so learner.reward=gold cannot reward"
    ):
        train(make_run("gold"), examples_task("t", make_examples(gold=False)))


@pytest.mark.slow
def test_held_out_questions_that_are_hardly_paid_choose_nothing():
    task = examples_task("t", make_examples(gold=False))
    config = make_run(num_updates=2, dev=DevConfig(share=0.2, every=1))
    dev = subset(task, np.arange(13), "dev")  # the last batch has one question

    def reward(asked):
        return [None if hash_of(one) in bad else 0.5 for one in asked]

    bad = {hash_of(make_examples()[12])}
    with pytest.warns(InputWarning, match="no reward for"):
        train(config, task, dev=dev, reward=reward)
    bad = {hash_of(one) for one in make_examples()[:7]}
    with pytest.raises(
        InputError, match=r"dev: only \d of 13 held-out questions were paid, which are too few to choose"
    ):
        with pytest.warns(InputWarning, match="no reward for"):
            train(config, task, dev=dev, reward=reward)


@pytest.mark.slow
def test_a_resumed_run_goes_on_exactly_and_counts_on(tmp_path):
    task, config = examples_task("t", make_examples(gold=False)), make_run(num_updates=4, save_every=2, keep=9)
    reward = lambda asked: [hash_of(one) % 7 / 7 for one in asked]  # noqa: E731
    train(config, task, tmp_path / "whole", reward=reward)
    start = load_checkpoint(tmp_path / "whole", step=2, groups=())
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    again = replace(start, folder=tmp_path / "again" / "step_2")
    shutil.rmtree(tmp_path / "again" / "step_4")
    train(config, task, tmp_path / "again", reward=reward, start=again)
    both = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "again")]
    assert both[0] == both[1]
    counts = load_checkpoint(tmp_path / "again", groups=()).metadata["reader"]["read"]
    assert counts > start.metadata["reader"]["read"] >= 12
    other = [replace(one, answer="no") for one in make_examples(gold=False)]
    with pytest.raises(InputError, match="or other gold or answers"):
        train(config, examples_task("t", other), tmp_path / "again", reward=reward, start=again)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([math.nan] * 3, "reward answers: value nan of question 'q' is not a finite number"),
        ("111", "reward answers: it returned '111'"),
        ([1.0] * 2, "reward answers: 2 values for 3 questions"),
        (["1", 1, 1], "reward answers: value '1' of question 'q' is not a finite number"),
    ],
)
def test_rewards_that_are_not_numbers_are_refused(values, message):
    asked = [Asked("q", (passage,), ("a",)) for passage in "xyz"]
    with pytest.raises(InputError, match=message):
        Reader(lambda asked: values).values(asked)


def test_held_out_questions_are_paid_by_answers(tmp_path):
    task = examples_task("t", make_examples(gold=False))
    dev = subset(task, np.arange(4), "dev")
    config = make_run(num_updates=2, dev=DevConfig(share=0.2, every=1))

    def reward(asked):
        return [0.25] * len(asked)

    def calibrate(*_):
        raise AssertionError("a threshold needs gold")

    train(config, task, tmp_path / "run", dev=dev, reward=reward, calibrate=calibrate)
    assert [line["dev_return"] for line in lines_of(tmp_path / "run")] == [0.25, 0.25]


def test_over_a_pool_gold_is_no_candidate_and_the_passages_are_the_picks():
    texts = [f"{one} box" for one in COLOURS]
    pool = PoolTexts(texts, [""] * len(texts), np.arange(len(texts)))
    questions = [PoolQuestion(f"q{i}", f"what of {one} pink", (7,), ("yes",)) for i, one in enumerate(COLOURS[:4])]
    env = EnvConfig(num_steps=2, positions="none", reward="at_end", penalty=False, pool=PoolConfig(2, 1, 1))
    data, asked = DataConfig(task="corpus", paths=("given",), batch_size=4, stretch=1.0), []

    def reward(batch):
        asked.extend(batch)
        return [1.0] * len(batch)

    run = prepared(make_run(env=env, data=data), pool_task("boxes", pool, questions), reward)
    no_gold = replace(run.batch, gold=jnp.zeros_like(run.batch.gold))
    assert run.batch.gold.any() and np.array_equal(run.actions, run.play(run.state, no_gold))
    paid = pay(run, reward)
    assert [one.passages for one in asked] == [tuple(texts[i] for i in sorted(row)) for row in run.actions.tolist()]
    assert [one.question.split()[2] for one in asked] == [COLOURS[int(query)] for query in run.sample.queries]
    metrics = run.update(run.state, run.batch, paid)[1]
    assert metrics["unpaid"] == 0 and metrics["return"] == 1


def test_files_without_gold(tmp_path):
    rows = [
        {"question": "what of red", "chunks": ["red box", "blue box"], "answer": "yes"},
        {"question": "what of blue", "chunks": ["red box", "blue box"], "gold": None, "answer": "yes"},
        {"question": "what of gold", "chunks": ["gold box", "blue box"], "gold": [0]},
    ]
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = replace(make_run().data, paths=(str(path),))
    task, _ = training_tasks(make_run("mixed", data=data))
    assert np.array(task.num_gold).tolist() == [0, 0, 1]
    with pytest.raises(InputError, match=r"1 of 3 questions have no answer, so .* \(such as q.jsonl:3\)"):
        train(make_run(data=data), task, reward=lambda asked: [1.0] * len(asked))
    paid, _ = training_tasks(make_run(data=data))
    assert list(paid.query_ids) == ["q.jsonl:1", "q.jsonl:2"] and paid.num_left_out == 1
    assert paid.notes == ("1 questions left out, without an answer that passages could be paid by",)
    with pytest.raises(InputError, match="q.jsonl:1: gold must be a list"):
        training_tasks(make_run("gold", data=data))
    path.write_text(json.dumps(rows[0] | {"answer": " "}) + "\n")
    with pytest.raises(InputError, match="q.jsonl:1: gives neither gold nor an answer"):
        read_examples(path, needs_gold=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": EnvConfig(reward="at_end", stop=True)}, "env.stop must be false"),
        ({"env": EnvConfig(end_at_completion=True)}, "env.end_at_completion must be false"),
        ({"env": EnvConfig(fact_reward=0.2)}, "env.fact_reward must be 0"),
        ({"data": DataConfig(task="worlds")}, "data.task=worlds: its questions have no answers"),
        ({"dev": DevConfig(beam_widths=(2,))}, "dev.beam_widths must be empty"),
        ({"answers": AnswerRewardConfig("f1"), "learner": LearnerConfig()}, "answers works only with learner.reward"),
    ],
)
def test_runs_that_answers_cannot_pay_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        make_run(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "sft"}, "learner.objective=sft"),
        ({"losses": {"ranking": 1.0}}, "learner.losses.ranking learns from gold chunks"),
        ({"losses": {"stop": 1.0}}, "learner.losses.stop learns from gold chunks"),
        ({"accumulate": 2}, "learner.accumulate=2 must be 1"),
    ],
)
def test_losses_that_need_gold_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        LearnerConfig(reward="answers", **options)


def test_seeds_are_not_trained_together():
    config = make_run()
    members = [Member(replace(config, seed=seed, data=replace(config.data, seed=0)), None) for seed in (0, 1)]
    with pytest.raises(UsageError, match="a language model pays one run"):
        train_together(members, examples_task("t", make_examples()), reward=lambda asked: [1.0] * len(asked))
