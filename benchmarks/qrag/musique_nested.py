"""MuSiQue: training data, link features and width chosen by nested cross-validation on its train questions alone.

    python -m benchmarks.qrag.musique_nested DATA [--runs DIR]  # writes results/multihop/musique_nested.json

DATA holds musique/ (train and train_more), hotpotqa/ and 2wiki/ (train); no dev file is read. In every outer fold the
inner folds choose; then all train questions do. Candidates are scored by a stand-in of the learner: links and the prior
of the towers, without what the towers learn, in half a second a run. `musique_nested_runs.py` trains the learner itself
and writes the page. DIR keeps the vectors of MiniLM. Run it with the GLIBC_TUNABLES of the Makefile.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.common import arguments, machine
from qrag_jax.data.questions.multihop import READERS
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.weights import load_encoder
from qrag_jax.qrag.batching import Texts, make_linker
from qrag_jax.qrag.env import EnvConfig, untaken
from qrag_jax.qrag.heads import coverage_inputs, fresh_links, link_inputs, link_q_values
from qrag_jax.qrag.tasks import examples_task
from qrag_jax.qrag.text_links import BRIDGES, LINKS
from qrag_jax.train.optimise import ScheduleConfig, make_schedule
from qrag_jax.train.qrag.label_losses import cross_entropy

RESULTS = Path(__file__).parent / "results"

FILES = {
    "musique/train": "musique",
    "musique/train_more": "musique",
    "hotpotqa/train": "hotpot",
    "2wiki/train": "2wiki",
}
OUTER, INNER, STEPS, UPDATES, BATCH, WIDTH = 5, 3, 4, 200, 64, 32
# What may be chosen, in the order of the stages; ties go to the earlier. Written down before any score was seen.
DATA = ("old", "more", "alone", "half")
INPUTS: dict[str, tuple[tuple[str, ...], bool]] = {  # name -> (link features, coverage)
    "present": (LINKS, False),
    "no words": (tuple(x for x in LINKS if x != "shared"), False),
    "no names": (tuple(x for x in LINKS if x not in ("names", "new_names")), False),
    "no named": (tuple(x for x in LINKS if x not in ("named", "names_it")), False),
    "no titles": (tuple(x for x in LINKS if x not in ("title", "own_title", "same_title")), False),
    "coverage": (LINKS, True),
    **{name: ((*LINKS, name), False) for name in BRIDGES},
    "all new": ((*LINKS, *BRIDGES), False),
    "all": ((*LINKS, *BRIDGES), True),
}
WIDTHS = (WIDTH, 8)
Choice = tuple[str, str, int]


@dataclass(frozen=True)
class Questions:
    """All train questions with what the stand-in reads, padded to the longest context.

    Attributes:
        arrays: links [n, 1 + chunks, chunks, LINKS + BRIDGES], words [n, 1 + chunks, words], cosines of the centred
            vectors of question and chunks [n, 1 + chunks, 1 + chunks], valid and gold bool [n, chunks].
        files: int [n], of each question its place in `FILES`.
        hops: int [n], of MuSiQue's questions as their id says; 0 of others.
        groups: int [n], equal where two of MuSiQue's share a gold paragraph.
    """

    arrays: dict[str, jax.Array]
    files: np.ndarray
    hops: np.ndarray
    groups: np.ndarray
    ids: Sequence[str]

    @property
    def is_scored(self) -> np.ndarray:
        """bool [n]: of MuSiQue's those whose gold is complete: as many paragraphs as hops."""
        return (self.files < 2) & (np.asarray(self.arrays["gold"]).sum(1) == self.hops)


def read_questions(data: Path, runs: Path) -> Questions:
    """Reads, embeds and links all train questions."""
    sets = [READERS[kind](data / f"{file}.jsonl.gz").examples for file, kind in FILES.items()]
    examples = [example for own in sets for example in own if len(example.chunks) >= STEPS]
    files = np.array([i for i, own in enumerate(sets) for example in own if len(example.chunks) >= STEPS])
    task = examples_task("train", examples)
    link = make_linker(EnvConfig(links=True, coverage=True, bridges=True), task.texts, task.questions)
    linked = link(task.contexts(np.arange(len(task)), np.random.default_rng(0)))
    n, width = linked.chunks.shape
    vectors = vectors_of(task.texts, 256, runs / "chunks.npy")
    asked = vectors_of(task.questions, 128, runs / "questions.npy")
    cosines = np.zeros((n, 1 + width, 1 + width), np.float32)
    for i, example in enumerate(examples):
        m = len(example.chunks)
        own = np.stack([asked[linked.questions[i]], *vectors[linked.chunks[i, :m]]]) - vectors.mean(axis=0)
        own /= np.maximum(np.linalg.norm(own, axis=1, keepdims=True), 1e-6)
        cosines[i, : 1 + m, : 1 + m] = own @ own.T
    arrays = {"links": linked.links, "words": linked.words, "cosines": cosines, "valid": linked.chunks >= 0}
    arrays |= {"gold": linked.gold & arrays["valid"]}
    ids = [example.query_id for example in examples]
    hops = np.array([int(name[0]) if file < 2 else 0 for name, file in zip(ids, files, strict=True)])
    gold = [[example.chunks[j] for j in example.gold] for example in examples]
    return Questions({k: jnp.asarray(v) for k, v in arrays.items()}, files, hops, groups_of(gold), ids)


def vectors_of(texts: Texts, window: int, file: Path) -> np.ndarray:
    """Vectors of MiniLM, float32 [texts, 384], kept in a file for the same texts."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, make_embedder(load_encoder("minilm", normalize=False), window=window)(list(texts)))
    return np.load(file, allow_pickle=False)


def groups_of(keys: Sequence[Sequence[str]]) -> np.ndarray:
    """int [n]: equal where a chain of shared keys joins two."""
    parent, first = list(range(len(keys))), {}

    def root(i: int) -> int:
        return i if parent[i] == i else root(parent[i])

    for i, own in enumerate(keys):
        for key in own:
            parent[root(i)] = root(first.setdefault(key, i))
    return np.array([root(i) for i in range(len(keys))])


def folds_of(groups: np.ndarray, num_folds: int, seed: int) -> np.ndarray:
    """int [n]: the fold of each question; whole groups, the large ones first, to the fold that has fewest."""
    names, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    fold, filled = np.zeros(len(names), int), np.zeros(num_folds)
    for name in order[np.argsort(-sizes[order], kind="stable")]:
        fold[name] = np.argmin(filled)
        filled[fold[name]] += sizes[name]
    return fold[place]


def read_by(known: Questions, inputs: str) -> tuple[dict[str, jax.Array], jax.Array]:
    """The arrays that a candidate reads; 1 at the inputs that count: of the question, of the taken chunks, coverage."""
    features, coverage = INPUTS[inputs]
    own = [name in features for name in (*LINKS, *BRIDGES)]
    arrays = {name: x for name, x in known.arrays.items() if name != "words" or coverage}
    return arrays, jnp.array([*own, *own, *([True] * 3 if coverage else [])], jnp.float32)


def q_values(params: dict, batch: dict[str, jax.Array], taken: jax.Array, reads: jax.Array) -> jax.Array:
    """Q of the stand-in [batch, chunks]: the prior of the towers, without what they learn, and the links that count."""
    inputs = [link_inputs(batch["links"], taken)]
    inputs += [coverage_inputs(batch["words"], taken)] if "words" in batch else []
    linked = link_q_values(params["links"], jnp.concatenate(inputs, axis=-1) * reads)[:, 0]
    slots = jnp.zeros(batch["cosines"].shape[:2]).at[:, 0].set(1.0)
    state = slots.at[jnp.arange(len(taken))[:, None], 1 + taken].set(params["beta"])
    length = jnp.sqrt(jnp.einsum("bs,bst,bt->b", state, batch["cosines"], state))
    return params["scale"] * jnp.einsum("bs,bsn->bn", state, batch["cosines"][:, :, 1:]) / length[:, None] + linked


def loss(params: dict, batch: dict[str, jax.Array], reads: jax.Array, key: jax.Array, now: tuple) -> jax.Array:
    """Cross-entropy of the gold that is left in the states that the policy visits, as `train.q.ranking`."""
    taken, losses, (temperature, epsilon) = jnp.zeros((len(batch["gold"]), 0), jnp.int32), [], now
    for step in range(STEPS):
        q, free = q_values(params, batch, taken, reads), jax.vmap(untaken)(batch["valid"], taken)
        losses.append(cross_entropy(jnp.exp(params["log_scale"]) * q, free, batch["gold"] & free).mean())
        keys = jax.random.split(jax.random.fold_in(key, step), 3)
        drawn = jax.random.categorical(keys[0], jnp.where(free, jax.lax.stop_gradient(q) / temperature, -jnp.inf))
        any_free = jax.random.categorical(keys[1], jnp.where(free, 0.0, -jnp.inf))
        chosen = jnp.where(jax.random.uniform(keys[2], drawn.shape) < epsilon, any_free, drawn)
        taken = jnp.concatenate([taken, chosen[:, None].astype(jnp.int32)], axis=1)
    return jnp.stack(losses).mean()


@partial(jax.jit, static_argnames="width")
def fit(arrays: dict[str, jax.Array], batches: jax.Array, reads: jax.Array, seed: jax.Array, width: int) -> dict:
    """The stand-in's parameters after `UPDATES` updates on batches of question numbers [updates, batch]."""
    key = jax.random.key(seed)
    links = fresh_links(key, len(reads), width, 1)
    links["hidden"] *= jnp.sqrt(len(reads) / reads.sum())  # as drawn for the columns that are read
    params = {"links": links, "beta": jnp.float32(0.5), "scale": jnp.float32(1), "log_scale": jnp.log(20.0)}
    schedules = ScheduleConfig(3e-3, 0.0, warmup=0.05), ScheduleConfig(0.03, 0.001), ScheduleConfig(0.1, 0.0)
    rate, temperature, epsilon = (make_schedule(schedule, UPDATES) for schedule in schedules)
    adam = optax.adamw(rate, b1=0.9, b2=0.98, eps=1e-6, weight_decay=5e-4)
    optimiser = optax.chain(optax.clip_by_global_norm(2.0), adam)

    def update(state: tuple, i: jax.Array) -> tuple[tuple, None]:
        params, inner = state
        batch = {name: x[batches[i]] for name, x in arrays.items()}
        now = temperature(i), epsilon(i)
        gradient = jax.grad(loss)(params, batch, reads, jax.random.fold_in(key, i), now)
        step, inner = optimiser.update(gradient, inner, params)
        return (optax.apply_updates(params, step), inner), None

    return jax.lax.scan(update, (params, optimiser.init(params)), jnp.arange(UPDATES))[0][0]


@jax.jit
def picks(arrays: dict[str, jax.Array], params: dict, reads: jax.Array, questions: jax.Array) -> jax.Array:
    """Greedy picks, bool [questions, chunks]."""
    batch = {name: x[questions] for name, x in arrays.items()}
    taken = jnp.zeros((len(questions), 0), jnp.int32)
    for _ in range(STEPS):
        q = jnp.where(jax.vmap(untaken)(batch["valid"], taken), q_values(params, batch, taken, reads), -jnp.inf)
        taken = jnp.concatenate([taken, q.argmax(axis=1)[:, None].astype(jnp.int32)], axis=1)
    return ~jax.vmap(untaken)(batch["valid"] | True, taken)


def batches_of(known: Questions, train: np.ndarray, data: str, seed: int) -> np.ndarray:
    """Question numbers of every update, int32 [updates, batch], in shuffled epochs; `train` of MuSiQue's."""
    own = train[known.files[train] == 0] if data == "old" else train
    others = np.flatnonzero(known.files >= 2)
    pools = {"alone": [own], "half": [own, others]}.get(data, [np.concatenate([own, others])])
    rng, size = np.random.default_rng([seed, 1]), BATCH // len(pools)
    epochs = [[rng.permutation(pool) for _ in range(-(-UPDATES * size // len(pool)))] for pool in pools]
    orders = [np.concatenate(own)[: UPDATES * size].reshape(UPDATES, size) for own in epochs]
    return np.concatenate(orders, axis=1).astype(np.int32)


def scores(known: Questions, train: np.ndarray, test: np.ndarray, choice: Choice, seed: int) -> np.ndarray:
    """Fact EM of the stand-in on each test question, 0 or 1, trained on the train questions."""
    data, inputs, width = choice
    arrays, reads = read_by(known, inputs)
    params = fit(arrays, jnp.asarray(batches_of(known, train, data, seed)), reads, seed, width)
    return found_all(arrays, params, reads, test)


def found_all(arrays: dict[str, jax.Array], params: dict, reads: jax.Array, test: np.ndarray) -> np.ndarray:
    """1.0 where all gold is picked, [test]."""
    padded = np.resize(test, 160)  # one shape to compile
    taken = np.asarray(picks(arrays, params, reads, padded))[: len(test)]
    return (taken | ~np.asarray(arrays["gold"])[test]).all(axis=1).astype(float)


def cross_validated(known: Questions, questions: np.ndarray, num_folds: int, fold_seed: int, choice: Choice) -> float:
    """Mean fact EM over the scored questions and two seeds."""
    fold, values = folds_of(known.groups[questions], num_folds, fold_seed), np.zeros((2, len(questions)))
    for k in range(num_folds):
        for seed in (0, 1):
            values[seed, fold == k] = scores(known, questions[fold != k], questions[fold == k], choice, seed)
    return float(values[:, known.is_scored[questions]].mean())


def choose(known: Questions, questions: np.ndarray, num_folds: int, fold_seed: int) -> tuple[Choice, dict[str, float]]:
    """The best data with the present inputs, then the best inputs on it, then the width; and the score of each."""
    found: dict[Choice, float] = {}

    def best(candidates: Sequence[Choice]) -> Choice:
        for candidate in candidates:
            if candidate not in found:
                found[candidate] = cross_validated(known, questions, num_folds, fold_seed, candidate)
        return max(candidates, key=lambda c: (round(found[c], 9), -candidates.index(c)))

    chosen = best([(data, "present", WIDTH) for data in DATA])
    chosen = best([(chosen[0], inputs, WIDTH) for inputs in INPUTS])
    chosen = best([(*chosen[:2], width) for width in WIDTHS])
    return chosen, {", ".join(map(str, choice)): value for choice, value in found.items()}


def nested(known: Questions, seeds: Sequence[int] = (0, 1, 2)) -> dict[str, Any]:
    """The choice in every outer fold and what it is worth there, beside candidates that nobody chose; then on all."""
    start, own = time.perf_counter(), np.flatnonzero(known.files < 2)
    fold = folds_of(known.groups[own], OUTER, 0)
    fixed = {data: (data, "present", WIDTH) for data in DATA}
    values = {name: np.zeros(len(own)) for name in ("nested", "untrained", *fixed)}
    chosen = []
    for k in range(OUTER):
        train, test = own[fold != k], own[fold == k]
        choice, inner = choose(known, train, INNER, 10 + k)
        chosen.append({"fold": k, "chosen": choice, "inner": inner})
        for name, candidate in {"nested": choice, **fixed}.items():
            values[name][fold == k] = np.mean([scores(known, train, test, candidate, seed) for seed in seeds], axis=0)
        print(chosen[-1], {name: round(v[fold == k].mean(), 3) for name, v in values.items()}, flush=True)
    arrays, reads = read_by(known, "present")
    fresh = {"links": fresh_links(jax.random.key(0), len(reads), WIDTH, 1), "beta": 0.5, "scale": 1.0}
    for part in np.array_split(np.arange(len(own)), OUTER):
        values["untrained"][part] = found_all(arrays, fresh, reads, own[part])
    final, inner = choose(known, own, OUTER, 99)
    columns = {"fold": fold, "scored": known.is_scored[own], "hops": known.hops[own], "groups": known.groups[own]}
    found: dict[str, Any] = {"ids": [known.ids[int(i)] for i in own]}
    found |= {name: x.tolist() for name, x in (columns | {"first_file": known.files[own] == 0}).items()}
    found |= {"values": {name: v.round(4).tolist() for name, v in values.items()}, "chosen": chosen}
    found |= {"final": {"chosen": final, "inner": inner}}
    return found | {"seconds": round(time.perf_counter() - start), "about": machine()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/musique_nested"))
    args = parser.parse_args()
    found = json.dumps(nested(read_questions(args.data, args.runs)))
    (RESULTS / "multihop" / "musique_nested.json").write_text(found + "\n")


if __name__ == "__main__":
    main()
