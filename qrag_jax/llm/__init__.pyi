"""The public names, by where they live; `__init__.py` loads each on first use."""

from .calls import ask_all as ask_all
from .config import LlmConfig as LlmConfig
from .config import ReadyGenerator as ReadyGenerator
from .config import make_generator as make_generator
from .journal.journal import JournaledGenerator as JournaledGenerator
from .journal.journal import call_key as call_key
from .journal.journal_file import Journal as Journal
from .local import LocalGenerator as LocalGenerator
from .prompts import PromptTemplate as PromptTemplate
from .prompts import fence as fence
from .prompts import load_prompt as load_prompt
from .scripted import ScriptedGenerator as ScriptedGenerator
from .scripted import load_script as load_script
from .server.openai import OpenAIGenerator as OpenAIGenerator
from .structured import Structured as Structured
from .structured import ask_structured as ask_structured
from .wrappers import BudgetedGenerator as BudgetedGenerator
from .wrappers import Told as Told
from .wrappers import WatchedGenerator as WatchedGenerator
