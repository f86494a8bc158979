"""What a document's text is, which kinds there are, and within which limits they are read."""

from importlib.util import find_spec
from typing import Final, NamedTuple

import msgspec

FILE_BYTES_MAX: Final = 32 << 20
TEXT_BYTES_MAX: Final = 2 << 20  # UTF-8; a document with more is left out whole

ENCRYPTED: Final = "it is encrypted"
DAMAGED: Final = "it is damaged"
NO_TEXT: Final = "no text: scanned?"
TEXT_TOO_LARGE: Final = "its text is over 2 MiB"
BOMB: Final = "it unpacks to far more than it should"
CRASHED: Final = "its parser crashed"
TOO_LONG: Final = "reading it took too long"
TOO_MUCH_MEMORY: Final = "reading it took too much memory"
NEEDS_OFFICE: Final = "reading it needs the extra `office`"
OLD_FORMAT: Final = "this old format is not read; save it as .docx, .xlsx or .pptx"


class LeftOut(Exception):
    """Why a document has no text here: one of the sentences above, or another of their kind, without a full stop."""


class Content(msgspec.Struct, frozen=True):
    """A document's text as a person reads it: lines that end at LF, headings marked with # as in Markdown.

    `pages`: the line (from 1 on) at which each page begins; empty where there are none. `title`: its own metadata
    title, as it stands there.
    """

    text: str
    pages: list[int] = []
    title: str | None = None


class Kind(NamedTuple):
    """How a kind of document is read: the module whose `read(data: bytes) -> Content` does it, and what that needs."""

    module: str
    needs: tuple[str, ...] = ()  # packages that the extra `office` brings

    def there(self) -> bool:
        """Whether it can be read on this machine."""
        return all(find_spec(name) is not None for name in self.needs)


_OFFICE: Final = ("python_calamine", "striprtf")  # all of the extra: one is never there without the other

KINDS: Final[dict[str, Kind]] = {
    "pdf": Kind("lnk.documents.pdf"),
    "docx": Kind("lnk.documents.word"),
    "odt": Kind("lnk.documents.odt", _OFFICE),
    "rtf": Kind("lnk.documents.rtf", _OFFICE),
    "epub": Kind("lnk.documents.epub", _OFFICE),
    "pptx": Kind("lnk.documents.slides", _OFFICE),
    "xlsx": Kind("lnk.documents.sheets", _OFFICE),
    "eml": Kind("lnk.documents.mail", _OFFICE),
}
OLD_ENDINGS: Final = frozenset(("doc", "xls", "ppt"))
