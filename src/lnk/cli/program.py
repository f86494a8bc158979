"""`lnk`: its command line, and the one place where its arguments and environment are read."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from lnk import __version__
from lnk.agent.folders import link_home
from lnk.cli import agents, memory
from lnk.errors import INTERRUPTED, LinkError, Unavailable, Usage


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Usage(f"{message}; `{self.prog} --help` shows how it is used.")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object")
    top = _Parser(prog="lnk", description="Your agents and their memory, on your own machine.")
    top.add_argument("--version", action="version", version=f"Link Memory {__version__}")
    nouns = top.add_subparsers(metavar="NOUN", required=True, dest="noun")
    agent = nouns.add_parser("agent", help="your agents, and their memory")
    verbs = agent.add_subparsers(metavar="COMMAND", required=True, dest="verb")
    agents.add(verbs, common)
    about = "search, read and look after an agent's memory, and attach clients to it"
    memory.add(
        verbs.add_parser("memory", help=about, description=f"{about[0].upper()}{about[1:]}.").add_subparsers(
            metavar="COMMAND", required=True, dest="call"
        ),
        common,
    )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. Its exit status says what kind of error it was."""
    try:
        if sys.platform == "win32":
            raise Unavailable("Link runs on Linux and macOS; on Windows, run it inside WSL.")
        asked = parser().parse_args(argv)
        asked.environment = dict(os.environ)
        asked.link_home = link_home(os.environ)
        status = int(asked.run(asked))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever read our output has seen enough
        return 0
    except LinkError as error:
        if str(error):
            sys.stderr.write(f"lnk: {error}\n")
        return error.status


if __name__ == "__main__":
    sys.exit(main())
