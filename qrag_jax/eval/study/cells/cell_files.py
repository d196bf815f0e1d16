"""The results of a study on disk, cell by cell: an existing cell that fits is not run again.

A file holds everything that decided its content (`made_of`), the result, and the sha256 of both. One that was made of
something else is refused, since two studies in one folder would be mixed in one table; one that is damaged is said in a
warning and run again.
"""

import functools
import hashlib
import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from qrag_jax import __version__
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.config import dump_config, filled, flatten, to_dict
from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.study.config import StudyConfig
from qrag_jax.eval.study.records import CellResult, FoundChunk, FoundChunks, LevelCell, Part
from qrag_jax.files.reading import read_limited
from qrag_jax.files.strict_yaml import parse_yaml
from qrag_jax.files.whole_file import write_whole
from qrag_jax.types import Arg, Cost, InputError, UsageError

MadeOf = Mapping[str, Any]
_Record = TypeVar("_Record", CellResult, FoundChunks, FoundChunk, Cost)
_Cell = TypeVar("_Cell", CellResult, LevelCell)
_CONFIG_FILE = "config.yaml"
# What `write_whole` leaves of a file of ours where it is killed; nothing else of that folder is touched.
_OURS = r"(config\.yaml|table\.csv|table\.md|plot\.png|results\.json|per_query\.jsonl)"
_HALF_FILE = re.compile(rf"\.{_OURS}\.[a-z0-9_]{{8}}")
_HALF_PART = re.compile(r"\..+\.(json|vectors|run|qrels)\.[a-z0-9_]{8}")  # in the folders below
_FORMAT = 1  # of a cell: raise it when chunks, vectors or search change for the same config


def made_of(study: StudyConfig, task: StudyTask, encoder: str) -> dict[str, Any]:
    """All but its config that decides the content of a cell, as JSON values by names that a message can use.

    Prices are not among them: dollars are worked out from stored costs.

    Args:
        study: for ks, seed, splitter and the task's scope.
        task: the dev or test part of a task.
    """
    optional: dict[str, Any] = {"reranker": [study.rerank, *_files_of(study.rerank)]} if study.rerank else {}
    if study.budgets:
        optional = {"budgets": list(study.budgets), "fills": list(study.fills)}
    return optional | {
        "version of qrag_jax": f"{__version__}, format {_FORMAT}",
        "task content": task_digest(task),
        "encoder": encoder,
        "ks": list(study.ks),
        "seed": study.seed,
        "sentence splitter": f"{study.splitter} {study.language}",
        "scope": study.tasks[task.name].scope,
    }


def _files_of(reranker: str) -> list[list[Any]]:
    """Names, sizes and times of the files of a local reranker: one that was trained again has the same name."""
    path = Path(reranker if Path(reranker).exists() else reranker.partition(":")[2])
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return [[one.name, one.stat().st_size, one.stat().st_mtime_ns] for one in files if one.is_file()]


def with_config(origin: MadeOf, config: ChunkConfig) -> dict[str, Any]:
    """All that decides the content of a cell: `made_of`, and how documents are cut."""
    return {**origin, "config": to_dict(config)}


def task_digest(task: StudyTask) -> str:
    """sha256 of documents, questions, labels and sentences of a task, in their order."""
    parts: list[object] = [task.name, task.kind]
    parts += [[document.id, document.text] for document in task.documents]
    asked = [asdict(question) for question in task.questions]
    parts += [{name: value for name, value in one.items() if name != "itself" or value} for one in asked]
    parts += [[name, [list(span) for span in spans]] for name, spans in sorted(task.sentences.items())]
    parts += [["sections", name, [list(one) for one in found]] for name, found in sorted(task.sections.items())]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part).encode() + b"\n")
    return digest.hexdigest()


class CellStore:
    """Cells of a study under a folder: `cells/TASK/STRATEGY-NUMBER-PART.json`."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def path(self, task: str, strategy: str, number: int, part: Part) -> Path:
        """The file of a cell, whether it is there or not."""
        return self.out / "cells" / task / f"{strategy}-{number}-{part}.json"

    def read(self, task: str, strategy: str, number: int, part: Part, origin: MadeOf) -> CellResult | None:
        """A stored cell; None where there is none, or it is damaged."""
        wanted = (task, strategy, number, part)
        return read_cell(self.path(*wanted), self.out, origin, _result, lambda one: _place(one) == wanted)

    def write(self, result: CellResult, origin: MadeOf) -> None:
        """Stores a cell, whole or not at all."""
        write_cell(self.path(*_place(result)), result, origin)


def _place(cell: CellResult) -> tuple[str, str, int, Part]:
    return cell.task, cell.strategy, cell.number, cell.part


def read_cell(
    path: Path, out: Path, origin: MadeOf, parse: Callable[[Any], _Cell], is_wanted: Callable[[_Cell], bool]
) -> _Cell | None:
    """A stored cell; None where there is none, or it is damaged, which a warning says.

    Args:
        path: of the cell, under `out`.
        origin: the settings that it must be made of.
        parse: makes the cell from the file's values.
        is_wanted: whether it is the cell that belongs there.
    """
    _check_file(path)
    if not path.is_file():
        return None
    try:
        body = unsealed(read_limited(path))
        cell, known = parse(body["result"]), body["made_of"]
        if not isinstance(known, dict):
            raise InputError(f"made_of is {known!r:.100}")
        if not is_wanted(cell):
            raise InputError("it contains another cell")
    except (InputError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        warnings.warn(f"{path}: damaged ({error}); it is run again", UserWarning, stacklevel=3)
        return None
    check_same(path, out, known, origin)
    return cell


def write_cell(path: Path, cell: CellResult | LevelCell, origin: MadeOf) -> None:
    """Stores a cell, whole or not at all."""
    write_whole(path, sealed({"made_of": dict(origin), "result": asdict(cell)}))


def check_same(path: Path, out: Path, known: MadeOf, origin: MadeOf) -> None:
    """Refuses a file that was made of something else."""
    old, new = _whole(known), _whole(origin)
    differing = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    if differing:
        raise UsageError(
            f"was made with another {', '.join(differing)}: {out} contains another study",
            file=path,
            remedy=("choose another ", Arg("out"), ", or remove that folder"),
        )


def _whole(origin: MadeOf) -> dict[str, Any]:
    return {name: filled(ChunkConfig, value) if name == "config" else value for name, value in origin.items()}


def claim_folder(out: Path, config: StudyConfig) -> None:
    """Writes `config.yaml` into the folder of a study, or finds that it has the same one.

    Partial files of a killed run are removed; only one study at a time writes there.
    """
    path, text = out / _CONFIG_FILE, dump_config(config)
    _check_file(path)
    if not path.is_file():
        write_whole(path, text)
    known = read_limited(path).decode(errors="replace")
    if known != text:
        parsed = parse_yaml(known, str(path))
        whole = filled(StudyConfig, parsed)
        old, new = flatten(whole if isinstance(whole, dict) else {}), flatten(to_dict(config))
        differing = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        if differing or parsed == whole:
            raise UsageError(
                f"differs from this study in {', '.join(differing) or 'order or comments'}",
                file=path,
                remedy=(": choose another ", Arg("out"), ", or remove that folder"),
            )
    _remove_half_files(out)


def _check_file(path: Path) -> None:
    """Raises an error if the path is not a file, because reading a pipe would block."""
    if path.exists() and not path.is_file():
        raise UsageError("is not a file", file=path, remedy=(": remove it, or choose another ", Arg("out")))


def _remove_half_files(out: Path) -> None:
    below = (*(out / name for name in ("sentences", "trec")), *out.glob("cells/*"), *out.glob("levels/*"))
    for folder, pattern in ((out, _HALF_FILE), *((folder, _HALF_PART) for folder in below)):
        for path in folder.glob(".*"):
            if path.is_file() and pattern.fullmatch(path.name):
                path.unlink()


def sealed(body: Mapping[str, Any]) -> bytes:
    """The content of a file with its checksum: the sha256 of the rest, and a line of JSON."""
    content = json.dumps(body, allow_nan=False).encode() + b"\n"
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def unsealed(content: bytes) -> dict[str, Any]:
    """The value that was given to `sealed`."""
    digest, _, body = content.partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise InputError("its sha256 differs")
    value = json.loads(body)  # no digest fits what was not written here
    if not isinstance(value, dict):
        raise InputError("it is not a JSON object")
    return value


def _result(value: Any) -> CellResult:
    found = tuple(_typed(FoundChunks(one["question_id"], tuple(map(_hit, one["hits"])))) for one in value["found"])
    cost = _typed(Cost(**value["cost"]))
    if not isinstance(cost.seconds, dict) or not all(type(spent) in (int, float) for spent in cost.seconds.values()):
        raise TypeError(f"seconds {cost.seconds!r:.100}")
    recall = {name: tuple(values) for name, values in value.get("recall", {}).items()}
    if not all(type(one) is float and 0 <= one <= 1 for values in recall.values() for one in values):
        raise TypeError("recall: a share is not from 0 to 1")
    return _typed(CellResult(**{**value, "cost": cost, "found": found, "recall": recall}))


def _hit(value: Any) -> FoundChunk:
    spans = tuple((start, end) for start, end in value["spans"])
    if not all(type(border) is int for span in spans for border in span):
        raise TypeError(f"spans {spans!r:.100}")
    return _typed(FoundChunk(**{**value, "spans": spans}))


def _typed(record: _Record) -> _Record:
    """A record whose texts and numbers are such, and finite: a digest can be made for anything."""
    for name, kinds in _simple_fields(type(record)).items():
        value = getattr(record, name)
        if type(value) not in kinds or (isinstance(value, int | float) and not abs(value) <= sys.float_info.max):
            raise TypeError(f"{name} {value!r:.100}")
    return record


@functools.cache
def _simple_fields(cls: type) -> dict[str, tuple[type, ...]]:
    number = (int, float)
    kinds: dict[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: number, float | None: (*number, type(None))}
    return {name: kinds[hint] for name, hint in get_type_hints(cls).items() if hint in kinds}
