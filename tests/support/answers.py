"""Answers, rows and records for tests of evaluation."""

import dataclasses
import re
from dataclasses import replace

import numpy as np

from qrag_jax.eval.answers.answer_rows import make_readings
from qrag_jax.eval.answers.records import AnswerRecord
from qrag_jax.eval.retrieval import harness
from qrag_jax.eval.retrieval.records import QueryRecord
from qrag_jax.eval.setting import Setting
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.qrag.tasks import examples_task
from qrag_jax.types import Example

CHUNKS = ("Ada went to Rome.", "It rained.", "Ben went to Oslo.", "Cy is at home.")
EXAMPLES = [
    Example("q0", "Where is Ada?", CHUNKS, (0,), "Rome"),
    Example("q1", "Where is Ben?", CHUNKS, (2,), "Oslo"),
    Example("q2", "Where is Cy?", CHUNKS, (3,), "home"),
]
_PASSAGE = re.compile(r"<(passage-[0-9a-f]{8})>\n(.*?)\n</\1>", re.DOTALL)


def make_task(examples=EXAMPLES, answers=None):
    return examples_task("tiny", examples, answers=answers)


def make_record(query, chosen, method="trained", protocol="fixed", beam_width=1, texts=True):
    """What a method chose for a question of `EXAMPLES`, in order of retrieval."""
    example = EXAMPLES[query]
    return QueryRecord(
        query_id=example.query_id,
        question=example.question,
        setting=Setting(
            method=method,
            mode="text",
            positions="none",
            protocol=protocol,
            beam_width=beam_width,
            seed=0,
            num_chunks=4,
        ),
        chosen=tuple(chosen),
        q_values=tuple(np.arange(len(chosen), 0.0, -1.0).tolist()),
        gold=example.gold,
        fact_em=float(set(example.gold) <= set(chosen)),
        fact_f1=2 * len(set(example.gold) & set(chosen)) / (len(example.gold) + len(chosen)),
        texts=tuple(CHUNKS[place] for place in chosen) if texts else None,
    )


def passages_of(prompt):
    return [text for _, text in _PASSAGE.findall(prompt[-1].content)]


def make_reader(reply=None, model="reader"):
    """Answers with the last word of the first passage that holds a name of the question, else `unknown`."""

    def read(prompt):
        name = re.search(r"Question: Where is (\w+)\?", prompt[-1].content)[1]
        found = [text for text in passages_of(prompt) if name in text]
        answer = found[0].split()[-1].strip(".") if found else "unknown"
        return answer if reply is None else reply(name, answer)

    return ScriptedGenerator(read, model=model)


# Of the trained method's chunks two answers can be read, of BM25's one.
TRAINED = [make_record(0, (3, 0)), make_record(1, (2, 1)), make_record(2, (1, 0))]
BM25 = [make_record(0, (1, 2), "bm25"), make_record(1, (2, 1), "bm25"), make_record(2, (0, 1), "bm25")]
READINGS = make_readings([*TRAINED, *BM25])

ANSWERED = AnswerRecord(
    query_id="q0",
    question="Où ?",
    setting=Setting(method="bm25", mode="none", positions="none", seed=0, num_chunks=10),
    chosen=(1, 4),
    references=("Rome", "Roma"),
    answer="In Rome",
    error=None,
    finish_reason="stop",
    prompt_tokens=40,
    completion_tokens=2,
    scores={"em": 0.0, "f1": 0.5},
    errors={"judge": "down"},
    model="m",
    prompt_sha256="0" * 64,
)
FAILED = replace(
    ANSWERED, query_id="q1", answer=None, error="429", finish_reason="error", scores={}, errors={}, chosen=()
)


LATENT = Setting(method="trained", mode="latent", positions="relative", seed=0, num_chunks=20)
_NAMES = {field.name for field in dataclasses.fields(Setting)}


def replace(record, **changes):
    """`dataclasses.replace`; what is the setting's is changed there."""
    own = {name: changes.pop(name) for name in [*changes] if name in _NAMES and hasattr(record, "setting")}
    if own:
        changes["setting"] = dataclasses.replace(record.setting, **own)
    return dataclasses.replace(record, **changes)


def evaluate(task, pickers, num_steps, labels, num_questions=None, seed=0, report=None, **options):
    """`harness.evaluate` with the fields of `Scoring` as arguments."""
    return harness.evaluate(task, pickers, labels, harness.Scoring(num_steps, num_questions, seed, **options), report)
