"""Every field of every config: of a wrong type, out of range, misspelt. The cases are made from the dataclasses.

A new field has its cases without an edit here; one whose range nobody checks makes this fail.
"""

import ast
import json
import math
import os
import random
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from support.syntax import syntax_tree
from support.tiers import of_tier

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.cli.train_kinds import WITH_FLAGS
from qrag_jax.config import is_override, load_config, to_dict
from qrag_jax.eval.study.config import DefaultStudy, TaskConfig
from qrag_jax.files.strict_yaml import dump_yaml
from qrag_jax.llm.prices import Prices
from qrag_jax.names import CHUNKERS, LEARNERS
from qrag_jax.train.decoder.config import DecoderData, DecoderRun
from qrag_jax.train.optimise import GroupConfig
from qrag_jax.train.qrag.config import DataConfig, DevConfig, RunConfig
from qrag_jax.train.qrag.learner import LearnerConfig
from qrag_jax.types import UsageError

SOURCES = Path(__file__).parents[2] / "qrag_jax"
SEED = int(os.environ.get("TRUST_SEED", "10"))
# What is loaded from files, with something in every mapping and list.
ROOTS: list[Any] = [
    RunConfig(
        data=DataConfig(paths=("questions.jsonl",)),
        dev=DevConfig(beam_widths=(2,)),
        learner=LearnerConfig(groups={"action/*": GroupConfig()}),
    ),
    DefaultStudy(
        tasks={"mine": TaskConfig("files", "notes", "questions.jsonl")},
        strategies={"fixed": (ChunkConfig("fixed"), ChunkConfig("late"))},
    ),
    DecoderRun(data=DecoderData(paths=("a.jsonl",), eval_paths=("b.jsonl",), levels=("document", "sentence"))),
    *map(ChunkConfig, CHUNKERS),
    Prices(),
]
WRONG_TYPES = ["nonsense", 2.5, 7, True, None, ["nonsense"], {"nonsense": 7}]
OUT_OF_RANGE: dict[Any, list] = {
    int: [0, -1, 10**30, -(10**30)],
    float: [0.0, -1.0, math.nan, math.inf, -math.inf],
}
WHOLE: dict[int, str] = {}  # YAML of each root
IN_RANGE: dict[float, str] = {  # for numbers of `OUT_OF_RANGE`, the fields that take them
    0: "mining.temperature data.seed model.latent.prior_beta learner.gamma learner.lambda_ learner.tau "
    "learner.learning_rate.start learner.learning_rate.warmup learner.epsilon.start learner.weight_decay "
    "learner.adam_b1 learner.adam_b2 strategies.fixed.1.late.overlap_tokens late.overlap_tokens min_dev_questions "
    "breakpoint.value linkage.lambda_ linkage.stop_distance dbscan.lambda_ hierarchy.merge_tokens storage_months "
    "data.controlled.zipf data.controlled.noise data.controlled.wide_traces data.controlled.start_share "
    "data.controlled.start_doubt imitation.final_rate imitation.rehearsal rollout.clip_high rollout.kl_coef "
    "rollout.ddof rollout.epsilon rollout.rewards.label_alignment rollout.rewards.length rollout.rewards.format",
    -1: "env.fact_reward rollout.rewards.label_alignment rollout.rewards.length rollout.rewards.format",
}
REMEDY = re.compile(
    r"expected|must|one of|did you mean|fields here|at least|at most|above|below|positive|choose|give|takes?|or more"
    r"|between|a chunk has|has headings|embeds|adds to"
)


@dataclass(frozen=True)
class Case:
    """One fault: `value` at `path` of a root, or the last name of the path misspelt."""

    root: Any
    path: tuple[str, ...]
    kind: Literal["type", "range", "name", "override"]
    value: Any = None

    @property
    def name(self) -> str:
        return ".".join(self.path)


def bare(hint: Any) -> Any:
    """A type without `or None`."""
    some = [arg for arg in get_args(hint) if arg is not type(None)]
    return some[0] if get_origin(hint) in (Union, types.UnionType) and len(some) == 1 else hint


def places(hint: Any, value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, bool]]:
    """(path, type, whether it is a field) of all that a value of a type is made of."""
    hint = bare(hint)
    if is_dataclass(value):
        hints = get_type_hints(type(value))
        parts = [(f.name, hints[f.name], getattr(value, f.name), True) for f in fields(value) if f.init]
    elif isinstance(value, dict):
        parts = [(name, get_args(hint)[1], item, False) for name, item in value.items()]
    elif isinstance(value, tuple | list):
        parts = [(str(number), get_args(hint)[0], item, False) for number, item in enumerate(value)]
    else:
        return
    for name, inner, item, is_field in parts:
        yield (*path, name), inner, is_field
        yield from places(inner, item, (*path, name))


def takes(hint: Any, value: Any) -> bool:
    """True if a value is of a type, by the plain reading of both."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in args)
    if origin in (Union, types.UnionType):
        return any(takes(arg, value) for arg in args)
    if origin in (list, tuple):
        return isinstance(value, list) and all(takes(args[0], item) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(takes(args[1], item) for item in value.values())
    if is_dataclass(hint):
        return False  # none of the values above has its fields
    if hint is float:
        return type(value) in (int, float)
    return type(value) is (type(None) if hint is None else hint)


def misspelt(name: str, number: int) -> str:
    """A letter twice, left out, or two the other way round."""
    place = number % len(name)
    ways = [
        name[:place] + name[place] + name[place:],
        name[:place] + name[place + 1 :],
        name[:place] + name[place : place + 2][::-1] + name[place + 2 :],
    ]
    return next(way for way in ways[number % 3 :] + ways if way and way != name)


def counts(whole: dict, path: tuple[str, ...]) -> bool:
    """False below the part of a `ChunkConfig` that its strategy does not read."""
    for number, name in enumerate(path):
        node = at(whole, path[:number])
        if isinstance(node, dict) and name in CHUNKERS and node.get("strategy", name) != name:
            return False
    return True


def at(node: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        node = node[int(name)] if isinstance(node, list) else node[name]
    return node


def all_cases(roots: list[Any]) -> list[Case]:
    cases = []
    for root in roots:
        whole = to_dict(root)
        for number, (path, hint, is_field) in enumerate(places(type(root), root)):
            wrong = [value for value in WRONG_TYPES if not takes(hint, value)]
            cases += [Case(root, path, "type", value) for value in wrong]
            # On a command line everything is a text, and items of a list have no names.
            if bare(hint) is not str and is_override(".".join(path) + "=") and not any(map(str.isdigit, path)):
                cases += [Case(root, path, "override", value) for value in wrong]
            if is_field:
                cases.append(Case(root, path, "name", misspelt(path[-1], number)))
            far = OUT_OF_RANGE.get(bare(hint), []) if counts(whole, path) else []
            cases += [
                Case(root, path, "range", value)
                for value in far
                if value != at(whole, path) and ".".join(path) not in IN_RANGE.get(value, "").split()
            ]
    return cases


def text_of(case: Case) -> tuple[str, set[int]]:
    """The file with the fault, and the lines that may be blamed: its own, and of an item out of range its list's."""
    whole = WHOLE.get(id(case.root)) or WHOLE.setdefault(id(case.root), dump_yaml(to_dict(case.root)))
    if case.kind == "override":
        return whole, set()
    changed = to_dict(case.root)
    node, last = at(changed, case.path[:-1]), case.path[-1]
    if case.kind == "name":
        renamed = {case.value if name == last else name: item for name, item in node.items()}
        node.clear()
        node.update(renamed)
    elif isinstance(node, list):
        node[int(last)] = case.value
    else:
        node[last] = case.value
    text = dump_yaml(changed)
    pairs = zip(whole.splitlines(), text.splitlines(), strict=False)
    line = next(number for number, (old, new) in enumerate(pairs, 1) if old != new)
    if case.kind == "range" and last.isdigit():
        return text, {line, line - 1 - int(last)}
    # A list in the place of a mapping begins on the next line, and a mapping in that of a list; items in the place of
    # an empty list, which stands on the line of its name, likewise.
    return text, {line, line - 1, line + 1} if isinstance(case.value, list | dict) else {line}


def broken_promise(case: Case, path: Path) -> str | None:
    """What is wrong with how a fault is refused; None where all is right."""
    text, lines = text_of(case)
    path.write_text(text, encoding="utf-8")
    overrides = [f"{case.name}={json.dumps(case.value)}"] if case.kind == "override" else []
    try:
        load_config(type(case.root), path, overrides)
    except UsageError as error:
        message = str(error)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    else:
        return "taken"
    first = message.splitlines()[0]
    begins = [f"override {word}: {case.name}" for word in overrides] or [f"{path}:{line}: " for line in lines]
    if not first.startswith(tuple(begins)):
        return f"not at {' or '.join(begins)}: {first}"
    said = first.removeprefix(str(path))
    wrong = case.value if case.kind == "name" else case.path[-1]
    shown = json.dumps(case.value) if case.value in (None, True) else str(case.value)
    shown = "nonsense" if "nonsense" in shown else shown
    for what, found in (("field", wrong in said or wrong.isdigit()), ("value", case.kind == "name" or shown in said)):
        if not found:
            return f"{what} not named: {first}"
    if case.kind == "name" and not re.search(rf"\b{re.escape(case.path[-1])}\b", said):
        return f"the right name is not told: {first}"
    return None if REMEDY.search(said) else f"no remedy: {first}"


def classes_of(hint: Any) -> set[type]:
    """Every dataclass that a type leads to."""
    inner = [get_type_hints(hint)[f.name] for f in fields(hint)] if is_dataclass(hint) else get_args(hint)
    own = {hint} if isinstance(hint, type) and is_dataclass(hint) else set()
    return own.union(*(classes_of(one) for one in inner if not isinstance(one, str)))


def loaded_classes() -> set[str]:
    """Names of the classes that the package loads from files."""
    learners = {LEARNERS.load(name).config.__name__ for name in LEARNERS.names if name not in WITH_FLAGS}
    names = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(syntax_tree(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "load_config":
                loaded = ast.unparse(node.args[0])
                names |= learners if loaded == "LEARNERS.load(name).config" else {loaded}
    return names


def test_no_config_is_left_out():
    assert loaded_classes() == {type(root).__name__ for root in ROOTS}
    for root in ROOTS:
        reached = {bare(hint) for _, hint, _ in places(type(root), root)} | {type(root)}
        assert classes_of(type(root)) <= reached, "give the root something in every mapping and list"


def test_every_fault_is_refused_with_file_line_field_value_and_remedy(tmp_path, figures):
    cases = all_cases(ROOTS)
    chosen = random.Random(SEED).sample(cases, of_tier(50, len(cases)))
    broken = [(case, found) for case in chosen if (found := broken_promise(case, tmp_path / "config.yaml"))]
    report = [f"{type(case.root).__name__} {case.name} {case.kind} {case.value!r}: {found}" for case, found in broken]
    assert not report, "\n".join(report)
    kinds = {kind: sum(case.kind == kind for case in chosen) for kind in ("type", "override", "range", "name")}
    num_fields = len({(type(case.root), case.name) for case in chosen})
    figures(
        10,
        "fields of configs",
        len(chosen),
        f"{num_fields} fields: {kinds['type']} of a wrong type in a file and {kinds['override']} on the command line, "
        f"{kinds['range']} out of range, {kinds['name']} misspelt: all refused with place, field, value and remedy",
    )


@dataclass(frozen=True)
class Loose:
    """A config whose author forgot the ranges."""

    count: int = 1
    share: float = 0.5


def test_a_field_without_a_range_is_noticed(tmp_path):
    broken = [(case, broken_promise(case, tmp_path / "x.yaml")) for case in all_cases([Loose()])]
    found = [(case.name, case.value, what) for case, what in broken if what]
    assert found == [("count", 0, "taken"), ("count", -1, "taken"), ("share", 0.0, "taken"), ("share", -1.0, "taken")]
