"""A language model as planner: it reads a question and the beginnings of the documents, and names levels to search.

    plan = make_llm_planner(generator, count, names)
    ranges = plan(questions, heads)

The answer is JSON: a short trace, then `largest_chunk_size` and `smallest_chunk_size`, which are names of levels. If an
answer cannot be read, the model is asked again with the reason. If that fails too, the plan is the full range, and the
reason is counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qrag_jax.annotate.ask_chunks import Desk, Progressed, Reading
from qrag_jax.chunking.size.packing import longest
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.tree.level_ranges import LevelRange, full_range
from qrag_jax.chunking.tree.plan_texts import LARGEST, SMALLEST, plan_range
from qrag_jax.llm.json_answers import OneOf, Record, Text, parse_json, schema_grammar
from qrag_jax.llm.prompts import fence, load_prompt
from qrag_jax.types import CountTokens, Grammar, Message, Sampling, TextGenerator, check_fields

_PROMPT = "plan"
_TRACE_CHARS = 400  # of one sentence, within `max_tokens`
_MARK = "heads"
_CHARS_PER_TOKEN = 4  # of English prose, for a first guess


@dataclass(frozen=True)
class PlansConfig:
    """How a language model plans.

    Attributes:
        head_tokens: tokens of all beginnings of documents in a prompt; each gets the same share.
        max_heads: most documents shown, the first ones.
        max_tokens: of an answer: its trace and the two names.
        sampling: of all calls, except `max_tokens`.
        max_asks: most calls for a prompt.
        prompts: folder of custom templates; None is the built-in ones.
    """

    head_tokens: int = 1_000
    max_heads: int = 10
    max_tokens: int = 180
    sampling: Sampling = Sampling()
    max_asks: int = 2
    prompts: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self, "plans", positive=("head_tokens", "max_heads", "max_tokens", "max_asks"))


@dataclass(frozen=True)
class PlansReading:
    """The calls of a planner.

    Attributes:
        num_questions: number of questions planned.
        fallbacks: number of full ranges for lack of a plan, by reason.
        reading: of the calls.
    """

    num_questions: int
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)


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


def make_llm_planner(
    generator: TextGenerator,
    count: CountTokens,
    names: Sequence[str],
    config: PlansConfig | None = None,
    *,
    progress: Progressed | None = None,
    finished: Callable[[PlansReading], None] | None = None,
) -> Callable[[Sequence[str], Sequence[str]], list[LevelRange]]:
    """A planner that asks a language model about all questions of a call together.

    Args:
        generator: the language model; with a journal it repeats no finished call.
        count: text -> its tokens, as the model counts.
        names: of the levels, the coarsest first.
        config: None takes the defaults.
        progress: called for every answer, in the stage `plans`.
        finished: called with the counts after each call of the planner.

    Returns:
        (questions, heads of the documents) -> the range of each question; the full one if there is no plan.
    """
    config = config or PlansConfig()
    template, again = load_prompt(_PROMPT, config.prompts), load_prompt("again", config.prompts)
    form, sizes = PlanForm(tuple(names)), ", ".join(map(_described, names))

    def prompt(question: str, shown: Sequence[str]) -> tuple[Message, ...]:
        mark, fenced = fence(shown, _MARK, beside=[question])
        return template.fill(mark=mark, heads=fenced, question=question, sizes=sizes)

    def plan(questions: Sequence[str], heads: Sequence[str]) -> list[LevelRange]:
        shown = cut_heads(heads, count, config)
        desk = Desk(generator, config.sampling, config.max_asks, again, progress)
        prompts = (prompt(readable(question), shown) for question in questions)
        outcomes = list(desk.outcomes("plans", prompts, len(questions), form, config.max_tokens))
        if finished is not None:
            finished(PlansReading(len(questions), desk.reasons, desk.reading))
        return [full_range(names) if one.value is None else one.value for one in outcomes]

    return plan


def cut_heads(heads: Sequence[str], count: CountTokens, config: PlansConfig) -> list[str]:
    """The beginnings for a prompt, with equal shares of tokens, without blank ones."""
    shown = [readable(head).strip() for head in heads if head.strip()][: config.max_heads]
    room = max(1, config.head_tokens // max(1, len(shown)))
    return [head[: _longest_head(head, room, count)].strip() for head in shown]


def _longest_head(head: str, room: int, count: CountTokens) -> int:
    """Number of characters of a beginning with at most `room` tokens."""
    return longest(lambda size: count(head[:size]) <= room, len(head), _CHARS_PER_TOKEN * room)


def _described(name: str) -> str:
    """Marks a name such as `64` as a number of tokens; other names need no explanation."""
    return f"{name} (tokens)" if name.isdigit() else name
