"""A folder held by its handle: what is beneath it is opened, listed and replaced through that handle alone.

Nothing beneath is reached through a link, so a folder or file swapped for one while we work is refused, not
followed. On Linux the kernel checks a whole path at once (openat2); elsewhere each part is opened in its turn.
"""

import ctypes
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self

from lnk.errors import Conflict, Full, Missing, Refused, from_os

FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A folder opened only to go through it needs no right to list it (mode 0711 is enough).
PASSAGE: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC

_OPENAT2: Final = 437  # the same number on every Linux architecture since 5.6
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_UNSUPPORTED = (errno.ENOSYS, errno.EPERM, errno.E2BIG, errno.EINVAL)
_PART_BYTES: Final = 1 << 20


class _How(ctypes.Structure):
    """`struct open_how` of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _Kernel:
    """openat2 by its number, since libc has no function for it; `works` turns False where the kernel has none."""

    def __init__(self) -> None:
        self.works = sys.platform == "linux"
        self._call = ctypes.CDLL(None, use_errno=True).syscall if self.works else None

    def open(self, handle: int, path: bytes, flags: int) -> int | None:
        """A descriptor, or None where the kernel cannot; raises OSError for what it refuses."""
        assert self._call is not None
        how = _How(flags, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)
        for _ in range(16):  # EAGAIN: something was renamed meanwhile, and the kernel asks to try again
            ctypes.set_errno(0)
            got = int(
                self._call(
                    ctypes.c_long(_OPENAT2),
                    ctypes.c_int(handle),
                    ctypes.c_char_p(path),
                    ctypes.byref(how),
                    ctypes.c_size_t(ctypes.sizeof(how)),
                )
            )
            if got >= 0:
                return got
            number = ctypes.get_errno()
            if number not in (errno.EAGAIN, errno.EINTR):
                break
        if number in _UNSUPPORTED:
            self.works = False
            return None
        raise OSError(number, os.strerror(number), os.fsdecode(path))


_kernel = _Kernel()


def open_beneath(handle: int, path: str, flags: int) -> int:
    """A descriptor for `path` beneath the folder `handle`, never through a link. Raises OSError."""
    name = os.fsencode(path)
    if _kernel.works and (got := _kernel.open(handle, name, flags)) is not None:
        return got
    return _open_by_parts(handle, path, flags)


def _open_by_parts(handle: int, path: str, flags: int) -> int:
    """The same where the kernel has no openat2: each part opened from the one before, links refused."""
    parts = path.split("/")
    if not path or any(part in ("", "..") for part in parts):
        raise OSError(errno.EXDEV, "it does not name something beneath the folder", path)
    at = handle
    try:
        for part in parts[:-1]:
            step = os.open(part, PASSAGE | os.O_NOFOLLOW, dir_fd=at)
            if at != handle:
                os.close(at)
            at = step
        return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=at)
    finally:
        if at != handle:
            os.close(at)


def sync(fd: int) -> None:
    """What was written to `fd` is on the disk when this returns."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone leaves it in the drive's cache
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def read_all(fd: int, limit: int) -> bytes:
    """The bytes of `fd`, at most `limit` and one more (so that the caller sees that there is more)."""
    parts: list[bytes] = []
    left = limit + 1
    while left > 0 and (part := os.read(fd, min(left, _PART_BYTES))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """All of `data` written to `fd`, whatever part of it one system call takes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


class Folder:
    """An open folder. Its `fd` is good for `dir_fd=`, and stays the same folder whatever its path names later."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path

    @classmethod
    def open(cls, path: str, *, passage: bool = False) -> Self:
        """The folder at `path`; its last part must be no link. `passage`: to go through it, not to list it.

        Raises Missing, Refused or Unavailable.
        """
        try:
            return cls(os.open(path, (PASSAGE | os.O_NOFOLLOW) if passage else FOLDER), path)
        except OSError as error:
            if error.errno == errno.ENOTDIR:
                what = "a link, and links are never followed" if os.path.islink(path) else "no folder"
                raise Refused(f"Could not open the folder {path}: it is {what}.") from None
            raise from_os(error, f"open the folder {path}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the handle back; closing twice does no harm."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def identity(self) -> tuple[int, int]:
        """Device and inode of the folder that is held."""
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino

    def folder(self, name: str) -> "Folder":
        """The folder `name` beneath this one. Raises OSError."""
        return Folder(open_beneath(self.fd, name, FOLDER), f"{self.path}/{name}")

    def open_file(self, path: str) -> tuple[int, os.stat_result]:
        """A descriptor of the regular file `path` beneath, and what it is. Raises OSError, ELOOP for anything else.

        Opened without waiting, so that a FIFO cannot hold us; what it is, is asked of the open file.
        """
        fd = open_beneath(self.fd, path, FILE)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        return fd, found

    def read(self, path: str, limit: int) -> bytes | None:
        """The bytes of the file `path` beneath, None where there is none. Raises Full past `limit` bytes, Refused."""
        try:
            fd, _ = self.open_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise from_os(error, f"read {self.path}/{path}") from None
        try:
            data = read_all(fd, limit)
        except OSError as error:
            raise from_os(error, f"read {self.path}/{path}") from None
        finally:
            os.close(fd)
        if len(data) > limit:
            raise Full(f"{self.path}/{path} is over {limit:,} bytes, more than is read of it.")
        return data

    def stat(self, path: str) -> os.stat_result | None:
        """What `path` beneath is, links not followed; None where there is nothing. Raises OSError."""
        parent, slash, name = path.rpartition("/")
        try:
            if not slash:
                return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            at = open_beneath(self.fd, parent, PASSAGE)
        except FileNotFoundError:
            return None
        try:
            return os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return None
        finally:
            os.close(at)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder's kernel lock: one holder at a time over all processes, gone with the holder's death."""
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    @contextmanager
    def alone(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Holds the kernel lock of the file `name` in it, made where it is not there; that it exists means nothing.

        Without `wait`: False where another holds it. Raises what `from_os` gives where it cannot be opened.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(name, flags, 0o600, dir_fd=self.fd)
        except OSError as error:
            raise from_os(error, f"lock {self.path}/{name}") from None
        try:
            mine = True
            try:
                fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                mine = False
            yield mine
        finally:
            os.close(fd)

    def replace(self, name: str, data: bytes, *, unless_changed: os.stat_result | None = None) -> None:
        """The file `name` holds `data`, whole, or stays as it was; on the disk when this returns.

        Order: a new file beside it is written and synced, renamed over it, and the folder synced. The new file's
        name is fixed, so that what a crash leaves is swept by the next start (`sweep`) and never read as content.
        Call it under `locked`. `unless_changed`: what the file was when it was read; raises Conflict where it is
        something else by now. Raises Full, Refused or Unavailable.
        """
        fresh = _fresh(name)
        try:
            self.sweep(name)
            mode = stat.S_IMODE(unless_changed.st_mode) if unless_changed else 0o600
            fd = os.open(
                fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.fd
            )
            try:
                write_all(fd, data)
                if mode != 0o600:
                    os.fchmod(fd, mode)
                sync(fd)
            finally:
                os.close(fd)
            self._still(name, unless_changed)
            os.rename(fresh, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError as error:
            self._forget(fresh)
            raise from_os(error, f"write {self.path}/{name}, which stays as it was") from None
        except Conflict:
            self._forget(fresh)
            raise
        try:
            sync(self.fd)
        except OSError as error:
            raise from_os(error, f"make sure that {self.path}/{name}, which is written, outlasts a power cut") from None

    def remove_tree(self, name: str) -> None:
        """The folder `name` beneath this one is gone with all that is in it; a link is, not what it leads to.

        However deep it is, and whatever modes it has: what lies deeper is moved up, into it, and goes in its turn.
        Raises from_os's kinds. Nothing where there is no such folder.
        """
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=self.fd)
                return
            top = _opened_to_empty(self.fd, name)
            try:
                _empty(top)
            finally:
                os.close(top)
            os.rmdir(name, dir_fd=self.fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise from_os(error, f"remove {self.path}/{name}") from None

    def sweep(self, name: str) -> None:
        """Take away what a write of `name` that was cut short left behind."""
        self._forget(_fresh(name))

    def _still(self, name: str, was: os.stat_result | None) -> None:
        try:
            now = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            now = None
        if now is not None and not stat.S_ISREG(now.st_mode):
            raise OSError(errno.ELOOP, "it is not a regular file", name)
        if _identity(now) != _identity(was):
            raise Conflict(f"{self.path}/{name} was changed by another program meanwhile; read it again.")

    def _forget(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return
        except OSError:
            return  # what cannot be taken away now is swept at the next start


def _opened_to_empty(at: int, name: str) -> int:
    """A descriptor of a folder that is to be emptied, which its owner may have locked."""
    with suppress(PermissionError):  # another's, which may be open to us all the same
        os.chmod(name, 0o700, dir_fd=at)
    return os.open(name, FOLDER, dir_fd=at)


def _empty(top: int) -> None:
    """Nothing is in the folder `top` any more. Raises OSError."""
    mark, number = os.urandom(8).hex(), 0
    waiting: list[str | None] = [None, *_subfolders(top)]
    while waiting:
        name = waiting.pop()
        if name is None:
            _unlink_all(top)
            continue
        inner = _opened_to_empty(top, name)
        try:
            for deeper in _subfolders(inner):
                number += 1
                moved = f".{mark}-{number}"
                with suppress(PermissionError):
                    os.chmod(deeper, 0o700, dir_fd=inner)  # else its parent cannot be written into it
                os.rename(deeper, moved, src_dir_fd=inner, dst_dir_fd=top)
                waiting.append(moved)
            _unlink_all(inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)


def _subfolders(at: int) -> list[str]:
    with os.scandir(at) as found:
        return [each.name for each in found if each.is_dir(follow_symlinks=False)]


def _unlink_all(at: int) -> None:
    with os.scandir(at) as found:
        names = [each.name for each in found if not each.is_dir(follow_symlinks=False)]
    for name in names:
        os.unlink(name, dir_fd=at)


def _fresh(name: str) -> str:
    return f".{name}.new"


def _identity(found: os.stat_result | None) -> tuple[int, ...] | None:
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def make_folder(path: str, mode: int = 0o700) -> None:
    """The folder `path` exists, its parents too. Raises Refused, Missing, Full."""
    try:
        os.makedirs(path, mode=mode, exist_ok=True)
    except FileExistsError:
        raise Refused(f"Could not make the folder {path}: a file of that name is there.") from None
    except OSError as error:
        raise from_os(error, f"make the folder {path}") from None


def make_folder_beneath(path: str, beneath: str, mode: int = 0o700) -> None:
    """The folder `beneath` the folder `path` exists, none of its parts a link. Raises Refused, Missing, Full."""
    with Folder.open(path, passage=True) as folder:
        at = os.dup(folder.fd)
        try:
            for part in beneath.split("/"):
                with suppress(FileExistsError):
                    os.mkdir(part, mode, dir_fd=at)
                step = os.open(part, PASSAGE | os.O_NOFOLLOW, dir_fd=at)
                os.close(at)
                at = step
        except NotADirectoryError:
            raise Refused(
                f"{part!r} of {path}/{beneath} is a link or a file, where only a folder is taken; move it away."
            ) from None
        except OSError as error:
            raise from_os(error, f"make the folder {path}/{beneath}") from None
        finally:
            os.close(at)


def must_be_folder(path: str, what: str) -> None:
    """Raises Missing or Refused where `path` is no folder; `what` names its part, e.g. "the folder to index"."""
    if not os.path.lexists(path):
        raise Missing(f"{what} {path} is not there; check the path or make it first.")
    if not os.path.isdir(path):
        raise Refused(f"{what} {path} is not a folder.")
