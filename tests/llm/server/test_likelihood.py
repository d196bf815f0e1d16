"""Scores of passages by a server that tells the log-probabilities of a prompt, and by others that do not."""

import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from qrag_jax.index.rerankers import load_reranker
from qrag_jax.llm.server.likelihood import ServerReranker
from qrag_jax.types import InputError, Reranker


def words_of(prompt):
    """The tokens of the server: words and line ends."""
    return re.findall(r"\S+|\n", prompt)


def echo(request):
    """A completion as vLLM sends it: a token has the log-probability of its length, the new one of -9."""
    words = words_of(request["prompt"])
    logprobs = {"token_logprobs": [None, *(-float(len(word)) for word in words[1:]), -9.0]}
    usage = {"prompt_tokens": len(words), "completion_tokens": 1}
    return 200, {"choices": [{"text": "", "logprobs": logprobs}], "usage": usage}


@contextmanager
def served(answer):
    """(address, requests) of a server that answers as `answer(request)` says."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.path, request))
            status, value = answer(request)
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_mean_over_the_question():
    with served(echo) as (address, requests):
        reranker = load_reranker(f"tiny@{address}")
        assert isinstance(reranker, Reranker) and reranker.name == f"likelihood:tiny@{address}"
        seen = []
        found = reranker("Who was it?", ["Mary.", "It rained all day."], lambda done, of: seen.append((done, of)))
    np.testing.assert_allclose(found, [-3, -3])  # words of 3, 3 and 3 letters
    assert seen[-1] == (4, 4) and len(requests) == 4 and {path for path, _ in requests} == {"/v1/completions"}
    prompts = sorted((request["prompt"] for _, request in requests), key=len)
    assert all(request["echo"] and request["logprobs"] == 1 for _, request in requests)
    assert "Mary." in prompts[2] and prompts[2].endswith("\nWho was it?")
    assert reranker.counts.num_texts == 2 and reranker.counts.num_tokens == sum(len(words_of(p)) for p in prompts)


def only_new(request):
    """As llama.cpp's server: log-probabilities of new tokens only."""
    status, value = echo(request)
    value["choices"][0]["logprobs"]["token_logprobs"] = [-9.0]
    return status, value


def of_one_length(request):
    # As a server that cuts prompts.
    return 200, {"choices": [{"logprobs": {"token_logprobs": [None, -1.0, -1.0]}}], "usage": {"prompt_tokens": 3}}


def positive(request):
    return 200, {"choices": [{"logprobs": {"token_logprobs": [None, 5.0]}}], "usage": {"prompt_tokens": 2}}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (only_new, "does not tell the log-probabilities of a prompt"),
        (of_one_length, "lengths of prompts that do not fit each other"),
        (positive, "does not tell the log-probabilities"),
        (lambda request: (200, {"choices": [{"text": "", "logprobs": None}]}), "does not tell the log-probabilities"),
        (lambda request: (400, {"error": {"message": "Only no echo is supported"}}), "Only no echo.*vLLM does"),
        (lambda request: (404, {"error": {"message": "nothing here"}}), "no model 'tiny'"),
    ],
    ids=["only new tokens", "one length", "positive", "none", "echo refused", "no such path"],
)
def test_a_server_that_does_not_tell_is_refused(answer, message):
    with served(answer) as (address, _), pytest.raises(InputError, match=message):
        ServerReranker("tiny", address, key_name="QRAG_API_KEY")("Who?", ["a"])
