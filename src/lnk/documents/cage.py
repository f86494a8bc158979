"""Documents read in child processes that can do nothing else: the side that starts them, waits, and believes nothing.

Each document has a child of its own, which ends with it. Where another program reads the documents, it is started with
the same limits and an empty environment, and spoken to in the same way (`child`).
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from typing import Final

import msgspec

from lnk.documents import child
from lnk.documents.child import LIMITS, Limits
from lnk.documents.content import AGAIN, CRASHED, KINDS, TEXT_BYTES_MAX, TOO_LONG, Content, Kind, LeftOut

ANSWER_BYTES_MAX: Final = TEXT_BYTES_MAX * 6 + (1 << 20)  # JSON writes a character as six at most; and the pages
REASON_CHARS_MAX: Final = 200
LOOK_S: Final = 0.1  # a program's own child may hold its output, and no end is heard: its end is looked for this often

_TIMES: Final = frozenset((signal.SIGXCPU, signal.SIGALRM))
_PIPE_BYTES: Final = 1 << 16


class Stopped(Exception):
    """The cage was stopped: the document was not read, and nothing is known of it."""


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    """What a child may say: a content, or a reason."""

    text: str | None = None
    pages: list[int] = []
    title: str | None = None
    left_out: str | None = None


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class Cage:
    """Reads documents, from any thread, several at once; `program`: the absolute path of what reads them instead."""

    def __init__(self, program: str | None = None, limits: Limits = LIMITS) -> None:
        self._program = program
        self._limits = limits
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._stopped = False

    def read(self, fd: int, kind: str) -> Content:
        """The text of the document of which `fd` is the open file, read from its beginning; `kind`: one of `KINDS`.

        One at which the reader crashes is read again by another, where there is one. Raises LeftOut where it has no
        text, Stopped, and OSError where no child could be started.
        """
        try:
            return self._read(fd, self._argv(kind))
        except LeftOut as reason:
            if str(reason) != CRASHED or kind not in AGAIN:
                raise
        return self._read(fd, self._own_argv(AGAIN[kind]))

    def _read(self, fd: int, argv: list[str]) -> Content:
        os.lseek(fd, 0, os.SEEK_SET)
        until = time.monotonic() + self._limits.wall_s
        process = self._start(fd, argv)
        try:
            said = _said(process, until)
        finally:
            self._end(process)
        if self._stopped:
            raise Stopped
        return _content(said, process.returncode)

    def stop(self) -> None:
        """Kills every child; whoever waits for one, or asks for another, gets Stopped. From any thread."""
        with self._lock:
            self._stopped = True
            for pid in self._running:
                _kill(pid)

    def _start(self, fd: int, argv: list[str]) -> subprocess.Popen[bytes]:
        """A child that reads the file. Raises OSError, and Stopped."""
        with self._lock:
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(
                argv,
                stdin=fd,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env={},
                process_group=0,
            )
            self._running.add(process.pid)
        return process

    def _argv(self, kind: str) -> list[str]:
        if self._program is None:
            return self._own_argv(KINDS[kind])
        return self._started("launch", *map(str, self._limits), self._program, "text", kind)

    def _own_argv(self, kind: Kind) -> list[str]:
        return self._started("main", kind.module, *map(str, self._limits))

    def _started(self, begin: str, *told: str) -> list[str]:
        """This interpreter, told in its code where modules lie since it has no environment to be told by.

        Without `site`, whose work is done: a third less to wait for, and nothing that an installed package puts there.
        """
        paths = [path for path in sys.path if os.path.isabs(path)]
        code = f"import sys; sys.path[:] = {paths!a}; from {child.__name__} import {begin}; {begin}()"
        return [sys.executable, "-I", "-S", "-c", code, str(os.getpid()), *told]

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Nothing of the child is left. One that is ending by itself keeps the status by which it ends."""
        with self._lock:
            self._running.discard(process.pid)
            _kill(process.pid)
        process.wait()
        assert process.stdout
        process.stdout.close()


def _kill(pid: int) -> None:
    """The child and all of its group. It is not reaped yet, so the number is still its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says so of a group that has ended
        os.killpg(pid, signal.SIGKILL)


def _said(process: subprocess.Popen[bytes], until: float) -> bytes:
    """All that the child says. Raises LeftOut where that is more than an answer, or takes too long."""
    assert process.stdout
    output = process.stdout.fileno()
    waiting = select.poll()
    waiting.register(output, select.POLLIN)
    said = bytearray()
    while len(said) <= ANSWER_BYTES_MAX:
        left = until - time.monotonic()
        if left <= 0:
            raise LeftOut(TOO_LONG)
        ended = _has_ended(process.pid)  # asked before: all that it wrote is there to be read by now
        if waiting.poll(0 if ended else min(left, LOOK_S) * 1000):
            part = os.read(output, _PIPE_BYTES)
            if not part:
                return bytes(said)
            said += part
        elif ended:
            return bytes(said)
    raise LeftOut(CRASHED)


def _has_ended(pid: int) -> bool:
    """Whether it has, without reaping it, so that its group's number stays its own. Not every system can tell."""
    return hasattr(os, "waitid") and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _content(said: bytes, status: int) -> Content:
    """The content that a child said, checked as an enemy's word. Raises LeftOut: by its reason, or for how it ended."""
    try:
        answer = _ANSWER.decode(said)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise LeftOut(TOO_LONG if -status in _TIMES else CRASHED) from None
    text, pages, title, reason = msgspec.structs.astuple(answer)
    if answer == _Answer(left_out=reason) and reason and len(reason) <= REASON_CHARS_MAX and reason.isprintable():
        raise LeftOut(reason)
    if reason is not None or text is None or not (_is_text(text) and _are_pages(pages, text)):
        raise LeftOut(CRASHED)
    return Content(text, pages, title)


def _is_text(text: str) -> bool:
    return len(text.encode()) <= TEXT_BYTES_MAX and "\0" not in text and child.can_be_seen(text)


def _are_pages(pages: list[int], text: str) -> bool:
    """Whether they begin in the text, none before the one in front of it."""
    ends = [1, *pages, text.count("\n") + 1]
    return all(before <= after for before, after in pairwise(ends))
