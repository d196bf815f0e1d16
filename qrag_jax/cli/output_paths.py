"""Checks of output paths, before anything is computed or paid for."""

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
# Of their folders no other files are read.
_TEXTS = {"babi": (".txt", ".gz"), "haystack": _HAYSTACK_TEXTS, "filler": _HAYSTACK_TEXTS}
_LOGS = ("metrics.jsonl", "times.jsonl")  # of a run; rows of its scores may stand beside them
STDOUT = "-"


def check_outputs(values: Mapping[str, Any]) -> None:
    """Refuses output paths of `qrag eval` that could not be written, or would destroy what is read.

    Args:
        values: of its flags.
    """
    seen: dict[str, str] = {}
    for name in _OUTPUTS:
        path = values[name]
        if path is None or path == "" or (name == "json" and path == STDOUT):
            continue
        if path == STDOUT:
            raise UsageError(f"--{name} -: only --json prints on standard output; name a file")
        place = os.path.realpath(path)
        _check_not_read(values, name)
        if _is_of_run(Path(place), Path(os.path.realpath(values["run"]))):
            raise UsageError(f"--{name} {path}: belongs to the run {values['run']}; name another file")
        if place in seen:
            raise UsageError(f"--{name} {path}: --{seen[place]} writes there; name another file")
        if Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir():
            continue  # a device, such as /dev/stdout
        seen[place] = name
        check_place(name, Path(path))


def check_output(values: Mapping[str, Any], name: str) -> None:
    """`check_outputs` of one flag that names a file, of any verb."""
    check_place(name, Path(values[name]))
    _check_not_read(values, name)


def _check_not_read(values: Mapping[str, Any], name: str) -> None:
    path = values[name]
    place = os.path.realpath(path)
    inputs = {os.path.realpath(str(value)): name for name in _INPUTS if (value := values.get(name))}
    if place in inputs:
        raise UsageError(f"--{name} {path}: is what --{inputs[place]} reads; name another file")
    above = next((str(folder) for folder in Path(place).parents if str(folder) in inputs and folder.is_dir()), None)
    if above is not None and place.endswith(_TEXTS.get(inputs[above], "")):
        raise UsageError(f"--{name} {path}: is in {above}, which --{inputs[above]} reads; name a file elsewhere")


def _is_of_run(place: Path, run: Path) -> bool:
    """Whether a file is one that training wrote: `run` is a folder of steps, or one step."""
    if not place.is_relative_to(run):
        return False
    parts = place.relative_to(run).parts
    return (run / MANIFEST).exists() or parts[0].startswith("step_") or parts in {(name,) for name in _LOGS}


def check_place(name: str, path: Path) -> None:
    """Whether the file of flag `name` can be made there, without making one."""
    if path.is_dir():
        raise UsageError(f"--{name} {path}: is a folder; name a file")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise UsageError(f"--{name} {path}: {above} is no folder; name another file")
    if not os.access(above, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"--{name} {path}: cannot be written (no permission); name another file")
