"""Progress of long commands on standard error: bars on a terminal, a line from time to time in a log."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

import numpy as np

from qrag_jax.cli.terminal import may_be_lost, say
from qrag_jax.llm.wrappers import Told
from qrag_jax.types import Counts, Encoder, Generation, KnowsWords, ReadsQuestions, Reranker, Watch

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_SHOWN = ("complete", "return", "loss")  # metrics of an update that show whether it learns; of the first two one
_LONG = 4.0  # seconds that reranking may take without a word about them
_NOTE = "now"  # the stage that shows notes


@dataclass
class _Stage:
    """A stage in progress. The rate is measured from the first report, so it excludes compilation.

    Cached answers (`num_free`) count as done but not in the rate.
    """

    first_done: int
    first_time: float
    done: int
    of: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    was_shown: bool = False
    num_free: int = 0
    num_read: int = 0
    num_written: int = 0

    def count(self, generation: Generation) -> None:
        """Counts the tokens of an answer, unless it came from the journal."""
        if generation.from_journal:
            self.num_free += 1
        else:
            self.num_read += generation.prompt_tokens
            self.num_written += generation.completion_tokens

    def describe(self, now: float) -> str:
        """`1,500/3,000  182/s, 0:08 left, complete 0.93, loss 0.0031`."""
        facts = []
        seconds, steps = now - self.first_time, self.done - self.first_done - self.num_free
        if seconds > 0 and steps > 0:
            rate = steps / seconds
            facts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each")
            if self.done < self.of:
                facts.append(f"{_clock((self.of - self.done) / rate)} left")
        if seconds > 0 and self.num_read + self.num_written:
            read, written = self.num_read / seconds, self.num_written / seconds
            facts.append(f"{read:,.0f} tokens/s read and {written:,.0f} written")
        shown = [
            name for name in _SHOWN if name in self.metrics and not (name == "return" and "complete" in self.metrics)
        ]
        facts += [f"{name} {self.metrics[name]:.3g}" for name in shown]
        return f"{self.done:,}/{self.of:,}  {', '.join(facts)}".rstrip()


class Progress:
    """Shows progress while its context is open.

        with Progress() as progress:
            retriever = train(config, task, out, progress.report)

    On a terminal every stage is a bar. Elsewhere it writes at most one line every `interval` seconds, and one at the
    end of a stage that has a line already. A shorter stage writes nothing.

    You may open it again, for example once for each question. Stages then continue, and no bar disturbs the output
    between them.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        transient: bool = False,
        interval: float = 10.0,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates the progress; it shows nothing until it is opened.

        Args:
            quiet: show nothing.
            transient: remove the bars at the end.
            interval: seconds between two lines without a terminal.
            stream: where to write; None is standard error.
            now: clock in seconds.
        """
        self._quiet, self._transient, self._interval, self._now = quiet, transient, interval, now
        self._stream = stream
        self._stages: dict[str, _Stage] = {}
        self._bars: Bars | None = None
        self._ids: dict[str, TaskID] = {}
        self._last_line: float | None = None

    def __enter__(self) -> "Progress":
        if self._last_line is None:
            self._last_line = self._now()
        stream = sys.stderr if self._stream is None else self._stream
        self._stream = stream
        # Asked of the stream itself: rich takes FORCE_COLOR for a terminal.
        if not self._quiet and stream.isatty():
            self._show_bars()
        return self

    def _show_bars(self) -> None:
        from rich.console import Console  # takes longer to import than a small search
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        console = Console(file=self._stream)
        if not console.is_dumb_terminal:
            # Standard output is left alone, because it is the result of the command; messages go above the bars.
            self._bars = Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=12),
                TextColumn("{task.fields[facts]}", markup=False),
                console=console,
                transient=self._transient,
                redirect_stdout=False,
            )
            self._bars.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            if _NOTE in self._ids:  # notes describe work in progress
                self._bars.remove_task(self._ids.pop(_NOTE))
            self._bars.stop()
            self._bars = None
            self._ids = {}

    def report(self, stage: str, done: int, of: int, metrics: Mapping[str, float] | None = None) -> None:
        """Reports that `done` of `of` units of a stage are done; `train.loop.train` takes this method.

        A stage starts again if `done` falls or `of` changes.
        """
        now = self._now()
        state = self._at(stage, done, of, now)
        state.metrics = metrics or {}
        self._show(stage, state, now)

    def stage(self, name: str) -> Callable[[int, int], None]:
        """A callback `(done, of)` that reports the stage `name`."""
        return lambda done, of: self.report(name, done, of)

    def answered(self, stage: str, done: int, of: int, generation: Generation | None = None) -> None:
        """The same as `report`, for questions to a language model, with the tokens of its last answer."""
        now = self._now()
        state = self._at(stage, done, of, now)
        if generation is not None:
            state.count(generation)
        self._show(stage, state, now)

    def watch(self) -> Watch:
        """A watch that shows this progress; its notes go to standard error."""
        return Watch(say, self.note, self.report, self.answered)

    def answers(self, stage: str) -> Told:
        """A callback for `WatchedGenerator` that reports a stage."""
        return lambda done, of, generation: self.answered(stage, done, of, generation)

    def _at(self, stage: str, done: int, of: int, now: float) -> _Stage:
        state = self._stages.get(stage)
        if state is None or state.of != of or done < state.done:
            state = self._stages[stage] = _Stage(done, now, done, of)
        state.done = done
        return state

    def _show(self, stage: str, state: _Stage, now: float) -> None:
        done, of = state.done, state.of
        if self._bars is not None:
            self._show_bar(stage, done, of, state.describe(now))
        elif self._is_due(now) or (done == of and state.was_shown):
            state.was_shown = True
            self._write_line(f"{stage} {state.describe(now)}", now)

    def note(self, text: str) -> None:
        """Shows what is being done, if nothing can be counted. The next note replaces it."""
        now = self._now()
        if self._bars is not None:
            self._show_bar(_NOTE, 0, None, text)
        elif self._is_due(now):
            self._write_line(text, now)

    def _is_due(self, now: float) -> bool:
        return self._last_line is not None and now - self._last_line >= self._interval

    def _show_bar(self, stage: str, done: int, of: int | None, facts: str) -> None:
        assert self._bars is not None
        if stage not in self._ids:
            self._ids[stage] = self._bars.add_task(stage, total=of, facts=facts)
        self._bars.update(self._ids[stage], completed=done, total=of, facts=facts)

    def _write_line(self, text: str, now: float) -> None:
        self._last_line = now
        if not self._quiet:
            with may_be_lost(self._stream):
                print(text, file=self._stream, flush=True)


@dataclass(frozen=True)
class WithBar:
    """An encoder that shows its progress on a terminal. Satisfies `types.Encoder`."""

    encoder: Encoder

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the encoder."""
        return self.encoder.fingerprint

    @property
    def counts(self) -> Counts:
        """The counts of the encoder so far."""
        return self.encoder.counts

    def unknown_shares(self, texts: Sequence[str]) -> np.ndarray:
        """Shares of texts that the encoder does not know, float64 [n]; zeros if it cannot tell."""
        return self.encoder.unknown_shares(texts) if isinstance(self.encoder, KnowsWords) else np.zeros(len(texts))

    def questions(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """Vectors of questions, float32 [n, dim]."""
        own = self.encoder
        return _shown(own.questions if isinstance(own, ReadsQuestions) else own, texts, progress)

    def __call__(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """Vectors of texts, float32 [n, dim]."""
        return _shown(self.encoder, texts, progress)


def _shown(embed: Callable, texts: Sequence[str], progress: Callable[[int, int], None] | None) -> np.ndarray:
    if len(texts) < 2:  # a question, which takes less time than a bar
        return embed(texts, progress)
    with Progress(transient=True) as bars:
        return embed(texts, progress or bars.stage("embed"))


class ShownReranker:
    """A reranker that shows its progress, and tells once what a question costs. Satisfies `types.Reranker`."""

    def __init__(self, reranker: Reranker) -> None:
        """Wraps a reranker."""
        self.name, self.weight, self.num_parameters = reranker.name, reranker.weight, reranker.num_parameters
        self._reranker, self._is_told = reranker, False

    @property
    def counts(self) -> Counts:
        """The counts of the reranker so far."""
        return self._reranker.counts

    def __call__(
        self, question: str, passages: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        """Scores of passages, float64 [n]."""
        start = time.monotonic()
        with Progress(transient=True) as bars:

            def tell(done: int, of: int) -> None:
                seconds = (time.monotonic() - start) / done * of
                if seconds > _LONG and not self._is_told:
                    size = f" ({self.num_parameters / 1e6:,.0f} million parameters)" if self.num_parameters else ""
                    say(
                        f"{self.name}{size} reads {len(passages):,} passages for each question: about {seconds:,.0f} "
                        "s for the first one, less for others"
                    )
                    self._is_told = True
                bars.report("rerank", done, of)
                if progress is not None:
                    progress(done, of)

            return self._reranker(question, passages, tell)


def _clock(seconds: float) -> str:
    """`0:08`, `12:05`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
