"""Classifiers with one output against transformers and sentence-transformers' CrossEncoder, on random weights."""

import numpy as np
import pytest
from support.encoders import random_encoder

from qrag_jax.models.encoder.classifier import PairScorer, load_classifier, new_classifier, save_classifier
from qrag_jax.models.encoder.weights import save_encoder

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("quick_compilation")]

QUESTION = "Where is the milk?"
PASSAGES = [
    "Mary went to the kitchen. John picked up the milk there.",
    "a",
    "The milk is where the kitchen is, and so is the football that John took. " * 8,  # beyond the window
    "",
    "Mary took the milk to the hall.",
]
CLASSES = {
    "bert": "BertForSequenceClassification",
    "roberta": "RobertaForSequenceClassification",
    "xlm-roberta": "XLMRobertaForSequenceClassification",
    "mpnet": "MPNetForSequenceClassification",
    "modernbert": "ModernBertForSequenceClassification",
}


def make_folder(folder, family, **changes):
    """A random classifier that transformers saved, with a tokenizer of ours."""
    import torch
    import transformers

    loaded = random_encoder(family, [QUESTION, *PASSAGES])
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=1, **changes)
    model = getattr(transformers, CLASSES[family])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in CLASSES), ("modernbert", {"classifier_pooling": "mean"})],
    ids=lambda value: str(value),
)
def test_scores_of_a_classifier(tmp_path, family, changes):
    import torch
    from sentence_transformers import CrossEncoder

    make_folder(tmp_path, family, **changes)
    reference = CrossEncoder(str(tmp_path), device="cpu", activation_fn=torch.nn.Identity())
    expected = reference.predict([(QUESTION, passage) for passage in PASSAGES], convert_to_numpy=True)
    score = PairScorer(load_classifier(tmp_path))
    np.testing.assert_allclose(score(QUESTION, PASSAGES), expected, atol=1e-5, rtol=1e-5)
    assert score.counts.num_texts_cut == 1
    np.testing.assert_allclose([score(QUESTION, [passage])[0] for passage in PASSAGES], expected, atol=1e-5)


@pytest.mark.parametrize("family", CLASSES)
def test_a_folder_of_ours_loads_in_cross_encoder(tmp_path, family):
    import jax
    import torch
    from sentence_transformers import CrossEncoder

    made = new_classifier(random_encoder(family, [QUESTION, *PASSAGES]), jax.random.key(0))
    rng = np.random.default_rng(1)
    made.params["head"] = jax.tree.map(
        lambda leaf: rng.normal(0.1, 0.5, leaf.shape).astype(np.float32), made.params["head"]
    )
    save_classifier(tmp_path, made)
    reference = CrossEncoder(str(tmp_path), device="cpu", activation_fn=torch.nn.Identity())
    expected = reference.predict([(QUESTION, passage) for passage in PASSAGES], convert_to_numpy=True)
    np.testing.assert_allclose(PairScorer(made)(QUESTION, PASSAGES), expected, atol=1e-4, rtol=1e-4)
