"""A text as numbered lines for a language model: each cut short, and as many in a window as its tokens hold."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qrag_jax.chunking.text.spans import readable
from qrag_jax.types import CountTokens, UsageError


@dataclass(frozen=True)
class Lines:
    """What a model is shown of a text; the text itself stays whole.

    Attributes:
        texts: one line each, without line breaks.
        costs: tokens of each with its number and line end.
    """

    texts: tuple[str, ...]
    costs: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def stop(self, first: int, tokens: int, most: int | None = None) -> int:
        """Where a window ends that begins with a line: before the first line that it has no room for.

        Args:
            first: line from 0.
            tokens: that the window holds; a line that is larger is a window of its own.
            most: lines that it holds, at least 1; None is any number.

        Returns:
            The line behind the last one of the window, above `first`.
        """
        last = len(self) if most is None else min(len(self), first + most)
        place, left = first + 1, tokens - self.costs[first]
        while place < last and self.costs[place] <= left:
            left -= self.costs[place]
            place += 1
        return place

    def written(self, numbers: Iterable[int]) -> str:
        """Some lines below each other, numbered from 0 in this order, whatever they are in the text."""
        return "\n".join(f"{number}: {self.texts[line]}" for number, line in enumerate(numbers))


def number_lines(texts: Sequence[str], count: CountTokens, *, max_chars: int, tokens: int) -> Lines:
    """Each text as a line: blanks as one, lone surrogates as U+FFFD, cut to a number of characters and of tokens.

    Args:
        texts: sentences or paragraphs, none blank.
        max_chars: of a line, without its number.
        tokens: of a line with its number, so that it fits into a window.
    """
    lines, costs = [], []
    for text in texts:
        line, cost = _cut(readable(" ".join(text.split())[:max_chars]), len(texts), count, tokens)
        lines.append(line)
        costs.append(cost)
    return Lines(tuple(lines), tuple(costs))


def _cut(line: str, number: int, count: CountTokens, tokens: int) -> tuple[str, int]:
    """The line, shorter where it is over the tokens, and its cost."""
    while (cost := count(f"{number}: {line}\n")) > tokens:
        if len(line) == 1:
            raise UsageError(f"a line of one character has {cost} tokens with its number: give windows of more tokens")
        line = line[: max(1, len(line) * tokens // cost)]
    return line, cost
