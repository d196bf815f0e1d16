"""Are simulated worlds as hard as bAbI? Compares their statistics with the real files, and checks the gold of both.

    python benchmarks/worlds_vs_babi.py --babi FOLDER_WITH_qaN_train.txt.gz

writes benchmarks/results/worlds_vs_babi.md. FOLDER holds qa1..qa3 as qaN_SPLIT.txt or .txt.gz.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from qrag_jax.data.stories.babi import read_babi
from qrag_jax.data.stories.stories import Stories, concatenate
from qrag_jax.data.stories.story_notes import Told, explain, parse_fact
from qrag_jax.data.stories.worlds import simulate_stories

RESULT = Path(__file__).parent / "results" / "worlds_vs_babi.md"
NUM_SIMULATED = 20_000


def gold_agreement(stories: Stories) -> tuple[int, int]:
    """How many questions have exactly the answer and gold that `explain` finds in the text, and how many in all."""
    agree = 0
    for i in range(len(stories)):
        found = explain(stories.fact_texts(i), stories.question(i))
        agree += found == (stories.answers[i], tuple(stories.gold[i].tolist()))
    return agree, len(stories)


def percentiles(values: np.ndarray) -> str:
    return "/".join(f"{v:g}" for v in np.percentile(values, [10, 50, 90], method="lower")) + f", {values.max()}"


def shares(counts: Counter, top: int = 6) -> str:
    total = sum(counts.values())
    return ", ".join(f"{key} {count / total:.3f}" for key, count in sorted(counts.most_common(top)))


def first_of_story(stories: Stories) -> np.ndarray:
    """bool [n]: questions whose facts do not continue those of the question before."""
    first = np.ones(len(stories), bool)
    for i in range(1, len(stories)):
        before, now = stories.facts[i - 1], stories.facts[i]
        first[i] = len(now) <= len(before) or not np.array_equal(now[: len(before)], before)
    return first


def statistics(stories: Stories) -> dict[str, str]:
    """Row name -> value, one row a property of the stories."""
    told = [parse_fact(text) for text in stories.texts]
    num_facts, first = stories.num_facts, first_of_story(stories)
    last = np.array([gold[-1] for gold in stories.gold])
    span = last - np.array([gold[0] for gold in stories.gold])
    last_of_story = np.append(np.flatnonzero(first)[1:], len(stories)) - 1
    whole = np.concatenate([stories.facts[i] for i in last_of_story])
    mix = Counter(told[i].kind for i in whole)
    rows = {
        "facts at question time, 10/50/90%, max": percentiles(num_facts),
        "share with at most 20 facts": f"{(num_facts <= 20).mean():.3f}",
        "facts before the first question, 10/50/90%, max": percentiles(num_facts[first]),
        "facts between questions: share of 2; mean": _gaps(num_facts, first),
        "first to last support, 10/50/90%, max": percentiles(span),
        "mean first to last support": f"{span.mean():.2f}",
        "facts after the last support": shares(Counter((num_facts - 1 - last).tolist())),
        "order of supports": shares(Counter(_order(told, stories, i) for i in range(len(stories)))),
        "sentence mix": shares(mix),
        "same person as the fact before": f"{_same_person(told, stories, last_of_story):.3f}",
        "gets, drops with 'there'": ", ".join(
            f"{kind} {_share_there(stories, told, whole, kind):.3f}" for kind in ("get", "drop") if mix[kind]
        ),
    }
    return {name: value for name, value in rows.items() if value}


def _gaps(num_facts: np.ndarray, first: np.ndarray) -> str:
    gaps = np.diff(num_facts)[~first[1:]]
    return f"{(gaps == 2).mean():.3f}; {gaps.mean():.2f}"


def _order(told: list[Told], stories: Stories, index: int) -> str:
    return ">".join(told[stories.facts[index][position]].kind for position in stories.gold[index])


def _same_person(told: list[Told], stories: Stories, rows: np.ndarray) -> float:
    people = [[told[fact].person for fact in stories.facts[i]] for i in rows]
    return float(np.mean([a == b for row in people for a, b in zip(row, row[1:], strict=False)]))


def _share_there(stories: Stories, told: list[Told], whole: np.ndarray, kind: str) -> float:
    return float(np.mean([stories.texts[i].endswith(" there.") for i in whole if told[i].kind == kind]))


def distance(value: Callable[[Stories], np.ndarray], real: Stories, ours: Stories) -> float:
    """Two-sample Kolmogorov-Smirnov distance: the largest difference of the two distribution functions."""
    a, b = np.sort(value(real)), np.sort(value(ours))
    points = np.union1d(a, b)
    cdf = [np.searchsorted(x, points, side="right") / len(x) for x in (a, b)]
    return float(np.abs(cdf[0] - cdf[1]).max())


def find(folder: Path, task: int, split: str) -> Path:
    plain = folder / f"qa{task}_{split}.txt"
    return plain if plain.exists() else plain.with_suffix(".txt.gz")


def report(folder: Path) -> str:
    """The whole result file."""
    lines = [
        "# Simulated worlds beside bAbI",
        "",
        f"`python benchmarks/worlds_vs_babi.py --babi DIR`: the train files of qa1-qa3, and {NUM_SIMULATED:,} "
        "simulated questions a task (`simulate_stories(task, ..., seed=0)`).",
        "",
    ]
    for task in (1, 2, 3):
        real = read_babi(find(folder, task, "train"))
        ours = simulate_stories(task, NUM_SIMULATED, seed=0)
        left, right = statistics(real), statistics(ours)
        lines += [f"## {task} fact{'s' * (task > 1)}", "", f"| | qa{task} train | simulated |", "|---|---|---|"]
        lines += [f"| questions | {len(real):,} | {len(ours):,} |"]
        lines += [f"| {name} | {left[name]} | {right[name]} |" for name in left]
        by_facts = distance(lambda s: s.num_facts, real, ours)
        by_span = distance(lambda s: np.array([gold[-1] - gold[0] for gold in s.gold]), real, ours)
        lines += [f"| Kolmogorov-Smirnov distance: facts, span | | {by_facts:.3f}, {by_span:.3f} |"]
        both = concatenate([real, read_babi(find(folder, task, "valid"))])
        agreements = [gold_agreement(both), gold_agreement(ours)]
        lines += [
            "| answer and gold recomputed from the sentences | {} (train and valid) | {} |".format(
                *(f"{agree:,} of {total:,}" for agree, total in agreements)
            )
        ]
        unseen = set(real.texts) - set(ours.texts)
        lines += [f"| sentences of the real file that no world says | {len(unseen)} of {len(real.texts)} | |", ""]
    return "\n".join(lines)


def main() -> None:
    """Writes the table and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--babi", type=Path, required=True, help="folder with qaN_train and qaN_valid, N = 1, 2, 3")
    text = report(parser.parse_args().babi)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
