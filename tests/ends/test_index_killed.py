"""The index while programs die, meet, and find it damaged or without room: what is in the folder is found again."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import apsw
import pytest

from conftest import ENGINE, Place, Session
from ends.faults import (
    SEED,
    check,
    everything,
    hits,
    left_in,
    most_by_one_thread,
    needs_strace,
    ordinary,
    remounted,
    settled,
    skip_loudly,
    small_disk,
    soon,
    under_strace,
)
from lnk.errors import LinkError, Unavailable
from lnk.folder import Folder
from lnk.memory.index import Index

Open = Callable[..., Session]
DOCUMENTS: Final = 60
WORKERS: Final = 2
WRITES: Final = "pwrite64,fdatasync,ftruncate,unlink,unlinkat"
POINTS: Final = 17  # of the writes in each of two scenes
SIDE_FILES: Final = ("", "-wal", "-shm")


def _text(number: int, word: str) -> str:
    lines = "\n".join(f"line {each} of {number} holds w{number}k{each}" for each in range(40))
    return f"# Document {number}\n\n{word}{number}x is its own word.\n\n{lines}\n"


# ------------------------------------------------------------ killed


class Scene(NamedTuple):
    """What is to be indexed when the program is killed: how the folder is made ready, and what is then right."""

    name: str
    ready: Callable[[Path], tuple[Place, float | None]]
    own_words: dict[str, str]  # of each document
    gone_words: tuple[str, ...]
    since: dict[str, set[str]] | None  # what `list` gives since the session before


def _new(root: Path) -> tuple[Place, float | None]:
    place = Place(root)
    for number in range(DOCUMENTS):
        place.write(f"memory/d{number}.md", _text(number, "first"))
    return place, None


def _changing(root: Path) -> tuple[Place, float | None]:
    place, _ = _new(root)
    with Session(place.argv()) as session:
        session.open()
        now = settled(session).list(tokens=50)["now"]
    for number in range(20):
        place.write(f"memory/d{number}.md", _text(number, "second"))
        place.write(f"memory/n{number}.md", _text(number + 100, "third"))
    for number in range(40, 50):
        (place.memory / f"d{number}.md").unlink()
    return place, now


def _paths(name: str, numbers: range) -> set[str]:
    return {f"memory/{name}{number}.md" for number in numbers}


SCENES: Final = (
    Scene("indexing", _new, {f"memory/d{n}.md": f"first{n}x" for n in range(DOCUMENTS)}, (), None),
    Scene(
        "changing",
        _changing,
        {f"memory/d{n}.md": f"second{n}x" for n in range(20)}
        | {f"memory/d{n}.md": f"first{n}x" for n in (*range(20, 40), *range(50, DOCUMENTS))}
        | {f"memory/n{n}.md": f"third{n + 100}x" for n in range(20)},
        tuple(f"first{n}x" for n in (*range(20), *range(40, 50))),
        {"new": _paths("n", range(20)), "changed": _paths("d", range(20)), "removed": _paths("d", range(40, 50))},
    ),
)


def _run(argv: list[str]) -> None:
    """One session from its start to its end, or to the death of its program."""
    session = Session(argv)
    try:
        session.open()
        settled(session)
    except Unavailable:
        pass
    finally:
        session.close()


def _wrong_after(scene: Scene, place: Place, now: float | None) -> list[str]:
    """What is not right once a new session has caught up."""
    wrong = []
    with Session(place.argv()) as session:
        session.open()
        settled(session)
        for path, word in scene.own_words.items():
            if session.paths(word) != [path]:
                wrong.append(f"{word} finds {session.paths(word)}")
        wrong += [f"{word} finds {paths}" for word in scene.gone_words if (paths := session.paths(word))]
        listed = {entry["path"] for entry in everything(session)}
        if listed != set(scene.own_words):
            wrong.append(f"listed or not: {listed ^ set(scene.own_words)}")
        if scene.since:
            told = session.list(since=now, tokens=50_000)
            found = {
                state: {e["path"] for e in told["documents"] if e["state"] == state} for state in ("new", "changed")
            }
            found["removed"] = {entry["path"] for entry in told.get("removed", ())}
            if found != scene.since and "remade" not in told:
                wrong.append(f"since: {found}")
    found = check(place)
    if found["differences"]:
        wrong.append(f"check: {found}")
    return wrong


@pytest.mark.requirement("INDEX-12")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_a_program_killed_at_any_write_of_the_index_is_followed_by_one_that_finds_everything(
    scene: Scene, tmp_path: Path
) -> None:
    """Cases index-04, index-23: each document is old whole or new whole, then new; check finds no difference."""
    needs_strace()
    place, _ = scene.ready(tmp_path / "plain")
    _run(under_strace(place.argv(), tmp_path / "plain.trace", calls=WRITES))
    most = most_by_one_thread(tmp_path / "plain.trace")
    assert most["pwrite64"] > POINTS * 4
    points = [("pwrite64", 1 + number * (most["pwrite64"] - 1) // (POINTS - 1)) for number in range(POINTS)]
    points += [(name, most[name]) for name in ("fdatasync", "ftruncate", "unlink") if most[name]]
    points += [("fdatasync", 1), ("fdatasync", 2)]

    def kill(point: tuple[str, int]) -> tuple[str, list[str]]:
        name, number = point
        root = tmp_path / f"{name}-{number}"
        place, now = scene.ready(root)
        trace = root / "trace"
        _run(under_strace(place.argv(), trace, f"{name}:signal=SIGKILL:when={number}", calls=WRITES))
        wrong = [] if "killed by SIGKILL" in trace.read_text() else ["not killed"]
        wrong += _wrong_after(scene, place, now)
        shutil.rmtree(root)
        return f"{name} {number}", wrong

    with ThreadPoolExecutor(WORKERS) as workers:
        runs = list(workers.map(kill, points))
    assert {point: wrong for point, wrong in runs if wrong and wrong != ["not killed"]} == {}
    assert len([point for point, wrong in runs if wrong == []]) >= POINTS


def _written(process: int) -> int:
    """How many bytes a program has written so far; -1 once it is gone."""
    try:
        for line in Path(f"/proc/{process}/io").read_text().splitlines():
            if line.startswith("wchar:"):
                return int(line.split()[1])
    except OSError:
        pass
    return -1


def test_a_program_killed_at_a_random_moment_is_followed_by_one_that_finds_everything(tmp_path: Path) -> None:
    """The moment is how much it has written; again with LNK_SEED."""
    if not os.path.exists("/proc/self/io"):
        skip_loudly("how much a program has written is not told here")
    sys.stdout.write(f"LNK_SEED={SEED}\n")
    chance = random.Random(SEED)
    scene = SCENES[1]

    def ended(place: Place, at: int | None) -> int:
        """A session whose program is killed when it has written so much; how much it wrote."""
        session = Session(place.argv())
        process, wrote = session._process.pid, 0

        def use() -> None:
            try:
                session.open()
                settled(session)
            except LinkError:
                pass

        user = threading.Thread(target=use)
        user.start()
        while user.is_alive():
            wrote = max(wrote, _written(process))
            if at is not None and wrote >= at:
                os.kill(process, signal.SIGKILL)
                break
        user.join()
        session.close()
        return wrote

    place, _ = scene.ready(tmp_path / "plain")
    whole = ended(place, None)

    def kill(number: int) -> tuple[int, list[str]]:
        at = moments[number]
        place, now = scene.ready(tmp_path / f"{number}")
        ended(place, at)
        wrong = _wrong_after(scene, place, now)
        shutil.rmtree(place.root)
        return at, wrong

    moments = [chance.randrange(whole) for _ in range(6)]
    with ThreadPoolExecutor(WORKERS) as workers:
        runs = list(workers.map(kill, range(len(moments))))
    assert {at: wrong for at, wrong in runs if wrong} == {}, f"LNK_SEED={SEED}"


def test_the_session_after_a_kill_is_not_kept_waiting_by_a_lock(place: Place, session: Open) -> None:
    """Case index-23: an empty lock file, and a holder killed while it holds every lock."""
    place.write("memory/a.md", "apple\n")
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(place.state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin and holder.stdout and holder.stdout.readline()
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    assert (place.state / "index.lock").stat().st_size == 0
    assert session().paths("apple") == ["memory/a.md"]


_HOLDER: Final = """\
import sys
from lnk.folder import Folder, make_folder
from lnk.memory.index import Index
make_folder(sys.argv[1])
state = Folder.open(sys.argv[1])
index = Index(state)
with state.locked(), index.alone(), index.writing():
    print(flush=True)
    sys.stdin.read()
"""


# ------------------------------------------------------------ several at once


def test_eight_programs_that_start_at_once_over_a_new_state_folder_all_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Case index-01: two first starts raced to make the tables, and one program died."""
    for number in range(3):
        place = Place(tmp_path / f"{number}")
        for each in range(5):
            place.write(f"memory/d{each}.md", _text(each, "first"))
        sessions = [Session(place.argv()) for _ in range(8)]
        with ThreadPoolExecutor(8) as users:
            list(users.map(Session.open, sessions))
            found = list(users.map(lambda one: settled(one).paths("first3x"), sessions))
            listed = list(users.map(everything, sessions))
            list(users.map(Session.close, sessions))
        assert found == [["memory/d3.md"]] * 8
        assert listed == [listed[0]] * 8
        assert len(listed[0]) == 5
        assert check(place)["differences"] == 0
    assert capfd.readouterr().err == ""


def test_eight_openings_at_the_same_instant_make_one_index(tmp_path: Path) -> None:
    """Case index-01, at its heart: 30 rounds of eight processes that wait for one word to begin."""
    for number in range(30):
        state = tmp_path / f"{number}"
        state.mkdir()
        go_read, go_write = os.pipe()
        told_read, told_write = os.pipe()
        children = []
        for _ in range(8):
            child = os.fork()
            if child == 0:
                _open_and_tell(str(state), go_read, go_write, told_write)
            children.append(child)
        os.close(go_read)
        os.close(told_write)
        os.close(go_write)  # go
        with os.fdopen(told_read) as told:
            names = told.read().split()
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 8
        assert len(names) == 8
        assert len(set(names)) == 1


def _open_and_tell(state: str, go_read: int, go_write: int, told: int) -> None:
    """In a child: waits for the word, opens the index, tells its name."""
    try:
        os.close(go_write)
        os.read(go_read, 1)
        with Folder.open(state) as folder:
            os.write(told, f"{Index(folder).fact('name')}\n".encode())
        os._exit(0)
    except BaseException as error:
        os.write(told, f"{type(error).__name__}:{error}\n".replace(" ", "_").encode())
        os._exit(1)


def test_two_sessions_over_one_folder_see_each_change_whoever_indexed_it(place: Place, session: Open) -> None:
    first, second = session(), session()
    for number in range(10):
        one, other = (first, second) if number % 2 else (second, first)
        file = place.write("memory/changing.md", f"word{number}x\n")
        place.write(f"memory/n{number}.md", f"own{number}x\n")
        assert one.paths(f"word{number}x") == ["memory/changing.md"]
        assert other.paths(f"word{number}x") == ["memory/changing.md"]
        assert other.paths(f"own{number}x") == [f"memory/n{number}.md"]
        assert one.paths(f"own{number}x") == [f"memory/n{number}.md"]
        assert other.paths(f"word{number - 1}x") == one.paths(f"word{number - 1}x") == []
        if number == 9:
            file.unlink()
    assert first.paths("word9x") == second.paths("word9x") == []
    assert everything(first) == everything(second)
    assert len(everything(first)) == 10
    assert check(place)["differences"] == 0


def test_sessions_that_come_and_go_while_others_stay_keep_one_index(place: Place, session: Open) -> None:
    """The last to close folds the log into the file; others must not lose it under them."""
    stays = session()
    for number in range(6):
        place.write(f"memory/n{number}.md", f"own{number}x\n")
        with Session(place.argv()) as goes:
            goes.open()
            assert goes.paths(f"own{number}x") == [f"memory/n{number}.md"]
        assert stays.paths(f"own{number}x") == [f"memory/n{number}.md"]
    stays.close()
    assert left_in(place.state) <= {"index.sqlite", "index.lock"}
    assert check(place)["differences"] == 0


# ------------------------------------------------------------ damaged, gone, or not ours


def _unlink(file: Path) -> None:
    for side in SIDE_FILES:
        file.with_name(file.name + side).unlink(missing_ok=True)


def _overwrite(file: Path) -> None:
    with open(file, "r+b") as opened:
        opened.write(random.Random(1).randbytes(file.stat().st_size))


def _overwrite_after_the_first_page(file: Path) -> None:
    with open(file, "r+b") as opened:
        opened.seek(4096)
        opened.write(random.Random(1).randbytes(file.stat().st_size - 4096))


def _fold(file: Path) -> None:
    """All of the index lies in its file, none of it in the log beside, and whoever has it open goes on."""
    db = apsw.Connection(str(file))
    db.set_busy_timeout(10_000)
    assert db.execute("SELECT count(*) FROM documents").get  # only now it is known to have a log
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.close()
    assert file.stat().st_size > 20_000


def _newer(file: Path) -> None:
    with apsw.Connection(str(file)) as db:
        db.execute("PRAGMA user_version=99")
    db.close()


def _anothers(file: Path) -> None:
    _unlink(file)
    db = apsw.Connection(str(file))
    db.execute("CREATE TABLE theirs (a); PRAGMA application_id=77")
    db.close()


DAMAGES: Final[dict[str, Callable[[Path], object]]] = {
    "deleted": _unlink,
    "truncated": lambda file: os.truncate(file, 5000),
    "emptied": lambda file: os.truncate(file, 0),
    "junk": _overwrite,
    "junk-inside": _overwrite_after_the_first_page,
    "newer": _newer,
    "anothers": _anothers,
}


def _five(place: Place) -> dict[str, str]:
    """Five documents, and what finds each."""
    for number in range(5):
        place.write(f"memory/d{number}.md", _text(number, "first"))
    return {f"first{number}x": f"memory/d{number}.md" for number in range(5)}


def _before(place: Place) -> float:
    """A session that indexes, and what it says is `now`."""
    with Session(place.argv()) as session:
        session.open()
        return settled(session).list()["now"]


@pytest.mark.requirement("INDEX-12")
@pytest.mark.parametrize("damage", DAMAGES)
def test_an_index_that_is_no_good_is_made_again_at_the_start_and_that_is_said(
    damage: str, place: Place, session: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    words = _five(place)
    now = _before(place)
    assert capfd.readouterr().err == ""
    DAMAGES[damage](place.state / "index.sqlite")
    opened = settled(session())
    assert {word: opened.paths(word) for word in words} == {word: [path] for word, path in words.items()}
    assert "remade" in opened.list(since=now)  # first-seen times and the removed list are lost
    after = opened.list()["now"]
    assert "remade" not in opened.list(since=after)
    opened.close()
    said = capfd.readouterr().err
    if damage != "deleted":  # that there was one, nobody can know
        assert said.count("\n") == 1
        assert "made again" in said and "first-seen times" in said
    assert check(place)["differences"] == 0


@pytest.mark.requirement("INDEX-12")
@pytest.mark.parametrize("damage", DAMAGES)
def test_an_index_that_is_spoiled_while_it_serves_is_made_again_and_no_answer_is_untrue(
    damage: str, place: Place, session: Open
) -> None:
    """No answer says that there is nothing, while the documents are there."""
    words = _five(place)
    opened = settled(session())
    _fold(place.state / "index.sqlite")
    DAMAGES[damage](place.state / "index.sqlite")
    for _ in range(3):
        for word, path in words.items():
            answer = opened.call("search", {"query": word})
            if answer.failed:
                assert "made again" in answer.text
                continue
            if [result["path"] for result in answer.structured["results"]] != [path]:
                assert answer.structured.keys() & {"indexed", "stale"}, answer.text
    settled(opened)
    assert {word: opened.paths(word) for word in words} == {word: [path] for word, path in words.items()}
    place.write("memory/new.md", "zebra\n")
    assert opened.paths("zebra") == ["memory/new.md"]
    opened.close()
    with Session(place.argv()) as again:
        again.open()
        settled(again)
        assert {word: again.paths(word) for word in words} == {word: [path] for word, path in words.items()}
    assert check(place)["differences"] == 0


@pytest.mark.requirement("INDEX-12")
@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "newer"])
def test_an_index_made_again_while_it_serves_says_what_was_lost(
    damage: str, place: Place, session: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    """On standard error, and in `list` since a time before: by this program, or by the next that meets it."""
    _five(place)
    opened = settled(session())
    now = opened.list()["now"]
    _fold(place.state / "index.sqlite")
    DAMAGES[damage](place.state / "index.sqlite")
    place.write("memory/new.md", "zebra\n")
    for _ in range(5):
        opened.call("search", {"query": "zebra"})
    opened.close()
    again = settled(session())
    assert "remade" in again.list(since=now)
    again.close()
    said = capfd.readouterr().err
    assert "made again" in said
    assert [line for line in said.splitlines() if not line.startswith("lnk-link-memory: ")] == []


@pytest.mark.requirement("INDEX-12")
def test_junk_in_the_log_beside_the_index_costs_nothing(place: Place, session: Open) -> None:
    words = _five(place)
    _before(place)
    (place.state / "index.sqlite-wal").write_bytes(random.Random(2).randbytes(20_000))
    (place.state / "index.sqlite-shm").write_bytes(random.Random(3).randbytes(32_768))
    opened = settled(session())
    assert {word: opened.paths(word) for word in words} == {word: [path] for word, path in words.items()}
    opened.close()
    assert check(place)["differences"] == 0


def test_an_index_that_is_a_link_is_refused_and_what_it_points_to_stays(place: Place) -> None:
    place.state.mkdir()
    other = place.root / "other.sqlite"
    _anothers(other)
    before = other.read_bytes()
    (place.state / "index.sqlite").symlink_to(other)
    done = subprocess.run(place.argv(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 11
    assert done.stderr.count("\n") == 1
    assert other.read_bytes() == before


# ------------------------------------------------------------ no room, no right


@pytest.mark.parametrize("size", ["8k", "16k", "32k", "64k"])
def test_a_start_on_a_disk_without_room_for_the_index_says_so(size: str, place: Place, session: Open) -> None:
    words = _five(place)
    with small_disk(place.state, size):
        done = subprocess.run(place.argv(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert "full" in done.stderr or "No space" in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.returncode == 14
        remounted(place.state, "size=30m")
        opened = settled(session())
        assert {word: opened.paths(word) for word in words} == {word: [path] for word, path in words.items()}
        opened.close()


def test_a_disk_that_fills_while_indexing_is_said_and_it_goes_on_when_there_is_room(
    place: Place, session: Open
) -> None:
    """What was indexed is still found, no document is touched, and nothing has to be started again."""
    words = _five(place)
    with small_disk(place.state, "400k"):
        opened = settled(session())
        for number in range(100, 400):
            place.write(f"memory/d{number}.md", _text(number, "late"))
        documents = {path.name: path.read_bytes() for path in place.memory.iterdir()}
        for word, path in words.items():
            found = opened.search(word)
            assert [result["path"] for result in found["results"]] == [path]
            assert "full" in found["stale"]
        late = opened.search("late399x")
        assert "full" in late["stale"] and (late["results"] or "full" in late["empty"])
        remounted(place.state, "size=60m")
        settled(opened)
        found = opened.search("late399x")
        assert [result["path"] for result in found["results"]] == ["memory/d399.md"]
        assert "stale" not in found
        assert len(everything(opened)) == 305
        assert {path.name: path.read_bytes() for path in place.memory.iterdir()} == documents
        opened.close()
        _before(place)
        assert check(place)["differences"] == 0


@pytest.mark.parametrize("what", ["new", "folder", "unreadable", "parent"])
def test_a_state_folder_that_may_not_be_written_ends_the_start_in_one_line(what: str, place: Place) -> None:
    _five(place)
    shut = {
        "new": place.state,
        "folder": place.state,
        "unreadable": place.state / "index.sqlite",
        "parent": place.notes.parent,
    }[what]
    if what == "new":
        place.state.mkdir()
    elif what != "parent":
        _before(place)
    if what == "folder":
        (place.state / "index.sqlite").chmod(0o400)
    shut.chmod(0 if what == "unreadable" else 0o555)
    argv = ordinary(place.argv())
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    shut.chmod(0o755)
    assert done.returncode == 11
    assert done.stdout == ""
    assert done.stderr.startswith("lnk-link-memory: ")
    assert done.stderr.count("\n") == 1
    assert str(place.state) in done.stderr


def test_an_index_that_may_not_be_written_answers_from_what_it_has_and_says_so(
    place: Place, open_session: Open
) -> None:
    words = _five(place)
    _before(place)
    place.write("memory/new.md", "zebra\n")
    (place.state / "index.sqlite").chmod(0o400)
    opened = open_session(ordinary(place.argv()))
    for word, path in words.items():
        found = opened.search(word)
        assert [result["path"] for result in found["results"]] == [path]
        assert "cannot be opened for writing" in found["stale"]
    (place.state / "index.sqlite").chmod(0o600)


def test_a_state_that_is_a_file_ends_the_start_in_one_line(place: Place) -> None:
    place.state.write_text("mine")
    done = subprocess.run(place.argv(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (11, 1)
    assert place.state.read_text() == "mine"


# ------------------------------------------------------------ what is deleted leaves


def _unusual(name: str, count: int) -> list[str]:
    """Words like no other, so that not even a part of one can be there by chance."""
    chance = random.Random(name)
    return ["".join(chance.choice("qzxjvkwy") for _ in range(14)) for _ in range(count)]


def _bytes_of(folder: Path) -> bytes:
    return b"\0".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


def _left(place: Place, words: list[str]) -> set[str]:
    """Those of the words that stand in the files of the index, or their ends, which FTS5 keeps apart."""
    held = _bytes_of(place.state)
    return {word for word in words if word[-9:].encode() in held}


@pytest.mark.requirement("CONTRACT-15")
@pytest.mark.parametrize("how", ["deleted", "emptied", "ignored"])
def test_what_a_deleted_document_held_is_in_no_file_of_the_index(how: str, place: Place, session: Open) -> None:
    """A short one, and one whose words fill many pages of the index: neither text nor words, nor their ends."""
    place.write("memory/stays.md", "# Stays\n\nThe gate code is 4711, qualm and quay.\n")
    words = {"short": _unusual("short", 12), "large": _unusual("large", 3000)}
    for name, each in words.items():
        text = "\n\n".join(f"## Heading {at}\n\n{' '.join(each[at : at + 9])}" for at in range(0, len(each), 9))
        place.write(f"memory/{name}.md", f"# Secret of {name}\n\n{text}\n[{each[0]}](x{each[1]}.md)\n")
    opened = settled(session())
    every = [word for each in words.values() for word in each]
    assert opened.paths(every[0]) == ["memory/short.md"]
    assert opened.paths(every[-1]) == ["memory/large.md"]
    assert every[0].encode() in _bytes_of(place.state)
    for name in words:
        if how == "deleted":
            (place.memory / f"{name}.md").unlink()
        elif how == "emptied":
            place.write(f"memory/{name}.md", f"# Secret of {name}\n")
        else:
            place.write("memory/.memoryignore", "short.md\nlarge.md\n")
    assert opened.paths(every[0]) == opened.paths(every[-1]) == []
    soon(lambda: not _left(place, [every[0], every[-1]]))
    assert _left(place, every) == set()
    held = _bytes_of(place.state)
    assert b"Heading 0" not in held
    assert b"4711" in held
    modes = {path.name: path.stat().st_mode & 0o7777 for path in place.state.iterdir()}
    assert modes == dict.fromkeys(modes, 0o600)
    assert {"index.sqlite", "index.sqlite-wal", "index.sqlite-shm"} <= modes.keys()
    opened.close()
    assert _left(place, every) == set()


@pytest.mark.requirement("CONTRACT-15")
def test_the_files_of_the_index_are_the_owners_alone_whatever_the_umask(place: Place, session: Open) -> None:
    before = os.umask(0)
    try:
        opened = session()
    finally:
        os.umask(before)
    place.write("memory/a.md", "apple\n")
    assert opened.paths("apple") == ["memory/a.md"]
    assert place.state.stat().st_mode & 0o7777 == 0o700
    assert {path.stat().st_mode & 0o7777 for path in place.state.iterdir()} == {0o600}


@pytest.mark.requirement("CONTRACT-15")
def test_of_a_deleted_document_path_and_title_alone_stay_in_the_removed_list(place: Place, session: Open) -> None:
    place.write("memory/gone.md", "# The title\n\nunrepeatable\n")
    opened = settled(session())
    now = opened.list()["now"]
    (place.memory / "gone.md").unlink()
    told = opened.list(since=now)
    assert [(entry["path"], entry["title"]) for entry in told["removed"]] == [("memory/gone.md", "The title")]
    assert soon(lambda: b"unrepeatable" not in _bytes_of(place.state))
    assert b"The title" in _bytes_of(place.state)


# ------------------------------------------------------------ the words' own index


def _whole(place: Place) -> tuple[int, int]:
    """How often the chunks changed, and how many there are; fails where the words' index is not theirs."""
    db = apsw.Connection(str(place.state / "index.sqlite"))
    db.set_busy_timeout(10_000)
    try:
        db.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 0)")
        (chunks,), (words,) = db.execute("SELECT count(*) FROM chunks UNION ALL SELECT count(*) FROM words_docsize")
        assert chunks == words
        return db.execute("SELECT value FROM counts WHERE name = 'chunks'").get, chunks
    finally:
        db.close()


def test_words_come_and_go_with_their_document_and_the_words_index_stays_whole(place: Place, session: Open) -> None:
    """Cases index-15, index-17: written again and deleted in random order; FTS5's own check after every step."""
    sys.stdout.write(f"LNK_SEED={SEED}\n")
    chance = random.Random(SEED)
    every = _unusual("every", 30)
    there: dict[str, set[str]] = {}
    opened = settled(session())
    for _ in range(150):
        path = f"memory/{chance.randrange(12)}.md"
        count, _ = _whole(place)
        if path in there and chance.random() < 0.4:
            (place.home / path).unlink()
            del there[path]
        else:
            words = set(chance.sample(every, chance.randrange(1, 25)))
            place.write(path, "\n\n".join(f"## {word}\n\n{word} {'padding ' * 150}" for word in words))
            there[path] = words
        for word in chance.sample(every, 2):
            assert hits(opened, word) == sorted(path for path, held in there.items() if word in held), f"{SEED=}"
        changed, chunks = _whole(place)
        assert changed > count
        assert (chunks > 0) == bool(there)


def test_files_that_are_touched_and_not_changed_are_not_indexed_again(place: Place, session: Open) -> None:
    """Case index-21: after a checkout or a copy everything was embedded again."""
    for number in range(300):
        place.write(f"memory/d{number}.md", f"apple {number}\n", at=1_600_000_000)
    opened = settled(session())
    assert len(everything(opened, path="memory")) == 300

    before = _whole(place)
    for number in range(300):
        file = place.memory / f"d{number}.md"
        if number % 3 == 0:
            os.utime(file, (1_700_000_000, 1_700_000_000))
        elif number % 3 == 1:
            file.write_bytes(file.read_bytes())
        else:
            shutil.copyfile(file, place.memory / "copy.tmp")
            (place.memory / "copy.tmp").rename(file)
    assert {entry["changed"] for entry in everything(opened) if entry["path"] == "memory/d0.md"} == {
        "2023-11-14T22:13:20Z"
    }
    assert _whole(place) == before
    place.write("memory/d0.md", "banana\n")
    assert opened.paths("banana") == ["memory/d0.md"]
    assert _whole(place)[0] > before[0]


def test_check_finds_what_the_index_does_not_have(place: Place) -> None:
    """Else none of the tests above proves anything by it."""
    _five(place)
    _before(place)
    place.write("memory/new.md", "new\n")
    (place.memory / "d0.md").unlink()
    place.write("memory/d1.md", "changed\n")
    db = apsw.Connection(str(place.state / "index.sqlite"))
    db.execute("DELETE FROM chunks WHERE id = (SELECT min(id) FROM chunks)")
    db.close()
    found = check(place)
    assert found["not_indexed"] == ["memory/new.md"]
    assert found["gone"] == ["memory/d0.md"]
    assert found["changed"] == ["memory/d1.md"]
    assert len(found["damage"]) == 1
    assert found["differences"] == 4
    status = subprocess.run([ENGINE, "check", str(place.home), str(place.state), str(place.agent)], check=False)
    assert status.returncode == 1
    assert json.dumps(found)
