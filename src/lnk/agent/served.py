"""What an owner's service serves, for the small programs beside it: `<dir>`, which is `Agents/.memory/<owner>`.

`agents/<agent id>.json` says what each agent is served with (`lnk.agent.shared` writes it). The service of an engine
listens at `<engine>-<generation>.sock` and holds `<engine>-<generation>.lock` for life. The generation is made of what
all of these files say, so that a change to the agents served names a new socket.
"""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from lnk.errors import Corrupt, Missing, Refused, Unavailable, from_os

PLACE: Final = "Agents/.memory"
AGENTS: Final = "agents"
LOG: Final = "service.log"
ENTRY_BYTES_MAX: Final = 1 << 18
AGENTS_MAX: Final = 1000
_ENDING: Final = ".json"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_MARK_BYTES: Final = 8
_OTHERS: Final = 0o067  # a group may go through it, to the socket of a service that has a peer
_NUMBER_CHARS: Final = 9  # of a part of a release's number
_WORDS_BYTES: Final = 1 << 13
_TRIES: Final = 100  # a lock goes with a service that ends, which is far slower than a try


class Entry(NamedTuple):
    """What an agent is served with: the file's bytes, and what it says."""

    data: bytes
    said: dict[str, Any]

    @property
    def engine(self) -> str:
        """As it is typed."""
        return str(self.said["engine"])


def open_place(path: str) -> int:
    """A descriptor of `<dir>`. Raises Missing, and Refused where it is another's, or others may enter it."""
    try:
        place = os.open(path, _FOLDER)
    except FileNotFoundError:
        raise Missing(f"There is no {path}; `lnk agent memory start` serves a memory from there.") from None
    except OSError as error:
        raise from_os(error, f"open {path}") from None
    found = os.fstat(place)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & _OTHERS:
        os.close(place)
        raise Refused(f"{path} is no folder that is this user's alone; make it yours and closed, with mode 700.")
    return place


def read_entry(place: int, agent: str) -> Entry:
    """What the agent of that id is served with. Raises Missing, Corrupt."""
    try:
        return _read(f"{AGENTS}/{agent}{_ENDING}", place, agent)
    except FileNotFoundError:
        raise Missing(f"No agent {agent[:64]!r} is served here; `lnk agent memory start` serves one.") from None
    except OSError as error:
        raise from_os(error, f"read what the agent {agent[:64]!r} is served with") from None


def read_entries(place: int, engine: str) -> dict[str, Entry]:
    """What each agent is served with that this engine serves, by its id; one that is not to be understood is left out.

    Raises Refused and so on where they cannot be listed.
    """
    try:
        folder = os.open(AGENTS, _FOLDER, dir_fd=place)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise from_os(error, "list the agents that are served") from None
    found = {}
    try:
        for name in sorted(os.listdir(folder))[:AGENTS_MAX]:
            agent = name.removesuffix(_ENDING)
            if name.startswith(".") or agent == name:
                continue
            try:
                entry = _read(name, folder, agent)
            except (OSError, Corrupt):
                continue
            if entry.engine == engine:
                found[agent] = entry
    except OSError as error:
        raise from_os(error, "list the agents that are served") from None
    finally:
        os.close(folder)
    return found


def generation(engine: str, entries: Mapping[str, Entry]) -> str:
    """The name of the service that serves exactly these."""
    try:
        from _blake2 import blake2b  # hashlib loads a library of 4 MB for it
    except ImportError:
        from hashlib import blake2b

    mark = blake2b(digest_size=_MARK_BYTES)
    for agent, entry in sorted(entries.items()):
        name = os.fsencode(agent)
        mark.update(len(name).to_bytes(4, "big") + name + len(entry.data).to_bytes(4, "big") + entry.data)
    return f"{engine}-{mark.hexdigest()}"


def _read(path: str, at: int, agent: str) -> Entry:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _FILE, dir_fd=at)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise Corrupt(f"What the agent {agent[:64]!r} is served with is no file of yours; start its memory again.")
        data = os.read(fd, ENTRY_BYTES_MAX + 1)
    finally:
        os.close(fd)
    try:
        said = json.loads(data)
        if said["agent"] == agent and isinstance(said["engine"], str) and len(data) <= ENTRY_BYTES_MAX:
            return Entry(data, said)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise Corrupt(f"What the agent {agent[:64]!r} is served with is damaged; `lnk agent memory start` makes it again.")


# ---------------------------------------------------------------- what it was made from


def stamp(path: str) -> str:
    """What a file is now, so far as can be told without reading it; empty where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # the latter of what can be no path
        return ""
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def is_current(entry: Entry, version: str) -> bool:
    """Whether the files that it was made from, and Link, are what they were, and the folders that are written there."""
    made_of = entry.said.get("made_of")
    # What a newer Link made stays: two that are used by turns would else make it anew each time.
    if not isinstance(made_of, dict) or _release(entry.said.get("link")) < _release(version):
        return False
    return are_in_place(entry) and all(isinstance(path, str) and stamp(path) == was for path, was in made_of.items())


def place_of(path: str) -> str:
    """Which folder is at a path; empty where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    return f"{found.st_dev} {found.st_ino}"


def are_in_place(entry: Entry) -> bool:
    """Whether the agent's folders are those that they were: its engine holds them, whatever has their name by now."""
    folders = entry.said.get("folders")
    if not isinstance(folders, dict):
        return False
    missing = any(not place_of(path) for path in entry.said.get("writes", ()) if isinstance(path, str))
    return not missing and all(isinstance(path, str) and place_of(path) == was for path, was in folders.items())


def _release(version: object) -> tuple[int, ...]:
    """A release's number, by which a later one is greater: as far as it consists of numbers."""
    found: list[int] = []
    for part in str(version).split("."):
        if not (part.isascii() and part.isdigit()):
            break
        found.append(int(part[:_NUMBER_CHARS]))
    return tuple(found)


# ---------------------------------------------------------------- locks


@contextlib.contextmanager
def start_lock(place: int) -> Iterator[bool]:
    """Holds what lets one session of many start the service, so that the others only wait; False where another does.

    It is a lock of the folder `agents`, so that nothing stays behind.
    """
    try:
        folder = os.open(AGENTS, _FOLDER, dir_fd=place)
    except OSError as error:
        raise from_os(error, "open the agents that are served") from None
    try:
        yield _is_locked(folder)
    finally:
        os.close(folder)


def _is_locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def take_lock(place: int, name: str) -> int | None:
    """Holds `<name>.lock` until this process ends, by a descriptor that is given on; None where another holds it.

    Raises Unavailable and so on where it cannot be held. The file goes with whoever held it, so that it is looked
    whether what was locked still has its name.
    """
    for _ in range(_TRIES):
        try:
            lock = os.open(f"{name}.lock", os.O_RDWR | os.O_CREAT | _FILE, 0o600, dir_fd=place)
        except OSError as error:
            raise from_os(error, f"open {name}.lock") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(f"{name}.lock", dir_fd=place, follow_symlinks=False)):
                return lock
        except BlockingIOError:
            os.close(lock)
            return None
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(lock)
            raise Unavailable(f"{name}.lock cannot be locked: {error.strerror}.") from None
        os.close(lock)
    raise Unavailable(f"{name}.lock goes as often as it is made; look who takes it away, then try again.")


# ---------------------------------------------------------------- the log


def last_words(place: int) -> str:
    """What an engine said last, by the service's log; empty where that is not known."""
    try:
        fd = os.open(LOG, os.O_RDONLY | os.O_NONBLOCK | _FILE, dir_fd=place)
    except OSError:
        return ""
    try:
        size = os.fstat(fd).st_size
        lines = os.pread(fd, _WORDS_BYTES, max(0, size - _WORDS_BYTES)).splitlines()
    finally:
        os.close(fd)
    for line in reversed(lines):
        try:
            if said := json.loads(line).get("said"):
                return str(said).rstrip(".")
        except (ValueError, AttributeError):
            continue
    return ""
