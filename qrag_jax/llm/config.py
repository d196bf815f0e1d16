"""Makes a language model from a config, with a journal and a budget."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from qrag_jax.errors import Arg
from qrag_jax.files.user_cache import cache_folder
from qrag_jax.llm.calls import ANSWER_TOKENS, CONCURRENCY, DEADLINE, OPENAI_KEY_NAME, OWN_KEY_NAME, AroundGenerator
from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.prices import Prices, load_prices
from qrag_jax.llm.scripted import load_script
from qrag_jax.llm.wrappers import BudgetedGenerator
from qrag_jax.names import LLMS, Engine
from qrag_jax.types import CountTokens, Finished, Generation, InputError, Message, Sampling, TextGenerator, UsageError

_OF_OPENAI = ("base_url", "key_name", "concurrency", "deadline", "any_model", "grammar_field")
# Calls that a journal claims together, for each concurrent call. A round waits for its slowest call, so fewer rounds
# keep the pool busier. But claimed calls are closed to other processes.
_CLAIMS_A_WORKER = 4
_CLAIMS = 64  # at least


@dataclass(frozen=True)
class LlmConfig:
    """A language model with its sampling, journal and budget.

    `make_generator` checks that the fields go together; a config that is never used is not checked.

    Attributes:
        llm: where the model runs, of `names.LLMS`.
        llm_model: local: smollm2 (for None), a folder, a .gguf file or a hub id; openai: the name of the model on the
            server; scripted: a JSONL file.
        llm_engine: local: what computes the model, of `names.ENGINES`; None chooses (`LocalGenerator`).
        base_url: openai: address of the server.
        key_name: openai: environment variable with the key; None: OPENAI_API_KEY for OpenAI's own hosts, else
            QRAG_API_KEY.
        concurrency, deadline: openai: calls at the same time; seconds of a call with its retries. None: 4 and 120.
        any_model: openai: accept answers from a model with another name.
        grammar_field: openai: request field that sends the form of an answer; None sends none.
        journal: file that caches finished answers; None is the user's own file.
        no_journal: cache no answers, and use none from earlier calls.
        max_llm_tokens, max_dollars: budget; None is no limit.
        prices: file of prices, as in `load_prices`.
        prompts: folder of your own prompt templates.
        temperature: of sampling; 0 takes the likeliest token.
        max_answer_tokens: most tokens of an answer.
    """

    llm: str = "local"
    llm_model: str | None = None
    llm_engine: Engine | None = None
    base_url: str | None = None
    key_name: str | None = None
    concurrency: int | None = None
    deadline: float | None = None
    any_model: bool = False
    grammar_field: str | None = None
    journal: Path | None = None
    no_journal: bool = False
    max_llm_tokens: int | None = None
    max_dollars: float | None = None
    prices: Path | None = None
    prompts: Path | None = None
    temperature: float = 0.0
    max_answer_tokens: int = ANSWER_TOKENS

    @property
    def sampling(self) -> Sampling:
        """The sampling of the model."""
        return Sampling(max_tokens=self.max_answer_tokens, temperature=self.temperature)

    def given(self) -> list[str]:
        """Names of fields that differ from their defaults, without `max_answer_tokens`, whose default varies by use."""
        names = [one.name for one in fields(self)[:-1] if getattr(self, one.name) != one.default]
        return sorted(names, key=lambda name: name == "llm")

    def load_prices(self) -> Prices | None:
        """The prices, or None."""
        return None if self.prices is None else load_prices(self.prices)


@dataclass(frozen=True)
class ReadyGenerator(AroundGenerator):
    """A language model made from a config. Satisfies `types.TextGenerator`.

    Attributes:
        generator: gives the answers, with journal and budget.
        window: most tokens of prompt and answer together; None if unknown.
        count: counts tokens as the model does; None if unknown.
    """

    generator: TextGenerator
    window: int | None = None
    count: CountTokens | None = None

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> Sequence[Generation]:
        """Answers every prompt, in order; as `types.TextGenerator`."""
        return self.generator.generate(prompts, sampling=sampling, finished=finished)


def make_generator(config: LlmConfig) -> ReadyGenerator:
    """Loads the language model of a config.

    The journal wraps the budget, so cached answers cost nothing.

    Raises:
        UsageError: fields that do not go together.
    """
    _check(config)
    return _kept(LLMS.load(config.llm)(config), config)


def make_likelihood(config: LlmConfig) -> ReadyGenerator:
    """Loads a decoder that tells how likely answers are (`local.LocalLikelihood`), with the journal and the budget.

    Raises:
        UsageError: the model is not in this process, or fields do not go together.
    """
    from qrag_jax.llm.local import LocalLikelihood  # imports JAX and loads weights

    if config.llm != "local":
        reason = "log-probabilities of a given answer come from a model in this process; set it to local"
        raise UsageError(reason, field="llm", value=config.llm)
    _check(config)
    model = LocalLikelihood(config.llm_model or "smollm2")
    return _kept(ReadyGenerator(model, model.window), config)


def _kept(ready: ReadyGenerator, config: LlmConfig) -> ReadyGenerator:
    """The model with the budget and the journal of its config."""
    generator = ready.generator
    if config.max_llm_tokens is not None or config.max_dollars is not None:
        generator = _budgeted(generator, config)
    if not config.no_journal:
        claim_size = max(_CLAIMS, _CLAIMS_A_WORKER * (config.concurrency or CONCURRENCY))
        generator = JournaledGenerator(generator, _open_journal(config.journal), claim_size=claim_size)
    return ReadyGenerator(generator, ready.window, ready.count)


def default_journal() -> Path:
    """The user's journal, `qrag_jax/journal.sqlite` in XDG_CACHE_HOME or ~/.cache; creates its private folder.

    Raises:
        UsageError: the user has no home folder, or the folder cannot be created.
    """
    others = ("name a file with ", Arg("journal"), ", or cache no answers with ", Arg("no_journal"))
    try:
        folder = cache_folder()
    except RuntimeError as error:  # as in a container whose user has no entry
        raise UsageError("journal: this user has no home folder", remedy=("set HOME, ", *others)) from error
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = f"the journal's folder cannot be created ({error.strerror})"
        raise UsageError(reason, file=folder, remedy=others) from error
    return folder / "journal.sqlite"


def make_local(config: LlmConfig) -> ReadyGenerator:
    """Loads a model in this process."""
    from qrag_jax.llm.local import LocalGenerator  # imports JAX and loads weights

    generator = LocalGenerator(config.llm_model or "smollm2", engine=config.llm_engine)
    return ReadyGenerator(generator, generator.window, generator.count_tokens)


def make_openai(config: LlmConfig) -> ReadyGenerator:
    """Makes a client of a server with the OpenAI API; sends nothing yet.

    Raises:
        UsageError: no server or no model is given.
    """
    from qrag_jax.llm.server.openai import OpenAIGenerator  # takes a second to import

    if config.base_url is None:
        raise UsageError(
            (
                Arg("llm", "openai"), ": give the server's address with ", Arg("base_url"), ", such as "
                "http://127.0.0.1:8080/v1 on this machine, or https://api.openai.com/v1; your passages are sent there",
            ),
            field="llm",
            value="openai",
        )  # fmt: skip
    return ReadyGenerator(
        OpenAIGenerator(
            _named_model(config, "the name of the model on the server"),
            config.base_url,
            key_name=key_name_of(config.base_url, config.key_name),
            concurrency=config.concurrency or CONCURRENCY,
            deadline=config.deadline or DEADLINE,
            check_model=not config.any_model,
            grammar_field=config.grammar_field,
        )
    )


def make_scripted(config: LlmConfig) -> ReadyGenerator:
    """Loads answers from a file.

    Raises:
        UsageError: no file is given.
    """
    return ReadyGenerator(load_script(_named_model(config, "a JSONL file of answers")))


def _check(config: LlmConfig) -> None:
    owners = {"llm_engine": "local", **dict.fromkeys(_OF_OPENAI, "openai")}
    for name in config.given():
        if config.llm != owners.get(name, config.llm):
            belongs = ("works only with ", Arg("llm", owners[name]), ", not with ", Arg("llm", config.llm))
            raise UsageError(belongs, field=name)
    if config.max_dollars is not None and config.prices is None:
        raise UsageError(("needs prices; give them with ", Arg("prices", "FILE")), field="max_dollars")


def _named_model(config: LlmConfig, what: str) -> str:
    if config.llm_model is None:
        reason = (Arg("llm", config.llm), f": give {what} with ", Arg("llm_model"))
        raise UsageError(reason, field="llm", value=config.llm)
    return config.llm_model


def key_name_of(base_url: str, named: str | None = None) -> str:
    """The environment variable with the key of a server: the one that is named, else OPENAI_API_KEY or QRAG_API_KEY.

    Raises:
        UsageError: the key of OpenAI would be sent unencrypted.
    """
    from qrag_jax.llm.server.http import is_openai

    if named:
        return named
    if is_openai(base_url) and not base_url.lower().startswith("https://"):
        reason = (Arg("base_url", base_url), ": would send the key unencrypted; write https://")
        raise UsageError(reason, field="base_url", value=base_url)
    return OPENAI_KEY_NAME if is_openai(base_url) else OWN_KEY_NAME


def _open_journal(path: Path | None) -> Journal:
    path = path or default_journal()
    try:
        return Journal(path)
    except (UsageError, InputError) as error:
        remedy = ("(", Arg("journal"), " names another file, ", Arg("no_journal"), " caches no answers)")
        raise type(error)(error.text(with_file=False), file=error.file, line=error.line, remedy=remedy) from error


def _budgeted(generator: TextGenerator, config: LlmConfig) -> TextGenerator:
    prices = config.load_prices()
    of_prompt = prices.prompt_per_million_tokens if prices else None
    of_completion = prices.completion_per_million_tokens if prices else None
    if config.max_dollars is not None and not (of_prompt or of_completion):
        raise UsageError(
            f"{config.prices} has no price for the language model, so the budget would never be used up",
            field="max_dollars",
            remedy="set prompt_per_million_tokens and completion_per_million_tokens",
        )
    return BudgetedGenerator(
        generator,
        max_tokens=config.max_llm_tokens,
        max_dollars=config.max_dollars,
        prompt_price=of_prompt,
        completion_price=of_completion,
    )
