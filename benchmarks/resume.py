"""Runs that are killed at random moments and resumed, beside the same run left alone: is every byte the same?

    python benchmarks/resume.py [--kills 5] [--seed 0]        # writes benchmarks/results/resume.md

Text mode, a batch of 32 in four parts, 30 questions (so that an epoch ends inside every update), held-out questions;
float32 and bfloat16, 1 and 8 virtual CPU devices. SIGKILL comes at a random moment of a random update: hardly ever
between two updates, so inside the parts. Then the same command line goes on with --resume. The last checkpoints are
compared leaf by leaf (sha256) and metrics.jsonl as bytes.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from worlds import machine

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.files.step_folders import checkpoint_steps

RESULTS = Path(__file__).parent / "results"
NUM_UPDATES, SAVE_EVERY = 60, 9
CONFIG = f"""\
num_updates: {NUM_UPDATES}
save_every: {SAVE_EVERY}
log_every: 1
env: {{num_steps: 2, fact_reward: 0.2}}
dev: {{share: 0.2, every: 10}}
model:
  mode: text
  encoder: {{source: scratch, num_layers: 2, hidden_size: 192, num_heads: 4, window: 16, question_window: 16}}
learner: {{accumulate: 4}}
data: {{batch_size: 32, num_chunks: 24, num_questions: 37, max_haystack_sentences: 600}}
"""


def start(folder: Path, name: str, dtype: str, devices: int) -> subprocess.Popen:
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "XLA_FLAGS": flags}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
    argv = ["--config_path", str(folder / "config.yaml"), "--out", str(folder / name), "--resume"]
    argv += [f"model.compute.dtype={dtype}", f"mesh.data={devices}"]
    with (folder / f"{name}.log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "qrag_jax.cli.main", "train", *argv], env=environment, stderr=log
        )


def last_logged(run: Path) -> int:
    path = run / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return json.loads(lines[-1]).get("step", 0) if lines else 0


def kill_inside(process: subprocess.Popen, run: Path, update: int, share: float) -> tuple[int, int]:
    """Kills a process a share of an update after the given one; (last logged update, last saved one)."""
    seen = []
    while last_logged(run) < update:
        assert process.poll() is None, f"ended early with {process.returncode}: see {run}.log"
        if not seen or last_logged(run) > seen[-1][0]:
            seen.append((last_logged(run), time.perf_counter()))
        time.sleep(0.002)
    pace = (seen[-1][1] - seen[0][1]) / max(1, seen[-1][0] - seen[0][0]) if len(seen) > 1 else 0.05
    time.sleep(share * pace)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return last_logged(run), max(checkpoint_steps(run), default=0)


def digests(run: Path) -> dict[str, str]:
    """sha256 of every leaf of the last checkpoint, and of metrics.jsonl."""
    saved = load_checkpoint(run)
    arrays = {**saved.arrays, "key": jax.random.key_data(saved.arrays["key"])}
    flat = jax.tree_util.tree_leaves_with_path(arrays)
    found = {jax.tree_util.keystr(p): hashlib.sha256(np.asarray(x).tobytes()).hexdigest() for p, x in flat}
    return found | {"metrics.jsonl": hashlib.sha256((run / "metrics.jsonl").read_bytes()).hexdigest()}


def case(folder: Path, dtype: str, devices: int, kills: int, rng: random.Random) -> str:
    (folder / "config.yaml").write_text(CONFIG)
    whole = start(folder, "whole", dtype, devices)
    assert whole.wait() == 0, (folder / "whole.log").read_text()
    places, run = [], folder / "killed"
    updates = sorted(rng.sample(range(1, 3 * NUM_UPDATES // 4), kills))
    for update in updates:
        update = max(update, last_logged(run) + 1)  # lines of the process before stand there until they are made again
        process = start(folder, "killed", dtype, devices)
        places.append(kill_inside(process, run, update, rng.random()))
    last = start(folder, "killed", dtype, devices)
    assert last.wait() == 0, (folder / "killed.log").read_text()
    one, other = digests(folder / "whole"), digests(run)
    differ = [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
    lost = [logged - saved for logged, saved in places]
    row = f"| {dtype} | {devices} | {', '.join(f'{a} ({b})' for a, b in places)} | {max(lost)} | {len(one) - 1} "
    print(row, f"| {len(differ)} |", differ[:3], flush=True)
    assert max(lost) <= SAVE_EVERY + 1, lost
    return row + f"| {'none' if not differ else len(differ)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, rows = random.Random(args.seed), []
    for dtype in ("float32", "bfloat16"):
        for devices in (1, 8):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(case(Path(folder), dtype, devices, args.kills, rng))
    about = machine()
    text = f"""# Killed and resumed

Command: `python benchmarks/resume.py --kills {args.kills} --seed {args.seed}`, commit {about["commit"]},
jax {about["jax"]}, {about["cores"]} cores. {NUM_UPDATES} updates, one checkpoint every {SAVE_EVERY}; SIGKILL inside the
update after the one that is named, in brackets the newest checkpoint at that moment.

| precision | devices | killed after update (saved) | most updates lost | leaves | leaves or files that differ |
| --- | --- | --- | --- | --- | --- |
"""
    (RESULTS / "resume.md").write_text(text + "\n".join(rows) + "\n")
    if any(not row.endswith("| none |") for row in rows):
        sys.exit("a resumed run differs")


if __name__ == "__main__":
    main()
