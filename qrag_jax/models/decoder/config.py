"""Shape and family of a decoder (a causal language model)."""

from dataclasses import dataclass, field
from typing import Literal

from qrag_jax.models.weights.config_limits import size_problem
from qrag_jax.types import InputError, check_fields

DecoderFamily = Literal["llama", "qwen2", "qwen3"]
RopeKind = Literal["default", "linear", "yarn", "llama3"]


@dataclass(frozen=True)
class RopeScaling:
    """How rotary positions are stretched beyond the length that a model was first trained on.

    Attributes:
        kind: "default" is none.
        factor: of the stretch, above or at 1.
        original_max_positions: the length before the stretch; of yarn and llama3.
        low_freq_factor, high_freq_factor: of llama3: wavelengths longer than original / low are stretched in full,
            those shorter than original / high not at all.
        beta_fast, beta_slow: of yarn: rotations over the original length above which a frequency is kept, below which
            it is stretched in full.
        attention_factor: of yarn: what cosines and sines are multiplied by; None is 0.1 ln(factor) + 1.
        truncate: of yarn: the borders of the ramp are rounded to whole dimensions.
    """

    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        check_fields(self, "rope scaling", positive=("factor",), error=InputError)
        if self.kind in ("yarn", "llama3") and not self.original_max_positions:
            raise InputError(f"rope scaling {self.kind}: original_max_position_embeddings is needed")
        if self.kind == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor:
            raise InputError(
                f"rope scaling llama3: low_freq_factor {self.low_freq_factor} must be positive and below "
                f"high_freq_factor {self.high_freq_factor}"
            )


@dataclass(frozen=True)
class DecoderConfig:
    """Everything that fixes the shape and the arithmetic of a decoder.

    Attributes:
        num_kv_heads: heads of keys and values; each serves num_heads / num_kv_heads query heads.
        head_dim: size of a head; Qwen3's is not hidden_size / num_heads.
        max_positions: most tokens of prompt and answer together.
        norm_eps: of RMSNorm.
        rope_theta: base of the rotary frequencies.
        tie_embeddings: the output layer is the transposed embedding table.
        qkv_bias, output_bias, mlp_bias: which projections have one (Qwen2: q, k and v).
        qk_norm: RMSNorm over each head of queries and keys, before the rotation (Qwen3).
    """

    family: DecoderFamily
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
        sizes = (*sizes, "head_dim", "max_positions")
        check_fields(self, positive=sizes, within={"norm_eps": "(0, inf]", "rope_theta": "(0, inf]"}, error=InputError)
        for name in sizes:
            if problem := size_problem(name, getattr(self, name)):
                raise InputError(problem)
        if self.num_heads % self.num_kv_heads:
            raise InputError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise InputError(f"head_dim {self.head_dim}: rotary positions need an even size")
