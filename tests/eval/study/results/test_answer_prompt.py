"""The prompt of answer generation; tests/llm/test_prompts.py has what holds for every prompt."""

import re

from qrag_jax.eval.study.results.study_answers import make_prompt, prompt_sha256
from qrag_jax.llm.prompts import load_prompt


def mark_of(messages):
    return re.search(r"<(passage-[0-9a-f]{8})>", messages[0].content).group(1)


def test_by_hand():
    system, user = make_prompt("Who built it?", ["Ann built it.", "In 1900.\nOr 1901."], "q1")
    mark = mark_of((system, user))
    assert (system.role, user.role) == ("system", "user")
    assert f"</{mark}>" in system.content
    assert user.content == (
        f"<{mark}>\nAnn built it.\n</{mark}>\n\n<{mark}>\nIn 1900.\nOr 1901.\n</{mark}>\n\nQuestion: Who built it?"
    )


def test_without_passages_the_question_is_left():
    assert make_prompt("Who?", [], "q1")[1].content == "Question: Who?"


def test_a_question_that_holds_the_mark_gets_another_one():
    first = mark_of(make_prompt("Who?", ["plain"], "q1"))
    digits = first.removeprefix("passage-")
    assert mark_of(make_prompt(f"Who is {digits}?", ["plain"], "q1")) != first
    assert mark_of(make_prompt("Who else?", ["two", "three"], "q1")) == first


def test_placeholders_in_a_document_are_text():
    passage = "costs $question and ${passages}, $$5"
    assert passage in make_prompt("What does it cost in $?", [passage], "q1")[1].content


def test_hash_is_of_the_templates():
    assert prompt_sha256() == load_prompt("study_answer").sha256
