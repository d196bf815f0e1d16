"""Training data of a decoder: prompts with labels, traces on demand, start examples; and texts as tokens."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.chunking.tree.level_ranges import NAMES
from qrag_jax.chunking.tree.plan_texts import parse_plans
from qrag_jax.data.corpora.stitch import named_rng
from qrag_jax.data.dataset_rows import must_be
from qrag_jax.data.plan_tasks import PlanTask
from qrag_jax.files.text_files import read_json_lines
from qrag_jax.llm.prompts import PromptTemplate
from qrag_jax.models.chat.render import ROLES, render_chat
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.train.decoder.config import DecoderRun
from qrag_jax.train.decoder.stitch import hint_of
from qrag_jax.types import InputError, Message

Record = Mapping[str, Any]
_WHERE = "where"  # field of a record of a file: file:line
_EXPECTED = 'lines {"messages": [{"role", "content"}, ...]}, optional "answer", "label"'


@dataclass(frozen=True, eq=False)
class DecoderTask:
    """Records of a task.

    Attributes:
        train: prompts to draw.
        evaluation: prompts to score; each has a `weight` in the accuracy and in its mean over kinds, `macro`.
        start: chats of the start policy.
        trace: a record -> the teacher's answer; None if there is none. The same record gets the same answer.
        sha256: of all records.
        tokenizer: of a new decoder; None where a decoder brings its own.
        names: of the levels of plans; () where there are no plans.
        template: of the prompts; None is the built-in one.
    """

    train: Sequence[Record]
    evaluation: Sequence[Record]
    start: Sequence[Record]
    trace: Callable[[Record], str | None]
    sha256: str
    tokenizer: DecoderTokenizer | None = None
    names: tuple[str, ...] = ()
    template: PromptTemplate | None = None


def load_task(config: DecoderRun) -> DecoderTask:
    """The task of a run.

    Raises:
        UsageError: a file is missing.
        InputError: a line is no record; the message names file, line and field.
    """
    data = config.data
    if data.task == "jsonl":
        train = [one for path in data.paths for one in read_records(path, data.levels)]
        evaluation = _weighted([one for path in data.eval_paths for one in read_records(path, data.levels)])
        if evaluation and not sum(one["weight"] for one in evaluation):
            raise InputError("every weight is 0; give one record a weight", file=data.eval_paths[0], field="weight")
        if config.method == "stitch" and config.rollout.hints:
            for record in train:
                _check_hint(record)
        digest = _digest(train, evaluation)
        return DecoderTask(train, evaluation, (), lambda record: record["answer"], digest, names=data.levels)
    seed = config.seed if data.seed is None else data.seed
    task = PlanTask(data.controlled, seed)
    train, evaluation = task.records("train"), task.records("eval")
    chats = task.start_examples(named_rng(seed, "start examples"), config.start.examples)
    start = [_split_chat(chat) for chat in chats]
    digest = _digest(train, evaluation, start)
    template = PromptTemplate("controlled", "", "$question")
    return DecoderTask(train, evaluation, start, task.trace, digest, task.tokenizer(), tuple(task.names), template)


def read_records(path: str | Path, levels: Sequence[str] = ()) -> list[Record]:
    """Records of a JSON Lines file: planning records, or chats whose last message is the answer.

    Args:
        levels: of the plans that all answers are; () where they are none.

    Raises:
        InputError: a field is of another kind, or an answer is no plan; the message names file, line and field.
    """
    records = []
    for where, row in read_json_lines(Path(path), _EXPECTED):
        messages = row.get("messages")
        if not isinstance(messages, list) or not messages:
            raise must_be(where, "messages", "a list of messages, at least one", messages)
        for place, one in enumerate(messages):
            is_turn = isinstance(one, dict) and one.get("role") in ROLES and isinstance(one.get("content"), str)
            if not is_turn:
                raise must_be(where, f"messages[{place}]", "a role and a content", one)
        record = _split_chat(row) if messages[-1]["role"] == "assistant" else {"answer": None, **row}
        if not record["messages"]:
            raise must_be(where, "messages", "a message before the answer", messages)
        if record["answer"] is not None and not isinstance(record["answer"], str):
            raise must_be(where, "answer", "a text or null", record["answer"])
        _check_fields(record, where, levels)
        records.append({**record, _WHERE: where})
    return records


def _check_fields(record: Record, where: str, levels: Sequence[str]) -> None:
    """Refuses what a reward or a score would stumble over in the middle of a run."""
    names = record.get("names", levels or NAMES)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise must_be(where, "names", "a list of texts", names)
    label = record.get("label")
    pairs = label if isinstance(label, list) and label and isinstance(label[0], list) else [label]
    if label is not None and not all(_is_range(pair, len(names)) for pair in pairs):
        wanted = f"[least, most] with 0 <= least <= most <= {len(names) - 1}, a list of such pairs, or null"
        raise must_be(where, "label", wanted, label)
    for field in ("weight", "macro"):
        value = record.get(field, 0.0)
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise must_be(where, field, "a number of at least 0", value)
    for field in ("recalls", "costs", "contexts"):
        if not isinstance(record.get(field), dict | None):
            raise must_be(where, field, "a table of ranges, or null", record[field])
    if levels and record["answer"] is not None:
        try:
            parse_plans(record["answer"], names)
        except InputError as error:
            raise InputError(f"answer {record['answer']!r:.80}: {error}", file=where) from error


def _is_range(pair: object, size: int) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and all(type(end) is int for end in pair)
        and 0 <= pair[0] <= pair[1] < size
    )


def _check_hint(record: Record) -> None:
    """Refuses an answer whose longest hint would tell its JSON."""
    if record["answer"] is not None:
        try:
            hint_of(record["answer"], 0.0)
        except InputError as error:
            raise error.at(record[_WHERE]) from error


def place_of(record: Record, number: int) -> str:
    """`file:line` of a record, or its number where it is of no file."""
    return record.get(_WHERE, f"record {number}")


def _split_chat(chat: Record) -> dict[str, Any]:
    *messages, last = chat["messages"]
    return {**chat, "messages": messages, "answer": last["content"]}


def _weighted(records: Sequence[Record]) -> list[Record]:
    """Records with equal weights, those of a `kind` sharing one part of the mean over kinds."""
    sizes = Counter(str(one.get("kind")) for one in records)
    return [
        {"weight": 1 / len(records), "macro": 1 / (len(sizes) * sizes[str(one.get("kind"))]), **one} for one in records
    ]


def _digest(*parts: Sequence[Record]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}\n".encode())
        for record in part:
            own = {name: value for name, value in record.items() if name != _WHERE}
            digest.update(json.dumps(own, sort_keys=True).encode())
    return digest.hexdigest()


class Texts:
    """Conversations and answers as token ids of one decoder."""

    def __init__(self, tokenizer: DecoderTokenizer) -> None:
        """Raises an InputError if the tokenizer has no chat template, or no token that ends an answer."""
        if tokenizer.chat_template is None or not tokenizer.eos_ids:
            lacking = "chat template" if tokenizer.chat_template is None else "token that ends an answer"
            raise InputError(f"this model has no {lacking}; train one that was made for conversations")
        self.tokenizer, self._template = tokenizer, tokenizer.chat_template
        self.end_ids = tuple(sorted(tokenizer.eos_ids))
        ends = tokenizer.encode(tokenizer.eos_token, special=True) if tokenizer.eos_token else []
        self._end = ends[0] if len(ends) == 1 and ends[0] in tokenizer.eos_ids else self.end_ids[0]

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation up to the opening of the decoder's turn."""
        own = self.tokenizer
        turns = [Message(one["role"], one["content"]) for one in messages]  # type: ignore[arg-type]
        text = render_chat(
            self._template,
            turns,
            own.special_tokens,
            other_tokens=own.other_tokens,
            bos_token=own.bos_token,
            eos_token=own.eos_token,
        )
        return own.encode(text, special=True)

    def answer(self, text: str) -> list[int]:
        """An answer and the token that ends it."""
        return [*self.tokenizer.encode(text, special=False), self._end]

    def decode(self, tokens: np.ndarray) -> str:
        """The text of a drawn answer."""
        return self.tokenizer.decode(tokens.tolist())
