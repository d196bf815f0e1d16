"""The few routes of the Hugging Face hub that sharing a run needs, served on this machine by a thread."""

import base64
import hashlib
import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

TOKEN = "hf_good"


class StubHub:
    """What the server knows; tests read and alter it.

    Attributes:
        repositories: commits by name, newest last, each of them files by name; accounts but `alice` are not writable.
        private: names that need the token.
        gated: names that are closed to all.
        failing: ends of paths that answer 410, which the client does not ask for again.
        requests: `GET /path`, in order.
    """

    def __init__(self):
        self.repositories: dict[str, list[dict[str, bytes]]] = {}
        self.private: set[str] = set()
        self.gated: set[str] = set()
        self.failing: set[str] = set()
        self.requests: list[str] = []
        self.endpoint = ""

    def files(self, name):
        return self.repositories[name][-1]

    def sha(self, name, number=-1):
        commits = self.repositories[name]
        return hashlib.sha1(f"{name} {number % len(commits)}".encode()).hexdigest()

    def commit(self, name, revision):
        """(sha, files) of a branch or commit, or None."""
        if revision == "main":
            return self.sha(name), self.files(name)
        shas = [self.sha(name, i) for i in range(len(self.repositories[name]))]
        return (revision, self.repositories[name][shas.index(revision)]) if revision in shas else None


@contextmanager
def serve_hub():
    """A running stub; its `endpoint` is where."""
    hub = StubHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def answer(self, status, value=None, headers=None, body=None):
            body = json.dumps(value).encode() if body is None else body
            self.send_response(status)
            for name, text in ({"Content-Type": "application/json"} | (headers or {})).items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def fault(self, status, message, code=None):
            self.answer(
                status, {"error": message}, {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
            )

        def allowed(self):
            return self.headers.get("Authorization") == f"Bearer {TOKEN}"

        def handle_any(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            if any(path.endswith(end) for end in hub.failing):
                return self.fault(410, "the stub is out of order")
            if path == "/api/repos/create":
                return self.create(json.loads(body))
            if path == "/api/validate-yaml":
                bad = "license: nonsense" in json.loads(body)["content"]
                errors = [{"message": '"license" must be one of a list'}] if bad else []
                return self.answer(400 if bad else 200, {"errors": errors, "warnings": []})
            if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|preupload|commit)/(.+))?", path):
                return self.model(match[1], match[2], match[3], body)
            if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                return self.resolve(*match.groups())
            return self.fault(404, f"no route {path}")

        do_GET = do_HEAD = do_POST = handle_any

        def create(self, wanted):
            name = f"{wanted['organization']}/{wanted['name']}"
            if not self.allowed():
                return self.fault(401, "Invalid username or password.")
            if name in hub.repositories:
                return self.answer(409, {"error": "exists", "url": f"{hub.endpoint}/{name}"})
            if wanted["organization"] != "alice":
                return self.fault(403, "You don't have the rights to create a model under this namespace")
            hub.repositories[name] = [{".gitattributes": b"*.bin filter=lfs\n"}]
            if wanted.get("visibility") == "private" or wanted.get("private"):
                hub.private.add(name)
            return self.answer(200, {"url": f"{hub.endpoint}/{name}"})

        def missing(self, name):
            """Answers for a repository that cannot be read; the hub's 401 does not say whether it exists."""
            if name in hub.gated:
                self.fault(403, "Access is restricted", "GatedRepo")
                return True
            if name not in hub.repositories or (name in hub.private and not self.allowed()):
                self.fault(404 if self.allowed() else 401, "Repository not found", "RepoNotFound")
                return True
            return False

        def model(self, name, action, revision, body):
            if self.missing(name):
                return None
            if action in (None, "revision"):
                found = hub.commit(name, revision or "main")
                if found is None:
                    return self.fault(404, "Invalid rev id", "RevisionNotFound")
                siblings = [{"rfilename": file, "size": len(found[1][file])} for file in sorted(found[1])]
                about = {"id": name, "modelId": name, "sha": found[0], "private": name in hub.private}
                return self.answer(200, about | {"siblings": siblings, "tags": []})
            if not self.allowed() or not name.startswith("alice/"):
                return self.fault(403, "You don't have the rights to write")
            if action == "preupload":
                wanted = json.loads(body)["files"]
                modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in wanted]
                return self.answer(200, {"files": modes})
            files = dict(hub.files(name))
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del files[line["value"]["path"]]
            hub.repositories[name].append(files)
            url = f"{hub.endpoint}/{name}/commit/{hub.sha(name)}"
            return self.answer(200, {"commitUrl": url, "commitOid": hub.sha(name)})

        def resolve(self, name, revision, file):
            if self.missing(name):
                return None
            found = hub.commit(name, revision)
            if found is None or file not in found[1]:
                return self.fault(404, "Entry not found", "EntryNotFound")
            content = found[1][file]
            etag = hashlib.sha1(content).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": found[0], "Content-Type": "application/octet-stream"}
            return self.answer(200, headers=headers, body=content)

    return Handler


@contextmanager
def reachable_hub(tmp_path, monkeypatch):
    """The stub, and a client that is online and has a token, and nothing of this user's; for a test's fixture."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serve_hub() as stub:
        yield stub
