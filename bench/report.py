"""What every measurement prints: one JSON object, its figures beside their goals, and on what machine they were."""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from lnk import __version__

DATA: Final = Path(tempfile.gettempdir()) / "link-memory-bench"


def parser(module: str, what: str) -> argparse.ArgumentParser:
    """The command line of a measurement: `--data`, and what the measurement adds."""
    found = argparse.ArgumentParser(prog=f"python -m {module}", description=what)
    found.add_argument(
        "--data", type=Path, default=DATA, metavar="DIR", help="where the folders are made and kept (%(default)s)"
    )
    return found


def machine() -> dict[str, Any]:
    """What the figures depend on besides the program. Call it before measuring, for the load."""
    return {
        "load_at_start": [round(each, 2) for each in os.getloadavg()],
        "cpus": os.cpu_count(),
        "loop_ms": _loop_ms(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "link_memory": __version__,
    }


def _loop_ms() -> float:
    """Processor time of a fixed piece of Python, the least of five: how fast this machine is just now."""
    times = []
    for _ in range(5):
        began = time.process_time()
        sum(number * number for number in range(200_000))
        times.append(time.process_time() - began)
    return round(min(times) * 1000, 1)


def show(measurement: str, on: dict[str, Any], figures: dict[str, Any]) -> None:
    """The one object on standard output."""
    print(json.dumps({"measurement": measurement, **figures, **on}, indent=1))


def progress(text: str) -> None:
    """A line for the one who waits, on standard error."""
    sys.stderr.write(text + "\n")


def at(values: Iterable[float], share: float) -> float:
    """The value that `share` of the values do not pass (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def spread(name: str, values: Sequence[float], unit: str, digits: int = 2) -> dict[str, float]:
    """p50, p95, max and mean of `values` as figures called `name`_p50_`unit` and so on."""
    return {
        f"{name}_p50_{unit}": round(statistics.median(values), digits),
        f"{name}_p95_{unit}": round(at(values, 0.95), digits),
        f"{name}_max_{unit}": round(max(values), digits),
        f"{name}_mean_{unit}": round(statistics.fmean(values), digits),
    }


def least(name: str, values: Sequence[float], unit: str = "s", digits: int = 4) -> dict[str, float]:
    """Minimum and median of `values` as figures called `name`_min_`unit` and `name`_median_`unit`."""
    return {
        f"{name}_min_{unit}": round(min(values), digits),
        f"{name}_median_{unit}": round(statistics.median(values), digits),
    }
