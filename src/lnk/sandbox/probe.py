"""What a program in a sandbox can do, tried one by one: run inside, with the bait that `lnk.sandbox.denials` made.

Only the standard library, and apsw where it is there: it is run as a file of its own. It tries and says what came of
it; what should have come is for the judge outside. Nothing that it tries changes anything but the bait, also where
nothing holds it.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

PROBE_S: Final = 5  # for one probe; the slowest, a child of its own, takes a fiftieth of it
ANSWER_BYTES_MAX: Final = 1 << 16
DESCRIPTORS_MAX: Final = 200  # looked at: one that is passed on has a low number, and some systems give only 256
NETWORK_S: Final = 1.0  # an address of this machine answers at once or not at all
WATCHING: Final = "watching"  # the line that asks the judge to change a document
CHANGED: Final = "changed.md"  # which one
WORKS: Final = "work"  # the group of what has to be done; every other has to be denied

# By (x86_64, aarch64).
_MACHINES: Final = ("x86_64", "aarch64")
_CALLS: Final = {
    "clone": (56, 220),
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "capget": (125, 90),
    "personality": (135, 92),
    "mount": (165, 40),
    "umount2": (166, 39),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "add_key": (248, 217),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "fsopen": (430, 430),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "memfd_secret": (447, 447),
}
_PR_GET_SECCOMP, _PR_GET_NO_NEW_PRIVS = 21, 39
_PTRACE_SEIZE: Final = 0x4206
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_KEYCTL_GET_KEYRING_ID, _KEY_SPEC_SESSION_KEYRING, _KEY_SPEC_PROCESS_KEYRING = 0, -3, -2
_ADDR_NO_RANDOMIZE: Final = 0x40000
_UFFD_USER_MODE_ONLY: Final = 1
_X32, _GETPID = 0x40000000, 39  # what marks a call of x32's table, and one of it
_I386_GETPID: Final = bytes.fromhex("b814000000cd80c3")  # mov eax, 20; int 0x80; ret
_IN_MODIFY_CREATE: Final = 0x102
_CAPABILITY_VERSION: Final = 0x20080522
_DEVICES: Final = (  # opened for reading only, which none of them takes for a command
    *("kmsg", "mem", "port", "kvm", "fuse", "net/tun", "loop-control", "mapper/control"),
    *("sda", "vda", "nvme0n1", "dri/renderD128", "vhost-vsock"),
)
_FAMILIES_MAX: Final = 46  # of sockets, that Linux numbers
_SOCKET_KINDS: Final = (1, 2, 3, 5)  # stream, datagram, raw, seqpacket


class Bait(NamedTuple):
    """What was laid out, outside and inside, for the probe to try."""

    word: str  # stands in all that must not be read
    documents: str
    agent: str  # the agent's own folder: chats, skills, memory and what else it keeps there
    state: str
    notes: str  # the folder of the notes
    hidden: str  # a folder beneath the documents
    outside: str  # a folder of which nothing was given: a home, another agent, a Unix socket
    temporary: str  # the machine's folder for temporary files
    left: str  # the name of what may be left there
    victim: int  # a process outside
    address: int  # where it holds the word
    descriptor: int  # at which it has a file with the word open
    variable: str  # of the caller, holding the word
    tcp: int
    tcp6: int | None
    udp: int
    abstract: str
    shared: int | None  # the key of shared memory (System V)
    queue: str | None  # the name of a message queue
    handle: str | None  # of the secret file, in hexadecimal, with its kind in front
    zone: int  # seconds that the machine's zone is ahead
    model: int | None  # the one port that leads somewhere


class Untried(Exception):
    """This machine has nothing to try it on; the text says what."""


Probe = Callable[[Bait], object]
Probes = dict[str, Probe]


# ---------------------------------------------------------------- what the probes are made of


_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *values: int | bytes | None) -> int:
    """What a system call gives. Raises OSError where it fails, Untried where its number is not known."""
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in _MACHINES:
        raise Untried("its number is not known on this machine")
    return _numbered(_CALLS[name][_MACHINES.index(machine)], *values)


def _numbered(number: int, *values: int | bytes | None) -> int:
    taken = [ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in values]
    _libc.syscall.restype = ctypes.c_long
    done = int(_libc.syscall(ctypes.c_long(number), *taken))
    if done < 0:
        raise OSError(ctypes.get_errno(), name_of(ctypes.get_errno()))
    return done


def _asked_of_itself(option: int) -> int:
    """What prctl(2) says of this process."""
    if sys.platform != "linux":
        raise Untried("only Linux has it")
    return int(_libc.prctl(option, *(ctypes.c_ulong(0) for _ in range(4))))


def _only_if(held: object, what: str) -> None:
    """Raises PermissionError, saying `what`, where something was not done although no call failed."""
    if not held:
        raise PermissionError(what)


def _given(value: int | str | None, what: str) -> None:
    if value is None:
        raise Untried(what)


def _read(path: str, bait: Bait) -> None:
    """Reads the word there."""
    with open(path, "rb") as file:
        _only_if(bait.word.encode() in file.read(ANSWER_BYTES_MAX), "something else stands there")


def _make(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _opened(path: str, flags: int) -> None:
    """Opens and closes: where it is for writing, nothing is written."""
    os.close(os.open(path, flags | os.O_CLOEXEC))


def _nameless(folder: str) -> None:
    """A file without a name in a folder: gone when it is closed."""
    _opened(folder, os.O_TMPFILE | os.O_WRONLY)


def name_of(number: int | None) -> str:
    """An error's short name, as the manual pages have it."""
    return errno.errorcode.get(number or 0, str(number))


# ---------------------------------------------------------------- files


def _beside(bait: Bait) -> None:
    _only_if("private.md" in os.listdir(bait.agent), "it is not shown")


def _through_a_planted_link(bait: Bait) -> None:
    link = f"{bait.state}/planted"
    os.symlink(f"{bait.outside}/secret", link)
    try:
        _read(link, bait)
    finally:
        os.unlink(link)


def _hard_link(bait: Bait) -> None:
    os.link(f"{bait.documents}/a.md", f"{bait.state}/linked")
    os.unlink(f"{bait.state}/linked")


def _hard_link_of_a_secret(bait: Bait) -> None:
    os.link(f"{bait.outside}/secret", f"{bait.state}/linked")
    os.unlink(f"{bait.state}/linked")


def _truncate(bait: Bait) -> None:
    os.truncate(f"{bait.documents}/short.md", 1)


def _own(bait: Bait) -> None:
    os.chown(f"{bait.documents}/a.md", os.getuid(), os.getgid())


def _mark(bait: Bait) -> None:
    os.setxattr(f"{bait.documents}/a.md", "user.lnk", b"1")


def _device_file(bait: Bait) -> None:
    path = f"{bait.state}/device"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # /dev/null's
    os.unlink(path)


def _by_handle(bait: Bait) -> None:
    """Opens a file by the number that its file system gave it: no path, so nothing that looks at paths sees it."""
    if bait.handle is None:
        raise Untried("the file system gives no handles")
    kind, handle = int(bait.handle[:8], 16), bytes.fromhex(bait.handle[8:])
    mounted = os.open(bait.state, os.O_RDONLY)
    packed = struct.pack("=Ii", len(handle), kind) + handle
    with open(call("open_by_handle_at", mounted, packed, os.O_RDONLY), "rb") as file:
        _only_if(bait.word.encode() in file.read(), "something else stands there")


FILES: Final[Probes] = {
    "read a file outside": lambda bait: _read(f"{bait.outside}/secret", bait),
    "read an ssh key": lambda bait: _read(f"{bait.outside}/home/.ssh/id_ed25519", bait),
    "read another agent's notes": lambda bait: _read(f"{bait.outside}/other/memory/notes.md", bait),
    "read the machine's passwords": lambda bait: _opened("/etc/shadow", os.O_RDONLY),
    "read what is hidden beneath its folders": lambda bait: _read(f"{bait.hidden}/secret", bait),
    "read what stands beside its folders": lambda bait: _read(f"{bait.agent}/private.md", bait),
    "see what stands beside its folders": _beside,
    "list a home": lambda bait: os.listdir(f"{bait.outside}/home"),
    "list the machine's temporary files": lambda bait: _only_if(
        os.path.basename(bait.outside) in os.listdir(bait.temporary), "it is not shown"
    ),
    "follow a link in its documents that leads outside": lambda bait: _read(f"{bait.documents}/out.md", bait),
    "follow a link that it planted": _through_a_planted_link,
    "open a file by its handle": _by_handle,
    "write a document": lambda bait: _opened(f"{bait.documents}/a.md", os.O_WRONLY),
    "make a document": lambda bait: _make(f"{bait.documents}/new.md"),
    "make a folder among the documents": lambda bait: os.mkdir(f"{bait.documents}/new"),
    "cut a document short": _truncate,
    "remove a document": lambda bait: os.unlink(f"{bait.documents}/gone.md"),
    "rename a document": lambda bait: os.rename(f"{bait.documents}/old.md", f"{bait.documents}/renamed.md"),
    "move a document into its state": lambda bait: os.rename(f"{bait.documents}/moved.md", f"{bait.state}/moved.md"),
    "link a document into its state": _hard_link,
    "link a file outside into its state": _hard_link_of_a_secret,
    "change a document's mode": lambda bait: os.chmod(f"{bait.documents}/a.md", 0o640),
    "change a document's owner": _own,
    "change a document's date": lambda bait: os.utime(f"{bait.documents}/a.md", (0, 0)),
    "change a document's attributes": _mark,
    "write a conversation": lambda bait: _opened(f"{bait.agent}/chats/a.jsonl", os.O_WRONLY),
    "write in a home": lambda bait: _make(f"{bait.outside}/home/new"),
    "write in the machine's /tmp": lambda bait: _make(f"{bait.temporary}/{bait.left}"),
    "write in the machine's shared memory": lambda bait: _make(f"/dev/shm/{bait.left}"),
    "write in its own program": lambda bait: _opened(os.path.abspath(__file__), os.O_WRONLY | os.O_APPEND),
    "write in its interpreter's folder": lambda bait: _nameless(os.path.dirname(os.__file__)),
    "write at the top": lambda bait: _nameless("/"),
    "write in /usr": lambda bait: _nameless("/usr"),
    "write in /etc": lambda bait: _nameless("/etc"),
    "change the kernel's settings": lambda bait: _opened("/proc/sys/kernel/domainname", os.O_WRONLY),
    "make a device": _device_file,
}


# ---------------------------------------------------------------- the network


def _connect(family: int, address: tuple[str, int] | str) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as end:
        end.settimeout(NETWORK_S)
        end.connect(address)
        end.sendall(b"lnk")


def _tcp6(bait: Bait) -> None:
    if bait.tcp6 is None:
        raise Untried("this machine has no IPv6")
    _connect(socket.AF_INET6, ("::1", bait.tcp6))


def _listen(bait: Bait) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as end:
        end.bind(("127.0.0.1", 0))
        end.listen()


def _send(family: int, address: tuple[str, int]) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as end:
        end.sendto(b"lnk", address)


def _open_socket(family: int, kind: int, protocol: int = 0) -> None:
    socket.socket(family, kind, protocol).close()


def _ciphers(bait: Bait) -> None:
    with socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET) as end:
        end.bind(("hash", "sha256"))


def _other_families(bait: Bait) -> None:
    """A socket of a family that no probe has a name for."""
    known = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, *(getattr(socket, "AF_NETLINK", -1),)}
    made = []
    for family in sorted({*range(1, _FAMILIES_MAX)} - known):
        for kind in _SOCKET_KINDS:
            with contextlib.suppress(OSError):
                socket.socket(family, kind).close()
                made.append(str(family))
                break
    _only_if(made, "none can be made")


def _by_a_pair(bait: Bait) -> None:
    """One of a pair needs no call that makes a socket, and can be led elsewhere."""
    end, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with end, other:
        end.connect(f"{bait.documents}/datagrams")
        end.send(b"lnk")


def _model(bait: Bait) -> None:
    _given(bait.model, "it was given no model")
    _connect(socket.AF_INET, ("127.0.0.1", bait.model or 0))


def _send_to_the_model(bait: Bait) -> None:
    _given(bait.model, "it was given no model")
    _send(socket.AF_INET, ("127.0.0.1", bait.model or 0))


NETWORK: Final[Probes] = {
    "reach a port of the machine": lambda bait: _connect(socket.AF_INET, ("127.0.0.1", bait.tcp)),
    "reach a port of the machine by IPv6": _tcp6,
    "reach what the machine has at the model's number": _model,
    "send a datagram to the machine": lambda bait: _send(socket.AF_INET, ("127.0.0.1", bait.udp)),
    "send a datagram at the model's number": _send_to_the_model,
    "listen on a port": _listen,
    "ask the kernel for its network (netlink)": lambda bait: _open_socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "see every packet": lambda bait: _open_socket(socket.AF_PACKET, socket.SOCK_RAW),
    "make packets of its own": lambda bait: _open_socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "reach the host of a virtual machine (vsock)": lambda bait: _open_socket(socket.AF_VSOCK, socket.SOCK_STREAM),
    "use the kernel's ciphers (AF_ALG)": _ciphers,
    "make a socket of any other family": _other_families,
    "reach an abstract Unix socket": lambda bait: _connect(socket.AF_UNIX, "\0" + bait.abstract),
    "reach a Unix socket outside": lambda bait: _connect(socket.AF_UNIX, f"{bait.outside}/socket"),
    "reach a Unix socket among its documents": lambda bait: _connect(socket.AF_UNIX, f"{bait.documents}/socket"),
    "reach a Unix socket by one of a pair": _by_a_pair,
}


# ---------------------------------------------------------------- other processes


def _victims(bait: Bait, name: str) -> str:
    if not os.path.isdir("/proc/self"):
        raise Untried("this machine shows no processes as files")
    return f"/proc/{bait.victim}/{name}"


def _see_by_path(bait: Bait) -> None:
    os.stat(_victims(bait, "stat"))


def _trace(bait: Bait) -> None:
    call("ptrace", _PTRACE_SEIZE, bait.victim, 0, 0)  # let go when this process ends


def _held(bait: Bait) -> tuple[ctypes.Array[ctypes.c_char], bytes, bytes]:
    """Room of ours, and where it and the victim's word lie, as the kernel takes it."""
    room = ctypes.create_string_buffer(len(bait.word))
    size = len(bait.word)
    return room, struct.pack("@PN", ctypes.addressof(room), size), struct.pack("@PN", bait.address, size)


def _read_memory(bait: Bait) -> None:
    room, ours, theirs = _held(bait)
    call("process_vm_readv", bait.victim, ours, 1, theirs, 1, 0)
    _only_if(room.raw == bait.word.encode(), "something else stands there")


def _write_memory(bait: Bait) -> None:
    room, ours, theirs = _held(bait)
    room.raw = bait.word.encode()  # what stands there already
    call("process_vm_writev", bait.victim, ours, 1, theirs, 1, 0)


def _memory_file(bait: Bait) -> None:
    with open(_victims(bait, "mem"), "rb", buffering=0) as memory:
        memory.seek(bait.address)
        _only_if(memory.read(len(bait.word)) == bait.word.encode(), "something else stands there")


def _take_descriptor(bait: Bait) -> None:
    process = call("pidfd_open", bait.victim, 0)
    with open(call("pidfd_getfd", process, bait.descriptor, 0), "rb") as file:
        file.seek(0)
        _only_if(bait.word.encode() in file.read(), "something else stands there")


def _limit(bait: Bait) -> None:
    resource.prlimit(bait.victim, resource.RLIMIT_CORE, (0, 0))


def _join(bait: Bait) -> None:
    space = os.open(_victims(bait, "ns/net"), os.O_RDONLY)
    call("setns", space, 0)


def _compare(bait: Bait) -> None:
    call("kcmp", os.getpid(), bait.victim, 0, 1, bait.descriptor)


def _shared_memory(bait: Bait) -> None:
    _given(bait.shared, "this machine has no System V memory")
    found = _libc.shmget(ctypes.c_int(bait.shared or 0), ctypes.c_size_t(0), 0)
    if found < 0:
        raise OSError(ctypes.get_errno(), name_of(ctypes.get_errno()))


def _message_queue(bait: Bait) -> None:
    if bait.queue is None:
        raise Untried("this machine has no message queues")
    os.close(call("mq_open", bait.queue.encode(), os.O_RDWR, 0, None))


PROCESSES: Final[Probes] = {
    "see a process outside": _see_by_path,
    "ask the kernel about a process outside": lambda bait: os.getsid(bait.victim),
    "signal a process outside": lambda bait: os.kill(bait.victim, signal.SIGURG),  # which nobody minds
    "trace a process outside": _trace,
    "read the variables of a process outside": lambda bait: _read(_victims(bait, "environ"), bait),
    "read the command line of a process outside": lambda bait: _read(_victims(bait, "cmdline"), bait),
    "read the files of a process outside": lambda bait: _read(_victims(bait, f"fd/{bait.descriptor}"), bait),
    "reach files through a process outside": lambda bait: _read(_victims(bait, "cwd/secret"), bait),
    "read the memory of a process outside": _read_memory,
    "write the memory of a process outside": _write_memory,
    "read the memory of a process outside as a file": _memory_file,
    "take a descriptor from a process outside": _take_descriptor,
    "compare itself with a process outside": _compare,
    "limit a process outside": _limit,
    "slow a process outside down": lambda bait: os.setpriority(os.PRIO_PROCESS, bait.victim, 1),
    "bind a process outside to a processor": lambda bait: os.sched_setaffinity(bait.victim, range(os.cpu_count() or 1)),
    "join a process outside in its network": _join,
    "reach shared memory outside (System V)": _shared_memory,
    "reach a message queue outside": _message_queue,
}


# ---------------------------------------------------------------- the kernel


def _clone(bait: Bait) -> None:
    if call("clone", _CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


def _mount(bait: Bait) -> None:
    """Mounts over the state; where nothing holds it, in a view of its own, so that it is nobody else's."""
    with contextlib.suppress(OSError):
        call("unshare", _CLONE_NEWNS)
        call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    call("mount", b"none", bait.state.encode(), b"tmpfs", 0, None)
    call("umount2", bait.state.encode(), 0)


def _io_uring(bait: Bait) -> None:
    asked = ctypes.create_string_buffer(120)
    call("io_uring_setup", 4, ctypes.addressof(asked))


def _filter_of_its_own(bait: Bait) -> None:
    """A map of bpf: what every program of it begins with."""
    call("bpf", 0, struct.pack("=4I", 2, 4, 4, 1) + bytes(56), 72)


def _count_events(bait: Bait) -> None:
    call("perf_event_open", struct.pack("=IIQ", 1, 112, 9) + bytes(96), 0, -1, -1, 0)


def _personality(bait: Bait) -> None:
    call("personality", _ADDR_NO_RANDOMIZE)


def _another_table(bait: Bait) -> None:
    """A call by the 32-bit table, whose numbers mean other calls."""
    if os.uname().machine != "x86_64" or sys.platform != "linux":
        raise Untried("this machine has no 32-bit calls")
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(_I386_GETPID)
    start = ctypes.addressof(ctypes.c_char.from_buffer(code))
    _only_if(ctypes.CFUNCTYPE(ctypes.c_int)(start)() == os.getpid(), "it means something else")


def _x32(bait: Bait) -> None:
    if os.uname().machine != "x86_64" or sys.platform != "linux":
        raise Untried("this machine has no x32 calls")
    _numbered(_X32 | _GETPID)


def _type_into_the_terminal(bait: Bait) -> None:
    if not os.isatty(0):
        raise Untried("it has no terminal")
    os.setsid()
    with contextlib.suppress(OSError):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    fcntl.ioctl(0, termios.TIOCSTI, b"x")


def _devices(bait: Bait) -> None:
    there = [f"/dev/{name}" for name in _DEVICES if os.path.exists(f"/dev/{name}")]
    opened = []
    for path in there:
        with contextlib.suppress(OSError):
            _opened(path, os.O_RDONLY | os.O_NONBLOCK)
            opened.append(path)
    _only_if(opened, "none can be opened" if there else "none is there")


def _capabilities(bait: Bait) -> None:
    header, held = struct.pack("=Ii", _CAPABILITY_VERSION, 0), ctypes.create_string_buffer(24)
    call("capget", header, ctypes.addressof(held))
    _only_if(any(held.raw), "it holds none")


def _gain(bait: Bait) -> None:
    _only_if(_asked_of_itself(_PR_GET_NO_NEW_PRIVS) == 0, "no new privileges")


def _unfiltered(bait: Bait) -> None:
    _only_if(_asked_of_itself(_PR_GET_SECCOMP) == 0, "its calls are filtered")


def _chroot(bait: Bait) -> None:
    os.chroot(bait.state)


KERNEL: Final[Probes] = {
    "hold a capability": _capabilities,
    "gain rights by running a program": _gain,
    "call the kernel without a filter": _unfiltered,
    "call the kernel by its 32-bit table": _another_table,
    "call the kernel by its x32 table": _x32,
    "become root of a world of its own": lambda bait: call("unshare", _CLONE_NEWUSER),
    "start a child that is root of its own world": _clone,
    "leave the view of files it has": lambda bait: call("unshare", _CLONE_NEWNS),
    "mount": _mount,
    "mount by the newer calls": lambda bait: call("fsopen", b"tmpfs", 0),
    "change its root": _chroot,
    "queue calls (io_uring)": _io_uring,
    "keep a key in the kernel": lambda bait: call("add_key", b"user", b"lnk", b"1", 1, _KEY_SPEC_PROCESS_KEYRING),
    "use the session's keys": lambda bait: call("keyctl", _KEYCTL_GET_KEYRING_ID, _KEY_SPEC_SESSION_KEYRING, 1),
    "answer page faults (userfaultfd)": lambda bait: call("userfaultfd", _UFFD_USER_MODE_ONLY),
    "run code in the kernel (bpf)": _filter_of_its_own,
    "count the processor's events (perf)": _count_events,
    "hold memory that the kernel cannot see": lambda bait: call("memfd_secret", 0),
    "read the kernel's log": lambda bait: call("syslog", 10, None, 0),
    "run without a random layout (personality)": _personality,
    "type into the terminal (TIOCSTI)": _type_into_the_terminal,
    "open a device of the machine": _devices,
    "list /sys": lambda bait: os.listdir("/sys"),
}


# ---------------------------------------------------------------- who called


def _descriptors(bait: Bait) -> None:
    """Any open descriptor but 0, 1, 2 and the one by which this probe answers."""
    found = []
    for number in range(3, DESCRIPTORS_MAX):
        with contextlib.suppress(OSError):
            os.fstat(number)
            found.append(str(number))
    _only_if(found, "none is open")


def _variables(bait: Bait) -> None:
    _only_if(bait.variable in os.environ, "it is not set")


CALLER: Final[Probes] = {
    "see the caller's variables": _variables,
    "use the caller's descriptors": _descriptors,
}


# ---------------------------------------------------------------- what it is for


def _documents(bait: Bait) -> None:
    with open(f"{bait.documents}/a.md", encoding="utf-8") as file:
        _only_if(file.read() == "# A\n", "something else stands there")


def _listed(bait: Bait) -> None:
    _only_if({"a.md", "old.md"} <= set(os.listdir(bait.documents)), "some are not there")


def _state(bait: Bait) -> None:
    os.makedirs(f"{bait.state}/new/folder", exist_ok=True)
    with open(f"{bait.state}/new/one", "wb") as file:
        file.write(b"1")
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{bait.state}/new/one", f"{bait.state}/new/folder/two")
    folder = os.open(f"{bait.state}/new/folder", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    os.unlink(f"{bait.state}/new/folder/two")


def _lock(bait: Bait) -> None:
    with open(f"{bait.state}/lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _map(bait: Bait) -> None:
    with open(f"{bait.state}/mapped", "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as held:
            held[:3] = b"lnk"
            held.flush()
        _only_if(file.read(3) == b"lnk", "what was written is not there")


def _index(bait: Bait) -> None:
    """An index as the engine keeps one: WAL, full text, a reader beside the writer."""
    import apsw  # heavy, and not there where the engine is not

    path = f"{bait.state}/index.sqlite"
    writer, reader = apsw.Connection(path), apsw.Connection(path)
    _only_if(writer.pragma("journal_mode", "wal") == "wal", "it keeps no log")
    writer.execute("CREATE VIRTUAL TABLE words USING fts5(text); INSERT INTO words VALUES ('one two')")
    found = reader.execute("SELECT count(*) FROM words WHERE words MATCH 'two'").get
    _only_if(found == 1, "it does not find what was written")
    writer.execute("INSERT INTO words(words) VALUES ('optimize'); VACUUM")
    for each in (reader, writer):
        each.close()


def _notes(bait: Bait) -> None:
    fresh = f"{bait.notes}/.notes.md.new"
    with open(fresh, "w", encoding="utf-8") as file:
        file.write("- noted\n")
    os.replace(fresh, f"{bait.notes}/notes.md")


def _child(bait: Bait) -> None:
    done = subprocess.run([sys.executable, "-I", "-S", "-c", "print(1)"], capture_output=True, timeout=PROBE_S)
    _only_if((done.returncode, done.stdout) == (0, b"1\n"), done.stderr.decode(errors="replace").strip()[-200:])


def _pipes(bait: Bait) -> None:
    out, into = os.pipe()
    os.write(into, b"lnk")
    one, other = socket.socketpair()
    one.sendall(os.read(out, 3))
    _only_if(other.recv(3) == b"lnk", "nothing came through")


def _threads(bait: Bait) -> None:
    seen: list[int] = []
    threads = [threading.Thread(target=seen.append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PROBE_S)
    _only_if(sorted(seen) == [0, 1, 2, 3], "not all ran")


def _watch(bait: Bait) -> None:
    """The kernel tells of a document that the judge, asked by a line, changes outside."""
    if sys.platform != "linux":
        raise Untried("only Linux has it")
    watch = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if watch < 0 or _libc.inotify_add_watch(watch, bait.documents.encode(), _IN_MODIFY_CREATE) < 0:
        raise OSError(ctypes.get_errno(), name_of(ctypes.get_errno()))
    os.write(1, f"{WATCHING}\n".encode())
    _only_if(select.select([watch], [], [], PROBE_S)[0], "nothing was told")
    _only_if(CHANGED.encode() in os.read(watch, ANSWER_BYTES_MAX), "something else was told")


def _chance(bait: Bait) -> None:
    with open("/dev/urandom", "rb") as file:
        _only_if(len({file.read(16), os.urandom(16)}) == 2, "it gives the same again")


def _clock(bait: Bait) -> None:
    _only_if(time.time() > os.stat(f"{bait.documents}/a.md").st_mtime - 1, "the clock is wrong")
    _only_if(time.localtime().tm_gmtoff == bait.zone, f"its zone is {time.localtime().tm_zone}")


WORK: Final[Probes] = {
    "read its documents": _documents,
    "list its documents": _listed,
    "see a document change": _watch,
    "read its conversations": lambda bait: _opened(f"{bait.agent}/chats/a.jsonl", os.O_RDONLY),
    "write, sync, rename and remove in its state": _state,
    "lock files in its state": _lock,
    "map files in its state": _map,
    "keep an index in its state (SQLite)": _index,
    "replace the notes": _notes,
    "start a child": _child,
    "use pipes and socket pairs": _pipes,
    "use threads": _threads,
    "use chance": _chance,
    "read the clock in the machine's zone": _clock,
    "reach its model": _model,
}

PROBES: Final[dict[str, Probes]] = {
    WORKS: WORK,  # first: where nothing holds the others, they change what it reads
    "files": FILES,
    "network": NETWORK,
    "processes": PROCESSES,
    "kernel": KERNEL,
    "caller": CALLER,
}


# ---------------------------------------------------------------- trying


DONE, FAILED, UNTRIED = "done", "failed", "untried"

Outcome = tuple[str, str]  # one of these, and how it failed or why it was not tried


def tried(probe: Probe, bait: Bait) -> Outcome:
    """What comes of one probe, in a process of its own: whatever it does to itself is gone with it."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        answers_at = os.dup2(into, DESCRIPTORS_MAX, inheritable=False)
        os.close(out)
        os.close(into)
        signal.alarm(PROBE_S)
        os.write(answers_at, json.dumps(_outcome(probe, bait)).encode()[:ANSWER_BYTES_MAX])
        os._exit(0)
    os.close(into)
    with open(out, "rb") as answers:
        said = answers.read(ANSWER_BYTES_MAX)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if said:
        outcome, how = json.loads(said)
        return outcome, how
    return FAILED, signal.Signals(-ended).name if ended < 0 else f"status {ended}"


def _outcome(probe: Probe, bait: Bait) -> Outcome:
    try:
        probe(bait)
    except Untried as reason:
        return UNTRIED, str(reason)
    except AttributeError as error:  # Python has names for what its system has
        return UNTRIED, str(error)
    except OSError as error:
        return FAILED, name_of(error.errno) if error.errno else str(error)
    except Exception as error:  # whatever else keeps it from being done
        return FAILED, f"{type(error).__name__}: {error}"
    return DONE, ""


def main() -> None:
    """Tries them all, and writes one JSON object: what came of each, by group and name."""
    bait = Bait(**json.loads(sys.argv[1]))
    found = {group: {name: tried(probe, bait) for name, probe in probes.items()} for group, probes in PROBES.items()}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
