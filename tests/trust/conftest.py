"""The tests of docs/reliability.md: their mark, and the figures that `make trust` writes into that page."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is of `trust`, and slow: its size is the tier's."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.trust)
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture
def figures() -> Callable[[int, str, int, str], None]:
    """`figures(number, what, cases, outcome)`: a row of the page, where TRUST_FIGURES names a file.

    Args of the function: number, of the test, 1 to 14; what, which part of it; cases, how many were tried; outcome,
    what came of them, with numbers that were counted. A test asserts its goal before it writes a row.
    """
    start = time.perf_counter()

    def write(number: int, what: str, cases: int, outcome: str) -> None:
        path = os.environ.get("TRUST_FIGURES")
        if path:
            row = {"test": number, "what": what, "cases": cases, "outcome": outcome}
            line = json.dumps(row | {"seconds": round(time.perf_counter() - start, 1)}) + "\n"
            with open(path, "a", encoding="utf-8") as file:  # one write a row: workers share the file
                file.write(line)

    return write
