"""Rows of `benchmarks/points.py` that learn: taggers by what they were trained on. Trained anew for every split.

tagger mixed            on the training documents of both domains
tagger own domain       on those of the domain that is tested
tagger other domain     on all documents of the other domain: what a tagger is worth on a kind that it never saw
..., no paragraphs      the same, and no document has paragraphs, neither in training nor when it is tested

Headings are removed, or plain or kept, in training as they are in the test. The threshold is chosen within the training
documents (`train/tagger.py`): the documents for validation are left out of it all, as they are for other methods.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.tree.points import PredictPoints
from qrag_jax.data.headed import HeadedDocument
from qrag_jax.retrieval.tagging import tagged_points
from qrag_jax.train.tagger import TaggerConfig, fit_tagger
from qrag_jax.types import Embed

CONFIG = TaggerConfig()
NO_PARAGRAPHS = ", no paragraphs"
TRAINED_ON = ("tagger mixed", "tagger own domain", "tagger other domain")
ROWS = (*TRAINED_ON, *(name + NO_PARAGRAPHS for name in TRAINED_ON))


def in_one_line(text: SentenceText) -> SentenceText:
    """The text with a blank for every white space, so that nothing tells where a paragraph begins."""
    return replace(text, text="".join(" " if one.isspace() else one for one in text.text))


def make_tagger_method(name: str) -> Callable[..., tuple[str, PredictPoints]]:
    """A row: (split, documents of the other domain, its training documents, vectors) -> (choice, source).

    Args:
        name: of `ROWS`.
    """
    plain = name.endswith(NO_PARAGRAPHS)
    trained_on = name.removesuffix(NO_PARAGRAPHS)

    def method(
        own: Sequence[HeadedDocument], others: Sequence[HeadedDocument], embed: Embed
    ) -> tuple[str, PredictPoints]:
        documents = {"tagger mixed": [*own, *others], "tagger own domain": own, "tagger other domain": others}[trained_on]
        if plain:
            documents = [replace(one, text=in_one_line(one.text)) for one in documents]
        fitted = fit_tagger(documents, embed, "", "minilm", CONFIG)
        find = tagged_points(fitted.tagger, embed)
        chosen = f"L2 {fitted.strength:g}, threshold {fitted.tagger.threshold:.2f}"
        return chosen, (lambda texts: find([in_one_line(text) for text in texts])) if plain else find

    return method
