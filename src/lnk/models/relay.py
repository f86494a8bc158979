"""A listening socket whose connections go on to a server at a port of this machine.

So a model has the address and the name that were told before, whatever runtime has it and whatever it is called
there. Where both are the runtime's own, only bytes are passed on, as they come; else the path and the `model` of each
request are put right. Answers are never looked at.
"""

import contextlib
import errno
import socket
import threading
from collections.abc import Callable
from typing import BinaryIO, Final, NamedTuple

import msgspec

from lnk.contract.embedding import Address
from lnk.errors import Refused, Unavailable
from lnk.models.settings import BASE

HOST: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 32  # an engine has one or two; further ones wait
PART_BYTES: Final = 1 << 16  # held of each direction of each connection
CONNECT_S: Final = 5.0
IDLE_S: Final = 600.0  # a model that is being loaded says nothing for minutes
HEAD_BYTES_MAX: Final = 1 << 16  # of a request's first line and headers
REQUEST_BYTES_MAX: Final = 64 << 20  # of a request that is put right, which is held whole


class Names(NamedTuple):
    """A model's name as it is asked for, and as the server has it."""

    asked: str
    there: str


class Target(NamedTuple):
    """A server. What comes for a path under /v1 is for that path under its base; and `names` are put right."""

    address: Address
    names: Names | None = None

    @property
    def plain(self) -> bool:
        """Whether every byte goes on as it comes."""
        return self.names is None and self.address.base == BASE

    def right(self, lines: list[bytes], body: bytes) -> bytes:
        """A request, its first line and headers and its body, as the server takes it. Raises ValueError."""
        method, path, version = lines[0].split(b" ")
        if path.startswith(f"{BASE}/".encode()):
            path = self.address.base.encode() + path[len(BASE) :]
        body = self._named(body)
        rest = [line for line in lines[1:] if not line.lower().startswith(b"content-length:")]
        return b"\r\n".join([b" ".join([method, path, version]), *rest, b"Content-Length: %d" % len(body), b"", body])

    def _named(self, body: bytes) -> bytes:
        """The body with the model's name as the server has it."""
        if not body or not self.names:
            return body
        try:
            said = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return body
        if not isinstance(said, dict) or said.get("model") != self.names.asked:
            return body
        return msgspec.json.encode({**said, "model": self.names.there})


class Relay:
    """Takes what connects to a listening socket, which is its own, from its making until `close`."""

    def __init__(self, listening: socket.socket, target: Callable[[], Target | None]) -> None:
        """`target` is asked at each connection; where it is None the connection is closed at once."""
        self._socket = listening
        self._target = target
        self._places = threading.Semaphore(CONNECTIONS_MAX)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """No further connection is taken."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # which also wakes the thread that waits for one
        self._socket.close()

    def _accept(self) -> None:
        while True:
            self._places.acquire()
            try:
                client, _ = self._socket.accept()
            except OSError as error:
                self._places.release()
                if error.errno in (errno.EBADF, errno.EINVAL):  # closed
                    return
                continue  # one that broke off before it was taken
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                if target := self._target():
                    _lead(client, target)
        except OSError:
            pass  # the client sees a connection that broke off, as it would without us
        finally:
            self._places.release()


def _lead(client: socket.socket, target: Target) -> None:
    """All that comes goes on, both ways, until both have ended. Raises OSError."""
    at = target.address
    with socket.create_connection((at.host, at.port), CONNECT_S) as server:
        for each in (client, server):
            each.settimeout(IDLE_S)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
        back.start()
        if target.plain:
            _pass_on(client, server)
        else:
            _put_right(client, server, target)
        back.join()


def _put_right(client: socket.socket, server: socket.socket, target: Target) -> None:
    """Each request goes on, put right, up to the end; what is none breaks off both directions."""
    try:
        with client.makefile("rb") as heard:
            while request := _request(heard):
                server.sendall(target.right(*request))
        server.shutdown(socket.SHUT_WR)
    except (OSError, ValueError):
        _break_off(client, server)


def listening(port: int) -> socket.socket:
    """A socket that listens on this port of this machine, 0 for any.

    Raises Unavailable where it is taken, Refused where it may not be had.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what listened here before has just ended
        found.bind((HOST, port))
        found.listen(CONNECTIONS_MAX)
    except OSError as error:
        found.close()
        if error.errno == errno.EACCES:
            raise Refused(f"the port {port} is not open to you; give one from 1024 on") from None
        raise Unavailable(f"the port {port} is taken; give another") from None
    return found


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with listening(0) as found:
        return int(found.getsockname()[1])


def _request(heard: BinaryIO) -> tuple[list[bytes], bytes] | None:
    """The next request: its first line and headers, and its body. None at the end. Raises ValueError for any other."""
    lines: list[bytes] = []
    left = HEAD_BYTES_MAX
    while line := heard.readline(left):
        left -= len(line)
        if not line.endswith(b"\n"):
            raise ValueError
        if not line.strip():
            if lines:
                break
            continue  # as some send behind a body
        lines.append(line.rstrip(b"\r\n"))
    if not line:
        if lines:
            raise ValueError
        return None
    method, *_, version = lines[0].split(b" ")
    if lines[0].count(b" ") != 2 or not method.isalpha() or not version.startswith(b"HTTP/1."):
        raise ValueError
    size = _size([line.lower() for line in lines[1:]])
    body = heard.read(size)
    if len(body) < size:
        raise ValueError
    return lines, body


def _size(headers: list[bytes]) -> int:
    """How long the body is. Raises ValueError where that is too much, said twice, or not said before it comes."""
    sizes = [int(line.partition(b":")[2]) for line in headers if line.startswith(b"content-length:")] or [0]
    streamed = any(line.startswith(b"transfer-encoding:") for line in headers)
    if streamed or len(sizes) > 1 or not 0 <= sizes[0] <= REQUEST_BYTES_MAX:
        raise ValueError
    return sizes[0]


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """What comes from `source` goes to `sink`, up to its end; an end by a fault ends both directions."""
    try:
        while part := source.recv(PART_BYTES):
            sink.sendall(part)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        _break_off(source, sink)


def _break_off(*ends: socket.socket) -> None:
    for each in ends:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
