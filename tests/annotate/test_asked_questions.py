import json

import pytest
from support.passages import count as words
from support.scripted_models import blocks_of

from qrag_jax.annotate.ask_chunks import CALL_FAILED, UNREADABLE
from qrag_jax.annotate.asked_questions import (
    KNOWN_ANYWAY,
    NOT_ANSWERED,
    TELLS_ANSWER,
    ask_questions,
)
from qrag_jax.annotate.made_questions import MadeQuestion
from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.types import Document, InputError, Sampling

TEXTS = ("Ann keeps the key in Rome.", "Rome lies on the Tiber.", "The sky is blue.", "Bob sings.", "A cat sleeps.")
DOCUMENTS = [Document(str(i), text) for i, text in enumerate(TEXTS)]
CHUNKS = [make_chunk(document, [(0, len(document.text))], 1, words) for document in DOCUMENTS]
ASKED = {  # by the first passage: question, answer
    TEXTS[0]: ("On which river is Ann's key kept?", "the Tiber"),
    TEXTS[2]: ("Which colour does the blue sky have?", "blue"),
    TEXTS[3]: ("Who sings in the evening here?", "Bob"),
    TEXTS[4]: ("What does the cat do at noon?", "it sleeps"),
}
ANSWERS = {
    "On which": ("Tiber", "I do not know"),
    "Who sings": ("nobody", "nobody"),
    "What does": ("sleeps", "it sleeps"),
}


def script(prompt):
    """Writes the question of the first passage; answers from passages and without them as `ANSWERS` says."""
    blocks = blocks_of(prompt)
    if '{"question"' in prompt[0].content:
        question, answer = ASKED[blocks[0]]
        return json.dumps({"question": question, "answer": answer})
    with_passages, without = next(pair for begin, pair in ANSWERS.items() if f"Question: {begin}" in prompt[-1].content)
    return with_passages if blocks else without


def asked(golds, reply=script):
    return ask_questions(DOCUMENTS, CHUNKS, golds, ScriptedGenerator(reply, model="letters"), sampling=Sampling())


def test_a_question_is_kept_if_its_passages_are_needed_and_enough():
    made = asked([(0, 1), (2,), (3,), (4,), (0, 1)])
    assert made.questions == (MadeQuestion("llm", "On which river is Ann's key kept?", (0, 1)),)
    assert made.left_out == {TELLS_ANSWER: 1, NOT_ANSWERED: 1, KNOWN_ANYWAY: 1}


def test_a_set_of_passages_is_asked_once_and_an_unreadable_question_is_counted():
    made = asked([(0, 1)], lambda prompt: "no json" if '{"question"' in prompt[0].content else script(prompt))
    assert made.questions == () and made.left_out == {UNREADABLE: 1}


def test_a_failed_check_drops_its_question():
    """The answer without passages never comes: nobody knows whether the passages are needed."""

    def reply(prompt):
        is_asked = "Question: On which" in prompt[-1].content
        return failed("the server is down") if is_asked and not blocks_of(prompt) else script(prompt)

    made = asked([(0, 1), (4,)], reply)
    assert made.questions == () and made.left_out == {CALL_FAILED: 1, KNOWN_ANYWAY: 1}
    with pytest.raises(InputError, match="answers from nothing: all 1 calls of the language model failed"):
        asked([(0, 1)], reply)
