"""The one opening of a sandbox to a model: what its program connects to at a port of its own loopback, led on outside.

The program has a network of its own with nothing in it. Before it starts, a socket that listens there comes out of the
sandbox through a socket pair. So its address can be told before anything serves it, and no program that comes to listen
on that port of the machine is reached in the model's place: it leads to what serves the model, and to nothing else.

Nor to more of that than the one call: a runtime also fetches models from any address, deletes them and talks. So
nothing that the program sends goes on. Each request for vectors of its model is read, and one of our own that says the
same is sent; whatever else comes breaks off the connection, and nothing of it is sent.
"""

import contextlib
import itertools
import os
import re
import socket
import threading
from collections.abc import Iterator
from typing import Annotated, BinaryIO, Final, Literal, NamedTuple

import msgspec

from lnk.contract.embedding import DIMS_MAX, Address
from lnk.errors import Invalid
from lnk.models.relay import Names, Relay, Target, read_request
from lnk.models.settings import BASE

SENT: Final = b"L"  # what the socket comes with
CONNECTIONS_MAX: Final = 4  # an engine has one or two each for questions and for documents; further ones wait
HEAD_BYTES_MAX: Final = 8 << 10  # a client with much to say of itself sends 1 KB
# The engine sends 64 texts at most, each an instruction of 1,000 characters, a title of 200 and 1,500 of a chunk. A
# character has up to 6 bytes in JSON: 1.04 MB. At worst, in texts with a character past U+FFFF, a connection takes nine
# times a request's size.
REQUEST_BYTES_MAX: Final = 2 << 20
STRINGS_MAX: Final = 2064  # of a request: 2,048 texts, which is what clients of OpenAI send, and the fields
_CALL: Final = f"POST {BASE}/embeddings HTTP/1.1".encode()
_EXPECT: Final = b"expect:"  # asks for an answer before the body is sent

# Begins at a quote and never fails there, whether the string ends or not, so that a body is run over once.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


class Model(NamedTuple):
    """What serves a model, and the model's names."""

    address: Address
    names: Names


class _Asked(msgspec.Struct, omit_defaults=True):
    """What is asked for, which is all that goes on. A field that is not here is left out and not refused: clients send
    more with each version, and what nobody is sent does no harm. Texts alone are taken, as not every runtime takes
    lists of tokens.
    """

    model: str
    input: str | list[str]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=DIMS_MAX)] | None = None


class Opening:
    """Takes what the program connects to, from its making until `close`.

    `port` is the program's own. `target` is where connections lead that come from now on; while it is None they are
    closed at once, which an engine takes for a model that is not there yet.
    """

    def __init__(self, fd: int, port: int) -> None:
        """`fd`: our end of the pair, the opening's own from now on. Nothing is waited for: a pair whose other end is
        closed without a socket is an opening to which nothing comes.

        Raises Invalid where it is no Unix socket.
        """
        self.port = port
        self.target: Model | None = None
        self._pair = _unix(fd)
        self._relay: Relay | None = None
        self._closed = False
        self._lock = threading.Lock()
        threading.Thread(target=self._open, daemon=True).start()

    def close(self) -> None:
        """No further connection is taken. Closing twice does no harm."""
        with self._lock:
            self._closed = True
            relay, self._relay = self._relay, None
        with contextlib.suppress(OSError):
            self._pair.shutdown(socket.SHUT_RDWR)  # which wakes the thread that waits for the socket
        if relay:
            relay.close()

    def _open(self) -> None:
        with self._pair:
            listening = _received(self._pair)
        if listening is None:
            return
        with self._lock:
            if not self._closed:
                self._relay = Relay(listening, self._led, CONNECTIONS_MAX)
                return
        listening.close()

    def _led(self) -> Target | None:
        return _embeddings(self.target) if self.target else None


# ------------------------------------------------------------ what goes on


def _embeddings(model: Model) -> Target:
    """The model's server, for that one call."""

    def requests(heard: BinaryIO) -> Iterator[bytes]:
        while request := _next(heard, model):
            yield request

    return Target(model.address, requests)


def _next(heard: BinaryIO, model: Model) -> bytes:
    """The next request, written anew; nothing at the end. Raises ValueError for one that does not go on."""
    request = read_request(heard, HEAD_BYTES_MAX, REQUEST_BYTES_MAX)
    if request is None:
        return b""
    if request.first != _CALL or any(line.lower().startswith(_EXPECT) for line in request.headers):
        raise ValueError
    asked = _asked(request.body)
    if asked.model != model.names.asked:
        raise ValueError
    asked.model = model.names.there
    return _written(model.address, msgspec.json.encode(asked))


def _asked(body: bytes) -> _Asked:
    """What a body asks for. Raises ValueError for any other, before anything large is built of it."""
    strings = itertools.islice(_STRING.finditer(body), STRINGS_MAX + 1)
    if sum(1 for _ in strings) > STRINGS_MAX:
        raise ValueError
    try:
        return msgspec.json.decode(body, type=_Asked)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError from None


def _written(address: Address, body: bytes) -> bytes:
    """The call, as we make it."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    head = (
        f"POST {address.base}/embeddings HTTP/1.1",
        f"Host: {host}:{address.port}",
        "Content-Type: application/json",
        "Accept: application/json",
        "Accept-Encoding: identity",
        "Connection: keep-alive",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join([*head, "", ""]).encode() + body


# ------------------------------------------------------------ what comes through the pair


def _unix(fd: int) -> socket.socket:
    try:
        os.set_inheritable(fd, False)  # it is not for a runtime that is started here
        found = socket.socket(fileno=fd)
    except OSError:
        raise Invalid(f"The descriptor {fd} is no socket; give one end of a pair of Unix sockets.") from None
    if found.family != socket.AF_UNIX:
        found.detach()
        raise Invalid(f"The descriptor {fd} is no Unix socket; give one end of a pair.")
    return found


def _received(pair: socket.socket) -> socket.socket | None:
    """The listening socket that comes; None where none does. Whatever else comes is closed."""
    try:
        said, handles, _, _ = socket.recv_fds(pair, len(SENT), 1)
    except OSError:
        return None
    for handle in handles:
        os.set_inheritable(handle, False)
        if said == SENT and (found := _listening(handle)):
            return found
        os.close(handle)
    return None


def _listening(handle: int) -> socket.socket | None:
    """The socket, where it is one that a relay can take from."""
    try:
        found = socket.socket(fileno=handle)
    except OSError:
        return None
    if found.family == socket.AF_INET and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        found.setblocking(True)
        return found
    found.detach()
    return None
