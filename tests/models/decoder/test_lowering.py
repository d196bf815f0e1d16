"""Programs for accelerators are made on this machine, and none calls the host."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest
from support.decoders import decoder_config

from qrag_jax.models.decoder.network import init_params, token_logprobs
from qrag_jax.models.decoder.rollout import generate_groups, read_prompts
from qrag_jax.models.decoder.steps import Draws, Rows, Written, write_block
from qrag_jax.types import Sampling

CONFIG = decoder_config("qwen3", head_dim=8)
PARAMS = jax.eval_shape(partial(init_params, CONFIG), jax.random.key(0))
HOST = ("callback", "infeed", "outfeed", "host_compute", "stablehlo.send", "stablehlo.recv")
DRAWS = jax.tree.map(jnp.float32, Draws.of(Sampling(temperature=1.0)))
OPTIMISER = optax.adamw(1e-3)


def of(*shape, dtype="int32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def update(params, state, tokens, segments):
    gradient = jax.grad(lambda p: -token_logprobs(p, tokens, segments, config=CONFIG, dtype="bfloat16").mean())(params)
    changes, state = OPTIMISER.update(gradient, state, params)
    return optax.apply_updates(params, changes), state


def write(params, tokens, lengths, hashes):
    logits, cache = read_prompts(params, tokens, lengths, config=CONFIG, slots=64, dtype="bfloat16")
    rows = Rows(jnp.int32(32), lengths, hashes, lengths, DRAWS)
    return write_block(CONFIG, "bfloat16", (3,), params, Written(cache, logits, jnp.int32(0)), rows, lengths > 0, None)


PROGRAMS = {
    "update": (update, PARAMS, jax.eval_shape(OPTIMISER.init, PARAMS), of(2, 600), of(2, 600)),
    "read": (partial(read_prompts, config=CONFIG, dtype="bfloat16"), PARAMS, of(2, 32), of(2)),
    "write": (write, PARAMS, of(2, 32), of(2), of(2, 2, dtype="uint32")),
    "groups": (
        partial(generate_groups, config=CONFIG, max_tokens=8, end_ids=(3,)),
        *(PARAMS, of(2, 32), of(2), of(2, 4, dtype="uint32")),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_for_accelerators_call_no_host(name):
    function, *shapes = PROGRAMS[name]
    traced = jax.jit(function).trace(*shapes)
    for platform in ("cuda", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.while" in text and "dot_general" in text
        assert not [word for word in HOST if word in text]


def test_a_call_to_the_host_is_refused():
    def loud(x):
        jax.debug.print("{x}", x=x)
        return x

    traced = jax.jit(loud).trace(1.0)
    for platform in ("cuda", "tpu"):
        with pytest.raises(ValueError, match="different from the lowering platform"):
            traced.lower(lowering_platforms=(platform,))
