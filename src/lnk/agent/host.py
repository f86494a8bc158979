"""The service of an owner's agents as it stands outside the sandbox: it listens, looks who connects and for whom, and
passes each connection with its first line into the engine, which makes no socket of its own.

It lives as long as its engine: it ends 5 s after the last session, or when the engine does. It is one thread, and loads
the standard library alone.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from lnk.agent.connect import READY
from lnk.agent.journal import Journal, format_time
from lnk.agent.passing import Copied, Engine, reached
from lnk.agent.proxy import Signals
from lnk.agent.served import LOG, generation, open_place, read_entries
from lnk.contract.hello import LINE_BYTES_MAX, LINE_S, parse_hello
from lnk.doorway import Doorway, Said, refuse
from lnk.errors import LinkError
from lnk.lines import Lines, TooLong
from lnk.sockets import Peer, listen

START: Final = "from lnk.agent.host import main; sys.exit(main(sys.argv[2:]))"
MESSAGES: Final = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
IDLE_S: Final = 5.0
LOOK_S: Final = 5.0  # how often it is looked whether our socket is still there
END_S: Final = 3.0  # for the engine to end, which closes its indexes
LOG_BYTES_MAX: Final = 1 << 20
SAID_BYTES_MAX: Final = 1 << 12  # of a line that the engine says
SESSIONS_MAX: Final = 512
AGENT_SESSIONS_MAX: Final = 256  # so that one agent's leave room for the others'
WAITING_MAX: Final = 512  # connections that the engine was not given yet
STATUS: Final = b'{"status": true}'
_READ_BYTES: Final = 1 << 16


def main(argv: Sequence[str]) -> int:
    """Serve until nobody is left. As `argv`: `<dir>`, the service's name, how the engine is reached; the descriptors of
    its lock, of what the engine says, of whoever waits to hear that we listen; the engine's process; a user and a group
    who may connect too, and the models that are served.
    """
    path, name, engine, *numbers, others, models = argv
    lock, heard, ready, pid = map(int, numbers)
    for fd in (lock, heard, ready):
        os.set_inheritable(fd, False)
    place = open_place(path)
    journal = Journal(place, LOG, LOG_BYTES_MAX)
    try:
        host = _Host(path, place, name, reached(engine), heard, pid, journal, models.split(), _peer(others))
    except LinkError as error:
        journal.write(event(name, "failed", why=str(error)))
        os.write(ready, f"{error}\n".encode())
        _clear(place, name)
        return error.status
    with contextlib.suppress(OSError):  # whoever started us is gone
        os.write(ready, READY)
    _close_standard(ready)
    return host.run()


def _clear(place: int, name: str) -> None:
    """What lay there for the service goes; its lock last, by which nobody else is it until then."""
    for ending in ("json", "lock"):
        with contextlib.suppress(OSError):
            os.unlink(f"{name}.{ending}", dir_fd=place)


def _peer(said: str) -> Peer | None:
    return Peer(*map(int, said.split(":"))) if said else None


def _close_standard(ready: int) -> None:
    """Nothing of whoever started us is kept open: neither that it waits by, nor its terminal."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if ready > 2:
        os.close(ready)


def event(name: str, what: str, **more: Any) -> dict[str, Any]:
    """A line of the log."""
    return {"time": format_time(time.time()), "service": name, "event": what, **more}


class _Host:
    def __init__(
        self,
        path: str,
        place: int,
        name: str,
        engine: Engine,
        heard: int,
        pid: int,
        journal: Journal,
        models: list[str],
        peer: Peer | None,
    ) -> None:
        self._path, self._place, self._name = path, place, name
        self._engine, self._heard, self._pid = engine, heard, pid
        self._journal = journal
        self._models = models
        self._peer = peer
        self._socket = f"{name}.sock"
        os.set_blocking(heard, False)
        self._signals = Signals()
        self._began = time.time()
        self._waiting: deque[Said] = deque()
        self._idle_since = time.monotonic()
        self._looked = time.monotonic()
        self._lines = Lines(SAID_BYTES_MAX)
        self._last = ""
        self._gone = False
        self._listen()
        self._log("started", pid=os.getpid(), models=models)

    def _listen(self) -> None:
        peer = self._peer
        listening = listen(self._place, self._path, self._socket, group=peer.group if peer else None)
        self._at = os.stat(self._socket, dir_fd=self._place, follow_symlinks=False)
        users = {os.geteuid(), *([peer.user] if peer else [])}
        self._door = Doorway(listening, users, self._refused, line_bytes_max=LINE_BYTES_MAX, line_s=LINE_S)

    def _refused(self, why: str) -> None:
        self._log("refused", why=why)

    def run(self) -> int:
        """Until the last session is over, the engine ends, or a signal ends us."""
        while not (self._gone or self._engine.is_gone or self._signals.told):
            self._turn()
            if self._is_over() and self._leave():
                break
        return self._finish()

    def _turn(self) -> None:
        poll = select.poll()
        for fd in (*self._door.fds(), self._signals.fd, self._heard):
            poll.register(fd, select.POLLIN)
        self._engine.register(poll, waits=bool(self._waiting))
        ready = dict(poll.poll(self._wait_ms()))
        now = time.monotonic()
        if self._signals.fd in ready:
            self._signals.drain()
        if self._heard in ready:
            self._hear_errors()
        self._engine.hear(ready)
        for said in self._door.take(ready, now):
            self._decide(said)
        self._door.expire(now)
        self._give()
        if self._is_used():
            self._idle_since = now
        if now >= self._looked + LOOK_S:
            self._looked = now
            self._stay_found()
            if self._is_outdated():
                self._engine.tell_outdated()

    def _stay_found(self) -> None:
        """Where somebody took the socket away, there is another: who comes must find us, since we hold the lock."""
        with contextlib.suppress(LinkError):
            if not self._is_found():
                before = self._door
                self._listen()
                before.close()
                self._log("listens again")

    def _is_outdated(self) -> bool:
        """Whether the agents that are to be served are others by now."""
        engine = self._name.rpartition("-")[0]
        with contextlib.suppress(LinkError):
            return generation(engine, read_entries(self._place, engine)) != self._name
        return False

    def _is_found(self) -> bool:
        try:
            there = os.stat(self._socket, dir_fd=self._place, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(there, self._at)

    def _wait_ms(self) -> float:
        now = time.monotonic()
        asked = (self._door.wait_s(now), self._engine.wait_s(waits=bool(self._waiting)))
        waits = [LOOK_S, *(wait for wait in asked if wait is not None)]
        if not self._is_used():
            waits.append(max(0.0, self._idle_since + IDLE_S - now))
        return min(waits) * 1000 + 1

    def _is_used(self) -> bool:
        return bool(self._waiting or len(self._door) or self._engine.is_used())

    def _is_over(self) -> bool:
        return not self._is_used() and time.monotonic() >= self._idle_since + IDLE_S

    def _leave(self) -> bool:
        """Nobody finds us any more; False where somebody had found us just before, and we stay.

        Order: the socket's name goes before the last look at who has come, so that whoever comes later starts another.
        """
        aside = f".{self._socket}.old"
        try:
            os.rename(self._socket, aside, src_dir_fd=self._place, dst_dir_fd=self._place)
        except OSError:  # somebody took it away, or made its folder unwritable: nobody is to find it any more
            return True
        for said in self._door.accept(time.monotonic()):
            self._decide(said)
        if self._is_used():
            os.rename(aside, self._socket, src_dir_fd=self._place, dst_dir_fd=self._place)
            return False
        os.unlink(aside, dir_fd=self._place)
        return True

    # -------------------------------------------------------- connections

    def _decide(self, said: Said) -> None:
        """It goes to the engine, or is answered why not."""
        if said.line.strip() == STATUS and said.user == os.geteuid():
            self._tell_status(said.stream)
            return
        try:
            agent = parse_hello(said.line)
        except LinkError as error:
            self._log("refused", why=str(error))
            refuse(said.stream, str(error))
            return
        if why := self._full(agent):
            self._log("refused", why=why)
            refuse(said.stream, why)
            return
        self._waiting.append(said)

    def _full(self, agent: str) -> str:
        """Why no session more can be; empty where it can."""
        sessions = self._engine.sessions
        if sessions.get(agent, 0) >= AGENT_SESSIONS_MAX:
            return f"{AGENT_SESSIONS_MAX} sessions of this agent are open, and no more can be; end some."
        if sum(sessions.values()) >= SESSIONS_MAX:
            return f"{SESSIONS_MAX} sessions are open with the memory service, and no more can be; end some."
        if len(self._waiting) >= WAITING_MAX:
            return "The memory engine takes no connections just now; try again in a moment."
        return ""

    def _give(self) -> None:
        """Each connection goes to the engine with its first line."""
        while self._waiting and self._engine.give(self._waiting[0]):
            self._waiting.popleft()

    def _hear_errors(self) -> None:
        """What the engine says goes to the log."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._heard, _READ_BYTES)
            if not data:
                self._gone = True
            for line in self._lines.feed(data):
                if not isinstance(line, TooLong) and line.strip():
                    self._last = line.decode("utf-8", "replace").strip()
                    self._log("said", said=self._last)

    def _tell_status(self, stream: socket.socket) -> None:
        found = {
            "ok": True,
            "name": self._name,
            "since": format_time(self._began),
            "pid": os.getpid(),
            "engine": self._pid,
            "sessions": self._engine.sessions,
            "models": self._models,
        }
        with contextlib.suppress(OSError):
            stream.send(json.dumps(found).encode() + b"\n", socket.MSG_DONTWAIT)
        stream.close()

    # -------------------------------------------------------- the end

    def _finish(self) -> int:
        """Who was not given to the engine yet is told why, where it failed; then it ends, and nothing of us is left."""
        with contextlib.suppress(OSError):
            os.unlink(self._socket, dir_fd=self._place)
        gone = self._gone or self._engine.is_gone
        if gone:
            self._hear_errors()
        if gone and not self._engine.has_served:
            why = f"The memory engine ended as it started{': ' + self._last.rstrip('.') if self._last else ''}."
            for said in (*self._waiting, *self._door.accept(time.monotonic())):
                refuse(said.stream, why)
        self._door.close()
        self._engine.close()
        if isinstance(self._engine, Copied):  # it stays, as it was told to
            self._end_engine(signal.SIGTERM)
        status = self._wait_for_engine()
        self._log("ended", status=status, **({"signal": self._signals.told} if self._signals.told else {}))
        _clear(self._place, self._name)
        return 0

    def _wait_for_engine(self) -> int:
        """Its exit status, once it has ended: by itself, else made to."""
        until = time.monotonic() + END_S
        poll = select.poll()
        poll.register(self._signals.fd, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            poll.poll(left * 1000 + 1)
            self._signals.drain()
        self._end_engine(signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _end_engine(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, number)

    def _log(self, what: str, **more: Any) -> None:
        self._journal.write(event(self._name, what, **more))
