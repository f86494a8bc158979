"""What a process can give up for itself, for good, before it touches bytes that it does not trust.

Limits on what it uses, and on Linux Landlock and seccomp by system calls of our own: no library, and no right that an
ordinary user lacks. It does not know what is done afterwards; whatever that takes is imported, opened and held before.
"""

import ctypes
import errno
import os
import resource
import signal
import stat
import struct
import sys
from typing import Final

from lnk.confine import filters

NO_LANDLOCK: Final = "this kernel has no Landlock: seccomp alone keeps a parser from files and addresses"
NO_SECCOMP: Final = (
    "this system has no seccomp: a parser could start processes, learn the names of files, and use UDP and Unix sockets"
)
NEITHER: Final = (
    "this system has neither Landlock nor seccomp: a parser could use files, the network and programs as this user does"
)
NO_MEMORY_LIMIT: Final = "this system does not limit the memory of a process"

_CPU_GRACE_S: Final = 1  # with both limits the same the kernel kills at once, and nobody can tell why
_DESCRIPTORS_MAX: Final = 1 << 16  # one call on Linux, a call each elsewhere
_WORD_BYTES: Final = 8

_CAPSET: Final = (126, 91)  # by (x86_64, aarch64)
_CAPABILITY_VERSION, _CAPABILITY_BYTES = 0x20080522, 24

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2

# Landlock's calls have the same numbers on all machines but one that nobody has.
_LANDLOCK_CREATE: Final = 444
_LANDLOCK_ADD: Final = 445
_LANDLOCK_RESTRICT: Final = 446
_LANDLOCK_VERSION: Final = 1  # a flag: only ask for it
_LANDLOCK_FIELDS: Final = 3  # rights to files, rights to ports, and what is shared with the processes outside
_LANDLOCK_BENEATH: Final = 1  # the kind of a rule: rights to a folder and all beneath it, or to one file

# Landlock's rights to files. Those that make a device, a socket or a FIFO are given to nobody.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_FOLDER, _REMOVE_FILE, _MAKE_FOLDER, _MAKE_FILE = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_MAKE_LINK, _MOVE, _TRUNCATE, _DEVICE_REQUEST = 1 << 12, 1 << 13, 1 << 14, 1 << 15
_OF_A_FILE: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_REQUEST
LIST: Final = _READ_FOLDER
READ: Final = _READ_FILE | _READ_FOLDER
RUN: Final = READ | _EXECUTE
WRITE: Final = (
    READ | _WRITE_FILE | _TRUNCATE | _REMOVE_FOLDER | _REMOVE_FILE | _MAKE_FOLDER | _MAKE_FILE | _MAKE_LINK | _MOVE
)

_libc = ctypes.CDLL(None, use_errno=True)


def end_with(parent: int) -> None:
    """The kernel kills this process when the thread that started it, of the process `parent`, ends.

    Only Linux does; elsewhere the limits end it.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be said
        os._exit(1)


def limit(*, memory_bytes: int, cpu_s: int, wall_s: int, files: int, processes: int | None = None) -> list[str]:
    """Limits this process, and what it runs in its place, to these; it writes no file and leaves no core.

    `memory_bytes`: of address space. Over `cpu_s` it ends by SIGXCPU, after `wall_s` by SIGALRM. Gives what could not
    be limited, in plain words.
    """
    wanted = {
        resource.RLIMIT_CPU: (cpu_s, cpu_s + _CPU_GRACE_S),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_NOFILE: (files, files),
        resource.RLIMIT_CORE: (0, 0),
    }
    if processes is not None:
        wanted[resource.RLIMIT_NPROC] = (processes, processes)
    for which, (soft, hard) in wanted.items():
        _limit(which, soft, hard)
    signal.alarm(wall_s)
    held = _limit(resource.RLIMIT_AS, memory_bytes, memory_bytes)
    return [] if held and _memory_is_held() else [NO_MEMORY_LIMIT]


def close_the_world() -> list[str]:
    """Gives up, for good, all but computing, memory, and the descriptors 0, 1 and 2. This process has one thread.

    Nothing can be opened, reached, started or signalled afterwards: what tries gets EPERM. Gives what this system
    could not close, in plain words.
    """
    os.closerange(3, _DESCRIPTORS_MAX)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    return _open(_landlock(), _seccomp())


def open_points() -> list[str]:
    """What `limit` and `close_the_world` would say here, asked of the kernel; nothing is closed."""
    return _open(_has_landlock(), has_seccomp()) + ([] if _memory_is_held() else [NO_MEMORY_LIMIT])


def _open(landlock: bool, seccomp: bool) -> list[str]:
    """What is open where only these two are there."""
    said = {(True, True): [], (False, True): [NO_LANDLOCK], (True, False): [NO_SECCOMP], (False, False): [NEITHER]}
    return said[landlock, seccomp]


def _limit(which: int, soft: int, hard: int) -> bool:
    """Whether the limit holds now. One that is lower already stays."""
    old = resource.getrlimit(which)
    new = [
        wanted if was == resource.RLIM_INFINITY else min(wanted, was)
        for wanted, was in zip((soft, hard), old, strict=True)
    ]
    try:
        resource.setrlimit(which, (new[0], new[1]))
    except (OSError, ValueError):
        return False
    return True


def _memory_is_held() -> bool:
    return sys.platform == "linux"  # macOS takes the limit and does not hold to it


# ---------------------------------------------------------------- Landlock


def _landlock() -> bool:
    """Every right that this kernel's Landlock knows is given up."""
    rights = [_known(field) for field in range(_LANDLOCK_FIELDS)]
    ruleset = _ruleset(rights)
    if ruleset < 0:
        return False
    done = _call(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return done == 0


def _known(field: int) -> int:
    """The rights of a field that this kernel knows, found by asking for one after the other: it refuses others.

    A table of versions would leave open what a newer kernel can close.
    """
    known = 0
    for bit in range(_WORD_BYTES * 8):
        rights = [0] * _LANDLOCK_FIELDS
        rights[field] = 1 << bit
        ruleset = _ruleset(rights)
        if ruleset < 0:
            break
        os.close(ruleset)
        known |= rights[field]
    return known


def _ruleset(rights: list[int]) -> int:
    """The descriptor of an empty ruleset over `rights`, or less than 0. An old kernel takes new fields that are 0."""
    fields = struct.pack(f"={_LANDLOCK_FIELDS}Q", *rights)
    return _call(_LANDLOCK_CREATE, fields, len(fields), 0)


def _has_landlock() -> bool:
    return landlock_version() > 0


def landlock_version() -> int:
    """Of this kernel's Landlock; 0 where it has none."""
    return max(0, _call(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION))


class Files:
    """What of the files is left to a process that keeps to it: nothing, but for what is allowed.

    Nor is a port left, or with `network` all of them, nor signals and sockets by name of the processes outside, as far
    as this kernel can close them. `fd` may be inherited, so that another process keeps to it.
    """

    def __init__(self, *, network: bool = False) -> None:
        """Raises OSError where the kernel has no Landlock."""
        rights = [_known(field) for field in range(_LANDLOCK_FIELDS)]
        if network:
            rights[1] = 0
        self.fd = _ruleset(rights)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "this kernel has no Landlock")

    def allow(self, fd: int, rights: int) -> None:
        """`rights` (LIST, READ, RUN, WRITE) to the open file or folder and all beneath it. Raises OSError."""
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_A_FILE
        if rights and _call(_LANDLOCK_ADD, self.fd, _LANDLOCK_BENEATH, struct.pack("=Qi", rights, fd), 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)


def keep_to(files: int, calls: bytes) -> bool:
    """Whether this process, and all that it starts or becomes, now keeps to `Files` (their descriptor) and to a filter.

    This process has one thread, and gains no right by running another program from now on.
    """
    return (
        _prctl(_PR_SET_NO_NEW_PRIVS, 1) == 0
        and _give_up_capabilities()
        and _call(_LANDLOCK_RESTRICT, files, 0) == 0
        and apply_filter(calls)
    )


def _give_up_capabilities() -> bool:
    """Whether root's rights are gone: with no new privileges, no program that is run gives them back."""
    found = filters.machine()
    header, none = struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(_CAPABILITY_BYTES)
    return found is not None and _call(_CAPSET[found[0]], header, none) == 0


# ---------------------------------------------------------------- seccomp


def _seccomp() -> bool:
    """All calls but the allowed are refused."""
    code = filters.compute_only()
    return code is not None and apply_filter(code)


def apply_filter(code: bytes) -> bool:
    """Whether the filter (of `filters`) holds now, for this process and all that it starts or becomes."""
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // filters.INSTRUCTION_BYTES, ctypes.addressof(held))
    return _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program) == 0


def has_seccomp() -> bool:
    """The kernel that has it looks for the filter where none is."""
    return (
        filters.machine() is not None
        and _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER) != 0
        and ctypes.get_errno() == errno.EFAULT
    )


# ---------------------------------------------------------------- the kernel


def _prctl(option: int, value: int, pointer: bytes | None = None) -> int:
    """Not 0 where the kernel, or the system, does not do it."""
    if sys.platform != "linux":
        return -1
    word = ctypes.c_ulong
    return int(_libc.prctl(ctypes.c_int(option), word(value), ctypes.c_char_p(pointer), word(0), word(0)))


def _call(number: int, *values: int | bytes | None) -> int:
    """A system call that the C library has no name for: less than 0 where it fails."""
    if sys.platform != "linux":
        return -1
    taken = [ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in values]
    return int(_libc.syscall(ctypes.c_long(number), *taken))
