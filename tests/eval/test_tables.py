import pytest

from qrag_jax.eval.tables import align, share

TABLE = [["chunks", "EM"], ["5", ".750"], ["1,280", "1.000 .9-1.0"]]


@pytest.mark.parametrize(
    ("value", "options", "text"),
    [
        (0.9549, {}, ".955"),
        (0.9996, {}, "1.000"),
        (0.0, {}, ".000"),
        (10.5, {}, "10.500"),  # of "0." only one that leads
        (0.0000125, {"digits": 6}, ".000013"),
        (0.0214, {"sign": "+"}, "+.021"),
        (-0.0214, {"sign": "+"}, "-.021"),
    ],
)
def test_shares(value, options, text):
    assert share(value, **options) == text


def test_columns_of_a_terminal_end_without_blanks():
    assert align(TABLE) == ["chunks  EM", "5       .750", "1,280   1.000 .9-1.0"]
    assert align([["a", "b"], ["long", ""]]) == ["a     b", "long"]


def test_each_column_has_its_side():
    assert align(TABLE, (True, False)) == ["chunks  EM", "     5  .750", " 1,280  1.000 .9-1.0"]


def test_markdown_says_the_side_in_its_rule():
    assert align(TABLE[:2], (False, True), markdown=True) == [
        "| chunks |   EM |",
        "|--------|-----:|",
        "| 5      | .750 |",
    ]


def test_a_row_of_another_length_is_no_table():
    with pytest.raises(ValueError, match="zip"):
        align([["a", "b"], ["c"]])
