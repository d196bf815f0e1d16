"""Run configs: strict YAML and dotted overrides for frozen dataclasses, which are next to the code they configure.

The dataclasses have the defaults; a file has only the differences. Values are checked against the annotations. Numbers
must fit into arrays: finite, integers of 64 bits. Imports no JAX.

A field may be bool, int, float, str, Literal, tuple, list, dict with string keys, another dataclass, or any of these or
None. Put other checks into `__post_init__` as ValueError (or UsageError). They are reported with the path and the line
or override of `error.field`, or else of a field that the message names.
"""

import difflib
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from qrag_jax.errors import InputError, UsageError, Words
from qrag_jax.files.reading import MAX_CONFIG_BYTES, read_text_limited
from qrag_jax.files.strict_yaml import dump_yaml, parse_yaml, parse_yaml_lines, plain

Config = TypeVar("Config")

# A field, then fields of fields or keys of mappings, which may be any word.
_OVERRIDE_NAME = re.compile(r"[^\W\d]\w*(\.[\w-]+)*")

_SCALARS: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    type(None): "null",
}
_LARGEST_INT = 2**63 - 1


def load_config(cls: type[Config], path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Builds a config from its defaults, a YAML file and overrides; later ones win.

    Args:
        cls: frozen dataclass.
        path: YAML file with the fields that differ from the defaults; None for no file.
        overrides: `learner.gamma=0.9`, with or without leading dashes. A value is YAML (`null`, `[1, 2]`, `1e-3`); for
            a string field it is taken literally, without quotes around it.

    Raises:
        UsageError: the file is missing or malformed, a field is unknown or missing, or a value has a wrong type or is
            not allowed. The message has one line for each fault: file and line or override, dotted path, value, what is
            allowed.
    """
    data: dict[str, Any] = {}
    where: dict[str, str] = {}
    source = "defaults"
    if path is not None:
        data, lines = _read(Path(path))
        source = str(path)
        where = {name: f"{path}:{line}" for name, line in lines.items() if name}
    raw: dict[str, str] = {}
    for override in overrides:
        name, text = _split_override(override)
        _set(data, name, _parse_override(text))
        for known in (where, raw):
            for replaced in [other for other in known if other == name or other.startswith(f"{name}.")]:
                del known[replaced]
        where[name] = f"override {override}"
        raw[name] = text
    return _decode(cls, data, _Faults(where, raw, source))


def is_given(name: str, path: str | Path | None, overrides: Sequence[str]) -> bool:
    """True if a YAML file or an override sets a field, by its dotted name, as `load_config` reads them."""
    given = {} if path is None else flatten(_read(Path(path))[0])
    return name in {*given, *(_split_override(override)[0] for override in overrides)}


def is_override(word: str) -> bool:
    """True if a word has the form of an override, `field.subfield=value`."""
    name, equals, _ = word.removeprefix("--").partition("=")
    return bool(equals) and _OVERRIDE_NAME.fullmatch(name) is not None


def config_from_dict(cls: type[Config], data: object, source: str) -> Config:
    """Builds a config from nested plain values, as `to_dict` returns them; checks and messages as in `load_config`."""
    return _decode(cls, data, _Faults({}, {}, source))


def to_dict(config: Any) -> dict[str, Any]:
    """Nested dicts, lists and scalars of a config, with every field; `config_from_dict` reverses it."""
    return {f.name: _plain(getattr(config, f.name)) for f in fields(config) if f.init}


def filled(cls: type, data: object) -> Any:
    """Plain values of a config, perhaps from an earlier version, with missing fields at their defaults.

    A value that is not such a config is returned unchanged, so it equals no config.
    """
    try:
        return to_dict(config_from_dict(cls, data, "stored config"))
    except UsageError:
        return data


def dump_config(config: object) -> str:
    """A config as YAML, with every field; `load_config` of that file gives an equal config."""
    return dump_yaml(to_dict(config))


def flatten(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """One level of dotted names: `{"learner": {"gamma": 0.9}}` becomes `{"learner.gamma": 0.9}`; lists stay whole."""
    flat: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _plain(value: object) -> Any:
    if is_dataclass(value):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return plain(value)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    try:
        text = read_text_limited(path, MAX_CONFIG_BYTES)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise UsageError("no such config file; give the path of a YAML file", file=path) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 text (byte {error.start}); save the file as UTF-8", file=path) from error
    data, lines = parse_yaml_lines(text, str(path))
    if data is None:  # an empty file changes nothing
        return {}, {}
    if not isinstance(data, dict):
        raise UsageError(f"must be a mapping of `field: value` lines, but is {_describe(data)}", file=path)
    return data, lines


def _split_override(override: str) -> tuple[str, str]:
    if not is_override(override):
        raise UsageError(f"override {override!r}: write it as field=value, for example learner.gamma=0.9")
    name, _, text = override.removeprefix("--").partition("=")
    return name, text


def _parse_override(text: str) -> object:
    try:
        return parse_yaml(text, "override")
    except UsageError:
        return text  # `pattern=*.txt` is text; a field of another type refuses it later


def _set(data: dict[str, Any], name: str, value: object) -> None:
    *parents, last = name.split(".")
    for part in parents:
        if not isinstance(data.get(part), dict):
            data[part] = {}
        data = data[part]
    data[last] = value


@dataclass
class _Faults:
    """The faults of a config, one line each, and where each value came from."""

    where: dict[str, str]  # dotted path -> "file:line" or "override ..."
    raw: dict[str, str]  # dotted path -> text of the override
    source: str
    errors: list[UsageError] = field(default_factory=list)

    def add(self, path: str, message: Words, at: str | None = None, **parts: Any) -> None:
        """Records a fault of the value at `path`; its place is that of `at` if given.

        Args:
            parts: of the error, besides file and field.
        """
        place = path if at is None else at
        while place and place not in self.where:  # an override of a parent, or an item of a list
            place = place.rpartition(".")[0]
        self.errors.append(UsageError(message, file=self.where.get(place, self.source), field=path or None, **parts))

    def refuse(self, path: str, error: ValueError | TypeError) -> None:
        """Records the error of the dataclass at `path`."""
        if isinstance(error, InputError) and error.field:
            name = f"{path}.{error.field}" if path else error.field
            self.add(name, error.reason, value=error.value, remedy=error.remedy)
        else:
            self.add(path, str(error), _culprit(path, str(error), self))

    def trial(self) -> "_Faults":
        return _Faults(self.where, self.raw, self.source)


def _decode(cls: type[Config], data: object, faults: _Faults) -> Config:
    built = _build(cls, data, "", None, faults)
    if faults.errors:
        raise faults.errors[0] if len(faults.errors) == 1 else UsageError("\n".join(map(str, faults.errors)))
    return built


def _culprit(path: str, message: str, faults: _Faults) -> str:
    """The path of the value that a dataclass's own check complains about.

    Among the fields that the message names (with or without their parent), it is the one overridden last, or else the
    first whose place is known. Otherwise it is the last override below the path, or the first field in the message.
    """
    below, own = f"{path}." if path else "", f"{path.rpartition('.')[2]}."
    words = [below + word.removeprefix(own) for word in re.findall(r"[\w-]+(?:\.[\w-]+)*", message)]
    named = [word for word in words if word in faults.where]
    overridden = [name for name in faults.raw if name in named]
    others = [name for name in faults.raw if path and name.startswith(below)]
    return [*overridden[-1:], *named[:1], *others[-1:], *words[:1], path][0]


def _build(cls: type, data: object, path: str, default: object, faults: _Faults) -> Any:
    """A dataclass of the given fields, over those of the default object if there is one; None if one is wrong."""
    if not isinstance(data, Mapping):
        return faults.add(path, f"expected the fields of {cls.__name__}, got {_describe(data)}")
    hints, num_faults, prefix = get_type_hints(cls), len(faults.errors), f"{path}." if path else ""
    known = {f.name: f for f in fields(cls) if f.init}
    values = {name: getattr(default, name) for name in known} if isinstance(default, cls) else {}
    for name, value in data.items():
        if name in known:
            values[name] = _check(hints[name], value, prefix + name, _default(known[name], default), faults)
        else:
            faults.add(prefix + name, f"unknown field (value {_describe(value)}); {_suggest(name, known, path)}")
    for name, f in known.items():
        if name not in values and _default(f, None) is MISSING:
            faults.add(prefix + name, "missing: this field has no default, so give it a value")
    if len(faults.errors) > num_faults:
        return None
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        faults.refuse(path, error)


def _default(f: Field, parent: object) -> object:
    if parent is not None and hasattr(parent, f.name):
        return getattr(parent, f.name)
    return f.default_factory() if f.default_factory is not MISSING else f.default


def _check(hint: Any, value: Any, path: str, default: object, faults: _Faults) -> Any:
    """Converts a value to its type; records what is wrong in `faults`."""
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _build(hint, value, path, default, faults)
    if origin is Literal:
        return _check_literal(args, value, path, faults)
    if origin in (Union, types.UnionType):
        return _check_union(args, value, path, default, faults)
    if origin in (tuple, list):
        return _check_items(hint, value, path, faults)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            return faults.add(path, f"expected a mapping, got {_describe(value)}")
        return {str(name): _check(args[1], item, f"{path}.{name}", MISSING, faults) for name, item in value.items()}
    if hint not in _SCALARS:
        raise TypeError(f"{path}: a config field cannot have the type {hint}")
    if hint is str and path in faults.raw and faults.raw[path][:1] not in ("'", '"'):
        return faults.raw[path]  # `name=5` on the command line: nobody should have to quote for both shell and YAML
    if hint is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e3
    right = isinstance(value, hint) or (hint is float and isinstance(value, int))
    if not right or (isinstance(value, bool) and hint is not bool):
        faults.add(path, f"expected {_SCALARS[hint]}, got {_describe(value)}")
    elif hint is int and abs(value) > _LARGEST_INT:
        faults.add(path, f"expected an integer of 64 bits, got {_describe(value)}")
    elif hint is float and not abs(value) <= sys.float_info.max:
        faults.add(path, f"expected a finite number, got {_describe(value)}")
    elif hint is float:
        return float(value)
    return value


def _check_literal(allowed: tuple, value: object, path: str, faults: _Faults) -> object:
    if path in faults.raw and faults.raw[path] in allowed:
        return faults.raw[path]
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        shown = ", ".join("null" if choice is None else str(choice) for choice in allowed)
        faults.add(path, f"{_describe(value)} is not allowed; one of: {shown}{_close(value, allowed)}")
    return value


def _check_union(hints: tuple, value: Any, path: str, default: object, faults: _Faults) -> Any:
    some = [hint for hint in hints if hint is not type(None)]
    if value is None and len(some) < len(hints):
        return None
    trials = []
    for hint in some:
        trial = faults.trial()
        checked = _check(hint, value, path, default, trial)
        if not trial.errors:
            return checked
        trials.append(trial)
    if len(trials) == 1:
        faults.errors += trials[0].errors
    else:
        names = " or ".join(_SCALARS.get(hint, str(hint)) for hint in hints)
        faults.add(path, f"expected {names}, got {_describe(value)}")
    return value


def _check_items(hint: Any, value: Any, path: str, faults: _Faults) -> Any:
    if not isinstance(value, list | tuple):
        return faults.add(path, f"expected a list, got {_describe(value)}")
    args, kind = get_args(hint), get_origin(hint)
    args = (args[0],) * len(value) if kind is list or args[-1] is Ellipsis else args
    if len(args) != len(value):
        return faults.add(path, f"expected {len(args)} items, got {len(value)}: {_describe(value)}")
    pairs = enumerate(zip(args, value, strict=True))
    return kind(_check(arg, item, f"{path}.{i}", MISSING, faults) for i, (arg, item) in pairs)


def _describe(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a mapping ({', '.join(map(str, value))})"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    shown = repr(list(value)) if isinstance(value, tuple) else repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _close(value: object, allowed: Sequence[object]) -> str:
    near = difflib.get_close_matches(str(value), [str(choice) for choice in allowed], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _suggest(name: str, known: Mapping[str, Field], path: str) -> str:
    prefix = f"{path}." if path else ""
    near = [prefix + match for match in difflib.get_close_matches(name, list(known), n=3)]
    return f"did you mean {' or '.join(near)}?" if near else f"fields here: {', '.join(known)}"
