"""The engine's real program, started for a measurement: a session over MCP, its processor time and its memory."""

import gc
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lnk.mcp.client import Program

PROGRAM: Final = [str(Path(sys.executable).parent / "lnk-link-memory")]
# The same program on a file system whose changes the kernel does not tell of: every watch fails as it does there.
SCANNED: Final = [
    sys.executable,
    "-c",
    "import errno, sys\n"
    "from lnk.memory.watch import Watch\n"
    "def refuse(watch, folder):\n"
    "    raise OSError(errno.ENOTSUP, 'scanned for a measurement')\n"
    "Watch.__init__ = refuse\n"
    "from lnk.service.program import main\n"
    "sys.exit(main())",
]


class Session(Program):
    """A session with the engine. What a call refuses ends the measurement."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, name: str, **arguments: object) -> dict[str, object]:
        """The structured answer of a call."""
        answer = self.call(name, arguments)
        if answer.failed:
            raise SystemExit(f"{name} was refused: {answer.text}")
        return dict(answer.structured)

    def settle(self) -> None:
        """Waits until everything that is there is indexed."""
        while "indexed" in self.ask("list", tokens=50):
            pass

    def cpu_s(self) -> float:
        """The processor time of all its threads up to now, in s (clock_getcpuclockid(3))."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def memory_mib(self, what: str = "VmRSS") -> float:
        """A line of /proc/PID/status in MiB: VmRSS, RssAnon or VmHWM."""
        text = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return round(int(text.partition(what + ":")[2].split()[0]) / 1024, 1)


def argv(home: Path, state: Path, program: list[str] = PROGRAM) -> list[str]:
    """The command that serves `home` as an agent's Home, with an agent's folder without conversations beside it.

    By words alone: what measures meaning adds a spec of its own, and the last one counts.
    """
    agent = state / "agent"
    for each in (home / "memory", agent / "chats"):
        each.mkdir(parents=True, exist_ok=True)
    command = [*program, "serve", str(home), str(state / "link"), str(agent), "--notes", str(agent / "notes.md")]
    return [*command, "--spec", '{"model": "none"}']


@contextmanager
def session(home: Path, state: Path, program: list[str] = PROGRAM) -> Iterator[Session]:
    """An open session over `home`."""
    with Session(argv(home, state, program)) as found:
        found.open()
        yield found


@contextmanager
def fresh_state(data: Path) -> Iterator[Path]:
    """An empty folder for an engine's state, gone afterwards."""
    data.mkdir(parents=True, exist_ok=True)
    state = Path(tempfile.mkdtemp(prefix="state-", dir=data))
    try:
        yield state
    finally:
        shutil.rmtree(state, ignore_errors=True)


def children_cpu_s() -> float:
    """The processor time of the children that ended, user and system, in s."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def undisturbed() -> Iterator[None]:
    """No collection of garbage here while a call is timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
