"""How long the engine takes to be there, and how much memory it holds."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench import corpus, report
from bench.engine import Session, argv, children_cpu_s, fresh_state, session, undisturbed

GOAL_TOOLS_S: Final = 0.12
GOAL_SEARCH_S: Final = 0.4
GOAL_IDLE_MIB: Final = 35
GOAL_SEARCHED_MIB: Final = 60


def main() -> None:
    """Run the measurement."""
    parser = report.parser("bench.start", __doc__ or "")
    parser.add_argument("--files", type=int, default=10_000, help="files of the folder to start with (%(default)s)")
    parser.add_argument("--memory-files", type=int, default=2_000, help="files while memory is taken (%(default)s)")
    parser.add_argument("--runs", type=int, default=15, help="starts of each kind (%(default)s)")
    asked = parser.parse_args()
    on = report.machine()
    home = corpus.make(asked.data, corpus.shape_of(asked.files))
    bare = _bare(asked.runs)
    figures = {
        "files": asked.files,
        "runs": asked.runs,
        "bare_python": bare,
        "tools_empty_folder": _tools(asked.data, None, asked.runs, bare),
        "tools_unindexed_files": _tools(asked.data, home, asked.runs, bare),
        "first_search_unchanged_files": _first_search(asked.data, home, asked.runs, bare),
        "memory": _memory(asked.data, corpus.make(asked.data, corpus.shape_of(asked.memory_files))),
    }
    report.show("start", on, figures)


def _bare(runs: int) -> dict[str, float]:
    """What `python -I -c pass` takes, the same way measured."""
    wall, cpu = [], []
    for _ in range(runs):
        used, began = children_cpu_s(), time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
        wall.append(time.perf_counter() - began)
        cpu.append(children_cpu_s() - used)
    return report.least("wall", wall) | report.least("cpu", cpu)


def _tools(data: Path, home: Path | None, runs: int, bare: dict[str, float]) -> dict[str, Any]:
    """From spawn over `server/discover` to the answer of `tools/list`, each time with a new state."""
    wall, cpu = [], []
    for run in range(runs):
        report.progress(f"tools/list {'with files' if home else 'empty'}: {run + 1} of {runs}")
        with fresh_state(data) as state, undisturbed():
            command = argv(home or state / "Home", state)
            began = time.perf_counter()
            with Session(command) as started:
                started.open()
                started.tools()
                wall.append(time.perf_counter() - began)
                cpu.append(started.cpu_s())
    return _starts(wall, cpu, bare) | {"goal_wall_s": GOAL_TOOLS_S}


def _first_search(data: Path, home: Path, runs: int, bare: dict[str, float]) -> dict[str, Any]:
    """From spawn to the first search's answer, nothing changed since it was indexed."""
    question = corpus.questions(home, 1)[0]
    wall, cpu = [], []
    with fresh_state(data) as state, undisturbed():
        with session(home, state) as first:
            first.settle()
        for run in range(runs):
            report.progress(f"first search: {run + 1} of {runs}")
            began = time.perf_counter()
            with Session(argv(home, state)) as started:
                started.open()
                answer = started.ask("search", query=question)
                wall.append(time.perf_counter() - began)
                cpu.append(started.cpu_s())
                if "indexed" in answer:
                    raise SystemExit("The first search did not wait for the whole folder.")
    return _starts(wall, cpu, bare) | {"goal_wall_s": GOAL_SEARCH_S}


def _starts(wall: list[float], cpu: list[float], bare: dict[str, float]) -> dict[str, Any]:
    ratio = round(min(wall) / bare["wall_min_s"], 1)
    return report.least("wall", wall) | report.least("cpu", cpu) | {"wall_min_per_bare_python": ratio}


def _memory(data: Path, home: Path) -> dict[str, Any]:
    """RSS over an indexed folder, in MiB: after `tools/list`, after the first look at it, after 200 searches."""
    report.progress("memory")
    with fresh_state(data) as state:
        with session(home, state) as first:
            first.settle()
            after_index = first.memory_mib()
        with session(home, state) as started:
            started.tools()
            idle = started.memory_mib()
            started.settle()
            looked = started.memory_mib()
            for question in corpus.questions(home):
                started.ask("search", query=question)
            return {
                "rss_idle_mib": idle,
                "goal_rss_idle_mib": GOAL_IDLE_MIB,
                "rss_looked_mib": looked,
                "rss_searched_mib": started.memory_mib(),
                "goal_rss_searched_mib": GOAL_SEARCHED_MIB,
                "anonymous_searched_mib": started.memory_mib("RssAnon"),
                "rss_after_first_index_mib": after_index,
            }


if __name__ == "__main__":
    main()
