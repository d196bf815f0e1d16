"""`qrag study`: what chunkers find beside what they cost, on data sets or on the user's own documents and questions."""

import argparse
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, shown, shown_lines, write_json
from qrag_jax.config import is_override, load_config
from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.study.cells.study_encoder import load_study_encoder
from qrag_jax.eval.study.config import DefaultStudy, StudyConfig
from qrag_jax.eval.study.load_tasks import load_with_problems
from qrag_jax.eval.study.records import StudyResult
from qrag_jax.eval.study.results.report import format_table, summary_values, write_report
from qrag_jax.eval.study.runner import run_study
from qrag_jax.files.folder_lock import lock_folder
from qrag_jax.names import FILLS
from qrag_jax.types import UsageError

_MOST_PROBLEMS = 5  # lines about questions that could not be asked
_FEW = 100  # questions: with fewer an interval is wide
_INTERRUPTED = 130


@dataclass(frozen=True)
class Words:
    """The arguments of a study that are no flags: at most one config, and overrides."""

    config: str | None
    overrides: tuple[str, ...]


def run(args: argparse.Namespace) -> int:
    """Runs `qrag study`; see `qrag study --help`."""
    words = with_contexts(split_words(args.overrides), args.budgets, args.fill)
    words = with_levels(words, args.levels, args.parents)
    config = study_config(words, args.corpus, args.questions)
    out = Path(args.out or default_out(words.config, config))
    check_out(out, config)
    with lock_folder(out, "qrag study"), warnings_once():
        return _study(args, config, out)


def _study(args: argparse.Namespace, config: StudyConfig, out: Path) -> int:
    """Runs a study in a folder that no other process works in."""
    tasks = _load_tasks(config)
    encoder = load_study_encoder(config.model, config.window)
    try:
        with Progress() as progress:
            result = run_study(config, tasks, encoder, out, progress.report)
    except KeyboardInterrupt:
        say(f"stopped; what is done is kept in {out}: the same line goes on from there")
        say(f"  qrag study {shlex.join(again(args, out))}")
        return _INTERRUPTED
    paths = write_report(result, out)
    if args.json:
        write_json(summary_values(result)["rows"])
    if args.table or not args.json:
        print(shown_lines(format_table(result)), end="", file=sys.stderr if args.json else sys.stdout)
    _say_what_came_out(result, out, paths)
    return 0


def split_words(words: Sequence[str]) -> Words:
    """Overrides are `field.of.it=value`; what is not is the config."""
    overrides = tuple(word for word in words if is_override(word))
    configs = [word for word in words if not is_override(word)]
    if len(configs) > 1:
        raise UsageError(f"{', '.join(configs)}: give one config; a change to it is field=value, as report_k=3")
    return Words(configs[0] if configs else None, overrides)


def with_contexts(words: Words, budgets: str | None, fill: str | None) -> Words:
    """What `--budgets` and `--fill` change in the config, before the overrides."""
    if budgets is None:
        if fill is not None:
            raise UsageError(f"--fill {fill}: goes with --budgets, the tokens of the contexts to be filled")
        return words
    if not all(part.strip().isascii() and part.strip().isdigit() for part in budgets.split(",")):
        raise UsageError(f"--budgets {budgets}: numbers of tokens with commas between them, as 500,1000,2000")
    own = [f"budgets=[{budgets}]"]
    if fill is not None:
        unknown = [part for part in fill.split(",") if part not in FILLS]
        if unknown:
            raise UsageError(f"--fill {fill}: {unknown[0]!r}: choose from {', '.join(FILLS)}, with commas between them")
        own.append(f"fills=[{fill}]")
    return Words(words.config, (*own, *words.overrides))


def with_levels(words: Words, levels: str | None, parents: str | None) -> Words:
    """What `--levels` and `--parents` change in the config, before the overrides; the config checks the names."""
    if levels is None and parents is not None:
        raise UsageError(f"--parents {parents}: goes with --levels, whose parents get vectors")
    given = {"levels": levels, "parents": parents}
    own = [
        f"{name}=[{', '.join(_quoted(part.strip()) for part in text.split(','))}]"
        for name, text in given.items()
        if text is not None
    ]
    return Words(words.config, (*own, *words.overrides))


def study_config(words: Words, corpus: str | None, questions: str | None) -> StudyConfig:
    """The config of either form of the command, with the strategies of `defaults.py` where it names none.

    Args:
        corpus: file or folder of documents; with it the only task is this one.
    """
    if (corpus is None) != (questions is None):
        given, missing = ("--questions", "--corpus") if corpus is None else ("--corpus", "--questions")
        raise UsageError(f"{given} goes with {missing}: a study of your own documents needs both")
    if corpus is None or questions is None:
        if words.config is None:
            raise UsageError(
                "say what to study: a config with tasks, or your own documents with --corpus DIR --questions FILE.jsonl"
            )
        return load_config(DefaultStudy, words.config, words.overrides)
    for flag, path in (("--corpus", corpus), ("--questions", questions)):
        if not os.path.exists(path):
            raise UsageError(f"{flag} {path}: no such file or folder; check the path")
    if not os.path.isfile(questions):
        raise UsageError(f"--questions {questions}: is a folder; give a .jsonl file with one question a line")
    name = task_name(corpus)
    task = {"kind": "files", "path": corpus, "questions": questions}
    own = ["data=", *(f"tasks.{name}.{field}={_quoted(value)}" for field, value in task.items())]
    config = load_config(DefaultStudy, words.config, [*own, *words.overrides])
    if len(config.tasks) > 1:
        others = ", ".join(other for other in config.tasks if other != name)
        raise UsageError(
            f"--corpus {corpus}: {words.config or 'an override'} names tasks too ({others}); give --corpus with a "
            "config that has strategies and settings only, or the config without --corpus"
        )
    return config


def _quoted(text: str) -> str:
    """Quoted for YAML, so that an override gives any text (quotes, line ends, bytes of a file name) as it stands."""
    escaped = (c if c.isprintable() and c not in ('"', "\\") else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(escaped)}"'


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
            raise UsageError(
                f"--out {out}: inside the documents of {name} ({task.path}), so that the next run would read these "
                "results as documents; give --out a folder outside of it"
            )


def _load_tasks(config: StudyConfig) -> list[StudyTask]:
    """Reads all tasks before anything is embedded, and says what each has."""
    split = make_splitter(config.splitter, config.language)
    tasks = []
    for name, how in config.tasks.items():
        task, problems = load_with_problems(name, how, config.data, config.seed, split)
        say(describe_task(task))
        _say_problems(problems)  # the user can mend these
        tasks.append(task)
    return tasks


def _say_problems(problems: Sequence[str]) -> None:
    """The first questions that could not be asked, each with its line, and how many more there are."""
    for problem in problems[:_MOST_PROBLEMS]:
        say(f"  {problem}")
    if len(problems) > _MOST_PROBLEMS:
        say(f"  and {len(problems) - _MOST_PROBLEMS:,} more")


def describe_task(task: StudyTask) -> str:
    """`notes: 31 questions about 4 documents (23,101 characters); left out, no evidence: 2`."""
    size = sum(len(document.text) for document in task.documents)
    line = (
        f"{task.name}: {len(task.questions):,} questions about {len(task.documents):,} documents ({size:,} characters)"
    )
    return shown(
        line + "".join(f"; left out, {reason}: {number:,}" for reason, number in task.left_out.items() if number)
    )


@contextmanager
def warnings_once() -> Iterator[None]:
    """Says each kind of warning once, on standard error: texts that differ in their numbers only are of one kind.

    Chunkers warn for every document, so that a corpus would otherwise hide everything else that is said.
    """
    said: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        kind = re.sub(r"[\d,.]*\d", "0", str(message))
        if kind not in said:
            said.add(kind)
            say(f"{message} (said once)")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def again(args: argparse.Namespace, out: Path) -> list[str]:
    """The arguments of a line that goes on with this study."""
    flags = {"--corpus": args.corpus, "--questions": args.questions, "--out": str(out)}
    flags |= {"--budgets": args.budgets, "--fill": args.fill, "--levels": args.levels, "--parents": args.parents}
    parts = [[f"{flag}={path}"] if path.startswith("-") else [flag, path] for flag, path in flags.items() if path]
    links = ["--follow_links"] if args.follow_links else []
    return [*(part for one in parts for part in one), *links, *args.overrides]


def _say_what_came_out(result: StudyResult, out: Path, paths: Sequence[Path]) -> None:
    """Where the files are, and how far the numbers can be trusted."""
    few = {row.task: row.n for row in result.rows if row.n < _FEW}
    for task, number in few.items():
        say(f"{task}: {number:,} questions: the intervals are wide, look at them before at the means")
    say(f"wrote {', '.join(map(str, paths))}")
    say(f"the same study again: qrag study {shlex.quote(str(out / 'config.yaml'))} --out OTHER")
