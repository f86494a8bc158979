"""Text documents of OpenDocument: headings, lists, tables, notes, text boxes and comments as a reader sees them."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from lnk.documents import xml
from lnk.documents.content import DAMAGED, ENCRYPTED, Content, LeftOut
from lnk.documents.flow import Flow, Line, joined
from lnk.documents.zipped import Archive

COLUMNS_REPEATED_MAX: Final = 64
SPACES_MAX: Final = 64  # one element stands for many
_MANIFEST: Final = "META-INF/manifest.xml"
# What is no text of the page: deleted text, who commented and when, how a table of contents is made.
_UNSEEN: Final = frozenset(
    ["text:tracked-changes", "text:number", "dc:date", "meta:creator-initials", "meta:date-string"]
    + ["svg-compatible:title", "svg-compatible:desc", "text:ruby-text", "office:scripts", "office:event-listeners"]
    + ["table:covered-table-cell", "presentation:notes", "text:index-title-template"]
    + [f"text:{index}-source" for index in ("table-of-content", "illustration-index", "table-index", "object-index")]
    + [f"text:{index}-source" for index in ("user-index", "alphabetical-index", "bibliography")]
)
_SHAPES: Final = tuple(
    f"drawing:{shape}"
    for shape in "text-box custom-shape rect circle ellipse line connector polyline polygon path caption".split()
)
_HEADERS: Final = ("style:header", "style:header-left", "style:header-first")
_FOOTERS: Final = ("style:footer", "style:footer-left", "style:footer-first")
_FIELDS: Final = tuple(f"form:{field}" for field in "text textarea formatted-text number date time combobox".split())

Begin = Callable[[Mapping[str, str]], None]
Finish = Callable[[], None]


def read(data: bytes) -> Content:
    """The text of an .odt file. Raises LeftOut."""
    archive = Archive(data)
    if _MANIFEST in archive and b"encryption-data" in archive.read(_MANIFEST):
        raise LeftOut(ENCRYPTED)
    flow = Flow()
    styles = _Styles()
    _write(archive, "styles.xml", _Text(flow, styles, _HEADERS))
    if not _write(archive, "content.xml", _Text(flow, styles, ("office:body",))):
        raise LeftOut(DAMAGED)
    _write(archive, "styles.xml", _Text(flow, styles, _FOOTERS))
    title = _Title()
    if "meta.xml" in archive:
        xml.parse(archive.read("meta.xml"), title.start, title.end, title.text)
    return flow.content("".join(title.found))


def _write(archive: Archive, part: str, text: "_Text") -> bool:
    """Writes one part's text, each line of pages' edges once; False where the part is not there."""
    if part not in archive:
        return False
    text.flow.gap()
    if part == "styles.xml":
        text.flow.open()
    xml.parse(archive.read(part), text.start, text.end, text.text)
    if part == "styles.xml":
        text.flow.again(dict.fromkeys(text.flow.close()))
    text.flow.gap()
    return True


@lru_cache(maxsize=1024)
def _named(name: str) -> str:
    """`text:p` for the paragraph of any version: the namespaces are told apart by their last word."""
    space, _, name = name.rpartition("}")
    if space.startswith("http://purl.org/dc/"):
        return f"dc:{name}"
    words = space.split(":")
    return f"{words[-2]}:{name}" if len(words) > 1 else name


def _value(attributes: Mapping[str, str], name: str) -> str:
    for key, value in attributes.items():
        if _named(key) == name:
            return value
    return ""


def _number(attributes: Mapping[str, str], name: str, most: int) -> int:
    value = _value(attributes, name)
    return min(int(value), most) if value.isascii() and value.isdigit() and len(value) < 10 else 1


def _nothing(_: str) -> None:
    pass


class _Title:
    def __init__(self) -> None:
        self.found: list[str] = []
        self._within = False

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._within = _named(name) == "dc:title"

    def end(self, name: str) -> None:
        self._within = False

    def text(self, text: str) -> None:
        if self._within:
            self.found.append(text)


class _Styles:
    """Which styles of paragraphs begin a page, end one, or make a title."""

    def __init__(self) -> None:
        self.before: set[str] = set()
        self.behind: set[str] = set()
        self.title = {"Title"}
        self._name = ""

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        match _named(name):
            case "style:style":
                self._name = _value(attributes, "style:name")
                parent = _value(attributes, "style:parent-style-name")
                if _value(attributes, "style:master-page-name"):
                    self.before.add(self._name)
                for kept in (self.before, self.behind, self.title):
                    if parent in kept:
                        kept.add(self._name)
            case "style:paragraph-properties" | "style:table-properties":
                if _value(attributes, "xsl-fo-compatible:break-before") == "page":
                    self.before.add(self._name)
                if _value(attributes, "xsl-fo-compatible:break-after") == "page":
                    self.behind.add(self._name)


class _Text:
    """The text of one part, or of what stands within some of its elements, into a flow."""

    def __init__(self, flow: Flow, styles: _Styles, within: tuple[str, ...]) -> None:
        self.flow, self._styles, self._within = flow, styles, within
        self._inside = self._skipped = self._paragraphs = 0
        self._pages = self._begun = False
        self._label = self._author = ""
        self._authors = False
        self._rows: list[list[str]] = []
        self._repeated: list[int] = []
        self._behind: list[bool] = []
        self._starts: dict[str, Begin] = {
            "office:text": self._whole,
            "text:p": self._paragraph,
            "text:h": self._heading,
            "text:list-item": lambda _: flow.item(),
            "text:s": lambda attributes: flow.text(" " * _number(attributes, "text:c", SPACES_MAX)),
            "text:tab": lambda _: flow.text("\t"),
            "text:line-break": lambda _: flow.text("\n"),
            "text:soft-page-break": lambda _: self._page(),
            "text:note-citation": self._apart,
            "text:note-body": self._apart,
            "office:annotation": self._annotation,
            "dc:creator": lambda _: self._author_told(True),
            "table:table": self._table,
            "table:table-row": lambda _: self._rows.append([]),
            "table:table-cell": self._cell,
            **dict.fromkeys(_SHAPES, self._apart),
        }
        self._ends: dict[str, Finish] = {
            "text:p": self._paragraph_ended,
            "text:h": self._paragraph_ended,
            "text:list-item": flow.item_ended,
            "text:note-citation": self._citation_ended,
            "text:note-body": self._note_ended,
            "office:annotation": lambda: flow.comment(flow.close(), self._author.strip()),
            "dc:creator": lambda: self._author_told(False),
            "table:table": flow.gap,
            "table:table-row": lambda: flow.row(self._rows.pop()),
            "table:table-cell": self._cell_ended,
            **dict.fromkeys(_SHAPES, lambda: flow.after(flow.close())),
        }

    def start(self, qualified: str, attributes: Mapping[str, str]) -> None:
        name = _named(qualified)
        if self._skipped or (self._inside and name in _UNSEEN):
            self._skipped += 1
        elif name in self._within:
            self._inside += 1
        elif self._inside:
            if begin := self._starts.get(name):
                begin(attributes)
            elif name in _FIELDS:
                self._field(attributes)
        else:
            self._styles.start(qualified, attributes)  # they stand before the body

    def end(self, name: str) -> None:
        name = _named(name)
        if self._skipped:
            self._skipped -= 1
        elif name in self._within:
            self._inside -= 1
        elif self._inside and (finish := self._ends.get(name)):
            finish()

    def text(self, text: str) -> None:
        if self._skipped:
            return
        if self._authors:
            self._author += text
        elif self._paragraphs:
            self.flow.words(text)

    def _whole(self, attributes: Mapping[str, str]) -> None:
        self._pages = _value(attributes, "text:use-soft-page-breaks") == "true"

    def _page(self) -> None:
        if self._pages:
            self.flow.page()

    def _paragraph(self, attributes: Mapping[str, str], heading: int = 0) -> None:
        style = _value(attributes, "text:style-name")
        self.flow.line()
        self.flow.heading(heading or int(style in self._styles.title))
        self._paragraphs += 1
        if style in self._styles.before and self._begun:
            self._page()
        self._begun = True
        self._behind.append(style in self._styles.behind)

    def _heading(self, attributes: Mapping[str, str]) -> None:
        self._paragraph(attributes, _number(attributes, "text:outline-level", 6))

    def _paragraph_ended(self) -> None:
        self.flow.line()
        self._paragraphs -= 1
        if self._behind.pop():
            self._page()

    def _apart(self, _: Mapping[str, str]) -> None:
        self.flow.open()

    def _citation_ended(self) -> None:
        self._label = joined(self.flow.close()) or "*"

    def _note_ended(self) -> None:
        self.flow.note(self._label, self.flow.close())

    def _annotation(self, _: Mapping[str, str]) -> None:
        self._author = ""
        self.flow.open()

    def _author_told(self, begun: bool) -> None:
        self._authors = begun

    def _table(self, attributes: Mapping[str, str]) -> None:
        self.flow.line()
        if _value(attributes, "table:style-name") in self._styles.before and self._begun:
            self._page()

    def _cell(self, attributes: Mapping[str, str]) -> None:
        self._repeated.append(_number(attributes, "table:number-columns-repeated", COLUMNS_REPEATED_MAX))
        self.flow.open()

    def _cell_ended(self) -> None:
        text, times = joined(self.flow.close()), self._repeated.pop()
        if self._rows:
            self._rows[-1].extend([text] * times)

    def _field(self, attributes: Mapping[str, str]) -> None:
        """A form's field that holds text, with what it is called."""
        value = _value(attributes, "form:current-value") or _value(attributes, "form:value")
        name = _value(attributes, "form:label") or _value(attributes, "form:name")
        if value:
            self.flow.again([Line(f"{name}: {value}" if name else value)])
