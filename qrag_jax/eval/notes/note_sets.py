"""The sets that notes are measured on, from their files: pools of multi-hop paragraphs, and hidden bAbI stories.

Files are read immediately and cut into pools later, with a tokenizer: a bad file is reported before a model is
loaded. A pool has chunks, questions about them, and the chunks that answer each. Passages without questions may be
among the others as distractors.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.data.dataset_rows import one_line, read_rows, short
from qrag_jax.data.questions.multihop import READERS as MULTIHOP
from qrag_jax.data.questions.multihop import describe
from qrag_jax.data.stories.babi import read_babi
from qrag_jax.data.stories.filler import Filler, haystack_filler, hide_story, stories_filler
from qrag_jax.data.stories.haystack import limit_haystack, load_haystack
from qrag_jax.data.stories.stories import Stories
from qrag_jax.files.text_files import begins_with, json_value, read_text_file
from qrag_jax.types import Chunk, CountTokens, Document, Example, InputError, UsageError

_WHAT = 'passages: rows {"title", "text"}, or one JSON object {title: [sentence, ...]}'
_TEXT_FIELDS = ("text", "paragraph_text", "contents")


def read_passages(path: str | Path) -> list[tuple[str, str]]:
    """(title, text) of each passage, in order; white space collapsed, what has no text left out.

    Args:
        path: .json, .jsonl or either as .gz: a list or lines of `{"title", "text"}` (or `paragraph_text`, or
            `contents`), or one object of titles with a text or a list of sentences each.
    """
    path = Path(path)
    found = [(one_line(title), one_line(text)) for title, text in _passages(path)]
    kept = [(title, text) for title, text in found if text]
    if not kept:
        raise InputError(f"{path}: no passage with a text; expected {_WHAT}")
    return kept


def _passages(path: Path) -> Iterator[tuple[str, str]]:
    if path.name.endswith((".json", ".json.gz")) and begins_with(path, b"{", _WHAT):
        yield from _by_title(path)
        return
    for where, _, row in read_rows(path, _WHAT):
        name = next((name for name in _TEXT_FIELDS if name in row), "text")
        yield _text(row.get("title") or "", where, "title"), _text(row.get(name), where, name)


def _by_title(path: Path) -> Iterator[tuple[str, str]]:
    for title, content in json_value(read_text_file(path, _WHAT), path, _WHAT).items():
        yield title, _text(content, f"{path}: {title[:60]!r}", "text")


def _text(value: object, where: str, field: str) -> str:
    if isinstance(value, list) and all(isinstance(sentence, str) for sentence in value):
        return " ".join(value)
    if not isinstance(value, str):
        raise InputError(f"{where}: {field} must be a text or sentences, got {short(value)}; expected {_WHAT}")
    return value


@dataclass(frozen=True)
class Asked:
    """A question to a pool, and the places of the chunks that answer it together."""

    question: str
    gold: frozenset[int]


@dataclass(frozen=True)
class Pool:
    """Chunks that are searched together.

    Attributes:
        documents: with distinct ids.
        chunks: all of them, in the order of the documents.
        asked: at least one question.
    """

    documents: tuple[Document, ...]
    chunks: tuple[Chunk, ...]
    asked: tuple[Asked, ...]


def passage_pool(
    examples: Sequence[Example],
    titles: Mapping[str, str],
    count: CountTokens,
    distractors: Sequence[tuple[str, str]] = (),
) -> Pool:
    """All paragraphs of multi-hop questions in one pool, each a document of one chunk; a text is there once.

    Args:
        examples: of `data.questions.multihop`, whose chunks are `TITLE: PARAGRAPH`.
        titles: of the text of each chunk, as of `MultihopSet`.
        distractors: (title, text) of further passages.
    """
    if not examples:
        raise InputError("notes: no question to ask; give a file with at least one")
    titled = {text: titles[text] for example in examples for text in example.chunks}
    for title, text in distractors:
        titled.setdefault(f"{title}: {text}" if title else text, title)
    place = {text: number for number, text in enumerate(titled)}
    documents = tuple(Document(str(place[text]), text, {"title": title}) for text, title in titled.items())
    chunks = tuple(make_chunk(document, [(0, len(document.text))], 1, count) for document in documents)
    asked = [
        Asked(example.question, frozenset(place[example.chunks[gold]] for gold in example.gold)) for example in examples
    ]
    return Pool(documents, chunks, tuple(asked))


def story_pool(
    stories: Stories,
    number: int,
    filler: Filler,
    count: CountTokens,
    rng: np.random.Generator,
    *,
    num_chunks: int = 15,
    chunk_sentences: int = 4,
) -> Pool:
    """A story hidden in filler and cut into chunks of N sentences, so its gold facts are in different chunks.

    Args:
        stories: of `read_babi`.
        filler: sentences to hide it in.
        rng: of the places of the facts and of the filler; consumed.
        num_chunks, chunk_sentences: the story and its filler have num_chunks * chunk_sentences sentences.
    """
    hidden = hide_story(stories, number, filler, num_chunks * chunk_sentences, rng)
    ends = np.cumsum([len(sentence) + 1 for sentence in hidden.sentences])
    starts = ends - [len(sentence) + 1 for sentence in hidden.sentences]
    document = Document(stories.query_ids[number], " ".join(hidden.sentences))
    chunks = [
        make_chunk(document, [(int(starts[first]), int(ends[first + chunk_sentences - 1]) - 1)], 1, count)
        for first in range(0, len(ends), chunk_sentences)
    ]
    gold = frozenset(place // chunk_sentences for place in hidden.gold)
    return Pool((document,), tuple(chunks), (Asked(stories.question(number), gold),))


STORIES = "stories"  # a filler: other stories, renamed
_MAX_HAYSTACK = 100_000  # sentences


@dataclass(frozen=True)
class NoteTask:
    """A data set: its name, its pools, and a line about the contents and omissions of its file."""

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
    """Stories of a bAbI file, each hidden in filler and cut into its own pool.

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
            f"(the shortest has {int(stories.num_facts.min())} facts); raise num_chunks"
        )
    if filler == STORIES:
        fill = stories_filler(stories)
    else:
        haystack = limit_haystack(load_haystack(filler), _MAX_HAYSTACK, seed)
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
