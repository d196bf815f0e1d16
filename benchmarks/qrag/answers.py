"""A retriever that learns from right answers alone, beside one that learns from gold on the same questions.

    python -m benchmarks.qrag.answers run DATA MODEL OUT [--only answers gold labels] [--seeds 0 1 2]
    python -m benchmarks.qrag.answers gains DATA MODEL OUT  # what the reader pays for which paragraphs
    python -m benchmarks.qrag.answers table  # benchmarks/qrag/results/answers/README.md

DATA holds hotpotqa/ with train.jsonl.gz, train_more.jsonl.gz and dev.jsonl.gz. MODEL is a reader that `qrag` loads,
here Qwen2.5-Coder-0.5B-Instruct (Q4_K_M). `run` is, for each kind and seed, `qrag train --config_path
configs/qrag/answers_latent.yaml` on the first 200 train questions that have an answer, and `qrag eval --hotpot` of 2
picks on the dev questions; update 0 is `untrained`. `answers` is paid by the reader; `gold` by gold at the end of an
episode, with the same number of updates and episodes; `labels` adds the ranking loss, which only gold can teach.

Seeds 1 and 2 of `answers` began with a journal of readings, most of them by one H200 in three minutes, which it spent
mainly on compiling. So their seconds are not those of a reader.
"""

import gzip
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import CONFIGS, arguments, grid, interval, machine, place, qrag, tested
from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.data.questions.multihop import read_hotpot
from qrag_jax.measures.aggregate import holm_p_values, mean_interval, over_seeds, paired_difference
from qrag_jax.train.answer_rewards import AnswerRewardConfig, Asked, answer_reward

RESULTS = Path(__file__).parent / "results" / "answers"
KINDS = {
    "answers": [],
    "gold": ["learner.reward=gold"],
    "labels": ["learner.reward=gold", "learner.losses={ranking: 1.0}", "env.ranking_scale=20"],
}
NUM_QUESTIONS, NUM_GAINS = 200, 30


def train_questions(data: Path, out: Path) -> Path:
    """The first train questions with an answer, as a file."""
    rows = []
    for name in ("train", "train_more"):
        with gzip.open(data / "hotpotqa" / f"{name}.jsonl.gz", "rt") as file:
            rows += [line for line in file if (json.loads(line).get("answer") or "").strip()]
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"hotpot_{NUM_QUESTIONS}.jsonl"
    path.write_text("".join(rows[:NUM_QUESTIONS]))
    return path


def run(data: Path, model: str, out: Path, kinds: Sequence[str], seeds: Sequence[int]) -> None:
    """Trains and scores what is not there yet."""
    questions = train_questions(data, out)
    for seed in seeds:
        for kind in kinds:
            path, folder = RESULTS / f"{kind}_{seed}.json", out / f"{kind}_{seed}"
            if path.exists():
                continue
            own = [*KINDS[kind], f"seed={seed}", f"data.paths=[hotpot:{questions}]"]
            if kind == "answers":
                own += [f"answers.llm_model={model}", f"answers.journal={out / f'journal_{seed}.sqlite'}"]
            begun = time.perf_counter()
            config = str(CONFIGS / "answers_latent.yaml")
            qrag("train", "--config_path", config, "--out", str(folder), *own)
            seconds, chosen = time.perf_counter() - begun, out / f"{kind}_{seed}.jsonl"
            methods = "trained,untrained,single_step,bm25" if kind == "answers" else "trained"
            dev = str(data / "hotpotqa" / "dev.jsonl.gz")
            qrag(
                "eval",
                str(folder),
                "--hotpot",
                dev,
                "--protocol",
                "fixed",
                "--methods",
                methods,
                "--per_query",
                str(chosen),
            )
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()[1:]]
            told = {"kind": kind, "seed": seed, "seconds": round(seconds, 1), "first": lines[0], "last": lines[-1]}
            told |= {"reader": load_checkpoint(folder, groups=()).metadata.get("reader"), **machine()}
            path.write_text(json.dumps({"about": told, "questions": _found(chosen)}) + "\n")


def gains(data: Path, model: str, out: Path) -> None:
    """The gain of both gold paragraphs of a question, of each with a wrong one, and of two wrong ones."""
    read = read_hotpot(train_questions(data, out))
    generator = AnswerRewardConfig(llm_model=model, journal=str(out / "journal_0.sqlite")).load()
    asked = []
    for example, right in list(zip(read.examples, read.answers, strict=True))[:NUM_GAINS]:
        first, second = example.gold
        wrong = [i for i in range(len(example.chunks)) if i not in example.gold]
        for picks in (example.gold, (first, wrong[0]), (second, wrong[0]), wrong[:2]):
            asked.append(Asked(example.question, tuple(example.chunks[i] for i in sorted(picks)), right))
    found = np.array(answer_reward("gain", generator)(asked), float).reshape(-1, 4)
    (RESULTS / "gains.json").write_text(json.dumps({"about": machine(), "gains": found.round(4).tolist()}) + "\n")


def _gains() -> str:
    """A line about `gains`; empty before it ran."""
    path = RESULTS / "gains.json"
    if not path.exists():
        return ""
    both, one, other, none = np.array(json.loads(path.read_text())["gains"]).T
    return (
        f"Mean gain in the first {len(both)} train questions (`gains`): both gold paragraphs {both.mean():.2f}, the "
        f"better of them with a wrong one {np.maximum(one, other).mean():.2f}, the worse "
        f"{np.minimum(one, other).mean():.2f}, two wrong ones {none.mean():.2f}."
    )


def _found(path: Path) -> dict[str, dict[str, list[float]]]:
    """By method and question: exact match and F1 of facts."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in map(json.loads, path.read_text().splitlines()):
        found.setdefault(row["method"], {})[row["query_id"]] = [row["fact_em"], row["fact_f1"]]
    return found


def write_table() -> None:
    """The page of all results."""
    kept = {
        kind: [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{kind}_[0-9].json"))] for kind in KINDS
    }
    baselines = kept["answers"][0]["questions"]
    names = list(baselines["trained"])

    def scores(questions: dict[str, list[float]]) -> np.ndarray:
        return np.array([questions[name] for name in names])

    columns = {kind: [scores(one["questions"]["trained"]) for one in own] for kind, own in kept.items() if own}
    columns |= {name: [scores(baselines[name])] for name in ("untrained", "single_step", "bm25")}
    rows = [
        [name, *(interval(over_seeds([mean_interval(one[:, i]) for one in own])) for i in (0, 1)), str(len(own))]
        for name, own in columns.items()
    ]
    pairs = [("answers", "untrained"), ("answers", "single_step"), ("answers", "bm25")]
    pairs += [("answers", kind) for kind in ("gold", "labels") if kind in columns]
    means = {name: np.mean([one[:, 0] for one in own], axis=0) for name, own in columns.items()}
    tests = [paired_difference(means[first], means[second]) for first, second in pairs]
    corrected = holm_p_values([one.p_value for one in tests])
    table = [
        [f"{first} - {second}", *tested(one.mean, one.low, one.high, p, one.n)]
        for (first, second), one, p in zip(pairs, tests, corrected, strict=True)
    ]
    told = (__doc__ or "").split("\n\n", 1)
    parts = ["# " + told[0].rstrip("."), told[1], f"{len(names)} dev questions, 2 picks of 10 paragraphs."]
    parts.append("\n".join(grid(["trained by", "fact EM", "fact F1", "seeds"], rows)))
    parts.append("## Paired tests of fact EM\n\nMean of the seeds; p corrected (Holm).")
    parts.append("\n".join(grid(["pair", "difference", "95% interval", "p (Holm)", "n"], table)))
    parts += filter(None, [_gains()])
    parts.append("## Cost\n\n" + "\n".join(_cost(one["about"]) for own in kept.values() for one in own))
    (RESULTS / "README.md").write_text("\n\n".join(parts) + "\n")


def _cost(one: dict[str, Any]) -> str:
    line, read = f"- {one['kind']}, seed {one['seed']}: {one['seconds']:,.0f} s in all", one["reader"]
    if read is not None:
        line += f", {read['read']:,} sets of passages, {read['tokens']:,} tokens read in {read['seconds']:,.0f} s"
    first, last = one["first"], one["last"]
    line += f"; mean return at update {first['step']} {first['return']:.3f}, at the last {last['return']:.3f}"
    return f"{line}; {place(one)}, commit {one['commit']}"


def main() -> None:
    """Runs the command of the docstring."""
    parser = arguments(__doc__)
    parser.add_argument("stage", choices=("run", "gains", "table"))
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if given.stage == "table":
        write_table()
        return
    data, model, out = Path(given.paths[0]), given.paths[1], Path(given.paths[2])
    if given.stage == "gains":
        gains(data, model, out)
    else:
        run(data, model, out, given.only, given.seeds)


if __name__ == "__main__":
    main()
