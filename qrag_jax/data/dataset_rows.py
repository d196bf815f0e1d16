"""Rows of a published data set from JSON, JSON Lines, Parquet, a saved `datasets` folder, or the hub.

Fields of a row that must be an id, a whole number, a text or a list; errors name place and field.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from qrag_jax.chunking.text.spans import readable
from qrag_jax.files.text_files import begins_with, json_value, read_json_lines, read_text_file
from qrag_jax.files.vector_files import read_table
from qrag_jax.types import InputError, UsageError

if TYPE_CHECKING:
    import pyarrow

# (place for error messages, id of a row that has none of its own, fields by name)
Row = tuple[str, str, Mapping[str, object]]

_HUB_ID = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(:(?P<config>[^@\s]+))?@(?P<split>\w[\w\[\]:%+-]*)")
_KINDS = (
    ".json or .jsonl (or .gz of them), .parquet, .arrow, a folder of `save_to_disk`, or on the Hugging Face hub "
    "OWNER/NAME[:CONFIG]@SPLIT"
)


def read_rows(source: str | Path, what: str) -> Iterator[Row]:
    """Yields the rows of a data set in their order as (place, default id, fields).

    The place is `FILE:LINE` with lines counted from 1 in JSON Lines, else `SOURCE: row N` with rows counted from 0, as
    Python and `datasets` index them; the default id is the file's name with that number.

    Args:
        source: a .json file (one list of objects, or one object a line), .jsonl, either one also as .gz; .parquet or
            .arrow; a folder written by `Dataset.save_to_disk`; or `OWNER/NAME[:CONFIG]@SPLIT` on the Hugging Face hub.
            What exists as a path is read as one.
        what: says in errors which data is wanted.

    Raises:
        UsageError: no such file, an unknown kind of file, or a data set that the hub does not give.
        InputError: a file that cannot be read, a row that is no JSON object, or no row at all.
    """
    path = Path(source)
    hub = None if path.exists() else _HUB_ID.fullmatch(str(source))
    if hub:
        rows = _hub_rows(str(source), hub["name"], hub["config"], hub["split"], what)
    elif path.is_dir() or path.suffix in (".parquet", ".arrow"):
        rows = _table_rows(path, what)
    elif path.name.endswith((".json", ".json.gz", ".jsonl", ".jsonl.gz")):
        rows = _json_rows(path, what)
    else:
        problem = "unknown kind of file" if path.exists() else "no such file"
        raise UsageError(f"{problem}; expected {what} as {_KINDS}", file=source)
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise InputError(f"no row; expected {what}", file=source)


def _json_rows(path: Path, what: str) -> Iterator[Row]:
    """JSON Lines; a file named .json may be one list, which its first character tells."""
    if begins_with(path, b"[", what):  # one list, whatever the file is called
        yield from _list_rows(path, read_text_file(path, what), what)
        return
    for where, fields in read_json_lines(path, what):
        yield where, f"{path.name}:{where.rsplit(':', 1)[1]}", fields


def _list_rows(path: Path, text: str, what: str) -> Iterator[Row]:
    for number, fields in enumerate(json_value(text, path, what)):
        where = f"{path}: row {number}"
        if not isinstance(fields, dict):
            raise InputError(f"expected a JSON object, got {type(fields).__name__}; expected {what}", file=where)
        yield where, f"{path.name}:{number}", fields


def _table_rows(path: Path, what: str) -> Iterator[Row]:
    if not path.exists():
        raise UsageError(f"no such file; expected {what} as {_KINDS}", file=path)
    number = 0
    for batch in read_table(path).to_batches(max_chunksize=1024):  # as Python objects a whole table needs much memory
        for fields in _objects(batch, path):
            yield f"{path}: row {number}", f"{path.name}:{number}", fields
            number += 1


def _objects(batch: "pyarrow.RecordBatch", path: Path) -> list[dict[str, object]]:
    import pyarrow as pa

    try:
        return batch.to_pylist()
    except (ValueError, OverflowError, OSError, pa.ArrowException) as error:  # a date that no calendar has
        raise InputError(f"a value cannot be read ({error}); is the file whole?", file=path) from error


def _hub_rows(source: str, name: str, config: str | None, split: str, what: str) -> Iterator[Row]:
    """Rows of one split; `datasets` keeps downloads in its cache."""
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        dataset = datasets.load_dataset(name, config, split=split)
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"cannot be loaded from the hub ({error}); check OWNER/NAME[:CONFIG]@SPLIT and the network, or "
            f"download it and give the file; expected {what}",
            file=source,
        ) from error
    for number, fields in enumerate(cast(Iterable[Mapping[str, object]], dataset)):
        yield f"{source}: row {number}", f"{source}:{number}", fields


def entries(row: Mapping, field: str, names: tuple[str, ...], where: str) -> list[Mapping]:
    """A list field as objects, whichever of four layouts it has.

    Args:
        field: a list of objects, a list of lists in the order of `names`, an object of columns (lists of one length),
            or any of these as JSON text.
        names: of the elements of such an inner list; empty where the field has no such layout.
        where: place of the row, for errors.
    """
    value = row.get(field)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{field} is a text but not JSON ({error}): {short(row[field])}", file=where) from error
    if isinstance(value, Mapping):
        columns = list(value.values())
        if not all(isinstance(column, list) for column in columns) or len({len(column) for column in columns}) > 1:
            raise InputError(f"{field} must have columns of lists of one length, got {short(value)}", file=where)
        return [dict(zip(value, cells, strict=True)) for cells in zip(*columns, strict=True)]
    if not isinstance(value, list):
        raise must_be(where, field, "a list", value)
    objects = []
    for index, entry in enumerate(value):
        if names and isinstance(entry, list) and len(entry) == len(names):
            entry = dict(zip(names, entry, strict=True))
        if not isinstance(entry, Mapping):
            wanted = f"[{', '.join(names)}]" if names else "an object"
            raise must_be(where, f"{field}[{index}]", wanted, entry)
        objects.append(entry)
    return objects


def one_line(text: str) -> str:
    """Every run of white space as one blank, none at the ends."""
    return " ".join(text.split())


def text_field(value: object, field: str, where: str) -> str:
    """`value` if it is a text, else an InputError that names place and field."""
    if not isinstance(value, str):
        raise must_be(where, field, "a text", value)
    return value


def short(value: object) -> str:
    """A value as error messages show it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def must_be(where: str, field: str, wanted: str, value: object) -> InputError:
    """The error of a field of a row that is something else."""
    return InputError(f"{field} must be {wanted}, got {short(value)}", file=where, field=field, value=value)


def id_field(value: object, field: str, where: str) -> str:
    """A string or an integer as an id; lone surrogates become U+FFFD."""
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise must_be(where, field, "a text or an integer", value)
    return readable(str(value))


def int_field(value: object, field: str, where: str) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise must_be(where, field, "an integer", value)
    return value


def any_text(value: object, field: str, where: str) -> str:
    """A text that must be there but may be blank; lone surrogates become U+FFFD."""
    return readable(text_field(value, field, where))


def full_text(value: object, field: str, where: str) -> str:
    """A text that is not blank; lone surrogates, which no tokenizer takes, become U+FFFD."""
    if not isinstance(value, str) or not value.strip():
        raise must_be(where, field, "a text that is not empty", value)
    return readable(value)


def optional_text(value: object, field: str, where: str) -> str:
    """A text that may be blank or missing (None), which is the empty text; lone surrogates become U+FFFD."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise must_be(where, field, "a text", value)
    return readable(value)


def list_field(value: object, field: str, where: str) -> list[object]:
    """A list; None is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise must_be(where, field, "a list", value)
    return list(value)
