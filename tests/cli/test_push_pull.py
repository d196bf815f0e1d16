import json
import shutil
import warnings

import jax
import numpy as np
import pytest
import yaml
from support.answers import LATENT, replace
from support.processes import held
from support.stub_hub import reachable_hub

from qrag_jax.checkpoint import load_checkpoint, save_checkpoint
from qrag_jax.cli.main import main
from qrag_jax.eval.card import local_paths
from qrag_jax.eval.retrieval.records import Row, row_values
from qrag_jax.files.folder_lock import LOCK
from qrag_jax.files.manifest import files_under
from qrag_jax.qrag.multi_step_search import make_action_bank, search_bank
from qrag_jax.qrag.retriever import load_retriever

DEV = {
    "update": 4,
    "return": 0.75,
    "threshold": 0.125,
    "fact_em": 0.5,
    "fact_f1": 0.625,
    "num_questions": 16,
    "num_chunks": 12,
    "fitted_on": ["aa"],
    "beam_width": 4,
}
ABOUT = {"task": "worlds2", "num_questions": 20_000, "num_left_out": 3, "num_chunks": 20}
CHUNKS = ["Mary got the milk there.", "John went to the garden.", "It rained all day long.", "Mary went to the office."]
ROW = Row(
    task="qa2", setting=replace(LATENT, protocol="threshold", num_chunks=80), length_factor=4.0,
    fact_em=0.9, fact_f1=0.5, em_low=0.85, em_high=0.94, n=250, seconds=1.0, f1_ceiling=0.8, num_left_out=0,
    f1_low=0.45, f1_high=0.55, num_taken=2.5, threshold=0.1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory, save_untrained):
    """A run of which all is there that training saves, and its retriever."""
    folder = tmp_path_factory.mktemp("made")
    retriever = save_untrained(folder, metadata=ABOUT | {"dev": DEV})
    saved = load_checkpoint(folder)
    second = {"target_params": saved.arrays["params"], "opt_state": {"mu": np.ones(4, np.float32)}}
    save_checkpoint(folder, 0, {**saved.arrays, **second}, saved.config, saved.files, saved.metadata)
    (folder / "metrics.jsonl").write_text('{"data": {}}\n{"step": 1}\n')
    return folder, retriever


@pytest.fixture
def run(tmp_path, made):
    """A copy of it as `run`; gives the retriever."""
    shutil.copytree(made[0], tmp_path / "run")
    return made[1]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    from huggingface_hub import constants

    with reachable_hub(tmp_path, monkeypatch) as stub:
        monkeypatch.setattr(constants, "ENDPOINT", stub.endpoint)
        template = stub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"  # made of ENDPOINT at import
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield stub


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files_under(folder)}


def q_values(retriever):
    steps = search_bank(make_action_bank(retriever, CHUNKS), "Where is the milk?").steps
    return [(step.chunk, step.q_value) for step in steps]


def check_same(retriever, other):
    """Bit for bit: parameters, constants, and the encoder."""
    parts = [(x.params, dict(x.constants), x.encoder.params) for x in (retriever, other)]
    jax.tree.map(np.testing.assert_array_equal, *parts)
    assert (retriever.model, retriever.env) == (other.model, other.env)


def front_matter(card):
    _, header, _ = card.split("---\n", 2)
    return yaml.safe_load(header)


@pytest.mark.parametrize("given", [pytest.param("run", marks=pytest.mark.slow), "run/step_0"])
def test_a_run_that_is_trained_is_not_pushed(tmp_path, run, capsys, given):
    with held(tmp_path / "run") as first:
        assert main(["push", given, "./shared"]) == 2
        assert f"{tmp_path}/run: in use by qrag train (process {first.pid} on " in capsys.readouterr().err
    assert not (tmp_path / "shared").exists()
    assert main(["push", given, "./shared"]) == 0  # what the killed left is no obstacle, and is not shared
    assert LOCK not in {path.name for path in files_under(tmp_path)}


def test_two_do_not_write_to_one_place(tmp_path, run, capsys):
    with held(tmp_path / ".push-shared", "qrag push"):
        assert main(["push", "run", "./shared"]) == 2
    assert main(["push", "run", "./shared"]) == 0
    with held(tmp_path / ".pull-out", "qrag pull"):
        assert main(["pull", "./shared", "out"]) == 2
    with held(tmp_path / "out") as trained:
        assert main(["pull", "./shared", "out"]) == 2
        trained.kill()
        trained.wait()
        assert main(["pull", "./shared", "out"]) == 0
    err = capsys.readouterr().err
    for said in (".push-shared: in use by qrag push (", ".pull-out: in use by qrag pull (", "out: is not empty"):
        assert said in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run", "shared"]
    assert LOCK not in {path.name for path in files_under(tmp_path)}


@pytest.mark.parametrize("where", ["./shared/qa2", "alice/qa2"])
def test_round_trip(tmp_path, run, hub, capsys, where):
    assert main(["push", "run", where]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "pushed step 0 of run: " in captured.err and f"qrag pull {where} OUT" in captured.err
    sent = contents(tmp_path / "shared" / "qa2") if where[0] == "." else hub.files("alice/qa2")
    for name, content in contents(tmp_path / "run").items():
        assert sent[name] == content
    assert set(sent) - {".gitattributes"} == set(contents(tmp_path / "run")) | {"README.md"}
    assert main(["pull", where, "out"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "into out; all files match the manifest" in captured.err
    assert contents(tmp_path / "out") == {name: sent[name] for name in sent if name != ".gitattributes"}
    check_same(load_retriever("out"), run)
    if where == "alice/qa2":
        assert q_values(load_retriever("out")) == q_values(run)


@pytest.mark.parametrize("dev", [True, False])
def test_for_inference(tmp_path, run, dev):
    if not dev:
        saved = load_checkpoint("run")
        arrays = {name: saved.arrays[name] for name in ("params", "target_params", "constants")}
        save_checkpoint("run", 0, arrays, saved.config, saved.files, ABOUT)
    assert main(["push", "run", "./small", "--inference"]) == 0
    assert main(["pull", "./small", "out"]) == 0
    before, after = load_checkpoint("run"), load_checkpoint("out")
    kept = "best_params" if dev else "params"
    assert set(after.arrays) == {kept, "constants"}
    assert (after.step, after.config, after.metadata) == (before.step, before.config, before.metadata)
    assert after.files == before.files
    check_same(load_retriever("out"), run)
    assert "Optimiser state and target parameters were left out" in (tmp_path / "out" / "README.md").read_text()


def test_the_card(tmp_path, run, hub, capsys):
    (tmp_path / "rows.json").write_text(json.dumps([row_values([ROW])[0]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the hub's own reader of cards has none
        assert main("push run alice/qa2 --scores rows.json --license apache-2.0".split()) == 0
    card = hub.files("alice/qa2")["README.md"].decode()
    header = front_matter(card)
    assert (header["library_name"], header["license"]) == ("qrag_jax", "apache-2.0")
    assert "retrieval" in header["tags"]
    from huggingface_hub import ModelCard

    assert ModelCard(card).data.library_name == "qrag_jax"
    for text in (
        "# qa2: a multi-step retriever",
        "3 picks, trained by reinforcement learning (Q-RAG) with qrag_jax ",
        "positions: relative. This is step 0 of the training.",
        'qrag pull alice/qa2 runs/qa2\nqrag find runs/qa2 notes/ "Where is the key?"',
        'retriever = load_retriever("runs/qa2")',
        "- task: worlds2\n- questions: 20,000; left out: 3\n- chunks of the longest context: 20",
        "- update chosen: 4, mean return 0.750\n",
        "- fact F1 0.625 stopping below Q = 0.125 (16 questions, contexts of up to 12 chunks)\n- best beam width: 4",
        "protocol threshold, n = 250 questions",
        ".900 [.850, .940]",
        "- The first 64 tokens of a chunk and 64 of a question are read.",
    ):
        assert text in card
    block = card.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(block) == yaml.safe_load((tmp_path / "run" / "step_0" / "config.yaml").read_text())
    assert "this copy can search" not in card


def test_a_card_without_scores(tmp_path, save_untrained):
    save_untrained(tmp_path / "run", np.eye(4, dtype=np.float32), source="vectors")
    assert main(["push", "run", "./shared"]) == 0
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "license" not in front_matter(card)
    assert "No scores were given." in card and "the checkpoint does not say" in card
    assert "qrag pull ./THIS_FOLDER runs/pulled\nqrag eval runs/pulled --vectors INDEX/" in card
    assert "tokens of a chunk" not in card and "over given vectors" in card


def test_what_held_out_questions_chose_is_not_there(tmp_path, save_untrained, capsys):
    """Metadata of somebody else, whose manifest fits."""
    save_untrained(tmp_path / "run", metadata=ABOUT | {"dev": {"threshold": 0.5, "fitted_on": []}})
    assert main(["push", str(tmp_path / "run"), str(tmp_path / "shared")]) == 1
    assert "dev was changed (KeyError('update')): copy the run again" in capsys.readouterr().err


def test_a_step_and_its_folder(tmp_path, run):
    saved = load_checkpoint("run")
    save_checkpoint("run", 5, saved.arrays, saved.config, saved.files, saved.metadata)
    for argv, where, step in (
        (["run"], "newest", "step_5"),
        (["run", "--step", "0"], "older", "step_0"),
        (["run/step_0"], "folder", "step_0"),
    ):
        assert main(["push", *argv[:1], f"./{where}", *argv[1:]]) == 0
        names = {name.partition("/")[0] for name in contents(tmp_path / where)}
        assert names == {"README.md", "metrics.jsonl", step}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "bm25"}, "rows.json: no row with method 'trained'"),
        ({"positions": "none"}, "scores of another run: mode latent, positions none there; latent, relative here"),
    ],
)
def test_scores_of_another_run(tmp_path, run, capsys, changes, message):
    (tmp_path / "rows.json").write_text(json.dumps([row_values([ROW])[0] | changes]))
    assert main("push run ./shared --scores rows.json".split()) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "shared").exists()


def test_paths_of_this_machine_are_pointed_out(run, capsys):
    saved = load_checkpoint("run")
    data = {"paths": ["hotpot:/home/alice/dev.json", "musique:dev.jsonl"], "haystack": "~/novels"}
    config = {**saved.config, "data": {**saved.config["data"], **data}}
    assert local_paths(saved.config) == []
    assert local_paths(config) == ["data.paths=hotpot:/home/alice/dev.json", "data.haystack=~/novels"]
    save_checkpoint("run", 0, saved.arrays, config, saved.files, saved.metadata)
    assert main(["push", "run", "./shared"]) == 0
    said = capsys.readouterr().err
    assert "note: config.yaml and the card show paths of this machine: data.paths=hotpot:/home/alice/dev.json, " in said


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ("push run ./run", 2, "run: is not empty"),
        ("push run ./shared --step 3", 2, "no checkpoint of step 3"),
        ("push run ./shared --scores absent.json", 2, "absent.json"),
        ("pull ./run run", 2, "run: is not empty"),
    ],
)
def test_refusals(run, hub, capsys, argv, code, message):
    assert main(argv.split()) == code
    captured = capsys.readouterr()
    assert captured.out == "" and "qrag: error: " in captured.err and message in captured.err
