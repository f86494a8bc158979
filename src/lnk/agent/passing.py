"""How connections get from the service to its engine: passed in by their descriptor, or copied to its own socket.

Our engine takes descriptors and makes no socket. Any other that serves many listens in a folder of its own in `<dir>`.
"""

import contextlib
import errno
import json
import os
import select
import socket
from typing import Final

from lnk.contract.hello import OUTDATED, parse_hello
from lnk.doorway import Said, refuse
from lnk.sockets import connect

REPORT_BYTES_MAX: Final = 1 << 16
PART_BYTES: Final = 1 << 16  # held of each direction of a connection that is copied
LOOK_S: Final = 0.05  # how often an engine that does not listen yet is looked for
SOCKET: Final = "engine.sock"


class Passed:
    """By a socket pair: a message with the first line and the descriptor in, and reports of the sessions out."""

    def __init__(self, pair: socket.socket) -> None:
        self.sessions: dict[str, int] = {}
        self.is_gone = False
        self._pair = pair
        self._pair.setblocking(False)
        self._given = self._taken = 0

    @property
    def has_served(self) -> bool:
        """Whether a connection was taken up."""
        return self._taken > 0

    def register(self, poll: select.poll, *, waits: bool) -> None:
        """The pair."""
        poll.register(self._pair, select.POLLIN | (select.POLLOUT if waits else 0))

    def hear(self, ready: dict[int, int]) -> None:
        """It tells how many connections it has taken up, and which sessions are open."""
        if not ready.get(self._pair.fileno(), 0) & ~select.POLLOUT:
            return
        while not self.is_gone:
            try:
                data = self._pair.recv(REPORT_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.is_gone = not data
            if data:
                self._believe(data)

    def _believe(self, data: bytes) -> None:
        """A report of the engine's, which may be no engine of ours any more: one of another shape is its end."""
        try:
            said = json.loads(data)
            taken, sessions = said["taken"], said["open"]
            if type(taken) is int and all(type(count) is int and count > 0 for count in sessions.values()):
                self._taken, self.sessions = taken, dict(sessions)
                return
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        self.is_gone = True

    def give(self, said: Said) -> bool:
        """Ours of the connection is closed."""
        try:
            socket.send_fds(self._pair, [said.line], [said.stream.fileno()])
        except BlockingIOError:
            return False
        except OSError:
            self.is_gone = True
            return False
        said.stream.close()
        self._given += 1
        return True

    def tell_outdated(self) -> None:
        """Sessions that rest are closed by the engine: who relays them finds the service that is current."""
        with contextlib.suppress(OSError):  # it is told again
            self._pair.send(OUTDATED)

    def is_used(self) -> bool:
        """Whether a session is open, or was given and is not taken up."""
        return bool(self._given > self._taken or self.sessions)

    def wait_s(self, *, waits: bool) -> None:
        """It speaks for itself."""

    def close(self) -> None:
        """Which it takes for its end."""
        self._pair.close()


class Copied:
    """By its own socket, in a folder that its sandbox may write: each connection is another one there, and copied."""

    def __init__(self, path: str) -> None:
        """`path`: the folder's."""
        self.is_gone = False
        self.has_served = False
        self._path = path
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._copies: list[_Copy] = []

    @property
    def sessions(self) -> dict[str, int]:
        """Those whose both ends are open."""
        found: dict[str, int] = {}
        for copy in self._copies:
            found[copy.agent] = found.get(copy.agent, 0) + 1
        return found

    def register(self, poll: select.poll, *, waits: bool) -> None:
        """Both ends of each."""
        for copy in self._copies:
            copy.register(poll)

    def hear(self, ready: dict[int, int]) -> None:
        """What can go on does."""
        for copy in self._copies:
            copy.move(ready)
        self._copies = [copy for copy in self._copies if not copy.is_over]

    def give(self, said: Said) -> bool:
        """It is told the first line; what it answers goes back as all else."""
        try:
            stream = socket.socket(fileno=connect(self._folder, self._path, SOCKET).detach())
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN):
                return False
            refuse(said.stream, f"The engine cannot be reached: {error.strerror}.")
            return True
        stream.setblocking(False)
        self._copies.append(_Copy(parse_hello(said.line), said.stream, stream, said.line + b"\n"))
        self.has_served = True
        return True

    def tell_outdated(self) -> None:
        """Its sessions stay."""

    def is_used(self) -> bool:
        """Whether a session is open."""
        return bool(self._copies)

    def wait_s(self, *, waits: bool) -> float | None:
        """Until it listens it is looked for."""
        return LOOK_S if waits else None

    def close(self) -> None:
        """Every session is over, and its process is ended by who started it."""
        for copy in self._copies:
            copy.close()
        for name in os.listdir(self._folder):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._folder)
        os.close(self._folder)
        with contextlib.suppress(OSError):
            os.rmdir(self._path)


class _Copy:
    """Two connections, of which each is told what the other says."""

    def __init__(self, agent: str, client: socket.socket, engine: socket.socket, first: bytes) -> None:
        """`first`: what the engine is told before all else."""
        self.agent = agent
        self.is_over = False
        self._ways = (_Way(client, engine, first), _Way(engine, client))

    def register(self, poll: select.poll) -> None:
        wanted: dict[socket.socket, int] = {}
        for way in self._ways:
            wanted[way.source] = wanted.get(way.source, 0) | (select.POLLIN if way.reads() else 0)
            wanted[way.sink] = wanted.get(way.sink, 0) | (select.POLLOUT if way.held else 0)
        for stream, events in wanted.items():
            if events:  # else one that is hung up would be told of for ever
                poll.register(stream, events)

    def move(self, ready: dict[int, int]) -> None:
        """What can go on does; the end of both ways is the end."""
        try:
            for way in self._ways:
                way.move(ready)
        except OSError:
            self.close()
            return
        if all(way.is_over for way in self._ways):
            self.close()

    def close(self) -> None:
        self.is_over = True
        for way in self._ways:
            way.source.close()


class _Way:
    """One direction."""

    def __init__(self, source: socket.socket, sink: socket.socket, held: bytes = b"") -> None:
        self.source, self.sink = source, sink
        self.held = memoryview(held)
        self.is_over = False
        self._has_ended = False

    def reads(self) -> bool:
        """Whether more is wanted of it."""
        return not (self.held or self._has_ended)

    def move(self, ready: dict[int, int]) -> None:
        """Raises OSError where an end is gone."""
        if self.reads() and ready.get(self.source.fileno(), 0):
            with contextlib.suppress(BlockingIOError):
                data = self.source.recv(PART_BYTES)
                self.held = memoryview(data)
                self._has_ended = not data
        if self.held:
            with contextlib.suppress(BlockingIOError):
                self.held = self.held[self.sink.send(self.held) :]
        if self._has_ended and not self.held and not self.is_over:
            self.is_over = True
            self.sink.shutdown(socket.SHUT_WR)


Engine = Passed | Copied


def reached(said: str) -> Engine:
    """The engine as its starter says: the descriptor of a pair, or the path of its folder."""
    if said.isdigit():
        fd = int(said)
        os.set_inheritable(fd, False)
        return Passed(socket.socket(fileno=fd))
    return Copied(said)
