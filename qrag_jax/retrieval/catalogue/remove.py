"""Documents taken out of an index, without a rest."""

from collections.abc import Callable, Sequence
from pathlib import Path

from qrag_jax.retrieval.catalogue.database import writing_to
from qrag_jax.retrieval.catalogue.mend import mend
from qrag_jax.retrieval.catalogue.place import PATIENCE, index_folder, one_writer
from qrag_jax.retrieval.catalogue.rows import remove
from qrag_jax.retrieval.catalogue.scope import lies_in
from qrag_jax.retrieval.catalogue.settings import read_settings
from qrag_jax.types import UsageError


def remove_documents(
    folder: Path,
    paths: Sequence[str],
    *,
    patience: float = PATIENCE,
    waits: Callable[[str], object] = lambda message: None,
) -> tuple[str, ...]:
    """Removes the documents of files and folders; no byte of their texts stays in the index.

    Args:
        folder: of the index.
        paths: as they are named in the index; the files need not be there any more.
        patience, waits: as of `place.one_writer`.

    Returns:
        The ids that were removed.

    Raises:
        UsageError: there is no index, or no document of a path in it.
        InputError: the disk is full, or the index cannot be mended.
    """
    index_folder(folder)
    read_settings(folder)
    with one_writer(folder, "qrag index remove", patience, waits):
        known = mend(folder).known
        gone: dict[str, None] = {}
        for path in paths:
            here = [name for name in known if lies_in(name, path)]
            if not here:
                raise UsageError(
                    f"{path}: no document of the index {folder}; `qrag index info {folder} --json` names them"
                )
            gone |= dict.fromkeys(here)
        with writing_to(folder) as connection:
            for name in gone:
                remove(connection, folder, name)
    return tuple(gone)
