import importlib.util
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from itertools import product as combinations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import np_jit

import qrag_jax.models.blocks
from qrag_jax.models.blocks import matrix as blocks
from qrag_jax.models.blocks.matrix import (
    LANES,
    Rows,
    block_matrix,
    columns,
    concatenated,
    dequantised,
    product,
    quantise,
    same_form,
)
from qrag_jax.types import InputError, UsageError

# Bits of a code, inputs of a group, whether there are mins.
FORMS = list(combinations((4, 8), (16, 32), (True, False)))
# Rows are taken 8 (6 on AVX) and 4 at once, and 64 with a tile.
ROWS = (1, 2, 3, 5, 8, 9, 13, 17, 64, 65, 130)


def random_rows(bits, group, has_mins, num_out=70, num_in=96, seed=0):
    """Rows of codes and scales, and their numbers [num_in, num_out] in float64."""
    rng = np.random.default_rng(seed)
    least, most = (0, 16) if bits == 4 else (-128, 128)
    codes = rng.integers(least, most, (num_out, num_in)).astype(np.uint8 if bits == 4 else np.int8)
    scales = rng.normal(0, 0.1, (num_out, num_in // group)).astype(np.float16)
    mins = rng.normal(0, 0.5, scales.shape).astype(np.float16) if has_mins else None
    numbers = codes.reshape(num_out, -1, group) * scales[..., None].astype(np.float64)
    if mins is not None:
        numbers += mins[..., None]
    return Rows(codes, scales, mins), numbers.reshape(num_out, num_in).T


def random_matrix(bits=8, group=32, has_mins=True, num_out=70, **sizes):
    rows, numbers = random_rows(bits, group, has_mins, num_out, **sizes)
    return jax.tree.map(jnp.asarray, block_matrix([rows], num_out, bits=bits)), numbers


def random_inputs(count, num_in=96, seed=1):
    return np.random.default_rng(seed).normal(size=(count, num_in)).astype(np.float32)


def assert_near(found, expected):
    """Sums of float32 in another order: the error is that of the largest products."""
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6 * np.abs(expected).max())


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["compiled", "plain"])
def compiled(request, monkeypatch):
    """With the kernels and as where Numba is absent."""
    if not request.param:
        monkeypatch.setattr(blocks, "is_compiled", lambda: False)
    elif not blocks.is_compiled():
        pytest.skip("needs Numba (extra cpu)")
    return request.param


def test_a_matrix_by_hand(compiled):
    """Two outputs of 32 inputs in groups of 16: numbers 2 code + 1 and -code, then 0.5 code and code + 8."""
    codes = np.zeros((2, 32), np.uint8)
    codes[0, :3], codes[0, 16:18] = (1, 2, 15), (4, 6)
    codes[1, 0], codes[1, 31] = 3, 7
    matrix = block_matrix([Rows(codes, np.array([[2, 0.5], [-1, 1]]), np.array([[1, 0], [0, 8]]))], 2, bits=4)
    assert matrix.is_packed and matrix.shape == (32, 2) and matrix.group == 16
    # In a group of 16, byte i holds inputs i and i + 8.
    assert matrix.codes.shape == (1, 16, LANES) and matrix.codes[0, 7 + 8, 1] == 7 << 4
    assert matrix.num_bytes == LANES * (16 + 4 + 4)
    expected = np.zeros((32, 2))
    expected[:16, 0], expected[16:, 1] = 1, 8
    expected[:3, 0], expected[16:18, 0], expected[0, 1], expected[31, 1] = (3, 5, 31), (2, 3), -3, 15
    np.testing.assert_array_equal(np_jit(dequantised)(matrix), expected)
    row = np.zeros(32, np.float32)
    row[[0, 2, 16, 31]] = 1, 10, 100, 1000
    # 3 + 310 + 200 + 0, and -3 + 0 + 800 + 15000
    assert np_jit(product)(row, matrix).tolist() == [513, 15797]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_products_are_those_of_the_numbers(form, compiled):
    """Also several in one program, and outputs that fill no tile."""
    matrix, numbers = random_matrix(*form)
    np.testing.assert_allclose(np_jit(dequantised)(matrix), numbers, rtol=1e-6, atol=1e-6)
    inputs = [random_inputs(count) for count in ROWS]
    found = np_jit(lambda inputs, matrix: [product(rows, matrix) for rows in inputs])(inputs, matrix)
    for rows, made in zip(inputs, found, strict=True):
        assert made.shape == (len(rows), 70) and made.dtype == jnp.float32
        assert_near(made, rows @ numbers)


def test_axes_before_the_last_stay(compiled):
    (matrix, numbers), multiply = random_matrix(4), np_jit(product)
    rows = random_inputs(6).reshape(3, 2, 96)
    assert_near(multiply(rows, matrix), rows @ numbers)
    assert multiply(np.zeros((0, 96), np.float32), matrix).shape == (0, 70)
    halves = rows.astype(jnp.bfloat16)
    found = multiply(halves, matrix)
    assert found.dtype == np.float32
    assert_near(found, np.asarray(halves, np.float64) @ numbers)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_accelerators_get_a_plain_product(platform):
    """Also where Numba is there for the processor beside them."""
    matrix, _ = random_matrix()
    for count in (1, 40):
        traced = jax.jit(product).trace(np.zeros((count, 96), np.float32), matrix)
        lowered = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "dot_general" in lowered and "qrag_jax_block" not in lowered


def test_a_loop_of_products(compiled):
    """As decoding does: each product reads what the one before it wrote."""
    matrix, numbers = random_matrix(num_out=96)

    @np_jit
    def run(row, matrix):
        return jax.lax.fori_loop(0, 5, lambda _, row: product(jnp.tanh(row), matrix), row)

    expected = row = random_inputs(1)
    for _ in range(5):
        expected = np.tanh(expected) @ numbers
    np.testing.assert_allclose(run(jnp.asarray(row), matrix), expected, rtol=1e-4, atol=1e-3)


def test_several_threads_multiply_at_once():
    """More tiles than threads, and a pool that is busy with others' jobs: nothing waits for ever or is mixed up."""
    forms = [(4, 32, True), (8, 16, False)]
    matrices = [random_matrix(*form, num_out=1000, seed=i) for i, form in enumerate(forms)]
    run = np_jit(lambda rows, matrix: product(rows, matrix))

    def work(seed):
        rows, (matrix, numbers) = random_inputs((1, 4, 30)[seed % 3], seed=seed), matrices[seed % 2]
        first = run(rows, matrix)
        assert_near(first, rows @ numbers)
        return all((run(rows, matrix) == first).all() for _ in range(10))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(12)))


@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_that_are_not_finite_do_not_vanish(bits, compiled):
    """What is not finite in the product of the numbers is not finite: infinity may come out as NaN, its own codes' sums
    being of both signs. Other rows are as they would be."""
    (matrix, numbers), multiply = random_matrix(bits), np_jit(product)
    for count in (1, 4, 25):
        rows = random_inputs(count)
        rows[0, 3] = np.nan
        assert np.isnan(multiply(rows, matrix)[0]).all()
        rows[0, 3] = np.inf
        found = multiply(rows, matrix)
        assert not np.isfinite(found[0]).any()
        assert_near(found[1:], rows[1:] @ numbers) if count > 1 else None


def test_columns_are_rows_of_the_table():
    for form in ((4, 16, True), (8, 32, False)):
        matrix, numbers = random_matrix(*form)
        ids = np.array([[0, 63, 64], [69, 1, 0]], np.int32)
        found = np_jit(columns)(matrix, ids)
        assert found.shape == (2, 3, 96)
        np.testing.assert_allclose(found, numbers.T[ids], rtol=1e-6, atol=1e-6)


def test_parts_are_one_matrix():
    rows, _ = random_rows(4, 32, True, num_out=150)
    parts = [Rows(*(each[start : start + LANES] for each in rows)) for start in (0, 64, 128)]
    chex.assert_trees_all_equal(block_matrix(parts, 150, bits=4), block_matrix([rows], 150, bits=4))


def test_matrices_of_one_form_become_one():
    (first, some), (second, others) = (random_matrix(num_out=count, seed=count) for count in (64, 128))
    assert same_form([first, second])
    for made in (np_jit(concatenated)([first, second]), concatenated(jax.tree.map(np.asarray, [first, second]))):
        assert made.num_out == 192
        np.testing.assert_allclose(
            np_jit(dequantised)(made), np.concatenate([some, others], axis=1), rtol=1e-6, atol=1e-6
        )
    others = {
        "bits": random_matrix(4, num_out=64),
        "group": random_matrix(group=16, num_out=64),
        "mins": random_matrix(has_mins=False, num_out=64),
        "inputs": random_matrix(num_out=64, num_in=64),
        "half a tile": random_matrix(num_out=70),
    }
    for other, _ in others.values():
        assert not same_form([first, other])
    assert not same_form([first, np.zeros((96, 64))])


def test_the_nearest_rows_by_hand():
    rows = np.zeros((1, 64), np.float32)
    rows[0, :3] = 254, -127, 1.2  # a scale of 2: codes 127, -63.5 (to even), 0.6
    found = quantise(rows)
    assert found.codes[0, :3].tolist() == [127, -64, 1] and found.scales.tolist() == [[2, 0]] and found.mins is None
    assert not found.codes[0, 3:].any()


@pytest.mark.parametrize("size", [1e6, 1.0, 0.01, 1e-4, 3e-6, 1e-7])
def test_rows_are_near_by_half_a_scale(size):
    """Down to groups so small that float16 has few scales left for them."""
    rows = (size * np.random.default_rng(0).normal(size=(3, 128))).astype(np.float32)
    codes, scales, _ = quantise(rows)
    numbers = codes.reshape(3, 4, 32) * scales[..., None].astype(np.float64)
    error = np.abs(numbers - rows.reshape(3, 4, 32)).max(axis=2)
    assert (error <= 0.5001 * scales.astype(np.float64)).all()
    # What was made of codes is found again.
    again = quantise(numbers.reshape(3, 128).astype(np.float32))
    np.testing.assert_allclose(
        again.codes.reshape(3, 4, 32) * again.scales[..., None].astype(np.float64), numbers, atol=size * 1e-5
    )


def test_what_kernels_would_read_wrongly_is_refused():
    if not blocks.is_compiled():
        pytest.skip("needs Numba (extra cpu)")
    matrix, _ = random_matrix()
    wrong = {
        "float32": jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf).astype(np.float32)), matrix),
        r"bfloat16\[2, 3, 64\]": matrix.replace(scales=matrix.scales.astype(jnp.bfloat16)),
        r"float16\[1, 3, 64\]": matrix.replace(mins=matrix.mins[:1]),
        r"float16\[2, 1, 64\]": matrix.replace(scales=matrix.scales[:, :1], mins=None),  # groups of 96
        r"int8\[2, 96, 32\]": jax.tree.map(lambda leaf: leaf[..., :32], matrix),
    }
    for message, each in wrong.items():
        with pytest.raises(UsageError, match=f"a block matrix of .*{message}.*: codes must be int8 or uint8"):
            product(jnp.asarray(np.zeros((1, 96), np.float32)), each)


def test_kernels_say_which_interface_they_know():
    """Asked by a caller of interface 7.3, whose structs may be others, they name 0.3, which it refuses."""
    if not blocks.is_compiled():
        pytest.skip("needs Numba (extra cpu)")
    from qrag_jax.models.blocks import kernels

    api, metadata = np.zeros(5, np.int64), np.zeros(6, np.int64)
    api[4] = (3 << 32) | 7
    extension = np.array([32, 1, 0, metadata.ctypes.data], np.int64)
    frame = np.zeros(15, np.int64)
    frame[1], frame[2] = extension.ctypes.data, api.ctypes.data
    assert kernels.multiply.ctypes(frame.ctypes.data) == 0
    assert metadata.tolist() == [0, 0, 0, 3 << 32, 0, 0]
    assert kernels.LANES == LANES


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs Numba (extra cpu)")
def test_numba_that_cannot_be_used_is_named(monkeypatch):
    """It is not passed over: answers would take many times as long, and nobody knew why."""
    name = "qrag_jax.models.blocks.kernels"
    monkeypatch.delattr(qrag_jax.models.blocks, "kernels", raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"Numba is installed and cannot be used: .*{name}.*; install one that fits"):
        blocks.is_compiled.__wrapped__()

    class Damaged(types.ModuleType):
        def __getattr__(self, name):
            raise EOFError("Ran out of input")

    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "qrag_jax.models.blocks", Damaged("blocks"))
    with pytest.raises(
        InputError, match=r"damaged \(Ran out of input\): remove .*blocks/__pycache__/kernels\.\*\.nb\*"
    ):
        blocks.is_compiled.__wrapped__()


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs Numba (extra cpu)")
def test_a_processor_that_converts_no_float16_gets_plain_products(monkeypatch):
    from numba.core.registry import cpu_target

    codegen = types.SimpleNamespace(magic_tuple=lambda: ("x86_64-unknown-linux-gnu", "generic", "+avx,-f16c"))
    context = types.SimpleNamespace(codegen=lambda: codegen)
    monkeypatch.setattr(type(cpu_target), "target_context", context)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert not blocks.is_compiled.__wrapped__()
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert blocks._converts_halves()
