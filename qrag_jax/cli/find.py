"""`qrag find`: a trained retriever answers on the user's own text files, with `file:line` of every chunk it picks."""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from qrag_jax.checkpoint import Checkpoint, load_checkpoint
from qrag_jax.cli import say, shown, write_json
from qrag_jax.cli.progress import Progress
from qrag_jax.data.files import FileChunk, read_files, sentence_chunks
from qrag_jax.eval.calibration import stored_threshold
from qrag_jax.eval.tables import align
from qrag_jax.retrieval.retriever import Retriever, load_retriever
from qrag_jax.retrieval.search import check_questions, make_index, search
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
            "eval RUN --vectors DIR`, or search its vectors from Python (qrag_jax.retrieval.search)"
        )
    check_questions(retriever, [question])
    spent = dict(seconds or {})
    with _timed("read", spent):
        chunks = sentence_chunks(read_files(paths))
    num_steps = num_steps or retriever.env.num_steps
    if len(chunks) < num_steps:
        raise InputError(
            f"{', '.join(paths)}: {len(chunks)} chunks cannot give {num_steps} picks: lower --num_steps or give more "
            "text"
        )
    texts = [chunk.plain for chunk in chunks]
    with _timed("embed", spent), Progress(transient=True) as progress:
        index = make_index(retriever, texts, progress.stage("embed"))
    if index.num_texts_cut:
        say(
            f"{index.num_texts_cut:,} of {len(chunks):,} chunks are longer than the {retriever.model.encoder.window} "
            "tokens that this run reads; only their beginning was searched"
        )
    with _timed("search", spent):
        found = search(index, question, num_steps, threshold=threshold, learned_stop=learned_stop)
    if as_json:
        cost = Cost(spent, num_tokens_read(retriever, question, texts, found))
        write_json(to_json(question, found, chunks, index.num_texts_cut, cost))
    else:
        print(format_steps(found, chunks))


def to_json(
    question: str, found: Trajectory, chunks: Sequence[FileChunk], num_texts_cut: int, cost: Cost
) -> dict[str, object]:
    """What `--json` prints: steps in order of retrieval, `text` being characters `start` to `end` of the file."""
    return {
        "question": question,
        "num_chunks": len(chunks),
        "num_chunks_cut": num_texts_cut,
        "stop_reason": found.stop_reason,
        "steps": [_step_to_json(number, step, chunks[step.chunk]) for number, step in enumerate(found.steps, 1)],
        "cost": {"seconds": dict(cost.seconds), "embedder_tokens": cost.embedder_tokens},  # what was measured
    }


def format_steps(found: Trajectory, chunks: Sequence[FileChunk]) -> str:
    """The picks as two aligned tables: in order of retrieval with their Q values, and in document order."""
    rows = [["step", "Q value", "where", "chunk"]]
    for number, step in enumerate(found.steps, 1):
        chunk = chunks[step.chunk]
        rows.append([f"{number:>4}", f"{step.q_value:>7.3f}", shown(chunk.place), _short(chunk.plain)])
    in_order = [chunks[i] for i in sorted(step.chunk for step in found.steps)]
    ordered = [[shown(chunk.place), _short(chunk.plain)] for chunk in in_order]
    return "\n".join([*align(rows), "", "in document order:", *align(ordered)])


def num_tokens_read(retriever: Retriever, question: str, texts: Sequence[str], found: Trajectory) -> int:
    """Tokens that were encoded, [CLS] and [SEP] counted: every chunk, the question, and in text mode every state."""
    assert retriever.encoder is not None
    tokenizer, model = retriever.encoder.tokenizer, retriever.model
    lengths = [min(len(ids) + 2, model.encoder.window) for ids in tokenizer.ids(texts)]
    in_question = tokenizer.count(question) + 2
    if model.mode == "latent":
        return sum(lengths) + in_question
    added = [min(lengths[step.chunk] - 1, model.state_chunk_window) for step in found.steps]
    return sum(lengths) + sum(in_question + sum(added[:t]) for t in range(len(added)))


def _step_to_json(number: int, step: Step, chunk: FileChunk) -> dict[str, object]:
    return {
        "step": number,
        "file": chunk.document_id,
        "line": chunk.line,
        "start": chunk.start,
        "end": chunk.end,
        "text": chunk.text,
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
