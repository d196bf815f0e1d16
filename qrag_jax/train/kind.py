"""The record of a learner in `qrag_jax.names.LEARNERS`; `qrag train NAME [CONFIG.yaml] [key=value ...]` trains it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qrag_jax.types import Watch


@dataclass(frozen=True)
class LearnerKind:
    """A learner; its module ends with one, and a line of `qrag_jax.names` names it.

    Attributes:
        config: frozen dataclass of its data and how it learns.
        train: (config, run folder, watch) -> the result as a JSON object; writes a complete run.
        format: that for people.
    """

    config: type
    train: Callable[[Any, Path, Watch], Mapping[str, Any]]
    format: Callable[[Mapping[str, Any]], str]
