"""The engine's program as it serves many agents, and connections to it, each spoken to line by line."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from conftest import Place, as_from_a_terminal
from lnk.mcp.protocol import CAPABILITIES_META, MODERN, VERSION_META
from lnk.memory.index import LOCK
from lnk.sockets import connect

WAIT_S: Final = 60.0  # bounds a wait that is over at once where all is well
PUSH_S: Final = 0.2  # where nothing is taken for so long, it is because no answer is read
META: Final = {VERSION_META: MODERN[0], CAPABILITIES_META: {}}
# The program itself, with some of its constants other than they are: NAME of `sources` or `many` = seconds.
SHORTER: Final = """\
import json, sys
from lnk.service import many, program, sources
for name, value in json.loads(sys.argv.pop(1)).items():
    for module in (many, sources):
        if hasattr(module, name):
            setattr(module, name, value)
sys.exit(program.main())
"""


class Connection:
    """One connection: bytes are written to it, and lines read."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self._held = b""
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.stream.close()

    def send(self, data: bytes) -> None:
        """All of it; what is answered meanwhile is kept."""
        rest = memoryview(data)
        while rest:
            readable, writable, _ = select.select([self.stream], [self.stream], [], WAIT_S)
            assert readable or writable, "the engine neither reads nor writes"
            if readable:
                self._read()
            if writable:
                with contextlib.suppress(BlockingIOError):
                    rest = rest[self.stream.send(rest, socket.MSG_DONTWAIT) :]

    def push(self, data: bytes) -> int:
        """As much of it as is taken while no answer is read. How much that was, in bytes."""
        done = 0
        while done < len(data) and select.select([], [self.stream], [], PUSH_S)[1]:
            with contextlib.suppress(BlockingIOError):
                done += self.stream.send(data[done : done + (1 << 16)], socket.MSG_DONTWAIT)
        return done

    def forget(self) -> None:
        """What came so far is not looked at."""
        self._held = b""

    def _read(self) -> bool:
        try:
            part = self.stream.recv(1 << 20)
        except ConnectionResetError:
            part = b""
        self._held += part
        return bool(part)

    def line(self) -> bytes:
        """The next line, LF not included; empty where the connection is closed."""
        while b"\n" not in self._held:
            assert select.select([self.stream], [], [], WAIT_S)[0], "no line came"
            if not self._read():
                assert not self._held, "no line is written in part"
                return b""
        line, _, self._held = self._held.partition(b"\n")
        return line

    def message(self) -> dict[str, Any]:
        """The next line as JSON."""
        line = self.line()
        assert line, "the connection is closed"
        return dict(json.loads(line))

    def is_ready(self) -> bool:
        """Whether something came."""
        return b"\n" in self._held or bool(select.select([self.stream], [], [], 0)[0])

    def is_closed(self) -> bool:
        """Whether it ends with nothing more said."""
        return self.line() == b""

    def hello(self, agent: str) -> dict[str, Any]:
        """What the first line is answered."""
        self.send(line(agent=agent))
        return self.message()

    def request(self, method: str, params: Mapping[str, Any] | None = None, number: str | int | None = None) -> bytes:
        """A request's line, in the stateless era; `self.number` is its id."""
        self._number += 1
        self.number = f"n{self._number}" if number is None else number
        return line(jsonrpc="2.0", id=self.number, method=method, params={"_meta": META, **(params or {})})

    def calling(self, name: str, number: str | int | None = None, **arguments: object) -> bytes:
        """A call's line."""
        return self.request("tools/call", {"name": name, "arguments": arguments}, number)

    def answer(self, number: str | int) -> dict[str, Any]:
        """The answer to that id; what else comes before it is left."""
        while (message := self.message()).get("id") != number or "method" in message:
            pass
        return message

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self.send(self.request(method, params))
        return self.answer(self.number)

    def call(self, name: str, **arguments: object) -> dict[str, Any]:
        """What a call is answered, where that is no refusal."""
        found = self.ask("tools/call", {"name": name, "arguments": arguments})
        assert not found["result"].get("isError"), found
        return dict(found["result"]["structuredContent"])

    def paths(self, query: str) -> list[str]:
        """What a search finds."""
        return [each["path"] for each in self.call("search", query=query)["results"]]

    def taken(self) -> None:
        """Waits until all that was sent is taken: the loop answers a ping by itself, behind nothing."""
        self.send(line(jsonrpc="2.0", id="ping", method="ping"))
        self.answer("ping")

    def settled(self) -> None:
        """Waits until everything that is there is indexed."""
        while "indexed" in self.call("list", tokens=50):
            pass


class Served:
    """`serve-many` for some agents, by itself, with the folder that its socket is in. Use as a context."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places: dict[str, Place] = {}
        self.folder = tempfile.mkdtemp(prefix="lnk-")  # short, and others can go as far as to it
        self.path = f"{self.folder}/engine.sock"
        self.agents = root / "agents.json"
        self.log = root / "log.txt"
        self._programs: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._connections:
            each.close()
        for process in self._programs:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder)

    def add(self, *agents: str) -> None:
        """Each with a document that holds its own word, `<agent>berry`, and one that all have."""
        for agent in agents:
            place = self.places[agent] = Place(self.root / agent)
            place.write(f"memory/of-{agent}.md", f"# Berries\n\nThe {agent}berry is ripe, and so is the plum.\n")

    def write(self, **more: dict[str, Any]) -> Path:
        """`<agents>`, those of `more` among them."""
        served = {agent: {"argv": place.argv()} for agent, place in self.places.items()}
        self.agents.write_text(json.dumps({**served, **more}))
        return self.agents

    def start(self, *flags: str, shorter: Mapping[str, float] | None = None, **more: Any) -> subprocess.Popen[bytes]:
        """The program, once it listens. `shorter`: what it waits for, in seconds."""
        process = self.begin(*flags, shorter=shorter, **more)
        self.found()
        return process

    def begin(self, *flags: str, shorter: Mapping[str, float] | None = None, **more: Any) -> subprocess.Popen[bytes]:
        if not self.agents.exists():
            self.write()
        argv = [sys.executable, "-P", "-c", SHORTER, json.dumps(shorter or {})]
        return self.run([*argv, "serve-many", self.path, str(self.agents), *flags], **more)

    def run(self, argv: list[str], **more: Any) -> subprocess.Popen[bytes]:
        """A program that is ended after the test; what it says is in `log`."""
        with self.log.open("ab") as log:
            more = {"stdin": subprocess.DEVNULL, "stderr": log, "preexec_fn": as_from_a_terminal, **more}
            self._programs.append(subprocess.Popen(argv, **more))
        return self._programs[-1]

    @property
    def pid(self) -> int:
        return self._programs[-1].pid

    def found(self) -> None:
        """Waits until somebody listens."""
        until = time.monotonic() + WAIT_S
        while not os.path.exists(self.path):
            assert self._programs[-1].poll() is None, self.log.read_text()
            assert time.monotonic() < until, "nobody listens"
            os.sched_yield()

    def connect(self) -> Connection:
        """A connection on which nothing is said. Raises OSError."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            stream = socket.socket(fileno=connect(folder, self.folder, os.path.basename(self.path)).detach())
        finally:
            os.close(folder)
        stream.setblocking(True)
        self._connections.append(Connection(stream))
        return self._connections[-1]

    def session(self, agent: str) -> Connection:
        """A session of that agent."""
        found = self.connect()
        assert found.hello(agent) == {"ok": True}
        return found

    def ended(self, status: int = 0) -> None:
        """The last program has ended, or does now, and nothing of it is left."""
        assert self._programs[-1].wait(WAIT_S) == status, self.log.read_text()
        assert os.listdir(os.path.dirname(self.path)) == []

    def has(self) -> tuple[int, int]:
        """How many descriptors and threads the process has."""
        return (
            len(os.listdir(f"/proc/{self.pid}/fd")),
            len(os.listdir(f"/proc/{self.pid}/task")),
        )

    def memory(self) -> int:
        """The most memory that it had so far, in KiB."""
        rows = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(row.split()[1] for row in rows if row.startswith("VmHWM:")))


def line(**keys: object) -> bytes:
    return json.dumps(keys).encode() + b"\n"


@contextmanager
def held_up(place: Place) -> Iterator[None]:
    """As long as this lasts, the agent's calls wait: whoever would bring its index up to date does not get to."""
    fd = os.open(place.state / LOCK, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        place.write("memory/new.md", "# New\n\nA change, which the index is to be brought up to.\n")
        yield
    finally:
        os.close(fd)


@contextmanager
def unopened(place: Place) -> Iterator[None]:
    """As long as this lasts, the agent's engine does not get to open its index, which is made one at a time."""
    place.state.mkdir(parents=True, exist_ok=True)
    fd = os.open(place.state, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def times(do: Callable[[], object], rounds: int) -> list[float]:
    """How long each took, in seconds, the shortest first."""
    found = []
    for _ in range(rounds):
        began = time.monotonic()
        do()
        found.append(time.monotonic() - began)
    return sorted(found)
