"""How much of the evidence a context of so many tokens holds: plain, widened, and merged into sections (Auto-Merge).

    nice python benchmarks/evidence_recall.py DATA [--questions N] [--out FOLDER]   # 20 minutes on 2 idle CPU cores

DATA holds the folders scisumm, squad, chroma and wikitext2. Sparse evidence: citances that ask for sentences of 60
papers, SQuAD (a sample), Chroma's questions. Dense evidence: the titles of sections ask for whole sections of
WikiText-2, in texts without the headings.

Rows are chunkers of at most 200 tokens: `fixed`; `breakpoint` (semantic, percentile 80); `headings`, the sections that
are really there, of WikiText-2 those whose headings were removed. SQuAD and Chroma's texts have none, so there all
chunks hang on the document, and merging is all of it or nothing. `tagger` is what the packaged tagger finds. It has
learned from two of three of these articles, so it has its own set, `unseen`: the questions of the articles that it has
not seen, with all strategies.

Each has three fills and budgets of 500, 1,000, 2,000 and 4,000 tokens, the last chunk cut at the budget. Chunks are
ranked by MiniLM's cosine. ERec with 95% bootstrap intervals, and each fill minus plain on the same questions
(`eval/study/cells/contexts.py`). Nothing is chosen by the questions. What is finished is kept in the folder of `--out`,
and the same line goes on from there.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from embed import about, about_lines
from tagger_default import LEFT_OUT

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig
from qrag_jax.chunking.strategies.hierarchy import HierarchyConfig
from qrag_jax.chunking.text.splitters import make_splitter
from qrag_jax.data.corpora.study_task import StudyTask
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
UNSEEN = "unseen"  # of DENSE, what the packaged tagger has not learned from
ALL = [DENSE, UNSEEN, *SPARSE]
MOST = {"squad": (8, 600)}  # documents of 24 and questions, for time
Strategies = Mapping[str, tuple[ChunkConfig, ...]]
STRATEGIES: Strategies = {
    "fixed": (ChunkConfig("fixed", MOST_TOKENS),),
    "breakpoint": (ChunkConfig("breakpoint", MOST_TOKENS, breakpoint=BreakpointConfig("percentile", 80.0)),),
    "headings": (ChunkConfig("hierarchy", MOST_TOKENS, hierarchy=HierarchyConfig("headings")),),
}
TAGGED: Strategies = {
    **STRATEGIES,
    "tagger": (ChunkConfig("hierarchy", MOST_TOKENS, hierarchy=HierarchyConfig("tagger")),),
}


def study(data: str, names: Sequence[str], strategies: Strategies, most: int | None) -> StudyConfig:
    """Nothing is chosen: no set has as many dev questions as are asked for."""
    kinds: dict[str, TaskKind] = {"scisumm": "scisumm", "squad": "squad", "chroma": "chroma"}
    tasks = {
        name: TaskConfig(
            kinds.get(name, "headings"),
            DENSE if name == UNSEEN else name,
            questions=DENSE if name in (DENSE, UNSEEN) else "",
            num_documents=MOST[name][0] if name in MOST else None,
            num_questions=most or (MOST[name][1] if name in MOST else None),
        )
        for name in names
    }
    return StudyConfig(
        tasks,
        dict(strategies),
        data=data,
        min_dev_questions=sys.maxsize,
        budgets=BUDGETS,
        fills=FILLS,
        ks=(5,),
        report_k=5,
    )


def run(args: argparse.Namespace, names: Sequence[str], strategies: Strategies) -> StudyResult:
    """All strategies on the tasks of these names."""
    config = study(args.data, names, strategies, args.questions)
    split = make_splitter(config.splitter, config.language)
    tasks = [load_task(name, how, config.data, config.seed, split) for name, how in config.tasks.items()]
    tasks = [unseen(task) if task.name == UNSEEN else task for task in tasks]
    for task in tasks:
        print(f"{task.name}: {len(task.questions):,} questions, {len(task.documents)} documents {dict(task.left_out)}")
    encoder = load_study_encoder(config.model, config.window)
    return run_study(config, tasks, encoder, Path(args.out) / "-".join(names))


def unseen(task: StudyTask) -> StudyTask:
    """The articles that the packaged tagger has not learned from (`tagger_default.py`), and their questions."""
    documents = task.documents[::LEFT_OUT]
    ids = {document.id for document in documents}
    return replace(
        task,
        documents=documents,
        questions=tuple(question for question in task.questions if ids.issuperset(question.relevant)),
        sentences={name: spans for name, spans in task.sentences.items() if name in ids},
        sections={name: spans for name, spans in task.sections.items() if name in ids},
    )


def goals(result: StudyResult, strategy: str) -> list[str]:
    """What Auto-Merge changes on the sections of a strategy."""
    own = {
        (one.task, one.budget): one
        for one in result.comparisons
        if one.measure == "erec" and one.fill == "merge" and one.strategy == strategy
    }
    lines = []
    for task in dict.fromkeys(name for name, _ in own):
        told = [
            f"{one.difference:+.3f} [{one.low:+.3f}, {one.high:+.3f}] at {budget:,}"
            for (name, budget), one in own.items()
            if name == task
        ]
        lines += [f"- {task}: {', '.join(told)}"] if told else []
    return lines


def format_report(results: Sequence[StudyResult], command: str, seconds: float, machine: dict) -> str:
    told = f"`{command}`, seed {StudyConfig.seed}, {seconds:,.0f} s."
    lines = ["# Evidence in contexts: plain, widened, merged", "", told, "", *about_lines(machine)]
    for strategy, what in (("headings", "sections as they are"), ("tagger", "sections that the packaged tagger finds")):
        told = [line for result in results for line in goals(result, strategy)]
        lines += [f"Auto-Merge minus plain, {what} (`{strategy}`):", "", *told, ""] if told else []
    lines += [RECALL_NOTE, ""]
    for result in results:
        for task in dict.fromkeys(row.task for row in result.rows):
            lines += task_lines(result, task)
    return "\n".join(lines)


def task_lines(result: StudyResult, task: str) -> list[str]:
    rows = [row for row in result.rows if row.task == task]
    head, *body = recall_table(result, task)
    sizes = {row.strategy: f"{row.num_chunks:,} chunks of {row.mean_tokens:.0f} tokens" for row in rows}
    told = ", ".join(f"{name}: {size}" for name, size in sizes.items())
    lines = [f"## {recall_heading(task)}", "", f"{rows[0].n:,} questions, {rows[0].num_documents} documents; {told}."]
    lines += ["", f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in body), ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", help="folder of the data sets")
    parser.add_argument("--questions", type=int, help="most questions of a set, drawn (default: all; of squad 600)")
    parser.add_argument("--tasks", nargs="+", default=ALL, choices=ALL)
    parser.add_argument("--out", default="runs/evidence_recall", help="what is kept (default: runs/evidence_recall)")
    parser.add_argument("--name", default="evidence_recall", help="of the files in results/")
    args = parser.parse_args()
    start = time.perf_counter()
    parts = [([name for name in args.tasks if (name == DENSE) == plain], plain) for plain in (True, False)]
    results = [run(args, names, STRATEGIES if plain else TAGGED) for names, plain in parts if names]
    options = ([f"--questions {args.questions}"] if args.questions else []) + (
        [f"--tasks {' '.join(args.tasks)}"] if args.tasks != ALL else []
    )
    command = " ".join(["python benchmarks/evidence_recall.py DATA", *options])
    seconds = time.perf_counter() - start
    machine = about()
    report = format_report(results, command, seconds, machine)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{args.name}.md").write_text(report)
    rows = [asdict(one) for result in results for one in (*result.rows, *result.comparisons)]
    notes = [note for result in results for note in result.notes]
    head = json.dumps(
        {"command": command, "seed": StudyConfig.seed, "seconds": seconds, "about": machine, "notes": notes}
    )[:-1]
    body = ",\n".join(map(json.dumps, rows))
    (RESULTS / f"{args.name}.json").write_text(f'{head}, "rows": [\n{body}\n]}}\n')
    print(report)


if __name__ == "__main__":
    main()
