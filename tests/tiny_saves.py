"""Checkpoints of a few leaves and corpora of a few lines, for tests that damage them, kill saves, or let two meet."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from passages import lines_corpus

from qrag_jax.checkpoint import Checkpoint, save_checkpoint
from qrag_jax.index.corpus_folder import save_corpus
from qrag_jax.search.corpus import Corpus

FILES = {"tokenizer.json": "{}", "encoder/config.json": '{"hidden_size": 4}'}


def seeded_arrays(seed: int) -> dict:
    """Leaves of every kind that a run has; those of two seeds differ in every leaf. Nothing is compiled for them."""
    rng = np.random.default_rng(seed)
    kernel = jnp.asarray(rng.normal(size=(16, 8)), jnp.float32)
    return {
        "params": {"kernel": kernel, "half": jnp.asarray(rng.normal(size=3).astype(jnp.bfloat16))},
        "opt_state": {"mu": jnp.asarray(rng.normal(size=(16, 8)), jnp.float32), "count": np.int32(seed)},
        "key": jax.random.wrap_key_data(np.array([seed, seed], np.uint32)),
        "constants": {"mean": rng.normal(size=4), "empty": np.zeros((0, 2), np.float32)},
        "step": seed,
    }


def save_seeded(folder: Path, step: int, seed: int, keep: int | None = 3, arrays: dict | None = None) -> Path:
    """A step whose every part tells the seed."""
    arrays = seeded_arrays(seed) if arrays is None else arrays
    return save_checkpoint(folder, step, arrays, {"seed": seed}, FILES | {"seed": str(seed)}, {"seed": seed}, keep)


def leaf_bytes(arrays: dict) -> dict[str, tuple]:
    """Type, shape and bytes of every leaf by its path."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(dict(arrays)):
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        value = np.asarray(leaf)
        found[jax.tree_util.keystr(path)] = (str(value.dtype), value.shape, value.tobytes())
    return found


def assert_seeded(loaded: Checkpoint, seed: int) -> None:
    """What was loaded is all of one save, bit for bit."""
    assert leaf_bytes(loaded.arrays) == leaf_bytes(seeded_arrays(seed))
    assert (loaded.config, loaded.metadata, loaded.files["seed"]) == (
        {"seed": seed},
        {"seed": seed},
        str(seed).encode(),
    )
    assert set(loaded.files) == {*FILES, "seed"}


def seeded_corpus(seed: int) -> Corpus:
    return lines_corpus(*(f"text {seed} {number}\nits second line" for number in range(6)))


def save_seeded_corpus(folder: Path, seed: int) -> None:
    save_corpus(seeded_corpus(seed), folder)
