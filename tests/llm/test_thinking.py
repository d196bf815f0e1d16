"""Thinking of a model: what counts as thinking, what stays text, and what is no answer."""

import pytest

from qrag_jax.llm.thinking import Separated, answer_of, is_mark, opened_by, separate
from qrag_jax.types import Generation

ANSWER = "Anna has the key [1]."
FINAL = "<|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("text", "thinking"),
    [
        (f"<think>Not [2].</think>\n\n{ANSWER}", "Not [2]."),
        (f"<thinking>Not [2].</thinking>{ANSWER}", "Not [2]."),
        (f"<reasoning>Not [2].</reasoning>\n{ANSWER}", "Not [2]."),
        (f"<thought>Not [2].</thought> {ANSWER}", "Not [2]."),
        (f'\ufeff\n<Think time="3">Not [2].</THINK >{ANSWER}', "Not [2]."),
        (f"[THINK]Not [2].[/THINK]{ANSWER}", "Not [2]."),
        (f"<seed:think>Not [2].</seed:think>{ANSWER}", "Not [2]."),
        (f"<|START_THINKING|>Not [2].<|END_THINKING|><|START_RESPONSE|>{ANSWER}<|END_RESPONSE|>", "Not [2]."),
        (f"<|begin_of_thought|>Not [2].<|end_of_thought|>\n<|begin_of_solution|>{ANSWER}", "Not [2]."),
        (f"\u25c1think\u25b7Not [2].\u25c1/think\u25b7{ANSWER}", "Not [2]."),
        (f"<|channel>thought\nNot [2].<channel|>{ANSWER}", "Not [2]."),
        (f"<think>Not [2].</think><answer>{ANSWER}</answer>\n", "Not [2]."),
        (f"<think>\n\n</think>\n\n{ANSWER}", None),
        # without the opening tag, which the chat template writes
        (f"Not [2].\n</think>\n\n{ANSWER}", "Not [2]."),
        (f"Not [2]</think>{ANSWER}", "Not [2]"),
        (f"Not [2]. </think> {ANSWER}", "Not [2]."),
        # nested and repeated
        (f"<think>a<think>b</think>c</think>{ANSWER}", "a<think>b\n\nc"),
        (f"<think>a</think>\n<thinking>b</thinking>\n{ANSWER}", "a\n\nb"),
        (f"<think>The tag <think> opens, `</think>` ends.</think>{ANSWER}", "The tag <think> opens, `</think>` ends."),
        (f"<think>```\ncode</think>{ANSWER}", "```\ncode"),
        # harmony
        (f"<|channel|>analysis<|message|>Not [2].<|end|>{FINAL}{ANSWER}<|return|>", "Not [2]."),
        (f"<|start|>assistant<|channel|>analysis<|message|>Not [2].{FINAL}{ANSWER}", "Not [2]."),
        (f"<|channel|>analysis<|message|>a<|end|><|channel|>commentary<|message|>b<|end|>{FINAL}{ANSWER}", "a\n\nb"),
        (f"Not [2].<|end|>{FINAL}{ANSWER}", "Not [2]."),
        (f"<|channel|>final<|message|>{ANSWER}<|return|>", None),
        (f"analysisNot [2].assistantfinal{ANSWER}", "Not [2]."),
        (f"Here is my thought process:\nNot [2].\nHere is my response:\n{ANSWER}", "Not [2]."),
    ],
)
def test_thinking_is_kept_apart(text, thinking):
    assert separate(text) == Separated(ANSWER, thinking)


@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        "",
        " \n",
        "The tags `<think>` and `</think>` are around it [1].",
        "The tags <think> and </think> are around it [1].",
        "The tag </think> ends it [1].",
        'It ends with "</think>" [1].',
        "`<think>` begins it [1].",
        "1. <think> begins it.\n2. </think> ends it [1].",
        "- <think>: begins it\n- </think>: ends it [1]",
        "| <think> | begins it [1] |",
        "```\n<think>\na\n</think>\n```\nis an example [1].",
        "The channel is <|channel|>final<|message|> [1].",
        "analysis of the text [1]",
        "<answer>It is so [1].</answer>",
        "<b>bold</b> [1], <thinker> x",
    ],
)
def test_what_stays_text(text):
    assert separate(text) == Separated(text, None)


def test_tags_of_an_answer_that_follows_thinking_stay():
    text = "The end tag is </think>, in code `</think>`, a block <think>x</think> [1]."
    assert separate(f"<think>a</think>{text}") == Separated(text, "a")


@pytest.mark.parametrize(
    ("text", "answer", "thinking"),
    [
        ("Sure. <think>Not [2].</think>Anna has it [1].", "Sure. Anna has it [1].", "Not [2]."),
        ("Anna has it [1].<think>Not [2].</think>", "Anna has it [1].", "Not [2]."),
        ("Anna\n<think>Not [2].</think>\nhas it [1].", "Anna\n\nhas it [1].", "Not [2]."),
        ("Anna has it [1].\n<think>But [2]", "Anna has it [1].", "But [2]"),
        ("<think>a</think>Anna has it [1].\n<think>b</think>", "Anna has it [1].", "a\n\nb"),
    ],
)
def test_thinking_between_sentences_of_an_answer_is_kept_apart(text, answer, thinking):
    assert separate(text) == Separated(answer, thinking)


@pytest.mark.parametrize(
    ("text", "thinking"),
    [
        ("<think>Not [2], and", "Not [2], and"),
        ("<think>a</think><think>b", "a\n\nb"),
        ("<think>", None),
        ("<|channel|>analysis<|message|>Not [2]", "Not [2]"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>fin", "a"),
        ("<|channel|>ana", "ana"),
        ("analysisWe need to", "analysisWe need to"),
    ],
)
def test_thinking_without_an_end_is_no_answer(text, thinking):
    assert separate(text) == Separated("", thinking, is_open=True)
    cut = answer_of(Generation(text, "length", 3, 5, logprobs=(-1.0,)))
    assert (cut.text, cut.finish_reason, cut.completion_tokens, cut.logprobs) == ("", "error", 5, None)
    assert cut.error == (
        "the answer was cut while the model was still thinking; allow more tokens with a larger --max_answer_tokens "
        "(Sampling.max_tokens)"
    )
    assert cut.thinking == thinking and not cut.is_empty
    ended = answer_of(Generation(text, "stop"))
    assert ended.error is not None and "only thought" in ended.error and ended.is_empty


def test_an_empty_answer_is_an_error_with_its_reason():
    for text in ("", "  \n", "\u200b\ufeff \u2060"):
        empty = answer_of(Generation(text, "stop", 3, 5))
        assert empty.error is not None and "the answer is empty (finish_reason 'stop')" in empty.error
        assert (empty.text, empty.finish_reason, empty.prompt_tokens, empty.is_empty) == ("", "error", 3, True)
    cut = answer_of(Generation("", "length"))
    assert cut.error is not None and "cut before it had any text" in cut.error and not cut.is_empty
    thought = answer_of(Generation("<think>a</think>\n", "stop", thinking="b"))
    assert thought.error is not None and "only thought" in thought.error and thought.thinking == "b\n\na"


def test_an_error_stays_and_a_server_may_repeat_its_thinking():
    failed = Generation("", "error", error="down")
    assert answer_of(failed) is failed
    said = answer_of(Generation("<think>a</think>b", "stop", thinking="a"))
    assert said == Generation("b", "stop", thinking="a")


def test_marks_of_tokenizers():
    marks = ("<think>", "</think>", "[/THINK]", "<|START_THINKING|>", "<|channel|>", "<|message|>", "<|end|>")
    assert all(map(is_mark, marks))
    assert not any(map(is_mark, ("", "<|im_end|>", "think", "<think>a", "</s>")))
    assert opened_by("<|im_start|>assistant\n<think>\n") == "<think>"
    assert opened_by("<think>\n\n</think>\n\n") == opened_by("<think> a") == ""


@pytest.mark.parametrize(
    "part",
    ["<think>", "<think></think>", "<think>`</think>`", "`", "</think>", "<|end|>a", "<|channel|>", "a</think", "<"],
)
def test_hostile_texts_are_read(part):
    """In linear time: a square of the length would take minutes."""
    parts = separate(part * 50_000)
    assert len(parts.text) + len(parts.thinking or "") <= 3 * len(part) * 50_000
