"""Tools as they are defined, listed and removed, and the log of their calls."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Person
from ends.faults import left_in, needs_strace, under_strace
from lnk.agent.journal import Journal, format_time
from lnk.agent.toolfolder import hold_session, open_lock, sessions
from lnk.agent.tools import Tool, Tools, find_program, variable
from lnk.errors import Conflict, Corrupt, Full, Invalid, Missing

RUNS = [sys.executable, "-c", "pass"]


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.fixture
def tools(person: Person) -> Tools:
    return Tools(str(person.link))


def listed(tools: Tools) -> list[Tool]:
    return [tools.get(name) for name in tools.names()]


def test_a_tool_is_what_was_defined_for_its_owner_alone(tools: Tools):
    tool = tools.add(Tool(name="notes", argv=RUNS, allow=["search"], title="mine", made_of={"engine": "1"}))
    assert tools.get("notes") == tool and listed(tools) == [tool]
    assert tool.made.endswith("Z")
    folder = Path(tools.folder("notes"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "tool.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((folder / "tool.json").read_text())["argv"] == RUNS


def test_a_definition_replaces_the_one_before(tools: Tools):
    tools.add(Tool(name="notes", argv=RUNS))
    later = tools.add(Tool(name="notes", argv=[*RUNS, "x"], stopped=True))
    assert listed(tools) == [later]


def test_a_tool_that_was_removed_leaves_nothing(tools: Tools):
    tools.add(Tool(name="notes", argv=RUNS))
    tools.remove("notes")
    assert listed(tools) == [] and left_in(Path(tools.root)) == set()
    for gone in (tools.get, tools.remove):
        with pytest.raises(Missing):
            gone("notes")


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", "-a", "a" * 65, "ü", "a\n", ".tools"])
def test_what_can_be_no_name_is_refused(tools: Tools, name: str):
    for use in (tools.get, tools.remove, tools.folder, lambda name: tools.add(Tool(name=name, argv=RUNS))):
        with pytest.raises(Invalid):
            use(name)


@pytest.mark.parametrize(
    "wrong", [{"argv": []}, {"argv": ["python3"]}, {"argv": [*RUNS, "a\0b"]}, {"allow": [""]}, {"allow": ["x" * 129]}]
)
def test_what_can_be_no_tool_is_refused(tools: Tools, wrong: dict):
    with pytest.raises(Invalid):
        tools.add(Tool(**{"name": "notes", "argv": RUNS, **wrong}))
    with pytest.raises(Full):
        tools.add(Tool(name="notes", argv=[*RUNS, "x" * (1 << 18)]))
    assert tools.names() == []


def test_two_names_of_one_variable_are_refused(tools: Tools):
    assert variable("my-notes") == variable("my_notes") == "LNK_TOOL_MY_NOTES"
    tools.add(Tool(name="my-notes", argv=RUNS))
    with pytest.raises(Conflict, match="LNK_TOOL_MY_NOTES"):
        tools.add(Tool(name="my_notes", argv=RUNS))
    tools.add(Tool(name="my-notes", argv=RUNS))
    assert tools.names() == ["my-notes"]


@pytest.mark.parametrize(
    "text", ["{", "{}", "[]", '{"name":"notes","argv":["/x"],"new":1}', '{"name":"b","argv":["/x"]}']
)
def test_a_definition_that_cannot_be_understood_is_said_and_can_be_removed(tools: Tools, person: Person, text: str):
    tools.add(Tool(name="notes", argv=RUNS))
    Path(tools.folder("notes"), "tool.json").write_text(text)
    with pytest.raises(Corrupt):
        tools.get("notes")
    listed = person.lnk("sandbox", "tool", "list")
    assert listed.returncode == 0 and "define it again" in listed.stderr.lower()
    person.shows("sandbox", "tool", "remove", "notes")
    assert tools.names() == []


def test_a_program_is_found_by_its_name(tmp_path: Path):
    program = tmp_path / "bin/mine"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_program(["mine", "a"], {"PATH": str(program.parent)}) == [str(program), "a"]
    with pytest.raises(Missing):
        find_program(["mine"], {"PATH": "/nowhere"})
    with pytest.raises(Invalid):
        find_program([], {})


def test_a_definition_killed_at_any_call_is_old_or_new(tools: Tools, person: Person, tmp_path: Path):
    needs_strace()
    calls = "openat,openat2,write,fsync,rename,renameat,renameat2,mkdir,fchmod,flock"
    code = (
        "import sys; from lnk.agent.tools import Tool, Tools\n"
        "Tools(sys.argv[1]).add(Tool(name='notes', argv=['/bin/true', 'new'], made='x'))"
    )
    argv = [sys.executable, "-c", code, str(person.link)]
    old = Tool(name="notes", argv=["/bin/true", "old"], made="x")
    new = Tool(name="notes", argv=["/bin/true", "new"], made="x")
    tools.add(old)
    trace = tmp_path / "trace"
    assert subprocess.run(under_strace(argv, trace, calls=calls)).returncode == 0
    lines = trace.read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if ".tools" in line)
    counts: dict[str, int] = {}
    seen = []
    for at, line in enumerate(lines):
        name = line.split("(")[0].split()[-1]
        counts[name] = counts.get(name, 0) + 1
        if at >= first and name in calls:
            tools.add(old)
            fault = f"{name}:signal=KILL:when={counts[name]}"
            killed = subprocess.run(under_strace(argv, trace, fault, calls=calls), capture_output=True).returncode
            assert killed != 0
            seen.append(tools.get("notes"))
            tools.add(new)  # what was left does not stand in the way
    assert set(map(repr, seen)) == {repr(old), repr(new)}
    assert left_in(Path(tools.folder("notes"))) == {"tool.json"}


# ------------------------------------------------------------ the log


def test_the_log_gives_the_last_calls_oldest_first(tools: Tools, person: Person):
    tools.add(Tool(name="notes", argv=RUNS))
    folder = Path(tools.folder("notes"))
    (folder / "log.1.jsonl").write_text('{"call":"a"}\n{"call":"b"}\n')
    (folder / "log.jsonl").write_text('{"call":"c"}\n{"ca\nnull\n{"call":"d","outcome":"ok","ms":1.5}\n')
    assert [each["call"] for each in tools.log("notes", 3)] == ["b", "c", "d"]
    assert json.loads(person.shows("sandbox", "tool", "log", "notes", "--limit", "1", "--json")) == [
        {"call": "d", "outcome": "ok", "ms": 1.5}
    ]
    assert "d" in person.shows("sandbox", "tool", "log", "notes")
    assert "--limit 0" in person.refused(10, "sandbox", "tool", "log", "notes", "--limit", "0")


def test_a_log_that_several_write_loses_no_line_but_with_the_file_it_moved_aside(tmp_path: Path):
    code = (
        "import os, sys; from lnk.agent.journal import Journal\n"
        "journal = Journal(os.open(sys.argv[1], os.O_RDONLY), 'log.jsonl', 20_000)\n"
        "for number in range(300): journal.write({'who': sys.argv[2], 'number': number, 'pad': 'x' * 20})\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(who)]) for who in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert left_in(tmp_path) == {"log.jsonl", "log.1.jsonl"}
    last: dict[str, int] = {}
    for file in ("log.1.jsonl", "log.jsonl"):
        assert (tmp_path / file).stat().st_size < 20_000 + 4 * 100
        for line in (tmp_path / file).read_text().splitlines():
            found = json.loads(line)
            assert last.get(found["who"], found["number"] - 1) == found["number"] - 1
            last[found["who"]] = found["number"]
    assert 299 in last.values()


def test_who_finds_the_log_moved_aside_goes_on_in_the_new_one(tmp_path: Path):
    fd = os.open(tmp_path, os.O_RDONLY)
    first, second = Journal(fd, "log.jsonl", 30), Journal(fd, "log.jsonl", 30)
    for number, journal in enumerate((first, second, first, second)):
        journal.write({"number": number, "pad": "x"})
    os.close(fd)
    files = [(tmp_path / name).read_text().splitlines() for name in ("log.1.jsonl", "log.jsonl")]
    assert [[json.loads(line)["number"] for line in lines] for lines in files] == [[0, 1], [2, 3]]


def test_a_line_that_was_written_in_part_does_not_take_the_next_one_with_it(tmp_path: Path):
    code = (
        "import os, resource, signal, sys; from lnk.agent.journal import Journal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "journal = Journal(os.open(sys.argv[1], os.O_RDONLY), 'log.jsonl', int(sys.argv[2]))\n"
        "whole = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "journal.write({'number': 1})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, whole[1]))\n"
        "journal.write({'number': 2})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, whole)\n"
        "for number in (3, 4): journal.write({'number': number})\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path), "1000"], check=False).returncode == 0
    assert (tmp_path / "log.jsonl").read_text() == '{"number":1}\n{"numbe\n{"number":3}\n{"number":4}\n'
    (tmp_path / "log.jsonl").unlink()
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path), "20"], check=False).returncode == 0
    assert (tmp_path / "log.jsonl").read_text() == '{"number":3}\n{"number":4}\n'  # what was cut was moved aside


def test_a_time_is_utc_to_the_millisecond():
    assert format_time(1_700_000_000.1239) == "2023-11-14T22:13:20.123Z"


def test_a_log_in_a_folder_that_is_gone_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fd = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "log.jsonl").mkdir()
    journal = Journal(fd, "log.jsonl")
    journal.write({"a": 1})
    journal.write({"a": 2})
    assert capsys.readouterr().err.count("cannot be written") == 1
    os.close(fd)


# ------------------------------------------------------------ who runs it


def test_every_session_is_found_by_its_lock_and_none_that_ended(tmp_path: Path):
    code = (
        "import os, sys; from lnk.agent.toolfolder import hold_session, open_lock\n"
        "lock = open_lock(os.open(sys.argv[1], os.O_RDONLY)); hold_session(lock)\n"
        "print(flush=True); sys.stdin.read()"
    )
    fd = os.open(tmp_path, os.O_RDONLY)
    lock = open_lock(fd)
    holders = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(7)
    ]
    for holder in holders:
        assert holder.stdout and holder.stdout.readline()
    assert sessions(lock) == sorted(holder.pid for holder in holders)
    holders[3].send_signal(signal.SIGKILL)
    for at in (3, 0):
        assert holders[at].stdin
        holders[at].stdin.close()
        holders[at].wait()
    assert sessions(lock) == sorted(holder.pid for at, holder in enumerate(holders) if at not in (0, 3))
    for holder in holders:
        with holder:
            pass
    hold_session(lock)
    assert sessions(lock) == []  # its own does not stand in its own way
    os.close(lock)
    os.close(fd)
