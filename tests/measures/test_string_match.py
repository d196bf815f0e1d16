"""RULER's string match of answers, by hand."""

import pytest

from qrag_jax.measures.answer_scores import string_match
from qrag_jax.types import InputError


@pytest.mark.parametrize(
    ("answer", "references", "needs_all", "expected"),
    [
        ("They are 12, 34 and 56.", ("12", "34", "99"), True, pytest.approx(2 / 3)),
        ("ABC, def", ("abc", "DEF"), True, 1.0),
        ("", ("12",), True, 0.0),
        ("It was Ann.", ("Bob", "ann"), False, 1.0),
        ("It was Cid.", ("Bob", "ann"), False, 0.0),
        ("112", ("12",), True, 1.0),  # a part of a number counts, as RULER has it
    ],
)
def test_by_hand(answer, references, needs_all, expected):
    assert string_match(answer, references, needs_all) == expected


def test_an_answer_without_references_is_refused():
    with pytest.raises(InputError, match="without reference answers"):
        string_match("x", (), True)
