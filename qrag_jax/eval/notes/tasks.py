"""The sets that notes are measured on, from their files: pools of multi-hop paragraphs, and hidden bAbI stories.

Files are read at once, and cut into pools when a tokenizer is at hand: a bad file is told before a model is loaded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qrag_jax.chunking.mentions import READER as MENTIONS
from qrag_jax.chunking.mentions import mention_notes
from qrag_jax.data.questions.multihop import READERS as MULTIHOP
from qrag_jax.data.questions.multihop import describe
from qrag_jax.data.questions.passages import read_passages
from qrag_jax.data.stories.babi import read_babi
from qrag_jax.data.stories.filler import haystack_filler, stories_filler
from qrag_jax.data.stories.haystack import limit_haystack, load_haystack
from qrag_jax.data.stories.reader import READER as SCRIPTED
from qrag_jax.data.stories.reader import read_stories
from qrag_jax.eval.notes.pools import Pool, passage_pool, story_pool
from qrag_jax.types import CountTokens, InputError, NoteReader, UsageError

# Those that need no language model, by name.
NOTE_READERS: dict[str, NoteReader] = {MENTIONS: mention_notes, SCRIPTED: read_stories}
STORIES = "stories"  # a filler: other stories, renamed
_MOST_HAYSTACK = 100_000  # sentences


@dataclass(frozen=True)
class NoteTask:
    """A set: its name, its pools, and a line about its file: what it has, and what of it was left out."""

    name: str
    pools: tuple[Pool, ...]
    about: str


# What was read, by the tokens of its texts -> its pools.
MakeNoteTask = Callable[[CountTokens], NoteTask]


def read_multihop_task(
    kind: str,
    source: str | Path,
    *,
    distractors: str | Path | None = None,
    num_questions: int | None = None,
    seed: int = 0,
) -> MakeNoteTask:
    """All paragraphs of the questions of a file in one pool.

    Args:
        kind: hotpot, 2wiki or musique.
        source: as of `data.questions.multihop`.
        distractors: file of further passages (`read_passages`); None: none.
        num_questions: drawn from the file by `seed`, with their paragraphs alone; None takes all.
    """
    read = MULTIHOP[kind](source)
    chosen = [read.examples[i] for i in _drawn(len(read.examples), num_questions, seed)]
    more = read_passages(distractors) if distractors is not None else []
    name = kind if distractors is None else f"{kind}, more distractors"
    about = describe(Path(source).name, read)
    return lambda count: NoteTask(name, (passage_pool(chosen, read.titles, count, more),), about)


def read_babi_task(
    source: str | Path,
    filler: str,
    *,
    num_chunks: int = 15,
    chunk_sentences: int = 4,
    num_questions: int | None = None,
    seed: int = 0,
) -> MakeNoteTask:
    """Stories of a bAbI file, each hidden in filler and cut into a pool of its own.

    Args:
        filler: `stories`, other stories of the file with other names; or a haystack (`load_haystack`).
        num_questions: drawn from those that fit by `seed`; None takes all that fit.
        seed: of the draw, the places and the filler.
    """
    if num_chunks < 1 or chunk_sentences < 1:
        raise UsageError(f"num_chunks {num_chunks}, chunk_sentences {chunk_sentences}: at least 1 of each")
    stories = read_babi(source)
    fitting = np.flatnonzero(stories.num_facts <= num_chunks * chunk_sentences)
    if not len(fitting):
        raise InputError(
            f"{source}: none of {len(stories)} stories fits into {num_chunks} chunks of {chunk_sentences} sentences "
            f"(the shortest has {int(stories.num_facts.min())} facts); take more chunks"
        )
    if filler == STORIES:
        fill = stories_filler(stories)
    else:
        haystack = limit_haystack(load_haystack(filler), _MOST_HAYSTACK, seed)
        fill = haystack_filler(haystack.without(stories.texts))
    chosen = fitting[_drawn(len(fitting), num_questions, seed)].tolist()
    name = Path(source).name.partition(".")[0]
    told = STORIES if filler == STORIES else Path(filler).name.partition(".")[0]

    def cut(count: CountTokens) -> NoteTask:
        pools = [
            story_pool(
                stories,
                number,
                fill,
                count,
                np.random.default_rng([seed, number]),  # so that a story is hidden alike, whatever others are asked
                num_chunks=num_chunks,
                chunk_sentences=chunk_sentences,
            )
            for number in chosen
        ]
        about = f"{Path(source).name}: {len(stories):,} stories"
        too_long = len(stories) - len(fitting)
        about += f"; left out: {too_long:,} longer than {num_chunks} chunks" if too_long else ""
        return NoteTask(f"{name}, {told}", tuple(pools), about)

    return cut


def _drawn(of: int, number: int | None, seed: int) -> Sequence[int]:
    """So many of the numbers below `of`, in order; all where None or more are asked for."""
    chosen = np.random.default_rng(seed).permutation(of)[:number]
    return np.sort(chosen).tolist()
