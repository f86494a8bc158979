"""What the engines of one process have in common: turns at slow work, work that gives way to calls, and encoders."""

import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import Place
from lnk.agent.passing import Passed
from lnk.contract.embedding import Address
from lnk.errors import Unavailable
from lnk.memory import builtin
from lnk.memory.index import APPLICATION
from lnk.memory.shared import Shared
from lnk.memory.turns import GIVE_WAY_S, Calls, GivenUp, Turns
from lnk.service.agents import Agent

WAIT_S = 20.0


def thread(work: Callable[[], Any]) -> threading.Thread:
    started = threading.Thread(target=work, daemon=True)
    started.start()
    return started


class Toy:
    """An encoder that tells who asked it what, one after the other, and can be held up."""

    model, tokens, wait_s = "toy", 512, 0.0

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.open = threading.Event()
        self.open.set()
        self.under_way = threading.Semaphore(0)
        self.at_once = self.most_at_once = 0
        self.closed = 0

    def encode(self, texts: Sequence[str], *, query: bool = False) -> list[bytes | None]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.under_way.release()
        assert self.open.wait(WAIT_S)
        self.asked.append(tuple(texts))
        self.at_once -= 1
        return [b"v" for _ in texts]

    def knows(self, text: str) -> bool:
        return text != "strange"

    def close(self) -> None:
        self.closed += 1


def never() -> bool:
    return False


# ------------------------------------------------------------------ turns


def test_a_turn_comes_in_the_order_in_which_it_was_asked_for_whoever_asks_again_and_again() -> None:
    turns, order, asked = Turns(), list[str](), threading.Event()

    def again() -> None:
        for _ in range(20):
            with turns.turn(never):
                order.append("greedy")
                asked.wait(WAIT_S)

    def once() -> None:
        with turns.turn(never):
            order.append("modest")

    greedy = thread(again)
    while not order:
        pass
    modest = thread(once)
    while len(turns._waiting) < 1:
        pass
    asked.set()
    for each in (greedy, modest):
        each.join(WAIT_S)
    assert order.index("modest") == 1


def test_only_so_many_have_a_turn_at_once() -> None:
    turns, most, now, lock = Turns(3), 0, 0, threading.Lock()
    gate = threading.Barrier(3, timeout=WAIT_S)

    def work() -> None:
        nonlocal most, now
        with turns.turn(never):
            with lock:
                now += 1
                most = max(most, now)
            gate.wait()  # three are there at once, or this fails
            with lock:
                now -= 1

    threads = [thread(work) for _ in range(9)]
    for each in threads:
        each.join(WAIT_S)
    assert (most, now) == (3, 0)


def test_who_gives_up_leaves_the_turn_to_the_next() -> None:
    turns, gone, had = Turns(), threading.Event(), threading.Event()
    seen: list[str] = []

    def giving_up() -> None:
        with pytest.raises(GivenUp), turns.turn(gone.is_set):
            raise AssertionError
        seen.append("gave up")

    with turns.turn(never):
        first = thread(giving_up)
        while not turns._waiting:
            pass
        second = thread(lambda: [turns.turn(never).__enter__(), had.set()])
        gone.set()
        first.join(WAIT_S)
        assert seen == ["gave up"] and not had.is_set()
    assert had.wait(WAIT_S)
    second.join(WAIT_S)


def test_work_waits_for_a_call_and_not_for_ever() -> None:
    calls, done = Calls(), list[str]()
    calls.give_way()  # no call is under way: at once
    over = threading.Event()
    with calls.under_way():
        waits = thread(lambda: [calls.give_way(), done.append("work")])
        with calls.under_way():
            pass
        assert over.wait(GIVE_WAY_S * 20) is False  # far longer than it gives way
        waits.join(WAIT_S)
        assert done == ["work"]
    assert calls._under_way == 0


# ------------------------------------------------------------------ encoders


@pytest.mark.requirement("SHARED-6")
def test_two_engines_use_one_encoder_and_the_last_one_ends_it() -> None:
    shared, made = Shared(), list[Toy]()

    def make() -> Toy:
        made.append(Toy())
        return made[-1]

    first, second, other = shared.use("a", make), shared.use("a", make), shared.use("b", make)
    assert len(made) == 2 and first.model == "toy" and first.tokens == 512 and not first.knows("strange")
    assert first.encode(["x", "y"]) == second.encode(["z", "w"]) == [b"v", b"v"]
    assert made[0].asked == [("x", "y"), ("z", "w")]
    first.close()
    first.close()
    assert made[0].closed == 0
    second.close()
    assert [toy.closed for toy in made] == [1, 0]
    assert shared.use("a", make) and len(made) == 3  # made anew, once nobody had it
    other.close()


def test_what_waits_to_be_embedded_goes_in_turn_and_a_question_at_once() -> None:
    shared, toy = Shared(), Toy()
    large, small = shared.use("a", lambda: toy), shared.use("a", lambda: toy)
    toy.open.clear()
    threads = [thread(lambda: [large.encode([f"large {number}", "x"]) for number in range(10)])]
    assert toy.under_way.acquire(timeout=WAIT_S)  # the first batch of the large folder
    threads.append(thread(lambda: small.encode(["small", "y"])))
    question = thread(lambda: small.encode(["why"], query=True))
    assert toy.under_way.acquire(timeout=WAIT_S)  # which waits for nobody's documents
    toy.open.set()
    for each in (*threads, question):
        each.join(WAIT_S)
    batches = [texts[0] for texts in toy.asked if texts != ("why",)]
    assert batches.index("small") == 1 and len(batches) == 11
    assert toy.most_at_once == 2


def test_an_engine_that_closes_waits_for_no_turn() -> None:
    shared, toy = Shared(), Toy()
    busy, closing = shared.use("a", lambda: toy), shared.use("a", lambda: toy)
    toy.open.clear()
    first = thread(lambda: busy.encode(["a", "b"]))
    assert toy.under_way.acquire(timeout=WAIT_S)
    said: list[str] = []

    def ask() -> None:
        with pytest.raises(Unavailable):
            closing.encode(["c", "d"])
        said.append("closed")

    second = thread(ask)
    closing.close()
    second.join(WAIT_S)
    assert said == ["closed"] and toy.closed == 0
    toy.open.set()
    first.join(WAIT_S)
    assert toy.asked == [("a", "b")]


def test_the_models_of_an_engine_are_those_that_its_spec_lets_stand() -> None:
    shared, address = Shared(), Address(port=1)
    there = ["builtin"] if builtin.installed() else []
    assert [pair.documents.model for pair in shared.models(None, address)] == ["qwen3-embedding", *there]
    assert [pair.documents.model for pair in shared.models("mine", address)] == ["mine"]
    assert [pair.documents.model for pair in shared.models("builtin", address)] == there
    assert shared.models("none", address) == []


@pytest.mark.requirement("SHARED-1")
def test_an_index_that_a_newer_program_made_under_an_engine_is_left_as_it_is(
    place: Place, session: Callable[..., Any]
) -> None:
    """A newer Link beside the old one: two programs would else make the index anew in turns, and lose what it held."""
    import apsw

    place.write("memory/a.md", "# A\nzebra\n")
    opened = session()
    assert opened.settled().paths("zebra") == ["memory/a.md"]
    file = Path(place.state) / "index.sqlite"
    newer = file.with_name("newer")
    with apsw.Connection(str(newer)) as db:
        db.execute(f"CREATE TABLE theirs (a); PRAGMA application_id={APPLICATION}; PRAGMA user_version=99")
    db.close()
    for side in ("-wal", "-shm"):  # as a program does that makes the index anew
        file.with_name(file.name + side).unlink()
    newer.rename(file)
    place.write("memory/b.md", "zebra too\n")
    before = file.read_bytes()
    for call, arguments in (("search", {"query": "zebra"}), ("list", {}), ("search", {"query": "zebra"})):
        assert "newer Link's" in opened.refused(call, **arguments)
    assert file.read_bytes() == before
    opened.close()
    again = session()  # who starts the older program means it
    assert sorted(again.settled().paths("zebra")) == ["memory/a.md", "memory/b.md"]


# ------------------------------------------------------------------ sessions of one agent


class ToyEngine:
    """Takes calls, and tells nobody anything."""

    def start(self) -> None:
        pass

    def stop(self, wait_s: float) -> bool:
        return True

    def rest(self) -> None:
        pass


class ToySession:
    """A session whose calls take so much processor time, and are noted."""

    def __init__(self, name: str, made: list[str], used: float) -> None:
        self.name, self.made, self.used = name, made, used
        self.core = self
        self.work = self
        self.done = threading.Semaphore(0)

    def wants(self, call: object) -> bool:
        return True

    def __call__(self, call: object, core: object, progress: object) -> None:
        self.made.append(self.name)
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass

    def cancel(self, call: object) -> None:
        pass

    def progress(self, call: object) -> object:
        return None

    def answered(self, reply: object) -> None:
        self.done.release()


def test_a_session_that_is_old_does_not_wait_for_all_that_a_new_one_asks() -> None:
    """What it used in its long life is no debt to who comes now."""
    made: list[str] = []
    opened = threading.Event()
    agent = Agent("a", ToyEngine, lambda *_: opened.set())  # type: ignore[arg-type]
    assert opened.wait(WAIT_S)
    old, new = ToySession("old", made, 3600.0), ToySession("new", made, 0.0)
    agent.join()
    agent.put(old, object())  # type: ignore[arg-type]
    assert old.done.acquire(timeout=WAIT_S)
    for _ in range(60):
        agent.put(new, object())  # type: ignore[arg-type]
    assert new.done.acquire(timeout=WAIT_S)
    agent.put(old, object())  # type: ignore[arg-type]
    assert old.done.acquire(timeout=WAIT_S)
    before = made[1:].index("old")
    assert before < 20, made
    agent.stop()
    assert agent.wait(WAIT_S)


@pytest.mark.parametrize(
    "report",
    [b"{", b"[]", b'{"taken": "1", "open": {}}', b'{"taken": 1, "open": {"a": "x"}}', b'{"taken": 1, "open": 2}'],
)
def test_a_report_of_an_engine_that_is_none_is_its_end_and_no_fault_of_the_service(report: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        passed = Passed(ours)
        theirs.send(b'{"taken": 2, "open": {"a_1": 2}}')
        passed.hear({ours.fileno(): select.POLLIN})
        assert (passed.sessions, passed.is_gone) == ({"a_1": 2}, False)
        theirs.send(report)
        passed.hear({ours.fileno(): select.POLLIN})
        assert passed.is_gone
        passed.close()
