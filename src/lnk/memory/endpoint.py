"""The client of an embedding model that listens on this machine: texts go out, vectors come back, or why they do not.

It speaks the one call that the model runtimes have in common, POST <base>/embeddings. What answers there may be slow,
wrong or hostile: its time and its bytes are bounded, its vectors are checked, and nothing that it says leads anywhere
else. Knows no index, no ranking and no key.
"""

import contextlib
import io
import math
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from lnk.contract.embedding import DIMS_MAX, Address
from lnk.contract.shape import parse
from lnk.errors import Invalid, Unavailable

if TYPE_CHECKING:
    # A start is 22 ms quicker without them, and an engine without a model needs neither: they come when one is asked.
    import http.client
    import socket

QUERY_S: Final = 2.0  # someone waits for the search, and words alone answer it too
DOCUMENTS_S: Final = 120.0  # a request of many texts, on a slow processor
CONNECT_S: Final = 1.0  # the server is on this machine: one that listens is reached at once
TEXTS_MAX: Final = 64  # of one request
NUMBER_BYTES_MAX: Final = 32  # of an answer: a number of JSON has up to 25 and what parts it from the next
HEAD_BYTES_MAX: Final = 64 << 10  # of an answer's status line and headers
TROUBLE_BYTES_MAX: Final = 16 << 10  # read of an answer that is no 200: enough for its message
WAIT_S_MAX: Final = 3600.0  # a server cannot ask to be left alone for longer
LENGTH_MIN: Final = 1e-30  # a shorter vector is nothing but what rounding left, and would be blown up to length 1
_IDLE_MAX: Final = 2  # connections kept for the next call: the one for questions, and the one for documents
_QUEUE_S: Final = 0.01  # until a Unix socket whose queue is full is tried again
_SAID_CHARS_MAX: Final = 120  # of a server's own words in an error
_PLAIN: Final = "a"  # a text that every model takes: a server that refuses it refuses all
_REFUSALS: Final = frozenset((400, 413, 422, 500))  # said of one text of a batch too: too long, empty
_FAILED: Final = 500
_WITHOUT_KEY: Final = frozenset((401, 403, 407))
_BUSY: Final = frozenset((429, 503))
_TOO_MUCH: Final = "answers with more bytes than vectors can have"


class _Entry(msgspec.Struct):
    embedding: bytes | list[float]  # base64, or what a server sends that does not know `encoding_format`
    index: int


class _Reply(msgspec.Struct):
    """The part of an answer that is believed; the `model` that a server names is none of it."""

    data: list[_Entry]


class _Answer(NamedTuple):
    status: int
    data: bytes
    wait_s: float


class _Fault(Exception):
    """Why a server gave nothing: the rest of a sentence that begins with the server, and what to do about it."""

    def __init__(self, reason: str, remedy: str = "see what its log says") -> None:
        super().__init__(f"{reason}; {remedy}")


class _Wrong(_Fault):
    """What an answer says, in HTTP and with 200, that no vectors can be made of."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"answers wrongly: {reason}", "see that what it serves is made for embeddings")


class _Stale(Exception):
    """A kept connection was closed by the server before it heard the question, so that it may be asked again."""


class _Call:
    """One `encode`: when it must be over, where that does not begin anew with each request, and what it has seen."""

    def __init__(self, until: float | None) -> None:
        self.until = until
        self.works = False  # the server has given a vector
        self.numbers = 0  # of each of its vectors


class Endpoint:
    """A model's server. Any threads may call `encode` at once; each then has a connection of its own.

    `model` is the name that it is asked for, `tokens` the most that one input may have. `wait_s` is how many seconds
    the server asked to be left alone with its last answer, 0.0 where it did not.
    """

    def __init__(
        self,
        address: Address,
        model: str,
        *,
        query_s: float = QUERY_S,
        documents_s: float = DOCUMENTS_S,
        connect_s: float = CONNECT_S,
    ) -> None:
        """Nothing is asked yet. Limits in seconds of wall time: `query_s` for all of a question's `encode`,
        `documents_s` for each request of documents, `connect_s` for reaching the server within either.
        """
        self.model = model
        self.tokens = address.facts.tokens
        self._address = address
        self._query_s, self._documents_s, self._connect_s = query_s, documents_s, connect_s
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._open: set[_Wire] = set()
        self._idle: list[_Wire] = []  # of those that are open, newest last
        self.wait_s = 0.0
        host = f"[{address.host}]" if ":" in address.host else address.host
        self._name = f"unix:{address.socket}" if address.socket else f"http://{host}:{address.port}{address.base}"
        self._head = (
            f"POST {address.base}/embeddings HTTP/1.1\r\n"
            f"Host: {'localhost' if address.socket else f'{host}:{address.port}'}\r\n"
            "Accept: application/json\r\nAccept-Encoding: identity\r\nContent-Type: application/json\r\n"
        )

    def encode(self, texts: Sequence[str], *, query: bool = False) -> list[bytes | None]:
        """The vector of each text, in order: float32, little-endian, of length 1, cut to the model's `dims`.

        None for a text that the server refuses by itself (too long, empty) while it takes others. `query`: the texts
        are questions, put behind the model's instruction for them, with someone waiting. Raises Unavailable where the
        server is dead, slow, busy, wrong, or refuses everything; nothing of the call is then kept.
        """
        facts = self._address.facts
        told = facts.query if query else facts.document
        inputs = [_utf8(told + text) for text in texts]
        call = _Call(time.monotonic() + self._query_s if query else None)
        found: list[bytes | None] = []
        try:
            for at in range(0, len(inputs), TEXTS_MAX):
                found += self._vectors(inputs[at : at + TEXTS_MAX], call)
        except _Fault as fault:
            why = "is not asked any more; its endpoint was closed" if self._ended.is_set() else str(fault)
            raise Unavailable(f"The embedding model at {self._name} {why}.") from None
        return found

    def knows(self, text: str) -> bool:
        """Always: which scripts a served model knows, nobody says."""
        return True

    def close(self) -> None:
        """Ask no more, for good: an `encode` that waits in another thread raises Unavailable at once, and so does any
        later one. Closing twice does no harm.
        """
        with self._lock:
            self._ended.set()
            for wire in self._open:
                wire.shut()
            for wire in self._idle:
                wire.socket.close()
            self._open.difference_update(self._idle)
            self._idle.clear()

    # ------------------------------------------------------------ what is asked

    def _vectors(self, texts: list[str], call: _Call) -> list[bytes | None]:
        """The vectors of `texts`, asked for by halves where the server refuses them together."""
        answer = self._ask(texts, call)
        if answer.status == 200:
            call.works = True
            return list(_read(answer.data, len(texts), self._address.facts.dims, call))
        failed = len(texts) == 1 and answer.status == _FAILED
        if failed or not call.works:
            self._prove(answer, call)
        if failed:  # which need not be the text's fault: it may have been short of room
            answer = self._ask(texts, call)
            return list(_read(answer.data, 1, self._address.facts.dims, call)) if answer.status == 200 else [None]
        if len(texts) == 1:
            return [None]
        half = len(texts) // 2
        return self._vectors(texts[:half], call) + self._vectors(texts[half:], call)

    def _prove(self, refusal: _Answer, call: _Call) -> None:
        """That a refusal is of a text, and not of every text, as by a server that lacks the model or fails."""
        if self._ask([_PLAIN], call).status != 200:
            raise _Fault(f"refuses every text: {_said(refusal)}", f"see that it has {self.model!r} for embeddings")
        call.works = True

    def _ask(self, texts: list[str], call: _Call) -> _Answer:
        """The answer to one request: of status 200, or a refusal of what was asked."""
        body = msgspec.json.encode({"model": self.model, "input": texts, "encoding_format": "base64"})
        request = f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        until = call.until if call.until is not None else time.monotonic() + self._documents_s
        limit = len(texts) * DIMS_MAX * NUMBER_BYTES_MAX + HEAD_BYTES_MAX
        try:
            answer = self._exchange(request, limit, until)
        except TimeoutError:
            allowed = self._documents_s if call.until is None else self._query_s
            raise _Fault(f"did not answer within {allowed:g} s", "it may be loading or busy, so try later") from None
        except OSError as error:
            raise _Fault(f"broke off: {error.strerror or error}") from None
        self.wait_s = answer.wait_s
        if answer.status != 200 and answer.status not in _REFUSALS:
            raise self._refused(answer)
        return answer

    def _refused(self, answer: _Answer) -> _Fault:
        """Why a server that answers is of no use, by the status of its answer."""
        said = _said(answer)
        if answer.status in _WITHOUT_KEY:
            return _Fault(f"asks for a key, and none is ever sent: {said}", "let it listen without one")
        if answer.status in _BUSY:
            return _Fault(f"is busy: {said}", f"try again in {answer.wait_s:g} s" if answer.wait_s else "try later")
        if 300 <= answer.status < 400:
            return _Fault(f"sends elsewhere, which is not followed: {said}", "give the address itself")
        if answer.status == 404:
            return _Fault(f"has no such model or no embeddings there: {said}", f"see that it has {self.model!r}")
        return _Fault(f"gave no vectors: {said}")

    # ------------------------------------------------------------ connections

    def _exchange(self, request: bytes, limit: int, until: float) -> _Answer:
        """The answer to `request`, over a kept connection, or over a new one where that is stale."""
        kept = self._take(until)
        if kept is not None:
            with contextlib.suppress(_Stale):
                return self._over(kept, request, limit)
        try:
            return self._over(self._connected(until), request, limit)
        except _Stale:
            raise _Fault("closed the connection without an answer") from None

    def _over(self, wire: "_Wire", request: bytes, limit: int) -> _Answer:
        again = False
        try:
            answer, again = _converse(wire, request, limit)
            return answer
        finally:
            self._give_back(wire, again)

    def _take(self, until: float) -> "_Wire | None":
        """A kept connection on which nothing came since: neither its end, nor more than the last answer."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                wire = self._idle.pop()
            if wire.quiet():
                wire.until = until
                return wire
            self._give_back(wire, False)

    def _give_back(self, wire: "_Wire", again: bool) -> None:
        with self._lock:
            if again and len(self._idle) < _IDLE_MAX and not self._ended.is_set():
                self._idle.append(wire)
                return
            self._open.discard(wire)
        wire.socket.close()

    def _connected(self, until: float) -> "_Wire":
        """A new connection, to this machine and without asking anyone for an address."""
        soon = min(until, time.monotonic() + self._connect_s)
        reason = ""
        for family, target in self._targets():
            try:
                return self._connect(family, target, until, soon)
            except TimeoutError:
                if time.monotonic() >= until:
                    raise
                reason = f"no connection within {self._connect_s:g} s"
            except OSError as error:
                reason = error.strerror or str(error)
        raise _Fault(f"is not there: {reason}", "start it, or see that this is where it listens")

    def _targets(self) -> "Iterator[tuple[socket.AddressFamily, Any]]":
        """Where to connect to. `localhost` is this machine, whatever a resolver makes of it."""
        import socket

        if self._address.socket is not None:
            yield socket.AF_UNIX, self._address.socket
            return
        host, port = self._address.host, self._address.port
        for each in ("127.0.0.1", "::1") if host == "localhost" else (host,):
            yield (socket.AF_INET6 if ":" in each else socket.AF_INET), (each, port)

    def _connect(self, family: "socket.AddressFamily", target: Any, until: float, soon: float) -> "_Wire":
        """A connection for a request that ends at `until`, made before `soon`. Raises OSError."""
        import socket

        wire = _Wire(socket.socket(family, socket.SOCK_STREAM), until)
        with self._lock:
            self._open.add(wire)
        try:
            if family != socket.AF_UNIX:
                socket.inet_pton(family, target[0])  # what is no number would be looked up as a name
                wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._reach(wire, target, soon)
        except OSError:
            self._give_back(wire, False)
            raise
        return wire

    def _reach(self, wire: "_Wire", target: Any, soon: float) -> None:
        """Raises OSError, TimeoutError after `soon`."""
        while True:
            wire.socket.settimeout(_left_s(soon))
            try:
                wire.socket.connect(target)
                break
            except BlockingIOError:  # a Unix socket does not wait for room in the server's queue
                if self._ended.wait(min(_QUEUE_S, _left_s(soon))):
                    break
        if self._ended.is_set():  # asked after connecting: `close` cannot shut what was not connected yet
            raise ConnectionAbortedError


class _Wire:
    """A connection as http.client takes one: every wait on it ends at `until`, and `left` more bytes may be heard."""

    def __init__(self, connection: "socket.socket", until: float) -> None:
        self.socket = connection
        self.until = until  # seconds of time.monotonic
        self.left = 0
        self.heard = False  # something of the answer to the last question

    def send(self, data: bytes) -> None:
        """Raises OSError; TimeoutError where not all of it is taken in time."""
        self.socket.settimeout(_left_s(self.until))
        self.socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What is heard, as a file."""
        return io.BufferedReader(_Heard(self))

    def quiet(self) -> bool:
        """Whether the connection stands and nothing has come on it."""
        self.socket.settimeout(0)
        try:
            self.socket.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def shut(self) -> None:
        """Whoever waits on it, in any thread, is woken."""
        import socket

        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class _Heard(io.RawIOBase):
    """The bytes that come on a wire, within its limits. Closing it leaves the wire open."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wire = self._wire
        if wire.left <= 0:
            raise _Fault(_TOO_MUCH)
        wire.socket.settimeout(_left_s(wire.until))
        got = wire.socket.recv_into(buffer, min(len(buffer), wire.left))
        wire.left -= got
        wire.heard = wire.heard or got > 0
        return got


def _left_s(until: float) -> float:
    """How long to wait at most. Raises TimeoutError when it is too late."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


# ------------------------------------------------------------ one request and its answer


def _converse(wire: _Wire, request: bytes, limit: int) -> tuple[_Answer, bool]:
    """The answer to `request`, its data at most `limit` bytes, and whether the connection is good for another.

    Raises _Fault, _Stale, and OSError where the connection breaks.
    """
    import http.client

    wire.heard, wire.left = False, HEAD_BYTES_MAX
    try:
        whole = _send(wire, request)
        response = http.client.HTTPResponse(wire, method="POST")  # type: ignore[arg-type]  # it takes makefile alone
        with contextlib.closing(response):
            response.begin()
            data = _body(wire, response, limit) if response.status == 200 else _trouble(wire, response)
            again = whole and response.isclosed() and not response.will_close
            return _Answer(response.status, data, _wait_s(response.getheader("Retry-After"))), again
    except ConnectionError:
        if wire.heard:
            raise
        raise _Stale from None
    except http.client.IncompleteRead:
        raise _Fault("broke off in the middle of an answer") from None
    except (http.client.HTTPException, ValueError):
        raise _Fault("does not answer in HTTP", "see that this is where it listens") from None


def _send(wire: _Wire, request: bytes) -> bool:
    """Whether all of it was taken. A server may refuse a request before it has read it, and then reads no more."""
    try:
        wire.send(request)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _body(wire: _Wire, response: "http.client.HTTPResponse", limit: int) -> bytes:
    """What a right answer holds."""
    if (coding := (response.getheader("Content-Encoding") or "identity").strip().lower()) != "identity":
        raise _Fault(f"sends its answer as {coding[:40]!r}, which it was not asked to")
    wire.left += limit
    data = response.read(limit + 1)
    if len(data) > limit:
        raise _Fault(_TOO_MUCH)
    if response.length:
        raise _Fault("broke off in the middle of an answer")
    return data


def _trouble(wire: _Wire, response: "http.client.HTTPResponse") -> bytes:
    """The beginning of an answer that says what is wrong."""
    wire.left += 2 * TROUBLE_BYTES_MAX
    return response.read(TROUBLE_BYTES_MAX)


def _wait_s(told: str | None) -> float:
    """The seconds of a Retry-After; a date there counts as nothing said."""
    told = (told or "").strip()
    return min(float(told), WAIT_S_MAX) if told.isascii() and told.isdigit() else 0.0


def _said(answer: _Answer) -> str:
    """A status, and the server's own words of it: as OpenAI puts them, Ollama, or any web server."""
    try:
        found = msgspec.json.decode(answer.data)
        for key in ("error", "message", "detail"):
            found = found.get(key, found) if isinstance(found, dict) else found
        words = found if isinstance(found, str) else ""
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        words = ""
    words = " ".join("".join(char if char.isprintable() else " " for char in words[:4096]).split())
    return f"{answer.status} {words[:_SAID_CHARS_MAX]!r}" if words else str(answer.status)


def _read(data: bytes, count: int, dims: int | None, call: _Call) -> Iterator[bytes]:
    """The vectors of an answer about `count` texts, in the order of the texts."""
    try:
        entries = parse(data, _Reply, "its answer").data
    except Invalid as error:
        raise _Wrong(str(error).rstrip(".")) from None
    if len(entries) != count:
        raise _Wrong(f"{len(entries):,} vectors for {count:,} texts")
    entries.sort(key=lambda entry: entry.index)
    if [entry.index for entry in entries] != list(range(count)):
        raise _Wrong("its vectors do not say which text each is of")
    for entry in entries:
        numbers = _numbers(entry.embedding)
        call.numbers = call.numbers or len(numbers)
        if len(numbers) != call.numbers:
            raise _Wrong(f"one vector has {call.numbers:,} numbers and another {len(numbers):,}")
        yield _normal(numbers, dims)


def _numbers(told: bytes | list[float]) -> Sequence[float]:
    """A vector's numbers, from 1 to DIMS_MAX of them."""
    count, rest = divmod(len(told), 4) if isinstance(told, bytes) else (len(told), 0)
    if rest or not 0 < count <= DIMS_MAX:
        size = f"{len(told):,} bytes" if isinstance(told, bytes) else f"{count:,} numbers"
        raise _Wrong(f"a vector has {size}, and 1 to {DIMS_MAX:,} numbers of 4 bytes are taken")
    return struct.unpack(f"<{count}f", told) if isinstance(told, bytes) else told


def _normal(numbers: Sequence[float], dims: int | None) -> bytes:
    """The first `dims` numbers, brought to length 1, as little-endian float32."""
    kept = numbers[:dims]
    length = math.hypot(*kept)
    if not math.isfinite(math.hypot(*numbers)):
        raise _Wrong("a vector holds a number that is not finite")
    if length < LENGTH_MIN:
        raise _Wrong("a vector is all zero")
    return struct.pack(f"<{len(kept)}f", *[number / length for number in kept])


def _utf8(text: str) -> str:
    """`text` with a mark in place of each half of a surrogate pair, which has no bytes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
