import json

import pytest
from support.encoders import random_encoder

from qrag_jax.models.encoder.hf_config import read_encoder_config
from qrag_jax.models.encoder.weights import save_encoder

FAMILIES = ["bert", "roberta", "xlm-roberta", "mpnet"]


@pytest.fixture(params=FAMILIES)
def folder(request, tmp_path):
    loaded = random_encoder(request.param, ["Mary has the key."])
    save_encoder(tmp_path, loaded.config, loaded.params, loaded.tokenizer)
    return tmp_path


def test_what_a_file_leaves_out_has_a_default(folder):
    path = folder / "config.json"
    family = json.loads(path.read_text())["model_type"]
    path.write_text(json.dumps({"model_type": family, "intermediate_size": 8}))
    found = read_encoder_config(folder)
    assert (found.hidden_size, found.num_layers, found.intermediate_size) == (768, 12, 8)
    assert found.max_positions == {"bert": 512}.get(family, 510)
    assert (found.layer_norm_eps, found.activation, found.padding_id) == (1e-12, "gelu", 1)
