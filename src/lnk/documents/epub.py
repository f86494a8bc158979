"""Books in EPUB: their chapters in the order in which they are read."""

import re
from collections.abc import Mapping
from posixpath import dirname, join, normpath
from typing import Final
from urllib.parse import unquote

from lnk.documents import markup, xml
from lnk.documents.charset import decode
from lnk.documents.content import DAMAGED, ENCRYPTED, Content, LeftOut
from lnk.documents.flow import Flow
from lnk.documents.zipped import Archive

_CONTAINER: Final = "META-INF/container.xml"
_ENCRYPTION: Final = "META-INF/encryption.xml"
_PAGES: Final = frozenset(("application/xhtml+xml", "text/html", "application/x-dtbook+xml", "text/x-oeb1-document"))
# What stands before the root element; a DTD that is written out says what entities stand for.
_PROLOG = re.compile(
    r"\s*+(?:(?:<\?(?:[^?]|\?(?!>))*+\?>|<!--(?:[^-]|-(?!->))*+-->)\s*+)*+(?:<!DOCTYPE[^<>\[]*+(?P<end>.))?",
    re.IGNORECASE | re.DOTALL,
)
_ENCODING = re.compile(rb"\s*<\?xml[^<>]{1,200}?encoding\s*=\s*[\"']([A-Za-z0-9._-]{1,40})")
_BOMS: Final = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def read(data: bytes) -> Content:
    """The text of an .epub file. Raises LeftOut."""
    archive = Archive(data)
    container = _Container()
    _parse(archive.read(_CONTAINER), container.start)
    package = _Package()
    _parse(archive.read(container.root), package.start, package.end, package.text)
    pages = [normpath(join(dirname(container.root), unquote(path))) for path in package.pages()]
    if _ENCRYPTION in archive:
        _parse(archive.read(_ENCRYPTION), container.start)
        if not container.locked.isdisjoint(pages):  # fonts may be
            raise LeftOut(ENCRYPTED)
    flow = Flow()
    for page in dict.fromkeys(pages):
        markup.write(_text(archive.read(page)), flow)
        flow.gap()
    return flow.content("".join(package.title))


class _Container:
    """Where the book's own description is, and which files are locked."""

    def __init__(self) -> None:
        self.root = ""
        self.locked: set[str] = set()

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if xml.local(name) == "rootfile":
            self.root = self.root or attributes.get("full-path", "")
        elif xml.local(name) == "CipherReference":
            self.locked.add(normpath(unquote(attributes.get("URI", ""))))


class _Package:
    """The book's description: its title, its files, and the order in which they are read."""

    def __init__(self) -> None:
        self.title: list[str] = []
        self._titles = 0
        self._within = False
        self._files: dict[str, str] = {}
        self._spine: list[str] = []

    def pages(self) -> list[str]:
        """The chapters' paths, as they are written."""
        return [self._files[name] for name in self._spine if name in self._files]

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        match xml.local(name):
            case "item" if attributes.get("media-type", "").lower() in _PAGES:
                self._files[attributes.get("id", "")] = attributes.get("href", "").partition("#")[0]
            case "itemref":
                self._spine.append(attributes.get("idref", ""))
            case "title":
                self._titles += 1
                self._within = self._titles == 1

    def end(self, name: str) -> None:
        self._within = False

    def text(self, text: str) -> None:
        if self._within:
            self.title.append(text)


def _nothing(_: str) -> None:
    pass


def _parse(data: bytes, start: xml.Start, end: xml.End = _nothing, text: xml.Text = _nothing) -> None:
    xml.parse(_text(data).encode("utf-8", "replace"), start, end, text)


def _text(data: bytes) -> str:
    """A file without what stands before its root element. Raises LeftOut where that says what entities stand for."""
    encoding = next((name for mark, name in _BOMS if data.startswith(mark)), "")
    if not encoding:
        declared = _ENCODING.match(data)
        encoding = declared[1].decode("ascii") if declared else "utf-8"
    text = decode(data, encoding).removeprefix("\ufeff")
    prolog = _PROLOG.match(text)
    if prolog is None:
        return text
    if prolog["end"] not in (None, ">"):
        raise LeftOut(DAMAGED)
    return text[prolog.end() :]
