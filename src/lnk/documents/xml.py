"""XML that may be hostile, as a stream of what stands in it: no DTD, no entity, limits on depth, elements and names."""

import codecs
from collections.abc import Callable, Mapping
from typing import Final
from xml.parsers import expat

from lnk.documents.content import BOMB, DAMAGED, LeftOut

DEPTH_MAX: Final = 256
ELEMENTS_MAX: Final = 5_000_000
NAMES_MAX: Final = 50_000  # different ones; each is kept until the end, and a real document has a few hundred
NAMESPACE_CHARS_MAX: Final = 1_000  # it is repeated with every name
TAG_BYTES_MAX: Final = 4 << 20  # one start tag is held whole; a picture in an attribute takes 100 KB
_PIECE_BYTES: Final = 1 << 16
# The parser knows the first four by itself. Any other would be looked up, and here nothing can be opened any more.
_ENCODINGS: Final = frozenset(("utf-8", "utf-16", "iso-8859-1", "us-ascii", "utf8", "windows-1252", "ascii"))

codecs.lookup("cp1252")

Start = Callable[[str, Mapping[str, str]], None]
End = Callable[[str], None]
Text = Callable[[str], None]


def parse(data: bytes, start: Start, end: End, text: Text) -> None:
    """Calls `start` (name, attributes), `end` (name) and `text` for what stands in `data`.

    A name is its namespace, `}` and the local name; `local` gives that. Raises LeftOut for what is no XML, has a DTD,
    or passes a limit.
    """
    names: dict[str, str] = {}
    parser = expat.ParserCreate(namespace_separator="}", intern=names)
    parser.buffer_text = True
    depth = elements = 0

    def begun(name: str, attributes: Mapping[str, str]) -> None:
        nonlocal depth, elements
        depth, elements = depth + 1, elements + 1
        if depth > DEPTH_MAX or elements > ELEMENTS_MAX:
            raise LeftOut(BOMB)
        start(name, attributes)

    def ended(name: str) -> None:
        nonlocal depth
        depth -= 1
        end(name)

    parser.XmlDeclHandler = _check_declaration
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = _refuse
    parser.StartNamespaceDeclHandler = _check_namespace
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = begun, ended, text
    whole = memoryview(data)
    try:
        for at in range(0, len(data), _PIECE_BYTES):
            parser.Parse(whole[at : at + _PIECE_BYTES])
            if len(names) > NAMES_MAX or at - parser.CurrentByteIndex > TAG_BYTES_MAX:
                raise LeftOut(BOMB)
        parser.Parse(b"", True)
    except (expat.ExpatError, ValueError, LookupError):
        raise LeftOut(DAMAGED) from None


def local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition("}")[2]


def _refuse(*_: object) -> None:
    raise LeftOut(DAMAGED)


def _check_declaration(_version: str, encoding: str | None, _standalone: int) -> None:
    if encoding is not None and encoding.lower() not in _ENCODINGS:
        raise LeftOut(DAMAGED)


def _check_namespace(_prefix: str | None, uri: str | None) -> None:
    if uri is not None and len(uri) > NAMESPACE_CHARS_MAX:
        raise LeftOut(BOMB)
