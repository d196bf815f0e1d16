"""RULER: a retriever without labels beside plain search, BM25 and the paper's numbers.

    python -m benchmarks.qrag.ruler run RUN DATA [--num_tokens 4096 32768 131072 1000000] [--num_questions 100 50 20 10]
    python -m benchmarks.qrag.ruler table  # benchmarks/qrag/results/ruler/README.md

`run` is, for each length, `qrag eval RUN --ruler niah,vt,qa_1:...,qa_2:... --num_tokens N --num_questions M --seed 0`
with Paul Graham's essays of DATA/paul_graham_essays as the haystack; qa_1 reads DATA/squad, qa_2 the dev questions of
DATA/hotpotqa. The QA files hold about 177,000 and 302,000 tokens, so qa_1 ends at 131,072 and qa_2 too. RUN is a run
over many documents, here that of `qrag learn` on the passages of MuSiQue (benchmarks/qrag/learn.py): it saw no question
of HotpotQA, no needle and no essay.
"""

import argparse
import json
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, grid, machine, place
from qrag_jax.data.stories.ruler import NEEDLES
from qrag_jax.eval.retrieval.score import Options
from qrag_jax.eval.tables import share
from qrag_jax.service.ruler import RulerRequest, evaluate_ruler

RESULTS = Path(__file__).parent / "results" / "ruler"
LONGEST_QA = 131_072
METHODS = ("trained", "hybrid", "single_step", "bm25")
# Q-RAG, table 1 of the paper: by length, the tasks of `NEEDLES`, then multi-hop QA.
PAPER = {
    4_096: (100, 100, 100, 100, 100, 100, 100, 100, 67),
    32_768: (100, 100, 100, 100, 100, 100, 100, 100, 67),
    131_072: (100, 100, 100, 100, 100, 100, 100, 100, 62),
    1_000_000: (100, 100, 100, 100, 98.5, 99.0, 100, 100, 57),
}


def run(folder: str, data: Path, lengths: Sequence[int], numbers: Sequence[int]) -> None:
    """Scores each length, and keeps the rows."""
    qa = (f"qa_1:{data}/squad/articles.jsonl.gz", f"qa_2:{data}/hotpotqa/dev.jsonl.gz")
    with tempfile.TemporaryDirectory() as essays:
        with tarfile.open(data / "paul_graham_essays" / "paul_graham_essays.tar.gz") as archive:
            archive.extractall(essays, filter="data")
        for num_tokens, num_questions in zip(lengths, numbers, strict=True):
            path = RESULTS / f"{num_tokens}.json"
            here = machine()
            kept = json.loads(path.read_text()) if path.exists() else {"about": here, "rows": []}
            rows, later = kept["rows"], kept.setdefault("later", {})
            known = {row["task"] for row in rows}
            for task in (*NEEDLES, "vt", *(qa if num_tokens <= LONGEST_QA else ())):
                if task.partition(":")[0] in known:
                    continue
                options = Options(methods=METHODS, num_questions=num_questions)
                request = RulerRequest(folder, (task,), (num_tokens,), essays, options)
                rows += list(evaluate_ruler(request).rows)
                if here != kept["about"]:
                    later[rows[-1]["task"]] = here
                path.write_text(json.dumps(kept) + "\n")
                print(num_tokens, task, [(row["method"], row["all_gold"]) for row in rows[-len(METHODS) :]], flush=True)


def write_table() -> None:
    """The page of all results."""
    told = (__doc__ or "").split("\n\n", 1)
    parts = ["# " + told[0].rstrip("."), told[1], _READING]
    for num_tokens in PAPER:
        path = RESULTS / f"{num_tokens}.json"
        if not path.exists():
            continue
        kept = json.loads(path.read_text())
        told = "".join(f"; {task}: {_at(about)}" for task, about in kept.get("later", {}).items())
        parts.append(f"## {num_tokens:,} tokens\n\n{_at(kept['about'])}{told}.")
        rows = [
            _row(task, kept["rows"], PAPER[num_tokens]) for task in dict.fromkeys(row["task"] for row in kept["rows"])
        ]
        heads = [
            "task",
            "picks",
            *("learned" if one == "trained" else one for one in METHODS),
            "paper",
            "questions",
            "chunks",
        ]
        parts.append("\n".join(grid(heads, rows)))
    (RESULTS / "README.md").write_text("\n\n".join(parts) + "\n")


def _at(about: Mapping[str, Any]) -> str:
    return f"{place(about)}, commit {about['commit']}"


def _row(task: str, rows: Sequence[dict[str, Any]], paper: Sequence[float]) -> list[str]:
    own = {row["method"]: row for row in rows if row["task"] == task}
    first = own["trained"]
    cells = [f"{share(own[one]['all_gold'])} [{share(own[one]['low'])}, {share(own[one]['high'])}]" for one in METHODS]
    theirs = (
        share(paper[list(NEEDLES).index(task)] / 100)
        if task in NEEDLES
        else share(paper[-1] / 100)
        if task == "qa_2"
        else "-"
    )
    return [task, str(first["k"]), *cells, theirs, str(first["n"]), f"{first['num_chunks']:,}"]


_READING = """The share of questions with all gold chunks among the picks, and its 95% interval. The paper's numbers are
of answers by a language model, from the picks of a retriever that was trained on needles of 4K tokens (multi-hop QA: on
HotpotQA). So they stand beside ours and are another measure: an answer can be wrong with all gold, or right without.
`vt` and qa_1 are not in the paper's table.

niah_multikey_2 was measured again after names with hyphens began to count as identifiers (before, at 4K to 1M tokens,
learned 1.000, 1.000, 1.000, .800 and plain search 1.000, .960, .900, .800). The other rows are of before."""


def main() -> None:
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("stage", choices=("run", "table"))
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--num_tokens", type=int, nargs="*", default=list(PAPER))
    parser.add_argument("--num_questions", type=int, nargs="*", default=[100, 50, 20, 10])
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if args.stage == "run":
        run(args.paths[0], Path(args.paths[1]), args.num_tokens, args.num_questions)
    write_table()


if __name__ == "__main__":
    main()
