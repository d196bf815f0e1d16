"""Breakpoints: each threshold by hand and by its formula, the paper's figures, short texts, windows, memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig, find_breaks, make_breakpoint, windowed_texts
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.types import InputError, UsageError

RELATIVE = ["percentile", "standard_deviation", "interquartile", "gradient"]
ALL = [*RELATIVE, "absolute", "absolute_gradient"]
# Sentences of each chunk in the breakpoint rows of Figures 6 and 7 (percentile, 70), counted from 1 as printed there.
FIGURE_6 = [[1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12], [13, 14, 15, 16]]
FIGURE_7 = [[1, 2, 3, 4, 5], [6, 7], [8], [9, 10, 11], [12], [13, 14, 15]]


def sentence_text(num_sentences):
    sentences = [f"Sentence {i}." for i in range(num_sentences)]
    starts = np.cumsum([0, *(len(sentence) + 1 for sentence in sentences)]).tolist()
    spans = tuple((start, start + len(sentence)) for start, sentence in zip(starts, sentences, strict=False))
    return SentenceText(" ".join(sentences), spans)


def turned_by(distances):
    """Vectors in the plane whose neighbours have the given cosine distances."""
    angles = np.cumsum([0.0, *np.arccos(1 - np.asarray(distances, float))])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def chunks(vectors, **config):
    """Sentence numbers of every chunk, from 1."""
    text = sentence_text(len(vectors))
    groups = make_breakpoint(BreakpointConfig(**config), lambda texts: vectors)(text)
    return [[text.sentences.index(span) + 1 for span in group.spans] for group in groups]


@pytest.mark.parametrize(
    ("threshold", "value", "breaks"),
    [
        ("percentile", 75, [3]),  # of 5 distances the 4th, 0.4, which is not above itself
        ("percentile", 50, [1, 3]),
        ("standard_deviation", 1, [3]),  # 0.32 + 0.2135
        ("standard_deviation", 0.3, [1, 3]),  # 0.32 + 0.064
        ("interquartile", 0.3, [1, 3]),  # 0.32 + 0.3 * (0.4 - 0.2)
        ("interquartile", 0.5, [3]),
        ("gradient", 70, [0, 2]),  # of the gradient 0.2, 0, 0.15, -0.05, -0.6: 0.12
        ("absolute", 0.4, [3]),
        ("absolute", 0.39, [1, 3]),
        ("absolute_gradient", 0.1, [0, 2, 4]),  # a steep fall counts as well
    ],
)
def test_thresholds_by_hand(threshold, value, breaks):
    assert find_breaks(np.array([0.2, 0.4, 0.2, 0.7, 0.1]), threshold, float(value)).tolist() == breaks


def slow_percentile(values, percent):
    """Between the two sorted values around rank percent / 100 * (n - 1)."""
    values, rank = sorted(values), percent / 100 * (len(values) - 1)
    low = int(rank)
    high = min(low + 1, len(values) - 1)
    return values[low] + (rank - low) * (values[high] - values[low])


def slow_gradient(d):
    inner = [(d[i + 1] - d[i - 1]) / 2 for i in range(1, len(d) - 1)]
    return [d[1] - d[0], *inner, d[-1] - d[-2]]


def slow_limit(d, threshold, value):
    mean = sum(d) / len(d)
    if threshold == "standard_deviation":
        return mean + value * (sum((x - mean) ** 2 for x in d) / len(d)) ** 0.5
    if threshold == "interquartile":
        return mean + value * (slow_percentile(d, 75) - slow_percentile(d, 25))
    return slow_percentile(d, value)


@examples(200)
@given(
    distances=st.lists(st.integers(0, 64).map(lambda k: k / 32), min_size=2, max_size=30),
    threshold=st.sampled_from(RELATIVE),
    value=st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0, 10.0, 50.0, 95.0, 100.0]),
)
def test_relative_thresholds_are_their_formulas(distances, threshold, value):
    compared = slow_gradient(distances) if threshold == "gradient" else distances
    limit = slow_limit(compared, threshold, value)
    breaks = set(find_breaks(np.array(distances), threshold, value).tolist())
    surely = {i for i, x in enumerate(compared) if x > limit + 1e-9}
    never = {i for i, x in enumerate(compared) if x < limit - 1e-9}
    assert surely <= breaks and not breaks & never  # between the two rounding decides


@pytest.mark.parametrize("threshold", ALL)
def test_equal_distances_are_not_broken(threshold):
    assert find_breaks(np.full(9, 0.25), threshold, 0.25 if threshold == "absolute" else 50.0).tolist() == []


@pytest.mark.parametrize("threshold", ALL)
def test_short_texts(threshold):
    assert chunks(np.ones((1, 2)), threshold=threshold) == [[1]]
    two = [[1], [2]] if threshold == "absolute" else [[1, 2]]  # 1 apart, and the default distance is 0.5
    assert chunks(np.eye(2), threshold=threshold) == two
    assert sum(chunks(np.eye(3), threshold=threshold), []) == [1, 2, 3]
    assert chunks(np.zeros((0, 2)), threshold=threshold) == []


def test_figure_6():
    """Its 70th percentile lies on a value that occurs twice, so that 4 of 15 distances are above it and not 5."""
    distances = np.array([0.1, 0.2, 0.6, 0.3, 0.2, 0.1, 0.8, 0.4, 0.1, 0.2, 0.9, 0.7, 0.3, 0.4, 0.2])
    breaks = find_breaks(distances, "percentile", 70.0)
    assert (breaks + 1).tolist() == [group[-1] for group in FIGURE_6[:-1]]
    assert chunks(turned_by(distances), threshold="absolute", value=0.5) == FIGURE_6


def test_figure_7():
    """5 of 14 distances are above the 65th percentile; above the 70th, which the figure names, are 4 at most."""
    distances = np.array([0.1, 0.2, 0.15, 0.3, 0.8, 0.25, 0.7, 0.75, 0.12, 0.22, 0.65, 0.6, 0.35, 0.05])
    assert chunks(turned_by(distances), threshold="percentile", value=65) == FIGURE_7
    without_the_smallest = FIGURE_7[:4] + [[12, 13, 14, 15]]
    assert chunks(turned_by(distances), threshold="percentile", value=70) == without_the_smallest


@examples(200)
@given(
    seed=st.integers(0, 10_000),
    num_sentences=st.integers(1, 40),
    threshold=st.sampled_from(ALL),
    value=st.one_of(st.none(), st.sampled_from([0.0, 0.1, 1.0, 50.0])),
)
def test_every_sentence_is_in_one_chunk_in_order(seed, num_sentences, threshold, value):
    vectors = np.random.default_rng(seed).normal(size=(num_sentences, 3))
    found = chunks(vectors, threshold=threshold, value=value)
    assert sum(found, []) == list(range(1, num_sentences + 1)) and all(found)
    assert chunks(vectors, threshold=threshold, value=value) == found


def test_defaults_are_langchains():
    distances = np.linspace(0.01, 0.3, 40)
    assert [group[-1] for group in chunks(turned_by(distances))[:-1]] == [39, 40]  # 2 of 40 above the 95th


def test_windows_are_embedded_as_they_stand_in_the_document():
    text = SentenceText("One.\n\nTwo.  Three. Four.", ((0, 4), (6, 10), (12, 18), (19, 24)))
    assert windowed_texts(text, 0) == ["One.", "Two.", "Three.", "Four."]
    assert windowed_texts(text, 1) == ["One.\n\nTwo.", "One.\n\nTwo.  Three.", "Two.  Three. Four.", "Three. Four."]
    assert windowed_texts(text, 9) == [text.text] * 4
    asked = []
    strategy = make_breakpoint(BreakpointConfig(window=1), lambda texts: asked.extend(texts) or np.eye(4))
    spans = [span for group in strategy(text) for span in group.spans]
    assert asked == windowed_texts(text, 1) and tuple(spans) == text.sentences


def test_an_embedder_without_a_number_is_refused():
    with pytest.raises(InputError, match="vector of 'Sentence 1.' is not finite, it has nan"):
        chunks(np.array([[1.0], [np.nan]]))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"threshold": "median"}, "breakpoint.threshold 'median': choose one of percentile, "),
        ({"value": 101.0}, "breakpoint.value 101.0: percentile takes a percentile from 0 to 100"),
        ({"value": -1.0, "threshold": "gradient"}, "breakpoint.value -1.0: gradient takes"),
        ({"value": float("nan")}, "breakpoint.value nan: give a finite number"),
        ({"value": float("inf"), "threshold": "absolute"}, "breakpoint.value inf"),
        ({"value": -0.1, "threshold": "absolute"}, "breakpoint.value -0.1: absolute takes a distance"),
    ],
)
def test_refusals(config, message):
    with pytest.raises(UsageError, match=message):
        make_breakpoint(BreakpointConfig(**config), lambda texts: np.ones((len(texts), 2)))


def test_no_matrix_of_all_pairs():
    """20,000 sentences: a matrix of all pairs would be 1.6 GB even in float32."""
    vectors = np.random.default_rng(0).normal(size=(20_000, 16)).astype(np.float32)
    text = sentence_text(len(vectors))
    strategy = make_breakpoint(BreakpointConfig(), lambda texts: vectors)
    tracemalloc.start()
    strategy(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25
