"""Tiny training runs and checkpoints, for tests that stop, resume, damage or compare them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from qrag_jax.config import to_dict
from qrag_jax.index.corpus_folder import save_corpus
from qrag_jax.models.encoder.text_encoder import Compute
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, new_retriever, retriever_files
from qrag_jax.qrag.tasks import examples_task
from qrag_jax.search.corpus import Corpus
from qrag_jax.sharding import MeshConfig
from qrag_jax.train.log import read_lines
from qrag_jax.train.qrag.config import DataConfig, DevConfig, RunConfig
from qrag_jax.train.qrag.learner import LearnerConfig
from qrag_jax.types import Example
from support.networks import LATENT
from support.passages import lines_corpus

NUM_UPDATES = 7
SCRATCH = EncoderSpec("scratch", num_layers=1, window=8, question_window=6, hidden_size=8, num_heads=2)


def make_task(size=10, word="cat", gold=(0, 2)):
    """Ten questions over contexts of different size: an update of four ends inside an epoch."""
    names = [f"{a} {word}{b}" for a in ("old", "new", "red") for b in range(6)]
    return examples_task(
        "texts",
        [
            Example(f"q{i}", f"where is {names[i]}", tuple(f"the {n} is" for n in names[i : i + 4 + i % 3]), gold)
            for i in range(size)
        ],
    )


def make_config(mode="text", dtype="float32", devices=1, fsdp=1, accumulate=2, num_steps=2, **options):
    model = ModelConfig(mode=mode, encoder=SCRATCH, latent=LATENT, state_chunk_window=6, compute=Compute(dtype))
    size = max(4, 2 * devices * fsdp)
    fixed = {
        "num_updates": NUM_UPDATES,
        "log_every": 2,
        "save_every": 2,
        "env": EnvConfig(num_steps=num_steps, fact_reward=0.1),
        "data": DataConfig(task="jsonl", paths=("given",), batch_size=size, stretch=3.0),
        "dev": DevConfig(share=0.2, every=3),
        "model": model,
        "mesh": MeshConfig(devices, fsdp),
        "learner": LearnerConfig(accumulate=accumulate),
    }
    return RunConfig(**(fixed | options))


def after(number):
    """A `stop` that says True when it is asked for the given time."""
    asked = []

    def stop():
        asked.append(1)
        return len(asked) >= number

    return stop


def leaves(folder):
    """Every leaf of the newest checkpoint as bytes, by its path."""
    saved = load_checkpoint(folder)
    arrays = saved.arrays | {"key": jax.random.key_data(saved.arrays["key"])}
    flat = jax.tree_util.tree_leaves_with_path(arrays)
    return saved.step, {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in flat}, saved.metadata


def same_run(one, other):
    """Two run folders hold the same to the bit, but for times."""
    assert leaves(one) == leaves(other)
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    steps = [[line["step"] for line in read_lines(run / "times.jsonl")] for run in (one, other)]
    assert steps[0] == steps[1]


def save_run(folder, texts, num_steps=2, encoder=SCRATCH):
    """A latent run as it was drawn, saved without training: its folder."""
    model = ModelConfig(encoder=encoder, latent=LATENT)
    env = EnvConfig(num_steps=num_steps)
    retriever, _, _ = new_retriever(model, env, texts, jax.random.key(0))
    arrays = {"params": retriever.params, "constants": dict(retriever.constants)}
    save_checkpoint(folder, 0, arrays, to_dict(RunConfig(model=model, env=env)), retriever_files(retriever), {})
    return folder


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
