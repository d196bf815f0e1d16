"""Hits: ranked nodes with their places, and the sentence of each that answers best."""

from collections.abc import Sequence

from qrag_jax.documents.read import left_out
from qrag_jax.search.context.pack import copies_of
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.search.sentences import best_sentences, copy_places, make_place
from qrag_jax.types import Hit, Note, NoteHit, Place, Span


def make_hits(question: str, corpus: Corpus, ranked: Ranked, positions: Sequence[float] = ()) -> list[Hit]:
    """Turns the nodes of a ranking into hits, in its order.

    The best sentence of a passage is found by words, without an encoder: vectors find the right one no more often
    (`benchmarks/search/results/sentences.md`).

    Args:
        question: what was asked.
        corpus: the one that was ranked.
        positions: of each node, if a run picked them; else empty.
    """
    hits = []
    sentences = best_sentences(question, [corpus.nodes[node] for node in ranked.ids.tolist()], corpus.by_id)
    for rank, (node, score, sentence) in enumerate(
        zip(ranked.ids.tolist(), ranked.scores.tolist(), sentences, strict=True), start=1
    ):
        chunk = corpus.nodes[node]
        place = make_place(corpus.by_id[chunk.document_id], (chunk.spans[0][0], chunk.spans[-1][1]))
        notes = tuple(note_hit(note, corpus) for note in ranked.notes_of(node))
        position = positions[rank - 1] if positions else None
        copies = copy_places(copies_of(corpus, ranked, node), corpus.by_id, sentence)
        missing = left_out(corpus.by_id[chunk.document_id])
        text, context = corpus.texts[node], corpus.contexts[node]
        hits.append(
            Hit(rank, place, chunk.spans, text, score, sentence, notes, position, node, copies, missing, context)
        )
    return hits


def note_hit(note: Note, corpus: Corpus) -> NoteHit:
    """A note with the places that it comes from and belongs to."""

    def place(chunk: str, span: Span) -> Place:
        return make_place(corpus.by_id[corpus.nodes[corpus.by_chunk[chunk]].document_id], span)

    return NoteHit(
        note.text,
        note.reader,
        place(note.asking, note.source),
        place(note.answering, note.evidence),
        note.quote,
        note.question,
        note.answer,
    )
