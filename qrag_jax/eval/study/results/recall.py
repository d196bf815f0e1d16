"""Evidence recall of contexts as a table: a line a strategy and fill, a column a budget."""

from qrag_jax.eval.study.records import StudyComparison, StudyResult, StudyRow
from qrag_jax.eval.study.results.lines import significant_sign
from qrag_jax.eval.tables import share

RECALL_NOTE = (
    "ERec: share of the evidence, by characters, that stands in a context of so many tokens, compared by words; with a "
    "95% bootstrap interval. Behind it: minus plain, on the same questions; * where the interval lies on one side of 0 "
    "and the corrected p is below 0.05, by document where there are enough of them."
)


def recall_heading(task: str) -> str:
    """`squad: evidence found in contexts, by tokens`."""
    return f"{task}: evidence found in contexts (ERec), by tokens"


def recall_table(result: StudyResult, task: str) -> list[list[str]]:
    """Heading and lines of a task; empty where it has no rows of budgets."""
    rows = {(row.strategy, row.fill, row.budget): row for row in result.rows if row.task == task and row.budget}
    budgets = list(dict.fromkeys(budget for *_, budget in rows))
    versus = {(one.strategy, one.fill, one.budget): one for one in result.comparisons if one.task == task}
    lines = list(dict.fromkeys((strategy, fill) for strategy, fill, _ in rows))
    body = [
        [strategy, str(fill), *(_cell(rows[strategy, fill, n], versus.get((strategy, fill, n))) for n in budgets)]
        for strategy, fill in lines
    ]
    return [["strategy", "fill", *(f"{n:,}" for n in budgets)], *body] if body else []


def _cell(row: StudyRow, versus: StudyComparison | None) -> str:
    assert row.erec is not None and row.erec_low is not None and row.erec_high is not None  # of all with a budget
    found = f"{share(row.erec)} [{share(row.erec_low)}, {share(row.erec_high)}]"
    if versus is None:
        return found
    return f"{found} {share(versus.difference, sign='+')}{'*' if significant_sign(versus) else ''}"
