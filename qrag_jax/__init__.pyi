"""The names that are promised, by where they live; `__init__.py` loads each on first use."""

from .chunking.chunker import ChunkConfig as ChunkConfig
from .chunking.chunker import make_chunker as make_chunker
from .chunking.chunker import make_tree_builder as make_tree_builder
from .chunking.tree.tree import ChunkTree as ChunkTree
from .config import load_config as load_config
from .data.questions.examples import read_examples as read_examples
from .documents.read import read_files as read_files
from .eval.retrieval.score import score_run as score_run
from .eval.study.config import StudyConfig as StudyConfig
from .eval.study.runner import run_study as run_study
from .index.build import build_index as build_index
from .index.corpus_folder import load_corpus as load_corpus
from .index.corpus_folder import save_corpus as save_corpus
from .index.index import Index as Index
from .index.index import open_index as open_index
from .index.options import AskOptions as AskOptions
from .index.options import SearchOptions as SearchOptions
from .llm.journal.journal import JournaledGenerator as JournaledGenerator
from .llm.journal.journal_file import Journal as Journal
from .llm.local import LocalGenerator as LocalGenerator
from .llm.scripted import ScriptedGenerator as ScriptedGenerator
from .llm.server.openai import OpenAIGenerator as OpenAIGenerator
from .llm.wrappers import BudgetedGenerator as BudgetedGenerator
from .models.encoder.embedder import make_embedder as make_embedder
from .models.encoder.weights import load_encoder as load_encoder
from .qrag.retriever import QRagRetriever as QRagRetriever
from .qrag.retriever import load_retriever as load_retriever
from .search.answer import Answer as Answer
from .search.corpus import Corpus as Corpus
from .search.corpus import build_corpus as build_corpus
from .train.qrag.config import RunConfig as RunConfig
from .types import Chunk as Chunk
from .types import Document as Document
from .types import Example as Example
from .types import Generation as Generation
from .types import Hit as Hit
from .types import InputError as InputError
from .types import Message as Message
from .types import Retriever as Retriever
from .types import Sampling as Sampling
from .types import Sentence as Sentence
from .types import TextGenerator as TextGenerator
from .types import UsageError as UsageError

__version__: str
