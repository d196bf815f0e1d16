"""Likelihood of a question after a passage, by a server that tells the log-probabilities of a prompt.

    score(q, d) = 1/|q| sum_i log p(q_i | prompt with d, q_<i)

Only `/completions` with `echo` and `logprobs` tells them: vLLM and some others have it; llama.cpp's server, Ollama and
OpenAI's chat models do not. The prompt is plain text, because that path has no chat template; a server may read the
text of a special token in a passage as that token, which changes the score of this passage only.
"""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openai
from jaxtyping import Float

from qrag_jax.chunking.text.spans import readable
from qrag_jax.llm.calls import CONCURRENCY, DEADLINE
from qrag_jax.llm.server.failures import Asked, explain, explain_other
from qrag_jax.llm.server.http import RESPONSE, attempts, check_base_url, check_key, hide, make_client, run_in_own_loop
from qrag_jax.models.decoder.rerank_prompts import LIKELIHOOD_WEIGHT, PLAIN
from qrag_jax.types import InputError, TextCounts

_MAX_BYTES = 16 * 2**20  # of an answer
_ROUNDING = 1e-3  # that a log-probability may be above 0
_UNTOLD = (
    "the server does not tell the log-probabilities of a prompt (/completions with echo and logprobs); vLLM does, or "
    "load the model in this process"
)


class ServerReranker:
    """A model on a server that scores passages. Satisfies `types.Reranker`.

    Attributes:
        name: likelihood, model and server.
        weight, counts, num_parameters: see `types.Reranker`.
    """

    weight, num_parameters = LIKELIHOOD_WEIGHT, None

    def __init__(self, model: str, base_url: str, *, key_name: str) -> None:
        """Checks the arguments; sends nothing yet.

        Args:
            model: its name on the server.
            base_url: address of the API, usually with /v1 at its end.
            key_name: environment variable with the key.

        Raises:
            UsageError: the address cannot be used.
        """
        self._model, self._base_url, self._key_name = model, check_base_url(base_url), key_name
        self.name, self.counts = f"likelihood:{model}@{self._base_url}", TextCounts()

    def __call__(
        self, question: str, passages: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> Float[np.ndarray, " n"]:
        """Scores of passages, float64; see `types.Reranker`.

        Two more calls, without a passage, tell how many tokens the question has.

        Raises:
            InputError: a call failed, or the server does not tell log-probabilities of a prompt.
        """
        before, after = PLAIN
        question = readable(question)
        heads = [f"{before}{readable(passage)}{after}" for passage in passages]
        prompts = [f"{before}{after}", *(f"{head}{question}" for head in ["".join(PLAIN), *heads])]
        told: dict[int, list[float]] = {}

        def hear(report: tuple[int, list[float] | str]) -> None:
            place, found = report
            if isinstance(found, str):
                raise InputError(f"{self.name}: {found}")
            told[place] = found
            if progress is not None:
                progress(len(told), len(prompts))

        run_in_own_loop(lambda report: self._ask_all(prompts, report), hear)
        asked = len(told[1]) - len(told[0])
        if not 0 < asked < min(map(len, told.values())):
            raise InputError(f"{self.name}: tells lengths of prompts that do not fit each other; use another server")
        num_tokens = sum(1 + len(logprobs) for logprobs in told.values())
        self.counts = self.counts.plus(len(passages), num_tokens, 0)
        return np.array([np.mean(told[place + 2][-asked:]) for place in range(len(passages))])

    async def _ask_all(self, prompts: Sequence[str], report: Callable[[tuple[int, list[float] | str]], None]) -> None:
        key, waiting = check_key(os.environ, self._key_name), iter(enumerate(prompts))
        made = make_client(self._base_url, key or "no-key", deadline=DEADLINE, max_retries=2, max_bytes=_MAX_BYTES)

        async def work(client: openai.AsyncOpenAI) -> None:
            for place, prompt in waiting:
                report((place, await self._ask(client, prompt, key)))

        async with made as client, asyncio.TaskGroup() as group:
            for _ in range(min(CONCURRENCY, len(prompts))):
                group.create_task(work(client))

    async def _ask(self, client: openai.AsyncOpenAI, prompt: str, key: str | None) -> list[float] | str:
        """The log-probabilities of the tokens of a prompt, without the first; or why there are none."""
        asked = Asked(self._model, self._base_url, self._key_name, key is not None, DEADLINE)
        notes: list[str] = []
        attempts.set(notes)
        # One new token, because some servers refuse to write none.
        request = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        try:
            answer = await client.post("/completions", cast_to=RESPONSE, body=request | {"echo": True, "logprobs": 1})
            return _prompt_logprobs(answer.content)
        except openai.OpenAIError as error:
            why = explain(error, asked, notes)
            why_not = f"; {_UNTOLD}" if isinstance(error, openai.APIStatusError) and error.status_code != 401 else ""
        except Exception as error:  # noqa: BLE001 -- else it would cancel the other calls before their answer
            why, why_not = explain_other(error, asked, notes), ""
        return hide(f"{why.generation.error}{why_not}", key or "")


def _prompt_logprobs(body: bytes) -> list[float] | str:
    """The log-probabilities in the body of a completion, without those of the first and of new tokens."""
    try:
        answer: Any = json.loads(body)
        values = answer["choices"][0]["logprobs"]["token_logprobs"]
        num_prompt = answer["usage"]["prompt_tokens"]
        found = [float(value) for value in values[1:num_prompt]]
    except (ValueError, LookupError, TypeError):
        return _UNTOLD
    is_whole = len(found) == num_prompt - 1 > 0 and np.isfinite(found).all() and max(found) <= _ROUNDING
    return found if is_whole else _UNTOLD
