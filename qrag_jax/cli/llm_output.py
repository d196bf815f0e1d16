"""Messages about calls to a language model: estimate, cost and result."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from qrag_jax.annotate.ask_chunks import Estimate, Progressed, Reading
from qrag_jax.annotate.boundary_sources import PointsRequest, PointTools
from qrag_jax.annotate.windows import PointsReading
from qrag_jax.cli.flags import made
from qrag_jax.cli.llm_flags import llm_config
from qrag_jax.cli.progress import Progress, WithBar
from qrag_jax.cli.terminal import say
from qrag_jax.llm.prices import Prices, dollars
from qrag_jax.types import Cost


def shown_tools(values: Mapping[str, Any], **more: Any) -> PointTools:
    """The tools of sources of boundaries. They show progress and cost on the terminal.

    Args:
        values: of the flags of `llm_flags.POINTS`, `--model` and `--tagger`, by destination.
        more: fields of `PointsRequest` from other flags.
    """
    llm = llm_config(values)
    prices = llm.load_prices()
    return PointTools(
        made(PointsRequest, values, llm=llm, **more),
        show=WithBar,
        asking=_asking,
        expected=lambda name, estimate: say(f"boundaries by {name}: {format_estimate(estimate, values)}"),
        read=lambda name, reading: say(f"boundaries by {name}: {format_points(reading, prices)}"),
    )


@contextmanager
def _asking() -> Iterator[Progressed]:
    with Progress() as progress:
        yield progress.answered


def format_estimate(estimate: Estimate, values: Mapping[str, Any]) -> str:
    """Formats an estimate in one line: calls, tokens, dollars with `--prices`, hours with `--tokens_per_second`.

    Args:
        values: of all flags, by destination.
    """
    prices, speed = llm_config(values).load_prices(), values["tokens_per_second"]
    facts = [
        f"at most {estimate.num_calls:,} calls of the language model, plus repeats of unreadable answers",
        f"{estimate.prompt_tokens:,} tokens read ({estimate.new_prompt_tokens:,} without shared prefixes)",
        f"{estimate.completion_tokens:,} written",
    ]
    if prices is not None:
        facts.append(f"${estimate.dollars(prices):.4f}")
    if speed is not None:
        read, write = map(float, speed)
        facts.append(f"{estimate.seconds(read, write) / 3600:.2f} hours")
    return ", ".join(facts)


def spent_by(reading: Reading, prices: Prices | None) -> list[str]:
    """The cost of calls: their number, tokens, and dollars with prices."""
    facts = [
        f"{reading.num_calls:,} new calls and {reading.num_from_journal:,} from the journal",
        f"{reading.prompt_tokens:,} tokens read, {reading.completion_tokens:,} written",
    ]
    if prices is not None:
        cost = Cost(prompt_tokens=reading.prompt_tokens, completion_tokens=reading.completion_tokens)
        facts.append(f"${dollars(cost, prices):.4f}")
    return facts


def format_notes_read(readings: Sequence[Reading], prices: Prices | None) -> str:
    """Formats questions, notes and cost in one line, with another line for each of the first errors."""
    read = sum(readings, Reading())
    facts = [f"{read.num_chunks:,} chunks"]
    if read.num_pairs:
        facts += [f"{read.num_questions:,} questions", f"{read.num_pairs:,} pairs of chunk and question"]
    facts += [f"{read.num_notes:,} notes", *spent_by(read, prices)]
    failed = [f"{read.num_failed:,} calls failed"] if read.num_failed else []
    return "\n".join([", ".join([*facts, *failed]), *(f"  no answer: {error}" for error in read.errors)])


def format_points(reading: PointsReading, prices: Prices | None) -> str:
    """Formats texts, boundaries, answers dropped by reason, and cost in one line."""
    dropped = ", ".join(f"{number:,} {reason}" for reason, number in sorted(reading.dropped.items()))
    facts = [
        f"{reading.num_texts:,} texts in {reading.num_windows:,} windows",
        f"{reading.num_points:,} boundaries",
        f"{reading.num_rows:,} rows kept",
        f"dropped: {dropped or 'none'}",
        *spent_by(reading.calls, prices),
    ]
    return ", ".join(facts)
