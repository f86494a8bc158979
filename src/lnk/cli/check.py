"""`lnk sandbox check`: what this machine can confine, tried, not guessed.

`lnk.sandbox` is imported by the command itself: every other start of `lnk` does without.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lnk.cli.output import say, say_json, say_styled, say_table, strong
from lnk.errors import NoSandbox, Usage

if TYPE_CHECKING:
    from lnk.sandbox.denials import Row, Table
    from lnk.sandbox.ways import Tried

ALL: Final = "all"
HELD, NOT_HELD = 0, 1


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The command, under `lnk sandbox`."""
    about = "try what a sandboxed program could do on this machine, and see it denied"
    check = commands.add_parser("check", parents=[common], help=about, description=f"{about[0].upper()}{about[1:]}.")
    check.add_argument(
        "--way", metavar="WAY", help=f"how to confine, as the command names it, or {ALL} (default: the best)"
    )
    check.set_defaults(run=_check)


def _check(asked: argparse.Namespace) -> int:
    from lnk.sandbox.denials import tables
    from lnk.sandbox.ways import tried

    ways = tried(asked.environment)
    if not asked.json:
        _say_ways(ways)
    chosen = _chosen(ways, asked.way, asked.environment)
    found = [table for way in chosen for table in tables(way, asked.environment)]
    holds = not any(table.faults() for table in found)
    if asked.json:
        say_json({"ways": ways, "tables": found, "holds": holds})
    else:
        _say(found)
    return HELD if holds else NOT_HELD


def _chosen(ways: Sequence["Tried"], asked: str | None, environment: Mapping[str, str]) -> list["Tried"]:
    """The ways to try. Raises NoSandbox where none works, or not the one asked for, Usage for one that is none."""
    from lnk.sandbox.ways import best

    working = [way for way in ways if way.works]
    if not working:
        return [best(environment)]  # which says why
    if asked is None:
        return working[:1]
    if asked == ALL:
        return working
    for way in ways:
        if way.way == asked and not way.works:
            raise NoSandbox(f"{way.way} does not work here: {way.why}.")
    found = [way for way in working if way.way == asked]
    if not found:
        raise Usage(f"{asked!r} is no way to confine; give one of {', '.join(way.way for way in ways)}, or {ALL}.")
    return found


def _say_ways(ways: Sequence["Tried"]) -> None:
    rows = [[way.way, "works" if way.works else "does not work", way.program or "", way.why] for way in ways]
    say_table(rows, head=("way", "", "program", "why"))


def _say(found: Sequence["Table"]) -> None:
    """The tables of one way side by side, and what they come to."""
    for way in dict.fromkeys(table.way for table in found):
        tables = [table for table in found if table.way == way]
        say()
        say_styled(strong(f"In a sandbox made by {way}"))
        heads = ["with a model" if table.model else "alone" for table in tables]
        outcomes = [{(row.group, row.probe): _outcome(row) for row in table.rows} for table in tables]
        names = [(row.group, row.probe) for row in max(tables, key=lambda table: len(table.rows)).rows]
        for group in dict.fromkeys(group for group, _ in names):
            inside = [name for name in names if name[0] == group]
            say_table([[name[1], *(said.get(name, "") for said in outcomes)] for name in inside], head=(group, *heads))
    say()
    for line in _said(found):
        say(line)


def _outcome(row: "Row") -> str:
    how = f" ({row.how})" if row.how else ""
    if row.outcome == "untried":
        return f"not tried{how}" if row.holds else f"NO WORD{how}"
    if row.holds:
        return f"{row.outcome}{how}"
    return f"ALLOWED{how}" if row.expected == "denied" else f"FAILS{how}"


def _said(found: Sequence["Table"]) -> list[str]:
    """What it comes to, in words."""
    rows = [row for table in found for row in table.rows]
    faults = [fault for table in found for fault in table.faults()]
    untried = {row.probe for row in rows if row.outcome == "untried" and row.holds}
    left = f" Not tried here: {', '.join(sorted(untried))}." if untried else ""
    if not faults:
        return [f"All is as it should be: what must be denied is denied, and what a program needs works.{left}"]
    named = dict.fromkeys(f"{_outcome(fault)}: {fault.probe}." for fault in faults)
    return [*named, f"{len(faults):,} of {len(rows):,} outcomes are not as they should be.{left}"]
