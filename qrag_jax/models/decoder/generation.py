"""Prompts of token ids to answers: prompts read in chunks, then several tokens a call on the device, many rows at once.

A batch has a fixed number of rows and one cache. All rows write the same slot, so a row with a finished answer can
get a new prompt at any time: the prompt is read into a separate cache and moved to the position of the others. At the
last slot, all rows move left by their common padding. Prompts are kept for a while: a later prompt that begins with
the same tokens continues from there (`scheduling.py`).

Shapes are few: the size of the cache, the number of rows and the length of chunks come from short lists
(`scheduling.py`), so nothing is compiled for one prompt.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh

from qrag_jax.models.decoder.causal_lm import ComputeDtype, KVCache, init_cache, join_projections, unstacked
from qrag_jax.models.decoder.constraint import Automata, Constraint, Joined, Where
from qrag_jax.models.decoder.scheduling import (
    CHUNKS,
    Prefixes,
    ReadPrompt,
    cache_size,
    chunk_lengths,
    find_stop,
    group_by_size,
    prompt_hash,
    reading_cost,
    shared_start,
)
from qrag_jax.models.decoder.sharding import decoder_shardings
from qrag_jax.models.decoder.steps import BLOCK, Draws, compiled_steps
from qrag_jax.models.decoder.weights import LoadedDecoder
from qrag_jax.types import Grammar, InputError, Sampling, UsageError

_CACHE_BYTES = 2**31
_PREFIX_BYTES = 2**29


@dataclass(frozen=True)
class Decoded:
    """The answer to one prompt.

    Attributes:
        ids: new tokens, without the one that ended the answer; with those of a stop text, whose last one is the last.
        logprobs: natural logarithms of their probabilities, without temperature and grammar, one each.
        finish_reason: "stop" (an end token or a stop text) or "length".
        text: what `ids` spell, special tokens left out, cut before the stop text.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    text: str


@dataclass
class _Row:
    """One place of a batch: whose prompt it works on, and what it has said."""

    place: int = -1  # of the prompt; -1 is free
    room: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Decoding:
    """A decoder that continues prompts; made by `make_decoder`.

    Attributes:
        window: most tokens of a prompt and its answer together.
        batch_size: most prompts that are worked on at once.
        automata: of the grammars that answers were held to.
    """

    def __init__(
        self,
        loaded: LoadedDecoder,
        batch_size: int,
        window: int,
        compute_dtype: ComputeDtype,
        mesh: Mesh | None,
        cache_bytes: int,
        prefix_bytes: int | None,
    ) -> None:
        """Use `make_decoder`, which checks its arguments."""
        self.window, self.batch_size = window, batch_size
        self._config, self._tokenizer = loaded.config, loaded.tokenizer
        self._dtype: ComputeDtype = compute_dtype
        self._mesh, self._cache_bytes = mesh, cache_bytes
        self._prefix_bytes = prefix_bytes
        self._prefixes = Prefixes(_PREFIX_BYTES if prefix_bytes is None else prefix_bytes)
        # Arguments of what is compiled, not constants: they would be copied into every shape.
        if mesh is None:
            self._params = join_projections(jax.device_put(unstacked(loaded.params)))
        else:
            placed = decoder_shardings(mesh, loaded.config, loaded.params)
            self._params = unstacked(jax.device_put(loaded.params, placed))
        self._ends = loaded.tokenizer.eos_ids
        self.automata = Automata(loaded.tokenizer, loaded.config.vocab_size)
        self._steps = compiled_steps(loaded.config, compute_dtype, tuple(sorted(self._ends)), mesh)

    def generate_ids(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        finished: Callable[[int, Decoded], None] | None = None,
        grammars: Sequence[Grammar | None] | None = None,
    ) -> list[Decoded]:
        """Answers every prompt.

        An answer depends on the model, the prompt and the sampling, seed included: its draws come from a key made of
        seed and prompt alone, so that equal prompts get equal answers. The other prompts of a batch, and those before
        it that begin with the same tokens, change the shapes that it is computed in, and so the rounding of its
        logits, which decides where two tokens are as good as equal.

        Args:
            prompts: token ids; any number, none among them.
            sampling: of all of them. An answer also ends, as "length", where prompt and answer fill the window.
            finished: called with a prompt's place and its answer as soon as that is over, in any order.
            grammars: one a prompt, or None for one that may say anything; left out, `sampling.grammar` is that of all.
        """
        for place, prompt in enumerate(prompts):
            self._check(place, prompt)
        grammars = [sampling.grammar] * len(prompts) if grammars is None else grammars
        if len(grammars) != len(prompts):
            raise UsageError(f"grammars: {len(grammars)} for {len(prompts)} prompts: one a prompt, or None")
        joined = self.automata.joined(grammars)
        answers: dict[int, Decoded] = {}

        def note(place: int, answer: Decoded) -> None:
            answers[place] = answer
            if finished is not None:
                finished(place, answer)

        sizes = [cache_size(len(prompt), self._room(prompt, sampling)) for prompt in prompts]
        self._check_budget(max(sizes, default=0))
        for size, places in group_by_size(sizes, self.batch_size):
            # Neighbours have the longest beginnings in common, and one is read while the other is still kept.
            chosen = sorted(places, key=lambda place: tuple(prompts[place]))
            _Batch(self, size, [(place, prompts[place]) for place in chosen], sampling, joined, note).run()
        return [answers[place] for place in range(len(prompts))]

    @property
    def slot_bytes(self) -> int:
        """Bytes of a cache that one token of a row takes."""
        numbers = 2 * self._config.num_layers * self._config.num_kv_heads * self._config.head_dim
        return numbers * np.dtype(self._dtype).itemsize

    def kept_bytes(self, size: int) -> int:
        """Bytes that a prompt which was read into a cache of `size` slots takes: the cache, and the next logits."""
        return self.slot_bytes * size + np.dtype(np.float32).itemsize * self._config.vocab_size

    def _check_budget(self, size: int) -> None:
        if self._prefix_bytes and self.kept_bytes(size) > self._prefix_bytes:
            raise UsageError(
                f"prefix_bytes {self._prefix_bytes}: a prompt with its answer in {size} slots takes "
                f"{self.kept_bytes(size)}: give as much, or 0, which keeps no prompt"
            )

    def _room(self, prompt: Sequence[int], sampling: Sampling) -> int:
        return min(sampling.max_tokens, self.window - len(prompt))

    def _check(self, place: int, prompt: Sequence[int]) -> None:
        if not len(prompt):
            raise InputError(f"prompt {place}: no tokens; give it a text")
        if len(prompt) >= self.window:
            raise InputError(
                f"prompt {place}: {len(prompt)} tokens leave no room for an answer in the model's window of "
                f"{self.window}: shorten it"
            )
        if min(prompt) < 0 or max(prompt) >= self._config.vocab_size:
            raise InputError(f"prompt {place}: ids must lie in [0, {self._config.vocab_size}), the model's vocabulary")


class _Batch:
    """Prompts of one cache size at work, each in a row; all rows write the same slot."""

    def __init__(
        self,
        decoding: Decoding,
        size: int,
        prompts: Sequence[tuple[int, Sequence[int]]],
        sampling: Sampling,
        joined: Joined | None,
        note: Callable[[int, Decoded], None],
    ) -> None:
        self._of, self._size, self._sampling, self._note = decoding, size, sampling, note
        self._waiting = deque(prompts)
        most = max(1, min(decoding.batch_size, decoding._cache_bytes // (decoding.slot_bytes * size)))
        count = min(1 << (len(prompts) - 1).bit_length(), most)
        self._rows = [_Row() for _ in range(count)]
        self._slot = len(prompts[0][1])
        self._cache = self._empty_cache(count)
        self._pads = np.zeros(count, np.int32)
        self._hashes = np.zeros((count, 2), np.uint32)
        self._draws = Draws.of(sampling)
        self._joined, self._where = joined, np.zeros((count, 3), np.int32)

    def run(self) -> None:
        """Works until every prompt has its answer."""
        while self._waiting or any(row.place >= 0 for row in self._rows):
            for index in range(len(self._rows)):
                while self._waiting and self._rows[index].place < 0:
                    self._join(index)
            if any(row.place >= 0 for row in self._rows):
                self._advance()

    def _empty_cache(self, rows: int) -> KVCache:
        of = self._of
        cache = init_cache(of._config, rows, self._size, of._dtype)
        return cache

    def _join(self, index: int) -> None:
        """Reads the next prompt into a free row and chooses its first token."""
        place, prompt = self._waiting.popleft()
        steps = self._of._steps
        if len(prompt) > self._slot:
            self._move(self._slot - len(prompt))
        read = self._read(prompt)
        self._pads[index] = self._slot - len(prompt)
        self._cache = steps.move_in(self._cache, read.cache, np.int32(index), np.int32(self._pads[index]))
        self._hashes[index] = prompt_hash(prompt, self._sampling.seed)
        row = self._rows[index] = _Row(place, self._of._room(prompt, self._sampling))
        if self._joined is not None:
            self._where[index] = self._joined.begins[place]
        only = slice(index, index + 1)
        counts, rooms = np.zeros(1, np.int32), np.array([row.room], np.int32)
        first = steps.choose(read.logits, self._hashes[only], counts, rooms, self._draws, self._constraint(only))
        tokens, logprobs, where = jax.device_get(first)
        self._follow(only, where)
        self._hear(row, tokens[0], logprobs[0])

    def _read(self, prompt: Sequence[int]) -> ReadPrompt:
        """Reads a prompt, or what no prompt before it has in common with it."""
        steps, prefixes, count = self._of._steps, self._of._prefixes, len(prompt)
        known, shared = prefixes.find(prompt)
        start = shared_start(count, shared, self._size)
        whole = known is not None and shared == count == len(known.tokens)
        if known is None or not (start or whole):
            cache = self._empty_cache(1)
        else:
            prefixes.keep(known)
            cache = steps.resize(known.cache, size=self._size)
            if whole:
                return replace(known, cache=cache)
        chunks, tokens, logits = chunk_lengths(count - start), np.asarray(prompt, np.int32), None
        padded = np.pad(tokens[start:], (0, sum(chunks) - (count - start)), mode="edge")
        for first, length in zip(accumulate(chunks, initial=0), chunks, strict=False):
            last = min(length, count - start - first) - 1
            piece = padded[None, first : first + length]
            logits, cache = steps.read(self._of._params, piece, cache, np.int32(start + first), np.int32(last))
        read = ReadPrompt(tokens, cache, logits, self._of.kept_bytes(self._size))
        if reading_cost(chunks) > reading_cost(CHUNKS[:1]):  # else as quickly read again
            prefixes.keep(read)
        return read

    def _constraint(self, rows: slice) -> Constraint | None:
        """The constraint of these rows; None if no prompt of the call has a grammar."""
        return None if self._joined is None else self._joined.constraint(self._where[rows])

    def _follow(self, rows: slice, where: Where | None) -> None:
        """Notes where the grammars of these rows are."""
        if where is not None:
            self._where[rows] = np.stack([where.automaton, where.state, where.left], axis=1)

    def _advance(self) -> None:
        """Up to `BLOCK` more tokens of every row that works."""
        if self._slot == self._size:
            self._shift()
        live = np.array([row.place >= 0 for row in self._rows])
        self._cache, *told = self._of._steps.decode(
            self._of._params,
            self._cache,
            np.array([row.ids[-1] if row.ids else 0 for row in self._rows], np.int32),
            self._pads,
            self._hashes,
            np.array([len(row.ids) for row in self._rows], np.int32),
            np.array([row.room for row in self._rows], np.int32),
            live,
            np.int32(self._slot),
            np.int32(min(BLOCK, self._size - self._slot)),
            np.bool_(bool(self._waiting)),
            self._draws,
            self._constraint(slice(None)),
        )
        tokens, logprobs, count, where = jax.device_get(told)
        self._follow(slice(None), where)
        self._slot += int(count)
        for index in np.flatnonzero(live):
            self._hear(self._rows[index], tokens[index, :count], logprobs[index, :count])

    def _shift(self) -> None:
        """Moves all rows left. A row without padding has ended: its prompt and answer would fill the cache."""
        self._move(min(int(self._pads[index]) for index, row in enumerate(self._rows) if row.place >= 0))

    def _move(self, amount: int) -> None:
        """Moves all rows left by `amount` slots, or right where it is negative."""
        self._cache = self._of._steps.shift(self._cache, np.int32(amount))
        self._pads = np.maximum(self._pads - amount, 0)
        self._slot -= amount

    def _hear(self, row: _Row, tokens: np.ndarray, logprobs: np.ndarray) -> None:
        """Takes new tokens of a row; ends its answer at an end token, a stop text or its room."""
        heard, ended = len(row.ids), False
        for token, logprob in zip(tokens.tolist(), logprobs.tolist(), strict=True):
            if math.isnan(logprob):
                raise InputError(
                    "the model gives NaN: its weights are damaged, or too large for its dtype (use float32)"
                )
            if ended := token in self._of._ends:
                break
            row.ids.append(token)
            row.logprobs.append(logprob)
            if len(row.ids) == row.room:
                break
        decode = self._of._tokenizer.decode
        found = find_stop(decode, row.ids, heard, self._sampling.stop)
        if found is not None:
            count, text = found
            self._end(row, Decoded(tuple(row.ids[:count]), tuple(row.logprobs[:count]), "stop", text))
        elif ended or len(row.ids) == row.room:
            # A cut may leave the first bytes of a character, which are no text.
            text = decode(row.ids) if ended else decode(row.ids).rstrip("\ufffd")
            self._end(row, Decoded(tuple(row.ids), tuple(row.logprobs), "stop" if ended else "length", text))

    def _end(self, row: _Row, answer: Decoded) -> None:
        place, row.place = row.place, -1
        self._note(place, answer)


def make_decoder(
    loaded: LoadedDecoder,
    *,
    batch_size: int = 8,
    window: int | None = None,
    compute_dtype: ComputeDtype | None = None,
    mesh: Mesh | None = None,
    cache_bytes: int = _CACHE_BYTES,
    prefix_bytes: int | None = None,
) -> Decoding:
    """A decoder that continues prompts.

    Args:
        loaded: the decoder; its parameters are put on the device once, or split over `mesh`.
        batch_size: most prompts that are worked on at once.
        window: most tokens of prompt and answer; None is all that the model has.
        compute_dtype: of matrix products and cache; None is that of the norms, which is that of the parameters.
        mesh: with an axis "model", which the parameters are split over.
        cache_bytes: most memory of a batch's cache; where a batch needs more it has fewer rows, at least one.
        prefix_bytes: most additional memory of kept prompts: a later prompt that begins with the same tokens reads
            only the rest. 0 keeps none; None is 512 MiB; larger prompts are not kept.
    """
    most = loaded.config.max_positions
    window = most if window is None else window
    if batch_size < 1:
        raise UsageError(f"batch_size {batch_size} must be at least 1")
    if not 2 <= window <= most:
        raise UsageError(f"window {window}: choose 2 to {most}, the positions of the model")
    dtype: Any = compute_dtype or str(loaded.params["norm"]["scale"].dtype)
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"compute_dtype {dtype}: float32 or bfloat16")
    if prefix_bytes is not None and prefix_bytes < 0:
        raise UsageError(f"prefix_bytes {prefix_bytes}: at least 0, which keeps no prompt")
    return Decoding(loaded, batch_size, window, dtype, mesh, cache_bytes, prefix_bytes)
