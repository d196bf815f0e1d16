"""Limits of the numbers in a config: far beyond any model, and small enough to work with."""

from collections.abc import Mapping

MAX_SIZES: Mapping[str, int] = {
    "num_layers": 10_000,
    "num_heads": 100_000,
    "num_kv_heads": 100_000,
    "head_dim": 100_000,
    "hidden_size": 10_000_000,
    "intermediate_size": 10_000_000,
    "vocab_size": 100_000_000,
    "type_vocab_size": 100_000_000,
    "padding_id": 100_000_000,
    "max_positions": 1_000_000_000,
    "projection": 10_000_000,
}


def size_problem(field: str, value: object, name: str | None = None) -> str | None:
    """The problem of a size called `name`, or None if it is within its bound.

    Tables and loops are made by these sizes, so it is asked before anything is.
    """
    if isinstance(value, int) and value > MAX_SIZES[field]:
        shown = f"{value}" if value < 10**15 else "above 10^15"
        return f"{name or field} is {shown}, at most {MAX_SIZES[field]:,} is read: the file is damaged or hostile"
    return None
