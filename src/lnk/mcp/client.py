"""The client's end of MCP: requests to write and answers read, without I/O in `Client`; `Program` runs it over pipes.

It speaks the stateless revision, and falls back to the handshake where the server does not know it.
"""

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Final, Self

import msgspec

from lnk.errors import Invalid, LinkError, Missing, Unavailable
from lnk.lines import Lines, TooLong, format_line
from lnk.mcp.protocol import CAPABILITIES_META, CLIENT_META, HANDSHAKE, MODERN, VERSION_META, Message

ANSWER_BYTES_MAX: Final = 16 << 20  # the largest answer taken: 50,000 tokens twice, escaped, and room
_READ_BYTES: Final = 1 << 16
_END_WAIT_S: Final = 3  # the server ends within 2 s of its input
_KINDS: Final = {kind.status: kind for kind in LinkError.__subclasses__()}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool answered: `failed` says that `text` is a refusal."""

    text: str
    structured: Any
    failed: bool


class Client:
    """One session's numbering and words. `request` gives the line to write, `read` what a line that came holds."""

    def __init__(self, name: str, version: str) -> None:
        self._info = {"name": name, "version": version}
        self._number = 0
        self.modern = True

    def request(
        self, method: str, params: Mapping[str, Any], meta: Mapping[str, Any] | None = None
    ) -> tuple[int, bytes]:
        """The id of a new request, and its line."""
        self._number += 1
        own: Message = dict(meta or {})
        if self.modern:
            own |= {VERSION_META: MODERN[0], CLIENT_META: self._info, CAPABILITIES_META: {}}
        body = {**params, "_meta": own} if own else dict(params)
        return self._number, format_line({"jsonrpc": "2.0", "id": self._number, "method": method, "params": body})

    def handshake(self) -> dict[str, Any]:
        """The params of `initialize`, from which on the session is of the handshake's era."""
        self.modern = False
        return {"protocolVersion": HANDSHAKE[0], "capabilities": {}, "clientInfo": self._info}


class Program:
    """An MCP server started as a program, and one session with it. Use as a context: leaving ends the program."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        fds: Sequence[int] = (),
        version: str = "0",
        hear: Callable[[str], None] | None = None,
    ) -> None:
        """`hear` is given each line that the program says on standard error, which is else ours.

        `fds`: descriptors of ours that it has too.
        """
        self._client = Client("lnk", version)
        self._lines = Lines(ANSWER_BYTES_MAX)
        self._ready: list[bytes | TooLong] = []
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if hear is None else subprocess.PIPE,
                env=None if env is None else dict(env),
                cwd=cwd,
                pass_fds=fds,
                bufsize=0,
            )
        except OSError as error:
            raise Missing(f"Could not start {argv[0]}: {error.strerror}; is Link Memory installed whole?") from None
        self._said = _Said(self._process.stderr, hear) if self._process.stderr and hear else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the input, and the program with it."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        if self._said:
            self._said.end()

    def open(self) -> Message:
        """What the server says of itself: its `capabilities`, `instructions`, and `serverInfo` where it gives one."""
        found = self._ask("server/discover", {})
        if "error" not in found:
            return dict(found["result"])
        found = self._ask("initialize", self._client.handshake())
        self._write(format_line({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        return dict(_result(found))

    def tools(self) -> list[Message]:
        """The server's tools as it lists them."""
        return list(_result(self._ask("tools/list", {}))["tools"])

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Answer:
        """What the tool `name` answers. `progress` hears (done, of) while it works. Raises Invalid, Unavailable."""
        own = {**(meta or {}), "progressToken": "p"} if progress else meta
        found = self._ask("tools/call", {"name": name, "arguments": dict(arguments)}, own, progress)
        result = _result(found)
        text = "".join(part.get("text", "") for part in result.get("content", ()))
        return Answer(text=text, structured=result.get("structuredContent"), failed=bool(result.get("isError")))

    def _ask(
        self,
        method: str,
        params: Mapping[str, Any],
        meta: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Message:
        number, line = self._client.request(method, params, meta)
        self._write(line)
        while True:
            message = self._next()
            if message.get("id") == number and "method" not in message:
                return message
            if progress and message.get("method") == "notifications/progress":
                how = message.get("params", {})
                progress(int(how.get("progress", 0)), int(how.get("total", 0)))

    def _write(self, line: bytes) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(line)
        except BrokenPipeError:
            raise self._ended() from None

    def _next(self) -> Message:
        assert self._process.stdout
        while not self._ready:
            data = os.read(self._process.stdout.fileno(), _READ_BYTES)
            if not data:
                raise self._ended()
            self._ready.extend(self._lines.feed(data))
        line = self._ready.pop(0)
        try:
            return dict(msgspec.json.decode(b"" if isinstance(line, TooLong) else line))
        except (msgspec.DecodeError, TypeError, ValueError):
            raise Unavailable("The memory engine answered with something that is no MCP.") from None

    def _ended(self) -> LinkError:
        """What ended the program: where it refused in one sentence, that, and the kind its exit status says."""
        status = self._process.wait()
        refusal = self._said.refusal() if self._said else ""
        if refusal and status in _KINDS:
            return _KINDS[status](refusal)
        return Unavailable(f"The memory engine ended (status {status}); what it said is above.")


class _Said:
    """What a program says on standard error, passed on line by line, but for its last line, which may be a refusal."""

    def __init__(self, pipe: IO[bytes], hear: Callable[[str], None]) -> None:
        self._pipe = pipe
        self._hear = hear
        self._last = ""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def refusal(self) -> str:
        """The last line without the program's name, which is then not passed on; empty where it is no sentence."""
        self._thread.join(_END_WAIT_S)
        name, colon, sentence = self._last.partition(": ")
        if not colon or " " in name:
            return ""
        self._last = ""
        return sentence

    def end(self) -> None:
        """The program has ended: what is held back is passed on."""
        self._thread.join(_END_WAIT_S)
        if self._last:
            self._hear(self._last)
            self._last = ""
        if not self._thread.is_alive():
            self._pipe.close()

    def _listen(self) -> None:
        for line in self._pipe:
            if self._last:
                self._hear(self._last)
            self._last = line.decode("utf-8", "replace").rstrip("\r\n")


def _result(message: Message) -> Message:
    if "error" in message:
        raise Invalid(str(message["error"].get("message", "The request was refused.")))
    return dict(message.get("result") or {})
