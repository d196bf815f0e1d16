"""A study: what chunkers find beside what they cost, on data sets or on one's own documents and questions."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.config import load_config
from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.study.cells.study_encoder import load_study_encoder
from qrag_jax.eval.study.config import DefaultStudy, StudyConfig
from qrag_jax.eval.study.load_tasks import load_with_problems
from qrag_jax.eval.study.records import StudyResult
from qrag_jax.eval.study.results.report import write_report
from qrag_jax.eval.study.runner import run_study
from qrag_jax.eval.tables import check_can_plot
from qrag_jax.files.folder_lock import lock_folder
from qrag_jax.types import NOBODY, Arg, UsageError, Watch

_MAX_PROBLEMS = 5  # notes about questions that could not be asked


@dataclass(frozen=True)
class StudyRequest:
    """A study: a config that names tasks, or one's own documents and questions, and a config of settings if any.

    Attributes:
        config: YAML file.
        overrides: of its fields, `report_k=3`.
        corpus: file or folder of documents; with it the only task is this one.
        questions: about them, a .jsonl file.
        budgets: tokens of contexts in which the evidence is looked for too; none: not.
        fills: how these are filled, of `names.FILLS`; none: as the config says.
        levels: that are searched too; none: as the config says.
        parents: how parents get vectors; none: as the config says.
        out: folder for results; None: `runs/study-NAME`.
    """

    config: str | None = None
    overrides: tuple[str, ...] = ()
    corpus: str | None = None
    questions: str | None = None
    budgets: tuple[int, ...] = ()
    fills: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    out: str | None = None


@dataclass(frozen=True)
class StudyPlan:
    """A study that can be run: its whole config, and the folder for its results."""

    config: StudyConfig
    out: Path


@dataclass(frozen=True)
class Studied:
    """The result of a study, and its files."""

    result: StudyResult
    paths: tuple[Path, ...]


def plan_study(request: StudyRequest) -> StudyPlan:
    """The config of a study, and a folder for its results that is outside of its documents."""
    config = study_config(request)
    out = Path(request.out or default_out(request.config, config))
    check_out(out, config)
    return StudyPlan(config, out)


def study(plan: StudyPlan, watch: Watch = NOBODY) -> Studied:
    """Runs a study in a folder that no other process works in, or goes on with it; writes its report."""
    check_can_plot()
    config = plan.config
    with lock_folder(plan.out, "qrag study"):
        tasks = _load_tasks(config, watch)
        encoder = load_study_encoder(config.model, config.window)
        report = lambda stage, done, of: watch.report(stage, done, of, {})  # noqa: E731
        result = run_study(config, tasks, encoder, plan.out, report)
        return Studied(result, tuple(write_report(result, plan.out)))


def study_config(request: StudyRequest) -> StudyConfig:
    """The config of a request, with the strategies of `config.DEFAULT_STRATEGIES` where it names none."""
    overrides = [*_own_overrides(request), *request.overrides]
    corpus, questions = request.corpus, request.questions
    if (corpus is None) != (questions is None):
        given, missing = ("questions", "corpus") if corpus is None else ("corpus", "questions")
        reason = (Arg(given), " goes with ", Arg(missing), ": a study of your own documents needs both")
        raise UsageError(reason, field=given)
    if corpus is None or questions is None:
        if request.config is None:
            own = (Arg("corpus", "DIR"), " ", Arg("questions", "FILE.jsonl"))
            raise UsageError(("say what to study: a config with tasks, or your own documents with ", *own))
        return load_config(DefaultStudy, request.config, overrides)
    for name, path in (("corpus", corpus), ("questions", questions)):
        if not os.path.exists(path):
            raise UsageError((Arg(name, path), ": no such file or folder; check the path"), field=name, value=path)
    if not os.path.isfile(questions):
        reason = ": is a folder; give a .jsonl file with one question a line"
        raise UsageError((Arg("questions", questions), reason), field="questions", value=questions)
    name = task_name(corpus)
    task = {"kind": "files", "path": corpus, "questions": questions}
    own = ["data=", *(f"tasks.{name}.{field}={_quoted(value)}" for field, value in task.items())]
    config = load_config(DefaultStudy, request.config, [*own, *overrides])
    if len(config.tasks) > 1:
        others = ", ".join(other for other in config.tasks if other != name)
        names = f": {request.config or 'an override'} names tasks too ({others}); give "
        both = " with a config that has strategies and settings only, or the config without "
        raise UsageError((Arg("corpus", corpus), names, Arg("corpus"), both, Arg("corpus")), field="corpus")
    return config


def _own_overrides(request: StudyRequest) -> list[str]:
    """The overrides that the lists of a request make, before its own; the config checks the names."""
    own = [
        f"{name}=[{', '.join(map(_quoted, names))}]"
        for name, names in (("levels", request.levels), ("parents", request.parents))
        if names
    ]
    lists = (("budgets", request.budgets), ("fills", request.fills))
    return own + [f"{name}=[{','.join(map(str, values))}]" for name, values in lists if values]


def task_name(corpus: str) -> str:
    """Name of a task from the last part of a path, as an override can name it; `corpus` where that makes none."""
    name = re.sub(r"\W+", "_", Path(os.path.abspath(corpus)).stem).strip("_")
    return name if name.isidentifier() else "corpus"


def default_out(config_path: str | None, config: StudyConfig) -> str:
    """`runs/study-NAME`: of the config, or of the corpus where no config names tasks."""
    names = list(config.tasks)
    is_own = len(names) == 1 and config.tasks[names[0]].kind == "files"
    name = names[0] if is_own or config_path is None else Path(config_path).stem
    return f"runs/study-{name}"


def check_out(out: Path, config: StudyConfig) -> None:
    """Refuses a folder for results inside a folder of documents: `table.md` would be one of them the next time."""
    real = os.path.realpath(out)
    for name, task in config.tasks.items():
        corpus = os.path.realpath(os.path.join(config.data, task.path))
        if task.kind == "files" and os.path.commonpath((real, corpus)) == corpus:
            where = f": inside the documents of {name} ({task.path}), so that the next run would read these results "
            rest = ("as documents; give ", Arg("out"), " a folder outside of it")
            raise UsageError((Arg("out", out), where, *rest), field="out", value=out)


def describe_task(task: StudyTask) -> str:
    """`notes: 31 questions about 4 documents (23,101 characters); left out, no evidence: 2`."""
    size = sum(len(document.text) for document in task.documents)
    line = (
        f"{task.name}: {len(task.questions):,} questions about {len(task.documents):,} documents ({size:,} characters)"
    )
    return line + "".join(f"; left out, {reason}: {number:,}" for reason, number in task.left_out.items() if number)


def _quoted(text: str) -> str:
    """Quoted for YAML, so that an override gives any text (quotes, line ends, bytes of a file name) as it stands."""
    escaped = (c if c.isprintable() and c not in ('"', "\\") else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(escaped)}"'


def _load_tasks(config: StudyConfig, watch: Watch) -> list[StudyTask]:
    """Reads all tasks before anything is embedded, and says what each has."""
    split = make_splitter(config.splitter, config.language)
    tasks = []
    for name, how in config.tasks.items():
        task, problems = load_with_problems(name, how, config.data, config.seed, split)
        watch.note(describe_task(task))
        for problem in problems[:_MAX_PROBLEMS]:  # the user can mend these
            watch.note(f"  {problem}")
        if len(problems) > _MAX_PROBLEMS:
            watch.note(f"  and {len(problems) - _MAX_PROBLEMS:,} more")
        tasks.append(task)
    return tasks
