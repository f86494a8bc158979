"""The way in to a service: who may connect, the first line that each says, and what those cost who say none."""

import errno
import json
import os
import resource
import select
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from lnk import sockets
from lnk.doorway import SILENT_MAX, Doorway, Said, refuse
from lnk.errors import Invalid, LinkError
from lnk.sockets import PATH_BYTES_MAX, connect, listen, user_of

LIMIT = 64 << 10
LINE_S = 5.0
WAIT_S = 30.0
NAME = "s.sock"
HELLO = b'{"agent": "a"}'
NOBODY = 65534
AS_NOBODY: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}
BY_NUMBER = pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="NOT TESTED: no folder has a path by its descriptor here"
)


class Place:
    """A folder with a doorway in it, the clients that a test has, and what the doorway said of those it refused."""

    def __init__(self, path: Path, users: set[int] | None = None) -> None:
        self.path = str(path)
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self.why: list[str] = []
        self.clients: list[Any] = []
        listening = listen(self.fd, self.path, NAME)
        users = {os.geteuid()} if users is None else users
        self.door = Doorway(listening, users, self.why.append, line_bytes_max=LIMIT, line_s=LINE_S)

    def client(self, said: bytes = b"") -> socket.socket:
        stream = socket.socket(fileno=connect(self.fd, self.path, NAME).detach())
        self.clients.append(stream)
        stream.settimeout(WAIT_S)
        if said:
            stream.sendall(said)
        return stream

    def turn(self, now: float = 0.0) -> list[Said]:
        """What is ready is taken, as whoever owns the doorway does it."""
        poll = select.poll()
        for fd in self.door.fds():
            poll.register(fd, select.POLLIN)
        found = self.door.take(dict(poll.poll(0)), now)
        self.clients += [said.stream for said in found]
        return found

    def close(self) -> None:
        self.door.close()
        for each in self.clients:
            each.close()
        os.close(self.fd)


def heard(stream: socket.socket) -> bytes:
    """All that comes until the end."""
    found = b""
    try:
        while data := stream.recv(4096):
            found += data
    except ConnectionResetError:  # what the client said was not read to its end
        pass
    return found


def why(stream: socket.socket) -> str:
    """Why the connection was closed, which is one line of it."""
    line = heard(stream)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    (found,) = json.loads(line).items()
    assert found[0] == "error"
    return found[1]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o711)
        for parent in Path(path).parents:
            if not parent.stat().st_mode & stat.S_IXOTH:
                pytest.skip(f"NOT TESTED: another user; nobody else may enter {parent}")
        yield Path(path)


def as_nobody(program: str, *words: str) -> subprocess.Popen[str]:
    """A Python program as another user."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: another user; only root can be one")
    for python in (sys.executable, "/usr/bin/python3"):  # the tests' own may lie in a folder of root's
        with suppress(PermissionError, FileNotFoundError):
            argv = [python, "-I", "-S", "-c", program, *words]
            return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, **AS_NOBODY)
    pytest.skip("NOT TESTED: another user, who may run no Python here")


# ------------------------------------------------------------ the first line


@pytest.mark.requirement("SOCKET-4")
def test_the_first_line_is_taken_and_not_a_byte_of_what_follows(place: Place):
    client = place.client(HELLO + b'\n{"jsonrpc": "2.0"}\nhalf')
    (said,) = place.turn()
    assert (said.line, said.user) == (HELLO, os.geteuid())
    assert said.stream.recv(100) == b'{"jsonrpc": "2.0"}\nhalf'
    said.stream.send(b"heard\n")
    assert client.recv(100) == b"heard\n"
    assert (len(place.door), place.why) == (0, [])


def test_a_line_is_taken_as_soon_as_it_ends_however_it_comes(place: Place):
    client = place.client()
    for number in range(len(HELLO)):
        assert place.turn() == []
        client.send(HELLO[number : number + 1])
    assert place.turn() == []
    assert len(place.door) == 1
    client.send(b"\nmore")
    (said,) = place.turn()
    assert (said.line, said.stream.recv(100)) == (HELLO, b"more")


def test_what_is_no_hello_is_whoever_reads_its_business(place: Place):
    place.client(b"\n")
    place.client(b"\xff\0\r\n")
    assert [said.line for said in place.turn()] == [b"", b"\xff\0\r"]


def test_the_longest_line_is_taken_whole(place: Place):
    place.client(b"x" * LIMIT + b"\n" + b"y")
    (said,) = place.turn()
    assert (said.line, said.stream.recv(100)) == (b"x" * LIMIT, b"y")


@pytest.mark.requirement("SOCKET-5")
@pytest.mark.parametrize(
    "parts", [(LIMIT + 1, b""), (LIMIT + 1, b"\n"), (LIMIT, b"x"), (LIMIT, b"x\n")], ids=["at once", "ended", "1", "2"]
)
def test_a_line_over_the_limit_is_refused_with_it(place: Place, parts: tuple[int, bytes]):
    """Case socket-07."""
    client = place.client(b"x" * parts[0])
    place.turn()
    try:
        client.send(parts[1])
    except BrokenPipeError:
        assert parts[0] > LIMIT
    assert place.turn() == []
    assert (len(place.door), place.why) == (0, [f"the first line is over {LIMIT:,} bytes"])
    assert why(client) == f"The first line is over {LIMIT:,} bytes."


def test_a_line_without_an_end_is_not_read_to_its_end(place: Place):
    """Case socket-07: whoever goes on writing finds nobody who reads."""
    client = place.client()
    client.setblocking(False)
    sent = 0
    with pytest.raises(BrokenPipeError):
        while sent < 1 << 30:
            try:
                sent += client.send(b"x" * (1 << 20))
            except BlockingIOError:
                assert place.turn() == []
    assert sent < 4 << 20
    assert len(place.door) == 0


@pytest.mark.parametrize("said", [b"", HELLO], ids=["silent", "in a line"])
@pytest.mark.parametrize("half", [False, True])
def test_who_closes_before_the_line_s_end_is_gone(place: Place, said: bytes, half: bool):
    client = place.client(said)
    assert place.turn() == []
    if half:
        client.shutdown(socket.SHUT_WR)
    else:
        client.close()
    assert place.turn() == []
    assert (len(place.door), len(place.door.fds()), place.why) == (0, 1, [])
    assert not half or heard(client) == b""


def test_who_closes_at_once_was_never_there(place: Place):
    place.client(HELLO).close()
    place.client().close()
    assert place.turn() + place.turn() == []
    assert (len(place.door), place.why) == (0, [])


def test_who_says_a_line_and_nothing_more_can_still_be_answered(place: Place):
    client = place.client(HELLO + b"\n")
    client.shutdown(socket.SHUT_WR)
    (said,) = place.turn()
    assert said.stream.recv(1) == b""
    said.stream.send(b"answer\n")
    said.stream.close()
    assert heard(client) == b"answer\n"


def test_a_descriptor_that_is_sent_along_is_not_kept(place: Place):
    source, sink = os.pipe()
    client = place.client()
    socket.send_fds(client, [HELLO[:5]], [sink])
    socket.send_fds(client, [HELLO[5:] + b"\n"], [sink])
    os.close(sink)
    (said,) = place.turn() + place.turn()
    assert said.line == HELLO
    with os.fdopen(source, "rb") as pipe:
        assert select.select([pipe], [], [], WAIT_S)[0]
        assert pipe.read() == b""


def test_a_byte_out_of_band_is_one_like_the_others_and_keeps_nobody_busy(place: Place):
    client = place.client()
    try:
        client.send(HELLO, socket.MSG_OOB)
    except OSError:
        pytest.skip("NOT TESTED: these sockets have nothing out of band here")
    place.turn()
    assert place.turn() == []
    assert [fd for fd in place.door.fds() if select.select([fd], [], [], 0)[0]] == []
    client.send(b"\n")
    assert [said.line for said in place.turn()] == [HELLO]


# ------------------------------------------------------------ who is silent


@pytest.mark.requirement("SOCKET-5")
def test_500_silent_connections_keep_no_other_out_and_go_in_time(place: Place):
    """Case socket-09."""
    silent = []
    for _ in range(500):
        silent.append(place.client())
        place.turn(0.0)
    assert (len(place.door), len(place.door.fds())) == (SILENT_MAX, SILENT_MAX + 1)

    place.client(HELLO + b"\n")
    (said,) = place.turn(1.0)
    assert said.line == HELLO

    dropped, kept = silent[:-SILENT_MAX], silent[-SILENT_MAX:]
    assert {why(each) for each in dropped} == {f"More than {SILENT_MAX} connections are silent."}
    place.door.expire(LINE_S)
    assert {why(each) for each in kept} == {"No first line came within 5 s."}
    assert (len(place.door), place.door.wait_s(LINE_S)) == (0, None)
    assert len(place.why) == 500


def test_many_that_come_at_once_are_taken_in_turns_and_each_is_heard(place: Place):
    count = 2 * SILENT_MAX + 1
    for number in range(count):
        place.client(b"%d\n" % number)
    assert place.door.is_awaited()
    taken = [place.turn() for _ in range(3)]
    assert [len(each) for each in taken] == [SILENT_MAX, SILENT_MAX, 1]
    assert [int(said.line) for each in taken for said in each] == list(range(count))
    assert not place.door.is_awaited()


def test_time_runs_from_the_connection_on_whatever_drips_in(place: Place):
    """Case socket-07."""
    slow = place.client(b"{")
    assert place.door.wait_s(0.0) is None
    place.turn(0.0)
    later = place.client()
    place.turn(3.0)
    slow.send(b" ")
    assert place.turn(4.0) == []
    assert (place.door.wait_s(4.0), place.door.wait_s(9.0)) == (1.0, 0.0)
    place.door.expire(4.99)
    assert len(place.door) == 2
    place.door.expire(5.0)
    assert why(slow) == "No first line came within 5 s."
    assert (len(place.door), place.door.wait_s(5.0)) == (1, 3.0)
    later.send(HELLO + b"\n")
    assert [said.line for said in place.turn(7.99)] == [HELLO]


def test_who_comes_when_no_descriptor_is_left_is_told_so_and_keeps_nobody_busy(place: Place):
    client, _ = place.client(HELLO + b"\n"), place.client(HELLO + b"\n")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))), before[1]))
    full: list[int] = []
    try:
        with suppress(OSError):
            while True:
                full.append(os.dup(client.fileno()))
        assert place.turn() == []
    finally:
        for fd in full:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert why(client) == "The process that listens has no descriptor left."
    assert [said.line for said in place.turn()] == [HELLO]


def test_a_doorway_that_is_closed_takes_nobody_and_keeps_nobody(place: Place):
    silent = place.client()
    place.turn()
    place.door.close()
    assert heard(silent) == b""
    with pytest.raises(ConnectionRefusedError):
        place.client()


def test_who_does_not_read_why_it_is_refused_keeps_nobody_waiting():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                ours.send(b"x" * 4096)
        ours.setblocking(True)
        refuse(ours, "it is full")
        assert ours.fileno() == -1
        assert set(heard(theirs)) == {ord("x")}


@pytest.mark.parametrize("told", ["no place is left", "No place is left."])
def test_a_refusal_is_one_sentence_in_one_line(told: str):
    ours, theirs = socket.socketpair()
    with theirs:
        refuse(ours, told)
        assert why(theirs) == "No place is left."


# ------------------------------------------------------------ who connects

CONNECTS = """
import socket, sys
stream = socket.socket(socket.AF_UNIX)
stream.connect(sys.argv[1])
try:
    stream.send(b'{"agent": "a"}\\n')
    print(stream.recv(100))
except ConnectionError:
    print(b"")
"""


@pytest.mark.requirement("SOCKET-1")
@pytest.mark.parametrize("taken", [False, True])
def test_of_users_who_reach_the_socket_only_those_who_may_are_taken(open_folder: Path, taken: bool):
    place = Place(open_folder, {os.geteuid(), NOBODY} if taken else {os.geteuid()})
    try:
        os.chmod(open_folder / NAME, 0o666)  # what no mode keeps out, its user does
        with as_nobody(CONNECTS, str(open_folder / NAME)) as other:
            found = []
            until = time.monotonic() + WAIT_S
            while not (found or place.why) and time.monotonic() < until:
                select.select(place.door.fds(), [], [], WAIT_S)
                found = place.turn()
            for said in found:
                said.stream.send(b"in")
                said.stream.close()
            assert (other.communicate(timeout=WAIT_S)[0], other.returncode) == ("b'in'\n" if taken else "b''\n", 0)
        assert [(said.line, said.user) for said in found] == ([(HELLO, NOBODY)] if taken else [])
        assert place.why == ([] if taken else [f"user {NOBODY} may not connect"])
        assert len(place.door) == 0
    finally:
        place.close()


def test_whoever_is_at_the_other_end_is_known_by_the_kernel(place: Place):
    one, other = socket.socketpair()
    with one, other:
        assert (user_of(one), user_of(place.client())) == (os.geteuid(), os.geteuid())


# ------------------------------------------------------------ the socket

# Says how it met the socket, which is only ever to be one way; ends once it was often enough.
WATCHES = """
import errno, socket, sys
met = {}
while met.get("EACCES", 0) < 200 and not set(met) - {"EACCES"}:
    for path in sys.argv[1:]:
        with socket.socket(socket.AF_UNIX) as stream:
            number = stream.connect_ex(path)
        if number != errno.ENOENT:
            word = errno.errorcode.get(number, "connected")
            met[word] = met.get(word, 0) + 1
print(*met)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def no_mask() -> Iterator[None]:
    """Files are made with all that is asked for."""
    before = os.umask(0)
    yield
    assert os.umask(before) == 0


def mode(path: Path) -> int:
    found = path.lstat()
    assert stat.S_ISSOCK(found.st_mode)
    return stat.S_IMODE(found.st_mode)


@pytest.mark.requirement("SOCKET-1")
def test_no_other_user_gets_through_from_the_first_moment_on(open_folder: Path, no_mask: None):
    """Case socket-02."""
    folder = os.open(open_folder, os.O_RDONLY | os.O_DIRECTORY)
    names = [str(open_folder / name) for name in (NAME, f".{NAME}.new")]
    other = as_nobody(WATCHES, *names)
    try:
        until = time.monotonic() + WAIT_S
        while other.poll() is None and time.monotonic() < until:
            listen(folder, str(open_folder), NAME).close()
            os.unlink(open_folder / NAME)
        assert (other.communicate(timeout=WAIT_S)[0], other.returncode) == ("EACCES\n", 0)
    finally:
        other.kill()
        other.wait()
        os.close(folder)


@pytest.mark.requirement("SOCKET-1")
def test_the_socket_is_its_user_s_alone_whatever_the_mask(tmp_path: Path, folder: int, no_mask: None):
    with closing(listen(folder, str(tmp_path), NAME)):
        assert mode(tmp_path / NAME) == 0o600
    assert os.listdir(tmp_path) == [NAME]


@pytest.mark.requirement("SOCKET-1")
def test_with_a_group_the_socket_is_its_members_too(tmp_path: Path, folder: int, no_mask: None):
    group = NOBODY if os.geteuid() == 0 else os.getegid()
    with closing(listen(folder, str(tmp_path), NAME, group=group)):
        assert (mode(tmp_path / NAME), (tmp_path / NAME).stat().st_gid) == (0o660, group)


def test_where_something_else_has_the_name_it_stays_and_nobody_listens(tmp_path: Path, folder: int):
    (tmp_path / NAME).mkdir()
    with pytest.raises(LinkError, match=f"listen at {tmp_path}/{NAME}"):
        listen(folder, str(tmp_path), NAME)
    with pytest.raises(ConnectionRefusedError):
        connect(folder, str(tmp_path), f".{NAME}.new")
    assert (tmp_path / NAME).is_dir()


def test_what_a_dead_process_left_is_replaced(tmp_path: Path, folder: int):
    for name in (NAME, f".{NAME}.new"):  # the latter of one that died as it began to listen
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(tmp_path / name))
    with pytest.raises(ConnectionRefusedError):
        connect(folder, str(tmp_path), NAME)
    with closing(listen(folder, str(tmp_path), NAME)) as listening, closing(connect(folder, str(tmp_path), NAME)):
        assert select.select([listening], [], [], WAIT_S)[0]
    assert os.listdir(tmp_path) == [NAME]


def test_where_there_is_no_socket_none_is_found(tmp_path: Path, folder: int):
    with pytest.raises(FileNotFoundError):
        connect(folder, str(tmp_path), NAME)


def test_who_listens_and_takes_nobody_keeps_nobody_waiting(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sockets, "BACKLOG", 1)
    streams = [listen(folder, str(tmp_path), NAME)]
    try:
        with pytest.raises(BlockingIOError):
            for _ in range(8):
                streams.append(connect(folder, str(tmp_path), NAME))
        assert len(streams) > 1
    finally:
        for each in streams:
            each.close()


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """A folder, open, and its path, which is longer than an address of a socket."""
    path = tmp_path / ("x" * 60) / ("y" * 60)
    path.mkdir(parents=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    assert len(os.fsencode(path)) > PATH_BYTES_MAX
    yield fd, str(path)
    os.close(fd)


@BY_NUMBER
def test_however_long_the_path_is_it_is_listened_at_and_connected_to(deep: tuple[int, str]):
    """Case socket-01."""
    with closing(listen(*deep, NAME)) as listening, closing(connect(*deep, NAME)) as stream:
        fd, _ = listening._accept()
        with socket.socket(fileno=fd) as taken:
            stream.send(HELLO)
            assert taken.recv(100) == HELLO
    assert os.listdir(deep[1]) == [NAME]


@pytest.fixture
def by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system where a folder has no path by its descriptor."""
    monkeypatch.setattr(sockets, "_BY_NUMBER", "/nowhere")


def test_where_only_the_path_leads_there_one_that_is_too_long_is_refused_clearly(deep: tuple[int, str], by_path: None):
    """Case socket-01."""
    for reach in (listen, connect):
        with pytest.raises(Invalid, match=f"{deep[1]}/.* is too long for a socket, which takes {PATH_BYTES_MAX} bytes"):
            reach(*deep, NAME)
    assert os.listdir(deep[1]) == []


def test_where_only_the_path_leads_there_a_short_one_does(by_path: None):
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        with closing(listen(fd, path, NAME)), closing(connect(fd, path, NAME)) as stream:
            assert stream.getpeername() == f"{path}/.{NAME}.new"
        os.close(fd)


def test_a_link_in_the_place_of_a_socket_is_never_connected_to(tmp_path: Path):
    """A program that may write the folder could else lead its host to any socket of the owner's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    at, there = (os.open(each, os.O_RDONLY | os.O_DIRECTORY) for each in (tmp_path, elsewhere))
    try:
        with closing(listen(there, str(elsewhere), "real.sock")):
            (tmp_path / "engine.sock").symlink_to(elsewhere / "real.sock")
            (tmp_path / "file.sock").write_text("no socket")
            for name in ("engine.sock", "file.sock"):
                with pytest.raises(OSError) as refused:
                    connect(at, str(tmp_path), name)
                assert refused.value.errno == errno.ENOTSOCK
            connect(there, str(elsewhere), "real.sock").close()
    finally:
        os.close(at)
        os.close(there)
