"""The public names, by where they live; `__init__.py` loads each on first use."""

from .answers.answering import Reader as Reader
from .answers.answering import choose_measures as choose_measures
from .answers.answering import read_answers as read_answers
from .answers.rows import answer_rows as answer_rows
from .measures.facts import FactScores as FactScores
from .measures.facts import score_facts as score_facts
from .notes.scores import NoteRow as NoteRow
from .notes.scores import score_notes as score_notes
from .picks.calibration import calibrate as calibrate
from .picks.compare import compare as compare
from .picks.harness import Labels as Labels
from .picks.harness import Scoring as Scoring
from .picks.harness import evaluate as evaluate
from .picks.pickers import make_pickers as make_pickers
from .picks.records import (
    QueryRecord as QueryRecord,
)
from .picks.records import (
    Row as Row,
)
from .picks.records import (
    read_records as read_records,
)
from .picks.records import (
    read_rows as read_rows,
)
from .picks.records import (
    write_records as write_records,
)
from .picks.records import (
    write_rows as write_rows,
)
from .picks.report import format_table as format_table
from .picks.score import Options as Options
from .picks.score import Run as Run
from .picks.score import open_run as open_run
from .picks.score import score as score
from .picks.score import score_run as score_run
from .setting import Setting as Setting
from .study.cells.encoder import load_study_encoder as load_study_encoder
from .study.config import StudyConfig as StudyConfig
from .study.config import TaskConfig as TaskConfig
from .study.runner import run_study as run_study
from .study.tasks import load_task as load_task
