"""MTEB 2: our searches and encoders as models for `mteb.evaluate`, which needs torch and sentence-transformers.

MTEB keeps results by the revision of a model. Here it is a hash of all that decides on the scores.
"""

import hashlib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from qrag_jax import __version__
from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.files.manifest import MANIFEST
from qrag_jax.index.methods import load_embedder, multi_step_method, single_step_method
from qrag_jax.measures.trec import falling_scores
from qrag_jax.names import RETRIEVERS
from qrag_jax.qrag.retriever import load_retriever
from qrag_jax.types import AS_MADE, Document, EncoderOptions, InputError, UsageError, not_installed


class _Model:
    _made_by: tuple  # its name, and all that decides on its scores

    @property
    def mteb_model_meta(self) -> Any:
        """Name and revision, a `ModelMeta`."""
        name, digest = Path(self._made_by[0]).name, hashlib.sha256(repr((__version__, *self._made_by)).encode())
        about = {"name": f"qrag_jax/{name}", "revision": digest.hexdigest()[:16], "framework": ["JAX"]}
        return _mteb("models.model_meta").ModelMeta.create_empty(about)


class MtebSearch(_Model):
    """A search, for retrieval tasks: MTEB's `SearchProtocol`. Documents stand where their best passage does.

    A run picks `num_steps` sentences for a question, so it finds no more documents than that.
    """

    def __init__(self, retriever: str | Path = "hybrid", encoder: str = "minilm", num_steps: int | None = None) -> None:
        """Loads hybrid, dense or bm25, or the run in a folder, which has an encoder of its own."""
        if (name := str(retriever)) in RETRIEVERS:
            self._method = single_step_method(cast(Any, name), encoder)
            self._made_by = (name, getattr(self._method.embed, "fingerprint", encoder), self._method.chunking)
        else:
            step = load_checkpoint(name, groups=()).folder
            self._method = multi_step_method(load_retriever(step), num_steps)
            self._made_by = (name, (step / MANIFEST).read_text(), num_steps)

    def index(self, corpus: Iterable[dict], **_: Any) -> None:
        """Cuts and embeds the documents: rows with id, text and perhaps title. Blank ones are never found."""
        texts = {row["id"]: f"{row.get('title') or ''} {_text(row)}".strip() for row in corpus}
        self._corpus = self._method.build([Document(name, text) for name, text in texts.items() if text])

    def search(self, queries: Iterable[dict], *, top_k: int, top_ranked: Any = None, **_: Any) -> dict[str, dict]:
        """Question id -> the best documents, at most `top_k` -> scores, which fall strictly."""
        if top_ranked is not None:
            raise UsageError("reranking tasks give the documents to rank, but this searches all; use MtebEncoder")
        return {row["id"]: self._find(f"{_text(row)} {row.get('instruction') or ''}".strip(), top_k) for row in queries}

    def _find(self, question: str, top_k: int) -> dict[str, float]:
        ranked = self._method.retrieve(question, self._corpus, None)
        names = [self._corpus.nodes[node].document_id for node in ranked.ids.tolist()]
        return dict(list(falling_scores(zip(names, ranked.scores.tolist(), strict=True)).items())[:top_k])


class MtebEncoder(_Model):
    """An encoder, for any task of texts: MTEB's `EncoderProtocol`."""

    def __init__(self, encoder: str = "minilm", reads: EncoderOptions = AS_MADE) -> None:
        """Loads an encoder (`load_encoder`); `reads` replaces prompts, size of the vectors or precision."""
        self._embed = load_embedder(encoder, reads)
        self._made_by = (encoder, self._embed.fingerprint)

    def encode(self, inputs: Iterable[dict], *, prompt_type: str | None = None, **_: Any) -> np.ndarray:
        """Vectors of batches of texts, float32 [n, dim]; queries are read as questions, all others as documents."""
        texts = (text for batch in inputs for text in batch["text"])
        return (self._embed.questions if prompt_type == "query" else self._embed)(list(texts))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines of all pairs of vectors, as a tensor [n, m]."""
        return _mteb("similarity_functions").cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines of vectors of the same row, as a tensor [n]."""
        return _mteb("similarity_functions").pairwise_cos_sim(embeddings1, embeddings2)


def _text(row: dict) -> str:
    if isinstance(row["text"], str):
        return row["text"]
    raise InputError(f"row {row['id']!r}: its text is a conversation, which no search here reads; skip this task")


def _mteb(module: str) -> Any:
    try:
        return import_module(f"mteb.{module}")
    except ModuleNotFoundError as error:
        raise not_installed("MTEB", "mteb") from error
