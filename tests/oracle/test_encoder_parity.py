"""The encoders against transformers on torch: tiny random models of every family, layer by layer, and gradients."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.tiers import slow_but

from qrag_jax.models.encoder.config import ROTARY
from qrag_jax.models.encoder.table import weight_table
from qrag_jax.models.encoder.text_encoder import (
    Encoder,
    encode,
    encode_in_blocks,
    encode_tokens,
    relative_buckets,
    valid_tokens,
)
from qrag_jax.models.encoder.tokenizer import train_word_level
from qrag_jax.models.encoder.weights import load_encoder, save_encoder

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("quick_compilation")]

LENGTHS = [9, 1, 150, 12]  # 150: beyond the largest distance that MPNet tells apart
SHAPE = {
    "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 152, "layer_norm_eps": 1e-5, "attn_implementation": "eager",
}  # fmt: skip
MODELS = {
    "bert": ("Bert", {}),
    "bert, tanh gelu": ("Bert", {"hidden_act": "gelu_new"}),
    "roberta": ("Roberta", {"type_vocab_size": 1}),
    "roberta, other padding": ("Roberta", {"pad_token_id": 3, "max_position_embeddings": 154}),
    "xlm-roberta": ("XLMRoberta", {"type_vocab_size": 1}),
    "mpnet": ("MPNet", {}),
    "nomic_bert": ("NomicBert", {}),
    "modernbert": (
        "ModernBert",
        {
            "num_hidden_layers": 5,
            "local_attention": 16,
            "pad_token_id": 1,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "cls_token_id": 2,
            "sep_token_id": 3,
        },
    ),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "pad_token_id": 1}),
}


def torch_model(kind):
    import torch
    import transformers

    torch.manual_seed(0)
    name, changes = MODELS[kind]
    config = getattr(transformers, f"{name}Config")(**{**SHAPE, **changes})
    model = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms are trivial at the start
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module", params=list(MODELS))
def tiny(request, tmp_path_factory):
    """(torch model, our loaded encoder) of one random model, handed over through its folder."""
    model = torch_model(request.param)
    folder = tmp_path_factory.mktemp("encoder")
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(train_word_level(["a b c"]).to_json())
    return model, load_encoder(folder)


def rows_for(model):
    """Random rows, padded with the model's padding id, which no text holds: torch gives it no gradient."""
    pad_id = model.config.pad_token_id
    tokens = np.random.default_rng(0).integers(4, SHAPE["vocab_size"], (len(LENGTHS), max(LENGTHS)))
    tokens[np.arange(max(LENGTHS)) >= np.asarray(LENGTHS)[:, None]] = pad_id
    return jnp.asarray(tokens, jnp.int32), jnp.asarray(LENGTHS, jnp.int32)


def torch_rows(tokens, lengths):
    import torch

    mask = np.arange(tokens.shape[1]) < np.asarray(lengths)[:, None]
    return {"input_ids": torch.tensor(np.asarray(tokens, np.int64)), "attention_mask": torch.tensor(mask.astype(int))}


def hidden_states(loaded, tokens, lengths):
    """What every layer of ours gives, the embeddings first."""
    encoder = Encoder(loaded.config).bind({"params": loaded.params})
    shallow = (replace(loaded.config, num_layers=1 + layer) for layer in range(loaded.config.num_layers))
    layers = [jax.jit(encode_tokens, static_argnums=0)(config, loaded.params, tokens, lengths) for config in shallow]
    return [encoder.embed(tokens, encoder.places(tokens)), *layers]


def assert_same_layers(model, loaded, tokens, lengths):
    import torch

    with torch.no_grad():
        expected = model(**torch_rows(tokens, lengths), output_hidden_states=True).hidden_states
    valid = np.asarray(valid_tokens(lengths, tokens.shape[1]))
    ours = hidden_states(loaded, tokens, lengths)
    assert len(ours) == len(expected) == model.config.num_hidden_layers + 1
    for layer, (mine, theirs) in enumerate(zip(ours, expected, strict=True)):
        if loaded.config.norms_first and 0 < layer < len(ours) - 1:
            continue  # ours has the norm of the end behind every layer
        np.testing.assert_allclose(np.asarray(mine)[valid], theirs.numpy()[valid], atol=1e-5, err_msg=f"layer {layer}")


def test_every_layer(tiny):
    assert_same_layers(*tiny, *rows_for(tiny[0]))


def test_padding_token_inside_of_a_text(tiny):
    # a user may write "<pad>": RoBERTa and MPNet do not count it as a position
    tokens, lengths = rows_for(tiny[0])
    assert_same_layers(*tiny, tokens.at[0, 3:5].set(tiny[0].config.pad_token_id), lengths)


def test_the_longest_row(tiny):
    import torch

    model, loaded = tiny
    longest = loaded.config.max_positions
    assert longest == model.config.max_position_embeddings - loaded.config.first_position
    tokens = jnp.full((1, longest), 7, jnp.int32)
    assert_same_layers(model, loaded, tokens, jnp.asarray([longest], jnp.int32))
    if loaded.config.family in ROTARY:  # which have no table of positions
        return
    with pytest.raises((IndexError, RuntimeError)), torch.no_grad():
        model(input_ids=torch.full((1, longest + 1), 7))


def test_blocks_and_pooling(tiny):
    model, loaded = tiny
    tokens, lengths = rows_for(model)
    inputs = torch_rows(tokens, lengths)
    mask = inputs["attention_mask"][..., None].float()
    expected = ((model(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)).detach().numpy()
    config = replace(loaded.config, pooling="mean")
    ours = jax.jit(encode_in_blocks, static_argnums=(0, 4))(config, loaded.params, tokens, lengths, 300)
    np.testing.assert_allclose(ours, expected, atol=1e-5)


# What is pooled is no business of the family.
POOLED = [*((kind, "mean") for kind in MODELS), ("bert", "cls")]
OF_FAMILIES = [one for one in POOLED if "," not in one[0] and one[0] != "xlm-roberta"]  # that is roberta


@pytest.mark.parametrize(("tiny", "pooling"), slow_but(OF_FAMILIES, POOLED, []), indirect=["tiny"])
def test_gradient_of_every_tensor(tiny, pooling):
    import torch

    model, loaded = tiny
    tokens, lengths = rows_for(model)
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
    for row in weight_table(config):
        mine = ours
        for name in row.path:
            mine = mine[name]
        mine = np.asarray(mine).T if row.transposed else np.asarray(mine)
        expected = theirs[row.name].numpy()
        expected = expected if row.part is None else np.split(expected, row.part[1])[row.part[0]]
        np.testing.assert_allclose(mine, expected, atol=1e-5, rtol=1e-5, err_msg=row.name)


def test_saved_folder_loads_in_transformers(tiny, tmp_path):
    """What we write has every tensor that transformers asks for, bit for bit, and nothing else."""
    model, loaded = tiny
    save_encoder(tmp_path, loaded.config, loaded.params, loaded.tokenizer, pooler=loaded.pooler)
    again, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert again.config.architectures == [type(model).__name__]
    expected = model.state_dict()
    for name, tensor in again.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), expected[name].numpy(), err_msg=name)


def test_every_distance_falls_in_the_bucket_of_mpnet():
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    place = torch.arange(600)
    expected = MPNetEncoder.relative_position_bucket(place[None, :] - place[:, None])
    np.testing.assert_array_equal(relative_buckets(600), expected.numpy())
