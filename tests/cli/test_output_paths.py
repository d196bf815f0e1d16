import pytest

from qrag_jax.cli.main import parse
from qrag_jax.cli.output_paths import check_outputs
from qrag_jax.types import UsageError


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """A run of one step, vectors, a haystack, a link to the vectors."""
    monkeypatch.chdir(tmp_path)
    for name in ("run/step_3", "vectors", "hay", "prompts"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("run/step_3/manifest.json", "run/metrics.jsonl", "vectors/chunks.npy", "vectors/episodes.jsonl"):
        (tmp_path / name).write_text("kept")
    (tmp_path / "link").symlink_to("vectors")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--vectors", "vectors", "--json", "vectors/episodes.jsonl"], "vectors, which --vectors reads"),
        (["--vectors", "vectors", "--per_query", "link/chunks.npy"], "vectors, which --vectors reads"),
        (["--vectors", "link", "--tests", "vectors/deep/tests.json"], "vectors, which --vectors reads"),
        (["--babi", "b.txt", "--haystack", "hay", "--json", "hay/rows.txt"], "hay, which --haystack reads"),
        (["--jsonl", "q.jsonl", "--answers", "prompts/a.txt", "--prompts", "prompts"], "which --prompts reads"),
        (["--ruler", "vt,qa_2:h.jsonl", "--json", "h.jsonl"], "h.jsonl: is the input of --ruler"),
        (["--jsonl", "q.jsonl", "--json", "run/step_3/manifest.json"], "is a file of the run run; name another file"),
        (["--jsonl", "q.jsonl", "--json", "run/step_3/new.json"], "is a file of the run run"),
        (["--jsonl", "q.jsonl", "--json", "run/metrics.jsonl"], "is a file of the run run"),
    ],
)
def test_files_in_folders_that_are_read_are_not_written(flags, message):
    with pytest.raises(UsageError, match=message):
        check_outputs(parse(["eval", "run", *flags]).values)


def test_a_step_that_is_given_as_the_run_is_not_written_into():
    with pytest.raises(UsageError, match="is a file of the run run/step_3"):
        check_outputs(parse(["eval", "run/step_3", "--jsonl", "q", "--json", "run/step_3/rows.json"]).values)


@pytest.mark.parametrize("out", ["run/rows.json", "hay/rows.json", "rows.json", "new/rows.json", "vectors2/rows.json"])
def test_places_beside_are_free(out):
    check_outputs(parse(["eval", "run", "--babi", "b.txt", "--haystack", "hay", "--json", out]).values)
