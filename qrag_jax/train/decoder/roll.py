"""Rollouts: groups of answers of a policy to prompts, with rewards, and the rows that GRPO learns from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from qrag_jax.chunking.tree.level_ranges import NAMES
from qrag_jax.data.plan_tasks import with_hint
from qrag_jax.sharding import place, replicated, split_rows
from qrag_jax.train.decoder.config import DecoderRun, RolloutConfig
from qrag_jax.train.decoder.data import DecoderTask, Record, Texts, place_of
from qrag_jax.train.decoder.learner import Drawn, Learner, answer_seeds
from qrag_jax.train.decoder.losses import group_advantages, soft_overlong, token_weights
from qrag_jax.train.decoder.packing import pad_left
from qrag_jax.train.decoder.rewards import Reward, RewardOptions, WeightedReward, combine
from qrag_jax.types import InputError, Message, TextGenerator, UsageError

_ROUND = 8  # widths of prompts are multiples of it
VANILLA, HINTED, PROBE = range(3)  # kinds of rollouts, each with draws of its own


@dataclass(frozen=True, eq=False)
class Groups:
    """Answers to prompts, a row a prompt.

    Attributes:
        records: numbers of the prompts.
        prompts: ids, padded on the left; `prompt_lengths` of them count.
        tokens, lengths, finished: of the answers, as in `Rollouts`.
        rewards: 0 where `valid` is False: the answer has none.
        correct: right, and within the length limit.
    """

    records: Int[np.ndarray, " n"]
    prompts: Int[np.ndarray, "n prompt"]
    prompt_lengths: Int[np.ndarray, " n"]
    tokens: Int[np.ndarray, "n group answer"]
    lengths: Int[np.ndarray, "n group"]
    finished: Bool[np.ndarray, "n group"]
    rewards: Float[np.ndarray, "n group"]
    valid: Bool[np.ndarray, "n group"]
    correct: Bool[np.ndarray, "n group"]

    @property
    def solved(self) -> Bool[np.ndarray, " n"]:
        """Prompts with a correct answer."""
        return np.any(self.correct, axis=1)

    def put(self, places: Sequence[int], others: "Groups", chosen: Sequence[int]) -> "Groups":
        """These groups with chosen ones of others in the given places; prompts get the width of the longer ones.

        `correct` stays: it tells of the answers without hints.
        """
        width = max(self.prompts.shape[1], others.prompts.shape[1])
        parts = {}
        for name in ("prompts", "prompt_lengths", "tokens", "lengths", "finished", "rewards", "valid"):
            own, new = getattr(self, name).copy(), getattr(others, name)
            if name == "prompts":
                own, new = (np.pad(x, ((0, 0), (width - x.shape[1], 0))) for x in (own, new))
            own[list(places)] = new[list(chosen)]
            parts[name] = own
        return replace(self, **parts)


class Actor:
    """Draws answers of a policy and scores them.

    Attributes:
        width: tokens of a prompt without a hint; `hinted_width` with one.
    """

    def __init__(
        self,
        config: DecoderRun,
        task: DecoderTask,
        texts: Texts,
        learner: Learner,
        mesh: Mesh,
        generator: TextGenerator | None = None,
        rewards: Mapping[str, Reward] | None = None,
    ) -> None:
        """Args:
        generator: of rewards that ask a language model.
        rewards: of the caller, by name.

        Raises:
            UsageError: prompts and answers do not fit the decoder's window (`check_window`).
        """
        self.config, self.task, self._texts, self._learner, self._mesh = config, task, texts, learner, mesh
        own = config.rollout
        self._prompts = {
            name: [texts.prompt(one["messages"]) for one in records]
            for name, records in (("train", task.train), ("eval", task.evaluation))
        }
        longest = max((len(ids) for own in self._prompts.values() for ids in own), default=0)
        self.width = rounded(longest)
        self.hinted_width = rounded(longest + (own.max_tokens if own.hint_tokens is None else own.hint_tokens))
        self._reward = make_reward(own, task.names, texts, generator, rewards)

    def prompt_ids(self, record: int) -> list[int]:
        """Tokens of a prompt of the training records, without a hint."""
        return self._prompts["train"][record]

    def roll(
        self, policy: tuple[Any, Any], records: Sequence[int], step: int, kind: int, hints: Sequence[str] | None = None
    ) -> Groups:
        """G answers to each prompt.

        Args:
            policy: (trained, other parameters).
            records: numbers of training records, at most as many as a step has prompts.
            step: of the run; with `kind`, the place in `records` and the run's seed it fixes every draw.
            hints: of the prompts.
        """
        own = self.config.rollout
        rows = [self.task.train[number] for number in records]
        asked = [one["messages"] for one in rows]
        if hints is not None:
            asked = [with_hint(one, hint) if hint else one for one, hint in zip(asked, hints, strict=True)]
        width = self.width if hints is None else self.hinted_width
        ids = [self.prompt_ids(n) for n in records] if hints is None else [self._texts.prompt(one) for one in asked]
        for number, row, one in zip(records, rows, ids, strict=True):
            if len(one) > width:
                raise InputError(
                    f"{place_of(row, number)}: its prompt with the hint has {len(one):,} tokens, and there is room for "
                    f"{width:,}: raise rollout.hint_tokens, or give a shorter trace"
                )
        seeds = np.asarray(answer_seeds(self.config.seed, step, kind, own.prompts, own.group))
        size = max(1, own.prompts // 4) if kind == HINTED else own.prompts
        drawn = self._draw(self._learner.draw, policy, ids, width, seeds, size)
        groups = self._scored(np.asarray(records), rows, asked, ids, width, drawn)
        if not groups.valid.any():
            raise InputError(
                f"none of {groups.valid.size} answers has a reward: one of {', '.join(own.rewards)} gave None for each"
            )
        return groups

    def evaluate(self, policy: tuple[Any, Any]) -> Groups:
        """One greedy answer to each evaluation prompt."""
        rows, own = self.task.evaluation, self.config.rollout
        seeds = np.zeros((len(rows), 1), np.uint32)
        ids, size = self._prompts["eval"], min(len(rows), own.prompts * own.group)
        drawn = self._draw(self._learner.draw_greedy, policy, ids, self.width, seeds, size)
        return self._scored(np.arange(len(rows)), rows, [one["messages"] for one in rows], ids, self.width, drawn)

    def _draw(
        self, draw: Callable, policy: tuple[Any, Any], ids: Sequence[Sequence[int]], width: int, seeds: Any, size: int
    ) -> tuple[np.ndarray, ...]:
        """(tokens, lengths, finished), `size` prompts at a time, so that every call has one shape."""
        found = []
        with jax.set_mesh(self._mesh):
            for first in range(0, len(ids), size):
                part = ids[first : first + size]
                full = [*part, *[part[-1]] * (size - len(part))]
                own = np.resize(seeds[first : first + size], (size, seeds.shape[1]))
                batch = place((*pad_left(full, width), own), self._sharding(size))
                drawn = jax.device_get(draw(*policy, *batch))
                found.append([x[: len(part)] for x in (drawn.tokens, drawn.lengths, drawn.finished)])
        return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))

    def _sharding(self, rows: int) -> Any:
        devices = self._mesh.shape["data"] * self._mesh.shape["fsdp"]
        return replicated(self._mesh) if rows % devices else split_rows(self._mesh)

    def _scored(
        self,
        numbers: np.ndarray,
        rows: Sequence[Record],
        asked: Sequence[Sequence[Mapping[str, str]]],
        ids: Sequence[Sequence[int]],
        width: int,
        drawn: tuple[np.ndarray, ...],
    ) -> Groups:
        tokens, lengths, finished = drawn
        own, group = self.config.rollout, tokens.shape[1]
        decode = self._texts.decode
        both = zip(tokens.reshape(lengths.size, -1), lengths.ravel(), strict=True)
        answers = [decode(answer[:length]) for answer, length in both]
        turns = [[Message(one["role"], one["content"]) for one in messages] for messages in asked]  # type: ignore
        prompts, records = [one for one in turns for _ in range(group)], [one for one in rows for _ in range(group)]
        scored = self._reward.score(prompts, answers, records)
        values = np.array([np.nan if one is None else one for one in scored.values]).reshape(lengths.shape)
        right = np.array([one == 1 for one in scored.parts[own.solved_by]]).reshape(lengths.shape)
        values = values + soft_overlong(lengths, own.max_tokens, own.overlong_margin)
        valid, (padded, sizes) = ~np.isnan(values), pad_left(ids, width)
        rewards = np.where(valid, values, 0.0)
        return Groups(numbers, padded, sizes, tokens, lengths, finished, rewards, valid, right & finished)


def make_reward(
    config: RolloutConfig,
    names: tuple[str, ...],
    texts: Texts,
    generator: TextGenerator | None,
    own: Mapping[str, Reward] | None,
) -> WeightedReward:
    """The weighted rewards of a run; the one that says what is correct is among them, if need be without weight."""
    options = RewardOptions(
        max_trace=config.max_trace,
        count=lambda text: len(texts.tokenizer.encode(text, special=False)),
        generator=generator,
        names=names or NAMES,
    )
    return combine({config.solved_by: 0.0, **config.rewards}, options, own)


def check_window(actor: Actor, window: int, hints: bool) -> None:
    """Refuses prompts that leave no room for an answer."""
    own = actor.config.rollout
    width = actor.hinted_width if hints else actor.width
    if width + own.max_tokens > window:
        raise UsageError(
            f"the longest prompt has {width:,} tokens{' with its hint' if hints else ''}, an answer up to "
            f"{own.max_tokens:,}, and the decoder's window is {window:,}: give shorter prompts, or lower "
            "rollout.max_tokens or rollout.hint_tokens"
        )


def grpo_batches(groups: Groups, used: Bool[np.ndarray, " n"], config: RolloutConfig) -> Iterator[tuple[Drawn, int]]:
    """The mini-batches of a step, each with its number of groups of equal rewards.

    Args:
        used: groups to learn from; a mini-batch without any is left out.
    """
    valid = groups.valid & used[:, None]
    advantages, flat = group_advantages(
        groups.rewards, valid, ddof=config.ddof, epsilon=config.epsilon, scales=config.scales
    )
    counted = valid & groups.finished if config.overlong == "mask" else valid
    within = np.arange(groups.tokens.shape[2]) < groups.lengths[..., None]
    learned = within & counted[..., None]
    size = len(used) // config.mini_batches
    for first in range(0, len(used), size):
        part = slice(first, first + size)
        weights = token_weights(learned[part].reshape(-1, learned.shape[2]), config.mean, config.max_tokens)
        if weights.any():
            batch = Drawn(
                groups.prompts[part],
                groups.prompt_lengths[part],
                groups.tokens[part],
                weights.reshape(learned[part].shape),
                advantages[part].astype(np.float32),
            )
            yield batch, int((flat & used)[part].sum())


def rounded(length: int) -> int:
    """A width of that many tokens or a few more: fewer widths are compiled."""
    return -(-length // _ROUND) * _ROUND
