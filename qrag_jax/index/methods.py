"""Methods of search: each cuts, embeds and searches documents, and counts tokens.

method = single_step_method("hybrid")                           # or multi_step_method(load_retriever("runs/demo"))
corpus = method.build(read_files(["notes/"]))                   # once
ranked = method.retrieve("Who has the key?", corpus, 5)         # as often as you like
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig, make_chunker, points_of
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.tree.boundaries import PredictPoints
from qrag_jax.chunking.units import unit_chunks
from qrag_jax.models.encoder.sources import load_tokenizer
from qrag_jax.names import CHUNKERS, RetrieverName
from qrag_jax.search.corpus import ChunkDocument, Corpus, build_corpus
from qrag_jax.search.hybrid import Ranked, Retrieve, check_top_k, make_single_step
from qrag_jax.search.pool_texts import pool_of
from qrag_jax.types import (
    AS_MADE,
    Arg,
    CountTokens,
    Document,
    Embed,
    Encoder,
    EncoderOptions,
    InputError,
    Step,
    Trajectory,
)

if TYPE_CHECKING:
    from qrag_jax.models.encoder.embedder import TextEmbedder
    from qrag_jax.qrag.retriever import QRagRetriever

# 200 tokens with [CLS] and [SEP] fit into the 256 that MiniLM reads.
DEFAULT_CHUNKING = ChunkConfig(strategy="recursive", max_tokens=200)
_MODEL = "minilm"
Show = Callable[[Encoder], Encoder]  # wraps an encoder, to show progress


@dataclass(frozen=True)
class Stop:
    """When a run ends its search early: at a threshold on Q, at its learned STOP, or never."""

    threshold: float | None = None
    learned: bool = False


@dataclass(frozen=True)
class Picks(Ranked):
    """The picks of a run, in the order of picking.

    Attributes:
        steps: the picks; their chunks are numbers of leaves.
        stop_reason: as in `Trajectory`.
        prevented: the one that would have been next, if a stop prevented it.
    """

    steps: tuple[Step, ...] = ()
    stop_reason: str = ""
    prevented: "Picks | None" = None


@dataclass(frozen=True)
class Method:
    """How documents are cut, embedded and searched.

    Attributes:
        chunk: a document -> its chunks.
        retrieve: (question, corpus, top_k) -> the best nodes.
        count: text -> its tokens, by the encoder's tokenizer.
        spent: () -> (tokens embedded so far, texts that the encoder cut off).
        check: refuses a question that is too long for the encoder, before anything is embedded.
        embed: embeds the chunks; None if the search compares only words.
        chunking: config of `chunk`; None if it has none.
        encoder: name of the encoder.
        sentence_embed: embeds the sentences for `chunk`, if that is not `embed`.
        is_sentences: the chunks are sentences, to be widened before they are read.
        window: most tokens of a text that `embed` reads, [CLS] and [SEP] included; None if it is not loaded.
    """

    chunk: ChunkDocument
    retrieve: Retrieve
    count: CountTokens
    spent: Callable[[], tuple[int, int]]
    check: Callable[[str], None] = lambda question: None
    embed: Embed | None = None
    chunking: ChunkConfig | None = None
    encoder: str = ""
    sentence_embed: Embed | None = None
    is_sentences: bool = False
    window: int | None = None

    def build(self, documents: Sequence[Document]) -> Corpus:
        """Makes the corpus of documents that this method searches.

        Raises:
            InputError: as `build_corpus`.
        """
        return build_corpus(
            documents,
            self.chunk,
            self.embed,
            chunking=self.chunking,
            encoder=self.encoder,
            sentence_embed=self.sentence_embed,
        )


def single_step_method(
    name: RetrieverName,
    model: "str | TextEmbedder" = _MODEL,
    chunking: ChunkConfig = DEFAULT_CHUNKING,
    show: Show | None = None,
    tagger: str | None = None,
    reads: EncoderOptions = AS_MADE,
) -> Method:
    """A method that ranks all chunks in one step. Loads the encoder's weights only if it needs vectors.

    Args:
        name: one of `names.RETRIEVERS`.
        model: the encoder: minilm, a folder, a hub id, or a loaded one.
        chunking: how documents are cut.
        show: wraps the encoder.
        tagger: run of the tagger that finds boundaries, with `points="tagger"`; None is the tagger in the package. It
            is loaded when the first document is cut.
        reads: how an encoder that is loaded here reads.

    Raises:
        UsageError: the encoder does not exist, or a value of the config is out of range.
        InputError: the encoder is damaged.
    """

    @cache
    def load() -> "TextEmbedder":
        return load_embedder(model, reads) if isinstance(model, str) else model

    def shown() -> Encoder:
        return load() if show is None else show(load())

    predict = _tagger_points(tagger, shown) if points_of(chunking) == "tagger" else None
    if name == "bm25" and chunking.strategy not in CHUNKERS.choices("vectors") and isinstance(model, str):
        count = load_tokenizer(model).count
        chunk = make_chunker(chunking, count, predict=predict)
        return Method(chunk, make_single_step(name), count, lambda: (0, 0), chunking=chunking)
    embedder, embed = load(), shown()
    return Method(
        chunk=make_chunker(chunking, embedder.count_tokens, embed, predict=predict),
        retrieve=make_single_step(name, embed),
        count=embedder.count_tokens,
        spent=lambda: (embedder.counts.num_tokens, embedder.counts.num_texts_cut),
        check=lambda question: _check_length(
            question, embedder.count_tokens(readable(question)), embedder.question_window
        ),
        embed=None if name == "bm25" else embed,
        chunking=chunking,
        encoder=model if isinstance(model, str) else "",
        sentence_embed=embed,
        window=embedder.window,
    )


def load_embedder(model: str, reads: EncoderOptions = AS_MADE) -> "TextEmbedder":
    """Loads an encoder that embeds text; arguments as in `read_encoder`."""
    from qrag_jax.models.encoder.embedder import make_embedder
    from qrag_jax.models.encoder.weights import read_encoder

    loaded = read_encoder(model, query_prompt=reads.query_prompt, document_prompt=reads.document_prompt, dim=reads.dim)
    return make_embedder(loaded, dtype=reads.dtype or "float32")


def multi_step_method(
    retriever: "QRagRetriever",
    num_steps: int | None = None,
    show: Show | None = None,
    encoder: str = "run",
    stop: Stop = Stop(),
) -> Method:
    """A method of a trained run: it picks sentences step by step, or passages if it was trained on many documents.

    The first question about a corpus makes its bank.

    Args:
        retriever: a run trained on text.
        num_steps: number of picks if `top_k` is None. None is the number in training, or all sentences if fewer.
        show: wraps the encoder of the chunks.
        encoder: name of the run, stored with a corpus.
        stop: when the search ends early.

    Raises:
        UsageError: the run was trained on given vectors, so it has no encoder to read documents.
    """
    from qrag_jax.qrag.multi_step_search import action_bank, check_questions, num_tokens_asked, search_bank
    from qrag_jax.qrag.pool_search import make_pool_bank, search_pool

    embed = retriever.chunk_encoder if show is None else show(retriever.chunk_encoder)
    assert retriever.encoder is not None  # chunk_encoder has checked it
    count, in_pool = retriever.encoder.tokenizer.count, retriever.env.pool is not None
    make_bank = (lambda run, corpus: make_pool_bank(run, pool_of(corpus))) if in_pool else action_bank
    search: Callable[..., Trajectory] = search_pool if in_pool else search_bank
    bank_of = lru_cache(maxsize=1)(lambda corpus: make_bank(retriever, corpus))
    asked = [0]

    def retrieve(question: str, corpus: Corpus, top_k: int | None) -> Picks:
        check_top_k(top_k)
        there = len(corpus.leaves)
        if top_k is None and num_steps is not None and num_steps > there:
            raise InputError(
                f"only {there} {'sentence' if there == 1 else 'sentences'}, fewer than the {num_steps} picks asked for",
                field="num_steps",
                value=num_steps,
                remedy=("lower ", Arg("num_steps"), " or give more text"),
            )
        most = top_k if top_k is not None else num_steps if num_steps is not None else retriever.env.num_steps
        bank = bank_of(corpus)
        found = search(bank, question, min(most, there), threshold=stop.threshold, learned_stop=stop.learned)
        picks = _picks(corpus, found.steps)
        asked[0] += num_tokens_asked(retriever, question, [corpus.texts[node] for node in picks.ids.tolist()])
        prevented = None if found.prevented is None else _picks(corpus, [found.prevented])
        return replace(picks, stop_reason=found.stop_reason, prevented=prevented)

    def spent() -> tuple[int, int]:
        counts = retriever.chunk_encoder.counts
        return counts.num_tokens + asked[0], counts.num_texts_cut

    return Method(
        chunk=make_chunker(DEFAULT_CHUNKING, count)
        if in_pool
        else lambda document: unit_chunks(document, count, window=retriever.model.encoder.window),
        retrieve=retrieve,
        count=count,
        spent=spent,
        check=lambda question: check_questions(retriever, [question]),
        embed=embed,
        encoder=encoder,
        is_sentences=not in_pool,
    )


def _picks(corpus: Corpus, steps: Sequence[Step]) -> Picks:
    q_values = np.array([step.q_value for step in steps], np.float64)
    return Picks(corpus.leaves[[step.chunk for step in steps]], q_values, tuple(steps))


def _tagger_points(run: str | None, encoder: Callable[[], Encoder]) -> PredictPoints:
    """Predicts boundaries with a tagger; loads it and its encoder when the first document is cut."""

    @cache
    def load() -> PredictPoints:
        from qrag_jax.models.tagger.predict import make_tagger_points
        from qrag_jax.models.tagger.tagger import load_tagger

        return make_tagger_points(load_tagger(run), encoder())

    return lambda texts: load()(texts)


def _check_length(question: str, num_tokens: int, window: int) -> None:
    if num_tokens + 2 > window:
        shown = question if len(question) <= 60 else question[:60] + "..."
        raise InputError(
            f"question {shown!r} has {num_tokens + 2:,} tokens (with [CLS] and [SEP]), but the encoder reads {window}",
            field="question",
            value=question,
            remedy=("shorten it, or search by words only (", Arg("retriever", "bm25"), ")"),
        )
