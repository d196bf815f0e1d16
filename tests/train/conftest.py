"""What tests of training share."""

import chex
import pytest


@pytest.fixture(autouse=True)
def own_traces():
    """chex counts traces over the whole process."""
    chex.clear_trace_counter()
