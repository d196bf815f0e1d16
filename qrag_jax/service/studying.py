"""A study: compares the quality and cost of chunkers, on data sets or on your own documents and questions."""

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
from qrag_jax.index.rerankers import load_reranker
from qrag_jax.types import NOBODY, Arg, UsageError, Watch

_MAX_PROBLEMS = 5  # notes about questions that cannot be used


@dataclass(frozen=True)
class StudyRequest:
    """A study: a config that names tasks, or your own documents and questions with an optional config of settings.

    Attributes:
        config: YAML file.
        overrides: of its fields, such as `report_k=3`.
        corpus: file or folder of documents; it is then the only task.
        questions: about them, a .jsonl file.
        budgets: sizes in tokens of contexts to look for the evidence in; empty: as in the config.
        fills: how contexts are filled, of `names.FILLS`; empty: as in the config.
        levels: to search too; empty: as in the config.
        parents: how parents get vectors; empty: as in the config.
        rerank: reranker of the best chunks; None: as in the config.
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
    rerank: str | None = None
    out: str | None = None


@dataclass(frozen=True)
class StudyPlan:
    """A study that is ready to run: its complete config, and the folder for its results."""

    config: StudyConfig
    out: Path


@dataclass(frozen=True)
class Studied:
    """The result of a study, and its files."""

    result: StudyResult
    paths: tuple[Path, ...]


def plan_study(request: StudyRequest) -> StudyPlan:
    """The config of a study, and the folder for its results.

    Raises:
        UsageError: a config or folder that cannot be used.
    """
    config = study_config(request)
    out = Path(request.out or default_out(request.config, config))
    check_out(out, config)
    return StudyPlan(config, out)


def study(plan: StudyPlan, watch: Watch = NOBODY) -> Studied:
    """Runs or continues a study, and writes its report. No other process may work in its folder."""
    check_can_plot()
    config = plan.config
    with lock_folder(plan.out, "qrag study"):
        reranker = load_reranker(config.rerank) if config.rerank else None
        tasks = _load_tasks(config, watch)
        encoder = load_study_encoder(config.model, config.window)
        report = lambda stage, done, of: watch.report(stage, done, of, {})  # noqa: E731
        result = run_study(config, tasks, encoder, plan.out, report, reranker=reranker)
        return Studied(result, tuple(write_report(result, plan.out)))


def study_config(request: StudyRequest) -> StudyConfig:
    """The config of a request, with `config.DEFAULT_STRATEGIES` if it names no strategies.

    Raises:
        UsageError: documents without questions, neither documents nor a config, a wrong path, or a config with tasks
            of its own.
    """
    overrides = [*_own_overrides(request), *request.overrides]
    corpus, questions = request.corpus, request.questions
    if (corpus is None) != (questions is None):
        given, missing = ("questions", "corpus") if corpus is None else ("corpus", "questions")
        reason = (Arg(given), " needs ", Arg(missing), " too: give both for a study of your own documents")
        raise UsageError(reason, field=given)
    if corpus is None or questions is None:
        if request.config is None:
            own = (Arg("corpus", "DIR"), " ", Arg("questions", "FILE.jsonl"))
            raise UsageError(("nothing to study; give a config with tasks, or your own documents with ", *own))
        return load_config(DefaultStudy, request.config, overrides)
    for name, path in (("corpus", corpus), ("questions", questions)):
        if not os.path.exists(path):
            raise UsageError((Arg(name, path), ": no such file or folder; check the path"), field=name, value=path)
    if not os.path.isfile(questions):
        reason = ": is a folder; give a .jsonl file with one question on each line"
        raise UsageError((Arg("questions", questions), reason), field="questions", value=questions)
    name = task_name(corpus)
    task = {"kind": "files", "path": corpus, "questions": questions}
    own = ["data=", *(f"tasks.{name}.{field}={_quoted(value)}" for field, value in task.items())]
    config = load_config(DefaultStudy, request.config, [*own, *overrides])
    if len(config.tasks) > 1:
        others = ", ".join(other for other in config.tasks if other != name)
        names = f": {request.config or 'an override'} names tasks too ({others}); remove these tasks, or omit "
        raise UsageError((Arg("corpus", corpus), names, Arg("corpus"), " and ", Arg("questions")), field="corpus")
    return config


def _own_overrides(request: StudyRequest) -> list[str]:
    """The overrides for the lists of a request; they come before its own. The config checks the names."""
    own = [
        f"{name}=[{', '.join(map(_quoted, names))}]"
        for name, names in (("levels", request.levels), ("parents", request.parents))
        if names
    ]
    if request.rerank is not None:
        own.append(f"rerank={_quoted(request.rerank)}")
    lists = (("budgets", request.budgets), ("fills", request.fills))
    return own + [f"{name}=[{','.join(map(str, values))}]" for name, values in lists if values]


def task_name(corpus: str) -> str:
    """A task name from the last part of a path that overrides can use; `corpus` if there is none."""
    name = re.sub(r"\W+", "_", Path(os.path.abspath(corpus)).stem).strip("_")
    return name if name.isidentifier() else "corpus"


def default_out(config_path: str | None, config: StudyConfig) -> str:
    """`runs/study-NAME`, with the name of the config, or of the corpus if no config names tasks."""
    names = list(config.tasks)
    is_own = len(names) == 1 and config.tasks[names[0]].kind == "files"
    name = names[0] if is_own or config_path is None else Path(config_path).stem
    return f"runs/study-{name}"


def check_out(out: Path, config: StudyConfig) -> None:
    """Refuses a results folder inside the documents, because the next run would read `table.md` as a document.

    Raises:
        UsageError: the folder is inside the documents.
    """
    real = os.path.realpath(out)
    for name, task in config.tasks.items():
        corpus = os.path.realpath(os.path.join(config.data, task.path))
        if task.kind == "files" and os.path.commonpath((real, corpus)) == corpus:
            where = f": is inside the documents of {name} ({task.path}), so the next run would read these results "
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
    """A text quoted for YAML; an override then keeps it exactly (quotes, line ends, bytes of a file name)."""
    escaped = (c if c.isprintable() and c not in ('"', "\\") else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(escaped)}"'


def _load_tasks(config: StudyConfig, watch: Watch) -> list[StudyTask]:
    """Reads all tasks before anything is embedded, and notes the contents of each."""
    split = make_splitter(config.splitter, config.language)
    tasks = []
    for name, how in config.tasks.items():
        task, problems = load_with_problems(name, how, config.data, config.seed, split)
        watch.note(describe_task(task))
        for problem in problems[:_MAX_PROBLEMS]:  # the user can fix these
            watch.note(f"  {problem}")
        if len(problems) > _MAX_PROBLEMS:
            watch.note(f"  and {len(problems) - _MAX_PROBLEMS:,} more")
        tasks.append(task)
    return tasks
