import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.chunking.text.words import plain_tokens
from qrag_jax.qrag.text_links import BRIDGES, bridge_features, names_in, title_of

QUESTION = "Who founded the publisher of Red River?"
CHUNKS = (
    "Red River: Red River was published by Routledge. It tells of the north.",
    "Routledge: Routledge is big. George founded Routledge in London.",
    "Blue Lake: Who founded the north? Blue Lake did.",
)


def idf(df, n=3):
    return math.log(1 + (n - df + 0.5) / (df + 0.5))


def bridge(source, chunk, name, chunks=CHUNKS):
    return float(bridge_features(QUESTION, chunks)[source, chunk, BRIDGES.index(name)])


# The question's stems: found stands in chunks 1 and 2, the in 0 and 2, every other one in one chunk.
STEMS = {"who": idf(1), "found": idf(2), "the": idf(2), "publi": idf(1), "of": idf(1), "red": idf(1), "river": idf(1)}


def share(*stems):
    return pytest.approx(sum(STEMS[stem] for stem in stems) / sum(STEMS.values()), rel=1e-5)


def test_the_best_sentence_by_hand():
    # "Red River was published by Routledge": published and publisher have one stem.
    assert bridge(0, 0, "sentence") == share("red", "river", "publi")
    assert bridge(0, 1, "sentence") == share("found")
    assert bridge(0, 2, "sentence") == share("who", "found", "the")
    # Routledge is new in chunk 0, and stands in the second sentence of chunk 1; from there the other way round.
    assert bridge(1, 1, "sentence") == share("found")
    assert bridge(2, 0, "sentence") == share("red", "river", "publi")
    # Blue and Lake stand nowhere else.
    assert bridge(3, 0, "sentence") == bridge(1, 2, "sentence") == 0
    # A source that has the stems itself leaves nothing of them.
    own = ("Bo: Bo published Red River.", "Ada: Bo published Red River.")
    assert bridge(1, 1, "sentence", own) == 0
    assert bridge(0, 1, "sentence", own) > 0


def test_the_rarest_name_by_hand():
    # Red and River stand in chunk 0 alone, Who in chunk 2 alone.
    assert [bridge(0, j, "rarest") for j in range(3)] == pytest.approx([1, 0, 1])
    assert bridge(1, 1, "rarest") == bridge(2, 0, "rarest") == pytest.approx(1)  # Routledge, in these two alone
    assert bridge(1, 2, "rarest") == bridge(3, 0, "rarest") == 0
    more = (*CHUNKS, "London: by Routledge")  # which stands in three of four now; London in two of them
    assert bridge(1, 1, "rarest", more) == pytest.approx(idf(3, 4) / idf(2, 4), rel=1e-5)
    assert bridge(2, 3, "rarest", more) == pytest.approx(1)


def test_the_stems_of_two_chunks_together_by_hand():
    together = share("red", "river", "publi", "of", "the", "found")
    assert bridge(1, 1, "joint") == bridge(2, 0, "joint") == together
    assert bridge(1, 2, "joint") == bridge(3, 0, "joint") == 0
    assert [bridge(0, j, "joint") for j in range(3)] == [together, together, 0]
    # Where four chunks have Routledge, it joins none.
    more = (*CHUNKS, "Paris: by Routledge", "Rome: by Routledge")
    assert bridge(1, 1, "joint", more) == bridge(0, 0, "joint", more) == 0 < bridge(1, 1, "rarest", more)


def slowly(question, chunks):
    """Chunk by chunk, from Python's sets."""
    n, asked, own = len(chunks), stems(question), set(plain_tokens(question))
    words = [set(plain_tokens(chunk)) for chunk in chunks]
    count = lambda word: sum(word in row for row in words)  # noqa: E731
    stem_weight = lambda stem: idf(sum(stem in stems(chunk) for chunk in chunks), n)  # noqa: E731
    total = sum(map(stem_weight, asked)) or 1.0
    part = lambda found: sum(map(stem_weight, found)) / total  # noqa: E731
    rarest = lambda found, df: min(1.0, max((idf(count(w), n) for w in found), default=0.0) / idf(df, n))  # noqa: E731
    new = [set(names_in(chunk)) - own for chunk in chunks]
    x = np.zeros((1 + n, n, len(BRIDGES)))
    for a, chunk in enumerate(chunks):
        body = chunk.partition(": ")[2] if title_of(chunk) else chunk
        sentences = [(stems(s) & asked, set(plain_tokens(s))) for s in re.split(r"(?<=[.!?])\s+", body)]
        x[0, a, :2] = max(part(has) for has, _ in sentences), rarest(set(names_in(question)) & words[a], 1)
        for c in set(range(n)) - {a}:
            common = new[c] & words[a] | new[a] & words[c]
            x[1 + c, a, 0] = max((part(has - stems(chunks[c])) for has, w in sentences if w & new[c]), default=0.0)
            x[1 + c, a, 1] = rarest(common, 2)
            if any(count(word) <= 3 for word in common):
                x[1 + c, a, 2] = part(asked & (stems(chunks[c]) | stems(chunk)))
    x[0, :, 2] = x[1:, :, 2].max(axis=0)
    return x


def stems(text):
    return {word[:5] for word in plain_tokens(text)}


TEXT = st.lists(
    st.sampled_from(["Ada", "ada.", "Bo:", "(x):", "of", "1979", "été", "the", "Ko!", "published"]), min_size=1
)
TEXT = TEXT.map(" ".join)


@given(TEXT, st.lists(TEXT, min_size=1, max_size=6), st.randoms())
def test_against_the_slow_reading_and_whatever_the_order(question, chunks, random):
    links = bridge_features(question, chunks)
    assert links.shape == (1 + len(chunks), len(chunks), len(BRIDGES))
    assert links.dtype == np.float32
    assert (links >= 0).all()
    assert (links <= 1).all()
    np.testing.assert_allclose(links, slowly(question, chunks), atol=1e-6)
    order = list(range(len(chunks)))
    random.shuffle(order)
    moved = bridge_features(question, [chunks[i] for i in order])
    np.testing.assert_allclose(moved, links[[0, *(1 + i for i in order)]][:, order], atol=1e-6)


def test_texts_without_words():
    assert not bridge_features("?", ["...", "!"]).any()


def test_a_context_without_chunks_has_no_pairs():
    assert bridge_features("Who?", []).shape == (1, 0, len(BRIDGES))
