"""A reader of notes that needs no model and says nothing wrong: it asks and answers about the facts of bAbI stories.

It works as SqRAG's index phase does, and sees one chunk at a time: a chunk that tells who took or dropped a thing asks
where that person went, and every chunk that tells it answers, with the sentence as evidence. So a note joins what
stands apart.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.stories.semantics import Told, parse_fact
from qrag_jax.types import Chunk, Document, InputError, Note, ReadNotes, Span

READER = "scripted"
_ASKED = {"get": "took", "drop": "dropped"}  # the kinds of facts that ask, and how


@dataclass(frozen=True)
class _Fact:
    told: Told
    text: str
    span: Span


def read_stories(documents: Sequence[Document], chunks: Sequence[Chunk]) -> ReadNotes:
    """Notes of stories: `Where did P, who took the O, go?` of each chunk that tells so, answered by each move of P.

    Questions go to the chunks of their own document, their own one among them. Sentences that are no facts of these
    worlds are passed over: they neither ask nor answer.

    Raises:
        InputError: a chunk of a document that is not there.
    """
    by_id = {document.id: document for document in documents}
    of_document: defaultdict[str, list[tuple[Chunk, list[_Fact]]]] = defaultdict(list)
    for chunk in chunks:
        if chunk.document_id not in by_id:
            raise InputError(f"chunk of {chunk.document_id!r}: which is not among the documents; give it too")
        of_document[chunk.document_id].append((chunk, _facts(by_id[chunk.document_id].text, chunk.spans)))
    notes: list[Note] = []
    for read in of_document.values():
        for answering, facts in read:
            for fact in facts:
                if fact.told.kind == "move":
                    notes += [
                        _note(asking, asked, answering, fact)
                        for asking, others in read
                        for asked in others
                        if asked.told.kind in _ASKED and asked.told.person == fact.told.person
                    ]
    return ReadNotes(tuple(dict.fromkeys(notes)))


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


def _note(asking: Chunk, asked: _Fact, answering: Chunk, fact: _Fact) -> Note:
    question = f"Where did {asked.told.person}, who {_ASKED[asked.told.kind]} the {asked.told.noun}, go?"
    answer = f"To the {fact.told.noun}."
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
