"""The child process in which one document is read: what it is told, what it gives up, what it answers.

The document is its input, a regular file that the parent opened; one JSON object on its output is the answer,
`{"text", "pages", "title"}` or `{"left_out"}`. The other end is `lnk.documents.cage`, which believes none of it.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Final, NamedTuple

import msgspec

from lnk import confine
from lnk.documents.content import (
    CRASHED,
    FILE_BYTES_MAX,
    NO_TEXT,
    TEXT_BYTES_MAX,
    TEXT_TOO_LARGE,
    TOO_MUCH_MEMORY,
    Content,
    LeftOut,
)

FILE_TOO_LARGE: Final = "it is over 32 MiB"
NICE: Final = 10
FILES_MAX: Final = 16  # while it is imported and begins; afterwards it can open none

_Read = Callable[[bytes], Content]


class Limits(NamedTuple):
    """What one document may take. A real one of 1,000 pages takes 3 s and 150 MiB."""

    memory_bytes: int = 512 << 20  # address space, the interpreter's own included
    cpu_s: int = 20
    wall_s: int = 30


LIMITS: Final = Limits()


def main() -> None:
    """Reads one document as `argv` says: the parent's process number, the reader's module, and `Limits`."""
    parent, module, *numbers = sys.argv[1:]
    limits = Limits(*map(int, numbers))
    confine.end_with(int(parent))
    os.nice(NICE)
    try:
        # Imported before anything is closed: no module, and no codec, can be found afterwards.
        read: _Read = import_module(module).read
        confine.limit(**limits._asdict(), files=FILES_MAX, processes=0)
        confine.close_the_world()
        answer = _answer(read)
    except BaseException as error:  # the top of the child
        answer = _left_out(_reason(error))
    _write(answer)
    os._exit(0)  # nothing that a document touched is asked to clean up


def launch() -> None:
    """Becomes another program as `argv` says: the parent's process number, `Limits`, the program and its arguments."""
    parent, memory_bytes, cpu_s, wall_s, *program = sys.argv[1:]
    confine.end_with(int(parent))
    os.nice(NICE)
    confine.limit(memory_bytes=int(memory_bytes), cpu_s=int(cpu_s), wall_s=int(wall_s), files=FILES_MAX)
    os.execve(program[0], program, {})


def can_be_seen(text: str) -> bool:
    """Whether anything of it can."""
    return any(char.isprintable() and char != " " for char in text)


def _answer(read: _Read) -> bytes:
    """What is written for the document. Raises LeftOut, and whatever `read` does."""
    content = read(_document())
    size = len(content.text.encode())
    if size > TEXT_BYTES_MAX:
        raise LeftOut(TEXT_TOO_LARGE)
    if not can_be_seen(content.text):
        raise LeftOut(NO_TEXT)
    return msgspec.json.encode(content)


def _document() -> bytes:
    """The input, whole. Raises LeftOut where it is too large."""
    parts = []
    left = FILE_BYTES_MAX + 1
    while left > 0 and (part := os.read(0, left)):
        parts.append(part)
        left -= len(part)
    if not left:
        raise LeftOut(FILE_TOO_LARGE)
    return b"".join(parts)


def _reason(error: BaseException) -> str:
    if isinstance(error, LeftOut):
        return str(error)
    return TOO_MUCH_MEMORY if isinstance(error, MemoryError) else CRASHED


def _left_out(reason: str) -> bytes:
    return msgspec.json.encode({"left_out": reason})


def _write(answer: bytes) -> None:
    rest = memoryview(answer)
    while rest:
        rest = rest[os.write(1, rest) :]
