"""Changes that make a valid file hostile: of bytes, of text, of JSON values. The same draws give the same change."""

import gzip
import json
import re
import struct
import zlib
from collections.abc import Callable
from copy import deepcopy
from pathlib import PurePath
from random import Random
from typing import Any

_TEXT = {".txt", ".md", ".tsv", ".csv", ".xml", ".yaml", ".jinja", ".qrels", ".run"}
_TOKENS = (
    "\0", "\ud800", "\udfff\ud800", "\u202e", "\ufeff", "\u2028", "\x85", "\x1b[31m", "\r", "\n", "\t", "\n\n", " ",
    "\u3000", "\U0001f600", "e\u0301\u0301", "../../x", "/dev/zero", "%s%n", "$question", "{{", "}}", "{%", "%}", "<<",
    "&a", "*a", "!!python/object:os.system", "- ", ": ", "|", ">", "#", "```", "---", '"', "'", "\\", "\\ud800", "NaN",
    "Infinity", "-Infinity", "1e999", "-1", "0", "9" * 5_000, "null", "true", "[]", "{}", "[", "]", "{", "}", ",",
    "[" * 2_000, "<a>" * 50, "]]>", "&#0;", "&amp;",
)  # fmt: skip
_NUMBERS = (0, 1, -1, 2, 7, 127, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64)
_VALUES = (
    None, True, False, *_NUMBERS, -(2**63), -(2**64), 10**30, 10**400, 0.0, -0.0, 0.5, 1e-320, 1e39, 1.7e308,
    float("nan"), float("inf"), float("-inf"), "", " ", "\n", "a", "0", "\0", "\ud800", "a\udfffb", "\u202e",
    "../../x", "/etc/passwd", "x" * 10_000, [], {}, [[]], [{}], [None], {"": None}, {"\0": 1}, ["a", 1, None, {}],
)  # fmt: skip
# Texts that `json` would not write, in the place of a value.
_RAW = (
    "[" * 3_000 + "]" * 3_000, '{"a":' * 3_000 + "1" + "}" * 3_000, "9" * 5_000, "1e999", "-1e999", "1" + "0" * 400,
    '{"a": 1, "a": 2}', '"\\ud83d"', '"\\u0000"', "01", "'a'", "", "[1,]", '{"a"}', "//", "\\", "0x1F", "1e5", "-",
)  # fmt: skip
_PLACE = "@raw value@"
_HASH = re.compile(rb"[0-9a-f]{64}")


def mutate(rng: Random, name: str, content: bytes) -> bytes:
    """A changed copy of a file; its name says what may be changed beside bytes."""
    suffix = PurePath(name).suffix
    if suffix == ".gz" and rng.random() < 0.7:
        return gzip.compress(mutate(rng, name.removesuffix(".gz"), gzip.decompress(content)), 1, mtime=0)
    if suffix in (".json", ".jsonl") and rng.random() < 0.75:
        seal, _, body = content.partition(b"\n")
        if suffix == ".json" and _HASH.fullmatch(seal):
            return seal + b"\n" + _mutate_json(rng, body)
        return _mutate_lines(rng, content) if suffix == ".jsonl" else _mutate_json(rng, content)
    if suffix == ".safetensors" and rng.random() < 0.7:
        size = struct.unpack("<Q", content[:8])[0]
        header = _mutate_json(rng, content[8 : 8 + size])
        return struct.pack("<Q", len(header)) + header + content[8 + size :]
    change = _change_text if suffix in (*_TEXT, ".json", ".jsonl") and rng.random() < 0.7 else _change_bytes
    for _ in range(rng.choice((1, 1, 2, 4))):
        content = change(rng, content)
    return content


def _change_bytes(rng: Random, content: bytes) -> bytes:
    start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    end = min(end, start + rng.choice((1, 4, 8, 64, 4096)))
    part = content[start:end]

    def flip() -> bytes:
        return bytes([part[0] ^ 1 << rng.randrange(8)]) + part[1:] if part else b"\xff"

    def number() -> bytes:
        width = rng.choice((1, 4, 8))
        drawn = rng.choice((*_NUMBERS, len(content), len(content) - start)) & (1 << 8 * width) - 1
        return drawn.to_bytes(width, "little") + part[width:]

    ways: list[Callable[[], bytes]] = [
        flip, flip, number, number, lambda: b"", lambda: part * 2, lambda: part[::-1],
        lambda: rng.randbytes(len(part)), lambda: bytes(len(part)), lambda: part * rng.choice((10, 300)),
    ]  # fmt: skip
    changed = content[:start] + rng.choice(ways)() + content[end:]
    return changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.1 else changed


def _change_text(rng: Random, content: bytes) -> bytes:
    """Cuts, doubles, swaps parts, or puts hostile tokens in; between characters where it is UTF-8."""
    text = content.decode("utf-8", "surrogateescape")
    start, middle, end = sorted(rng.randrange(len(text) + 1) for _ in range(3))
    drawn = rng.choice(_TOKENS) if rng.random() < 0.8 else chr(rng.randrange(0x11_0000))
    ways = (
        text[:start] + drawn + text[start:],
        text[:start] + drawn + text[start:],
        text[:start] + drawn + text[middle:],
        text[:start] + text[middle:],
        text[:middle] + text[start:],
        text[:start] + text[middle:end] + text[start:middle] + text[end:],
        text[:start] + text[start:middle].swapcase() + text[middle:],
        text[:start] + drawn * rng.choice((3, 100)) + text[start:],
        text[:start],
    )
    changed = rng.choice(ways)
    try:
        return changed.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character of ours
        return changed.encode("utf-8", "surrogatepass")


def _mutate_lines(rng: Random, content: bytes) -> bytes:
    lines = content.split(b"\n")
    place = rng.choice([number for number, line in enumerate(lines) if line.strip()])
    lines[place] = _mutate_json(rng, lines[place])
    if rng.random() < 0.1:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return b"\n".join(lines)


def _mutate_json(rng: Random, content: bytes) -> bytes:
    value = json.loads(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = _changed_value(rng, value)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5).replace(f'"{_PLACE}"', rng.choice(_RAW))
    return text.encode("utf-8", "surrogatepass")


def _changed_value(rng: Random, whole: Any) -> Any:
    """One place of a JSON value changed; the value itself may be altered."""
    places: list[tuple[Any, Any]] = []

    def visit(inside: Any) -> None:
        for key in list(inside) if isinstance(inside, dict) else range(len(inside)) if isinstance(inside, list) else ():
            places.append((inside, key))
            visit(inside[key])

    visit(whole)
    if not places or rng.random() < 0.02:
        return _value(rng, (*_VALUES, _PLACE))
    parent, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.12:
        del parent[key]
    elif kind < 0.2 and isinstance(parent, dict):
        parent[rng.choice(("", "x", "\ud800", "id", "start", str(key).upper(), f"{key} "))] = parent.pop(key)
    elif kind < 0.26 and isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), parent[key])
    else:
        parent[key] = _drawn_value(rng, parent[key], places)
    return whole


def _drawn_value(rng: Random, old: Any, places: list[tuple[Any, Any]]) -> Any:
    kind = rng.random()
    if kind < 0.45:
        return _value(rng)
    if kind < 0.53:
        return _PLACE
    if kind < 0.61:
        parent, key = rng.choice(places)
        return json.loads(json.dumps(parent[key]))  # a copy: no value holds itself
    if kind < 0.69:
        return rng.choice(([old], {"a": old}, [old, old], str(old), [old] * 50))
    if isinstance(old, bool) or not isinstance(old, int | float | str):
        return _value(rng)
    if isinstance(old, str):
        place = rng.randrange(len(old) + 1)
        return old[:place] + rng.choice(_TOKENS) + old[place + rng.choice((0, 0, 1, 9)) :]
    if isinstance(old, int) and abs(old) > 1e300:  # no float could be made of it
        return -old
    return rng.choice((old + 1, old - 1, -old, old * 1_000, float(old), old + 0.5, str(old)))


def _value(rng: Random, values: tuple[Any, ...] = _VALUES) -> Any:
    """One of them, as a copy: what is changed in it later stays in its file."""
    return deepcopy(rng.choice(values))


def checksum(content: bytes) -> int:
    """A number that says which of several things is done with a content: drawn, but always the same."""
    return zlib.crc32(content)
