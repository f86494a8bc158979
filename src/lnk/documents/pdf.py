"""PDF: what pdfium finds on its pages, or, where pdfium takes the file for damaged, pypdf.

Pages come with their form fields (`name: value`) and comments after their text. Text that is there but not seen, as a
scan's recognised text, counts. What pages repeat at their edges stays where it stands first (`layout`).
"""

import codecs
import ctypes
import io
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, repeat
from math import hypot
from typing import Any, Final

import pypdf
import pypdf.errors
import pypdfium2  # type: ignore[import-untyped]
import pypdfium2.raw as pdfium  # type: ignore[import-untyped]

from lnk.documents import layout
from lnk.documents.content import (
    BOMB,
    DAMAGED,
    ENCRYPTED,
    NO_TEXT,
    TEXT_BYTES_MAX,
    TEXT_TOO_LARGE,
    Content,
    LeftOut,
    seen,
)

PAGES_MAX: Final = 5_000
TOO_MANY_PAGES: Final = "it has over 5,000 pages"
XFA: Final = "its form (XFA) is shown by Adobe's programs alone"
OUTLINE_MAX: Final = 10_000
ANNOTATIONS_MAX: Final = 10_000  # of a page
TITLE_CHARS_MAX: Final = 1_000

_MARKED: Final = b"%PDF-"
# A page with text and an image, for pypdf to read before the world is closed: some of its parts it imports late.
_SMALL: Final = (
    b"%PDF-1.1\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Resources<</Font<</F 4 0 R>>>>/Contents 5 0 R>>endobj\n"
    b"4 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj\n"
    b"5 0 obj<</Length 45>>stream\nBT/F 1 Tf(a)Tj ET BI/W 1/H 1/BPC 8/CS/G ID a EI\nendstream endobj\n"
    b"trailer<</Root 1 0 R>>\nstartxref\n0\n%%EOF\n"
)
_ENCODINGS: Final = (
    *("ascii", "charmap", "latin-1", "utf-8", "utf-16", "utf-16-le", "utf-16-be"),
    *("gbk", "gb2312", "gb18030", "cp932", "cp950", "cp949", "big5", "shift_jis", "euc_jp", "euc_kr"),
)
_WAIT: Final = "Please wait"  # what a form in XFA says instead of itself
_WAIT_CHARS_MAX: Final = 1_500
_ANGLES: Final = 9  # words of a page that tell how it is turned
_QUARTER: Final = 1.5708
_BOXES: Final = 4_096  # that are asked for at once
_COMMENTS: Final = frozenset(
    (
        pdfium.FPDF_ANNOT_TEXT,
        pdfium.FPDF_ANNOT_HIGHLIGHT,
        pdfium.FPDF_ANNOT_UNDERLINE,
        pdfium.FPDF_ANNOT_SQUIGGLY,
        pdfium.FPDF_ANNOT_STRIKEOUT,
        pdfium.FPDF_ANNOT_CARET,
        pdfium.FPDF_ANNOT_STAMP,
        pdfium.FPDF_ANNOT_INK,
        pdfium.FPDF_ANNOT_SQUARE,
        pdfium.FPDF_ANNOT_CIRCLE,
        pdfium.FPDF_ANNOT_LINE,
        pdfium.FPDF_ANNOT_POLYGON,
        pdfium.FPDF_ANNOT_POLYLINE,
    )
)
_TICKED: Final = frozenset((pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON))
_UNFILLED: Final = frozenset((pdfium.FPDF_FORMFIELD_PUSHBUTTON, pdfium.FPDF_FORMFIELD_SIGNATURE))

for _name in ("pypdf", "pypdfium2"):  # nothing is printed
    logging.getLogger(_name).propagate = False
    logging.getLogger(_name).addHandler(logging.NullHandler())

_PLACES: Final = (pdfium.FS_RECTF * _BOXES)()
_MATRIX: Final = pdfium.FS_MATRIX()
_ADDRESSES: Final = [ctypes.addressof(_PLACES[number]) for number in range(_BOXES)]
# Asked for two letters of every word: as plain numbers it takes half as long.
_loose_box: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
    ctypes.cast(pdfium.FPDFText_GetLooseCharBox, ctypes.c_void_p).value or 0
)
_NUMBERS: Final = memoryview(_PLACES).cast("B").cast("f")


def read(data: bytes) -> Content:
    """The text of a PDF. Raises LeftOut where it is encrypted, damaged, has no text, or too much of it."""
    try:
        file = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if error.err_code in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY) and b"/Encrypt" in data:
            raise LeftOut(ENCRYPTED) from None
        return read_again(data)
    return _Reading(file).content()


class _Reading:
    """One file that pdfium has opened."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._form = None
        self._left = TEXT_BYTES_MAX

    def content(self) -> Content:
        count = len(self._file)
        if count > PAGES_MAX:
            raise LeftOut(TOO_MANY_PAGES)
        kind = self._file.get_formtype()
        if kind != pdfium.FORMTYPE_NONE:
            self._file.init_forms()
            self._form = self._file.formenv
        pages, notes = [], []
        for number in range(count):
            lines, beside = self._page(number)
            pages.append(lines)
            notes.append(beside)
        if kind in (pdfium.FORMTYPE_XFA_FULL, pdfium.FORMTYPE_XFA_FOREGROUND) and _only_waits(pages):
            raise LeftOut(XFA)
        texts = layout.document(pages, self._outline())
        return _content(
            [text + beside for text, beside in zip(texts, notes, strict=True)], self._file.get_metadata_value("Title")
        )

    def _page(self, number: int) -> tuple[list[layout.Line], list[str]]:
        """A page's lines, and what fields and comments say; nothing where the page is damaged."""
        try:
            page = self._file[number]
        except pypdfium2.PdfiumError:
            return [], []
        try:
            return self._lines(page), list(self._beside(page))
        finally:
            page.close()

    def _lines(self, page: Any) -> list[layout.Line]:
        try:
            letters = page.get_textpage()
        except pypdfium2.PdfiumError:
            return []
        try:
            text = self._text(letters.raw)
            return layout.lines(_rows(letters.raw, text)) if text else []
        finally:
            letters.close()

    def _text(self, letters: Any) -> str:
        """A page's text, one character each of pdfium's: what is beyond U+FFFF is two. Raises LeftOut."""
        count = max(0, pdfium.FPDFText_CountChars(letters))
        self._take(count)
        units = (ctypes.c_ushort * (2 * count + 2))()
        length = pdfium.FPDFText_GetText(letters, 0, count, units) - 1
        data = bytes(units)[: 2 * max(0, length)]
        self._take(max(0, len(data.decode("utf-16-le", "ignore").replace("\r", "").encode()) - count))
        text = data.decode("utf-16-le", "surrogatepass")
        return text if len(text) == length else "".join(map(chr, units[:length]))

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise LeftOut(TEXT_TOO_LARGE)

    def _beside(self, page: Any) -> Iterator[str]:
        """The lines of a page's form fields and comments."""
        for number in range(min(pdfium.FPDFPage_GetAnnotCount(page.raw), ANNOTATIONS_MAX)):
            annotation = pdfium.FPDFPage_GetAnnot(page.raw, number)
            if not annotation:
                continue
            try:
                said = self._said(annotation)
            finally:
                pdfium.FPDFPage_CloseAnnot(annotation)
            if said:
                self._take(len(said.encode()) + 1)
                yield said

    def _said(self, annotation: Any) -> str:
        kind = pdfium.FPDFAnnot_GetSubtype(annotation)
        if kind == pdfium.FPDF_ANNOT_WIDGET:
            return self._field(annotation) if self._form else ""
        if kind != pdfium.FPDF_ANNOT_FREETEXT and kind not in _COMMENTS:
            return ""
        text = _one_line(_string(pdfium.FPDFAnnot_GetStringValue, annotation, b"Contents"))
        if not text or kind == pdfium.FPDF_ANNOT_FREETEXT:
            return text
        author = _one_line(_string(pdfium.FPDFAnnot_GetStringValue, annotation, b"T"))
        return f"(comment by {author}: {text})" if author else f"(comment: {text})"

    def _field(self, widget: Any) -> str:
        form = self._form.raw  # type: ignore[attr-defined]
        kind = pdfium.FPDFAnnot_GetFormFieldType(form, widget)
        if kind in _UNFILLED:
            return ""
        if kind in _TICKED:
            if not pdfium.FPDFAnnot_IsChecked(form, widget):
                return ""
            value = _string(pdfium.FPDFAnnot_GetFormFieldExportValue, form, widget)
        else:
            value = _string(pdfium.FPDFAnnot_GetFormFieldValue, form, widget)
        if not (value := _one_line(value)):
            return ""
        name = _one_line(_string(pdfium.FPDFAnnot_GetFormFieldAlternateName, form, widget))
        if not name:
            full = _one_line(_string(pdfium.FPDFAnnot_GetFormFieldName, form, widget))
            name = full.rpartition(".")[2].partition("[")[0]
        return f"{name}: {value}" if name else value

    def _outline(self) -> Iterator[layout.Entry]:
        for mark in islice(self._file.get_toc(), OUTLINE_MAX):
            place = mark.get_dest()
            page = place.get_index() if place else None
            if page is not None:
                yield layout.Entry(mark.get_title(), page, mark.level + 1)


def _rows(letters: Any, text: str) -> list[layout.Row]:
    """The rows of a page, by the boxes of each word's first and last letter."""
    words = [word.span() for word in layout.WORD.finditer(text)]
    first, last = [start for start, _ in words], [end - 1 for _, end in words]
    if len(text) != pdfium.FPDFText_CountChars(letters):
        first, last = (
            [pdfium.FPDFText_GetCharIndexFromTextIndex(letters, place) for place in places] for places in (first, last)
        )
    angles = [
        round(pdfium.FPDFText_GetCharAngle(letters, place) / _QUARTER) % 4
        for place in first[:: max(1, len(first) // _ANGLES)]
    ]
    turn = -max(set(angles), key=angles.count) % 4 if angles else 0
    boxes = _boxes(letters, first, turn), _boxes(letters, last, turn)
    return layout.rows(text, words, *boxes, partial(_points, letters))


def _points(letters: Any, place: int) -> float:
    """The size of a letter's font on the page."""
    pdfium.FPDFText_GetMatrix(letters, place, _MATRIX)
    return float(pdfium.FPDFText_GetFontSize(letters, place) * hypot(_MATRIX.c, _MATRIX.d))


def _boxes(letters: Any, places: list[int], turn: int) -> list[float]:
    """The boxes of these letters, as if the page were turned back by quarters."""
    handle = ctypes.cast(letters, ctypes.c_void_p).value
    boxes: list[float] = []
    for at in range(0, len(places), _BOXES):
        part = places[at : at + _BOXES]
        ctypes.memset(_PLACES, 0, ctypes.sizeof(_PLACES[0]) * len(part))
        deque(map(_loose_box, repeat(handle), part, _ADDRESSES), maxlen=0)
        boxes += _NUMBERS[: len(part) * layout.BOX].tolist()
    return _turned(boxes, turn) if turn else boxes


def _turned(boxes: list[float], quarters: int) -> list[float]:
    """Boxes on a page that is turned until its text is level."""
    found: list[float] = []
    for at in range(0, len(boxes), layout.BOX):
        left, top, right, bottom = boxes[at : at + layout.BOX]
        for _ in range(quarters):
            left, top, right, bottom = bottom, -left, top, -right
        found += (left, top, right, bottom)
    return found


def _string(ask: Callable[..., int], *about: Any) -> str:
    """A string that pdfium gives in UTF-16, NUL at its end."""
    size = ask(*about, None, 0)
    if not 2 < size <= 2 * TEXT_BYTES_MAX:
        return ""
    units = (ctypes.c_ushort * (size // 2 + 1))()
    ask(*about, units, size)
    return bytes(units)[: size - 2].decode("utf-16-le", "ignore")


def _one_line(text: str) -> str:
    return " ".join(seen(text).split())


def _only_waits(pages: list[list[layout.Line]]) -> bool:
    text = " ".join(line.text for page in pages for line in page)
    return _WAIT in text[:200] and len(text) < _WAIT_CHARS_MAX


def _content(texts: list[list[str]], title: str | None) -> Content:
    """The content of pages, each of which begins on a line of its own. Raises LeftOut."""
    if not any(any(text) for text in texts):
        raise LeftOut(NO_TEXT)
    lines: list[str] = []
    pages = []
    for text in texts:
        if text and text[0].startswith("#") and lines and lines[-1]:
            lines.append("")
        pages.append(len(lines) + 1)
        lines += text or [""]
    whole = "\n".join(lines) + "\n"
    if len(whole.encode()) > TEXT_BYTES_MAX:
        raise LeftOut(TEXT_TOO_LARGE)
    return Content(whole, pages, _one_line((title or "")[:TITLE_CHARS_MAX]) or None)


def read_again(data: bytes) -> Content:
    """The text of a PDF by pypdf alone, for a file at which pdfium fails: lines and pages, no more.

    Raises LeftOut as `read` does.
    """
    if _MARKED not in data[:1024]:
        raise LeftOut(DAMAGED)
    try:
        return _by_pypdf(pypdf.PdfReader(io.BytesIO(data)))
    except (LeftOut, MemoryError):
        raise
    except pypdf.errors.LimitReachedError:
        raise LeftOut(BOMB) from None
    except Exception:  # pypdf raises of many kinds at a damaged file
        raise LeftOut(DAMAGED) from None


def _by_pypdf(reader: pypdf.PdfReader) -> Content:
    if reader.is_encrypted and not reader.decrypt(""):
        raise LeftOut(ENCRYPTED)
    if len(reader.pages) > PAGES_MAX:
        raise LeftOut(TOO_MANY_PAGES)
    if not reader.pages:
        raise LeftOut(DAMAGED)
    left = TEXT_BYTES_MAX
    texts = []
    for page in reader.pages:
        text = page.extract_text()
        left -= len(text.encode("utf-8", "ignore"))
        if left < 0:
            raise LeftOut(TEXT_TOO_LARGE)
        texts.append(layout.plain(text))
    return _content(texts, reader.metadata.title if reader.metadata else None)


for _name in _ENCODINGS:
    codecs.lookup(_name)
read_again(_SMALL)
