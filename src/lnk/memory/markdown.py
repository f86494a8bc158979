"""A document's structure by its lines: title, chunks, and links as written. Any text goes through here.

A scanner of lines, not a parser of Markdown: sixty times cheaper, and what it must know is headings, fences,
front matter and links. Knows no folder: links come out as they stand in the text.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

TITLE_CHARS_MAX: Final = 200
CHUNK_CHARS: Final = 1500
CHUNKS_MAX: Final = 4000  # from here on small sections are put together, so that no file makes a million rows
LINKS_MAX: Final = 1000
LINK_BYTES_MAX: Final = 512
TITLE_LINES: Final = 50
FRONT_MATTER_CHARS_MAX: Final = 16_384

_TRIES_MAX: Final = 10_000  # of what looks like a link; a text of so many that are none is no text
_FENCES_NEAR: Final = CHUNK_CHARS // 8  # no more fenced blocks than this stand in one part

_FRONT = re.compile(r"---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_KEY = re.compile(r"^title[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)
_MARK = re.compile(r"^(?:(#{1,6})(?=[ \t\r]|$)|[ ]{0,3}(`{3,}|~{3,}))", re.MULTILINE)
_BLANK = re.compile(r"\n[ \t\r]*\n")
_TITLE = re.compile(r"(?:#[ \t]|#\+title:|= (?=\S))(.*)", re.IGNORECASE)  # Markdown's, Org's, AsciiDoc's
_CLOSING = re.compile(r"[ \t]#+$")
_UNDERLINE = re.compile(r"={3,}[ \t\r]*$")
_MARKS = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]+)\]\]|!?\[([^\[\]]*)\]\([^()]*\)|(\*\*|__|`)")


class Chunk(NamedTuple):
    """A part of a document's text. The chunks of a document, put together, are its text to the letter."""

    first_line: int
    text: str


class Link(NamedTuple):
    """A link as it stands: `target` is a page's name or a path, before anything is looked up."""

    line: int
    target: str
    wiki: bool


def front_matter(text: str) -> tuple[str | None, int]:
    """The title that the front matter gives, or None, and where the text after it begins.

    Read as lines, not as YAML, so that `title: Foo: bar` and a broken block lose nothing. Of two titles the first.
    """
    if not text.startswith("---"):
        return None, 0
    found = _FRONT.match(text, 0, FRONT_MATTER_CHARS_MAX)
    if not found:
        return None, 0
    key = _KEY.search(found[1])
    title = key[1].strip() if key else ""
    if len(title) >= 2 and title[0] == title[-1] and title[0] in "\"'":
        title = title[1:-1]
    return clean_title(title), found.end()


def title_of(text: str) -> str | None:
    """The title that `text` gives itself: front matter, else the first level-1 heading of its first 50 lines."""
    title, at = front_matter(text)
    if title:
        return title
    before = ""
    fenced = False
    for line in text[at : at + 65_536].split("\n")[:TITLE_LINES]:
        if line.lstrip(" ")[:3] in ("```", "~~~"):
            fenced = not fenced
        if not fenced:
            found = _TITLE.match(line)
            if found and (title := clean_title(_CLOSING.sub("", found[1].rstrip()))):
                return title
            if _UNDERLINE.match(line) and (title := clean_title(before)):
                return title
        before = line
    return None


def first_heading(text: str) -> str | None:
    """The first heading of any level, for a conversation."""
    for found in _MARK.finditer(text):
        if found[1]:
            return clean_title(text[found.end() : text.find("\n", found.end()) % (len(text) + 1)])
    return None


def clean_title(title: str) -> str | None:
    """`title` as one line of at most 200 characters, marks of Markdown taken off; None where nothing is left."""
    if "[" in title or "*" in title or "`" in title or "_" in title:
        title = _MARKS.sub(lambda found: found[1] or found[2] or "", title)
    title = " ".join("".join(char if char.isprintable() else " " for char in title).split())
    return (title if len(title) <= TITLE_CHARS_MAX else title[: TITLE_CHARS_MAX - 1] + "…") or None


def chunks(text: str, *, packed: bool = False) -> list[Chunk]:
    """`text` split at its headings, then at blank lines, into parts of up to about CHUNK_CHARS characters.

    `packed`: sections that fit are put together, as for a conversation, whose turns say little one by one. A fenced
    block stays in one part where it fits; a longer one, or a paragraph, is split at line ends, and a line at a space.
    A heading with nothing under it stays with what follows.
    """
    if not text:
        return []
    sections = list(_sections(text))
    if packed or len(sections) > CHUNKS_MAX:
        sections = list(_packed(sections))
    found: list[Chunk] = []
    line = 1
    for start, end, fences in sections:
        for first, last in _parts(text, start, end, fences):
            part = text[first:last]
            found.append(Chunk(line, part))
            line += part.count("\n")
    return found


Section = tuple[int, int, list[tuple[int, int]]]  # start, end, the fenced blocks in it


def _sections(text: str) -> Iterator[Section]:
    """From heading to heading; each with its fenced blocks. A heading with nothing under it begins no section."""
    body = front_matter(text)[1]
    start, told, holds = 0, body, body > 0
    fences: list[tuple[int, int]] = []
    fence, opened = "", 0
    for mark in _MARK.finditer(text, body):
        if not fence:
            holds = holds or (not text[told : mark.start()].isspace() and told < mark.start())
        if mark[2]:
            holds = True
            if not fence:
                fence, opened = mark[2], mark.start()
            elif mark[2][0] == fence[0] and len(mark[2]) >= len(fence):
                fences.append((opened, mark.end()))
                fence = ""
            told = mark.end()
        elif not fence:
            if start < mark.start() and (holds or mark.start() - start > CHUNK_CHARS):
                yield start, mark.start(), fences
                start, holds, fences = mark.start(), False, []
            told = text.find("\n", mark.end()) % (len(text) + 1)
    if fence:
        fences.append((opened, len(text)))
    yield start, len(text), fences


def _packed(sections: list[Section]) -> Iterator[Section]:
    start, end, fences = sections[0]
    for first, last, more in sections[1:]:
        if last - start > CHUNK_CHARS:
            yield start, end, fences
            start, fences = first, []
        end = last
        fences = fences + more if more else fences
    yield start, end, fences


def _parts(text: str, start: int, end: int, fences: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """A section cut at the last blank line, line end, space or character that leaves a part short enough."""
    near = 0
    while end - start > CHUNK_CHARS:
        while near < len(fences) and fences[near][1] <= start:
            near += 1
        over = [fence for fence in fences[near : near + _FENCES_NEAR] if fence[0] < start + CHUNK_CHARS]
        cut = _cut(text, start, start + CHUNK_CHARS, over)
        yield start, cut
        start = cut
    if start < end:
        yield start, end


def _cut(text: str, start: int, most: int, fences: list[tuple[int, int]]) -> int:
    best = 0
    for blank in _BLANK.finditer(text, start, most):
        at = blank.end()
        if not any(first < at < last and last - first <= CHUNK_CHARS for first, last in fences):
            best = at
    if best:
        return best
    for first, last in fences:  # a block that fits in a part of its own begins one
        if start < first < most < last and last - first <= CHUNK_CHARS:
            return first
    for mark in ("\n", " ", "。", "、"):
        at = text.rfind(mark, start + CHUNK_CHARS // 4, most)
        if at >= 0:
            return at + 1
    return most


# ---------------------------------------------------------------- links

_WIKI = re.compile(r"\[\[((?:[^\[\]\n]|\](?!\])){1,512})\]\]")
_BRACKET = re.compile(r"\\.|\[|\]\(?|\n[ \t\r]*\n")
_REFERENCE = re.compile(
    r"^[ ]{0,3}\[([^\[\]\n^][^\[\]\n]{0,200})\]:[ \t]*(<[^<>\n]{0,512}>|[^\s<][^\s]{0,512})", re.MULTILINE
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,31}:")
_TITLE_AFTER = re.compile(r"[ \t]+(?:\"[^\"\n]*\"|'[^'\n]*'|\([^()\n]*\))[ \t]*\)|[ \t]*\)")
_TICKS = re.compile("`+")
_NOT_LINE_END = re.compile(r"[^\n]")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_LIST_ITEM = re.compile(r"[ ]{0,3}(?:[-*+]|\d{1,9}[.)])(?:[ \t]|$)")


def links(text: str) -> list[Link]:
    """The document's first LINKS_MAX links to other documents, in order; none inside code, none to the web."""
    if "[" not in text:
        return []
    plain = _without_code(text)
    found = [(at, target, True) for at, target in _wiki_links(plain)]
    found += [(at, target, False) for at, target in (*_markdown_links(plain), *_references(plain))]
    found.sort()
    kept: list[Link] = []
    line, counted = 1, 0
    for at, target, wiki in found:
        if len(kept) == LINKS_MAX:
            break
        if not target or len(target.encode("utf-8", "replace")) > LINK_BYTES_MAX:
            continue
        line += text.count("\n", counted, at)
        counted = at
        kept.append(Link(line, target, wiki))
    return kept


def _wiki_links(text: str) -> Iterator[tuple[int, str]]:
    if "[[" not in text:
        return
    for found in _WIKI.finditer(text):
        target = found[1].replace("\\|", "|").partition("|")[0].strip()
        if target and not _SCHEME.match(target) and not target.startswith("//"):
            yield found.start(), target


def _markdown_links(text: str) -> Iterator[tuple[int, str]]:
    if "](" not in text:
        return
    opened: list[int] = []
    tries = 0
    for found in _BRACKET.finditer(text):
        kind = found[0]
        if kind == "[":
            opened.append(found.start())
        elif kind[0] == "]":
            at = opened.pop() if opened else None
            if kind == "](" and at is not None and text[at - 1 : at] != "!":
                tries += 1
                if tries > _TRIES_MAX:
                    break
                target = _destination(text, found.end())
                if target and not _outside(target):
                    yield at, target
        elif kind[0] == "\n":
            opened.clear()  # a link's text ends with its paragraph


def _references(text: str) -> Iterator[tuple[int, str]]:
    """Definitions of links: `[name]: target` at the beginning of a line."""
    if "]:" not in text:
        return
    for found in _REFERENCE.finditer(text):
        target = _unescaped(found[2].strip("<>"))
        if target and not _outside(target):
            yield found.start(), target


def _destination(text: str, at: int) -> str | None:
    """The destination of a Markdown link that begins at `at`, as CommonMark reads one; None where it is none."""
    while text[at : at + 1] in (" ", "\t"):
        at += 1
    if text.startswith("<", at):
        end = text.find(">", at, at + LINK_BYTES_MAX + 2)
        target = text[at + 1 : end]
        if end < 0 or "\n" in target or "<" in target:
            return None
    else:
        end, depth = at, 0
        while end < len(text) and end - at <= LINK_BYTES_MAX and text[end] > " ":
            if text[end] == "\\":
                end += 1
            elif text[end] == "(":
                depth += 1
            elif text[end] == ")":
                if depth == 0:
                    break
                depth -= 1
            end += 1
        target = text[at:end]
        end -= 1
    return _unescaped(target) if _TITLE_AFTER.match(text, end + 1) else None


def _unescaped(target: str) -> str:
    return _ESCAPE.sub(r"\1", target) if "\\" in target else target


def _outside(target: str) -> bool:
    return bool(_SCHEME.match(target)) or target.startswith(("/", "\\"))


def _without_code(text: str) -> str:
    """`text` with its code blanked out, each character in its place."""
    if not ("```" in text or "~~~" in text or "\t" in text or "\n    " in text or text.startswith("    ")):
        return _without_spans(text) if "`" in text else text
    lines = text.split("\n")
    fence = ""
    before_blank, in_list, in_code = True, False, False
    for number, line in enumerate(lines):
        stripped = line.lstrip(" ")
        indent = len(line) - len(stripped)
        mark = _MARK.match(line) if stripped[:1] in "`~" and indent < 4 else None
        if fence:
            if mark and mark[2] and mark[2][0] == fence[0] and len(mark[2]) >= len(fence):
                fence = ""
            lines[number] = " " * len(line)
            continue
        if mark and mark[2]:
            fence = mark[2]
            lines[number] = " " * len(line)
            continue
        if not line.strip():
            before_blank = True
            continue
        if (indent >= 4 or stripped[:1] == "\t") and not in_list and (before_blank or in_code):
            in_code = True
            lines[number] = " " * len(line)
            continue
        in_code = False
        if _LIST_ITEM.match(line):
            in_list = True
        elif indent == 0 and before_blank:
            in_list = False
        before_blank = False
    text = "\n".join(lines)
    return _without_spans(text) if "`" in text else text


def _without_spans(text: str) -> str:
    """`text` with its code spans blanked out: from one run of backticks to the next of the same length."""
    runs = [(found.start(), found.end()) for found in _TICKS.finditer(text)]
    ahead: dict[int, list[int]] = {}  # of each length, the runs from the last to the first
    for number in range(len(runs) - 1, -1, -1):
        ahead.setdefault(runs[number][1] - runs[number][0], []).append(number)
    parts: list[str] = []
    at, number = 0, 0
    while number < len(runs):
        start, end = runs[number]
        same = ahead[end - start]
        while same and same[-1] <= number:
            same.pop()
        if same:
            number = same[-1]
            end = runs[number][1]
            parts += [text[at:start], _NOT_LINE_END.sub(" ", text[start:end])]
            at = end
        number += 1
    return "".join([*parts, text[at:]])
