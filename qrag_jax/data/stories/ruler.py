"""RULER (Hsieh et al. 2024, arXiv 2404.06654): needles and variables in long contexts, as questions with gold chunks.

We make the eight needle tasks and variable tracking from their definitions; `ruler_qa.py` makes the two QA tasks. The
aggregation tasks (cwe, fwe) ask for counts over the whole context, which no choice of chunks answers.

`ruler_context.py` puts the needles into their contexts. All draws depend on the seed, the task and the number of the
question, so a question is the same however many are asked. Its needles are the same at each length.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from qrag_jax.data.stories.ruler_context import (
    Asked,
    CountAll,
    Noise,
    RulerQuestion,
    TokenCounts,
    compose,
    packed,
    too_short,
)
from qrag_jax.data.stories.ruler_words import ADJECTIVES, NOISE, NOUNS
from qrag_jax.types import Arg, UsageError

_FEWEST_CHUNKS = 8  # chunks of noise in the shortest context
_SLICE = 4096  # sentences that are counted at a time
_RESERVED = 4096  # keys of words that no noise has
_RESIDUES = 64  # numbers of one drawn remainder are values of questions, the others of noise
_DEPTHS, _NOISE_START, _NOISE_VALUES, _KEYS, _RESIDUE = range(101, 106)  # streams of random numbers
_NUMBERS, _VALUES_OF_VARIABLES = (1_000_000, 10_000_000), (10_000, 100_000)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Kind:
    """A task with needles.

    Attributes:
        noise: what fills the context: sentences (a few, repeated), essays, or needles.
        key, value: words, numbers or uuids.
        num_keys: keys in the context.
        num_values: values of each key.
        num_asked: keys that the question names.
    """

    noise: str
    key: str = "words"
    value: str = "numbers"
    num_keys: int = 1
    num_values: int = 1
    num_asked: int = 1


NEEDLES = {
    "niah_single_1": Kind("sentences"),
    "niah_single_2": Kind("essays"),
    "niah_single_3": Kind("essays", value="uuids"),
    "niah_multikey_1": Kind("essays", num_keys=4),
    "niah_multikey_2": Kind("needles"),
    "niah_multikey_3": Kind("needles", key="uuids", value="uuids"),
    "niah_multivalue": Kind("essays", num_values=4),
    "niah_multiquery": Kind("essays", num_keys=4, num_asked=4),
}
VARIABLES = "vt"
NUM_HOPS = 4  # of a chain of variables, so 5 assignments
QA = ("qa_1", "qa_2")
TASKS = (*NEEDLES, VARIABLES, *QA)


class NeedleMaker:
    """Makes the questions of the needle tasks and of variable tracking."""

    def __init__(self, count: CountAll, essays: Callable[[], Sequence[str]], seed: int, chunk_tokens: int = 64) -> None:
        """Keeps what the questions share.

        Args:
            count: texts -> tokens of each, by the tokenizer of the run.
            essays: gives the sentences of the essays; called if a task needs them.
            seed: of all draws.
            chunk_tokens: most tokens of a chunk; a sentence that is longer is a chunk.
        """
        self.counts, self._seed, self._chunk_tokens = TokenCounts(count), seed, chunk_tokens
        self._essays = cache(essays)
        self._pairs = cache(self._draw_pairs)
        self._residue = int(self._rng(_RESIDUE).integers(_RESIDUES))

    def questions(self, task: str, num_tokens: int, num_questions: int) -> list[RulerQuestion]:
        """Questions 0, 1, ... of a task. A question does not depend on their number.

        Args:
            task: a key of `NEEDLES`, or `VARIABLES`.
            num_tokens: most tokens of a context.

        Raises:
            UsageError: the length is too small for the task, or beyond the distinct needles that there are.
        """
        kind = NEEDLES.get(task)
        asked = [self._chain(i) if kind is None else self._needles(task, kind, i) for i in range(num_questions)]
        room = max(sum(self.counts(one.needles)) for one in asked) + _FEWEST_CHUNKS * self._chunk_tokens
        if num_tokens < room:
            raise too_short(task, num_tokens, room)
        noise = self._noise(task, "sentences" if kind is None else kind.noise, num_tokens)
        task_number = TASKS.index(task)
        return [
            compose(i, one, noise, num_tokens, self._chunk_tokens, self.counts, self._rng(_DEPTHS, task_number, i))
            for i, one in enumerate(asked)
        ]

    def _rng(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *numbers])

    def _needles(self, task: str, kind: Kind, number: int) -> Asked:
        rng = self._rng(TASKS.index(task), number)
        keys = self._uuids(rng, kind.num_keys) if kind.key == "uuids" else self._own_keys(rng, kind.num_keys)
        num_values = kind.num_keys * kind.num_values
        if kind.value == "uuids":
            values = self._uuids(rng, num_values)
        else:
            values = [str(x) for x in _distinct(rng, num_values, self._is_own)]
        owners = [key for key in keys for _ in range(kind.num_values)]
        needles = tuple(_needle(key, kind.value, value) for key, value in zip(owners, values, strict=True))
        gold = frozenset(range(kind.num_asked * kind.num_values))
        right = tuple(values[i] for i in sorted(gold))
        return Asked(_question(keys[: kind.num_asked], kind.value, len(gold) > 1), needles, gold, right)

    def _chain(self, number: int) -> Asked:
        """A chain of assignments; each one is in the text before those that need it."""
        rng = self._rng(TASKS.index(VARIABLES), number)
        names = dict.fromkeys("".join(rng.choice(list(_LETTERS), 5)) for _ in range(4 * (NUM_HOPS + 1)))
        first, *others = variables = tuple(names)[: NUM_HOPS + 1]
        value = int(rng.integers(*_VALUES_OF_VARIABLES))
        hops = [f"VAR {new} = VAR {old}." for old, new in zip(variables[:-1], others, strict=True)]
        question = f"Find all variables that are assigned the value {value} in the text above."
        return Asked(question, (f"VAR {first} = {value}.", *hops), frozenset(range(len(variables))), variables, True)

    def _noise(self, task: str, kind: str, num_tokens: int) -> Noise:
        """At least as many tokens of noise as a context has, packed. A longer length begins with those of a shorter."""
        sentences: list[str] = []
        sizes: list[int] = []
        stream = {"sentences": self._repeated, "essays": self._read_essays, "needles": self._other_needles}[kind](task)
        for part in stream:
            sentences += part
            sizes += self.counts(part)
            if sum(sizes) >= num_tokens:
                break
        else:
            reason = f"{task}: there are distinct needles for {sum(sizes):,} tokens only; lower "
            raise UsageError((reason, Arg("num_tokens")), field="num_tokens", value=num_tokens)
        end = int(np.searchsorted(np.cumsum(sizes), num_tokens)) + 1
        bounds = list(packed(sizes[:end], self._chunk_tokens))
        return Noise(sentences[:end], sizes[:end], bounds)

    def _repeated(self, task: str) -> Iterator[list[str]]:
        del task
        while True:
            yield [*map(str, NOISE)] * (_SLICE // len(NOISE))

    def _read_essays(self, task: str) -> Iterator[list[str]]:
        """The essays from a drawn sentence on, again from the first one after the last."""
        del task
        essays = self._essays()
        at = int(self._rng(_NOISE_START).integers(len(essays)))
        while True:
            yield list(essays[at : at + _SLICE])
            at = 0 if at + _SLICE >= len(essays) else at + _SLICE

    def _other_needles(self, task: str) -> Iterator[list[str]]:
        kind = NEEDLES[task]
        rng = self._rng(_NOISE_VALUES, TASKS.index(task))
        pairs, numbers = self._pairs(), set[int]()
        for first in range(0, len(pairs) - _RESERVED - _SLICE, _SLICE):
            keys = self._uuids(rng, _SLICE) if kind.key == "uuids" else pairs[first : first + _SLICE]
            if kind.value == "uuids":
                values = self._uuids(rng, _SLICE)
            else:
                new = _distinct(rng, _SLICE, lambda x: not self._is_own(x) and x not in numbers)
                numbers.update(new)
                values = [str(x) for x in new]
            yield [_needle(key, kind.value, value) for key, value in zip(keys, values, strict=True)]

    def _draw_pairs(self) -> list[str]:
        """All keys of words in a random order; the last `_RESERVED` are those of questions."""
        order = self._rng(_KEYS).permutation(len(ADJECTIVES) * len(NOUNS)).tolist()
        return [f"{ADJECTIVES[i // len(NOUNS)]}-{NOUNS[i % len(NOUNS)]}" for i in order]

    def _is_own(self, number: int) -> bool:
        """True for values of questions, so no needle of the noise has one."""
        return number % _RESIDUES == self._residue

    def _own_keys(self, rng: np.random.Generator, size: int) -> list[str]:
        reserved = self._pairs()[-_RESERVED:]
        return [reserved[i] for i in rng.choice(_RESERVED, size, replace=False)]

    @staticmethod
    def _uuids(rng: np.random.Generator, size: int) -> list[str]:
        return [str(uuid.UUID(bytes=rng.bytes(16), version=4)) for _ in range(size)]


def _needle(key: str, value_kind: str, value: str) -> str:
    return f"One of the special magic {value_kind} for {key} is: {value}."


def _question(keys: Sequence[str], value_kind: str, several: bool) -> str:
    named = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])}, and {keys[-1]}"
    if several:
        return f"What are all the special magic {value_kind} for {named} mentioned in the provided text?"
    return f"What is the special magic {value_kind.removesuffix('s')} for {named} mentioned in the provided text?"


def _distinct(rng: np.random.Generator, size: int, wanted: Callable[[int], bool]) -> list[int]:
    """Numbers of seven digits that are wanted, none twice."""
    found: dict[int, None] = {}
    while len(found) < size:
        found |= {x: None for x in rng.integers(*_NUMBERS, size + _RESIDUES).tolist() if wanted(x)}
    return list(found)[:size]
