"""Q-RAG over one pool of many documents: HotpotQA, MuSiQue and 2WikiMultihopQA, beside notes and plain search.

    python -m benchmarks.qrag.corpus run DATA [--seeds 0 1 2] [--set FIELD=VALUE ...] [--name NAME]
    python -m benchmarks.qrag.corpus notes DATA
    python -m benchmarks.qrag.corpus table  # benchmarks/qrag/results/corpus/README.md

DATA holds hotpotqa/, musique/ and 2wiki/ (train.jsonl.gz, dev.jsonl.gz and, of the first two, train_more.jsonl.gz), and
multihop_corpora/. `run` is `qrag train --config_path configs/qrag/corpus_latent.yaml --seeds ...` on the train files,
then `qrag eval --pooled` on each dev file, with vectors that are kept in runs/corpus, as a pool is embedded once for
all seeds. Of HotpotQA's train_more the first 500 questions are used. Distractors are the passages of multihop_corpora,
and with `more` also those of all train questions. `notes` is `qrag notes eval --modes best_of+bm25` on the same pools.
"""

import argparse
import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import CONFIGS, arguments, grid, interval, machine, minilm, place, tested
from qrag_jax.annotate.mentions import mention_notes
from qrag_jax.config import load_config
from qrag_jax.eval.notes.note_scores import score_notes
from qrag_jax.eval.notes.note_sets import passage_pool, read_passages
from qrag_jax.eval.retrieval.calibration import fit_on_dev
from qrag_jax.eval.retrieval.score import Run, open_run
from qrag_jax.eval.tables import share
from qrag_jax.measures.aggregate import holm_p_values, mean_interval, over_seeds, paired_difference
from qrag_jax.qrag.pool_search import make_pool_bank
from qrag_jax.qrag.pool_sets import multihop_pool
from qrag_jax.qrag.tasks import Task
from qrag_jax.service.pooled import score_pool
from qrag_jax.train.qrag.config import RunConfig, split_pool
from qrag_jax.train.qrag.loop import train_together
from qrag_jax.train.qrag.saving import Member
from qrag_jax.types import Embed

RESULTS = Path(__file__).parent / "results" / "corpus"
SETS = {"hotpot": "hotpotqa", "musique": "musique", "2wiki": "2wiki"}
MORE = {"hotpot": "hotpotqa_train", "musique": "musique_train", "2wiki": "2wikimultihopqa"}
NUM_MORE = 500  # questions of HotpotQA's train_more
KS, NOTES = (2, 4, 10), "best_of+bm25"
GOALS = {"hotpot": 0.85, "musique": 0.40, "2wiki": 0.85}


class Vectors:
    """Vectors of texts by MiniLM, kept in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.embed = folder, minilm()
        self.known: dict[str, np.ndarray] = {}
        if (folder / "texts.json").exists():
            texts = json.loads((folder / "texts.json").read_text())
            self.known = dict(zip(texts, np.load(folder / "vectors.npy", allow_pickle=False), strict=True))

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [texts, 384]; new texts are embedded and kept."""
        if new := [text for text in dict.fromkeys(texts) if text not in self.known]:
            self.known |= dict(zip(new, self.embed(new), strict=True))
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "texts.json").write_text(json.dumps(list(self.known)))
            np.save(self.folder / "vectors.npy", np.stack(list(self.known.values())))
        return np.stack([self.known[text] for text in texts])

    def into(self, task: Task) -> Task:
        """The task with the vectors of its pool."""
        assert task.pool is not None
        return replace(task, pool=replace(task.pool, vectors=self.of(task.pool.texts)))


def train_files(data: Path, runs: Path) -> list[tuple[str, str]]:
    """The train files by kind; HotpotQA's further questions are cut to the first ones."""
    cut = runs / "hotpot_more.jsonl"
    cut.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(data / "hotpotqa" / "train_more.jsonl.gz", "rt") as file:
        cut.write_text("".join(line for line, _ in zip(file, range(NUM_MORE), strict=False)))
    more = [("hotpot", str(cut)), ("musique", str(data / "musique" / "train_more.jsonl.gz"))]
    return [(kind, str(data / folder / "train.jsonl.gz")) for kind, folder in SETS.items()] + more


def passages(data: Path, runs: Path, kind: str, pool: str) -> list[tuple[str, str]]:
    """Passages that are added to the pool of dev: none, those of its corpus, or with those of all train questions."""
    if not pool:
        return []
    own = read_passages(data / "multihop_corpora" / f"{MORE[kind]}_corpus.json.gz")
    if pool == "distractors":
        return own
    trained = multihop_pool(train_files(data, runs)).pool
    assert trained is not None
    split = zip(trained.titles, trained.texts, strict=True)
    return own + [(title, text.removeprefix(f"{title}: ")) for title, text in split]


def run(data: Path, runs: Path, name: str, seeds: Sequence[int], fields: Sequence[str], pools: Sequence[str]) -> None:
    """Trains all seeds together and scores them on dev."""
    vectors = Vectors(runs / "vectors")
    files = train_files(data, runs)
    paths = ", ".join(f"{kind}:{file}" for kind, file in files)
    overrides = [f"data.paths=[{paths}]", "data.seed=0", *fields]
    config = load_config(RunConfig, str(CONFIGS / "corpus_latent.yaml"), overrides)
    outs = [runs / name / f"seed_{seed}" for seed in seeds]
    if not outs[-1].exists():
        task, dev = split_pool(vectors.into(multihop_pool(files)), config)
        members = [Member(replace(config, seed=seed), out) for seed, out in zip(seeds, outs, strict=True)]
        train_together(members, task, _print_progress, dev, partial(fit_on_dev, beam_widths=()))
    for pool in pools:
        for kind, folder in SETS.items():
            _score(
                data,
                runs,
                name,
                dict(zip(seeds, map(open_run, outs), strict=True)),
                (kind, folder, pool),
                vectors,
                fields,
            )


def _score(
    data: Path,
    runs: Path,
    name: str,
    trained: dict[int, Run],
    where: tuple[str, str, str],
    vectors: Vectors,
    fields: Sequence[str],
) -> None:
    """Scores all seeds on one pool of dev; beyond 4 picks the first one only, as these steps take most of the time."""
    kind, folder, pool = where
    task = vectors.into(multihop_pool([(kind, str(data / folder / "dev.jsonl.gz"))], passages(data, runs, kind, pool)))
    first, bank = next(iter(trained)), None
    for seed, one in trained.items():
        path = RESULTS / f"{name}_{seed}_{kind}{pool and '_' + pool}.json"
        if path.exists():
            continue
        assert task.pool is not None
        bank = bank or make_pool_bank(one.retriever, task.pool)
        methods, ks = (("trained", "single_step", "bm25"), KS) if seed == first else (("trained",), KS[:2])
        found = score_pool(one, task, methods, ks, seed, bank=bank)
        about = {"run": name, "seed": seed, "fields": list(fields), **machine()}
        kept = [{key: row[key] for key in ("method", "id", "gold", "picks")} for row in found.questions]
        path.write_text(json.dumps({"about": about, "rows": found.rows, "questions": kept}) + "\n")
        shown = [(row["method"], row["k"], round(row["all_gold"], 3)) for row in found.rows]
        print(kind, pool, seed, shown, flush=True)


def _print_progress(stage: str, done: int, of: int, metrics: dict[str, float]) -> None:
    if metrics:
        print(stage, done, of, {key: round(float(value), 3) for key, value in metrics.items()}, flush=True)


def score_notes_of(data: Path, runs: Path, pools: Sequence[str]) -> None:
    """Scores notes on the same pools, question by question."""
    from qrag_jax.data.questions.multihop import READERS

    vectors = Vectors(runs / "vectors")
    for kind, folder in SETS.items():
        read = READERS[kind](data / folder / "dev.jsonl.gz")
        for pool in pools:
            path = RESULTS / f"notes_{kind}{pool and '_' + pool}.json"
            if path.exists():
                continue
            more = passages(data, runs, kind, pool)
            made = passage_pool(read.examples, read.titles, vectors.embed.count_tokens, more)
            found = score_notes(
                kind, [made], lambda documents, chunks: mention_notes(documents, chunks), _known(vectors),
                vectors.embed.count_tokens, reader_name="mentions", modes=[NOTES], ks=KS, seed=0, window=None,
            )  # fmt: skip
            scores = found.modes[NOTES].all_gold.astype(int).tolist()
            about = {"num_chunks": found.num_chunks, "num_notes": found.num_notes, **machine()}
            path.write_text(json.dumps({"about": about, "ks": KS, "all_gold": scores}) + "\n")
            print(kind, pool, np.mean(scores, axis=0).round(3), flush=True)


def _known(vectors: Vectors) -> Embed:
    return lambda texts: vectors.of(list(texts))


def write_table() -> None:
    """The page of all results."""
    told = [(__doc__ or "").split("\n\n")[0].rstrip(".")]
    tests: list[tuple[str, str, Any]] = []
    table, abouts = [], []
    names = dict.fromkeys(path.name.split("_")[0] for path in sorted(RESULTS.glob("*_*_*.json")))
    for name in [name for name in names if name != "notes"]:
        for kind in SETS:
            for pool in ("", "distractors", "more"):
                end = f"{kind}{pool and '_' + pool}.json"
                files = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{name}_[0-9]_{end}"))]
                if not files:
                    continue
                abouts += [one["about"] for one in files]
                table += _rows(name, kind, pool, files)
                notes = RESULTS / f"notes_{end}"
                if notes.exists():
                    other = np.array(json.loads(notes.read_text())["all_gold"], float)[:, KS.index(4)]
                    own = np.mean([_found(one, "trained", 4) for one in files], axis=0)
                    tests.append((f"{name}, {kind} {pool}", NOTES, paired_difference(own, other)))
    for kind in SETS:
        for pool in ("", "distractors", "more"):
            path = RESULTS / f"notes_{kind}{pool and '_' + pool}.json"
            if path.exists():
                kept = json.loads(path.read_text())
                cells = [
                    interval(mean_interval(np.array(column, float))) for column in zip(*kept["all_gold"], strict=True)
                ]
                table.append([kind, pool or "-", f"notes {NOTES}", *cells, f"{kept['about']['num_chunks']:,}"])
    corrected = holm_p_values([one.p_value for *_, one in tests]) if tests else []
    heads = ["set", "more passages", "method", *(f"all gold at {k}" for k in KS), "chunks"]
    parts = ["# " + told[0], (__doc__ or "").split("\n\n", 1)[1], _READING, "\n".join(grid(heads, sorted(table)))]
    rows = [[what, against, *tested(one.mean, one.low, one.high, p, one.n)]
            for (what, against, one), p in zip(tests, corrected, strict=True)]  # fmt: skip
    parts.append("## Paired tests, all gold at 4\n\nMean of the seeds minus notes; p of all of them corrected (Holm).")
    parts.append("\n".join(grid(["run", "against", "difference", "95% interval", "p (Holm)", "n"], rows)))
    parts.append(
        "\n".join(
            dict.fromkeys(
                f"{a['run']}, seed {a['seed']}: {a['fields']}, {place(a)}, commit {a['commit']}" for a in abouts
            )
        )
    )
    (RESULTS / "README.md").write_text("\n\n".join(parts) + "\n")


_READING = """Intervals are 95%, by bootstrap over questions; of several seeds for other questions and other seeds.
Beyond 4 picks the first seed only. Dev questions trained nothing and chose no update. The lengths of the candidate
lists were chosen by how often the lists hold all gold of the dev pools, so dev is not wholly unseen; features and all
else were set before dev was scored."""


def _found(one: dict[str, Any], method: str, k: int) -> np.ndarray:
    rows = [row for row in one["questions"] if row["method"] == method]
    return np.array([set(row["gold"]) <= set(row["picks"][:k]) for row in rows], float)


def _rows(name: str, kind: str, pool: str, files: Sequence[dict[str, Any]]) -> list[list[str]]:
    chunks = f"{files[0]['rows'][0]['num_chunks']:,}"
    several = [files, files, files[:1]]  # beyond 4 picks the first seed only
    means = [
        over_seeds([mean_interval(_found(one, "trained", k)) for one in some])
        for k, some in zip(KS, several, strict=True)
    ]
    of_seeds = ", ".join(share(float(_found(one, "trained", 4).mean())) for one in files)
    rows = [[kind, pool or "-", f"**{name}** (at 4: {of_seeds})", *map(interval, means), chunks]]
    for method in ("single_step", "bm25"):
        cells = [interval(mean_interval(_found(files[0], method, k))) for k in KS]
        rows.append([kind, pool or "-", method, *cells, chunks])
    return rows


def main() -> None:
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("stage", choices=("run", "notes", "table"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--runs", type=Path, default=Path("runs/corpus"))
    parser.add_argument("--name", default="pool")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--pools", nargs="*", choices=("distractors", "more"), default=["distractors", "more"])
    parser.add_argument("--set", nargs="*", default=[])
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if args.stage == "run":
        run(args.data, args.runs, args.name, args.seeds, args.set, ["", *args.pools])
    elif args.stage == "notes":
        score_notes_of(args.data, args.runs, ["", *args.pools])
    write_table()


if __name__ == "__main__":
    main()
