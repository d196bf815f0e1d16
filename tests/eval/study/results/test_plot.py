import numpy as np
import pytest

from qrag_jax.eval.study.records import StudyComparison, StudyResult, StudyRow
from qrag_jax.eval.study.results.plot import Box, draw_study, place_labels, plot_study
from qrag_jax.types import Cost, UsageError

FRAME = Box(0.0, 0.0, 600.0, 400.0)


def study(seconds, f1, tasks=("notes",)):
    rows, comparisons = [], []
    for task in tasks:
        for number, (time, value) in enumerate(zip(seconds, f1, strict=True)):
            cost = Cost({"chunk": time / 2, "embed_chunks": time / 2})
            rows.append(
                StudyRow(task, "evidence", f"strategy{number}", 0, "", False, None, 40, {"f1@5": value}, value - 0.05,
                         value + 0.05, 500.0, 3, 90, 120.0, 128, 0.0, cost)
            )  # fmt: skip
            comparisons.append(
                StudyComparison(task, f"strategy{number}", "strategy0", "f1@5", value - f1[0], -0.1, 0.1, 0.5, 1.0, 40)
            )
    return StudyResult(5, (1, 5), "strategy0", tuple(rows), tuple(comparisons))


def size_of(path):
    """Width and height of a PNG, from its first chunk."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_a_panel_a_task(tmp_path):
    """Five of them in two rows of three."""
    plot_study(tmp_path / "new" / "plot.png", study([3.0, 9.0], [0.4, 0.5], "abcde"))
    assert size_of(tmp_path / "new" / "plot.png") == (round((1.2 + 4.6 * 3) * 150), round(4.1 * 2 * 150))


def drawn(axes):
    """(points, bars) of a panel: [n, 2] seconds and F1 of the markers, and [n, 2] ends of the intervals."""
    points, bars = [], []
    for container in axes.containers:
        marker, _, (bar,) = container.lines
        ((x, low), (same, high)) = bar.get_segments()[0]
        assert x == same == marker.get_xdata()[0]
        points.append((marker.get_xdata()[0], marker.get_ydata()[0]))
        bars.append((low, high))
    return np.array(points), np.array(bars)


def names(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def panels(figure):
    return [axes for axes in figure.axes if axes.axison]


def test_a_panel_has_markers_intervals_names_and_the_baseline():
    tasks = [f"task{number}" for number in range(5)]
    figure = draw_study(study([3.0, 9.0], [0.4, 0.5], tasks))
    assert [axes.get_title() for axes in panels(figure)] == [f"{task} (evidence, n = 40)" for task in tasks]
    assert len(figure.axes) == 6
    for axes in panels(figure):
        points, bars = drawn(axes)
        np.testing.assert_allclose(points, [(3.0, 0.4), (9.0, 0.5)])
        np.testing.assert_allclose(bars, [(0.35, 0.45), (0.45, 0.55)])
        assert names(axes) == ["strategy0", "strategy1"]
        assert [list(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "--"] == [[0.4, 0.4]]
        assert (axes.get_xscale(), axes.get_ylabel()) == ("log", "F1@5")


@pytest.mark.parametrize("seconds", [[0.0, 5000.0], [1e-9, 1e9]])
def test_any_seconds_can_be_drawn(seconds):
    (axes,) = panels(draw_study(study(seconds, [0.0, 1.0])))
    points, _ = drawn(axes)
    np.testing.assert_allclose(points, [(max(seconds[0], 1e-3), 0.0), (max(seconds[1], 1e-3), 1.0)])
    low, high = axes.get_xlim()
    assert low < points[:, 0].min() and points[:, 0].max() < high
    bottom, top = axes.get_ylim()
    assert bottom < 0.0 and top > 1.0


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(UsageError):
        plot_study(tmp_path / "plot.pdf", study([1.0], [0.5]))


def test_overlap_and_outside_by_hand():
    box = Box(0.0, 0.0, 10.0, 4.0)
    assert box.overlap(Box(8.0, 1.0, 20.0, 3.0)) == 4.0
    assert box.overlap(Box(10.0, 0.0, 20.0, 4.0)) == 0.0
    assert box.overlap(Box(2.0, 5.0, 8.0, 9.0)) == 0.0
    assert box.outside(Box(-5.0, 1.0, 5.0, 9.0)) == 40.0 - 15.0


def test_a_lone_name_stands_beside_its_point():
    (box,) = place_labels([(300.0, 200.0)], [(40.0, 10.0)], [], FRAME)
    assert (box.left, box.bottom) == (300.0 + 3.5 + 4.0, 195.0)


def test_a_name_at_the_right_border_moves_to_the_left():
    (box,) = place_labels([(590.0, 200.0)], [(40.0, 10.0)], [], FRAME)
    assert box.right == 590.0 - 7.5


def test_names_of_crowded_points_cover_neither_each_other_nor_markers():
    rng = np.random.default_rng(0)
    for _ in range(20):
        points = [(float(x), float(y)) for x, y in rng.normal((300, 200), (25, 25), (7, 2))]
        markers = [Box(x - 3.5, y - 3.5, x + 3.5, y + 3.5) for x, y in points]
        boxes = place_labels(points, [(50.0, 11.0)] * 7, markers, FRAME)
        shared = sum(one.overlap(other) for i, one in enumerate(boxes) for other in boxes[:i])
        assert shared == 0.0
        assert sum(box.overlap(marker) for box in boxes for marker in markers) < 40.0  # of 7 names of 550
        assert all(box.outside(FRAME) == 0.0 for box in boxes)
