"""Two processes share 500 calls and one journal, and are killed by force ten times."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "journal_kill.py"


@pytest.mark.slow
def test_every_finished_call_is_made_once_and_the_rest_is_resumed(tmp_path):
    spec = importlib.util.spec_from_file_location("journal_kill", SCRIPT)
    assert spec is not None and spec.loader is not None
    journal_kill = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(journal_kill)
    outcome = journal_kill.run(tmp_path, num_calls=500, num_processes=2, num_kills=10, seed=0)
    assert len(outcome.killed_at) == 10
    assert outcome.begun_after_kept == outcome.kept_twice == ()
    assert 500 <= outcome.num_begun <= 510  # one call in flight a kill, at most
    assert (outcome.num_answers, outcome.integrity, outcome.files) == (500, "ok", ())
