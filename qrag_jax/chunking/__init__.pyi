"""The public names, by where they live; `__init__.py` loads each on first use."""

from .chunker import ChunkConfig as ChunkConfig
from .chunker import make_chunker as make_chunker
from .chunker import make_tree_builder as make_tree_builder
from .mentions import MentionsConfig as MentionsConfig
from .mentions import mention_notes as mention_notes
from .strategies.headings import heading_tree as heading_tree
from .strategies.levels import LevelsConfig as LevelsConfig
from .text.chunks import Group as Group
from .text.chunks import SentenceText as SentenceText
from .text.chunks import Strategy as Strategy
from .text.chunks import chunk_text as chunk_text
from .text.chunks import make_chunk as make_chunk
from .text.sentences import split_sentences as split_sentences
from .tree.build import refine_leaves as refine_leaves
from .tree.build import tree_from_points as tree_from_points
from .tree.build import tree_from_sections as tree_from_sections
from .tree.cluster_trees import make_cluster_trees as make_cluster_trees
from .tree.levels import LevelRange as LevelRange
from .tree.levels import parse_levels as parse_levels
from .tree.store import load_trees as load_trees
from .tree.store import save_trees as save_trees
from .tree.tree import ChunkTree as ChunkTree
from .units import unit_chunks as unit_chunks
