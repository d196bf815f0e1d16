"""What notes are measured on: pools of chunks, the questions that are put to each, and which chunks answer them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.data.stories.filler import Filler, hide_story
from qrag_jax.data.stories.stories import Stories
from qrag_jax.types import Chunk, CountTokens, Document, Example, InputError, UsageError


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
    """A story hidden in filler and cut into chunks of so many sentences: what answers its question stands apart.

    Args:
        stories: of `read_babi`.
        filler: sentences to hide it in.
        rng: of the places of the facts and of the filler; consumed.
        num_chunks, chunk_sentences: the story and its filler have num_chunks * chunk_sentences sentences.
    """
    if num_chunks < 1 or chunk_sentences < 1:
        raise UsageError(f"num_chunks {num_chunks}, chunk_sentences {chunk_sentences}: at least 1 of each")
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
