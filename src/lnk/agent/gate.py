"""The gate between a client and a tool: lines of MCP in, what to do with each out.

A line goes on byte for byte or not at all, and it is judged as any reader could take it: what two readers might
understand in two ways does not go on. But for three characters of the client's which JSON lets stand in a string and
some readers take for a line's end: they go on as JSON's escapes. It holds no descriptor, no clock and no file, and
knows no tool.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from lnk.contract.thread import THREAD, THREAD_META
from lnk.errors import Full, Refused, Unavailable
from lnk.lines import LINE_BYTES_MAX, TooLong
from lnk.mcp.protocol import (
    BATCH_MAX,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    VERSION_META,
    Message,
    ProtocolError,
    valid_id,
)

UNKNOWN: Final = "?"  # stands in the log for a name that could be text
HELD_MAX: Final = 8  # calls of a session that wait for the owner; nobody reads more
HELD_BYTES_MAX: Final = 2 << 20  # and what they hold of memory
UNANSWERED_MAX: Final = 1024  # requests that the tool has and did not answer
CANCELLED_MAX: Final = 256  # cancelled requests whose late answers are expected
KEPT_BYTES_MAX: Final = 1 << 20  # of the lines of requests that may be made again
ARGUMENTS_MAX: Final = 32  # arguments of a call that the log names; the rest are summed

ALLOW, DENY, EXPIRED, UNASKED = "allow", "deny", "expired", "unasked"  # what comes of asking the owner
OK, FAILED, ERROR, REFUSED, CANCELLED, UNANSWERED = "ok", "failed", "error", "refused", "cancelled", "unanswered"
AGAIN: Final = "lnk-again"  # the id of an `initialize` that is made again

CALL: Final = "tools/call"
_CANCEL: Final = "notifications/cancelled"
_OPENS: Final = "initialize"
_OPENED: Final = "notifications/initialized"
# What a client may ask by the protocol itself, in any of its revisions. Anything else asks the owner.
_REQUESTS: Final = frozenset(
    "initialize ping server/discover tools/list resources/list resources/templates/list resources/read"
    " resources/subscribe resources/unsubscribe subscriptions/listen prompts/list prompts/get completion/complete"
    " logging/setLevel tasks/get tasks/update tasks/result tasks/list tasks/cancel".split()
)
_NOTIFICATIONS: Final = frozenset(
    f"notifications/{word}" for word in ("initialized", "cancelled", "progress", "roots/list_changed", "tasks/status")
)
# Keys that decide what a message is: another writing of one, which some readers take for it, is refused.
_KEYS: Final = frozenset(("jsonrpc", "id", "method", "params", "result", "error"))
_PARAMS: Final = frozenset(("name", "arguments", "_meta", "requestid"))
_SPELT: Final = frozenset((*_KEYS, *_PARAMS, "requestId"))

SHORT_BYTES: Final = 4096  # an answer up to this is decoded before it goes on
_BEGINNING = re.compile(rb'\{"jsonrpc": ?"2\.0", ?"id": ?(0|[1-9]\d{0,14}|"[A-Za-z0-9._:-]{1,100}"), ?"result": ?\{')
# U+0085, U+2028 and U+2029: of what ends a line for some readers all that stands in valid JSON, and in strings only.
_ENDS: Final = ((b"\xc2\x85", rb"\u0085"), (b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"))
_PLAIN_CALL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}")
_PLAIN_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")

_ALONE: Final = "It needs the owner's yes, and cannot have it within a batch; send it alone."
_BESIDE: Final = "The batch was not passed on because of another message in it; send this one again."
_UNBIDDEN: Final = "Too many calls wait for the owner already; wait for their answers, then call again."
_LOST: Final = (
    "The tool ended before it answered this, so it is not known whether it was done; look, then ask again if need be."
)
_REASONS: Final = {
    DENY: "The owner refused this call; do not make it again unless they ask for it.",
    EXPIRED: "The owner did not answer in time, so the call was not made; ask them, then call again.",
    UNASKED: "The owner could not be asked, so the call was not made.",
}


class ToTool(NamedTuple):
    """A line to write to the tool, LF included."""

    line: bytes


class ToClient(NamedTuple):
    """A line to write to the client, LF included."""

    line: bytes


class Ask(NamedTuple):
    """The owner is to be asked; `Gate.answer` takes what came of it, under `number`. `call` is any text."""

    number: int
    call: str
    thread: str
    arguments: Any


class Withdraw(NamedTuple):
    """The owner need not answer any more."""

    number: int


class Record(NamedTuple):
    """What is logged of a call that is over. Seconds; `tool_s` and `owner_s` None where it did not get so far."""

    call: str
    thread: str
    arguments: dict[str, int]
    outcome: str
    began: float
    tool_s: float | None
    owner_s: float | None


class Check(NamedTuple):
    """An answer that went on by its beginning: it is to be read whole (`Gate.checked`), once it is written."""

    line: bytes
    request: "_Request"
    now: float


Action = ToTool | ToClient | Ask | Withdraw | Record | Check


class _Request:
    """A request that is not answered yet: the owner has it (`number` is not 0) or the tool."""

    __slots__ = (
        *("again", "arguments", "began", "call", "given", "held", "id", "line", "method", "modern", "number", "thread"),
    )

    def __init__(self, message: Message, now: float) -> None:
        params = message.get("params") or {}
        meta = params.get("_meta")
        meta = meta if isinstance(meta, dict) else {}
        self.id: str | int = message["id"]
        self.modern = VERSION_META in meta
        self.method: str = message["method"]
        name, arguments = _called(message)
        self.call = name if _PLAIN_CALL.fullmatch(name) else UNKNOWN
        self.arguments = sizes(arguments) if self.is_logged() else {}  # not what they say: an unanswered call is small
        self.thread = _thread(meta)
        self.began = now
        self.given: float | None = None
        self.held: float | None = None
        self.number = 0
        self.line = b""  # as it waits to be given, and, where it may be made again, until it is answered
        self.again = False

    def record(self, outcome: str, now: float) -> list[Action]:
        """Its line for the log, where there is to be one."""
        if not self.is_logged():
            return []
        tool_s = None if self.given is None else now - self.given
        return [Record(self.call, self.thread, self.arguments, outcome, self.began, tool_s, self.held)]

    def is_logged(self) -> bool:
        """Whether it is a call, or something else that the owner has to be asked about."""
        return self.method not in _REQUESTS and self.method != _CANCEL


class Gate:
    """One session: the lines of both sides go through it, in order. `now` is seconds that only go forward."""

    def __init__(self, allow: Iterable[str] | None, repeats: Iterable[str] | None = None) -> None:
        """`allow`: the calls that pass without the owner being asked; None: all do.

        `repeats`: the calls that may be made again where the tool is lost and there again (`lost`); None: it never is.
        """
        self._allow = None if allow is None else frozenset(allow)
        self._repeats = None if repeats is None else frozenset(repeats)
        self._opens = self._opened = b""  # how the client opened the session, in the era that is opened
        self._requests: dict[str | int, _Request] = {}
        self._held: dict[int, _Request] = {}
        self._cancelled: dict[str | int, None] = {}
        self._number = 0
        self.dropped = 0  # lines of the tool's that answered nothing that was asked, or are no MCP

    @property
    def unanswered(self) -> int:
        """How many requests the tool, or the owner, has not answered."""
        return len(self._requests)

    def from_client(self, line: bytes | TooLong, now: float) -> list[Action]:
        """What to do for a line of the client's. Never raises: what does not go on is answered with why."""
        if isinstance(line, bytes) and not line.strip():
            return []
        try:
            found = _read(line)
        except ProtocolError as error:
            return [_error(None, error)]
        line = _as_one(line)  # type: ignore[arg-type]
        if isinstance(found, list):
            return self._batch(found, line, now)
        try:
            request = self._judge(found, now)
        except ProtocolError as error:
            return [_error(_number(found), error)]
        if request is None:
            return self._untracked(found, line, now)
        request.line = line + b"\n"
        return self._give(request, now) if self._passes(found) else self._hold(request, _called(found))

    def from_tool(self, line: bytes | TooLong, now: float) -> list[Action]:
        """What to do for a line of the tool's, with its LF or not: it goes on, or, with nobody waiting, is dropped."""
        if isinstance(line, TooLong) or line.isspace() or not line:
            return []
        line = line if line.endswith(b"\n") else line + b"\n"
        if request := self._begun(line):
            del self._requests[request.id]
            return [ToClient(line), Check(line, request, now)]
        try:
            found = json.loads(line.decode("utf-8"), object_pairs_hook=_Pairs)
        except (ValueError, RecursionError):
            self.dropped += 1
            return []
        if isinstance(found, _Pairs):
            records = self._said(found, now)
            return [] if records is None else [ToClient(line), *records]
        return self._said_together(found, line, now)

    def checked(self, check: Check) -> list[Action] | None:
        """The record of an answer that went on by its beginning; None where it is another than that said.

        No reader of an answer that is none is harmed by it: what it could be taken for the tool could have said itself.
        """
        # Of a service nothing else matters; and what was decoded leaves holes in the memory of a session that lasts.
        if self._repeats is not None and _is_plain(check.line):
            return check.request.record(OK, check.now)
        try:
            found = json.loads(check.line.decode("utf-8"), object_pairs_hook=_Pairs)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, _Pairs):
            return None
        message = dict(found)
        plain = len({key.casefold() for key in message}) == len(found) and _is_message(message)
        if not plain or message.get("id") != check.request.id or "method" in message:
            return None
        return check.request.record(_outcome(message), check.now)

    def _begun(self, line: bytes) -> _Request | None:
        """The request that a long answer is to, by its beginning; decoding all of it takes longer than the rest."""
        found = _BEGINNING.match(line) if len(line) > SHORT_BYTES else None
        request = self._requests.get(json.loads(found[1])) if found else None
        return request if request and not request.number else None

    def answer(self, number: int, verdict: str, now: float) -> list[Action]:
        """The owner said ALLOW or DENY of what was asked under `number`, nothing in time, or could not be asked."""
        request = self._held.pop(number, None)
        if request is None:
            return []  # it was cancelled meanwhile
        request.number = 0
        request.held = now - request.began
        if verdict == ALLOW:
            return self._give(request, now)
        del self._requests[request.id]
        outcome = EXPIRED if verdict == EXPIRED else REFUSED
        return [_refusal(request, _REASONS[verdict]), *request.record(outcome, now)]

    def close(self, why: str | None, now: float) -> list[Action]:
        """The session is over: what is not answered is, with `why`; None where nobody is there to be told."""
        actions: list[Action] = [Withdraw(number) for number in self._held]
        for request in self._requests.values():
            if why is not None:
                actions.append(_error(request.id, ProtocolError(INTERNAL_ERROR, why)))
            actions += request.record(UNANSWERED, now)
        self._requests.clear()
        self._held.clear()
        return actions

    # -------------------------------------------------------- a tool that is lost, and there again

    def lost(self, now: float) -> list[Action]:
        """The tool is gone with what it had. What may be made again waits for `again`, once; the rest is answered."""
        actions: list[Action] = []
        self._cancelled.clear()
        for request in [each for each in self._requests.values() if not each.number]:
            if request.line and not request.again:
                request.again = True
                continue
            del self._requests[request.id]
            actions += [_refusal(request, _LOST, Unavailable.code), *request.record(UNANSWERED, now)]
        return actions

    def again(self) -> list[bytes]:
        """The lines of what waits for a tool that is there again."""
        return [request.line for request in self._requests.values() if request.again and not request.number]

    def opening(self) -> tuple[bytes, bytes]:
        """The lines by which the client opened the session, to be said again first; empty where it did not.

        The first is a request with the id AGAIN, whose answer is not the client's; the second tells that it was heard.
        """
        if not self._opens or any(request.method == _OPENS for request in self._requests.values()):
            return b"", b""
        message = {**json.loads(self._opens), "id": AGAIN}
        return json.dumps(message).encode() + b"\n", self._opened

    # -------------------------------------------------------- from the client

    def _judge(self, message: Any, now: float) -> _Request | None:
        """The request that a message is; None for what waits for no answer. Raises ProtocolError for what is wrong."""
        _check(message)
        if "method" not in message or "id" not in message:
            return None
        if message["id"] in self._requests:
            raise ProtocolError(INVALID_REQUEST, f"A request with the id {message['id']!r} is not answered yet.")
        if len(self._requests) >= UNANSWERED_MAX:
            raise _full()
        return _Request(message, now)

    def _passes(self, message: Message) -> bool:
        if self._allow is None:
            return True
        method = message["method"]
        return message["params"]["name"] in self._allow if method == CALL else method in _REQUESTS

    def _give(self, request: _Request, now: float) -> list[Action]:
        request.given = now
        line = request.line
        if self._repeats is not None and request.method == _OPENS:
            self._opens, self._opened = line, b""
        if not self._may_repeat(request):
            request.line = b""
        self._requests[request.id] = request
        self._cancelled.pop(request.id, None)
        return [ToTool(line)]

    def _may_repeat(self, request: _Request) -> bool:
        """Whether it only asks, so that to make it again does no harm; and there is room to keep it."""
        if self._repeats is None or not (
            request.method in _REQUESTS or (request.method == CALL and request.call in self._repeats)
        ):
            return False
        kept = sum(len(each.line) for each in self._requests.values() if not each.number and each is not request)
        return kept + len(request.line) <= KEPT_BYTES_MAX

    def _hold(self, request: _Request, called: tuple[str, Message]) -> list[Action]:
        held = sum(len(each.line) for each in self._held.values())
        if len(self._held) >= HELD_MAX or held + len(request.line) > HELD_BYTES_MAX:
            return [_refusal(request, _UNBIDDEN), *request.record(REFUSED, request.began)]
        self._number += 1
        request.number = self._number
        self._held[request.number] = self._requests[request.id] = request
        return [Ask(request.number, called[0], request.thread, called[1])]

    def _untracked(self, message: Message, line: bytes, now: float) -> list[Action]:
        """A notification, or an answer to what the tool asked."""
        if "method" not in message:
            return [ToTool(line + b"\n")]
        self._notice_opened([message])
        if self._allow is not None and message["method"] not in _NOTIFICATIONS:
            # Nobody could be told what the owner says.
            return _Request({**message, "id": 0}, now).record(REFUSED, now)
        number = (message.get("params") or {}).get("requestId") if message["method"] == _CANCEL else None
        request = self._requests.pop(number, None) if valid_id(number) else None  # type: ignore[arg-type]
        if request is None:
            return [ToTool(line + b"\n")]
        if request.number:
            del self._held[request.number]
            return [Withdraw(request.number), *request.record(CANCELLED, now)]
        if len(self._cancelled) >= CANCELLED_MAX:
            del self._cancelled[next(iter(self._cancelled))]
        self._cancelled[request.id] = None
        return [ToTool(line + b"\n"), *request.record(CANCELLED, now)]

    def _notice_opened(self, messages: Iterable[Message]) -> None:
        """What the client says once a session is open is kept, to be said again."""
        for message in messages:
            if self._repeats is not None and message.get("method") == _OPENED:
                self._opened = json.dumps(message).encode() + b"\n"

    def _batch(self, messages: list[Any], line: bytes, now: float) -> list[Action]:
        """All of an array goes on, or none of it does, and each request in it is answered with what to do."""
        requests: list[_Request] = []
        wrong: dict[int, ProtocolError] = {}
        for place, message in enumerate(messages):
            try:
                request = self._judge(message, now)
                self._check_together(message, request, requests)
                if request:
                    request.line = json.dumps(message).encode() + b"\n"
                    requests.append(request)
            except ProtocolError as error:
                wrong[place] = error
        if not wrong:
            for request in requests:
                self._give(request, now)
            self._notice_opened(messages)
            return [ToTool(line + b"\n")]
        beside = ProtocolError(INVALID_REQUEST, _BESIDE)
        answers = [
            _answer(_number(message), wrong.get(place, beside))
            for place, message in enumerate(messages)
            if place in wrong or ("method" in message and "id" in message)
        ]
        refused = [each for place in wrong for each in _refused(messages[place], wrong[place], now)]
        return [ToClient(json.dumps(answers).encode() + b"\n"), *refused]

    def _check_together(self, message: Message, request: _Request | None, before: list[_Request]) -> None:
        """Raises ProtocolError for what goes on alone, but not in an array behind the requests `before`."""
        if request is None:
            method = message.get("method")
            unknown = self._allow is not None and method not in _NOTIFICATIONS
            if method is not None and (method == _CANCEL or unknown):
                raise ProtocolError(Refused.code, _ALONE)
        elif any(request.id == other.id for other in before):
            raise ProtocolError(INVALID_REQUEST, f"The id {request.id!r} is in the batch twice.")
        elif len(self._requests) + len(before) >= UNANSWERED_MAX:
            raise _full()
        elif not self._passes(message):
            raise ProtocolError(Refused.code, _ALONE)

    # -------------------------------------------------------- from the tool

    def _said(self, pairs: "_Pairs", now: float) -> list[Action] | None:
        """The records of what a message of the tool's ends; None, and counted, where it does not go on."""
        message = dict(pairs)
        number = message.get("id")
        if len({key.casefold() for key in message}) != len(pairs) or not _is_message(message):
            self.dropped += 1
            return None
        if "method" in message or (number is None and "error" in message):  # the latter of what it could not read
            return []
        request = self._requests.get(number) if valid_id(number) else None  # type: ignore[arg-type]
        if request is None or request.number:
            self.dropped += not self._was_cancelled(number)
            return None
        del self._requests[request.id]
        return request.record(_outcome(message), now)

    def _was_cancelled(self, number: Any) -> bool:
        known = valid_id(number) and number in self._cancelled
        if known:
            del self._cancelled[number]
        return known

    def _said_together(self, found: Any, line: bytes, now: float) -> list[Action]:
        """The same for an array, of which the rest goes on where a part does not."""
        if not isinstance(found, list) or not 1 <= len(found) <= BATCH_MAX:
            self.dropped += 1
            return []
        try:
            parts = [json.dumps(_plain(each)) for each in found]  # before one of them counts as answered
        except RecursionError:
            self.dropped += 1
            return []
        kept: list[str] = []
        records: list[Action] = []
        for each, part in zip(found, parts, strict=True):
            ended = self._said(each if isinstance(each, _Pairs) else _Pairs(), now)
            if ended is not None:
                kept.append(part)
                records += ended
        if len(kept) == len(found):
            return [ToClient(line), *records]
        return [ToClient(f"[{', '.join(kept)}]\n".encode()), *records] if kept else []


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it stands, keys that are there twice included."""


def _is_plain(line: bytes) -> bool:
    """Whether no reader can take a long answer for another, nor for a failure, seen without decoding it."""
    return _DECIDING.findall(line) == _PLAIN


def _spelt_as(word: str) -> str:
    """A pattern for the key, its letters in either case, or as far as one is written by an escape, or as another s."""
    found = '"'
    for letter in reversed(word[1:]):
        found = f"(?:[{letter}{letter.upper()}]{found}|[\\\\\xc5])"
    return f"[{word[0]}{word[0].upper()}]{found}"


# The keys that decide what an answer is; within a string they stand with escapes around them.
_PLAIN: Final = [b'"jsonrpc"', b'"id"', b'"result"']
_WORDS: Final = ("jsonrpc", "id", "result", "method", "error", "iserror")
_DECIDING = re.compile(f'"(?:\\\\u|{"|".join(map(_spelt_as, _WORDS))})'.encode("latin-1"))


def _refused(message: Message, error: ProtocolError, now: float) -> list[Action]:
    """The records of a message of an array that the owner would have to be asked about."""
    return _Request({"id": 0, **message}, now).record(REFUSED, now) if error.code == Refused.code else []


def _plain(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {key: _plain(each) for key, each in value}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _read(line: bytes | TooLong) -> Any:
    """One line of the client's as JSON: an object, or a list of messages. Raises ProtocolError."""
    if isinstance(line, TooLong):
        raise ProtocolError(INVALID_REQUEST, f"The line is over {LINE_BYTES_MAX:,} bytes; send less in one message.")
    if b"\r" in line[:-1]:  # there are readers for whom it ends a line
        raise ProtocolError(PARSE_ERROR, "A message is one line, without a carriage return in it.")
    try:
        found = json.loads(line.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError:
        raise ProtocolError(PARSE_ERROR, "The line is not UTF-8.") from None
    except RecursionError:
        raise ProtocolError(PARSE_ERROR, "The line is nested too deeply.") from None
    except ValueError as error:
        raise ProtocolError(PARSE_ERROR, f"The line is not JSON: {str(error)[:200]}.") from None
    if isinstance(found, list) and not 1 <= len(found) <= BATCH_MAX:
        raise ProtocolError(INVALID_REQUEST, f"A batch holds from 1 to {BATCH_MAX} messages.")
    return found


def _as_one(line: bytes) -> bytes:
    """The same JSON, in a line that is one to every reader."""
    for end, escape in _ENDS:
        line = line.replace(end, escape)
    return line


def _object(pairs: list[tuple[str, Any]]) -> Message:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ProtocolError(INVALID_REQUEST, "An object has a key twice.")
    return found


def _constant(name: str) -> None:
    raise ProtocolError(PARSE_ERROR, f"The line is not JSON: {name} is none of its numbers.")


def _check(message: Any) -> None:
    """Raises ProtocolError for what is no message, or what two readers might take for two."""
    if not isinstance(message, dict) or not _is_message(message):
        raise ProtocolError(INVALID_REQUEST, 'A message is an object with "jsonrpc": "2.0" and a method, or a result.')
    if "method" not in message:
        return
    method, params = message["method"], message.get("params")
    if not isinstance(method, str) or not isinstance(params, dict | None):
        raise ProtocolError(INVALID_REQUEST, "A request has a method and an object of params.")
    if "id" in message and not valid_id(message["id"]):
        raise ProtocolError(INVALID_REQUEST, "An id is a short string or a whole number.")
    if not _spelt(params or {}, _PARAMS):
        raise ProtocolError(INVALID_PARAMS, "A key of params is written in another case than the protocol's.")
    if method == CALL and not _is_call(params or {}):
        raise ProtocolError(INVALID_PARAMS, "A call has the name of a tool and an object of arguments.")


def _is_message(message: Mapping[str, Any]) -> bool:
    answers = "result" in message or "error" in message
    both = "result" in message and "error" in message
    spelt = message.get("jsonrpc") == "2.0" and _spelt(message, _KEYS)
    return spelt and not both and answers != ("method" in message)


def _spelt(found: Mapping[str, Any], keys: frozenset[str]) -> bool:
    return all(key in _SPELT or key.casefold() not in keys for key in found)


def _is_call(params: Mapping[str, Any]) -> bool:
    return isinstance(params.get("name"), str) and isinstance(params.get("arguments"), dict | None)


def _called(message: Message) -> tuple[str, Message]:
    """What is called, and with what: a tool's call with its arguments, or a method with its params."""
    params = message.get("params") or {}
    if message["method"] == CALL:
        return params["name"], params.get("arguments") or {}
    return message["method"], params


def _full() -> ProtocolError:
    return ProtocolError(Full.code, f"{UNANSWERED_MAX:,} requests are not answered yet; wait for some answers.")


def _number(message: Any) -> str | int | None:
    number = message.get("id") if isinstance(message, dict) else None
    return number if valid_id(number) else None


def _outcome(message: Message) -> str:
    if "error" in message:
        return ERROR
    result = message["result"]
    failed = isinstance(result, _Pairs) and ("isError", True) in result
    return FAILED if failed else OK


def _answer(number: str | int | None, error: ProtocolError) -> Message:
    return {"jsonrpc": "2.0", "id": number, "error": error.as_json()}


def _error(number: str | int | None, error: ProtocolError) -> ToClient:
    return ToClient(json.dumps(_answer(number, error)).encode() + b"\n")


def _refusal(request: _Request, text: str, code: int = Refused.code) -> ToClient:
    """A refused call is a result that the model reads; anything else that is refused is an error, of that code."""
    if request.method != CALL:
        return _error(request.id, ProtocolError(code, text))
    result: Message = {"content": [{"type": "text", "text": text}], "isError": True}
    if request.modern:
        result = {"resultType": "complete", **result}
    return ToClient(json.dumps({"jsonrpc": "2.0", "id": request.id, "result": result}).encode() + b"\n")


def _thread(meta: Mapping[str, Any]) -> str:
    """The conversation's name; empty where the call names none."""
    name = meta.get(THREAD_META, "")
    return name if name == "" or (isinstance(name, str) and THREAD.fullmatch(name)) else UNKNOWN


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def sizes(arguments: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of each argument as JSON, by its name where that is a plain one, the rest together as `?`."""
    found: dict[str, int] = {}
    for name, value in arguments.items():
        plain = _PLAIN_ARGUMENT.fullmatch(name) and len(found) < ARGUMENTS_MAX
        key = name if plain else UNKNOWN
        found[key] = found.get(key, 0) + len(_ENCODER.encode(value).encode("utf-8", "surrogatepass"))
    return found
