"""An automaton over bytes as one over the tokens of a vocabulary: tables that a device can follow without the host.

Tokens that no state tells apart are one class, so the tables are small whatever the vocabulary: few thousand spellings
differ once letters that the grammar treats alike are one letter, and of those a few hundred have columns of their own.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.models.grammar.automaton import ByteAutomaton, too_large
from qrag_jax.types import UsageError

REFUSED, END = 0, 1  # classes of tokens: in no text of the grammar; ends an answer
MAX_CELLS, MAX_CLASSES = 2**23, 2**15 - 1  # states x classes; classes
FAR = 2**30  # from here no accepting state can be reached
_BLOCK_CELLS = 2**21  # states x spellings that are walked at once


@dataclass(frozen=True)
class TokenAutomaton:
    """The tokens that may follow in each state; it starts in state 0. See `ByteAutomaton` for runs.

    Attributes:
        class_of_token: int16 [vocab]; tokens of one class are never told apart.
        next_state: int32 [states, classes]; -1 is refused.
        uses: int16 [states, classes]; parts that the token takes of the run that the state stands in.
        grants: int16 [states, classes]; what is left of the run that it leads into; -1 stays in the same one.
        distance: int32 [states]; fewest tokens to an accepting state, whatever is left of a run.
        left: what is left of the run at the start.
    """

    class_of_token: np.ndarray
    next_state: np.ndarray
    uses: np.ndarray
    grants: np.ndarray
    distance: np.ndarray
    left: int


def token_automaton(
    automaton: ByteAutomaton, spellings: Sequence[bytes | None], ends: Collection[int], vocab_size: int
) -> TokenAutomaton:
    """Walks every token through every state.

    Args:
        spellings: bytes of each token; None, empty ones and those beyond the list are in no answer.
        ends: ids of the tokens that end an answer; allowed exactly in accepting states.
        vocab_size: of the model, which may be padded.
    """
    if not ends:
        raise UsageError("grammar: this model has no token that ends an answer, so none would end: use another model")
    spelt, kind_of_token = _spellings(automaton.class_of_byte, spellings, vocab_size)
    walk = _Walk(automaton, spelt)
    class_of_kind, examples = _classes(walk, len(automaton.accepting))
    num_classes = len(examples) + 2
    if num_classes > MAX_CLASSES or len(automaton.accepting) * num_classes > MAX_CELLS:
        raise too_large(f"{len(automaton.accepting):,} states that tell {len(examples):,} kinds of tokens apart")
    class_of_token = np.where(kind_of_token < 0, REFUSED, class_of_kind[kind_of_token]).astype(np.int16)
    class_of_token[list(ends)] = END
    columns = walk.columns(np.arange(len(automaton.accepting)), examples)
    next_state, uses, grants = columns[0], columns[1].astype(np.int16), columns[2].astype(np.int16)
    accepting = np.flatnonzero(automaton.accepting)
    next_state[accepting, END] = accepting
    distance = _distances(next_state, uses, automaton.accepting)
    if distance[0] >= FAR:
        raise UsageError("grammar: the tokens of this model's vocabulary cannot spell any text that it admits")
    next_state = np.where(distance[next_state] >= FAR, -1, next_state).astype(np.int32)
    return TokenAutomaton(class_of_token, next_state, uses, grants, distance, automaton.left)


def _spellings(
    class_of_byte: np.ndarray, spellings: Sequence[bytes | None], vocab_size: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Distinct spellings in classes of bytes, and the number of its own for every token (-1 for none)."""
    letters = bytes(class_of_byte.tolist())
    kinds: dict[bytes, int] = {}
    kind_of_token = np.full(vocab_size, -1, np.int32)
    for token, spelling in enumerate(spellings):
        if spelling:
            kind_of_token[token] = kinds.setdefault(spelling.translate(letters), len(kinds))
    return [np.frombuffer(kind, np.uint8) for kind in kinds], kind_of_token


class _Walk:
    """Spellings on their way through an automaton."""

    def __init__(self, automaton: ByteAutomaton, spelt: Sequence[np.ndarray]) -> None:
        self._automaton = automaton
        self.num_spellings = len(spelt)
        self._lengths = np.array([len(kind) for kind in spelt], np.int32)
        self._letters = np.concatenate([*spelt, np.zeros(1, np.uint8)])
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int32)

    def columns(self, states: np.ndarray, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(next state or -1, parts used, parts granted or -1) [states, kinds + 2], behind those of `REFUSED`, `END`."""
        shape = len(states), len(kinds) + 2
        found = np.full(shape, -1, np.int32), np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
        alive = self._automaton.next_state[states][:, self._letters[self._starts[kinds]]] >= 0
        row, column = np.nonzero(alive)
        state, used, granted = states[row], np.zeros(len(row), np.int32), np.full(len(row), -1, np.int32)
        start, length = self._starts[kinds][column], self._lengths[kinds][column]
        place = 0
        while len(row):
            state, used, granted = self._step(state, used, granted, self._letters[start + place])
            place += 1
            is_done = (length == place) & (state >= 0)
            for table, values in zip(found, (state, used, granted), strict=True):
                table[row[is_done], column[is_done] + 2] = values[is_done]
            goes_on = (state >= 0) & (length > place)
            row, column, state, used, granted, start, length = (
                values[goes_on] for values in (row, column, state, used, granted, start, length)
            )
        return found

    def _step(
        self, state: np.ndarray, used: np.ndarray, granted: np.ndarray, letter: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One byte more. The parts left of a run that the token entered are known, so it may be refused."""
        automaton = self._automaton
        takes, grant = automaton.takes[state, letter], automaton.grants[state, letter]
        is_first = granted < 0
        used = used + (takes & is_first)
        granted = np.where(is_first, -1, granted - takes)
        is_beyond = ~is_first & (granted < 0)
        following = np.where(is_beyond, -1, automaton.next_state[state, letter])
        return following, used, np.where(grant < 0, granted, grant)


def _classes(walk: _Walk, num_states: int) -> tuple[np.ndarray, np.ndarray]:
    """The class of every spelling, and a spelling of each class from class 2 on; refused everywhere is `REFUSED`."""
    every = np.arange(walk.num_spellings)
    label = np.zeros(walk.num_spellings, np.int64)
    is_refused = np.ones(walk.num_spellings, bool)
    size = max(1, _BLOCK_CELLS // max(1, walk.num_spellings))
    for first in range(0, num_states, size):
        columns = walk.columns(np.arange(first, min(first + size, num_states)), every)
        is_refused &= (columns[0][:, 2:] < 0).all(axis=0)
        told = [table[:, 2:] for table in columns]
        label = _numbered(np.concatenate([label[None].astype(np.int32), *told]))
    label = np.where(is_refused, -1, label)
    used, examples, numbers = np.unique(label, return_index=True, return_inverse=True)
    has_refused = int(len(used) > 0 and used[0] == -1)
    return np.where(is_refused, REFUSED, numbers.reshape(-1) - has_refused + 2), examples[has_refused:]


def _numbered(columns: np.ndarray) -> np.ndarray:
    """Equal columns get equal numbers."""
    rows = np.ascontiguousarray(columns.T)
    whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)
    return np.unique(whole, return_inverse=True)[1].reshape(-1)


def _distances(next_state: np.ndarray, uses: np.ndarray, accepting: np.ndarray) -> np.ndarray:
    """Fewest tokens to an accepting state. Ways that use parts of a run do not count: there may be none left."""
    distance = np.where(accepting, 0, FAR).astype(np.int32)
    row, column = np.nonzero((next_state >= 0) & (uses == 0))
    to = next_state[row, column]
    states, starts = np.unique(row, return_index=True)  # rows are sorted
    while True:
        nearer = distance.copy()
        if len(to):
            least = np.minimum.reduceat(distance[to], starts) + 1
            nearer[states] = np.minimum(nearer[states], np.minimum(least, FAR))
        if (nearer == distance).all():
            return distance
        distance = nearer
