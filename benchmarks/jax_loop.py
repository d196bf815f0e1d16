"""Our side of `train_step.py`: prepares the batches of a mode, times our update and its parts, counts its FLOPs.

    python benchmarks/jax_loop.py FOLDER MODE    # started by train_step.py: requests on stdin, answers on stdout

FOLDER gets what `torch_loops.py` reads: parameters, pools of token ids or vectors, batches, actions of a rollout.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from train_step import MODES, PARTS, ROOT

from qrag_jax.config import load_config
from qrag_jax.qrag.batching import Packer, Sample, materialise
from qrag_jax.qrag.env import Rollout, rollout
from qrag_jax.qrag.policy import make_boltzmann
from qrag_jax.qrag.retriever import QRagRetriever, new_retriever
from qrag_jax.train.qrag.config import RunConfig, make_sampler, training_tasks
from qrag_jax.train.qrag.learner import make_learner
from qrag_jax.train.qrag.returns import state_value

TARGET_FACTOR = 0.99  # target parameters of the check are this share of the online ones, so that a mix-up shows
NUM_BATCHES = 4
SMALL = ["data.num_questions=4000", "data.max_haystack_sentences=3000"]  # pools: their size does not matter here
SMOKE = ["data.num_questions=200", "data.max_haystack_sentences=300", "data.batch_size=4"]


class Ours:
    """All cases of a mode: the batches, our update, and what the other engines need to do the same."""

    def __init__(self, mode: str, folder: Path, overrides: list[str], smoke: bool):
        shape, retriever = MODES[mode], None
        self.cases: dict[str, Case] = {}
        for name, extra in shape.haystacks.items():
            given = [*shape.overrides, *SMALL, *extra, *(SMOKE if smoke else []), *overrides]
            config = load_config(RunConfig, ROOT / "configs" / "qrag" / shape.config, given)
            task = training_tasks(config)[0]
            if retriever is None:  # all haystacks draw from the same texts
                retriever, rows, _ = new_retriever(config.model, config.env, task.texts, jax.random.key(0), None)
                self.rows, self.questions = rows, retriever.rows(task.questions, "question")[0]
            packer = Packer()
            sampler = make_sampler(task, packer, config)
            _ = [sampler(step) for step in range(NUM_BATCHES)]  # the number of rows has grown to its final size
            self.cases[name] = Case(config, retriever, [sampler(step) for step in range(NUM_BATCHES)])
        assert retriever is not None  # a mode has a haystack
        self.retriever, self.pools = retriever, jax.device_put((self.rows, self.questions))
        self._write(folder)

    def _write(self, folder: Path) -> None:
        """The files that the torch engines read."""
        retriever, arrays = self.retriever, {}
        for kind, rows in (("chunk", self.rows), ("question", self.questions)):
            arrays |= {f"{kind}_{name}": np.asarray(getattr(rows, name)) for name in vars(rows)}
        arrays |= retriever.constants | {f"params/{k}": v for k, v in flatten(retriever.params)}
        np.savez(folder / "model.npz", **arrays)
        config = next(iter(self.cases.values())).config
        learner = asdict(config.learner) | {"temperature": config.learner.temperature.start}
        learner |= {"rate": config.learner.learning_rate.start, "epsilon": config.learner.epsilon.start}
        about = {
            "mode": config.model.mode,
            "learner": {k: v for k, v in learner.items() if isinstance(v, int | float)},
            "env": asdict(config.env),
            "dim": retriever.network.dim,
            "latent": asdict(config.model.latent),
            "encoder": asdict(retriever.encoder.config),
            "sep_id": retriever.encoder.tokenizer.sep_id,
            "chunk_window": config.model.state_chunk_window,
            "scale": config.model.scale,
            "target_factor": TARGET_FACTOR,
            "cases": {name: {"reencode": case.config.learner.reencode} for name, case in self.cases.items()},
        }
        (folder / "about.json").write_text(json.dumps(about))
        for name, case in self.cases.items():
            stacked = {key: np.stack([vars(s)[key] for s in case.samples]) for key in vars(case.samples[0])}
            actions = np.asarray(case.play(self.pools, 0).actions)
            np.savez(folder / f"{name}.npz", actions=actions, **stacked)

    def answer(self, ask: dict) -> dict:
        """One request."""
        if ask["do"] == "peak":
            return {"peak": matmul_peak(ask["shapes"], self.cases["shared"].dtype)}
        if ask["do"] == "machine":
            return machine()
        case = self.cases[ask["case"]]
        if ask["do"] == "check":
            return case.check(self.pools)
        if ask["do"] == "parts":
            return case.parts(self.pools, ask["repeats"])
        if ask["do"] == "shape":
            return case.shape(self.pools)
        case.measure(self.pools, 1)  # not counted: compiles, or gets pages back that lay idle
        return {"seconds": case.measure(self.pools, ask["steps"])}


class Case:
    """One shape of the update: a config, batches, compiled functions."""

    def __init__(self, config: RunConfig, retriever: QRagRetriever, samples: list[Sample]):
        self.config, self.retriever, self.samples = config, retriever, samples
        self.dtype = config.model.compute.dtype
        network, learn = retriever.network, config.learner
        alpha, epsilon = learn.temperature.start, learn.epsilon.start
        learner = make_learner(network, config.env, learn, config.num_updates)
        self.init = lambda: learner.init(retriever.params, jax.random.key(1))
        self.state = self.init()
        key = jax.random.fold_in(jax.random.key(1), 0)  # that of the first update: its rollout can be played again

        def value(q: Any, allowed: Any) -> Any:
            one = lambda q, allowed: state_value(q, allowed, alpha, learn.value, learn.top_k_actions)  # noqa: E731
            return jax.vmap(one)(q, allowed)

        self.materialise = jax.jit(lambda pools, sample: materialise(*pools, sample))
        self.update = jax.jit(
            lambda state, pools, sample: learner.update(state, materialise(*pools, sample)), donate_argnums=0
        )
        policy = make_boltzmann(alpha, epsilon, learn.top_k_actions)
        self.rollout = jax.jit(
            lambda params, target, batch: rollout(network, params, batch, key, policy, config.env, target, value)
        )
        self.optimise = jax.jit(self._optimise, donate_argnums=(0, 1, 2))

    def _optimise(self, params: Any, target: Any, opt_state: Any, gradient: Any) -> tuple[Any, Any, Any]:
        """The learner's optimiser and target step, alone."""
        learn = self.config.learner
        optimiser = self.optimiser()
        with jax.numpy_dtype_promotion("standard"):
            step, opt_state = optimiser.update(gradient, opt_state, params)
            params = optax.apply_updates(params, step)
            return params, optax.incremental_update(params, target, learn.tau), opt_state

    def optimiser(self) -> optax.GradientTransformation:
        """As the learner makes it."""
        c = self.config.learner
        adamw = optax.adamw(c.learning_rate.start, c.adam_b1, c.adam_b2, c.adam_eps, weight_decay=c.weight_decay)
        return optax.chain(optax.clip_by_global_norm(c.clip_norm), adamw)

    def target(self) -> Any:
        """Parameters of a target network that differs from the online one."""
        return jax.tree.map(lambda x: TARGET_FACTOR * x, self.retriever.params)

    def play(self, pools: Any, sample: int) -> Rollout:
        """The rollout of a batch at the initial parameters."""
        return self.rollout(self.retriever.params, self.target(), self.materialise(pools, self.samples[sample]))

    def check(self, pools: Any) -> dict:
        """Loss, Q values and gradient norm of the first batch, at the actions that were written for the others."""
        state = self.init().replace(target_params=self.target())
        _, metrics = self.update(state, pools, self.samples[0])
        q = np.asarray(self.play(pools, 0).q_values)[..., 0]
        return {"loss": float(metrics["loss"]), "grad_norm": float(metrics["grad_norm"]), "q": q.tolist()}

    def measure(self, pools: Any, steps: int) -> float:
        """Seconds of one update, mean of `steps`."""
        start = time.perf_counter()
        for step in range(steps):
            self.state, _ = self.update(self.state, pools, self.samples[step % NUM_BATCHES])
        jax.block_until_ready(self.state)
        return (time.perf_counter() - start) / steps

    def shape(self, pools: Any) -> dict:
        """Sizes of the work, and its model FLOPs by part, means over the batches."""
        counts = [self._count(pools, i) for i in range(NUM_BATCHES)]
        means = {key: sum(c[key] for c in counts) / NUM_BATCHES for key in counts[0]}
        sizes = {k: round(means.pop(k), 1) for k in ("distinct", "chunk_tokens", "state_tokens")}
        c = self.config
        fixed = {"batch": c.data.batch_size, "steps": c.env.num_steps, "chunks": c.data.num_chunks}
        rows = {"rows_encoded": len(self.samples[0].distinct), "reencode": c.learner.reencode, "dtype": self.dtype}
        return {**fixed, **sizes, **rows, "flops": means, "peak_shapes": self.peak_shapes()}

    def peak_shapes(self) -> list[list[int]]:
        """[m, k, n] of the towers' matrix products, and a large square one last."""
        if self.config.model.mode == "text":
            e = self.retriever.encoder.config
            tokens, d, f = 1024, e.hidden_size, e.intermediate_size
            shapes = [[tokens, d, d], [tokens, d, f], [tokens, f, d]]
        else:
            c, rows = self.config.model.latent, len(self.samples[0].distinct)
            tokens = self.config.data.batch_size * self.config.env.num_steps
            vector = self.rows_width()
            shapes = [[tokens, c.width, 4 * c.width], [tokens, c.width, c.width], [rows, vector, c.action_hidden]]
        return [*shapes, [2048, 2048, 2048]]

    def rows_width(self) -> int:
        """Components of a frozen vector."""
        return len(self.retriever.constants["mean"])

    def _count(self, pools: Any, i: int) -> dict[str, float]:
        sample, played = self.samples[i], self.play(pools, i)
        actions = np.asarray(played.actions)
        distinct = sample.distinct[: sample.chunks.max() + 1]
        chosen = distinct[np.take_along_axis(sample.chunks, actions, axis=1)]
        text = self.config.model.mode == "text"
        steps = self.config.env.num_steps
        if text:
            lengths, asked = np.asarray(pools[0].lengths), np.asarray(pools[1].lengths)[sample.questions]
            bodies = np.minimum(lengths[chosen] - 1, self.config.model.state_chunk_window)
            states = [asked + bodies[:, :t].sum(1) for t in range(steps)]
            rows, graded = lengths[distinct], lengths[chosen.reshape(-1)]
        else:
            states = [np.full(len(actions), 1 + t) for t in range(steps)]
            rows, graded = np.ones(len(distinct), int), np.ones(chosen.size, int)
        chunk = self._tower_flops(rows, action=True)
        state = [self._tower_flops(lengths, action=False) for lengths in states]
        again = self.config.learner.reencode
        backward = 2 * (self._tower_flops(graded, action=True) if again else chunk) + 2 * sum(state)
        if again:  # the second encoding is the algorithm's (line 29), not a recomputation
            backward += self._tower_flops(graded, action=True) + sum(state)
        return {
            "chunk tower, online": chunk,
            "chunk tower, target": chunk,
            "state tower, online": sum(state),
            "state tower, target": sum(state[1:]),
            "backward": backward,
            "distinct": len(distinct),
            "chunk_tokens": float(rows.sum()),
            "state_tokens": float(sum(s.sum() for s in states)),
        }

    def _tower_flops(self, lengths: np.ndarray, action: bool) -> float:
        """Model FLOPs of a forward pass over rows of the given numbers of tokens."""
        n, squares = float(lengths.sum()), float((lengths.astype(float) ** 2).sum())
        if self.config.model.mode == "text":
            e = self.retriever.encoder.config
            d, f = e.hidden_size, e.intermediate_size
            return e.num_layers * (2 * n * (4 * d * d + 2 * d * f) + 4 * squares * d)
        c, vector = self.config.model.latent, self.rows_width()
        if action:
            return 2 * n * (vector * c.action_hidden + c.action_hidden * c.dim)
        layers = c.num_layers * (24 * n * c.width**2 + 4 * squares * c.width)
        return 2 * n * vector * c.width + layers + 2 * len(lengths) * c.width * c.dim

    def parts(self, pools: Any, repeats: int) -> dict[str, float]:
        """Seconds of each part, differences of medians of functions that nest, and of the whole update."""
        network, params, target = self.retriever.network, self.retriever.params, self.target()
        batch, played = self.materialise(pools, self.samples[0]), self.play(pools, 0)
        steps = self.config.env.num_steps

        def states(params: Any, batch: Any, actions: Any, first: int) -> list:
            taken = [jnp.sort(actions[:, :t], axis=1) for t in range(first, steps)]
            rows = [jnp.take_along_axis(batch.chunks, t, axis=1) for t in taken]
            return [network.states(params, batch.questions, batch.table, r) for r in rows]

        all_states, later = (jax.jit(lambda p, b, a, first=first: states(p, b, a, first)) for first in (0, 1))
        chunk, actions = jax.jit(network.actions), played.actions
        copy = lambda: jax.tree.map(jnp.array, params)  # noqa: E731
        trained = [(copy(), copy(), self.optimiser().init(params))]

        def optimise() -> Any:
            trained[0] = self.optimise(*trained[0], params)  # any gradient does
            return trained[0]

        runs: dict[str, Callable[[], Any]] = {
            "chunk tower, online": lambda: chunk(params, batch.table),
            "chunk tower, target": lambda: chunk(target, batch.table),
            "state tower, online": lambda: all_states(params, batch, actions),
            "state tower, target": lambda: later(target, batch, actions),
            "rollout": lambda: self.rollout(params, target, batch),
            "optimiser": optimise,
            "update": lambda: self.measure(pools, 1),
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(repeats):
            for name, run in runs.items():
                jax.block_until_ready(run())  # not counted: compiles, or gets pages back that lay idle
                start = time.perf_counter()
                jax.block_until_ready(run())
                seconds[name].append(time.perf_counter() - start)
        found = {name: statistics.median(times) for name, times in seconds.items()}
        towers = sum(found[name] for name in PARTS if name in found)
        found["scores and rollout"] = found["rollout"] - towers
        found["backward"] = found["update"] - found.pop("rollout") - found["optimiser"]
        return found


def machine() -> dict:
    """What runs: commit, cores, versions."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    torch = importlib.util.find_spec("torch") and importlib.metadata.version("torch")
    return {
        "commit": commit.stdout.strip(),
        "cores": len(os.sched_getaffinity(0)),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "torch": torch,
        "device": jax.default_backend(),
        "device_kind": jax.devices()[0].device_kind,
    }


def flatten(tree: Any) -> list[tuple[str, np.ndarray]]:
    """Leaves of nested dicts by path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [("/".join(str(k.key) for k in path), np.asarray(leaf)) for path, leaf in leaves]


def matmul_peak(shapes: list[list[int]], dtype: str) -> dict[str, float]:
    """GFLOP/s of products [m, k] x [k, n], best of several; many are in flight, so that no launch is waited for."""
    product, rates = jax.jit(lambda a, b: a @ b), {}
    for m, k, n in shapes:
        a, b = (jax.random.normal(jax.random.key(0), s).astype(dtype) for s in ((m, k), (k, n)))
        best, flops = float("inf"), 2 * m * k * n
        in_flight = 20 if flops < 4e9 or jax.default_backend() != "cpu" else 2
        for _ in range(5):
            start = time.perf_counter()
            jax.block_until_ready([product(a, b) for _ in range(in_flight)])
            best = min(best, (time.perf_counter() - start) / in_flight)
        rates[f"{m}x{k}x{n}"] = round(flops / best / 1e9, 1)
    return rates


def main() -> None:
    """Answers requests, one JSON line each, until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("mode")
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    ours = Ours(args.mode, args.folder, args.set, args.smoke)
    for line in sys.stdin:
        print(json.dumps(ours.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
