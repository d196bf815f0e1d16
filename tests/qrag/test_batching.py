import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.networks import DIM, NETWORKS, random_params, token_rows, vector_rows

from qrag_jax.models.towers.q_network import TokenRows
from qrag_jax.qrag.batching import Contexts, Packer, materialise, stretched_indices
from qrag_jax.qrag.env import Batch, EnvConfig, rollout
from qrag_jax.qrag.policy import make_greedy


def random_contexts(rng, batch=4, chunks=6, pool=9, shortest=3):
    """Contexts that share chunks with each other, padded on the right."""
    ids = np.stack([rng.permutation(pool)[:chunks] for _ in range(batch)]).astype(np.int32)
    lengths = rng.integers(shortest, chunks + 1, batch)
    lengths[0] = chunks
    valid = np.arange(chunks) < lengths[:, None]
    gold = (rng.random(ids.shape) < 0.3) & valid
    return Contexts(rng.integers(0, 5, batch).astype(np.int32), np.where(valid, ids, -1), gold)


def test_a_batch_by_hand():
    contexts = Contexts(
        np.array([2, 0], np.int32),
        np.array([[7, 3, 9], [9, 7, -1]], np.int32),
        np.array([[False, True, False], [True, False, True]]),
    )
    sample = Packer(multiple=4)(contexts, first_env=10)
    # Three distinct chunks, 3.3 -> 4 rows.
    assert sample.distinct.tolist() == [3, 7, 9, -1]
    assert sample.chunks[0].tolist() == [1, 0, 2]
    assert sample.chunks[1, :2].tolist() == [2, 1]
    assert sample.questions.tolist() == [2, 0]
    assert sample.indices.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert sample.lengths.tolist() == [3, 2]
    assert sample.valid.tolist() == [[True] * 3, [True, True, False]]
    assert sample.gold.tolist() == [[False, True, False], [True, False, False]]  # padding is never gold
    assert sample.env.tolist() == [10, 11]
    for name in ("distinct", "questions", "chunks", "indices", "lengths", "env"):
        assert getattr(sample, name).dtype == np.int32, name


@given(st.integers(0, 1000))
def test_chunks_map_back_to_the_same_texts(seed):
    contexts = random_contexts(np.random.default_rng(seed))
    sample = Packer(multiple=4)(contexts)
    valid = contexts.chunks >= 0
    np.testing.assert_array_equal(sample.distinct[sample.chunks][valid], contexts.chunks[valid])
    used = np.unique(contexts.chunks[valid])
    assert sample.distinct[: len(used)].tolist() == used.tolist()  # every distinct chunk once
    assert (sample.distinct[len(used) :] == -1).all()
    # Padding points at a chunk of its own context: nothing else has to be embedded for it.
    for row, own in zip(sample.distinct[sample.chunks], contexts.chunks, strict=True):
        assert set(row.tolist()) <= set(own[own >= 0].tolist())


def test_shapes_stay_and_only_grow():
    packer = Packer(multiple=4)

    def rows(num_distinct):
        ids = np.arange(num_distinct, dtype=np.int32)[None]
        return len(packer(Contexts(np.zeros(1, np.int32), ids, ids == 0)).distinct)

    assert rows(10) == 12  # 11 with a tenth of reserve, rounded up to 12
    assert [rows(n) for n in (12, 1, 5)] == [12, 12, 12]
    assert rows(13) == 20  # a half more than 12, rounded up to 20
    assert rows(10) == 20
    assert rows(40) == 44
    assert packer.capacity == 44


def test_batches_of_very_uneven_size_have_few_shapes():
    """Log-normal sizes that creep up: what a tenth at a time would answer with a shape each."""
    sizes = np.sort(np.random.default_rng(0).lognormal(7, 0.4, 300).astype(int))

    def document(size):
        return np.arange(size, dtype=np.int32)[None]

    shapes, capacity = 1, 1.1 * sizes[0]
    while capacity < sizes[-1]:
        shapes, capacity = shapes + 1, 1.5 * capacity
    packer = Packer()
    seen = {len(packer(Contexts(np.zeros(1, np.int32), i, i == 0)).distinct) for i in map(document, sizes)}
    assert len(seen) <= shapes <= 7


def test_batches_of_one_task_have_one_shape():
    packer, rng = Packer(), np.random.default_rng(0)
    shapes = {
        tuple(jax.tree.leaves(jax.tree.map(np.shape, packer(random_contexts(rng, pool=40, batch=8)))))
        for _ in range(20)
    }
    assert len(shapes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["latent", "text"])
def test_a_packed_batch_has_the_q_values_of_the_naive_one(kind):
    """The naive batch embeds every chunk of every context for itself."""
    rng = np.random.default_rng(1)
    pool, asked = (
        (token_rows(rng, 9, 6), token_rows(rng, 5, 5)) if kind == "text" else (vector_rows(rng, 9), vector_rows(rng, 5))
    )
    contexts = random_contexts(rng)
    indices, lengths = stretched_indices(rng, contexts.chunks >= 0, 3.0)
    packed = jax.jit(materialise)(pool, asked, Packer(multiple=4)(contexts, indices, lengths))
    size, num_chunks = contexts.chunks.shape
    naive = Batch(
        table=pool.take(jnp.maximum(contexts.chunks, 0).reshape(-1)),
        questions=asked.take(jnp.asarray(contexts.questions)),
        chunks=np.arange(size * num_chunks, dtype=np.int32).reshape(size, num_chunks),
        indices=indices,
        lengths=lengths,
        valid=contexts.chunks >= 0,
        gold=contexts.gold,
        env=np.arange(size, dtype=np.int32),
    )
    assert len(jax.tree.leaves(packed.table)[0]) <= 12 < size * num_chunks
    network = NETWORKS[kind]()
    params = random_params(network)
    play = jax.jit(lambda batch: rollout(network, params, batch, jax.random.key(0), make_greedy(), EnvConfig()))
    found, expected = play(packed), play(naive)
    np.testing.assert_array_equal(found.actions, expected.actions)
    np.testing.assert_allclose(found.q_values, expected.q_values, atol=1e-5)
    np.testing.assert_allclose(found.positions, expected.positions, atol=1e-6)
    assert network.dim == DIM


# --- positions of longer documents


@given(st.integers(0, 10_000), st.floats(1, 64), st.integers(1, 6))
def test_stretched_indices_are_places_in_a_document(seed, stretch, shortest):
    rng = np.random.default_rng(seed)
    num_chunks = rng.integers(shortest, 7, 5)
    valid = np.arange(6) < num_chunks[:, None]
    indices, lengths = stretched_indices(rng, valid, stretch)
    assert indices.dtype == lengths.dtype == np.int32
    assert (lengths >= num_chunks).all() and (lengths <= stretch * num_chunks).all()
    assert (np.diff(indices, axis=1) > 0).all()  # distinct, in document order
    assert (indices >= 0).all()
    assert (indices[valid] < np.broadcast_to(lengths[:, None], valid.shape)[valid]).all()
    assert (indices[~valid] >= np.broadcast_to(lengths[:, None], valid.shape)[~valid]).all()


def test_a_stretch_of_1_leaves_every_chunk_at_its_place():
    valid = np.arange(5) < np.array([[5], [3]])
    indices, lengths = stretched_indices(np.random.default_rng(0), valid, 1.0)
    assert lengths.tolist() == [5, 3]
    assert indices[0].tolist() == [0, 1, 2, 3, 4]
    assert indices[1, :3].tolist() == [0, 1, 2]


def test_document_lengths_are_log_uniform_and_chunks_anywhere():
    indices, lengths = stretched_indices(np.random.default_rng(0), np.ones((4000, 20), bool), 16.0)
    shares = np.log(lengths / 20) / np.log(16)
    np.testing.assert_allclose(np.quantile(shares, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.05)
    places = (indices + 0.5) / lengths[:, None]
    np.testing.assert_allclose(places.mean(0), (np.arange(20) + 0.5) / 20, atol=0.03)


def test_same_generator_same_places():
    one, again = (stretched_indices(np.random.default_rng(7), np.ones((3, 4), bool), 5.0) for _ in range(2))
    np.testing.assert_array_equal(one[0], again[0])
    np.testing.assert_array_equal(one[1], again[1])


def test_rows_that_only_fill_up_a_table_hold_no_token():
    """They are encoded with the shortest rows, in place of copies of some text at its full length."""
    pool = TokenRows(jnp.arange(12).reshape(3, 4), jnp.array([4, 2, 3]))
    table = pool.take(jnp.array([2, 0, -1]))
    assert table.lengths.tolist() == [3, 4, 0]
    assert table.tokens[:2].tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]


def test_parts_of_a_batch_are_what_they_are_alone():
    """One capacity for all, the larger one of a later part; environments keep their global numbers."""
    ids = np.array([[0, 1], [1, 0], [2, 3], [4, 5]], np.int32)
    contexts = Contexts(np.arange(4, dtype=np.int32), ids, ids % 2 == 0)
    indices, lengths = np.arange(8).reshape(4, 2), np.array([9, 8, 7, 6])
    stacked = Packer(multiple=1).stack(contexts, indices, lengths, 2)
    assert stacked.distinct.shape == (2, 4) and stacked.distinct[0].tolist() == [0, 1, -1, -1]
    assert stacked.env.tolist() == [[0, 1], [2, 3]]
    packer = Packer(multiple=1, capacity=4)
    for i, part in enumerate((slice(0, 2), slice(2, 4))):
        cut = Contexts(contexts.questions[part], ids[part], contexts.gold[part])
        alone = packer(cut, indices[part], lengths[part], first_env=2 * i)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), stacked, alone)
