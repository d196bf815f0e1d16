"""What importing costs: no jax for the host side and the command line's parser, no back end for anything."""

import ast
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
    "qrag_jax.eval.aggregate",
    "qrag_jax.eval.facts",
    "qrag_jax.eval.report",
    "qrag_jax.manifest",
    "qrag_jax.pipeline",
    "qrag_jax.retrieval.corpus_store",
    "qrag_jax.retrieval.methods",
    "qrag_jax.strict_yaml",
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


def test_public_names():
    assert sorted(qrag_jax.__all__) == sorted([*qrag_jax._PUBLIC, "__version__"])
    for name, module in qrag_jax._PUBLIC.items():
        assert getattr(qrag_jax, name) is getattr(importlib.import_module(module), name)
    assert set(qrag_jax.__all__) <= set(dir(qrag_jax))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = qrag_jax.nothing


def test_the_names_for_type_checkers_are_the_lazy_ones():
    tree = ast.parse(Path(qrag_jax.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    shown = {alias.name: node.module for node in block.body for alias in node.names}
    assert shown == qrag_jax._PUBLIC


def test_eight_devices():
    import jax

    assert len(jax.devices("cpu")) == 8


@pytest.mark.skipif(importlib.util.find_spec("importlinter") is None, reason="import-linter is not installed")
def test_layers():
    root = Path(__file__).parent.parent
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=root, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
