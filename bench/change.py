"""What a changed file adds to the next search: where the kernel tells of changes, and where the folder is scanned."""

import statistics
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import corpus, report
from bench.engine import PROGRAM, SCANNED, Session, fresh_state, session, undisturbed

GOAL_WATCHED_MS: Final = 5
GOALS_SCANNED_MS: Final = {10_000: 70, 100_000: 600}
HOW: Final = (
    "The real program over MCP. scanned: started with lnk.memory.watch.Watch refusing, as where the kernel cannot"
    " tell. Extras are medians over the same search of the watched program with nothing changed."
)
_NAME: Final = "changed-by-the-measurement.md"
_WORD: Final = "zqmeasured"  # in the file and in the question, so that the answer shows which state was searched
_PAUSE_S: Final = 0.06  # a file changed in the last 50 ms is read again by the next look: that is not to be counted


class Asked(NamedTuple):
    """A search's time at the client and the engine's processor time, in ms, and the texts that it found."""

    wall_ms: float
    cpu_ms: float
    text: str


def main() -> None:
    """Run the measurement."""
    parser = report.parser("bench.change", __doc__ or "")
    parser.add_argument("--files", type=int, nargs="+", default=[10_000, 100_000], help="a folder's (10000 100000)")
    parser.add_argument("--runs", type=int, default=20, help="changes (%(default)s)")
    asked = parser.parse_args()
    on = report.machine()
    folders = [_folder(asked.data, files, asked.runs) for files in asked.files]
    report.show("change", on, {"how": HOW, "folders": folders})


def _folder(data: Path, files: int, runs: int) -> dict[str, Any]:
    home = corpus.make(data, corpus.shape_of(files))
    file = next(each for each in sorted((home / "memory").iterdir()) if each.is_dir()) / _NAME
    question = f"{corpus.questions(home, 1)[0]} {_WORD}"
    try:
        _write(file, "first")
        with fresh_state(data) as state:
            report.progress(f"indexing {files:,} files")
            watched = _changes(home, state, PROGRAM, file, question, runs)
            scanned = _changes(home, state, SCANNED, file, question, runs)
    finally:
        file.unlink(missing_ok=True)
    same = watched["same"]
    return {
        "files": files,
        "runs": runs,
        "search_ms": round(same, 2),
        "watched_extra_ms": round(watched["changed"] - same, 2),
        "goal_watched_extra_ms": GOAL_WATCHED_MS,
        "watched_extra_cpu_ms": round(watched["changed_cpu"] - watched["same_cpu"], 2),
        "scanned_extra_ms": round(scanned["changed"] - same, 2),
        "goal_scanned_extra_ms": GOALS_SCANNED_MS.get(files),
        "scanned_extra_cpu_ms": round(scanned["changed_cpu"] - watched["same_cpu"], 2),
        "scanned_unchanged_extra_ms": round(scanned["same"] - same, 2),
    }


def _changes(home: Path, state: Path, program: list[str], file: Path, question: str, runs: int) -> dict[str, float]:
    """Medians in ms of a search with nothing changed, and of the same after one file was written."""
    found: dict[str, list[float]] = {"same": [], "same_cpu": [], "changed": [], "changed_cpu": []}
    with session(home, state, program) as started:
        started.settle()
        for run in range(runs):
            report.progress(f"change {run + 1} of {runs}")
            time.sleep(_PAUSE_S)
            _ask(started, question)
            with undisturbed():
                same = _ask(started, question)
                _write(file, f"state {run} of {started.pid}")
                changed = _ask(started, question)
            if f"state {run} of {started.pid}\n" not in changed.text:
                raise SystemExit("A changed file was not seen by the next call.")
            found["same"].append(same.wall_ms)
            found["same_cpu"].append(same.cpu_ms)
            found["changed"].append(changed.wall_ms)
            found["changed_cpu"].append(changed.cpu_ms)
    return {name: statistics.median(values) for name, values in found.items()}


def _write(file: Path, state: str) -> None:
    file.write_text(f"# {_WORD}\n\n{state}\n\nThe end.\n", encoding="utf-8")


def _ask(started: Session, question: str) -> Asked:
    used, began = started.cpu_s(), time.perf_counter()
    results = started.ask("search", query=question)["results"]
    wall = time.perf_counter() - began
    assert isinstance(results, list)
    return Asked(wall * 1000, (started.cpu_s() - used) * 1000, "\n".join(each["text"] for each in results))


if __name__ == "__main__":
    main()
