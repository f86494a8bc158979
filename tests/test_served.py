"""What the small programs beside a service read of its folder: entries, the name they make, and the lock for life."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lnk.agent import served
from lnk.agent.served import (
    AGENTS_MAX,
    ENTRY_BYTES_MAX,
    Entry,
    are_in_place,
    generation,
    is_current,
    open_place,
    place_of,
    read_entries,
    read_entry,
    stamp,
    take_lock,
)
from lnk.errors import Corrupt, LinkError, Missing, Refused, Unavailable

ONE, TWO = "a_aaaaaaaaaaaa", "a_bbbbbbbbbbbb"
NAME = "link-0123456789abcdef"
WAIT_S = 30


class Place:
    """`<dir>`, open, and the entries in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.agents = path / "agents"
        self.agents.mkdir(mode=0o700)
        path.chmod(0o700)
        self.fd = open_place(str(path))

    def write(self, agent: str, data: bytes | None = None, **more: Any) -> Path:
        file = self.agents / f"{agent}.json"
        said = {"agent": agent, "engine": "link", **more}
        file.write_bytes(json.dumps(said).encode() if data is None else data)
        return file

    def name(self) -> str:
        return generation("link", read_entries(self.fd, "link"))

    def refused(self, agent: str) -> LinkError:
        """Why the entry cannot be had, which leaves it out of those that are served."""
        assert agent not in read_entries(self.fd, "link")
        with pytest.raises(LinkError) as raised:
            read_entry(self.fd, agent)
        assert agent in str(raised.value)
        return raised.value


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    os.close(found.fd)


# ------------------------------------------------------------ the folder


@pytest.mark.parametrize("mode", [0o701, 0o704, 0o720, 0o777], ids=oct)
def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, mode: int):
    tmp_path.chmod(mode)
    with pytest.raises(Refused, match="mode 700"):
        open_place(str(tmp_path))


def test_another_user_s_folder_is_refused(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: another user's folder; only root can make one")
    tmp_path.chmod(0o700)
    os.chown(tmp_path, 65534, -1)
    with pytest.raises(Refused, match="this user's alone"):
        open_place(str(tmp_path))


def test_a_link_to_a_folder_is_refused_and_none_is_missing(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(LinkError):
        open_place(str(tmp_path / "link"))
    with pytest.raises(Missing, match="nowhere"):
        open_place(str(tmp_path / "nowhere"))


# ------------------------------------------------------------ entries


def test_an_entry_is_read_as_it_stands(place: Place):
    data = place.write(ONE, argv=["a"]).read_bytes()
    entry = read_entry(place.fd, ONE)
    assert entry == Entry(data, {"agent": ONE, "engine": "link", "argv": ["a"]})
    assert (entry.engine, read_entries(place.fd, "link")) == ("link", {ONE: entry})


def test_where_nothing_is_served_that_is_so(place: Place):
    assert read_entries(place.fd, "link") == {}
    place.agents.rmdir()
    assert read_entries(place.fd, "link") == {}
    with pytest.raises(Missing, match=f"'{ONE}'.*lnk agent memory start"):
        read_entry(place.fd, ONE)


def test_agents_of_another_engine_are_served_by_another(place: Place):
    place.write(ONE)
    place.write(TWO, engine="other")
    assert (list(read_entries(place.fd, "link")), list(read_entries(place.fd, "other"))) == ([ONE], [TWO])


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\0", b"\xff", b"null", b"[]", b'"a"', b"1", b"{}", b"[" * 100_000),
        b'{"agent": "%s"}' % ONE.encode(),
        b'{"agent": "%s", "engine": 1}' % ONE.encode(),
        b'{"agent": "%s", "engine": "link"}' % TWO.encode(),
        b'{"agent": "%s", "engine": "link"' % ONE.encode(),
    ],
    ids=lambda data: ascii(data)[:40],
)
def test_what_nobody_understands_is_corrupt_and_the_others_are_served(place: Place, data: bytes):
    place.write(ONE, data)
    place.write(TWO)
    assert isinstance(place.refused(ONE), Corrupt)
    assert list(read_entries(place.fd, "link")) == [TWO]


@pytest.mark.parametrize("over", [0, 1, 1 << 20])
def test_an_entry_has_a_limit_to_the_byte(place: Place, over: int):
    data = place.write(ONE).read_bytes().ljust(ENTRY_BYTES_MAX + over)
    place.write(ONE, data)
    if over:
        assert isinstance(place.refused(ONE), Corrupt)
    else:
        assert read_entry(place.fd, ONE).data == data


def test_a_link_leads_nowhere(place: Place, tmp_path: Path):
    place.write(ONE).rename(tmp_path / "elsewhere")
    (place.agents / f"{ONE}.json").symlink_to(tmp_path / "elsewhere")
    assert isinstance(place.refused(ONE), Refused)


def test_a_pipe_keeps_nobody_waiting(place: Place):
    os.mkfifo(place.agents / f"{ONE}.json")
    assert isinstance(place.refused(ONE), Corrupt)


def test_a_folder_is_no_entry(place: Place):
    (place.agents / f"{ONE}.json").mkdir()
    assert isinstance(place.refused(ONE), Corrupt)


def test_another_user_s_file_is_no_entry(place: Place):
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: another user's file; only root can make one")
    os.chown(place.write(ONE), 65534, -1)
    assert isinstance(place.refused(ONE), Corrupt)


def test_of_too_many_the_first_are_served(place: Place):
    names = [f"a_{number:012}" for number in range(AGENTS_MAX + 1)]
    for name in reversed(names):
        place.write(name)
    assert list(read_entries(place.fd, "link")) == names[:-1]


# ------------------------------------------------------------ the name that they make


@pytest.mark.requirement("SHARED-7")
def test_any_change_to_what_is_served_names_another_service(place: Place):
    file = place.write(ONE, argv=["a"])
    names = [place.name()]
    data = file.read_bytes()
    for changed in (data.replace(b'"a"', b'"b"'), data + b"\n", data.replace(b": ", b":")):
        file.write_bytes(changed)
        names.append(place.name())
    file.write_bytes(data)
    assert place.name() == names[0]
    other = place.write(TWO)
    names.append(place.name())
    file.unlink()
    names.append(place.name())
    other.unlink()
    names.append(place.name())
    assert len(set(names)) == len(names)
    assert all(name.startswith("link-") and len(name) == len(NAME) for name in names)


@pytest.mark.requirement("SHARED-7")
def test_what_is_no_entry_changes_no_name(place: Place):
    place.write(ONE)
    before = place.name()
    place.write(TWO, engine="other")
    place.write("a_cccccccccccc", b"{")
    for name in (f".{ONE}.json", f"{ONE}.json.new", "notes", ".json"):
        (place.agents / name).write_bytes(b"x")
    assert place.name() == before


ENTRIES = st.dictionaries(st.text("ab", min_size=1, max_size=3), st.binary(max_size=4), max_size=4)


def named(entries: dict[str, bytes]) -> str:
    return generation("link", {agent: Entry(data, {}) for agent, data in entries.items()})


@given(ENTRIES, ENTRIES)
def test_two_services_have_one_name_only_where_they_serve_the_same(one: dict[str, bytes], other: dict[str, bytes]):
    assume(one != other)
    assert named(one) != named(other)


def test_an_entry_that_reads_like_two_is_not_taken_for_them():
    assert named({"a": b"\0\0\0\1b"}) != named({"a": b"", "b": b""})
    assert named({"a": b"\0\0\0\0\0\0\0\1b"}) != named({"a": b"", "b": b""})


@given(ENTRIES.flatmap(lambda entries: st.permutations(sorted(entries.items())).map(lambda pairs: (entries, pairs))))
def test_the_order_of_listing_makes_no_other_name(listed: tuple[dict[str, bytes], list[tuple[str, bytes]]]):
    entries, pairs = listed
    assert named(dict(pairs)) == named(entries)


def test_a_name_that_is_no_text_stands_in_nobody_s_way(place: Place):
    place.write(ONE)
    agent = os.fsdecode(b"\xff")
    try:
        with open(os.fsencode(place.agents) + b"/\xff.json", "wb") as file:
            file.write(json.dumps({"agent": agent, "engine": "link"}).encode())
    except OSError:
        pytest.skip("NOT TESTED: a name that is no UTF-8; no file here can have one")
    assert place.name() != generation("link", {ONE: read_entry(place.fd, ONE)})


# ------------------------------------------------------------ whether it is as it was


@pytest.fixture
def made(tmp_path: Path) -> tuple[Entry, Path]:
    """An entry, and a file that it was made from."""
    file = tmp_path / "agent.toml"
    file.write_text("a")
    made_of = {str(file): stamp(str(file)), str(tmp_path / "absent"): ""}
    folders = {str(tmp_path): place_of(str(tmp_path)), str(tmp_path / "absent"): ""}
    return Entry(b"", {"link": "1.0", "made_of": made_of, "folders": folders, "writes": [str(tmp_path)]}), file


def test_an_entry_is_current_where_its_files_and_link_are(made: tuple[Entry, Path]):
    entry, _ = made
    assert is_current(entry, "1.0")
    assert is_current(entry, "0.9.9")  # what a newer release made stays
    assert not is_current(entry, "1.1") and not is_current(entry, "1.0.1")


@pytest.mark.parametrize("change", ["replaced", "gone", "found"])
def test_a_folder_that_is_another_by_now_is_noticed(made: tuple[Entry, Path], change: str):
    entry, file = made
    assert are_in_place(entry)
    if change == "found":
        (file.parent / "absent").mkdir()
    else:
        file.parent.rename(f"{file.parent}-aside")
        if change == "replaced":
            file.parent.mkdir()
    assert not are_in_place(entry)


@pytest.mark.parametrize("change", ["written", "of one size", "replaced", "gone", "found", "mode"])
def test_any_change_to_a_file_that_it_was_made_from_is_noticed(made: tuple[Entry, Path], change: str):
    entry, file = made
    was = file.stat()
    if change == "written":
        file.write_text("ab")
    elif change == "of one size":
        file.write_text("b")
        os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns + 1))
    elif change == "replaced":  # with what seems to be the same
        file.with_name("new").write_text("a")
        os.utime(file.with_name("new"), ns=(was.st_atime_ns, was.st_mtime_ns))
        file.with_name("new").replace(file)
    elif change == "gone":
        file.unlink()
    elif change == "found":
        file.with_name("absent").write_text("")
    else:
        file.chmod(0o600 if was.st_mode & 0o077 else 0o644)
    assert not is_current(entry, "1.0")


@pytest.mark.parametrize(
    "said",
    [
        {"link": "1.0"},
        {"link": "1.0", "made_of": None},
        {"link": "1.0", "made_of": ["/"]},
        {"link": "1.0", "made_of": {"/": 1}},
        {"link": "1.0", "made_of": {"/a\0b": "x"}},
        {"link": "1.0", "made_of": {"/\ud800": "x"}},
    ],
    ids=ascii,
)
def test_an_entry_that_tells_nothing_of_its_files_is_made_again(said: dict[str, Any]):
    assert not is_current(Entry(b"", said), "1.0")


# ------------------------------------------------------------ the lock for life

HOLDS = """
import os, sys
sys.path.append(sys.argv[1])
from lnk.agent.served import open_place, take_lock
print(take_lock(open_place(sys.argv[2]), sys.argv[3]) is not None, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(place: Place) -> Iterator[subprocess.Popen[str]]:
    """Another process that has taken the lock, until it is ended."""
    source = str(Path(served.__file__).parents[2])
    argv = [sys.executable, "-c", HOLDS, source, str(place.path), NAME]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "True\n"
            yield process
        finally:
            process.kill()


@pytest.mark.requirement("SHARED-4")
def test_of_two_processes_one_holds_the_lock_until_its_end(place: Place, holder: subprocess.Popen[str]):
    assert take_lock(place.fd, NAME) is None
    other = take_lock(place.fd, "link-other")
    assert other is not None
    holder.kill()
    holder.wait(WAIT_S)
    lock = take_lock(place.fd, NAME)
    assert lock is not None
    assert (os.stat(place.path / f"{NAME}.lock").st_mode & 0o777, os.get_inheritable(lock)) == (0o600, False)
    for each in (lock, other):
        os.close(each)


@pytest.mark.requirement("SHARED-4")
def test_what_was_locked_and_taken_away_is_nobody_s_lock(place: Place, holder: subprocess.Popen[str]):
    os.unlink(place.path / f"{NAME}.lock")
    lock = take_lock(place.fd, NAME)
    assert lock is not None
    assert os.path.samestat(os.fstat(lock), os.stat(place.path / f"{NAME}.lock"))
    assert take_lock(place.fd, NAME) is None
    os.close(lock)


def test_a_lock_that_goes_as_it_is_taken_is_taken_anew(place: Place, monkeypatch: pytest.MonkeyPatch):
    """As whoever held it ends between the opening of its file and the lock."""
    taken = []

    def flock(fd: int, how: int) -> None:
        if not taken:
            os.unlink(place.path / f"{NAME}.lock")
        taken.append(fd)

    monkeypatch.setattr("lnk.agent.served.fcntl.flock", flock)
    lock = take_lock(place.fd, NAME)
    assert lock is not None and len(taken) == 2
    assert os.path.samestat(os.fstat(lock), os.stat(place.path / f"{NAME}.lock"))
    os.close(lock)


def test_a_lock_that_always_goes_is_not_waited_for_without_an_end(place: Place, monkeypatch: pytest.MonkeyPatch):
    before = os.listdir("/dev/fd")
    monkeypatch.setattr("lnk.agent.served.fcntl.flock", lambda fd, how: os.unlink(place.path / f"{NAME}.lock"))
    with pytest.raises(Unavailable, match=f"{NAME}.lock"):
        take_lock(place.fd, NAME)
    assert len(os.listdir("/dev/fd")) == len(before)


def test_a_link_in_the_lock_s_place_is_not_followed(place: Place):
    (place.path / f"{NAME}.lock").symlink_to("elsewhere")
    with pytest.raises(Refused, match="link"):
        take_lock(place.fd, NAME)
    assert not (place.path / "elsewhere").exists()
