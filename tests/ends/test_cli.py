"""`lnk agent memory …` as a person types it: the real program, with a home, a Link folder and a TMPDIR of its own."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import LNK, Person
from lnk.mcp.client import Program

QUESTION = "What is the gate code of the holiday house?"
WAIT_S = 60
MANY = 3_000  # files: their first index takes long enough that a call tells how far it is

USAGE, INVALID, REFUSED, MISSING, CONFLICT, FULL, CORRUPT, INTERRUPTED = 2, 10, 11, 12, 13, 14, 16, 130

# What root may do anyway is taken away, so that a folder's mode means something.
if os.geteuid() != 0:
    COMMON: list[str] = []
elif shutil.which("setpriv"):
    COMMON = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--"]
else:
    COMMON = ["not there"]
needs_modes = pytest.mark.skipif(COMMON == ["not there"], reason="as root, setpriv is needed to make modes count")


class Asker(Person):
    """Someone who asks a memory."""

    def memory(self, *argv: str | Path, **more: Any) -> str:
        """What `lnk agent memory argv` prints."""
        return self.shows("agent", "memory", *argv, **more)

    def json(self, *argv: str | Path, **more: Any) -> Any:
        """What `lnk agent memory argv --json` prints."""
        return json.loads(self.memory(*argv, "--json", **more))


def said(done: subprocess.CompletedProcess[str], status: int) -> str:
    """The one line on standard error of a command that ended with `status` and did nothing else."""
    assert (done.returncode, done.stdout) == (status, ""), done
    assert re.fullmatch(r"lnk(-link-memory)?: [^\n]+[.?]\n", done.stderr), done.stderr
    return done.stderr


def everything(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Every file and folder beneath: mode, times, identity, and the bytes or where a link leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        at = path.lstat()
        holds = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (at.st_mode, at.st_ino, at.st_mtime_ns, at.st_ctime_ns, holds)
    return found


@contextlib.contextmanager
def shut(path: Path, mode: int = 0) -> Iterator[None]:
    """`path` with `mode` inside, and as it was after."""
    was = path.stat().st_mode
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(was)


def on_terminal(
    argv: list[str], environment: dict[str, str], *, seen: Callable[[int, str], bool] = lambda _terminal, _text: False
) -> tuple[int, str, int]:
    """Exit status, output and process group of `argv` on a terminal of its own; nothing is typed there.

    `seen` is given the terminal and all output so far; True says that the terminal is to be closed.
    """
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        argv,
        env={"TERM": "xterm", **environment},
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C and its closing are heard
    )
    os.close(end)
    data = b""
    try:
        while select.select([terminal], [], [], WAIT_S)[0]:
            try:
                part = os.read(terminal, 1 << 16)
            except OSError:  # the other end is closed
                break
            data += part
            if not part or seen(terminal, data.decode("utf-8", "replace")):
                break
    finally:
        os.close(terminal)
        try:
            status = process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return status, data.decode("utf-8", "replace"), process.pid


def ctrl_c_at(words: str) -> Callable[[int, str], bool]:
    """Presses Ctrl-C, once, when the output first holds `words`."""
    pressed: list[bool] = []

    def seen(terminal: int, text: str) -> bool:
        if words in text and not pressed:
            pressed.append(True)
            os.write(terminal, b"\x03")
        return False

    return seen


def gone(group: int) -> bool:
    """Whether nothing of the process group is left, waiting a moment for what is ending."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        threading.Event().wait(0.01)
    return False


@pytest.fixture
def person(tmp_path: Path) -> Asker:
    return Asker(tmp_path)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose first index takes a while."""
    folder = tmp_path_factory.mktemp("many")
    for number in range(MANY):
        words = " ".join(f"word{number * 7 + at * at}" for at in range(60))
        (folder / f"note {number}.md").write_text(f"# Note {number}\n\n{words}\n")
    return folder


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Asker:
    """Someone whose agents `main` and `vault` have the notes in `Notes` and `Vault`; for tests that only read."""
    person = Asker(tmp_path_factory.mktemp("reader"))
    person.write("Notes/home/Lease.md", "# The lease\n\nIt ends on 31 March; see [[Plants]] and [[Nowhere]].\n")
    person.write("Notes/Plants.md", "# Plants\n\nThe fern belongs to the landlord, says the [lease](home/Lease.md).\n")
    person.write("Notes/windows.txt", "first line\r\nthe boiler is serviced in May\r\nlast line\r\n")
    person.write("Notes/long.md", "# Long\n\n" + "".join(f"The kettle has number {n}.\n" for n in range(1, 40)))
    person.write("Notes/drafts/Secret.md", "The unicorn is not to be found.\n")
    person.write("Notes/drafts/Other.md", "Nor is the other unicorn.\n")
    person.write("Notes/.memoryignore", "Secret.md\ndrafts/Other.md\n")
    person.write("Notes/picture.png", b"\x89PNG\r\n\x1a\n\0\0")
    for number in range(12):
        person.write(f"Notes/teas/tea {number}.md", f"# Tea {number}\n\nOolong, infusion number {number}.\n")
    person.shows("agent", "new", "main", "--documents", person.root / "Notes")
    shutil.copytree(person.root / "Notes", person.root / "Vault")
    person.write("Vault/long.md", "# Long, the other one\n\n" + "The kettle is of copper.\n" * 20)
    person.shows("agent", "new", "vault", "--documents", person.root / "Vault")
    person.write("Link/Agents/main/Agent/chats/link-main/conversation.md", "# Main\n\nWe spoke of the walrus.\n")
    person.write("Link/Agents/main/Agent/memory/notes.md", "- The owner drinks tea.\n")
    return person


@pytest.fixture
def main(person: Person) -> Path:
    """The folder of the agent `main`, with one document."""
    person.shows("agent", "new", "main")
    person.write("Link/Agents/main/Home/memory/lease.md", "# Lease\n\nIt ends in March.\n")
    return person.link / "Agents" / "main"


# ---------------------------------------------------------------- try


def test_the_example_question_is_answered_by_the_first_result(person):
    shown = person.memory("try", QUESTION)
    assert re.match(r"\d\d documents of the example folder indexed in \d+\.\d s\.\n\n1\. ", shown)
    assert "7294#" in shown[: shown.index("\n2. ")]
    assert "lnk agent memory setup claude-code --documents ~/Notes" in shown
    assert list(person.temporary.iterdir()) == list(person.home.iterdir()) == []
    assert not person.link.exists()


def test_try_gives_its_count_and_results_as_json(person):
    found = person.json("try", QUESTION)
    assert found["documents"] >= 40
    assert "7294#" in found["results"][0]["text"]
    assert len(found["results"]) == 3


def test_try_without_a_question_shows_the_newest_documents(person):
    for number, name in enumerate(("old", "older", "newest", "oldest")):
        file = person.write(f"Notes/{name}.md", f"About {name} things.\n")
        os.utime(file, (1_700_000_000 + (number == 2), 1_700_000_000 + (number == 2)))
    assert person.json("try", "--documents", "Notes")["results"][0]["path"] == "memory/newest.md"
    assert "The newest:\n\n1. newest  memory/newest.md" in person.memory("try", "--documents", "Notes")


@pytest.mark.parametrize("given", ["Notes", "{root}/My Notes/2026 é", "{root}/link to notes", "~/Notes"])
def test_a_folder_of_ones_own_is_answered_from_and_stays_as_it_is(person, given):
    folder = person.root / {"Notes": "Notes", "~/Notes": "person/Notes"}.get(given, "My Notes/2026 é")
    person.write(str(folder / "home/lease.md"), "# Lease\n\nThe lease ends on 31 March.\n")
    person.write(str(folder / "other.txt"), b"Caf\xe9, in an old encoding\r\n")
    person.write(str(folder / "empty.md"), "")
    (folder / "out").symlink_to("/etc")
    (person.root / "link to notes").symlink_to(folder)
    before, home = everything(folder), everything(person.home)
    shown = person.memory("try", "When does the lease end?", "--documents", given.format(root=person.root))
    assert f"documents of {folder} indexed" in shown.splitlines()[0]
    assert shown.splitlines()[2].startswith("1. Lease  memory/home/lease.md")
    assert everything(folder) == before
    assert everything(person.home) == home
    assert list(person.temporary.iterdir()) == []
    assert not person.link.exists()


def test_try_counts_what_is_indexed_not_what_is_left_out(person):
    person.write("Notes/lease.md", "The lease.\n")
    person.write("Notes/scan.pdf", b"%PDF-1.7\n")
    found = person.json("try", "lease", "--documents", "Notes")
    person.shows("agent", "new", "main", "--documents", "Notes")
    assert found["documents"] == person.json("status")["documents"] == 1


def test_a_folder_that_cannot_be_tried_is_said_in_one_sentence(person):
    person.write("file.md", "No folder.\n")
    (person.root / "loop").symlink_to("loop")
    assert f"{person.root}/nowhere is not there" in said(
        person.lnk("agent", "memory", "try", "lease", "--documents", "nowhere"), MISSING
    )
    assert "file.md is not a folder" in said(
        person.lnk("agent", "memory", "try", "lease", "--documents", "file.md"), REFUSED
    )
    assert person.lnk("agent", "memory", "try", "lease", "--documents", "loop").returncode in (MISSING, REFUSED)
    assert list(person.temporary.iterdir()) == []


def test_an_empty_name_of_a_folder_is_not_taken_for_the_example(person):
    done = person.lnk("agent", "memory", "try", "lease", "--documents", "")
    assert done.returncode in (INVALID, MISSING), done


@needs_modes
def test_a_folder_that_may_not_be_read_is_refused_in_one_sentence(person):
    person.write("Notes/lease.md", "The lease.\n")
    with shut(person.root / "Notes"):
        for command in (["try", "lease"], ["setup", "cursor"]):
            done = person.lnk("agent", "memory", *command, "--documents", "Notes", before=COMMON)
            assert f"{person.root}/Notes" in said(done, REFUSED)
    assert list(person.temporary.iterdir()) == []
    assert not (person.home / ".cursor").exists()


# ---------------------------------------------------------------- the calls, for people and for programs


def test_search_shows_title_path_date_lines_and_passage(reader):
    shown = reader.memory("search", "when does the lease end")
    assert re.match(r"1\. The lease  memory/home/Lease\.md  \d{4}-\d\d-\d\d  lines 1-3\n   # The lease\n", shown)
    assert "   It ends on 31 March; see [[Plants]] and [[Nowhere]].\n" in shown


def test_search_gives_what_mcp_gives_as_json(reader):
    found = reader.json("search", "landlord fern")
    with Program([LNK, "agent", "memory", "serve"], env=reader.environment) as program:
        program.open()
        assert found == program.call("search", {"query": "landlord fern"}).structured
    assert [result["path"] for result in found["results"]] == ["memory/Plants.md"]


def test_search_says_which_kind_of_empty_an_empty_answer_is(reader):
    assert reader.memory("search", "zeppelin").startswith("None of the ")
    found = reader.json("search", "walrus", "--kind", "document")
    assert found["results"] == [] and found["empty"].startswith("The filter (path, kind, since) left out 1 document")


def test_search_looks_only_where_and_since_when_it_is_told(reader):
    def paths(*argv: str) -> list[str]:
        return [result["path"] for result in reader.json("search", *argv)["results"]]

    assert paths("walrus lease", "--kind", "conversation") == ["chats/link-main/conversation.md"]
    assert paths("lease", "--path", "memory/home") == ["memory/home/Lease.md"]
    assert paths("lease", "--since", "2100-01-01") == []
    assert paths("unicorn") == []


def test_search_without_a_question_lists_the_newest(reader):
    newest = reader.json("search")["results"]
    assert len(newest) >= 15
    assert [each["changed"] for each in newest] == sorted((each["changed"] for each in newest), reverse=True)


def test_next_goes_on_without_a_gap_and_without_a_repeat(reader):
    found = reader.json("search", "oolong", "--tokens", "350")
    paths = [result["path"] for result in found["results"]]
    while "next" in found:
        found = reader.json("search", "oolong", "--tokens", "350", "--next", found["next"])
        paths += [result["path"] for result in found["results"]]
    assert sorted(paths) == sorted(f"memory/teas/tea {number}.md" for number in range(12))


@pytest.mark.parametrize(
    "argv",
    [
        "search --tokens 200",
        "search 'oolong infusion' --tokens 200 --path memory/teas --kind document --since 2000-01-01 --agent vault",
        "list memory/teas --tokens 200 --kind document --since 2000-01-01 --agent vault",
    ],
)
def test_the_command_that_is_shown_for_more_gives_what_comes_next(reader, argv):
    shown = reader.memory(*shlex.split(argv))
    more = shlex.split(shown.splitlines()[-1].removeprefix("There is more: "))
    after = reader.shows(*more[1:])
    first = set(re.findall(r"memory/[^\n]+?\.(?:md|txt)", shown))
    following = set(re.findall(r"memory/[^\n]+?\.(?:md|txt)", after))
    assert first and following and first.isdisjoint(following)
    assert "--path" not in argv or all(path.startswith("memory/teas/") for path in following)


def test_the_command_that_is_shown_for_a_long_passage_reads_that_document(reader):
    for agent, name in (([], "Notes"), (["--agent", "vault"], "Vault")):
        shown = reader.memory("search", "kettle", *agent)
        command = re.search(r"… \d+ more lines: (\S*lnk .*)", shown)
        assert command
        assert reader.shows(*shlex.split(command[1])[1:]) == (reader.root / name / "long.md").read_text()


def test_read_shows_a_text_as_it_is(reader):
    assert reader.memory("read", "memory/Plants.md") == (reader.root / "Notes/Plants.md").read_text()
    assert reader.memory("read", "memory/long.md", "--line", "41") == "The kettle has number 39.\n"
    assert reader.json("read", "memory/long.md", "--line", "40")["lines"] == [40, 41]
    assert reader.memory("read", "chats/link-main/conversation.md").endswith("walrus.\n")
    assert reader.memory("read", "notes.md") == "- The owner drinks tea.\n"


def test_the_line_ends_of_windows_are_not_shown_as_signs(reader):
    assert "\ufffd" not in reader.memory("read", "memory/windows.txt")
    assert "\ufffd" not in reader.memory("search", "boiler")
    assert reader.json("read", "memory/windows.txt")["text"].startswith("first line\r\n")


def test_list_shows_the_documents_and_what_changed_since(person, main):
    assert re.fullmatch(r"memory/lease\.md  \d{4}-\d\d-\d\d  27 bytes    Lease\n", person.memory("list"))
    now = person.json("list")["now"]
    person.write("Link/Agents/main/Home/memory/new.md", "# Fresh\n")
    (main / "Home/memory/lease.md").unlink()
    assert person.json("list", "--since", str(now))["removed"][0]["path"] == "memory/lease.md"
    shown = person.memory("list", "--since", str(now))
    assert re.search(r"^memory/new\.md  .*  new  Fresh$", shown, re.M)
    assert re.search(r"^memory/lease\.md  removed .*\(Lease\)$", shown, re.M)
    assert person.memory("list", "--since", "2100-01-01") == "Nothing.\n"


def test_list_shows_one_folder_or_one_kind(reader):
    assert reader.memory("list", "memory/home").split()[0] == "memory/home/Lease.md"
    assert [each["path"] for each in reader.json("list", "--kind", "conversation")["documents"]] == [
        "chats/link-main/conversation.md"
    ]


def test_links_shows_both_ways_and_what_is_not_there_yet(reader):
    shown = reader.memory("links", "memory/home/Lease.md")
    assert re.search(r"^memory/home/Lease\.md links to:$", shown, re.M)
    assert re.search(r"^  line 3: .*Plants.* -> memory/Plants\.md$", shown, re.M)
    assert re.search(r"^  line 3: .*Nowhere.* -> \(nothing yet\)$", shown, re.M)
    assert re.search(r"^and is linked from:\n  memory/Plants\.md line 3: ", shown, re.M)
    found = reader.json("links", "memory/Plants.md")
    assert (
        [link["path"] for link in found["from"]] == [link["path"] for link in found["to"]] == ["memory/home/Lease.md"]
    )


def test_notes_shows_the_notes_or_that_there_are_none(person, main):
    assert person.memory("notes") == f"There are no notes yet; they are kept in {main}/Agent/memory/notes.md.\n"
    person.write("Link/Agents/main/Agent/memory/notes.md", "- The owner drinks tea.\n")
    assert person.memory("notes") == "- The owner drinks tea.\n"
    assert person.json("notes") == {
        "path": f"{main}/Agent/memory/notes.md",
        "notes": "- The owner drinks tea.\n",
    }


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_notes_that_are_no_file_are_said_in_one_sentence(person, main, kind):
    notes = main / "Agent/memory/notes.md"
    notes.mkdir() if kind == "folder" else os.mkfifo(notes)
    assert str(notes) in said(person.lnk("agent", "memory", "notes"), INVALID)


def test_status_shows_what_is_indexed_and_what_is_left_out_and_why(reader):
    shown = reader.memory("status")
    rows = [re.split(r"  +", line, maxsplit=1) for line in shown.splitlines()]
    status = dict(rows[:7])
    assert status["documents"] == f"16 in {reader.root}/Notes"
    assert status["conversations"].startswith("1 in ")
    assert ["left out", "2: in .memoryignore"] in rows
    assert ["left out", "1: by its name it is no text"] in rows
    assert dict(rows)["moves"].startswith("not whole")
    found = reader.json("status")
    assert (found["documents"], found["conversations"]) == (16, 1)
    assert found["left_out"]["in .memoryignore"] == 2
    assert found["agent"]["name"] == "main"


def test_status_check_ends_with_1_while_the_index_differs_from_the_folder(person, main):
    def differences() -> int:
        done = person.lnk("agent", "memory", "status", "--check", "--json")
        found = json.loads(done.stdout)
        assert done.returncode == (1 if found["differences"] else 0)
        assert done.stderr == ""
        return found["differences"]

    person.memory("search", "lease")
    assert differences() == 0
    document = person.write("Link/Agents/main/Home/memory/second.md", "Another.\n")
    assert differences() == 1
    person.memory("search", "lease")
    assert differences() == 0
    document.write_text("Another, and changed.\n")
    assert differences() == 1
    document.unlink()
    assert differences() == 1
    person.memory("status")
    assert differences() == 0
    done = person.lnk("agent", "memory", "status", "--check")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


def test_reindex_makes_the_index_again_and_keeps_what_cannot_be_made_again(person, main):
    person.write("Link/Agents/main/Home/memory/gone.md", "# Gone\n")
    person.memory("search", "lease")
    (main / "Home/memory/gone.md").unlink()
    person.memory("search", "lease")
    assert person.memory("reindex") == "Indexed 1 document and 0 conversations again.\n"
    assert person.json("list", "--since", "2000-01-01")["removed"][0]["path"] == "memory/gone.md"


@pytest.mark.requirement("INDEX-12")
@pytest.mark.parametrize("how", ["deleted", "corrupt", "newer", "foreign"])
def test_an_index_that_cannot_be_used_is_made_again_and_status_says_so(person, main, how):
    person.memory("search", "lease")
    (index,) = (main / "Agent/memory/link").glob("*.sqlite")
    if how == "deleted":
        index.unlink()
    elif how == "corrupt":
        index.write_bytes(b"\x5a" * len(index.read_bytes()))
    elif how == "newer":
        change_header(index, 60, 99)
    else:
        change_header(index, 68, 0x0BADCAFE)
    done = person.lnk("agent", "memory", "search", "lease")
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["1.", "Lease"])
    assert "Traceback" not in done.stderr
    status = person.memory("status")
    if how != "deleted":  # of a deleted one nothing is known
        assert re.search(r"^made again  .*first-seen times and the removed list", status, re.M)
        assert "first-seen times and the removed list are lost" in done.stderr
    assert person.lnk("agent", "memory", "status", "--check").returncode == 0


def change_header(index: Path, at: int, number: int) -> None:
    """Sets user_version (60) or application_id (68) in the header of a SQLite file, as its format has it."""
    data = bytearray(index.read_bytes())
    data[at : at + 4] = number.to_bytes(4, "big")
    index.write_bytes(data)


def test_an_agent_is_served_by_its_name(person, main):
    person.write("Vault/physics.md", "The quark is charming.\n")
    person.shows("agent", "new", "vault", "--documents", "Vault")
    assert person.json("search", "quark", "--agent", "vault")["results"][0]["path"] == "memory/physics.md"
    assert person.json("search", "quark")["results"] == []
    assert person.json("status", "--agent", "vault")["folders"][0] == str(person.root / "Vault")


@pytest.mark.parametrize("command", ["search x", "read memory/x.md", "list", "links x", "notes", "status", "reindex"])
def test_an_agent_that_is_not_there_is_said_and_not_made(person, main, command):
    told = said(person.lnk("agent", "memory", *command.split(), "--agent", "nobody"), MISSING)
    assert "'nobody'" in told and "main" in told and "lnk agent new nobody" in told
    assert [each.name for each in (person.link / "Agents").iterdir()] == ["main"]


def test_main_is_made_when_it_is_first_needed(person):
    assert person.memory("search", "lease") == "There are no documents in memory yet.\n"
    assert json.loads(person.shows("agent", "list", "--json"))[0]["name"] == "main"


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="NOT TESTED: only Linux tells who waits for a lock")
def test_two_first_commands_at_once_make_one_main(person):
    (person.link / "Agents").mkdir(parents=True)
    held = os.open(person.link / "Agents", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    argv = [LNK, "agent", "memory", "status", "--json"]
    started = [
        subprocess.Popen(argv, env=person.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    until = time.monotonic() + WAIT_S
    while not all(map(waits, started)) and time.monotonic() < until:
        assert [process.poll() for process in started] == [None] * 3  # none goes on without the lock
    assert list((person.link / "Agents").iterdir()) == []
    os.close(held)  # and all at once
    answers = [process.communicate(timeout=WAIT_S)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 3
    ids = {json.loads(answer)["agent"]["id"] for answer in answers}
    assert ids == {json.loads(person.shows("agent", "show", "main", "--json"))["id"]}


def waits(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process waits for a kernel lock, as /proc/locks shows it."""
    locks = Path("/proc/locks").read_text().splitlines()
    return any(line.split()[1] == "->" and line.split()[5] == str(process.pid) for line in locks)


@pytest.mark.parametrize(
    "command",
    [
        "agent list",
        "agent show main",
        "agent memory read memory/Plants.md",
        "agent memory status --check",
        "agent memory setup codex --print",
    ],
)
def test_every_other_command_prints_json_too(reader, command):
    reader.memory("status")
    assert json.loads(reader.shows(*command.split(), "--json"))


# ---------------------------------------------------------------- what is not right


@pytest.mark.parametrize(
    ("file", "text", "status", "names"),
    [
        ("spec.toml", "[tool.memory]\ntokns = 100\n", INVALID, "tokns"),
        ("spec.toml", "[tool.memory]\ntokens = 7\n", INVALID, "tokens"),
        ("spec.toml", '[tool.memory]\nnotes = "4 parsecs"\n', INVALID, "4 parsecs"),
        ("spec.toml", '[tool.memory]\nmodel = "a model"\n', INVALID, "a model"),
        ("spec.toml", "[tool]\nmemory = 3\n", INVALID, "memory"),
        ("spec.toml", "tool = 3\n", CORRUPT, "spec.toml"),
        ("spec.toml", "[tool.memory\n", CORRUPT, "line 1"),
        ("spec.toml", b'[tool.memory]\nmodel = "\xff"\n', CORRUPT, "spec.toml"),
        ("sandbox.toml", '[files]\ninstructions = "never"\n', CORRUPT, "'never'"),
        ("sandbox.toml", "files = 3\n", CORRUPT, "sandbox.toml"),
        ("sandbox.toml", "[files\n", CORRUPT, "line 1"),
        ("agent.toml", "id = 3\n", CORRUPT, "agent.toml"),
        ("agent.toml", "not toml\n", CORRUPT, "line 1"),
        ("agent.toml", 'id = "x"\nname = "main"\nowner = "me"\ncreated = ""\n', CORRUPT, "'x'"),
    ],
)
def test_a_bad_file_of_an_agents_is_said_in_one_sentence_and_nothing_is_changed(
    person, main, file, text, status, names
):
    person.write(f"Link/Agents/main/Agent/{file}", text)
    before = everything(person.link)
    assert names in said(person.lnk("agent", "memory", "search"), status)
    assert everything(person.link) == before
    assert everything(person.home) == {}


@pytest.mark.requirement("CONTRACT-10")
@pytest.mark.parametrize("command", ["serve", "status", "status --check", "reindex"])
def test_a_bad_spec_is_refused_by_every_command_of_the_engine(person, main, command):
    person.write("Link/Agents/main/Agent/spec.toml", "[tool.memory]\ntokns = 100\n")
    assert "tokns" in said(person.lnk("agent", "memory", *command.split()), INVALID)


@pytest.mark.requirement("CONTRACT-10")
def test_the_opinions_of_the_spec_reach_the_engine(person, main):
    person.write("Link/Agents/main/Agent/spec.toml", '[tool.memory]\nnotes = "20 B"\ntokens = 50\n')
    person.write("Link/Agents/main/Home/memory/long.md", "It is a long lease, on and on.\n\n" * 500)
    with Program([LNK, "agent", "memory", "serve"], env=person.environment) as program:
        program.open()
        assert program.call("remember", {"note": "short"}).failed is False
        refusal = program.call("remember", {"note": "much too long a note"})
        assert refusal.failed and "20 bytes" in refusal.text
        assert len(program.call("read", {"path": "memory/long.md"}).text) < 1_000
    assert (main / "Agent/memory/notes.md").read_text() == "- short\n"


@pytest.mark.requirement("NOTES-7", "CONTRACT-11")
def test_locked_instructions_leave_no_remember_and_no_notes_file(person, main):
    with Program([LNK, "agent", "memory", "serve"], env=person.environment) as program:
        program.open()
        assert [tool["name"] for tool in program.tools()] == ["search", "read", "list", "links", "remember"]
    person.write("Link/Agents/main/Agent/sandbox.toml", '[files]\ninstructions = "read"\n')
    inherited = {"LNK_MEMORY_NOTES": str(main / "Agent/memory/notes.md")}  # it is not for a stranger to name one
    with Program([LNK, "agent", "memory", "serve"], env={**person.environment, **inherited}) as program:
        program.open()
        assert [tool["name"] for tool in program.tools()] == ["search", "read", "list", "links"]
        with pytest.raises(Exception, match="remember"):
            program.call("remember", {"note": "The gate code is 1."})
    assert list((main / "Agent/memory").glob("notes*")) == []
    person.write("Link/Agents/main/Agent/sandbox.toml", '[files]\ninstructions = "write"\n')
    with Program([LNK, "agent", "memory", "serve"], env=person.environment) as program:
        program.open()
        assert program.tools()[-1]["name"] == "remember"


@pytest.mark.parametrize(
    ("command", "status", "names"),
    [
        ("", USAGE, "NOUN"),
        ("agents", USAGE, "agents"),
        ("agent memory", USAGE, "COMMAND"),
        ("agent memory find x", USAGE, "find"),
        ("agent memory search x --what", USAGE, "--what"),
        ("agent memory search x --tokens many", USAGE, "many"),
        ("agent memory search x --kind song", USAGE, "song"),
        ("agent memory setup emacs", INVALID, "claude-code, codex, cursor, gemini-cli, vscode"),
        ("agent memory setup cursor --remove --documents .", INVALID, "--remove"),
        ("agent memory search x --since someday", INVALID, "someday"),
        ("agent memory search x --next nonsense", INVALID, "next"),
        ("agent memory search x --agent ../main", INVALID, "'../main'"),
        ("agent memory read memory/nothing.md", MISSING, "memory/nothing.md"),
        ("agent memory read ../../Agent/agent.toml", MISSING, "agent.toml"),
        ("agent memory read memory/lease.md --line 9", INVALID, "9"),
        ("agent memory links memory/nothing.md", MISSING, "memory/nothing.md"),
        ("agent new main", CONFLICT, "main"),
        ("agent show nobody", MISSING, "nobody"),
        ("agent remove nobody --files", MISSING, "nobody"),
        ("agent new other --documents nowhere", MISSING, "nowhere"),
    ],
)
def test_what_is_not_right_is_said_in_one_sentence_with_the_status_of_its_kind(person, main, command, status, names):
    before = everything(person.link / "Agents/main/Home")
    assert names in said(person.lnk(*command.split()), status)
    assert everything(person.link / "Agents/main/Home") == before
    assert [each.name for each in (person.link / "Agents").iterdir()] == ["main"]


def test_documents_that_are_gone_are_said_in_one_sentence_by_every_command(person):
    person.write("Notes/lease.md", "The lease.\n")
    person.shows("agent", "new", "main", "--documents", "Notes")
    person.memory("search", "lease")
    (person.root / "Notes").rename(person.root / "elsewhere")
    for command in ("search", "status", "reindex"):
        done = person.lnk("agent", "memory", command)
        assert done.returncode == MISSING, done
        assert len(done.stderr.splitlines()) == 1 and f"{person.root}/Notes is not there" in done.stderr
    (person.root / "elsewhere").rename(person.root / "Notes")
    assert person.json("list", "--since", "2000-01-01").get("removed", []) == []


@pytest.mark.parametrize("place", ["query", "path", "documents", "new"])
def test_what_is_not_utf8_on_the_command_line_is_no_crash(person, main, place):
    odd = os.fsdecode(b"od\xffd")
    (person.root / odd).mkdir()
    person.write(f"{odd}/lease.md", "The lease.\n")
    command = {
        "query": ["memory", "search", odd],
        "path": ["memory", "read", f"memory/{odd}.md"],
        "documents": ["memory", "try", "lease", "--documents", odd],
        "new": ["new", "odd", "--documents", odd],
    }[place]
    done = person.lnk("agent", *command, errors="replace")
    assert "Traceback" not in done.stderr and done.returncode in (0, INVALID, MISSING), done


def test_a_terminal_without_unicode_is_no_crash(person):
    done = person.lnk("agent", "memory", "try", env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "Workshop log 2026" in done.stdout


def test_an_engine_that_is_not_installed_is_said_in_one_sentence(person, main):
    alone = person.root / "alone" / "python"  # an interpreter with no programs beside it
    alone.parent.mkdir()
    alone.symlink_to(os.path.realpath(sys.executable))
    modules = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [alone, "-m", "lnk.cli.program", "agent", "memory", "search", "lease"],
        env={**person.environment, "PATH": "/usr/bin:/bin", "PYTHONPATH": modules},
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        cwd=person.root,
        timeout=WAIT_S,
    )
    assert "lnk-link-memory is not installed" in said(done, MISSING)


@needs_modes
def test_a_link_folder_that_may_not_be_written_is_said_in_one_sentence(person, main):
    with shut(person.link / "Agents", 0o555):
        assert str(person.link) in said(person.lnk("agent", "new", "other", before=COMMON), REFUSED)
    state = main / "Agent/memory"
    with shut(state, 0o555):
        for command in (["search", "lease"], ["status"]):
            done = person.lnk("agent", "memory", *command, before=COMMON)
            assert done.returncode == REFUSED, done
            assert len(done.stderr.splitlines()) == 1 and str(state) in done.stderr
    assert person.json("search", "lease")["results"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 512 KiB."""
    disk = tmp_path / "small"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("NOT TESTED: a full disk; only root can mount a small one here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> None:
    """Not a byte is left on the disk."""
    with open(disk / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


def test_a_disk_that_is_full_is_said_and_loses_nothing(person, small):
    for number in range(150):
        person.write(f"Notes/{number}.md", f"# Note {number}\n\n" + f"word{number} and so on, and on. " * 300)
    before = everything(person.root / "Notes")
    full = {"LNK_HOME": str(small / "Link")}
    agent = json.loads(person.shows("agent", "new", "main", "--documents", "Notes", "--json", env=full))
    for command, statuses in ("search", (0, FULL)), ("status", (0, FULL)), ("reindex", (FULL,)):
        done = person.lnk("agent", "memory", command, env=full)
        assert done.returncode in statuses and "Traceback" not in done.stderr, done
        assert "is full" in done.stdout + done.stderr
    fill(small)
    assert "No space left" in said(person.lnk("agent", "new", "other", env=full), FULL)
    assert json.loads(person.shows("agent", "list", "--json", env=full)) == [agent]
    assert everything(person.root / "Notes") == before
    (small / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
    assert person.json("search", "word7", env=full)["results"][0]["path"] == "memory/7.md"


def test_output_that_cannot_be_written_is_said_in_one_sentence(reader):
    if not os.path.exists("/dev/full"):
        pytest.skip("NOT TESTED: there is no /dev/full here")
    with open("/dev/full", "wb") as full:
        done = reader.lnk("agent", "memory", "search", "lease", stdout=full)
    assert done.returncode == FULL and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    "command",
    ["--help", "agent list", "agent memory search oolong", "agent memory list --json", "agent memory status --check"],
)
def test_output_that_nobody_reads_any_more_is_no_error(reader, command):
    here, there = os.pipe()
    os.close(here)
    try:
        done = reader.lnk(*command.split(), stdout=there)
    finally:
        os.close(there)
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------- at a terminal


def test_ctrl_c_while_indexing_ends_everything_with_130(person, many):
    argv = [LNK, "agent", "memory", "try", "word7", "--documents", str(many)]

    status, text, group = on_terminal(argv, person.environment, seen=ctrl_c_at("Indexing"))
    assert status == INTERRUPTED
    assert "Traceback" not in text and "Error" not in text
    assert gone(group)
    assert list(person.temporary.iterdir()) == []


def test_ctrl_c_leaves_an_index_that_goes_on(person, many):
    for name, command, told in ("first", "search", "Indexing"), ("second", "status", "Indexing"):
        person.shows("agent", "new", name, "--documents", many)
        argv = [LNK, "agent", "memory", command, "--agent", name]
        status, text, group = on_terminal(argv, person.environment, seen=ctrl_c_at(told))
        assert (status, "Traceback" in text) == (INTERRUPTED, False), text
        assert gone(group)
    assert person.json("status", "--agent", "second")["documents"] == MANY
    assert person.lnk("agent", "memory", "status", "--check", "--agent", "second").returncode == 0


def test_a_terminal_that_is_closed_leaves_nothing_behind(person, many):
    argv = [LNK, "agent", "memory", "try", "word7", "--documents", str(many)]
    _, _, group = on_terminal(argv, person.environment, seen=lambda _, text: "Indexing" in text)
    assert gone(group)
    assert list(person.temporary.iterdir()) == []


def test_progress_is_one_line_that_goes_away_and_only_on_a_terminal(person, many):
    argv = [LNK, "agent", "memory", "try", "word7", "--documents", str(many)]
    status, text, _ = on_terminal(argv, person.environment)
    shown = text[: text.index(f"{MANY:,} documents of")]
    assert status == 0
    assert re.search(rf"\r\x1b\[KIndexing: [\d,]+ of {MANY:,} \d+ %", shown)
    assert shown.endswith("\r\x1b[K") and "\n" not in shown
    assert "Indexing" not in person.memory("try", "word7", "--documents", many)


def test_colour_is_only_for_a_terminal_that_wants_it(reader):
    argv = [LNK, "agent", "memory", "search", "lease"]
    assert "\x1b[1mThe lease\x1b[0m" in on_terminal(argv, reader.environment)[1]
    for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in on_terminal(argv, {**reader.environment, **plain})[1]
    assert "\x1b" not in reader.memory("search", "lease")


def test_control_characters_in_names_and_texts_never_reach_the_terminal(person):
    bad = "\x1b]0;owned\x07\x1b[31m\x9b2J\x08\x7f"
    folder = f"No\x1b[32mtes{bad}"
    person.write(f"{folder}/lease{bad}.md", f"# Lease {bad}\n\nThe lease {bad} ends; see [[Plants{bad}]].\n")
    person.write(f"{folder}/Plants{bad}.md", f"A plant, see [[lease{bad}]].\n")
    person.write(f"{folder}/copy{bad}.md", f"# Lease {bad}\n\nThe lease {bad} ends; see [[Plants{bad}]].\n")
    person.shows("agent", "new", "main", "--documents", folder)
    person.write("Link/Agents/main/Agent/memory/notes.md", f"- A note {bad}\n")
    path = f"memory/lease{bad}.md"
    plain = {**person.environment, "NO_COLOR": "1"}
    for command in (
        ["show", "main"],
        ["list"],
        ["memory", "search", "lease"],
        ["memory", "search", "lease", "--tokens", "60"],
        ["memory", "search", "lease", "--json"],
        ["memory", "try", "lease", "--documents", str(person.root / folder)],
        ["memory", "read", path],
        ["memory", "read", "memory/lease.md"],
        ["memory", "read", f"memory/nothing{bad}"],
        ["memory", "list"],
        ["memory", "links", path],
        ["memory", "notes"],
        ["memory", "status"],
        ["memory", "status", "--check"],
        ["memory", "setup", "cursor", "--print"],
        ["memory", "setup", "cursor", "--documents", str(person.home)],
        ["memory", "search", "x", "--agent", bad],
        ["memory", bad],
    ):
        _, text, _ = on_terminal([LNK, "agent", *command], plain)
        text = text.replace("\r\x1b[K", "")  # the progress line's own
        assert text and not re.search("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f]", text), (command, text)


@pytest.mark.parametrize("command", ["memory setup cursor", "memory reindex", "remove main", "remove main --files"])
def test_nothing_is_asked_where_nobody_can_answer(person, main, command):
    here, there = os.pipe()  # a standard input on which nothing ever comes
    try:
        person.shows("agent", *command.split(), stdin=here)
    finally:
        os.close(here)
        os.close(there)


# ---------------------------------------------------------------- help


FLAGS = {
    "agent new": "NAME --documents --json",
    "agent list": "--json",
    "agent show": "NAME --json",
    "agent remove": "NAME --files --json",
    "agent asks": "--json",
    "agent answer": "ID allow deny --json",
    "agent tool run": "NAME",
    "agent memory try": "QUERY --documents --no-sandbox --json",
    "agent memory start": "ENGINE AGENT --agent --no-sandbox --json",
    "agent memory stop": "--agent --json",
    "agent memory remove": "--agent --json",
    "agent memory setup": "claude-code codex cursor gemini-cli vscode --documents --remove --print --no-sandbox --json",
    "agent memory search": "QUERY --path --kind --since --tokens --next --agent --no-sandbox --json",
    "agent memory read": "PATH --line --tokens --agent --no-sandbox --json",
    "agent memory list": "PATH --kind --since --tokens --next --agent --no-sandbox --json",
    "agent memory links": "PATH --tokens --agent --no-sandbox --json",
    "agent memory notes": "--agent --json",
    "agent memory status": "--check --agent --no-sandbox --json",
    "agent memory reindex": "--agent --no-sandbox --json",
    "agent memory serve": "--agent --no-sandbox",
    "agent memory connect": "DIR ID",
    "agent memory service": "DIR --log --peer --group --json",
    "sandbox run": "--read --write --hide --socket --network --env --explain --no-sandbox --json",
    "sandbox check": "--way --json",
    "sandbox tool add": "NAME --allow --json",
    "sandbox tool list": "--json",
    "sandbox tool show": "NAME --json",
    "sandbox tool remove": "NAME --json",
    "sandbox tool log": "NAME --limit --json",
    "uninstall": "--agents --json",
}


@pytest.mark.parametrize("command", FLAGS)
def test_help_tells_of_every_flag_of_a_command(person, command):
    words = re.findall(r"[\w-]+", person.shows(*command.split(), "--help"))
    assert set(FLAGS[command].split()) <= set(words)


def test_help_tells_of_every_command(person):
    nouns = {"agent", "model", "sandbox", "agent memory", "agent tool", "sandbox tool"}
    for above in ("", "agent", "agent memory", "agent tool", "sandbox", "sandbox tool"):
        shown = person.shows(*above.split(), "--help")
        told = {f"{above} {each}".strip() for each in re.findall(r"^    (\w+)(?:  |$)", shown, re.M)}
        assert told - nouns == {each for each in FLAGS if each.rpartition(" ")[0] == above}


def test_the_version_is_told(person):
    assert re.fullmatch(r"Link Memory \d+\.\d+\.\d+\S*\n", person.shows("--version"))
