"""Mails (RFC 5322, MIME): their headers, what they say, and the names of what is attached.

The standard library's parser is not used: it recurses on comments in comments, and takes the square of the length of
a header with many parameters. Here a part is two places in the file, and is copied only to be decoded.
"""

import binascii
import io
import re
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from lnk.documents import markup
from lnk.documents.charset import decode
from lnk.documents.content import BOMB, DAMAGED, ENCRYPTED, Content, LeftOut
from lnk.documents.flow import Flow

PARTS_MAX: Final = 1_000
DEPTH_MAX: Final = 30  # of parts in one another; each is searched for those in it
HEADERS_BYTES_MAX: Final = 1 << 20
HEADERS_TOO_LARGE: Final = "its headers are over 1 MiB"
BOUNDARY_CHARS_MAX: Final = 200  # RFC 2046 has 70
_SHOWN: Final = ("From", "To", "Cc", "Date", "Subject")
_HEADER = re.compile(rb"([!-9;-~]{1,100})[ \t]*+:[ \t]*+([^\r\n]*+(?:\r?\n[ \t][^\r\n]*+)*+)\r*+\n?")
_FOLDED = re.compile(r"[ \t]*+\r?\n[ \t]++")
_MAILBOX_LINE = re.compile(rb">?From [^\r\n]*+\r?\n")
_WORD = re.compile(r"=\?([!-)+->@-~]{1,60}+)(?:\*[^?\s]{0,40}+)?\?([BbQq])\?([^?\s]*+(?: [^?\s]++)*+)\?=")
_PARAMETER = re.compile(
    r";\s*+([^\s=;*]{1,60}+)(\*[0-9]{0,3}\*?)?\s*+=\s*+(?:\"((?:[^\"\\]|\\.)*+)\"|([^;\s]*+))", re.DOTALL
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NO_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")
_META = re.compile(rb"<meta\b[^<>]{0,200}?\bcharset\s*=\s*[\"']?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_META_WITHIN: Final = 2048
_MAILS: Final = frozenset(("message/rfc822", "message/global", "message/news"))
_PLAIN: Final = frozenset(("text/plain", "text/markdown", "text/rfc822-headers", "message/delivery-status"))


def read(data: bytes) -> Content:
    """The text of an .eml file. Raises LeftOut."""
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    reader = _Reader(data)
    line = _MAILBOX_LINE.match(data)
    top = reader.part(line.end() if line else 0, len(data))
    if not top.headers:
        raise LeftOut(DAMAGED)
    reader.mail(top, 0)
    return reader.flow.content(_header(top, "subject"))


class _Part(NamedTuple):
    """A mail or a part of one: its headers by name, and where in the file its body is."""

    headers: dict[str, bytes]
    kind: str
    parameters: dict[str, str]
    begin: int
    end: int

    @property
    def attached(self) -> bool:
        return self.headers.get("content-disposition", b"").lower().lstrip().startswith(b"attachment")

    @property
    def name(self) -> str:
        """The name of the file that it is; empty where it is none."""
        disposition = _parameters(_decoded(self.headers.get("content-disposition", b"")))
        return _unworded(disposition.get("filename") or self.parameters.get("name", "")).strip()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.flow = Flow()
        self._data = data
        self._parts = 0
        self._attachments: list[str] = []

    def part(self, begin: int, end: int, kind: str = "text/plain") -> _Part:
        """The part that stands there; `kind`: what it is where it does not say. Raises LeftOut."""
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise LeftOut(BOMB)
        headers: dict[str, bytes] = {}
        at = begin
        while found := _HEADER.match(self._data, at, end):
            headers.setdefault(found[1].decode("ascii").lower(), found[2])
            at = found.end()
            if at - begin > HEADERS_BYTES_MAX:
                raise LeftOut(HEADERS_TOO_LARGE)
        at += self._data.startswith(b"\r", at, end)
        at += self._data.startswith(b"\n", at, end)
        value = _decoded(headers.get("content-type", b""))
        told = value.partition(";")[0].strip().lower()
        return _Part(headers, told if told.count("/") == 1 else kind, _parameters(value), at, end)

    def mail(self, part: _Part, depth: int) -> None:
        """Its headers, what it says, what is attached. Raises LeftOut."""
        around, self._attachments = self._attachments, []
        self.flow.gap()
        for name in _SHOWN:
            if value := _header(part, name.lower()):
                self.flow.put(f"{name}: {value}", "header")
        self.flow.gap()
        self._say(part, depth)
        self.flow.gap()
        for name in self._attachments:
            self.flow.put(f"Attachment: {name}", "attachment")
        self._attachments = around

    def _say(self, part: _Part, depth: int, *, text: bool = True) -> None:
        """What a part says; only what is attached where its text is not wanted."""
        if depth > DEPTH_MAX:
            raise LeftOut(BOMB)
        if _is_sealed(part) and depth == 0:
            raise LeftOut(ENCRYPTED)
        if part.kind in _MAILS and not _encoding(part):
            if text:
                self.mail(self.part(part.begin, part.end), depth + 1)
        elif part.kind.startswith("multipart/") and (children := list(self._children(part))):
            self._say_all(part.kind, children, depth + 1, text)
        elif part.attached or not _is_text(part):
            if part.name:
                self._attachments.append(part.name)
        elif text:
            self._write(part)

    def _say_all(self, kind: str, children: list[_Part], depth: int, text: bool) -> None:
        match kind:
            case "multipart/alternative":
                self._say_one(children, depth, text)
            case "multipart/related":  # the others are pictures in it
                self._say(children[0], depth, text=text)
                for child in children[1:]:
                    if child.attached:
                        self._say(child, depth, text=False)
            case _:
                for child in children:
                    self.flow.gap()
                    self._say(child, depth, text=text)

    def _say_one(self, children: list[_Part], depth: int, text: bool) -> None:
        """The plain one of several that say the same, or else the last, which says it best."""
        wanted = text
        plain = [child for child in children if child.kind == "text/plain"]
        for child in [*plain, *(child for child in reversed(children) if child.kind != "text/plain")]:
            self.flow.open()
            self._say(child, depth, text=wanted)
            lines = self.flow.close()
            self.flow.again(lines)
            wanted = wanted and not lines

    def _children(self, part: _Part) -> Iterator[_Part]:
        kind = "message/rfc822" if part.kind == "multipart/digest" else "text/plain"
        boundary = part.parameters.get("boundary", "").rstrip()
        if not boundary or len(boundary) > BOUNDARY_CHARS_MAX:
            return
        begin = -1
        for at, behind, last in self._boundaries(b"--" + boundary.encode("utf-8", "replace"), part.begin, part.end):
            if begin >= 0:
                yield self.part(begin, max(begin, at), kind)
            if last:
                return
            begin = behind
        if begin >= 0:
            yield self.part(begin, part.end, kind)

    def _boundaries(self, mark: bytes, at: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Where a part ends, where the next begins, and whether it was the last."""
        data = self._data
        while (found := data.find(mark, at, end)) >= 0:
            newline = data.find(b"\n", found, end)
            behind = end if newline < 0 else newline + 1
            rest = data[found + len(mark) : min(behind, found + len(mark) + 80)].strip()
            if (found == 0 or data[found - 1] == ord("\n")) and rest in (b"", b"--"):
                before = found - 1 - (data[found - 2 : found - 1] == b"\r")
                yield before, behind, rest == b"--"
            at = behind

    def _write(self, part: _Part) -> None:
        body = _body(self._data[part.begin : part.end], _encoding(part))
        charset = part.parameters.get("charset")
        if part.kind == "text/html":
            declared = _META.search(body, 0, _META_WITHIN)
            markup.write(decode(body, charset or (declared[1].decode("ascii") if declared else None)), self.flow)
            return
        lines: Iterator[str] = io.StringIO(decode(body, charset), newline=None)
        if part.parameters.get("format", "").lower() == "flowed":
            lines = _flowed(lines, part.parameters.get("delsp", "").lower() == "yes")
        blank = True
        for line in lines:
            if not line or line.isspace():
                blank = True
                continue
            if blank:
                self.flow.gap()
            blank = False
            self.flow.put(line.rstrip("\n"), "text")


def _is_sealed(part: _Part) -> bool:
    if part.kind.endswith("pkcs7-mime"):
        return part.parameters.get("smime-type", "enveloped-data").lower() != "signed-data"
    return part.kind == "multipart/encrypted"


def _is_text(part: _Part) -> bool:
    """A multipart is, where it has no parts."""
    return part.kind == "text/html" or part.kind in _PLAIN or part.kind.startswith("multipart/")


def _encoding(part: _Part) -> str:
    """How its body is encoded; empty where it stands as it is."""
    said = part.headers.get("content-transfer-encoding", b"").strip().lower().decode("ascii", "replace")
    return said if said in ("base64", "quoted-printable") else ""


def _body(data: bytes, encoding: str) -> bytes:
    if encoding == "quoted-printable":
        return binascii.a2b_qp(data)
    if encoding == "base64":
        try:
            return binascii.a2b_base64(data)
        except binascii.Error:
            data = _NO_BASE64.sub(b"", data)
            return binascii.a2b_base64(data[: len(data) - (len(data) % 4 == 1)] + b"==")
    return data


def _header(part: _Part, name: str) -> str:
    return " ".join(_unworded(_decoded(part.headers.get(name, b""))).split())


def _decoded(value: bytes) -> str:
    return _FOLDED.sub(" ", decode(value, None))


def _unworded(text: str) -> str:
    """A header with what was put into ASCII as it was (RFC 2047). Words of one encoding may share a letter."""
    parts: list[str] = []
    held, charset, at = b"", "", 0
    for found in _WORD.finditer(text):
        between = text[at : found.start()]
        if held and (between.strip() or found[1].lower() != charset):
            parts.append(decode(held, charset))
            held = b""
        if between.strip() or not at:
            parts.append(between)
        charset, at = found[1].lower(), found.end()
        held += _word(found[2].lower(), found[3])
    return "".join([*parts, decode(held, charset), text[at:]])


def _word(way: str, text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return binascii.a2b_qp(data, header=True) if way == "q" else _body(data, "base64")


def _parameters(value: str) -> dict[str, str]:
    """What follows a header's value, names in lower case (RFC 2045, RFC 2231)."""
    pieces: dict[str, list[tuple[int, bool, str]]] = {}
    for name, section, quoted, plain in _PARAMETER.findall(value):
        number = section.strip("*")
        piece = int(number or 0), section.endswith("*"), _ESCAPED.sub(r"\1", quoted) or plain
        pieces.setdefault(name.lower(), []).append(piece)
    return {name: _whole(sorted(found, key=lambda piece: piece[0])) for name, found in pieces.items()}


def _whole(pieces: list[tuple[int, bool, str]]) -> str:
    if not any(encoded for _, encoded, _ in pieces):
        return "".join(text for _, _, text in pieces) if pieces[-1][0] else pieces[0][2]
    charset = ""
    if pieces[0][1] and pieces[0][2].count("'") >= 2:
        charset, _, text = pieces[0][2].split("'", 2)
        pieces[0] = 0, True, text
    data = b"".join(
        unquote_to_bytes(text) if encoded else text.encode("utf-8", "replace") for _, encoded, text in pieces
    )
    return decode(data, charset)


def _flowed(lines: Iterator[str], close: bool) -> Iterator[str]:
    """Paragraphs put together of lines that end in a space (RFC 3676); `close`: that space is not one of theirs."""
    held, quoted = "", ""
    for line in lines:
        line = line.rstrip("\n")
        text = line.lstrip(">")
        marks = line[: len(line) - len(text)]
        text = text.removeprefix(" ")
        if held and marks != quoted:
            yield f"{quoted} {held}".lstrip()
            held = ""
        quoted = marks
        if text.endswith(" ") and text != "-- ":
            held += text[:-1] if close else text
            continue
        yield f"{quoted} {held}{text}" if quoted else held + text
        held = ""
    if held:
        yield f"{quoted} {held}".lstrip()
