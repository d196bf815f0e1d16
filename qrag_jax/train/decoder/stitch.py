"""STITCH (SmartChunk, Algorithm 2) as explicit state: what a run has done, what it imitates, and what it will.

    for each step:
        G vanilla answers to each prompt; any correct one within the length limit: the group goes to the RL buffer
        else a trace is asked for, and G answers to the prompt with a hint; any correct: the hinted group goes there
        else the trace goes to the imitation buffer
        one update of GRPO on the RL buffer; if |imitation buffer| >= T: imitate it on the prompts without hints, clear

The imitation buffer survives steps. `Progress` holds all of this but the parameters, so a checkpoint can be taken after
any update, also between two updates of an imitation phase. `roll.py` computes the steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.tree.plan_texts import trace_of
from qrag_jax.types import InputError


@dataclass(frozen=True)
class Example:
    """An answer to imitate.

    Attributes:
        record: number of its prompt.
        tokens: of the answer, its end included; () stands for the answer or trace of the record.
    """

    record: int
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Progress:
    """The state of a run beside its parameters; everything that a later step depends on.

    Attributes:
        updates: of the optimiser, of either kind.
        phase: number of the current part of the run (`DecoderRun.phases`).
        steps: of rollouts in this phase; 1 once a phase of imitation alone has begun.
        queue: examples that are being imitated; () between imitation phases.
        position: updates of the current imitation phase that are done.
        imitations: imitation phases that have begun.
        buffer: examples that wait for an imitation phase.
        solved: latest correct answers to prompts without hints, for rehearsal.
        taught: records whose trace was asked for, in order.
        vanilla: answers that were drawn without a hint in this phase; `correct` of them were correct.
        rollouts, tokens: answers that were drawn with and without hints in the whole run, and their tokens.
        unsolved: prompts of this phase without a correct answer among the first G.
        imitation_steps: updates by imitation of traces.
        flat_groups: groups whose rewards were all equal.
        unrewarded: answers without a reward.
        untaught: prompts that were not solved and had no trace.
    """

    updates: int = 0
    phase: int = 0
    steps: int = 0
    queue: tuple[Example, ...] = ()
    position: int = 0
    imitations: int = 0
    buffer: tuple[Example, ...] = ()
    solved: tuple[Example, ...] = ()
    taught: tuple[int, ...] = ()
    vanilla: int = 0
    correct: int = 0
    rollouts: int = 0
    tokens: int = 0
    imitation_steps: int = 0
    flat_groups: int = 0
    unrewarded: int = 0
    unsolved: int = 0
    untaught: int = 0

    @property
    def success_rate(self) -> float:
        """s: mean success of the answers without hints so far; 0 before the first."""
        return self.correct / self.vanilla if self.vanilla else 0.0

    def next_phase(self) -> "Progress":
        """The beginning of the next part of the run; the counts of this one stay until its first update."""
        return replace(self, phase=self.phase + 1, steps=0)


def begin_imitation(progress: Progress, examples: Sequence[Example]) -> Progress:
    """The beginning of an imitation phase.

    Raises:
        InputError: there is nothing to imitate.
    """
    if not examples:
        raise InputError(
            "an imitation phase has no examples: no record has an answer or a trace; give records with answers"
        )
    return replace(progress, queue=tuple(examples), position=0, imitations=progress.imitations + 1)


def rehearsed(progress: Progress, how: str, ratio: float, rng: np.random.Generator) -> tuple[Example, ...]:
    """The imitation buffer, and what is rehearsed with it.

    Args:
        how: "none"; "solved" (correct answers of the policy itself) or "traces" (that were asked for earlier).
        ratio: examples that are rehearsed for each one in the buffer, if there are as many.
        rng: draws them without repetition.
    """
    fresh = progress.buffer
    if how == "none":
        return fresh
    new = {one.record for one in fresh}
    known = progress.solved if how == "solved" else tuple(Example(n) for n in progress.taught if n not in new)
    number = min(round(ratio * len(fresh)), len(known))
    return (*fresh, *(known[i] for i in rng.choice(len(known), number, replace=False))) if number else fresh


def hint_length(num_sentences: int, success_rate: float) -> int:
    """Sentences of a hint: min(n - 1, ceil((1 - s) (n - 1))), so never the whole trace.

    The paper's strategy "Estimate" makes the length a function of s, the mean success over all samples, and does not
    print it; this one is ours.
    """
    most = max(num_sentences - 1, 0)
    return min(most, math.ceil((1 - success_rate) * most))


def hint_of(answer: str, success_rate: float) -> str:
    """The first sentences of a trace, never its JSON; "" for a trace of one sentence.

    Args:
        answer: trace and JSON.
        success_rate: s, in [0, 1].

    Raises:
        InputError: the answer ends with no JSON, or its trace holds the JSON already: the hint would tell the answer.
    """
    trace = trace_of(answer)
    if trace == answer:
        raise InputError(f"a trace that does not end with JSON: {answer[-80:]!r}; end it with the JSON of its answer")
    spans = split_sentences(trace)
    number = hint_length(len(spans), success_rate)
    hint = trace[: spans[number - 1][1]] if number else ""
    if "{" in hint:
        raise InputError(f"a hint that holds JSON: {hint[-80:]!r}; keep the JSON of an answer at its end only")
    return hint
