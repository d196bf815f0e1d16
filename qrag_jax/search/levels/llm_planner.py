"""A language model as planner: it reads a question and the beginnings of the documents, and names levels to search.

    plan = make_llm_planner(generator, count, names)
    ranges = plan(questions, heads).ranges

The answer is JSON: a short trace, then `largest_chunk_size` and `smallest_chunk_size`, which are names of levels. If an
answer cannot be read, the model is asked again with the reason. If that fails too, the plan is the full range, and the
reason is counted.

A model that was trained to plan (`make_trained_planner`) gets the prompts of its training, which have no beginnings.
Its trace stands before the JSON (`chunking/tree/plan_texts.py`), and it is asked once.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.annotate.ask_chunks import Desk
from qrag_jax.chunking.size.packing import longest
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.tree.level_ranges import LevelRange, all_ranges, full_range
from qrag_jax.chunking.tree.plan_texts import LARGEST, SMALLEST, parse_plan, plan_json, plan_range
from qrag_jax.llm.json_answers import OneOf, Record, Text, parse_json, schema_grammar
from qrag_jax.llm.prompts import PromptTemplate, fence, load_prompt
from qrag_jax.search.levels.planners import Planner, Plans
from qrag_jax.types import CountTokens, Grammar, Message, Regex, Sampling, TextGenerator

_HEAD_TOKENS, _MAX_HEADS = 1_000, 10  # of all beginnings in a prompt; documents shown, the first ones
_MAX_TOKENS, _MAX_ASKS = 180, 2  # of an answer; calls for a prompt
_TRACE_CHARS = 400  # of one sentence, within `_MAX_TOKENS`
_MARK = "heads"
_END_TOKENS = 8  # for a blank and the end of an answer
_CHARS_PER_TOKEN = 4  # of English prose, for a first guess


@dataclass(frozen=True)
class PlanForm:
    """Answers that name a range of these levels; an `AnswerForm`."""

    names: tuple[str, ...]

    @property
    def grammar(self) -> Grammar:
        """The grammar: JSON with the trace first."""
        return schema_grammar(self._schema)

    @property
    def _schema(self) -> Record:
        level = OneOf(self.names)
        return Record({"trace": Text(0, _TRACE_CHARS), LARGEST: level, SMALLEST: level})

    def read(self, text: str) -> LevelRange:
        """Reads the range of an answer."""
        value = parse_json(text, self._schema)
        return plan_range(value[LARGEST], value[SMALLEST], self.names)


@dataclass(frozen=True)
class TraceForm:
    """Answers of a model that was trained to plan: a trace, then the JSON object; an `AnswerForm`."""

    names: tuple[str, ...]

    @property
    def grammar(self) -> Grammar:
        """The grammar: any trace without braces, then the object of a range."""
        plans = "|".join(re.escape(plan_json(one, self.names)) for one in all_ranges(self.names))
        return Regex(f"[^{{}}]*({plans})")

    def read(self, text: str) -> LevelRange:
        """Reads the range of an answer."""
        return parse_plan(text, self.names)


def make_llm_planner(
    generator: TextGenerator, count: CountTokens, names: Sequence[str], prompts: Path | None = None
) -> Planner:
    """A planner that asks a language model about all questions of a call together.

    Args:
        generator: the language model; with a journal it repeats no finished call.
        count: text -> its tokens, as the model counts.
        names: of the levels, the coarsest first.
        prompts: folder of custom templates; None is the built-in ones.
    """
    template, again = load_prompt("plan", prompts), load_prompt("again", prompts)

    def plan(questions: Sequence[str], heads: Sequence[str]) -> Plans:
        shown = cut_heads(heads, count)
        asked = [plan_prompt(template, question, names, shown) for question in questions]
        return _ask(Desk(generator, Sampling(), _MAX_ASKS, again), asked, PlanForm(tuple(names)), _MAX_TOKENS)

    return plan


def make_trained_planner(
    generator: TextGenerator, count: CountTokens, names: Sequence[str], template: PromptTemplate, trace_tokens: int
) -> Planner:
    """A planner that asks a model which was trained to plan, once for each question and without heads of documents.

    Args:
        generator: the model.
        count: text -> its tokens, as the model counts.
        names: of the levels that it was trained on, the coarsest first.
        template: of the prompts that it was trained on.
        trace_tokens: most tokens of a trace; a longer one is cut, so there is no plan.
    """
    most = trace_tokens + _END_TOKENS + max(count(plan_json(one, names)) for one in all_ranges(names))

    def plan(questions: Sequence[str], heads: Sequence[str]) -> Plans:
        asked = [plan_prompt(template, question, names) for question in questions]
        return _ask(Desk(generator, Sampling(), 1, load_prompt("again")), asked, TraceForm(tuple(names)), most)

    return plan


def plan_prompt(
    template: PromptTemplate, question: str, names: Sequence[str], heads: Sequence[str] = ()
) -> tuple[Message, ...]:
    """The conversation that asks for a plan.

    Args:
        template: with the place $question; optional are $sizes (names of the levels), and $mark with $heads.
        heads: beginnings of documents to show.
    """
    question = readable(question)
    mark, fenced = fence(heads, _MARK, beside=[question])
    values = {"mark": mark, "heads": fenced, "question": question, "sizes": ", ".join(map(_described, names))}
    return template.fill(**{name: value for name, value in values.items() if name in template.places})


def _ask(desk: Desk, prompts: Sequence[tuple[Message, ...]], form: PlanForm | TraceForm, max_tokens: int) -> Plans:
    """Asks all prompts together; the full range where there is no plan."""
    outcomes = desk.outcomes("plans", prompts, len(prompts), form, max_tokens)
    ranges = [full_range(form.names) if one.value is None else one.value for one in outcomes]
    return Plans(ranges, desk.reading, desk.reasons)


def cut_heads(heads: Sequence[str], count: CountTokens, num_tokens: int = _HEAD_TOKENS) -> list[str]:
    """The first beginnings for a prompt, with equal shares of tokens, without blank ones."""
    shown = [readable(head).strip() for head in heads if head.strip()][:_MAX_HEADS]
    room = max(1, num_tokens // max(1, len(shown)))

    def size(head: str) -> int:
        return longest(lambda size: count(head[:size]) <= room, len(head), _CHARS_PER_TOKEN * room)

    return [head[: size(head)].strip() for head in shown]


def _described(name: str) -> str:
    """Marks a name such as `64` as a number of tokens; other names need no explanation."""
    return f"{name} (tokens)" if name.isdigit() else name
