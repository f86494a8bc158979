"""PDF and Word documents in the folder: found by what they say, with their pages, or left out with a reason."""

import io
import json
import os
import re
import subprocess
import zipfile
from array import array
from typing import Final

import pytest

from conftest import ENGINE, Person, Session
from ends.faults import needs_strace, soon
from ends.pdfs import document, lines, string
from lnk import confine
from lnk.memory.parse import pages_of, written_title

LEASE: Final = [
    lines(["The flat lies in the Gartenweg.", "It has four rooms and a cellar."]),
    lines(["The rent is 840 euro a month.", "A deposit of three months is due."]),
    lines(["The lease ends on 31 March.", "Pets need the landlord's word."]),
]
WORD: Final = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
KINDS: Final = "http://schemas.openxmlformats.org/package/2006/content-types"
PARTS: Final = "http://schemas.openxmlformats.org/package/2006/relationships"
MAIN: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"


def word(*paragraphs: str) -> bytes:
    """A Word document of these paragraphs."""
    body = "".join(f"<w:p><w:r><w:t>{each}</w:t></w:r></w:p>" for each in paragraphs)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("[Content_Types].xml", f'<Types xmlns="{KINDS}"/>')
        parts.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{PARTS}"><Relationship Id="a" Type="{MAIN}" Target="word/document.xml"/>'
            "</Relationships>",
        )
        parts.writestr("word/document.xml", f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>')
    return data.getvalue()


def read(session: Session) -> Session:
    """Waits until every document is read."""
    return session.settled()


def left_out(session: Session) -> dict[str, str]:
    return {each["path"]: each["left_out"] for each in session.list()["documents"] if "left_out" in each}


@pytest.mark.requirement("INDEX-4")
def test_a_pdf_is_found_by_what_it_says_and_the_answer_says_on_which_page(place, session):
    file = place.write("memory/lease.pdf", document(LEASE), at=1_600_000_000)
    before = (file.stat(), file.read_bytes())
    memory = read(session())
    (found,) = memory.search("when does the lease end")["results"]
    assert (found["path"], found["title"], found["pages"]) == ("memory/lease.pdf", "lease", [1, 3])
    assert "The lease ends on 31 March." in found["text"]
    whole = memory.call("read", {"path": "memory/lease.pdf"}).structured
    assert whole["pages"] == [1, 3]
    line = whole["text"].split("\n").index("The lease ends on 31 March.") + 1
    part = memory.call("read", {"path": "memory/lease.pdf", "line": line}).structured
    assert (part["pages"], part["lines"][0]) == ([3, 3], line)
    assert (file.stat().st_mtime_ns, file.stat().st_ctime_ns) == (before[0].st_mtime_ns, before[0].st_ctime_ns)
    assert file.read_bytes() == before[1]


@pytest.mark.requirement("INDEX-4")
def test_a_word_document_is_found_by_what_it_says(place, session):
    place.write("memory/letters/To Hansen.docx", word("Dear Mr Hansen,", "the boiler loses pressure again."))
    (found,) = read(session()).search("boiler pressure")["results"]
    assert (found["path"], found["title"]) == ("memory/letters/To Hansen.docx", "To Hansen")
    assert "pages" not in found


@pytest.mark.requirement("INDEX-4", "INDEX-12")
def test_a_document_that_changes_or_goes_is_found_by_what_it_says_now(place, session):
    file = place.write("memory/note.docx", word("The key is with Ana."))
    memory = read(session())
    assert memory.paths("Ana") == ["memory/note.docx"]
    place.write("memory/note.docx", word("The key is with Bruno."))
    assert soon(lambda: memory.paths("Bruno") == ["memory/note.docx"])
    assert memory.paths("Ana") == []
    now = memory.list()["now"]
    file.unlink()
    assert memory.paths("Bruno") == []
    assert [each["path"] for each in memory.list(since=now)["removed"]] == ["memory/note.docx"]
    place.write("memory/note.docx", word("The key is with Chiara."))
    assert soon(lambda: memory.paths("Chiara") == ["memory/note.docx"])
    assert "removed" not in memory.list(since=now)


@pytest.mark.requirement("CONTRACT-15")
def test_what_a_document_said_before_is_overwritten_in_the_index(place, session):
    place.write("memory/note.docx", word("The password is hollyhock."))
    memory = read(session())
    place.write("memory/note.docx", word("There is no such thing."))
    assert soon(lambda: memory.paths("thing") == ["memory/note.docx"])
    assert soon(lambda: not any(b"hollyhock" in file.read_bytes() for file in place.state.iterdir()))


@pytest.mark.requirement("INDEX-5", "INDEX-6")
def test_a_document_that_cannot_be_read_is_left_out_whole_with_its_reason_and_costs_no_other(place, session):
    locked = b"/Encrypt<</Filter/Standard/V 1/R 2/O<%s>/U<%s>/P -4>>/ID[<00><00>]" % (b"11" * 32, b"22" * 32)
    wanted = {
        "encrypted.pdf": (document(LEASE, trailer=locked), "it is encrypted"),
        "damaged.pdf": (b"%PDF-1.7\n" + os.urandom(4000), "it is damaged"),
        "empty.pdf": (b"", "it is damaged"),
        "scanned.pdf": (document([b"0 0 100 100 re f"]), "no text: scanned?"),
        "damaged.docx": (b"PK\3\4" + os.urandom(400), "it is damaged"),
        "long.docx": (word(" ".join(map(str, range(400_000)))), "its text is over 2 MiB"),
        "old.doc": (b"\xd0\xcf\x11\xe0", "this old format is not read; save it as .docx, .xlsx or .pptx"),
    }
    for name, (data, _) in wanted.items():
        place.write(f"memory/{name}", data)
    with place.write("memory/large.pdf", b"%PDF-1.7\n").open("r+b") as file:
        file.truncate((32 << 20) + 1)
    place.write("memory/lease.pdf", document(LEASE))
    place.write("memory/note.md", "# Note\n\nThe boiler.\n")
    memory = read(session())
    assert left_out(memory) == {f"memory/{name}": why for name, (_, why) in wanted.items()} | {
        "memory/large.pdf": "it is over 32 MiB"
    }
    assert memory.paths("lease") == ["memory/lease.pdf"] and memory.paths("boiler") == ["memory/note.md"]
    said = memory.call("read", {"path": "memory/scanned.pdf"})
    assert said.failed and "no text: scanned?" in said.text
    told = subprocess.run(
        [ENGINE, "status", str(place.home), str(place.state), str(place.agent), "--json"], capture_output=True
    )
    assert b"it is encrypted" in told.stdout


@pytest.mark.requirement("INDEX-6")
def test_what_was_left_out_is_not_read_again_until_it_changes(place, session):
    file = place.write("memory/lease.pdf", b"%PDF-1.7 nothing", at=1_600_000_000)
    read(session()).close()
    read(
        session(),
    ).close()
    seen = place.root / "seen"
    needs_strace()
    traced = ["strace", "-f", "-qq", "-s", "2000", "-e", "trace=execve", "-o", str(seen)]
    with Session([*traced, *place.argv()]) as again:
        again.open()
        assert left_out(read(again)) == {"memory/lease.pdf": "it is damaged"}
        assert "lnk.documents" not in seen.read_text()
        file.write_bytes(document(LEASE))
        assert soon(lambda: again.paths("lease") == ["memory/lease.pdf"])
        assert "lnk.documents" in seen.read_text()


@pytest.mark.requirement("INDEX-4")
def test_notes_are_searchable_before_the_first_document_is_read_and_the_answer_says_how_far(place, session):
    for number in range(12):
        place.write(f"memory/p{number}.pdf", document([lines([f"The paper number{number}x."])]))
    place.write("memory/note.md", "# Note\n\nThe boiler.\n")
    memory = session()
    found = memory.search("boiler")
    assert [each["path"] for each in found["results"]] == ["memory/note.md"]
    assert soon(lambda: memory.paths("number7x") == ["memory/p7.pdf"])
    read(memory)
    assert {each for number in range(12) for each in memory.paths(f"number{number}x")} == {
        f"memory/p{number}.pdf" for number in range(12)
    }


@pytest.mark.requirement("INDEX-12")
def test_two_sessions_over_one_index_find_every_document(place, session):
    for number in range(12):
        place.write(f"memory/p{number}.pdf", document([lines([f"The paper number{number}x."])]))
    one, two = session(), session()
    for memory in (one, two):
        read(memory)
        assert memory.paths("number7x") == ["memory/p7.pdf"]


@pytest.mark.requirement("INDEX-4")
@pytest.mark.parametrize(
    ("title", "taken"),
    [
        ("Lease of the flat in the Gartenweg", "Lease of the flat in the Gartenweg"),
        ("Mietvertrag Gartenweg 12", "Mietvertrag Gartenweg 12"),
        ("  Annual   report\n2024 ", "Annual report 2024"),
        ("Microsoft Word - lease_v3.doc", None),
        ("lease_final_2.docx", None),
        ("C:\\Users\\ana\\lease.doc", None),
        ("untitled", None),
        ("Untitled document", None),
        ("PowerPoint Presentation", None),
        ("Lease", None),
        ("2024-03-31", None),
        ("", None),
        (None, None),
    ],
)
def test_a_documents_own_title_counts_where_a_person_wrote_it(title, taken):
    assert written_title(title) == taken


@pytest.mark.requirement("INDEX-4")
def test_a_pdfs_own_title_is_its_title(place, session):
    info = b"<</Title %s>>" % string("Lease of the flat in the Gartenweg")
    place.write("memory/scan0001.pdf", document(LEASE, more=[info], trailer=b"/Info 4 0 R"))
    (found,) = read(session()).search("Gartenweg lease")["results"]
    assert found["title"] == "Lease of the flat in the Gartenweg"


def test_pages_are_those_of_the_lines():
    pages = array("I", [1, 4, 4, 9]).tobytes()
    assert [pages_of(pages, *each) for each in ((1, 3), (1, 4), (4, 8), (8, 9), (20, 20))] == [
        [1, 1], [1, 3], [3, 3], [3, 4], [4, 4]
    ]  # fmt: skip
    assert pages_of(None, 1, 3) is pages_of(b"", 1, 3) is None


@pytest.mark.requirement("INDEX-12")
def test_when_the_engine_is_killed_while_it_reads_the_next_one_reads_the_rest(place, session):
    for number in range(30):
        place.write(f"memory/p{number}.pdf", document([lines([f"The paper number{number}x."])]))
    first = session()
    assert soon(lambda: "indexed" in first.list() or first.paths("number3x"))
    first._process.kill()
    memory = session()
    read(memory)
    assert all(memory.paths(f"number{number}x") == [f"memory/p{number}.pdf"] for number in range(30))


@pytest.mark.requirement("INDEX-4")
def test_without_the_extra_office_such_a_file_is_left_out_with_the_reason_that_names_it(place, open_session, tmp_path):
    without = tmp_path / "without"
    without.mkdir()
    (without / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name in ('python_calamine', 'striprtf') else find(name, *more)\n"
    )
    place.write("memory/table.xlsx", b"PK\3\4")
    place.write("memory/lease.pdf", document(LEASE))
    told = {**os.environ, "PYTHONPATH": str(without)}
    memory = read(open_session(place.argv(), env=told))
    assert left_out(memory) == {"memory/table.xlsx": "reading it needs the extra `office`"}
    assert memory.paths("lease") == ["memory/lease.pdf"]
    memory.close()
    memory = read(open_session(place.argv()))
    assert left_out(memory) == {"memory/table.xlsx": "it is damaged"}, "read by the first session that can"


@pytest.mark.requirement("INDEX-6")
def test_status_says_what_a_parser_could_still_do_where_the_kernel_cannot_close_it(place):
    """A kernel that lacks something is one whose calls fail as on such a kernel."""
    needs_strace()
    status = [ENGINE, "status", str(place.home), str(place.state), "--json"]
    told = json.loads(subprocess.run(status, capture_output=True, check=True).stdout)
    assert told.get("parsers", []) == confine.open_points()
    for calls, said in (
        ("landlock_create_ruleset", confine.NO_LANDLOCK),
        ("prctl", confine.NO_SECCOMP),
        ("landlock_create_ruleset,prctl", confine.NEITHER),
    ):
        without = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={calls}:error=ENOSYS"]
        told = json.loads(subprocess.run([*without, *status], capture_output=True, check=True).stdout)
        assert told["parsers"] == [said]


@pytest.mark.requirement("INDEX-4")
def test_a_person_sees_the_page_of_a_passage(tmp_path):
    person = Person(tmp_path)
    papers = tmp_path / "Papers"
    papers.mkdir()
    long = [lines([f"Chapter{page} begins.", *["word " * 15] * 40]) for page in range(1, 4)]
    (papers / "lease.pdf").write_bytes(document(long))
    shown = person.shows("agent", "memory", "try", "Chapter3", "--documents", str(papers))
    assert re.search(r"memory/lease.pdf  [-0-9]+  pages? (2-)?3\n", shown), shown
