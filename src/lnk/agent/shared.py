"""One engine process for all of an owner's agents: what each is served with, and what that process may reach.

Each agent's is written where the service of its owner finds it (`lnk.agent.served`) when its memory is defined.
"""

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from lnk import __version__
from lnk.agent.bridge import end
from lnk.agent.engine import MODEL, Engine, program_of, with_engine, with_plugins
from lnk.agent.folders import FILE, SANDBOX, SPEC, Agent
from lnk.agent.host import STATUS
from lnk.agent.journal import aside, format_time
from lnk.agent.served import (
    AGENTS,
    ENTRY_BYTES_MAX,
    LOG,
    PLACE,
    Entry,
    generation,
    is_current,
    open_place,
    place_of,
    read_entries,
    read_entry,
    stamp,
)
from lnk.contract.memory import READ_CALLS, Serve, Served
from lnk.contract.shape import Value, format_value, parse
from lnk.errors import Corrupt, Invalid, LinkError, Missing, Refused
from lnk.folder import Folder, make_folder
from lnk.sandbox.places import open_place as open_without_links
from lnk.sandbox.policy import Policy
from lnk.sandbox.programs import needs
from lnk.sockets import connect, process_of

OUR_REPEATS: Final = {"link": READ_CALLS}  # of an engine that we know: its calls that only read
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,63}")
STATUS_S: Final = 2.0
RENEWING: Final = ".renew.lock"
LOG_READ_MAX: Final = 16 << 20
_HOME: Final = "/tmp"  # of the sandbox's own: nothing in it outlives the service


class ServedAgent(Value, frozen=True, kw_only=True):
    """What an agent is served with: its engine's command, the folders that the engine reaches for it, its model.

    `made_of`: the files whose change makes it another, as `served.stamp` has them; `folders`: which folders they are
    that it reaches, as `served.place_of` has them; `link`: the release that made it.
    """

    agent: str
    name: str
    engine: str
    others: bool = False
    link: str
    made: str
    made_of: dict[str, str]
    folders: dict[str, str]
    argv: list[str]
    env: dict[str, str] = {}  # noqa: RUF012  # copied for each value
    model: str | None = None
    plugins: list[str] = []  # noqa: RUF012
    reads: list[str]
    writes: list[str]
    hidden: list[str]


def place_for(link_home: str, owner: str) -> str:
    """The path of `<dir>`, of the service of that owner. Raises Invalid for what can be no folder's name."""
    if not _OWNER.fullmatch(owner):
        raise Invalid(
            f"The owner {owner[:64]!r} cannot have a service; write letters, digits and ._@+- as `owner` in agent.toml."
        )
    return f"{os.path.realpath(link_home)}/{PLACE}/{owner}"


def made_of(agent: Agent, engine: Engine) -> dict[str, str]:
    """The files by which it is decided what the agent is served with, as they are now."""
    return {path: stamp(path) for path in (*(f"{agent.own}/{name}" for name in (FILE, SPEC, SANDBOX)), engine.program)}


def served_with(agent: Agent, engine: Engine, serve: Serve, made_of: dict[str, str], *, others: bool) -> ServedAgent:
    """What the agent is served with from now on; `made_of`: as those files were before they were read."""
    folders = engine.places(serve)
    return ServedAgent(
        agent=agent.id,
        name=agent.name,
        engine=engine.name,
        others=others,
        link=__version__,
        made=format_time(time.time()),
        made_of=made_of,
        folders={path: place_of(path) for path in (*folders.reads, *folders.writes)},
        argv=serve.argv,
        env=engine.named(),
        model=serve.model,
        plugins=[*(serve.programs or ()), *([f"{agent.store}-store"] if agent.store else [])],
        reads=list(folders.reads),
        writes=list(folders.writes),
        hidden=list(folders.hidden),
    )


def read(path: str, agent: str) -> ServedAgent | None:
    """What the agent is served with by the service of `<dir>`; None where it is not, or nobody understands that."""
    try:
        place = open_place(path)
        try:
            return parsed(read_entry(place, agent))
        finally:
            os.close(place)
    except (Missing, Corrupt, Invalid):
        return None


def parsed(entry: Entry) -> ServedAgent:
    """What an entry says. Raises Invalid."""
    return parse(entry.data, ServedAgent, "what an agent is served with")


@contextlib.contextmanager
def renewing(path: str, agent: str) -> Iterator[bool]:
    """One process at a time makes anew what the agent is served with. Whether that is as it should be by now."""
    with Folder.open(f"{path}/{AGENTS}") as folder, folder.alone(RENEWING):
        place = open_place(path)
        try:
            yield is_current(read_entry(place, agent), __version__)
        finally:
            os.close(place)


def write(path: str, served: ServedAgent, *, anew: bool = False) -> bool:
    """It is served so from now on, in `<dir>`. False where it was already, but for when that was made.

    `anew`: by another service than runs, whatever it was.
    """
    had = read(path, served.agent)
    if not anew and had is not None and replace(had, made=served.made) == served:
        return False
    for part in (os.path.dirname(path), path, f"{path}/{AGENTS}"):
        make_folder(part, 0o700)
    with Folder.open(f"{path}/{AGENTS}") as folder, folder.locked():
        name = f"{served.agent}.json"
        folder.replace(name, format_value(served).encode() + b"\n", unless_changed=folder.stat(name))
    return True


def remove(path: str, agent: str) -> None:
    """The agent is served no more; nothing where it is not."""
    with contextlib.suppress(Missing, FileNotFoundError), Folder.open(f"{path}/{AGENTS}") as folder, folder.locked():
        os.unlink(f"{agent}.json", dir_fd=folder.fd)


def remove_everywhere(link_home: str, agent: str) -> None:
    """The agent is served by nobody's service any more: it may have had another owner."""
    top = f"{os.path.realpath(link_home)}/{PLACE}"
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for owner in os.listdir(top):
            remove(f"{top}/{owner}", agent)


def log(path: str, limit: int) -> list[dict[str, Any]]:
    """The last lines of the log of the service in `<dir>`, at most `limit`, oldest first."""
    try:
        with Folder.open(path) as folder:
            data = [folder.read(file, LOG_READ_MAX) or b"" for file in (aside(LOG), LOG)]
    except Missing:
        return []
    found: list[dict[str, Any]] = []
    for line in b"".join(data).splitlines()[-limit:]:
        with contextlib.suppress(ValueError, TypeError):  # a line that a full disk cut short
            found.append(dict(json.loads(line)))
    return found


class Running(Value, frozen=True):
    """A service that runs: the sessions of each agent, since when, the memory of all its processes in bytes (None where
    the system does not tell), the models that are served for it. `current`: new sessions find it. Of one that does not
    answer, `since` is empty.
    """

    name: str
    current: bool
    since: str
    sessions: dict[str, int]
    agents: int
    memory: int | None
    models: list[str]
    pid: int


def running(path: str) -> list[Running]:
    """The services of `<dir>` that run, whichever engine they have, the current ones first."""
    try:
        place = open_place(path)
    except LinkError:
        return []
    try:
        found = []
        for name in sorted(os.listdir(place)):
            stem = name.removesuffix(".sock")
            if stem == name or name.startswith(".") or not (said := _status(place, path, name)):
                continue
            engine = stem.rpartition("-")[0]
            memory = memory_of([said["pid"]])
            found.append(
                Running(
                    name=stem,
                    current=generation(engine, read_entries(place, engine)) == stem,
                    since=said["since"],
                    sessions=said["sessions"],
                    agents=_agents_of(path, stem),
                    memory=memory,
                    models=said["models"],
                    pid=said["pid"],
                )
            )
        return sorted(found, key=lambda one: not one.current)
    finally:
        os.close(place)


def end_all(link_home: str) -> int:
    """No service of this `Link` folder runs any more, whoever its owner is, and their folder is gone. How many ran."""
    top = f"{os.path.realpath(link_home)}/{PLACE}"
    ended = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for owner in os.listdir(top):
            path = f"{top}/{owner}"
            for one in running(path):
                end(lambda path=path, pid=one.pid: [pid] if pid in _pids(path) else [])  # type: ignore[misc]
                ended += 1
        parent, _, name = top.rpartition("/")
        with Folder.open(parent) as folder:
            folder.remove_tree(name)
    return ended


def _agents_of(path: str, name: str) -> int:
    """How many agents the service of that name may have sessions of."""
    try:
        with Folder.open(path) as folder:
            return len(json.loads(folder.read(f"{name}.json", LOG_READ_MAX) or b"{}"))
    except (LinkError, ValueError, TypeError):
        return 0


def _pids(path: str) -> list[int]:
    return [one.pid for one in running(path)]


def _status(place: int, path: str, name: str) -> dict[str, Any] | None:
    """What the service says of itself, no time where it does not answer; None where nobody listens."""
    try:
        stream = socket.socket(fileno=connect(place, path, name).detach())
    except OSError:
        return None
    with stream:
        try:
            stream.settimeout(STATUS_S)
            stream.sendall(STATUS + b"\n")
            with stream.makefile("rb") as heard:
                return dict(json.loads(heard.readline(ENTRY_BYTES_MAX)))
        except TimeoutError:
            return {"pid": process_of(stream), "since": "", "sessions": {}, "models": []}
        except (OSError, ValueError, TypeError):
            return None


def memory_of(pids: list[int]) -> int | None:
    """The bytes that these processes and all beneath them share with nobody; None where the system does not tell."""
    size = 0
    pids = list(pids)
    try:
        for pid in pids:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as held:
                size += sum(int(line.split()[1]) for line in held if line.startswith("Private_"))
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as children:
                    pids += map(int, children.read().split())
    except (OSError, ValueError):
        return None
    return size * 1024


# ---------------------------------------------------------------- the service


class Plan(Value, frozen=True):
    """What a service is to serve: its `name`, the agents that can be, and why the others cannot."""

    name: str
    agents: list[ServedAgent]
    left_out: dict[str, str]


def planned(place: int, engine: str) -> Plan:
    """What the service of that engine serves now. Raises Missing where it is nothing."""
    entries = read_entries(place, engine)
    agents, left_out = [], {}
    for agent, entry in entries.items():
        try:
            agents.append(_usable(parsed(entry)))
        except LinkError as error:
            left_out[agent] = str(error)
    if not agents:
        why = next(iter(left_out.values()), "no agent's memory is started")
        raise Missing(f"There is nothing to serve: {why}")
    return Plan(name=generation(engine, entries), agents=agents, left_out=left_out)


def _usable(served: ServedAgent) -> ServedAgent:
    """The same. Raises Missing, Refused where what it writes is not there: the sandbox of all could not be made."""
    for path in served.writes:
        try:
            os.close(open_without_links(path))
        except OSError as error:
            raise Refused(f"{path} of the agent {served.name} cannot be opened: {error.strerror}.") from None
    return served


def agents_file(agents: Iterable[ServedAgent], models: Mapping[str, str]) -> bytes:
    """`<agents>`: each agent's command, and its variables. `models`: the address of each model that is served."""
    found = {}
    for one in agents:
        told = {**one.env, MODEL: models.get(one.model or "", "")}
        found[one.agent] = Served(argv=one.argv, env=told)
    return format_value(found).encode()


def policy(engine: str, agents: Iterable[ServedAgent], environment: Mapping[str, str], beside: Policy) -> Policy:
    """What the one process reaches: all that each agent's may, and what is `beside`. Raises Missing."""
    agents = list(agents)
    program = program_of(engine)
    whole = replace(
        beside,
        reads=tuple(dict.fromkeys((*beside.reads, *(path for one in agents for path in one.reads)))),
        writes=tuple(dict.fromkeys((*beside.writes, *(path for one in agents for path in one.writes)))),
        hidden=tuple(dict.fromkeys((*beside.hidden, *(path for one in agents for path in one.hidden)))),
    )
    plugins = list(dict.fromkeys(plugin for one in agents for plugin in one.plugins))
    whole = with_plugins(whole, plugins, environment)
    # Fewer of the C library's heaps do for all threads, whose memory would else lie in dozens.
    told = {"MALLOC_ARENA_MAX": "4"}
    return with_engine(whole, program, needs(program, environment), environment, home=_HOME, told=told)
