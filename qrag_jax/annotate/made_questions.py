"""Questions with gold chunks, made of documents without a label and without a language model (ours).

    made = make_questions(documents, chunks, vectors)

A name that two chunks share is hidden, and words of both ask for it, so the question is answered only by both together.
Kinds, with T the topic (title or heading) of a chunk, and s a sentence:

* `bridge`: a sentence of A names the topic of B. Words of T(A), of that sentence and of a sentence of B; gold A, B.
* `chain`: A names the topic of B, and B that of C. Words of all three; gold A, B, C.
* `shared`: a name or identifier that only two or three chunks contain. Words of the two sentences; gold both.
* `comparison`: two chunks with topics and similar vectors. Words of both topics, and words that both have; gold both.
* `double`: two bridges of similar chunks. Words of T(A) and T(C), and of their sentences; gold A, B, C, D.
* `single`: words of one sentence; gold its chunk. It keeps plain search from being forgotten.

Questions are words, not sentences: trained links compare words, and no grammar is needed in any language. A random
share of the words is kept, because a real question repeats few words of a passage.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from qrag_jax.annotate.mentions import MentionsConfig, Named, Sentence, find_mentions
from qrag_jax.chunking.text.proper_names import UNSPACED, Name, NameFinder, Word, find_words, normal_name, written_names
from qrag_jax.types import Chunk, Document, Embed, check_fields
from qrag_jax.unit_rows import unit_rows

KINDS = ("bridge", "chain", "shared", "comparison", "double", "single")
# Reasons why a question is left out.
REPEATED = "same words as another"
TOO_SHORT = "too few words"
TELLS_NAME = "a word of the hidden name is still in it"
MANY_OF_CHUNK = "more than wanted of one chunk"
_USUAL = 0.1  # share of the chunks: a word that more contain is left out of questions
_LEAST_WORDS = 4
_OTHER = (0.0, 0.8)  # share of a question's words that are replaced by near words
_OTHER_OF_SINGLE = (0.4, 1.0)  # plain search finds the others at once, and they teach nothing
_FOREIGN = (0.0, 0.6)  # words of another sentence that are put into a question, as a share of its own
_NEAR_WORDS, _MOST_WORDS_KNOWN = 6, 6_000
_MOST_WORDS = 24
_NEAR = 20  # similar chunks that the second one of a pair is drawn from
_AT_MOST = 3  # chunks that a shared name may be in
_IDENTIFIER = re.compile(r"[A-Za-z]\w*(?:[_.:][A-Za-z]\w*)+|[A-Za-z]+[a-z][A-Z]\w*|[A-Z]+\d+\w*")
_BLOCK = 4  # characters of a script without blanks that are kept or dropped together
_UNSPACED = re.compile(f"[{UNSPACED}]")
T = TypeVar("T")
Drafts = Iterator[tuple[list[str], tuple[int, ...]]]  # the parts of a question, and its gold


@dataclass(frozen=True)
class MadeQuestion:
    """A question and the chunks that answer it together.

    Attributes:
        kind: of `KINDS`, or that of another maker.
        text: the question.
        gold: numbers of the chunks, the asking one first.
    """

    kind: str
    text: str
    gold: tuple[int, ...]


@dataclass(frozen=True)
class MakingConfig:
    """How many questions are made.

    Attributes:
        most: questions of each kind, at most; bridges twice as many.
        of_chunk: questions of a kind that begin at the same chunk, at most.
        seed: of all draws.
    """

    most: int = 350
    of_chunk: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "learn", positive=("most", "of_chunk"), at_least={"seed": 0})


@dataclass(frozen=True)
class Made:
    """The questions of some chunks.

    Attributes:
        questions: by kind, in the order of `KINDS`.
        left_out: number of drafts that gave no question, by reason.
    """

    questions: tuple[MadeQuestion, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, int]:
        """The number of questions of each kind."""
        return dict(Counter(question.kind for question in self.questions))


def make_questions(
    documents: Sequence[Document],
    chunks: Sequence[Chunk],
    vectors: np.ndarray,
    config: MakingConfig | None = None,
    embed: Embed | None = None,
) -> Made:
    """Makes questions; see the module. Equal arguments give equal questions.

    Args:
        documents: with distinct ids.
        chunks: in the order of the documents.
        vectors: float32 [chunks, dim].
        config: None uses the defaults.
        embed: embeds single words, so that questions say some things in other words; None keeps all words.

    Returns:
        Questions without repeats. A folder in which nothing is shared gives only `single` ones.

    Raises:
        InputError: a chunk's document is missing.
    """
    config = config or MakingConfig()
    maker = _Maker(find_mentions(documents, chunks, MentionsConfig()), unit_rows(vectors), config, embed)
    questions: dict[str, MadeQuestion] = {}
    for kind in KINDS:
        most, found, begun = config.most * (1 + (kind == "bridge")), 0, Counter[int]()
        for draft in maker.drafts(kind):
            if found == most:
                break
            key = " ".join(sorted(draft.text.casefold().split()))
            if len(find_words(draft.text)) < _LEAST_WORDS:
                maker.left_out[TOO_SHORT] += 1
            elif key in questions:
                maker.left_out[REPEATED] += 1
            elif begun[draft.gold[0]] == config.of_chunk:
                maker.left_out[MANY_OF_CHUNK] += 1
            else:
                questions[key] = draft
                found, begun[draft.gold[0]] = found + 1, begun[draft.gold[0]] + 1
    return Made(tuple(questions.values()), {reason: number for reason, number in maker.left_out.items() if number})


class _Maker:
    """Drafts of each kind, in random order."""

    def __init__(self, named: Named, vectors: np.ndarray, config: MakingConfig, embed: Embed | None) -> None:
        self.sentences, self.vectors = named.sentences, vectors
        self.rng = np.random.default_rng([config.seed, 11])
        self.left_out: Counter[str] = Counter()
        found = Counter(w for own in self.sentences.values() for w in {w.text for s in own for w in s.words})
        self.usual = {word for word, number in found.items() if number > max(2, _USUAL * len(self.sentences))}
        by_number = sorted(found, key=lambda word: (-found[word], word))  # the same in every process
        known = [word for word in by_number if word.isalpha() and len(word) > 2 and word not in self.usual]
        self.near = {} if embed is None else near_words(known[:_MOST_WORDS_KNOWN], embed)
        self.places = list(self.sentences.values())
        # They belong to the present question: how many words are replaced, whether usual words stay, hidden names.
        self.other, self.keeps_usual, self.hidden = 0.0, False, set[Name]()
        self.topics: dict[int, Name] = {}
        for name, places in named.topics.items():
            if len(places) <= _AT_MOST:
                self.topics |= {place: name for place in places if len(name) > len(self.topics.get(place, ()))}
        self.bridges: defaultdict[int, list[tuple[Sentence, Name, int]]] = defaultdict(list)
        for one in named.mentions:
            self.bridges[one.sentence.chunk].append((one.sentence, one.name, one.answering))

    def drafts(self, kind: str) -> Iterator[MadeQuestion]:
        """Drafts of a kind."""
        makers: dict[str, Callable[[], Drafts]] = {
            "bridge": self._bridges, "chain": self._chains, "shared": self._shared,
            "comparison": self._comparisons, "double": self._doubles, "single": self._singles,
        }  # fmt: skip
        drafts = makers[kind]()
        while True:
            self.other, self.keeps_usual = self.rng.uniform(*_OTHER), self.rng.random() < 0.5
            self.hidden.clear()
            if (draft := next(drafts, None)) is None:
                return
            parts, gold = draft
            text = " ".join(self._disturbed(" ".join(parts).split()[:_MOST_WORDS]))
            said = {word.text for word in find_words(text)}
            if any(said & (set(name) - self.usual) or said.issuperset(name) for name in self.hidden):
                self.left_out[TELLS_NAME] += 1
            else:
                yield MadeQuestion(kind, text, gold)

    def _disturbed(self, words: list[str]) -> list[str]:
        """The words with a few of any sentence among them: real questions have words that lead nowhere."""
        foreign = self._one(self._one(self.places)).text.split()
        number = min(len(foreign), round(self.rng.uniform(*_FOREIGN) * len(words)))
        first = int(self.rng.integers(len(foreign) - number + 1))
        at = int(self.rng.integers(len(words) + 1))
        said = [*words[:at], *foreign[first : first + number], *words[at:]]
        return [said[0][:1].upper() + said[0][1:], *said[1:]] if said else said

    def _bridges(self) -> Drafts:
        for a, (sentence, name, b) in self._shuffled(
            [(chunk, one) for chunk, own in self.bridges.items() for one in own]
        ):
            asking = self._some(sentence, (name,), (0.2, 0.7))
            answering = self._some_of(b, (name, self.topics.get(b, name)), (0.1, 0.4), 5)
            yield self._turned([self._topic(a, 0.8) + asking, answering]), (a, b)

    def _chains(self) -> Drafts:
        for a in self._shuffled(list(self.bridges)):
            sentence, name, b = self._one(self.bridges[a])
            further = [one for one in self.bridges.get(b, ()) if one[2] not in (a, b)]
            if not further:
                continue
            second, second_name, c = self._one(further)
            hidden = (name, second_name)
            parts = [self._topic(a, 0.7) + self._some(sentence, hidden, (0.1, 0.4))]
            parts += [self._some(second, hidden, (0.1, 0.3)), self._some_of(c, hidden, (0.1, 0.4), 5)]
            yield self._turned(parts), (a, b, c)

    def _shared(self) -> Drafts:
        at: defaultdict[Name, dict[int, Sentence]] = defaultdict(dict)
        for chunk, own in self.sentences.items():
            for sentence in own:
                for name in (*written_names(sentence.text, sentence.words), *_identifiers(sentence.text)):
                    at[name].setdefault(chunk, sentence)
        likely = [
            name
            for name, places in at.items()
            if 2 <= len(places) <= _AT_MOST and sum(map(len, name)) > 5 and not self.usual.issuperset(name)
        ]
        finder, there = NameFinder(likely, likely), defaultdict[Name, set[int]](set)  # also where it is no name
        for chunk, own in self.sentences.items():
            for sentence in own:
                for name, _ in finder.find([word._replace(is_capital=True) for word in sentence.words]):
                    there[name].add(chunk)
        rare = [(name, at[name]) for name in likely if len(there[name] | at[name].keys()) <= _AT_MOST]
        for name, places in self._shuffled(rare):
            (a, first), (b, second) = self._shuffled(list(places.items()))[:2]
            hidden = (name,)
            parts = [
                self._topic(a, 0.5) + self._some(first, hidden, (0.2, 0.6)),
                self._some(second, hidden, (0.2, 0.6)),
            ]
            yield parts, (a, b)

    def _comparisons(self) -> Drafts:
        topical = np.array(sorted(self.topics))
        for a in self._shuffled(topical.tolist()):
            if (b := self._similar(a, topical)) is not None and self.topics[a] != self.topics[b]:
                yield [self._topic(a), self._common(a, b), self._topic(b)], (a, b)

    def _doubles(self) -> Drafts:
        asking = np.array(sorted(self.bridges.keys() & self.topics.keys()))
        for a in self._shuffled(asking.tolist()):
            if (c := self._similar(a, asking)) is None:
                continue
            (sentence, name, b), (_, second_name, d) = self._one(self.bridges[a]), self._one(self.bridges[c])
            if len({a, b, c, d}) == 4:
                said = self._some(sentence, (name, second_name), (0.1, 0.3), 3)
                yield [self._topic(a), said, self._topic(c), self._common(b, d)], (a, b, c, d)

    def _singles(self) -> Drafts:
        for a in self._shuffled(list(self.sentences)):
            self.other = self.rng.uniform(*_OTHER_OF_SINGLE)
            yield [self._some_of(a, (), (0.15, 0.5), _MOST_WORDS)], (a,)

    def _similar(self, chunk: int, among: np.ndarray) -> int | None:
        """One of the nearest chunks; None without another one."""
        others = among[among != chunk]
        if not len(others):
            return None
        nearest = np.argsort(-(self.vectors[others] @ self.vectors[chunk]), kind="stable")[:_NEAR]
        return int(others[self._one(nearest.tolist())])

    def _topic(self, chunk: int, chance: float = 1.0) -> str:
        """The words of a chunk's topic as a name, with that chance; with a blank behind them."""
        if self.rng.random() >= chance or chunk not in self.topics:
            return ""
        return "".join(f"{word.capitalize()} " for word in self.topics[chunk])

    def _some_of(self, chunk: int, hidden: Collection[Name], shares: tuple[float, float], most: int) -> str:
        return self._some(self._one(self.sentences[chunk]), hidden, shares, most)

    def _some(
        self, sentence: Sentence, hidden: Collection[Name], shares: tuple[float, float], most: int = _MOST_WORDS
    ) -> str:
        """A random share of the words of a sentence, in their order, without those of hidden names and usual ones."""
        self.hidden.update(hidden)
        left_out = {word for name in hidden for word in name} | (set() if self.keeps_usual else self.usual)
        words = [word for word in sentence.words if word.text not in left_out]
        block = _BLOCK if _UNSPACED.search(sentence.text) else 1
        blocks = [words[i : i + block] for i in range(0, len(words), block)]
        wanted = max(1, round(self.rng.uniform(*shares) * len(blocks)))
        kept = sorted(self.rng.permutation(len(blocks))[: min(wanted, max(1, most // block))].tolist())
        glue = "" if block > 1 else " "
        return " ".join(glue.join(self._said(sentence, word) for word in blocks[i]) for i in kept)

    def _said(self, sentence: Sentence, word: Word) -> str:
        """A word as it is written, or a near word in its place; never in the place of a name."""
        if word.is_capital or word.text not in self.near or self.rng.random() >= self.other:
            return sentence.text[slice(*word.span)]
        return self._one(self.near[word.text])

    def _common(self, a: int, b: int) -> str:
        """Some words of both chunks."""
        first, second = ({w.text for s in self.sentences[x] for w in s.words} - self.usual for x in (a, b))
        common = self._shuffled(sorted(first & second))
        return " ".join(common[: int(self.rng.integers(1, 5))])

    def _turned(self, parts: list[str]) -> list[str]:
        """The parts, half the time from the last to the first."""
        return parts[::-1] if self.rng.random() < 0.5 else parts

    def _one(self, things: Sequence[T]) -> T:
        return things[int(self.rng.integers(len(things)))]

    def _shuffled(self, things: Sequence[T]) -> list[T]:
        return [things[i] for i in self.rng.permutation(len(things)).tolist()]


def near_words(words: Sequence[str], embed: Embed) -> dict[str, list[str]]:
    """For each word the other ones whose vectors are nearest, up to `_NEAR_WORDS`."""
    if len(words) <= _NEAR_WORDS:
        return {}
    vectors, near = unit_rows(embed(words)), {}
    for first in range(0, len(words), 1024):
        cosines = vectors[first : first + 1024] @ vectors.T
        cosines[np.arange(len(cosines)), first + np.arange(len(cosines))] = -1.0
        best = np.argpartition(-cosines, _NEAR_WORDS, axis=1)[:, :_NEAR_WORDS]
        near |= {words[first + row]: [words[i] for i in own] for row, own in enumerate(best.tolist())}
    return near


def _identifiers(text: str) -> Iterator[Name]:
    """Names of code: `max_connections`, `Client.get`, `PoolTimeout`, in the form of `proper_names.Name`."""
    for found in _IDENTIFIER.findall(text):
        if (name := normal_name(found)) is not None:
            yield name
