"""Controlled tasks for planners: which levels a kind of question needs is hidden, and known to the task.

    task = PlanTask(PlanTaskConfig(), seed=0)
    records = task.sample(np.random.default_rng(0), 24)
    answer = task.trace(records[0])

Every kind of question has a word, a class and so a right range of levels; kinds occur by Zipf's law. A prompt is the
kind's word among words that mean nothing. An answer names the class, says why, and ends with the range as JSON:

    This is a step question. Its answer spans two levels. So read from paragraph to sentence here. {"largest_...": ...}

Two sources of answers are imperfect. Traces of the teacher (`trace`) name the right class, but a share of them widens
the range by one level. The answers that the start policy learns (`start_examples`) are right for some classes; for a
kind of another class they mostly give one fixed range, which shares an end with the right one.

With `documents: 3` a prompt holds three questions, and the answer three plans in a list. Nothing is right unless all
three are, so a right answer is seldom found by chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from qrag_jax.chunking.tree.level_ranges import NAMES, LevelRange, all_ranges, full_range
from qrag_jax.chunking.tree.plan_texts import plan_json
from qrag_jax.data.corpora.stitch import named_rng
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.types import UsageError, check_fields

Record = Mapping[str, Any]
SPLITS = ("train", "eval")
HINT = "Hint:"
_UNKNOWN, _END = "<|unknown|>", "<|end|>"
_ROLES = ("system", "user", "assistant")
_CHAT = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_NOISE = ("please", "tell", "me", "about", "the", "of", "this", "now", "again", "what", "how", "then")
_GENRES = ("report", "novel", "manual", "letter", "paper", "contract")
_TOPICS = ("trade", "weather", "music", "law", "health", "travel")
_PLACES = ("first", "second", "third", "fourth")
_RANGES = tuple(one for one in all_ranges(NAMES) if one != full_range(NAMES))  # the widest could not be widened
_CLASSES = (
    "gist", "layout", "survey", "plot", "topic", "method", "thesis", "proof", "step", "cause", "reason", "claim",
    "number", "lookup",
)  # fmt: skip
_WIDTHS = ("one level", "two levels", "three levels", "four levels", "five levels")
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class PlanTaskConfig:
    """A controlled task.

    Attributes:
        kinds: of questions.
        zipf: exponent of their frequencies; 0 makes all equal.
        noise: words of a prompt that mean nothing.
        wide_traces: share of the teacher's ranges that are one level too wide.
        start_share: share of the classes on which the start policy is right.
        start_doubt: of the answers that the start policy learns for other classes, the share that is a random range
            in place of the fixed one of the kind.
        documents: questions in a prompt.
        train_prompts: size of the split `train`.
        repeats: prompts of each kind in the split `eval`.
    """

    kinds: int = 120
    zipf: float = 1.0
    noise: int = 6
    wide_traces: float = 0.5
    start_share: float = 0.5
    start_doubt: float = 0.3
    documents: int = 1
    train_prompts: int = 2_000
    repeats: int = 2

    def __post_init__(self) -> None:
        check_fields(
            self,
            "task",
            positive=("kinds", "documents", "train_prompts", "repeats"),
            shares=("wide_traces", "start_share", "start_doubt"),
            within={"zipf": "[0, inf)"},
            at_least={"noise": 0},
        )
        for name, most in (("kinds", len(_CONSONANTS) ** 2 * len(_VOWELS) ** 2), ("documents", len(_PLACES))):
            if getattr(self, name) > most:
                raise UsageError(f"at most {most}", field=f"task.{name}", value=getattr(self, name))


class PlanTask:
    """Prompts, labels and traces of a controlled task; everything follows from the config and the seed.

    Attributes:
        names: of the levels, the coarsest first.
        frequencies: of the kinds, float64 [kinds]; they sum to 1.
        right: the right range of each kind.
        is_known: bool [kinds]: the class of the kind is among those on which the start policy is right.
        belief: the range that the start policy mostly gives for each kind.
    """

    names = NAMES

    def __init__(self, config: PlanTaskConfig | None = None, seed: int = 0) -> None:
        """Args:
        config: None takes the defaults.
        seed: of the words, the classes of the kinds and the splits.
        """
        self.config, self.seed = config or PlanTaskConfig(), seed
        rng = named_rng(seed, "plan task")
        weights = 1.0 / np.arange(1, self.config.kinds + 1) ** self.config.zipf
        self.frequencies = weights / weights.sum()
        syllables = ["".join(pair) for pair in product(_CONSONANTS, _VOWELS)]
        words = ["".join(pair) for pair in product(syllables, repeat=2)]
        self.words = tuple(str(word) for word in rng.permutation(words)[: self.config.kinds])
        order = rng.permutation(len(_RANGES))
        num_known = round(self.config.start_share * len(_RANGES))
        known, other = order[:num_known], order[num_known:]
        self.is_known = _balanced(self.frequencies, num_known / len(_RANGES))
        self.right = tuple(_RANGES[rng.choice(known if is_known else other)] for is_known in self.is_known)
        self.belief = tuple(
            one if is_known else _plausible(one, rng) for one, is_known in zip(self.right, self.is_known, strict=True)
        )

    def records(self, split: str) -> Sequence[Record]:
        """The fixed prompts of a split.

        Args:
            split: `train`, drawn by frequency; or `eval`, whose records have a `weight` in the accuracy by frequency
                and a `macro` weight in the mean over kinds (`accuracies`).
        """
        if split not in SPLITS:
            raise UsageError(f"choose one of {', '.join(SPLITS)}", field="split", value=split)
        rng = named_rng(self.seed, "plan task", split)
        return self.sample(rng, self.config.train_prompts) if split == "train" else self._evaluation(rng)

    def sample(self, rng: np.random.Generator, n: int) -> list[Record]:
        """Draws prompts by the frequency of their kinds, each with its label."""
        drawn = rng.choice(self.config.kinds, (n, self.config.documents), p=self.frequencies)
        return [self._record(kinds, rng) for kinds in drawn.tolist()]

    def trace(self, record: Record) -> str:
        """The teacher's answer to a prompt: the right classes, and ranges of which some are one level too wide.

        The same prompt always gets the same answer.
        """
        rng = named_rng(self.seed, "plan task", "trace", record["messages"][-1]["content"])
        right = [self.right[kind] for kind in record["kinds"]]
        wide = rng.random(len(right)) < self.config.wide_traces
        return _answer(right, [_widened(one) if is_wide else one for one, is_wide in zip(right, wide, strict=True)])

    def start_examples(self, rng: np.random.Generator, n: int, hinted: float = 0.25) -> list[dict[str, Any]]:
        """Chats from which a start policy learns the format, some of the classes, and to follow a hint.

        Args:
            rng: draws them; kinds are uniform.
            n: number of chats.
            hinted: share of chats with a hint: the first sentences of a trace about random classes, whatever the kinds
                are, so that it teaches nothing about them.
        """
        examples = []
        for _ in range(n):
            kinds = rng.integers(self.config.kinds, size=self.config.documents).tolist()
            messages = self._record(kinds, rng)["messages"]
            levels = [self._started(kind, rng) for kind in kinds]
            if rng.random() < hinted:
                told = rng.integers(1, len(_sentences(levels, levels)))  # sentences
                levels = [_any(rng) if place < told else one for place, one in enumerate(levels)]
                messages = with_hint(messages, " ".join(_sentences(levels, levels)[:told]))
            answer = {"role": "assistant", "content": _answer(levels, levels)}
            examples.append({"messages": [*messages, answer]})
        return examples

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word that a prompt, a hint or an answer may hold."""
        texts = [_answer([_RANGES[0]] * n, [one] * n) for one in all_ranges(NAMES) for n in (1, len(_PLACES))]
        texts += [_sentence(name) for name in _CLASSES]
        said = dict.fromkeys(word for text in texts for word in text.split())
        return (*self.words, *dict.fromkeys((*_NOISE, *_GENRES, *_TOPICS, ";", "document:", HINT, *said)))

    def tokenizer(self) -> DecoderTokenizer:
        """A tokenizer over the words of the task, with a small chat template; a text is its words with blanks."""
        marks = [_UNKNOWN, _END, *(f"<|{role}|>" for role in _ROLES)]
        words = {word: number for number, word in enumerate((*marks, *self.vocabulary))}
        tokenizer = Tokenizer(WordLevel(words, unk_token=_UNKNOWN))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        tokenizer.add_special_tokens(marks)
        return DecoderTokenizer(tokenizer, eos_token=_END, chat_template=_CHAT, source="words of the plan task")

    def _started(self, kind: int, rng: np.random.Generator) -> LevelRange:
        """A range that the start policy learns for a kind."""
        doubts = not self.is_known[kind] and rng.random() < self.config.start_doubt
        return _any(rng) if doubts else self.belief[kind]

    def _evaluation(self, rng: np.random.Generator) -> Sequence[Record]:
        """One document: every kind, weighted. Several: a half drawn by frequency, a half with every kind."""
        num_kinds, repeats = self.config.kinds, self.config.repeats
        size = num_kinds * repeats
        orders = [rng.permutation(num_kinds) for _ in range(repeats * self.config.documents)]
        every = np.concatenate(orders).reshape(self.config.documents, size).T
        if self.config.documents == 1:
            weights = self.frequencies[every[:, 0]] / repeats
            return [
                {**self._record(kinds, rng), "weight": float(weight), "macro": 1 / size}
                for kinds, weight in zip(every.tolist(), weights, strict=True)
            ]
        by_frequency = [{**record, "weight": 1 / size, "macro": 0.0} for record in self.sample(rng, size)]
        return by_frequency + [
            {**self._record(kinds, rng), "weight": 0.0, "macro": 1 / size} for kinds in every.tolist()
        ]

    def _record(self, kinds: Sequence[int], rng: np.random.Generator) -> Record:
        content = " ; ".join(self._question(self.words[kind], rng) for kind in kinds)
        pairs = [[self.right[kind].least, self.right[kind].most] for kind in kinds]
        label = pairs[0] if self.config.documents == 1 else pairs
        messages = [{"role": "user", "content": content}]
        return {"messages": messages, "answer": None, "label": label, "kinds": list(kinds)}

    def _question(self, word: str, rng: np.random.Generator) -> str:
        noise = [str(one) for one in rng.choice(_NOISE, self.config.noise // self.config.documents)]
        noise.insert(rng.integers(len(noise) + 1), word)
        return " ".join([*noise, "document:", str(rng.choice(_GENRES)), str(rng.choice(_TOPICS))])


def accuracies(records: Sequence[Record], correct: Sequence[float]) -> tuple[float, float]:
    """The accuracy by frequency and the mean over kinds.

    Args:
        records: all of the split `eval`.
        correct: 1 or 0 for each.
    """
    pairs = list(zip(records, correct, strict=True))
    return sum(record["weight"] * one for record, one in pairs), sum(record["macro"] * one for record, one in pairs)


def with_hint(messages: Sequence[Mapping[str, str]], hint: str) -> list[dict[str, str]]:
    """The conversation with a hint at the end of its last message."""
    last = {**messages[-1], "content": f"{messages[-1]['content']} {HINT} {hint}"}
    return [*map(dict, messages[:-1]), last]


def _balanced(frequencies: np.ndarray, share: float) -> np.ndarray:
    """Marks kinds so that those marked have about this share of all questions: each goes where more is lacking."""
    if share in (0, 1):
        return np.full(len(frequencies), bool(share))
    lacking = np.array([1 - share, share])
    marked = np.zeros(len(frequencies), bool)
    for place, frequency in enumerate(frequencies):
        marked[place] = lacking[1] >= lacking[0]
        lacking[int(marked[place])] -= frequency
    return marked


def _any(rng: np.random.Generator) -> LevelRange:
    return _RANGES[rng.integers(len(_RANGES))]


def _plausible(right: LevelRange, rng: np.random.Generator) -> LevelRange:
    near = [one for one in _RANGES if one.least == right.least or one.most == right.most]
    return near[rng.integers(len(near))]


def _widened(levels: LevelRange) -> LevelRange:
    """One level more: a coarser one, or a finer one where there is no coarser."""
    return LevelRange(levels.least - 1, levels.most) if levels.least else LevelRange(0, levels.most + 1)


def _name(levels: LevelRange) -> str:
    """The class of questions that need this range."""
    return _CLASSES[_RANGES.index(levels)]


def _sentence(name: str, place: str = "") -> str:
    return f"The {place} is a {name} question." if place else f"This is a {name} question."


def _sentences(classes: Sequence[LevelRange], written: Sequence[LevelRange]) -> list[str]:
    if len(classes) > 1:
        return [_sentence(_name(one), place) for one, place in zip(classes, _PLACES, strict=False)]
    (levels,) = written
    reading = f"So read from {NAMES[levels.least]} to {NAMES[levels.most]} here."
    return [_sentence(_name(classes[0])), f"Its answer spans {_WIDTHS[levels.most - levels.least]}.", reading]


def _answer(classes: Sequence[LevelRange], written: Sequence[LevelRange]) -> str:
    plans = [plan_json(one, NAMES) for one in written]
    ending = plans[0] if len(plans) == 1 else f"[ {' , '.join(plans)} ]"
    return " ".join([*_sentences(classes, written), ending])
