"""One engine for all of an owner's agents: real clients, their proxies and relays, the service and its sandbox."""

import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp.client import Client as McpClient
from mcp.client.stdio import StdioServerParameters, stdio_client

from conftest import ENGINE, LNK, WORDS_ALONE, Person, as_from_a_terminal
from ends.faults import (
    most_by_one_thread,
    needs_root,
    needs_strace,
    ordinary,
    skip_loudly,
    small_disk,
    soon,
    under_strace,
)
from ends.test_mcp_judges import CLAUDE, npm  # noqa: F401  # by getfixturevalue
from ends.test_sandbox_run import NO_BUBBLEWRAP, NO_LANDLOCK
from lnk import __version__
from lnk.agent import run as run_file
from lnk.agent.host import STATUS
from lnk.agent.served import LOG
from lnk.mcp.client import Client
from lnk.mcp.protocol import CAPABILITIES_META, MODERN, VERSION_META
from lnk.sandbox.ways import Way, best
from lnk.sockets import connect

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

REFUSED, MISSING, CONFLICT, UNAVAILABLE, CORRUPT = 11, 12, 13, 15, 16
WAIT_S: Final = 30.0  # bounds a wait that is over at once where all is well
RELAYS: Final = 24
KILLS: Final = 10
CLAUDE_WAIT_S: Final = 120
NOBODY: Final = 65534
WHICH: Final = ("engine", "host")
ERAS: Final = ("stateless", "handshake")


class Wire:
    """A client's end of one session, in one of MCP's eras: it may ask, and hear the answer later."""

    def __init__(self, argv: list[str], environment: dict[str, str], errors: Path, **more: Any) -> None:
        self._errors = errors
        with errors.open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "preexec_fn": as_from_a_terminal, **more},
                stderr=log,
                env=environment,
                bufsize=0,
            )
        self._client = Client("client", "0")
        self._held = b""
        self.later = 0  # the id of a request whose answer is heard later

    def open(self, era: str = "stateless") -> "Wire":
        """The session begins, as a client of that era has it."""
        if era == "handshake":
            assert "result" in self.take(self.put("initialize", self._client.handshake()))
            self._send(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        else:
            assert "result" in self.take(self.put("server/discover", {}))
        return self

    def put(self, method: str, params: dict[str, Any]) -> int:
        """Asks. The request's id."""
        number, line = self._client.request(method, params)
        self._send(line)
        return number

    def put_call(self, name: str, **arguments: Any) -> int:
        return self.put("tools/call", {"name": name, "arguments": arguments})

    def take(self, number: int) -> dict[str, Any]:
        """The next line that comes, which is the answer to that request: a client hears nothing else."""
        assert self.process.stdout
        while b"\n" not in self._held:
            assert select.select([self.process.stdout], [], [], WAIT_S)[0], f"nothing came: {self.said()}"
            part = os.read(self.process.stdout.fileno(), 1 << 20)
            assert part, f"it ended: {self.said()}"
            self._held += part
        line, _, self._held = self._held.partition(b"\n")
        found = json.loads(line)
        assert found["id"] == number, found
        return found

    def paths(self, query: str) -> list[str]:
        """The paths that a search gives, best first."""
        return _paths(self.take(self.put_call("search", query=query)))

    def end(self) -> int:
        """The client leaves. The session's exit status."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        status = self.process.wait(WAIT_S)
        assert self._held + self.process.stdout.read() == b""
        return status

    def said(self) -> str:
        return self._errors.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _send(self, line: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(line)


def _paths(answer: dict[str, Any]) -> list[str]:
    return [found["path"] for found in answer["result"]["structuredContent"]["results"]]


class Owner(Person):
    """Someone with several agents, each attached to a client. Every process of theirs ends with `end`."""

    def __init__(self, root: Path, *, deep: str = "") -> None:
        """`deep`: folders between `root` and their Link folder."""
        super().__init__(root)
        if deep:
            self.link = root / deep / "Link"
            self.environment["LNK_HOME"] = str(self.link)
        self.environment["XDG_RUNTIME_DIR"] = str(root / "run")
        (root / "run").mkdir(mode=0o700)
        self.sessions: list[Wire] = []

    # ------------------------------------------------------------ agents

    def agent(self, name: str, text: str = "", *, owner: str = "") -> str:
        """A new agent whose memory is attached to a client, and holds one document that says `text`. Its id."""
        self.shows("agent", "new", name)
        settings = self.own(name) / "agent.toml"
        said = settings.read_text()
        if owner:
            kept = [line for line in said.splitlines() if not line.startswith("owner")]
            settings.write_text("\n".join((*kept, f'owner = "{owner}"', "")))
        (self.own(name) / "spec.toml").write_text('[tool.memory]\nmodel = "none"\n')
        self.document(name, f"{name}.md", f"# {name}\n\n{text or f'The word of {name} is {name}word.'}\n")
        self.attach(name)
        return next(line for line in said.splitlines() if line.startswith("id")).split('"')[1]

    def attach(self, name: str) -> None:
        self.shows("agent", "memory", "setup", "cursor", "--agent", name, "--print", "--json")

    def own(self, name: str) -> Path:
        return self.link / "Agents" / name / "Agent"

    def document(self, name: str, path: str, text: str) -> None:
        file = self.link / "Agents" / name / "Home/memory" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def notes(self, name: str) -> str:
        file = self.own(name) / "memory/notes.md"
        return file.read_text() if file.exists() else ""

    def place(self, agent: str) -> Path:
        """`<dir>`, of the service that serves the agent of that id."""
        (entry,) = self.link.glob(f"Agents/.memory/*/agents/{agent}.json")
        return entry.parent.parent

    # ------------------------------------------------------------ sessions

    def proxied(self, agent: str, **more: Any) -> Wire:
        """A session as the configuration of a client has it."""
        return self.wire(self.command(agent), **more)

    def command(self, agent: str) -> list[str]:
        return [sys.executable, "-I", "-S", str(run_file.__file__), f"memory-{agent}"]

    def relayed(self, agent: str, place: Path | None = None, **more: Any) -> Wire:
        """A session by the relay alone."""
        return self.wire([LNK, "agent", "memory", "connect", str(place or self.place(agent)), agent], **more)

    def wire(self, argv: list[str], **more: Any) -> Wire:
        environment = self.environment | more.pop("env", {})
        self.sessions.append(Wire(argv, environment, self.root / f"{len(self.sessions)}.err", **more))
        return self.sessions[-1]

    def service_log(self) -> list[dict[str, Any]]:
        return json.loads(self.shows("agent", "memory", "service", "--log", "--json"))["log"]

    # ------------------------------------------------------------ processes

    def hosts(self) -> list[int]:
        """The processes that stand before an engine."""
        return self._processes("lnk.agent.host")

    def engines(self) -> list[int]:
        """The engines' processes, in their sandboxes."""
        return [pid for pid in self._processes("serve-many") if not _is_bubblewrap(pid)]

    def waiting_for_ever(self) -> list[int]:
        """What bubblewrap 0.8 to 0.11 leaves where it dies with its parent before it has told its child to go on."""
        return [pid for pid in self._processes("serve-many") if _is_bubblewrap(pid) and _parent(pid) == 1]

    def services(self) -> list[int]:
        """All processes of services, and those that start one."""
        return sorted({*self._processes(".memory/"), *self.hosts()} - {wire.process.pid for wire in self.sessions})

    def _processes(self, word: str) -> list[int]:
        found = [(int(name), _argv(int(name))) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid, argv in found if f"{self.link}/".encode() in argv and word.encode() in argv]

    def kill(self, which: str) -> None:
        """The one `engine`, or the one `host` before it, dies at once, and then the other of itself."""
        before = set(self.services())
        (pid,) = self.engines() if which == "engine" else self.hosts()
        os.kill(pid, signal.SIGKILL)
        assert soon(lambda: not before & set(self.services()))

    def stop_services(self, *, killed: bool = False) -> None:
        """Each service is told to end, and has ended. `killed`: one was, maybe before bubblewrap had begun."""
        told: set[int] = set()

        def have_ended() -> bool:
            for pid in set(self.hosts()) - told:  # a starter that was killed may have begun one that is seen only now
                told.add(pid)
                _tell(pid, signal.SIGTERM)
            for pid in self.waiting_for_ever() if killed else ():
                _tell(pid, signal.SIGKILL)
            return not self.services()

        assert soon(have_ended), [_argv(pid) for pid in self.services()]

    def end(self) -> None:
        for wire in self.sessions:
            wire.kill()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.hosts() if number == signal.SIGTERM else self.services():
                _tell(pid, number)
            if soon(lambda: not self.services()):
                break


def _argv(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_bubblewrap(pid: int) -> bool:
    return b"bwrap" in _argv(pid).partition(b"\0")[0]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _tell(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _ends(pid: int) -> list[str]:
    """What a process has open."""
    return [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]


def status(place: Path) -> dict[str, Any]:
    """What the one service in `<dir>` says of itself."""
    (name,) = [each.name for each in place.glob("*.sock")]
    return ask(place, name, STATUS)


def ask(place: Path, name: str, line: bytes) -> dict[str, Any]:
    """What a connection to that socket is answered."""
    folder = os.open(place, os.O_RDONLY)
    try:
        stream = socket.socket(fileno=connect(folder, str(place), name).detach())
    finally:
        os.close(folder)
    with stream:
        stream.settimeout(WAIT_S)
        stream.sendall(line + b"\n")
        return json.loads(stream.makefile().readline())


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path)
    yield owner
    owner.end()


@pytest.fixture
def main(owner: Owner) -> str:
    """The agent main, which knows what colour the door is."""
    return owner.agent("main", "The door is cobalt blue.")


def is_swept(place: Path) -> bool:
    """Whether nothing of a service is left in its folder but what it serves, and its log."""
    return set(os.listdir(place)) <= {"agents", LOG}


# ---------------------------------------------------------------- one process for all


@pytest.mark.requirement("SHARED-1", "SHARED-2", "SHARED-3")
def test_sessions_of_two_agents_are_served_by_one_engine_each_from_its_own_folder_until_the_last_is_over(owner):
    one, two = owner.agent("one"), owner.agent("two")
    wires = [owner.proxied(one), owner.proxied(two), owner.relayed(one), owner.relayed(two), owner.proxied(two)]
    for wire, era in zip(wires, (*ERAS, *ERAS, "stateless"), strict=True):
        wire.open(era)
    for wire, name in zip(wires, ("one", "two", "one", "two", "two"), strict=True):
        assert wire.paths("oneword twoword") == [f"memory/{name}.md"]
    place = owner.place(one)
    found = status(place)
    assert ([found["pid"]], len(owner.engines())) == (owner.hosts(), 1)
    assert found["sessions"] == {one: 2, two: 3}
    assert [wire.end() for wire in wires] == [0] * 5
    assert soon(lambda: not owner.services())
    assert is_swept(place)


@pytest.mark.requirement("SHARED-1")
def test_the_agents_of_two_owners_share_no_process_and_no_folder_and_neither_is_served_by_the_others(owner):
    mine, theirs = owner.agent("mine"), owner.agent("theirs", owner="somebody")
    wires = [owner.proxied(mine).open(), owner.proxied(theirs).open()]
    places = owner.place(mine), owner.place(theirs)
    assert places[1] == places[0].parent / "somebody"
    for wire, place, agent, name in zip(wires, places, (mine, theirs), ("mine", "theirs"), strict=True):
        assert wire.paths("word") == [f"memory/{name}.md"]
        assert status(place)["sessions"] == {agent: 1}
    assert (len(owner.hosts()), len(owner.engines())) == (2, 2)
    (name,) = [each.name for each in places[0].glob("*.sock")]
    refused = ask(places[0], name, json.dumps({"agent": theirs}).encode())
    assert refused == {"error": f"No agent '{theirs}' is served here."}
    wrong = owner.relayed(theirs, places[0])
    assert wrong.end() == MISSING
    assert wrong.said() == f"lnk: No agent '{theirs}' is served here; `lnk agent memory start` serves one.\n"


@pytest.mark.requirement("SHARED-3")
def test_nothing_of_the_services_folder_and_of_another_agents_folder_is_in_the_engines_sandbox(owner, main):
    owner.proxied(main).open()
    place = owner.place(main)
    owner.write("Link/Agents/stranger/Home/memory/secret.md", "hidden\n")
    (engine,) = owner.engines()
    if best(os.environ).way not in (Way.BUBBLEWRAP, Way.BUNDLED):
        skip_loudly("the sandbox has no file system of its own here")
    inside = Path(f"/proc/{engine}/root")
    seen = set(os.listdir(f"{inside}{place}"))
    assert {name.partition(".")[2] for name in seen} == {"json"}
    assert set(os.listdir(f"{inside}{owner.link}/Agents")) == {".memory", "main"}
    assert set(os.listdir(f"{inside}{place.parent}")) == {place.name}


def test_nothing_that_a_client_holds_reaches_the_engine_but_the_sessions_connection(owner, main):
    with (owner.root / "secret").open("w") as secret:
        held = os.dup2(secret.fileno(), 77)
        try:
            owner.proxied(main, pass_fds=(held,), env={"SECRET": "of the client", "PYTHONSTARTUP": "x"}).open()
        finally:
            os.close(held)
    (engine,) = owner.engines()
    assert b"SECRET" not in Path(f"/proc/{engine}/environ").read_bytes()
    assert b"PYTHONSTARTUP" not in Path(f"/proc/{engine}/environ").read_bytes()
    assert sum(end.startswith("socket:") for end in _ends(engine)) == 2  # the way to it, and the session
    for pid in owner.services():
        ends = _ends(pid)
        assert not [end for end in ends if str(owner.root / "secret") in end or end.endswith(".err")]
        assert os.getsid(pid) not in (os.getsid(0), owner.sessions[0].process.pid)


@pytest.mark.requirement("SHARED-3", "SHARED-4")
def test_the_service_goes_on_when_its_first_client_and_all_in_its_group_are_interrupted(owner, main):
    first = owner.proxied(main, start_new_session=True).open()
    second = owner.proxied(main).open()
    os.killpg(first.process.pid, signal.SIGINT)
    assert first.process.wait(WAIT_S) == 128 + signal.SIGINT
    (host,) = owner.hosts()
    assert second.paths("door") == ["memory/main.md"]
    assert owner.hosts() == [host]


# ---------------------------------------------------------------- a session outlives its engine


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("killed", WHICH)
def test_a_session_goes_on_with_the_next_service_when_its_own_is_killed_while_nothing_is_asked(
    owner, main, era, killed
):
    proxy, relay = owner.proxied(main).open(era), owner.relayed(main).open(era)
    assert proxy.paths("door") == ["memory/main.md"]
    owner.kill(killed)
    for wire in (proxy, relay):
        assert wire.paths("which colour is the door") == ["memory/main.md"]
    assert (len(owner.hosts()), len(owner.engines())) == (1, 1)
    assert (proxy.end(), proxy.said(), relay.end(), relay.said()) == (0, "", 0, "")


@pytest.mark.parametrize("era", ERAS)
def test_a_session_lives_through_its_engine_being_killed_ten_times_in_a_row(owner, main, era):
    wire = owner.proxied(main).open(era)
    for number in range(KILLS):
        owner.kill(WHICH[number % 2])
        assert wire.paths("door") == ["memory/main.md"]
    assert (wire.end(), wire.said()) == (0, "")


@pytest.mark.parametrize("killed", WHICH)
def test_a_client_that_leaves_after_its_engine_was_killed_is_told_of_no_fault(owner, main, killed):
    wire = owner.proxied(main).open()
    owner.kill(killed)
    assert (wire.end(), wire.said()) == (0, "")


@contextlib.contextmanager
def held(owner: Owner, name: str) -> Iterator[None]:
    """Another process brings the agent's index up to date, so that each of its calls waits."""
    with (owner.own(name) / "memory/link/index.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("killed", WHICH)
def test_calls_that_wait_when_the_engine_is_killed_are_answered_where_they_only_read(owner, main, era, killed):
    """Each that reads is made again by the next engine; `remember`, of which nobody knows, is answered so."""
    wire = owner.proxied(main).open(era)
    assert wire.paths("door") == ["memory/main.md"]
    with held(owner, "main"):
        owner.document("main", "new.md", "# New\n\nThe gate is green.\n")
        searches = [wire.put_call("search", query="gate green"), wire.put_call("read", path="memory/main.md")]
        noted = wire.put_call("remember", note="The bell is broken")
        assert soon(lambda: waits(owner))
        owner.kill(killed)
        lost = wire.take(noted)["result"]
        assert lost["isError"] is True
        assert lost["content"][0]["text"].startswith("The tool ended before it answered this, so it is not known")
    assert _paths(wire.take(searches[0])) == ["memory/new.md"]
    assert "cobalt" in wire.take(searches[1])["result"]["structuredContent"]["text"]
    assert owner.notes("main").count("The bell is broken") <= 1
    again = wire.take(wire.put_call("remember", note="The bell is mended"))["result"]
    assert not again.get("isError")
    assert owner.notes("main").count("The bell is mended") == 1
    log = json.loads(owner.shows("sandbox", "tool", "log", f"memory-{main}", "--json"))
    assert [line["outcome"] for line in log if line["call"] == "remember"] == ["unanswered", "ok"]
    assert (wire.end(), wire.said()) == (0, "")


def waits(owner: Owner) -> bool:
    """Whether the engine waits for a file that another process holds."""
    (engine,) = owner.engines()
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[1] == "->" and str(engine) in words for words in locks)


def test_a_session_whose_agent_is_served_no_more_when_its_engine_dies_says_why_and_ends(owner, main):
    wire = owner.proxied(main).open()
    owner.place(main).joinpath("agents", f"{main}.json").unlink()
    owner.kill("engine")
    why = f"No agent '{main}' is served here; `lnk agent memory start` serves one."
    answer = wire.take(wire.put_call("search", query="door"))
    assert answer["error"]["message"] == why
    assert (wire.process.wait(WAIT_S), wire.said()) == (UNAVAILABLE, f"lnk: {why}\n")


# ---------------------------------------------------------------- the start


@pytest.mark.requirement("SHARED-4")
def test_sessions_that_begin_or_go_on_at_once_start_one_service_whatever_was_killed_before(owner, main):
    place = owner.place(main)
    wires = [(owner.relayed if number % 2 else owner.proxied)(main) for number in range(RELAYS)]
    for wire in wires:
        wire.later = wire.put("server/discover", {})
    for wire in wires:
        wire.take(wire.later)
    for killed in (*WHICH, None):
        assert (len(owner.hosts()), len(owner.engines())) == (1, 1)
        assert status(place)["sessions"] == {main: RELAYS}
        if killed:
            owner.kill(killed)
            asked = [(wire, wire.put_call("search", query="door")) for wire in wires]
            assert [_paths(wire.take(number)) for wire, number in asked] == [["memory/main.md"]] * RELAYS
    assert [line["event"] for line in owner.service_log()].count("started") == 3
    assert [wire.end() for wire in wires] == [0] * RELAYS


SYSTEMD_RUN = """\
#!{python}
import json, subprocess, sys
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
at = sys.argv.index("--")
told = dict(word[9:].split("=", 1) for word in sys.argv[1:at] if word.startswith("--setenv="))
if {how!r} == "runs":
    subprocess.Popen(sys.argv[at + 1:], env=told, start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
sys.exit({how!r} == "fails")
"""


@pytest.mark.requirement("SHARED-4")
@pytest.mark.parametrize("how", ["runs", "fails", "does nothing"])
def test_systemd_starts_the_service_in_a_unit_of_its_own_where_it_can_and_else_the_session_does(owner, main, how):
    """systemd's program is a stand-in, which runs what it is given with the variables that it is told."""
    log = owner.root / "systemd-run.log"
    program = owner.write("bin/systemd-run", SYSTEMD_RUN.format(python=sys.executable, log=str(log), how=how))
    program.chmod(0o755)
    owner.write("run/systemd/private", "")
    path = f"{program.parent}:{owner.environment['PATH']}"
    wire = owner.proxied(main, env={"PATH": path, "SECRET": "of the client"}).open()
    assert wire.paths("door") == ["memory/main.md"]
    (asked,) = map(json.loads, log.read_text().splitlines())
    assert asked[:3] == ["--user", "--quiet", "--collect"]
    assert {f"--setenv=LNK_HOME={owner.link}", f"--setenv=PATH={path}"} <= set(asked)
    assert not [word for word in asked if "SECRET" in word]
    command = asked[asked.index("--") + 1 :]
    assert command[0] == sys.executable
    assert command[-5:] == ["memory", "service", str(owner.place(main)), "--engine", "link"]
    (host,) = owner.hosts()
    assert (b"SECRET" in Path(f"/proc/{host}/environ").read_bytes()) == (how != "runs")
    assert (wire.end(), wire.said()) == (0, "")


def test_a_service_that_has_nothing_to_serve_says_so_and_does_not_begin(owner, main):
    place = owner.place(main)
    (place / "agents" / f"{main}.json").unlink()
    said = owner.refused(MISSING, "agent", "memory", "service", place)
    assert said == "lnk: There is nothing to serve: no agent's memory is started\n"
    assert owner.proxied(main).end() == MISSING
    assert set(os.listdir(place)) == {"agents"}


def test_a_folder_of_an_index_that_was_deleted_is_made_again_for_the_next_session(owner, main):
    shutil.rmtree(owner.own("main") / "memory")
    assert owner.proxied(main).open().paths("door") == ["memory/main.md"]


def test_an_agent_whose_folder_cannot_be_served_costs_the_other_agents_nothing(owner, main):
    """The engine's sandbox is made of all agents' folders: the one that is a link to elsewhere is left out."""
    other = owner.agent("other")
    state = owner.own("main") / "memory/link"
    shutil.rmtree(state)
    state.symlink_to(owner.root)
    assert owner.proxied(other).open().paths("otherword") == ["memory/other.md"]
    wire = owner.proxied(main)
    assert wire.end() == REFUSED
    assert "'link' of" in wire.said() and wire.said().endswith("move it away.\n")
    (left_out,) = [line for line in owner.service_log() if line["event"] == "left out"]
    assert (left_out["agent"], str(state) in left_out["why"]) == (main, True)


@pytest.mark.requirement("SANDBOX-1")
def test_a_session_says_why_where_no_sandbox_can_be_made_and_no_engine_runs_without(owner, main):
    bare = {"PATH": str(owner.root), "PYTHONPATH": f"{NO_BUBBLEWRAP}:{WORDS_ALONE}"}
    wire = owner.wire([*NO_LANDLOCK, *owner.command(main)], env=bare)
    assert wire.end() == UNAVAILABLE
    assert wire.said().startswith("lnk: The memory service did not start: Nothing here can confine a program. Tried")
    assert not owner.services()


@pytest.mark.parametrize("fault", ["another's", "entered by others", "unwritable", "full"])
def test_a_session_says_why_where_the_services_folder_is_not_as_it_should_be_and_begins_once_it_is(owner, fault):
    services = owner.link / "Agents/.memory"
    before: list[str] = []
    with small_disk(services, "64k") if fault == "full" else contextlib.nullcontext():
        main = owner.agent("main", "The door is blue.")
        place = owner.place(main)
        if fault == "another's":
            needs_root("give a folder away")
            os.chown(place, NOBODY, -1)
        elif fault == "entered by others":
            place.chmod(0o755)
        elif fault == "unwritable":
            before = ordinary([])
            place.chmod(0o500)
        else:
            fill(place / "filler")
        wire = owner.wire([*before, *owner.command(main)])
        why = {
            "unwritable": (UNAVAILABLE, "did not start: Could not open link-", "Permission denied.\n"),
            "full": (UNAVAILABLE, f"did not start: Could not write {place}/link-", "No space left on device.\n"),
        }.get(fault, (REFUSED, f"{place} is no folder that is this user's alone", "with mode 700.\n"))
        status, begins, ends = why
        assert wire.end() == status
        assert begins in wire.said()
        assert wire.said().endswith(ends)
        assert soon(lambda: not owner.services())
        (place / "filler").unlink(missing_ok=True)
        os.chown(place, os.geteuid(), -1)
        place.chmod(0o700)
        assert owner.proxied(main).open().paths("door") == ["memory/main.md"]
        owner.end()
        assert is_swept(place)


def fill(file: Path) -> None:
    """No room is left on the disk."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as out:
        while True:
            out.write(b"." * 512)


@pytest.mark.requirement("SOCKET-1")
def test_another_user_cannot_connect_even_where_the_folder_and_the_socket_are_open(owner, main):
    needs_root("be another user")
    owner.proxied(main).open()
    place = owner.place(main)
    (socket_file,) = place.glob("*.sock")
    assert (socket_file.stat().st_mode & 0o777, place.stat().st_mode & 0o777) == (0o600, 0o700)
    assert stranger(socket_file) == "PermissionError"
    for folder in (place, *place.parents):
        if folder != folder.parent and not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 1)
    socket_file.chmod(0o666)
    assert stranger(socket_file) == "closed"
    assert owner.service_log()[-1]["why"] == f"user {NOBODY} may not connect"


STRANGER = """
import socket, sys
stream = socket.socket(socket.AF_UNIX)
try:
    stream.connect(sys.argv[1])
    stream.sendall(sys.argv[2].encode() + b"\\n")
    print(stream.recv(4096).decode() or "closed")
except OSError as error:
    print("closed" if isinstance(error, (ConnectionResetError, BrokenPipeError)) else type(error).__name__)
"""


def stranger(file: Path, line: str = '{"status": true}', *, user: int = NOBODY, group: int = NOBODY) -> str:
    """What comes of another user's connection to the socket."""
    argv = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "/usr/bin/python3", "-c", STRANGER]
    folder = os.open(file.parent, os.O_PATH)
    done = subprocess.run(
        [*argv, f"/proc/self/fd/{folder}/{file.name}", line],
        capture_output=True,
        text=True,
        pass_fds=[folder],
        timeout=WAIT_S,
    )
    os.close(folder)
    return done.stdout.strip() or done.stderr


@pytest.mark.requirement("SOCKET-1")
def test_a_peer_of_the_socket_s_group_is_let_in_and_nobody_else(owner, main):
    """To the sessions alone: what the service says of itself is the owner's."""
    needs_root("be another user")
    place = owner.place(main)
    argv = [LNK, "agent", "memory", "service", str(place), "--peer", "nobody", "--group", str(NOBODY)]
    closed = next(folder for folder in place.parent.parents if not folder.stat().st_mode & 1)
    done = owner.lnk(*argv[1:])  # which says where nobody gets through
    assert (done.returncode, done.stdout) == (REFUSED, "") and "lets nobody of that group through" in done.stderr
    for folder in closed, *closed.parents, *place.parents:
        if folder != folder.parent and not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 1)
    service = subprocess.Popen(argv, env=owner.environment, stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout.readline() == "ready\n"
        (socket_file,) = place.glob("*.sock")
        assert (socket_file.stat().st_mode & 0o777, place.stat().st_mode & 0o777) == (0o660, 0o710)
        hello = json.dumps({"agent": main})
        assert json.loads(stranger(socket_file, hello)) == {"ok": True}
        assert "agent" in json.loads(stranger(socket_file))["error"]
        assert stranger(socket_file, hello, user=NOBODY - 1) == "closed"
        assert stranger(socket_file, hello, user=NOBODY - 1, group=NOBODY - 1) == "PermissionError"
        assert owner.proxied(main).open().paths("door") == ["memory/main.md"]
    finally:
        service.terminate()
        service.wait(WAIT_S)
        service.stdout.close()
    owner.proxied(main).open()  # by a service that was started without one
    assert place.stat().st_mode & 0o777 == 0o700
    done = owner.lnk(*argv[1:])
    assert done.returncode == CONFLICT and "runs already" in done.stderr


@pytest.mark.requirement("SOCKET-1")
@pytest.mark.parametrize("flags", [("--peer", ""), ("--peer", "99999999", "--group", "0"), ("--peer", "nobody")])
def test_a_peer_or_a_group_that_is_none_keeps_the_service_from_starting(owner, main, flags):
    """case socket-04"""
    done = owner.lnk("agent", "memory", "service", owner.place(main), *flags)
    assert done.returncode == 10 and done.stdout == "" and done.stderr.count("\n") == 1
    assert not owner.services()


@pytest.mark.requirement("SHARED-4")
def test_a_socket_that_somebody_took_away_is_there_again_and_no_second_service(owner, main):
    first = owner.proxied(main).open()
    (socket_file,) = owner.place(main).glob("*.sock")
    socket_file.unlink()
    second = owner.proxied(main).open()  # it waits for that
    assert second.paths("door") == first.paths("door") == ["memory/main.md"]
    assert len(owner.hosts()) == len(owner.engines()) == 1


@pytest.mark.requirement("SHARED-7")
def test_a_newer_link_starts_its_service_beside_the_one_of_the_older(owner, main):
    """What the agent is served with was made by another release: the next session has it made anew, and finds another
    service. Whoever is served by the older one goes on there.
    """
    place = owner.place(main)
    file = place / "agents" / f"{main}.json"
    made = json.loads(file.read_text())
    file.write_text(json.dumps(made | {"link": "0.0.1"}))
    before = file.read_bytes()
    # As a program of that release does it, which finds its own.
    service = subprocess.Popen(
        [LNK, "agent", "memory", "service", str(place)], env=owner.environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert service.stdout.readline() == "ready\n"
        (old,) = place.glob("*.sock")
        stream = socket.socket(socket.AF_UNIX)
        folder = os.open(place, os.O_PATH)
        stream.connect(f"/proc/self/fd/{folder}/{old.name}")
        os.close(folder)
        with stream, stream.makefile("rwb", buffering=0) as lines:
            lines.write(json.dumps({"agent": main}).encode() + b"\n")
            assert json.loads(lines.readline()) == {"ok": True}
            newer = owner.proxied(main).open()
            assert newer.paths("door") == ["memory/main.md"]
            assert json.loads(file.read_text())["link"] == __version__ and file.read_bytes() != before
            assert len(list(place.glob("*.sock"))) == len(owner.engines()) == 2
            meta = {VERSION_META: MODERN[0], CAPABILITIES_META: {}}
            asked = {"name": "search", "arguments": {"query": "door"}, "_meta": meta}
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}
            lines.write(json.dumps(request).encode() + b"\n")
            found = json.loads(lines.readline())["result"]["structuredContent"]
            assert [each["path"] for each in found["results"]] == ["memory/main.md"]
        assert service.wait(WAIT_S) == 0  # with its last session
        assert not old.exists() and newer.paths("door") == ["memory/main.md"]
    finally:
        service.kill()
        service.stdout.close()


@pytest.mark.requirement("SHARED-4")
def test_a_service_is_reached_in_a_folder_whose_path_is_longer_than_a_sockets_address(tmp_path):
    """Case socket-01."""
    owner = Owner(tmp_path, deep="d" * 120)
    try:
        agent = owner.agent("main", "The door is blue.")
        assert len(str(owner.place(agent))) > 107
        assert owner.proxied(agent).open().paths("door") == ["memory/main.md"]
        assert owner.relayed(agent).open().paths("door") == ["memory/main.md"]
    finally:
        owner.end()


def test_a_relay_takes_the_services_folder_by_a_relative_path(owner, main):
    place = owner.place(main).relative_to(owner.root)
    assert owner.relayed(main, place, cwd=owner.root).open().paths("door") == ["memory/main.md"]


CALLS: Final = ("flock", "fsync", "renameat", "socketpair", "clone", "execve", "bind", "listen", "unlinkat")
EACH_MAX: Final = 6  # of the calls of one name


def test_a_service_killed_at_any_point_of_its_start_or_end_is_followed_by_another_and_nothing_is_left(owner, main):
    """By strace, at each call of some names, in whichever of the start's processes makes it."""
    needs_strace()
    place = owner.place(main)
    trace = owner.root / "trace"

    def live(*faults: str) -> None:
        argv = [LNK, "agent", "memory", "service", str(place)]
        traced = under_strace(argv, trace, *faults, calls=",".join(CALLS))
        process = subprocess.Popen(
            traced, env=owner.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout
        with process.stdout as said:
            assert select.select([said], [], [], WAIT_S)[0], "it neither listens nor is dead"
            os.read(said.fileno(), 64)
        owner.stop_services(killed=bool(faults))
        process.wait(WAIT_S)

    live()
    most = most_by_one_thread(trace)
    assert {"flock", "renameat", "bind", "listen", "unlinkat"} <= most.keys()
    most["execve"] -= 1  # the first is strace's own
    points = [(name, number) for name in CALLS for number in range(1, min(most[name], EACH_MAX) + 1)]
    for name, number in points[points.index(("flock", 1)) :]:
        live(f"{name}:signal=SIGKILL:when={number}")
        assert re.search(rf"{name}(\(| resumed).*= \?$", trace.read_text(errors="replace"), re.M), (name, number)
        wire = owner.proxied(main).open()
        assert wire.paths("door") == ["memory/main.md"], (name, number)
        assert (len(owner.hosts()), len(owner.engines())) == (1, 1), (name, number)
        assert wire.end() == 0
        owner.stop_services()
        assert is_swept(place), (name, number, os.listdir(place))


def test_what_a_killed_service_left_goes_with_the_next_one_though_that_serves_other_agents(owner, main):
    place = owner.place(main)
    owner.proxied(main).open()
    owner.kill("host")
    left = {name for name in os.listdir(place) if name.startswith("link-")}
    assert {name.rpartition(".")[2] for name in left} == {"sock", "json", "lock"}
    other = owner.agent("other")
    owner.proxied(other).open()
    assert not left & set(os.listdir(place))


# ---------------------------------------------------------------- changes


def differences(owner: Owner, name: str) -> int:
    """In how much the agent's index differs from its folder."""
    own = owner.own(name)
    argv = [ENGINE, "check", str(own.parent / "Home"), str(own / "memory/link"), str(own), "--json"]
    return json.loads(subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S).stdout)["differences"]


@pytest.mark.requirement("SHARED-7")
def test_a_change_to_the_agents_served_makes_a_new_service_and_the_old_one_ends_after_its_last_session(owner, main):
    """Case concurrency-01: meanwhile both keep one index."""
    place = owner.place(main)
    old = [owner.proxied(main).open() for _ in range(5)]
    (first,) = owner.hosts()
    other = owner.agent("other")
    new = [owner.proxied(main).open(), owner.proxied(other).open()]
    assert len({name for name in os.listdir(place) if name.endswith(".sock")}) == 2
    assert (len(owner.hosts()), first in owner.hosts()) == (2, True)
    assert new[1].paths("otherword") == ["memory/other.md"]
    for number, wire in enumerate((*old, new[0])):
        owner.document("main", f"{number}.md", f"# Number {number}\n\nIt is sign{number}.\n")
        noted = [each.put_call("remember", note=f"note {number}") for each in (wire, new[0])]
        for each, asked in zip((wire, new[0]), noted, strict=True):
            assert not each.take(asked)["result"].get("isError")
        for each in (*old, new[0]):
            assert each.paths(f"sign{number}") == [f"memory/{number}.md"]
    assert differences(owner, "main") == 0
    assert all(f"note {number}" in owner.notes("main") for number in range(6))
    assert [wire.end() for wire in old] == [0] * 5
    assert soon(lambda: first not in owner.hosts())
    assert status(place)["sessions"] == {main: 1, other: 1}
    assert new[0].paths("sign1") == ["memory/1.md"]


@pytest.mark.requirement("SHARED-7")
def test_settings_changed_by_hand_are_those_of_the_next_session_and_wrong_ones_are_told_there(owner, main):
    before = owner.proxied(main).open()
    spec = owner.own("main") / "spec.toml"
    spec.write_text('[tool.memory]\nmodel = "none"\nnotes = "1 KB"\n')
    after = owner.proxied(main).open()
    long = "x" * 2000
    refused = after.take(after.put_call("remember", note=long))["result"]
    assert (refused["isError"], "1,024 bytes" in refused["content"][0]["text"]) == (True, True)
    assert not before.take(before.put_call("remember", note=long))["result"].get("isError")
    spec.write_text("[tool.memory\n")
    wire = owner.proxied(main)
    assert wire.end() == CORRUPT
    assert (str(spec) in wire.said(), wire.said().count("\n")) == (True, 1)
    assert before.paths("door") == after.paths("door") == ["memory/main.md"]


@pytest.mark.parametrize(
    ("command", "then"),
    [
        (("agent", "memory", "stop", "--agent", "main"), "is stopped; `lnk agent memory start` starts it"),
        (("agent", "memory", "remove", "--agent", "main"), "There is no tool"),
        (("agent", "remove", "main"), "There is no tool"),
    ],
)
def test_a_memory_that_is_stopped_or_removed_ends_its_sessions_and_no_other_agents(owner, main, command, then):
    other = owner.agent("other")
    wires = [owner.proxied(main).open(), owner.relayed(main).open()]
    kept = owner.proxied(other).open()
    place = owner.place(main)
    owner.shows(*command)
    for wire in wires:
        assert wire.process.wait(WAIT_S) == 128 + signal.SIGTERM
    wire = owner.proxied(main)
    wire.end()
    assert then in wire.said()
    wire = owner.relayed(main, place)
    wire.end()
    assert then in wire.said()
    assert kept.paths("otherword") == ["memory/other.md"]
    assert owner.proxied(other).open().paths("otherword") == ["memory/other.md"]
    assert owner.proxied(other)


def test_a_service_whose_folder_is_removed_under_it_ends_with_its_last_session(owner, main):
    wire = owner.proxied(main).open()
    shutil.rmtree(owner.place(main))
    assert wire.paths("door") == ["memory/main.md"]
    assert wire.end() == 0
    assert soon(lambda: not owner.services())


# ---------------------------------------------------------------- clients that are not ours


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_mcp_packages_client_and_two_agents_relays_live_through_the_kills_of_the_one_engine(owner, main, mode):
    other = owner.agent("other")
    relays = {"memory/main.md": owner.relayed(main).open(), "memory/other.md": owner.relayed(other).open("handshake")}

    async def judge() -> None:
        command, *args = owner.command(main)
        server = StdioServerParameters(command=command, args=args, env=owner.environment)
        async with McpClient(stdio_client(server), mode=mode, read_timeout_seconds=WAIT_S) as client:
            for killed in (None, *WHICH):
                if killed:
                    owner.kill(killed)
                found = await client.call_tool("search", {"query": "cobalt"})
                assert [each["path"] for each in found.structured_content["results"]] == ["memory/main.md"]
                for path, wire in relays.items():
                    assert wire.paths("cobalt otherword") == [path]
                assert (len(owner.hosts()), len(owner.engines())) == (1, 1)

    anyio.run(judge)


def test_claude_code_finds_the_memories_of_two_agents_connected_by_one_engine(owner, main, request, tmp_path):
    """In a HOME of its own: `mcp list` starts both sessions and speaks MCP with them, and needs no network."""
    program = request.getfixturevalue("npm")(CLAUDE) / "claude"
    other = owner.agent("other")
    owner.proxied(main).open()
    environment = {**owner.environment, "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    environment["PATH"] = os.environ["PATH"]

    def claude(*words: str) -> str:
        done = subprocess.run(
            [str(program), *words],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CLAUDE_WAIT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        claude("--version")
    except (OSError, AssertionError) as error:
        skip_loudly(f"{CLAUDE} does not run here: {str(error)[-300:]}")
    for agent in (main, other):
        claude("mcp", "add", "-s", "user", agent, "-e", f"LNK_HOME={owner.link}", "--", *owner.command(agent))
    listed = claude("mcp", "list").splitlines()
    for agent in (main, other):
        (line,) = [line for line in listed if line.startswith(f"{agent}:")]
        assert line.endswith("Connected")
    assert (len(owner.hosts()), len(owner.engines())) == (1, 1)


# ---------------------------------------------------------------- what a strict owner asks


def test_a_service_started_by_hand_gives_its_engine_nothing_that_its_starter_left_open(owner, main):
    """By a folder's descriptor a sandbox is walked out of."""
    left = os.open(owner.root, os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(left, True)
    argv = [LNK, "agent", "memory", "service", str(owner.place(main))]
    service = subprocess.Popen(argv, env=owner.environment, stdout=subprocess.PIPE, text=True, close_fds=False)
    try:
        assert service.stdout.readline() == "ready\n"
        assert owner.proxied(main).open().paths("door") == ["memory/main.md"]
        for pid in (*owner.engines(), *owner.hosts()):
            held = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
            assert str(owner.root) not in held
    finally:
        os.close(left)
        service.terminate()
        service.wait(WAIT_S)
        service.stdout.close()


@pytest.mark.requirement("SHARED-1")
def test_an_agent_that_has_another_owner_by_now_is_served_by_nobodys_process_until_it_is_started(owner, main):
    assert owner.proxied(main).open().paths("door") == ["memory/main.md"]
    before = owner.place(main)
    file = owner.own("main") / "agent.toml"
    file.write_text(file.read_text().replace(f'owner = "{before.name}"', 'owner = "boris"'))
    wire = owner.proxied(main)
    assert wire.end() == REFUSED and "belongs to boris by now" in wire.said()
    owner.attach("main")
    after = owner.place(main)
    assert (after.name, owner.proxied(main).open().paths("door")) == ("boris", ["memory/main.md"])
    assert not (before / "agents" / f"{main}.json").exists()


@pytest.mark.requirement("SHARED-7")
def test_what_a_newer_link_made_is_taken_as_it_is(owner, main):
    """Two releases that clients of a person start by turns do not make it anew each time."""
    file = owner.place(main) / "agents" / f"{main}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"link": "99.0.1"}))
    made = file.read_bytes()
    assert owner.proxied(main).open().paths("door") == ["memory/main.md"]
    assert file.read_bytes() == made


@pytest.mark.requirement("SHARED-2")
@pytest.mark.parametrize("which", ["documents", "notes"])
def test_a_folder_put_in_the_place_of_another_is_the_one_that_open_sessions_go_on_with(owner, main, which):
    """A restored copy, or what a sync tool does: the sandbox holds what was there before."""
    wire = owner.proxied(main).open()
    assert wire.paths("door") == ["memory/main.md"]
    if which == "documents":
        folder = owner.link / "Agents" / "main" / "Home"
    else:
        folder = owner.own("main") / "memory"
    folder.rename(folder.with_name("aside"))
    shutil.copytree(folder.with_name("aside"), folder)
    if which == "documents":
        (folder / "memory" / "new.md").write_text("A door that is new.\n")
        assert sorted(wire.paths("door")) == ["memory/main.md", "memory/new.md"]
        assert sorted(owner.proxied(main).open().paths("door")) == ["memory/main.md", "memory/new.md"]
        return
    assert "error" not in wire.take(wire.put_call("remember", note="the gate is green"))
    assert "gate is green" in (folder / "notes.md").read_text()
    aside = folder.with_name("aside") / "notes.md"
    assert not aside.exists() or "gate is green" not in aside.read_text()


def test_an_index_folder_that_is_deleted_under_a_session_is_made_again_and_the_session_goes_on(owner, main):
    wire = owner.proxied(main).open()
    assert wire.paths("door") == ["memory/main.md"]
    shutil.rmtree(owner.own("main") / "memory" / "link")
    assert soon(lambda: wire.paths("door") == ["memory/main.md"])
    assert (owner.own("main") / "memory" / "link" / "index.sqlite").exists()
    assert owner.proxied(main).open().paths("door") == ["memory/main.md"]


def test_status_tells_of_the_service_its_sessions_and_of_one_that_does_not_answer(owner, main):
    def told() -> tuple[list[dict[str, Any]], str]:
        shown = owner.lnk("agent", "memory", "status")
        return json.loads(owner.shows("agent", "memory", "status", "--json"))["service"], shown.stdout

    assert told()[0] == [] and "not running; the next session starts it" in told()[1]
    owner.proxied(main).open()
    second = owner.agent("second", "The roof is red.")
    owner.proxied(second).open()
    found, shown = told()
    assert [(one["current"], one["sessions"], one["agents"]) for one in found] == [
        (True, {second: 1}, 2),
        (False, {main: 1}, 1),
    ]
    assert "1 session of 1 agent of 2" in shown and "it is from before a change" in shown
    assert all(one["memory"] > 1 << 20 and one["pid"] in owner.hosts() for one in found)
    (old,) = [one["pid"] for one in found if not one["current"]]
    os.kill(old, signal.SIGSTOP)
    try:
        assert f"does not answer; end its process {old}" in told()[1]
    finally:
        os.kill(old, signal.SIGCONT)
    assert any(
        line.startswith("20") and "started" in line
        for line in owner.shows("agent", "memory", "service", "--log").splitlines()
    )
