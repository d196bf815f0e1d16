"""Statements of chunks about themselves as notes: where each stands, and which are left out."""

import json

import numpy as np
import pytest
from support.passages import count

from qrag_jax.annotate import ask_chunks as calls
from qrag_jax.annotate import propositions
from qrag_jax.annotate.propositions import (
    PropositionsConfig,
    estimate_propositions_reader,
    make_propositions_reader,
)
from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.search.corpus import Corpus, embed_corpus
from qrag_jax.search.note_search import NoteSearch, note_corpus, rank_noted
from qrag_jax.types import Document, InputError, UsageError

FILM = "The film was made by Ann Lee. It is long, and she wrote it in Rome."
RAIN = "Rain falls, and it falls and falls on Rome."
STATEMENTS = {FILM: ["Ann Lee made the film.", " Ann Lee wrote  it in Rome, and it is long.", "Ann Lee made the film."]}


def embed(texts):
    words = ["film", "lee", "rome", "rain"]
    rows = [[text.lower().count(word) for word in words] for text in texts]
    return np.array(rows, np.float32) + 1e-3


def pool(*texts):
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    return documents, [make_chunk(document, [(0, len(document.text))], 1, count) for document in documents]


def read(statements, *texts, **more):
    """Notes of texts about which a script states what the table says."""

    def script(prompt):
        said = next(value for text, value in statements.items() if text in prompt[1].content)
        return said if not isinstance(said, list) else json.dumps({"statements": said})

    generator = ScriptedGenerator(script, model="M")
    documents, chunks = pool(*texts)
    return documents, chunks, make_propositions_reader(generator, **more)(documents, chunks)


def test_statements_by_hand():
    _, (chunk, _), found = read({**STATEMENTS, RAIN: []}, FILM, RAIN)
    first, second = found.notes
    assert {(n.asking, n.answering, n.question, n.reader) for n in found.notes} == {(chunk.id, chunk.id, "", "M")}
    assert first.text == first.answer == "Ann Lee made the film." and first.quote == "The film was made by Ann Lee."
    assert second.text == "Ann Lee wrote it in Rome, and it is long." and second.source == second.evidence
    assert FILM[slice(*second.evidence)] == second.quote == "It is long, and she wrote it in Rome."
    assert found.left_out == {propositions.SAID_BEFORE: 1}


def test_a_chunk_is_found_by_the_best_of_its_facts():
    documents, chunks, found = read({**STATEMENTS, RAIN: []}, RAIN, FILM)
    noted = note_corpus(embed_corpus(Corpus(tuple(documents), tuple(chunks)), embed), found.notes, embed, count)
    ranked = rank_noted("Ann Lee film", noted, embed, NoteSearch("best_of", capped=False))
    plain = rank_noted("Ann Lee film", noted, embed, NoteSearch("none"))
    assert ranked.ids.tolist() == plain.ids.tolist() == [1, 0] and ranked.scores[0] > plain.scores[0]


def test_what_is_left_out_and_what_fails():
    # Of "Ada Lee made the bridge" the chunk has 3 of 5 words, of "Ann wrote a film" 3 of 4.
    said = ["Nobody knows.", "Ada Lee made the bridge.", "Lee. " * 30, "Ann wrote a film."]
    statements = {FILM: said, RAIN: failed("down")}
    told = []
    found = read(statements, FILM, RAIN, finished=told.append)[2]
    assert [note.text for note in found.notes] == ["Ann wrote a film."]
    assert found.left_out == {propositions.NOT_OF_CHUNK: 2, propositions.TOO_LONG: 1, calls.CALL_FAILED: 1}
    assert (told[0].num_chunks, told[0].num_notes, told[0].num_failed, told[0].errors) == (2, 1, 1, ("down",))
    with pytest.raises(InputError, match="statements: all 1 calls of the language model failed; the first one: down"):
        read(statements, RAIN)


def test_estimate_and_wrong_use():
    documents, chunks = pool(FILM, RAIN)
    estimate = estimate_propositions_reader(documents, chunks, lambda text: 10, PropositionsConfig(max_tokens=9))
    assert (estimate.num_calls, estimate.prompt_tokens, estimate.completion_tokens) == (2, 72, 18)
    with pytest.raises(UsageError, match="propositions.max_tokens 0: at least 1"):
        PropositionsConfig(max_tokens=0)
