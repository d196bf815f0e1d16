"""The encoder against transformers on torch: a tiny random BERT, layer by layer, and its gradient."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qrag_jax.models.bert_table import bert_table
from qrag_jax.models.encoder import Encoder, encode, valid_tokens
from qrag_jax.models.tokenizer import train_word_level
from qrag_jax.models.weights import load_encoder

pytestmark = pytest.mark.oracle

LENGTHS = [9, 1, 4, 12]


@pytest.fixture(scope="module", params=["gelu", "gelu_new"])
def tiny(request, tmp_path_factory):
    """(torch model, our loaded encoder) of one random BERT, handed over through its folder."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40,
        max_position_embeddings=16, hidden_act=request.param, attn_implementation="eager",
    )  # fmt: skip
    model = BertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms are trivial at the start
            parameter.add_(0.1 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(train_word_level(["a b c"]).to_json())
    return model, load_encoder(folder)


@pytest.fixture(scope="module")
def rows():
    # Not the pad id: torch's embedding has no gradient there (`padding_idx`), whether the token is valid or not.
    tokens = np.random.default_rng(0).integers(1, 50, (len(LENGTHS), max(LENGTHS)))
    return jnp.asarray(tokens, jnp.int32), jnp.asarray(LENGTHS, jnp.int32)


def torch_rows(tokens, lengths):
    import torch

    mask = np.arange(tokens.shape[1]) < np.asarray(lengths)[:, None]
    return {"input_ids": torch.tensor(np.asarray(tokens, np.int64)), "attention_mask": torch.tensor(mask.astype(int))}


def test_every_layer(tiny, rows):
    import torch

    model, loaded = tiny
    tokens, lengths = rows
    with torch.no_grad():
        expected = model(**torch_rows(tokens, lengths), output_hidden_states=True).hidden_states
    apply = jax.jit(partial(Encoder(loaded.config).apply, capture_intermediates=True, mutable=["intermediates"]))
    _, captured = apply({"params": loaded.params}, tokens, valid_tokens(lengths, tokens.shape[1]))
    captured = captured["intermediates"]
    ours = [captured["embeddings_norm"]["__call__"][0]] + [captured[f"layer_{i}"]["__call__"][0] for i in range(3)]
    assert len(ours) == len(expected)
    valid = np.asarray(valid_tokens(lengths, tokens.shape[1]))
    for layer, (mine, theirs) in enumerate(zip(ours, expected, strict=True)):
        np.testing.assert_allclose(np.asarray(mine)[valid], theirs.numpy()[valid], atol=1e-5, err_msg=f"layer {layer}")


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_gradient_of_every_tensor(tiny, rows, pooling):
    import torch

    model, loaded = tiny
    tokens, lengths = rows
    config = replace(loaded.config, pooling=pooling)
    weights = np.random.default_rng(1).normal(size=(len(LENGTHS), config.hidden_size)).astype(np.float32)

    model.zero_grad()
    inputs = torch_rows(tokens, lengths)
    hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None].float()
    pooled = (hidden * mask).sum(1) / mask.sum(1) if pooling == "mean" else hidden[:, 0]
    (pooled * torch.tensor(weights)).sum().backward()
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}

    def loss(params):
        return jnp.sum(encode(config, params, tokens, lengths) * weights)

    ours = jax.jit(jax.grad(loss))(loaded.params)
    for row in bert_table(config):
        mine = ours
        for name in row.path:
            mine = mine[name]
        mine = np.asarray(mine).T if row.transposed else np.asarray(mine)
        np.testing.assert_allclose(mine, theirs[row.name].numpy(), atol=1e-5, rtol=1e-5, err_msg=row.name)
