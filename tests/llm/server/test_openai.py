"""The generator over HTTP, against a real server on this machine: what is sent, what comes back, what stays secret."""

import asyncio
import gzip
import json
import ssl
import threading
import time
import warnings

import pytest
from support import bad_server
from support.bad_server import MODEL, free_port, good_answer, numbered_prompts, serve_badly
from support.tiers import PATIENCE

from qrag_jax.llm.server.answers import read_answer
from qrag_jax.llm.server.openai import OpenAIGenerator
from qrag_jax.types import Choice, JsonSchema, Message, Regex, Sampling, TextGenerator, UsageError

KEY_NAME = "TEST_SERVER_KEY"
CANARY = "sk-canary-4f1e77"
GREEDY = Sampling()


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    others = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "SSL_CERT_FILE", "SSL_CERT_DIR")
    for name in (*proxies, *map(str.lower, proxies), *others):
        monkeypatch.delenv(name, raising=False)


def _generator(server, **settings):
    return OpenAIGenerator(MODEL, server.base_url, **{"key_name": KEY_NAME, "deadline": 60.0, **settings})


def _ask(server, count=1, sampling=GREEDY, **settings):
    return _generator(server, **settings).generate(numbered_prompts(count), sampling=sampling)


# Answers


def test_answers_come_in_the_order_of_the_prompts():
    with serve_badly() as server:
        generator = _generator(server)
        answers = generator.generate(numbered_prompts(9), sampling=GREEDY)
    assert isinstance(generator, TextGenerator)
    assert [answer.text for answer in answers] == [f"Answer {place}." for place in range(9)]
    assert [answer.prompt_tokens for answer in answers] == [10 + place for place in range(9)]
    assert {answer.finish_reason for answer in answers} == {"stop"}


def test_one_call_at_a_time_gives_what_many_give():
    with serve_badly() as server:
        assert _ask(server, 5, concurrency=1) == _ask(server, 5, concurrency=8)


def test_no_prompts_ask_nobody():
    assert OpenAIGenerator(MODEL, f"http://127.0.0.1:{free_port()}/v1").generate([], sampling=GREEDY) == []


def test_finished_is_told_of_each_answer_as_soon_as_it_is_there():
    told = []

    def misbehave(handler, request):  # answers the first prompt after it has heard of the second one
        deadline = time.monotonic() + PATIENCE
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
        handler.send(200, good_answer(request.place))

    with serve_badly(misbehave, position=0) as server:
        answers = _generator(server, concurrency=2).generate(
            numbered_prompts(2),
            sampling=GREEDY,
            finished=lambda place, answer: told.append((place, answer, threading.get_ident())),
        )
    assert told == [(1, answers[1], threading.get_ident()), (0, answers[0], threading.get_ident())]


def test_it_works_inside_of_a_running_loop():
    async def caller(server):
        return _ask(server, 2)

    with serve_badly() as server:
        assert [answer.text for answer in asyncio.run(caller(server))] == ["Answer 0.", "Answer 1."]


def test_what_finished_raises_goes_on_and_ends_the_batch():
    def finished(place, answer):
        raise LookupError("the disk is full")

    with serve_badly() as server, pytest.raises(LookupError, match="the disk is full"):
        _generator(server, concurrency=1).generate(numbered_prompts(200), sampling=GREEDY, finished=finished)
    assert len(server.requests) < 200


@pytest.mark.parametrize("concurrency", [1, 3])
def test_never_more_calls_at_once_than_asked_for(concurrency):
    lock, now, most = threading.Lock(), [0], [0]

    def misbehave(handler, request):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        handler.send(200, good_answer(request.place))

    with serve_badly(misbehave) as server:
        _ask(server, 9, concurrency=concurrency)
    assert most[0] == concurrency


# What is sent


def test_a_greedy_call_sends_no_draws():
    with serve_badly() as server:
        _ask(server, sampling=Sampling(max_tokens=7, seed=3, top_p=0.5))
    assert server.requests[0].body == {
        "model": MODEL,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Question 0?"}],
        "max_tokens": 7,
        "temperature": 0.0,
    }


def test_a_drawn_call_sends_all_of_its_sampling():
    with serve_badly() as server:
        _ask(server, sampling=Sampling(temperature=0.7, top_p=0.9, seed=3, stop=("END", "\n\n"), logprobs=True))
    sent = server.requests[0].body
    assert (sent["temperature"], sent["top_p"], sent["seed"]) == (0.7, 0.9, 3)
    assert (sent["stop"], sent["logprobs"]) == (["END", "\n\n"], True)


def test_log_probabilities_are_reported():
    with serve_badly() as server:
        assert _ask(server, sampling=Sampling(logprobs=True))[0].logprobs == (-0.5, -0.25)


def test_top_k_is_refused_before_anything_is_sent():
    with serve_badly() as server, pytest.raises(UsageError, match="top_k 5: the OpenAI protocol has no top_k"):
        _ask(server, sampling=Sampling(temperature=1.0, top_k=5))
    assert server.requests == []


@pytest.mark.parametrize(
    ("field", "grammar", "sent"),
    [
        (
            "response_format",
            JsonSchema.of({"type": "null"}),
            {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": {"type": "null"}}},
        ),
        ("structured_outputs", JsonSchema.of({"type": "null"}), {"json": {"type": "null"}}),
        ("structured_outputs", Regex("a+"), {"regex": "a+"}),
        ("structured_outputs", Choice(("a", "b")), {"choice": ["a", "b"]}),
        ("guided_json", JsonSchema.of({"type": "null"}), {"type": "null"}),
        ("guided_regex", Regex("a+"), "a+"),
        ("guided_choice", Choice(("a", "b")), ["a", "b"]),
    ],
)
def test_a_grammar_is_told_as_the_server_reads_it(field, grammar, sent):
    with serve_badly() as server:
        _ask(
            server,
            sampling=Sampling(grammar=grammar),
            grammar_field=field.partition("_")[0] if "guided" in field else field,
        )
    told = server.requests[0].body
    assert told[field] == sent
    assert len(told.keys() - {"model", "messages", "max_tokens", "temperature"}) == 1


def test_a_grammar_that_the_server_is_not_told_of_is_refused():
    generator = OpenAIGenerator(MODEL, "http://127.0.0.1:9/v1", grammar_field="response_format")
    assert generator.takes_grammar(JsonSchema("{}")) and not generator.takes_grammar(Regex("a"))
    with pytest.raises(UsageError, match="cannot be sent with grammar_field response_format"):
        generator.generate(numbered_prompts(1), sampling=Sampling(grammar=Regex("a")))
    untold = OpenAIGenerator(MODEL, "http://127.0.0.1:9/v1")
    assert not untold.takes_grammar(JsonSchema("{}"))
    with pytest.raises(UsageError, match="grammar_field None"):
        untold.generate(numbered_prompts(1), sampling=Sampling(grammar=JsonSchema("{}")))
    with pytest.raises(UsageError, match="grammar_field 'json': choose response_format, structured_outputs, guided"):
        OpenAIGenerator(MODEL, "http://127.0.0.1:9/v1", grammar_field="json")


def test_half_of_a_surrogate_pair_is_refused_before_it_is_sent():
    prompts = [*numbered_prompts(1), [Message("system", "Question 1"), Message("user", "abc\ud83d")]]
    with serve_badly() as server:
        answers = _generator(server).generate(prompts, sampling=GREEDY)
    assert answers[0].text == "Answer 0."
    assert "message 1 of the prompt: lone surrogate at character 3" in answers[1].error
    assert len(server.requests) == 1


# The key, and what the environment says


@pytest.mark.parametrize(
    ("key", "sent"), [(None, "Bearer no-key"), ("", "Bearer no-key"), (CANARY, f"Bearer {CANARY}")]
)
def test_the_key_of_the_named_variable_is_sent(monkeypatch, key, sent):
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    if key is not None:
        monkeypatch.setenv(KEY_NAME, key)
    with serve_badly() as server:
        _ask(server)
    assert server.requests[0].headers["authorization"] == sent


def test_the_key_is_read_at_each_call(monkeypatch):
    with serve_badly() as server:
        generator = _generator(server)
        for key in ("first-key", "second-key"):
            monkeypatch.setenv(KEY_NAME, key)
            generator.generate(numbered_prompts(1), sampling=GREEDY)
    assert [request.headers["authorization"] for request in server.requests] == [
        "Bearer first-key",
        "Bearer second-key",
    ]


def test_what_is_given_wins_over_the_variables_of_the_client(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{free_port()}/v1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer stranger")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-1")
    monkeypatch.setenv(KEY_NAME, CANARY)
    with serve_badly() as server:
        assert _ask(server)[0].error is None
    headers = server.requests[0].headers
    assert headers["authorization"] == f"Bearer {CANARY}"
    assert "openai-organization" not in headers
    assert "openai-project" not in headers


def test_no_proxy_stands_on_the_way_to_this_machine(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    with serve_badly() as server:
        assert _ask(server)[0].text == "Answer 0."


def test_openais_own_host_is_asked_through_the_proxy_with_the_newer_name_of_the_limit(monkeypatch):
    with serve_badly() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.base_url.removesuffix("/v1"))
        generator = OpenAIGenerator(MODEL, "http://api.openai.com/v1", key_name=KEY_NAME)
        answer = generator.generate(numbered_prompts(1), sampling=Sampling(max_tokens=7))[0]
    assert answer.text == "Answer 0."
    assert proxy.requests[0].headers["host"] == "api.openai.com"
    assert proxy.requests[0].body["max_completion_tokens"] == 7
    assert "max_tokens" not in proxy.requests[0].body


def test_a_key_that_a_server_repeats_is_taken_out(monkeypatch):
    monkeypatch.setenv(KEY_NAME, CANARY)
    escaped = json.dumps(f"your key is {CANARY}").replace("sk-", "\\u0073k-").encode()
    body = json.dumps(good_answer(0)).encode().replace(b'"Answer 0."', escaped)
    with serve_badly(bad_server.body(body)) as server:
        assert _ask(server)[0].text == "your key is ***"
    with serve_badly(bad_server.status(403, "no entry")) as server:
        assert _ask(server)[0].error == (
            "HTTP 403 (1 attempt): 'no entry [Bearer ***]': the key has no permission for this call"
        )


def test_a_key_that_is_a_word_stays_in_answers_and_leaves_errors(monkeypatch):
    monkeypatch.setenv(KEY_NAME, "whatever")
    body = json.dumps(good_answer(0)).replace("Answer 0.", "Do whatever you like.").encode()
    with (
        serve_badly(bad_server.body(body)) as server,
        pytest.warns(UserWarning, match="TEST_SERVER_KEY: the key is a word, and 2 of 2 answers contain it") as caught,
    ):
        assert [answer.text for answer in _ask(server, 2)] == ["Do whatever you like."] * 2
    assert not any("whatever" in str(warning.message) for warning in caught)
    with serve_badly(bad_server.status(403, "no entry")) as server:
        assert "no entry [Bearer ***]" in _ask(server)[0].error


@pytest.mark.parametrize("key", ["assistant", "finish_reason", "completion_tokens"])
def test_a_key_that_is_a_word_of_the_protocol_breaks_no_answer(monkeypatch, key):
    monkeypatch.setenv(KEY_NAME, key)
    with serve_badly() as server:
        assert _ask(server)[0].text == "Answer 0."


def test_the_key_is_nowhere_in_the_generator(monkeypatch):
    monkeypatch.setenv(KEY_NAME, CANARY)
    with serve_badly() as server:
        generator = _generator(server)
        generator.generate(numbered_prompts(1), sampling=GREEDY)
    assert CANARY not in f"{generator!r} {vars(generator)} {generator.model}"
    assert repr(generator) == f"OpenAIGenerator('tiny-model', '{server.base_url}', key_name='TEST_SERVER_KEY')"
    assert generator.model == f"tiny-model at {server.base_url}"


def test_a_401_says_whether_there_was_a_key(monkeypatch):
    with serve_badly(bad_server.status(401, "no")) as server:
        assert "needs a key, but there is none in the environment variable TEST_SERVER_KEY" in _ask(server)[0].error
        monkeypatch.setenv(KEY_NAME, CANARY)
        assert "refuses the key in the environment variable TEST_SERVER_KEY" in _ask(server)[0].error


# Limits


def test_a_packed_answer_is_unpacked_and_bounded_by_its_unpacked_size():
    def packed(content):
        body = gzip.compress(content)
        return lambda handler, request: handler.send(200, headers={"Content-Encoding": "gzip"}, body=body)

    with serve_badly(packed(json.dumps(good_answer(0)).encode())) as server:
        assert _ask(server)[0].text == "Answer 0."
    with serve_badly(packed(b" " * 2**24)) as server:
        assert "more than 4194304 bytes" in _ask(server)[0].error
    assert len(server.requests) == 1


def test_an_answer_of_just_so_many_bytes_is_taken():
    size = len(json.dumps(good_answer(0)))
    with serve_badly() as server:
        assert _ask(server, max_answer_bytes=size)[0].error is None
        assert f"more than {size - 1} bytes" in _ask(server, max_answer_bytes=size - 1)[0].error


def test_a_redirect_is_not_followed():
    with serve_badly() as other:
        headers = {"Location": f"{other.base_url}/chat/completions"}
        with serve_badly(bad_server.status(307, "moved", headers)) as server:
            answers = _ask(server, 3, concurrency=1)
    assert f"HTTP 307: the server redirects to '{other.base_url}/chat/completions'" in answers[0].error
    assert "not asked" in answers[2].error
    assert other.requests == []


def test_an_account_without_means_stops_the_batch():
    with serve_badly(bad_server.status(429, "pay first", code="insufficient_quota")) as server:
        answers = _ask(server, 3, concurrency=1, max_retries=0)
    assert "the account has no credit left" in answers[0].error
    assert "not asked" in answers[2].error
    assert len(server.requests) == 1


@pytest.mark.parametrize(("told", "attempts"), [("true", 2), ("false", 1)])
def test_a_server_may_say_whether_to_ask_again_but_not_how_often(told, attempts):
    with serve_badly(bad_server.status(500 if told == "false" else 400, "x", {"x-should-retry": told})) as server:
        answer = _ask(server, max_retries=1)[0]
    assert len(server.requests) == attempts
    assert f"({attempts} attempt" in answer.error


def test_the_deadline_is_over_all_attempts():
    def slow(handler, request):
        time.sleep(0.3)
        bad_server.status(500, "worker died", {"Retry-After": "0.1"})(handler, request)

    with serve_badly(slow) as server:
        answer = _ask(server, max_retries=1000, deadline=1.5)[0]
    assert "no answer within the deadline of 1.5 s" in answer.error
    assert 2 <= len(server.requests) <= 6


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 5}])
def test_missing_token_counts_are_warned_of(usage):
    with serve_badly() as server:
        server.alter = lambda answer: answer.update(usage=usage)
        generator = _generator(server)
        with pytest.warns(UserWarning, match=r"sends no token counts \(3 of 3 answers\)"):
            answers = generator.generate(numbered_prompts(3), sampling=GREEDY)
    assert generator.num_uncounted == 3
    assert [(answer.prompt_tokens, answer.completion_tokens) for answer in answers] == [(0, 0)] * 3


def test_counted_answers_and_failed_calls_are_not_warned_of():
    with serve_badly(bad_server.status(400, "no"), position=0) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        generator = _generator(server)
        generator.generate(numbered_prompts(2), sampling=GREEDY)
    assert generator.num_uncounted == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"concurrency": 0}, "concurrency 0"),
        ({"deadline": 0.0}, "deadline 0.0"),
        ({"deadline": float("inf")}, "deadline inf"),
        ({"deadline": float("nan")}, "deadline nan"),
        ({"max_retries": -1}, "max_retries -1"),
        ({"max_answer_bytes": 0}, "max_answer_bytes 0"),
        ({"key_name": ""}, "key_name"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        OpenAIGenerator(MODEL, "http://127.0.0.1:1/v1", **settings)


def test_a_model_without_a_name_is_refused():
    with pytest.raises(UsageError, match="model: is empty"):
        OpenAIGenerator("", "http://127.0.0.1:1/v1")


SECRET = "user:sekret-9f31"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ALL_PROXY", f"socks9://{SECRET}@127.0.0.1:1", ""),
        ("HTTP_PROXY", f"foo://{SECRET}@127.0.0.1:1", ""),
        ("HTTP_PROXY", f"http://{SECRET}@127.0.0.1:notaport", ""),
        ("SSL_CERT_FILE", f"/nowhere/{SECRET}.pem", "FileNotFoundError"),
    ],
)
def test_variables_that_cannot_be_used_are_named_and_not_repeated(monkeypatch, name, value, words):
    monkeypatch.setenv(name, value)
    generator = OpenAIGenerator(MODEL, "http://192.0.2.1/v1", deadline=5.0, max_retries=0)
    with pytest.raises(UsageError, match=f"environment: {name}: the proxy or certificates.*{words}.*unset") as caught:
        generator.generate(numbered_prompts(1), sampling=GREEDY)
    assert "sekret" not in str(caught.value)


@pytest.mark.parametrize("key_name", ["sk-live-SECRET-0123456789", "", "1KEY", "A B", "KEY=1", "CL\u00c9"])
def test_what_is_no_name_of_a_variable_is_refused_and_not_repeated(key_name):
    with pytest.raises(UsageError, match="key_name: not the name of an environment variable") as caught:
        OpenAIGenerator(MODEL, "http://127.0.0.1:1/v1", key_name=key_name)
    assert not key_name or key_name not in str(caught.value)


# One call and the others


def test_every_request_has_a_connection_of_its_own():
    """Also where the server keeps its own open."""
    ports = []

    def misbehave(handler, request):
        ports.append(handler.client_address[1])
        handler.send(200, good_answer(request.place), headers={"Connection": "keep-alive"})
        handler.close_connection = False

    with serve_badly(misbehave) as server:
        assert [answer.text for answer in _ask(server, 6, concurrency=2)] == [f"Answer {place}." for place in range(6)]
    assert len(set(ports)) == 6
    assert {request.headers["connection"] for request in server.requests} == {"close"}


def _ports_over_tls(monkeypatch, misbehave, count):
    """Answers to some prompts, one after the other over https, and the ports that they were asked from."""
    context = ssl.create_default_context(cafile=bad_server.CERTIFICATE)
    monkeypatch.setattr("qrag_jax.llm.server.http._tls", lambda *_: context)
    ports = []

    def answer(handler, request):
        ports.append(handler.client_address[1])
        misbehave(handler, request)

    with serve_badly(answer, tls=True) as server:
        texts = [answer.text for answer in _ask(server, count, concurrency=1)]
    assert texts == [f"Answer {place}." for place in range(count)]
    return ports


def _chunked(handler, request):
    content = json.dumps(good_answer(request.place)).encode()
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    handler.wfile.write(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content))


def _large(handler, request):
    """An answer of several records of TLS."""
    answer = good_answer(request.place) | {"more": "x" * 100_000}
    handler.send(200, answer)


@pytest.mark.parametrize("whole", [bad_server.altered(lambda answer: None), _chunked, _large])
def test_over_tls_a_connection_serves_many_calls(monkeypatch, whole):
    assert len(set(_ports_over_tls(monkeypatch, whole, 5))) == 1


def _in_two_records(handler, request):
    """A good answer, and a byte behind it in another record of TLS, which no socket shows."""
    bad_server.altered(lambda answer: None)(handler, request)
    handler.wfile.write(b"x")


def _of_no_length(handler, request):
    content = json.dumps(good_answer(request.place)).encode()
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + content)
    handler.close_connection = True


@pytest.mark.parametrize("more", [bad_server.surplus, _in_two_records, _of_no_length])
def test_over_tls_a_connection_with_a_byte_behind_an_answer_serves_no_other_call(monkeypatch, more):
    assert len(set(_ports_over_tls(monkeypatch, more, 4))) == 4


def test_an_attempt_after_a_failed_one_has_a_new_connection():
    """What came behind the failed one is not the answer to the next."""

    def misbehave(handler, request):
        stale = json.dumps(good_answer(7)).encode()
        handler.send(500, {"error": "busy"}, headers={"Retry-After": "0.1"})
        handler.send(200, body=stale)
        handler.close_connection = False

    with serve_badly(misbehave, times=1) as server:
        assert _ask(server)[0].text == "Answer 0."


@pytest.mark.parametrize("concurrency", [1, 4])
def test_whatever_one_call_meets_is_its_own_error(monkeypatch, concurrency):
    def read(body, **settings):
        if b"Answer 2." in body:
            raise LookupError("nobody foresaw this")
        return read_answer(body, **settings)

    monkeypatch.setattr("qrag_jax.llm.server.openai.read_answer", read)
    with serve_badly() as server:
        answers = _ask(server, 6, concurrency=concurrency)
    assert [place for place, answer in enumerate(answers) if answer.error is not None] == [2]
    assert "failed unexpectedly (1 attempt; LookupError at test_openai.py:" in answers[2].error
    assert "nobody foresaw this" in answers[2].error
    assert answers[5].text == "Answer 5."


def test_what_a_server_says_of_itself_is_kept_without_the_key(monkeypatch):
    monkeypatch.setenv(KEY_NAME, CANARY)
    with serve_badly() as server:
        server.alter = lambda answer: answer.update(model=f"x/{MODEL}", id=f"id-{CANARY}\ud800")
        answer = _ask(server)[0]
    assert (answer.answered_by, answer.answer_id) == (f"x/{MODEL}", "id-***\ufffd")


def test_answers_that_came_twice_are_warned_of():
    def misbehave(handler, request):
        handler.send(200, good_answer(request.place % 2))

    with serve_badly(misbehave) as server:
        generator = _generator(server)
        with pytest.warns(UserWarning, match=r"different prompts the same answer with the same id \(3 of 5 answers"):
            generator.generate(numbered_prompts(5), sampling=GREEDY)
    assert generator.num_repeated == 3
