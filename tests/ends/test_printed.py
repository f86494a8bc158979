"""Documents as people's programs make them: what LibreOffice, a browser and groff print, and LibreOffice's Word files.

The truth is known, since the test writes the text. What is not installed is skipped, and said in the run's summary.
"""

import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from ends.faults import skip_loudly
from lnk.documents.content import Content
from lnk.documents.pdf import read as read_pdf
from lnk.documents.word import read as read_word

PROGRAM_S: Final = 120
OF_PDF, OF_WORD = 0.98, 0.995
SYLLABLES: Final = (
    "ba der fi gon hu je ka lor mi nest o pra qui ros stel tu va wun xi zer ﬁn über é ção ñan šek łod".split()
)
OTHERS: Final = (
    "Договор аренды квартиры заканчивается в марте η μίσθωση λήγει τον Μάρτιο".split()
    + "今天 北京 的 天气 很好 東京 の 図書館".split()
)
WORD: Final = re.compile(r"\w+")
STYLE: Final = "body { font: 11pt 'DejaVu Sans', sans-serif } .two { column-count: 2 } td { border: 1px solid }"


class Book:
    """A made-up text of headings, paragraphs, a list, a table and two columns; the same for the same number."""

    def __init__(self, number: int) -> None:
        self._chance = random.Random(number)
        self.words: Counter[str] = Counter()

    def _said(self, count: int, words: list[str] | None = None) -> str:
        chosen = words or ["".join(self._chance.choices(SYLLABLES, k=self._chance.randint(1, 4))) for _ in range(count)]
        self.words.update(chosen)
        return " ".join(chosen)

    def html(self) -> str:
        """As a page."""
        parts = [f"<h1>{self._said(4)}</h1>"]
        for _ in range(8):
            parts.append(f"<h2>{self._said(3)}</h2>")
            parts += [f"<p>{self._said(90)}.</p>" for _ in range(3)]
            parts.append("<ul>" + "".join(f"<li>{self._said(6)}</li>" for _ in range(4)) + "</ul>")
        rows = ["<tr>" + "".join(f"<td>{self._said(2)}</td>" for _ in range(4)) + "</tr>" for _ in range(12)]
        parts.append(f"<table>{''.join(rows)}</table>")
        parts.append("<div class='two'>" + "".join(f"<p>{self._said(70)}.</p>" for _ in range(6)) + "</div>")
        parts += [f"<p>{self._said(0, OTHERS)}</p>"]
        return f"<!doctype html><meta charset='utf-8'><style>{STYLE}</style><body>{''.join(parts)}</body>"

    def roff(self) -> str:
        """As the source of a manual, set by groff, which breaks words at the ends of lines."""
        letters = [each for each in SYLLABLES if each.isascii()]
        parts = [".nr PS 11\n.hy 6\n.ll 11c"]
        for _ in range(40):
            chosen = ["".join(self._chance.choices(letters, k=self._chance.randint(1, 4))) for _ in range(80)]
            parts.append(".LP\n" + self._said(0, chosen))
        return "\n".join(parts) + "\n"


def recall(words: Counter[str], content: Content) -> float:
    """The share of the words that were written which the text has."""
    found = Counter(WORD.findall(content.text.replace("ﬁ", "fi")))
    wanted = Counter({word.replace("ﬁ", "fi"): count for word, count in words.items()})
    return sum(min(count, found[word]) for word, count in wanted.items()) / wanted.total()


def _run(folder: Path, program: str, *arguments: str, needs: str | None = None) -> None:
    if shutil.which(program) is None:
        skip_loudly(f"{program} is not installed{needs or ''}")
    home = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    subprocess.run([program, *arguments], cwd=folder, env=home, check=True, capture_output=True, timeout=PROGRAM_S)


def _office(folder: Path, kind: str) -> bytes:
    _run(folder, "soffice", "--headless", "--convert-to", kind, "book.html")
    return (folder / f"book.{kind.partition(':')[0]}").read_bytes()


def _browser(folder: Path) -> bytes:
    _run(folder, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--print-to-pdf=book.pdf", "book.html")
    return (folder / "book.pdf").read_bytes()


@pytest.mark.requirement("INDEX-4")
@pytest.mark.parametrize(
    ("made", "read", "least"),
    [
        (lambda folder: _office(folder, "pdf"), read_pdf, OF_PDF),
        (_browser, read_pdf, OF_PDF),
        (lambda folder: _office(folder, "docx:MS Word 2007 XML"), read_word, OF_WORD),
    ],
    ids=["LibreOffice's PDF", "a browser's PDF", "LibreOffice's Word file"],
)
def test_what_a_program_makes_of_a_text_is_read_whole(
    made: Callable[[Path], bytes], read: Callable[[bytes], Content], least: float, tmp_path: Path
) -> None:
    book = Book(7)
    (tmp_path / "book.html").write_text(book.html(), "utf-8")
    content = read(made(tmp_path))
    share = recall(book.words, content)
    assert share >= least, (book.words - Counter(WORD.findall(content.text))).most_common(20)


@pytest.mark.requirement("INDEX-4")
def test_what_a_typesetter_breaks_at_the_ends_of_lines_is_whole_words_again(tmp_path: Path) -> None:
    book = Book(11)
    (tmp_path / "book.ms").write_text(book.roff(), "utf-8")
    if shutil.which("groff") is None or not Path("/usr/share/groff/current/font/devpdf").exists():
        skip_loudly("groff with its PDF device is not installed")
    with (tmp_path / "book.pdf").open("wb") as file:
        subprocess.run(["groff", "-ms", "-Tpdf", "book.ms"], cwd=tmp_path, stdout=file, check=True, timeout=PROGRAM_S)
    content = read_pdf((tmp_path / "book.pdf").read_bytes())
    share = recall(book.words, content)
    assert share >= OF_PDF, (book.words - Counter(WORD.findall(content.text))).most_common(20)
