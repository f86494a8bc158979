"""The engine for many agents by its real program: who is let in, and that no session, agent or client harms another."""

import contextlib
import errno
import grp
import json
import os
import pwd
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import ENGINE
from ends.faults import needs_root, skip_loudly, soon
from ends.many import META, SHORTER, WAIT_S, Connection, Served, held_up, line, times, unopened
from lnk.agent.shared import ServedAgent, policy
from lnk.contract.hello import LINE_BYTES_MAX, OUTDATED
from lnk.doorway import SILENT_MAX
from lnk.errors import Conflict
from lnk.lines import LINE_BYTES_MAX as MCP_LINE_BYTES_MAX
from lnk.mcp.stdio import CALLS_MAX
from lnk.sandbox.launch import launch
from lnk.sandbox.policy import Policy
from lnk.sandbox.ways import Way, best
from lnk.service import sources
from lnk.service.sources import Listened

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

AT_ONCE = {"IDLE_S": 0.0}
SOON = {"IDLE_S": 0.05}
PEER, GROUP, STRANGER = "daemon", "games", "nobody"
SLOWER_MAX = 3.0  # what another agent's trouble may make of the p95 of an agent's searches, on a machine that is busy
TURNED_AWAY_MAX = 25  # of 500; about one is in 1,500
TURNS_MAX = 10.0  # the same of the median, where a client asks without end; three, and thirty with no turns
TRIES = 4  # the machine is busy with others too
INVALID, REFUSED, CONFLICT = 10, 11, 13


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as found:
        yield found


@pytest.fixture
def two(served: Served) -> Served:
    """The program runs, and serves `a` and `b`."""
    served.add("a", "b")
    served.start()
    return served


# ------------------------------------------------------------------ the socket


@pytest.mark.requirement("SOCKET-1", "SOCKET-2")
def test_the_socket_is_its_owners_alone_and_goes_after_the_last_session(served: Served):
    served.add("a")
    os.rmdir(served.folder)
    served.start(shorter={"IDLE_S": 0.3})
    assert stat.S_IMODE(os.stat(served.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(served.folder).st_mode) == 0o700
    with served.session("a") as one, served.session("a") as other:
        one.close()
        assert other.paths("aberry") == ["memory/of-a.md"]
    served.ended()


@pytest.mark.requirement("SOCKET-2")
def test_with_stay_it_outlives_its_last_session(served: Served):
    served.add("a")
    process = served.start("--stay", shorter=AT_ONCE)
    for _ in range(10):
        with served.session("a") as session:
            assert session.paths("plum") == ["memory/of-a.md"]
    process.terminate()
    served.ended()


@pytest.mark.requirement("SOCKET-2", "SOCKET-4")
def test_a_session_that_comes_as_it_ends_is_served_or_finds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """case socket-08: 500 times. Whom the kernel let in just after the last look is told nothing, and comes again."""
    monkeypatch.setattr(sources, "IDLE_S", 0.0)
    folder = tmp_path / "s"
    folder.mkdir(0o700)
    monkeypatch.chdir(folder)  # where a short path leads to it
    path = "s"
    found = {"served": 0, "nobody": 0, "turned away": 0}
    for _ in range(500):
        listened = Listened(path, peer=None, group=None, stay=False)
        streams: list[socket.socket] = []
        client = threading.Thread(target=_come, args=(streams, path))
        client.start()
        taken = 0
        while not listened.is_over():
            taken += len(listened.take(listened.fds()))
        client.join()
        listened.close()
        found["served" if taken else "turned away" if streams else "nobody"] += 1
        for each in streams:
            each.close()
    assert not os.listdir(folder) and found["served"] and found["nobody"], found
    assert found["turned away"] <= TURNED_AWAY_MAX, found


def _come(found: list[socket.socket], path: str) -> None:
    stream = socket.socket(socket.AF_UNIX)
    try:
        stream.connect(path)
        stream.sendall(line(agent="a"))
    except OSError as error:
        stream.close()
        assert error.errno in (errno.ENOENT, errno.ECONNREFUSED)
    else:
        found.append(stream)


@pytest.mark.requirement("SOCKET-2")
def test_who_finds_nobody_starts_it_again_and_no_session_is_broken(served: Served):
    """case socket-08: eight clients come and go while it ends whenever it can, and is started again"""
    served.add("a")
    starting = threading.Lock()
    running = [served.begin(shorter=SOON)]

    def come(_: int) -> int:
        turned_away = 0
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            try:
                with served.connect() as connection:
                    connection.send(line(agent="a"))
                    if not (welcome := connection.line()):
                        turned_away += 1
                        continue
                    assert json.loads(welcome) == {"ok": True}
                    assert connection.paths("aberry") == ["memory/of-a.md"], "a welcome is kept"
                    return turned_away
            except (FileNotFoundError, ConnectionRefusedError, BrokenPipeError):
                with starting, contextlib.suppress(subprocess.TimeoutExpired):
                    running[-1].wait(0.01)
                    running.append(served.begin(shorter=SOON, preexec_fn=None))  # nothing of ours runs in a fork
        raise AssertionError("never served")

    with ThreadPoolExecutor(8) as clients:
        for number in range(12):
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # the clients come before it ends, as it ends and after
                running[-1].wait(0.03 + number / 200)
            list(clients.map(come, range(8)))
    assert len(running) > 1, "it ended, and was started again"


@pytest.mark.requirement("SOCKET-1")
def test_with_a_peer_the_groups_member_who_is_the_peer_is_admitted_and_nobody_else(served: Served):
    group = needs_users()
    served.add("a")
    os.chmod(served.folder, 0o711)
    served.path = f"{served.folder}/inner/engine.sock"
    served.start("--peer", PEER, "--group", GROUP)
    folder, made = os.stat(os.path.dirname(served.path)), os.stat(served.path)
    assert (stat.S_IMODE(folder.st_mode), folder.st_gid) == (0o710, group)
    assert (stat.S_IMODE(made.st_mode), made.st_gid) == (0o660, group)
    assert as_user(PEER, [group], lambda: hello(served.path)) == '{"ok": true}'
    assert hello(served.path) == '{"ok": true}', "the owner"
    assert as_user(STRANGER, [group], lambda: hello(served.path)) in ("", "ConnectionResetError", "BrokenPipeError")
    assert as_user(STRANGER, [], lambda: hello(served.path)) == "PermissionError"
    assert as_user(PEER, [], lambda: hello(served.path)) == "PermissionError"
    assert soon(lambda: f"user {pwd.getpwnam(STRANGER).pw_uid} may not connect" in served.log.read_text())


@pytest.mark.requirement("SOCKET-1")
@pytest.mark.parametrize("peer", [True, False])
def test_nobody_else_gets_in_while_it_starts(served: Served, peer: bool):
    """case socket-02: another user connects in a tight loop, from before it starts; it makes files for all"""
    group = needs_users()
    served.add("a")
    os.chmod(served.folder, 0o711)
    served.path = f"{served.folder}/inner/engine.sock"
    source, sink = os.pipe()
    watch = begun_as(STRANGER, [group] if peer else [], lambda: tried_until(source, served.path), sink)
    try:
        served.start(*(["--peer", PEER, "--group", GROUP] if peer else []), umask=0)
        assert hello(served.path) == '{"ok": true}'
    finally:
        os.close(sink)
        found = set(watch().split())
        os.close(source)
    assert "PermissionError" in found or "FileNotFoundError" in found
    allowed = {"FileNotFoundError", "PermissionError", *(("ConnectionResetError", "BrokenPipeError") if peer else ())}
    assert found <= allowed | ({"closed"} if peer else set())


@pytest.mark.requirement("SOCKET-1")
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--peer", "", "--group", "root"], "--peer is ''"),
        (["--peer", "99999999", "--group", "root"], "--peer is '99999999'"),
        (["--peer", "root", "--group", "no-such-group"], "--group is 'no-such-group'"),
        (["--peer", "root", "--group", ""], "--group is ''"),
        (["--peer", "root"], "--peer and --group go together"),
        (["--group", "root"], "--peer and --group go together"),
    ],
)
def test_a_peer_or_a_group_that_there_is_not_lets_nobody_in(served: Served, flags: list[str], says: str):
    """case socket-04"""
    served.add("a")
    assert served.begin(*flags).wait(WAIT_S) == INVALID
    assert says in served.log.read_text() and not os.path.exists(served.path)


@pytest.mark.requirement("SOCKET-3")
@pytest.mark.parametrize(
    "flag", ["--cache", "--embed", "--embed-url", "--files-bridge", "--storage-bridge", "--bridges"]
)
def test_what_is_for_bound_agents_is_refused_by_name(served: Served, flag: str):
    served.add("a")
    assert served.begin(flag, "x").wait(WAIT_S) == REFUSED
    assert f"{flag} is for bound agents" in served.log.read_text() and not os.path.exists(served.path)


@pytest.mark.requirement("SOCKET-1")
@pytest.mark.parametrize(("flags", "mode"), [([], 0o701), ([], 0o710), ([], 0o777), (["--peer"], 0o711)])
def test_a_folder_that_others_may_enter_is_refused(served: Served, flags: list[str], mode: int):
    served.add("a")
    os.chmod(served.folder, mode)
    if flags:
        flags = ["--peer", pwd.getpwuid(os.geteuid()).pw_name, "--group", grp.getgrgid(os.getegid()).gr_name]
    assert served.begin(*flags).wait(WAIT_S) == REFUSED
    assert f"Others may enter {served.folder}" in served.log.read_text() and not os.path.exists(served.path)


@pytest.mark.requirement("SOCKET-1")
def test_a_second_one_at_the_same_socket_is_refused_and_the_first_goes_on(two: Served):
    session = two.session("a")
    assert two.begin().wait(WAIT_S) == CONFLICT
    assert "Another process listens" in two.log.read_text()
    assert session.paths("aberry") == ["memory/of-a.md"]
    assert two.session("b").paths("bberry") == ["memory/of-b.md"]


def test_of_many_that_start_at_once_one_listens_and_is_found(tmp_path: Path):
    folder = tmp_path / "s"
    folder.mkdir(0o700)
    path = str(folder / "s")

    def begin(go: int, stay: int) -> str:
        os.read(go, 1)
        try:
            listened = Listened(path, peer=None, group=None, stay=True)
        except Conflict:
            return "another"
        finally:
            os.write(said, b"1")
        os.read(stay, 1)
        return "found" if len(listened.take(listened.fds())) == 1 else "not found"

    for _ in range(30):
        (go, started), (stay, ended), (told, said) = os.pipe(), os.pipe(), os.pipe()
        found = [forked(lambda go=go, stay=stay: begin(go, stay), started, ended) for _ in range(4)]
        os.close(started)
        for _ in found:
            os.read(told, 1)
        _come(streams := [], path)
        os.close(ended)
        assert sorted(each() for each in found) == ["another", "another", "another", "found"]
        for fd in (go, stay, told, said):
            os.close(fd)
        streams[0].close()


def test_a_socket_that_a_killed_one_left_is_replaced(two: Served):
    before = os.stat(two.path)
    os.kill(two.pid, signal.SIGKILL)
    assert soon(lambda: hello(two.path) == "ConnectionRefusedError")
    two.begin()
    assert soon(lambda: not os.path.samestat(before, os.stat(two.path)))
    assert two.session("a").paths("aberry") == ["memory/of-a.md"]


def test_it_ends_though_its_socket_was_taken_away_and_leaves_what_stands_there(served: Served):
    served.add("a")
    process = served.start()
    assert hello(served.path) == '{"ok": true}'
    os.unlink(served.path)
    Path(served.path).write_text("another's")
    process.terminate()
    assert process.wait(WAIT_S) == 0
    assert Path(served.path).read_text() == "another's"


# ------------------------------------------------------------------ the first line

HOSTILE = {
    "nothing": b"\n",
    "no JSON": b"hello\n",
    "two objects": b'{"agent":"a"} {"agent":"b"}\n',
    "a key twice": b'{"agent":"a","agent":"b"}\n',
    "a path": b'{"agent":"../a"}\n',
    "nobody's": b'{"agent":"c"}\n',
    "no id": b"{}\n",
    "an empty id": b'{"agent":""}\n',
    "null": b'{"agent":null}\n',
    "a list": b'{"agent":[]}\n',
    "all": b'{"agent":["a","b"]}\n',
    "a long id": b'{"agent":"' + b"a" * 129 + b'"}\n',
    "a team": b'{"agent":"a","team":{"id":""}}\n',
    "bound": b'{"agent":"a","bound":{"owner":"o","key":"00","files":"/run/other.sock"}}\n',
    "a control": b'{"end":{"owner":"o","agent":"a"}}\n',
    "a key more": b'{"agent":"a","owner":"o"}\n',
    "another writing": '{"agent":"a"}\n'.encode("utf-16"),
    "a number that is none": b'{"agent":NaN}\n',
    "deep": b"[" * 50_000 + b"\n",
    "64 KiB and one byte": b" " * (LINE_BYTES_MAX + 1) + b"\n",
    "1 MiB without an end": b"x" * (1 << 20),
}


@pytest.mark.requirement("SOCKET-4", "SOCKET-5")
def test_a_first_line_that_is_none_is_answered_with_why_and_closed_and_the_others_go_on(two: Served):
    """cases socket-07, isolation-03"""
    session = two.session("a")
    for name, data in HOSTILE.items():
        with two.connect() as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # closed before it is said to its end
                connection.stream.sendall(data)
            if not name.startswith("1 MiB"):  # what was not read of it may take the answer away
                said = connection.message()
                assert set(said) == {"error"} and len(said["error"]) < 300, name
            with contextlib.suppress(AssertionError):
                assert connection.is_closed(), name
        assert session.paths("aberry") == ["memory/of-a.md"], name
    assert two.session("b").paths("bberry") == ["memory/of-b.md"]


@pytest.mark.requirement("SOCKET-5")
def test_who_stays_silent_is_told_so_and_closed(served: Served):
    """case socket-07: no newline"""
    served.add("a")
    served.start(shorter={"LINE_S": 0.3})
    session = served.session("a")
    half, silent = served.connect(), served.connect()
    half.send(b'{"agent":"a"')
    for each in (half, silent):
        assert each.message() == {"error": "No first line came within 0.3 s."}
        assert each.is_closed()
    assert session.paths("aberry") == ["memory/of-a.md"]


@pytest.mark.requirement("SOCKET-4")
def test_a_first_line_in_pieces_and_what_follows_it_at_once_are_taken_apart_rightly(two: Served):
    two.session("a").paths("plum")
    with two.connect() as slow:
        for each in line(agent="a"):
            slow.send(bytes([each]))
            assert two.session("b").call("list")["documents"], "others come meanwhile"
        assert slow.message() == {"ok": True}
        assert slow.paths("aberry") == ["memory/of-a.md"]
    with two.connect() as quick:
        quick.send(line(agent="b") + quick.calling("search", query="bberry"))
        assert quick.message() == {"ok": True}
        assert "bberry" in json.dumps(quick.message())


@pytest.mark.requirement("SOCKET-5")
def test_500_silent_connections_keep_no_session_out(served: Served):
    """case socket-09"""
    served.add("a")
    served.start("--stay", shorter={"LINE_S": 1.0})
    served.session("a").settled()
    before = served.has()[0]
    silent = [served.connect() for _ in range(500)]
    assert served.session("a").paths("aberry") == ["memory/of-a.md"]
    assert served.has()[0] <= before + SILENT_MAX + 2
    for each in silent:
        assert set(each.message()) == {"error"}
    assert soon(lambda: served.has()[0] <= before + 1)


def test_who_comes_and_goes_in_turn_under_the_same_number_is_heard(two: Served):
    """A connection that is closed leaves its number to the next, which is heard all the same."""
    session = two.session("a")
    for _ in range(50):
        gone = [two.connect() for _ in range(4)]
        session.taken()
        for each in gone:
            each.close()
        assert two.connect().hello("b") == {"ok": True}


# ------------------------------------------------------------------ each its own


@pytest.mark.requirement("SHARED-2", "SOCKET-5")
def test_no_answer_reaches_anothers_session_in_2000_calls_of_50_sessions(served: Served):
    """case isolation-04: the same questions with the same ids, of four agents at once"""
    agents = ["a", "b", "c", "d"]
    served.add(*agents)
    served.start()
    sessions = [(agents[number % 4], served.session(agents[number % 4])) for number in range(50)]
    questions = ["plum", "ripe berries", "aberry bberry cberry dberry", "the"]
    for _, session in sessions:
        session.send(
            b"".join(session.calling("search", number, query=questions[number % 4]) for number in range(20))
            + b"".join(
                session.calling("read", number, path=f"memory/of-{agents[number % 4]}.md") for number in range(20, 40)
            )
        )
    for agent, session in sessions:
        found = [session.message() for _ in range(40)]
        assert [each["id"] for each in found] == list(range(40))
        for number, each in enumerate(found):
            text = json.dumps(each)
            others = [other for other in agents if other != agent]
            if number < 20:
                assert f"memory/of-{agent}.md" in text
                assert not [other for other in others if f"of-{other}" in text or f"{other}berry" in text]
            else:
                assert (f"The {agent}berry" in text) == (agents[number % 4] == agent), text
                assert not [other for other in others if f"The {other}berry" in text]


@pytest.mark.requirement("SHARED-2")
def test_one_id_under_way_in_two_sessions_is_two_calls(two: Served):
    one, other = two.session("a"), two.session("a")
    one.settled()
    with held_up(two.places["a"]):
        one.send(one.calling("search", 1, query="aberry"))
        other.send(other.calling("read", 1, path="memory/of-a.md"))
        for each in (one, other):
            each.taken()
        other.send(cancel(1))
        other.taken()
    assert "results" in one.answer(1)["result"]["structuredContent"]
    other.send(other.request("tools/list", number=2))
    assert other.message()["id"] == 2, "and what was cancelled is not answered"


def cancel(number: str | int) -> bytes:
    return line(jsonrpc="2.0", method="notifications/cancelled", params={"requestId": number})


# ------------------------------------------------------------------ calls


def test_two_agents_calls_are_made_at_once(two: Served):
    a, b = two.session("a"), two.session("b")
    a.settled()
    with held_up(two.places["a"]):
        a.send(a.calling("search", 1, query="plum"))
        a.taken()
        for _ in range(20):
            assert b.paths("bberry") == ["memory/of-b.md"]
        a.taken()
    assert "of-a.md" in json.dumps(a.answer(1))


def test_a_ping_and_a_list_of_tools_are_answered_while_a_call_waits(two: Served):
    a, other = two.session("a"), two.session("a")
    a.settled()
    with held_up(two.places["a"]):
        a.send(a.calling("search", 1, query="plum"))
        for each in (a, other):
            each.taken()
            assert each.ask("tools/list")["result"]["tools"]
            assert "instructions" in each.ask("server/discover")["result"]
        assert two.session("a").ask("tools/list")["result"]["tools"], "a new one is let in"
    assert "of-a.md" in json.dumps(a.answer(1))


def test_a_cancelled_call_ends_and_the_next_of_any_session_is_made(two: Served):
    """The one under way is stopped though its folder hangs, and one that waits is not made."""
    a, other = two.session("a"), two.session("a")
    a.settled()
    with held_up(two.places["a"]):
        a.send(a.calling("search", 1, query="plum") + a.calling("remember", 2, note="never"))
        a.taken()
        other.send(other.calling("remember", 3, note="kept"))
        other.taken()
        a.send(cancel(2) + cancel(1))
        assert other.answer(3)["result"]["structuredContent"]["bytes"]
    assert "never" not in two.places["a"].notes.read_text()
    assert a.paths("aberry") == ["memory/of-a.md"]


def test_calls_that_are_cancelled_at_once_are_not_kept(two: Served):
    """However many were cancelled while the agent hangs, the next one's turn comes."""
    a = two.session("a")
    a.settled()
    before = two.memory()
    with held_up(two.places["a"]):
        a.send(a.calling("search", 0, query="plum"))
        for number in range(1, 20_001, 100):
            a.send(
                b"".join(a.calling("search", at, query="x" * 500) + cancel(at) for at in range(number, number + 100))
            )
        a.taken()
        assert two.memory() - before < 16 << 10
    assert a.message()["id"] == 0


def test_more_calls_than_may_wait_are_all_answered(two: Served):
    """What is asked just when no more may wait is taken as soon as one is answered."""
    a = two.session("a")
    for _ in range(10):
        a.send(b"".join(a.calling("list", at) for at in range(CALLS_MAX)))
        assert [a.message()["id"] for _ in range(CALLS_MAX)] == list(range(CALLS_MAX))
        a.taken()
    a.send(b"".join(a.calling("list", at) for at in range(5 * CALLS_MAX)))
    assert [a.message()["id"] for _ in range(5 * CALLS_MAX)] == list(range(5 * CALLS_MAX))


def test_a_session_with_many_calls_lets_another_of_the_same_agent_in_between(two: Served):
    one, other = two.session("a"), two.session("a")
    one.settled()
    with held_up(two.places["a"]):
        one.send(one.calling("search", 0, query="plum"))
        one.send(b"".join(one.calling("remember", at, note=f"one {at}") for at in range(1, CALLS_MAX - 1)))
        one.taken()
        other.send(other.calling("remember", "other", note="the other's"))
        other.taken()
    other.answer("other")
    one.answer(CALLS_MAX - 2)
    kept = two.places["a"].notes.read_text().splitlines()
    place = next(at for at, note in enumerate(kept) if "the other's" in note)
    assert place <= 2 < CALLS_MAX - 4 < len(kept), kept


def test_both_eras_are_spoken_beside_each_other_and_progress_is_told(served: Served):
    served.add("a")
    for number in range(1_500):
        served.places["a"].write(f"memory/n{number}.md", f"# Note {number}\n\n" + "a plum pie\n" * 30)
    served.start()
    old, new = served.session("a"), served.session("a")
    new.send(
        new.request(
            "tools/call", {"name": "search", "arguments": {"query": "plum"}, "_meta": {**META, "progressToken": "p"}}, 1
        )
    )
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    old.send(line(jsonrpc="2.0", id=1, method="initialize", params=begin))
    assert old.answer(1)["result"]["protocolVersion"] == "2025-06-18"
    old.send(
        line(jsonrpc="2.0", id=2, method="tools/call", params={"name": "search", "arguments": {"query": "aberry"}})
    )
    first = new.message()
    assert (first["method"], first["params"]["progressToken"]) == ("notifications/progress", "p")
    assert "resultType" in new.answer(1)["result"]
    assert "resultType" not in old.answer(2)["result"], "the handshake's era, and no progress that it did not ask for"


# ------------------------------------------------------------------ clients that do harm


def flood(served: Served) -> Connection:
    """Thousands of questions, and no answer is read."""
    found = served.session("a")
    found.push(b"".join(found.calling("search", number, query="plum") for number in range(20_000)))
    return found


def flood_of_pings(served: Served) -> Connection:
    found = served.session("a")
    found.push(line(jsonrpc="2.0", id="x" * 100, method="ping") * 40_000)
    return found


def stalled(served: Served) -> Connection:
    """Half a line, and then nothing."""
    found = served.session("a")
    found.send(b'{"jsonrpc":"2.0"')
    return found


def dead_in_a_line(served: Served) -> Connection:
    found = stalled(served)
    found.close()
    return found


def half_closed(served: Served) -> Connection:
    """It says that nothing more comes, with a call under way, and reads its answer."""
    found = served.session("a")
    found.send(found.calling("search", 1, query="aberry") + found.calling("list", 2).rstrip(b"\n"))
    found.stream.shutdown(socket.SHUT_WR)
    assert [found.message()["id"] for _ in range(2)] == [1, 2] and found.is_closed()
    return found


def gone_with_calls(served: Served) -> Connection:
    """It is closed with as many calls under way as there may be."""
    found = served.session("a")
    found.send(b"".join(found.calling("search", number, query="plum") for number in range(CALLS_MAX)))
    found.close()
    return found


def unread_and_gone(served: Served) -> Connection:
    found = flood(served)
    found.close()
    return found


@pytest.mark.parametrize(
    "harm", [flood, flood_of_pings, stalled, dead_in_a_line, half_closed, gone_with_calls, unread_and_gone]
)
@pytest.mark.requirement("SOCKET-5")
def test_what_a_client_does_costs_the_others_nothing_and_leaves_nothing(two: Served, harm: Callable[..., Connection]):
    """case isolation-05"""
    same, other = two.session("a"), two.session("b")
    same.settled()
    other.settled()
    before, memory = two.has(), two.memory()
    bad = [harm(two) for _ in range(3)]
    for _ in range(10):
        assert same.paths("aberry") == ["memory/of-a.md"]
        assert other.paths("bberry") == ["memory/of-b.md"]
    assert two.memory() - memory < 32 << 10
    for each in bad:
        each.close()
    assert soon(lambda: two.has() == before), (two.has(), before)
    assert two.session("a").paths("aberry") == ["memory/of-a.md"]


def test_who_dies_with_calls_under_way_at_an_agent_that_hangs_leaves_nothing(two: Served):
    """case isolation-05: nothing of it can be written or read, which would tell that it is gone"""
    same = two.session("a")
    same.settled()
    before = two.has()
    with held_up(two.places["a"]):
        bad = two.session("a")
        bad.send(b"".join(bad.calling("search", number, query="plum") for number in range(CALLS_MAX)))
        assert soon(lambda: two.has()[0] > before[0])
        bad.close()
        assert soon(lambda: two.has()[0] <= before[0] + 1), (
            "its descriptor is closed; another is the lock that is awaited"
        )
    assert same.paths("aberry") == ["memory/of-a.md"]
    assert soon(lambda: two.has() == before), (two.has(), before)


def test_a_line_of_a_gigabyte_takes_no_memory_and_nobodys_turn(two: Served):
    """case isolation-05"""
    bad, other = two.session("a"), two.session("b")
    for each in (bad, other):
        each.settled()
    before = two.memory()
    part = b"x" * (1 << 24)
    for _ in range(1 << 6):
        bad.send(part)
        assert other.paths("bberry") == ["memory/of-b.md"]
    bad.send(b"\n")
    assert bad.message()["error"]["code"] == -32600
    assert two.memory() - before < 8 << 10
    bad.send(b" " * MCP_LINE_BYTES_MAX + b"\n" + bad.calling("search", 1, query="aberry"))
    assert bad.message()["id"] == 1


# ------------------------------------------------------------------ agents that do harm


@pytest.mark.requirement("SHARED-2", "SHARED-5")
def test_an_agent_that_cannot_be_served_is_refused_with_why_and_served_once_it_can_be(served: Served):
    """case isolation-05"""
    served.add("a", "b", "gone", "blocked", "wrong")
    served.write(wrong={"argv": [ENGINE, "status", "/x", "/y"]}, worse={"argv": [ENGINE, "serve", ""]})
    gone, blocked = served.places["gone"].home, served.places["blocked"].state
    gone.rename(f"{gone}.aside")
    blocked.write_text("a file where the folder of the index is to be")
    served.start()
    b = served.session("b")
    b.settled()
    assert b.paths("bberry") == ["memory/of-b.md"]
    before = served.has()
    for agent, says in (("gone", str(gone)), ("blocked", str(blocked)), ("wrong", "`serve`"), ("worse", "arguments")):
        for _ in range(5):
            with served.connect() as connection:
                assert says in connection.hello(agent)["error"] and connection.is_closed()
            assert b.paths("bberry") == ["memory/of-b.md"]
    assert soon(lambda: served.has() == before)
    Path(f"{gone}.aside").rename(gone)
    blocked.unlink()
    for agent in ("gone", "blocked"):
        assert served.session(agent).paths(f"{agent}berry") == [f"memory/of-{agent}.md"]


def test_an_index_that_is_damaged_under_an_agent_is_made_again_and_no_other_notices(two: Served):
    """case isolation-05: a file that is not ours, and an empty one"""
    a, b = two.session("a"), two.session("b")
    a.settled()
    index = two.places["a"].state / "index.sqlite"
    for data in (b"not ours" * 1000, b""):
        index.write_bytes(data)
        found = a.ask("tools/call", {"name": "search", "arguments": {"query": "aberry"}})
        assert "result" in found and b.paths("bberry") == ["memory/of-b.md"]
        assert soon(lambda: a.paths("aberry") == ["memory/of-a.md"])


Trouble = Callable[[], contextlib.AbstractContextManager[Any]]


def undisturbed(search: Callable[[], object], trouble: Trouble, *, at: int = 94, most: float = SLOWER_MAX) -> None:
    """Of 100 searches the `at`-th is with the trouble at most so many times slower than without, in one of TRIES."""
    found = []
    for _ in range(TRIES):
        alone = times(search, 100)[at]
        with trouble():
            found.append(times(search, 100)[at] / alone)
        if found[-1] <= most:
            return
    raise AssertionError(f"it takes {found} times as long")


def test_an_agent_whose_folder_hangs_costs_another_nothing(two: Served):
    """case isolation-05: its lock is held by whoever hangs; sessions of it wait, and are told once it goes on"""
    a, b = two.session("a"), two.session("b")
    for each in (a, b):
        each.settled()

    @contextlib.contextmanager
    def hanging() -> Iterator[None]:
        waiting = [two.session("a") for _ in range(5)]
        with held_up(two.places["a"]):
            for each in waiting:
                each.send(b"".join(each.calling("search", number, query="plum") for number in range(6)))
                each.taken()
            yield
        for each in waiting:
            assert [each.message()["id"] for _ in range(6)] == list(range(6))

    undisturbed(lambda: b.paths("bberry"), hanging)


def test_who_asks_without_end_keeps_nobody_waiting(two: Served):
    """case isolation-05: pings, as fast as they are answered"""
    b = two.session("b")
    b.settled()

    @contextlib.contextmanager
    def asking() -> Iterator[None]:
        ended = threading.Event()
        bad = two.session("a")
        pings = line(jsonrpc="2.0", id=1, method="ping") * 2_000

        def ask() -> None:
            while not ended.is_set():
                bad.send(pings)
                bad.forget()

        with ThreadPoolExecutor(1) as beside:
            asks = beside.submit(ask)
            try:
                yield
            finally:
                ended.set()
        asks.result()

    undisturbed(lambda: b.paths("bberry"), asking, at=50, most=TURNS_MAX)


def test_a_call_at_an_agent_that_hangs_is_stopped_in_time(served: Served):
    """case isolation-05: its hang is bounded"""
    served.add("a")
    served.start(shorter={"CALL_S": 0.2, "LOOK_S": 0.2})
    a = served.session("a")
    a.settled()
    found: list[dict[str, Any]] = []

    def heard() -> bool:
        if a.is_ready():
            found.append(a.message())
        return len(found) == 2

    with held_up(served.places["a"]):
        a.send(a.calling("search", 1, query="plum") + a.calling("search", 2, query="plum"))
        assert soon(heard), "though its folder hangs still, and each would wait as long as a test does"
    assert all("result" in each for each in found)


def test_an_agent_that_hangs_as_it_opens_keeps_its_own_sessions_waiting_alone(two: Served):
    """case isolation-05: whoever leaves meanwhile leaves nothing, and whoever stays is served in the end"""
    b = two.session("b")
    b.settled()
    threads = two.has()[1]
    with unopened(two.places["a"]):
        stays = two.connect()
        stays.send(line(agent="a"))
        assert soon(lambda: two.has()[1] == threads + 1), "a thread waits for the lock"
        before = two.has()
        for _ in range(10):
            with two.connect() as leaves:
                leaves.send(line(agent="a") + leaves.calling("list"))
                assert b.paths("bberry") == ["memory/of-b.md"]
        assert soon(lambda: two.has()[0] <= before[0] + 1 and two.has()[1] == before[1]), (two.has(), before)
    assert stays.message() == {"ok": True}
    assert stays.paths("aberry") == ["memory/of-a.md"]


def test_an_agent_with_20000_files_to_index_costs_another_little(served: Served):
    """case isolation-05: 20,000, where the case has 100,000, for the time that it takes to make them"""
    served.add("a", "b")
    for number in range(20_000):
        path = served.places["a"].memory / f"f{number % 100}"
        path.mkdir(exist_ok=True)
        (path / f"n{number}.md").write_text(f"# Note {number}\n\nword{number} in a plum pie\n")
    served.start()
    b = served.session("b")
    b.settled()
    alone = times(lambda: b.paths("bberry"), 200)[189]
    a = served.session("a")
    found = []
    for _ in range(TRIES):
        found.append(times(lambda: b.paths("bberry"), 100)[94] / alone)
    assert "indexed" in a.call("list", tokens=50), "it indexes still"
    assert min(found) <= SLOWER_MAX, found


def test_its_descriptors_are_few_however_many_files_an_agent_has(served: Served):
    """case watch-02: 5,000 files, and no more than 256 descriptors may be open"""
    served.add("a", "b")
    for number in range(5_000):
        served.places["a"].write(f"memory/f{number % 50}/n{number}.md", f"# Note {number}\n")
    served.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))
    a, b = served.session("a"), served.session("b")
    for each in (a, b):
        each.settled()
    served.places["a"].write("memory/f3/n3.md", "# Changed\n\nA quince.\n")
    assert a.paths("quince") == ["memory/f3/n3.md"]
    assert served.has()[0] < 50


# ------------------------------------------------------------------ the end


@pytest.mark.requirement("SOCKET-2")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_leaves_nothing_though_calls_are_under_way(served: Served, number: int):
    """A call waits at a folder that hangs, another agent opens in one that does."""
    served.add("a", "b", "c")
    process = served.start("--stay")
    a, b = served.session("a"), served.session("b")
    a.settled()
    b.paths("plum")
    silent, opening = served.connect(), served.connect()
    with held_up(served.places["a"]), unopened(served.places["c"]):
        opening.send(line(agent="c"))
        a.send(a.calling("search", 1, query="plum"))
        for each in (a, b):
            each.taken()
        process.send_signal(number)
        for each in (b, silent, opening):
            assert each.is_closed()
        served.ended()


# ------------------------------------------------------------------ connections passed in


class Before:
    """What stands before the engine: it passes connections in, and hears which sessions are open."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.pair, self.inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pair.settimeout(WAIT_S)
        self.flags = ["serve-many", "none", str(served.write()), "--connections", str(self.inside.fileno())]

    def start(self) -> subprocess.Popen[bytes]:
        process = self.served.run([ENGINE, *self.flags], pass_fds=[self.inside.fileno()])
        self.inside.close()
        return process

    def start_confined(self) -> subprocess.Popen[bytes]:
        """In the sandbox of all the agents, as the service starts it."""
        how = best(os.environ)
        if how.way not in (Way.BUBBLEWRAP, Way.BUNDLED):
            skip_loudly("no bubblewrap works here, to run the engine of many agents in")
        agents = [
            ServedAgent(
                agent=agent,
                name=agent,
                engine="link",
                link="0",
                made="",
                made_of={},
                folders={},
                argv=place.argv(),
                reads=[str(each) for each in (place.home, place.chats, place.agent / "skills")],
                writes=[str(place.agent / "memory")],
                hidden=[],
            )
            for agent, place in self.served.places.items()
        ]
        whole = policy("link", agents, os.environ, Policy(reads=(str(self.served.agents),)))
        with launch(whole, [ENGINE, *self.flags], how, given=[self.inside.fileno()]) as started:
            process = self.served.run(started.argv, pass_fds=started.fds, env=started.environment, cwd=started.folder)
        self.inside.close()
        return process

    def give(self, data: bytes) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.pair, [data], [theirs.fileno()])
        return Connection(ours)

    def session(self, agent: str) -> Connection:
        found = self.give(json.dumps({"agent": agent}).encode())
        assert found.message() == {"ok": True}
        return found

    def hears(self, taken: int, **open_: int) -> None:
        """Waits until it is told so; each word of it is well formed."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            said = json.loads(self.pair.recv(1 << 16))
            assert set(said) == {"taken", "open"}
            if said == {"taken": taken, "open": open_}:
                return
        raise AssertionError("never told")


@pytest.fixture
def before(served: Served) -> Iterator[Before]:
    served.add("a", "b")
    found = Before(served)
    yield found
    found.pair.close()
    found.inside.close()


@pytest.mark.requirement("SHARED-2", "SHARED-5")
def test_in_the_sandbox_of_all_each_agent_has_what_is_its_own(before: Before):
    places = before.served.places
    for agent in "ab":
        places[agent].write("chats/2026-11-02/conversation.md", f"# Talk\n\nThe {agent}cherry was spoken of.\n")
        places[agent].write("skills/bake/SKILL.md", f"# Bake\n\nAn {agent}cake.\n")
    before.start_confined()
    for agent, other in ("ab", "ba"):
        with before.session(agent) as session:
            assert session.paths(f"{agent}berry {other}berry") == [f"memory/of-{agent}.md"]
            assert session.paths(f"{agent}cherry")[0].startswith("chats/")
            assert f"{agent}cake" in session.call("read", path="skills/bake/SKILL.md")["text"]
            session.call("remember", note=f"of {agent}")
            refused = session.ask("tools/call", {"name": "read", "arguments": {"path": f"memory/of-{other}.md"}})
            assert refused["result"]["isError"]
        assert places[agent].notes.read_text().count("of ") == 1
        assert f"of {agent}" in places[agent].notes.read_text()
        assert (places[agent].state / "index.sqlite").is_file()


def test_it_tells_which_sessions_are_open_and_ends_with_whoever_passes_them_in(before: Before):
    process = before.start_confined()
    before.hears(0)
    a = before.session("a")
    before.hears(1, a=1)
    b = [before.session("b") for _ in range(2)]
    before.hears(3, a=1, b=2)
    refused = before.give(b'{"agent":"nobody"}')
    assert set(refused.message()) == {"error"} and refused.is_closed()
    before.hears(4, a=1, b=2)
    b[0].close()
    before.hears(4, a=1, b=1)
    a.send(a.calling("search", 1, query="plum"))
    before.pair.close()
    assert process.wait(WAIT_S) == 0
    assert b[1].is_closed()


def test_it_tells_again_what_was_not_heard(before: Before):
    """Whoever passes connections in is behind with hearing: the last word comes once they are not."""
    before.inside.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # as little unheard as the kernel lets be
    before.start()
    before.hears(0)
    sessions = [before.session("a") for _ in range(40)]
    before.hears(40, a=40)
    full = before.served.has()[0]
    for each in sessions:
        each.close()
    assert soon(lambda: before.served.has()[0] <= full - 40), "it has told of the last, and nobody has heard"
    before.hears(40)


@pytest.mark.parametrize("flag", ["0", "99", "x"])
def test_what_is_no_connection_to_take_connections_from_is_refused(served: Served, flag: str):
    served.add("a")
    assert served.begin("--connections", flag).wait(WAIT_S) in (2, INVALID)
    assert "--connections" in served.log.read_text()


# ------------------------------------------------------------------ other users


def needs_users() -> int:
    """The number of the group; skips where this machine has not the users and the group that the test is played by."""
    needs_root("be other users")
    try:
        for name in (PEER, STRANGER):
            pwd.getpwnam(name)
        return grp.getgrnam(GROUP).gr_gid
    except KeyError as error:
        skip_loudly(f"there is no {error}")


def as_user(name: str, groups: list[int], do: Callable[[], str]) -> str:
    """What `do` says, or the kind of its error, in a process of that user."""
    return begun_as(name, groups, do)()


def begun_as(name: str, groups: list[int], do: Callable[[], str], *closed: int) -> Callable[[], str]:
    """The same, which goes on beside; what is given waits for it."""

    def become() -> str:
        os.setgroups(groups)
        os.setgid(pwd.getpwnam(STRANGER).pw_gid)
        os.setuid(pwd.getpwnam(name).pw_uid)
        return do()

    return forked(become, *closed)


def forked(do: Callable[[], str], *closed: int) -> Callable[[], str]:
    """Runs it in a process of its own, without the descriptors `closed`; gives what waits for what it says."""
    source, sink = os.pipe()
    pid = os.fork()
    if not pid:
        said = ""
        try:
            for fd in closed:
                os.close(fd)
            said = do()
        except BaseException as error:  # the top of a process of its own
            said = type(error).__name__
        finally:
            os.write(sink, said.encode())
            os._exit(0)
    os.close(sink)

    def wait() -> str:
        with open(source, encoding="utf-8") as file:
            said = file.read()
        os.waitpid(pid, 0)
        return said

    return wait


def hello(path: str) -> str:
    """The answer to the first line of a session of `a`; empty where the connection is closed, else the error's kind."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(WAIT_S)
        try:
            stream.connect(path)
            stream.sendall(line(agent="a"))
            return stream.makefile("rb").readline().decode().strip()
        except OSError as error:
            return type(error).__name__


def tried_until(source: int, path: str) -> str:
    """All that came of it, until nobody holds the other end of `source`."""
    found = set()
    os.set_blocking(source, False)
    while True:
        found.add(hello(path) or "closed")
        with contextlib.suppress(BlockingIOError):
            if not os.read(source, 1):
                return " ".join(found)


@pytest.mark.requirement("SHARED-7")
def test_an_outdated_engine_closes_the_sessions_that_rest_and_no_other(served: Served):
    """Whoever relays them finds the service that is current, so that not one more stays for each change."""
    served.add("a", "b")
    before = Before(served)
    argv = [sys.executable, "-P", "-c", SHORTER, json.dumps({"REST_S": 0.2, "LOOK_S": 0.1}), *before.flags]
    process = served.run(argv, pass_fds=[before.inside.fileno()])
    before.inside.close()
    resting, waiting = before.session("a"), before.session("b")
    resting.settled()
    waiting.settled()
    with held_up(served.places["b"]):
        served.places["b"].write("memory/new.md", "A change that the call waits for.\n")
        waiting.send(waiting.calling("search", 7, query="bberry"))
        before.pair.send(OUTDATED)
        assert resting.is_closed()
        assert process.poll() is None
    assert waiting.message()["id"] == 7  # it was not at rest
    assert waiting.is_closed()
    new = before.session("a")  # who comes all the same is served
    assert new.paths("aberry") == ["memory/of-a.md"]
    before.pair.close()
    assert process.wait(WAIT_S) == 0
