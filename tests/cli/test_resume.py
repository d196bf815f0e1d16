"""`qrag train` as a process that is killed, terminated and started again with the same line."""

import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from tiers import PATIENCE

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.train.log import read_lines

TINY = """\
num_updates: 90
save_every: 10
log_every: 1
env: {num_steps: 1}
model:
  encoder: {source: scratch, num_layers: 1, hidden_size: 8, num_heads: 2, window: 12, question_window: 12}
  latent: {width: 8, num_layers: 1, num_heads: 2, action_hidden: 8, dim: 8}
data: {batch_size: 4, num_chunks: 6, num_questions: 20, haystack: haystack, haystack_split: all}
"""


def start_qrag(folder, *argv):
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment = {**os.environ, **cache}
    command = [sys.executable, "-m", "qrag_jax.cli.main", "train", "--config_path", "tiny.yaml", *argv]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for_step(run, step, process):
    deadline = time.monotonic() + PATIENCE
    while not any(line.get("step", 0) >= step for line in read_lines(run / "metrics.jsonl")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.slow
def test_killed_and_terminated_processes(tmp_path, haystack):
    """SIGKILL costs at most one save interval, SIGTERM nothing; `--resume` is the same line each time."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    (tmp_path / "haystack").symlink_to(haystack)
    whole = start_qrag(tmp_path, "--out", "whole")
    assert whole.wait(PATIENCE) == 0, whole.stderr.read()
    run = tmp_path / "run"
    first = start_qrag(tmp_path, "--out", "run", "--resume")
    wait_for_step(run, 13, first)
    first.send_signal(signal.SIGSTOP)  # alive, however slow
    other = start_qrag(tmp_path, "--out", "run", "--resume")
    _, err = other.communicate()
    assert other.returncode == 2 and f"{run}: in use by qrag train (process {first.pid} on " in err
    first.send_signal(signal.SIGKILL)
    first.wait()
    logged = read_lines(run / "metrics.jsonl")[-1]["step"]
    assert logged - checkpoint_steps(run)[-1] <= 10 + 1  # the line of an update is written before it is saved
    second = start_qrag(tmp_path, "--out", "run", "--resume")
    wait_for_step(run, 33, second)
    second.send_signal(signal.SIGTERM)
    _, err = second.communicate()
    assert second.returncode == 128 + signal.SIGTERM
    step = checkpoint_steps(run)[-1]
    assert f"stopped after update {step}, saved in run; go on with: qrag train --out run --resume" in err
    assert read_lines(run / "metrics.jsonl")[-1]["step"] == step
    third = start_qrag(tmp_path, "--out", "run", "--resume")
    _, err = third.communicate()
    assert third.returncode == 0 and f"run: going on after update {step}" in err
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    one, other = (load_checkpoint(folder).arrays for folder in (run, tmp_path / "whole"))
    for arrays in (one, other):
        arrays["key"] = jax.random.key_data(arrays["key"])
    jax.tree.map(np.testing.assert_array_equal, one, other)
