"""Registries: each name once, each thing found by its name, and what is refused."""

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.tiers import PATIENCE

from qrag_jax import names
from qrag_jax.chunking.strategies.kind import ChunkerKind
from qrag_jax.cli import train_kinds
from qrag_jax.cli.parser import Parser, load_verb, read
from qrag_jax.documents.kinds import FileKind
from qrag_jax.errors import UsageError
from qrag_jax.eval.study.records import Page
from qrag_jax.registry import Entry, Registry
from qrag_jax.train.kind import LearnerKind

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture
def registry():
    return Registry(
        "number",
        [Entry("pi", "math:pi", "a circle by its width"), Entry("tau", "math:tau", "a turn", frozenset({"turns"}))],
    )


def test_a_thing_is_imported_when_it_is_asked_for(registry):
    assert registry.load("pi") == pytest.approx(3.14159, abs=1e-5)
    assert (registry.names, list(registry), len(registry)) == (("pi", "tau"), ["pi", "tau"], 2)
    assert registry.help() == "  pi   a circle by its width\n  tau  a turn\n"
    registry.add(Entry("lost", "math:lost"))
    with pytest.raises(AttributeError):
        registry.load("lost")


def test_tags_choose_names(registry):
    assert registry.choices() == registry.names
    assert (registry.choices("turns"), registry.choices(without="turns")) == (("tau",), ("pi",))
    assert registry.choices("turns", without="turns") == registry.choices("turns", "flies") == ()


def test_a_name_of_nothing_and_one_that_is_taken_are_refused(registry):
    with pytest.raises(UsageError) as refused:
        registry.load("tua")
    assert (refused.value.field, refused.value.value, refused.value.remedy) == ("number", "tua", "did you mean tau?")
    with pytest.raises(UsageError) as refused:
        registry.add(Entry("pi", "cmath:pi"))
    assert (refused.value.field, refused.value.value) == ("number", "pi") and registry["pi"].target == "math:pi"
    with pytest.raises(UsageError):
        Registry("number", [Entry("e", "math:e"), Entry("e", "cmath:e")])


# Each registry: what a thing of it is, and the page whose table names those that can be seen there.
ALL = {
    "chunkers": (
        names.CHUNKERS, lambda thing: isinstance(thing, ChunkerKind), "reference/chunking.md", names.CHUNKERS.names,
    ),
    "boundaries": (names.BOUNDARY_SOURCES, callable, "how_to/sections.md", names.BOUNDARY_SOURCES.choices("tree")),
    "note readers": (names.NOTE_READERS, callable, "how_to/notes.md", ()),
    "file readers": (
        names.FILE_READERS, lambda thing: isinstance(thing, FileKind), "how_to/read_documents.md",
        names.FILE_READERS.names,
    ),
    "llms": (names.LLMS, callable, "how_to/answers.md", names.LLMS.names),
    "learners": (
        names.LEARNERS, lambda thing: isinstance(thing, LearnerKind), "reference/training.md", names.LEARNERS.names,
    ),
    "rewards": (names.REWARDS, callable, "reference/training.md", names.REWARDS.names),
    "decoder rewards": (names.DECODER_REWARDS, callable, "reference/training.md", names.DECODER_REWARDS.names),
    "stores": (names.STORES, callable, "how_to/keep_an_index.md", names.STORES.names),
    "tasks": (names.TASKS, callable, "reference/study.md", names.TASKS.names),
    "pages": (names.PAGES, lambda thing: isinstance(thing, Page), "reference/study.md", names.PAGES.names),
}  # fmt: skip
THINGS = [(kind, name) for kind, (registry, *_) in ALL.items() for name in registry]


@pytest.mark.parametrize(("kind", "name"), THINGS, ids=lambda one: one)
def test_each_thing_is_there_and_stands_in_the_docs(kind, name):
    registry, is_right, page, shown = ALL[kind]
    assert is_right(registry.load(name)) and registry[name].about
    first = [line.split("|")[1] for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    told = any(re.search(rf"[`.]{name}`", cell) for cell in first)
    assert told or name not in shown, f"docs/{page} has no row of {name}"


def test_tags_say_what_strategies_are():
    for name in names.CHUNKERS:
        kind = names.CHUNKERS.load(name)
        assert (kind.tree is not None) == (name in names.CHUNKERS.choices("tree"))
        assert hasattr(kind.config, "points") == (name in names.CHUNKERS.choices("points"))
        assert bool(kind.config and kind.levels(kind.config())) == (name in names.CHUNKERS.choices("levels"))


def test_one_that_is_added_is_found_by_config_and_flags():
    code = """
import sys
from qrag_jax import names
assert not {"numpy", "jax"} & set(sys.modules)  # parsers read it
names.CHUNKERS.add(names.Entry("mine", "qrag_jax.chunking.strategies.recursive:KIND", "as recursive"))
from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.cli.main import parse
from qrag_jax.config import load_config
from qrag_jax.types import Document
config = load_config(ChunkConfig, None, ["strategy=mine", "mine.num_tokens=1"])
chunks = make_chunker(config, lambda text: len(text.split()))(Document("a", "One. Two."))
print(len(chunks), parse(["chunk", "a.md", "--strategy", "mine"]).values["strategy"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "2 mine\n", done.stderr


def test_a_store_that_is_added_searches_an_index_and_another_may_take_its_place(tmp_path):
    (tmp_path / "far.py").write_text(
        "import numpy as np\n"
        "from qrag_jax.search.store import keys_of\n"
        "HELD = {}\n"
        "class Far:\n"
        "    def put(self, number, nodes, vectors, stamp):\n"
        "        HELD[number] = stamp, keys_of(number, nodes), vectors\n"
        "    def remove(self, numbers):\n"
        "        for number in numbers: del HELD[number]\n"
        "    def search(self, query, k, only=None, exclude=()):\n"
        "        keys, vectors = (np.concatenate(one) for one in list(zip(*HELD.values()))[1:])\n"
        "        return keys[[np.argmin(vectors @ query)]], np.array([(vectors @ query).min()])\n"
        "    def read(self, keys): raise NotImplementedError\n"
        "    def stamps(self): return {number: stamp for number, (stamp, *_) in HELD.items()}\n"
        "    def is_settled(self, mark): return False\n"
        "    def settle(self, mark): pass\n"
        "def far(place):\n"
        "    return Far()\n"
    )
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.txt").write_text(name)
    code = """
from dataclasses import replace
from pathlib import Path
from qrag_jax import names
names.STORES.add(names.Entry("far", "far:far", "the farthest alone", names.BESIDE))
from support.indices import SETTINGS, load_maker, update
from qrag_jax.cli.main import parse
from qrag_jax.index.load import load_index
from qrag_jax.index.settings import read_settings
from qrag_jax.search.hybrid import rank_dense
for store in ("sqlite", "far", "sqlite"):
    update("i", "one.txt", "two.txt", "three.txt", settings=replace(SETTINGS, store=store), keeps_notes=True)
    ranked = rank_dense("one", load_index("i"), load_maker().embed, 3)
    print(read_settings("i").store, ranked.ids.tolist())
print(parse(["index", "build", "i", "a.md", "--store", "far"]).values["store"])
"""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, DOCS.parent, DOCS.parent / "tests"))),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path, env=environment
    )
    assert done.stdout.splitlines() == [
        "sqlite [0, 2, 1]",
        "far [1]",
        "sqlite [0, 2, 1]",
        "far",
    ], done.stdout + done.stderr


@dataclass(frozen=True)
class _CountConfig:
    paths: tuple[str, ...] = ()
    seed: int = 0


def _count(config, out, watch):
    watch.report("count", 1, 1, {})
    out.mkdir(parents=True)
    return {"num_paths": len(config.paths)}


COUNTS = LearnerKind(_CountConfig, _count, lambda row: f"{row['run']}: {row['num_paths']} paths")


def test_a_learner_is_trained_by_its_config(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(train_kinds, "LEARNERS", Registry("learner", [Entry("count", f"{__name__}:COUNTS", "counts")]))
    monkeypatch.chdir(tmp_path)

    def train(*words):
        parser, values = read(words, "qrag train count", train_kinds.learner_verb("count"))
        code = parser.verb.run(argparse.Namespace(**values))
        return code, capsys.readouterr().out

    assert train("--dry_run", "seed=2") == (0, "paths: []\nseed: 2\n")
    assert train("--out", "run", "paths=[a, b]") == (0, "run: 2 paths\n") and (tmp_path / "run").is_dir()
    assert json.loads(train("--out", "run2", "--json", "paths=[a]")[1]) == {"run": "run2", "num_paths": 1}
    with pytest.raises(UsageError, match="sead"):
        train("--out", "run3", "sead=1")


@pytest.mark.parametrize(("verb", "registry"), [("chunk", names.CHUNKERS), ("boundaries", names.BOUNDARY_SOURCES)])
def test_the_whole_help_says_what_each_does(verb, registry):
    assert registry.help() in Parser(f"qrag {verb}", load_verb(verb)).format_help_all()
