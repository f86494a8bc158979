"""A Word document's styles and lists: which paragraph is a heading, what number stands before it, what a symbol is."""

import re
from collections.abc import Callable
from typing import Final

from lnk.documents.content import seen
from lnk.documents.wordxml import (
    ABSTRACT,
    DEFAULT,
    ENTRIES_MAX,
    LEVEL,
    NUMBER,
    OFF,
    STYLE_ID,
    TYPE,
    VAL,
    Attributes,
    check_entries,
    is_on,
    short_name,
    value_of,
    whole,
)

STYLES_DEEP_MAX: Final = 32
LEVELS: Final = 9
LABEL_CHARS_MAX: Final = 64

_HEADING_NAME: Final = re.compile(
    r"(?:heading|(?:ü|ue)?berschrift|titre|t[ií]tulo|titolo|kop|rubrik|overskrift|otsikko|nagłówek|nadpis|címsor|başlık"
    r"|antraštė|virsraksts|pealkiri|naslov|titlu|заголовок|επικεφαλίδα|כותרת|عنوان|tiêu đề|judul|หัวเรื่อง"
    r"|見出し|标题|標題|제목)\s*([1-9])"
)
_TITLE_NAMES: Final = frozenset(
    "title titel titre título titolo titulo tittel tytuł název názov cím otsikko naslov titlu название заголовок назва"
    " τίτλος 表題 标题 標題 제목".split()
)
BOXES: Final = tuple("☐☑☒")


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


class Styles:
    """The document's styles, each with what it has from those it is based on."""

    def __init__(self) -> None:
        self._styles: dict[str, _Style] = {}
        self._whole: dict[str, _Style] = {}
        self._open = _Style()
        self.default = ""

    def start(self, name: str, attributes: Attributes) -> None:
        """Takes an element of styles.xml."""
        tag, value, style = short_name(name), value_of(attributes, VAL), self._open
        if tag == "w:style":
            identity = value_of(attributes, STYLE_ID)
            self._open = self._styles[identity] = _Style()
            check_entries(self._styles)
            if value_of(attributes, TYPE) == "paragraph" and value_of(attributes, DEFAULT) not in ("", *OFF):
                self.default = identity
        elif tag == "w:name":
            style.heading = _heading(value)
        elif tag == "w:basedOn":
            style.based_on = value
        elif tag == "w:outlineLvl" and style.heading is None:
            style.heading = outline(value)
        elif tag == "w:numId":
            style.number = value
        elif tag == "w:ilvl":
            style.level = whole(value, 0, LEVELS - 1)
        elif tag == "w:vanish":
            style.hidden = is_on(attributes)

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


def outline(value: str) -> int:
    """A heading's level from its `w:outlineLvl`, which counts from 0, and has 9 for body text."""
    return (whole(value, 0, LEVELS) + 1) % (LEVELS + 1) if value.isdecimal() else 0


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


class Numbers:
    """The document's lists, and how far they have counted."""

    def __init__(self, styles: Styles) -> None:
        self._styles = styles
        self._lists: dict[str, _List] = {}
        self._used: dict[str, str] = {}  # a list in use (`num`): as which it is drawn up
        self._restarts: dict[str, dict[int, int]] = {}
        self._list, self._level, self._number, self._at = _List(), _Level(), "", 0

    def start(self, name: str, attributes: Attributes) -> None:
        """Takes an element of numbering.xml."""
        take = _NUMBERING.get(short_name(name))
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
        self._list = self._lists[value_of(attributes, ABSTRACT)] = _List()
        check_entries(self._lists)

    def _take_link(self, attributes: Attributes) -> None:
        self._list.link = value_of(attributes, VAL)

    def _begin_level(self, attributes: Attributes) -> None:
        self._at = whole(value_of(attributes, LEVEL), 0, LEVELS - 1)
        self._level = _Level()
        if not self._number:  # a level that `num` draws anew is rare, and looks the same but for its form
            self._list.levels[self._at] = self._level

    def _begin_number(self, attributes: Attributes) -> None:
        self._number = value_of(attributes, NUMBER)
        self._used[self._number] = ""
        check_entries(self._used)

    def _name_list(self, attributes: Attributes) -> None:
        self._used[self._number] = value_of(attributes, VAL)

    def _begin_override(self, attributes: Attributes) -> None:
        self._at = whole(value_of(attributes, LEVEL), 0, LEVELS - 1)

    def _restart(self, attributes: Attributes) -> None:
        start = whole(value_of(attributes, VAL), 0, ENTRIES_MAX)
        self._restarts.setdefault(self._number, {})[self._at] = start - 1

    def _take_way(self, attributes: Attributes) -> None:
        self._level.way = value_of(attributes, VAL)

    def _take_text(self, attributes: Attributes) -> None:
        self._level.text = value_of(attributes, VAL)[:LABEL_CHARS_MAX]

    def _take_start(self, attributes: Attributes) -> None:
        self._level.start = whole(value_of(attributes, VAL), 0, ENTRIES_MAX)

    def _take_style(self, attributes: Attributes) -> None:
        self._level.style = value_of(attributes, VAL)


_NUMBERING: Final[dict[str, Callable[[Numbers, Attributes], None]]] = {
    "w:abstractNum": Numbers._begin_list,
    "w:numStyleLink": Numbers._take_link,
    "w:lvl": Numbers._begin_level,
    "w:num": Numbers._begin_number,
    "w:abstractNumId": Numbers._name_list,
    "w:lvlOverride": Numbers._begin_override,
    "w:startOverride": Numbers._restart,
    "w:numFmt": Numbers._take_way,
    "w:lvlText": Numbers._take_text,
    "w:start": Numbers._take_start,
    "w:pStyle": Numbers._take_style,
}


def _label(drawn: _List, level: _Level) -> str:
    """What stands before a paragraph of that level: `- `, its number, or nothing."""
    if level.way == "bullet":
        if level.text.isspace():
            return ""
        return f"- {level.text} " if level.text in BOXES else "- "

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


def symbol_of(font: str, code: str) -> str:
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
