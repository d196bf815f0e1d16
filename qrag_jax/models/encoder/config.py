"""The shape of a text encoder: sizes, family, activation, pooling."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple, get_args

from qrag_jax.models.weights.config_limits import size_problem
from qrag_jax.types import UsageError, check_fields

# As `model_type` in config.json.
Family = Literal["bert", "roberta", "xlm-roberta", "mpnet", "nomic_bert", "modernbert", "qwen3"]
Pooling = Literal["mean", "cls", "last"]
Activation = Literal["gelu", "gelu_tanh", "silu"]
ComputeDtype = Literal["float32", "bfloat16"]

FAMILIES: tuple[Family, ...] = get_args(Family)
ROTARY = ("nomic_bert", "modernbert", "qwen3")
NUM_BUCKETS = 32  # of relative distance, of MPNet
_MPNET_PADDING_ID = 1  # fixed in that model, whatever its config.json says
_ADDED = 13  # fields before these are in every fingerprint, later ones only where they are set


class LayerKind(NamedTuple):
    """How a layer differs from others of its encoder.

    Attributes:
        is_normed: its attention has a norm of its own; ModernBERT's first layer has none.
        is_local: a token attends to its neighbours only.
    """

    is_normed: bool = True
    is_local: bool = False


@dataclass(frozen=True)
class Prompts:
    """Texts that are put before questions and before documents; models are trained with them, or without any."""

    query: str = ""
    document: str = ""


NO_PROMPTS = Prompts()


@dataclass(frozen=True)
class EncoderConfig:
    """Shape of an encoder and how its token vectors become one vector.

    The families are transformers that differ in their input, their attention, and where they normalise:

    - `bert`: positions 0, 1, 2, ..; token types; norms after each part, biases, as in the next three.
    - `roberta`, `xlm-roberta`: positions count from `padding_id + 1`; token types. Both are the same network, the name
      is kept for the files.
    - `mpnet`: positions as in `roberta`, no token types, and one learned bias a head and bucket of relative distance on
      the attention logits of all layers.
    - `nomic_bert`: rotary positions, token types, a gated feed-forward part, norms after each part, no other biases.
    - `modernbert`: rotary positions, a gated part, norms before each part, no biases; a token of most layers attends to
      `local_window` tokens on either side only.
    - `qwen3`: a decoder read as an encoder (Qwen3-Embedding): causal attention with grouped keys, RMSNorm before each
      part and on queries and keys, rotary positions, a gated part, no biases.

    `activation` is part of the weights' meaning: "gelu" is the exact one of HF `gelu`, "gelu_tanh" its tanh
    approximation (HF `gelu_new`, `gelu_pytorch_tanh`), faster on CPU. `pooling` averages the valid tokens, special
    tokens included, or takes the first or the last; `normalize` divides the pooled vector by its L2 norm.

    Attributes:
        max_positions: tokens of the longest row that can be encoded: the largest window. The position table of
            `roberta`, `xlm-roberta` and `mpnet` has `first_position` rows more.
        type_vocab_size: kinds of token types; 0 for `mpnet`, `modernbert` and `qwen3`, which have none. Texts are of
            type 0; of a pair of texts the second is of type 1.
        padding_id: id that `roberta`, `xlm-roberta` and `mpnet` skip when they count positions; others ignore it.
        num_kv_heads: heads of keys and values of `qwen3`; 0 is `num_heads`.
        head_dim: components of a head of `qwen3`; 0 is `hidden_size / num_heads`.
        rope_theta, local_rope_theta: bases of the rotary frequencies, of local layers the second; 0 without them.
        local_window: tokens on either side that a token of a local layer attends to; 0 without such layers.
        global_every: of `modernbert`: layers 0, n, 2n, .. are global, the others local.
        dim: components of the pooled vector that are kept, the first ones (Matryoshka); 0 is all.
        projection: components of a token's vector after a linear map (ColBERT, `colbert.py`); 0 without it.
    """

    vocab_size: int
    hidden_size: int = 384
    num_layers: int = 6
    num_heads: int = 12
    intermediate_size: int = 1536
    max_positions: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    activation: Activation = "gelu"
    pooling: Pooling = "mean"
    normalize: bool = False
    family: Family = "bert"
    padding_id: int = 1
    num_kv_heads: int = 0
    head_dim: int = 0
    rope_theta: float = 0.0
    local_rope_theta: float = 0.0
    local_window: int = 0
    global_every: int = 1
    dim: int = 0
    projection: int = 0

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions")
        check_fields(self, "encoder", positive=sizes)
        for name in sizes:
            if problem := size_problem(name, getattr(self, name)):
                raise UsageError(f"encoder {problem}")
        if self.head_dim == 0 and self.hidden_size % self.num_heads:
            raise UsageError(f"encoder hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        for name, choices in (("activation", Activation), ("pooling", Pooling), ("family", Family)):
            if (value := getattr(self, name)) not in get_args(choices):
                raise UsageError(f"encoder {name} {value!r}: choose one of {', '.join(get_args(choices))}")
        self._check_family()
        if problem := size_problem("projection", self.projection):
            raise UsageError(f"encoder {problem}")
        if not 0 <= self.dim <= self.token_size:
            raise UsageError(f"choose 1 to {self.token_size}, the components of a vector", field="dim", value=self.dim)

    def _check_family(self) -> None:
        if self.has_types != (self.type_vocab_size > 0):
            kinds = "at least one token type" if self.has_types else "no token types, set 0"
            raise UsageError(f"encoder type_vocab_size {self.type_vocab_size}: {self.family} has {kinds}")
        if self.family == "mpnet" and self.padding_id != _MPNET_PADDING_ID:
            raise UsageError(f"encoder padding_id {self.padding_id}: mpnet counts positions from {_MPNET_PADDING_ID}")
        if self.padding_id < 0:
            raise UsageError(f"encoder padding_id {self.padding_id}: an id is not negative")
        if self.family in ROTARY:
            check_fields(self, "encoder", positive=("rope_theta", "global_every"))
            if self.head_size % 2:
                raise UsageError(f"encoder head_dim {self.head_size}: rotary positions need an even size")
        if self.num_heads % self.num_key_heads:
            raise UsageError(
                f"encoder num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )

    @property
    def has_types(self) -> bool:
        """True if tokens have types."""
        return self.family not in ("mpnet", "modernbert", "qwen3")

    @property
    def has_pooler(self) -> bool:
        """True if files of the family have a pooler head, which no vector of ours depends on."""
        return self.family not in ROTARY

    @property
    def norms_first(self) -> bool:
        """True if each part normalises its input, with one norm more at the end; else its sum with the input."""
        return self.family in ("modernbert", "qwen3")

    @property
    def head_size(self) -> int:
        """Components of a head."""
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def num_key_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_kv_heads or self.num_heads

    @property
    def output_size(self) -> int:
        """Components of the pooled vector."""
        return self.dim or self.token_size

    @property
    def token_size(self) -> int:
        """Components of a token's vector."""
        return self.projection or self.hidden_size

    @property
    def first_position(self) -> int:
        """Row of the position table that a row's first token reads; 0 without such a table too."""
        return self.padding_id + 1 if self.family in ("roberta", "xlm-roberta", "mpnet") else 0

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kind of every layer."""
        return tuple(
            LayerKind(
                is_normed=self.family != "modernbert" or number > 0,
                is_local=self.local_window > 0 and number % self.global_every > 0,
            )
            for number in range(self.num_layers)
        )

    @property
    def identity(self) -> dict[str, Any]:
        """The fields as plain values; those that later versions added only where they are set, so that fingerprints
        stay.
        """
        added = {field.name: field.default for field in fields(self)[_ADDED:]}
        return {name: value for name, value in asdict(self).items() if name not in added or value != added[name]}
