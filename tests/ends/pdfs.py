"""PDFs for tests: objects written by hand, which say exactly what is in the file, and pages laid out with reportlab."""

import io
import zlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

WIDTH: Final = 595
HEIGHT: Final = 842
FONT: Final = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"


class Text(NamedTuple):
    """Text at a place, in points from the lower left."""

    x: float
    y: float
    text: str
    size: float = 10


def raw(objects: Sequence[bytes], trailer: bytes = b"", root: int = 1) -> bytes:
    """A file of these objects, numbered from 1 on; the catalog is the one that `root` names."""
    data = b"%PDF-1.7\n"
    places = []
    for number, each in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n" % number + each + b"\nendobj\n"
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return (
        data
        + b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
        + table
        + b"trailer<</Size %d/Root %d 0 R%s>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, root, trailer, len(data))
    )


def stream(data: bytes, more: bytes = b"") -> bytes:
    """A stream object."""
    return b"<</Length %d%s>>stream\n" % (len(data), more) + data + b"\nendstream"


def packed(parts: Iterable[bytes], more: bytes = b"") -> bytes:
    """A stream object of compressed parts."""
    press = zlib.compressobj(9)
    return stream(b"".join(map(press.compress, parts)) + press.flush(), b"/Filter/FlateDecode" + more)


def string(text: str) -> bytes:
    """A string object, as UTF-16."""
    return b"<" + ("\ufeff" + text).encode("utf-16-be").hex().encode() + b">"


def drawn(texts: Iterable[Text], mode: int = 0) -> bytes:
    """What draws texts, in Latin letters; mode 3 is text that is not seen."""
    shown = []
    for each in texts:
        letters = each.text.encode("cp1252").replace(b"\\", rb"\\").replace(b"(", rb"\(").replace(b")", rb"\)")
        shown.append(b"BT %d Tr /F1 %g Tf %g %g Td (%s) Tj ET" % (mode, each.size, each.x, each.y, letters))
    return b"\n".join(shown)


def document(
    pages: Sequence[Sequence[Text] | bytes],
    *,
    catalog: bytes = b"",
    of_page: bytes = b"",
    resources: bytes = b"",
    more: Sequence[bytes] = (),
    trailer: bytes = b"",
    font: bytes = FONT,
) -> bytes:
    """A file of pages, each its texts or what draws it. The objects in `more` are numbered from 4 on."""
    first = 4 + len(more)
    kids = b" ".join(b"%d 0 R" % (first + 2 * number) for number in range(len(pages)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R%s>>" % catalog,
        b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, len(pages)),
        font,
        *more,
    ]
    for page in pages:
        objects.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 %d %d]/Resources<</Font<</F1 3 0 R>>%s>>/Contents %d 0 R%s>>"
            % (WIDTH, HEIGHT, resources, len(objects) + 2, of_page)
        )
        objects.append(stream(page if isinstance(page, bytes) else drawn(page)))
    return raw(objects, trailer)


def lines(texts: Iterable[str], *, x: float = 60, top: float = 780, step: float = 14, size: float = 10) -> list[Text]:
    """Texts one beneath the other."""
    return [Text(x, top - step * number, text, size) for number, text in enumerate(texts)]


def two_columns(rows: int) -> bytes:
    """A page whose two columns are drawn row by row beneath one title."""
    texts = [Text(60, HEIGHT - 50, "A title across the page")]
    for row in range(rows):
        texts.append(Text(60, HEIGHT - 80 - 14 * row, f"left column sentence number {row}"))
        texts.append(Text(320, HEIGHT - 80 - 14 * row, f"right column sentence number {row}"))
    return document([texts])


def with_form(fields: dict[str, str], ticked: Sequence[str] = (), notes: Sequence[tuple[str, str, str]] = ()) -> bytes:
    """A page of text with a form: fields of text, ticked boxes, and notes, each its kind, author and contents."""
    widgets = [
        b"<</Type/Annot/Subtype/Widget/FT/Tx/T%s/V%s/Rect[50 500 200 520]>>" % (string(name), string(value))
        for name, value in fields.items()
    ]
    widgets += [
        b"<</Type/Annot/Subtype/Widget/FT/Btn/T%s/V/Yes/AS/Yes/AP<</N<</Yes 4 0 R>>>>/Rect[50 400 60 410]>>"
        % string(name)
        for name in ticked
    ]
    others = [
        b"<</Type/Annot/Subtype/%s/T%s/Contents%s/Rect[50 300 60 310]>>" % (kind.encode(), string(author), string(said))
        for kind, author, said in notes
    ]
    numbers = [b"%d 0 R" % (5 + at) for at in range(len(widgets) + len(others))]
    return document(
        [lines(["Please fill this in."])],
        more=[stream(b"", b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]"), *widgets, *others],
        catalog=b"/AcroForm<</Fields[%s]>>" % b" ".join(numbers[: len(widgets)]),
        of_page=b"/Annots[%s]" % b" ".join(numbers),
    )


def with_letters(codes: dict[str, str], text: str) -> bytes:
    """A page that draws `text`, in which Latin letters stand for any characters."""
    table = "".join(f"<{ord(code):02x}> <{means.encode('utf-16-be').hex()}>\n" for code, means in codes.items())
    head = "/CIDInit/ProcSet findresource begin 12 dict begin begincmap\n"
    span = "1 begincodespacerange <00> <ff> endcodespacerange\n"
    cmap = f"{head}{span}{len(codes)} beginbfchar\n{table}endbfchar endcmap end end"
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode 4 0 R>>"
    return document([[Text(60, 700, text)]], font=font, more=[stream(cmap.encode())])


def encrypted(data: bytes, user: str) -> bytes:
    """The same file, which opens with a password; with no `user` it opens, and may not be changed."""
    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(data)))
    writer.encrypt(user, "owner", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def laid_out(parts: Sequence[tuple[str, str] | list[list[str]]], title: str | None = None) -> bytes:
    """What reportlab makes of paragraphs, each a style's name and its text, and tables; style `page` is a new page."""
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import PageBreak, Paragraph, SimpleDocTemplate, Table

    styles = getSampleStyleSheet()
    story = []
    for part in parts:
        if isinstance(part, list):
            story.append(Table(part))
        else:
            story.append(PageBreak() if part[0] == "page" else Paragraph(part[1], styles[part[0]]))
    out = io.BytesIO()
    SimpleDocTemplate(out, pagesize=A4, title=title).build(story)
    return out.getvalue()


def in_cjk(font: str, texts: Sequence[str], *, width: float, size: float = 12) -> bytes:
    """A paragraph that reportlab breaks into lines at `width`, in one of the fonts that every reader has."""
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont
    from reportlab.pdfgen import canvas

    pdfmetrics.registerFont(UnicodeCIDFont(font))
    out = io.BytesIO()
    page = canvas.Canvas(out)
    page.setFont(font, size)
    y = 780.0
    for text in texts:
        row = ""
        for letter in [*text, ""]:
            if row and (not letter or page.stringWidth(row + letter, font, size) > width):
                page.drawString(60, y, row)
                y, row = y - 1.4 * size, ""
            row += letter
        y -= 1.4 * size
    page.save()
    return out.getvalue()
