"""One file's bytes to all that the index keeps of it: title, chunks, words, links. No I/O."""

import hashlib
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote

from lnk.documents.content import TEXT_BYTES_MAX, TEXT_TOO_LARGE, Content
from lnk.memory.analyse import Analysed, analyse, sketch, words_of
from lnk.memory.markdown import TITLE_CHARS_MAX, Chunk, Link, chunks, clean_title, first_heading, links, title_of
from lnk.memory.names import ROOTS, resolve, stem
from lnk.memory.text import HTML_ENDINGS, decode, html_text

NOT_TEXT: Final = "it is no text"
HEADINGS_MAX: Final = 3  # of # in one link that may each belong to the name
TITLE_WORDS: Final = 2
_TITLE_WORD = re.compile(r"[^\W\d_]{2,}")
_MADE_TITLE = re.compile(
    r"^(microsoft|untitled|unbenannt|sans titre|document\d*$|powerpoint|slide \d|new |draft$)|[/\\_=]|\.[a-z]{2,5}$",
    re.IGNORECASE,
)


class LinkRow(NamedTuple):
    """A link as the index keeps it. `targets`: all that it may mean, best first."""

    line: int
    written: str
    wiki: bool
    targets: tuple[str, ...]


class Parsed(NamedTuple):
    """All that the index keeps of a document. `rows` are the FTS5 columns of each chunk."""

    digest: bytes
    title: str
    chunks: list[Chunk]
    rows: list[tuple[str, str, str]]
    links: list[LinkRow]
    lines: int
    words: int
    sketch: bytes
    left_out: str | None
    pages: bytes | None = None


def digest_of(data: bytes) -> bytes:
    """What stands for a file's content."""
    return hashlib.sha256(data).digest()


def parse(path: str, kind: str, data: bytes) -> Parsed:
    """The document at `path` (in the folder) whose bytes are `data`."""
    text = decode(data)
    if text is None:
        return left_out(path, NOT_TEXT, digest_of(data))
    title = None
    if path.rpartition(".")[2].lower() in HTML_ENDINGS:
        text, title = html_text(text)
        title = clean_title(title) if title else None
    if len(text) * 4 > TEXT_BYTES_MAX and len(text.encode("utf-8", "replace")) > TEXT_BYTES_MAX:
        return left_out(path, TEXT_TOO_LARGE, digest_of(data))
    title = title or title_of(text) or (first_heading(text) if kind == "conversation" else None) or named(path, kind)
    parts = chunks(text, packed=kind == "conversation") or [Chunk(1, "")]
    return _whole(
        path, digest_of(data), title, text, parts, [row for link in links(text) if (row := _link(path, link))]
    )


def parse_content(path: str, digest: bytes, content: Content) -> Parsed:
    """The document at `path` whose text was taken out of its file. What looks like a link in it is none."""
    title = written_title(content.title) or title_of(content.text) or named(path, "document")
    parsed = _whole(path, digest, title, content.text, chunks(content.text) or [Chunk(1, "")], [])
    return parsed._replace(pages=array("I", content.pages).tobytes() or None)


def written_title(title: str | None) -> str | None:
    """A document's own title where it is one that a person wrote: some words, and not a file's name or a program's.

    Most programs fill it in by themselves: `Microsoft Word - lease_v3.doc`, `Untitled`, `PowerPoint Presentation`.
    """
    title = clean_title(title or "")
    if not title or len(_TITLE_WORD.findall(title)) < TITLE_WORDS or _MADE_TITLE.search(title):
        return None
    return title


def pages_of(pages: bytes | None, first: int, last: int) -> list[int] | None:
    """The first and the last page of these lines, counted from 1; None where the document has no pages."""
    if not pages:
        return None
    starts = array("I", pages)
    return [max(1, bisect_right(starts, first)), max(1, bisect_right(starts, last))]


def _whole(path: str, digest: bytes, title: str, text: str, parts: list[Chunk], links: list[LinkRow]) -> Parsed:
    rows = _rows(title, path, parts)
    words = words_of(body for _, body, _ in rows)
    return Parsed(
        digest=digest,
        title=title,
        chunks=parts,
        rows=rows,
        links=links,
        lines=text.count("\n") + (1 if text and not text.endswith("\n") else 0),
        words=len(words),
        sketch=sketch(words),
        left_out=None,
    )


def left_out(path: str, reason: str, digest: bytes | None = None) -> Parsed:
    """The row of a file that is not indexed, and why."""
    return Parsed(digest or b"", named(path, "document"), [], [], [], 0, 0, b"", reason)


def named(path: str, kind: str) -> str:
    """The title that a path gives: a file's name without its ending; a conversation's thread."""
    name = path.split("/")[1] if kind == "conversation" and path.count("/") > 1 else stem(path)
    return clean_title(name) or name or path


def columns(title: str, path: str, number: int, text: str) -> tuple[str, str, str]:
    """The words of one chunk as FTS5's columns: the title with each chunk, the path's own words with the first."""
    return _columns(analyse(title), path, number, analyse(text))


def _columns(title: Analysed, path: str, number: int, found: Analysed) -> tuple[str, str, str]:
    extra = [found.extra, title.extra] if title.extra else [found.extra]
    named = title.body
    if number == 0:
        place = analyse(path.rpartition(".")[0].partition("/")[2].replace("/", " "))
        extra += [place.body, place.extra]
    elif found.body.startswith("#") and not path.startswith(ROOTS["conversation"]):
        # A section's heading counts as its title does: vault_links hit@1 0.518 -> 0.534.
        named += " " + found.body.partition("\n")[0][:TITLE_CHARS_MAX]
    return named, found.body, " ".join(extra)


def _rows(title: str, path: str, parts: list[Chunk]) -> list[tuple[str, str, str]]:
    named = analyse(title)
    return [_columns(named, path, number, analyse(chunk.text)) for number, chunk in enumerate(parts)]


def _link(path: str, link: Link) -> LinkRow | None:
    """The link's row, or None where it leads out of the folder."""
    if link.target.startswith("#"):  # a heading or block of its own
        return LinkRow(link.line, link.target, False, (path,))
    parts = link.target.partition("#")[0].split("/")
    if link.wiki and (parts[0] == "" or "\\" in parts[0] or ".." in parts[1:]):
        return None
    relative = not link.wiki or parts[0] in (".", "..")
    targets = []
    for written in _without_headings(link.target):
        plain = written if link.wiki else unquote(written.partition("?")[0])
        target = resolve(path, plain) if relative else plain
        if target is None:
            return None
        if target not in targets:
            targets.append(target)
    return LinkRow(link.line, link.target, not relative, tuple(targets))


def _without_headings(target: str) -> Iterator[str]:
    """The target whole, then without its last #, and so on: a # may belong to the name."""
    yield target
    for _ in range(HEADINGS_MAX):
        target, mark, _ = target.rpartition("#")
        target = target.rstrip()
        if not mark or not target:
            return
        yield target
