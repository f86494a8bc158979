"""What a person sees: text on a terminal or in a pipe, or one JSON object with `--json`."""

import contextlib
import io
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from lnk.contract.spec import format_size
from lnk.errors import from_os

PASSAGE_LINES: Final = 6
NAME: Final = "lnk"
_BOLD, _DIM, _OFF = "\033[1m", "\033[2m", "\033[0m"
_UNSHOWN = {number: "\ufffd" for number in (*range(32), *range(127, 160)) if chr(number) not in "\n\t"}
_ESCAPED = {number: f"\\u{number:04x}" for number in range(127, 160)}  # JSON escapes those before 32 itself


def colours() -> bool:
    """Whether standard output is a terminal that shows them."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def prepare() -> None:
    """Every stream is there and takes every character, whatever it is and however we were started."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:  # one was closed: what is opened later would take its place and be written to
        os.set_inheritable(fd, True)
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)
    sys.stdout = sys.stdout or _stream(1)
    sys.stderr = sys.stderr or _stream(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _stream(fd: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), "utf-8", write_through=True)


def finish() -> None:
    """What was said is written. Raises Full and so on where it cannot be; a reader who has seen enough is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard()
    except OSError as error:
        discard()
        raise from_os(error, "write the output") from None


def discard() -> None:
    """What could not be written goes nowhere, so that the end of the program does not try it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def write(text: str) -> None:
    """Text to standard output, as it is. Raises BrokenPipeError, and Full and so on where it cannot be written."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        discard()
        raise from_os(error, "write the output") from None


def say(text: str = "") -> None:
    """A line for the person."""
    write(plain(text) + "\n")


def tell(text: str) -> None:
    """One line on standard error; nobody may be there any more to read it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(plain(text).replace("\n", " ") + "\n")
        sys.stderr.flush()


def plain(text: str) -> str:
    """`text` with line ends as ours, and control characters, which could drive the terminal, as U+FFFD."""
    return re.sub(r"\r(?=\n|\Z)", "", text).translate(_UNSHOWN)


def say_json(value: Any) -> None:
    """One JSON object, for a program; a terminal that shows it is not driven by it either."""
    write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode().translate(_ESCAPED) + "\n")


def command() -> str:
    """Our own name as it was typed, for a person to type it again."""
    typed = sys.argv[0]
    if os.path.basename(typed) != NAME:
        return NAME
    found = shutil.which(NAME)
    return NAME if found and os.path.realpath(found) == os.path.realpath(typed) else quoted(typed)


def as_typed(text: str) -> str:
    """A sentence that names our commands by our own name, with the name that was typed."""
    return text.replace(f"`{NAME} ", f"`{command()} ")


def counted(count: int, noun: str) -> str:
    """ "1 document", "2 documents"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def strong(text: str) -> str:
    """What the eye is to find first."""
    return _styled(text, _BOLD)


def faint(text: str) -> str:
    """What stands beside."""
    return _styled(text, _DIM)


def _styled(text: str, style: str) -> str:
    text = plain(text)  # before the style goes around it
    return f"{style}{text}{_OFF}" if colours() else text


def say_styled(text: str) -> None:
    """A line of parts that `strong` and `faint` gave."""
    write(text + "\n")


def say_results(found: dict[str, Any], *, reader: Callable[[str], str] | None = None) -> None:
    """The results of a search; `reader` gives the command that shows the document of a path."""
    for number, result in enumerate(found["results"], 1):
        path = result["path"]
        place = f"{path}  {result['changed'][:10]}  {_where(result)}"
        if result["matched"] not in ([], ["words"]):
            place += f"  by {' and '.join(result['matched'])}"
        say_styled(f"{number}. {strong(result['title'])}  {faint(place)}")
        lines = [line for line in result["text"].split("\n") if line.strip()]
        for line in lines[:PASSAGE_LINES]:
            say("   " + line)
        if len(lines) > PASSAGE_LINES:
            how = f": {reader(path)}" if reader else ""
            say_styled(faint(f"   … {counted(len(lines) - PASSAGE_LINES, 'more line')}{how}"))
        if result.get("copies"):
            say_styled(faint("   copies: " + ", ".join(result["copies"])))
        say()
    if found.get("empty"):
        say(found["empty"])
    say_notice(found)


def _where(result: dict[str, Any]) -> str:
    """Where in its document a passage stands: by the pages of one that has some, else by the lines."""
    first, last = result["pages"] if "pages" in result else result["lines"]
    if "pages" not in result:
        return f"lines {first}-{last}"
    return f"page {first}" if first == last else f"pages {first}-{last}"


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


def quoted(text: str) -> str:
    """A word as a shell takes it."""
    if text and all(char.isalnum() or char in "/._-+@%:=" for char in text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"


class ProgressLine:
    """One line on standard error that tells how far long work is: only on a terminal, gone when it is done."""

    def __init__(self, what: str, unit: str = "") -> None:
        self._what = what
        self._unit = f" {unit}" if unit else ""
        self._shown = False

    def __call__(self, done: int, of: int) -> None:
        if sys.stderr.isatty():
            share = f"{done * 100 // of} %" if of else ""
            self._write(f"\r\033[K{self._what}: {done:,} of {of:,}{self._unit} {share}")
            self._shown = True

    def end(self) -> None:
        """Take the line away."""
        if self._shown:
            self._write("\r\033[K")
            self._shown = False

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal may be closed by now
            sys.stderr.write(text)
            sys.stderr.flush()
