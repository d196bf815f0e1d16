"""Who may send requests, and how long they may be."""

import asyncio
import json

import pytest

from qrag_jax.page import login_page
from qrag_jax.serve import guard
from qrag_jax.serve.guard import HEADERS, MAX_BODY, Guard, cookie_of


async def _echo(scope, receive, send):
    """Says how long the body is."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def ask(parts=(b"",), path="/v1/search", host="127.0.0.1:8000", query=b"", own=None, **headers):
    """Status, headers and body of the answer to a body that comes in parts; None is a part that never comes."""
    sent, waiting = [], list(parts)
    own = own or Guard(_echo)

    async def receive():
        part = waiting.pop(0)
        if part is None:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": part, "more_body": bool(waiting)}

    async def send(message):
        sent.append(message)

    named = {"host": host} | {name.replace("_", "-"): value for name, value in headers.items()}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in named.items() if value is not None]
    scope = {"type": "http", "path": path, "query_string": query, "headers": raw, "method": "POST"}
    asyncio.run(own(scope, receive, send))
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, sent[1]["body"]


def reason(answer):
    return json.loads(answer[2])["error"]["reason"]


def test_every_answer_has_the_headers_that_keep_pages_inert():
    for answer in (ask(), ask(host="evil.example")):
        assert HEADERS.items() <= answer[1].items()
    assert "script-src" not in HEADERS["content-security-policy"]  # so default-src 'none' holds for scripts


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8000", "localhost:1", "LOCALHOST", "[::1]:8000", "127.9.9.9", "proxy.example"]
)
def test_names_of_this_server(host):
    assert ask(host=host, own=Guard(_echo, names=("proxy.example",)))[0] == 200


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.1", "[::1", "a b", "\xe9"]
)
def test_other_names_are_refused(host):
    answer = ask(host=host)
    assert answer[0] == 421 and "--allowed_host" in reason(answer)


def test_a_server_for_all_addresses_takes_any_address_and_its_own_name_but_no_other_name(monkeypatch):
    monkeypatch.setattr(guard.socket, "gethostname", lambda: "Mill")
    monkeypatch.setattr(guard.socket, "getfqdn", lambda: "mill.example")
    own = Guard(_echo, host="0.0.0.0")
    statuses = [ask(host=host, own=own)[0] for host in ("10.0.0.1:80", "mill", "mill.example", "evil.example")]
    assert statuses == [200, 200, 200, 421]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://127.0.0.1:8000", 200),
        ("https://127.0.0.1:8000", 200),
        ("http://127.0.0.1:9", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
        ("", 403),
    ],
)
def test_origins(origin, status):
    assert ask(origin=origin)[0] == status


@pytest.mark.parametrize(
    ("site", "mode", "dest", "status"),
    [
        ("same-origin", "navigate", "document", 200),
        ("none", "navigate", "document", 200),
        ("cross-site", "navigate", "document", 200),  # a link that a person follows
        ("cross-site", "navigate", "iframe", 403),
        ("cross-site", "no-cors", "image", 403),
        ("same-site", "no-cors", "script", 403),  # another port of this machine
        ("cross-site", None, None, 403),
    ],
)
def test_what_a_browser_fetches_for_another_site_is_refused(site, mode, dest, status):
    assert ask(sec_fetch_site=site, sec_fetch_mode=mode, sec_fetch_dest=dest)[0] == status


def test_a_browser_names_the_origin_of_our_own_form():
    """With `no-referrer` it would send `Origin: null` and never get past the form for the token."""
    assert HEADERS["referrer-policy"] == "same-origin"
    assert 'name="referrer" content="same-origin"' in login_page()


def test_the_token_as_a_header_or_as_a_cookie_that_does_not_contain_it():
    own = Guard(_echo, token="s\u00e9cret")
    sent = "s\u00e9cret".encode().decode("latin-1")
    assert ask(own=own, authorization=f"Bearer {sent}")[0] == 200
    assert ask(own=own, authorization=f"bearer  {sent} ")[0] == 200
    name, cookie = cookie_of("s\u00e9cret")
    assert "cret" not in cookie
    assert ask(own=own, cookie=f"other=1; {name}={cookie}")[0] == 200
    wrong = ["Bearer wrong", f"Basic {sent}", "Bearer", "", None]
    for headers in [
        *({"authorization": value} for value in wrong),
        *({"cookie": value} for value in (f"{name}={sent}", f'{name}="', "\x01=;")),
    ]:
        answer = ask(own=own, **headers)
        assert answer[0] == 401 and answer[1]["www-authenticate"] == "Bearer", headers
    assert [ask(own=own, path=path)[0] for path in sorted(guard.OPEN_PATHS)] == [200] * 3


def test_a_person_without_the_token_comes_to_the_form_and_back():
    status, headers, _ = ask(own=Guard(_echo, token="t"), path="/document", query=b"id=a%20b&at=1-2")
    assert (status, headers["location"]) == (303, "/login?next=%2Fdocument%3Fid%3Da%2520b%26at%3D1-2")


def test_bodies():
    assert ask([b"ab", b"c"])[2] == b"3"
    assert ask([b"x" * MAX_BODY])[0] == 200
    answer = ask([b"x" * MAX_BODY, b"x", None])  # what follows is not read
    assert answer[0] == 413 and answer[1]["connection"] == "close" and "shorter" in reason(answer)


def test_a_body_that_does_not_come(monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.05)
    answer = ask([b"a", None])
    assert answer[0] == 408 and answer[1]["connection"] == "close"
