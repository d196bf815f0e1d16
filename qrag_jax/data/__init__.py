"""Host-side data: NumPy and str only, imports no JAX.

stories (questions over facts), worlds (simulator), vocabulary, story_notes (what facts say, notes of them), babi
(reader), haystack (real sentences), babilong (facts hidden in them), jsonl and vector_task (users' own data), vectors.
study_task (documents, questions, evidence), its readers (beir, cranfield, chroma, squad, multirc, scisumm,
conditionalqa, financebench, file_questions), stitch; plan_tasks (controlled tasks for planners).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
