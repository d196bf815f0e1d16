"""Training conversations: right rows of every window, other orders, omissions, residual lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import count
from support.scripted_models import first_new, lines_of, outline
from support.tiers import examples

from qrag_jax.annotate.hichunk_examples import ExamplesConfig, make_examples, write_examples
from qrag_jax.annotate.numbered_lines import good_rows, read_rows
from qrag_jax.data.corpora.headed_documents import HeadedDocument, read_headed
from qrag_jax.types import InputError, UsageError


def headed(levels, name="d"):
    text, points = outline(levels)
    return HeadedDocument(name, text, tuple(points), tuple((f"H{unit}",) for unit, _ in points))


def made(levels, **config):
    return list(make_examples([headed(levels)], count, ExamplesConfig(**{"min_tokens": 0, **config})))


def parsed(example):
    """Line -> level, as inference reads the answer."""
    rows, dropped = good_rows(read_rows(example.messages[-1].content), example.num_residual, example.num_lines)
    assert not dropped
    return rows


def new_lines(some):
    """Texts of all lines that windows bring, and the points in them."""
    texts, points = [], []
    for example in some:
        rows = parsed(example)
        for number, text in lines_of(example.messages)[example.num_residual :]:
            points += [(len(texts), rows[number])] if number in rows else []
            texts.append(text)
    return texts, points


LEVELS = [0, 1, 2, 0, 0, 2, 0, 3, 0, 0, 1, 0, 2, 0, 0, 0, 3, 0, 1, 0, 0]


def test_a_conversation_by_hand():
    (plain, *others) = made([1, 0, 2, 0], num_orders=0)
    system, user, answer = plain.messages
    assert (system.role, user.role, answer.role) == ("system", "user", "assistant") and not others
    assert lines_of(plain.messages) == [(0, "* H0"), (1, "text 1"), (2, "+ H2"), (3, "text 3")]
    assert user.content.splitlines()[-1].startswith("The lines from 0 to 3 are new.")
    assert answer.content == "0, Level One, true\n2, Level Two, true"


@examples(40)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(64, 200), st.integers(0, 99))
def test_answers_give_the_points_of_the_document_back(levels, window_tokens, seed):
    levels = [*levels, 1]
    document = headed(levels)
    config = ExamplesConfig(window_tokens=window_tokens, seed=seed, min_tokens=0)
    some = list(make_examples([document], count, config))
    assert new_lines([one for one in some if one.kind == "plain"]) == (document.text.texts(), list(document.points))
    for one in some:
        assert tuple(parsed(one).items()) == tuple((row.line, row.level) for row in one.rows)
        lines = lines_of(one.messages)
        assert sum(count(f"{n}: {text}") for n, text in lines) <= window_tokens
        assert first_new(one.messages) == one.num_residual and len(lines) == one.num_lines
        assert not one.num_residual or lines[0][1].startswith("* ")


def test_other_orders_move_whole_sections():
    some = made(LEVELS, num_orders=2)
    assert [one.kind for one in some] == ["plain", "shuffled", "omitted", "shuffled", "omitted"]
    texts, points = new_lines(some[1:2])
    plain, _ = new_lines(some[:1])
    assert sorted(texts) == sorted(plain) and texts[0] == plain[0] == "text 0"
    sections = [plain[1:10], plain[10:18], plain[18:]]
    starts = sorted(range(3), key=lambda number: texts.index(sections[number][0]))
    assert texts[1:] == [text for number in starts for text in sections[number]]
    assert [level for line, level in points] == [level for n in starts for level in ([1, 2, 2, 3], [1, 2, 3], [1])[n]]
    assert len({tuple(new_lines([one])[0]) for one in made(LEVELS, num_orders=9) if one.kind == "shuffled"}) > 1


def test_omissions_keep_the_beginnings():
    *_, omitted = made(LEVELS, num_orders=1, kept_parts=(2, 2), kept_lines=(2, 2))
    texts, _ = new_lines([omitted])
    kept = [["* H1", "+ H2", "text 3"], ["* H10", "text 11", "+ H12", "text 13"], ["* H18", "text 19"]]
    assert sorted(texts) == sorted(["text 0", *(text for one in kept for text in one)])


def test_small_sections_are_in_no_other_order():
    some = made([1, 0, 0, 0, 1, 1, 0, 0], min_tokens=2)
    assert any("H4" in text for text in new_lines(some[:1])[0])
    assert all("* H4" not in new_lines([one])[0] for one in some[1:]) and len(some) == 7
    assert [one.kind for one in made([1, 0, 0], num_orders=3)] == ["plain"]


def test_residual_lines_are_drawn_within_their_bounds():
    levels = [1, *[2, 0, 0, 0] * 5] * 30
    some = made(levels, window_tokens=300, num_orders=0, residual_lines=(2, 2), residual_sections=(1, 1))
    later = some[1:]
    shown = [[text[0] for _, text in lines_of(one.messages)[: one.num_residual]] for one in later]
    assert later and {marks.count("*") for marks in shown} == {1}
    assert all(1 <= one.num_residual <= 2 * 5 for one in later)
    assert len({one.num_residual for one in later}) > 1


def test_the_same_seed_gives_the_same_examples_whatever_stands_beside():
    alone = made(LEVELS, seed=3)
    config = ExamplesConfig(min_tokens=0, seed=3)
    beside = list(make_examples([headed([1, 0], "e"), headed(LEVELS)], count, config))
    assert beside[1:] == alone and made(LEVELS, seed=4) != alone


@pytest.mark.parametrize("view, titles", [("kept", True), ("plain", True), ("removed", False)])
def test_titles_are_what_the_view_shows(tmp_path, view, titles):
    (tmp_path / "a.md").write_text("# A\n\n## One *x*\n\nText is here.\n\n## Two\n\nMore of it.\n")
    (document,) = read_headed(str(tmp_path / "a.md"), view)
    (example,) = make_examples([document], count, ExamplesConfig())
    assert [(row.level, row.is_title) for row in example.rows] == [(1, titles), (1, titles)]


def test_written_lines(tmp_path):
    some = made(LEVELS)
    assert write_examples(tmp_path / "train.jsonl", some) == len(some) == 7
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert list(rows[0]) == ["messages", "document", "kind"] and rows[-1]["kind"] == "omitted"
    assert rows[0]["messages"][-1] == {"role": "assistant", "content": some[0].messages[-1].content}


def test_what_is_refused():
    bare = HeadedDocument("bare", outline([0, 0])[0], (), ())
    with pytest.raises(InputError, match="bare: has no sections"):
        list(make_examples([bare], count))
    with pytest.raises(UsageError, match="examples.kept_lines 3 2"):
        ExamplesConfig(kept_lines=(3, 2))
    with pytest.raises(UsageError, match="examples.window_tokens 63: at least 64"):
        ExamplesConfig(window_tokens=63)
