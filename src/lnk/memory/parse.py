"""One file's bytes to all that the index keeps of it: title, chunks, words, links. No I/O."""

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote

from lnk.memory.analyse import Analysed, analyse, sketch, words_of
from lnk.memory.markdown import TITLE_CHARS_MAX, Chunk, Link, chunks, clean_title, first_heading, links, title_of
from lnk.memory.names import ROOTS, resolve, stem
from lnk.memory.text import HTML_ENDINGS, TEXT_BYTES_MAX, decode, html_text

NOT_TEXT: Final = "it is no text"
HEADINGS_MAX: Final = 3  # of # in one link that may each belong to the name
TEXT_TOO_LARGE: Final = "its text is over 2 MiB"


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
    rows = _rows(title, path, parts)
    words = words_of(body for _, body, _ in rows)
    return Parsed(
        digest=digest_of(data),
        title=title,
        chunks=parts,
        rows=rows,
        links=[row for link in links(text) if (row := _link(path, link))],
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
