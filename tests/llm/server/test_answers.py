"""Bodies of answers: what is an answer, what is an error, and what a server's numbers are worth."""

import json

import pytest
from support.bad_server import MODEL, good_answer, numbered_prompts

from qrag_jax.llm.server.answers import MAX_QUOTE, failed, is_model, num_repeated, quote, read_answer, said
from qrag_jax.types import Generation


def _read(answer, **settings):
    return read_answer(json.dumps(answer).encode(), **{"model": MODEL, "check_model": True, **settings})


def _with_choice(**values):
    answer = good_answer(2)
    answer["choices"][0].update(values)
    return answer


def test_a_good_answer():
    outcome = _read(good_answer(2))
    assert outcome.generation == Generation(
        "Answer 2.", "stop", 12, 3, logprobs=(-0.5, -0.25), answered_by="tiny-model", answer_id="chatcmpl-2"
    )
    assert outcome.is_counted
    assert not outcome.generation.is_fatal


@pytest.mark.parametrize(
    ("told", "end"),
    [("stop", "stop"), ("eos", "stop"), ("eos_token", "stop"), ("length", "length"), ("max_tokens", "length")],
)
def test_the_end_of_an_answer(told, end):
    assert _read(_with_choice(finish_reason=told)).generation.finish_reason == end


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([], "not a JSON object"),
        (None, "not a JSON object"),
        ({"error": {"message": "upstream is gone"}, **good_answer(0)}, "upstream is gone"),
        ({**good_answer(0), "choices": None}, "no choices"),
        ({**good_answer(0), "choices": ["text"]}, "no choices"),
        (_with_choice(finish_reason=None), "finish_reason null"),
        (_with_choice(finish_reason="tool_calls"), "calls a tool"),
        (_with_choice(finish_reason=["stop"]), "ended in an unknown way"),
        (_with_choice(finish_reason="content_filter"), "content filter"),
        (_with_choice(message=None), "is empty"),
        (_with_choice(message={"content": None}), "is empty"),
        (_with_choice(message={"content": [{"type": "image_url", "text": "a"}]}), "type 'image_url'"),
        (_with_choice(message={"content": ""}, finish_reason="length"), "larger --max_answer_tokens"),
        (_with_choice(message={"content": None, "refusal": "I would rather not"}), "I would rather not"),
    ],
)
def test_what_is_no_answer_is_an_error(answer, words):
    outcome = _read(answer)
    assert words in outcome.generation.error
    assert outcome.generation.text == ""
    assert outcome.generation.finish_reason == "error"
    assert not outcome.generation.is_fatal


def test_tokens_of_a_failed_call_are_counted():
    generation = _read(_with_choice(finish_reason="content_filter")).generation
    assert (generation.prompt_tokens, generation.completion_tokens) == (12, 3)


@pytest.mark.parametrize("body", [b"", b"<html></html>", b'{"choices": [', b"[" * 100_000, b"\xff\xfe{"])
def test_what_is_no_json_is_an_error(body):
    assert "not complete JSON" in read_answer(body, model=MODEL, check_model=True).generation.error


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": 3},
        {"prompt_tokens": "3", "completion_tokens": 1},
        {"prompt_tokens": -1, "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": 3.5, "completion_tokens": 1},
    ],
)
def test_counts_that_are_not_told_are_0_and_said_to_be_missing(usage):
    outcome = _read({**good_answer(0), "usage": usage})
    assert (outcome.generation.prompt_tokens, outcome.generation.completion_tokens) == (0, 0)
    assert not outcome.is_counted
    assert outcome.generation.text == "Answer 0."


@pytest.mark.parametrize(
    "told",
    [None, {}, {"content": None}, {"content": [{"token": "a"}]}, {"content": [{"logprob": float("-inf")}]}, "none"],
)
def test_log_probabilities_that_are_not_told_are_none(told):
    assert _read(_with_choice(logprobs=told)).generation.logprobs is None


def test_half_of_a_pair_in_an_answer_becomes_a_replacement_character():
    body = json.dumps(_with_choice(message={"content": "a\ud83d b \U0001f600"})).encode()
    assert read_answer(body, model=MODEL, check_model=True).generation.text == "a\ufffd b \U0001f600"


@pytest.mark.parametrize("model", ["other", "", None, 3])
def test_another_model_is_fatal_unless_the_check_is_off(model):
    answer = {**good_answer(0), "model": model}
    outcome = _read(answer)
    assert outcome.generation.is_fatal
    assert "asked for model 'tiny-model'" in outcome.generation.error
    assert outcome.generation.completion_tokens == 3
    assert _read(answer, check_model=False).generation.error is None


@pytest.mark.parametrize(
    ("answered", "asked", "same"),
    [
        ("m", "m", True),
        ("gpt-4o-2024-08-06", "gpt-4o", True),
        ("gpt-4-0613", "gpt-4", True),
        ("gemini-1.5-pro-001", "gemini-1.5-pro", True),
        ("claude-20241022", "claude", True),
        ("/models/tiny.gguf", "tiny.gguf", True),
        ("Llama-3", "meta-llama/Llama-3", True),
        ("gpt-4o-mini", "gpt-4o", False),
        ("gpt-4-32k", "gpt-4", False),
        ("gpt-4o", "gpt-4o-2024-08-06", False),
        ("theirs/Llama-3", "meta-llama/Llama-3", False),
        ("M", "m", False),
        ("m:latest", "m", True),
        ("m", "m:latest", True),
        ("/models/m.gguf", "m", True),
        ("C:\\models\\m.gguf", "m", True),
        ("/models/meta-llama/Llama-3", "meta-llama/Llama-3", True),
        ("m-Q4_K_M.gguf", "m", True),
        ("m-AWQ-INT4", "m", True),
        ("m:7b", "m", False),
        ("mm", "m", False),
    ],
)
def test_names_of_a_model(answered, asked, same):
    assert is_model(answered, asked) is same


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"message": "a", "code": 3}, "a"),
        ({"error": "model not found"}, "model not found"),
        ({"error": {"message": "a"}}, "a"),
        ({"detail": [{"msg": "a"}]}, '[{"msg": "a"}]'),
        ({}, "{}"),
        ("<html>", "<html>"),
    ],
)
def test_the_words_of_a_server(body, words):
    assert said(body) == words


def test_a_quote_is_short_and_one_line():
    assert quote("a\n\n b\tc ") == "a b c"
    assert quote("x" * 1000) == "x" * MAX_QUOTE + "..."
    assert quote(b"\xff" * 10) == "\ufffd" * 10


def test_numbers_that_no_float_holds_are_not_told():
    for value in (10**400, -(10**400), float("nan"), float("inf")):
        told = {"content": [{"token": "a", "logprob": value}]}
        assert _read(_with_choice(logprobs=told)).generation.logprobs is None
    for value, counted in ((2**53, True), (2**53 + 1, False), (10**400, False)):
        outcome = _read({**good_answer(2), "usage": {"prompt_tokens": value, "completion_tokens": 1}})
        assert outcome.is_counted == counted and outcome.generation.prompt_tokens == (value if counted else 0)


@pytest.mark.parametrize(
    ("answered", "asked", "same"),
    [
        ("claude-3-5-sonnet-20241022", "claude-3-5-sonnet-latest", True),
        ("claude-3-5-sonnet", "claude-3-5-sonnet-latest", True),
        ("mistral-large-2411", "mistral-large-latest", True),
        ("mistral-small-2411", "mistral-large-latest", False),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-latest", False),
    ],
)
def test_the_latest_of_a_model_is_answered_by_one_with_a_date(answered, asked, same):
    assert is_model(answered, asked) == same


def test_what_is_fatal_says_so_where_wrappers_see_it():
    assert failed("gone", is_fatal=True).generation.is_fatal
    assert not failed("busy").generation.is_fatal


@pytest.mark.parametrize("wrap", [lambda value: {"message": value}, lambda value: [value]])
def test_words_at_any_depth_are_found_or_called_too_deep(wrap):
    """Python 3.12 and later read deeper JSON than a function may call itself; 3.13 writes it too."""
    value = "no"
    for _ in range(5_000):
        value = wrap(value)
    whole = "no" if isinstance(value, dict) else f'{"[" * 5_000}"no"{"]" * 5_000}'
    assert said(value) in (whole, "(nested too deeply)")


def _repeats(*answers):
    generations = [Generation(text, "stop", 5, 3, answer_id=answer_id) for answer_id, text in answers]
    return num_repeated(numbered_prompts(len(answers)), generations)


@pytest.mark.parametrize(
    ("answers", "repeated"),
    [
        ([("a", "yes"), ("b", "yes"), ("a", "yes"), ("a", "yes")], 2),
        ([("a", "yes"), ("b", "yes"), ("c", "yes")], 0),
        ([("a", "yes"), ("a", "yes")], 0),  # a server with one id for all
        ([("a", "yes"), ("a", "no"), ("b", "no")], 0),  # one that draws from few
        ([(None, "yes"), (None, "yes"), ("b", "no")], 0),
    ],
)
def test_answers_that_a_batch_got_twice(answers, repeated):
    assert _repeats(*answers) == repeated


def test_equal_prompts_may_have_equal_answers():
    answers = [Generation("yes", "stop", answer_id=answer_id) for answer_id in ("a", "a", "b")]
    first, other = numbered_prompts(2)
    assert num_repeated([first, first, other], answers) == 0
