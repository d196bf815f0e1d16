"""`qrag find` with a run: its picks in the user's own files, step by step, with `file:line` of each."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qrag_jax.checkpoint import Checkpoint, load_checkpoint
from qrag_jax.chunking.units import unit_chunks
from qrag_jax.cli.progress import WithBar
from qrag_jax.cli.searching.places import excerpt, fields_of, place_of
from qrag_jax.cli.searching.sources import Source, checked, load_run, read_source, timed
from qrag_jax.cli.terminal import say, write_json
from qrag_jax.data.questions.asked import Asked
from qrag_jax.eval.tables import align
from qrag_jax.qrag.multi_step_search import ActionBank, action_bank, check_questions, num_tokens_asked, search_bank
from qrag_jax.qrag.retriever import QRagRetriever
from qrag_jax.search.corpus import Corpus, build_corpus, embed_corpus
from qrag_jax.search.note_search import NotedCorpus
from qrag_jax.types import Cost, Document, InputError, Step, Trajectory, UsageError

_MOST_SHOWN = 100  # characters of a chunk in a table
_MOST_NAMED = 3  # files in a message


@dataclass(frozen=True)
class Stop:
    """Where a search ends before its last step: at a threshold on Q, at the run's learned STOP, or not at all."""

    threshold: float | None = None
    learned: bool = False


def find_in_steps(args: argparse.Namespace, source: Source, asked: Iterable[Asked]) -> int:
    """Answers each question by the picks of a run: tables, or with `--json` an object each."""
    spent: dict[str, float] = {}
    with timed("load", spent):
        retriever = load_run(source)
        stop = _own_stop(load_checkpoint(source.retriever, groups=()), retriever) if args.stop else Stop()
    asked = checked(asked, lambda question: check_questions(retriever, [question]))
    with timed("read", spent):
        found = read_source(args, source)
    assert not isinstance(found, NotedCorpus)  # a run does not look at notes
    index = open_index(retriever, found, args.num_steps, spent)
    many = args.questions is not None
    for one in asked:
        print_steps(index, one, args.num_steps, stop, as_json=args.json, spent=spent, many=many)
        spent = {}
    return 0


def _own_stop(saved: Checkpoint, retriever: QRagRetriever) -> Stop:
    """The stop that a run has learned, or its threshold."""
    from qrag_jax.eval.retrieval.calibration import stored_threshold  # imports what evaluates

    if retriever.env.stop:
        return Stop(learned=True)
    threshold = stored_threshold(saved.metadata)
    if threshold is None:
        raise UsageError(
            f"--stop: {saved.folder} does not know when to stop; train it with dev.share=0.1 (a threshold from "
            "held-out questions) or with env.stop=true env.reward=at_end (a learned stop)"
        )
    return Stop(threshold.value)


@dataclass(frozen=True)
class OpenIndex:
    """Files that a run has read, ready for its searches."""

    retriever: QRagRetriever
    corpus: Corpus
    index: ActionBank


def open_index(
    retriever: QRagRetriever, found: Sequence[Document] | Corpus, num_steps: int | None, spent: dict[str, float]
) -> OpenIndex:
    """Cuts documents into what the run reads, and embeds them; what its window cuts is said on standard error.

    Args:
        retriever: a trained one, of texts.
        found: documents to search; or a corpus that its encoder has embedded, of an index.
        num_steps: chunks to pick; None takes as many as in training.
        spent: seconds by stage are added.
    """
    assert retriever.encoder is not None
    encoder, count = WithBar(retriever.chunk_encoder), retriever.encoder.tokenizer.count
    window = retriever.model.encoder.window
    is_made = isinstance(found, Corpus)
    with timed("read", spent):
        corpus = found if is_made else build_corpus(found, lambda document: unit_chunks(document, count, window=window))
    num_steps = num_steps or retriever.env.num_steps
    if len(corpus) < num_steps:
        ids = [document.id for document in corpus.documents]
        names = ", ".join(ids[:_MOST_NAMED]) + (", ..." if len(ids) > _MOST_NAMED else "")
        raise InputError(
            f"{names}: {len(corpus)} chunks cannot give {num_steps} picks: lower --num_steps or give more text"
        )
    with timed("embed", spent):
        corpus = corpus if is_made else embed_corpus(corpus, encoder)
        index = action_bank(retriever, corpus)
    if corpus.num_beyond_window:
        say(
            f"{corpus.num_beyond_window:,} of {len(corpus):,} chunks are longer than the "
            f"{window} tokens that this run reads; only their beginning was searched"
        )
    return OpenIndex(retriever, corpus, index)


def print_steps(
    opened: OpenIndex,
    asked: Asked,
    num_steps: int | None = None,
    stop: Stop | None = None,
    *,
    as_json: bool = False,
    spent: Mapping[str, float] | None = None,
    many: bool = False,
) -> None:
    """Searches for one question and prints the picks on standard output.

    Args:
        num_steps: as of `open_index`.
        stop: None goes on to the last step.
        as_json: print `to_json` in place of tables.
        spent: seconds that were spent before, by stage; where there are any, the tokens of the corpus count too.
        many: one of several questions: an object on one line, and a table under its question.
    """
    stop, seconds = stop or Stop(), dict(spent or {})
    corpus, retriever = opened.corpus, opened.retriever
    num_tokens = corpus.cost.embedder_tokens if seconds else 0
    with timed("search", seconds):
        found = search_bank(
            opened.index, asked.question, num_steps, threshold=stop.threshold, learned_stop=stop.learned
        )
    if as_json:
        num_tokens += num_tokens_asked(retriever, asked.question, [corpus.texts[step.chunk] for step in found.steps])
        write_json(to_json(asked, found, corpus, Cost(seconds, num_tokens)), on_one_line=many)
    else:
        print(
            f"{excerpt(asked.question, _MOST_SHOWN)}\n{format_steps(found, corpus)}\n"
            if many
            else format_steps(found, corpus)
        )


def to_json(asked: Asked, found: Trajectory, corpus: Corpus, cost: Cost) -> dict[str, object]:
    """What `--json` prints: steps in order of retrieval, `text` being characters `start` to `end` of the file."""
    return {
        "question": asked.question,
        **({} if asked.id is None else {"id": asked.id}),
        "num_chunks": len(corpus),
        "num_chunks_cut": corpus.num_beyond_window,
        "stop_reason": found.stop_reason,
        "steps": [_step_to_json(number, step, corpus) for number, step in enumerate(found.steps, 1)],
        "cost": {"seconds": dict(cost.seconds), "embedder_tokens": cost.embedder_tokens},  # what was measured
    }


def format_steps(found: Trajectory, corpus: Corpus) -> str:
    """The picks as two aligned tables: in order of retrieval with their Q values, and in document order."""
    rows = [["step", "Q value", "where", "chunk"]]
    for number, step in enumerate(found.steps, 1):
        rows.append([f"{number:>4}", f"{step.q_value:>7.3f}", *_shown_node(step.chunk, corpus)])
    ordered = [_shown_node(node, corpus) for node in sorted(step.chunk for step in found.steps)]
    return "\n".join([*align(rows), "", "in document order:", *align(ordered)])


def _shown_node(node: int, corpus: Corpus) -> list[str]:
    """Where a chunk stands, and how it begins."""
    chunk = corpus.nodes[node]
    place = place_of(corpus.by_id[chunk.document_id], chunk.spans[0][0])
    return [place, excerpt(corpus.texts[node], _MOST_SHOWN)]


def _step_to_json(number: int, step: Step, corpus: Corpus) -> dict[str, object]:
    chunk = corpus.nodes[step.chunk]
    start, end = chunk.spans[0][0], chunk.spans[-1][1]  # one span, as runs read documents
    return {
        "step": number,
        **fields_of(corpus.by_id[chunk.document_id], start),
        "start": start,
        "end": end,
        "text": corpus.texts[step.chunk],
        "q_value": step.q_value,
        "position": step.position,
    }
