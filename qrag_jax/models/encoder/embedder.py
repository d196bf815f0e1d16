"""Texts to vectors: length buckets of fixed shapes over a jitted encoder, with everything that is cut counted.

Encoders with equal fingerprints give equal vectors: a hash of shape, pooling, weights, tokenizer and window.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np

from qrag_jax.models.encoder.config import NO_PROMPTS, ComputeDtype, EncoderConfig, Prompts
from qrag_jax.models.encoder.host_encoder import can_encode, encode_rows
from qrag_jax.models.encoder.tokenizer import TextTokenizer, TokenTable
from qrag_jax.models.encoder.weights import LoadedEncoder
from qrag_jax.models.weights.param_tree import Params, flatten
from qrag_jax.types import TextCounts, UsageError
from qrag_jax.unit_rows import unit_rows


def encoder_fingerprint(
    config: EncoderConfig,
    params: Mapping[str, Any],
    tokenizer_json: str,
    window: int,
    prompts: Prompts = NO_PROMPTS,
    dtype: ComputeDtype = "float32",
) -> str:
    """sha256, in hex, over all that decides on an encoder's vectors.

    Args:
        config: shape, pooling, size of the vectors and whether they are scaled.
        params: nested dicts of arrays; their names, shapes, types and bytes count.
        tokenizer_json: content of its `tokenizer.json`.
        window: most tokens that are read at once.
        prompts: put before questions and documents.
        dtype: of the products.
    """
    read = [config.identity, tokenizer_json, window, *([asdict(prompts)] if prompts != NO_PROMPTS else [])]
    read += [dtype] if dtype != "float32" else []
    digest = hashlib.sha256(json.dumps(read).encode())
    for path, leaf in sorted(flatten(params).items()):
        array = np.ascontiguousarray(leaf)
        digest.update(json.dumps(["/" + "/".join(path), list(array.shape), str(array.dtype)]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


Progress = Callable[[int, int], None]
LongTexts = Literal["cut", "error"]

BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
_ACCELERATOR_TOKENS_PER_BLOCK = 16_384
# A small second shape a bucket, so that a single question does not pay for a whole block.
_SMALL_SHARE = 16
_NUM_SPECIAL = 2  # that callers count beside a text
# What a block costs beside its tokens, in tokens: a rough weight, as small blocks take longer a token than full ones.
_BLOCK_COST = 40


_FEW = 32  # questions that NumPy computes about as fast as compiled code


@cache
def _compiled(name: str) -> Callable:
    """A function of `text_encoder`; parameters are an argument, as constants would be copied into every shape."""
    import jax

    from qrag_jax.models.encoder import text_encoder

    return jax.jit(getattr(text_encoder, name), static_argnums=(0, 4))


class TextEmbedder:
    """Embeds texts with one encoder; made by `make_embedder`. Satisfies `types.Encoder`.

    Attributes:
        dim: size of a vector.
        token_dim: size of the vector of a token.
        window: most tokens of a document with two special ones; its prompt comes on top.
        question_window: the same of a question.
        num_added: tokens that a document's row has beside its text.
        lengths: in tokens, that rows are padded to, shortest first; each is compiled for when it comes up.
        counts: texts and tokens read so far, with cut ones.
    """

    def __init__(
        self,
        loaded: LoadedEncoder,
        window: int,
        tokens_per_block: int | None,
        long_texts: LongTexts,
        prompts: Prompts,
        dtype: ComputeDtype,
    ) -> None:
        """Use `make_embedder`, which checks its arguments."""
        config = loaded.config
        self.dim, self.token_dim = config.output_size, config.token_size
        added = {name: added_tokens(loaded.tokenizer, text) for name, text in asdict(prompts).items()}
        self.num_added = added["document"]
        self.window = window - added["document"] + _NUM_SPECIAL
        self.question_window = window - added["query"] + _NUM_SPECIAL
        self.counts = TextCounts()
        self.prompts = prompts
        self._row = window
        self._config = config
        self._tokenizer = loaded.tokenizer
        self._given = loaded.params
        self._dtype: ComputeDtype = dtype
        leaves = flatten(loaded.params).values()
        on_host = dtype == "float32" and all(isinstance(leaf, np.ndarray) for leaf in leaves)
        self._in_numpy = on_host and can_encode(loaded.config)
        self.lengths = (*(size for size in BUCKETS if size < window), window)
        self._tokens_per_block = tokens_per_block
        self._strict = long_texts == "error"

    @property
    def fingerprint(self) -> str:
        """Equal for equal vectors (`encoder_fingerprint`); hashed when first asked for."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        own = (self._config, self._given, self._tokenizer.to_json(), self._row, self.prompts, self._dtype)
        return encoder_fingerprint(*own)

    @cached_property
    def _computed(self) -> Params:
        """The parameters on the default device, with kernels in the dtype of the products."""
        import jax
        import jax.numpy as jnp

        params = jax.device_put(self._given)
        if self._dtype == "float32":
            return params
        cast = lambda path, leaf: leaf.astype(jnp.bfloat16) if path[-1].key == "kernel" else leaf  # noqa: E731
        return jax.tree_util.tree_map_with_path(cast, params)

    def __call__(
        self, texts: Sequence[str], progress: Progress | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Vectors of documents, float32 [n, dim], in the order given.

        An empty text is allowed: its vector is that of `[CLS] [SEP]`, with the prompt between them. Texts beyond the
        window are cut and counted in `counts`, or raise an error, as set in `make_embedder`.

        Args:
            texts: any number of texts, none among them.
            progress: called with (texts done, texts in all) after each block.
            out: array to write them to, perhaps one on the disk (`files.mapped`); None makes one in memory.
        """
        return self._embed(texts, self.prompts.document, progress, out)

    def questions(self, texts: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """Vectors of questions, float32 [n, dim]; NumPy computes a few. Satisfies `types.ReadsQuestions`."""
        if not self._in_numpy or not 0 < len(texts) <= _FEW:
            return self._embed(texts, self.prompts.query, progress)
        table = self._table(texts, self.prompts.query)
        rows = [row[:length] for row, length in zip(table.tokens, table.lengths.tolist(), strict=True)]
        vectors = encode_rows(self._config, self._given, rows)
        if progress is not None:
            progress(len(texts), len(texts))
        return vectors

    def _embed(
        self, texts: Sequence[str], prompt: str, progress: Progress | None, out: np.ndarray | None = None
    ) -> np.ndarray:
        table = self._table(texts, prompt)
        vectors = np.zeros((len(texts), self.dim), np.float32) if out is None else out
        done = 0
        for rows, block in self._run("encode", table):
            vectors[rows] = block
            done += len(rows)
            if progress is not None:
                progress(done, len(texts))
        return vectors

    def _table(self, texts: Sequence[str], prompt: str) -> TokenTable:
        asked = [prompt + text for text in texts] if prompt else texts
        table = self._tokenizer.encode(asked, self._row, strict=self._strict)
        self.counts = self.counts.plus(*table.counted)
        return table

    def with_tokens(self, texts: Sequence[str]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Vectors of documents, and those of their tokens from the same pass. Satisfies `types.ReadsTokens`.

        Special tokens, those of the prompt, and what is beyond the window are left out.

        Returns:
            float32 [n, dim] as from a call, and for each text int8 [num_tokens, token_dim]: the direction of every
            token's vector (`text_encoder.encode_with_codes`).
        """
        prompt = self.prompts.document
        table, first = self._table(texts, prompt), self._num_before(prompt)
        vectors = np.zeros((len(texts), self.dim), np.float32)
        codes = [np.zeros((0, self.token_dim), np.int8)] * len(texts)
        for rows, (pooled, block) in self._run("encode_with_codes", table):
            vectors[rows] = pooled
            for row, own in zip(rows.tolist(), block, strict=True):
                codes[row] = own[first : table.lengths[row] - 1].copy()  # [SEP] follows the text
        return vectors, codes

    def question_tokens(self, text: str) -> np.ndarray:
        """Vectors of the known tokens of a question, scaled to length 1; float32 [num_tokens, token_dim]."""
        prompt = self.prompts.query
        table = self._table([text], prompt)
        ((_, (hidden,)),) = self._run("encode_tokens", table)
        own = slice(self._num_before(prompt), table.lengths[0] - 1)
        return unit_rows(hidden[own][table.tokens[0, own] != self._tokenizer.unknown_id])

    def _num_before(self, prompt: str) -> int:
        """Tokens of a row before its text. A blank at the end of a prompt may become a part of the text's first."""
        opening = self._tokenizer.num_special - 1
        return opening + min(map(len, self._tokenizer.ids([prompt, prompt.rstrip()])))

    def tokens(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Last-layer vectors of the tokens of one text, and their characters. Satisfies `types.EmbedTokens`.

        Nothing is cut: a text longer than the window is read in windows that follow each other without overlap, each
        with its own prompt, [CLS] and [SEP], so a token sees its own window only. These are left out of the result;
        vectors are not normalised.

        Returns:
            float32 [num_tokens, dim] and int64 [num_tokens, 2] half-open character offsets into `text`.
        """
        ids, offsets = self._tokenizer.offsets(text)
        (prompt,) = self._tokenizer.ids([self.prompts.document])
        step = self._row - self._tokenizer.num_special - len(prompt)
        windows = [np.concatenate([prompt, ids[start : start + step]]) for start in range(0, len(ids), step)]
        vectors = np.zeros((len(ids), self.token_dim), np.float32)
        if windows:
            table = self._tokenizer.table(windows, self._row)
            self.counts = self.counts.plus(*table.counted)
            first = self._tokenizer.num_special - 1 + len(prompt)  # [SEP] follows the text
            for rows, block in self._run("encode_tokens", table):
                for row, hidden in zip(rows, block, strict=True):
                    num_tokens = len(windows[row]) - len(prompt)
                    vectors[row * step : row * step + num_tokens] = hidden[first : first + num_tokens]
        return vectors, offsets

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text, as `TextTokenizer.count`. Satisfies `types.CountTokens`."""
        return self._tokenizer.count(text)

    def unknown_shares(self, texts: Sequence[str]) -> np.ndarray:
        """Shares of texts that the vocabulary does not know, float64 [n]. Satisfies `types.KnowsWords`."""
        return self._tokenizer.unknown_shares(texts)

    def _run(self, name: str, table: TokenTable) -> Iterator[tuple[np.ndarray, Any]]:
        """Yields (rows, results of a function of `text_encoder`) by blocks.

        One block is computed while the last one is copied.
        """
        from qrag_jax.models.encoder.text_encoder import Compute

        function, compute = _compiled(name), Compute(self._dtype)
        size = self._tokens_per_block or default_tokens_per_block()
        waiting: tuple[np.ndarray, Any] | None = None
        for rows, length, num_rows in plan_blocks(table.lengths, self.lengths, size):
            tokens = np.zeros((num_rows, length), np.int32)
            lengths = np.zeros(num_rows, np.int32)
            width = min(length, table.tokens.shape[1])
            tokens[: len(rows), :width] = table.tokens[rows, :width]
            lengths[: len(rows)] = table.lengths[rows]
            result = function(self._config, self._computed, tokens, lengths, compute)
            if waiting is not None:
                yield waiting[0], _on_host(*waiting)
            waiting = (rows, result)
        if waiting is not None:
            yield waiting[0], _on_host(*waiting)


def _on_host(rows: np.ndarray, result: Any) -> Any:
    """The results of these rows, without those of padded ones."""
    import jax

    return jax.tree.map(lambda array: np.asarray(array)[: len(rows)], result)


def plan_blocks(
    lengths: np.ndarray, bucket_lengths: Sequence[int], tokens_per_block: int
) -> list[tuple[np.ndarray, int, int]]:
    """Groups rows of similar length into blocks of few distinct shapes.

    Each bucket has two shapes only: a full block of about `tokens_per_block` tokens, and a small one for what remains.
    A row that is alone has a third. Rows that fill no block wait for the next length where that computes less.

    Args:
        lengths: int [n], tokens of each row.
        bucket_lengths: increasing row lengths to pad to; the last holds the longest row.
        tokens_per_block: size of a full block; at least one row is taken.

    Returns:
        (row indices, padded length, padded number of rows) of each block; every row is in exactly one.
    """
    order = np.argsort(lengths, kind="stable")
    ends = np.searchsorted(lengths[order], bucket_lengths, side="right")
    wider = [*bucket_lengths[1:], 0]
    blocks = []
    start = 0
    for length, end, following in zip(bucket_lengths, ends, wider, strict=True):
        full = max(1, tokens_per_block // length)
        small = max(1, full // _SMALL_SHARE) if len(lengths) > 1 else 1  # one question, as a search has it
        while start < end:
            left = end - start
            num_rows = full if left > full // 2 else small
            cost = -(-left // num_rows) * (num_rows * length + _BLOCK_COST)
            if left < full and end < len(lengths) and left * following < cost:
                break
            blocks.append((order[start : start + min(num_rows, left)], int(length), num_rows))
            start += min(num_rows, left)
    return blocks


def default_tokens_per_block() -> int:
    """Tokens to encode at once: 1,024 on CPU, about twice as fast there as large batches, and 16,384 elsewhere."""
    import jax

    from qrag_jax.models.encoder.text_encoder import TOKENS_PER_BLOCK

    return TOKENS_PER_BLOCK if jax.default_backend() == "cpu" else _ACCELERATOR_TOKENS_PER_BLOCK


def make_embedder(
    loaded: LoadedEncoder,
    *,
    window: int | None = None,
    tokens_per_block: int | None = None,
    long_texts: LongTexts = "cut",
    prompts: Prompts | None = None,
    dtype: ComputeDtype = "float32",
) -> TextEmbedder:
    """An embedder over a loaded encoder.

    Args:
        loaded: the encoder; its parameters are put on the default device once.
        window: most tokens of a text, with special tokens; None takes the setting of the encoder's folder (256 for
            MiniLM, as in sentence-transformers), else all its positions.
        tokens_per_block: tokens computed at once; None is `default_tokens_per_block`.
        long_texts: "cut" cuts at the window and counts, "error" refuses such texts with InputError.
        prompts: texts put before questions and documents; None takes those of the encoder.
        dtype: of matrix products. bfloat16 is faster on CPUs with AMX or AVX-512 BF16; cosines move by up to 4e-3.

    Raises:
        UsageError: the window is below 3 or beyond the encoder's positions, a prompt fills it, or `tokens_per_block` is
            not positive.
    """
    most = loaded.config.max_positions
    if window is None:
        window = min(loaded.max_seq_length or most, most)
    if not 3 <= window <= most:
        raise UsageError(f"window {window}: choose 3 to {most}, the positions of the encoder")
    if tokens_per_block is not None and tokens_per_block < 1:
        raise UsageError(f"tokens_per_block {tokens_per_block}: a positive number is needed")
    prompts = loaded.prompts if prompts is None else prompts
    for name, prompt in asdict(prompts).items():
        if prompt and (added := added_tokens(loaded.tokenizer, prompt)) >= window:
            raise UsageError(
                f"has {added} tokens with special ones, so it fills the window of {window}; shorten it",
                field=f"{name}_prompt",
                value=prompt,
            )
    return TextEmbedder(loaded, window, tokens_per_block, long_texts, prompts, dtype)


def added_tokens(tokenizer: TextTokenizer, prompt: str) -> int:
    """Tokens of a row beside its text: special ones and those of a prompt."""
    return tokenizer.num_special + (len(tokenizer.ids([prompt])[0]) if prompt else 0)
