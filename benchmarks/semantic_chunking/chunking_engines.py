"""The chunkers that chunking.py compares. This file run as a script is one of them in its process, asked on stdin.

python -m benchmarks.semantic_chunking.chunking_engines "langchain, torch" FOLDER  # as chunking.py starts it

An engine is `tool, embedder`. `torch` is the tool's own class for sentence-transformers, as its manual shows it; `same`
is our embedder behind the tool's interface. Seconds inside the embedder are those inside that interface, so what the
tool wants of it (lists of Python floats) counts as embedding, not as overhead.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import CORES, minilm, peak_mib, serve

WINDOW = 1  # neighbours embedded with a sentence: the default of LangChain and LlamaIndex
PERCENTILE = 95  # the default of both
NUM_TOKENS = 256  # of the chunkers by size
BATCH_SIZES = (10, 16, 32, 64)  # that torch stacks choose from; 10 is LlamaIndex's default, 32 that of the others
NOT_RUNNING = (ImportError, OSError, LookupError)  # a rival that is not there; anything else is a fault of ours


class Clock:
    """Seconds inside an embedder and what it read."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seconds, self.num_texts, self.num_characters = 0.0, 0, 0

    def timed(self, embed: Callable[..., Any]) -> Callable[..., Any]:
        """`embed`, measured; its last argument are the texts."""

        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            vectors = embed(*arguments)
            self.seconds += time.perf_counter() - start
            texts = arguments[-1]
            self.num_texts += len(texts)
            self.num_characters += sum(map(len, texts))
            return vectors

        return run


class Chunker(NamedTuple):
    """What is timed is `run(text)`; `sizes(text, what it gave)` are the lengths of the chunks in characters."""

    run: Callable[[str], Any]
    sizes: Callable[[str, Any], list[int]]
    clock: Clock


def lengths(text: str, chunks: Sequence[str]) -> list[int]:
    return list(map(len, chunks))


# --- ours ------------------------------------------------------------------------------------------------------------


def our_configs() -> dict[str, Any]:
    """Our strategies by their names in the tables; defaults unless the name says otherwise."""
    from qrag_jax.chunking.chunker import ChunkConfig
    from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig

    windowed = BreakpointConfig("percentile", PERCENTILE, WINDOW)
    return {
        "breakpoint, joined": ChunkConfig("breakpoint", breakpoint=windowed),
        "breakpoint, joined, max_tokens": ChunkConfig("breakpoint", max_tokens=NUM_TOKENS, breakpoint=windowed),
        "breakpoint": ChunkConfig("breakpoint"),
        "linkage": ChunkConfig("linkage"),
        "dbscan": ChunkConfig("dbscan"),
        "late": ChunkConfig("late"),
        "fixed": ChunkConfig("fixed"),
        "recursive": ChunkConfig("recursive"),
        "headings": ChunkConfig("headings"),
        "document": ChunkConfig("document"),
    }


def make_ours(strategy: str, batch_size: int | None) -> Chunker:
    from qrag_jax.chunking.chunker import make_chunker
    from qrag_jax.chunking.strategies.late import late_vectors
    from qrag_jax.types import Document

    config, embedder, clock = our_configs()[strategy], minilm(), Clock()
    chunk = make_chunker(config, embedder.count_tokens, clock.timed(embedder))

    def run(text: str) -> list[Any]:
        chunks = chunk(Document("text", text))
        if config.strategy == "late":
            late_vectors(text, [found.spans for found in chunks], late_reader(embedder, clock), embedder.count_tokens)
        return chunks

    return Chunker(run, our_sizes, clock)


def late_reader(embedder: Any, clock: Clock) -> Callable[[str], tuple[np.ndarray, np.ndarray]]:
    """Token vectors of one window, measured."""
    read = clock.timed(lambda texts: embedder.tokens(texts[0]))
    return lambda text: read([text])


def our_sizes(text: str, chunks: Sequence[Any]) -> list[int]:
    """Lengths of our chunks, all of which must cover the text: to lose some would be fast for nothing."""
    changes = np.zeros(len(text) + 1, np.int64)
    for chunk in chunks:
        for start, end in chunk.spans:
            changes[start] += 1
            changes[end] -= 1
    outside = np.cumsum(changes[:-1]) == 0
    lost = np.flatnonzero(outside & ~np.fromiter(map(str.isspace, text), bool, len(text)))
    if len(lost):
        raise SystemExit(f"character {lost[0]}, {text[lost[0] : lost[0] + 40]!r}, is in no chunk: no result")
    return [sum(end - start for start, end in chunk.spans) for chunk in chunks]


# --- rivals ----------------------------------------------------------------------------------------------------------


def make_langchain(embedder: str, batch_size: int | None) -> Chunker:
    from langchain_core.embeddings import Embeddings
    from langchain_experimental.text_splitter import SemanticChunker

    clock = Clock()
    if embedder == "torch":
        from langchain_huggingface import HuggingFaceEmbeddings

        options = {"model_name": model_folder(), "model_kwargs": {"device": "cpu"}}
        inner: Any = HuggingFaceEmbeddings(**options, encode_kwargs={"batch_size": batch_size})
    else:
        ours = minilm()

        class Same(Embeddings):
            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                return ours(texts).tolist()

            def embed_query(self, text: str) -> list[float]:
                return self.embed_documents([text])[0]

        inner = Same()

    class Measured(Embeddings):
        embed_documents = staticmethod(clock.timed(inner.embed_documents))
        embed_query = staticmethod(inner.embed_query)

    chunker = SemanticChunker(
        Measured(),
        buffer_size=WINDOW,
        breakpoint_threshold_type="percentile",
        breakpoint_threshold_amount=PERCENTILE,
    )
    return Chunker(chunker.split_text, lengths, clock)


def make_langchain_recursive(embedder: str, batch_size: int | None) -> Chunker:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    splitter = RecursiveCharacterTextSplitter(
        chunk_size=NUM_TOKENS, chunk_overlap=0, length_function=minilm().count_tokens
    )
    return Chunker(splitter.split_text, lengths, Clock())


def make_llamaindex(embedder: str, batch_size: int | None) -> Chunker:
    from llama_index.core import Document
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.node_parser import SemanticSplitterNodeParser

    clock = Clock()
    if embedder == "torch":
        from llama_index.embeddings.huggingface import HuggingFaceEmbedding

        class Torch(HuggingFaceEmbedding):
            def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
                return clock.timed(super()._get_text_embeddings)(texts)

        model: Any = Torch(model_name=model_folder(), device="cpu", embed_batch_size=batch_size or 10)
    else:
        ours = minilm()

        class Same(BaseEmbedding):
            def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
                return clock.timed(lambda given: ours(given).tolist())(texts)

            def _get_text_embedding(self, text: str) -> list[float]:
                return self._get_text_embeddings([text])[0]

            def _get_query_embedding(self, query: str) -> list[float]:
                return self._get_text_embeddings([query])[0]

            async def _aget_query_embedding(self, query: str) -> list[float]:
                return self._get_query_embedding(query)

        model = Same(embed_batch_size=2048)  # the most that it allows
    parser = SemanticSplitterNodeParser(
        embed_model=model, buffer_size=WINDOW, breakpoint_percentile_threshold=PERCENTILE
    )

    return Chunker(
        lambda text: parser.get_nodes_from_documents([Document(text=text)]),
        lambda text, nodes: [len(node.get_content()) for node in nodes],
        clock,
    )


def make_chonkie(embedder: str, batch_size: int | None) -> Chunker:
    from chonkie import SemanticChunker
    from chonkie.embeddings import BaseEmbeddings, SentenceTransformerEmbeddings

    clock = Clock()
    if embedder == "torch":

        class Torch(SentenceTransformerEmbeddings):
            def embed_batch(self, texts: list[str]) -> Any:
                encode = lambda given: self.model.encode(  # noqa: E731
                    given, batch_size=batch_size, convert_to_numpy=True, show_progress_bar=False
                )
                return clock.timed(encode)(texts)

        model: Any = Torch(model_folder(), device="cpu")
    else:
        from tokenizers import Tokenizer

        ours = minilm()
        tokenizer = Tokenizer.from_file(str(Path(model_folder()) / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()

        class Same(BaseEmbeddings):
            dimension = ours.dim

            def embed(self, text: str) -> np.ndarray:
                return self.embed_batch([text])[0]

            def embed_batch(self, texts: list[str]) -> list[np.ndarray]:
                return list(clock.timed(ours)(texts))

            def get_tokenizer(self) -> Any:
                return tokenizer

        model = Same()
    chunker = SemanticChunker(model, similarity_window=2 * WINDOW + 1)
    return Chunker(chunker.chunk, lambda text, chunks: [len(chunk.text) for chunk in chunks], clock)


def model_folder() -> str:
    from qrag_jax.models.encoder.sources import find_encoder

    return str(find_encoder("minilm"))


TOOLS: dict[str, Callable[[str, int | None], Chunker]] = {
    "langchain": make_langchain,
    "llamaindex": make_llamaindex,
    "chonkie": make_chonkie,
    "langchain recursive": make_langchain_recursive,
}


def make(engine: str, batch_size: int | None = None) -> Chunker:
    """The engine `tool, embedder`, or one of ours by the name of its strategy."""
    tool, _, rest = engine.partition(", ")
    if tool == "ours":
        return make_ours(rest, batch_size)
    if rest == "torch":
        import torch

        torch.set_num_threads(CORES)
    return TOOLS[tool](rest, batch_size)


# --- the process -----------------------------------------------------------------------------------------------------


class Server:
    """One engine; it answers to the names of its public methods."""

    def __init__(self, engine: str, folder: Path) -> None:
        self._engine, self._folder = engine, folder
        self._chunker: Chunker | None = None

    def __call__(self, command: str) -> dict:
        return getattr(self, command)()

    def warm(self) -> dict:
        """Makes the engine, with the batch size that is fastest on the beginning of the text, and runs it once."""
        text = self._read("part")
        try:
            self._chunker, found = self._fastest(text)
        except NOT_RUNNING as error:
            if self._engine.startswith("ours"):
                raise
            return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        return found | {"start_mib": peak_mib()}

    def _fastest(self, text: str) -> tuple[Chunker, dict]:
        if not self._engine.endswith(", torch"):
            chunker = make(self._engine)
            chunker.run(text)
            return chunker, {"setting": "as called"}
        taken: dict[int, tuple[float, Chunker]] = {}
        for size in BATCH_SIZES:
            chunker = make(self._engine, size)
            chunker.run(text[: len(text) // 4])
            taken[size] = self._timed(chunker, text)[0], chunker
        best = min(taken, key=lambda size: taken[size][0])
        return taken[best][1], {"setting": f"batches of {best}"}

    def measure(self) -> dict:
        """One run over the whole text, after a short one that does not count."""
        assert self._chunker is not None
        self._chunker.run(self._read("short"))
        text = self._read("whole")
        seconds, chunks = self._timed(self._chunker, text)
        peak, clock = peak_mib(), self._chunker.clock
        sizes = self._chunker.sizes(text, chunks)
        return {
            "seconds": seconds,
            "embed_s": clock.seconds,
            "texts": clock.num_texts,
            "characters": clock.num_characters,
            "chunks": len(sizes),
            "largest": max(sizes),
            "peak_mib": peak,
        }

    def embed_only(self) -> dict:
        """The sentences of the whole text through the embedder and nothing else: what memory that takes."""
        from qrag_jax.chunking.text.sentences import split_sentences

        embedder = minilm()
        parts = (self._read(name) for name in ("part", "whole"))
        warm, sentences = ([text[start:end] for start, end in split_sentences(text)] for text in parts)
        embedder(warm)
        start = time.perf_counter()
        vectors = embedder(sentences)
        return {"sentences": len(vectors), "seconds": time.perf_counter() - start, "peak_mib": peak_mib()}

    def _timed(self, chunker: Chunker, text: str) -> tuple[float, Any]:
        chunker.clock.reset()
        start = time.perf_counter()
        chunks = chunker.run(text)
        return time.perf_counter() - start, chunks

    def _read(self, name: str) -> str:
        return (self._folder / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    serve(lambda: Server(sys.argv[1], Path(sys.argv[2])))
