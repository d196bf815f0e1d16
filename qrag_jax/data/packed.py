"""Files of a data set that may lie there as they are or compressed."""

from pathlib import Path


def plain_or_gz(path: Path) -> Path:
    """The file with `.gz` behind its name where only that one exists, else the path itself."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.is_file() and not path.is_file() else path
