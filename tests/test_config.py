import dataclasses
import re
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.config import config_from_dict, dump_config, filled, flatten, is_override, load_config, to_dict
from qrag_jax.types import UsageError


@dataclass(frozen=True)
class Learner:
    gamma: float = 0.9
    num_steps: int = 3
    double: bool = False
    positions: Literal["relative", "absolute", "none"] = "relative"

    def __post_init__(self):
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma = {self.gamma} must be in [0, 1]")
        if self.num_steps < -99:
            raise ValueError("nobody goes so far back")


@dataclass(frozen=True)
class Data:
    pattern: str = "*.txt"
    seed: int | None = None
    sizes: tuple[int, ...] = (20, 80)
    span: tuple[int, float] = (1, 0.5)
    names: list[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    limit: float | Literal["auto"] = "auto"


@dataclass(frozen=True)
class Run:
    name: str = "run"
    note: str | None = None
    learner: Learner = field(default_factory=lambda: Learner(num_steps=7, positions="none"))
    data: Data = field(default_factory=Data)
    extra: Learner | None = None


@dataclass(frozen=True)
class Needs:
    path: str
    learner: Learner


@dataclass(frozen=True)
class Many:
    parts: dict[str, Learner] = field(default_factory=dict)
    lists: dict[str, tuple[Learner, ...]] = field(default_factory=dict)
    least: int = 0

    def __post_init__(self):
        if len(self.parts) < self.least:
            raise ValueError(f"parts {list(self.parts)}: fewer than least {self.least}")


MANY = """\
parts:
  a: {gamma: 0.1}
  b-c:
    gamma: 0.2
lists:
  x:
    - {gamma: 0.3}
    - {num_steps: 4, gamma: 0.4}
"""


def write(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_without_a_file():
    assert load_config(Run) == Run()


def test_file_then_overrides_later_ones_win(tmp_path):
    path = write(tmp_path, "name: a\nlearner:\n  gamma: 0.5\ndata:\n  sizes: [1, 2, 3]\n  seed: 4\n")
    run = load_config(Run, path, ["learner.gamma=0.25", "--data.seed=null", "--learner.gamma=0.75"])
    assert run == Run(
        name="a",
        learner=Learner(gamma=0.75, num_steps=7, positions="none"),
        data=Data(sizes=(1, 2, 3)),
    )


def test_a_nested_default_keeps_the_fields_that_are_not_given():
    # and not num_steps=3, the default of the class
    assert load_config(Run, None, ["learner.gamma=0.5"]).learner == Learner(0.5, 7, positions="none")


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("learner.gamma=1e-3", "learner.gamma", 1e-3),
        ("learner.gamma=1", "learner.gamma", 1.0),
        ("learner.num_steps=1e3", "learner.num_steps", 1000),
        ("learner.double=true", "learner.double", True),
        ("learner.positions=absolute", "learner.positions", "absolute"),
        ("data.seed=3", "data.seed", 3),
        ("data.seed=null", "data.seed", None),
        ("data.sizes=[4]", "data.sizes", (4,)),
        ("data.sizes=[]", "data.sizes", ()),
        ("data.span=[2, 3]", "data.span", (2, 3.0)),
        ("data.names=[a, b]", "data.names", ["a", "b"]),
        ("data.weights={a: 1, b: .5}", "data.weights", {"a": 1.0, "b": 0.5}),
        ("data.weights.a=2", "data.weights", {"a": 2.0}),
        ("data.limit=auto", "data.limit", "auto"),
        ("data.limit=2", "data.limit", 2.0),
        ("data.pattern=*.md", "data.pattern", "*.md"),
        ("data.pattern=a: b #c", "data.pattern", "a: b #c"),
        ("data.pattern='quoted'", "data.pattern", "quoted"),
        ("name=5", "name", "5"),
        ("name=", "name", ""),
        ("name=no", "name", "no"),
        ("note=null", "note", None),
        ("note=true", "note", "true"),
        ("extra.gamma=0.1", "extra", Learner(gamma=0.1)),
        ("extra=null", "extra", None),
    ],
)
def test_overrides_take_the_type_of_the_field(override, name, value):
    found = load_config(Run, None, [override])
    for part in name.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "learner.gama=1",
            r"^override learner.gama=1: learner.gama: unknown field \(value 1\); did you mean learner.gamma",
        ),
        ("zzz=1", r"zzz: unknown field .*fields here: name, note, learner, data, extra"),
        ("learner.gamma=.nan", r"learner.gamma: expected a finite number, got nan"),
        ("learner.num_steps=1e30", r"learner.num_steps: expected an integer of 64 bits, got 1000"),
        ("learner.double=yes", r"learner.double: expected true or false, got 'yes'"),
        (
            "learner.positions=relativ",
            r"'relativ' is not allowed; one of: relative, absolute, none; did you mean relative\?",
        ),
        ("name.x=3", r"name: expected text, got a mapping \(x\)"),
        ("data.sizes=[1, x]", r"data.sizes.1: expected an integer, got 'x'"),
        ("data.span=[1]", r"data.span: expected 2 items, got 1"),
        ("data.weights.a=x", r"data.weights.a: expected a number, got 'x'"),
        ("data.limit=never", r"data.limit: expected a number or .*, got 'never'"),
        ("learner.gamma=2", r"^override learner.gamma=2: .*gamma = 2.0 must be in \[0, 1\]"),
        ("extra.gamma=2", r"extra: gamma = 2.0 must be in \[0, 1\]"),
        ("extra.gama=2", r"extra.gama: unknown field .*extra.gamma"),
        ("gamma", r"override 'gamma': write it as field=value"),
        ("a-b=1", r"override 'a-b=1': write it as field=value"),
        ("data..seed=1", r"write it as field=value"),
        ("data.see-d=1", r"^override data.see-d=1: data.see-d: unknown field .*did you mean data.seed"),
        ("=1", r"write it as field=value"),
    ],
)
def test_wrong_overrides_are_refused(override, message):
    with pytest.raises(UsageError, match=message):
        load_config(Run, None, [override])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:\n  sizes:\n    - 1\n    - x\n", r"run.yaml:4: data.sizes.1: expected an integer"),
        ("learner: {gamma: 0.1, gamma: 0.2}", r"run.yaml:1: duplicate key 'gamma'"),
        ("learner:\n  gamma: 3\n", r"run.yaml:2: learner: gamma = 3.0 must be in"),
        ("- a\n- b\n", r"run.yaml: must be a mapping of `field: value` lines, but is \['a', 'b'\]"),
        ("a: [", r"run.yaml:\d: malformed YAML"),
        ("x: !include /etc/hostname", r"run.yaml:1: .*tag '!include'"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        load_config(Run, write(tmp_path, text))


@pytest.mark.parametrize(
    ("change", "overrides", "message"),
    [
        (("0.2", "2"), [], r"run.yaml:4: parts\.b-c: gamma = 2\.0 must be"),
        (("0.4", "4"), [], r"run.yaml:8: lists\.x\.1: gamma = 4\.0 must be"),
        (("lists:", "least: 3\nlists:"), [], r"run.yaml:1: parts \['a', 'b-c'\]: fewer than least 3"),
        (("", ""), ["parts.b-c.gamma=2"], r"override parts.b-c.gamma=2: parts\.b-c: gamma = 2\.0"),
        (("", ""), ["parts.a.num_steps=-100", "least=1"], r"override parts.a.num_steps=-100: parts\.a: nobody goes so"),
        (("", ""), ["lists.x=[{gamma: 2}]"], r"override lists.x=\[{gamma: 2}\]: lists\.x\.0: gamma = 2\.0"),
        (("", ""), ["least=3"], r"override least=3: parts \['a', 'b-c'\]: fewer than least 3"),
        (("0.2", "2"), ["parts.a.num_steps=5", "least=1"], r"run.yaml:4: parts\.b-c: gamma = 2\.0"),
        (("0.2", "2"), ["parts.b-c.num_steps=5"], r"run.yaml:4: parts\.b-c: gamma = 2\.0"),
        (("", ""), ["least=3", "parts.a.num_steps=5"], r"override least=3: parts \['a', 'b-c'\]: fewer"),
    ],
)
def test_the_part_that_is_refused_is_blamed(tmp_path, change, overrides, message):
    path = write(tmp_path, MANY.replace(*change, 1) if change[0] else MANY)
    with pytest.raises(UsageError) as caught:
        load_config(Many, path, overrides)
    assert re.match(message, str(caught.value).removeprefix(f"{tmp_path}/")), caught.value


def test_names_of_a_mapping_may_be_any_word(tmp_path):
    many = load_config(Many, write(tmp_path, MANY), ["parts.b-c.num_steps=5", "--parts.2-d.gamma=0.5"])
    assert many.parts == {"a": Learner(0.1), "b-c": Learner(0.2, 5), "2-d": Learner(0.5)}
    assert many.lists == {"x": (Learner(0.3), Learner(0.4, 4))}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("seed=3", True), ("--a.b=x=y", True), ("a.b-c.2d=", True), ("runs/a=b.yaml", False), ("./seed=3", False),
        ("a-b=1", False), ("2=1", False), ("a..b=1", False), ("a.=1", False), ("seed", False), ("=1", False),
    ],
)  # fmt: skip
def test_what_is_an_override(word, expected):
    assert is_override(word) is expected


def test_a_later_override_of_the_whole_wins_over_one_of_a_part():
    run = load_config(Run, None, ["learner.positions=absolute", "learner={positions: relative}", "name=a", "name=b"])
    assert (run.learner.positions, run.name) == ("relative", "b")


def test_every_fault_is_reported_at_once(tmp_path):
    with pytest.raises(UsageError) as caught:
        load_config(Run, write(tmp_path, "nam: a\nlearner:\n  gamma: x\n"), ["data.seed=y"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "run.yaml:1: nam" in lines[0] and "run.yaml:3: learner.gamma" in lines[1] and "data.seed=y" in lines[2]


def test_a_fault_has_its_place_and_field(tmp_path):
    path = write(tmp_path, "learner:\n  gamma: x\n")
    with pytest.raises(UsageError) as caught:
        load_config(Run, path)
    assert (caught.value.file, caught.value.field) == (f"{path}:2", "learner.gamma")


def test_missing_file_folder_and_binary(tmp_path):
    with pytest.raises(UsageError, match=r"absent.yaml: no such config file"):
        load_config(Run, tmp_path / "absent.yaml")
    with pytest.raises(UsageError, match=r"no such config file"):
        load_config(Run, tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"name: \xff")
    with pytest.raises(UsageError, match=r"b.yaml: not UTF-8 text \(byte 6\)"):
        load_config(Run, tmp_path / "b.yaml")


def test_an_empty_file_changes_nothing(tmp_path):
    assert load_config(Run, write(tmp_path, "# nothing\n")) == Run()


def test_required_fields():
    assert load_config(Needs, None, ["path=x", "learner.gamma=0.5"]) == Needs("x", Learner(gamma=0.5))
    with pytest.raises(UsageError, match=r"(?s)path: missing: this field has no default.*learner: missing"):
        load_config(Needs)


def test_a_field_of_a_type_that_no_file_has_is_a_programming_error():
    unsupported = dataclasses.make_dataclass("Unsupported", [("x", bytes, b"")], frozen=True)
    with pytest.raises(TypeError, match="cannot have the type"):
        load_config(unsupported, None, ["x=3"])


def test_a_type_error_of_a_class_is_a_fault_of_its_field():
    def refuse(self):
        raise TypeError("x: boom")

    own = dataclasses.make_dataclass("Own", [("x", int, 1)], frozen=True, namespace={"__post_init__": refuse})
    with pytest.raises(UsageError, match="override x=2: x"):
        load_config(own, None, ["x=2"])


def test_to_dict_is_plain_and_whole():
    assert to_dict(Run(data=Data(names=["a"]))) == {
        "name": "run",
        "note": None,
        "learner": {"gamma": 0.9, "num_steps": 7, "double": False, "positions": "none"},
        "data": {
            "pattern": "*.txt",
            "seed": None,
            "sizes": [20, 80],
            "span": [1, 0.5],
            "names": ["a"],
            "weights": {},
            "limit": "auto",
        },
        "extra": None,
    }


def test_what_an_earlier_version_did_not_know_is_at_its_default():
    whole = to_dict(Learner(gamma=0.5))
    assert filled(Learner, {"gamma": 0.5}) == filled(Learner, whole) == whole
    for other in ({"gamma": 2.0}, {"gama": 0.5}, "text", None):  # none of them is such a config
        assert filled(Learner, other) == other


def test_flatten():
    assert flatten({"a": {"b": {"c": 1}, "d": [2]}, "e": {}, "f": None}) == {"a.b.c": 1, "a.d": [2], "e": {}, "f": None}


words = st.text(st.characters(codec="utf-8"))
integers, floats = st.integers(1 - 2**63, 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
learners = st.builds(
    Learner,
    gamma=st.floats(0, 1),
    num_steps=st.integers(-99, 2**63 - 1),
    double=st.booleans(),
    positions=st.sampled_from(["relative", "absolute", "none"]),
)
runs = st.builds(
    Run,
    name=words,
    note=st.none() | words,
    learner=learners,
    data=st.builds(
        Data,
        pattern=words,
        seed=st.none() | integers,
        sizes=st.lists(integers).map(tuple),
        span=st.tuples(integers, floats),
        names=st.lists(words),
        weights=st.dictionaries(words, floats),
        limit=st.just("auto") | floats,
    ),
    extra=st.none() | learners,
)


@given(runs)
def test_a_dumped_config_is_read_back_equal(tmp_path_factory, run):
    path = tmp_path_factory.getbasetemp() / "dumped.yaml"
    path.write_text(dump_config(run), encoding="utf-8", newline="")
    assert load_config(Run, path) == run
    assert config_from_dict(Run, to_dict(run), "here") == run
