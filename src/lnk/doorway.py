"""The way in to a service: connections taken from those who may connect, and the first line that each of them says.

No connection that stays silent keeps another out: so many may, and for so long. It knows no protocol but lines, and
waits nowhere: whoever owns it polls its descriptors.
"""

import _socket
import contextlib
import errno
import json
import os
import select
import socket
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from lnk.sockets import user_of

SILENT_MAX: Final = 64


class Said(NamedTuple):
    """A connection that said its first line, LF not included; what it says next is still unread in it."""

    stream: socket.socket
    line: bytes
    user: int


class _Silent:
    __slots__ = ("began", "said", "stream", "user")

    def __init__(self, stream: socket.socket, user: int, now: float) -> None:
        self.stream = stream
        self.user = user
        self.began = now
        self.said = b""


class Doorway:
    """What comes to one listening socket. `now` is seconds that only go forward."""

    def __init__(
        self,
        listening: _socket.socket,
        users: Iterable[int],
        refused: Callable[[str], object],
        *,
        line_bytes_max: int,
        line_s: float,
    ) -> None:
        """`users` may connect. `refused` hears why a connection was not taken, or closed before it said its line."""
        self._listening = listening
        self._users = frozenset(users)
        self._refused = refused
        self._line_bytes_max = line_bytes_max
        self._line_s = line_s
        self._silent: dict[int, _Silent] = {}
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # for who comes when no descriptor is left

    def __len__(self) -> int:
        """How many have not said their line."""
        return len(self._silent)

    def fds(self) -> list[int]:
        """The descriptors to be polled for reading."""
        return [self._listening.fileno(), *self._silent]

    def wait_s(self, now: float) -> float | None:
        """How long until `expire` has something to do."""
        oldest = next(iter(self._silent.values()), None)
        return None if oldest is None else max(0.0, oldest.began + self._line_s - now)

    def take(self, ready: Iterable[int], now: float) -> list[Said]:
        """Those that have said their line, of what is ready; new connections among them."""
        found = []
        ready = set(ready)
        for fd in [fd for fd in self._silent if fd in ready]:
            found += self._hear(fd)
        if self._listening.fileno() in ready:
            found += self.accept(now)
        return found

    def accept(self, now: float) -> list[Said]:
        """All that waits to be taken is; of the silent the oldest goes where there are too many."""
        found = []
        for _ in range(SILENT_MAX):
            try:
                fd, _address = self._listening._accept()  # type: ignore[attr-defined]
            except OSError as error:  # nothing more, or it is gone again
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away()
                break
            stream = socket.socket(fileno=fd)
            stream.setblocking(False)
            try:
                # A byte out of band, which Linux has here too, would be ready for ever and never be read.
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
                user = user_of(stream)
            except OSError:
                stream.close()
                continue
            if user not in self._users:
                self._refused(f"user {user} may not connect")
                stream.close()
                continue
            self._silent[stream.fileno()] = _Silent(stream, user, now)
            found += self._hear(stream.fileno())
            if len(self._silent) > SILENT_MAX:
                self._drop(next(iter(self._silent)), f"more than {SILENT_MAX} connections are silent")
        return found

    def is_awaited(self) -> bool:
        """Whether somebody waits to be taken."""
        poll = select.poll()
        poll.register(self._listening.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def expire(self, now: float) -> None:
        """Those that were silent for too long go."""
        for fd, one in list(self._silent.items()):
            if now - one.began >= self._line_s:
                self._drop(fd, f"no first line came within {self._line_s:g} s")

    def close(self) -> None:
        """Nobody is taken any more."""
        for fd in list(self._silent):
            self._silent.pop(fd).stream.close()
        self._listening.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _turn_away(self) -> None:
        """One goes for whom there is no descriptor: it would be ready for ever, and keep whoever polls busy."""
        why = "the process that listens has no descriptor left"
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        with contextlib.suppress(OSError):
            fd, _address = self._listening._accept()  # type: ignore[attr-defined]
            self._refused(why)
            refuse(socket.socket(fileno=fd), why)
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _hear(self, fd: int) -> list[Said]:
        """The first line is taken out of the connection, and not a byte more."""
        one = self._silent[fd]
        try:
            seen = one.stream.recv(self._line_bytes_max + 1, socket.MSG_PEEK)
            end = seen.find(b"\n")
            one.said += one.stream.recv(end + 1 if end >= 0 else len(seen)) if seen else b""
        except BlockingIOError:
            return []
        except OSError:
            seen, end = b"", -1
        if not seen:
            self._drop(fd, None)
        elif len(one.said) > self._line_bytes_max + 1 or (end < 0 and len(one.said) > self._line_bytes_max):
            self._drop(fd, f"the first line is over {self._line_bytes_max:,} bytes")
        elif end >= 0:
            del self._silent[fd]
            return [Said(one.stream, one.said[:-1], one.user)]
        return []

    def _drop(self, fd: int, why: str | None) -> None:
        stream = self._silent.pop(fd).stream
        if why is not None:
            self._refused(why)
            refuse(stream, why)
        stream.close()


def refuse(stream: socket.socket, why: str) -> None:
    """The connection is answered with why it is not served, so far as it takes that, and closed."""
    with contextlib.suppress(OSError):
        stream.send(
            json.dumps({"error": f"{why[:1].upper()}{why[1:].rstrip('.')}."}).encode() + b"\n", socket.MSG_DONTWAIT
        )
    stream.close()
