"""How much of the evidence a context of so many tokens holds: plain, widened, and merged into sections (Auto-Merge).

    nice python benchmarks/evidence_recall.py DATA [--questions N] [--out FOLDER]   # 20 minutes on 2 idle CPU cores

DATA holds the folders scisumm, squad, chroma and wikitext2. Sparse evidence: citances that ask for sentences of 60
papers, SQuAD (a sample), Chroma's questions. Dense evidence: the titles of sections ask for whole sections of
WikiText-2, in texts without the headings.

Rows are chunkers of at most 200 tokens: `fixed`; `breakpoint` (semantic, percentile 80); `headings`, the sections that
are really there, of WikiText-2 those whose headings were removed. SQuAD and Chroma's texts have none, so there all
chunks hang on the document, and merging is all of it or nothing. A source of points that has to be handed in, as a
tagger, is another line of `STRATEGIES` once a study takes one.

Each has three fills and budgets of 500, 1,000, 2,000 and 4,000 tokens, the last chunk cut at the budget. Chunks are
ranked by MiniLM's cosine. ERec with 95% bootstrap intervals, and each fill minus plain on the same questions
(`eval/study/cells/contexts.py`). Nothing is chosen by the questions. What is finished is kept in the folder of `--out`,
and the same line goes on from there.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig
from qrag_jax.chunking.strategies.hierarchy import HierarchyConfig
from qrag_jax.chunking.text.splitters import make_splitter
from qrag_jax.eval.study.cells.encoder import load_study_encoder
from qrag_jax.eval.study.config import FILLS, StudyConfig, TaskConfig, TaskKind
from qrag_jax.eval.study.records import StudyResult
from qrag_jax.eval.study.results.recall import RECALL_NOTE, recall_heading, recall_table
from qrag_jax.eval.study.runner import run_study
from qrag_jax.eval.study.tasks import load_task

RESULTS = Path(__file__).parent / "results"
BUDGETS = (500, 1000, 2000, 4000)
MOST_TOKENS = 200
SPARSE = ("scisumm", "squad", "chroma")
DENSE = "wikitext2"
MOST = {"squad": (8, 600)}  # documents of 24 and questions, for time
STRATEGIES = {
    "fixed": (ChunkConfig("fixed", MOST_TOKENS),),
    "breakpoint": (ChunkConfig("breakpoint", MOST_TOKENS, breakpoint=BreakpointConfig("percentile", 80.0)),),
    "headings": (ChunkConfig("hierarchy", MOST_TOKENS, hierarchy=HierarchyConfig("headings")),),
}


def study(data: str, names: list[str], most: int | None) -> StudyConfig:
    """Nothing is chosen: no set has as many dev questions as are asked for."""
    kinds: dict[str, TaskKind] = {"scisumm": "scisumm", "squad": "squad", "chroma": "chroma", DENSE: "headings"}
    tasks = {
        name: TaskConfig(
            kinds[name],
            name,
            questions=DENSE if name == DENSE else "",
            num_documents=MOST[name][0] if name in MOST else None,
            num_questions=most or (MOST[name][1] if name in MOST else None),
        )
        for name in names
    }
    return StudyConfig(
        tasks, STRATEGIES, data=data, min_dev_questions=sys.maxsize, budgets=BUDGETS, fills=FILLS, ks=(5,), report_k=5
    )


def goals(result: StudyResult) -> list[str]:
    """What Auto-Merge changes on the sections that are really there."""
    own = {
        (one.task, one.budget): one
        for one in result.comparisons
        if one.measure == "erec" and one.fill == "merge" and one.strategy == "headings"
    }
    lines = []
    for task in [*SPARSE, DENSE]:
        told = [
            f"{one.difference:+.3f} [{one.low:+.3f}, {one.high:+.3f}] at {budget:,}"
            for (name, budget), one in own.items()
            if name == task
        ]
        lines += [f"- {task}: {', '.join(told)}"] if told else []
    return lines


def format_report(result: StudyResult, command: str, seconds: float, about: str) -> str:
    lines = ["# Evidence in contexts: plain, widened, merged", "", f"`{command}`, {seconds:,.0f} s. {about}", ""]
    lines += ["Auto-Merge minus plain, sections as they are (`headings`):", "", *goals(result), ""]
    lines += [RECALL_NOTE, ""]
    for task in dict.fromkeys(row.task for row in result.rows):
        rows = [row for row in result.rows if row.task == task]
        head, *body = recall_table(result, task)
        sizes = {row.strategy: f"{row.num_chunks:,} chunks of {row.mean_tokens:.0f} tokens" for row in rows}
        lines += [f"## {recall_heading(task)}", ""]
        lines += [f"{rows[0].n:,} questions, {rows[0].num_documents} documents; "]
        lines[-1] += ", ".join(f"{name}: {size}" for name, size in sizes.items()) + "."
        lines += ["", f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in body]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", help="folder of the data sets")
    parser.add_argument("--questions", type=int, help="most questions of a set, drawn (default: all; of squad 600)")
    parser.add_argument("--tasks", nargs="+", default=[DENSE, *SPARSE], choices=[DENSE, *SPARSE])
    parser.add_argument("--out", default="runs/evidence_recall", help="what is kept (default: runs/evidence_recall)")
    args = parser.parse_args()
    start = time.perf_counter()
    config = study(args.data, args.tasks, args.questions)
    split = make_splitter(config.splitter, config.language)
    tasks = [load_task(name, how, config.data, config.seed, split) for name, how in config.tasks.items()]
    for task in tasks:
        print(f"{task.name}: {len(task.questions):,} questions, {len(task.documents)} documents {dict(task.left_out)}")
    encoder = load_study_encoder(config.model, config.window)
    result = run_study(config, tasks, encoder, Path(args.out))
    options = ([f"--questions {args.questions}"] if args.questions else []) + (
        [f"--tasks {' '.join(args.tasks)}"] if len(args.tasks) < 4 else []
    )
    command = " ".join(["python benchmarks/evidence_recall.py DATA", *options])
    seconds = time.perf_counter() - start
    report = format_report(result, command, seconds, f"{os.cpu_count()} CPU cores, shared.")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "evidence_recall.md").write_text(report)
    rows = [asdict(one) for one in (*result.rows, *result.comparisons)]
    value = {"command": command, "seconds": seconds, "rows": rows, "notes": list(result.notes)}
    (RESULTS / "evidence_recall.json").write_text(json.dumps(value, indent=1) + "\n")
    print(report)


if __name__ == "__main__":
    main()
