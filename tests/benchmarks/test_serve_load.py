"""What the load generator counts, with a server of a few lines."""

import json
import sys

from benchmarks.doors.processes import Call, Server, load
from benchmarks.doors.serve_load import drawn_questions
from benchmarks.doors.soak import mixed_calls

# Answers /STATUS with that status, and every answer is the number of requests so far.
SERVER = """
import http.server, itertools, sys
numbers = itertools.count()
class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = str(next(numbers)).encode()
        self.send_response(int(self.path[1:]))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


def test_every_answer_but_the_expected_one_is_an_error():
    with Server([sys.executable, "-c", SERVER, "{port}"], Call) as server:
        assert server.first_answer("/200") > 0
        told = load(server, [Call("/200"), Call("/503"), Call("/404", expected=404)], most=6)
        assert told.faults == ["503 /503"] * 2
        assert told.bodies == {0: b"1", 2: b"3", 3: b"4", 5: b"6"}
        counts = told.summary()
        assert (counts["requests"], counts["errors"]) == (4, 2)
        assert counts["p50"] <= counts["p95"] <= counts["p99"]
        many = load(server, [Call("/200")], clients=3, most=30)
        assert len(many.seconds) == 30 and not many.faults
        left = load(server, [Call("/200", leaves_after=0), Call("/200", leaves_after=1)], most=4)
        assert not left.faults and set(left.bodies) == {0, 1, 2, 3}
        memory = server.memory()
        assert memory["peak"] >= memory["rss"] > 0 and server.handles()["threads"] >= 1


def test_questions_are_distinct_words_in_a_row():
    texts = ["one two three four five six seven", "too short", "a b c d e"]
    questions = drawn_questions(texts, 200, seed=0)
    assert len(set(questions)) == len(questions) > 5
    assert all(any(question in text for text in texts) and len(question.split()) >= 5 for question in questions)
    assert questions == drawn_questions(texts, 200, seed=0)


def test_a_soak_has_requests_of_every_kind():
    calls = mixed_calls(["Who has the key?"], ["letters/a b.md"], 2_000, seed=0)
    assert {call.expected for call in calls} == {200, 400, 404, 413, 421, 422}
    assert {call.leaves_after for call in calls} == {None, 0, 1}
    assert {"/v1/search", "/v1/ask", "/v1/documents/letters/a%20b.md", "/?question=Who+has+the+key%3F"} <= {
        call.path for call in calls
    }
    assert any(call.body and json.loads(call.body).get("stream") is False for call in calls if call.path == "/v1/ask")
