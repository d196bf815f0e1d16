"""Notes put into the text of a chunk: between two sentences, joined where they meet, no more than the chunk bears."""

from collections import defaultdict
from collections.abc import Sequence

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.types import Span, UsageError


def insert_notes(text: str, notes: Sequence[tuple[int, str]]) -> str:
    """The text with each note in brackets behind the sentence that it belongs to.

    Sentences are cut by `split_sentences`, so that no note stands inside of one; notes behind one sentence share one
    pair of brackets, in the order that they are given in, which keeps them out of each other. Without the brackets
    and what is in them the text is what it was.

    Args:
        notes: (offset of a character of the sentence that it belongs to, text of the note).
    """
    ends = [end for _, end in split_sentences(text)]
    joined: defaultdict[int, list[str]] = defaultdict(list)
    for offset, note in notes:
        if not 0 <= offset < len(text):
            raise UsageError(f"note {note[:60]!r}: at character {offset} of a text of {len(text)}; give a place in it")
        joined[next((end for end in ends if end > offset), len(text))].append(note)
    parts, done = [], 0
    for end in sorted(joined):
        parts += [text[done:end], f" ({' '.join(joined[end])})"]
        done = end
    return "".join([*parts, text[done:]])


def fitting_notes(num_tokens: Sequence[int], most: float) -> list[int]:
    """Which notes fit into `most` tokens together: each in its turn, if there is room left for it.

    A note that is too long is left out, and a shorter one behind it may still come in.
    """
    taken, left = [], most
    for place, number in enumerate(num_tokens):
        if number <= left:
            taken.append(place)
            left -= number
    return taken


def offset_in_chunk(spans: Sequence[Span], offset: int) -> int:
    """Where a character of a document stands in the text of a chunk (`chunk_text`: spans joined by a line break)."""
    done = 0
    for start, end in spans:
        if start <= offset < end:
            return done + offset - start
        done += end - start + 1
    raise UsageError(f"character {offset} of the document: outside of the chunk's spans {list(spans)}")
