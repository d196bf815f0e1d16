"""The updates of a run: one of imitation or one step of rollouts, whichever its explicit state asks for."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from qrag_jax.sharding import place, replicated, split_rows
from qrag_jax.train.decoder.config import DecoderRun, Phase
from qrag_jax.train.decoder.data import DecoderTask, Texts, place_of
from qrag_jax.train.decoder.learner import Batch, Imitated, Learner, LearnerState
from qrag_jax.train.decoder.losses import token_weights
from qrag_jax.train.decoder.packing import fill_rows, pack_rows
from qrag_jax.train.decoder.roll import HINTED, PROBE, VANILLA, Actor, Groups, grpo_batches, rounded
from qrag_jax.train.decoder.stitch import Example, Progress, begin_imitation, hint_of, rehearsed
from qrag_jax.train.optimise import ScheduleConfig, make_schedule
from qrag_jax.types import InputError

_PROMPTS, _ORDER, _REHEARSAL, _SFT = range(4)  # streams of random numbers on the host
Metrics = dict[str, Any]


class RunState(NamedTuple):
    """All that changes: parameters on the device, everything else on the host."""

    learner: LearnerState
    progress: Progress


@dataclass(eq=False)
class Updates:
    """`update(state, batch)` for the trainer; the batch is nothing, since prompts follow from the state.

    Attributes:
        others: parameters that are not trained.
        latest: numbers of the last two updates with their mini-batches, for the file of a bad one.
    """

    config: DecoderRun
    task: DecoderTask
    texts: Texts
    learner: Learner
    actor: Actor
    others: Any
    mesh: Mesh
    latest: deque[tuple[int, list[Batch]]] = field(default_factory=lambda: deque(maxlen=2))
    _pairs: dict[tuple[bool, int], tuple[list[int], list[int]]] = field(default_factory=dict)  # (start?, record)
    _rows: tuple[int, list[list[int]], int] = (-1, [], 0)  # (imitation phase, rows of examples, width)

    def __call__(self, state: RunState, batch: object) -> tuple[RunState, Metrics]:
        """One update."""
        self.latest.append((state.progress.updates + 1, []))
        state = self._entered(state)
        state, metrics = self._imitate(state) if state.progress.queue else self._roll(state)
        progress = replace(state.progress, updates=state.progress.updates + 1)
        while not progress.queue and progress.phase < len(self.config.phases) and self._is_over(progress):
            progress = progress.next_phase()
        return RunState(state.learner, progress), metrics

    def is_done(self, state: RunState) -> bool:
        """True after the last phase."""
        return state.progress.phase == len(self.config.phases)

    def phase(self, progress: Progress) -> Phase:
        """The part of the run that an update is in."""
        return self.config.phases[progress.phase]

    def _is_over(self, progress: Progress) -> bool:
        """True if the phase has no update left: everything is imitated, or no more rollouts may be drawn."""
        own = self.config.rollout
        if self.phase(progress) in ("start", "sft"):
            return progress.steps > 0
        return progress.rollouts + own.prompts * own.group > own.rollouts

    def _rng(self, stream: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, stream, number])

    def _entered(self, state: RunState) -> RunState:
        """At the beginning of a phase a new optimiser, the reference, and for imitation alone its examples."""
        learner, progress = state
        if progress.steps or progress.queue:
            return state
        learner = self.learner.init(learner.params)
        progress = replace(progress, vanilla=0, correct=0, unsolved=0)
        kind = self.phase(progress)
        if kind == "start":
            progress = begin_imitation(progress, [Example(n) for n in range(len(self.task.start))])
        elif kind == "sft":
            progress = self._taught(learner, progress)
        return RunState(learner, replace(progress, steps=int(kind in ("start", "sft"))))

    # --- traces ------------------------------------------------------------------------------------------------------

    def _teach(self, progress: Progress, records: Sequence[int]) -> tuple[Progress, list[int]]:
        """Asks for the traces of records, as far as the limit goes; returns those that have one."""
        most = self.config.imitation.traces
        taught, known = list(progress.taught), {*progress.taught}
        found = []
        for number in records:
            if number in known:
                found.append(number)
            elif (most is None or len(taught) < most) and self.task.trace(self.task.train[number]) is not None:
                self._pair(Example(number), "stitch")  # refuses a trace that is too long, before it is a hint
                taught.append(number)
                known.add(number)
                found.append(number)
        left_out = len(records) - len(found)
        return replace(progress, taught=tuple(taught), untaught=progress.untaught + left_out), found

    def _taught(self, learner: LearnerState, progress: Progress) -> Progress:
        """The examples of SFT: traces of records in random order."""
        order = self._rng(_SFT, progress.phase).permutation(len(self.task.train)).tolist()
        most = self.config.imitation.traces
        if self.config.imitation.only_unsolved:
            progress, order = self._unsolved(learner, progress, order, most or len(order))
        progress, found = self._teach(progress, order[:most])
        return begin_imitation(progress, [Example(number) for number in found])

    def _unsolved(
        self, learner: LearnerState, progress: Progress, order: Sequence[int], most: int
    ) -> tuple[Progress, list[int]]:
        """The first records of which no answer of a group is correct, as far as rollouts go."""
        own, hard = self.config.rollout, []
        for first in range(0, len(order), own.prompts):
            if len(hard) >= most or progress.rollouts + own.prompts * own.group > own.rollouts:
                break
            groups = self.actor.roll((learner.params, self.others), order[first : first + own.prompts], first, PROBE)
            progress = _counted(progress, groups)
            hard += groups.records[~groups.solved].tolist()
        return progress, hard

    def _trace(self, number: int) -> str:
        answer = self.task.trace(self.task.train[number])
        assert answer is not None  # only records that have one are taught
        return answer

    def _pair(self, example: Example, kind: Phase) -> tuple[list[int], Sequence[int]]:
        """(prompt without a hint, answer) of an example."""
        if example.tokens:
            return self.actor.prompt_ids(example.record), example.tokens
        at = (kind == "start", example.record)
        if at not in self._pairs:
            self._pairs[at] = self._encoded(example.record, kind)
        return self._pairs[at]

    def _encoded(self, number: int, kind: Phase) -> tuple[list[int], list[int]]:
        if kind == "start":
            record = self.task.start[number]
            return self.texts.prompt(record["messages"]), self.texts.answer(record["answer"])
        answer, most = self.texts.answer(self._trace(number)), self.config.rollout.max_tokens
        if len(answer) > most and self.config.method != "sft":
            raise InputError(
                f"{place_of(self.task.train[number], number)}: its trace has {len(answer):,} tokens, and an answer at "
                f"most rollout.max_tokens={most:,}: raise it, or give a shorter trace"
            )
        return self.actor.prompt_ids(number), answer

    # --- imitation ---------------------------------------------------------------------------------------------------

    def _imitate(self, state: RunState) -> tuple[RunState, Metrics]:
        """One update of the imitation phase."""
        learner, progress = state
        kind, own = self.phase(progress), self.config.imitation
        rows, width = self._schedule(progress, kind)
        rate = self.config.start.learning_rate
        if kind != "start":
            shape = ScheduleConfig(own.learning_rate, own.final_rate * own.learning_rate, "cosine", own.warmup)
            rate = float(np.asarray(make_schedule(shape, -(-len(rows) // own.batch_rows))(progress.position)))
        first = progress.position * own.batch_rows
        pairs = [[self._pair(progress.queue[n], kind) for n in row] for row in rows[first : first + own.batch_rows]]
        filled = fill_rows(pairs, own.batch_rows, width)
        batch = Imitated(filled.tokens, filled.segments, token_weights(filled.answers, "token"))
        learner, metrics = self._update(learner, batch, rate)
        done = first + own.batch_rows >= len(rows)
        steps = progress.imitation_steps + (kind != "start")
        progress = replace(progress, position=progress.position + 1, imitation_steps=steps)
        if done:
            progress = replace(progress, queue=(), position=0)
            if kind == "stitch" and self.config.rollout.reference == "imitation" and learner.reference:
                learner = replace(learner, reference=jax.tree.map(jnp.copy, learner.params))
        return RunState(learner, progress), metrics

    def _schedule(self, progress: Progress, kind: Phase) -> tuple[list[list[int]], int]:
        """(rows of places in the queue, width) of the whole imitation phase; a function of the state alone.

        All phases of a run with rollouts have one width, so that their update is compiled once.
        """
        if self._rows[0] != progress.imitations:
            own = self.config.imitation
            epochs = self.config.start.epochs if kind == "start" else own.epochs
            rng = self._rng(_ORDER, progress.imitations)
            order = np.concatenate([rng.permutation(len(progress.queue)) for _ in range(epochs)]).tolist()
            lengths = [sum(map(len, self._pair(one, kind))) for one in progress.queue]
            is_alone = kind == "start" or self.config.method == "sft"
            needed = max(lengths) if is_alone else self.actor.width + self.config.rollout.max_tokens
            width = own.width or rounded(needed)
            if max(lengths) > width:
                longest = progress.queue[int(np.argmax(lengths))].record
                record = (self.task.start if kind == "start" else self.task.train)[longest]
                raise InputError(
                    f"{place_of(record, longest)}: prompt and answer have {max(lengths):,} tokens, "
                    f"and a row holds imitation.width={width:,}: raise it"
                )
            packed = pack_rows([lengths[n] for n in order], width)
            self._rows = (progress.imitations, [[order[n] for n in row] for row in packed], width)
        return self._rows[1:]

    # --- rollouts ----------------------------------------------------------------------------------------------------

    def _roll(self, state: RunState) -> tuple[RunState, Metrics]:
        """One step of GRPO or STITCH."""
        learner, progress = state
        own, records = self.config.rollout, self.task.train
        rng = self._rng(_PROMPTS, progress.updates)
        numbers = rng.choice(len(records), own.prompts, replace=len(records) < own.prompts).tolist()
        policy = (learner.params, self.others)
        groups = self.actor.roll(policy, numbers, progress.updates, VANILLA)
        progress = _counted(progress, groups, is_vanilla=True)
        used, metrics = np.ones(own.prompts, bool), _describe(groups)
        if self.phase(progress) == "stitch":
            progress, groups, used = self._help(policy, progress, groups)
            metrics |= {"hinted": float((used & ~groups.solved).sum()), "buffer": float(len(progress.buffer))}
            metrics["success_rate"] = progress.success_rate
        learner, learned, flat = self._learn(learner, progress, groups, used)
        progress = replace(progress, steps=progress.steps + 1, flat_groups=progress.flat_groups + flat)
        return RunState(learner, self._with_queue(progress)), metrics | learned | {"flat": float(flat)}

    def _help(self, policy: tuple[Any, Any], progress: Progress, groups: Groups) -> tuple[Progress, Groups, np.ndarray]:
        """Steps 2 and 3 of Algorithm 2: hints for what is not solved, and the imitation buffer."""
        own, used = self.config.rollout, groups.solved.copy()
        solved = [_right(groups, place) for place in np.flatnonzero(used)]
        keep = 4 * self.config.imitation.buffer
        progress = replace(progress, solved=(*progress.solved, *solved)[-keep:])
        hard = dict.fromkeys(groups.records[~used].tolist())
        progress, taught = self._teach(progress, list(hard))
        buffer = list(progress.buffer)
        room = max(0, own.rollouts - progress.rollouts) // own.group  # prompts that may still be asked with a hint
        asked = taught[:room] if own.hints else []
        if asked:
            hints = [hint_of(self._trace(number), progress.success_rate) for number in asked]
            hinted = self.actor.roll(policy, asked, progress.updates, HINTED, hints)
            progress = _counted(progress, hinted)
            eased = np.flatnonzero(hinted.solved)
            first = {int(groups.records[place]): place for place in reversed(np.flatnonzero(~used).tolist())}
            places = [first[asked[place]] for place in eased]
            groups = groups.put(places, hinted, eased.tolist()) if places else groups
            used[places] = True
            if own.imitate_hinted:
                buffer += [_right(hinted, place) for place in eased]
            taught = [number for number in taught if number not in {asked[place] for place in eased}]
        return replace(progress, buffer=(*buffer, *(Example(number) for number in taught))), groups, used

    def _with_queue(self, progress: Progress) -> Progress:
        """Begins an imitation phase if the buffer is full."""
        own = self.config.imitation
        if not own.from_buffer or len(progress.buffer) < own.buffer or self.phase(progress) != "stitch":
            return progress
        rng = self._rng(_REHEARSAL, progress.updates)
        examples = rehearsed(progress, own.rehearse, own.rehearsal, rng)
        return begin_imitation(replace(progress, buffer=()), examples)

    def _learn(
        self, learner: LearnerState, progress: Progress, groups: Groups, used: np.ndarray
    ) -> tuple[LearnerState, Metrics, int]:
        """The updates of a step, on its mini-batches."""
        own, metrics, equal = self.config.rollout, {}, 0
        batches = list(grpo_batches(groups, used, own))
        if own.mini_batches > 1:  # else the ratio is taken to the policy before the update, which drew the answers
            old = [
                self.learner.logprobs(
                    learner.params, self.others, *self._placed((one.prompts, one.lengths, one.answers))
                )
                for one, _ in batches
            ]
            batches = [(one._replace(old_logprobs=x), flat) for (one, flat), x in zip(batches, old, strict=True)]
        for batch, flat in batches:
            learner, metrics = self._update(learner, batch, own.learning_rate)
            equal += flat
        return learner, metrics, equal

    def _update(self, learner: LearnerState, batch: Batch, rate: float) -> tuple[LearnerState, Metrics]:
        self.latest[-1][1].append(batch)
        return self.learner.update(learner, self.others, self._placed(batch), jnp.float32(rate))

    def _placed(self, batch: Any) -> Any:
        rows, devices = len(jax.tree.leaves(batch)[0]), self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        return place(batch, replicated(self.mesh) if rows % devices else split_rows(self.mesh))


def _counted(progress: Progress, groups: Groups, is_vanilla: bool = False) -> Progress:
    """The counts after some rollouts."""
    counts = {
        "rollouts": groups.lengths.size,
        "tokens": int(groups.lengths.sum()),
        "unrewarded": int((~groups.valid).sum()),
    }
    if is_vanilla:
        counts |= {"vanilla": groups.correct.size, "correct": int(groups.correct.sum())}
        counts["unsolved"] = int((~groups.solved).sum())
    return replace(progress, **{name: getattr(progress, name) + number for name, number in counts.items()})


def _right(groups: Groups, place: np.intp) -> Example:
    """The first correct answer of a group, to imitate without a hint."""
    which = int(groups.correct[place].argmax())
    tokens = groups.tokens[place, which, : groups.lengths[place, which]]
    return Example(int(groups.records[place]), tuple(tokens.tolist()))


def _describe(groups: Groups) -> Metrics:
    kept = groups.valid.sum()
    return {
        "reward": float(groups.rewards.sum() / max(kept, 1)),
        "correct": float(groups.correct.mean()),
        "solve_none": float(1 - groups.solved.mean()),
        "finished": float(groups.finished.mean()),
        "length": float(groups.lengths.mean()),
    }
