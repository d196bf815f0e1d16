"""The public names, by where they live; `__init__.py` loads each on first use."""

from .chunker import ChunkConfig as ChunkConfig
from .chunker import make_chunker as make_chunker
from .chunker import make_tree_builder as make_tree_builder
from .strategies.headings import heading_tree as heading_tree
from .strategies.level_leaves import LevelsConfig as LevelsConfig
from .text.chunks import Group as Group
from .text.chunks import SentenceText as SentenceText
from .text.chunks import Strategy as Strategy
from .text.chunks import chunk_text as chunk_text
from .text.chunks import make_chunk as make_chunk
from .text.sentences import split_sentences as split_sentences
from .tree.build import refine_leaves as refine_leaves
from .tree.build import tree_from_points as tree_from_points
from .tree.build import tree_from_sections as tree_from_sections
from .tree.level_ranges import LevelRange as LevelRange
from .tree.level_ranges import parse_levels as parse_levels
from .tree.parent_vectors import Parents as Parents
from .tree.tree import ChunkTree as ChunkTree
from .tree.tree_files import load_trees as load_trees
from .tree.tree_files import save_trees as save_trees
from .units import unit_chunks as unit_chunks
