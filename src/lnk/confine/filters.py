"""seccomp filters, as the bytes that the kernel takes: which system calls are left to a process. Pure.

Two of them: `compute_only` allows what computing needs and no more; `for_program` is for a whole program in a sandbox
and denies what a sandbox of files, processes and addresses leaves open.
"""

import errno
import os
import struct
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

INSTRUCTION_BYTES: Final = 8

_MACHINES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column below, number in the filter's data
# All that computing needs: memory, time, chance, reading and writing what is open, the end. By (x86_64, aarch64).
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
# What no program in a sandbox has a use for. None: that machine has no such call.
_DENIED: Final[dict[str, tuple[int | None, int | None]]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # what the tree of files is made of
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    # name spaces
    "unshare": (272, 97),
    "setns": (308, 268),
    # large parts of the kernel
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_secret": (447, 447),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    # the machine itself
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
}
# What changes a file that may only be read, and Landlock does not know of.
_CHANGING: Final[dict[str, tuple[int | None, int | None]]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
# What reaches the memory and the messages of processes outside by a name of its own, which Landlock does not know of.
_SHARED: Final[dict[str, tuple[int | None, int | None]]] = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
}
# What changes a process by its number, and the arguments that are 0 where it is the one that asks.
_BY_NUMBER: Final[dict[str, tuple[tuple[int, int], tuple[int, ...]]]] = {
    "prlimit64": ((302, 261), (0,)),
    "setpriority": ((141, 140), (0, 1)),
    "ioprio_set": ((251, 30), (1,)),
    "sched_setparam": ((142, 118), (0,)),
    "sched_setscheduler": ((144, 119), (0,)),
    "sched_setaffinity": ((203, 122), (0,)),
    "sched_setattr": ((314, 274), (0,)),
}
_TERMINAL_REQUESTS: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: they type for whoever sits at it
_CHANGING_REQUESTS: Final = (0x40086602, 0x401C5820)  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
_CLONE, _CLONE3, _IOCTL = (56, 220), (435, 435), (16, 29)
_SOCKET, _SOCKETPAIR, _PERSONALITY = (41, 198), (53, 199), (135, 92)
_NAME_SPACES: Final = 0x7E020000  # the flags of clone that make one
_ASKS_ONLY: Final = 0xFFFFFFFF  # personality(2) with this changes nothing
_X32: Final = 0x40000000  # the bit that marks a call of x32's table

_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _DGRAM, _RAW, _SEQPACKET = 1, 2, 3, 5
_KINDS: Final = 0xF  # the rest of a socket's type are flags
_TCP, _UDP = 6, 17
_ROUTE: Final = 0  # NETLINK_ROUTE: which addresses there are

# Of the filter's language: what is loaded, compared, answered.
_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT = 0, 4  # in the data that it sees
_ARGUMENT_AT: Final = (16, 24, 32)  # the lower half of each: these calls take no more
_KILL: Final = 0x80000000
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000

_Step = tuple[int, int, int, int]


class Sockets(NamedTuple):
    """Which sockets a program may make: Unix ones, TCP ones, or all that a network needs."""

    unix: bool = False
    tcp: bool = False
    network: bool = False


def machine() -> tuple[int, int] | None:
    """The column of this machine's numbers, and its name in a filter's data; None where they are not known."""
    is_64_bit = struct.calcsize("P") == INSTRUCTION_BYTES
    return _MACHINES.get(os.uname().machine) if sys.platform == "linux" and is_64_bit else None


def compute_only() -> bytes | None:
    """All calls but those that computing needs get EPERM; None where this machine's numbers are not known.

    A call of another machine's table (32 bits) ends the process; one of x32's table is refused, for no number of
    theirs is allowed.
    """
    found = machine()
    if found is None:
        return None
    column, name = found
    numbers = [number[column] for number in _ALLOWED.values()]
    return _assembled(
        [
            *_of_machine(name),
            *((_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)),
            *(_answer(errno.EPERM), (_RETURN, 0, 0, _ALLOW)),
        ]
    )


def for_program(sockets: Sockets, *, changing: bool = True) -> bytes | None:
    """What a program in a sandbox has no use for gets EPERM; None where this machine's numbers are not known.

    A socket of another family than `sockets` allows gets EAFNOSUPPORT, as on a kernel that lacks it. Without
    `changing`, for a process that no name space keeps apart, neither modes, owners, times nor attributes of any file
    can be set, nor limits and priorities of other processes, nor is memory or a message shared with them. A call of
    another table (32 bits, x32) ends the process. Landlock and seccomp are left: a program may close itself further.
    """
    found = machine()
    if found is None:
        return None
    column, name = found
    denied = [*_DENIED.values(), *(() if changing else (*_CHANGING.values(), *_SHARED.values()))]
    requests = _TERMINAL_REQUESTS if changing else _TERMINAL_REQUESTS + _CHANGING_REQUESTS
    steps = [*_of_machine(name)]
    if column == 0:
        steps += [(_IF_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for number in denied:
        steps += _on(number[column], [_answer(errno.EPERM)])
    # Its flags lie in memory, where no filter sees them; without it the C library takes `clone`.
    steps += _on(_CLONE3[column], [_answer(errno.ENOSYS)])
    steps += _on(_CLONE[column], [_argument(0), (_IF_ANY, 0, 1, _NAME_SPACES), _answer(errno.EPERM), *_allowed()])
    steps += _on(_PERSONALITY[column], [_argument(0), (_IF_EQUAL, 1, 0, _ASKS_ONLY), _answer(errno.EPERM), *_allowed()])
    if not changing:
        for numbers, arguments in _BY_NUMBER.values():
            steps += _on(numbers[column], [*_all_zero(arguments), *_allowed(), _answer(errno.EPERM)])
    steps += _on(_IOCTL[column], [_argument(1), *_unless(requests), _answer(errno.EPERM)])
    steps += _on(_SOCKET[column], _families(sockets))
    # A datagram socket of a pair can be led to any other, by `connect` or `sendto`: it would be a socket of the family.
    pairs = (_STREAM, _SEQPACKET, _DGRAM) if sockets.unix else (_STREAM, _SEQPACKET)
    steps += _on(_SOCKETPAIR[column], [*_family(_UNIX, pairs, (0,)), _answer(errno.EAFNOSUPPORT)])
    return _assembled([*steps, *_allowed()])


def _families(sockets: Sockets) -> list[_Step]:
    """The answer to socket(2) by its family, type and protocol."""
    steps: list[_Step] = []
    if sockets.unix:
        steps += _family(_UNIX, (_STREAM, _DGRAM, _SEQPACKET), (0,))
    for family in (_INET, _INET6):
        if sockets.tcp or sockets.network:
            steps += _family(family, (_STREAM,), (0, _TCP))
        if sockets.network:
            steps += _family(family, (_DGRAM,), (0, _UDP))
    if sockets.network:
        steps += _family(_NETLINK, (_RAW, _DGRAM), (_ROUTE,))  # both are the same to netlink
    return [*steps, _answer(errno.EAFNOSUPPORT)]


def _family(family: int, types: Collection[int], protocols: Collection[int]) -> list[_Step]:
    """Allows a socket of the family, one of the types and one of the protocols; else goes on."""
    by_protocol = [_argument(2), *_where(protocols, over=1), *_allowed()]
    by_type = [_argument(1), (_AND, 0, 0, _KINDS), *_where(types, over=len(by_protocol))]
    return [_argument(0), (_IF_EQUAL, 0, len(by_type) + len(by_protocol), family), *by_type, *by_protocol]


def _where(values: Collection[int], *, over: int) -> list[_Step]:
    """Goes on where the loaded value is one of these; else over so many steps."""
    last = len(values) - 1
    return [(_IF_EQUAL, last - at, 0 if at < last else over, value) for at, value in enumerate(values)]


def _all_zero(arguments: Sequence[int]) -> list[_Step]:
    """Goes on where these arguments are 0; else over one step."""
    left = range(2 * len(arguments) - 1, 0, -2)  # what stands behind each of the tests
    return [step for at, rest in zip(arguments, left, strict=True) for step in (_argument(at), (_IF_EQUAL, 0, rest, 0))]


def _unless(values: Sequence[int]) -> list[_Step]:
    """Goes over the answer that allows where the loaded value is one of these."""
    return [*((_IF_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)), *_allowed()]


def _on(number: int | None, steps: Sequence[_Step]) -> list[_Step]:
    """The steps for one call. They end with an answer, since they change what is loaded."""
    return [] if number is None else [(_IF_EQUAL, 0, len(steps), number), *steps]


def _of_machine(name: int) -> list[_Step]:
    return [
        *((_LOAD, 0, 0, _MACHINE_AT), (_IF_EQUAL, 1, 0, name), (_RETURN, 0, 0, _KILL)),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]


def _argument(at: int) -> _Step:
    return (_LOAD, 0, 0, _ARGUMENT_AT[at])


def _answer(error: int) -> _Step:
    return (_RETURN, 0, 0, _ERRNO | error)


def _allowed() -> list[_Step]:
    return [(_RETURN, 0, 0, _ALLOW)]


def _assembled(steps: Iterable[_Step]) -> bytes:
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
