"""Stories: questions over ordered facts, every distinct sentence interned once so that it is embedded once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.types import InputError


@dataclass(frozen=True)
class Stories:
    """Questions, the facts each one is asked over, and the facts that answer it.

    Attributes:
        texts: distinct fact sentences; a sentence may belong to no story (a simulator interns its whole language).
        questions: distinct question texts.
        facts: per question, int32 ids into `texts` in story order.
        question_ids: int32 [n], ids into `questions`.
        gold: per question, sorted int32 positions within `facts[i]`; at least one.
        answers: per question.
        query_ids: unique per question.
        num_left_out: questions that the maker of these stories left out on request (too many facts).

    Raises:
        InputError: on construction, if lengths differ, an id or a support fact does not exist, or an id is repeated.
    """

    texts: tuple[str, ...]
    questions: tuple[str, ...]
    facts: tuple[np.ndarray, ...]
    question_ids: np.ndarray
    gold: tuple[np.ndarray, ...]
    answers: tuple[str, ...]
    query_ids: tuple[str, ...]
    num_left_out: int = 0

    def __post_init__(self) -> None:
        _check_lengths(self)
        for i, query_id in enumerate(self.query_ids):
            _check_question(query_id, self.facts[i], self.gold[i], len(self.texts))
        if len(set(self.query_ids)) != len(self.query_ids):
            repeated = next(q for q in self.query_ids if self.query_ids.count(q) > 1)
            raise InputError(f"query id {repeated!r} is used twice; give every question its own id")

    def __len__(self) -> int:
        return len(self.query_ids)

    @property
    def num_facts(self) -> np.ndarray:
        """Number of facts at question time, int64 [n]."""
        return np.fromiter((len(facts) for facts in self.facts), np.int64, len(self.facts))

    def fact_texts(self, index: int) -> list[str]:
        """The facts of question `index` as text, in story order."""
        return [self.texts[i] for i in self.facts[index]]

    def question(self, index: int) -> str:
        """The text of question `index`."""
        return self.questions[self.question_ids[index]]


def _check_lengths(stories: Stories) -> None:
    sizes = {name: len(getattr(stories, name)) for name in ("facts", "question_ids", "gold", "answers", "query_ids")}
    if len(set(sizes.values())) != 1:
        raise InputError(f"stories need one entry per question in every field, got {sizes}")
    ids = stories.question_ids
    if len(ids) and not (0 <= int(ids.min()) and int(ids.max()) < len(stories.questions)):
        raise InputError(f"question_ids must lie in [0, {len(stories.questions)}), got {ids.min()}..{ids.max()}")
    if len(set(stories.texts)) != len(stories.texts) or len(set(stories.questions)) != len(stories.questions):
        raise InputError("texts and questions must be distinct: intern each sentence once")


def _check_question(query_id: str, facts: np.ndarray, gold: np.ndarray, num_texts: int) -> None:
    if not len(facts) or int(facts.min()) < 0 or int(facts.max()) >= num_texts:
        raise InputError(f"question {query_id}: its facts must be ids in [0, {num_texts}), got {facts.tolist()}")
    positions = gold.tolist()
    if not positions or positions != sorted(set(positions)):
        raise InputError(f"question {query_id}: gold must be sorted distinct positions, at least one, got {positions}")
    if positions[0] < 0 or positions[-1] >= len(facts):
        raise InputError(
            f"question {query_id}: support fact {positions[-1] if positions[0] >= 0 else positions[0]} does not exist; "
            f"the story has {len(facts)} facts at question time (positions 0..{len(facts) - 1})"
        )


class StoriesBuilder:
    """Collects questions one by one and interns their texts; `build` returns the `Stories`."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._questions: dict[str, int] = {}
        self._rows: list[tuple[np.ndarray, int, np.ndarray, str, str]] = []

    def intern(self, text: str) -> int:
        """The id of a fact sentence; the same text always has the same id."""
        return self._texts.setdefault(text, len(self._texts))

    def add(self, query_id: str, facts: np.ndarray, question: str, answer: str, gold: Sequence[int]) -> None:
        """Adds one question over interned facts; `gold` are positions within `facts`, in any order."""
        question_id = self._questions.setdefault(question, len(self._questions))
        self._rows.append((facts, question_id, np.asarray(sorted(set(gold)), np.int32), answer, query_id))

    def build(self, num_left_out: int = 0) -> Stories:
        """The validated stories, in the order of `add`."""
        facts, question_ids, gold, answers, query_ids = zip(*self._rows, strict=True) if self._rows else ((),) * 5
        return Stories(
            texts=tuple(self._texts),
            questions=tuple(self._questions),
            facts=tuple(facts),
            question_ids=np.asarray(question_ids, np.int32),
            gold=tuple(gold),
            answers=tuple(answers),
            query_ids=tuple(query_ids),
            num_left_out=num_left_out,
        )


def select(stories: Stories, ids: Sequence[int] | np.ndarray) -> Stories:
    """The questions `ids` (indices or a boolean mask [n]) in that order, over the same text table."""
    chosen = np.asarray(ids)
    if chosen.dtype == bool:
        if chosen.shape != (len(stories),):
            raise InputError(f"a mask over {len(stories)} questions must have that length, got {chosen.shape}")
        chosen = np.flatnonzero(chosen)
    chosen = chosen.astype(np.int64)
    if len(chosen) and not (0 <= int(chosen.min()) and int(chosen.max()) < len(stories)):
        raise InputError(f"question indices must lie in [0, {len(stories)}), got {chosen.min()}..{chosen.max()}")
    return Stories(
        texts=stories.texts,
        questions=stories.questions,
        facts=tuple(stories.facts[i] for i in chosen),
        question_ids=stories.question_ids[chosen],
        gold=tuple(stories.gold[i] for i in chosen),
        answers=tuple(stories.answers[i] for i in chosen),
        query_ids=tuple(stories.query_ids[i] for i in chosen),
        num_left_out=stories.num_left_out,
    )


def hold_out(stories: Stories, share: float, seed: int) -> tuple[Stories, Stories]:
    """Splits questions into (kept, held out) by story: questions over one story, whose facts grow, stay together.

    A held-out question that is asked over the same facts on the other side too is left out of the held-out part.

    Args:
        stories: in the order in which they were read; questions over one story follow each other.
        share: of the stories, in (0, 1); at least one is held out.
        seed: another seed holds out other stories.
    """
    story = story_numbers(stories)
    num_stories = int(story[-1]) + 1 if len(stories) else 0
    if num_stories < 2:
        raise InputError(f"{num_stories} story cannot be split into a part to train on and a part to hold out")
    size = min(max(1, round(share * num_stories)), num_stories - 1)
    held = np.isin(story, np.random.default_rng([seed, 4]).permutation(num_stories)[:size])
    asked = [(int(stories.question_ids[i]), stories.facts[i].tobytes()) for i in range(len(stories))]
    known = {content for content, out in zip(asked, held, strict=True) if not out}
    fresh = held & np.fromiter((content not in known for content in asked), bool, len(asked))
    if not fresh.any():
        raise InputError(
            f"all {held.sum()} questions that would be held out are in the training part too: hold out more of them"
        )
    return select(stories, ~held), select(stories, fresh)


def without(stories: Stories, others: Stories) -> Stories:
    """The questions of `stories` that `others` does not ask over the same facts; their text tables may differ."""
    known = {(others.question(i), *others.fact_texts(i)) for i in range(len(others))}
    fresh = [(stories.question(i), *stories.fact_texts(i)) not in known for i in range(len(stories))]
    return select(stories, np.array(fresh, bool))


def story_numbers(stories: Stories) -> np.ndarray:
    """int64 [n]: a question continues the story before it if its facts begin with all facts of that question."""
    starts = np.ones(len(stories), bool)
    for i in range(1, len(stories)):
        before, now = stories.facts[i - 1], stories.facts[i]
        starts[i] = len(now) < len(before) or not np.array_equal(now[: len(before)], before)
    return np.cumsum(starts) - 1


def concatenate(parts: Sequence[Stories]) -> Stories:
    """All questions of `parts` in order, over one text table in which every sentence has one id."""
    if not parts:
        raise InputError("concatenate needs at least one Stories")
    texts: dict[str, int] = {}
    questions: dict[str, int] = {}
    facts: list[np.ndarray] = []
    question_ids: list[np.ndarray] = []
    for part in parts:
        new_id = np.asarray([texts.setdefault(text, len(texts)) for text in part.texts], np.int32)
        new_question = np.asarray([questions.setdefault(text, len(questions)) for text in part.questions], np.int32)
        facts.extend(new_id[row] for row in part.facts)
        question_ids.append(new_question[part.question_ids])
    return Stories(
        texts=tuple(texts),
        questions=tuple(questions),
        facts=tuple(facts),
        question_ids=np.concatenate(question_ids).astype(np.int32),
        gold=tuple(gold for part in parts for gold in part.gold),
        answers=tuple(answer for part in parts for answer in part.answers),
        query_ids=tuple(query_id for part in parts for query_id in part.query_ids),
        num_left_out=sum(part.num_left_out for part in parts),
    )
