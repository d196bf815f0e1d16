"""Rows of tables stay whole under every strategy, and a chunk without the head of its table has it as context."""

import re
from dataclasses import replace

import pytest
from support.odd_texts import check_chunks, embed_by_hash

from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.chunking.strategies.fixed import FixedConfig
from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.tables import (
    context_of,
    cut_at_rows,
    find_tables,
    join_context,
    join_in_rows,
    make_row_splitter,
    searched_text,
)
from qrag_jax.names import CHUNKERS
from qrag_jax.types import Document


def count(text):
    """Tokens are words and marks, as WordPiece counts them."""
    return len(re.findall(r"\w+|[^\w\s]", text))


HEAD = "| Berth | Fee. In euros | Note |"
ROWS = [f"| B{n} | {100 + n}.50 | Ask Dr. Hale. He knows. |" for n in range(1, 41)]
BARE_ROWS = [f"M{n} | {n} kW | {'long ' * (n % 7)}hours" for n in range(30)]
BARE_HEAD = "Model | Power | Use"
FEES_HEAD = f"{HEAD}\n|---|--:|:--|"
BARE_ROWS_READ = [row.strip() for row in BARE_ROWS]
TEXT = "\n".join(
    [
        "# Harbour\n\nThe harbour has forty berths. All are let by the year.\n\n## Fees of *berths*\n",
        "These are the fees:",
        *(HEAD, "|---|--:|:--|", *ROWS),
        "\nThey are due in spring. Late payers pay twice.\n\n## Motors\n",
        *(BARE_HEAD, "--- | --- | ---", *BARE_ROWS),
        "\n```\n| a | b |\n|---|---|\n| code | is no table |\n```\n",
    ]
)


def span_of(line):
    return TEXT.index(line), TEXT.index(line) + len(line)


def test_the_tables_of_a_text():
    fees, motors = find_tables(TEXT)
    assert [TEXT[slice(*row)] for row in fees.rows] == [FEES_HEAD, *ROWS]
    assert [TEXT[slice(*row)] for row in motors.rows] == [f"{BARE_HEAD}\n--- | --- | ---", *BARE_ROWS_READ]
    assert [TEXT[table.top :][:9] for table in (fees, motors)] == ["## Fees o", "## Motors"]
    assert (fees.titles, fees.head) == (("Fees of *berths*", "These are the fees:"), HEAD)
    assert (motors.titles, motors.head) == (("Motors",), BARE_HEAD)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a | b\n\nno table",
        "| a |\n|---|\n",
        "| a | b |\n|---|\n| c | d |",
        "a\n---\n| b |",
        "```\n|a|\n|-|\n|b|\n```",
    ],
)
def test_what_is_no_table(text):
    assert find_tables(text) == ()


@pytest.mark.parametrize(
    ("text", "head", "titles"),
    [
        ("| a | b |\r\n|---|---|\r\n| c | d |\r\n", "| a | b |", ()),
        ("- item\n\n  | a | b |\n  |:-:|---|\n  | c | d |\n", "| a | b |", ()),
        ("# T\n\n> | a | b |\n> |---|---|\n> | c | d |\n", "| a | b |", ("T",)),
        ("# T\n\n" + "Long. " * 50 + "\n\na | b\n--|--\nc | d", "a | b", ("T",)),
        ("---\nk: v\n---\n\nCap\n\n| a |\n|---|\n| c |", "| a |", ("Cap",)),
        ("| a \\| b | c |\n|---|---|\n| d | e |\n\n| x |", "| a \\| b | c |", ()),
        ("# T\n\n\x0c\nCap\n| a |\n|---|\n| c |", "| a |", ("T", "Cap")),  # of a page
    ],
)
def test_tables_of_any_form(text, head, titles):
    (table,) = find_tables(text)
    assert (table.head, table.titles, len(table.rows)) == (head, titles, 2)
    assert text[slice(*table.rows[1])].strip("> |").split(" ")[0] in ("c", "d")
    assert text[table.rows[0][0] :].startswith(head)


def test_each_of_two_tables_has_its_own_titles():
    text = "# One\n\nFirst\n\n| a |\n|---|\n| b |\n\n| c |\n|---|\n| d |\n\nText.\n\n# Two\n\n| e |\n|---|\n| f |"
    assert [table.titles for table in find_tables(text)] == [("One", "First"), ("One",), ("Two",)]


def test_a_chunk_has_what_it_lacks_of_titles_and_head_as_context():
    whole = f"Fees of *berths*\nThese are the fees:\n{HEAD}"
    start, end = span_of(ROWS[3])
    assert context_of(TEXT, [(start, end)]) == whole
    assert context_of(TEXT, [(start + 5, end), span_of("Late payers")]) == whole
    assert context_of(TEXT, [span_of(HEAD)]) == "Fees of *berths*\nThese are the fees:"
    assert context_of(TEXT, [span_of("|---|--:|:--|")]) == whole
    for line in ("## Fees", "These are", "Late payers", "## Motors", "| code"):
        assert context_of(TEXT, [span_of(line)]) == ""
    assert join_context("", "text") == searched_text("", "text") == "text"
    assert join_context("head", "text") == searched_text("head", "text") == "head\ntext"
    assert searched_text("a long head", "text") == "text\na long head"


def test_a_long_head_is_cut_between_cells():
    head = f"| {' | '.join(f'column {n}' for n in range(500))} |"
    text = f"{head}\n|{'---|' * 500}\n| 1 |\n| 2 |"
    context = context_of(text, [(len(text) - 5, len(text))])
    assert 900 < len(context) <= 1010 and head.startswith(context.removesuffix("| ...")) and context.endswith(" | ...")


def test_the_sentences_of_a_table_are_its_rows():
    split = make_row_splitter(split_sentences)
    found = [TEXT[slice(*span)] for span in split(TEXT)]
    assert {*ROWS, *BARE_ROWS_READ, FEES_HEAD} <= set(found)
    assert "Late payers pay twice." in found
    assert split("One. Two.") == split_sentences("One. Two.")


def test_spans_in_a_row_are_joined():
    text = "a\n\n| a | b |\n|---|---|\n| c\u2028d | e |\n| f | g |\n\nb\u2028c"
    parts = [match.span() for match in re.finditer(r"[^\n\u2028]+", text)]
    assert [text[slice(*span)] for span in join_in_rows(text, parts)] == [
        "a", "| a | b |\n|---|---|", "| c\u2028d | e |", "| f | g |", "b", "c",
    ]  # fmt: skip
    assert text[slice(*join_in_rows(text, parts, titles=True)[0])] == "a\n\n| a | b |\n|---|---|"


@pytest.mark.parametrize("strategy", CHUNKERS.names)
@pytest.mark.parametrize("max_tokens", [30, 60, 200])
def test_rows_are_never_cut_where_they_fit(strategy, max_tokens):
    chunks = make_chunker(ChunkConfig(strategy, max_tokens), count, embed_by_hash)(document := Document("a", TEXT))
    check_chunks(document, chunks, count, max_tokens)
    spans = [span for chunk in chunks for span in chunk.spans]
    for row in [*ROWS, *BARE_ROWS_READ]:
        start, end = span_of(row)
        assert any(first <= start and end <= last for first, last in spans), row
    for chunk in chunks:
        context = context_of(TEXT, chunk.spans)
        if HEAD in context and TEXT[slice(*chunk.spans[0])].count("\n"):
            both = count(join_context(context, chunk_text(TEXT, chunk.spans)))
            assert both <= max_tokens + max(0, count(context) - max_tokens // 2)


def test_a_row_that_does_not_fit_is_cut_and_each_part_has_the_context():
    text = f"{HEAD}\n|---|---|---|\n| B1 | 2 | {'many words ' * 50}|\n{ROWS[1]}"
    chunks = make_chunker(ChunkConfig("recursive", 40), count)(document := Document("a", text))
    check_chunks(document, chunks, count, 40)
    inside = [chunk for chunk in chunks if "many" in chunk_text(text, chunk.spans)]
    assert len(inside) >= 4 and all(context_of(text, chunk.spans) == HEAD for chunk in inside)


def test_a_wide_head_leaves_half_of_a_chunk_to_the_rows():
    names = " | ".join(f"name {n}" for n in range(60))
    rows = [f"| r{n} | {n} |" for n in range(200)]
    text = "\n".join([f"| {names} |", "|" + "---|" * 60, *rows])
    chunks = make_chunker(ChunkConfig("recursive", 100), count)(Document("a", text))
    assert all(40 <= chunk.num_tokens <= 50 for chunk in chunks[5:-1]) and len(chunks) > 20


@pytest.mark.parametrize("strategy", ["fixed", "recursive", "late", "hierarchy", "levels"])
@pytest.mark.parametrize(
    "text", ["word " * 5_000, "x" * 20_000, "one\n" * 3_000, "One. " * 3_000, f"a\n\n{'b ' * 2_000}\n\nc", TEXT * 9]
)
def test_256_tokens_are_a_bound_without_any_size(strategy, text):
    chunks = make_chunker(ChunkConfig(strategy), count_pieces)(document := Document("a", text))
    check_chunks(document, chunks, count_pieces, 256)


def count_pieces(text):
    """A token for each 5 characters of a word, and one for each mark."""
    return len(re.findall(r"\w{1,5}|[^\w\s]", text))


def test_a_size_of_the_strategy_is_as_asked_for_and_documents_stay_whole():
    text = f"{'word ' * 1_000}. {'more ' * 1_000}."
    own = ChunkConfig(fixed=FixedConfig(sentences_per_chunk=1))
    for config, sizes in (
        (own, [1_001, 1_001]),
        (ChunkConfig("document"), [2_002]),
        (ChunkConfig("headings"), [2_002]),
    ):
        assert [chunk.num_tokens for chunk in make_chunker(config, count)(Document("a", text))] == sizes
    joined = make_chunker(ChunkConfig(min_tokens=300), count)(Document("a", text))
    assert all(chunk.num_tokens >= 300 for chunk in joined[:-1])
    few = make_chunker(replace(ChunkConfig(), min_tokens=20), count)(Document("a", text))
    assert max(chunk.num_tokens for chunk in few) <= 256


@pytest.mark.parametrize("around", ["", "\n\nOther text.\n\n"])
def test_rows_are_told_from_any_part_of_a_table(around):
    """Its head may lie before the part, and the line below the head behind it."""
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |"
    text = around + table + around
    last, head = text.index("| 3"), text.index("| a")
    assert list(cut_at_rows(text, (last, last + 9))) == [((last, last + 9), 2)]
    assert list(cut_at_rows(text, (head, head + 5))) == [((head, head + 5), 0)]
