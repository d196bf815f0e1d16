"""The public names, by where they live; `__init__.py` loads each on first use."""

from .read import DocumentFile as DocumentFile
from .read import Found as Found
from .read import Skipped as Skipped
from .read import find_files as find_files
from .read import page_of as page_of
from .read import read_files as read_files
