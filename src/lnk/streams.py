"""Writing to a descriptor that others share, as much as it takes at once.

It is never set not to wait, for it would be so for the others too: a terminal, or a pipe of whoever started us.
"""

import contextlib
import os
import select
import stat
from collections.abc import Callable
from typing import Final

Write = Callable[[memoryview], int]

_PART_BYTES: Final = 1 << 16
# A pipe that polls as writable takes this much without waiting (POSIX PIPE_BUF is at least 512, Linux has 4,096).
_PIPE_BYTES: Final = select.PIPE_BUF


def writer(fd: int) -> Write:
    """What writes as much as `fd` takes at once, and raises BlockingIOError where that is nothing, else OSError.

    A file or a terminal is waited for: it is always ready.
    """
    kind = os.fstat(fd).st_mode
    if stat.S_ISSOCK(kind):
        import socket  # 0.4 MB, which a pipe does without

        stream = socket.socket(fileno=os.dup(fd))
        return lambda data: stream.send(data, socket.MSG_DONTWAIT)
    if not stat.S_ISFIFO(kind):
        return lambda data: os.write(fd, data[:_PART_BYTES])
    with contextlib.suppress(OSError):
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # the same pipe, opened anew
        return lambda data: os.write(own, data)
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return lambda data: _write_polled(poll, fd, data)


def _write_polled(poll: select.poll, fd: int, data: memoryview) -> int:
    if not poll.poll(0):
        raise BlockingIOError
    return os.write(fd, data[:_PIPE_BYTES])
