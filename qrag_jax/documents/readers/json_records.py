"""The text of JSON files and JSON Lines: `name: value` lines, a record as a paragraph.

Numbers are written as in the file, and a repeated name is kept. Values that are null, blank or base64 are left out.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial

from qrag_jax.documents.converted import Converted, ReadOptions, cleaned
from qrag_jax.documents.decoding import decode_part
from qrag_jax.documents.kinds import FileKind
from qrag_jax.types import InputError

_MAX_DEEP, _MAX_NAME, _NUM_PARENTS = 100, 100, 2  # levels; characters of a parent's name; parents that a line names
_MAX_SHOWN, _MAX_BAD = 10, 100  # names in a message; lines until a file is refused if most of them are not JSON
_BASE64 = re.compile(r"(?:data:[^,]{0,100},)?[A-Za-z0-9+/=_-]{400,}")
_BAD_LINES, _BASE64_VALUES = "lines that are not JSON", "base64 values"  # kinds of content that is left out
_Path = tuple[str, ...]


class _Object(list[tuple[str, object]]):
    """The fields of an object, in order."""


def read_json(raw: bytes, encoding: str = "utf-8", fields: Sequence[str] = (), *, lines: bool = False) -> Converted:
    """The text of the records of a file.

    Args:
        encoding: of a file that is not UTF-8.
        fields: names of the fields to read, with all below them. `author.name` is the field `name` of an `author`. One
            field gives values without names. Empty reads all.
        lines: every line is a record.
    """
    text, missing = decode_part(raw, encoding)
    found = _Text(fields, missing)
    if lines:
        _add_lines(text, found)
    else:
        try:
            found.add(_parsed(text))
        except json.JSONDecodeError as error:
            if not error.msg.startswith("Extra data"):
                raise InputError(f"not JSON: {error}; correct it, or rename it to end in .txt") from error
            _add_lines(text, found)
    content = cleaned("\n".join(found.lines))
    if not content.strip():
        names = ", ".join(list(found.names)[:_MAX_SHOWN])
        what = f"no value in its fields {', '.join(fields)}; it has {names}" if fields else "no text in its values"
        raise InputError(f"{what}; {'name other fields, or ' * bool(fields)}leave this file out")
    return Converted(content, left_out=missing)


def _parsed(text: str) -> object:
    return json.loads(text, object_pairs_hook=_Object, parse_int=str, parse_float=str, parse_constant=str, strict=False)


def _add_lines(text: str, found: "_Text") -> None:
    """Adds each line as a record."""
    num_bad = num_good = 0
    for line in filter(str.strip, text.split("\n")):
        try:
            found.add(_parsed(line), in_record=True)
            num_good += 1
        except json.JSONDecodeError:
            num_bad += 1
        if num_bad > _MAX_BAD and num_bad > num_good:
            break
    if num_bad > num_good:
        raise InputError("most of its lines are not JSON; correct it, or rename it to end in .txt")
    if num_bad:
        found.missing[_BAD_LINES] = num_bad


class _Text:
    """The lines of the text, as far as they are known.

    Attributes:
        lines: `name: value`, or empty between records.
        missing: kind of content that was left out -> number.
        names: of all fields, as keys.
    """

    def __init__(self, fields: Sequence[str], missing: dict[str, int]) -> None:
        self.lines: list[str] = []
        self.missing = missing
        self.names: dict[str, None] = {}
        self._wanted = [tuple(field.split(".")) for field in fields] + [(field,) for field in fields]
        self._has_names = len(fields) != 1

    def add(self, value: object, *, in_record: bool = False) -> None:
        """Adds a record, or a file of records."""
        self._add(value, (), 0, not self._wanted, in_record)
        self.lines.append("")

    def _add(self, value: object, path: _Path, depth: int, is_wanted: bool, in_record: bool) -> None:
        if depth > _MAX_DEEP:
            raise InputError(f"nested deeper than {_MAX_DEEP} levels, so it is damaged or hostile; leave it out")
        if isinstance(value, _Object):
            for name, inner in value:
                below = (*path, name)
                self.names[name] = None
                self._add(inner, below, depth + 1, is_wanted or self._is_wanted(below), in_record)
        elif isinstance(value, list) and any(isinstance(item, list) for item in value):
            for item in value:
                self.lines += [""] * (not in_record)
                self._add(item, path, depth + 1, is_wanted, True)
            self.lines += [""] * (not in_record)
        elif is_wanted:
            values = [text for item in (value if isinstance(value, list) else [value]) if (text := self._text(item))]
            if values:
                self.lines.append(self._label(path) + ", ".join(values))

    def _is_wanted(self, path: _Path) -> bool:
        return any(path[-len(field) :] == field for field in self._wanted)

    def _text(self, value: object) -> str:
        """A value as text; empty if it is left out."""
        if not isinstance(value, str):
            return "" if value is None else json.dumps(value)  # only true and false: numbers stay as they are written
        if _BASE64.fullmatch(value.replace("\n", "")):
            self.missing[_BASE64_VALUES] = self.missing.get(_BASE64_VALUES, 0) + 1
            return ""
        return value.strip()

    def _label(self, path: _Path) -> str:
        if not path or not self._has_names:
            return ""
        parents = (name[:_MAX_NAME] for name in path[-1 - _NUM_PARENTS : -1])
        return ".".join((*parents, path[-1])) + ": "


def _load(options: ReadOptions, *, lines: bool = False) -> Callable[[bytes], Converted]:
    return lambda raw: read_json(raw, options.encoding, options.fields, lines=lines)


KIND = FileKind((".json",), "a JSON file", (), _load, looks_like_text=True, is_light=True, uses=("fields",))
LINES = FileKind(
    (".jsonl", ".ndjson"), "a JSON Lines file", (), partial(_load, lines=True), looks_like_text=True, is_light=True,
    uses=("fields",),
)  # fmt: skip
