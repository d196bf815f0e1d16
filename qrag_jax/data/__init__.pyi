"""The public names, by where they live; `__init__.py` loads each on first use."""

from .corpora.file_questions import read_files as read_files
from .corpora.headed_documents import HeadedDocument as HeadedDocument
from .corpora.headed_documents import read_headed as read_headed
from .corpora.study_task import StudyQuestion as StudyQuestion
from .corpora.study_task import StudyTask as StudyTask
from .plan_tasks import PlanTask as PlanTask
from .plan_tasks import PlanTaskConfig as PlanTaskConfig
from .questions.examples import read_examples as read_examples
from .questions.multihop import read_2wiki as read_2wiki
from .questions.multihop import read_hotpot as read_hotpot
from .questions.multihop import read_musique as read_musique
from .questions.vector_task import VectorTask as VectorTask
from .questions.vector_task import read_vector_task as read_vector_task
from .stories.babi import read_babi as read_babi
from .stories.haystack import Haystack as Haystack
from .stories.haystack import held_back_haystack as held_back_haystack
from .stories.haystack import load_haystack as load_haystack
from .stories.stories import Stories as Stories
