"""The bridge to a tool: an address, `unix:<path>`, at which each connection is one session with it over MCP.

A process listens there, of a session of its own; it is found, and ended, by the kernel's lock that it holds.
"""

import contextlib
import hashlib
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from lnk.agent.listener import ADDRESS_BYTES_MAX, READY, listener_command
from lnk.agent.toolfolder import folder_of, listener, open_folder, open_lock, read_definition, sessions
from lnk.errors import Missing, Refused, Unavailable, from_os
from lnk.models.processes import wait_end

SCHEME: Final = "unix:"
ELSEWHERE: Final = "/tmp"  # where no $XDG_RUNTIME_DIR is: short, and local to the machine
START_S: Final = 10.0  # it listens within 50 ms
STOP_S: Final = 8.0  # a session ends its tool first, for which it takes a second, and the listener waits for its own
KILL_S: Final = 2.0
SESSIONS_STOPPED_MAX: Final = 1000  # sessions that one stop ends: clients that start them again are not raced for ever
_ASK_S: Final = 0.02
_SAID_BYTES_MAX: Final = 1 << 12  # one sentence
_PATH_BYTES_MAX: Final = 107 - len(".new")  # what a socket's address holds, and its name while it is made


def address(link_home: str, name: str, environment: Mapping[str, str] | None = None) -> str:
    """The address of a tool: where its listener is, else where it will be. Raises Invalid, Refused."""
    return SCHEME + (
        _told(link_home, name) or _path(link_home, name, os.environ if environment is None else environment)
    )


def start(link_home: str, name: str, environment: Mapping[str, str]) -> str:
    """The tool's address, at which something listens when this returns.

    Its listener, and every tool that it starts, has this environment. Raises Missing, Refused, Corrupt, Unavailable.
    """
    with _folder(link_home, name) as folder:
        read_definition(folder, name)
    path = _path(link_home, name, environment)
    until = time.monotonic() + START_S
    why = ""
    while time.monotonic() < until:
        if there := _told(link_home, name):
            if os.path.exists(there):
                return SCHEME + there
            _end_listener(link_home, name)  # somebody took its socket away: nobody reaches it
        why = _start(link_home, name, path, environment)
        if why:
            time.sleep(_ASK_S)  # another process is about to listen
    raise Unavailable(f"Nothing listens for the tool {name} after {START_S:g} s: {why or 'its listener ends at once'}.")


def running(link_home: str, name: str) -> bool:
    """Whether something listens for the tool. Raises Invalid."""
    path = _told(link_home, name)
    return path is not None and os.path.exists(path)


def stop(link_home: str, name: str) -> int:
    """Ends the tool's listener, and every session with the tool whoever started it. How many sessions that were.

    Raises Refused for a process of another user, Unavailable where one does not end.
    """
    try:
        with _folder(link_home, name) as folder, _lock(folder) as lock:
            ended = set(sessions(lock))
            end(lambda: _all(listener(lock)))
            for _ in range(SESSIONS_STOPPED_MAX):
                found = sessions(lock)
                if not found:
                    break
                ended.update(found)
                number = found[0]
                end(lambda number=number: [number] if number in sessions(lock) else [])  # type: ignore[misc]
            return len(ended)
    except Missing:
        return 0


# ---------------------------------------------------------------- the processes


def _start(link_home: str, name: str, path: str, environment: Mapping[str, str]) -> str:
    """Starts a listener; empty once it listens, else why it does not."""
    try:
        process = subprocess.Popen(
            listener_command(link_home, name, path),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise from_os(error, f"start the listener of the tool {name}") from None
    assert process.stdout
    with process.stdout as said:
        word = said.read(_SAID_BYTES_MAX)
    if word == READY:
        return ""
    process.wait()
    return word.decode("utf-8", "replace").rstrip(".") or "it ended at once"


def end(found: Callable[[], list[int]]) -> None:
    """The process that `found` gives ends: asked first, then made to. It is asked again once the process is held."""
    for number, seconds in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, KILL_S)):
        for pid in found():
            _tell(pid, number, found)
            if wait_end(pid, lambda: not found(), seconds):
                return
        if not found():
            return
    raise Unavailable(f"The process {found()} of a tool does not end; end it, then try again.")


def _tell(pid: int, number: signal.Signals, found: Callable[[], list[int]]) -> None:
    """The signal, to the process that was meant: its number may be another's by now."""
    if pid <= 0:  # the kernel has no number for it here, and this one would be a group of ours
        raise Unavailable("A process in another container runs the tool; end it there, then try again.")
    try:
        if not hasattr(os, "pidfd_open"):
            os.kill(pid, number)
            return
        held = os.pidfd_open(pid)
        try:
            if pid in found():
                signal.pidfd_send_signal(held, number)
        finally:
            os.close(held)
    except ProcessLookupError:
        return
    except PermissionError:
        raise Refused(f"The process {pid} of the tool is another user's, and is not ended.") from None


def _all(number: int | None) -> list[int]:
    return [] if number is None else [number]


def _end_listener(link_home: str, name: str) -> None:
    with _folder(link_home, name) as folder, _lock(folder) as lock:
        end(lambda: _all(listener(lock)))


@contextlib.contextmanager
def _folder(link_home: str, name: str) -> Iterator[int]:
    folder = open_folder(link_home, name)
    try:
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def _lock(folder: int) -> Iterator[int]:
    lock = open_lock(folder)
    try:
        yield lock
    finally:
        os.close(lock)


# ---------------------------------------------------------------- the address


def _told(link_home: str, name: str) -> str | None:
    """Where the listener that runs said that it listens."""
    try:
        with _folder(link_home, name) as folder, _lock(folder) as lock:
            number, _, path = os.pread(lock, ADDRESS_BYTES_MAX, 0).decode("utf-8", "replace").partition(" ")
            return path if path and number == str(listener(lock)) else None
    except Missing:
        return None


def _path(link_home: str, name: str, environment: Mapping[str, str]) -> str:
    """The socket's path, in a folder that is this user's alone. Raises Refused where it is not."""
    mark = hashlib.sha256(f"{os.path.realpath(link_home)}\0{folder_of(link_home, name)}".encode()).hexdigest()[:16]
    given = environment.get("XDG_RUNTIME_DIR", "")
    folders = [f"{given}/lnk"] if os.path.isabs(given) and os.path.isdir(given) else []
    for folder in (*folders, f"{ELSEWHERE}/lnk-{os.geteuid()}"):
        path = f"{folder}/{mark}.sock"
        if len(os.fsencode(path)) > _PATH_BYTES_MAX:
            continue
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            if folder in folders:
                continue  # it is not ours to write
            raise from_os(error, f"make the folder {folder}") from None
        _check_alone(folder)
        return path
    raise AssertionError(f"{ELSEWHERE} is short")


def _check_alone(folder: str) -> None:
    """Raises Refused where a folder for sockets is another's, or others may enter it, or it is a link."""
    found = os.stat(folder, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid != os.geteuid():
        raise Refused(f"{folder} is no folder that is this user's alone, of mode 700; move it away, then try again.")
