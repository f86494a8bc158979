"""What a person sees: text on a terminal or in a pipe, or one JSON object with `--json`."""

import os
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lnk.contract.spec import format_size

PASSAGE_LINES: Final = 6
_BOLD, _DIM, _OFF = "\033[1m", "\033[2m", "\033[0m"
_UNSHOWN = {number: "\ufffd" for number in (*range(32), *range(127, 160)) if chr(number) not in "\n\t"}


def colours() -> bool:
    """Whether standard output is a terminal that shows them."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def say(text: str = "") -> None:
    """A line for the person. Control characters, which could drive the terminal, are shown as U+FFFD."""
    sys.stdout.write(text.translate(_UNSHOWN) + "\n")


def say_json(value: Any) -> None:
    """One JSON object, for a program."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def strong(text: str) -> str:
    """What the eye is to find first."""
    return _styled(text, _BOLD)


def faint(text: str) -> str:
    """What stands beside."""
    return _styled(text, _DIM)


def _styled(text: str, style: str) -> str:
    text = text.translate(_UNSHOWN)  # before the style goes around it
    return f"{style}{text}{_OFF}" if colours() else text


def say_styled(text: str) -> None:
    """A line of parts that `strong` and `faint` gave."""
    sys.stdout.write(text + "\n")


def say_results(found: dict[str, Any], *, readable: bool = True) -> None:
    """The results of a search; `readable`: by the path that is shown, from the command line."""
    for number, result in enumerate(found["results"], 1):
        path, (first, last) = result["path"], result["lines"]
        place = faint(f"{path}  {result['changed'][:10]}  lines {first}-{last}")
        say_styled(f"{number}. {strong(result['title'])}  {place}")
        lines = [line for line in result["text"].split("\n") if line.strip()]
        for line in lines[:PASSAGE_LINES]:
            say("   " + line)
        if len(lines) > PASSAGE_LINES:
            how = f": lnk agent memory read {quoted(path)}" if readable else ""
            say_styled(faint(f"   … {len(lines) - PASSAGE_LINES} more lines{how}"))
        if result.get("copies"):
            say_styled(faint("   copies: " + ", ".join(result["copies"])))
        say()
    if found.get("empty"):
        say(found["empty"])
    say_notice(found)


def say_notice(found: dict[str, Any]) -> None:
    """What keeps an answer from being the whole truth."""
    if found.get("indexed"):
        say_styled(faint(f"(still indexing: {found['indexed']['done']:,} of {found['indexed']['of']:,})"))
    if found.get("stale"):
        say(f"Note: {found['stale']}")


def say_table(rows: Sequence[Sequence[str]], *, head: Sequence[str] = ()) -> None:
    """Columns under each other."""
    every = [list(head), *map(list, rows)] if head else list(map(list, rows))
    if not every:
        return
    widths = [max(width(row[at]) for row in every) for at in range(len(every[0]))]
    for number, row in enumerate(every):
        cells = [cell + " " * (size - width(cell)) for cell, size in zip(row, widths, strict=True)]
        line = "  ".join(cells).rstrip()
        if number == 0 and head:
            say_styled(faint(line))
        else:
            say(line)


def width(text: str) -> int:
    """The columns that `text` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def size(count: int) -> str:
    """Bytes for a person."""
    return format_size(int(count))


def quoted(path: str) -> str:
    """A path as a shell takes it."""
    return path if all(char.isalnum() or char in "/._-+@%" for char in path) else "'" + path.replace("'", "'\\''") + "'"


class ProgressLine:
    """One line on standard error that tells how far long work is: only on a terminal, gone when it is done."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = False

    def __call__(self, done: int, of: int) -> None:
        if sys.stderr.isatty():
            share = f"{done * 100 // of} %" if of else ""
            sys.stderr.write(f"\r\033[K{self._what}: {done:,} of {of:,} {share}")
            sys.stderr.flush()
            self._shown = True

    def end(self) -> None:
        """Take the line away."""
        if self._shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._shown = False
