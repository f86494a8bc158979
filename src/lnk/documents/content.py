"""What a document's text is, which kinds there are, and within which limits they are read."""

import re
from functools import cache
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


_LINE_ENDS: Final = re.compile("\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
_UNSEEN: Final = re.compile(
    "[\0-\x08\x0e-\x1f\x7f-\x9f\xad"  # controls; a soft hyphen within a line
    "\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"  # direction, and no width
    "\ud800-\udfff\ufff9-\ufffb\ufffe\uffff"  # halves of a pair, annotations, what is no character
    "\U000e0000-\U000e007f]"  # tags
)
_VARIANTS: Final = re.compile("([\ufe00-\ufe0f\U000e0100-\U000e01ef])[\ufe00-\ufe0f\U000e0100-\U000e01ef]+")


def seen(text: str) -> str:
    """`text` without what a reader of the page cannot see, its lines ended by LF. Tabs and U+200C/U+200D stay."""
    if not text.isprintable():  # none of what is looked for is, and asking is several times as fast
        text = _UNSEEN.sub("", _LINE_ENDS.sub("\n", text))
    return text if text.isascii() else _VARIANTS.sub(r"\1", text)  # a letter is drawn in one variant


@cache
def _installed(name: str) -> bool:
    return find_spec(name) is not None


class Kind(NamedTuple):
    """How a kind of document is read: the module whose `read(data: bytes) -> Content` does it, and what that needs."""

    module: str
    needs: tuple[str, ...] = ()  # packages that the extra `office` brings

    def there(self) -> bool:
        """Whether it can be read on this machine."""
        return all(map(_installed, self.needs))


_OFFICE: Final = ("python_calamine",)

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
AGAIN: Final = {"pdf": Kind("lnk.documents.pdf_again")}  # another reader, for what the first one crashed at
OLD_ENDINGS: Final = frozenset(("doc", "xls", "ppt"))


def kind_of(path: str) -> str | None:
    """The kind of document that a path's ending says, or None where it is none that is read."""
    ending = path.rpartition(".")[2].lower()
    return ending if ending in KINDS else None
