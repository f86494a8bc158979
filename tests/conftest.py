"""What the tests share: an agent's folders, the engine's real program, and a session with it over MCP."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lnk.mcp.client import Answer, Program

ENGINE = str(Path(sys.executable).parent / "lnk-link-memory")
LNK = str(Path(sys.executable).parent / "lnk")
LNK_WAIT_S = 60
WORDS_ALONE = str(Path(__file__).parent / "ends" / "words_alone")  # as PYTHONPATH: without the extra `meaning`
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def as_from_a_terminal() -> None:
    """No signal is left alone because whoever started the tests left it alone, as `nohup` and `&` do."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)


class Place:
    """An agent's folders for one test: Home/memory, the agent's own folder, and the engine's state."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "Home"
        self.memory = self.home / "memory"
        self.agent = root / "Agent"
        self.chats = self.agent / "chats"
        self.notes = self.agent / "memory" / "notes.md"
        self.state = self.agent / "memory" / "link"
        for folder in (self.memory, self.chats, self.agent / "skills", self.notes.parent):
            folder.mkdir(parents=True)

    def write(self, path: str, text: str | bytes, *, at: float | None = None) -> Path:
        """A document `memory/…`, a conversation `chats/…` or a skill, as it stands in answers; `at`: its time."""
        file = (self.home if path.startswith("memory/") else self.agent) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        if at is not None:
            os.utime(file, (at, at))
        return file

    def argv(self, *flags: str, notes: bool = True) -> list[str]:
        """The engine's command for these folders; by words alone where no spec says otherwise."""
        named = ["--notes", str(self.notes)] if notes else []
        if "--spec" not in flags:
            named += ["--spec", '{"model": "none"}']
        return [ENGINE, "serve", str(self.home), str(self.state), str(self.agent), *named, *flags]


class Person:
    """Someone at a terminal: their home, their Link folder, their folder for temporary files, and `lnk`.

    They have installed it without the extra `meaning`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home, self.link, self.temporary = root / "person", root / "Link", root / "tmp"
        self.home.mkdir()
        self.temporary.mkdir()
        self.environment = {
            "HOME": str(self.home),
            "LNK_HOME": str(self.link),
            "TMPDIR": str(self.temporary),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": WORDS_ALONE,
        }

    def write(self, path: str, text: str | bytes) -> Path:
        """A file of the person's, given relative to `root`."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    def lnk(
        self, *argv: str | Path, before: list[str] | None = None, env: dict[str, str] | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """`lnk argv`, in `root`, with nothing to read from; `before`: what it is run by."""
        more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        command = [*(before or []), LNK, *map(str, argv)]
        environment = {**self.environment, **(env or {})}
        more.setdefault("cwd", self.root)
        return subprocess.run(command, env=environment, encoding="utf-8", timeout=LNK_WAIT_S, **more)

    def shows(self, *argv: str | Path, **more: Any) -> str:
        """What a command that works prints."""
        done = self.lnk(*argv, **more)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def refused(self, status: int, *argv: str | Path) -> str:
        """The one line that a command says when it does nothing."""
        done = self.lnk(*argv)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1), done
        return done.stderr


class Session(Program):
    """A session with the engine's real program; `search`, `read`, … give the answer, and fail on a refusal."""

    def ask(self, name: str, **arguments: object) -> dict:
        answer = self.call(name, arguments)
        assert not answer.failed, answer.text
        assert msgspec.json.decode(answer.text) == answer.structured
        return answer.structured

    def refused(self, name: str, **arguments: object) -> str:
        answer: Answer = self.call(name, arguments)
        assert answer.failed, answer.text
        return answer.text

    def search(self, query: str, **more: object) -> dict:
        return self.ask("search", query=query, **more)

    def paths(self, query: str, **more: object) -> list[str]:
        """The paths that a search gives, best first."""
        return [result["path"] for result in self.search(query, **more)["results"]]

    def read(self, path: str, **more: object) -> dict:
        return self.ask("read", path=path, **more)

    def list(self, **more: object) -> dict:
        return self.ask("list", **more)

    def links(self, path: str, **more: object) -> dict:
        return self.ask("links", path=path, **more)

    def remember(self, **more: object) -> dict:
        return self.ask("remember", **more)

    def settled(self) -> "Session":
        """Waits until everything that is there is indexed."""
        while "indexed" in self.list(tokens=50):
            pass
        return self


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def open_session() -> Iterator[Callable[..., Session]]:
    """Starts a session with `argv`; all are ended after the test."""
    sessions: list[Session] = []

    def start(argv: list[str], **more: object) -> Session:
        session = Session(argv, **more)
        sessions.append(session)
        session.open()
        return session

    yield start
    for session in sessions:
        session.close()


@pytest.fixture
def session(place: Place, open_session: Callable[..., Session]) -> Callable[[], Session]:
    """Starts a session over `place`, with notes."""
    return lambda *flags: open_session(place.argv(*flags))
