"""What the property tests of chunking share: counters of tokens, an embedder without a model, odd texts, checks."""

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from qrag_jax.chunking.text.chunks import chunk_id
from qrag_jax.types import Chunk, Document

_SENTENCES = [
    "Hello there. ",
    "Dr. Who? ",
    '"Hi," she said. ',
    "A sentence of quite a few more words, which is long. ",
    "x",
    "antidisestablishmentarianism ",
    "a" * 40,
    "1.5",
    "...",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u516c\u56ed\u3002",
]
_SPACES = [" ", "\n", "\n\n", "\r\n\r\n", "\t", "\u3000", "\u2003", "\x0b", "\x85", "\u2028", " \n \n "]
_MARKDOWN = [
    "\n# One\n",
    "\n## Two\n",
    "\nUnder\n===\n",
    "\n```\n# code\n\ncode\n```\n",
    "\n|a|b|\n|-|-|\n|1|2|\n",
    "- item\n",
]
_ODD = [
    "\0",
    "\ud800",
    "\udfff",
    "\u202e",
    "\ufeff",
    "e\u0301",
    "\U0001f600",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd. ",
    "\u0645\u0631\u062d\u0628\u0627\u061f ",
]
PIECES = st.sampled_from(_SENTENCES + _SPACES + _MARKDOWN + _ODD) | st.text(max_size=5)
TEXTS = st.lists(PIECES, min_size=1, max_size=20).map("".join).filter(str.strip)


def count_words(text: str) -> int:
    return len(text.split())


def count_characters(text: str) -> int:
    return len(text)


def count_bytes(text: str) -> int:
    """A character has up to four tokens; refuses lone surrogates, as tokenizers do."""
    return len(text.encode())


def count_oddly(text: str) -> int:
    """Two parts together have more tokens than apart, a long word has one, and a NUL none."""
    words = [word for word in text.encode().decode().split() if word.strip("\0")]
    return sum(1 if len(word) > 12 else (len(word) + 2) // 3 for word in words) + len(words) // 5


COUNTERS = (count_words, count_characters, count_bytes, count_oddly)
MONOTONE_COUNTERS = (count_words, count_characters, count_bytes)


def embed_by_hash(texts: Sequence[str]) -> np.ndarray:
    """The same vector for the same text, any other for another one; refuses lone surrogates, as tokenizers do."""
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return np.array([list(digest[:8]) for digest in digests], np.float32).reshape(len(texts), 8) - 120.0


def readable(text: str) -> str:
    """Lone surrogates as U+FFFD."""
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)


def text_of(document: Document, chunk: Chunk) -> str:
    return "\n".join(document.text[start:end] for start, end in chunk.spans)


def times_covered(text: str, chunks: Sequence[Chunk]) -> set[int]:
    """How many chunks the characters that are not blank are in."""
    steps = np.zeros(len(text) + 1, np.int64)
    for chunk in chunks:
        for start, end in chunk.spans:
            steps[start] += 1
            steps[end] -= 1
    covered = np.cumsum(steps)
    return {int(covered[i]) for i, character in enumerate(text) if character.strip()}


def check_chunks(document: Document, chunks: Sequence[Chunk], count, max_tokens: int | None) -> None:
    """Every chunk proves where it came from, keeps the budget by a fresh count, and has an id of its own."""
    text = document.text
    for chunk in chunks:
        assert chunk.document_id == document.id
        assert chunk.id == chunk_id(document.id, chunk.spans, chunk.level)
        assert chunk.spans
        previous = -1
        for start, end in chunk.spans:
            assert type(start) is int and type(end) is int
            assert previous < start < end <= len(text)
            assert text[start:end] == text[start:end].strip(), "a span has outer white space"
            assert previous < 0 or text[previous:start].strip(), "nothing lies between two spans of a chunk"
            previous = end
        num_tokens = count(readable(text_of(document, chunk)))
        assert chunk.num_tokens == num_tokens
        assert max_tokens is None or num_tokens <= max_tokens
    assert [chunk.spans for chunk in chunks] == sorted(chunk.spans for chunk in chunks)
    assert max(Counter(chunk.id for chunk in chunks).values()) == 1
