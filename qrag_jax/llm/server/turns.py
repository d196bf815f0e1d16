"""Which call comes after which: prompts that begin alike follow one another, so that a server reads the beginning once.

A server keeps what a slot of it has read, but calls that are made at the same time read the same beginning each for
itself. So a worker that was answered about one chunk goes on with that chunk, as long as there is more to ask of it.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from qrag_jax.types import Message


def runs_of(prompts: Sequence[Sequence[Message]]) -> list[list[int]]:
    """Places of neighbours that begin alike, in order.

    Neighbours are of one run where they have at least half of the longer one in common, not counting what all prompts
    of the batch begin with: that alone says nothing about which of them belong together.
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
    """Characters that both begin with; by halves, as texts are compared quickly and characters are not."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Turns:
    """The prompts of a batch, handed out to several workers: each place once."""

    def __init__(self, prompts: Sequence[Sequence[Message]]) -> None:
        self._waiting = deque(map(deque, runs_of(prompts)))  # that no worker has begun
        self._begun: list[deque[int]] = []

    def of_worker(self) -> Iterator[int]:
        """Places for one worker: a run to its end, then the next one; when all are begun, the longest from its end."""
        while self._waiting:
            run = self._waiting.popleft()
            self._begun.append(run)
            while run:
                yield run.popleft()
        while longest := max(self._begun, key=len, default=None):
            while longest:  # to its end too: another one would have to be read again
                yield longest.pop()
