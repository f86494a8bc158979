"""What of a policy is there, held by open descriptors: what is given to a sandbox is what was looked at."""

import errno
import os
import stat
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from lnk.errors import LinkError, Missing, Refused, from_os
from lnk.folder import open_beneath
from lnk.sandbox.plan import Kind, Step, clean, parts, plan
from lnk.sandbox.policy import Policy, check

LINKS_MAX: Final = 40  # on the way to one program, as the kernel has it
_HELD: Final = os.O_RDONLY if not hasattr(os, "O_PATH") else os.O_PATH  # only named: nothing is read by it
_SKIPPED: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)


class Places:
    """The plan of a policy, and a descriptor of every place in it. Use as a context, or `close` it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.fds: dict[str, int] = {}
        self.folders: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptors back; closing twice does no harm."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()

    def let_go(self, path: str) -> None:
        """Give back the descriptor of one."""
        os.close(self.fds.pop(path))

    def given_away(self) -> list[int]:
        """The descriptors, which whoever asks closes now."""
        fds = list(self.fds.values())
        self.fds.clear()
        return fds

    def hold(self, path: str) -> None:
        """Holds the place. Raises OSError where it is not there, or a link is on its way."""
        if path in self.fds:
            return
        self.fds[path] = open_place(path)
        if stat.S_ISDIR(os.fstat(self.fds[path]).st_mode):
            self.folders.add(path)

    def there(self, path: str) -> bool:
        """Whether it could be held. Raises OSError for a fault of the machine."""
        try:
            self.hold(path)
        except OSError as error:
            if error.errno in _SKIPPED:
                return False
            raise
        return True


def open_place(path: str) -> int:
    """A descriptor that names what lies at an absolute path, no link followed. Raises OSError, ELOOP for a link."""
    inner = "/".join(parts(path))
    root = os.open("/", _HELD | os.O_DIRECTORY | os.O_CLOEXEC)
    if not inner:
        return root
    try:
        fd = open_beneath(root, inner, _HELD | os.O_CLOEXEC)
    finally:
        os.close(root)
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return fd


def hold(policy: Policy) -> Places:
    """The places of a policy, and its plan. One to read that is missing, or reached through a link, is left out.

    Raises Invalid for what is no place, Refused and Missing for one to write or a socket that is not there so.
    """
    check(policy)
    links: dict[str, str] = {}
    programs = {real for path in policy.programs if (real := follow(path, links))}
    places = Places()
    try:
        kept = msgspec.structs.replace(
            policy,
            programs=tuple(path for path in sorted(programs) if places.there(path)),
            reads=tuple(path for path in map(clean, policy.reads) if places.there(path)),
            writes=_must(places, policy.writes, "written by"),
            sockets=_must(places, policy.sockets, "reached from"),
            hidden=tuple(path for path in map(os.path.realpath, policy.hidden) if places.there(path)),
        )
        places.steps = plan(kept, links)
        _keep(places)
    except OSError as error:
        places.close()
        raise from_os(error, "look at what the sandbox is to be given") from None
    except LinkError:
        places.close()
        raise
    return places


def follow(path: str, links: dict[str, str]) -> str | None:
    """The real path of a program's file or folder; the links on its way go into `links`. None where it is not there."""
    left = [part for part in reversed(path.split("/")) if part]
    at = ""
    followed = 0
    while left:
        part = left.pop()
        if part in (".", ".."):
            at = at if part == "." else os.path.dirname(at).rstrip("/")
            continue
        here = f"{at}/{part}"
        try:
            to = os.readlink(here)
        except OSError as error:
            if error.errno != errno.EINVAL:
                return None
            at = here
            continue
        followed += 1
        if followed > LINKS_MAX:
            return None
        links[here] = to
        if to.startswith("/"):
            at = ""
        left.extend(part for part in reversed(to.split("/")) if part)
    return at or "/"


def _must(places: Places, paths: Sequence[str], use: str) -> tuple[str, ...]:
    cleaned = tuple(map(clean, paths))
    for path in cleaned:
        try:
            places.hold(path)
        except OSError as error:
            if error.errno == errno.ELOOP:
                say = f"{path} cannot be {use} the sandbox: a link is on its way; give the path without links."
                raise Refused(say) from None
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise Missing(f"{path} is to be {use} the sandbox, and is not there; make it first.") from None
            raise from_os(error, f"give {path} to the sandbox") from None
    return cleaned


def _keep(places: Places) -> None:
    """Only the descriptors that the steps use stay open."""
    used = {step.path for step in places.steps if step.kind is not Kind.LINK}
    for path in list(places.fds):
        if path not in used:
            places.let_go(path)
