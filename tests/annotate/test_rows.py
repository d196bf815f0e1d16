"""Rows of lines and levels: read from answers of any kind, checked, held to their grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.annotate import numbered_lines as rows
from qrag_jax.annotate.numbered_lines import Answer, Row, RowsForm, format_rows, good_rows, read_rows
from qrag_jax.models.grammar.compile import compile_grammar
from qrag_jax.types import InputError

ROWS = st.lists(st.builds(Row, st.integers(0, 30), st.integers(1, 10), st.booleans()), max_size=8)


def test_an_answer_by_hand():
    text = "0, Level One, true\n\n  - 4, level two, False \nThe end\n12, Level Zero, true\n7, Level Ten"
    answer = read_rows(text)
    assert answer.rows == (Row(0, 1, True), Row(4, 2), Row(12, 0, True), Row(7, 10)) and answer.num_other == 1
    assert format_rows(answer.rows[:2]) == "0, Level One, true\n4, Level Two, false"
    assert read_rows(" None. ") == read_rows("none") == Answer(()) and format_rows([]) == "none"


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "it is empty; where no line begins a part, it is 'none'"),
        (" \n", "it is empty"),
        ("Sorry, I cannot.", "no line of it is a row like '12, Level Two, false', and it is not 'none'"),
        ("3, Level Zero, true", "no line of it is a row"),
        ("1234567890, Level One, true", "no line of it is a row"),
    ],
)
def test_an_answer_without_any_row_is_refused(text, reason):
    with pytest.raises(InputError, match=reason):
        read_rows(text)


def test_bad_rows_are_counted_by_reason():
    given_rows = [(99_999, 1), (1, 1), (3, 0), (5, 1), (5, 2), (4, 1), (4, 2), (8, 3), (9, 1), (2, 1)]
    answer = Answer(tuple(Row(line, level) for line, level in given_rows), num_other=2)
    kept, dropped = good_rows(answer, num_read=2, num_lines=10, known={2: 1})
    # 4 of level 1 comes behind 5 of level 1, but 4 of level 2 behind nothing of its level; 2 was known.
    assert kept == {4: 2, 5: 1, 8: 3, 9: 1} and list(kept) == [4, 5, 8, 9]
    assert dropped == {
        rows.NO_ROW: 2,
        rows.OUT_OF_RANGE: 1,
        rows.READ_BEFORE: 1,
        rows.LEVEL_UNKNOWN: 1,
        rows.REPEATED: 1,
        rows.NOT_RISING: 1,
    }
    assert good_rows(Answer((Row(2, 3),)), 2, 10, {2: 1}) == ({}, {rows.REPEATED: 1})


@examples(50)
@given(ROWS, st.integers(0, 5), st.integers(6, 31))
def test_good_rows_are_in_range_rise_and_none_is_lost(given_rows, num_read, num_lines):
    kept, dropped = good_rows(Answer(tuple(given_rows)), num_read, num_lines)
    assert list(kept) == sorted(kept) and all(num_read <= line < num_lines for line in kept)
    assert len(kept) + sum(dropped.values()) == len(given_rows)
    for level in set(kept.values()):  # each level as a loop over it alone would take it
        last, mine = -1, []
        for row in given_rows:
            if row.level == level and kept.get(row.line) == level and row.line > last:
                last = row.line
                mine.append(row.line)
        assert mine == [line for line in kept if kept[line] == level]


@examples(30)
@given(ROWS)
def test_what_is_written_is_read(given_rows):
    assert read_rows(format_rows(given_rows)) == Answer(tuple(given_rows))


@examples(30)
@given(ROWS, st.integers(2, 40))
def test_the_grammar_admits_rising_rows_of_its_window_alone(given_rows, window_lines):
    rising, free = (compile_grammar(RowsForm(lines).grammar) for lines in (window_lines, None))
    text = format_rows(given_rows)
    lines = [row.line for row in given_rows]
    is_good = lines == sorted(set(lines)) and all(line < window_lines for line in lines)
    ended = text + "\n" if given_rows else text
    assert (rising.fault(ended) is None) == is_good
    assert free.fault(text) is None and free.fault(ended) is None or not given_rows
    assert free.fault("3, Level Zero, true") is not None and free.fault("03, Level One, true") is not None


def test_many_lines_have_the_grammar_of_any_order():
    assert RowsForm(rows.MAX_RISING + 1).grammar == RowsForm(None).grammar != RowsForm(rows.MAX_RISING).grammar
