"""What a reader that asks a language model will take at most, before it asks anything."""

from collections.abc import Sequence
from dataclasses import dataclass

from qrag_jax.llm.prices import Prices, dollars
from qrag_jax.types import Cost, CountTokens, Message

_TOKENS_A_MESSAGE = 8  # that chat templates put around a message, about


@dataclass(frozen=True)
class Estimate:
    """At most so much, as long as no answer has to be asked for again; answers of a journal make it less.

    Attributes:
        num_calls: of the language model.
        prompt_tokens: of all prompts, as they are paid for.
        new_prompt_tokens: without the beginnings that prompts have in common, which a model that keeps them reads once.
        completion_tokens: if every answer is as long as it may be; most are far shorter.
    """

    num_calls: int = 0
    prompt_tokens: int = 0
    new_prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(
            self.num_calls + other.num_calls,
            self.prompt_tokens + other.prompt_tokens,
            self.new_prompt_tokens + other.new_prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    def dollars(self, prices: Prices) -> float:
        """By the prices of the language model."""
        return dollars(Cost(prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens), prices)

    def seconds(self, read: float, write: float) -> float:
        """Of a model that reads and writes so many tokens a second (`qrag llm bench`), and keeps beginnings."""
        return self.new_prompt_tokens / read + self.completion_tokens / write


def prompt_tokens(prompt: Sequence[Message], count: CountTokens) -> int:
    """Tokens of a conversation: of its texts, and about those of the chat template."""
    return sum(count(message.content) + _TOKENS_A_MESSAGE for message in prompt)
