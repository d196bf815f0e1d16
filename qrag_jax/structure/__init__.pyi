"""The public names, by where they live; `__init__.py` loads each on first use."""

from .calls import Reading as Reading
from .estimate import Estimate as Estimate
from .propositions import PropositionsConfig as PropositionsConfig
from .propositions import estimate_propositions_reader as estimate_propositions_reader
from .propositions import make_propositions_reader as make_propositions_reader
from .questions import QuestionsConfig as QuestionsConfig
from .questions import estimate_llm_reader as estimate_llm_reader
from .questions import make_llm_reader as make_llm_reader
