"""Memory of the programs of a decoder, by its shapes alone: no weights are read.

    python -m benchmarks.language_models.lowering

Compiles an update's gradient, reading and group generation for the CPU of this machine, prints what XLA says they take
beside their arguments, and lowers each for `cuda` and `tpu`. Writes results/lowering.md.
"""

import argparse
from functools import partial
from pathlib import Path

import jax

from benchmarks.common import about, about_lines, grid
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.network import init_params, token_logprobs
from qrag_jax.models.decoder.rollout import generate_groups, read_prompts

RESULTS = Path(__file__).parent / "results" / "lowering.md"
SHAPES = {
    "SmolLM2-135M": DecoderConfig("llama", 49152, 576, 1536, 30, 9, 3, 64, 8192, tie_embeddings=True),
    "Qwen2.5-1.5B": DecoderConfig(
        "qwen2", 151936, 1536, 8960, 28, 12, 2, 128, 32768, rope_theta=1e6, tie_embeddings=True, qkv_bias=True
    ),
}
GIB = 2**30


def programs(config: DecoderConfig) -> dict:
    """(function, shapes of its arguments) by name."""
    params = jax.eval_shape(partial(init_params, config), jax.random.key(0))

    def of(*shape: int, dtype: str = "int32") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    def gradient(dtype, params, tokens, segments):
        return jax.grad(lambda p: -token_logprobs(p, tokens, segments, config=config, dtype=dtype).mean())(params)

    groups = partial(generate_groups, config=config, max_tokens=256, end_ids=(2,))
    rows = (params, of(4, 512), of(4), of(4, 4, dtype="uint32"))
    made = {
        f"gradient, {length:,} tokens": (partial(gradient, "float32"), params, of(1, length), of(1, length))
        for length in (2048, 8192)
    }
    made["gradient, 8,192 tokens, bfloat16"] = (partial(gradient, "bfloat16"), params, of(1, 8192), of(1, 8192))
    made["read a prompt of 8,192 tokens"] = (partial(read_prompts, config=config), params, of(1, 8192), of(1))
    made["4 prompts of 512 tokens, 4 answers of 256 each"] = (groups, *rows)
    return made


def measure(function, *shapes) -> tuple[list[float], bool]:
    """GiB of the program compiled here; True if those for accelerators call no host."""
    traced = jax.jit(function).trace(*shapes)
    memory = traced.lower().compile().memory_analysis()
    sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    texts = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cuda", "tpu")}
    return [size / GIB for size in (*sizes, sum(sizes))], all("callback" not in text for text in texts.values())


def main() -> None:
    """Measures and writes the page."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    heads = [
        "model",
        "program",
        "arguments, GiB",
        "results",
        "temporaries",
        "together",
        "cuda and tpu, no host callback",
    ]
    rows = []
    for model, config in SHAPES.items():
        for name, (function, *shapes) in programs(config).items():
            sizes, alone = measure(function, *shapes)
            shown = "lowered, no host callback" if alone else "CALLS THE HOST"
            rows.append([model, name, *(f"{size:.2f}" for size in sizes), shown])
            print(" | ".join(rows[-1]), flush=True)
    lines = ["# Memory of a decoder's programs", "", "`python -m benchmarks.language_models.lowering`", ""]
    lines += about_lines(about()) + grid(heads, rows)
    RESULTS.write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
