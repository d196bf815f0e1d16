"""Episodes over one pool of many documents: each step searches all of it and weighs the candidates that it finds.

Candidates of a step are the chunks nearest to the state by the unrotated product, those that the question finds by
words, and those that the question or a taken chunk leads to by names. A chunk that was taken is masked before any of
these lists is cut, so it never returns. Q of a candidate is exact: its true position and its links to the question and
to the taken chunks.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt

from qrag_jax.models.towers.positions import relative_positions
from qrag_jax.models.towers.q_network import AnyArray, Network, PyTree
from qrag_jax.qrag.env import EnvConfig, Policy, Rollout, Value, q_of_states, rotation_of, step_reward
from qrag_jax.qrag.pool_tables import IN_NAME, IN_TITLE, AskedRows, PoolTable, Texts

_TEXT = 4  # flag of a word of a source: it is in its text
_NEW = 8  # ... in a name that the question lacks
_SHORTEST = 1e-6


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
    """The candidates of a step: ids int32 [batch, candidates] (a repeated or missing one is not allowed), allowed bool
    [batch, actions], states [batch, dim], Q [batch, heads, actions], log weights [batch, candidates] and links."""

    ids: jax.Array
    allowed: jax.Array
    states: jax.Array
    q: jax.Array
    log_weights: jax.Array
    linked: jax.Array | None


def free_chunks(
    pool: PoolTable, taken: Int[Array, "batch taken"], per_document: int | None
) -> Bool[Array, "batch chunks"]:
    """False for chunks that are taken, or of documents whose quota is."""
    size, num_chunks = taken.shape[0], pool.document.shape[0]
    rows = jnp.arange(size)[:, None]
    free = jnp.ones((size, num_chunks), bool).at[rows, taken].set(False)
    if per_document is None or not taken.shape[1]:
        return free
    used = jnp.zeros((size, num_chunks), jnp.int32).at[rows, pool.document[taken]].add(1)
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
    lists += [table[taken].reshape(size, -1) for table in (pool.texts.named, pool.namers, pool.kin)]
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
    """What Q reads of each candidate in one state: links of the question, the largest of the taken chunks, coverage of
    both together (`text_links.LINKS`, `COVERAGE`), and `POOL`.

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
    untold = has[0] & ~has[1:].any(0)
    covered = jnp.stack([has.any(0), untold, pool.shared[at] | has[0]])
    mass = jnp.stack([own.mass[:, 0], jnp.full(len(ids), question.mass[0]), own.mass[:, 0]], axis=-1)
    coverage = _share(jnp.einsum("kcw,cw->ck", covered.astype(weight.dtype), weight), mass)
    centred = _unit(pool.rows.vectors[ids] - pool.mean)
    cosines = centred @ _unit(jnp.concatenate([vector[None], pool.rows.vectors[taken]]) - pool.mean).T
    by_words = jnp.where(ids[:, None] == lexical[0][None], lexical[1][None], 0.0).max(1)
    extra = jnp.stack([cosines[:, 0], cosines[:, 1:].max(1, initial=0.0), by_words], axis=-1)
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
        own = jnp.sort(jnp.where(pool.document[taken] == pool.document[id_], pool.index[taken], length))
        return relative_positions(pool.index[id_][None], own, length, config.delta, config.ell)[0]

    return jax.vmap(one)(ids)


def look(
    network: Network,
    params: PyTree,
    batch: PoolBatch,
    actions: Float[Array, "chunks dim"],
    taken: Int[Array, "batch taken"],
    config: EnvConfig,
    at: Looked | None = None,
    extra: Int[Array, "batch extra"] | None = None,
) -> Looked:
    """Searches the pool in the present states.

    Args:
        actions: unrotated action vectors of all chunks.
        taken: ids of the chunks in the states, ascending.
        at: look at these candidates again, with other parameters; None searches.
        extra: chunks that are candidates in any case.
    """
    pool = batch.pool
    states = network.states(params, batch.questions.rows, pool.rows, taken)
    if at is None:
        free = free_chunks(pool, taken, config.pool.per_document)
        products = jax.lax.stop_gradient(states) @ jax.lax.stop_gradient(actions).T
        ids, allowed = candidates(batch, products, taken, free, config.pool.nearest, extra)
        left = jnp.maximum(free.sum(1) - allowed.sum(1), 0).astype(jnp.float32)
        log_weights = jnp.zeros(ids.shape)
        if batch.drawn is not None:
            ids, allowed, log_weights = _with_drawn(batch.drawn, free, left, ids, allowed)
    else:
        ids, log_weights = at.ids, at.log_weights
        allowed = at.allowed[:, : ids.shape[1]]
    safe = jnp.maximum(ids, 0)
    rho = jax.vmap(pool_positions, in_axes=(None, 0, 0, None))(pool, taken, safe, config)
    rotation = None if config.positions == "none" else rotation_of(rho, config, network.num_rotated)
    linked = None if at is None else at.linked
    if config.links and linked is None:
        asked = batch.questions
        linked = jax.vmap(pool_links, in_axes=(None, 0, 0, 0, 0, 0))(
            pool, asked.texts, asked.rows.vectors, (asked.found, asked.scores), taken, safe
        )
    q = q_of_states(params, states, actions[safe], None, taken, rotation, config, linked)
    if config.stop:
        allowed = jnp.concatenate([allowed, jnp.full((len(taken), 1), taken.shape[1] > 0)], axis=1)
    return Looked(ids, allowed, states, q, log_weights, linked)


def _with_drawn(
    drawn: Int[Array, " negatives"],
    free: Bool[Array, "batch chunks"],
    left: Float[Array, " batch"],
    ids: Int[Array, "batch candidates"],
    allowed: Bool[Array, "batch candidates"],
) -> tuple[Array, Array, Array]:
    """The candidates and drawn chunks behind them, which represent all `left` chunks of the pool in a softmax."""
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
) -> tuple[Rollout, list[Looked]]:
    """Plays one episode for each question over the pool; arguments and result as of `env.rollout`.

    Actions of the rollout are chunk ids.

    Args:
        with_gold: the gold chunks are candidates even where the search misses them, for losses.

    Returns:
        The rollout, and the candidates of each step.
    """
    keys = jax.vmap(lambda env: jax.random.fold_in(key, env))(batch.env)
    size = len(batch.env)
    actions = network.actions(params, batch.pool.rows)
    critic_actions = None if critic is None else network.actions(critic, batch.pool.rows)
    gold_ids = _gold_ids(batch.gold) if with_gold else None
    taken = jnp.zeros((size, 0), jnp.int32)
    steps, values, best, looked = [], [], [], []
    for t in range(config.num_steps):
        seen = look(network, params, batch, actions, taken, config, extra=gold_ids)
        looked.append(seen)
        step_keys = jax.vmap(lambda k, t=t: jax.random.fold_in(k, t))(keys)
        q = jax.lax.stop_gradient(seen.q).sum(1)
        slot, log_prob = policy(step_keys, q, seen.allowed)
        num = seen.ids.shape[1]
        if num_best:
            top_q, top = jax.lax.top_k(jnp.where(seen.allowed, q, -jnp.inf)[:, :num], min(num_best, num))
            best.append((top_q, jnp.take_along_axis(seen.ids, top, axis=1)))
        if critic is not None and value is not None and t > 0:
            there = look(network, critic, batch, critic_actions, taken, config, at=seen)
            values.append(value(there.q, seen.allowed))
        chosen_q = jnp.take_along_axis(seen.q, slot[:, None, None], axis=2)[..., 0]
        stops = slot == num
        stop_q = jnp.full_like(chosen_q, -jnp.inf)
        if config.stop:
            stop_q = jnp.where(seen.allowed[:, -1:], seen.q[..., -1], -jnp.inf)
        slot = jnp.where(stops, jnp.argmax(seen.allowed, axis=1).astype(jnp.int32), slot)
        action = jnp.take_along_axis(seen.ids, slot[:, None], axis=1)[:, 0]
        reward, continues = jax.vmap(step_reward, in_axes=(0, 0, 0, None, 0))(batch.gold, taken, action, config, stops)
        rho = jax.vmap(pool_positions, in_axes=(None, 0, 0, None))(batch.pool, taken, action[:, None], config)[:, 0]
        steps.append((action, rho, chosen_q, stop_q, log_prob, reward, stops, continues))
        taken = jnp.sort(jnp.concatenate([taken, action[:, None]], axis=1), axis=1)
    values.append(jnp.zeros(size))
    if critic is None:
        values = [jnp.zeros(size)] * config.num_steps
    columns = [jnp.stack(column, axis=1) for column in zip(*steps, strict=True)]
    actions_, positions, chosen, stop_q, log_probs, rewards, stops, continues = columns
    alive = jnp.cumprod(jnp.concatenate([jnp.ones((size, 1)), continues[:, :-1]], axis=1), axis=1)
    next_values = jax.lax.stop_gradient(jnp.stack(values, axis=1))
    played = Rollout(
        actions_, positions, chosen, stop_q, log_probs, rewards * alive, stops, alive, continues, next_values
    )
    if best:
        best_q, best_ids = (jnp.stack(column, axis=1) for column in zip(*best, strict=True))
        played = played.replace(best=best_ids, best_q_values=best_q)
    return played, looked


_MOST_GOLD = 16


def _gold_ids(gold: Bool[Array, "batch chunks"]) -> Int[Array, "batch gold"]:
    found, ids = jax.lax.top_k(gold.astype(jnp.int32), min(_MOST_GOLD, gold.shape[1]))
    return jnp.where(found > 0, ids, -1).astype(jnp.int32)
