"""Raw lines over the pipes of the engine's real program: whatever comes, the session goes on, and stays small."""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import SIGNALS, Place, as_from_a_terminal
from lnk.memory.index import LOCK

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
ANSWER_WAIT_S = 60  # bounds a wait that is over at once where all is well
END_WAIT_S = 10  # the same; the engine itself ends within 2 s
PIPE_BYTES = 1 << 16

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META = {VERSION: "2026-07-28", CAPABILITIES: {}}
THREAD = "link.local/thread"


class Wire:
    """The engine's program, spoken to in bytes. Each line that it writes is checked to be JSON-RPC."""

    def __init__(self, argv: list[str], errors: Path, **more: Any) -> None:
        self._errors = errors
        with errors.open("ab") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=as_from_a_terminal,
                **more,
            )
        assert self.process.stdin and self.process.stdout
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._held = b""
        self._number = 0

    def send(self, data: bytes) -> None:
        """Write all of `data`, however slowly it is read; what is answered meanwhile is kept."""
        os.set_blocking(self._in, False)
        view = memoryview(data)
        while view:
            readable, writable, _ = select.select([self._out], [self._in], [], ANSWER_WAIT_S)
            assert readable or writable, "the engine neither reads nor writes"
            if readable:
                part = os.read(self._out, 1 << 20)
                assert part, "the engine ended"
                self._held += part
            if writable:
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._in, view) :]

    def push(self, data: bytes) -> int:
        """Write as much of `data` as is taken while nothing is read of the answers. How much that was."""
        os.set_blocking(self._in, False)
        done = 0
        while done < len(data):
            _, writable, _ = select.select([], [self._in], [], 1.0)
            if not writable:
                break
            with contextlib.suppress(BlockingIOError):
                done += os.write(self._in, data[done : done + PIPE_BYTES])
        return done

    def message(self, wait_s: float = ANSWER_WAIT_S) -> dict[str, Any]:
        """The next line that the engine writes."""
        while b"\n" not in self._held:
            ready, _, _ = select.select([self._out], [], [], wait_s)
            assert ready, f"no answer; {self.said_aside()}"
            part = os.read(self._out, 1 << 20)
            assert part, f"the engine ended with {self.process.wait()}; {self.said_aside()}"
            self._held += part
        line, _, self._held = self._held.partition(b"\n")
        return checked(line)

    def request(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> bytes:
        """A request's line, in the stateless era; its id is `self.number`."""
        self._number += 1
        body = {"_meta": META, **(params or {})}
        return line({"jsonrpc": "2.0", "id": f"n{self._number}", "method": method, "params": body, **more})

    @property
    def number(self) -> str:
        return f"n{self._number}"

    def answer(self, data: bytes, number: Any) -> dict[str, Any]:
        """Write `data` and give the answer to the id `number`; what else comes before it is only checked."""
        self.send(data)
        while True:
            message = self.message()
            if "method" not in message and message.get("id") == number:
                return message

    def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        data = self.request(method, params)
        return self.answer(data, self.number)

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a call, whole."""
        return self.ask("tools/call", {"name": name, "arguments": arguments})

    def good(self) -> None:
        """A good call is answered, and right."""
        found = self.call("search", query="gooseberry")
        assert [each["path"] for each in found["result"]["structuredContent"]["results"]] == ["memory/good.md"]

    def status(self, key: str) -> int:
        """A number of the kernel's on the process: VmHWM is its largest memory so far, in KiB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(row.split()[1] for row in text.splitlines() if row.startswith(key + ":")))

    def files(self) -> list[str]:
        """What the process has open."""
        found = []
        for each in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(os.readlink(each))
        return sorted(found)

    def end(self) -> int:
        """Close the input, and read what still comes. The exit status."""
        assert self.process.stdin
        self.process.stdin.close()
        return self.rest()[1]

    def rest(self) -> tuple[list[dict[str, Any]], int]:
        """What still comes until the process ends, and its exit status."""
        data = self._held
        while True:
            ready, _, _ = select.select([self._out], [], [], END_WAIT_S)
            assert ready, "the engine did not end"
            part = os.read(self._out, 1 << 20)
            if not part:
                break
            data += part
        assert data == b"" or data.endswith(b"\n"), "no line is written in part"
        return [checked(each) for each in data.splitlines()], self.process.wait(END_WAIT_S)

    def said_aside(self) -> str:
        """What went to standard error."""
        return self._errors.read_text(errors="replace")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


def line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def checked(data: bytes) -> dict[str, Any]:
    """The message that a line of standard output holds: JSON-RPC, and nothing but it."""
    message = json.loads(data.decode("utf-8"))
    assert isinstance(message, dict) and message["jsonrpc"] == "2.0", data[:200]
    if "method" in message:
        assert message["method"] == "notifications/progress" and "id" not in message, data[:200]
    else:
        assert "id" in message and ("result" in message) != ("error" in message), data[:200]
    return message


def blocks(found: dict[str, Any]) -> str:
    """The text of an answer."""
    (only,) = found["result"]["content"]
    return only["text"]


def code(found: dict[str, Any]) -> int | None:
    return found.get("error", {}).get("code")


@pytest.fixture
def start(place: Place, tmp_path: Path) -> Iterator[Callable[..., Wire]]:
    """Starts the engine over `place`, which has one good document; all are ended after the test."""
    wires: list[Wire] = []
    place.write("memory/good.md", "# Good\n\nA gooseberry grows here.\n")

    def begin(*flags: str, **more: Any) -> Wire:
        wires.append(Wire(place.argv(*flags), tmp_path / "errors.txt", **more))
        return wires[-1]

    yield begin
    for wire in wires:
        wire.stop()


# ------------------------------------------------------------------ lines that are no request

PING = '{"jsonrpc":"2.0","id":%s,"method":"ping"}'
WRONG = {
    "not UTF-8": (b"\xff\xfe", -32700),
    "UTF-16": (("\ufeff" + PING % 1).encode("utf-16"), -32700),
    "not JSON": (b"Content-Length: 52\r", -32700),
    "half of JSON": (b'{"jsonrpc":"2.0","id":1,', -32700),
    "5,000 digits": (b'{"x":' + b"1" * 5_000 + b"}", -32700),
    "5,000 digits as id": ((PING % ("1" * 5_000)).encode(), -32700),
    "100,000 brackets": (b"[" * 100_000, -32700),
    "100,000 objects": (b'{"a":' * 100_000, -32700),
    "an escape that is none": (rb'{"jsonrpc":"2.0","id":1,"method":"\x"}', -32700),
    "two values": (b"1 2", -32700),
    "a line of 1 MiB and one byte": (b" " * (1 << 20) + b"7", -32600),
    "a line of 3 MiB": (b'{"x":"' + b"x" * (3 << 20) + b'"}', -32600),
    "an empty batch": (b"[]", -32600),
    "a batch of 101": (b"[" + b",".join([(PING % 1).encode()] * 101) + b"]", -32600),
    "a number": (b"7", -32600),
    "no version": (b'{"id":1,"method":"ping"}', -32600),
    "id null": ((PING % "null").encode(), -32600),
    "id a fraction": ((PING % "1.5").encode(), -32600),
    "id true": ((PING % "true").encode(), -32600),
    "id an object": ((PING % "{}").encode(), -32600),
    "id 19 digits too far": ((PING % 10**40).encode(), -32600),
    "id of 1,000,000 characters": ((PING % ('"' + "x" * 1_000_000 + '"')).encode(), -32600),
}


def test_each_line_that_is_no_request_is_answered_and_the_next_good_call_too(start):
    """cases mcp-02, mcp-06"""
    wire = start()
    found = {}
    for name, (data, _) in WRONG.items():
        wire.send(data.replace(b"\n", b" ") + b"\n")
        message = wire.message()
        assert message["id"] is None and len(json.dumps(message)) < 1_000, name
        found[name] = code(message)
        wire.good()
    assert found == {name: right for name, (_, right) in WRONG.items()}
    assert wire.end() == 0


def test_empty_lines_and_words_that_ask_nothing_are_left_alone(start):
    wire = start()
    wire.send(b"\n \n\r\n\t\n" + b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    wire.send(b'{"jsonrpc":"2.0","id":9,"result":{}}\n{"jsonrpc":"2.0","method":"no/such"}\n')
    wire.send(wire.request("tools/list"))
    assert wire.message()["id"] == wire.number, "and nothing was written before this"


def test_a_line_in_many_small_pieces_is_one_line(start):
    wire = start()
    data = wire.request("tools/call", {"name": "search", "arguments": {"query": "gooseberry"}})
    for each in data:
        wire.send(bytes([each]))
    assert "gooseberry" in blocks(wire.message())


@LINUX
def test_64_mib_without_an_end_of_line_take_no_memory(start):
    """case mcp-06"""
    wire = start()
    wire.good()
    before = wire.status("VmHWM")
    for _ in range(64):
        wire.send(b"x" * (1 << 20))
    wire.send(b"\n")
    assert code(wire.message()) == -32600
    assert wire.status("VmHWM") - before < 8 * 1024
    wire.good()


@LINUX
def test_large_lines_of_small_things_take_bounded_memory(start):
    """case mcp-06: just under the limit, what JSON makes most of"""
    wire = start()
    wire.good()
    before = wire.status("VmHWM")
    for piece in (b"[],", b"{},", b'"",', b"1.5,", b'{"a":0},'):
        half = piece * ((1 << 19) // len(piece))
        params = b'{"name":"search","arguments":{"query":"x","more":[' + half + b"0]}}"
        wire.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + params + b"}\n")
        assert "error" in wire.message()
        wire.send(b"[" + half + b"0]\n")
        assert code(wire.message()) == -32600
    assert wire.status("VmHWM") - before < 96 * 1024
    wire.good()


def test_a_call_with_a_megabyte_of_words_is_answered(start):
    """Under the limit of a line all is taken, and a query of any length costs no more than its first words."""
    wire = start()
    words = " ".join(f"w{number}" for number in range(120_000))
    for query in (words, "x" * 1_000_000, "gooseberry " * 90_000, "葡萄" * 150_000, "\0" * 150_000, '"' * 400_000):
        found = wire.call("search", query=query)
        assert found["result"].get("isError") or "results" in found["result"]["structuredContent"]
    wire.good()


# ------------------------------------------------------------------ eras and order


def test_a_call_before_the_handshake_is_refused_and_after_it_answered(start):
    """case mcp-06: call before initialize, double initialize"""
    wire = start()
    call = {
        "jsonrpc": "2.0",
        "method": "tools/call",
        "params": {"name": "search", "arguments": {"query": "gooseberry"}},
    }
    found = wire.answer(line({**call, "id": 1}), 1)
    assert code(found) == -32602 and "initialize" in found["error"]["message"]
    begin = {"jsonrpc": "2.0", "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}}}
    for number in (2, 3):
        found = wire.answer(line({**begin, "id": number}), number)
        assert found["result"]["protocolVersion"] == "2025-06-18"
    wire.send(line({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    assert "gooseberry" in blocks(wire.answer(line({**call, "id": 4}), 4))
    wire.good()


@pytest.mark.parametrize("version", ["1999-01-01", "2026-07-28", None, 7, [], "x" * 500_000])
def test_an_unknown_revision_is_answered_in_both_eras(start, version):
    """case mcp-06: unknown protocolVersion"""
    wire = start()
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": version}}
    assert wire.answer(line(begin), 1)["result"]["protocolVersion"] == "2025-11-25"
    if version not in (None, "2026-07-28"):
        found = wire.ask("tools/list", {"_meta": {VERSION: version, CAPABILITIES: {}}})
        assert code(found) == -32022 and "2026-07-28" in found["error"]["data"]["supported"]
        assert len(json.dumps(found)) < 2_000
    wire.good()


@pytest.mark.parametrize("meta", [{}, {VERSION: "2026-07-28"}, {CAPABILITIES: {}}, None, "x", []])
def test_a_missing_meta_field_is_named(start, meta):
    wire = start()
    found = wire.ask("tools/list", {"_meta": meta})
    assert code(found) == -32602 and "_meta field io.modelcontextprotocol/" in found["error"]["message"]
    wire.good()


def test_a_batch_of_calls_is_answered_call_by_call(start):
    """case mcp-06"""
    wire = start()
    calls = [wire.request("tools/call", {"name": "search", "arguments": {"query": "gooseberry"}}) for _ in range(100)]
    wire.send(b"[" + b",".join(each.strip() for each in calls) + b"]\n")
    found = [wire.message() for _ in range(100)]
    assert [each["id"] for each in found] == [f"n{number}" for number in range(1, 101)]
    assert all("gooseberry" in blocks(each) for each in found)


def test_a_cancel_of_an_unknown_id_is_left_alone(start):
    """case mcp-06"""
    wire = start()
    for number in (1, "n1", None, 1.5, True, {}, "x" * 100_000):
        wire.send(cancel(number))
    wire.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled"}\n')
    wire.good()


LARGE = 2_000


@pytest.fixture
def large(place: Place) -> Place:
    """So many documents that the first index takes a while."""
    for number in range(LARGE):
        place.write(
            f"memory/f{number % 30}/n{number}.md", f"# Note {number}\n\n" + f"word{number} in a plum pie\n" * 30
        )
    return place


def test_a_cancelled_call_is_not_answered_and_the_next_one_is(large, start):
    """case mcp-06: the second call waits behind the first, which waits for the first index"""
    wire = start()
    first = wire.request("tools/call", {"name": "search", "arguments": {"query": "plum"}})
    second = wire.request("tools/call", {"name": "search", "arguments": {"query": "gooseberry"}})
    cancelled = wire.number
    third = wire.request("tools/call", {"name": "search", "arguments": {"query": "plum"}})
    wire.send(first + second + cancel(cancelled) + third)
    assert [wire.message()["id"] for _ in range(2)] == ["n1", "n3"]
    assert wire.end() == 0


def test_a_call_that_is_under_way_is_stopped_where_it_is_cancelled(large, start):
    """case mcp-06: its answer does not come, and what is asked next does"""
    wire = start()
    meta = {**META, "progressToken": "p"}
    wire.send(wire.request("tools/call", {"name": "search", "arguments": {"query": "plum"}, "_meta": meta}))
    cancelled = wire.number
    assert wire.message()["method"] == "notifications/progress", "so it is under way"
    wire.send(cancel(cancelled))
    data = wire.request("tools/list")
    wire.send(data)
    seen = []
    while (message := wire.message()).get("id") != wire.number:
        seen.append(message)
    assert all("method" in each for each in seen), "progress may have been on its way; an answer not"
    wire.send(wire.request("tools/call", {"name": "read", "arguments": {"path": "notes.md"}}))
    assert wire.message()["id"] == wire.number


def settled(wire: Wire) -> None:
    while "indexed" in wire.call("list", tokens=50)["result"]["structuredContent"]:
        pass


@contextmanager
def waiting(wire: Wire, place: Place) -> Iterator[str]:
    """The id of a call that is under way as long as the context lasts: it waits for what another process indexes."""
    settled(wire)
    with (place.state / LOCK).open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place.write("memory/new.md", "# New\n\nplum\n")
        arguments = {"name": "search", "arguments": {"query": "plum"}, "_meta": {**META, "progressToken": "p"}}
        wire.send(wire.request("tools/call", arguments))
        assert wire.message()["method"] == "notifications/progress"
        yield wire.number


def cancel(number: Any) -> bytes:
    return line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})


def test_a_call_that_waits_for_the_index_is_given_up_when_it_is_cancelled(place, start):
    """case mcp-06: so that the next call has its turn"""
    wire = start()
    with waiting(wire, place) as number:
        wire.send(cancel(number) + wire.request("tools/call", {"name": "read", "arguments": {"path": "notes.md"}}))
        while "method" in (found := wire.message(END_WAIT_S)):
            pass
        assert found["id"] == wire.number
    wire.good()


@pytest.mark.parametrize("cancelled", [False, True], ids=["wanted", "cancelled"])
def test_the_end_of_input_ends_the_process_though_a_call_waits(place, start, cancelled):
    wire = start()
    with waiting(wire, place) as number:
        if cancelled:
            wire.send(cancel(number))
        assert wire.end() == 0
    assert "Traceback" not in wire.said_aside(), wire.said_aside()


def test_the_list_of_tools_does_not_wait_for_the_first_index(large, start):
    wire = start()
    wire.send(wire.request("tools/call", {"name": "search", "arguments": {"query": "plum"}}))
    wire.send(wire.request("tools/list"))
    assert wire.message()["id"] == "n2"


def test_progress_is_told_while_the_first_index_is_made(large, start):
    wire = start()
    meta = {**META, "progressToken": 7}
    wire.send(wire.request("tools/call", {"name": "list", "arguments": {"tokens": 50}, "_meta": meta}))
    told = []
    while "method" in (message := wire.message()):
        told.append(message["params"])
    assert told, "at least once"
    assert {each["progressToken"] for each in told} == {7}
    assert [each["progress"] for each in told] == sorted({each["progress"] for each in told}), "each more than the last"
    assert {each["total"] for each in told} == {LARGE + 1}
    assert message["id"] == "n1"


# ------------------------------------------------------------------ answers that nobody reads


SMALL = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read","arguments":{"path":"memory/l.md"%s}}}'


def opened(wire: Wire) -> Wire:
    """The handshake made: its requests are the shortest."""
    wire.answer(line({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}), 0)
    return wire


@LINUX
@pytest.mark.parametrize("how", ["by default", "as large as can be", "as large as can be, in batches"])
def test_1000_calls_whose_answers_nobody_reads_take_bounded_memory_and_the_end_of_input_ends_it(place, start, how):
    """case mcp-06: with more answers waiting, the client's lines wait too"""
    place.write("memory/l.md", "".join(f'{n} "quoted\\" \U0001f600 葡萄\t.\n' for n in range(20_000)))
    wire = opened(start())
    assert len(blocks(wire.call("read", path="memory/l.md", tokens=50_000))) > 190_000
    before = wire.status("VmHWM")
    calls = [SMALL % (number, b"" if how == "by default" else b',"tokens":50000') for number in range(1, 2_001)]
    if how.endswith("batches"):
        calls = [b"[" + b",".join(calls[start : start + 100]) + b"]" for start in range(0, len(calls), 100)]
    data = b"\n".join(calls) + b"\n"
    assert wire.push(data) < len(data), "the client is held back"
    assert wire.status("VmHWM") - before < (96 if how.endswith("batches") else 32) * 1024
    assert wire.process.stdin
    wire.process.stdin.close()
    assert wire.process.wait(END_WAIT_S) == 0


def test_a_client_that_reads_late_gets_every_answer_once_and_in_order(place, start):
    place.write("memory/l.md", "".join(f"{n} some words of a line\n" for n in range(300)))
    wire = opened(start())
    data = b"".join(SMALL % (number, b"") + b"\n" for number in range(1, 2_001))
    done = wire.push(data)
    assert done < len(data)
    os.set_blocking(wire._in, True)
    feeder = threading.Thread(target=_write_all, args=(wire._in, data[done:]))
    feeder.start()
    found = [wire.message() for _ in range(2_000)]
    feeder.join()
    assert [each["id"] for each in found] == list(range(1, 2_001))
    assert len({blocks(each) for each in found}) == 1
    wire.good()


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def test_a_client_that_closes_its_end_of_the_answers_ends_the_session(start):
    """Though nothing waits to be written, and the input stays open."""
    wire = start()
    wire.good()
    assert wire.process.stdout
    wire.process.stdout.close()
    assert wire.process.wait(END_WAIT_S) == 0
    wire.process.stdout = open(os.devnull, "rb")  # noqa: SIM115  # so that `stop` finds a file to close


# ------------------------------------------------------------------ arguments

HALVES = ["\\ud83d", "\\udc00 plum", "a\\ud800\\ud800b", "\\ude00\\ud83d"]


@pytest.mark.parametrize("half", HALVES)
def test_half_a_surrogate_pair_in_an_argument_is_answered_and_nothing_broken_is_kept(place, start, half):
    """case unicode-01: in query, path, next, note, replaces, forget, since and in names of arguments"""
    wire = start()
    calls = [
        ("search", ["query"]),
        ("search", ["query", "path"]),
        ("search", ["query", "since"]),
        ("search", ["query", "next"]),
        ("search", ["query", "kind"]),
        ("read", ["path"]),
        ("links", ["path"]),
        ("list", ["path"]),
        ("remember", ["note"]),
        ("remember", ["note", "replaces"]),
        ("remember", ["forget"]),
        ("AT", ["query", "AT"]),
    ]
    for name, fields in calls:
        data = wire.request("tools/call", {"name": name, "arguments": dict.fromkeys(fields, "AT")})
        found = wire.answer(data.replace(b"AT", half.encode()), wire.number)
        assert code(found) in (None, -32602), found
    data = wire.request("AT", {"AT": "AT"}).replace(b"AT", half.encode())
    assert code(wire.answer(data, wire.number)) == -32601
    place.notes.read_bytes().decode("utf-8")
    wire.good()


@pytest.mark.parametrize("half", HALVES)
def test_a_thread_named_with_half_a_surrogate_pair_may_not_write(place, start, half):
    """case unicode-01: whose conversation it is fails closed"""
    place.notes.write_text("- kept\n")
    wire = start("--from")
    for name, arguments in (("remember", {"note": "x"}), ("search", {"query": "gooseberry"})):
        for thread in ("AT", "link:AT"):
            params = {"name": name, "arguments": arguments, "_meta": {**META, THREAD: thread}}
            data = wire.request("tools/call", params).replace(b"AT", half.encode())
            found = wire.answer(data, wire.number)
            assert found["result"]["isError"] and "conversation" in blocks(found)
    assert place.notes.read_text() == "- kept\n"
    assert wire.end() == 0


@pytest.mark.parametrize("arguments", ["null", "{}", None])
def test_no_arguments_are_answered_by_what_is_missing(start, arguments):
    """case mcp-05: null arguments hung"""
    wire = start()
    given = "" if arguments is None else f',"arguments":{arguments}'
    found = {}
    for name in ("search", "read", "list", "links", "remember"):
        data = wire.request("tools/call").replace(b'"_meta"', f'"name":"{name}"{given},"_meta"'.encode())
        found[name] = wire.answer(data, wire.number)
    for name in ("search", "read", "links"):
        assert code(found[name]) == -32602 and "required field" in found[name]["error"]["message"]
    assert "documents" in found["list"]["result"]["structuredContent"]
    assert found["remember"]["result"]["isError"]
    wire.good()


def test_arguments_that_are_no_object_are_refused(start):
    """case mcp-05"""
    wire = start()
    for name in ("search", "read", "list", "links", "remember"):
        for arguments in ("[]", '"text"', "7", "true", "[[]]", "1.5", '["query"]'):
            data = wire.request("tools/call")
            data = data.replace(b'"_meta"', f'"name":"{name}","arguments":{arguments},"_meta"'.encode())
            found = wire.answer(data, wire.number)
            assert code(found) == -32602 and "object" in found["error"]["message"], (name, arguments, found)
    wire.good()


TOKENS = {
    "'500'": ("500", 2_000),
    "500": (500, 2_000),
    "500.0": (500.0, 2_000),
    "0": (0, 24_000),
    "null": (None, 24_000),
    "1": (1, 200),
    "50": (50, 200),
    "10**9": (10**9, 200_000),
    "true": (True, 200_000),
    "10**400": (10**400, 200_000),
    "1e308": (1e308, 200_000),
    "-1": (-1, 0),
    "'-1'": ("-1", 0),
    "1.5": (1.5, 0),
    "'many'": ("many", 0),
    "[500]": ([500], 0),
    "NaN": (float("nan"), 0),
    "Infinity": (float("inf"), 0),
}


def test_tokens_of_any_kind_are_taken_or_refused_and_never_give_more_than_they_may(place, start):
    """case mcp-05: '500', 1e308, true, -1, 10**9. Lines stay whole, so that one is over where none fits."""
    place.write("memory/large.md", "".join(f"{n} some words of a line\n" for n in range(20_000)))
    wire = start()
    for name, (tokens, most) in TOKENS.items():
        found = wire.call("read", path="memory/large.md", tokens=tokens)
        assert code(found) in (None, -32602), (name, found)
        text = found["error"]["message"] if "error" in found else blocks(found)
        if "error" in found or found["result"].get("isError"):
            assert "tokens" in text and len(text) < 300, (name, text)
            assert most == 0 or name in ("true", "10**400", "1e308"), (name, text)
        else:
            assert len(text) <= most, name
            assert found["result"]["structuredContent"]["next"] > 1, name
    wire.good()


def test_a_line_number_of_any_kind_is_answered(start):
    """case read-02: read from 10^9, 0, -1"""
    wire = start()
    for number in (0, -1, 10**9, "2", "0", True, 2**63, -(2**63) - 1, 10**30, -(10**30), 1e300, float("nan"), 2.0, 1.5):
        found = wire.call("read", path="memory/good.md", line=number)
        assert code(found) in (None, -32602), (number, found)
    wire.good()


def test_arguments_of_names_that_nobody_knows_are_left_alone(start):
    """case mcp-05"""
    wire = start()
    more = {"foo": 1, "": None, "Query": "y", "_meta": {}, "k": 5, "x" * 10_000: ["y"] * 100}
    found = wire.call("search", query="gooseberry", **more)
    assert found["result"]["structuredContent"]["results"][0]["path"] == "memory/good.md"


PATHS = ["/etc/passwd", "memory/../../../etc/passwd", "../../../../../etc/passwd", "memory/good.md/x", "memory//", "."]
PATHS += ["\0", "memory/\0", "a" * 100_000, "%2e%2e/", "file:///etc/passwd", "~", "memory/" + "d/" * 5_000]
PATHS += [
    "skills/../../x/SKILL.md",
    "skills/\0/SKILL.md",
    "skills/" + "d/" * 5_000,
    "skills/" + "x" * 300 + "/SKILL.md",
]


def test_a_path_that_leads_elsewhere_is_refused_in_a_short_sentence(start):
    wire = start()
    for path in PATHS:
        for name in ("read", "links"):
            found = wire.call(name, path=path)
            assert found["result"]["isError"] and len(blocks(found)) < 1_500, (path[:40], found)
        for name in ("list", "search"):
            found = wire.call(name, path=path, query="gooseberry")
            assert "result" in found and len(blocks(found)) < 2_000, (path[:40], found)
            assert "root:" not in blocks(found)
    wire.good()


# ------------------------------------------------------------------ standard output, and what is left behind


def test_every_line_of_standard_output_is_json_rpc_whatever_is_warned_of(place, start):
    """case mcp-04: a model's server that is down, broken files, every warning of Python's on"""
    place.write("memory/broken.pdf", b"%PDF-1.7\n1 0 obj\n<< /Length 10 >> stream\nnope")
    place.write("memory/broken.docx", b"PK\x03\x04 and no more")
    place.write("memory/latin.md", "# Caf\xe9\n\nd\xe9j\xe0 vu\n".encode("latin-1"))
    place.write("memory/utf16.md", "# Wide\n\nwords\n".encode("utf-16"))
    place.write("memory/front.md", "---\ntitle: [unclosed\ntags: {a\n---\nbody\n")
    place.write("memory/zeros.md", b"\0" * 5_000)
    place.write("memory/deep.md", "> " * 5_000 + "deep\n" + "[" * 5_000 + "\n" + "`" * 5_001 + "\n")
    place.write("chats/x/conversation.md", b"\xff\xfe\x00broken")
    environment = {
        **os.environ,
        "PYTHONWARNINGS": "always",
        "PYTHONDEVMODE": "1",
        "PYTHONUNBUFFERED": "1",
        "LNK_MEMORY_MODEL": "http://127.0.0.1:9/",
    }
    wire = start("--spec", '{"model":"qwen3-embedding"}', env=environment)
    wire.good()
    for path in ("memory/broken.pdf", "memory/latin.md", "memory/deep.md", "memory/zeros.md", "memory/none.md"):
        assert "result" in wire.call("read", path=path)
        assert "result" in wire.call("links", path=path)
    for query in ("déjà", "words", "deep", "body", "*", '"', "NEAR(", "a AND", "title:x", "^"):
        assert "result" in wire.call("search", query=query)
    assert "result" in wire.call("list")
    assert "result" in wire.call("remember", note="x")
    wire.send(b"\xff\n[[[\n")
    assert wire.end() == 0
    assert "Traceback" not in wire.said_aside() and "Warning" not in wire.said_aside(), wire.said_aside()


def test_what_anything_else_prints_goes_to_standard_error(start, tmp_path):
    """case mcp-04: native libraries write to the descriptor itself"""
    noise = (
        "import atexit, os\natexit.register(lambda: (print('noise', flush=True), os.write(1, b'native noise\\n')))\n"
    )
    (tmp_path / "sitecustomize.py").write_text(noise)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    wire = start(env={**os.environ, "PYTHONPATH": path})
    wire.good()
    assert wire.end() == 0
    assert wire.said_aside() == "noise\nnative noise\n"


@LINUX
def test_no_file_is_left_open_by_calls_and_bad_lines(place, start):
    for number in range(20):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nplum\n")
    place.write("skills/cook/SKILL.md", "# Cook\n")
    wire = start()

    def everything() -> None:
        for name, arguments in (
            ("search", {"query": "plum"}),
            ("read", {"path": "memory/n1.md"}),
            ("read", {"path": "memory/none.md"}),
            ("read", {"path": "notes.md"}),
            ("read", {"path": "skills/cook/SKILL.md"}),
            ("read", {"path": "skills/none/SKILL.md"}),
            ("list", {}),
            ("list", {"kind": "skill"}),
            ("links", {"path": "memory/n1.md"}),
            ("remember", {"note": "x"}),
            ("remember", {"forget": "nothing"}),
        ):
            assert "result" in wire.call(name, **arguments)
        wire.send(b"\xff\n[[[\n")

    everything()
    before = wire.files()
    for number in range(20):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nplum again\n")
        everything()
    assert wire.files() == before


@LINUX
def test_no_socket_is_opened(place, start):
    """case mcp-08: where nothing listens, no page in a browser can ask"""
    wire = start("--spec", '{"model":"qwen3-embedding"}')
    wire.good()
    assert [each for each in wire.files() if each.startswith("socket:")] == []


def left_behind(session: int, place: Place) -> list[str]:
    """Processes of this session, and processes that hold a file of this place open."""
    found = []
    for each in Path("/proc").iterdir():
        if not each.name.isdigit() or int(each.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            fields = (each / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(f"{each.name} lives")
            for fd in (each / "fd").iterdir():
                if os.readlink(fd).startswith(str(place.root)) and not os.readlink(fd).endswith("errors.txt"):
                    found.append(f"{each.name} holds {os.readlink(fd)}")
    return found


@LINUX
@pytest.mark.parametrize(
    "when",
    ["after a good call", "in the middle of a line", "in the middle of a call", "while it indexes"],
)
def test_the_end_of_input_ends_the_process_and_leaves_nothing(large, start, when):
    """The next session finds all as it was."""
    wire = start()
    if when == "after a good call":
        wire.good()
    elif when == "in the middle of a line":
        wire.send(wire.request("tools/call", {"name": "search"})[:-30])
    elif when == "in the middle of a call":
        calls = [wire.request("tools/call", {"name": "search", "arguments": {"query": "plum"}}) for _ in range(20)]
        wire.send(b"".join(calls))
    elif when == "while it indexes":
        wire.send(wire.request("tools/call", {"name": "list", "arguments": {}, "_meta": {**META, "progressToken": 1}}))
        assert wire.message()["method"] == "notifications/progress"
    assert wire.end() == 0
    assert left_behind(wire.process.pid, large) == []
    assert "Traceback" not in wire.said_aside(), wire.said_aside()
    again = start()
    settled(again)
    again.good()


@LINUX
def test_the_end_of_input_ends_the_process_though_calls_wait_for_an_index_that_is_being_made(place, start):
    """They are stopped where they are: no traceback, exit status 0."""
    for number in range(3_000):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\n" + f"word{number} in a plum pie\n" * 120)
    wire = start()
    words = "plum pie in a note " + " ".join(f"word{number}" for number in range(60))
    calls = [wire.request("tools/call", {"name": "search", "arguments": {"query": words}}) for _ in range(30)]
    wire.send(b"".join(calls))
    assert wire.end() == 0, wire.said_aside()
    assert left_behind(wire.process.pid, place) == []
    assert wire.said_aside() == ""


@LINUX
@pytest.mark.parametrize("how", [*SIGNALS, signal.SIGKILL], ids=lambda how: how.name)
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "indexing"])
def test_a_signal_ends_the_process_and_the_next_session_finds_all(large, start, how, busy):
    wire = start()
    if busy:
        wire.send(wire.request("tools/call", {"name": "list", "arguments": {}, "_meta": {**META, "progressToken": 1}}))
        assert wire.message()["method"] == "notifications/progress"
    else:
        assert "tools" in wire.ask("tools/list")["result"]
    wire.process.send_signal(how)
    assert wire.process.wait(END_WAIT_S) != 0
    assert left_behind(wire.process.pid, large) == []
    assert "Traceback" not in wire.said_aside(), wire.said_aside()
    again = start()
    settled(again)
    again.good()


def test_a_last_line_without_an_end_is_answered_too(start):
    wire = start()
    wire.send(wire.request("tools/list").rstrip())
    assert wire.process.stdin
    wire.process.stdin.close()
    found, status = wire.rest()
    assert [each["id"] for each in found] == ["n1"]
    assert status == 0


def test_calls_written_before_the_end_of_input_are_answered(start):
    """As from `printf … | lnk-link-memory serve`: more than a pipe holds, and nobody waits in between."""
    wire = start()
    wire.send(b"".join(wire.request("tools/list") for _ in range(1_000)))
    assert wire.process.stdin
    wire.process.stdin.close()
    found, status = wire.rest()
    assert [each["id"] for each in found] == [f"n{number}" for number in range(1, 1_001)]
    assert status == 0


def test_calls_from_a_file_are_answered_into_a_file(place, start, tmp_path):
    """Standard input and output may be files, which are always ready and never wait."""
    asked, told = tmp_path / "asked", tmp_path / "told"
    wire = start()  # for its requests, and the index
    wire.good()
    lines = [wire.request("tools/call", {"name": "search", "arguments": {"query": "gooseberry"}}) for _ in range(10)]
    asked.write_bytes(b"".join(lines))
    with asked.open("rb") as source, told.open("wb") as sink:
        subprocess.run(place.argv(), stdin=source, stdout=sink, timeout=ANSWER_WAIT_S, check=True)
    found = [checked(each) for each in told.read_bytes().splitlines()]
    assert [each["id"] for each in found] == [json.loads(each)["id"] for each in lines]


@pytest.mark.requirement("SIZE-1")
@pytest.mark.parametrize(
    "unit",
    [
        "\x01\x02\x1b\x7f ",
        '"\\" ',
        "\U0001f600\U0001f468‍\U0001f469‍\U0001f467 ",
        "葡萄酒と本。",
        "é\u0301 ",
        "\t\r\x0b\x0c",
        "</script>",
    ],
    ids=["control", "quotes", "emoji", "cjk", "accents", "blanks", "html"],
)
def test_an_answer_stays_under_32_kib_by_default_whatever_the_script(place, start, unit):
    """case read-02: many lines, one long line, long titles and names, many links"""
    body = "".join(f"{unit * 2}plum {number}\n" for number in range(20_000))
    place.write("memory/many.md", body)
    place.write("memory/one.md", unit * (100_000 // len(unit)) + "plum")
    name = "".join(each for each in unit if each.isprintable() and each not in "/\\<>")[:10] or "n"
    for number in range(200):
        links = f"[[many]] [[{name}{number + 1}]] [x](one.md)\n"
        place.write(f"memory/{name * 3}/{name}{number}.md", f"# {unit * 200}\n\nplum {unit * 100}\n{links * 3}")
    wire = start()
    settled(wire)
    target = wire.call("list", path="memory/one.md")["result"]["structuredContent"]["documents"][0]["path"]
    paths = ["memory/many.md", target]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search", {"query": "plum"}),
        ("search", {"query": unit * 200 + "plum"}),
        ("search", {"query": "", "path": "memory"}),
        ("list", {}),
        ("list", {"since": 0}),
        *[("read", {"path": path}) for path in paths],
        *[("read", {"path": "memory/many.md", "line": number}) for number in (2, 500, 19_999)],
        *[("links", {"path": path}) for path in paths],
        ("remember", {"note": unit * 20 + "plum"}),
    ]
    for tool, arguments in calls:
        found = wire.call(tool, **arguments)
        assert not found["result"].get("isError"), (tool, arguments, found)
        text = blocks(found)
        assert len(text.encode()) < 32 * 1024, (tool, arguments)
        assert len(text) <= 24_000, (tool, arguments)
        assert json.loads(text) == found["result"]["structuredContent"]
    cut = wire.call("read", path=target)["result"]["structuredContent"]
    assert cut["cut"] is True and cut["text"]


@pytest.mark.requirement("SIZE-1")
def test_notes_of_many_bytes_come_back_under_32_kib(place, start):
    place.notes.write_text("".join(f'- note {n} "\\ 葡萄 \U0001f600\n' for n in range(3_000)))
    wire = start("--spec", '{"notes":"1 MB"}')
    found = wire.call("read", path="notes.md")
    assert len(blocks(found).encode()) < 32 * 1024 and found["result"]["structuredContent"]["next"]


# ------------------------------------------------------------------ what lies in the folder


PLANTED = "import pathlib; pathlib.Path({marker!r}).open('a').write(__name__ + '\\n')\n"


def test_nothing_in_the_folder_or_where_it_is_started_is_run_or_read_as_settings(place, start, tmp_path):
    """case mcp-09"""
    marker, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    planted = PLANTED.format(marker=str(marker))
    names = ["sitecustomize", "usercustomize", "conftest", "json", "msgspec", "apsw", "pathspec", "chardet", "lnk"]
    names += ["setup", "argparse", "__init__", "__main__", "encodings", "readline", "queue", "site"]
    others = {
        ".mcp.json": json.dumps({"mcpServers": {"x": {"command": "touch", "args": [str(marker)]}}}),
        "pyproject.toml": "[tool.lnk]\nnotes = 'x'\n",
        ".qmd.yml": f"update: touch {marker}\n",
        ".env": f"PYTHONPATH={elsewhere}\nLNK_MEMORY_NOTES={marker}\n",
        "pyvenv.cfg": "home = /nowhere\n",
        "evil.pth": planted,
        "lnk.toml": "[tool.memory]\ntokens = 50\n",
    }
    folders = [place.home, place.memory, place.agent, place.agent / "memory", place.agent / "skills", elsewhere]
    for folder in folders:
        for name in names:
            (folder / f"{name}.py").write_text(planted)
            (folder / "__pycache__").mkdir(exist_ok=True)
            (folder / "__pycache__" / f"{name}.cpython-311.pyc").write_bytes(b"\0" * 16)
        for name, text in others.items():
            (folder / name).write_text(text)
        for package in ("lnk", "msgspec", "json"):
            (folder / package).mkdir(exist_ok=True)
            (folder / package / "__init__.py").write_text(planted)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "LNK_"))}
    for cwd in (elsewhere, place.memory, place.home, place.agent):
        wire = start(cwd=cwd, env=clean)
        settled(wire)
        wire.good()
        assert "result" in wire.call("remember", note=f"from {cwd.name}")
        assert "result" in wire.call("read", path="memory/.mcp.json")
        assert "result" in wire.call("list", kind="skill")
        assert wire.end() == 0
    assert not marker.exists(), marker.read_text()


# ------------------------------------------------------------------ anything

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=15,
)
FIELDS = ["query", "path", "line", "tokens", "since", "kind", "next", "note", "replaces", "forget"]
LIKELY = st.sampled_from(
    ["memory/good.md", "memory", "gooseberry", "notes.md", "document", "2026-11-02", "", "*", '"a']
)
ARGUMENTS = st.dictionaries(st.sampled_from(FIELDS), LIKELY | VALUES, max_size=5) | VALUES
CALLS = st.fixed_dictionaries(
    {
        "jsonrpc": st.just("2.0"),
        "id": st.integers(0, 3) | st.text(max_size=3) | VALUES,
        "method": st.just("tools/call")
        | st.sampled_from(["ping", "tools/list", "initialize", "server/discover"])
        | VALUES,
        "params": st.fixed_dictionaries(
            {"_meta": st.just(META) | st.just({**META, "progressToken": 1}) | VALUES},
            optional={
                "name": st.sampled_from(["search", "read", "list", "links", "remember"]) | VALUES,
                "arguments": ARGUMENTS,
                "protocolVersion": VALUES,
            },
        )
        | VALUES,
    }
)
CANCELS = VALUES.map(
    lambda number: {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
)
JSON_LINES = (CALLS | CANCELS | VALUES | st.lists(CALLS, max_size=3)).map(lambda value: json.dumps(value).encode())
GOOD_LINE = line(
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "_meta": META}}
).strip()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good line with a piece of it put elsewhere, left out or replaced."""
    start, end = sorted((draw(st.integers(0, len(GOOD_LINE))), draw(st.integers(0, len(GOOD_LINE)))))
    return GOOD_LINE[:start] + draw(st.binary(max_size=6)) + GOOD_LINE[end:]


def test_no_line_ends_the_session(start):
    """cases mcp-02, mcp-05, mcp-06: random JSON, random calls, random bytes; then a good call is answered"""
    wire = start()
    wire.good()

    @settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.one_of(JSON_LINES, st.binary(max_size=60), damaged()), min_size=1, max_size=5))
    def any_lines(lines: list[bytes]) -> None:
        wire.send(b"\n".join(lines) + b"\n")
        wire.good()

    any_lines()
    assert wire.end() == 0
    assert "failed" not in wire.said_aside() and "Traceback" not in wire.said_aside(), wire.said_aside()
