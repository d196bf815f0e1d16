"""`qrag ask`: a language model answers from the user's own files, and every citation is checked to exist."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qrag_jax.cli.generators import ReadyGenerator, make_generator, prices_of, prompts_folder, sampling_of, spent
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, write_json
from qrag_jax.cli.verbs.ask_output import format_answer, format_cost, to_json
from qrag_jax.cli.verbs.ask_retrievers import make_method
from qrag_jax.data.files.documents import read_files
from qrag_jax.llm.prompts import PromptTemplate, load_prompt
from qrag_jax.pipeline import PROMPT, Answer, answer_question, check_question, make_budget, make_fill
from qrag_jax.retrieval.context.fill import Budget
from qrag_jax.retrieval.corpus.corpus import Corpus
from qrag_jax.retrieval.methods import Method
from qrag_jax.types import Finished, Generation, Message, Sampling, TextGenerator, UsageError

_NUM_AROUND = 2  # sentences on either side of a pick of a run


def run(args: argparse.Namespace) -> int:
    """Runs `qrag ask`; see `qrag ask --help`."""
    # What costs nothing to look at comes before encoder and model are loaded.
    check_question(args.question)
    prices = prices_of(args)
    template = load_prompt(PROMPT, prompts_folder(args))
    start = time.perf_counter()
    documents = read_files(args.paths, args.encoding)
    read = time.perf_counter()
    method = make_method(args)
    generator = make_generator(args)
    loaded = time.perf_counter()
    budget = make_answer_budget(args, method, generator, template)
    fill = make_fill(budget, _num_around(args, method))
    corpus = method.build(documents)
    answer = answer_question(
        args.question,
        corpus,
        method.retrieve,
        _Noted(generator),
        fill=fill,
        template=template,
        sampling=sampling_of(args),
    )
    num_tokens, num_cut = method.spent()
    seconds = _seconds(loaded - read, read - start, corpus, answer)
    cost = replace(spent([answer.generation], prices), seconds=seconds, embedder_tokens=num_tokens)
    if args.json:
        write_json(to_json(answer, cost, args.retriever))
    else:
        print("\n\n".join(format_answer(answer, with_context=args.show_context)))
    _say_notes(answer, num_cut, args, picked=method.is_sentences or args.num_steps is not None)
    say(format_cost(cost, answer.generation.from_journal))
    if answer.generation.error is not None:
        say(f"qrag: error: the language model gave no answer: {answer.generation.error}")
        return 1
    return 0


def make_answer_budget(
    args: argparse.Namespace, method: Method, generator: ReadyGenerator, template: PromptTemplate
) -> Budget:
    """Tokens of the context that the flags ask for, or that the model's window leaves.

    Raises:
        UsageError: the window leaves nothing.
        InputError: the question fills it.
    """
    return make_budget(
        args.question,
        template,
        generator.count or method.count,
        window=generator.window,
        max_answer_tokens=args.max_answer_tokens,
        max_tokens=args.max_context_tokens,
        max_passages=args.num_steps,
    )


def _num_around(args: argparse.Namespace, method: Method) -> int:
    if method.is_sentences:
        return _NUM_AROUND if args.num_around is None else args.num_around
    if args.num_around is not None:
        raise UsageError(f"--num_around: belongs to the run of --retriever RUN, not to {args.retriever}")
    return 0


def _seconds(load: float, read: float, corpus: Corpus, answer: Answer) -> dict[str, float]:
    """By stage; embedding counts as retrieving."""
    built, asked = corpus.cost.seconds, answer.cost.seconds
    retrieve = built.get("embed", 0.0) + asked["retrieve"]
    before = {"load": load, "read": read, "chunk": built["chunk"], "retrieve": retrieve}
    return {
        stage: round(seconds, 3) for stage, seconds in (before | {k: asked[k] for k in ("context", "generate")}).items()
    }


def _say_notes(answer: Answer, num_cut: int, args: argparse.Namespace, *, picked: bool) -> None:
    """What a reader of the answer should know, on standard error."""
    if num_cut:
        say(f"{num_cut:,} texts are longer than the encoder reads; only their beginning was searched")
    if picked and answer.context.num_left_out:  # else all chunks are ranked, and most are never meant to fit
        say(f"{answer.context.num_left_out:,} passages that were picked did not fit into the context")
    if answer.generation.finish_reason == "length":
        say(f"the answer was cut at {args.max_answer_tokens} tokens (--max_answer_tokens)")


@dataclass(frozen=True)
class _Noted:
    """A language model that shows on a terminal that it is at work."""

    generator: TextGenerator

    @property
    def model(self) -> str:
        return self.generator.model

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> Sequence[Generation]:
        with Progress(transient=True) as progress:
            progress.note("the language model reads and answers")
            return self.generator.generate(prompts, sampling=sampling, finished=finished)
