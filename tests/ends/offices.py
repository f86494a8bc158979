"""Documents of every kind but PDF and Word, written by hand, so that a test knows what is in them."""

import io
import zipfile
from collections.abc import Mapping, Sequence

_ODF = "urn:oasis:names:tc:opendocument:xmlns:"
_ODF_SPACES = " ".join(
    f'xmlns:{prefix}="{_ODF}{name}:1.0"'
    for prefix, name in {
        "office": "office",
        "text": "text",
        "table": "table",
        "draw": "drawing",
        "style": "style",
        "form": "form",
        "fo": "xsl-fo-compatible",
        "svg": "svg-compatible",
    }.items()
)
_OOXML = "http://schemas.openxmlformats.org"
_RELATION = f"{_OOXML}/officeDocument/2006/relationships"
_SPACES = (
    f'xmlns:p="{_OOXML}/presentationml/2006/main" xmlns:a="{_OOXML}/drawingml/2006/main" xmlns:r="{_RELATION}"'
    f' xmlns:xdr="{_OOXML}/drawingml/2006/spreadsheetDrawing"'
)
_SHEET = f'xmlns="{_OOXML}/spreadsheetml/2006/main" xmlns:r="{_RELATION}"'


def zipped(parts: Mapping[str, str | bytes]) -> bytes:
    """An archive of those parts."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return file.getvalue()


def parts(data: bytes) -> dict[str, bytes]:
    """The parts of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def odt(
    body: str, *, automatic: str = "", master: str = "", title: str = "", manifest: str = "", soft: bool = False
) -> bytes:
    """An OpenDocument text: what stands in office:text, and the styles."""
    pages = ' text:use-soft-page-breaks="true"' if soft else ""
    return zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "META-INF/manifest.xml": f"<manifest>{manifest}</manifest>",
            "content.xml": f"<office:document-content {_ODF_SPACES} xmlns:dc='http://purl.org/dc/elements/1.1/'>"
            f"<office:automatic-styles>{automatic}</office:automatic-styles>"
            f"<office:body><office:text{pages}>{body}</office:text></office:body></office:document-content>",
            "styles.xml": f"<office:document-styles {_ODF_SPACES}><office:master-styles>{master}</office:master-styles>"
            "</office:document-styles>",
            "meta.xml": f"<m xmlns:dc='http://purl.org/dc/elements/1.1/'><dc:title>{title}</dc:title></m>",
        }
    )


def epub(
    pages: Mapping[str, str | bytes], *, spine: Sequence[str] = (), title: str = "", encryption: str = ""
) -> bytes:
    """A book of those pages; `spine`: their order, which is that of `pages` where none is given."""
    names = list(pages)
    items = "".join(
        f'<item id="i{number}" href="{name.replace(" ", "%20")}" media-type="application/xhtml+xml"/>'
        for number, name in enumerate(names)
    )
    order = "".join(f'<itemref idref="i{names.index(name)}"/>' for name in spine or names)
    container = '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
    locked = {"META-INF/encryption.xml": encryption} if encryption else {}
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": container,
            **locked,
            "OEBPS/book.opf": "<?xml version='1.0'?><package xmlns:dc='http://purl.org/dc/elements/1.1/'><metadata>"
            f"<dc:title>{title}</dc:title></metadata><manifest>{items}</manifest><spine>{order}</spine></package>",
            **{f"OEBPS/{name}": page for name, page in pages.items()},
        }
    )


def xhtml(body: str, *, head: str = "") -> str:
    """A page of a book as most are written."""
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml">'
        f"<head><title>page</title>{head}</head><body>{body}</body></html>"
    )


def relations(*found: tuple[str, str, str]) -> str:
    """Which parts a part names: id, kind, target."""
    each = "".join(f'<Relationship Id="{id}" Type="{_RELATION}/{kind}" Target="{to}"/>' for id, kind, to in found)
    return f"<Relationships>{each}</Relationships>"


def _core(title: str) -> str:
    return f"<c xmlns:dc='http://purl.org/dc/elements/1.1/'><dc:title>{title}</dc:title></c>"


def pptx(slides: Sequence[str], *, beside: Mapping[str, str] | None = None, title: str = "") -> bytes:
    """A presentation: each slide's shapes. They are numbered from the last, so that names do not tell the order."""
    names = [f"slides/slide{len(slides) - number}.xml" for number in range(len(slides))]
    listed = "".join(f'<p:sldId id="{256 + number}" r:id="r{number}"/>' for number in range(len(slides)))
    return zipped(
        {
            "_rels/.rels": relations(
                ("a", "officeDocument", "ppt/presentation.xml"), ("b", "core-properties", "core.xml")
            ),
            "core.xml": _core(title),
            "ppt/presentation.xml": f"<p:presentation {_SPACES}><p:sldIdLst>{listed}</p:sldIdLst></p:presentation>",
            "ppt/_rels/presentation.xml.rels": relations(
                *((f"r{number}", "slide", name) for number, name in enumerate(names)),
                ("people", "commentAuthors", "authors.xml"),
            ),
            "ppt/authors.xml": f'<p:cmAuthorLst {_SPACES}><p:cmAuthor id="0" name="Ann"/></p:cmAuthorLst>',
            **{f"ppt/{name}": slide(shapes) for name, shapes in zip(names, slides, strict=True)},
            **(beside or {}),
        }
    )


def slide(shapes: str) -> str:
    """A part that holds shapes: a slide, its notes, a sheet's drawing."""
    return f"<p:sld {_SPACES}><p:cSld><p:spTree>{shapes}</p:spTree></p:cSld></p:sld>"


def shape(*paragraphs: str, kind: str | None = None) -> str:
    """A shape with text; `kind`: the placeholder's that it fills."""
    holds = "" if kind is None else f'<p:nvPr><p:ph type="{kind}"/></p:nvPr>' if kind else "<p:nvPr><p:ph/></p:nvPr>"
    each = "".join(f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>" for text in paragraphs)
    return f"<p:sp><p:nvSpPr>{holds}</p:nvSpPr><p:txBody>{each}</p:txBody></p:sp>"


def table(*rows: Sequence[str]) -> str:
    """A table on a slide."""
    cells = (
        "".join(f"<a:tc><a:txBody><a:p><a:r><a:t>{c}</a:t></a:r></a:p></a:txBody></a:tc>" for c in row) for row in rows
    )
    whole = "".join(f"<a:tr>{row}</a:tr>" for row in cells)
    return f"<p:graphicFrame><a:graphic><a:tbl>{whole}</a:tbl></a:graphic></p:graphicFrame>"


def xlsx(
    sheets: Mapping[str, str], *, strings: Sequence[str] = (), beside: Mapping[str, str] | None = None, title: str = ""
) -> bytes:
    """A workbook: each sheet's rows as SpreadsheetML. Style 1 is a date, 2 a date and time, 3 a duration."""
    number = {name: at + 1 for at, name in enumerate(sheets)}
    listed = "".join(f'<sheet name="{name}" sheetId="{at}" r:id="s{at}"/>' for name, at in number.items())
    formats = "".join(f'<xf numFmtId="{kind}"/>' for kind in (0, 14, 22, 46))
    return zipped(
        {
            "[Content_Types].xml": "<Types/>",
            "_rels/.rels": relations(("a", "officeDocument", "xl/workbook.xml"), ("b", "core-properties", "core.xml")),
            "core.xml": _core(title),
            "xl/workbook.xml": f"<workbook {_SHEET}><sheets>{listed}</sheets></workbook>",
            "xl/_rels/workbook.xml.rels": relations(
                *((f"s{at}", "worksheet", f"worksheets/sheet{at}.xml") for at in number.values()),
                ("t", "sharedStrings", "sharedStrings.xml"),
                ("u", "styles", "styles.xml"),
            ),
            "xl/sharedStrings.xml": f"<sst {_SHEET}>{''.join(f'<si><t>{text}</t></si>' for text in strings)}</sst>",
            "xl/styles.xml": f"<styleSheet {_SHEET}><cellXfs>{formats}</cellXfs></styleSheet>",
            **{
                f"xl/worksheets/sheet{at}.xml": f"<worksheet {_SHEET}><sheetData>{sheets[name]}</sheetData></worksheet>"
                for name, at in number.items()
            },
            **(beside or {}),
        }
    )


def row(number: int, *cells: str | float, column: int = 0) -> str:
    """A sheet's row of plain texts and numbers."""
    each = []
    for at, value in enumerate(cells, column):
        place = f"{chr(65 + at)}{number}"
        if isinstance(value, str):
            each.append(f'<c r="{place}" t="inlineStr"><is><t>{value}</t></is></c>')
        else:
            each.append(f'<c r="{place}"><v>{value!r}</v></c>')
    return f'<row r="{number}">{"".join(each)}</row>'


def rtf(body: str, *, head: str = "") -> bytes:
    """A document in RTF."""
    fonts = r"{\fonttbl{\f0\fcharset0 Arial;}{\f1\fcharset204 Arial Cyr;}{\f2\fcharset128 Mincho;}}"
    return (r"{\rtf1\ansi\ansicpg1252\deff0" + fonts + head + body + "}").encode("latin-1")


def mail(headers: Mapping[str, str], body: str | bytes) -> bytes:
    """A mail, or a part of one: its headers in order, its body as it is sent."""
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return head.encode() + b"\r\n" + (body.encode() if isinstance(body, str) else body)


def multipart(kind: str, *children: bytes, boundary: str = "=_part", headers: Mapping[str, str] | None = None) -> bytes:
    """Several parts as one."""
    told = {**(headers or {}), "Content-Type": f'multipart/{kind}; boundary="{boundary}"'}
    mark = f"--{boundary}".encode()
    return mail(told, b"".join(mark + b"\r\n" + child + b"\r\n" for child in children) + mark + b"--\r\n")
