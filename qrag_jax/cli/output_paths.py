"""Checks output paths before anything is computed or paid for."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qrag_jax.files.manifest import MANIFEST
from qrag_jax.types import UsageError

_OUTPUTS = ("json", "per_query", "tests", "answers", "answer_rows")
_INPUTS = (
    "babi",
    "jsonl",
    "hotpot",
    "musique",
    "2wiki",
    "beir",
    "calibrate",
    "haystack",
    "distractors",
    "filler",
    "vectors",
    "prices",
    "prompts",
    "llm_model",
    "journal",
)
_HAYSTACK_TEXTS = (".txt", ".md", ".gz")
# From folders of these flags, only files with these suffixes are read.
_TEXTS = {
    "babi": (".txt", ".gz"),
    "beir": (".jsonl", ".tsv", ".gz"),
    "haystack": _HAYSTACK_TEXTS,
    "filler": _HAYSTACK_TEXTS,
}
_LOGS = ("metrics.jsonl", "times.jsonl")  # of a run; a file of its scores may be in the same folder
STDOUT = "-"


def check_outputs(values: Mapping[str, Any]) -> None:
    """Refuses output paths of `qrag eval` that cannot be written, or that would replace an input.

    Args:
        values: of its flags, by destination.

    Raises:
        UsageError: an output path cannot be used.
    """
    seen: dict[str, str] = {}
    for name in _OUTPUTS:
        path = values[name]
        if path is None or path == "" or (name == "json" and path == STDOUT):
            continue
        if path == STDOUT:
            raise UsageError(f"--{name} -: only --json can print to standard output; name a file")
        place = os.path.realpath(path)
        _check_not_read(values, name)
        if _is_of_run(Path(place), Path(os.path.realpath(values["run"]))):
            raise UsageError(f"--{name} {path}: is a file of the run {values['run']}; name another file")
        if place in seen:
            raise UsageError(f"--{name} {path}: is also the output of --{seen[place]}; name another file")
        if Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir():
            continue  # a device, such as /dev/stdout
        seen[place] = name
        check_place(name, Path(path))


def check_output(values: Mapping[str, Any], name: str) -> None:
    """The same check for one output flag of any verb.

    Raises:
        UsageError: the output path cannot be used.
    """
    check_place(name, Path(values[name]))
    _check_not_read(values, name)


def _check_not_read(values: Mapping[str, Any], name: str) -> None:
    path = values[name]
    place = os.path.realpath(path)
    inputs = {os.path.realpath(str(value)): name for name in _INPUTS if (value := values.get(name))}
    inputs |= {os.path.realpath(part.partition(":")[2]): "ruler" for part in values.get("ruler") or () if ":" in part}
    if place in inputs:
        raise UsageError(f"--{name} {path}: is the input of --{inputs[place]}; name another file")
    above = next((str(folder) for folder in Path(place).parents if str(folder) in inputs and folder.is_dir()), None)
    if above is not None and place.endswith(_TEXTS.get(inputs[above], "")):
        raise UsageError(f"--{name} {path}: is in {above}, which --{inputs[above]} reads; name a file elsewhere")


def _is_of_run(place: Path, run: Path) -> bool:
    """True if training wrote this file; `run` is a folder of steps, or one step."""
    if not place.is_relative_to(run):
        return False
    parts = place.relative_to(run).parts
    return (run / MANIFEST).exists() or parts[0].startswith("step_") or parts in {(name,) for name in _LOGS}


def check_place(name: str, path: Path) -> None:
    """Checks that the file of flag `name` can be written, without creating it.

    Raises:
        UsageError: it cannot.
    """
    if path.is_dir():
        raise UsageError(f"--{name} {path}: is a folder; name a file")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise UsageError(f"--{name} {path}: {above} is not a folder; name another file")
    if not os.access(above, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"--{name} {path}: cannot be written (no permission); name another file")
