"""Simulated worlds in which people move, take and drop things, with one-, two- and three-fact questions.

The process was inferred from the bAbI files, so stories are equally hard (benchmarks/qrag/results/worlds_vs_babi.md).
People and objects start at hidden random places; an action is drawn by rejection (kind, then person, each uniform,
until it is possible); after every second fact a question is drawn about one of the last five facts, if any of them
allows one.

    one fact    "Where is P?"                 the last move of P
    two facts   "Where is the O?"             the last event e of O and the move that explains its place: if O was
                                              dropped, the last move of the dropper before e; if it is carried, the
                                              last move of the holder, which must come after e
    three facts "Where was the O before the L?"  the last event e of O, the latest move into L that carried O, and the
                                              carrying move just before that one; all of one holder
"""

import hashlib
import random
from collections.abc import Sequence

import numpy as np

from qrag_jax.data.stories.stories import Stories, StoriesBuilder
from qrag_jax.data.stories.vocabulary import BABI_VOCABULARY, Language, WorldVocabulary, make_language
from qrag_jax.types import UsageError

_SPLIT_SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}
FACTS_PER_TICK = 2  # a question may be asked after every second fact, as in bAbI
RECENT_FACTS = 5  # a question is about an event among the last five facts
_MAX_FACTS = 5_000  # a story this long is given up; bAbI's longest has 228 facts
_MAX_FRUITLESS = 10_000  # so many stories in a row without a question: the vocabulary is too small


def simulate_stories(
    num_facts: int,
    num_questions: int,
    seed: int,
    split: str = "train",
    vocabulary: WorldVocabulary = BABI_VOCABULARY,
    questions_per_story: int = 5,
    max_facts: int | None = None,
) -> Stories:
    """Simulates worlds until `num_questions` questions are asked; the same arguments give the same stories.

    Splits are disjoint by construction: a hash of the first two facts of a story decides its split, so no (facts,
    question) of one split occurs in another, whatever the seeds. `texts` is the whole language of the task and the
    same for every seed and split.

    Args:
        num_facts: supporting facts per question: 1, 2 or 3.
        num_questions: number of questions to return.
        questions_per_story: a story continues until it has asked this many questions.
        max_facts: leave out questions over more facts than this; `Stories.num_left_out` counts them.
    """
    _check_arguments(num_facts, num_questions, split, questions_per_story, max_facts)
    language = make_language(vocabulary, num_facts)
    builder = StoriesBuilder()
    for text in language.texts:
        builder.intern(text)
    asked = left_out = story = fruitless = 0
    while asked < num_questions:
        # Every story has its own stream, so that leaving one out changes no other. A str seeds by SHA-512.
        rng = random.Random(f"qrag_jax worlds {num_facts} {split} {seed} {story}")
        world = _World(vocabulary, language, num_facts, rng)
        questions = world.tell(split, questions_per_story, max_facts or _MAX_FACTS)
        fruitless = 0 if questions else fruitless + 1
        if fruitless > _MAX_FRUITLESS:
            raise UsageError(
                f"worlds of {num_facts} facts: {fruitless} stories in a row without a question in split {split!r} "
                f"({asked} questions so far, max_facts={max_facts}); raise max_facts or give the vocabulary more words"
            )
        facts = np.asarray(world.facts, np.int32)
        for number, (length, question, answer, gold) in enumerate(questions[: num_questions - asked]):
            builder.add(f"worlds{num_facts}-{split}-{seed}:{story}.{number}", facts[:length], question, answer, gold)
        asked += min(len(questions), num_questions - asked)
        left_out += questions_per_story - len(questions) if world.is_of_split else 0
        story += 1
    return builder.build(left_out)


def split_of(texts: Sequence[str], facts: Sequence[int] | np.ndarray) -> str:
    """The split of the stories that start like `facts` (ids into `texts`): a hash of the first two sentences."""
    opening = "\n".join(texts[fact] for fact in facts[:FACTS_PER_TICK])
    share, total = int.from_bytes(hashlib.sha256(opening.encode()).digest()[:8], "big") / 2**64, 0.0
    for split, size in _SPLIT_SHARES.items():
        total += size
        if share < total:
            return split
    return "test"


_Question = tuple[int, str, str, tuple[int, ...]]  # facts at question time, question, answer, gold positions
_MOVE, _GET, _DROP = range(3)


class _World:
    """One story: the place of each person and object, the facts so far, and the possible questions."""

    def __init__(self, vocabulary: WorldVocabulary, language: Language, num_facts: int, rng: random.Random) -> None:
        self.vocabulary, self.language, self.num_facts, self.rng = vocabulary, language, num_facts, rng
        self.is_of_split = True
        self.facts: list[int] = []  # sentence ids
        self.events: list[tuple[int, int, int]] = []  # per fact: kind, person, place or object
        self.place = [self._draw(len(vocabulary.places)) for _ in vocabulary.people]
        self.object_place = [self._draw(len(vocabulary.places)) for _ in vocabulary.objects]
        self.holder: list[int | None] = [None for _ in vocabulary.objects]
        self.last_move: list[tuple[int, int] | None] = [None for _ in vocabulary.people]  # (fact, place), if told
        self.last_event = [-1 for _ in vocabulary.objects]
        self.drop_move: list[tuple[int, int] | None] = [None for _ in vocabulary.objects]
        self.carried: list[list[tuple[int, int]]] = [[] for _ in vocabulary.objects]  # moves since the last get

    def tell(self, split: str, num_questions: int, max_facts: int) -> list[_Question]:
        """Acts and asks until `num_questions` are asked, or all to come would see more than `max_facts` facts.

        No question at all if the story is of another split.
        """
        questions: list[_Question] = []
        while len(questions) < num_questions and len(self.facts) + FACTS_PER_TICK <= max_facts:
            for _ in range(FACTS_PER_TICK):
                self._act()
            if len(self.facts) == FACTS_PER_TICK and split_of(self.language.texts, self.facts) != split:
                self.is_of_split = False
                return []
            question = self._ask()
            if question is not None:
                questions.append((len(self.facts), *question))
        return questions

    def _draw(self, num: int) -> int:
        return int(self.rng.random() * num)

    def _act(self) -> None:
        """Draws kind, person and argument until the action is possible, and tells it."""
        while True:
            kind = _MOVE if self.num_facts == 1 else self._draw(3)
            person = self._draw(len(self.place))
            if kind == _MOVE:
                place = self._draw(len(self.vocabulary.places))
                if place != self.place[person]:
                    return self._move(person, place)
                continue
            here = self.place[person]
            if kind == _GET:
                options = [o for o, at in enumerate(self.object_place) if at == here and self.holder[o] is None]
            else:
                options = [o for o, holder in enumerate(self.holder) if holder == person]
            if options:
                return self._handle(kind, person, options[self._draw(len(options))])

    def _move(self, person: int, place: int) -> None:
        move = (len(self.facts), place)
        self.place[person], self.last_move[person] = place, move
        for thing, holder in enumerate(self.holder):
            if holder == person:
                self.carried[thing].append(move)
        self._say(_MOVE, person, place, self.language.moves[person][place])

    def _handle(self, kind: int, person: int, thing: int) -> None:
        self.last_event[thing] = len(self.facts)
        if kind == _GET:
            self.holder[thing], self.carried[thing] = person, []
        else:
            self.holder[thing], self.object_place[thing] = None, self.place[person]
            self.drop_move[thing] = self.last_move[person]
        variants = self.language.gets if kind == _GET else self.language.drops
        self._say(kind, person, thing, variants[person][thing])

    def _say(self, kind: int, person: int, argument: int, variants: list[int]) -> None:
        self.facts.append(variants[self._draw(len(variants))])
        self.events.append((kind, person, argument))

    def _ask(self) -> tuple[str, str, tuple[int, ...]] | None:
        """A question drawn over the recent facts that allow one: (question, answer, gold), or None."""
        recent = self.events[-RECENT_FACTS:]
        if self.num_facts == 1:
            options = [self._where_is_person(person) for _, person, _ in recent]
        else:
            about = self._where_is_object if self.num_facts == 2 else self._where_was_object
            options = [option for kind, _, thing in recent if kind != _MOVE for option in about(thing)]
        return options[self._draw(len(options))] if options else None

    def _where_is_person(self, person: int) -> tuple[str, str, tuple[int, ...]]:
        fact, place = self.last_move[person] or (0, 0)  # a person of a recent fact has moved
        return f"Where is {self.vocabulary.people[person]}?", self.vocabulary.places[place], (fact,)

    def _where_is_object(self, thing: int) -> list[tuple[str, str, tuple[int, ...]]]:
        event, holder = self.last_event[thing], self.holder[thing]
        move = self.drop_move[thing] if holder is None else self.last_move[holder]
        if move is None or (holder is not None and move[0] < event):
            return []
        question = f"Where is the {self.vocabulary.objects[thing]}?"
        return [(question, self.vocabulary.places[move[1]], (event, move[0]))]

    def _where_was_object(self, thing: int) -> list[tuple[str, str, tuple[int, ...]]]:
        moves, options = self.carried[thing], []
        for _, place in moves[1:]:
            last = max(i for i in range(1, len(moves)) if moves[i][1] == place)  # the latest move into L
            before = moves[last - 1]
            question = f"Where was the {self.vocabulary.objects[thing]} before the {self.vocabulary.places[place]}?"
            gold = (self.last_event[thing], moves[last][0], before[0])
            options.append((question, self.vocabulary.places[before[1]], gold))
        return options


def _check_arguments(
    num_facts: int, num_questions: int, split: str, questions_per_story: int, max_facts: int | None
) -> None:
    if num_facts not in (1, 2, 3):
        raise UsageError(f"num_facts must be 1, 2 or 3, got {num_facts}")
    if split not in _SPLIT_SHARES:
        raise UsageError(f"split must be one of {', '.join(_SPLIT_SHARES)}, got {split!r}")
    for name, value in (("num_questions", num_questions), ("questions_per_story", questions_per_story)):
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}")
    if max_facts is not None and max_facts < FACTS_PER_TICK:
        raise UsageError(
            f"max_facts must be at least {FACTS_PER_TICK}, the facts before a first question; got {max_facts}"
        )
