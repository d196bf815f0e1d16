import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.indices import SETTINGS, check_equal, fresh_corpus, log_lines, maker, merge_and_die, update, write_notes
from support.processes import ended, start

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.documents.read import find_files
from qrag_jax.index.load import load_index
from qrag_jax.index.shards import build_shard, merge_shards, shard_of
from qrag_jax.index.update import Plan
from qrag_jax.types import InputError, UsageError


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_notes("notes", **{f"n{number}": f"Line {number}." for number in range(9)})


def build(notes, shard, number=4, make=None, settings=SETTINGS):
    return build_shard(Path("i"), [notes], find_files(notes), settings, make or maker(), Plan(), shard, number)


def test_shards_make_the_same_index(notes):
    for shard in range(4):
        assert build(notes, shard) is not None
    assert merge_shards(Path("i")) == 9
    check_equal(load_index("i"), fresh_corpus(notes))
    names = {path.name.removesuffix("-wal").removesuffix("-shm") for path in Path("i").iterdir()}  # readers leave two
    assert names == {"catalogue.sqlite", "index.json", "search"}
    assert update("i", notes).num_same == 9


def test_a_finished_shard_is_skipped_and_one_that_was_stopped_goes_on(notes):
    build(notes, 0)
    assert build(notes, 0, make=maker(log="log")) is None and log_lines("log") == []
    Path("i/shards/0-of-4").rename("i/shards/0-of-4.building")
    changes = build(notes, 0, make=maker(log="log"))
    assert changes.num_read == 0 and log_lines("log") == []


def test_a_merge_that_was_stopped_comes_to_the_same(notes):
    for shard in range(2):
        build(notes, shard, 2)
    import qrag_jax.index.shards as module

    def stop(*args):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "write_settings", stop)
        with pytest.raises(KeyboardInterrupt):
            merge_shards(Path("i"))
    assert merge_shards(Path("i")) == 9
    check_equal(load_index("i"), fresh_corpus(notes))


@pytest.mark.parametrize("next_one", ["merge", "build"])
def test_a_merge_that_was_killed_while_it_removed_shards_is_finished_by_the_next(notes, next_one):
    for shard in range(2):
        build(notes, shard, 2)
    process = start(merge_and_die, "i")
    assert ended(process) == -9 and len(list(Path("i").rglob("catalogue.sqlite"))) == 2  # one of the shards' is left
    if next_one == "merge":
        assert merge_shards(Path("i")) == 9
    else:
        assert update("i", notes).num_same == 9
    assert [path.name for path in Path("i").iterdir() if path.is_dir()] == ["search"]
    check_equal(load_index("i"), fresh_corpus(notes))
    with pytest.raises(UsageError, match="i: has no shards"):
        merge_shards(Path("i"))


def test_shards_of_two_builds_are_refused(notes):
    build(notes, 0, 1)
    Path("i/shards/0-of-2").mkdir()
    with pytest.raises(UsageError, match="different numbers of shards .0-of-1 and 0-of-2.; remove those of one build"):
        merge_shards(Path("i"))


def test_what_is_missing_or_other_is_refused(notes):
    with pytest.raises(UsageError, match="i: has no shards"):
        merge_shards(Path("i"))
    with pytest.raises(UsageError, match="with 4 shards, give 0 to 3") as error:
        build(notes, 4)
    assert (error.value.field, error.value.value) == ("shard", 4)
    for shard in (0, 2):
        build(notes, shard)
    with pytest.raises(UsageError, match=r"i: shards 1, 3 of 4 are not finished; build them first"):
        merge_shards(Path("i"))
    with pytest.raises(UsageError, match=r"i: has shards of a build with another number of shards \(.-of-4\)"):
        build(notes, 0, 2)
    for shard in (1, 3):
        build(notes, shard, make=maker("others"))
    with pytest.raises(InputError, match="was made with other settings or another encoder than i/shards/0-of-4"):
        merge_shards(Path("i"))


def test_an_index_that_is_there_takes_no_shards(notes):
    update("i", notes)
    with pytest.raises(UsageError, match="i: is already an index; shards need a new folder"):
        build(notes, 0)


def test_an_index_is_not_written_beside_shards_that_wait_for_their_merge(notes):
    for shard in range(2):
        build(notes, shard, 2)
    with pytest.raises(UsageError, match="i: has shards that are not merged; run `qrag index merge i` first"):
        update("i", notes)
    assert not Path("i/index.json").exists() and merge_shards(Path("i")) == 9


def test_a_merge_does_not_call_the_chunks_of_an_index_those_of_its_shards(notes):
    for shard in range(2):
        build(notes, shard, 2)
    for made, own in [("others", SETTINGS), ("", replace(SETTINGS, chunking=ChunkConfig("fixed", max_tokens=3)))]:
        update("there", notes, make=maker(made) if made else maker(), settings=own)
        Path("i/shards").rename("there/shards")
        before = Path("there/index.json").read_bytes()
        with pytest.raises(UsageError, match="there: is already an index, made with strategy.* or another enc"):
            merge_shards(Path("there"))
        assert Path("there/index.json").read_bytes() == before
        Path("there/shards").rename("i/shards")
        shutil.rmtree("there")


def test_documents_are_spread_and_stay():
    shards = [shard_of(f"notes/{number}.md", 4) for number in range(400)]
    assert {shards.count(shard) > 70 for shard in range(4)} == {True}
    assert shard_of("notes/a.md", 1) == 0 and shard_of("notes/a.md", 8) == 6  # sha256 b33a8099b0121956...
