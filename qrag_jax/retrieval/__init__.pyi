"""The public names, by where they live; `__init__.py` loads each on first use."""

from .catalogue.info import IndexInfo as IndexInfo
from .catalogue.info import index_info as index_info
from .catalogue.load import load_index as load_index
from .catalogue.place import is_index as is_index
from .catalogue.remove import remove_documents as remove_documents
from .catalogue.settings import IndexSettings as IndexSettings
from .catalogue.settings import read_settings as read_settings
from .catalogue.update import Changes as Changes
from .catalogue.update import Plan as Plan
from .compressing import compressor_parents as compressor_parents
from .context.auto_merge import MergeRules as MergeRules
from .context.auto_merge import merge_context as merge_context
from .context.citations import cite as cite
from .context.fill import Budget as Budget
from .context.fill import Context as Context
from .context.fill import Passage as Passage
from .context.fill import fill_context as fill_context
from .context.levels import LevelRanked as LevelRanked
from .context.levels import fill_levels as fill_levels
from .context.widen import widen_context as widen_context
from .corpus.corpus import (
    Corpus as Corpus,
)
from .corpus.corpus import (
    build_corpus as build_corpus,
)
from .corpus.corpus import (
    embed_corpus as embed_corpus,
)
from .corpus.corpus import (
    tree_corpus as tree_corpus,
)
from .corpus.parents import Parents as Parents
from .corpus.store import load_corpus as load_corpus
from .corpus.store import save_corpus as save_corpus
from .corpus.text_parents import text_parents as text_parents
from .index.hybrid import (
    Ranked as Ranked,
)
from .index.hybrid import (
    fuse as fuse,
)
from .index.hybrid import (
    make_single_step as make_single_step,
)
from .index.hybrid import (
    rank_bm25 as rank_bm25,
)
from .index.hybrid import (
    rank_dense as rank_dense,
)
from .index.hybrid import (
    rank_hybrid as rank_hybrid,
)
from .index.levels import LevelIndex as LevelIndex
from .index.levels import make_level_retrieve as make_level_retrieve
from .index.notes import NotedCorpus as NotedCorpus
from .index.notes import NotedRanked as NotedRanked
from .index.notes import NoteSearch as NoteSearch
from .index.notes import make_noted_retrieve as make_noted_retrieve
from .index.notes import note_corpus as note_corpus
from .index.notes import rank_noted as rank_noted
from .index.retriever import (
    EncoderSpec as EncoderSpec,
)
from .index.retriever import (
    ModelConfig as ModelConfig,
)
from .index.retriever import (
    Retriever as Retriever,
)
from .index.retriever import (
    load_retriever as load_retriever,
)
from .index.retriever import (
    new_retriever as new_retriever,
)
from .index.search import (
    Index as Index,
)
from .index.search import (
    index_corpus as index_corpus,
)
from .index.search import (
    make_index as make_index,
)
from .index.search import (
    retrieve as retrieve,
)
from .index.search import (
    search as search,
)
from .indexing import add_to_index as add_to_index
from .indexing import build_index as build_index
from .indexing import index_method as index_method
from .indexing import index_settings as index_settings
from .indexing import load_level_index as load_level_index
from .indexing import load_noted_index as load_noted_index
from .indexing import remove_from_index as remove_from_index
from .mdp.batching import Contexts as Contexts
from .mdp.batching import Packer as Packer
from .mdp.batching import Sample as Sample
from .mdp.batching import materialise as materialise
from .mdp.beam import beam_search as beam_search
from .mdp.env import Batch as Batch
from .mdp.env import EnvConfig as EnvConfig
from .mdp.env import Rollout as Rollout
from .mdp.env import rollout as rollout
from .mdp.positions import chunk_positions as chunk_positions
from .mdp.positions import relative_positions as relative_positions
from .mdp.tasks import (
    Task as Task,
)
from .mdp.tasks import (
    examples_task as examples_task,
)
from .mdp.tasks import (
    hidden_stories_tasks as hidden_stories_tasks,
)
from .mdp.tasks import (
    vectors_task as vectors_task,
)
from .methods import Method as Method
from .methods import multi_step_method as multi_step_method
from .methods import single_step_method as single_step_method
from .tagging import make_tagger_points as make_tagger_points
