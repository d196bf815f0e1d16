"""One object that you can search and ask: an index on disk, files, or a corpus.

with open_index("notes/") as index:                               # or an index of `build_index`, or a Corpus
    for hit in index.search("Who has the key?", 3):
        print(hit.sentence.place, hit.sentence.text)
    print(index.ask("Who has the key?").text)
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.documents.found import named_paths
from qrag_jax.index.build import index_method
from qrag_jax.index.info import IndexInfo
from qrag_jax.index.load import stored_tokens
from qrag_jax.index.methods import Method, Picks, Show, load_embedder
from qrag_jax.index.options import AskOptions, Found, SearchOptions, check_context, check_options
from qrag_jax.index.parts.make import Moved
from qrag_jax.index.rerankers import load_reranker
from qrag_jax.index.settings import IndexSettings
from qrag_jax.index.sources import MemorySource, Paths, StoredSource, View, level_names_of, make_source
from qrag_jax.llm.prompts import PromptTemplate, load_prompt
from qrag_jax.names import NoteMode, RetrieverName
from qrag_jax.search.answer import (
    PROMPT,
    Answer,
    NothingFound,
    answer_from,
    check_question,
    find_passages,
    make_budget,
    make_fill,
    quote_passages,
    timed,
)
from qrag_jax.search.context.auto_merge import MergeRules
from qrag_jax.search.context.pack import Budget, Context
from qrag_jax.search.copies import rank_distinct
from qrag_jax.search.corpus import Corpus, are_unknown
from qrag_jax.search.hits import make_hits
from qrag_jax.search.hybrid import WORDS_WEIGHT, Ranked, needs_list
from qrag_jax.search.late import LATE_PASSAGES, WEIGHT_AFTER_LATE, LateScorer
from qrag_jax.search.levels.level_context import fill_levels
from qrag_jax.search.levels.planners import Planned, Planner, rank_levels
from qrag_jax.search.note_search import make_noted_retrieve
from qrag_jax.search.rerank import Reranked, RerankOptions, candidates, rank_enough, rerank
from qrag_jax.types import (
    AS_MADE,
    Arg,
    Cost,
    Document,
    Embed,
    EncoderOptions,
    Hits,
    InputWarning,
    Note,
    Reranker,
    TextGenerator,
    UsageError,
)

if TYPE_CHECKING:
    from qrag_jax.index.update import Changes, Plan
    from qrag_jax.models.encoder.embedder import TextEmbedder
    from qrag_jax.qrag.retriever import QRagRetriever

P = ParamSpec("P")
T = TypeVar("T")
_NUM_AROUND = 2  # sentences added on either side of each pick of a run
_MAX_VIEWS = 4
_NUM_TOGETHER = 32  # questions; their products with a million vectors take 128 MB
_MULTILINGUAL = "multilingual"


def open_index(
    source: Paths | Sequence[Document] | Corpus,
    *,
    retriever: "str | os.PathLike | QRagRetriever | None" = None,
    encoder: "str | TextEmbedder | None" = None,
    chunking: ChunkConfig | None = None,
    tagger: str | os.PathLike | None = None,
    only: str | Sequence[str] = (),
    encoding: str = "utf-8",
    strict: bool = False,
    show: Show | None = None,
    reads: EncoderOptions = AS_MADE,
) -> "Index":
    """Opens documents for searching. Loads no encoder, and no documents of an index on disk.

    Args:
        source: the folder of an index or corpus (`build_index`, `save_corpus`), files and folders (read now),
            documents, or a corpus.
        retriever: for all searches, as in `SearchOptions`.
        encoder: for files: minilm (None), a folder, a hub id, or a loaded encoder; for a corpus, the one that made it.
        chunking: for files; None is recursive with at most 200 tokens.
        tagger: for files cut at boundaries by a tagger: the run of that tagger.
        only: patterns of the documents to open.
        encoding, strict: as in `read_files`.
        show: wraps the encoder, to show progress.
        reads: for files: prompts of the encoder, and size of the vectors.

    Raises:
        UsageError: a path does not exist, an index is mixed with other paths, or an argument applies only to files.
        InputError: files, corpus or index cannot be read.
    """
    seconds: dict[str, float] = {}
    with timed("read", seconds):
        made = make_source(source, encoder, chunking, tagger, _patterns(only), encoding, strict, reads)
    loaded = None if encoder is None or isinstance(encoder, str) else encoder
    return Index(made, retriever, loaded, show, seconds)


def _in_turn(method: Callable[Concatenate["Index", P], T]) -> Callable[Concatenate["Index", P], T]:
    """Keeps other threads out of an index until a method returns, and follows an index on disk that has changed."""

    @wraps(method)
    def called(self: "Index", *args: P.args, **more: P.kwargs) -> T:
        with self._turn:
            try:
                return method(self, *args, **more)
            except Moved:  # another process has changed the index on disk; its current state is read
                self._views.clear()
                return method(self, *args, **more)

    return called


class Index:
    """Documents to search and ask. Made by `open_index`; a `Retriever`, and a context manager.

    It keeps what it has read, cut, embedded and loaded until `reload` or `close`. Threads may share it: they search in
    turn, and a language model answers outside of the turns.
    """

    def __init__(
        self,
        source: StoredSource | MemorySource,
        retriever: "str | os.PathLike | QRagRetriever | None" = None,
        encoder: "TextEmbedder | None" = None,
        show: Show | None = None,
        seconds: dict[str, float] | None = None,
    ) -> None:
        self._source: StoredSource | MemorySource | None = source
        self._retriever, self._given, self._show = retriever, encoder, show
        self._generators: dict[str, TextGenerator] = {}
        self._rerankers: dict[str, Reranker] = {}
        self._warned: set[tuple[str, str]] = set()
        self._turn = threading.RLock()
        self._seconds = {} if seconds is None else seconds  # spent before the next question
        self._num_embedded = 0  # tokens of questions that are asked together, before the next question
        self.reload()

    @property
    def name(self) -> str:
        """The folder of an index, or the paths of the files."""
        return self._open.name

    @property
    def settings(self) -> IndexSettings:
        """How documents are cut and embedded; for a corpus, as far as it records that."""
        return self._open.settings

    @property
    @_in_turn
    def corpus(self) -> Corpus:
        """All documents, cut and embedded; loaded or made when first needed."""
        return self._view(SearchOptions(), self._method(SearchOptions())).corpus

    @property
    @_in_turn
    def notes(self) -> Sequence[Note]:
        """The notes of all chunks; empty if there are none."""
        noted = self._view(SearchOptions(), self._method(SearchOptions())).noted
        return () if noted is None else noted.notes

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the levels of the documents, the coarsest first; empty if they have none."""
        return level_names_of(self.settings)

    def search(
        self,
        question: str,
        top_k: int | None = 5,
        *,
        only: str | Sequence[str] = (),
        retriever: "str | os.PathLike | QRagRetriever | None" = None,
        late: bool | None = None,
        rerank: RerankOptions | Reranker | str | None = None,
    ) -> Hits:
        """The passages that best answer a question, the best first; equal texts are one hit, with all their places.

        Args:
            top_k, only, retriever, late: as in `SearchOptions`.
            rerank: reranks the best candidates: options, a reranker, or its name as `load_reranker` takes it.

        Raises:
            UsageError: the retriever or the reranker does not exist, or `only` matches no document.
            InputError: the question is blank or too long for the encoder, or the index is damaged.
        """
        again = rerank if rerank is None or isinstance(rerank, RerankOptions) else RerankOptions(rerank)
        options = SearchOptions(top_k, _patterns(only), retriever, late=late, rerank=again)
        return self.find(question, options).hits

    @_in_turn
    def find(self, question: str, options: SearchOptions | None = None) -> Found:
        """As `search`, with costs and counts."""
        options = self._defaults(options or SearchOptions())
        self.check(question, options)
        method = self._method(options)
        before, self._num_embedded = method.spent()[0] - self._num_embedded, 0
        again, view = self._rerankers_of(question, options), self._view(options, method)  # the longer one last
        seconds, self._seconds = self._seconds, {}
        with timed("search", seconds):
            planner = view.planner(options.levels)
            ranked, told = self._rank(question, options, method, view, planner, again)
        picks = ranked if isinstance(ranked, Picks) else None
        prevented = None
        if picks is not None and picks.prevented is not None:
            (prevented,) = make_hits(question, view.corpus, picks.prevented, picks.prevented.steps)
        return Found(
            question,
            make_hits(question, view.corpus, ranked, picks.steps if picks else ()),
            self._name(options),
            self._mode(options),
            len(view.corpus.leaves),
            view.corpus.num_beyond_window,
            told.added_to(Cost(_rounded(seconds), method.spent()[0] - before), "search"),
            told.planned,
            None if picks is None else picks.stop_reason,
            told.reranked,
            told.late,
            prevented,
        )

    def find_all(self, questions: Sequence[str], options: SearchOptions | None = None) -> Iterator[Found]:
        """As `find` for each question, in their order, and faster: 32 questions at a time are prepared together.

        They are embedded in one call, and the vectors of an index on disk are read once for all of them. Only the
        encoder's vectors gain by it: bm25, a run and levels search for one question after the other.

        Args:
            questions: all are checked now, before the first search.
            options: of all searches.

        Returns:
            Results as they are asked for. The cost of preparing questions counts for the first of them.

        Raises:
            UsageError, InputError: as `find`.
        """
        for question in questions:
            self.check(question, options)
        return self._each_found(questions, options or SearchOptions())

    @_in_turn
    def check(self, question: str, options: SearchOptions | AskOptions | None = None) -> None:
        """Checks a question and options for `find`, or with `AskOptions` for `ask`, before any search."""
        check_question(question)
        asks = options if isinstance(options, AskOptions) else None
        search = self._defaults(asks.search if asks else cast(SearchOptions | None, options) or SearchOptions())
        check_options(search, self._open, asks is not None)
        if asks is not None:
            check_context(asks, search, self._open)
        self._method(search).check(question)

    @_in_turn
    def ask(
        self,
        question: str,
        *,
        llm: TextGenerator | str | None = None,
        only: str | Sequence[str] = (),
        retriever: "str | os.PathLike | QRagRetriever | None" = None,
        options: AskOptions | None = None,
        found: Callable[[Answer], None] | None = None,
        write: Callable[[str], None] | None = None,
    ) -> Answer:
        """Answers a question with quotes, or with a language model.

        Args:
            llm: the language model, or the name of one to load in this process (as `load_decoder` takes it). None
                answers with the sentences of the passages that match best.
            only, retriever: replace those of `options.search`.
            found: called with the passages, an answer without a text, before the model reads them.
            write: called with the text so far while the model writes, in any thread, if the model can tell.

        Raises:
            NothingFound: no passage shares a word with the question.
            UsageError, InputError: as `search`, or the passages do not fit.
        """
        options = options or AskOptions()
        search = replace(options.search, top_k=None, only=_patterns(only) or options.search.only)
        search = self._defaults(search if retriever is None else replace(search, retriever=retriever))
        self.check(question, replace(options, search=search))
        generator, method, template = self._generator(llm), self._method(search), load_prompt(PROMPT, options.prompts)
        before, again = method.spent(), self._rerankers_of(question, search)
        view = self._view(search, method)
        spent, self._seconds = self._seconds, {}
        planner = view.planner(search.levels, generator, options.prompts)
        told: list[_Told] = []

        def rank(question: str, corpus: Corpus, top_k: int | None) -> Ranked:
            ranked, one = self._rank(question, search, method, view, planner, again)
            told.append(one)
            return ranked

        budget = self._budget(question, template, options, search, generator)
        fill = partial(fill_levels, budget=budget)
        if planner is None:
            fill = make_fill(budget, self._num_around(options, search), MergeRules() if options.merge else None)
        try:
            answer = find_passages(question, view.corpus, rank, fill=fill)
        except NothingFound as error:
            nothing = Answer(question, Context((), 0, budget.max_tokens, 0), (), (), len(view.corpus.leaves), Cost())
            error.answer = self._told(nothing, spent, search, before, method.spent())
            raise
        if found is not None:
            found(answer)
        after = None
        if generator is not None:
            after = method.spent()
            self._turn.release()  # other threads search while the model writes
            try:
                answer = answer_from(answer, view.corpus, generator, template, options.sampling, write)
            finally:
                self._turn.acquire()
        elif options.num_quotes:
            answer = quote_passages(answer, view.corpus, method.embed, options.num_quotes)
        answer = self._told(answer, spent, search, before, after or method.spent())
        (one,) = told
        cost = one.added_to(_with_plan(answer.cost, one.planned), "retrieve")
        return replace(answer, cost=cost, levels=one.planned, reranked=one.reranked, late=one.late)

    @_in_turn
    def add(self, paths: Paths, plan: "Plan | None" = None) -> "Changes":
        """Adds the documents of files and folders; a document of the same path is replaced. Removes nothing.

        Args:
            paths: as in `read_files`.
            plan: for an index on disk: encoding, processes, writer of notes.
        """
        return self._changed(self._open.add(named_paths(paths), plan))

    @_in_turn
    def remove(self, paths: Paths, plan: "Plan | None" = None) -> tuple[str, ...]:
        """Removes the documents of files and folders, named as in `documents`; returns their ids."""
        return self._changed(self._open.remove(named_paths(paths), plan))

    def info(self) -> IndexInfo:
        """The documents and settings, with sizes."""
        return self._open.info(lambda: self.corpus)

    def verify(self) -> IndexInfo:
        """As `info`, after comparing every row of an index on disk with its hash. Reports damage, never raises it."""
        return self._open.info(lambda: self.corpus, verify=True)

    def documents(self) -> tuple[str, ...]:
        """The ids of all documents."""
        return self._open.documents()

    def document(self, name: str) -> Document:
        """A document by its id."""
        found = self.corpus.by_id.get(name)
        if found is None:
            raise UsageError("no such document; `documents()` lists their names", field="name", value=name)
        return found

    @_in_turn
    def reload(self) -> None:
        """Forgets what was read and loaded, for an index that another process may have changed."""
        if isinstance(self._source, StoredSource):
            self._source = StoredSource(self._source.name, self._source.only)
        self._methods: dict[tuple, Method] = {}
        self._views: dict[tuple, View] = {}
        self._encoder = self._given

    @_in_turn
    def renewed(self) -> "Index":
        """The documents in their current state, as another object; this one keeps its state.

        Both share the encoder and the language models that are loaded.
        """
        source = self._open
        if isinstance(source, StoredSource):
            source = StoredSource(source.name, source.only)
        new = Index(source, self._retriever, self._given, self._show)
        if (source.settings.model, source.settings.reads) == (self.settings.model, self.settings.reads):
            new._encoder = self._encoder
        new._generators, new._rerankers = self._generators, self._rerankers
        return new

    @_in_turn
    def close(self) -> None:
        """Frees what was read and loaded; later calls are refused."""
        self.reload()
        self._generators.clear()
        self._rerankers.clear()
        self._source = None

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _open(self) -> StoredSource | MemorySource:
        if self._source is None:
            raise UsageError("index: it is closed; open it again")
        return self._source

    def _changed(self, result: Any) -> Any:
        self._views.clear()
        return result

    def _defaults(self, options: SearchOptions) -> SearchOptions:
        """The options with the retriever, and whether token vectors are compared."""
        options = options if options.retriever is not None else replace(options, retriever=self._default_retriever())
        if options.late is not None:
            return options
        is_asked = self.settings.late or options.rerank is not None
        reads_tokens = not (options.is_run or self.settings.is_run or options.retriever == "bm25")
        return replace(options, late=is_asked and reads_tokens and options.levels is None)

    def _default_retriever(self) -> "str | os.PathLike | QRagRetriever":
        if self._retriever is not None:
            return self._retriever
        if not self.settings.model and self._given is None:
            raise UsageError("the corpus does not record its encoder", field="encoder", remedy="name it")
        if isinstance(self._open, MemorySource) and self._open.is_of_words:
            return "bm25"
        return str(self.settings.model) if self.settings.is_run else "hybrid"

    def _name(self, options: SearchOptions) -> str:
        return options.retriever if isinstance(options.retriever, str) else "run"

    def _mode(self, options: SearchOptions) -> NoteMode:
        uses = self.settings.has_notes and not options.is_run and options.levels is None
        return options.notes or "best_of" if uses else "none"

    def _method(self, options: SearchOptions) -> Method:
        """The method that searches, and that cuts and embeds new documents; loaded once."""
        options = self._defaults(options)
        key = (self._name(options), id(options.retriever) if options.is_run else 0, options.num_steps, options.stop)
        if key not in self._methods:
            with timed("load", self._seconds):
                assert options.retriever is not None  # _defaults has set it
                settings, retriever = self.settings, cast("str | QRagRetriever", options.retriever)
                loads = not settings.is_run and not options.is_run and retriever != "bm25"
                if loads and self._encoder is None:
                    self._encoder = load_embedder(settings.model, settings.reads)
                steps = options.num_steps if options.is_run else None
                self._methods[key] = index_method(
                    settings, retriever, steps, self._show, stop=options.stop, encoder=self._encoder
                )
        return self._methods[key]

    def _view(self, options: SearchOptions, method: Method) -> View:
        """The documents to search; read, cut and embedded once."""
        options = self._defaults(options)
        cuts = self._name(options) if options.is_run else "words" if method.embed is None else "vectors"
        with_notes = self._mode(options) != "none"
        key = (options.only, cuts, id(options.retriever) if options.is_run else 0, with_notes)
        if key not in self._views:
            while len(self._views) >= _MAX_VIEWS:
                del self._views[min(self._views, key=lambda one: not one[0])]  # the oldest with patterns, if any
            with timed("read", self._seconds if isinstance(self._source, StoredSource) else {}):
                view = self._derived(options.only, method, with_notes)
                view = view or self._open.view(options.only, method, cuts, with_notes=with_notes)
            self._seconds |= view.cost.seconds
            self._views[key] = view
        return self._views[key]

    def _derived(self, only: tuple[str, ...], method: Method, with_notes: bool) -> View | None:
        """A view made from a loaded one of all documents of an index on disk, so both show the same state."""
        if isinstance(self._source, StoredSource):
            for (patterns, *_), view in self._views.items():
                if not patterns and (view.noted is not None or not with_notes):
                    return view.chosen(only, method, with_notes=with_notes)
        return None

    def _each_found(self, questions: Sequence[str], options: SearchOptions) -> Iterator[Found]:
        for start in range(0, len(questions), _NUM_TOGETHER):
            some = questions[start : start + _NUM_TOGETHER]
            with self._together(list(dict.fromkeys(some)), options):
                for question in some:
                    yield self.find(question, options)

    @_in_turn
    def _together(self, questions: Sequence[str], options: SearchOptions) -> ExitStack:
        """Prepares the searches for several questions, which are then made inside of it."""
        options = self._defaults(options)
        method = self._method(options)
        with ExitStack() as stack:
            if len(questions) > 1 and method.embed is not None and options.levels is None and not options.is_run:
                before, view = method.spent()[0], self._view(options, method)
                with timed("search", self._seconds):
                    weight = WORDS_WEIGHT if options.retriever == "hybrid" else 0.0
                    compares = options.top_k is not None and self._mode(options) in ("none", "best_of")
                    compares = compares and not needs_list(view.corpus, weight)
                    stack.enter_context(view.asked(questions, method.embed, with_products=compares))
                self._num_embedded += method.spent()[0] - before
            return stack.pop_all()

    def _rerankers_of(self, question: str, options: SearchOptions) -> tuple[LateScorer | None, Reranker | None]:
        """The two scorers that order the best passages anew; no token vectors for questions in unknown words."""
        late, encoder = None, self._encoder
        # check_options refuses searches without an encoder
        if options.late and encoder is not None and not are_unknown(encoder, [question])[0]:
            late = LateScorer(encoder)
            if isinstance(self._source, StoredSource) and self.settings.late:
                late = LateScorer(encoder, stored_tokens(self.name, encoder.token_dim, encoder.fingerprint))
        return late, self._reranker(options)

    def _reranker(self, options: SearchOptions) -> Reranker | None:
        """The reranker; loaded once."""
        if options.rerank is None:
            return None
        model, show = options.rerank.model, options.rerank.show
        if not isinstance(model, str):
            return model
        if model not in self._rerankers:
            with timed("load", self._seconds):
                loaded = load_reranker(model)
                self._rerankers[model] = loaded if show is None else show(loaded)
        return self._rerankers[model]

    def _rank(
        self,
        question: str,
        options: SearchOptions,
        method: Method,
        view: View,
        planner: Planner | None,
        again: tuple[LateScorer | None, Reranker | None],
    ) -> "tuple[Ranked, _Told]":
        """The best nodes, with the record of how they were chosen and ordered."""
        (late, reranker), corpus, told = again, view.corpus, _Told()

        def rank(most: int | None) -> Ranked:
            nonlocal told
            ranked, planned = self._rank_once(question, replace(options, top_k=most), method, view, planner)
            told = replace(told, planned=planned)
            return ranked

        wanted = options.top_k
        if late is not None and wanted is not None:
            wanted = max(wanted, LATE_PASSAGES)
        if options.rerank is None or reranker is None:
            ranked, last = rank(wanted), 0
        else:
            # A planner may be a language model, which is asked once.
            ranked = rank_enough(rank, corpus, wanted if planner is None else None, options.rerank)
            last = 1 + int(candidates(corpus, ranked, options.rerank).max(initial=-1))
        if late is not None:
            # All candidates of the reranker get a score by tokens, because it adds its own to that.
            most = RerankOptions("late", passages=max(LATE_PASSAGES, last))
            ranked, by_tokens = rerank(question, corpus, ranked, late, most, by_words=False)
            told = replace(told, late=by_tokens)
        if options.rerank is not None and reranker is not None:
            by_words, again_by = options.retriever == "bm25", options.rerank
            if late is not None and again_by.weight is None and reranker.weight is not None:
                again_by = replace(again_by, weight=WEIGHT_AFTER_LATE * reranker.weight)
            ranked, reranked = rerank(question, corpus, ranked, reranker, again_by, by_words=by_words)
            told = replace(told, reranked=reranked)
        return ranked.first(options.top_k), told

    def _rank_once(
        self, question: str, options: SearchOptions, method: Method, view: View, planner: Planner | None
    ) -> tuple[Ranked, Planned | None]:
        """The best nodes, and the choice of a planner of levels."""
        name, mode = cast(RetrieverName, options.retriever), self._mode(options)
        if not options.is_run and name != "bm25" and method.embed is not None:
            self._warn_of_unknown(question, view.corpus, method.embed, name)
        if planner is not None:
            assert method.embed is not None  # check_options refuses levels without an encoder
            weight, heads = WORDS_WEIGHT if name == "hybrid" else 0.0, view.heads if options.levels == "llm" else ()
            return rank_levels(
                view.level_index,
                question,
                method.embed,
                planner,
                options.top_k,
                weight=weight,
                smooth=options.smooth,
                heads=heads,
            )
        retrieve = method.retrieve
        if view.noted is not None:
            retrieve = make_noted_retrieve(name, view.noted, method.embed, mode)
        if options.is_run:
            return retrieve(question, view.corpus, options.top_k), None
        return rank_distinct(retrieve, question, view.corpus, options.top_k), None

    def _warn_of_unknown(self, question: str, corpus: Corpus, embed: Embed, name: str) -> None:
        """Warns once of a question and once of passages in words that the encoder does not know."""
        num_unknown = int(corpus.unknown_leaves(embed).sum())
        passages = f"{num_unknown:,} of {len(corpus.leaves):,} passages" if num_unknown else ""
        by_words: tuple[str | Arg, ...] = ("only words are compared",)
        if name != "hybrid":
            by_words = ("their vectors say little, so compare words too (", Arg("retriever", "hybrid"), ")")
        model = Arg("encoder", _MULTILINGUAL)
        for what in ("the question" if are_unknown(embed, [question])[0] else "", passages):
            if what and (what, name) not in self._warned:
                self._warned.add((what, name))
                reason = f"the encoder does not know most words of {what}: "
                remedy = ("; for its language, embed with a multilingual encoder (", model, ")")
                warnings.warn(InputWarning((reason, *by_words, *remedy)), stacklevel=4)

    def _budget(
        self,
        question: str,
        template: PromptTemplate,
        options: AskOptions,
        search: SearchOptions,
        generator: TextGenerator | None,
    ) -> Budget:
        """Tokens of the context, as counted by the language model, or by the encoder if there is none."""
        count = getattr(generator, "count", None) or getattr(generator, "count_tokens", None)
        return make_budget(
            question,
            template,
            count or self._method(search).count,
            window=getattr(generator, "window", None),
            max_answer_tokens=options.sampling.max_tokens,
            max_tokens=options.max_context_tokens,
            max_passages=search.num_steps,
        )

    def _num_around(self, options: AskOptions, search: SearchOptions) -> int:
        if options.merge or not self._method(search).is_sentences:
            return 0
        return _NUM_AROUND if options.num_around is None else options.num_around

    def _generator(self, llm: TextGenerator | str | None) -> TextGenerator | None:
        if not isinstance(llm, str):
            return llm
        if llm not in self._generators:
            from qrag_jax.llm.local import LocalGenerator  # imports JAX and loads weights

            self._generators[llm] = LocalGenerator(llm)
        return self._generators[llm]

    def _told(
        self,
        answer: Answer,
        spent: dict[str, float],
        search: SearchOptions,
        before: tuple[int, int],
        after: tuple[int, int],
    ) -> Answer:
        """An answer with the costs of the steps before it; embedding counts as retrieval.

        Args:
            spent: seconds spent before the answer.
            before, after: tokens and texts that the method had read before and after the search.
        """
        own = answer.cost.seconds
        seconds = {stage: spent.get(stage, 0.0) for stage in ("load", "read", "chunk")}
        seconds |= {**own, "retrieve": spent.get("embed", 0.0) + own.get("retrieve", 0.0)}
        seconds.setdefault("context", 0.0)
        return replace(
            answer,
            cost=replace(
                answer.cost,
                seconds=_rounded(seconds),
                embedder_tokens=after[0] - before[0],
            ),
            num_cut=after[1] - before[1],
            retriever=self._name(search),
            notes=self._mode(search),
        )


@dataclass(frozen=True)
class _Told:
    """The choice of levels, and the work of both scorers that order the best passages anew."""

    planned: Planned | None = None
    late: Reranked | None = None
    reranked: Reranked | None = None

    def added_to(self, cost: Cost, stage: str) -> Cost:
        """A cost with those of both orders, whose seconds were counted for a stage."""
        seconds = dict(cost.seconds)
        for name, one in (("late", self.late), ("rerank", self.reranked)):
            if one is not None:
                seconds |= {stage: seconds[stage] - one.seconds, name: one.seconds}
        num_read = 0 if self.reranked is None else self.reranked.num_tokens
        return replace(cost, seconds=_rounded(seconds), reranker_tokens=num_read)


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {stage: round(value, 3) for stage, value in seconds.items()}


def _with_plan(cost: Cost, planned: Planned | None) -> Cost:
    """A cost with the calls of the language model that planned."""
    if planned is None:
        return cost
    asked = planned.plans.reading
    return replace(
        cost,
        prompt_tokens=cost.prompt_tokens + asked.prompt_tokens,
        completion_tokens=cost.completion_tokens + asked.completion_tokens,
    )


def _patterns(only: str | Sequence[str]) -> tuple[str, ...]:
    return (only,) if isinstance(only, str) else tuple(only)
