"""Makes a large index out of one of real documents, to measure searches of a million chunks.

Each copy of a document has its own rare words (letters moved along the alphabet) and its own vectors (moved by noise).
So the number of words and the neighbours of a vector grow as they do with more documents. Common words stay.

    python -m benchmarks.search.grow real.index grown.index --copies 8
"""

import argparse
import re
import shutil
import string
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from qrag_jax.chunking.text.chunks import chunk_id
from qrag_jax.index.build import make_maker
from qrag_jax.index.folder import ABOUT
from qrag_jax.index.parts.make import refresh
from qrag_jax.index.settings import read_settings
from qrag_jax.index.stores.sqlite.database import create, reading_from, transaction, writing_to
from qrag_jax.index.stores.sqlite.document_rows import entry_of, put, read_all
from qrag_jax.index.stores.sqlite.note_rows import (
    Mark,
    documents_sha256,
    pack_notes,
    put_note_row,
    read_mark,
    read_note_rows,
    write_mark,
)
from qrag_jax.types import Document

_WORD = re.compile(r"[A-Za-z]+")
_COMMON = 0.02  # of all documents: passages without a rarer word are copies of each other
_STRIDES = (1, 3, 5, 7, 9, 11, 15, 17, 19, 21, 23, 25)  # of the moved alphabet: for 312 copies
_NOISE = 0.5  # length of what is added to a vector of length 1


def moved(text: str, step: int, common: set[str]) -> str:
    """The text with the letters of rare words moved along the alphabet; its length stays. Each step gives others."""
    lower, upper = string.ascii_lowercase, string.ascii_uppercase
    turns, first = divmod(step, len(lower))
    moves = [(first + _STRIDES[turns] * at) % len(lower) for at in range(len(lower))]
    table = str.maketrans(lower + upper, "".join(letters[at] for letters in (lower, upper) for at in moves))
    return _WORD.sub(lambda one: one[0] if one[0].lower() in common else one[0].translate(table), text)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir()
    shutil.copy(args.index / ABOUT, args.out / ABOUT)
    create(args.out)
    settings, rng = read_settings(args.out), np.random.default_rng(args.seed)
    with reading_from(args.index) as source:
        entries = [entry_of(known, args.index) for known in read_all(source, args.index) if known.row is not None]
        notes, mark = list(read_note_rows(source, args.index)), read_mark(source)
    found = Counter(word for one in entries for word in {word.lower() for word in _WORD.findall(one.document.text)})
    common = {word for word, number in found.items() if number > _COMMON * len(entries)}
    start = time.perf_counter()
    with writing_to(args.out) as connection:
        connection.execute("PRAGMA synchronous = OFF")  # only here: nothing is lost if the benchmark is killed
        for copy in range(args.copies):
            ids: dict[str, str] = {}
            for one in entries:
                name = f"{copy}/{one.document.id.lstrip('/')}"
                nodes = tuple(
                    replace(node, id=chunk_id(name, node.spans, node.level), document_id=name) for node in one.nodes
                )
                ids |= {old.id: new.id for old, new in zip(one.nodes, nodes, strict=True)}
                noise = rng.standard_normal(one.vectors.shape, dtype=np.float32) / np.sqrt(one.vectors.shape[1])
                vectors = one.vectors + (_NOISE * noise if copy else 0)
                vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
                document = Document(name, moved(one.document.text, copy, common), one.document.metadata)
                put(connection, args.out, replace(one, document=document, nodes=nodes, vectors=vectors))
            with transaction(connection, args.out):
                for row in notes:
                    placed = [
                        (
                            order,
                            replace(
                                note,
                                asking=ids[note.asking],
                                answering=ids[note.answering],
                                text=moved(note.text, copy, common),
                                quote=moved(note.quote, copy, common),
                            ),
                        )
                        for order, note in row.placed
                    ]
                    pair = (f"{copy}/{row.pair[0].lstrip('/')}", f"{copy}/{row.pair[1].lstrip('/')}")
                    put_note_row(connection, replace(row, pair=pair, content=pack_notes(placed)))
            print(f"copy {copy}: {time.perf_counter() - start:.0f} s", flush=True)
        if mark is not None:
            with transaction(connection, args.out):
                number = args.copies * mark.num_notes
                write_mark(connection, Mark(documents_sha256(connection), mark.setting, number, mark.left_out))
        maker = make_maker(settings)
        refresh(connection, args.out, settings, lambda: maker().embed)
    print(f"search files: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
