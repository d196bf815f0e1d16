"""Episodes over one pool of many documents: each step searches all of it and weighs the candidates that it finds.

Candidates of a step are the chunks nearest to the state by the unrotated product, those that the question finds by
words, and those that the question or a taken chunk leads to by names. A chunk that was taken is masked before any of
these lists is cut, so it never returns. Q of a candidate is exact: its true position and its links to the question and
to the taken chunks.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt

from qrag_jax.models.towers.positions import relative_positions
from qrag_jax.models.towers.q_network import AnyArray, Network, PyTree
from qrag_jax.qrag.env import EnvConfig, Policy, Rollout, Value, q_of_states, rotation_at, step_reward
from qrag_jax.qrag.heads import link_q_values
from qrag_jax.qrag.pool_tables import IN_NAME, IN_TITLE, AskedRows, PoolTable, Texts
from qrag_jax.qrag.text_links import COVERAGE, LINKS, POOL

_TEXT = 4  # flag of a word of a source: it is in its text
_NEW = 8  # the word is in a name, and the question lacks it
_SHORTEST = 1e-6
# Columns of `pool_links` that compare a chunk with the question alone.
_OF_QUESTION = (
    *range(len(LINKS)),
    *(2 * len(LINKS) + len(COVERAGE) + POOL.index(name) for name in ("cosine", "words")),
)


@struct.dataclass
class PoolBatch:
    """Episodes over one pool.

    Attributes:
        pool: all chunks.
        questions: of the episodes.
        gold: bool [batch, chunks].
        env: int32 [batch], global number of the episode.
        drawn: int32 [negatives], chunks that represent the rest of the pool in training; None draws none.
    """

    pool: PoolTable
    questions: AskedRows
    gold: AnyArray
    env: AnyArray
    drawn: AnyArray = None


class Looked(NamedTuple):
    """The candidates of every step, batch first in a step, steps first of an episode.

    Attributes:
        ids: int32 [batch, candidates], ascending but for drawn ones.
        allowed: bool [batch, actions]; a repeated or missing candidate is not allowed.
        states: float32 [batch, dim].
        q: float32 [batch, heads, actions].
        log_weights: float32 [batch, candidates], in a softmax over the whole pool.
        linked: float32 [batch, candidates, inputs] of `pool_links`; None where Q reads none.
    """

    ids: jax.Array
    allowed: jax.Array
    states: jax.Array
    q: jax.Array
    log_weights: jax.Array
    linked: jax.Array | None


def free_chunks(
    pool: PoolTable, taken: Int[Array, "batch taken"], per_document: int | None
) -> Bool[Array, "batch chunks"]:
    """False for chunks that are taken, or of documents whose quota is, and for padding of the table.

    `taken` is padded with -1.
    """
    size, num_chunks = taken.shape[0], pool.num_chunks
    rows = jnp.arange(size)[:, None]
    free = jnp.broadcast_to(pool.document >= 0, (size, num_chunks))
    free = free.at[rows, jnp.where(taken >= 0, taken, num_chunks)].set(False, mode="drop")
    if per_document is None:
        return free
    used = jnp.zeros((size, num_chunks), jnp.int32).at[rows, pool.document[taken]].add(taken >= 0)
    return free & (used[:, pool.document] < per_document)


def candidates(
    batch: PoolBatch,
    products: Float[Array, "batch chunks"],
    taken: Int[Array, "batch taken"],
    free: Bool[Array, "batch chunks"],
    nearest: int,
    extra: Int[Array, "batch extra"] | None = None,
) -> tuple[Int[Array, "batch candidates"], Bool[Array, "batch candidates"]]:
    """Ids of the candidates in ascending order, and which of them count: each chunk once, and only free ones.

    Args:
        products: of the states with all chunks.
        extra: chunks that are candidates in any case.
    """
    pool, size = batch.pool, len(products)
    near = jax.lax.top_k(jnp.where(free, products, -jnp.inf), min(nearest, products.shape[1]))[1].astype(jnp.int32)
    lists = [near, batch.questions.found, batch.questions.texts.named]
    leading = (
        jnp.where(taken[..., None] >= 0, table[taken], -1) for table in (pool.texts.named, pool.namers, pool.kin)
    )
    lists += [table.reshape(size, -1) for table in leading]
    ids = jnp.sort(jnp.concatenate([*lists, *([] if extra is None else [extra])], axis=1), axis=1)
    again = jnp.concatenate([jnp.zeros((size, 1), bool), ids[:, 1:] == ids[:, :-1]], axis=1)
    return ids, (ids >= 0) & ~again & jnp.take_along_axis(free, jnp.maximum(ids, 0), axis=1)


def _codes(words: Int[Array, " words"], flags: UInt[Array, " words"], size: int) -> UInt[Array, " vocabulary"]:
    """For each word of the vocabulary its flags in one text, 0 where the text lacks it."""
    code = jnp.where(words >= 0, flags | jnp.uint8(_TEXT), jnp.uint8(0))
    return jnp.zeros(size, jnp.uint8).at[jnp.maximum(words, 0)].max(code)


def pool_links(
    pool: PoolTable,
    question: Texts,
    vector: Float[Array, " dim"],
    lexical: tuple[Int[Array, " words"], Float[Array, " words"]],
    taken: Int[Array, " taken"],
    ids: Int[Array, " candidates"],
) -> Float[Array, "candidates inputs"]:
    """The inputs of Q for each candidate in one state.

    These are links of the question, the largest of the taken chunks, coverage of both together (`text_links.LINKS`,
    `COVERAGE`), and `POOL`.

    Args:
        question: its words.
        vector: of the question.
        lexical: the chunks that the question finds by words, and their scores.
    """
    own, titles = pool.texts.take(ids), pool.title[ids]
    at, is_word = jnp.maximum(own.words, 0), own.words >= 0
    weight = jnp.where(is_word, pool.idf[at], 0.0)  # [candidates, words]
    of_name, of_title = own.flags & IN_NAME > 0, own.flags & IN_TITLE > 0
    sources = jax.tree.map(lambda a, b: _rows_under(a[None], b), question, pool.texts.take(taken))
    is_real = jnp.append(True, taken >= 0)
    in_question = _codes(question.words, question.flags, len(pool.idf))

    def links(source: Texts, id_: Array, title: Array) -> tuple[Array, Array]:
        """Links of one text to all candidates, and where they have its words; the question has the id -1."""
        place = jnp.maximum(source.words, 0)
        is_new = (source.words >= 0) & (in_question[place] == 0) & (source.flags & IN_NAME > 0)
        here = _codes(source.words, source.flags | jnp.where(is_new, _NEW, 0).astype(jnp.uint8), len(pool.idf))[at]
        has = jnp.stack([here > 0, here & IN_NAME > 0, here & IN_TITLE > 0, (here & _NEW > 0) & of_name])
        new_mass = (pool.idf[place] * is_new).sum()
        of_source = _share(
            jnp.einsum("kcw,cw->kc", has.astype(weight.dtype), weight).T, jnp.append(source.mass, new_mass)
        )
        of_chunk = _share((weight * (has[0] & of_title)).sum(1), own.mass[:, 2])
        named = (source.named[None] == ids[:, None]).any(1)
        names_it = (own.named == id_).any(1) & (id_ >= 0)
        same = (titles == title) & (title >= 0)
        flags = [x.astype(weight.dtype) for x in (named, names_it, same)]
        columns = [of_source[:, 0], of_source[:, 1], flags[0], of_chunk, flags[1], of_source[:, 2], flags[2]]
        return jnp.stack([*columns, of_source[:, 3]], axis=-1), has[0]

    none = jnp.full(1, -1, taken.dtype)
    numbers = jnp.concatenate([none, taken]), jnp.concatenate([none, pool.title[taken]])
    found, has = jax.vmap(links)(sources, *numbers)
    found, has = found * is_real[:, None, None], has & is_real[:, None, None]
    untold = has[0] & ~has[1:].any(0)
    covered = jnp.stack([has.any(0), untold, pool.shared[at] | has[0]])
    mass = jnp.stack([own.mass[:, 0], jnp.full(len(ids), question.mass[0]), own.mass[:, 0]], axis=-1)
    coverage = _share(jnp.einsum("kcw,cw->ck", covered.astype(weight.dtype), weight), mass)
    centred = _unit(pool.rows.vectors[ids] - pool.mean)
    cosines = centred @ _unit(jnp.concatenate([vector[None], pool.rows.vectors[taken]]) - pool.mean).T
    by_words = jnp.where(ids[:, None] == lexical[0][None], lexical[1][None], 0.0).max(1)
    of_taken = jnp.where(is_real[1:], cosines[:, 1:], 0.0).max(1, initial=0.0)
    extra = jnp.stack([cosines[:, 0], of_taken, by_words], axis=-1)
    return jnp.concatenate([found[0], found[1:].max(0, initial=0.0), coverage, extra], axis=-1)


def _rows_under(first: Array, rest: Array) -> Array:
    """Both tables as one of the width of the wider one."""
    if first.ndim == 1 or first.shape[1] == rest.shape[1]:
        return jnp.concatenate([first, rest])
    width = max(first.shape[1], rest.shape[1])
    fill = -1 if first.dtype == jnp.int32 else 0
    wide = [jnp.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=fill) for x in (first, rest)]
    return jnp.concatenate(wide)


def _share(part: Array, of: Array) -> Array:
    return jnp.where(of > 0, part / jnp.maximum(of, _SHORTEST), 0.0)


def _unit(x: Float[Array, "... n"]) -> Float[Array, "... n"]:
    return x * jax.lax.rsqrt(jnp.maximum((x * x).sum(-1, keepdims=True), _SHORTEST**2))


def pool_positions(
    pool: PoolTable, taken: Int[Array, " taken"], ids: Int[Array, " candidates"], config: EnvConfig
) -> Float[Array, " candidates"]:
    """Positions of candidates relative to the taken chunks of their own documents; others do not count."""
    if config.positions != "relative":
        index = pool.index[ids]
        return index.astype(jnp.float32) if config.positions == "absolute" else jnp.zeros(ids.shape, jnp.float32)

    def one(id_: Array) -> Array:
        length = pool.length[id_]
        is_own = (taken >= 0) & (pool.document[taken] == pool.document[id_])
        own = jnp.sort(jnp.where(is_own, pool.index[taken], length))
        return relative_positions(pool.index[id_][None], own, length, config.delta, config.ell)[0]

    return jax.vmap(one)(ids)


def look(
    network: Network,
    params: PyTree,
    batch: PoolBatch,
    actions: Float[Array, "chunks dim"],
    taken: Int[Array, "batch steps"],
    step: Int[Array, ""],
    config: EnvConfig,
    at: Looked | None = None,
    extra: Int[Array, "batch extra"] | None = None,
) -> Looked:
    """Searches the pool in the present states.

    Args:
        actions: unrotated action vectors of all chunks.
        taken: ids of the chunks in the order of their picks, -1 behind them.
        step: number of picks so far.
        at: look at these candidates again, with other parameters; None searches.
        extra: chunks that are candidates in any case.
    """
    pool, pools = batch.pool, config.pool
    assert pools is not None

    def states_of(num_taken: int, taken: Array) -> Array:
        return network.states(params, batch.questions.rows, pool.rows, jnp.sort(taken[:, :num_taken], axis=1))

    # Of each number of chunks a state tower has its own shapes; the rest of a step is compiled once.
    states = jax.lax.switch(step, [partial(states_of, t) for t in range(config.num_steps)], taken)
    if at is None:
        free = free_chunks(pool, taken, pools.per_document)
        products = batch.questions.plain
        if products is None:
            products = jax.lax.stop_gradient(states) @ jax.lax.stop_gradient(actions).T
        ids, allowed = candidates(batch, products, taken, free, pools.nearest, extra)
        log_weights = jnp.zeros(ids.shape)
        if batch.drawn is not None:
            ids, allowed, log_weights = _with_drawn(batch.drawn, free, ids, allowed)
    else:
        ids, log_weights, allowed = at.ids, at.log_weights, at.allowed[:, : at.ids.shape[1]]
    safe, rotation = jnp.maximum(ids, 0), None
    if config.positions != "none":
        rho = jax.vmap(pool_positions, in_axes=(None, 0, 0, None))(pool, taken, safe, config)
        rotation = rotation_at(rho, config, network.num_rotated)
    linked = None if at is None else at.linked
    if config.links and linked is None:
        asked = batch.questions
        linked = jax.vmap(pool_links, in_axes=(None, 0, 0, 0, 0, 0))(
            pool, asked.texts, asked.rows.vectors, (asked.found, asked.scores), taken, safe
        )
    if batch.questions.plain is not None:
        assert linked is not None  # the config asks for links
        q = plain_q_values(params["links"], jnp.take_along_axis(batch.questions.plain, safe, axis=1), linked, step)
    else:
        q = q_of_states(params, states, actions[safe], None, taken, rotation, config, linked)
    if config.stop:
        allowed = jnp.concatenate([allowed, jnp.broadcast_to(step > 0, (len(taken), 1))], axis=1)
    return Looked(ids, allowed, states, q, log_weights, linked)


def plain_q_values(
    params: PyTree,
    plain: Float[Array, "batch candidates"],
    linked: Float[Array, "batch candidates inputs"],
    step: Int[Array, ""],
) -> Float[Array, "batch heads candidates"]:
    """Q with `PoolConfig.base="hybrid"`: plain search, and at every second step links that no question decides.

        Q(s, a) = plain(q, a) + [step is odd] * link_q_values(x(s, a)),   x without the links of the question alone

    So the best k of plain search are among the first 2k - 1 picks, whatever is learned.

    Args:
        params: of the links.
        plain: scores of plain search.
        linked: of `pool_links`.
        step: number of picks so far.
    """
    of_question = np.isin(np.arange(linked.shape[-1]), _OF_QUESTION)
    return plain[:, None] + jnp.where(step % 2 == 1, link_q_values(params, jnp.where(of_question, 0.0, linked)), 0.0)


def _with_drawn(
    drawn: Int[Array, " negatives"],
    free: Bool[Array, "batch chunks"],
    ids: Int[Array, "batch candidates"],
    allowed: Bool[Array, "batch candidates"],
) -> tuple[Array, Array, Array]:
    """The candidates and drawn chunks behind them, which represent the rest of the pool in a softmax."""
    left = (free.sum(1) - allowed.sum(1)).astype(jnp.float32)
    more = jnp.broadcast_to(drawn, (len(ids), len(drawn)))
    known = jnp.zeros(free.shape, bool).at[jnp.arange(len(ids))[:, None], jnp.maximum(ids, 0)].max(allowed)
    fresh = jnp.take_along_axis(free & ~known, more, axis=1)
    weight = jnp.log(jnp.maximum(left, 1.0) / jnp.maximum(fresh.sum(1), 1))
    log_weights = jnp.concatenate([jnp.zeros(ids.shape), jnp.broadcast_to(weight[:, None], more.shape)], axis=1)
    return jnp.concatenate([ids, more], axis=1), jnp.concatenate([allowed, fresh], axis=1), log_weights


def pool_rollout(
    network: Network,
    params: PyTree,
    batch: PoolBatch,
    key: Array,
    policy: Policy,
    config: EnvConfig,
    critic: PyTree | None = None,
    value: Value | None = None,
    with_gold: bool = False,
    num_best: int = 0,
) -> tuple[Rollout, Looked]:
    """Plays one episode for each question over the pool; arguments and result as of `env.rollout`.

    Actions of the rollout are chunk ids.

    Args:
        with_gold: the gold chunks are candidates even where the search misses them, for losses.

    Returns:
        The rollout, and the candidates of all steps.
    """
    keys = jax.vmap(lambda env: jax.random.fold_in(key, env))(batch.env)
    size, num_steps = len(batch.env), config.num_steps
    actions = network.actions(params, batch.pool.rows)
    critic_actions = None if critic is None else network.actions(critic, batch.pool.rows)
    gold_ids = _gold_ids(batch.gold) if with_gold else None

    def play(picks: Array, step: Array) -> tuple[Array, tuple[Any, ...]]:
        taken = picks[:, : num_steps - 1]  # of the last step at most
        seen = look(network, params, batch, actions, taken, step, config, extra=gold_ids)
        q, num = jax.lax.stop_gradient(seen.q).sum(1), seen.ids.shape[1]
        slot, log_prob = policy(jax.vmap(lambda own: jax.random.fold_in(own, step))(keys), q, seen.allowed)
        next_value = jnp.zeros(size)
        if critic_actions is not None and value is not None:
            there = look(network, critic, batch, critic_actions, taken, step, config, at=seen)
            next_value = value(there.q, seen.allowed)
        best = None
        if num_best:
            top_q, top = jax.lax.top_k(jnp.where(seen.allowed, q, -jnp.inf)[:, :num], min(num_best, num))
            best = jnp.take_along_axis(seen.ids, top, axis=1), top_q
        chosen_q, stops = jnp.take_along_axis(seen.q, slot[:, None, None], axis=2)[..., 0], slot == num
        stop_q = jnp.full_like(chosen_q, -jnp.inf)
        if config.stop:
            stop_q = jnp.where(seen.allowed[:, -1:], seen.q[..., -1], -jnp.inf)
        slot = jnp.where(stops, jnp.argmax(seen.allowed, axis=1).astype(jnp.int32), slot)
        action = jnp.take_along_axis(seen.ids, slot[:, None], axis=1)
        rho = jax.vmap(pool_positions, in_axes=(None, 0, 0, None))(batch.pool, taken, action, config)[:, 0]
        picks = jax.lax.dynamic_update_slice(picks, action, (0, step))
        return picks, (rho, chosen_q, stop_q, log_prob, stops, next_value, best, seen)

    none = jnp.full((size, num_steps), -1, jnp.int32)
    picks, (*columns, best, seen) = jax.lax.scan(play, none, jnp.arange(num_steps))
    positions, chosen, stop_q, log_probs, stops, values = (jnp.moveaxis(column, 0, 1) for column in columns)
    paid = jax.vmap(step_reward, in_axes=(0, 0, 0, None, 0))
    steps = [paid(batch.gold, picks[:, :t], picks[:, t], config, stops[:, t]) for t in range(num_steps)]
    rewards, continues = (jnp.stack(column, axis=1) for column in zip(*steps, strict=True))
    alive = jnp.cumprod(jnp.concatenate([jnp.ones((size, 1)), continues[:, :-1]], axis=1), axis=1)
    # The last step ends every episode, so the value of the state after it never counts.
    values = jax.lax.stop_gradient(jnp.concatenate([values[:, 1:], jnp.zeros((size, 1))], axis=1))
    played = Rollout(picks, positions, chosen, stop_q, log_probs, rewards * alive, stops, alive, continues, values)
    if best is not None:
        played = replace(played, best=jnp.moveaxis(best[0], 0, 1), best_q_values=jnp.moveaxis(best[1], 0, 1))
    return played, seen


_MOST_GOLD = 16


def _gold_ids(gold: Bool[Array, "batch chunks"]) -> Int[Array, "batch gold"]:
    found, ids = jax.lax.top_k(gold.astype(jnp.int32), min(_MOST_GOLD, gold.shape[1]))
    return jnp.where(found > 0, ids, -1).astype(jnp.int32)
