"""The short table of a study for the README: F1 and seconds of every strategy on every task.

    python benchmarks/study_table.py benchmarks/results/study/results.json

`+` and `-` mark what is told apart from the baseline: the 95% interval of the paired difference leaves out 0, and the
Holm-corrected p is below 0.05.
"""

import argparse
import json
from pathlib import Path

LEVEL = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results.json of `qrag study`")
    print(table(json.loads(parser.parse_args().results.read_text(encoding="utf-8"))))


def table(result: dict) -> str:
    rows = {(row["task"], row["strategy"]): row for row in result["rows"]}
    compared = {(one["task"], one["strategy"]): one for one in result["comparisons"]}
    tasks, strategies = (list(dict.fromkeys(key[i] for key in rows)) for i in (0, 1))
    heads = [f"{task} ({rows[task, strategies[0]]['n']:,})" for task in tasks]
    lines = [f"| F1@{result['report_k']} (seconds) | {' | '.join(heads)} |", f"|---|{'---|' * len(tasks)}"]
    for strategy in strategies:
        cells = [cell(rows[task, strategy], compared.get((task, strategy)), result["report_k"]) for task in tasks]
        lines.append(f"| {strategy} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(row: dict, versus: dict | None, k: int) -> str:
    sign = ""
    if versus is not None and versus["p_holm"] < LEVEL and (versus["low"] > 0 or versus["high"] < 0):
        sign = " +" if versus["low"] > 0 else " -"
    seconds = sum(row["cost"]["seconds"].values())
    return f"{row['scores'][f'f1@{k}']:.3f}{sign} ({seconds:,.0f})".replace("0.", ".", 1)


if __name__ == "__main__":
    main()
