"""`lnk sandbox run`: a program kept to what it is given, and `--explain`, which says what that is."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lnk.agent.home import link_home
from lnk.cli.confined import add_no_sandbox, sandbox_of
from lnk.cli.output import say, say_json, say_table, tell
from lnk.errors import Invalid, Refused
from lnk.sandbox.launch import become
from lnk.sandbox.places import follow, hold
from lnk.sandbox.plan import MADE, Kind, Step, beneath
from lnk.sandbox.policy import Policy
from lnk.sandbox.programs import needs
from lnk.sandbox.ways import Tried, Way

# Of Link's own folder of agents: no program that a tool runs has a use for it, and what stands there runs unconfined.
HIDDEN: Final = (".memory", ".tools")
PASSED: Final = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "COLORTERM", "NO_COLOR", "TZ")
_ABOUT: Final = """\
Run a program that reads and writes what it is given, and nothing else: no other file, no network, no process outside.
What it is made of (its interpreter, its libraries, its packages) is found and added."""
_SOCKETS: Final = (
    "With --socket the program may use Unix sockets at all, and so those too that lie in a folder that it may read."
)
_WORDS: Final = {
    Kind.LINK: "a link",
    Kind.READ: "read",
    Kind.RUN: "read: part of the program",
    Kind.WRITE: "read and write",
    Kind.SOCKET: "connect to",
    Kind.HIDE: "empty",
    Kind.PROCESSES: "its own processes alone",
    Kind.DEVICES: "the harmless devices alone",
    Kind.TEMPORARY: "its own, gone with it",
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The command, under `lnk sandbox`."""
    run = commands.add_parser(
        "run", parents=[common], help="run a program in a sandbox", description=_ABOUT, epilog=_SOCKETS
    )
    places = {"metavar": "PATH", "action": "append", "default": []}
    run.add_argument("--read", **places, help="a folder or file that it may read; left out where it is not there")
    run.add_argument("--write", **places, help="a folder or file that it may write")
    run.add_argument("--hide", **places, help="what lies in one of those and is empty for it")
    run.add_argument("--socket", **places, help="a Unix socket that it may connect to")
    run.add_argument("--network", action="store_true", help="it may use the network as you can")
    run.add_argument("--env", metavar="K=V", action="append", default=[], help="a variable; K alone passes yours on")
    run.add_argument("--explain", action="store_true", help="say what it would be given, and run nothing")
    add_no_sandbox(run)
    run.add_argument("argv", nargs="+", metavar="ARGV", help="after `--`: the program and its arguments")
    run.set_defaults(run=_run)


def _run(asked: argparse.Namespace) -> int:
    argv, policy = asked_for(asked)
    tried = sandbox_of(asked)
    if asked.explain:
        _explain(asked, argv, policy, tried)
        return 0
    sys.stdout.flush()
    become(policy, argv, tried)


def asked_for(asked: argparse.Namespace) -> tuple[list[str], Policy]:
    """The program with its absolute path, and its policy. Raises Missing, Invalid and Refused."""
    needed = needs(asked.argv[0], asked.environment)
    homes = dict.fromkeys((asked.link_home, link_home({})))
    kept = [f"{home}/Agents/{name}" for home in homes for name in HIDDEN]
    policy = Policy(
        reads=_real(asked.read),
        writes=_writes(asked.write, kept),
        programs=needed.programs,
        hidden=(*needed.hidden, *_real(asked.hide), *_real(kept)),
        sockets=_real(asked.socket),
        network=asked.network,
        environment={**_passed(asked.environment), **needed.environment, **_variables(asked.env, asked.environment)},
    )
    for path in policy.reads:
        if not os.path.lexists(path):
            tell(f"lnk: {path} is not there; the program runs without it.")
    return [needed.program, *asked.argv[1:]], msgspec.structs.replace(policy, folder=_folder(policy))


def _folder(policy: Policy) -> str:
    """The folder we are in, where the program finds it too."""
    here = os.getcwd()
    given = {*policy.reads, *policy.writes}
    above = [place for place in (*given, *(step.path for step in MADE)) if beneath(here, place)]
    return here if above and max(above, key=len) in given else "/"


def _real(paths: list[str]) -> tuple[str, ...]:
    """A person's paths, absolute, the links on their way followed: once, here, and never again."""
    if "" in paths:  # a variable that is not set, most likely: it must not mean the folder one happens to be in
        raise Invalid("A path that is given to the sandbox is empty; give one, or leave the flag out.")
    return tuple(os.path.realpath(path) for path in paths)


def _writes(paths: list[str], kept: list[str]) -> tuple[str, ...]:
    """The same of what it is to write. Raises Refused where by one of them it could put another in the place of `kept`.

    What is hidden in a folder is as safe as that folder's name: who writes above it moves it away, and makes it anew.
    """
    found = _real(paths)
    for each in kept:
        links: dict[str, str] = {}
        follow(each, links)
        real = os.path.realpath(each)
        for path in found:
            if beneath(path, real) or any(beneath(name, path) for name in (real, *links)):
                raise Refused(
                    f"{path} cannot be written by the sandbox: it is, holds or lies in {each}, which no sandbox may"
                    " change; give a folder beside that."
                )
    return found


def _passed(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in PASSED if name in environment}


def _variables(told: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for each in told:
        name, sign, value = each.partition("=")
        if not name:
            raise Invalid(f"--env {each!r} names no variable; write it as NAME=VALUE.")
        if sign or name in environment:
            found[name] = value if sign else environment[name]
    return found


def _explain(asked: argparse.Namespace, argv: list[str], policy: Policy, tried: Tried) -> None:
    with hold(policy) as places:
        steps = places.steps
    if asked.json:
        say_json(
            {"argv": argv, "sandbox": tried, "policy": policy, "steps": [_as_json(step) for step in steps]},
        )
        return
    say(f"{shlex.join(argv)}, in {policy.folder}")
    say(f"By {tried.way}{f' ({tried.program})' if tried.program else ''}.")
    if tried.why:
        say(f"Note: {tried.why}.")
    if tried.way is not Way.NONE:
        say("All that it finds:")
        say_table([(f"  {step.path}", _WORDS[step.kind] + (f" to {step.to}" if step.to else "")) for step in steps])
    say("Network: " + ("as you have it." if policy.network else "none."))
    if policy.sockets:
        say("Unix sockets: those named, and any that lies in what it may read.")
    say("Variables: " + (", ".join(sorted(policy.environment)) or "none") + ".")


def _as_json(step: Step) -> dict[str, str]:
    return {"kind": step.kind, "path": step.path, **({"to": step.to} if step.to else {})}
