"""A port of this machine whose connections go on to another port of this machine: bytes, as they come.

So a model has the address that was chosen for it, whatever runtime has it. Knows no HTTP.
"""

import contextlib
import errno
import socket
import threading
from typing import Final

from lnk.contract.embedding import Address
from lnk.errors import Refused, Unavailable

HOST: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 32  # an engine has one or two; further ones wait
PART_BYTES: Final = 1 << 16  # held of each direction of each connection
CONNECT_S: Final = 5.0
IDLE_S: Final = 600.0  # a model that is being loaded says nothing for minutes


class Relay:
    """Listens on `port` of this machine from its making until `close`."""

    def __init__(self, port: int, target: Address) -> None:
        """Raises Unavailable where the port is taken, Refused where it may not be had."""
        self._target = target
        self._socket = listening(port)
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
            with client, self._connected() as server:
                for each in (client, server):
                    each.settimeout(IDLE_S)
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
                back.start()
                _pass_on(client, server)
                back.join()
        except OSError:
            pass  # the client sees a connection that broke off, as it would without us
        finally:
            self._places.release()

    def _connected(self) -> socket.socket:
        return socket.create_connection((self._target.host, self._target.port), CONNECT_S)


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


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """What comes from `source` goes to `sink`, up to its end; an end by a fault ends both directions."""
    try:
        while part := source.recv(PART_BYTES):
            sink.sendall(part)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
