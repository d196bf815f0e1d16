"""Replies of servers as they are seen in the field: each is read, or is an error that says why and is not kept."""

import json
import re
import warnings

import pytest
from support import bad_server
from support.bad_server import MODEL, good_answer, numbered_prompts, serve_badly

from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.server.openai import OpenAIGenerator
from qrag_jax.types import JsonSchema, Message, Sampling

ANSWER = "Anna has the key [1]."
KEY_NAME = "TEST_SERVER_KEY"
CANARY = "sk-canary-4f1e77"


def reply(content=ANSWER, finish="stop", **message):
    """A chat completion, and how it is changed: `finish`, fields of the message."""
    answer = good_answer(0)
    answer["choices"] = [{"index": 0, "finish_reason": finish, "message": {"content": content, **message}}]
    return answer


def events(*deltas, end=b"data: [DONE]\n\n"):
    """A stream of events, the last one with the reason of the end."""
    chunks = [{"model": MODEL, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"model": MODEL, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return b": begin\n" + b"".join(b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n" for chunk in chunks) + end


REPLIES = {
    # thinking
    "think": (reply(f"<think>Not [2].</think>\n\n{ANSWER}"), ANSWER),
    "think, not opened": (reply(f"Not [2].\n</think>\n\n{ANSWER}"), ANSWER),
    "another tag": (reply(f"<thinking>Not [2].</thinking>{ANSWER}"), ANSWER),
    "harmony": (
        reply(f"<|channel|>analysis<|message|>Not [2].<|end|><|start|>assistant<|channel|>final<|message|>{ANSWER}"),
        ANSWER,
    ),
    "reasoning_content": (reply(reasoning_content="Not [2]."), ANSWER),
    "reasoning": (reply(reasoning="Not [2].", reasoning_details=[{"text": "Not [2]."}]), ANSWER),
    "thinking of Ollama": (reply(thinking="Not [2]."), ANSWER),
    "a part that thinks": (
        reply(
            [{"type": "thinking", "thinking": [{"type": "text", "text": "Not [2]."}]}, {"type": "text", "text": ANSWER}]
        ),
        ANSWER,
    ),
    "a part of reasoning": (reply([{"type": "reasoning", "text": "Not [2]."}, ANSWER]), ANSWER),
    "think in a part": (reply([{"type": "text", "text": f"<think>Not [2].</think>{ANSWER}"}]), ANSWER),
    # cut, or nothing but thinking
    "think, cut": (reply("<think>Not [2], and", "length"), "while the model was still thinking.*--max_answer_tokens"),
    "reasoning, cut": (reply("", "length", reasoning_content="Not"), "while the model was still thinking"),
    "harmony, cut": (reply("<|channel|>analysis<|message|>Not", "length"), "while the model was still thinking"),
    "reasoning, empty": (reply("", reasoning_content="It is [1]."), "only thought"),
    "reasoning, null": (reply(None, reasoning="It is [1]."), "only thought"),
    "think, empty": (reply("<think>It is [1].</think>\n"), "only thought"),
    # empty
    "empty": (reply(""), "the answer is empty"),
    "blank": (reply("  \n"), "the answer is empty"),
    "null": (reply(None), "the answer is empty"),
    "no parts": (reply([]), "the answer is empty"),
    "empty, cut": (reply("", "length"), "cut before it had any text"),
    # other ends
    "a tool": (reply(None, "tool_calls", tool_calls=[{"function": {"name": "search"}}]), "calls a tool"),
    "a tool, stop": (reply("", tool_calls=[{"function": {"name": "search"}}]), "calls a tool"),
    "refusal": (reply(None, refusal="I would rather not"), "refuses to answer: 'I would rather not'"),
    "refusal in a part": (reply([{"type": "refusal", "refusal": "not this"}]), "refuses to answer: 'not this'"),
    "filtered": (reply(None, "content_filter"), "content filter"),
    "SAFETY": (reply("", "SAFETY"), "content filter"),
    "error in the choice": (reply(None, "error"), "unknown way: finish_reason 'error'"),
    "end null": (reply(finish=None), "may be cut.*finish_reason null"),
    "STOP": (reply(finish="STOP"), ANSWER),
    "MAX_TOKENS": (reply(finish="MAX_TOKENS"), ANSWER),
    # quirks
    "parts": (reply([{"type": "text", "text": "Anna has "}, {"type": "text", "text": "the key [1]."}]), ANSWER),
    "a picture": (reply([{"type": "image_url", "image_url": {}}]), "a part of type 'image_url'"),
    "no choices": (reply() | {"choices": []}, "no choices"),
    "counts as floats": (reply() | {"usage": {"prompt_tokens": 12.0, "completion_tokens": 3.0}}, ANSWER),
    "path of a model": (reply() | {"model": f"/models/{MODEL}.gguf"}, ANSWER),
    "format of a model": (reply() | {"model": f"{MODEL}:latest"}, ANSWER),
    "no model": (reply() | {"model": None}, "asked for model 'tiny-model', but 'None' answered"),
    "byte order mark": (b"\xef\xbb\xbf" + json.dumps(reply()).encode(), ANSWER),
    "latin-1": (json.dumps(reply("M\u00fcller [1]."), ensure_ascii=False).encode("latin-1"), "is not UTF-8"),
    "a page": (b"<html>Sign in</html>", "not complete JSON.*base_url"),
    "events": (events({"content": "Anna has "}, {"content": "the key [1]."}), ANSWER),
    "events that think": (events({"reasoning": "Not"}, {"reasoning": " [2]."}, {"content": ANSWER}), ANSWER),
    "events, cut": (events({"content": "Anna"})[:-60], "not complete JSON"),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_is_read_or_an_error_that_is_not_kept(name, tmp_path):
    said, expected = REPLIES[name]
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    journal = Journal(tmp_path / "journal.sqlite")
    with serve_badly(bad_server.body(body)) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # events send no counts
        generator = JournaledGenerator(OpenAIGenerator(MODEL, server.base_url, key_name=KEY_NAME), journal)
        (answer,) = generator.generate(numbered_prompts(1), sampling=Sampling())
        (again,) = generator.generate(numbered_prompts(1), sampling=Sampling())
    if expected == ANSWER:
        assert (answer.text, answer.error) == (ANSWER, None)
        assert (again.text, again.thinking, again.from_journal) == (ANSWER, answer.thinking, True)
        has_thought = "Not" in str(said)
        assert answer.thinking == ("Not [2]." if has_thought else None)
    else:
        assert answer.text == "" and answer.error is not None
        assert re.search(expected, answer.error)
        assert journal.num_answers() == 0


def refusing(status, body, accepts):
    """Refuses with these words, until a request is as `accepts` wants it."""

    def misbehave(handler, request):
        if accepts(request.body):
            handler.send(200, good_answer(request.place))
        else:
            handler.send(status, body)

    return misbehave


def openai_error(message, **more):
    return {"error": {"message": message, "type": "invalid_request_error", **more}}


def without(*names):
    return lambda sent: not any(name in sent for name in names)


DRAWN = Sampling(temperature=0.5, top_p=0.9, stop=("2",), logprobs=True)
REFUSALS = {
    "max_tokens": (
        400,
        openai_error(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.",
            param="max_tokens",
            code="unsupported_parameter",
        ),
        lambda sent: sent.get("max_completion_tokens") == Sampling().max_tokens and "max_tokens" not in sent,
        Sampling(),
        "'max_tokens'.*sent as max_completion_tokens",
    ),
    "max_tokens, in no field": (
        422,
        {"detail": [{"loc": ["body", "max_tokens"], "msg": "Extra inputs are not permitted"}]},
        without("max_tokens"),
        Sampling(),
        "'max_tokens'",
    ),
    "temperature": (
        400,
        openai_error(
            "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is "
            "supported.",
            param="temperature",
        ),
        without("temperature"),
        Sampling(),
        "'temperature'.*its own temperature.*journal keeps the first one",
    ),
    "temperature above 0": (
        422,
        {"error": "`temperature` must be strictly positive"},
        without("temperature"),
        Sampling(),
        "'temperature'",
    ),
    "several": (
        400,
        openai_error("openai does not support parameters: ['temperature', 'top_p', 'seed'], for model=o1"),
        without("temperature", "top_p", "seed"),
        DRAWN,
        "'temperature'|'top_p'|'seed'",
    ),
    "logprobs": (400, openai_error("logprobs are not supported"), without("logprobs"), DRAWN, "'logprobs'"),
    "stop": (400, openai_error("'stop' is not supported by this model"), without("stop"), DRAWN, "'stop'.*cut here"),
    "system": (
        400,
        {"message": "System role not supported"},
        lambda sent: sent["messages"] == [{"role": "user", "content": "Be brief.\n\nQuestion 0?"}],
        Sampling(),
        "'system'.*first message of the user",
    ),
    "system, in a list": (
        422,
        {
            "detail": [
                {"loc": ["body", "messages", 0, "role"], "msg": "Input should be 'user' or 'assistant'", "input": 3}
            ]
        },
        lambda sent: len(sent["messages"]) == 1,
        Sampling(),
        "'system'",
    ),
    "temperature that must be 1": (
        400,
        {"error": {"message": "invalid temperature: it must be 1 for this model"}},
        without("temperature"),
        DRAWN,
        "'temperature'",
    ),
    "stop, at the end": (
        400,
        openai_error("Argument not supported on this model: stop"),
        without("stop"),
        DRAWN,
        "cut",
    ),
    "system, by its place": (
        400,
        openai_error("'messages[0].role' does not support 'system' with this model", param="messages[0].role"),
        lambda sent: len(sent["messages"]) == 1,
        Sampling(),
        "'system'",
    ),
    "roles alternate": (
        500,
        openai_error("Conversation roles must alternate user/assistant/user/assistant/..."),
        lambda sent: len(sent["messages"]) == 1,
        Sampling(),
        "'system'",
    ),
    "response_format": (
        400,
        openai_error("This response_format type is unavailable now"),
        without("response_format"),
        Sampling(grammar=JsonSchema.of({"type": "null"})),
        "'response_format'.*only parsed",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refused_field_is_learned_once_from_the_words_of_the_server(name):
    status, body, accepts, sampling, words = REFUSALS[name]
    with serve_badly(refusing(status, body, accepts)) as server:
        generator = OpenAIGenerator(
            MODEL, server.base_url, key_name=KEY_NAME, max_retries=0, concurrency=1, grammar_field="response_format"
        )
        with pytest.warns(UserWarning, match=words) as caught:
            (answer,) = generator.generate(numbered_prompts(1), sampling=sampling)
        assert answer.error is None and answer.text == "Answer 0."
        assert len(server.requests) == 2  # beyond max_retries, once
        assert len(caught) == (3 if name == "several" else 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # said once
            assert generator.generate(numbered_prompts(1), sampling=sampling)[0].error is None
        assert len(server.requests) == 3


def test_fields_that_are_refused_one_after_the_other_are_all_learned_and_a_batch_goes_on():
    def misbehave(handler, request):
        refused = next((name for name in ("max_tokens", "temperature") if name in request.body), None)
        if refused is None:
            handler.send(200, good_answer(request.place))
        else:
            handler.send(400, openai_error(f"Unsupported parameter: {refused}", param=refused))

    with serve_badly(misbehave) as server, pytest.warns(UserWarning, match="refuses"):
        generator = OpenAIGenerator(MODEL, server.base_url, key_name=KEY_NAME, max_retries=0, concurrency=4)
        answers = generator.generate(numbered_prompts(12), sampling=Sampling())
    assert [answer.text for answer in answers] == [f"Answer {place}." for place in range(12)]
    assert max(server.attempts().values()) <= 3
    assert len(server.requests) <= 12 + 2 * 4  # only calls in progress meet a refusal


@pytest.mark.parametrize(
    ("status", "words", "sampling", "expected"),
    [
        (400, "max_tokens is too large: 256. At most 16 are allowed here", Sampling(), "the server refuses this call"),
        (400, "temperature 5 is too high", Sampling(temperature=5.0), "the server refuses this call"),
        (400, "unsupported field: metadata", Sampling(), "the server refuses this call"),
        (400, "maximum context length is 16; lower max_tokens, which is not supported", Sampling(), "model's window"),
        (
            422,
            {"detail": [{"loc": ["body"], "msg": "Extra inputs are not permitted", "input": "seed"}]},
            DRAWN,
            "refuses",
        ),
        (403, "max_tokens is not supported", Sampling(), "no permission"),
    ],
)
def test_other_refusals_are_errors_and_nothing_is_changed(status, words, sampling, expected):
    body = words if isinstance(words, dict) else {"error": {"message": words}}
    with serve_badly(lambda handler, request: handler.send(status, body)) as server:
        generator = OpenAIGenerator(MODEL, server.base_url, key_name=KEY_NAME, max_retries=0)
        (answer,) = generator.generate(numbered_prompts(1), sampling=sampling)
    assert len(server.requests) == 1 and answer.error is not None
    assert expected in answer.error and (words in answer.error if isinstance(words, str) else "seed" in answer.error)


def test_a_server_that_refuses_everything_is_asked_so_often_as_there_are_fields():
    def misbehave(handler, request):
        named = ", ".join(name for name in request.body if name not in ("model", "messages"))
        handler.send(400, openai_error(f"unsupported: {named.partition(',')[0]}"))

    with serve_badly(misbehave) as server, pytest.warns(UserWarning, match="refuses"):
        generator = OpenAIGenerator(MODEL, server.base_url, key_name=KEY_NAME, max_retries=0)
        (answer,) = generator.generate(numbered_prompts(1), sampling=DRAWN)
    assert answer.error is not None and "'unsupported: max_completion_tokens'" in answer.error
    assert 2 <= len(server.requests) <= 8


def test_a_stop_text_that_the_server_does_not_take_cuts_here():
    def misbehave(handler, request):
        if "stop" in request.body:
            handler.send(400, openai_error("Unknown parameter: 'stop'", param="stop"))
        else:
            handler.send(200, reply("Anna.\nBerg."))

    with serve_badly(misbehave) as server, pytest.warns(UserWarning, match="'stop'"):
        generator = OpenAIGenerator(MODEL, server.base_url, key_name=KEY_NAME)
        (answer,) = generator.generate(numbered_prompts(1), sampling=Sampling(stop=("\n",)))
    assert (answer.text, answer.finish_reason) == ("Anna.", "stop")


def test_a_conversation_without_a_user_keeps_its_system_message():
    def misbehave(handler, request):
        roles = [message["role"] for message in request.body["messages"]]
        if "system" in roles:
            handler.send(400, openai_error("System role not supported"))
        else:
            handler.send(200, reply(f"{roles} {request.body['messages'][-1]['content']}"))

    prompt = [Message("assistant", "Hm."), Message("system", "Question 0?")]
    with serve_badly(misbehave) as server, pytest.warns(UserWarning, match="'system'"):
        generator = OpenAIGenerator(MODEL, server.base_url, key_name=KEY_NAME)
        (answer,) = generator.generate([prompt], sampling=Sampling())
    assert answer.text == "['assistant', 'user'] Question 0?"


def test_the_key_is_in_no_thinking_and_no_warning(monkeypatch):
    monkeypatch.setenv(KEY_NAME, CANARY)
    escaped = json.dumps(CANARY).replace("sk-", "\\u0073k-").encode()
    body = json.dumps(reply(reasoning="KEY")).encode().replace(b'"KEY"', escaped)
    refusal = json.dumps(openai_error("Unsupported parameter: temperature KEY")).encode()

    def misbehave(handler, request):
        if "temperature" in request.body:
            handler.send(400, body=refusal.replace(b"KEY", escaped.strip(b'"')))
        else:
            handler.send(200, body=body)

    with serve_badly(misbehave) as server, pytest.warns(UserWarning, match=r"temperature \*\*\*") as caught:
        generator = OpenAIGenerator(MODEL, server.base_url, key_name=KEY_NAME)
        (answer,) = generator.generate(numbered_prompts(1), sampling=Sampling())
    assert (answer.text, answer.thinking) == (ANSWER, "***")
    assert CANARY not in "".join(str(warning.message) for warning in caught) + repr(vars(generator))
