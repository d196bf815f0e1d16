"""What a row, a record or a reading is of: one method in one setting. In memory a field, in files flat values.

Files of an evaluation as text: one JSON object a line, written whole, and read with errors that say what to do.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from qrag_jax.files.reading import read_text_limited
from qrag_jax.files.whole_file import write_whole
from qrag_jax.types import InputError, UsageError


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The identity of a row: what picked the chunks, and from how many.

    Attributes:
        method: of `records.METHODS`, or a bound of `readings.BOUNDS`.
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
        for name in ("method", "mode", "positions", "protocol"):
            require(isinstance(getattr(self, name), str), name, getattr(self, name), "must be a text")
        for name in ("beam_width", "seed", "num_chunks"):
            value = getattr(self, name)
            require(isinstance(value, int) and not isinstance(value, bool), name, value, "must be a whole number")
        for name in ("beam_width", "num_chunks"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")

    @property
    def line(self) -> tuple[str, str, str, str, int]:
        """What rows of other seeds and lengths share: method, mode, positions, protocol, beam width."""
        return self.method, self.mode, self.positions, self.protocol, self.beam_width


def require(holds: bool, name: str, value: object, rule: str) -> None:
    """Refuses a value of a field."""
    if not holds:
        raise InputError(f"{name} = {value!r} {rule}")


def file_fields(kind: type, late_after: str | None = None) -> dict[str, bool]:
    """The fields of a record in its file, in order, and whether each may be absent: those with a default.

    Args:
        kind: dataclass with a field `setting`, whose own fields stand in its place.
        late_after: field of `kind` behind which protocol and beam width stand instead: files lacked them once.
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


def nested_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a record from the values in its file: what is the setting's goes into one."""
    names = {one.name for one in fields(Setting)}
    setting = Setting(**{name: value for name, value in values.items() if name in names})
    return {"setting": setting} | {name: value for name, value in values.items() if name not in names}


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
