"""A file's bytes to its text: which encoding, and HTML by its text. Nothing here fails on a file's content."""

import codecs
import html
import re
from typing import Final

SNIFF_BYTES: Final = 8192  # a file is text when its first bytes hold no NUL and can be decoded

# What is no text by its name alone, so that it is not opened to find out.
BINARY_ENDINGS: Final = frozenset(
    "png jpg jpeg gif webp bmp tiff heic ico svgz mp3 m4a wav flac ogg mp4 mov mkv avi webm zip gz bz2 xz".split()
    + "7z rar tar zst jar exe dll so dylib o a pyc class wasm sqlite db bin iso dmg img woff woff2 ttf otf".split()
)
HTML_ENDINGS: Final = frozenset(("html", "htm", "xhtml"))

_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DETECT_BYTES: Final = 65_536
_SURE: Final = 0.2  # below, a detected encoding is a guess that makes wrong letters look right
_CONTROLS = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_CONTROLS_SHARE: Final = 0.02  # more of its first bytes than this, and a file is no text in any encoding
_ESCAPES = re.compile(rb"\x1b\$[@B]|\x1b\([BJ]")  # ISO-2022-JP, which is ASCII to every other test


def decode(data: bytes) -> str | None:
    """The text of `data`, or None where it is no text. Bytes that are wrong in their encoding become U+FFFD."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return _replacing(data[len(mark) :], encoding)
    head = data[:SNIFF_BYTES]
    if b"\0" in head:
        return _replacing(data, _wide(head))
    if not _ESCAPES.search(head):
        try:
            text = data.decode("utf-8")
            return text.replace("\0", "\ufffd") if "\0" in text else text
        except UnicodeDecodeError as error:
            if error.start >= SNIFF_BYTES - 4:  # begins as UTF-8: a few wrong bytes, not another encoding
                return _replacing(data, "utf-8")
    if len(_CONTROLS.findall(head)) > len(head) * _CONTROLS_SHARE:
        return None
    return _replacing(data, _detected(data) or "utf-8")


def _replacing(data: bytes, encoding: str | None) -> str | None:
    return data.decode(encoding, "replace").replace("\0", "\ufffd") if encoding else None


def _wide(head: bytes) -> str | None:
    """UTF-16 without a mark: Latin text has its NULs on one side, nearly always."""
    pairs = len(head) // 2
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if pairs >= 4 and odd > pairs * 0.6 and even < pairs * 0.05:
        return "utf-16-le"
    if pairs >= 4 and even > pairs * 0.6 and odd < pairs * 0.05:
        return "utf-16-be"
    return None


def _detected(data: bytes) -> str | None:
    import chardet  # 35 ms, for the one file in a thousand that is not UTF-8

    try:
        found = chardet.detect(data[:_DETECT_BYTES])
    except Exception:  # a detector's fault costs the name of an encoding, never the index
        return None
    encoding = found.get("encoding")
    if not encoding or (found.get("confidence") or 0) < _SURE:
        return None
    try:
        codecs.lookup(encoding)
    except LookupError:
        return None
    return encoding


_BLOCKS: Final = frozenset(
    "address article aside blockquote br dd div dl dt figcaption footer form header hr li main nav ol p pre".split()
    + "section table td th tr ul h1 h2 h3 h4 h5 h6".split()
)
_UNSEEN: Final = frozenset(("script", "style", "template", "noscript"))


_HUGE = re.compile(r"&#[0-9]{9,}(?![0-9]);?")
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9:-]*)(?:[^<>\"']|\"[^\"<>]*\"|'[^'<>]*')*>|<[!?][^<>]*>")


def html_text(markup: str) -> tuple[str, str | None]:
    """The text that a reader of the page sees, a line a block, headings marked as in Markdown; and its title.

    A scanner whose work grows with the page alone: the standard parser's grows with its square on some pages.
    """
    parts: list[str] = []
    title = ""
    at = 0
    while at < len(markup):
        tag = markup.find("<", at)
        parts.append(markup[at : tag if tag >= 0 else len(markup)])
        if tag < 0:
            break
        if markup.startswith("<!--", tag):
            at = _after(markup, "-->", tag + 4)
            continue
        found = _TAG.match(markup, tag)
        if not found:
            parts.append("<")
            at = tag + 1
            continue
        at = found.end()
        name = (found[2] or "").lower()
        if name in _BLOCKS:
            heading = "#" * int(name[1]) + " " if not found[1] and name[0] == "h" and name[1:].isdigit() else ""
            parts.append("\n" + heading)
        elif not found[1] and (name in _UNSEEN or name == "title"):
            start, (end, at) = at, _closing(markup, name, at)
            title = title or (markup[start:end] if name == "title" else "")
    lines = (" ".join(line.split()) for line in _unescaped("".join(parts)).split("\n"))
    text = re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
    return text + "\n" if text else "", " ".join(_unescaped(title).split()) or None


def _after(markup: str, mark: str, at: int) -> int:
    """Behind the next `mark`, or the end where there is none."""
    found = markup.find(mark, at)
    return len(markup) if found < 0 else found + len(mark)


def _closing(markup: str, name: str, at: int) -> tuple[int, int]:
    """Where an element ends, and where what follows it begins."""
    found = re.compile(f"</{name}[^<>]*>", re.IGNORECASE).search(markup, at)
    return found.span() if found else (len(markup), len(markup))


def _unescaped(text: str) -> str:
    """`text` with its references resolved. A number of thousands of digits, which Python refuses, is none."""
    return html.unescape(_HUGE.sub("\ufffd", text) if "&#" in text else text)
