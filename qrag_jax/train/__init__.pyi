"""The public names, by where they live; `__init__.py` loads each on first use."""

from .learners.compressor import CompressorConfig as CompressorConfig
from .learners.compressor import FittedCompressor as FittedCompressor
from .learners.compressor import fit_compressor as fit_compressor
from .learners.tagger import FittedTagger as FittedTagger
from .learners.tagger import TaggerConfig as TaggerConfig
from .learners.tagger import fit_tagger as fit_tagger
from .qrag.config import DataConfig as DataConfig
from .qrag.config import DevConfig as DevConfig
from .qrag.config import RunConfig as RunConfig
from .qrag.config import training_tasks as training_tasks
from .qrag.learner import Learner as Learner
from .qrag.learner import LearnerConfig as LearnerConfig
from .qrag.learner import LearnerState as LearnerState
from .qrag.learner import make_learner as make_learner
from .qrag.learner import q_loss as q_loss
from .qrag.loop import train as train
from .qrag.loop import train_together as train_together
from .qrag.returns import lambda_returns as lambda_returns
from .qrag.returns import state_value as state_value
from .qrag.saving import Member as Member
from .trainer import Hooks as Hooks
from .trainer import KeepBest as KeepBest
from .trainer import Plan as Plan
from .trainer import Trainer as Trainer
from .trainer import add_losses as add_losses
from .trainer import jit_update as jit_update
