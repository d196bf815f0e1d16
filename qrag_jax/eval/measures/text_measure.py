"""How much text a span holds, in characters or tokens, without reading the text again."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from qrag_jax.chunking.text.spans import readable
from qrag_jax.types import CountTokens, InputError

# WordPiece takes a longer word for one unknown token, and texts without blanks are one word.
_WORD = re.compile(r"\S{1,100}")


@dataclass(frozen=True, eq=False)
class TextMeasure:
    """The weight of a text before each position; between two edges it grows evenly.

    Attributes:
        edges: where words begin and end, not decreasing.
        before: weight of the text before each edge.
    """

    edges: Float[np.ndarray, " edges"]
    before: Float[np.ndarray, " edges"]

    def between(self, starts: Float[np.ndarray, " n"], ends: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Weight of every [start, end); 0 where the end is not after the start."""
        return np.maximum(np.interp(ends, self.edges, self.before) - np.interp(starts, self.edges, self.before), 0.0)


def measure_words(text: str, weigh: Callable[[str], float]) -> TextMeasure:
    """A text measured by its words: maximal runs of characters that are not blank, cut after every 100 of them.

    The weight of a word is spread evenly over its characters: a part of a word has its part, and weights of disjoint
    spans add up to that of the whole.

    Args:
        weigh: a word -> its weight, at least 0. `len` counts the characters that are not blank.
    """
    words = [(match.start(), match.end(), weigh(match.group())) for match in _WORD.finditer(text)]
    if not words:
        raise InputError("the text is blank: there is nothing to measure in it; leave it out")
    starts, ends, weights = np.array(words, np.float64).T
    after = np.cumsum(weights)
    edges = np.stack([starts, ends], axis=1).ravel()
    return TextMeasure(edges, np.stack([after - weights, after], axis=1).ravel())


def measure_tokens(text: str, count: CountTokens) -> TextMeasure:
    """A text measured in tokens, word by word; a word in which `count` sees no token has one.

    Tokens that a tokenizer would join over a blank are so counted apart. Cut words and words that no tokenizer knows
    have a length all the same, or a text of them could be found for nothing.
    """
    return measure_words(readable(text), lambda word: max(1, count(word)))
