"""A document is read by a child that can do nothing else; what is wrong with it, or with the child, costs it alone."""

import contextlib
import ctypes
import io
import json
import os
import select
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from ends import caged
from ends.faults import needs_root, skip_loudly, soon
from lnk.documents.cage import Cage, Stopped
from lnk.documents.child import FILE_TOO_LARGE, Limits
from lnk.documents.content import (
    CRASHED,
    FILE_BYTES_MAX,
    KINDS,
    NO_TEXT,
    TEXT_BYTES_MAX,
    TEXT_TOO_LARGE,
    TOO_LONG,
    TOO_MUCH_MEMORY,
    Content,
    Kind,
    LeftOut,
)

HERE: Final = Path(__file__).parent
NOBODY: Final = 65534
CLOSED: Final = {"EPERM", "RuntimeError", "ValueError"}  # Python's words for no new thread, and no new limit
READS: Final = 100  # twice

Program = Callable[..., Cage]
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has Landlock and seccomp")


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kind of document says in JSON what its reader shall do."""
    monkeypatch.setitem(KINDS, caged.KIND, Kind("ends.caged"))


def read(cage: Cage, data: bytes, kind: str = caged.KIND) -> Content:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return cage.read(file.fileno(), kind)


def do(deed: str, *, cage: Cage | None = None, **told: Any) -> Content:
    """What comes of a document at whose bytes the reader does this."""
    return read(cage or Cage(), json.dumps({"do": deed, **told}).encode())


def left_out(deed: str, *, limits: Limits | None = None, **told: Any) -> str:
    """Why such a document is left out."""
    with pytest.raises(LeftOut) as raised:
        do(deed, cage=Cage(limits=limits) if limits else None, **told)
    return str(raised.value)


# ---------------------------------------------------------------- what a document can do


@linux
@pytest.mark.requirement("INDEX-6")
def test_a_document_that_took_its_reader_over_can_do_nothing() -> None:
    secret = ctypes.create_string_buffer(caged.SECRET)
    with caged.bait() as told:
        probes = json.loads(do(deed=told.pop("do"), **told, address=ctypes.addressof(secret)).text)
        assert Path(told["file"]).read_bytes() == caged.SECRET
    assert {name: came for name, came in probes.items() if came not in CLOSED} == {}
    assert probes.keys() == caged.attempts({"file": "", "folder": ""}).keys()


@linux
@pytest.mark.requirement("INDEX-6")
def test_nor_can_it_where_the_engine_is_an_ordinary_users(tmp_path: Path) -> None:
    needs_root("become another user")
    become = f"import os, sys; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); "
    become += f"os.execv({sys.executable!r}, [sys.executable, '-c', 'import lnk.documents.child'])"
    if subprocess.run([sys.executable, "-c", become], capture_output=True, check=False).returncode:
        skip_loudly("another user cannot run this interpreter and checkout, and read no document")
    document = tmp_path / "document"
    with caged.bait() as told:
        document.write_text(json.dumps(told))
        argv = [sys.executable, str(HERE / "ends" / "caged.py"), str(NOBODY), "", "cage", str(document)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert Path(told["file"]).read_bytes() == caged.SECRET
    assert done.returncode == 0, done.stderr
    probes = json.loads(done.stdout)["probes"]
    assert {name: came for name, came in probes.items() if came not in CLOSED} == {}


@pytest.mark.requirement("INDEX-6")
def test_it_is_given_the_document_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "x")
    with open(os.devnull, "rb") as held:
        os.set_inheritable(held.fileno(), True)
        given = json.loads(do("about").text)
    assert given == {"environment": {}, "descriptors": [0, 1, 2], "nice": os.getpriority(os.PRIO_PROCESS, 0) + 10}


# ---------------------------------------------------------------- what it says


@pytest.mark.requirement("INDEX-4")
def test_the_text_the_pages_and_the_title_come_as_the_reader_gave_them() -> None:
    text = "# Ünï\n\n\t漢字 😀 \u202f\u2028 end"
    assert do("text", text=text, pages=[1, 3, 3], title="T") == Content(text, [1, 3, 3], "T")
    assert do("text", text="x") == Content("x")


def test_a_document_is_read_from_its_beginning_each_time() -> None:
    cage = Cage()
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps({"do": "text", "text": "again"}).encode())
        file.flush()
        assert [cage.read(file.fileno(), caged.KIND).text for _ in range(2)] == ["again"] * 2


@pytest.mark.requirement("INDEX-5")
def test_a_document_or_a_text_over_its_limit_is_left_out_and_one_at_the_limit_is_not() -> None:
    """Case pdf-18."""
    assert len(do("text", text="ä", times=TEXT_BYTES_MAX // 2).text.encode()) == TEXT_BYTES_MAX
    assert left_out("text", text="ä", times=TEXT_BYTES_MAX // 2 + 1) == TEXT_TOO_LARGE
    told = json.dumps({"do": "text", "text": "x"}).encode()
    assert read(Cage(), told.ljust(FILE_BYTES_MAX)).text == "x"
    with pytest.raises(LeftOut, match=FILE_TOO_LARGE):
        read(Cage(), told.ljust(FILE_BYTES_MAX + 1))


@pytest.mark.parametrize("text", ["", " \n\t", "\u00a0\u2003\u200b\x0c\u2028"])
def test_a_text_of_which_nothing_can_be_seen_is_none(text: str) -> None:
    assert left_out("text", text=text) == NO_TEXT


def test_a_readers_own_reason_is_given() -> None:
    assert left_out("leave", reason="it is encrypted") == "it is encrypted"


# ---------------------------------------------------------------- what goes wrong in the child


@pytest.mark.requirement("INDEX-6")
@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("deep", {}),
        ("die", {}),
        ("exit", {"status": 0}),
        ("exit", {"status": 3}),
        ("fail", {"by": "KeyError"}),
        ("fail", {"by": "SystemExit"}),
        ("fail", {"by": "KeyboardInterrupt"}),
        ("late", {"module": "mailbox"}),
        ("text", {"text": "\ud800"}),
        ("text", {"text": 7}),
        ("text", {"text": "one line", "pages": [2]}),
        ("leave", {"reason": "two\nlines"}),
        ("leave", {"reason": ""}),
    ],
)
def test_a_reader_that_crashes_costs_its_document_and_no_other(
    deed: str, told: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    cage = Cage()
    with pytest.raises(LeftOut, match=CRASHED):
        do(deed, cage=cage, **told)
    assert do("text", cage=cage, text="another").text == "another"
    assert capfd.readouterr() == ("", "")


def test_a_kind_whose_module_cannot_be_imported_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, caged.KIND, Kind("lnk.documents.none"))
    assert left_out("text", text="x") == CRASHED


@pytest.mark.requirement("INDEX-6")
def test_a_document_that_takes_too_much_memory_is_left_out_for_that() -> None:
    """Case pdf-01."""
    small = Limits(memory_bytes=256 << 20)
    assert do("memory", bytes=300 << 20).text == f"{300 << 20} bytes"
    assert left_out("memory", limits=small, bytes=300 << 20) == TOO_MUCH_MEMORY
    assert left_out("memory", bytes=600 << 20) == TOO_MUCH_MEMORY


@pytest.mark.requirement("INDEX-6")
def test_a_document_that_takes_too_long_is_left_out_for_that() -> None:
    """Case pdf-16."""
    assert left_out("processor", limits=Limits(cpu_s=1), seconds=10) == TOO_LONG
    assert left_out("wait", limits=Limits(wall_s=1), seconds=20) == TOO_LONG


# ---------------------------------------------------------------- another program, and a child that was taken over


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    """The path of a program that is this Python code."""
    numbers = iter(range(100))

    def write(code: str) -> str:
        file = tmp_path / f"program{next(numbers)}"
        file.write_text(f"#!{sys.executable} -IS\nimport os, signal, sys, time\n{code}\n")
        file.chmod(0o755)
        return str(file)

    return write


@pytest.fixture
def program(written: Callable[[str], str]) -> Program:
    """A cage that runs this Python code instead, as a program of its own."""
    return lambda code, **limits: Cage(written(code), Limits(**limits))


def says(answer: bytes) -> str:
    """The code of a program that says it."""
    return f"data = {answer!r}\nwhile data: data = data[os.write(1, data):]"


def reason(cage: Cage, kind: str = "docx") -> str:
    with pytest.raises(LeftOut) as raised:
        read(cage, b"document", kind)
    return str(raised.value)


@pytest.mark.requirement("DOCS-1")
def test_another_program_is_told_the_kind_and_reads_the_document_from_its_input(program: Program) -> None:
    cage = program(
        "import json, resource\n"
        "limits = [resource.getrlimit(each)[0] for each in (9, 0, 1, 7, 4)]\n"
        "os.environ.pop('LC_CTYPE', None)\n"
        "given = [sys.argv[1:], sys.stdin.read(), dict(os.environ), os.getcwd(), limits]\n"
        "print(json.dumps({'text': json.dumps(given), 'pages': [1], 'title': None}))"
    )
    given = [["text", "docx"], "document", {}, "/", [512 << 20, 20, 0, 16, 0]]
    assert read(cage, b"document", "docx") == Content(json.dumps(given), [1])


@pytest.mark.requirement("INDEX-6")
def test_a_pdf_at_which_its_readers_process_dies_is_read_by_the_other_reader(program: Program) -> None:
    """cases pdf-01, pdf-02: some files abort the process of the quick one."""
    assert read(program("os.abort()"), _pdf("Needle in a page"), "pdf").text == "Needle in a page\n"
    assert reason(program("os.abort()")) == CRASHED, "where there is no other"
    hopeless = program("os.abort()")
    with pytest.raises(LeftOut, match="damaged"):
        read(hopeless, b"%PDF-1.7 nothing", "pdf")


@pytest.mark.requirement("DOCS-1")
def test_another_programs_reason_is_given(program: Program) -> None:
    assert reason(program(says(b'{"left_out":"it is damaged"}'))) == "it is damaged"


@pytest.mark.requirement("DOCS-1")
def test_a_program_that_is_not_there_reads_nothing(tmp_path: Path) -> None:
    assert reason(Cage(str(tmp_path / "none"))) == CRASHED


@pytest.mark.requirement("INDEX-6", "DOCS-1")
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\n",
        b"text",
        b"null",
        b"[]",
        b"{}",
        b'{"text":null}',
        b'{"text":7}',
        b'{"text":""}',
        b'{"text":" \\n"}',
        b'{"text":"a"',
        b'{"text":"a"}{"text":"b"}',
        b'{"text":"a"} b',
        b'{"text":"a\\u0000"}',
        b'{"text":"\\ud800"}',
        b'{"text":"\\udc00b"}',
        b'{"text":"\xff"}',
        b'{"text":"\xed\xa0\x80"}',
        b'{"text":"a","more":1}',
        b'{"text":"a","left_out":"it is damaged"}',
        b'{"left_out":"it is damaged","pages":[1]}',
        b'{"left_out":"it is damaged","title":"a"}',
        b'{"left_out":""}',
        b'{"left_out":7}',
        b'{"left_out":"one\\ntwo"}',
        b'{"left_out":"' + b"a" * 201 + b'"}',
        b'{"text":"a","title":7}',
        b'{"text":"a","pages":null}',
        b'{"text":"a","pages":[0]}',
        b'{"text":"a","pages":[-1]}',
        b'{"text":"a","pages":[2]}',
        b'{"text":"a\\nb\\nc","pages":[1,3,2]}',
        b'{"text":"a","pages":[1.0]}',
        b'{"text":"a","pages":["1"]}',
        b'{"text":"a","pages":[' + b"9" * 5000 + b"]}",
        b"[" * 100_000,
        b'{"text":"' + b"a" * (TEXT_BYTES_MAX + 1) + b'"}',
    ],
    ids=lambda answer: repr(answer[:40]),
)
def test_what_is_no_right_answer_is_a_crash(program: Program, answer: bytes) -> None:
    assert reason(program(says(answer))) == CRASHED


def test_the_longest_answer_is_taken() -> None:
    """Every character of the text as JSON writes it at its longest."""
    assert do("text", text="a" + "\x01" * (TEXT_BYTES_MAX - 1)).text == "a" + "\x01" * (TEXT_BYTES_MAX - 1)


@pytest.mark.requirement("INDEX-6", "DOCS-1")
def test_a_flood_is_not_held(program: Program) -> None:
    assert reason(program("while True: os.write(1, b' ' * 65536)", wall_s=20)) == CRASHED


@pytest.mark.requirement("INDEX-6", "DOCS-1")
@pytest.mark.parametrize("which", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM", "SIGBUS", "SIGPIPE", "SIGXFSZ"])
def test_a_child_that_ends_by_a_signal_crashed(program: Program, which: str) -> None:
    as_usual = "" if which == "SIGKILL" else f"signal.signal(signal.{which}, signal.SIG_DFL)\n"
    assert reason(program(f"{as_usual}os.kill(os.getpid(), signal.{which})")) == CRASHED


@pytest.mark.requirement("INDEX-6", "DOCS-1")
def test_a_child_that_works_or_waits_for_too_long_is_ended_and_that_is_said(program: Program) -> None:
    assert reason(program("while time.process_time() < 10: pass", cpu_s=1)) == TOO_LONG
    deaf = "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
    assert reason(program(f"{deaf}time.sleep(60)", wall_s=1)) == TOO_LONG
    slow = "for _ in range(600): os.write(1, b' '); time.sleep(0.1)"
    assert reason(program(f"{deaf}{slow}", wall_s=1)) == TOO_LONG


@pytest.mark.requirement("DOCS-1")
def test_what_it_writes_beside_its_answer_is_seen_by_nobody(
    program: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    assert read(program("os.write(2, b'noise')\n" + says(b'{"text":"a"}')), b"").text == "a"
    assert capfd.readouterr() == ("", "")


@contextlib.contextmanager
def lives(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A pipe by its name, and its end to read: there is something to read while, and only while, somebody writes."""
    path = tmp_path / "lives"
    os.mkfifo(path)
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield path, end
    finally:
        os.close(end)


def ended(end: int) -> bool:
    """Whether everybody who wrote has ended; they wrote before."""
    waiting = select.poll()
    waiting.register(end, select.POLLIN)
    return soon(lambda: bool(waiting.poll(0)) and os.read(end, 1 << 16) == b"")


def writing(path: Path) -> str:
    """The code of a program that writes there, and goes on holding it."""
    return f"lives = os.open({str(path)!r}, os.O_WRONLY)\nos.write(lives, b'x')\n"


@pytest.mark.requirement("INDEX-6", "DOCS-1")
@pytest.mark.parametrize(
    "then",
    ["if os.fork(): os._exit(0)\ntime.sleep(60)", "os.fork(); os.close(1); time.sleep(60)"],
    ids=["a child of its own holds its output", "it closes its output and stays"],
)
def test_an_answer_is_taken_when_it_is_there_and_what_is_left_of_the_program_is_ended(
    program: Program, tmp_path: Path, then: str
) -> None:
    with lives(tmp_path) as (path, end):
        cage = program("\n".join((writing(path), says(b'{"text":"a"}'), then)))
        assert read(cage, b"").text == "a"
        assert ended(end)


def test_an_answer_that_comes_while_nobody_looks_is_heard(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lnk.documents.cage.LOOK_S", 0.0)
    cage = program(says(b'{"text":"a"}'))
    assert {read(cage, b"").text for _ in range(30)} == {"a"}


@pytest.mark.requirement("INDEX-6")
def test_two_documents_are_read_at_once(program: Program, tmp_path: Path) -> None:
    """Each waits for the other to be there."""
    path = tmp_path / "both"
    os.mkfifo(path)
    cage = program(f"open({str(path)!r}, 'r' if sys.argv[2] == 'pdf' else 'w')\n" + says(b'{"text":"a"}'), wall_s=60)
    with ThreadPoolExecutor() as threads:
        both = list(threads.map(lambda kind: read(cage, b"", kind).text, ["pdf", "docx"]))
    assert both == ["a", "a"]


@pytest.mark.requirement("INDEX-6")
def test_a_cage_that_is_stopped_ends_every_child_and_starts_no_other(program: Program, tmp_path: Path) -> None:
    with lives(tmp_path) as (path, end):
        cage = program(f"{writing(path)}time.sleep(60)", wall_s=600)
        with ThreadPoolExecutor() as threads:
            waiting = [threads.submit(read, cage, b"") for _ in range(2)]
            seen = bytearray()

            def both() -> bool:
                with contextlib.suppress(BlockingIOError):
                    seen.extend(os.read(end, 2))
                return len(seen) == 2

            assert soon(both)
            cage.stop()
            for each in waiting:
                with pytest.raises(Stopped):
                    each.result()
        assert ended(end)
        with pytest.raises(Stopped):
            read(cage, b"")
    cage.stop()


@linux
@pytest.mark.requirement("INDEX-6")
def test_no_child_outlives_an_engine_that_is_killed(tmp_path: Path) -> None:
    document = tmp_path / "document"
    document.write_text(json.dumps({"do": "wait", "seconds": 600}))
    argv = [sys.executable, str(HERE / "ends" / "caged.py"), str(os.getuid()), "", "cage", str(document)]
    with subprocess.Popen(argv) as engine:
        children: list[int] = []

        def begun() -> bool:
            for task in Path(f"/proc/{engine.pid}/task").iterdir():
                children.extend(map(int, (task / "children").read_text().split()))
            return bool(children)

        assert soon(begun)
        child = os.pidfd_open(children[0])
        engine.kill()
    waiting = select.poll()
    waiting.register(child, select.POLLIN)
    assert waiting.poll(20_000)
    os.close(child)


@linux
@pytest.mark.requirement("INDEX-6", "DOCS-1")
def test_nor_does_another_program(written: Callable[[str], str], tmp_path: Path) -> None:
    with lives(tmp_path) as (path, end):
        other = written(f"{writing(path)}time.sleep(600)")
        code = f"import sys; from lnk.documents.cage import Cage; Cage({other!r}).read(0, 'pdf')"
        with open(other) as document, subprocess.Popen([sys.executable, "-c", code], stdin=document) as engine:
            waiting = select.poll()
            waiting.register(end, select.POLLIN)
            assert waiting.poll(60_000)
            engine.kill()
        assert ended(end)


@linux
@pytest.mark.requirement("INDEX-6")
def test_many_documents_leave_no_descriptor_and_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain.py").write_text(
        "import os\nfrom lnk.documents.content import Content\n"
        "def read(data):\n    return Content(data.decode()) if data != b'bad' else os._exit(1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(KINDS, caged.KIND, Kind("plain"))
    cage = Cage()

    def came(text: str) -> str:
        try:
            return read(cage, text.encode()).text
        except LeftOut as error:
            return str(error)

    before = len(os.listdir("/dev/fd"))
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(came, ["good", "bad"] * READS)) == ["good", CRASHED] * READS
    assert len(os.listdir("/dev/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


# ---------------------------------------------------------------- the readers themselves


def _pdf(text: str) -> bytes:
    """One page that shows this."""
    shown = f"BT /F 12 Tf 72 720 Td ({text}) Tj ET"
    parts = (
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R"
        "/Resources<</Font<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>>>",
        f"<</Length {len(shown)}>>stream\n{shown}\nendstream",
    )
    body, starts = "%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        starts.append(len(body))
        body += f"{number} 0 obj\n{part}\nendobj\n"
    table = "".join(f"{at:010} 00000 n \n" for at in starts)
    end = f"trailer\n<</Root 1 0 R/Size 5>>\nstartxref\n{len(body)}\n%%EOF\n"
    return f"{body}xref\n0 5\n0000000000 65535 f \n{table}{end}".encode()


def _docx(text: str) -> bytes:
    """One paragraph of this, and no part that is not needed."""
    w = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        body = f"<body><p><r><t>{text}</t></r></p></body>"
        archive.writestr("word/document.xml", f'<document xmlns="{w}">{body}</document>')
    return made.getvalue()


@pytest.mark.requirement("INDEX-4", "INDEX-6")
@pytest.mark.parametrize(("kind", "made"), [("pdf", _pdf), ("docx", _docx)], ids=["pdf", "docx"])
def test_documents_are_read_by_a_reader_that_can_open_nothing(kind: str, made: Callable[[str], bytes]) -> None:
    content = read(Cage(), made("Needle in a page"), kind)
    assert content.text.split("\n")[0] == "Needle in a page"
    for cut in (b"", made("Needle")[:20], b"\xff" * 1000):
        with pytest.raises(LeftOut, match="damaged"):
            read(Cage(), cut, kind)
