"""What a sandboxed program could do on this machine, tried in every way, as root and as an ordinary user."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

import lnk
from conftest import LNK
from ends.test_sandbox_run import become
from lnk.cli import commands
from lnk.errors import NoSandbox
from lnk.sandbox import denials, launch, ways
from lnk.sandbox.bait import UNCHANGED
from lnk.sandbox.denials import DIFFERS, NEEDS_A_MODEL, Table, judge, table
from lnk.sandbox.probe import DONE, FAILED, PROBES, UNTRIED, WORKS
from lnk.sandbox.programs import needs
from lnk.sandbox.ways import UNCONFINED, Tried, Way

NOBODY = "65534"
CHECK_WAIT_S = 120
WAYS = (Way.BUBBLEWRAP, Way.BUNDLED, Way.LANDLOCK)
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
NAMES = {name for probes in PROBES.values() for name in probes} | {UNCHANGED}
# What a machine may have nothing of to try it on.
MAY_LACK = {
    "reach a port of the machine by IPv6",
    "open a file by its handle",
    "reach shared memory outside (System V)",
    "reach a message queue outside",
    "call the kernel by its 32-bit table",
    "call the kernel by its x32 table",
}
LANDLOCK_CREATE = 444  # a call's number
# Of seccomp's language: everything is allowed; so is everything but one call, which the kernel does not seem to have.
ALLOW = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
NO_LANDLOCK = (
    b"".join(
        struct.pack("=HBBI", *step)
        for step in ((0x20, 0, 0, 0), (0x15, 0, 1, LANDLOCK_CREATE), (0x06, 0, 0, 0x50000 | errno.ENOSYS))
    )
    + ALLOW
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: what the sandboxes of Linux deny")

# Makes the interpreter reachable for everyone where it lies in somebody's home, in a view of the files of its own.
OPENED = """
set -e
for kept in $KEPT; do mkdir -p "$HELD$kept"; mount --bind "$kept" "$HELD$kept"; done
for closed in $CLOSED; do mount -t tmpfs -o mode=755 none "$closed"; done
for kept in $KEPT; do mkdir -p "$kept"; mount --bind "$HELD$kept" "$kept"; done
exec "$@"
"""


class Checked(NamedTuple):
    """What a check came to."""

    status: int
    tables: list[Table]
    said: str


class Someone(NamedTuple):
    """Who runs `lnk`: what it is started by, with which variables, and their folder for temporary files."""

    before: Sequence[str]
    environment: dict[str, str]
    temporary: Path
    checked: dict[Way, Checked]  # so far

    def lnk(self, *argv: str, around: Sequence[str] = (), **more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.before, *around, LNK, *argv],
            env={**ENVIRONMENT, "HOME": str(self.temporary), "TMPDIR": str(self.temporary), **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_WAIT_S,
            **more,
        )

    def check(self, way: Way) -> Checked:
        """What the check of a way comes to, made once; skips where this machine has no such way."""
        if way not in self.checked:
            done = self.lnk("sandbox", "check", "--json", "--way", way)
            if done.returncode == NoSandbox.status:
                pytest.skip(f"NOT TESTED: {done.stderr.strip()}")
            tables = [msgspec.convert(each, Table) for each in json.loads(done.stdout)["tables"]]
            self.checked[way] = Checked(done.returncode, tables, done.stderr)
        return self.checked[way]


@contextlib.contextmanager
def _open_folder() -> Iterator[Path]:
    """A folder by a short path, on which no other user is kept out: what pytest gives is neither."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="denials-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module", params=["root", "an ordinary user"])
def someone(request: pytest.FixtureRequest) -> Iterator[Someone]:
    is_root = os.getuid() == 0
    if request.param == "root" and not is_root:
        pytest.skip("NOT TESTED: the denials for root, which only root can try")
    with _open_folder() as folder:
        yield _nobody(folder) if is_root and request.param != "root" else _myself(folder)


@pytest.fixture
def myself() -> Iterator[Someone]:
    with _open_folder() as folder:
        yield _myself(folder)


def _myself(folder: Path) -> Someone:
    return Someone((), {}, folder, {})


def _nobody(folder: Path) -> Someone:
    """An ordinary user, as root can become one."""
    for tool in ("setpriv", "unshare", "mount"):
        if shutil.which(tool) is None:
            pytest.skip(f"NOT TESTED: the denials for an ordinary user: there is no {tool}")
    held, temporary = folder / "held", folder / "tmp"
    held.mkdir()
    temporary.mkdir()
    folder.chmod(0o755)
    os.chown(temporary, int(NOBODY), int(NOBODY))
    kept = {path: _closed(path) for path in (sys.base_prefix, sys.prefix, str(Path(lnk.__file__).parent))}
    environment = {
        "HELD": str(held),
        "KEPT": " ".join(sorted(path for path, closed in kept.items() if closed)),
        "CLOSED": " ".join(sorted({closed for closed in kept.values() if closed})),
    }
    become = ("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups")
    return Someone(("unshare", "-m", "sh", "-c", OPENED, "sh", *become), environment, temporary, {})


def _closed(path: str) -> str | None:
    """The first folder on the way that others cannot go through."""
    on_the_way = reversed(Path(os.path.realpath(path)).parents)
    return next((str(folder) for folder in on_the_way if not folder.stat().st_mode & 0o001), None)


def _way(way: Way) -> Tried:
    tried = next(each for each in ways.tried(ENVIRONMENT) if each.way == way)
    if not tried.works:
        pytest.skip(f"NOT TESTED: {way}: {tried.why}")
    return tried


def _faults(found: Table) -> set[str]:
    return {row.probe for row in found.faults()}


# ---------------------------------------------------------------- what holds


@pytest.mark.requirement("SANDBOX-1", "SANDBOX-2")
@pytest.mark.parametrize("way", WAYS)
def test_every_denial_holds_and_what_an_engine_needs_works(someone: Someone, way: Way) -> None:
    checked = someone.check(way)
    assert [row for found in checked.tables for row in found.faults()] == []
    assert (checked.status, checked.said) == (0, "")
    assert [found.model for found in checked.tables] == ([False] if way is Way.LANDLOCK else [False, True])
    for found in checked.tables:
        left_out = set() if found.model else set(NEEDS_A_MODEL)
        assert {row.probe for row in found.rows} == NAMES - left_out
        assert {row.probe for row in found.rows if row.outcome == "untried"} <= MAY_LACK


@pytest.mark.requirement("SANDBOX-2")
@pytest.mark.parametrize("way", [Way.BUBBLEWRAP, Way.BUNDLED])
def test_with_a_model_one_port_answers_and_no_other(someone: Someone, way: Way) -> None:
    _, found = someone.check(way).tables
    outcomes = {row.probe: row.outcome for row in found.rows if row.group == "network" or row.probe in NEEDS_A_MODEL}
    works = {name for name, outcome in outcomes.items() if outcome == "works"}
    assert works == {"reach its model", "listen on a port"}
    listens = next(row for row in found.rows if row.probe == "listen on a port")
    assert listens.how == "of a loopback of its own, which nothing outside reaches"


def test_landlock_says_what_it_does_not_deny(someone: Someone) -> None:
    (found,) = someone.check(Way.LANDLOCK).tables
    not_denied = {row.probe: row.how for row in found.rows if row.outcome == "works" and row.expected == "denied"}
    assert not_denied == DIFFERS[Way.LANDLOCK]


def test_the_check_leaves_nothing_behind(someone: Someone) -> None:
    def shared() -> str:
        return Path("/proc/sysvipc/shm").read_text()

    before = sorted(os.listdir("/dev/shm")), shared()
    done = someone.lnk("sandbox", "check")
    assert done.returncode == 0, done
    assert list(someone.temporary.iterdir()) == []
    assert (sorted(os.listdir("/dev/shm")), shared()) == before


# ---------------------------------------------------------------- that it could fail


def test_without_a_sandbox_the_same_probes_do_what_they_try() -> None:
    if Path("/proc/self/status").read_text().count("Seccomp:\t0") == 0 or os.getuid() != 0:
        pytest.skip("NOT TESTED: what the probes do unconfined: these tests are confined themselves, or not root's")
    found = table(UNCONFINED, dict(os.environ))
    denied = {row.probe for row in found.rows if row.expected == "denied" and row.outcome != "works"}
    assert denied <= MAY_LACK | {
        "use the kernel's ciphers (AF_ALG)",  # and others that a kernel may lack
        "hold memory that the kernel cannot see",
        "answer page faults (userfaultfd)",
        "queue calls (io_uring)",
        "open a device of the machine",
        "change a document's attributes",
        "use the caller's descriptors",  # nobody leaves it one
    }
    assert {row.probe for row in found.rows if row.group == WORKS and row.outcome != "works"} == set()


# What only the filter of calls denies.
BY_THE_FILTER = {
    "queue calls (io_uring)",
    "keep a key in the kernel",
    "use the session's keys",
    "run without a random layout (personality)",
    "ask the kernel for its network (netlink)",
    "make a socket of any other family",
    "reach a Unix socket among its documents",
    "reach a Unix socket by one of a pair",
}
ALSO_BESIDE_LANDLOCK = {
    "change a document's mode",
    "change a document's date",
    "change a document's attributes",
    "send a datagram to the machine",
    "reach a Unix socket outside",
    "become root of a world of its own",
    "limit a process outside",
    "reach shared memory outside (System V)",
    UNCHANGED,
}


@pytest.mark.parametrize(
    ("way", "expected"),
    [(Way.BUBBLEWRAP, BY_THE_FILTER), (Way.LANDLOCK, BY_THE_FILTER | ALSO_BESIDE_LANDLOCK)],
)
def test_taking_the_filter_out_is_noticed(way: Way, expected: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.filters, "for_program", lambda *_, **__: ALLOW)
    assert expected - _faults(table(_way(way), ENVIRONMENT)) == set()


def _writing_documents(policy: launch.Policy) -> launch.Policy:
    return msgspec.structs.replace(policy, writes=(*policy.writes, policy.reads[0]), reads=policy.reads[1:], hidden=())


def _on_the_network(policy: launch.Policy) -> launch.Policy:
    return msgspec.structs.replace(policy, network=True)


def _with_a_home(policy: launch.Policy) -> launch.Policy:
    others = (str(folder) for folder in Path(tempfile.gettempdir()).glob("lnk-outside-*"))
    return msgspec.structs.replace(policy, reads=(*policy.reads, *others))


def _knowing_too_much(policy: launch.Policy) -> launch.Policy:
    return msgspec.structs.replace(policy, environment={**policy.environment, denials.VARIABLE: "1"})


def _without_its_state(policy: launch.Policy) -> launch.Policy:
    return msgspec.structs.replace(policy, writes=(), reads=(*policy.reads, *policy.writes))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            _writing_documents,
            {"write a document", "remove a document", "read what is hidden beneath its folders", UNCHANGED},
        ),
        (_on_the_network, {"reach a port of the machine", "send a datagram to the machine", "listen on a port"}),
        (_with_a_home, {"read an ssh key", "list a home", "follow a link that it planted"}),
        (_knowing_too_much, {"see the caller's variables"}),
        (_without_its_state, {"replace the notes", "keep an index in its state (SQLite)", "map files in its state"}),
    ],
)
def test_a_sandbox_that_gives_more_or_less_than_it_should_is_noticed(
    changed: Callable[[launch.Policy], launch.Policy], expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(denials, "launch", lambda policy, *argv, **more: launch.launch(changed(policy), *argv, **more))
    assert expected - _faults(table(_way(Way.BUBBLEWRAP), ENVIRONMENT)) == set()


def test_a_descriptor_that_is_left_open_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(__file__, "rb") as left:

        def leaking(*argv: object, **more: object) -> launch.Launch:
            started = launch.launch(*argv, **more)  # type: ignore[arg-type]
            started.fds += (left.fileno(),)
            return started

        monkeypatch.setattr(denials, "launch", leaking)
        assert _faults(table(_way(Way.BUBBLEWRAP), ENVIRONMENT)) == {"use the caller's descriptors"}


@pytest.mark.requirement("SANDBOX-1")
@pytest.mark.parametrize("way", WAYS)
def test_what_a_process_becomes_has_none_of_the_descriptors_left_to_it(way: Way, tmp_path: Path) -> None:
    python = os.path.realpath(sys.executable)
    needed = needs(python, ENVIRONMENT)
    code = (
        "import json, os\nfound = []\n"
        "for number in range(3, 1024):\n"
        "    try: found.append(os.path.exists(f'/proc/self/fd/{number}/secret') or os.fstat(number) is None)\n"
        "    except OSError: pass\n"
        "print(json.dumps(found))"
    )
    (tmp_path / "secret").write_text("secret")
    with contextlib.ExitStack() as stack:
        left = [os.open(tmp_path, os.O_RDONLY)]
        left += [fcntl.fcntl(left[0], fcntl.F_DUPFD, 900)]
        for fd in left:
            stack.callback(os.close, fd)
        policy = launch.Policy(programs=needed.programs, hidden=needed.hidden)
        argv = become(policy, [python, "-I", "-S", "-c", code], _way(way))
        done = subprocess.run(argv, pass_fds=left, capture_output=True, text=True, timeout=CHECK_WAIT_S, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_sandbox_that_does_not_start_is_no_denial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denials.probe, "__file__", "/nowhere/probe.py")
    with pytest.raises(denials.Unavailable, match=r"did not run in bubblewrap \(status 2\): .*/nowhere/probe.py"):
        table(_way(Way.BUBBLEWRAP), ENVIRONMENT)


# ---------------------------------------------------------------- the judge


def _all(outcome: str) -> dict[str, dict[str, tuple[str, str]]]:
    return {group: dict.fromkeys(probes, (outcome, "")) for group, probes in PROBES.items()}


def test_what_arrived_outside_counts_and_not_what_the_probe_says() -> None:
    name = "send a datagram to the machine"
    arrived = judge(_all(FAILED), {name: True}, Way.BUBBLEWRAP, model=False)
    assert [row.probe for row in arrived if not row.holds and row.expected == "denied"] == [name]
    nothing_came = judge(_all(DONE), {name: False}, Way.BUBBLEWRAP, model=False)
    assert next(row for row in nothing_came if row.probe == name).holds


def test_a_probe_that_says_nothing_holds_nothing() -> None:
    rows = judge({}, {}, Way.BUBBLEWRAP, model=True)
    assert {row.probe for row in rows if row.holds} == {UNCHANGED}


def test_a_probe_that_cannot_be_tried_is_no_fault() -> None:
    rows = judge(_all(UNTRIED), {}, Way.BUBBLEWRAP, model=True)
    assert {row.outcome for row in rows if row.probe != UNCHANGED} == {"untried"}
    assert all(row.holds for row in rows)


# ---------------------------------------------------------------- the command


def test_a_denial_that_does_not_hold_is_named_and_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _way(Way.BUBBLEWRAP)
    monkeypatch.setattr(launch.filters, "for_program", lambda *_, **__: ALLOW)
    assert commands.main(["sandbox", "check", "--way", "bubblewrap"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "ALLOWED: keep a key in the kernel." in lines
    assert lines[-1].split(" not as ")[0].endswith("outcomes are")


@contextlib.contextmanager
def _around(*, landlock: bool) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """What takes user name spaces, and Landlock, away from what it starts."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        pytest.skip("NOT TESTED: a machine that cannot confine, which takes bwrap to make")
    filtered = os.memfd_create("filter")
    os.write(filtered, ALLOW if landlock else NO_LANDLOCK)
    os.lseek(filtered, 0, os.SEEK_SET)
    told = ["--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--seccomp", str(filtered), "--"]
    try:
        yield [bwrap, *told], (filtered,)
    finally:
        os.close(filtered)


@pytest.mark.requirement("SANDBOX-4")
def test_where_nothing_can_confine_each_way_is_named_and_it_ends_with_status_78(myself: Someone) -> None:
    with _around(landlock=False) as (around, fds):
        done = myself.lnk("sandbox", "check", around=around, pass_fds=fds)
    assert done.returncode == NoSandbox.status, done
    _, *rows = done.stdout.splitlines()
    assert [row.split("  ")[0] for row in rows] == ["bubblewrap", "bundled bubblewrap", "landlock"]
    assert all("does not work" in row for row in rows)
    assert "`--no-sandbox`" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.requirement("SANDBOX-4")
def test_without_name_spaces_the_check_is_of_landlock(myself: Someone) -> None:
    _way(Way.LANDLOCK)
    with _around(landlock=True) as (around, fds):
        done = myself.lnk("sandbox", "check", "--json", around=around, pass_fds=fds)
    assert done.returncode == 0, done
    assert [found["way"] for found in json.loads(done.stdout)["tables"]] == ["landlock"]


def test_a_way_that_is_none_is_refused(myself: Someone) -> None:
    done = myself.lnk("sandbox", "check", "--way", "chroot")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "'chroot' is no way to confine" in done.stderr
