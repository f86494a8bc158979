"""`lnk`'s command line, and the one place where its arguments and environment are read."""

import argparse
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

from lnk import __version__
from lnk.agent.home import link_home
from lnk.cli import output
from lnk.errors import INTERRUPTED, Invalid, LinkError, Unavailable, Usage

SIGNALLED = 128  # and the signal's number: an exit status as shells count it


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Usage(f"{message}; `{self.prog} --help` shows how it is used.")

    def print_help(self, file: Any = None) -> None:
        """Like the rest of what is printed, since argparse itself says nothing where it cannot be written."""
        output.write(self.format_help())


def parser(noun: str | None = None, verb: str | None = None) -> argparse.ArgumentParser:
    """The whole command line; of what is not asked for by `noun` and `verb` perhaps the name alone."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object")
    top = _Parser(prog=output.command(), description="Your agents and their memory, on your own machine.")
    top.add_argument("--version", action="version", version=f"Link Memory {__version__}")
    nouns = top.add_subparsers(metavar="NOUN", required=True, dest="noun")
    for name, (about, fill) in _NOUNS.items():
        found = nouns.add_parser(name, help=about)
        if noun in (None, name):
            fill(found, common, verb)
    return top


# What a noun's commands load, no other noun's command need load too: each is imported where it is wanted.


def _agent(parser: argparse.ArgumentParser, common: argparse.ArgumentParser, _: str | None) -> None:
    from lnk.cli import agents, memory, tools

    verbs = parser.add_subparsers(metavar="COMMAND", required=True, dest="verb")
    agents.add(verbs, common)
    tools.add_agent(verbs, common)
    about = "search, read and look after an agent's memory, and attach clients to it"
    remembering = verbs.add_parser("memory", help=about, description=f"{about[0].upper()}{about[1:]}.")
    memory.add(remembering.add_subparsers(metavar="COMMAND", required=True, dest="call"), common)


def _model(parser: argparse.ArgumentParser, common: argparse.ArgumentParser, _: str | None) -> None:
    from lnk.cli import models

    models.add(parser.add_subparsers(metavar="COMMAND", required=True, dest="verb"), common)


def _sandbox(parser: argparse.ArgumentParser, common: argparse.ArgumentParser, verb: str | None) -> None:
    from lnk.cli import sandbox

    verbs = parser.add_subparsers(metavar="COMMAND", required=True, dest="verb")
    sandbox.add(verbs, common)
    if verb == "run":  # what starts a program loads nothing for tools and probes
        return
    from lnk.cli import check, tools

    check.add(verbs, common)
    tools.add_sandbox(verbs, common)


def _uninstall(parser: argparse.ArgumentParser, _: argparse.ArgumentParser, __: str | None) -> None:
    from lnk.cli import uninstall

    uninstall.add(parser)


_NOUNS: Final = {
    "agent": ("your agents, and their memory", _agent),
    "model": ("embedding models in runtimes on this machine", _model),
    "sandbox": ("programs kept to what they need, and the tools that agents are given", _sandbox),
    "uninstall": ("stop everything, and take Link out of your MCP clients", _uninstall),
}


def main(argv: Sequence[str], signals: Iterable[int] = ()) -> int:
    """Run the program. Its exit status says what kind of error it was. `signals`: which are held back as it runs."""
    output.prepare()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, _end)
    try:
        return _run(list(argv), signals)
    except KeyboardInterrupt:
        output.tell("")
        return INTERRUPTED
    except BrokenPipeError:
        output.discard()  # whoever read our output has seen enough
        return 0
    except LinkError as error:
        if str(error):
            output.tell(f"lnk: {output.as_typed(str(error))}")
        return error.status


def _run(argv: list[str], signals: Iterable[int]) -> int:
    if sys.platform == "win32":
        raise Unavailable("Link runs on Linux and macOS; on Windows, run it inside WSL.")
    for word in argv:
        _must_be_text(word, "The argument")
    home = link_home(os.environ)
    _must_be_text(home, "$LNK_HOME")
    try:
        asked = parser(*argv[:2]).parse_args(argv)
    except SystemExit:  # `--help` has been printed
        output.finish()
        raise
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)  # what came meanwhile ends it now
    asked.environment = dict(os.environ)
    asked.link_home = home
    status = int(asked.run(asked))
    output.finish()
    return status


def _must_be_text(word: str, what: str) -> None:
    """Raises Invalid for bytes that are no UTF-8, which neither JSON nor MCP can carry."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{what} {word!r} is not UTF-8; rename the file or folder, or give another.") from None


def _end(number: int, _frame: object) -> NoReturn:
    """The program ends as if it had come to its end, so that what it has for a while only is taken away."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # once is enough
    sys.exit(SIGNALLED + number)
