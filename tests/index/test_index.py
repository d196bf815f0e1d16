"""One object over files, an index on disk and a corpus: each finds, asks and changes alike."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.encoders import random_encoder
from support.indices import write_notes
from support.tiers import slow_but

from qrag_jax import open_index
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.documents.read import read_files
from qrag_jax.index.build import build_index, index_settings
from qrag_jax.index.corpus_folder import save_corpus
from qrag_jax.index.options import AskOptions, SearchOptions
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.search.answer import NothingFound
from qrag_jax.search.corpus import MadeBy, build_corpus, join_corpora
from qrag_jax.types import Document, InputError, Retriever, UsageError

PARTS = ChunkConfig("fixed", max_tokens=24)
TEXT = "The key hangs in the hall. Mary has the lamp.\n\nIt rained in the garden all day. Nobody came by."
OTHER = "John went to the station. The film began at nine."
QUESTION = "Who has the lamp?"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", [TEXT, OTHER, QUESTION])
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    return str(folder)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text(TEXT)
    (tmp_path / "notes" / "b.md").write_text(OTHER)
    return tmp_path


def opened(kind, encoder):
    """The same documents, cut and embedded alike, as each of the things that can be opened."""
    if kind == "index":
        build_index("i", "notes", index_settings(model=encoder, chunking=PARTS, notes="none"))
        return open_index("i")
    if kind == "documents":
        return open_index(read_files("notes"), encoder=encoder, chunking=PARTS)
    files = open_index("notes", encoder=encoder, chunking=PARTS)
    if kind == "files":
        return files
    if kind == "corpus":
        return open_index(files.corpus)
    save_corpus(files.corpus, "kept")
    return open_index("kept")


KINDS = ("files", "documents", "index", "corpus", "saved corpus")


@pytest.mark.parametrize("kind", slow_but(["files", "saved corpus"], KINDS))
def test_each_kind_finds_the_same(kind, place, encoder):
    with open_index("notes", encoder=encoder, chunking=PARTS) as plain, opened(kind, encoder) as index:
        assert isinstance(index, Retriever)
        wanted, hits = plain.search(QUESTION, 2), index.search(QUESTION, 2)
        assert index.documents() == ("notes/a.md", "notes/b.md") and index.info().is_whole and index.verify().is_whole
        assert index.info().dim == index.corpus.vectors.shape[1]
    assert [(hit.rank, hit.place, hit.spans, hit.text) for hit in hits] == [
        (hit.rank, hit.place, hit.spans, hit.text) for hit in wanted
    ]
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in wanted], rel=1e-5)
    for hit in hits:
        text = (place / hit.place.document).read_text()
        start, end = hit.sentence.place.start, hit.sentence.place.end
        assert text[hit.place.start : hit.place.end] == hit.text and text[start:end] == hit.sentence.text
        assert hit.place.start <= start and end <= hit.place.end
        assert hit.sentence.place.line == text[:start].count("\n") + 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_added_and_removed_is_searched_at_once(kind, place, encoder):
    with opened(kind, encoder) as index:
        index.search(QUESTION)
        (place / "c.md").write_text("Ann Lee saw the comet.")
        assert index.add("c.md").num_read == 1
        (hit,) = index.search("Who saw the comet?", 1, retriever="bm25")
        assert (hit.place.document, hit.sentence.text) == ("c.md", "Ann Lee saw the comet.")
        assert index.document("c.md").text == "Ann Lee saw the comet."
        (place / "c.md").write_text("Ann Lee saw the whale.")
        assert index.add("c.md").num_read == 1 and index.search("comet", retriever="bm25") == []
        assert index.remove("c.md") == ("c.md",)
        assert index.search("whale", retriever="bm25") == [] and len(index.documents()) == 2
        with pytest.raises(UsageError):
            index.remove("c.md")
        with pytest.raises(UsageError) as error:
            index.document("c.md")
        assert error.value.field == "name"


def test_what_did_not_change_is_not_embedded_again(place, encoder):
    with open_index("notes", encoder=encoder, chunking=PARTS) as index:
        first = index.find(QUESTION)
        (place / "c.md").write_text("Ann Lee saw the comet.")
        index.add(["c.md", "notes"])
        second, third = index.find(QUESTION), index.find(QUESTION)
    assert first.cost.embedder_tokens > second.cost.embedder_tokens > third.cost.embedder_tokens > 0
    assert {"read", "load", "chunk", "embed", "search"} == set(first.cost.seconds) and set(third.cost.seconds) == {
        "search"
    }


@pytest.mark.parametrize("kind", ["files", "index"])
def test_only_some_documents(kind, place, encoder):
    with opened(kind, encoder) as index:
        assert {hit.place.document for hit in index.search(QUESTION, None, only="b.*")} == {"notes/b.md"}
        with pytest.raises(UsageError):
            index.search(QUESTION, only="c.*")
        assert len(index.search(QUESTION, None)) > 1


def test_an_answer_in_quotes_stands_in_its_passages(place, encoder):
    with open_index("notes", encoder=encoder, chunking=PARTS, retriever="bm25") as index:
        answer = index.ask(QUESTION)
        alone = index.ask(QUESTION, options=AskOptions(num_quotes=0))
        with pytest.raises(NothingFound):
            index.ask("zebra")
    (quote,) = answer.quotes
    assert answer.text == '"Mary has the lamp." [1]' and quote.place.line == 1 and answer.model == "extraction"
    assert [citation.number for citation in answer.cited.citations] == [answer.number_of(quote)] == [1]
    assert alone.text is None and alone.model is None and alone.context == answer.context


def test_a_language_model_answers_where_it_is_named(place, encoder):
    from qrag_jax.llm.scripted import ScriptedGenerator

    with open_index("notes", encoder=encoder, chunking=PARTS, retriever="bm25") as index:
        answer = index.ask(QUESTION, llm=ScriptedGenerator(["Mary [1]."]))
    assert (answer.text, answer.quotes, answer.model) == ("Mary [1].", (), "scripted")
    assert answer.cost.completion_tokens > 0 and list(answer.cost.seconds)[-1] == "generate"


def test_notes_are_known_by_the_index(place, encoder):
    write_notes("film", up_down="Up Down is a film by Ann Lee.", ann_lee="She was born in Graz.", weather="It rained.")
    build_index("n", "film", index_settings(model=encoder))
    with open_index("n", retriever="bm25") as index:
        assert len(index.notes) == 1 and index.settings.has_notes
        found = index.find("Who made the film?")
        (note,) = next(hit.notes for hit in found.hits if hit.place.document == "film/ann_lee.md")
        assert found.notes == "best_of" and note.source.document == "film/up_down.md"
        assert index.document(note.evidence.document).text[note.evidence.start : note.evidence.end] == note.quote
        assert index.find("Who made the film?", SearchOptions(notes="none")).notes == "none"


def test_levels_are_known_by_the_index(place, encoder):
    build_index("l", "notes", index_settings(model=encoder, chunking=ChunkConfig("levels")))
    with open_index("l") as index:
        assert index.levels[0] == "document" and index.levels[-1] == "sentence"
        found = index.find(QUESTION, SearchOptions(levels="document"))
        assert [hit.text for hit in found.hits] in ([TEXT, OTHER], [OTHER, TEXT])
        assert found.levels is not None and found.levels.num_vectors > 0
        with pytest.raises(UsageError) as error:
            index.find(QUESTION, SearchOptions(levels="document", retriever="bm25"))
        assert error.value.field == "levels"


def test_what_is_closed_is_refused(place):
    index = open_index("notes", retriever="bm25")
    with index:
        assert index.search("lamp")
    for call in (lambda: index.search("lamp"), index.documents, index.info):
        with pytest.raises(UsageError):
            call()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (SearchOptions(retriever="nearest"), "retriever"),
        (SearchOptions(top_k=0), "top_k"),
        (SearchOptions(notes="best_of"), "notes"),
        (SearchOptions(num_steps=2), "num_steps"),
        (SearchOptions(stop=True), "stop"),
        (SearchOptions(levels="section"), "levels"),
        (SearchOptions(retriever=Path("no/such/run")), "retriever"),
        (AskOptions(num_around=1), "num_around"),
        (AskOptions(max_context_tokens=0), "max_context_tokens"),
        (AskOptions(merge=True), "merge"),
    ],
)
def test_options_that_do_not_go_with_files(options, field, place):
    with open_index("notes", retriever="bm25" if field != "retriever" else None) as index:
        with pytest.raises(UsageError) as error:
            index.check(QUESTION, options)
    assert error.value.field == field


def test_a_blank_path_is_no_name_of_the_working_folder(place, encoder):
    stored = opened("index", encoder)
    calls = (
        lambda: open_index(""),
        lambda: read_files(["notes", " "]),
        lambda: stored.add(""),
        lambda: stored.remove(""),
    )
    for call in calls:
        with pytest.raises(UsageError) as error:
            call()
        assert error.value.field == "paths"
    assert stored.documents() == opened("index", encoder).documents()


def test_documents_beside_paths_are_refused(place):
    with pytest.raises(UsageError) as error:
        open_index([Document("a", "lamp"), "notes"])
    assert error.value.field == "source"


def test_what_belongs_to_files_is_refused_of_an_index(place, encoder):
    opened("index", encoder)
    for given in ({"encoder": encoder}, {"chunking": PARTS}, {"strict": True}, {"encoding": "latin-1"}):
        with pytest.raises(UsageError) as error:
            open_index("i", **given)
        assert error.value.field == next(iter(given))
    with pytest.raises(UsageError):
        open_index(["i", "notes"])
    (place / "i" / "catalogue.sqlite").unlink()
    with pytest.raises(InputError):
        open_index("i")


def test_a_corpus_of_words_is_searched_by_words_and_vectors_need_their_encoder(place, encoder):
    documents = read_files("notes")
    with open_index(documents, encoder=encoder, chunking=PARTS) as plain:
        corpus = plain.corpus
    words = build_corpus(documents, lambda one: [node for node in corpus.nodes if node.document_id == one.id])
    with open_index(words) as index:
        found = index.find(QUESTION)
    assert (found.retriever, found.hits[0].sentence.text) == ("bm25", "Mary has the lamp.")
    unnamed = replace(corpus, made_by=MadeBy())
    with open_index(unnamed) as index, pytest.raises(UsageError) as error:
        index.search(QUESTION)
    assert error.value.field == "encoder"
    with open_index(unnamed, encoder=encoder) as index:
        assert index.find(QUESTION).retriever == "hybrid"


def test_corpora_are_joined_and_parted():
    documents = [Document("a", "One two. Three."), Document("b", "Four five.")]
    made = open_index(documents, retriever="bm25").corpus
    first, second = made.only({"a"}), made.only({"b"})
    assert [one.id for one in first.documents] == ["a"] and len(first) + len(second) == len(made)
    assert join_corpora(first, second).nodes == made.nodes
    vectors = build_corpus(documents[1:], lambda one: made.nodes[-1:], lambda texts: np.ones((len(texts), 2)))
    with pytest.raises(InputError):
        join_corpora(first, vectors)
    with pytest.raises(InputError):
        join_corpora(first, made)
    with pytest.raises(InputError):
        made.only({"c"})
