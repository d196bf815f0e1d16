"""The public names, by where they live; `__init__.py` loads each on first use."""

from .build import build_index as build_index
from .build import index_method as index_method
from .build import index_settings as index_settings
from .corpus_folder import load_corpus as load_corpus
from .corpus_folder import save_corpus as save_corpus
from .folder import is_index as is_index
from .index import Index as Index
from .index import open_index as open_index
from .info import IndexInfo as IndexInfo
from .info import index_info as index_info
from .load import load_index as load_index
from .load import load_noted_index as load_noted_index
from .methods import Method as Method
from .methods import multi_step_method as multi_step_method
from .methods import single_step_method as single_step_method
from .options import AskOptions as AskOptions
from .options import Found as Found
from .options import SearchOptions as SearchOptions
from .parent_texts import text_parents as text_parents
from .remove import remove_documents as remove_documents
from .rerankers import load_reranker as load_reranker
from .settings import IndexSettings as IndexSettings
from .settings import read_settings as read_settings
from .update import Changes as Changes
from .update import Plan as Plan
