"""The server's end of MCP without I/O: lines in; answers to write and calls to make out.

The era is decided request by request: a protocol version in `_meta` is the stateless one; none is the handshake's,
which only `initialize` opens. Knows tools as data and nothing of what they do.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from lnk.lines import LINE_BYTES_MAX, TooLong, format_line
from lnk.mcp.protocol import (
    CAPABILITIES_META,
    HANDSHAKE,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MODERN,
    SERVER_META,
    SUPPORTED,
    UNSUPPORTED_VERSION,
    VERSION_META,
    Message,
    ProtocolError,
    parse_line,
    valid_id,
)

_ABOUT: Final = {"capabilities": {"tools": {"listChanged": False}}}
TTL_MS: Final = 3_600_000  # how long a client may keep the list of tools: it changes only with the program


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as `tools/list` gives it."""

    name: str
    title: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    annotations: dict[str, bool]

    def as_json(self) -> Message:
        """The tool's entry in `tools/list`."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "annotations": self.annotations,
        }


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself."""

    name: str
    title: str
    version: str
    tools: Sequence[Tool]


class Reply(msgspec.Struct, frozen=True):
    """A line to write."""

    line: bytes


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A tool to call, then to answer by `Session.result` or `Session.error`."""

    id: str | int
    name: str
    arguments: Mapping[str, Any]
    meta: Mapping[str, Any]
    modern: bool

    @property
    def progress(self) -> str | int | None:
        """The token under which the client wants to hear how far the call is, or None."""
        token = self.meta.get("progressToken")
        return token if valid_id(token) else None


class Describe(msgspec.Struct, frozen=True, eq=False):
    """The client asks what the server is for: to be answered by `Session.described`, with words that may change."""

    id: str | int
    result: Message
    modern: bool


class Cancelled(msgspec.Struct, frozen=True):
    """The client no longer wants the answer of this call: stop it, and write nothing for it."""

    call: Call


Action = Reply | Call | Describe | Cancelled


class Session:
    """One connection. `receive` each line that comes; write each `Reply`; make each `Call`."""

    def __init__(self, service: Service, *, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._service = service
        self._line_bytes_max = line_bytes_max
        self._opened = False
        self._calls: dict[str | int, Call] = {}
        self._names = {tool.name for tool in service.tools}

    @property
    def waiting(self) -> int:
        """How many calls are made and not answered."""
        return len(self._calls)

    def wants(self, call: Call) -> bool:
        """Whether the client still waits for the answer of `call`."""
        return self._calls.get(call.id) is call

    def receive(self, line: bytes | TooLong) -> list[Action]:
        """What to do for one line. Never raises: what is no MCP is answered as that."""
        if isinstance(line, bytes) and not line.strip():
            return []
        try:
            messages = parse_line(line, self._line_bytes_max)
        except ProtocolError as error:
            return [_refusal(None, error)]
        return [action for message in messages for action in self._message(message)]

    def _message(self, message: Any) -> list[Action]:
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return [_refusal(None, ProtocolError(INVALID_REQUEST, 'A message is an object with "jsonrpc": "2.0".'))]
        if "method" not in message and ("result" in message or "error" in message):
            return []  # an answer to a question that we never ask
        number = message.get("id")
        if "id" in message and not valid_id(number):
            return [_refusal(None, ProtocolError(INVALID_REQUEST, "An id is a short string or a whole number."))]
        method, params = message.get("method"), message.get("params")
        known = number if "id" in message else None
        if not isinstance(method, str) or not isinstance(params, dict | None):
            return [_refusal(known, ProtocolError(INVALID_REQUEST, "A request has a method and an object of params."))]
        if "id" not in message:
            return self._notification(method, params or {})
        try:
            return [self._request(number, method, params or {})]  # type: ignore[arg-type]
        except ProtocolError as error:
            return [_refusal(number, error)]

    def _notification(self, method: str, params: Message) -> list[Action]:
        if method != "notifications/cancelled":
            return []
        number: Any = params.get("requestId")
        call = self._calls.pop(number, None) if valid_id(number) else None
        return [Cancelled(call)] if call else []

    def _request(self, number: str | int, method: str, params: Message) -> Reply | Call | Describe:
        meta = params.get("_meta")
        meta = meta if isinstance(meta, dict) else {}
        modern = self._era(method, meta)
        if number in self._calls:
            raise ProtocolError(INVALID_REQUEST, f"A call with the id {number!r} is not answered yet.")
        if method == "tools/call":
            return self._call(number, params, meta, modern)
        if method == "initialize" and not modern:
            return Describe(number, self._initialize(params), modern)
        if method == "server/discover":
            found = {"supportedVersions": list(SUPPORTED), **_ABOUT, "ttlMs": TTL_MS, "cacheScope": "private"}
            return Describe(number, found, modern)
        if method == "ping" and not modern:
            result: Message = {}
        elif method == "tools/list":
            result = {"tools": [tool.as_json() for tool in self._service.tools]}
            if modern:
                result |= {"ttlMs": TTL_MS, "cacheScope": "private"}
        else:
            raise ProtocolError(METHOD_NOT_FOUND, f"There is no method {method[:100]!r}.")
        return self._result(number, result, modern)

    def _era(self, method: str, meta: Message) -> bool:
        """True for the stateless era. Raises ProtocolError where the request belongs to none."""
        version = meta.get(VERSION_META)
        if version is None:
            if method not in ("initialize", "ping") and not self._opened:
                raise ProtocolError(INVALID_PARAMS, f"Missing _meta field {VERSION_META}, or initialize before this.")
            return False
        if version not in MODERN:
            data = {"supported": list(SUPPORTED), "requested": str(version)[:100]}
            raise ProtocolError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        if not isinstance(meta.get(CAPABILITIES_META), dict):
            raise ProtocolError(INVALID_PARAMS, f"Missing _meta field {CAPABILITIES_META}.")
        return True

    def described(self, asked: Describe, instructions: str) -> Reply:
        """The answer to what the server is for; `instructions` are for the client's prompt."""
        return self._result(asked.id, {**asked.result, "instructions": instructions}, asked.modern)

    def _info(self) -> Message:
        return {"name": self._service.name, "title": self._service.title, "version": self._service.version}

    def _initialize(self, params: Message) -> Message:
        self._opened = True
        asked = params.get("protocolVersion")
        version = asked if asked in HANDSHAKE else HANDSHAKE[0]
        return {"protocolVersion": version, "serverInfo": self._info(), **_ABOUT}

    def _call(self, number: str | int, params: Message, meta: Message, modern: bool) -> Call:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or name not in self._names:
            names = ", ".join(tool.name for tool in self._service.tools)
            raise ProtocolError(INVALID_PARAMS, f"Unknown tool: {str(name)[:100]}. There are {names}.")
        if not isinstance(arguments, dict | None):
            raise ProtocolError(INVALID_PARAMS, f"The arguments of {name} are an object of named values.")
        call = Call(id=number, name=name, arguments=arguments or {}, meta=meta, modern=modern)
        self._calls[number] = call
        return call

    def result(self, call: Call, text: str, structured: Any, *, failed: bool = False) -> Reply | None:
        """The answer of a tool: `structured` (None for a refusal), and the same as `text`. None where cancelled."""
        result: Message = {"content": [{"type": "text", "text": text}]}
        if structured is not None:
            result["structuredContent"] = structured
        if failed:
            result["isError"] = True
        return self._result(call.id, result, call.modern) if self._ended(call) else None

    def error(self, call: Call, code: int, message: str) -> Reply | None:
        """An answer that the call could not be made at all. None where it was cancelled."""
        return _refusal(call.id, ProtocolError(code, message)) if self._ended(call) else None

    def _ended(self, call: Call) -> bool:
        """Takes a call out of those that wait. False where it was cancelled; its id may be another call's by now."""
        return self.wants(call) and self._calls.pop(call.id, None) is call  # another thread may cancel it meanwhile

    def progress(self, call: Call, done: int, of: int, message: str) -> Reply | None:
        """Word of how far a call is, for a client that asked for it and still waits."""
        if call.progress is None or self._calls.get(call.id) is not call:
            return None
        params = {"progressToken": call.progress, "progress": done, "total": of, "message": message}
        return Reply(format_line({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))

    def _result(self, number: str | int, result: Message, modern: bool) -> Reply:
        if modern:
            result = {"resultType": "complete", **result, "_meta": {SERVER_META: self._info()}}
        return Reply(format_line({"jsonrpc": "2.0", "id": number, "result": result}))


def _refusal(number: str | int | None, error: ProtocolError) -> Reply:
    return Reply(format_line({"jsonrpc": "2.0", "id": number, "error": error.as_json()}))
