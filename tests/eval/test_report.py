import os
import subprocess
import sys
from dataclasses import replace

import pytest

from qrag_jax.eval.records import METHODS, Row
from qrag_jax.eval.report import collect_lines, format_table, plot_rows, write_markdown
from qrag_jax.types import InputError, UsageError

ROW = Row("two facts", "trained", "latent", "relative", 0, 20, 1.0, 0.95, 0.78, 0.93, 0.97, 1000, 1.5, 0.8, 0)


def demo_rows():
    return [
        replace(ROW, method=method, num_chunks=num_chunks, length_factor=num_chunks / 20)
        for method in reversed(METHODS)
        for num_chunks in (1280, 20)
    ]


def test_table_by_hand():
    table = format_table([ROW, replace(ROW, num_chunks=1280, length_factor=64.0, fact_em=1.0, em_high=1.0)])
    assert table.split("\n")[:5] == [
        "two facts, mode latent, positions relative, n = 1,000 questions a length",
        "chunks     20 (1x)         1,280 (64x)",
        "fact EM",
        "  trained  .950 .930-.970  1.000 .930-1.000",
        "fact F1",
    ]
    assert "cannot exceed 0.800" in table


def test_methods_and_lengths_are_in_order_whatever_the_rows_are():
    lines = collect_lines(demo_rows())
    assert [line.method for line in lines] == list(METHODS)
    assert [list(line.cells) for line in lines] == [[20, 1280]] * 4


def test_the_demos_table_fits_a_terminal_and_pipes():
    rows = [replace(ROW, method=m, num_chunks=c) for m in METHODS for c in (20, 80, 320, 1280)]
    table = format_table(rows)
    assert table.isascii() and table.endswith("\n")
    assert max(len(line) for line in table.split("\n") if ":" not in line and "mode" not in line) <= 80


def test_a_missing_length_is_a_dash():
    table = format_table([ROW, replace(ROW, method="bm25", num_chunks=80, length_factor=4.0)])
    assert ["BM25", "-", ".950", ".930-.970"] in [line.split() for line in table.split("\n")]


def test_seeds_merge_into_mean_and_range():
    rows = [replace(ROW, seed=seed, fact_em=em, em_low=0.5, em_high=1.0) for seed, em in enumerate((0.9, 0.96, 0.93))]
    cell = collect_lines(rows)[0].cells[20]
    assert (cell.num_seeds, cell.em_low, cell.em_high) == (3, 0.9, 0.96)
    assert cell.fact_em == pytest.approx(0.93)
    table = format_table(rows)
    assert "3 seeds" in table and ".930 .900-.960" in table and "smallest and largest" in table


def test_what_differs_stands_in_the_line_and_what_is_shared_in_the_heading():
    rows = [replace(ROW, positions=positions) for positions in ("relative", "absolute", "none")]
    table = format_table(rows)
    assert "positions" not in table.split("\n")[0]
    for label in ("trained, relative positions", "trained, absolute positions", "trained, no positions"):
        assert label in table
    assert "trained, latent" in format_table([ROW, replace(ROW, mode="text")])


def test_tasks_are_blocks_and_left_out_questions_are_told():
    table = format_table([ROW, replace(ROW, task="three facts", num_left_out=43, f1_ceiling=0.8)])
    assert len(table.split("\n\n")) == 2
    assert "Left out, story longer than the context: 43 at 20 chunks." in table.split("\n\n")[1]
    assert "Left out" not in table.split("\n\n")[0]


def test_ceilings_that_differ_are_a_span():
    rows = [ROW, replace(ROW, num_chunks=80, f1_ceiling=0.9)]
    assert "cannot exceed 0.800 to 0.900" in format_table(rows)


def test_markdown_table_has_the_same_columns_in_every_line():
    lines = [line for line in format_table(demo_rows(), markdown=True).split("\n") if line.startswith("|")]
    assert len(lines) == 2 + 2 * (1 + 4)
    assert {line.count("|") for line in lines} == {4}
    assert any(line.startswith("| trained ") and ".950 [.930, .970]" in line for line in lines)


def test_write_markdown(tmp_path):
    path = tmp_path / "new" / "report.md"
    write_markdown(path, [ROW], title="Demo", plot="plot.png", notes=["command: `make demo`"])
    text = path.read_text()
    assert text.startswith("# Demo\n\n- command: `make demo`\n\n**two facts")
    assert "](plot.png)\n" in text
    assert all(line == line.rstrip() for line in text.split("\n"))


@pytest.mark.parametrize("shape", ["demo", "positions", "one", "seeds"])
def test_plot_is_a_png(tmp_path, shape):
    rows = {
        "demo": demo_rows(),
        "positions": [replace(ROW, positions=p, task=t) for p in ("none", "absolute") for t in ("a", "b")],
        "one": [ROW],
        "seeds": [replace(ROW, seed=seed, num_chunks=c) for seed in range(2) for c in (20, 80)],
    }[shape]
    path = tmp_path / "plots" / "plot.png"
    plot_rows(path, rows, title="a title" if shape == "seeds" else None)
    assert path.read_bytes().startswith(b"\x89PNG\r\n") and path.stat().st_size > 10_000


def test_plotting_needs_no_display_no_pyplot_and_no_jax(tmp_path):
    code = (
        "import sys, dataclasses\n"
        "from qrag_jax.eval import report, records\n"
        "assert 'matplotlib' not in sys.modules\n"
        "row = records.Row('t', 'bm25', 'latent', 'none', 0, 9, 1.0, .5, .5, .4, .6, 9, 1.0, .8, 0)\n"
        f"report.plot_rows({str(tmp_path / 'p.png')!r}, [row])\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": ":".join(sys.path)})


def test_no_rows_are_refused():
    with pytest.raises(InputError, match="at least one row"):
        format_table([])


def test_two_rows_of_one_run_are_refused():
    with pytest.raises(InputError, match="two rows for task two facts, method trained, .*20 chunks, seed 0"):
        format_table([ROW, replace(ROW, fact_em=0.94)])


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(UsageError, match="written as .png"):
        plot_rows(tmp_path / "plot.jpg", [ROW])
