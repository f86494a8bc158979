"""The process that closes itself and becomes the program, in the way without name spaces. It knows no policy."""

import os
import signal
import sys
from typing import Final

from lnk import confine

CALLS_BYTES_MAX: Final = 1 << 16  # a filter has 4,096 steps at most
ENVIRONMENT_BYTES_MAX: Final = 1 << 22  # no program can be started with more
FAILED: Final = 78  # as `NoSandbox`: it never goes on half closed
_DESCRIPTORS_MAX: Final = 1 << 16


def begin() -> None:
    """As `argv` says: the descriptors of a filter, a ruleset and an environment, a folder, and the descriptors kept.

    After those the program and its arguments, which it becomes with that environment, those and 0, 1 and 2.
    """
    calls, files, environment, folder, kept, *program = sys.argv[1:]
    confine.end_with(os.getppid())
    code = os.read(int(calls), CALLS_BYTES_MAX)
    told = _read(int(environment)).split(b"\0")[:-1]
    variables = dict(each.split(b"=", 1) for each in told)
    try:
        os.chdir(folder)
        closed = confine.keep_to(int(files), code)
        _close_all_but({int(fd) for fd in kept.split()})
        # The interpreter ignores these two, and what it becomes would too.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        if closed:
            os.execve(program[0], program, variables)
        _end("this kernel refused it what confines it")
    except OSError as error:
        _end(f"{error.strerror}: {error.filename or program[0]}")


def _close_all_but(kept: set[int]) -> None:
    first = 3
    for fd in (*sorted(kept), _DESCRIPTORS_MAX):
        os.closerange(first, fd)
        first = fd + 1


def _read(fd: int) -> bytes:
    parts = []
    left = ENVIRONMENT_BYTES_MAX
    while left > 0 and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _end(why: str) -> None:
    sys.stderr.write(f"lnk: The program was not started: {why}.\n")
    sys.stderr.flush()
    os._exit(FAILED)
