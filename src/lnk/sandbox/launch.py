"""From a policy to a process: what to execute so that a program runs as the policy says, in the way that works here."""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NoReturn, Self

import msgspec

from lnk.confine import filters
from lnk.errors import Invalid, NoSandbox, Refused, from_os
from lnk.folder import write_all
from lnk.sandbox import bubblewrap, landlock, listen, macos
from lnk.sandbox.places import hold
from lnk.sandbox.policy import Policy, check
from lnk.sandbox.programs import NETWORK_FILES, interpreter_needs
from lnk.sandbox.way import Tried, Way

STANDARD: Final = 2  # input, output and errors are what a program has
NO_PORT: Final = "Landlock opens a port at every address of the machine, not one opening: no model can be served so."
NO_SOCKETS: Final = "Landlock cannot keep a program to some Unix sockets: install bubblewrap to give it one."


class Launch:
    """What to start: `argv` with `environment`, in `folder`, only `fds` inherited. Use as a context, or `close` it.

    By bubblewrap and Landlock the program ends with the thread that starts it, so let that be one that outlives it.
    """

    def __init__(
        self,
        argv: list[str],
        environment: dict[str, str],
        fds: Sequence[int] = (),
        *,
        folder: str = "/",
        given: Sequence[int] = (),
    ) -> None:
        """`given`: those of `fds` that stay the caller's."""
        self.argv = argv
        self.environment = environment
        self.fds = tuple(fds)
        self.folder = folder
        self._own = [fd for fd in fds if fd not in given]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptors back, once the program is started; closing twice does no harm."""
        while self._own:
            os.close(self._own.pop())


def launch(
    policy: Policy, argv: Sequence[str], tried: Tried, *, openings: Sequence[int] = (), given: Sequence[int] = ()
) -> Launch:
    """How to run `argv`, its first an absolute path, as `policy` says.

    `openings`: for each of the policy's ports our end of a pair of Unix sockets. Before the program starts, a listener
    on the port, of its own loopback, is sent through it (`listen`); where a program has the machine's loopback
    (unconfined, and on macOS), nothing is sent. `given`: descriptors that the program has too.

    Raises Refused where this way cannot hold the policy, Invalid for a policy or a program that is none, Missing for a
    place to write that is not there, NoSandbox where this machine's calls are not known.
    """
    if not argv or not os.path.isabs(argv[0]):
        raise Invalid(f"A sandbox runs a program by its absolute path, not {list(argv[:1])}.")
    if len(openings) > len(policy.ports):
        raise Invalid("An opening is given, and no port that it is for.")
    if tried.way in (Way.NONE, Way.MACOS):
        check(policy)
        before = macos.argv(policy) if tried.way is Way.MACOS else []
        return Launch([*before, *argv], dict(policy.environment), given, folder=policy.folder, given=given)
    if tried.way is not Way.LANDLOCK and tried.program is None:
        raise NoSandbox(f"The way {tried.way} cannot run a program here: {tried.why or 'it was not tried'}.")
    try:
        if tried.program:
            return _by_bubblewrap(policy, argv, tried.program, openings, given)
        return _by_landlock(policy, argv, given)
    except OSError as error:
        raise from_os(error, f"make a sandbox by {tried.program or tried.way}") from None


def become(policy: Policy, argv: Sequence[str], tried: Tried, *, openings: Sequence[int] = ()) -> NoReturn:
    """This process becomes the program, its first three descriptors its own. Raises as `launch` does, and Missing."""
    started = launch(policy, argv, tried, openings=openings)
    keep_open(started.fds)
    # The interpreter ignores these two, and what it becomes would too.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.chdir(started.folder)
        os.execve(started.argv[0], started.argv, started.environment)
    except OSError as error:
        raise from_os(error, f"start {started.argv[0]}") from None


def _by_bubblewrap(
    policy: Policy, argv: Sequence[str], program: str, openings: Sequence[int], given: Sequence[int]
) -> Launch:
    if openings:
        policy, argv = _listening(policy, argv, openings)
    if policy.network:
        policy = msgspec.structs.replace(policy, programs=policy.programs + NETWORK_FILES)
    known = bubblewrap.features(program)
    fds = [_filter(policy, changing=True)]
    try:
        with hold(policy) as places:
            told = bubblewrap.arguments(policy, places, known, calls=fds[0])
            fds.append(_in_memory(told))
            fds += places.given_away()
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    kept = [*openings, *given]
    return Launch([program, "--args", str(fds[1]), "--", *argv], {}, fds + kept, given=kept)


def _listening(policy: Policy, argv: Sequence[str], openings: Sequence[int]) -> tuple[Policy, list[str]]:
    """The same program behind the interpreter that makes its ports, one after the other; both are read."""
    interpreter = os.path.realpath(sys.executable)
    file = listen.__file__
    programs = (*policy.programs, *interpreter_needs(interpreter).programs, file)
    before: list[str] = []
    for opening, port in zip(openings, policy.ports, strict=False):
        before += [interpreter, "-I", "-S", file, str(opening), str(port)]
    return msgspec.structs.replace(policy, programs=programs), [*before, *argv]


def _by_landlock(policy: Policy, argv: Sequence[str], given: Sequence[int]) -> Launch:
    if policy.ports:
        raise Refused(NO_PORT)
    if policy.sockets or policy.listens:
        raise Refused(NO_SOCKETS)
    if policy.network:
        policy = msgspec.structs.replace(policy, programs=policy.programs + NETWORK_FILES)
    fds = [_filter(policy, changing=False)]
    try:
        with hold(policy) as places:
            fds.append(landlock.ruleset(policy, places))
        fds.append(_in_memory([f"{name}={value}" for name, value in policy.environment.items()]))
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return Launch([*landlock.command(fds, policy.folder, given), *argv], {}, [*fds, *given], given=given)


def _filter(policy: Policy, *, changing: bool) -> int:
    """A descriptor of the filter of calls. Raises NoSandbox where it is not known for this machine."""
    sockets = filters.Sockets(
        unix=bool(policy.sockets) or policy.listens, tcp=bool(policy.ports), network=policy.network
    )
    code = filters.for_program(sockets, changing=changing)
    if code is None:
        raise NoSandbox(f"Link cannot confine a program on {os.uname().machine}, whose system calls it does not know.")
    return _given(code)


def _in_memory(words: Sequence[str]) -> int:
    return _given(b"".join(os.fsencode(word) + b"\0" for word in words))


def _given(data: bytes) -> int:
    """A descriptor that gives `data` to whoever inherits it, and to nobody else: no command line shows it."""
    fd = os.memfd_create("lnk", os.MFD_CLOEXEC)
    write_all(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def keep_open(fds: Sequence[int]) -> None:
    """What is executed from now on has the first three descriptors and these, and nothing that was left to us."""
    with os.scandir("/dev/fd") as found:
        numbers = [int(each.name) for each in found]
    for fd in numbers:
        if fd > STANDARD:
            with contextlib.suppress(OSError):  # the one that listed them
                os.set_inheritable(fd, fd in fds)
