"""Parameters as nested dicts of arrays, and as a flat dict by their paths. Imports no JAX."""

from collections.abc import Mapping
from typing import Any

Params = Mapping[str, Any]
Path = tuple[str, ...]


def flatten(params: Params, above: Path = ()) -> dict[Path, Any]:
    """The leaves of nested dicts by their paths, in the order of the dicts; an empty dict has none."""
    found: dict[Path, Any] = {}
    for name, value in params.items():
        path = (*above, name)
        found |= flatten(value, path) if isinstance(value, Mapping) else {path: value}
    return found


def nest(leaves: Mapping[Path, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    made: dict[str, Any] = {}
    for path, value in leaves.items():
        inner = made
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return made
