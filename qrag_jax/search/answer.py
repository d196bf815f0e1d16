"""One function from a corpus to an answer with citations; you pass its parts.

method = single_step_method("hybrid")                            # index/methods.py: how to cut, embed, search
corpus = method.build(read_files(["notes/"]))                    # or load_corpus("notes.corpus")
answer = answer_question("Who has the key?", corpus, method.retrieve, LocalGenerator())
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from qrag_jax.chunking.text.spans import readable
from qrag_jax.llm.calls import ask_all
from qrag_jax.llm.prompts import PromptTemplate, load_prompt, passages_prompt
from qrag_jax.markup import card, quiet_part, text_part
from qrag_jax.names import NoteMode
from qrag_jax.search.citations import Citation, Cited, cite, cite_note, make_citation
from qrag_jax.search.context.auto_merge import MergeRules, merge_context
from qrag_jax.search.context.pack import Budget, Context, fill_context
from qrag_jax.search.context.widen import widen_context
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.extract import extract
from qrag_jax.search.hybrid import Ranked, Retrieve
from qrag_jax.search.levels.planners import Planned
from qrag_jax.search.note_texts import GivenNote
from qrag_jax.search.rerank import Reranked
from qrag_jax.types import (
    Arg,
    Cost,
    CountTokens,
    Embed,
    Generation,
    InputError,
    Message,
    Sampling,
    Sentence,
    TextGenerator,
    UsageError,
    marked_passage,
)

PROMPT = "answer"  # of llm/prompts: places $mark, $passages and $question
_MAX_CONTEXT_TOKENS = 2_000
# Tokens of a window kept free for the chat template, and for tokens that count differently once joined.
_SLACK = 64

# (corpus, ranking) -> the context.
FillContext = Callable[[Corpus, Ranked], Context]


class NothingFound(InputError):
    """No passage shares a word with the question.

    Attributes:
        answer: an answer without passages, if an `Index` was asked.
    """

    answer: "Answer | None" = None


@dataclass(frozen=True)
class Answer:
    """An answer from documents, written by a language model or made of quotes, with its sources.

    Attributes:
        question: as asked.
        context: the passages that were found and fit, in document order.
        given: the passages as checked citations, in the same order.
        given_notes: the notes after the passages, as checked citations.
        num_chunks: number of leaves searched.
        cost: of this question only (`Corpus.cost` has earlier costs): seconds of each stage (retrieve, context, quote
            or generate), and tokens of a new call.
        quotes: sentences that answer, the best first; empty if a language model answers.
        cited: what the answer cites.
        generation: of the language model: text, finish reason and tokens; or the error, and then nothing is cited. None
            if no model was asked.
        model: name of the model; `extraction` for quotes; None if only passages were asked for.
        prompt_sha256: of the template for the language model.
        num_cut: texts read for this question that the encoder cut off.
        retriever, notes: how passages were found, if an `Index` was asked.
        levels: the levels searched, if an `Index` was asked.
        reranked, late: the work of a reranker and of the comparison of token vectors, if an `Index` was asked so.
    """

    question: str
    context: Context
    given: tuple[Citation, ...]
    given_notes: tuple[Citation, ...]
    num_chunks: int
    cost: Cost
    quotes: tuple[Sentence, ...] = ()
    cited: Cited = Cited((), ())
    generation: Generation | None = None
    model: str | None = None
    prompt_sha256: str | None = None
    num_cut: int = 0
    retriever: str = ""
    notes: NoteMode = "none"
    levels: Planned | None = None
    reranked: Reranked | None = None
    late: Reranked | None = None

    @property
    def text(self) -> str | None:
        """The answer; for quotes, each with the number of its passage. None if a call failed or none was made."""
        if self.quotes:
            numbers = (self.number_of(quote) for quote in self.quotes)
            said = (" ".join(quote.text.split()) for quote in self.quotes)
            return "\n".join(f'"{text}" [{number}]' for text, number in zip(said, numbers, strict=True))
        return None if self.generation is None or self.generation.error is not None else self.generation.text

    def _repr_html_(self) -> str:
        """Shows the answer and the passages that it cites in a notebook."""
        error = None if self.generation is None else self.generation.error
        answer = self.text if self.text is not None else f"no answer{'' if error is None else f': {error}'}"
        parts = [quiet_part(f"[{number}]: no such passage") for number in self.cited.unknown]
        for one in self.cited.citations or self.given:
            text = marked_passage(one.text, one.spans, one.sentence)
            parts.append(card(f"[{one.number}] {one.sentence.place}", text_part(text)))
        return card(self.question, text_part(answer), *parts)

    def number_of(self, quote: Sentence) -> int:
        """The number of the passage that contains a quote."""
        start, end = quote.place.start, quote.place.end
        return next(
            one.number
            for one in self.given
            if one.document_id == quote.place.document and any(a <= start and end <= b for a, b in one.spans)
        )


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
    """Answers a question from a corpus: retrieves, chooses a context, asks, cites.

    A model that fails raises nothing: `generation.error` says why, and the result has what was retrieved.

    Args:
        question: what is asked.
        corpus: what is searched; built once for many questions.
        retrieve: ranks its nodes.
        generator: the language model.
        fill: chooses passages (`make_fill`); None takes the best nodes up to 2,000 tokens, as counted in the corpus.
        template: of the prompt, with places for the mark, the passages and the question; None is the built-in one.
        sampling: of the answer; None is greedy.

    Raises:
        InputError: the question is blank, nothing was found, a passage is not in its document, the generator breaks
            its contract, or as the parts.
    """
    found = find_passages(question, corpus, retrieve, fill=fill)
    return answer_from(found, corpus, generator, template or load_prompt(PROMPT), sampling or Sampling())


def answer_from(
    found: Answer,
    corpus: Corpus,
    generator: TextGenerator,
    template: PromptTemplate,
    sampling: Sampling,
    write: Callable[[str], None] | None = None,
) -> Answer:
    """Asks a language model about passages that `find_passages` found in the corpus.

    Args:
        write: called with the text so far, as in `llm.calls.Hearing`.
    """
    context = found.context
    messages = make_prompt(template, found.question, [passage.full_text for passage in context.passages], context.notes)
    seconds = dict(found.cost.seconds)
    with timed("generate", seconds):
        hear = write and (lambda _, text: write(text))
        (generation,) = ask_all(generator, [messages], sampling=sampling, write=hear)
    failed = generation.error is not None
    paid = Generation("", "stop") if generation.from_journal else generation
    return replace(
        found,
        cost=Cost(seconds, prompt_tokens=paid.prompt_tokens, completion_tokens=paid.completion_tokens),
        cited=Cited((), ()) if failed else cite(generation.text, context, corpus.by_id, found.question),
        generation=generation,
        model=generator.model,
        prompt_sha256=template.sha256,
    )


def quote_passages(found: Answer, corpus: Corpus, embed: Embed | None, num_quotes: int = 3) -> Answer:
    """Answers with sentences of the passages, without a language model (`extract`).

    Args:
        found: the result of `find_passages` on the corpus.
        embed: texts -> vectors; None scores sentences only by their words.
        num_quotes: most quotes.
    """
    seconds = dict(found.cost.seconds)
    with timed("quote", seconds):
        quotes = extract(found.question, found.context.passages, corpus.by_id, embed, num_quotes).quotes
    answer = replace(found, cost=Cost(seconds), quotes=quotes, model="extraction")
    first = {answer.number_of(quote): quote for quote in reversed(quotes)}
    numbers = dict.fromkeys(map(answer.number_of, quotes))
    cited = (replace(found.given[number - 1], sentence=first[number]) for number in numbers)
    return replace(answer, cited=Cited(tuple(cited), ()))


def find_passages(question: str, corpus: Corpus, retrieve: Retrieve, *, fill: FillContext | None = None) -> Answer:
    """Finds the passages that `answer_question` would give a language model; an answer without text.

    Args:
        fill: as in `answer_question`.
    """
    check_question(question)
    fill = fill or make_fill(Budget(_MAX_CONTEXT_TOKENS, heads=True))
    seconds: dict[str, float] = {}
    with timed("retrieve", seconds):
        ranked = retrieve(question, corpus, None)
    if not len(ranked):
        raise NothingFound(
            f"none of {len(corpus.leaves):,} passages shares a word with the question",
            remedy=("use words of the text, or search by vectors (", Arg("retriever", "hybrid"), ")"),
        )
    with timed("context", seconds):
        context = fill(corpus, ranked)
        given = tuple(make_citation(passage, corpus.by_id, question) for passage in context.passages)
        given_notes = tuple(cite_note(one, corpus.by_id) for one in context.notes)
    return Answer(question, context, given, given_notes, len(corpus.leaves), Cost(seconds))


def check_question(question: str) -> None:
    """Refuses a blank question."""
    if not question.strip():
        raise InputError("question: it is blank; write a question")


def make_prompt(
    template: PromptTemplate, question: str, passages: Sequence[str], notes: Sequence[GivenNote] = ()
) -> tuple[Message, ...]:
    """The conversation that asks a question about numbered passages, which are marked as data.

    Equal questions and passages give equal prompts. Lone surrogates, which models cannot read, become U+FFFD.

    Args:
        passages: their texts, in the order wanted.
        notes: each follows its passage between its own marks, with a line above that says it is a note.
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
    """Tokens of the prompt without passages, and tokens that it adds around each passage; both are approximate."""
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
    """The budget of the context: as asked for, else 2,000 tokens or the rest of the model's window if that is less.

    Args:
        count: text -> its tokens, as the model counts or approximately.
        window: tokens of prompt and answer together; None if unknown.
        max_answer_tokens: most tokens of the answer.
        max_tokens: most tokens of the passages; None computes it.
        max_passages: most passages; None is no limit.
    """
    empty, overhead = prompt_size(template, question, count)
    if window is not None and empty + _SLACK >= window:
        raise InputError(
            f"question: has {count(readable(question)):,} tokens ({empty:,} with the prompt), but the model's window "
            f"for prompt and answer is {window:,} tokens; ask a shorter question"
        )
    most = _MAX_CONTEXT_TOKENS if max_tokens is None else max_tokens
    if max_tokens is None and window is not None:
        most = min(most, window - max_answer_tokens - empty - _SLACK)
        if most <= overhead:
            raise UsageError(
                f"the model's window is {window} tokens, and the prompt takes {empty}, so no room is left for passages",
                field="max_answer_tokens",
                value=max_answer_tokens,
                remedy="lower it",
            )
    return Budget(most, count, overhead, max_passages, heads=True)


def make_fill(budget: Budget, num_around: int = 0, merge: MergeRules | None = None) -> FillContext:
    """How a context is filled: with the best nodes that fit the budget, unchanged, widened or merged into sections.

    Args:
        budget: most tokens and passages.
        num_around: most sentences to add on either side of a pick, if the nodes are sentences (`widen_context`).
        merge: when a section replaces its leaves, if documents have trees (`merge_context`); None never merges.
    """
    if num_around and merge is not None:
        raise UsageError(f"passages: cannot be both widened by {num_around} sentences and merged; choose one")

    def fill(corpus: Corpus, ranked: Ranked) -> Context:
        if merge is not None:
            return merge_context(corpus, ranked, budget, merge)
        context = fill_context(corpus, ranked, budget)
        return widen_context(corpus, context, budget, num_around) if num_around else context

    return fill


@contextmanager
def timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    """Adds the seconds of its body to a stage."""
    start = time.perf_counter()
    yield
    seconds[stage] = round(seconds.get(stage, 0.0) + time.perf_counter() - start, 3)
