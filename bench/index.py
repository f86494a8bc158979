"""What the first index of a folder costs, beside bare reading of all its files."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench import corpus, report
from bench.engine import Session, argv, children_cpu_s, fresh_state

GOALS_CPU_S: Final = {2_000: 1.0, 10_000: 6.0}
_READ: Final = (
    "import os, sys\n"
    "for at, _, names in os.walk(sys.argv[1]):\n"
    "    for name in names:\n"
    "        fd = os.open(at + '/' + name, os.O_RDONLY)\n"
    "        while os.read(fd, 1 << 20):\n"
    "            pass\n"
    "        os.close(fd)\n"
)


def main() -> None:
    """Run the measurement."""
    parser = report.parser("bench.index", __doc__ or "")
    parser.add_argument("--files", type=int, nargs="+", default=[2_000, 10_000], help="files a folder (2000 10000)")
    parser.add_argument("--chunks", type=int, help="a folder of so many chunks too")
    parser.add_argument("--runs", type=int, default=3, help="first indexes of each folder (%(default)s)")
    asked = parser.parse_args()
    on = report.machine()
    shapes = [corpus.shape_of(files) for files in asked.files]
    if asked.chunks:
        shapes.append(corpus.chunked(asked.chunks))
    report.show("index", on, {"folders": [_folder(asked.data, shape, asked.runs) for shape in shapes]})


def _folder(data: Path, shape: corpus.Shape, runs: int) -> dict[str, Any]:
    home = corpus.make(data, shape)
    cpu, wall, engines, size, peak = [], [], [], 0, 0.0
    reading = min(_read(home) for _ in range(runs + 1))
    for run in range(runs):
        report.progress(f"{shape.files:,} files: {run + 1} of {runs}")
        with fresh_state(data) as state:
            one = _first(home, state)
            cpu.append(one["whole"])
            engines.append(one["answered"])
            wall.append(one["wall"])
            size = sum(file.stat().st_size for file in (state / "link").iterdir())
            peak = max(peak, one["peak"])
    return {
        "files": shape.files,
        "bytes": shape.total_bytes,
        **report.least("cpu", engines, digits=2),
        "goal_cpu_s": GOALS_CPU_S.get(shape.files),
        **report.least("cpu_with_end", cpu, digits=2),
        **report.least("wall", wall, digits=2),
        "reading_cpu_s": round(reading, 3),
        "cpu_min_per_reading": round(min(engines) / reading, 1),
        "index_bytes": size,
        "index_per_text": round(size / shape.total_bytes, 2),
        "rss_peak_mib": peak,
    }


def _first(home: Path, state: Path) -> dict[str, float]:
    """One first index: from spawn to the first `list` that says nothing of `indexed`, and until the process ended."""
    used = children_cpu_s()
    began = time.perf_counter()
    with Session(argv(home, state)) as started:
        started.open()
        started.settle()
        wall = time.perf_counter() - began
        answered, peak = started.cpu_s(), started.memory_mib("VmHWM")
    return {"wall": wall, "answered": answered, "whole": children_cpu_s() - used, "peak": peak}


def _read(home: Path) -> float:
    """The processor time of a Python that reads every file, in s."""
    used = children_cpu_s()
    subprocess.run([sys.executable, "-I", "-c", _READ, str(home)], check=True)
    return children_cpu_s() - used


if __name__ == "__main__":
    main()
