"""Controlled tasks for planners: which levels a kind of question needs is hidden, and known to the task.

    task = PlanTask(PlanTaskConfig(), seed=0)
    answers = [task.trace(record) for record in task.records("train")]

Every kind of question has a word, a class and so a right range of levels; kinds occur by Zipf's law. A prompt is the
kind's word among words that mean nothing. An answer names the class, says why, and ends with the range as JSON:

    This is a step question. Its answer spans two levels. So read from paragraph to sentence here. {"largest_...": ...}

Traces of the teacher (`trace`) name the right class, but a share of them widens the range by one level. The answers
that a start policy learns (`start_examples`) are right for some classes; for a kind of another class they mostly give
one fixed range, which shares an end with the right one. With `documents: 3` a prompt holds three questions and the
answer three plans; it is right if all three are, which is seldom found by chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
HINT = "Hint:"
_UNKNOWN, _END, _ROLES = "<|unknown|>", "<|end|>", ("<|system|>", "<|user|>", "<|assistant|>")
_CHAT = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_NOISE = tuple("please tell me about the of this now again what how then".split())
_GENRES, _TOPICS = "report novel manual letter paper contract".split(), "trade weather music law health travel".split()
_PLACES = ("first", "second", "third", "fourth")
_WIDTHS = ("one level", "two levels", "three levels", "four levels", "five levels")
_RANGES = tuple(one for one in all_ranges(NAMES) if one != full_range(NAMES))  # the widest could not be widened
_CLASSES = "gist layout survey plot topic method thesis proof step cause reason claim number lookup".split()
_SYLLABLES = ["".join(pair) for pair in product("bdfgklmnprstvz", "aeiou")]
_KIND_WORDS = ["".join(pair) for pair in product(_SYLLABLES, repeat=2)]


@dataclass(frozen=True)
class PlanTaskConfig:
    """A controlled task.

    Attributes:
        kinds: of questions.
        zipf: exponent of their frequencies; 0 makes all equal.
        noise: words of a prompt that mean nothing.
        wide_traces: share of the teacher's ranges that are one level too wide.
        start_share: share of the classes on which the start policy is right.
        start_doubt: share of random ranges among the answers that the start policy learns for other classes.
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
        positive, shares = ("train_prompts", "repeats"), ("wide_traces", "start_share", "start_doubt")
        bounds = {"zipf": "[0, inf)", "kinds": f"[1, {len(_KIND_WORDS)}]", "documents": f"[1, {len(_PLACES)}]"}
        check_fields(self, positive=positive, shares=shares, within=bounds, at_least={"noise": 0})


class PlanTask:
    """Prompts, labels and traces of a controlled task; everything follows from the config and the seed.

    Attributes:
        words, frequencies, right: of the kinds: word, share of the questions, right range.
        is_known, belief: the start policy is right on the class of a kind; the range that it mostly gives for it.
    """

    names = NAMES

    def __init__(self, config: PlanTaskConfig | None = None, seed: int = 0) -> None:
        """Takes the default config if there is none."""
        self.config, self.seed = config or PlanTaskConfig(), seed
        rng = named_rng(seed, "plan task")
        weights = 1.0 / np.arange(1, self.config.kinds + 1) ** self.config.zipf
        self.frequencies = weights / weights.sum()
        self.words = tuple(str(word) for word in rng.permutation(_KIND_WORDS)[: self.config.kinds])
        order, num_known = rng.permutation(len(_RANGES)), round(self.config.start_share * len(_RANGES))
        self.is_known = _balanced(self.frequencies, num_known / len(_RANGES))
        classes = [order[num_known:], order[:num_known]]
        self.right = tuple(_RANGES[rng.choice(classes[int(is_known)])] for is_known in self.is_known)
        pairs = zip(self.right, self.is_known, strict=True)
        self.belief = tuple(one if is_known else _plausible(one, rng) for one, is_known in pairs)

    def records(self, split: str) -> Sequence[Record]:
        """The fixed prompts of `train`, drawn by frequency, or of `eval`, with weights for `accuracies`."""
        if split not in ("train", "eval"):
            raise UsageError("choose train or eval", field="split", value=split)
        rng = named_rng(self.seed, "plan task", split)
        return self.sample(rng, self.config.train_prompts) if split == "train" else self._evaluation(rng)

    def sample(self, rng: np.random.Generator, n: int) -> list[Record]:
        """Draws prompts by the frequency of their kinds, each with its label."""
        drawn = rng.choice(self.config.kinds, (n, self.config.documents), p=self.frequencies)
        return [self._record(kinds, rng) for kinds in drawn.tolist()]

    def trace(self, record: Record) -> str:
        """The teacher's answer, the same for the same prompt: the right classes, some ranges one level too wide."""
        rng = named_rng(self.seed, "plan task", "trace", record["messages"][-1]["content"])
        right = [self.right[kind] for kind in record["kinds"]]
        wide = rng.random(len(right)) < self.config.wide_traces
        return _answer(right, [_widened(one) if is_wide else one for one, is_wide in zip(right, wide, strict=True)])

    def start_examples(self, rng: np.random.Generator, n: int, hinted: float = 0.25) -> list[dict[str, Any]]:
        """Chats about uniform kinds, from which a start policy learns the format, some classes, and to follow a hint.

        Args:
            hinted: share with a hint, which names random classes, so that it teaches nothing about the kinds.
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
            examples.append({"messages": [*messages, {"role": "assistant", "content": _answer(levels, levels)}]})
        return examples

    def tokenizer(self) -> DecoderTokenizer:
        """A tokenizer over the words of the task, with a small chat template; a text is its words with blanks."""
        texts = [_answer([_RANGES[0]] * n, [one] * n) for one in all_ranges(NAMES) for n in (1, len(_PLACES))]
        said = [*" ".join(texts).split(), *_CLASSES]
        marks = [_UNKNOWN, _END, *_ROLES]
        words = dict.fromkeys((*marks, *self.words, *_NOISE, *_GENRES, *_TOPICS, ";", "document:", HINT, *said))
        tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=_UNKNOWN))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        tokenizer.add_special_tokens(marks[1:])  # an unknown word is none, else a prompt with one is refused
        return DecoderTokenizer(tokenizer, eos_token=_END, chat_template=_CHAT, source="words of the plan task")

    def _started(self, kind: int, rng: np.random.Generator) -> LevelRange:
        doubts = not self.is_known[kind] and rng.random() < self.config.start_doubt
        return _any(rng) if doubts else self.belief[kind]

    def _evaluation(self, rng: np.random.Generator) -> Sequence[Record]:
        """One document: every kind, weighted. Several: a half drawn by frequency, a half with every kind."""
        num_documents, size = self.config.documents, self.config.kinds * self.config.repeats
        orders = [rng.permutation(self.config.kinds) for _ in range(self.config.repeats * num_documents)]
        every = np.concatenate(orders).reshape(num_documents, size).T.tolist()
        drawn = self.sample(rng, size) if num_documents > 1 else []
        records = [{**record, "weight": 1 / size, "macro": 0.0} for record in drawn]
        for kinds in every:
            weight = 0.0 if drawn else float(self.frequencies[kinds[0]]) / self.config.repeats
            records.append({**self._record(kinds, rng), "weight": weight, "macro": 1 / size})
        return records

    def _record(self, kinds: Sequence[int], rng: np.random.Generator) -> Record:
        content = " ; ".join(self._question(self.words[kind], rng) for kind in kinds)
        pairs = [[self.right[kind].least, self.right[kind].most] for kind in kinds]
        messages = [{"role": "user", "content": content}]
        return {"messages": messages, "answer": None, "label": pairs if len(kinds) > 1 else pairs[0], "kinds": kinds}

    def _question(self, word: str, rng: np.random.Generator) -> str:
        noise = [str(one) for one in rng.choice(_NOISE, self.config.noise // self.config.documents)]
        noise.insert(rng.integers(len(noise) + 1), word)
        return " ".join([*noise, "document:", str(rng.choice(_GENRES)), str(rng.choice(_TOPICS))])


def accuracies(records: Sequence[Record], correct: Sequence[float]) -> tuple[float, float]:
    """The accuracy by frequency (`weight`) and the mean over kinds (`macro`), from 1 or 0 for each record of `eval`."""
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
    lacking, marked = np.array([1 - share, share]), np.zeros(len(frequencies), bool)
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


def _sentences(classes: Sequence[LevelRange], written: Sequence[LevelRange]) -> list[str]:
    names = [_CLASSES[_RANGES.index(one)] for one in classes]
    if len(names) > 1:
        return [f"The {place} is a {name} question." for place, name in zip(_PLACES, names, strict=False)]
    (levels,) = written
    reading = f"So read from {NAMES[levels.least]} to {NAMES[levels.most]} here."
    return [f"This is a {names[0]} question.", f"Its answer spans {_WIDTHS[levels.most - levels.least]}.", reading]


def _answer(classes: Sequence[LevelRange], written: Sequence[LevelRange]) -> str:
    plans = [plan_json(one, NAMES) for one in written]
    ending = plans[0] if len(plans) == 1 else f"[ {' , '.join(plans)} ]"
    return " ".join([*_sentences(classes, written), ending])
