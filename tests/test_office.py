"""OpenDocument, RTF, EPUB, PowerPoint, Excel and mail read as a person reads them, and what hostile ones cost."""

import json
import random
import signal
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from quopri import encodestring
from types import FrameType

import pytest

from ends import offices
from ends.offices import epub, mail, multipart, odt, parts, pptx, relations, row, rtf, shape, xhtml, xlsx, zipped
from lnk.documents.cage import Cage
from lnk.documents.content import (
    BOMB,
    DAMAGED,
    ENCRYPTED,
    KINDS,
    NO_TEXT,
    TEXT_TOO_LARGE,
    TOO_MUCH_MEMORY,
    Content,
    LeftOut,
)
from lnk.documents.mail import HEADERS_TOO_LARGE

OFFICE = ("odt", "rtf", "epub", "pptx", "xlsx", "eml")
HANGS_S = 300  # for all mutations of one kind, which take some seconds


def read(kind: str, data: bytes) -> Content:
    """What its reader says, in this process."""
    content: Content = import_module(KINDS[kind].module).read(data)
    return content


def caged(kind: str, data: bytes, program: str | None = None) -> Content:
    """What comes out of a confined child, as it is for the engine."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return Cage(program).read(file.fileno(), kind)


def left_out(kind: str, data: bytes) -> str:
    with pytest.raises(LeftOut) as error:
        caged(kind, data)
    return str(error.value)


# ---------------------------------------------------------------- what is in one of each


ODT = odt(
    '<text:tracked-changes><text:changed-region><text:deletion><text:p text:style-name="P">struck out</text:p>'
    "</text:deletion></text:changed-region></text:tracked-changes>"
    '<text:p text:style-name="T">The survey</text:p><text:h text:outline-level="2">Land</text:h>'
    "<text:p>Plot<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>By hand.</text:p>"
    "</text:note-body></text:note> one<text:s text:c='2'/>is<text:tab/>ours<office:annotation><dc:creator>Ann"
    "</dc:creator><dc:date>2024-01-01</dc:date><text:p>Is it?</text:p></office:annotation>,<text:line-break/>"
    "all of\n  it."
    "<draw:frame><draw:text-box><text:p>In a box</text:p></draw:text-box><svg:desc>a box</svg:desc></draw:frame>"
    "</text:p>"
    "<text:list><text:list-item><text:p>north</text:p><text:list><text:list-item><text:p>hill</text:p></text:list-item>"
    "</text:list></text:list-item><text:list-item><text:p>south</text:p></text:list-item></text:list>"
    '<table:table><table:table-row><table:table-cell table:number-columns-repeated="2"><text:p>a</text:p>'
    "<text:p>b</text:p></table:table-cell><table:covered-table-cell/><table:table-cell><text:p>c</text:p>"
    '</table:table-cell><table:table-cell table:number-columns-repeated="1000000000"/></table:table-row></table:table>'
    '<office:forms><form:text form:name="Tenant" form:current-value="Bo Li"/></office:forms>'
    '<text:p text:style-name="B">Page two <text:soft-page-break/>and three.</text:p>',
    automatic='<style:style style:name="T" style:parent-style-name="Title"/>'
    '<style:style style:name="B"><style:paragraph-properties fo:break-before="page"/></style:style>',
    master="<style:master-page><style:header><text:p>Acme</text:p></style:header><style:header-first><text:p>Acme</text:p>"
    "</style:header-first><style:footer><text:p>Foot</text:p></style:footer></style:master-page>",
    title="Survey of land",
    soft=True,
)
ODT_TEXT = """\
Acme

# The survey

## Land

Plot[^1] one  is\tours,
all of it.

[^1]: By hand.

(comment by Ann: Is it?)

In a box

- north
- hill
- south

a b | a b | c

Tenant: Bo Li

Page two and three.

Foot
"""
RTF = rtf(
    r"{\header\pard Acme\par}{\footer\pard Foot\par}"
    r"\pard\s1 Land\par\pard\s0 Plot{\*\footnote\pard\s1 By {\i hand}.} \'e9{\f1\'ee\'e4}{\f2\'82\'a0a}"
    r" \u8364 ?\u-10179?\u-8704?"
    r"{\deleted gone}{\v hidden}{\revised new}\~x\line y{\*\atnauthor Ann}{\*\annotation{\*\atndate 1}Is it?}\par"
    r"{\listtext\pard 1.\tab}north\par{\listtext \'b7\tab}south\par"
    r"\trowd\cellx1\cellx2\intbl a\par b\cell\cell c\cell\row\trowd\intbl d\cell\row\pard"
    r"{\shp{\*\shpinst{\sp{\sn x}{\sv y}}{\shptxt In a box}}{\shprslt In a box}}{\pict\bin5 }}}}}}{\*\unknown x}"
    r"{\field{\*\fldinst HYPERLINK \\l x}{\fldrslt linked}} {\upr{old}{\*\ud{n\u233 e}}}w\par",
    head=r"{\stylesheet{\s0 Normal;}{\s1 heading 1;}}{\info{\title The \'e9tude}{\author Bo}}",
)
RTF_TEXT = """\
Acme

# Land

Plot[^1] éодあa €😀new\xa0x
y

[^1]: By hand.

(comment by Ann: Is it?)

1. north
- south

a b |  | c
d

linked néw

In a box

Foot
"""
EPUB = epub(
    {
        "two.xhtml": xhtml("<p>Chapter\n two.</p>").encode("utf-16"),
        "the one.xhtml": xhtml(
            "<h1>One&nbsp;&amp; only</h1><p>Th<b>in</b>gs &mdash; a <!-- not -->"
            " <ruby>漢<rt>かん</rt></ruby>字<br/>line</p>"
            "<ul><li>a<ol><li>b</li></ol></li><li><p>c</p><p>d</p></li></ul>"
            "<table><tr><th>x</th><td>y<br/>z</td></tr></table>"
            "<pre>one\n  two</pre><script>no()</script><p><![CDATA[<raw>]]></p>",
            head="<style>p { x }</style><script src='x'/>",
        ),
        "unread.xhtml": xhtml("not in the spine"),
    },
    spine=["the one.xhtml", "two.xhtml"],
    title="A book",
)
EPUB_TEXT = """\
# One\xa0& only

Things — a 漢字
line

- a
- b
- c

d

x | y z

one
  two

<raw>

Chapter two.
"""
PPTX = pptx(
    [
        shape("Anyone", kind="subTitle") + shape("The deck", kind="ctrTitle") + shape("7", kind="sldNum"),
        shape("Plan", kind="title") + shape("alpha", "beta", kind="") + offices.table(["a", "b"], ["c", ""]),
        "",
        shape("Last"),
    ],
    beside={
        "ppt/slides/_rels/slide3.xml.rels": relations(
            ("a", "notesSlide", "../notes/n.xml"), ("b", "comments", "../c.xml"), ("c", "slide", "slide1.xml")
        ),
        "ppt/notes/n.xml": offices.slide(shape("Slowly.", "Twice.", kind="body") + shape("2", kind="sldNum")),
        "ppt/c.xml": '<c><cm authorId="0"><text>Is it?</text></cm></c>',
    },
    title="Deck",
)
PPTX_TEXT = """\
## The deck

Anyone

## Plan

- alpha
- beta

a | b
c

Notes: Slowly.

Twice.

(comment by Ann: Is it?)

Last
"""
XLSX = xlsx(
    {
        "Äpfel": row(2, "a", 3.0, 0.1 + 0.2, 1234567890123456.0, -0.5, column=1)
        + '<row r="4"><c r="B4" t="s"><v>0</v></c><c r="C4" t="b"><v>1</v></c>'
        '<c r="D4" t="e"><f>1/0</f><v>#DIV/0!</v></c>'
        '<c r="E4"><f>SUM(1,2)</f><v>3</v></c></row>'
        '<row r="5"><c r="B5" s="1"><v>45351</v></c><c r="C5" s="2"><v>45351.5</v></c>'
        '<c r="D5" s="3"><v>1.25</v></c></row>',
        "Empty": "",
        "Deep": row(1_048_576, "last"),
    },
    strings=["shared\ntext"],
    beside={
        "xl/worksheets/_rels/sheet1.xml.rels": relations(("a", "comments", "../c.xml"), ("b", "drawing", "../d.xml")),
        "xl/c.xml": "<c><authors><author>Ann</author><author>tc=1</author></authors><commentList>"
        '<comment ref="B2" authorId="0"><text><r><t>Is </t></r><r><t>it?</t></r></text></comment>'
        '<comment ref="B3" authorId="1"><text><t>a thread</t></text></comment></commentList></c>',
        "xl/d.xml": offices.slide(shape("In a box")),
    },
    title="Book",
)
XLSX_TEXT = """\
## Äpfel

a | 3 | 0.3 | 1234567890123456 | -0.5
shared text | TRUE | #DIV/0! | 3
2024-02-29 | 2024-02-29 12:00 | 30:00:00

(comment by Ann on B2: Is it?)

In a box

## Deep

last
"""
_PRINTABLE = {"Content-Transfer-Encoding": "quoted-printable"}
_HEADERS = {
    "From": "=?utf-8?q?J=C3=B6?= <jo@example.org>",
    "To": "a@example.org,\r\n b@example.org",
    "Received": "from nowhere",
    "Date": "Thu, 29 Feb 2024 12:00:00 +0000",
    "Subject": "=?utf-8?b?" + b64encode("Grüße".encode()[:3]).decode() + "?=\r\n =?UTF-8?B?"
    + b64encode("Grüße".encode()[3:]).decode() + "?= again",
}  # fmt: skip
EML = multipart(
    "mixed",
    multipart(
        "alternative",
        mail(
            {"Content-Type": "text/plain; charset=iso-8859-1; format=flowed", **_PRINTABLE},
            encodestring("One long \nline é.\n\n> quoted \n> text\n-- \nJo".encode("latin-1")),
        ),
        multipart(
            "related",
            mail({"Content-Type": "text/html"}, "<p>One long line in HTML"),
            mail({"Content-Type": "image/png; name=logo.png"}, "x"),
            boundary="inner",
        ),
        boundary="=_part2",
    ),
    mail({"Content-Type": "application/pdf; name=old.pdf", "Content-Disposition":
          "attachment; filename*0*=utf-8''le%C3%A1; filename*1=se.pdf"}, "JVBERg=="),
    mail({"Content-Type": "message/rfc822"}, mail({"Subject": "Within"}, "inner text")),
    headers=_HEADERS,
)  # fmt: skip
EML_TEXT = """\
From: Jö <jo@example.org>
To: a@example.org, b@example.org
Date: Thu, 29 Feb 2024 12:00:00 +0000
Subject: Grüße again

One long line é.

> quoted text
--
Jo

Subject: Within

inner text

Attachment: leáse.pdf
"""
WHOLE = {
    "odt": (ODT, Content(ODT_TEXT, [1, 24, 24], "Survey of land")),
    "rtf": (RTF, Content(RTF_TEXT, [], "The étude")),
    "epub": (EPUB, Content(EPUB_TEXT, [], "A book")),
    "pptx": (PPTX, Content(PPTX_TEXT, [1, 5, 19, 19], "Deck")),
    "xlsx": (XLSX, Content(XLSX_TEXT, [], "Book")),
    "eml": (EML, Content(EML_TEXT, [], "Grüße again")),
}


@pytest.mark.requirement("INDEX-4")
@pytest.mark.parametrize("kind", OFFICE)
def test_a_document_comes_out_of_its_child_as_a_person_reads_it(kind: str) -> None:
    """Cases docx-02, docx-03, docx-04 and docx-13, in these kinds: boxes, changes and notes once, words whole."""
    data, content = WHOLE[kind]
    assert caged(kind, data) == content


WORDS = [f"{stem}{number}" for number in range(400) for stem in ("word", "größe", "文書", "слово", "قلم")]
MANY: dict[str, Callable[[list[str]], bytes]] = {
    "odt": lambda lines: odt("".join(f"<text:p>{line}</text:p>" for line in lines)),
    "rtf": lambda lines: rtf("".join(rf"\pard {_escaped(line)}\par " for line in lines)),
    "epub": lambda lines: epub({f"{number}.xhtml": xhtml(f"<p>{line}</p>") for number, line in enumerate(lines)}),
    "pptx": lambda lines: pptx([shape(line) for line in lines]),
    "xlsx": lambda lines: xlsx({"Sheet": "".join(row(at, *line.split()) for at, line in enumerate(lines, 1))}),
    "eml": lambda lines: mail({"Content-Type": "text/plain; charset=utf-8"}, "\r\n".join(lines)),
}


def _escaped(text: str) -> str:
    units = text.encode("utf-16-le")
    numbers = [int.from_bytes(units[at : at + 2], "little", signed=True) for at in range(0, len(units), 2)]
    return "".join(chr(number) if 0 < number < 128 else rf"\u{number} ?" for number in numbers)


@pytest.mark.requirement("INDEX-4")
@pytest.mark.parametrize("kind", OFFICE)
def test_every_word_is_there_once_and_in_its_order(kind: str) -> None:
    lines = [" ".join(WORDS[at : at + 8]) for at in range(0, len(WORDS), 8)]
    found = [word for word in read(kind, MANY[kind](lines)).text.split() if word not in ("|", "##", "Sheet")]
    assert found == WORDS


# ---------------------------------------------------------------- one kind's own ways


def test_a_book_in_broken_xhtml_is_read_all_the_same() -> None:
    page = "<html><body><p>One<p>two & three <b>four</p></i> <img alt='a > b'> five < six <a href=\"x>seven</a>"
    assert read("epub", epub({"a.html": page})).text == "One\n\ntwo & three four\n\nfive < six seven\n"


def test_a_table_that_only_lays_a_page_out_is_no_row() -> None:
    table = "<table><tr><td>a</td><td>b</td></tr></table>"
    page = f"<table><tr><td>left</td><td><p>Dear Bo,</p>{table}<p>Jo</td></tr><tr><td>P. S.<td>Bye</table>"
    assert (
        read("eml", mail({"Content-Type": "text/html"}, page)).text
        == "left\n\nDear Bo,\n\na | b\n\nJo\n\nP. S.\n\nBye\n"
    )


def test_a_mail_in_an_old_encoding_is_read_by_the_name_that_it_gives() -> None:
    for charset in ("shift_jis", "iso-2022-jp", "euc-jp", "utf-16", "cp932"):
        told = {"Content-Type": f'TEXT/PLAIN; charset="{charset}"', "Content-Transfer-Encoding": "base64"}
        body = b64encode("日本語の文書\n".encode(charset))
        assert caged("eml", mail(told, body)) == Content("日本語の文書\n")
    for charset in ("gb2312", "koi8-r", "windows-1251", "x-nonsense", "base64", "unicode_escape"):
        told = {"Content-Type": f"text/plain; charset={charset}"}
        assert "plain" in caged("eml", mail(told, "plain")).text


def test_a_mail_of_html_alone_is_read_as_its_reader_sees_it() -> None:
    page = "<style>p{}</style><h2>Hi</h2><p>Gr\xfc\xdfe<br>Jo</p><script>if (a</b) x()</script>".encode("latin-1")
    content = read("eml", mail({"Subject": "x", "Content-Type": "text/html; charset=iso-8859-1"}, page))
    assert content == Content("Subject: x\n\n## Hi\n\nGrüße\nJo\n", [], "x")


def test_what_the_plain_version_of_a_mail_leaves_out_is_still_named() -> None:
    pdf = mail({"Content-Type": "application/pdf", "Content-Disposition": 'attachment; filename="a;b.pdf"'}, "x")
    rich = multipart("mixed", mail({"Content-Type": "text/html"}, "<p>said</p>"), pdf, boundary="in")
    whole = multipart("alternative", mail({}, "said"), rich)
    assert read("eml", whole).text == "said\n\nAttachment: a;b.pdf\n"


def test_a_part_that_is_named_as_many_sheets_is_read_once() -> None:
    book = parts(xlsx({"One": row(1, "needle")}))
    one = '<sheet name="One" sheetId="1" r:id="s1"/>'
    many = "".join(f'<sheet name="S{at}" sheetId="{at}" r:id="s1"/>' for at in range(2, 500))
    listed = book["xl/workbook.xml"]
    told = (listed.decode() if isinstance(listed, bytes) else listed).replace(one, one + many)
    assert told.count("<sheet ") == 499
    assert read("xlsx", zipped({**book, "xl/workbook.xml": told})).text == "## One\n\nneedle\n"


def test_rows_far_from_each_other_are_left_out_before_they_take_memory() -> None:
    far = '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>2</v></c></row>'
    assert left_out("xlsx", xlsx({"Sheet": far})) == TOO_MUCH_MEMORY


# ---------------------------------------------------------------- what is left out, and why

_CONTAINER = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(1000)
_LOCKED = _CONTAINER + "EncryptedPackage".encode("utf-16-le")
_FONTS = "<e><CipherData><CipherReference URI='OEBPS/font.otf'/></CipherData></e>"
_CHAPTER = "<e><CipherData><CipherReference URI='OEBPS/a.xhtml'/></CipherData></e>"
_EVIL = '<!DOCTYPE html [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><html><p>&b;</p></html>'
REASONS = {
    "odt whose content is encrypted": ("odt", odt("", manifest="<encryption-data/>"), ENCRYPTED),
    "odt without content": ("odt", zipped({"mimetype": "x"}), DAMAGED),
    "odt with a DTD": ("odt", zipped({"content.xml": "<!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>"}), DAMAGED),
    "odt of pictures": ("odt", odt("<text:p><draw:frame/></text:p>"), NO_TEXT),
    "odt that is no archive": ("odt", b"text", DAMAGED),
    "rtf that is none": ("rtf", b"{\\nonsense}", DAMAGED),
    "epub whose chapter is encrypted": ("epub", epub({"a.xhtml": xhtml("x")}, encryption=_CHAPTER), ENCRYPTED),
    "epub with entities of its own": ("epub", epub({"a.xhtml": _EVIL}), DAMAGED),
    "epub without a chapter that it names": (
        "epub",
        zipped({name: part for name, part in parts(EPUB).items() if "two" not in name}),
        DAMAGED,
    ),
    "pptx with a password": ("pptx", _LOCKED, ENCRYPTED),
    "pptx of pictures": ("pptx", pptx(["", ""]), NO_TEXT),
    "xlsx with a password": ("xlsx", _LOCKED, ENCRYPTED),
    "xlsx without a sheet that it names": (
        "xlsx",
        zipped({name: part for name, part in parts(XLSX).items() if "sheet1.xml" not in name}),
        DAMAGED,
    ),
    "eml that is sealed": ("eml", mail({"Content-Type": "multipart/encrypted"}, "x"), ENCRYPTED),
    "eml that has no header": ("eml", b"\0\1\2", DAMAGED),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_document_without_text_says_why(name: str) -> None:
    """Case docx-11, in these kinds."""
    kind, data, reason = REASONS[name]
    assert left_out(kind, data) == reason


def test_a_book_whose_fonts_alone_are_locked_is_read() -> None:
    assert read("epub", epub({"a.xhtml": xhtml("x")}, encryption=_FONTS)).text == "x\n"


@pytest.mark.requirement("INDEX-5")
@pytest.mark.parametrize("kind", OFFICE)
def test_a_document_of_more_text_than_is_kept_is_left_out_whole(kind: str) -> None:
    """Case pdf-18, in these kinds."""
    chance = random.Random(1)
    lines = [" ".join(f"{chance.getrandbits(40):x}" for _ in range(20)) for _ in range(11_000)]
    if kind == "pptx":
        whole = pptx([shape(*lines)])
    elif kind == "epub":
        whole = epub({"a.xhtml": xhtml("".join(f"<p>{line}</p>" for line in lines))})
    else:
        whole = MANY[kind](lines)
    with pytest.raises(LeftOut, match=TEXT_TOO_LARGE):  # by the reader itself: its child would say so only at the end
        read(kind, whole)


# ---------------------------------------------------------------- what is made to hurt


def _nested(depth: int) -> bytes:
    inner = mail({}, "deep")
    for level in range(depth):
        inner = multipart("mixed", inner, boundary=f"b{level}x")
    return inner


def page(markup: str) -> bytes:
    """Markup where no ratio limits it."""
    return mail({"Content-Type": "text/html"}, markup)


def _bomb() -> bytes:
    file = parts(ODT)
    file["content.xml"] = b"<a>" + b" " * (60 << 20) + b"</a>"
    return zipped(file)


_SLIDES = "ppt/_rels/presentation.xml.rels"
_STRINGS = "xl/sharedStrings.xml"
HOSTILE: dict[str, tuple[str, Callable[[], bytes], str | None]] = {
    "groups in groups": ("rtf", lambda: b"{\\rtf1" + b"{" * 3_000_000, BOMB),
    "links that never end": ("rtf", lambda: rtf(r"x {\field{\*\fldinst{HYPERLINK " * 300), None),
    "fonts that never end": ("rtf", lambda: b"{\\rtf1{\\fonttbl " + b"\\f1 " * 1_000_000 + b"}x}", None),
    "pictures' bytes that are not there": ("rtf", lambda: b"{\\rtf1 x\\bin999999999 y}", None),
    "numbers beyond all": ("rtf", lambda: rtf(r"x\u999999999999 ?\uc99999999\s-1\f-5\'zz\u-99999 \u55357 y"), None),
    "words of code alone": ("rtf", lambda: rtf("\\a" * 6_000_000), BOMB),
    "notes in notes": ("rtf", lambda: rtf(r"{\footnote x\cell\row\trowd y" * 900), None),
    "spaces by number": ("odt", lambda: odt('<text:p>x<text:s text:c="999999999"/>y</text:p>'), None),
    "elements in elements": ("odt", lambda: odt("<text:span>" * 300 + "</text:span>" * 300), BOMB),
    "a part that unpacks to 60 MiB": ("odt", _bomb, BOMB),
    "empty paragraphs": ("odt", lambda: odt("<text:p/>" * 100_000 + "<text:p>x</text:p>"), None),
    "quotation marks": ("eml", lambda: page("x" + '<a "' * 200_000), None),
    "comments that never end": ("eml", lambda: page("x" + "<!-" * 200_000 + "<!--" * 200_000), None),
    "readings that never end": ("eml", lambda: page("x" + "<rt>" * 200_000), None),
    "cells in cells": ("eml", lambda: page("<table><tr><td>x" * 60_000), None),
    "cells in rows": ("eml", lambda: page("<table><tr>x<td><tr></table></td>" * 60_000), None),
    "a character's number of 5,000 digits": ("eml", lambda: page(f"x &#{'1' * 5000};"), None),
    "a heading in a heading": ("eml", lambda: page("<h1>" * 200_000 + "x"), None),
    "one chapter 10,000 times": ("epub", lambda: epub({"a": "x" * 1000}, spine=["a"] * 10_000), None),
    "one slide four times": ("pptx", lambda: zipped({**parts(PPTX), _SLIDES: relations(
        *((f"r{n}", "slide", "slides/slide1.xml") for n in range(4)))}), None),
    "a slide that is nowhere": ("pptx", lambda: zipped({**parts(PPTX), _SLIDES: b"<r/>"}), DAMAGED),
    "cells by a number beyond all": ("xlsx", lambda: xlsx(
        {"S": '<row r="4294967296"><c r="ZZZZ9"><v>x</v></c></row>'}), DAMAGED),
    "fewer strings than are said": ("xlsx", lambda: zipped({**parts(XLSX), _STRINGS: parts(XLSX)[_STRINGS].replace(
        b"<sst", b'<sst count="4294967295" uniqueCount="4294967295"')}), None),
    "10,000 parts": ("eml", lambda: multipart("mixed", *[mail({}, "x")] * 10_000), BOMB),
    "parts in parts": ("eml", lambda: _nested(200), BOMB),
    "mails in mails": ("eml", lambda: b"Content-Type: message/rfc822\r\n\r\n" * 5_000, BOMB),
    "parameters without end": ("eml", lambda: mail({"Content-Type": "text/plain" + ";a" * 200_000}, "x"), None),
    "quotes without end": ("eml", lambda: mail({"Content-Type": "text/plain" + ';a="\\' * 100_000}, "x"), None),
    "words without end": ("eml", lambda: mail({"Subject": "=?utf-8?q?" * 90_000}, "x"), None),
    "addresses": ("eml", lambda: mail({"To": "(" * 500_000}, "x"), None),
    "headers of 3 MiB": ("eml", lambda: mail({f"X-{n}": "x" * 1000 for n in range(3000)}, "x"), HEADERS_TOO_LARGE),
    "boundaries that are none": ("eml", lambda: mail(
        {"Content-Type": "multipart/mixed; boundary=b"}, "x--b\n" * 400_000), None),
    "lines without text": ("eml", lambda: mail({"Subject": "x"}, "\n" * 5_000_000 + "x"), None),
}  # fmt: skip


@pytest.mark.requirement("INDEX-5", "INDEX-6")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_document_ends_by_itself_within_the_limits(name: str) -> None:
    """Case docx-09, and what makes other readers of these kinds recurse, or take the square of its size."""
    kind, make, reason = HOSTILE[name]
    try:
        caged(kind, make())
    except LeftOut as error:
        assert str(error) == reason
    else:
        assert reason is None


def _mutated(data: bytes, chance: random.Random) -> bytes:
    """With some bytes changed, left out, moved or doubled."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at, size = chance.randrange(len(changed) or 1), chance.choice((1, 1, 2, 8, 64, 400))
        match chance.randrange(4):
            case 0:
                changed[at : at + size] = chance.randbytes(size)
            case 1:
                del changed[at : at + size]
            case 2:
                changed[at:at] = changed[(piece := chance.randrange(len(changed) or 1)) : piece + size]
            case _:
                changed[at : at + 1] = bytes((chance.choice(b"<>&\"'{}\\;=0\n"),))
    return bytes(changed)


def _hung(_number: int, _frame: FrameType | None) -> None:
    raise AssertionError("a mutation hangs")


@pytest.mark.requirement("INDEX-6")
@pytest.mark.parametrize("kind", OFFICE)
def test_a_broken_document_is_read_or_left_out_and_nothing_else(kind: str) -> None:
    """Case docx-11: 200 of each kind; half of the archives are broken within, where no checksum tells."""
    data, _ = WHOLE[kind]
    chance = random.Random(f"{kind} 1")
    before = signal.signal(signal.SIGALRM, _hung)
    signal.alarm(HANGS_S)
    outcomes = set()
    try:
        for number in range(200):
            broken = data
            if data.startswith(b"PK") and number % 2:
                inside = parts(data)
                name = chance.choice(sorted(inside))
                broken = zipped({**inside, name: _mutated(inside[name], chance)})
            else:
                broken = _mutated(data, chance)
            try:
                read(kind, broken).text.encode()
                outcomes.add("read")
            except LeftOut:
                outcomes.add("left out")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert "read" in outcomes


# ---------------------------------------------------------------- the plugin's program


def _program(*argv: str, stdin: bytes = b"", path: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "lnk.documents.program", *argv]
    if path:
        with path.open("rb") as file:
            return subprocess.run(command, stdin=file, capture_output=True, env={}, timeout=60)
    return subprocess.run(command, input=stdin, capture_output=True, env={}, timeout=60)


@pytest.mark.requirement("DOCS-1")
@pytest.mark.parametrize("kind", OFFICE)
def test_the_program_says_what_the_engines_own_child_says(kind: str, tmp_path: Path) -> None:
    data, content = WHOLE[kind]
    program = tmp_path / "lnk-link-documents"
    program.write_text(f"#!{sys.executable}\nfrom lnk.documents.program import main\nmain()\n")
    program.chmod(0o700)
    assert caged(kind, data, str(program)) == content
    with pytest.raises(LeftOut, match=DAMAGED):
        caged(kind, data[:3], str(program))


@pytest.mark.requirement("DOCS-1")
def test_a_person_gets_the_text_itself_from_a_file_or_a_pipe(tmp_path: Path) -> None:
    file = tmp_path / "a.rtf"
    file.write_bytes(RTF)
    for ran in (_program("text", "rtf", "--plain", path=file), _program("text", ".RTF", "--plain", stdin=RTF)):
        assert (ran.returncode, ran.stdout.decode(), ran.stderr) == (0, RTF_TEXT, b"")
    ran = _program("text", "epub", "--plain", stdin=b"no book")
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert ran.stderr == b"lnk-link-documents: no text of this epub file: it is damaged.\n"


@pytest.mark.requirement("DOCS-1")
def test_the_program_says_what_it_reads_and_how_it_is_used() -> None:
    assert json.loads(_program("kinds").stdout) == list(KINDS)
    for wrong, said in {
        ("text", "jpeg"): "no kind is called 'jpeg'; there are pdf, docx",
        ("text", "doc"): "save it as .docx",
        (): "COMMAND",
    }.items():
        ran = _program(*wrong)
        assert (ran.returncode, ran.stdout) == (2, b"")
        assert said in ran.stderr.decode()
    assert "lease.pdf" in _program("--help").stdout.decode()


@pytest.mark.requirement("DOCS-1")
def test_a_kind_of_the_extra_that_is_not_there_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from lnk.documents import content, program

    monkeypatch.setitem(KINDS, "odt", content.Kind("lnk.documents.odt", ("a_package_that_is_not_there",)))
    assert program.main(["text", "odt"]) == 0
    assert json.loads(capfd.readouterr().out) == {"left_out": content.NEEDS_OFFICE}
    assert program.main(["text", "odt", "--plain"]) == 1
    assert "reading it needs the extra `office`" in capfd.readouterr().err
    assert program.main(["kinds"]) == 0
    assert "odt" not in json.loads(capfd.readouterr().out)
