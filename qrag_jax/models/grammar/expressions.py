"""The parts of a grammar: sets of characters, sequences, alternatives, repetitions. Regular, over UTF-8."""

from collections.abc import Iterable
from dataclasses import dataclass

from qrag_jax.types import UsageError

# Code points, both ends included.
Ranges = tuple[tuple[int, int], ...]
# Bytes of one place of a character, both ends included.
ByteRange = tuple[int, int]

ANY_CHARACTER: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # halves of surrogate pairs are no characters
_LENGTH_ENDS = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)  # last code points of 1, 2, 3 and 4 bytes


@dataclass(frozen=True)
class Characters:
    """One character of these ranges; of none: nothing at all is admitted."""

    ranges: Ranges


@dataclass(frozen=True)
class Sequenced:
    """One after the other; of none: the empty text."""

    parts: tuple["Expression", ...]


@dataclass(frozen=True)
class Either:
    """One of them; of none: nothing is admitted."""

    options: tuple["Expression", ...]


@dataclass(frozen=True)
class Repeated:
    """So many copies, unrolled where there is a bound; `most` None is no bound."""

    part: "Expression"
    least: int
    most: int | None


@dataclass(frozen=True)
class Run:
    """At most so many copies of a part, counted beside the automaton: a long bound costs no states.

    What follows a run, and what could stand in its place, must begin with other bytes than `part`: else a byte would
    be counted or not (`automaton.byte_automaton` refuses that). `part` is not empty and holds no run.
    """

    part: "Expression"
    most: int


Expression = Characters | Sequenced | Either | Repeated | Run


def literal(text: str) -> Sequenced:
    """Exactly this text."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError(
            f"grammar: {text!r:.60} contains half of a character (a lone surrogate): no answer can spell it"
        )
    return Sequenced(tuple(Characters(((ord(character), ord(character)),)) for character in text))


def sequence(*parts: Expression | str) -> Sequenced:
    """One after the other; a `str` is itself."""
    return Sequenced(tuple(literal(part) if isinstance(part, str) else part for part in parts))


def either(*options: Expression | str) -> Either:
    """One of them; a `str` is itself."""
    return Either(tuple(literal(option) if isinstance(option, str) else option for option in options))


def optional(part: Expression) -> Repeated:
    """Once or not at all."""
    return Repeated(part, 0, 1)


def one_of(characters: str) -> Characters:
    """One of these characters."""
    return Characters(tuple((ord(character), ord(character)) for character in characters))


def union(parts: Iterable[Ranges]) -> Ranges:
    """All code points of any of them, sorted and joined, without halves of surrogate pairs."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(pair for ranges in parts for pair in ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    halves = [(max(first, low), min(last, high)) for first, last in joined for low, high in ANY_CHARACTER]
    return tuple((first, last) for first, last in halves if first <= last)


def without(ranges: Ranges) -> Ranges:
    """All other characters."""
    left, start = [], 0
    for first, last in union([ranges]):
        left.append((start, first - 1))
        start = last + 1
    return union([tuple(pair for pair in [*left, (start, 0x10FFFF)] if pair[0] <= pair[1])])


def utf8_sequences(ranges: Ranges) -> list[tuple[ByteRange, ...]]:
    """Sequences of byte ranges that spell exactly the characters of the ranges, each in one of them."""
    found: list[tuple[ByteRange, ...]] = []
    for first, last in union([ranges]):
        for end in _LENGTH_ENDS:
            if first <= end:
                found += _aligned(first, min(last, end))
                first = end + 1
            if first > last:
                break
    return found


def _aligned(first: int, last: int) -> list[tuple[ByteRange, ...]]:
    """Cuts a range of code points with equally many bytes into parts in which each byte takes all values or one."""
    low, high = chr(first).encode("utf-8"), chr(last).encode("utf-8")
    for bits in (6, 12, 18):
        mask = (1 << bits) - 1
        if len(low) <= bits // 6 or first >> bits == last >> bits:
            continue
        if first & mask:
            return _aligned(first, first | mask) + _aligned((first | mask) + 1, last)
        if last & mask != mask:
            return _aligned(first, (last & ~mask) - 1) + _aligned(last & ~mask, last)
    return [tuple(zip(low, high, strict=True))]
