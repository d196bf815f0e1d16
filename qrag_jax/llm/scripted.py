"""A language model that answers from a script, for tests, demonstrations and dry runs."""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from qrag_jax.files.reading import read_limited
from qrag_jax.files.text_files import json_value, numbered_lines
from qrag_jax.llm.thinking import answer_of
from qrag_jax.models.grammar.compile import compile_grammar
from qrag_jax.types import Finished, Generation, Grammar, InputError, Message, Sampling, UsageError

Reply = str | Generation
Script = Callable[[Sequence[Message]], Reply] | Mapping[str, Reply] | Sequence[Reply]

_LINES = (
    'lines {"answer": TEXT} or {"error": TEXT}, optional "match" (a text that the last message must contain) and '
    '"finish_reason"'
)
_FIELDS = frozenset({"match", "answer", "error", "finish_reason"})


class ScriptedGenerator:
    """Answers from a script. Tokens are words; `max_tokens` and `stop` cut an answer as a model would.

    Attributes:
        model: its name.
        asked: all prompts so far, in order.
    """

    def __init__(self, script: Script, *, model: str = "scripted", delay: float = 0.0) -> None:
        """Makes a model from a script.

        Args:
            script: a function of the messages; or a mapping from the last message to the reply; or replies in order,
                over all batches. A reply is the answer, or a complete `Generation`, which is not cut and may be a
                failure. A call without a reply fails.
            model: its name. Another script needs another name if answers are cached by name.
            delay: seconds that every call takes.

        Raises:
            UsageError: a negative delay.
        """
        if not 0 <= delay < float("inf"):
            raise UsageError(f"delay {delay}: must be a finite number of seconds, 0 or more")
        self._script, self.model, self._delay = script, model, delay
        self.asked: list[tuple[Message, ...]] = []

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> list[Generation]:
        """Answers every prompt, one after the other.

        A reply that breaks a grammar is a failed call; its error names the reply, the grammar and the place.

        Raises:
            UsageError: a grammar that cannot be read, allows nothing or is too large.
        """
        generations = []
        for place, prompt in enumerate(prompts):
            number = len(self.asked)
            self.asked.append(tuple(prompt))
            time.sleep(self._delay)
            reply = self._reply(prompt, number)
            generation = reply if isinstance(reply, Generation) else _cut(reply, prompt, sampling)
            if sampling.grammar is not None:
                generation = _held_to(sampling.grammar, generation)
            elif not isinstance(reply, Generation):
                generation = answer_of(generation)
            generations.append(generation)
            if finished is not None:
                finished(place, generation)
        return generations

    def _reply(self, prompt: Sequence[Message], number: int) -> Reply:
        script = self._script
        if isinstance(script, Mapping):
            last = prompt[-1].content if prompt else ""
            return script.get(last, failed("the script has no answer to this message"))
        if isinstance(script, Sequence):
            return script[number] if number < len(script) else failed(f"the script ends after {len(script)} answers")
        return script(prompt)


def failed(reason: str) -> Generation:
    """A failed call."""
    return Generation("", "error", error=reason)


def load_script(path: str | Path, *, delay: float = 0.0) -> ScriptedGenerator:
    """Reads a script: the first line that matches a prompt answers it.

        {"match": "capital of Austria", "answer": "Vienna [1]."}
        {"match": "broken", "error": "the server is down"}
        {"answer": "It was not found."}

    A line matches if the last message contains the text `match`; a line without `match` always matches. The model's
    name contains the hash of the file.

    Raises:
        UsageError: the file does not exist.
        InputError: it cannot be read, or a line is wrong; the message names `file:line` and the field.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"no such file; expected {_LINES}", file=path)
    try:
        content = read_limited(path)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as UTF-8 text ({error})", file=path) from error
    lines = list(_lines(path, text))
    if not lines:
        raise InputError(f"empty file; expected {_LINES}", file=path)

    def reply(prompt: Sequence[Message]) -> Reply:
        last = prompt[-1].content if prompt else ""
        found = (answer for match, answer in lines if match in last)
        return next(found, failed(f"{path}: no line matches this prompt"))

    return ScriptedGenerator(reply, model=f"scripted:{hashlib.sha256(content).hexdigest()}", delay=delay)


def _lines(path: Path, text: str) -> Iterator[tuple[str, Reply]]:
    for number, line in numbered_lines(text):
        where = f"{path}:{number}"
        row = json_value(line, where, _LINES)
        if not isinstance(row, dict) or not row.keys() <= _FIELDS or ("answer" in row) == ("error" in row):
            raise InputError(f"expected {_LINES}", file=where)
        for name, value in row.items():
            if not isinstance(value, str):
                raise InputError(f"{name} must be a text, got {type(value).__name__}", file=where)
        yield row.get("match", ""), _row_reply(row, where)


def _row_reply(row: Mapping[str, str], where: str) -> Reply:
    if "error" in row:
        if not row["error"] or "finish_reason" in row:
            raise InputError("error must be a text that is not empty, without finish_reason", file=where)
        return failed(row["error"])
    if "finish_reason" not in row:
        return row["answer"]
    if row["finish_reason"] == "error":
        raise InputError(f'{where}: finish_reason "error" needs the field "error", not "answer"')
    return answer_of(Generation(row["answer"], row["finish_reason"], completion_tokens=_num_words(row["answer"])))


def _held_to(grammar: Grammar, generation: Generation) -> Generation:
    """The reply, or a failed call if it breaks the grammar. A cut reply may be the beginning of a valid one."""
    if generation.error is not None:
        return generation
    text, is_cut = generation.text, generation.finish_reason == "length"
    place = compile_grammar(grammar).fault(text)
    if place is None or (is_cut and place == len(text)):
        return generation
    what = "ends too early" if place == len(text) else f"has {text[place]!r}"
    return failed(f"the reply {text!r:.80} breaks the grammar {str(grammar):.200}: it {what} at character {place}")


def _cut(text: str, prompt: Sequence[Message], sampling: Sampling) -> Generation:
    ends = [text.index(stop) for stop in sampling.stop if stop in text]
    text = text[: min(ends)] if ends else text
    words = list(re.finditer(r"\S+", text))
    is_cut = len(words) > sampling.max_tokens
    if is_cut:
        text = text[: words[sampling.max_tokens - 1].end()]
    num_prompt = sum(_num_words(message.content) for message in prompt)
    return Generation(text, "length" if is_cut else "stop", num_prompt, min(len(words), sampling.max_tokens))


def _num_words(text: str) -> int:
    return len(text.split())
