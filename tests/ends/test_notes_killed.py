"""One `remember` of the real program, killed or failed at each of its system calls: the notes are old or new, whole."""

import re
import resource
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from conftest import Place, Session
from ends.faults import Point, left_in, needs_strace, settled, small_disk, traced
from lnk.errors import Unavailable

OLD: Final = b"# Notes\n\n- tea at four\n- the key is in the blue jar\r\nno list at all \xff\n"
NEW: Final = b"# Notes\n\n- tea at four\n- the key is in the red jar\r\nno list at all \xff\n"
CHANGE: Final = {"note": "the key is in the red jar", "replaces": "blue jar"}
ERRORS: Final = ("EIO", "ENOSPC", "EACCES", "EMFILE")
WORKERS: Final = 2


class Outcome(NamedTuple):
    """What came of one `remember` with a fault: the answer (None: the program died), the notes, what lies beside."""

    fault: str
    failed: bool | None
    text: str
    notes: bytes
    beside: set[str]
    struck: bool  # whether the fault took place: an error does, a kill leaves no word


def _place(root: Path) -> Place:
    place = Place(root)
    place.notes.write_bytes(OLD)
    return place


def _open(place: Place) -> Session:
    session = Session(place.argv())
    session.open()
    return settled(session)


def _outcome(place: Place, session: Session, fault: str, trace: Path) -> Outcome:
    try:
        with traced(session, trace, fault) as met:
            answer = session.call("remember", CHANGE)
        failed, text = answer.failed, answer.text
    except Unavailable as error:
        failed, text = None, str(error)
    beside = left_in(place.notes.parent) - {"notes.md", "link"}
    return Outcome(fault, failed, text, place.notes.read_bytes(), beside, met.struck())


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> list[Point]:
    """Every system call of one `remember`, from the first that names the agent's folder on to the answer."""
    needs_strace()
    place = _place(tmp_path_factory.mktemp("plain"))
    session = _open(place)
    with traced(session, place.root / "trace") as trace:
        answer = session.call("remember", CHANGE)
    session.close()
    assert not answer.failed
    assert place.notes.read_bytes() == NEW
    found = trace.points()
    first = next(number for number, point in enumerate(found) if str(place.agent) in point.line)
    assert str(place.notes.parent) in "".join(point.line for point in found)
    return found[first:]


def _is_of_the_notes(point: Point) -> bool:
    """Whether the call is one of the notes' file and folder: the last one wakes the loop that writes the answer."""
    return "pipe:" not in point.line


@pytest.fixture(scope="module")
def failed(points: list[Point], tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """What came of each error at each call, once and for ever. The same programs go on from fault to fault."""
    faults = [
        point.fault(f"error={error}", ever=ever)
        for point in points
        if _is_of_the_notes(point)
        for error in ERRORS
        for ever in (False, True)
        if not (ever and point.name == "write")  # for ever, it would take the pipe that wakes the answering loop too
    ]

    def some(number: int) -> list[Outcome]:
        place = _place(tmp_path_factory.mktemp("failed"))
        session = _open(place)
        found = []
        for fault in faults[number::WORKERS]:
            found.append(_outcome(place, session, fault, place.root / "trace"))
            if found[-1].failed is None:
                session.close()
                session = _open(place)
            place.notes.write_bytes(OLD)
        session.close()
        return found

    with ThreadPoolExecutor(WORKERS) as workers:
        return [outcome for outcomes in workers.map(some, range(WORKERS)) for outcome in outcomes]


@pytest.mark.requirement("NOTES-3")
def test_a_program_killed_at_any_system_call_of_remember_leaves_old_or_new_notes_and_nothing_else(
    points: list[Point], tmp_path: Path
) -> None:
    """Cases notes-13, index-23: what was answered is there, the next start sweeps, and no lock is left behind."""

    def kill(numbered: tuple[int, Point]) -> tuple[str, list[str]]:
        number, point = numbered
        place = _place(tmp_path / f"{number}")
        session = _open(place)
        outcome = _outcome(place, session, point.fault("signal=SIGKILL"), place.root / "trace")
        wrong = [] if session._process.wait() == -9 else ["it was not killed"]
        session.close()
        if outcome.notes not in (OLD, NEW):
            wrong.append(f"the notes are {outcome.notes!r}")
        if outcome.failed is False and outcome.notes != NEW:
            wrong.append("the note was acknowledged and is not there")
        again = _open(place)
        if left_in(place.notes.parent) != {"notes.md", "link"}:
            wrong.append(f"{left_in(place.notes.parent)} after the next start")
        if place.notes.read_bytes() != outcome.notes:
            wrong.append("the next start changed the notes")
        if not again.remember(note="one more")["notes"].endswith("\n- one more\n"):
            wrong.append("the next note is not the last line")
        again.close()
        shutil.rmtree(place.root)
        return point.line, wrong

    with ThreadPoolExecutor(WORKERS) as workers:
        runs = list(workers.map(kill, enumerate(points)))
    assert len(runs) >= 15
    assert {line: wrong for line, wrong in runs if wrong} == {}


@pytest.mark.requirement("NOTES-3")
def test_an_error_of_any_system_call_of_remember_leaves_old_or_new_notes(failed: list[Outcome]) -> None:
    """Case notes-13: each error at each call, once and for ever; what was answered ok is there."""
    assert len(failed) >= 120
    assert [one for one in failed if not one.struck] == []
    assert [one for one in failed if one.failed is None] == []  # no error ends the program
    assert [one for one in failed if one.notes not in (OLD, NEW)] == []
    assert [one for one in failed if not one.failed and one.notes != NEW] == []


def test_a_refusal_that_says_that_the_notes_stay_is_true(failed: list[Outcome]) -> None:
    """An agent that reads "nothing was written" writes the note again: it must not be said of one that is there."""
    says_so = re.compile("stays? as it was|othing was written")
    assert [one for one in failed if one.failed and says_so.search(one.text) and one.notes != OLD] == []


def test_a_refusal_names_what_failed(failed: list[Outcome]) -> None:
    """A failed read is not said to be a failed lock."""
    read = [one for one in failed if one.fault.startswith("read:error=EIO")]
    assert [one.text for one in read if "lock" in one.text] == []


def test_an_error_leaves_nothing_beside_the_notes(failed: list[Outcome]) -> None:
    """Case notes-13: what the program can still take away, it takes away before it answers."""
    assert [one for one in failed if one.beside and not one.fault.startswith("unlinkat")] == []


@pytest.mark.requirement("NOTES-3")
def test_what_could_not_be_taken_away_is_swept_by_the_next_start(points: list[Point], tmp_path: Path) -> None:
    """Case notes-13: write, sync, close or rename fails, and so does each unlink: never content, gone after a start."""
    wrong = []
    for name in ("write", "fsync", "close", "renameat"):
        point = next(point for point in points if point.name == name and ".notes.md.new" in point.line)
        place = _place(tmp_path / name)
        session = _open(place)
        with traced(session, tmp_path / "trace", point.fault("error=ENOSPC"), "unlinkat:error=EACCES:when=2+"):
            answer = session.call("remember", CHANGE)
        if not answer.failed or place.notes.read_bytes() != OLD:
            wrong.append(f"{name}: {answer.text} {place.notes.read_bytes()!r}")
        if left_in(place.notes.parent) != {"notes.md", ".notes.md.new", "link"}:
            wrong.append(f"{name}: the fault was not as meant: {left_in(place.notes.parent)}")
        if session.read("notes.md")["text"] != OLD.decode(errors="replace"):
            wrong.append(f"{name}: what was left is read")
        session.close()
        _open(place).close()
        if left_in(place.notes.parent) != {"notes.md", "link"}:
            wrong.append(f"{name}: {left_in(place.notes.parent)} after the next start")
    assert wrong == []


def test_a_write_that_takes_a_part_only_and_then_fails_leaves_the_old_notes(
    place: Place, session: Callable[..., Session]
) -> None:
    """Case notes-17: the kernel takes 10 bytes, then no more (a limit of the file's size): refused, notes as before."""
    place.notes.write_bytes(OLD)
    opened = settled(session())
    process = opened._process.pid
    limits = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (10, limits[1]))
    refusal = opened.refused("remember", **CHANGE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, limits)
    assert "stays as it was" in refusal
    assert place.notes.read_bytes() == OLD
    assert left_in(place.notes.parent) == {"notes.md", "link"}
    assert opened.remember(**CHANGE)["notes"].encode() == NEW.decode(errors="replace").encode()


@pytest.mark.requirement("NOTES-3")
def test_a_full_disk_refuses_the_note_and_leaves_the_notes(place: Place, session: Callable[..., Session]) -> None:
    """Case notes-13, with a real full disk: said, nothing lost, and the same note goes in when there is room."""
    place.state = place.root / "state"
    with small_disk(place.notes.parent, "64k"):
        opened = session("--spec", '{"notes": "60 KB"}')
        place.notes.write_bytes(b"- old\n")
        (place.notes.parent / "else").write_bytes(b"x" * 40_000)
        refusal = opened.refused("remember", note="y" * 30_000)
        assert "No space left" in refusal
        assert "stays as it was" in refusal
        assert place.notes.read_bytes() == b"- old\n"
        assert left_in(place.notes.parent) == {"notes.md", "else"}
        (place.notes.parent / "else").unlink()
        assert opened.remember(note="y" * 30_000)["bytes"] == len(b"- old\n") + 30_003
        opened.close()
