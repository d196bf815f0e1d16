import numpy as np
import pytest
from support.headed_documents import hashed_vectors, headed_document

from qrag_jax.models.tagger.features import (
    BLOCKS,
    Gaps,
    cohesion_columns,
    fit_basis,
    principal_components,
    standardise,
    text_gaps,
    with_components,
)
from qrag_jax.types import InputError


def unit_rows(texts):
    rows = hashed_vectors(texts)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def read(number, gap=" "):
    text = headed_document(number, gap=gap).text
    vectors = unit_rows(text.texts())
    return text_gaps(text.texts(), np.arange(len(text)) == 0, vectors), vectors


def test_cosines_of_blocks_by_hand():
    """a a b b: across the middle everything changes."""
    a, b = [1.0, 0.0], [0.0, 1.0]
    rows = cohesion_columns(np.array([a, a, b, b]))
    assert rows[1:, 0].tolist() == [1, 0, 1]  # one sentence on each side
    assert rows[1:, 3] == pytest.approx([1 / np.sqrt(2), 0, 1 / np.sqrt(2)])  # two: a | a b, a a | b b, a b | b
    assert rows[2, 2] == pytest.approx(2)  # depth in the middle: 1 on both sides


def test_cosines_of_blocks_are_those_of_a_slow_reading():
    vectors = np.random.default_rng(0).normal(size=(40, 5))
    rows = cohesion_columns(vectors)
    for k, size in enumerate(BLOCKS):
        for i in range(1, 40):
            a, b = vectors[max(i - size, 0) : i].sum(axis=0), vectors[i : i + size].sum(axis=0)
            assert rows[i, 3 * k] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-9)


def test_cosines_do_not_see_the_length_of_vectors_nor_a_rotation():
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(12, 6))
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    np.testing.assert_allclose(cohesion_columns(vectors), cohesion_columns(3 * vectors @ turn), atol=1e-9)


def test_principal_components_are_those_of_a_singular_value_decomposition():
    vectors = np.random.default_rng(2).normal(size=(60, 6)) @ np.diag([6, 5, 4, 3, 2, 1])
    centre, components = principal_components([vectors[:25], vectors[25:]], 3)
    _, _, right = np.linalg.svd(vectors - vectors.mean(axis=0))
    np.testing.assert_allclose(centre, vectors.mean(axis=0))
    np.testing.assert_allclose(np.abs((components * right[:3].T).sum(axis=0)), 1, atol=1e-9)
    assert (components[np.abs(components).argmax(axis=0), range(3)] > 0).all()


def test_components_are_those_of_the_sentences_around_the_gap():
    gaps, vectors = read(0)
    centre, components = principal_components([vectors], 2)
    whole = with_components(gaps, vectors, centre, components)
    parts = ((vectors - centre) @ components).astype(np.float32)
    np.testing.assert_allclose(whole.features[3, :8], np.concatenate([parts[2], parts[3], parts[4], parts[5]]))
    np.testing.assert_array_equal(whole.features[:, 8:], gaps.features)


def test_standardised_features_have_mean_zero_and_deviation_one():
    (first, vectors), (second, _) = read(0), read(1)
    centre, components = principal_components([vectors], 2)
    basis = fit_basis([first, second], centre, components)
    rows = (np.concatenate([first.features, second.features]) - basis.mean) / basis.std
    alive = rows.std(axis=0) > 1e-3
    assert alive.sum() > 50
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(rows.std(axis=0)[alive], 1, atol=1e-4)


def test_a_shift_and_a_scale_of_features_change_nothing_once_standardised():
    (first, vectors), (second, _) = read(0), read(1)
    centre, components = principal_components([vectors], 2)
    rng = np.random.default_rng(0)
    shift, scale = rng.normal(size=first.features.shape[1]), rng.uniform(1, 3, first.features.shape[1])
    moved = [Gaps((one.features * scale + shift).astype(np.float32), one.cues) for one in (first, second)]
    plain, other = (fit_basis(both, centre, components) for both in ([first, second], moved))
    alive = plain.std != 1  # constant ones have nothing to be scaled by
    expected, found = standardise(second, plain).features, standardise(moved[1], other).features
    np.testing.assert_allclose(found[:, alive], expected[:, alive], atol=1e-3)


def test_extreme_features_are_held():
    gaps, vectors = read(0)
    basis = fit_basis([gaps], *principal_components([vectors], 2))
    far = Gaps(gaps.features + np.float32(1e9), gaps.cues)
    assert np.abs(standardise(far, basis).features).max() == 8


def test_features_of_another_version_are_refused():
    gaps, vectors = read(0)
    basis = fit_basis([gaps], *principal_components([vectors], 2))
    with pytest.raises(InputError, match="train it again"):
        standardise(Gaps(gaps.features[:, 1:], gaps.cues), basis)


@pytest.mark.parametrize("texts", [[], ["One."]])
def test_a_document_without_a_gap_has_no_row_of_the_same_width(texts):
    gaps = text_gaps(texts, np.ones(len(texts), bool), unit_rows(texts))
    assert gaps.features.shape == (0, read(0)[0].features.shape[1])
    assert gaps.cues.shape == (0, read(0)[0].cues.shape[1])
