"""XML that may be hostile, as a stream of what stands in it: no DTD, no entity, limits on depth and elements."""

from collections.abc import Callable, Mapping
from typing import Final
from xml.parsers import expat

from lnk.documents.content import BOMB, DAMAGED, LeftOut

DEPTH_MAX: Final = 256
ELEMENTS_MAX: Final = 5_000_000

Start = Callable[[str, Mapping[str, str]], None]
End = Callable[[str], None]
Text = Callable[[str], None]


def parse(data: bytes, start: Start, end: End, text: Text) -> None:
    """Calls `start` (name, attributes), `end` (name) and `text` for what stands in `data`.

    A name is its namespace, `}` and the local name; `local` gives that. Raises LeftOut for what is no XML, has a DTD,
    or passes a limit.
    """
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    depth = elements = 0

    def refuse(*_: object) -> None:
        raise LeftOut(DAMAGED)

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

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = begun, ended, text
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError):
        raise LeftOut(DAMAGED) from None


def local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition("}")[2]
