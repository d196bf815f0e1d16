"""Ways in which a server misbehaves, by kind, and what has to come of each call that meets one."""

import gzip
import itertools
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from support import bad_server
from support.bad_server import altered, body, good_answer, status, wire, wrong_length


@dataclass(frozen=True)
class Fault:
    """A way to misbehave, and what has to come of it.

    Attributes:
        name: for the table.
        misbehave: see `bad_server`.
        ends: "answer", "length", or words of the error.
        times: attempts of the prompt to which it happens.
        attempts: of the prompt; None is all that are allowed.
        is_fatal: the rest of the batch is not asked.
        is_slow: it lasts until the deadline, or would last beyond a short one.
        waits: seconds that the server asked to wait.
    """

    name: str
    misbehave: Callable
    ends: str
    times: float = float("inf")
    attempts: int | None = 1
    is_fatal: bool = False
    is_slow: bool = False
    waits: float = 0.0


def _broken(name, misbehave):
    """What ends the connection: the call is made again as often as it may be."""
    return Fault(name, misbehave, "broke off", attempts=None)


def _limited(name, headers, *, ends="answer", times=1, attempts=2, **more):
    """429, in most cases once."""
    return Fault(name, status(429, "too many", headers), ends, times=times, attempts=attempts, **more)


def _choice(**values):
    return altered(lambda answer: answer["choices"][0].update(values))


def _head(*lines, start=b"HTTP/1.1 200 OK"):
    return b"\r\n".join([start, *lines, b"", b""])


def _length(content):
    return b"Content-Length: %d" % len(content)


def _whole(content, *lines, **start):
    return _head(*lines, _length(content), **start) + content


def _chunks(content, size, last=b"0\r\n\r\n"):
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in _cut(content, size)) + last


def _chunked(content, *lines, size=100, last=b"0\r\n\r\n"):
    return _head(*lines, b"Transfer-Encoding: chunked") + _chunks(content, size, last)


def _cut(content, size):
    return [content[place : place + size] for place in range(0, len(content), size)]


def _said(content):
    """A status 400 whose body is these bytes."""
    return wire(lambda _: _whole(content, b"Content-Type: application/json", start=b"HTTP/1.1 400 Bad Request"))


def _packed(pack, name=b"gzip"):
    return wire(lambda content: _whole(pack(content), b"Content-Encoding: " + name))


@cache
def _bomb():
    """64 MB of blanks, in 64 kB."""
    return gzip.compress(b" " * (64 << 20))


def _deep_error(depth):
    return b'{"error":' + b'{"message":' * depth + b'"no"' + b"}" * (depth + 1)


_TRUNCATED = json.dumps(good_answer(0)).encode()[:-40]
_HUGE = json.dumps({**good_answer(0), "padding": "x" * 10_000_000}).encode()
_NO_JSON = "not complete JSON"
_UNTIL_CLOSED = b"Connection: close"

FAULTS = {
    "statuses": (
        Fault("error in rot13", status(400, "no", {"Content-Type": "text/plain; charset=rot13"}), "HTTP 400"),
        Fault("401", status(401, "Incorrect API key"), "TEST_SERVER_KEY", is_fatal=True),
        Fault("404 model", status(404, "no such model"), "no model 'tiny-model'", is_fatal=True),
        Fault("408 once", status(408, "too slow"), "answer", times=1, attempts=2),
        Fault("500", status(500, "worker died"), "HTTP 500", attempts=None),
        Fault(
            "prompt beyond the window",
            status(400, "This model's maximum context length is 2048 tokens", code="context_length_exceeded"),
            "longer than the model's window",
        ),
        _broken("101", wire(lambda _: _head(start=b"HTTP/1.1 101 Switching Protocols"))),
        Fault("204", wire(lambda _: _head(start=b"HTTP/1.1 204 No Content")), _NO_JSON),
        Fault("304", wire(lambda _: _head(start=b"HTTP/1.1 304 Not Modified")), "redirects to", is_fatal=True),
        Fault("999", wire(lambda content: _whole(content, start=b"HTTP/1.1 999 Odd")), "HTTP 999", attempts=None),
        _broken("status 000", wire(lambda content: _whole(content, start=b"HTTP/1.1 000 None"))),
        Fault("no reason", wire(lambda content: _whole(content, start=b"HTTP/1.1 200")), "answer"),
        Fault("redirect", status(307, "there", {"Location": "/v1/chat/completions"}), "redirects to", is_fatal=True),
        Fault(
            "redirect elsewhere",
            status(302, "go", {"Location": "http://other.test/"}),
            "redirects to",
            is_fatal=True,
        ),
        Fault("error with broken UTF-8", _said(b'{"error": {"message": "caf\xe9"}}'), "HTTP 400"),
        Fault("error of depth 1,100", _said(_deep_error(1_100)), "HTTP 400"),
        Fault("error of depth 100,000", _said(_deep_error(100_000)), "HTTP 400"),
        Fault(
            "error in punycode",  # whose decoder takes time that grows with the square of the length
            wire(
                lambda _: _whole(
                    b"-" + b"a" * 1_500_000,
                    b"Content-Type: text/plain; charset=punycode",
                    start=b"HTTP/1.1 400 Bad Request",
                )
            ),
            "HTTP 400",
            is_slow=True,
        ),
    ),
    "limits": (
        _limited("429 once, no Retry-After", {}),
        _limited("429 forever", {}, ends="HTTP 429", times=float("inf"), attempts=None),
        _limited("429 once, Retry-After: 1", {"Retry-After": "1"}, waits=1.0),
        _limited("429 once, Retry-After: nan", {"Retry-After": "nan"}),
        _limited("429 once, Retry-After: -1e999", {"Retry-After": "-1e999"}),
        _limited("429 once, in the year 999999", {"Retry-After": "Sat, 01 Jan 999999 00:00:00 GMT"}),
        _limited("429 once, a Retry-After of 60 kB", {"Retry-After": "1" + "x" * 60_000}),
        Fault("429, Retry-After: 100", status(429, "too many", {"Retry-After": "100"}), "HTTP 429", is_slow=True),
        Fault("429, Retry-After: 3600", status(429, "too many", {"Retry-After": "3600"}), "wait for 3600 s"),
    ),
    "connections": (
        Fault("server down", bad_server.go_down, "no connection to", attempts=None, is_fatal=True),
        _broken("reset in mid-body", bad_server.reset),
        _broken("reset at once", bad_server.reset_at_once),
        _broken("closed at once", wire(lambda _: b"")),
        _broken("closed in the head", wire(lambda content: _whole(content)[:20])),
        _broken("no head", wire(lambda content: content)),
        _broken("TLS for HTTP", wire(lambda _: b"\x15\x03\x01\x00\x02\x02\x46")),
        _broken("HTTP/2", wire(lambda _: b"\0\0\x12\x04\0\0\0\0\0" + bytes(18))),
        _broken("SSH", wire(lambda _: b"SSH-2.0-OpenSSH_9.6\r\n")),
        Fault("HTTP/1.0", wire(lambda content: _whole(content, start=b"HTTP/1.0 200 OK")), "answer"),
    ),
    "framing": (
        Fault("surplus answer", bad_server.surplus, "answer"),
        Fault("late surplus answer", bad_server.late_surplus, "answer"),
        Fault("surplus bytes", wire(lambda content: _whole(content) + bytes(70_000)), "answer"),
        _broken("blank lines before the head", wire(lambda content: b"\r\n\r\n" + _whole(content))),
        Fault("Content-Length too small", wrong_length(-40), _NO_JSON),
        _broken("Content-Length too large", wrong_length(40)),
        _broken("two lengths", wire(lambda content: _whole(content, b"Content-Length: 7"))),
        Fault("one length twice", wire(lambda content: _whole(content, _length(content))), "answer"),
        _broken("a negative length", wire(lambda content: _head(b"Content-Length: -5") + content)),
        _broken("a length of 5,000 digits", wire(lambda content: _head(b"Content-Length: " + b"9" * 5_000) + content)),
        Fault("no length", wire(lambda content: _head(_UNTIL_CLOSED) + content), "answer"),
        Fault("no length, cut", wire(lambda content: _head(_UNTIL_CLOSED) + content[:-40]), _NO_JSON),
        Fault(
            "no end",
            wire(lambda _: itertools.chain([_head(_UNTIL_CLOSED)], itertools.repeat(b" " * 65_536))),
            "too large",
        ),
        Fault("chunks of a byte", wire(lambda content: _chunked(content, size=1)), "answer"),
        Fault("chunks and a length", wire(lambda content: _chunked(content, b"Content-Length: 5")), "answer"),
        Fault("trailers", wire(lambda content: _chunked(content, last=b"0\r\nContent-Length: 3\r\n\r\n")), "answer"),
        Fault("an answer behind the last chunk", wire(lambda content: _chunked(content) + _whole(content)), "answer"),
        _broken("no last chunk", wire(lambda content: _chunked(content, last=b""))),
        _broken("a chunk that is cut", wire(lambda content: _chunked(content, last=b"")[:-30])),
        _broken(
            "a chunk longer than it says", wire(lambda content: _chunked(content).replace(b"64\r\n", b"60\r\n", 1))
        ),
        _broken("a chunk of size zz", wire(lambda content: _chunked(content).replace(b"64\r\n", b"zz\r\n", 1))),
        _broken("a chunk of size -64", wire(lambda content: _chunked(content).replace(b"64\r\n", b"-64\r\n", 1))),
        _broken("a chunk of 2**76 bytes", wire(lambda content: _chunked(content).replace(b"64", b"f" * 19, 1))),
        _broken("200 kB of trailers", wire(lambda content: _chunked(content, last=b"0\r\n" + b"X: y\r\n" * 40_000))),
        _broken("an unknown transfer encoding", wire(lambda content: _whole(content, b"Transfer-Encoding: gzip"))),
    ),
    "headers": (
        Fault("cookie that is not ASCII", wire(lambda content: _whole(content, b"Set-Cookie: a=caf\xe9")), "answer"),
        Fault("not ASCII", wire(lambda content: _whole(content, b"X-Server: caf\xe9")), "answer"),
        Fault("cookie of 90 kB", wire(lambda content: _whole(content, b"Set-Cookie: a=" + b"b" * 90_000)), "answer"),
        Fault(
            "1,000 headers", wire(lambda content: _whole(content, *(b"X-%d: y" % n for n in range(1_000)))), "answer"
        ),
        Fault("header of 90 kB", wire(lambda content: _whole(content, b"X: " + b"y" * 90_000)), "answer"),
        _broken("200 kB of headers", wire(lambda content: _whole(content, *[b"X: y"] * 40_000))),
        _broken("a line of 200 kB", wire(lambda content: _whole(content, b"X: " + b"y" * 200_000))),
        Fault(
            "each one twice",
            wire(lambda content: _whole(content, *[b"Content-Type: text/html", b"Retry-After: 9"] * 2)),
            "answer",
        ),
        Fault("folded", wire(lambda content: _whole(content, b"X: y\r\n  z")), "answer"),
        Fault("line feeds alone", wire(lambda content: _whole(content).replace(b"\r\n", b"\n")), "answer"),
        Fault("escapes of a terminal", wire(lambda content: _whole(content, b"X: \x1b[2J")), "answer"),
        Fault(
            "100 Continue", wire(lambda content: _head(start=b"HTTP/1.1 100 Continue") * 9 + _whole(content)), "answer"
        ),
        _broken("without a colon", wire(lambda content: _whole(content, b"nonsense"))),
        _broken("with a NUL", wire(lambda content: _whole(content, b"X: a\0b"))),
        Fault("charset that is none", wire(lambda content: _whole(content, b"Content-Type: a/b; charset=x")), "answer"),
    ),
    "packing": (
        Fault("gzip without its checksum", _packed(lambda content: gzip.compress(content)[:-8]), "answer"),
        Fault("gzip, cut", _packed(lambda content: gzip.compress(content)[:-40]), _NO_JSON),
        Fault("gzip bomb", _packed(lambda _: _bomb()), "too large"),
        Fault("gzip bomb in gzip", _packed(lambda _: gzip.compress(_bomb()), b"gzip, gzip"), "too large"),
        _broken("gzip with a wrong checksum", _packed(lambda content: gzip.compress(content)[:-8] + bytes(8))),
        _broken("gzip that is none", _packed(lambda content: content)),
        _broken("six packings", _packed(gzip.compress, b"gzip, " * 5 + b"gzip")),
        Fault("deflate without a head", _packed(lambda content: zlib.compress(content)[2:-4], b"deflate"), "answer"),
        Fault("unknown", _packed(lambda content: content, b"rot13"), "answer"),
    ),
    "bodies": (
        Fault("HTML for JSON", body(b"<html>Welcome</html>", "text/html"), _NO_JSON),
        Fault("empty", body(b""), _NO_JSON),
        Fault("null", body(b"null"), "not a JSON object"),
        Fault("truncated", body(_TRUNCATED), _NO_JSON),
        Fault("two answers", wire(lambda content: _whole(content + b"\n" + content)), _NO_JSON),
        Fault("events", wire(lambda content: _whole(b"data: " + content + b"\n\ndata: [DONE]\n\n")), "answer"),
        Fault("invalid UTF-8", wire(lambda content: _whole(content.replace(b"Answer", b"caf\xe9"))), _NO_JSON),
        Fault("UTF-16", wire(lambda content: _whole(content.decode().encode("utf-16"))), "answer"),
        Fault("byte order mark", wire(lambda content: _whole(b"\xef\xbb\xbf" + content)), "answer"),
        Fault("NULs before it", wire(lambda content: _whole(bytes(4) + content)), _NO_JSON),
        Fault("deep JSON", body(b"[" * 100_000), _NO_JSON),
        Fault("deep objects", body(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), _NO_JSON),
        Fault(
            "deep behind the answer",
            wire(lambda content: _whole(content[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
            _NO_JSON,
        ),
        Fault("a number of 5,000 digits", wire(lambda content: _whole(content.replace(b"1", b"1" * 5_000))), _NO_JSON),
        Fault("an error as the answer", body(b'{"error": {"message": "no memory"}}'), "reports an error"),
        Fault("a 10 MB answer", body(_HUGE), "too large"),
        Fault("empty choices", altered(lambda answer: answer.update(choices=[])), "no choices"),
        Fault("finish_reason length", _choice(finish_reason="length"), "length"),
        Fault("content filter", _choice(finish_reason="content_filter"), "content filter"),
        Fault("wrong model", altered(lambda answer: answer.update(model="other")), "'other' answered", is_fatal=True),
    ),
    "time": (
        Fault("stall", bad_server.stall, "deadline", is_slow=True),
        Fault("a byte now and then", bad_server.trickle, "deadline", is_slow=True),
        Fault(
            "a byte of the head now and then",
            wire(lambda content: _cut(_whole(content), 1), pause=0.05),
            "deadline",
            is_slow=True,
        ),
        Fault(
            "a chunk now and then",
            wire(
                lambda _: itertools.chain([_head(b"Transfer-Encoding: chunked")], itertools.repeat(b"1\r\n \r\n")), 0.05
            ),
            "deadline",
            is_slow=True,
        ),
        Fault(
            "100 Continue without end",
            wire(lambda _: itertools.repeat(_head(start=b"HTTP/1.1 100 Continue")), pause=0.01),
            "deadline",
            is_slow=True,
        ),
        Fault(
            "slow and whole",
            wire(lambda content: _cut(_whole(content), 40), pause=0.01),
            "answer",
        ),
    ),
}
