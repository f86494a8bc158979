"""`serve-many`: sessions with the folders of many agents in one process, each over a connection of its own.

One loop reads and writes them all; it opens no file and waits for no agent. Nothing grows without a limit: where a
client does not read its answers, or has many calls under way, no more of its lines are read.
"""

import contextlib
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from lnk.contract.hello import format_welcome, parse_hello
from lnk.doorway import refuse
from lnk.errors import Full, LinkError, Missing, Unavailable
from lnk.lines import LINE_BYTES_MAX, Lines, TooLong
from lnk.mcp import server
from lnk.mcp.stdio import CALLS_MAX, END_WAIT_S, UNREAD_BYTES_MAX, Answers
from lnk.memory.engine import Engine
from lnk.service.agents import Agent
from lnk.service.session import Work, describe, kind_of

CALL_S: Final = 60.0  # a call that takes longer is stopped: no client waits so long
DESCRIBING_MAX: Final = 32  # that an agent's notes are read for at once; with more, their folder hangs
REST_S: Final = 30.0  # without a word, until a session of an outdated process is closed
LOOK_S: Final = 1.0
LINES_A_TURN: Final = 32  # of one session: one that sends as much as it can keeps the others waiting no longer
SESSIONS_MAX: Final = 512
STOP_S: Final = 1.5  # for the engines to close, after the last session
_READ_BYTES: Final = 1 << 16


class Source(Protocol):
    """Where connections come from, with their first line."""

    is_outdated: bool  # another process serves these agents by now, for who can move to it

    def fds(self) -> list[int]:
        """The descriptors to be polled for reading."""

    def take(self, ready: list[int]) -> list[tuple[socket.socket, bytes]]:
        """What has come."""

    def report(self, sessions: Mapping[str, int]) -> None:
        """Which agents have how many sessions, whenever that may have changed."""

    def wait_s(self) -> float | None:
        """How long until it is to be asked again, whatever comes."""

    def is_over(self) -> bool:
        """Whether nothing more is to be served."""

    def close(self) -> None:
        """Nothing more comes."""


class _Session:
    """One connection."""

    def __init__(self, many: "Many", stream: socket.socket, agent: Agent) -> None:
        self.many = many
        self.stream = stream
        self.fd = stream.fileno()
        self.agent = agent
        self.core: server.Session
        self.work: Work
        self.used = 0.0  # seconds of processor that its calls took
        self.events = 0
        self.lines = Lines(LINE_BYTES_MAX)
        self.pending: deque[bytes | TooLong] = deque()  # lines of one read, at most
        self.out = Answers(lambda data: stream.send(data, socket.MSG_DONTWAIT))
        self.describing: set[object] = set()  # what the server is for was asked so often, and is not answered
        self.begun = False
        self.over = False  # nothing more comes
        self.gone = False
        self.until = 0.0  # when it is to be over, once nothing more comes
        self.moved = time.monotonic()  # when it last asked for something, or was answered

    def has_room(self) -> bool:
        """Whether a line of it may be taken, whatever comes of it."""
        return self.out.size < UNREAD_BYTES_MAX and self.core.waiting + len(self.describing) < CALLS_MAX

    def answered(self, reply: server.Reply | None) -> None:
        """Written at once, so far as the client takes it; the loop does the rest.

        A session that a newer process is to serve is closed instead: whoever relays it finds that one, and asks again.
        """
        self.moved = time.monotonic()
        if self.work.is_outdated:
            self.gone = True
        elif reply is not None:
            self.out.put(reply)
            self.flush()
        if self.out or self.pending or self.over or self.gone or not self.events & selectors.EVENT_READ:
            self.many.look_at(self)

    def progress(self, call: server.Call) -> Callable[[int, int, str], None]:
        """What tells the client how far the call is."""

        def tell(done: int, of: int, message: str) -> None:
            word = self.core.progress(call, done, of, message)
            if word is not None:
                self.out.put(word)
                self.flush()

        return tell

    def wanted(self) -> int:
        """What it waits for at its connection."""
        reads = not (self.over or self.pending) and self.has_room()
        return (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if self.out else 0)

    def flush(self) -> None:
        """All that the client takes now."""
        try:
            self.out.flush()
        except OSError:
            self.gone = True


class Many:
    """The loop over all sessions."""

    def __init__(
        self, source: Source, engines: Mapping[str, Callable[[], Engine]], ready: Callable[[], object]
    ) -> None:
        """`engines` makes each agent's, by its id, in a thread of its own. `ready` is called before all."""
        ready()
        self._source = source
        self._engines = engines
        self._agents: dict[str, Agent] = {}
        self._sessions: set[_Session] = set()
        self._opening: dict[Agent, list[_Session]] = {}
        self._selector = selectors.DefaultSelector()
        self._polled: set[int] = set()  # of the source
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._look: deque[_Session] = deque()  # to be looked at again, from any thread
        self._opened: deque[tuple[Agent, Engine | None, str]] = deque()
        self._looked = 0.0
        self._told = False

    def run(self) -> None:
        """Until the source is over, or a signal ends it."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._report()
        while not (self._told or self._source.is_over()):
            self._turn()
        self._source.close()
        for session in list(self._sessions):
            self._close(session)
        for agent in self._agents.values():
            agent.stop()
        until = time.monotonic() + STOP_S
        waited = [agent.wait(until - time.monotonic()) for agent in self._agents.values()]
        if not all(waited):
            sys.stderr.flush()
            os._exit(0)  # a folder hangs; the index files are safe at any moment

    def look_at(self, session: _Session) -> None:
        """The session may have more to do. From any thread."""
        self._look.append(session)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is full, and so it wakes
            os.write(self._wake_write, b"1")

    def _end(self, _number: int, _frame: object) -> None:
        self._told = True

    # ------------------------------------------------------------ one turn

    def _turn(self) -> None:
        self._poll_source()
        found = self._selector.select(self._wait_s())
        ready = []
        for key, events in found:
            if key.fd == self._wake_read:
                os.read(self._wake_read, _READ_BYTES)
            elif key.data is None:
                ready.append(key.fd)
            else:
                self._move(key.data, events)
        for _ in range(len(self._look)):
            session = self._look.popleft()
            if session in self._sessions and session.begun:
                self._settle(session)
        while self._opened:
            self._begin(*self._opened.popleft())
        if ready:
            self._poll_source(over=True)
        for stream, line in self._source.take(ready):
            self._greet(stream, line)
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            self._look_after(now)

    def _wait_s(self) -> float | None:
        waits = [self._source.wait_s()]
        if self._sessions:
            waits.append(LOOK_S)
        return min((wait for wait in waits if wait is not None), default=None)

    def _poll_source(self, *, over: bool = False) -> None:
        """`over`: none of it is polled, since what is taken may be closed, or a session's, and its number another's."""
        wanted = set() if over else set(self._source.fds())
        for fd in self._polled - wanted:
            self._selector.unregister(fd)
        for fd in wanted - self._polled:
            self._selector.register(fd, selectors.EVENT_READ)
        self._polled = wanted

    def _look_after(self, now: float) -> None:
        """Calls that take too long are stopped, and sessions that are to be over are."""
        for agent in list(self._agents.values()):
            agent.overdue(CALL_S)
        for session in list(self._sessions):
            if (session.over and now >= session.until) or (not session.events and _is_left(session.stream)):
                self._close(session)
            elif self._source.is_outdated and self._rests(session, now):
                self._close(session)  # whoever relays it finds the other process when there is something to ask

    def _rests(self, session: _Session, now: float) -> bool:
        busy = not session.begun or session.pending or session.out or self._has_work(session)
        return not busy and now >= session.moved + REST_S

    # ------------------------------------------------------------ sessions

    def _greet(self, stream: socket.socket, line: bytes) -> None:
        """A connection with its first line: it waits for its agent's engine, or is told why it is not served."""
        try:
            name = parse_hello(line)
            if name not in self._engines:
                raise Missing(f"No agent {name[:64]!r} is served here.")
            if len(self._sessions) >= SESSIONS_MAX:
                raise Full(f"{SESSIONS_MAX} sessions are open here, and no more can be; end some.")
        except LinkError as error:
            refuse(stream, str(error))
            self._report()
            return
        stream.setblocking(False)
        agent = self._agents.get(name)
        if agent is None or not agent.join():
            try:
                agent = self._agents[name] = self._made(name, agent)
            except LinkError as error:
                refuse(stream, str(error))
                self._report()
                return
        session = _Session(self, stream, agent)
        self._sessions.add(session)
        if agent.engine is not None:
            self._welcome(session, agent.engine)
        else:
            self._opening.setdefault(agent, []).append(session)
        self._report()

    def _made(self, name: str, before: Agent | None) -> Agent:
        """The agent with its thread. Raises Unavailable where the one before has not ended, or there is no thread."""
        if before and before.is_stuck():
            raise Unavailable("The agent's folder does not answer; see that its disk is there, then start again.")
        try:
            return Agent(name, self._engines[name], self._has_opened)
        except RuntimeError:
            raise Unavailable("This process can have no more threads; end some sessions, then start again.") from None

    def _has_opened(self, agent: Agent, engine: Engine | None, why: str) -> None:
        """From an agent's thread."""
        self._opened.append((agent, engine, why))
        self._wake()

    def _begin(self, agent: Agent, engine: Engine | None, why: str) -> None:
        opening = self._opening.pop(agent, [])
        if engine is not None:
            for session in opening:
                self._welcome(session, engine)
            return
        for session in [session for session in self._sessions if session.agent is agent]:
            if not session.begun:
                refuse(session.stream, why)
            self._close(session)

    def _welcome(self, session: _Session, engine: Engine) -> None:
        session.work = Work(engine)
        session.core = server.Session(describe(engine))
        session.begun = True
        session.out.put(server.Reply(format_welcome()))
        self._settle(session)

    def _move(self, session: _Session, events: int) -> None:
        """What is ready of it is done."""
        if events & selectors.EVENT_READ and not session.pending and session.has_room():
            try:
                data = session.stream.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
                session.gone = True
            session.moved = time.monotonic()
            session.pending.extend(session.lines.feed(data))
            if not data:
                session.over = True
                session.until = time.monotonic() + END_WAIT_S
                if (rest := session.lines.rest()) is not None:
                    session.pending.append(rest)
        self._settle(session)

    def _settle(self, session: _Session) -> None:
        """Its lines are taken as long as there is room, and its answers written; then it waits for what it needs."""
        for _ in range(LINES_A_TURN):
            if session.gone or not (session.pending and session.has_room()):
                break
            for action in session.core.receive(session.pending.popleft()):
                self._act(session, action)
        session.flush()
        if session.gone or (session.over and not (session.pending or session.out or self._has_work(session))):
            self._close(session)
            return
        events = session.wanted()
        self._wait_for(session, events)
        if session.wanted() != events or (session.pending and session.has_room()):
            self.look_at(session)  # the others have their turn; or a call was answered before it was known who waits

    def _has_work(self, session: _Session) -> bool:
        return bool(session.core.waiting or session.describing)

    def _wait_for(self, session: _Session, events: int) -> None:
        if events == session.events:
            return
        if not session.events:
            self._selector.register(session.fd, events, session)
        elif not events:
            self._selector.unregister(session.fd)
        else:
            self._selector.modify(session.fd, events, session)
        session.events = events

    def _act(self, session: _Session, action: server.Action) -> None:
        if isinstance(action, server.Reply):
            session.out.put(action)
        elif isinstance(action, server.Call):
            session.agent.put(session, action)
        elif isinstance(action, server.Cancelled):
            session.agent.cancel(session, action.call)
        elif len(session.agent.describing) >= DESCRIBING_MAX or not self._begin_to_describe(session, action):
            session.out.put(session.core.described(action, session.work.instructions(notes=False)))

    def _begin_to_describe(self, session: _Session, asked: server.Describe) -> bool:
        """It reads the notes, in a folder that may hang, and does not wait behind a call. False without a thread."""
        asking = (session.describing, session.agent.describing)
        for each in asking:
            each.add(asked)
        try:
            threading.Thread(target=self._describe, args=(session, asked), daemon=True).start()
        except RuntimeError:
            for each in asking:
                each.discard(asked)
            return False
        return True

    def _describe(self, session: _Session, asked: server.Describe) -> None:
        """A thread of its own."""
        try:
            words = session.work.instructions()
        except Exception as error:  # the top of the thread: the fault is logged, and the session goes on
            sys.stderr.write(f"lnk-link-memory: the notes could not be told: {kind_of(error)}\n")
            words = ""
        session.describing.discard(asked)
        session.agent.describing.discard(asked)
        session.answered(session.core.described(asked, words))
        self.look_at(session)

    def _close(self, session: _Session) -> None:
        self._sessions.discard(session)
        self._wait_for(session, 0)
        session.gone = True
        session.out.end(session.stream.close)
        waiting = self._opening.get(session.agent, [])
        if session in waiting:
            waiting.remove(session)
        session.agent.leave(session)
        self._report()

    def _report(self) -> None:
        open_: dict[str, int] = {}
        for session in self._sessions:
            open_[session.agent.name] = open_.get(session.agent.name, 0) + 1
        self._source.report(open_)


def _is_left(stream: socket.socket) -> bool:
    """Whether nobody is at the other end, whatever was said before."""
    poll = select.poll()
    poll.register(stream, 0)
    return bool(poll.poll(0))
