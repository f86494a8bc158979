"""Calls that wait for their owner: asked by one program, answered by another, or at the terminal, and once only."""

import errno
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import LNK, Person, as_from_a_terminal
from ends.faults import needs_strace, soon, under_strace
from ends.test_proxy import ECHO, Open, call, log_of, opened, person
from lnk.agent import asks
from lnk.agent.asks import ARGUMENTS_BYTES_MAX, WAIT_S, Asks, shown, visible
from lnk.agent.gate import ALLOW, DENY, EXPIRED, HELD_MAX, Ask
from lnk.errors import Conflict, Invalid, Missing

__all__ = ["opened", "person"]  # fixtures

CHARACTERS = "a\n\x1b[2J\u202e\u0085b"


def waiting(person: Person) -> list[dict[str, Any]]:
    return json.loads(person.shows("agent", "asks", "--json"))


def one(person: Person) -> dict[str, Any]:
    """The one call that waits, once it does."""
    assert soon(lambda: len(asks.waiting(str(person.link))) == 1)
    return waiting(person)[0]


def left(person: Person) -> list[str]:
    return os.listdir(person.link / "Agents/.tools/notes/asks")


@pytest.mark.requirement("NAME-3")
@pytest.mark.parametrize(("verdict", "outcome"), [("allow", "ok"), ("deny", "refused")])
def test_a_call_waits_until_its_owner_answers_elsewhere(opened: Open, person: Person, verdict: str, outcome: str):
    wire = opened(ECHO)
    wire.send(call(1, "delete", path="a.md"), call(2))
    assert wire.line()["id"] == 2  # others do not wait with it
    found = one(person)
    assert (found["tool"], found["call"], found["arguments"]) == ("notes", "delete", '{"path": "a.md"}')
    assert found["id"] in person.shows("agent", "asks")
    assert "delete of notes" in person.shows("agent", "answer", found["id"], verdict)
    answer = wire.line()
    assert answer["result"].get("isError", False) == (verdict == "deny")
    assert waiting(person) == [] and left(person) == []
    assert log_of(person) == [("search", "ok"), ("delete", outcome)]
    assert f"`lnk agent answer {found['id']} allow`" in wire.said()


@pytest.mark.requirement("NOTES-6")
def test_a_call_on_the_list_asks_nobody(opened: Open, person: Person):
    wire = opened(ECHO)
    wire.send(call(1))
    assert wire.line()["id"] == 1
    assert waiting(person) == []


def test_an_ask_that_could_be_written_only_in_part_is_none(tmp_path: Path):
    code = (
        "import os, resource, signal, sys; from lnk.agent.asks import Asks; from lnk.agent.gate import Ask\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "asks = Asks(os.open(sys.argv[1], os.O_RDONLY), 'notes')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
        "try: asks.put(Ask(1, 'delete', '', {}), 0.0)\n"
        "except OSError as error: print(error.strerror, len(asks))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{os.strerror(errno.ENOSPC)} 0\n", "")
    assert os.listdir(tmp_path / "asks") == []


def test_an_ask_is_answered_once(opened: Open, person: Person):
    wire = opened("time.sleep(0)\n" + ECHO)
    wire.send(call(1, "delete"))
    found = one(person)
    os.kill(wire.process.pid, signal.SIGSTOP)
    try:
        person.shows("agent", "answer", found["id"].upper(), "deny")
        assert "answered already" in person.refused(13, "agent", "answer", found["id"], "allow")
    finally:
        os.kill(wire.process.pid, signal.SIGCONT)
    assert wire.line()["result"]["isError"]
    assert "No call waits under" in person.refused(12, "agent", "answer", found["id"], "allow")
    assert "five letters" in person.refused(10, "agent", "answer", "../x", "allow")


def test_a_call_that_is_given_up_waits_no_more(opened: Open, person: Person):
    wire = opened(ECHO)
    wire.send(call(1, "delete"))
    one(person)
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    wire.send(json.dumps(cancel).encode() + b"\n", call(2))
    assert wire.line()["id"] == 2
    assert waiting(person) == [] and left(person) == []
    assert ("delete", "cancelled") in log_of(person)


def test_the_end_of_a_session_takes_its_asks_away(opened: Open, person: Person):
    wire = opened(ECHO)
    wire.send(call(1, "delete"))
    one(person)
    assert [each["result"]["isError"] for each in wire.rest()] == [True]
    assert wire.ended() == 0
    assert left(person) == []


def test_what_a_dead_proxy_asked_cannot_be_answered(opened: Open, person: Person):
    wire = opened(ECHO)
    wire.send(call(1, "delete"))
    found = one(person)
    wire.process.kill()
    wire.process.wait()
    assert left(person) != []
    assert "No call waits under" in person.refused(12, "agent", "answer", found["id"], "allow")
    assert left(person) == []


def test_only_so_many_calls_wait_at_once(opened: Open, person: Person):
    wire = opened(ECHO)
    wire.send(*(call(number, "delete") for number in range(HELD_MAX + 1)))
    assert wire.line()["id"] == HELD_MAX
    assert len(waiting(person)) == HELD_MAX


def test_nothing_of_a_call_can_drive_the_owner_s_terminal(opened: Open, person: Person):
    wire = opened(ECHO)
    wire.send(call(1, CHARACTERS, text=CHARACTERS))
    one(person)
    printed = person.shows("agent", "asks")
    assert all(char.isprintable() or char == "\n" for char in printed)
    assert visible(CHARACTERS) in printed and "\\u001b[2J" in printed


# ------------------------------------------------------------ at the terminal


class Desk:
    """A terminal in front of which somebody sits, and what runs at it."""

    def __init__(self, argv: list[str], environment: dict[str, str], **more: Any) -> None:
        self.ours, theirs = pty.openpty()

        def sit_down() -> None:
            os.setsid()
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
            as_from_a_terminal()

        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs, **more}
        self.process = subprocess.Popen(argv, env=environment, preexec_fn=sit_down, bufsize=0, **streams)
        os.close(theirs)
        self.seen = b""

    def sees(self, text: str) -> str:
        """What is on the screen once `text` is."""
        while text not in self.seen.decode(errors="replace"):
            assert select.select([self.ours], [], [], 20.0)[0], f"not seen: {text!r} in {self.seen!r}"
            self.seen += os.read(self.ours, 1 << 16)
        return self.seen.decode(errors="replace")

    def types(self, text: str) -> None:
        os.write(self.ours, text.encode())


@pytest.fixture
def desks() -> Iterator[list[Desk]]:
    found: list[Desk] = []
    yield found
    for desk in found:
        desk.process.kill()
        desk.process.wait()
        for pipe in (desk.process.stdin, desk.process.stdout):
            if pipe:
                pipe.close()
        os.close(desk.ours)


def at_desk(desks: list[Desk], person: Person) -> Desk:
    argv = [LNK, "agent", "tool", "run", "notes"]
    desks.append(Desk(argv, person.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    return desks[-1]


def answer_of(desk: Desk) -> dict[str, Any]:
    assert desk.process.stdout and select.select([desk.process.stdout], [], [], 20.0)[0]
    return json.loads(desk.process.stdout.readline())


@pytest.mark.parametrize(("typed", "refused"), [("y\n", False), ("n\n", True), ("\n", True), ("\x04", True)])
def test_at_a_terminal_it_asks_there(opened: Open, person: Person, desks: list[Desk], typed: str, refused: bool):
    opened(ECHO)
    desk = at_desk(desks, person)
    desk.process.stdin.write(call(1, "delete", path=CHARACTERS))
    seen = desk.sees("[y/N] ")
    assert 'Allow delete of notes with {"path": "a\\n\\u001b[2J\\u202e\\u0085b"}? [y/N] ' in seen
    desk.types(typed)
    assert answer_of(desk)["result"].get("isError", False) == refused
    assert left(person) == []


def test_what_was_typed_before_the_question_is_no_answer(opened: Open, person: Person, desks: list[Desk]):
    opened(ECHO)
    desk = at_desk(desks, person)
    desk.types("y\n")
    desk.process.stdin.write(call(1))
    assert answer_of(desk)["id"] == 1
    desk.process.stdin.write(call(2, "delete") + call(3, "delete"))
    desk.sees("[y/N] ")
    assert len(waiting(person)) == 2
    desk.types("n\n")
    assert answer_of(desk)["result"]["isError"]
    desk.types("y\n")
    assert not answer_of(desk)["result"].get("isError")


def test_an_answer_from_elsewhere_ends_the_question(opened: Open, person: Person, desks: list[Desk]):
    opened(ECHO)
    desk = at_desk(desks, person)
    desk.process.stdin.write(call(1, "delete"))
    desk.sees("[y/N] ")
    person.shows("agent", "answer", one(person)["id"], "allow")
    assert not answer_of(desk)["result"].get("isError")
    desk.sees("no answer needed")


def test_where_the_session_itself_is_typed_an_answer_is_no_message(opened: Open, person: Person, desks: list[Desk]):
    opened(ECHO)
    desk = Desk([LNK, "agent", "tool", "run", "notes"], person.environment)
    desks.append(desk)
    desk.types(call(1, "delete").decode())
    desk.sees("[y/N] ")
    desk.types("y\n")
    assert "not JSON" not in desk.sees('"text": "{}"')


def test_asks_asks_each_at_a_terminal(opened: Open, person: Person, desks: list[Desk]):
    wire = opened(ECHO)
    wire.send(call(1, "delete"), call(2, "wipe"), call(3, "move"))
    assert soon(lambda: len(asks.waiting(str(person.link))) == 3)
    desks.append(Desk([LNK, "agent", "asks"], person.environment))
    for typed in ("y\n", "what\n", "n\n", "\n"):
        desks[0].sees("later]")
        desks[0].seen = b""
        desks[0].types(typed)
    assert desks[0].process.wait(20) == 0
    assert sorted([wire.line()["id"], wire.line()["id"]]) != []
    assert len(waiting(person)) == 1


# ------------------------------------------------------------ the file


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    made = tmp_path / "Link/Agents/.tools/notes"
    made.mkdir(parents=True)
    fd = os.open(made, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_nobody_who_answers_in_time_refuses(folder: int):
    held = Asks(folder, "notes")
    held.put(Ask(1, "delete", "", {}), 100.0)
    assert held.look(100.0 + WAIT_S - 1) == []
    assert held.look(100.0 + WAIT_S) == [(1, EXPIRED)]
    assert held.look(100.0 + WAIT_S) == []
    held.close()


def test_an_answer_at_the_last_moment_counts(folder: int, tmp_path: Path):
    held = Asks(folder, "notes")
    asked = held.put(Ask(1, "delete", "", {}), 100.0)
    asks.answer(str(tmp_path / "Link"), asked.id, allow=True)
    assert held.look(100.0 + WAIT_S) == [(1, ALLOW)]
    held.close()


def test_an_answer_that_was_there_before_the_question_does_not_count(folder: int, tmp_path: Path):
    held = Asks(folder, "notes")
    asked = held.put(Ask(1, "delete", "", {}), 100.0)
    (tmp_path / f"Link/Agents/.tools/notes/asks/{asked.id}.allow").write_text("")
    assert held.look(101.0) == []
    (tmp_path / f"Link/Agents/.tools/notes/asks/{asked.id}.json").unlink()
    assert held.withdraw(1) == DENY
    held.close()


def test_an_ask_is_for_its_owner_alone_and_never_seen_half(folder: int, tmp_path: Path):
    held = Asks(folder, "notes")
    asked = held.put(Ask(1, "delete", "link:main", {"text": "ü" * 100_000}), 100.0)
    (found,) = asks.waiting(str(tmp_path / "Link"))
    assert found == asked
    assert re.fullmatch(r"[a-z]{5}", asked.id)
    file = tmp_path / f"Link/Agents/.tools/notes/asks/{asked.id}.json"
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    assert (
        len(asked.arguments.encode()) < ARGUMENTS_BYTES_MAX + 100 and "(cut: 200,012 bytes in all)" in asked.arguments
    )
    held.close()
    with pytest.raises(Missing):
        asks.answer(str(tmp_path / "Link"), asked.id, allow=True)


def test_what_cannot_be_seen_is_shown_by_its_number():
    assert shown({"a": "\u202eb\u200b\x7f日本"}) == '{"a": "\\u202eb\\u200b\\u007f日本"}'
    assert visible("\ud800") == "\\ud800"


def test_an_answer_that_is_killed_at_any_call_is_given_or_not(folder: int, tmp_path: Path):
    needs_strace()
    link = str(tmp_path / "Link")
    code = "import sys; from lnk.agent.asks import answer; answer(sys.argv[1], sys.argv[2], allow=True)"
    kinds = "rename,renameat,renameat2,fsync,fdatasync,unlink,unlinkat"
    outcomes = set()
    for name, number in [("none", 0), *((kind, 1) for kind in ("renameat", "renameat2", "rename", "fsync"))]:
        held = Asks(folder, "notes")
        asked = held.put(Ask(1, "delete", "", {}), 0.0)
        faults = [f"{name}:signal=KILL:when={number}"] if number else []
        argv = under_strace([sys.executable, "-c", code, link, asked.id], tmp_path / "trace", *faults, calls=kinds)
        killed = subprocess.run(argv, check=False, capture_output=True).returncode != 0
        verdicts = held.look(1.0)
        assert verdicts in ([], [(1, ALLOW)])
        assert verdicts == [(1, ALLOW)] or killed
        outcomes.add((killed, bool(verdicts)))
        held.close()
        assert os.listdir(tmp_path / "Link/Agents/.tools/notes/asks") == []
    assert (False, True) in outcomes and (True, True) in outcomes


def test_of_two_who_answer_at_once_one_does(folder: int, tmp_path: Path):
    link = str(tmp_path / "Link")

    def give(name: str, allow: bool) -> bool:
        try:
            asks.answer(link, name, allow=allow)
        except (Conflict, Missing):
            return False
        return True

    with ThreadPoolExecutor(2) as both:
        for _ in range(50):
            held = Asks(folder, "notes")
            asked = held.put(Ask(1, "delete", "", {}), 0.0)
            done = [*both.map(give, (asked.id, asked.id), (True, False))]
            assert sorted(done) == [False, True]
            assert held.look(1.0) == [(1, ALLOW if done[0] else DENY)]
            held.close()


def test_what_is_no_id_is_refused(tmp_path: Path):
    with pytest.raises(Invalid):
        asks.answer(str(tmp_path), "a/b", allow=True)
