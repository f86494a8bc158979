"""Workbooks of Excel: each sheet's rows as a person reads their cells, and the comments and text boxes on it.

`python-calamine` reads them, from an archive that holds no more than what was checked here. Numbers come as they are
kept, without the format in which they are shown.
"""

import datetime
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Final

import python_calamine as calamine

from lnk.documents import parts, xml
from lnk.documents.content import DAMAGED, ENCRYPTED, TOO_MUCH_MEMORY, Content, LeftOut
from lnk.documents.flow import ROW, Flow
from lnk.documents.slides import Shapes
from lnk.documents.zipped import Archive

CELLS_MAX: Final = 4_000_000  # of the area that a sheet's cells span: all of it is held at once, 32 bytes a cell
_PLACE = re.compile(rb"\br\s*=\s*[\"']([A-Za-z]{0,3})([0-9]{1,7})[\"']")
# Cells whose formula failed, which come back empty.
_ERROR = re.compile(
    rb"<c\b(?=[^<>]*\st=\"e\")[^<>]*?\sr=\"([A-Z]{1,3})([0-9]{1,7})\"[^<>]*>(?:<f\b[^<>]*>(?:[^<]*</f>)?)?<v>([^<]{1,20})</v>"
)
# How many strings or styles are said to follow: room is made for so many before there are any.
_COUNT = re.compile(rb"(\b(?:uniqueC|c)ount\s*=\s*[\"'])[0-9]{7,}+")
_READ: Final = (".xml", ".rels")
_Value = int | float | str | bool | datetime.date | datetime.time | datetime.timedelta
_Errors = dict[tuple[int, int], str]


def read(data: bytes) -> Content:
    """The text of an .xlsx file. Raises LeftOut."""
    archive = Archive(data)
    main = parts.main(archive)
    book = _Book()
    xml.parse(archive.read(main), book.start, parts.nothing, parts.nothing)
    related = parts.relations(archive, main)
    paths = {relation.id: relation.path for relation in related}
    remarks = _Remarks()
    for relation in related:
        if relation.kind == "person":
            xml.parse(archive.read(relation.path), remarks.start, remarks.end, remarks.text)
    checked, errors = _checked(archive)
    flow = Flow()
    done = set[str]()
    try:
        with calamine.CalamineWorkbook.from_filelike(io.BytesIO(checked)) as workbook:
            for metadata in workbook.sheets_metadata:
                path = paths.get(book.sheets.get(metadata.name, ""), "")
                if path in done:  # a hostile workbook names one part five hundred times
                    continue
                done.add(path)
                if metadata.typ == calamine.SheetTypeEnum.WorkSheet:
                    _write(workbook.get_sheet_by_name(metadata.name), errors.get(path, {}), flow)
                _write_beside(archive, path, remarks, flow)
    except calamine.PasswordError:
        raise LeftOut(ENCRYPTED) from None
    except (calamine.CalamineError, ValueError, OverflowError):
        raise LeftOut(DAMAGED) from None
    return flow.content(parts.title(archive))


def _checked(archive: Archive) -> tuple[bytes, dict[str, _Errors]]:
    """An archive of the parts that are read, and each sheet's failed formulas. Raises LeftOut for one that is too wide.

    What the archive's directory said of itself is not passed on.
    """
    errors: dict[str, _Errors] = {}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as copy:
        for name in archive.names:
            if name.lower().endswith(_READ):
                part = _COUNT.sub(rb"\g<1>0", archive.read(name))
                if b"sheetData" in part:
                    _check_area(part)
                    errors[name] = {(int(row) - 1, _column(at)): text.decode() for at, row, text in _failed(part)}
                copy.writestr(name, part)
    return file.getvalue(), errors


def _failed(part: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    for found in _ERROR.finditer(part):
        if found[3].isascii():
            yield found[1], found[2], found[3]


def _check_area(part: bytes) -> None:
    columns: set[bytes] = set()
    first, last = CELLS_MAX, 0
    for found in _PLACE.finditer(part):
        columns.add(found[1].upper())
        row = int(found[2])
        first, last = min(first, row), max(last, row)
    numbers = [_column(column) for column in columns if column]
    if numbers and (max(numbers) - min(numbers) + 1) * (last - first + 1) > CELLS_MAX:
        raise LeftOut(TOO_MUCH_MEMORY)


def _column(letters: bytes) -> int:
    """`A` is 0, `AA` 26."""
    number = 0
    for letter in letters:
        number = number * 26 + letter - 64
    return number - 1


def _write(sheet: calamine.CalamineSheet, errors: _Errors, flow: Flow) -> None:
    """A sheet's name and its rows; nothing where all its cells are empty."""
    left = sheet.start[1] if sheet.start else 0
    failed: dict[int, dict[int, str]] = {}
    for (row, column), text in errors.items():
        failed.setdefault(row, {})[column - left] = text
    begun = False
    for number, values in enumerate(sheet.iter_rows()):
        if values.count("") == len(values) and number not in failed:  # a million rows may be empty
            continue
        cells = [_shown(value) for value in values]
        for column, text in failed.get(number, {}).items():
            if 0 <= column < len(cells):
                cells[column] = text
        while cells and not cells[-1]:
            cells.pop()
        if cells and not begun:
            _name(sheet.name, flow)
            begun = True
        flow.put(" | ".join(cells), ROW)


def _name(name: str, flow: Flow) -> None:
    flow.gap()
    flow.heading(2)
    flow.text(name)
    flow.line()


def _shown(value: _Value) -> str:
    """A cell's value as a person writes it: no more digits than the program keeps, dates as ISO 8601 has them."""
    match value:
        case str():
            return " ".join(value.split())
        case bool():
            return "TRUE" if value else "FALSE"
        case float() | int():
            whole = abs(value) < 1e16 and value == int(value)
            return str(int(value)) if whole else f"{value:.15g}"
        case datetime.datetime():
            return value.isoformat(" ", "seconds" if value.second or value.microsecond else "minutes")
        case datetime.time():
            return value.isoformat("seconds" if value.second or value.microsecond else "minutes")
        case datetime.timedelta():
            minutes, seconds = divmod(round(value.total_seconds()), 60)
            return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
        case _:
            return value.isoformat()


def _write_beside(archive: Archive, path: str, remarks: "_Remarks", flow: Flow) -> None:
    """Comments, and shapes with text, of the sheet at that path."""
    for relation in parts.relations(archive, path) if path else ():
        if relation.kind in ("comments", "threadedComment"):
            remarks.begin(flow)
            xml.parse(archive.read(relation.path), remarks.start, remarks.end, remarks.text)
            flow.line()
        elif relation.kind == "drawing":
            flow.gap()
            shapes = Shapes(flow)
            xml.parse(archive.read(relation.path), shapes.start, shapes.end, shapes.text)


class _Book:
    """The sheets' names, and by which relation each is found."""

    def __init__(self) -> None:
        self.sheets: dict[str, str] = {}

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if xml.local(name) == "sheet":
            related = next((value for key, value in attributes.items() if key.endswith("}id")), "")
            self.sheets[attributes.get("name", "")] = related


class _Remarks:
    """Comments of both kinds, into a flow, and who wrote them."""

    def __init__(self) -> None:
        self._people: dict[str, str] = {}
        self._flow = Flow()
        self._authors: list[str] = []
        self._by = self._at = ""
        self._within = ""

    def begin(self, flow: Flow) -> None:
        """What is read from now on goes there."""
        self._flow, self._authors = flow, []

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        match xml.local(name):
            case "person":
                self._people[attributes.get("id", "")] = attributes.get("displayName", "")
            case "author":
                self._authors.append("")
                self._within = "author"
            case "comment":
                number = attributes.get("authorId", "")
                known = number.isascii() and number.isdigit() and len(number) < 9 and int(number) < len(self._authors)
                self._begin(attributes, self._authors[int(number)] if known else "")
            case "threadedComment":
                self._begin(attributes, self._people.get(attributes.get("personId", ""), ""))
            case "t" | "text":
                self._within = "text"
            case "rPh":  # how a word is read
                self._within = ""

    def end(self, name: str) -> None:
        match xml.local(name):
            case "comment" | "threadedComment":
                lines = self._flow.close()
                if not self._by.startswith("tc="):  # an older program's copy of a thread
                    self._flow.comment(lines, self._by, self._at)
                self._by = ""
            case "t" | "text" | "author":
                self._within = ""

    def text(self, text: str) -> None:
        if self._within == "author":
            self._authors[-1] += text
        elif self._within and self._at:
            self._flow.text(text)

    def _begin(self, attributes: Mapping[str, str], author: str) -> None:
        self._by, self._at = author.strip(), attributes.get("ref", "")[:20] or "?"
        self._flow.open()
