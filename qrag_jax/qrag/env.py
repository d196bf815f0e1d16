"""Multi-step retrieval as a Markov decision process, and rollouts in it (Q-RAG, section 3.1).

State = question + chunks taken so far in document order; action = one untaken chunk or, where the run learns it, STOP;
horizon T; deterministic. Every function here is pure. A batch of environments advances in lock step, so step t has
its own static shapes. An environment that has ended continues, and its later steps are masked (`Rollout.alive`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from qrag_jax.models.towers.positions import (
    Positions,
    chunk_positions,
    inverse_frequencies,
    rotary_scores,
    rotation_table,
    turn_back,
)
from qrag_jax.models.towers.q_network import AnyArray, Network, PyTree
from qrag_jax.names import REWARDS, RewardName
from qrag_jax.qrag.heads import SCALES, StopHead, coverage_inputs, link_inputs, link_q_values, stop_q_values
from qrag_jax.qrag.rewards import Reward, Taken
from qrag_jax.qrag.text_links import BRIDGES, COVERAGE, LINKS, POOL
from qrag_jax.types import UsageError, check_fields


@dataclass(frozen=True)
class PoolConfig:
    """How a step of an episode over many documents searches them (`pool.py`).

    Attributes:
        nearest: chunks nearest to the state, by the unrotated product.
        words: chunks that the question finds by words.
        links: chunks that a text leads to, in each way: titles that it names, chunks that name its title, rare names.
        per_document: most chunks of one document in an episode; null is no limit.
        base: the part of Q that nothing trains. `towers`: the towers' product. `hybrid`: the score of plain search by
            vectors and words. Then the first pick and every second one is that of plain search, and the picks between
            follow links: which chunk completes the taken ones (`pool.plain_q_values`). Nothing is learned of how people
            ask, so no question of theirs is needed.
    """

    nearest: int = 64
    words: int = 32
    links: int = 8
    per_document: int | None = None
    base: Literal["towers", "hybrid"] = "towers"

    def __post_init__(self) -> None:
        check_fields(self, positive=("nearest", "words", "links", "per_document"))


@dataclass(frozen=True)
class EnvConfig:
    """The decision process and the shape of its Q function.

    Attributes:
        num_steps: T, chunks taken in an episode.
        positions: what the rotation of the action vectors encodes: the place relative to the taken chunks, the index,
            or nothing.
        delta: distance between the starts of two intervals of relative positions.
        ell: extent of an interval of relative positions.
        theta: base of the rotary frequencies.
        num_q_heads: slices of the vectors; each is a separate Q function.
        reward: `at_completion` pays once, at the step that completes the gold set, and the episode continues;
            `at_end` pays at the last step (`rewards.py`).
        penalty: pay `0.5 + 0.5 * |gold| / |taken|` instead of 1.
        fact_reward: reward for every gold chunk when it is taken.
        end_at_completion: end the episode when the gold set is complete (discount 0 there).
        stop: learn when to stop: STOP is an additional action from the second step on. It has its own action vector
            (`params["stop"]`, never rotated) and ends the episode. It needs the reward at the end, because a reward
            at completion gives no reason to stop.
        stop_head: how Q of STOP follows from the state: `vector` is an inner product with the state; `affine` also
            learns a scale and a bias (`heads.stop_q_values`).
        ranking_scale: initial value of the learned factor (an inverse temperature) from Q to logits, for the loss
            `ranking` and for `objective: sft`; null learns none.
        links: Q also reads features of pairs of texts: shared words and names, titles that another text names
            (`text_links`). The weights are learned and start at zero. Contexts may have up to 64 texts.
        coverage: links also measure the share of a chunk's words that the question and all taken chunks contain
            together (`heads.coverage_inputs`).
        bridges: links also measure how two chunks join to answer the question by a name that both contain and the
            question lacks (`text_links`).
        link_width: hidden units between links and Q.
        pool: an episode searches one pool of many documents instead of a context; null picks from a context.
    """

    num_steps: int = 3
    positions: Positions = "relative"
    delta: float = 10.0
    ell: float = 9.0
    theta: float = 1e4
    num_q_heads: int = 1
    reward: RewardName = "at_completion"
    penalty: bool = True
    fact_reward: float = 0.0
    end_at_completion: bool = False
    stop: bool = False
    stop_head: StopHead = "vector"
    ranking_scale: float | None = None
    links: bool = False
    coverage: bool = False
    bridges: bool = False
    link_width: int = 32
    pool: PoolConfig | None = None

    def __post_init__(self) -> None:
        scales = {"ranking_scale": f"[{SCALES[0]}, {SCALES[1]:g}]"}  # what is learned from there stays in it too
        within = {"theta": "(0, inf]", "delta": "(0, inf]", "ell": f"(0, {self.delta})"}  # or intervals overlap
        check_fields(self, positive=("num_steps", "num_q_heads", "link_width"), within=within | scales)
        if self.stop and (self.reward not in REWARDS.choices("stop") or self.end_at_completion):
            raise UsageError(
                "env.stop=true learns from the reward at the end: set env.reward=at_end and env.end_at_completion=false"
            )
        if self.stop_head != "vector" and not self.stop:
            raise UsageError(f"env.stop_head={self.stop_head} works only with env.stop=true: this run learns no STOP")
        for name in ("coverage", "bridges"):
            if getattr(self, name) and not self.links:
                raise UsageError(f"env.{name}=true adds to what env.links=true reads: set both, or neither")
        if self.pool is not None and self.links and (self.bridges or not self.coverage):
            raise UsageError("env.pool reads env.coverage with env.links, and no env.bridges: set coverage=true only")
        if self.pool is not None and self.pool.base == "hybrid":
            if not self.links or self.stop or self.positions != "none" or self.num_q_heads > 1:
                raise UsageError(
                    "env.pool.base=hybrid learns links only: set env.links=true, env.stop=false, env.positions=none, "
                    "env.num_q_heads=1"
                )

    @property
    def num_links(self) -> int:
        """Number of link features of a pair of texts."""
        return len(LINKS) + (len(BRIDGES) if self.bridges else 0)

    @property
    def num_link_inputs(self) -> int:
        """Number of inputs of Q for every chunk with `links`: those of the question, of the taken chunks, and
        coverage."""
        in_pool = 0 if self.pool is None else len(POOL)
        return 2 * self.num_links + (len(COVERAGE) if self.coverage else 0) + in_pool


@struct.dataclass
class Batch:
    """Environments of one update. Their chunks are rows of one table, so a shared chunk is embedded once."""

    table: PyTree  # distinct chunks, [rows, ...]
    questions: PyTree  # [batch, ...]
    chunks: AnyArray  # int32 [batch, chunks], row of every chunk in document order
    indices: AnyArray  # int32 [batch, chunks], document index of every chunk
    lengths: AnyArray  # int32 [batch], chunks in the document
    valid: AnyArray  # bool [batch, chunks], False at padding
    gold: AnyArray  # bool [batch, chunks]
    env: AnyArray  # int32 [batch], global number of the environment: its random draws depend on nothing else
    links: AnyArray = None  # float32 [batch, 1 + chunks, chunks, links] of `text_links`; None where Q reads none
    words: AnyArray = None  # float32 [batch, 1 + chunks, words] of `text_links.shared_words`; likewise
    negatives: PyTree = None  # noise that stands for what contexts leave out of their documents, [negatives, ...]
    places: AnyArray = None  # float32 [batch, groups] in [0, 1), where in a document each group of them stands


@struct.dataclass
class Rollout:
    """Trajectories, batch first. Time runs over the T steps."""

    actions: jax.Array  # int32 [batch, T], slot of the taken chunk; a free chunk's at STOP and after the end
    positions: jax.Array  # float32 [batch, T], the chunk's position when it was chosen
    q_values: jax.Array  # float32 [batch, T, heads], of the chosen action
    stop_q_values: jax.Array  # float32 [batch, T, heads], of STOP; -inf where it cannot be chosen
    log_probs: jax.Array  # float32 [batch, T], of the chosen action under the policy
    rewards: jax.Array  # float32 [batch, T], 0 after the end
    stops: jax.Array  # bool [batch, T], True where the action was STOP
    alive: jax.Array  # float32 [batch, T], 1 up to the step that ends the episode, 0 after it
    continues: jax.Array  # float32 [batch, T], 0 where the step ends the episode
    next_values: jax.Array  # float32 [batch, T], value of the state after the step, from the critic; 0 without one
    best: jax.Array | None = None  # int32 [batch, T, n], slots of the untaken chunks of the highest Q, if asked for
    best_q_values: jax.Array | None = None  # float32 [batch, T, n], their Q, summed over heads; -inf of taken chunks


# (keys [batch], q [batch, chunks], allowed [batch, chunks]) -> (actions int32 [batch], log probabilities [batch])
Policy = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
# (q [batch, heads, chunks], allowed [batch, chunks]) -> values [batch]
Value = Callable[[jax.Array, jax.Array], jax.Array]


def untaken(valid: Bool[Array, " chunks"], taken: Int[Array, " taken"]) -> Bool[Array, " chunks"]:
    """True for real chunks that no earlier step took."""
    slots = jnp.arange(valid.shape[0], dtype=taken.dtype)
    return valid & ~(slots[:, None] == taken[None, :]).any(axis=1)


def allowed_actions(
    valid: Bool[Array, "batch chunks"], taken: Int[Array, "batch taken"], config: EnvConfig
) -> Bool[Array, "batch actions"]:
    """Mask of the next actions: untaken chunks and, with `config.stop`, STOP in one more column from the second step
    on."""
    free = jax.vmap(untaken)(valid, taken)
    if not config.stop:
        return free
    return jnp.concatenate([free, jnp.full((len(free), 1), taken.shape[1] > 0)], axis=1)


def step_reward(
    gold: Bool[Array, " chunks"],
    taken: Int[Array, " taken"],
    action: Int[Array, ""],
    config: EnvConfig,
    stops: Bool[Array, ""] | bool = False,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Reward of taking chunk `action` after `taken` (static number t of chunks), and whether the episode goes on.

    Where `stops` is true, STOP is chosen instead of the chunk and is paid for the t chunks of the state.

    Returns:
        (reward, continues), continues 0 at the last step, at STOP and, with `end_at_completion`, at completion.
    """
    reward, continues = _chunk_reward(gold, taken, action, config)
    if not config.stop:
        return reward, continues
    return jnp.where(stops, stop_reward(gold, taken, config), reward), jnp.where(stops, 0.0, continues)


def stop_reward(gold: Bool[Array, " chunks"], taken: Int[Array, " taken"], config: EnvConfig) -> Float[Array, ""]:
    """Reward of STOP in a state, known in every state even if it is not chosen. 0 while gold is left."""
    num_gold = gold.sum()
    bonus = _bonus(num_gold, max(taken.shape[0], 1), config)
    return jnp.where(gold[taken].sum() == num_gold, bonus, 0.0).astype(jnp.float32)


def _bonus(num_gold: Int[Array, ""], num_taken: int, config: EnvConfig) -> Float[Array, ""]:
    """Reward of a complete set of `num_taken` chunks."""
    return 0.5 + 0.5 * num_gold.astype(jnp.float32) / num_taken if config.penalty else jnp.float32(1.0)


def _chunk_reward(
    gold: Bool[Array, " chunks"], taken: Int[Array, " taken"], action: Int[Array, ""], config: EnvConfig
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    num_taken = taken.shape[0] + 1
    is_gold = gold[action]
    before = gold[taken].sum()
    after = before + is_gold.astype(before.dtype)
    num_gold = gold.sum()
    completes = (after == num_gold) & (before < num_gold)
    complete = after == num_gold
    last = num_taken == config.num_steps
    bonus = _bonus(num_gold, num_taken, config)
    step = Taken(num_gold, num_taken, is_gold, completes, complete, last, bonus, config.end_at_completion)
    pay: Reward = REWARDS.load(config.reward)
    reward = pay(step) + jnp.where(is_gold, config.fact_reward, 0.0)
    continues = jnp.float32(0.0 if last else 1.0)
    if config.end_at_completion:
        continues = jnp.where(complete, 0.0, continues)
    return reward.astype(jnp.float32), continues.astype(jnp.float32)


def observe(
    batch: Batch, taken: Int[Array, "batch taken"], config: EnvConfig, dim: int
) -> tuple[Float[Array, "batch chunks"], tuple[Array, Array] | None]:
    """Positions of all chunks in the present states, and their rotation table (shared by all networks).

    `dim` components are rotated (`Network.num_rotated`).
    """
    taken_indices = jnp.take_along_axis(batch.indices, taken, axis=1)
    rho = jax.vmap(chunk_positions, in_axes=(None, 0, 0, 0, None, None))(
        config.positions, batch.indices, taken_indices, batch.lengths, config.delta, config.ell
    )
    if config.positions == "none":
        return rho, None
    return rho, rotation_at(rho, config, dim)


def rotation_at(rho: Float[Array, "..."], config: EnvConfig, dim: int) -> tuple[Array, Array]:
    """Rotation table of positions; relative ones stay below (T + 1) * delta."""
    frequencies = inverse_frequencies(dim, config.num_q_heads, config.theta)
    small = config.positions == "relative" and (config.num_steps + 1) * config.delta < 1e4
    return rotation_table(rho, frequencies, small)


def q_values(
    network: Network,
    params: PyTree,
    rows: Float[Array, "batch chunks dim"],
    batch: Batch,
    taken: Int[Array, "batch taken"],
    rotation: tuple[Array, Array] | None,
    config: EnvConfig,
) -> Float[Array, "batch heads actions"]:
    """Q of every action in the present states: chunks and, with `config.stop`, STOP in the last column.

    `rows` are the unrotated action vectors of every context, and the chunks of `batch.links` those of `rows`.
    """
    return q_of_states(params, state_vectors(network, params, batch, taken), rows, batch, taken, rotation, config)


def state_vectors(
    network: Network, params: PyTree, batch: Batch, taken: Int[Array, "batch taken"]
) -> Float[Array, "batch dim"]:
    """Vectors of the present states, by the state tower."""
    taken_rows = jnp.take_along_axis(batch.chunks, taken, axis=1)
    return network.states(params, batch.questions, batch.table, taken_rows)


def q_of_states(
    params: PyTree,
    states: Float[Array, "batch dim"],
    rows: Float[Array, "batch chunks dim"],
    batch: Batch | None,
    taken: Int[Array, "batch taken"],
    rotation: tuple[Array, Array] | None,
    config: EnvConfig,
    linked: Float[Array, "batch chunks inputs"] | None = None,
) -> Float[Array, "batch heads actions"]:
    """`q_values` of encoded states; `linked` are their `state_links`, if already computed.

    Without links or with `linked`, `batch` is not read.
    """
    scores = lambda s, a, table: rotary_scores(s, a, table, config.num_q_heads)  # noqa: E731
    q = jax.vmap(scores)(states, rows, rotation)
    if config.links:
        if linked is None:
            assert batch is not None
            linked = state_links(batch, taken, config)
        q = q + link_q_values(params["links"], linked)
    if not config.stop:
        return q
    stop = stop_q_values(params["stop"], states, config.num_q_heads)
    return jnp.concatenate([q, stop[..., None]], axis=2)


def state_links(
    batch: Batch, taken: Int[Array, "batch taken"], config: EnvConfig
) -> Float[Array, "batch chunks inputs"]:
    """Link inputs of every chunk in the present states, with `config.links`."""
    pairs = link_inputs(batch.links, taken)
    return jnp.concatenate([pairs, coverage_inputs(batch.words, taken)], axis=-1) if config.coverage else pairs


def rollout(
    network: Network,
    params: PyTree,
    batch: Batch,
    key: Array,
    policy: Policy,
    config: EnvConfig,
    critic: PyTree | None = None,
    value: Value | None = None,
    action_vectors: Float[Array, "rows dim"] | None = None,
    num_best: int = 0,
) -> Rollout:
    """Plays one episode in every environment.

    Actions are drawn from stop_gradient(Q). Gradients flow through `q_values`, so a loss on the Q values of the
    rollout needs no second forward pass.

    Args:
        network: the towers.
        params: parameters of the acting network.
        batch: environments; each must hold at least `num_steps` real chunks (`Task.check_steps` refuses others).
        key: root key of this rollout; folded by environment number, then by step. The key is consumed.
        policy: chooses actions from Q values.
        config: the decision process.
        critic: parameters (target network) that give the values of the next states; None leaves values at zero.
        value: computes a state's value from the critic's Q values.
        action_vectors: `network.actions` of the table, if already computed (an index); else it is computed here,
            once.
        num_best: chunks to report in `Rollout.best`.
    """
    keys = jax.vmap(lambda env: jax.random.fold_in(key, env))(batch.env)
    size = batch.chunks.shape[0]
    rows = (network.actions(params, batch.table) if action_vectors is None else action_vectors)[batch.chunks]
    critic_rows = None if critic is None else network.actions(critic, batch.table)[batch.chunks]
    taken = jnp.zeros((size, 0), jnp.int32)
    steps, values, best = [], [], []
    num_chunks = batch.chunks.shape[1]
    for t in range(config.num_steps):
        allowed = allowed_actions(batch.valid, taken, config)
        rho, rotation = observe(batch, taken, config, network.num_rotated)
        q = q_values(network, params, rows, batch, taken, rotation, config)
        step_keys = jax.vmap(lambda k, t=t: jax.random.fold_in(k, t))(keys)
        action, log_prob = policy(step_keys, jax.lax.stop_gradient(q).sum(1), allowed)
        if num_best:
            of_chunks = jnp.where(allowed, q.sum(1), -jnp.inf)[:, :num_chunks]
            best.append(jax.lax.top_k(of_chunks, min(num_best, num_chunks)))
        if critic_rows is not None and value is not None and t > 0:
            values.append(value(q_values(network, critic, critic_rows, batch, taken, rotation, config), allowed))
        chosen_q = jnp.take_along_axis(q, action[:, None, None], axis=2)[..., 0]
        stops = action == num_chunks  # never without STOP
        stop_q = jnp.where(allowed[:, -1:], q[..., -1], -jnp.inf) if config.stop else jnp.full_like(chosen_q, -jnp.inf)
        action = jnp.where(stops, jnp.argmax(allowed, axis=1).astype(jnp.int32), action)  # any free chunk
        reward, continues = jax.vmap(step_reward, in_axes=(0, 0, 0, None, 0))(batch.gold, taken, action, config, stops)
        position = jnp.take_along_axis(rho, action[:, None], axis=1)[:, 0]
        steps.append((action, position, chosen_q, stop_q, log_prob, reward, stops, continues))
        taken = jnp.sort(jnp.concatenate([taken, action[:, None]], axis=1), axis=1)
    # The last step ends every episode, so the value of the state after it never counts.
    values.append(jnp.zeros(size))
    if critic is None:
        values = [jnp.zeros(size)] * config.num_steps
    actions, positions, chosen, stop_q, log_probs, rewards, stops, continues = (
        jnp.stack(column, axis=1) for column in zip(*steps, strict=True)
    )
    alive = jnp.cumprod(jnp.concatenate([jnp.ones((size, 1)), continues[:, :-1]], axis=1), axis=1)
    next_values = jax.lax.stop_gradient(jnp.stack(values, axis=1))
    made = Rollout(actions, positions, chosen, stop_q, log_probs, rewards * alive, stops, alive, continues, next_values)
    if not best:
        return made
    best_q, best_slots = (jnp.stack(column, axis=1) for column in zip(*best, strict=True))
    return replace(made, best=best_slots, best_q_values=best_q)


def replay_q_values(network: Network, params: PyTree, batch: Batch, played: Rollout, config: EnvConfig) -> Array:
    """Q values of the chosen pairs of a finished rollout, encoded again; other actions are not.

    A chunk keeps the position that it had when it was chosen. Equals `played.q_values` at the same parameters; a
    backward pass then stores activations of the chosen chunks only, which large encoders can afford.

    Returns:
        float32 [batch, T, heads].
    """
    chosen = jnp.take_along_axis(batch.chunks, played.actions, axis=1)
    rows = network.actions(params, batch.table.take(chosen.reshape(-1))).reshape(*chosen.shape, network.dim)
    rotation = None
    if config.positions != "none":
        rotation = rotation_at(played.positions, config, network.num_rotated)
    columns = []
    for t in range(config.num_steps):
        taken = jnp.sort(played.actions[:, :t], axis=1)
        step_rotation = None if rotation is None else (rotation[0][:, t : t + 1], rotation[1][:, t : t + 1])
        linked = None
        if config.links:
            linked = jnp.take_along_axis(state_links(batch, taken, config), played.actions[:, t : t + 1, None], axis=1)
        states = state_vectors(network, params, batch, taken)
        q = q_of_states(params, states, rows[:, t : t + 1], batch, taken, step_rotation, config, linked)
        columns.append(jnp.where(played.stops[:, t, None], q[..., -1], q[..., 0]))
    return jnp.stack(columns, axis=1)


class Visited(NamedTuple):
    """The states of a step of a rollout."""

    taken: jax.Array  # int32 [batch, t], ascending
    allowed: jax.Array  # bool [batch, actions], what may be chosen
    states: jax.Array  # float32 [batch, dim], of the state tower
    q: jax.Array  # float32 [batch, heads, actions]


def visited_states(
    network: Network, params: PyTree, batch: Batch, played: Rollout, config: EnvConfig
) -> Iterator[Visited]:
    """The states of a finished rollout and all actions that were allowed there, encoded again, step by step."""
    rows = network.actions(params, batch.table)[batch.chunks]
    for t in range(config.num_steps):
        taken = jnp.sort(played.actions[:, :t], axis=1)
        _, rotation = observe(batch, taken, config, network.num_rotated)
        states = state_vectors(network, params, batch, taken)
        q = q_of_states(params, states, rows, batch, taken, rotation, config)
        yield Visited(taken, allowed_actions(batch.valid, taken, config), states, q)


def q_of_negatives(
    network: Network,
    vectors: Float[Array, "negatives dim"],
    batch: Batch,
    taken: Int[Array, "batch taken"],
    states: Float[Array, "batch dim"],
    config: EnvConfig,
) -> Float[Array, "batch negatives"]:
    """Q, summed over the heads, of the noise that represents the rest of every document (`Batch.negatives`).

    As `<s, R(rho) a> = <R(-rho) s, a>`, a state is rotated to a few places, and each row is scored at one of them.
    This is one matrix product; a place for every row would need a rotation of every row in every state.

    Args:
        vectors: `network.actions` of the rows; each place has equally many.
        states: `state_vectors`.
    """
    groups = vectors.reshape(batch.places.shape[1], -1, vectors.shape[-1])
    indices = jnp.floor(batch.places * batch.lengths[:, None].astype(jnp.float32)).astype(batch.indices.dtype)
    # Positions need the indices of what was taken, which come first.
    own = jnp.take_along_axis(batch.indices, taken, axis=1)
    there = replace(batch, indices=jnp.concatenate([own, indices], axis=1))
    places = jnp.broadcast_to(jnp.arange(taken.shape[1], dtype=taken.dtype), taken.shape)
    _, rotation = observe(there, places, config, network.num_rotated)
    turned = jnp.broadcast_to(states[:, None], (*indices.shape, states.shape[-1]))
    if rotation is not None:
        cos, sin = (x[:, taken.shape[1] :] for x in rotation)
        turned = jnp.concatenate(
            [turned[..., : network.num_unrotated], turn_back(turned[..., network.num_unrotated :], cos, sin)], axis=-1
        )
    exact = jax.lax.Precision.HIGHEST  # as of `rotary_scores`
    return jnp.einsum("bpd,pmd->bpm", turned, groups, precision=exact).reshape(len(states), -1)
