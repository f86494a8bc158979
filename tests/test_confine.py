"""What a process gave up it cannot have again, whoever it is, and what could not be closed is said."""

import errno
import json
import mmap
import os
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from ends import caged
from ends.faults import needs_root, skip_loudly
from lnk import confine
from lnk.confine import filters

HERE: Final = Path(__file__).parent
NOBODY: Final = 65534
CLOSED: Final = {"EPERM", "RuntimeError", "ValueError"}  # Python's words for no new thread, and no new limit
FINAL: Final = "run a program"  # the process that could would be gone
# What an ordinary user may not do, or may not on some kernels, though nothing was closed.
UNSURE: Final = {
    "trace its parent",
    "open its parent's memory",
    "read its parent's memory",
    "set an attribute",
    "queue work for the kernel",
    "load a program into the kernel",
    "handle its own faults",
    "make a name space",
    "change an owner",
    "change a mode",
    "change the mode of its input",
    "signal its parent",
    "ask for keys",
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has Landlock and seccomp")


@pytest.fixture(params=["as it is", "ordinary"])
def user(request: pytest.FixtureRequest) -> int:
    """Whose process it is: ours, and where we are root, an ordinary user's."""
    if request.param == "as it is":
        return os.getuid()
    needs_root("become another user")
    return NOBODY


def ran(tmp_path: Path, user: int, how: str, *lacking: str, **more: Any) -> dict[str, Any]:
    """What a process of the user says that tries everything, on a kernel that lacks these locks."""
    document = tmp_path / "document"
    with caged.bait() as told:
        document.write_text(json.dumps({**told, **more}))
        argv = [sys.executable, str(HERE / "ends" / "caged.py"), str(user), "+".join(lacking), how, str(document)]
        with document.open("rb") as file:
            done = subprocess.run(argv, stdin=file, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return {**json.loads(done.stdout), "file": Path(told["file"]).read_bytes()}


def had(probes: dict[str, str]) -> set[str]:
    return {name for name, came in probes.items() if came.startswith("had")}


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory, user: int) -> set[str]:
    """What the user can do where nothing is closed."""
    return had(ran(tmp_path_factory.mktemp("outside"), user, "open", **{"not": [FINAL]})["probes"])


@pytest.mark.requirement("INDEX-6")
def test_a_process_that_gave_up_the_world_can_do_nothing_that_it_could_before(
    tmp_path: Path, user: int, outside: set[str]
) -> None:
    closed = ran(tmp_path, user, "closed")
    assert {name: came for name, came in closed["probes"].items() if came not in CLOSED} == {}
    assert (closed["points"], closed["said"], closed["file"]) == ([], [], caged.SECRET)
    assert closed["probes"].keys() - outside - UNSURE == {FINAL}


@pytest.mark.requirement("INDEX-6")
def test_without_landlock_seccomp_alone_closes_everything_and_it_is_said(tmp_path: Path, user: int) -> None:
    closed = ran(tmp_path, user, "closed", "landlock")
    assert {name: came for name, came in closed["probes"].items() if came not in CLOSED} == {}
    assert closed["points"] == closed["said"] == [confine.NO_LANDLOCK]


@pytest.mark.requirement("INDEX-6")
def test_without_seccomp_landlock_closes_files_programs_and_the_processes_outside_and_it_is_said(
    tmp_path: Path, user: int
) -> None:
    closed = ran(tmp_path, user, "closed", "seccomp")
    assert closed["points"] == closed["said"] == [confine.NO_SECCOMP]
    assert had(closed["probes"]).isdisjoint(
        {
            *("open a file", "open a file to write", "make a file", "list a folder", "make a folder", "link", FINAL),
            *("shorten a file", "connect by TCP", "listen by TCP", "connect to a name", "signal its parent"),
            *("open its parent's memory", "read its parent's memory", "trace its parent"),
        }
    )
    assert had(closed["probes"]) >= {"learn of a file", "send by UDP", "connect to a path", "fork"}


def test_where_neither_lock_is_there_it_is_said_and_only_its_memory_is_kept_from_others(
    tmp_path: Path, user: int
) -> None:
    closed = ran(tmp_path, user, "closed", "landlock", "seccomp", **{"not": [FINAL]})
    assert closed["points"] == closed["said"] == [confine.NEITHER]
    assert "open a file" in had(closed["probes"])
    assert closed["dumped"] == 0


def test_asking_what_would_stay_open_closes_nothing() -> None:
    assert confine.open_points() == confine.open_points()
    with open(os.devnull, "rb"):
        assert Path("/proc/self/status").read_text().split("NoNewPrivs:")[1].split()[0] == "0"


def run(code: str) -> subprocess.CompletedProcess[str]:
    """What a process does that runs `code`; its output is a pipe."""
    begin = "import os, sys\nfrom lnk import confine\n"
    argv = [sys.executable, "-c", begin + code]
    return subprocess.run(argv, cwd=HERE, capture_output=True, text=True, timeout=120, check=False)


def test_calls_by_the_numbers_of_x32_are_refused_too() -> None:
    if os.uname().machine != "x86_64":
        skip_loudly("only x86-64 has other tables of calls")
    getpid = 0x40000000 + 39
    asked = run(
        "from ctypes import get_errno\nfrom ends.caged import libc\nconfine.close_the_world()\n"
        f"print(libc.syscall({getpid}), get_errno())"
    )
    assert asked.stdout == "-1 1\n", asked.stderr


def test_a_32_bit_call_ends_the_process() -> None:
    if os.uname().machine != "x86_64":
        skip_loudly("only x86-64 has other tables of calls")
    # mov eax, 20 (getpid there); int 0x80; ret
    code = (
        "import ctypes, mmap\n"
        f"room = mmap.mmap(-1, {mmap.PAGESIZE}, prot=7)\n"
        "room.write(bytes.fromhex('b814000000cd80c3'))\n"
        "ask = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(room)))\n"
        "print(ask() == os.getpid(), flush=True)\n"
    )
    before = run(code)
    if before.stdout != "True\n":
        skip_loudly("this kernel takes no 32-bit calls")
    after = run(code + "confine.close_the_world()\nask()\nprint('had')")
    assert (after.stdout, after.returncode) == ("True\n", -signal.SIGSYS)


LIMITS: Final = "memory_bytes=256 << 20, cpu_s=1, wall_s=60, files=8"


@pytest.mark.requirement("INDEX-6")
@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("bytearray(300 << 20)", 1),
        ("import time\nwhile time.process_time() < 10: pass", -signal.SIGXCPU),
        ("open('/dev/fd/1'); [os.dup(1) for _ in range(8)]", 1),
        ("os.kill(os.getpid(), 14)", -signal.SIGALRM),
    ],
    ids=["memory", "processor", "descriptors", "the alarm is not ignored"],
)
def test_what_takes_more_than_its_limit_fails_or_ends(code: str, ends: int) -> None:
    assert run(code if ends != -signal.SIGALRM else "pass").returncode == 0
    limited = run(f"print(confine.limit({LIMITS}), flush=True)\n{code}")
    assert (limited.stdout, limited.returncode) == ("[]\n", ends)


@pytest.mark.requirement("INDEX-6")
def test_it_ends_when_its_time_is_over() -> None:
    done = run("confine.limit(memory_bytes=1 << 30, cpu_s=60, wall_s=1, files=8)\nimport time\ntime.sleep(60)")
    assert done.returncode == -signal.SIGALRM


def test_no_file_is_written_within_the_limits(tmp_path: Path) -> None:
    file = tmp_path / "file"
    done = run(f"confine.limit({LIMITS})\nfile = open({str(file)!r}, 'wb', buffering=0)\nfile.write(b'x')")
    assert "File too large" in done.stderr
    assert file.read_bytes() == b""


@pytest.mark.requirement("INDEX-6")
def test_an_ordinary_user_starts_no_process_within_a_limit_of_none() -> None:
    ordinary = f"os.getuid() or os.setuid({NOBODY})\n"
    done = run(f"{ordinary}confine.limit({LIMITS}, processes=0)\nos.fork() or os._exit(0)")
    assert "BlockingIOError" in done.stderr


def test_a_limit_that_is_lower_already_stays() -> None:
    lower = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (6, 7))\n"
    asked = run(f"{lower}confine.limit({LIMITS})\nprint(resource.getrlimit(resource.RLIMIT_NOFILE))")
    assert asked.stdout == "(6, 7)\n", asked.stderr
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] != 7


def test_descriptors_that_were_left_open_are_closed() -> None:
    asked = run(
        "left = os.open('/', os.O_RDONLY)\nos.dup2(left, 900)\nconfine.close_the_world()\n"
        "for each in (left, 900):\n"
        "    try: os.lseek(each, 0, 0)\n"
        "    except OSError as error: print(error.errno)"
    )
    assert asked.stdout == "9\n9\n", asked.stderr


@pytest.mark.requirement("INDEX-6")
def test_it_ends_with_the_process_that_started_it_and_at_once_where_that_ended_before() -> None:
    # The one that is started holds the pipe of errors too, and the pipe's end is waited for.
    child = "import os, sys, time; from lnk import confine; confine.end_with(int(sys.argv[1]));"
    child += " print(flush=True); time.sleep(600)"
    begin = f"import subprocess\nargv = [sys.executable, '-c', {child!r}]\n"
    killed = run(
        f"{begin}begun = subprocess.Popen([*argv, str(os.getpid())], stdout=subprocess.PIPE)\n"
        "begun.stdout.read(1)\nos.kill(os.getpid(), 9)"
    )
    assert killed.returncode == -signal.SIGKILL
    late = run(f"{begin}print(subprocess.run([*argv, '1']).returncode)")
    assert late.stdout == "1\n"


# ---------------------------------------------------------------- what is left to a program

ALLOWED: Final = "allowed"
KILLED: Final = "killed"
MACHINES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def decided(code: bytes, machine: int, number: int, *arguments: int) -> str:
    """What a filter answers to a call: the kernel's own reading of its steps, in a few lines."""
    data = struct.pack("=iIQ6Q", number, machine, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("=HBBI", code))
    at = held = 0
    while True:
        kind, yes, no, value = steps[at]
        at += 1
        if kind == 0x20:
            held = struct.unpack_from("=I", data, value)[0]
        elif kind == 0x54:
            held &= value
        elif kind == 0x06:
            answers = {0x7FFF0000: ALLOWED, 0x80000000: KILLED}
            return answers.get(value) or errno.errorcode[value & 0xFFFF]
        else:
            true = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[kind]
            at += yes if true else no


@pytest.fixture(params=list(MACHINES))
def on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """A machine's column in the tables, and its name in a filter's data."""
    found = MACHINES[request.param]
    monkeypatch.setattr(filters, "machine", lambda: found)
    return found


def program(*, changing: bool = True, **sockets: bool) -> bytes:
    code = filters.for_program(filters.Sockets(**sockets), changing=changing)
    assert code
    return code


CALLS: Final = {  # a call by (x86_64, aarch64), its arguments, and what it comes to in a sandbox
    "ptrace": ((101, 117), (), "EPERM"),
    "mount": ((165, 40), (), "EPERM"),
    "unshare": ((272, 97), (0x10000000,), "EPERM"),
    "io_uring_setup": ((425, 425), (), "EPERM"),
    "keyctl": ((250, 219), (), "EPERM"),
    "bpf": ((321, 280), (), "EPERM"),
    "clone3": ((435, 435), (), "ENOSYS"),
    "clone": ((56, 220), (0x11,), ALLOWED),
    "clone into a name space": ((56, 220), (0x10000011,), "EPERM"),
    "personality": ((135, 92), (0x0040000,), "EPERM"),
    "asking for the personality": ((135, 92), (0xFFFFFFFF,), ALLOWED),
    "a request to a terminal": ((16, 29), (0, 0x5401), ALLOWED),
    "typing for a terminal": ((16, 29), (0, 0x5412), "EPERM"),
    "typing with more bits": ((16, 29), (0, 0x1_0000_5412), "EPERM"),
    "opening": ((257, 56), (), ALLOWED),
    "Landlock": ((444, 444), (), ALLOWED),
    "seccomp": ((317, 277), (), ALLOWED),
    "watching files": ((254, 27), (), ALLOWED),
    "a mode": ((91, 52), (), ALLOWED),
    "another's priority": ((141, 140), (0, 5), ALLOWED),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_program_in_a_sandbox_keeps_the_calls_that_programs_need_and_no_others(
    on: tuple[int, int], name: str
) -> None:
    numbers, arguments, comes_to = CALLS[name]
    assert decided(program(), on[1], numbers[on[0]], *arguments) == comes_to


@pytest.mark.parametrize(
    ("numbers", "arguments", "comes_to"),
    [
        ((91, 52), (), "EPERM"),
        ((280, 88), (), "EPERM"),
        ((188, 5), (), "EPERM"),
        ((16, 29), (3, 0x40086602), "EPERM"),
        ((141, 140), (0, 0), ALLOWED),
        ((141, 140), (0, 5), "EPERM"),
        ((141, 140), (2, 0), "EPERM"),
        ((302, 261), (0,), ALLOWED),
        ((302, 261), (1,), "EPERM"),
    ],
)
def test_without_name_spaces_it_changes_no_file_and_no_process_by_a_call_that_landlock_does_not_know(
    on: tuple[int, int], numbers: tuple[int, int], arguments: tuple[int, ...], comes_to: str
) -> None:
    assert decided(program(changing=False), on[1], numbers[on[0]], *arguments) == comes_to


UNIX, INET, INET6, NETLINK, VSOCK = 1, 2, 10, 16, 40
STREAM, DGRAM, RAW, WITH_FLAGS = 1, 2, 3, 0x80801


@pytest.mark.parametrize(
    ("sockets", "may"),
    [
        ({}, set()),
        ({"unix": True}, {(UNIX, STREAM, 0), (UNIX, DGRAM, 0), (UNIX, WITH_FLAGS, 0)}),
        ({"tcp": True}, {(INET, STREAM, 0), (INET, STREAM, 6), (INET6, STREAM, 0), (INET, WITH_FLAGS, 0)}),
        (
            {"network": True},
            {(INET, STREAM, 0), (INET, STREAM, 6), (INET6, STREAM, 0), (INET, WITH_FLAGS, 0)}
            | {(INET, DGRAM, 0), (INET, DGRAM, 17), (NETLINK, RAW, 0)},
        ),
    ],
)
def test_a_socket_is_made_only_of_a_kind_that_it_was_given(
    on: tuple[int, int], sockets: dict[str, bool], may: set[tuple[int, int, int]]
) -> None:
    asked = {
        *((UNIX, kind, 0) for kind in (STREAM, DGRAM, WITH_FLAGS)),
        *((INET, STREAM, protocol) for protocol in (0, 6, 132, 256, 262)),
        *((INET, kind, 0) for kind in (DGRAM, RAW, WITH_FLAGS)),
        *((INET, DGRAM, 17), (INET6, STREAM, 0), (NETLINK, RAW, 0), (NETLINK, RAW, 9), (VSOCK, STREAM, 0)),
        *((family, RAW, 0) for family in (17, 31, 38, 44)),
    }
    number = (41, 198)[on[0]]
    came = {each: decided(program(**sockets), on[1], number, *each) for each in asked}
    assert {each for each, answer in came.items() if answer == ALLOWED} == may
    assert set(came.values()) <= {ALLOWED, "EAFNOSUPPORT"}


def test_a_pair_of_sockets_is_left_but_for_one_that_could_be_led_to_any_other(on: tuple[int, int]) -> None:
    number = (53, 199)[on[0]]
    answers = [decided(program(), on[1], number, *each) for each in ((UNIX, STREAM), (UNIX, 5), (UNIX, DGRAM), (30, 1))]
    assert answers == [ALLOWED, ALLOWED, "EAFNOSUPPORT", "EAFNOSUPPORT"]
    assert decided(program(unix=True), on[1], number, UNIX, DGRAM) == ALLOWED


def test_a_call_of_another_table_ends_a_program(on: tuple[int, int]) -> None:
    other = MACHINES["aarch64" if on[0] == 0 else "x86_64"][1]
    assert decided(program(), other, 0) == KILLED
    assert decided(program(), 0x40000003, 0) == KILLED
    if on[0] == 0:
        assert decided(program(), on[1], 0x40000000 + 39) == KILLED


def test_where_the_calls_of_a_machine_are_not_known_there_is_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "machine", lambda: None)
    assert filters.for_program(filters.Sockets()) is filters.compute_only() is None


def test_a_file_is_given_what_a_file_can_have_and_a_folder_all(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    done = run(
        f"os.chdir({str(tmp_path)!r})\n"
        "from lnk.confine import filters\n"
        "files = confine.Files()\n"
        "files.allow(os.open('file', os.O_PATH), confine.WRITE)\n"
        "print(confine.keep_to(files.fd, filters.for_program(filters.Sockets(), changing=False)))\n"
        "open('file', 'a').write('more')\n"
        "for each in (lambda: open('new', 'w'), lambda: os.listdir('.'), lambda: os.chmod('file', 0o600)):\n"
        "    try: each()\n"
        "    except PermissionError: print('refused')\n"
    )
    if "no Landlock" in done.stderr:
        skip_loudly("this kernel has no Landlock")
    assert (done.stdout, done.stderr) == ("True\nrefused\nrefused\nrefused\n", "")
    assert file.read_text() == "textmore"
