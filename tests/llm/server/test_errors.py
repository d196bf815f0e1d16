"""What errors say: words of the server, attempts, advice. Which of them end a batch is tested with the faults."""

import pytest
from support import bad_server
from support.bad_server import MODEL, numbered_prompts, serve_badly

from qrag_jax.llm.server.failures import Asked, explain_timeout
from qrag_jax.llm.server.openai import OpenAIGenerator
from qrag_jax.types import Sampling


def _error(misbehave, **settings):
    with serve_badly(misbehave) as server:
        generator = OpenAIGenerator(MODEL, server.base_url, key_name="TEST_SERVER_KEY", max_retries=0, **settings)
        return generator.generate(numbered_prompts(1), sampling=Sampling())[0].error


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (400, "HTTP 400 (1 attempt): 'no [Bearer no-key]': the server refuses this call"),
        (403, "no permission"),
        (408, "the server failed or is too busy"),
        (413, "the server refuses this call"),
        (429, "the server's rate limit; lower the concurrency"),
        (503, "the server failed or is too busy"),
    ],
)
def test_advice_by_status(number, words):
    assert words in _error(bad_server.status(number, "no"))


@pytest.mark.parametrize(
    "misbehave",
    [
        bad_server.status(400, "no", code="context_length_exceeded"),
        bad_server.status(400, "no", type="exceed_context_size_error"),
        bad_server.status(400, "The input is longer than the model's context length (2048)"),
        bad_server.status(422, "inputs: too long"),
    ],
)
def test_a_prompt_beyond_the_window_in_the_words_of_several_servers(misbehave):
    assert "the prompt is longer than the model's window" in _error(misbehave)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"error": "model not loaded"}', "'model not loaded'"),
        (b'{"detail": "not so"}', "'not so'"),
        (b"<html>\n<h1>Bad gateway</h1>", "'<html> <h1>Bad gateway</h1>'"),
        (b"", "'no reason given'"),
    ],
)
def test_the_words_of_the_server_are_quoted_from_any_usual_form(content, words):
    assert words in _error(lambda handler, request: handler.send(500, body=content))


def test_a_long_message_is_cut():
    assert len(_error(bad_server.status(500, "x" * 100_000))) < 500


def test_a_deadline_that_passes_before_anything_was_sent():
    outcome = explain_timeout(Asked(MODEL, "http://host/v1", "KEY", False, 3.0), [])
    assert "no answer within the deadline of 3 s (0 attempts)" in outcome.generation.error
    assert not outcome.generation.is_fatal
