"""A listening socket whose connections go on to a server at a port of this machine.

So a model has the address and the name that were told before, whatever runtime has it and whatever it is called
there. What of a connection goes on is its target's to say; answers are never looked at.
"""

import contextlib
import errno
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, NamedTuple

import msgspec

from lnk.contract.embedding import Address
from lnk.errors import Refused, Unavailable
from lnk.models.settings import BASE

HOST: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 32  # a person's programs have one or two each; further ones wait
PART_BYTES: Final = 1 << 16  # held of each direction of each connection
CONNECT_S: Final = 5.0
IDLE_S: Final = 600.0  # a model that is being loaded says nothing for minutes
HEAD_BYTES_MAX: Final = 1 << 16  # of a request's first line and headers
REQUEST_BYTES_MAX: Final = 8 << 20  # of a request that is put right, held whole: 2,048 texts of 4 KB

_FIRST = re.compile(rb"[A-Z]+ [!-~]+ HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t ]*([\t -~\x80-\xff]*?)[\t ]*")
_SIZE = re.compile(rb"[0-9]{1,9}")


class Names(NamedTuple):
    """A model's name as it is asked for, and as the server has it."""

    asked: str
    there: str


class Target(NamedTuple):
    """A server, and what goes on to it: of what is heard, `requests` gives each request as the server takes it, and
    raises ValueError where the connection is to break off. Without it every byte goes on as it comes.
    """

    address: Address
    requests: Callable[[BinaryIO], Iterator[bytes]] | None = None


class Request(NamedTuple):
    """A request of HTTP/1: its first line, its headers as they came, its body."""

    first: bytes
    headers: list[bytes]
    body: bytes


def anything(address: Address, names: Names | None) -> Target:
    """A server to which whatever comes for it goes on, with the path and the model's name put right.

    A path under /v1 is there one under its base. Where both are the server's own, bytes go on as they come.
    """
    if names is None and address.base == BASE:
        return Target(address)

    def requests(heard: BinaryIO) -> Iterator[bytes]:
        while request := read_request(heard, HEAD_BYTES_MAX, REQUEST_BYTES_MAX):
            yield _put_right(request, address.base, names)

    return Target(address, requests)


def _put_right(request: Request, base: str, names: Names | None) -> bytes:
    """A request as the server takes it."""
    method, path, version = request.first.split(b" ")
    if path.startswith(f"{BASE}/".encode()):
        path = base.encode() + path[len(BASE) :]
    body = _named(request.body, names) if request.body and names else request.body
    rest = [line for line in request.headers if not line.lower().startswith(b"content-length:")]
    return b"\r\n".join([b" ".join([method, path, version]), *rest, b"Content-Length: %d" % len(body), b"", body])


def _named(body: bytes, names: Names) -> bytes:
    """The body with the model's name as the server has it. The rest of it is not built."""
    try:
        said = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        if msgspec.json.decode(said.get("model", b"null")) != names.asked:
            return body
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return body
    return msgspec.json.encode({**said, "model": names.there})


class Relay:
    """Takes what connects to a listening socket, which is its own, from its making until `close`."""

    def __init__(
        self, listening: socket.socket, target: Callable[[], Target | None], connections_max: int = CONNECTIONS_MAX
    ) -> None:
        """`target` is asked at each connection; where it is None the connection is closed at once."""
        self._socket = listening
        self._target = target
        self._places = threading.Semaphore(connections_max)
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
        if target.requests:
            _send_each(target.requests, client, server)
        else:
            _pass_on(client, server)
        back.join()


def _send_each(requests: Callable[[BinaryIO], Iterator[bytes]], client: socket.socket, server: socket.socket) -> None:
    """Each request goes on, whole, up to the end; what is none breaks off both directions."""
    try:
        with client.makefile("rb") as heard:
            for request in requests(heard):
                server.sendall(request)
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


def read_request(heard: BinaryIO, head_bytes_max: int, body_bytes_max: int) -> Request | None:
    """The next request, None at the end. Raises ValueError for any other, also where two readers of HTTP may differ on
    where it ends: a line not ended by CR and LF, a folded header, a length said twice or in chunks.
    """
    lines: list[bytes] = []
    left = head_bytes_max
    while line := heard.readline(left):
        left -= len(line)
        if not line.endswith(b"\r\n"):
            raise ValueError
        if line != b"\r\n":
            lines.append(line[:-2])
        elif lines:  # else an empty line as some send behind a body
            break
    if not line:
        if lines or left <= 0:
            raise ValueError
        return None
    first, *headers = lines
    if not _FIRST.fullmatch(first):
        raise ValueError
    size = _size(headers, body_bytes_max)
    body = heard.read(size)
    if len(body) < size:
        raise ValueError
    return Request(first, headers, body)


def _size(headers: list[bytes], most: int) -> int:
    """How long the body is. Raises ValueError where that is too much, said twice, or not said before it comes."""
    found = [_HEADER.fullmatch(line) for line in headers]
    told = [(each[1].lower(), each[2]) for each in found if each]
    sizes = [value for name, value in told if name == b"content-length"] or [b"0"]
    streamed = any(name == b"transfer-encoding" for name, _ in told)
    if len(told) < len(headers) or streamed or len(sizes) > 1 or not _SIZE.fullmatch(sizes[0]):
        raise ValueError
    size = int(sizes[0])
    if size > most:
        raise ValueError
    return size


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
