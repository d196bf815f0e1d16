"""Nodes of a ranking as passages with their places, and in each the sentence that answers best."""

from collections.abc import Sequence

from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.search.sentences import best_sentences, make_place, make_sentence, passage_sentences
from qrag_jax.types import Embed, Hit, Note, NoteHit, Place, Sentence, Span


def make_hits(
    corpus: Corpus, ranked: Ranked, sentences: Sequence[Sentence], positions: Sequence[float] = ()
) -> list[Hit]:
    """The nodes of a ranking as hits, in its order.

    Args:
        corpus: that was ranked.
        sentences: of each node, as of `best_of_nodes` or `first_of_nodes`.
        positions: of each node, of the picks of a run; none of others.
    """
    hits = []
    for rank, (node, score, sentence) in enumerate(
        zip(ranked.ids.tolist(), ranked.scores.tolist(), sentences, strict=True), start=1
    ):
        chunk = corpus.nodes[node]
        place = make_place(corpus.by_id[chunk.document_id], (chunk.spans[0][0], chunk.spans[-1][1]))
        notes = tuple(note_hit(note, corpus) for note in ranked.notes_of(node))
        position = positions[rank - 1] if positions else None
        hits.append(Hit(rank, place, chunk.spans, corpus.texts[node], score, sentence, notes, position, node))
    return hits


def best_of_nodes(question: str, corpus: Corpus, ranked: Ranked, embed: Embed | None) -> list[Sentence]:
    """The sentence of every node that answers best (`best_sentences`)."""
    return best_sentences(question, [corpus.nodes[node] for node in ranked.ids.tolist()], corpus.by_id, embed)


def first_of_nodes(corpus: Corpus, ranked: Ranked) -> list[Sentence]:
    """The first sentence of every node, with no score."""
    chunks = [corpus.nodes[node] for node in ranked.ids.tolist()]
    documents = [corpus.by_id[chunk.document_id] for chunk in chunks]
    firsts = [passage_sentences(one, chunk.spans)[0] for one, chunk in zip(documents, chunks, strict=True)]
    return [make_sentence(one, span) for one, span in zip(documents, firsts, strict=True)]


def note_hit(note: Note, corpus: Corpus) -> NoteHit:
    """A note with the places of what it comes from, and of what it belongs to."""

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
