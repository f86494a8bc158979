"""The agent's notes: the one file that the engine writes, a line a note, and what a person wrote in it stays."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from conftest import ENGINE, Place, Session
from ends.faults import left_in, ordinary
from lnk.errors import Conflict, Full, Invalid, LinkError, Missing, Refused
from lnk.folder import Folder
from lnk.memory.notes import Kept, Notes, prompt_text

Open = Callable[..., Session]
MEMORY = "/dev/shm"  # where a sync costs nothing
# What ends a line somewhere else, and not here: VT, FF, the separators, NEL, LINE and PARAGRAPH SEPARATOR.
NO_LINE_ENDS = ("\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r")


@pytest.fixture
def notes(place: Place) -> Notes:
    """The notes of `place` at the size that Link gives them."""
    return Notes(str(place.notes), 4096)


def everything_under(root: Path, *but: Path) -> dict[str, tuple[bytes, int, int]]:
    """Each file beneath `root`: its bytes, mode and time of change, but for these and what is in them."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and not any(path == one or one in path.parents for one in but):
            told = path.stat()
            found[str(path.relative_to(root))] = (path.read_bytes(), told.st_mode, told.st_mtime_ns)
    return found


def command(place: Place, **environment: str) -> subprocess.CompletedProcess[str]:
    """`lnk-link-memory command` for the place, in this environment."""
    argv = [ENGINE, "command", str(place.home), str(place.state), str(place.agent)]
    return subprocess.run(argv, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def serve_argv(serve: dict) -> list[str]:
    """The printed command, with the program where these tests have it."""
    return [ENGINE, *serve["argv"][1:]]


# ------------------------------------------------------------ one file, a line a note


@pytest.mark.requirement("NOTES-1")
def test_every_call_together_changes_the_notes_and_no_other_file(place: Place, session: Open) -> None:
    place.write("memory/garden/Roses.md", "# Roses\n\nPruned in [[March]].\n")
    place.write("memory/March.md", "# March\n")
    place.write("memory/scan.pdf", b"%PDF-1.4 nothing")
    place.write("chats/telegram-1/conversation.md", "# Chat\n\nThe gate code is 4711.\n")
    place.write("chats/telegram-1/0000000001.json", "{}")
    place.write("skills/cook/SKILL.md", "# Cook\n")
    (place.home / "else.txt").write_text("mine")
    place.notes.write_text("- tea at four\n")
    before = everything_under(place.root, place.state, place.notes)
    opened = session()
    opened.search("roses")
    opened.read("memory/March.md")
    opened.read("skills/cook/SKILL.md")
    opened.list()
    opened.links("memory/March.md")
    opened.remember(note="the key is in the blue jar")
    opened.remember(note="tea at five", replaces="tea")
    opened.remember(forget="blue jar")
    opened.close()
    assert everything_under(place.root, place.state, place.notes) == before
    assert place.notes.read_bytes() == b"- tea at five\n"
    assert left_in(place.notes.parent) == {"notes.md", "link"}


@pytest.mark.requirement("NOTES-2")
def test_remember_adds_changes_and_forgets_one_line(place: Place, session: Open) -> None:
    opened = session()
    assert opened.remember(note="tea at four") == {"notes": "- tea at four\n", "bytes": 14, "of": 4096}
    assert opened.remember(note="the car is a Škoda") == {
        "notes": "- tea at four\n- the car is a Škoda\n",
        "bytes": 36,
        "of": 4096,
    }
    assert opened.remember(note="tea at five", replaces="at four")["notes"] == "- tea at five\n- the car is a Škoda\n"
    assert opened.remember(forget="Škoda") == {"notes": "- tea at five\n", "bytes": 14, "of": 4096}
    assert place.notes.read_bytes() == b"- tea at five\n"


@pytest.mark.requirement("NOTES-2")
def test_a_text_that_no_line_holds_is_refused_and_the_lines_are_shown(place: Place, session: Open) -> None:
    place.notes.write_bytes(b"# Notes\n\n- tea at four\n- the key is in the jar\n")
    before = place.notes.read_bytes()
    refusal = session().refused("remember", note="x", replaces="coffee")
    assert refusal.splitlines()[1:] == ["# Notes", "- tea at four", "- the key is in the jar"]
    assert place.notes.read_bytes() == before


@pytest.mark.requirement("NOTES-2")
def test_a_text_that_several_lines_hold_is_refused_and_just_those_are_shown(place: Place, session: Open) -> None:
    place.notes.write_bytes(b"- tea at four\n- Tea is in the tin\n- the tea pot leaks\n- coffee at one\n")
    before = place.notes.read_bytes()
    refusal = session().refused("remember", forget="tea")
    assert refusal.startswith("2 lines")  # the exact text alone counts where a line holds it
    assert refusal.splitlines()[1:] == ["- tea at four", "- the tea pot leaks"]
    assert place.notes.read_bytes() == before


def test_a_long_list_of_lines_is_shown_in_part_and_that_is_said(notes: Notes, place: Place) -> None:
    place.notes.write_text("".join(f"- tea {number} {'x' * 300}\n" for number in range(50)))
    with pytest.raises(Invalid) as refused:
        notes.remember(None, None, "tea")
    shown = str(refused.value).splitlines()
    assert shown[0].startswith("50 lines")
    assert shown[-1] == "… and 30 more"
    assert len(str(refused.value)) < 5000


def test_the_exact_text_is_taken_before_the_same_in_other_letters(notes: Notes, place: Place) -> None:
    place.notes.write_text("- THE GATE is green\n- the gate is red\n- STRASSE 5\n")
    changed = notes.remember("the gate is blue", "the gate", None).notes
    assert changed == "- THE GATE is green\n- the gate is blue\n- STRASSE 5\n"
    assert notes.remember(None, None, "THE gate IS g").notes == "- the gate is blue\n- STRASSE 5\n"
    assert notes.remember("moved", "straße", None).notes == "- the gate is blue\n- moved\n"


@pytest.mark.parametrize("given", ["", "   ", "\n", "\t\u00a0"])
def test_a_blank_text_to_look_for_is_refused_and_changes_nothing(given: str, place: Place, session: Open) -> None:
    """Case notes-08: an empty search text held every line, and the edit emptied the file."""
    place.notes.write_bytes(b"- a\n\n- b\n")
    opened = session()
    opened.refused("remember", forget=given)
    notes = Notes(str(place.notes), 4096)
    with pytest.raises(Invalid):
        notes.remember(None, None, given)
    with pytest.raises(Invalid):
        notes.remember("x", given, None)
    assert place.notes.read_bytes() == b"- a\n\n- b\n"


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"replaces": "tea"},
        {"note": "x", "forget": "tea"},
        {"note": "x", "replaces": "tea", "forget": "tea"},
        {"replaces": "tea", "forget": "tea"},
        {"note": ""},
        {"note": " \n\u2028 "},
        {"note": "-"},
        {"note": "- "},
        {"note": "\0"},
    ],
)
def test_any_other_shape_and_a_blank_note_are_refused(asked: dict[str, str], place: Place, session: Open) -> None:
    place.notes.write_bytes(b"- tea\n")
    session().refused("remember", **asked)
    assert place.notes.read_bytes() == b"- tea\n"


@pytest.mark.parametrize("text", ["costs $& and \\1 and $$5", "$HOME $(id) `id`", r"\g<0> \n %s {0} &amp; $1"])
def test_a_note_is_kept_letter_for_letter(text: str, place: Place, session: Open) -> None:
    """Cases notes-06, notes-07: the new text of an edit was read as a pattern, or expanded."""
    place.notes.write_text("- the price is low\n")
    opened = session()
    assert opened.remember(note=text, replaces="price")["notes"] == f"- {text}\n"
    assert opened.remember(note=f"{text} again")["notes"] == f"- {text}\n- {text} again\n"
    assert opened.remember(forget=f"{text} again")["notes"] == f"- {text}\n"
    assert place.notes.read_text() == f"- {text}\n"


def test_a_text_to_look_for_is_no_pattern(notes: Notes, place: Place) -> None:
    place.notes.write_text("- abc\n- a.c (x|y) [z]*\n")
    assert notes.remember("plain", "a.c (x|y) [z]*", None).notes == "- abc\n- plain\n"
    with pytest.raises(Missing):
        notes.remember(None, None, "a.*")


@pytest.mark.parametrize("end", ["\n", "\r\n", *NO_LINE_ENDS])
def test_line_ends_within_a_note_become_spaces(end: str, notes: Notes, place: Place) -> None:
    assert notes.remember(f"one{end}two", None, None).notes == "- one two\n"
    assert place.notes.read_bytes() == b"- one two\n"


def test_a_list_mark_is_put_before_a_note_once(notes: Notes, place: Place) -> None:
    for note in ("plain", "- marked", "  - indented", "-5 degrees", "* star"):
        notes.remember(note, None, None)
    assert place.notes.read_text() == "- plain\n- marked\n- indented\n- -5 degrees\n- * star\n"


def test_only_lf_ends_a_line_wherever_the_notes_are_split(place: Place, session: Open) -> None:
    """Case notes-14: read and edit split lines differently, so an edit changed another line."""
    lines = ["- a\u2028b", "- c\x0bd", "- e\x85f", "- g\x0ch", "- i\u2029j", "- k\x1cl", "- m\rn"]
    place.notes.write_bytes("".join(f"{line}\n" for line in lines).encode())
    opened = session()
    for number, line in enumerate(lines, 1):
        read = opened.read("notes.md", line=number, tokens=50)
        assert read["text"].startswith(f"{line}\n")
        assert read["of"] == len(lines)
    assert opened.remember(note="C", replaces="c")["notes"] == "\n".join([lines[0], "- C", *lines[2:], ""])
    for line in (lines[0], *lines[2:]):
        opened.remember(forget=line[2:])
    assert place.notes.read_bytes() == b"- C\n"


# ------------------------------------------------------------ the size


@pytest.mark.requirement("NOTES-4")
def test_a_note_that_does_not_fit_is_refused_whole_with_both_sizes(place: Place, session: Open) -> None:
    """Case notes-10: a note was cut to what was left and reported as saved."""
    place.notes.write_bytes(b"- " + b"x" * 3997 + b"\n")
    before = place.notes.read_bytes()
    opened = session()
    refusal = opened.refused("remember", note="y" * 94)
    for size in ("4,096", "4 KB", "4,000", "4,097", "96"):
        assert size in refusal
    assert place.notes.read_bytes() == before
    assert opened.remember(note="y" * 93)["bytes"] == 4096  # exactly what is free
    opened.refused("remember", note="z")
    assert place.notes.read_bytes() == before + b"- " + b"y" * 93 + b"\n"


@pytest.mark.requirement("NOTES-4")
def test_notes_past_their_size_by_hand_may_shrink_and_not_grow(place: Place, session: Open) -> None:
    """Case notes-11: an agent must be able to get back under the limit."""
    place.notes.write_bytes(b"- long " + b"x" * 600 + b"\n" + b"- line that is kept\n" * 200)
    size = len(place.notes.read_bytes())
    opened = session()
    refusal = opened.refused("remember", note="a")
    assert f"{size - 4096:,} too many" in refusal
    opened.refused("remember", note="longer " + "x" * 601, replaces="long")
    opened.refused("remember", note="equal" + "x" * 602, replaces="long")  # no larger, no smaller
    assert len(place.notes.read_bytes()) == size
    assert opened.remember(note="long, now shorter", replaces="xxx")["bytes"] < size
    assert opened.remember(forget="now shorter")["bytes"] == 4000
    opened.remember(note="and so there is room again")


@pytest.mark.requirement("NOTES-4", "CONTRACT-10")
def test_the_size_is_that_of_the_spec(place: Place, open_session: Open) -> None:
    printed = command(place, LNK_MEMORY_SPEC='{"notes": "1 KB"}', LNK_MEMORY_NOTES=str(place.notes))
    serve = json.loads(printed.stdout)
    opened = open_session(serve_argv(serve))
    assert opened.remember(note="x" * 1021) == {"notes": f"- {'x' * 1021}\n", "bytes": 1024, "of": 1024}
    assert "1,024" in opened.refused("remember", note="y")


@pytest.mark.requirement("CONTRACT-10")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ('{"notes": "4 GB"}', "4 GB"),
        ('{"notes": "0 KB"}', "0 KB"),
        ('{"notes": "-1"}', "-1"),
        ('{"notes": 4096}', "notes"),
        ('{"tokens": 49}', "49"),
        ('{"tokens": "many"}', "tokens"),
        ('{"model": "../x"}', "../x"),
        ('{"modle": "none"}', "modle"),
        ("[]", "object"),
        ("{", "spec"),
    ],
)
def test_a_spec_that_is_not_valid_is_refused_by_each_command_saying_why(spec: str, said: str, place: Place) -> None:
    printed = command(place, LNK_MEMORY_SPEC=spec)
    served = subprocess.run(
        place.argv("--spec", spec), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    for done in (printed, served):
        assert done.returncode == 10
        assert done.stdout == ""
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


# ------------------------------------------------------------ whole, in one step, through the folder's handle


@pytest.mark.requirement("NOTES-3")
def test_notes_that_are_a_link_are_refused_and_what_it_points_to_stays(place: Place, session: Open) -> None:
    elsewhere = place.root / "elsewhere.md"
    elsewhere.write_text("- not yours\n")
    place.notes.symlink_to(elsewhere)
    opened = session()
    for asked in ({"note": "x"}, {"note": "x", "replaces": "yours"}, {"forget": "yours"}):
        assert "link" in opened.refused("remember", **asked)
    assert "link" in opened.refused("read", path="notes.md")
    assert elsewhere.read_text() == "- not yours\n"
    assert place.notes.is_symlink()


def test_a_dangling_link_makes_no_file_where_it_points(place: Place, session: Open) -> None:
    place.notes.symlink_to(place.root / "made.md")
    assert "link" in session().refused("remember", note="x")
    assert not (place.root / "made.md").exists()


@pytest.mark.requirement("NOTES-3")
def test_a_notes_folder_that_is_a_link_is_refused(place: Place, session: Open) -> None:
    place.state = place.root / "state"
    place.notes.parent.rmdir()
    (place.root / "elsewhere").mkdir()
    (place.root / "elsewhere" / "notes.md").write_text("- not yours\n")
    place.notes.parent.symlink_to(place.root / "elsewhere")
    opened = session()
    assert "link" in opened.refused("remember", note="x")
    assert "link" in opened.refused("read", path="notes.md")
    assert left_in(place.root / "elsewhere") == {"notes.md"}
    assert (place.root / "elsewhere" / "notes.md").read_text() == "- not yours\n"


def test_a_folder_swapped_for_a_link_while_serving_is_refused(place: Place, session: Open) -> None:
    place.state = place.root / "state"
    opened = session()
    opened.remember(note="first")
    place.notes.parent.rename(place.root / "moved")
    (place.root / "elsewhere").mkdir()
    place.notes.parent.symlink_to(place.root / "elsewhere")
    assert "link" in opened.refused("remember", note="second")
    assert left_in(place.root / "elsewhere") == set()
    assert (place.root / "moved" / "notes.md").read_text() == "- first\n"


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_notes_that_are_no_regular_file_are_refused_at_once(kind: str, place: Place, session: Open) -> None:
    """Case index-18: a FIFO of that name hung the whole engine."""
    os.mkfifo(place.notes) if kind == "fifo" else place.notes.mkdir()
    opened = session()
    opened.refused("remember", note="x")
    opened.refused("read", path="notes.md")
    assert left_in(place.notes.parent) == {"notes.md", "link"}


@pytest.mark.requirement("NOTES-3")
def test_eight_programs_at_once_lose_no_note(place: Place, open_session: Open) -> None:
    """Two writers of one file lost notes elsewhere; here eight processes write 25 each."""
    with ThreadPoolExecutor(8) as writers:
        argv = place.argv("--spec", '{"notes": "64 KB"}')
        sessions = list(writers.map(lambda _: open_session(argv), range(8)))

        def write(number: int) -> None:
            for each in range(25):
                sessions[number].remember(note=f"note {each} of {number}.")

        list(writers.map(write, range(8)))
    lines = place.notes.read_text().splitlines()
    assert sorted(lines) == sorted(f"- note {each} of {number}." for each in range(25) for number in range(8))
    for number in range(8):  # and each writer's stand in its order
        own = [line for line in lines if line.endswith(f" of {number}.")]
        assert own == [f"- note {each} of {number}." for each in range(25)]


def edited_before(replace: Callable[..., None], path: Path, *edits: bytes | None) -> Callable[..., None]:
    """`Folder.replace` before whose next calls the file is edited by another hand; None: taken away."""
    left = list(edits)

    def edited(folder: Folder, name: str, data: bytes, **more: object) -> None:
        if left:
            text = left.pop(0)
            path.unlink() if text is None else path.write_bytes(text)
        replace(folder, name, data, **more)

    return edited


@pytest.mark.requirement("NOTES-3", "NOTES-10")
def test_an_edit_by_hand_between_reading_and_writing_is_not_lost(
    notes: Notes, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.notes.write_bytes(b"- a\n")
    by_hand = (b"- a\n- by hand\n", None, b"by another editor, without an end")
    monkeypatch.setattr(Folder, "replace", edited_before(Folder.replace, place.notes, *by_hand))
    assert notes.remember("mine", None, None).notes == "by another editor, without an end\n- mine\n"
    assert place.notes.read_text() == "by another editor, without an end\n- mine\n"


def test_a_line_that_a_hand_took_away_meanwhile_is_missed_and_not_put_back(
    notes: Notes, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.notes.write_bytes(b"- a\n- b\n")
    monkeypatch.setattr(Folder, "replace", edited_before(Folder.replace, place.notes, b"- b\n"))
    with pytest.raises(Missing):
        notes.remember("A", "a", None)
    assert place.notes.read_bytes() == b"- b\n"


def test_notes_that_never_stand_still_are_left_alone_and_that_is_said(
    notes: Notes, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = [f"- edit {number}\n".encode() for number in range(100)]
    monkeypatch.setattr(Folder, "replace", edited_before(Folder.replace, place.notes, *edits))
    with pytest.raises(Conflict, match="nothing was written"):
        notes.remember("mine", None, None)
    assert re.fullmatch(r"- edit \d+\n", place.notes.read_text())
    assert left_in(place.notes.parent) == {"notes.md"}


def test_the_notes_keep_their_mode_and_new_ones_are_the_owners_alone(notes: Notes, place: Place) -> None:
    notes.remember("first", None, None)
    assert place.notes.stat().st_mode & 0o7777 == 0o600
    place.notes.chmod(0o640)
    notes.remember("second", None, None)
    assert place.notes.stat().st_mode & 0o7777 == 0o640


# ------------------------------------------------------------ what a hand wrote


@pytest.mark.requirement("NOTES-10")
@pytest.mark.parametrize(
    ("before", "asked", "after"),
    [
        (b"", {"note": "n"}, b"- n\n"),
        (b"# Notes\n\n\n* star\n  indented\n", {"note": "n"}, b"# Notes\n\n\n* star\n  indented\n- n\n"),
        (b"no end", {"note": "n"}, b"no end\n- n\n"),
        (b"a\r\nb\r\n", {"note": "n"}, b"a\r\nb\r\n- n\r\n"),
        (b"a\r\nb", {"note": "n"}, b"a\r\nb\n- n\n"),
        (b"a\r\nb\r\nc\r\n", {"note": "B", "replaces": "b"}, b"a\r\n- B\r\nc\r\n"),
        (b"a\r\nb\nc\r\n", {"note": "B", "replaces": "b"}, b"a\r\n- B\nc\r\n"),
        (b"a\nlast", {"note": "L", "replaces": "last"}, b"a\n- L"),
        (b"a\nlast", {"forget": "last"}, b"a\n"),
        (b"only", {"forget": "only"}, b""),
        (b"\xff\xfe bytes\n- a\n\x80\n", {"note": "A", "replaces": "- a"}, b"\xff\xfe bytes\n- A\n\x80\n"),
        (b"- caf\xe9 in Latin-1\n- b\n", {"forget": "b"}, b"- caf\xe9 in Latin-1\n"),
        (b"- bad \xff line\n- b\n", {"forget": "BAD"}, b"- b\n"),
        (b"\xef\xbb\xbf# Mark\n- a\n", {"note": "n"}, b"\xef\xbb\xbf# Mark\n- a\n- n\n"),
        (b"tab\t\n\n\n  \n- a\n", {"forget": "a\n"}, None),
        (b"nul \0 here\n- a\n", {"note": "n"}, b"nul \0 here\n- a\n- n\n"),
        (b"\n\n\n", {"note": "n"}, b"\n\n\n- n\n"),
    ],
)
def test_what_a_hand_wrote_stays_byte_for_byte(
    before: bytes, asked: dict[str, str], after: bytes | None, notes: Notes, place: Place
) -> None:
    """Hand edits: headings, blank lines, CRLF, no last line end, bytes that are not UTF-8."""
    if before:
        place.notes.write_bytes(before)
    if after is None:
        after = before.replace(b"- a\n", b"")
    notes.remember(asked.get("note"), asked.get("replaces"), asked.get("forget"))
    assert place.notes.read_bytes() == after


@pytest.mark.requirement("NOTES-10")
def test_the_file_is_read_afresh_before_each_change(place: Place, session: Open) -> None:
    opened = session()
    opened.remember(note="first")
    place.notes.write_bytes(b"# By hand\n\n- first, and more\n")
    assert opened.remember(note="second")["notes"] == "# By hand\n\n- first, and more\n- second\n"
    place.notes.unlink()
    assert opened.remember(note="third")["notes"] == "- third\n"


class Lines(RuleBasedStateMachine):
    """The notes against a model that knows nothing but lines of bytes, each with its own end."""

    def __init__(self) -> None:
        super().__init__()
        self._root = tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
        self.path = Path(self._root.name) / "Agent" / "memory" / "notes.md"
        self.path.parent.mkdir(parents=True)
        self.notes = Notes(str(self.path), 300)
        self.lines: list[bytes] = []

    def teardown(self) -> None:
        self._root.cleanup()

    words = st.text(alphabet="ab\u00e9\u2028 $\\", min_size=1, max_size=12)

    def _holding(self, piece: str) -> list[int]:
        exact = [number for number, line in enumerate(self.lines) if piece.encode() in line]
        folded = [
            number
            for number, line in enumerate(self.lines)
            if piece.casefold() in line.decode(errors="replace").casefold()
        ]
        return exact or folded

    def _as_line(self, note: str, end: bytes) -> bytes:
        return b"- " + re.sub("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", " ", note).strip().encode() + end

    def _try(self, *asked: str | None) -> Kept | None:
        try:
            return self.notes.remember(*asked)
        except LinkError as error:
            self.refused = error
            return None

    def _expect(self, lines: list[bytes], kept: Kept | None) -> None:
        """The change is made, or it is refused because it makes the notes too large."""
        had, would = len(b"".join(self.lines)), len(b"".join(lines))
        if would > 300 and would >= had:
            assert kept is None and isinstance(self.refused, Full)
        else:
            assert kept == Kept(b"".join(lines).decode(errors="replace"), would, 300)
            self.lines = lines

    @rule(note=words.filter(lambda text: text.replace("\u2028", " ").strip()))
    def add(self, note: str) -> None:
        lines = list(self.lines)
        end = b"\r\n" if lines and lines[-1].endswith(b"\r\n") else b"\n"
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] += b"\n"
        self._expect([*lines, self._as_line(note, end)], self._try(note, None, None))

    @precondition(lambda self: self.lines)
    @rule(data=st.data(), note=words.filter(lambda text: text.replace("\u2028", " ").strip()))
    def change(self, data: st.DataObject, note: str) -> None:
        self._one(data, note)

    @precondition(lambda self: self.lines)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self._one(data, None)

    def _one(self, data: st.DataObject, note: str | None) -> None:
        line = data.draw(st.sampled_from(self.lines)).decode(errors="replace").rstrip("\r\n")
        pieces = st.sampled_from(sorted({line, line[:3], line[-4:], line.swapcase(), "none of them"}))
        piece = data.draw(pieces.filter(str.strip))
        holding = self._holding(piece)
        kept = self._try(*((note, piece, None) if note else (None, None, piece)))
        if len(holding) != 1:
            assert kept is None
            assert isinstance(self.refused, Invalid if holding else Missing)
            return
        number = holding[0]
        whole = self.lines[number]
        end = b"\r\n" if whole.endswith(b"\r\n") else b"\n" if whole.endswith(b"\n") else b""
        new = [] if note is None else [self._as_line(note, end)]
        self._expect([*self.lines[:number], *new, *self.lines[number + 1 :]], kept)

    by_hand = (b"# H", b"", b"- a b", b"\xff\xfe", b"x\x0by", b"tail\r", b"y" * 90)

    @rule(text=st.lists(st.sampled_from(by_hand), max_size=5))
    def edit_by_hand(self, text: list[bytes]) -> None:
        self.path.write_bytes(b"\n".join(text))
        self.lines = [part for part in re.split(b"(?<=\n)", b"\n".join(text)) if part]

    @invariant()
    def the_file_is_what_the_model_says(self) -> None:
        found = self.path.read_bytes() if self.path.exists() else b""
        assert found == b"".join(self.lines)
        assert left_in(self.path.parent) <= {"notes.md"}


TestNotesAreLines = Lines.TestCase
TestNotesAreLines.settings = settings(
    max_examples=60, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestNotesAreLines = pytest.mark.requirement("NOTES-2", "NOTES-4", "NOTES-10")(TestNotesAreLines)


# ------------------------------------------------------------ who may, and where


@pytest.mark.requirement("NOTES-6", "CONTRACT-4", "CONTRACT-11")
def test_remember_is_allowed_without_asking_where_a_notes_file_is_named(place: Place, open_session: Open) -> None:
    serve = json.loads(command(place, LNK_MEMORY_NOTES=str(place.notes)).stdout)
    assert serve["allow"] == ["search", "read", "list", "links", "remember"]
    assert serve["argv"][-2:] == ["--notes", str(place.notes)]
    opened = open_session(serve_argv(serve))
    tools = opened.tools()
    assert [tool["name"] for tool in tools] == serve["allow"]
    read_only = {tool["name"]: tool["annotations"]["readOnlyHint"] for tool in tools}
    assert read_only == {"search": True, "read": True, "list": True, "links": True, "remember": False}


@pytest.mark.requirement("NOTES-7", "CONTRACT-4", "CONTRACT-11")
def test_without_a_notes_file_remember_is_not_offered_and_writes_nothing(place: Place, open_session: Open) -> None:
    place.notes.write_text("- locked\n")
    serve = json.loads(command(place, LNK_MEMORY_NOTES="").stdout)
    assert serve["allow"] == ["search", "read", "list", "links"]
    assert "--notes" not in serve["argv"]
    opened = open_session(serve_argv(serve))
    assert [tool["name"] for tool in opened.tools()] == ["search", "read", "list", "links"]
    with pytest.raises(Invalid, match="Unknown tool"):
        opened.call("remember", {"note": "x"})
    assert opened.refused("read", path="notes.md")
    assert opened.list(kind="notes")["documents"] == []
    assert "locked" not in json.dumps(open_session(serve_argv(serve)).open())
    assert place.notes.read_text() == "- locked\n"


@pytest.mark.requirement("CONTRACT-14")
def test_a_teams_folder_has_no_conversations_and_no_notes(tmp_path: Path, open_session: Open) -> None:
    team = tmp_path / "team"
    for path, text in {"memory/plan.md": "the harvest\n", "chats/t/conversation.md": "the harvest\n"}.items():
        (team / path).parent.mkdir(parents=True)
        (team / path).write_text(text)
    printed = subprocess.run(
        [ENGINE, "command", str(team), str(tmp_path / "state")], capture_output=True, text=True, check=True
    )
    serve = json.loads(printed.stdout)
    assert serve["argv"] == ["lnk-link-memory", "serve", str(team), str(tmp_path / "state")]
    assert "remember" not in serve["allow"]
    opened = open_session(serve_argv(serve))
    assert opened.paths("harvest") == ["memory/plan.md"]
    assert [entry["path"] for entry in opened.list()["documents"]] == ["memory/plan.md"]
    assert opened.refused("read", path="notes.md")
    assert "remember" not in [tool["name"] for tool in opened.tools()]


@pytest.mark.requirement("NOTES-11")
def test_an_agents_folder_that_may_not_be_listed_serves_its_notes_chats_and_skills(
    place: Place, open_session: Open
) -> None:
    """The agent's folder has mode 0711 and another owner, or 0100 and ours: it may be gone through and not listed."""
    place.write("chats/telegram-1/conversation.md", "The gate code is 4711.\n")
    place.write("skills/cook/SKILL.md", "# Cook\n\nSoup first.\n")
    place.notes.write_text("- tea at four\n")
    if os.geteuid() == 0:
        os.chown(place.agent, 65_534, 65_534)
        place.agent.chmod(0o711)
    else:
        place.agent.chmod(0o100)
    listed = subprocess.run(ordinary(["/bin/ls", str(place.agent)]), capture_output=True, check=False)
    assert listed.returncode != 0
    opened = open_session(ordinary(place.argv()))
    assert opened.paths("gate code") == ["chats/telegram-1/conversation.md"]
    assert opened.read("skills/cook/SKILL.md")["title"] == "Cook"
    assert [entry["path"] for entry in opened.list(kind="skill")["documents"]] == ["skills/cook/SKILL.md"]
    assert opened.read("notes.md")["text"] == "- tea at four\n"
    assert opened.remember(note="bread at six")["notes"] == "- tea at four\n- bread at six\n"
    place.agent.chmod(0o711)
    assert place.notes.read_text() == "- tea at four\n- bread at six\n"


# ------------------------------------------------------------ kept in mind


def initialized(argv: list[str]) -> dict:
    """What the program says to `initialize`, the older era's beginning."""
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    done = subprocess.run(argv, input=f"{line}\n", capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["result"]


def discovered(argv: list[str]) -> dict:
    """What the program says to `server/discover`, the newer era's."""
    with Session(argv) as session:
        found = session.open()
        assert session._client.modern
        return found


@pytest.mark.requirement("NOTES-12")
@pytest.mark.parametrize("asked", [initialized, discovered])
def test_the_instructions_of_both_eras_carry_the_owners_notes(asked: Callable[[list[str]], dict], place: Place) -> None:
    assert "notes.md" not in asked(place.argv())["instructions"]
    place.notes.write_text("- tea at four\n- the key is in the jar\n")
    instructions = asked(place.argv())["instructions"]
    assert instructions.endswith("The owner's notes (notes.md):\n- tea at four\n- the key is in the jar\n")
    assert "tea at four" not in asked(place.argv(notes=False))["instructions"]


@pytest.mark.requirement("NOTES-12")
@pytest.mark.parametrize("asked", [initialized, discovered])
def test_notes_past_their_size_are_cut_at_a_line_in_the_instructions_and_that_is_said(
    asked: Callable[[list[str]], dict], place: Place
) -> None:
    """Case notes-09: longer notes were cut silently, and the agent believed that it knew them all."""
    lines = [f"- note number {number:03} {'x' * 30}\n" for number in range(100)]
    place.notes.write_text("".join(lines))
    text = asked(place.argv())["instructions"]
    shown = text.partition("(notes.md):\n")[2].splitlines(keepends=True)
    whole = 4096 // len(lines[0])
    assert shown[:-1] == lines[:whole]
    assert "cut" in shown[-1]
    assert f"{len(''.join(lines)):,}" in shown[-1]
    assert "notes.md" in shown[-1]


@pytest.mark.requirement("NOTES-12")
def test_the_instructions_are_of_the_notes_as_they_are_now(place: Place, session: Open) -> None:
    opened = session()
    opened.remember(note="tea at four")
    assert "- tea at four\n" in opened.open()["instructions"]
    place.notes.write_text("- by hand\n")
    assert opened.open()["instructions"].endswith("\n- by hand\n")
    opened.remember(forget="by hand")
    assert "(notes.md)" not in opened.open()["instructions"]


@pytest.mark.requirement("NOTES-12")
def test_reading_the_notes_gives_them_as_they_are_now(place: Place, session: Open) -> None:
    opened = session()
    empty = opened.read("notes.md")
    assert (empty["text"], empty["lines"], empty["of"]) == ("", [0, 0], 0)
    place.notes.write_bytes(b"# By hand\n\nno end \xff")
    read = opened.read("notes.md")
    assert read["text"] == "# By hand\n\nno end \ufffd"
    assert (read["kind"], read["lines"], read["of"]) == ("notes", [1, 3], 3)
    opened.remember(note="x")
    assert opened.read("notes.md", line=3)["text"] == "no end \ufffd\n- x\n"
    assert [entry["path"] for entry in opened.list(kind="notes")["documents"]] == ["notes.md"]


def test_notes_that_cannot_be_read_do_not_keep_a_session_from_beginning(place: Place, session: Open) -> None:
    place.write("memory/a.md", "apple\n")
    place.notes.write_bytes(b"x" * ((1 << 20) + 1))
    opened = session()
    assert "could not be read" in opened.open()["instructions"]
    assert opened.paths("apple") == ["memory/a.md"]
    assert "1 MB" in opened.refused("remember", note="x")
    assert place.notes.stat().st_size == (1 << 20) + 1


LINE = "- twelve ch\n"


@pytest.mark.parametrize(
    ("notes", "shown"),
    [
        (LINE * 341 + "- x\n", LINE * 341 + "- x\n"),  # 4,096 bytes: whole
        (LINE * 341 + "- xyz\n", LINE * 341),  # 4,098, of which the last is a line end: the last line goes whole
        ("x" * 9216, "x" * 4096),  # one line of 9 KB
        ("é" * 4608, "é" * 2048),  # and of two bytes a character
        ("x" + "é" * 4608, "x" + "é" * 2047),  # where the limit falls within one
        ("x" + "😀" * 2304, "x" + "😀" * 1023),
        ("- a\u2028b\x0bc\n" * 800, "- a\u2028b\x0bc\n" * (4096 // 10)),
    ],
)
def test_a_prompt_holds_the_notes_up_to_their_size_and_says_what_is_cut(notes: str, shown: str) -> None:
    """Case notes-15: at the limit whole, over it cut at a line, one giant line at a character, never within UTF-8."""
    text = prompt_text(notes, 4096)
    if shown == notes:
        assert text == notes
        return
    kept, _, said = text.rstrip("\n").rpartition("\n")
    assert kept == shown.rstrip("\n")
    assert said.startswith("(cut")
    assert f"{len(notes.encode()):,}" in said


def test_notes_are_not_said_to_be_cut_where_all_their_lines_are_shown() -> None:
    """Case notes-15: 4,097 bytes, of which the last is a line end."""
    notes = LINE * 341 + "- xy\n"
    assert len(notes) == 4097
    text = prompt_text(notes, 4096)
    assert ("- xy" in text) != ("(cut" in text)


@given(st.text(alphabet="ab\n\u00e9\u2028\U0001f600", max_size=200), st.integers(4, 120))
@example("a" + "\n" * 20, 4)
def test_a_prompt_never_holds_more_of_the_notes_than_it_may_and_no_half_line(notes: str, most: int) -> None:
    text = prompt_text(notes, most)
    assert len(text.partition("(cut")[0].encode()) <= most + 1  # and a line end
    if "(cut" not in text:
        assert text.rstrip("\n") == notes.rstrip("\n")  # blank lines at the end are no note
        return
    kept = text.rstrip("\n").rpartition("\n")[0]
    assert len(kept.encode()) <= most
    assert notes.startswith(kept)
    first = notes.split("\n")[0]
    rest = notes[len(kept) :]
    assert rest.startswith("\n") or (len(first.encode()) > most and "\n" not in kept)


# ------------------------------------------------------------ what its folder is


def test_a_relative_path_or_none_of_a_file_is_refused() -> None:
    for path in ("notes.md", "/a/.", "/a/..", "/a/"):
        with pytest.raises(Invalid):
            Notes(path, 4096)


def test_a_missing_notes_folder_is_said_and_read_as_no_notes(tmp_path: Path) -> None:
    notes = Notes(str(tmp_path / "none" / "memory" / "notes.md"), 4096)
    notes.sweep()
    assert notes.text() == ""
    with pytest.raises(Missing):
        notes.remember("x", None, None)
    assert list(tmp_path.iterdir()) == []


def test_a_notes_folder_that_may_not_be_written_refuses_in_words(place: Place, open_session: Open) -> None:
    place.state = place.root / "state"
    place.notes.write_text("- tea\n")
    opened = open_session(ordinary(place.argv()))
    place.notes.parent.chmod(0o555)
    refusal = opened.refused("remember", note="x")
    place.notes.parent.chmod(0o755)
    assert "Permission denied" in refusal
    assert place.notes.read_text() == "- tea\n"
    assert opened.remember(note="x")["notes"] == "- tea\n- x\n"


def test_what_a_cut_write_left_is_swept_at_the_start_and_never_read(place: Place, session: Open) -> None:
    """Case notes-13."""
    place.notes.write_text("- tea\n")
    (place.notes.parent / ".notes.md.new").write_text("- half a no")
    opened = session()
    assert left_in(place.notes.parent) == {"notes.md", "link"}
    assert opened.read("notes.md")["text"] == "- tea\n"


def test_a_short_write_is_followed_by_the_rest(notes: Notes, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case notes-17: a system call that took 3 bytes of N was taken for a whole write, and answered ok."""
    write = os.write
    monkeypatch.setattr("lnk.folder.os.write", lambda fd, data: write(fd, bytes(data)[:3]))
    assert notes.remember("a longer line than three bytes", None, None).bytes == 33
    assert place.notes.read_bytes() == b"- a longer line than three bytes\n"


def test_a_refused_note_is_refused_as_that_kind(notes: Notes, place: Place) -> None:
    """The errors are those by which a caller can act."""
    place.notes.symlink_to(place.root)
    with pytest.raises(Refused):
        notes.remember("x", None, None)
    place.notes.unlink()
    with pytest.raises(Full):
        notes.remember("x" * 4096, None, None)
    assert not place.notes.exists()
