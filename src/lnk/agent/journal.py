"""A file of lines that only grows until it is moved aside: several processes append to it, each line in one write.

What is in it outlasts the process, but not a power cut: it is not synced.
"""

import fcntl
import json
import os
import sys
import time
from typing import Any, Final

BYTES_MAX: Final = 8 << 20  # some 40,000 calls; then the file is moved aside, and the one that was there goes
_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Journal:
    """One process's way to the file `name` in an open folder."""

    def __init__(self, folder: int, name: str, bytes_max: int = BYTES_MAX) -> None:
        self._folder = folder
        self._name = name
        self._bytes_max = bytes_max
        self._fd = -1
        self._failed = False
        self._cut = False  # the last line was written in part

    def write(self, value: dict[str, Any]) -> None:
        """One line more. Where it cannot be written, that is said on standard error, once, and nothing else is done."""
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        try:
            if self._fd < 0:
                self._open()
            if os.fstat(self._fd).st_size >= self._bytes_max:
                self._turn()
            line = b"\n" + line if self._cut else line
            self._cut = os.write(self._fd, line) < len(line)
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Closing twice does no harm."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._fd = os.open(self._name, _APPEND, 0o600, dir_fd=self._folder)

    def _turn(self) -> None:
        """A file that is full is moved aside by whoever notices first; the others open what is in its place."""
        fcntl.flock(self._folder, fcntl.LOCK_EX)
        try:
            if self._is_ours():
                os.rename(self._name, aside(self._name), src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self.close()
            self._open()
            self._cut = False
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_UN)

    def _is_ours(self) -> bool:
        try:
            there = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._fd))

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            sys.stderr.write(f"lnk: {self._name} cannot be written: {error.strerror}; calls go on without it.\n")


def aside(name: str) -> str:
    """What the file is called that was full: log.jsonl -> log.1.jsonl."""
    stem, dot, ending = name.rpartition(".")
    return f"{stem}.1{dot}{ending}"


def format_time(at: float) -> str:
    """Seconds since 1970 as RFC 3339 in UTC, to the millisecond."""
    whole, part = divmod(int(at * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{part:03d}Z"
