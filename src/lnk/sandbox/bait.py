"""The bait for the probe: files, sockets, a process and what else there is to reach, and what was reached of it.

It does not know what should be reached.
"""

import ctypes
import datetime
import os
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import zoneinfo
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from lnk.errors import Unavailable, from_os
from lnk.sandbox import probe
from lnk.sandbox.policy import Policy
from lnk.sandbox.probe import CHANGED, Bait, Untried, call
from lnk.sandbox.programs import needs

ENGINE: Final = "lnk-link-memory"
FOLDER_BYTES_MAX: Final = 80  # of the bait's folder: the path of a Unix socket in it has 104 at most
OPENING_WAIT_S: Final = 10  # for a listener that was sent before the probe ran
HANDLE_BYTES: Final = 128  # the most that a file system makes a handle of
SHARED_BYTES: Final = 4096
VARIABLE: Final = "LNK_CHECK_SECRET"
UNCHANGED: Final = "change anything outside"  # no probe: looked at here, when all have been tried

# A process outside, which holds the word in its memory, its variables, its arguments and an open file.
_VICTIM: Final = """
import ctypes, sys
held = ctypes.create_string_buffer(sys.argv[1].encode())
file = open("secret")
print(ctypes.addressof(held), file.fileno(), flush=True)
sys.stdin.read()
"""
_IPC_CREAT, _IPC_EXCL, _IPC_RMID = 0o1000, 0o2000, 0

Outside = dict[str, tuple[object, ...]]  # a file's path, and all that could be changed of it


class Laid(NamedTuple):
    """The bait, and what is looked at afterwards."""

    bait: Bait
    sockets: dict[str, socket.socket]  # by the probe that reaches them
    made: dict[str, str]  # paths, by the probe that makes them
    watched: tuple[str, ...]  # folders in which nothing may change
    before: Outside
    terminal: int
    ours: socket.socket | None  # the end by which the model's listener comes
    theirs: socket.socket | None

    @property
    def opening(self) -> int | None:
        """The end of the opening for the sandbox."""
        return self.theirs.fileno() if self.theirs else None

    def started(self) -> None:
        """The sandbox has its end of the opening."""
        if self.theirs:
            self.theirs.close()

    def policy(self, environment: Mapping[str, str]) -> Policy:
        """As an engine's: it reads its documents and the agent's conversations, and writes its state and the notes."""
        engine = Path(sys.executable).parent / ENGINE
        needed = needs(str(engine if engine.exists() else sys.executable), environment)
        bait = self.bait
        return Policy(
            reads=(bait.documents, f"{bait.agent}/chats", f"{bait.agent}/skills"),
            writes=(bait.state, bait.notes),
            programs=(*needed.programs, sys.executable, probe.__file__),
            hidden=(*needed.hidden, bait.hidden),
            environment=needed.environment,
            ports=() if bait.model is None else (bait.model,),
            folder=bait.state,
        )

    def seen(self) -> dict[str, bool]:
        """Whether it was done, for each probe of which that can be seen outside."""
        seen = {name: _arrived(each) for name, each in self.sockets.items()}
        seen |= {name: os.path.lexists(path) for name, path in self.made.items()}
        if self.ours:
            seen["reach its model"] = _opened(self.ours)
        return seen | {UNCHANGED: _as_it_is(self.watched) != self.before}


@contextmanager
def laid(*, model: bool) -> Iterator[Laid]:
    """Bait of every kind, taken away afterwards. Raises Unavailable where it cannot be laid out."""
    word = f"lnk-{secrets.token_hex(16)}"
    left = f"lnk-left-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        root, outside = (_folder(stack, kind) for kind in ("lnk-check-", "lnk-outside-"))
        home, agent = f"{root}/Home", f"{root}/Agent"
        _write_files(root, outside, word)
        victim, address, descriptor = _victim(stack, outside, word)
        sockets, abstract = _sockets(stack, root, outside)
        number = _beside_a_model(stack, sockets) if model else None
        ports = {name: end.getsockname()[1] for name, end in sockets.items() if end.family != socket.AF_UNIX}
        bait = Bait(
            word=word,
            documents=f"{home}/memory",
            agent=agent,
            state=f"{agent}/memory/link",
            notes=f"{agent}/memory",
            hidden=f"{home}/memory/hidden",
            outside=outside,
            temporary=tempfile.gettempdir(),
            left=left,
            victim=victim,
            address=address,
            descriptor=descriptor,
            variable=VARIABLE,
            tcp=ports["reach a port of the machine"],
            tcp6=ports.get("reach a port of the machine by IPv6"),
            udp=ports["send a datagram to the machine"],
            abstract=abstract,
            shared=_shared_memory(stack),
            queue=_message_queue(stack),
            handle=_handle(f"{outside}/secret"),
            zone=_zone(),
            model=number,
        )
        watched = (home, f"{agent}/chats", f"{agent}/skills", f"{agent}/private.md", outside)
        ours, theirs = map(stack.enter_context, socket.socketpair()) if model else (None, None)
        made = _to_be_made(stack, left)
        yield Laid(bait, sockets, made, watched, _as_it_is(watched), _terminal(stack), ours, theirs)


def _to_be_made(stack: ExitStack, left: str) -> dict[str, str]:
    """Paths outside that the probe tries to make, by its name; what was made is taken away."""
    made = {
        "write in the machine's /tmp": f"{tempfile.gettempdir()}/{left}",
        "write in the machine's shared memory": f"/dev/shm/{left}",
    }
    for path in made.values():
        stack.callback(_remove, path)
    return made


def _folder(stack: ExitStack, kind: str) -> str:
    """A new folder, by a path without links. Raises Unavailable where the path is too long for a socket in it."""
    folder = os.path.realpath(tempfile.mkdtemp(prefix=kind))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    if len(os.fsencode(folder)) > FOLDER_BYTES_MAX:
        raise Unavailable(f"The path of the folder for temporary files is too long ({folder}); set TMPDIR to another.")
    return folder


def _write_files(root: str, outside: str, word: str) -> None:
    secret = f"{word}\n"
    files = {
        **{f"{root}/Home/memory/{name}.md": "# A\n" for name in ("a", "short", "gone", "old", "moved", "changed")},
        f"{root}/Home/memory/hidden/secret": secret,
        f"{root}/Agent/private.md": secret,
        f"{root}/Agent/chats/a.jsonl": "{}\n",
        f"{root}/Agent/skills/a/SKILL.md": "# A\n",
        f"{root}/Agent/memory/notes.md": "- one\n",
        f"{outside}/secret": secret,
        f"{outside}/home/.ssh/id_ed25519": secret,
        f"{outside}/other/memory/notes.md": secret,
    }
    for path, text in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
        Path(path).chmod(0o600)
    os.mkdir(f"{root}/Agent/memory/link")
    os.symlink(f"{outside}/secret", f"{root}/Home/memory/out.md")


def _victim(stack: ExitStack, outside: str, word: str) -> tuple[int, int, int]:
    """A process outside: its number, where it holds the word, and the descriptor of its open file."""
    argv = [sys.executable, "-I", "-S", "-c", _VICTIM, word]
    pipe = subprocess.PIPE
    process = stack.enter_context(subprocess.Popen(argv, cwd=outside, env={VARIABLE: word}, stdin=pipe, stdout=pipe))
    assert process.stdout
    address, descriptor = map(int, process.stdout.readline().split())
    return process.pid, address, descriptor


def _sockets(stack: ExitStack, root: str, outside: str) -> tuple[dict[str, socket.socket], str]:
    """What listens outside, by the probe that reaches it, and the abstract name of one of them."""
    abstract = f"lnk-check-{secrets.token_hex(8)}"
    places: dict[str, tuple[socket.AddressFamily, socket.SocketKind, Any]] = {
        "reach a port of the machine": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        "reach a port of the machine by IPv6": (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
        "send a datagram to the machine": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        "reach a Unix socket outside": (socket.AF_UNIX, socket.SOCK_STREAM, f"{outside}/socket"),
        "reach a Unix socket among its documents": (socket.AF_UNIX, socket.SOCK_STREAM, f"{root}/Home/memory/socket"),
        "reach a Unix socket by one of a pair": (socket.AF_UNIX, socket.SOCK_DGRAM, f"{root}/Home/memory/datagrams"),
    }
    if sys.platform == "linux":
        places["reach an abstract Unix socket"] = (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{abstract}")
    made = {}
    for name, (family, kind, address) in places.items():
        with suppress(OSError) if family == socket.AF_INET6 else ExitStack():  # a machine may have no IPv6
            made[name] = _listening(stack, family, kind, address)
    return made, abstract


def _listening(stack: ExitStack, family: int, kind: int, address: Any) -> socket.socket:
    end = stack.enter_context(socket.socket(family, kind))
    end.bind(address)
    end.setblocking(False)
    if kind == socket.SOCK_STREAM:
        end.listen()
    return end


def _beside_a_model(stack: ExitStack, sockets: dict[str, socket.socket]) -> int:
    """A port number for the model, at which the machine's own loopback has something else, by TCP and by UDP."""
    decoy = _listening(stack, socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
    address = decoy.getsockname()
    try:
        datagrams = _listening(stack, socket.AF_INET, socket.SOCK_DGRAM, address)
    except OSError as error:  # somebody has that number for UDP
        raise from_os(error, f"listen at the port {address[1]}") from None
    sockets["reach what the machine has at the model's number"] = decoy
    sockets["send a datagram at the model's number"] = datagrams
    return int(address[1])


def _arrived(end: socket.socket) -> bool:
    """Whether anything came to a socket that does not wait."""
    with suppress(BlockingIOError):
        if end.type == socket.SOCK_STREAM:
            end.accept()[0].close()
        else:
            end.recv(1)
        return True
    return False


def _opened(ours: socket.socket) -> bool:
    """Whether the listener of the opening came, and a connection to it."""
    ours.settimeout(OPENING_WAIT_S)
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        return False
    with socket.socket(fileno=descriptors[0]) as listener:
        listener.setblocking(False)
        return _arrived(listener)


def _terminal(stack: ExitStack) -> int:
    """A terminal for the probe to type into, held open from here."""
    for end in (pair := os.openpty()):
        stack.callback(os.close, end)
    return pair[1]


def _shared_memory(stack: ExitStack) -> int | None:
    """The key of a piece of System V memory."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "shmget"):
        return None
    key = secrets.randbits(30) + 1  # 0 is nobody's
    number = libc.shmget(ctypes.c_int(key), ctypes.c_size_t(SHARED_BYTES), _IPC_CREAT | _IPC_EXCL | 0o600)
    if number < 0:
        return None
    stack.callback(libc.shmctl, number, _IPC_RMID, None)
    return key


def _message_queue(stack: ExitStack) -> str | None:
    """The name of a message queue."""
    name = f"lnk-check-{secrets.token_hex(8)}"
    try:
        os.close(call("mq_open", name.encode(), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600, None))
    except (OSError, Untried):
        return None
    stack.callback(call, "mq_unlink", name.encode())
    return name


def _handle(path: str) -> str | None:
    """A file's handle and, in front, the handle's kind, in hexadecimal."""
    handle = ctypes.create_string_buffer(struct.pack("=Ii", HANDLE_BYTES, 0), 8 + HANDLE_BYTES)
    mount = ctypes.create_string_buffer(8)
    at_cwd = -100
    try:
        call("name_to_handle_at", at_cwd, path.encode(), ctypes.addressof(handle), ctypes.addressof(mount), 0)
    except (OSError, Untried):
        return None
    size, kind = struct.unpack_from("=Ii", handle)
    return f"{kind:08x}{handle.raw[8 : 8 + size].hex()}"


def _zone() -> int:
    """Seconds that the machine's own zone is ahead of UTC now, whatever the caller's $TZ."""
    try:
        with open("/etc/localtime", "rb") as file:
            ahead = datetime.datetime.now(zoneinfo.ZoneInfo.from_file(file)).utcoffset()
    except (OSError, ValueError):
        return 0
    return int(ahead.total_seconds()) if ahead else 0


def _as_it_is(places: Sequence[str]) -> Outside:
    """All that is in these places, but for the document that is changed on purpose."""
    found: Outside = {}
    paths = [Path(place) for place in places]
    for path in paths:
        if path.name == CHANGED:
            continue
        seen = path.lstat()
        what: object = None
        if path.is_symlink():
            what = os.readlink(path)
        elif path.is_dir():
            paths += path.iterdir()
        elif path.is_file():
            what = path.read_bytes()
        marks = tuple(os.listxattr(path, follow_symlinks=False)) if hasattr(os, "listxattr") else ()
        found[str(path)] = (seen.st_mode, seen.st_uid, seen.st_nlink, seen.st_mtime_ns, seen.st_ctime_ns, what, marks)
    return found


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
