"""Rows of token vectors in the catalogue of an index that keeps them. The first such document makes their table.

    tokens    number: row of the document; node: number of the chunk in it; text: hash of the embedded text, `text_key`;
              codes: int8, one row for each token (`models/encoder/text_encoder.py:encode_with_codes`)

Rows are written and removed in the transaction of their document. A search looks them up by text, because equal texts
have equal tokens, so it reads only the rows of its candidates, and it finds nothing for a text that has changed.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from qrag_jax.files.sqlite import Damaged
from qrag_jax.index.folder import CATALOGUE
from qrag_jax.index.stores.sqlite.database import advice, named
from qrag_jax.index.stores.sqlite.entries import parts_sha256

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS tokens (number INTEGER NOT NULL, node INTEGER NOT NULL, text BLOB NOT NULL, "
    "codes BLOB NOT NULL, sha256 BLOB NOT NULL, PRIMARY KEY (number, node))",
    "CREATE INDEX IF NOT EXISTS tokens_by_text ON tokens (text)",
)
_COLUMNS = "number, node, text, codes, sha256"
Codes = tuple[bytes, bytes]  # hash of the text of a chunk, and the codes of its tokens


def has_tokens(connection: sqlite3.Connection) -> bool:
    """True if the catalogue has a table of token vectors."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'tokens'").fetchone() is not None


def put_tokens(connection: sqlite3.Connection, number: int, tokens: Mapping[int, Codes]) -> None:
    """Writes those of a document, by the numbers of its chunks; the caller has opened a transaction."""
    if not tokens:
        return
    for statement in _SCHEMA:
        connection.execute(statement)
    for node, (text, codes) in tokens.items():
        values = (number, node, text, codes, _sha256(number, node, text, codes))
        connection.execute(f"INSERT INTO tokens ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)", values)


def delete_tokens(connection: sqlite3.Connection, document_id: bytes) -> None:
    """Removes those of a document; the caller has opened a transaction."""
    if has_tokens(connection):
        of_document = "(SELECT number FROM ledger WHERE id = ?)"
        connection.execute(f"DELETE FROM tokens WHERE number = {of_document}", (document_id,))


def read_tokens(connection: sqlite3.Connection, folder: Path, number: int) -> dict[int, Codes]:
    """Those of a document, by the numbers of its chunks; empty if the index keeps none.

    Raises:
        Damaged: a row was changed.
    """
    if not has_tokens(connection):
        return {}
    with named(folder / CATALOGUE):
        rows = connection.execute(f"SELECT {_COLUMNS} FROM tokens WHERE number = ?", (number,))
        return {values[1]: _checked(values, folder) for values in rows}


def find_tokens(connection: sqlite3.Connection, folder: Path, texts: Sequence[bytes]) -> dict[bytes, bytes]:
    """The codes of texts, by their hashes; only of those that are stored.

    Raises:
        Damaged: a row was changed.
    """
    found: dict[bytes, bytes] = {}
    if has_tokens(connection):
        with named(folder / CATALOGUE):
            for text in texts:
                query = f"SELECT {_COLUMNS} FROM tokens WHERE text = ? LIMIT 1"
                values = connection.execute(query, (text,)).fetchone()
                if values is not None:
                    found[text] = _checked(values, folder)[1]
    return found


def count_tokens(connection: sqlite3.Connection) -> tuple[int, int]:
    """(chunks with token vectors, bytes of these)."""
    if not has_tokens(connection):
        return 0, 0
    return connection.execute("SELECT count(*), coalesce(sum(length(codes)), 0) FROM tokens").fetchone()


def _checked(values: tuple, folder: Path) -> Codes:
    number, node, text, codes, sha256 = values
    kinds = tuple(type(value) for value in values)
    if kinds != (int, int, bytes, bytes, bytes) or _sha256(number, node, text, codes) != sha256:
        raise Damaged(f"{folder}: token vectors changed since they were written; {advice(folder)}")
    return text, codes


def _sha256(number: int, node: int, text: bytes, codes: bytes) -> bytes:
    return parts_sha256(f"{number} {node}".encode(), text, codes)
