"""Processes that share a batch of calls and one journal, killed, starved and robbed: each finished call is paid once.

Each writer has one call in flight, and comes to the journal by its own name, by a link or through a linked folder.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiers import PATIENCE, of_tier

HERE = Path(__file__).parent
SEED = int(os.environ.get("TRUST_SEED", "0"))
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, limits and namespaces of Linux")


def attack(name, folder, *, num_calls, answer_size=0, **options):
    """The `Outcome` of an attack of journal_writers.py, by name; None where this machine does not let it happen."""
    options |= {"num_calls": num_calls, "answer_size": answer_size, "seed": SEED}
    argv = [sys.executable, HERE / "journal_writers.py", name, folder, json.dumps(options)]
    # No threads of BLAS: a process that has some cannot enter a namespace, and should not fork.
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(outcome, num_calls):
    """Nothing is lost, nothing is paid twice, and what was made again was in flight at a writer's end."""
    for name in ("begun_after_kept", "unexplained", "kept_twice", "lost", "files"):
        assert outcome[name] == [], name
    assert (outcome["num_answers"], outcome["integrity"]) == (num_calls, "ok")
    most = num_calls + len(outcome["killed_at"]) + len(outcome["refusals"])
    assert num_calls <= outcome["begun"] <= most


def told(outcome, num_calls):
    again = outcome["begun"] - num_calls
    return f"0 lost, 0 paid calls repeated, integrity ok; {again} in flight at a writer's end were made again"


def test_every_finished_call_is_paid_once_whoever_is_killed(tmp_path, figures):
    num_calls, num_kills = of_tier(60, 10_000), of_tier(6, 100)
    outcome = attack("kills", tmp_path, num_calls=num_calls, num_kills=num_kills)
    check(outcome, num_calls)
    assert len(outcome["killed_at"]) == num_kills and not outcome["refusals"]
    figures(4, f"4 writers, {num_calls:,} calls, SIGKILL", num_kills, told(outcome, num_calls))


def test_a_limit_on_files_is_said_and_costs_no_answer(tmp_path, figures):
    num_calls, num_rounds = 1_000, of_tier(1, 30)
    outcome = attack("short_files", tmp_path, num_calls=num_calls, answer_size=1_200, num_rounds=num_rounds)
    check_refusals(outcome, 4 * num_rounds, ["cannot be read or written", "cannot write next to it"])
    check(outcome, num_calls)
    figures(4, "writers under RLIMIT_FSIZE", len(outcome["refusals"]), told(outcome, num_calls))


def test_a_full_disk_is_said_and_costs_no_answer(tmp_path, figures):
    num_calls, num_rounds = 1_000, of_tier(1, 20)
    sizes = [300_000 + 1_000_000 * number // num_rounds for number in range(num_rounds)]
    outcome = attack("full_disk", tmp_path, num_calls=num_calls, answer_size=1_200, sizes=sizes)
    if outcome is None:
        pytest.skip("no file system can be mounted here, not even in a namespace of one's own")
    check_refusals(
        outcome, 4 * num_rounds, ["cannot be read or written", "cannot write next to it", "cannot be created"]
    )
    check(outcome, num_calls)
    figures(4, "writers on a full tmpfs", len(outcome["refusals"]), told(outcome, num_calls))


def test_what_cannot_be_written_is_said_before_a_call_is_made(tmp_path, figures):
    num_rounds = of_tier(6, 60)
    num_calls = 200 * num_rounds
    outcome = attack("read_only", tmp_path, num_calls=num_calls, num_rounds=num_rounds)
    number = len(outcome["refusals"])
    assert number >= 4 * (num_rounds // 2)
    check_refusals(outcome, number, ["cannot be read or written", "cannot write next to it"])
    check(outcome, num_calls)
    figures(4, "file or folder read-only", num_rounds, told(outcome, num_calls))


def test_a_folder_that_is_closed_meanwhile_costs_no_answer(tmp_path):
    check(attack("closed_folder", tmp_path, num_calls=200), 200)


def test_a_journal_that_was_moved_and_is_put_back_has_lost_nothing(tmp_path, figures):
    num_rounds = of_tier(1, 10)
    for number in range(num_rounds):
        outcome = attack("put_back", tmp_path / str(number), num_calls=300)
        check_refusals(outcome, 4, ["was removed or replaced while in use", "cannot be read or written"])
        check(outcome, 300)
    figures(
        4,
        "moved away under 4 writers, put back",
        num_rounds,
        "0 lost, 0 paid calls repeated, integrity ok, all 4 writers report it",
    )


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_journal_that_is_removed_is_said_at_once_and_the_next_one_is_its_own(tmp_path, is_whole, figures):
    """Its rest (`-wal`), which SQLite would mix into a new journal, is refused until it is removed too."""
    num_rounds, late = of_tier(1, 10), 0
    for number in range(num_rounds):
        outcome = attack("removed", tmp_path / str(number), num_calls=300, is_whole=is_whole)
        said = ["was removed or replaced while in use", "cannot be read or written"]
        if not is_whole:
            said.append("contains the last answers of a journal that was moved or removed")
        check_refusals(outcome, 4 if is_whole else 8, said)
        check(outcome, 300)
        assert outcome["kept_late"] <= 4  # an answer each, between the look at the file and the word
        late += outcome["kept_late"]
    name = "removed whole" if is_whole else "removed, -wal left"
    told = f"all report it, new journal whole; {late} answers returned while it was removed"
    figures(4, f"{name} under 4 writers, 4 begin anew", num_rounds, told)


def check_refusals(outcome, number, words):
    """So many writers met a typed error, and each of these kinds only."""
    assert len(outcome["refusals"]) == number
    for refusal in outcome["refusals"]:
        assert any(word in refusal for word in words), refusal
