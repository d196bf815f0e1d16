"""How an index is made: one setting for all documents, stored in `index.json` with its own hash."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from qrag_jax.chunking.chunker import ChunkConfig, points_of
from qrag_jax.chunking.strategies.hierarchy import HierarchyConfig
from qrag_jax.chunking.tree.parent_vectors import check_parents
from qrag_jax.config import config_from_dict, to_dict
from qrag_jax.files.manifest import json_text
from qrag_jax.files.whole_file import read_json, write_whole
from qrag_jax.index.folder import ABOUT, index_folder, is_filled, is_index
from qrag_jax.names import CHUNKERS, STORES, NoteReaderName, ParentsName, StoreName, VectorsName
from qrag_jax.types import Arg, EncoderOptions, InputError, UsageError

FORMAT = 6
# 2 added notes, 3 taggers and levels, 4 stores, 5 prompts and sizes, 6 servers and codes; an older index has the
# default of each.
FORMATS = (1, 2, 3, 4, 5, 6)
_LATE = "late"  # its vectors also depend on the text around a chunk


# How text of nodes above the leaves is embedded: like that of leaves, in another way, or not at all.
Reading = Literal["alike", "apart", "never"]
_NOTES_VERSION = 1  # of the code that makes notes; a new version makes them again
_FIRST_FIELDS = ("reader", "model", "prompts_sha256")  # of `NotesSetting` in the first format with notes


@dataclass(frozen=True)
class NotesSetting:
    """The writer of the notes of an index. Equal documents and settings give equal notes.

    Attributes:
        reader: `mentions`, which needs no language model, `llm`, or `none`.
        model: name of the language model; empty for other readers.
        options: its other options; empty for other readers.
        prompts_sha256: of its prompts; empty for other readers.
    """

    reader: NoteReaderName = "none"
    model: str = ""
    options: str = ""
    prompts_sha256: str = ""

    @property
    def key(self) -> str:
        """The setting as the index records it; a different text means different notes."""
        # Later fields are left out if they are empty, because older indexes do not have them.
        said = {name: value for name, value in asdict(self).items() if value or name in _FIRST_FIELDS}
        return json.dumps({**said, "version": _NOTES_VERSION}, sort_keys=True)


@dataclass(frozen=True)
class TaggerSetting:
    """The tagger that finds the sections of documents.

    Attributes:
        run: its folder; empty is the tagger in the package.
        fingerprint: of its weights.
    """

    run: str = ""
    fingerprint: str = ""


@dataclass(frozen=True)
class ParentsSetting:
    """How the nodes above the leaves get their vectors.

    Attributes:
        name: one of the ways in `tree/parent_vectors.py`.
        run: folder of the compressor; empty for other ways.
        fingerprint: of the compressor; empty for other ways.
    """

    name: ParentsName = "best_child"
    run: str = ""
    fingerprint: str = ""

    def __post_init__(self) -> None:
        check_parents(self.name)
        if self.name == "summary":
            raise UsageError("parents 'summary': an index can change, so it cannot have summaries; choose another way")
        if (self.name == "compressor") != bool(self.run):
            raise UsageError(
                "parents: only compressor takes a run, and it needs one; set both or neither", field="parents"
            )


@dataclass(frozen=True)
class IndexSettings:
    """How the documents of an index are cut and embedded, and who writes their notes.

    Attributes:
        chunking: how documents are cut; None cuts them into sentences, for a run.
        model: the encoder of the chunks: minilm, a folder or a hub id; or the folder of a run.
        is_run: the encoder belongs to a run.
        is_tree: documents are stored as trees of sections and paragraphs; `chunking` then gives the size of a leaf.
        fingerprint: of the encoder (`types.Encoder`); vectors of different encoders are never compared.
        notes: the writer of notes.
        tagger: finds the sections, with `points="tagger"`; else None.
        parents: how nodes above the leaves get vectors, if the levels of the trees have names. None for other trees,
            whose nodes are all embedded.
        store: one of `names.STORES`; it finds the nearest vectors.
        uri: address of the server of the store; empty for stores without one.
        collection: name of the vectors of this index in the store, chosen once; empty before they are first written.
        reads: how the encoder reads; not that of a run.
        late: the vectors of the tokens of all chunks are stored too, for late interaction.
        vectors: what a search compares first; float16 and int8 read less, and compare the best exactly.

    Raises:
        UsageError: the strategy has no tagger or no parents.
    """

    chunking: ChunkConfig | None
    model: str
    is_run: bool = False
    is_tree: bool = False
    fingerprint: str = ""
    notes: NotesSetting = NotesSetting()
    tagger: TaggerSetting | None = None
    parents: ParentsSetting | None = None
    store: StoreName = "sqlite"
    uri: str = ""
    collection: str = ""
    reads: EncoderOptions = EncoderOptions()
    late: bool = False
    vectors: VectorsName = "float32"

    def __post_init__(self) -> None:
        if self.tagger is not None and (self.chunking is None or points_of(self.chunking) != "tagger"):
            raise UsageError("index: a tagger and points=tagger work only together; set both or neither")
        if self.parents is not None and not self.has_levels:
            raise UsageError("index: has parents, but no levels; choose strategy levels, or leave parents out")
        if (self.store in STORES.choices("server")) != bool(self.uri):
            has_none = ("has no server; leave ", Arg("uri"), " out")
            needs = ("needs the address of its server; give it (", Arg("uri"), ")")
            raise UsageError(has_none if self.uri else needs, field="store", value=self.store)

    @property
    def has_levels(self) -> bool:
        """True if documents are trees whose levels have names."""
        return self.chunking is not None and self.chunking.strategy in CHUNKERS.choices("levels")

    @property
    def reading(self) -> Reading:
        """How the text of nodes above the leaves is embedded."""
        if self.parents is None:
            return "alike"
        return "apart" if self.parents.name in ("direct", "windows") else "never"

    @property
    def has_notes(self) -> bool:
        """True if chunks get notes."""
        return self.notes.reader != "none"

    @property
    def reuses_vectors(self) -> bool:
        """True if equal texts always have equal vectors."""
        return self.chunking is None or self.chunking.strategy != _LATE

    @property
    def cutting(self) -> tuple[str | Arg, ...]:
        """How documents are cut, as part of a sentence."""
        if self.chunking is None:
            return ("the sentences of a run (", Arg("retriever"), ")")
        strategy, points, most = self.chunking.strategy, points_of(self.chunking), self.chunking.max_tokens
        if self.is_tree and strategy not in CHUNKERS.choices("tree"):  # chunks of those strategies are leaves anyway
            strategy = "tree"
        sizes = ",".join(map(str, self.chunking.levels.sizes)) if self.has_levels else ""
        given = [Arg("strategy", strategy), Arg("max_tokens", most), Arg("sizes", sizes or None)]
        given += [Arg("points", None if points == HierarchyConfig.points else points)]
        given += [Arg("parents", self.parents and self.parents.name)]
        return tuple(part for arg in given if arg.value is not None for part in (" ", arg))[1:]

    @property
    def without_places(self) -> "IndexSettings":
        """The settings without the folders of encoder, tagger and compressor, which fingerprints identify."""
        tagger = self.tagger and replace(self.tagger, run="")
        parents = self.parents and replace(self.parents, run=self.parents.run and "anywhere")
        return replace(self, model="", tagger=tagger, parents=parents, collection="")


def read_settings(path: str | os.PathLike) -> IndexSettings:
    """Reads the settings of an index.

    Raises:
        UsageError: there is no index, or `index.json` belongs to another program.
        InputError: the file was changed, cannot be read, or has a newer format.
    """
    about = index_folder(path) / ABOUT
    try:
        value = read_json(about)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}); change its permissions", file=about) from error
    if not is_filled(about.parent) and value.keys().isdisjoint(("format", "settings", "sha256")):  # of another program
        raise UsageError(f"{about.parent}: not an index; its {ABOUT} belongs to another program; give another folder")
    if type(value.get("format")) is int and value["format"] > FORMAT:
        raise InputError(
            f"format {value['format']}, this version of qrag_jax reads {' and '.join(map(str, FORMATS))}; "
            "update qrag_jax, or build the index again in another folder",
            file=about,
        )
    if value.get("format") not in FORMATS or value.get("sha256") != _sha256(value.get("settings")):
        raise InputError(
            "changed since it was written (its sha256 differs); copy the index again, or remove its folder "
            "and build it again",
            file=about,
        )
    settings = value["settings"]
    if isinstance(settings, dict) and settings.get("store") == "memory":  # the name of the only store of format 4
        settings = {**settings, "store": "sqlite"}
    return config_from_dict(IndexSettings, settings, str(about))


def write_settings(folder: Path, settings: IndexSettings) -> None:
    """Writes `index.json`, complete or not at all; it makes the folder an index."""
    write_whole(folder / ABOUT, json_text(with_sha256(to_dict(settings))))


def with_sha256(settings: Any) -> dict[str, Any]:
    """The contents of `index.json` for settings as plain values."""
    return {"format": FORMAT, "settings": settings, "sha256": _sha256(settings)}


def settings_of(folder: Path, asked: IndexSettings) -> IndexSettings | None:
    """The settings of an existing index with the notes, store and codes that are asked for, because they can change."""
    if not is_index(folder):
        return None
    known = read_settings(folder)
    for is_same, used, given in (
        (_cut_by(known) == _cut_by(asked), known.cutting, asked.cutting),
        (known.reads == asked.reads, _shown(known.reads), _shown(asked.reads)),
    ):
        if not is_same:
            why, remedy = ("was made with ", *used, ", not with ", *given), "leave those options out"
            raise UsageError(why, file=folder, remedy=f"{remedy}, or build another index")
    if known.late != asked.late:
        raise UsageError(
            ("was made ", "with" if known.late else "without", " token vectors (", Arg("late"), ")"),
            file=folder,
            remedy="build another index",
        )
    for one, other, what in ((known.tagger, asked.tagger, "tagger"), (known.parents, asked.parents, "compressor")):
        if one is not None and other is not None:
            check_made_by(one, other.fingerprint, what, other.run)
    return replace(known, notes=asked.notes, store=asked.store, uri=asked.uri, vectors=asked.vectors)


def check_made_by(setting: TaggerSetting | ParentsSetting, fingerprint: str, what: str, run: str) -> None:
    """Refuses a tagger or compressor other than the one that made the index.

    Args:
        fingerprint: of the current one.
        what: its kind, for the message.
        run: its folder; empty is the one in the package.
    """
    if setting.fingerprint != fingerprint:
        names = [name or f"the packaged {what}" for name in (setting.run, run)]
        raise InputError(
            f"index: was made with the {what} of {names[0]} ({setting.fingerprint[:12]}), but that of {names[1]} "
            f"differs ({fingerprint[:12]})",
            remedy=("use the original one (", Arg(what), "), or build another index"),
        )


def check_encoder(settings: IndexSettings, fingerprint: str, name: str) -> None:
    """Refuses an encoder other than the one that made the vectors of the index.

    Args:
        name: of the encoder, for the message.
    """
    if settings.fingerprint != fingerprint:
        raise InputError(
            f"index: its vectors were made by the encoder of {settings.model} ({settings.fingerprint[:12]}), but that "
            f"of {name} differs ({fingerprint[:12]}); use the original encoder, or build another index"
        )


def _shown(reads: EncoderOptions) -> tuple[str | Arg, ...]:
    """The options of an encoder, as part of a sentence."""
    parts = [part for name in reads.given for part in (" ", Arg(name, getattr(reads, name)))]
    return tuple(parts[1:]) or ("the prompts and the size that the encoder's files name",)


def _cut_by(settings: IndexSettings) -> tuple[object, ...]:
    parents = settings.parents and settings.parents.name
    return settings.chunking, settings.is_run, settings.is_tree, parents


def _sha256(value: Any) -> str:
    return hashlib.sha256(json_text(value, allow_nan=True)).hexdigest()
