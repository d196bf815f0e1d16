"""The public names, by where they live; `__init__.py` loads each on first use."""

from .cutting import CutOptions as CutOptions
from .cutting import chunking_of as chunking_of
from .search import SearchRequest as SearchRequest
from .search import answer_all as answer_all
from .search import find_all as find_all
from .search import trained_on as trained_on
