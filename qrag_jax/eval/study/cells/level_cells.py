"""The levels of a study: trees of a strategy's config, their vectors in one way of parents, and what each range finds.

A file `levels/TASK/STRATEGY-NUMBER-PARENTS-PART.json` holds a cell, as `cell_files.py` holds those of chunks.

For every question, range and budget a context is filled, and its evidence counted. Contexts are filled as plain ones
are (`filled_contexts.py`): the best nodes that do not overlap, the last one cut at the budget, tokens counted word by
word. So a range of large nodes has exactly as much to read as one of small ones.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.chunker import ChunkConfig, level_names, make_tree_builder
from qrag_jax.chunking.tree.level_ranges import LevelRange, all_ranges, full_range
from qrag_jax.chunking.tree.parent_vectors import Parents, mean_of_children
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.study.cells.cell_files import MadeOf, read_cell, write_cell
from qrag_jax.eval.study.cells.costs import Meter, make_cost
from qrag_jax.eval.study.cells.filled_contexts import known_points, question_pieces, section_points
from qrag_jax.eval.study.cells.run_cell import Tools
from qrag_jax.eval.study.records import LevelCell, Part
from qrag_jax.index.parent_texts import text_parents, window_vectors
from qrag_jax.measures.evidence_recall import evidence_recall
from qrag_jax.search.context.pack import Budget, fill_context
from qrag_jax.search.corpus import Corpus, MadeBy, ReportProgress, tree_corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.search.levels.profiles import score_profiles
from qrag_jax.types import Cost, CountTokens, Embed


class LevelContexts:
    """Fills contexts from rankings of nodes and looks for evidence in them; words are counted once."""

    def __init__(self, corpus: Corpus, task: StudyTask, budgets: Sequence[int], count: CountTokens) -> None:
        """Nothing is counted yet.

        Args:
            corpus: of trees of the task's documents.
        """
        self.corpus, self.budgets = corpus, tuple(budgets)
        count_word = cache(count)
        self._count = cache(lambda text: sum(count_word(word) for word in text.split()))
        self._pieces = cache(lambda question: question_pieces(task, question))

    def recalls(self, question: StudyQuestion, ranked: Ranked) -> tuple[list[float], list[int]]:
        """(evidence recall, tokens sent) at every budget, of contexts that are filled to the token."""
        pieces, found, sent = self._pieces(question), [], []
        for budget in self.budgets:
            context = fill_context(self.corpus, ranked, Budget(budget, self._count, max_notes=0, cut_last=True))
            found.append(evidence_recall(pieces, "\n".join(passage.text for passage in context.passages)))
            sent.append(context.num_tokens)
        return found, sent


def level_recall(
    index: LevelIndex,
    contexts: LevelContexts,
    questions: Sequence[StudyQuestion],
    vectors: Float[np.ndarray, "questions dim"],
    ranges: Sequence[LevelRange],
    *,
    scope: str = "corpus",
    progress: ReportProgress | None = None,
) -> tuple[Float[np.ndarray, "questions ranges budgets"], Int[np.ndarray, "questions ranges budgets"]]:
    """(evidence recall, tokens sent) of contexts from every range.

    Args:
        scope: `corpus`, or `document`: a question searches its relevant documents alone.
        progress: called with (questions done, of).
    """
    most = max(contexts.budgets)  # nodes: none has less than a token
    shape = len(questions), len(ranges), len(contexts.budgets)
    recall, sent = np.zeros(shape), np.zeros(shape, np.int64)
    for row, (question, vector) in enumerate(zip(questions, vectors, strict=True)):
        documents = question.relevant if scope == "document" else None
        for column, levels in enumerate(ranges):
            ranked = index.rank(question.text, vector, levels, most, documents=documents)
            recall[row, column], sent[row, column] = contexts.recalls(question, ranked)
        if progress is not None:
            progress(row + 1, len(questions))
    return recall, sent


def make_parents(way: str, embed: Embed, tools: Tools) -> Parents:
    """The way of parents that a study names.

    Args:
        way: of `StudyConfig.parents`.
    """
    name, _, run = way.partition(":")
    if name == "compressor":
        from qrag_jax.models.compressor import (
            compressor_parents,
            load_compressor,  # imports JAX, which other ways do not need
        )

        return compressor_parents(load_compressor(run), tools.encoder.fingerprint)
    if name == "best_child":
        return Parents("best_child")
    if name == "mean":
        return Parents("mean", of_children=mean_of_children)
    return text_parents(name, embed, tools.encoder.count, window_tokens=tools.encoder.window)


def run_levels(
    strategy: str,
    number: int,
    config: ChunkConfig,
    way: str,
    parts: Mapping[Part, StudyTask],
    scope: str,
    budgets: tuple[int, ...],
    tools: Tools,
    questions: Mapping[Part, np.ndarray],
    progress: ReportProgress | None = None,
) -> list[LevelCell]:
    """The cell of each part; the corpus, which the parts share, is cut and embedded once.

    Args:
        strategy, number: name of the strategy in the study, and which of its configs this is.
        config: of strategy `levels`.
        parts: dev and test over the same documents, or one of them alone.
        questions: of each part the vectors of its questions.
        progress: called with (questions of a part done, of).
    """
    task, encoder, meter = next(iter(parts.values())), tools.encoder, Meter()
    embed = encoder.sentence_embed(tools.cache, meter)
    points = known_points(config, section_points(task), embed, encoder.fingerprint)
    start = perf_counter()
    build = make_tree_builder(config, encoder.count, tools.split, points)
    corpus = tree_corpus(task.documents, [build(document) for document in task.documents], encoder.count)
    seconds = max(0.0, perf_counter() - start - meter.waited)
    vectors = np.zeros((len(corpus), encoder.dim), np.float32)
    texts = [corpus.texts[leaf] for leaf in corpus.leaves.tolist()]
    vectors[corpus.leaves] = window_vectors(texts, embed, encoder.count, encoder.window)
    made_by = MadeBy(config, encoder.model, encoder.fingerprint)
    corpus = replace(corpus, vectors=vectors, made_by=made_by)
    index = LevelIndex(corpus, level_names(config), make_parents(way, embed, tools))
    ranges = all_ranges(index.names)
    num_bytes = index.num_vectors(full_range(index.names)) * vectors.itemsize * encoder.dim
    cells = []
    for part, side in parts.items():
        contexts = LevelContexts(corpus, side, budgets, encoder.count)
        recall, sent = level_recall(
            index, contexts, side.questions, questions[part], ranges, scope=scope, progress=progress
        )
        profiles = score_profiles(index, [question.text for question in side.questions], questions[part])
        cells.append(
            LevelCell(
                task=task.name,
                strategy=strategy,
                number=number,
                part=part,
                parents=way,
                names=index.names,
                num_documents=len(corpus.documents),
                built_tokens=tuple(map(index.built_tokens, ranges)),
                num_vectors=tuple(map(index.num_vectors, ranges)),
                recall=_nested(recall),
                sent=_nested(sent),
                profiles=_nested(profiles),
                cost=make_cost(seconds, Meter(), meter, num_bytes),
            )
        )
    return cells


def _nested(values: np.ndarray) -> Any:
    """Nested tuples instead of array axes."""
    return tuple(map(_nested, values)) if values.ndim > 1 else tuple(values.tolist())


class LevelStore:
    """Cells of levels under the folder of a study."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def path(self, task: str, strategy: str, number: int, way: str, part: Part) -> Path:
        """The file of a cell, whether it is there or not; a run of a compressor is named by a hash of its path."""
        name, _, run = way.partition(":")
        name += f"_{hashlib.sha256(run.encode()).hexdigest()[:8]}" if run else ""
        return self.out / "levels" / task / f"{strategy}-{number}-{name}-{part}.json"

    def read(self, task: str, strategy: str, number: int, way: str, part: Part, origin: MadeOf) -> LevelCell | None:
        """A stored cell; None where there is none, or it is damaged."""
        wanted = (task, strategy, number, way, part)
        return read_cell(self.path(*wanted), self.out, origin, _cell, lambda one: _place(one) == wanted)

    def write(self, cell: LevelCell, origin: MadeOf) -> None:
        """Stores a cell, whole or not at all."""
        write_cell(self.path(*_place(cell)), cell, origin)


def _place(cell: LevelCell) -> tuple[str, str, int, str, Part]:
    return cell.task, cell.strategy, cell.number, cell.parents, cell.part


def _cell(value: Any) -> LevelCell:
    """The cell from the file's values; its checksum shows that this code wrote it."""
    nested = {name: _tuples(value[name]) for name in ("names", "built_tokens", "num_vectors", "recall", "sent")}
    cost = Cost(**value["cost"])
    return LevelCell(**{**value, **nested, "profiles": _tuples(value["profiles"]), "cost": cost})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
