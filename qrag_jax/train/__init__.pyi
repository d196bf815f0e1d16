"""The public names, by where they live; `__init__.py` loads each on first use."""

from .best import KeepBest as KeepBest
from .compression import CompressorConfig as CompressorConfig
from .compression import FittedCompressor as FittedCompressor
from .compression import fit_compressor as fit_compressor
from .losses import add_losses as add_losses
from .q.learner import Learner as Learner
from .q.learner import LearnerConfig as LearnerConfig
from .q.learner import LearnerState as LearnerState
from .q.learner import make_learner as make_learner
from .q.learner import q_loss as q_loss
from .q.loop import train as train
from .q.loop import train_together as train_together
from .q.members import Member as Member
from .q.returns import lambda_returns as lambda_returns
from .q.returns import state_value as state_value
from .q.run import DataConfig as DataConfig
from .q.run import DevConfig as DevConfig
from .q.run import RunConfig as RunConfig
from .q.run import training_tasks as training_tasks
from .tagger import FittedTagger as FittedTagger
from .tagger import TaggerConfig as TaggerConfig
from .tagger import fit_tagger as fit_tagger
from .trainer import Hooks as Hooks
from .trainer import Plan as Plan
from .trainer import Trainer as Trainer
from .trainer import jit_update as jit_update
