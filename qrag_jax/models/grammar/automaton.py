"""Expressions to a deterministic automaton over the bytes of UTF-8, with one counter for the run that it stands in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.models.grammar.expressions import (
    ByteRange,
    Characters,
    Either,
    Expression,
    Repeated,
    Run,
    Sequenced,
    utf8_sequences,
)
from qrag_jax.types import UsageError

MAX_STATES = 16_384
_MAX_PARTS = 50_000  # states of the automaton that is not yet deterministic
_MAX_MEMBERS = 2**20  # of these in all sets that are states of the one that is: seconds and memory go with it
MAX_RUN = 32_767


@dataclass(frozen=True)
class ByteAutomaton:
    """The bytes that may follow in each state; it starts in state 0.

    A state may stand in a run (`expressions.Run`), of which parts are left; a byte that begins a part takes one.

    Attributes:
        class_of_byte: int [256]; bytes of one class are never told apart.
        next_state: int32 [states, classes]; -1 is refused.
        takes: bool [states, classes]; the byte begins a part of the run.
        grants: int32 [states, classes]; what is left of the run that is entered (0 is none); -1 stays in it.
        accepting: bool [states].
        left: what is left of the run at the start.
    """

    class_of_byte: np.ndarray
    next_state: np.ndarray
    takes: np.ndarray
    grants: np.ndarray
    accepting: np.ndarray
    left: int

    def fault(self, text: str) -> int | None:
        """The number of the first character that the grammar does not admit; its length where it ends too early; None
        where it is admitted."""
        state, left = 0, self.left
        for place, character in enumerate(text):
            for byte in character.encode("utf-8", "surrogatepass"):
                kind = self.class_of_byte[byte]
                left -= bool(self.takes[state, kind])
                grant, state = int(self.grants[state, kind]), int(self.next_state[state, kind])
                if state < 0 or left < 0:
                    return place
                left = left if grant < 0 else grant
        return None if self.accepting[state] else len(text)


def byte_automaton(expression: Expression) -> ByteAutomaton:
    """The automaton of an expression."""
    parts = _Parts()
    try:
        start = parts.add(expression, parts.final)
    except RecursionError as error:  # each field of an object lies within the one before it
        raise too_large("nested too deep, or an object of some hundred fields") from error
    classes, members = _byte_classes(parts.byte_sets)
    return _Deterministic(parts, classes, members).build(start)


def too_large(what: str) -> UsageError:
    """The error of a grammar beyond a cap."""
    return UsageError(f"grammar: {what}: use fewer or smaller repetitions, lists and alternatives")


class _Parts:
    """States with moves by byte and moves by nothing; built from the end of the text to its beginning."""

    def __init__(self) -> None:
        self.moves: list[list[tuple[int, int]]] = []  # (number of a byte set, state)
        self.free: list[list[int]] = []
        self.run_of: list[int] = []
        self.begins: set[int] = set()  # states whose moves begin a part of their run
        self.runs: list[int] = []  # most parts of each
        self.byte_sets: dict[ByteRange, int] = {}
        self._added: dict[tuple[int, int, int], int] = {}
        self._run = -1
        self.final = self._state()

    def _state(self, free: Iterable[int] = ()) -> int:
        if len(self.moves) == _MAX_PARTS:
            raise too_large(f"more than {_MAX_PARTS:,} parts")
        self.moves.append([])
        self.free.append(list(free))
        self.run_of.append(self._run)
        return len(self.moves) - 1

    def add(self, expression: Expression, to: int) -> int:
        """A state from which the expression leads to state `to`; one object that leads to one state has one."""
        place = id(expression), to, self._run
        if place not in self._added:
            self._added[place] = self._new(expression, to)
        return self._added[place]

    def _new(self, expression: Expression, to: int) -> int:
        match expression:
            case Characters(ranges):
                return self._characters(utf8_sequences(ranges), to)
            case Sequenced(parts):
                for part in reversed(parts):
                    to = self.add(part, to)
                return to
            case Either(options):
                return self._state([self.add(option, to) for option in options])
            case Repeated(part, least, most):
                return self._repeated(part, least, most, to)
            case Run(part, most):
                return self._counted(part, most, to)

    def _characters(self, sequences: Sequence[tuple[ByteRange, ...]], to: int) -> int:
        """Equal ends of sequences share their states."""
        made: dict[tuple[ByteRange, ...], int] = {(): to}
        start = self._state()
        for sequence in sequences:
            for place in range(len(sequence) - 1, 0, -1):
                if sequence[place:] not in made:
                    state = made[sequence[place:]] = self._state()
                    self._move(state, sequence[place], made[sequence[place + 1 :]])
            self._move(start, sequence[0], made[sequence[1:]])
        return start

    def _move(self, state: int, byte_range: ByteRange, to: int) -> None:
        self.moves[state].append((self.byte_sets.setdefault(byte_range, len(self.byte_sets)), to))

    def _repeated(self, part: Expression, least: int, most: int | None, to: int) -> int:
        if most is None:
            loop = self._state([to])
            self.free[loop].append(self.add(part, loop))
            start = loop
        else:
            start = to
            for _ in range(most - least):
                start = self._state([self.add(part, start), to])
        for _ in range(least):
            start = self.add(part, start)
        return start

    def _counted(self, part: Expression, most: int, to: int) -> int:
        if most > MAX_RUN:
            raise too_large(f"a text of {most:,} characters, at most {MAX_RUN:,}")
        if most <= 0:
            return to
        self._run = len(self.runs)
        self.runs.append(most)
        border = self._state([to])
        entry = self.add(part, border)
        self.free[border].append(entry)
        self._run = -1
        self.begins |= self.reached([entry])
        return border

    def reached(self, states: Iterable[int]) -> frozenset[int]:
        """Those that nothing leads to from these, if they have moves or are final."""
        seen, waiting = set(), list(states)
        while waiting:
            state = waiting.pop()
            if state not in seen:
                seen.add(state)
                waiting += self.free[state]
        return frozenset(state for state in seen if self.moves[state] or state == self.final)


def _byte_classes(byte_sets: Iterable[ByteRange]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The class of every byte, and the classes of every set."""
    byte_sets = list(byte_sets)
    member = np.zeros((len(byte_sets), 256), bool)
    for number, (first, last) in enumerate(byte_sets):
        member[number, first : last + 1] = True
    _, classes = np.unique(member, axis=1, return_inverse=True)
    classes = classes.reshape(-1)
    return classes, [np.unique(classes[row]) for row in member]


class _Deterministic:
    """Sets of `_Parts` states as states of their own."""

    def __init__(self, parts: _Parts, class_of_byte: np.ndarray, members: list[np.ndarray]) -> None:
        self._parts, self._class_of_byte, self._members = parts, class_of_byte, [row.tolist() for row in members]
        self._numbers: dict[frozenset[int], int] = {}
        self._waiting: list[frozenset[int]] = []
        self._num_members = 0

    def build(self, start: int) -> ByteAutomaton:
        """All states that can be reached."""
        parts, num_classes = self._parts, int(self._class_of_byte.max()) + 1
        self._number(parts.reached([start]))
        rows = []
        for states in self._waiting:  # grows meanwhile
            rows.append(self._row(states, num_classes))
        table = np.array(rows, np.int32)
        next_state, takes = table[:, 0], table[:, 1].astype(bool)
        run_of = np.array([self._run_of(states) for states in self._waiting])
        most = np.array([*parts.runs, 0])  # -1 is no run
        stays = (run_of[next_state] == run_of[:, None]) & (run_of[:, None] >= 0)
        grants = np.where(stays, -1, most[run_of[next_state]]).astype(np.int32)
        accepting = np.array([parts.final in states for states in self._waiting])
        if not accepting.any():
            raise UsageError("grammar: admits no text at all")
        return ByteAutomaton(self._class_of_byte, next_state, takes, grants, accepting, int(most[run_of[0]]))

    def _number(self, states: frozenset[int]) -> int:
        if states not in self._numbers:
            if len(self._numbers) == MAX_STATES:
                raise too_large(f"more than {MAX_STATES:,} states")
            self._num_members += len(states)
            if self._num_members > _MAX_MEMBERS:
                raise too_large(f"states that stand for more than {_MAX_MEMBERS:,} parts")
            self._numbers[states] = len(self._numbers)
            self._waiting.append(states)
        return self._numbers[states]

    def _row(self, states: frozenset[int], num_classes: int) -> tuple[list[int], list[int]]:
        """(next state, whether it begins a part of a run) of every class of bytes."""
        parts = self._parts
        targets: dict[int, set[int]] = {}
        begins: dict[int, set[bool]] = {}
        for state in states:
            for number, to in parts.moves[state]:
                for kind in self._members[number]:
                    targets.setdefault(kind, set()).add(to)
                    begins.setdefault(kind, set()).add(state in parts.begins)
        if any(len(both) > 1 for both in begins.values()):
            raise _unclear()
        next_state, takes = [-1] * num_classes, [0] * num_classes
        for kind, reached in targets.items():
            next_state[kind], takes[kind] = self._number(parts.reached(reached)), int(True in begins[kind])
        return next_state, takes

    def _run_of(self, states: frozenset[int]) -> int:
        found = {self._parts.run_of[state] for state in states} - {-1}
        if len(found) > 1:
            raise _unclear()
        return found.pop() if found else -1


def _unclear() -> UsageError:
    return UsageError(
        "grammar: two alternatives can begin with the same character (two texts, lists or objects), and one has a text "
        "or white space with a length limit: make them begin differently, as a text and a number do"
    )
