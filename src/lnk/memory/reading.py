"""Read: a document's text from a line on, whole lines, as many as an answer holds."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from lnk.errors import Invalid, Missing
from lnk.memory.budget import Budget, cut_to, measure
from lnk.memory.index import CHUNK_BITS, Index
from lnk.memory.names import NOT_UTF8_MARK, folded, folded_name, shown

SUGGESTED: Final = 3
LINES_MAX: Final = 1 << 31  # no text that is indexed has so many, and SQLite takes no number of 80 bits


class Part(NamedTuple):
    """Whole lines of a text: where they are, and where it goes on; `cut` where one line alone was too long."""

    text: str
    first: int
    last: int
    next: int | None
    cut: bool


def part_of(pieces: Iterable[str], start: int, line: int, of: int, budget: Budget) -> Part:
    """The lines from `line` on that fit, at least one. `pieces`, put together, are the text from line `start` on.

    Raises Invalid where there is no such line.
    """
    if of == 0 and line == 1:
        return Part("", 0, 0, None, False)
    if not 1 <= line <= of:
        lines = "1 line" if of == 1 else f"{of:,} lines"
        raise Invalid(f"line is {line}, and the document has {lines}; give a line from 1 to {of:,}.")
    kept: list[str] = []
    number = line
    for text in _lines_from(pieces, line - start):
        chars, size = measure(text)
        if chars - 2 > budget.chars or size - 2 > budget.bytes:
            if not kept:
                after = number + 1 if number < of else None
                return Part(cut_to(text, budget), line, line, after, True)
            break
        budget.chars -= chars - 2
        budget.bytes -= size - 2
        kept.append(text)
        number += 1
    return Part("".join(kept), line, number - 1, number if number <= of else None, False)


def _lines_from(pieces: Iterable[str], skip: int) -> Iterator[str]:
    """The lines of a text given in pieces, each with its LF, after the first `skip`."""
    held = ""
    for piece in pieces:
        held += piece
        *whole, held = held.split("\n")
        for line in whole:
            if skip > 0:
                skip -= 1
            else:
                yield line + "\n"
    if held and skip <= 0:
        yield held


def chunks_from(index: Index, document: int, line: int) -> tuple[int, Iterator[str]]:
    """The chunks of a document from the one that `line` begins in: the line it starts in, and the texts."""
    first, end = document << CHUNK_BITS, document + 1 << CHUNK_BITS
    line = max(1, min(line, LINES_MAX))
    found = index.db.execute(
        "SELECT id, first_line FROM chunks WHERE id >= ? AND id < ? AND first_line < ? ORDER BY id DESC LIMIT 1",
        (first, end, line),
    ).fetchone()
    at, start = found or (first, 1)
    rows = index.db.execute("SELECT text FROM chunks WHERE id >= ? AND id < ? ORDER BY id", (at, end))
    return start, (text for (text,) in rows)


def find_path(index: Index, path: str) -> str:
    """The path in the index that `path` means: itself, or the same letters composed otherwise.

    Looked up, never opened, so that no path leads out of the folder. Raises Missing, and names what may be meant.
    """
    for known in (path, path + NOT_UTF8_MARK):
        if index.value("SELECT 1 FROM documents WHERE path = ?", known):
            return known
    named = index.rows("SELECT path, digest IS NULL FROM documents WHERE name = ? ORDER BY path", folded_name(path))
    same = [each for each, _ in named if folded(each) == folded(path)]
    if len(same) == 1:
        return str(same[0])
    near = [shown(each) for each, _ in named][:SUGGESTED] or _similar(index, path)
    hint = f" Did you mean {' or '.join(near)}?" if near else " `search` or `list` gives the paths there are."
    raise Missing(f"There is no {path[:300]!r} in memory.{hint}")


def _similar(index: Index, path: str) -> list[str]:
    from difflib import get_close_matches  # only where a path is wrong

    name = folded_name(path)
    if not 2 <= len(name) <= 100:
        return []
    names = [each for (each,) in index.rows("SELECT DISTINCT name FROM documents ORDER BY changed DESC LIMIT 2000")]
    near = get_close_matches(name, names, SUGGESTED)
    return [index.value("SELECT path FROM documents WHERE name = ? ORDER BY length(path), path", each) for each in near]
