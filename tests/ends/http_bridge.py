"""For tests alone: MCP over HTTP in front of a server on standard input and output, for judges that speak only HTTP.

Loopback only. The stateless era is answered by one process, each session of the handshake's era by one of its own.
Knows MCP as far as HTTP says something about it: which status goes with which error, and whose session a request is of.
"""

import contextlib
import itertools
import json
import queue
import subprocess
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

ANSWER_WAIT_S: Final = 60
BODY_BYTES_MAX: Final = 4 << 20
LOCAL: Final = ("localhost", "127.0.0.1", "::1")
STATELESS: Final = ""
MODERN_META: Final = "io.modelcontextprotocol/protocolVersion"

Message = dict[str, Any]


class Child:
    """One process of the server. Requests of several clients get ids of their own on the way, and theirs back."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[Message]] = {}
        self._writing = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            message = json.loads(line)
            if waiting := self._answers.get(message.get("id")):
                waiting.put(message)

    def tell(self, message: Message) -> None:
        """Write a message that needs no answer."""
        assert self._process.stdin
        with self._writing:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def ask(self, message: Message) -> Message:
        """The answer to a request."""
        number = next(self._numbers)
        waiting = self._answers[number] = queue.SimpleQueue()
        try:
            self.tell({**message, "id": number})
            return {**waiting.get(timeout=ANSWER_WAIT_S), "id": message["id"]}
        finally:
            del self._answers[number]

    def close(self) -> None:
        """End its input, and wait for it."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(ANSWER_WAIT_S)
        self._process.stdout.close()


class Bridge(ThreadingHTTPServer):
    """An HTTP server on a free port of this machine, with the processes behind it."""

    daemon_threads = True

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self._argv = argv
        self._lock = threading.Lock()
        self._children: dict[str, Child] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mcp"

    def child(self, session: str, *, make: bool = False) -> Child | None:
        """The process of a session, started where it is to be made."""
        with self._lock:
            if session not in self._children and make:
                self._children[session] = Child(self._argv)
            return self._children.get(session)

    def forget(self, session: str) -> bool:
        """End the session's process. False where there is none."""
        with self._lock:
            child = self._children.pop(session, None) if session else None
        if child:
            child.close()
        return child is not None

    def close(self) -> None:
        """End all."""
        self.shutdown()
        self.server_close()
        for child in self._children.values():
            child.close()


class Requests(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    server: Bridge

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a judge may leave at any moment
            super().handle()

    def do_GET(self) -> None:
        """A stream of the server's own words: there are none."""
        self._say(405)

    def do_DELETE(self) -> None:
        self._say(200 if self.server.forget(self.headers.get("Mcp-Session-Id", "")) else 404)

    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), BODY_BYTES_MAX))
        if not self._local():
            return self._say(403)
        try:
            message = json.loads(body)
        except ValueError:
            return self._say(400, refusal(-32700, "Parse error"))
        if not isinstance(message, dict):
            return self._say(400, refusal(-32600, "One message at a time"))
        modern = self._modern(message)
        session, named = self.headers.get("Mcp-Session-Id", ""), {}
        if modern:
            session = STATELESS
        elif message.get("method") == "initialize":
            session = uuid.uuid4().hex
            named = {"Mcp-Session-Id": session}
        elif not session:
            return self._say(400, refusal(-32600, "No Mcp-Session-Id"))
        child = self.server.child(session, make=modern or bool(named))
        if child is None:
            return self._say(404, refusal(-32600, "No such session"))
        if "id" not in message or "method" not in message:
            child.tell(message)
            return self._say(202)
        answer = child.ask(message)
        return self._say(status(answer) if modern else 200, answer, named)

    def _modern(self, message: Message) -> bool:
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        said = isinstance(meta, dict) and MODERN_META in meta
        return said or self.headers.get("MCP-Protocol-Version", "") >= "2026"

    def _local(self) -> bool:
        """Whether the request names this machine: a page elsewhere must not reach it by a name of its own."""
        names = [urlsplit("//" + self.headers.get("Host", "")).hostname]
        if origin := self.headers.get("Origin"):
            names.append(urlsplit(origin).hostname)
        return all(name in LOCAL for name in names)

    def _say(self, code: int, message: Message | None = None, named: dict[str, str] | None = None) -> None:
        body = json.dumps(message).encode() if message else b""
        self.send_response(code)
        for name, value in {**(named or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        if body:
            self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the judge reports."""


def status(answer: Message) -> int:
    """The HTTP status that the stateless revision asks for with this answer."""
    error = answer.get("error", {})
    if error.get("code") == -32601:
        return 404
    if error.get("code") == -32022 or (error.get("code") == -32602 and "_meta" in error["message"]):
        return 400
    return 200


def refusal(code: int, text: str) -> Message:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": text}}


@contextmanager
def bridged(argv: Sequence[str]) -> Iterator[str]:
    """The URL under which the server `argv` speaks HTTP, as long as the context lasts."""
    bridge = Bridge(argv)
    thread = threading.Thread(target=bridge.serve_forever, daemon=True)
    thread.start()
    try:
        yield bridge.url
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            bridge.close()
        thread.join()
