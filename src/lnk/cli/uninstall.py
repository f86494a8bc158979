"""`lnk uninstall`: nothing of Link runs or is named in a client any more; with `--agents`, the agents go too."""

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Final

from lnk.agent import bridge, clients, shared
from lnk.agent.folders import Agents
from lnk.agent.tools import Tools
from lnk.cli.output import counted, say, say_json, tell
from lnk.errors import LinkError, Refused

YES: Final = "yes"


def add(parser: argparse.ArgumentParser) -> None:
    """The command, which is `lnk uninstall` itself."""
    parser.description = "Stop everything, and take Link out of your MCP clients; your agents stay unless --agents."
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--agents", action="store_true", help="delete every agent too: its documents, conversations, notes and index"
    )
    parser.set_defaults(run=_uninstall)


def _uninstall(asked: argparse.Namespace) -> int:
    agents, broken = Agents(asked.link_home).listed()
    if asked.agents and sys.stdin.isatty():
        _confirm([agent.folder for agent in agents])
    tools = Tools(asked.link_home)
    names, ended = tools.clear(functools.partial(bridge.stop, asked.link_home))
    left = [*_services_ended(asked.link_home)]
    left += [*_taken_out(asked.environment), *map(str, broken)]
    removed = []
    for agent in agents if asked.agents else ():
        try:
            Agents(asked.link_home).remove(agent.name, files=True, first=lambda _: None)
            removed.append(agent.folder)
        except LinkError as error:
            left.append(str(error))
    for folder in (tools.root, f"{asked.link_home}/Agents", asked.link_home):
        with contextlib.suppress(OSError):  # another's files are in it
            os.rmdir(folder)
    if asked.json:
        say_json({"tools": names, "ended": ended, "agents_removed": removed, "left": left})
        return 0
    say(f"Removed {counted(len(names), 'tool')}; {counted(ended, 'session')} ended.")
    if removed:
        say(f"Deleted {counted(len(removed), 'agent')} and all of their files.")
    elif agents:
        say(f"{counted(len(agents), 'agent')} and their files stay in {asked.link_home}/Agents.")
    say("`pip uninstall link-memory` removes the program itself.")
    for each in left:
        tell(f"lnk: {each}")
    return 0


def _services_ended(link_home: str) -> Iterator[str]:
    """No service runs any more; gives in words where one does."""
    try:
        shared.end_all(link_home)
    except LinkError as error:
        yield str(error)


def _confirm(folders: list[str]) -> None:
    for folder in folders:
        tell(folder)
    tell(f"All of this is deleted, the notes and conversations too. Type {YES} to go on:")
    if sys.stdin.readline().strip().lower() != YES:
        raise Refused("Nothing was removed.")


def _taken_out(environment: dict[str, str]) -> Iterator[str]:
    """Every tool of ours is taken out of every client; gives in words where one could not be."""
    for client in clients.CLIENTS.values():
        try:
            for name in clients.ours(client, environment):
                change = clients.plan(client, name, None, environment)
                if change.changed:
                    clients.write(change)
        except LinkError as error:
            yield str(error)
