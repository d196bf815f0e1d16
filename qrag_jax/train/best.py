"""The parameters that did best on held-out data."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.sharding import PyTree


class KeepBest:
    """The parameters with the best score so far, the later ones among equals; for `trainer.Hooks.score`."""

    def __init__(self, score: Callable[[PyTree], float]):
        """Args: score, of parameters; the higher the better."""
        self.params: PyTree = None
        self.update, self.value = 0, -np.inf
        self._score = score

    def offer(self, params: PyTree, update: int) -> float:
        """Scores parameters and keeps a copy of them (the update reuses their buffers) if none were better."""
        value = self._score(params)
        if value >= self.value:
            self.params, self.update, self.value = jax.tree.map(jnp.copy, params), update, value
        return value
