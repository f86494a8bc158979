"""The start of the service of an owner's agents: what it serves is planned, and its engine started in the sandbox.

Then this process becomes the small program that stands before the engine for as long as it lives (`lnk.agent.host`).
"""

import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec.structs import replace

from lnk.agent import host, shared
from lnk.agent.connect import BUSY
from lnk.agent.engine import program_of
from lnk.agent.journal import Journal
from lnk.agent.passing import SOCKET
from lnk.agent.proxy import own_streams, small_command
from lnk.agent.served import LOG, open_place, take_lock
from lnk.confine import end_with
from lnk.contract.memory import SERVE_MANY
from lnk.errors import Conflict, LinkError, Refused, from_os
from lnk.folder import Folder, make_folder
from lnk.sandbox.launch import Launch, keep_open, launch
from lnk.sandbox.policy import Policy
from lnk.sandbox.ways import Tried, Way
from lnk.sockets import Peer

if TYPE_CHECKING:
    from lnk.models.beside import Place

MODELS_MAX: Final = 8  # that the agents of one service ask for; further ones rank by words
BY_DESCRIPTOR: Final = ("link",)  # engines that take connections, and need make no socket
_FAILED: Final = 127


def serve(
    path: str, engine: str, environment: Mapping[str, str], how: Tried, *, ready: int, peer: Peer | None = None
) -> NoReturn:
    """This process becomes the service of `<dir>`, in a sandbox of that way. `ready` hears a line once it listens.

    `peer`: may connect too. Raises Missing where there is nothing to serve, and what keeps the engine from being
    started. Where another process is the service already, that is said to `ready`, and all is well.
    """
    own_streams()  # what whoever started us left open is not for the engine: by a folder a sandbox is walked out of
    place = open_place(path)
    plan = shared.planned(place, engine)
    lock = take_lock(place, plan.name)
    if lock is None:
        if peer:
            raise Conflict(
                "A service runs already, which takes no peer; end its sessions, then start it with the peer."
            )
        os.write(ready, BUSY)
        os._exit(0)
    journal = Journal(place, LOG, host.LOG_BYTES_MAX)
    try:
        _become_host(path, place, plan, engine, environment, how, journal, (lock, ready), peer)
    except LinkError as error:
        journal.write(host.event(plan.name, "failed", why=str(error)))
        _clear(place, plan.name)
        raise


def _become_host(
    path: str,
    place: int,
    plan: shared.Plan,
    engine: str,
    environment: Mapping[str, str],
    how: Tried,
    journal: Journal,
    held: tuple[int, int],
    peer: Peer | None,
) -> NoReturn:
    """The engine is started, and this process becomes what stands before it. `held`: the lock, and who is to hear."""
    lock, ready = held
    _let_through(path, place, peer)
    _sweep(place, plan.name)
    for agent, why in plan.left_out.items():
        journal.write(host.event(plan.name, "left out", agent=agent, why=why))
    models, openings = _models(plan, environment, how, journal)
    data = shared.agents_file(plan.agents, {model: found.told for model, found in models.items()})
    with Folder.open(path) as own:  # whose writer we are, by the lock
        own.replace(f"{plan.name}.json", data, unless_changed=own.stat(f"{plan.name}.json"))
    reached, given, folder = _ways_in(path, plan.name, engine)
    policy = _policy(path, engine, plan, environment, folder, tuple(found.port for found in models.values()))
    argv = [
        program_of(engine),
        SERVE_MANY,
        SOCKET if folder else f"{path}/{plan.name}.sock",
        f"{path}/{plan.name}.json",
    ]
    argv += ["--stay"] if folder else ["--connections", str(given[0])]
    heard, said = os.pipe()
    parent = os.getpid()
    with launch(policy, argv, how, openings=openings, given=given) as started:
        pid = os.fork()
        if not pid:
            _become(started, said, parent)
    for fd in (lock, heard, ready, *([int(reached)] if folder is None else [])):  # none of which the engine has
        os.set_inheritable(fd, True)
    told = [path, plan.name, reached, lock, heard, ready, pid]
    others = f"{peer.user}:{peer.group}" if peer else ""
    command = small_command(host.START, *map(str, told), others, " ".join(models))
    try:
        os.execve(command[0], command, dict(environment))
    except OSError as error:
        raise from_os(error, "become the memory service") from None


def _let_through(path: str, place: int, peer: Peer | None) -> None:
    """The peer's group may go through the folder, to the socket alone, where one is given: it can list nothing there.

    Raises Refused where it does not get so far.
    """
    try:
        if peer is None:
            os.fchmod(place, 0o700)
            return
        os.fchown(place, -1, peer.group)
        os.fchmod(place, 0o710)
        os.chmod(os.path.dirname(path), 0o711)
    except OSError as error:
        raise from_os(error, "let the group of --group through to the socket") from None
    folder = os.path.dirname(path)
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        found = os.stat(folder)
        if not found.st_mode & (0o011 if found.st_gid == peer.group else 0o001):
            raise Refused(f"{folder} lets nobody of that group through to the socket; give it the mode 711.")


def _policy(
    path: str,
    engine: str,
    plan: shared.Plan,
    environment: Mapping[str, str],
    folder: str | None,
    ports: tuple[int, ...],
) -> Policy:
    """What the engine reaches; `folder`: where it makes its socket."""
    beside = Policy(
        reads=(f"{path}/{plan.name}.json",),
        writes=() if folder is None else (folder,),
        listens=folder is not None,
        ports=ports,
    )
    policy = shared.policy(engine, plan.agents, environment, beside)
    # In its folder a socket has a name that is never too long.
    return replace(policy, folder=folder) if folder else policy


def _sweep(place: int, name: str) -> None:
    """What other services left that were killed goes: nobody holds their lock."""
    for other in {found.removesuffix(".lock") for found in os.listdir(place) if found.endswith(".lock")} - {name}:
        with contextlib.suppress(LinkError, OSError):
            lock = take_lock(place, other)
            if lock is not None:
                _clear(place, other)
                os.close(lock)


def _clear(place: int, name: str) -> None:
    """Nothing of that service is left, its lock last, which is ours."""
    for found in sorted(os.listdir(place), key=lambda each: each.endswith(".lock")):
        with contextlib.suppress(LinkError, OSError):
            if found == f"{name}.engine":
                _remove(place, found)
            elif found.lstrip(".").startswith(f"{name}."):
                os.unlink(found, dir_fd=place)


def _remove(place: int, name: str) -> None:
    """A folder with its files."""
    with Folder(os.dup(place), name) as folder:
        folder.remove_tree(name)


def _ways_in(path: str, name: str, engine: str) -> tuple[str, list[int], str | None]:
    """How the engine is reached, as the host is told; what of it the engine is given, or the folder for its socket."""
    if engine in BY_DESCRIPTOR:
        outside, inside = socket.socketpair(socket.AF_UNIX, host.MESSAGES)
        return str(outside.detach()), [inside.detach()], None
    folder = f"{path}/{name}.engine"
    make_folder(folder, 0o700)
    return folder, [], folder


def _models(
    plan: shared.Plan, environment: Mapping[str, str], how: Tried, journal: Journal
) -> "tuple[dict[str, Place], list[int]]":
    """Where each model is that an agent asks for, once for all of them; and the sandbox's ends of the ways there.

    What serves it outside is started, and ends with this process. A model that no runtime could come to have is left
    out, as is one whose settings are wrong: `status` says why.
    """
    found: dict[str, Place] = {}
    openings: list[int] = []
    wanted = list(dict.fromkeys(one.model for one in plan.agents if one.model))
    if how.way is Way.LANDLOCK or not wanted:
        return found, openings
    from lnk.models.beside import place_for, start_beside

    for model in wanted[MODELS_MAX:]:
        journal.write(host.event(plan.name, "left out", model=model, why=f"more than {MODELS_MAX} are asked for"))
    for model in wanted[:MODELS_MAX]:
        try:
            place = place_for(model, environment)
        except LinkError as error:
            journal.write(host.event(plan.name, "left out", model=model, why=str(error)))
            continue
        if place is None:
            continue
        outside = None
        if how.way in (Way.BUBBLEWRAP, Way.BUNDLED):
            ours, theirs = socket.socketpair()
            outside = ours.detach()
            openings.append(theirs.detach())
        start_beside(model, place.port, environment, opening=outside)
        if outside is not None:
            os.close(outside)
        found[model] = place
    return found, openings


def _become(started: Launch, said: int, parent: int) -> NoReturn:
    """In the new process: the engine, whose errors are heard by us, and which ends with us."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        keep_open(started.fds)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        end_with(parent)
        with contextlib.suppress(OSError):
            os.chdir(started.folder)
        os.execve(started.argv[0], started.argv, started.environment)
    except OSError as error:
        os.write(2, f"{started.argv[0]} could not be started: {error.strerror}\n".encode())
    finally:
        os._exit(_FAILED)
