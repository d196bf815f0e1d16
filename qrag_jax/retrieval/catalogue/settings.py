"""How an index is made: the same for all of its documents, kept in `index.json` with its own hash."""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.config import config_from_dict, to_dict
from qrag_jax.files.manifest import json_text
from qrag_jax.files.whole_file import read_json, write_whole
from qrag_jax.retrieval.catalogue.place import ABOUT, index_folder, is_filled, is_index
from qrag_jax.types import InputError, UsageError

FORMAT = 2
FORMATS = (1, 2)  # the first said nothing of notes: it has none
_LATE = "late"  # its chunks have vectors of their surroundings


NoteReaderName = Literal["none", "mentions", "llm"]
NOTE_READERS: tuple[NoteReaderName, ...] = get_args(NoteReaderName)


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
class IndexSettings:
    """What cuts and embeds the documents of an index, and who writes their notes.

    Attributes:
        chunking: how documents are cut; None cuts them into sentences, as a run reads them.
        model: encoder of the chunks: minilm, a folder or a hub id. Of a run its folder.
        is_run: the encoder is that of a run.
        is_tree: documents are kept as trees of their sections and paragraphs; `chunking` then has the size of a leaf.
        fingerprint: of the encoder (`types.Encoder`): vectors of another one are never compared with these.
        notes: who writes the notes of its chunks.
    """

    chunking: ChunkConfig | None
    model: str
    is_run: bool = False
    is_tree: bool = False
    fingerprint: str = ""
    notes: NotesSetting = NotesSetting()

    @property
    def has_notes(self) -> bool:
        """Whether its chunks get notes."""
        return self.notes.reader != "none"

    @property
    def reuses_vectors(self) -> bool:
        """Whether equal texts have equal vectors, wherever they stand."""
        return self.chunking is None or self.chunking.strategy != _LATE

    @property
    def cutting(self) -> str:
        """How documents are cut, in the words of the command line."""
        if self.chunking is None:
            return "the sentences of a run (--retriever)"
        strategy = self.chunking.strategy
        if self.is_tree and strategy != "hierarchy":  # whose chunks are the leaves of a tree anyway
            strategy = "tree"
        return f"--strategy {strategy} --max_tokens {self.chunking.max_tokens}"


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
        raise InputError(f"{about}: cannot be read ({error.strerror}); change its rights") from error
    if not is_filled(about.parent) and value.keys().isdisjoint(("format", "settings", "sha256")):  # others' file
        raise UsageError(f"{about.parent}: is no index, its {ABOUT} is of something else; give another folder")
    if type(value.get("format")) is int and value["format"] > FORMAT:
        raise InputError(
            f"{about}: format {value['format']}, this version of qrag_jax reads {' and '.join(map(str, FORMATS))}: "
            "update qrag_jax, or build the index again into another folder"
        )
    if value.get("format") not in FORMATS or value.get("sha256") != _sha256(value.get("settings")):
        raise InputError(
            f"{about}: altered since it was written (its sha256 differs): copy the index again, or remove its folder "
            "and build it again"
        )
    return config_from_dict(IndexSettings, value["settings"], str(about))


def write_settings(folder: Path, settings: IndexSettings) -> None:
    """Writes `index.json`, whole or not at all: with it a folder is an index."""
    write_whole(folder / ABOUT, json_text(with_sha256(to_dict(settings))))


def with_sha256(settings: Any) -> dict[str, Any]:
    """What `index.json` holds of settings as plain values."""
    return {"format": FORMAT, "settings": settings, "sha256": _sha256(settings)}


def settings_of(folder: Path, asked: IndexSettings) -> IndexSettings | None:
    """The settings of an index, if it is there; notes are as asked for: they are made anew of what is there.

    Raises:
        UsageError: documents are cut otherwise than is asked for; or as `read_settings`.
    """
    if not is_index(folder):
        return None
    known = read_settings(folder)
    if (known.chunking, known.is_run, known.is_tree) != (asked.chunking, asked.is_run, asked.is_tree):
        raise UsageError(
            f"{folder}: was made with {known.cutting}, and {asked.cutting} is asked for: leave such flags out, or "
            "build another index"
        )
    return replace(known, notes=asked.notes)


def check_encoder(settings: IndexSettings, fingerprint: str, name: str) -> None:
    """Refuses an encoder whose vectors cannot be compared with those of an index.

    Args:
        settings: of the index.
        fingerprint: of the encoder.
        name: of the encoder, for the message.

    Raises:
        InputError: it is another one.
    """
    if settings.fingerprint != fingerprint:
        raise InputError(
            f"index: its vectors were made by the encoder of {settings.model} ({settings.fingerprint[:12]}), that of "
            f"{name} is another one now ({fingerprint[:12]}): use the one that made it, or build another index"
        )


def _sha256(value: Any) -> str:
    return hashlib.sha256(json_text(value, allow_nan=True)).hexdigest()
