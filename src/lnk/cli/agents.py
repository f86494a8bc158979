"""`lnk agent new | list | show | remove`: the person's agents."""

import argparse
from typing import Any

import msgspec

from lnk.agent import memory
from lnk.agent.folders import Agent, Agents
from lnk.cli.output import as_typed, say, say_json, say_table, tell


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The commands, under `lnk agent`."""
    new = commands.add_parser("new", parents=[common], help="make an agent")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--documents", metavar="DIR", help="an existing folder of notes for its memory; nothing is copied")
    new.set_defaults(run=_new)
    listing = commands.add_parser("list", parents=[common], help="list your agents")
    listing.set_defaults(run=_list)
    show = commands.add_parser("show", parents=[common], help="show an agent and where its files lie")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=_show)
    remove = commands.add_parser("remove", parents=[common], help="remove an agent; its files stay unless --files")
    remove.add_argument("name", metavar="NAME")
    remove.add_argument("--files", action="store_true", help="delete its documents, conversations and notes too")
    remove.set_defaults(run=_remove)


def _new(asked: argparse.Namespace) -> int:
    agent = Agents(asked.link_home).new(asked.name, documents=asked.documents)
    if asked.json:
        say_json(_shown(agent))
        return 0
    say(f"Made the agent {agent.name} ({agent.id}).")
    say(f"Its memory reads {agent.documents or agent.home + '/memory'}.")
    return 0


def _list(asked: argparse.Namespace) -> int:
    agents, wrong = Agents(asked.link_home).listed()
    if asked.json:
        say_json([_shown(agent) for agent in agents])
    elif not agents:
        none = "There are no agents yet; `lnk agent new NAME` makes one, and `lnk agent memory` makes `main` by itself."
        say(as_typed(none))
    else:
        rows = [
            [agent.name, agent.id, agent.created[:10], agent.documents or agent.home + "/memory"] for agent in agents
        ]
        say_table(rows, head=("name", "id", "made", "documents"))
    for error in wrong:
        tell(f"lnk: {as_typed(str(error))}")
    return 0


def _show(asked: argparse.Namespace) -> int:
    agent = Agents(asked.link_home).get(asked.name)
    if asked.json:
        say_json(_shown(agent))
        return 0
    say_table(
        [
            ("name", agent.name),
            ("id", agent.id),
            ("owner", agent.owner),
            ("made", agent.created),
            ("documents", agent.documents or f"{agent.home}/memory"),
            ("conversations", f"{agent.own}/chats"),
            ("notes", agent.notes),
            ("settings", f"{agent.own}/spec.toml, {agent.own}/sandbox.toml"),
        ]
    )
    return 0


def _remove(asked: argparse.Namespace) -> int:
    agent = Agents(asked.link_home).remove(
        asked.name, files=asked.files, first=lambda agent: memory.Memory(agent, asked.environment).remove()
    )
    if asked.json:
        say_json({**_shown(agent), "files_removed": asked.files})
    elif asked.files:
        say(f"Removed the agent {agent.name} and its files.")
        if agent.documents:
            say(f"Its documents in {agent.documents} are yours and stay.")
    else:
        say(f"Removed the agent {agent.name}; its files stay in {agent.folder}.")
        say(as_typed(f"`lnk agent new {agent.name}` takes them up again; `rm -r` deletes them."))
    return 0


def _shown(agent: Agent) -> dict[str, Any]:
    return {**msgspec.structs.asdict(agent), "home": agent.home, "own": agent.own, "notes": agent.notes}
