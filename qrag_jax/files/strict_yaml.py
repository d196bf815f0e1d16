"""A strict subset of YAML: YAML 1.2 scalars, no tags, no duplicate keys, one document, no external files.

PyYAML follows YAML 1.1, where `no` is false, `1e-3` is text, `1:30` is 90 and `017` is 15. Here `no` is text, `1e-3` is
a number and the others are text or decimal. Anchors work, within a limit on the expanded size. Imports no JAX.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from unicodedata import category

import yaml
from yaml.composer import ComposerError

from qrag_jax.files.reading import MAX_CONFIG_BYTES
from qrag_jax.types import UsageError

_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp"})  # categories of invisible characters
_MAX_DEPTH = 50
_MAX_NODES = 10_000  # after aliases are expanded, because nine lines of them can grow to 10^9 values

_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_STR = "tag:yaml.org,2002:str"

# YAML 1.2.2, section 10.3.2, "core schema"; PyYAML looks a pattern up by the first character of the scalar.
_RESOLVERS = [
    (_NULL, re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    (_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    (_INT, re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    (
        _FLOAT,
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+.0123456789"),
    ),
]


class _StrictLoader(yaml.SafeLoader):
    """Composes nodes under the YAML 1.2 core schema; refuses tags and deep nesting during reading."""

    yaml_implicit_resolvers: dict = {}
    depth = num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if getattr(event, "tag", None) is not None:
            raise ComposerError(None, None, f"tag {event.tag!r} is not allowed; remove it", event.start_mark)
        self.num_nodes += 1
        if self.num_nodes > 2 * _MAX_NODES:  # with keys; a megabyte would take a minute
            raise ComposerError(None, None, f"more than {_MAX_NODES:,} values", event.start_mark)
        if self.depth >= _MAX_DEPTH:
            raise ComposerError(None, None, f"nested more than {_MAX_DEPTH} deep", event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _StrictDumper(yaml.SafeDumper):
    """Quotes text that the loader above would read as another type."""

    yaml_implicit_resolvers: dict = {}

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # PyYAML writes these line breaks without double quotes, and reads them as a blank
        style = '"' if any(break_ in data for break_ in "\x85\u2028\u2029") else None
        return self.represent_scalar(_STR, data, style=style)


for _tag, _pattern, _first in _RESOLVERS:
    _StrictLoader.add_implicit_resolver(_tag, _pattern, _first)
    _StrictDumper.add_implicit_resolver(_tag, _pattern, _first)
_StrictDumper.add_representer(str, _StrictDumper.represent_str)


def parse_yaml(text: str, source: str) -> object:
    """Parses one YAML document.

    Args:
        text: the document; empty is None.
        source: file name or description, for messages.

    Returns:
        Nested dicts with string keys, lists, and str, int, float, bool or None.
    """
    return parse_yaml_lines(text, source)[0]


def parse_yaml_lines(text: str, source: str) -> tuple[object, dict[str, int]]:
    """`parse_yaml`, and the 1-based line of every value by its dotted path, for messages."""
    if len(text) > MAX_CONFIG_BYTES:  # parsing would take minutes
        raise UsageError(f"has more than {MAX_CONFIG_BYTES:,} characters, too many for a config", file=source)
    try:
        root = yaml.compose(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}" if mark else source
        raise UsageError(f"{place}: malformed YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:  # a forbidden character: it has a position and no line
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise UsageError(f"{source}:{line}: malformed YAML: {' '.join(str(error).split())}") from error
    if root is None:
        return None, {}
    builder = _Builder(source)
    return builder.build(root, "", 0), builder.lines


class _Builder:
    """Turns composed nodes into plain values and records their lines."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[str, int] = {}
        self.num_nodes = 0

    def refuse(self, node: yaml.Node, message: str) -> UsageError:
        return UsageError(f"{self.source}:{node.start_mark.line + 1}: {message}")

    def build(self, node: yaml.Node, path: str, depth: int) -> object:
        self.num_nodes += 1
        if self.num_nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise self.refuse(node, "anchors expand without end or to too many values; write the values out")
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self.build_mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, f"{path}.{i}" if path else str(i), depth + 1) for i, item in enumerate(node.value)]
        return self.build_scalar(node.tag, node.value, node)

    def build_mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, object]:
        result: dict[str, object] = {}
        first_line: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _STR:
                raise self.refuse(key_node, "a key must be text; give a field name, or a quoted word")
            if key in result:
                first = first_line[key]
                raise self.refuse(key_node, f"duplicate key {key!r} (first on line {first}); keep only one")
            child = f"{path}.{key}" if path else key
            first_line[key] = self.lines[child] = line
            result[key] = self.build(value_node, child, depth + 1)
        return result

    def build_scalar(self, tag: str, text: str, node: yaml.Node) -> object:
        if tag == _NULL:
            return None
        if tag == _BOOL:
            return text.lower() == "true"
        if tag == _INT:
            if len(text) > 100:
                raise self.refuse(node, "an integer of more than 100 digits; write a smaller one")
            return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
        if tag == _FLOAT:
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        return text


def dump_yaml(value: object) -> str:
    """Writes nested dicts, lists and scalars as YAML, in their order; `parse_yaml` gives the same value back."""
    text = _dumped(value, allow_unicode=True)
    # Invisible characters, such as those of direction, would confuse a terminal, so they are escaped.
    return text if not any(category(one) in _UNSEEN for one in text if one != "\n") else _dumped(value)


def _dumped(value: object, allow_unicode: bool = False) -> str:
    options: dict[str, Any] = {"sort_keys": False, "default_flow_style": False, "width": 120}
    return yaml.dump(plain(value), Dumper=_StrictDumper, allow_unicode=allow_unicode, **options)


def plain(value: object) -> object:
    """A copy of `value` in dicts, lists and built-in scalars (tuples become lists)."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is not text")
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, bool) or value is None:
        return value
    for scalar in (str, int, float):  # the constructor drops subclasses such as numpy.float64
        if isinstance(value, scalar):
            return scalar(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(item) for item in value]
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written to a config")
