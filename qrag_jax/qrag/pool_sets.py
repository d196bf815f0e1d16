"""Questions to one pool of many documents: of a corpus, or of multi-hop sets."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from qrag_jax.data.corpora.file_evidence import Corpus as Files
from qrag_jax.data.corpora.file_questions import read_questions
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion
from qrag_jax.data.questions.multihop import READERS, describe
from qrag_jax.qrag.tasks import PoolQuestion, Task, pool_task
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.pool_texts import PoolTexts, pool_of

_NO_PLACE = "names a document of several chunks without a place in it"


def corpus_pool(corpus: Corpus, name: str, paths: Sequence[str], needs_gold: bool = True) -> Task:
    """Questions whose gold is documents of a corpus and characters in them.

    The gold chunk of a place is the one that has most of it. A question whose documents or texts are not in the corpus
    is left out and counted.

    Args:
        name: of the corpus, or its folder.
        paths: of files of questions (`file_questions.py`).
        needs_gold: False also takes questions without gold that have an answer.

    Raises:
        InputError: a place is outside of its document, the corpus has no vectors, or no question is left.
    """
    pool, places = pool_of(corpus), {int(node): number for number, node in enumerate(corpus.leaves)}
    files = Files({document.id: document.text for document in corpus.documents}, Path(name).absolute().as_posix())
    questions: list[PoolQuestion] = []
    left_out: Counter[str] = Counter()
    for path in paths:
        asked, problems = read_questions(Path(path), files, needs_gold)
        left_out.update(problem.reason for _, problem in problems)
        for question in asked:
            gold = _gold_of(question, corpus, places)
            if gold is None and not needs_gold and question.answers:
                gold = ()
            if gold is None:
                left_out[_NO_PLACE] += 1
            else:
                questions.append(PoolQuestion(question.id, question.text, gold, question.answers))
    told = tuple(f"{number:,} questions left out: {reason}" for reason, number in left_out.items())
    return pool_task(f"corpus {Path(name).name}", pool, questions, sum(left_out.values()), told)


def _gold_of(question: StudyQuestion, corpus: Corpus, places: Mapping[int, int]) -> tuple[int, ...] | None:
    """Numbers of the gold chunks; None if a document of several chunks has no place in it."""
    placed = {part.document_id for part in question.evidence}
    gold = {places[_best_leaf(part, corpus, places)] for part in question.evidence}
    for name in [name for name in question.relevant if name not in placed]:
        leaves = [node for node in corpus.nodes_of(name) if node in places]
        if len(leaves) != 1:
            return None
        gold.add(places[leaves[0]])
    return tuple(sorted(gold))


def _best_leaf(part: Evidence, corpus: Corpus, places: Mapping[int, int]) -> int:
    def overlap(node: int) -> int:
        return sum(max(0, min(end, part.end) - max(start, part.start)) for start, end in corpus.nodes[node].spans)

    leaves = [node for node in corpus.nodes_of(part.document_id) if node in places]
    return max(leaves, key=overlap)


def multihop_pool(sets: Sequence[tuple[str, str]], more: Sequence[tuple[str, str]] = ()) -> Task:
    """All paragraphs of multi-hop questions in one pool, each a document of one chunk; a text is there once.

    Args:
        sets: (kind, file) of `data.questions.multihop`.
        more: (title, text) of further passages.
    """
    read = [(kind, file, READERS[kind](file)) for kind, file in sets]
    titles: dict[str, str] = {}
    for _, _, one in read:
        for example in one.examples:
            titles |= {text: one.titles[text] for text in example.chunks if text not in titles}
    for title, text in more:
        titles.setdefault(f"{title}: {text}" if title else text, title)
    place = {text: number for number, text in enumerate(titles)}
    questions, kinds = [], []
    for kind, _, one in read:
        for example, right in zip(one.examples, one.answers, strict=True):
            gold = tuple(sorted({place[example.chunks[i]] for i in example.gold}))
            questions.append(PoolQuestion(f"{kind}:{example.query_id}", example.question, gold, right))
            kinds.append(kind)
    pool = PoolTexts(list(titles), list(titles.values()), np.arange(len(titles)))
    left_out = sum(sum(one.left_out.values()) for _, _, one in read)
    notes = tuple(describe(Path(file).name, one) for _, file, one in read)
    name = "+".join(dict.fromkeys(kind for kind, *_ in read))
    return pool_task(f"{name} pooled", pool, questions, left_out, notes, kinds)
