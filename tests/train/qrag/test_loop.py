import importlib.util
import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import LATENT

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.config import config_from_dict
from qrag_jax.data.questions.vector_task import make_vector_task
from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.models.encoder.sources import PACKAGE_MODULE
from qrag_jax.models.towers.q_network import VectorRows
from qrag_jax.qrag.batching import Contexts, Packer
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.multi_step_search import make_action_bank, search_bank
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, load_retriever, new_retriever
from qrag_jax.qrag.tasks import examples_task, vectors_task
from qrag_jax.train.optimise import ScheduleConfig
from qrag_jax.train.qrag import job
from qrag_jax.train.qrag.config import DataConfig, DevConfig, RunConfig, epoch_order
from qrag_jax.train.qrag.job import make_dev_score
from qrag_jax.train.qrag.learner import Learner, LearnerConfig, LearnerState
from qrag_jax.train.qrag.loop import jitted_update, train
from qrag_jax.train.run_folder import check_out
from qrag_jax.train.trainer import KeepBest
from qrag_jax.types import Arg, Example, InputError, Stopped, UsageError

NAMES = [f"{a} {b}" for a in ("old", "new", "red", "tall") for b in ("cat", "dog", "hat", "key", "box")]
SCRATCH = EncoderSpec("scratch", num_layers=1, window=8, question_window=6, hidden_size=8, num_heads=2)


def make_vectors_task(size=12, scale=1.0):
    rng = np.random.default_rng(0)
    rows = [{"question": i % 5, "gold": [i % 12, (i + 3) % 12]} for i in range(size)]
    chunks, questions = (rng.normal(size=(n, 6)).astype(np.float32) * np.float32(scale) for n in (12, 5))
    return vectors_task(
        "vectors", make_vector_task(chunks, questions, [(f"line {i}", row) for i, row in enumerate(rows)])
    )


def make_texts_task(size=10):
    examples = [
        Example(
            f"q{i}", f"where is {NAMES[i]}", tuple(f"the {name} is here" for name in NAMES[i : i + 4 + i % 3]), (0, 2)
        )
        for i in range(size)
    ]
    return examples_task("texts", examples)


def make_config(source="vectors", mode="latent", **options):
    spec = EncoderSpec("vectors") if source == "vectors" else SCRATCH
    model = ModelConfig(mode=mode, encoder=spec, latent=LATENT, state_chunk_window=6)
    data = DataConfig(task="vectors" if source == "vectors" else "jsonl", paths=("given",), batch_size=4, stretch=1.0)
    fixed = {"num_updates": 3, "log_every": 2, "env": EnvConfig(num_steps=2), "data": data, "model": model}
    return RunConfig(**(fixed | options))


def read_metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(folder, config, returned retriever, reports) of a run over vectors."""
    chex.clear_trace_counter()
    folder, reports = tmp_path_factory.mktemp("run") / "new", []
    config = make_config(num_updates=5, save_every=2)
    retriever = train(config, make_vectors_task(), folder, lambda *report: reports.append(report))
    return folder, config, retriever, reports


# --- what a run leaves


def test_metrics_are_one_json_object_a_logged_step(run):
    facts, *steps = read_metrics(run[0])
    assert facts == {"data": {"num_texts": 12, "num_texts_cut": 0, "num_questions_cut": 0, "num_left_out": 0}}
    assert [line["step"] for line in steps] == [2, 4, 5]  # every second, and the last
    for line in steps:
        assert {"loss", "return", "complete", "q", "target", "grad_norm", "learning_rate"} <= set(line)
        assert all(math.isfinite(value) for value in line.values())
    times = [json.loads(line) for line in (run[0] / "times.jsonl").read_text().splitlines()]
    assert [line["step"] for line in times] == [2, 4, 5]
    assert [line["seconds"] for line in times] == sorted(line["seconds"] for line in times)


def test_progress_is_reported(run):
    trained = [report for report in run[3] if report[0] == "train"]
    assert [(done, of) for _, done, of, _ in trained] == [(2, 5), (4, 5), (5, 5)]
    assert all("loss" in metrics for *_, metrics in trained)


def test_the_checkpoint_stands_alone(run):
    folder, config, retriever, _ = run
    assert checkpoint_steps(folder) == [2, 4, 5]
    saved = load_checkpoint(folder)
    assert saved.step == 5
    assert set(saved.arrays) == {"params", "target_params", "opt_state", "step", "key", "constants"}
    assert int(saved.arrays["step"]) == 5
    np.testing.assert_array_equal(
        jax.random.key_data(saved.arrays["key"]), jax.random.key_data(jax.random.split(jax.random.key(0))[1])
    )
    assert config_from_dict(RunConfig, saved.config, "saved") == config
    assert saved.metadata["task"] == "vectors" and saved.metadata["num_questions"] == 12
    jax.tree.map(np.testing.assert_array_equal, saved.arrays["params"], retriever.params)
    leaves = zip(*(jax.tree.leaves(saved.arrays[group]) for group in ("params", "target_params")), strict=True)
    assert any((online != target).any() for online, target in leaves)


def test_a_moved_run_gives_the_same_q_values(run, tmp_path):
    folder, _, retriever, _ = run
    shutil.copytree(folder, tmp_path / "moved")
    loaded = load_retriever(tmp_path / "moved")
    task = make_vectors_task()
    found, expected = (
        search_bank(make_action_bank(r, task.texts), task.questions[1]).steps for r in (loaded, retriever)
    )
    assert found == expected and len(found) == 2
    earlier = load_retriever(tmp_path / "moved", step=2)
    assert search_bank(make_action_bank(earlier, task.texts), task.questions[1]).steps != expected


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["latent", "text"])
def test_a_run_over_texts_needs_its_folder_alone(mode, tmp_path, monkeypatch):
    """Saved, moved, and read where the embedded package is not installed."""
    task = make_texts_task()
    config = make_config("texts", mode, env=EnvConfig(num_steps=1))
    trained = train(config, task, tmp_path / "run")
    shutil.move(tmp_path / "run", tmp_path / "moved")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == PACKAGE_MODULE else find_spec(name, *rest)
    )
    loaded = load_retriever(tmp_path / "moved")
    found, expected = (search_bank(make_action_bank(r, task.texts), task.questions[3]).steps for r in (loaded, trained))
    assert [step.chunk for step in found] == [step.chunk for step in expected]
    np.testing.assert_allclose([s.q_value for s in found], [s.q_value for s in expected], rtol=1e-5)
    fresh, _, _ = new_retriever(
        config.model, config.env, task.texts, jax.random.split(jax.random.key(0))[0], None, task.questions
    )
    changed = [(a != b).any() for a, b in zip(*map(jax.tree.leaves, (fresh.params, loaded.params)), strict=True)]
    assert any(changed)  # the trained towers were saved, not those that they started from


# --- held-out questions

SCORES = [0.5, 0.5, 0.2]  # of updates 4, 8 and 9: the best one comes twice, and the last is not the best


@pytest.fixture(scope="module")
def scored_run(tmp_path_factory):
    """(folder, returned retriever, parameters as they were scored, what was calibrated) of a run with such scores."""
    chex.clear_trace_counter()
    folder, dev, scored, calibrated = tmp_path_factory.mktemp("dev") / "run", make_vectors_task(4), [], []

    def make_score(retriever, task, batch_size, seed, mesh, pools, *_):
        assert (
            task is dev
            and pools is None
            and (batch_size, seed, mesh.size) == (4, 0, 1)
            and retriever.env.num_steps == 2
        )

        def score(params):
            scored.append(jax.tree.map(np.array, params))
            return SCORES[len(scored) - 1]

        return score

    def calibrate(retriever, task):
        calibrated.append((retriever, task is dev))
        return {"threshold": 0.25, "queries": ["a", "b"]}

    config = make_config(num_updates=9, save_every=3, log_every=5, dev=DevConfig(every=4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "make_dev_score", make_score)
        retriever = train(config, make_vectors_task(), folder, dev=dev, calibrate=calibrate)
    return folder, retriever, scored, calibrated


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def differ(one, other):
    return any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))


def test_the_result_is_what_did_best_and_the_later_one_among_equals(scored_run):
    _, retriever, scored, _ = scored_run
    assert len(scored) == 3  # every fourth update, and the last
    assert_equal(retriever.params, scored[1])
    assert differ(scored[0], scored[1]) and differ(scored[2], scored[1])


def test_the_checkpoint_of_a_scored_run(scored_run):
    """`best_params` are what a run is loaded with; the last ones are kept for whoever goes on with it."""
    folder, retriever, scored, _ = scored_run
    saved = load_checkpoint(folder)
    assert saved.step == 9
    assert saved.metadata["dev"] == {"update": 8, "return": 0.5, "threshold": 0.25, "queries": ["a", "b"]}
    assert_equal(saved.arrays["best_params"], scored[1])
    assert_equal(saved.arrays["params"], scored[2])
    loaded = load_retriever(folder)
    assert_equal(loaded.params, scored[1])
    question, texts = make_vectors_task().questions[1], make_vectors_task().texts
    found, expected = (search_bank(make_action_bank(r, texts), question).steps for r in (loaded, retriever))
    assert found == expected


def test_earlier_checkpoints_have_the_best_parameters_so_far(scored_run):
    """The first has none: nothing was scored yet, and its parameters are taken as they are."""
    folder, _, scored, _ = scored_run
    first = load_checkpoint(folder, step=3)
    assert "dev" not in first.metadata and "best_params" not in first.arrays
    assert_equal(load_retriever(folder, step=3).params, first.arrays["params"])
    assert load_checkpoint(folder, step=6).metadata["dev"] == {"update": 4, "return": 0.5}
    assert_equal(load_retriever(folder, step=6).params, scored[0])


def test_what_is_fitted_is_fitted_on_the_result(scored_run):
    _, retriever, _, calibrated = scored_run
    ((fitted_on, on_dev),) = calibrated
    assert on_dev
    assert_equal(fitted_on.params, retriever.params)


def test_scores_are_logged_where_they_are_made(scored_run):
    _, *steps = read_metrics(scored_run[0])
    assert [(line["step"], line.get("dev_return")) for line in steps] == [(4, 0.5), (5, None), (8, 0.5), (9, 0.2)]
    assert all("loss" in line for line in steps)


@pytest.mark.slow
def test_scores_of_a_run_are_those_of_its_parameters(tmp_path):
    """Nothing replaced: what metrics.jsonl says of an update is what the checkpoint of that update is worth."""
    config = make_config(num_updates=2, save_every=1, dev=DevConfig(), env=EnvConfig(num_steps=2, fact_reward=0.1))
    dev = make_vectors_task(10)
    retriever = train(config, make_vectors_task(), tmp_path, dev=dev)
    score = make_dev_score(retriever, dev, 4, 0)
    _, *steps = read_metrics(tmp_path)
    assert [line["step"] for line in steps] == [1, 2]  # a tenth of the run is no update
    for line in steps:
        params = load_checkpoint(tmp_path, step=line["step"]).arrays["params"]
        assert line["dev_return"] == pytest.approx(score(params), rel=1e-5)
    about = load_checkpoint(tmp_path).metadata["dev"]
    assert about["return"] == max(line["dev_return"] for line in steps)
    assert about["return"] == pytest.approx(score(retriever.params), rel=1e-5)


@pytest.mark.slow
def test_what_a_run_starts_with_is_a_candidate(tmp_path, monkeypatch):
    """Better than all that follows: it is the result, and the checkpoint says so; also of a run that goes on."""
    scores, task, start = iter([0.9, 0.5, 0.7]), make_vectors_task(), {}

    def make_score(retriever, *_):
        start["params"] = retriever.params
        return lambda params: next(scores)

    monkeypatch.setattr(job, "make_dev_score", make_score)
    config = make_config(num_updates=2, save_every=1, dev=DevConfig(every=1, untrained=True))
    with pytest.raises(Stopped):
        train(config, task, tmp_path, dev=make_vectors_task(4), stop=lambda: True)
    result = train(config, task, tmp_path, dev=make_vectors_task(4), start=load_checkpoint(tmp_path, groups=()))
    assert_equal(result.params, start["params"])
    assert load_checkpoint(tmp_path).metadata["dev"] == {"update": 0, "return": 0.9}
    assert [line.get("dev_return") for line in read_metrics(tmp_path)[1:]] == [0.5, 0.7]


def test_an_update_must_gain_the_margin_over_the_untrained_parameters_only():
    scores = iter([0.5, 0.5625, 0.625, 0.625, 0.6])
    best = KeepBest(lambda params: next(scores), margin=0.125)
    kept = []
    for update in range(5):
        best.offer({"w": jnp.float32(update)}, update)
        kept.append((best.update, best.value, float(best.params["w"])))
    assert kept == [(0, 0.5, 0), (0, 0.5, 0), (2, 0.625, 2), (3, 0.625, 3), (3, 0.625, 3)]
    with pytest.raises(UsageError, match="dev.margin=0.1 works only with dev.untrained=true"):
        DevConfig(margin=0.1)


def test_a_run_without_held_out_questions_fits_nothing(run):
    saved = load_checkpoint(run[0])
    assert "dev" not in saved.metadata and "best_params" not in saved.arrays
    assert_equal(load_retriever(run[0]).params, saved.arrays["params"])


@pytest.mark.parametrize(
    "options",
    [
        {"env": EnvConfig(num_steps=2, reward="at_end", stop=True)},
        {"learner": LearnerConfig(objective="sft")},
        {
            "env": EnvConfig(num_steps=2, reward="at_end", stop=True, stop_head="affine", ranking_scale=3.0),
            "learner": LearnerConfig(losses={"ranking": 1.0, "stop": 0.5}),
        },
        {"model": replace(make_config().model, latent=replace(LATENT, prior=True))},
    ],
)
@pytest.mark.slow
def test_runs_of_other_kinds_come_back(options, tmp_path):
    """A learned STOP is one more parameter; trajectory supervision has metrics of its own."""
    trained = train(make_config(**options), make_vectors_task(), tmp_path)
    loaded = load_retriever(tmp_path)
    assert_equal(loaded.params, trained.params)
    assert loaded.env == trained.env
    assert ("stop" in loaded.params) == trained.env.stop
    _, *steps = read_metrics(tmp_path)
    assert ("taken" in steps[0]) == trained.env.stop and "complete" in steps[0]


def pages_task(numbers):
    """The question names a page, that page names the one that answers; nothing else tells pages apart."""
    examples = []
    for number in numbers:
        rng = np.random.default_rng(number)
        name = lambda rng=rng: "".join(rng.choice(list("bdklmnrst"), 6)).capitalize()  # noqa: E731
        pages = [(name(), name(), name()) for _ in range(4)]
        chunks = [c for a, b, c in pages for c in (f"{a}: made by {b} once", f"{b}: from {c} long ago")]
        order = rng.permutation(8)
        gold = tuple(sorted(int(np.flatnonzero(order == i)[0]) for i in (0, 1)))
        question = f"where is the maker of {pages[0][0]} from"
        examples.append(Example(f"q{number}", question, tuple(chunks[i] for i in order), gold))
    return examples_task("pages", examples)


@pytest.mark.full
def test_a_run_with_links_learns_to_follow_names_and_comes_back(tmp_path):
    """On pages that it never saw, whose names its encoder does not know; a run without links cannot."""
    learner = LearnerConfig(learning_rate=ScheduleConfig(0.01, 0.0), losses={"ranking": 1.0})
    found = {}
    for links in (True, False):
        env = EnvConfig(num_steps=2, positions="none", ranking_scale=20.0, links=links)
        config = make_config("texts", env=env, learner=learner, num_updates=150)
        out = tmp_path / str(links)
        trained, held_out = train(config, pages_task(range(40)), out), pages_task(range(100, 130))
        found[links] = make_dev_score(trained, held_out, 30, 0)(trained.params)
        assert_equal(load_retriever(out).params, trained.params)
    assert found[True] > 0.95
    assert found[False] < 0.5


# --- what stops a run


def test_a_folder_that_holds_a_run_is_refused(run):
    """Before anything is read or made; what is there stays as it is."""
    folder, reports = run[0], []
    before = {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}
    with pytest.raises(UsageError, match=r"already contains a trained run \(step 5\)") as error:
        train(make_config(), make_vectors_task(), folder, lambda *report: reports.append(report))
    assert error.value.file == str(folder) and Arg("resume", True) in error.value.remedy
    assert not reports and before == {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(UsageError, match="run: is a file: choose another out"):
        check_out(tmp_path / "run")
    check_out(tmp_path)  # an empty folder, and one that is not there yet, are free
    check_out(tmp_path / "new")


def test_a_disk_without_room_is_told_before_the_first_update(run, tmp_path, monkeypatch):
    params = load_checkpoint(run[0]).arrays["params"]
    one = sum(leaf.nbytes for leaf in jax.tree.leaves(params))  # of parameters; a state has those of four, and more
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=4 * one * 3))  # three steps
    with pytest.raises(UsageError, match="new: the checkpoints of this run take up to .* MB each"):
        train(make_config(num_updates=5, save_every=2), make_vectors_task(), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    """The parameters leave all bounds at the first update; the second loss tells, and nothing is saved after that."""
    config = make_config(
        num_updates=6, log_every=4, save_every=1, learner=LearnerConfig(learning_rate=ScheduleConfig(1e30, 1e30))
    )
    with pytest.raises(InputError, match=r"update 2: .*loss.* not finite; the run stops. Lower learner.learning_rate"):
        train(config, make_vectors_task(), tmp_path)
    assert max(checkpoint_steps(tmp_path), default=0) <= 1
    assert all(math.isfinite(value) for line in read_metrics(tmp_path)[1:] for value in line.values())


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_the_batch_of_a_loss_that_is_not_finite_is_saved(parts, tmp_path):
    """With the texts of every environment, also where nothing else happens at that update."""
    rate = ScheduleConfig(1e30, 1e30)
    config = make_config(
        "texts", num_updates=60, log_every=50, learner=LearnerConfig(learning_rate=rate, accumulate=parts)
    )
    task = make_texts_task()
    with pytest.raises(InputError, match=r"update 2: .*; its batch: .*bad_batch_2\.json"):
        train(config, task, tmp_path)
    bad = json.loads((tmp_path / "bad_batch_2.json").read_text())
    assert bad["update"] == 2 and not np.isfinite(float(bad["metrics"]["loss"]))
    assert len(bad["environments"]) == 4
    queries = epoch_order(0, len(task), 4, 4)
    contexts = task.contexts(queries, np.random.default_rng(0))
    for row, environment in enumerate(bad["environments"]):
        assert environment["question"] == task.questions[contexts.questions[row]]
        ids = contexts.chunks[row][contexts.chunks[row] >= 0]
        assert environment["chunks"] == [task.texts[i] for i in ids]
        assert environment["gold"] == [0, 2]


def test_fewer_chunks_than_steps_are_refused_before_anything_is_made(tmp_path):
    reports = []
    with pytest.raises(InputError, match="texts: query q0 has 4 chunks, which cannot give 5 picks"):
        train(
            make_config("texts", env=EnvConfig(num_steps=5)),
            make_texts_task(),
            tmp_path / "run",
            lambda *r: reports.append(r),
        )
    assert not reports and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_question_beyond_its_window_is_cut_and_counted(tmp_path):
    examples = [Example("q", "where is the very old and tall cat", ("a b", "c d", "e f"), (0,))]
    train(make_config("texts"), examples_task("texts", examples), tmp_path)
    facts = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["data"]
    assert facts["num_questions_cut"] == 1


# --- one compiled update


def counting_learner():
    """Its update counts the steps and shows the batch."""

    def update(state, batch, paid):
        return state.replace(step=state.step + 1), {"questions": batch.questions.vectors, "chunks": batch.table.vectors}

    return Learner(lambda params, key: params, update, lambda state, batch: jnp.zeros((4, 2), jnp.int32))


def update_once():
    """A fresh jitted update, called once: (update, its result, what it took beside the state)."""
    pool = VectorRows(jnp.arange(6.0).reshape(3, 2))
    contexts = Contexts(np.array([1], np.int32), np.array([[2, 0]], np.int32), np.array([[True, False]]))
    rest = (pool, pool, Packer(multiple=1)(contexts))
    update = jitted_update(counting_learner())
    return update, update(LearnerState({}, {}, (), jnp.zeros((), jnp.int32), jax.random.key(0)), *rest), rest


def test_the_update_gathers_its_batch_and_donates_the_state():
    update, (state, metrics), rest = update_once()
    np.testing.assert_array_equal(metrics["questions"], [[2, 3]])
    np.testing.assert_array_equal(metrics["chunks"], [[0, 1], [4, 5]])
    later, _ = update(state, *rest)
    assert int(later.step) == 2 and state.step.is_deleted()
    assert update._cache_size() == 1


def test_many_runs_fit_into_one_process():
    """A sweep trains dozens of retrievers: traces of one run must not count against another."""
    for _ in range(20):
        update_once()
