"""A small model of every family, by the names that transformers gives its tensors: written without our table."""

from dataclasses import replace

import numpy as np

from qrag_jax.models.encoder.config import EncoderConfig
from support.encoders import NUM_TYPES

CONFIG = EncoderConfig(
    vocab_size=10, hidden_size=4, num_layers=2, num_heads=2, intermediate_size=6, max_positions=7, activation="gelu"
)
DENSE = {
    "attention.self.query": (4, 4),
    "attention.self.key": (4, 4),
    "attention.self.value": (4, 4),
    "attention.output.dense": (4, 4),
    "intermediate.dense": (6, 4),
    "output.dense": (4, 6),
}
SHAPES = {
    "embeddings.word_embeddings.weight": (10, 4),
    "embeddings.position_embeddings.weight": (7, 4),
    "embeddings.token_type_embeddings.weight": (2, 4),
    "embeddings.LayerNorm.weight": (4,),
    "embeddings.LayerNorm.bias": (4,),
}
for _layer in range(2):
    for _name, _shape in DENSE.items():
        SHAPES[f"encoder.layer.{_layer}.{_name}.weight"] = _shape
        SHAPES[f"encoder.layer.{_layer}.{_name}.bias"] = _shape[:1]
    for _name in ("attention.output.LayerNorm", "output.LayerNorm"):
        SHAPES[f"encoder.layer.{_layer}.{_name}.weight"] = (4,)
        SHAPES[f"encoder.layer.{_layer}.{_name}.bias"] = (4,)


def shapes_of(family):
    """The tensors of a small model by the names of transformers, from the BERT ones."""
    if family == "bert":
        return dict(SHAPES)
    shapes = SHAPES | {"embeddings.position_embeddings.weight": (9, 4)}  # two unused rows, then the 7 of max_positions
    if family != "mpnet":
        return shapes | {"embeddings.token_type_embeddings.weight": (1, 4)}
    del shapes["embeddings.token_type_embeddings.weight"]
    theirs = {"self.query": "attn.q", "self.key": "attn.k", "self.value": "attn.v", "output.dense": "attn.o"}
    theirs = {f"attention.{name}": f"attention.{other}" for name, other in theirs.items()}
    theirs["attention.output.LayerNorm"] = "attention.LayerNorm"
    for name in list(shapes):
        for old, new in theirs.items():
            if f".{old}." in name:
                shapes[name.replace(old, new)] = shapes.pop(name)
    return shapes | {"encoder.relative_attention_bias.weight": (32, 2)}


def config_of(family):
    return replace(CONFIG, family=family, type_vocab_size=NUM_TYPES[family])


def tensors_of(family):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes_of(family).items()}
