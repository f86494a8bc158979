"""PDF: files that are written here, so that their true text is known, read as the child reads them."""

import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ends import pdfs
from ends.pdfs import Text
from lnk.documents import pdf
from lnk.documents.content import DAMAGED, ENCRYPTED, NO_TEXT, TEXT_BYTES_MAX, TEXT_TOO_LARGE, Content, LeftOut

RECALL = 0.98
TESTS = Path(__file__).parent


def text_of(data: bytes) -> str:
    return pdf.read(data).text


def reason(data: bytes) -> str:
    with pytest.raises(LeftOut) as error:
        pdf.read(data)
    return str(error.value)


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.lower()))


def prose(seed: int, count: int) -> str:
    drawn = random.Random(seed)
    return " ".join("".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=drawn.randint(2, 9))) for _ in range(count))


@pytest.mark.requirement("INDEX-4")
def test_nearly_every_word_of_a_long_document_is_there_and_each_page_begins_where_it_says() -> None:
    parts: list[tuple[str, str] | list[list[str]]] = []
    truth = Counter[str]()
    for number in range(20):
        told = [
            f"begin{number}",
            f"Chapter about {prose(number, 3)}",
            prose(number + 100, 150),
            prose(number + 200, 60),
        ]
        parts += [("Normal", told[0]), ("Heading1", told[1]), ("Normal", told[2]), ("BodyText", told[3]), ("page", "")]
        truth += words(" ".join(told))
    found = pdf.read(pdfs.laid_out(parts, title="A long one"))
    missing = truth - words(found.text)
    assert missing.total() <= (1 - RECALL) * truth.total(), missing
    assert found.title == "A long one"
    lines = found.text.split("\n")
    assert [lines[page - 1] for page in found.pages[:20]] == [f"begin{number}" for number in range(20)]


def test_columns_drawn_row_by_row_are_read_one_after_the_other() -> None:
    lines = text_of(pdfs.two_columns(12)).split("\n")
    left = [f"left column sentence number {row}" for row in range(12)]
    right = [f"right column sentence number {row}" for row in range(12)]
    assert [line for line in lines if "column" in line] == left + right
    assert lines[0] == "A title across the page"


def test_a_table_stays_row_by_row_with_marks_between_cells() -> None:
    rows = [
        ["Region", "Q1", "Q2"],
        ["North", "1,200", "1,350"],
        ["South", "980", "1,010"],
        ["East and West", "77", "81"],
    ]
    found = text_of(pdfs.laid_out([("Title", "Quarterly numbers"), rows, ("Normal", "After the table.")]))
    assert found == (
        "# Quarterly numbers\n\nRegion | Q1 | Q2\nNorth | 1,200 | 1,350\nSouth | 980 | 1,010\nEast and West | 77 | 81\n"
        "\nAfter the table.\n"
    )


def test_the_cells_of_a_table_that_are_wrapped_are_put_together_and_addresses_side_by_side_are_not() -> None:
    drawn = []
    wrapped = ["Anna"], ["Grain of many", "kinds, well-", "kept"], ["Stayed", "long"]
    for top, row in ((700, wrapped), (640, (["Bo"], ["Oak"], ["Left"]))):
        for x, cell in zip((60, 200, 340), row, strict=True):
            drawn += pdfs.lines(cell, x=x, top=top, step=12)
    assert text_of(pdfs.document([drawn])) == "Anna | Grain of many kinds, well-kept | Stayed long\nBo | Oak | Left\n"
    addresses = [*pdfs.lines(["Ms Bee", "Elm Row 5"], top=700), *pdfs.lines(["Mr Fly", "Oak Row 6"], x=300, top=700)]
    assert text_of(pdfs.document([addresses])) == "Ms Bee\nElm Row 5\nMr Fly\nOak Row 6\n"


def test_a_word_broken_at_a_lines_end_is_put_together_and_a_real_hyphen_stays() -> None:
    """Case pdf-08."""
    found = text_of(
        pdfs.document(
            [
                pdfs.lines(
                    [
                        "The inter-",
                        "national board agreed on co-",
                        "operation; que sont-",
                        "ils devenus? The key-",
                        "note was a well-",
                        "known Anglo-",
                        "American keynote.",
                    ]
                )
            ]
        )
    )
    assert found == (
        "The international\nboard agreed on co-operation;\nque sont-ils\ndevenus? The keynote\nwas a well-known\n"
        "Anglo-American\nkeynote.\n"
    )


def test_a_hyphen_stays_where_the_document_has_the_word_so_within_a_line() -> None:
    assert "red-brown" in text_of(
        pdfs.document([pdfs.lines(["A bird, red-brown, sat.", "It was red-", "brown all over."])])
    )
    assert "redbrown" in text_of(
        pdfs.document([pdfs.lines(["A bird, redbrown, sat.", "It was red-", "brown all over."])])
    )


def test_a_word_broken_by_a_pages_end_is_put_together_on_the_first_page() -> None:
    found = pdf.read(pdfs.document([pdfs.lines(["We met the inter-"]), pdfs.lines(["national board."])]))
    assert found == Content("We met the international\nboard.\n", [1, 2])


def test_larger_letters_make_headings_by_size_and_paragraphs_are_set_apart() -> None:
    body = pdfs.lines([prose(seed, 12) for seed in range(6)], top=700)
    later = pdfs.lines([prose(seed, 12) for seed in range(6, 9)], top=560)
    page = [
        Text(60, 780, "The whole story", 24),
        Text(60, 740, "How it began", 16),
        *body,
        Text(60, 600, "And on", 16),
        *later,
    ]
    blocks = text_of(pdfs.document([page])).strip().split("\n\n")
    assert [block for block in blocks if block.startswith("#")] == ["# The whole story", "## How it began", "## And on"]
    assert [len(block.split("\n")) for block in blocks] == [1, 1, 6, 1, 3]


def test_a_long_text_in_large_letters_and_a_formula_are_no_headings() -> None:
    large = [Text(60, 780 - 20 * row, prose(row, 6), 14) for row in range(5)]
    formula = [Text(60, 660, "x = (a + b) / (c - d)", 14)]
    body = pdfs.lines([prose(seed, 12) for seed in range(10, 30)], top=620)
    assert "#" not in text_of(pdfs.document([[*large, *formula, *body]]))


def test_the_outline_makes_headings_of_lines_no_larger_than_others() -> None:
    outline = [
        b"<</Type/Outlines/First 5 0 R/Last 5 0 R/Count 1>>",
        b"<</Title%s/Parent 4 0 R/Dest[8 0 R/Fit]/First 6 0 R/Last 6 0 R/Count 1>>" % pdfs.string("Kittens"),
        b"<</Title%s/Parent 5 0 R/Dest[10 0 R/Fit]>>" % pdfs.string("Feeding  them"),
    ]
    texts = ["Contents: Kittens", "1. Kittens", "They are small."], ["1.1 Feeding them", "Twice a day."]
    # Objects 4 to 6 are the outline, so that pages are 7 and 9.
    outline = [each.replace(b"[8 0", b"[7 0").replace(b"[10 0", b"[9 0") for each in outline]
    found = text_of(pdfs.document([pdfs.lines(page) for page in texts], catalog=b"/Outlines 4 0 R", more=outline))
    assert found == "Contents: Kittens\n\n# 1. Kittens\n\nThey are small.\n\n## 1.1 Feeding them\n\nTwice a day.\n"


def test_form_fields_come_with_their_values_and_comments_are_marked() -> None:
    data = pdfs.with_form(
        {"Name": "Ada Lovelace", "City": "", "form.Page1[0].street[0]": "Elm Row 5"},
        ticked=["Agreed"],
        notes=[("Text", "Bo", "Is this\nright?"), ("Highlight", "", "check"), ("FreeText", "Bo", "Drawn on the page")],
    )
    assert text_of(data).split("\n") == [
        "Please fill this in.",
        "Name: Ada Lovelace",
        "street: Elm Row 5",
        "Agreed: Yes",
        "(comment by Bo: Is this right?)",
        "(comment: check)",
        "Drawn on the page",
        "",
    ]


def test_a_form_that_only_adobes_programs_show_is_left_out_with_that_reason() -> None:
    """Case pdf-12."""
    data = pdfs.document(
        [pdfs.lines(["Please wait...", "If this message is not eventually replaced, your viewer may not show it."])],
        catalog=b"/AcroForm<</Fields[]/XFA 4 0 R>>/NeedsRendering true",
        more=[pdfs.stream(b"<xdp/>")],
    )
    assert reason(data) == pdf.XFA


def test_headers_and_page_numbers_stay_on_the_first_page_and_what_looks_like_them_in_the_text_stays() -> None:
    pages = []
    for number in range(6):
        body = pdfs.lines([f"Line {row} of {prose(number * 10 + row, 6)}" for row in range(8)], top=740)
        head = [
            Text(60, 810, "Yearly report of the bees"),
            Text(60, 790, f"Exercise {number}"),
            Text(500, 810, str(number)),
        ]
        pages.append([*head, *body, Text(290, 30, f"Page {number + 3} of 9")])
    found = text_of(pdfs.document(pages))
    assert found.count("Yearly report") == 1
    assert found.count("Exercise") == 6
    assert re.findall("Page .*", found) == ["Page 3 of 9"]
    assert found.count("Line ") == 48


def test_rows_at_pages_edges_that_differ_in_other_numbers_all_stay() -> None:
    drawn = random.Random(4)
    amounts = [[f"Amount {drawn.randint(100, 999)}" for _ in range(10)] for _ in range(5)]
    found = text_of(pdfs.document([pdfs.lines(page) for page in amounts]))
    assert words(found) == words(" ".join(line for page in amounts for line in page))


def test_an_empty_page_is_a_page_and_each_begins_on_a_line_of_its_own() -> None:
    found = pdf.read(pdfs.document([pdfs.lines(["one"]), [], pdfs.lines(["three", "more"])]))
    assert found == Content("one\n\nthree\nmore\n", [1, 2, 3])


def test_chinese_and_japanese_lines_of_a_paragraph_are_put_together_without_spaces() -> None:
    chinese = "今天我们修好了自行车的后轮，明天打算去山上骑车，午饭带饭团和鸡蛋，晚上回来喝茶，然后早点睡觉。"
    japanese = "今日は自転車の後輪を直しました。明日は山の方へ走りに行く予定です。お弁当はおにぎりと卵焼きにします。"
    assert text_of(pdfs.in_cjk("STSong-Light", [chinese, "买茶叶。"], width=220)) == f"{chinese}\n\n买茶叶。\n"
    assert japanese in text_of(pdfs.in_cjk("HeiseiMin-W3", [japanese], width=200))
    korean = "내일은 산으로 달리러 갈 예정입니다."
    assert text_of(pdfs.in_cjk("HYSMyeongJo-Medium", [korean], width=400)) == korean + "\n"


@pytest.mark.parametrize("degrees", ["0 1 -1 0 300 100", "0 -1 1 0 300 700"])
def test_text_that_is_turned_is_read_and_its_table_keeps_its_rows(degrees: str) -> None:
    rows = [("North", "980", "77"), ("South", "1,010", "81"), ("West", "12", "5")]
    shown = " ".join(
        f"1 0 0 1 {x} {-20 * number} Tm ({cell}) Tj"
        for number, row in enumerate(rows)
        for x, cell in zip((0, 90, 180), row, strict=True)
    )
    page = f"{degrees} cm BT /F1 10 Tf {shown} ET".encode()
    assert text_of(pdfs.document([page])) == "North | 980 | 77\nSouth | 1,010 | 81\nWest | 12 | 5\n"


def test_text_that_is_there_but_not_seen_is_text() -> None:
    """Case injection-06: a scan's recognised text is drawn so."""
    assert text_of(pdfs.document([pdfs.drawn(pdfs.lines(["recognised words"]), mode=3)])) == "recognised words\n"


def test_characters_without_a_form_are_left_out_and_all_others_come_whole() -> None:
    """Cases pdf-08, pdf-10, injection-06."""
    codes = {
        "A": "\U0001d400",
        "B": "\U0002000b",
        "C": "ffi",
        "D": "\ue123",
        "E": "\u202e",
        "F": "\u200b",
        "G": "\U000e0041",
    }
    found = text_of(pdfs.with_letters(codes, "xA B oCce yDz EtwoF endG"))
    assert found == "x\U0001d400 \U0002000b office yz two end\n"


def test_bullets_are_items_and_lines_that_are_code_do_not_become_headings() -> None:
    found = text_of(
        pdfs.document([pdfs.lines(["\u2022 milk", "\u2022 bread", "# apt-get install", "```", "--- a/file"])])
    )
    assert found == "- milk\n- bread\n    # apt-get install\n    ```\n    --- a/file\n"


def test_dots_that_lead_the_eye_are_no_text_and_make_no_table() -> None:
    rows = [
        f"{number} Chapter {name} {'. ' * 30}{number * 7}" for number, name in enumerate(("one", "two", "three"), 1)
    ]
    assert text_of(pdfs.document([pdfs.lines(rows)])) == (
        "1 Chapter one … 7\n2 Chapter two … 14\n3 Chapter three … 21\n"
    )


def test_a_password_leaves_a_document_out_and_one_against_changes_does_not() -> None:
    """Case pdf-11."""
    data = pdfs.document([pdfs.lines(["secret words"])])
    assert reason(pdfs.encrypted(data, "guess")) == ENCRYPTED
    assert text_of(pdfs.encrypted(data, "")) == "secret words\n"
    with pytest.raises(LeftOut, match=ENCRYPTED):
        pdf.read_again(pdfs.encrypted(data, "guess"))


@pytest.mark.parametrize(
    "data",
    [b"", b"%PDF-1.7\n", b"hello", b"%PDF-1.4\n" + random.Random(1).randbytes(20_000), b"%PDF-1.4\n" + bytes(1 << 20)],
    ids=["empty", "head", "text", "noise", "zeros"],
)
def test_what_is_no_pdf_is_damaged(data: bytes) -> None:
    """Case pdf-16: zeros after a head."""
    assert reason(data) == DAMAGED


def test_a_file_without_its_table_or_its_end_is_read() -> None:
    data = pdfs.document([pdfs.lines(["still here"])])
    assert text_of(data[: data.rindex(b"startxref")]) == "still here\n"


def test_pages_without_text_are_said_to_have_none() -> None:
    assert reason(pdfs.document([b"0 0 200 300 re f", b""])) == NO_TEXT


def test_more_pages_than_are_read_leave_it_out() -> None:
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>"
    kids = b"3 0 R " * (pdf.PAGES_MAX + 1)
    data = pdfs.raw(
        [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, pdf.PAGES_MAX + 1), page]
    )
    assert reason(data) == pdf.TOO_MANY_PAGES


@pytest.mark.requirement("INDEX-5")
def test_more_text_than_is_kept_leaves_it_out_before_the_pages_that_follow_are_read() -> None:
    """Case pdf-18. The last page would end this process."""
    line = "many words in a long line of text that goes on and on and on "
    rows = pdfs.lines([line * 40 for _ in range(60)], step=10, size=0.5)
    pages = [rows] * (TEXT_BYTES_MAX // (len(line) * 40 * 60) + 2)
    own = pdfs.stream(b"/X Do /X Do", b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X 4 0 R>>>>")
    data = pdfs.document([*pages, b"/X Do"], more=[own], resources=b"/XObject<</X 4 0 R>>")
    assert reason(data) == TEXT_TOO_LARGE


def test_the_second_reader_finds_the_same_words_and_pages() -> None:
    data = pdfs.document([pdfs.lines(["First page,", "two lines."]), [], pdfs.lines(["Third page."])])
    found = pdf.read_again(data)
    assert words(found.text) == words(pdf.read(data).text)
    assert found.pages == pdf.read(data).pages
    for bad in (b"", b"%PDF-1.7\n" + bytes(1000)):
        with pytest.raises(LeftOut, match=DAMAGED):
            pdf.read_again(bad)


# Reads each of its arguments' mutations; says a number before each, so that an end in the middle tells which it was.
_MUTATED = """
import random, sys
from lnk.documents import pdf
from lnk.documents.content import Content, LeftOut
data = open(sys.argv[1], "rb").read()
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    print(seed, flush=True)
    drawn = random.Random(seed)
    changed = bytearray(data)
    for _ in range(drawn.randint(1, 12)):
        changed[drawn.randrange(len(changed))] = drawn.randrange(256)
    for read in (pdf.read, pdf.read_again):
        try:
            assert isinstance(read(bytes(changed)), Content)
        except LeftOut:
            pass
print("done")
"""


def test_files_with_changed_bytes_are_read_or_left_out(tmp_path: Path) -> None:
    """Only pdfium may end its process, which costs that one document; and it prints nothing."""
    count = 40
    form = pdfs.with_form({"Name": "Ada"}, ticked=["Agreed"], notes=[("Text", "Bo", "right?")])
    for name, data in {
        "columns": pdfs.two_columns(8),
        "form": form,
        "laid": pdfs.laid_out([("Normal", prose(1, 90))]),
    }.items():
        file = tmp_path / name
        file.write_bytes(data)
        first, ends = 0, 0
        while first < count:
            ran = subprocess.run(
                [sys.executable, "-c", _MUTATED, file, str(first), str(count)],
                capture_output=True,
                text=True,
                timeout=120,
            )
            told = ran.stdout.split()
            assert ran.returncode <= 0, f"{name} {told[-1:]}: {ran.stderr[-2000:]}"
            if ran.returncode == 0:
                assert told == [*map(str, range(first, count)), "done"] and ran.stderr == ""
                break
            first, ends = int(told[-1]) + 1, ends + 1
        assert ends <= count // 10
