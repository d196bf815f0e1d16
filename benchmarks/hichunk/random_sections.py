"""Random sections: the control of `evidence_recall.py`, which asks what merging owes to real sections.

Every document gets as many sections as a strategy finds in it, at the same levels in the same order, that begin with
sentences which are drawn. They are cut, ranked and merged in the same way. All is told by document: questions about one
document resemble each other, and share its draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.common import interval
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.hierarchy import HierarchyConfig
from qrag_jax.chunking.text.chunks import SentenceText, SplitSentences
from qrag_jax.data.corpora.stitch import named_rng
from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.study.cells.costs import Meter
from qrag_jax.eval.study.cells.filled_contexts import known_points
from qrag_jax.eval.study.cells.sentence_cache import SentenceCache
from qrag_jax.eval.study.cells.study_encoder import StudyEncoder
from qrag_jax.eval.study.config import StudyConfig
from qrag_jax.eval.study.records import StudyComparison, StudyResult
from qrag_jax.eval.study.results.study_tables import significant_sign
from qrag_jax.eval.tables import align, share
from qrag_jax.measures.aggregate import Difference, paired_difference

DRAWS = range(5)
NO_TITLE = "<unk>"  # all that WikiText-2 has left of some titles
Sections = Mapping[str, Sequence[tuple[int, int]]]  # as `StudyTask.sections`
Tests = Mapping[tuple[str, str, str, str, int | None], StudyComparison]
Recall = Mapping[tuple[str, str, str, int], np.ndarray]  # task, strategy, fill, budget -> ERec [questions]


@dataclass(frozen=True)
class Control:
    """Sections of a strategy and as many random ones, in one budget.

    Attributes:
        plain, merge: mean ERec of the strategy.
        random_plain, random_merge: of the draws together.
        draws: merge - plain of each draw.
        num_untitled, titled_merge: questions whose article has no title, and what the others have in place of `merge`.
        titled_gain: merge - plain of the others, by document.
    """

    task: str
    strategy: str
    budget: int
    plain: float
    merge: float
    random_plain: float
    random_merge: float
    draws: tuple[float, ...]
    num_untitled: int
    titled_merge: float
    titled_gain: Difference


def at_random(task: StudyTask, strategy: str, sections: Sections, draw: int) -> StudyTask:
    """The task with as many sections in every document, of the same levels in the same order, that begin anywhere.

    They begin with sentences that are drawn, none with the first. A document has the same ones in every set.
    """

    def drawn(name: str) -> tuple[tuple[int, int], ...]:
        starts, levels = [start for start, _ in task.sentences[name][1:]], [level for _, level in sections[name]]
        chosen = named_rng(draw, name, "sections").choice(starts, len(levels), replace=False)
        return tuple(zip(sorted(chosen.tolist()), levels, strict=True))

    found = {document.id: drawn(document.id) for document in task.documents}
    return replace(task, name=random_name(task.name, strategy, draw), sections=found)


def random_name(task: str, strategy: str, draw: int) -> str:
    return f"{task}-{strategy}-{draw}"


def tagged_sections(task: StudyTask, encoder: StudyEncoder, kept: SentenceCache, units: SplitSentences) -> Sections:
    """The sections that the packaged tagger finds, before small ones are joined."""
    config = ChunkConfig("hierarchy", hierarchy=HierarchyConfig("tagger"))
    predict = known_points(config, None, encoder.sentence_embed(kept, Meter()), encoder.fingerprint)
    assert predict is not None
    found = {}
    for document in task.documents:
        text = SentenceText(document.text, tuple(units(document.text)))
        found[document.id] = [(text.sentences[unit][0], level) for unit, level in predict([text])[0]]
    return found


def recall_of(results: Sequence[StudyResult]) -> Recall:
    """ERec of every question, in the order of its task."""
    found: dict[tuple[str, str, str, int], list[float]] = {}
    for one in (one for result in results for one in result.questions):
        scores: Any = one["scores"]
        for name, value in scores.items():
            if name.startswith("erec_"):
                fill, _, budget = name.removeprefix("erec_").partition("@")
                found.setdefault((str(one["task"]), str(one["strategy"]), fill, int(budget)), []).append(value)
    return {key: np.array(values) for key, values in found.items()}


def control(task: StudyTask, strategy: str, budget: int, recall: Recall) -> tuple[Control, list[StudyComparison]]:
    """Sections of a strategy beside random ones, and three tests, by document.

    Of random sections whether merging gains, and of those of the strategy whether merging gains more, and whether
    merged contexts hold more.
    """
    documents = np.array([question.relevant[0] for question in task.questions])
    titled = np.array([set(name.partition("#")[0].split()) != {NO_TITLE} for name in documents])
    names = [random_name(task.name, strategy, draw) for draw in DRAWS]
    plain, merge = (recall[task.name, strategy, fill, budget] for fill in ("plain", "merge"))
    plains, merges = (
        np.array([recall[name, "headings", fill, budget] for name in names]) for fill in ("plain", "merge")
    )

    random_plain, random_merge = plains.mean(axis=0), merges.mean(axis=0)
    found = Control(
        task.name,
        strategy,
        budget,
        plain=float(plain.mean()),
        merge=float(merge.mean()),
        random_plain=float(random_plain.mean()),
        random_merge=float(random_merge.mean()),
        draws=tuple((merges - plains).mean(axis=1).tolist()),
        num_untitled=int((~titled).sum()),
        titled_merge=float(merge[titled].mean()),
        titled_gain=paired_difference(merge[titled], plain[titled], groups=documents[titled].tolist()),
    )
    tests = {
        (f"random for {strategy}", "plain", "erec"): (random_merge, random_plain, 0.0),
        (strategy, "random", "gain"): (merge - plain, random_merge - random_plain, -1.0),
        (strategy, "random", "erec"): (merge, random_merge, 0.0),
    }
    comparisons = []
    for (first, second, measure), (own, other, least) in tests.items():
        one = paired_difference(own, other, bounds=(least, 1.0))
        grouped = paired_difference(own, other, groups=documents.tolist(), bounds=(least, 1.0))
        comparisons.append(
            StudyComparison(
                task.name,
                first,
                second,
                measure,
                difference=one.mean,
                low=one.low,
                high=one.high,
                p_value=one.p_value,
                p_holm=one.p_value,
                n=one.n,
                budget=budget,
                fill="merge",
                low_by_document=grouped.low,
                high_by_document=grouped.high,
                p_by_document=grouped.p_value,
                num_groups=len(set(documents)),
            )
        )
    return found, comparisons


def kept_share(task: StudyTask, budget: int, recall: Recall) -> tuple[float, float, float]:
    """Gain of the sections of the tagger by that of the real ones, and its 95% percentile interval by document.

    A ratio of two differences, of which the lower one may be near 0 or below: it has no BCa interval.
    """
    from scipy import stats

    documents = np.array([question.relevant[0] for question in task.questions])
    gains = [
        recall[task.name, strategy, "merge", budget] - recall[task.name, strategy, "plain", budget]
        for strategy in ("tagger", "headings")
    ]
    sums = [[float(gain[documents == name].sum()) for name in np.unique(documents)] for gain in gains]
    ratio = lambda first, second, axis: np.sum(first, axis=axis) / np.sum(second, axis=axis)  # noqa: E731
    rng = np.random.default_rng(StudyConfig.seed)
    found = stats.bootstrap(sums, ratio, paired=True, method="percentile", rng=rng).confidence_interval
    return float(np.sum(sums[0]) / np.sum(sums[1])), float(found.low), float(found.high)


def changed(one: StudyComparison) -> str:
    """A difference with its interval, by document where there is one, and a star where it is told from none."""
    low = one.low if one.low_by_document is None else one.low_by_document
    high = one.high if one.high_by_document is None else one.high_by_document
    found = interval({"mean": one.difference, "low": low, "high": high}, sign="+")
    return found + "*" * bool(significant_sign(one))


def control_lines(controls: Sequence[Control], comparisons: Sequence[StudyComparison]) -> list[str]:
    """The table of random sections; `comparisons` has their tests among others, with the corrected p-values."""
    tests = merged_tests(comparisons)
    head = ["set", "sections", "tokens", "plain", "merged", "random plain", "random merged", "merged - plain"]
    table = [[*head, "of random", "draws", "more than random", "merged - random merged"]]
    for one in controls:
        low, high = min(one.draws), max(one.draws)
        table.append(
            [
                one.task,
                one.strategy,
                f"{one.budget:,}",
                *map(share, (one.plain, one.merge, one.random_plain, one.random_merge)),
                changed(tests[one.task, one.strategy, "plain", "erec", one.budget]),
                changed(tests[one.task, f"random for {one.strategy}", "plain", "erec", one.budget]),
                f"{share(low, sign='+')} to {share(high, sign='+')}",
                changed(tests[one.task, one.strategy, "random", "gain", one.budget]),
                changed(tests[one.task, one.strategy, "random", "erec", one.budget]),
            ]
        )
    return align(table, markdown=True)


def merged_tests(comparisons: Sequence[StudyComparison]) -> Tests:
    """Those of fill `merge`, by set, strategy, what it is compared with, measure and budget."""
    found = (one for one in comparisons if one.fill == "merge")
    return {(one.task, one.strategy, one.baseline, one.measure, one.budget): one for one in found}


def untitled_lines(controls: Sequence[Control], comparisons: Sequence[StudyComparison]) -> list[str]:
    """What changes without the questions that name no article; nothing of it is tested. Arguments as above."""
    tests = merged_tests(comparisons)
    table = [["set", "sections", "tokens", "left out", "merged", "without", "merged - plain", "without"]]
    for one in controls:
        test, titled = tests[one.task, one.strategy, "plain", "erec", one.budget], one.titled_gain
        number, merged = f"{one.num_untitled} of {test.n}", [share(one.merge), share(one.titled_merge)]
        told = [changed(test), interval(titled, sign="+")]
        table.append([one.task, one.strategy, f"{one.budget:,}", number, *merged, *told])
    return align(table, markdown=True)
