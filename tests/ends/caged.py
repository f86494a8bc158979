"""What a document that took its reader over would try, tried from inside; and a reader that does what it is told.

As a reader (`read`) the document says in JSON what to do. As a program it does so too: where nothing is closed, in a
process that gave up the world on a kernel that lacks a lock, or in a cage, as whichever user it is told.
"""

import ctypes
import errno
import json
import os
import resource
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

TESTS = str(Path(__file__).resolve().parent.parent)
if TESTS not in sys.path:  # it is run as a program
    sys.path.insert(0, TESTS)

from lnk import confine  # noqa: E402
from lnk.documents.cage import Cage  # noqa: E402
from lnk.documents.content import KINDS, Content, Kind, LeftOut  # noqa: E402

KIND = "caged"
SECRET = b"what the parent knows"
SEIZE = 0x4206  # of ptrace
LANDLOCK_CREATE = 444
SET_SECCOMP, GET_DUMPABLE = 22, 3  # of prctl
COLUMN = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine, 0)
NUMBERS = {
    name: pair[COLUMN]
    for name, pair in {
        "bpf": (321, 280),
        "io_uring_setup": (425, 425),
        "keyctl": (250, 219),
        "memfd_create": (319, 279),
        "pidfd_open": (434, 434),
        "prctl": (157, 167),
        "process_vm_readv": (310, 270),
        "ptrace": (101, 117),
        "unshare": (272, 97),
        "userfaultfd": (323, 282),
    }.items()
}

libc = ctypes.CDLL(None, use_errno=True)
NICE = os.getpriority(os.PRIO_PROCESS, 0)
left_open = os.open(__file__, os.O_RDONLY)  # as a module may that is imported before anything is closed


@contextmanager
def bait() -> Iterator[dict[str, Any]]:
    """A document that tells the reader what can be had outside: files, addresses, the process that starts it.

    Any user can have it: it does not lie in a folder of the tests' own.
    """
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        with _laid(Path(root)) as told:
            yield told


@contextmanager
def _laid(root: Path) -> Iterator[dict[str, Any]]:
    file, folder, path, abstract = root / "file", root / "folder", str(root / "socket"), f"\0caged-{root}"
    file.write_bytes(SECRET)
    file.chmod(0o666)
    folder.mkdir()
    folder.chmod(0o777)
    with ExitStack() as held:
        tcp, udp, named, hidden = (
            held.enter_context(socket.socket(*kind))
            for kind in (
                (socket.AF_INET, socket.SOCK_STREAM),
                (socket.AF_INET, socket.SOCK_DGRAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
            )
        )
        for each, address in ((tcp, ("127.0.0.1", 0)), (udp, ("127.0.0.1", 0)), (named, path), (hidden, abstract)):
            each.bind(address)
            if each is not udp:
                each.listen()
        os.chmod(path, 0o777)
        yield {
            "do": "probe",
            "file": str(file),
            "folder": str(folder),
            "socket": path,
            "abstract": abstract,
            "tcp": tcp.getsockname(),
            "udp": udp.getsockname(),
        }


# ---------------------------------------------------------------- the reader


def read(data: bytes) -> Content:
    """Does what the document says."""
    told = json.loads(data)
    return DEEDS[told["do"]](told)


def _probe(told: dict[str, Any]) -> Content:
    return Content(json.dumps(probe(told)))


def _about(told: dict[str, Any]) -> Content:
    """What it was given: the environment, the descriptors, its place among processes."""
    environment = {name: value for name, value in os.environ.items() if name != "LC_CTYPE"}  # Python sets that itself
    given = {"environment": environment, "descriptors": [fd for fd in range(1 << 10) if _is_open(fd)], "nice": NICE}
    return Content(json.dumps(given))


def _is_open(descriptor: int) -> bool:
    try:
        os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError as error:
        return error.errno != errno.EBADF
    return True


def _text(told: dict[str, Any]) -> Content:
    return Content(told["text"] * told.get("times", 1), told.get("pages", []), told.get("title"))


def _memory(told: dict[str, Any]) -> Content:
    return Content(f"{len(bytearray(told['bytes']))} bytes")


def _processor(told: dict[str, Any]) -> Content:
    """Works for so long."""
    while time.process_time() < told["seconds"]:
        pass
    return Content("worked")


def _wait(told: dict[str, Any]) -> Content:
    time.sleep(told["seconds"])
    return Content("waited")


def _deep(told: dict[str, Any]) -> Content:
    return _deep(told)


def _die(told: dict[str, Any]) -> NoReturn:
    ctypes.string_at(1)
    raise AssertionError


def _exit(told: dict[str, Any]) -> NoReturn:
    os._exit(told["status"])


def _fail(told: dict[str, Any]) -> NoReturn:
    raise {"SystemExit": SystemExit, "KeyError": KeyError, "KeyboardInterrupt": KeyboardInterrupt}[told["by"]]


def _late(told: dict[str, Any]) -> NoReturn:
    """Imports what was not imported before."""
    raise LeftOut("it was found") if __import__(told["module"]) else AssertionError


def _leave(told: dict[str, Any]) -> NoReturn:
    raise LeftOut(told["reason"])


DEEDS: dict[str, Callable[[dict[str, Any]], Content]] = {
    "probe": _probe,
    "about": _about,
    "text": _text,
    "memory": _memory,
    "processor": _processor,
    "wait": _wait,
    "deep": _deep,
    "die": _die,
    "exit": _exit,
    "fail": _fail,
    "late": _late,
    "leave": _leave,
}


# ---------------------------------------------------------------- what is tried


def probe(told: dict[str, Any]) -> dict[str, str]:
    """What came of each attempt: the name of its error, or what was had."""
    found = {}
    for name, attempt in attempts(told).items():
        if name in told.get("not", ()):
            continue
        try:
            found[name] = f"had: {attempt()}"
        except OSError as error:
            found[name] = errno.errorcode[error.errno or 0]
        except (RuntimeError, ValueError) as error:
            found[name] = type(error).__name__
    return found


def attempts(told: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Each by its name. What cannot be taken back comes last."""
    file, folder, parent = told["file"], told["folder"], os.getppid()

    def connect(family: int, kind: int, address: Any) -> None:
        address = tuple(address) if isinstance(address, list) else address
        with socket.socket(family, kind) as opened:
            opened.connect(address)
            opened.send(b"x")

    def fork() -> None:
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)

    def thread() -> None:
        started = threading.Thread(target=int)
        started.start()
        started.join()

    def vm_read() -> bytes:
        into = ctypes.create_string_buffer(len(SECRET))
        own, theirs = (struct.pack("PN", at, len(SECRET)) for at in (ctypes.addressof(into), told.get("address", 0)))
        call("process_vm_readv", parent, own, 1, theirs, 1, 0)
        return into.raw

    def open_and_close(path: str, flags: int) -> None:
        os.close(os.open(path, flags, 0o600))

    return {
        "open a file": lambda: open_and_close(file, os.O_RDONLY),
        "open a file to write": lambda: open_and_close(file, os.O_WRONLY),
        "make a file": lambda: open_and_close(f"{folder}/new", os.O_WRONLY | os.O_CREAT),
        "learn of a file": lambda: os.stat(file),
        "list a folder": lambda: os.listdir(folder),
        "make a folder": lambda: os.mkdir(f"{folder}/sub"),
        "link": lambda: os.symlink("/", f"{folder}/link"),
        "change a mode": lambda: os.chmod(file, 0o777),
        "change the mode of its input": lambda: os.fchmod(0, 0o777),
        "change an owner": lambda: os.chown(file, -1, -1),
        "change times": lambda: os.utime(file),
        "set an attribute": lambda: os.setxattr(file, "user.x", b"x"),
        "shorten a file": lambda: os.truncate(file, 0),
        "rename": lambda: os.rename(file, file),
        "unlink": lambda: os.unlink(f"{folder}/new"),
        "go elsewhere": lambda: os.chdir(folder),
        "connect by TCP": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, told["tcp"]),
        "listen by TCP": lambda: socket.create_server(("127.0.0.1", 0)).close(),
        "send by UDP": lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, told["udp"]),
        "connect to a path": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, told["socket"]),
        "connect to a name": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, told["abstract"]),
        "make a pair of sockets": lambda: [each.close() for each in socket.socketpair()],
        "signal its parent": lambda: os.kill(parent, 0),
        "signal its group": lambda: os.killpg(0, 0),
        "hold its parent": lambda: os.close(call("pidfd_open", parent, 0)),
        "open its parent's memory": lambda: open_and_close(f"/proc/{parent}/mem", os.O_RDONLY),
        "read its parent's memory": vm_read,
        "trace its parent": lambda: call("ptrace", SEIZE, parent, 0, 0),
        "make a file in memory": lambda: os.close(call("memfd_create", b"x", 0)),
        "queue work for the kernel": lambda: os.close(call("io_uring_setup", 1, bytes(120))),
        "load a program into the kernel": lambda: os.close(
            call("bpf", 0, struct.pack("IIII", 2, 4, 4, 1) + bytes(56), 72)
        ),
        "ask for keys": lambda: call("keyctl", 0, -3, 0),
        "handle its own faults": lambda: os.close(call("userfaultfd", 1)),
        "make a name space": lambda: call("unshare", 0x10000000),
        "raise a limit": lambda: resource.setrlimit(resource.RLIMIT_CPU, (3, 3)),
        "leave its group": lambda: os.setpgid(0, 0),
        "start a thread": thread,
        "fork": fork,
        "run a program": lambda: os.execv("/bin/false", ["false"]),
    }


def call(name: str, *values: int | bytes) -> int:
    """A system call by its number. Raises OSError."""
    taken = [ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in values]
    done = libc.syscall(ctypes.c_long(NUMBERS[name]), *taken)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(done)


# ---------------------------------------------------------------- the program


def lack(number: int, error: int, first: int | None = None) -> None:
    """From now on the call fails so, as on a kernel without it; `first`: only where that is its first value."""
    asked = [(0x20, 0, 0, 16), (0x15, 0, 1, first)] if first is not None else []
    code = [(0x20, 0, 0, 0), (0x15, 0, len(asked) + 1, number), *asked, (0x06, 0, 0, 0x00050000 | error)]
    raw = b"".join(struct.pack("HBBI", *each) for each in [*code, (0x06, 0, 0, 0x7FFF0000)])
    held = ctypes.create_string_buffer(raw, len(raw))
    program = struct.pack("HP", len(raw) // 8, ctypes.addressof(held))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(SET_SECCOMP, 2, program, 0, 0):
        sys.exit("the kernel cannot be made to lack anything")


def main(user: str, lacking: str, how: str, document: str) -> None:
    """`user`: whose number; `lacking`: locks that the kernel has not; `how`: "open", "closed", or "cage"."""
    data = Path(document).read_bytes()
    if int(user) != os.getuid():
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))
    if "landlock" in lacking:
        lack(LANDLOCK_CREATE, errno.ENOSYS)
    if "seccomp" in lacking:
        lack(NUMBERS["prctl"], errno.EINVAL, SET_SECCOMP)
    if how == "cage":
        KINDS[KIND] = Kind("ends.caged")
        told = json.loads(data)
        secret = ctypes.create_string_buffer(SECRET)
        held = os.memfd_create("document")
        os.write(held, json.dumps({**told, "address": ctypes.addressof(secret)}).encode())
        answer = {"probes": json.loads(Cage().read(held, KIND).text)}
    else:
        points = confine.open_points()
        said = confine.close_the_world() if how == "closed" else None
        dumped = libc.prctl(GET_DUMPABLE, 0, 0, 0, 0)
        answer = {"points": points, "said": said, "dumped": dumped, "probes": probe(json.loads(data))}
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
