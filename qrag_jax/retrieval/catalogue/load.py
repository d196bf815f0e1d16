"""An index as a corpus: what was cut and embedded once, to be asked many times."""

import os
from collections.abc import Callable, Sequence

import numpy as np

from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.retrieval.catalogue.database import Damaged, advice, identity, reading_from
from qrag_jax.retrieval.catalogue.entries import unpack_document, unpack_nodes, unpack_tree, unpack_vectors
from qrag_jax.retrieval.catalogue.place import index_folder
from qrag_jax.retrieval.catalogue.rows import Known, read_all
from qrag_jax.retrieval.catalogue.settings import IndexSettings, read_settings
from qrag_jax.retrieval.corpus.corpus import Corpus, MadeBy
from qrag_jax.types import Chunk, Cost, Document, InputError

ChooseNames = Callable[[Sequence[str]], Sequence[str]]
_TRIES = 3  # where a catalogue is replaced while it is read


def load_index(path: str | os.PathLike, choose: ChooseNames | None = None) -> Corpus:
    """The documents of an index, in the order of their ids, as they are now; each is checked against its hash.

    Writers are not waited for: what they have finished is there, and what they have begun is not.

    Args:
        path: of the index.
        choose: ids -> those of the documents that are wanted; None is all.

    Raises:
        UsageError: there is no index.
        InputError: it is damaged, of a newer format, or has no document; names what is, and what to do.
    """
    folder = index_folder(path)
    settings = read_settings(folder)
    for left in range(_TRIES, 0, -1):
        before = identity(folder)
        try:
            with reading_from(folder) as connection:
                known = [one for one in read_all(connection, folder) if one.row is not None]
        except Damaged:
            if left == 1 or identity(folder) == before:
                raise
            continue
        if identity(folder) == before:
            break
    else:
        raise InputError(f"{folder}: is written anew again and again: try again when that has ended")
    if not known:
        raise InputError(f"{folder}: has no document; add some with `qrag index add {folder} PATHS...`")
    if choose is not None:
        wanted = set(choose([one.id for one in known]))
        known = [one for one in known if one.id in wanted]
    try:
        return _corpus(known, settings)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{folder}: its rows are none of an index ({error}); {advice(folder)}") from error


def _corpus(known: list[Known], settings: IndexSettings) -> Corpus:
    documents: list[Document] = []
    nodes: list[Chunk] = []
    vectors: list[np.ndarray] = []
    trees: list[ChunkTree] = []
    num_cut = 0
    for one in known:
        assert one.row is not None
        found, is_cut = unpack_nodes(one.id, one.row)
        documents.append(unpack_document(one.id, one.row))
        nodes += found
        vectors.append(unpack_vectors(one.row, len(found)))
        num_cut += int(is_cut.sum())
        if (tree := unpack_tree(one.id, one.row, found)) is not None:
            trees.append(tree)
    joined = np.concatenate(vectors)
    return Corpus(
        tuple(documents),
        tuple(nodes),
        np.ascontiguousarray(joined, np.float32),
        MadeBy(settings.chunking, settings.model, settings.fingerprint),
        Cost(index_bytes=joined.nbytes),
        num_cut,
        tuple(trees),
    )
