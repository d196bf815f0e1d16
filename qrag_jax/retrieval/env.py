"""Multi-step retrieval as a Markov decision process, and rollouts in it (Q-RAG, section 3.1).

State = question + chunks taken so far in document order; action = one untaken chunk; horizon T; deterministic. Every
function here is pure; a batch of environments advances in lock step, so step t has its own static shapes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from qrag_jax.models.network import AnyArray, Network, PyTree
from qrag_jax.models.rope import inverse_frequencies, rotary_scores, rotation_table
from qrag_jax.retrieval.positions import Positions, chunk_positions
from qrag_jax.types import UsageError


@dataclass(frozen=True)
class EnvConfig:
    """The decision process and the shape of its Q function.

    Attributes:
        num_steps: T, chunks taken in an episode.
        positions: what the rotation of the action vectors tells: place relative to the taken chunks, index, nothing.
        delta: distance between the starts of two intervals of relative positions.
        ell: extent of an interval of relative positions.
        theta: base of the rotary frequencies.
        num_q_heads: slices of the vectors that are Q functions of their own.
        reward: `at_completion` pays once, at the step that completes the gold set, and the episode runs on;
            `at_end` pays at the last step.
        penalty: pay `0.5 + 0.5 * |gold| / |taken|` in place of 1.
        fact_reward: paid for every gold chunk when it is taken.
        end_at_completion: end the episode when the gold set is complete (discount 0 there).
    """

    num_steps: int = 3
    positions: Positions = "relative"
    delta: float = 10.0
    ell: float = 9.0
    theta: float = 1e4
    num_q_heads: int = 1
    reward: Literal["at_completion", "at_end"] = "at_completion"
    penalty: bool = True
    fact_reward: float = 0.0
    end_at_completion: bool = False

    def __post_init__(self) -> None:
        if self.num_steps < 1 or self.num_q_heads < 1:
            raise UsageError(f"num_steps={self.num_steps} and num_q_heads={self.num_q_heads} must be at least 1")
        if not 0 < self.ell < self.delta:
            raise UsageError(f"ell={self.ell} must lie above 0 and below delta={self.delta}, or intervals overlap")


@struct.dataclass
class Batch:
    """Environments of one update: their chunks are rows of one table, so that a shared chunk is embedded once."""

    table: PyTree  # distinct chunks, [rows, ...]
    questions: PyTree  # [batch, ...]
    chunks: AnyArray  # int32 [batch, chunks], row of every chunk in document order
    indices: AnyArray  # int32 [batch, chunks], document index of every chunk
    lengths: AnyArray  # int32 [batch], chunks in the document
    valid: AnyArray  # bool [batch, chunks], False at padding
    gold: AnyArray  # bool [batch, chunks]
    env: AnyArray  # int32 [batch], global number of the environment: its random draws depend on nothing else


@struct.dataclass
class Rollout:
    """Trajectories, batch first. Time runs over the T steps."""

    actions: jax.Array  # int32 [batch, T], slot of the taken chunk
    positions: jax.Array  # float32 [batch, T], the chunk's position when it was chosen
    q_values: jax.Array  # float32 [batch, T, heads], of the taken chunk
    log_probs: jax.Array  # float32 [batch, T], of the taken chunk under the policy
    rewards: jax.Array  # float32 [batch, T]
    continues: jax.Array  # float32 [batch, T], 0 where the step ends the episode
    next_values: jax.Array  # float32 [batch, T], value of the state after the step, from the critic; 0 without one


# (keys [batch], q [batch, chunks], allowed [batch, chunks]) -> (actions int32 [batch], log probabilities [batch])
Policy = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
# (q [batch, heads, chunks], allowed [batch, chunks]) -> values [batch]
Value = Callable[[jax.Array, jax.Array], jax.Array]


def untaken(valid: Bool[Array, " chunks"], taken: Int[Array, " taken"]) -> Bool[Array, " chunks"]:
    """True at real chunks that no earlier step took."""
    slots = jnp.arange(valid.shape[0], dtype=taken.dtype)
    return valid & ~(slots[:, None] == taken[None, :]).any(axis=1)


def step_reward(
    gold: Bool[Array, " chunks"], taken: Int[Array, " taken"], action: Int[Array, ""], config: EnvConfig
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Reward of taking `action` after `taken` (static number t of chunks), and whether the episode goes on.

    Returns:
        (reward, continues), continues 0 at the last step and, with `end_at_completion`, at completion.
    """
    num_taken = taken.shape[0] + 1
    is_gold = gold[action]
    before = gold[taken].sum()
    after = before + is_gold.astype(before.dtype)
    num_gold = gold.sum()
    complete_now = (after == num_gold) & (before < num_gold)
    complete = after == num_gold
    last = num_taken == config.num_steps
    bonus = 0.5 + 0.5 * num_gold.astype(jnp.float32) / num_taken if config.penalty else jnp.float32(1.0)
    if config.reward == "at_completion":
        paid = complete_now
    else:  # an episode that ends at completion has its last step there: it is not paid a second time at T
        paid = complete_now if config.end_at_completion else complete & last
    reward = jnp.where(paid, bonus, 0.0) + jnp.where(is_gold, config.fact_reward, 0.0)
    continues = jnp.float32(0.0 if last else 1.0)
    if config.end_at_completion:
        continues = jnp.where(complete, 0.0, continues)
    return reward.astype(jnp.float32), continues.astype(jnp.float32)


def observe(
    batch: Batch, taken: Int[Array, "batch taken"], config: EnvConfig, dim: int
) -> tuple[Float[Array, "batch chunks"], tuple[Array, Array] | None]:
    """Positions of all chunks in the present states, and their rotation table (shared by all networks)."""
    taken_indices = jnp.take_along_axis(batch.indices, taken, axis=1)
    rho = jax.vmap(chunk_positions, in_axes=(None, 0, 0, 0, None, None))(
        config.positions, batch.indices, taken_indices, batch.lengths, config.delta, config.ell
    )
    if config.positions == "none":
        return rho, None
    return rho, rotation_table(rho, inverse_frequencies(dim, config.num_q_heads, config.theta))


def q_values(
    network: Network,
    params: PyTree,
    rows: Float[Array, "batch chunks dim"],
    batch: Batch,
    taken: Int[Array, "batch taken"],
    rotation: tuple[Array, Array] | None,
    config: EnvConfig,
) -> Float[Array, "batch heads chunks"]:
    """Q of every chunk in the present states; `rows` are the unrotated action vectors of every context."""
    taken_rows = jnp.take_along_axis(batch.chunks, taken, axis=1)
    states = network.states(params, batch.questions, batch.table, taken_rows)
    scores = lambda s, a, table: rotary_scores(s, a, table, config.num_q_heads)  # noqa: E731
    return jax.vmap(scores)(states, rows, rotation)


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
) -> Rollout:
    """Plays one episode in every environment.

    Actions are drawn on stop_gradient(Q); gradients flow through `q_values`, so a loss on the rollout's own Q values
    needs no second forward pass.

    Args:
        network: the towers.
        params: parameters of the acting network.
        batch: environments; each must hold at least `num_steps` real chunks (`Task.check_steps` refuses others).
        key: root key of this rollout; folded by environment number, then by step. The key is consumed.
        policy: how actions follow from Q values.
        config: the decision process.
        critic: parameters (target network) that value the next states; None leaves values at zero.
        value: how a state's value follows from the critic's Q values.
        action_vectors: `network.actions` of the table when it is at hand (an index); else it is computed here, once.
    """
    keys = jax.vmap(lambda env: jax.random.fold_in(key, env))(batch.env)
    size = batch.chunks.shape[0]
    rows = (network.actions(params, batch.table) if action_vectors is None else action_vectors)[batch.chunks]
    critic_rows = None if critic is None else network.actions(critic, batch.table)[batch.chunks]
    taken = jnp.zeros((size, 0), jnp.int32)
    steps, values = [], []
    for t in range(config.num_steps):
        allowed = jax.vmap(untaken)(batch.valid, taken)
        rho, rotation = observe(batch, taken, config, network.dim)
        q = q_values(network, params, rows, batch, taken, rotation, config)
        step_keys = jax.vmap(lambda k, t=t: jax.random.fold_in(k, t))(keys)
        action, log_prob = policy(step_keys, jax.lax.stop_gradient(q).sum(1), allowed)
        if critic_rows is not None and value is not None and t > 0:
            values.append(value(q_values(network, critic, critic_rows, batch, taken, rotation, config), allowed))
        reward, continues = jax.vmap(step_reward, in_axes=(0, 0, 0, None))(batch.gold, taken, action, config)
        picked = lambda x, action=action: jnp.take_along_axis(x, action[:, None], axis=1)[:, 0]  # noqa: E731
        chosen_q = jnp.take_along_axis(q, action[:, None, None], axis=2)[..., 0]
        steps.append((action, picked(rho), chosen_q, log_prob, reward, continues))
        taken = jnp.sort(jnp.concatenate([taken, action[:, None]], axis=1), axis=1)
    # The last step ends every episode, so the value of the state after it never counts.
    values.append(jnp.zeros(size))
    if critic is None:
        values = [jnp.zeros(size)] * config.num_steps
    actions, positions, chosen, log_probs, rewards, continues = (jnp.stack(c, axis=1) for c in zip(*steps, strict=True))
    next_values = jax.lax.stop_gradient(jnp.stack(values, axis=1))
    return Rollout(actions, positions, chosen, log_probs, rewards, continues, next_values)


def replay_q_values(network: Network, params: PyTree, batch: Batch, played: Rollout, config: EnvConfig) -> Array:
    """Q values of the chosen pairs of a finished rollout, encoded again: only chosen chunks, no other actions.

    A chunk keeps the position that it had when it was chosen. Equals `played.q_values` at the same parameters; the
    activations of a backward pass then hold the chosen chunks alone, which is what large encoders can afford.

    Returns:
        float32 [batch, T, heads].
    """
    chosen = jnp.take_along_axis(batch.chunks, played.actions, axis=1)
    rows = network.actions(params, batch.table.take(chosen.reshape(-1))).reshape(*chosen.shape, network.dim)
    rotation = None
    if config.positions != "none":
        frequencies = inverse_frequencies(network.dim, config.num_q_heads, config.theta)
        rotation = rotation_table(played.positions, frequencies)
    columns = []
    for t in range(config.num_steps):
        taken = jnp.sort(played.actions[:, :t], axis=1)
        step_rotation = None if rotation is None else (rotation[0][:, t : t + 1], rotation[1][:, t : t + 1])
        q = q_values(network, params, rows[:, t : t + 1], batch, taken, step_rotation, config)
        columns.append(q[..., 0])
    return jnp.stack(columns, axis=1)
