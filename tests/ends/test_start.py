"""`lnk agent memory start`: an engine installed, held to its contract, kept to its sandbox, and reached as a tool."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import engines
import pytest

from conftest import LNK, Person
from ends.faults import soon
from lnk.agent import engine
from lnk.agent.folders import Agents
from lnk.agent.memory import Memory
from lnk.errors import Unavailable
from lnk.mcp.client import Program
from lnk.sandbox.ways import best

INVALID, REFUSED, MISSING, CONFLICT, UNAVAILABLE, CORRUPT = 10, 11, 12, 13, 15, 16
MODEL_NONE = '[tool.memory]\nmodel = "none"\n'

# A client's end of an address, as a program that an MCP client can start.
REACH = """
import os, socket, sys, threading
there = socket.socket(socket.AF_UNIX)
there.connect(sys.argv[1].removeprefix("unix:"))
def back():
    while data := there.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 65536):
    there.sendall(data)
there.shutdown(socket.SHUT_WR)
threading.Event().wait(5)
"""


class Owner(Person):
    """Someone who has engines of their own on the PATH."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.programs = root / "bin"
        self.programs.mkdir()
        self.environment["PATH"] = f"{self.programs}:{self.environment['PATH']}"
        self.environment["XDG_RUNTIME_DIR"] = str(root / "run")
        (root / "run").mkdir(mode=0o700)

    def start(self, *argv: str, **more: Any) -> dict[str, Any]:
        """What `lnk agent memory start … --json` says."""
        return json.loads(self.shows("agent", "memory", "start", *argv, "--json", **more))

    def start_refused(self, status: int, *argv: str) -> str:
        return self.refused(status, "agent", "memory", "start", *argv)

    def refused_at(self, started: dict[str, Any]) -> str:
        """What a session with the tool says where it does not begin."""
        done = self.lnk("agent", "tool", "run", started["tool"], stdin=None, input="")
        assert done.stdout == ""
        return done.stderr

    def at(self, address: str) -> Program:
        """A session at an address, by our own client."""
        return Program([sys.executable, "-c", REACH, address], env=self.environment)

    @contextlib.contextmanager
    def session(self, started: dict[str, Any]) -> Iterator[Program]:
        """A session with the memory that was started, open."""
        with self.at(started["environment"]["LNK_MEMORY"]) as program:
            program.open()
            yield program

    def attempts(self, program: Program, *each: tuple[str, str]) -> list[Any]:
        """What the toy could do, and by which error not."""
        return json.loads(program.call("try", {"all": [list(one) for one in each]}).text)

    def own(self, agent: str = "main") -> Path:
        return self.link / "Agents" / agent / "Agent"

    def tool(self, started: dict[str, Any]) -> Path:
        return self.link / "Agents" / ".tools" / started["tool"] / "tool.json"


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path)
    yield owner
    owner.lnk("uninstall")


@pytest.fixture
def main(owner: Owner) -> Path:
    """The agent main, which asks for no model."""
    owner.shows("agent", "new", "main")
    owner.write("Link/Agents/main/Agent/spec.toml", MODEL_NONE)
    owner.write("Link/Agents/main/Home/memory/lease.md", "# Lease\n\nIt ends on 31 March.\n")
    return owner.link / "Agents/main"


# ---------------------------------------------------------------- the main job


@pytest.mark.requirement("NAME-1", "NAME-2", "NAME-3", "NOTES-6", "CONTRACT-13", "SANDBOX-1")
def test_a_started_memory_is_found_by_a_strangers_client_at_its_address(owner, main):
    """The judge is the client of the `mcp` package, which knows nothing of ours."""
    started = owner.start("link")
    assert started["environment"].keys() == {"LNK_MEMORY"}
    told = subprocess.run(
        [sys.executable, "-c", JUDGE, sys.executable, REACH, started["environment"]["LNK_MEMORY"]],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 0, told.stderr
    names, found, noted = json.loads(told.stdout)
    assert names == ["search", "read", "list", "links", "remember"]
    assert found["results"][0]["path"] == "memory/lease.md"
    assert noted["notes"] == "- The key is under the mat\n"
    assert (owner.own() / "memory/notes.md").read_text() == "- The key is under the mat\n"
    log = json.loads(owner.shows("sandbox", "tool", "log", started["tool"], "--json"))
    assert [(line["call"], line["outcome"]) for line in log] == [("search", "ok"), ("remember", "ok")]
    assert "mat" not in json.dumps(log)


JUDGE = """
import asyncio, json, sys
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
async def main():
    python, reach, address = sys.argv[1:]
    server = stdio_client(StdioServerParameters(command=python, args=["-c", reach, address]))
    async with Client(server) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        found = await client.call_tool("search", {"query": "when does the lease end"})
        noted = await client.call_tool("remember", {"note": "The key is under the mat"})
        print(json.dumps([names, found.structured_content, noted.structured_content]))
asyncio.run(main())
"""


@pytest.mark.requirement("NAME-4")
def test_a_start_with_nothing_changed_defines_nothing(owner, main):
    first = owner.start()
    assert first["defined"] == ["it was not there"]
    before = owner.tool(first).stat()
    again = owner.start()
    assert again == {**first, "defined": []}
    assert owner.tool(first).stat() == before
    assert "nothing changed" in owner.shows("agent", "memory", "start")


@pytest.mark.requirement("NAME-4", "CONTRACT-9")
@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("the settings changed", lambda owner, tool: owner.write("Link/Agents/main/Agent/spec.toml", "")),
        ("the settings changed", lambda owner, tool: owner.write(SANDBOX, '[files]\ninstructions = "read"\n')),
        ("the engine changed", lambda owner, tool: engines.toy(owner.programs, models=True, programs=["extra"])),
        ("its programs changed", lambda owner, tool: engines.saying(owner.programs, "true", name="extra")),
        ("Link changed", lambda owner, tool: edited(tool, "Link", "0.0.1 /elsewhere/python")),
        ("it was not there", lambda owner, tool: tool.unlink()),
        ("it was stopped", lambda owner, tool: owner.shows("agent", "memory", "stop")),
    ],
)
def test_a_start_defines_the_tool_again_and_says_why(owner, main, what, change):
    engines.toy(owner.programs, programs=["extra"])
    first = owner.start("toy")
    assert owner.start("toy")["defined"] == []
    change(owner, owner.tool(first))
    again = owner.start("toy")
    assert what in again["defined"]
    assert (again["tool"], again["environment"]) == (first["tool"], first["environment"])
    assert owner.start("toy")["defined"] == []


SANDBOX = "Link/Agents/main/Agent/sandbox.toml"


def edited(tool: Path, what: str, value: str) -> None:
    found = json.loads(tool.read_text())
    assert what in found["made_of"]
    found["made_of"][what] = value
    tool.write_text(json.dumps(found))


@pytest.mark.requirement("NAME-2")
def test_each_agent_has_a_tool_and_an_address_of_its_own(owner, main):
    owner.shows("agent", "new", "other")
    owner.write("Link/Agents/other/Agent/spec.toml", MODEL_NONE)
    owner.write("Link/Agents/other/Home/memory/secret.md", "The quark is charming.\n")
    mine, others = owner.start("link"), owner.start("link", "other")
    assert len({mine["tool"], others["tool"], *mine["environment"].values(), *others["environment"].values()}) == 4
    for started, word, found in ((mine, "quark", 0), (mine, "lease", 1), (others, "quark", 1), (others, "lease", 0)):
        with owner.session(started) as program:
            assert len(program.call("search", {"query": word}).structured["results"]) == found


def test_a_stopped_memory_is_reached_no_more_until_it_is_started(owner, main):
    started = owner.start()
    address = started["environment"]["LNK_MEMORY"]
    with owner.at(address) as program:
        program.open()
        assert "1 session ended" in owner.shows("agent", "memory", "stop")
        with pytest.raises(Exception, match="ended"):
            program.tools()
    assert not os.path.exists(address.removeprefix("unix:"))
    told = owner.refused(REFUSED, "agent", "tool", "run", started["tool"])
    assert "start" in told
    owner.start()
    with owner.at(address) as program:
        program.open()
        assert program.tools()


def test_a_removed_memory_leaves_what_is_the_owners(owner, main):
    started = owner.start()
    with owner.session(started) as program:
        program.call("remember", {"note": "It stays"})
    assert (owner.own() / "memory/link/index.sqlite").exists()
    owner.shows("agent", "memory", "remove")
    assert not (owner.own() / "memory/link").exists()
    assert not owner.tool(started).exists()
    assert (owner.own() / "memory/notes.md").read_text() == "- It stays\n"
    assert (main / "Home/memory/lease.md").exists()
    owner.refused(MISSING, "agent", "memory", "stop")


# ---------------------------------------------------------------- other engines


@pytest.mark.requirement("CONTRACT-12", "NAME-3")
def test_an_engine_that_keeps_only_the_contract_is_served_with_its_own_tools(owner, main):
    engines.toy(owner.programs)
    started = owner.start("toy", "main")
    with owner.session(started) as program:
        assert [tool["name"] for tool in program.tools()] == ["try", "forget-all"]
        assert owner.attempts(program, ("env", "LNK_MEMORY_MODEL")) == [""]
        with answering(owner, "deny"):
            assert program.call("forget-all", {}).failed
        with answering(owner, "allow"):
            assert program.call("forget-all", {}).text == "[]"
    log = json.loads(owner.shows("sandbox", "tool", "log", started["tool"], "--json"))
    assert [(line["call"], line["outcome"]) for line in log] == [
        ("try", "ok"),
        ("forget-all", "refused"),
        ("forget-all", "ok"),
    ]


@contextlib.contextmanager
def answering(owner: Owner, answer: str) -> Iterator[None]:
    """The owner answers the one question that comes meanwhile."""

    def look() -> None:
        while not (waiting := json.loads(owner.shows("agent", "asks", "--json"))):
            pass
        owner.shows("agent", "answer", waiting[0]["id"], answer)

    thread = threading.Thread(target=look)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.requirement("CONTRACT-1")
def test_install_is_confined_with_its_state_as_home_the_network_and_nobody_to_ask(owner, main):
    secret = owner.write("secret", "hidden")
    with listening("hello") as port:
        tries = (
            f"print([attempt('read', {str(secret)!r}), attempt('list', {str(main / 'Home/memory')!r}),"
            f" attempt('write', {str(owner.own() / 'memory/notes.md')!r}), attempt('connect', '{port}')],"
            " file=open('tried', 'w'))"
        )
        engines.toy(owner.programs, install=tries)
        done = owner.lnk("agent", "memory", "start", "toy", stdin=None, input="an answer\n")
    assert done.returncode == 0, done
    state = owner.own() / "memory/toy"
    assert (state / "installed").read_text() == f"{state}''\n"
    # What it writes where nothing of the person's is, is gone with its sandbox.
    tried = json.loads((state / "tried").read_text().replace("'", '"'))
    assert [*tried[:2], tried[3]] == ["FileNotFoundError", "FileNotFoundError", "hello"]
    assert not (owner.own() / "memory/notes.md").exists()


@contextlib.contextmanager
def listening(word: str) -> Iterator[int]:
    """A server on a port of this machine that says one word to each that comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.sendall(word.encode())

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.requirement("SANDBOX-1", "NOTES-7")
def test_an_engine_reads_and_writes_what_the_contract_gives_it_and_nothing_else(owner, main):
    engines.toy(owner.programs)
    owner.shows("agent", "new", "other")
    own, home = owner.own(), main / "Home"
    owner.write("Link/Agents/other/Home/memory/theirs.md", "theirs")
    owner.write("Link/Agents/main/Home/draft.md", "draft")
    owner.write("Link/Agents/main/Agent/chats/link-a/conversation.md", "chat")
    owner.write("Link/Agents/main/Agent/skills/cook/SKILL.md", "skill")
    owner.write("Link/Agents/main/Agent/instructions/instruction.md", "private")
    owner.write("person/.ssh/id", "key")
    started = owner.start("toy")
    with owner.session(started) as program:
        assert owner.attempts(
            program,
            ("read", f"{home}/memory/lease.md"),
            ("read", f"{home}/draft.md"),
            ("read", f"{own}/chats/link-a/conversation.md"),
            ("read", f"{own}/skills/cook/SKILL.md"),
            ("write", f"{own}/memory/toy/index"),
            ("write", f"{own}/memory/notes.md"),
        ) == ["# Lease\n\nIt ends on 31 March.\n", "draft", "chat", "skill", 1, 1]
        assert owner.attempts(program, ("list", str(own)), ("list", str(main.parent))) == [
            ["chats", "memory", "skills"],
            ["main"],
        ]
        for path in (
            *(own / name for name in ("agent.toml", "spec.toml", "instructions/instruction.md")),
            main.parent / "other/Home/memory/theirs.md",
            owner.tool(started),
            owner.home / ".ssh/id",
            Path("/etc/shadow"),
        ):
            assert path.exists()
            assert owner.attempts(program, ("read", str(path))) == ["FileNotFoundError"], path
        for path in (home / "memory/lease.md", own / "chats/new", own / "skills/new"):
            assert owner.attempts(program, ("write", str(path))) == ["OSError"], path
        before = (own / "agent.toml").read_bytes()
        owner.attempts(program, ("write", str(own / "agent.toml")))
        assert (own / "agent.toml").read_bytes() == before
        assert owner.attempts(program, ("env", "HOME"), ("env", "LNK_HOME")) == [f"{own}/memory/toy", None]
    owner.write(SANDBOX, '[files]\ninstructions = "read"\n')
    started = owner.start("toy")
    with owner.session(started) as program:
        (own / "memory/notes.md").write_text("- as it was\n")
        owner.attempts(program, ("write", f"{own}/memory/notes.md"))
        assert (own / "memory/notes.md").read_text() == "- as it was\n"
        assert owner.attempts(program, ("write", f"{own}/memory/toy/index")) == [1]


@pytest.mark.requirement("CONTRACT-5", "SANDBOX-1")
def test_only_an_engine_that_reaches_models_has_the_network(owner, main):
    with listening("hello") as port:
        for more, said in (({}, "PermissionError"), ({"models": True}, "hello")):
            engines.toy(owner.programs, **more)
            started = owner.start("toy")
            with owner.session(started) as program:
                (tried,) = owner.attempts(program, ("connect", str(port)))
                assert tried == said or (said != "hello" and tried == "OSError"), more


@pytest.mark.requirement("CONTRACT-9")
def test_the_programs_that_an_engine_names_are_there_where_they_are_installed(owner, main):
    engines.toy(owner.programs, programs=["helper", "absent"])
    engines.saying(owner.programs, "echo helped", name="helper")
    engines.saying(owner.programs, "echo private", name="other")
    started = owner.start("toy")
    with owner.session(started) as program:
        assert owner.attempts(
            program,
            ("run", f"{owner.programs}/lnk-helper"),
            ("run", f"{owner.programs}/lnk-other 2>/dev/null"),
            ("list", str(owner.programs)),
        ) == ["helped\n", "", ["lnk-helper", "lnk-toy"]]


@pytest.mark.requirement("SANDBOX-3")
def test_the_driver_that_keeps_conversations_is_there_and_told_whose_they_are(owner, main):
    engines.toy(owner.programs)
    variables = [("env", name) for name in ("LNK_AGENT", "LNK_AGENT_ID", "LNK_OWNER")]
    driver = owner.programs / "lnk-toy-store"
    engines.saying(owner.programs, 'echo "kept for $LNK_AGENT"', name="toy-store")
    started = owner.start("toy")
    with owner.session(started) as program:
        assert owner.attempts(program, ("read", str(driver)), *variables) == ["FileNotFoundError", None, None, None]
    agent = owner.own() / "agent.toml"
    agent.write_text(agent.read_text() + 'store = "toy"\n')
    told = json.loads(owner.shows("agent", "show", "main", "--json"))
    started = owner.start("toy")
    with owner.session(started) as program:
        answer = owner.attempts(program, ("run", str(driver)), *variables)
        assert answer == ["kept for main\n", "main", told["id"], told["owner"]]


@pytest.mark.requirement("CONTRACT-2", "CONTRACT-3", "CONTRACT-4")
@pytest.mark.parametrize(
    ("text", "status", "named"),
    [
        ("no json", INVALID, "not valid"),
        ("", INVALID, "not valid"),
        ("[]", INVALID, "not valid"),
        ("{}", INVALID, "argv"),
        (json.dumps({"argv": []}), REFUSED, "another program"),
        (json.dumps({"argv": ["/bin/sh", "-c", "id"]}), REFUSED, "another program"),
        (json.dumps({"argv": ["lnk-link-memory", "serve"]}), REFUSED, "another program"),
        (json.dumps({"argv": ["lnk-toy"] * 300}), INVALID, "256"),
        (json.dumps({"argv": ["lnk-toy", "a\0b"]}), INVALID, "argv"),
        (engines.serve(root=True), INVALID, "root"),
        (engines.serve(allow="all"), INVALID, "allow"),
        (engines.serve(allow=["a b"]), INVALID, "'a b'"),
        (engines.serve(allow=[str(n) for n in range(99)]), INVALID, "99"),
        (engines.serve(programs=["../x"]), INVALID, "'../x'"),
        (engines.serve(programs=[f"p{n}" for n in range(99)]), INVALID, "99"),
        (engines.serve(models="yes"), INVALID, "models"),
        (engines.serve(model="a b"), INVALID, "'a b'"),
        (engines.serve(models=False, model="m"), INVALID, "models"),
        (engines.serve(argv=["lnk-toy", "x" * 70_000]), INVALID, "65,536"),
        ("{" + " " * 200_000, INVALID, "65,536"),
        ("[" * 50_000, INVALID, "not valid"),
    ],
    ids=range(21),
)
def test_an_engine_that_breaks_a_rule_of_the_contract_is_refused_and_defines_nothing(owner, main, text, status, named):
    engines.printing(owner.programs, text)
    told = owner.start_refused(status, "toy")
    assert named in told and "lnk-toy" in told
    assert len(told) < 600
    assert not (main.parent / ".tools").exists() or list((main.parent / ".tools").iterdir()) == []


@pytest.mark.parametrize(
    ("script", "status", "named"),
    [
        ("echo 'lnk-toy: The spec is no good; mend it.' >&2; exit 10", INVALID, "The spec is no good; mend it."),
        ("exit 16", CORRUPT, "status 16"),
        ("printf 'lnk-toy: Not to the end.' >&2; exit 10", INVALID, "Not to the end."),
        ("exit 3", UNAVAILABLE, "status 3"),
        ("kill -9 $$", UNAVAILABLE, "status"),
    ],
)
def test_an_engine_that_refuses_is_heard(owner, main, script, status, named):
    engines.saying(owner.programs, f'[ "$1" = install ] && exit 0\n{script}')
    assert named in owner.start_refused(status, "toy")
    engines.saying(owner.programs, script)
    assert named in owner.start_refused(status, "toy")


def test_an_engine_that_is_not_installed_is_said(owner, main):
    assert "lnk-nothing" in owner.start_refused(MISSING, "nothing")


def test_an_engine_that_hangs_is_ended_with_all_that_it_started(owner, main, monkeypatch):
    engines.saying(owner.programs, f'[ "$1" = install ] && exit 0\nsleep 600.{os.getpid()} & sleep 600.{os.getpid()}')
    for name, value in owner.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(engine, "COMMAND_WAIT_S", 0.5)
    agent = Agents(str(owner.link)).get("main")
    with pytest.raises(Unavailable, match=r"within 0\.5 s"):
        Memory(agent, owner.environment, engine="toy").define(best(owner.environment), print)
    assert soon(lambda: f"600.{os.getpid()}" not in running())


@pytest.mark.requirement("CONTRACT-5", "CONTRACT-9")
@pytest.mark.parametrize(("more", "named"), [({"models": True}, "the network"), ({"programs": ["extra"]}, "extra")])
def test_a_session_gets_no_more_than_the_engine_asked_for_at_the_start(owner, main, more, named):
    """What an engine left in its state, or an update of it, is not granted by itself."""
    engines.toy(owner.programs)
    started = owner.start("toy")
    engines.toy(owner.programs, **more)
    told = owner.refused_at(started)
    assert named in told and "lnk agent memory start toy" in told
    assert "the engine changed" in owner.start("toy")["defined"]
    with owner.session(started) as program:
        assert program.tools()


def test_what_an_engine_leaves_in_its_state_is_not_run_in_the_next_session(owner, main):
    site = owner.own() / f"memory/toy/.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    site.mkdir(parents=True)
    (site / "usercustomize.py").write_text("open('left', 'w')\n")
    engines.toy(owner.programs)
    owner.start("toy")
    assert not (owner.own() / "memory/toy/left").exists()


@pytest.mark.requirement("SANDBOX-1")
def test_what_a_client_left_open_does_not_reach_the_engine(owner, main):
    engines.toy(owner.programs)
    started = owner.start("toy")
    secret = owner.write("secret/key", "KEY")
    held = os.open(secret.parent, os.O_RDONLY)
    for argv in (["agent", "tool", "run", started["tool"]], ["agent", "memory", "serve", "--engine", "toy"]):
        with Program([LNK, *argv], env=owner.environment, fds=[held]) as program:
            program.open()
            (found,) = owner.attempts(program, ("list", "/proc/self/fd"))
            assert set(found) <= {"0", "1", "2", "3"}  # the last is what lists them
            assert owner.attempts(program, ("read", f"/proc/self/fd/{held}/key")) == ["FileNotFoundError"]
    os.close(held)


def test_sessions_and_the_listener_of_before_end_where_the_tool_is_defined_anew(owner, main):
    engines.toy(owner.programs)
    started = owner.start("toy")
    with owner.session(started) as program:
        assert owner.start("toy")["ended"] == 0
        assert owner.attempts(program, ("env", "LNK_MEMORY_MODEL")) == [""]
        owner.write(SANDBOX, '[files]\ninstructions = "read"\n')
        assert owner.start("toy")["ended"] == 1
        with pytest.raises(Exception, match="ended"):
            program.tools()


@pytest.mark.requirement("NOTES-8", "NOTES-9")
def test_where_others_write_to_the_agent_every_call_names_its_conversation(owner, main):
    started = owner.start("--others")
    with owner.session(started) as program:
        assert "conversation" in program.call("search", {"query": "lease"}).text
        thread = {"link.local/thread": "telegram-8812"}
        assert program.call("search", {"query": "lease"}, meta=thread).structured["results"]
        assert program.call("remember", {"note": "x"}, meta=thread).failed
        assert not program.call("remember", {"note": "x"}, meta={"link.local/thread": "link:main"}).failed
    owner.shows("agent", "memory", "setup", "cursor")  # and nothing but the owner's word takes that away
    assert owner.start()["defined"] == []
    with owner.session(started) as program:
        assert "conversation" in program.call("search", {"query": "lease"}).text
    assert owner.start("--no-others")["defined"]
    with owner.session(started) as program:
        assert program.call("search", {"query": "lease"}).structured["results"]


def test_commands_that_know_link_memory_alone_say_so_of_another_engine(owner, main):
    engines.toy(owner.programs)
    owner.start("toy")
    for command in ("search lease", "list", "status", "reindex"):
        assert "served by toy" in owner.refused(REFUSED, "agent", "memory", *command.split())
    assert not (owner.own() / "memory/link").exists()


def test_set_up_does_not_start_what_was_stopped(owner, main):
    started = owner.start()
    owner.shows("agent", "memory", "stop")
    told = owner.lnk("agent", "memory", "setup", "cursor")
    assert (told.returncode, "It is stopped" in told.stderr) == (0, True)
    assert json.loads(owner.tool(started).read_text())["stopped"] is True


@pytest.mark.requirement("SANDBOX-4")
def test_a_memory_that_was_started_unconfined_is_said_to_be(owner, main):
    assert owner.start("--no-sandbox")["sandbox"] == "none"
    assert json.loads(owner.shows("agent", "memory", "status", "--json"))["sandbox"] == "none"
    assert "unconfined" in owner.shows("agent", "memory", "status")
    assert owner.start()["sandbox"] != "none"
    assert json.loads(owner.shows("agent", "memory", "status", "--json"))["sandbox"] != "none"


def test_a_lost_socket_is_noticed_and_made_again(owner, main):
    started = owner.start()
    address = started["environment"]["LNK_MEMORY"]
    os.unlink(address.removeprefix("unix:"))
    assert json.loads(owner.shows("agent", "memory", "status", "--json"))["tool"]["address"] is None
    assert owner.start()["environment"]["LNK_MEMORY"] == address
    with owner.at(address) as program:
        program.open()
        assert program.tools()


def test_a_tool_serves_its_own_agent_however_that_is_called_by_now(owner, main):
    started = owner.start()
    main.rename(main.parent / "renamed")
    with owner.session(started) as program:
        assert program.call("search", {"query": "lease"}).structured["results"]
    shutil.rmtree(main.parent / "renamed")
    assert started["tool"].removeprefix("memory-") in owner.refused_at(started)
    assert not main.exists()


def test_a_copy_of_an_agent_does_not_take_its_tool_over(owner, main):
    started = owner.start()
    shutil.copytree(main, main.parent / "copy")
    before = owner.tool(started).read_bytes()
    for command in (["start", "link", "copy"], ["start"], ["setup", "cursor", "--agent", "copy"]):
        told = owner.refused(CONFLICT, "agent", "memory", *command)
        assert "copy, main" in told
    assert owner.tool(started).read_bytes() == before


@pytest.mark.parametrize("name", ["", "..", "portable", "a/b", "-x", "Toy", "x" * 65])
def test_what_can_be_no_engines_name_is_refused(owner, main, name):
    assert "engine's name" in owner.refused(INVALID, "agent", "memory", "start", "--", name)


def test_documents_that_a_link_took_the_place_of_are_not_served(owner, main):
    folder = owner.write("Vault/a.md", "# Mine\n").parent
    owner.shows("agent", "new", "vault", "--documents", folder)
    started = owner.start("link", "vault")
    folder.rename(owner.root / "moved")
    folder.symlink_to(owner.write("secret/key.md", "KEY").parent)
    assert "link" in owner.refused_at(started)
    assert "link" in owner.refused(REFUSED, "agent", "memory", "search", "KEY", "--agent", "vault")


@pytest.mark.parametrize(
    "inside", ["Link/Agents", "Link/Agents/.tools", "Link/Agents/main/Agent", "Link/Agents/main/Home"]
)
def test_no_agent_has_documents_that_are_links_own(owner, main, inside):
    (owner.root / inside).mkdir(exist_ok=True)
    owner.refused(REFUSED, "agent", "new", "spy", "--documents", owner.root / inside)


# ---------------------------------------------------------------- remove, uninstall


@pytest.mark.parametrize("command", [["memory", "remove"], ["remove", "main"]])
def test_nothing_is_removed_through_a_link(owner, main, command):
    secret = owner.write("secret/link/keep", "mine")
    kept = owner.own() / "memory"
    kept.rename(owner.own() / "was")
    kept.symlink_to(owner.root / "secret")
    owner.refused(REFUSED, "agent", *command)
    assert secret.read_text() == "mine"


def test_uninstall_ends_what_runs_whatever_became_of_its_definition(owner, main):
    started = owner.start()
    owner.tool(started).unlink()
    assert started["tool"] in running()
    owner.shows("agent", "new", "gone")
    owner.shows("agent", "memory", "setup", "codex", "--agent", "gone")
    owner.shows("agent", "remove", "gone")
    owner.shows("uninstall")
    assert soon(lambda: started["tool"] not in running())
    assert "lnk" not in (owner.home / ".codex/config.toml").read_text()


def running() -> str:
    return subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True).stdout


def test_whatever_an_engine_leaves_in_its_state_is_removed(owner, main):
    owner.start()
    state = owner.own() / "memory/toy"
    state.mkdir()
    secret = owner.write("secret/key", "KEY")
    at = os.open(state, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    (state / "locked").mkdir()
    (state / "locked/file").write_text("x")
    (state / "locked").chmod(0)
    (state / "out").symlink_to(secret.parent)
    (owner.own() / "memory/portable").mkdir()
    owner.shows("agent", "memory", "remove")
    assert [each.name for each in (owner.own() / "memory").iterdir()] == ["portable"]
    assert secret.read_text() == "KEY"


def test_a_damaged_definition_does_not_keep_a_memory_from_being_removed(owner, main):
    started = owner.start()
    owner.tool(started).write_text("{")
    owner.shows("agent", "memory", "remove")
    started = owner.start()
    owner.tool(started).write_text("{")
    owner.shows("uninstall")
    assert not (main.parent / ".tools").exists()


@pytest.mark.requirement("INDEX-10")
def test_uninstall_stops_everything_and_takes_the_agents_with_it_when_told(owner, main):
    started = owner.start()
    owner.shows("agent", "memory", "setup", "cursor")
    with owner.session(started) as program:
        assert "1 session ended" in owner.shows("uninstall")
        with pytest.raises(Exception, match="ended"):
            program.tools()
    assert soon(lambda: started["tool"] not in running())
    assert json.loads((owner.home / ".cursor/mcp.json").read_text())["mcpServers"] == {}
    assert (owner.own() / "memory/link/index.sqlite").exists()
    assert not os.path.exists(started["environment"]["LNK_MEMORY"].removeprefix("unix:"))
    assert not (main.parent / ".tools").exists()
    owner.start()
    owner.shows("uninstall", "--agents")
    assert not owner.link.exists()


# ------------------------------------------------------------------ another engine that serves many


NO_BUBBLEWRAP: Final = str(Path(__file__).parent / "no_bubblewrap")


def told(program: Program, **arguments: Any) -> dict[str, Any]:
    return json.loads(program.call("try", arguments).text)


@pytest.mark.requirement("SHARED-1")
@pytest.mark.requirement("SHARED-5")
@pytest.mark.requirement("CONTRACT-12")
def test_another_engine_that_is_shared_serves_all_agents_from_one_process(owner: Owner, main: Path) -> None:
    engines.toy_many(owner.programs)
    owner.shows("agent", "new", "second")
    started = [owner.start("toys", name) for name in ("main", "second")]
    with owner.session(started[0]) as one, owner.session(started[1]) as other, owner.session(started[1]) as third:
        said = [told(each) for each in (one, other, third, one)]
        assert [each["agent"] for each in said] == [
            each["tool"].removeprefix("memory-") for each in (started[0], started[1], started[1], started[0])
        ]
        assert len({each["process"] for each in said}) == 1
        assert all(each["argv"][1] == "serve" for each in said) and said[0]["argv"] != said[1]["argv"]
        assert len(said[0]["said"]) == 300_000  # more than a socket holds


@pytest.mark.requirement("SHARED-1")
def test_a_session_outlives_another_engine_too(owner: Owner, main: Path) -> None:
    engines.toy_many(owner.programs)
    started = owner.start("toys")
    with owner.session(started) as program:
        before = told(program)["process"]
        lost = program.call("try", {"die": True})
        assert lost.failed and "not known whether it was done" in lost.text
        again = told(program)
        assert again["agent"] == started["tool"].removeprefix("memory-") and before


def test_in_the_way_without_name_spaces_another_engine_is_served_a_session_at_a_time(owner: Owner, main: Path) -> None:
    """Landlock gives no right to make a socket."""
    engines.toy_many(owner.programs)
    started = owner.start("toys", env={"PATH": f"{owner.programs}:/not/there", "PYTHONPATH": NO_BUBBLEWRAP})
    assert "service" not in json.loads(owner.tool(started).read_text())
