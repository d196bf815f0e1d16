"""What the sentences of a bAbI-like story say: answer and supporting facts recomputed from the text alone.

An independent reading, written backwards from the question: the simulator is checked by it.
"""

import re
from collections.abc import Sequence

from qrag_jax.data.stories.story_notes import Told, parse_fact
from qrag_jax.data.stories.vocabulary import BABI_VOCABULARY, WorldVocabulary
from qrag_jax.types import InputError

_PERSON = re.compile(r"Where is (?!the )(.+)\?")
_OBJECT = re.compile(r"Where is the (.+)\?")
_BEFORE = re.compile(r"Where was the (.+) before the (.+)\?")


def explain(
    facts: Sequence[str], question: str, vocabulary: WorldVocabulary = BABI_VOCABULARY
) -> tuple[str, tuple[int, ...]] | None:
    """The answer and the sorted positions of the facts that support it, or None if the facts do not tell."""
    told = [parse_fact(fact, vocabulary) for fact in facts]
    if match := _BEFORE.fullmatch(question):
        return _before(told, *match.groups())
    if match := _OBJECT.fullmatch(question):
        return _object(told, match[1])
    if match := _PERSON.fullmatch(question):
        moves = _moves(told, match[1], 0, len(told))
        return (told[moves[-1]].noun, (moves[-1],)) if moves else None
    raise InputError(f"not a question of this world: {question!r}")


def _moves(told: list[Told], person: str, start: int, end: int) -> list[int]:
    return [i for i in range(start, end) if told[i].kind == "move" and told[i].person == person]


def _events(told: list[Told], thing: str) -> list[int]:
    return [i for i, fact in enumerate(told) if fact.kind != "move" and fact.noun == thing]


def _object(told: list[Told], thing: str) -> tuple[str, tuple[int, ...]] | None:
    """Dropped: the dropper's last move before the drop. Carried: the holder's last move, even one before the get."""
    events = _events(told, thing)
    if not events:
        return None
    event = events[-1]
    moves = _moves(told, told[event].person, 0, event if told[event].kind == "drop" else len(told))
    return (told[moves[-1]].noun, tuple(sorted((event, moves[-1])))) if moves else None


def _before(told: list[Told], thing: str, place: str) -> tuple[str, tuple[int, ...]] | None:
    """The latest move into `place` that carried the thing on its last way, and the carrying move before it."""
    events = _events(told, thing)
    if not events:
        return None
    event = events[-1]
    if told[event].kind == "get":
        moves = _moves(told, told[event].person, event, len(told))
    elif len(events) > 1:
        moves = _moves(told, told[event].person, events[-2], event)
    else:
        return None
    for before, into in reversed(list(zip(moves, moves[1:], strict=False))):
        if told[into].noun == place:
            return told[before].noun, tuple(sorted((event, into, before)))
    return None
