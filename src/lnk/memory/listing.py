"""List: the documents there are, or what changed since a moment and what was removed."""

from typing import Any, Final

from lnk.memory.budget import Budget, next_chars
from lnk.memory.filters import Condition, Filter
from lnk.memory.index import Index
from lnk.memory.names import shown
from lnk.memory.parse import NOT_TEXT
from lnk.memory.times import Since, format_time
from lnk.memory.values import Entry, Removed
from lnk.memory.walk import BY_NAME

ENTRY_CHARS_MIN: Final = 60  # no entry is shorter, so no more rows than fit are read
# Files that are no text stand in no list: `status` counts them. What a person may miss does, with the reason.
_LISTED: Final = f"digest IS NOT NULL AND (left_out IS NULL OR left_out NOT IN ('{NOT_TEXT}', '{BY_NAME}'))"
_COLUMNS: Final = "path, title, kind, changed, bytes, seen, noted, left_out"

Place = tuple[str, int, str]  # which table, time, path: the last entry that was given


def listed(
    index: Index, where: Filter, after: Place | None, budget: Budget
) -> tuple[list[Entry], list[Removed], int, Place | None]:
    """The entries that fit after `after`: documents, then what was removed; how many are left; where it stopped.

    By path; with since, the latest first.
    """
    most = budget.chars // ENTRY_CHARS_MIN + 2
    entries: list[Entry] = []
    if after is None or after[0] == "documents":
        rows = _rows(index, "documents", where, after, most)
        entries = budget.fill((_entry(row, where.since) for row in rows), at_least=1, after=_after)
        if len(entries) < len(rows):
            last = rows[len(entries) - 1]
            place = ("documents", last[6], last[0])
            return entries, [], _count(index, "documents", where, place) + _count(index, "removed", where, None), place
        after = None
    rows = _rows(index, "removed", where, after, most)
    gone = budget.fill((_gone(row) for row in rows), at_least=0 if entries else 1, after=_after)
    if len(gone) == len(rows):
        return entries, gone, 0, None
    last = rows[len(gone) - 1] if gone else ("", "", 1 << 62)
    place = ("removed", last[2], last[0])
    return entries, gone, _count(index, "removed", where, place), place


def _condition(table: str, where: Filter, after: Place | None) -> Condition:
    condition, values = where.removed() if table == "removed" else where.documents(_LISTED)
    if after and where.since:
        time = "removed" if table == "removed" else "noted"
        condition += f" AND ({time} < ? OR ({time} = ? AND path > ?))"
        values = (*values, after[1], after[1], after[2])
    elif after:
        condition += " AND path > ?"
        values = (*values, after[2])
    return condition, values


def _rows(index: Index, table: str, where: Filter, after: Place | None, most: int) -> list[tuple[Any, ...]]:
    if table == "removed" and not where.since:
        return []
    condition, values = _condition(table, where, after)
    columns = "path, title, removed" if table == "removed" else _COLUMNS
    time = "removed DESC, " if table == "removed" else "noted DESC, "
    order = f"{time if where.since else ''}path"
    return index.rows(f"SELECT {columns} FROM {table} WHERE {condition} ORDER BY {order} LIMIT ?", *values, most)


def _count(index: Index, table: str, where: Filter, after: Place | None) -> int:
    if table == "removed" and not where.since:
        return 0
    condition, values = _condition(table, where, after)
    return int(index.value(f"SELECT count(*) FROM {table} WHERE {condition}", *values))


def _entry(row: tuple[Any, ...], since: Since | None) -> Entry:
    path, title, kind, changed, size, seen, _, left_out = row
    return Entry(
        path=shown(path),
        title=title,
        kind=kind,
        changed=format_time(changed),
        bytes=size,
        state=None if not since else "new" if seen > since.at else "changed",
        left_out=left_out,
    )


def _after(entry: Entry | Removed) -> int:
    return next_chars(entry.path)


def _gone(row: tuple[Any, ...]) -> Removed:
    path, title, removed = row
    return Removed(path=path, title=title, removed=format_time(removed / 1_000_000))
