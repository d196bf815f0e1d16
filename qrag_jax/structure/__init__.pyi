"""The public names, by where they live; `__init__.py` loads each on first use."""

from .calls import Reading as Reading
from .estimate import Estimate as Estimate
from .hicbench import Built as Built
from .hicbench import HiCBenchConfig as HiCBenchConfig
from .hicbench import build_hicbench as build_hicbench
from .hicbench import write_hicbench as write_hicbench
from .hichunk import HiChunkConfig as HiChunkConfig
from .hichunk import estimate_hichunk as estimate_hichunk
from .hichunk import make_hichunk as make_hichunk
from .hichunk_examples import ExamplesConfig as ExamplesConfig
from .hichunk_examples import make_examples as make_examples
from .hichunk_examples import write_examples as write_examples
from .lumber import LumberConfig as LumberConfig
from .lumber import estimate_lumber as estimate_lumber
from .lumber import make_lumber as make_lumber
from .propositions import PropositionsConfig as PropositionsConfig
from .propositions import estimate_propositions_reader as estimate_propositions_reader
from .propositions import make_propositions_reader as make_propositions_reader
from .questions import QuestionsConfig as QuestionsConfig
from .questions import estimate_llm_reader as estimate_llm_reader
from .questions import make_llm_reader as make_llm_reader
from .summaries import Summaries as Summaries
from .summaries import SummariesConfig as SummariesConfig
from .summaries import summarise as summarise
from .windows import PointsReading as PointsReading
