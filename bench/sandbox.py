"""What the sandbox and the proxy cost: time to the engine's first answer, milliseconds a call, and memory."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench import corpus, report
from bench.engine import Session, argv, fresh_state, undisturbed
from lnk.agent import memory
from lnk.agent.folders import Agent, Agents
from lnk.sandbox.launch import Launch
from lnk.sandbox.ways import UNCONFINED, Tried, tried

GOAL_BUBBLEWRAP_MS: Final = 15
GOAL_RUN_MS: Final = 80
GOAL_CALL_MS: Final = 0.2
GOAL_PRIVATE_MIB: Final = 7
LARGE_TOKENS: Final = 6_000
ANSWERS: Final = {"small": 10, "large": 24_000}  # characters of what the tool below answers, twice
# A tool that answers at once what is asked of it by its name, so that only the way there is measured.
ECHO: Final = """\
import json, os
sizes = {sizes!r}
texts = {{name: "a line of words\\n" * (size // 16) for name, size in sizes.items()}}
held = b""
while part := os.read(0, 65536):
    *lines, held = (held + part).split(b"\\n")
    for line in lines:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        text = texts.get(asked["params"].get("name"), "")
        result = {{"content": [{{"type": "text", "text": text}}], "structuredContent": {{"text": text}}}}
        data = json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": result}}).encode() + b"\\n"
        while data:
            data = data[os.write(1, data) :]
"""
LNK: Final = str(Path(sys.executable).parent / "lnk")


def main() -> None:
    """Run the measurement."""
    parser = report.parser("bench.sandbox", __doc__ or "")
    parser.add_argument("--files", type=int, default=500, help="files of the folder (%(default)s)")
    parser.add_argument("--runs", type=int, default=25, help="starts of each kind (%(default)s)")
    parser.add_argument("--calls", type=int, default=400, help="calls of each kind (%(default)s)")
    asked = parser.parse_args()
    on = report.machine()
    home = corpus.make(asked.data, corpus.shape_of(asked.files))
    ways = [way for way in tried(os.environ) if way.works]
    with fresh_state(asked.data) as state, linked(state, home) as agent:
        figures = {
            "files": asked.files,
            "starts": _starts(agent, state, ways, asked.runs),
            "proxy": _tool(state, asked.calls) | _proxy(agent, state, asked.calls),
        }
    report.show("sandbox", on, figures)


@contextmanager
def linked(state: Path, home: Path) -> Iterator[Agent]:
    """An agent whose documents are those of `home`, started once; words alone."""
    environment = _environment(state)
    agent = Agents(str(state / "Link")).new("bench", documents=str(home / "memory"))
    Path(agent.own, "spec.toml").write_text('[tool.memory]\nmodel = "none"\n', "utf-8")
    try:
        subprocess.run([LNK, "agent", "memory", "start", "link", "bench"], env=environment, check=True, stdout=2)
        yield agent
    finally:
        subprocess.run([LNK, "uninstall"], env=environment, stdout=2, check=False)


def _environment(state: Path) -> dict[str, str]:
    return {**os.environ, "LNK_HOME": str(state / "Link"), "HOME": str(state)}


def _starts(agent: Agent, state: Path, ways: Sequence[Tried], runs: int) -> dict[str, Any]:
    """From exec to the answer of `tools/list`, one after the other in each run, in ms; and over the bare engine."""
    kinds: dict[str, Callable[[], float]] = {"bare": lambda: _start(agent, state, UNCONFINED)}
    for way in ways:
        kinds[way.way.value] = lambda way=way: _start(agent, state, way)  # type: ignore[misc]
    kinds["lnk sandbox run"] = lambda: _run(agent, state)
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(runs):
        report.progress(f"starts: {number + 1} of {runs}")
        for kind, start in kinds.items():
            with undisturbed():
                took[kind].append(start() * 1000)
    over = {
        kind: round(statistics.median(a - b for a, b in zip(times, took["bare"], strict=True)), 1)
        for kind, times in took.items()
    }
    return {
        "ms_median": {kind: round(statistics.median(times), 1) for kind, times in took.items()},
        "ms_over_bare_median": over,
        "ms_over_bare_least": {kind: round(min(times) - min(took["bare"]), 1) for kind, times in took.items()},
        "goal_bubblewrap_ms_over": GOAL_BUBBLEWRAP_MS,
        "goal_run_ms_over": GOAL_RUN_MS,
    }


def _launched(agent: Agent, state: Path, way: Tried) -> Launch:
    engine = memory.Memory(agent, _environment(state)).engine_as(way)
    return engine.launch(engine.command())


def _start(agent: Agent, state: Path, way: Tried) -> float:
    """Seconds from exec of the way's program to the answer; the plan is made before."""
    launched = _launched(agent, state, way)
    try:
        return _answered(launched.argv, launched.environment, launched.fds)
    finally:
        launched.close()


def _run(agent: Agent, state: Path) -> float:
    """The same of all of `lnk sandbox run`, which makes its plan first."""
    own = f"{agent.own}/memory"
    command = [
        LNK,
        "sandbox",
        "run",
        "--read",
        agent.home,
        "--read",
        str(agent.documents),
        "--read",
        f"{agent.own}/chats",
    ]
    command += ["--write", own, "--", *argv(Path(agent.home), state)[:1], "serve", agent.home, f"{own}/link", agent.own]
    return _answered(
        [*command, "--documents", str(agent.documents), "--spec", '{"model": "none"}'], _environment(state)
    )


def _answered(command: Sequence[str], environment: dict[str, str], fds: Sequence[int] = ()) -> float:
    began = time.perf_counter()
    with Session(command, env=environment, fds=fds) as started:
        started.open()
        started.tools()
        return time.perf_counter() - began


def _tool(state: Path, calls: int) -> dict[str, Any]:
    """What the proxy adds to a call of a tool that answers at once."""
    script = state / "echo.py"
    script.write_text(ECHO.format(sizes=ANSWERS), "utf-8")
    argv, environment = [sys.executable, "-S", str(script)], _environment(state)
    allow = [word for name in ANSWERS for word in ("--allow", name)]
    subprocess.run([LNK, "sandbox", "tool", "add", "echo", *allow, "--", *argv], env=environment, check=True, stdout=2)
    with Session(argv) as bare, Session([LNK, "agent", "tool", "run", "echo"], env=environment) as through:
        return {f"tool_{name}": _added(bare, through, [(name, {})] * calls) for name in ANSWERS}


def _proxy(agent: Agent, state: Path, calls: int) -> dict[str, Any]:
    """The same of the engine, by turns with another one without it, each with caches of its own; and private memory."""
    name = f"memory-{agent.id}"
    launched = _launched(agent, state, next(way for way in tried(os.environ) if way.works))
    with (
        Session([LNK, "agent", "tool", "run", name], env=_environment(state)) as through,
        Session(launched.argv, env=launched.environment, fds=launched.fds) as bare,
    ):
        launched.close()
        for each in (through, bare):
            each.open()
            each.settle()
        questions = corpus.questions(Path(str(agent.documents)).parent)
        searches = _added(bare, through, [("search", {"query": each}) for each in questions[:calls]])
        small = _added(bare, through, [("list", {"tokens": 50})] * calls)
        large = _added(bare, through, [("list", {"tokens": LARGE_TOKENS})] * calls)
        held = _private(through.pid)
    return {
        "searches": searches,
        "small": small,
        "large": large,
        "goal_added_ms_p50": GOAL_CALL_MS,
        "private_mib": held,
        "private_mib_proxy_and_bubblewrap": round(sum(each["mib"] for each in held if each["name"] != "engine"), 2),
        "goal_private_mib": GOAL_PRIVATE_MIB,
    }


def _added(bare: Session, through: Session, calls: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, float]:
    """What these calls take without the proxy and with it, by turns; and the bytes of an answer's text."""
    took: tuple[list[float], list[float]] = ([], [])
    size = 0
    with undisturbed():
        for number, (name, arguments) in enumerate(calls):
            both = [(0, bare), (1, through)]
            for which, each in both if number % 2 else reversed(both):
                began = time.perf_counter()
                answer = each.call(name, arguments)
                took[which].append((time.perf_counter() - began) * 1000)
                size += len(answer.text.encode())
    without, with_it = (statistics.median(each) for each in took)
    return {
        "answer_bytes_mean": size // (2 * len(calls)),
        "bare_ms_p50": round(without, 3),
        "proxied_ms_p50": round(with_it, 3),
        "added_ms_p50": round(statistics.median(b - a for a, b in zip(*took, strict=True)), 3),
    }


def _private(pid: int) -> list[dict[str, Any]]:
    """The private memory of a process and all beneath it, in MiB."""
    found = []
    waiting = [pid]
    while waiting:
        one = waiting.pop(0)
        held = Path(f"/proc/{one}/smaps_rollup").read_text("ascii").splitlines()
        size = sum(int(line.split()[1]) for line in held if line.startswith("Private_"))
        words = Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")
        program = os.path.basename(os.readlink(f"/proc/{one}/exe"))
        name = (
            "engine" if any(word.endswith(b"lnk-link-memory") for word in words[:3]) and program != "bwrap" else program
        )
        found.append({"name": "proxy" if one == pid else name, "mib": round(size / 1024, 2)})
        waiting += map(int, Path(f"/proc/{one}/task/{one}/children").read_text("ascii").split())
    return found


if __name__ == "__main__":
    main()
