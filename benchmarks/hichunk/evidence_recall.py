"""How much of the evidence a context of so many tokens holds: plain, widened, and merged into sections (Auto-Merge).

    nice python -m benchmarks.hichunk.evidence_recall DATA [--questions N] [--out FOLDER]  # 35 minutes on 2 cores

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
(`eval/study/cells/filled_contexts.py`). Nothing is chosen by the questions.

A section that is asked for is a node of the tree of `headings`, so what merging gains there may be due to any larger
pieces of text. The control is `random`: of every article as many sections at the same levels, which begin with
sentences that are drawn (five draws), cut, ranked and merged in the same way.

What is finished is kept in the folder of `--out`, and the same line goes on from there. With `--tasks` or
`--strategies` the other rows of the page stay as they are; the page names the commit of each.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common import about, about_lines, arguments, grid, read_json, write_json
from benchmarks.hichunk.random_sections import (
    DRAWS,
    NO_TITLE,
    Control,
    at_random,
    changed,
    control,
    control_lines,
    kept_share,
    recall_of,
    tagged_sections,
    untitled_lines,
)
from benchmarks.hichunk.tagger_default import LEFT_OUT
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig
from qrag_jax.chunking.strategies.hierarchy import HierarchyConfig
from qrag_jax.chunking.text.blocks import make_unit_splitter
from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.study.cells.sentence_cache import SentenceCache
from qrag_jax.eval.study.cells.study_encoder import load_study_encoder
from qrag_jax.eval.study.config import StudyConfig, TaskConfig
from qrag_jax.eval.study.load_tasks import load_task
from qrag_jax.eval.study.records import StudyComparison, StudyResult, StudyRow
from qrag_jax.eval.study.results.study_tables import RECALL_NOTE, recall_heading, recall_table
from qrag_jax.eval.study.runner import run_study
from qrag_jax.eval.tables import share
from qrag_jax.measures.aggregate import Difference, holm_p_values
from qrag_jax.names import FILLS, FillName, TaskKind
from qrag_jax.types import Cost

RESULTS = Path(__file__).parent / "results"

BUDGETS = (500, 1000, 2000, 4000)
MAX_TOKENS = 200
SPARSE = ("scisumm", "squad", "chroma")
DENSE = "wikitext2"
UNSEEN = "unseen"  # of DENSE, what the packaged tagger has not learned from
ALL = [DENSE, UNSEEN, *SPARSE]
MOST = {"squad": (8, 600)}  # documents of 24 and questions, for time
STRATEGIES: Mapping[str, tuple[ChunkConfig, ...]] = {
    "fixed": (ChunkConfig("fixed", MAX_TOKENS),),
    "breakpoint": (ChunkConfig("breakpoint", MAX_TOKENS, breakpoint=BreakpointConfig("percentile", 80.0)),),
    "headings": (ChunkConfig("hierarchy", MAX_TOKENS, hierarchy=HierarchyConfig("headings")),),
    "tagger": (ChunkConfig("hierarchy", MAX_TOKENS, hierarchy=HierarchyConfig("tagger")),),
}
CONTROLS = ((DENSE, "headings"), (UNSEEN, "headings"), (UNSEEN, "tagger"))  # set, whose sections


@dataclass(frozen=True)
class Page:
    """All that is told.

    Attributes:
        rows: of all sets, strategies, fills and budgets.
        comparisons: fills minus plain, by question, and the tests of `controls`, by document: one family.
        controls: of sections and random ones.
        shares: budget -> share of the gain of real sections that those of the tagger have, and its interval.
        commits: "SET STRATEGY" -> where its rows were made.
    """

    rows: Sequence[StudyRow]
    comparisons: Sequence[StudyComparison]
    controls: Sequence[Control]
    shares: Mapping[str, tuple[float, float, float]]
    commits: Mapping[str, str]


# --- runs ------------------------------------------------------------------------------------------------------------


def study(
    data: str, names: Sequence[str], strategies: Sequence[str], fills: tuple[FillName, ...], most: int | None
) -> StudyConfig:
    """Nothing is chosen: no set has as many dev questions as are asked for."""
    kinds: dict[str, TaskKind] = {"scisumm": "scisumm", "squad": "squad", "chroma": "chroma"}
    tasks = {
        name: TaskConfig(
            kinds.get(name, "headings"),
            name if name in SPARSE else DENSE,
            questions="" if name in SPARSE else DENSE,
            num_documents=MOST[name][0] if name in MOST else None,
            num_questions=most or (MOST[name][1] if name in MOST else None),
        )
        for name in names
    }
    return StudyConfig(
        tasks,
        {name: STRATEGIES[name] for name in strategies},
        baseline=strategies[0],
        data=data,
        min_dev_questions=sys.maxsize,
        budgets=BUDGETS,
        fills=fills,
        ks=(5,),
        report_k=5,
    )


def run(args: argparse.Namespace, commit: str) -> Page:
    """All strategies on the sets, and random sections beside those that have them."""
    config = study(args.data, args.tasks, args.strategies, FILLS, args.questions)
    split = make_splitter(config.splitter, config.language)
    tasks = {name: load_task(name, how, config.data, config.seed, split) for name, how in config.tasks.items()}
    tasks |= {UNSEEN: unseen(tasks[UNSEEN])} if UNSEEN in tasks else {}
    for task in tasks.values():
        print(f"{task.name}: {len(task.questions):,} questions, {len(task.documents)} documents {dict(task.left_out)}")
    encoder, out = load_study_encoder(config.model, config.window), Path(args.out)

    def results(
        name: str, given: Sequence[StudyTask], strategies: Sequence[str], fills: tuple[FillName, ...] = FILLS
    ) -> list[StudyResult]:
        if not given or not strategies:
            return []
        own = study(args.data, [task.name for task in given], strategies, fills, args.questions)
        return [run_study(own, given, encoder, out / name)]

    untagged = [name for name in args.strategies if name != "tagger"]  # it has learned from DENSE
    found = results(DENSE, [task for task in tasks.values() if task.name == DENSE], untagged)
    found += results("others", [task for task in tasks.values() if task.name != DENSE], args.strategies)
    asked = [(tasks[name], strategy) for name, strategy in CONTROLS if name in tasks and strategy in args.strategies]
    drawn: list[StudyTask] = []
    for task, strategy in asked:
        sections = task.sections
        if strategy == "tagger":
            kept = SentenceCache(out / "others" / "sentences")  # the strategy itself has embedded them
            sections = tagged_sections(task, encoder, kept, make_unit_splitter(split))
        drawn += [at_random(task, strategy, sections, draw) for draw in DRAWS]
    recall = recall_of([*found, *results("random", drawn, ["headings"], ("plain", "merge"))])
    pairs = [control(task, strategy, budget, recall) for task, strategy in asked for budget in BUDGETS]
    rows = [row for result in found for row in result.rows]
    both = {strategy for task, strategy in asked if task.name == UNSEEN} == {"headings", "tagger"}
    comparisons = [one for result in found for one in result.comparisons if one.fill]
    comparisons += [one for _, tests in pairs for one in tests]
    shares = {f"{budget:,}": kept_share(tasks[UNSEEN], budget, recall) for budget in BUDGETS[2:]} if both else {}
    commits = {f"{row.task} {row.strategy}": commit for row in rows}
    return Page(rows, comparisons, [one for one, _ in pairs], shares, commits)


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


# --- the page --------------------------------------------------------------------------------------------------------


def together(new: Page, old: Page) -> Page:
    """New rows and the old ones of other sets and strategies; Holm's correction counts all comparisons together."""
    is_kept = lambda one: (one.task, one.strategy) not in made  # noqa: E731
    made = {(row.task, row.strategy) for row in new.rows}
    made |= {(task, f"random for {strategy}") for task, strategy in made}
    comparisons = [*new.comparisons, *filter(is_kept, old.comparisons)]
    by_question = holm_p_values([one.p_value for one in comparisons])
    tested = [one.p_value if one.p_by_document is None else one.p_by_document for one in comparisons]
    by_document = holm_p_values(tested)
    return Page(
        sorted([*new.rows, *filter(is_kept, old.rows)], key=lambda row: (ALL.index(row.task), _rank(row))),
        [
            replace(one, p_holm=p_holm, p_holm_by_document=own)
            for one, p_holm, own in zip(comparisons, by_question, by_document, strict=True)
        ],
        [*new.controls, *filter(is_kept, old.controls)],
        new.shares or old.shares,
        {**old.commits, **new.commits},
    )


def _rank(row: StudyRow) -> int:
    return list(STRATEGIES).index(row.strategy)


def read_page(path: Path) -> Page:
    """What stands there; nothing where there is no such file."""
    read = read_json(path)
    if not read:
        return Page([], [], [], {}, {})
    return Page(
        [StudyRow(**{**row, "cost": Cost(**row["cost"])}) for row in read["rows"]],
        [StudyComparison(**one) for one in read["comparisons"]],
        [Control(**{**one, "titled_gain": Difference(**one["titled_gain"])}) for one in read["controls"]],
        read["shares"],
        read["commits"],
    )


def goals(page: Page, strategy: str) -> Iterator[str]:
    """What Auto-Merge changes on the sections of a strategy."""
    own = [one for one in page.comparisons if (one.strategy, one.fill, one.baseline) == (strategy, "merge", "plain")]
    for task in ALL:
        told = [f"{changed(one)} at {one.budget:,}" for one in own if one.task == task]
        if told:
            yield f"- {task}: {', '.join(told)}"


def commit_lines(commits: Mapping[str, str]) -> Iterator[str]:
    for commit in dict.fromkeys(commits.values()):
        yield f"- {commit}: {by_set(name for name, its in commits.items() if its == commit)}"


def by_set(names: Iterable[str]) -> str:
    """Names "SET STRATEGY" as `set: strategies; set: strategies`."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        task, _, strategy = name.partition(" ")
        found.setdefault(task, []).append(strategy)
    return "; ".join(f"{task}: {', '.join(own)}" for task, own in found.items())


def format_report(page: Page, command: str, seconds: float, machine: dict[str, Any]) -> str:
    lines = ["# Evidence in contexts: plain, widened, merged", ""]
    lines += [f"`{command}`, seed {StudyConfig.seed}, {seconds:,.0f} s.", "", *about_lines(machine)]
    lines += ["Rows by the commit that made them:", "", *commit_lines(page.commits), ""]
    single = [one for one in page.comparisons if one.p_by_document is None]
    lines += [
        f"{RECALL_NOTE} The correction is Holm's, for one family: all {len(page.comparisons)} comparisons of this "
        f"page. By question are {len(single)} of them ({by_set(f'{one.task} {one.strategy}' for one in single)}).",
        "",
    ]
    for strategy, what in (("headings", "sections as they are"), ("tagger", "sections that the packaged tagger finds")):
        told = list(goals(page, strategy))
        lines += [f"Auto-Merge minus plain, {what} (`{strategy}`):", "", *told, ""] if told else []
    if page.controls:
        lines += [
            "## Random sections",
            "",
            "Each article gets as many sections as it has, at the same levels in the same order, but they begin with "
            f"random sentences. The table shows means of {len(DRAWS)} draws, and the range of the draws; all is by "
            "document. `more than random`: "
            "merged - plain of the sections less that of the random ones.",
            "",
            *control_lines(page.controls, page.comparisons),
            "",
        ]
    if page.shares:
        told = [
            f"{share(mean, 2)} [{share(low, 2)}, {share(high, 2)}] at {at}"
            for at, (mean, low, high) in page.shares.items()
        ]
        lines += [
            "Share of the gain of the real sections that those of the tagger keep, `unseen` (percentile bootstrap over "
            f"documents): {', '.join(told)}.",
            "",
        ]
    if page.controls:
        lines += [
            f"## Without articles whose title is only `{NO_TITLE}`",
            "",
            "A section that is asked for is a node of the tree of `headings`. These questions do not name their "
            "article; the others by document, without a test:",
            "",
            *untitled_lines(page.controls, page.comparisons),
            "",
        ]
    for task in dict.fromkeys(row.task for row in page.rows):
        lines += task_lines(page, task)
    return "\n".join(lines)


def task_lines(page: Page, task: str) -> list[str]:
    rows = [row for row in page.rows if row.task == task]
    fills = [one for one in page.comparisons if one.baseline == "plain"]
    head, *body = recall_table(StudyResult(5, (5,), "plain", tuple(rows), tuple(fills)), task)
    sizes = {row.strategy: f"{row.num_chunks:,} chunks of {row.mean_tokens:.0f} tokens" for row in rows}
    told = ", ".join(f"{name}: {size}" for name, size in sizes.items())
    lines = [f"## {recall_heading(task)}", "", f"{rows[0].n:,} questions, {rows[0].num_documents} documents; {told}."]
    return [*lines, "", *grid(head, body), ""]


def to_json(page: Page, head: Mapping[str, Any]) -> dict[str, Any]:
    """The rows, comparisons and controls of a page, with what made it."""
    lists = {name: [asdict(one) for one in getattr(page, name)] for name in ("rows", "comparisons", "controls")}
    return {**head, "shares": page.shares, "commits": page.commits, **lists}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", metavar="DATA", help="folder of the data sets")
    parser.add_argument("--questions", type=int, help="most questions of a set, drawn (default: all; of squad 600)")
    parser.add_argument("--tasks", nargs="+", default=ALL, choices=ALL)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--out", default="runs/evidence_recall", help="what is kept (default: runs/evidence_recall)")
    parser.add_argument("--name", default="evidence_recall", help="of the files in results/")
    args = parser.parse_args()
    start, machine = time.perf_counter(), about()
    page = together(run(args, machine["commit"]), read_page(RESULTS / f"{args.name}.json.gz"))
    command = "python -m benchmarks.hichunk.evidence_recall DATA"
    command += f" --questions {args.questions}" if args.questions else ""
    command += f" --tasks {' '.join(args.tasks)}" if args.tasks != ALL else ""
    command += f" --strategies {' '.join(args.strategies)}" if args.strategies != list(STRATEGIES) else ""
    seconds = time.perf_counter() - start
    report = format_report(page, command, seconds, machine)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{args.name}.md").write_text(report)
    head = {"command": command, "seed": StudyConfig.seed, "seconds": seconds, "about": machine}
    write_json(RESULTS / f"{args.name}.json.gz", to_json(page, head))
    print(report)


if __name__ == "__main__":
    main()
