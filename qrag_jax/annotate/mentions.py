"""Notes without a language model (our own method): a sentence that names the topic of another chunk is its note.

A question over several documents often describes its answer in the words of another document. "The director of the film
X" shares no word with the director's document. But the document of X says "X is a film by D", and D is the title of the
director's document. That sentence, as a note, makes a search find it. HotpotQA and 2WikiMultihopQA were built from such
names; MuSiQue was not.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePath
from typing import NamedTuple

from qrag_jax.annotate.ask_chunks import chunk_texts
from qrag_jax.annotate.quotes import chunk_sentences
from qrag_jax.chunking.strategies.headings import find_sections
from qrag_jax.chunking.text.proper_names import Name, NameFinder, Word, find_words, is_term, normal_name, written_names
from qrag_jax.types import Chunk, Document, Note, ReadNotes, Span, check_fields

READER = "mentions"
# Reasons why a sentence is not a note.
SENTENCE_TOO_LONG = "sentence too long"
NAME_AMBIGUOUS = "name of too many chunks"
NAME_COMMON = "name in too many chunks"
BEYOND_MOST = "beyond the most notes of a chunk"


@dataclass(frozen=True)
class MentionsConfig:
    """Limits of names and notes.

    Attributes:
        max_notes: most notes of a chunk. The most specific names come first: titles before introduced names, then names
            in fewer chunks, then longer names.
        min_chars: fewest letters and digits of a name.
        max_owners: a title of more chunks than this is ambiguous and left out.
        max_naming: a name in more chunks than this is a common word and left out.
        max_introduced: a name that a document introduces must be in at most this many of its chunks. 0, the default,
            leaves such names out: where one chunk answers, they cost more than they find
            (`benchmarks/sqrag/notes.py --only harm`).
        max_chars: a longer sentence (a table, a list of names) is not a note.
    """

    max_notes: int = 8
    min_chars: int = 4
    max_owners: int = 3
    max_naming: int = 50
    max_introduced: int = 0
    max_chars: int = 600

    def __post_init__(self) -> None:
        check_fields(self, "mentions", at_least=dict.fromkeys(vars(self), 1) | {"max_introduced": 0})


@dataclass(frozen=True)
class Sentence:
    """A sentence, the index of its chunk, and its span in the document."""

    chunk: int
    span: Span
    text: str

    @property
    def words(self) -> list[Word]:
        """Its words, with offsets into it. Not stored, because the words of all documents would fill memory."""
        return find_words(self.text)


@dataclass(frozen=True)
class Mention:
    """A sentence that names the topic of another chunk: a possible note.

    Attributes:
        rank: lower is better.
        answering: the chunk that has the name as its topic.
        name: the name.
        sentence: of another chunk, which contains the name.
    """

    rank: tuple[int, int, int, int]
    answering: int
    name: Name
    sentence: Sentence


def mention_notes(
    documents: Sequence[Document], chunks: Sequence[Chunk], config: MentionsConfig | None = None
) -> ReadNotes:
    """Notes from names. Each note is a sentence that names the topic of another chunk, word for word.

    The names of a chunk are the headings in it. The first chunk also has its document's title (`metadata["title"]`,
    without a final part in brackets) and file name (`metadata["path"]`). If `max_introduced` allows them, names that
    first occur in a chunk count too. Titles and headings count in all documents, introduced names only in their own
    document.

    Args:
        documents: with distinct ids.
        chunks: all chunks to search, in the order of the documents: the nodes of a `Corpus`, or the leaves of trees.
        config: None uses the defaults.

    Returns:
        Notes. `text` is the asking document's text at `source`; `evidence` is the sentence of the answering chunk that
        contains the name, or its first sentence.

    Raises:
        InputError: a chunk's document is missing.
    """
    config = config or MentionsConfig()
    named = find_mentions(documents, chunks, config)
    kept = _most_specific(named.mentions, config.max_notes, named.left_out)
    notes = tuple(_note(mention, named.sentences[mention.answering], chunks) for mention in kept)
    return ReadNotes(notes, {reason: number for reason, number in named.left_out.items() if number})


class Named(NamedTuple):
    """The mentions of some chunks.

    Attributes:
        mentions: in the order of their sentences, those of titles and headings first.
        sentences: of each chunk that has one.
        topics: titles, file names and headings, each with its chunks.
        left_out: reasons why a name or sentence is no mention, with their numbers.
    """

    mentions: list[Mention]
    sentences: dict[int, list[Sentence]]
    topics: dict[Name, list[int]]
    left_out: Counter[str]


def find_mentions(documents: Sequence[Document], chunks: Sequence[Chunk], config: MentionsConfig) -> Named:
    """All sentences that name the topic of another chunk; arguments and errors as of `mention_notes`."""
    left_out: Counter[str] = Counter()
    sentences = _sentences(documents, chunks)
    own = {chunk: list(group) for chunk, group in groupby(sentences, key=lambda sentence: sentence.chunk)}
    titles, terms = _titles(documents, chunks, config, own)
    telling = {name: owners for name, owners in titles.items() if len(owners) <= config.max_owners}
    left_out[NAME_AMBIGUOUS] = len(titles) - len(telling)
    found = [
        *_of_titles(sentences, titles, terms, config, left_out),
        *_of_introduced(sentences, chunks, telling, config, left_out),
    ]
    return Named([mention for mention in found if not _is_its_own(mention, own, chunks)], own, titles, left_out)


def _sentences(documents: Sequence[Document], chunks: Sequence[Chunk]) -> list[Sentence]:
    """The sentences of all chunks, in order."""
    return [
        sentence
        for place, one in enumerate(chunk_texts(documents, chunks))
        for sentence in sentences_of(place, one.document, one.chunk.spans)
    ]


def sentences_of(chunk: int, text: str, spans: Sequence[Span]) -> list[Sentence]:
    """The sentences of a chunk, in order; a sentence that the chunk cuts ends at the chunk's end."""
    return [Sentence(chunk, span, text[slice(*span)]) for span in chunk_sentences(text, spans)]


def _titles(
    documents: Sequence[Document],
    chunks: Sequence[Chunk],
    config: MentionsConfig,
    own: Mapping[int, Sequence[Sentence]],
) -> tuple[dict[Name, list[int]], set[Name]]:
    """Names from titles, file names and headings, each with its chunks that have text; and the names that are terms."""
    spans: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for place in own:
        spans[chunks[place].document_id] += [(start, end, place) for start, end in chunks[place].spans]
    owners: defaultdict[Name, dict[int, None]] = defaultdict(dict)
    terms: set[Name] = set()
    for document in documents:
        for name, place, is_one in names_of(document, spans[document.id], config.min_chars):
            owners[name][place] = None
            terms |= {name} if is_one else set()
    return {name: list(places) for name, places in owners.items()}, terms


def names_of(document: Document, spans: Sequence[tuple[int, int, int]], min_chars: int) -> list[tuple[Name, int, bool]]:
    """(name, its chunk, whether it is a term) of the title, the file name and the headings of a document.

    Args:
        spans: (start, end, chunk) of the chunks that have text.
    """
    places = sorted(spans)
    named = [(name, places[0][2]) for name in _document_names(document)] if places else []
    for title, offset in _headings(document.text):
        named += [(title, place) for place in _chunk_at(places, offset)]
    found = [(normal_name(text, min_chars), place, is_term(text)) for text, place in named]
    return [(name, place, is_one) for name, place, is_one in found if name is not None]


def _chunk_at(spans: Sequence[tuple[int, int, int]], offset: int) -> list[int]:
    """The chunk of a character, the last one if chunks overlap; empty if it is in no chunk.

    Args:
        spans: (start, end, chunk) in order.
    """
    last = bisect_right(spans, offset, key=lambda span: span[0]) - 1
    return [spans[last][2]] if last >= 0 and offset < spans[last][1] else []


def _document_names(document: Document) -> Iterator[str]:
    title, path = document.metadata.get("title"), document.metadata.get("path")
    if isinstance(title, str):
        yield title
    if isinstance(path, str):
        yield PurePath(path).stem.replace("_", " ")


def _headings(text: str) -> Iterator[tuple[str, int]]:
    """The title of each Markdown heading, and its start."""
    for section in find_sections(text):
        if section.title_span is not None:
            start, end = section.title_span
            yield text[start:end], start


def _of_titles(
    sentences: Sequence[Sentence],
    owners: Mapping[Name, Sequence[int]],
    terms: Collection[Name],
    config: MentionsConfig,
    left_out: Counter[str],
) -> Iterator[Mention]:
    # Ambiguous names are found too; otherwise "New York" would name York.
    finder = NameFinder(owners, terms)
    mentions = [
        (name, sentence)
        for sentence in sentences
        for name in names_in(finder, sentence)
        if len(owners[name]) <= config.max_owners
    ]
    naming: defaultdict[Name, set[int]] = defaultdict(set)
    for name, sentence in mentions:
        naming[name].add(sentence.chunk)
    left_out[NAME_COMMON] += sum(len(chunks) > config.max_naming for chunks in naming.values())
    for order, (name, sentence) in enumerate(mentions):
        if len(naming[name]) <= config.max_naming:
            rank = (0, len(naming[name]), -sum(map(len, name)), order)
            for owner in owners[name]:
                yield from _candidate(rank, owner, name, sentence, config, left_out)


def _of_introduced(
    sentences: Sequence[Sentence],
    chunks: Sequence[Chunk],
    titles: Mapping[Name, Sequence[int]],
    config: MentionsConfig,
    left_out: Counter[str],
) -> Iterator[Mention]:
    """Candidates from names in a document: sentences of later chunks become notes of the first chunk with the name."""
    if not config.max_introduced:
        return
    for _, group in groupby(sentences, key=lambda sentence: chunks[sentence.chunk].document_id):
        own = list(group)
        written = {name for sentence in own for name in written_names(sentence.text, sentence.words)}
        finder = NameFinder(name for name in written if name not in titles and sum(map(len, name)) >= config.min_chars)
        mentions = [(name, sentence) for sentence in own for name in names_in(finder, sentence)]
        naming: defaultdict[Name, list[int]] = defaultdict(list)
        for name, sentence in mentions:
            if naming[name][-1:] != [sentence.chunk]:
                naming[name].append(sentence.chunk)
        for order, (name, sentence) in enumerate(mentions):
            if 2 <= len(naming[name]) <= config.max_introduced:
                rank = (1, len(naming[name]), -sum(map(len, name)), order)
                yield from _candidate(rank, naming[name][0], name, sentence, config, left_out)


def names_in(finder: NameFinder, sentence: Sentence) -> list[Name]:
    """The distinct names in a sentence."""
    return list(dict.fromkeys(name for name, _ in finder.find(sentence.words)))


def _candidate(
    rank: tuple[int, int, int, int],
    answering: int,
    name: Name,
    sentence: Sentence,
    config: MentionsConfig,
    left_out: Counter[str],
) -> Iterator[Mention]:
    """The candidate, unless the sentence is in the named chunk, only contains the name (a heading), or is too long."""
    if answering == sentence.chunk or len(sentence.words) == len(name):
        return
    if len(sentence.text) > config.max_chars:
        left_out[SENTENCE_TOO_LONG] += 1
        return
    yield Mention(rank, answering, name, sentence)


def _is_its_own(candidate: Mention, own: Mapping[int, Sequence[Sentence]], chunks: Sequence[Chunk]) -> bool:
    """True if the sentence is also in the answering chunk, as with overlapping chunks; such a note adds nothing."""
    sentence, answering = candidate.sentence, candidate.answering
    return chunks[sentence.chunk].document_id == chunks[answering].document_id and any(
        sentence.span == one.span for one in own[answering]
    )


def _most_specific(candidates: Sequence[Mention], most: int, left_out: Counter[str]) -> list[Mention]:
    """At most `most` candidates of each chunk, by rank, without repeated texts."""
    found: defaultdict[int, dict[str, Mention]] = defaultdict(dict)
    for candidate in sorted(candidates, key=lambda one: one.rank):
        found[candidate.answering].setdefault(candidate.sentence.text, candidate)
    kept = []
    for answering in sorted(found):
        best = list(found[answering].values())
        left_out[BEYOND_MOST] += len(best[most:])
        kept += best[:most]
    return kept


def _note(candidate: Mention, own: Sequence[Sentence], chunks: Sequence[Chunk]) -> Note:
    sentence = candidate.sentence
    return make_note(candidate.name, sentence, chunks[sentence.chunk].id, chunks[candidate.answering].id, own)


def make_note(name: Name, sentence: Sentence, asking: str, answering: str, own: Sequence[Sentence]) -> Note:
    """The note of a sentence with a name; its evidence is the sentence of the chunk with the name, or the first one.

    Args:
        asking, answering: ids of the chunks.
        own: the sentences of the answering chunk.
    """
    finder = NameFinder([name], [name])
    anchor = next((one for one in own if names_in(finder, one)), own[0])
    return Note(
        asking=asking,
        answering=answering,
        text=sentence.text,
        source=sentence.span,
        evidence=anchor.span,
        quote=anchor.text,
        reader=READER,
    )
