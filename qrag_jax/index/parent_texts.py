"""Vectors of parents from their text: read as far as the encoder can, in windows, or as a summary.

    direct    v = embed(text); the encoder reads as much as fits its window
    windows   v = unit(sum_w num_tokens(w) * unit(embed(w)))    over windows w that do not overlap
    summary   v = embed(summary), of at most 128 tokens; a part without a summary is read in windows

A part that fits one window gets the vector of `direct`. Windows end between words. Each is weighted by its tokens,
because the last one may be short.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from qrag_jax.annotate.ask_chunks import Progressed
from qrag_jax.annotate.summaries import Summaries, SummariesConfig, summaries_fingerprint, summarise
from qrag_jax.chunking.strategies.late import find_windows
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.tree.parent_vectors import Parents, mean_of_children
from qrag_jax.search.corpus import embed_texts
from qrag_jax.types import CountTokens, Embed, TextGenerator, UsageError
from qrag_jax.unit_rows import unit_rows

WINDOW_TOKENS = 256  # of a window, [CLS] and [SEP] included, as MiniLM reads them
_NUM_SPECIAL = 2
_TEXT_WAYS = ("direct", "windows", "summary")


def text_parents(
    name: str,
    embed: Embed,
    count: CountTokens,
    *,
    window_tokens: int = WINDOW_TOKENS,
    generator: TextGenerator | None = None,
    summaries: SummariesConfig | None = None,
    progress: Progressed | None = None,
    finished: Callable[[Summaries], None] | None = None,
) -> Parents:
    """How parents get vectors from their text.

    Args:
        name: direct, windows or summary.
        embed: texts -> vectors; the encoder of the leaves.
        count: text -> its tokens by the encoder's tokenizer, without special tokens.
        window_tokens: tokens that the encoder reads, [CLS] and [SEP] included (`TextEmbedder.window`).
        generator: writes summaries; needed by `summary`.
        summaries: how it summarises.
        progress: called for every summary.
        finished: called with the result of each batch of summaries. A warning also reports parts without a summary.

    Raises:
        UsageError: the name is unknown, `summary` has no generator, or the window has no room for a token.
    """
    if name not in _TEXT_WAYS:
        raise UsageError(f"parents {name!r}: not made from text; choose one of {', '.join(_TEXT_WAYS)}")
    if window_tokens <= _NUM_SPECIAL:
        raise UsageError(f"window_tokens {window_tokens}: give at least 3 ([CLS], one token of text, [SEP])")
    if name == "direct":
        return Parents(
            name, of_texts=lambda texts: unit_rows(embed_texts(embed, texts)), most_tokens=window_tokens - _NUM_SPECIAL
        )

    def by_windows(texts: Sequence[str]) -> Float[np.ndarray, "texts dim"]:
        return window_vectors(texts, embed, count, window_tokens)

    if name == "windows":
        return Parents(name, of_texts=by_windows, fingerprint=f"windows of {window_tokens} tokens")
    if generator is None:
        raise UsageError("parents summary: needs a language model to summarise; give `generator`")

    def by_summaries(texts: Sequence[str]) -> Float[np.ndarray, "texts dim"]:
        found = summarise(generator, texts, summaries, progress=progress)
        if finished is not None:
            finished(found)
        lost = [place for place, text in enumerate(found.texts) if text is None]
        if lost:
            reasons = ", ".join(f"{reason}: {number:,}" for reason, number in found.left_out.items())
            warnings.warn(
                f"summaries: {len(lost):,} of {len(texts):,} parts have none ({reasons}); their text is embedded in "
                "windows instead",
                stacklevel=2,
            )
        vectors = unit_rows(embed_texts(embed, [text or "" for text in found.texts]))
        if lost:
            vectors[lost] = by_windows([texts[place] for place in lost])
        return vectors

    config = summaries or SummariesConfig()
    fingerprint = f"{summaries_fingerprint(generator, config)} windows of {window_tokens} tokens"
    return Parents(name, of_texts=by_summaries, fingerprint=fingerprint, most_tokens=config.max_tokens)


def window_vectors(
    texts: Sequence[str], embed: Embed, count: CountTokens, window_tokens: int = WINDOW_TOKENS
) -> Float[np.ndarray, "texts dim"]:
    """Vectors of whole texts, read in windows that do not overlap; see the module.

    Args:
        texts: any; one without a word counts as empty.
        count: text -> its tokens, without special tokens.
        window_tokens: of a window, [CLS] and [SEP] included.

    Returns:
        float32, length 1 or 0.
    """
    pieces: list[str] = []
    place: list[int] = []
    for number, text in enumerate(map(readable, texts)):
        windows = [text[window.start : window.end] for window in find_windows(text, count, window_tokens, 0)]
        pieces += windows or [""]
        place += [number] * max(1, len(windows))
    vectors = unit_rows(embed_texts(embed, pieces))
    sizes = np.array([count(piece) for piece in pieces], np.int64)
    return mean_of_children(vectors, sizes, np.array(place, np.int64))
