"""Language models on any OpenAI-compatible server, through the official client.

Prompts with the same beginning are asked one after another by the same worker. A server caches what it has read in a
slot, but calls at the same time would each read that beginning again.
"""

import asyncio
import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import openai

from qrag_jax.llm.calls import CONCURRENCY, DEADLINE, GRAMMAR_FIELDS, OPENAI_KEY_NAME, keep, unasked
from qrag_jax.llm.server.answers import Outcome, failed, num_repeated, quote, read_answer, said
from qrag_jax.llm.server.failures import Asked, explain, explain_other, explain_timeout
from qrag_jax.llm.server.http import (
    MIN_SECRET,
    RESPONSE,
    attempts,
    check_base_url,
    check_key,
    check_key_name,
    hide,
    is_openai,
    is_secret,
    make_client,
    run_in_own_loop,
)
from qrag_jax.llm.server.requests import CHANGES, OF_GRAMMARS, make_request, refused_fields
from qrag_jax.types import (
    Arg,
    Finished,
    Generation,
    Grammar,
    InputWarning,
    JsonSchema,
    Message,
    Sampling,
    UsageError,
)


def runs_of(prompts: Sequence[Sequence[Message]]) -> list[list[int]]:
    """Groups of neighbouring prompts with the same beginning, as indices in order.

    Neighbours are in one group if they share at least half of the longer one, not counting the beginning that all
    prompts of the batch share.
    """
    texts = ["\n".join(f"{message.role} {message.content}" for message in prompt) for prompt in prompts]
    if not texts:
        return []
    of_all = _num_common(min(texts), max(texts))
    runs = [[0]]
    for place, (one, other) in enumerate(zip(texts, texts[1:], strict=False), 1):
        common = _num_common(one, other) - of_all
        if common > 0 and 2 * common >= max(len(one), len(other)) - of_all:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _num_common(one: str, other: str) -> int:
    """Number of characters that both begin with, by bisection, since comparing texts is faster than characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Turns:
    """Distributes the prompts of a batch to several workers, each prompt once."""

    def __init__(self, prompts: Sequence[Sequence[Message]]) -> None:
        self._waiting = deque(map(deque, runs_of(prompts)))  # not started
        self._begun: list[deque[int]] = []

    def of_worker(self) -> Iterator[int]:
        """Indices for one worker: groups in order; when all are started, the end of the longest one left."""
        while self._waiting:
            run = self._waiting.popleft()
            self._begun.append(run)
            while run:
                yield run.popleft()
        while longest := max(self._begun, key=len, default=None):
            while longest:  # to its end too: another one would have to be read again
                yield longest.pop()


_NO_KEY = "no-key"  # sent if there is no key, because many local servers need one


class OpenAIGenerator:
    """A `TextGenerator` that asks a server over HTTP.

    Only the client retries: at most `max_retries` times after the first attempt, for broken connections and for status
    408, 409, 429 and 5xx. It waits 0.5 s, 1 s, 2 s ... (at most 8 s, up to a quarter less), or as `Retry-After` says
    (up to 120 s; a longer one ends the call). The deadline covers all attempts. A complete answer is not asked again,
    even if it is wrong. Errors of one call stay in that call.

    Some errors stop the rest of the batch: 401, 404, a redirect, no connection after all attempts, the wrong model, an
    account without credit. Calls in progress finish; the remaining ones report the reason.

    The key is read from the environment at each `generate` and never stored. It is removed from answers and errors, in
    case a server repeats it. A key that is a word (`http.is_secret`) is removed only from errors, because answers
    contain it by chance; a warning reports that. The key is sent to `base_url`, so name the variable with the key of
    that server. Without a key, "no-key" is sent. The arguments override the client's own variables (OPENAI_BASE_URL and
    others).

    Over http every attempt has its own connection; over https one is reused only after an exact answer (see
    `http.watch_connections`), so no answer can belong to another prompt. The protocol offers no further
    link between answers and prompts. So the server's model name and id of an answer are kept (`Generation.answered_by`,
    `answer_id`), and a warning reports answers that occur twice in a batch (`answers.num_repeated`). They are not
    refused, because some servers use constant or few ids.

    A field that the server refuses by name is changed or left out (`requests.refused_fields`), and the call is made
    again, once for each field and beyond `max_retries`. Later calls know it. A warning says what follows.

    Token counts come from the server. Missing counts are 0, with a warning and in `num_uncounted`; a budget of tokens
    or dollars does not hold then.

    Attributes:
        num_uncounted: answers so far without token counts.
        num_repeated: answers so far that repeat, with their id, the answer to another prompt of their batch.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        key_name: str = OPENAI_KEY_NAME,
        concurrency: int = CONCURRENCY,
        deadline: float = DEADLINE,
        max_retries: int = 2,
        max_answer_bytes: int = 4 * 2**20,
        check_model: bool = True,
        grammar_field: str | None = None,
    ) -> None:
        """Checks the arguments; sends nothing yet.

        Args:
            model: its name on the server.
            base_url: address of the API, usually with /v1 at its end.
            key_name: environment variable with the key.
            concurrency: calls at the same time.
            deadline: seconds for a call with all its retries, from its first attempt.
            max_retries: attempts of a call after the first.
            max_answer_bytes: most bytes of a complete response; more is an error.
            check_model: treat an answer of a model with another name as an error (`answers.is_model`).
            grammar_field: request field that sends a grammar: "response_format" (of the protocol, JSON only),
                "structured_outputs" (vLLM) or "guided" (`guided_json` and others, older vLLM). None: no grammars.

        Raises:
            UsageError: a wrong argument; the message names it.
        """
        if not model:
            raise UsageError("model: is empty; give the server's name of the model")
        check_key_name(key_name)
        if concurrency < 1:
            raise UsageError(f"concurrency {concurrency}: must be at least 1")
        if not 0 < deadline < math.inf:
            raise UsageError(f"deadline {deadline}: must be a finite number of seconds above 0")
        if max_retries < 0:
            raise UsageError(f"max_retries {max_retries}: must be 0 or more")
        if max_answer_bytes < 1:
            raise UsageError(f"max_answer_bytes {max_answer_bytes}: must be at least 1")
        if grammar_field is not None and grammar_field not in GRAMMAR_FIELDS:
            raise UsageError(f"grammar_field {grammar_field!r}: choose {', '.join(GRAMMAR_FIELDS)}, or None")
        self._name, self._grammar_field = model, grammar_field
        self._base_url = check_base_url(base_url)
        self._key_name = key_name
        self._concurrency = concurrency
        self._deadline = float(deadline)
        self._max_retries = max_retries
        self._max_answer_bytes = max_answer_bytes
        self._check_model = check_model
        self._limit = "max_completion_tokens" if is_openai(self._base_url) else "max_tokens"
        self._refused: dict[str, str] = {}  # field -> the server's words; only grows
        self._told_of: set[str] = set()
        self.num_uncounted = 0
        self.num_repeated = 0

    def __repr__(self) -> str:
        return f"OpenAIGenerator({self._name!r}, {self._base_url!r}, key_name={self._key_name!r})"

    @property
    def model(self) -> str:
        """The model's name and the server, and whether any model may answer; a journal keeps these answers apart."""
        name = self._name if self._check_model else f"{self._name} (or any other)"
        return f"{name} at {self._base_url}"

    def takes_grammar(self, grammar: Grammar) -> bool:
        """True if the grammar can be sent to the server. Only its answers show whether it obeys."""
        is_general = self._grammar_field not in (None, "response_format")
        return is_general or (self._grammar_field is not None and isinstance(grammar, JsonSchema))

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> list[Generation]:
        """Answers every prompt; see `types.TextGenerator`.

        `seed` and `top_p` are sent if the temperature is above 0. OpenAI's own hosts get `max_tokens` as
        max_completion_tokens, the only name that all of its models know; other servers get the older name.
        Log-probabilities are None if the server sends none. Settings outside the protocol (top_k, penalties, a system
        prompt of the chat template) depend on the server, so two servers may answer differently.

        Raises:
            UsageError: `top_k`, which the protocol does not have; a grammar that cannot be sent; a key that cannot be
                sent; variables of proxies or certificates that cannot be used.
        """
        if sampling.top_k:
            raise UsageError(f"top_k {sampling.top_k}: the OpenAI protocol has no top_k; leave it 0, or use top_p")
        if sampling.grammar is not None and not self.takes_grammar(sampling.grammar):
            raise UsageError(
                f"grammar {str(sampling.grammar):.100}: cannot be sent with grammar_field {self._grammar_field}; "
                "choose a field that the server reads (response_format is for JSON schemas only)"
            )
        key = check_key(os.environ, self._key_name)
        generations: list[Generation] = [Generation("", "error", error="never asked")] * len(prompts)
        uncounted: list[int] = []

        def hear(report: tuple[int, Outcome]) -> None:
            place, outcome = report
            generations[place] = outcome.generation
            if not outcome.is_counted:
                uncounted.append(place)
            if finished is not None:
                finished(place, outcome.generation)

        def keep_only(report: tuple[int, Outcome]) -> None:
            keep(finished, report[0], report[1].generation)

        if prompts:
            run_in_own_loop(partial(self._ask_all, prompts, sampling, key), hear, keep_only)
        self._warn(len(uncounted), num_repeated(prompts, generations), len(prompts))
        self._warn_of_refused()
        _warn_of_word(self._key_name, key, generations)
        return generations

    def _warn(self, uncounted: int, repeated: int, prompts: int) -> None:
        """Warns about missing token counts and repeated answers."""
        self.num_uncounted += uncounted
        self.num_repeated += repeated
        if uncounted:
            warnings.warn(
                f"{self._base_url} sends no token counts ({uncounted} of {prompts} answers); they count as 0, so "
                "budgets cannot be enforced",
                UserWarning,
                stacklevel=3,
            )
        if repeated:
            warnings.warn(
                InputWarning(
                    f"{self._base_url} gave different prompts the same answer with the same id ({repeated} of "
                    f"{prompts} answers); check that no cache or proxy returns answers of other prompts",
                    remedy=(
                        "a journal has stored them, so ask again without it (",
                        Arg("no_journal", True, python="no JournaledGenerator"),
                        "), or with another one",
                    ),
                ),
                stacklevel=3,
            )

    def _warn_of_refused(self) -> None:
        """Warns once about each field that the server refuses, and what follows."""
        for field in self._refused.keys() - self._told_of:
            self._told_of.add(field)
            warnings.warn(
                f"{self._base_url} refuses {field!r} ({self._refused[field]!r}); {CHANGES.get(field, OF_GRAMMARS)}",
                UserWarning,
                stacklevel=3,
            )

    async def _ask_all(
        self,
        prompts: Sequence[Sequence[Message]],
        sampling: Sampling,
        key: str | None,
        report: Callable[[tuple[int, Outcome]], None],
    ) -> None:
        """Runs one worker for each concurrent call. A worker continues with prompts that share a beginning."""
        turns = Turns(prompts)
        fatal: list[Generation] = []  # the reason why no further call is made

        async def work(client: openai.AsyncOpenAI) -> None:
            for place in turns.of_worker():
                if fatal:
                    report((place, Outcome(unasked(fatal[0]))))
                    continue
                outcome = _without_key(await self._ask(client, prompts[place], sampling, key is not None), key)
                if outcome.generation.is_fatal:
                    fatal.append(outcome.generation)
                report((place, outcome))

        made = make_client(
            self._base_url,
            key or _NO_KEY,
            deadline=self._deadline,
            max_retries=self._max_retries,
            max_bytes=self._max_answer_bytes,
        )
        async with made as client, asyncio.TaskGroup() as group:
            for _ in range(min(self._concurrency, len(prompts))):
                group.create_task(work(client))

    async def _ask(
        self, client: openai.AsyncOpenAI, messages: Sequence[Message], sampling: Sampling, has_key: bool
    ) -> Outcome:
        """Makes one call. Any error is in the outcome, and other calls continue."""
        if (reason := _invalid_text(messages)) is not None:
            return failed(reason)
        asked = Asked(self._name, self._base_url, self._key_name, has_key, self._deadline)
        notes: list[str] = []
        attempts.set(notes)
        try:
            async with asyncio.timeout(self._deadline):
                answer = await self._post(client, messages, sampling)
            stop = sampling.stop if "stop" in self._refused else ()
            return read_answer(answer.content, model=self._name, check_model=self._check_model, stop=stop)
        except TimeoutError:
            return explain_timeout(asked, notes)
        except openai.OpenAIError as error:
            return explain(error, asked, notes)
        except Exception as error:  # noqa: BLE001 -- else it would cancel the calls in progress, which are paid for
            return explain_other(error, asked, notes)

    async def _post(self, client: openai.AsyncOpenAI, messages: Sequence[Message], sampling: Sampling) -> Any:
        """Makes a call. A field that the server refuses by name is changed and the call made again, once for each."""
        while True:
            refused = self._refused.keys() | set()
            request = make_request(
                self._name,
                messages,
                sampling,
                limit=self._limit,
                grammar_field=self._grammar_field,
                refused=refused,
            )
            try:
                # Not `chat.completions.create`, which checks each request against all its types, for a third of a
                # call's CPU time.
                return await client.post("/chat/completions", cast_to=RESPONSE, body=request)
            except openai.APIStatusError as error:
                fields = refused_fields(error, request, refused)
                if not fields:
                    raise
                for field in fields:
                    self._refused.setdefault(field, quote(hide(said(error.body), client.api_key)))


def _invalid_text(messages: Sequence[Message]) -> str | None:
    """The reason why a conversation cannot be sent (a lone surrogate has no UTF-8 form), or None."""
    for number, message in enumerate(messages):
        try:
            message.content.encode()
        except UnicodeEncodeError as error:
            return f"message {number} of the prompt: lone surrogate at character {error.start}; fix the document"
    return None


def _without_key(outcome: Outcome, key: str | None) -> Outcome:
    """Removes a key that came in an escaped form or in an exception."""
    if key is None:
        return outcome
    told = ("text", "thinking", "error", "answered_by", "answer_id") if is_secret(key) else ("error",)
    texts = {name: getattr(outcome.generation, name) for name in told}
    hidden = {name: hide(text, key) for name, text in texts.items() if text is not None}
    return replace(outcome, generation=replace(outcome.generation, **hidden))


def _warn_of_word(key_name: str, key: str | None, answers: Sequence[Generation]) -> None:
    """Warns if answers contain a key that is a word; the word is not shown."""
    if key is None or len(key) < MIN_SECRET or is_secret(key):
        return
    if number := sum(key in f"{answer.text}\n{answer.thinking}" for answer in answers):
        warnings.warn(
            f"environment variable {key_name}: the key is a word, and {number} of {len(answers)} answers contain it. "
            "It is not removed from them (nor from a journal), because it may be an ordinary word; if it is a secret, "
            "choose a key with letters and digits",
            UserWarning,
            stacklevel=3,
        )
