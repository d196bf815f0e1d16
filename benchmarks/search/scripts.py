"""Is hybrid search as good as words alone in scripts that the encoder does not know, and is it said?

    python -m benchmarks.search.scripts [--out benchmarks/search/results/scripts.md]        # 3 minutes on 2 cores

`words/scripts.jsonl` has ten nouns of a language, sentences of three lengths to put them in, and a question. The pool
of a language is ten passages, one with each noun, so one passage answers each question. Counted are the questions whose
passage is among the first three, and the warnings that the encoder does not know the words. `share` is the mean share
of unknown words of its questions and passages, as the search computes it.
"""

import json
import warnings
from pathlib import Path

import numpy as np

from benchmarks.common import arguments, grid
from qrag_jax.index.index import open_index
from qrag_jax.index.methods import load_embedder
from qrag_jax.models.encoder.embedder import TextEmbedder
from qrag_jax.types import Document, InputWarning

DATA = Path(__file__).parent / "words" / "scripts.jsonl"
METHODS = ("bm25", "hybrid", "dense")


def measure(row: dict, encoder: TextEmbedder) -> list[str]:
    """The cells of a language: found in three by each method, warnings of hybrid, shares."""
    texts = [row["texts"][number % 3].format(word) for number, word in enumerate(row["words"])]
    questions = [row["question"].format(word) for word in row["words"]]
    index = open_index([Document(str(number), text) for number, text in enumerate(texts)], encoder=encoder)
    found, told = dict.fromkeys(METHODS, 0), 0
    for number, question in enumerate(questions):
        for name in METHODS:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", InputWarning)
                hits = index.search(question, 3, retriever=name)
            found[name] += any(hit.place.document == str(number) for hit in hits)
            told += len(caught) if name == "hybrid" else 0
    shares = [encoder.unknown_shares(some).mean() for some in (questions, texts)]
    return [row["script"], *map(str, found.values()), str(told), *(f"{share:.2f}" for share in shares)]


def report() -> str:
    encoder = load_embedder("minilm")
    rows = [measure(json.loads(line), encoder) for line in DATA.read_text("utf-8").splitlines()]
    fewer = [row[0] for row in rows if int(row[2]) < int(row[1])]
    totals = np.array([row[1:4] for row in rows], int).sum(axis=0).tolist()
    head = ["script", *METHODS, "warnings", "share of questions", "of passages"]
    lines = grid(head, [*rows, ["all", *map(str, totals), "", "", ""]])
    return "\n".join([*lines, "", f"Hybrid has fewer than bm25 in: {', '.join(fewer) or 'none'}."])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--out", type=Path, help="write the table there too")
    args = parser.parse_args()
    table = report()
    print(table)
    if args.out:
        head = "Questions of ten in a language whose only right passage is among the first three, with MiniLM."
        args.out.write_text(
            f"# Scripts that the encoder does not know\n\n`python -m benchmarks.search.scripts`. {head}\n\n{table}\n"
        )


if __name__ == "__main__":
    main()
