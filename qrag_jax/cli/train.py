"""`qrag train`: trains a retriever from a config into a self-contained run folder, or another kind of learner."""

import argparse
import shlex
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from qrag_jax import service
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, write_json
from qrag_jax.cli.train_kinds import learner_verb
from qrag_jax.names import LEARNERS
from qrag_jax.types import Stopped, UsageError, Watch

if TYPE_CHECKING:  # it imports JAX
    from qrag_jax.service.training import TrainedRun

# Task of a run -> the flags of `qrag eval` for questions of the same kind.
_EVAL_FLAGS = {
    "worlds": "--babi FILE",
    "babi": "--babi FILE --haystack DIR",
    "jsonl": "--jsonl FILE",
    "multihop": "--hotpot FILE",
    "vectors": "--vectors DIR",
    "corpus": "--hotpot FILE --pooled",
}
_DESCRIPTION = """\
Train a retriever that finds scattered facts step by step, or a small model on vectors of your documents.

`qrag train` without a kind trains a retriever. A small model trains in minutes without a GPU. It works only with
vectors of the --model that it was trained on, and refuses others.

--out contains a self-contained checkpoint folder. The output says what to expect on data of the same kind, measured on
held-out data. The same data, seed and machine give the same model. `qrag train KIND --help` explains a kind.
"""
_EXAMPLES = """\
examples:
  qrag train --config_path run.yaml --out runs/qa2
  qrag train tagger handbook/ reports/ --out runs/tagger
  qrag train compressor handbook/ reports/ --out runs/compressor
  qrag train router study.yaml --out runs/router
"""
_OF_RETRIEVER = """\
Train a retriever from a config.

Every field has a default. A YAML file and key=value overrides change fields; later ones win. A misspelt field is
refused with a suggestion.

--out contains a self-contained checkpoint folder (parameters, optimiser, config, tokenizer, versions), which you can
move; metrics.jsonl, one line for each logged step; and times.jsonl, the seconds of these steps. A folder that already
contains a checkpoint is refused without --resume.
"""
_DETAILS = """\
A run saves every save_every updates (default: a tenth of the run). At SIGTERM or Ctrl-C it saves, then ends with exit
code 143 or 130. --resume continues from the newest undamaged checkpoint; on the same kind and number of devices, every
later update is the same bit for bit. Give a cluster job the same command each time: without a checkpoint, --resume
starts from the first update.

mesh.data=8 splits a batch over 8 devices; mesh.fsdp=8 also splits parameters and optimiser. On several machines, start
the same command once for each process: with --distributed under SLURM, Open MPI or a TPU pod, else with --coordinator,
--num_processes and --process_id. All processes must see the same files; the first one writes.
"""
_EXAMPLES_OF_RETRIEVER = """\
examples:
  qrag train retriever --dry_run                                print every field and its default
  qrag train retriever --config_path run.yaml --out runs/qa2 learner.gamma=0.9 --seed=1
  qrag train retriever --out runs/qa1 data.task=babi 'data.paths=[qa1_train.txt]' data.haystack=novels/
  qrag train retriever --out runs/qa2 --resume                  continue with the run's own config
  qrag train retriever --config_path run.yaml --out runs/many --seeds 0,1,2,3
  srun qrag train --config_path run.yaml --out runs/big --resume --distributed mesh.data=16
"""
_FLAGS = """\
--config_path X.yaml       YAML file with the fields that differ from the defaults
--out RUN = runs/train     run folder to write
--seeds I,I,...            train latent runs with these seeds together, on the same data, into RUN/seed_N (default: one
                           run with the field seed)
--resume                   continue the run in --out, if there is one
. --distributed            this is one of several processes; the cluster says which
. --coordinator HOST:PORT  this is one of several processes; the address of the first one
. --num_processes N        with --coordinator: number of processes
. --process_id I           with --coordinator: number of this process
--follow_links --max_input_gb --no_compile_cache
--dry_run                  print the complete config as YAML and stop
--json                     print the final metrics as JSON
overrides [key=value ...]  changes of fields, such as learner.gamma=0.9 or --seed=1
"""


def _run(args: argparse.Namespace) -> int:
    from qrag_jax.sharding import is_main_process  # imports JAX

    _join_processes(args)
    is_main = is_main_process()
    request = made(service.TrainRequest, vars(args))
    during = _Signals(Progress(quiet=not is_main), is_main)
    watch = Watch(note=say if is_main else lambda text: None, report=during.report)
    if args.dry_run:
        return _print_config(service.plan_training(request, watch))
    try:
        trained = service.train_runs(request, watch, during.asked, during)
    except Stopped as stopped:
        seeds = "" if args.seeds is None else f" --seeds {','.join(map(str, args.seeds))}"
        watch.note(f"{stopped}; continue with: qrag train --out {shlex.quote(args.out)}{seeds} --resume")
        return during.exit_code or 128 + signal.SIGTERM  # another process of the run received the signal
    for run in trained:
        _say_result(run)
    if args.json and trained:
        rows = [{"run": str(run.out), **run.metrics} for run in trained]
        write_json(rows[0] if args.seeds is None else rows)
    return 0


def _join_processes(args: argparse.Namespace) -> None:
    """Joins the processes of a run, if the flags name several."""
    from qrag_jax.sharding import start_processes

    given = [args.coordinator, args.num_processes, args.process_id]
    if args.distributed and given == [None] * 3:
        start_processes(None, None, None)
    elif None not in given:
        start_processes(*given)
    elif given != [None] * 3:
        raise UsageError("--coordinator, --num_processes and --process_id work only together; give all three")


def _print_config(plan: Any) -> int:
    from qrag_jax.config import dump_config

    sys.stdout.write(dump_config(plan.config))
    if plan.follows_size:
        say("num_updates is not set; with data.task=jsonl it depends on the number of questions (1,000 to 5,000)")
    return 0


class _Signals:
    """Handles SIGTERM and Ctrl-C while its context is open, and shows progress.

    While updates run, a signal asks the run to save and end. Before the updates, or at a second Ctrl-C, it ends now.
    """

    def __init__(self, progress: Progress, is_main: bool = True) -> None:
        self.updates_run = False
        self.exit_code = 0
        self._progress, self._is_main = progress, is_main
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        """True if a signal came."""
        return self.exit_code > 0

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._handle)
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def report(self, stage: str, done: int, of: int, metrics: Any = None) -> None:
        """Shows progress, or ends a run that was asked to end before its updates."""
        self.end_if_asked()
        self.updates_run = self.updates_run or stage == "compile"
        self._progress.report(stage, done, of, metrics)

    def end_if_asked(self) -> None:
        """Ends the run before its updates, if a signal came and its exception was lost.

        Python discards exceptions raised during garbage collection or inside a library's callback.
        """
        if self.asked() and not self.updates_run:
            raise SystemExit(self.exit_code)

    def _handle(self, number: int, frame: object) -> None:
        if self.asked() and self.updates_run and number == signal.SIGTERM:  # repeated by a cluster; the run is saving
            return
        at_once = self.asked() or not self.updates_run
        self.exit_code = 128 + number  # what a shell reports for it
        if at_once:
            raise SystemExit(self.exit_code)
        with suppress(RuntimeError):  # it came in the middle of a message that a slow reader holds up
            if self._is_main:
                say("stopping after this update, and saving it; press Ctrl-C again to stop now")


def _say_result(run: "TrainedRun") -> None:
    """Reports the result on standard error."""
    from qrag_jax.service.training import learned

    facts, encoder, last, chosen = run.data, run.config.model.encoder, run.metrics, run.chosen
    if facts.get("num_texts_cut"):
        say(
            f"{facts['num_texts_cut']:,} of {facts['num_texts']:,} chunks are longer than model.encoder.window="
            f"{encoder.window} tokens; only their beginning was read"
        )
    if facts.get("num_questions_cut"):
        say(
            f"{facts['num_questions_cut']:,} questions are longer than model.encoder.question_window="
            f"{encoder.question_window} tokens; only their beginning was read"
        )
    if chosen is not None:
        fitted = ""
        if "threshold" in chosen:
            fitted = f"; their threshold is {chosen['threshold']:.4g} (F1 {chosen['fact_f1']:.3f}, "
            fitted += f"{chosen['num_questions']:,} questions)"
        say(
            f"update {chosen['update']:,} was best on the held-out questions (mean return {chosen['return']:.3f})"
            f"{fitted}"
        )
        if chosen["update"] == 0:  # dev.untrained
            say("training did not help, so the result is the untrained retriever; train longer, or on more questions")
        if "beam_width" in chosen:
            found = ", ".join(f"{width}: {f1:.3f}" for width, f1 in chosen["beam_f1"].items())
            say(
                f"beam width {chosen['beam_width']} was best on the held-out questions (F1 by width {found}); set it "
                "with qrag eval --beam_width"
            )
    folder = shlex.quote(str(run.out))
    if run.reader is not None:
        read = run.reader
        say(
            f"the language model read {read['read']:,} sets of chunks ({read['tokens']:,} new tokens) in "
            f"{read['seconds']:,.0f} s; {last['unpaid']:.1%} of the last training episodes do not count"
        )
    say(f"trained: {run.out}, {last['step']:,} updates in {last['seconds']:,.0f} s, {learned(last)}")
    say(f"next: qrag eval {folder} {_EVAL_FLAGS[run.config.data.task]}")
    if run.config.data.task != "vectors":
        say(f'      qrag find {folder} FILES... "question"')


_RETRIEVER = Verb(
    _OF_RETRIEVER,
    _EXAMPLES_OF_RETRIEVER,
    _FLAGS,
    _run,
    details=_DETAILS,
    summary=LEARNERS["retriever"].about,
)
_KINDS = {name: _RETRIEVER if name == "retriever" else learner_verb(name) for name in LEARNERS}
VERB = Verb(_DESCRIPTION, _EXAMPLES, "", _run, kinds=_KINDS, default_kind="retriever")
