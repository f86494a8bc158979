"""The arguments of bubblewrap for a plan. It starts nothing but `bwrap --help`, once for each program."""

import functools
import os
import subprocess
from typing import Final

from lnk.sandbox.places import Places
from lnk.sandbox.plan import SHOWN, Kind, Step
from lnk.sandbox.policy import Policy

HOSTNAME: Final = "sandbox"
BY_FD: Final = "--ro-bind-fd"  # since 0.10, and in Debian's 0.8
NO_NAME_SPACES: Final = "--disable-userns"  # since 0.8
SIZE: Final = "--size"
TEMPORARY_BYTES_MAX: Final = 1 << 30  # it is the machine's memory
HELP_WAIT_S: Final = 10
_BIND: Final = {Kind.READ: "--ro-bind", Kind.RUN: "--ro-bind", Kind.SOCKET: "--ro-bind", Kind.WRITE: "--bind"}
_MADE: Final = {Kind.PROCESSES: "--proc", Kind.DEVICES: "--dev", Kind.TEMPORARY: "--tmpfs"}


@functools.cache
def features(program: str) -> frozenset[str]:
    """The options that this bubblewrap knows. Raises OSError where it cannot be started."""
    try:
        said = subprocess.run(
            [program, "--help"], env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=HELP_WAIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(0, f"it does not answer within {HELP_WAIT_S} s") from error
    words = (said.stdout + said.stderr).decode("utf-8", "replace").split()
    return frozenset(word for word in words if word.startswith("--"))


def arguments(policy: Policy, places: Places, known: frozenset[str], *, calls: int) -> list[str]:
    """All that stands before the program; `calls` is the descriptor of its filter.

    Afterwards `places` holds the descriptors that these arguments name, and no other: what bubblewrap is not told of it
    would leave to the program.
    """
    told = ["--unshare-all", "--unshare-user", *([NO_NAME_SPACES] if NO_NAME_SPACES in known else [])]
    told += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", HOSTNAME, "--clearenv"]
    told += ["--share-net"] if policy.network else []
    for name, value in policy.environment.items():
        told += ["--setenv", name, value]
    emptied = []
    for step in places.steps:
        if step.kind is Kind.LINK:
            told += ["--symlink", step.to, step.path]
        elif step.kind is Kind.HIDE:
            told += _hidden(step.path, places)
            emptied += [step.path] if step.path in places.folders else []
        elif step.kind in SHOWN:
            told += _shown(step, places, by_fd=BY_FD in known)
        else:
            if step.kind is Kind.TEMPORARY and SIZE in known:
                told += [SIZE, str(TEMPORARY_BYTES_MAX)]
            told += [_MADE[step.kind], step.path]
    for path in emptied:  # after what lies beneath was put there
        told += ["--remount-ro", path]
    # The kernel lets root write its settings (/proc/sys) by its number alone, without any capability.
    told += ["--remount-ro", "/proc", "--remount-ro", "/"]
    return [*told, "--chdir", policy.folder, "--seccomp", str(calls)]


def _hidden(path: str, places: Places) -> list[str]:
    if path in places.folders:
        places.let_go(path)
        return ["--tmpfs", path]
    places.let_go(path)
    places.fds[path] = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return ["--ro-bind-data", str(places.fds[path]), path]


def _shown(step: Step, places: Places, *, by_fd: bool) -> list[str]:
    option = _BIND[step.kind]
    if by_fd:
        return [f"{option}-fd", str(places.fds[step.path]), step.path]
    places.let_go(step.path)
    return [option, step.path, step.path]
