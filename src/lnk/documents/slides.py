"""Presentations of PowerPoint: each slide a page, with its notes and comments. ECMA-376, transitional and strict."""

from collections.abc import Callable, Mapping
from typing import Final

from lnk.documents import parts, xml
from lnk.documents.content import DAMAGED, Content, LeftOut
from lnk.documents.flow import Flow, Line, joined
from lnk.documents.zipped import Archive

SLIDES_MAX: Final = 10_000
_TITLES: Final = frozenset(("title", "ctrTitle"))
_OUTLINES: Final = frozenset(("", "obj"))  # placeholders whose paragraphs are items unless they say otherwise
_BULLETS: Final = frozenset(("buChar", "buAutoNum", "buBlip"))
_COMMENTS: Final = frozenset(("cm", "reply"))


def read(data: bytes) -> Content:
    """The text of a .pptx file. Raises LeftOut."""
    archive = Archive(data)
    presentation = parts.main(archive)
    related = parts.relations(archive, presentation)
    authors = _Authors()
    for relation in related:
        if relation.kind in ("commentAuthors", "authors"):
            xml.parse(archive.read(relation.path), authors.start, parts.nothing, parts.nothing)
    order = _Order({relation.id: relation.path for relation in related})
    xml.parse(archive.read(presentation), order.start, parts.nothing, parts.nothing)
    flow = Flow()
    for number, slide in enumerate(dict.fromkeys(order.slides)):
        if number:
            flow.gap()
            flow.page()
        _write(archive, slide, authors.names, flow)
    return flow.content(parts.title(archive))


def _write(archive: Archive, slide: str, authors: Mapping[str, str], flow: Flow) -> None:
    """One slide."""
    shapes = Shapes(flow)
    flow.open()
    xml.parse(archive.read(slide), shapes.start, shapes.end, shapes.text)
    lines = flow.close()
    if shapes.title:
        flow.heading(2)
        flow.text(joined(shapes.title))
        flow.line()
    flow.again(lines)
    for relation in parts.relations(archive, slide):
        if relation.kind == "diagramData":
            diagram = Shapes(flow)
            xml.parse(archive.read(relation.path), diagram.start, diagram.end, diagram.text)
        elif relation.kind == "notesSlide":
            notes = Shapes(flow, only="body")
            flow.open()
            xml.parse(archive.read(relation.path), notes.start, notes.end, notes.text)
            for number, line in enumerate(flow.close()):
                flow.again([line if number else line._replace(text=f"Notes: {line.text}")])
        elif relation.kind == "comments":
            comments = _Comments(flow, authors)
            xml.parse(archive.read(relation.path), comments.start, comments.end, comments.text)


class _Order:
    """The slides in the order in which they are shown, the hidden ones among them."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self.slides: list[str] = []
        self._paths = paths

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if xml.local(name) == "sldId":
            named = next((value for key, value in attributes.items() if key.endswith("}id")), "")
            if named not in self._paths or len(self.slides) >= SLIDES_MAX:
                raise LeftOut(DAMAGED)
            self.slides.append(self._paths[named])


class _Authors:
    """Who commented, by number."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if xml.local(name) in ("cmAuthor", "author"):
            self.names[attributes.get("id", "")] = attributes.get("name", "")


class _Comments:
    """A slide's comments and their answers, into a flow."""

    def __init__(self, flow: Flow, authors: Mapping[str, str]) -> None:
        self._flow, self._authors = flow, authors
        self._by: list[str] = []
        self._within = 0

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        name = xml.local(name)
        if name in _COMMENTS:
            self._by.append(self._authors.get(attributes.get("authorId", ""), ""))
            self._flow.open()
        elif name in ("text", "t"):
            self._within += 1

    def end(self, name: str) -> None:
        name = xml.local(name)
        if name in _COMMENTS:
            self._flow.comment(self._flow.close(), self._by.pop())
            if not self._by:
                self._flow.line()
        elif name in ("text", "t"):
            self._within -= 1
        elif name == "p":
            self._flow.line()

    def text(self, text: str) -> None:
        if self._within and self._by:
            self._flow.text(text)


class Shapes:
    """The text of shapes and tables into a flow, but for the title, which is kept; `only`: a kind of placeholder."""

    def __init__(self, flow: Flow, only: str = "") -> None:
        self.title: list[Line] = []
        self._flow, self._only = flow, only
        self._skipped = self._runs = 0
        self._shape: str | None = None  # the placeholder's type, where the shape is one
        self._bullet: bool | None = None
        self._cells: list[str] = []
        self._starts: dict[str, Callable[[Mapping[str, str]], None]] = {
            "sp": self._begin_shape,
            "ph": self._placeholder,
            "p": lambda _: self._flow.line(),
            "t": self._begin_run,
            "br": lambda _: self._flow.text("\n"),
            "tc": lambda _: self._flow.open(),
        }
        self._ends = {
            "sp": self._end_shape,
            "p": self._end_paragraph,
            "t": self._end_run,
            "tc": lambda: self._cells.append(joined(self._flow.close())),
            "tr": self._end_row,
        }

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        name = _short(name)
        if self._skipped or name == "Fallback":  # what an older program shows in place of what was read already
            self._skipped += 1
        elif begin := self._starts.get(name):
            begin(attributes)
        elif name in _BULLETS or name == "buNone":
            self._bullet = name in _BULLETS

    def end(self, name: str) -> None:
        if self._skipped:
            self._skipped -= 1
        elif finish := self._ends.get(_short(name)):
            finish()

    def text(self, text: str) -> None:
        if self._runs and not self._skipped:
            self._flow.text(text)

    def _begin_shape(self, _: Mapping[str, str]) -> None:
        self._shape = None
        self._flow.open()

    def _placeholder(self, attributes: Mapping[str, str]) -> None:
        self._shape = attributes.get("type", "")

    def _end_shape(self) -> None:
        lines = self._flow.close()
        if self._shape in _TITLES:
            self.title += lines
        elif self._shape != "sldNum" and (not self._only or self._shape == self._only):
            self._flow.again(lines)
        self._shape = None

    def _begin_run(self, _: Mapping[str, str]) -> None:
        self._runs += 1

    def _end_run(self) -> None:
        self._runs -= 1

    def _end_paragraph(self) -> None:
        bullet, self._bullet = self._bullet, None
        if bullet or (bullet is None and self._shape in _OUTLINES):
            self._flow.item()
        self._flow.item_ended()

    def _end_row(self) -> None:
        cells, self._cells = self._cells, []
        self._flow.row(cells)


def _short(name: str) -> str:
    """A local name; empty for a diagram's own `t`, which holds whole paragraphs."""
    return xml.local(name) if not name.endswith("}t") or name.endswith("main}t") else ""
