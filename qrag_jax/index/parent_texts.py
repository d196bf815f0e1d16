"""Vectors of parents that are made of their texts: as far as the encoder reads, in windows, or of a summary.

    direct    v = embed(text), of which an encoder reads what its window holds
    windows   v = unit(sum_w num_tokens(w) * unit(embed(w)))    over windows w that do not overlap
    summary   v = embed(summary), of at most 128 tokens; a part without one is read in windows

A part that fits one window has the vector of `direct`. Windows end between words; each counts as much as it has
tokens, as the last one may be short.
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

WINDOW_TOKENS = 256  # of a window, [CLS] and [SEP] counted, as MiniLM reads them
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
    """The way of this name.

    Args:
        name: direct, windows or summary.
        embed: texts -> vectors; the encoder of the leaves.
        count: tokens of a text, special ones not counted, by its tokenizer.
        window_tokens: that the encoder reads at once, [CLS] and [SEP] counted (`TextEmbedder.window`).
        generator: of summaries; needed by `summary`.
        summaries: how it sums up.
        progress: told of every summary.
        finished: told what became of each batch of summaries. Parts without one are warned of too.

    Raises:
        UsageError: no such way; no generator of summaries; or a window without room for a token.
    """
    if name not in _TEXT_WAYS:
        raise UsageError(f"parents {name!r}: made of texts are {', '.join(_TEXT_WAYS)}; choose one of them")
    if window_tokens <= _NUM_SPECIAL:
        raise UsageError(f"window_tokens {window_tokens}: at least 3 are needed, [CLS], one of the text and [SEP]")
    if name == "direct":
        return Parents(
            name, of_texts=lambda texts: unit_rows(embed_texts(embed, texts)), most_tokens=window_tokens - _NUM_SPECIAL
        )

    def by_windows(texts: Sequence[str]) -> Float[np.ndarray, "texts dim"]:
        return window_vectors(texts, embed, count, window_tokens)

    if name == "windows":
        return Parents(name, of_texts=by_windows, fingerprint=f"windows of {window_tokens} tokens")
    if generator is None:
        raise UsageError("parents summary: needs a language model that sums up; hand in a generator")

    def by_summaries(texts: Sequence[str]) -> Float[np.ndarray, "texts dim"]:
        found = summarise(generator, texts, summaries, progress=progress)
        if finished is not None:
            finished(found)
        lost = [place for place, text in enumerate(found.texts) if text is None]
        if lost:
            reasons = ", ".join(f"{reason}: {number:,}" for reason, number in found.left_out.items())
            warnings.warn(
                f"summaries: {len(lost):,} of {len(texts):,} parts have none ({reasons}); their own text is embedded "
                "in windows",
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
    """Vectors of texts that are read whole, in windows that do not overlap; see the module.

    Args:
        texts: any; one without a word is read as the empty text.
        count: tokens of a text, special ones not counted.
        window_tokens: of a window, [CLS] and [SEP] counted.

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
