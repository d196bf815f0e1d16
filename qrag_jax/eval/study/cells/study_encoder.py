"""One encoder for a whole study: everything that it reads is metered, and chunks of any size have a vector.

A chunk within the encoder's window is embedded whole. A longer one is read in consecutive windows without overlap
that begin and end at words; its vector is the mean of their unit vectors, scaled to length 1.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from qrag_jax.chunking.strategies.late import LateConfig, find_windows, late_vectors, make_late
from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.chunking.text.spans import readable
from qrag_jax.eval.study.cells.costs import Meter, encoder_flops
from qrag_jax.eval.study.cells.sentence_cache import SentenceCache
from qrag_jax.models.encoder.config import EncoderConfig
from qrag_jax.types import Chunk, Counts, Embed, InputError, UsageError, for_questions
from qrag_jax.unit_rows import unit_rows

Progress = Callable[[int, int], None]


@runtime_checkable
class Embedder(Protocol):
    """The part of `models.encoder.embedder.TextEmbedder` that a study needs."""

    dim: int
    window: int

    @property
    def lengths(self) -> Sequence[int]:
        """Lengths that rows are padded to, the longest of them `window`."""
        ...

    @property
    def counts(self) -> Counts:
        """Numbers of texts and tokens read so far."""
        ...

    def __call__(self, texts: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """Vectors of texts, float32 [n, dim]."""
        ...

    def tokens(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of the tokens of a text, as `types.EmbedTokens`."""
        ...

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, special tokens not counted."""
        ...


_NUM_SPECIAL = 2  # [CLS] and [SEP]
_TOKENS_PER_BLOCK = 1024


class StudyEncoder:
    """Embeds for a study and measures the cost; `load_study_encoder` makes one from an encoder's name.

    All vectors have length 1 (or are zero), so the product of two is their cosine. Lone surrogates are read as
    U+FFFD.

    Attributes:
        model: name of the encoder, for messages.
        dim: size of a vector.
        window: most tokens of a text that are read at once, with two special ones; a prompt comes on top.
        fingerprint: equal for equal weights, config, tokenizer and window.
    """

    def __init__(
        self,
        embedder: Embedder,
        config: EncoderConfig,
        model: str,
        fingerprint: str,
        tokens_per_block: int = _TOKENS_PER_BLOCK,
    ) -> None:
        """Wraps an embedder.

        Args:
            config: its shape, for FLOPs, and its pooling.
            tokens_per_block: what `embedder` computes at once, for `warm_up`.
        """
        self.model = model
        self.dim = embedder.dim
        self.window = embedder.window
        self.fingerprint = fingerprint
        self._embedder = embedder
        self._num_added = getattr(embedder, "num_added", _NUM_SPECIAL)
        self._config = config
        self._tokens_per_block = tokens_per_block

    def count(self, text: str) -> int:
        """Number of tokens of a text, special tokens not counted. Satisfies `types.CountTokens`."""
        return self._embedder.count_tokens(readable(text))

    def holds(self, text: str) -> bool:
        """True if a whole text fits into the window."""
        return self.count(text) + _NUM_SPECIAL <= self.window

    def tokens(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Last-layer token vectors of a text and their characters, on no meter. Satisfies `types.EmbedTokens`."""
        return self._embedder.tokens(readable(text))

    def warm_up(self, progress: Progress | None = None) -> None:
        """Reads made-up texts of every length that is compiled for, so that no strategy is charged a compilation.

        For each padded length: a full block, a small one, a text alone, and the token vectors of one where late chunks
        can be pooled from them. On no meter.

        Args:
            progress: called with (lengths done, lengths in all).
        """
        lengths = self._embedder.lengths
        for done, length in enumerate(lengths, 1):
            text = self._text_of(length - _NUM_SPECIAL)
            for num_texts in (max(1, self._tokens_per_block // length), 2, 1):
                self._embedder([text] * num_texts)
            if self._config.pooling == "mean":
                self._embedder.tokens(text)
            if progress is not None:
                progress(done, len(lengths))

    def embed(self, texts: Sequence[str], meter: Meter, progress: Progress | None = None) -> np.ndarray:
        """Vectors of texts, float32 [n, dim] of length 1; text beyond the window is cut and counted in the meter.

        Args:
            meter: charged with seconds, tokens and FLOPs.
            progress: called with (texts done, texts in all).
        """
        texts = [readable(text) for text in texts]
        # Only the sum of lengths is known of the embedder; counting again takes a fiftieth of embedding, off the clock.
        return self._embed(texts, [self._length(text) for text in texts], meter, progress)

    def _length(self, text: str) -> int:
        """Tokens of the row of a text, cut at the window."""
        return min(self.count(text), self.window - _NUM_SPECIAL) + self._num_added

    def sentence_embed(self, cache: SentenceCache, meter: Meter) -> Embed:
        """`embed` over a cache of whole calls: a cached call adds its original cost to the meter. So the cost of a
        strategy does not depend on the order of the strategies. `meter.waited` has the seconds that passed.
        """

        def embed(texts: Sequence[str]) -> np.ndarray:
            start = time.perf_counter()
            known = cache.get(self.fingerprint, texts)
            if known is None:
                cost = Meter()
                vectors = self.embed(texts, cost)
                cost.waited = 0.0
                cache.put(self.fingerprint, texts, vectors, cost)
            else:
                vectors, cost = known
            meter.add(cost)
            meter.waited += time.perf_counter() - start
            return vectors

        return embed

    def question_vectors(self, questions: Sequence[str], cache: SentenceCache) -> np.ndarray:
        """Vectors of questions, float32 [n, dim] of length 1, over a cache of whole calls; on no meter."""
        key = f"{self.fingerprint} questions"
        known = cache.get(key, questions)
        if known is not None:
            return known[0]
        embed = for_questions(self._embedder)
        vectors = unit_rows(embed([readable(question) for question in questions])).astype(np.float32)
        cache.put(key, questions, vectors, Meter())
        return vectors

    def chunk_vectors(
        self,
        texts: Mapping[str, str],
        chunks: Sequence[Chunk],
        meter: Meter,
        late: LateConfig | None = None,
        progress: Progress | None = None,
    ) -> tuple[np.ndarray, int]:
        """Vectors of chunks, float32 [n, dim] of length 1, and how many chunks are longer than the window.

        With `late` a vector is pooled from the token vectors of the whole document (`chunking.late.late_vectors`), in
        windows of the smaller of `late.window_tokens` and the encoder's: no chunk is beyond one, so 0 are. A chunk
        without any token has a vector of zeros then.

        Args:
            chunks: of these documents, with `num_tokens` by `count`.
            meter: charged with seconds (finding windows and pooling among them), tokens and FLOPs.
            late: of the strategy `late`, None for all others.
            progress: called with (chunks or windows done, in all).
        """
        if late is not None:
            return self._late_vectors(texts, chunks, meter, late, progress), 0
        beyond = [chunk.num_tokens + _NUM_SPECIAL > self.window for chunk in chunks]
        rows: list[int] = []
        pieces: list[str] = []
        with _clock(meter):
            for row, chunk in enumerate(chunks):
                text = readable(chunk_text(texts[chunk.document_id], chunk.spans))
                found = self._windows(text) if beyond[row] else [text]
                pieces += found
                rows += [row] * len(found)
        lengths = [
            (self.count(piece) if beyond[row] else chunks[row].num_tokens) + self._num_added
            for row, piece in zip(rows, pieces, strict=True)
        ]
        vectors = self._embed(pieces, lengths, meter, progress)
        sums = np.zeros((len(chunks), self.dim))
        np.add.at(sums, rows, vectors)
        return unit_rows(sums).astype(np.float32), sum(beyond)

    def check_late(self, late: LateConfig) -> None:
        """Refuses what `chunk_vectors` would refuse of late chunks, before hours are spent."""
        if self._config.pooling != "mean":
            raise UsageError(
                f"late: encoder {self.model} has pooling {self._config.pooling!r}: its vector of a text is not a mean "
                "of token vectors, so late chunks cannot be compared with a question; leave the strategy out, or "
                "choose an encoder with pooling mean"
            )
        make_late(self._within(late), self.count)

    def _within(self, late: LateConfig) -> LateConfig:
        return replace(late, window_tokens=min(late.window_tokens, self.window))

    def _windows(self, text: str) -> list[str]:
        return [text[window.start : window.end] for window in find_windows(text, self.count, self.window, 0)]

    def _embed(
        self, texts: Sequence[str], lengths: Sequence[int], meter: Meter, progress: Progress | None
    ) -> np.ndarray:
        """`embed` of readable texts with these numbers of tokens within the window, with special tokens."""
        before = self._embedder.counts
        with _clock(meter):
            vectors = self._embedder(texts, progress)
        bad = ~np.isfinite(vectors).all(axis=1)
        if bad.any():
            raise InputError(f"encoder {self.model}: the vector of {texts[int(np.argmax(bad))][:60]!r} is not finite")
        self._charge(meter, before, lengths, texts)
        return unit_rows(vectors).astype(np.float32)

    def _late_vectors(
        self,
        texts: Mapping[str, str],
        chunks: Sequence[Chunk],
        meter: Meter,
        late: LateConfig,
        progress: Progress | None,
    ) -> np.ndarray:
        self.check_late(late)
        lengths: list[int] = []

        def embed_tokens(text: str) -> tuple[np.ndarray, np.ndarray]:
            before = self._embedder.counts
            found = self._embedder.tokens(text)
            lengths.extend(self._row_lengths(before, self._embedder.counts))
            return found

        rows: dict[str, list[int]] = {}
        for row, chunk in enumerate(chunks):
            rows.setdefault(chunk.document_id, []).append(row)
        vectors = np.zeros((len(chunks), self.dim), np.float32)
        window = self._within(late).window_tokens
        done, before = 0, self._embedder.counts
        with _clock(meter):
            for name, members in rows.items():
                spans = [chunks[row].spans for row in members]
                try:
                    vectors[members] = late_vectors(
                        texts[name], spans, embed_tokens, self.count, window, late.overlap_tokens
                    )
                except InputError as error:
                    raise error.at(name) from error
                done += len(members)
                if progress is not None:
                    progress(done, len(chunks))
        self._charge(meter, before, lengths)
        return vectors

    def _row_lengths(self, before: Counts, after: Counts) -> list[int]:
        """Tokens of the rows in which one text was read: all but the last fill the window."""
        num_rows, num_tokens = after.num_texts - before.num_texts, after.num_tokens - before.num_tokens
        full = [self.window - _NUM_SPECIAL + self._num_added] * (num_rows - 1)
        return [*full, num_tokens - sum(full)] if num_rows else []

    def _charge(self, meter: Meter, before: Counts, lengths: Sequence[int], texts: Sequence[str] = ()) -> None:
        after = self._embedder.counts
        num_tokens, counted = after.num_tokens - before.num_tokens, sum(lengths)
        # `count` counts an unknown word by its characters, and the encoder reads it as one token.
        if num_tokens != counted and counted != sum(map(self._length, texts)):
            raise InputError(
                f"encoder {self.model}: read {num_tokens:,} tokens where {counted:,} were counted: count the "
                "tokens of chunks with StudyEncoder.count"
            )
        meter.tokens += num_tokens
        meter.flops += encoder_flops(self._config, lengths)
        meter.num_texts += after.num_texts - before.num_texts
        meter.num_texts_cut += after.num_texts_cut - before.num_texts_cut

    def _text_of(self, num_tokens: int) -> str:
        """A text of about N tokens; it has more only if a single letter has more."""
        words = ["a"] * num_tokens
        return " ".join(words[: max(1, num_tokens * num_tokens // max(1, self.count(" ".join(words))))])


def load_study_encoder(model: str, window: int | None = None) -> StudyEncoder:
    """The encoder of a study.

    Args:
        model: minilm, a folder or a hub id.
        window: most tokens that are read at once, special tokens counted; None is the encoder's own.

    Raises:
        UsageError: there is no such encoder, or it has no window of that size.
        InputError: it is incomplete or damaged.
    """
    from qrag_jax.models.encoder.embedder import default_tokens_per_block, make_embedder
    from qrag_jax.models.encoder.weights import load_encoder

    loaded = load_encoder(model)
    embedder = make_embedder(loaded, window=window)
    return StudyEncoder(embedder, loaded.config, model, embedder.fingerprint, default_tokens_per_block())


@contextmanager
def _clock(meter: Meter) -> Iterator[None]:
    start = time.perf_counter()
    yield
    passed = time.perf_counter() - start
    meter.seconds += passed
    meter.waited += passed
