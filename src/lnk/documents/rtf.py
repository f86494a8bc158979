"""Rich Text Format, token by token: what stands on the page, in whatever code pages it is written.

`striprtf` is not called: it shows deleted and hidden text, leaves out footnotes, and on some files takes time that
grows with the square of their size.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from lnk.documents.charset import decode
from lnk.documents.content import BOMB, DAMAGED, Content, LeftOut
from lnk.documents.flow import ITEM, Flow, Line, joined

GROUPS_MAX: Final = 1024  # one in another
TOKENS_MAX: Final = 5_000_000  # five seconds' work
_TOKEN = re.compile(
    rb"((?:\\u-?[0-9]{1,5} ?(?:\?|\\'3[fF]))++)"  # characters by number, each with a question mark for older programs
    rb"|\\([A-Za-z]{1,32})(-?[0-9]{1,9})?[0-9]* ?"  # a word and its number
    rb"|\\'([0-9A-Fa-f]{2})|\\([^A-Za-z])|([{}])|[\r\n\0]+|([^\\{}\r\n\0]+)|\\"
)
_CHARACTER = re.compile(rb"\\u(-?[0-9]+)")
_WRITTEN: Final = {
    **dict(zip("lquote rquote ldblquote rdblquote emdash endash bullet".split(), "‘’“”—–•", strict=True)),
    **dict(zip("tab line softline zwj zwnj".split(), "\t\n\n\u200d\u200c", strict=True)),
    **dict.fromkeys(("emspace", "enspace", "qmspace", "nestcell", "nestrow"), " "),
}
_SIGNS: Final = {b"~": "\xa0", b"_": "\u2011", b"{": "{", b"}": "}", b"\\": "\\", b"\t": "\t"}
_CHARSETS: Final = {
    int(number): name
    for number, name in map(
        str.split,
        "0 cp1252,2 cp1252,77 mac_roman,78 cp932,79 big5,80 cp949,83 mac_greek,84 mac_cyrillic,85 gbk,86 mac_romanian,"
        "87 mac_cyrillic,88 cp874,89 mac_latin2,128 cp932,129 cp949,130 johab,134 gbk,136 big5,161 cp1253,162 cp1254,"
        "163 cp1258,177 cp1255,178 cp1256,186 cp1257,204 cp1251,222 cp874,238 cp1250,254 cp437,255 cp850".split(","),
    )
}
_CODE_PAGES: Final = {10000: "mac_roman", 10001: "cp932", 10007: "mac_cyrillic", 65001: "utf_8"}
_SYSTEMS: Final = {"ansi": "cp1252", "mac": "mac_roman", "pc": "cp437", "pca": "cp850"}
# Groups that are no text of the page, beside every group marked as one that not all programs know.
_UNSEEN: Final = frozenset(
    "colortbl filetbl pict objdata objclass objname fldinst datafield listtable listoverridetable revtbl author"
    " operator company category keywords comment doccomm subject manager creatim revtim printim buptim atnid atndate"
    " atnref bkmkstart bkmkend xe tc nonesttables nesttableprops sp pn ftnsep ftnsepc ftncn aftnsep aftnsepc aftncn"
    " background private falt formfield shprslt mmath upr".split()
)
_FIELDS: Final = frozenset(
    ("fonttbl", "stylesheet", "info", "title", "atnauthor", "listtext", "pntext")
)  # whose text is no line
_EDGES: Final = frozenset(f"{edge}{page}" for edge in ("header", "footer") for page in ("", "f", "l", "r"))
_REGIONS: Final = frozenset(("footnote", "annotation", "shptxt")) | _EDGES
_KNOWN: Final = _REGIONS | {"shpinst", "atnauthor", "ud"}  # of those marked groups
_HEADING = re.compile(r"\s*(?:heading ([1-9])\b|title;?\s*$)", re.IGNORECASE)
_NUMBER = re.compile(r"\w{1,6}[.)]|\(\w{1,6}\)")


class _State(NamedTuple):
    """What a group takes from the one around it, and what ends with it."""

    skipped: bool = False
    hidden: bool = False
    deleted: bool = False
    within: str = ""  # one of _FIELDS
    region: str = ""  # one of _REGIONS, begun by this very group
    font: int | None = None
    repeats: int = 1  # characters that repeat, for older programs, one that was given by its number

    @property
    def shown(self) -> bool:
        return not (self.skipped or self.hidden or self.deleted)


class _Place:
    """Where one region is: how its paragraph is a heading, and which cells its table's row has so far."""

    def __init__(self) -> None:
        self.heading = 0
        self.in_row = self.in_cell = False
        self.cells: list[str] = []


def read(data: bytes) -> Content:
    """The text of an .rtf file. Raises LeftOut."""
    begin = data[:64].find(b"{\\rtf")
    if begin < 0:
        raise LeftOut(DAMAGED)
    reader = _Reader()
    reader.read(data, begin)
    return reader.content()


def _tokens(data: bytes, at: int) -> Iterator[tuple[bytes | None, ...]]:
    """The tokens' parts, as `_TOKEN` has them. Raises LeftOut where they are too many."""
    for _ in range(TOKENS_MAX):
        found = _TOKEN.match(data, at)
        if found is None:
            return
        yield found.groups()
        at = found.end()
        if found[2] == b"bin":
            at += max(int(found[3] or 0), 0)
    raise LeftOut(BOMB)


class _Reader:
    def __init__(self) -> None:
        self._flow = Flow()
        self._tops: set[Line] = set()  # of pages: each section may repeat them
        self._feet: dict[Line, None] = {}
        self._state = _State()
        self._groups: list[_State] = []
        self._places = [_Place()]
        self._bytes = bytearray()  # of one encoding, in which two may be one letter
        self._marked = False
        self._repeats = 0
        self._half = b""  # the first half of a character beyond U+FFFF
        self._codepage = "cp1252"
        self._fonts: dict[int, str] = {}
        self._font = 0
        self._font_default: int | None = None
        self._aside: list[str] = []
        self._style = self._notes = 0
        self._headings: dict[int, int] = {}
        self._title = self._author = ""
        self._words: dict[str, Callable[[int], None]] = {
            "par": self._paragraph_ended,
            "sect": self._paragraph_ended,
            "page": self._paragraph_ended,
            "pard": self._paragraph_begun,
            "trowd": self._in_row,
            "intbl": self._in_row,
            "cell": self._cell_ended,
            "row": self._row_ended,
            "plain": lambda _: self._set(hidden=False, deleted=False, font=self._font_default),
            "v": lambda number: self._set(hidden=number != 0),
            "deleted": lambda number: self._set(deleted=number != 0),
            "uc": lambda number: self._set(repeats=min(max(number, 0), 8)),
            "ud": lambda _: self._set(skipped=len(self._groups) > 1 and self._groups[-2].skipped),
            "u": lambda number: self._character([number]),
            "f": self._font_named,
            "deff": self._font_meant,
            "fcharset": self._font_charset,
            "cpg": self._font_codepage,
            "ansicpg": self._codepage_named,
            "s": self._style_named,
            "outlinelevel": self._level,
        }
        acted = {*self._words, *_UNSEEN, *_FIELDS, *_REGIONS, *_WRITTEN, *_SYSTEMS}
        self._acted = {word.encode() for word in acted}  # the others say how the text looks, and are most

    def read(self, data: bytes, at: int) -> None:
        """All tokens from there to the end of the outermost group."""
        for characters, word, number, sign, symbol, brace, plain in _tokens(data, at):
            if plain is not None:
                self._plain(plain)
            elif characters is not None:
                self._characters(characters)
            elif sign is not None:
                self._plain(bytes((int(sign, 16),)))
            elif word is not None and (self._marked or word in self._acted):
                self._word(word.decode("ascii"), None if number is None else int(number))
            elif word is not None:
                self._repeats = 0
            elif symbol is not None:
                self._symbol(symbol)
            elif brace == b"{":
                self._begin()
            elif brace and not self._end():
                return

    def content(self) -> Content:
        """What was read. Raises LeftOut where that is nothing."""
        while self._groups:  # every program shows a file that ends too early
            self._end()
        self._row_written()
        self._flow.gap()
        self._flow.again(self._feet)
        return self._flow.content(self._title)

    def _set(self, **changed: Any) -> None:
        self._state = self._state._replace(**changed)

    def _plain(self, text: bytes) -> None:
        if self._repeats:
            repeats = min(self._repeats, len(text))
            self._repeats -= repeats
            text = text[repeats:]
        if self._state.shown:
            self._bytes += text

    def _decoded(self) -> None:
        if self._bytes:
            font = self._font_default if self._state.font is None else self._state.font
            text = decode(bytes(self._bytes), self._codepage if font is None else self._fonts.get(font, self._codepage))
            self._bytes.clear()
            self._write(text)

    def _write(self, text: str) -> None:
        if not self._state.shown:
            return
        if self._state.within:
            self._aside.append(text)
            return
        place = self._places[-1]
        if place.in_row and not place.in_cell:
            place.in_cell = True
            self._flow.open()
        self._flow.text(text)

    def _begin(self) -> None:
        self._decoded()
        self._repeats = 0
        self._marked = False
        if len(self._groups) >= GROUPS_MAX:
            raise LeftOut(BOMB)
        self._groups.append(self._state)
        self._set(region="")

    def _end(self) -> bool:
        """Whether the outermost group goes on."""
        self._decoded()
        self._repeats = 0
        if not self._groups:
            return False
        ended, self._state = self._state, self._groups.pop()
        if ended.region:
            self._region_ended(ended.region)
        elif ended.within:
            self._field_ended(ended.within)
        return bool(self._groups)

    def _region_begun(self, region: str) -> None:
        if self._state.shown and not self._state.within and not self._state.region:
            self._flow.open()
            self._places.append(_Place())
            self._set(region=region)

    def _region_ended(self, region: str) -> None:
        self._row_written()
        self._places.pop()
        lines = self._flow.close()
        if region == "footnote":
            self._notes += 1
            self._write("")  # a cell begins with what is written in it
            self._flow.note(str(self._notes), lines)
        elif region == "annotation":
            self._flow.comment(lines, self._author)
        elif region == "shptxt":
            self._flow.after(lines)
        elif region.startswith("footer"):
            self._feet.update(dict.fromkeys(lines))
        else:
            self._flow.line()
            self._flow.again(line for line in lines if line not in self._tops)
            self._tops.update(lines)

    def _field_ended(self, within: str) -> None:
        text = "".join(self._aside)
        self._aside.clear()
        if within == "title":
            self._title = text
        elif within == "atnauthor":
            self._author = text.strip()
        elif within == "stylesheet" and (found := _HEADING.match(text)):
            self._headings.setdefault(self._style, int(found[1] or 1))
        elif within in ("listtext", "pntext") and text.strip() and not self._places[-1].in_row:
            number = text.strip()
            self._flow.item(f"{number} " if _NUMBER.fullmatch(number) else ITEM)

    def _word(self, word: str, number: int | None) -> None:
        self._decoded()
        self._repeats = 0
        marked, self._marked = self._marked, False
        if word in _UNSEEN or (marked and word not in _KNOWN):
            self._set(skipped=True)
        elif word in _FIELDS:
            self._set(within=word)
        elif word in _REGIONS:
            self._region_begun(word)
        elif text := _WRITTEN.get(word):
            self._write(text)
        elif word in _SYSTEMS:
            self._codepage = _SYSTEMS[word]
        elif act := self._words.get(word):
            act(1 if number is None else number)

    def _symbol(self, symbol: bytes) -> None:
        self._decoded()
        self._repeats = 0
        if symbol == b"*":
            self._marked = True
        elif symbol in b"\r\n":
            self._paragraph_ended()
        elif text := _SIGNS.get(symbol):
            self._write(text)

    def _characters(self, written: bytes) -> None:
        self._decoded()
        self._marked = False
        numbers = [int(number) for number in _CHARACTER.findall(written)]
        if self._state.repeats == 1:
            self._character(numbers)
            self._repeats = 0
            return
        for number in numbers:
            self._character([number])
            self._plain(b"?")

    def _character(self, numbers: list[int]) -> None:
        """Characters by their numbers in UTF-16, signed."""
        self._repeats = self._state.repeats
        units = self._half + b"".join((number & 0xFFFF).to_bytes(2, "little") for number in numbers)
        self._half = units[-2:] if units and 0xD8 <= units[-1] < 0xDC else b""
        self._write(units[: len(units) - len(self._half)].decode("utf-16-le", "replace"))

    def _paragraph_begun(self, _: int) -> None:
        if not self._state.within:
            self._places[-1].heading = 0

    def _paragraph_ended(self, _: int = 0) -> None:
        if self._state.shown and not self._state.within:
            self._flow.heading(self._places[-1].heading)
            self._flow.line()

    def _in_row(self, _: int) -> None:
        place = self._places[-1]
        if self._state.shown and not place.in_row:
            self._flow.line()
            place.in_row = True

    def _cell_ended(self, _: int) -> None:
        if self._places[-1].in_row and not self._state.skipped:
            self._cell_written()

    def _row_ended(self, _: int) -> None:
        if not self._state.skipped:
            self._row_written()

    def _cell_written(self) -> None:
        place = self._places[-1]
        place.cells.append(joined(self._flow.close()) if place.in_cell else "")
        place.in_cell = False

    def _row_written(self) -> None:
        place = self._places[-1]
        if place.in_cell:
            self._cell_written()
        cells, place.cells, place.in_row = place.cells, [], False
        if cells:
            self._flow.row(cells)

    def _font_named(self, number: int) -> None:
        if self._state.within == "fonttbl":
            self._font = number
        else:
            self._set(font=number)

    def _font_meant(self, number: int) -> None:
        self._font_default = number
        self._set(font=number)

    def _font_charset(self, number: int) -> None:
        if self._state.within == "fonttbl" and number in _CHARSETS:
            self._fonts[self._font] = _CHARSETS[number]

    def _font_codepage(self, number: int) -> None:
        if self._state.within == "fonttbl":
            self._fonts[self._font] = _CODE_PAGES.get(number, f"cp{number}")

    def _codepage_named(self, number: int) -> None:
        self._codepage = _CODE_PAGES.get(number, f"cp{number}")

    def _style_named(self, number: int) -> None:
        self._style = number
        if self._state.within != "stylesheet":
            self._places[-1].heading = self._headings.get(number, 0)

    def _level(self, number: int) -> None:
        level = number + 1 if 0 <= number < 9 else 0
        if self._state.within == "stylesheet":
            self._headings[self._style] = level
        else:
            self._places[-1].heading = level
