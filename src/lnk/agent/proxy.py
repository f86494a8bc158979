"""One session with a tool: a small program that starts the tool, and passes MCP on through the gate, line by line.

It is one thread that waits in one place. What waits to be written has a limit on both sides: where one side does not
read, nothing more is read of the other. Only the standard library is loaded, since one runs for each session.
"""

import _signal as signal  # type: ignore[import-not-found]  # its enumerations double the table of names
import contextlib
import os
import select
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from lnk.agent.connect import Given, Service
from lnk.agent.gate import UNASKED, Action, Ask, Check, Gate, Record, ToClient, ToTool, Withdraw
from lnk.agent.home import link_home
from lnk.agent.journal import Journal, format_time
from lnk.agent.toolfolder import LOG, Definition, Serving, hold_session, open_folder, open_lock, read_definition
from lnk.errors import LinkError, Missing, Unavailable, from_os
from lnk.lines import LINE_BYTES_MAX, Lines, TooLong
from lnk.streams import Write, writer

if TYPE_CHECKING:
    from lnk.agent.asks import Owner

TOOL_LINE_BYTES_MAX: Final = 16 << 20  # the largest answer a client of ours takes
WAITING_BYTES_MAX: Final = 1 << 18  # what waits for a side that does not read, and one line more
# A tool has so long to end after its input, and after each answer that it still gives; the client to read the last.
END_S: Final = 3.0
TOLD_S: Final = 1.0  # and so long after a signal
LOOK_S: Final = 0.2  # how often an answer of the owner's is looked for
RELAY: Final = "--relay"
DESCRIPTORS_MAX: Final = 1 << 16  # where the system does not say which are open; it lets a process have few more
_READ_BYTES: Final = 1 << 16
_SIGNALLED: Final = 128
_GONE: Final = select.POLLERR | select.POLLNVAL

_START: Final = "from lnk.agent.proxy import main; sys.exit(main(sys.argv[2:]))"
_LIGHT: Final = "import sys; sys.path.append(sys.argv[1]); from lnk.light import stand_in; stand_in(); "


def run(name: str, home: str | None = None) -> NoReturn:
    """This process becomes one session with the tool, in the `Link` folder of its environment."""
    argv = command(home or link_home(os.environ), name)
    os.execv(argv[0], argv)


def command(link_home: str, name: str) -> list[str]:
    """The command that is one session with the tool on its standard input and output."""
    return small_command(_START, link_home, name)


def small_command(start: str, *words: str) -> list[str]:
    """A Python program of this package that loads nothing of what is installed beside it."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return [sys.executable, "-I", "-S", "-c", _LIGHT + start, package, *words]


def relay(path: str, agent: str) -> NoReturn:
    """This process becomes one session with an agent's memory by the service of `<dir>`: nothing is gated or logged."""
    argv = small_command(_START, RELAY, path, agent)
    os.execv(argv[0], argv)


def main(argv: Sequence[str]) -> int:
    """Serve one session: `argv` is Link's folder and the tool's name. The exit status says why it ended.

    Order: it counts as a session before it reads what to run, so that whoever changes that finds and ends it.
    """
    own_streams()
    try:
        if argv[0] == RELAY:
            return _relay(*argv[1:])
        link_home, name = argv
        folder = open_folder(link_home, name)
        lock = open_lock(folder)  # kept until the end
        hold_session(lock)
        return _Proxy(read_definition(folder, name), folder).run()
    except Given:
        return 0
    except LinkError as error:
        tell(str(error))
        return error.status


def _relay(path: str, agent: str) -> int:
    """One session by the service alone. Where there is a tool of it, this is one of the tool's sessions."""
    name = f"memory-{agent}"
    path = os.path.abspath(path)  # a service that is started works in another folder
    link_home = os.path.dirname(os.path.dirname(os.path.dirname(path)))
    folder = open_folder(link_home, name)
    lock = open_lock(folder)  # kept until the end
    hold_session(lock)
    defined = read_definition(folder, name)
    repeats = defined.service.repeats if defined.service else []
    tool = Definition(name, [], None, stopped=False, service=Serving(path, agent, repeats))
    return _Proxy(tool, None).run()


def tell(text: str) -> None:
    """One line on standard error; nobody may be there any more to read it."""
    with contextlib.suppress(OSError):
        os.write(2, f"lnk: {text}\n".encode(errors="backslashreplace"))


def own_streams() -> None:
    """The first three descriptors are there, so that nothing opened later takes their place, and they are all.

    What a client left open would be the tool's too: by a folder's descriptor a sandbox is walked out of.
    """
    try:
        highest = max(map(int, os.listdir("/dev/fd")))
    except OSError:  # nothing is mounted there
        highest = DESCRIPTORS_MAX
    os.closerange(3, highest + 1)
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        os.set_inheritable(fd, True)
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)


class Signals:
    """Signals that end this program, and those that tell of a child: both can be polled for as `fd`."""

    def __init__(self) -> None:
        self.told = 0  # the signal that ends this program
        self.fd, writing = os.pipe()
        for each in (self.fd, writing):
            os.set_blocking(each, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` has it
                signal.signal(number, self._tell)

    def drain(self) -> None:
        """What has come is heard."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, _READ_BYTES)

    def _tell(self, number: int, _frame: object) -> None:
        self.told = self.told or number


class _Waiting:
    """Lines that wait to be written to one side."""

    def __init__(self) -> None:
        self.size = 0
        self._lines: deque[memoryview] = deque()

    def put(self, line: bytes) -> None:
        self._lines.append(memoryview(line))
        self.size += len(line)

    def clear(self) -> None:
        self._lines.clear()
        self.size = 0

    def write(self, write: Write) -> None:
        """Writes of the first line what one call takes. Raises OSError, BlockingIOError where it takes nothing now."""
        count = write(self._lines[0])
        self.size -= count
        rest = self._lines[0][count:]
        if rest:
            self._lines[0] = rest
        else:
            self._lines.popleft()

    def has_room(self) -> bool:
        return self.size < WAITING_BYTES_MAX


class _Child:
    """The tool: a process in a session of its own, which is ended with all that it started."""

    def __init__(self, tool: Definition) -> None:
        """Raises Missing and so on where it cannot be started."""
        if not os.access(tool.argv[0], os.X_OK):
            raise Missing(f"The program of the tool {tool.name}, {tool.argv[0]}, is not there; define the tool again.")
        source, self.sink = os.pipe()
        self.source, sink = os.pipe()
        failed, fails = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            _become(tool.argv, source, sink, fails, parent)
        for fd in (source, sink, fails):
            os.close(fd)
        number = os.read(failed, 16)  # nothing, once the tool runs
        os.close(failed)
        if number:
            os.waitpid(self.pid, 0)
            error = OSError(int(number), os.strerror(int(number)))
            raise from_os(error, f"start the tool {tool.name}")
        os.set_blocking(self.source, False)
        os.set_blocking(self.sink, False)

    def has_ended(self) -> bool:
        """Whether it has; its number stays its own. Where the system cannot tell so, False."""
        if not hasattr(os, "waitid"):
            return False
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def write(self, line: memoryview) -> int:
        """As much to its input as it takes at once; raises BlockingIOError where that is nothing."""
        return os.write(self.sink, line)

    def close_input(self) -> None:
        """It is told that nothing more comes."""
        if self.sink >= 0:
            os.close(self.sink)
            self.sink = -1

    def close_output(self) -> None:
        """It will not be heard any more."""
        if self.source >= 0:
            os.close(self.source)
            self.source = -1

    def tell_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def end(self) -> str:
        """It has ended, with all that it started. How, in words."""
        self._signal(signal.SIGKILL)
        self.close_input()
        self.close_output()
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return f"status {status}" if status >= 0 else f"signal {-status}"

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _become(argv: list[str], source: int, sink: int, fails: int, parent: int) -> NoReturn:
    """In the new process: the tool. What goes wrong is written to `fails`."""
    try:
        from lnk.confine import end_with  # it loads ctypes, which only this process needs, and loses again

        os.setsid()
        os.dup2(source, 0)
        os.dup2(sink, 1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        end_with(parent)
        os.execv(argv[0], argv)
    except OSError as error:
        os.write(fails, str(error.errno).encode())
    finally:
        os._exit(127)


class _Proxy:
    def __init__(self, tool: Definition, folder: int | None) -> None:
        """`folder`: the tool's, in which its calls are logged and the owner is asked; None: neither is."""
        self._tool = tool
        service = tool.service
        self._gate = Gate(tool.allow, service.repeats if service else None)
        self._journal = None if folder is None else Journal(folder, LOG)
        self._folder = folder
        self._owner: Owner | None = None  # once there is something to ask
        self._signals = Signals()
        self._typed = os.isatty(0)
        self._write = writer(1)
        self._client_lines, self._tool_lines = Lines(LINE_BYTES_MAX), Lines(TOOL_LINE_BYTES_MAX, ends=True)
        self._pending: deque[bytes | TooLong] = deque()  # lines of one read of the client's, at most
        self._to_client, self._to_tool = _Waiting(), _Waiting()
        self._records: list[Record] = []
        self._checks: list[Check] = []
        self._input_over = False  # nothing more comes from the client
        self._hung = False  # nobody writes to us any more; what is written already is read in its turn
        self._gone = False  # nobody reads what we write
        self._dead = False  # the tool is; what it wrote is still read
        self._ended = False  # and that is over too
        self._wrong = ""  # what the tool did that ends the session
        self._lost = False  # the service is, and is looked for as soon as there is something to ask of it
        self._moved = time.monotonic()  # when a session that is to end last got further
        self._service = Service(service.path, service.agent, self._go_on) if service else None
        self._child = self._service.session(renew=True) if self._service else _Child(tool)

    def run(self) -> int:
        """Serve until the client's end or the tool's. The exit status."""
        while not self._is_over():
            listening = self._child.source >= 0 and self._to_client.has_room()
            self._turn(self._poll(listening), listening)
        return self._finish()

    def _is_over(self) -> bool:
        if self._signals.told or self._wrong or self._ended or self._gone:
            return True
        return self._is_ending() and time.monotonic() >= self._moved + END_S

    def _is_ending(self) -> bool:
        """Whether the session waits for nothing but the tool's end."""
        return self._input_over or self._hung or (not self._lost and min(self._child.source, self._child.sink) < 0)

    def _is_heard_out(self, listening: bool) -> bool:
        """Whether the tool is dead, and what it wrote before is read unless more of it is ready now."""
        return self._dead and (listening or self._child.source < 0)

    def _has_room(self) -> bool:
        """Whether a line of the client's may be taken, whatever comes of it."""
        return self._to_tool.has_room() and self._to_client.has_room()

    # -------------------------------------------------------- one turn

    def _poll(self, listening: bool) -> dict[int, int]:
        """What is ready, waited for. `listening`: to the tool."""
        poll = select.poll()
        poll.register(self._signals.fd, select.POLLIN)
        terminal = self._owner.fd if self._owner else -1
        asking = self._typed and terminal >= 0  # what is typed now is the owner's answer
        reading = not (self._input_over or self._pending or asking) and self._has_room()
        if reading or not (self._input_over or self._hung):
            poll.register(0, select.POLLIN if reading else 0)
        poll.register(1, select.POLLOUT if self._to_client.size else 0)
        if listening:
            poll.register(self._child.source, select.POLLIN)
        if self._to_tool.size:
            poll.register(self._child.sink, select.POLLOUT)
        if terminal >= 0:
            poll.register(terminal, select.POLLIN)
        return dict(poll.poll(self._wait_ms(listening)))

    def _wait_ms(self, listening: bool) -> float | None:
        if (self._pending and self._has_room()) or self._is_heard_out(listening):
            return 0
        waits = [LOOK_S] if self._owner and self._owner.waits() else []
        if self._is_ending():
            waits.append(max(0.0, self._moved + END_S - time.monotonic()))
        return min(waits) * 1000 + 1 if waits else None

    def _turn(self, ready: dict[int, int], listening: bool) -> None:
        now = time.monotonic()
        self._gone = self._gone or bool(ready.get(1, 0) & _GONE)
        if how := ready.get(0, 0):
            self._hear_client(how, now)
        self._take_lines(now)
        if self._child.source in ready:
            self._hear_tool(now)
        elif self._is_heard_out(listening):
            self._ended = True
        self._hear_owner(ready, now)
        if self._lost and self._input_over and not self._pending:  # nothing is asked of it any more
            self._ended = True
        if self._signals.fd in ready:
            self._signals.drain()
            self._dead = not self._lost and self._child.has_ended()
        self._write_tool(now)
        self._write_client(now)
        self._log()

    def _hear_client(self, how: int, now: float) -> None:
        if self._pending or not self._has_room() or self._input_over:
            self._hung = True
            return
        try:
            data = os.read(0, _READ_BYTES) if how & select.POLLIN else b""
        except BlockingIOError:  # whoever shares it with us has set it so, and read it first
            return
        except OSError:
            data = b""
        self._pending.extend(self._client_lines.feed(data))
        if not data:
            self._input_over = True
            if (rest := self._client_lines.rest()) is not None:
                self._pending.append(rest)
        self._got_on(now)

    def _got_on(self, now: float) -> None:
        """A tool that can still answer was given more."""
        if self._child.source >= 0:
            self._moved = now

    def _take_lines(self, now: float) -> None:
        """The lines that have come, as long as there is room for what comes of them."""
        while self._pending and self._has_room():
            self._act(self._gate.from_client(self._pending.popleft(), now), now)
        if self._input_over and not self._pending and self._owner:
            for number in self._owner.numbers():  # nobody waits any more for what the owner says
                self._answer(number, UNASKED, now)

    def _hear_tool(self, now: float) -> None:
        try:
            data = os.read(self._child.source, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a connection that is broken off
            data = b""
        if not data and self._service:
            self._lose(now)
            return
        lines = self._tool_lines.feed(data)
        if not data:
            self._child.close_output()
            self._moved = now
            lines += [rest] if (rest := self._tool_lines.rest()) is not None else []
        if self._tool_lines.over or any(isinstance(line, TooLong) for line in lines):
            self._wrong = f"wrote a line of more than {TOOL_LINE_BYTES_MAX:,} bytes"
            return
        before = self._gate.unanswered
        for line in lines:
            self._act(self._gate.from_tool(line, now), now)
        if self._gate.unanswered < before:
            self._moved = now

    def _hear_owner(self, ready: dict[int, int], now: float) -> None:
        if self._owner:
            for number, verdict in self._owner.said(self._owner.fd in ready, now):
                self._answer(number, verdict, now)

    def _answer(self, number: int, verdict: str, now: float) -> None:
        if self._owner:
            self._owner.withdraw(number)
        self._act(self._gate.answer(number, verdict, now), now)

    def _act(self, actions: Sequence[Action], now: float) -> None:
        for action in actions:
            if isinstance(action, ToTool):
                self._pass_on(action.line)
            elif isinstance(action, ToClient):
                self._to_client.put(action.line)
            elif isinstance(action, Ask):
                self._ask(action, now)
            elif isinstance(action, Withdraw):
                if self._owner:
                    self._owner.withdraw(action.number)
            elif isinstance(action, Check):
                self._checks.append(action)
            else:
                self._records.append(action)

    def _pass_on(self, line: bytes) -> None:
        """To the tool; to a service that is found first, where the one before is lost or has other folders."""
        if self._is_moved():
            self._child.end()
            self._lost = True
        if self._lost:
            self._find()
        if self._child.sink >= 0:
            self._to_tool.put(line)

    def _lose(self, now: float) -> None:
        """The service has ended under the session: what it had waits for another, or is answered."""
        self._child.end()
        self._lost = True
        self._to_tool.clear()
        self._tool_lines = Lines(TOOL_LINE_BYTES_MAX, ends=True)
        self._act(self._gate.lost(now), now)
        if self._gate.again():
            self._find()

    def _is_moved(self) -> bool:
        """Whether a folder of the agent was put in another's place: the engine holds the one that was there."""
        if self._service is None or self._lost or self._gate.unanswered > 1:
            return False
        return not self._service.is_in_place()

    def _find(self) -> None:
        """The session goes on with a service that is found, or started, and opened as the client had it."""
        assert self._service
        try:
            self._child = self._service.session(self._gate.opening())
        except Given:
            return  # whoever would be told is gone
        except LinkError as error:
            self._wrong = self._wrong or str(error)
            return
        self._lost = False
        for line in self._gate.again():
            self._to_tool.put(line)

    def _go_on(self, seconds: float, fds: tuple[int, ...]) -> bool:
        """Waits so long, or until one of these can be read. False where a signal has come, or the client is gone."""
        poll = select.poll()
        for fd in (self._signals.fd, *fds):
            poll.register(fd, select.POLLIN)
        poll.register(1, 0)
        ready = dict(poll.poll(seconds * 1000 + 1))
        if self._signals.fd in ready:
            self._signals.drain()
        self._gone = self._gone or bool(ready.get(1, 0) & (_GONE | select.POLLHUP))
        return not (self._gone or self._signals.told)

    def _ask(self, ask: Ask, now: float) -> None:
        try:
            if self._owner is None:
                from lnk.agent.asks import Owner  # 0.3 MB, which most sessions do without

                assert self._folder is not None
                self._owner = Owner(self._folder, self._tool.name)
            waiting = self._owner.put(ask, now)
        except OSError as error:
            tell(f"The owner could not be asked about a call of {self._tool.name}: {error.strerror or error}.")
            self._answer(ask.number, UNASKED, now)
            return
        if waiting:
            tell(f"{waiting.call} of {self._tool.name} waits for you: `lnk agent answer {waiting.id} allow`, or deny.")

    def _write_tool(self, now: float) -> None:
        try:
            while self._to_tool.size:
                self._to_tool.write(self._child.write)
                self._got_on(now)
        except BlockingIOError:
            return
        except OSError:  # it reads no more, and most likely has ended
            self._to_tool.clear()
            self._child.close_input()
        if self._input_over and not self._pending:
            self._child.close_input()

    def _write_client(self, now: float) -> None:
        try:
            while self._to_client.size and not self._gone:
                self._to_client.write(self._write)
                if self._gate.unanswered:
                    self._moved = now
        except BlockingIOError:
            return
        except OSError:
            self._gone = True

    def _log(self) -> None:
        """Behind what is written: nobody waits for it."""
        for check in self._checks:
            records = self._gate.checked(check)
            if records is None:
                self._wrong = "wrote an answer that can be taken for another"
            self._act(records or [], check.now)
        self._checks.clear()
        if self._records and self._journal:
            offset = time.time() - time.monotonic()
            for record in self._records:
                self._journal.write(_logged(self._tool.name, record, offset))
        self._records.clear()

    # -------------------------------------------------------- the end

    def _finish(self) -> int:
        """Whoever can be told is told why it is over, and the tool ends. The exit status."""
        told = self._signals.told
        if told:
            self._child.tell_to_end()
            self._wait_for_end(TOLD_S)
        elif self._gone:
            self._child.close_input()
            self._child.close_output()
            self._wait_for_end(END_S)
        how = self._child.end()
        why = "" if told or self._gone else self._why(how)
        now = time.monotonic()
        answer = why or f"The session with the tool {self._tool.name} ended before it answered; start it again."
        self._act(self._gate.close(None if self._gone else answer, now), now)
        self._log()
        self._flush()
        if self._owner:
            self._owner.close()
        if self._gate.dropped:
            tell(f"{self._gate.dropped:,} lines of the tool {self._tool.name} answered nothing, and were dropped.")
        if told:
            return _SIGNALLED + told
        if why:
            tell(why)
        return Unavailable.status if why else 0

    def _flush(self) -> None:
        """What waits for the client is written, so far as it reads that within `END_S`."""
        until = time.monotonic() + END_S
        poll = select.poll()
        poll.register(1, select.POLLOUT)
        self._write_client(0.0)
        while self._to_client.size and not self._gone and (left := until - time.monotonic()) > 0:
            poll.poll(left * 1000 + 1)
            self._write_client(0.0)

    def _why(self, how: str) -> str:
        """What the tool did that ended the session; empty where its client did."""
        name = self._tool.name
        if self._wrong:
            return (
                self._wrong if self._lost else f"The tool {name} {self._wrong}, and was ended; start the session again."
            )
        if self._input_over or self._hung:
            return "" if self._ended else f"The tool {name} did not end within {END_S:g} s of its input, and was ended."
        if self._ended:
            return f"The tool {name} ended by itself ({how}); start the session again."
        return f"The tool {name} closed its input or output, and was ended; start the session again."

    def _wait_for_end(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._signals.fd, select.POLLIN)
        while not self._child.has_ended() and (left := until - time.monotonic()) > 0:
            poll.poll(left * 1000 + 1)
            self._signals.drain()


def _logged(tool: str, record: Record, offset: float) -> dict[str, Any]:
    """A record as it is written: sizes, names and times, never text. `offset` makes its seconds those since 1970."""
    found: dict[str, Any] = {"time": format_time(record.began + offset), "tool": tool, "call": record.call}
    if record.thread:
        found["thread"] = record.thread
    found |= {"arguments": record.arguments, "outcome": record.outcome}
    if record.tool_s is not None:
        found["ms"] = round(record.tool_s * 1000, 1)
    if record.owner_s is not None:
        found["waited_ms"] = round(record.owner_s * 1000, 1)
    return found
