import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.train.optimise import ScheduleConfig, make_schedule
from qrag_jax.types import UsageError

pytestmark = pytest.mark.usefixtures("strict_promotion")


def values(config, num_updates, steps):
    schedule = make_schedule(config, num_updates)
    return [float(schedule(jnp.int32(step))) for step in steps]


def test_linear_by_hand():
    found = values(ScheduleConfig(1.0, 0.2), 8, [0, 2, 4, 8, 20])
    np.testing.assert_allclose(found, [1.0, 0.8, 0.6, 0.2, 0.2], rtol=1e-6)


def test_cosine_by_hand():
    found = values(ScheduleConfig(1.0, 0.0, "cosine"), 4, [0, 1, 2, 3, 4])
    half = math.sqrt(0.5)
    np.testing.assert_allclose(found, [1, (1 + half) / 2, 0.5, (1 - half) / 2, 0], atol=1e-6)


def test_exponential_by_hand():
    found = values(ScheduleConfig(1.0, 0.01, "exponential"), 4, [0, 1, 2, 4, 9])
    np.testing.assert_allclose(found, [1, 10**-0.5, 0.1, 0.01, 0.01], rtol=1e-5)


def test_warm_up_by_hand():
    # 4 of 10 updates rise to 1: the first one already moves; the decay takes the other 6.
    found = values(ScheduleConfig(1.0, 0.0, warmup=0.4), 10, range(11))
    expected = [0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_warm_up_that_ends_between_two_updates_does_not_overshoot():
    # 2.4 updates of warm-up: 1/2.4, 2/2.4, and then 1, not 3/2.4.
    found = values(ScheduleConfig(1.0, 1.0, warmup=0.24), 10, range(4))
    np.testing.assert_allclose(found, [1 / 2.4, 2 / 2.4, 1, 1], rtol=1e-6)


def test_until_ends_the_decay_early():
    found = values(ScheduleConfig(1.0, 0.5, until=0.5), 8, [0, 2, 4, 7])
    np.testing.assert_allclose(found, [1.0, 0.75, 0.5, 0.5], rtol=1e-6)


@given(
    st.sampled_from(["linear", "cosine", "exponential"]),
    st.integers(1, 200),
    st.floats(0, 0.9),
    st.floats(0.91, 1),
    st.floats(1e-3, 1),
    st.floats(1e-3, 1),
)
def test_a_schedule_never_leaves_its_range(kind, num_updates, warmup, until, start, end):
    """Also when the warm-up ends between two updates."""
    schedule = make_schedule(ScheduleConfig(start, end, kind, warmup, until), num_updates)
    found = np.asarray(schedule(jnp.arange(202, dtype=jnp.int32)))  # one shape, compiled once
    assert (found > 0).all() and (found <= max(start, end) * (1 + 1e-5)).all()
    rising, falling = found[: math.ceil(warmup * num_updates)], found[math.ceil(warmup * num_updates) :]
    assert (np.diff(rising) >= 0).all()
    assert (np.diff(falling) * np.sign(end - start) >= -1e-6).all()
    assert found[-1] == pytest.approx(end, rel=1e-5)


def test_a_schedule_is_traced_without_recompilation():
    schedule = jax.jit(make_schedule(ScheduleConfig(1.0, 0.0, "cosine", 0.2), 10))
    found = [float(schedule(jnp.int32(step))) for step in range(11)]
    np.testing.assert_allclose(found, values(ScheduleConfig(1.0, 0.0, "cosine", 0.2), 10, range(11)), rtol=1e-6)
    assert schedule._cache_size() == 1


@pytest.mark.parametrize(
    ("warmup", "until", "message"),
    [
        (0.5, 0.5, r"until 0.5: must lie in \(0.5, 1\]"),
        (0.5, 0.2, r"until 0.2: must lie in \(0.5, 1\]"),
        (0.0, 1.1, r"until 1.1: must lie in \(0.0, 1\]"),
    ],
)
def test_shares_out_of_order_are_refused(warmup, until, message):
    with pytest.raises(UsageError, match=message):
        ScheduleConfig(1.0, 0.0, warmup=warmup, until=until)


@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (1.0, 0.0), (-1.0, -2.0)])
def test_an_exponential_schedule_that_touches_0_is_refused(start, end):
    with pytest.raises(UsageError, match=f"needs start and end above 0, got start={start} and end={end}"):
        ScheduleConfig(start, end, "exponential")
