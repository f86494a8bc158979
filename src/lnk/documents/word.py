"""The text of a Word document (DOCX): its parts, found by their relationships, read one by one as streams.

Headings, lists and their numbers are told from styles and numbering. A table's row is one line, or, where it lays out
whole paragraphs, the cells one after another. A footnote or endnote is marked `[^1]`, `[^e1]` where it is referred to
and stands after the paragraph or table; so does a comment, as `(comment by Ann: …)`. Headers come first, footers last,
each once. A picture's description stands in its place. Text that is deleted, moved away or hidden is not there.

ECMA-376, transitional and strict. What is not read: embedded files, charts and diagrams, building blocks.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from lnk.documents.content import BOMB, DAMAGED, NO_TEXT, TEXT_BYTES_MAX, TEXT_TOO_LARGE, Content, LeftOut, seen
from lnk.documents.parts import relations
from lnk.documents.wordstyles import LEVELS, Numbers, Styles, outline, symbol_of
from lnk.documents.wordxml import (
    AUTHOR,
    CHAR,
    DROP_CAP,
    ENTRIES_MAX,
    FIELD_TYPE,
    FONT,
    ID,
    MATH_VAL,
    PART_ID,
    VAL,
    Attributes,
    check_entries,
    is_on,
    short_name,
    value_of,
    whole,
)
from lnk.documents.xml import local, parse
from lnk.documents.zipped import Archive

FIELDS_DEEP_MAX: Final = 256
ROW_CHARS_MAX: Final = 1_500  # a longer row is a page's layout, and too long for one line


def read(data: bytes) -> Content:
    """The document's text, its pages where Word counted as many as it marked, and its title.

    Raises LeftOut.
    """
    package = _Package(Archive(data))
    styles = Styles()
    numbers = Numbers(styles)
    package.read_beside("styles", styles.start)
    package.read_beside("numbering", numbers.start)
    room = _Room()
    notes: dict[tuple[str, str], _Note] = {}
    for kind, label in (("comments", ""), ("footnotes", "^"), ("endnotes", "^e")):
        for part in package.related(kind):
            story = package.story(part, _Story(styles, numbers, room, notes))
            story.keep_notes(notes, label)
    body = package.story(package.main, _Story(styles, numbers, room, notes))
    if not body.is_document:
        raise LeftOut(DAMAGED)
    edges = []
    for identities in (body.headers, body.footers):
        parts = filter(None, map(package.identified, identities))
        edges.append([package.story(part, _Story(styles, numbers, room, notes)).blocks for part in parts])
    blocks = [*_each_once(edges[0]), *body.blocks, *_each_once(edges[1])]
    text, pages = _lines(blocks)
    if not text:
        raise LeftOut(NO_TEXT)
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise LeftOut(TEXT_TOO_LARGE)
    return Content(text, pages if body.page and body.page + 1 == package.pages() else [], package.title())


# ---------------------------------------------------------------- parts


class _Package:
    """The document's parts. One is read once, however often it is named."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._top = relations(archive)
        self.main = next((each.path for each in self._top if each.kind == "officeDocument"), "word/document.xml")
        if self.main not in archive:
            raise LeftOut(DAMAGED)
        self._own = relations(archive, self.main)
        self._identities = {each.id: each.path for each in self._own if each.path != self.main}
        self._read: set[str] = set()

    def related(self, kind: str) -> list[str]:
        """The parts of that kind that belong to the main one."""
        return [each.path for each in self._own if each.kind == kind and each.path != self.main]

    def identified(self, identity: str) -> str | None:
        """The part that the main one names so."""
        return self._identities.get(identity)

    def story(self, part: str, story: "_Story") -> "_Story":
        """The same story, after the part was told to it."""
        if part in self._archive and part not in self._read:
            self._read.add(part)
            parse(self._archive.read(part), story.start, story.end, story.text)
            story.finish()
        return story

    def read_beside(self, kind: str, start: Callable[[str, Attributes], None]) -> None:
        """Reads what only says how text looks: where that is damaged, the text is still there."""
        for part in self.related(kind)[:1]:
            self._parse_beside(part, start, lambda _: None)

    def title(self) -> str | None:
        """The title among the document's properties."""
        return " ".join(seen(self._property("core-properties", "title")).split()) or None

    def pages(self) -> int:
        """How many pages the program that wrote it counted; 0 where it does not say."""
        return whole(self._property("extended-properties", "Pages"), 0, ENTRIES_MAX)

    def _property(self, kind: str, name: str) -> str:
        found: list[str] = []
        here = False

        def start(tag: str, _: Attributes) -> None:
            nonlocal here
            here = local(tag) == name

        def text(data: str) -> None:
            if here:
                found.append(data)

        for each in self._top:
            if each.kind == kind:
                self._parse_beside(each.path, start, text)
                break
        return "".join(found)

    def _parse_beside(self, part: str, start: Callable[[str, Attributes], None], text: Callable[[str], None]) -> None:
        if part not in self._archive:
            return
        try:
            parse(self._archive.read(part), start, lambda _: None, text)
        except LeftOut as reason:
            if str(reason) != DAMAGED:
                raise


class _Room:
    """How much text may still come, counted as it grows; a character is at least one byte."""

    def __init__(self) -> None:
        self._left = TEXT_BYTES_MAX

    def take(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise LeftOut(TEXT_TOO_LARGE)


# ---------------------------------------------------------------- what text is put together from


class _Block(NamedTuple):
    """A paragraph, a table's row or a note."""

    lead: str  # what stands before it: a heading's or list's mark
    text: str
    page: int  # how many page breaks come before it
    group: int = 0  # those of one group, but 0, follow one another without a blank line


_LIST: Final = 1  # the group of list items; tables have higher ones


class _Note(NamedTuple):
    label: str  # "" for a comment
    author: str
    blocks: list[_Block]


class _Field:
    """A field while it is open: its instruction comes first, then its result."""

    __slots__ = ("chosen", "coded", "entries", "form", "shown", "value")

    def __init__(self, shown: int) -> None:
        self.coded = True
        self.shown = shown  # how much the paragraph showed when its result began
        self.form = self.value = ""  # of a form field: its kind, and what it shows where it has no result
        self.chosen = self.entries = 0


class _Paragraph:
    """A paragraph while it is open."""

    __slots__ = (
        "aside", "boxes", "coded", "fields", "goes_on", "heading", "hidden", "level", "number", "page", "pieces",
        "readings", "shown", "style",
    )  # fmt: skip

    def __init__(self, style: str) -> None:
        self.style = style
        self.heading: int | None = None
        self.number: str | None = None
        self.level: int | None = None
        self.hidden = False
        self.goes_on = False  # its end is deleted, or it is a drop cap: the next one continues it
        self.pieces: list[str] = []
        self.page: int | None = None
        self.shown = 0
        self.fields: list[_Field] = []
        self.coded = 0  # fields that are still in their instruction
        self.aside: list[list[str]] = []
        self.readings: list[str] = []
        self.boxes: list[_Block] = []


def _trimmed(text: str) -> str:
    if "\n" not in text:
        return text.strip()
    return "\n".join(line.strip() for line in text.split("\n")).strip()


def _flat(block: _Block) -> str:
    """A block as it stands in a row."""
    lead = "" if block.lead.startswith("#") else block.lead.lstrip()
    return lead + block.text.replace("\n", " ")


def _row(cells: list[list[_Block]], group: int) -> list[_Block]:
    """A row as one line; its cells one after another where it lays out more than such a line tells."""
    filled = [cell for cell in cells if cell]
    every = [block for cell in filled for block in cell]
    nested = any(block.group > _LIST or block.lead.startswith("#") for block in every)
    length = sum(len(block.text) for block in every)
    if nested or (len(cells) > 1 and length > ROW_CHARS_MAX) or len(cells) == 1 or (len(every) > len(filled) == 1):
        return every
    if not every:
        return []
    line = " | ".join(" / ".join(map(_flat, cell)) for cell in cells).strip()
    return [_Block("", line, every[0].page, group)]


def _each_once(parts: list[list[_Block]]) -> list[_Block]:
    """The parts one after another; of those with the same text, as first and later pages often have, one."""
    told: dict[tuple[tuple[str, str], ...], list[_Block]] = {}
    for part in parts:
        told.setdefault(tuple((block.lead, block.text) for block in part), part)
    return [block._replace(page=0) for part in told.values() for block in part]


def _lines(blocks: list[_Block]) -> tuple[str, list[int]]:
    """The text, and the line at which each page begins."""
    lines: list[str] = []
    pages = [1]
    group = 0
    for block in blocks:
        if lines and not (group and group == block.group):
            lines.append("")
        group = block.group
        pages.extend([len(lines) + 1] * (block.page + 1 - len(pages)))
        margin = " " * (len(block.lead) - len(block.lead.lstrip()))
        lines.extend((block.lead + block.text).replace("\n", "\n" + margin).split("\n"))
    return "\n".join(lines) + "\n" * bool(lines), pages


# ---------------------------------------------------------------- one part


class _Story:
    """One part's text, taken element by element. Nothing recurs: what is nested waits on a list."""

    def __init__(self, styles: Styles, numbers: Numbers, room: _Room, notes: Mapping[tuple[str, str], _Note]) -> None:
        self._styles, self._numbers, self._room, self._notes = styles, numbers, room, notes
        self.blocks: list[_Block] = []
        self.headers: dict[str, None] = {}  # identities of parts, in order
        self.footers: dict[str, None] = {}
        self.page = 0
        self.is_document = False
        self._own_notes: list[tuple[tuple[str, str], str, list[_Block]]] = []
        self._flows = [self.blocks]  # where a finished block goes: the part, a cell, a box, a note
        self._rows: list[list[list[_Block]]] = []
        self._tables: list[int] = []
        self._groups = _LIST
        self._paragraphs: list[_Paragraph] = []
        self._rest: tuple[list[str], int | None] | None = None  # of a paragraph that goes on
        self._runs: list[bool] = []  # whether each open run is hidden
        self._hidden = 0
        self._taken: list[bool] = []  # of each open choice, whether one was taken
        self._skipped = 0  # open elements of one that is left out
        self._in_text = self._in_properties = False
        self._operator = ""  # of a sum or its like, while it is described
        self._ruby = 0
        self._told: set[tuple[str, str]] = set()
        self._labels: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}  # notes referred to, by their kind
        self._waiting: list[_Block] = []  # notes, until the paragraph or table ends

    # ------------------------------------------------ what the parser calls

    def start(self, name: str, attributes: Attributes) -> None:
        """An element begins."""
        if self._skipped:
            self._skipped += 1
            return
        tag = short_name(name)
        if tag in _LEFT_OUT:
            self._skipped = 1
            return
        begin = _BEGIN.get(tag)
        if begin is not None:
            begin(self, attributes)

    def end(self, name: str) -> None:
        """An element ends."""
        if self._skipped:
            self._skipped -= 1
            return
        finish = _END.get(short_name(name))
        if finish is not None:
            finish(self)

    def text(self, data: str) -> None:
        """Text within the element."""
        if self._in_text and not self._skipped:
            self._put(data.replace("\n", " "))

    def finish(self) -> None:
        """The part has ended."""
        self._end_rest()
        self._tell_waiting()

    def keep_notes(self, notes: dict[tuple[str, str], _Note], label: str) -> None:
        """Puts the notes that this part holds where others find them."""
        for key, author, blocks in self._own_notes:
            notes.setdefault(key, _Note(label, author, blocks))

    # ------------------------------------------------ paragraphs and runs

    def _put(self, text: str) -> None:
        """Shows text in the open paragraph, where it is seen there."""
        if self._hidden or self._in_properties or not self._paragraphs or not text:
            return
        paragraph = self._paragraphs[-1]
        if paragraph.coded:
            return
        self._room.take(len(text))
        if paragraph.readings and not self._ruby:
            self._tell_readings(paragraph)
        if not text.isspace():
            paragraph.shown += len(text)
            if paragraph.page is None:
                paragraph.page = self.page
        paragraph.pieces.append(text)

    def _begin_paragraph(self, _: Attributes) -> None:
        paragraph = _Paragraph(self._styles.default)
        paragraph.hidden = self._styles.whole(paragraph.style).hidden or False
        if self._rest is not None:
            paragraph.pieces, paragraph.page = self._rest
            self._rest = None
        self._paragraphs.append(paragraph)

    def _end_paragraph(self) -> None:
        paragraph = self._paragraphs.pop()
        if paragraph.readings:
            self._tell_readings(paragraph)
        if paragraph.goes_on and not paragraph.boxes:
            self._rest = paragraph.pieces, paragraph.page
            return
        block = self._block(paragraph)
        if block.text:
            self._room.take(len(block.lead) + 2)  # and the line's ends
            self._flows[-1].append(block)
        self._flows[-1].extend(paragraph.boxes)
        if not self._rows and not self._paragraphs:
            self._tell_waiting()

    def _end_rest(self) -> None:
        """Ends a paragraph that nothing continues."""
        if self._rest is not None:
            self._begin_paragraph({})
            self._end_paragraph()

    def _block(self, paragraph: _Paragraph) -> _Block:
        style = self._styles.whole(paragraph.style)
        text = _trimmed(seen("".join(paragraph.pieces)))
        page = self.page if paragraph.page is None else paragraph.page
        number = style.number if paragraph.number is None else paragraph.number
        listed = self._numbers.label(style, number, paragraph.level, paragraph.style) if number else None
        heading = style.heading if paragraph.heading is None else paragraph.heading
        if heading:
            mark = listed[1] if listed and listed[1] != "- " else ""
            return _Block("#" * min(heading, 6) + " ", mark + text.replace("\n", " ") if text else "", page)
        if listed and listed[1]:
            return _Block("  " * listed[0] + listed[1], text, page, _LIST)
        return _Block("", text, page)

    def _begin_properties(self, _: Attributes) -> None:
        self._in_properties = True

    def _end_properties(self) -> None:
        self._in_properties = False

    def _take_style(self, attributes: Attributes) -> None:
        if self._paragraphs:
            paragraph = self._paragraphs[-1]
            paragraph.style = value_of(attributes, VAL)
            paragraph.hidden = self._styles.whole(paragraph.style).hidden or False

    def _take_frame(self, attributes: Attributes) -> None:
        """A first letter set large is a paragraph of its own, but the next one's beginning."""
        if self._paragraphs and value_of(attributes, DROP_CAP) not in ("", "none"):
            self._paragraphs[-1].goes_on = True

    def _take_outline(self, attributes: Attributes) -> None:
        if self._paragraphs:
            self._paragraphs[-1].heading = outline(value_of(attributes, VAL))

    def _take_number(self, attributes: Attributes) -> None:
        if self._paragraphs:
            self._paragraphs[-1].number = value_of(attributes, VAL)

    def _take_level(self, attributes: Attributes) -> None:
        if self._paragraphs:
            self._paragraphs[-1].level = whole(value_of(attributes, VAL), 0, LEVELS - 1)

    def _begin_deleted(self, _: Attributes) -> None:
        if self._in_properties and self._paragraphs:
            self._paragraphs[-1].goes_on = True
        self._skipped = 1

    def _begin_run(self, _: Attributes) -> None:
        hidden = bool(self._paragraphs) and self._paragraphs[-1].hidden
        self._runs.append(hidden)
        self._hidden += hidden

    def _end_run(self) -> None:
        self._hidden -= self._runs.pop()

    def _hide(self, hidden: bool) -> None:
        if self._runs and not self._in_properties:
            self._hidden += hidden - self._runs[-1]
            self._runs[-1] = hidden

    def _take_run_style(self, attributes: Attributes) -> None:
        hidden = self._styles.whole(value_of(attributes, VAL)).hidden
        if hidden is not None:
            self._hide(hidden)

    def _take_vanish(self, attributes: Attributes) -> None:
        self._hide(is_on(attributes))

    def _begin_text(self, _: Attributes) -> None:
        self._in_text = True

    def _end_text(self) -> None:
        self._in_text = False

    def _break_line(self, _: Attributes) -> None:
        self._put("\n")

    def _put_tab(self, _: Attributes) -> None:
        self._put("\t")

    def _put_hyphen(self, _: Attributes) -> None:
        self._put("-")

    def _put_symbol(self, attributes: Attributes) -> None:
        self._put(symbol_of(value_of(attributes, FONT), value_of(attributes, CHAR)))

    def _put_description(self, attributes: Attributes) -> None:
        if description := " ".join(attributes.get("descr", "").split()):
            self._put(f"(picture: {description})")

    def _put_shaped(self, attributes: Attributes) -> None:
        self._put(attributes.get("string", ""))

    def _begin_operator(self, _: Attributes) -> None:
        self._operator = "∫"  # where none is named

    def _take_operator(self, attributes: Attributes) -> None:
        if self._operator:
            self._operator = value_of(attributes, MATH_VAL)

    def _end_operator(self) -> None:
        self._put(self._operator)
        self._operator = ""

    def _end_numerator(self) -> None:
        self._put("/")

    def _turn_page(self, _: Attributes) -> None:
        self.page += 1

    # ------------------------------------------------ ruby: readings follow the word, not each of its letters

    def _begin_ruby(self, _: Attributes) -> None:
        self._ruby += 1

    def _end_ruby(self) -> None:
        self._ruby -= 1

    def _begin_reading(self, _: Attributes) -> None:
        if self._paragraphs:
            paragraph = self._paragraphs[-1]
            paragraph.aside.append(paragraph.pieces)
            paragraph.pieces = []

    def _end_reading(self) -> None:
        if self._paragraphs and self._paragraphs[-1].aside:
            paragraph = self._paragraphs[-1]
            paragraph.readings += paragraph.pieces
            paragraph.pieces = paragraph.aside.pop()

    def _tell_readings(self, paragraph: _Paragraph) -> None:
        paragraph.pieces += ["(", *paragraph.readings, ")"]
        paragraph.readings = []

    # ------------------------------------------------ fields

    def _begin_mark(self, attributes: Attributes) -> None:
        if not self._paragraphs:
            return
        paragraph, kind = self._paragraphs[-1], value_of(attributes, FIELD_TYPE)
        if kind == "begin":
            if len(paragraph.fields) >= FIELDS_DEEP_MAX:
                raise LeftOut(BOMB)
            paragraph.fields.append(_Field(paragraph.shown))
            paragraph.coded += 1
        elif kind == "separate" and paragraph.fields:
            self._begin_result(paragraph)
        elif kind == "end" and paragraph.fields:
            self._begin_result(paragraph)
            field = paragraph.fields.pop()
            if field.shown == paragraph.shown:
                self._put(field.value)

    def _begin_result(self, paragraph: _Paragraph) -> None:
        field = paragraph.fields[-1]
        if field.coded:
            field.coded = False
            field.shown = paragraph.shown
            paragraph.coded -= 1

    def _form(self) -> _Field | None:
        """The field whose form is being described."""
        return self._paragraphs[-1].fields[-1] if self._paragraphs and self._paragraphs[-1].fields else None

    def _begin_form(self, _: Attributes, form: str, value: str) -> None:
        if field := self._form():
            field.form, field.value = form, value

    def _take_default(self, attributes: Attributes) -> None:
        field = self._form()
        if field is None:
            return
        if field.form == "check":
            field.value = "☒" if is_on(attributes) else "☐"
        elif field.form == "text":
            field.value = value_of(attributes, VAL)
        elif field.form == "list":
            field.chosen = whole(value_of(attributes, VAL), 0, ENTRIES_MAX)

    def _take_result(self, attributes: Attributes) -> None:
        self._take_default(attributes)
        if (field := self._form()) and field.form == "list":
            field.form = "chosen list"

    def _take_entry(self, attributes: Attributes) -> None:
        field = self._form()
        if field is not None and field.form.endswith("list"):
            if field.entries == field.chosen:
                field.value = value_of(attributes, VAL)
            field.entries += 1

    # ------------------------------------------------ choices, boxes, tables

    def _begin_choice(self, _: Attributes) -> None:
        self._taken.append(False)

    def _end_choice(self) -> None:
        self._taken.pop()

    def _begin_alternative(self, _: Attributes) -> None:
        if not self._taken:
            return
        if self._taken[-1]:
            self._skipped = 1
        self._taken[-1] = True

    def _begin_flow(self, _: Attributes) -> None:
        self._flows.append([])

    def _end_box(self) -> None:
        self._end_rest()
        blocks = self._flows.pop()
        (self._paragraphs[-1].boxes if self._paragraphs else self._flows[-1]).extend(blocks)

    def _begin_table(self, _: Attributes) -> None:
        self._end_rest()
        self._groups += 1
        self._tables.append(self._groups)

    def _end_table(self) -> None:
        self._tables.pop()
        if not self._rows and not self._paragraphs:
            self._tell_waiting()

    def _begin_row(self, _: Attributes) -> None:
        self._rows.append([])

    def _end_row(self) -> None:
        self._flows[-1].extend(_row(self._rows.pop(), self._tables[-1] if self._tables else 0))

    def _end_cell(self) -> None:
        self._end_rest()
        cell = self._flows.pop()
        if self._rows:
            self._rows[-1].append(cell)
        else:
            self._flows[-1].extend(cell)

    # ------------------------------------------------ notes, comments, headers

    def _begin_note(self, attributes: Attributes, kind: str) -> None:
        self._flows.append([])
        author = value_of(attributes, AUTHOR)
        self._room.take(len(author))
        self._own_notes.append(((kind, value_of(attributes, ID)), author, self._flows[-1]))
        check_entries(self._own_notes)

    def _end_note(self) -> None:
        self._end_rest()
        self._flows.pop()

    def _refer(self, attributes: Attributes, kind: str) -> None:
        key = kind, value_of(attributes, ID)
        note = self._notes.get(key)
        if note is None or not note.blocks or self._hidden:
            return
        text = " ".join(map(_flat, note.blocks))
        if note.label:
            if key not in self._labels:
                self._counts[kind] = self._counts.get(kind, 0) + 1
                self._labels[key] = f"[{note.label}{self._counts[kind]}]"
            label = self._labels[key]
            self._put(label)
            block = _Block(f"{label}: ", text, self.page)
        else:
            author = " ".join(seen(note.author).split())
            block = _Block("", f"(comment by {author}: {text})" if author else f"(comment: {text})", self.page)
        if key not in self._told:
            self._told.add(key)
            self._waiting.append(block)

    def _tell_waiting(self) -> None:
        self._flows[-1].extend(self._waiting)
        self._waiting.clear()

    def _begin_document(self, _: Attributes) -> None:
        self.is_document = True

    def _take_header(self, attributes: Attributes) -> None:
        self.headers[value_of(attributes, PART_ID)] = None

    def _take_footer(self, attributes: Attributes) -> None:
        self.footers[value_of(attributes, PART_ID)] = None


_BEGIN: Final[dict[str, Callable[[_Story, Attributes], None]]] = {
    "w:document": _Story._begin_document,
    "w:p": _Story._begin_paragraph,
    "w:pPr": _Story._begin_properties,
    "w:pStyle": _Story._take_style,
    "w:framePr": _Story._take_frame,
    "w:outlineLvl": _Story._take_outline,
    "w:numId": _Story._take_number,
    "w:ilvl": _Story._take_level,
    "w:del": _Story._begin_deleted,
    "w:moveFrom": _Story._begin_deleted,
    "w:r": _Story._begin_run,
    "w:rStyle": _Story._take_run_style,
    "w:vanish": _Story._take_vanish,
    "w:t": _Story._begin_text,
    "w:tab": _Story._put_tab,
    "w:ptab": _Story._put_tab,
    "w:br": _Story._break_line,
    "w:cr": _Story._break_line,
    "w:noBreakHyphen": _Story._put_hyphen,
    "w:sym": _Story._put_symbol,
    "w:lastRenderedPageBreak": _Story._turn_page,
    "w:ruby": _Story._begin_ruby,
    "w:rt": _Story._begin_reading,
    "w:fldChar": _Story._begin_mark,
    "w:checkBox": partial(_Story._begin_form, form="check", value="☐"),
    "w:textInput": partial(_Story._begin_form, form="text", value=""),
    "w:ddList": partial(_Story._begin_form, form="list", value=""),
    "w:default": _Story._take_default,
    "w:checked": _Story._take_default,
    "w:result": _Story._take_result,
    "w:listEntry": _Story._take_entry,
    "w:txbxContent": _Story._begin_flow,
    "w:tbl": _Story._begin_table,
    "w:tr": _Story._begin_row,
    "w:tc": _Story._begin_flow,
    "w:comment": partial(_Story._begin_note, kind="comment"),
    "w:footnote": partial(_Story._begin_note, kind="footnote"),
    "w:endnote": partial(_Story._begin_note, kind="endnote"),
    "w:commentReference": partial(_Story._refer, kind="comment"),
    "w:footnoteReference": partial(_Story._refer, kind="footnote"),
    "w:endnoteReference": partial(_Story._refer, kind="endnote"),
    "w:headerReference": _Story._take_header,
    "w:footerReference": _Story._take_footer,
    "m:r": _Story._begin_run,
    "m:t": _Story._begin_text,
    "m:naryPr": _Story._begin_operator,
    "m:chr": _Story._take_operator,
    "a:txBody": _Story._begin_flow,
    "a:p": _Story._begin_paragraph,
    "a:t": _Story._begin_text,
    "a:br": _Story._break_line,
    "mc:AlternateContent": _Story._begin_choice,
    "mc:Choice": _Story._begin_alternative,
    "mc:Fallback": _Story._begin_alternative,
    "wp:docPr": _Story._put_description,
    "v:textpath": _Story._put_shaped,
}
_END: Final[dict[str, Callable[[_Story], None]]] = {
    "w:p": _Story._end_paragraph,
    "w:pPr": _Story._end_properties,
    "w:r": _Story._end_run,
    "w:t": _Story._end_text,
    "w:ruby": _Story._end_ruby,
    "w:rt": _Story._end_reading,
    "w:txbxContent": _Story._end_box,
    "w:tbl": _Story._end_table,
    "w:tr": _Story._end_row,
    "w:tc": _Story._end_cell,
    "w:comment": _Story._end_note,
    "w:footnote": _Story._end_note,
    "w:endnote": _Story._end_note,
    "m:r": _Story._end_run,
    "m:t": _Story._end_text,
    "m:num": _Story._end_numerator,
    "m:naryPr": _Story._end_operator,
    "a:txBody": _Story._end_box,
    "a:p": _Story._end_paragraph,
    "a:t": _Story._end_text,
    "mc:AlternateContent": _Story._end_choice,
}
_LEFT_OUT: Final = frozenset(("w:pPrChange", "w:rPrChange"))  # how a paragraph or run looked before
