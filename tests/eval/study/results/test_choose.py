import numpy as np
import pytest

from qrag_jax.eval.study.results.summary import Choice, choose, dev_score
from qrag_jax.types import InputError


def scores(one, five):
    """F1 of each question at 1 and at 5, beside what must not count."""
    return {"f1@1": np.array(one), "f1@5": np.array(five), "recall@1": np.ones(len(one)), "f1@10": np.ones(len(one))}


def test_by_hand():
    """Means .5 and .2 over two questions are .35; .25 and .5 are .375: the second config."""
    first, second = scores([1.0, 0.0], [0.4, 0.0]), scores([0.5, 0.0], [1.0, 0.0])
    assert dev_score(first, (1, 5)) == pytest.approx(0.35) and dev_score(second, (1, 5)) == pytest.approx(0.375)
    assert choose([first, second], (1, 5)) == Choice(1, True, pytest.approx(0.375))
    assert choose([first, second], (1,)).number == 0


def test_the_first_of_equals():
    """0.1 + 0.2 and 0.3 are the same F1 by other sums."""
    best = [scores([0.1, 0.2], [0.0, 0.0]), scores([0.3, 0.0], [0.0, 0.0])]
    assert choose(best, (1, 5)).number == choose(best[::-1], (1, 5)).number == 0
    assert choose([scores([0.0, 0.1], [0.0, 0.0]), *best, *best], (1, 5)).number == 1


def test_without_dev_the_first_is_taken_and_called_so():
    assert choose(None, (1, 5)) == Choice(0, False, None)


@pytest.mark.parametrize(
    ("configs", "ks", "message"),
    [
        ([], (1,), "no configs"),
        ([scores([1.0], [1.0])], (1, 3), r"not scored for \[3\]"),
        ([scores([1.0], [1.0])], (), "score every k"),
        ([scores([1.0, np.nan], [1.0, 1.0])], (1,), "is nan"),
    ],
)
def test_refusals(configs, ks, message):
    with pytest.raises(InputError, match=message):
        choose(configs, ks)
