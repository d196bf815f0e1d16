"""What choosing levels is worth: evidence recall of fixed levels, planners and the best level of each question.

    nice python -m benchmarks.smartchunk.levels DATA [--questions N] [--cache FOLDER] [--sets SET ...]
    nice python -m benchmarks.smartchunk.levels DATA --sets chroma --keep  # rows of other sets stay as they are
    nice python -m benchmarks.smartchunk.levels DATA --planner MODEL --journal FILE  # it plans 100 questions of each

DATA holds the folders chroma, squad, multirc and scisumm, and financebench, which is measured where --sets names it:
its 22 questions say nothing by themselves. Documents of SciSumm have the levels section, subsection, paragraph and
sentence, by their headings; the others nested spans of 512, 256, 128, 64 and 32 tokens. Vectors are MiniLM's: of the
text where the encoder reads it whole, else the mean of the children's. Contexts are filled to the token at 128 to 2,048
tokens. All questions search the whole corpus.

Rows, of which each that chooses anything chooses on four of five folds and is measured on the fifth; folds are dealt by
document where there are at least 20 documents, by question else:

    fixed NAME     a level alone
    dev            the best fixed level of the other folds: all rows below are compared with it
    range          the best range of the other folds
    all            one list of all levels
    best child     a level whose nodes have the score of their best leaf, chosen on the other folds
    router ...     ridge on the question's vector, or on the profile of scores (`search/levels/router_training.py`)
    smoothed       (1 - a) own score + a * the parent's, plain or so made itself; level and a chosen on the other folds
    smoothed range the same, or not smoothed, over one level, two, or any range that is not smoothed
    fused          ranks of a node and of those around it, 1 / (60 + rank) summed; level chosen likewise
    standard       one list of all levels, scores standardised by level
    bound          the best level of each question, which no planner knows; part of its gain is the best of five noisy
                   numbers, and how large a part was not measured

Intervals are 95% bootstraps over questions, those of a difference paired; p is of sign flips. A planner is named at the
top where it closes a quarter of the gap from dev to the bound, and interval and p agree that it is above dev.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import MODEL_HELP, about, about_lines, arguments, grid, interval, model_name, open_model, write
from benchmarks.smartchunk.level_contexts import BUDGETS, LevelSet, level_set, recalls, searched, ways
from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.chunking.tree.level_ranges import LevelRange, format_levels
from qrag_jax.eval.study.cells.study_encoder import load_study_encoder
from qrag_jax.eval.study.config import TaskConfig
from qrag_jax.eval.study.load_tasks import load_task
from qrag_jax.eval.tables import share
from qrag_jax.measures.aggregate import LEVEL, holm_p_values, mean_interval, paired_difference
from qrag_jax.names import TaskKind
from qrag_jax.search.levels.llm_planner import make_llm_planner
from qrag_jax.search.levels.planners import Plans
from qrag_jax.search.levels.router import route
from qrag_jax.search.levels.router_training import deal_groups, fit_router
from qrag_jax.types import CountTokens

RESULTS = Path(__file__).parent / "results"

SETS: tuple[TaskKind, ...] = ("chroma", "squad", "multirc", "scisumm")
SMALL: tuple[TaskKind, ...] = ("financebench",)  # only where it is named: 22 questions
FEW_QUESTIONS = 50
FEW_DOCUMENTS = 20
NUM_FOLDS = 5
QUARTER = 0.25  # of the gap from dev to the bound: planners that close as much are named
SEED = 0
_HEAD_CHARS = 8_000  # of a document, of which the planner shows 1,000 tokens
PLANNERS = (
    "range",
    "all",
    "best child",
    "router vectors",
    "router profiles",
    "smoothed",
    "smoothed range",
    "fused",
    "standard",
)
Found = dict[str, np.ndarray]  # row -> recall of each question


def best_of(recall: np.ndarray, folds: np.ndarray, places: Sequence[int]) -> np.ndarray:
    """Recall of each question by that of some columns which is best on the other folds."""
    found = np.zeros(len(recall))
    for fold in range(NUM_FOLDS):
        own = folds == fold
        found[own] = recall[own, places[int(recall[~own][:, places].mean(axis=0).argmax())]]
    return found


def _is_alone(name: str) -> bool:
    """True if a column is of one level, as `smooth 3:3 0.25`."""
    least, _, most = name.split()[1].partition(":")
    return least == most


def routed(
    recall: np.ndarray, features: np.ndarray, groups: Sequence[str], folds: np.ndarray, kind: str, names: Sequence[str]
) -> np.ndarray:
    """Recall of each question in the range that a router chooses which was trained on the other folds."""
    ranges, found = searched(tuple(names)), np.zeros(len(recall))
    for fold in range(NUM_FOLDS):
        own = folds == fold
        train = [group for group, is_own in zip(groups, own, strict=True) if not is_own]
        fitted = fit_router(
            features[~own],
            recall[~own],
            train,
            ranges,
            names=names,
            kind="vectors" if kind == "vectors" else "profiles",
        )
        found[own] = recall[own, route(fitted.router, features[own])]
    return found


def score_budget(
    recall: np.ndarray, kept: Mapping[str, np.ndarray], names: tuple[str, ...], groups: Sequence[str], folds: np.ndarray
) -> Found:
    """The recall of each row for every question at one budget."""
    columns = ways(names)
    place = {name: number for number, name in enumerate(columns)}
    levels = range(1, len(names))
    alone = [place[f"plain {level}:{level}"] for level in levels]
    plain = [place[name] for name in columns if name.startswith("plain")]
    rows: Found = {f"fixed {names[level]}": recall[:, alone[level - 1]] for level in levels}
    rows["dev"] = best_of(recall, folds, alone)
    rows["range"] = best_of(recall, folds, plain)
    rows["all"] = recall[:, place[f"plain 1:{len(names) - 1}"]]
    rows["best child"] = best_of(recall, folds, [place[f"child {level}"] for level in levels])
    for kind, features in (("vectors", kept["questions"]), ("profiles", kept["profiles"])):
        rows[f"router {kind}"] = routed(recall[:, plain], features, groups, folds, kind, names)
    smooth = [place[name] for name in columns if name.startswith(("smooth", "deep"))]
    rows["smoothed"] = best_of(recall, folds, [*alone, *(one for one in smooth if _is_alone(columns[one]))])
    rows["smoothed range"] = best_of(recall, folds, [*plain, *smooth])
    rows["fused"] = best_of(recall, folds, [place[f"fused {level}"] for level in levels])
    rows["standard"] = recall[:, place[f"standard 1:{len(names) - 1}"]]
    rows["bound"] = recall[:, alone].max(axis=1)
    return rows


def score_set(known: LevelSet, kept: Mapping[str, np.ndarray]) -> list[dict]:
    """Rows of a set: a dictionary a row and budget."""
    questions = known.task.questions
    documents = [question.relevant[0] for question in questions]
    by_document = len(set(documents)) >= FEW_DOCUMENTS
    groups = documents if by_document else [question.id for question in questions]
    folds = deal_groups(groups, NUM_FOLDS, SEED)
    found = []
    for number, budget in enumerate(BUDGETS):
        rows = score_budget(kept["recall"][:, :, number], kept, known.names, groups, folds)
        for name, values in rows.items():
            row = {"set": known.task.name, "budget": budget, "row": name, "folds": by_document, **recall_of(values)}
            if name in (*PLANNERS, "bound"):
                row |= versus_dev(values, rows["dev"], rows["bound"])
            found.append(row)
    return found


def recall_of(values: np.ndarray) -> dict:
    """Mean of a row and its interval over questions."""
    mean = mean_interval(values, seed=SEED)
    return {"n": mean.n, "erec": mean.mean, "low": mean.low, "high": mean.high}


def versus_dev(values: np.ndarray, dev: np.ndarray, bound: np.ndarray) -> dict:
    """A row minus dev on the same questions, and the share of the gap from dev to the bound that it closes."""
    versus, gap = paired_difference(values, dev, seed=SEED), bound.mean() - dev.mean()
    return {
        "versus_dev": versus.mean,
        "versus_low": versus.low,
        "versus_high": versus.high,
        "p_value": versus.p_value,
        "changed": versus.changed,
        "share_of_gap": versus.mean / gap if gap > 0 else None,
    }


def read_set(name: TaskKind, args: argparse.Namespace, encoder, kept_in: Path) -> LevelSet:
    """A set with its vectors, of at most `--questions` questions."""
    config = TaskConfig(name, name, num_questions=args.questions)
    task = load_task(name, config, args.data, SEED, make_splitter("sentencex", "en"))
    known = level_set(task, encoder, kept_in)
    print(f"{name}: {len(task.questions)} questions, {len(task.documents)} documents, {len(known.corpus):,} nodes")
    return known


def planned(
    known: LevelSet, kept: Mapping[str, np.ndarray], count: CountTokens, args: argparse.Namespace
) -> list[dict]:
    """What a language model plans for some questions of a set, beside dev on the same ones."""
    told: list[Plans] = []
    generator = open_model(args.planner, Path(args.journal))
    questions = known.task.questions[: args.planned]
    plan = make_llm_planner(generator, count, known.names)
    texts = {document.id: document.text for document in known.task.documents}
    ranges: dict[str, LevelRange] = {}
    for document in dict.fromkeys(question.relevant[0] for question in questions):  # one head a call, as in the paper
        asked = [question for question in questions if question.relevant[0] == document]
        told.append(plan([question.text for question in asked], [texts[document][:_HEAD_CHARS]]))
        ranges |= {question.id: one for question, one in zip(asked, told[-1].ranges, strict=True)}
    return plan_rows(known, kept, ranges, told)


def plan_rows(
    known: LevelSet, kept: Mapping[str, np.ndarray], ranges: Mapping[str, LevelRange], told: Sequence
) -> list[dict]:
    """The row of a plan at each budget; a range that begins with the document begins with the level below here."""
    places = {one: number for number, one in enumerate(searched(known.names))}
    ids = [question.id for question in known.task.questions]
    asked = [ids.index(name) for name in ranges]
    own = [LevelRange(max(1, one.least), max(1, one.most)) for one in ranges.values()]
    alone = [places[LevelRange(level, level)] for level in range(1, len(known.names))]
    rest = np.setdiff1d(np.arange(len(ids)), asked)
    rows = []
    for number, budget in enumerate(BUDGETS):
        recall = kept["recall"][:, :, number]
        values = recall[asked, [places[one] for one in own]]
        chosen_on = rest if len(rest) else np.arange(len(ids))
        dev = recall[asked, alone[int(recall[chosen_on][:, alone].mean(axis=0).argmax())]]
        rows.append(
            {"set": known.task.name, "budget": budget, "row": "language model", "folds": False, **recall_of(values)}
            | versus_dev(values, dev, recall[asked][:, alone].max(axis=1))
            | {"fallbacks": sum(sum(one.fallbacks.values()) for one in told)}
            | {"plans": sorted({format_levels(one, known.names) for one in ranges.values()})}
        )
    return rows


def format_report(result: dict) -> str:
    rows, runs = result["rows"], result["runs"]
    lines = ["# What choosing levels is worth", ""]
    for run in {json.dumps(run): run for run in runs.values()}.values():
        own = ", ".join(name for name in runs if runs[name] == run)
        lines += [f"{own}: `{run['command']}`, seed {SEED}, {run['seconds']:,.0f} s.", "", *about_lines(run["about"])]
    lines += goals(rows)
    lines += ["ERec [95%]; behind it minus dev, paired, on the same questions. See `levels.py` for the rows."]
    for name in dict.fromkeys(row["set"] for row in rows):
        lines += ["", *set_lines([row for row in rows if row["set"] == name])]
    return "\n".join(lines) + "\n"


def goals(rows: Sequence[dict]) -> list[str]:
    """Which planners close a quarter of the gap to the bound and are significantly above dev.

    Rows that were written before differences were tested have no p-value: their interval alone names them. Holm's
    correction counts every difference of a planner to dev on the page that has one.
    """
    planners = [row for row in rows if row["row"] in (*PLANNERS, "language model")]
    tested, old = [row for row in planners if "p_value" in row], [row for row in planners if "p_value" not in row]
    corrected = holm_p_values([row["p_value"] for row in tested])
    lines = []
    if tested:
        named = [
            f"{_closes(row)}, p = {_p(row['p_value'])}, Holm {_p(p_holm)}"
            for row, p_holm in zip(tested, corrected, strict=True)
            if row["p_value"] < LEVEL and _is_quarter(row)
        ]
        lines += [
            "Planners that close a quarter of the gap, where the interval lies above 0 and p of sign flips is below "
            f".05; Holm's correction is for the {len(tested)} differences of a planner to dev that have a p:",
            "",
            *(named or ["- none"]),
            "",
        ]
    if old:
        lines += [
            f"Planners that close a quarter of the gap by the interval alone: {len(old)} differences were written "
            "without p, and nothing corrects for their number:",
            "",
            *([_closes(row) for row in old if _is_quarter(row)] or ["- none"]),
            "",
        ]
    return lines


def _is_quarter(row: dict) -> bool:
    return row["versus_low"] > 0 and (row["share_of_gap"] or 0) >= QUARTER


def _closes(row: dict) -> str:
    where = f"{row['set']}, {row['budget']:,} tokens"
    return f"- {where}: {row['row']} closes {row['share_of_gap']:.0%} of the gap, {_difference(row)}"


def _p(value: float) -> str:
    return share(value, 4 if value < 0.001 else 3)


def replaced(old: dict, new: dict) -> dict:
    """What was written, with the rows of the sets that are measured now in the place of theirs."""
    runs = old["runs"] | new["runs"]
    rows = [row for row in old["rows"] if row["set"] not in new["runs"]] + new["rows"]
    return {"seed": SEED, "runs": runs, "rows": sorted(rows, key=lambda row: list(runs).index(row["set"]))}


def set_lines(rows: Sequence[dict]) -> list[str]:
    names = list(dict.fromkeys(row["row"] for row in rows))
    known = {(row["row"], row["budget"]): row for row in rows}
    dealt = "document" if rows[0]["folds"] else "question"
    few = " (too few to tell anything)" if rows[0]["n"] < FEW_QUESTIONS else ""
    lines = [f"## {rows[0]['set']}: {rows[0]['n']} questions{few}, folds by {dealt}", ""]
    table = [[name, *(_cell(known[name, budget]) for budget in BUDGETS)] for name in names]
    return [*lines, *grid(["row", *(f"{budget:,}" for budget in BUDGETS)], table)]


def _cell(row: dict) -> str:
    found = interval(row, names=("erec", "low", "high"))
    return f"{found} {_difference(row)}" if "versus_dev" in row else found


def _difference(row: dict) -> str:
    return interval(row, sign="+", names=("versus_dev", "versus_low", "versus_high"))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", metavar="DATA", help="folder of the data sets")
    parser.add_argument("--questions", type=int, help="most questions of a set, drawn (default: all)")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=(*SETS, *SMALL))
    parser.add_argument("--cache", default="runs/levels", help="vectors and recalls (default: runs/levels)")
    parser.add_argument("--planner", metavar="MODEL", help=f"plans questions of each set: {MODEL_HELP}")
    parser.add_argument("--planned", type=int, default=100, help="questions of a set that it plans (default: 100)")
    parser.add_argument("--journal", default="runs/levels/journal.sqlite", help="its answers")
    parser.add_argument("--name", default="levels", help="of the files in results/")
    parser.add_argument("--keep", action="store_true", help="rows of sets that are not measured now stay in the files")
    args = parser.parse_args()
    start, encoder, cache = time.perf_counter(), load_study_encoder("minilm"), Path(args.cache)
    rows: list[dict] = []
    for name in args.sets:
        known = read_set(name, args, encoder, cache)
        kept = recalls(known, encoder.count, cache)
        rows += score_set(known, kept)
        if args.planner:
            rows += planned(known, kept, encoder.count, args)
    options = [f"--questions {args.questions}"] if args.questions else []
    options += [f"--sets {' '.join(args.sets)}"] if args.sets != list(SETS) else []
    options += ["--keep"] if args.keep else []
    if args.planner:
        options += [f"--planner {model_name(args.planner)} --planned {args.planned} --journal FILE"]
    command = " ".join(["python -m benchmarks.smartchunk.levels DATA", *options])
    run = {"command": command, "about": about(), "seconds": time.perf_counter() - start}
    result = {"seed": SEED, "runs": dict.fromkeys(args.sets, run), "rows": rows}
    if args.keep:
        result = replaced(json.loads((RESULTS / f"{args.name}.json").read_text()), result)
    write(RESULTS, args.name, result, format_report(result))


if __name__ == "__main__":
    main()
