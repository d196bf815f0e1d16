import json
from dataclasses import replace

import pytest
from support.study import fixed, make_config, make_task

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.config import load_config
from qrag_jax.data.corpora.study_task import Evidence
from qrag_jax.eval.study.cells.cell_files import (
    CellStore,
    claim_folder,
    made_of,
    sealed,
    task_digest,
    unsealed,
    with_config,
)
from qrag_jax.eval.study.config import StudyConfig
from qrag_jax.eval.study.records import CellResult, FoundChunk, FoundChunks
from qrag_jax.types import Cost, InputError, UsageError

HIT = FoundChunk("c0", "ä/\ud800.txt", ((0, 5), (7, 9)), 3, 0.1 + 0.2)  # a file name that is no UTF-8
COST = Cost({"chunk": 1 / 3, "embed_sentences": 0.0}, 12, 1e15 / 3, 64)
CELL = CellResult(
    "facts", "fixed", 1, "dev", 2, 3, 5 / 3, 4, 1 / 3, COST, (FoundChunks("q1", (HIT,)), FoundChunks("q2", ()))
)
ORIGIN = {"encoder": "one", "ks": [1, 3], "seed": 0, "config": {"strategy": "fixed"}}


@pytest.fixture
def store(tmp_path):
    store = CellStore(tmp_path)
    store.write(CELL, ORIGIN)
    return store


def read(store, origin=None, number=1):
    return store.read("facts", "fixed", number, "dev", origin or ORIGIN)


def test_a_cell_comes_back_as_it_was(store, tmp_path):
    assert read(store) == CELL
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")] == [
        "cells/facts/fixed-1-dev.json"
    ]
    assert read(store, number=0) is None


def test_every_damaged_byte_is_found(store):
    """A damaged cell is said and counts as missing; it is never read as something else."""
    path = store.path("facts", "fixed", 1, "dev")
    content = path.read_bytes()
    changed = [
        content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :] for place in range(0, len(content), 7)
    ]
    for damaged in (b"", content[:-1], content[: len(content) // 2], b"\xff\n{}", content * 2, *changed):
        path.write_bytes(damaged)
        with pytest.warns(UserWarning, match=r"fixed-1-dev.json: damaged \(.*\); it is run again"):
            assert read(store) is None
    store.write(CELL, ORIGIN)
    assert read(store) == CELL


OTHERS = [
    {},
    {"result": 3, "made_of": {}},
    {"result": {}, "made_of": {}},
    {"result": {"found": [{}]}, "made_of": {}},
    {"result": {"found": [{"question_id": "q", "hits": [0.0]}]}, "made_of": {}},
]


@pytest.mark.parametrize("body", OTHERS)
def test_a_whole_file_of_another_kind_is_no_cell(store, body):
    store.path("facts", "fixed", 1, "dev").write_bytes(sealed(body))
    with pytest.warns(UserWarning, match="damaged"):
        assert read(store) is None


def test_a_cell_under_another_name_is_not_that_cell(store):
    store.path("facts", "fixed", 0, "dev").write_bytes(store.path("facts", "fixed", 1, "dev").read_bytes())
    with pytest.warns(UserWarning, match="it contains another cell"):
        assert read(store, number=0) is None


def test_a_cell_of_another_study_is_refused(store, tmp_path):
    with pytest.raises(UsageError, match="another encoder, seed: .* contains another study") as error:
        read(store, {**ORIGIN, "seed": 1, "encoder": "two"})
    assert str(tmp_path) in str(error.value)
    with pytest.raises(UsageError, match="another scope"):
        read(store, {**ORIGIN, "scope": "corpus"})


def test_what_is_not_finite_is_not_stored(tmp_path):
    with pytest.raises(ValueError):
        CellStore(tmp_path).write(replace(CELL, mean_tokens=float("nan")), ORIGIN)
    assert not list(tmp_path.rglob("*.json"))


def test_made_of_is_json_and_changes_with_all_that_decides_a_cell():
    study, task = make_config(), make_task()
    base = with_config(made_of(study, task, "print"), fixed(3))
    assert json.loads(json.dumps(base)) == base
    others = {
        "config": with_config(made_of(study, task, "print"), ChunkConfig("late")),
        "encoder": with_config(made_of(study, task, "other"), fixed(3)),
        "ks": with_config(made_of(replace(study, ks=(1, 3, 7)), task, "print"), fixed(3)),
        "seed": with_config(made_of(replace(study, seed=4), task, "print"), fixed(3)),
        "sentence splitter": with_config(made_of(replace(study, language="de"), task, "print"), fixed(3)),
        "scope": with_config(
            made_of(replace(study, tasks={"facts": replace(study.tasks["facts"], scope="document")}), task, "print"),
            fixed(3),
        ),
        "task content": with_config(made_of(study, make_task(seed=5), "print"), fixed(3)),
    }
    assert {*others, "version of qrag_jax"} == set(base)
    for name, other in others.items():
        assert [key for key in base if base[key] != other[key]] == [name]


def test_a_reranker_that_was_trained_again_makes_other_cells(tmp_path):
    study, task, weights = make_config(), make_task(), tmp_path / "model.safetensors"
    made = []
    for name, content in (("", "a"), (str(tmp_path), "a"), (f"yesno:{tmp_path}", "a"), (str(tmp_path), "ab")):
        weights.write_text(content)
        made.append(made_of(replace(study, rerank=name), task, "print").get("reranker"))
    assert made[0] is None and made[1][1][:2] == made[2][1][:2] == ["model.safetensors", 1]
    assert made[3][0] == str(tmp_path) and made[3] != made[1]


def test_the_digest_of_a_task_is_of_all_its_content():
    task = make_task()
    first, *rest = task.questions
    evidence = Evidence(first.relevant[0], 0, 3)
    changed = [
        replace(task, questions=task.questions[::-1]),
        replace(task, questions=(replace(first, text="Why?"), *rest)),
        replace(task, questions=(replace(first, evidence=(evidence,)), *rest)),
        replace(task, documents=(replace(task.documents[0], text=task.documents[0].text + " "), *task.documents[1:])),
        replace(task, documents=task.documents[::-1]),
        replace(task, sentences={**task.sentences, task.documents[0].id: ((0, 9),)}),
        replace(task, kind="documents"),
    ]
    assert len({task_digest(one) for one in (task, make_task(), *changed)}) == 1 + len(changed)


def test_sealed_refuses_what_it_did_not_write():
    assert unsealed(sealed({"ä": [1, 0.1]})) == {"ä": [1, 0.1]}
    with pytest.raises(InputError, match="sha256 differs"):
        unsealed(b"{}")


# --- the folder


def test_a_folder_is_claimed_once_and_again_by_the_same_study(tmp_path):
    config = make_config()
    for _ in range(2):
        claim_folder(tmp_path / "deep" / "out", config)
    assert load_config(StudyConfig, tmp_path / "deep" / "out" / "config.yaml") == config


def test_a_folder_of_another_study_is_refused_by_the_names_of_what_differs(tmp_path):
    claim_folder(tmp_path, make_config())
    with pytest.raises(UsageError, match=r"config.yaml: differs from this study in report_k, seed: choose another out"):
        claim_folder(tmp_path, make_config(report_k=1, seed=9))
    path = tmp_path / "config.yaml"
    path.write_text("# mine\n" + path.read_text())
    with pytest.raises(UsageError, match="differs from this study in order or comments"):
        claim_folder(tmp_path, make_config())
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="config.yaml"):
        claim_folder(tmp_path, make_config())


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        claim_folder(tmp_path / "out", make_config())


def test_half_files_of_a_killed_run_are_removed_and_nothing_else_is(tmp_path):
    half = [".table.csv.a1b2c3d4", "cells/facts/.fixed-0-dev.json.abcd_123", "sentences/.9f.vectors.zzzzzzzz"]
    other = [".gitignore", ".note.txt", ".env.template", ".npmrc.override", "trec/.env.template"]
    other += ["cells/facts/fixed-0-dev.json", "mine/.x.json.a1b2c3d4", "answers/mine/.x.json.a1b2c3d4"]
    for name in (*half, *other):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    claim_folder(tmp_path, make_config())
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"config.yaml", *other}
