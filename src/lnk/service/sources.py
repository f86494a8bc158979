"""Where the connections of `serve-many` come from: passed in by whoever stands before the sandbox, or listened for."""

import contextlib
import fcntl
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Final

from lnk.contract.hello import LINE_BYTES_MAX, LINE_S, OUTDATED
from lnk.doorway import Doorway
from lnk.errors import Conflict, Invalid, Refused, from_os
from lnk.folder import make_folder
from lnk.lines import format_line
from lnk.sockets import connect, listen, peer_of

IDLE_S: Final = 5.0
AGAIN_S: Final = 1.0  # until whoever was behind is told again


class Passed:
    """Connections that were checked outside, each a message with its first line and one descriptor.

    It is told how many have been taken up, and which sessions are open. Its end is ours.
    """

    def __init__(self, fd: int) -> None:
        """Raises Invalid where `fd` is no Unix socket."""
        try:
            self._pair = socket.socket(fileno=fd)
        except OSError:
            raise Invalid(f"--connections is {fd}, which is no socket; give one end of a pair.") from None
        if self._pair.family != socket.AF_UNIX:
            raise Invalid(f"--connections is {fd}, which is no Unix socket; give one end of a pair.")
        self._pair.setblocking(False)
        self.is_outdated = False
        self._taken = 0
        self._over = False
        self._open: Mapping[str, int] = {}
        self._said: bytes = b""
        self._told = True

    def fds(self) -> list[int]:
        return [self._pair.fileno()]

    def take(self, ready: list[int]) -> list[tuple[socket.socket, bytes]]:
        if not self._told:
            self._tell()
        found: list[tuple[socket.socket, bytes]] = []
        while ready and not self._over:
            try:
                line, fds, _, _ = socket.recv_fds(self._pair, LINE_BYTES_MAX + 1, 1)
            except BlockingIOError:
                break
            except OSError:
                line, fds = b"", []
            if line == OUTDATED and not fds:
                self.is_outdated = True
                continue
            if not line and not fds:
                self._over = True
            self._taken += 1
            found += [(socket.socket(fileno=fd), line) for fd in fds]
        if not self._over and not found:
            self.report(self._open)  # the descriptor of a connection was lost: we have as many as we may
        return found

    def report(self, sessions: Mapping[str, int]) -> None:
        self._open = sessions
        said = format_line({"taken": self._taken, "open": sessions})
        if said != self._said:
            self._said = said
            self._tell()

    def _tell(self) -> None:
        try:
            self._pair.send(self._said)
            self._told = True
        except OSError:  # nobody listens, which is the end; or they are behind, and are told again
            self._told = False

    def wait_s(self) -> float | None:
        return None if self._told else AGAIN_S

    def is_over(self) -> bool:
        return self._over

    def close(self) -> None:
        self._pair.close()


class Listened:
    """Connections to a socket of ours, taken from this user and from the peer's."""

    def __init__(self, path: str, *, peer: str | None, group: str | None, stay: bool) -> None:
        """Raises Invalid for a user or a group that there is not, Refused where others may enter the socket's folder.

        Conflict where another process listens there.
        """
        allowed = peer_of(peer, group)
        users = {os.geteuid(), *([] if allowed is None else [allowed.user])}
        gid = None if allowed is None else allowed.group
        self._parent, self._name = os.path.split(os.path.abspath(path))
        self._folder = _closed_folder(self._parent, gid)
        with self._alone():
            if self._is_heard():
                raise Conflict(f"Another process listens at {path}; end it, or give another path.")
            listening = listen(self._folder, self._parent, self._name, group=gid)
        self._at = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        self._door = Doorway(listening, users, _say, line_bytes_max=LINE_BYTES_MAX, line_s=LINE_S)
        self.is_outdated = False
        self._stay = stay
        self._sessions = 0
        self._idle_since = time.monotonic()

    def fds(self) -> list[int]:
        return self._door.fds()

    def take(self, ready: list[int]) -> list[tuple[socket.socket, bytes]]:
        now = time.monotonic()
        found = [(said.stream, said.line) for said in self._door.take(ready, now)]
        self._door.expire(now)
        if found or self._sessions or len(self._door):
            self._idle_since = now
        return found

    def report(self, sessions: Mapping[str, int]) -> None:
        self._sessions = sum(sessions.values())
        self._idle_since = time.monotonic()

    def wait_s(self) -> float | None:
        now = time.monotonic()
        waits = [self._door.wait_s(now)]
        if not (self._stay or self._sessions):
            waits.append(max(0.0, self._idle_since + IDLE_S - now))
        return min((wait for wait in waits if wait is not None), default=None)

    def is_over(self) -> bool:
        """Whether nobody came for a while; the socket is gone then, but where somebody came just before."""
        if self._stay or self._sessions or len(self._door) or time.monotonic() < self._idle_since + IDLE_S:
            return False
        aside = f".{self._name}.old"
        with self._alone():
            if self._is_ours():
                os.rename(self._name, aside, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                if self._door.is_awaited():
                    os.rename(aside, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                    return False
                os.unlink(aside, dir_fd=self._folder)
        return True

    def close(self) -> None:
        """The socket is gone, where it is ours still: as long as we listen, no other has its number."""
        if self._folder < 0:
            return
        with self._alone():
            if self._is_ours():
                os.unlink(self._name, dir_fd=self._folder)
        self._door.close()
        os.close(self._folder)
        self._folder = -1

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Of all who begin or end to listen in the folder, one at a time does."""
        fcntl.flock(self._folder, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_UN)

    def _is_heard(self) -> bool:
        """Whether somebody listens at our path; who is behind with that does too."""
        try:
            connect(self._folder, self._parent, self._name).close()
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _is_ours(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._name, dir_fd=self._folder, follow_symlinks=False), self._at)
        except OSError:
            return False


def _closed_folder(path: str, group: int | None) -> int:
    """A descriptor of the folder for the socket, made where it is not there; the group's members may go through."""
    there = os.path.isdir(path)
    make_folder(path, 0o700)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if group is not None and not there:
            os.fchown(folder, -1, group)
            os.fchmod(folder, 0o710)
        found = os.fstat(folder)
    except OSError as error:
        raise from_os(error, f"open the folder {path} for the socket") from None
    others = 0o077 if group is None else 0o027
    if stat.S_IMODE(found.st_mode) & others or found.st_uid != os.geteuid():
        os.close(folder)
        least = "700" if group is None else f"710, of the group {group}"
        raise Refused(f"Others may enter {path}, where the socket is to be; give a folder of yours with mode {least}.")
    if group is not None and (found.st_gid != group or not stat.S_IMODE(found.st_mode) & 0o010):
        os.close(folder)
        raise Refused(f"{path} lets the group {group} not through; give a folder of that group, with mode 710.")
    return folder


def _say(why: str) -> None:
    sys.stderr.write(f"lnk-link-memory: a connection was refused: {why}\n")


def read_agents(path: str) -> bytes:
    """`<agents>`, as it stands in its file. Raises Missing, Refused."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise from_os(error, f"read {path}") from None
