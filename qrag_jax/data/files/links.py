"""Links in folders of documents: skipped with a warning, unless they are asked for."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from qrag_jax.files.reading import reading

_MOST_NAMED = 3


def may_read(path: Path, skipped: list[Path]) -> bool:
    """Whether what lies in a folder is read: all but links, which may lead anywhere. A link is added to `skipped`."""
    if reading().follow_links or not path.is_symlink():
        return True
    skipped.append(path)
    return False


def warn_of_skipped(skipped: Sequence[Path]) -> None:
    """One warning of all links that were skipped, if there are any."""
    if skipped:
        named = ", ".join(map(str, skipped[:_MOST_NAMED])) + (", ..." if len(skipped) > _MOST_NAMED else "")
        warnings.warn(
            f"{len(skipped)} links in folders were not followed ({named}): --follow_links follows them, or name what "
            "is to be read itself (Python: qrag_jax.files.reading.read_with)",
            UserWarning,
            stacklevel=3,
        )
