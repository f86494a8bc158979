"""Which documents a call asks for, as conditions on the index's tables: applied before anything is cut. No I/O."""

from typing import Any, Final, NamedTuple

from lnk.memory.times import Since

INDEXED: Final = "left_out IS NULL AND digest IS NOT NULL"
Condition = tuple[str, tuple[Any, ...]]


class Filter(NamedTuple):
    """A path (a document's, or a folder's with all beneath it), a kind, and a moment; None: any."""

    path: str | None = None
    kind: str | None = None
    since: Since | None = None

    def __bool__(self) -> bool:
        return any(part is not None for part in self)

    def documents(self, first: str = INDEXED) -> Condition:
        """The condition on `documents`, and its values; `first` is part of it."""
        parts, values = self._place()
        if self.since and self.since.exact:
            parts.append("noted > ?")
            values.append(self.since.at)
        elif self.since:
            parts.append("(altered > ? OR seen > ?)")
            values += [self.since.at, self.since.at]
        return " AND ".join([first, *parts]), tuple(values)

    def removed(self) -> Condition:
        """The condition on `removed`, whose time is the removal's."""
        parts, values = self._place()
        return " AND ".join(["removed > ?", *parts]), (self.since.at if self.since else 0, *values)

    def _place(self) -> tuple[list[str], list[Any]]:
        parts: list[str] = []
        values: list[Any] = []
        if self.path is not None:
            beneath = self.path.rstrip("/") + "/"
            parts.append("(path = ? OR (path >= ? AND path < ?))")
            values += [self.path, beneath, beneath[:-1] + "0"]  # '0' is the character after '/'
        if self.kind is not None:
            parts.append("kind = ?")
            values.append(self.kind)
        return parts, values
