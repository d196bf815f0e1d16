"""Active retrieval (FLARE, arXiv:2305.06983), a baseline of notes: a draft that the model is unsure of is searched for.

    c_0 = search(question),   d_t = model(question, c_t)
    c_(t+1) = search(d_t)     while  min_i p(d_t, i) < theta  and  t < rounds

A draft is the whole answer, which here is a sentence or a few; the original looks at one sentence at a time of long
answers. Its draft is the query as it stands: models do not tell the texts of their tokens, so none is masked.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qrag_jax.llm.calls import ask_all
from qrag_jax.llm.prompts import PromptTemplate, load_prompt, passages_prompt
from qrag_jax.search.context.pack import Context
from qrag_jax.types import Generation, InputError, Message, Sampling, TextGenerator

_TEMPLATE = "study_answer"  # a few sentences out of passages


@dataclass(frozen=True)
class ActiveConfig:
    """How often is searched again.

    Attributes:
        theta: a draft with a token less likely than this is searched for; 0 never, above 1 always.
        rounds: searches behind the first, at most.
        max_tokens: of a draft.
    """

    theta: float = 0.8
    rounds: int = 2
    max_tokens: int = 64


@dataclass(frozen=True)
class ActiveContext:
    """What was found for a question in the end.

    Attributes:
        context: of the last search.
        num_searches: the first one counts.
        calls: drafts, each a call.
    """

    context: Context
    num_searches: int
    calls: tuple[Generation, ...]


def retrieve_actively(
    questions: Sequence[str],
    search: Callable[[str], Context],
    generator: TextGenerator,
    config: ActiveConfig | None = None,
) -> list[ActiveContext]:
    """Searches for each question, then for drafts of its answer while the model is unsure of them.

    The drafts of a round are one batch. A blank draft ends its question: there is nothing to search for. The generator
    must tell log-probabilities.
    """
    config, template = config or ActiveConfig(), load_prompt(_TEMPLATE)
    sampling = Sampling(max_tokens=config.max_tokens, logprobs=True)
    found = [ActiveContext(search(question), 1, ()) for question in questions]
    waiting = list(range(len(questions)))
    for _ in range(config.rounds):
        prompts = [_prompt(template, questions[place], found[place].context) for place in waiting]
        drafts = ask_all(generator, prompts, sampling=sampling)
        still = []
        for place, draft in zip(waiting, drafts, strict=True):
            before = found[place]
            unsure = _min_probability(draft, questions[place]) < config.theta and bool(draft.text.strip())
            context = search(draft.text.strip()) if unsure else before.context
            found[place] = ActiveContext(context, before.num_searches + unsure, (*before.calls, draft))
            still += [place] * unsure
        waiting = still
    return found


def _prompt(template: PromptTemplate, question: str, context: Context) -> tuple[Message, ...]:
    return passages_prompt(template, question, [passage.text for passage in context.passages], question)


def _min_probability(draft: Generation, question: str) -> float:
    """Of its tokens; 1 of none."""
    if draft.error is not None:
        raise InputError(f"draft of an answer to {question[:60]!r}: {draft.error}")
    if draft.logprobs is None:
        raise InputError("drafts: the model tells no log-probabilities, by which FLARE decides; take another model")
    return math.exp(min(draft.logprobs, default=0.0))
