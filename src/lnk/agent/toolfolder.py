"""A tool's folder, `<LNK_HOME>/Agents/.tools/<name>/`, for the small programs beside a tool: what it runs, who does.

`lnk.agent.tools` writes the definition, and knows more of it.

Who runs a tool is told by the kernel's record locks on the file `lock`: they end with their process, and name it.
"""

import fcntl
import json
import os
import re
import stat
import struct
import sys
from typing import Any, Final, NamedTuple

from lnk.errors import Corrupt, Invalid, Missing, Refused, from_os

TOOLS: Final = "Agents/.tools"
DEFINITION: Final = "tool.json"
LOCK: Final = "lock"
ASKS: Final = "asks"
LOG: Final = "log.jsonl"
DEFINITION_BYTES_MAX: Final = 1 << 18

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC

# `struct flock` of fcntl(2).
_LINUX: Final = sys.platform == "linux"
_FLOCK: Final = "hhqqi4x" if _LINUX else "qqihh"
# One byte is the listener's, and of those behind it each session holds the one that its process's number names: so
# all of them are found one by one, and none waits for another.
_LISTENER_AT: Final = 0
_SESSIONS_AT: Final = 1
_SESSIONS: Final = 1 << 32  # more than a process's number can be


class Serving(NamedTuple):
    """A tool that a service serves: its `<dir>`, whose memory it is, and the calls that may be made again."""

    path: str
    agent: str
    repeats: list[str]


class Definition(NamedTuple):
    """What a session needs of a tool: the command, and the calls that do not ask (None: none does).

    Where a `service` serves it, the session is with that, and no command is run.
    """

    name: str
    argv: list[str]
    allow: list[str] | None
    stopped: bool
    service: Serving | None = None


def check_name(name: str) -> None:
    """Raises Invalid for what can be no tool's name."""
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name[:64]!r} is no tool's name: use a-z, 0-9, dashes and underscores, at most 64.")


def folder_of(link_home: str, name: str) -> str:
    """The path of a tool's folder. Raises Invalid."""
    check_name(name)
    return f"{link_home}/{TOOLS}/{name}"


def open_folder(link_home: str, name: str) -> int:
    """A descriptor of a tool's folder. Raises Missing where there is no such tool, Invalid, Refused."""
    path = folder_of(link_home, name)
    try:
        return os.open(path, _FOLDER)
    except FileNotFoundError:
        raise _no_tool(name) from None
    except OSError as error:
        raise from_os(error, f"open {path}") from None


def read_definition(folder: int, name: str) -> Definition:
    """What the tool runs. Raises Missing, Corrupt, and Refused where it is stopped."""
    try:
        fd = os.open(DEFINITION, os.O_RDONLY | os.O_NONBLOCK | _FILE, dir_fd=folder)
    except FileNotFoundError:
        raise _no_tool(name) from None
    except OSError as error:
        raise from_os(error, f"read what the tool {name} runs") from None
    try:
        there = os.fstat(fd)
        if not stat.S_ISREG(there.st_mode) or there.st_uid != os.geteuid():
            raise Refused(f"The definition of the tool {name} is no file of yours; take it away, and define it again.")
        data = os.read(fd, DEFINITION_BYTES_MAX + 1)
    finally:
        os.close(fd)
    try:
        found = _definition(name, json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Corrupt(f"The definition of the tool {name} cannot be understood; define it again.") from None
    if found.stopped:
        how = "`lnk agent memory start` starts it" if name.startswith("memory-") else "start it, then try again"
        raise Refused(f"The tool {name} is stopped; {how}.")
    return found


def _definition(name: str, found: dict[str, Any]) -> Definition:
    argv, allow = found["argv"], found.get("allow", [])
    if not (argv and isinstance(argv, list) and isinstance(allow, list) and found["name"] == name):
        raise TypeError(name)
    for word in (*argv, *allow):
        if b"\0" in word.encode():  # what can be no word of a command, half a character among it, is a ValueError too
            raise ValueError(name)
    said = found.get("service")
    service = None if said is None else Serving(said["path"], said["agent"], said.get("repeats", []))
    if service and not (os.path.isabs(service.path) and isinstance(service.agent, str)):
        raise TypeError(name)
    return Definition(name, argv, allow, bool(found.get("stopped", False)), service)


def _no_tool(name: str) -> Missing:
    return Missing(f"There is no tool {name!r}; `lnk sandbox tool list` lists those that there are.")


# ---------------------------------------------------------------- who runs it


def open_lock(folder: int) -> int:
    """The lock's file. A process that holds a part of it loses it by closing any descriptor of this file."""
    try:
        return os.open(LOCK, os.O_RDWR | os.O_CREAT | _FILE, 0o600, dir_fd=folder)
    except OSError as error:
        raise from_os(error, "open the lock of the tool") from None


def hold_session(lock: int) -> None:
    """From now on until its end this process counts as a session of the tool."""
    fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _SESSIONS_AT + os.getpid())


def hold_listener(lock: int) -> bool:
    """This process is the tool's listener until its end; False where another is."""
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LISTENER_AT)
    except OSError:
        return False
    return True


def listener(lock: int) -> int | None:
    """The number of the process that listens for the tool."""
    found = _holder(lock, _LISTENER_AT, 1)
    return None if found is None else found[0]


def sessions(lock: int) -> list[int]:
    """The numbers of the processes that are sessions of the tool, each once."""
    found: set[int] = set()
    ranges = [(_SESSIONS_AT, _SESSIONS)]
    while ranges:
        start, count = ranges.pop()
        holder = _holder(lock, start, count) if count > 0 else None
        if holder is not None:
            number, at = holder
            found.add(number)
            ranges += [(start, at - start), (at + 1, start + count - at - 1)]
    return sorted(found)


def _holder(lock: int, start: int, count: int) -> tuple[int, int] | None:
    """A process that holds a byte of these, and that byte."""
    if _LINUX:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, count, 0)
        kind, _, at, _, number = struct.unpack(_FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, asked))
    else:
        asked = struct.pack(_FLOCK, start, count, 0, fcntl.F_WRLCK, os.SEEK_SET)
        at, _, number, kind, _ = struct.unpack(_FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else (number, at)
