"""Grammars of answers on the device: which tokens a row may say next, and where its automaton then is."""

from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.grammar.compile import compile_grammar
from qrag_jax.models.grammar.tokens import FAR, TokenAutomaton, token_automaton
from qrag_jax.types import Grammar

_MIN_STATES, _MIN_CLASSES = 256, 256
_KEPT = 64  # automata of a decoder that are kept


@struct.dataclass
class Tables:
    """The tables of a `TokenAutomaton`, with room for more states and classes than it has."""

    class_of_token: Any
    next_state: Any
    uses: Any
    grants: Any
    distance: Any


@struct.dataclass
class Where:
    """The place of each row: its state, and the parts left of the current run; int32 [B] each."""

    state: Any
    left: Any


@struct.dataclass
class Constraint:
    """The grammar of a batch, and where each of its rows is."""

    tables: Tables
    where: Where


def allowed_tokens(constraint: Constraint, rooms: Int[Array, " B"]) -> Bool[Array, "B vocab"]:
    """Tokens that a row may say next: those of its grammar that leave it tokens enough to reach an end of it.

    A row that cannot reach one any more may say all that its grammar admits.

    Args:
        rooms: tokens that each row may still say, this one counted.
    """
    tables, where = constraint.tables, constraint.where
    following = tables.next_state[where.state]
    fits = (following >= 0) & (tables.uses[where.state] <= where.left[:, None])
    closes = fits & (tables.distance[following] < rooms[:, None])
    by_class = jnp.where(closes.any(axis=-1, keepdims=True), closes, fits)
    return by_class[:, tables.class_of_token]


def step_on(constraint: Constraint, tokens: Int[Array, " B"]) -> Where:
    """The places of rows after one token each; a token that was not allowed leads to an arbitrary place."""
    tables, where = constraint.tables, constraint.where
    kind = tables.class_of_token[tokens]
    granted = tables.grants[where.state, kind].astype(jnp.int32)
    left = jnp.where(granted < 0, where.left - tables.uses[where.state, kind], granted)
    state = jnp.maximum(tables.next_state[where.state, kind], 0)
    return Where(state, left)


class Automata:
    """The automata of a vocabulary: `of(grammar)` builds each once, the last one stays on the device."""

    def __init__(self, tokenizer: DecoderTokenizer, vocab_size: int) -> None:
        """Builds nothing yet."""
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self.of = lru_cache(_KEPT)(self._build)
        self._placed: tuple[Grammar, Tables] | None = None

    @cached_property
    def _spellings(self) -> list[bytes | None]:
        return self._tokenizer.spellings()

    def _build(self, grammar: Grammar) -> TokenAutomaton:
        ends = self._tokenizer.eos_ids
        return token_automaton(compile_grammar(grammar), self._spellings, ends, self._vocab_size)

    def constraint(self, grammar: Grammar, count: int) -> Constraint:
        """The masks that hold this many rows to a grammar, from the beginning of an answer."""
        automaton = self.of(grammar)
        if self._placed is None or self._placed[0] != grammar:
            self._placed = grammar, jax.device_put(_padded(automaton))
        return Constraint(self._placed[1], Where(np.zeros(count, np.int32), np.full(count, automaton.left, np.int32)))


def _padded(automaton: TokenAutomaton) -> Tables:
    """Sizes are powers of two, so that another grammar compiles nothing."""
    states, classes = automaton.next_state.shape
    more = (0, _power(states, _MIN_STATES) - states), (0, _power(classes, _MIN_CLASSES) - classes)
    return Tables(
        automaton.class_of_token,
        np.pad(automaton.next_state, more, constant_values=-1),
        np.pad(automaton.uses, more),
        np.pad(automaton.grants, more, constant_values=-1),
        np.pad(automaton.distance, more[0], constant_values=FAR),
    )


def _power(number: int, least: int) -> int:
    return max(least, 1 << (number - 1).bit_length())
