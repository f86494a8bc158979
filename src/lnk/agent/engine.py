"""A memory engine as Link runs it: found, confined to what the contract gives it, and held to the contract.

Any engine that keeps the contract will do; what it serves Link does not know.
"""

import contextlib
import functools
import math
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from msgspec.structs import replace

from lnk.agent.folders import Agent
from lnk.agent.home import link_home
from lnk.contract.memory import SERVE_BYTES_MAX, Serve, parse_serve
from lnk.errors import Full, Invalid, LinkError, Missing, Refused, Unavailable
from lnk.folder import make_folder_beneath
from lnk.lines import Lines
from lnk.sandbox.launch import Launch, become, launch
from lnk.sandbox.policy import Policy
from lnk.sandbox.programs import Needs, needs
from lnk.sandbox.ways import Tried

ENGINE: Final = "link"
MEMORIES: Final = {"link": "link-memory"}  # how an engine is typed -> its plugin; any other name is its own plugin
PORTABLE: Final = "portable"  # documents of the agent's, beside what engines keep
COMMAND_WAIT_S: Final = 20.0
INSTALL_WAIT_S: Final = 900.0  # it may fetch what it needs
SAID_BYTES_MAX: Final = 4096  # kept of what it says beside; the last line is the one that says what is wrong
UPKEEP_BYTES_MAX: Final = 64 << 20  # of our own engine's answer, which lists files
PART_BYTES: Final = 1 << 16
LOOK_S: Final = 1.0
SPEC: Final = "LNK_MEMORY_SPEC"
NOTES: Final = "LNK_MEMORY_NOTES"
MODEL: Final = "LNK_MEMORY_MODEL"
_ENGINE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_STATUSES: Final = {kind.status: kind for kind in LinkError.__subclasses__()}
# What a program in a sandbox may know of where it runs: how text is written, and which time it is.
_TOLD: Final = ("LANG", "LANGUAGE", "TZ")


def check_engine(name: str) -> None:
    """Raises Invalid for what can be no engine's name: it is part of a program's, and of the folder that it keeps."""
    if not _ENGINE.fullmatch(name) or name == PORTABLE:
        raise Invalid(f"{name[:64]!r} is no engine's name: use a-z, 0-9 and dashes, at most 64, as in {ENGINE!r}.")


def program_of(engine: str = ENGINE) -> str:
    """The absolute path of an engine's program. Raises Missing, Invalid."""
    check_engine(engine)
    return program_path(f"lnk-{MEMORIES.get(engine, engine)}")


def program_path(name: str) -> str:
    """Where the program `name` of a plugin lies: beside our own interpreter, else on the PATH. Raises Missing."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    found = beside if os.access(beside, os.X_OK) else shutil.which(name)
    if not found:
        raise Missing(f"The program {name} is not installed beside {sys.executable}, nor on the PATH.")
    return os.path.abspath(found)


def installed(plugin: str) -> str | None:
    """The program of a plugin, where it is installed."""
    try:
        return program_path(f"lnk-{plugin}")
    except Missing:
        return None


class Engine:
    """The engine typed as `name`, for one agent, in the sandbox that `how` says."""

    def __init__(
        self, name: str, agent: Agent, told: Mapping[str, str], environment: Mapping[str, str], how: Tried
    ) -> None:
        """`told`: the `$LNK_MEMORY_…` of its commands. Its state is made where it is not there.

        Raises Missing where its program is not installed, Refused where its state would lie behind a link.
        """
        self.name = name
        self.program = program_of(name)
        self._agent = agent
        self.told = told
        self._environment = environment
        self._how = how
        self._state = agent.state(name)
        make_folder_beneath(agent.folder, os.path.relpath(self._state, agent.folder))

    @functools.cached_property
    def _needed(self) -> Needs:
        """What its program reads, looked up once for all of its commands."""
        return needs(self.program, self._environment)

    def install(self, tell: Callable[[str], None]) -> None:
        """Has it install what it needs, or leave it: with the network, its state to write, and nobody to ask.

        `tell` hears what it says. Raises what its exit status says.
        """
        policy = self._its_own(Policy(writes=(self._state,), network=True), self._spec())
        self._run([self.program, "install"], policy, INSTALL_WAIT_S, tell=tell)

    def command(self, *, meanwhile: Callable[[], object] = lambda: None) -> Serve:
        """How it serves the agent, held to the contract. `meanwhile` is done while it thinks.

        Raises what it refuses, Invalid and Refused for what is no command of its own.
        """
        policy = self._its_own(self._places(), self.told)
        return parse_serve(self._run(self._argv("command"), policy, COMMAND_WAIT_S, meanwhile=meanwhile), self.program)

    def launch(self, serve: Serve, *, port: int | None = None, model: str = "", opening: int | None = None) -> Launch:
        """What to execute to serve it. `model`: the address of its model, at `port` of its own loopback (`opening`)."""
        return launch(self.policy(serve, port=port, model=model), serve.argv, self._how, openings=_all(opening))

    def become(self, serve: Serve, *, port: int | None = None, model: str = "", opening: int | None = None) -> NoReturn:
        """This process becomes the engine that serves it."""
        become(self.policy(serve, port=port, model=model), serve.argv, self._how, openings=_all(opening))

    def places(self, serve: Serve) -> Policy:
        """The agent's folders as it serves them, without what its programs are made of."""
        return self._folders(notes=NOTES in self.told)

    def policy(self, serve: Serve, *, port: int | None = None, model: str = "") -> Policy:
        """What it reaches while it serves."""
        places = replace(
            self._places(serve.programs or (), notes=NOTES in self.told),
            # One that finds its model itself reaches the runtimes of this machine, wherever they listen.
            network=bool(serve.models) and serve.model is None,
            ports=_all(port),
        )
        return self._its_own(places, {**self._spec(), MODEL: model})

    def upkeep(
        self, command: str, *flags: str, told: Mapping[str, str], tell: Callable[[str], None]
    ) -> tuple[int, bytes]:
        """The exit status and output of one of our own engine's commands beside the contract, however long it takes.

        `told`: further variables; `tell` hears each line that it says. Raises Full where it says too much.
        """
        policy = self._its_own(self._places(("link-documents",)), {**self.told, **told})
        with self._started([*self._argv(command), *flags], policy) as process:
            heard = _Heard(process, tell, UPKEEP_BYTES_MAX)
            try:
                heard.listen(math.inf)
            finally:
                _kill(process)
        heard.end()
        if len(heard.printed) > UPKEEP_BYTES_MAX:
            raise Full(f"{self.program} {command} printed more than {UPKEEP_BYTES_MAX:,} bytes, and was ended.")
        return process.returncode, heard.printed

    # ------------------------------------------------------------ what it reaches

    def _argv(self, command: str) -> list[str]:
        return [self.program, command, self._agent.home, self._state, self._agent.own]

    def _folders(self, *, notes: bool = False) -> Policy:
        """The agent's folders, as the contract opens them."""
        reads = [self._agent.home, f"{self._agent.own}/chats", f"{self._agent.own}/skills"]
        if documents := self._agent.documents:
            if os.path.realpath(documents) != documents:
                raise Refused(
                    f"{documents} is reached by a link; write the folder itself as `documents` in agent.toml."
                )
            reads.append(documents)
        return Policy(
            reads=tuple(reads),
            writes=(self._state, *([os.path.dirname(self._agent.notes)] if notes else [])),
            # An agent whose documents lie above Link's folder reads no other agent's.
            hidden=(
                os.path.dirname(self._agent.folder),
                os.path.realpath(f"{link_home(self._environment)}/Agents"),
            ),
        )

    def _places(self, programs: Sequence[str] = (), *, notes: bool = False) -> Policy:
        """The same with the plugins' programs that are installed."""
        driver = [f"{self._agent.store}-store"] if self._agent.store else []
        return with_plugins(self._folders(notes=notes), (*programs, *driver), self._environment)

    def _its_own(self, policy: Policy, variables: Mapping[str, str]) -> Policy:
        """The same with the engine's own program, and its whole environment."""
        told = {**self.named(), **variables}
        return with_engine(policy, self.program, self._needed, self._environment, home=self._state, told=told)

    def named(self) -> dict[str, str]:
        """What names the agent to the driver that keeps its conversations, where one does."""
        agent = self._agent
        return {"LNK_AGENT": agent.name, "LNK_AGENT_ID": agent.id, "LNK_OWNER": agent.owner} if agent.store else {}

    def _spec(self) -> dict[str, str]:
        return {key: value for key, value in self.told.items() if key == SPEC}

    # ------------------------------------------------------------ running it

    def _started(self, argv: Sequence[str], policy: Policy) -> "subprocess.Popen[bytes]":
        made = launch(policy, argv, self._how)
        try:
            return subprocess.Popen(
                made.argv,
                env=made.environment,
                pass_fds=made.fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=made.folder,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is ours: all of it is ended
            )
        except OSError as error:
            raise Missing(f"Could not start {made.argv[0]}: {error.strerror}.") from None
        finally:
            made.close()

    def _run(
        self,
        argv: Sequence[str],
        policy: Policy,
        wait_s: float,
        *,
        tell: Callable[[str], None] = lambda _: None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> bytes:
        """What a command of the contract prints. Raises the kind of error that its exit status says, in its words."""
        said = f"{self.program} {argv[1]}"
        with self._started(argv, policy) as process:
            heard = _Heard(process, tell, SERVE_BYTES_MAX)
            try:
                meanwhile()
                heard.listen(time.monotonic() + wait_s)
            except (TimeoutError, subprocess.TimeoutExpired):
                raise Unavailable(f"{said} did not end within {wait_s:g} s.") from None
            finally:
                _kill(process)
        if process.returncode and len(heard.printed) <= SERVE_BYTES_MAX:
            raise _STATUSES.get(process.returncode, Unavailable)(
                heard.refusal() or f"{said} ended with status {process.returncode}."
            )
        heard.end()
        return heard.printed


def with_plugins(policy: Policy, plugins: Sequence[str], environment: Mapping[str, str]) -> Policy:
    """The policy with what the programs of those plugins are made of that are installed."""
    needed = [needs(path, environment) for path in map(installed, dict.fromkeys(plugins)) if path]
    return replace(
        policy,
        programs=(*policy.programs, *(part for each in needed for part in each.programs)),
        hidden=(*policy.hidden, *(part for each in needed for part in each.hidden)),
    )


def with_engine(
    policy: Policy,
    program: str,
    needed: Needs,
    environment: Mapping[str, str],
    *,
    home: str,
    told: Mapping[str, str],
) -> Policy:
    """The policy with what the engine's program is made of, and its environment: its `home`, and what it is `told`."""
    known = {key: value for key, value in environment.items() if key in _TOLD or key.startswith("LC_")}
    path = f"{os.path.dirname(program)}:/usr/local/bin:/usr/bin:/bin"
    # What an engine leaves in its home is no part of the next session's program.
    variables = {"PATH": path, "HOME": home, "PYTHONNOUSERSITE": "1", **known, **needed.environment, **told}
    return replace(
        policy,
        programs=(*needed.programs, *policy.programs),
        hidden=(*needed.hidden, *policy.hidden),
        environment=variables,
        folder=home,
    )


def _all(number: int | None) -> tuple[int, ...]:
    return () if number is None else (number,)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """The command, where it has not ended, and all that it started that is in its session."""
    if process.returncode is None:  # else its number may be another's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


class _Heard:
    """What a command prints, at most so much of it, and what it says beside, line by line."""

    def __init__(self, process: "subprocess.Popen[bytes]", tell: Callable[[str], None], limit: int) -> None:
        assert process.stdout and process.stderr
        self._process = process
        self._tell = tell
        self._limit = limit
        self._ends = {process.stdout.fileno(): self._print, process.stderr.fileno(): self._say}
        self._said = Lines(SAID_BYTES_MAX)
        self._last = ""
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def printed(self) -> bytes:
        """What it printed, of too much the beginning."""
        return b"".join(self._parts)

    def listen(self, until: float) -> None:
        """Until it has ended, or printed too much. Raises TimeoutError, subprocess.TimeoutExpired."""
        poll = select.poll()
        for fd in self._ends:
            poll.register(fd, select.POLLIN)
        while self._ends and self._size <= self._limit:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            for fd, _ in poll.poll(min(left, LOOK_S) * 1000):
                if part := os.read(fd, PART_BYTES):
                    self._ends[fd](part)
                else:
                    poll.unregister(fd)
                    del self._ends[fd]
        if not self._ends:
            self._say(b"\n")  # a last line that it did not end
            self._process.wait(None if until == math.inf else max(0.0, until - time.monotonic()))

    def end(self) -> None:
        """What is held back as a refusal is told too."""
        if self._last:
            self._tell(self._last)

    def refusal(self) -> str:
        """Its last words, without the program's name."""
        return self._last.partition(": ")[2] or self._last

    def _print(self, part: bytes) -> None:
        self._parts.append(part[: self._limit + 1 - self._size])
        self._size += len(part)

    def _say(self, part: bytes) -> None:
        for line in self._said.feed(part):
            if isinstance(line, bytes) and line.strip():
                if self._last:
                    self._tell(self._last)
                self._last = line.decode("utf-8", "replace").strip()
