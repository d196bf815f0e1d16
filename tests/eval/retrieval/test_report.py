import pytest
from support.answers import LATENT, replace

from qrag_jax.eval.retrieval.records import Row
from qrag_jax.eval.retrieval.report import collect_lines, format_table, plot_rows, write_markdown
from qrag_jax.measures.aggregate import Summary, over_seeds
from qrag_jax.names import METHODS
from qrag_jax.types import InputError

ROW = Row("two facts", LATENT, 1.0, 0.95, 0.78, 0.93, 0.97, 1000, 1.5, 0.8, 0)


def demo_rows():
    return [
        replace(ROW, method=method, num_chunks=num_chunks, length_factor=num_chunks / 20)
        for method in reversed(METHODS)
        for num_chunks in (1280, 20)
    ]


def test_table_by_hand():
    table = format_table([ROW, replace(ROW, num_chunks=1280, length_factor=64.0, fact_em=1.0, em_high=1.0)])
    assert table.split("\n")[:5] == [
        "two facts, mode latent, positions relative, n = 1,000 questions for each length",
        "chunks     20 (1x)         1,280 (64x)",
        "fact EM",
        "  trained  .950 .930-.970  1.000 .930-1.000",
        "fact F1",
    ]
    assert "cannot exceed 0.800" in table


def test_methods_and_lengths_are_in_order_whatever_the_rows_are():
    lines = collect_lines(demo_rows())
    assert [line.setting.method for line in lines] == list(METHODS)
    assert [list(line.cells) for line in lines] == [[20, 1280]] * len(METHODS)


def test_seeds_merge_into_a_mean_with_an_interval_for_other_questions_and_seeds():
    rows = [replace(ROW, seed=seed, fact_em=em, em_low=0.8, em_high=1.0) for seed, em in enumerate((0.9, 0.96, 0.93))]
    cell, found = (
        collect_lines(rows)[0].cells[20],
        over_seeds([Summary(em, 0.8, 1.0, 1000) for em in (0.9, 0.96, 0.93)]),
    )
    assert (cell.num_seeds, cell.em_low, cell.em_high) == (3, found.low, found.high)
    assert cell.em_low < 0.9 and cell.fact_em == pytest.approx(0.93) and cell.f1_low is None
    table = format_table(rows)
    assert "3 seeds" in table and ".930 .7" in table and "for other questions and other seeds" in table
    stopped = [replace(protocol_rows()[1], seed=seed, num_taken=taken) for seed, taken in ((0, 2.0), (1, 3.0))]
    cell = collect_lines(stopped)[0].cells[20]
    assert (cell.fact_f1, cell.num_taken) == (pytest.approx(0.85), 2.5) and cell.f1_low < 0.85


def test_a_ceiling_of_em_is_told():
    """Two picks cannot hold three facts."""
    table = format_table([replace(ROW, em_ceiling=0.625), replace(ROW, method="bm25", em_ceiling=0.625)])
    assert "Fact EM cannot exceed 0.625 with this many picks" in table
    assert "Fact EM cannot" not in format_table([ROW, replace(ROW, method="bm25", em_ceiling=1.0)])
    lengths = [replace(ROW, em_ceiling=0.9), replace(ROW, num_chunks=80, em_ceiling=1.0)]
    assert "Fact EM cannot exceed 0.900 to 1.000" in format_table(lengths)


def test_what_differs_stands_in_the_line_and_what_is_shared_in_the_heading():
    rows = [replace(ROW, positions=positions) for positions in ("relative", "absolute", "none")]
    table = format_table(rows)
    assert "positions" not in table.split("\n")[0]
    for label in ("trained, relative positions", "trained, absolute positions", "trained, no positions"):
        assert label in table
    assert "trained, latent" in format_table([ROW, replace(ROW, mode="text")])


def test_a_run_below_untrained_is_told():
    better = replace(ROW, method="untrained", fact_f1=ROW.fact_f1 + 0.01)
    long = {"num_chunks": 1280, "length_factor": 64.0}
    rows = [ROW, better, replace(ROW, **long), replace(ROW, method="untrained", **long)]  # equal: not below
    note = "Trained is below untrained in F1 at 20 chunks: too few updates"
    assert note in format_table(rows)
    assert "below untrained" not in format_table([ROW, *rows[2:]])
    assert "below untrained" not in format_table([ROW, replace(better, protocol="threshold", threshold=0.0)])


def test_tasks_are_blocks_and_left_out_questions_are_told():
    table = format_table([ROW, replace(ROW, task="three facts", num_left_out=43, f1_ceiling=0.8)])
    assert len(table.split("\n\n")) == 2
    assert "Left out, story longer than the context or broken gold: 43 at 20 chunks." in table.split("\n\n")[1]
    assert "Left out" not in table.split("\n\n")[0]


def test_a_report_in_files(tmp_path):
    """One cell is missing, so it is a dash; every row has as many columns."""
    rows = [*protocol_rows(), replace(ROW, num_chunks=80, seed=1), replace(ROW, num_chunks=80, seed=2)]
    plot_rows(tmp_path / "plots" / "plot.png", rows)
    assert (tmp_path / "plots" / "plot.png").read_bytes().startswith(b"\x89PNG\r\n")
    table = format_table(rows, markdown=True)
    assert ".850 [.830, .870]" in table and "| **chunks taken**" in table and "| -" in table
    assert len({line.count("|") for line in table.split("\n") if line.startswith("|")}) == 1
    path = tmp_path / "new" / "report.md"
    write_markdown(path, [ROW], title="Demo", plot="plot.png", notes=["command: `make demo`"])
    text = path.read_text()
    assert text.startswith("# Demo\n\n- command: `make demo`\n\n**two facts")
    assert "](plot.png)\n" in text
    assert all(line == line.rstrip() for line in text.split("\n"))


def protocol_rows():
    """Two methods under three protocols and a beam of four, last things first."""
    found = replace(ROW, protocol="oracle", fact_f1=0.93, f1_ceiling=0.95, f1_low=0.92, f1_high=0.94, num_taken=2.25)
    stopped = replace(
        ROW, protocol="threshold", fact_f1=0.85, f1_ceiling=0.9, f1_low=0.83, f1_high=0.87, num_taken=2.5, threshold=0.4
    )
    fixed = replace(ROW, f1_low=0.77, f1_high=0.79, num_taken=3.0)
    beam = replace(fixed, beam_width=4, fact_em=0.96)
    return [found, stopped, replace(fixed, method="bm25"), beam, fixed]


def test_a_table_of_protocols_by_hand():
    """A line a protocol, in their order; F1 has its interval too, and the chunks that were taken stand below it."""
    assert format_table(protocol_rows()).split("\n") == [
        "two facts, mode latent, positions relative, n = 1,000 questions",
        "chunks                    20 (1x)",
        "fact EM",
        "  trained, fixed          .950 .930-.970",
        "  trained, fixed, beam 4  .960 .930-.970",
        "  BM25, fixed             .950 .930-.970",
        "  trained, threshold      .950 .930-.970",
        "  trained, oracle         .950 .930-.970",
        "fact F1",
        "  trained, fixed          .780 .770-.790",
        "  trained, fixed, beam 4  .780 .770-.790",
        "  BM25, fixed             .780 .770-.790",
        "  trained, threshold      .850 .830-.870",
        "  trained, oracle         .930 .920-.940",
        "chunks taken",
        "  trained, fixed          3.00",
        "  trained, fixed, beam 4  3.00",
        "  BM25, fixed             3.00",
        "  trained, threshold      2.50",
        "  trained, oracle         2.25",
        "After fact EM and F1: 95% interval over the questions.",
        "Fact F1 of the fixed protocol cannot exceed 0.800 with this many picks: 2 min(g, T) / (g + T), g gold facts, "
        "T picks.",
        "threshold: stops below a Q that was fitted on held-out questions.",
        "oracle: stops when all gold is found: it reads the labels, so it bounds EM and is not a method.",
        "",
    ]


def test_rows_of_one_other_protocol_say_so_in_the_heading():
    table = format_table([replace(ROW, protocol="stop", num_taken=1.5)])
    assert "protocol stop" in table.split("\n")[0] and "trained, stop" not in table
    assert "stop: the retriever's own learned stop." in table
    assert "cannot exceed" not in table  # with another number of picks for each question there is no one ceiling
    assert ["trained", "1.50"] in [line.split() for line in table.split("\n")]


def test_two_rows_of_one_run_are_refused():
    for row in (ROW, replace(ROW, protocol="oracle", beam_width=4)):
        with pytest.raises(InputError):
            format_table([row, replace(row, fact_em=0.94)])
    assert len(collect_lines([ROW, replace(ROW, protocol="oracle"), replace(ROW, beam_width=4)])) == 3
