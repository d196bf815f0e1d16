"""Where planning can pay: evidence recall of levels and planners for questions of several kinds over one corpus.

    nice python -m benchmarks.smartchunk.mixed_levels DATA --cache FOLDER --held_out multirc conditionalqa
    nice python -m benchmarks.smartchunk.mixed_levels DATA --cache FOLDER --planner NAME=MODEL NAME=RUN --journal FILE
    nice python -m benchmarks.smartchunk.mixed_levels DATA --cache FOLDER --records OUT.jsonl  # for mixed_decoders.py

DATA holds the folders squad, chroma, scisumm and wikitext2; kinds, evidence and parts are told in `mixed_questions.py`.
Every question searches all documents. What a row chooses, it chooses on train and dev, where each half of the documents
is; the tables are of test.

Rows, each a way to search for every question:

    fixed NAME          a level alone
    dev                 the best fixed level: all rows below are compared with it
    range               the best range of levels
    smoothed            (1 - a) own score + a * the parent's, plain or so made itself; level and a chosen
    router ...          ridge on the question's vector, or on the profile of scores (`search/levels/router_training.py`)
    kind                the best level for the kind of the question, which a planner has to guess: its worth
    classifier          the best level for the kind that the question's vector tells, by least squares
    classifier surface  the same, of the vector and of what the question looks like: its length, marks, capitals, digits
    classifier ranges   the same, the best range
    regression          ridge on both, of recalls that are averaged with those of the nearest questions
    smoothed by kind    the best of all ways for the true kind; `classifier smoothed` for the kind that is told
    decoder NAME        what a language model plans: one that was not trained plans --planned questions, and a run of
                        `qrag train` plans all of test (`search/levels/llm_planner.py`)
    bound               the best level of each question, a part of which is luck

A second table is of questions that have a twin, which asks for the same evidence: `bound by twin` is the level that is
best for the twin, so no luck of the question itself. The twin of a section is the same question in other words.

A third is of sets that chose nothing (--held_out): what train and dev chose here, the level and the smoothed level, and
the level that is best on the set itself.

Intervals are 95% bootstraps over pairs of documents, those of a difference paired; p is of sign flips over them. Tokens
built are those of the levels that a way compares, as a share of those of all; tokens sent fill the budget.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import MODEL_HELP, about, about_lines, arguments, grid, interval, model_name, open_model, write
from benchmarks.smartchunk.level_contexts import LevelSet, searched
from benchmarks.smartchunk.mixed_planners import Mixed, best, by_kind, rows_of, surface_features
from benchmarks.smartchunk.mixed_questions import (
    BUDGETS,
    NARROW,
    PARTS,
    SEED,
    WIDE,
    Asked,
    ask,
    mixed_set,
    read_sources,
    recalls,
    ways,
)
from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.chunking.tree.level_ranges import LevelRange, format_levels
from qrag_jax.chunking.tree.plan_texts import plan_json
from qrag_jax.eval.study.cells.study_encoder import StudyEncoder, load_study_encoder
from qrag_jax.eval.study.config import TaskConfig
from qrag_jax.eval.study.load_tasks import load_task
from qrag_jax.eval.tables import share
from qrag_jax.llm.prompts import load_prompt
from qrag_jax.measures.aggregate import Difference, holm_p_values, mean_interval, paired_difference
from qrag_jax.search.levels.llm_planner import make_llm_planner, plan_prompt
from qrag_jax.search.levels.planner_runs import PROMPT, RECORD, TrainedPlans, ask_trained, read_planner
from qrag_jax.search.levels.planners import plan_cost

RESULTS = Path(__file__).parent / "results"
QUARTERS = 0.75  # of the worth of the kind, which a planner should keep


# --- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Study:
    """All that was asked, and what every way found: `kept` of `recalls`, with rows of the twins behind the asked."""

    known: LevelSet
    asked: Sequence[Asked]
    kept: Mapping[str, np.ndarray]

    def at(self, budget: int, kinds: Sequence[str]) -> tuple[Mixed, np.ndarray]:
        """(questions of these kinds at a budget, their positions)."""
        places = np.array([place for place, one in enumerate(self.asked) if one.kind in kinds])
        some = [self.asked[place] for place in places]
        return Mixed(
            self.known.names,
            np.array([one.kind for one in some]),
            np.array([one.group for one in some]),
            np.array([one.part != "test" for one in some]),
            self.kept["recall"][places, :, BUDGETS.index(budget)],
            self.kept["questions"][places].astype(np.float64),
            surface_features([one.question.text for one in some]),
            self.kept["profiles"][places],
        ), places

    def twins(self) -> np.ndarray:
        """[asked], the row of the twin of each, -1 if there is none."""
        has = np.array([one.twin is not None for one in self.asked])
        return np.where(has, len(self.asked) + np.cumsum(has) - 1, -1)


Planned = Mapping[str, Mapping[int, LevelRange]]  # name of a decoder -> its plans, by the positions of the questions


def measured(study: Study, kinds: Sequence[str], planned: Planned) -> list[dict]:
    """Rows of test at every budget: of all questions, of those with a twin, and of those that decoders planned."""
    found = []
    for budget in BUDGETS:
        mixed, places = study.at(budget, kinds)
        rows, test = rows_of(mixed), np.flatnonzero(~mixed.known)
        found += _measured(study, mixed, rows, test, budget, "all")
        twins = study.twins()[places]
        paired = test[twins[test] >= 0]
        recall = study.kept["recall"][:, :, BUDGETS.index(budget)][twins]
        usual = mixed.recall[mixed.known].mean(axis=0)  # decides between equally good levels
        by_twin = np.array(mixed.alone)[(recall + 1e-6 * usual)[:, mixed.alone].argmax(axis=1)]
        some = {name: rows[name] for name in ("dev", "kind", "classifier surface", "bound")}
        found += _measured(study, mixed, some | {"bound by twin": by_twin}, paired, budget, "twins")
        for size in sorted({len(plans) for plans in planned.values()}):
            own = {f"decoder {name}": plans for name, plans in planned.items() if len(plans) == size}
            asked = next(iter(own.values())).keys()
            where = np.array([number for number in test.tolist() if places[number] in asked])
            some = {name: rows[name] for name in ("dev", "router vectors", "kind", "classifier surface")}
            some |= {name: _columns(mixed, places, where, plans) for name, plans in own.items()}
            found += _measured(study, mixed, some, where, budget, f"planned {size}")
    return found


def _columns(mixed: Mixed, places: np.ndarray, where: np.ndarray, plans: Mapping[int, LevelRange]) -> np.ndarray:
    """The ways of the planned ranges; those of other questions are not read."""
    ranges = searched(mixed.names)
    columns = np.zeros(len(places), np.int64)
    columns[where] = [mixed.ranges[ranges.index(plans[place])] for place in places[where].tolist()]
    return columns


def _measured(
    study: Study, mixed: Mixed, rows: Mapping[str, np.ndarray], where: np.ndarray, budget: int, table: str
) -> list[dict]:
    groups = mixed.groups[where].tolist()
    values = {name: mixed.recall[where, column[where]] for name, column in rows.items()}
    worth = float((values["kind"] - values["dev"]).mean())
    found = []
    for name, own in values.items():
        mean = mean_interval(own, groups=groups, seed=SEED)
        row = {"table": table, "budget": budget, "row": name, "n": len(own), "erec": mean.mean}
        row |= {"low": mean.low, "high": mean.high}
        row["kinds"] = {kind: float(own[mixed.kinds[where] == kind].mean()) for kind in np.unique(mixed.kinds).tolist()}
        built = study.kept["built"][rows[name][where]].mean() / study.kept["built"].max()
        row |= {"built": float(built), "ways": _used(mixed, rows[name][where])}
        if name != "dev":
            row |= _versus(paired_difference(own, values["dev"], groups=groups, seed=SEED))
            row["kept"] = row["versus"] / worth if worth > 0 else None
            row["over_router"] = (
                _versus(paired_difference(own, values["router vectors"], groups=groups, seed=SEED))
                if ("router vectors" in values)
                else None
            )
        found.append(row)
    return found


def _versus(one: Difference) -> dict:
    return {"versus": one.mean, "versus_low": one.low, "versus_high": one.high, "p_value": one.p_value}


def _used(mixed: Mixed, columns: np.ndarray) -> dict[str, int]:
    names = ways(mixed.names)
    used, counts = np.unique(columns, return_counts=True)
    return {names[column]: count for column, count in zip(used.tolist(), counts.tolist(), strict=True)}


def format_report(result: Mapping) -> str:
    """The page: what is worth what, then a table for each set of kinds."""
    lines = ["# Where planning can pay: questions of several kinds over one corpus", ""]
    lines += [f"`{result['command']}`, seed {SEED}, {result['seconds']:,.0f} s.", "", *about_lines(result["about"])]
    lines += [f"{result['documents']} documents, {result['tokens']:,} tokens. Questions of train, dev, test: "]
    lines[-1] += ", ".join(f"{kind} {'/'.join(map(str, own))}" for kind, own in result["questions"].items()) + "."
    lines += ["", "Recall [95%] of test; behind it minus dev, paired; intervals are over pairs of documents.", ""]
    for name, rows in result["sets"].items():
        lines += [f"## {name}", "", *_verdict(rows), ""]
        lines += _table(rows, "all")
        lines += ["", *_by_kind(rows)]
        for table in list(dict.fromkeys(row["table"] for row in rows))[1:]:
            own = next(row for row in rows if row["table"] == table)
            title = "Questions with a twin" if table == "twins" else "Questions that decoders planned"
            lines += ["", f"{title} ({own['n']}):", "", *_table(rows, table)]
        lines += [""]
    for name, rows in result["held_out"].items():
        chosen = ", ".join(f"{row['way']} ({row['row']}, {row['budget']:,})" for row in rows if row["row"] != "fixed")
        lines += [f"## {name}, which chose nothing: {rows[0]['n']} questions", "", f"{chosen}.", ""]
        lines += [*_table(rows, name), ""]
    return "\n".join(lines)


def _table(rows: Sequence[Mapping], table: str) -> list[str]:
    known = {(row["row"], row["budget"]): row for row in rows if row["table"] == table}
    names = list(dict.fromkeys(name for name, _ in known))
    cells = [[name, *(_cell(known[name, budget]) for budget in BUDGETS)] for name in names]
    if table == "all":
        for cell in cells:
            cell.append(" ".join(share(known[cell[0], budget]["built"]) for budget in BUDGETS))
    return grid(["row", *(f"{budget:,}" for budget in BUDGETS), *(["tokens built"] if table == "all" else [])], cells)


def _cell(row: Mapping) -> str:
    found = interval(row, names=("erec", "low", "high"))
    if "versus" not in row:
        return found
    star = "*" if row["p_value"] < 0.05 and row["versus_low"] * row["versus_high"] > 0 else ""
    return f"{found} {interval(row, sign='+', names=('versus', 'versus_low', 'versus_high'))}{star}"


def _by_kind(rows: Sequence[Mapping]) -> list[str]:
    """Recall of each kind at the two budgets of the goal."""
    own = [row for row in rows if row["table"] == "all" and row["budget"] >= 1024]
    kinds, names = list(own[0]["kinds"]), list(dict.fromkeys(row["row"] for row in own))
    known = {(row["row"], row["budget"]): row for row in own}
    heads = [f"{kind} {budget:,}" for budget in BUDGETS[2:] for kind in kinds]
    cells = [
        [name, *(share(known[name, budget]["kinds"][kind]) for budget in BUDGETS[2:] for kind in kinds)]
        for name in names
    ]
    return ["Recall by kind:", "", *grid(["row", *heads], cells)]


def _verdict(rows: Sequence[Mapping]) -> list[str]:
    """Planners that keep three quarters of the worth of the kind, with Holm's p over all differences of the page."""
    own = [row for row in rows if row["table"] == "all" and "p_value" in row and not row["row"].startswith("fixed")]
    own = [row for row in own if row["row"] not in ("kind", "bound", "smoothed by kind")]
    corrected = holm_p_values([row["p_value"] for row in own])
    lines = []
    for row, holm in zip(own, corrected, strict=True):
        if row["kept"] is not None and row["kept"] >= QUARTERS and row["versus_low"] > 0 and row["p_value"] < 0.05:
            over = interval(row["over_router"], sign="+", names=("versus", "versus_low", "versus_high"))
            lines.append(
                f"- {row['row']} at {row['budget']:,} tokens: {share(row['versus'], 3, '+')}, {row['kept']:.0%} of the "
                f"worth of the kind, Holm p {share(holm)}; above the router on vectors by {over}"
            )
    return (
        ["Rows that keep three quarters of the worth of the kind, their interval above 0:", "", *lines] if lines else []
    )


HELD_OUT = {"multirc": 120, "conditionalqa": 250}  # documents of each


def held_out(study: Study, name: str, data: Path, encoder: StudyEncoder, cache: Path) -> list[dict]:
    """Fixed and smoothed levels that the mixed questions chose, on the questions of another set, at every budget."""
    config = TaskConfig(name, name, num_documents=HELD_OUT[name], num_questions=300)
    task = load_task(name, config, str(data), SEED, make_splitter("sentencex", "en"))
    asked = [Asked(one, name, "test", one.relevant[0]) for one in task.questions]
    known = mixed_set([task], asked, encoder, cache)
    recall, groups, found = recalls(known, encoder, cache)["recall"], [one.group for one in asked], []
    for number, budget in enumerate(BUDGETS):
        mixed, _ = study.at(budget, NARROW)
        own = recall[:, :, number]
        columns = {
            "fixed": best(mixed, mixed.alone, mixed.known),
            "smoothed": best(mixed, mixed.smooth, mixed.known),
            "best fixed here": mixed.alone[int(own[:, mixed.alone].mean(axis=0).argmax())],
        }
        for row, column in columns.items():
            mean = mean_interval(own[:, column], groups=groups, seed=SEED)
            one = {"table": name, "budget": budget, "row": row, "n": len(own), "way": ways(known.names)[column]}
            one |= {"erec": mean.mean, "low": mean.low, "high": mean.high}
            if row != "fixed":
                base = own[:, columns["fixed"]]
                one |= _versus(paired_difference(own[:, column], base, groups=groups, seed=SEED))
            found.append(one)
    return found


# --- records for decoders --------------------------------------------------------------------------------------------

_TRACES = {
    "fact": "The question asks for one fact. One sentence tells it.",
    "citance": "The text cites a paper. A few sentences of that paper tell what it refers to.",
    "section": "The question names a title and a heading. A whole section stands under it.",
    "document": "The question is a title alone. All of the document is about it.",
    "comparison": "The question asks for two things. Each stands in another document.",
}


def planning_records(study: Study, kinds: Sequence[str], budget: int) -> list[dict]:
    """A record a question: prompt, trace by rule, the best level of its kind, and recall and cost of every range.

    The label is the level that is best for the kind over train and dev: that of a single question is mostly luck.
    """
    mixed, places = study.at(budget, kinds)
    names, ranges = mixed.names[1:], searched(mixed.names)
    column = by_kind(mixed, mixed.alone, mixed.kinds)
    template, built = load_prompt(PROMPT), study.kept["built"][mixed.ranges]
    found = []
    for number, place in enumerate(places.tolist()):
        sent = study.kept["sent"][place, mixed.ranges, BUDGETS.index(budget)]
        full = built.max() + sent[ranges.index(LevelRange(1, len(names)))]
        one, best_range = study.asked[place], ranges[mixed.ranges.index(int(column[number]))]
        own = LevelRange(best_range.least - 1, best_range.most - 1)  # the document is no level of these
        (message,) = plan_prompt(template, one.question.text, names)
        found.append(
            {
                "id": one.question.id,
                "kind": one.kind,
                "part": one.part,
                "group": one.group,
                "question": one.question.text,
                "names": list(names),
                "budget": budget,
                "messages": [{"role": "user", "content": message.content}],
                "answer": f"{_TRACES[one.kind]} {plan_json(own, names)}",
                "label": [own.least, own.most],
                "recalls": _table_of(ranges, names, mixed.recall[number, mixed.ranges]),
                "costs": _table_of(ranges, names, np.asarray(plan_cost(built, sent, full))),
            }
        )
    return found


def _table_of(ranges: Sequence[LevelRange], names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    """Range -> value; the levels of `names` are those below the document."""
    shown = [format_levels(LevelRange(one.least - 1, one.most - 1), names) for one in ranges]
    return dict(zip(shown, np.round(values, 4).tolist(), strict=True))


def plan_with_decoder(study: Study, model: str, args: argparse.Namespace, encoder: StudyEncoder) -> dict:
    """Plans for questions of test by their positions; the decoder reads the question alone."""
    test = [place for place, one in enumerate(study.asked) if one.part == "test"]
    names = study.known.names[1:]
    if (Path(model) / RECORD).exists():
        trained = read_planner(model)
        assert isinstance(trained, TrainedPlans), "a run of `qrag train sft|grpo|stitch`"
        drawn, plan = test, ask_trained(trained, names)
    else:
        drawn = np.random.default_rng(SEED).permutation(test)[: args.planned].tolist()
        plan = make_llm_planner(open_model(model, Path(args.journal)), encoder.count, names)
    found = plan([study.asked[place].question.text for place in drawn], [])
    return {place: LevelRange(one.least + 1, one.most + 1) for place, one in zip(drawn, found.ranges, strict=True)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", metavar="DATA", help="folder of the data sets")
    parser.add_argument("--cache", default="runs/mixed", help="vectors and recalls (default: runs/mixed)")
    parser.add_argument("--questions", type=int, default=400, help="most questions of a kind (default: 400)")
    parser.add_argument("--held_out", nargs="*", default=[], choices=HELD_OUT, help="sets that chose nothing")
    parser.add_argument(
        "--planner",
        nargs="*",
        default=[],
        metavar="NAME=MODEL",
        help=f"plans questions of test: a run of `qrag train`, or {MODEL_HELP}",
    )
    parser.add_argument("--planned", type=int, default=150, help="questions of a model without training (default 150)")
    parser.add_argument("--journal", default="runs/mixed/journal.sqlite", help="answers of models without training")
    parser.add_argument("--records", metavar="OUT.jsonl", help="write planning records, and no table")
    parser.add_argument("--budget", type=int, default=1024, choices=BUDGETS, help="of the records (default: 1024)")
    args = parser.parse_args()
    start, encoder, cache = time.perf_counter(), load_study_encoder("minilm"), Path(args.cache)
    tasks = read_sources(Path(args.data))
    asked = ask(tasks, args.questions)
    known = mixed_set(tasks, asked, encoder, cache)
    study = Study(known, asked, recalls(known, encoder, cache))
    if args.records:
        records = planning_records(study, (*NARROW, *WIDE), args.budget)
        Path(args.records).write_text("".join(json.dumps(one) + "\n" for one in records))
        print(f"{args.records}: {len(records):,} records")
        return
    others = {name: held_out(study, name, Path(args.data), encoder, cache) for name in args.held_out}
    named = [one.split("=", 1) for one in args.planner]
    planned = {name: plan_with_decoder(study, model, args, encoder) for name, model in named}
    sets = {"Facts, citances and sections": NARROW, "Whole documents and comparisons too": (*NARROW, *WIDE)}
    command = "python -m benchmarks.smartchunk.mixed_levels DATA --cache FOLDER"
    command += f" --held_out {' '.join(args.held_out)}" if args.held_out else ""
    shown = [f"'{name}={model_name(model)}'" for name, model in named]
    command += f" --planner {' '.join(shown)} --planned {args.planned} --journal FILE" if shown else ""
    result = {
        "command": command,
        "about": about(),
        "documents": len(known.corpus.documents),
        "tokens": int(known.corpus.num_tokens[known.corpus.leaves].sum()),
        "questions": {
            kind: [sum(one.kind == kind and one.part == part for one in asked) for part in PARTS]
            for kind in (*NARROW, *WIDE)
        },
        "sets": {name: measured(study, kinds, planned) for name, kinds in sets.items()},
        "held_out": others,
        "seconds": time.perf_counter() - start,
    }
    write(RESULTS, "mixed_levels", result, format_report(result))


if __name__ == "__main__":
    main()
