"""Plain files before compressed ones."""

from qrag_jax.data.packed import plain_or_gz


def test_the_compressed_file_only_where_there_is_no_plain_one(tmp_path):
    path = tmp_path / "a.jsonl"
    assert plain_or_gz(path) == path
    (tmp_path / "a.jsonl.gz").touch()
    assert plain_or_gz(path) == tmp_path / "a.jsonl.gz"
    path.touch()
    assert plain_or_gz(path) == path
