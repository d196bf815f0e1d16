"""The evidence in contexts of a token budget, filled in one of three ways.

    plain   the best chunks (`fill_context`)
    widen each of them together with the chunk before and the one after (`fill_widened`)
    merge sections instead of their chunks (`merge_context`)

Tokens are counted word by word, so counts of parts add up, and the last chunk is cut at the budget: all strategies
and fills read equally much. `measures/evidence_recall.py` measures the evidence in a context.

The tree of a document is that of its sections if the strategy finds them (`hierarchy`, `levels`, `headings`), with
the chunks as leaves; for another strategy, all chunks are children of the document. Chunks of several spans and
overlapping chunks have no tree, so such a strategy has the fill `plain` only.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from qrag_jax.chunking.chunker import ChunkConfig, make_tree_builder, points_of
from qrag_jax.chunking.strategies.headings import heading_tree
from qrag_jax.chunking.text.chunks import SentenceText, SplitSentences
from qrag_jax.chunking.tree.boundaries import Point, PredictPoints
from qrag_jax.chunking.tree.build import tree_from_sections
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.measures.answer_scores import normalise_answer
from qrag_jax.measures.evidence_recall import evidence_pieces, evidence_recall
from qrag_jax.models.tagger.predict import check_encoder, tagged_points
from qrag_jax.models.tagger.tagger import load_tagger
from qrag_jax.names import CHUNKERS, FillName
from qrag_jax.search.context.auto_merge import merge_context
from qrag_jax.search.context.pack import Budget, Context, fill_context
from qrag_jax.search.context.widen import fill_widened
from qrag_jax.search.corpus import Corpus, tree_corpus
from qrag_jax.search.dense import Ranking
from qrag_jax.search.hybrid import Ranked
from qrag_jax.types import Chunk, CountTokens, Document, Embed, InputError


@dataclass(frozen=True)
class Contexts:
    """Which contexts are filled: `budgets` in tokens, in each of the ways `fills`."""

    budgets: tuple[int, ...]
    fills: tuple[FillName, ...]


class FilledCorpus:
    """A corpus of chunks, as contexts are filled from it.

    Attributes:
        corpus: with trees where there can be some; its leaves are the chunks in their order.
    """

    def __init__(
        self, chunks: Corpus, count: CountTokens, split: SplitSentences, points: PredictPoints | None = None
    ) -> None:
        """Makes the trees.

        Args:
            points: the source of sections of strategy `hierarchy`; None is the one that its config names.
        """
        count_word = cache(count)
        words = lambda text: sum(count_word(word) for word in text.split())  # noqa: E731
        config = chunks.made_by.chunking or ChunkConfig()
        trees = _trees(chunks, config, count, split, points)
        self.corpus = chunks if trees is None else tree_corpus(chunks.documents, trees, words)
        sizes = (node.num_tokens for node in self.corpus.nodes)
        known = {} if trees is None else dict(zip(self.corpus.texts, sizes, strict=True))
        self._count = lambda text: known[text] if text in known else words(text)

    def fill(self, fill: FillName, ranking: Ranking, num_tokens: int) -> Context | None:
        """The context of a ranking of chunks; None where the corpus has no trees, and the fill needs them."""
        places, scores = ranking
        ranked = Ranked(self.corpus.leaves[places], scores)
        budget = Budget(num_tokens, self._count, max_notes=0, cut_last=True)
        if fill == "plain":
            return fill_context(self.corpus, ranked, budget)
        if not self.corpus.trees:
            return None
        return (fill_widened if fill == "widen" else merge_context)(self.corpus, ranked, budget)

    def recall(
        self, task: StudyTask, question: StudyQuestion, ranking: Ranking, contexts: Contexts
    ) -> Iterator[tuple[str, float]]:
        """("FILL@BUDGET", ERec) of a question, for every fill that the corpus can have.

        Args:
            ranking: (places among the chunks, scores), best first; as many as the largest budget has tokens, or all.
        """
        pieces = question_pieces(task, question)
        for fill in contexts.fills:
            for budget in contexts.budgets:
                if (context := self.fill(fill, ranking, budget)) is not None:
                    said = "\n".join(passage.text for passage in context.passages)
                    yield f"{fill}@{budget}", evidence_recall(pieces, said)


def question_pieces(task: StudyTask, question: StudyQuestion) -> list[str]:
    """The evidence of a question in pieces (`evidence_pieces`), document by document."""
    texts = {document.id: document.text for document in task.documents if document.id in question.relevant}
    spans: dict[str, list[tuple[int, int]]] = {}
    for part in question.evidence:
        spans.setdefault(part.document_id, []).append((part.start, part.end))
    found = (evidence_pieces(texts[name], task.sentences[name], own) for name, own in spans.items())
    pieces = [piece for pieces in found for piece in pieces]
    if not any(map(normalise_answer, pieces)):
        raise InputError(
            f"{task.name}: question {question.id!r}: its evidence has no word: there is nothing to find; leave the "
            "question out, or measure without budgets"
        )
    return pieces


def section_points(task: StudyTask) -> PredictPoints | None:
    """A source of points that knows the sections of a task's documents; None where the task does not tell them."""
    if not task.sections:
        return None
    known = {document.text: task.sections[document.id] for document in task.documents}
    return lambda texts: [_points(text, known[text.text]) for text in texts]


def known_points(
    config: ChunkConfig | None, points: PredictPoints | None, embed: Embed, fingerprint: str
) -> PredictPoints | None:
    """The source of points that a strategy with trees is handed in; None where it needs none.

    Args:
        points: sections that the task knows, for `hierarchy` by headings.
        embed: sentences -> vectors, for the packaged tagger.
    """
    if config is None or config.strategy not in CHUNKERS.choices("tree"):
        return None
    source = points_of(config)
    if source == "tagger":
        tagger = load_tagger()
        check_encoder(tagger, fingerprint)
        return tagged_points(tagger, embed)
    return points if source == "headings" else None


def _points(text: SentenceText, sections: Sequence[tuple[int, int]]) -> list[Point]:
    """Sections as points: of each unit that one begins in the least level."""
    ends = [end for _, end in text.sentences]
    least: dict[int, int] = {}
    for start, level in sections:
        unit = bisect_right(ends, start)
        least[unit] = min(level, least.get(unit, level))
    return sorted(least.items())


def _trees(
    chunks: Corpus, config: ChunkConfig, count: CountTokens, split: SplitSentences, points: PredictPoints | None
) -> list[ChunkTree] | None:
    if any(len(node.spans) > 1 for node in chunks.nodes):
        return None
    has_tree = config.strategy in CHUNKERS.choices("tree") and config.min_tokens is None
    build = make_tree_builder(config, count, split, points) if has_tree else None
    trees = []
    for document in chunks.documents:
        own = [chunks.nodes[node] for node in chunks.nodes_of(document.id)]
        tree = _flat_tree(document, own, config) if build is None else build(document)
        if [tree.span(leaf) for leaf in tree.leaves.tolist()] != [chunk.spans[0] for chunk in own]:
            return None
        trees.append(tree)
    return trees


def _flat_tree(document: Document, chunks: Sequence[Chunk], config: ChunkConfig) -> ChunkTree:
    """All chunks under the document; of strategy `headings` under those of its sections that begin with a chunk."""
    text = SentenceText(document.text, ())
    starts = {chunk.spans[0][0] for chunk in chunks}
    sections: list[tuple[int, int]] = []
    if config.strategy == "headings":
        tree = heading_tree(text, document.id, config.headings)
        known = zip(tree.start.tolist(), tree.level.tolist(), strict=True)
        sections = [(start, level) for start, level in known if level and start in starts]
    deepest = 1 + max((level for _, level in sections), default=0)
    return tree_from_sections(text, [*sections, *((start, deepest) for start in starts)], document.id)
