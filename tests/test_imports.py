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
from tiers import PATIENCE

import qrag_jax

# Packages and modules that must work, and answer fast, where jax is not wanted. A package stands for all in it.
JAX_FREE = [
    "qrag_jax",
    "qrag_jax.chunking",
    "qrag_jax.cli",
    "qrag_jax.cli.main",
    "qrag_jax.config",
    "qrag_jax.data",
    "qrag_jax.eval.measures.aggregate",
    "qrag_jax.eval.measures.facts",
    "qrag_jax.eval.picks.report",
    "qrag_jax.files.manifest",
    "qrag_jax.pipeline",
    "qrag_jax.retrieval.corpus.store",
    "qrag_jax.retrieval.methods",
    "qrag_jax.files.strict_yaml",
    "qrag_jax.types",
]
WITH_ALL_MODULES = ("qrag_jax.chunking", "qrag_jax.data")

JAX = {"jax", "jaxlib", "flax", "optax", "orbax", "chex", "torch"}


def run(code: str, *argv: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def all_modules() -> list[str]:
    return sorted(m.name for m in pkgutil.walk_packages(qrag_jax.__path__, "qrag_jax.", onerror=None))


def jax_free_modules() -> list[str]:
    there = [name for name in JAX_FREE if name == "qrag_jax" or _spec(name)]
    return there + [m for m in all_modules() if m.startswith(tuple(f"{p}." for p in WITH_ALL_MODULES))]


def _spec(name: str) -> bool:
    parent = name.rpartition(".")[0]
    return (not parent or parent == "qrag_jax" or _spec(parent)) and importlib.util.find_spec(name) is not None


IMPORT_AND_REPORT = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted({module.partition(".")[0] for module in sys.modules})))
"""


def test_host_side_modules_import_no_jax():
    names = jax_free_modules()
    assert {"qrag_jax.config", "qrag_jax.cli.main", "qrag_jax.types"} <= set(names)
    loaded = set(json.loads(run(IMPORT_AND_REPORT, json.dumps(names))))
    assert not loaded & JAX


def test_help_imports_no_jax():
    """All in one process, so the first of them that loads it is the one to look at."""
    code = """
import json, sys
from qrag_jax.cli.main import main
loaded = {}
for argv in json.loads(sys.argv[1]):
    try:
        main(argv)
    except SystemExit as done:
        assert done.code == 0
    loaded[" ".join(argv)] = sorted({module.partition(".")[0] for module in sys.modules})
print(json.dumps(loaded))
"""
    argvs = [["--version"], ["--help"], *([verb, "--help"] for verb in ("chunk", "demo", "train", "eval", "find"))]
    loaded = json.loads(run(code, json.dumps(argvs)).splitlines()[-1])
    assert len(loaded) == len(argvs) and not [words for words, modules in loaded.items() if set(modules) & JAX]


def test_no_import_initialises_a_back_end():
    code = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
import jax
from jax._src import xla_bridge
assert xla_bridge._backends == {}, xla_bridge._backends
jax.devices()
assert xla_bridge._backends != {}  # the attribute above is still the one to look at
"""
    run(code, json.dumps(all_modules()))


def test_public_names_load_lazily():
    code = """
import sys
import qrag_jax
assert not any(name.startswith("qrag_jax.") for name in sys.modules), sorted(sys.modules)
qrag_jax.Document
assert "qrag_jax.types" in sys.modules and "jax" not in sys.modules
"""
    run(code)


PACKAGES = [
    "qrag_jax",
    *(f"qrag_jax.{name}" for name in ("chunking", "data", "models", "llm", "retrieval", "train", "eval")),
]


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_those_of_the_stub(name):
    """Names that load on first use are written once, in the stub that type checkers read too."""
    package = importlib.import_module(name)
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text())
    homes = {alias.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(homes) == sorted(package.__all__) and set(homes) <= set(dir(package))
    for public, home in homes.items():
        value = getattr(package, public)
        assert value is getattr(importlib.import_module(f"{name}.{home}"), public)
        assert not isinstance(value, type(ast)), f"{public} is a module: a name and a module must not clash"
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing


def test_eight_devices():
    import jax

    assert len(jax.devices("cpu")) == 8


@pytest.mark.skipif(importlib.util.find_spec("importlinter") is None, reason="import-linter is not installed")
def test_layers():
    root = Path(__file__).parent.parent
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=root, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
