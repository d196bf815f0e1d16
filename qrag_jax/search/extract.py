"""An answer without a language model: the sentences of the passages that answer best, word for word."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qrag_jax.search.context.pack import Passage
from qrag_jax.search.sentences import make_sentence, score_sentences
from qrag_jax.types import Document, Embed, Sentence, UsageError

_MAX_PASSAGES = 5  # only sentences of the best passages are considered
# Least score of a further quote, as a share of the best one. This gives two quotes for a question, which contain the
# answer nearly as often as three do (benchmarks/search/results/sentences.md).
_SHARE_OF_BEST = 0.8


@dataclass(frozen=True)
class Extraction:
    """Sentences that answer a question.

    Attributes:
        quotes: the best first.
    """

    quotes: tuple[Sentence, ...]


def extract(
    question: str,
    passages: Sequence[Passage],
    documents: Mapping[str, Document],
    embed: Embed | None = None,
    num_quotes: int = 3,
) -> Extraction:
    """Quotes the sentences of the five best passages that answer a question.

    Each further quote has at least .8 of the score of the best one, and different words.

    Args:
        question: what is asked.
        passages: of a context, in any order.
        documents: of the passages, by id.
        embed: texts -> vectors; None scores only by words.
        num_quotes: most quotes.

    Returns:
        At least one quote if there is a passage.

    Raises:
        UsageError: `num_quotes` is below 1.
        InputError: as `embed_texts`.
    """
    if num_quotes < 1:
        raise UsageError(f"num_quotes={num_quotes}: give at least 1")
    best = sorted(passages, key=lambda passage: passage.rank)[:_MAX_PASSAGES]
    scored = [
        (score, documents[passage.document_id], span)
        for passage, scores in zip(best, score_sentences(question, best, documents, embed), strict=True)
        for span, score in scores.items()
    ]
    scored.sort(key=lambda one: -one[0])
    quotes: list[Sentence] = []
    for score, document, span in scored:
        if quotes and not 0 < _SHARE_OF_BEST * quotes[0].score <= score:
            break
        if " ".join(document.text[slice(*span)].split()) not in {" ".join(quote.text.split()) for quote in quotes}:
            quotes.append(make_sentence(document, span, score))
        if len(quotes) == num_quotes:
            break
    return Extraction(tuple(quotes))
