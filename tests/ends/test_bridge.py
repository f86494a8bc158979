"""The bridge to a tool: its address, who may connect, each connection a session, and the end of all of them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import Person
from ends.faults import needs_root, skip_loudly, soon
from ends.test_proxy import ECHO, LINUX, TOOL, call, held_up, log_of, person, processes_of
from lnk.agent import bridge
from lnk.agent.bridge import ELSEWHERE, address, running, start, stop
from lnk.agent.listener import READY, SESSIONS_MAX, listener_command
from lnk.agent.toolfolder import listener, open_folder, open_lock
from lnk.agent.tools import Tool, Tools
from lnk.cli import commands
from lnk.errors import Invalid, Missing, Refused

__all__ = ["person"]  # a fixture

WAIT_S = 20.0
Define = Callable[..., Path]


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A short folder, since a socket's address is."""
    folder = Path(tempfile.mkdtemp(prefix="lnk-", dir=ELSEWHERE))
    yield folder
    for each in sorted(folder.rglob("*"), reverse=True):
        each.rmdir() if each.is_dir() and not each.is_symlink() else each.unlink()
    folder.rmdir()


@pytest.fixture
def link(person: Person, runtime: Path) -> Iterator[str]:
    """The person's folder, whose tools are ended after the test."""
    person.environment["XDG_RUNTIME_DIR"] = str(runtime)
    home = str(person.link)
    yield home
    for name in Tools(home).names():
        stop(home, name)


def define(link: str, tmp_path: Path, script: str = ECHO, name: str = "notes") -> Path:
    file = tmp_path / f"{name}.py"
    file.write_text(TOOL + script)
    Tools(link).add(Tool(name=name, argv=[sys.executable, str(file)], allow=["search"]))
    return file


def connect(at: str) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(WAIT_S)
    stream.connect(at.removeprefix("unix:"))
    return stream


def asked(stream: socket.socket, data: bytes) -> dict:
    stream.sendall(data)
    with stream.makefile("rb") as file:
        return json.loads(file.readline())


@pytest.mark.requirement("NAME-2", "NAME-3")
def test_a_tool_that_a_person_adds_is_there_at_its_address_until_it_is_removed(
    link: str, person: Person, tmp_path: Path
):
    file = tmp_path / "files-tool.py"
    file.write_text(TOOL + ECHO)
    add = ["sandbox", "tool", "add", "files-tool", "--allow", "search", "--", sys.executable, file]
    shown = person.shows(*add)
    at = shown.partition("LNK_TOOL_FILES_TOOL=")[2].strip()
    with connect(at) as stream:
        assert asked(stream, call(1, word="first"))["result"]["content"][0]["text"] == '{"word": "first"}'
        listed = json.loads(person.shows("sandbox", "tool", "list", "--json"))
        assert [(each["name"], each["listens"], each["address"]) for each in listed] == [("files-tool", True, at)]
        assert at in person.shows("sandbox", "tool", "show", "files-tool")
        again = json.loads(person.shows(*add[:4], "--json", "--", sys.executable, file))
        assert (again["address"], again["allow"]) == (at, [])
        assert stream.recv(1) == b""  # what ran was the tool as it was
    person.shows("sandbox", "tool", "remove", "files-tool")
    assert not os.path.exists(at.removeprefix("unix:"))


@pytest.mark.requirement("NAME-2", "NAME-3", "CONTRACT-12")
def test_each_connection_is_a_session_through_the_gate(link: str, person: Person, tmp_path: Path):
    define(link, tmp_path)
    at = start(link, "notes", person.environment)
    assert at == address(link, "notes", person.environment) and running(link, "notes")
    with connect(at) as one, connect(at) as two:
        for stream in (one, two):
            for text in ("x", "y" * 200_000):
                answer = asked(stream, call(1, text=text))
                assert json.loads(answer["result"]["content"][0]["text"]) == {"text": text}
    assert soon(lambda: log_of(person) == [("search", "ok")] * 4)


@pytest.mark.requirement("NAME-2")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_that_is_not_ours_speaks_mcp_at_the_address(link: str, person: Person, tmp_path: Path, mode: str):
    import anyio
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    define(link, tmp_path)
    at = start(link, "notes", person.environment).removeprefix("unix:")
    code = """
import os, socket, sys, threading
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
def up():
    while data := os.read(0, 65536): s.sendall(data)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := s.recv(65536): os.write(1, data)
"""

    async def use() -> str:
        server = StdioServerParameters(command=sys.executable, args=["-c", code, at])
        async with Client(stdio_client(server), mode=mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["search", "delete"]
            return (await client.call_tool("search", {"query": "lease"})).content[0].text

    with anyio.from_thread.start_blocking_portal() as portal:
        assert portal.call(use) == '{"query": "lease"}'


def test_two_tools_have_two_addresses_and_each_answers_at_its_own(link: str, person: Person, tmp_path: Path):
    streams = []
    for name in ("a", "b"):
        define(link, tmp_path, f"for number, a in asked(): result(number, '{name}')\n", name)
        streams += [connect(start(link, name, person.environment)) for _ in range(2)]
    for number in range(20):
        for stream, name in zip(streams, "aabb", strict=True):
            assert asked(stream, call(number))["result"]["content"][0]["text"] == name
    for stream in streams:
        stream.close()


def test_who_starts_it_at_once_starts_one(link: str, person: Person, tmp_path: Path):
    define(link, tmp_path)
    with ThreadPoolExecutor(8) as many:
        found = set(many.map(lambda _: start(link, "notes", person.environment), range(8)))
    assert len(found) == 1
    with connect(found.pop()) as stream:
        assert asked(stream, call(1))["id"] == 1
    if sys.platform == "linux":
        assert soon(lambda: len(_listeners(link)) == 1)


def _listeners(link: str) -> list[int]:
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{number}/cmdline").read_bytes()
        except OSError:
            continue
        if b"lnk.agent.listener" in words and os.fsencode(link) in words:
            found.append(int(number))
    return found


@LINUX
def test_stop_ends_the_listener_and_every_session_whoever_started_it(link: str, person: Person, tmp_path: Path):
    from conftest import LNK

    file = define(link, tmp_path)
    at = start(link, "notes", person.environment)
    own = subprocess.Popen(
        [LNK, "agent", "tool", "run", "notes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=person.environment,
    )
    with connect(at) as one, connect(at) as two, own:
        assert own.stdin and own.stdout
        own.stdin.write(call(1))
        own.stdin.flush()
        assert own.stdout.readline()
        for stream in (one, two):
            asked(stream, call(1))
        assert stop(link, "notes") == 3
        assert (one.recv(1), two.recv(1), own.stdout.read(1)) == (b"", b"", b"")
    assert not running(link, "notes")
    assert processes_of(file) == []
    assert not os.path.exists(at.removeprefix("unix:"))
    assert stop(link, "notes") == 0


@LINUX
def test_a_listener_that_is_just_starting_is_found_and_ended(link: str, person: Person, tmp_path: Path):
    define(link, tmp_path)
    folder = open_folder(link, "notes")
    lock = open_lock(folder)
    argv = [sys.executable, "-c", held_up("listener"), link, "notes", str(tmp_path / "socket")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert soon(lambda: listener(lock) == process.pid)
            assert stop(link, "notes") == 0
            assert process.wait(WAIT_S) == -signal.SIGTERM
        finally:
            process.kill()
    os.close(lock)
    os.close(folder)


@LINUX
def test_a_listener_has_no_descriptor_of_whoever_started_it(link: str, person: Person, tmp_path: Path, runtime: Path):
    define(link, tmp_path)
    secret = tmp_path / "secret"
    secret.mkdir()
    leaked = os.open(secret, os.O_RDONLY)
    argv = listener_command(link, "notes", str(runtime / "socket"))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, pass_fds=(leaked,)) as process:
        try:
            assert process.stdout and process.stdout.readline() == READY
            held = f"/proc/{process.pid}/fd"
            assert str(secret) not in [os.readlink(f"{held}/{number}") for number in os.listdir(held)]
        finally:
            stop(link, "notes")
    os.close(leaked)


def test_who_comes_while_a_tool_is_removed_finds_none(
    link: str, person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    define(link, tmp_path)
    found = []

    def meanwhile(home: str, name: str) -> int:
        found.append(person.refused(Missing.status, "agent", "tool", "run", name))
        return stop(home, name)

    monkeypatch.setenv("LNK_HOME", link)
    monkeypatch.setattr(bridge, "stop", meanwhile)
    assert commands.main(["sandbox", "tool", "remove", "notes"]) == 0
    assert len(found) == 1


@LINUX
def test_a_session_in_another_container_is_said_and_nothing_else_is_ended(link: str, person: Person, tmp_path: Path):
    apart = ["unshare", "--pid", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        skip_loudly("no name space of processes can be made here")
    define(link, tmp_path)
    with connect(start(link, "notes", person.environment)) as stream:
        asked(stream, call(1))
        code = (
            "import sys; from lnk.agent.bridge import stop; from lnk.errors import Unavailable\n"
            "try: stop(sys.argv[1], 'notes')\n"
            "except Unavailable as error: print(error)"
        )
        done = subprocess.run([*apart, sys.executable, "-c", code, link], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.count("\n"), "another container" in done.stdout) == (0, 1, True), done
        assert asked(stream, call(2))["id"] == 2


@LINUX
def test_a_listener_that_is_killed_leaves_no_session_and_another_takes_its_place(
    link: str, person: Person, tmp_path: Path
):
    file = define(link, tmp_path)
    at = start(link, "notes", person.environment)
    with connect(at) as stream:
        asked(stream, call(1))
        (listener,) = _listeners(link)
        os.kill(listener, 9)
        assert stream.recv(1) == b""
    assert soon(lambda: processes_of(file) == [])
    assert not running(link, "notes") and os.path.exists(at.removeprefix("unix:"))
    assert start(link, "notes", person.environment) == at
    with connect(at) as stream:
        assert asked(stream, call(2))["id"] == 2


def test_a_connection_that_ends_ends_its_tool(link: str, person: Person, tmp_path: Path):
    file = define(link, tmp_path)
    with connect(start(link, "notes", person.environment)) as stream:
        asked(stream, call(1))
    if sys.platform == "linux":
        assert soon(lambda: processes_of(file) == [])


def test_more_sessions_than_anybody_needs_are_refused(link: str, person: Person, tmp_path: Path):
    define(link, tmp_path)
    at = start(link, "notes", person.environment)
    streams = [connect(at) for _ in range(SESSIONS_MAX)]
    with connect(at) as stream, stream.makefile("rb") as file:
        assert "no more can be" in json.loads(file.readline())["error"]["message"]
        assert file.readline() == b""
    for each in streams:
        each.close()
    stop(link, "notes")


def test_what_listens_is_found_from_another_environment(link: str, person: Person, tmp_path: Path):
    define(link, tmp_path)
    at = start(link, "notes", person.environment)
    elsewhere = {**person.environment, "XDG_RUNTIME_DIR": ""}
    assert address(link, "notes", elsewhere) == at == start(link, "notes", elsewhere)
    stop(link, "notes")
    assert address(link, "notes", elsewhere).startswith(f"unix:{ELSEWHERE}/lnk-{os.geteuid()}/")


def test_the_socket_is_its_owner_s_alone(link: str, person: Person, tmp_path: Path, runtime: Path):
    define(link, tmp_path)
    at = start(link, "notes", person.environment).removeprefix("unix:")
    assert os.stat(at).st_mode & 0o777 == 0o600
    assert os.stat(runtime / "lnk").st_mode & 0o777 == 0o700
    assert len(os.fsencode(at)) < 108
    needs_root("become another user")
    os.chmod(runtime, 0o755)
    os.chmod(runtime / "lnk", 0o755)
    assert _connect_as_another_user(at) == "refused by the kernel"
    os.chmod(at, 0o777)
    assert _connect_as_another_user(at) == "refused by the listener"


def _connect_as_another_user(path: str) -> str:
    stream = socket.socket(socket.AF_UNIX)
    pid = os.fork()
    if not pid:
        outcome = 3
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            stream.settimeout(WAIT_S)
            stream.connect(path)
            outcome = 0 if stream.recv(1) == b"" else 1
        except PermissionError:
            outcome = 2
        finally:
            os._exit(outcome)
    stream.close()
    outcomes = ("refused by the listener", "served", "refused by the kernel", "failed")
    return outcomes[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]


@pytest.mark.parametrize("wrong", ["open", "link", "file"])
def test_a_folder_for_sockets_that_is_not_safe_is_refused(
    link: str, person: Person, tmp_path: Path, runtime: Path, wrong: str
):
    define(link, tmp_path)
    folder = runtime / "lnk"
    if wrong == "open":
        folder.mkdir()
        folder.chmod(0o755)
    elif wrong == "link":
        (tmp_path / "other").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "other")
    else:
        folder.write_text("")
    with pytest.raises(Refused):
        start(link, "notes", person.environment)


def test_what_cannot_be_started_is_said(link: str, person: Person, tmp_path: Path):
    Tools(link).add(Tool(name="stopped", argv=[sys.executable], stopped=True))
    with pytest.raises(Refused, match="is stopped"):
        start(link, "stopped", person.environment)
    with pytest.raises(Missing):
        start(link, "nothing", person.environment)
    with pytest.raises(Invalid):
        bridge.running(link, "../x")
    assert not running(link, "nothing")
    assert stop(link, "nothing") == 0


def test_a_tool_that_was_stopped_or_removed_since_is_reached_no_more(link: str, person: Person, tmp_path: Path):
    define(link, tmp_path)
    at = start(link, "notes", person.environment)
    Tools(link).add(Tool(name="notes", argv=[sys.executable], stopped=True))
    with connect(at) as stream:
        assert stream.recv(1) == b""
    log = Path(Tools(link).folder("notes"), "bridge.log")
    assert soon(lambda: log.exists() and "status 11" in log.read_text())
    person.shows("sandbox", "tool", "remove", "notes")
    assert not os.path.exists(at.removeprefix("unix:"))
