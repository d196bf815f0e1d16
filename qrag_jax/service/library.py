"""Keeps indexes open for servers and agents, and follows their folders while other programs write them.

with Library.open(["notes.index", "letters.index"]) as library:
    for one in library.search(Query("Who has the key?", top_k=3)):
        print(one.index, one.hit.sentence.place)
"""

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from qrag_jax.index.folder import ABOUT, CATALOGUE
from qrag_jax.index.index import Index, open_index
from qrag_jax.index.load import state_of
from qrag_jax.index.options import AskOptions, Found, SearchOptions
from qrag_jax.index.sources import is_stored
from qrag_jax.names import RETRIEVERS
from qrag_jax.search.answer import Answer
from qrag_jax.service.observing import Observe, observing
from qrag_jax.types import Document, Hit, Hits, InputError, InputWarning, TextGenerator, UsageError

_LOOK_SECONDS = 0.5  # between two looks at an index
_WAIT_SECONDS = 30.0  # longest wait for a writer to pause
_WATCHED = (ABOUT, CATALOGUE, f"{CATALOGUE}-wal")
_TOP_K = 5
# Asked so that no question of a client waits for compilation: of about 10 tokens, as most are, then of other lengths.
_WARM_UP = "where and when is what of the one in it"
_LENGTHS = (4, 20, 28, 44, 60)  # words


@dataclass(frozen=True)
class Query:
    """A question of a client.

    Attributes:
        question: the question.
        top_k: most passages; None is 5, or for a run as many as it picks.
        index: name of the index to search; None searches all.
        retriever: hybrid, dense or bm25; None is that of the library.
        only: patterns of documents, as in `SearchOptions`.
        quotas: of a search of several indexes: most passages of each, by its name; 0 leaves one out. An index that is
            not named has no limit of its own. Without `top_k` these passages are all given, 5 of an index without a
            quota.
    """

    question: str
    top_k: int | None = None
    index: str | None = None
    retriever: str | None = None
    only: tuple[str, ...] = ()
    quotas: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Located:
    """A hit, and the name of the index that it comes from."""

    index: str
    hit: Hit


@dataclass
class _Shelf:
    """An index, and the state of its folder when it was read.

    Attributes:
        index: as it was read; replaced as a whole, so that a running search keeps its own.
        folder: of an index on disk; None for files.
        state: `state_of` the folder.
        size: the numbers of documents and chunks of `index`.
        seen: sizes and times of its files when they were last looked at.
        waited: seconds since they began to change.
        fault: why the current state cannot be read; then the last one that could is searched.
    """

    index: Index
    folder: Path | None
    state: str = ""
    size: tuple[int, int] = (0, 0)
    seen: tuple = ()
    waited: float = 0.0
    fault: str = ""


@dataclass
class Library:
    """Indexes by name, kept in memory; each follows its folder. Threads may share it. Made by `Library.open`.

    Attributes:
        options: of all searches.
        asks: of all answers.
        llm: the language model that answers; None quotes.
        observe: told of each search and answer.
    """

    options: SearchOptions = SearchOptions()
    asks: AskOptions = AskOptions()
    llm: TextGenerator | None = None
    observe: Observe | None = None
    _shelves: dict[str, _Shelf] = field(default_factory=dict)
    _closed: threading.Event = field(default_factory=threading.Event)
    _watcher: threading.Thread | None = None

    @classmethod
    def open(
        cls,
        paths: Sequence[str],
        options: SearchOptions | None = None,
        asks: AskOptions | None = None,
        llm: TextGenerator | None = None,
        observe: Observe | None = None,
    ) -> "Library":
        """Opens indexes, or files that are read, cut and embedded now; an index on disk is read at the first search.

        Args:
            paths: indexes, files or folders; the last part of a path, without `.index`, is its name for clients.
            options, asks, llm, observe: as in `Library`.

        Raises:
            UsageError: a path does not exist, or two have the same name.
            InputError: an index or file cannot be read.
        """
        made = cls(options or SearchOptions(), asks or AskOptions(), llm, observe)
        for path in paths:
            name = Path(os.path.abspath(path)).name.removesuffix(".index")
            if name in made._shelves:
                reason = f"two indexes are called {name}; rename the folder of one of them"
                raise UsageError(reason, field="paths", value=path)
            index = open_index(path, retriever=made.options.retriever)
            folder = Path(path) if is_stored(path) else None
            made._shelves[name] = _Shelf(index, folder)
        return made

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the indexes."""
        return tuple(self._shelves)

    @property
    def faults(self) -> dict[str, str]:
        """For each index whose folder cannot be read now: why. Searches use its last readable state."""
        return {name: shelf.fault for name, shelf in self._shelves.items() if shelf.fault}

    def warnings(self) -> list[str]:
        """Sentences to send with every answer: one for each index that cannot be read now."""
        return [f"{name}: its last state is searched, because it cannot be read now" for name in self.faults]

    def sizes(self) -> dict[str, tuple[int, int]]:
        """The numbers of documents and chunks of each index; 0 until it is read. Waits for no search."""
        return {name: shelf.size for name, shelf in self._shelves.items()}

    def warm_up(self) -> None:
        """Reads all indexes and loads the encoder, then begins to follow their folders.

        Raises:
            UsageError, InputError: an index cannot be searched so.
        """
        for shelf in self._shelves.values():
            shelf.seen, shelf.state = _look(shelf.folder), _state(shelf.folder)
            shelf.index.find(_WARM_UP, self.options)
            shelf.size = _size(shelf.index)
        self._watcher = threading.Thread(target=self._follow, daemon=True, name="follows the indexes")
        self._watcher.start()

    def practise(self) -> None:
        """Asks questions of other lengths; a server does it when nobody waits."""
        for number in _LENGTHS:
            for shelf in self._shelves.values():
                shelf.index.find(" ".join(["where"] * number), self.options)

    def close(self) -> None:
        """Stops following the folders; does not wait long for an index that is being read again."""
        self._closed.set()
        if self._watcher is not None:
            self._watcher.join(_LOOK_SECONDS)

    def __enter__(self) -> "Library":
        self.warm_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(self, query: Query) -> list[Located]:
        """The best passages of an index, or of all: then the best of each come first, in the order of the indexes.

        Raises:
            UsageError: no such index or retriever, `only` matches no document, or a quota is wrong.
            InputError: the question is blank or too long.
        """
        found = self.find(query)
        ranks = zip_longest(*([Located(name, hit) for hit in one.hits] for name, one in found.items()))
        most = query.top_k or (None if query.quotas else max(len(one.hits) for one in found.values()))
        return [one for rank in ranks for one in rank if one is not None][:most]

    def find(self, query: Query) -> dict[str, Found]:
        """As `search`, by the name of each index, with costs and counts; indexes that `only` misses are left out."""
        missed = None
        with observing(query.question, self.observe) as found:
            options = self._options(query)
            for name, shelf in self._wanted(query).items():
                is_run = options.is_run or (options.retriever is None and shelf.index.settings.is_run)
                most = options.top_k or (None if is_run else query.quotas.get(name, _TOP_K))
                try:
                    one = shelf.index.find(query.question, replace(options, top_k=most))
                    found[name] = replace(one, hits=Hits(one.hits[: query.quotas.get(name)]))
                except UsageError as error:
                    if error.field != "only":
                        raise
                    missed = error
            if missed is not None and not found:
                raise missed
        return found

    def ask(
        self,
        query: Query,
        found: Callable[[Answer], None] | None = None,
        write: Callable[[str], None] | None = None,
    ) -> Answer:
        """Answers from one index; `top_k` is ignored.

        Args:
            found, write: as in `Index.ask`.

        Raises:
            NothingFound: no passage shares a word with the question.
            UsageError: several indexes and none is named, or as `search`.
            InputError: as `search`.
        """
        with observing(query.question, self.observe) as answers:
            name = self.index_of(query)
            options = replace(self.asks, search=replace(self._options(query), top_k=None))
            index = self._shelves[name].index
            answers[name] = index.ask(query.question, llm=self.llm, options=options, found=found, write=write)
        return answers[name]

    def index_of(self, query: Query) -> str:
        """The name of the index that answers a question.

        Raises:
            UsageError: no such index, or several and none is named.
        """
        chosen = list(self._chosen(query.index))
        if len(chosen) > 1:
            raise UsageError(f"name one of {', '.join(chosen)} to answer from", field="index")
        return chosen[0]

    def document(self, id: str, index: str | None = None) -> tuple[str, Document]:
        """A document by its id, and the name of its index; no file is read.

        Raises:
            UsageError: no such index or document.
        """
        for name, shelf in self._chosen(index).items():
            document = shelf.index.corpus.by_id.get(id)
            if document is not None:
                return name, document
        raise UsageError("no such document; take the `document` of a hit", field="id", value=id)

    def _chosen(self, name: str | None) -> Mapping[str, _Shelf]:
        if name is None:
            return self._shelves
        if name not in self._shelves:
            raise UsageError(f"no such index; there are {', '.join(self._shelves)}", field="index", value=name)
        return {name: self._shelves[name]}

    def _wanted(self, query: Query) -> Mapping[str, _Shelf]:
        """The indexes to search for a question: those that are named, without those whose quota is 0."""
        chosen = self._chosen(query.index)
        for name, quota in query.quotas.items():
            if name not in self._shelves:
                raise UsageError(f"no such index; there are {', '.join(self._shelves)}", field="quotas", value=name)
            if quota < 0:
                raise UsageError("give 0 or more", field="quotas", value=f"{name}: {quota}")
        return {name: shelf for name, shelf in chosen.items() if query.quotas.get(name) != 0}

    def _options(self, query: Query) -> SearchOptions:
        """The options of a question. A client chooses no run, since a run is a path on this machine."""
        if query.retriever is not None and query.retriever not in RETRIEVERS:
            raise UsageError(f"choose one of {', '.join(RETRIEVERS)}", field="retriever", value=query.retriever)
        options = self.options if query.retriever is None else replace(self.options, retriever=query.retriever)
        return replace(options, top_k=query.top_k, only=query.only or options.only)

    def _follow(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            for name, shelf in self._shelves.items():
                self._look_at(name, shelf)

    def _look_at(self, name: str, shelf: _Shelf) -> None:
        """Reads an index again if its folder has changed and its writer pauses, or after a long wait."""
        now = _look(shelf.folder)
        if now != shelf.seen and shelf.waited < _WAIT_SECONDS:
            shelf.seen, shelf.waited = now, shelf.waited + _LOOK_SECONDS
            return
        if not shelf.waited:
            return
        shelf.seen, shelf.waited = now, 0.0
        try:
            state = _state(shelf.folder)
            if state != shelf.state or shelf.fault:
                index = shelf.index.renewed()
                index.find(_WARM_UP, self.options)
                shelf.index, shelf.state, shelf.size = index, state, _size(index)
            shelf.fault = ""
        except (InputError, OSError) as error:
            shelf.fault = str(error)
            told = InputWarning(f"{name}: searching its last state, because the index cannot be read now: {error}")
            warnings.warn(told, stacklevel=2)


def _size(index: Index) -> tuple[int, int]:
    corpus = index.corpus
    return len(corpus.documents), len(corpus.leaves)


def _look(folder: Path | None) -> tuple:
    """Identities, sizes and times of the files of an index, which change when it does; cheap."""
    found = []
    for path in [] if folder is None else [folder / name for name in _WATCHED]:
        try:
            status = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _state(folder: Path | None) -> str:
    return "" if folder is None else state_of(folder)
