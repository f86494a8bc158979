"""A folder by its handle: nothing is reached through a link or outside, and a file is replaced whole or not at all."""

import errno
import fcntl
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lnk.folder
from ends.faults import left_in, needs_root, needs_strace, ordinary, remounted, skip_loudly, small_disk
from lnk.errors import Conflict, Full, LinkError, Missing, Refused
from lnk.folder import FILE, FOLDER, Folder, make_folder, must_be_folder, open_beneath, read_all, write_all


@pytest.fixture(params=["openat2", "parts"])
def opening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to open: the kernel's check of a whole path, and part by part where the kernel has none."""
    if request.param == "parts":
        monkeypatch.setattr(lnk.folder._kernel, "works", False)
    elif not lnk.folder._kernel.works:
        skip_loudly("this kernel has no openat2")
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder `in` with files beneath, beside a folder `out` with a secret."""
    (tmp_path / "in" / "a" / "b").mkdir(parents=True)
    (tmp_path / "in" / "x.md").write_text("x")
    (tmp_path / "in" / "a" / "b" / "y.md").write_text("y")
    (tmp_path / "out" / "b").mkdir(parents=True)
    (tmp_path / "out" / "b" / "y.md").write_text("secret")
    return tmp_path / "in"


@pytest.fixture
def folder(root: Path) -> Iterator[Folder]:
    with Folder.open(str(root)) as found:
        yield found


def content(folder: Folder, path: str) -> bytes:
    """What the file holds that is opened at `path`."""
    fd, _ = folder.open_file(path)
    with os.fdopen(fd, "rb") as file:
        return file.read()


# ------------------------------------------------------------ opening beneath


@pytest.mark.usefixtures("opening")
def test_files_beneath_are_opened_at_any_depth(folder: Folder) -> None:
    assert content(folder, "x.md") == b"x"
    assert content(folder, "a/b/y.md") == b"y"
    with folder.folder("a/b") as inner:
        assert inner.read("y.md", 10) == b"y"
        assert inner.path == f"{folder.path}/a/b"


@pytest.mark.usefixtures("opening")
@pytest.mark.parametrize(
    "path",
    ["..", "../out/b/y.md", "a/../../out/b/y.md", "a/b/../../../out", "", "x.md/", "a/b/y.md/..", "x.md/../x.md"],
)
def test_a_path_that_leads_out_or_names_nothing_is_refused(path: str, folder: Folder) -> None:
    """Case paths-03."""
    for flags in (FILE, FOLDER):
        with pytest.raises(OSError):
            open_beneath(folder.fd, path, flags)


@pytest.mark.usefixtures("opening")
def test_an_absolute_path_is_refused_even_where_it_lies_beneath(folder: Folder, root: Path) -> None:
    for path in ("/etc/passwd", str(root / "x.md"), "/"):
        with pytest.raises(OSError) as refused:
            open_beneath(folder.fd, path, FILE)
        assert refused.value.errno == errno.EXDEV


@pytest.mark.usefixtures("opening")
@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("link.md", "../out/b/y.md", "link.md"),
        ("link.md", "x.md", "link.md"),  # inside too
        ("link.md", "nowhere", "link.md"),
        ("link.md", "link.md", "link.md"),
        ("link", "../out", "link/b/y.md"),  # the first part
        ("link", "a", "link/b/y.md"),
        ("a/link", "../../out/b", "a/link/y.md"),  # a middle part
        ("a/link", "b", "a/link/y.md"),
        ("a/b/link", "y.md", "a/b/link"),  # the last
        ("a/b/link", "/proc/self/root", "a/b/link/etc/passwd"),
    ],
)
def test_a_link_in_any_part_of_a_path_is_refused(link: str, target: str, path: str, folder: Folder, root: Path) -> None:
    (root / link).symlink_to(target)
    for flags in (FILE, FOLDER):
        with pytest.raises(OSError) as refused:
            open_beneath(folder.fd, path, flags)
        assert refused.value.errno in (errno.ELOOP, errno.ENOTDIR, errno.EXDEV)
    with pytest.raises((Refused, Missing)):
        folder.read(path, 10)


@pytest.mark.usefixtures("opening")
def test_the_proc_files_links_to_descriptors_are_not_followed(folder: Folder) -> None:
    if not os.path.isdir("/proc/self/fd"):
        skip_loudly("there is no /proc")
    with Folder.open("/proc/self/fd") as descriptors, pytest.raises(OSError):
        open_beneath(descriptors.fd, f"{folder.fd}", FOLDER)


@pytest.mark.usefixtures("opening")
@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "folder"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str, folder: Folder, root: Path) -> None:
    """Case index-18: opened without waiting, and asked what it is before it is read."""
    path = root / "a" / "odd"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "device":
        needs_root("make a device")
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero, which never ends
    else:
        path.mkdir()
    before = left_in(Path("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    with pytest.raises(OSError):
        folder.open_file("a/odd")
    with pytest.raises(LinkError):
        folder.read("a/odd", 10)
    assert not before or left_in(Path("/proc/self/fd")) == before


@pytest.mark.usefixtures("opening")
def test_a_handle_stays_its_folder_whatever_its_path_names_later(folder: Folder, root: Path) -> None:
    root.rename(root.with_name("moved"))
    root.symlink_to("out")
    assert content(folder, "a/b/y.md") == b"y"
    folder.replace("x.md", b"new", unless_changed=folder.stat("x.md"))
    assert (root.with_name("moved") / "x.md").read_bytes() == b"new"
    assert left_in(root.with_name("out")) == {"b"}
    with pytest.raises(Refused, match="link"):
        Folder.open(str(root))


_SWAPPER = """\
import os, sys
folder, kept, link, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
print(flush=True)
for _ in range(count):
    os.rename(folder, kept); os.rename(link, folder)
    os.rename(folder, link); os.rename(kept, folder)
"""


@pytest.mark.usefixtures("opening")
def test_a_folder_swapped_for_a_link_while_it_is_opened_is_never_followed(
    folder: Folder, root: Path, tmp_path: Path
) -> None:
    """Case sandbox-03: another process swaps a middle part for a link and back, many thousand times."""
    link, kept = tmp_path / "link", tmp_path / "kept"
    link.symlink_to("out")
    argv = [sys.executable, "-c", _SWAPPER, str(root / "a"), str(kept), str(link), "10000"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout and swapper.stdout.readline()
        seen = {b"y": 0, b"refused": 0}
        while swapper.poll() is None:
            try:
                got = content(folder, "a/b/y.md")
            except OSError:
                got = b"refused"
            seen[got] = seen.get(got, 0) + 1
    assert seen.keys() == {b"y", b"refused"}
    assert seen[b"y"] and seen[b"refused"]  # else nothing raced


def test_a_folder_is_opened_only_where_it_is_one(root: Path) -> None:
    (root / "link").symlink_to("a")
    for passage in (False, True):
        with pytest.raises(Missing):
            Folder.open(str(root / "none"), passage=passage)
        with pytest.raises(Refused, match="it is a link"):
            Folder.open(str(root / "link"), passage=passage)
        with pytest.raises(Refused, match="no folder"):
            Folder.open(str(root / "x.md"), passage=passage)


def test_descriptors_are_not_given_to_programs_that_are_started(folder: Folder) -> None:
    inner = folder.folder("a")
    fd, _ = folder.open_file("x.md")
    for each in (folder.fd, inner.fd, fd):
        assert not os.get_inheritable(each)
    os.close(fd)
    inner.close()
    inner.close()  # twice does no harm
    assert inner.fd == -1


# ------------------------------------------------------------ reading


@pytest.mark.usefixtures("opening")
def test_reading_gives_the_bytes_none_where_nothing_is_and_stops_at_the_limit(folder: Folder, root: Path) -> None:
    assert folder.read("x.md", 1) == b"x"
    assert folder.read("none.md", 1) is None
    assert folder.read("none/none.md", 1) is None
    (root / "large").write_bytes(b"12345")
    assert folder.read("large", 5) == b"12345"
    with pytest.raises(Full, match="over 4 bytes"):
        folder.read("large", 4)
    (root / "sparse").touch()
    os.truncate(root / "sparse", 1 << 40)
    with pytest.raises(Full):
        folder.read("sparse", 1 << 20)


@pytest.mark.usefixtures("opening")
def test_what_something_is_is_told_without_following_a_link(folder: Folder, root: Path) -> None:
    (root / "a" / "link").symlink_to("../../out/b/y.md")
    (root / "l").symlink_to("a")
    found = folder.stat("a/link")
    assert found and stat.S_ISLNK(found.st_mode)
    assert folder.stat("a/none") is None
    assert folder.stat("none/none") is None
    plain = folder.stat("x.md")
    assert plain and plain.st_size == 1
    with pytest.raises(OSError):
        folder.stat("l/b")
    with pytest.raises(OSError):
        folder.stat("../out/b/y.md")


def test_a_read_or_write_in_parts_is_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case notes-17."""
    read, write = os.read, os.write
    monkeypatch.setattr("lnk.folder.os.write", lambda fd, data: write(fd, bytes(data)[:3]))
    monkeypatch.setattr("lnk.folder.os.read", lambda fd, size: read(fd, min(size, 2)))
    fd = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    write_all(fd, b"0123456789")
    os.lseek(fd, 0, os.SEEK_SET)
    assert read_all(fd, 100) == b"0123456789"
    os.lseek(fd, 0, os.SEEK_SET)
    assert read_all(fd, 4) == b"01234"  # one more, so that the caller sees that there is more
    os.close(fd)


# ------------------------------------------------------------ replacing


def test_a_file_is_made_for_its_owner_alone_and_keeps_the_mode_that_it_has(folder: Folder, root: Path) -> None:
    before = os.umask(0)
    try:
        folder.replace("new.md", b"1")
    finally:
        os.umask(before)
    assert (root / "new.md").stat().st_mode & 0o7777 == 0o600
    for mode in (0o644, 0o400, 0o660):
        (root / "new.md").chmod(mode)
        folder.replace("new.md", b"2", unless_changed=folder.stat("new.md"))
        assert (root / "new.md").stat().st_mode & 0o7777 == mode
    assert (root / "new.md").read_bytes() == b"2"
    assert left_in(root) == {"a", "x.md", "new.md"}


def test_what_an_earlier_write_left_is_swept_and_never_taken_up(folder: Folder, root: Path) -> None:
    (root / ".x.md.new").write_text("half")
    folder.sweep("x.md")
    assert left_in(root) == {"a", "x.md"}
    folder.sweep("x.md")
    (root / ".x.md.new").symlink_to("../out/b/y.md")
    folder.replace("x.md", b"new", unless_changed=folder.stat("x.md"))
    assert (root / "x.md").read_bytes() == b"new"
    assert not (root / "x.md").is_symlink()
    assert (root.with_name("out") / "b" / "y.md").read_text() == "secret"
    assert left_in(root) == {"a", "x.md"}


@pytest.mark.parametrize("change", ["edited", "replaced", "gone", "made", "touched"])
def test_a_file_that_changed_since_it_was_read_is_not_replaced(change: str, folder: Folder, root: Path) -> None:
    was = None if change == "made" else folder.stat("x.md")
    if change == "edited":
        (root / "x.md").write_text("X")
        os.utime(root / "x.md", ns=(was.st_atime_ns, was.st_mtime_ns))  # of the same size and time
    elif change == "replaced":
        (root / "y.md").write_text("x")
        (root / "y.md").rename(root / "x.md")
    elif change == "gone":
        (root / "x.md").unlink()
    elif change == "touched":
        (root / "x.md").chmod(0o600)
    before = (root / "x.md").read_bytes() if (root / "x.md").exists() else None
    with pytest.raises(Conflict, match="read it again"):
        folder.replace("x.md", b"mine", unless_changed=was)
    assert ((root / "x.md").read_bytes() if (root / "x.md").exists() else None) == before
    assert left_in(root) <= {"a", "x.md"}


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
def test_what_is_no_regular_file_is_not_replaced(kind: str, folder: Folder, root: Path) -> None:
    path = root / "odd"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("x.md" if kind == "link" else "nowhere")
    with pytest.raises(Refused):
        folder.replace("odd", b"mine", unless_changed=folder.stat("odd"))
    assert (root / "x.md").read_bytes() == b"x"
    assert left_in(root) == {"a", "x.md", "odd"}


_REPLACE = """\
import sys
from lnk.folder import Folder
with Folder.open(sys.argv[1]) as folder, folder.locked():
    folder.replace("x.md", b"new", unless_changed=folder.stat("x.md"))
"""


@pytest.mark.requirement("NOTES-3")
def test_what_is_written_is_on_the_disk_before_the_rename_and_the_rename_after(root: Path) -> None:
    """Without the folder's sync a renamed note was gone after 65 of 120 power cuts (reliability.md): so the order."""
    needs_strace()
    (root / "x.md").chmod(0o640)
    calls = "write,fchmod,fsync,fdatasync,rename,renameat,renameat2,flock"
    traced = subprocess.run(
        ["strace", "-f", "-y", "-e", f"trace={calls}", "--", sys.executable, "-c", _REPLACE, str(root)],
        capture_output=True,
        text=True,
        check=True,
    )
    fresh, here = f"{root}/.x.md.new", str(root)
    steps = [
        f"{call[1]} {call[2]}"
        for line in traced.stderr.splitlines()
        if (call := re.search(r"(\w+)\(\d+<([^>]*)>", line)) and call[2].startswith(here)
    ]
    assert steps == [
        f"flock {here}",
        f"write {fresh}",
        f"fchmod {fresh}",
        f"fsync {fresh}",
        f"renameat {here}",
        f"fsync {here}",
        f"flock {here}",
    ]


def test_a_full_disk_leaves_the_file_as_it_was(root: Path) -> None:
    with small_disk(root / "disk", "64k"), Folder.open(str(root / "disk")) as folder:
        folder.replace("x.md", b"old" * 1000)
        for size in (62_000, 100_000, 1 << 20):
            with pytest.raises(Full, match="stays as it was"):
                folder.replace("x.md", b"n" * size, unless_changed=folder.stat("x.md"))
            assert (root / "disk" / "x.md").read_bytes() == b"old" * 1000
            assert left_in(root / "disk") == {"x.md"}
        folder.replace("x.md", b"n" * 30_000, unless_changed=folder.stat("x.md"))
        assert (root / "disk" / "x.md").read_bytes() == b"n" * 30_000


def test_a_disk_that_is_read_only_refuses(root: Path) -> None:
    with small_disk(root / "disk", "64k"), Folder.open(str(root / "disk")) as folder:
        folder.replace("x.md", b"old")
        remounted(root / "disk", "ro")
        with pytest.raises(Refused, match="Read-only"):
            folder.replace("x.md", b"new", unless_changed=folder.stat("x.md"))
        assert folder.read("x.md", 10) == b"old"


_REFUSED = """\
import sys
from lnk.errors import Refused
from lnk.folder import Folder
with Folder.open(sys.argv[1]) as folder:
    try:
        folder.replace("x.md", b"new", unless_changed=folder.stat("x.md"))
    except Refused as error:
        print(error)
"""


def test_a_folder_that_may_not_be_written_refuses(root: Path) -> None:
    root.chmod(0o555)
    argv = ordinary([sys.executable, "-c", _REFUSED, str(root)])
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    root.chmod(0o755)
    assert "Permission denied" in done.stdout
    assert (root / "x.md").read_bytes() == b"x"
    assert left_in(root) == {"a", "x.md"}


# ------------------------------------------------------------ the lock

_HOLDER = """\
import sys
from lnk.folder import Folder
with Folder.open(sys.argv[1]) as folder, folder.locked():
    print(flush=True)
    sys.stdin.read()
"""


@pytest.mark.requirement("NOTES-3")
def test_the_lock_is_one_processs_at_a_time_and_goes_with_its_death(root: Path) -> None:
    """Case index-23: a lock that outlived its holder made every call wait."""
    with Folder.open(str(root)) as folder:
        holder = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout and holder.stdin and holder.stdout.readline()
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
        with folder.locked():
            pass
    assert left_in(root) == {"a", "x.md"}  # no file stands for the lock


# ------------------------------------------------------------ folders by their path


def test_a_folder_is_made_closed_to_others_and_not_made_where_a_file_is(root: Path) -> None:
    make_folder(str(root / "new" / "deep"))
    assert (root / "new" / "deep").stat().st_mode & 0o7777 == 0o700
    make_folder(str(root / "new" / "deep"))
    with pytest.raises(Refused, match="a file of that name"):
        make_folder(str(root / "x.md"))
    with pytest.raises((Refused, Missing)):
        make_folder(str(root / "x.md" / "beneath"))


def test_a_folder_that_is_not_there_or_is_none_is_said_with_its_part(root: Path) -> None:
    must_be_folder(str(root), "The folder to index")
    with pytest.raises(Missing, match=r"The folder to index .*none is not there"):
        must_be_folder(str(root / "none"), "The folder to index")
    with pytest.raises(Refused, match="is not a folder"):
        must_be_folder(str(root / "x.md"), "The folder to index")
