"""Documents made to hurt, and engines that end while they read some: it costs those documents, and nothing else."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import apsw
import pytest

from conftest import Place, Session
from ends import docxs, offices, pdfs
from ends.docxs import entry, repeated
from ends.faults import (
    SEED,
    check,
    everything,
    left_in,
    needs_strace,
    ordinary,
    remounted,
    settled,
    small_disk,
    soon,
)
from ends.pdfs import document, lines, packed, raw, stream
from lnk.documents.content import BOMB, CRASHED, DAMAGED, KINDS, NO_TEXT, TOO_LONG, TOO_MUCH_MEMORY
from lnk.documents.pdf import TOO_MANY_PAGES

ROOT: Final = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT))
fuzz = import_module("fuzz.documents")

# ---------------------------------------------------------------- bombs

MIB: Final = 1 << 20
FIRST: Final = b"<</Type/Catalog/Pages 2 0 R>>"
ONE: Final = b"<</Type/Pages/Kids[3 0 R]/Count 1>>"


def _page(more: bytes = b"") -> bytes:
    return b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>%s>>>>" % more


def _pdf_of(contents: bytes, *more: bytes, resources: bytes = b"") -> bytes:
    return raw([FIRST, ONE, _page(resources), contents, pdfs.FONT, *more])


def _form_in_itself() -> bytes:
    own = b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X 6 0 R>>>>"
    return _pdf_of(stream(b"/X Do /X Do"), stream(b"/X Do /X Do", own), resources=b"/XObject<</X 6 0 R>>")


def _pages(count: int) -> bytes:
    kids = b"<</Type/Pages/Kids[" + b"3 0 R " * count + b"]/Count %d>>" % count
    return raw([FIRST, kids, _page(), stream(pdfs.drawn(lines(["one page"]))), pdfs.FONT])


def _loop_of_pages() -> bytes:
    return raw([FIRST, b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 2>>"])


def _arrays(depth: int) -> bytes:
    return raw([FIRST, ONE, _page(), b"[" * depth + b"]" * depth, pdfs.FONT])


def _zip_with(parts: dict[str, str | bytes], name: str, **lies: Any) -> bytes:
    """An archive whose part `name` unpacks to 300 MiB, and what its directory says of it."""
    whole = [entry(each.encode(), part if isinstance(part, bytes) else part.encode()) for each, part in parts.items()]
    large = repeated(b" " * MIB, 300)
    told = docxs.Entry(name.encode(), large, 300 * MIB)._replace(**lies)
    return docxs.archive([told if each.name == told.name else each for each in whole])


def _docx_with(**lies: Any) -> bytes:
    return _zip_with(docxs.docx_parts(""), "word/document.xml", **lies)


def _docx(body: str, before: str = "") -> bytes:
    parts = docxs.docx_parts("")
    parts["word/document.xml"] = docxs.root("w:document", f"<w:body>{body}</w:body>", before=before)
    return docxs.packed(parts)


def _entities() -> bytes:
    laughs = "".join(f'<!ENTITY l{at} "{f"&l{at - 1};" * 10}">' for at in range(1, 10))
    return _docx(docxs.p("&l9;"), f'<!DOCTYPE x [<!ENTITY l0 "ha">{laughs}]>')


def _large_part() -> bytes:
    """A part of 1.5 GB, in an archive of some megabytes, which says so."""
    large = docxs.Entry(b"word/document.xml", repeated(b" " * MIB, 1_500), 1_500 * MIB)
    others = [
        entry(name.encode(), part.encode())
        for name, part in docxs.docx_parts("").items()
        if name != "word/document.xml" and isinstance(part, str)
    ]
    return docxs.archive([*others, large])


def _parts_in_parts(depth: int) -> bytes:
    """Built from both ends at once: put together from within it would take the square of its depth."""
    begin = b"".join(
        b'Content-Type: multipart/mixed; boundary="b%dx"\r\n\r\n--b%dx\r\n' % (at, at) for at in range(depth)
    )
    return begin + b"\r\ndeep\r\n" + b"".join(b"--b%dx--\r\n" % at for at in reversed(range(depth)))


def _patient() -> bytes:
    """Pages that draw much and say nothing, each within every limit."""
    kids = b"<</Type/Pages/Kids[" + b"3 0 R " * 5_000 + b"]/Count 5000>>"
    return raw([FIRST, kids, _page(), packed([b"0 0 m 9 9 l S " * 100_000]), pdfs.FONT])


TABLE, TABLE_END = "<w:tbl><w:tr><w:tc>", "</w:tc></w:tr></w:tbl>"
# What a library does at such a file, another of its versions may do in another way.
GIVEN_UP: Final = (DAMAGED, CRASHED, TOO_MUCH_MEMORY, TOO_LONG)
NOTHING: Final = (NO_TEXT, DAMAGED)

BOMBS: Final[dict[str, tuple[str, Callable[[], bytes], str | tuple[str, ...]]]] = {
    "pages that take their time": ("pdf", _patient, TOO_LONG),
    "1 GiB in one stream": ("pdf", lambda: _pdf_of(packed([b" " * MIB] * 1024)), BOMB),
    "10 M texts": ("pdf", lambda: _pdf_of(packed([b"BT /F1 9 Tf (x) Tj ET " * 40_000] * 250)), BOMB),
    "a form in itself": ("pdf", _form_in_itself, (*NOTHING, *GIVEN_UP)),
    "200,000 pages": ("pdf", lambda: _pages(200_000), TOO_MANY_PAGES),
    "pages in a circle": ("pdf", _loop_of_pages, NOTHING),
    "100,000 arrays": ("pdf", lambda: _arrays(100_000), NOTHING),
    "a part of 300 MiB": ("docx", _docx_with, BOMB),
    "a part that lies": ("docx", lambda: _docx_with(size=1000), DAMAGED),
    "a part that lies twice": ("docx", lambda: _docx_with(size=1000, local_size=300 * MIB), DAMAGED),
    "entities": ("docx", _entities, DAMAGED),
    "empty paragraphs": ("docx", lambda: _docx("<w:p/>" * 1_000_000), BOMB),
    "tables in tables": ("docx", lambda: _docx(f"{TABLE * 20_000}{TABLE_END * 20_000}"), BOMB),
    "a part of 1.5 GB": ("docx", _large_part, BOMB),
    "a chapter of 300 MiB": (
        "epub", lambda: _zip_with(dict(offices.parts(offices.epub({"a.xhtml": "x"}))), "OEBPS/a.xhtml"), BOMB
    ),
    "a text of 300 MiB": ("odt", lambda: _zip_with(dict(offices.parts(offices.odt(""))), "content.xml"), BOMB),
    "a slide of 300 MiB": (
        "pptx", lambda: _zip_with(dict(offices.parts(offices.pptx([""]))), "ppt/slides/slide1.xml"), BOMB
    ),
    "a sheet of 300 MiB": (
        "xlsx", lambda: _zip_with(dict(offices.parts(offices.xlsx({"S": ""}))), "xl/worksheets/sheet1.xml"), BOMB
    ),
    "10,000 parts in parts": ("eml", lambda: _parts_in_parts(10_000), BOMB),
    "1,000,000 groups": ("rtf", lambda: b"{\\rtf1 " + b"{" * 1_000_000, BOMB),
}  # fmt: skip


# ---------------------------------------------------------------- an engine, and what it leaves

# Begins a session, in which are then all processes that come of it, and becomes a program.
APART: Final = "import os, sys; os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"
# The same, but runs the program, and writes what it and every process that it waited for took at the most.
MEASURED: Final = """\
import json, os, resource, subprocess, sys
os.setsid()
subprocess.run(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as file:
    json.dump({"rss_mib": used.ru_maxrss / 1024}, file)
"""
# Put before all else that Python loads: the plugin, which is installed with the engine, is not there.
WITHOUT_PLUGIN: Final = """\
import os
access = os.access
os.access = lambda path, *more, **named: not str(path).endswith("lnk-link-documents") and access(path, *more, **named)
"""
MEMORY_MIB: Final = 512
STATE_FILES: Final = {"index.sqlite", "index.lock", "documents.lock"}


def apart(place: Place) -> list[str]:
    return [sys.executable, "-c", APART, *place.argv()]


def of_session(number: int) -> set[int]:
    """The processes of a session that run."""
    found = set()
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if os.getsid(process) == number and ") Z" not in Path(f"/proc/{process}/stat").read_text():
                found.add(process)
        except OSError:
            continue
    return found


def children(engine: int) -> set[int]:
    """The processes in which an engine that was started apart reads documents."""
    return of_session(engine) - {engine}


def unchanged(folder: Path) -> dict[str, tuple[object, ...]]:
    """All that reading a folder could change in it, but the times of reading."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        told = path.lstat()
        held = path.read_bytes() if path.is_file() else tuple(sorted(os.listdir(path)))
        found[str(path)] = (told.st_mode, told.st_uid, told.st_ino, told.st_mtime_ns, told.st_ctime_ns, held)
    return found


def reasons(session: Session) -> dict[str, str]:
    """Each document's path, and why it is left out; empty for one that is not."""
    return {each["path"]: each.get("left_out", "") for each in everything(session)}


@contextmanager
def measured(place: Place, before_all: str = "") -> Iterator[Session]:
    """A session whose program leaves no process and no file, changes no document, and keeps to the limit on memory."""
    took, temporary, loaded = (place.root / name for name in ("took", "temporary", "loaded"))
    temporary.mkdir()
    loaded.mkdir()
    (loaded / "sitecustomize.py").write_text(before_all)
    before = unchanged(place.memory)
    argv = [sys.executable, "-c", MEASURED, str(took), *place.argv()]
    env = {
        **os.environ,
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(loaded), os.environ.get("PYTHONPATH")))),
    }
    with Session(argv, env=env) as session:
        session.open()
        yield session
    assert soon(lambda: of_session(session._process.pid) == set())
    assert json.loads(took.read_text())["rss_mib"] < MEMORY_MIB
    assert unchanged(place.memory) == before
    assert left_in(temporary) == set()
    assert left_in(place.state) <= STATE_FILES
    assert check(place)["differences"] == 0


@pytest.mark.requirement("INDEX-5", "INDEX-6")
def test_of_bombs_in_one_folder_each_is_left_out_with_its_reason_and_what_is_good_is_found(place: Place) -> None:
    """Cases pdf-03, pdf-14, pdf-16, docx-07, docx-09."""
    wanted = {}
    for name, (kind, make, reason) in BOMBS.items():
        path = f"memory/{name}.{kind}"
        place.write(path, make())
        wanted[path] = reason if isinstance(reason, tuple) else (reason,)
    place.write("memory/note.md", "The boiler is in the cellar.\n")
    place.write("memory/lease.pdf", document([lines(["The lease ends on 31 March."])]), at=1_000_000_000)
    place.write("memory/letter.docx", docxs.docx(docxs.p("The walrus is well.")), at=1_000_000_000)
    with measured(place, WITHOUT_PLUGIN) as session:
        assert session.paths("boiler") == ["memory/note.md"], "before the last bomb is read"
        found = reasons(session.settled())
        assert {path: why for path, why in found.items() if why not in wanted.get(path, ("",))} == {}
        assert found.keys() == {*wanted, "memory/note.md", "memory/lease.pdf", "memory/letter.docx"}
        assert session.paths("lease ends") == ["memory/lease.pdf"]
        assert session.paths("walrus") == ["memory/letter.docx"]


# ---------------------------------------------------------------- broken by chance


def made() -> dict[str, bytes]:
    """Documents of every kind with much of what their readers know."""
    form = pdfs.with_form({"Name": "Ada"}, ticked=["Agreed"], notes=[("Text", "Bo", "right?")])
    prose = [("Heading1", "The survey"), ("Normal", "many words of a page " * 40), [["a", "b"], ["c", "d"]]]
    shown = pdfs.drawn(lines([f"packed line {number} of a page" for number in range(40)]))
    body = "<text:h text:outline-level='2'>Land</text:h><text:p>Plot<text:note><text:note-citation>1"
    body += "</text:note-citation><text:note-body><text:p>By hand.</text:p></text:note-body></text:note> one</text:p>"
    body += (
        "<text:list><text:list-item><text:p>north</text:p></text:list-item></text:list><table:table><table:table-row>"
    )
    body += (
        "<table:table-cell table:number-columns-repeated='2'><text:p>a</text:p></table:table-cell></table:table-row>"
    )
    cells = (
        offices.row(1, "a", 3.0, -0.5) + '<row r="2"><c r="A2" t="s"><v>0</v></c><c r="B2" s="1"><v>45351</v></c></row>'
    )
    page = "<h1>One &amp; only</h1><ul><li>a<ol><li>b</li></ol></li></ul><table><tr><td>x</td></tr></table>"
    page += "<pre>a\n b</pre>"
    pages = {"a.xhtml": offices.xhtml(page), "b.xhtml": offices.xhtml("<p>two</p>")}
    slides = [offices.shape("Plan", kind="title") + offices.table(["a", "b"]), offices.shape("x")]
    text = (
        r"{\*\footnote\pard By hand.}\'e9\u8364 ?{\deleted gone}\par{\listtext 1.\tab}north\par\trowd\cellx1 a\cell\row"
    )
    html = offices.mail({"Content-Type": "text/html; charset=utf-8"}, page)
    plain = offices.mail({"Content-Type": "text/plain", "Content-Transfer-Encoding": "quoted-printable"}, "=C3=A9 x")
    both = offices.multipart("alternative", plain, html, boundary="inner")
    subject = {"From": "=?utf-8?q?J=C3=B6?= <jo@example.org>", "Subject": "=?utf-8?b?R3LDvMOfZQ==?="}
    return {
        "columns.pdf": pdfs.two_columns(8),
        "form.pdf": form,
        "laid.pdf": pdfs.laid_out(prose, title="A survey"),
        "packed.pdf": raw([FIRST, ONE, _page(), packed([shown]), pdfs.FONT]),
        "letters.pdf": pdfs.with_letters({"a": "文", "b": "書", "c": "ﬁ"}, "abcabc"),
        **{f"invented{seed}.docx": docxs.packed(docxs.invented(seed).parts) for seed in range(3)},
        "survey.odt": offices.odt(body + "</table:table>", title="Survey"),
        "survey.rtf": offices.rtf(text, head=r"{\stylesheet{\s1 heading 1;}}{\info{\title Survey}}"),
        "book.epub": offices.epub(pages, title="Book"),
        "deck.pptx": offices.pptx(slides, title="Deck"),
        "sheet.xlsx": offices.xlsx({"One": cells, "Two": offices.row(9, "x")}, strings=["shared"], title="Sheet"),
        "mail.eml": offices.multipart("mixed", both, headers=subject),
    }  # fmt: skip


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, data in made().items():
        (folder / name).write_bytes(data)
    return folder


MUTATIONS: Final = 2_000
THROUGH_THE_ENGINE: Final = 150


@pytest.mark.requirement("INDEX-5", "INDEX-6")
def test_of_2000_documents_broken_by_chance_each_is_read_or_left_out_within_the_limits(
    files: Path, tmp_path: Path
) -> None:
    """Cases docx-11, pdf-14. A failure says the seed, with which `fuzz.documents` breaks the same again."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = unchanged(files)
    argv = [sys.executable, "-m", "fuzz.documents", "--count", str(MUTATIONS // len(KINDS)), "--seed", str(SEED)]
    with subprocess.Popen(
        [*argv, "--files", str(files)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as ran:
        said, complained = ran.communicate()
    found = json.loads(said)
    assert (ran.returncode, found["faults"], found["mutations"]) == (0, [], MUTATIONS), (found, complained.decode())
    assert found["rss_max_mib"] < MEMORY_MIB
    came = found["by_kind"]
    assert came.keys() == KINDS.keys()
    assert all(each.get(fuzz.READ, 0) > 0 for each in came.values()), found
    assert sum(each.get(DAMAGED, 0) for each in came.values()) > MUTATIONS // 10, found
    ended = [each for each in found["told"] if each["came"] == CRASHED]
    assert {each["kind"] for each in ended} <= {"pdf"}, f"only pdfium may end its process: {found}"
    assert len(ended) < MUTATIONS // 100, found
    assert soon(lambda: of_session(ran.pid) == set())
    assert left_in(temporary) == set() and unchanged(files) == before


def test_the_longer_run_ends_at_an_interrupt_with_what_it_found(files: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "fuzz.documents", "--minutes", "60", "--files", str(files), "--keep", str(tmp_path)]
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as ran:
        assert ran.stderr and "seed" in ran.stderr.readline() and " in " in ran.stderr.readline()
        os.killpg(ran.pid, signal.SIGINT)
        found = json.loads(ran.communicate()[0])
    assert ran.returncode == 0 and found["faults"] == [] and found["mutations"] > 0
    assert soon(lambda: of_session(ran.pid) == set())


@pytest.mark.requirement("INDEX-5", "INDEX-6")
def test_a_folder_of_documents_broken_by_chance_costs_the_engine_no_other(place: Place, files: Path) -> None:
    """Each kind in its turn; again with LNK_SEED."""
    sys.stdout.write(f"LNK_SEED={SEED}\n")
    kinds = list(KINDS)
    for number in range(THROUGH_THE_ENGINE):
        kind = kinds[number % len(kinds)]
        place.write(f"memory/{number}.{kind}", fuzz.broken(kind, number, SEED, files)[1])
    place.write("memory/note.md", "The boiler is in the cellar.\n")
    place.write("memory/lease.pdf", document([lines(["The lease ends on 31 March."])]), at=1_000_000_000)
    with measured(place) as session:
        found = reasons(session.settled())
        assert len(found) == THROUGH_THE_ENGINE + 2, f"LNK_SEED={SEED}"
        assert {path: why for path, why in found.items() if why and why not in fuzz.REASONS} == {}, f"LNK_SEED={SEED}"
        assert Counter(map(bool, found.values()))[False] > 2, f"LNK_SEED={SEED}"
        assert "memory/note.md" in session.paths("boiler")
        assert "memory/lease.pdf" in session.paths("lease ends on 31 March")


# ---------------------------------------------------------------- an engine that ends, and one without room


def _write_own(place: Place, count: int, words: int = 40) -> dict[str, str]:
    """Writes documents of every kind, each with a word that no other has; gives path and word."""
    make: Sequence[tuple[str, Callable[[str], bytes]]] = (
        ("pdf", lambda text: document([lines([text[at : at + 90] for at in range(0, len(text), 90)], step=1)])),
        ("docx", lambda text: docxs.docx(docxs.p(text))),
        ("odt", lambda text: offices.odt(f"<text:p>{text}</text:p>")),
        ("rtf", lambda text: offices.rtf(text)),
        ("eml", lambda text: offices.mail({"Subject": "x"}, text)),
    )
    own = {}
    for number in range(count):
        kind, bytes_of = make[number % len(make)]
        path, word = f"memory/d{number}.{kind}", f"own{number}x"
        more = " ".join(f"w{number}k{each}" for each in range(words))
        place.write(path, bytes_of(f"{word} {more}"), at=1_600_000_000 + number)
        own[path] = word
    return own


def _wrong(session: Session, own: dict[str, str]) -> dict[str, list[str]]:
    """What is not found by its own word alone."""
    return {word: paths for path, word in own.items() if (paths := session.paths(word)) != [path]}


def _read_so_far(place: Place) -> int:
    """How many documents the index has read."""
    try:
        db = apsw.Connection(str(place.state / "index.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error:
        return 0
    try:
        return int(db.execute("SELECT count(*) FROM documents WHERE stamp != x''").get)
    except apsw.Error:
        return 0
    finally:
        db.close()


@pytest.mark.requirement("INDEX-6", "INDEX-12")
def test_an_engine_killed_again_and_again_while_it_reads_leaves_nothing_and_the_next_reads_the_rest(
    place: Place,
) -> None:
    """Case index-04. The moments are how many documents were read by then; again with LNK_SEED."""
    sys.stdout.write(f"LNK_SEED={SEED}\n")
    own = _write_own(place, 40)
    before = unchanged(place.memory)
    for moment in (0, *sorted(random.Random(SEED).sample(range(1, 36), 5))):
        with Session(apart(place)) as session:
            session.open()
            session.list(tokens=50)
            engine = session._process.pid

            def reads(moment: int = moment, engine: int = engine) -> bool:
                return _read_so_far(place) >= moment and bool(children(engine))

            assert soon(reads), f"LNK_SEED={SEED}"
            os.kill(engine, signal.SIGKILL)
        assert soon(lambda engine=engine: of_session(engine) == set()), f"LNK_SEED={SEED}"
        assert _read_so_far(place) < len(own), "it was killed too late"
    with Session(place.argv()) as session:
        session.open()
        assert _wrong(session.settled(), own) == {}, f"LNK_SEED={SEED}"
    assert check(place)["differences"] == 0
    assert left_in(place.state) <= STATE_FILES
    assert unchanged(place.memory) == before


@pytest.mark.requirement("INDEX-12")
def test_a_disk_that_fills_while_documents_are_read_costs_none_of_them(place: Place) -> None:
    """What was read is still found; when there is room it goes on, and nothing has to be started again."""
    place.write("memory/note.md", "The boiler is in the cellar.\n")
    heard: list[str] = []
    with small_disk(place.state, "600k"):
        with Session(apart(place), hear=heard.append) as session:
            session.open()
            settled(session)
            own = _write_own(place, 60, words=1_500)
            before = unchanged(place.memory)
            session.list(tokens=50)
            assert soon(lambda: any("full" in line or "No space" in line for line in heard)), heard
            assert session.paths("boiler") == ["memory/note.md"]
            remounted(place.state, "size=60m")
            assert _wrong(session.settled(), own) == {}
            engine = session._process.pid
            assert soon(lambda: children(engine) == set())
        assert unchanged(place.memory) == before
        assert check(place)["differences"] == 0
        assert left_in(place.state) <= STATE_FILES


@pytest.mark.requirement("INDEX-12")
@pytest.mark.parametrize("name", ["index.sqlite", "documents.lock"])
def test_documents_that_cannot_be_kept_for_want_of_a_right_wait_until_it_is_there(place: Place, name: str) -> None:
    """No document is read for nothing meanwhile, and what was read before is found."""
    old = _write_own(place, 5)
    with Session(place.argv()) as session:
        session.open()
        assert _wrong(session.settled(), old) == {}
    own = _write_own(place, 10)
    heard: list[str] = []
    (place.state / name).chmod(0o400)
    with Session(ordinary(apart(place)), hear=heard.append) as session:
        session.open()
        assert _wrong(session, old) == {}
        found = session.search("own9x")
        assert found["results"] == [] and ("indexed" in found or "stale" in found)
        assert children(session._process.pid) == set()
    (place.state / name).chmod(0o600)
    with Session(place.argv()) as session:
        session.open()
        assert _wrong(session.settled(), own) == {}
    assert check(place)["differences"] == 0


@pytest.mark.requirement("INDEX-12")
def test_two_engines_over_one_index_read_each_document_once(place: Place) -> None:
    """Counted by the programs that both start."""
    needs_strace()
    own = {f"memory/p{number}.pdf": f"own{number}x" for number in range(60)}
    for path, word in own.items():
        place.write(path, document([lines([f"The paper {word}."])]))
    traces = [place.root / "one", place.root / "two"]
    sessions = []
    try:
        for trace in traces:
            traced = ["strace", "-f", "--seccomp-bpf", "-qq", "-s", "2000", "-e", "trace=execve", "-o", str(trace)]
            sessions.append(Session([*traced, *place.argv()]))
        for session in sessions:
            session.open()
        for session in sessions:  # both have looked, and want to read, before either waits
            assert "indexed" in session.list(tokens=50)
        for session in sessions:
            assert _wrong(session.settled(), own) == {}
    finally:
        for session in sessions:
            session.close()
    begun = [trace.read_text().count("from lnk.documents.child import") for trace in traces]
    assert sum(begun) == len(own), begun
