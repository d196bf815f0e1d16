"""The server over sockets: what it answers, what it refuses, and clients that behave badly."""

import json
import shutil
import threading
from dataclasses import replace
from urllib.parse import quote

import pytest
from support.indices import SETTINGS, update, write_notes
from support.serving import JSON, serving, wait_for
from support.tiers import PATIENCE

from qrag_jax.index.options import AskOptions, SearchOptions
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.serve import app as module
from qrag_jax.serve.guard import MAX_BODY
from qrag_jax.serve.schemas import MAX_QUESTION
from qrag_jax.service.library import Library
from qrag_jax.types import UsageError

TOKENS = replace(SETTINGS, model="minilm")  # its tokenizer counts; no vector is compared
WORDS = SearchOptions(retriever="bm25")
QUESTION = "Who has the key?"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    long = "\n".join(f"Line {number} of a long text." + " word" * 20_000 for number in range(30))
    update(
        folder / "notes.index",
        write_notes(folder / "notes", key="Mary has the key.\nIt rained.", odd="A key & <b>it</b>.", long=long),
        settings=TOKENS,
    )
    return folder / "notes.index"


def library(index, model=None):
    return Library.open([str(index)], WORDS, AskOptions(), model and ScriptedGenerator(model))


@pytest.fixture(scope="module")
def client(index):
    with serving(library(index)) as client:
        yield client


def test_search_gives_passages_that_are_the_text_of_their_spans(client, index):
    status, found = client.search(QUESTION, top_k=1)
    (hit,) = found["hits"]
    assert status == 200 and found["warnings"] == []
    assert hit["document"].endswith("notes/key.md") and hit["place"] == f"{hit['document']}:1"
    assert (hit["text"], hit["spans"], hit["rank"], hit["index"]) == ("Mary has the key.", [[0, 17]], 1, "notes")
    assert hit["sentence"]["text"] == "Mary has the key." and hit["sentence"]["place"] == hit["place"]
    answer = json.loads(client.get(f"/v1/documents/{hit['document']}").body)
    assert answer["text"][slice(*hit["spans"][0])] == hit["text"]
    assert client.get(f"/v1/documents/{hit['document'].replace('/', '%2F')}").status == 200


def test_quotas_limit_what_an_index_gives(client):
    asked = [{}, {"quotas": {"notes": 1}}, {"quotas": {"notes": 0}}]
    found = [[hit["document"] for hit in client.search("key", **more)[1]["hits"]] for more in asked]
    assert len(found[0]) == 2 and found[1] == found[0][:1] and found[2] == []


def test_curl_declares_a_form(client):
    answer = client.request(
        "POST", "/v1/search", json.dumps({"question": QUESTION}), {"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert answer.status == 200 and json.loads(answer.body)["hits"]


def test_an_answer_comes_as_events_or_as_json(client):
    names, parts = zip(*client.events({"question": QUESTION}), strict=True)
    assert names == ("passages", "answer")
    assert parts[0]["passages"][0]["number"] == 1
    assert parts[1]["answer"] == '"Mary has the key." [1]' and parts[1]["citations"][0]["text"] == "Mary has the key."
    status, answer = client.post("/v1/ask", {"question": QUESTION, "stream": False})
    assert status == 200 and answer["answer"] == parts[1]["answer"]
    assert client.events({"question": "zzz"})[0][0] == "error"


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 422, "question"),
        ({"question": ""}, 422, "question"),
        ({"question": " "}, 422, "question"),
        ({"question": 3}, 422, "question"),
        ({"question": "x" * (MAX_QUESTION + 1)}, 422, "question"),
        ({"question": "key", "top_k": 0}, 422, "top_k"),
        ({"question": "key", "top_k": 10**9}, 422, "top_k"),
        ({"question": "key", "retriever": "/etc"}, 422, "retriever"),
        ({"question": "key", "index": "other"}, 404, "index"),
        ({"question": "key", "only": ["nothing*"]}, 404, "only"),
        ({"question": "key", "quotas": {"other": 1}}, 404, "quotas"),
        ({"question": "key", "quotas": {"notes": -1}}, 422, "quotas.notes"),
        ({"question": "key", "quotas": ["notes"]}, 422, "quotas"),
        ({"question": "key", "unknown": 1}, 422, "unknown"),
        ([], 422, ""),
        (b'{"question": "key \\ud800"}', 422, "question"),
        (b"{", 400, None),
        (b"\xff", 400, None),
        (b'{"question": "x"' + b" " * MAX_BODY, 413, None),
    ],
)
def test_bad_questions(client, body, status, field):
    got, told = client.post("/v1/search", body)
    assert got == status and told["error"]["reason"], told
    assert field is None or told["error"]["field"] == field, told


@pytest.mark.parametrize(
    "id", ["/etc/hostname", "../../etc/passwd", "nothing", "%00", "%2e%2e%2fnotes", "notes.index/index.json"]
)
def test_only_documents_of_the_index_are_read(client, id):
    answer = client.get(f"/v1/documents/{id}")
    assert answer.status == 404 and json.loads(answer.body)["error"]["field"] == "id"


def test_other_paths_and_methods(client):
    assert client.get("/v1/search").status == 405
    assert client.get("/docs").status == client.get("/nothing").status == 404
    assert json.loads(client.get("/nothing").body) == {"error": {"reason": "Not Found", "field": None}}
    assert "/v1/search" in json.loads(client.get("/openapi.json").body)["paths"]


def test_meters_count_by_route_and_not_by_path(client):
    for number in range(3):
        client.get(f"/v1/documents/nothing{number}")
    text = client.get("/metrics").body.decode()
    assert "nothing" not in text
    assert 'qrag_requests_total{route="/v1/documents/{id:path}",status="404"}' in text
    assert 'qrag_index_documents{index="notes"} 3.0' in text and "process_open_fds" in text


def test_a_token_guards_all_but_health(index):
    with serving(library(index), token="secret") as client:
        assert client.search(QUESTION)[0] == 401
        assert client.post("/v1/search", {"question": QUESTION}, {"Authorization": "Bearer secret"})[0] == 200
        assert client.get("/").headers["location"].startswith("/login")
        assert client.request("POST", "/login", "token=wrong&next=%2F").status == 401
        entered = client.request("POST", "/login", "token=secret&next=%2F%3Fquestion%3Dkey")
        assert (entered.status, entered.headers["location"]) == (303, "/?question=key")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "secret" not in cookie
        assert b"Mary has" in client.get("/?question=key", Cookie=cookie.partition(";")[0]).body
        for outside in ("//evil.example", "https://evil.example", "/\\evil.example", ""):
            entered = client.request("POST", "/login", f"token=secret&next={outside}")
            assert entered.headers["location"] == "/"


def test_pages(client):
    assert b"<form" in client.get("/").body
    found = client.get("/?question=Who+has+the+key%3F").body.decode()
    assert "<mark" in found and "key.md" in found and "<script" not in found
    answer = client.get("/?question=Who+has+the+key%3F&mode=ask").body.decode()
    assert answer.index("passage-1") < answer.index('class="answer"') and "Mary has the key." in answer
    document = client.search(QUESTION)[1]["hits"][0]["document"]
    shown = client.get(f"/document?id={document}&at=0-17&spans=0-17")
    assert shown.status == 200 and b'id="hit"' in shown.body
    assert client.get("/style.css").headers["content-type"].startswith("text/css")
    for path, status in {
        "/?question=key&index=other": 422,
        f"/?question={'x' * (MAX_QUESTION + 1)}": 422,
        "/document?id=/etc/hostname": 404,
        "/document?id=x&at=zz": 404,
        "/document": 422,
    }.items():
        assert client.get(path).status == status, path


def test_a_document_whose_name_has_a_line_break(tmp_path):
    update(tmp_path / "n.index", write_notes(tmp_path / "notes", **{"a\nb": "A key."}), settings=TOKENS)
    with serving(library(tmp_path / "n.index")) as client:
        (hit,) = client.search("key")[1]["hits"]
        assert client.get(f"/v1/documents/{quote(hit['document'], safe='')}").status == 200


def test_ten_clients_at_once(client):
    statuses = []
    threads = [threading.Thread(target=lambda: statuses.append(client.search(QUESTION)[0])) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert statuses == [200] * 10


def test_a_full_queue_says_when_to_come_back(index, monkeypatch):
    free, begun = threading.Event(), threading.Event()
    with serving(library(index), max_waiting=1) as client:

        def hold(self, query):
            begun.set()
            assert free.wait(PATIENCE)
            return []

        monkeypatch.setattr(Library, "search", hold)
        first = threading.Thread(target=client.search, args=(QUESTION,))
        first.start()
        assert begun.wait(PATIENCE)
        answer = client.request("POST", "/v1/search", json.dumps({"question": QUESTION}), JSON)
        assert answer.status == 503 and answer.headers["retry-after"] == "1"
        free.set()
        first.join(PATIENCE)


def test_clients_that_read_slowly_or_leave_hold_nobody_up(client, index):
    document = next(one["document"] for one in client.search("Line 7 of a long text")[1]["hits"])
    slow, gone = client.connect(), client.connect()
    for one in (slow, gone):
        one.sendall(f"GET /v1/documents/{document} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert slow.recv(1) and gone.recv(1)
    gone.close()
    half = client.connect()
    half.sendall(b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    asking = client.connect()
    body = json.dumps({"question": QUESTION}).encode()
    asking.sendall(b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    asking.close()
    assert [client.search(QUESTION)[0] for _ in range(3)] == [200] * 3
    slow.close()
    half.close()


def test_answers_that_nobody_waits_for_leave_the_queue(index):
    begun, free, prompts = threading.Event(), threading.Event(), []

    def reply(prompt):
        prompts.append(prompt)
        begun.set()
        assert free.wait(PATIENCE)
        return "Mary [1]."

    with serving(library(index, reply), writers=1, max_waiting=3) as client:
        body = json.dumps({"question": QUESTION}).encode()
        sent = b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        page = b"GET /?mode=ask&question=key HTTP/1.1\r\nHost: localhost\r\n\r\n"
        gone = []
        for one in (sent, sent, page):
            gone.append(client.connect())
            gone[-1].sendall(one)
            assert begun.wait(PATIENCE) and gone[-1].recv(1)
        waits = 'qrag_waiting{queue="answers"} %d'
        assert (waits % 3).encode() in client.get("/metrics").body
        for one in gone:
            one.close()
        wait_for(lambda: (waits % 1).encode() in client.get("/metrics").body)
        free.set()
        wait_for(lambda: (waits % 0).encode() in client.get("/metrics").body)
        assert len(prompts) == 1


def test_a_model_that_is_slow_or_dead(index, monkeypatch):
    monkeypatch.setattr(module, "_BEAT_SECONDS", 0.02)
    free = threading.Event()

    def write(prompt):
        assert free.wait(PATIENCE)
        raise RuntimeError("the model died")

    def reply(prompt):
        free.wait(0.2)
        return "Mary <script>alert(1)</script> [1] [7]."

    with serving(library(index, reply)) as client:
        raw = client.request("POST", "/v1/ask", json.dumps({"question": QUESTION}), JSON).body
        assert b"\n: " in raw or raw.startswith(b": ")
        answer = client.events({"question": QUESTION})[-1][1]
        assert answer["unknown_citations"] == [7] and answer["citations"][0]["number"] == 1
        page = client.get("/?question=Who+has+the+key%3F&mode=ask").body
        assert b"&lt;script&gt;" in page and b"<script" not in page


def test_an_index_that_is_removed_while_it_is_served(index, tmp_path):
    shutil.copytree(index, tmp_path / "notes.index")
    with serving(library(tmp_path / "notes.index")) as client, pytest.warns(UserWarning, match="last state"):
        shutil.rmtree(tmp_path / "notes.index")
        wait_for(lambda: json.loads(client.get("/healthz").body)["stale"] == 1)
        status, found = client.search(QUESTION)
        assert status == 200 and found["hits"] and "its last state" in found["warnings"][0]


def test_a_library_that_cannot_be_searched_ends_the_server(index):
    broken = Library.open([str(index)], replace(WORDS, notes="best_of"))
    with pytest.raises(UsageError, match="notes"):
        module.run(broken, module.ServeOptions(), module.socket.create_server(("127.0.0.1", 0)))


def test_agents_pass_the_same_guard_and_queue(index):
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    wanted = JSON | {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    with serving(library(index), token="secret") as client:
        assert client.post("/mcp", listing, wanted)[0] == 401
        status, answer = client.post("/mcp", listing, wanted | {"Authorization": "Bearer secret"})
        assert status == 200 and sorted(tool["name"] for tool in answer["result"]["tools"]) == ["fetch", "search"]
        assert client.get("/mcp", Authorization="Bearer secret").status == 405
        assert client.post("/mcp", listing, wanted | {"Host": "evil.example"})[0] == 421
