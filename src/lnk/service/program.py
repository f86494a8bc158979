"""`lnk-link-memory`: the memory engine's program. Only here are its arguments and environment read."""

import argparse
import contextlib
import functools
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from lnk import __version__
from lnk.errors import INTERRUPTED, Invalid, LinkError, Refused, Usage

if TYPE_CHECKING:
    from lnk.contract.memory import Served
    from lnk.memory.engine import Engine, Settings
    from lnk.memory.shared import Shared

PROGRAM: Final = "lnk-link-memory"
SWITCH_S: Final = 0.0005  # how long one thread of a process that serves many keeps the interpreter from the others
END_WAIT_S: Final = 0.4  # of the 2 s that the end of input leaves, after the session's own share

_HELP = """\
The memory engine of Link: a folder of text, searchable over MCP. Link runs it; `lnk agent memory` is for people.

<folder> is an agent's Home (its documents lie in memory/) or a team's shared folder, <state> the folder in which
the engine keeps its index, <agent> the agent's own folder (its conversations lie in chats/, its skills in skills/)."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Usage(f"{message}; `{self.prog} --help` shows how it is used.")


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    top = _Parser(prog=PROGRAM, description=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--version", action="version", version=f"Link Memory {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("install", help="install the engine, or leave it: there is nothing to fetch")

    command = commands.add_parser("command", help="print the command that serves MCP (Serve, as JSON)")
    _folders(command)
    command.epilog = (
        "It reads $LNK_MEMORY_SPEC, $LNK_MEMORY_NOTES, $LNK_MEMORY_FROM, $LNK_MEMORY_DOCUMENTS and"
        " $LNK_MEMORY_THREADS, and prints them as flags."
    )
    serve = commands.add_parser("serve", help="serve MCP on standard input and output")
    _folders(serve)
    _flags(serve)
    serve.epilog = "It reads $LNK_MEMORY_MODEL: where an embedding model of this machine listens; empty: nowhere."

    many = commands.add_parser("serve-many", help="serve MCP for many agents, a session a connection to a socket")
    _many(many)

    check = commands.add_parser("check", help="compare the index with the folder; exit status 1 on a difference")
    status = commands.add_parser("status", help="what is indexed and left out, as JSON")
    reindex = commands.add_parser("reindex", help="make the index again; first-seen times stay")
    for each in (check, status, reindex):
        _folders(each)
        each.add_argument("--documents", metavar="DIR", help="an existing folder that stands for memory/")
        each.add_argument("--json", action="store_true", help="print one JSON object")
        each.add_argument("--progress", action="store_true", help="say how far it is, a line `progress N OF` each")

    schema = commands.add_parser("schema", help="print the JSON Schema of the contract's types")
    schema.add_argument("name", nargs="?", metavar="NAME", help="one type, e.g. Serve; all where left out")
    return top


def _folders(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="<folder>", help="an agent's Home, or a team's shared folder")
    command.add_argument("state", metavar="<state>", help="where the engine keeps its index")
    command.add_argument("agent", metavar="<agent>", nargs="?", help="the agent's own folder")


def _flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("--spec", default="", metavar="JSON", help="model, tokens, notes: the agent's [tool.memory]")
    command.add_argument("--notes", metavar="FILE", help="the one file that may be written; without it no `remember`")
    command.add_argument("--documents", metavar="DIR", help="an existing folder that stands for memory/")
    command.add_argument("--from", dest="told", action="store_true", help="each call names its conversation")
    command.add_argument("--threads", default="", metavar="JSON", help="threads that count as the owner's")


def _many(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "socket", metavar="<socket>", help="where to listen: a Unix socket, in a folder of yours alone"
    )
    command.add_argument(
        "agents", metavar="<agents>", nargs="?", help='a JSON file: {"<agent id>": {"argv": [...], "env"?: {...}}}'
    )
    command.add_argument("--stay", action="store_true", help="do not end when no session has been open for a moment")
    command.add_argument("--peer", metavar="USER", help="take connections of this user's processes too; with --group")
    command.add_argument("--group", metavar="GROUP", help="whose members may reach the socket; with --peer")
    command.add_argument(
        "--connections",
        type=int,
        metavar="FD",
        help="listen nowhere: each message on this Unix socket is a first line with a connection that was checked",
    )
    for name, metavar, about in _LATER:
        command.add_argument(name, metavar=metavar, help=f"{about} (not served yet)")
    command.epilog = (
        'A connection begins with a line {"agent": "<agent id>"}, answered {"ok": true} or {"error": "why"}; then MCP.'
    )


# For bound agents and teams, which are not served yet: refused where they are given.
_LATER: Final = (
    ("--cache", "DIR", "where the indexes of bound agents are kept"),
    ("--embed", "MODEL", "the model that ranks bound agents' searches by meaning"),
    ("--embed-url", "URL", "where that model listens"),
    ("--files-bridge", "SOCK", "the machine's files bridge"),
    ("--storage-bridge", "SOCK", "the machine's storage bridge"),
    ("--bridges", "DIR", "the folder of each agent's storage bridge"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. Its exit status says what kind of error it was."""
    try:
        if sys.platform == "win32":
            raise LinkError("Link Memory runs on Linux and macOS; on Windows, run it inside WSL.")
        return _run(_checked(parser().parse_args(argv)), os.environ)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    except LinkError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return error.status


def _checked(asked: argparse.Namespace) -> argparse.Namespace:
    """Raises Usage where a folder's name was lost on the way: it must never mean the folder one happens to be in."""
    for name in ("folder", "state", "agent", "documents", "notes"):
        path = getattr(asked, name, None)
        if path is None:
            continue
        if not isinstance(path, str) or not path.strip() or "\0" in path:
            raise Usage(f"<{name}> is empty; `{PROGRAM} {asked.command} --help` shows what it is.")
        try:
            path.encode("utf-8")
        except UnicodeEncodeError:
            raise Invalid(f"<{name}> is {path!r}, which is not UTF-8; give the folder another name.") from None
    return asked


def _run(asked: argparse.Namespace, environment: Mapping[str, str]) -> int:
    match asked.command:
        case "install":
            return 0
        case "schema":
            return _schema(asked)
        case "command":
            return _command(asked, environment)
        case "serve":
            return _serve(asked, environment)
        case "serve-many":
            return _serve_many(asked)
        case _:
            from lnk.service.upkeep import run  # only these commands need it

            return run(asked, environment)


def _schema(asked: argparse.Namespace) -> int:
    from lnk.contract.memory import schemas
    from lnk.contract.shape import format_value

    _print(format_value(schemas(asked.name)))
    return 0


def _command(asked: argparse.Namespace, environment: Mapping[str, str]) -> int:
    from lnk.contract.memory import NOTES_CALL, READ_CALLS, Serve, parse_threads
    from lnk.contract.shape import format_value
    from lnk.contract.spec import parse_spec

    spec_text = environment.get("LNK_MEMORY_SPEC", "")
    spec = parse_spec(spec_text)
    notes = environment.get("LNK_MEMORY_NOTES") or None
    argv = [PROGRAM, "serve", asked.folder, asked.state, *([asked.agent] if asked.agent else [])]
    if spec_text.strip():
        argv += ["--spec", format_value(spec)]
    if notes:
        argv += ["--notes", notes]
    if documents := environment.get("LNK_MEMORY_DOCUMENTS"):
        argv += ["--documents", documents]
    told = environment.get("LNK_MEMORY_FROM", "")
    if told not in ("", "0", "1"):
        raise Invalid(f"$LNK_MEMORY_FROM is {told[:20]!r}; it is 1, or not set.")
    if told == "1":
        argv.append("--from")
    threads = environment.get("LNK_MEMORY_THREADS", "")
    if parse_threads(threads):
        argv += ["--threads", threads]
    model = spec.model_asked
    serve = Serve(
        argv=argv,
        allow=[*READ_CALLS, *([NOTES_CALL] if notes else [])],
        models=True if model else None,
        model=model,
        shared=True,
        programs=["link-documents"],
    )
    _print(format_value(serve))
    return 0


def _serve(asked: argparse.Namespace, environment: Mapping[str, str]) -> int:
    from lnk.mcp.stdio import serve
    from lnk.memory.engine import Engine
    from lnk.service.session import Work, describe

    engine = Engine(_settings(asked, environment))
    _collect_seldom()
    engine.start()
    # Nothing but MCP goes to standard output: what anything else prints there goes to standard error.
    sink = os.dup(1)
    os.dup2(2, 1)
    answered = serve(describe(engine), Work(engine), 0, sink)
    if answered and engine.stop(END_WAIT_S):
        return 0
    sys.stderr.flush()
    os._exit(0)  # a call or a document is under way that does not end in time; the index file is safe at any moment


def _settings(asked: argparse.Namespace, environment: Mapping[str, str]) -> "Settings":
    """What a `serve` of these arguments serves. Raises Invalid."""
    from lnk.contract.embedding import parse_address
    from lnk.contract.memory import parse_threads
    from lnk.contract.spec import parse_spec
    from lnk.memory.engine import Settings

    return Settings(
        folder=os.path.abspath(asked.folder),
        state=os.path.abspath(asked.state),
        agent=os.path.abspath(asked.agent) if asked.agent else None,
        documents=os.path.abspath(asked.documents) if asked.documents else None,
        notes=os.path.abspath(asked.notes) if asked.notes else None,
        spec=parse_spec(asked.spec),
        told=asked.told,
        threads=parse_threads(asked.threads),
        address=parse_address(environment.get("LNK_MEMORY_MODEL", "")),
    )


def _collect_seldom() -> None:
    """What is loaded by now stays; and hardly anything made later holds itself, so the collector need look seldom."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _serve_many(asked: argparse.Namespace) -> int:
    from lnk.contract.memory import Served
    from lnk.contract.shape import parse
    from lnk.memory.shared import Shared
    from lnk.service import sources
    from lnk.service.many import Many

    for name, _, _ in _LATER:
        if getattr(asked, name.lstrip("-").replace("-", "_")) is not None:
            raise Refused(f"{name} is for bound agents, which are not served yet; leave it out.")
    if asked.agents is None:
        raise Usage("<agents> is left out, which is for bound agents alone, and those are not served yet.")
    agents = parse(sources.read_agents(asked.agents), dict[str, Served], f"<agents> in {asked.agents}")
    shared = Shared()
    engines = {agent: functools.partial(_engine_of, served, shared) for agent, served in agents.items()}
    if asked.connections is not None:
        Many(sources.Passed(asked.connections), engines, _ready).run()
        return 0
    listened = sources.Listened(asked.socket, peer=asked.peer, group=asked.group, stay=asked.stay)
    try:
        Many(listened, engines, _ready).run()
    finally:
        listened.close()
    return 0


def _ready() -> None:
    import resource  # late, as all that serving alone needs

    _collect_seldom()
    # An agent takes some ten descriptors, and the usual limit is a thousand.
    with contextlib.suppress(OSError, ValueError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.setswitchinterval(SWITCH_S)


def _engine_of(served: "Served", shared: "Shared") -> "Engine":
    """An agent's engine, by its command and its variables alone. Raises Invalid and Usage, and what `Engine` does."""
    from lnk.memory.engine import Engine

    asked = _checked(parser().parse_args(served.argv[1:]))
    if asked.command != "serve":
        raise Invalid(f"The command of this agent is {asked.command}, and no `serve`; start its memory again.")
    return Engine(_settings(asked, served.env or {}), shared)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
