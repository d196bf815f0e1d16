"""schemathesis sends what the OpenAPI of the server allows, and what it does not, and checks the answers against it."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.indices import write_notes
from support.serving import serving
from support.tiers import PATIENCE

from qrag_jax.index.build import build_index
from qrag_jax.service.library import Library


@pytest.mark.oracle
def test_answers_are_those_of_the_schema(tmp_path):
    build_index(tmp_path / "notes.index", write_notes(tmp_path / "notes", key="Mary has the key.\nIt rained."))
    # A body that is too long is refused before it is read as JSON.
    (tmp_path / "schemathesis.toml").write_text('[checks]\nnegative_data_rejection.expected-statuses = ["4xx"]\n')
    library = Library.open([str(tmp_path / "notes.index")])
    with serving(library) as client:
        program = Path(sys.executable).with_name("schemathesis")
        url = f"http://127.0.0.1:{client.port}/openapi.json"
        done = subprocess.run(
            [program, "run", url, "--max-examples", "100", "--seed", "0", "--no-color"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.split("Test cases:")[1]
