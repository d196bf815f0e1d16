"""The public names, by where they live; `__init__.py` loads each on first use."""

from .calls import Reading as Reading
from .estimate import Estimate as Estimate
from .propositions import PropositionsConfig as PropositionsConfig
from .propositions import make_propositions_reader as make_propositions_reader
from .questions import QuestionsConfig as QuestionsConfig
from .questions import make_llm_reader as make_llm_reader
