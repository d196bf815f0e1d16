"""Stories hidden among unchanged sentences: other stories with other names, or a book."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qrag_jax.data.stories.haystack import Haystack
from qrag_jax.data.stories.stories import Stories, story_numbers
from qrag_jax.data.stories.vocabulary import BABI_VOCABULARY
from qrag_jax.types import UsageError

# (number of the question that is hidden, how many sentences, rng, which is consumed) -> so many sentences.
Filler = Callable[[int, int, np.random.Generator], list[str]]

_PEOPLE = (
    "Ada", "Anton", "Beatrice", "Boris", "Clara", "Conrad", "Delia", "Dmitri", "Edith", "Emil", "Flora", "Franz",
    "Gerda", "Gustav", "Hanna", "Harald", "Irene", "Isaac", "Judith", "Jasper", "Karin", "Klaus", "Leonora", "Leopold",
    "Martha", "Maxim", "Nadia", "Norbert", "Olga", "Otto", "Paula", "Pavel", "Quentin", "Rosa", "Rufus", "Selma",
    "Stefan", "Tamara", "Theo", "Ursula", "Ulric", "Vera", "Victor", "Wanda", "Walter", "Xenia", "Yvonne", "Zeno",
)  # fmt: skip
_OBJECTS = (
    "basket", "book", "bottle", "bowl", "broom", "brush", "candle", "chisel", "clock", "compass", "cup", "dagger",
    "drum", "fan", "flute", "hammer", "jar", "kettle", "knife", "ladder", "lamp", "lantern", "letter", "mirror",
    "needle", "oar", "pencil", "pillow", "plate", "ribbon", "ring", "rope", "saddle", "shovel", "spoon", "violin",
)  # fmt: skip
_WORD = re.compile(r"\w+")
_CAPITAL = re.compile(r"\b[A-Z]\w+")
_NO_PERSON = frozenset(("The", "It", "There"))


@dataclass(frozen=True)
class HiddenStory:
    """Sentences in order, and the places of the supporting facts among them, increasing."""

    sentences: tuple[str, ...]
    gold: tuple[int, ...]


def hide_story(
    stories: Stories, number: int, filler: Filler, num_sentences: int, rng: np.random.Generator
) -> HiddenStory:
    """The facts of a question in their order, at places drawn uniformly without replacement, filler between them.

    Args:
        filler: sentences of the other places, in the filler's order.
        rng: consumed.
    """
    facts = stories.fact_texts(number)
    if len(facts) > num_sentences:
        raise UsageError(
            f"question {stories.query_ids[number]}: {len(facts)} facts do not fit into {num_sentences} sentences; "
            "leave it out, or take more chunks"
        )
    places = np.sort(rng.choice(num_sentences, len(facts), replace=False))
    sentences = np.array(["" for _ in range(num_sentences)], object)
    is_fact = np.zeros(num_sentences, bool)
    is_fact[places] = True
    sentences[is_fact] = facts
    sentences[~is_fact] = filler(number, num_sentences - len(facts), rng)
    return HiddenStory(tuple(sentences), tuple(int(places[gold]) for gold in stories.gold[number]))


def stories_filler(stories: Stories) -> Filler:
    """Other whole stories of the same file, each with its own persons and objects, so no facts contradict.

    Persons are the words with a capital letter, objects those of bAbI; places keep their names. Where a filler needs
    more stories than there are names, names are used again.
    """
    story_of = story_numbers(stories)
    # The last question of a story sees all of its facts.
    last = np.flatnonzero(np.diff(story_of, append=len(stories))).tolist()
    persons = tuple(sorted({word for text in stories.texts for word in _CAPITAL.findall(text)} - _NO_PERSON))
    if len(last) < 2:
        raise UsageError("filler stories: the file has one story only; give one with more, or a haystack")

    def fill(number: int, size: int, rng: np.random.Generator) -> list[str]:
        sentences: list[str] = []
        people, objects = rng.permutation(_PEOPLE), rng.permutation(_OBJECTS)
        others = [story for story in rng.permutation(len(last)).tolist() if story != story_of[number]]
        turn = 0
        while len(sentences) < size:
            names = _others(persons, people, turn) | _others(BABI_VOCABULARY.objects, objects, turn)
            told = stories.fact_texts(last[others[turn % len(others)]])
            sentences += [_WORD.sub(lambda word: names.get(word[0], word[0]), sentence) for sentence in told]  # noqa: B023
            turn += 1
        return sentences[:size]

    return fill


def haystack_filler(haystack: Haystack) -> Filler:
    """Consecutive sentences of a document, or of several where one ends.

    Args:
        haystack: without the facts of the stories (`Haystack.without`).
    """

    def fill(number: int, size: int, rng: np.random.Generator) -> list[str]:
        sentences: list[str] = []
        while len(sentences) < size:
            start = int(rng.integers(len(haystack)))
            stop = min(int(haystack.ends[start]), start + size - len(sentences))
            sentences += haystack.sentences[start:stop]
        return sentences

    return fill


def _others(words: tuple[str, ...], names: np.ndarray, turn: int) -> dict[str, str]:
    """Other names of the words, those of each turn behind those of the one before."""
    first = turn * len(words)
    return {word: str(names[(first + number) % len(names)]) for number, word in enumerate(words)}
