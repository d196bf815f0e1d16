"""From a corpus to an answer with citations, as one function whose parts are handed in.

method = single_step_method("hybrid")                            # index/methods.py: how to cut, embed, search
corpus = method.build(read_files(["notes/"]))                    # or load_corpus("notes.corpus")
answer = answer_question("Who has the key?", corpus, method.retrieve, LocalGenerator())
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from qrag_jax.chunking.text.spans import readable
from qrag_jax.llm.calls import ask_all
from qrag_jax.llm.prompts import PromptTemplate, load_prompt, passages_prompt
from qrag_jax.search.context.auto_merge import MergeRules, merge_context
from qrag_jax.search.context.citations import Citation, Cited, cite, cite_note, make_citation
from qrag_jax.search.context.pack import Budget, Context, fill_context
from qrag_jax.search.context.widen import widen_context
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked, Retrieve
from qrag_jax.search.note_texts import GivenNote
from qrag_jax.types import Arg, Cost, CountTokens, Generation, InputError, Message, Sampling, TextGenerator, UsageError

PROMPT = "answer"  # of llm/prompts: places $mark, $passages and $question
_MAX_CONTEXT_TOKENS = 2_000
# Of a window, for what a chat template writes around messages, and for tokens that join otherwise than they count.
_SLACK = 64

# (corpus, ranking) -> what the model is given.
FillContext = Callable[[Corpus, Ranked], Context]


class NothingFound(InputError):
    """No passage shares a word with the question."""


@dataclass(frozen=True)
class FoundPassages:
    """The passages that were found for a question.

    Attributes:
        question: as asked.
        context: the passages, in document order.
        given: the same as citations, checked, in their order.
        given_notes: the notes behind them, likewise.
        num_chunks: that were searched, the leaves of the corpus.
        seconds: by stage: retrieve, context.
    """

    question: str
    context: Context
    given: tuple[Citation, ...]
    given_notes: tuple[Citation, ...]
    num_chunks: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Answer:
    """What a language model said to a question about documents, and what it was given.

    Attributes:
        question: as asked.
        generation: text, why it ended, tokens; or the error, and then nothing is cited.
        context: passages in the prompt.
        given: the same as citations, checked, in their order.
        given_notes: the notes behind them, likewise.
        cited: what the answer cites.
        num_chunks: that were searched, the leaves of the corpus.
        model: that was asked.
        prompt_sha256: of the template.
        cost: of this question alone (`Corpus.cost` has what came before): seconds by stage (retrieve, context,
            generate), and the tokens of a call that was made now.
    """

    question: str
    generation: Generation
    context: Context
    given: tuple[Citation, ...]
    given_notes: tuple[Citation, ...]
    cited: Cited
    num_chunks: int
    model: str
    prompt_sha256: str
    cost: Cost


def answer_question(
    question: str,
    corpus: Corpus,
    retrieve: Retrieve,
    generator: TextGenerator,
    *,
    fill: FillContext | None = None,
    template: PromptTemplate | None = None,
    sampling: Sampling | None = None,
) -> Answer:
    """Answers a question from a corpus: retrieve, choose a context, ask, cite.

    A model that fails is no exception: `generation.error` says why, and all that was retrieved is there.

    Args:
        question: what is asked.
        corpus: what is searched; built once, asked many times.
        retrieve: ranks its nodes.
        generator: the language model.
        fill: chooses passages (`make_fill`); None takes the best nodes up to 2,000 tokens, as the corpus counted them.
        template: of the prompt, with places for the mark, the passages and the question; None is ours.
        sampling: of the answer; None is greedy.

    Raises:
        InputError: a blank question, nothing was found, a passage does not stand in its document, the generator breaks
            its contract, or as the parts.
    """
    template = template or load_prompt(PROMPT)
    found = find_passages(question, corpus, retrieve, fill=fill)
    context = found.context
    messages = make_prompt(template, question, [passage.text for passage in context.passages], context.notes)
    seconds = dict(found.seconds)
    with _timed("generate", seconds):
        (generation,) = ask_all(generator, [messages], sampling=sampling or Sampling())
    failed = generation.error is not None
    cited = Cited((), ()) if failed else cite(generation.text, found.context, corpus.documents)
    paid = Generation("", "stop") if generation.from_journal else generation
    cost = Cost(seconds, prompt_tokens=paid.prompt_tokens, completion_tokens=paid.completion_tokens)
    return Answer(
        question,
        generation,
        found.context,
        found.given,
        found.given_notes,
        cited,
        found.num_chunks,
        generator.model,
        template.sha256,
        cost,
    )


def find_passages(
    question: str, corpus: Corpus, retrieve: Retrieve, *, fill: FillContext | None = None
) -> FoundPassages:
    """What `answer_question` gives a language model to read, which needs none to be found.

    Args:
        fill: as of `answer_question`.
    """
    check_question(question)
    fill = fill or make_fill(Budget(_MAX_CONTEXT_TOKENS))
    seconds: dict[str, float] = {}
    with _timed("retrieve", seconds):
        ranked = retrieve(question, corpus, None)
    if not len(ranked):
        raise NothingFound(
            f"none of {len(corpus.leaves):,} passages shares a word with the question",
            remedy=(": ask in the words of the text, or search by meaning (", Arg("retriever", "hybrid"), ")"),
        )
    with _timed("context", seconds):
        context = fill(corpus, ranked)
        given = tuple(make_citation(passage, corpus.by_id.get(passage.document_id)) for passage in context.passages)
        given_notes = tuple(cite_note(one, corpus.by_id) for one in context.notes)
    return FoundPassages(question, context, given, given_notes, len(corpus.leaves), seconds)


def check_question(question: str) -> None:
    """Refuses a blank question."""
    if not question.strip():
        raise InputError("question: nothing to ask; write a question")


def make_prompt(
    template: PromptTemplate, question: str, passages: Sequence[str], notes: Sequence[GivenNote] = ()
) -> tuple[Message, ...]:
    """The conversation that asks a question about numbered passages, which stand as data between marks.

    The same question and passages give the same prompt. Lone surrogates, which no model reads, become U+FFFD.

    Args:
        passages: their texts, in the order wanted.
        notes: each stands behind its passage, between marks of its own, and the line above says what it is.
    """
    behind: defaultdict[int, list[GivenNote]] = defaultdict(list)
    for one in notes:
        behind[one.passage].append(one)
    heads, texts = [], []
    for number, text in enumerate(passages, start=1):
        heads += [f"[{number}]", *(one.head for one in behind[number])]
        texts += [readable(text), *(readable(one.note.text) for one in behind[number])]
    question = readable(question)
    return passages_prompt(template, question, texts, question, heads=heads)


def prompt_size(template: PromptTemplate, question: str, count: CountTokens) -> tuple[int, int]:
    """Tokens of the prompt without its passages, and those that it writes around each passage; both near, not exact."""
    empty, one = (
        sum(count(message.content) for message in make_prompt(template, question, passages)) for passages in ([], ["a"])
    )
    return empty, max(0, one - empty)


def make_budget(
    question: str,
    template: PromptTemplate,
    count: CountTokens,
    *,
    window: int | None = None,
    max_answer_tokens: int = Sampling.max_tokens,
    max_tokens: int | None = None,
    max_passages: int | None = None,
) -> Budget:
    """Tokens of the context: as asked for, else 2,000 or what the model's window leaves beside prompt and answer.

    Args:
        count: tokens of a text, as the model counts or near it.
        window: tokens of prompt and answer together; None where the model does not tell.
        max_answer_tokens: that the answer may take of the window.
        max_tokens: of the passages; None works it out.
        max_passages: most of them; None is no limit.
    """
    empty, overhead = prompt_size(template, question, count)
    if window is not None and empty + _SLACK >= window:
        raise InputError(
            f"question: {count(readable(question)):,} tokens, with what the prompt says {empty:,}: the model's "
            f"window is {window:,}, prompt and answer together: ask a shorter question"
        )
    most = max_tokens or _MAX_CONTEXT_TOKENS
    if max_tokens is None and window is not None:
        most = min(most, window - max_answer_tokens - empty - _SLACK)
        if most <= overhead:
            raise UsageError(
                f"the model reads and writes {window} tokens in all, and the prompt takes {empty}: nothing is left for "
                "passages",
                field="max_answer_tokens",
                value=max_answer_tokens,
                remedy="lower it",
            )
    return Budget(most, count, overhead, max_passages)


def make_fill(budget: Budget, num_around: int = 0, merge: MergeRules | None = None) -> FillContext:
    """How a context is filled: the best nodes that a budget holds, as they stand, widened, or merged into sections.

    Args:
        budget: how much may be taken.
        num_around: most sentences to add on either side of a pick, where the nodes are sentences (`widen_context`).
        merge: when a section takes the place of its leaves, where documents have trees (`merge_context`); None: never.
    """
    if num_around and merge is not None:
        raise UsageError(f"passages: either widened by {num_around} sentences or merged into sections; choose one")

    def fill(corpus: Corpus, ranked: Ranked) -> Context:
        if merge is not None:
            return merge_context(corpus, ranked, budget, merge)
        context = fill_context(corpus, ranked, budget)
        return widen_context(corpus, context, budget, num_around) if num_around else context

    return fill


@contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = round(time.perf_counter() - start, 3)
