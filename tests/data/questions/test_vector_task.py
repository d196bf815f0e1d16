"""Tasks over users' vectors."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qrag_jax.data.questions.vector_task import read_vector_task, stack_episodes
from qrag_jax.types import InputError, UsageError

CHUNKS = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
QUESTIONS = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
EPISODES = (
    {"question": 1, "chunks": [4, 0, 2], "gold": [2, 4]},
    {"question": 0, "range": [2, 6], "gold": [5], "id": "mine"},
    {"question": 1, "gold": [3]},
)


def write(folder, episodes=EPISODES):
    np.save(folder / "chunks.npy", CHUNKS)
    np.save(folder / "questions.npy", QUESTIONS)
    (folder / "episodes.jsonl").write_text("\n".join(json.dumps(row) for row in episodes))
    return folder


def check(task):
    np.testing.assert_array_equal(task.chunk_vectors, CHUNKS)
    np.testing.assert_array_equal(task.question_vectors, QUESTIONS)
    assert task.question_ids.tolist() == [1, 0, 1]
    assert [row.tolist() for row in task.chunks] == [[4, 0, 2], [2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    assert [row.tolist() for row in task.gold] == [[0, 2], [3], [3]]  # positions in the episode, sorted
    assert task.query_ids == ("0", "mine", "2")


def test_reads_a_folder(tmp_path):
    check(read_vector_task(write(tmp_path)))


def test_the_same_from_parquet(tmp_path):
    for name, matrix in (("chunks", CHUNKS), ("questions", QUESTIONS)):
        pq.write_table(
            pa.table({"vector": pa.array(matrix.tolist(), type=pa.list_(pa.float32()))}), tmp_path / f"{name}.parquet"
        )
    columns = ("question", "chunks", "range", "gold", "id")
    rows = {column: [episode.get(column) for episode in EPISODES] for column in columns}
    pq.write_table(pa.table(rows), tmp_path / "episodes.parquet")
    check(read_vector_task(tmp_path))


def test_stack_pads_and_marks():
    from qrag_jax.data.questions.vector_task import make_vector_task

    task = make_vector_task(CHUNKS, QUESTIONS, [(f"row {i}", row) for i, row in enumerate(EPISODES)])
    batch = stack_episodes(task, [1, 0])
    assert batch.question_ids.tolist() == [0, 1]
    assert batch.chunks.tolist() == [[2, 3, 4, 5], [4, 0, 2, 0]]
    assert batch.valid.tolist() == [[True] * 4, [True, True, True, False]]
    assert batch.gold.tolist() == [[False, False, False, True], [True, False, True, False]]
    assert stack_episodes(task, [0], num_chunks=7).chunks.shape == (1, 7)
    with pytest.raises(UsageError, match="has 4 chunks, more than num_chunks=3"):
        stack_episodes(task, [1, 0], num_chunks=3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": 2, "gold": [0]}, r"question 2 does not exist; ids are integers in \[0, 2\)"),
        ({"question": 0, "gold": [6]}, r"gold chunk 6 does not exist; ids are integers in \[0, 6\)"),
        ({"question": 0, "gold": [1], "chunks": [0, 2]}, "gold chunk 1 is not among the chunks of the episode"),
        ({"question": 0, "gold": [5], "chunks": [0, 2]}, "gold chunk 5 is not among"),
        ({"question": 0, "gold": [0, 0]}, "gold chunk names an id twice"),
        ({"question": 0, "gold": [0], "chunks": [0, 0]}, "chunk names an id twice"),
        ({"question": 0, "gold": [0], "chunks": [0, "1"]}, "chunk '1' does not exist"),
        ({"question": 0, "gold": [0], "chunks": [0], "range": [0, 1]}, "give chunks or range, not both"),
        ({"question": 0, "gold": [0], "range": [0, 7]}, r"range \[0, 7\] must have 0 <= start < end <= 6"),
        ({"question": 0, "gold": [0], "range": [1, 1]}, r"range \[1, 1\] must have 0 <= start < end"),
        ({"question": 0, "gold": [0], "range": [1]}, r"range must be \[start, end\), got \[1\]"),
        ({"question": 0, "gold": [3], "range": [0, 3]}, "gold chunk 3 is not among"),
        ({"question": 0, "gold": [0], "id": "0"}, "id '0' was used before at .*episodes.jsonl:1"),
    ],
)
def test_refusals_name_the_line(tmp_path, row, message):
    with pytest.raises(InputError, match=f"episodes.jsonl:2: {message}"):
        read_vector_task(write(tmp_path, (EPISODES[0], row)))


def test_missing_and_double_files(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        read_vector_task(tmp_path / "none")
    with pytest.raises(UsageError, match=r"exactly one of chunks.npy, chunks.parquet, chunks.arrow, found \[\]"):
        read_vector_task(tmp_path)
    write(tmp_path)
    (tmp_path / "questions.parquet").write_bytes(b"")
    with pytest.raises(UsageError, match="found .'questions.npy', 'questions.parquet'."):
        read_vector_task(tmp_path)


def test_nan_in_given_vectors(tmp_path):
    write(tmp_path)
    bad = CHUNKS.copy()
    bad[4, 1] = np.nan
    np.save(tmp_path / "chunks.npy", bad)
    with pytest.raises(InputError, match="chunks.npy: row 4 contains NaN"):
        read_vector_task(tmp_path)
