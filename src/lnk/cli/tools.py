"""`lnk sandbox tool …`: the tools of a person's agents; `lnk agent asks | answer`: the calls that wait for a yes."""

import argparse
import functools
import json
import sys
from typing import Any, Final

import msgspec

from lnk.agent import asks, bridge, proxy
from lnk.agent.asks import Waiting
from lnk.agent.gate import ALLOW, DENY
from lnk.agent.tools import Tool, Tools, find_program, variable
from lnk.cli.output import as_typed, counted, faint, plain, say, say_json, say_styled, say_table, strong, tell, write
from lnk.errors import Conflict, Invalid, LinkError, Missing

LOG_LINES: Final = 50
LOG_LINES_MAX: Final = 100_000  # more than the two files hold
_ANSWERS: Final = {"y": True, "yes": True, "n": False, "no": False}


def add_sandbox(commands: Any, common: argparse.ArgumentParser) -> None:
    """The commands under `lnk sandbox`."""
    about = "define the tools of your agents, and see what was called"
    tool = commands.add_parser("tool", help=about, description=f"{about.capitalize()}.")
    verbs = tool.add_subparsers(metavar="COMMAND", required=True, dest="call")
    add = verbs.add_parser("add", parents=[common], help="define a tool: a program that speaks MCP")
    add.add_argument("name", metavar="NAME")
    add.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="CALL",
        help="a call that does not ask you first; may be repeated",
    )
    add.add_argument("argv", nargs="+", metavar="-- ARGV", help="its program and arguments, behind --")
    add.set_defaults(run=_add)
    listing = verbs.add_parser("list", parents=[common], help="list your tools")
    listing.set_defaults(run=_list)
    show = _one(verbs, common, "show", "show what a tool runs, and what it may do unasked")
    show.set_defaults(run=_show)
    remove = _one(verbs, common, "remove", "end a tool's sessions, and delete its definition and log")
    remove.set_defaults(run=_remove)
    log = _one(verbs, common, "log", "show the last calls of a tool, newest last")
    log.add_argument("--limit", type=int, default=LOG_LINES, metavar="N", help=f"how many (default: {LOG_LINES})")
    log.set_defaults(run=_log)


def add_agent(commands: Any, common: argparse.ArgumentParser) -> None:
    """The commands under `lnk agent`."""
    about = "speak with a tool as an agent does"
    tool = commands.add_parser("tool", help=about, description=f"{about.capitalize()}.")
    verbs = tool.add_subparsers(metavar="COMMAND", required=True, dest="call")
    run = _one(verbs, common, "run", "one MCP session with a tool, on standard input and output")
    run.set_defaults(run=_run)
    waiting = commands.add_parser("asks", parents=[common], help="answer the calls that wait for your yes")
    waiting.set_defaults(run=_asks)
    answer = commands.add_parser("answer", parents=[common], help="answer one of them")
    answer.add_argument("id", metavar="ID", help="its five letters, as `asks` shows them")
    answer.add_argument("verdict", choices=(ALLOW, DENY))
    answer.set_defaults(run=_answer)


def _one(verbs: Any, common: argparse.ArgumentParser, name: str, about: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, parents=[common], help=about)
    parser.add_argument("name", metavar="NAME")
    return parser


# ---------------------------------------------------------------- tools


def _add(asked: argparse.Namespace) -> int:
    tools = Tools(asked.link_home)
    tool = Tool(name=asked.name, argv=find_program(asked.argv, asked.environment), allow=asked.allow)
    tool = tools.add(tool)
    bridge.stop(asked.link_home, tool.name)  # what runs is the tool as it was
    address = bridge.start(asked.link_home, tool.name, asked.environment)
    if asked.json:
        say_json(_shown(tool, asked.link_home))
        return 0
    say(f"Defined the tool {tool.name}, which runs {_typed(tool)}.")
    say(_allowed(tool))
    say(f"{variable(tool.name)}={address}")
    return 0


def _list(asked: argparse.Namespace) -> int:
    tools = Tools(asked.link_home)
    found: list[Tool] = []
    wrong: list[LinkError] = []
    for name in tools.names():
        try:
            found.append(tools.get(name))
        except LinkError as error:
            wrong.append(error)
    if asked.json:
        say_json([_shown(tool, asked.link_home) for tool in found])
    elif not found:
        say(as_typed("There are no tools yet; `lnk sandbox tool add NAME -- ARGV` defines one."))
    else:
        rows = [
            [tool.name, _state(tool, asked.link_home), ", ".join(tool.allow) or "-", _typed(tool)] for tool in found
        ]
        say_table(rows, head=("name", "state", "unasked", "runs"))
    for each in wrong:
        tell(f"lnk: {as_typed(str(each))}")
    return 0


def _show(asked: argparse.Namespace) -> int:
    tool = Tools(asked.link_home).get(asked.name)
    if asked.json:
        say_json(_shown(tool, asked.link_home))
        return 0
    rows = [
        ("name", tool.name),
        ("about", tool.title),
        ("runs", _typed(tool)),
        ("unasked", ", ".join(tool.allow) or "nothing: every call asks you first"),
        ("state", _state(tool, asked.link_home)),
        ("address", f"{bridge.address(asked.link_home, tool.name)} in ${variable(tool.name)}"),
        ("made", tool.made),
        ("files", Tools(asked.link_home).folder(tool.name)),
    ]
    say_table([row for row in rows if row[1]])
    return 0


def _remove(asked: argparse.Namespace) -> int:
    tools = Tools(asked.link_home)
    if asked.name not in tools.names():
        tools.get(asked.name)  # it says what there is
    ended = tools.remove(asked.name, functools.partial(bridge.stop, asked.link_home, asked.name))
    if asked.json:
        say_json({"name": asked.name, "ended": ended})
    else:
        say(f"Removed the tool {asked.name} and its log; {counted(ended, 'session')} ended.")
    return 0


def _log(asked: argparse.Namespace) -> int:
    if not 1 <= asked.limit <= LOG_LINES_MAX:
        raise Invalid(f"--limit {asked.limit} is not from 1 to {LOG_LINES_MAX:,}.")
    found = Tools(asked.link_home).log(asked.name, asked.limit)
    if asked.json:
        say_json(found)
    elif not found:
        say(f"Nothing was called of {asked.name} yet.")
    else:
        say_table([_logged(each) for each in found], head=("time", "call", "thread", "arguments", "outcome", "ms"))
    return 0


def _logged(record: dict[str, Any]) -> list[str]:
    sizes = record.get("arguments")
    arguments = ", ".join(f"{name} {size}" for name, size in sizes.items()) if isinstance(sizes, dict) else ""
    cells = [record.get(key, "") for key in ("time", "call", "thread")]
    return [*map(str, cells), arguments, str(record.get("outcome", "")), str(record.get("ms", "-"))]


def _shown(tool: Tool, link_home: str) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(tool),
        "variable": variable(tool.name),
        "address": _address(tool, link_home),
        "listens": bridge.running(link_home, tool.name),
        "folder": Tools(link_home).folder(tool.name),
    }


def _address(tool: Tool, link_home: str) -> str | None:
    """Where it listens, or would; None where there is no place that is this user's alone."""
    try:
        return bridge.address(link_home, tool.name)
    except LinkError:
        return None


def _state(tool: Tool, link_home: str) -> str:
    if tool.stopped:
        return "stopped"
    return "listens" if bridge.running(link_home, tool.name) else "idle"


def _typed(tool: Tool) -> str:
    """The command as JSON where a word of it would not be read as one."""
    words = [word if word and word.isprintable() and " " not in word else json.dumps(word) for word in tool.argv]
    return " ".join(words)


def _allowed(tool: Tool) -> str:
    if not tool.allow:
        return "Every call of it asks you first."
    return f"{', '.join(tool.allow)} may be called unasked; any other call asks you first."


def _run(asked: argparse.Namespace) -> int:
    return proxy.run(asked.name, asked.link_home)


# ---------------------------------------------------------------- asks


def _asks(asked: argparse.Namespace) -> int:
    found = asks.waiting(asked.link_home)
    if asked.json:
        say_json([each._asdict() for each in found])
    elif not found:
        say("No call waits for you.")
    elif sys.stdin.isatty() and sys.stdout.isatty():
        for each in found:
            _ask(asked.link_home, each)
    else:
        for each in found:
            _say_ask(each)
        say(as_typed("`lnk agent answer ID allow` lets one go on; `deny` refuses it."))
    return 0


def _ask(link_home: str, waiting: Waiting) -> None:
    """One question at the terminal. Nothing typed: it goes on waiting."""
    _say_ask(waiting)
    while True:
        write(f"Allow {plain(waiting.call)} of {plain(waiting.tool)}? [y/n, Enter: later] ")
        sys.stdout.flush()
        typed = sys.stdin.readline()
        if not typed.strip():
            return
        if (allow := _ANSWERS.get(typed.strip().lower())) is not None:
            break
    try:
        asks.answer(link_home, waiting.id, allow=allow)
    except (Conflict, Missing) as error:
        say(as_typed(str(error)))


def _say_ask(waiting: Waiting) -> None:
    whose = f"  in {waiting.thread}" if waiting.thread else ""
    say_styled(f"{strong(waiting.id)}  {strong(waiting.call)} of {waiting.tool}  {faint(waiting.time + whose)}")
    say(f"   {waiting.arguments}")


def _answer(asked: argparse.Namespace) -> int:
    allow = asked.verdict == ALLOW
    answered = asks.answer(asked.link_home, asked.id, allow=allow)
    if asked.json:
        say_json({"id": answered.id, "tool": answered.tool, "call": answered.call, "answer": asked.verdict})
    else:
        say(f"{'Allowed' if allow else 'Denied'} {answered.call} of {answered.tool}.")
    return 0
