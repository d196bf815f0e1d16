"""`qrag ask`: a language model answers from the user's own files, and every citation is checked to exist."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from qrag_jax.cli.errors import as_flag
from qrag_jax.cli.level_search import LevelSearch, check_level_flags, level_index_of, make_level_search
from qrag_jax.cli.llm_flags import llm_config
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.searching.ask_output import format_answer, format_cost, to_json
from qrag_jax.cli.searching.places import excerpt
from qrag_jax.cli.searching.sources import (
    Source,
    checked,
    find_source,
    make_method,
    read_questions,
    read_source,
    searched,
    timed,
)
from qrag_jax.cli.terminal import say, write_json
from qrag_jax.data.questions.asked import Asked
from qrag_jax.errors import worded
from qrag_jax.index.methods import Method
from qrag_jax.llm.calls import AroundGenerator
from qrag_jax.llm.config import ReadyGenerator, make_generator
from qrag_jax.llm.prices import Prices, spent
from qrag_jax.llm.prompts import PromptTemplate, load_prompt
from qrag_jax.llm.wrappers import WatchedGenerator
from qrag_jax.search.answer import (
    PROMPT,
    Answer,
    FoundPassages,
    NothingFound,
    answer_question,
    find_passages,
    make_budget,
    make_fill,
)
from qrag_jax.search.context.auto_merge import MergeRules
from qrag_jax.search.context.pack import Budget, Context
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.levels.level_context import fill_levels
from qrag_jax.types import Cost, Finished, Generation, Message, Sampling, TextGenerator, UsageError

_NUM_AROUND = 2  # sentences on either side of a pick of a run
_MOST_SHOWN = 100  # characters of a question above its answer


def run(args: argparse.Namespace) -> int:
    """Runs `qrag ask`; see `qrag ask --help`."""
    # What costs nothing to look at comes before encoder and model are loaded.
    source, asked = find_source(args, ("num_around",)), read_questions(args)
    _check_merge(args, source)
    if by_levels := check_level_flags(args, source):
        source = replace(source, notes_mode="none")
    num_questions = len(asked) if isinstance(asked, list) else None
    llm = llm_config(vars(args))
    prices = llm.load_prices()
    template = load_prompt(PROMPT, llm.prompts)
    spent_before: dict[str, float] = {}
    with timed("read", spent_before):
        found = read_source(args, source)
    with timed("load", spent_before):
        method = make_method(args, source)
        asked = checked(asked, method.check)
        generator = None if args.no_llm else make_generator(llm)
    corpus, method = searched(found, method, source)
    levels = None
    if by_levels:
        levels = make_level_search(args, source, level_index_of(corpus, source, method), method, generator)
        method = replace(method, retrieve=levels.search.retrieve)
    desk = _Desk(args, method, generator, template, prices, corpus, source, num_questions, levels)
    failed = False
    for one in asked:
        failed |= not desk.answer(one, spent_before)
        spent_before = {}
    return int(failed)


@dataclass
class _Desk:
    """All that questions are answered with."""

    args: argparse.Namespace
    method: Method
    generator: ReadyGenerator | None
    template: PromptTemplate
    prices: Prices | None
    corpus: Corpus
    source: Source
    num_questions: int | None  # None where they come one by one
    levels: LevelSearch | None = None  # where levels are searched
    _progress: Progress = field(default_factory=lambda: Progress(transient=True))
    _num_asked: int = 0
    _num_tokens: int = 0  # that were embedded for questions before
    _num_cut: int = 0

    def answer(self, asked: Asked, before: Mapping[str, float]) -> bool:
        """Prints the answer to one question; whether there is one. `before` are seconds that it has to bear."""
        try:
            found = self._ask(asked.question)
        except NothingFound as error:
            if self.args.questions is None:
                raise
            say(f"qrag: error: {excerpt(asked.question, _MOST_SHOWN)}: {error}")
            found = self._nothing(asked.question)
        self._num_asked += 1
        num_tokens, num_cut = self.method.spent()
        num_tokens, self._num_tokens = num_tokens - self._num_tokens, num_tokens
        num_cut, self._num_cut = num_cut - self._num_cut, num_cut
        answer = found if isinstance(found, Answer) else None
        told = self._tell_levels(found)
        calls = [] if self.levels is None else self.levels.calls()
        cost = spent([*calls, *([] if answer is None else [answer.generation])], self.prices)
        cost = replace(cost, seconds=self._seconds(found, before), embedder_tokens=num_tokens)
        self._print(asked, found, cost, told)
        picked = self.method.is_sentences or self.args.num_steps is not None
        _say_notes(found, num_cut, self.args, picked=picked)
        say(format_cost(cost, answer is not None and answer.generation.from_journal))
        if answer is None:
            return bool(found.given)
        if answer.generation.error is None:
            return True
        say(f"qrag: error: the language model gave no answer: {answer.generation.error}")
        return False

    def _ask(self, question: str) -> Answer | FoundPassages:
        budget = make_answer_budget(self.args, question, self.method, self.generator, self.template)
        fill = make_fill(budget, self._num_around(), MergeRules() if self.args.merge else None)
        if self.levels is not None:
            fill = partial(fill_levels, budget=budget)
        if self.generator is None:
            return find_passages(question, self.corpus, self.method.retrieve, fill=fill)
        return answer_question(
            question,
            self.corpus,
            self.method.retrieve,
            _Shown(WatchedGenerator(self.generator, self._tell), self._progress),
            fill=fill,
            template=self.template,
            sampling=llm_config(vars(self.args)).sampling,
        )

    def _tell_levels(self, found: Answer | FoundPassages) -> dict[str, object]:
        """What was planned and what it took; nothing where no levels are searched."""
        if self.levels is None or self.levels.search.last is None:
            return {}
        told = self.levels.told(found.context.num_tokens)
        self.levels.say(told)
        return told

    def _tell(self, done: int, of: int, generation: Generation | None) -> None:
        """Shows how far the questions are; where it is one alone, or nobody knows how many, that one is at work."""
        if self.num_questions is not None and self.num_questions > 1:
            self._progress.answered("questions", self._num_asked + done, self.num_questions, generation)
        elif generation is None:
            self._progress.note("the language model reads and answers")

    def _nothing(self, question: str) -> FoundPassages:
        budget = make_answer_budget(self.args, question, self.method, self.generator, self.template)
        seconds = {"retrieve": 0.0, "context": 0.0}
        return FoundPassages(question, Context((), 0, budget.max_tokens, 0), (), (), len(self.corpus.leaves), seconds)

    def _num_around(self) -> int:
        if self.args.merge or not self.method.is_sentences:
            return 0
        return _NUM_AROUND if self.args.num_around is None else self.args.num_around

    def _seconds(self, found: Answer | FoundPassages, before: Mapping[str, float]) -> dict[str, float]:
        """By stage; embedding counts as retrieving. What came before the first question stands with that."""
        asked = found.cost.seconds if isinstance(found, Answer) else found.seconds
        built = self.corpus.cost.seconds if before else {}
        seconds = {stage: before.get(stage, 0.0) for stage in ("load", "read")}
        seconds |= {"chunk": built.get("chunk", 0.0), "retrieve": built.get("embed", 0.0) + asked["retrieve"]}
        seconds |= {stage: asked[stage] for stage in ("context", "generate") if stage in asked}
        return {stage: round(value, 3) for stage, value in seconds.items()}

    def _print(self, asked: Asked, found: Answer | FoundPassages, cost: Cost, told: dict[str, object]) -> None:
        many = self.args.questions is not None
        if self.args.json:
            write_json(to_json(found, cost, self.source, asked.id) | told, on_one_line=many)
            return
        parts = format_answer(found, with_context=self.args.show_context)
        print("\n\n".join([excerpt(asked.question, _MOST_SHOWN), *parts, ""] if many else parts), flush=True)


def _check_merge(args: argparse.Namespace, source: Source) -> None:
    """Refuses to merge what has no sections, before anything is read."""
    if not args.merge:
        return
    if source.index is None or not source.index.is_tree:
        cut = "files are cut into passages"
        what = cut if source.index is None else f"made with {worded(source.index.cutting, as_flag)}"
        raise UsageError(
            f"--merge: {source.paths[0]}: {what}, which have no sections around them: `qrag index build INDEX PATHS "
            "--strategy tree` (or hierarchy), and ask that; or leave --merge out"
        )
    if args.num_around:
        raise UsageError(f"--num_around {args.num_around}: passages are widened or merged (--merge); leave one out")


def make_answer_budget(
    args: argparse.Namespace,
    question: str,
    method: Method,
    generator: ReadyGenerator | None,
    template: PromptTemplate,
) -> Budget:
    """Tokens of the context that the flags ask for, or that the model's window leaves."""
    return make_budget(
        question,
        template,
        (generator and generator.count) or method.count,
        window=generator and generator.window,
        max_answer_tokens=args.max_answer_tokens,
        max_tokens=args.max_context_tokens,
        max_passages=args.num_steps,
    )


def _say_notes(found: Answer | FoundPassages, num_cut: int, args: argparse.Namespace, *, picked: bool) -> None:
    """What a reader of the answer should know, on standard error."""
    if num_cut:
        say(f"{num_cut:,} texts are longer than the encoder reads; only their beginning was searched")
    if picked and found.context.num_left_out:  # else all chunks are ranked, and most are never meant to fit
        say(f"{found.context.num_left_out:,} passages that were picked did not fit into the context")
    if isinstance(found, Answer) and found.generation.finish_reason == "length":
        say(f"the answer was cut at {args.max_answer_tokens} tokens (--max_answer_tokens)")


@dataclass(frozen=True)
class _Shown(AroundGenerator):
    """A language model whose progress stands on a terminal while it is at work, and not while answers are printed."""

    generator: TextGenerator
    progress: Progress

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> Sequence[Generation]:
        with self.progress:
            return self.generator.generate(prompts, sampling=sampling, finished=finished)
