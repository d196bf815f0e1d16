"""The table of training methods."""

from benchmarks.smartchunk.stitch_table import ROWS, TRACELESS, table
from qrag_jax.config import load_config
from qrag_jax.train.decoder.config import DecoderRun


def test_a_line_has_the_mean_over_seeds_and_its_range():
    counts = {"rollouts": 16128, "traces": 50, "imitation_steps": 24, "tokens": 1, "seconds": 1.0}
    rows = [
        {"row": row, "seed": seed, "traces_limit": 50, "accuracy": one, "accuracy_macro": 0.5, "solve_none": none}
        | counts
        for row, seed, one, none in (
            ("SFT, then GRPO", 0, 0.65, 0.1),
            ("SFT, then GRPO", 1, 0.95, 0.1),
            ("STITCH", 0, 0.7, 0.1),
            ("STITCH", 1, 0.9, 0.3),
        )
    ]
    rows.append({**rows[0], "row": "start", "traces_limit": 0, "solve_none": None})
    assert table(rows).splitlines()[2:] == [
        "| start | - | .650 [.650, .650] |  | .500 | 16,128 | 50 | 24 | - | 1 |",
        "| SFT, then GRPO | 50 | .800 [.650, .950] |  | .500 | 16,128 | 50 | 24 | .100 | 2 |",
        "| STITCH | 50 | .800 [.700, .900] | +.000 [-.050, +.050] | .500 | 16,128 | 50 | 24 | .200 | 2 |",
    ]


def test_every_row_is_a_config():
    for name, overrides in ROWS.items():
        load_config(DecoderRun, "configs/planner/controlled.yaml", overrides)
        assert name in TRACELESS or overrides
