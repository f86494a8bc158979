"""HTML, well formed or not, into a flow: a scanner whose work grows with the page alone.

It keeps no stack of elements, so nothing can be nested too deeply for it; no entity but HTML's own stands for anything.
"""

import html
import re
from typing import Final

from lnk.documents.flow import Flow, joined

# No attribute here holds a `<`: so what is looked at from one of them ends at the next.
_TAG = re.compile(r"<(/?)([A-Za-z][\w:.-]*+)((?:[^<>\"']|\"[^\"<]*+\"|'[^'<]*+')*+)>")
_OTHER = re.compile(r"<(/?)([A-Za-z][\w:.-]*+)([^<>]*+)>")  # a quotation mark that nothing closes
_DECLARED = re.compile(r"<[!?/][^<>]*+>")
_BLOCKS: Final = frozenset(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure footer"
    " form header hr legend main nav ol p pre section summary ul".split()
)
# Elements whose text is not on the page. A reading beside its word (rt) would part the word's letters.
_UNSEEN: Final = frozenset("script style template noscript title rt rp".split())
_CELLS: Final = frozenset(("td", "th"))


def write(markup: str, flow: Flow) -> str:
    """Writes what a reader of the page sees; its title comes back."""
    return _Page(markup, flow).write()


class _Page:
    def __init__(self, markup: str, flow: Flow) -> None:
        self._markup, self._flow = markup, flow
        self._title = ""
        self._unclosed: set[str] = set()
        self._raw = False
        # A table with another in it is there for the layout: its cells are read one after the other.
        self._tables = self._layout = 0
        self._cells: list[str] = []
        self._cell = False

    def write(self) -> str:
        """The same."""
        markup, at = self._markup, 0
        while (tag := markup.find("<", at)) >= 0:
            self._text(markup[at:tag])
            at = self._tag(tag)
        self._text(markup[at:])
        self._release()
        self._flow.line()
        return " ".join(self._title.split())

    def _tag(self, at: int) -> int:
        """Behind what begins there."""
        if self._markup.startswith("<!--", at):
            return self._behind("-->", at + 4)
        if self._markup.startswith("<![CDATA[", at):
            end = self._behind("]]>", at + 9)
            self._flow.words(self._markup[at + 9 : end].removesuffix("]]>"))
            return end
        found = _TAG.match(self._markup, at) or _OTHER.match(self._markup, at)
        if found is None:
            if declared := _DECLARED.match(self._markup, at):
                return declared.end()
            self._flow.words("<")
            return at + 1
        name = found[2].rpartition(":")[2].lower()
        if found[1]:
            self._end(name)
        elif name in _UNSEEN and not found[3].endswith("/"):
            return self._unseen(name, found.end())
        else:
            self._start(name)
            if name == "pre" and found[3].endswith("/"):
                self._end(name)
        return found.end()

    def _behind(self, mark: str, at: int) -> int:
        found = self._markup.find(mark, at)
        return len(self._markup) if found < 0 else found + len(mark)

    def _unseen(self, name: str, at: int) -> int:
        """Behind an element. One that nothing closes is nothing, but for a script, which is all the rest."""
        closing = (
            None if name in self._unclosed else re.compile(f"</{name}[^<>]*>", re.IGNORECASE).search(self._markup, at)
        )
        if closing is None:
            self._unclosed.add(name)
            return len(self._markup) if name in ("script", "style") else at
        if name == "title":
            self._title = self._title or _plain(self._markup[at : closing.start()])
        return closing.end()

    def _text(self, text: str) -> None:
        if not text:
            return
        text = _plain(text)
        if self._raw:
            self._flow.text(text.replace("\r\n", "\n").replace("\r", "\n"))
        else:
            self._flow.words(text)

    def _start(self, name: str) -> None:
        flow = self._flow
        if name == "br":
            flow.text("\n")
        elif name in _BLOCKS:
            flow.line()
            self._raw = self._raw or name == "pre"
        elif name == "li":
            flow.line()
            flow.item()
        elif _level(name):
            flow.line()
            flow.heading(_level(name))
        elif name == "table":
            self._table()
        elif name == "tr":
            self._row()
        elif name in _CELLS:
            self._begin_cell()

    def _end(self, name: str) -> None:
        if name in _BLOCKS or _level(name):
            self._flow.line()
            self._raw = self._raw and name != "pre"
        elif name == "li":
            self._flow.item_ended()
        elif name == "table":
            self._row()
            self._flow.gap()
            self._tables = max(self._tables - 1, 0)
            self._layout = min(self._layout, self._tables)
        elif name == "tr":
            self._row()
        elif name in _CELLS:
            self._end_cell()

    def _table(self) -> None:
        if self._tables > self._layout:
            self._release()
            self._layout = self._tables
        self._flow.line()
        self._tables += 1

    def _begin_cell(self) -> None:
        self._end_cell()
        if self._tables > self._layout:
            self._flow.open()
            self._cell = True
        else:
            self._flow.line()

    def _end_cell(self) -> None:
        if self._cell:
            self._cells.append(joined(self._flow.close()))
            self._cell = False
        else:
            self._flow.line()

    def _row(self) -> None:
        self._end_cell()
        cells, self._cells = self._cells, []
        self._flow.row(cells)

    def _release(self) -> None:
        """What stands in the row so far was no row."""
        if self._cell:
            lines = self._flow.close()
            self._cell = False
        else:
            lines = []
        cells, self._cells = self._cells, []
        for cell in cells:
            self._flow.put(cell)
        self._flow.again(lines)


def _level(name: str) -> int:
    return int(name[1]) if len(name) == 2 and name[0] == "h" and name[1] in "123456" else 0


def _plain(text: str) -> str:
    if "&" not in text:
        return text
    try:
        return html.unescape(text)
    except ValueError:  # a number of thousands of digits
        return text
