"""The sources of an `Index`: an index on disk, or documents in memory, with or without chunks and vectors."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.chunking.chunker import ChunkConfig, level_names
from qrag_jax.chunking.tree.level_ranges import LevelRange, full_range, parse_levels
from qrag_jax.documents.decoding import check_encoding, is_utf8
from qrag_jax.documents.found import Only, named_paths
from qrag_jax.documents.read import STDIN, left_out, read_files
from qrag_jax.errors import Arg
from qrag_jax.files.manifest import MANIFEST
from qrag_jax.files.step_folders import checkpoint_steps, step_folder
from qrag_jax.index.build import build_index, level_index, make_maker
from qrag_jax.index.corpus_folder import is_corpus, load_corpus
from qrag_jax.index.folder import CATALOGUE, SHARDS, finished_shards, index_folder, is_filled, is_index
from qrag_jax.index.info import DocumentInfo, IndexInfo, index_info
from qrag_jax.index.load import load_index, load_noted_index
from qrag_jax.index.methods import DEFAULT_CHUNKING, Method
from qrag_jax.index.parts.make import uses_parts
from qrag_jax.index.settings import IndexSettings, ParentsSetting, TaggerSetting, read_settings
from qrag_jax.index.stored_corpus import open_corpus, open_notes
from qrag_jax.index.stores.sqlite.entries import Origin
from qrag_jax.names import CHUNKERS
from qrag_jax.search.corpus import Corpus, asked_together, join_corpora
from qrag_jax.search.levels.level_search import LevelIndex, document_heads
from qrag_jax.search.levels.planners import Planner, constant
from qrag_jax.search.note_search import NotedCorpus
from qrag_jax.search.rows import Rows
from qrag_jax.types import AS_MADE, Cost, Document, Embed, EncoderOptions, InputError, TextGenerator, UsageError

if TYPE_CHECKING:
    from qrag_jax.index.update import Changes, Plan

Paths = str | os.PathLike | Iterable[str | os.PathLike]


@dataclass(frozen=True, eq=False)
class View:
    """The documents to search: all, or a selection.

    Attributes:
        corpus: the documents.
        settings, method: how they were cut and embedded.
        noted: the corpus with its notes; None if notes are not used.
        cost: of cutting and embedding documents for this view.
    """

    corpus: Corpus
    settings: IndexSettings
    method: Method
    noted: NotedCorpus | None = None
    cost: Cost = Cost()
    _planners: dict[str, Planner] = field(default_factory=dict)

    @cached_property
    def level_index(self) -> LevelIndex:
        """The documents, ready to search any range of levels; needs documents with levels."""
        return level_index(self.corpus, self.settings, self.method)

    @cached_property
    def heads(self) -> tuple[str, ...]:
        """The beginnings of the documents, for a planner of levels."""
        return document_heads(self.corpus)

    def chosen(self, only: tuple[str, ...], method: Method, *, with_notes: bool) -> "View":
        """The documents that match the patterns, for another method, with their notes or without."""
        names = Only(only).of_names(list(self.corpus.by_id)) if only else ()
        if with_notes and self.noted is not None:
            noted = self.noted.only(names) if only else self.noted
            return View(noted.corpus, self.settings, method, noted)
        return View(self.corpus.only(names) if only else self.corpus, self.settings, method)

    @contextmanager
    def asked(self, questions: Sequence[str], embed: Embed, *, with_products: bool) -> Iterator[None]:
        """Prepares searches for several questions at once; their results inside of it are those of one at a time.

        Args:
            questions: embedded together.
            embed: the encoder of the corpus.
            with_products: vectors on disk are read once for all questions.
        """
        with ExitStack() as stack:
            asked = stack.enter_context(asked_together(self.corpus, embed, questions))
            if with_products:
                for rows in (self.corpus.unit_vectors, self.noted and self.noted.vectors):
                    if isinstance(rows, Rows):
                        stack.enter_context(rows.asked(asked))
            yield

    def planner(
        self,
        levels: str | LevelRange | Planner | None,
        generator: TextGenerator | None = None,
        prompts: Path | None = None,
    ) -> Planner | None:
        """The planner that chooses levels for each question; None if no levels are asked for.

        Args:
            levels: as in `SearchOptions`.
            generator, prompts: for llm.
        """
        names = level_names_of(self.settings)
        if levels is None or callable(levels):
            return levels
        if isinstance(levels, LevelRange):
            return constant(levels)
        if levels == "all":
            return constant(full_range(names))
        if levels == "llm":
            if generator is None:
                reason = (Arg("levels", "llm"), ": needs a language model, and none is given")
                raise UsageError(reason, field="levels")
            from qrag_jax.search.levels.llm_planner import make_llm_planner

            count = getattr(generator, "count", None) or self.method.count
            return make_llm_planner(generator, count, names, prompts)
        kind, _, run = levels.partition(":")
        if kind == "planner":
            assert self.method.embed is not None  # check_options refuses levels without an encoder
            if run not in self._planners:
                from qrag_jax.search.levels.planner_runs import load_planner

                self._planners[run] = load_planner(run, self.level_index, self.method.embed)
            return self._planners[run]
        return constant(parse_levels(levels, names))


@dataclass
class StoredSource:
    """An index on disk.

    Attributes:
        name: its folder, as given.
        only: patterns of the documents to search.
    """

    name: str
    only: tuple[str, ...] = ()

    @cached_property
    def settings(self) -> IndexSettings:
        """The settings of the index."""
        return read_settings(self.name)

    def view(self, only: tuple[str, ...], method: Method, key: str, *, with_notes: bool) -> View:
        """The documents that match the patterns, in their current state."""
        patterns = [Only(one) for one in (self.only, only) if one]

        def choose(names: Sequence[str]) -> Sequence[str]:
            for pattern in patterns:
                names = pattern.of_names(names)
            return names

        chosen = choose if patterns else None
        if not uses_parts(self.settings) or method.is_sentences:
            if with_notes:
                noted = load_noted_index(self.name, chosen)
                return View(noted.corpus, self.settings, method, noted)
            return View(load_index(self.name, chosen), self.settings, method)
        corpus = open_corpus(index_folder(self.name), self.settings, chosen)
        return View(corpus, self.settings, method, open_notes(corpus) if with_notes else None)

    def add(self, paths: Sequence[str], plan: "Plan | None") -> "Changes":
        """As `Index.add`."""
        from qrag_jax.index.update import Plan

        return build_index(self.name, paths, plan=plan or Plan())

    def remove(self, paths: Sequence[str], plan: "Plan | None") -> tuple[str, ...]:
        """As `Index.remove`."""
        from qrag_jax.index.remove import remove_documents

        reader = plan and plan.read_notes
        return remove_documents(Path(self.name), paths, make=make_maker(self.settings), read_notes=reader)

    def info(self, corpus: Callable[[], Corpus], *, verify: bool = False) -> IndexInfo:
        """As `Index.info` and `Index.verify`."""
        return index_info(self.name, verify=verify)

    def documents(self) -> tuple[str, ...]:
        """The ids of all documents, in their order."""
        return tuple(one.id for one in index_info(self.name).documents)


@dataclass
class MemorySource:
    """Documents in memory, cut and embedded at the first search.

    Attributes:
        name: the paths, or `documents`.
        settings: how they are cut and embedded.
        held: the documents, in their order.
        corpus: the given corpus; None if documents or files were given.
        encoding, strict: how files are read.
    """

    name: str
    settings: IndexSettings
    held: tuple[Document, ...]
    corpus: Corpus | None = None
    encoding: str = "utf-8"
    strict: bool = False

    def __post_init__(self) -> None:
        self._made: dict[str, Corpus] = {}

    @property
    def is_of_words(self) -> bool:
        """True if the given corpus has no vectors."""
        return self.corpus is not None and self.corpus.vectors is None

    def view(self, only: tuple[str, ...], method: Method, key: str, *, with_notes: bool) -> View:
        """The documents that match the patterns; cuts and embeds new ones.

        Args:
            key: equal for methods that cut and embed in the same way.
        """
        made = self._made.get(key, self.corpus)
        known = {} if made is None else made.by_id
        new = [one for one in self.held if known.get(one.id) is not one]
        kept = {one.id for one in self.held} - {one.id for one in new}
        if made is not None and len(kept) < len(known):
            made = made.only(kept) if kept else None
        cost = Cost()
        if made is not None and new and method.embed is None:  # the new documents get no vectors
            made = replace(made, vectors=None)
        if made is None or new:
            part = method.build(new)
            made, cost = part if made is None else join_corpora(made, part), part.cost
        self._made[key] = made
        chosen = made.only(Only(only).of_names(list(made.by_id))) if only else made
        return View(chosen, self.settings, method, cost=cost)

    def add(self, paths: Sequence[str], plan: "Plan | None") -> "Changes":
        """As `Index.add`."""
        from qrag_jax.index.update import Changes

        found = read_files(paths, self.encoding, strict=self.strict)
        held = {one.id: one for one in self.held}
        same = sum(held.get(one.id) == one for one in found)
        self.held = tuple((held | {one.id: one for one in found if held.get(one.id) != one}).values())
        return Changes(num_read=len(found) - same, num_same=same)

    def remove(self, paths: Sequence[str], plan: "Plan | None") -> tuple[str, ...]:
        """As `Index.remove`."""
        from qrag_jax.index.remove import lies_in

        names = self.documents()
        for path in paths:
            if not any(lies_in(name, path) for name in names):
                raise UsageError("not among the documents; `documents()` lists them", field="paths", value=path)
        gone = tuple(name for name in names if any(lies_in(name, path) for path in paths))
        self.held = tuple(one for one in self.held if one.id not in gone)
        return gone

    def info(self, corpus: Callable[[], Corpus], *, verify: bool = False) -> IndexInfo:
        """As `Index.info`."""
        made = corpus()
        dim = 0 if made.vectors is None else made.vectors.shape[1]
        documents = []
        for document in made.documents:
            nodes = made.nodes_of(document.id)
            tokens, num_vectors = int(made.num_tokens[nodes].sum()), len(nodes) if dim else 0
            missing = left_out(document)
            documents.append(
                DocumentInfo(document.id, len(nodes), tokens, 0, dim, Origin("", ""), num_vectors, missing)
            )
        return IndexInfo(None, self.settings, tuple(documents), (), dim, made.cost.index_bytes)

    def documents(self) -> tuple[str, ...]:
        """The ids of all documents, in their order."""
        return tuple(one.id for one in self.held)


def make_source(
    source: Paths | Sequence[Document] | Corpus,
    encoder: object,
    chunking: ChunkConfig | None,
    tagger: str | os.PathLike | None,
    only: tuple[str, ...],
    encoding: str,
    strict: bool,
    reads: EncoderOptions = AS_MADE,
) -> StoredSource | MemorySource:
    """The source to search; arguments as in `open_index`."""
    check_encoding(encoding)
    if isinstance(source, Corpus):
        return _of_corpus(source, "corpus", only, encoder)
    given = [source] if isinstance(source, str | os.PathLike) else list(source)
    documents = tuple(one for one in given if isinstance(one, Document))
    paths = named_paths(one for one in given if not isinstance(one, Document))
    if documents and paths:
        reason = f"{len(documents)} documents are mixed with the path {paths[0]}"
        raise UsageError(reason, field="source", remedy="give all as documents (`read_files`)")
    stored = [path for path in paths if is_stored(path)]
    if stored and len(paths) > 1:
        raise UsageError(
            f"{stored[0]}: is an index, which cannot be mixed with files; add them to it with `qrag index add "
            f"{stored[0]} PATHS...`"
        )
    if stored:
        found = StoredSource(stored[0], only)
        of_files = {"encoder": encoder, "chunking": chunking, "tagger": tagger, "strict": strict or None}
        of_files |= {name: getattr(reads, name) for name in reads.given}
        of_files["encoding"] = None if is_utf8(encoding) else encoding
        for field in [name for name, value in of_files.items() if value is not None]:
            what = f"applies only to files; {found.name} is an index, made with "
            raise UsageError((what, *found.settings.cutting), field=field)
        return found
    if len(paths) == 1 and is_corpus(paths[0]):
        return _of_corpus(load_corpus(paths[0]), paths[0], only, encoder)
    settings = IndexSettings(
        chunking or DEFAULT_CHUNKING,
        encoder if isinstance(encoder, str) else "minilm",
        tagger=None if tagger is None else TaggerSetting(os.fspath(tagger)),
        reads=reads,
    )
    documents = documents or tuple(read_files(paths, encoding, strict=strict, only=only))
    return MemorySource(", ".join(paths) or "documents", settings, documents, None, encoding, strict)


def _of_corpus(corpus: Corpus, name: str, only: tuple[str, ...], encoder: object) -> MemorySource:
    corpus = corpus.only(Only(only).of_names(list(corpus.by_id))) if only else corpus
    chunking = corpus.made_by.chunking or DEFAULT_CHUNKING
    parents = ParentsSetting("best_child") if corpus.trees and chunking.strategy in CHUNKERS.choices("levels") else None
    known = encoder if isinstance(encoder, str) else corpus.made_by.encoder
    known = known or ("minilm" if corpus.vectors is None else "")  # its tokenizer counts tokens
    settings = IndexSettings(chunking, known, is_tree=bool(corpus.trees), parents=parents)
    return MemorySource(name, settings, corpus.documents, corpus)


def level_names_of(settings: IndexSettings) -> tuple[str, ...]:
    """Names of the levels of documents, the coarsest first; empty if they have none."""
    return () if settings.parents is None or settings.chunking is None else level_names(settings.chunking)


def is_stored(path: str) -> bool:
    """True if a path is an index on disk that can be searched.

    Raises:
        UsageError: it is an index in shards that are not merged.
        InputError: it is an index without its documents.
    """
    if path == STDIN:
        return False
    if is_filled(path):
        return is_index(path)
    try:
        shards = finished_shards(Path(path))
    except UsageError:  # a folder that cannot be read; the reader of its files reports that
        return False
    if any(is_index(os.path.join(path, SHARDS, name)) for name in shards):
        raise UsageError(
            f"{path}: an index in shards that are not merged; finish all shards, then run `qrag index merge {path}`"
        )
    try:
        read_settings(path)
    except (UsageError, InputError):  # no index, or an `index.json` of another program
        return False
    raise InputError(
        f"{path}: an index without its {CATALOGUE}; copy the index again, or remove its folder and build it again"
    )


def is_run(path: str) -> bool:
    """True if a path is the folder of a run or of one of its steps; checks file names."""
    folder = Path(path)
    if path == STDIN or not os.path.isdir(folder):
        return False
    try:
        steps = [folder, *(step_folder(folder, step) for step in checkpoint_steps(folder))]
        return any((step / MANIFEST).is_file() and (step / "metadata.json").is_file() for step in steps)
    except PermissionError:  # the reader of the run reports it
        return False
