"""Processes: a server that is started here and ended with us, and the end of another process, waited for."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final, Self

from lnk.errors import Missing, from_os

END_S: Final = 2.0  # a server that was told to end has this long
LOOK_S: Final = 1.0  # where the kernel does not tell of a process's end, it is looked for this often
SAID_CHARS_MAX: Final = 200

# Run in the new process before the server: Linux ends the server when we end, whatever we end by. The kernel goes by
# the thread that started it, which is our main one.
_TIED: Final = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit()
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Child:
    """A server that was started, in a session of its own, so that Ctrl-C is ours alone and all of it can be ended."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """`argv` begins with the program's path. Raises Missing and so on where it cannot be started."""
        tied = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid())] if sys.platform == "linux" else []
        try:
            self._process = subprocess.Popen(
                [*tied, *argv],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise from_os(error, f"start {argv[0]}") from None
        self.pid = self._process.pid
        self._last = b""
        assert self._process.stdout
        self._thread = threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """The last line that it said, shortened, now that it has ended."""
        self._thread.join(END_S)
        text = self._last.decode("utf-8", "replace").strip()
        return "".join(char for char in text if char.isprintable())[-SAID_CHARS_MAX:].rstrip(".")

    def end(self) -> None:
        """It and all that it started end: asked first, then made to."""
        self._signal(signal.SIGTERM)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        finally:  # a second Ctrl-C leaves nothing behind either
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all of it is gone
            os.killpg(self.pid, number)

    def _listen(self, pipe: IO[bytes]) -> None:
        """Whatever it says is read, so that it never waits for a reader."""
        while line := pipe.readline(1 << 16):
            if line.strip():
                self._last = line


def program_path(name: str, environment: Mapping[str, str]) -> str:
    """The path of the program. Raises Missing."""
    import shutil  # only what starts something needs it

    found = shutil.which(os.path.expanduser(name), path=environment.get("PATH", os.defpath))
    if not found:
        raise Missing(f"there is no program {name}")
    return os.path.abspath(found)


def end_with_parent(parent: int | None = None) -> None:
    """From now on this process gets SIGTERM when the process that started it ends, which is `parent` where that is
    known: it may have ended before.
    """
    parent = os.getppid() if parent is None else parent

    def watch() -> None:
        while not wait_end(parent, lambda: os.getppid() != parent, None):
            pass
        while True:  # a signal that comes just before a wait is heard only after it, or with the next
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(LOOK_S)

    if parent:  # 0: it lives in another namespace, and cannot be seen
        threading.Thread(target=watch, daemon=True).start()


def wait_end(pid: int | None, ended: Callable[[], bool], seconds: float | None, *, wake: Sequence[int] = ()) -> bool:
    """Waits until the process ends, at most so long, or until one of the files `wake` can be read.

    `ended` says whether it has ended; without a `pid` nothing is waited for but the time.
    """
    handles = [] if pid is None else _handles(pid)
    if ended():  # asked once it is held: its number may be another's by now
        return True
    until = float("inf") if seconds is None else time.monotonic() + seconds
    polled = pid is not None and not handles
    try:
        while (left := until - time.monotonic()) > 0:
            pause = min(left, LOOK_S) if polled else left
            ready = select.select([*handles, *wake], [], [], None if pause == float("inf") else pause)[0]
            if ready or (polled and ended()):
                break
        return ended()
    finally:
        for handle in handles:
            os.close(handle)


def _handles(pid: int) -> list[int]:
    """What the kernel tells of the process's end by; empty where it does not."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):  # not Linux; or it is gone, or we may not
        return []


class Waking:
    """A file that can be read once a signal came. Without it one that comes just before a wait is seen after it."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        for each in (self._reading, self._writing):
            os.set_blocking(each, False)
        self._before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._before)
        os.close(self._reading)
        os.close(self._writing)

    def wait(self, child: Child | None, seconds: float) -> bool:
        """Waits so long, and lets signals be heard at once. True where the child ended meanwhile."""
        ended = child.ended if child else lambda: False
        is_so = wait_end(child.pid if child else None, ended, seconds, wake=[self._reading])
        with contextlib.suppress(BlockingIOError):
            os.read(self._reading, 1 << 10)
        return is_so
