"""Documents taken out of an index, without a rest."""

from collections.abc import Callable, Sequence
from pathlib import Path

from qrag_jax.retrieval.catalogue.database import writing_to
from qrag_jax.retrieval.catalogue.mend import mend
from qrag_jax.retrieval.catalogue.noting import KnownTexts, note_reader, update_notes
from qrag_jax.retrieval.catalogue.place import PATIENCE, index_folder, one_writer
from qrag_jax.retrieval.catalogue.prepare import MakeMaker
from qrag_jax.retrieval.catalogue.rows import remove
from qrag_jax.retrieval.catalogue.scope import lies_in
from qrag_jax.retrieval.catalogue.settings import read_settings
from qrag_jax.types import NoteReader, UsageError


def remove_documents(
    folder: Path,
    paths: Sequence[str],
    *,
    make: MakeMaker | None = None,
    read_notes: NoteReader | None = None,
    patience: float = PATIENCE,
    waits: Callable[[str], object] = lambda message: None,
) -> tuple[str, ...]:
    """Removes the documents of files and folders; no byte of their texts stays in the index, nor a note of them.

    Args:
        folder: of the index.
        paths: as they are named in the index; the files need not be there any more.
        make: loads what embeds, where notes come in that were beyond their chunk's most before; needed where the index
            has notes (`retrieval.indexing.remove_from_index` has it).
        read_notes: as of `Plan`.
        patience, waits: as of `place.one_writer`.

    Returns:
        The ids that were removed.

    Raises:
        UsageError: there is no index, no document of a path in it, or `make` is missing; then nothing is removed.
        InputError: the disk is full, or the index cannot be mended.
    """
    index_folder(folder)
    with one_writer(folder, "qrag index remove", patience, waits):
        settings = read_settings(folder)
        if settings.has_notes and make is None:
            raise UsageError(
                f"{folder}: has notes, which are made anew of what is left: give `make`, to embed new ones"
            )
        if settings.has_notes and read_notes is None:
            note_reader(settings.notes)  # refused before anything is removed
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
            if make is not None:
                update_notes(connection, folder, settings, make, KnownTexts(connection), read_notes)
    return tuple(gone)
