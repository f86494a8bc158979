"""The listener of a tool: a small program that holds an address, and starts a session for each connection to it.

It is one thread, loads the standard library alone, and ends its sessions when it ends.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from typing import Final, NoReturn

from lnk.agent.journal import Journal, format_time
from lnk.agent.proxy import Signals, command, own_streams, small_command
from lnk.agent.toolfolder import hold_listener, open_folder, open_lock, read_definition
from lnk.errors import Conflict, Full, LinkError
from lnk.sockets import listen, user_of

SESSIONS_MAX: Final = 64  # at once; a process that opens more has lost count of them
END_S: Final = 5.0  # for its sessions to end, which end their tools first
JOURNAL: Final = "bridge.log"
JOURNAL_BYTES_MAX: Final = 1 << 20
READY: Final = b"ready\n"
ADDRESS_BYTES_MAX: Final = 256

_START: Final = "from lnk.agent.listener import main; sys.exit(main(sys.argv[2:]))"


def listener_command(link_home: str, name: str, path: str) -> list[str]:
    """The command that listens at `path` for the tool, and says READY, or why not, on its standard output."""
    return small_command(_START, link_home, name, path)


def main(argv: Sequence[str]) -> int:
    """Listen until a signal ends it. `argv`: Link's folder, the tool's name, the path of the socket.

    Order: it counts as the listener before it looks whether there is to be one, so that who stops the tool finds it.
    """
    own_streams()
    try:
        link_home, name, path = argv
        folder = open_folder(link_home, name)
        lock = open_lock(folder)
        if not hold_listener(lock):
            raise Conflict(f"Another process listens for the tool {name} already.")
        read_definition(folder, name)
        listening = _listening(path)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} {path}".encode(), 0)  # for who looks for it in another environment
    except LinkError as error:
        os.write(1, str(error).encode())
        return error.status
    os.write(1, READY)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return _Listener(command(link_home, name), listening, path, Journal(folder, JOURNAL, JOURNAL_BYTES_MAX)).run()


def _listening(path: str) -> socket.socket:
    """A socket that listens at the path. Raises what `listen` does."""
    parent, _, name = path.rpartition("/")
    folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return socket.socket(fileno=listen(folder, parent, name).detach())
    finally:
        os.close(folder)


class _Listener:
    def __init__(self, session: list[str], listening: socket.socket, path: str, journal: Journal) -> None:
        self._session = session
        self._listening = listening
        self._path = path
        self._at = os.stat(path, follow_symlinks=False)
        self._journal = journal
        self._signals = Signals()
        self._sessions: set[int] = set()

    def run(self) -> int:
        poll = select.poll()
        poll.register(self._signals.fd, select.POLLIN)
        poll.register(self._listening, select.POLLIN)
        while not self._signals.told:
            ready = dict(poll.poll())
            if self._signals.fd in ready:
                self._signals.drain()
                self._reap()
            if self._listening.fileno() in ready:
                self._accept()
        self._end()
        return 0

    def _accept(self) -> None:
        try:
            stream, _ = self._listening.accept()
        except OSError:  # it is gone again, or there is no descriptor for it
            return
        with stream:
            stream.setblocking(True)
            if user_of(stream) != os.geteuid():
                self._say("refused", "another user")
            elif len(self._sessions) >= SESSIONS_MAX:
                self._say("refused", f"{SESSIONS_MAX} sessions are open")
                _say_full(stream)
            else:
                self._start(stream)

    def _start(self, stream: socket.socket) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._say("refused", f"no process: {error.strerror}")
            return
        if not pid:
            _become(self._session, stream.fileno(), parent)
        self._sessions.add(pid)

    def _reap(self) -> None:
        for pid in list(self._sessions):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._sessions.discard(pid)
                if status:
                    self._say("ended", f"status {os.waitstatus_to_exitcode(status)}")

    def _end(self) -> None:
        """No new session, and the end of those that are; whoever does not listen is made to end."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self._path, follow_symlinks=False), self._at):
                os.unlink(self._path)
        self._listening.close()
        poll = select.poll()
        poll.register(self._signals.fd, select.POLLIN)
        until = time.monotonic() + END_S
        self._tell(signal.SIGTERM)
        while self._sessions and (left := until - time.monotonic()) > 0:
            poll.poll(left * 1000 + 1)
            self._signals.drain()
            self._reap()
        self._tell(signal.SIGKILL)

    def _tell(self, number: int) -> None:
        for pid in self._sessions:  # each is a child that was not waited for: its number is its own
            os.kill(pid, number)

    def _say(self, what: str, why: str) -> None:
        self._journal.write({"time": format_time(time.time()), "session": what, "why": why})


def _become(argv: list[str], stream: int, parent: int) -> NoReturn:
    """In the new process: a session over the connection."""
    try:
        from lnk.confine import end_with  # it loads ctypes, which only this process needs, and loses again

        os.dup2(stream, 0)
        os.dup2(stream, 1)
        end_with(parent)
        os.execv(argv[0], argv)
    finally:
        os._exit(127)


def _say_full(stream: socket.socket) -> None:
    text = f"{SESSIONS_MAX} sessions with this tool are open, and no more can be; end some."
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": Full.code, "message": text}}
    with contextlib.suppress(OSError):
        stream.send(json.dumps(error).encode() + b"\n", socket.MSG_DONTWAIT)
