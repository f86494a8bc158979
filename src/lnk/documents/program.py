"""`lnk-link-documents`: the plugin's program, which reads one document from its standard input.

What it says is what the engine's own child says (`lnk.documents.child`): here are only its arguments and its exit.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import BinaryIO, Final

import msgspec

from lnk import __version__
from lnk.documents import child
from lnk.documents.cage import Cage
from lnk.documents.content import FILE_BYTES_MAX, KINDS, NEEDS_OFFICE, OLD_ENDINGS, OLD_FORMAT, LeftOut

PROGRAM: Final = "lnk-link-documents"
NOT_READ: Final = 1
WRONG_USE: Final = 2
INTERRUPTED: Final = 130

_HELP = """\
The text of PDF, Word and other documents. Link's memory engine runs it, and so may you:

  lnk-link-documents text pdf --plain < lease.pdf"""


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    top = argparse.ArgumentParser(prog=PROGRAM, description=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--version", action="version", version=f"Link Memory {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("kinds", help="print which endings are read on this machine, as JSON")
    text = commands.add_parser("text", help="read the document on standard input, and print its text as JSON")
    text.add_argument("kind", metavar="KIND", help=f"what it is: {', '.join(KINDS)}")
    text.add_argument("--plain", action="store_true", help="print the text itself, or in a sentence why there is none")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program. Its exit status: 1 where there is no text (`--plain` only), 2 where it is used wrongly."""
    usage = parser()
    asked = usage.parse_args(argv)
    if asked.command == "kinds":
        return _print(msgspec.json.encode([kind for kind in KINDS if KINDS[kind].there()]) + b"\n")
    kind = asked.kind.lower().removeprefix(".")
    if kind in OLD_ENDINGS:
        usage.error(f"{OLD_FORMAT}.")
    if kind not in KINDS:
        usage.error(f"no kind is called {asked.kind!r}; there are {', '.join(KINDS)}.")
    try:
        return _print_text(kind) if asked.plain else _answer(kind)
    except LeftOut as reason:
        sys.stderr.write(f"{PROGRAM}: no text of this {kind} file: {reason}.\n")
        return NOT_READ
    except KeyboardInterrupt:
        return INTERRUPTED


def _answer(kind: str) -> int:
    """The engine's child's answer, given by this very process, which closes everything else first."""
    if not KINDS[kind].there():
        return _print(msgspec.json.encode({"left_out": NEEDS_OFFICE}))
    sys.argv[1:] = [str(os.getppid()), KINDS[kind].module, *map(str, child.LIMITS)]
    child.main()
    return 0


def _print_text(kind: str) -> int:
    if not KINDS[kind].there():
        raise LeftOut(f"{NEEDS_OFFICE}; `pip install 'link-memory[office]'` brings it")
    with _document() as document:
        return _print(Cage().read(document.fileno(), kind).text.encode())


def _document() -> BinaryIO:
    """Standard input as a file, which it is not where it comes through a pipe."""
    with contextlib.suppress(OSError):
        sys.stdin.buffer.seek(0)
        return sys.stdin.buffer
    file = tempfile.TemporaryFile()  # noqa: SIM115  whoever asked closes it
    file.write(sys.stdin.buffer.read(FILE_BYTES_MAX + 1))
    file.flush()
    return file


def _print(data: bytes) -> int:
    with contextlib.suppress(BrokenPipeError):  # whoever reads it has seen enough
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
