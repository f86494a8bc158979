"""One agent's engine among many: opened for its first session, its calls made by a thread of its own.

Whatever its folder does to that thread, the other agents' go on. Its sessions take turns by the time that their calls
took, so that one with many calls keeps none of the others waiting.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal, Protocol

from lnk.errors import LinkError
from lnk.mcp import server
from lnk.memory.engine import Engine
from lnk.service.session import Work, kind_of

LINGER_S: Final = 10.0  # that an engine without sessions is kept, for the next one
REST_S: Final = 2.0  # without a call, until it gives back what only saves work
STOP_S: Final = 1.0


class Session(Protocol):
    """What an agent knows of a session: what it has to do for it, and who is told what came of it."""

    core: server.Session
    work: Work
    used: float

    def answered(self, reply: server.Reply | None) -> None:
        """A call was made. From the agent's thread."""

    def progress(self, call: server.Call) -> Callable[[int, int, str], None]:
        """What hears how far a call is. From the agent's thread."""


class Agent:
    """An agent's engine and its thread. All but `run` is called by the loop's thread."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Engine],
        opened: Callable[["Agent", Engine | None, str], None],
    ) -> None:
        """It is made for a first session. `opened` hears, from its thread, of the engine, or why there is none now.

        Raises RuntimeError where this process can have no thread more.
        """
        self.name = name
        self.engine: Engine | None = None
        self.describing: set[object] = set()  # questions what the server is for, whose answer waits for the notes
        self.sessions = 1
        self._make = make
        self._opened = opened
        self._changed = threading.Condition()
        self._queues: dict[Session, deque[server.Call]] = {}
        self._making: tuple[Session, server.Call, float] | None = None
        self._rested = True  # nothing is held yet
        self._stopping = False
        self._closed = False
        self._until = 0.0
        self._floor = 0.0  # what the session had used whose call was made last
        self._left: Engine | None = None
        self._thread = threading.Thread(target=self._run, name=f"calls {name}", daemon=True)
        self._thread.start()

    def join(self) -> bool:
        """One session more; False where the engine is about to close, and another is to be made."""
        with self._changed:
            if self._closed:
                return False
            self.sessions += 1
            return True

    def leave(self, session: Session) -> None:
        """One session less: what it asked for is not made any more."""
        with self._changed:
            self.sessions -= 1
            self._until = time.monotonic() + LINGER_S
            self._queues.pop(session, None)
            self._cancel(session, None)
            self._changed.notify_all()

    def put(self, session: Session, call: server.Call) -> None:
        """A call to make, in its turn."""
        with self._changed:
            queue = self._queues.get(session)
            if queue is None:
                session.used = max(session.used, self._floor)  # who asked for nothing meanwhile has not saved up for it
                queue = self._queues[session] = deque()
            queue.append(call)
            self._changed.notify_all()

    def cancel(self, session: Session, call: server.Call) -> None:
        """Nobody waits for it any more."""
        with self._changed:
            queue = self._queues.get(session)
            if queue is not None and call in queue:
                queue.remove(call)
                if not queue:
                    del self._queues[session]
            else:
                self._cancel(session, call)

    def overdue(self, seconds: float) -> None:
        """Stops the call that takes longer than that."""
        with self._changed:
            if self._making and time.monotonic() - self._making[2] > seconds:
                self._making[0].work.cancel(self._making[1])

    def stop(self) -> None:
        """It ends as soon as it can."""
        with self._changed:
            self._stopping = True
            if self._making:
                self._cancel(self._making[0], None)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within that time."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _cancel(self, session: Session, call: server.Call | None) -> None:
        if self._making and self._making[0] is session and call in (None, self._making[1]):
            session.work.cancel(self._making[1])

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        engine = None
        try:
            engine = self._make()
            engine.start()
        except Exception as error:
            why = str(error) or type(error).__name__
            if not isinstance(error, LinkError):
                why = _said("an agent could not be served", error)
            self._end(engine)
            self._opened(self, None, why)
            return
        self.engine = engine
        self._opened(self, engine, "")
        try:
            while (found := self._next()) is not None:
                if found == "idle":
                    engine.rest()
                    continue
                self._make_call(*found)
        except Exception as error:  # the top of the thread: its sessions end, and are opened again with another
            self._end(engine)
            self._opened(self, None, _said("an agent failed", error))
            return
        self._end(engine)

    def _make_call(self, session: Session, call: server.Call) -> None:
        began = time.thread_time()
        reply = session.work(call, session.core, session.progress(call)) if session.core.wants(call) else None
        session.used += time.thread_time() - began
        with self._changed:
            self._making = None
        session.answered(reply)

    def _end(self, engine: Engine | None) -> None:
        """Nobody joins any more. Where a folder hangs, the engine is left to end when that does."""
        with self._changed:
            self._closed = True
        self.engine = None
        if engine and not engine.stop(STOP_S):
            self._left = engine

    def is_stuck(self) -> bool:
        """Whether its engine was to end, and has not: another of the same folder would only hang beside it."""
        return self._left is not None and not self._left.has_ended()

    def _next(self) -> tuple[Session, server.Call] | Literal["idle"] | None:
        """The next call: of the session that has used least; "idle", once, where there is none for a while.

        None when there is to be no more.
        """
        with self._changed:
            while not self._stopping:
                if self._queues:
                    session = min(self._queues, key=lambda each: each.used)
                    queue = self._queues[session]
                    call = queue.popleft()
                    if not queue:
                        del self._queues[session]
                    self._making = session, call, time.monotonic()
                    self._floor = session.used
                    self._rested = False
                    return session, call
                left = self._until - time.monotonic()
                if not self.sessions and left <= 0:
                    break
                wait = None if self.sessions else left
                if not self._rested:
                    wait = REST_S if wait is None else min(wait, REST_S)
                if not self._changed.wait(wait) and not (self._rested or self._queues):
                    self._rested = True
                    return "idle"
            self._closed = True
            return None


def _said(what: str, error: Exception) -> str:
    """What went wrong, as it is logged and a client is told: by its kind, since its words may be a document's."""
    sys.stderr.write(f"lnk-link-memory: {what}: {kind_of(error)}\n")
    return f"The agent could not be served ({type(error).__name__}); the log says where."
