"""What Word's XML is made of: names by their namespace's usual prefix, attributes, switches and numbers."""

from collections.abc import Mapping, Sized
from functools import lru_cache
from typing import Final

from lnk.documents.content import BOMB, LeftOut

ENTRIES_MAX: Final = 100_000  # styles, lists, notes or relationships; each is kept while the document is read

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
OFF: Final = frozenset(("0", "false", "off"))


@lru_cache(maxsize=4096)
def short_name(name: str) -> str:
    """A name with its namespace's usual prefix, `:` before it where that is none of ours."""
    space, _, tag = name.rpartition("}")
    return f"{_SPACES.get(space, '')}:{tag}"


def keys_of(prefix: str, tag: str) -> tuple[str, ...]:
    return (*(f"{space}}}{tag}" for space, short in _SPACES.items() if short == prefix), tag)


VAL, ID, TYPE, FIELD_TYPE = keys_of("w", "val"), keys_of("w", "id"), keys_of("w", "type"), keys_of("w", "fldCharType")
STYLE_ID, DEFAULT, AUTHOR = keys_of("w", "styleId"), keys_of("w", "default"), keys_of("w", "author")
FONT, CHAR, LEVEL, PART_ID = keys_of("w", "font"), keys_of("w", "char"), keys_of("w", "ilvl"), keys_of("r", "id")
NUMBER, ABSTRACT = keys_of("w", "numId"), keys_of("w", "abstractNumId")
MATH_VAL, DROP_CAP = keys_of("m", "val"), keys_of("w", "dropCap")


def value_of(attributes: Attributes, keys: tuple[str, ...]) -> str:
    for key in keys:
        if key in attributes:
            return attributes[key]
    return ""


def is_on(attributes: Attributes) -> bool:
    """Whether a switch such as `w:vanish` is on: it is, where it stands without a value."""
    return value_of(attributes, VAL).lower() not in OFF


def whole(text: str, least: int, most: int) -> int:
    text = text.strip()
    return min(max(int(text), least), most) if text.isdecimal() and len(text) < 10 else least


def check_entries(kept: Sized) -> None:
    if len(kept) > ENTRIES_MAX:
        raise LeftOut(BOMB)
