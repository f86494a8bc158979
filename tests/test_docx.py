"""Word documents: their text as a person reads it, and files made to do harm."""

import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ends.docxs import (
    NO_PARTS,
    STRICT,
    Parts,
    box,
    docx,
    docx_parts,
    field,
    invented,
    jumbled,
    listed,
    note,
    numbering,
    p,
    packed,
    r,
    refer,
    relations,
    root,
    style,
    t,
    table,
)
from lnk.documents.content import (
    BOMB,
    DAMAGED,
    ENCRYPTED,
    NO_TEXT,
    OLD_FORMAT,
    TEXT_TOO_LARGE,
    Content,
    LeftOut,
    seen,
)
from lnk.documents.word import read

TESTS = Path(__file__).parent
TEXT_BYTES = 2 << 20


def text(body: str, parts: Parts = NO_PARTS) -> str:
    return read(docx(body, parts)).text


def reason(data: bytes) -> str:
    with pytest.raises(LeftOut) as left:
        read(data)
    return str(left.value)


# ---------------------------------------------------------------- as a person reads it


@pytest.mark.requirement("INDEX-4")
def test_paragraphs_are_parted_by_a_blank_line_and_empty_ones_are_nothing():
    assert read(docx(p("One.") + p() + p(" ") + p("Two."))) == Content("One.\n\nTwo.\n")


@pytest.mark.requirement("INDEX-4")
@pytest.mark.parametrize(
    ("look", "level"),
    [
        (style("a", "heading 1"), 1),
        (style("a", "Überschrift 2"), 2),
        (style("a", "Titre 3"), 3),
        (style("a", "見出し 1"), 1),
        (style("a", "标题 2"), 2),
        (style("a", "Заголовок 4"), 4),
        (style("a", "Title"), 1),
        (style("a", "heading 9"), 6),
        (style("a", "Chapter", '<w:pPr><w:outlineLvl w:val="1"/></w:pPr>'), 2),
        (style("a", "Mine", '<w:basedOn w:val="b"/>') + style("b", "heading 3"), 3),
        (style("a", "Mine", '<w:basedOn w:val="a"/>'), 0),
        (style("a", "TOC Heading", '<w:basedOn w:val="b"/><w:outlineLvl w:val="9"/>') + style("b", "heading 1"), 0),
        (style("a", "Heading 1 of 2"), 0),
    ],
)
def test_a_heading_is_told_by_its_styles_name_in_many_a_language_or_by_its_level(look, level):
    assert text(p("Bread", "a"), Parts(styles=look)) == "#" * level + " " * bool(level) + "Bread\n"


def test_a_heading_is_told_by_the_styles_id_where_no_style_is_described_and_by_its_own_level():
    own = p("Own", look='<w:outlineLvl w:val="1"/>')
    assert text(p("Given", "Heading1") + p("Plain", "Quote") + own) == "# Given\n\nPlain\n\n## Own\n"


def test_a_heading_is_one_line():
    assert text(p(r(t("Bread") + "<w:br/>" + t("and butter")), "Heading2")) == "## Bread and butter\n"


def test_lists_are_marked_and_counted_as_they_are_seen():
    lists = numbering([("decimal", "%1."), ("lowerLetter", "%2)")], [("bullet", "o"), ("bullet", "\uf0b7")])
    body = "".join(
        (
            listed("Flour", 1),
            listed("wheat", 1, 1),
            listed("rye", 1, 1),
            listed("Water", 1),
            listed("warm", 1, 1),
            p("Then:"),
            listed("Salt", 1),
            listed("sea", 2, 1),
            listed("none", 0),
        )
    )
    assert text(body, Parts(numbering=lists)) == (
        "1. Flour\n  a) wheat\n  b) rye\n2. Water\n  a) warm\n\nThen:\n\n3. Salt\n  - sea\n\nnone\n"
    )


@pytest.mark.parametrize(
    ("way", "label"),
    [("upperRoman", "IV."), ("lowerLetter", "d."), ("upperLetter", "D."), ("decimalZero", "04."), ("ordinal", "4.")],
)
def test_a_number_is_spelled_as_its_list_says(way, label):
    lines = text(listed("x") * 4, Parts(numbering=numbering([(way, "%1.")]))).splitlines()
    assert lines[3] == f"{label} x"


def test_a_list_counts_from_where_it_starts_or_starts_again():
    level = '<w:lvl w:ilvl="{}"><w:start w:val="{}"/><w:numFmt w:val="decimal"/><w:lvlText w:val="{}"/></w:lvl>'
    lists = (
        '<w:abstractNum w:abstractNumId="7">'
        + level.format(0, 3, "%1.")
        + level.format(1, 1, "%1.%2")
        + level.format(2, 1, "%3")
    )
    again = '<w:lvlOverride w:ilvl="1"><w:startOverride w:val="5"/></w:lvlOverride>'
    lists += '</w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="7"/></w:num><w:num w:numId="2">'
    lists += f'<w:abstractNumId w:val="7"/>{again}</w:num>'
    body = listed("a", 1) + listed("b", 1, 1) + listed("c", 2, 1) + listed("d", 2, 1) + listed("e", 1)
    assert text(body, Parts(numbering=lists)) == "3. a\n  3.1 b\n  3.5 c\n  3.6 d\n4. e\n"


def test_a_list_is_found_through_its_style_and_a_level_by_the_style_that_it_names():
    looks = style("mine", "Mine", '<w:numPr><w:numId w:val="1"/></w:numPr>', kind="numbering")
    looks += style("deep", "Deep", '<w:numPr><w:numId w:val="2"/></w:numPr>')
    lists = numbering([("decimal", "%1."), ("upperLetter", "%2.")])
    lists = lists.replace("<w:lvlText", '<w:pStyle w:val="none"/><w:lvlText', 1)
    lists = lists.replace('<w:numFmt w:val="upperLetter"/>', '<w:numFmt w:val="upperLetter"/><w:pStyle w:val="deep"/>')
    linked = '<w:abstractNum w:abstractNumId="9"><w:numStyleLink w:val="mine"/></w:abstractNum>'
    lists = linked + lists + '<w:num w:numId="2"><w:abstractNumId w:val="9"/></w:num>'
    assert text(listed("a", 2) + p("b", "deep"), Parts(looks, lists)) == "1. a\n  A. b\n"


def test_a_heading_has_the_number_that_its_style_gives_it():
    looks = style("h1", "heading 1", '<w:numPr><w:numId w:val="1"/></w:numPr>')
    looks += style("h2", "heading 2", '<w:numPr><w:ilvl w:val="1"/><w:numId w:val="1"/></w:numPr>')
    lists = numbering([("decimal", "%1"), ("decimal", "%1.%2")])
    body = p("Bread", "h1") + p("Rye", "h2") + p("Soup", "h1") + p("Leek", "h2") + p("Beet", "h2")
    assert text(body, Parts(looks, lists)).split("\n\n") == [
        "# 1 Bread", "## 1.1 Rye", "# 2 Soup", "## 2.1 Leek", "## 2.2 Beet\n",
    ]  # fmt: skip


@pytest.mark.requirement("INDEX-4")
def test_a_tables_rows_are_lines_and_two_tables_are_two():
    merged = '<w:tcPr><w:vMerge w:val="restart"/></w:tcPr>' + p("Rye")
    one = table(["Bread", "Grams"], [merged, p("500") + p("or more")], ["<w:tcPr><w:vMerge/></w:tcPr>" + p(), "20"])
    assert text(one + p() + table(["Soup", ""], ["", ""])) == ("Bread | Grams\nRye | 500 / or more\n| 20\n\nSoup |\n")


def test_a_table_that_lays_out_a_page_is_read_cell_by_cell():
    """case docx-06: a form made of tables in tables."""
    inner = table(["Name", "Anna"], ["Town", "Bern"])
    body = table([p("Form", "Heading1") + p("First read this."), inner + p("Sign here.")])
    assert text(body) == "# Form\n\nFirst read this.\n\nName | Anna\nTown | Bern\n\nSign here.\n"
    assert text(table(["long " * 200, "text " * 200])).count("|") == 0


def test_footnotes_and_endnotes_stand_once_after_the_paragraph_or_table_that_refers_to_them():
    """case docx-04."""
    parts = Parts(
        footnotes=note("footnote", 0, "separator")
        + note("footnote", 1, "My note.")
        + note("footnote", 2, p("A") + p("B")),
        endnotes=note("endnote", 1, "At the end."),
    )
    body = p(r("One") + refer("footnote", 2) + r(" two") + refer("endnote", 1))
    body += table([p(r("cell") + refer("footnote", 1)), "other"], ["more", p(r("again") + refer("footnote", 1))])
    assert text(body, parts) == (
        "One[^1] two[^e1]\n\n[^1]: A B\n\n[^e1]: At the end.\n\ncell[^2] | other\nmore | again[^2]\n\n[^2]: My note.\n"
    )


def test_a_comment_is_marked_once_with_who_made_it():
    comments = note("comment", 5, p("Is it?") + p("Ask."), "Ann \u202eLee") + note("comment", 6, "No.")
    body = p('<w:commentRangeStart w:id="5"/>' + r("Rye is best.") + refer("comment", 5) + refer("comment", 6))
    expected = "Rye is best.\n\n(comment by Ann Lee: Is it? Ask.)\n\n(comment: No.)\n\nSoup.\n"
    assert text(body + p("Soup."), Parts(comments=comments)) == expected


def test_tracked_insertions_are_in_and_what_was_deleted_or_moved_away_is_out():
    """case docx-03."""
    deleted = "<w:del><w:r><w:delText>never</w:delText></w:r></w:del>"
    moved = f"<w:moveFrom>{r('there')}</w:moveFrom><w:moveTo>{r('here')}</w:moveTo>"
    body = p(r("It is ") + deleted + f"<w:ins>{r('always ')}</w:ins>" + moved)
    body += p(
        "was", look='<w:pStyle w:val="Heading2"/><w:pPrChange><w:pPr><w:pStyle w:val="Heading1"/></w:pPr></w:pPrChange>'
    )
    assert text(body) == "It is always here\n\n## was\n"


def test_paragraphs_are_one_where_the_end_between_them_is_deleted():
    ended = "<w:rPr><w:del/></w:rPr>"
    assert text(p("Sour", look=ended) + p("dough")) == "Sourdough\n"
    assert text(table([p("a", look=ended), "b"]) + p("c", look=ended)) == "a | b\n\nc\n"


def test_a_drop_cap_begins_its_paragraph():
    assert text(p("B", look='<w:framePr w:dropCap="drop"/>') + p("read rises.")) == "Bread rises.\n"


def test_hidden_text_is_out_hidden_by_itself_or_by_its_style():
    """case injection-06."""
    looks = style("gone", "gone", "<w:rPr><w:vanish/></w:rPr>")
    looks += style("ghost", "ghost", '<w:basedOn w:val="gone"/>', kind="character")
    body = p(r("seen ") + r("hidden", "<w:vanish/>") + r("shown", '<w:vanish w:val="false"/>'))
    body += p(r("styled", '<w:rStyle w:val="ghost"/>') + r("kept")) + p("all", "gone")
    body += p(r("was hidden", "<w:rPrChange><w:rPr><w:vanish/></w:rPr></w:rPrChange>"))
    body += p(r("back", '<w:vanish w:val="0"/>'), "gone") + p("marks", look="<w:rPr><w:vanish/></w:rPr>")
    assert text(body, Parts(styles=looks)) == "seen shown\n\nkept\n\nwas hidden\n\nback\n\nmarks\n"


def test_a_field_shows_its_result_and_never_its_instruction():
    """case docx-02, docx-14."""
    assert text(
        p(r("On ") + field("SAVEDATE", "May 1") + f"<w:fldSimple w:instr='PAGE'>{r(', p. 7')}</w:fldSimple>")
    ) == ("On May 1, p. 7\n")


def test_text_within_a_fields_instruction_is_not_shown_but_one_never_ended_hides_no_other_paragraph():
    begin, end = ('<w:r><w:fldChar w:fldCharType="' + kind + '"/></w:r>' for kind in ("begin", "end"))
    between = '<w:r><w:fldChar w:fldCharType="separate"/></w:r>'
    inner = field("MERGEFIELD x", "secret")
    assert text(p(begin + inner + between + r("shown") + end)) == "shown\n"
    assert text(p(r("a") + begin) + p("b")) == "a\n\nb\n"


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ('<w:checkBox><w:default w:val="0"/></w:checkBox>', "☐"),
        ('<w:checkBox><w:default w:val="0"/><w:checked/></w:checkBox>', "☒"),
        ('<w:textInput><w:default w:val="Anna"/></w:textInput>', "Anna"),
        (
            '<w:ddList><w:result w:val="1"/><w:default w:val="0"/><w:listEntry w:val="x"/>'
            '<w:listEntry w:val="y"/></w:ddList>',
            "y",
        ),
        ('<w:ddList><w:listEntry w:val="x"/><w:listEntry w:val="y"/></w:ddList>', "x"),
    ],
)
def test_a_form_field_shows_its_value(form, shown):
    assert text(p(r("It: ") + field("FORM", form=form))) == f"It: {shown}\n"
    if "textInput" in form:
        assert text(p(field("FORMTEXT", "Bea", form))) == "Bea\n"


def test_what_a_content_control_shows_is_read_and_what_it_might_show_is_not():
    choices = '<w:sdtPr><w:dropDownList><w:listItem w:displayText="Rye"/></w:dropDownList></w:sdtPr>'
    inline = f"<w:sdt>{choices}<w:sdtContent>{r('Wheat')}</w:sdtContent></w:sdt>"
    assert text(f"<w:sdt><w:sdtContent>{p(r('Bread: ') + inline)}</w:sdtContent></w:sdt>") == "Bread: Wheat\n"


def test_a_text_box_is_read_once_after_its_paragraph():
    """case docx-02: drawn in two ways, one of them is shown."""
    assert text(p(r("Before ") + box(p("Boxed") + table(["a", "b"])) + r("after.")) + p("Next.")) == (
        "Before after.\n\nBoxed\n\na | b\n\nNext.\n"
    )
    only = "<w:r><mc:AlternateContent><mc:Fallback><w:t>old</w:t></mc:Fallback></mc:AlternateContent></w:r>"
    assert text(p(only)) == "old\n"


def test_drawn_text_is_read():
    drawn = "<a:txBody><a:p><a:r><a:t>Drawn</a:t></a:r><a:br/><a:r><a:t>on it</a:t></a:r></a:p><a:p/></a:txBody>"
    shaped = '<w:pict><v:shape><v:textpath string="DRAFT"/></v:shape></w:pict>'
    assert text(p(r("Canvas") + r(f"<w:drawing>{drawn}</w:drawing>") + r(shaped))) == "CanvasDRAFT\n\nDrawn\non it\n"


def test_a_word_of_several_runs_is_one_and_tabs_and_breaks_part_words():
    """case docx-13."""
    word = r("Re") + "<w:proofErr/>" + r("po", "<w:b/>") + r("<w:softHyphen/>") + r("rt")
    kinds = t("x") + "<w:ptab/>" + t("y") + "<w:cr/>" + t("a") + "<w:tab/>" + t("b") + "<w:br/>" + t("c")
    kinds = r(kinds + "<w:noBreakHyphen/>" + t("d\u00adé\u200b"))
    assert text(p(word) + p(kinds, look='<w:tabs><w:tab w:val="left"/></w:tabs>')) == "Report\n\nx\ty\na\tb\nc-dé\n"


def test_links_tags_and_insertions_around_runs_are_read():
    """case docx-14."""
    body = p(f"<w:hyperlink>{r('link to my website')}</w:hyperlink>")
    body += p(f"<w:smartTag><w:smartTag>{r('And it')}</w:smartTag>{r(' came to pass')}</w:smartTag>")
    assert text(body) == "link to my website\n\nAnd it came to pass\n"


@pytest.mark.parametrize(
    ("font", "code", "shown"),
    [("Symbol", "F061", "α"), ("Wingdings", "F0FC", "✔"), ("Wingdings", "F04D", ""), ("Arial", "2603", "☃"),
     ("Arial", "zz", ""), ("Arial", "D800", ""), ("Arial", "FFFFFFFFFF", "")],
)  # fmt: skip
def test_a_symbol_is_the_character_that_its_font_shows(font, code, shown):
    assert text(p(r(t("x") + f'<w:sym w:font="{font}" w:char="{code}"/>' + t("y")))) == f"x{shown}y\n"


def test_a_reading_stands_after_the_word_and_does_not_part_it():
    ruby = "".join(
        f"<w:r><w:ruby><w:rubyPr/><w:rt>{r(reading)}</w:rt><w:rubyBase>{r(letter)}</w:rubyBase></w:ruby></w:r>"
        for letter, reading in (("漢", "かん"), ("字", "じ"))
    )
    assert text(p(ruby + r("を書く"))) == "漢字(かんじ)を書く\n"


def test_mathematics_is_read():
    def of(tag: str, content: str) -> str:
        return f"<m:{tag}>{content}</m:{tag}>"

    sign = of("nary", '<m:naryPr><m:chr m:val="∑"/></m:naryPr>' + of("e", of("r", of("t", "n"))))
    parted = of("f", of("num", of("r", of("t", "a+b"))) + of("den", of("r", of("t", "2"))))
    assert text(p(r("So ") + of("oMath", sign + of("r", of("t", "=")) + parted))) == "So ∑n=a+b/2\n"


def test_a_pictures_description_stands_in_its_place():
    told = '<wp:docPr id="1" name="Picture 1" descr="A loaf&#10;of rye"/>'
    picture = r(f"<w:drawing><wp:inline>{told}</wp:inline></w:drawing>")
    assert text(p(r("See ") + picture)) == "See (picture: A loaf of rye)\n"


def test_headers_come_first_and_footers_last_and_one_said_twice_once():
    parts = Parts(headers=[p("Bakery"), p("Bakery"), p("Draft")], footers=[p("Page 1")])
    assert text(p("Bread."), parts) == "Bakery\n\nDraft\n\nBread.\n\nPage 1\n"


def test_a_header_that_no_section_shows_is_not_read():
    parts = docx_parts(p("Bread."), Parts(headers=[p("Shown"), p("Left over")]))
    main = str(parts["word/document.xml"])
    parts["word/document.xml"] = main.replace('<w:headerReference w:type="default" r:id="header2"/>', "")
    assert read(packed(parts)).text == "Shown\n\nBread.\n"


# ---------------------------------------------------------------- pages, titles, letters


def _turned(*paragraphs: str) -> str:
    return "".join(p(r("<w:lastRenderedPageBreak/>" + t(each))) for each in paragraphs)


def test_pages_are_known_where_word_counted_as_many_as_it_marked():
    middle = p(r(t("begins here ") + "<w:lastRenderedPageBreak/>" + t("and ends there")))
    body = p("One.") + _turned("Two.") + middle + p("Four.") + _turned("Five.")
    content = read(docx(body, Parts(pages=4)))
    lines = content.text.splitlines()
    assert content.pages == [1, 3, 7, 9]
    assert [lines[at - 1] for at in content.pages] == ["One.", "Two.", "Four.", "Five."]
    assert read(docx(body, Parts(pages=5))).pages == read(docx(body)).pages == []


def test_the_title_is_the_documents_own_without_what_is_not_seen():
    """case injection-06."""
    assert read(docx(p("x"), Parts(title="Bread \u202e&amp; \U000e0041\n butter"))).title == "Bread & butter"
    assert read(docx(p("x"))).title is None


def test_what_is_not_seen_goes_and_what_letters_need_stays():
    """case injection-06: controls, direction, no width, tags, halves of pairs; joiners and one variant stay."""
    unseen = "\0\x08\x1b\x7f\x9f\xad\u061c\u180e\u200b\u200e\u202a\u202e\u2060\u2066\u2069\ufeff\ufff9\ud800\U000e0041"
    assert seen(f"a{unseen}b") == "ab"
    assert seen("a\r\nb\rc\vd\fe\x85f\u2028g\u2029h\ti\n") == "a\nb\nc\nd\ne\nf\ng\nh\ti\n"
    kept = "क्\u200dष می\u200cخواهم 葛\U000e0100 ❤\ufe0f\u00a0é ﬁ"
    assert seen(kept) == kept
    assert seen("❤\ufe0f\ufe00\U000e0101\ufe01x") == "❤\ufe0fx"
    assert text(p("a\u202eb\U000e0041c\u2028d")) == "abc\nd\n"


# ---------------------------------------------------------------- where the text is


def test_strict_documents_and_moved_parts_are_read():
    """case docx-05."""
    parts = Parts(
        style("a", "heading 1"),
        numbering([("decimal", "%1.")]),
        note("footnote", 1, "Note."),
        headers=[p("Top")],
        pages=1,
    )
    body = p(r("Bread") + refer("footnote", 1), "a") + listed("rye")
    expected = "Top\n\n# Bread[^1]\n\n[^1]: Note.\n\n1. rye\n"
    assert read(docx(body, parts, spaces=STRICT)).text == expected
    assert read(docx(body, parts, main="elsewhere/deep/text.xml")).text == expected


@pytest.mark.parametrize(
    "target", ["/word/document.xml", "word\\document.xml", "./x/../word/document.xml", "WORD/Document.xml"]
)
def test_the_main_part_is_found_however_it_is_named(target):
    parts = docx_parts(p("Bread"))
    parts["_rels/.rels"] = relations([("a", "http://x/officeDocument", target)])
    assert read(packed(parts)).text == "Bread\n"


def test_the_main_part_is_found_where_nothing_names_it():
    parts = docx_parts(p("Bread"))
    del parts["_rels/.rels"]
    assert read(packed(parts)).text == "Bread\n"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_xml_is_read_with_a_byte_order_mark_and_as_utf_16(encoding):
    """case docx-05, encoding-02."""
    parts = docx_parts(p("Brötchen 漢字"))
    told = str(parts["word/document.xml"]).replace("UTF-8", encoding.replace("-sig", "").replace("-le", ""))
    parts["word/document.xml"] = told.encode(encoding)
    assert read(packed(parts)).text == "Brötchen 漢字\n"


def test_several_bodies_are_read_one_after_another():
    """case docx-12."""
    parts = docx_parts(p("one"))
    parts["word/document.xml"] = root("w:document", "".join(f"<w:body>{p(each)}</w:body>" for each in ("1", "2")))
    assert read(packed(parts)).text == "1\n\n2\n"


def test_a_part_that_says_only_how_text_looks_may_be_damaged_and_one_with_text_may_not():
    parts = docx_parts(p(r("Bread") + refer("footnote", 1)), Parts(style("a", "b"), footnotes=note("footnote", 1, "x")))
    assert read(packed({**parts, "word/styles.xml": "<broken"})).text == "Bread[^1]\n\n[^1]: x\n"
    assert reason(packed({**parts, "word/footnotes.xml": "<broken"})) == DAMAGED
    del parts["word/footnotes.xml"]
    assert read(packed(parts)).text == "Bread\n"


def test_a_header_that_is_the_document_itself_is_not_read_again():
    parts = docx_parts(p("Bread"), Parts(headers=[p("Top")]))
    kind = "http://x/header"
    parts["word/_rels/document.xml.rels"] = relations(
        [("header1", kind, "document.xml"), ("header2", kind, "header1.xml"), ("header3", kind, "header1.xml")]
    )
    extra = "".join(f'<w:headerReference r:id="header{at}"/>' for at in (1, 2, 3))
    parts["word/document.xml"] = str(parts["word/document.xml"]).replace("</w:sectPr>", extra + "</w:sectPr>")
    assert read(packed(parts)).text == "Top\n\nBread\n"


def test_every_word_that_is_seen_is_there_once_and_none_that_is_not():
    """Of documents of all kinds of text together, whose words are known."""
    for seed in range(40):
        made = invented(seed)
        found = Counter(re.findall(r"\w+", read(packed(made.parts)).text))
        assert {word: found[word] for word in made.visible} == dict.fromkeys(made.visible, 1), seed
        assert [word for word in made.hidden if word in found] == [], seed


# ---------------------------------------------------------------- what is left out, and why


@pytest.mark.requirement("INDEX-5")
def test_text_over_two_mebibytes_is_left_out_whole():
    dice = random.Random(1)  # a text of one line again and again would be taken for a bomb
    lines = [f"{dice.getrandbits(4000):01000x}"[:1000] for _ in range(TEXT_BYTES // 1002 + 1)]  # and two line ends
    body = "".join(map(p, lines[:-1]))
    assert text(body) == "\n\n".join(lines[:-1]) + "\n"
    assert reason(docx(body + p(lines[-1]))) == TEXT_TOO_LARGE
    assert reason(docx(p(r("x") + refer("footnote", 1)), Parts(footnotes=note("footnote", 1, body + body)))) == (
        TEXT_TOO_LARGE
    )
    letters = "".join(chr(dice.randrange(0x4E00, 0x9FA0)) for _ in range(TEXT_BYTES // 3 + 1))
    assert reason(docx(p(letters))) == TEXT_TOO_LARGE


@pytest.mark.parametrize("body", ["", p(), p(r("gone", "<w:vanish/>")), table(["", ""])])
def test_a_document_without_text_is_left_out(body):
    assert reason(docx(body)) == NO_TEXT


@pytest.mark.parametrize(
    ("inside", "why"),
    [("EncryptedPackage", ENCRYPTED), ("WordDocument", OLD_FORMAT), ("Nothing", DAMAGED)],
)
def test_what_is_no_archive_but_an_older_container_says_what_it_is(inside, why):
    """case docx-11."""
    assert reason(bytes.fromhex("D0CF11E0A1B11AE1") + bytes(600) + inside.encode("utf-16-le") + bytes(600)) == why


def test_what_is_no_word_document_is_left_out():
    """case docx-11: nothing, garbage, cut off, a main part of another kind."""
    whole = docx(p("Bread") * 50)
    for data in (b"", b"PK", os.urandom(3000), whole[:-40], whole[: len(whole) // 2], packed({"a.txt": "x"})):
        assert reason(data) == DAMAGED
    parts = docx_parts(p("Bread"))
    assert reason(packed({**parts, "word/document.xml": root("w:glossaryDocument", p("x"))})) == DAMAGED
    assert reason(packed({**parts, "word/document.xml": ""})) == DAMAGED


@pytest.mark.parametrize(
    "dtd",
    [
        '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/hostname">]>',
        '<!DOCTYPE x [<!ENTITY e SYSTEM "http://127.0.0.1:9/x">]>',
        '<!DOCTYPE x SYSTEM "http://127.0.0.1:9/x.dtd">',
        '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY e "&a;&a;&a;&a;">]>',
    ],
)
def test_a_dtd_is_refused(dtd):
    """case docx-07."""
    parts = docx_parts("")
    for content in (p("&e;"), p("plain")):
        parts["word/document.xml"] = root("w:document", f"<w:body>{content}</w:body>", before=dtd)
        assert reason(packed(parts)) == DAMAGED


@pytest.mark.parametrize(
    "body",
    [
        "<w:tbl><w:tr><w:tc>" * 20_000 + p("deep") + "</w:tc></w:tr></w:tbl>" * 20_000,
        p("".join(f'<w:fldChar w:x="{at}" w:fldCharType="begin"/>' for at in range(1000))),
        "<w:p/>" * 1_000_000,
        p("A" * (80 << 20)),
    ],
    ids=["tables in tables", "fields in fields", "empty paragraphs", "a long one"],
)
def test_a_bomb_is_refused(body):
    """case docx-09."""
    assert reason(docx(body)) == BOMB


@pytest.mark.parametrize(
    "parts",
    [
        Parts(styles="".join(f'<w:style w:styleId="s{at}"/>' for at in range(100_001))),
        Parts(numbering="".join(f'<w:num w:numId="{at}"/>' for at in range(100_001))),
        Parts(footnotes="".join(f'<w:footnote w:id="{at}"/>' for at in range(100_001))),
    ],
    ids=["styles", "lists", "notes"],
)
def test_so_many_entries_that_they_fill_the_memory_are_refused(parts):
    assert reason(docx(p("x"), parts)) == BOMB


def test_a_style_based_on_itself_and_a_list_linked_to_itself_end():
    looks = style("a", "x", '<w:basedOn w:val="b"/><w:numPr><w:numId w:val="1"/></w:numPr>')
    looks += style("b", "y", '<w:basedOn w:val="a"/>')
    lists = '<w:abstractNum w:abstractNumId="1"><w:numStyleLink w:val="a"/></w:abstractNum>'
    lists += '<w:num w:numId="1"><w:abstractNumId w:val="1"/></w:num>'
    assert text(p("x", "b"), Parts(looks, lists)) == "- x\n"


def test_known_elements_in_any_order_are_text_or_left_out():
    outcomes = Counter()
    for seed in range(150):
        try:
            content = read(packed(jumbled(seed)))
        except LeftOut as left:
            outcomes[str(left)] += 1
        else:
            outcomes["read"] += bool(content.text.encode())
    assert outcomes["read"] > 50 and set(outcomes) <= {"read", NO_TEXT}


# Reads mutants within the memory that the engine's child has, and says what became of them.
_MUTANTS = """
import resource, sys
from collections import Counter
resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
from ends.docxs import invented, mutants
from lnk.documents.content import LeftOut
from lnk.documents.word import read
outcomes = Counter()
for seed in range(5):
    for data in mutants(invented(seed).parts, seed, 100):
        try:
            outcomes["read"] += bool(read(data).text.encode())
        except LeftOut:
            outcomes["left out"] += 1
print(outcomes["read"], outcomes["left out"])
"""


@pytest.mark.requirement("INDEX-6")
def test_of_mutated_files_each_is_read_or_left_out():
    done = subprocess.run(
        [sys.executable, "-c", _MUTANTS], cwd=TESTS, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    read_, left = map(int, done.stdout.split())
    assert read_ + left == 500 and read_ > 50 and left > 50
