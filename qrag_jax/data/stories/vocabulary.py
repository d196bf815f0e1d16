"""Words of simulated worlds, and every sentence that can be said with them."""

from dataclasses import dataclass

from qrag_jax.types import UsageError


@dataclass(frozen=True)
class WorldVocabulary:
    """The words of a world; sentences are `P VERB the PLACE.` and `P VERB the OBJECT.` (or `... OBJECT there.`)."""

    people: tuple[str, ...]
    places: tuple[str, ...]
    objects: tuple[str, ...]
    move_verbs: tuple[str, ...] = ("journeyed to", "moved to", "travelled to", "went back to", "went to")
    get_verbs: tuple[str, ...] = ("got", "grabbed", "picked up", "took")
    drop_verbs: tuple[str, ...] = ("discarded", "dropped", "left", "put down")

    def __post_init__(self) -> None:
        for name in ("people", "places", "objects", "move_verbs", "get_verbs", "drop_verbs"):
            words = getattr(self, name)
            if not words or len(set(words)) != len(words):
                raise UsageError(f"WorldVocabulary.{name} needs distinct words, at least one, got {words}")
        if len(self.places) < 2:
            raise UsageError(f"WorldVocabulary.places needs two places or nobody can move, got {self.places}")


BABI_VOCABULARY = WorldVocabulary(
    people=("Daniel", "John", "Mary", "Sandra"),
    places=("bathroom", "bedroom", "garden", "hallway", "kitchen", "office"),
    objects=("apple", "football", "milk"),
)


@dataclass(frozen=True)
class Language:
    """Every sentence of a task with a fixed id, so that all worlds of one vocabulary share one text table.

    Attributes:
        texts: distinct sentences; an id is an index into them.
        moves: [person][place] -> ids of the ways to say it, one drawn uniformly.
        gets: [person][object] -> the same; an id occurs in it as often as its weight.
        drops: [person][object] -> the same.
    """

    texts: tuple[str, ...]
    moves: list[list[list[int]]]
    gets: list[list[list[int]]]
    drops: list[list[list[int]]]


def make_language(vocabulary: WorldVocabulary, num_facts: int) -> Language:
    """Sentences of the task. As in bAbI, "there" follows every get of two facts and one in five of the others."""
    texts: dict[str, int] = {}

    def ids(person: str, verbs: tuple[str, ...], noun: str, endings: tuple[str, ...]) -> list[int]:
        said = [f"{person} {verb} the {noun}{ending}." for verb in verbs for ending in endings]
        return [texts.setdefault(text, len(texts)) for text in said]

    seldom_there = ("", "", "", "", " there")
    get_endings = (" there",) if num_facts == 2 else seldom_there
    people, places, objects = vocabulary.people, vocabulary.places, vocabulary.objects if num_facts > 1 else ()
    moves = [[ids(p, vocabulary.move_verbs, place, ("",)) for place in places] for p in people]
    gets = [[ids(p, vocabulary.get_verbs, thing, get_endings) for thing in objects] for p in people]
    drops = [[ids(p, vocabulary.drop_verbs, thing, seldom_there) for thing in objects] for p in people]
    return Language(tuple(texts), moves, gets, drops)
