"""Unix sockets by the open folder that they lie in: listened at, connected to, and who is at the other end.

A socket's address holds some hundred bytes, and a path may be longer: where the system lets a folder be named by its
descriptor, that stands for the path. It loads `_socket` alone, for the programs that are to start at once.
"""

import _socket
import contextlib
import errno
import os
import stat
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from lnk.errors import Invalid, from_os

PATH_BYTES_MAX: Final = 107 if hasattr(_socket, "SO_PEERCRED") else 103  # what an address holds: Linux, macOS
_HELD: Final = getattr(os, "O_PATH", 0)  # what is only named is what is connected to, whatever has its name by then
BACKLOG: Final = 512
_BY_NUMBER: Final = "/proc/self/fd"
_PEER: Final = struct.Struct("i2I")  # `struct ucred` of unix(7)
_PEER_ELSEWHERE: Final = struct.Struct("2I")  # the beginning of `struct xucred` of macOS, asked by LOCAL_PEERCRED


def path_in(folder: int, path: str, name: str) -> str:
    """The address of the socket `name` in a folder that is open, and lies at `path`. Raises Invalid: it is too long."""
    by_number = f"{_BY_NUMBER}/{folder}"
    address = f"{by_number if os.path.isdir(by_number) else path}/{name}"
    if len(os.fsencode(address)) > PATH_BYTES_MAX:
        raise Invalid(f"The path {address} is too long for a socket, which takes {PATH_BYTES_MAX} bytes; shorten it.")
    return address


def listen(folder: int, path: str, name: str, *, group: int | None = None) -> _socket.socket:
    """Listens as `name` in the folder, in the place of a socket that a dead process left; only this user may connect.

    With `group`, its members may too. Order: it is bound under another name and given its mode, listens, and then is
    renamed; so nobody meets it before, and whoever meets it is heard. Raises OSError's kinds, Invalid.
    """
    fresh = f".{name}.new"
    stream = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=folder)
        stream.bind(path_in(folder, path, fresh))
        if group is not None:
            os.chown(fresh, -1, group, dir_fd=folder, follow_symlinks=False)
            os.chmod(fresh, 0o660, dir_fd=folder)
        stream.listen(BACKLOG)
        os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        stream.close()
        raise from_os(error, f"listen at {path}/{name}") from None
    except Invalid:
        stream.close()
        raise
    finally:
        os.umask(before)
    stream.setblocking(False)
    return stream


def connect(folder: int, path: str, name: str) -> _socket.socket:
    """A connection to the socket `name` in the folder, never by a link.

    Raises OSError: ENOENT, ECONNREFUSED where nobody listens, ENOTSOCK for what is none, BlockingIOError where whoever
    listens is behind with taking connections.
    """
    address = path_in(folder, path, name)
    held = os.open(name, _HELD | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder) if _HELD else -1
    stream = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        found = os.fstat(held) if held >= 0 else os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISSOCK(found.st_mode):
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK), name)
        stream.setblocking(False)
        by_number = f"{_BY_NUMBER}/{held}"
        stream.connect(by_number if held >= 0 and os.path.exists(by_number) else address)
    except BaseException:
        stream.close()
        raise
    finally:
        if held >= 0:
            os.close(held)
    return stream


def user_of(stream: _socket.socket) -> int:
    """The user of the process at the other end. In a user name space others than its own are one user there."""
    if hasattr(_socket, "SO_PEERCRED"):
        told = stream.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _PEER.size)
        return int(_PEER.unpack(told)[1])
    return int(_PEER_ELSEWHERE.unpack(stream.getsockopt(0, 1, 76)[: _PEER_ELSEWHERE.size])[1])


def process_of(stream: _socket.socket) -> int:
    """The process at the other end; 0 where the system does not tell."""
    if not hasattr(_socket, "SO_PEERCRED"):
        return 0
    return int(_PEER.unpack(stream.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _PEER.size))[0])


class Peer(NamedTuple):
    """Another user whose processes may connect, and the group whose members the socket lets through."""

    user: int
    group: int


def peer_of(user: str | None, group: str | None) -> Peer | None:
    """Who is meant by `--peer` and `--group`, by their names or numbers. Raises Invalid where there are none such."""
    if user is None and group is None:
        return None
    if user is None or group is None:
        raise Invalid("--peer and --group go together: the socket is the group's, and taken from is the peer.")
    import grp  # only for who asks for it
    import pwd

    return Peer(
        _number("--peer", user, lambda name: pwd.getpwnam(name).pw_uid, lambda uid: pwd.getpwuid(uid).pw_uid),
        _number("--group", group, lambda name: grp.getgrnam(name).gr_gid, lambda gid: grp.getgrgid(gid).gr_gid),
    )


def _number(flag: str, name: str, by_name: Callable[[str], int], by_number: Callable[[int], int]) -> int:
    with contextlib.suppress(KeyError, ValueError):
        return by_name(name)
    with contextlib.suppress(KeyError, ValueError, OverflowError):
        return by_number(int(name))
    raise Invalid(f"{flag} is {name[:40]!r}, and there is nobody of that name; give one that the system knows.")
