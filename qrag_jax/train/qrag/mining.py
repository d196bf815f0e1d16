"""Hard haystacks: sentences that the present Q ranks high, out of all of the training haystack, mixed into contexts.

A context of 200 sentences never shows the few among 40,000 that look most like an answer. So every few updates, all
sentences are scored in the states of a few questions, and the best ones then replace others in the contexts. The
mined sentences depend only on the parameters, the seed and the update.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from qrag_jax.models.towers.positions import rotary_scores
from qrag_jax.models.towers.q_network import Network, PyTree
from qrag_jax.qrag.batching import Packer, Sample, materialise, stretched_indices
from qrag_jax.qrag.env import Batch, EnvConfig, Rollout, observe, q_values, rollout
from qrag_jax.qrag.policy import make_greedy
from qrag_jax.qrag.tasks import Task
from qrag_jax.train.qrag.label_losses import right_actions
from qrag_jax.types import InputError, UsageError, check_fields

_MINING, _MIXING = 9, 8  # streams of the run's seed


@dataclass(frozen=True)
class MiningConfig:
    """How the haystack is mined.

    Attributes:
        every: updates between two rounds of mining; null mines nothing.
        share: of the noise of a context that is mined, in (0, 1].
        size: sentences that a round keeps.
        age: number of rounds that a sentence stays; 1 drops earlier sentences.
        temperature: of the draw of these sentences, in units of Q: 0 takes the hardest, more gives others a chance.
        num_questions: whose states a round scores all sentences in.
    """

    every: int | None = None
    share: float = 0.25
    size: int = 256
    age: int = 2
    temperature: float = 0.05
    num_questions: int = 8

    def __post_init__(self) -> None:
        within = {"share": "(0, 1]", "temperature": "[0, inf)"}
        check_fields(self, positive=("every", "size", "age", "num_questions"), within=within)

    @property
    def num_pooled(self) -> int:
        """Sentences that contexts draw from."""
        return self.size * self.age


def check_minable(task: Task, config: MiningConfig, num_runs: int, num_devices: int) -> None:
    """Refuses what cannot be mined, before anything is embedded."""
    if config.every is None:
        return
    if task.noise is None:
        raise UsageError(
            f"mining.every={config.every}: {task.name} has no haystack to mine; set it to null, or data.task to worlds "
            "or babi"
        )
    if len(task.noise) < config.num_pooled:
        raise UsageError(
            f"mining.size={config.size} x mining.age={config.age}: the haystack has {len(task.noise)} sentences only"
        )
    wanted = round(config.share * int(task.sizes.max()))
    if config.num_pooled < wanted:
        raise UsageError(
            f"mining.size={config.size} x mining.age={config.age} gives {config.num_pooled} sentences, "
            f"mining.share={config.share} of a context wants {wanted}: raise the size or lower the share"
        )
    if num_runs > 1 or num_devices > 1:
        raise UsageError(
            f"mining.every={config.every} works for one run on one device, not for {num_runs} on {num_devices}: start "
            "each seed alone, on one device"
        )


def mixing_sampler(
    sample: Callable[[int], Sample], task: Task, config: MiningConfig, seed: int
) -> Callable[[int], Sample]:
    """A sampler whose samples also say which places mined sentences take (`Sample.mined`), drawn for every update."""
    assert task.noise is not None
    is_noise = np.zeros(len(task.texts), bool)
    is_noise[task.noise] = True

    def mix(update: int) -> Sample:
        drawn, rng = sample(update), np.random.default_rng([seed, _MIXING, update])
        ids = np.take_along_axis(drawn.distinct[..., None, :], np.asarray(drawn.chunks), axis=-1)
        places = drawn.valid & ~drawn.gold & is_noise[ids] & (rng.random(ids.shape) < config.share)
        chosen = np.where(places, rng.integers(config.num_pooled, size=ids.shape), -1)
        return replace(drawn, mined=chosen.astype(np.int32))

    return mix


def hardness(
    network: Network,
    params: PyTree,
    batch: Batch,
    played: Rollout,
    config: EnvConfig,
    noise: PyTree,
    places: Float[Array, " noise"],
) -> Float[Array, " noise"]:
    """The largest margin by which a sentence beats the right actions, over the states.

        h(n) = max over states s of  Q(s, n) - max over right actions a of Q(s, a)

    The right actions are the gold chunks that are left and, if none is left, STOP of a run that learns it
    (`label_losses.right_actions`). States without a right action do not count, because any sentence ranks high there.
    States after the end of an episode do not count either, because no search reaches them.

    Args:
        played: rollouts in them, whose states count.
        noise: rows of the sentences, as of the table of the batch.
        places: the place of each in a document, as a share of its length in [0, 1).
    """
    rows, noise_rows = network.actions(params, batch.table)[batch.chunks], network.actions(params, noise)
    hardest = jnp.full(places.shape, -jnp.inf)
    for t in range(config.num_steps):
        taken = jnp.sort(played.actions[:, :t], axis=1)
        _, rotation = observe(batch, taken, config, network.num_rotated)
        q = q_values(network, params, rows, batch, taken, rotation, config).sum(1)
        right = right_actions(batch.gold, batch.valid, taken, config)
        best = jnp.where(right, q, -jnp.inf).max(axis=1)
        best = jnp.where(right.any(axis=1) & (played.alive[:, t] > 0), best, jnp.inf)  # a state that does not count
        states = network.states(params, batch.questions, batch.table, jnp.take_along_axis(batch.chunks, taken, axis=1))

        def score(hardest: Array, i: Array, taken: Array = taken, states: Array = states, best: Array = best) -> Array:
            indices, lengths, own = batch.indices[i][None], batch.lengths[i][None], taken[i][None]
            table = _noise_rotation(indices, lengths, own, places, config, network)
            q = rotary_scores(states[i], noise_rows, table, config.num_q_heads).sum(0)
            return jnp.maximum(hardest, q - best[i])

        hardest = jax.lax.fori_loop(0, len(best), lambda i, carry, score=score: score(carry, i), hardest)
    return hardest


def _noise_rotation(
    indices: Int[Array, "1 chunks"],
    lengths: Int[Array, " 1"],
    taken: Int[Array, "1 taken"],
    places: Float[Array, " noise"],
    config: EnvConfig,
    network: Network,
) -> tuple[Array, Array] | None:
    """Rotation table of sentences at these places in the document of one context."""
    own = jnp.floor(places * lengths[0].astype(jnp.float32)).astype(indices.dtype)
    document = jnp.concatenate([indices[0], own])[None]
    num_chunks = indices.shape[1]
    empty = jnp.zeros(document.shape, bool)
    stand_in = Batch(
        table=None,
        questions=None,
        chunks=document,
        indices=document,
        lengths=lengths,
        valid=empty,
        gold=empty,
        env=lengths,
    )
    _, table = observe(stand_in, taken, config, network.num_rotated)
    return None if table is None else jax.tree.map(lambda x: x[0, num_chunks:], table)


class Miner:
    """The sentences that contexts draw from, round after round.

    `before(state.params, update)` gives those of an update, and mines first where a round is due.
    """

    def __init__(
        self,
        network: Network,
        env: EnvConfig,
        config: MiningConfig,
        task: Task,
        pools: tuple[PyTree, PyTree],
        seed: int,
        stretch: float,
        earlier: Sequence[int] | None = None,
    ):
        """Prepares the rounds.

        Args:
            config: with `every` set; `check_minable` has passed.
            pools: inputs of the towers for its texts and its questions, on the device.
            stretch: of the positions of contexts.
            earlier: from the checkpoint of a resumed run; None starts with random sentences.
        """
        assert task.noise is not None and config.every is not None
        self._task, self._config, self._seed, self._stretch, self._pools = task, config, seed, stretch, pools
        self._packer, self._every, self._since = Packer(), config.every, 0
        noise = np.asarray(task.noise, np.int32)
        fresh = np.random.default_rng([seed, _MINING]).choice(noise, config.num_pooled, replace=False)
        self.ids = self._before = fresh if earlier is None else np.asarray(earlier, np.int32)
        if self.ids.shape != (config.num_pooled,) or not np.isin(self.ids, noise).all():
            raise InputError(
                f"the checkpoint's mined sentences do not fit mining.size={config.size} x mining.age={config.age} and "
                "the haystack: copy the run again, or train it again"
            )

        def mine(params: PyTree, pools: tuple[PyTree, PyTree], noise: Array, sample: Sample, key: Array) -> Array:
            batch = materialise(*pools, sample)
            policy = make_greedy(num_chunks=batch.chunks.shape[1])
            played = rollout(network, params, batch, key, policy, env)
            place_key, draw_key = jax.random.split(key)
            places = jax.random.uniform(place_key, noise.shape)
            hard = hardness(network, params, batch, played, env, pools[0].take(noise), places)
            if config.temperature:
                hard = hard / config.temperature + jax.random.gumbel(draw_key, hard.shape)
            return noise[jax.lax.top_k(hard, config.size)[1]]

        self._mine, self._noise = jax.jit(mine), jax.device_put(noise)

    def before(self, params: PyTree, update: int) -> np.ndarray:
        """Ids of the texts that an update mixes in, int32 [num_pooled]; the newest first."""
        if update and update % self._every == 0:
            rng = np.random.default_rng([self._seed, _MINING, update])
            queries = rng.permutation(len(self._task))[: self._config.num_questions]
            contexts = self._task.contexts(queries, rng)
            sample = self._packer(contexts, *stretched_indices(rng, contexts.chunks >= 0, self._stretch))
            key = jax.random.key(int(rng.integers(2**31)))
            found = np.asarray(self._mine(params, self._pools, self._noise, sample, key))
            self._before, self._since = self.ids, update
            self.ids = np.concatenate([found, self.ids[: -len(found)]])
        return self.ids

    def ids_of(self, update: int) -> np.ndarray:
        """Ids of the texts that the last or the last but one update mixed in."""
        return self.ids if update >= self._since else self._before
