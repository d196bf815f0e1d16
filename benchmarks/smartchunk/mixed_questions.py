"""Mixed questions over one corpus, split by document, and the evidence that every way to search finds for each.

Kinds: `fact` (one sentence; SQuAD, Chroma), `citance` (the sentences of a paper that another paper cites; SciSumm),
`section` (`title: heading` asks for the section; WikiText-2, headings not in the text). Wider ones: `document` (the
title alone asks for all of an article) and `comparison` (two facts, or one heading of two articles).

Recall is the share of the evidence's tokens that a context holds, by place (`measures/evidence_scores.py`), of contexts
that are filled to the token with the best nodes, the last one cut.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.smartchunk.level_contexts import (
    SHARES,
    SIZES,
    LevelSet,
    ScoredIndex,
    TreeScores,
    level_set,
    searched,
)
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.chunking.tree.parent_vectors import Parents
from qrag_jax.data.corpora.chroma import read_chroma
from qrag_jax.data.corpora.heading_questions import read_headings
from qrag_jax.data.corpora.scisumm import read_scisumm
from qrag_jax.data.corpora.squad import read_squad
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.eval.study.cells.costs import Meter
from qrag_jax.eval.study.cells.study_encoder import StudyEncoder
from qrag_jax.measures.evidence_scores import measure_tokens, merge_spans, shared_spans
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.levels.profiles import score_profiles
from qrag_jax.types import Document, Span

BUDGETS = (256, 512, 1024, 2048)
NARROW, WIDE = ("fact", "citance", "section"), ("document", "comparison")
PARTS = {"train": 0.3, "dev": 0.2, "test": 0.5}  # of the documents of each source
_MAX_SECTION = 5_000  # characters, about the second largest budget
_BATCH_CHARACTERS = 300_000
_MAX_NODES = 400  # ranked for a context
_FORMAT = 1
SEED = 0


@dataclass(frozen=True)
class Asked:
    """A question.

    Attributes:
        kind: of `NARROW` or `WIDE`.
        part: of its documents: train, dev or test.
        group: the first document of the pair with which it is resampled.
        twin: another question with the same evidence, whose best level is no luck of this one; None if there is none.
    """

    question: StudyQuestion
    kind: str
    part: str
    group: str
    twin: StudyQuestion | None = None


def read_sources(data: Path) -> list[StudyTask]:
    """The four sources; a document's id begins with the name of its source."""
    split = make_splitter("sentencex", "en")
    tasks = [
        read_squad(data / "squad", "squad", split),
        read_chroma(data / "chroma", "chroma", split),
        read_scisumm(data / "scisumm", "scisumm"),
        read_headings(data / "wikitext2", "wikitext2", source="wikitext2"),
    ]
    return [_prefixed(task) for task in tasks]


def _prefixed(task: StudyTask) -> StudyTask:
    def own(name: str) -> str:
        return f"{task.name}/{name}"

    return replace(
        task,
        documents=tuple(replace(document, id=own(document.id)) for document in task.documents),
        questions=tuple(
            replace(
                question,
                id=own(question.id),
                relevant=tuple(map(own, question.relevant)),
                evidence=tuple(replace(one, document_id=own(one.document_id)) for one in question.evidence),
            )
            for question in task.questions
        ),
        sentences={own(name): spans for name, spans in task.sentences.items()},
        sections={own(name): spans for name, spans in task.sections.items()},
    )


def ask(tasks: Sequence[StudyTask], most: int) -> list[Asked]:
    """At most `most` questions of each kind, as many of each, drawn from the documents in turn."""
    rng = np.random.default_rng(SEED)
    part: dict[str, str] = {}
    group: dict[str, str] = {}
    for task in tasks:
        _deal(task, rng, part, group)
    pools = {
        "fact": _in_turn([one for task in tasks[:2] for one in task.questions], rng),
        "citance": _in_turn(tasks[2].questions, rng),
        "section": _in_turn([one for given in tasks[3].questions if (one := _section(given)) is not None], rng),
    }
    pools["document"] = [
        StudyQuestion(document.id, title, (document.id,), (Evidence(document.id, 0, len(document.text)),))
        for task in (tasks[0], tasks[3])
        for document in task.documents
        if (title := _title(document.id))
    ]
    pools["comparison"] = _comparisons(pools["fact"], pools["section"], group)
    most = min(most, *(len(pools[kind]) for kind in NARROW))
    return [
        Asked(one, kind, part[one.relevant[0]], group[one.relevant[0]], _twin(one, kind, pool))
        for kind, pool in pools.items()
        for one in pool[:most]
    ]


def _twin(question: StudyQuestion, kind: str, pool: Sequence[StudyQuestion]) -> StudyQuestion | None:
    """Another question whose evidence is shared by half or more; of a section, the same one in other words."""
    name = f"{question.id}+twin"
    if kind == "section":
        title, *path = question.text.split(": ")
        return replace(question, id=name, text=f"What does the article about {title} say on {', '.join(path)}?")
    if kind not in NARROW:
        return None
    own = [(one.start, one.end) for one in question.evidence]
    for other in pool:
        if other.relevant == question.relevant and other.text != question.text:
            theirs = [(one.start, one.end) for one in other.evidence]
            shared, whole = shared_spans(merge_spans(own), merge_spans(theirs)), merge_spans([*own, *theirs])
            if 2 * _length(shared) >= _length(whole):
                return replace(other, id=name)
    return None


def _length(spans: Sequence[Span]) -> int:
    return sum(end - start for start, end in spans)


def _deal(task: StudyTask, rng: np.random.Generator, part: dict[str, str], group: dict[str, str]) -> None:
    """Documents in random order into parts, and two by two into groups within them."""
    names = [task.documents[i].id for i in rng.permutation(len(task.documents))]
    ends = np.cumsum([share * len(names) for share in PARTS.values()]).round().astype(int)
    for name, first, end in zip(PARTS, [0, *ends], ends, strict=False):
        for place in range(first, end):
            part[names[place]] = name
            group[names[place]] = names[first + (place - first) // 2 * 2]


def _in_turn(questions: Sequence[StudyQuestion], rng: np.random.Generator) -> list[StudyQuestion]:
    """A question of every document, then the next of every document, each document's in random order."""
    own: dict[str, list[StudyQuestion]] = {}
    for i in rng.permutation(len(questions)):
        own.setdefault(questions[i].relevant[0], []).append(questions[i])
    turns = [(turn, one) for found in own.values() for turn, one in enumerate(found)]
    return [one for _, one in sorted(turns, key=lambda found: found[0])]


def _section(question: StudyQuestion) -> StudyQuestion | None:
    """The question without words that the data has masked; None if its title or heading is one, or its section long."""
    (section,) = question.evidence
    title, *path = question.text.split(": ")
    title = _known(title)
    is_short = section.end - section.start <= _MAX_SECTION
    named = title and path and "<unk>" not in path[-1] and is_short
    return replace(question, text=": ".join([title, *filter(None, map(_known, path))])) if named else None


def _known(title: str) -> str:
    """A title without masked words; empty if no word is left."""
    words = title.replace("<unk>", "").split()
    return " ".join(words) if any(word.isalnum() for word in words) else ""


def _title(document_id: str) -> str:
    return _known(document_id.partition("/")[2].partition("#")[0].replace("_", " "))


def _comparisons(
    facts: Sequence[StudyQuestion], sections: Sequence[StudyQuestion], group: dict[str, str]
) -> list[StudyQuestion]:
    """Two facts, or two sections, one of each document of a group; the kinds in turn."""
    made = []
    for kind, pool in (("fact", facts), ("section", sections)):
        halves: dict[str, tuple[list[StudyQuestion], list[StudyQuestion]]] = {}
        for one in pool:
            first, second = halves.setdefault(group[one.relevant[0]], ([], []))
            (first if one.relevant[0] == group[one.relevant[0]] else second).append(one)
        pairs = [both for first, second in halves.values() for both in enumerate(zip(first, second, strict=False))]
        made.append([_joined(kind, *both) for _, both in sorted(pairs, key=lambda pair: pair[0])])
    return [one for both in zip(*made, strict=False) for one in both]


def _joined(kind: str, first: StudyQuestion, second: StudyQuestion) -> StudyQuestion:
    text = f"{first.text} {second.text}" if kind == "fact" else f"Compare {first.text} and {second.text}"
    relevant, evidence = first.relevant + second.relevant, first.evidence + second.evidence
    return StudyQuestion(f"{first.id}+{second.id}", text, relevant, evidence)


# --- what each way finds ---------------------------------------------------------------------------------------------


def mixed_set(tasks: Sequence[StudyTask], asked: Sequence[Asked], encoder: StudyEncoder, kept_in: Path) -> LevelSet:
    """One corpus of all sources; vectors are kept by source."""
    config = ChunkConfig("levels", levels=LevelsConfig(sizes=SIZES))
    found = []
    for part in (part for task in tasks for part in _batches(task)):
        start = time.perf_counter()
        found.append(level_set(part, encoder, kept_in, config))
        print(f"{part.name}: {len(found[-1].corpus):,} nodes, {time.perf_counter() - start:,.0f} s", flush=True)
    corpora = [one.corpus for one in found]
    corpus = Corpus(
        tuple(document for one in corpora for document in one.documents),
        tuple(node for one in corpora for node in one.nodes),
        np.concatenate([one.vectors for one in corpora if one.vectors is not None]),
        trees=tuple(tree for one in corpora for tree in one.trees),
    )
    sentences = {name: spans for task in tasks for name, spans in task.sentences.items()}
    questions = (*(one.question for one in asked), *(one.twin for one in asked if one.twin is not None))
    task = StudyTask("mixed", "evidence", corpus.documents, questions, sentences)
    return LevelSet(task, corpus, found[0].names, encoder.embed([one.text for one in questions], Meter()))


def _batches(task: StudyTask) -> list[StudyTask]:
    """The documents of a task in turn, without its questions, so that what was embedded is kept if a run is stopped."""
    batches: list[list[Document]] = [[]]
    for document in task.documents:
        if sum(len(one.text) for one in batches[-1]) > _BATCH_CHARACTERS:
            batches.append([])
        batches[-1].append(document)
    return [
        replace(task, kind="documents", documents=tuple(one), questions=(_any_question(one[0]),)) for one in batches
    ]


def _any_question(document: Document) -> StudyQuestion:
    return StudyQuestion("any", "any", (document.id,))


def ways(names: tuple[str, ...]) -> list[str]:
    """Columns: `plain 1:3` is a range, `smooth 3 0.25` a level whose scores are a quarter the parents', `deep` the same
    where those of the parents are so made too."""
    levels = range(2, len(names))
    return [
        *(f"plain {one.least}:{one.most}" for one in searched(names)),
        *(f"{how} {level} {share}" for how in ("smooth", "deep") for level in levels for share in SHARES),
    ]


class TokenPlaces:
    """All documents on one axis of tokens, and the nodes on it."""

    def __init__(self, corpus: Corpus, encoder: StudyEncoder) -> None:
        count, at = cache(encoder.count), 0.0
        self._measures, self._offset = {}, {}
        starts, ends = np.zeros(len(corpus)), np.zeros(len(corpus))
        for document in corpus.documents:
            measure = measure_tokens(document.text, count)
            self._measures[document.id], self._offset[document.id] = measure, at
            for node in corpus.nodes_of(document.id):
                spans = corpus.nodes[node].spans
                starts[node], ends[node] = spans[0][0], spans[-1][1]
            own = slice(corpus.nodes_of(document.id).start, corpus.nodes_of(document.id).stop)
            for places in (starts, ends):
                places[own] = at + np.interp(places[own], measure.edges, measure.before)
            at += measure.before[-1]
        self.starts, self.ends = starts, ends

    def evidence(self, question: StudyQuestion) -> np.ndarray:
        """[pieces, 2], disjoint."""
        pieces = []
        for name in dict.fromkeys(one.document_id for one in question.evidence):
            spans = merge_spans([(one.start, one.end) for one in question.evidence if one.document_id == name])
            measure = self._measures[name]
            pieces += [self._offset[name] + np.interp(span, measure.edges, measure.before) for span in spans]
        return np.array(pieces)

    def recall(self, ranked: np.ndarray, evidence: np.ndarray) -> list[tuple[float, float]]:
        """(recall, tokens) at every budget, of nodes that do not overlap, the best first."""
        starts, ends = self.starts[ranked], self.ends[ranked]
        before = np.concatenate([[0.0], np.cumsum(ends - starts)])[:-1]
        found = []
        for budget in BUDGETS:
            stops = np.minimum(ends, starts + np.maximum(0.0, budget - before))
            first = np.maximum(starts[:, None], evidence[None, :, 0])
            shared = np.maximum(0.0, np.minimum(stops[:, None], evidence[None, :, 1]) - first)
            held = shared.sum() / (evidence[:, 1] - evidence[:, 0]).sum()
            found.append((min(1.0, float(held)), float((stops - starts).sum())))
        return found


def recalls(known: LevelSet, encoder: StudyEncoder, kept_in: Path) -> dict[str, np.ndarray]:
    """`recall` and `sent` [questions, ways, budgets], `built` [ways], `profiles`, vectors of `questions`."""
    ids = [[one.id, one.text] for one in known.task.questions]
    key = json.dumps([_FORMAT, ids, known.names, len(known.corpus), ways(known.names)])
    path = kept_in / f"mixed-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as kept:
            return dict(kept)
    index = ScoredIndex(known.corpus, known.names, Parents("windows"), has_parents=True)
    tree, places = TreeScores(index), TokenPlaces(known.corpus, encoder)
    assert known.corpus.vectors is not None
    found, profiles, start = [], [], time.perf_counter()
    for row, question in enumerate(known.task.questions):
        own = np.round((known.corpus.vectors @ known.questions[row]).astype(np.float64), 6)
        evidence = places.evidence(question)
        found.append([places.recall(ranked, evidence) for ranked in _rankings(index, tree, own)])
        index.scores = own
        profiles.append(score_profiles(index, [question.text], known.questions[row][None])[0])
        if row % 100 == 99:
            print(f"  {row + 1} of {len(ids)} questions, {time.perf_counter() - start:,.0f} s", flush=True)
    pairs = np.array(found)
    built = [index.built_tokens(_range_of(name)) for name in ways(known.names)]
    kept = {"recall": pairs[..., 0], "sent": pairs[..., 1], "built": np.array(built)}
    kept |= {"profiles": np.array(profiles), "questions": known.questions}
    np.savez(path, **kept)
    return kept


def _range_of(way: str) -> LevelRange:
    """The levels whose vectors a way compares; that of a document is the mean of its parts' and costs nothing."""
    kind, levels, *_ = way.split()
    if kind == "plain":
        return LevelRange(*map(int, levels.split(":")))
    return LevelRange(1 if kind == "deep" else int(levels) - 1, int(levels))


def _rankings(index: ScoredIndex, tree: TreeScores, own: np.ndarray):
    """Those of `ways`, in their order."""
    made = {(how, share): tree.smooth(own, share, how == "deep") for how in ("smooth", "deep") for share in SHARES}
    for one in searched(index.names):
        yield _best(index, tree, own, one)
    for how in ("smooth", "deep"):
        for level in range(2, len(index.names)):
            for share in SHARES:
                yield _best(index, tree, made[how, share], LevelRange(level, level))


def _best(index: ScoredIndex, tree: TreeScores, scores: np.ndarray, levels: LevelRange) -> np.ndarray:
    """The best nodes of a range, as `LevelIndex.rank`, but only some of them are sorted."""
    nodes = index.nodes(levels)
    own, pool = scores[nodes], _MAX_NODES * (1 + levels.most - levels.least)
    if len(nodes) > pool:
        keep = own >= np.partition(own, -pool)[-pool]
        nodes, own = nodes[keep], own[keep]
    ranked = nodes[np.lexsort((nodes, -tree.level[nodes], -own))]
    return ranked[index._without_overlap(ranked, _MAX_NODES)]
