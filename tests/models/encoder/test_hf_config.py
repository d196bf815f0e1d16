import json
import subprocess
import sys

import pytest
from support.encoders import random_encoder
from support.tiers import PATIENCE

from qrag_jax.models.encoder import hf_config
from qrag_jax.models.encoder.hf_config import read_encoder_config
from qrag_jax.models.encoder.weights import save_encoder

FAMILIES = ["bert", "roberta", "xlm-roberta", "mpnet"]  # whose files may leave fields out


@pytest.fixture(params=FAMILIES)
def folder(request, tmp_path):
    loaded = random_encoder(request.param, ["Mary has the key."])
    save_encoder(tmp_path, loaded.config, loaded.params, loaded.tokenizer)
    return tmp_path


def test_a_file_that_leaves_nothing_out_means_what_transformers_reads_in_it(folder, monkeypatch):
    def refuse(values):
        raise AssertionError("asked for defaults")

    with monkeypatch.context() as patch:
        patch.setattr(hf_config, "_transformers_config", refuse)
        alone = read_encoder_config(folder)
    monkeypatch.setattr(hf_config, "_is_complete", lambda values: False)
    assert read_encoder_config(folder) == alone


def test_defaults_of_what_is_left_out_are_those_of_transformers(folder):
    path = folder / "config.json"
    values = json.loads(path.read_text())
    whole = read_encoder_config(folder)
    for name, default in (("layer_norm_eps", 1e-12), ("hidden_act", "gelu")):
        path.write_text(json.dumps({key: value for key, value in values.items() if key != name}))
        found = read_encoder_config(folder)
        assert getattr(found, {"hidden_act": "activation"}.get(name, name)) in (default, 1e-5)
        assert found.hidden_size == whole.hidden_size


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["mpnet"], indirect=True)
def test_a_whole_file_is_read_without_transformers(folder):
    code = f"import sys\nfrom qrag_jax.models.encoder.weights import load_encoder\nload_encoder({str(folder)!r})\n"
    code += "assert 'transformers' not in sys.modules\n"
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE).returncode == 0
