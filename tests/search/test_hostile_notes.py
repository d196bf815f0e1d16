"""Notes of documents that want to be more than data: each proves itself, and nothing but notes comes of them."""

import time
from pathlib import Path

import numpy as np
import pytest
from support.hostile_documents import HONEST, HOSTILE, heard
from support.passages import count
from support.tiers import slow_but

from qrag_jax.annotate.mentions import MentionsConfig, mention_notes
from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.names import NOTE_MODES
from qrag_jax.search.corpus import build_corpus
from qrag_jax.search.note_search import NoteSearch, note_corpus, rank_noted
from qrag_jax.types import Document

QUESTION = "Where does the one who made Up Down live?"
WORDS = ["ann", "lee", "up", "down", "rome", "mars", "lives", "film", "rain", "made"]
SECONDS = 60  # for all modes of one document: linear ones take tenths of one, squares of these sizes an hour
MAX_TOKENS = 60


def embed(texts):
    """One component a word, of what an encoder would read of a text."""
    rows = [[text[:2000].lower().split().count(word) for word in WORDS] for text in texts]
    return np.array(rows, np.float32).reshape(-1, len(WORDS)) + 1e-3


chunk = make_chunker(ChunkConfig("headings", max_tokens=MAX_TOKENS), count)


def corpus_of(*hostile):
    titled = [*HONEST.items(), *hostile]
    return build_corpus(
        [Document(str(i), text, {"title": title}) for i, (title, text) in enumerate(titled)], chunk, embed
    )


def proves_itself(note, corpus, config):
    of = {node.id: node for node in corpus.nodes}
    asking, answering = of[note.asking], of[note.answering]
    assert corpus.by_id[asking.document_id].text[slice(*note.source)] == note.text
    assert corpus.by_id[answering.document_id].text[slice(*note.evidence)] == note.quote
    assert len(note.text) <= config.max_chars and note.asking != note.answering


def is_within(small, large):
    """True if a text is what is left of another one when characters are taken out."""
    rest = iter(large)
    return all(letter in rest for letter in small)


def test_there_are_fifty():
    assert len(HOSTILE) == len(set(HOSTILE)) == 50


@pytest.mark.parametrize("number", slow_but(set(range(50)) - {36, 37}, range(50)))  # large ones
def test_notes_of_a_hostile_document_are_nothing_but_notes(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile, config, start = HOSTILE[number], MentionsConfig(max_introduced=5), time.process_time()
    corpus = corpus_of(hostile)
    before = tuple(corpus.texts)
    with heard() as events:
        notes = mention_notes(corpus.documents, corpus.nodes, config).notes
        noted = note_corpus(corpus, notes, embed, count)  # refuses a note that does not prove itself
        for mode in NOTE_MODES:
            ranked = rank_noted(QUESTION, noted, embed, NoteSearch(mode))
            assert sorted(ranked.ids.tolist()) == list(range(len(corpus.nodes)))
            assert np.isfinite(ranked.scores).all()
        own = rank_noted(QUESTION, noted, embed, NoteSearch("none")).scores
        assert rank_noted(QUESTION, noted, embed, NoteSearch("best_of")).scores[0] == own[0]  # no note leads
        changed = noted.texts_with(range(len(notes)), max_share=1.0)
    assert events == [] and list(Path(tmp_path).iterdir()) == []
    assert time.process_time() - start < SECONDS
    for note in notes:
        proves_itself(note, corpus, config)
    held = [note.answering for note in notes]
    assert max(map(held.count, set(held)), default=0) <= config.max_notes
    for leaf, text in changed.items():
        node = int(corpus.leaves[leaf])
        assert is_within(before[node], text) and len(text) > len(before[node])
        assert count(text) <= 2 * corpus.nodes[node].num_tokens + 1  # a bracket may stand behind a blank
    assert corpus.texts == before  # what is read is the document's own text


def test_all_of_them_together_are_searched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = [one for one in HOSTILE if len(one[0]) + len(one[1]) < 20_000]
    corpus = corpus_of(*small)
    with heard() as events:
        read = mention_notes(corpus.documents, corpus.nodes)
        noted = note_corpus(corpus, read.notes, embed, count)
        for mode in NOTE_MODES:
            assert len(rank_noted(QUESTION, noted, embed, NoteSearch(mode), 5)) == 5
    assert events == [] and len(read.notes) >= 20
    for note in read.notes:
        proves_itself(note, corpus, MentionsConfig())


def test_what_is_heard(tmp_path):
    with heard() as events:
        (tmp_path / "canary").write_text("x")
        (tmp_path / "canary").read_text()
        (tmp_path / "canary").unlink()
    assert [event.split()[0] for event in events] == ["open", "os.remove"]
