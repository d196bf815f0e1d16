"""What the multi-hop run with links owes to its links alone, and to paragraphs that train and dev share.

    python benchmarks/multihop.py run DATA --only latent       # the run, where runs/multihop does not hold it yet
    python benchmarks/multihop_controls.py run DATA            # controls.json; a run that is there is kept
    python benchmarks/multihop_controls.py table               # benchmarks/results/multihop/controls.md

Two controls, by fact EM of 4 picks a question on dev. *Regression*: a logistic regression reads what Q reads of links
(`mdp.heads.link_inputs`), or their products and cosines too, and picks greedily. *Without dev's paragraphs*: the same
config is trained on 2WikiMultihopQA without the paragraphs that stand in a dev context. Run it with the GLIBC_TUNABLES
of the Makefile.
"""

import argparse
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from multihop import CONFIGS, RESULTS, SETS, qrag
from multihop_controls_table import write_table
from multihop_regression import KINDS, Regression, em_of, linked
from shared_texts import seen_in_train
from worlds import machine

from qrag_jax.config import load_config
from qrag_jax.data.questions.multihop import READERS, MultihopSet
from qrag_jax.eval.retrieval.pickers import make_pickers
from qrag_jax.eval.retrieval.score import open_run
from qrag_jax.names import METHODS
from qrag_jax.qrag.tasks import examples_task
from qrag_jax.train.qrag.config import RunConfig, training_tasks

CONFIG = CONFIGS / "multihop_latent.yaml"
TRAINED = ("latent", "latent_dropped", "latent_replaced")  # the run; without dev's paragraphs; others in their place


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
