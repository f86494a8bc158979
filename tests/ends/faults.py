"""Faults for the tests of the program's ends: the rights of an ordinary user, a small disk, a system call that fails.

What a machine cannot do is skipped, and said in the run's summary.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import pytest

from conftest import ENGINE, Place, Session

# Calls that read, write or move something, and those that open, hold and let go of it.
FILE_CALLS: Final = (
    "openat,openat2,read,pread64,write,pwrite64,writev,fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,"
    "unlinkat,mkdir,mkdirat,ftruncate,fchmod,close,flock,fcntl,fstat,newfstatat,statx"
)
INDEXING, CALLING = 1, 2  # a session's threads after its first, in the order in which they are started
SEED: Final = int(os.environ.get("LNK_SEED") or int.from_bytes(os.urandom(4)))

_PR_CAPBSET_DROP: Final = 24
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: without them root is held to the modes of files, as everybody is.
_ORDINARY: Final = f"""\
import ctypes, os, sys
for number in (1, 2):
    if ctypes.CDLL(None).prctl({_PR_CAPBSET_DROP}, number, 0, 0, 0):
        sys.exit("the rights of root could not be dropped")
os.execv(sys.argv[1], sys.argv[1:])
"""
_SETTLED_MAX: Final = 60  # calls, each of which waits by itself
_SOON_S: Final = 20.0  # what happens behind has happened long before


def skip_loudly(reason: str) -> NoReturn:
    """Skips the test, and says so in the summary of a quiet run too."""
    warnings.warn(f"NOT TESTED: {reason}", stacklevel=2)
    pytest.skip(reason)


def needs_root(what: str) -> None:
    """Skips the test where it is not root's to do `what`."""
    if os.geteuid() != 0:
        skip_loudly(f"only root can {what}")


def needs_strace() -> None:
    """Skips the test where no strace is to trace, fail or kill with."""
    if shutil.which("strace") is None:
        skip_loudly("strace is not installed")
    if subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False).returncode:
        skip_loudly("strace is not allowed to trace here")


def ordinary(argv: Sequence[str]) -> list[str]:
    """The command, run so that the modes of files count: as it is, or as root without root's rights over them."""
    if os.geteuid() != 0:
        return list(argv)
    launched = [sys.executable, "-c", _ORDINARY, *argv]
    probe = subprocess.run([*launched[:3], "/bin/true"], capture_output=True, check=False)
    if probe.returncode:
        skip_loudly("root's rights over files cannot be dropped here, and no mode means anything with them")
    return launched


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    """`path` is a disk of its own that holds `size` ("64k"); `grown` makes it larger."""
    with _mounted(path, "mount", "-t", "tmpfs", "-o", f"size={size}", "lnk-test"):
        yield


@contextmanager
def caseless_disk(path: Path) -> Iterator[None]:
    """`path` is a disk of its own to which `Notes.md` and `notes.md` are one name."""
    if shutil.which("mkntfs") is None or shutil.which("lowntfs-3g") is None:
        skip_loudly("ntfs-3g, whose disks can be caseless, is not installed")
    image = path.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkntfs", "-q", "-F", "-f", str(image)], check=True, capture_output=True)
    with _mounted(path, "lowntfs-3g", "-o", "ignore_case", str(image)):
        yield


@contextmanager
def _mounted(path: Path, *command: str) -> Iterator[None]:
    needs_root("mount a disk")
    path.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run([*command, str(path)], capture_output=True, check=False)
    if mounted.returncode:
        skip_loudly(f"no disk can be mounted: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def remounted(path: Path, options: str) -> None:
    """The small disk at `path` has other options from now on, e.g. "size=30m" or "ro"."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)


# ------------------------------------------------------------ sessions and what is left of them


def settled(session: Session) -> Session:
    """Waits until everything that is there is indexed; fails where that does not end."""
    for _ in range(_SETTLED_MAX):
        if "indexed" not in session.list(tokens=50):
            return session
    raise AssertionError(f"not indexed after {_SETTLED_MAX} calls: {session.list(tokens=50)}")


def everything(session: Session, **more: object) -> list[dict]:
    """All that `list` gives, page by page."""
    found, following = [], None
    while True:
        page = session.list(**more, **({"next": following} if following else {}))
        found += page["documents"]
        following = page.get("next")
        if following is None:
            return found


def hits(session: Session, query: str, **more: object) -> list[str]:
    """Every path that a search gives, those of copies too."""
    results = session.search(query, **more)["results"]
    return sorted(path for result in results for path in (result["path"], *result.get("copies", ())))


def check(place: Place) -> dict:
    """What `lnk-link-memory check` prints of the place; its exit status is that of what it prints."""
    done = subprocess.run(
        [ENGINE, "check", str(place.home), str(place.state), str(place.agent), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert done.returncode == bool(found["differences"])
    return found


def soon(holds: Callable[[], bool]) -> bool:
    """Whether something that happens behind an answer comes to hold."""
    until = time.monotonic() + _SOON_S
    while not (held := holds()) and time.monotonic() < until:
        os.sched_yield()
    return held


def left_in(folder: Path) -> set[str]:
    """The names in a folder, hidden ones too."""
    return set(os.listdir(folder))


# ------------------------------------------------------------ system calls


class Point(NamedTuple):
    """A system call of a thread: the `number`-th of its `name`, as strace counts; `line` is how strace shows it."""

    name: str
    number: int
    line: str

    def fault(self, what: str, *, ever: bool = False) -> str:
        """A fault at this call, or from it on for ever: `what` as strace names it, e.g. "error=EIO"."""
        return f"{self.name}:{what}:when={self.number}{'+' if ever else ''}"


class Trace:
    """The calls that one thread made while it was traced."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def struck(self) -> bool:
        """Whether a fault that answers in the kernel's place was put in."""
        return "(INJECTED)" in self._file.read_text(errors="replace")

    def points(self) -> list[Point]:
        """Every call, in order."""
        count: Counter[str] = Counter()
        found = []
        for line in self._file.read_text(errors="replace").splitlines():
            if begun := re.match(r"(\w+)\(", line):
                count[begun[1]] += 1
                found.append(Point(begun[1], count[begun[1]], line))
        return found


def under_strace(argv: Sequence[str], file: Path, *faults: str, calls: str) -> list[str]:
    """The command, run under strace from its start, with these faults. strace counts the calls of each thread apart."""
    injected = [part for fault in faults for part in ("-e", f"inject={fault}")]
    return ["strace", "-f", "-qq", "-o", str(file), "-e", f"trace={calls}", *injected, *argv]


def most_by_one_thread(file: Path) -> Counter[str]:
    """How many calls of each name one thread made at the most, in what `under_strace` wrote."""
    each: Counter[tuple[str, str]] = Counter()
    for line in file.read_text(errors="replace").splitlines():
        if begun := re.match(r"(\d+) +(\w+)\(", line):
            each[begun[1], begun[2]] += 1
    most: Counter[str] = Counter()
    for (_, name), count in each.items():
        most[name] = max(most[name], count)
    return most


@contextmanager
def traced(
    session: Session, file: Path, *faults: str, calls: str = FILE_CALLS, thread: int = CALLING
) -> Iterator[Trace]:
    """Traces one thread of a running session, the CALLING or the INDEXING one, with these faults at its calls."""
    process = session._process.pid
    number = sorted(map(int, os.listdir(f"/proc/{process}/task")))[thread]
    injected = [part for fault in faults for part in ("-e", f"inject={fault}")]
    strace = subprocess.Popen(
        ["strace", "-y", "-p", str(number), "-o", str(file), "-e", f"trace={calls}", *injected],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert strace.stderr
    told = strace.stderr.readline()
    if "attached" not in told:
        strace.wait()
        strace.stderr.close()
        skip_loudly(f"strace may not trace a running program here: {told.strip()}")
    try:
        yield Trace(file)
    finally:
        strace.terminate()  # it lets the thread go on, as if it had never been there
        strace.wait()
        strace.stderr.close()
