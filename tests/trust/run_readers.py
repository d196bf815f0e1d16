"""Readers of configs, of what a run and a study write, and of what language models say."""

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import jax
import numpy as np
from support.answers import ANSWERED, FAILED, make_record
from support.passages import split_lines
from support.study import make_config
from trust.model_readers import VECTORS
from trust.samples import PROSE, Reader, reseal, texts

from qrag_jax.checkpoint import load_checkpoint, save_checkpoint
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.config import load_config
from qrag_jax.eval.answers.records import read_answer_records, write_answer_records
from qrag_jax.eval.retrieval.records import Row as ResultRow
from qrag_jax.eval.retrieval.records import read_records, read_rows, write_records, write_rows
from qrag_jax.eval.study.cells.cell_files import CellStore, claim_folder
from qrag_jax.eval.study.cells.costs import Meter
from qrag_jax.eval.study.cells.sentence_cache import SentenceCache
from qrag_jax.eval.study.config import StudyConfig
from qrag_jax.eval.study.records import CellResult, FoundChunk, FoundChunks
from qrag_jax.files.folder_lock import LOCK, lock_folder
from qrag_jax.files.manifest import find_damage, listed_files, write_manifest
from qrag_jax.files.sqlite import SQLITE_ERRORS
from qrag_jax.files.whole_file import write_json
from qrag_jax.index.load import load_noted_index
from qrag_jax.index.prepare import Maker
from qrag_jax.index.settings import IndexSettings, NotesSetting, with_sha256, write_settings
from qrag_jax.index.stores.sqlite.database import create, writing_to
from qrag_jax.index.stores.sqlite.document_rows import put, put_beside, put_failure
from qrag_jax.index.stores.sqlite.entries import Entry, Failure, Origin, parts_sha256
from qrag_jax.index.update_notes import KnownTexts, update_notes
from qrag_jax.llm.journal.journal_file import Journal
from qrag_jax.llm.json_answers import Boolean, Integer, ListOf, Number, OneOf, Record, Text, mend_json, parse_json
from qrag_jax.llm.prices import load_prices
from qrag_jax.llm.prompts import load_prompt
from qrag_jax.llm.scripted import load_script
from qrag_jax.llm.server.answers import read_answer
from qrag_jax.measures.trec import read_qrels, read_run
from qrag_jax.train.log import read_lines
from qrag_jax.train.qrag.config import RunConfig
from qrag_jax.types import Chunk, Cost, Document, Generation, InputError, Note, ReadNotes

# Configs, what a run and a study write, language models.

STUDY = make_config()
STUDY_YAML = (
    "tasks: {facts: {kind: files, path: facts, questions: facts.jsonl}}\nks: [1, 3]\nreport_k: 3\n"
    "strategies: {fixed: [{strategy: fixed, fixed: {num_tokens: 16}}]}\n"
)
RUN_YAML = "seed: 3\nnum_updates: 10\nenv: {num_steps: 2}\nlearner:\n  gamma: 0.9\nmodel:\n  mode: latent # no\n"
PRICES_YAML = "compute_per_hour: 1.5\nprompt_per_million_tokens: 2\ncompletion_per_million_tokens: 3e-1\n"
HIT = FoundChunk("c0", "a.txt", ((0, 5), (7, 9)), 3, 0.3)
CELL = CellResult(
    "facts",
    "fixed",
    1,
    "dev",
    2,
    3,
    5 / 3,
    4,
    1 / 3,
    Cost({"chunk": 1 / 3}, 12, 1e15, 64),
    (FoundChunks("q1", (HIT,)),),
)
ORIGIN = {"encoder": "one", "ks": [1, 3]}
SCHEMA = Record(
    {
        "claims": ListOf(Record({"text": Text(), "passages": ListOf(Integer(1, 9)), "holds": Boolean()}), 1, 5),
        "score": Number(0, 1),
        "verdict": OneOf(("yes", "no")),
    }
)
ANSWER = {"claims": [{"text": "Rye is a grass.", "passages": [1, 2], "holds": True}], "score": 0.5, "verdict": "yes"}
COMPLETION = {
    "id": "chatcmpl-1", "object": "chat.completion", "model": "m-2024-08-06",
    "choices": [
        {
            "index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Vienna."},
            "logprobs": {"content": [{"token": "V", "logprob": -0.5, "top_logprobs": []}]},
        }
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
}  # fmt: skip
SCRIPT = [
    {"match": "Austria", "answer": "Vienna [1]."},
    {"match": "x", "error": "down"},
    {"answer": "It ended.", "finish_reason": "length"},
]
ROWS = [
    ResultRow("two facts", make_record(0, (3, 0)).setting, 1.0, 0.9, 0.7, 0.8, 0.95, 100, 1.5, 0.8, 0),
]
KEY = "0" * 64


def _json_answer(folder: Path) -> object:
    text = (folder / "a.json").read_text("utf-8", "surrogateescape")
    try:
        return parse_json(text, SCHEMA)
    except InputError:
        return parse_json(mend_json(f"Sure:\n```json\n{text}\n```"), SCHEMA)


def _journal(folder: Path) -> None:
    journal = Journal(folder / "j.sqlite")
    with journal.session() as session:
        session.claim([KEY, "1" * 64], 2)
        session.keep(KEY, Generation("Vienna.", "stop", 3, 1, logprobs=(-0.5,)))
    with closing(sqlite3.connect(folder / "j.sqlite")) as connection:  # into one file
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _read_journal(folder: Path) -> object:
    journal = Journal(folder / "j.sqlite")
    with journal.session() as session:
        known, _ = session.claim([KEY, "2" * 64], 2)
        return journal.num_answers(), known


def _index(folder: Path) -> None:
    create(folder)
    with writing_to(folder) as connection:
        for name, text in (("a.md", "One line.\nAnother."), ("b.md", "Vienna.")):
            document = Document(name, text, {"path": name, "pages": (0, 3)})
            nodes = tuple(split_lines(document))
            vectors = VECTORS[:1].repeat(len(nodes), 0).astype(np.float32)
            put(connection, folder, Entry(document, nodes, vectors, np.zeros(len(nodes), bool), Origin(KEY, "1")))
        put_failure(connection, folder, Failure("c.md", "not UTF-8", Origin(KEY, "1")))
        put_beside(connection, folder, "b.md", Failure("b.md", "empty document", Origin(KEY, "2")))
        settings = IndexSettings(ChunkConfig(), "minilm", fingerprint=KEY, notes=NotesSetting("mentions"))
        write_settings(folder, settings)
        update_notes(connection, folder, settings, lambda: NOTE_MAKER, KnownTexts(connection, folder), _read_note)


class _Same:
    """An encoder that gives every text one vector."""

    fingerprint = KEY

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return VECTORS[:1].repeat(len(texts), 0).astype(np.float32)


NOTE_MAKER = Maker(split_lines, _Same(), len)


def _read_note(documents: Sequence[Document], chunks: Sequence[Chunk]) -> ReadNotes:
    asking, answering = chunks[0].id, chunks[-1].id
    return ReadNotes((Note(asking, answering, "One line.", (0, 9), (0, 7), "Vienna.", "mentions"),), {"too long": 2})


def _reseal_index(folder: Path) -> None:
    """Hashes of the rows, as far as SQLite gives these, and of the settings."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        write_json(folder / "index.json", with_sha256(json.loads((folder / "index.json").read_bytes())["settings"]))
    with suppress(*SQLITE_ERRORS), closing(sqlite3.connect(folder / "catalogue.sqlite")) as connection:
        connection.text_factory = bytes
        rows = connection.execute("SELECT ledger.*, documents.* FROM ledger LEFT JOIN documents USING (number)")
        for key, number, bytes_sha256, reader, error, _, *row in rows.fetchall():
            content = row[2:] if number is not None else []
            if all(type(value) is bytes for value in (key, bytes_sha256, reader, error, *content)):
                sha256 = parts_sha256(key, bytes_sha256, reader, error, *content)
                connection.execute("UPDATE ledger SET sha256 = ? WHERE id = ?", (sha256, key))
        for table in ("notes", "noted"):
            for number, *values, _ in connection.execute(f"SELECT rowid, * FROM {table}").fetchall():
                if all(type(value) is bytes for value in values):
                    sealed = (parts_sha256(*values), number)
                    connection.execute(f"UPDATE {table} SET sha256 = ? WHERE rowid = ?", sealed)
        connection.commit()


def _lock(folder: Path) -> None:
    known = {"what": "qrag train", "pid": 1, "host": "h", "since": "now", "kernel": "k", "pids": "p", "started": "1"}
    (folder / LOCK).write_text(json.dumps(known))
    (folder / LOCK).rename(folder / "lock.json")


def _read_lock(folder: Path) -> None:
    (folder / "lock.json").rename(folder / LOCK)
    with lock_folder(folder, "a test"):
        pass


def _checkpoint(folder: Path) -> None:
    arrays = {"params": {"w": np.arange(6.0).reshape(2, 3)}, "rest": {"step": 3, "key": jax.random.key(0)}}
    save_checkpoint(folder, 7, arrays, {"seed": 0}, {"tokenizer.json": "{}"}, {"task": "x"})


def _manifest(folder: Path) -> None:
    texts({"a.txt": PROSE, "sub/b.json": {"a": 1}})(folder)
    write_manifest(folder)


def _find_damage(folder: Path) -> object:
    fault = find_damage(folder)
    return fault or listed_files(folder)


def _cell(folder: Path) -> None:
    CellStore(folder).write(CELL, ORIGIN)


def _sentences(folder: Path) -> None:
    SentenceCache(folder).put("f", ["a", "b"], VECTORS[:2], Meter())


def _reseal_first_line(folder: Path) -> None:
    """Files of a study begin with the hash of what follows."""
    for path in folder.rglob("*"):
        if path.is_file():
            body = path.read_bytes().partition(b"\n")[2]
            path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def _log(folder: Path) -> None:
    texts(
        {
            "metrics.jsonl": [
                {"data": {"task": "x"}},
                {"step": 1, "loss": 0.5},
                {"step": 2, "loss": 0.25},
                {"step": 3},
            ],
            "times.jsonl": [{"step": 1, "seconds": 0.5}, {"step": 2, "seconds": 1.5}, {"step": 3, "seconds": 2}],
        }
    )(folder)


def _prompts(folder: Path) -> None:
    ours = load_prompt("answer")
    (folder / "answer.system.txt").write_text(ours.system)
    (folder / "answer.user.txt").write_text(ours.user)


OTHERS = [
    Reader("config of a run", texts({"a.yaml": RUN_YAML}), lambda folder: load_config(RunConfig, folder / "a.yaml")),
    Reader("config of a study", texts({"a.yaml": STUDY_YAML}), lambda f: load_config(StudyConfig, f / "a.yaml")),
    Reader("prices", texts({"a.yaml": PRICES_YAML}), lambda folder: load_prices(folder / "a.yaml")),
    Reader("prompts", _prompts, lambda folder: load_prompt("answer", folder)),
    Reader("script of a generator", texts({"a.jsonl": SCRIPT}), lambda folder: load_script(folder / "a.jsonl")),
    Reader("JSON answer of a model", texts({"a.json": ANSWER}), _json_answer),
    Reader(
        "answer of a server", texts({"a.json": COMPLETION}),
        lambda folder: read_answer((folder / "a.json").read_bytes(), model="m", check_model=True),
    ),
    Reader("journal", _journal, _read_journal, cases=2_000, leaves=True),
    Reader("index", _index, load_noted_index, seal=_reseal_index, cases=2_000, leaves=True),
    Reader(
        "log of a run", _log, lambda folder: (read_lines(folder / "metrics.jsonl"), read_lines(folder / "times.jsonl"))
    ),
    Reader("lock of a folder", _lock, _read_lock, leaves=True),
    Reader("manifest", _manifest, _find_damage),
    Reader("checkpoint", _checkpoint, load_checkpoint, seal=reseal, cases=500),
    Reader(
        "cell of a study", _cell, lambda f: CellStore(f).read("facts", "fixed", 1, "dev", ORIGIN),
        seal=_reseal_first_line,
    ),
    Reader("vectors of a study", _sentences, lambda f: SentenceCache(f).get("f", ["a", "b"]), seal=_reseal_first_line),
    Reader("config in a study's folder", lambda f: claim_folder(f, STUDY), lambda f: claim_folder(f, STUDY), cases=500),
    Reader("results.json", lambda f: write_rows(f / "a.json", ROWS), lambda f: read_rows(f / "a.json")),
    Reader(
        "records of picks", lambda f: write_records(f / "a.jsonl", [make_record(0, (3, 0)), make_record(1, (2,))]),
        lambda f: read_records(f / "a.jsonl"),
    ),
    Reader(
        "records of answers", lambda f: write_answer_records(f / "a.jsonl", [ANSWERED, FAILED]),
        lambda f: read_answer_records(f / "a.jsonl"),
    ),
    Reader(
        "TREC files",
        texts({"a.qrels": "q1 0 d%20a 1\nq1 0 b 0\n", "a.run": "q1 Q0 d%20a 1 0.5 x\nq1 Q0 b 2 -1e-3 x\n"}),
        lambda f: (read_qrels(f / "a.qrels"), read_run(f / "a.run")),
    ),
]  # fmt: skip
