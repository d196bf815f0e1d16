"""A reader of notes that needs no model: it asks and answers about the facts of bAbI stories.

It works like SqRAG's index phase and sees one chunk at a time: a chunk that states who took or dropped a thing asks
where that person went; every chunk that states this answers, with the sentence as evidence. So a note joins separated
facts. It makes no errors unless `wrong_share` is set.
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.stories.vocabulary import BABI_VOCABULARY, WorldVocabulary
from qrag_jax.types import Chunk, Document, InputError, Note, ReadNotes, Span, UsageError

READER = "scripted"
# Why an answer is right, though the draw has it wrong.
NO_OTHER_PLACE = "no other place to lie about"
_ASKED = {"get": "took", "drop": "dropped"}  # the kinds of facts that ask, and how


@dataclass(frozen=True)
class Told:
    """One fact: kind "move", "get" or "drop", who did it, and the place or object."""

    kind: str
    person: str
    noun: str


def parse_fact(sentence: str, vocabulary: WorldVocabulary = BABI_VOCABULARY) -> Told:
    """Reads `P VERB the NOUN.` or `P VERB the NOUN there.`"""
    person, _, rest = sentence.partition(" ")
    verb, _, noun = rest.partition(" the ")
    noun = noun.removesuffix(".").removesuffix(" there")
    for kind in ("move", "get", "drop"):
        if noun and verb in getattr(vocabulary, f"{kind}_verbs"):
            return Told(kind, person, noun)
    raise InputError(f"not a fact of this world: {sentence!r}; expected `P VERB the NOUN.` with a known verb")


@dataclass(frozen=True)
class _Fact:
    told: Told
    text: str
    span: Span


def read_stories(
    documents: Sequence[Document], chunks: Sequence[Chunk], wrong_share: float = 0.0, seed: int = 0
) -> ReadNotes:
    """Notes of stories: `Where did P, who took the O, go?` of each chunk that tells so, answered by each move of P.

    Questions go to all chunks of their document, including their own. Sentences that are not facts of these worlds
    are ignored.

    Args:
        documents: with distinct ids.
        wrong_share: share of the answers, drawn one by one, that name another place of the document; their evidence
            stays the right sentence. This models a reader that misreads its quote.
        seed: of the draw, which depends on the document too.
    """
    if not 0 <= wrong_share <= 1 or seed < 0:
        raise UsageError(f"wrong_share {wrong_share}, seed {seed}: a share from 0 to 1, and a seed from 0 on")
    by_id = {document.id: document for document in documents}
    of_document: defaultdict[str, list[tuple[Chunk, list[_Fact]]]] = defaultdict(list)
    for chunk in chunks:
        if chunk.document_id not in by_id:
            raise InputError(f"a chunk belongs to {chunk.document_id!r}, which is not among the documents; add it")
        of_document[chunk.document_id].append((chunk, _facts(by_id[chunk.document_id].text, chunk.spans)))
    notes: list[Note] = []
    left_out: Counter[str] = Counter()
    for name, read in of_document.items():
        lie = _liar(name, [fact for _, facts in read for fact in facts], wrong_share, seed, left_out)
        for answering, facts in read:
            for fact in facts:
                if fact.told.kind == "move":
                    notes += [
                        _note(asking, asked, answering, fact, lie(fact.told.noun))
                        for asking, others in read
                        for asked in others
                        if asked.told.kind in _ASKED and asked.told.person == fact.told.person
                    ]
    return ReadNotes(tuple(dict.fromkeys(notes)), dict(left_out))


def _liar(
    name: str, facts: Sequence[_Fact], wrong_share: float, seed: int, left_out: Counter[str]
) -> Callable[[str], str]:
    """Place -> the place in the answer: the same, or by the draw another place of the facts."""
    places = list(dict.fromkeys(fact.told.noun for fact in facts if fact.told.kind == "move"))
    rng = np.random.default_rng([seed, zlib.crc32(name.encode("utf-8", "surrogatepass"))])

    def told(place: str) -> str:
        if not wrong_share or rng.random() >= wrong_share:
            return place
        others = [other for other in places if other != place]
        if not others:
            left_out[NO_OTHER_PLACE] += 1
            return place
        return others[int(rng.integers(len(others)))]

    return told


def _facts(text: str, spans: Sequence[Span]) -> list[_Fact]:
    found = []
    for begin, stop in spans:
        for start, end in split_sentences(text[begin:stop]):
            sentence = text[begin + start : begin + end]
            try:
                found.append(_Fact(parse_fact(sentence), sentence, (begin + start, begin + end)))
            except InputError:  # a sentence of a book
                continue
    return found


def _note(asking: Chunk, asked: _Fact, answering: Chunk, fact: _Fact, place: str) -> Note:
    question = f"Where did {asked.told.person}, who {_ASKED[asked.told.kind]} the {asked.told.noun}, go?"
    answer = f"To the {place}."
    return Note(
        asking=asking.id,
        answering=answering.id,
        text=f"{question} {answer}",
        source=asked.span,
        evidence=fact.span,
        quote=fact.text,
        reader=READER,
        question=question,
        answer=answer,
    )
