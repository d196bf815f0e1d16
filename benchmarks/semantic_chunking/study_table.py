"""The short tables of a study: F1 and seconds of every strategy on every task, and its differences by document.

    python -m benchmarks.semantic_chunking.study_table results/study/results.json results/study/by_document.json

`+` and `-` mark what is told apart from the baseline: the 95% interval of the paired difference leaves out 0, and p is
below 0.05, by document where a task has enough of them, else by question. p is Holm-corrected for all comparisons
together. A second file holds comparisons that have intervals by document, of the same rows as those of the first.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import arguments
from qrag_jax.eval.study.records import StudyComparison
from qrag_jax.eval.study.results.study_tables import significant_sign
from qrag_jax.eval.tables import align, share
from qrag_jax.measures.aggregate import holm_p_values

SIGNS = {1: " +", 0: "", -1: " -"}
BY_DOCUMENT = ("low_by_document", "high_by_document", "p_holm_by_document")
SAME = 1e-12  # differences nearer than this are of the same rows
Compared = Mapping[tuple[str, str], StudyComparison]  # by task and strategy


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("results", type=Path, help="results.json of `qrag study`")
    parser.add_argument("by_document", type=Path, nargs="?", help="results.json of the same study, or its comparisons")
    args = parser.parse_args()
    result, *more = (json.loads(path.read_text(encoding="utf-8")) for path in (args.results, args.by_document) if path)
    found = compared(result["comparisons"], *(one["comparisons"] for one in more))
    print("\n".join(short_table(result, found)), "\n".join(document_table(found)), sep="\n\n")


def compared(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]] = ()) -> Compared:
    """The comparisons, those of `second` in place of those of `first`, in one family of Holm's correction."""
    found = {(one.task, one.strategy): one for one in (StudyComparison(**values) for values in first)}
    for one in (StudyComparison(**values) for values in second):
        if abs(found[one.task, one.strategy].difference - one.difference) > SAME:
            raise ValueError(f"{one.task}, {one.strategy}: differences of other rows")
        found[one.task, one.strategy] = one
    p_holm = holm_p_values([one.p_value for one in found.values()])
    own = [one.p_value if one.p_by_document is None else one.p_by_document for one in found.values()]
    return {
        key: replace(one, p_holm=by_question, p_holm_by_document=by_document)
        for (key, one), by_question, by_document in zip(found.items(), p_holm, holm_p_values(own), strict=True)
    }


def short_table(result: Mapping[str, Any], found: Compared) -> list[str]:
    """A line a strategy, a column a task."""
    rows = {(row["task"], row["strategy"]): row for row in result["rows"]}
    tasks, strategies = (list(dict.fromkeys(key[i] for key in rows)) for i in (0, 1))
    cells = [
        (f"F1@{result['report_k']} (seconds)", *(f"{task} ({rows[task, strategies[0]]['n']:,})" for task in tasks))
    ]
    for strategy in strategies:
        own = [cell(rows[task, strategy], found.get((task, strategy)), result["report_k"]) for task in tasks]
        cells.append((strategy, *own))
    return align(cells, markdown=True)


def cell(row: Mapping[str, Any], versus: StudyComparison | None, k: int) -> str:
    sign = "" if versus is None else SIGNS[significant_sign(versus)]
    return f"{share(row['scores'][f'f1@{k}'])}{sign} ({sum(row['cost']['seconds'].values()):,.0f})"


def document_table(found: Compared) -> list[str]:
    """Interval, corrected p and mark, by question and by document, of every comparison that has both."""
    heads = "task (documents)", "strategy", "minus baseline", "by question: p", "by document: p"
    cells: list[tuple[str, ...]] = [heads]
    for one in found.values():
        if one.num_groups is not None:
            by_question = replace(one, **dict.fromkeys(BY_DOCUMENT))
            by_document = replace(
                by_question, low=one.low_by_document, high=one.high_by_document, p_holm=one.p_holm_by_document
            )
            told = f"{one.task} ({one.num_groups})", one.strategy, share(one.difference, sign="+")
            cells.append((*told, tested(by_question), tested(by_document)))
    return align(cells, [False, False, True, False, False], markdown=True)


def tested(one: StudyComparison) -> str:
    low, high = share(one.low, sign="+"), share(one.high, sign="+")
    return f"[{low}, {high}]: {share(one.p_holm)}{SIGNS[significant_sign(one)]}"


if __name__ == "__main__":
    main()
