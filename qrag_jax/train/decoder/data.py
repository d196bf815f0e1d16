"""Training data of a decoder: prompts with labels, traces on demand, start examples; and texts as tokens."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.data.corpora.stitch import named_rng
from qrag_jax.data.dataset_rows import must_be
from qrag_jax.data.plan_tasks import PlanTask
from qrag_jax.files.text_files import read_json_lines
from qrag_jax.llm.prompts import PromptTemplate
from qrag_jax.models.chat.render import ROLES, render_chat
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.train.decoder.config import DecoderRun
from qrag_jax.types import InputError, Message

Record = Mapping[str, Any]
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
        train = [one for path in data.paths for one in read_records(path)]
        evaluation = _weighted([one for path in data.eval_paths for one in read_records(path)])
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


def read_records(path: str | Path) -> list[Record]:
    """Records of a JSON Lines file: planning records, or chats whose last message is the answer."""
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
        records.append(record)
    return records


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
            digest.update(json.dumps(record, sort_keys=True).encode())
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
