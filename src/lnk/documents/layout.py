"""Where words stand on pages, turned into text as a person reads it. Pure; it does not know PDF.

Told from the places of words: columns, tables, paragraphs, headings, what every page repeats, and words that a line's
end broke. The order in which a page's words come is trusted but for two things: columns that were drawn row by row are
read one after the other, and what is drawn on one level stands on one line.

A hyphen at a line's end stays where the document, or the word, says that it is real (`sont-ils`, `co-operation`,
`Jean-Pierre`); otherwise the word is put together (`international`). In doubt a hyphen kept costs less: the index finds
such a word by its parts and as one, while one put together is found as one alone.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from operator import sub
from statistics import median
from typing import Final, NamedTuple

from lnk.documents.content import seen

WORD: Final = re.compile(r"[^\s\x02\ufffe]+")  # of a page; U+0002 and U+FFFE are hyphens that break a word
_ROW_END: Final = re.compile(r"[\n\x02\ufffe]")
BOX: Final = 4  # numbers: left, top, right, bottom

CELL_GAP: Final = 0.8  # of a line's height; it counts where rows have it at one place
WIDE_GAP: Final = 1.5  # it counts in any row of a table
GUTTER_LEFT: Final = 0.5  # of a line's height, for the space that lines have in common
APART_MAX: Final = 4.0  # of a line's height, between rows of one table
PIECES_MAX: Final = 64  # of a row of a table
CELL_ROWS_MAX: Final = 10  # that a cell is wrapped over
WORD_CHARS_MAX: Final = 100  # that is put together: lines of broken words alone would make one without end
COLUMNS_MAX: Final = 3
COLUMN_ROWS_MIN: Final = 4
COLUMN_CHARS_MIN: Final = 18  # a line of prose; cells have less
COLUMN_FULL_MIN: Final = 0.6  # of a column's width that its lines fill
PARAGRAPH_GAP: Final = 1.3  # times the usual distance of two lines
TABLE_GAP: Final = 1.25  # of a line's height, between a table and what is none
HEADING_SIZE: Final = 1.15  # times the body's
HEADING_CHARS_MAX: Final = 120
HEADING_ROWS_MAX: Final = 3
LEVELS: Final = 3
NAMED_MAX: Final = 100  # headings of a page that the outline names
EDGE_ROWS: Final = 2  # at a page's top and bottom, which may be headers and footers
EDGE_PAGES: Final = 2  # back: left and right pages have headers of their own
EDGE_SHIFT: Final = 3.0  # points
EDGE_PAGE_ROWS_MIN: Final = 5  # a page with fewer has no header

_CJK: Final = (
    "\u2e80-\u2fdf\u3000-\u30ff\u31c0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff60\U00020000-\U0003ffff"
)
_CJK_SPACE: Final = re.compile(f"(?<=[{_CJK}]) (?=[{_CJK}])")
_CJK_END: Final = re.compile(f"[{_CJK}]$")
_CJK_START: Final = re.compile(f"[{_CJK}]")
_BULLET: Final = re.compile("[•‣⁃∙▪▫●○■□◦➢➤\uf0b7\uf0a7\uf0d8\uf0fc\uf076](?= |$)")
_MARKER: Final = re.compile(
    r"(?:[•‣⁃∙▪▫●○■□◦➢➤\uf0b7\uf0a7\uf0d8\uf0fc\uf076–*-]|\(?(?:\d{1,3}(?:\.\d+)*|[A-Za-z]|[ivx]+)[.)]|\d+(?:\.\d+)+)$"
)
_PRIVATE: Final = re.compile("[\ue000-\uf8ff\ufff0-\ufffb\ufffe\uffff\U000f0000-\U0010ffff]")
_LEADERS: Final = re.compile(r"(?: ?[.·․]){5,} ?")
_MARKUP: Final = re.compile(r"#{1,6}(?: |$)|`{3}|~{3}|-{3}|={3}")
_NUMBER: Final = re.compile(r"\d+")
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_PAGE_WORDS: Final = frozenset(
    "page pages of seite von p pg s página pagina de di sur pag стр страница из 第 页 頁 共 ページ".split()
)
_ROMAN: Final = re.compile("[ivxlc]{1,8}")
_ROMANS: Final = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_NUMBERING: Final = re.compile(
    r"^(?:(?:chapter|appendix|part|section)\s+)?(?:\d+(?:\.\d+)*|[A-Z](?:\.\d+)*)[.:)]?\s+", re.IGNORECASE
)
_PART: Final = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_LAST_PART: Final = re.compile(r"[^\W_]+(?:[-‐'’][^\W_]+)*$")
_FIRST_PART: Final = re.compile(r"[^\W\d_]+(?:[-'’][^\W_]+)*")
_HYPHENS: Final = ("-", "\u2010", "\u00ad")
# What is mostly written with a hyphen: before it, in English; after it, in French and Portuguese.
_BEFORE: Final = frozenset(
    "all anti co cross ex half high long low mid multi non off on post pre quasi self semi short so well".split()
)
_AFTER: Final = frozenset(
    "ce ci elle elles en il ils je la là le les leur lui moi me nous on se te toi tu vous y lo los las lhe".split()
)


class Piece(NamedTuple):
    """Words of a row with no wide gap between them."""

    text: str
    left: float
    right: float


class Row(NamedTuple):
    """What stands on one level; `broken`: its last word goes on in the next row.

    `size`: the height of its letters as their font has it; `points`: that of the font, by which rows are compared.
    """

    pieces: tuple[Piece, ...]
    bottom: float
    size: float
    points: float
    broken: bool = False
    table: bool = False  # surely a table's


class Line(NamedTuple):
    """A line in reading order."""

    text: str
    left: float
    right: float
    bottom: float
    size: float
    points: float
    broken: bool = False
    cells: bool = False
    parted: bool = False  # with a wide gap, as a header has between its text and the page's number
    level: int = 0  # as a heading


class Entry(NamedTuple):
    """A heading that the document's outline names; `page` from 0 on, `level` from 1 on."""

    title: str
    page: int
    level: int


def rows(
    text: str,
    words: Sequence[tuple[int, int]],
    first: Sequence[float],
    last: Sequence[float],
    points_of: Callable[[int], float],
) -> list[Row]:
    """The rows of a page: its text, where each word begins and ends in it, and the boxes of first and last letters.

    `points_of` tells a letter's size by its place, and is asked once for each height of letters.
    """
    points: dict[float, float] = {}
    lefts = list(map(min, first[0::BOX], last[0::BOX]))
    rights = list(map(max, first[2::BOX], last[2::BOX]))
    bottoms = first[3::BOX]
    sizes = list(map(sub, first[1::BOX], bottoms))
    starts = [start for start, _ in words]
    found: list[Row] = []
    at = 0
    for stop in _ROW_END.finditer(text + "\n"):
        end = bisect_left(starts, stop.start(), at)
        if end > at:
            count = end - at
            # Of its smaller words: a formula in a line of prose makes no heading of it.
            size, bottom, letter = sorted(zip(sizes[at:end], bottoms[at:end], starts[at:end], strict=True))[count // 3]
            cuts = _cuts(lefts[at:end], rights[at:end], CELL_GAP * max(size, 1.0)) if count > 1 else []
            pieces = tuple(
                [
                    Piece(
                        " ".join(text[words[begin][0] : words[until - 1][1]].split()),
                        min(lefts[begin:until]),
                        max(rights[begin:until]),
                    )
                    for begin, until in pairwise([at, *[at + cut for cut in cuts], end])
                ]
            )
            height = round(size, 2)
            if height not in points:
                points[height] = points_of(letter) or size
            found.append(Row(pieces, bottom, size, points[height], stop[0] != "\n"))
            at = end
    return found


def _cuts(lefts: list[float], rights: list[float], wide: float) -> list[int]:
    """Before which of a row's words there is a wide gap, in whichever direction it is read."""
    if lefts[0] <= lefts[-1]:
        gaps = list(map(sub, lefts[1:], rights))
    else:
        gaps = list(map(sub, lefts, rights[1:]))
    return [at for at, gap in enumerate(gaps, 1) if gap > wide] if max(gaps) > wide else []


def lines(of_page: list[Row]) -> list[Line]:
    """The lines of a page in reading order: columns one after the other, a table's rows with ` | ` between cells."""
    found: list[Line] = []
    merged = _unwrapped(_levelled(of_page))
    at = 0
    while at < len(merged):
        if merged[at].table:
            found.append(_line(merged[at], cells=True))
            at += 1
            continue
        end, gutters = _block(merged, at)
        block = merged[at:end]
        if sum(len(row.pieces) > 1 for row in block) < 2:
            found.append(_line(merged[at]))
            at += 1
            continue
        columns = _columns(block, gutters)
        found.extend(columns or [_line(_celled(row, gutters), cells=True) for row in block])
        at = end
    return found


def _levelled(of_page: list[Row]) -> list[Row]:
    """Rows, those put together that were drawn one after the other, each right of the last, on one level."""
    found: list[Row] = []
    for row in of_page:
        last = found[-1] if found else None
        if (
            last
            and not last.broken
            and abs(last.bottom - row.bottom) < last.size * 0.3
            and row.pieces[0].left > last.pieces[-1].right
        ):
            found[-1] = last._replace(pieces=last.pieces + row.pieces, broken=row.broken)
        else:
            found.append(row)
    return found


def _unwrapped(of_page: list[Row]) -> list[Row]:
    """Rows, those put together over which the cells of one row of a table are wrapped, each drawn whole.

    Beside prose in columns, or an address beside another, a table has more than one row with the same edges.
    """
    parts: list[tuple[int, int, Row]] = []  # from, to, and what these rows are if they are a table's
    at = 0
    while at < len(of_page):
        end, row = _wrapped(of_page, at)
        parts.append((at, end, row))
        at = end
    tables = [False] * len(parts)
    for number, ((start, end, row), (next_start, next_end, other)) in enumerate(pairwise(parts)):
        if (end - start > 1 or next_end - next_start > 1) and _are_alike(row, other):
            tables[number] = tables[number + 1] = True
    found: list[Row] = []
    for (start, end, row), is_table in zip(parts, tables, strict=True):
        found += [row._replace(table=True)] if is_table else of_page[start:end]
    return found


def _wrapped(of_page: list[Row], at: int) -> tuple[int, Row]:
    """Where a row ends whose cells go on beneath, each before the one to its right begins; and the row."""
    first = last = of_page[at]
    cells = [[piece] for piece in _marked(first)]
    begun, end = at, at + 1
    top = lowest = first.bottom
    while end < len(of_page) and end - begun < CELL_ROWS_MAX and len(cells) <= PIECES_MAX:
        row = of_page[end]
        if _goes_beneath(row, last, cells[-1]):
            cells[-1] += _marked(row)
        elif lowest <= row.bottom < top + CELL_ROWS_MAX / 2 * row.size and _is_right_of(row, last, cells[-1]):
            cells += [[piece] for piece in _marked(row)]
            begun = end
        else:
            break
        top, lowest = max(top, row.bottom), min(lowest, row.bottom)
        last, end = row, end + 1
    if begun == at:
        return at + 1, first
    return end, first._replace(pieces=tuple(map(_one_cell, cells)), bottom=top, broken=False)


def _marked(row: Row) -> list[Piece]:
    """A row's pieces; where it breaks a word the last one ends with the mark that says so."""
    *others, last = row.pieces
    return [*others, last._replace(text=last.text + "-\x02") if row.broken else last]


def _goes_beneath(row: Row, last: Row, cell: list[Piece]) -> bool:
    """Whether a row is the next one of the cell in which the last one stands."""
    piece = row.pieces[0]
    return (
        len(row.pieces) == 1
        and 0 < last.bottom - row.bottom < 1.6 * row.size
        and piece.left < max(each.right for each in cell)
        and piece.right > min(each.left for each in cell)
    )


def _is_right_of(row: Row, last: Row, cell: list[Piece]) -> bool:
    """Whether a row goes up again, to the right of the cell in which the last one stands."""
    return row.bottom > last.bottom and row.pieces[0].left > max(piece.right for piece in cell)


def _one_cell(cell: list[Piece]) -> Piece:
    text = " ".join(piece.text for piece in cell).replace("\x02 ", "").removesuffix("\x02")
    return Piece(text, min(piece.left for piece in cell), max(piece.right for piece in cell))


def _are_alike(row: Row, other: Row) -> bool:
    """Whether two rows of cells may be of one table."""
    mine, others = ([piece.left for piece in each.pieces] for each in (row, other))
    if min(len(mine), len(others)) < 2:
        return False
    shared = sum(any(abs(one - another) < EDGE_SHIFT for another in others) for one in mine)
    return shared >= 2 or len(mine) == len(others) > 2


def _block(of_page: list[Row], at: int) -> tuple[int, list[tuple[float, float]]]:
    """Where the rows end, from `at` on, that leave a gutter free between their pieces, and the gutters."""
    first = of_page[at]
    if len(first.pieces) > PIECES_MAX:
        return at + 1, []
    spans = sorted((piece.left, piece.right) for piece in first.pieces)
    gutters = [(a[1], b[0]) for a, b in pairwise(spans) if b[0] > a[1]]
    end = at + 1
    last = first
    while gutters and end < len(of_page):
        row = of_page[end]
        if len(row.pieces) > PIECES_MAX or not -0.3 * row.size < last.bottom - row.bottom < APART_MAX * max(
            last.size, row.size
        ):
            break
        left = [free for gutter in gutters if (free := _free(gutter, row))]
        if not left:
            break
        gutters, last, end = left, row, end + 1
    return end, gutters


def _free(gutter: tuple[float, float], row: Row) -> tuple[float, float] | None:
    """What `row` leaves of a gutter, if that is enough."""
    low, high = gutter
    for piece in row.pieces:
        if piece.left < high and piece.right > low:
            if piece.left <= low:
                low = piece.right
            else:
                high = piece.left
    return (low, high) if high - low >= GUTTER_LEFT * row.size else None


def _columns(block: list[Row], gutters: list[tuple[float, float]]) -> list[Line]:
    """The lines of columns of prose, one column after the other; none where it is a table."""
    if not 0 < len(gutters) < COLUMNS_MAX:
        return []
    edges = [low for low, _ in gutters]
    columns: list[list[Line]] = [[] for _ in range(len(gutters) + 1)]
    for row in block:
        parts: dict[int, list[Piece]] = {}
        for piece in row.pieces:
            parts.setdefault(sum(piece.left >= edge for edge in edges), []).append(piece)
        last = max(parts)
        for column, pieces in parts.items():
            columns[column].append(_line(row._replace(pieces=tuple(pieces), broken=row.broken and column == last)))
    return [line for column in columns for line in column] if all(map(_is_prose, columns)) else []


def _is_prose(column: list[Line]) -> bool:
    if len(column) < COLUMN_ROWS_MIN:
        return False
    width = max(line.right for line in column) - min(line.left for line in column)
    full = sum(line.right - line.left for line in column) / len(column)
    chars = sum(len(line.text) + len(_CJK_START.findall(line.text)) for line in column) / len(column)
    return chars >= COLUMN_CHARS_MIN and full >= COLUMN_FULL_MIN * width


def _celled(row: Row, gutters: list[tuple[float, float]]) -> Row:
    """A table's row without gaps that are its own alone."""
    pieces = list(row.pieces[:1])
    for piece in row.pieces[1:]:
        low, high = sorted((pieces[-1].right, piece.left))
        if high - low < WIDE_GAP * row.size and not any(low < end and high > start for start, end in gutters):
            pieces[-1] = Piece(f"{pieces[-1].text} {piece.text}", pieces[-1].left, piece.right)
        else:
            pieces.append(piece)
    return row._replace(pieces=tuple(pieces))


def _line(row: Row, cells: bool = False) -> Line:
    texts = [piece.text for piece in row.pieces]
    if len(texts) > 1 and _MARKER.match(texts[0]):
        texts[:2] = [f"{texts[0]} {texts[1]}"]
    cells = cells and len(texts) > 1 and not any(map(_LEADERS.search, texts))
    left, right = min(piece.left for piece in row.pieces), max(piece.right for piece in row.pieces)
    text = (" | " if cells else " ").join(texts)
    return Line(text, left, right, row.bottom, row.size, row.points, row.broken, cells, len(row.pieces) > 1)


def document(pages: list[list[Line]], outline: Iterable[Entry] = ()) -> list[list[str]]:
    """The text of each page, line by line, from its lines in reading order."""
    shown = [[line for line in page if line.text] for page in _without_edges(pages)]
    _join_words(shown)
    shown = _with_headings(shown, outline)
    return [_paragraphs(page) for page in shown]


def _without_edges(pages: list[list[Line]]) -> Iterator[list[Line]]:
    """Pages without the headers, footers and page numbers that one of the two pages before has: the first stays.

    A page's number goes up with the page, alone, among words for it, or beside a header.
    """
    last: dict[str, tuple[int, float]] = {}
    for number, page in enumerate(pages):
        dropped: set[int] = set()
        if len(page) >= EDGE_PAGE_ROWS_MIN:
            order = sorted(range(len(page)), key=lambda at: page[at].bottom)
            for at in (*order[:EDGE_ROWS], *order[-EDGE_ROWS:]):
                line = page[at]
                for key in _edge_keys(line, number):
                    before, bottom = last.get(key, (-EDGE_PAGES - 1, 0.0))
                    if number - before <= EDGE_PAGES and abs(bottom - line.bottom) < EDGE_SHIFT:
                        dropped.add(at)
                    last[key] = number, line.bottom
        yield [line for at, line in enumerate(page) if at not in dropped]


def _edge_keys(line: Line, page: int) -> set[str]:
    """A line as it is and, where it may be a page's number, with that told by how far it is from the page's own."""
    text = line.text.replace(" | ", " ")
    if _ROMAN.fullmatch(text):
        return {f"\0{_roman(text) - page}"}
    numbers = list(_NUMBER.finditer(text))
    if not line.parted and not _PAGE_WORDS.issuperset(_LETTERS.findall(text.lower())):
        return {text}  # `Exercise 3` is a page's own
    ends = [found for found in (*numbers[:1], *numbers[-1:]) if len(found[0]) < 6]
    return {text, *(f"{text[: found.start()]}\0{int(found[0]) - page}{text[found.end() :]}" for found in ends)}


def _roman(text: str) -> int:
    values = [_ROMANS[letter] for letter in text]
    return sum(-one if one < other else one for one, other in zip_longest(values, values[1:], fillvalue=0))


def _join_words(pages: list[list[Line]]) -> None:
    """Puts each word that a line's end broke together, on the line where it begins."""
    places = [(page, at) for page in range(len(pages)) for at in range(len(pages[page]))]
    broken = []
    for here, there in zip_longest(places, places[1:]):
        line = pages[here[0]][here[1]]
        if there and _is_broken(line, pages[there[0]][there[1]]):
            broken.append((here, there))
        elif line.broken:
            pages[here[0]][here[1]] = line._replace(text=line.text + "-", broken=False)
    if not broken:
        return
    words = Counter(_PART.findall("\n".join(line.text for page in pages for line in page).lower()))
    for (page, at), (next_page, next_at) in reversed(broken):
        line, following = pages[page][at], pages[next_page][next_at]
        first, rest = following.text.partition(" ")[::2]
        start = line.text[:-1] if line.text.endswith(_HYPHENS) else line.text
        if len(first) > WORD_CHARS_MAX:
            pages[page][at] = line._replace(text=start + "-", broken=False)
            continue
        hyphen = "-" if _is_real(start, first, words) else ""
        pages[page][at] = line._replace(text=f"{start}{hyphen}{first}", broken=False)
        pages[next_page][next_at] = following._replace(text=rest)


def _is_broken(line: Line, following: Line) -> bool:
    if following.cells or not _FIRST_PART.match(following.text):
        return False
    if line.broken:
        return True
    return (
        len(line.text) > 2 and line.text.endswith(_HYPHENS) and line.text[-2].isalpha() and following.text[0].islower()
    )


def _is_real(start: str, rest: str, words: Counter[str]) -> bool:
    """Whether the hyphen between the two halves of a word is one that stands there also within a line."""
    first, second = _LAST_PART.search(start), _FIRST_PART.match(rest)
    if not first or not second or not first[0][-1].isalpha():
        return True
    one, other = first[0].lower(), second[0].lower()
    joined, hyphened = words[one + other], words[f"{one}-{other}"]
    if joined != hyphened:
        return hyphened > joined
    if second[0][0].isupper() and not first[0].isupper():
        return True
    return "-" in first[0] or one in _BEFORE or other in _AFTER


def _with_headings(pages: list[list[Line]], outline: Iterable[Entry]) -> list[list[Line]]:
    """Pages, their headings marked: what the outline names, and lines of larger letters that are surely headings."""
    chars: Counter[float] = Counter()
    for page in pages:
        for line in page:
            chars[_rounded(line.points)] += len(line.text)
    if not chars:
        return pages
    body = max(chars, key=lambda size: (chars[size], -size))
    named: dict[int, dict[str, int]] = {}
    for entry in outline:
        of_page = named.setdefault(entry.page, {})
        if len(of_page) < NAMED_MAX and (title := _plain(entry.title)):
            of_page.setdefault(title, min(entry.level, LEVELS))
    found = [_headings_of(page, named.get(number, {}), body * HEADING_SIZE) for number, page in enumerate(pages)]
    by_size: dict[float, int] = {}
    for page in found:
        for line in page:
            if line.level > 0:
                size = _rounded(line.points)
                by_size[size] = min(by_size.get(size, LEVELS), line.level)
    sizes = sorted({_rounded(line.points) for page in found for line in page if line.level < 0}, reverse=True)
    ranks = {size: min(rank, LEVELS) for rank, size in enumerate(sizes, 1)} | by_size
    return [
        [line._replace(level=ranks[_rounded(line.points)]) if line.level < 0 else line for line in page]
        for page in found
    ]


def _rounded(size: float) -> float:
    return round(size * 2) / 2


def _headings_of(page: list[Line], named: dict[str, int], large: float) -> list[Line]:
    """A page's lines; a heading over several becomes one, its level the outline's, or -1 where its size tells it."""
    found: list[Line] = []
    at = 0
    while at < len(page):
        line = page[at]
        end = at + 1
        while line.points >= large and end < len(page) and _goes_on(page[end - 1], page[end]):
            end += 1
        if named and (told := _named(page, at, named)):
            count, level = told
        elif line.points >= large and end - at <= HEADING_ROWS_MAX and _may_head(page[at:end]):
            count, level = end - at, -1
        else:
            found.extend(page[at:end])
            at = end
            continue
        text = " ".join(part.text for part in page[at : at + count] if part.text)
        found.append(page[at + count - 1]._replace(text=text, level=level, size=line.points))
        at += count
    return found


def _named(page: list[Line], at: int, named: dict[str, int]) -> tuple[int, int] | None:
    """How many lines from `at` on are a heading that the outline names, and its level."""
    text = ""
    for count, line in enumerate(page[at : at + HEADING_ROWS_MAX], 1):
        text += " " + line.text
        if line.cells or len(text) > 2 * HEADING_CHARS_MAX:
            return None
        plain = _plain(text)
        if level := named.get(plain):
            return count, level
        if not any(title.startswith(plain) for title in named):
            return None
    return None


def _plain(title: str) -> str:
    """A title as it is compared: no numbering, letters and digits alone."""
    title = " ".join(title.split())
    return "".join(filter(str.isalnum, _NUMBERING.sub("", title) or title)).casefold()


def _goes_on(line: Line, following: Line) -> bool:
    """Whether two lines are of one size and close to each other."""
    distance = line.bottom - following.bottom
    return abs(line.points - following.points) < 0.5 and 0 < distance < 1.5 * line.size and not following.cells


def _may_head(run: list[Line]) -> bool:
    text = " ".join(line.text for line in run)
    return (
        not run[0].cells
        and len(text) <= HEADING_CHARS_MAX
        and _is_of_words(text)
        and not text.endswith((",", ";", "."))
        and not _BULLET.match(text)
    )


def _is_of_words(text: str) -> bool:
    """Whether it is no formula."""
    letters = sum(map(str.isalpha, text))
    return (
        letters >= 2
        and "=" not in text
        and len(text) - text.count(" ") - sum(map(str.isalnum, text)) <= letters / 4 + 2
    )


def _paragraphs(page: list[Line]) -> list[str]:
    """The text of a page: blank lines between paragraphs and about headings; lines of Chinese and Japanese run on."""
    steps = [(a.bottom - b.bottom) / a.size for a, b in pairwise(page) if a.size > 0]
    steps = [step for step in steps if 0.5 < step < 2.5]
    usual = PARAGRAPH_GAP * (median(steps) if steps else 1.0)
    margin = max((line.right for line in page), default=0.0)
    found: list[str] = []
    last: Line | None = None
    for line in page:
        if not line.text:
            continue
        text = _clean(line.text)
        if last and (line.level or last.level or _is_apart(last, line, usual)):
            found.append("")
        elif last and found and _runs_on(last, line, margin):
            found[-1] += text
            last = line
            continue
        found.append("#" * line.level + " " + text if line.level else _unmarked(text))
        last = line
    return found


def _is_apart(last: Line, line: Line, usual: float) -> bool:
    if last.cells and line.cells:
        return False
    step = (last.bottom - line.bottom) / max(last.size, line.size, 1.0)
    return step > usual or (last.cells != line.cells and step > TABLE_GAP)


def _runs_on(last: Line, line: Line, margin: float) -> bool:
    """Whether a line of Chinese or Japanese is full and goes on in the next."""
    if last.cells or line.cells or not _CJK_END.search(last.text) or not _CJK_START.match(line.text):
        return False
    full = max(line.right, last.right) - last.right < 2.5 * last.size
    return (
        full and abs(last.size - line.size) < 1.0 and (last.right > margin - 3 * last.size or line.right >= last.right)
    )


def plain(text: str) -> list[str]:
    """The lines of a page of which no more is known."""
    return [_unmarked(line) for each in text.split("\n") if (line := _clean(" ".join(each.split())))]


def _clean(text: str) -> str:
    """A line without what is not seen; spaces between Chinese or Japanese letters, and dots that lead the eye, go."""
    text = _BULLET.sub("-", text, count=1) if _BULLET.match(text) else text
    if not (text.isascii() and text.isprintable()):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")  # two halves become one again
        text = _CJK_SPACE.sub("", seen(_PRIVATE.sub("", text).replace("\u00ad", "-"))).strip()
    return _LEADERS.sub(" … ", text).strip() if "..." in text or ". ." in text else text


def _unmarked(text: str) -> str:
    """A line that is no heading, fence or front matter in Markdown, whatever it begins with."""
    return "    " + text if _MARKUP.match(text) else text
