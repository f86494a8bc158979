"""How fast documents are read: pages a second in the cage, what its children cost, and a folder of PDFs while asked."""

import contextlib
import io
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, Final
from xml.parsers import expat

import pypdfium2  # type: ignore[import-untyped]

from bench import corpus, report
from bench.engine import Session, fresh_state, session, undisturbed
from lnk.documents.cage import Cage
from lnk.documents.content import KINDS, LeftOut
from lnk.memory.extract import plugin
from lnk.memory.keeper import DOCUMENTS_FEW

GOAL_OVERHEAD_MS: Final = 40
HOW: Final = (
    "bare: in one process, imports not counted: pypdfium2's get_text_range of each page; for DOCX zipfile and expat"
    " alone, w:t and the ends of w:p. cage: child, imports, limits and answer, file to text. overhead: what a child"
    " takes that reads an empty file, less what Python takes to start, import its reader, and end at once. program: the"
    " same through lnk-link-documents, which the engine runs where it is installed. Searches meanwhile: those during"
    " which more documents were left than a search waits for."
)
LINES: Final = 45
LINE_CHARS: Final = 85
FOLDER_PAGES: Final = 4
WARM: Final = 20
PAUSE_S: Final = 0.05  # between two questions of one who waits
_W: Final = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_TYPE: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
_RELATIONS: Final = "http://schemas.openxmlformats.org/package/2006/relationships"


def main() -> None:
    """Run the measurement."""
    parser = report.parser("bench.documents", __doc__ or "")
    parser.add_argument("--pages", type=int, default=200, help="pages of the long documents (%(default)s)")
    parser.add_argument("--documents", type=int, default=200, help="PDFs of the folder (%(default)s)")
    parser.add_argument("--notes", type=int, default=2_000, help="notes beside them (%(default)s)")
    parser.add_argument("--questions", type=int, default=200, help="questions asked before (%(default)s)")
    parser.add_argument(
        "--runs", type=int, default=7, help="readings of each document, starts of each kind (%(default)s)"
    )
    asked = parser.parse_args()
    on = report.machine()
    figures = {
        "how": HOW,
        "pages": asked.pages,
        "runs": asked.runs,
        "pdf": _pages("pdf", pdf(asked.pages, 0), _bare_pdf, asked.pages, asked.runs),
        "docx": _pages("docx", docx(asked.pages), _bare_docx, asked.pages, asked.runs),
        "children": {kind: _child(kind, asked.runs) for kind in KINDS if KINDS[kind].there()},
        "goal_overhead_ms": GOAL_OVERHEAD_MS,
        "folder": _folder(asked.data, asked.documents, asked.notes, asked.questions),
    }
    report.show("documents", on, figures)


# ---------------------------------------------------------------- documents


def _lines(chance: random.Random) -> Iterator[str]:
    """A page's lines."""
    vocabulary, sums = corpus.words()
    words = iter(chance.choices(vocabulary, cum_weights=sums, k=LINES * LINE_CHARS // 2))
    for _ in range(LINES):
        line = next(words)
        while len(line) < LINE_CHARS:
            line += " " + next(words)
        yield line


def pdf(pages: int, seed: object) -> bytes:
    """A PDF of as many pages, whose contents are packed, as most are."""
    chance = random.Random(f"{corpus.SEED} pdf {seed}")
    kids = b" ".join(b"%d 0 R" % (4 + 2 * number) for number in range(pages))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Count %d/Kids[%s]>>" % (pages, kids),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
    ]
    for number in range(pages):
        shown = b"".join(b"(%s) Tj T*\n" % line.encode() for line in _lines(chance))
        packed = zlib.compress(b"BT /F 10 Tf 14 TL 60 780 Td\n" + shown + b"ET")
        objects += (
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F 3 0 R>>>>/Contents %d 0 R>>"
            % (5 + 2 * number),
            b"<</Filter/FlateDecode/Length %d>>stream\n%s\nendstream" % (len(packed), packed),
        )
    return _numbered(objects)


def _numbered(objects: Sequence[bytes]) -> bytes:
    """A PDF of these objects."""
    data, places = bytearray(b"%PDF-1.7\n"), []
    for number, each in enumerate(objects, 1):
        places.append(b"%010d 00000 n \n" % len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    at, size = len(data), len(objects) + 1
    data += b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, b"".join(places))
    return bytes(data) + b"trailer<</Root 1 0 R/Size %d>>\nstartxref\n%d\n%%%%EOF\n" % (size, at)


def docx(pages: int) -> bytes:
    """A DOCX of as many pages' text: four paragraphs a page, some runs each."""
    chance = random.Random(f"{corpus.SEED} docx")
    paragraphs = []
    for _ in range(pages):
        lines = list(_lines(chance))
        for at in range(0, LINES, -(-LINES // 4)):
            runs = "".join(
                f'<w:r><w:t xml:space="preserve">{line} </w:t></w:r>' for line in lines[at : at - (-LINES // 4)]
            )
            paragraphs.append(f"<w:p>{runs}</w:p>")
    body = f'<w:document xmlns:w="{_W}"><w:body>{"".join(paragraphs)}</w:body></w:document>'
    related = f'<Relationship Id="a" Type="{_TYPE}" Target="word/document.xml"/>'
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_rels/.rels", f'<Relationships xmlns="{_RELATIONS}">{related}</Relationships>')
        archive.writestr("word/document.xml", body)
    return out.getvalue()


def _bare_pdf(data: bytes) -> str:
    file = pypdfium2.PdfDocument(data)
    texts = []
    for page in file:
        letters = page.get_textpage()
        texts.append(letters.get_text_range())
        letters.close()
        page.close()
    file.close()
    return "\n".join(texts)


def _bare_docx(data: bytes) -> str:
    texts: list[str] = []
    within = False

    def start(name: str, _attributes: dict[str, str]) -> None:
        nonlocal within
        within = name == "w:t"

    def end(name: str) -> None:
        nonlocal within
        within = False
        if name == "w:p":
            texts.append("\n")

    def say(text: str) -> None:
        if within:
            texts.append(text)

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, say
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parser.Parse(archive.read("word/document.xml"), True)
    return "".join(texts)


# ---------------------------------------------------------------- one document


def _pages(kind: str, data: bytes, bare: Callable[[bytes], str], pages: int, runs: int) -> dict[str, Any]:
    """Pages a second in the cage, and as times of what the library alone takes."""
    report.progress(f"{pages} pages of {kind}")
    words = bare(data).split()
    with _file(data) as fd:
        read = Cage().read(fd, kind).text.split()
        if len(set(words) - set(read)) > len(set(words)) // 100:
            raise SystemExit(f"The reader of {kind} does not find the words that the library finds.")
        alone, caged, program = [], [], []
        for _ in range(runs):  # in turns, so that other work disturbs each alike
            alone.append(_took(lambda: bare(data)))
            caged.append(_took(lambda: Cage().read(fd, kind)))
            program.append(_took(lambda: Cage(plugin()).read(fd, kind)))
    return {
        "bytes": len(data),
        "chars": sum(map(len, words)),
        **report.least("bare", alone),
        **report.least("cage", caged),
        "cage_pages_per_s": round(pages / min(caged)),
        "cage_per_bare": round(min(caged) / min(alone), 2),
        **({"program_pages_per_s": round(pages / min(program))} if plugin() else {}),
    }


def _child(kind: str, runs: int) -> dict[str, Any]:
    """What a child takes for an empty file, in ms, and of that what is not Python and the reader's modules."""
    report.progress(f"children for {kind}")
    paths = [path for path in sys.path if os.path.isabs(path)]
    code = f"import sys; sys.path[:] = {paths!a}; import os, {KINDS[kind].module}; os._exit(0)"
    caged, imports, program = [], [], []
    with _file(b"") as fd:
        for _ in range(runs * 3):
            caged.append(_took(lambda: _read_nothing(Cage(), fd, kind)))
            imports.append(_took(lambda: subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, env={})))
            program.append(_took(lambda: _read_nothing(Cage(plugin()), fd, kind)))
    times = {"cage": caged, "imports": imports, **({"program": program} if plugin() else {})}
    found = {f"{name}_min_ms": round(min(each) * 1000, 1) for name, each in times.items()}
    pairs = [one - other for one, other in zip(caged, imports, strict=True)]
    overhead = {"overhead_min_ms": min(caged) - min(imports), "overhead_median_ms": statistics.median(pairs)}
    return found | {name: round(each * 1000, 1) for name, each in overhead.items()}


def _read_nothing(cage: Cage, fd: int, kind: str) -> None:
    with contextlib.suppress(LeftOut):
        cage.read(fd, kind)


def _took(work: Callable[[], object]) -> float:
    with undisturbed():
        began = time.perf_counter()
        work()
        return time.perf_counter() - began


@contextmanager
def _file(data: bytes) -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.fileno()


# ---------------------------------------------------------------- a folder


def _folder(data: Path, documents: int, notes: int, count: int) -> dict[str, Any]:
    """PDFs that come into a folder of notes: how many are read in a second, and what searches take meanwhile."""
    made = corpus.make(data, corpus.shape_of(notes))
    questions = corpus.questions(made, count + WARM)
    with fresh_state(data) as state:
        home = state / "Home"
        shutil.copytree(made / "memory", home / "memory")
        with session(home, state) as started:
            report.progress(f"indexing {notes:,} notes")
            started.settle()
            for question in questions[count:]:
                _ask(started, question)
            idle = [_ask(started, question)[0] for question in questions[:count]]
            report.progress(f"{documents} PDFs, nothing asked")
            _come(home, "quiet", documents)
            quiet = _until_read(started, lambda: None)
            report.progress(f"{documents} PDFs, asked meanwhile")
            meanwhile: list[float] = []
            following = cycle(questions)

            def ask() -> None:
                took, left = _ask(started, next(following))
                if left > DOCUMENTS_FEW:
                    meanwhile.append(took)

            _come(home, "asked", documents)
            busy = _until_read(started, ask)
            left_out = [each for each in _listed(started) if "left_out" in each]
    if left_out:
        raise SystemExit(f"A document was left out: {left_out[0]}")
    ratio = report.at(meanwhile, 0.95) / report.at(idle, 0.95)
    return {
        "documents": documents,
        "pages_each": FOLDER_PAGES,
        "notes": notes,
        "program": plugin() is not None,
        "documents_per_s": round(documents / quiet, 1),
        "documents_per_s_while_asked": round(documents / busy, 1),
        **report.spread("idle", idle, "ms"),
        "questions_meanwhile": len(meanwhile),
        **report.spread("meanwhile", meanwhile, "ms"),
        "meanwhile_p95_per_idle_p95": round(ratio, 2),
    }


def _come(home: Path, name: str, documents: int) -> None:
    """PDFs, other ones for each `name`, are in the folder at once."""
    coming = home / name
    coming.mkdir()
    for number in range(documents):
        (coming / f"{number}.pdf").write_bytes(pdf(FOLDER_PAGES, f"{name} {number}"))
    coming.rename(home / "memory" / name)


def _until_read(started: Session, meanwhile: Callable[[], None]) -> float:
    """How long it takes until all documents are read, in s; `meanwhile` is done now and then."""
    began = time.perf_counter()
    while "indexed" in started.ask("list", tokens=50):
        meanwhile()
        time.sleep(PAUSE_S)
    return time.perf_counter() - began


def _listed(started: Session) -> list[dict[str, Any]]:
    found = []
    for name in ("quiet", "asked"):
        answer: dict[str, Any] = started.ask("list", path=f"memory/{name}", tokens=50_000)
        found += answer["documents"]
    return found


def _ask(started: Session, question: str) -> tuple[float, int]:
    """What a search took, in ms, and how many documents were left after it."""
    began = time.perf_counter()
    answer: dict[str, Any] = started.ask("search", query=question)
    took = (time.perf_counter() - began) * 1000
    how_far = answer.get("indexed", {"done": 0, "of": 0})
    return took, how_far["of"] - how_far["done"]


if __name__ == "__main__":
    main()
