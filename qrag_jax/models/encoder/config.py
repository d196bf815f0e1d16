"""The shape of a text encoder: sizes, family, activation, pooling."""

from dataclasses import dataclass
from typing import Literal

from qrag_jax.models.weights.config_limits import size_problem
from qrag_jax.types import UsageError, check_fields

Family = Literal["bert", "roberta", "xlm-roberta", "mpnet"]  # as `model_type` in config.json
Pooling = Literal["mean", "cls"]
Activation = Literal["gelu", "gelu_tanh"]

FAMILIES: tuple[Family, ...] = ("bert", "roberta", "xlm-roberta", "mpnet")
_MPNET_PADDING_ID = 1  # fixed in that model, whatever its config.json says


@dataclass(frozen=True)
class EncoderConfig:
    """Shape of an encoder and how its token vectors become one vector.

    The families are post-norm transformers that differ in their input and in their attention:

    - `bert`: positions 0, 1, 2, ..; token types.
    - `roberta`, `xlm-roberta`: positions count from `padding_id + 1`; token types. Both are the same network, the name
      is kept for the files.
    - `mpnet`: positions as in `roberta`, no token types, and one learned bias a head and bucket of relative distance on
      the attention logits of all layers.

    `activation` is part of the weights' meaning: "gelu" is the exact one of HF `gelu`, "gelu_tanh" its tanh
    approximation (HF `gelu_new`, `gelu_pytorch_tanh`), faster on CPU. `pooling` averages the valid tokens, special
    tokens included, or takes the first; `normalize` divides the pooled vector by its L2 norm.

    Attributes:
        max_positions: tokens of the longest row that can be encoded: the largest window. The position table of all but
            `bert` has `first_position` rows more.
        type_vocab_size: kinds of token types; 0 for `mpnet`. All our tokens are of type 0.
        padding_id: id that all but `bert` skip when they count positions; `bert` ignores it.
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

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions")
        check_fields(self, "encoder", positive=sizes)
        for name in sizes:
            if problem := size_problem(name, getattr(self, name)):
                raise UsageError(f"encoder {problem}")
        if self.hidden_size % self.num_heads:
            raise UsageError(f"encoder hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.activation not in ("gelu", "gelu_tanh"):
            raise UsageError(f"encoder activation {self.activation!r}: choose gelu or gelu_tanh")
        if self.pooling not in ("mean", "cls"):
            raise UsageError(f"encoder pooling {self.pooling!r}: choose mean or cls")
        self._check_family()

    def _check_family(self) -> None:
        if self.family not in FAMILIES:
            raise UsageError(f"encoder family {self.family!r}: choose one of {', '.join(FAMILIES)}")
        if self.family == "mpnet" and self.type_vocab_size != 0:
            raise UsageError(f"encoder type_vocab_size {self.type_vocab_size}: mpnet has no token types, set 0")
        if self.family != "mpnet" and self.type_vocab_size < 1:
            raise UsageError(f"encoder type_vocab_size: {self.type_vocab_size} is not a positive number")
        if self.family == "mpnet" and self.padding_id != _MPNET_PADDING_ID:
            raise UsageError(f"encoder padding_id {self.padding_id}: mpnet counts positions from {_MPNET_PADDING_ID}")
        if self.padding_id < 0:
            raise UsageError(f"encoder padding_id {self.padding_id}: an id is not negative")

    @property
    def first_position(self) -> int:
        """Row of the position table that a row's first token reads."""
        return 0 if self.family == "bert" else self.padding_id + 1
