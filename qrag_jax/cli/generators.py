"""The language model that `--llm` names, with a journal and a budget around it, and what its answers cost."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qrag_jax.cli.user_cache import cache_folder
from qrag_jax.llm.calls import CONCURRENCY, DEADLINE, OPENAI_KEY_NAME, OWN_KEY_NAME, AroundGenerator
from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.prices import Prices, dollars, load_prices
from qrag_jax.llm.scripted import load_script
from qrag_jax.llm.wrappers import BudgetedGenerator
from qrag_jax.types import (
    Cost,
    CountTokens,
    Finished,
    Generation,
    InputError,
    Message,
    Sampling,
    TextGenerator,
    UsageError,
)

_OPENAI_FLAGS = ("base_url", "key_name", "concurrency", "deadline", "any_model", "grammar_field")
_MODEL_FLAGS = ("llm_model", "storage", *_OPENAI_FLAGS, "journal", "no_journal", "max_llm_tokens", "max_dollars",
                "prices", "prompts", "temperature")  # fmt: skip
# Calls that a journal claims at a time, per call at once. A round waits for its slowest call: the fewer rounds there
# are, the less the others of the pool stand idle meanwhile. But what is claimed is closed to other processes.
_CLAIMS_A_WORKER = 4
_CLAIMS = 64  # at least


@dataclass(frozen=True)
class ReadyGenerator(AroundGenerator):
    """A language model as the flags describe it; a `TextGenerator`.

    Attributes:
        generator: that answers, with journal and budget.
        window: tokens of prompt and answer together; None where the model does not tell.
        count: tokens of a text as the model counts them; None likewise.
    """

    generator: TextGenerator
    window: int | None = None
    count: CountTokens | None = None

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> Sequence[Generation]:
        """Answers every prompt, in order; as `types.TextGenerator`."""
        return self.generator.generate(prompts, sampling=sampling, finished=finished)


def make_generator(args: argparse.Namespace) -> ReadyGenerator:
    """The language model that the flags of `add_llm_flags` name, loaded.

    The journal lies around the budget: an answer that was paid for earlier costs nothing.
    """
    _check_flags(args)
    ready = {"local": _local, "openai": _openai, "scripted": _scripted}[args.llm](args)
    generator = ready.generator
    if args.max_llm_tokens is not None or args.max_dollars is not None:
        generator = _budgeted(generator, args)
    if not args.no_journal:
        claim_size = max(_CLAIMS, _CLAIMS_A_WORKER * (args.concurrency or CONCURRENCY))
        generator = JournaledGenerator(generator, _journal(args), claim_size=claim_size)
    return ReadyGenerator(generator, ready.window, ready.count)


def given_model_flags(args: argparse.Namespace) -> list[str]:
    """Which flags were given of those that say which model answers, where its answers are kept and what it may cost."""
    # A temperature of 0, the default, is False here.
    return [flag for flag in _MODEL_FLAGS if getattr(args, flag) not in (None, False)] + ["llm"] * (args.llm != "local")


def sampling_of(args: argparse.Namespace) -> Sampling:
    """How the model answers: `--max_answer_tokens` and `--temperature`."""
    return Sampling(max_tokens=args.max_answer_tokens, temperature=args.temperature)


def prices_of(args: argparse.Namespace) -> Prices | None:
    """The price list of `--prices`; None without one."""
    return load_prices(args.prices) if args.prices else None


def prompts_folder(args: argparse.Namespace) -> Path | None:
    """The folder of `--prompts`; None without one."""
    return Path(args.prompts) if args.prompts else None


def spent(generations: Sequence[Generation], prices: Prices | None = None) -> Cost:
    """What calls cost that were made now: those of the journal are free, those that failed count what they used.

    Args:
        prices: of the language model; None gives no dollars.
    """
    paid = [generation for generation in generations if not generation.from_journal]
    cost = Cost(
        prompt_tokens=sum(generation.prompt_tokens for generation in paid),
        completion_tokens=sum(generation.completion_tokens for generation in paid),
    )
    return cost if prices is None else replace(cost, dollars=dollars(cost, prices))


def default_journal() -> Path:
    """The user's journal, `qrag_jax/journal.sqlite` in XDG_CACHE_HOME or ~/.cache; its folder is made, theirs alone."""
    try:
        folder = cache_folder()
    except RuntimeError as error:  # as in a container whose user has no entry
        raise UsageError(
            "journal: this user has no home folder: set HOME, name a file with --journal, or keep no answers with "
            "--no_journal"
        ) from error
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder}: the journal's folder cannot be made ({error.strerror}): name a file with --journal, or keep no "
            "answers with --no_journal"
        ) from error
    return folder / "journal.sqlite"


def _journal(args: argparse.Namespace) -> Journal:
    """That of `--journal`, or the user's own."""
    path = Path(args.journal) if args.journal else default_journal()
    try:
        return Journal(path)
    except (UsageError, InputError) as error:
        raise type(error)(f"{error} (--journal names another file, --no_journal keeps no answers)") from error


def _budgeted(generator: TextGenerator, args: argparse.Namespace) -> TextGenerator:
    prices = prices_of(args)
    of_prompt = prices.prompt_per_million_tokens if prices else None
    of_completion = prices.completion_per_million_tokens if prices else None
    if args.max_dollars is not None and not (of_prompt or of_completion):
        raise UsageError(
            f"--max_dollars: {args.prices} gives the language model no price, so nothing would ever count: set "
            "prompt_per_million_tokens and completion_per_million_tokens"
        )
    return BudgetedGenerator(
        generator,
        max_tokens=args.max_llm_tokens,
        max_dollars=args.max_dollars,
        prompt_price=of_prompt,
        completion_price=of_completion,
    )


def _check_flags(args: argparse.Namespace) -> None:
    if args.storage and args.llm != "local":
        raise UsageError(f"--storage: belongs to --llm local, not to --llm {args.llm}")
    if args.llm != "openai":
        given = [name for name in _OPENAI_FLAGS if getattr(args, name) not in (None, False)]
        if given:
            raise UsageError(f"--{given[0]}: belongs to --llm openai, not to --llm {args.llm}")
    elif args.base_url is None:
        raise UsageError(
            "--llm openai: name the server with --base_url, such as http://127.0.0.1:8080/v1 for one on this machine, "
            "or https://api.openai.com/v1: your passages are sent there"
        )
    if args.llm != "local" and args.llm_model is None:
        what = "the name of the model on the server" if args.llm == "openai" else "a JSONL file of answers"
        raise UsageError(f"--llm {args.llm}: give {what} with --llm_model")
    if args.max_dollars is not None and not args.prices:
        raise UsageError("--max_dollars: give the prices of the model with --prices FILE")


def _local(args: argparse.Namespace) -> ReadyGenerator:
    from qrag_jax.llm.local import LocalGenerator  # imports JAX and loads weights

    generator = LocalGenerator(args.llm_model or "smollm2", storage=args.storage)
    return ReadyGenerator(generator, generator.window, generator.count_tokens)


def _openai(args: argparse.Namespace) -> ReadyGenerator:
    from qrag_jax.llm.server.openai import OpenAIGenerator  # takes a second to import

    return ReadyGenerator(
        OpenAIGenerator(
            args.llm_model,
            args.base_url,
            key_name=_key_name(args),
            concurrency=args.concurrency or CONCURRENCY,
            deadline=args.deadline or DEADLINE,
            check_model=not args.any_model,
            grammar_field=args.grammar_field,
        )
    )


def _key_name(args: argparse.Namespace) -> str:
    from qrag_jax.llm.server.http import is_openai

    if args.key_name:
        return args.key_name
    if is_openai(args.base_url) and not args.base_url.lower().startswith("https://"):
        raise UsageError(f"--base_url {args.base_url}: would send the key in clear text: write https://")
    return OPENAI_KEY_NAME if is_openai(args.base_url) else OWN_KEY_NAME


def _scripted(args: argparse.Namespace) -> ReadyGenerator:
    return ReadyGenerator(load_script(args.llm_model))
