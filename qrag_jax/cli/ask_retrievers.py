"""What `qrag ask --retriever` names: how documents are cut, and how their chunks are ranked for a question."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.chunking.chunker import EMBEDDING, ChunkConfig, make_chunker
from qrag_jax.chunking.units import unit_chunks
from qrag_jax.cli.ask_flags import RETRIEVERS
from qrag_jax.cli.find import num_tokens_read
from qrag_jax.cli.progress import Progress
from qrag_jax.models.sources import find_folder
from qrag_jax.models.tokenizer import TextTokenizer
from qrag_jax.pipeline import ChunkDocument, RankTexts
from qrag_jax.retrieval.hybrid import Ranked, rank
from qrag_jax.retrieval.retriever import Retriever, load_retriever
from qrag_jax.retrieval.search import check_questions, make_index, search
from qrag_jax.types import CountTokens, InputError, UsageError

_STRATEGY = "recursive"
_MAX_TOKENS = 200  # of a chunk; with [CLS] and [SEP] below the 256 that MiniLM reads
_MODEL = "minilm"


@dataclass(frozen=True)
class Reading:
    """How documents are cut and searched.

    Attributes:
        chunk: a document -> its chunks.
        rank: question, texts of the chunks -> the best ones.
        count: tokens of a text, by the encoder's tokenizer.
        spent: () -> (tokens that were embedded so far, texts of which only the beginning was).
        sentences: the chunks are sentences, to be widened before they are read.
    """

    chunk: ChunkDocument
    rank: RankTexts
    count: CountTokens
    spent: Callable[[], tuple[int, int]]
    sentences: bool = False


def make_reading(args: argparse.Namespace) -> Reading:
    """The retriever that the flags of `qrag ask` name, loaded.

    Raises:
        UsageError: there is no such retriever or encoder, or flags that do not belong to it.
        InputError: it is damaged, or cannot read the question.
    """
    return single_step(args) if args.retriever in RETRIEVERS else multi_step(args)


def single_step(args: argparse.Namespace) -> Reading:
    """Chunks of a strategy, ranked at once; weights are loaded where vectors are needed."""
    config = ChunkConfig(strategy=args.strategy or _STRATEGY, max_tokens=args.max_tokens or _MAX_TOKENS)
    model = args.model or _MODEL
    if args.retriever == "bm25" and config.strategy not in EMBEDDING:
        count = TextTokenizer.from_file(find_folder(model) / "tokenizer.json").count
        return Reading(make_chunker(config, count), lambda q, texts: rank("bm25", q, texts), count, lambda: (0, 0))
    from qrag_jax.models.embedder import make_embedder
    from qrag_jax.models.weights import load_encoder

    embedder = make_embedder(load_encoder(model))

    def embed(texts: Sequence[str]) -> np.ndarray:
        with Progress(transient=True) as progress:
            return embedder(texts, progress.stage("embed"))

    return Reading(
        make_chunker(config, embedder.count_tokens, embed),
        lambda question, texts: rank(args.retriever, question, texts, embed),
        embedder.count_tokens,
        lambda: (embedder.counts.num_tokens, embedder.counts.num_texts_cut),
    )


def multi_step(args: argparse.Namespace) -> Reading:
    """Sentences, as a run was trained on, picked step by step."""
    for name in ("strategy", "max_tokens", "model"):
        if getattr(args, name) is not None:
            raise UsageError(
                f"--{name}: belongs to {', '.join(RETRIEVERS)}; a run reads sentences, with the encoder it was trained "
                "with"
            )
    try:
        retriever = load_retriever(args.retriever)
    except UsageError as error:
        raise UsageError(f"--retriever {args.retriever}: one of {', '.join(RETRIEVERS)}, or a run: {error}") from error
    if retriever.encoder is None:
        raise UsageError(
            f"--retriever {args.retriever}: this run was trained on given vectors and has no text encoder to read "
            "files with: name one that was trained on texts"
        )
    check_questions(retriever, [args.question])
    count = retriever.encoder.tokenizer.count
    used = [0, 0]

    def pick(question: str, texts: Sequence[str]) -> Ranked:
        ranked, num_tokens, num_cut = _pick(retriever, question, texts, args.num_steps)
        used[0] += num_tokens
        used[1] += num_cut
        return ranked

    return Reading(lambda document: unit_chunks(document, count), pick, count, lambda: (used[0], used[1]), True)


def _pick(retriever: Retriever, question: str, texts: Sequence[str], num_steps: int | None) -> tuple[Ranked, int, int]:
    """The picks in order with their Q values, the tokens that were encoded, and the texts that were cut."""
    if num_steps is not None and num_steps > len(texts):
        raise InputError(f"{len(texts)} sentences cannot give {num_steps} picks: lower --num_steps or give more text")
    plain = [" ".join(text.split()) for text in texts]
    with Progress(transient=True) as progress:
        index = make_index(retriever, plain, progress.stage("embed"))
    found = search(index, question, num_steps or min(retriever.env.num_steps, len(texts)))
    ids, scores = [step.chunk for step in found.steps], [step.q_value for step in found.steps]
    ranked = Ranked(np.array(ids, np.int64), np.array(scores, np.float64))
    return ranked, num_tokens_read(retriever, question, plain, found), index.num_texts_cut
