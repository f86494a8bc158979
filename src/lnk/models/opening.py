"""The one opening of a sandbox to a model: what its program connects to at a port of its own loopback, led on outside.

The program has a network of its own with nothing in it. Before it starts, a socket that listens there comes out of the
sandbox through a socket pair. So its address can be told before anything serves it, and no program that comes to listen
on that port of the machine is reached in the model's place: it leads to what serves the model, and to nothing else.
"""

import contextlib
import os
import socket
import threading
from typing import Final

from lnk.errors import Invalid
from lnk.models.relay import Relay, Target

SENT: Final = b"L"  # what the socket comes with


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
        self.target: Target | None = None
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
                self._relay = Relay(listening, lambda: self.target)
                return
        listening.close()


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
