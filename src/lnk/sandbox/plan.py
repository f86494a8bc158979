"""From a policy to what is done, in order: a list of steps, parents before children. Pure.

What lies on the disk it is told: which paths are links on the way to programs, and which places are there (`places`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from lnk.errors import Refused
from lnk.sandbox.policy import Policy


class Kind(StrEnum):
    """What a step does with its path."""

    LINK = "link"
    READ = "read"
    RUN = "run"
    WRITE = "write"
    SOCKET = "socket"
    HIDE = "hide"
    PROCESSES = "processes"
    DEVICES = "devices"
    TEMPORARY = "temporary"


class Step(NamedTuple):
    """`to`: where a link leads."""

    kind: Kind
    path: str
    to: str = ""


SHOWN: Final = (Kind.READ, Kind.RUN, Kind.WRITE, Kind.SOCKET)  # what is there as it is outside
MADE: Final = (Step(Kind.PROCESSES, "/proc"), Step(Kind.DEVICES, "/dev"), Step(Kind.TEMPORARY, "/tmp"))
# Of two for one path the later holds.
_ORDER: Final = (Kind.TEMPORARY, Kind.LINK, Kind.READ, Kind.RUN, Kind.WRITE, Kind.SOCKET, Kind.HIDE)


def plan(policy: Policy, links: Mapping[str, str] | None = None) -> list[Step]:
    """The steps, each needed: what its parent gives already is left out.

    `policy`: with what is there only, its programs by their real paths, `links` those on the way to them. Raises
    Refused for what a sandbox has of its own.
    """
    wanted = [
        *(Step(Kind.LINK, path, to) for path, to in (links or {}).items()),
        *_steps(Kind.READ, policy.reads),
        *_steps(Kind.RUN, policy.programs),
        *_steps(Kind.WRITE, policy.writes),
        *_steps(Kind.SOCKET, policy.sockets),
        *_steps(Kind.HIDE, policy.hidden),
    ]
    for step in wanted:
        if beneath(step.path, "/proc") or beneath(step.path, "/dev"):
            raise Refused(f"{step.path} cannot be given to a sandbox, which has processes and devices of its own.")
    held: dict[str, Step] = {step.path: step for step in MADE}
    held.update((step.path, step) for step in sorted(wanted, key=lambda step: _ORDER.index(step.kind)))
    return [step for step, _ in _nested(sorted(held.values(), key=lambda step: parts(step.path)), _needed)]


def nested(steps: Iterable[Step]) -> list[tuple[Step, Step | None]]:
    """Each step of a plan, with the nearest above it."""
    return list(_nested(steps, lambda step, parent: True))


def _nested(steps: Iterable[Step], needed: Callable[[Step, Step | None], bool]) -> Iterator[tuple[Step, Step | None]]:
    """The needed steps, parents first, each with the nearest of them above it; nothing lies beneath a link."""
    open_: list[Step] = []
    for step in steps:
        while open_ and not beneath(step.path, open_[-1].path):
            open_.pop()
        parent = open_[-1] if open_ else None
        if needed(step, parent):
            yield step, parent
            if step.kind is not Kind.LINK:
                open_.append(step)


def parts(path: str) -> tuple[str, ...]:
    """The names on the way: none for the root."""
    return tuple(part for part in path.split("/") if part not in ("", "."))


def clean(path: str) -> str:
    """The same path as steps have it."""
    return "/" + "/".join(parts(path))


def beneath(path: str, folder: str) -> bool:
    """Whether it is that, or lies beneath it."""
    top = parts(folder)
    return parts(path)[: len(top)] == top


def _steps(kind: Kind, paths: Iterable[str]) -> list[Step]:
    return [Step(kind, clean(path)) for path in paths]


def _needed(step: Step, parent: Step | None) -> bool:
    """Whether it changes anything of what its parent gives."""
    shown = parent is not None and parent.kind in SHOWN
    if step.kind in (Kind.LINK, Kind.SOCKET):
        return not shown  # else it is there
    if step.kind is Kind.HIDE:
        return shown
    if parent is None or step in MADE:
        return True
    return parent.kind is not step.kind and not (step.kind is Kind.READ and parent.kind is Kind.RUN)
