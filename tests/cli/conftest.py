"""Small runs for the tests of the verbs: a retriever as it was drawn, saved without training, in a second."""

import random
from types import SimpleNamespace

import pytest
from support.notes import write_diary_and_notes

from qrag_jax.cli.main import main

FACTS = (
    "Mary went to the kitchen.",
    "Mary picked up the milk there.",
    "John travelled to the garden.",
    "It rained all day long.",
    "Sandra journeyed to the office.",
    "John went back to the hallway.",
    "Where is the milk?",
)


@pytest.fixture(scope="session")
def save_untrained():
    """(folder, texts, env=..., mode=..., metadata=..., **encoder fields) -> the retriever that was saved there."""
    import jax

    from qrag_jax.checkpoint import save_checkpoint
    from qrag_jax.config import to_dict
    from qrag_jax.models.towers.latent import LatentConfig
    from qrag_jax.qrag.env import EnvConfig
    from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, new_retriever, retriever_files
    from qrag_jax.train.qrag.config import DataConfig, RunConfig

    latent = LatentConfig(width=8, num_layers=1, num_heads=2, action_hidden=8, dim=8)

    def save(folder, texts=FACTS, env=None, mode="latent", metadata=None, **encoder):
        env = env or EnvConfig(num_steps=3)
        spec = {"source": "scratch", "num_layers": 1, "hidden_size": 8, "num_heads": 2} | encoder
        model = ModelConfig(mode=mode, encoder=EncoderSpec(**spec), latent=latent)
        retriever, _, _ = new_retriever(model, env, texts, jax.random.key(0))
        arrays = {"params": retriever.params, "constants": dict(retriever.constants)}
        if "dev" in (metadata or {}):
            arrays["best_params"] = retriever.params
        data = DataConfig() if env.pool is None else DataConfig(task="corpus", stretch=1)
        config = to_dict(RunConfig(model=model, env=env, data=data))
        save_checkpoint(folder, 0, arrays, config, retriever_files(retriever), metadata)
        return retriever

    return save


@pytest.fixture(scope="session")
def run(tmp_path_factory, save_untrained):
    """The folder of a run, and its retriever."""
    folder = tmp_path_factory.mktemp("searched") / "run"
    return SimpleNamespace(folder=str(folder), retriever=save_untrained(folder))


@pytest.fixture
def command(capsys):
    """(arguments) -> (exit code, standard output, standard error) of `qrag`."""

    def run(*argv):
        code = main(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The paths of a file and a folder of notes, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return write_diary_and_notes(tmp_path)


@pytest.fixture(scope="session")
def haystack(tmp_path_factory):
    """A folder with six documents of 30 sentences each."""
    folder = tmp_path_factory.mktemp("haystack")
    words = "river stone cloud market window letter winter castle forest island music paper".split()
    rng = random.Random(0)
    for document in range(6):
        lines = [f"The {rng.choice(words)} of the {rng.choice(words)} is number {document} {i}." for i in range(30)]
        (folder / f"{document}.txt").write_text(" ".join(lines))
    return folder
