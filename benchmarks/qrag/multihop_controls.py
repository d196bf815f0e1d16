"""What the multi-hop run with links owes to its links alone, and to paragraphs that train and dev share.

    python -m benchmarks.qrag.multihop run DATA --only latent       # the run, where runs/multihop does not hold it yet
    python -m benchmarks.qrag.multihop_controls run DATA            # controls.json; a run that is there is kept
    python -m benchmarks.qrag.multihop_controls table               # benchmarks/qrag/results/multihop/controls.md

Two controls, by fact EM of 4 picks a question on dev. *Regression*: a logistic regression reads what Q reads of links
(`mdp.heads.link_inputs`), or their products and cosines too, and picks greedily. *Without dev's paragraphs*: the same
config is trained on 2WikiMultihopQA without the paragraphs that stand in a dev context. Run it with the GLIBC_TUNABLES
of the Makefile.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common import CONFIGS, arguments, interval, machine, qrag
from benchmarks.qrag.multihop import RESULTS, SETS
from benchmarks.qrag.multihop_regression import KINDS, Regression, em_of, linked
from benchmarks.qrag.shared_texts import seen_in_train
from qrag_jax.config import load_config
from qrag_jax.data.questions.multihop import READERS, MultihopSet
from qrag_jax.eval.retrieval.pickers import make_pickers
from qrag_jax.eval.retrieval.score import open_run
from qrag_jax.eval.tables import align, share
from qrag_jax.measures.aggregate import Difference, holm_p_values, mean_interval, over_seeds, paired_difference
from qrag_jax.names import METHODS
from qrag_jax.qrag.tasks import examples_task
from qrag_jax.train.qrag.config import RunConfig, training_tasks

CONFIG = CONFIGS / "multihop_latent.yaml"
TRAINED = ("latent", "latent_dropped", "latent_replaced")  # the run; without dev's paragraphs; others in their place
TITLES = {"hotpot": "HotpotQA", "musique": "MuSiQue", "2wiki": "2WikiMultihopQA"}
ROWS = {
    "untrained": "untrained",
    "single_step": "single step",
    "bm25": "BM25",
    "links": "regression on links",
    "links_products": "regression on links and products",
    "links_cosines": "regression on links and cosines",
    "latent": "**run**",
}
APART = {"dropped": "without dev's paragraphs", "replaced": "others in their place"}
GROUPS = {"0": (0, 0), "1 to 6": (1, 6), "7 or 8": (7, 8)}  # of a question's distractors, how many stand in train


def train_paths(data: Path, runs: Path) -> dict[str, str]:
    """By kind of run its `data.paths`; files without dev's paragraphs are written where they lack."""
    files = {kind: data / folder / "train.jsonl.gz" for kind, folder in SETS.items()}
    train, dev = READERS["2wiki"](files["2wiki"]), READERS["2wiki"](data / SETS["2wiki"] / "dev.jsonl.gz")
    in_dev = {text for example in dev.examples for text in example.chunks}
    found = {}
    for name in TRAINED:
        if name != "latent":
            files["2wiki"] = runs / f"2wiki_{name.removeprefix('latent_')}.jsonl"
            files["2wiki"].write_text("".join(without(train, in_dev, replace=name == "latent_replaced")))
        found[name] = "[" + ", ".join(f"{kind}:{path}" for kind, path in files.items()) + "]"
    return found


def without(train: MultihopSet, in_dev: set[str], replace: bool) -> Iterator[str]:
    """Questions whose gold is not in dev, without their other paragraphs that are: JSON lines in HotpotQA's layout.

    With `replace`, a paragraph of another train question, drawn at random, stands in the place of each.
    """
    pool = sorted({text for example in train.examples for text in example.chunks} - in_dev)
    for example in train.examples:
        if any(example.chunks[i] in in_dev for i in example.gold):
            continue
        kept = [text for text in example.chunks if text not in in_dev]
        if replace:
            rng = np.random.default_rng(zlib.crc32(example.query_id.encode()))
            others = (pool[i] for i in rng.permutation(len(pool)) if pool[i] not in kept)
            kept += [text for text, _ in zip(others, range(len(example.chunks) - len(kept)), strict=False)]
        context = [[train.titles[text], [text.removeprefix(f"{train.titles[text]}: ")]] for text in kept]
        facts = [[train.titles[example.chunks[i]], 0] for i in example.gold]
        row = {"_id": example.query_id, "question": example.question, "context": context, "supporting_facts": facts}
        yield json.dumps(row) + "\n"


def run(data: Path, runs: Path, seeds: Sequence[int]) -> dict:
    """Trains what is not there, and scores all of it; the values of `controls.json`."""
    runs.mkdir(parents=True, exist_ok=True)
    dev = {kind: READERS[kind](data / folder / "dev.jsonl.gz").examples for kind, folder in SETS.items()}
    tasks = {kind: examples_task(f"{kind} dev", examples) for kind, examples in dev.items()}
    em: dict[str, dict[str, list[list[int]]]] = {kind: {} for kind in SETS}
    with_links = {kind: linked(task) for kind, task in tasks.items()}
    trained, chosen = [], []

    def add(row: str, kind: str, of_questions: np.ndarray) -> None:
        em[kind].setdefault(row, []).append(of_questions.astype(int).tolist())

    for (name, paths), seed in product(train_paths(data, runs).items(), seeds):
        overrides = [f"seed={seed}", f"data.paths={paths}", "dev.beam_widths=[1]"]
        if not (runs / f"{name}_{seed}").exists():
            qrag("train", "--config_path", str(CONFIG), "--out", str(runs / f"{name}_{seed}"), *overrides)
        retriever = open_run(runs / f"{name}_{seed}").retriever
        methods = METHODS if (name, seed) == (TRAINED[0], seeds[0]) else METHODS[:1]
        for kind, task in tasks.items():
            for method, picker in make_pickers(retriever, task.texts, task.questions, methods).items():
                add(name if method == "trained" else method, kind, em_of(picker, task))
        train, held_out = training_tasks(load_config(RunConfig, CONFIG, overrides))
        assert held_out is not None  # the config says dev.share
        trained.append({"row": name, "seed": seed, "num_train": len(train), "num_held_out": len(held_out)})
        for row in KINDS if name == TRAINED[0] else ():
            regression = Regression(row, retriever)
            fitted = regression.fitted(linked(train), linked(held_out))
            for kind, task in with_links.items():
                add(row, kind, *regression.em([fitted.weights], task))
            chosen.append({"row": row, "seed": seed, "strength": fitted.strength, "held_out_em": fitted.held_out_em})
    train_sets = {kind: READERS[kind](data / folder / "train.jsonl.gz").examples for kind, folder in SETS.items()}
    seen = {kind: seen_in_train(dev[kind], train_sets[kind]) for kind in SETS}
    ids = {kind: list(task.query_ids) for kind, task in tasks.items()}
    about = machine() | {"seeds": list(seeds)}
    return {"about": about, "trained": trained, "chosen": chosen, "ids": ids, "seen": seen, "em": em}


# --- the page --------------------------------------------------------------------------------------------------------

_HEAD = """# Controls of the multi-hop run with links

Command: `python -m benchmarks.qrag.multihop_controls run DATA`, then `table`. Fact EM of 4 picks on dev; the run is
`latent` of [README.md](README.md). `controls.json` has one value a question.

The regression reads what Q reads of links for a chunk in a state: the question's links, and the largest of the taken
chunks' ones; with products also their squares and the products of every two; with cosines those of MiniLM's vectors
that the run starts from, of the question, and of question and taken chunks together. It is logistic, fitted on the
train questions of the run of the same seed, in every state that gold alone leads to; the questions that this run held
out choose its penalty. It picks greedily.

Brackets: 95% interval over the questions; of several seeds that of their mean, for other questions and other seeds.
Differences are paired, question by question, of the means over the seeds; p by sign flips, corrected (Holm) for all
{num_tests} comparisons of this page. Significant: the interval leaves out 0, and the uncorrected p is below .05."""

_APART = """Trained on 2WikiMultihopQA without the questions whose gold stands in a dev context, and without each other
paragraph that does; or with a paragraph of another train question, drawn at random, in the place of each. Questions
that are left with fewer than 4 paragraphs are not trained on. The train questions of the other two sets stay."""

_GROUPS = """Questions of dev by how many of their distractors stand in train. A regression on links knows no paragraph
again: its row says how hard the questions of a group are."""


class Test(NamedTuple):
    """Row `first` minus row `second` on the questions of a set, all or those of a group."""

    first: str
    second: str
    kind: str
    group: str = ""


def write_table(found: Mapping, out: Path) -> None:
    """Writes the page of the values of `controls.json`."""
    regression = [Test("latent", row, kind) for row in ROWS if row != "latent" for kind in TITLES]
    apart = [Test("latent", f"latent_{name}", kind) for name in APART for kind in TITLES]
    grouped = [Test("latent", row, "2wiki", group) for row in ("links_products", "latent_dropped") for group in GROUPS]
    tests = [*regression, *apart, *grouped]
    names = ROWS | {f"latent_{end}": f"{ROWS['latent']}, {name}" for end, name in APART.items()}
    parts = [
        _HEAD.format(num_tests=len(tests)),
        "## Regression",
        _means(found, names, ROWS),
        _tests(found, names, tests, regression),
        "## Without dev's paragraphs",
        _APART,
        _means(found, names, ["latent", *(f"latent_{name}" for name in APART)]),
        _tests(found, names, tests, apart),
        "## 2WikiMultihopQA by what train has",
        _GROUPS,
        _groups(found, names),
        _tests(found, names, tests, grouped),
        "## Shared paragraphs",
        _shared(found),
        "## Questions and penalties",
        _fitted(found),
        _about(found["about"]),
    ]
    out.write_text("\n\n".join(parts) + "\n")


def _em(found: Mapping, row: str, kind: str, group: str = "") -> np.ndarray:
    """Fact EM, float [seeds, questions]."""
    em = np.array(found["em"][kind][row], np.float64)
    if not group:
        return em
    low, high = GROUPS[group]
    seen = np.array(found["seen"][kind]["wrong_in_train"])
    return em[:, (low <= seen) & (seen <= high)]


def _mean(em: np.ndarray) -> str:
    return interval(over_seeds([mean_interval(row) for row in em]))


def _means(found: Mapping, names: Mapping[str, str], rows: Iterable[str]) -> str:
    sizes = {kind: _em(found, "latent", kind).shape[1] for kind in TITLES}
    table = [["fact EM", "seeds", *(f"{name}, n = {sizes[kind]}" for kind, name in TITLES.items())]]
    for row in rows:
        cells = [_em(found, row, kind) for kind in TITLES]
        table.append([names[row], str(len(cells[0])), *map(_mean, cells)])
    return "\n".join(align(table, markdown=True))


def _tests(found: Mapping, names: Mapping[str, str], family: list[Test], tests: list[Test]) -> str:
    """The tests of one table, with p-values corrected for all of the page."""
    told = {test: _difference(found, test) for test in family}
    corrected = dict(zip(told, holm_p_values([one.p_value for one in told.values()]), strict=True))
    table = [["run minus", "set", "difference", "p", "p (Holm)", "questions better, worse, all", "significant"]]
    for test in tests:
        one = told[test]
        place = TITLES[test.kind] + (f", {test.group} seen" if test.group else "")
        counts = f"{one.better}, {one.worse}, {one.n}"
        p_values = [f"{one.p_value:.4f}", f"{corrected[test]:.4f}"]
        table.append(
            [
                names[test.second],
                place,
                interval(one, sign="+"),
                *p_values,
                counts,
                "yes" if one.is_significant else "no",
            ]
        )
    return "\n".join(align(table, markdown=True))


def _difference(found: Mapping, test: Test) -> Difference:
    first, second = (_em(found, row, test.kind, test.group).mean(axis=0) for row in (test.first, test.second))
    return paired_difference(first, second)


def _groups(found: Mapping, names: Mapping[str, str]) -> str:
    sizes = [_em(found, "latent", "2wiki", group).shape[1] for group in GROUPS]
    table = [["fact EM", *(f"{group} seen, n = {size}" for group, size in zip(GROUPS, sizes, strict=True))]]
    for row in ("untrained", "links", "links_products", "latent", *(f"latent_{name}" for name in APART)):
        table.append([names[row], *(_mean(_em(found, row, "2wiki", group)) for group in GROUPS)])
    return "\n".join(align(table, markdown=True))


def _shared(found: Mapping) -> str:
    """How much of dev stands in train."""
    heads = ["dev distractors in train", "gold there", "dev gold in train", "gold there", "none in train"]
    table = [["set", *heads]]
    for kind, name in TITLES.items():
        seen = {what: np.array(values) for what, values in found["seen"][kind].items()}
        counts = [f"{seen[f'{of}_{where}'].sum():,}" for of in ("wrong", "gold") for where in ("in_train", "as_gold")]
        counts[0] += f" of {seen['wrong'].sum():,}"
        counts[2] += f" of {seen['gold'].sum():,}"
        table.append([name, *counts, f"{(seen['wrong_in_train'] == 0).sum()} of {len(seen['gold'])}"])
    return "\n".join(align(table, markdown=True))


def _fitted(found: Mapping) -> str:
    """What was trained on how many questions, and the penalty of each regression."""
    table = [["trained", "seed", "train questions", "held out"]]
    table += [[str(one[name]) for name in ("row", "seed", "num_train", "num_held_out")] for one in found["trained"]]
    fits = [["regression", "seed", "L2", "EM held out"]]
    fits += [
        [one["row"], str(one["seed"]), f"{one['strength']:g}", share(one["held_out_em"])] for one in found["chosen"]
    ]
    return "\n".join([*align(table, markdown=True), "", *align(fits, markdown=True)])


def _about(about: Mapping) -> str:
    return (
        f"Seeds {', '.join(map(str, about['seeds']))}; {about['cores']} cores {about['device']}, {about['processor']}, "
        f"Python {about['python']}, jax {about['jax']}. Commit {about['commit']}."
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("stage", choices=("run", "table"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--runs", type=Path, default=Path("runs/multihop"), help="where the trained runs go")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    path = RESULTS / "controls.json"
    if args.stage == "run":
        if args.data is None:
            parser.error("say where the data are: DATA")
        path.write_text(json.dumps(run(args.data, args.runs, args.seeds)) + "\n")
    write_table(json.loads(path.read_text()), path.with_suffix(".md"))


if __name__ == "__main__":
    main()
