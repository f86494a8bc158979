"""A document's text while it is put together: lines, lists, rows of cells, and what stands beside the line it is in."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lnk.documents.content import NO_TEXT, TEXT_BYTES_MAX, TEXT_TOO_LARGE, Content, LeftOut, seen

ITEM: Final = "- "
ROW: Final = "row"  # lines of a kind that has a name follow one another without a blank line
_SPACES = re.compile(r"[ \t\r\n\f]+")  # a no-break space is a letter's neighbour, not a gap


class Line(NamedTuple):
    """A finished line: its kind, and whether it goes on from the one before it, or a blank line parts them."""

    text: str
    kind: str = ""
    joined: bool = False
    apart: bool = False


class _Region:
    """Text that is put together apart from the rest: the whole document, a cell, a note."""

    __slots__ = ("after", "apart", "heading", "item", "lines", "open")

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.open: list[str] = []  # the line being written
        self.heading = self.item = ""
        self.apart = False
        self.after: list[Line] = []


class Flow:
    """Takes a document's text as its reader finds it, and raises LeftOut as soon as that is too much."""

    def __init__(self) -> None:
        self._regions = [_Region()]
        self._lines: list[str] = []
        self._pages: list[int] = []
        self._pages_due = 0
        self._kind = ""
        self._left = TEXT_BYTES_MAX
        self._held = 0  # characters that are in no finished line of the document yet

    def text(self, text: str) -> None:
        """Goes on with the line; LF breaks it."""
        self._held += len(text)
        if self._held > TEXT_BYTES_MAX:
            raise LeftOut(TEXT_TOO_LARGE)
        self._regions[-1].open.append(text)

    def words(self, text: str) -> None:
        """The same, with white space as XML and HTML have it: any amount of it parts two words."""
        text = _SPACES.sub(" ", text)
        line = self._regions[-1].open
        if not line or line[-1][-1] in " \n":
            text = text.removeprefix(" ")
        if text:
            self.text(text)

    def heading(self, level: int) -> None:
        """The line that is being written, or the next one, is a heading; none at level 0."""
        self._regions[-1].heading = "#" * min(level, 6) + " " if level > 0 else ""

    def line(self) -> None:
        """Ends the line."""
        region = self._regions[-1]
        if region.open:
            self._end(region)
        region.heading = ""
        if region.after:
            after, region.after = region.after, []
            self.again(after)
        if len(self._regions) == 1:
            self._held = 0

    def item(self, mark: str = ITEM) -> None:
        """The line that is being written, or the next one with text, is an item of a list."""
        self._regions[-1].item = mark

    def item_ended(self) -> None:
        """Ends the line; the next one is of no item that had no text."""
        self.line()
        self._regions[-1].item = ""

    def row(self, cells: Sequence[str]) -> None:
        """A table's row, without the empty cells at its end."""
        self.line()
        filled = len(cells)
        while filled and not cells[filled - 1]:
            filled -= 1
        if filled:
            self._put(Line(" | ".join(cells[:filled]), ROW))

    def put(self, text: str, kind: str = "") -> None:
        """A whole line. Nothing where none of it is seen."""
        self.line()
        if text := seen(text).replace("\n", " ").rstrip():
            self._put(Line(text, kind))

    def gap(self) -> None:
        """Ends the line and what it belongs to: a blank line comes before the next one."""
        self.line()
        self._regions[-1].apart = True

    def page(self) -> None:
        """The page ends: the line that is being written, or the next one, is where another begins."""
        self._pages_due += 1

    def open(self) -> None:
        """What follows is put together apart, until `close`."""
        self._regions.append(_Region())

    def close(self) -> list[Line]:
        """The lines since `open`."""
        self.line()
        return self._regions.pop().lines

    def again(self, lines: Iterable[Line]) -> None:
        """Lines that were put together apart."""
        for line in lines:
            self._put(line)

    def after(self, lines: Iterable[Line]) -> None:
        """The same, once the line that is being written has ended."""
        self._regions[-1].after += lines

    def note(self, label: str, lines: Sequence[Line]) -> None:
        """A note, referred to where the line is now."""
        if lines:
            self.text(f"[^{label}]")
            self.after([lines[0]._replace(text=f"[^{label}]: {lines[0].text}"), *lines[1:]])

    def comment(self, lines: Sequence[Line], author: str = "", at: str = "") -> None:
        """A comment on the line that is being written, or on what has that name."""
        if lines:
            by = f" by {seen(author)}" if author else ""
            on = f" on {at}" if at else ""
            self.after([Line(f"(comment{by}{on}: {joined(lines)})")])

    def content(self, title: str = "") -> Content:
        """All of it. Raises LeftOut where there is no text."""
        self.line()
        if not self._lines:
            raise LeftOut(NO_TEXT)
        pages = [1, *self._pages, *[len(self._lines)] * self._pages_due] if self._pages or self._pages_due else []
        return Content("\n".join(self._lines) + "\n", pages, " ".join(seen(title).split()) or None)

    def _end(self, region: _Region) -> None:
        text = seen("".join(region.open)).lstrip(" \t")
        region.open.clear()
        mark, kind = region.item, "item" if region.item else ""
        if region.heading:
            text, mark, kind = text.replace("\n", " "), region.heading, ""
        joined = False
        for part in text.split("\n"):
            if part and not part.isspace():
                self._put(Line(mark + part.rstrip(), kind, joined))
                region.item, mark, joined = "", "", True

    def _put(self, line: Line) -> None:
        region = self._regions[-1]
        if region.apart:
            line, region.apart = line._replace(apart=True), False
        if len(self._regions) > 1:
            region.lines.append(line)
            return
        if self._lines and not line.joined and (line.apart or not line.kind or line.kind != self._kind):
            self._lines.append("")
            self._left -= 1
        self._kind = line.kind
        self._pages += [len(self._lines) + 1] * self._pages_due
        self._pages_due = 0
        self._left -= len(line.text.encode("utf-8", "replace")) + 1
        if self._left < 0:
            raise LeftOut(TEXT_TOO_LARGE)
        self._lines.append(line.text)


def joined(lines: Iterable[Line]) -> str:
    """Lines as one, as a cell has them."""
    return " ".join(line.text for line in lines)
