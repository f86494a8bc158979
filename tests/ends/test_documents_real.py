"""Real files of public projects at which others failed, through the real cage; from the folder that $LNK_CASES names.

In it each lies as `<owner>/<repository>/<path>`. None of them is part of this project.
"""

import os
from pathlib import Path
from typing import Final

import pytest

from ends.faults import skip_loudly
from lnk.documents.cage import Cage
from lnk.documents.content import LeftOut, kind_of
from lnk.memory.text import decode

PDFJS, POI, PANDOC = "mozilla/pdf.js/test/pdfs", "apache/poi/test-data/document", "jgm/pandoc/test/docx"
MAMMOTH, DOCX2 = "mwilliamson/python-mammoth/tests/test-data", "ShayHill/docx2python/tests/resources"
ENCRYPTED, DAMAGED = "it is encrypted", "it is damaged"

# case, file, what its text holds once or more, what it never holds; or the reason why it has none.
FOUND: Final = [
    ("pdf-01", f"{PDFJS}/bomb_giant.pdf", ["GIANT JBIG2 BOMB"], []),
    ("pdf-06", f"{PDFJS}/TAMReview.pdf", ["Technology Acceptance Model"], ["(cid:"]),
    ("pdf-10", f"{PDFJS}/issue3323.pdf", ["THAN N"], []),
    ("pdf-11", "py-pdf/pypdf/resources/encryption/r6-empty-password.pdf", [""], []),
    ("docx-02", f"{PANDOC}/text_in_shape_format.docx", ["May 1, 2017"], ["SAVEDATE", "4000020000"]),
    ("docx-02", f"{MAMMOTH}/text-box.docx", ["Datum plane"], []),
    ("docx-03", f"{PANDOC}/track_changes_insertion.docx", ["two exciting insertions"], []),
    ("docx-03", f"{PANDOC}/track_changes_move.docx", ["Here is the text to be moved."], []),
    ("docx-04", f"{PANDOC}/notes.docx", ["My note."], []),
    ("docx-04", f"{MAMMOTH}/footnotes.docx", ["tachyon"], []),
    ("docx-04", f"{POI}/table_footnotes.docx", ["snoska"], []),
    ("docx-05", f"{PANDOC}/alternate_document_path.docx", ["Test"], []),
    ("docx-05", f"{DOCX2}/strict.docx", [""], []),
    ("docx-06", f"{DOCX2}/240-DOP-1013A Lay Down Tubulars.docx", ["Task and Revision Number", "11 December 2017"], []),
    ("docx-12", f"{POI}/MultipleBodyBug.docx", ["START BODY 1"], []),
    ("docx-12", f"{POI}/unicode-path.docx", ["1"], []),
    ("docx-14", f"{PANDOC}/nested_smart_tags.docx", ["And it came to pass"], []),
    ("docx-14", f"{DOCX2}/hyperlink.docx", ["link to my website"], []),
]
LEFT_OUT: Final = [
    ("pdf-11", "py-pdf/pypdf/resources/encryption/r6-user-password.pdf", ENCRYPTED),
    ("pdf-11", f"{PDFJS}/print_protection.pdf", ENCRYPTED),
    ("docx-11", f"{POI}/bug53475-password-is-pass.docx", ENCRYPTED),
    ("docx-11", f"{POI}/truncated62886.docx", DAMAGED),
]
ONCE: Final = ["Datum plane", "Here is the text to be moved.", "My note.", "tachyon", "snoska"]


def real(path: str) -> Path:
    """The file; skips the test where it is not there."""
    folder = os.environ.get("LNK_CASES")
    if not folder:
        skip_loudly("$LNK_CASES names no folder of real files")
    if not (found := Path(folder) / path).exists():
        skip_loudly(f"there is no {path} in $LNK_CASES")
    return found


def text_of(path: str) -> str:
    with real(path).open("rb") as file:
        text = Cage().read(file.fileno(), kind_of(path) or "").text
    assert all(char.isprintable() or char in "\n\t" for char in text)
    return text


@pytest.mark.requirement("INDEX-4")
@pytest.mark.parametrize(("case", "path", "holds", "never"), FOUND, ids=[f"{each[0]} {each[1]}" for each in FOUND])
def test_the_text_of_a_real_file_is_there(case: str, path: str, holds: list[str], never: list[str]) -> None:
    text = text_of(path)
    together = " ".join(text.split())
    for words in holds:
        assert words in together
        assert words not in ONCE or together.count(words) == 1
    assert [words for words in never if words in together] == []


@pytest.mark.requirement("INDEX-5", "INDEX-6")
@pytest.mark.parametrize(("case", "path", "reason"), LEFT_OUT, ids=[f"{each[0]} {each[1]}" for each in LEFT_OUT])
def test_a_real_file_without_a_text_says_why(case: str, path: str, reason: str) -> None:
    with pytest.raises(LeftOut) as raised:
        text_of(path)
    assert str(raised.value) == reason


@pytest.mark.requirement("INDEX-6")
def test_every_real_file_has_a_text_or_a_reason() -> None:
    """cases pdf-03, pdf-14, docx-07, docx-11, and whatever else lies in the folder."""
    folder = os.environ.get("LNK_CASES")
    if not folder:
        skip_loudly("$LNK_CASES names no folder of real files")
    tried = 0
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and (kind := kind_of(path.name)):
            tried += 1
            with path.open("rb") as file:
                try:
                    Cage().read(file.fileno(), kind)
                except LeftOut as reason:
                    assert str(reason), path
    assert tried


@pytest.mark.parametrize("path", ["tests/UTF-16/bom-utf-16-le.srt", "tests/windows-1251-russian/aif.ru.health.xml"])
def test_a_real_text_in_another_encoding_is_read_as_it_was_written(path: str) -> None:
    """case encoding-02"""
    text = decode(real(f"chardet/chardet/{path}").read_bytes())
    assert text and text.count("\ufffd") < len(text) / 100
