"""A text with its sentences, the groups that strategies make of them, and ids and text of chunks."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.chunking.text.spans import is_blank, join_spans
from qrag_jax.types import Chunk, CountTokens, Document, InputError, Span

SplitSentences = Callable[[str], list[Span]]

DEFAULT_NUM_TOKENS = 256  # of a chunk, if neither its strategy nor a maximum sets it
_ID_DIGITS = 16  # 64 bits: a collision in ten million chunks has a chance of 3 in a million


@dataclass(frozen=True)
class SentenceText:
    """A text and its sentences: ordered, disjoint, stripped, and covering everything that is not blank.

    Attributes:
        text: of the whole document.
        sentences: half-open character offsets.
    """

    text: str
    sentences: tuple[Span, ...]

    def __len__(self) -> int:
        return len(self.sentences)

    def texts(self) -> list[str]:
        """The text of every sentence."""
        return [self.text[start:end] for start, end in self.sentences]


@dataclass(frozen=True)
class Group:
    """A chunk that a strategy proposes: its spans, between which it may be cut, and its level.

    Attributes:
        spans: sentences or other parts that should stay whole; ordered, disjoint, none empty.
        level: as in `Chunk`.
    """

    spans: tuple[Span, ...]
    level: int = 1


# A document's sentences -> proposed chunks; size limits are enforced afterwards (`chunking/size/budget.py`).
Strategy = Callable[[SentenceText], list[Group]]


def check_sentences(text: SentenceText) -> None:
    """Refuses invalid sentences, because a custom splitter may lose text silently."""
    if is_blank(text.text, 0, len(text.text)):
        raise InputError("empty document; leave it out")
    done = 0
    for start, end in (*text.sentences, (len(text.text), len(text.text))):
        if not (done <= start < end <= len(text.text)) and start < len(text.text):
            raise InputError(f"sentence splitter: span ({start}, {end}) after character {done}; fix the splitter")
        if not is_blank(text.text, done, start):
            raise InputError(f"sentence splitter: characters {done} to {start} are in no sentence; fix the splitter")
        done = end


def groups_of(text: SentenceText, members: Iterable[Sequence[int] | np.ndarray], level: int = 1) -> list[Group]:
    """Groups of sentence numbers as groups of spans; empty ones are left out."""
    return [Group(tuple(text.sentences[i] for i in group), level) for group in members if len(group)]


def chunk_text(text: str, spans: Sequence[Span]) -> str:
    """The text of a chunk: that of its span, or of several spans joined by line breaks."""
    return "\n".join(text[start:end] for start, end in spans)


def count_spans(text: str, spans: Iterable[Span], count: CountTokens) -> int:
    """Tokens of the text of a chunk with these spans."""
    return count(chunk_text(text, join_spans(text, spans)))


def chunk_id(document_id: str, spans: Sequence[Span], level: int) -> str:
    """An id for a place in a document; different places have different ids."""
    parts = [document_id, str(level), *(f"{start}-{end}" for start, end in spans)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:_ID_DIGITS]


def make_chunk(document: Document, spans: Sequence[Span], level: int, count: CountTokens) -> Chunk:
    """The chunk of the given spans; spans with no text between them are joined."""
    joined = join_spans(document.text, spans)
    num_tokens = count(chunk_text(document.text, joined))
    return Chunk(chunk_id(document.id, joined, level), document.id, joined, level, num_tokens)
