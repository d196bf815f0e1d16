"""Token vectors that an index stores: built, updated, removed, checked, merged, and looked up by a search."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.encoders import small_minilm
from support.indices import SETTINGS, HashEncoder, chunk_lines, count_words, log_lines, maker, update, write_notes

from qrag_jax import open_index
from qrag_jax.documents.read import find_files
from qrag_jax.index.build import build_index, index_settings
from qrag_jax.index.folder import is_index
from qrag_jax.index.info import index_info
from qrag_jax.index.load import load_index, stored_tokens
from qrag_jax.index.options import SearchOptions
from qrag_jax.index.prepare import Maker
from qrag_jax.index.remove import remove_documents
from qrag_jax.index.settings import IndexSettings
from qrag_jax.index.shards import build_shard, merge_shards
from qrag_jax.index.update import Plan
from qrag_jax.types import Document, InputError, UsageError
from qrag_jax.unit_rows import unit_rows

LATE = replace(SETTINGS, late=True)
DIM = 4


class TokenEncoder(HashEncoder):
    """A `HashEncoder` whose tokens are words; satisfies `types.ReadsTokens`."""

    token_dim = DIM

    def with_tokens(self, texts):
        return self(texts), [self.codes(text) for text in texts]

    def question_tokens(self, text):
        return unit_rows(self.codes(text).astype(np.float32))

    @staticmethod
    def codes(text):
        drawn = [np.random.default_rng(list(word.encode())).integers(1, 128, DIM) for word in text.split()]
        return np.array(drawn, np.int8).reshape(-1, DIM)


def load_token_maker(log=None):
    return Maker(chunk_lines, TokenEncoder(log=log), count_words, keeps_tokens=True)


def build(notes, log=None, **plan):
    return update("i", notes, make=partial(load_token_maker, log), settings=LATE, **plan)


def check_tokens(num_chunks):
    """All chunks of the index, and no others, have the token vectors of their text."""
    info = index_info("i", verify=True)
    texts = load_index("i").full_texts
    assert info.is_whole and len(texts) == num_chunks
    found = stored_tokens("i", DIM, "hashes")(texts)
    for text in texts:
        np.testing.assert_array_equal(found[text], TokenEncoder.codes(text))
    assert info.late == (num_chunks, sum(DIM * len(text.split()) for text in texts))
    with closing(sqlite3.connect("i/catalogue.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM tokens").fetchone() == (num_chunks,)


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_notes(
        "notes", a="Mary has the key.\nIt rained.", b="John went home.\nMary has the key.", c="A garden."
    )


def test_token_vectors_follow_their_documents(notes):
    assert build(notes).num_embedded == 4
    check_tokens(5)
    write_notes(notes, a="Mary has the key.\nIt snowed.", b=None)
    changes = build(notes, log="log")
    assert (changes.num_embedded, changes.num_reused, changes.removed) == (1, 1, ("notes/b.md",))
    assert log_lines("log") == ["'It snowed.'"]  # what is reused keeps its tokens without being read
    check_tokens(3)
    remove_documents(Path("i"), ["notes/c.md"])
    check_tokens(2)
    assert stored_tokens("i", DIM, "hashes")(["A garden."]) == {}


def test_workers_store_the_same(notes):
    build(notes, num_workers=1)
    check_tokens(5)


def test_shards_merge_with_their_token_vectors(notes):
    for shard in range(2):
        build_shard(Path("i"), [notes], find_files(notes), LATE, load_token_maker, Plan(), shard, 2)
    assert merge_shards(Path("i")) == 3
    check_tokens(5)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tokens SET codes = zeroblob(16) WHERE number = 1 AND node = 0",
        "UPDATE tokens SET text = zeroblob(32) WHERE number = 1 AND node = 0",
        "UPDATE tokens SET codes = 'a text' WHERE number = 1 AND node = 0",
        "DELETE FROM tokens WHERE number = 1 AND node = 1",
    ],
)
def test_damage_is_named_and_mended_alone(notes, statement):
    build(notes)
    with closing(sqlite3.connect("i/catalogue.sqlite")) as connection, connection:
        assert connection.execute(statement).rowcount == 1
    info = index_info("i", verify=True)
    assert info.damaged == ("notes/a.md",)
    assert build(notes).mended == ("notes/a.md",)
    check_tokens(5)


def test_a_search_refuses_changed_codes(notes):
    build(notes)
    with closing(sqlite3.connect("i/catalogue.sqlite")) as connection, connection:
        connection.execute("UPDATE tokens SET codes = zeroblob(8)")
    with pytest.raises(InputError, match="i: token vectors changed since they were written; name the damage with"):
        stored_tokens("i", DIM, "hashes")(["A garden."])


def test_another_choice_needs_another_index(notes):
    build(notes)
    with pytest.raises(UsageError, match=r"i: was made with token vectors \(late\); build another index"):
        update("i", notes, settings=SETTINGS)
    update("j", notes)
    with pytest.raises(UsageError, match=r"j: was made without token vectors \(late\)"):
        update("j", notes, make=load_token_maker, settings=LATE)


def test_an_index_without_them_has_no_table_of_them(notes):
    update("i", notes)
    with closing(sqlite3.connect("i/catalogue.sqlite")) as connection:
        assert ("tokens",) not in connection.execute("SELECT name FROM sqlite_master").fetchall()
    assert index_info("i", verify=True).late == (0, 0) and stored_tokens("i", DIM, "hashes")(["A garden."]) == {}


def test_the_size_is_said_and_too_small_a_disk_refused_before_anything_is_read(notes, monkeypatch):
    said = []
    write_notes(notes, d="word " * 4000)  # 20,000 bytes are up to 10,000 tokens
    build(notes, says=said.append)
    assert len(said) == 1 and said[0].startswith("token vectors take up to 40.1 kB (4 text files); the disk has ")
    build(notes, says=said.append)
    assert len(said) == 1  # nothing new
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("qrag_jax.index.token_size.shutil.disk_usage", lambda folder: usage)
    with pytest.raises(
        InputError, match=r"token vectors take up to 40\.1 kB .* and the disk has 1\.0 kB left: make room"
    ):
        update("j", notes, make=partial(load_token_maker, "log"), settings=LATE)
    assert log_lines("log") == [] and not is_index("j")


def test_an_index_that_stores_them_compares_them_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notes = write_notes("notes", a="Mary has the key.", b="John went home.")
    with small_minilm(tmp_path / "minilm"):
        for name, late in (("i", True), ("j", False)):
            build_index(name, [notes], index_settings(notes="none", late=late))
        check_default("i", "j")


def check_default(with_tokens, without):
    with open_index(with_tokens) as stored, open_index(without) as plain:
        found = stored.find("Who has the key?")
        assert found.late is not None and found.late.num_tokens < 10  # only the question was read
        assert plain.find("Who has the key?").late is None
        for options in (SearchOptions(late=False), SearchOptions(retriever="bm25")):
            assert stored.find("Who has the key?", options).late is None
        asked = plain.find("Who has the key?", SearchOptions(late=True))
        assert [hit.score for hit in asked.hits] == pytest.approx([hit.score for hit in found.hits], abs=1e-5)


def test_token_vectors_of_another_encoder_are_not_used(notes):
    build(notes)
    assert stored_tokens("i", DIM, "others")(["A garden."]) == {}


def test_runs_and_words_have_no_token_vectors(tmp_path):
    with pytest.raises(UsageError, match="late: a run compares no token vectors"):
        index_settings(str(tmp_path), late=True)
    with open_index([Document("a", "Mary has the key.")]) as index:
        with pytest.raises(UsageError, match="late: bm25 compares words only; leave it out, or search with hybrid"):
            index.find("Who?", SearchOptions(retriever="bm25", late=True))


def test_settings_of_older_indices_have_none():
    assert not IndexSettings(SETTINGS.chunking, "hashes").late and maker()().keeps_tokens is False
