"""A subset of Python's regular expressions, as `re.fullmatch` with `re.ASCII` reads them.

Literals, `.`, classes, `\\d \\w \\s` and their opposites, groups, `|`, and `* + ? {m} {m,} {m,n}`. What a finite
automaton cannot do, or what means nothing where the whole text is matched, is refused by name.
"""

from qrag_jax.models.grammar.expressions import (
    Characters,
    Either,
    Expression,
    Ranges,
    Repeated,
    Sequenced,
    union,
    without,
)
from qrag_jax.types import UsageError

_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32))  # not 28 to 31: with re.ASCII they are none
_CLASSES = {
    "d": _DIGITS, "w": _WORD, "s": _SPACE, "D": without(_DIGITS), "W": without(_WORD), "S": without(_SPACE),
}  # fmt: skip
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_HEX = {"x": 2, "u": 4, "U": 8}
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MAX_DEPTH = 50  # of groups
_MAX_COUNT = 10_000  # of a quantifier


def parse_regex(pattern: str) -> Expression:
    """The expression of a pattern."""
    parser = _Parser(pattern)
    expression = parser.options(0)
    if parser.place < len(pattern):
        raise parser.fault("unbalanced ')'")
    return expression


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.place = pattern, 0

    def fault(self, what: str) -> UsageError:
        """An error that names the place."""
        return UsageError(f"grammar: regular expression {self.pattern!r:.200}, character {self.place}: {what}")

    def options(self, depth: int) -> Expression:
        """`a|b|...`, up to a closing bracket or the end."""
        if depth > _MAX_DEPTH:
            raise self.fault(f"groups are nested more than {_MAX_DEPTH} deep")
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _sequence(self, depth: int) -> Expression:
        parts = []
        while (character := self._peek()) and character not in "|)":
            parts.append(self._repeated(self._atom(depth)))
        return Sequenced(tuple(parts))

    def _peek(self) -> str:
        return self.pattern[self.place : self.place + 1]

    def _take(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.place)
        self.place += len(text) * found
        return found

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise self.fault("it ends too early")
        self.place += 1
        return character

    def _atom(self, depth: int) -> Expression:
        if self._take("("):
            self._take("?:")
            if self._peek() == "?":
                raise self.fault("groups are (...) or (?:...); look-arounds, names and flags are not read")
            inner = self.options(depth + 1)
            if not self._take(")"):
                raise self.fault("')' is missing")
            return inner
        if self._take("["):
            return Characters(self._class())
        character = self._peek()
        if character in "*+?{}":
            raise self.fault(f"{character!r} repeats nothing; write \\{character} for the character itself")
        if character in "^$":
            raise self.fault(f"{character!r}: the whole answer is matched; leave it out, or write \\{character}")
        if self._take("."):
            return Characters(without(((10, 10),)))
        return Characters(self._escaped() if self._take("\\") else _single(self._next()))

    def _repeated(self, part: Expression) -> Expression:
        if self._peek() in _QUANTIFIERS:
            least, most = _QUANTIFIERS[self._next()]
        elif self._take("{"):
            least, most = self._counts()
        else:
            return part
        self._take("?")  # lazy: which texts match is the same
        if self._peek() and self._peek() in "*+?{":
            raise self.fault("a repetition is repeated: put it into a group")
        return Repeated(part, least, most)

    def _counts(self) -> tuple[int, int | None]:
        least = self._number()
        most = (self._number() if self._peek() != "}" else None) if self._take(",") else least
        if not self._take("}") or least is None:
            raise self.fault("a count is {m}, {m,} or {m,n}; write \\{ for the character itself")
        if most is not None and most < least:
            raise self.fault(f"{{{least},{most}}}: the second number is below the first")
        return least, most

    def _number(self) -> int | None:
        start = self.place
        while self._peek() and self._peek() in "0123456789":
            self.place += 1
        digits = self.pattern[start : self.place]
        if len(digits) > len(str(_MAX_COUNT)) or (digits and int(digits) > _MAX_COUNT):
            raise self.fault(f"a count is at most {_MAX_COUNT:,}")
        return int(digits) if digits else None

    def _class(self) -> Ranges:
        is_other = self._take("^")
        parts: list[Ranges] = []
        while not parts or self._peek() != "]":
            low = self._class_item()
            if self._peek() == "-" and self.pattern[self.place + 1 : self.place + 2] not in ("]", ""):
                self.place += 1
                low = self._range(low, self._class_item())
            parts.append(low)
        self._next()
        ranges = union(parts)
        return without(ranges) if is_other else ranges

    def _class_item(self) -> Ranges:
        return self._escaped() if self._take("\\") else _single(self._next())

    def _range(self, low: Ranges, high: Ranges) -> Ranges:
        ends = [ranges[0] for ranges in (low, high) if len(ranges) == 1 and ranges[0][0] == ranges[0][1]]
        if len(ends) < 2 or ends[0] > ends[1]:
            raise self.fault("a range goes from one character up to another")
        return ((ends[0][0], ends[1][0]),)

    def _escaped(self) -> Ranges:
        character = self._next()
        if character in _CLASSES:
            return _CLASSES[character]
        if character == "0" and self._peek() and self._peek() in "01234567":
            raise self.fault("\\0 before a digit is an octal number to Python; write \\x00 or \\x with the number")
        if character in _ESCAPES:
            return _single(_ESCAPES[character])
        if character in _HEX:
            digits = self.pattern[self.place : self.place + _HEX[character]]
            is_number = len(digits) == _HEX[character] and set(digits) <= set("0123456789abcdefABCDEF")
            if not is_number or int(digits, 16) > 0x10FFFF:
                raise self.fault(f"\\{character} wants {_HEX[character]} hexadecimal digits of a character")
            self.place += len(digits)
            return _single(chr(int(digits, 16)))
        if character.isascii() and character.isalnum():
            raise self.fault(f"\\{character} is not read; known are \\d \\w \\s \\D \\W \\S \\n \\t \\r \\x \\u")
        return _single(character)


def _single(character: str) -> Ranges:
    return ((ord(character), ord(character)),)
