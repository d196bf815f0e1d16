"""`qrag find`: a trained retriever answers on the user's own text files, with `file:line` of every chunk it picks."""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from qrag_jax.checkpoint import Checkpoint, load_checkpoint
from qrag_jax.chunking.units import unit_chunks
from qrag_jax.cli.progress import WithBar
from qrag_jax.cli.terminal import say, shown, write_json
from qrag_jax.data.files.documents import read_files
from qrag_jax.eval.picks.calibration import stored_threshold
from qrag_jax.eval.tables import align
from qrag_jax.retrieval.context.fill import line_of
from qrag_jax.retrieval.corpus.corpus import Corpus, build_corpus, embed_corpus
from qrag_jax.retrieval.index.retriever import Retriever, load_retriever
from qrag_jax.retrieval.index.search import check_questions, index_corpus, num_tokens_asked, search
from qrag_jax.types import Cost, InputError, Step, Trajectory, UsageError

_MOST_SHOWN = 100  # characters of a chunk in a table


def run(args: argparse.Namespace) -> int:
    """Runs `qrag find`; see `qrag find --help`."""
    seconds: dict[str, float] = {}
    with _timed("load", seconds):
        saved = load_checkpoint(args.run, groups=())
        retriever = load_retriever(saved.folder)
        threshold = _own_threshold(saved, retriever) if args.stop else None
    learned = args.stop and retriever.env.stop
    print_answer(
        retriever,
        args.paths,
        args.question,
        args.num_steps,
        as_json=args.json,
        seconds=seconds,
        threshold=threshold,
        learned_stop=learned,
    )
    return 0


def _own_threshold(saved: Checkpoint, retriever: Retriever) -> float | None:
    """The threshold that a run keeps; None for one with a learned STOP, which needs none.

    Raises:
        UsageError: the run has neither.
    """
    if retriever.env.stop:
        return None
    threshold = stored_threshold(saved.metadata)
    if threshold is None:
        raise UsageError(
            f"--stop: {saved.folder} does not know when to stop; train it with dev.share=0.1 (a threshold from "
            "held-out questions) or with env.stop=true env.reward=at_end (a learned stop)"
        )
    return threshold.value


def print_answer(
    retriever: Retriever,
    paths: Sequence[str],
    question: str,
    num_steps: int | None = None,
    *,
    as_json: bool = False,
    seconds: Mapping[str, float] | None = None,
    threshold: float | None = None,
    learned_stop: bool = False,
) -> None:
    """Searches text files and prints what was found on standard output; what was cut is said on standard error.

    Args:
        retriever: a trained one, of texts.
        paths: files, and folders of .txt and .md.
        question: what to look for.
        num_steps: chunks to pick; None takes as many as in training.
        as_json: print `to_json` in place of tables.
        seconds: what was spent before, by stage.
        threshold: as of `retrieval.search.search`.
        learned_stop: as of `retrieval.search.search`.

    Raises:
        UsageError: a path does not exist, or the retriever has no text encoder.
        InputError: a file that cannot be read, too few chunks, or a question that cannot be asked.
    """
    if retriever.encoder is None:
        raise UsageError(
            "this run was trained on given vectors and has no text encoder to read files with: score it with `qrag "
            "eval RUN --vectors DIR`, or search its vectors from Python (qrag_jax.retrieval.index.search)"
        )
    check_questions(retriever, [question])
    spent = dict(seconds or {})
    encoder, count = WithBar(retriever.chunk_encoder), retriever.encoder.tokenizer.count
    with _timed("read", spent):
        corpus = build_corpus(read_files(paths), lambda document: unit_chunks(document, count))
    num_steps = num_steps or retriever.env.num_steps
    if len(corpus) < num_steps:
        raise InputError(
            f"{', '.join(paths)}: {len(corpus)} chunks cannot give {num_steps} picks: lower --num_steps or give more "
            "text"
        )
    with _timed("embed", spent):
        corpus = embed_corpus(corpus, encoder)
        index = index_corpus(retriever, corpus)
    if corpus.num_beyond_window:
        say(
            f"{corpus.num_beyond_window:,} of {len(corpus):,} chunks are longer than the "
            f"{retriever.model.encoder.window} tokens that this run reads; only their beginning was searched"
        )
    with _timed("search", spent):
        found = search(index, question, num_steps, threshold=threshold, learned_stop=learned_stop)
    if as_json:
        picked = [corpus.texts[step.chunk] for step in found.steps]
        num_tokens = corpus.cost.embedder_tokens + num_tokens_asked(retriever, question, picked)
        write_json(to_json(question, found, corpus, Cost(spent, num_tokens)))
    else:
        print(format_steps(found, corpus))


def to_json(question: str, found: Trajectory, corpus: Corpus, cost: Cost) -> dict[str, object]:
    """What `--json` prints: steps in order of retrieval, `text` being characters `start` to `end` of the file."""
    return {
        "question": question,
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
    """`file:line`, and how the chunk begins."""
    chunk = corpus.nodes[node]
    line = line_of(corpus.by_id[chunk.document_id].text, chunk.spans[0][0])
    return [shown(f"{chunk.document_id}:{line}"), _short(" ".join(corpus.texts[node].split()))]


def _step_to_json(number: int, step: Step, corpus: Corpus) -> dict[str, object]:
    chunk = corpus.nodes[step.chunk]
    ((start, end),) = chunk.spans
    return {
        "step": number,
        "file": chunk.document_id,
        "line": line_of(corpus.by_id[chunk.document_id].text, start),
        "start": start,
        "end": end,
        "text": corpus.texts[step.chunk],
        "q_value": step.q_value,
        "position": step.position,
    }


def _short(text: str) -> str:
    """One line of a table; `--json` has the whole text."""
    return shown(text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "...")


@contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = round(time.perf_counter() - start, 3)
