"""Build an index of files, update it, and make the method that searches it.

build_index("notes.index", ["notes/"])                          # a second call reads only files that have changed
corpus, method = load_index("notes.index"), index_method(read_settings("notes.index"))
ranked = method.retrieve("Who has the key?", corpus, 5)
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig, level_names, make_tree_builder, points_of
from qrag_jax.chunking.tree.boundaries import PredictPoints
from qrag_jax.chunking.tree.parent_vectors import Parents, mean_of_children
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.documents.read import find_files
from qrag_jax.index.folder import is_index
from qrag_jax.index.methods import DEFAULT_CHUNKING, Method, Show, Stop, multi_step_method, single_step_method
from qrag_jax.index.parent_texts import text_parents
from qrag_jax.index.settings import (
    IndexSettings,
    NotesSetting,
    ParentsSetting,
    TaggerSetting,
    check_encoder,
    check_made_by,
    read_settings,
)
from qrag_jax.names import CHUNKERS, RETRIEVERS, NoteReaderName, ParentsName, RetrieverName, StoreName, VectorsName
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import make_single_step
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.types import AS_MADE, Arg, Chunk, Document, Encoder, EncoderOptions, UsageError

if TYPE_CHECKING:
    from qrag_jax.index.prepare import Maker
    from qrag_jax.index.update import Changes, Plan
    from qrag_jax.models.encoder.embedder import TextEmbedder
    from qrag_jax.qrag.retriever import QRagRetriever

_MODEL = "minilm"


def index_settings(
    run: str | os.PathLike | None = None,
    model: str = _MODEL,
    chunking: ChunkConfig = DEFAULT_CHUNKING,
    *,
    tree: bool = False,
    notes: NoteReaderName | NotesSetting | None = None,
    tagger: str | os.PathLike | None = None,
    parents: ParentsName | None = None,
    compressor: str | os.PathLike | None = None,
    store: StoreName = "sqlite",
    uri: str = "",
    reads: EncoderOptions = AS_MADE,
    late: bool = False,
    vectors: VectorsName = "float32",
) -> IndexSettings:
    """The settings of a new index.

    Args:
        run: folder of a run. The index then contains sentences, embedded by the run's encoder; `model`, `chunking` and
            `tree` are ignored.
        model: the encoder: minilm, a folder or a hub id.
        chunking: how documents are cut.
        tree: keep the tree of each document (`make_tree_builder`); `chunking` then gives the sizes of its parts. The
            strategies `hierarchy` and `levels` always keep it.
        notes: the writer of notes. None is `none` for a run and for levels, whose searches ignore notes, else
            `mentions`.
        tagger: run of the tagger that finds boundaries, with `points="tagger"`; None is the tagger in the package.
        parents: how nodes above the leaves get vectors, with strategy `levels`; None is best_child.
        compressor: run of the compressor, with parents `compressor`.
        store: one of `names.STORES`; it finds the nearest vectors.
        uri: address of the store's server, for a store that has one.
        reads: prompts and size of the vectors; not of a run.
        late: store the vectors of all tokens too (about 77 kB for a chunk of 200 tokens), so that searches with `late`
            need not compute them; not with a run.
        vectors: as in `IndexSettings`; not with a run or levels, whose searches compare float32.

    Raises:
        UsageError: two options do not go together, or the tagger or compressor does not exist.
        InputError: the tagger or compressor is damaged.
    """
    has_levels = run is None and chunking.strategy in CHUNKERS.choices("levels")
    if parents is not None and not has_levels:
        raise UsageError(f"parents {parents}: works only with strategy levels; choose that, or leave parents out")
    if compressor is not None and parents != "compressor":
        raise UsageError(
            f"compressor {compressor}: works only with parents=compressor; choose that, or leave compressor out"
        )
    by_tagger = run is None and points_of(chunking) == "tagger"
    if tagger is not None and not by_tagger:
        raise UsageError(f"tagger {tagger}: works only with points=tagger; choose that, or leave tagger out")
    notes = notes or ("none" if run is not None or has_levels else "mentions")
    setting = NotesSetting(notes) if isinstance(notes, str) else notes
    if run is not None and late:
        raise UsageError((Arg("late"), ": a run compares no token vectors; leave one of the two out"), field="late")
    if vectors != "float32" and (run is not None or has_levels):
        reason = (Arg("vectors", vectors), ": does not work with a run or levels; leave it out")
        raise UsageError(reason, field="vectors")
    if run is not None:
        return IndexSettings(None, os.path.abspath(run), is_run=True, notes=setting, store=store, uri=uri)
    return IndexSettings(
        chunking,
        os.path.abspath(model) if os.path.isdir(model) or model.endswith(".gguf") else model,
        is_tree=tree or chunking.strategy in CHUNKERS.choices("tree"),
        notes=setting,
        tagger=_tagger_setting(tagger) if by_tagger else None,
        parents=_parents_setting(parents or "best_child", compressor) if has_levels else None,
        store=store,
        uri=uri,
        reads=reads,
        late=late,
        vectors=vectors,
    )


def _tagger_setting(run: str | os.PathLike | None) -> TaggerSetting:
    from qrag_jax.models.tagger.tagger import load_tagger, tagger_sha256

    return TaggerSetting(
        "" if run is None else os.path.abspath(run), tagger_sha256(load_tagger(None if run is None else Path(run)))
    )


def _parents_setting(name: ParentsName, compressor: str | os.PathLike | None) -> ParentsSetting:
    if name != "compressor":
        return ParentsSetting(name)
    if compressor is None:
        named = ("parents compressor: needs a run of `qrag train compressor`; name it (", Arg("compressor"), ")")
        raise UsageError(named, field="parents", value=name)
    from qrag_jax.models.compressor import load_compressor

    return ParentsSetting(name, os.path.abspath(compressor), load_compressor(Path(compressor)).identity)


def build_index(
    index: str | os.PathLike,
    paths: str | os.PathLike | Iterable[str | os.PathLike],
    settings: IndexSettings | None = None,
    plan: "Plan | None" = None,
) -> "Changes":
    """Makes an index of files and folders, or updates one. Documents whose files are gone are removed.

    Args:
        index: folder of the index.
        paths: files and folders, as in `read_files`.
        settings: how the index is made; None takes those of the index, or `index_settings()` for a new one.
        plan: encoding, processes and progress; one with `mirror=False` removes nothing.

    Raises:
        UsageError: `index` contains something else, was made with other settings, or no file was found.
        InputError: the encoder differs, the disk is full, or damage cannot be repaired. Finished documents stay.
    """
    folder = Path(index)
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    from qrag_jax.index.remove import outside
    from qrag_jax.index.update import Plan, update_index

    plan = plan or Plan(mirror=True)
    if settings is None:
        settings = read_settings(folder) if is_index(folder) else index_settings()
        plan = replace(plan, keeps_notes=True)
    found, _ = outside(find_files(names), names, folder)
    return update_index(folder, names, found, settings, make_maker(settings), plan)


def index_method(
    settings: IndexSettings,
    retriever: "str | QRagRetriever" = "",
    num_steps: int | None = None,
    show: Show | None = None,
    *,
    stop: bool = False,
    encoder: "TextEmbedder | None" = None,
) -> Method:
    """The method that searches an index, and that cuts and embeds new documents for it.

    Args:
        settings: those of the index (`read_settings`).
        retriever: one of `names.RETRIEVERS`, a run that reads chunks with the encoder of the index, or the folder of
            one. Empty is the run that made the index, else hybrid.
        num_steps: as in `multi_step_method`.
        show: wraps the encoder.
        stop: let the run end where it has learned to stop.
        encoder: the loaded encoder of the index, if you have it.

    Raises:
        UsageError: the run or encoder does not exist.
        InputError: the encoder is damaged, or differs from the one that made the vectors of the index.
    """
    is_name = isinstance(retriever, str) and (not retriever or retriever in RETRIEVERS)
    if is_name and not settings.is_run:
        assert settings.chunking is not None  # only an index made by a run has none
        name, tagger = cast(RetrieverName, retriever or "hybrid"), (settings.tagger and settings.tagger.run) or None
        method = single_step_method(name, encoder or settings.model, settings.chunking, show, tagger, settings.reads)
        method = replace(method, encoder=method.encoder or settings.model)
    else:
        run = settings.model if is_name else retriever
        try:
            method = _run_method(run, num_steps, show, stop)
        except UsageError as error:
            if not is_name or error.field == "stop":
                raise
            raise UsageError(
                f"the index was made with the run {run}: {error}",
                remedy=(
                    "if the run has moved, or another run has the same encoder, name it (",
                    Arg("retriever"),
                    ")",
                ),
            ) from error
        if is_name and isinstance(retriever, str) and retriever:
            method = replace(method, retrieve=make_single_step(retriever, method.embed))
    if isinstance(method.embed, Encoder) and settings.fingerprint:
        check_encoder(settings, method.embed.fingerprint, method.encoder)
    return method


def _run_method(run: "str | QRagRetriever", num_steps: int | None, show: Show | None, stop: bool) -> Method:
    from qrag_jax.checkpoint import load_checkpoint
    from qrag_jax.qrag.retriever import load_retriever, read_threshold  # takes a second: only for runs

    name, saved = "run", None
    if isinstance(run, str):
        name, saved = run, load_checkpoint(run, groups=())
        run = load_retriever(saved.folder)
    loaded: QRagRetriever = run
    if loaded.encoder is None:
        raise UsageError(
            f"{name}: this run was trained on given vectors, so it has no text encoder for files; name a run trained "
            "on text, or search its vectors with `qrag eval RUN --vectors DIR` or from Python "
            "(qrag_jax.qrag.multi_step_search)"
        )
    threshold = None if saved is None or not stop or loaded.env.stop else read_threshold(saved.metadata)
    if stop and not loaded.env.stop and threshold is None:
        raise UsageError(
            (Arg("stop"), f": {name if saved is None else saved.folder} has not learned when to stop"),
            field="stop",
            remedy="train it with dev.share=0.1 (a threshold from held-out questions) or with env.stop=true "
            "env.reward=at_end (a learned stop)",
        )
    ends = Stop(threshold and threshold[0], stop and loaded.env.stop)
    return multi_step_method(loaded, num_steps, show, name, ends)


def make_maker(settings: IndexSettings) -> "partial[Maker]":
    """A function that loads the `Maker` of these settings; it can be sent to other processes."""
    return partial(_load_maker, replace(settings, fingerprint=""))


def level_index(corpus: Corpus, settings: IndexSettings, method: Method) -> LevelIndex:
    """An index whose documents have levels, ready to search any range of levels. Stored vectors are reused.

    Args:
        corpus: the one that `load_index` gives.
        settings: those of the index; it must have levels.
        method: the one that `index_method` gives.
    """
    assert settings.chunking is not None and settings.parents is not None
    names, parents = level_names(settings.chunking), settings.parents
    if parents.name == "compressor":  # loaded only if a vector is missing

        def of_children(*children: np.ndarray) -> np.ndarray:
            made = _load_parents(parents, method).of_children
            assert made is not None
            return made(*children)

        way = Parents("compressor", of_children, fingerprint=parents.fingerprint)
    else:
        way = _load_parents(parents, method)
    return LevelIndex(corpus, names, way, has_parents=parents.name != "best_child")


def _load_maker(settings: IndexSettings) -> "Maker":
    from qrag_jax.index.prepare import Maker

    method = index_method(settings)
    assert isinstance(method.embed, Encoder)  # hybrid and runs have an encoder
    if not settings.is_tree:
        return Maker(method.chunk, method.embed, method.count, keeps_tokens=settings.late)
    assert settings.chunking is not None  # only an index made by a run has none
    build = make_tree_builder(settings.chunking, method.count, predict=_load_points(settings, method.embed))

    def tree(document: Document) -> tuple[ChunkTree, Sequence[Chunk]]:
        made = build(document)
        return made, made.node_chunks(document, method.count)

    parents = None if settings.parents is None else _load_parents(settings.parents, method)
    return Maker(method.chunk, method.embed, method.count, tree, parents, settings.late)


def _load_points(settings: IndexSettings, encoder: Encoder) -> PredictPoints | None:
    """Predicts boundaries with the tagger of an index; None if the index uses no tagger."""
    if settings.tagger is None:
        return None
    from qrag_jax.models.tagger.predict import make_tagger_points
    from qrag_jax.models.tagger.tagger import load_tagger, tagger_sha256

    tagger = load_tagger(settings.tagger.run or None)
    check_made_by(settings.tagger, tagger_sha256(tagger), "tagger", settings.tagger.run)
    return make_tagger_points(tagger, encoder)


def _load_parents(setting: ParentsSetting, method: Method) -> Parents:
    """Makes the vectors of parents; can run in any process."""
    assert isinstance(method.embed, Encoder) and method.window is not None  # an index has embedded chunks
    if setting.name == "best_child":
        return Parents("best_child")
    if setting.name == "mean":
        return Parents("mean", of_children=mean_of_children)
    if setting.name != "compressor":
        return text_parents(setting.name, method.embed, method.count, window_tokens=method.window)
    from qrag_jax.models.compressor import compressor_parents, load_compressor

    compressor = load_compressor(setting.run)
    check_made_by(setting, compressor.identity, "compressor", setting.run)
    return compressor_parents(compressor, method.embed.fingerprint)
