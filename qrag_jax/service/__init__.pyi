"""The public names, by where they live; `__init__.py` loads each on first use."""

from .chunking import ChunkRequest as ChunkRequest
from .chunking import Cut as Cut
from .chunking import Cutter as Cutter
from .chunking import make_cutter as make_cutter
from .cutting import CutOptions as CutOptions
from .cutting import chunking_of as chunking_of
from .headed import BenchmarkRequest as BenchmarkRequest
from .headed import BoundaryRow as BoundaryRow
from .headed import ScoreRequest as ScoreRequest
from .headed import build_benchmark as build_benchmark
from .headed import estimate_sources as estimate_sources
from .headed import score_sources as score_sources
from .indexing import NotesRequest as NotesRequest
from .indexing import Updated as Updated
from .indexing import UpdateRequest as UpdateRequest
from .indexing import Watch as Watch
from .indexing import remove as remove
from .indexing import update as update
from .notes import NotesEvalRequest as NotesEvalRequest
from .notes import NotesScored as NotesScored
from .notes import evaluate_notes as evaluate_notes
from .notes import index_notes as index_notes
from .search import SearchRequest as SearchRequest
from .search import answer_all as answer_all
from .search import find_all as find_all
from .search import trained_on as trained_on
