"""A server's session over two descriptors: one loop reads and writes, one thread makes the calls.

Nothing grows without a limit: where the client does not read its answers, no more of its lines are read.
"""

import contextlib
import os
import queue
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from lnk.lines import LINE_BYTES_MAX, Lines, TooLong
from lnk.mcp.server import Call, Cancelled, Describe, Reply, Service, Session
from lnk.streams import Write, writer

CALLS_MAX: Final = 32  # calls that wait at once; with more, the client's lines wait in its pipe
UNREAD_BYTES_MAX: Final = 1 << 20  # answers that the client has not read
END_WAIT_S: Final = 1.5  # after the end of input, for calls under way; the process ends within 2 s
_READ_BYTES: Final = 1 << 16


class Work(Protocol):
    """What makes the calls of a session."""

    def __call__(self, call: Call, session: Session, progress: Callable[[int, int, str], None]) -> Reply | None:
        """Make the call, and give `session.result` or `session.error` of it. Never raises."""

    def cancel(self, call: Call) -> None:
        """Stop this call, if it is the one under way. Called from another thread."""

    def instructions(self) -> str:
        """What the server is for, in words for a client's prompt."""


def serve(service: Service, work: Work, source: int, sink: int) -> bool:
    """Serve one session until `source` ends or `sink` has no reader. False where a call is still under way."""
    return _Stdio(service, work, source, sink).run()


class Answers:
    """What waits to be written to one client, put there and written by any thread."""

    def __init__(self, write: Write) -> None:
        self._take = write
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._lines: deque[memoryview] = deque()
        self.size = 0  # in bytes

    def __bool__(self) -> bool:
        return bool(self._lines)

    def put(self, reply: Reply) -> None:
        """One more."""
        with self._lock:
            self._lines.append(memoryview(reply.line))
            self.size += len(reply.line)

    def flush(self) -> None:
        """All that is taken at once. Raises OSError where nobody reads any more."""
        while self._lines and self._writing.acquire(blocking=False):  # else whoever has it goes on
            try:
                while self._lines:
                    self.write()
            except BlockingIOError:
                return
            finally:
                self._writing.release()

    def end(self, close: Callable[[], object]) -> None:
        """`close` what is written to, while nobody writes to it: its number may be another client's at once."""
        with self._writing:
            close()

    def write(self) -> None:
        """As much of the first as is taken at once. Raises OSError, BlockingIOError where nothing is taken now."""
        with self._lock:
            line = self._lines[0]
        count = self._take(line)
        with self._lock:
            self.size -= count
            if count == len(line):
                self._lines.popleft()
            else:
                self._lines[0] = line[count:]


class _Stdio:
    def __init__(self, service: Service, work: Work, source: int, sink: int) -> None:
        self._session = Session(service)
        self._work = work
        self._source, self._sink = source, sink
        self._lines = Lines(LINE_BYTES_MAX)
        self._pending: deque[bytes | TooLong] = deque()  # lines of one read, at most
        self._out = Answers(writer(sink))
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the session
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._gone = False
        self._hung = False
        # A file or a terminal is always ready: those are just written.
        self._polled = stat.S_ISFIFO(os.fstat(sink).st_mode) or stat.S_ISSOCK(os.fstat(sink).st_mode)

    def run(self) -> bool:
        worker = threading.Thread(target=self._make_calls, name="calls", daemon=True)
        worker.start()
        try:
            self._loop()
            answered = self._finish()
        finally:
            self._calls.put(None)
        worker.join(END_WAIT_S if answered else 0)  # a cancelled call may not have stopped yet
        if worker.is_alive():
            return False
        os.close(self._wake_read)
        os.close(self._wake_write)
        return answered

    def _loop(self) -> None:
        moved = time.monotonic()
        while not self._gone:
            self._take_lines()
            reading = not self._pending and self._room()
            ready = self._poll(reading, END_WAIT_S if self._hung else None)
            if self._wake_read in ready:
                os.read(self._wake_read, _READ_BYTES)
            if self._sink in ready or (self._out and not self._polled):
                self._write()
            if self._sink in ready or reading:
                moved = time.monotonic()
            if how := ready.get(self._source, 0):
                if reading:
                    if not self._read(bool(how & select.POLLIN)):
                        return
                else:
                    self._hung = True  # nobody writes any more; what is written already is read in its turn
            if self._hung and not reading and time.monotonic() - moved >= END_WAIT_S:
                self._gone = True  # and nobody reads

    def _poll(self, reading: bool | None, wait_s: float | None) -> dict[int, int]:
        """What is ready. `reading`: lines are wanted; False: of the source its end alone; None: nothing of it."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if reading or (reading is False and not self._hung):
            poll.register(self._source, select.POLLIN if reading else 0)
        poll.register(self._sink, select.POLLOUT if self._out else 0)
        return dict(poll.poll(None if wait_s is None else wait_s * 1000))

    def _read(self, ready: bool) -> bool:
        """False at the end of input."""
        try:
            data = os.read(self._source, _READ_BYTES) if ready else b""
        except OSError:
            data = b""
        self._pending.extend(self._lines.feed(data))
        if not data and (rest := self._lines.rest()) is not None:
            self._pending.append(rest)
        self._take_lines()
        return bool(data)

    def _room(self) -> bool:
        return self._out.size < UNREAD_BYTES_MAX and self._session.waiting < CALLS_MAX

    def _take_lines(self) -> None:
        """The lines that have come, as long as there is room for their answers."""
        while self._pending and self._room():
            with self._lock:
                actions = self._session.receive(self._pending.popleft())
            for action in actions:
                if isinstance(action, Reply):
                    self._out.put(action)
                elif isinstance(action, Call):
                    self._calls.put(action)
                elif isinstance(action, Describe):
                    self._out.put(self._session.described(action, self._work.instructions()))
                elif isinstance(action, Cancelled):
                    self._work.cancel(action.call)

    def _write(self) -> None:
        if not self._out:
            self._gone = self._polled  # told of the sink with nothing to write: its reader is gone
            return
        try:
            self._out.write()
        except BlockingIOError:
            return
        except OSError:
            self._gone = True

    def _make_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            if not self._session.wants(call):
                continue
            reply = self._work(call, self._session, self._progress(call))
            if reply is not None:
                self._out.put(reply)
            with contextlib.suppress(OSError):
                os.write(self._wake_write, b"1")

    def _progress(self, call: Call) -> Callable[[int, int, str], None]:
        def tell(done: int, of: int, message: str) -> None:
            with self._lock:
                word = self._session.progress(call, done, of, message)
            if word is not None:
                self._out.put(word)
                with contextlib.suppress(OSError):
                    os.write(self._wake_write, b"1")

        return tell

    def _finish(self) -> bool:
        """After the end of input: what is under way is answered, if it takes no long time."""
        until = time.monotonic() + END_WAIT_S
        while not self._gone and (self._session.waiting or self._out or self._pending):
            self._take_lines()
            left = until - time.monotonic()
            if left <= 0:
                break
            ready = self._poll(None, left)
            if self._wake_read in ready:
                os.read(self._wake_read, _READ_BYTES)
            if self._sink in ready or (self._out and not self._polled):
                self._write()
        return self._session.waiting == 0
