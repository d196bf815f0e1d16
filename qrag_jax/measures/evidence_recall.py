"""ERec, the evidence recall of HiChunk: how much of the evidence a context says, whatever it was cut or merged into.

    ERec = sum of |e| over the pieces e of the evidence that the context contains / sum of |e| over all of them

Both sides are compared in one form of Unicode (NFKC: accents joined to their letters, full-width letters as others,
ligatures apart) and after SQuAD's normalisation (`answer_scores.normalise_answer`): case, punctuation, articles and
white space do not count, |e| is the number of remaining characters, and a piece must be in the context as a sequence
of whole words; in scripts without spaces between words (Chinese, Japanese, Thai, ...) every character is a word.
Pieces are sentences, long ones in parts (`evidence_scores.cut_long`), or their parts that are evidence. A sentence
that continues in the next passage is found if nothing is between the two.

It compares words, not places: a sentence that occurs twice in the documents is found in either place.
`evidence_scores.py` compares places, by tokens and by sentences.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from unicodedata import normalize

from qrag_jax.chunking.text.proper_names import UNSPACED
from qrag_jax.chunking.text.spans import strip_span
from qrag_jax.measures.answer_scores import normalise_answer
from qrag_jax.measures.evidence_scores import cut_long
from qrag_jax.types import InputError, Span

_ALONE = re.compile(f"[{UNSPACED}\u3000-\u303f]")  # characters that are words, with their marks as in "\u3002"


def _normal(text: str) -> str:
    return normalise_answer(normalize("NFKC", text))


_normalised = lru_cache(maxsize=65_536)(_normal)  # the same few pieces meet every context of a question


def evidence_recall(pieces: Sequence[str], context: str) -> float:
    """ERec of the module, in [0, 1].

    Args:
        pieces: of the evidence; one that is there twice counts twice, one without words not at all.
        context: all passages, in the order of their documents, with white space between them.
    """
    wanted = [words for piece in pieces if (words := _normalised(piece))]
    if not wanted:
        raise InputError("evidence has no word: there is nothing to find; leave the question out")
    said = _apart(_normal(context))
    return sum(len(words) for words in wanted if _apart(words) in said) / sum(map(len, wanted))


def _apart(text: str) -> str:
    """The words of a text with blanks around each, of scripts without blanks the characters."""
    words = _ALONE.sub(r" \g<0> ", text).split()
    return f" {' '.join(words)} "


def evidence_pieces(text: str, sentences: Sequence[Span], evidence: Iterable[Span]) -> list[str]:
    """The evidence in each sentence, in the order of the text; sentences of more than 300 characters in parts.

    Args:
        sentences: of it, ordered and disjoint.
        evidence: half-open character offsets, which may overlap: no character is in two pieces.
    """
    pieces, done = [], 0
    units = cut_long(text, sentences)
    for start, end in sorted(evidence):
        start = max(start, done)
        done = max(done, end)
        inside = (strip_span(text, max(first, start), min(last, end)) for first, last in units if first < end)
        pieces += [text[slice(*piece)] for piece in inside if piece]
    return pieces
