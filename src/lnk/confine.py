"""What a process can give up for itself, for good, before it touches bytes that it does not trust.

Limits on what it uses, and on Linux Landlock and seccomp by system calls of our own: no library, and no right that an
ordinary user lacks. It does not know what is done afterwards; whatever that takes is imported, opened and held before.
"""

import ctypes
import errno
import os
import resource
import signal
import struct
import sys
from typing import Final

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

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2

# Landlock's calls have the same numbers on all machines but one that nobody has.
_LANDLOCK_CREATE: Final = 444
_LANDLOCK_RESTRICT: Final = 446
_LANDLOCK_VERSION: Final = 1  # a flag: only ask for it
_LANDLOCK_FIELDS: Final = 3  # rights to files, rights to ports, and what is shared with the processes outside

_MACHINES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column below, number in the filter's data
# All that is left: computing, memory, time, chance, reading and writing what is open, the end. By (x86_64, aarch64).
_ALLOWED: Final = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "nanosleep": (35, 101),
    "getpid": (39, 172),
    "exit": (60, 93),
    "gettimeofday": (96, 169),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "futex": (202, 98),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "getrandom": (318, 278),
}
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # of the filter's language
_NUMBER_AT, _MACHINE_AT = 0, 4  # in the data that it sees
_KILL: Final = 0x80000000
_EPERM: Final = 0x00050001
_ALLOW: Final = 0x7FFF0000

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
    return _open(_has_landlock(), _has_seccomp()) + ([] if _memory_is_held() else [NO_MEMORY_LIMIT])


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
    return _call(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION) > 0


# ---------------------------------------------------------------- seccomp


def _seccomp() -> bool:
    """All calls but the allowed are refused."""
    code = _filter()
    if code is None:
        return False
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // _WORD_BYTES, ctypes.addressof(held))
    return _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program) == 0


def _filter() -> bytes | None:
    """The filter's code for this machine; None where its calls' numbers are not known.

    A call of another machine's table (32 bits) ends the process; one of x32's table is refused, for no number of
    theirs is allowed.
    """
    machine = _machine()
    if machine is None:
        return None
    column, name = machine
    numbers = [number[column] for number in _ALLOWED.values()]
    code = [
        *((_LOAD, 0, 0, _MACHINE_AT), (_IF_EQUAL, 1, 0, name), (_RETURN, 0, 0, _KILL)),
        (_LOAD, 0, 0, _NUMBER_AT),
        *((_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)),
        *((_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)),
    ]
    return b"".join(struct.pack("=HBBI", *each) for each in code)


def _machine() -> tuple[int, int] | None:
    is_64_bit = struct.calcsize("P") == _WORD_BYTES
    return _MACHINES.get(os.uname().machine) if sys.platform == "linux" and is_64_bit else None


def _has_seccomp() -> bool:
    """The kernel that has it looks for the filter where none is."""
    return (
        _machine() is not None
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
