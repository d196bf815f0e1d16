"""Notes by names are updated by what changed: after every step they are those of all documents at once."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.indices import HashEncoder, count_words, note, note_rows, write_notes
from support.passages import split_lines
from support.tiers import examples

from qrag_jax.annotate.mentions import MentionsConfig, mention_notes
from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.index import mentioned
from qrag_jax.index.info import index_info
from qrag_jax.index.load import load_with_notes
from qrag_jax.index.prepare import Maker
from qrag_jax.index.remove import remove_documents
from qrag_jax.types import InputError

# So small that a few documents make names ambiguous and common, and sentences too long.
SMALL = MentionsConfig(max_notes=2, min_chars=3, max_owners=2, max_naming=3, max_chars=30)


def split_pairs(document):
    """A chunk for every two lines, so each line is in two chunks."""
    lines = [span for chunk in split_lines(document) for span in chunk.spans]
    return [
        make_chunk(document, [one, *rest], 1, count_words) for one, *rest in zip(lines, lines[1:], strict=False)
    ] + [make_chunk(document, lines[-1:], 1, count_words)]


def load_cut(cut):
    return Maker(cut, HashEncoder(), count_words)


CUTS = (split_lines, split_pairs)


def check(folder="i"):
    """The notes, their order and what was left out are those of `mention_notes`; gives the number of notes."""
    corpus, kept = load_with_notes(folder)
    assert kept.is_current
    right = mention_notes(corpus.documents, corpus.nodes, mentioned.CONFIG)
    assert list(kept.notes) == list(right.notes)
    assert index_info(folder).notes.left_out == right.left_out
    return len(right.notes)


def names_in(folder):
    """Everything that an index keeps of names, with ids in place of numbers; nothing is pending."""
    with closing(sqlite3.connect(Path(folder, "catalogue.sqlite"))) as connection:
        ask = lambda query: sorted(connection.execute(query).fetchall())  # noqa: E731
        assert ask("SELECT * FROM changed") == [] and ask("SELECT * FROM stale") == []
        of = "JOIN ledger USING (number)"
        return (
            ask(f"SELECT id, node, key, is_term, begin, name FROM names {of}"),
            ask(f"SELECT id, key, num_chunks, places FROM mentions {of}"),
            ask(f"SELECT id, begins FROM read {of}"),
            ask("SELECT key, reason FROM silent"),
            ask(f"SELECT id, node, num_notes, too_long, beyond FROM chunk_counts {of}"),
        )


WORDS = ("Alpha", "alpha", "One", "one", "Two", "two", "The", "the", "of", "Beta", "met", "\u732b")
SENTENCE = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
LINE = st.one_of(
    SENTENCE.map("{}.".format), SENTENCE.map("{}.".format), SENTENCE.map("# {}".format), st.just("Alpha One met Beta.")
)
NAMES = ("alpha", "alpha_one", "one_two", "beta", "the_two", "x")
TEXT = st.lists(LINE, min_size=1, max_size=4).map("\n".join)
STEP = st.tuples(st.dictionaries(st.sampled_from(NAMES), st.none() | TEXT, min_size=1, max_size=3), st.integers(0, 3))


@examples(60)
@given(st.sampled_from(CUTS), st.lists(STEP, min_size=1, max_size=6))
def test_after_every_step_the_notes_are_those_of_all_documents_at_once(tmp_path_factory, cut, steps):
    """Steps add, replace and remove documents, by build, `add` and `remove`; some are stopped while notes are written."""
    make = partial(load_cut, cut)

    def stop(done, of):
        raise InputError("stopped")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("mentioned"))
        patch.setattr(mentioned, "CONFIG", SMALL)
        write_notes("notes", fixed="Alpha One met the Beta.\nIt met Two.")
        note("i", "notes", make=make)
        for texts, how in steps:
            gone = [name for name, text in texts.items() if text is None and Path(f"notes/{name}.md").exists()]
            write_notes("notes", **{name: text for name, text in texts.items() if text is not None})
            for name in gone:
                if how == 1:
                    remove_documents(Path("i"), [f"notes/{name}.md"], make=make)
                Path(f"notes/{name}.md").unlink()
            if how == 2:
                try:
                    note("i", "notes", make=make, note_progress=stop)
                except InputError as error:
                    assert "stopped" in str(error)
                    continue
            elif how == 3 and not gone and any(texts.values()):
                note("i", *(f"notes/{name}.md" for name, text in texts.items() if text), make=make, mirror=False)
            else:
                note("i", "notes", make=make)
            check()
        note("i", "notes", make=make)
        check()
        note("fresh", "notes", make=make)
        assert note_rows("i") == note_rows("fresh") and names_in("i") == names_in("fresh")
        assert index_info("i", verify=True).is_whole
