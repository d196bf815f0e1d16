"""Levels in an index: what is embedded again, what is kept of parents, what is refused."""

import random
import signal
from pathlib import Path

import numpy as np
import pytest
from support.indices import log_lines, write_notes
from support.level_indices import ONE, TWO, WAYS, build, build_and_die, check_fresh, loaded, rankings
from support.processes import ended, start

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.index.info import index_info
from qrag_jax.index.load import load_index
from qrag_jax.index.remove import remove_documents
from qrag_jax.index.settings import IndexSettings, ParentsSetting, read_settings
from qrag_jax.types import UsageError


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_notes("notes", one=ONE, two=TWO)


@pytest.mark.parametrize("name", WAYS)
def test_an_index_is_searched_as_its_documents_are(notes, name):
    build("i", notes, name=name)
    check_fresh(name)


def test_only_leaves_are_kept_of_best_child(notes):
    build("i", notes, name="best_child")
    build("j", notes, name="mean")
    corpus, other = load_index("i"), load_index("j")
    holds = np.setdiff1d(np.arange(len(corpus)), corpus.leaves)
    assert not corpus.vectors[holds].any() and other.vectors[holds].any()
    np.testing.assert_array_equal(corpus.vectors[corpus.leaves], other.vectors[other.leaves])
    infos = [index_info(folder, verify=True) for folder in "ij"]
    assert all(info.is_whole and info.dim == 8 for info in infos)
    assert sum(one.num_vectors for one in infos[0].documents) == len(corpus.leaves) < len(corpus)
    assert sum(one.num_vectors for one in infos[1].documents) == len(corpus)


def changed(name):
    """(embedded, reused) where one of the sentences of ONE has changed."""
    build("i", "notes", name=name)
    write_notes("notes", one=ONE.replace("Nobody saw him there.", "Nobody heard him."))
    changes = build("i", "notes", name=name, log="log")
    check_fresh(name)
    return changes.num_embedded, changes.num_reused


def test_a_changed_sentence_is_embedded_with_what_is_around_it(notes):
    """Its leaf; by windows also its paragraph, section and document. Other leaves and parents keep theirs."""
    assert changed("best_child") == (1, 6)
    assert log_lines("log") == ["'Nobody heard him.'"]


def test_of_means_only_the_leaf_is_embedded(notes):
    assert changed("mean") == (1, 6)


def test_of_windows_the_ancestors_are_too(notes):
    embedded, reused = changed("windows")
    corpus = load_index("i")
    texts = [text for node, text in enumerate(corpus.texts) if "Nobody heard him." in text]
    assert embedded == len(texts) == 4
    assert embedded + reused == len(corpus.nodes_of("notes/one.md"))


def test_a_vector_is_never_taken_for_one_that_was_made_in_another_way(tmp_path, monkeypatch):
    """`Mary has the key. It rained.` is a paragraph of two leaves in one file, a leaf of code in another."""
    monkeypatch.chdir(tmp_path)
    text = "Mary has the key. It rained."
    files = {"a": f"# A\n\nThe end came.\n\n{text}\n", "b": f"# B\n\n```\nx y\n{text}\n```\n\nThe end came.\n"}
    for name in WAYS:
        for order in ("ab", "ba"):
            folder = f"{name} {order}"
            for file in order:
                build(folder, write_notes(f"of {name} {order}", **{file: files[file]}), name=name)
            check_fresh(name, folder)
            corpus = load_index(folder)
            places = [node for node, said in enumerate(corpus.texts) if said == text]
            assert len(places) == 2 and len(np.intersect1d(places, corpus.leaves)) == 1


@pytest.mark.parametrize("name", WAYS)
def test_what_is_added_and_removed_leaves_the_same_ranking(notes, name):
    build("i", notes, name=name)
    before = rankings(loaded(name))
    more = write_notes("more", three=ONE + TWO)
    build("i", more, name=name, mirror=False)
    assert rankings(loaded(name)) != before
    remove_documents(Path("i"), ["more/three.md"])
    assert rankings(loaded(name)) == before


@pytest.mark.parametrize("name", WAYS)
def test_a_build_that_was_killed_goes_on_to_the_same_ranking(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    notes = write_notes("notes", **{f"n{number}": ONE.replace("key", f"key {number}") for number in range(6)})
    build("whole", notes, name=name)
    for number in sorted(random.Random(0).sample(range(1, 6), 2)):
        assert ended(start(build_and_die, "i", notes, name, number)) == -signal.SIGKILL
        assert len(load_index("i").documents) >= number - 1
    build("i", notes, name=name)
    assert rankings(loaded(name)) == rankings(loaded(name, "whole"))


def test_workers_come_to_the_same(notes):
    build("i", notes, name="windows")
    build("j", notes, name="windows", num_workers=1)
    assert rankings(loaded("windows", "i")) == rankings(loaded("windows", "j"))


def test_damage_is_mended_in_the_same_form(notes):
    build("i", notes, name="best_child")
    before = rankings(loaded("best_child"))
    path = Path("i/catalogue.sqlite")
    content = path.read_bytes()
    place = content.rindex(b"Sandra waits")
    path.write_bytes(content[:place] + b"s" + content[place + 1 :])
    assert build("i", notes, name="best_child").mended == ("notes/one.md",)
    assert rankings(loaded("best_child")) == before


def test_another_way_is_refused(notes):
    build("i", notes, name="mean")
    with pytest.raises(UsageError, match=r"made with strategy='levels' .* parents='mean', not with .*'best_child'"):
        build("i", notes, name="best_child")
    assert read_settings("i").parents == ParentsSetting("mean")


@pytest.mark.parametrize(
    ("name", "run", "message"),
    [
        ("median", "", "parents 'median': choose one of best_child, mean"),
        ("summary", "", "an index can change"),
        ("compressor", "", "only compressor takes a run"),
        ("mean", "runs/c", "only compressor takes a run"),
    ],
)
def test_ways_that_are_none(name, run, message):
    with pytest.raises(UsageError, match=message):
        ParentsSetting(name, run)


def test_parents_belong_to_levels():
    with pytest.raises(UsageError, match="has parents, but no levels"):
        IndexSettings(ChunkConfig(), "hashes", parents=ParentsSetting())
