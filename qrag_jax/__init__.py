"""Retrieval over long documents in JAX. Importing the package imports no JAX; public names load on first use."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # the same names again, so that editors and type checkers see them
    from qrag_jax.checkpoint import load_checkpoint, save_checkpoint
    from qrag_jax.config import load_config
    from qrag_jax.types import Document, Example, InputError, Step, Trajectory, UsageError

# Public name -> module it lives in.
_PUBLIC = {
    "Document": "qrag_jax.types",
    "Example": "qrag_jax.types",
    "InputError": "qrag_jax.types",
    "Step": "qrag_jax.types",
    "Trajectory": "qrag_jax.types",
    "UsageError": "qrag_jax.types",
    "load_checkpoint": "qrag_jax.checkpoint",
    "load_config": "qrag_jax.config",
    "save_checkpoint": "qrag_jax.checkpoint",
}

__all__ = [  # spelled out for type checkers; a test holds it to _PUBLIC
    "Document",
    "Example",
    "InputError",
    "Step",
    "Trajectory",
    "UsageError",
    "__version__",
    "load_checkpoint",
    "load_config",
    "save_checkpoint",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562), so that `import qrag_jax` costs milliseconds."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
