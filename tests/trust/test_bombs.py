"""Test 7 of docs/reliability.md: small files that become large ones are refused or streamed, whatever they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiers import PATIENCE, of_tier, slow_but
from trust import bombs
from trust.bombs import BOMBS

from qrag_jax.documents.kinds import is_installed

CONVERTED = ("PDF", "HTML", "DOCX", "ODT", "EPUB")  # what names of such bombs begin with
# Long ones, and neighbours of another one: of their limit a quick test, or that other one, is the witness.
LEFT_TO_ALL = {
    "PDF: 1 GB of instructions in 3 MB",
    "DOCX: 60,000 members",
    "DOCX: one member 5,000 times",
    "DOCX: 300 KB become 300 MB of a picture",
    "Parquet: dictionary in a list",
    "Parquet: run lengths",
    "Arrow stream: compressed, one batch",
    "Arrow stream: compressed, many batches",
}
MAX_ABOVE = 1_000  # MB of memory above the limit, the program itself counted


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured by Linux")
@pytest.mark.parametrize("name", slow_but([], BOMBS, set(BOMBS) - LEFT_TO_ALL))
def test_refused_or_streamed(name, tmp_path, figures):
    if name.startswith(CONVERTED) and not is_installed():
        pytest.skip("the extra `documents` is not installed")
    megabytes = of_tier(50, 1_200)
    paths = [str(Path(bombs.__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = subprocess.run(
        [sys.executable, bombs.__file__, name, str(tmp_path), str(megabytes)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, ended.stderr[-2_000:]
    came = json.loads(ended.stdout.splitlines()[-1])
    on_disk = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if not path.is_symlink())
    for path in tmp_path.iterdir():  # gigabytes, of all tests together
        path.unlink()
    assert ("read" if BOMBS[name].is_streamed else "refused") in came, came
    assert came["peak"] < came["limit"] + MAX_ABOVE, came
    assert came["seconds"] < BOMBS[name].seconds, came
    figures(
        7, name, 1,
        f"{'streamed' if 'read' in came else 'refused'}; {on_disk / bombs.MB:.1f} MB on the disk; peak "
        f"{came['peak']} MB under a limit of {came['limit']} MB; {came['seconds']} CPU s",
    )  # fmt: skip
