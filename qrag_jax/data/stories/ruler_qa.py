"""The QA tasks of RULER: the gold paragraphs of a question among paragraphs of others, up to a number of tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qrag_jax.data.stories.ruler import TASKS
from qrag_jax.data.stories.ruler_context import RulerQuestion, TokenCounts, too_short
from qrag_jax.types import Arg, UsageError

_FEWEST_PARAGRAPHS = 4  # besides the gold ones, in the shortest context
_REST = 0.01  # share of its tokens that a context may leave free


@dataclass(frozen=True)
class QaQuestion:
    """A question, the texts of its gold paragraphs, and its reference answers."""

    id: str
    text: str
    gold: tuple[str, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True)
class QaSet:
    """Questions and paragraphs of a data set.

    Attributes:
        name: of the file, for errors.
        questions: at least one.
        titles: of the text of every paragraph, its title.
        is_one_title: one paragraph has each title, so another one under a gold title is a copy of the gold paragraph.
    """

    name: str
    questions: Sequence[QaQuestion]
    titles: Mapping[str, str]
    is_one_title: bool

    @cached_property
    def distinct(self) -> list[tuple[str, str, str]]:
        """(text, title, key) of the paragraphs; of those that differ in case or white space only, the first one."""
        found: dict[str, tuple[str, str, str]] = {}
        for text, title in self.titles.items():
            found.setdefault(_key(text), (text, title, _key(text)))
        return list(found.values())


def qa_questions(
    task: str, data: QaSet, num_tokens: int, num_questions: int, seed: int, counts: TokenCounts
) -> list[RulerQuestion]:
    """Drawn questions of a set, at most all of them. A question does not depend on how many are drawn.

    Args:
        task: of `QA`.
        num_tokens: most tokens of a context.
        seed: draws the questions, the other paragraphs and the order.

    Raises:
        UsageError: the length is too small for a question, or the set has too few paragraphs for it.
    """
    number = TASKS.index(task)
    drawn = np.random.default_rng([seed, number]).permutation(len(data.questions))[:num_questions].tolist()
    sizes = np.array(counts([text for text, _, _ in data.distinct]))
    longest = max(sum(counts(data.questions[i].gold)) for i in drawn)
    room = longest + _FEWEST_PARAGRAPHS * int(np.ceil(sizes.mean()))
    if num_tokens < room:
        raise too_short(task, num_tokens, room)
    return [
        _composed(data, data.questions[i], sizes, num_tokens, counts, np.random.default_rng([seed, number, 1 + i]))
        for i in drawn
    ]


def _composed(
    data: QaSet, asked: QaQuestion, sizes: np.ndarray, num_tokens: int, counts: TokenCounts, rng: np.random.Generator
) -> RulerQuestion:
    gold_keys = {_key(text) for text in asked.gold}
    gold_titles = {data.titles[text] for text in asked.gold} if data.is_one_title else set()
    chosen, room = [(text, data.titles[text], True) for text in asked.gold], num_tokens - sum(counts(asked.gold))
    any_too_large = False
    for i in rng.permutation(len(sizes)).tolist():
        text, title, key = data.distinct[i]
        if key in gold_keys or title in gold_titles:
            continue
        if sizes[i] <= room:
            chosen.append((text, title, False))
            room -= int(sizes[i])
        else:
            any_too_large = True
        if room < _REST * num_tokens:
            break
    used = num_tokens - room
    if room >= _REST * num_tokens and not any_too_large:
        reason = f"{data.name} has only {used:,} tokens for a context; give a larger file, or "
        most = Arg("num_tokens", used)
        raise UsageError((Arg("num_tokens", num_tokens), ": ", reason, most), field="num_tokens", value=num_tokens)
    mixed = [chosen[i] for i in rng.permutation(len(chosen))]
    texts, titles, is_gold = zip(*mixed, strict=True)
    gold = tuple(i for i, one in enumerate(is_gold) if one)
    return RulerQuestion(asked.id, asked.text, texts, titles, gold, asked.answers, used)


def _key(text: str) -> str:
    return " ".join(text.split()).casefold()
