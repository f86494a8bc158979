"""DOCX files made by hand: right ones, ones whose every word is known, and archives that lie."""

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

TRANSITIONAL: Final = {
    "w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
    "r": "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
    "wp": "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing",
    "a": "http://schemas.openxmlformats.org/drawingml/2006/main",
}
STRICT: Final = {
    "w": "http://purl.oclc.org/ooxml/wordprocessingml/main",
    "m": "http://purl.oclc.org/ooxml/officeDocument/math",
    "r": "http://purl.oclc.org/ooxml/officeDocument/relationships",
    "wp": "http://purl.oclc.org/ooxml/drawingml/wordprocessingDrawing",
    "a": "http://purl.oclc.org/ooxml/drawingml/main",
}
_ALWAYS: Final = {
    "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006",
    "wps": "http://schemas.microsoft.com/office/word/2010/wordprocessingShape",
    "v": "urn:schemas-microsoft-com:vml",
    "dc": "http://purl.org/dc/elements/1.1/",
}
_PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006"
_EXTENDED: Final = "http://schemas.openxmlformats.org/officeDocument/2006/extended-properties"


# ---------------------------------------------------------------- paragraphs


def t(text: str) -> str:
    """A run's text."""
    return f'<w:t xml:space="preserve">{text}</w:t>'


def r(content: str, look: str = "") -> str:
    """A run, with text where `content` holds no element."""
    return f"<w:r>{f'<w:rPr>{look}</w:rPr>' if look else ''}{content if '<' in content else t(content)}</w:r>"


def p(content: str = "", style: str = "", look: str = "") -> str:
    """A paragraph, with one run where `content` holds no element."""
    look = (f'<w:pStyle w:val="{style}"/>' if style else "") + look
    content = content if "<" in content or not content else r(content)
    return f"<w:p>{f'<w:pPr>{look}</w:pPr>' if look else ''}{content}</w:p>"


def listed(content: str, number: int = 1, level: int = 0, style: str = "") -> str:
    """A paragraph of a list."""
    return p(content, style, f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>')


def table(*rows: Sequence[str]) -> str:
    """A table of cells, each the paragraphs in it, or the text of one."""
    cells = (("".join(f"<w:tc>{cell if '<' in cell else p(cell)}</w:tc>" for cell in row)) for row in rows)
    return "<w:tbl>" + "".join(f"<w:tr>{row}</w:tr>" for row in cells) + "</w:tbl>"


def field(code: str, result: str = "", form: str = "") -> str:
    """A field of several runs."""
    form = f"<w:ffData>{form}</w:ffData>" if form else ""
    begin = f'<w:r><w:fldChar w:fldCharType="begin">{form}</w:fldChar></w:r>'
    between = f'<w:r><w:fldChar w:fldCharType="separate"/></w:r>{r(result)}' if result else ""
    instruction = f"<w:r><w:instrText>{code}</w:instrText></w:r>"
    return f'{begin}{instruction}{between}<w:r><w:fldChar w:fldCharType="end"/></w:r>'


def box(content: str) -> str:
    """A text box as Word writes it: drawn in two ways, of which a program takes one."""
    content = f"<w:txbxContent>{content}</w:txbxContent>"
    return (
        f'<w:r><mc:AlternateContent><mc:Choice Requires="wps"><w:drawing><wp:inline><wps:txbx>{content}</wps:txbx>'
        "</wp:inline></w:drawing></mc:Choice><mc:Fallback><w:pict><v:textbox>"
        f"{content}</v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>"
    )


def refer(kind: str, identity: int) -> str:
    """The place in the text of a `footnote`, `endnote` or `comment`."""
    return f'<w:r><w:{kind}Reference w:id="{identity}"/></w:r>'


def style(identity: str, name: str, inner: str = "", *, kind: str = "paragraph", default: bool = False) -> str:
    """A style of styles.xml."""
    first = ' w:default="1"' if default else ""
    return f'<w:style w:type="{kind}"{first} w:styleId="{identity}"><w:name w:val="{name}"/>{inner}</w:style>'


def numbering(*lists: Sequence[tuple[str, str]]) -> str:
    """Lists 1, 2, …, each given the way and the text of its levels."""
    drawn, used = "", ""
    for at, levels in enumerate(lists, 1):
        drawn += f'<w:abstractNum w:abstractNumId="{at}">'
        for level, (way, text) in enumerate(levels):
            drawn += f'<w:lvl w:ilvl="{level}"><w:start w:val="1"/><w:numFmt w:val="{way}"/>'
            drawn += f'<w:lvlText w:val="{text}"/></w:lvl>'
        drawn += "</w:abstractNum>"
        used += f'<w:num w:numId="{at}"><w:abstractNumId w:val="{at}"/></w:num>'
    return drawn + used


def note(kind: str, identity: int, content: str, author: str = "") -> str:
    """A `footnote`, `endnote` or `comment`."""
    by = f' w:author="{author}"' if author else ""
    return f'<w:{kind} w:id="{identity}"{by}>{content if "<" in content else p(content)}</w:{kind}>'


# ---------------------------------------------------------------- parts


class Parts(NamedTuple):
    """What a DOCX is made of but for its body; an empty one is left out."""

    styles: str = ""
    numbering: str = ""
    footnotes: str = ""
    endnotes: str = ""
    comments: str = ""
    headers: Sequence[str] = ()
    footers: Sequence[str] = ()
    title: str = ""
    pages: int = 0


NO_PARTS: Final = Parts()


def root(tag: str, content: str, spaces: Mapping[str, str] = TRANSITIONAL, before: str = "") -> str:
    """A part's XML."""
    declared = " ".join(f'xmlns:{short}="{space}"' for short, space in (spaces | _ALWAYS).items())
    return f'<?xml version="1.0" encoding="UTF-8"?>{before}<{tag} {declared}>{content}</{tag}>'


def relations(each: Iterable[tuple[str, str, str]]) -> str:
    """A part that relates others: the identity, the type and the target of each."""
    inner = "".join(f'<Relationship Id="{name}" Type="{kind}" Target="{target}"/>' for name, kind, target in each)
    return f'<?xml version="1.0"?><Relationships xmlns="{_PACKAGE}/relationships">{inner}</Relationships>'


def docx_parts(
    body: str, parts: Parts = NO_PARTS, *, main: str = "word/document.xml", spaces: Mapping[str, str] = TRANSITIONAL
) -> dict[str, str | bytes]:
    """The parts of a DOCX by name, its body the paragraphs in `body`."""
    folder, _, name = main.rpartition("/")
    made: dict[str, str | bytes] = {}
    related: list[tuple[str, str, str]] = []
    roots = {"styles": "w:styles", "numbering": "w:numbering"}
    for kind in ("styles", "numbering", "footnotes", "endnotes", "comments"):
        if content := getattr(parts, kind):
            made[f"{folder}/{kind}.xml"] = root(roots.get(kind, f"w:{kind}"), content, spaces)
            related.append((kind, f"{spaces['r']}/{kind}", f"{kind}.xml"))
    ends = ""
    for kind, tag in (("header", "w:hdr"), ("footer", "w:ftr")):
        for at, content in enumerate(getattr(parts, f"{kind}s"), 1):
            made[f"{folder}/{kind}{at}.xml"] = root(tag, content, spaces)
            related.append((f"{kind}{at}", f"{spaces['r']}/{kind}", f"{kind}{at}.xml"))
            ends += f'<w:{kind}Reference w:type="default" r:id="{kind}{at}"/>'
    top = [("top1", f"{spaces['r']}/officeDocument", main)]
    if parts.title:
        made["docProps/core.xml"] = root("cp", f"<dc:title>{parts.title}</dc:title>")
        top.append(("top2", f"{_PACKAGE}/relationships/metadata/core-properties", "docProps/core.xml"))
    if parts.pages:
        made["docProps/app.xml"] = f'<Properties xmlns="{_EXTENDED}"><Pages>{parts.pages}</Pages></Properties>'
        top.append(("top3", f"{spaces['r']}/extended-properties", "docProps/app.xml"))
    whole = f"<w:body>{body}<w:sectPr>{ends}</w:sectPr></w:body>"
    return {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"/>',
        "_rels/.rels": relations(top),
        main: root("w:document", whole, spaces),
        f"{folder}/_rels/{name}.rels": relations(related),
        **made,
    }


def packed(parts: Mapping[str, str | bytes]) -> bytes:
    """An archive of the parts."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def docx(
    body: str, parts: Parts = NO_PARTS, *, main: str = "word/document.xml", spaces: Mapping[str, str] = TRANSITIONAL
) -> bytes:
    """A DOCX whose body is the paragraphs in `body`."""
    return packed(docx_parts(body, parts, main=main, spaces=spaces))


# ---------------------------------------------------------------- a document whose every word is known


class Invented(NamedTuple):
    """A document, the words a person sees in it, in no order, and words that are in it but not seen."""

    parts: dict[str, str | bytes]
    visible: list[str]
    hidden: list[str]


class _Words:
    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.visible: list[str] = []
        self.hidden: list[str] = []

    def some(self, kept: list[str] | None = None) -> str:
        kept = self.visible if kept is None else kept
        words = [f"w{len(self.visible) + len(self.hidden) + at}{'xyz'[at]}" for at in range(self._dice.randint(1, 3))]
        kept += words
        return " ".join(words)

    def run(self) -> str:
        """A run, or what stands among runs, of a kind that is drawn."""
        hidden = self.hidden
        kinds = (
            lambda: r(self.some() + " "),
            lambda: f"<w:ins>{r(self.some() + ' ')}</w:ins>",
            lambda: f"<w:del><w:r><w:delText>{self.some(hidden)}</w:delText></w:r></w:del>",
            lambda: f"<w:moveFrom>{r(self.some(hidden))}</w:moveFrom>",
            lambda: r(self.some(hidden), "<w:vanish/>"),
            lambda: r(" " + self.some() + " ", '<w:vanish w:val="0"/>'),
            lambda: f'<w:hyperlink r:id="none">{r(" " + self.some() + " ")}</w:hyperlink>',
            lambda: f"<w:smartTag><w:smartTag>{r(' ' + self.some() + ' ')}</w:smartTag></w:smartTag>",
            lambda: f"<w:sdt><w:sdtPr/><w:sdtContent>{r(' ' + self.some() + ' ')}</w:sdtContent></w:sdt>",
            lambda: r("<w:tab/>") + field(self.some(hidden), self.some()) + r("<w:br/>"),
            lambda: f"<w:fldSimple>{r(' ' + self.some() + ' ')}</w:fldSimple>",
            lambda: box(p(self.some()) + p(self.some())),
            lambda: f"<m:oMath><m:r><m:t> {self.some()} </m:t></m:r></m:oMath>",
        )
        return self._dice.choice(kinds)()

    def paragraph(self) -> str:
        return p("".join(self.run() for _ in range(self._dice.randint(1, 5))), self._dice.choice(("", "Heading1")))


def invented(seed: int) -> Invented:
    """A document of all kinds of text, the same for the same seed."""
    dice = random.Random(seed)
    words = _Words(dice)
    notes = dict.fromkeys(("footnote", "endnote", "comment"), "")

    def block(depth: int) -> str:
        kind = dice.randint(0, 5)
        if kind == 0 and depth < 3:
            return table(*([block(depth + 1) for _ in range(2)] for _ in range(dice.randint(1, 3))))
        if kind == 1:
            return listed(words.some(), 1, dice.randint(0, 2))
        if kind == 2:
            of = dice.choice(list(notes))
            identity = notes[of].count(f"<w:{of} ") + 1
            notes[of] += note(of, identity, words.paragraph() + p(words.some()))
            return p(r(words.some()) + refer(of, identity))
        return words.paragraph()

    body = "".join(block(0) for _ in range(40))
    headers, footers = [words.paragraph()], [words.paragraph(), p(words.some())]
    parts = Parts(
        style("Heading1", "heading 1"), numbering([("decimal", "%1.")] * 3), notes["footnote"], notes["endnote"],
        notes["comment"], headers, footers,
    )  # fmt: skip
    return Invented(docx_parts(body, parts), words.visible, words.hidden)


def jumbled(seed: int) -> dict[str, str | bytes]:
    """Parts that are well-formed, with every element a reader may know anywhere in another."""
    dice = random.Random(seed)

    def attributes() -> str:
        names = dice.sample(_KNOWN_ATTRIBUTES, dice.randint(0, 3))
        return "".join(f' {name}="{dice.choice(_KNOWN_VALUES)}"' for name in names)

    def tree(tags: int) -> str:
        """That many elements."""
        made, open_tags = "", [""]
        for _ in range(tags):
            while len(open_tags) > 1 and (dice.random() < 0.4 or len(open_tags) > 40):
                made += f"</{open_tags.pop()}>"
            open_tags.append(dice.choice(_KNOWN_ELEMENTS))
            made += f"<{open_tags[-1]}{attributes()}>"
            made += dice.choice(("", "word", " "))
        return made + "".join(f"</{tag}>" for tag in reversed(open_tags[1:]))

    inner = Parts(*(tree(150) for _ in range(5)), [tree(100)], [tree(100)])
    return docx_parts(tree(600), inner)


_KNOWN_ELEMENTS: Final = (
    "w:p w:p w:pPr w:rPr w:r w:r w:t w:t w:t w:pStyle w:rStyle w:numPr w:numId w:ilvl w:outlineLvl w:vanish w:del w:ins"
    " w:moveFrom w:tab w:br w:sym w:ruby w:rt w:rubyBase w:fldChar w:fldChar w:ffData w:checkBox w:default w:checked"
    " w:textInput w:ddList w:listEntry w:result w:txbxContent w:tbl w:tr w:tc w:comment w:footnote w:endnote w:sdt"
    " w:commentReference w:footnoteReference w:endnoteReference w:headerReference w:footerReference w:framePr w:style"
    " w:name w:basedOn w:num w:abstractNum w:abstractNumId w:lvl w:lvlText w:numFmt w:start w:lvlOverride w:hyperlink"
    " w:startOverride w:numStyleLink w:lastRenderedPageBreak w:document w:sdtPr w:pPrChange m:r m:t m:num m:naryPr"
    " m:chr a:p a:t a:txBody mc:AlternateContent mc:Choice mc:Fallback wp:docPr v:textpath"
).split()
_KNOWN_ATTRIBUTES: Final = (
    "w:val w:id w:styleId w:type w:default w:author w:font w:char w:ilvl w:numId w:abstractNumId w:fldCharType"
    " w:dropCap r:id m:val descr string"
).split()
_KNOWN_VALUES: Final = (
    "0 1 2 8 9 -1 99999999999999999999 ٣ x begin separate end paragraph bullet decimal upperLetter lowerRoman none"
    " %1.%2 %9 Heading1 Title Symbol Wingdings F0FC FFFFFFFF D800 header1 footer1 false drop"
).split()


def mutants(parts: Mapping[str, str | bytes], seed: int, count: int) -> Iterator[bytes]:
    """The archive with its bytes flipped and spliced, and as many with those of one part's XML."""
    dice = random.Random(seed)
    whole = packed(parts)
    for at in range(count):
        if at % 2:
            yield _mutated(whole, dice)
        else:
            name = dice.choice(list(parts))
            data = parts[name]
            yield packed({**parts, name: _mutated(data.encode() if isinstance(data, str) else data, dice)})


def _mutated(data: bytes, dice: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(dice.randint(1, 6)):
        at, to = sorted((dice.randrange(len(made)), dice.randrange(len(made))))
        kind = dice.randint(0, 3)
        if kind == 0:
            made[at] ^= 1 << dice.randint(0, 7)
        elif kind == 1:
            made[at] = dice.randrange(256)
        elif kind == 2 and to - at < len(made) // 2:
            del made[at : at + 1 + (to - at) // 8]
        else:
            made[at:at] = made[at : at + 1 + (to - at) // 8]
    return bytes(made)


# ---------------------------------------------------------------- archives that lie


class Entry(NamedTuple):
    """A part as it stands in an archive; what is None is told truly."""

    name: bytes
    packed: bytes  # the bytes that stand there
    size: int  # unpacked, as the directory says
    crc: int = 0
    way: int = zipfile.ZIP_DEFLATED
    flags: int = 0
    local_name: bytes | None = None
    local_size: int | None = None
    packed_size: int | None = None
    offset: int | None = None


def entry(name: bytes, data: bytes, **lies: object) -> Entry:
    """A part with true sizes, but for the lies."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return Entry(name, packer.compress(data) + packer.flush(), len(data), zlib.crc32(data))._replace(**lies)


def repeated(piece: bytes, times: int, before: bytes = b"", after: bytes = b"") -> bytes:
    """`before`, a piece as often as that, and `after`, as they are when packed; made without packing each."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH)
    once = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + once * times + packer.compress(after) + packer.flush()


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive of them, each local header and line of the directory as the entry says."""
    whole, directory, count = b"", b"", 0
    for each in entries:
        offset = len(whole) if each.offset is None else each.offset
        size = len(each.packed) if each.packed_size is None else each.packed_size
        local = each.name if each.local_name is None else each.local_name
        told = each.size if each.local_size is None else each.local_size
        sizes = (each.crc, size, told, len(local), 0)
        whole += struct.pack("<4s5H3I2H", b"PK\3\4", 20, each.flags, each.way, 0, 0, *sizes) + local + each.packed
        sizes = (each.crc, size, each.size, len(each.name))
        directory += struct.pack(
            "<4s6H3I5H2I", b"PK\1\2", 20, 20, each.flags, each.way, 0, 0, *sizes, 0, 0, 0, 0, 0, offset
        )
        directory += each.name
        count += 1
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count & 0xFFFF, count & 0xFFFF, len(directory), len(whole), 0)
    return whole + directory + end
