"""`lnk agent tool run`: real tools, good and bad, behind the real proxy, spoken to over real pipes."""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from conftest import LNK, Person, as_from_a_terminal
from ends.faults import soon
from lnk.agent import bridge
from lnk.agent.toolfolder import open_lock, sessions
from lnk.agent.tools import Tool, Tools

PIPE_BYTES = 1 << 16
WAIT_S = 20.0  # bounds a wait that is over at once where all is well
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

TOOL = """
import json, os, signal, sys, time

def say(value):
    sys.stdout.write(json.dumps(value) + "\\n")
    sys.stdout.flush()

def result(number, text="done", **more):
    say({"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": text}], **more}})

def asked():
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "initialize":
            info = {"name": "tool", "version": "1"}
            version = message["params"]["protocolVersion"]
            say({"jsonrpc": "2.0", "id": message["id"], "result": {
                "protocolVersion": version, "serverInfo": info, "capabilities": {"tools": {}}}})
        elif message.get("method") == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("search", "delete")]
            say({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": tools}})
        elif message.get("method") == "server/discover":
            say({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}})
        elif "id" in message:
            yield message["id"], (message.get("params") or {}).get("arguments") or {}

"""
ECHO = "for number, arguments in asked(): result(number, json.dumps(arguments))\n"


def call(number: Any, name: str = "search", **arguments: Any) -> bytes:
    params = {"name": name, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode() + b"\n"


class Wire:
    """A session with a tool, spoken to in bytes."""

    def __init__(self, person: Person, name: str, errors: Path, **more: Any) -> None:
        self._errors = errors
        with errors.open("wb") as log:
            self.process = subprocess.Popen(
                [LNK, "agent", "tool", "run", name],
                **{
                    "stdin": subprocess.PIPE,
                    "stdout": subprocess.PIPE,
                    "preexec_fn": as_from_a_terminal,
                    **more,
                },
                stderr=log,
                env=person.environment,
                bufsize=0,
            )
        self._held = b""

    def send(self, *lines: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"".join(lines))

    def line(self) -> dict[str, Any]:
        """The next line that the client gets."""
        assert self.process.stdout
        while b"\n" not in self._held:
            assert select.select([self.process.stdout], [], [], WAIT_S)[0], f"nothing came: {self.said()}"
            part = os.read(self.process.stdout.fileno(), 1 << 20)
            assert part, f"it ended: {self.said()}"
            self._held += part
        found, _, self._held = self._held.partition(b"\n")
        return json.loads(found)

    def rest(self) -> list[dict[str, Any]]:
        """What else comes until the end of the session, without more being sent."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        data = self._held
        while part := os.read(self.process.stdout.fileno(), 1 << 20):
            data += part
        return [json.loads(each) for each in data.splitlines()]

    def ended(self) -> int:
        return self.process.wait(WAIT_S)

    def said(self) -> str:
        return self._errors.read_text()


Open = Callable[..., Wire]


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.fixture
def opened(person: Person, tmp_path: Path) -> Iterator[Open]:
    """Defines a tool that is the script given, and opens a session with it."""
    wires: list[Wire] = []

    def start(script: str, name: str = "notes", **more: Any) -> Wire:
        file = tmp_path / f"{name}.py"
        file.write_text(TOOL + script)
        Tools(str(person.link)).add(Tool(name=name, argv=[sys.executable, str(file)], allow=["search"]))
        wires.append(Wire(person, name, tmp_path / f"{name}{len(wires)}.err", **more))
        return wires[-1]

    yield start
    for wire in wires:
        wire.process.kill()
        wire.process.wait()
        for pipe in (wire.process.stdin, wire.process.stdout):
            if pipe:
                pipe.close()


def log_of(person: Person, name: str = "notes") -> list[tuple[str, str]]:
    return [(each["call"], each["outcome"]) for each in Tools(str(person.link)).log(name, 1000)]


def processes_of(file: Path) -> list[int]:
    """The processes that run this script, as it was written into the test's own folder."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(file) in words:
            found.append(int(number))
    return found


# ------------------------------------------------------------ a good tool


@pytest.mark.requirement("NAME-3", "CONTRACT-12")
@pytest.mark.parametrize("size", [1, 5_000, 70_000, 300_000])
def test_a_call_and_its_answer_pass_whole(opened: Open, person: Person, size: int):
    wire = opened(ECHO)
    wire.send(call(1, text="ü" * (size // 2)))
    assert json.loads(wire.line()["result"]["content"][0]["text"]) == {"text": "ü" * (size // 2)}
    assert wire.rest() == []
    assert (wire.ended(), wire.said()) == (0, "")
    assert log_of(person) == [("search", "ok")]


@pytest.mark.requirement("NAME-3")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_that_is_not_ours_uses_a_tool_through_the_proxy(opened: Open, person: Person, mode: str):
    opened(ECHO)
    server = StdioServerParameters(command=LNK, args=["agent", "tool", "run", "notes"], env=person.environment)

    async def use() -> tuple[list[str], str]:
        async with Client(stdio_client(server), mode=mode) as client:
            tools = await client.list_tools()
            answer = await client.call_tool("search", {"query": "lease"})
            return [tool.name for tool in tools.tools], answer.content[0].text

    with anyio.from_thread.start_blocking_portal() as portal:
        assert portal.call(use) == (["search", "delete"], '{"query": "lease"}')
    assert ("search", "ok") in log_of(person)


@pytest.mark.parametrize("kind", ["socket", "file"])
def test_a_session_runs_over_whatever_it_is_given(opened: Open, tmp_path: Path, kind: str):
    import socket

    if kind == "socket":
        ours, theirs = socket.socketpair()
        with ours, theirs:
            wire = opened(ECHO, stdin=theirs, stdout=theirs)
            theirs.close()
            ours.settimeout(WAIT_S)
            ours.sendall(call(1, text="x" * 300_000))
            ours.shutdown(socket.SHUT_WR)
            data = b""
            while part := ours.recv(1 << 16):
                data += part
    else:
        (tmp_path / "in").write_bytes(call(1, text="x" * 300_000))
        with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as sink:
            wire = opened(ECHO, stdin=source, stdout=sink)
            assert wire.ended() == 0
        data = (tmp_path / "out").read_bytes()
    assert wire.ended() == 0
    assert len(json.loads(data)["result"]["content"][0]["text"]) == 300_012


def test_calls_that_were_written_before_the_input_ended_are_answered(opened: Open):
    wire = opened("for number, _ in asked(): time.sleep(0.01); result(number)\n")
    wire.send(*(call(number) for number in range(200)))
    assert [each["id"] for each in wire.rest()] == list(range(200))
    assert wire.ended() == 0


def test_answers_in_another_order_find_their_calls(opened: Open):
    wire = opened(
        "held = list(zip(asked(), range(3)))\nfor (number, _), _ in held[::-1]: result(number, str(number))\n"
    )
    wire.send(call("a"), call(2), call("c"))
    wire.process.stdin.close()
    found = {}
    for _ in range(3):
        answer = wire.line()
        found[answer["id"]] = answer["result"]["content"][0]["text"]
    assert found == {"a": "a", 2: "2", "c": "c"}


def test_two_tools_and_two_agents_at_once_do_not_cross(opened: Open, person: Person):
    wires = [opened(f"for number, a in asked(): result(number, '{name} ' + a['of'])\n", name) for name in ("a", "b")]
    wires += [Wire(person, name, person.root / f"{name}2.err") for name in ("a", "b")]
    for number in range(50):
        for at, wire in enumerate(wires):
            wire.send(call(number, of=str(at)))
    for number in range(50):
        for at, wire in enumerate(wires):
            answer = wire.line()
            assert (answer["id"], answer["result"]["content"][0]["text"]) == (number, f"{'abab'[at]} {at}")
    for wire in wires:
        assert wire.rest() == []
        assert wire.ended() == 0
    assert len(log_of(person, "a")) == len(log_of(person, "b")) == 100


# ------------------------------------------------------------ bad tools


@pytest.mark.parametrize(
    ("end", "how"), [("sys.exit(3)", "status 3"), ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9")]
)
def test_a_tool_that_dies_is_said_in_answer_to_what_it_had(opened: Open, person: Person, end: str, how: str):
    wire = opened(f"for number, a in asked():\n    if a: {end}\n")
    wire.send(call(1), call(2, die=True))
    answers = [wire.line(), wire.line()]
    assert [each["id"] for each in answers] == [1, 2]
    assert all("ended by itself" in each["error"]["message"] and how in each["error"]["message"] for each in answers)
    assert wire.ended() == 15
    assert wire.said() == f"lnk: The tool notes ended by itself ({how}); start the session again.\n"
    assert log_of(person) == [("search", "unanswered")] * 2


@LINUX
def test_a_tool_that_hangs_at_the_end_is_ended_with_all_that_it_started(opened: Open, tmp_path: Path):
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.fork()\nfor number, _ in asked(): result(number)\n"
    wire = opened(script + "while True: time.sleep(60)\n")
    wire.send(call(1))
    wire.line()
    assert len(processes_of(tmp_path / "notes.py")) == 2
    wire.process.stdin.close()
    assert wire.ended() == 15
    assert "did not end" in wire.said()
    assert soon(lambda: processes_of(tmp_path / "notes.py") == [])


def test_a_tool_whose_client_is_gone_ends_by_itself(opened: Open, tmp_path: Path):
    wire = opened(ECHO + "open(os.path.dirname(sys.argv[0]) + '/ended', 'w')\n")
    wire.send(call(1))
    wire.line()
    wire.process.stdout.close()
    assert wire.ended() == 0
    assert (tmp_path / "ended").exists()


def test_a_tool_that_is_heard_no_more_is_ended_though_its_client_goes_on(opened: Open):
    wire = opened("for number, _ in asked():\n    result(number); os.close(1)\n    while True: time.sleep(60)\n")
    wire.send(call(1))
    wire.line()
    wire.send(call(2))
    assert "closed its input or output" in wire.line()["error"]["message"]
    assert wire.ended() == 15


@LINUX
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_proxy_that_is_ended_leaves_no_tool(opened: Open, tmp_path: Path, number: signal.Signals):
    wire = opened("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ECHO + "while True: time.sleep(60)\n")
    wire.send(call(1))
    wire.line()
    wire.process.send_signal(number)
    assert wire.ended() in (-9, 128 + number)
    assert soon(lambda: processes_of(tmp_path / "notes.py") == [])


def test_an_answer_that_nobody_waits_for_does_not_reach_the_client(opened: Open):
    wire = opened(
        "for number, _ in asked():\n    result(99, 'unasked')\n    result(number)\n    result(number, 'again')\n"
        "    print('listening on port 1', flush=True)\n    result('end')\n"
    )
    wire.send(call(1), call("end"))
    assert [(each["id"], each["result"]["content"][0]["text"]) for each in wire.rest()] == [
        (1, "done"),
        ("end", "done"),
    ]
    assert wire.ended() == 0
    assert "lines of the tool notes answered nothing" in wire.said()


def test_a_long_answer_that_can_be_taken_for_another_ends_the_tool(opened: Open):
    wire = opened(
        "for number, _ in asked():\n"
        '    print(\'{"jsonrpc":"2.0","id":%d,"result":{"a":"%s"},"id":9}\' % (number, \'x\' * 9000), flush=True)\n'
    )
    wire.send(call(1), call(2))
    assert wire.ended() == 15
    assert "can be taken for another" in wire.said()


def test_an_endless_line_ends_the_tool_and_takes_no_memory(opened: Open):
    wire = opened(
        "import resource\nfor number, _ in asked():\n    while True: sys.stdout.write('x' * 65536)\n",
        preexec_fn=_little_memory,
    )
    wire.send(call(1))
    assert "more than 16,777,216 bytes" in wire.line()["error"]["message"]
    assert wire.ended() == 15


def _little_memory() -> None:
    import resource

    as_from_a_terminal()
    resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))


FLOOD = """
for number, _ in asked():
    while True: say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 5000}})
"""


@LINUX
def test_a_tool_that_floods_is_held_back_while_the_client_does_not_read(opened: Open, person: Person):
    wire = opened(FLOOD)
    wire.send(call(1))
    assert wire.line()["method"] == "notifications/message"
    before = _private_kb(wire.process.pid)
    assert soon(lambda: _unread(wire.process.stdout) > PIPE_BYTES // 2 and _waits(wire.process.pid))
    assert _private_kb(wire.process.pid) - before < 2048
    for _ in range(2000):
        assert wire.line()["method"] == "notifications/message"
    wire.process.stdout.close()
    assert wire.ended() == 0
    assert log_of(person) == [("search", "unanswered")]


@LINUX
def test_a_client_that_writes_and_never_reads_is_held_back_too(opened: Open):
    wire = opened(ECHO)
    os.set_blocking(wire.process.stdin.fileno(), False)
    lines, sent = call(1)[:-1] * 3 + b"\n" + b"junk\n" * 20_000, 0
    for _ in range(2000):
        if not select.select([], [wire.process.stdin], [], 0.5)[1]:
            break
        sent += os.write(wire.process.stdin.fileno(), lines) or 0
    assert sent < 8 << 20
    assert _private_kb(wire.process.pid) < 16 << 10


def _private_kb(pid: int) -> int:
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(row.split()[1]) for row in rows if row.startswith("Private_"))


def _unread(pipe: Any) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def _waits(pid: int) -> bool:
    """Whether the process sleeps."""
    return "State:\tS" in Path(f"/proc/{pid}/status").read_text()


LONG_ANSWER = "for number, _ in asked():\n    result(number, 'x' * 1_000_000)\n    time.sleep(60)\n"


@LINUX
def test_what_is_logged_at_the_end_does_not_wait_for_a_client_that_still_reads(opened: Open, person: Person):
    wire = opened(LONG_ANSWER)
    wire.send(call(1), call(2))
    assert soon(lambda: _unread(wire.process.stdout) > PIPE_BYTES // 2)
    wire.process.send_signal(signal.SIGTERM)
    assert soon(lambda: log_of(person) == [("search", "ok"), ("search", "unanswered")])
    assert [each["id"] for each in wire.rest()] == [1, 2]
    assert wire.ended() == 128 + signal.SIGTERM


@LINUX
def test_a_client_that_reads_by_crumbs_does_not_keep_a_session_that_is_over(opened: Open):
    wire = opened(LONG_ANSWER)
    wire.send(call(1), call(2))
    assert soon(lambda: _unread(wire.process.stdout) > PIPE_BYTES // 2)
    wire.process.send_signal(signal.SIGTERM)
    for _ in range(20):  # of some 240, in which it would have read all of it
        with contextlib.suppress(subprocess.TimeoutExpired):
            wire.process.wait(0.5)
            break
        os.read(wire.process.stdout.fileno(), 4096)
    assert wire.process.poll() == 128 + signal.SIGTERM


# ------------------------------------------------------------ who started it


@LINUX
@pytest.mark.requirement("SANDBOX-1")
@pytest.mark.parametrize("sandboxed", [False, True])
def test_a_tool_has_no_descriptor_of_the_client_s(person: Person, tmp_path: Path, sandboxed: bool):
    person.write("person/secret", "secret")
    file = tmp_path / "tool.py"
    file.write_text(
        TOOL + "for number, given in asked():\n"
        "    left = f'/proc/self/fd/{given[\"fd\"]}/'\n"
        "    found = [os.path.exists(left + path) for path in ('secret', '../person/secret')]\n"
        "    result(number, json.dumps([found, sorted(os.listdir('/proc/self/fd'))]))\n"
    )
    inside = [LNK, "sandbox", "run", "--read", str(file), "--"] if sandboxed else []
    Tools(str(person.link)).add(Tool(name="notes", argv=[*inside, sys.executable, str(file)], allow=["search"]))
    leaked = os.open(person.home, os.O_RDONLY)
    wire = Wire(person, "notes", tmp_path / "err", pass_fds=(leaked,))
    os.close(leaked)
    with wire.process:
        try:
            wire.send(call(1, fd=leaked))
            answer = json.loads(wire.line()["result"]["content"][0]["text"])
            assert answer == [[False, False], ["0", "1", "2", "3"]]  # the last one lists them
        finally:
            wire.process.kill()


@LINUX
def test_a_session_that_is_just_starting_is_found_and_ended(person: Person, tmp_path: Path):
    link = str(person.link)
    Tools(link).add(Tool(name="notes", argv=[sys.executable]))
    folder = os.open(person.link / "Agents/.tools/notes", os.O_RDONLY)
    lock = open_lock(folder)
    argv = [sys.executable, "-c", held_up("proxy"), link, "notes"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert soon(lambda: sessions(lock) == [process.pid])
            assert bridge.stop(link, "notes") == 1
            assert process.wait(60) == -signal.SIGTERM
        finally:
            process.kill()
    os.close(lock)
    os.close(folder)


def held_up(module: str) -> str:
    """The program of that module as it is, but that it reads what the tool runs only once its input ends."""
    return (
        f"import os, sys\nfrom lnk.agent import {module} as it\nread = it.read_definition\n"
        "it.read_definition = lambda *given: [os.read(0, 1), read(*given)][1]\nsys.exit(it.main(sys.argv[1:]))\n"
    )


def test_a_definition_that_is_no_file_of_the_owners_is_refused_at_once(opened: Open, person: Person):
    Tools(str(person.link)).add(Tool(name="notes", argv=[sys.executable]))
    definition = person.link / "Agents/.tools/notes/tool.json"
    kept = json.loads(definition.read_bytes())
    for wrong in ({"allow": "search"}, {"argv": ["/bin/cat", "a\0b"]}, {"argv": ["/bin/\ud800"]}, {"name": "other"}):
        definition.write_text(json.dumps({**kept, **wrong}))
        assert "define it again" in person.refused(16, "agent", "tool", "run", "notes")
    definition.unlink()
    os.mkfifo(definition)
    assert "no file of yours" in person.refused(11, "agent", "tool", "run", "notes")


# ------------------------------------------------------------ what is refused


def test_a_tool_that_is_stopped_gone_or_not_there_is_said_in_one_sentence(opened: Open, person: Person):
    tools = Tools(str(person.link))
    tools.add(Tool(name="stopped", argv=[sys.executable], stopped=True))
    tools.add(Tool(name="gone", argv=["/not/there"]))
    (person.link / "Agents/.tools/stopped2").mkdir()
    assert "is stopped" in person.refused(11, "agent", "tool", "run", "stopped")
    assert "/not/there" in person.refused(12, "agent", "tool", "run", "gone")
    assert "no tool 'stopped2'" in person.refused(12, "agent", "tool", "run", "stopped2")
    assert "no tool's name" in person.refused(10, "agent", "tool", "run", "../x")


def test_a_log_that_cannot_be_written_is_said_once_and_calls_go_on(opened: Open, person: Person):
    wire = opened(ECHO)
    log = person.link / "Agents/.tools/notes/log.jsonl"
    log.mkdir()
    wire.send(call(1), call(2))
    assert [wire.line()["id"], wire.line()["id"]] == [1, 2]
    assert wire.rest() == []
    assert wire.said().count("log.jsonl cannot be written") == 1


def test_the_program_of_a_session_loads_the_standard_library_alone(opened: Open):
    if sys.platform != "linux":
        pytest.skip("looks into /proc")
    wire = opened(ECHO)
    wire.send(call(1))
    wire.line()
    maps = Path(f"/proc/{wire.process.pid}/maps").read_text()
    assert "site-packages" not in maps and "_ctypes" not in maps and "libcrypto" not in maps
