"""Questions with gold chunks by a language model, each checked by answering it with its passages and without any.

    passages -> question and answer -> answer from the passages: right -> answer from nothing: wrong -> kept

A question that anybody answers without reading says nothing about a search, and one that its own passages do not answer
is wrong.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from qrag_jax.annotate.ask_chunks import Desk, Form, FreeForm, Progressed, chunk_texts
from qrag_jax.annotate.made_questions import Made, MadeQuestion
from qrag_jax.chunking.text.proper_names import UNSPACED
from qrag_jax.llm.json_answers import Record, Text
from qrag_jax.llm.prompts import fence, load_prompt, passages_prompt
from qrag_jax.measures.answer_scores import normalise_answer, token_f1
from qrag_jax.types import Chunk, Document, Message, Sampling, TextGenerator

KIND = "llm"
# Reasons why a question is left out.
TELLS_ANSWER = "the question contains its answer"
NOT_ANSWERED = "not answered from its passages"
KNOWN_ANYWAY = "answered without its passages"
_RIGHT = 0.5  # token F1 of an answer that counts as right
_ANSWER_TOKENS = 48
_QUESTION = Form(
    Record({"question": Text(10, 300), "answer": Text(1, 120)}), Record({"question": Text(1), "answer": Text(1)})
)
_UNSPACED = re.compile(f"[{UNSPACED}]")
_NOTHING = "(no passage was found)"


def ask_questions(
    documents: Sequence[Document],
    chunks: Sequence[Chunk],
    golds: Sequence[tuple[int, ...]],
    generator: TextGenerator,
    *,
    sampling: Sampling,
    max_tokens: int = 200,
    prompts: Path | None = None,
    progress: Progressed | None = None,
) -> Made:
    """Asks a language model for one question about each set of chunks, and keeps those that pass the checks.

    Args:
        documents, chunks: as of `make_questions`.
        golds: numbers of the chunks that a question is about; repeated sets are asked once.
        generator: writes and answers; with a journal, no finished call is repeated.
        sampling: of all calls, except `max_tokens`.
        max_tokens: of a question with its answer.
        prompts: folder of the user's templates; None uses the built-in ones.
        progress: called for every answer.

    Raises:
        InputError: all calls failed.
    """
    texts = [one.text for one in chunk_texts(documents, chunks)]
    desk = Desk(generator, sampling, 2, load_prompt("again", prompts), progress)
    template, reply = load_prompt("passages_question", prompts), load_prompt("short_answer", prompts)
    sets = list(dict.fromkeys(golds))

    def ask(gold: tuple[int, ...]) -> tuple[Message, ...]:
        mark, passages = fence([texts[place] for place in gold], "question")
        return template.fill(mark=mark, passages=passages)

    written = list(desk.ask("questions", map(ask, sets), len(sets), _QUESTION, max_tokens))
    kept = []
    for gold, found in zip(sets, written, strict=True):
        if found is None:
            continue  # the desk has counted why
        if _tells(found["question"], found["answer"]):
            desk.left_out[TELLS_ANSWER] += 1
        else:
            kept.append((gold, found["question"].strip(), found["answer"]))
    for stage, reason, wanted in (("answers", NOT_ANSWERED, True), ("answers from nothing", KNOWN_ANYWAY, False)):
        asked = [
            passages_prompt(reply, question, [texts[i] for i in gold] if wanted else [], "question", nothing=_NOTHING)
            for gold, question, _ in kept
        ]
        answers = list(desk.ask(stage, asked, len(asked), FreeForm(), _ANSWER_TOKENS))
        # A failed call is counted by the desk. It proves nothing, so its question is dropped too.
        right = [
            None if said is None else token_f1(said, answer) >= _RIGHT
            for said, (_, _, answer) in zip(answers, kept, strict=True)
        ]
        desk.left_out[reason] += right.count(not wanted)
        kept = [one for one, is_right in zip(kept, right, strict=True) if is_right is wanted]
    return Made(tuple(MadeQuestion(KIND, question, gold) for gold, question, _ in kept), desk.reasons)


def _tells(question: str, answer: str) -> bool:
    """True if a question has its answer, word for word; yes and no are in many questions and tell nothing."""
    said, right = normalise_answer(question), normalise_answer(answer)
    if right in ("yes", "no"):
        return False
    return right in said if _UNSPACED.search(right) else f" {right} " in f" {said} "
