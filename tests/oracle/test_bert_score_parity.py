"""BERTScore against the package of its authors, bert-score."""

import numpy as np
import pytest

from qrag_jax.measures.answer_vectors import bert_score, match_tokens
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.sources import MINILM, find_encoder
from qrag_jax.models.encoder.weights import load_encoder

pytestmark = pytest.mark.oracle

PAIRS = [
    ("The milk is in the kitchen.", "Mary took the milk to the kitchen."),
    ("It was not found.", "President Carter spoke of it in 1978."),
    ("Café naïve, 日本語.", "A naive café in Japan"),
    ("yes", "Yes."),
]


def reference_matching(candidate, reference):
    """Precision, recall and F1 of `bert_score`'s own matching; all tokens count, none are special."""
    import torch
    from bert_score.utils import greedy_cos_idf

    sides = []
    for vectors in (reference, candidate):
        # Copies: the package normalises in place.
        sides += [torch.tensor(np.array(vectors))[None], *torch.ones(2, 1, len(vectors), dtype=torch.float64)]
    return [float(score) for score in greedy_cos_idf(*sides)]


def as_list(score):
    return [score.precision, score.recall, score.f1]


@pytest.mark.parametrize("seed", range(20))
def test_matching(seed):
    random = np.random.default_rng(seed)
    # At least 3 tokens: the package takes 2 for the special tokens of an empty text. A common part, as encoders have.
    candidate, reference = (random.normal(size=(random.integers(3, 30), 8)) + 0.3 for _ in range(2))
    np.testing.assert_allclose(
        as_list(match_tokens(candidate, reference)), reference_matching(candidate, reference), rtol=1e-9
    )


@pytest.fixture(scope="module")
def minilm():
    return make_embedder(load_encoder(MINILM))


def published(answers, references):
    from bert_score import BERTScorer

    scorer = BERTScorer(model_type=str(find_encoder(MINILM)), num_layers=6, device="cpu")
    return np.stack([score.numpy() for score in scorer.score(answers, references)], axis=1)


def test_texts_differ_by_what_special_tokens_match_only(minilm):
    """With [CLS] and [SEP] as matches, the published score can only be higher; of sentences it is by little."""
    ours = np.array([as_list(bert_score(answer, [reference], minilm.tokens)) for answer, reference in PAIRS])
    theirs = published(*map(list, zip(*PAIRS, strict=True)))
    assert (theirs >= ours - 1e-5).all()
    np.testing.assert_allclose(ours[:3], theirs[:3], atol=0.02)
    # Of one word it is much: the full stop of the reference is like [SEP] and like nothing else in "yes".
    assert theirs[3, 1] > ours[3, 1] + 0.3


def test_texts_whose_tokens_are_read_with_the_special_ones(minilm):
    """The published number to 1e-5, once our matching is given the published tool's candidates."""
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(find_encoder(MINILM)), device="cpu")

    def with_special(text):
        return encoder.encode(text, output_value="token_embeddings", convert_to_numpy=False).numpy()

    expected = published(*map(list, zip(*PAIRS, strict=True)))
    for (answer, reference), (precision, recall, _) in zip(PAIRS, expected, strict=True):
        a, r = with_special(answer), with_special(reference)
        by_token = [match_tokens(a[i : i + 1], r).precision for i in range(1, len(a) - 1)]
        assert np.mean(by_token) == pytest.approx(precision, abs=1e-5)
        by_token = [match_tokens(a, r[i : i + 1]).recall for i in range(1, len(r) - 1)]
        assert np.mean(by_token) == pytest.approx(recall, abs=1e-5)


def test_f1_of_several_references_is_the_published_best(minilm):
    answer, references = "The milk is in the kitchen.", [reference for _, reference in PAIRS]
    (expected,) = published([answer], [references])
    assert bert_score(answer, references, minilm.tokens).f1 == pytest.approx(expected[2], abs=0.02)
