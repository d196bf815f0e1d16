"""The public names, by where they live; `__init__.py` loads each on first use."""

from .batching import Contexts as Contexts
from .batching import Packer as Packer
from .batching import Sample as Sample
from .batching import materialise as materialise
from .beam import beam_search as beam_search
from .env import Batch as Batch
from .env import EnvConfig as EnvConfig
from .env import Rollout as Rollout
from .env import rollout as rollout
from .multi_step_search import ActionBank as ActionBank
from .multi_step_search import action_bank as action_bank
from .multi_step_search import make_action_bank as make_action_bank
from .multi_step_search import search_bank as search_bank
from .retriever import EncoderSpec as EncoderSpec
from .retriever import ModelConfig as ModelConfig
from .retriever import QRagRetriever as QRagRetriever
from .retriever import load_retriever as load_retriever
from .retriever import new_retriever as new_retriever
from .tasks import Task as Task
from .tasks import examples_task as examples_task
from .tasks import hidden_stories_tasks as hidden_stories_tasks
from .tasks import vectors_task as vectors_task
