"""`lnk agent memory …`: a person's way to an agent's memory, through the same MCP that its clients speak."""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from lnk.agent import clients, example, memory, shared
from lnk.agent.engine import ENGINE, MODEL
from lnk.agent.folders import MAIN, Agent, Agents, check_name, documents_folder, owner_name
from lnk.cli.confined import add_no_sandbox, sandbox_of
from lnk.cli.output import (
    ProgressLine,
    as_typed,
    command,
    counted,
    faint,
    quoted,
    say,
    say_json,
    say_notice,
    say_results,
    say_styled,
    say_table,
    size,
    strong,
    tell,
)
from lnk.contract.spec import BUILTIN, MODEL_ASKED, NONE, TOKENS_MAX
from lnk.errors import Invalid, LinkError, Missing, Unavailable
from lnk.folder import Folder
from lnk.mcp.client import Program
from lnk.sandbox.ways import Way
from lnk.sockets import peer_of

TRY_RESULTS: Final = 3
TRY_TOKENS: Final = 3_000
# The built-in encoder reads some 100 passages a second. A person waits until a small folder that is tried is read, and
# of their own a moment with each search: what is read then is kept, and a client's session reads all of it behind.
TRY_PASSAGES: Final = 2_000
TRY_WAIT_S: Final = 20.0
SEARCH_WAIT_S: Final = 3.0
STILL_S: Final = 5.0  # without one more passage read, once it began, it is not waited for any longer
LOOK_S: Final = 0.1
MODEL_WAIT_S: Final = 1.0  # for a runtime that may have to load its model first
EVER: Final = "1970-01-02"  # a `since` that leaves nothing out: the newest of all
NOTES_BYTES_MAX: Final = 16 << 20
LOG_LINES: Final = 200
INSTALL: Final = '`pip install "link-memory[meaning]"`'
PROGRESS: Final = re.compile(r"progress (\d{1,12}) (\d{1,12})")
# What `check` answers -> how a person is told of each.
DIFFERENCES: Final = {
    "not_indexed": "not indexed",
    "gone": "indexed, but gone",
    "changed": "changed since it was indexed",
    "waiting": "changed as it was indexed",
    "damage": "",
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The commands, under `lnk agent memory`."""
    one = argparse.ArgumentParser(add_help=False, parents=[common])
    one.add_argument("--agent", default=MAIN, metavar="NAME", help="whose memory (default: main)")
    engined = argparse.ArgumentParser(add_help=False, parents=[one])
    add_no_sandbox(engined)
    sized = argparse.ArgumentParser(add_help=False, parents=[engined])
    sized.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="size of the answer, 50 to 50000 tokens (default: as spec.toml says, else 6000)",
    )

    trial = commands.add_parser("try", parents=[common], help="a throw-away look at any folder of notes")
    trial.add_argument("query", nargs="?", metavar="QUERY", help="a question or words")
    trial.add_argument(
        "--documents", metavar="DIR", help="your folder of notes (default: the example that comes with it)"
    )
    add_no_sandbox(trial)
    trial.set_defaults(run=_try)

    start = commands.add_parser("start", parents=[engined], help="serve an agent's memory: define its tool, and listen")
    start.add_argument("engine", nargs="?", default=ENGINE, metavar="ENGINE", help="the engine (default: link)")
    start.add_argument("of", nargs="?", metavar="AGENT", help="the same as --agent")
    start.add_argument(
        "--others",
        action=argparse.BooleanOptionalAction,
        help="others write to the agent too: each call names its conversation (default: as it was)",
    )
    start.set_defaults(run=_start)
    stop = commands.add_parser("stop", parents=[one], help="serve it no more until it is started again")
    stop.set_defaults(run=_stop)
    remove = commands.add_parser("remove", parents=[one], help="stop it and delete its index; all that is yours stays")
    remove.set_defaults(run=_remove)

    setup = commands.add_parser("setup", parents=[engined], help="tell an MCP client of the memory")
    setup.add_argument("client", metavar="CLIENT", help=", ".join(clients.CLIENTS))
    setup.add_argument("--documents", metavar="DIR", help="an existing folder of notes; nothing is copied")
    setup.add_argument("--remove", action="store_true", help="take it out of the client's configuration")
    setup.add_argument(
        "--print", action="store_true", help="show what would be written there, and leave the file alone"
    )
    setup.set_defaults(run=_setup)

    search = commands.add_parser("search", parents=[sized], help="search documents and conversations")
    search.add_argument("query", nargs="?", default="", metavar="QUERY", help="a question or words; none: the newest")
    search.add_argument("--path", metavar="PATH", help="only this document or folder, e.g. memory/work")
    search.add_argument("--kind", choices=("document", "conversation"), help="only these")
    search.add_argument("--since", metavar="DATE", help="only what changed since, e.g. 2026-11-02")
    search.add_argument("--next", metavar="NEXT", help="go on after an answer's `next`")
    search.set_defaults(run=_search)

    read = commands.add_parser("read", parents=[sized], help="show a document's text")
    read.add_argument("path", metavar="PATH", help="as search and list show it")
    read.add_argument("--line", type=int, metavar="N", help="from this line on")
    read.set_defaults(run=_read)

    listing = commands.add_parser("list", parents=[sized], help="list documents, or what changed")
    listing.add_argument("path", nargs="?", metavar="PATH", help="only beneath this folder")
    listing.add_argument("--kind", choices=("document", "conversation", "skill", "notes"), help="only these")
    listing.add_argument("--since", metavar="DATE", help="what is new, changed or removed since")
    listing.add_argument("--next", metavar="NEXT", help="go on after an answer's `next`")
    listing.set_defaults(run=_list)

    links = commands.add_parser("links", parents=[sized], help="what a document links to, and what links to it")
    links.add_argument("path", metavar="PATH")
    links.set_defaults(run=_links)

    notes = commands.add_parser("notes", parents=[one], help="show the agent's notes")
    notes.set_defaults(run=_notes)

    status = commands.add_parser(
        "status", parents=[engined], help="what is indexed, what ranks by meaning, what is left out and why"
    )
    status.add_argument(
        "--check", action="store_true", help="compare the index with the folder; status 1 if they differ"
    )
    status.set_defaults(run=_status)

    reindex = commands.add_parser("reindex", parents=[engined], help="make the index again; first-seen times stay")
    reindex.set_defaults(run=_reindex)

    serve = commands.add_parser(
        "serve", parents=[engined], help="serve the memory over MCP (run by Link, not by people)"
    )
    serve.add_argument("--engine", default=ENGINE, metavar="ENGINE", help=argparse.SUPPRESS)
    serve.add_argument("--id", metavar="ID", help=argparse.SUPPRESS)  # of an agent, whatever it is called by now
    serve.add_argument("--others", action="store_true", help=argparse.SUPPRESS)
    serve.set_defaults(run=_serve)

    about = "one session with a memory, by its owner's service (run by Link, not by people)"
    connect = commands.add_parser("connect", parents=[common], help=about)
    connect.add_argument("dir", metavar="DIR", help="the service's folder, Agents/.memory/<owner>")
    connect.add_argument("id", metavar="ID", help="the agent's id")
    connect.set_defaults(run=_connect)

    service = commands.add_parser(
        "service", parents=[common], help="the one process that serves all your agents' memories (--log: what it did)"
    )
    service.add_argument("dir", nargs="?", metavar="DIR", help="its folder (default: that of your agents)")
    service.add_argument("--log", action="store_true", help="show its log instead")
    service.add_argument("--engine", default=ENGINE, metavar="ENGINE", help=argparse.SUPPRESS)
    service.add_argument("--peer", metavar="USER", help="take connections of this user's processes too; with --group")
    service.add_argument("--group", metavar="GROUP", help="whose members may reach the socket; with --peer")
    service.set_defaults(run=_service, no_sandbox=False)

    renew = commands.add_parser("renew", parents=[common])
    renew.add_argument("--id", metavar="ID", required=True, help=argparse.SUPPRESS)
    renew.set_defaults(run=_renew, no_sandbox=False)


# ---------------------------------------------------------------- try


def _try(asked: argparse.Namespace) -> int:
    documents = None if asked.documents is None else documents_folder(asked.documents)
    how = sandbox_of(asked)
    with tempfile.TemporaryDirectory(prefix="lnk-try-") as place:
        agent = memory.throw_away(os.path.realpath(place), documents)
        if not documents:
            example.lay_out(agent.home, agent.own)
        began = time.monotonic()
        throw_away = memory.Memory(agent, asked.environment, engine=ENGINE)
        with memory.Session(throw_away, asked.environment, how, meaning=True, hear=tell) as program:
            program.open()
            _index(program)
            took = time.monotonic() - began
            count = _count(program)
            reading = _Reading(memory.built_in(), TRY_WAIT_S, passages=TRY_PASSAGES)
            found = reading.search(program, _try_question(asked.query))
    found["results"] = found["results"][:TRY_RESULTS]
    if asked.json:
        say_json({"documents": count, "seconds": round(took, 3), **found})
        return 0
    where = documents or "the example folder"
    say(f"{counted(count, 'document')} of {where} indexed in {took:.1f} s." + ("" if asked.query else " The newest:"))
    say()
    say_results(found)
    reading.say_how_far(found)
    if not found["results"]:  # after a result there is an empty line
        say()
    _say_next(asked.query, documents)
    return 0


def _try_question(query: str | None) -> dict[str, Any]:
    return {"query": query or "", "tokens": TRY_TOKENS, **({} if query else {"path": "memory"})}


def _say_next(query: str | None, documents: str | None) -> None:
    folder = quoted(documents) if documents else "~/Notes"
    lnk = f"{command()} agent memory"
    if not query:
        question = "a question of yours" if documents else example.QUESTION
        say(f'Ask it:     {lnk} try "{question}"' + (f" --documents {folder}" if documents else ""))
    elif not documents:
        say(f'Your notes: {lnk} try "a question of yours" --documents {folder}')
    say(f"Attach it:  {lnk} setup claude-code --documents {folder}")
    say(f"            (or {', '.join(name for name in clients.CLIENTS if name != 'claude-code')})")


def _index(program: Program) -> None:
    """Waits for the first index, showing how far it is."""
    progress = ProgressLine("Indexing")
    try:
        while True:
            answer = program.call("list", {"tokens": 50}, progress=progress)
            if answer.failed or "indexed" not in (answer.structured or {}):
                return
    finally:
        progress.end()


def _count(program: Program) -> int:
    """How many documents are indexed; those that are left out stand in the list too."""
    count = 0
    further: dict[str, str] = {}
    while True:
        found = _ask(program, "list", {"tokens": TOKENS_MAX, **further})
        count += sum("left_out" not in each for each in found["documents"])
        if "next" not in found:
            return count
        further = {"next": found["next"]}


class _Reading:
    """How long an answer waits until the folder is read for meaning, and how far that got."""

    def __init__(self, ranks: bool, wait_s: float, *, passages: int | None = None, named: str | None = None) -> None:
        """`ranks`: something may rank by meaning. It is waited for at most `wait_s`, and not where more than
        `passages` are left to read. `named`: the model that the spec names.
        """
        self._ranks = ranks
        self._wait_s = wait_s
        self._passages = passages
        self._named = named

    def search(self, program: Program, given: Mapping[str, Any]) -> dict[str, Any]:
        """What a search finds, once it finds by meaning too or that takes too long."""
        progress = ProgressLine("Reading for meaning", "passages")
        began = moved = time.monotonic()
        most = -1
        try:
            while True:
                found = _ask(program, "search", given)
                how, now = found.get("embedded"), time.monotonic()
                if how is None or not self._waits(how["of"] - how["done"]):
                    return found
                if how["done"] > most:
                    most, moved = how["done"], now
                if now - began > self._wait_s or (most > 0 and now - moved > STILL_S):
                    return found
                progress(how["done"], how["of"])
                time.sleep(LOOK_S)
        finally:
            progress.end()

    def _waits(self, left: int) -> bool:
        return self._ranks and (self._passages is None or left <= self._passages)

    def say_how_far(self, found: Mapping[str, Any]) -> None:
        """A line where an answer is not by meaning, or not all of it, though it should be."""
        how = found.get("embedded")
        if how is None:
            return
        if not self._ranks:
            if self._named:
                say_styled(faint(f"(by words alone: {self._named} is not there; status tells how to get it)"))
        elif how["done"] < how["of"]:
            how_far = f"{how['done']:,} of {how['of']:,} passages are read for meaning"
            say_styled(faint(f"({how_far}; the others are found by their words)"))
        else:
            say_styled(faint("(by words alone: the model did not answer in time)"))


# ---------------------------------------------------------------- start, stop, remove


def _start(asked: argparse.Namespace) -> int:
    if asked.of is not None and asked.agent not in (MAIN, asked.of):
        raise Invalid(f"Two agents are named, {asked.of} and {asked.agent}; name one.")
    agents = Agents(asked.link_home)
    agent = agents.by_id(agents.need(asked.agent if asked.of is None else asked.of).id)  # and nobody else's
    how = sandbox_of(asked)
    started = memory.Memory(agent, asked.environment, engine=asked.engine, others=asked.others).start(how, tell)
    if asked.json:
        say_json(started)
        return 0
    if started.defined:
        say(f"Defined the tool {started.tool}: {', '.join(started.defined)}.")
    else:
        say(f"The tool {started.tool} is as it was: nothing changed.")
    if started.ended:
        say(f"{counted(started.ended, 'session')} with it as it was before ended.")
    confined = "unconfined" if how.way is Way.NONE else f"confined by {started.sandbox}"
    say(f"The memory of {agent.name} is served by {started.engine}, {confined}.")
    if started.serve.models and not started.serve.model:
        say("It reaches the network, since it looks for models itself.")
    if started.serve.model and how.way is Way.LANDLOCK:
        say(memory.NO_OPENING)
    for name, value in started.environment.items():
        say(f"{name}={value}")
    return 0


def _stop(asked: argparse.Namespace) -> int:
    its = _memory(asked)
    again = as_typed("`lnk agent memory start` serves it again.")
    return _say_ended(asked, its, its.stop(), f"The memory of {its.agent.name} is served no more", again)


def _remove(asked: argparse.Namespace) -> int:
    its = _memory(asked)
    stays = "Its documents, conversations and notes stay."
    return _say_ended(asked, its, its.remove(), f"Removed the memory of {its.agent.name} and its index", stays)


def _say_ended(asked: argparse.Namespace, its: memory.Memory, ended: int, what: str, then: str) -> int:
    if asked.json:
        say_json({"agent": its.agent.name, "tool": its.name, "ended": ended})
        return 0
    say(f"{what}; {counted(ended, 'session')} ended.")
    say(then)
    return 0


def _memory(asked: argparse.Namespace) -> memory.Memory:
    """The memory of the agent that is asked for, which is there."""
    return memory.Memory(Agents(asked.link_home).get(asked.agent), asked.environment)


# ---------------------------------------------------------------- setup


def _setup(asked: argparse.Namespace) -> int:
    which = clients.client(asked.client)
    if asked.remove:
        return _take_out(asked, which)
    agents = Agents(asked.link_home)
    agent = agents.by_id(agents.need(asked.agent, asked.documents).id)
    its = memory.Memory(agent, asked.environment)
    its.define(sandbox_of(asked), tell, stays_stopped=True)  # printed lines are for a client too
    name, path = clients.server_name(agent.name), clients.place_of(which, asked.environment)
    entry = clients.server_entry(which, its.name, asked.environment)
    lines = clients.lines_of(which, name, entry)
    changed = False
    if not asked.print:  # printed also where the file cannot be edited: then a person does it by these lines
        change = clients.plan(which, name, entry, asked.environment)
        if changed := change.changed:
            clients.write(change)
    if asked.json:
        say_json(_told(which, name, path, changed, lines))
    elif asked.print:
        say(f"In {path}:")
        say(lines.rstrip("\n"))
    elif not changed:
        say(f"Nothing to do: {path} has {name} already.")
    else:
        say(f"Wrote {name} into {path}; what else stands there is as it was.")
        say(f"It serves {agent.documents or agent.home + '/memory'}. {which.after}")
    if not asked.json and its.state()["stopped"]:
        tell(as_typed("lnk: It is stopped; `lnk agent memory start` serves it again."))
    return 0


def _take_out(asked: argparse.Namespace, which: clients.Client) -> int:
    """The agent itself may be gone: its name is all that is needed."""
    if asked.documents is not None:
        raise Invalid("Give --documents to set up, or --remove to take out, not both.")
    check_name(asked.agent)
    name = clients.server_name(asked.agent)
    change = clients.plan(which, name, None, asked.environment)
    if change.changed and not asked.print:
        clients.write(change)
    if asked.json:
        say_json(_told(which, name, change.path, change.changed and not asked.print, ""))
    elif not change.changed:
        say(f"Nothing to do: {change.path} does not have {name}.")
    elif asked.print:
        say(f"In {change.path}:")
        say(f"(without {name})")
    else:
        say(f"Took {name} out of {change.path}.")
    return 0


def _told(which: clients.Client, name: str, path: str, changed: bool, entry: str) -> dict[str, Any]:
    return {"client": which.name, "server": name, "path": path, "changed": changed, "entry": entry}


# ---------------------------------------------------------------- the calls


def _search(asked: argparse.Namespace) -> int:
    since = asked.since or (None if asked.query or asked.path else EVER)
    given = _given(asked, query=asked.query, path=asked.path, kind=asked.kind, since=since, next=asked.next)
    its = memory.Memory(Agents(asked.link_home).need(asked.agent), asked.environment)
    with memory.Session(its, asked.environment, sandbox_of(asked), meaning=bool(asked.query), hear=tell) as session:
        session.open()
        _index(session)
        reading = _Reading(session.ranks_by_meaning(MODEL_WAIT_S), SEARCH_WAIT_S, named=session.named)
        found = reading.search(session, given)
    if asked.json:
        say_json(found)
        return 0
    say_results(found, reader=lambda path: _again(asked, "read", path, "agent"))
    reading.say_how_far(found)
    _say_more(asked, found, asked.query, "path", "kind", "since", "tokens", "agent")
    return 0


def _read(asked: argparse.Namespace) -> int:
    found = _call(asked, "read", path=asked.path, line=asked.line)
    if asked.json:
        say_json(found)
        return 0
    say(found["text"].removesuffix("\n"))
    if found.get("next") and sys.stdout.isatty():
        further = _again(asked, "read", asked.path, "tokens", "agent", further=f"--line {found['next']}")
        say_styled(strong(f"({counted(found['of'], 'line')}; there is more: {further})"))
    return 0


def _list(asked: argparse.Namespace) -> int:
    found = _call(asked, "list", path=asked.path, kind=asked.kind, since=asked.since, next=asked.next)
    if asked.json:
        say_json(found)
        return 0
    rows = [
        [
            each["path"],
            each["changed"][:10],
            size(each["bytes"]),
            each.get("state") or "",
            each.get("left_out") or each["title"],
        ]
        for each in found["documents"]
    ]
    say_table(rows)
    for gone in found.get("removed", ()):
        say(f"{gone['path']}  removed {gone['removed'][:10]}  ({gone['title']})")
    if not rows and not found.get("removed"):
        say("Nothing.")
    say_notice(found)
    _say_more(asked, found, asked.path or "", "kind", "since", "tokens", "agent")
    return 0


def _links(asked: argparse.Namespace) -> int:
    found = _call(asked, "links", path=asked.path)
    if asked.json:
        say_json(found)
        return 0
    say(f"{found['path']} links to{':' if found['to'] else ' nothing'}")
    for link in found["to"]:
        say(f"  line {link['line']}: {link['as']} -> {link.get('path') or '(nothing yet)'}")
    say(f"and is linked from{':' if found['from'] else ' nothing.'}")
    for link in found["from"]:
        say(f"  {link['path']} line {link['line']}: {link['as']}")
    if found.get("left"):
        say(f"({found['left']:,} more; give a larger --tokens)")
    say_notice(found)
    return 0


def _notes(asked: argparse.Namespace) -> int:
    agent = Agents(asked.link_home).need(asked.agent)
    with Folder.open(os.path.realpath(agent.own), passage=True) as folder:
        text = (folder.read(os.path.relpath(agent.notes, agent.own), NOTES_BYTES_MAX) or b"").decode("utf-8", "replace")
    if asked.json:
        say_json({"path": agent.notes, "notes": text})
    else:
        say(text.removesuffix("\n") if text.strip() else f"There are no notes yet; they are kept in {agent.notes}.")
    return 0


def _call(asked: argparse.Namespace, name: str, **arguments: Any) -> dict[str, Any]:
    """What the memory answers once it is up to date."""
    its = memory.Memory(Agents(asked.link_home).need(asked.agent), asked.environment)
    with memory.Session(its, asked.environment, sandbox_of(asked), hear=tell) as session:
        session.open()
        _index(session)
        return _ask(session, name, _given(asked, **arguments))


def _given(asked: argparse.Namespace, **arguments: Any) -> dict[str, Any]:
    """A call's arguments, with the size that was asked for."""
    return {key: value for key, value in {**arguments, "tokens": asked.tokens}.items() if value is not None}


def _ask(program: Program, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    answer = program.call(name, arguments)
    if answer.failed:
        raise (Missing if answer.text.startswith("There is no") else Invalid)(answer.text)
    return dict(answer.structured)


def _again(asked: argparse.Namespace, call: str, what: str, *flags: str, further: str = "") -> str:
    """A command for a person to type: `call` of `what`, with those of `flags` that were given to this one."""
    words = [command(), "agent", "memory", call]
    for flag in flags:
        value = getattr(asked, flag)
        if value is not None and (flag, value) != ("agent", MAIN):
            words.append(f"--{flag} {quoted(str(value))}")
    if further:
        words.append(further)
    if what.startswith("-"):  # else it would be taken for a flag
        words.append("--")
    return " ".join([*words, *([quoted(what)] if what else [])])


def _say_more(asked: argparse.Namespace, found: Mapping[str, Any], what: str, *flags: str) -> None:
    if found.get("next"):
        further = f"--next={quoted(found['next'])}"  # it may begin with a dash
        say(f"There is more: {_again(asked, asked.call, what, *flags, further=further)}")


# ---------------------------------------------------------------- upkeep


def _status(asked: argparse.Namespace) -> int:
    agent = Agents(asked.link_home).need(asked.agent)
    if asked.check:
        return _check(asked)
    told, model = _model_of(agent, asked.environment)
    _, found = _engine(asked, "status", **told)
    found["agent"] = msgspec.structs.asdict(agent)
    found["meaning"] |= model
    found["tool"] = memory.Memory(agent, asked.environment).state()
    found["service"] = [msgspec.structs.asdict(each) for each in _services(found["tool"]["service"])]
    found["sandbox"] = sandbox_of(asked).way.value if found["tool"]["confined"] else Way.NONE.value
    if asked.json:
        say_json(found)
        return 0
    rows = [
        ("agent", f"{agent.name} ({agent.id})"),
        ("documents", f"{found['documents']:,} in {found['folders'][0]}"),
        ("conversations", f"{found['conversations']:,} in {found['folders'][-1]}"),
        ("text", f"{size(found['text_bytes'])} in {found['chunks']:,} chunks"),
        ("index", f"{size(found['index_bytes'])} in {found['state']}, made {found['made'][:10]}"),
        *_meaning_rows(found["meaning"]),
        ("tool", _tool_words(found["tool"])),
        *_service_rows(found["tool"]["service"], found["service"]),
        ("sandbox", found["sandbox"] if found["sandbox"] != Way.NONE else "none: it runs unconfined, as you typed"),
        ("notes", f"{size(_size_of(agent.notes))} in {agent.notes}"),
    ]
    if agent.documents:
        rows.append(("moves", "not whole: its documents lie in a folder of yours, outside the agent's"))
    for reason, count in found["left_out"].items():
        rows.append(("left out", f"{count:,}: {reason}"))
    for each in found.get("parsers", ()):
        rows.append(("parsers", each))
    if found.get("made_again"):
        rows.append(("made again", found["made_again"]))
    say_table(rows)
    say_notice(found)
    return 0


def _services(path: str | None) -> list[shared.Running]:
    return shared.running(path) if path else []


def _service_rows(path: str | None, running: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The one process that serves all of an owner's agents, where this agent is served by one."""
    if path is None:
        return []
    rows = []
    for one in running:
        if not one["since"]:
            rows.append(f"does not answer; end its process {one['pid']}, and the next session starts another")
            continue
        sessions = sum(one["sessions"].values())
        words = f"{counted(sessions, 'session')} of {counted(len(one['sessions']), 'agent')} of {one['agents']}"
        memory = "" if one["memory"] is None else f", {size(one['memory'])} of memory"
        models = f", model {', '.join(one['models'])}" if one["models"] else ""
        old = "" if one["current"] else "; it is from before a change, and ends with its last session"
        since = datetime.fromisoformat(one["since"]).astimezone().strftime("%Y-%m-%d %H:%M")
        rows.append(f"{words}{memory}{models}, since {since}{old}")
    if not any(one["current"] for one in running):
        rows.append("not running; the next session starts it")
    return [("service" if not at else "", row) for at, row in enumerate(rows)]


def _tool_words(tool: Mapping[str, Any]) -> str:
    if not tool["defined"]:
        why = "damaged" if tool["damaged"] else "not defined"
        return f"{why}; `{command()} agent memory start` or `setup` defines it"
    how = (
        "stopped" if tool["stopped"] else f"at {tool['address']}" if tool["address"] else "for clients that are set up"
    )
    return f"{tool['name']}, served by {tool['engine']}, {how}"


def _model_of(agent: Agent, environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """What the engine is told of the model that the agent's memory asks for; and what a person is, of who serves it."""
    from lnk.models.beside import place_for
    from lnk.models.serve import would_serve

    spec = memory.spec_model(agent)
    if spec in (NONE, BUILTIN):
        return {}, {}
    model = spec or MODEL_ASKED
    try:
        by, advice = would_serve(model, environment)
        place = place_for(model, environment) if by else None
    except LinkError as error:
        return {}, {"advice": str(error)}
    return {MODEL: place.told} if place else {}, {"served_by": by} if by else {"advice": advice}


def _meaning_rows(meaning: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What ranks by meaning and how far it got, or why nothing does; and other models' vectors, which are kept."""
    vectors = {each["model"]: each for each in meaning["vectors"]}
    name, of = meaning["model"], meaning["of"]
    if name is None:
        rows = [("meaning", f"words only{_why_words(meaning)}")]
    else:
        by = f" by {meaning['served_by']}" if "served_by" in meaning and name != BUILTIN else ""
        rows = [("meaning", _embedded(name + by, vectors.pop(name, None), of))]
    return rows + [("", f"{_embedded(other, each, of)}: kept, not in use now") for other, each in vectors.items()]


def _embedded(name: str, told: Mapping[str, Any] | None, of: int) -> str:
    done, numbers = (told["passages"], f", {told['dims']:,} numbers") if told else (0, "")
    return f"{done:,} of {of:,} passages embedded ({name}{numbers})"


def _why_words(meaning: Mapping[str, Any]) -> str:
    """Behind "words only": why, or how to get more."""
    asked = meaning["asked"]
    if asked is None:
        return ' (the spec says "none")'
    if asked == BUILTIN:
        return f"; {INSTALL} adds the built-in encoder"
    if meaning["named"]:
        return f", since {asked} is not there: {meaning['advice']}"
    return f"; to search by meaning, {INSTALL}, or {meaning['advice']}"


def _check(asked: argparse.Namespace) -> int:
    """Whether the index is what the folder is; exit status 1 where it is not."""
    status, found = _engine(asked, "check")
    if asked.json:
        say_json(found)
        return status
    if not found["differences"]:
        say(f"The index is as the folder is: {counted(found['documents'], 'document')}.")
        return status
    say(f"The index differs from the folder in {counted(found['differences'], 'place')}:")
    for key, words in DIFFERENCES.items():
        for each in found[key]:
            say(f"  {each}: {words}" if words else f"  {each}")
    say("A search or `status` brings it up to date; `reindex` makes it again.")
    return status


def _reindex(asked: argparse.Namespace) -> int:
    _, found = _engine(asked, "reindex")
    if asked.json:
        say_json(found)
    else:
        documents, conversations = (counted(found[f"{kind}s"], kind) for kind in ("document", "conversation"))
        say(f"Indexed {documents} and {conversations} again.")
        say_notice(found)
    return 0


def _size_of(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _engine(asked: argparse.Namespace, name: str, **told: str) -> tuple[int, dict[str, Any]]:
    """The exit status and answer of one of the engine's own commands; its progress goes to our standard error.

    `told`: variables that it is given.
    """
    agent = Agents(asked.link_home).need(asked.agent)
    engine = memory.Memory(agent, asked.environment).our_engine(sandbox_of(asked))
    flags = ["--json", *(["--documents", agent.documents] if agent.documents else [])]
    progress = _Progress()
    flags += ["--progress"] if progress.shown else []
    try:
        status, printed = engine.upkeep(name, *flags, told=told, tell=progress.hear)
    finally:
        progress.end()
    if status and not printed:
        raise _Said(status)
    try:
        return status, msgspec.json.decode(printed)
    except msgspec.DecodeError:
        raise Unavailable(f"What {engine.program} printed is no JSON; is Link Memory installed whole?") from None


class _Progress:
    """What the engine says beside: how far it is, as a line that goes again, and all else as it comes."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self._line = ProgressLine("Indexing")

    def hear(self, line: str) -> None:
        if found := PROGRESS.fullmatch(line):
            self._line(int(found[1]), int(found[2]))
        else:
            self.end()
            tell(line)

    def end(self) -> None:
        self._line.end()


class _Said(LinkError):
    """The engine has said on standard error what is wrong."""

    def __init__(self, status: int) -> None:
        super().__init__("")
        self.status = status


def _serve(asked: argparse.Namespace) -> int:
    agents = Agents(asked.link_home)
    agent = agents.by_id(asked.id) if asked.id else agents.need(asked.agent)
    its = memory.Memory(agent, asked.environment, engine=asked.engine, others=asked.others)
    its.become(sandbox_of(asked), tell)


def _connect(asked: argparse.Namespace) -> int:
    from lnk.agent import proxy

    proxy.relay(asked.dir, asked.id)


def _renew(asked: argparse.Namespace) -> int:
    agent = Agents(asked.link_home).by_id(asked.id)
    memory.Memory(agent, asked.environment).renew(sandbox_of(asked))
    return 0


def _service(asked: argparse.Namespace) -> int:
    from lnk.agent import service

    path = os.path.abspath(asked.dir) if asked.dir else shared.place_for(asked.link_home, owner_name())
    if asked.log:
        return _service_log(asked, path)
    peer = peer_of(asked.peer, asked.group)
    service.serve(path, asked.engine, asked.environment, sandbox_of(asked), ready=1, peer=peer)


def _service_log(asked: argparse.Namespace, path: str) -> int:
    lines = shared.log(path, LOG_LINES)
    if asked.json:
        say_json({"log": lines})
        return 0
    if not lines:
        say(f"The service in {path} has logged nothing yet.")
    for line in lines:
        rest = " ".join(f"{key}={value}" for key, value in line.items() if key not in ("time", "service", "event"))
        say(f"{line.get('time', '')}  {line.get('service', '')}  {line.get('event', '')}  {rest}".rstrip())
    return 0
