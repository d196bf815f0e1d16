"""The setting of a row, a record or a reading: one method with its options. A field in memory, flat values in files.

Files of an evaluation as text: one JSON object a line, written whole, and read with errors that say what to do.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from qrag_jax.files.reading import read_text_limited
from qrag_jax.files.whole_file import write_whole
from qrag_jax.types import InputError, UsageError, check_fields

R = TypeVar("R")
_KINDS = {str: "a text", int: "a whole number", float: "a finite number"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The identity of a row: what picked the chunks, and from how many.

    Attributes:
        method: of `records.METHODS`, or a bound of `answer_rows.BOUNDS`.
        mode: of the towers: latent or text; none where nothing was trained.
        positions: relative, absolute or none.
        protocol: which of the picks count, of `protocols.PROTOCOLS`; none for a bound.
        beam_width: of the search; 1 is greedy.
        seed: of the run's training.
        num_chunks: chunks of a context, padding counted.
    """

    method: str
    mode: str
    positions: str
    protocol: str = "fixed"
    beam_width: int = 1
    seed: int
    num_chunks: int

    def __post_init__(self) -> None:
        check_kinds(self)
        check_fields(self, positive=("beam_width", "num_chunks"), error=InputError)

    @property
    def line(self) -> tuple[str, str, str, str, int]:
        """The values that rows of other seeds and lengths share: method, mode, positions, protocol, beam width."""
        return self.method, self.mode, self.positions, self.protocol, self.beam_width


def require(holds: bool, name: str, value: object, rule: str) -> None:
    """Refuses a value of a field."""
    if not holds:
        raise InputError(f"{name} = {value!r} {rule}", field=name, value=value)


def check_kinds(record: Any) -> None:
    """Refuses a dataclass with a value of another kind than its field's, and a number that is not finite."""
    for name, hint in _hints(type(record)).items():
        _check_kind(name, getattr(record, name), hint)


def file_fields(kind: type, late_after: str | None = None) -> dict[str, bool]:
    """The fields of a record in its file, in order, and whether each may be absent: those with a default.

    Args:
        kind: dataclass with a field `setting`; the fields of `setting` replace it.
        late_after: field of `kind` after which protocol and beam width come instead, because older files lack them.
    """
    late, found = ("protocol", "beam_width") if late_after else (), {}
    optional = {one.name: one.default is not MISSING for one in fields(Setting)}
    for one in fields(kind):
        if one.name == "setting":
            found |= {name: has_default for name, has_default in optional.items() if name not in late}
        else:
            found[one.name] = one.default is not MISSING or one.default_factory is not MISSING
        if one.name == late_after:
            found |= {name: optional[name] for name in late}
    return found


def flat_values(record: Any, order: Mapping[str, bool]) -> dict[str, Any]:
    """The values of a record as its file holds them, its setting's among its own.

    Args:
        record: a dataclass with a field `setting`.
        order: of the fields, as `file_fields` gives them.
    """
    values = asdict(record)
    values |= values.pop("setting")
    return {name: values[name] for name in order}


def record_of(kind: type[R], values: object, where: str, order: Mapping[str, bool]) -> R:
    """A record from the JSON object that `flat_values` gave; fields with a default may be absent.

    Args:
        kind: of the record, a dataclass that checks itself.
        where: place of the object, for errors.
        order: of its fields, as `file_fields` gives them.
    """
    if not isinstance(values, dict):
        raise InputError(f"expected a JSON object, got {type(values).__name__}", file=where)
    missing = sorted(name for name, may_be_absent in order.items() if not may_be_absent and name not in values)
    if missing or values.keys() - order.keys():
        unknown = sorted(values.keys() - order.keys())
        raise InputError(f"missing fields {missing}, unknown fields {unknown}; write the file again", file=where)
    hints = _hints(kind)
    try:
        own = {name: _of_json(name, value, hints.get(name)) for name, value in values.items()}
        of_setting = {name: own.pop(name) for name in own.keys() & {one.name for one in fields(Setting)}}
        return kind(**{"setting": Setting(**of_setting), **own})
    except InputError as error:
        raise error.at(where) from error


def write_lines(path: str | os.PathLike, objects: Iterable[Mapping[str, Any]]) -> None:
    """Writes one strict JSON object a line, its texts as they are, the whole file or nothing; makes parent folders."""
    write_whole(path, "".join(json.dumps(x, ensure_ascii=False, allow_nan=False) + "\n" for x in objects))


def read_text(path: str | os.PathLike) -> str:
    """The text of a file that an evaluation wrote."""
    try:
        return read_text_limited(path)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UsageError(f"{path}: no such file; give the path of a file that an evaluation wrote") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; the file is damaged or not ours") from error


def parse_json(text: str, where: str) -> object:
    """Strict JSON: no NaN, no infinity, no field twice."""

    def refuse_constant(name: str) -> float:
        raise InputError(f"{name} is not a number that a results file may contain", file=where)

    def refuse_duplicates(pairs: list) -> dict:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            twice = min(name for name in names if names.count(name) > 1)
            raise InputError(f"the field {twice!r} is given twice; keep one", file=where)
        return dict(pairs)

    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_duplicates)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON ({error}); the file may have been cut off", file=where) from error


@cache
def _hints(kind: type) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind).items() if name != "setting"}


def _check_kind(name: str, value: Any, hint: Any, rule: str = "must be {}") -> None:
    if get_origin(hint) in (tuple, dict):
        items = value.values() if isinstance(value, dict) else value
        for item in items:
            _check_kind(name, item, get_args(hint)[-1 if isinstance(value, dict) else 0], "must contain {} each")
    elif NoneType in get_args(hint):
        if value is not None:
            _check_kind(name, value, get_args(hint)[0], rule)
    elif hint in _KINDS:
        require(_is_kind(value, hint), name, value, rule.format(_KINDS[hint]))


def _of_json(name: str, value: Any, hint: Any) -> Any:
    """Lists become tuples, and whole numbers floats where the field is one: other writers print 1.0 as 1."""
    if NoneType in get_args(hint):
        return None if value is None else _of_json(name, value, get_args(hint)[0])
    if get_origin(hint) is tuple:
        require(isinstance(value, list), name, value, "must be a list")
        return tuple(_of_json(name, item, get_args(hint)[0]) for item in value)
    if get_origin(hint) is dict:
        require(isinstance(value, dict), name, value, "must be an object")
        return {key: _of_json(name, item, get_args(hint)[1]) for key, item in value.items()}
    return float(value) if hint is float and isinstance(value, int) and _is_kind(value, float) else value


def _is_kind(value: object, kind: type) -> bool:
    if kind is float:  # compared: a whole number may be beyond what a float can hold
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, kind) and not isinstance(value, bool)
