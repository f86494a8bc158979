"""A session with the memory service of an agent's owner: found, or started where it does not run, and told which agent.

The lowest modules only: a program that uses it runs for each session.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Final, NoReturn

from lnk import __version__
from lnk.agent.gate import AGAIN
from lnk.agent.served import (
    Entry,
    are_in_place,
    generation,
    is_current,
    last_words,
    open_place,
    read_entries,
    read_entry,
    start_lock,
)
from lnk.contract.hello import format_hello, parse_welcome
from lnk.errors import LinkError, Unavailable, from_os
from lnk.lines import Lines, TooLong
from lnk.sockets import connect as connect_to

START_S: Final = 20.0  # a service listens within half a second
WELCOME_S: Final = 30.0  # an agent's index is opened meanwhile
RENEW_S: Final = 60.0  # its engine is asked for its command
REOPENED_S: Final = 10.0
SYSTEMD_S: Final = 5.0  # for systemd to take a unit, and for what it starts to listen
STARTS_MAX: Final = 5  # times that it is started and gone again, until that is said
CLOSED_MAX: Final = 5  # times that a connection is closed before it is welcome, until that is said
LOOK_FIRST_S: Final = 0.005
LOOK_MOST_S: Final = 0.1
READY: Final = b"ready\n"
BUSY: Final = b"busy\n"  # another process is, or is about to be, the service
LINE_BYTES_MAX: Final = 16 << 20
_FILES_MAX: Final = 1 << 12  # a proxy has few open
_SAID_BYTES_MAX: Final = 1 << 12
_READ_BYTES: Final = 1 << 16
_COMMAND: Final = ("-P", "-m", "lnk.cli.program", "agent", "memory")
_TO_SYSTEMD: Final = ("HOME", "LANG", "LNK_HOME", "OLLAMA_HOST", "PATH", "TZ", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")
_STATUSES: Final = {kind.status: kind for kind in LinkError.__subclasses__()}

Wait = Callable[[float, tuple[int, ...]], bool]


class Given(LinkError):
    """The client is gone, or a signal ends this program: nobody waits for the session any more."""


class Connection:
    """The service's end of a session, as the proxy has a tool: what can be read and written, and how it ends."""

    def __init__(self, stream: _socket.socket) -> None:
        self.source = stream.detach()
        self.sink = os.dup(self.source)

    def write(self, line: memoryview) -> int:
        """As much as it takes at once; raises BlockingIOError where that is nothing."""
        return os.write(self.sink, line)

    def close_input(self) -> None:
        """The service is told that nothing more comes."""
        if self.sink >= 0:
            with contextlib.suppress(OSError):
                stream = _socket.socket(fileno=os.dup(self.sink))
                stream.shutdown(_socket.SHUT_WR)
                stream.close()
            os.close(self.sink)
            self.sink = -1

    def close_output(self) -> None:
        """It will not be heard any more."""
        if self.source >= 0:
            os.close(self.source)
            self.source = -1

    def has_ended(self) -> bool:
        """Whether nothing more is heard of it."""
        return self.source < 0

    def tell_to_end(self) -> None:
        """Nobody waits for it."""
        self.end()

    def end(self) -> str:
        """The session is over. How, in words."""
        self.close_input()
        self.close_output()
        return "it closed the connection"


class Service:
    """The service of `<dir>` for one agent. `wait` waits so long, or for one of the descriptors, and says whether to go
    on.
    """

    def __init__(self, path: str, agent: str, wait: Wait) -> None:
        """Raises Missing, Refused where there is no such `<dir>`."""
        self._path = path
        self._agent = agent
        self._wait = wait
        self._entry: Entry | None = None  # by which the session is served
        self._place = open_place(path)
        self._systemd_until: float | None = None  # it is waited for what systemd starts; None: it was not asked yet

    def session(self, opening: tuple[bytes, bytes] = (b"", b""), *, renew: bool = False) -> Connection:
        """A new session. `opening`: what the client said to open the one before, and what told that it was heard.

        `renew`: where what the agent is served with is older than its settings, it is made again first; else only where
        its folders are others. Raises Missing where the agent is not served, what the service refuses, Unavailable
        where it does not start, Given.
        """
        entry = read_entry(self._place, self._agent)
        if not (is_current(entry, __version__) if renew else are_in_place(entry)):
            self._renew()
        stream = self._welcomed()
        try:
            self._reopen(stream, opening)
        except BaseException:
            stream.close()
            raise
        return Connection(stream)

    def is_in_place(self) -> bool:
        """Whether the agent's folders are those that its session is with; some ten microseconds."""
        return self._entry is None or are_in_place(self._entry)

    def _welcomed(self) -> _socket.socket:
        until = time.monotonic() + START_S
        self._systemd_until = None
        started, closed, pause = 0, 0, LOOK_FIRST_S
        why = "it does not listen"
        while time.monotonic() < until:
            entry = read_entry(self._place, self._agent)
            name = generation(entry.engine, read_entries(self._place, entry.engine))
            try:
                stream = connect_to(self._place, self._path, f"{name}.sock")
            except (FileNotFoundError, ConnectionRefusedError):
                if said := self._start(entry):
                    why = said
                else:
                    started += 1
                    why = "it ends as soon as it starts"
                    if started >= STARTS_MAX:
                        break
                    pause = LOOK_FIRST_S
                    continue
            except BlockingIOError:
                why = "it takes no connections"
            except OSError as error:
                raise from_os(error, f"connect to the memory service in {self._path}") from None
            else:
                if self._is_welcome(stream):
                    self._entry = entry
                    return stream
                stream.close()  # it ended just then: another is found, or started
                closed += 1
                why = "it closes the connection"
                if closed >= CLOSED_MAX:
                    break
            self._pause(pause)
            pause = min(2 * pause, LOOK_MOST_S)
        words = f" (it said: {said})" if (said := last_words(self._place)) else ""
        raise Unavailable(
            f"The memory service in {self._path} cannot be used: {why}{words};"
            " `lnk agent memory service --log` tells more."
        )

    def _is_welcome(self, stream: _socket.socket) -> bool:
        """Whether the session begins; False where the connection is closed. Raises Unavailable with what is refused."""
        try:
            _write(stream, format_hello(self._agent), self._until(WELCOME_S))
            line = self._line(stream, Lines(), WELCOME_S)
        except OSError:
            return False
        if line is None:
            return False
        refused = parse_welcome(line)
        if refused is not None:
            raise Unavailable(refused)
        return True

    def _reopen(self, stream: _socket.socket, opening: tuple[bytes, bytes]) -> None:
        """The session is opened as the client had it: it is asked again what the client asked, and that was heard."""
        asks, opened = opening
        if not asks:
            return
        until = self._until(REOPENED_S)
        lines = Lines(LINE_BYTES_MAX)
        try:
            _write(stream, asks, until)
            while True:
                line = self._line(stream, lines, REOPENED_S)
                if line is None:
                    raise Unavailable("The memory service closed a session that was to be opened again.")
                with contextlib.suppress(ValueError, AttributeError):
                    if json.loads(line).get("id") == AGAIN:
                        break
            if opened:
                _write(stream, opened, until)
        except OSError as error:
            raise Unavailable(f"A session could not be opened again: {error.strerror or error}.") from None

    def _line(self, stream: _socket.socket, lines: Lines, seconds: float) -> bytes | None:
        """The next line; None at the end. The service says one line for each that it is said, so none waits here."""
        until = self._until(seconds)
        while True:
            try:
                data = stream.recv(_READ_BYTES)
            except BlockingIOError:
                if until() <= 0:
                    raise Unavailable(
                        f"The memory service did not answer within {seconds:g} s: the agent's folder may hang."
                    ) from None
                self._look(min(until(), 1.0), stream.fileno())
                continue
            if not data:
                return None
            for line in lines.feed(data):
                if not isinstance(line, TooLong):
                    return line

    # ------------------------------------------------------------ other programs

    def _start(self, entry: Entry) -> str:
        """Starts the service. Empty once something listens; else why not yet. Raises Unavailable where it cannot."""
        argv = [sys.executable, *_COMMAND, "service", self._path, "--engine", entry.engine]
        if self._systemd_until is None:
            self._systemd_until = time.monotonic() + SYSTEMD_S if self._by_systemd(argv) else 0.0
        if time.monotonic() < self._systemd_until:
            return "systemd starts it"
        with start_lock(self._place) as mine:
            if not mine:
                return "another session starts it, and it does not listen"
            _, said = self._run(argv, START_S, stays=True)
        if said.endswith(READY):
            return ""
        if said.endswith(BUSY):
            return "another process starts it, and does not listen"
        if not said.strip():
            return ""  # it was killed: it is tried again, as one that ended as soon as it had begun
        raise Unavailable(f"The memory service did not start: {_sentence(said)}")

    def _by_systemd(self, argv: list[str]) -> bool:
        """Whether the user's systemd starts it, in a unit of its own, which outlives the client's."""
        place = os.environ.get("XDG_RUNTIME_DIR", "")
        if not place or not os.path.exists(f"{place}/systemd/private"):
            return False
        import shutil  # 1 MB, for the first session of all

        program = shutil.which("systemd-run")
        if not program:
            return False
        told = [f"--setenv={key}={os.environ[key]}" for key in _TO_SYSTEMD if key in os.environ]
        try:
            return self._run([program, "--user", "--quiet", "--collect", *told, "--", *argv], SYSTEMD_S)[0] == 0
        except Unavailable:  # it hangs
            return False

    def _renew(self) -> None:
        """Raises what keeps it from being made again."""
        status, said = self._run([sys.executable, *_COMMAND, "renew", "--id", self._agent], RENEW_S)
        if status:
            why = _sentence(said) or "What the agent is served with could not be renewed."
            raise _STATUSES.get(status, Unavailable)(why)

    def _run(self, argv: list[str], seconds: float, *, stays: bool = False) -> tuple[int, bytes]:
        """Starts a program in a session of its own, and hears it until its output ends: its exit status, what it said.

        `stays`: it goes on then, as no child of ours, so that it has no status yet. Raises Given, Unavailable.
        """
        source, sink = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            for fd in (source, sink):
                os.close(fd)
            raise from_os(error, "start another process") from None
        if not pid:
            _become(argv, sink, stays=stays)
        os.close(sink)
        ended = False
        try:
            said = self._heard(source, seconds, " ".join(argv[3:7]))
            ended = True
        finally:
            os.close(source)
            if not (ended or stays):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, _signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return status, said

    def _heard(self, source: int, seconds: float, what: str) -> bytes:
        """The last of what a program says until it closes its output. Raises Given, Unavailable."""
        said = b""
        until = self._until(seconds)
        while (left := until()) > 0:
            self._look(left, source)
            if select.select([source], [], [], 0)[0]:
                part = os.read(source, _READ_BYTES)
                if not part:
                    return said
                said = (said + part)[-_SAID_BYTES_MAX:]
        raise Unavailable(f"`{what}` did not answer within {seconds:g} s.")

    def _pause(self, seconds: float) -> None:
        self._look(seconds)

    def _look(self, seconds: float, *fds: int) -> None:
        if not self._wait(seconds, fds):
            raise Given("")

    @staticmethod
    def _until(seconds: float) -> Callable[[], float]:
        end = time.monotonic() + seconds
        return lambda: end - time.monotonic()


def _sentence(said: bytes) -> str:
    """What a program of ours said last."""
    return said.decode("utf-8", "replace").strip().rpartition("\n")[2].removeprefix("lnk: ")


def _become(argv: list[str], sink: int, *, stays: bool) -> NoReturn:
    """In the new process: the program in a session of its own; one that `stays` is no child of ours."""
    try:
        os.setsid()
        if stays and os.fork():
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.closerange(3, _FILES_MAX)
        os.chdir("/")
        os.execv(argv[0], argv)
    except OSError as error:
        os.write(1, f"{argv[0]} could not be started: {error.strerror}.".encode())
    finally:
        os._exit(127)


def _write(stream: _socket.socket, data: bytes, until: Callable[[], float]) -> None:
    """Raises OSError where it is not taken in time."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[stream.send(rest) :]
        except BlockingIOError:
            left = until()
            if left <= 0:
                raise TimeoutError(0, "it is not read") from None
            select.select([], [stream.fileno()], [], left)
