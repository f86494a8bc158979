"""The way without name spaces: Landlock and seccomp, which the process that becomes the program puts on itself.

Landlock only gives: what is hidden beneath a place is kept back by giving each other child of the place, and the place
itself to be listed alone. Folders of Python's packages are given whole, since what Python sees there and cannot read
ends a program that could do without it.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from lnk import confine
from lnk.errors import Full, Refused
from lnk.folder import open_beneath
from lnk.sandbox.places import Places, open_place
from lnk.sandbox.plan import SHOWN, Kind, Step, beneath, nested
from lnk.sandbox.policy import Policy
from lnk.sandbox.programs import SITES

CHILDREN_MAX: Final = 16_384  # of the folders on the way to what is hidden
_RIGHTS: Final = {Kind.READ: confine.READ, Kind.RUN: confine.RUN, Kind.WRITE: confine.WRITE}
# Of the machine's own: what a sandbox with devices of its own would have, as far as no program can harm with it.
_DEVICES: Final = {
    "/dev/null": confine.WRITE,
    "/dev/zero": confine.READ,
    "/dev/full": confine.WRITE,
    "/dev/random": confine.READ,
    "/dev/urandom": confine.READ,
}
_HELD: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC


def command(fds: Sequence[int], folder: str, given: Sequence[int]) -> list[str]:
    """What stands before the program: our interpreter, told in its code where modules lie, and what `begin` takes."""
    paths = [path for path in sys.path if os.path.isabs(path)]
    code = f"import sys; sys.path[:] = {paths!a}; from {__package__}.landlocked import begin; begin()"
    return [sys.executable, "-I", "-S", "-c", code, *map(str, fds), folder, " ".join(map(str, given))]


def ruleset(policy: Policy, places: Places) -> int:
    """The descriptor of a Landlock ruleset for the plan. Raises Refused for what it cannot hold, Full, OSError.

    The folders on the policy's `PYTHONPATH` may be listed, since Python looks for a package by its folder's names.
    """
    files = confine.Files(network=policy.network)
    try:
        for path, rights in _DEVICES.items():
            with contextlib.suppress(FileNotFoundError):
                _allow(files, open_place(path), rights)
        for path in filter(os.path.isabs, policy.environment.get("PYTHONPATH", "").split(os.pathsep)):
            rights = confine.READ if os.path.basename(path) in SITES else confine.LIST
            with contextlib.suppress(OSError):
                _allow(files, open_place(os.path.realpath(path)), rights)
        inner: dict[Step | None, list[Step]] = {}
        for step, parent in nested(places.steps):
            inner.setdefault(parent, []).append(step)
        for step in places.steps:
            if step.kind in SHOWN:
                _give(files, step, places.fds[step.path], inner.get(step, []))
    except BaseException:
        files.close()
        raise
    return files.fd


def _give(files: confine.Files, step: Step, fd: int, inner: Sequence[Step]) -> None:
    """The rights to one place, but for what is not to be seen of it."""
    for each in inner:
        if step.kind is Kind.WRITE and each.kind is not Kind.RUN:
            raise Refused(
                f"Landlock cannot keep {each.path} back in {step.path}, which may be written; give folders that do not"
                " lie in each other, or install bubblewrap."
            )
    rights = _RIGHTS[step.kind]
    kept_back = [each.path for each in inner if each.kind not in SHOWN and os.path.basename(each.path) not in SITES]
    if not kept_back:
        files.allow(fd, rights)
        return
    files.allow(fd, confine.LIST)
    left = CHILDREN_MAX
    for child in _others(fd, step.path, kept_back):
        left -= 1
        if left < 0:
            raise Full(f"{step.path} has over {CHILDREN_MAX:,} entries beside what is hidden in it; hide all of it.")
        _allow(files, child, rights)


def _others(fd: int, path: str, kept_back: list[str]) -> Iterator[int]:
    """A descriptor of each thing in the folder that is not kept back, and has nothing in it that is."""
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    try:
        with os.scandir(listed) as found:
            names = [each.name for each in found if not each.is_symlink()]
    finally:
        os.close(listed)
    for name in names:
        child = f"{path.rstrip('/')}/{name}"
        inner = [each for each in kept_back if beneath(each, child)]
        if child in inner:
            continue
        try:
            held = open_beneath(fd, name, _HELD)
        except OSError:  # it went meanwhile, or is a link by now
            continue
        if not inner:
            yield held
            continue
        try:
            yield from _others(held, child, inner)
        finally:
            os.close(held)


def _allow(files: confine.Files, fd: int, rights: int) -> None:
    """The rights to what `fd` names, which is closed."""
    try:
        files.allow(fd, rights)
    finally:
        os.close(fd)
