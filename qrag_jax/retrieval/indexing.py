"""An index of files, whole: made and brought up to date with a model or a run, and the method that searches it.

build_index("notes.index", ["notes/"])                          # the next time only what has changed is read
corpus, method = load_index("notes.index"), index_method(read_settings("notes.index"))
ranked = method.retrieve("Who has the key?", corpus, 5)
noted = load_noted_index("notes.index")                         # and the notes of its chunks
ranked = make_noted_retrieve("hybrid", noted, method.embed, "best_of")("Who has the key?", noted.corpus, 5)
"""

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from qrag_jax.chunking.chunker import ChunkConfig, make_tree_builder
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.data.files.documents import find_files
from qrag_jax.retrieval.catalogue.load import ChooseNames, load_with_notes
from qrag_jax.retrieval.catalogue.place import index_folder, is_index
from qrag_jax.retrieval.catalogue.prepare import Maker
from qrag_jax.retrieval.catalogue.remove import remove_documents
from qrag_jax.retrieval.catalogue.scope import outside
from qrag_jax.retrieval.catalogue.settings import (
    IndexSettings,
    NoteReaderName,
    NotesSetting,
    check_encoder,
    read_settings,
)
from qrag_jax.retrieval.catalogue.update import Changes, Plan, update_index
from qrag_jax.retrieval.index.hybrid import RETRIEVERS, RetrieverName, make_single_step
from qrag_jax.retrieval.index.notes import NotedCorpus
from qrag_jax.retrieval.methods import DEFAULT_CHUNKING, Method, Show, multi_step_method, single_step_method
from qrag_jax.types import Chunk, Document, Encoder, NoteReader, UsageError

_MODEL = "minilm"


def index_settings(
    run: str | os.PathLike | None = None,
    model: str = _MODEL,
    chunking: ChunkConfig = DEFAULT_CHUNKING,
    *,
    tree: bool = False,
    notes: NoteReaderName | NotesSetting | None = None,
) -> IndexSettings:
    """How an index is to be made.

    Args:
        run: folder of a run whose sentences and encoder it has; model, chunking and tree then count for nothing.
        model: encoder: minilm, a folder or a hub id.
        chunking: how documents are cut.
        tree: keep the trees of documents (`make_tree_builder`), of which `chunking` then has the sizes. Those of
            strategy `hierarchy` are kept in any case.
        notes: who writes notes; None is mentions, and none for a run, which does not look at them.
    """
    notes = notes or ("mentions" if run is None else "none")
    setting = NotesSetting(notes) if isinstance(notes, str) else notes
    if run is not None:
        return IndexSettings(None, os.path.abspath(run), is_run=True, notes=setting)
    model = os.path.abspath(model) if os.path.isdir(model) else model
    return IndexSettings(chunking, model, is_tree=tree or chunking.strategy == "hierarchy", notes=setting)


def build_index(
    index: str | os.PathLike,
    paths: str | os.PathLike | Iterable[str | os.PathLike],
    settings: IndexSettings | None = None,
    plan: Plan | None = None,
) -> Changes:
    """Makes an index of files and folders, or brings one up to date; documents that are gone are removed.

    Args:
        index: its folder.
        paths: as of `read_files`.
        settings: how it is made; None takes those of the index, or `index_settings()` for a new one.
        plan: encoding, processes, progress; one with `mirror=False` removes nothing.

    Raises:
        UsageError: there is something else at `index`, it was made with other settings, or no file was found.
        InputError: another encoder, a full disk, damage that cannot be mended. What was finished stays.
    """
    folder = Path(index)
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    plan = plan or Plan(mirror=True)
    if settings is None:
        settings = read_settings(folder) if is_index(folder) else index_settings()
        plan = replace(plan, keeps_notes=True)
    found, _ = outside(find_files(names), names, folder)
    return update_index(folder, names, found, settings, make_maker(settings), plan)


def add_to_index(
    index: str | os.PathLike,
    paths: str | os.PathLike | Iterable[str | os.PathLike],
    read_notes: NoteReader | None = None,
) -> Changes:
    """Brings documents of files and folders into an index that is there; removes nothing.

    Args:
        index: its folder.
        paths: as of `read_files`.
        read_notes: writes the notes, where a language model does (`structure.make_llm_reader`).

    Raises:
        UsageError, InputError: as `build_index`, or there is no index.
    """
    return build_index(index_folder(index), paths, plan=Plan(mirror=False, read_notes=read_notes))


def remove_from_index(
    index: str | os.PathLike,
    paths: str | os.PathLike | Iterable[str | os.PathLike],
    read_notes: NoteReader | None = None,
) -> tuple[str, ...]:
    """Takes documents of files and folders out of an index, with their notes; gives their ids.

    Args:
        index: its folder.
        paths: as they are named in it.
        read_notes: as of `add_to_index`.

    Raises:
        UsageError, InputError: as `remove_documents`.
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    folder = index_folder(index)
    return remove_documents(folder, names, make=make_maker(read_settings(folder)), read_notes=read_notes)


def load_noted_index(index: str | os.PathLike, choose: ChooseNames | None = None) -> NotedCorpus:
    """An index as it is searched with its notes; none where it has none.

    Warns where notes are missing, as an update was not finished: what is there holds.

    Args:
        index: its folder.
        choose: as of `load_index`.

    Raises:
        UsageError, InputError: as `load_index`; notes are damaged.
    """
    corpus, found = load_with_notes(index, choose)
    if not found.is_current:
        warnings.warn(
            f"{index}: its notes are of an older state of its documents, as an update was not finished: those that "
            f"still hold are used; `qrag index add {index} PATHS...` makes the others",
            stacklevel=2,
        )
    return NotedCorpus(corpus, found.notes, found.vectors, found.keys, found.num_tokens)


def index_method(
    settings: IndexSettings, retriever: str = "", num_steps: int | None = None, show: Show | None = None
) -> Method:
    """The method that searches an index, and that cuts and embeds what is added to it.

    Args:
        settings: of the index (`read_settings`).
        retriever: one of `hybrid.RETRIEVERS`, or the folder of a run that reads chunks with the index's encoder; empty
            is the run that the index was made with, else hybrid.
        num_steps: as of `multi_step_method`.
        show: wraps the encoder.

    Raises:
        UsageError: there is no such run or encoder.
        InputError: it is damaged, or another one than that of the index, whose vectors it could not be asked for.
    """
    is_method = not retriever or retriever in RETRIEVERS
    if is_method and not settings.is_run:
        assert settings.chunking is not None  # of all that is no run's
        method = single_step_method(cast(RetrieverName, retriever or "hybrid"), settings.model, settings.chunking, show)
    else:
        from qrag_jax.retrieval.index.retriever import load_retriever  # takes a second, which hybrid need not wait for

        run = settings.model if is_method else retriever
        try:
            loaded = load_retriever(run)
        except UsageError as error:
            if not is_method:
                raise
            raise UsageError(
                f"the index was made with the run {run}: {error}; if it lies elsewhere now, or another run has its "
                "encoder, name that (--retriever)"
            ) from error
        method = multi_step_method(loaded, num_steps, show, run)
        if retriever in RETRIEVERS:
            method = replace(method, retrieve=make_single_step(retriever, method.embed))
    if isinstance(method.embed, Encoder) and settings.fingerprint:
        check_encoder(settings, method.embed.fingerprint, method.encoder)
    return method


def make_maker(settings: IndexSettings) -> partial[Maker]:
    """What loads, in any process, what cuts and embeds by these settings."""
    return partial(_load_maker, replace(settings, fingerprint=""))


def _load_maker(settings: IndexSettings) -> Maker:
    method = index_method(settings)
    assert isinstance(method.embed, Encoder)  # hybrid and runs have one
    if not settings.is_tree:
        return Maker(method.chunk, method.embed, method.count)
    assert settings.chunking is not None  # of all that is no run's
    build = make_tree_builder(settings.chunking, method.count)

    def tree(document: Document) -> tuple[ChunkTree, Sequence[Chunk]]:
        made = build(document)
        return made, made.node_chunks(document, method.count)

    return Maker(method.chunk, method.embed, method.count, tree)
