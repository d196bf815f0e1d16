"""The Q learner: soft Q-learning with lambda-returns and an EMA target network (Q-RAG, Algorithm 1).

`update` is one pure function: rollout, targets, loss, gradient, optimiser step, target step. Each ablation of the paper
is a value of `LearnerConfig`.

Where a language model pays (`reward`), `play` gives the picks of the same rollout first, and `update` reads what they
were paid.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from qrag_jax.models.towers.q_network import AnyArray, Network, PyTree
from qrag_jax.qrag.env import Batch, EnvConfig, Rollout, Visited, replay_q_values, rollout, visited_states
from qrag_jax.qrag.policy import make_boltzmann
from qrag_jax.qrag.pool import Looked, PoolBatch, pool_rollout
from qrag_jax.train.optimise import GroupConfig, ScheduleConfig, group_optimiser, make_schedule, stop_frozen
from qrag_jax.train.qrag.label_losses import pool_ranking_loss, ranking_loss, stop_loss, trajectory_loss
from qrag_jax.train.qrag.returns import ValueKind, chosen_pair_loss, lambda_returns, state_value
from qrag_jax.train.trainer import add_losses
from qrag_jax.types import UsageError, check_fields

AnyBatch = Batch | PoolBatch
RewardSource = Literal["gold", "answers", "mixed"]


@dataclass(frozen=True)
class LearnerConfig:
    """Hyper-parameters of the learner.

    Attributes:
        objective: `soft_q` is value-based reinforcement learning; `sft` is trajectory supervision by the gold chunks
            (`label_losses.trajectory_loss`), a baseline that uses of these fields the optimiser's only.
        reward: what an episode is paid for. `gold`: the gold chunks (`env.reward`). `answers`: a language model's
            answer from the taken chunks (`train/answer_rewards.py`), once, at the last step; gold is not read.
            `mixed`: gold where a question has some, else answers.
        losses: weights, at least 0, of the losses that are added: the objective (1 if it is not named) and, with
            `soft_q` only, in the states of its rollout, `ranking` (cross-entropy of the gold chunks that are left,
            `label_losses.ranking_loss`; needs `env.ranking_scale`) and `stop` (squared error of STOP against its
            reward, `label_losses.stop_loss`; needs `env.stop`). A weight of 0 logs a loss without training on it.
        gamma: discount.
        lambda_: mixing weight of the lambda-returns.
        value: how a state's value follows from Q (soft is the paper's eq. 4).
        top_k_actions: policy and value see only the best k untaken chunks; None is all of them.
        target_network: value next states with the EMA parameters; False uses the online ones.
        tau: share of the online parameters in each target step.
        soft_trace: add `-alpha log pi` of the next action to the sampled part of the return.
        accumulate: parts that a batch is played in, one after the other, for less memory; the gradient is
            that of the whole batch.
        reencode: encode the chosen pairs a second time for the gradient instead of storing the activations of the
            whole rollout; same values, less memory.
        learning_rate: schedule of the optimiser.
        temperature: schedule of alpha.
        epsilon: schedule of the share of uniform picks.
        weight_decay: of AdamW, on all parameters.
        clip_norm: largest global norm of a gradient.
        adam_b1: decay of AdamW's first moment.
        adam_b2: decay of AdamW's second moment.
        adam_eps: AdamW's denominator floor.
        groups: parts of the parameters that are frozen or have a separate learning rate, by a pattern of their paths
            (`action/*`); empty trains all equally.

    Raises:
        UsageError: a value out of range.
    """

    objective: Literal["soft_q", "sft"] = "soft_q"
    reward: RewardSource = "gold"
    losses: dict[str, float] = field(default_factory=dict, hash=False)
    gamma: float = 0.99
    lambda_: float = 0.5
    value: ValueKind = "soft"
    top_k_actions: int | None = None
    target_network: bool = True
    tau: float = 0.05
    soft_trace: bool = False
    accumulate: int = 1
    reencode: bool = False
    learning_rate: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(2e-3, 0.0, warmup=0.02))
    temperature: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(0.03, 0.001))
    epsilon: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(0.1, 0.0))
    weight_decay: float = 5e-4
    clip_norm: float = 2.0
    adam_b1: float = 0.9
    adam_b2: float = 0.98
    adam_eps: float = 1e-6
    groups: dict[str, GroupConfig] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        counts, shares = ("accumulate", "top_k_actions"), ("gamma", "lambda_", "tau")
        within = {"adam_b1": "[0, 1)", "adam_b2": "[0, 1)", "clip_norm": "(0, inf]", "adam_eps": "(0, inf]"}
        check_fields(self, positive=counts, shares=shares, at_least={"weight_decay": 0}, within=within)
        check_fields(self.learning_rate, "learning_rate", at_least={"start": 0, "end": 0})
        temperatures = {"start": "(0, inf]", "end": "(0, inf]"}  # the softmax divides by it
        check_fields(self.temperature, "temperature", within=temperatures)
        check_fields(self.epsilon, "epsilon", shares=("start", "end"))
        check_losses(self.objective, self.losses)
        self._check_reward()
        if self.temperature.warmup:
            raise UsageError(f"temperature.warmup={self.temperature.warmup} must be 0: the softmax divides by it")

    def _check_reward(self) -> None:
        """Refuses what only gold can teach."""
        if self.reward == "gold":
            return
        faults = {
            f"objective={self.objective}: an answer is paid to an episode; set soft_q": self.objective != "soft_q",
            "losses.ranking learns from gold chunks; leave it out, or set reward=mixed": (
                self.reward == "answers" and "ranking" in self.losses
            ),
            "losses.stop learns from gold chunks; leave it out": "stop" in self.losses,
            f"accumulate={self.accumulate} must be 1": self.accumulate > 1,
        }
        for fault in [fault for fault, found in faults.items() if found]:
            raise UsageError(f"learner.reward={self.reward}: learner.{fault}")


@struct.dataclass
class LearnerState:
    """Everything that an update changes."""

    params: PyTree
    target_params: PyTree
    opt_state: PyTree
    step: jax.Array  # int32 []
    key: jax.Array  # root key of the run; never consumed, folded by step


def check_losses(objective: str, losses: Mapping[str, float]) -> None:
    """Refuses weights that no run can be trained by."""
    known = (objective, *(_BESIDE if objective == "soft_q" else ()))
    for name, weight in losses.items():
        if name not in known:
            raise UsageError(f"losses.{name}: objective={objective} has the losses {', '.join(known)}")
        if not 0 <= weight < math.inf:
            raise UsageError(f"losses.{name}={weight} must be at least 0 and finite")
    if not any({objective: 1.0, **losses}.values()):
        raise UsageError(f"losses={dict(losses)}: give one of them a weight above 0")


_BESIDE = ("ranking", "stop")  # losses beside soft Q, in the states of its rollout


@struct.dataclass
class Paid:
    """The rewards of a batch, which the host paid after it had seen the actions.

    Attributes:
        actions: int32 [batch, T], `Rollout.actions` that were paid for.
        values: float32 [batch].
        is_known: bool [batch], False where nobody paid: the episode is left out.
        by_answer: bool [batch], True where `values` is the reward; else gold pays as `EnvConfig.reward` says.
    """

    actions: AnyArray
    values: AnyArray
    is_known: AnyArray
    by_answer: AnyArray


class Learner(NamedTuple):
    """`init(params, key) -> state`, `update(state, batch, paid) -> (state, metrics)`, `play(state, batch) -> actions`.

    Jit `update` with donation. With `accumulate` above 1 the arrays of a batch have one more axis in front, of as many
    parts. `paid` is None if gold pays. `play` gives the actions of the rollout of `update` in that state, int32
    [batch, T].
    """

    init: Callable[[PyTree, jax.Array], LearnerState]
    update: Callable[..., tuple[LearnerState, dict[str, jax.Array]]]
    play: Callable[[LearnerState, AnyBatch], jax.Array]


def rollout_targets(played: Rollout, temperature: jax.Array, config: LearnerConfig) -> jax.Array:
    """Lambda-return targets of a rollout, float32 [batch, T], without gradients."""
    bonus = jnp.zeros_like(played.next_values)
    if config.soft_trace:
        next_log_probs = jnp.concatenate([played.log_probs[:, 1:], jnp.zeros_like(played.log_probs[:, :1])], axis=1)
        bonus = -temperature * next_log_probs
    discounts = config.gamma * played.continues
    returns = jax.vmap(lambda_returns, in_axes=(0, 0, 0, None, 0))(
        played.rewards, discounts, played.next_values, config.lambda_, bonus
    )
    return jax.lax.stop_gradient(returns)


def q_loss(
    network: Network,
    params: PyTree,
    target_params: PyTree,
    batch: AnyBatch,
    key: jax.Array,
    temperature: jax.Array,
    epsilon: jax.Array,
    env: EnvConfig,
    config: LearnerConfig,
    paid: Paid | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean squared error of the chosen pairs of one fresh rollout against their lambda-returns.

    Args:
        network: the towers.
        params: online parameters; the only argument that gradients flow to.
        target_params: parameters that value the next states.
        batch: environments.
        key: of the rollout; consumed.
        temperature: alpha of policy and value.
        epsilon: share of uniform picks.
        env: the decision process.
        config: hyper-parameters.
        paid: rewards of a language model; None: gold pays.

    Returns:
        The loss and a dict of scalars: return, completion rate (with `paid` the share that is unpaid), mean Q, mean
        target.
    """
    loss, metrics, *_ = _play_for_q(network, params, target_params, batch, key, temperature, epsilon, env, config, paid)
    return loss, metrics


def _play_for_q(
    network: Network,
    params: PyTree,
    target_params: PyTree,
    batch: AnyBatch,
    key: jax.Array,
    temperature: jax.Array,
    epsilon: jax.Array,
    env: EnvConfig,
    config: LearnerConfig,
    paid: Paid | None = None,
) -> tuple[jax.Array, dict[str, jax.Array], Rollout, Looked | None]:
    """`q_loss`, the rollout that it is of, and the candidates of each step over a pool."""
    policy = make_boltzmann(temperature, epsilon, config.top_k_actions)
    critic = jax.lax.stop_gradient(target_params if config.target_network else params)

    def value(q: jax.Array, allowed: jax.Array) -> jax.Array:
        def one(q: jax.Array, allowed: jax.Array) -> jax.Array:
            return state_value(q, allowed, temperature, config.value, config.top_k_actions)

        return jax.vmap(one)(q, allowed)

    if isinstance(batch, PoolBatch):
        with_gold = config.reward != "answers"
        played, looked = pool_rollout(network, params, batch, key, policy, env, critic, value, with_gold=with_gold)
        q_tm1 = played.q_values
    else:
        acting, looked = jax.lax.stop_gradient(params) if config.reencode else params, None
        played = rollout(network, acting, batch, key, policy, env, critic, value)
        q_tm1 = replay_q_values(network, params, batch, played, env) if config.reencode else played.q_values
    if paid is not None:
        played = _with_paid(played, paid)
    g_tm1 = rollout_targets(played, temperature, config)
    # Steps after the end of an episode have no return: they are left out of every mean.
    over_steps = lambda x: (x * played.alive).sum() / jnp.maximum(played.alive.sum(), 1.0)  # noqa: E731
    loss = over_steps(jax.vmap(jax.vmap(chosen_pair_loss))(q_tm1, g_tm1))
    metrics = {"loss": loss, **_of_episodes(batch, played, paid)}
    metrics |= {"q": over_steps(q_tm1.sum(-1)), "target": over_steps(g_tm1)}
    if env.stop or env.end_at_completion:
        metrics["steps"] = played.alive.sum(1).mean()
    if env.stop:
        metrics["taken"] = jnp.where(played.stops, 0.0, played.alive).sum(1).mean()
    return loss, metrics, played, looked


def _with_paid(played: Rollout, paid: Paid) -> Rollout:
    """The rollout with rewards of the host. An episode without one has no steps that count.

    Nor has one whose actions are not those that were paid for: another compilation may round two almost equal Q values
    another way.
    """
    is_last = jnp.arange(played.rewards.shape[1]) == played.rewards.shape[1] - 1
    of_answers = jnp.where(is_last, paid.values[:, None], 0.0)
    counts = paid.is_known & (played.actions == paid.actions).all(axis=1)
    rewards = jnp.where(paid.by_answer[:, None], of_answers, played.rewards)
    return replace(
        played, rewards=jnp.where(counts[:, None], rewards, 0.0), alive=jnp.where(counts[:, None], played.alive, 0.0)
    )


def _of_episodes(batch: AnyBatch, played: Rollout, paid: Paid | None) -> dict[str, jax.Array]:
    """Metrics of whole episodes: the mean return, and the share that is complete or, with `paid`, does not count."""
    if paid is None:
        return {"return": played.rewards.sum(1).mean(), "complete": complete(batch, played).mean()}
    counts = played.alive[:, 0]
    return {"return": played.rewards.sum() / jnp.maximum(counts.sum(), 1), "unpaid": (1 - counts).mean()}


def complete(batch: AnyBatch, played: Rollout) -> jax.Array:
    """True if an episode took all gold chunks before its end, bool [batch]."""
    counted = (played.alive > 0) & ~played.stops
    return (jnp.take_along_axis(batch.gold, played.actions, axis=1) & counted).sum(1) == batch.gold.sum(1)


Terms = Mapping[str, tuple[jax.Array, float]]  # by name (loss, weight)
# (params, target_params, batch, key, temperature, epsilon, paid) -> (losses, metrics)
Objective = Callable[
    [PyTree, PyTree, AnyBatch, jax.Array, jax.Array, jax.Array, Paid | None], tuple[Terms, dict[str, jax.Array]]
]


def _soft_q(network: Network, env: EnvConfig, config: LearnerConfig) -> Objective:
    """Soft Q-learning, and the other losses in the states of the same rollout."""
    weights = {"soft_q": 1.0, **config.losses}

    def objective(
        params: PyTree, target: PyTree, batch: AnyBatch, key: jax.Array, temperature: jax.Array, epsilon: jax.Array,
        paid: Paid | None,
    ) -> tuple[Terms, dict[str, jax.Array]]:  # fmt: skip
        loss, metrics, played, looked = _play_for_q(
            network, params, target, batch, key, temperature, epsilon, env, config, paid
        )
        terms = {"soft_q": (loss, weights["soft_q"])}
        # Encoded once for all losses that look at them; without one nothing is.
        if isinstance(batch, PoolBatch):
            assert looked is not None
            taken = [jnp.sort(played.actions[:, :t], axis=1) for t in range(env.num_steps)]
            visited = [Visited(one, looked.allowed[t], looked.states[t], looked.q[t]) for t, one in enumerate(taken)]
            rank = partial(pool_ranking_loss, params, batch, played, looked, env)
        else:
            visited = list(visited_states(network, params, batch, played, env)) if weights.keys() & _BESIDE else []
            rank = partial(ranking_loss, network, params, batch, played, visited, env)
        if "ranking" in weights:
            loss, found = rank()
            terms["ranking"], metrics = (loss, weights["ranking"]), metrics | found
        if "stop" in weights:
            terms["stop"] = stop_loss(batch, played, visited, env), weights["stop"]
        return terms, metrics

    return objective


def _sft(network: Network, env: EnvConfig, config: LearnerConfig) -> Objective:
    def objective(
        params: PyTree, target: PyTree, batch: AnyBatch, key: jax.Array, temperature: jax.Array, epsilon: jax.Array,
        paid: Paid | None,
    ) -> tuple[Terms, dict[str, jax.Array]]:  # fmt: skip
        assert isinstance(batch, Batch)  # the config refuses a pool
        loss, metrics = trajectory_loss(network, params, batch, key, env)
        return {"sft": (loss, config.losses.get("sft", 1.0))}, metrics

    return objective


_OBJECTIVES: Mapping[str, Callable[[Network, EnvConfig, LearnerConfig], Objective]] = {"soft_q": _soft_q, "sft": _sft}


def make_optimiser(config: LearnerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """Clipping over all that is trained, then AdamW, one a learning rate."""

    def adamw(factor: float) -> optax.GradientTransformation:
        own = rate if factor == 1 else lambda count: factor * rate(count)
        return optax.adamw(own, config.adam_b1, config.adam_b2, config.adam_eps, weight_decay=config.weight_decay)

    return optax.chain(optax.clip_by_global_norm(config.clip_norm), group_optimiser(adamw, config.groups))


def make_learner(network: Network, env: EnvConfig, config: LearnerConfig, num_updates: int) -> Learner:
    """Bundles the learner's pure functions for a run of `num_updates` updates.

    Raises:
        UsageError: the decision process has no step, or more Q heads than the towers' vectors can be split into.
    """
    _check(env, config, network)
    objective = _OBJECTIVES[config.objective](network, env, config)
    rate = make_schedule(config.learning_rate, num_updates)
    alpha = make_schedule(config.temperature, num_updates)
    epsilon = make_schedule(config.epsilon, num_updates)
    optimiser = make_optimiser(config, rate)

    def init(params: PyTree, key: jax.Array) -> LearnerState:
        # A copy: two towers or networks that share buffers cannot both be donated.
        params, target = jax.tree.map(jnp.array, params), jax.tree.map(jnp.array, params)
        return LearnerState(params, target, optimiser.init(params), jnp.int32(0), jnp.array(key, copy=True))

    def play(state: LearnerState, batch: AnyBatch) -> jax.Array:
        policy = make_boltzmann(jnp.asarray(alpha(state.step)), jnp.asarray(epsilon(state.step)), config.top_k_actions)
        key, params = jax.random.fold_in(state.key, state.step), state.params
        if isinstance(batch, PoolBatch):
            with_gold = config.reward != "answers"
            return pool_rollout(network, params, batch, key, policy, env, with_gold=with_gold)[0].actions
        return rollout(network, params, batch, key, policy, env).actions

    def update(
        state: LearnerState, batch: AnyBatch, paid: Paid | None = None
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        now = jnp.asarray(alpha(state.step)), jnp.asarray(epsilon(state.step))
        key = jax.random.fold_in(state.key, state.step)

        def loss(params: PyTree, batch: AnyBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
            terms, metrics = objective(params, state.target_params, batch, key, *now, paid)
            total, named = add_losses(terms)
            return total, metrics | named

        def of_part(batch: AnyBatch) -> tuple[dict[str, jax.Array], PyTree]:
            (_, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(state.params, batch)
            return metrics, stop_frozen(gradient, config.groups)

        metrics, gradient = of_part(batch) if config.accumulate == 1 else _mean_over_parts(of_part, batch)
        # optax mixes Python floats of other types, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            step, opt_state = optimiser.update(gradient, state.opt_state, state.params)
            params = optax.apply_updates(state.params, step)
            target = optax.incremental_update(params, state.target_params, config.tau)
        metrics |= {"grad_norm": optax.tree.norm(gradient), "learning_rate": rate(state.step)}
        if config.objective == "soft_q":
            metrics |= {"temperature": now[0], "epsilon": now[1]}
        return LearnerState(params, target, opt_state, state.step + 1, state.key), metrics

    return Learner(init, update, play)


def _mean_over_parts(play: Callable[[AnyBatch], tuple[dict, PyTree]], parts: AnyBatch) -> tuple[dict, PyTree]:
    """`play` of a whole batch from its parts, one after the other, in the memory of one.

    Means over steps are weighted by the number of steps of their part, which differs if episodes end early; means
    over episodes are weighted equally.
    """

    def weighted(part: AnyBatch) -> tuple[dict, PyTree, jax.Array]:
        metrics, gradient = play(part)
        steps = metrics.get("steps", jnp.float32(1.0))
        metrics = {name: x * steps if _is_mean_over_steps(name) else x for name, x in metrics.items()}
        return metrics, jax.tree.map(lambda x: x * steps, gradient), steps

    shapes = jax.eval_shape(weighted, jax.tree.map(lambda x: x[0], parts))
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    add = lambda total, part: (jax.tree.map(jnp.add, total, weighted(part)), None)  # noqa: E731
    (metrics, gradient, steps), _ = jax.lax.scan(add, zero, parts)
    num_parts = jax.tree.leaves(parts)[0].shape[0]
    metrics = {name: x / (steps if _is_mean_over_steps(name) else num_parts) for name, x in metrics.items()}
    return metrics, jax.tree.map(lambda x: x / steps, gradient)


def _is_mean_over_steps(name: str) -> bool:
    return name in ("loss", "q", "target") or name.startswith("loss/")


def _check(env: EnvConfig, config: LearnerConfig, network: Network) -> None:
    """Refuses a decision process that the towers cannot play, and losses that it cannot teach."""
    dim = network.num_rotated
    if env.num_q_heads < 1 or dim % (2 * env.num_q_heads):
        raise UsageError(
            f"env.num_q_heads={env.num_q_heads} must be at least 1 and split the {dim} components of the towers' "
            "vectors into slices of even width"
        )
    if network.num_unrotated and env.num_q_heads > 1:
        raise UsageError(
            f"env.num_q_heads={env.num_q_heads} must be 1 for towers that rotate only part of each vector by position"
        )
    if config.objective == "sft" and env.stop and env.ranking_scale is None:
        raise UsageError(
            "learner.objective=sft learns STOP as a class of its cross-entropy: set env.ranking_scale (20 is a start), "
            "or env.stop=false"
        )
    if "ranking" in config.losses and env.ranking_scale is None:
        raise UsageError("learner.losses.ranking needs env.ranking_scale, the start of its scale (20 is one)")
    if "stop" in config.losses and not env.stop:
        raise UsageError("learner.losses.stop needs env.stop=true: this run learns no STOP")
