"""Hits: ranked nodes with their places, and the sentence of each that answers best."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from qrag_jax.documents.read import left_out
from qrag_jax.search.context.pack import copies_of
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.search.sentences import best_sentences, copy_places, make_place
from qrag_jax.types import Hit, Hits, Note, NoteHit, Place, RunnerUp, Span, Step


def make_hits(question: str, corpus: Corpus, ranked: Ranked, steps: Sequence[Step] = ()) -> Hits:
    """Turns the nodes of a ranking into hits, in its order.

    The best sentence of a passage is found by words, without an encoder: vectors find the right one no more often
    (`benchmarks/search/results/sentences.md`).

    Args:
        question: what was asked.
        corpus: the one that was ranked.
        steps: that picked the nodes, if a run did; else empty.
    """
    hits = Hits()
    runner_up = partial(_runner_up, corpus, {})
    sentences = best_sentences(question, [corpus.nodes[node] for node in ranked.ids.tolist()], corpus.by_id)
    for rank, (node, score, sentence) in enumerate(
        zip(ranked.ids.tolist(), ranked.scores.tolist(), sentences, strict=True), start=1
    ):
        chunk = corpus.nodes[node]
        place = make_place(corpus.by_id[chunk.document_id], (chunk.spans[0][0], chunk.spans[-1][1]))
        notes = tuple(note_hit(note, corpus) for note in ranked.notes_of(node))
        step = steps[rank - 1] if steps else None
        copies = copy_places(copies_of(corpus, ranked, node), corpus.by_id, sentence)
        missing = left_out(corpus.by_id[chunk.document_id])
        text, context = corpus.texts[node], corpus.contexts[node]
        position = None if step is None else step.position
        hit = Hit(rank, place, chunk.spans, text, score, sentence, notes, position, node, copies, missing, context)
        if step is not None:
            others = tuple(runner_up(int(corpus.leaves[leaf]), q_value) for leaf, q_value in step.runners_up)
            hit = replace(hit, runners_up=others, stop_score=step.stop_q_value)
        hits.append(hit)
    return hits


def _runner_up(corpus: Corpus, known: dict[int, RunnerUp], node: int, score: float) -> RunnerUp:
    """A chunk that was not picked; its place is looked up once, because it may come again at the next step."""
    if node not in known:
        chunk = corpus.nodes[node]
        place = make_place(corpus.by_id[chunk.document_id], (chunk.spans[0][0], chunk.spans[-1][1]))
        known[node] = RunnerUp(place, corpus.texts[node], score)
    return replace(known[node], score=score)


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
