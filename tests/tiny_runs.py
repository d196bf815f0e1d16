"""Tiny runs over texts that take updates of a millisecond: for tests of whole runs."""

import jax
import numpy as np
from tiny import LATENT

from qrag_jax.checkpoint import load_checkpoint, save_checkpoint
from qrag_jax.config import to_dict
from qrag_jax.models.encoder.text_encoder import Compute
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, new_retriever, retriever_files
from qrag_jax.qrag.tasks import examples_task
from qrag_jax.sharding import MeshConfig
from qrag_jax.train.log import read_lines
from qrag_jax.train.qrag.config import DataConfig, DevConfig, RunConfig
from qrag_jax.train.qrag.learner import LearnerConfig
from qrag_jax.types import Example

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


def save_run(folder, texts, num_steps=2):
    """A latent run as it was drawn, saved without training: its folder."""
    model = ModelConfig(encoder=SCRATCH, latent=LATENT)
    env = EnvConfig(num_steps=num_steps)
    retriever, _, _ = new_retriever(model, env, texts, jax.random.key(0))
    arrays = {"params": retriever.params, "constants": dict(retriever.constants)}
    save_checkpoint(folder, 0, arrays, to_dict(RunConfig(model=model, env=env)), retriever_files(retriever), {})
    return folder
