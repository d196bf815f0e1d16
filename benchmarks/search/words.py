"""Are words found however they are written, and is the exact identifier first?

    python -m benchmarks.search.words        # 2 minutes on 2 cores

`words/pairs.jsonl` has texts with a word in one form, and questions with the other form: of each script, signs that
readers leave out or write in several ways. A pair is found if its text is the first of its pool: the texts of its
script with other questions, and five of other scripts. `words/identifiers.jsonl` has identifiers, versions and numbers,
each with three near misses in the same sentence; the pool has five more sentences. The exact one must be first, whether
it comes before or behind the near misses. In `words/other_sentences.jsonl` the near misses stand in sentences that are
nearer to the question in all other words. Lines are JSON with escapes, because many of the signs are invisible.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common import arguments, grid
from qrag_jax.index.methods import Method, single_step_method
from qrag_jax.types import Document

FOLDER = Path(__file__).parent / "words"
METHODS = ("bm25", "hybrid")
NUM_OTHERS = 5
FILL = (
    "The ferry rests on Sunday.",
    "Nobody has seen the pilot since the storm.",
    "The rope is ten metres long and lies behind the door.",
    "Where the path ends, a boat is kept for the keeper.",
    "What the tide brings is read and written down every night.",
)
First = Callable[[Sequence[str], str], int]  # texts and a question -> the position of the best text; -1: none


def make_first(method: Method) -> First:
    def first(texts: Sequence[str], question: str) -> int:
        documents = [Document(f"{number:03}", text) for number, text in enumerate(texts)]
        corpus = method.build(documents)
        ranked = method.retrieve(question, corpus, 1)
        return int(corpus.nodes[ranked.ids[0]].document_id) if len(ranked) else -1

    return first


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / name).read_text("utf-8").splitlines()]


def missed_pairs(first: First) -> list[dict]:
    rows = read("pairs.jsonl")
    missed = []
    for place, row in enumerate(rows):
        others = [one for one in rows if one["question"] != row["question"]]
        same = [one["text"] for one in others if one["script"] == row["script"]]
        rest = [one["text"] for one in rows[place:] + rows if one["script"] != row["script"] and one in others]
        if first([*same, *rest[:NUM_OTHERS], row["text"]], row["question"]) != len(same) + NUM_OTHERS:
            missed.append(row)
    return missed


def missed_identifiers(first: First) -> list[dict]:
    missed = []
    for row in read("identifiers.jsonl"):
        right, *near = (row["text"].format(name) for name in (row["asked"], *row["near"]))
        question = row["question"].format(row["asked"])
        before, behind = first([right, *near, *FILL], question), first([*FILL, *near, right], question)
        if (before, behind) != (0, len(FILL) + len(near)):
            missed.append(row)
    return missed


def missed_among_others(first: First) -> list[dict]:
    missed = []
    for row in read("other_sentences.jsonl"):
        texts = [row["text"], *row["others"], *FILL]
        if (first(texts, row["question"]), first(texts[::-1], row["question"])) != (0, len(texts) - 1):
            missed.append(row)
    return missed


def report() -> str:
    names = ("pairs.jsonl", "identifiers.jsonl", "other_sentences.jsonl")
    pairs, identifiers, others = map(read, names)
    lines, details = [], []
    for name in METHODS:
        first = make_first(single_step_method(name))
        missed = (missed_pairs(first), missed_identifiers(first), missed_among_others(first))
        found = [len(rows) - len(some) for rows, some in zip((pairs, identifiers, others), missed, strict=True)]
        lines.append(
            [
                name,
                *(f"{number} of {len(rows)}" for number, rows in zip(found, (pairs, identifiers, others), strict=True)),
            ]
        )
        details += [f"- {name} misses {json.dumps(row)}" for row in sum(missed, [])]
    scripts = Counter(row["script"] for row in pairs)
    head = f"{len(pairs)} pairs of {len(scripts)} scripts and languages, {len(identifiers)} identifiers, "
    head += f"{len(others)} among other sentences."
    return "\n".join(
        [
            head,
            "",
            *grid(["method", "word found first", "exact identifier first", "among other sentences"], lines),
            "",
            *details,
        ]
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.parse_args()
    print(report())


if __name__ == "__main__":
    main()
