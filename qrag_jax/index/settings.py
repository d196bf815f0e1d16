"""How an index is made: the same for all of its documents, kept in `index.json` with its own hash."""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from qrag_jax.chunking.chunker import ChunkConfig, points_of
from qrag_jax.chunking.strategies.hierarchy import HierarchyConfig
from qrag_jax.chunking.tree.parent_vectors import check_parents
from qrag_jax.config import config_from_dict, to_dict
from qrag_jax.files.manifest import json_text
from qrag_jax.files.whole_file import read_json, write_whole
from qrag_jax.index.folder import ABOUT, index_folder, is_filled, is_index
from qrag_jax.names import CHUNKERS, NoteReaderName, ParentsName, StoreName
from qrag_jax.types import Arg, InputError, UsageError

FORMAT = 4
FORMATS = (1, 2, 3, 4)  # 2 added notes, 3 taggers and levels, 4 stores; an older index has the default of each
_LATE = "late"  # its chunks have vectors of their surroundings


# Texts of nodes above leaves: embedded as those of leaves, in a way of their own, or not at all.
Reading = Literal["alike", "apart", "never"]


@dataclass(frozen=True)
class NotesSetting:
    """Who writes the notes of an index: of equal documents, equal settings make equal notes.

    Attributes:
        reader: `mentions`, which needs no language model, `llm`, or `none`.
        model: name of the language model; empty of other readers.
        options: what else it is asked by; likewise.
        prompts_sha256: of the prompts that it is asked by; likewise.
    """

    reader: NoteReaderName = "none"
    model: str = ""
    options: str = ""
    prompts_sha256: str = ""


@dataclass(frozen=True)
class TaggerSetting:
    """The tagger that finds the sections of documents.

    Attributes:
        run: its folder; empty is the one that comes with the package.
        fingerprint: of what it has learned.
    """

    run: str = ""
    fingerprint: str = ""


@dataclass(frozen=True)
class ParentsSetting:
    """How the nodes above leaves get their vectors.

    Attributes:
        name: of the way (`tree/parent_vectors.py`).
        run: folder of a compressor; empty of other ways.
        fingerprint: of the compressor; likewise.
    """

    name: ParentsName = "best_child"
    run: str = ""
    fingerprint: str = ""

    def __post_init__(self) -> None:
        check_parents(self.name)
        if self.name == "summary":
            raise UsageError("parents 'summary': not of an index, whose documents change; choose another way")
        if (self.name == "compressor") != bool(self.run):
            raise UsageError("parents: a compressor has a run, and other ways have none", field="parents")


@dataclass(frozen=True)
class IndexSettings:
    """What cuts and embeds the documents of an index, and who writes their notes.

    Attributes:
        chunking: how documents are cut; None cuts them into sentences, as a run reads them.
        model: encoder of the chunks: minilm, a folder or a hub id. Of a run its folder.
        is_run: the encoder is that of a run.
        is_tree: documents are kept as trees of their sections and paragraphs; `chunking` then has the size of a leaf.
        fingerprint: of the encoder (`types.Encoder`): vectors of another one are never compared with these.
        notes: who writes the notes of its chunks.
        tagger: that finds the sections, where points are by tagger; else None.
        parents: how nodes above leaves get vectors, where trees have levels with names; None of other trees, whose
            nodes are all embedded.
        store: of `names.STORES`, which finds the nearest vectors.

    Raises:
        UsageError: a tagger or parents of a strategy that has none.
    """

    chunking: ChunkConfig | None
    model: str
    is_run: bool = False
    is_tree: bool = False
    fingerprint: str = ""
    notes: NotesSetting = NotesSetting()
    tagger: TaggerSetting | None = None
    parents: ParentsSetting | None = None
    store: StoreName = "memory"

    def __post_init__(self) -> None:
        if self.tagger is not None and (self.chunking is None or points_of(self.chunking) != "tagger"):
            raise UsageError("index: has a tagger, and no points by tagger: name both or none")
        if self.parents is not None and not self.has_levels:
            raise UsageError("index: has parents, and no levels: choose strategy levels for them")

    @property
    def has_levels(self) -> bool:
        """Whether its documents are trees whose levels have names."""
        return self.chunking is not None and self.chunking.strategy in CHUNKERS.choices("levels")

    @property
    def reading(self) -> Reading:
        """How the texts of nodes above leaves are read."""
        if self.parents is None:
            return "alike"
        return "apart" if self.parents.name in ("direct", "windows") else "never"

    @property
    def has_notes(self) -> bool:
        """Whether its chunks get notes."""
        return self.notes.reader != "none"

    @property
    def reuses_vectors(self) -> bool:
        """Whether equal texts have equal vectors, wherever they stand."""
        return self.chunking is None or self.chunking.strategy != _LATE

    @property
    def cutting(self) -> tuple[str | Arg, ...]:
        """How documents are cut, as part of a sentence."""
        if self.chunking is None:
            return ("the sentences of a run (", Arg("retriever"), ")")
        strategy, points, most = self.chunking.strategy, points_of(self.chunking), self.chunking.max_tokens
        if self.is_tree and strategy not in CHUNKERS.choices("tree"):  # whose chunks are the leaves of a tree anyway
            strategy = "tree"
        sizes = ",".join(map(str, self.chunking.levels.sizes)) if self.has_levels else ""
        given = [Arg("strategy", strategy), Arg("max_tokens", most), Arg("sizes", sizes or None)]
        given += [Arg("points", None if points == HierarchyConfig.points else points)]
        given += [Arg("parents", self.parents and self.parents.name)]
        return tuple(part for arg in given if arg.value is not None for part in (" ", arg))[1:]

    @property
    def without_places(self) -> "IndexSettings":
        """The same wherever encoder, tagger and compressor lie: their fingerprints say which they are."""
        tagger = self.tagger and replace(self.tagger, run="")
        parents = self.parents and replace(self.parents, run=self.parents.run and "anywhere")
        return replace(self, model="", tagger=tagger, parents=parents)


def read_settings(path: str | os.PathLike) -> IndexSettings:
    """The settings of an index.

    Raises:
        UsageError: there is no index, but perhaps something else's `index.json`.
        InputError: they are altered, not readable, or of a newer format.
    """
    about = index_folder(path) / ABOUT
    try:
        value = read_json(about)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}); change its rights", file=about) from error
    if not is_filled(about.parent) and value.keys().isdisjoint(("format", "settings", "sha256")):  # others' file
        raise UsageError(f"{about.parent}: is no index, its {ABOUT} is of something else; give another folder")
    if type(value.get("format")) is int and value["format"] > FORMAT:
        raise InputError(
            f"format {value['format']}, this version of qrag_jax reads {' and '.join(map(str, FORMATS))}: "
            "update qrag_jax, or build the index again into another folder",
            file=about,
        )
    if value.get("format") not in FORMATS or value.get("sha256") != _sha256(value.get("settings")):
        raise InputError(
            "altered since it was written (its sha256 differs): copy the index again, or remove its folder "
            "and build it again",
            file=about,
        )
    return config_from_dict(IndexSettings, value["settings"], str(about))


def write_settings(folder: Path, settings: IndexSettings) -> None:
    """Writes `index.json`, whole or not at all: with it a folder is an index."""
    write_whole(folder / ABOUT, json_text(with_sha256(to_dict(settings))))


def with_sha256(settings: Any) -> dict[str, Any]:
    """What `index.json` holds of settings as plain values."""
    return {"format": FORMAT, "settings": settings, "sha256": _sha256(settings)}


def settings_of(folder: Path, asked: IndexSettings) -> IndexSettings | None:
    """The settings of an index, if it is there; notes and store are as asked for: both are made of what is there."""
    if not is_index(folder):
        return None
    known = read_settings(folder)
    if _cut_by(known) != _cut_by(asked):
        raise UsageError(
            ("was made with ", *known.cutting, ", and ", *asked.cutting, " is asked for"),
            file=folder,
            remedy=": leave such flags out, or build another index",
        )
    for one, other, what in ((known.tagger, asked.tagger, "tagger"), (known.parents, asked.parents, "compressor")):
        if one is not None and other is not None:
            check_made_by(one, other.fingerprint, what, other.run)
    return replace(known, notes=asked.notes, store=asked.store)


def check_made_by(setting: TaggerSetting | ParentsSetting, fingerprint: str, what: str, run: str) -> None:
    """Refuses a tagger or compressor that is not the one that an index was made with.

    Args:
        fingerprint: of the one that is there now.
        what: it is, for the message.
        run: its folder; empty is what comes with the package.
    """
    if setting.fingerprint != fingerprint:
        names = [name or f"the packaged {what}" for name in (setting.run, run)]
        raise InputError(
            f"index: was made with the {what} of {names[0]} ({setting.fingerprint[:12]}), that of {names[1]} is "
            f"another one now ({fingerprint[:12]})",
            remedy=(": use the one that made it (", Arg(what), "), or build another index"),
        )


def check_encoder(settings: IndexSettings, fingerprint: str, name: str) -> None:
    """Refuses an encoder whose vectors cannot be compared with those of an index.

    Args:
        name: of the encoder, for the message.
    """
    if settings.fingerprint != fingerprint:
        raise InputError(
            f"index: its vectors were made by the encoder of {settings.model} ({settings.fingerprint[:12]}), that of "
            f"{name} is another one now ({fingerprint[:12]}): use the one that made it, or build another index"
        )


def _cut_by(settings: IndexSettings) -> tuple[object, ...]:
    parents = settings.parents and settings.parents.name
    return settings.chunking, settings.is_run, settings.is_tree, parents


def _sha256(value: Any) -> str:
    return hashlib.sha256(json_text(value, allow_nan=True)).hexdigest()
