"""What Office files have in common: parts of an archive that name others, and a title."""

from collections.abc import Mapping
from posixpath import join, normpath
from typing import Final, NamedTuple
from urllib.parse import unquote

from lnk.documents import xml
from lnk.documents.content import BOMB, DAMAGED, LeftOut
from lnk.documents.zipped import Archive

ENTRIES_MAX: Final = 100_000


class Relation(NamedTuple):
    """One part as another names it: what it is to that one (`slide`, `comments`), and its path."""

    id: str
    kind: str
    path: str


def relations(archive: Archive, part: str = "") -> list[Relation]:
    """The parts that a part names, in order; that the archive itself names where none is given.

    Where the list of them is damaged, those before the damage. Raises LeftOut.
    """
    folder, _, name = part.rpartition("/")
    path = f"{folder}/_rels/{name}.rels".lstrip("/")
    found: list[Relation] = []

    def start(_: str, attributes: Mapping[str, str]) -> None:
        target = attributes.get("Target", "").replace("\\", "/")
        if target and attributes.get("TargetMode") != "External":
            if len(found) == ENTRIES_MAX:
                raise LeftOut(BOMB)
            whole = normpath(join("/", folder, target)).lstrip("/")
            whole = whole if whole in archive else unquote(whole)
            if whole in archive:
                kind = attributes.get("Type", "").rpartition("/")[2]
                found.append(Relation(attributes.get("Id", ""), kind, whole))

    if path in archive:
        try:
            xml.parse(archive.read(path), start, nothing, nothing)
        except LeftOut as reason:
            if str(reason) != DAMAGED:
                raise
    return found


def main(archive: Archive) -> str:
    """The path of the part that is the document. Raises LeftOut."""
    for relation in relations(archive):
        if relation.kind == "officeDocument":
            return relation.path
    raise LeftOut(DAMAGED)


def title(archive: Archive) -> str:
    """The document's own title; empty where it has none. Raises LeftOut."""
    found: list[str] = []
    within = False

    def start(name: str, _: Mapping[str, str]) -> None:
        nonlocal within
        within = xml.local(name) == "title"

    def end(_: str) -> None:
        nonlocal within
        within = False

    def text(text: str) -> None:
        if within:
            found.append(text)

    for relation in relations(archive):
        if relation.kind == "core-properties":
            xml.parse(archive.read(relation.path), start, end, text)
            break
    return "".join(found)


def nothing(_: str) -> None:
    """Takes no notice, where only elements' beginnings say something."""
