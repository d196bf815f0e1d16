"""Reader of users' own examples: one JSON object a line, `{"question", "chunks", "gold"[, "id", "answer"]}`."""

from collections.abc import Mapping
from pathlib import Path

from qrag_jax.data.dataset_rows import must_be, short
from qrag_jax.files.text_files import read_json_lines
from qrag_jax.types import Example, InputError

_EXPECTED = 'lines {"question": str, "chunks": [str, ...], "gold": [index into chunks, ...]}, optional "id", "answer"'


def read_examples(path: str | Path, needs_gold: bool = True) -> list[Example]:
    """Reads questions with their chunks in document order; `gold` are 0-based indices into `chunks`.

    Args:
        needs_gold: False also takes lines without gold (absent, null or an empty list) that have an `answer`.

    Fields other than question, chunks, gold, id and answer are ignored. A line without an id gets its line number as
    one: `FILE:LINE`.

    Raises:
        UsageError: there is no such file.
        InputError: a line that is not such an object; the message starts with `file:line` and names the field.
    """
    path = Path(path)
    examples: list[Example] = []
    seen: dict[str, str] = {}
    for where, row in read_json_lines(path, _EXPECTED):
        example = _example(row, where, f"{path.name}:{where.rsplit(':', 1)[1]}", needs_gold)
        if example.query_id in seen:
            raise InputError(f"id {example.query_id!r} was used before at {seen[example.query_id]}", file=where)
        seen[example.query_id] = where
        examples.append(example)
    return examples


def _example(row: Mapping[str, object], where: str, default_id: str, needs_gold: bool) -> Example:
    chunks = row.get("chunks")
    if not isinstance(chunks, list) or not chunks:
        raise must_be(where, "chunks", "a list of texts, at least one", chunks)
    for index, chunk in enumerate(chunks):
        if not isinstance(chunk, str) or not chunk.strip():
            raise must_be(where, f"chunks[{index}]", "a text that is not empty", chunk)
    answer = row.get("answer")
    if answer is not None and not isinstance(answer, str):
        raise must_be(where, "answer", "a text", answer)
    query_id = row.get("id", default_id)
    if isinstance(query_id, bool) or not isinstance(query_id, str | int) or query_id == "":
        raise must_be(where, "id", "a text or an integer", query_id)
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise must_be(where, "question", "a text that is not empty", question)
    for field, text in (("question", question), *((f"chunks[{index}]", chunk) for index, chunk in enumerate(chunks))):
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InputError(f"{field} contains half of a surrogate pair, which is not text: repair it", file=where)
    gold: tuple[int, ...] = ()
    if needs_gold or row.get("gold") not in (None, []):
        gold = _gold(row.get("gold"), len(chunks), where)
    elif not isinstance(answer, str) or not answer.strip():
        raise InputError("gives neither gold nor an answer, so nothing can be learned from it: add one", file=where)
    return Example(str(query_id), question, tuple(chunks), gold, answer)


def _gold(value: object, num_chunks: int, where: str) -> tuple[int, ...]:
    """Sorted distinct indices."""
    if not isinstance(value, list) or not value:
        raise must_be(where, "gold", "a list of indices into chunks, at least one", value)
    for index in value:
        if isinstance(index, bool) or not isinstance(index, int):
            raise InputError(f"gold must be integers, got {short(index)}", file=where)
        if not 0 <= index < num_chunks:
            raise InputError(
                f"gold chunk {index} does not exist; chunks has {num_chunks} (indices 0..{num_chunks - 1})", file=where
            )
    if len(set(value)) != len(value):
        raise InputError(f"gold names a chunk twice: {short(value)}", file=where)
    return tuple(sorted(value))
