"""Grammars of answers on the device: which tokens a row may say next, and where its automaton then is.

The automata of a batch lie in one table, one behind the other; the first admits anything. Sizes come from short lists,
so that another grammar compiles nothing.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.grammar.compile import compile_grammar
from qrag_jax.models.grammar.tokens import FAR, TokenAutomaton, token_automaton
from qrag_jax.types import Grammar, UsageError

_MIN_STATES, _MIN_CLASSES, _MIN_AUTOMATA = 256, 256, 2
MAX_JOINED_CELLS = 2**26  # states x classes, and grammars x tokens, of all grammars of a call; 8 and 2 bytes each
_KEPT = 64  # automata of a decoder that are kept


@struct.dataclass
class Tables:
    """Automata side by side; see `TokenAutomaton`. States are counted through, row 0 is the one that admits anything.

    Attributes:
        class_of_token: int16 [automata, vocab].
        next_state, uses, grants: [states, classes].
        distance: [states].
    """

    class_of_token: Any
    next_state: Any
    uses: Any
    grants: Any
    distance: Any


@struct.dataclass
class Where:
    """The place of each row: its automaton, its state, and the parts left of the current run; int32 [B] each."""

    automaton: Any
    state: Any
    left: Any


@struct.dataclass
class Constraint:
    """The grammars of rows."""

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
    return jnp.take_along_axis(by_class, tables.class_of_token[where.automaton].astype(jnp.int32), axis=1)


def step_on(constraint: Constraint, tokens: Int[Array, " B"]) -> Where:
    """The places of rows after one token each; a token that was not allowed leads to an arbitrary place."""
    tables, where = constraint.tables, constraint.where
    kind = tables.class_of_token[where.automaton, tokens].astype(jnp.int32)
    granted = tables.grants[where.state, kind].astype(jnp.int32)
    left = jnp.where(granted < 0, where.left - tables.uses[where.state, kind], granted)
    state = jnp.maximum(tables.next_state[where.state, kind], 0)
    return Where(where.automaton, state, left)


class Automata:
    """The automata of a vocabulary: each built once, and those of a batch put together."""

    def __init__(self, tokenizer: DecoderTokenizer, vocab_size: int) -> None:
        """Builds nothing yet."""
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._spellings: list[bytes | None] | None = None
        self._built: OrderedDict[Grammar, TokenAutomaton] = OrderedDict()
        self._joined: tuple[tuple[Grammar, ...], Tables] | None = None

    def of(self, grammar: Grammar) -> TokenAutomaton:
        """The automaton of a grammar."""
        if grammar not in self._built:
            if self._spellings is None:
                self._spellings = self._tokenizer.spellings()
            bytewise = compile_grammar(grammar)
            built = token_automaton(bytewise, self._spellings, self._tokenizer.eos_ids, self._vocab_size)
            self._built[grammar] = built
            if len(self._built) > _KEPT:
                self._built.popitem(last=False)
        self._built.move_to_end(grammar)
        return self._built[grammar]

    def joined(self, grammars: Sequence[Grammar | None]) -> "Joined | None":
        """The tables of a batch, on the device, and where each prompt begins; None where no grammar is given."""
        distinct = tuple(dict.fromkeys(grammar for grammar in grammars if grammar is not None))
        if not distinct:
            return None
        automata = [self.of(grammar) for grammar in distinct]
        if self._joined is None or self._joined[0] != distinct:
            self._joined = distinct, jax.device_put(_join(automata, self._vocab_size))
        starts = np.cumsum([1, *(len(automaton.distance) for automaton in automata)])
        begin = {grammar: (number + 1, int(starts[number]), automata[number].left)
                 for number, grammar in enumerate(distinct)}  # fmt: skip
        return Joined(self._joined[1], [(0, 0, 0) if grammar is None else begin[grammar] for grammar in grammars])


class Joined:
    """Tables of a batch and the beginnings of its prompts: automaton, state, what is left of a run."""

    def __init__(self, tables: Tables, begins: Sequence[tuple[int, int, int]]) -> None:
        self.tables, self.begins = tables, begins

    def constraint(self, where: np.ndarray) -> Constraint:
        """The constraint of rows at these places, int32 [B, 3]."""
        return Constraint(self.tables, Where(*np.ascontiguousarray(where.T)))


def _join(automata: Sequence[TokenAutomaton], vocab_size: int) -> Tables:
    """Room for more states, classes and automata than there are, in powers of two."""
    num_states = _power(1 + sum(len(automaton.distance) for automaton in automata), _MIN_STATES)
    num_classes = _power(max(automaton.next_state.shape[1] for automaton in automata), _MIN_CLASSES)
    num_automata = _power(1 + len(automata), _MIN_AUTOMATA)
    if max(num_states * num_classes, num_automata * vocab_size) > MAX_JOINED_CELLS:
        raise UsageError(
            f"grammar: {len(automata)} grammars of one call have {num_states:,} states and {num_classes:,} kinds of "
            f"{vocab_size:,} tokens together: ask with fewer of them at once"
        )
    shape = num_states, num_classes
    tables = Tables(
        np.zeros((num_automata, vocab_size), np.int16),
        np.full(shape, -1, np.int32),
        np.zeros(shape, np.int16),
        np.full(shape, -1, np.int16),
        np.full(num_states, FAR, np.int32),
    )
    tables.next_state[0, 0] = tables.distance[0] = 0  # anything: one state, one class
    start = 1
    for number, automaton in enumerate(automata, start=1):
        states, classes = automaton.next_state.shape
        rows = slice(start, start + states)
        tables.class_of_token[number] = automaton.class_of_token
        tables.next_state[rows, :classes] = np.where(automaton.next_state < 0, -1, automaton.next_state + start)
        tables.uses[rows, :classes], tables.grants[rows, :classes] = automaton.uses, automaton.grants
        tables.distance[rows] = automaton.distance
        start += states
    return tables


def _power(number: int, least: int) -> int:
    return max(least, 1 << (number - 1).bit_length())
