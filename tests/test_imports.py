"""What importing costs: no jax for the host side and the command line's parser, no back end for anything."""

import ast
import importlib
import importlib.util
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.syntax import syntax_tree
from support.tiers import PATIENCE

import qrag_jax
from qrag_jax.models.encoder.sources import PACKAGE_MODULE, is_installed

# Packages and modules that must work, and answer fast, where jax is not wanted. A package stands for all in it.
JAX_FREE = [
    "qrag_jax",
    "qrag_jax.chunking",
    "qrag_jax.cli",
    "qrag_jax.cli.main",
    "qrag_jax.files.user_cache",
    "qrag_jax.cli.ask",
    "qrag_jax.cli.find",
    "qrag_jax.config",
    "qrag_jax.data",
    "qrag_jax.measures.aggregate",
    "qrag_jax.measures.facts",
    "qrag_jax.eval.retrieval.report",
    "qrag_jax.files.manifest",
    "qrag_jax.search.answer",
    "qrag_jax.service",
    "qrag_jax.service.chunking",
    "qrag_jax.service.headed",
    "qrag_jax.service.indexing",
    "qrag_jax.service.notes",
    "qrag_jax.index.corpus_folder",
    "qrag_jax.index.index",
    "qrag_jax.index.methods",
    "qrag_jax.models.encoder.embedder",
    "qrag_jax.service.search",
    "qrag_jax.files.strict_yaml",
    "qrag_jax.service",
    "qrag_jax.types",
]
WITH_ALL_MODULES = ("qrag_jax.chunking", "qrag_jax.data")

JAX = {"jax", "jaxlib", "flax", "optax", "orbax", "chex", "torch"}


def all_modules() -> list[str]:
    return sorted(m.name for m in pkgutil.walk_packages(qrag_jax.__path__, "qrag_jax.", onerror=None))


def jax_free_modules() -> list[str]:
    there = [name for name in JAX_FREE if name == "qrag_jax" or _spec(name)]
    return there + [m for m in all_modules() if m.startswith(tuple(f"{p}." for p in WITH_ALL_MODULES))]


def _spec(name: str) -> bool:
    parent = name.rpartition(".")[0]
    return (not parent or parent == "qrag_jax" or _spec(parent)) and importlib.util.find_spec(name) is not None


# A new process imports more and more, and notes after each stage what is loaded: what a stage must not load, no stage
# before it may have loaded either. The last of them take seconds, which one process pays once.
STAGES = """
import importlib, json, sys
import numpy as np

loaded = {}

def note(stage, *names):
    for name in names:
        importlib.import_module(name)
    loaded[stage] = sorted(sys.modules)

folder, argvs, host_side, all_modules = json.loads(sys.argv[1])
note("package", "qrag_jax")
sys.modules["qrag_jax"].Document
note("a public name")
note("hub", "qrag_jax.hub")
note("bm25", "qrag_jax.search.bm25")
from qrag_jax.cli.main import main, parse
parse(["study", "x.yaml"])
note("parsing of a study")
from qrag_jax.eval import setting
from qrag_jax.eval.retrieval import protocols, records, report, stopping, stopping_report
note("analysis")
for argv in argvs:
    try:
        main(argv)
    except SystemExit as done:
        assert done.code == 0
    note("help: " + " ".join(argv))
note("host side", *host_side)
of = setting.Setting(method="bm25", mode="latent", positions="none", seed=0, num_chunks=9)
report.plot_rows(folder + "/rows.png", [records.Row("t", of, 1.0, .5, .5, .4, .6, 9, 1.0, .8, 0)])
gold, chosen = np.eye(4, dtype=bool)[[0, 1]], np.array([[0, 1], [2, 1]])
found = stopping.analyse(chosen, np.array([[.9, .1], [.3, .6]]), gold, np.array([4, 4]))
stopping_report.plot_stopping(folder + "/stopping.png", found, title="stopping")
note("plots")
note("all", *all_modules)
import jax
from jax._src import xla_bridge
back_ends = [len(xla_bridge._backends)]
jax.devices()
back_ends.append(len(xla_bridge._backends))
from qrag_jax.models.encoder.sources import is_installed
from qrag_jax.models.encoder.weights import load_encoder
if is_installed():
    load_encoder("minilm")
note("minilm")
print(json.dumps([loaded, back_ends]))
"""
HELP = [["--version"], ["--help"], *([verb, "--help"] for verb in ("chunk", "demo", "train", "eval", "find"))]


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """(stage -> modules that are loaded after it, back ends before and after one was asked for, standard error)."""
    folder = tmp_path_factory.mktemp("plots")
    given = json.dumps([str(folder), HELP, jax_free_modules(), all_modules()])
    done = subprocess.run([sys.executable, "-c", STAGES, given], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {"rows.png", "stopping.png"}
    loaded, back_ends = json.loads(done.stdout.splitlines()[-1])
    return {stage: set(names) for stage, names in loaded.items()}, back_ends, done.stderr


@pytest.fixture
def loaded(imported):
    return imported[0]


def test_host_side_modules_import_no_jax(loaded):
    assert {"qrag_jax.config", "qrag_jax.cli.main", "qrag_jax.types"} <= set(jax_free_modules()) <= loaded["host side"]
    assert not loaded["host side"] & JAX


def test_a_search_of_files_imports_no_scipy(loaded):
    assert "qrag_jax.cli.find" in loaded["host side"] and "scipy" not in loaded["host side"]


def test_help_imports_no_jax(loaded):
    """The first of them that loads it is the one to look at."""
    stages = [stage for stage in loaded if stage.startswith("help: ")]
    assert len(stages) == len(HELP) and [stage for stage in stages if loaded[stage] & JAX] == []


def test_no_import_initialises_a_back_end(imported):
    loaded, (before, after), _ = imported
    assert set(all_modules()) <= loaded["all"] and before == 0
    assert after > 0  # where back ends are looked for is still the place


def test_public_names_load_lazily(loaded):
    assert not [name for name in loaded["package"] if name.startswith("qrag_jax.")]
    assert "qrag_jax.types" in loaded["a public name"] and "jax" not in loaded["a public name"]


@pytest.mark.parametrize(
    ("stage", "absent"),
    [
        ("hub", {"huggingface_hub"}),
        ("bm25", {"bm25s"}),
        ("parsing of a study", set()),
        ("analysis", {"matplotlib"}),
        ("plots", {"matplotlib.pyplot"}),  # which would look for a display
    ],
)
def test_what_needs_neither_jax_nor_what_is_heavy_imports_neither(loaded, stage, absent):
    assert loaded[stage] & (JAX | absent) == set()


@pytest.mark.skipif(not is_installed(), reason="embedded MiniLM is not installed")
def test_embedded_package_and_torch_are_never_imported(imported):
    loaded, _, said = imported
    assert loaded["minilm"] & {"torch", "transformers", PACKAGE_MODULE} == set()
    assert "PyTorch" not in said


PACKAGES = [
    "qrag_jax",
    *(f"qrag_jax.{path.parent.name}" for path in sorted(Path(qrag_jax.__file__).parent.glob("*/__init__.pyi"))),
]


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_those_of_the_stub(name):
    """Names that load on first use are written once, in the stub that type checkers read too."""
    package = importlib.import_module(name)
    stub = syntax_tree(Path(package.__file__).with_suffix(".pyi").read_text())
    homes = {alias.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(homes) == sorted(package.__all__) and set(homes) <= set(dir(package))
    for public, home in homes.items():
        value = getattr(package, public)
        assert value is getattr(importlib.import_module(f"{name}.{home}"), public)
        assert not isinstance(value, type(ast)), f"{public} is a module: a name and a module must not clash"
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("importlinter") is None, reason="import-linter is not installed")
def test_layers():
    root = Path(__file__).parent.parent
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=root, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
