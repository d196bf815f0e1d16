"""Search in long texts, 1,000 to a million tokens: time to embed, time per step, memory, and faiss beside it.

    pip install -r benchmarks/rivals.txt                # see there
    python benchmarks/long_context.py                   # about 4 minutes on 2 cores
    python benchmarks/long_context.py --smoke           # under a minute: 1K and 4K tokens

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

`scores` is the part of a step that grows with the text, alone: one state vector against all action vectors, and the
best chunk or the ten best, beside `faiss.IndexFlatIP.search`; and with relative positions (positions, their rotation
and the scores). Calls of ours and of the rival take turns, so that both meet the same machine.

Exponents are slopes of log(value) over log(chunks): over all lengths, and over the last three, where what a call costs
by itself no longer shows.
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from embed import RESULTS, about, about_lines, start_python, write
from embed_engines import CORES

CHUNKS = {"1K": 40, "4K": 160, "32K": 1_280, "128K": 5_120, "1M": 40_000}
WORDS_PER_CHUNK = 20
NUM_STEPS = 6
NUM_WARM = 3
EXPONENTS = ("embed_s", "relative_step_ms", "none_step_ms", "relative_scores_ms", "none_scores_ms", "peak_mib")


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
    ask(lambda question: search_bank(relative, question), questions)
    found["peak_mib"] = peak_mib()
    plain = replace(retriever, env=replace(env, positions="none"))
    rows = VectorRows(vectors)
    action_vectors = plain.action_vectors(rows, vectors)
    index = make_action_bank(plain, vectors, vectors=action_vectors)
    read_all(index, questions)
    found["tokens"] = sum(len(ids) + 2 for ids in retriever.encoder.tokenizer.ids(texts.chunks))
    found |= measure_searches(relative, index, rows, action_vectors, questions)
    found |= measure_parts(relative, index, questions)
    return found | measure_scores(env, action_vectors, states_of(plain, index, questions))


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
    flat = make_flat(action_vectors)
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

    assert faiss.omp_get_max_threads() == CORES
    return run


def make_flat(action_vectors: np.ndarray) -> Any:
    import faiss

    faiss.omp_set_num_threads(CORES)
    flat = faiss.IndexFlatIP(action_vectors.shape[1])
    flat.add(np.ascontiguousarray(action_vectors))
    return flat


def check_same(ours: Sequence[int], theirs: Sequence[int], our_scores: Any, scores: Any) -> None:
    """Refuses different picks, unless the scores of the first that differ are closer than rounding.

    What follows a tie is not compared: in a search, the states are no longer the same.
    """
    for mine, other, score, value in zip(ours, theirs, our_scores, scores, strict=True):
        if abs(score - value) > 1e-4 * max(1.0, abs(value)):
            raise SystemExit(f"ours took chunk {mine} at {score}, faiss {other} at {value}: no result")
        if mine != other:
            return


def states_of(retriever: Any, index: Any, questions: Sequence[str]) -> np.ndarray:
    """State vectors of questions of which nothing is taken yet, float32 [n, dim]."""
    import jax

    asked = index.read_questions(questions)
    taken = np.zeros((len(questions), 0), np.int32)
    return np.asarray(jax.jit(retriever.network.states)(retriever.params, asked, asked, taken))


def measure_parts(relative: Any, plain: Any, questions: Sequence[str]) -> dict:
    """Where a call of `search` spends its time: reading the question, and the compiled 6 steps."""
    from qrag_jax.qrag.batching import Contexts

    everything = np.arange(plain.num_chunks, dtype=np.int32)[None]
    contexts = Contexts(np.zeros(1, np.int32), everything, np.zeros(everything.shape, bool))
    read = ask(lambda q: plain.read_questions([q]), questions)
    found: dict[str, Any] = {"read_question_ms": 1e3 * statistics.median(seconds for seconds, _ in read)}
    asked = [plain.read_questions([q]) for q in questions]
    for name, index in (("relative", relative), ("none", plain)):
        played = ask(lambda q, index=index: np.asarray(index.play(q, contexts, NUM_STEPS).actions), asked)
        found[f"{name}_play_step_ms"] = per_step(played)
    return found


def measure_scores(env: Any, action_vectors: np.ndarray, states: np.ndarray) -> dict:
    """One state against all chunks: the best, the ten best, and with relative positions after three picks."""
    import jax

    from qrag_jax.models.towers.positions import inverse_frequencies, relative_positions, rotary_scores, rotation_table
    from qrag_jax.qrag.policy import greedy

    n, dim = action_vectors.shape
    actions, allowed, places = jax.device_put((action_vectors, np.ones(n, bool), np.arange(n, dtype=np.int32)))
    frequencies, taken = inverse_frequencies(dim), np.asarray([n // 5, n // 2, n - n // 4], np.int32)

    def scores(state: jax.Array, actions: jax.Array) -> jax.Array:
        return rotary_scores(state, actions, None).sum(0)

    def rotated_scores(state: jax.Array, actions: jax.Array, places: jax.Array, taken: jax.Array) -> jax.Array:
        table = rotation_table(relative_positions(places, taken, n, env.delta, env.ell), frequencies, True)
        return rotary_scores(state, actions, table).sum(0)

    best = jax.jit(lambda state, actions, allowed: greedy(scores(state, actions), allowed))
    best_rotated = jax.jit(lambda state, *rest: greedy(rotated_scores(state, *rest[:-1]), rest[-1]))
    ten_best = jax.jit(lambda state, actions: jax.lax.top_k(scores(state, actions), min(10, n))[1])
    values = jax.jit(scores)
    flat = make_flat(action_vectors)
    one = lambda state: [int(best(state, actions, allowed))]  # noqa: E731
    ten = lambda state: np.asarray(ten_best(state, actions)).tolist()  # noqa: E731
    rotated = lambda state: int(best_rotated(state, actions, places, taken, allowed))  # noqa: E731
    none_1, faiss_1, relative = take_turns(states, one, lambda state: flat.search(state[None], 1)[1][0], rotated)
    none_10, faiss_10 = take_turns(states, ten, lambda state: flat.search(state[None], min(10, n))[1][0])
    for ours, theirs in ((none_1, faiss_1), (none_10, faiss_10)):
        for state, (_, mine), (_, other) in zip(states[NUM_WARM:], ours, theirs, strict=True):
            known = np.asarray(values(state, actions))
            check_same(mine, other, known[mine], known[other])
    return {
        "none_scores_ms": median_ms(none_1),
        "faiss_scores_ms": median_ms(faiss_1),
        "faiss_over_none_scores": ratio(faiss_1, none_1),
        "ten_scores_ms": median_ms(none_10),
        "faiss_ten_ms": median_ms(faiss_10),
        "faiss_over_ten": ratio(faiss_10, none_10),
        "relative_scores_ms": median_ms(relative),
        "relative_over_none_scores": ratio(relative, none_1),
    }


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def ask(run: Callable[[Any], Any], questions: Sequence[Any] | np.ndarray) -> list[tuple[float, Any]]:
    """(seconds, result) of each question after the first few, which warm up."""
    return take_turns(questions, run)[0]


def take_turns(
    questions: Sequence[Any] | np.ndarray, *runs: Callable[[Any], Any]
) -> tuple[list[tuple[float, Any]], ...]:
    """`ask` of several functions, question by question; each question starts with another of them."""
    answers: tuple[list[tuple[float, Any]], ...] = tuple([] for _ in runs)
    for number, question in enumerate(questions):
        for turn in range(len(runs)):
            which = (number + turn) % len(runs)
            answers[which].append(timed(lambda run=runs[which], asked=question: run(asked)))
    return tuple(each[NUM_WARM:] for each in answers)


def median_ms(answers: Sequence[tuple[float, Any]]) -> dict[str, float]:
    """Median, least and most milliseconds."""
    taken = [1e3 * seconds for seconds, _ in answers]
    return {"median": statistics.median(taken), "min": min(taken), "max": max(taken)}


def per_step(answers: Sequence[tuple[float, Any]]) -> dict[str, float]:
    return {name: value / NUM_STEPS for name, value in median_ms(answers).items()}


def ratio(numerator: Sequence[tuple[float, Any]], denominator: Sequence[tuple[float, Any]]) -> float:
    """Median over questions of one time over the other."""
    return statistics.median(a / b for (a, _), (b, _) in zip(numerator, denominator, strict=True))


def peak_mib() -> float:
    """Peak resident memory of this process. (`ru_maxrss` would count what the parent held when it started us.)"""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, "Linux"
    return int(found[1]) / 1024


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
    lengths = result["lengths"]
    lines = ["# Search in long texts", ""]
    lines += [f"`python benchmarks/long_context.py --allocator {allocator}`; chunks of {WORDS_PER_CHUNK} words, "]
    lines += [f"{NUM_STEPS} picks a question, medians (min to max) over questions.", "", *about_lines(result["about"])]
    columns = {
        "embed, s": lambda r: f"{r['embed_s']:.2f}",
        "its compilation, s": lambda r: f"{r['embed_compile_s']:.2f}",
        "index, s": lambda r: f"{r['index_s']:.2f}",
        "peak memory, MiB": lambda r: f"{r['peak_mib']:,.0f} ({r['start_mib']:,.0f} before the text)",
        "relative, ms a step": lambda r: spread(r["relative_step_ms"]),
        "none, ms a step": lambda r: spread(r["none_step_ms"]),
        "relative / none": lambda r: f"{r['relative_over_none']:.2f}",
        "faiss / none": lambda r: f"{r['faiss_over_none']:.2f}",
    }
    lines += ["## Whole searches", "", *table(lengths, columns)]
    columns = {
        "question, ms": lambda r: f"{r['read_question_ms']:.2f}",
        "6 steps relative, ms a step": lambda r: spread(r["relative_play_step_ms"]),
        "6 steps none, ms a step": lambda r: spread(r["none_play_step_ms"]),
        "ties": lambda r: f"{r['questions_with_ties']} of {r['questions']}",
        "faiss search, ms a step": lambda r: spread(r["faiss_step_ms"]),
    }
    lines += ["", "## Parts of a search; the same search with faiss", "", *table(lengths, columns)]
    columns = {
        "best, ms": lambda r: spread(r["none_scores_ms"]),
        "faiss best, ms": lambda r: spread(r["faiss_scores_ms"]),
        "faiss / ours": lambda r: f"{r['faiss_over_none_scores']:.2f}",
        "ten best, ms": lambda r: spread(r["ten_scores_ms"]),
        "faiss ten best, ms": lambda r: spread(r["faiss_ten_ms"]),
        "faiss / ours, ten": lambda r: f"{r['faiss_over_ten']:.2f}",
        "relative best, ms": lambda r: spread(r["relative_scores_ms"]),
        "relative / none": lambda r: f"{r['relative_over_none_scores']:.2f}",
    }
    lines += ["", "## Scores alone", "", *table(lengths, columns)]
    lines += ["", "## Exponents", "", "| | all lengths | last three |", "| --- | --- | --- |"]
    lines += [f"| {name} | {e['all']:.2f} | {e['last three']:.2f} |" for name, e in result["exponents"].items()]
    return "\n".join(lines) + "\n"


def spread(value: dict[str, float]) -> str:
    return f"{value['median']:.2f} ({value['min']:.2f} to {value['max']:.2f})"


def table(lengths: dict[str, dict], columns: dict[str, Callable[[dict], str]]) -> list[str]:
    lines = [f"| length | chunks | tokens | {' | '.join(columns)} |", "| --- " * (len(columns) + 3) + "|"]
    for name, row in lengths.items():
        cells = [name, f"{row['chunks']:,}", f"{row['tokens']:,}", *(column(row) for column in columns.values())]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def run(length: str, num_questions: int, allocator: str) -> dict:
    """Measures one length in a fresh process, which is handed its texts, so that it need not hold all speeches."""
    texts = make_texts(CHUNKS[length], num_questions + NUM_WARM)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.json"
        path.write_text(json.dumps(texts._asdict()))
        process = start_python(Path(__file__), ["--texts", str(path)], allocator)
        printed = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{length}: the process failed; its error stands above")
    print(length, printed.splitlines()[-1], flush=True)
    return json.loads(printed.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="*", choices=list(CHUNKS), default=list(CHUNKS))
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--allocator", choices=("plain", "tuned"), default="plain", help="tuned: as the Makefile does")
    parser.add_argument("--smoke", action="store_true", help="1K and 4K, 3 questions, into a folder beside the results")
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
    write(
        RESULTS / ("smoke/speed" if args.smoke else "speed"),
        "long_context",
        result,
        format_report(result, args.allocator),
    )


if __name__ == "__main__":
    main()
