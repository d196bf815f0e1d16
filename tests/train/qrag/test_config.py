import json
from dataclasses import replace

import numpy as np
import pytest

from qrag_jax.config import config_from_dict, load_config, to_dict
from qrag_jax.data.stories.worlds import simulate_stories
from qrag_jax.qrag.batching import Packer
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.tasks import examples_task
from qrag_jax.qrag.text_links import LINKS, link_features, shared_words
from qrag_jax.train.qrag.config import (
    DataConfig,
    DevConfig,
    RunConfig,
    epoch_order,
    fitting_updates,
    make_sampler,
    training_tasks,
)
from qrag_jax.train.qrag.learner import LearnerConfig
from qrag_jax.types import Example, InputError, UsageError

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
    task = training_tasks(config)[0]
    assert task.name == "worlds2" and len(task) > 0
    contexts = task.contexts(np.arange(len(task)), np.random.default_rng(0))
    assert contexts.chunks.shape == (len(task), 10)
    assert (contexts.gold.sum(1) == 2).all()
    noise = [text for text in task.texts if text.startswith("Sentence")]
    assert 0 < len(noise) < 8 * 12  # a part of the documents is held back for evaluation
    everything = training_tasks(replace(config, data=replace(config.data, haystack_split="all")))[0]
    assert len([text for text in everything.texts if text.startswith("Sentence")]) == 8 * 12


def test_worlds_follow_the_seed(haystack):
    one, again, other = (training_tasks(replace(make_config(haystack), seed=seed))[0] for seed in (3, 3, 4))
    contexts = [task.contexts(np.arange(5), np.random.default_rng(0)) for task in (one, again, other)]
    assert list(one.texts) == list(again.texts)
    np.testing.assert_array_equal(contexts[0].chunks, contexts[1].chunks)
    asked = [[task.questions[i] for i in c.questions] for task, c in zip((one, other), contexts[::2], strict=True)]
    assert asked[0] != asked[1] or (contexts[0].chunks != contexts[2].chunks).any()


def test_a_haystack_is_limited(haystack):
    task = training_tasks(make_config(haystack, max_haystack_sentences=7))[0]
    assert len([text for text in task.texts if text.startswith("Sentence")]) == 7


def test_babi_files(haystack, tmp_path):
    for name in ("qa1_train.txt", "qa2_train.txt"):
        (tmp_path / name).write_text(BABI)
    paths = tuple(str(tmp_path / name) for name in ("qa1_train.txt", "qa2_train.txt"))
    task = training_tasks(make_config(haystack, task="babi", paths=paths))[0]
    assert task.name == "qa1_train+qa2_train" and len(task) == 2
    contexts = task.contexts(np.array([0]), np.random.default_rng(0))
    gold = [task.texts[i] for i in contexts.chunks[0][contexts.gold[0]]]
    assert gold == ["Mary took the milk.", "Mary went to the kitchen."]


def test_jsonl_files(tmp_path):
    row = {"question": "Who?", "chunks": ["x", "y"], "gold": [1]}
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(json.dumps(row | {"id": name}) + "\n")
    paths = tuple(str(tmp_path / name) for name in ("a.jsonl", "b.jsonl"))
    task, dev = training_tasks(make_config(task="jsonl", paths=paths))
    assert dev is None
    assert list(task.query_ids) == ["a.jsonl", "b.jsonl"] and list(task.texts) == ["x", "y"]


def test_vectors(tmp_path):
    np.save(tmp_path / "chunks.npy", np.eye(3, dtype=np.float32))
    np.save(tmp_path / "questions.npy", np.ones((1, 3), np.float32))
    (tmp_path / "episodes.jsonl").write_text('{"question": 0, "gold": [2]}\n')
    task = training_tasks(make_config(task="vectors", paths=(str(tmp_path),)))[0]
    np.testing.assert_array_equal(task.texts, np.eye(3))
    with pytest.raises(UsageError, match="data.task=vectors takes one folder, data.paths has 2"):
        training_tasks(make_config(task="vectors", paths=(str(tmp_path), str(tmp_path))))


@pytest.mark.parametrize(
    ("kind", "paths"), [("worlds", ("x",)), *((kind, ()) for kind in ("babi", "jsonl", "multihop", "vectors"))]
)
def test_paths_that_do_not_fit_the_task_are_refused(kind, paths):
    with pytest.raises(UsageError, match=f"does not fit data.task={kind}: worlds takes none, others need one"):
        training_tasks(make_config(task=kind, paths=paths))


def hotpot_row(name, num_paragraphs=4, gold=(0, 1)):
    context = [[f"{name} {i}", [f"Paragraph {i} of {name}."]] for i in range(num_paragraphs)]
    return {
        "_id": name,
        "question": f"What is {name}?",
        "context": context,
        "supporting_facts": [[f"{name} {i}", 0] for i in gold],
    }


def musique_row(name, gold=(0, 2), num_paragraphs=5):
    paragraphs = [
        {"idx": i, "title": f"{name} {i}", "paragraph_text": f"About {name}, {i}.", "is_supporting": i in gold}
        for i in range(num_paragraphs)
    ]
    return {"id": name, "question": f"Who is {name}?", "paragraphs": paragraphs, "answerable": True}


def write_json(path, rows):
    path.write_text(json.dumps(rows))
    return str(path)


@pytest.fixture
def multihop(tmp_path):
    """Paths of three sets: HotpotQA with a short context and one without gold, MuSiQue, 2WikiMultihopQA."""
    hotpot = [hotpot_row("a"), hotpot_row("b", num_paragraphs=2), hotpot_row("c", gold=()), hotpot_row("d", 3)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(musique_row(name)) + "\n" for name in "ae"))
    return (
        f"hotpot:{write_json(tmp_path / 'h.json', hotpot)}",
        f"musique:{tmp_path / 'm.jsonl'}",
        f"2wiki:{write_json(tmp_path / 'w.json', [hotpot_row('g', 6)])}",
    )


def test_multihop_sets_are_mixed_and_what_cannot_be_played_is_counted(multihop):
    """Three picks: the context of two paragraphs is left out, and the question without gold paragraphs."""
    task, dev = training_tasks(make_config(task="multihop", paths=multihop))
    assert dev is None and task.name == "hotpot+musique+2wiki" and task.num_left_out == 2
    # Two sets may use one id for different questions.
    assert list(task.query_ids) == ["hotpot:a", "hotpot:d", "musique:a", "musique:e", "2wiki:g"]
    assert task.sizes.tolist() == [4, 3, 5, 5, 6]
    contexts = task.contexts(np.array([2, 4]), np.random.default_rng(0))
    gold = [[task.texts[i] for i in row[mask]] for row, mask in zip(contexts.chunks, contexts.gold, strict=True)]
    assert gold == [["a 0: About a, 0.", "a 2: About a, 2."], ["g 0: Paragraph 0 of g.", "g 1: Paragraph 1 of g."]]
    task.check_steps(3)


def test_fewer_picks_leave_fewer_contexts_out(multihop):
    config = make_config(task="multihop", paths=multihop[:1])
    task, _ = training_tasks(replace(config, env=EnvConfig(num_steps=2)))
    assert list(task.query_ids) == ["hotpot:a", "hotpot:b", "hotpot:d"] and task.num_left_out == 1
    with pytest.raises(InputError, match="hotpot: no example"):
        training_tasks(replace(config, env=EnvConfig(num_steps=9)))


@pytest.mark.parametrize("path", ["h.json", "squad:h.json", "hotpot:", ":h.json"])
def test_multihop_paths_say_what_they_are(path):
    with pytest.raises(UsageError, match=f"'{path}' does not say what it is; write KIND:FILE with KIND one of hotpot"):
        training_tasks(make_config(task="multihop", paths=(path,)))


# --- what is held out


def held_out_of(config, share=0.3, **dev):
    task, held = training_tasks(replace(config, dev=DevConfig(share=share, **dev)))
    assert held is not None
    return task, held


def fingerprints(task):
    """The questions of a task with their facts."""
    return [task.fingerprint(i) for i in range(len(task))]


def noise_of(task):
    return {text for text in task.texts if text.startswith("Sentence")}


def same_draws(one, other):
    if list(one.query_ids) != list(other.query_ids):
        return False
    drawn = [task.contexts(np.arange(len(task)), np.random.default_rng(0)) for task in (one, other)]
    return (drawn[0].chunks == drawn[1].chunks).all() and (drawn[0].gold == drawn[1].gold).all()


def story(first, second):
    """One bAbI story; the second question goes on with the facts of the first."""
    return (
        f"1 Mary went to the {first}.\n2 John went to the {second}.\n3 Where is Mary?\t{first}\t1\n"
        f"4 John went to the {first}.\n5 Where is John?\t{first}\t4\n"
    )


@pytest.fixture
def babi(tmp_path):
    """Ten stories of two questions each."""
    places = ["garden", "office", "hallway", "kitchen", "bedroom"]
    path = tmp_path / "qa1_train.txt"
    path.write_text("".join(story(first, second) for first in places for second in places[:2]))
    return str(path)


def task_facts(task, query):
    """The facts of a query in story order: whatever of its context is no sentence of the haystack."""
    contexts = task.contexts(np.array([query]), np.random.default_rng(0))
    return tuple(t for t in (task.texts[i] for i in contexts.chunks[0]) if not t.startswith("Sentence"))


def test_stories_are_held_out_whole(haystack, babi):
    """The second question of a story would give the first away; a story that the file tells twice stays on one side."""
    with open(babi, "a") as file:
        file.write(story("garden", "garden"))  # the first one again
    config = make_config(haystack, task="babi", paths=(babi,))
    whole = fingerprints(training_tasks(config)[0])
    dropped = 0
    for seed in range(8):
        task, dev = held_out_of(replace(config, seed=seed))
        assert set(fingerprints(task)) | set(fingerprints(dev)) == set(whole)
        assert not set(fingerprints(task)) & set(fingerprints(dev))
        kept, held = ({task_facts(t, i)[:2] for i in range(len(t))} for t in (task, dev))
        assert held and not kept & held
        dropped += len(whole) - len(task) - len(dev)
    assert dropped > 0


def test_worlds_are_held_out_without_a_question_in_common(haystack):
    config = make_config(haystack)
    whole = fingerprints(training_tasks(config)[0])
    task, dev = held_out_of(config)
    assert set(fingerprints(task)) | set(fingerprints(dev)) == set(whole)
    assert len(dev) and not set(fingerprints(task)) & set(fingerprints(dev))


def test_what_is_held_out_follows_the_seed_alone(haystack, babi):
    config = make_config(haystack, task="babi", paths=(babi,))
    (task, dev), (again, dev_again) = held_out_of(config), held_out_of(config)
    assert same_draws(task, again) and same_draws(dev, dev_again)
    others = [held_out_of(replace(config, seed=seed))[1] for seed in (4, 5, 6)]
    assert any(list(other.query_ids) != list(dev.query_ids) for other in others)


@pytest.mark.parametrize(("share", "num_stories"), [(0.3, 3), (0.001, 1), (0.99, 9)])
def test_the_share_is_of_the_stories(haystack, babi, share, num_stories):
    """Of ten stories, each with two questions: one at least is held out, and one is left."""
    task, dev = held_out_of(make_config(haystack, task="babi", paths=(babi,)), share)
    assert (len(task), len(dev)) == (20 - 2 * num_stories, 2 * num_stories)


def test_held_out_stories_stand_in_sentences_that_training_does_not_see(haystack):
    task, dev = held_out_of(make_config(haystack))
    assert dev.name == "worlds2 dev" and noise_of(dev)
    assert not noise_of(task) & noise_of(dev)
    assert dev.sizes.tolist() == [10] * len(dev)
    # Where training sees the whole haystack there is nothing else to hide them in.
    task, dev = held_out_of(make_config(haystack, haystack_split="all"), num_chunks=14)
    assert noise_of(task) == noise_of(dev) and set(dev.sizes) == {14}


def test_simulated_stories_stand_beside_those_of_files_and_are_never_held_out(haystack, babi):
    config = make_config(haystack, task="babi", paths=(babi,), num_facts=1, num_simulated=40)
    files, held = held_out_of(replace(config, data=replace(config.data, num_simulated=0)))
    task, dev = held_out_of(config)
    assert len(task) == len(files) + 40
    assert all("qa1_train" in query for query in dev.query_ids)
    assert fingerprints(dev) == fingerprints(held)


def examples_file(path, questions):
    rows = [
        {"question": q, "chunks": [f"the {q}", "b", "c", f"noise {i}"], "gold": [0]} for i, q in enumerate(questions)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_examples_are_held_out_by_question(tmp_path):
    """Twenty lines of ten questions: a question that stands on both sides is dropped from the held-out one."""
    path = examples_file(tmp_path / "q.jsonl", [f"question {i % 10}" for i in range(20)])
    config = make_config(task="jsonl", paths=(path,))
    dropped = 0
    for seed in range(8):
        task, dev = held_out_of(replace(config, seed=seed), 0.5)
        assert len(task) == 10 and dev.name == "jsonl dev"
        assert not set(fingerprints(task)) & set(fingerprints(dev))
        asked = [dev.questions[i] for i in dev.contexts(np.arange(len(dev)), np.random.default_rng(0)).questions]
        assert [f"the {question}" for question in asked] == [gold_text(dev, i) for i in range(len(dev))]
        dropped += 10 - len(dev)
    assert dropped > 0
    assert same_draws(held_out_of(config, 0.5)[1], held_out_of(config, 0.5)[1])


def gold_text(task, query):
    contexts = task.contexts(np.array([query]), np.random.default_rng(0))
    (found,) = contexts.chunks[contexts.gold]
    return task.texts[found]


def mixture(tmp_path, **sizes):
    """Files of HotpotQA's layout, so many questions each; (paths, DataConfig options)."""
    paths = []
    for kind, size in sizes.items():
        context = [[title, [f"{title} {kind}"]] for title in "abcd"]
        rows = [
            {"_id": f"{i}", "question": f"{kind} {i}?", "context": context, "supporting_facts": [["a", 0]]}
            for i in range(size)
        ]
        path = tmp_path / f"{kind}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths.append(f"{kind}:{path}")
    return tuple(paths)


def drawn(config, task, step):
    sample = make_sampler(task, Packer(), config)(step)
    return [task.questions[i] for i in sample.questions]


def test_every_set_of_a_mixture_has_its_share_of_every_batch_and_epochs_of_its_own(tmp_path):
    paths = mixture(tmp_path, hotpot=4, **{"2wiki": 9})
    config = make_config(task="multihop", paths=paths, weights={"hotpot": 1.0, "2wiki": 1.5})
    task = training_tasks(config)[0]
    batches = [drawn(config, task, step) for step in range(6)]
    assert all([q.split()[0] for q in batch] == ["hotpot"] * 2 + ["2wiki"] * 3 for batch in batches)
    of = {kind: [q for batch in batches for q in batch if q.startswith(kind)] for kind in ("hotpot", "2wiki")}
    for kind, size in (("hotpot", 4), ("2wiki", 9)):
        assert {*of[kind][:size]} == {f"{kind} {i}?" for i in range(size)}  # each once before any twice
        assert of[kind][:size] != of[kind][size : 2 * size]
    plain = make_config(task="multihop", paths=paths)
    assert sorted(q for step in range(13) for q in drawn(plain, task, step)) == sorted([*task.questions] * 5)


def test_every_set_of_a_mixture_is_held_out_by_its_share(tmp_path):
    config = make_config(task="multihop", paths=mixture(tmp_path, hotpot=10, **{"2wiki": 40}))
    for seed in range(4):
        task, dev = held_out_of(replace(config, seed=seed), 0.2)
        held, kept = ([x.split(":")[0] for x in one.query_ids] for one in (dev, task))
        assert (held.count("hotpot"), held.count("2wiki")) == (2, 8)
        assert kept == list(task.sets) and len(kept) == 40


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"hotpot": 1.0}, "data.weights={'hotpot': 1.0} has no weight for 2wiki: give every set one"),
        ({"hotpot": 1.0, "2wiki": 1.0, "musique": 1.0}, "data.weights.musique: the data have no question of that set"),
        ({"hotpot": 0.01, "2wiki": 1.0}, "data.weights.hotpot=0.01 gives it none of data.batch_size=5 questions"),
        ({"hotpot": -1.0, "2wiki": 1.0}, "weights .*-1.0.*must lie in"),
        ({"hotpot": float("nan"), "2wiki": 1.0}, "weights .*nan.*must lie in"),
        ({"squad": 1.0}, "data.weights.squad: no such kind of set; choose from hotpot, musique, 2wiki"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights, message, tmp_path):
    paths = mixture(tmp_path, hotpot=2, **{"2wiki": 3})
    with pytest.raises(UsageError, match=message):
        training_tasks(make_config(task="multihop", paths=paths, weights=weights))


def test_weights_belong_to_mixtures():
    with pytest.raises(UsageError, match="works only with data.task=multihop"):
        make_config(task="worlds", weights={"hotpot": 1.0})


@pytest.mark.parametrize("task", ["worlds", "babi", "vectors"])
def test_links_need_contexts_of_texts_that_stay(task):
    with pytest.raises(
        UsageError, match=f"env.links=true .* data.task={task} have none: choose one of jsonl, multihop"
    ):
        replace(make_config(task=task, paths=("x",)), env=EnvConfig(links=True))


def test_samples_bring_the_links_of_their_contexts(tmp_path):
    config = make_config(task="jsonl", paths=(examples_file(tmp_path / "q.jsonl", ["one", "Two", "three"]),))
    config = replace(config, env=EnvConfig(links=True, coverage=True), learner=LearnerConfig(accumulate=5))
    task = training_tasks(config)[0]
    sample = make_sampler(task, Packer(), config)(0)
    assert sample.links.shape == (5, 1, 5, 4, len(LINKS))
    texts = [task.texts[sample.distinct[0][i]] for i in sample.chunks[0, 0]]
    question = task.questions[sample.questions[0, 0]]
    np.testing.assert_array_equal(sample.links[0, 0], link_features(question, texts))
    np.testing.assert_array_equal(sample.words[0, 0], shared_words(question, texts))


def test_multihop_and_vectors_are_held_out_too(multihop, tmp_path):
    task, dev = held_out_of(make_config(task="multihop", paths=multihop), 0.4)
    assert (len(task), len(dev)) == (3, 2) and dev.name == "hotpot+musique+2wiki dev"
    assert set(task.query_ids) | set(dev.query_ids) == {"hotpot:a", "hotpot:d", "musique:a", "musique:e", "2wiki:g"}
    rng = np.random.default_rng(0)
    np.save(tmp_path / "chunks.npy", rng.normal(size=(6, 3)).astype(np.float32))
    np.save(tmp_path / "questions.npy", rng.normal(size=(5, 3)).astype(np.float32))
    rows = [{"question": i, "gold": [i]} for i in range(5)]
    (tmp_path / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task, dev = held_out_of(make_config(task="vectors", paths=(str(tmp_path),)), 0.2)
    assert (len(task), len(dev)) == (4, 1) and not set(fingerprints(task)) & set(fingerprints(dev))


def test_at_most_num_questions_are_scored(tmp_path):
    config = make_config(task="jsonl", paths=(examples_file(tmp_path / "q.jsonl", [f"q{i}" for i in range(30)]),))
    task, every = held_out_of(config, 0.5)
    smaller_task, some = held_out_of(config, 0.5, num_questions=4)
    assert (len(every), len(some)) == (15, 4) and set(some.query_ids) < set(every.query_ids)
    assert same_draws(task, smaller_task)  # what is not scored is not trained on either


def test_a_share_that_holds_everything_out_is_refused(tmp_path):
    config = make_config(task="jsonl", paths=(examples_file(tmp_path / "q.jsonl", ["one", "two"]),))
    with pytest.raises(UsageError, match="dev.share=0.9 holds out all of 2 questions: lower it"):
        held_out_of(config, 0.9)


def test_one_story_cannot_be_split(haystack, tmp_path):
    (tmp_path / "one.txt").write_text(story("garden", "office"))
    with pytest.raises(InputError, match="1 story cannot be split"):
        held_out_of(make_config(haystack, task="babi", paths=(str(tmp_path / "one.txt"),)))


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
        ("data.stretch=0.5", "stretch"),
        ("learner.epsilon.warmup=1.0", "warmup"),
        ("model.latent.width=3", "width"),
        ("model.state_chunk_window=1", "model.state_chunk_window 1: at least 2"),
        ("model.encoder.window=2", "model.encoder.window 2: at least 3"),
        ("env.ell=10", r"env.ell 10.0: must lie in \(0, 10.0\)"),
        ("env.stop=true", "env.stop=true learns from the reward at the end: set env.reward=at_end"),
        ("dev.share=1", r"dev.share 1.0: must lie in \[0, 1\)"),
        ("dev.beam_widths=[1,0]", "dev.beam_widths 1 0: at least 1"),
        ("data.num_simulated=3", "data.num_simulated=3 works only with data.task=babi"),
    ],
)
def test_values_out_of_range_are_refused_with_their_name(override, message):
    with pytest.raises(UsageError, match=message):
        load_config(RunConfig, None, [override])


def write_babi(path, stories):
    """Stories of one question each as a bAbI file."""
    lines = []
    for i in range(len(stories)):
        facts, gold = stories.fact_texts(i), " ".join(str(g + 1) for g in stories.gold[i])
        lines += [f"{j + 1} {fact}" for j, fact in enumerate(facts)]
        lines.append(f"{len(facts) + 1} {stories.question(i)}\t{stories.answers[i]}\t{gold}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_what_is_held_out_is_not_simulated_again(haystack, tmp_path):
    """Here the simulator tells exactly the stories of the file: those that are held out are dropped from it."""
    simulated = simulate_stories(1, 40, 3, "train", max_facts=10)
    path = write_babi(tmp_path / "qa1_train.txt", simulated)
    config = make_config(haystack, task="babi", paths=(path,), num_facts=1, num_simulated=40)
    task, dev = held_out_of(config)
    assert len(dev) and not set(fingerprints(task)) & set(fingerprints(dev))
    assert set(fingerprints(task)) | set(fingerprints(dev)) == set(fingerprints(training_tasks(config)[0]))


def test_held_out_questions_that_all_stand_in_the_rest_are_refused(tmp_path):
    config = make_config(task="jsonl", paths=(examples_file(tmp_path / "q.jsonl", ["one"] * 4),))
    with pytest.raises(UsageError, match="dev.share=0.5: all questions that it holds out are asked in the rest"):
        held_out_of(config, 0.5)


@pytest.mark.parametrize(("num_queries", "size"), [(10, 4), (7, 7), (3, 8), (50, 6)])
def test_questions_come_in_epochs(num_queries, size):
    """Every question once in each, in another order; an update may end one and begin the next, or hold several."""
    places = np.concatenate([epoch_order(0, num_queries, step * size, size) for step in range(40)])
    epochs = [places[first : first + num_queries] for first in range(0, len(places) - num_queries, num_queries)]
    assert all(sorted(epoch) == list(range(num_queries)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert (epoch_order(1, num_queries, 0, 40) != places[:40]).any()


def test_the_sampler_follows_the_epochs():
    config = make_config(stretch=1.0)
    sampler = make_sampler(make_task(10), Packer(), config)
    asked = np.concatenate([sampler(step).questions for step in range(2)])  # 2 x 5 of 10
    expected = np.concatenate([np.arange(10) % 7])
    assert sorted(asked) == sorted(expected)


def test_data_of_several_seeds_are_those_of_the_data_seed(haystack):
    """What is simulated and held out hangs on data.seed, where there is one."""

    def texts(seed, data_seed):
        data = DataConfig(haystack=str(haystack), num_questions=20, num_chunks=12, haystack_split="all", seed=data_seed)
        task, dev = training_tasks(RunConfig(seed=seed, data=data, dev=DevConfig(share=0.2)))
        return task.texts, task.query_ids, dev.query_ids

    assert texts(1, 5) == texts(2, 5) == texts(5, None)
    assert texts(1, None) != texts(2, None)


@pytest.mark.parametrize(
    ("num_questions", "batch_size", "updates"),
    [(1, 128, 1000), (640, 128, 1000), (641, 128, 1002), (1000, 128, 1563), (3200, 128, 5000), (10**6, 8, 5000)],
)
def test_updates_follow_the_number_of_own_questions(num_questions, batch_size, updates):
    assert fitting_updates(num_questions, batch_size) == updates
