"""The public names, by where they live; `__init__.py` loads each on first use."""

from .checkpoint import load_checkpoint as load_checkpoint
from .checkpoint import save_checkpoint as save_checkpoint
from .chunking.chunker import (
    ChunkConfig as ChunkConfig,
)
from .chunking.chunker import (
    make_chunker as make_chunker,
)
from .chunking.chunker import (
    make_tree_builder as make_tree_builder,
)
from .chunking.tree.store import load_trees as load_trees
from .chunking.tree.store import save_trees as save_trees
from .chunking.tree.tree import ChunkTree as ChunkTree
from .config import load_config as load_config
from .data.files.documents import read_files as read_files
from .data.questions.jsonl import read_examples as read_examples
from .data.stories.babi import read_babi as read_babi
from .data.stories.haystack import load_haystack as load_haystack
from .eval.picks.compare import compare as compare
from .eval.picks.records import read_rows as read_rows
from .eval.picks.records import write_rows as write_rows
from .eval.picks.report import format_table as format_table
from .eval.picks.score import score_run as score_run
from .eval.study.runner import run_study as run_study
from .llm.journal.file import Journal as Journal
from .llm.journal.journal import JournaledGenerator as JournaledGenerator
from .llm.local import LocalGenerator as LocalGenerator
from .llm.scripted import ScriptedGenerator as ScriptedGenerator
from .llm.server.openai import OpenAIGenerator as OpenAIGenerator
from .llm.spending import BudgetedGenerator as BudgetedGenerator
from .llm.structured import ask_structured as ask_structured
from .models.decoder.weights import load_decoder as load_decoder
from .models.encoder.embedder import make_embedder as make_embedder
from .models.encoder.weights import load_encoder as load_encoder
from .pipeline import Answer as Answer
from .pipeline import answer_question as answer_question
from .retrieval.catalogue.load import load_index as load_index
from .retrieval.corpus.corpus import Corpus as Corpus
from .retrieval.corpus.corpus import build_corpus as build_corpus
from .retrieval.corpus.corpus import embed_corpus as embed_corpus
from .retrieval.corpus.store import load_corpus as load_corpus
from .retrieval.corpus.store import save_corpus as save_corpus
from .retrieval.index.retriever import Retriever as Retriever
from .retrieval.index.retriever import load_retriever as load_retriever
from .retrieval.index.search import index_corpus as index_corpus
from .retrieval.index.search import make_index as make_index
from .retrieval.index.search import search as search
from .retrieval.indexing import build_index as build_index
from .retrieval.mdp.tasks import examples_task as examples_task
from .retrieval.methods import multi_step_method as multi_step_method
from .retrieval.methods import single_step_method as single_step_method
from .types import (
    Choice as Choice,
)
from .types import (
    Chunk as Chunk,
)
from .types import (
    Cost as Cost,
)
from .types import (
    Document as Document,
)
from .types import (
    Example as Example,
)
from .types import (
    Generation as Generation,
)
from .types import (
    InputError as InputError,
)
from .types import (
    JsonSchema as JsonSchema,
)
from .types import (
    Message as Message,
)
from .types import (
    Regex as Regex,
)
from .types import (
    Sampling as Sampling,
)
from .types import (
    Step as Step,
)
from .types import (
    TextGenerator as TextGenerator,
)
from .types import (
    Trajectory as Trajectory,
)
from .types import (
    UsageError as UsageError,
)

__version__: str
