"""Calls that wait for the owner: a file each in `asks/` of the tool's folder, held by the proxy that waits.

An ask `<id>.json` is answered by being renamed, once: to `<id>.allow` or `<id>.deny`. It lives as long as its proxy,
which holds the kernel lock of the file; what a dead one left is taken away by whoever meets it.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from lnk.agent.gate import ALLOW, DENY, EXPIRED, Ask
from lnk.agent.journal import format_time
from lnk.agent.toolfolder import ASKS, TOOLS
from lnk.errors import Conflict, Invalid, Missing, from_os

WAIT_S: Final = 600.0  # without an answer a call is refused: nobody is there
ARGUMENTS_BYTES_MAX: Final = 4096  # of a call's arguments that the owner is shown
NAME_CHARS_MAX: Final = 128
_ASK_BYTES_MAX: Final = 1 << 16
_TYPED_BYTES_MAX: Final = 1024
_TRIES: Final = 100  # of names, of which there are three million

_LETTERS: Final = "bcdfghjkmnpqrstvwxyz"  # of these no word comes
_ID = re.compile(f"[{_LETTERS}]{{5}}")
_WAITING: Final = "json"
_ENDINGS: Final = (_WAITING, ALLOW, DENY, "new")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Waiting(NamedTuple):
    """A call that waits for the owner's answer; `arguments` is text for a person, cut where it is long."""

    id: str
    tool: str
    call: str
    thread: str
    time: str
    arguments: str


# ---------------------------------------------------------------- the proxy's side


class _Held(NamedTuple):
    id: str
    fd: int
    until: float


class Asks:
    """The asks of one session. `now` is seconds that only go forward."""

    def __init__(self, folder: int, tool: str) -> None:
        """`folder`: the tool's, open. Raises OSError where there can be no asks in it."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(ASKS, 0o700, dir_fd=folder)
        self._folder = os.open(ASKS, _FOLDER, dir_fd=folder)
        self._tool = tool
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def numbers(self) -> list[int]:
        """Those that are not over."""
        return list(self._held)

    def put(self, ask: Ask, now: float) -> Waiting:
        """The owner is asked from now on. Raises OSError."""
        for _ in range(_TRIES):
            waiting = self._waiting(ask)
            if (fd := self._make(waiting)) is not None:
                self._held[ask.number] = _Held(waiting.id, fd, now + WAIT_S)
                return waiting
        raise OSError(f"no ask could be made in {_TRIES} tries")

    def look(self, now: float) -> list[tuple[int, str]]:
        """What has come of asking: the ask's number, and ALLOW, DENY or EXPIRED. It is over then."""
        found = []
        for number, held in list(self._held.items()):
            verdict = self._verdict(held)
            if verdict is None and now >= held.until:
                verdict = self._take_back(held) or EXPIRED
            if verdict is not None:
                self._forget(number)
                found.append((number, verdict))
        return found

    def withdraw(self, number: int) -> str | None:
        """The owner need not answer any more; what they have answered already, else None."""
        held = self._held.get(number)
        if held is None:
            return None
        verdict = self._take_back(held)
        self._forget(number)
        return verdict

    def close(self) -> None:
        """All of them are withdrawn."""
        for number in list(self._held):
            self.withdraw(number)
        os.close(self._folder)

    def _waiting(self, ask: Ask) -> Waiting:
        name = "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(5))
        call = visible(ask.call)
        call = call if len(call) <= NAME_CHARS_MAX else f"{call[:NAME_CHARS_MAX]}…"
        return Waiting(name, self._tool, call, ask.thread, format_time(time.time()), shown(ask.arguments))

    def _make(self, waiting: Waiting) -> int | None:
        """The file, whole and locked before it has its name; None where its name is taken, or it was swept away."""
        fresh = f"{waiting.id}.new"
        fd = -1
        try:
            fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._folder)
            fcntl.flock(fd, fcntl.LOCK_EX)
            data = json.dumps(waiting._asdict()).encode()
            if os.write(fd, data) < len(data):  # nobody could read it, and so nobody answer
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.link(fresh, f"{waiting.id}.{_WAITING}", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            if isinstance(error, FileExistsError | FileNotFoundError):
                return None
            raise
        finally:
            if fd >= 0:
                _unlink(self._folder, fresh)
        return fd

    def _verdict(self, held: _Held) -> str | None:
        """The owner's answer: the file under another name, and that very file."""
        ours = os.fstat(held.fd)
        for verdict in (ALLOW, DENY):
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(f"{held.id}.{verdict}", dir_fd=self._folder, follow_symlinks=False)
                if os.path.samestat(found, ours):
                    return verdict
        return None

    def _take_back(self, held: _Held) -> str | None:
        """It can be answered no more; what it was answered before that."""
        try:
            os.unlink(f"{held.id}.{_WAITING}", dir_fd=self._folder)
        except FileNotFoundError:
            return self._verdict(held) or DENY  # somebody took it away: that is no yes
        return None

    def _forget(self, number: int) -> None:
        held = self._held.pop(number)
        for ending in _ENDINGS:
            _unlink(self._folder, f"{held.id}.{ending}")
        os.close(held.fd)


# ---------------------------------------------------------------- the owner's side


def waiting(link_home: str) -> list[Waiting]:
    """The calls of every tool that wait for an answer, oldest first. What dead proxies left is taken away."""
    found = [each for folder in _folders(link_home) for each in _waiting_in(folder)]
    return sorted(found, key=lambda each: (each.time, each.id))


def answer(link_home: str, name: str, *, allow: bool) -> Waiting:
    """The call that waits under this id is allowed or denied, on the disk when this returns. What it was.

    Raises Conflict where it is answered already, Missing where there is none such, Invalid.
    """
    name = name.lower()
    if not _ID.fullmatch(name):
        raise Invalid(f"{name[:32]!r} is no ask's id, which is five letters; `lnk agent asks` shows them.")
    for folder in _folders(link_home):
        for each in _waiting_in(folder):
            if each.id == name:
                _rename(folder, name, ALLOW if allow else DENY)
                return each
        if any(_exists(folder, f"{name}.{verdict}") for verdict in (ALLOW, DENY)):
            raise Conflict(f"The ask {name} is answered already, and stays as it was answered.")
    raise Missing(
        f"No call waits under {name}: it was answered, given up, or was too old; `lnk agent asks` lists them."
    )


def _rename(folder: int, name: str, verdict: str) -> None:
    """Order: the rename, of which one alone succeeds, then the folder's sync."""
    try:
        os.rename(f"{name}.{_WAITING}", f"{name}.{verdict}", src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except FileNotFoundError:
        raise Conflict(f"The ask {name} is answered or given up already, and stays as it is.") from None
    except OSError as error:
        raise from_os(error, f"answer the ask {name}") from None


def _folders(link_home: str) -> Iterator[int]:
    """The folder of asks of each tool, open for as long as it is looked at."""
    tools = f"{link_home}/{TOOLS}"
    try:
        names = sorted(os.listdir(tools))
    except FileNotFoundError:
        return
    except OSError as error:
        raise from_os(error, f"list {tools}") from None
    for name in names:
        with contextlib.suppress(OSError):
            fd = os.open(f"{tools}/{name}/{ASKS}", _FOLDER)
            try:
                yield fd
            finally:
                os.close(fd)


def _waiting_in(folder: int) -> list[Waiting]:
    found = []
    for file in os.listdir(folder):
        name, _, ending = file.partition(".")
        if not _ID.fullmatch(name) or ending not in _ENDINGS:
            continue
        with contextlib.suppress(OSError, ValueError, TypeError):
            text = _of_living(folder, file)
            if text is not None and ending == _WAITING:
                found.append(Waiting(**json.loads(text)))
    return found


def _of_living(folder: int, file: str) -> bytes | None:
    """What a file holds whose proxy lives; one of a dead proxy's is taken away."""
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(fd, _ASK_BYTES_MAX)
    else:
        _unlink(folder, file)
        return None
    finally:
        os.close(fd)


def _exists(folder: int, file: str) -> bool:
    try:
        os.stat(file, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _unlink(folder: int, file: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(file, dir_fd=folder)


# ---------------------------------------------------------------- what a person is shown


def shown(arguments: Any) -> str:
    """A call's arguments for a person: JSON with whatever cannot be seen made visible, cut where it is long."""
    data = visible(json.dumps(arguments, ensure_ascii=False)).encode()
    if len(data) <= ARGUMENTS_BYTES_MAX:
        return data.decode()
    return f"{data[:ARGUMENTS_BYTES_MAX].decode(errors='ignore')}… (cut: {len(data):,} bytes in all)"


def visible(text: str) -> str:
    """`text` with each character that a terminal may act on, or does not show, as its number."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


class Terminal:
    """The terminal from which a proxy was started: it asks there too, one call at a time."""

    def __init__(self) -> None:
        self._fd = -1
        self._asked: list[tuple[int, str]] = []

    @property
    def fd(self) -> int:
        """A descriptor that can be read once the owner has typed a line; -1 where nothing is asked."""
        return self._fd

    def put(self, number: int, waiting: Waiting) -> bool:
        """Asks, where there is a terminal in front of which somebody sits; False where there is none."""
        if not self._is_ours():
            return False
        text = f"Allow {waiting.call} of {waiting.tool} with {waiting.arguments}? [y/N] "
        self._asked.append((number, text))
        if len(self._asked) == 1:
            self._ask()
        return bool(self._asked)

    def read(self) -> tuple[int, str]:
        """What was answered: the ask's number, and ALLOW or DENY."""
        try:
            line = os.read(self._fd, _TYPED_BYTES_MAX)
        except OSError:
            line = b""
        number, _ = self._asked.pop(0)
        self._ask()
        return number, ALLOW if line.strip().lower() in (b"y", b"yes") else DENY

    def withdraw(self, number: int) -> None:
        """It is answered elsewhere, or wanted no more."""
        first = bool(self._asked) and self._asked[0][0] == number
        self._asked = [each for each in self._asked if each[0] != number]
        if first:
            self._say("(no answer needed any more)\n")
            self._ask()

    def _ask(self) -> None:
        """The first of those that wait, or none."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if not self._asked:
            return
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            self._asked.clear()
            return
        import termios  # where somebody is asked, only

        with contextlib.suppress(termios.error):
            termios.tcflush(self._fd, termios.TCIFLUSH)  # what was typed before the question is no answer to it
        self._say(self._asked[0][1])

    def _is_ours(self) -> bool:
        try:
            return os.isatty(2) and os.tcgetpgrp(2) == os.getpgrp()
        except OSError:
            return False

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


class Owner:
    """The owner as a session asks them: by a file that any terminal can answer, and at the session's own."""

    def __init__(self, folder: int, tool: str) -> None:
        """`folder`: the tool's, open. Raises OSError where nobody can be asked."""
        self._asks = Asks(folder, tool)
        self._terminal = Terminal()

    @property
    def fd(self) -> int:
        """As the terminal's."""
        return self._terminal.fd

    def waits(self) -> bool:
        """Whether an answer of theirs is to be looked for."""
        return len(self._asks) > 0

    def numbers(self) -> list[int]:
        """Those asks that are not over."""
        return self._asks.numbers()

    def put(self, ask: Ask, now: float) -> Waiting | None:
        """They are asked from now on; where that is at no terminal, what somebody has to tell them. Raises OSError."""
        waiting = self._asks.put(ask, now)
        return None if self._terminal.put(ask.number, waiting) else waiting

    def said(self, typed: bool, now: float) -> list[tuple[int, str]]:
        """What has come of asking, by the ask's number. `typed`: there is a line to read at the terminal."""
        found = []
        if typed:
            number, verdict = self._terminal.read()
            found.append((number, self._asks.withdraw(number) or verdict))
        return found + self._asks.look(now)

    def withdraw(self, number: int) -> None:
        """They need not answer any more."""
        self._asks.withdraw(number)
        self._terminal.withdraw(number)

    def close(self) -> None:
        """Nothing is asked any more."""
        self._asks.close()
