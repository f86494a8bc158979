"""For tests alone: model runtimes on loopback, as Ollama, LM Studio and llama.cpp answer, and hostile ones.

In this process each is a `Server` with a function from a request to its answer; the port is the system's to choose.
Run as a program, it stands for `ollama` or `llama-server`: `install` puts one into a folder of programs.
"""

import base64
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

DIMS: Final = 4
ENDED_S: Final = 20.0


class Request(NamedTuple):
    """What a server was asked; `headers` in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Reply(NamedTuple):
    """What it answers; `endless` goes on sending the body until nobody takes it any more."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012
    endless: bool = False


Answering = Callable[[Request], Reply | None]  # None: it says nothing, and keeps the connection open


class Server:
    """A server on a port of loopback that the system chose. `asked`: every request so far."""

    def __init__(self, answer: Answering, port: int = 0) -> None:
        self.asked: list[Request] = []
        self._silent = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def handle_request(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, body)
                server.asked.append(request)
                reply = answer(request)
                if reply is None:
                    server._silent.wait()
                else:
                    self.reply(reply)

            def reply(self, reply: Reply) -> None:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if not reply.endless:
                    self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)
                while reply.endless:
                    self.wfile.write(reply.body)

            do_GET = do_POST = handle_request

            def log_message(self, *_: object) -> None:
                """Nothing is said."""

        class Listening(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that has gone is none of our errors."""

        self._http = Listening(("127.0.0.1", port), Handler)
        self.port: int = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """It ends: nothing listens there any more."""
        self._silent.set()
        self._http.shutdown()
        self._http.server_close()

    def posts(self) -> list[Any]:
        """The bodies of what was posted."""
        return [request.body for request in self.asked if request.method == "POST"]


# ------------------------------------------------------------ what the runtimes answer


def ollama(*models: str | dict[str, Any], vector: list[float] | None = None, version: str = "0.12.3") -> Answering:
    """Ollama with these models, each a name or an entry of its list."""
    entries = [model if isinstance(model, dict) else {"name": model, "model": model, "details": {}} for model in models]
    names = {entry["name"] for entry in entries}
    return _paths(
        {"/api/version": {"version": version}, "/api/tags": {"models": entries}},
        lambda model: model in names or f"{model}:latest" in names,
        vector,
    )


def lm_studio(*models: str, vector: list[float] | None = None) -> Answering:
    """LM Studio with these models."""
    listed = [{"id": model, "object": "model", "owned_by": "organization_owner"} for model in models]
    return _paths({"/v1/models": {"object": "list", "data": listed}}, lambda model: model in models, vector)


def llama_cpp(name: str, *, file: str | None = None, vector: list[float] | None = None) -> Answering:
    """A llama.cpp server with this model; it takes any name in a request."""
    listed = {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "llamacpp", "meta": {}}]}
    props = {"model_path": file or name, "total_slots": 1, "build_info": "b6000"}
    return _paths({"/v1/models": listed, "/props": props}, lambda _: True, vector)


def _paths(found: dict[str, Any], has: Callable[[str], bool], vector: list[float] | None) -> Answering:
    def answer(request: Request) -> Reply:
        if request.method == "GET" and request.path in found:
            return as_json(found[request.path])
        if request.method != "POST" or request.path != "/v1/embeddings":
            return as_json({"error": "404 page not found"}, 404)
        if not has(request.body["model"]):
            return as_json({"error": {"message": "model not found, try pulling it first"}}, 404)
        return as_json(embedding(vector or [0.5] * DIMS))

    return answer


def as_json(value: Any, status: int = 200) -> Reply:
    """An answer of JSON."""
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


def embedding(vector: Any) -> dict[str, Any]:
    """The answer with one vector."""
    return {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": vector}]}


def instead(answer: Answering, path: str, reply: Reply | None) -> Answering:
    """`answer`, but for one path."""
    return lambda request: reply if request.path == path else answer(request)


def in_base64(numbers: Iterable[float]) -> str:
    """A vector as base64 of float32."""
    numbers = list(numbers)
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


# ------------------------------------------------------------ as programs


def install(folder: Path, program: str, **told: Any) -> Path:
    """Puts `program` (ollama, llama-server, another) into the folder. What it does is told by `told`, kept beside it.

    `models`: what Ollama has; `fails`: it says this and ends; `silent`: it never listens; `started`: the file in which
    it keeps its argv, and the numbers of its own process and of one that it started in turn.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{program}.json").write_text(json.dumps(told))
    script = folder / program
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "{folder / program}.json" "$@"\n')
    script.chmod(0o755)
    return script


def ended(process: int) -> bool:
    """Whether the process ends within a time that is more than enough."""
    import select

    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], ENDED_S)[0])
    finally:
        os.close(handle)


def _run(told: dict[str, Any], argv: list[str]) -> None:
    runner = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    if "started" in told:
        part = Path(told["started"] + ".part")
        said = {"argv": argv, "pid": os.getpid(), "runner": runner.pid, "path": os.environ.get("PATH")}
        part.write_text(json.dumps(said))
        part.rename(told["started"])
    if "fails" in told:
        sys.stdout.write("a first line\n")
        sys.stdout.flush()
        sys.stderr.write(f"{told['fails']}\n")
        runner.kill()
        sys.exit(3)
    if not told.get("silent"):
        if argv == ["serve"]:
            answer, port = ollama(*told["models"]), int(os.environ["OLLAMA_HOST"].rpartition(":")[2])
        else:
            alias = argv[argv.index("--alias") + 1] if "--alias" in argv else "as it pleases"
            answer, port = llama_cpp(alias), int(argv[argv.index("--port") + 1])
        Server(answer, port)
        sys.stdout.write("x" * 200_000 + "\n")  # more than a pipe holds: it must be read
        sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    _run(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2:])
