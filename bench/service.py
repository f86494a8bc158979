"""What one engine for all of an owner's agents costs: memory, time to the first answer, each call, and many at once.

Each session is run as a client's configuration runs it. An agent's folder is of other words than the next one's.
"""

import argparse
import heapq
import json
import os
import random
import select
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from bench import corpus, report
from bench.engine import fresh_state, undisturbed
from lnk.agent import shared
from lnk.agent.connect import Service
from lnk.agent.folders import Agents, owner_name
from lnk.agent.host import STATUS
from lnk.agent.served import open_place
from lnk.contract.spec import BUILTIN, NONE
from lnk.lines import format_line
from lnk.mcp.client import Client
from lnk.sockets import connect

GOAL_SESSION_MIB: Final = 5
GOAL_SPAWN_MS: Final = 40
GOAL_FIRST_S: Final = 0.6
GOAL_ADDED_MS: Final = 0.2
GOAL_AGENTS_PER_ONE: Final = 2
GOAL_RATE_PER_ONE: Final = 0.8
GOAL_P95_PER_ONE: Final = 10
SEARCHES_FIRST: Final = 200  # of an engine before its memory is taken
SEARCHES_OTHERS: Final = 50  # of each further agent
SEARCHES_SESSION: Final = 10  # of each further session
REST_S: Final = 20.0  # at most, until an engine is at rest,
STILL_S: Final = 4.0  # which it is once it has held the same for so long
SMALL_TOKENS: Final = 50
# Who asks again as soon as it is answered waits for all others' calls, however good the engine is: with 50 such the
# time of one call is 50 times that of one alone. So the time is also taken where they pause, as agents do, and ask
# together for this share of what one alone gets.
PACED_SHARE: Final = 0.5
END_S: Final = 30.0  # a service ends 5 s after its last session
LOOK_S: Final = 0.02
LNK: Final = str(Path(sys.executable).parent / "lnk")
_CLIENT: Final = "cursor"  # whose configuration is read
_READ_BYTES: Final = 1 << 18


def main() -> None:
    """Run the measurement."""
    parser = report.parser("bench.service", __doc__ or "")
    parser.add_argument("--agents", type=int, default=20, help="agents of the owner (%(default)s)")
    parser.add_argument("--files", type=int, default=500, help="documents of each (%(default)s)")
    parser.add_argument("--runs", type=int, default=25, help="starts with the service running (%(default)s)")
    parser.add_argument("--firsts", type=int, default=7, help="starts without one, each kind (%(default)s)")
    parser.add_argument("--calls", type=int, default=400, help="calls of each kind (%(default)s)")
    parser.add_argument("--further", type=int, default=20, help="further sessions of one agent (%(default)s)")
    parser.add_argument("--sessions", type=int, default=50, help="sessions at once (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="that they ask, each time (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often (%(default)s)")
    parser.add_argument("--meaning", action="store_true", help="with the built-in encoder")
    asked = parser.parse_args()
    on = report.machine()
    with fresh_state(asked.data) as state, owned(state, asked) as owner:
        figures: dict[str, Any] = {
            "agents": asked.agents,
            "files_each": asked.files,
            "first_session": _firsts(owner, owner.agents[: asked.firsts]),
        }
        index(owner, meaning=asked.meaning)
        figures |= {
            "session": _further(owner, asked.further) | _separate(owner),
            "engine": _agents(owner),
            "spawn": _spawns(owner.agents[0], asked.runs),
            "call": _calls(owner, asked.calls),
            "load": _loads(owner, asked.sessions, asked.seconds, asked.rounds),
        }
        began = time.perf_counter()
        owner.wait_for_end()
        figures["ended_s_after_last_session"] = round(time.perf_counter() - began, 1)
    report.show("service", on, figures)


# ---------------------------------------------------------------- the owner, the agents, the sessions


class Agent(NamedTuple):
    """An agent, and how a client runs a session with its memory."""

    name: str
    id: str
    argv: list[str]
    env: dict[str, str]
    questions: list[str]


class _Result(msgspec.Struct):
    isError: bool = False


class _Reply(msgspec.Struct):
    result: _Result | None = None


class Session:
    """A session over two descriptors. Little Python is run between: what is timed is the others' work."""

    def __init__(self, source: int, sink: int, agent: Agent, pid: int = 0) -> None:
        self.source = source
        self.pid = pid
        self._sink = sink
        self._questions = agent.questions
        self._asked = 0
        self._client = Client("bench", "0")
        self._held = b""

    def open(self) -> None:
        """The client's first question is answered."""
        self._request("initialize", self._client.handshake())
        self.hear()
        os.write(self._sink, format_line({"jsonrpc": "2.0", "method": "notifications/initialized"}))

    def put(self, name: str, **arguments: object) -> None:
        """A call is asked for."""
        self._request("tools/call", {"name": name, "arguments": arguments})

    def put_search(self, start: int = 0) -> None:
        """The agent's next question is."""
        self.put("search", query=self._questions[(start + self._asked) % len(self._questions)])
        self._asked += 1

    def read(self) -> bytes | None:
        """The answer, once it is whole. What is refused ends the measurement."""
        data = os.read(self.source, _READ_BYTES)
        self._held += data
        if data and not data.endswith(b"\n"):
            return None
        line, self._held = self._held, b""
        reply = msgspec.json.decode(line or b"{}", type=_Reply)
        if reply.result is None or reply.result.isError:
            raise SystemExit(f"A call was refused: {line.decode() or 'the session ended'}")
        return line

    def hear(self) -> bytes:
        """The answer, waited for."""
        while (line := self.read()) is None:
            pass
        return line

    def search(self, times: int = 1) -> bytes:
        """So many of the agent's questions, one after the other; the last one's answer."""
        line = b""
        for _ in range(times):
            self.put_search()
            line = self.hear()
        return line

    def _request(self, method: str, params: dict[str, Any]) -> None:
        os.write(self._sink, self._client.request(method, params)[1])


@contextmanager
def run(argv: Sequence[str], agent: Agent) -> Iterator[Session]:
    """A session by a program of its own."""
    with subprocess.Popen(argv, env=agent.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin and process.stdout
        try:
            yield Session(process.stdout.fileno(), process.stdin.fileno(), agent, process.pid)
        finally:
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def opened(agent: Agent) -> Iterator[Session]:
    """A session as its client runs it, once the first answer is there."""
    with run(agent.argv, agent) as session:
        session.open()
        yield session


def _wait(seconds: float, fds: tuple[int, ...]) -> bool:
    """As `Service` wants it; nobody ends a measurement's session."""
    select.select(fds, [], [], seconds)
    return True


class Held(NamedTuple):
    """What a process holds, in MiB."""

    private: float
    rss: float


class Owner:
    """The agents of one owner, and the service of them."""

    def __init__(self, agents: list[Agent], path: str) -> None:
        self.agents = agents
        self._path = path

    @contextmanager
    def direct(self, agent: Agent) -> Iterator[Session]:
        """A session by a connection to the service that runs, and nothing between."""
        connection = Service(self._path, agent.id, _wait).session()
        try:
            os.set_blocking(connection.source, True)
            session = Session(connection.source, connection.sink, agent)
            session.open()
            yield session
        finally:
            connection.end()

    def held(self) -> tuple[Held, Held]:
        """What the service that runs holds: what stands before the sandbox, and the engine."""
        host, *inside = beneath(self._status(self._names("sock")[0])["pid"])
        return held(host), max(map(held, inside))

    def end(self) -> None:
        """The service that runs ends now."""
        for name in self._names("sock"):
            with suppress(OSError, ValueError):  # it ends by itself just then
                os.kill(self._status(name)["pid"], signal.SIGTERM)
        self.wait_for_end()

    def wait_for_end(self) -> None:
        """The service has ended."""
        until = time.monotonic() + END_S
        while self._names("lock"):
            if time.monotonic() > until:
                raise SystemExit(f"The service in {self._path} did not end within {END_S:g} s.")
            time.sleep(LOOK_S)

    def _names(self, ending: str) -> list[str]:
        return [path.name for path in Path(self._path).glob(f"[!.]*.{ending}")]

    def _status(self, name: str) -> dict[str, Any]:
        place = open_place(self._path)
        try:
            stream = connect(place, self._path, name)
        finally:
            os.close(place)
        with socket.socket(fileno=stream.detach()) as asked:
            asked.setblocking(True)
            asked.sendall(STATUS + b"\n")
            return dict(json.loads(asked.makefile("rb").readline()))


@contextmanager
def owned(state: Path, asked: argparse.Namespace) -> Iterator[Owner]:
    """An owner whose agents' memories are set up for a client, none of them indexed; nothing runs afterwards."""
    environment = {**os.environ, "LNK_HOME": str(state / "Link"), "HOME": str(state)}
    owner = Owner([], shared.place_for(environment["LNK_HOME"], owner_name()))
    try:
        for number in range(asked.agents):
            report.progress(f"agents: {number + 1} of {asked.agents}")
            home = corpus.make(asked.data / "agents" / str(number), corpus.shape_of(asked.files), corpus.SEED + number)
            owner.agents.append(_agent(f"agent-{number}", home, environment, BUILTIN if asked.meaning else NONE))
        yield owner
    finally:
        subprocess.run([LNK, "uninstall"], env=environment, stdout=2, check=False)
        owner.wait_for_end()


def _agent(name: str, home: Path, environment: dict[str, str], model: str) -> Agent:
    made = Agents(environment["LNK_HOME"]).new(name, documents=str(home / "memory"))
    Path(made.own, "spec.toml").write_text(f'[tool.memory]\nmodel = "{model}"\n', "utf-8")
    command = [LNK, "agent", "memory", "setup", _CLIENT, "--agent", name, "--print", "--json"]
    said = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
    ((entry,),) = (each.values() for each in json.loads(json.loads(said)["entry"]).values())
    argv = [entry["command"], *entry["args"]]
    return Agent(name, made.id, argv, {**environment, **entry.get("env", {})}, corpus.questions(home))


def beneath(pid: int) -> list[int]:
    """The process, and all beneath it."""
    found = [pid]
    for each in found:
        found += map(int, Path(f"/proc/{each}/task/{each}/children").read_text("ascii").split())
    return found


def held(pid: int) -> Held:
    """What a process holds: what is its alone, and what of it is there at all."""
    sizes = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]]
    private = sum(int(size) for name, size, *_ in sizes if name.startswith("Private_"))
    return Held(private / 1024, sum(int(size) for name, size, *_ in sizes if name == "Rss:") / 1024)


# ---------------------------------------------------------------- the first session


def _firsts(owner: Owner, agents: Iterable[Agent]) -> dict[str, Any]:
    """From spawn to the first answer, and to the first search's, no service running; by turns without and with an
    index, which the search before has made.
    """
    taken: tuple[list[_First], list[_First]] = ([], [])
    for agent in agents:
        report.progress(f"first session of {agent.name}")
        for found in taken:
            owner.end()
            found.append(_first(agent))
    return {
        kind: {
            **report.least("answer", [each.answered_s for each in found]),
            "goal_answer_s": GOAL_FIRST_S,
            **report.least("search", [each.searched_s for each in found]),
            "searches_of_a_part": sum(each.of_a_part for each in found),
        }
        for kind, found in zip(("without_index", "with_index"), taken, strict=True)
    }


class _First(NamedTuple):
    answered_s: float
    searched_s: float
    of_a_part: bool


def _first(agent: Agent) -> _First:
    with undisturbed():
        began = time.perf_counter()
        with opened(agent) as session:
            answered = time.perf_counter() - began
            line = session.search()
            searched = time.perf_counter() - began
    return _First(answered, searched, "indexed" in _structured(line))


def index(owner: Owner, *, meaning: bool) -> None:
    """Every agent is indexed, and read for meaning where that is asked for."""
    for agent in owner.agents:
        report.progress(f"indexing {agent.name}")
        with opened(agent) as session:
            while not _is_whole(_structured(session.search()), meaning=meaning):
                time.sleep(LOOK_S)


def _structured(line: bytes) -> dict[str, Any]:
    return dict(json.loads(line)["result"]["structuredContent"])


def _is_whole(answer: dict[str, Any], *, meaning: bool) -> bool:
    how = answer.get("embedded") if meaning else None
    return "indexed" not in answer and (how is None or how["done"] == how["of"])


# ---------------------------------------------------------------- memory


def _further(owner: Owner, sessions: int) -> dict[str, Any]:
    """What one more session of an agent that is open holds, on average: its own processes, and what others grew by."""
    report.progress("memory of a session")
    owner.end()
    agent = owner.agents[0]
    with ExitStack() as stack:
        stack.enter_context(opened(agent)).search(SEARCHES_FIRST)
        before = owner.held()
        more = [stack.enter_context(opened(agent)) for _ in range(sessions)]
        for session in more:
            session.search(SEARCHES_SESSION)
        after = owner.held()
        own = statistics.fmean(sum(held(pid).private for pid in beneath(each.pid)) for each in more)
    host, engine = ((b.private - a.private) / sessions for a, b in zip(before, after, strict=True))
    return {
        "further_sessions": sessions,
        "private_mib": round(own + host + engine, 2),
        "goal_private_mib": GOAL_SESSION_MIB,
        "private_mib_client_side": round(own, 2),
        "private_mib_host_grew": round(host, 3),
        "private_mib_engine_grew": round(engine, 3),
        "private_mib_host": round(before[0].private, 2),
    }


def _separate(owner: Owner) -> dict[str, Any]:
    """The same of a session with an engine of its own, as whoever needs no service runs it."""
    owner.end()
    agent = owner.agents[0]
    with run([LNK, "agent", "memory", "serve", "--agent", agent.name], agent) as session:
        session.open()
        session.search(SEARCHES_SESSION)
        processes = [held(pid).private for pid in beneath(session.pid)]
    return {"separate_private_mib": round(sum(processes), 2), "separate_processes": len(processes)}


def _agents(owner: Owner) -> dict[str, Any]:
    """The engine's memory with one agent open, and with all of them: right after their searches, and at rest."""
    report.progress("memory of the engine")
    owner.end()
    with ExitStack() as stack:
        stack.enter_context(opened(owner.agents[0])).search(SEARCHES_FIRST)
        one, one_rested = owner.held()[1], _rested(owner)
        for agent in owner.agents[1:]:
            stack.enter_context(opened(agent)).search(SEARCHES_OTHERS)
        every, every_rested = owner.held()[1], _rested(owner)
    return {
        **_compared(one_rested, every_rested),
        "goal_all_per_one": GOAL_AGENTS_PER_ONE,
        "right_after_searches": _compared(one, every),
    }


def _rested(owner: Owner) -> Held:
    """What the engine holds once it gives nothing back any more."""
    least, since = owner.held()[1], time.monotonic()
    until = since + REST_S
    while time.monotonic() < until and time.monotonic() < since + STILL_S:
        now = owner.held()[1]
        if now.private < least.private:
            least, since = now, time.monotonic()
        time.sleep(LOOK_S)
    return least


def _compared(one: Held, every: Held) -> dict[str, float]:
    return {
        "private_mib_one_agent": round(one.private, 1),
        "private_mib_all_agents": round(every.private, 1),
        "private_all_per_one": round(every.private / one.private, 2),
        "rss_mib_one_agent": round(one.rss, 1),
        "rss_mib_all_agents": round(every.rss, 1),
        "rss_all_per_one": round(every.rss / one.rss, 2),
    }


# ---------------------------------------------------------------- time


def _spawns(agent: Agent, runs: int) -> dict[str, Any]:
    """From spawn of a session to its first answer, the agent open; beside it what Python alone takes."""
    took, bare = [], []
    with opened(agent), undisturbed():
        for number in range(runs):
            report.progress(f"starts: {number + 1} of {runs}")
            began = time.perf_counter()
            with opened(agent):
                took.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
            bare.append((time.perf_counter() - began) * 1000)
    return {
        **report.least("answer", took, "ms", 1),
        "goal_ms": GOAL_SPAWN_MS,
        **report.least("bare_python", bare, "ms", 1),
    }


def _calls(owner: Owner, calls: int) -> dict[str, Any]:
    """What the client's side adds to a call, over a connection to the service, by turns."""
    report.progress("calls")
    agent = owner.agents[0]
    with opened(agent) as through, owner.direct(agent) as bare:
        for each in (through, bare):
            each.search(SEARCHES_SESSION)
        return {
            "small": _added(bare, through, [("list", {"tokens": SMALL_TOKENS})] * calls),
            "searches": _added(
                bare, through, [("search", {"query": each}) for each in (agent.questions * calls)[:calls]]
            ),
            "goal_added_ms_p50": GOAL_ADDED_MS,
        }


def _added(bare: Session, through: Session, calls: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, float]:
    took: tuple[list[float], list[float]] = ([], [])
    size = 0
    with undisturbed():
        for number, (name, arguments) in enumerate(calls):
            both = [(0, bare), (1, through)]
            for which, each in both if number % 2 else reversed(both):
                began = time.perf_counter()
                each.put(name, **arguments)
                size += len(each.hear())
                took[which].append((time.perf_counter() - began) * 1000)
    without, with_it = took
    return {
        "line_bytes_mean": size // (2 * len(calls)),
        "direct_ms_p50": round(statistics.median(without), 3),
        "client_ms_p50": round(statistics.median(with_it), 3),
        "added_ms_p50": round(statistics.median(b - a for a, b in zip(without, with_it, strict=True)), 3),
        "added_ms_least": round(min(with_it) - min(without), 3),
    }


# ---------------------------------------------------------------- many at once


class Driven(NamedTuple):
    """What came of sessions that ask: ms of each call, how many each made, this process's share of a processor."""

    took_ms: list[float]
    made: list[int]
    seconds: float
    driver_share: float

    @property
    def rate(self) -> float:
        """Calls a second, in all."""
        return len(self.took_ms) / self.seconds

    @property
    def p95(self) -> float:
        """Of a call, in ms."""
        return report.at(self.took_ms, 0.95)


def drive(sessions: Sequence[Session], seconds: float, pause_s: float = 0.0) -> Driven:
    """The sessions ask for so long, each again after a pause that is on average so long."""
    drawn = random.Random(corpus.SEED)
    with selectors.DefaultSelector() as selector, undisturbed():
        for number, session in enumerate(sessions):
            selector.register(session.source, selectors.EVENT_READ, number)
        used, began = time.process_time(), time.perf_counter()
        end = began + seconds
        due = sorted((began + drawn.random() * pause_s, number) for number in range(len(sessions)))
        asked: dict[int, float] = {}
        took: list[float] = []
        made = [0] * len(sessions)
        while (now := time.perf_counter()) < end:
            while due and due[0][0] <= now:
                _, number = heapq.heappop(due)
                asked[number] = time.perf_counter()
                sessions[number].put_search(start=7 * number)  # those of one agent ask different things
            for key, _ in selector.select(max(0.0, min(due[0][0] if due else end, end) - now)):
                if sessions[key.data].read() is not None:
                    now = time.perf_counter()
                    took.append((now - asked.pop(key.data)) * 1000)
                    made[key.data] += 1
                    heapq.heappush(due, (now + drawn.uniform(0.5, 1.5) * pause_s, key.data))
        spent, took_s = time.process_time() - used, time.perf_counter() - began
        for number in asked:
            sessions[number].hear()
    return Driven(took, made, took_s, spent / took_s)


def _loads(owner: Owner, count: int, seconds: float, rounds: int) -> dict[str, Any]:
    """One session alone; all at once without a pause; and with pauses, so that half of that is asked for. By turns."""
    alone, every, paced = [], [], []
    with ExitStack() as stack:
        sessions = [stack.enter_context(opened(owner.agents[n % len(owner.agents)])) for n in range(count)]
        for session in sessions:
            session.search()
        for number in range(rounds):
            report.progress(f"sessions at once: {number + 1} of {rounds}")
            alone.append(drive(sessions[:1], seconds))
            every.append(drive(sessions, seconds))
            paced.append(drive(sessions, seconds, pause_s=count / (PACED_SHARE * alone[-1].rate)))
    return {
        "sessions": count,
        "one": _driven(alone),
        "all": _driven(every) | _over(every, alone) | {"goal_rate_per_one": GOAL_RATE_PER_ONE},
        "paced": {"share_of_one": PACED_SHARE} | _driven(paced) | _over(paced, alone),
        "goal_p95_per_one": GOAL_P95_PER_ONE,
    }


def _driven(runs: Sequence[Driven]) -> dict[str, Any]:
    return {
        "calls_per_s": round(statistics.median(run.rate for run in runs), 1),
        **report.spread("call", [ms for run in runs for ms in run.took_ms], "ms"),
        "calls_of_a_session": [min(min(run.made) for run in runs), max(max(run.made) for run in runs)],
        "driver_share_of_a_processor": round(max(run.driver_share for run in runs), 3),
    }


def _over(runs: Sequence[Driven], alone: Sequence[Driven]) -> dict[str, float]:
    """Beside one session alone, of the same round: the median of the rounds, and the best."""
    rates = [run.rate / one.rate for run, one in zip(runs, alone, strict=True)]
    late = [run.p95 / one.p95 for run, one in zip(runs, alone, strict=True)]
    return {
        "rate_per_one_median": round(statistics.median(rates), 2),
        "rate_per_one_best": round(max(rates), 2),
        "p95_per_one_median": round(statistics.median(late), 1),
        "p95_per_one_best": round(min(late), 1),
    }


if __name__ == "__main__":
    main()
