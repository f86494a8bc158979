"""The text of a Word document (DOCX): its parts, found by their relationships, read one by one as streams.

Headings, lists and their numbers are told from styles and numbering. A table's row is one line, or, where it lays out
whole paragraphs, the cells one after another. A footnote or endnote is marked `[^1]`, `[^e1]` where it is referred to
and stands after the paragraph or table; so does a comment, as `(comment by Ann: …)`. Headers come first, footers last,
each once. A picture's description stands in its place. Text that is deleted, moved away or hidden is not there.

ECMA-376, transitional and strict. What is not read: embedded files, charts and diagrams, building blocks.
"""

import posixpath
import re
from collections.abc import Callable, Mapping, Sized
from functools import lru_cache, partial
from typing import Final, NamedTuple
from urllib.parse import unquote

from lnk.documents.content import BOMB, DAMAGED, NO_TEXT, TEXT_BYTES_MAX, TEXT_TOO_LARGE, Content, LeftOut, seen
from lnk.documents.xml import local, parse
from lnk.documents.zipped import Archive

ENTRIES_MAX: Final = 100_000  # styles, lists, notes or relationships; each is kept while the document is read
FIELDS_DEEP_MAX: Final = 256
STYLES_DEEP_MAX: Final = 32
ROW_CHARS_MAX: Final = 1_500  # a longer row is a page's layout, and too long for one line
LEVELS: Final = 9
LABEL_CHARS_MAX: Final = 64

Attributes = Mapping[str, str]

_SPACES: Final = {
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": "w",
    "http://purl.oclc.org/ooxml/wordprocessingml/main": "w",
    "http://schemas.openxmlformats.org/officeDocument/2006/math": "m",
    "http://purl.oclc.org/ooxml/officeDocument/math": "m",
    "http://schemas.openxmlformats.org/drawingml/2006/main": "a",
    "http://purl.oclc.org/ooxml/drawingml/main": "a",
    "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing": "wp",
    "http://purl.oclc.org/ooxml/drawingml/wordprocessingDrawing": "wp",
    "http://schemas.openxmlformats.org/markup-compatibility/2006": "mc",
    "http://schemas.openxmlformats.org/officeDocument/2006/relationships": "r",
    "http://purl.oclc.org/ooxml/officeDocument/relationships": "r",
    "urn:schemas-microsoft-com:vml": "v",
}
_HEADING_NAME: Final = re.compile(
    r"(?:heading|(?:ü|ue)?berschrift|titre|t[ií]tulo|titolo|kop|rubrik|overskrift|otsikko|nagłówek|nadpis|címsor|başlık"
    r"|antraštė|virsraksts|pealkiri|naslov|titlu|заголовок|επικεφαλίδα|כותרת|عنوان|tiêu đề|judul|หัวเรื่อง"
    r"|見出し|标题|標題|제목)\s*([1-9])"
)
_TITLE_NAMES: Final = frozenset(
    "title titel titre título titolo titulo tittel tytuł název názov cím otsikko naslov titlu название заголовок назва"
    " τίτλος 表題 标题 標題 제목".split()
)
_BOXES: Final = tuple("☐☑☒")
_OFF: Final = frozenset(("0", "false", "off"))


def read(data: bytes) -> Content:
    """The document's text, its pages where Word counted as many as it marked, and its title.

    Raises LeftOut.
    """
    package = _Package(Archive(data))
    styles = _Styles()
    numbers = _Numbers(styles)
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


class _Relation(NamedTuple):
    identity: str
    kind: str  # the last word of its type
    part: str


class _Package:
    """The document's parts. One is read once, however often it is named."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._top = self._relations("")
        self.main = next((each.part for each in self._top if each.kind == "officeDocument"), "word/document.xml")
        if self.main not in archive:
            raise LeftOut(DAMAGED)
        self._own = self._relations(self.main)
        self._identities = {each.identity: each.part for each in self._own if each.part != self.main}
        self._read: set[str] = set()

    def related(self, kind: str) -> list[str]:
        """The parts of that kind that belong to the main one."""
        return [each.part for each in self._own if each.kind == kind and each.part != self.main]

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
        return _number(self._property("extended-properties", "Pages"), 0, ENTRIES_MAX)

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
                self._parse_beside(each.part, start, text)
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

    def _relations(self, part: str) -> list[_Relation]:
        """What a part, or with "" the package, is related to, within the archive."""
        folder, name = posixpath.split(part)
        found: list[_Relation] = []

        def start(tag: str, attributes: Attributes) -> None:
            if local(tag) == "Relationship" and attributes.get("TargetMode") != "External":
                kind = attributes.get("Type", "").rpartition("/")[2]
                target = self._target(folder, attributes.get("Target", ""))
                found.append(_Relation(attributes.get("Id", ""), kind, target))
                _check_entries(found)

        self._parse_beside(posixpath.join(folder, "_rels", name + ".rels"), start, lambda _: None)
        return found

    def _target(self, folder: str, target: str) -> str:
        path = posixpath.normpath(posixpath.join("/", folder, target.replace("\\", "/"))).lstrip("/")
        return path if path in self._archive else unquote(path)


class _Room:
    """How much text may still come, counted as it grows; a character is at least one byte."""

    def __init__(self) -> None:
        self._left = TEXT_BYTES_MAX

    def take(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise LeftOut(TEXT_TOO_LARGE)


@lru_cache(maxsize=4096)
def _short(name: str) -> str:
    """A name with its namespace's usual prefix, `:` before it where that is none of ours."""
    space, _, tag = name.rpartition("}")
    return f"{_SPACES.get(space, '')}:{tag}"


def _keys(prefix: str, tag: str) -> tuple[str, ...]:
    return (*(f"{space}}}{tag}" for space, short in _SPACES.items() if short == prefix), tag)


_VAL, _ID, _TYPE, _FIELD_TYPE = _keys("w", "val"), _keys("w", "id"), _keys("w", "type"), _keys("w", "fldCharType")
_STYLE_ID, _DEFAULT, _AUTHOR = _keys("w", "styleId"), _keys("w", "default"), _keys("w", "author")
_FONT, _CHAR, _LEVEL, _PART_ID = _keys("w", "font"), _keys("w", "char"), _keys("w", "ilvl"), _keys("r", "id")
_NUMBER, _ABSTRACT = _keys("w", "numId"), _keys("w", "abstractNumId")
_MATH_VAL, _DROP_CAP = _keys("m", "val"), _keys("w", "dropCap")


def _get(attributes: Attributes, keys: tuple[str, ...]) -> str:
    for key in keys:
        if key in attributes:
            return attributes[key]
    return ""


def _on(attributes: Attributes) -> bool:
    """Whether a switch such as `w:vanish` is on: it is, where it stands without a value."""
    return _get(attributes, _VAL).lower() not in _OFF


def _number(text: str, least: int, most: int) -> int:
    text = text.strip()
    return min(max(int(text), least), most) if text.isdecimal() and len(text) < 10 else least


def _check_entries(kept: Sized) -> None:
    if len(kept) > ENTRIES_MAX:
        raise LeftOut(BOMB)


# ---------------------------------------------------------------- styles and numbers


class _Style:
    """What a style says of a paragraph or run; None where it says nothing."""

    __slots__ = ("based_on", "heading", "hidden", "level", "number")

    def __init__(self) -> None:
        self.based_on = ""
        self.heading: int | None = None  # 0: body text
        self.number: str | None = None
        self.level: int | None = None
        self.hidden: bool | None = None


class _Styles:
    """The document's styles, each with what it has from those it is based on."""

    def __init__(self) -> None:
        self._styles: dict[str, _Style] = {}
        self._whole: dict[str, _Style] = {}
        self._open = _Style()
        self.default = ""

    def start(self, name: str, attributes: Attributes) -> None:
        """Takes an element of styles.xml."""
        tag, value, style = _short(name), _get(attributes, _VAL), self._open
        if tag == "w:style":
            identity = _get(attributes, _STYLE_ID)
            self._open = self._styles[identity] = _Style()
            _check_entries(self._styles)
            if _get(attributes, _TYPE) == "paragraph" and _get(attributes, _DEFAULT) not in ("", *_OFF):
                self.default = identity
        elif tag == "w:name":
            style.heading = _heading(value)
        elif tag == "w:basedOn":
            style.based_on = value
        elif tag == "w:outlineLvl" and style.heading is None:
            style.heading = _outline(value)
        elif tag == "w:numId":
            style.number = value
        elif tag == "w:ilvl":
            style.level = _number(value, 0, LEVELS - 1)
        elif tag == "w:vanish":
            style.hidden = _on(attributes)

    def whole(self, identity: str) -> _Style:
        """What that style comes to."""
        if identity not in self._whole:
            self._whole[identity] = self._follow(identity)
        return self._whole[identity]

    def _follow(self, identity: str) -> _Style:
        whole = _Style()
        for _ in range(STYLES_DEEP_MAX):
            style = self._styles.get(identity)
            if style is None:
                break
            for each in ("heading", "number", "level", "hidden"):
                if getattr(whole, each) is None:
                    setattr(whole, each, getattr(style, each))
            if whole.heading is None:
                whole.heading = _heading(identity)
            identity = style.based_on
        if whole.heading is None:
            whole.heading = _heading(identity)  # of a style that the document names but does not describe
        return whole


def _heading(name: str) -> int | None:
    """The level that a style's name tells, in many a language."""
    name = name.strip().casefold()[:LABEL_CHARS_MAX]
    if found := _HEADING_NAME.fullmatch(name):
        return int(found[1])
    return 1 if name in _TITLE_NAMES else None


def _outline(value: str) -> int:
    """A heading's level from its `w:outlineLvl`, which counts from 0, and has 9 for body text."""
    return (_number(value, 0, LEVELS) + 1) % (LEVELS + 1) if value.isdecimal() else 0


class _Level:
    """How one level of a list counts."""

    __slots__ = ("start", "style", "text", "way")

    def __init__(self) -> None:
        self.way, self.text, self.start, self.style = "decimal", "", 1, ""


class _List:
    """A list as it is drawn up (`abstractNum`): its levels, and how far each has counted."""

    __slots__ = ("counts", "levels", "link")

    def __init__(self) -> None:
        self.levels: dict[int, _Level] = {}
        self.counts: dict[int, int] = {}
        self.link = ""  # the style whose list it is


class _Numbers:
    """The document's lists, and how far they have counted."""

    def __init__(self, styles: _Styles) -> None:
        self._styles = styles
        self._lists: dict[str, _List] = {}
        self._used: dict[str, str] = {}  # a list in use (`num`): as which it is drawn up
        self._restarts: dict[str, dict[int, int]] = {}
        self._list, self._level, self._number, self._at = _List(), _Level(), "", 0

    def start(self, name: str, attributes: Attributes) -> None:
        """Takes an element of numbering.xml."""
        take = _NUMBERING.get(_short(name))
        if take is not None:
            take(self, attributes)

    def label(self, style: _Style, number: str, level: int | None, style_id: str) -> tuple[int, str] | None:
        """Counts, and gives how deep the paragraph is listed and what stands before it; None where it is not listed."""
        drawn = self._drawn(number)
        if drawn is None:
            return None if number in ("", "0") else (level or 0, "- ")
        if level is None:
            linked = (at for at, each in drawn.levels.items() if each.style and each.style == style_id)
            level = next(linked, style.level or 0)
        drawn.counts.update(self._restarts.pop(number, {}))
        known = drawn.levels.get(level)
        if known is None:
            return level, "- "
        drawn.counts[level] = drawn.counts.get(level, known.start - 1) + 1
        for deeper in range(level + 1, LEVELS):
            drawn.counts.pop(deeper, None)
        return level, _label(drawn, known)

    def _drawn(self, number: str) -> _List | None:
        drawn = self._lists.get(self._used.get(number, ""))
        if drawn is not None and drawn.link:
            linked = self._styles.whole(drawn.link).number
            drawn = self._lists.get(self._used.get(linked or "", ""), drawn)
        return drawn

    def _begin_list(self, attributes: Attributes) -> None:
        self._number = ""
        self._list = self._lists[_get(attributes, _ABSTRACT)] = _List()
        _check_entries(self._lists)

    def _take_link(self, attributes: Attributes) -> None:
        self._list.link = _get(attributes, _VAL)

    def _begin_level(self, attributes: Attributes) -> None:
        self._at = _number(_get(attributes, _LEVEL), 0, LEVELS - 1)
        self._level = _Level()
        if not self._number:  # a level that `num` draws anew is rare, and looks the same but for its form
            self._list.levels[self._at] = self._level

    def _begin_number(self, attributes: Attributes) -> None:
        self._number = _get(attributes, _NUMBER)
        self._used[self._number] = ""
        _check_entries(self._used)

    def _name_list(self, attributes: Attributes) -> None:
        self._used[self._number] = _get(attributes, _VAL)

    def _begin_override(self, attributes: Attributes) -> None:
        self._at = _number(_get(attributes, _LEVEL), 0, LEVELS - 1)

    def _restart(self, attributes: Attributes) -> None:
        start = _number(_get(attributes, _VAL), 0, ENTRIES_MAX)
        self._restarts.setdefault(self._number, {})[self._at] = start - 1

    def _take_way(self, attributes: Attributes) -> None:
        self._level.way = _get(attributes, _VAL)

    def _take_text(self, attributes: Attributes) -> None:
        self._level.text = _get(attributes, _VAL)[:LABEL_CHARS_MAX]

    def _take_start(self, attributes: Attributes) -> None:
        self._level.start = _number(_get(attributes, _VAL), 0, ENTRIES_MAX)

    def _take_style(self, attributes: Attributes) -> None:
        self._level.style = _get(attributes, _VAL)


_NUMBERING: Final[dict[str, Callable[[_Numbers, Attributes], None]]] = {
    "w:abstractNum": _Numbers._begin_list,
    "w:numStyleLink": _Numbers._take_link,
    "w:lvl": _Numbers._begin_level,
    "w:num": _Numbers._begin_number,
    "w:abstractNumId": _Numbers._name_list,
    "w:lvlOverride": _Numbers._begin_override,
    "w:startOverride": _Numbers._restart,
    "w:numFmt": _Numbers._take_way,
    "w:lvlText": _Numbers._take_text,
    "w:start": _Numbers._take_start,
    "w:pStyle": _Numbers._take_style,
}


def _label(drawn: _List, level: _Level) -> str:
    """What stands before a paragraph of that level: `- `, its number, or nothing."""
    if level.way == "bullet":
        if level.text.isspace():
            return ""
        return f"- {level.text} " if level.text in _BOXES else "- "

    def spelled(found: re.Match[str]) -> str:
        at = int(found[1]) - 1
        known = drawn.levels.get(at, level)
        return _spelled(drawn.counts.get(at, known.start), known.way)

    text = seen(re.sub("%([1-9])", spelled, level.text)).strip()
    return text + " " if text else ""


def _spelled(count: int, way: str) -> str:
    """A number as a list has it; in digits where letters would be long."""
    if way.endswith("Letter") and 0 < count <= 26 * 4:
        text = chr(ord("a") + (count - 1) % 26) * (1 + (count - 1) // 26)
    elif way.endswith("Roman") and 0 < count < 4000:
        text = _roman(count)
    else:
        return "" if way == "none" else f"{count:02}" if way == "decimalZero" else str(count)
    return text.upper() if way.startswith("upper") else text


def _roman(count: int) -> str:
    text = ""
    for value, letters in zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1), "m cm d cd c xc l xl x ix v iv i".split(), strict=True
    ):
        text += letters * (count // value)
        count %= value
    return text


# ---------------------------------------------------------------- symbols

_GREEK: Final = dict(
    zip(
        b"ABGDEZHQIKLMNXOPRSTUFCYWabgdezhqiklmnxoprstufcywVjJ",
        "ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩαβγδεζηθικλμνξοπρστυφχψωςϕϑ",
        strict=True,
    )
)
_SYMBOL: Final = _GREEK | dict(
    zip(
        b"\xa3\xb3\xb1\xb4\xb7\xb8\xb9\xba\xbb\xae\xac\xad\xaf\xa5\xb0\xd7\xd6\xde\xa2\xb2\xe5\xf2\xce\xc6",
        "≤≥±×•÷≠≡≈→←↑↓∞°⋅√⇒′″∑∫∈∅",
        strict=True,
    )
)
_WINGDINGS: Final = dict(zip(b"\xfc\xfb\xfe\xfd\xa8\x6f\xa7\xe0\xe8\xdf\xf0\xd8\x4a", "✔✘☑☒☐☐▪→➔←⇨➢☺", strict=True))
_PICTURE_FONTS: Final = ("wingdings", "webdings", "marlett", "zapf")


def _symbol(font: str, code: str) -> str:
    """The character that a symbol font shows for a code of hexadecimal digits; nothing where it is a mere picture."""
    try:
        point = int(code[:8], 16)
    except ValueError:
        return ""
    if 0xF000 <= point <= 0xF0FF:
        point &= 0xFF
    font = font.lower()
    if font == "symbol" and point < 256:
        return _SYMBOL.get(point, chr(point) if point < 128 else "")
    if font.startswith(_PICTURE_FONTS) and point < 256:
        return _WINGDINGS.get(point, "") if font == "wingdings" else ""
    return chr(point) if 0x20 <= point < 0x110000 else ""


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

    def __init__(self, styles: _Styles, numbers: _Numbers, room: _Room, notes: Mapping[tuple[str, str], _Note]) -> None:
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
        tag = _short(name)
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
        finish = _END.get(_short(name))
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
            paragraph.style = _get(attributes, _VAL)
            paragraph.hidden = self._styles.whole(paragraph.style).hidden or False

    def _take_frame(self, attributes: Attributes) -> None:
        """A first letter set large is a paragraph of its own, but the next one's beginning."""
        if self._paragraphs and _get(attributes, _DROP_CAP) not in ("", "none"):
            self._paragraphs[-1].goes_on = True

    def _take_outline(self, attributes: Attributes) -> None:
        if self._paragraphs:
            self._paragraphs[-1].heading = _outline(_get(attributes, _VAL))

    def _take_number(self, attributes: Attributes) -> None:
        if self._paragraphs:
            self._paragraphs[-1].number = _get(attributes, _VAL)

    def _take_level(self, attributes: Attributes) -> None:
        if self._paragraphs:
            self._paragraphs[-1].level = _number(_get(attributes, _VAL), 0, LEVELS - 1)

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
        hidden = self._styles.whole(_get(attributes, _VAL)).hidden
        if hidden is not None:
            self._hide(hidden)

    def _take_vanish(self, attributes: Attributes) -> None:
        self._hide(_on(attributes))

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
        self._put(_symbol(_get(attributes, _FONT), _get(attributes, _CHAR)))

    def _put_description(self, attributes: Attributes) -> None:
        if description := " ".join(attributes.get("descr", "").split()):
            self._put(f"(picture: {description})")

    def _put_shaped(self, attributes: Attributes) -> None:
        self._put(attributes.get("string", ""))

    def _begin_operator(self, _: Attributes) -> None:
        self._operator = "∫"  # where none is named

    def _take_operator(self, attributes: Attributes) -> None:
        if self._operator:
            self._operator = _get(attributes, _MATH_VAL)

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
        paragraph, kind = self._paragraphs[-1], _get(attributes, _FIELD_TYPE)
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
            field.value = "☒" if _on(attributes) else "☐"
        elif field.form == "text":
            field.value = _get(attributes, _VAL)
        elif field.form == "list":
            field.chosen = _number(_get(attributes, _VAL), 0, ENTRIES_MAX)

    def _take_result(self, attributes: Attributes) -> None:
        self._take_default(attributes)
        if (field := self._form()) and field.form == "list":
            field.form = "chosen list"

    def _take_entry(self, attributes: Attributes) -> None:
        field = self._form()
        if field is not None and field.form.endswith("list"):
            if field.entries == field.chosen:
                field.value = _get(attributes, _VAL)
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
        author = _get(attributes, _AUTHOR)
        self._room.take(len(author))
        self._own_notes.append(((kind, _get(attributes, _ID)), author, self._flows[-1]))
        _check_entries(self._own_notes)

    def _end_note(self) -> None:
        self._end_rest()
        self._flows.pop()

    def _refer(self, attributes: Attributes, kind: str) -> None:
        key = kind, _get(attributes, _ID)
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
        self.headers[_get(attributes, _PART_ID)] = None

    def _take_footer(self, attributes: Attributes) -> None:
        self.footers[_get(attributes, _PART_ID)] = None


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
