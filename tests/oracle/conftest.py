"""What tests with an oracle share."""

import jax
import pytest


@pytest.fixture(scope="module")
def quick_compilation():
    """Programs that run once are compiled with little optimisation, also where the run's flags ask for all of it."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
