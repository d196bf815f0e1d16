"""Answers of a language model on disk, by prompt: a study that goes on does not pay for them twice."""

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from qrag_jax.eval.study.cell_store import sealed, unsealed
from qrag_jax.types import Generation, InputError, Message, Sampling, TextGenerator
from qrag_jax.whole_file import write_whole

_PROMPTS_AT_A_TIME = 32  # answers that a killed run loses at most


class KeptGenerator:
    """A language model whose answers are kept in a file, so that a study that goes on does not pay for them twice.

    Failed calls are not kept: they are tried again when the study is run again.
    """

    def __init__(self, generator: TextGenerator, path: Path) -> None:
        """Wraps a model; `path` is made when something is kept."""
        self._generator, self._path = generator, path

    def generate(self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling) -> Sequence[Generation]:
        """Answers every prompt, in order; the model is asked for those that it has not answered before.

        Raises:
            InputError: the model gives another number of answers than it was asked for.
        """
        known = self._read()
        keys = [_prompt_key(prompt, sampling) for prompt in prompts]
        answers: dict[int, Generation] = {place: known[key] for place, key in enumerate(keys) if key in known}
        waiting = [place for place in range(len(prompts)) if place not in answers]
        for start in range(0, len(waiting), _PROMPTS_AT_A_TIME):
            places = waiting[start : start + _PROMPTS_AT_A_TIME]
            found = self._generator.generate([prompts[place] for place in places], sampling=sampling)
            if len(found) != len(places):
                raise InputError(f"generator: {len(found)} answers to {len(places)} prompts: mend the generator")
            answers |= dict(zip(places, found, strict=True))
            known |= {keys[place]: answers[place] for place in places if answers[place].error is None}
            write_whole(self._path, sealed({key: asdict(answer) for key, answer in known.items()}))
        return [answers[place] for place in range(len(prompts))]

    def _read(self) -> dict[str, Generation]:
        if not self._path.is_file():
            return {}
        try:
            return {key: Generation(**value) for key, value in unsealed(self._path.read_bytes()).items()}
        except (InputError, TypeError) as error:
            warnings.warn(
                f"{self._path}: damaged ({error}); its answers are asked for again", UserWarning, stacklevel=2
            )
            return {}


def _prompt_key(prompt: Sequence[Message], sampling: Sampling) -> str:
    content = json.dumps([[asdict(message) for message in prompt], asdict(sampling)])
    return hashlib.sha256(content.encode()).hexdigest()
