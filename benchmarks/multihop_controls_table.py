"""The page of `multihop_controls.py`, from its `controls.json`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qrag_jax.eval.tables import align, share
from qrag_jax.measures.aggregate import Difference, holm_p_values, mean_interval, over_seeds, paired_difference

SETS = {"hotpot": "HotpotQA", "musique": "MuSiQue", "2wiki": "2WikiMultihopQA"}
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

_HEAD = """# Controls of the multi-hop run with links

Command: `python benchmarks/multihop_controls.py run DATA`, then `table`. Fact EM of 4 picks on dev; the run is `latent`
of [README.md](README.md). `controls.json` has one value a question.

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
    """Writes the page.

    Args:
        found: the values of `controls.json`.
        out: where to.
    """
    regression = [Test("latent", row, kind) for row in ROWS if row != "latent" for kind in SETS]
    apart = [Test("latent", f"latent_{name}", kind) for name in APART for kind in SETS]
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
    of = over_seeds([mean_interval(row) for row in em])
    return f"{share(of.mean)} [{share(of.low)}, {share(of.high)}]"


def _means(found: Mapping, names: Mapping[str, str], rows: Iterable[str]) -> str:
    sizes = {kind: _em(found, "latent", kind).shape[1] for kind in SETS}
    table = [["fact EM", "seeds", *(f"{name}, n = {sizes[kind]}" for kind, name in SETS.items())]]
    for row in rows:
        cells = [_em(found, row, kind) for kind in SETS]
        table.append([names[row], str(len(cells[0])), *map(_mean, cells)])
    return "\n".join(align(table, markdown=True))


def _tests(found: Mapping, names: Mapping[str, str], family: list[Test], tests: list[Test]) -> str:
    """The tests of one table, with p-values corrected for all of the page."""
    told = {test: _difference(found, test) for test in family}
    corrected = dict(zip(told, holm_p_values([one.p_value for one in told.values()]), strict=True))
    table = [["run minus", "set", "difference", "p", "p (Holm)", "questions better, worse, all", "significant"]]
    for test in tests:
        one = told[test]
        place = SETS[test.kind] + (f", {test.group} seen" if test.group else "")
        interval = f"{share(one.mean, sign='+')} [{share(one.low, sign='+')}, {share(one.high, sign='+')}]"
        counts = f"{one.better}, {one.worse}, {one.n}"
        p_values = [f"{one.p_value:.4f}", f"{corrected[test]:.4f}"]
        table.append([names[test.second], place, interval, *p_values, counts, "yes" if one.is_significant else "no"])
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
    for kind, name in SETS.items():
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
