"""How inputs are read: whether links in folders of documents are followed.

A setting of the process's user, not of a run or a study: `read_with` holds for what is read inside of it, so that no
reader passes it on and no config file, which may be somebody else's, can change it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Reading:
    """How inputs are read.

    Attributes:
        follow_links: links in a folder of documents are read like what they lead to.
    """

    follow_links: bool = False


_DEFAULTS = Reading()
_reading: ContextVar[Reading] = ContextVar("_reading", default=_DEFAULTS)


def reading() -> Reading:
    """What holds here; a new thread begins with the defaults."""
    return _reading.get()


@contextmanager
def read_with(*, follow_links: bool | None = None) -> Iterator[Reading]:
    """Inputs inside of it are read so.

    Args:
        follow_links: as of `Reading`; None leaves it as it is.
    """
    given = {"follow_links": follow_links}
    token = _reading.set(replace(_reading.get(), **{name: x for name, x in given.items() if x is not None}))
    try:
        yield _reading.get()
    finally:
        _reading.reset(token)
