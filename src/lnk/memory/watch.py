"""What the kernel tells of changes in a folder (inotify), as proof that there were none since it was last asked.

It proves nothing where another machine may change the files, so it is offered on local disks only.
"""

import ctypes
import errno
import os
import select
import struct
import sys
from typing import Final

# File systems whose every change goes through this kernel; any other is scanned at each call.
_LOCAL: Final = frozenset(
    (
        0xEF53,  # ext2, ext3, ext4
        0x58465342,  # XFS
        0x9123683E,  # Btrfs
        0xF2F52010,  # F2FS
        0x2FC12FC1,  # ZFS
        0xCA451A4E,  # bcachefs
        0x01021994,  # tmpfs
        0x3153464A,  # JFS
    )
)
_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED, _CREATE, _DELETE = 0x2, 0x4, 0x8, 0xC0, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_ONLYDIR, _EXCL_UNLINK = 0x01000000, 0x04000000
_UNMOUNT, _OVERFLOW, _IGNORED, _ISDIR = 0x2000, 0x4000, 0x8000, 0x40000000
_EVENTS: Final = (
    _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR | _EXCL_UNLINK
)
_ROOT_EVENTS: Final = _DELETE_SELF | _MOVE_SELF | _ATTRIB  # of the folder itself, which no parent tells of
_EVENT = struct.Struct("iIII")
_READ_BYTES: Final = 1 << 16
_STATFS_BYTES: Final = 256


class Watch:
    """The changes beneath one folder. Add each folder beneath it before listing it, then nothing is missed."""

    def __init__(self, folder: int) -> None:
        """Raises OSError where the kernel offers no such thing, or the folder lies on no local disk."""
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, "there is no inotify")
        self._libc = ctypes.CDLL(None, use_errno=True)
        if self._kind(folder) not in _LOCAL:
            raise OSError(errno.ENOTSUP, "the folder is not on a local disk")
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._folders: dict[int, str] = {}
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def close(self) -> None:
        """Watch no more."""
        os.close(self._fd)

    def add(self, handle: int, prefix: str) -> None:
        """Watch the open folder `handle` too; its entries are told as `prefix` + name. Raises OSError."""
        # The path of an open descriptor, with a dot behind: a folder swapped for a link cannot be watched instead.
        path = f"/proc/self/fd/{handle}/.".encode()
        self._folders[self._checked(self._libc.inotify_add_watch(self._fd, path, _EVENTS))] = prefix

    def quiet(self) -> bool:
        """Whether nothing changed since the last `drain`."""
        return not self._poll.poll(0)

    def drain(self) -> tuple[set[str], bool]:
        """The paths that changed (a folder's with all beneath it), and whether anything may be missing of them."""
        paths: set[str] = set()
        lost = False
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return paths, lost
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
                at += length
                prefix = self._folders.get(number)
                if mask & (_OVERFLOW | _UNMOUNT) or (prefix == "" and not name and mask & _ROOT_EVENTS):
                    lost = True
                elif mask & _IGNORED:
                    self._folders.pop(number, None)
                elif prefix is not None and name:
                    paths.add(prefix + name)
                    if mask & _ISDIR and mask & _MOVED:
                        # The watches beneath a moved folder would tell its old paths.
                        lost = True

    def _kind(self, folder: int) -> int:
        buffer = ctypes.create_string_buffer(_STATFS_BYTES)
        self._checked(self._libc.fstatfs(folder, buffer))
        return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF  # f_type comes first in struct statfs

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(result)
