"""The text of a Jupyter notebook: Markdown and code cells in order, and outputs if they are asked for."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qrag_jax.documents.converted import Converted, ReadOptions, cleaned
from qrag_jax.documents.decoding import decode_part
from qrag_jax.documents.kinds import FileKind
from qrag_jax.types import InputError

_PICTURE = re.compile(r"data:[\w.+/-]{1,100};base64,[A-Za-z0-9+/=]+")  # in Markdown
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FENCES = re.compile(r"`{3,}")
_FORMS = ("text/markdown", "text/plain", "text/latex")  # of an output, the best first
_OUTPUTS, _PICTURES = "outputs", "pictures"  # kinds of content that is left out


def read_notebook(raw: bytes, encoding: str = "utf-8", *, outputs: bool = False) -> Converted:
    """The text of a notebook, without pictures.

    Args:
        encoding: of a file that is not UTF-8.
        outputs: read the texts that its cells printed and returned.
    """
    text, missing = decode_part(raw, encoding)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"not a notebook ({error}); get the file again") from error
    parts = [part.strip("\n") for cell in _cells(found) for part in _parts(cell, _language(found), outputs, missing)]
    content = cleaned("\n\n".join(part for part in parts if part.strip()))
    if not content:
        raise InputError("a notebook without text in its cells; leave it out")
    return Converted(content, left_out={kind: number for kind, number in missing.items() if number})


def _cells(found: object) -> Iterator[Mapping[str, Any]]:
    """The cells; those of format 3 lie in work sheets."""
    sheets = [found, *_list(_get(found, "worksheets"))]
    for sheet in sheets:
        yield from (cell for cell in _list(_get(sheet, "cells")) if isinstance(cell, dict))


def _language(found: object) -> str:
    of_kernel = _get(_get(_get(found, "metadata"), "kernelspec"), "language")
    name = _get(_get(_get(found, "metadata"), "language_info"), "name") or of_kernel
    return name if isinstance(name, str) and name.isalnum() else ""


def _parts(cell: Mapping[str, Any], language: str, with_outputs: bool, missing: dict[str, int]) -> Iterator[str]:
    """The texts of a cell and its outputs."""
    kind, source = cell.get("cell_type"), _joined(cell.get("source", cell.get("input")))
    if kind == "code":
        yield _fenced(source, language)
        shown = _list(cell.get("outputs"))
        if with_outputs:
            for output in shown:
                yield from _output(output, missing)
        else:
            missing[_OUTPUTS] = missing.get(_OUTPUTS, 0) + len(shown)
        return
    num_attached = len(_get(cell, "attachments") or ())
    text, num_inline = _PICTURE.subn("", source)
    missing[_PICTURES] = missing.get(_PICTURES, 0) + num_attached + num_inline
    level = cell.get("level")
    yield f"{'#' * level} {text}" if kind == "heading" and isinstance(level, int) and 0 < level < 7 else text


def _output(output: object, missing: dict[str, int]) -> Iterator[str]:
    """The text of an output: printed, returned, or of an error."""
    data = _get(output, "data") or output  # format 3 has the texts in the output itself
    shown = next((found for form in _FORMS if (found := _get(data, form))), None)
    error = _get(output, "traceback") or f"{_get(output, 'ename') or ''}: {_get(output, 'evalue') or ''}".strip(": ")
    texts = [_get(output, "text"), shown, error]
    for text in texts:
        joined = "\n".join(map(str, text)) if text is texts[-1] and isinstance(text, list) else _joined(text)
        if joined.strip():
            yield joined if text is _get(data, "text/markdown") else _fenced(_COLOURS.sub("", joined), "")
    pictures = [name for name in data if str(name).startswith("image/")] if isinstance(data, dict) else []
    missing[_PICTURES] = missing.get(_PICTURES, 0) + bool(pictures)
    missing[_OUTPUTS] = missing.get(_OUTPUTS, 0) + (isinstance(data, dict) and not any([*texts, *pictures]))


def _fenced(code: str, language: str) -> str:
    """Code in a fence that is longer than any in it."""
    if not code.strip():
        return ""
    fence = "`" * max([2, *map(len, _FENCES.findall(code))]) + "`"
    return f"{fence}{language}\n{code.strip(chr(10))}\n{fence}"


def _joined(text: object) -> str:
    """A text, which may be a list of lines."""
    return "".join(map(str, text)) if isinstance(text, list) else text if isinstance(text, str) else ""


def _get(found: object, name: str) -> Any:
    return found.get(name) if isinstance(found, dict) else None


def _list(found: object) -> list[Any]:
    return found if isinstance(found, list) else []


def _load(options: ReadOptions) -> Callable[[bytes], Converted]:
    return lambda raw: read_notebook(raw, options.encoding, outputs=options.outputs)


KIND = FileKind((".ipynb",), "a notebook", (), _load, looks_like_text=True, is_light=True, uses=("outputs",))
