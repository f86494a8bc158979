"""What comparing all vectors costs beside reading them once, with each implementation; and search by meaning.

Without `--documents` only made-up vectors are compared, in this process. With it the real program embeds a folder of
so many documents with the built-in encoder (minutes), asks meanwhile and afterwards, and says how long it took.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import corpus, report
from bench.engine import Session, argv, fresh_state
from lnk.folder import Folder
from lnk.memory import mapped
from lnk.memory.vectors import Compare, Matrix, compare_numpy, compare_simsimd, quantize

COMPARE: Final[dict[str, tuple[Compare, float]]] = {"simsimd": (compare_simsimd, 2.3), "numpy": (compare_numpy, 6.0)}
TOP: Final = 50
BATCH: Final = 4096
MEANWHILE_S: Final = 0.5  # between two questions while it embeds


def main() -> None:
    """Run the measurement."""
    parser = report.parser("bench.vectors", __doc__ or "")
    parser.add_argument("--vectors", type=int, default=100_000, help="made-up vectors (%(default)s)")
    parser.add_argument("--dims", type=int, default=1024, help="numbers of each (%(default)s)")
    parser.add_argument("--runs", type=int, default=9, help="comparisons of each kind (%(default)s)")
    parser.add_argument("--documents", type=int, help="documents that the real program embeds, e.g. 10000")
    parser.add_argument("--questions", type=int, default=200, help="questions about them (%(default)s)")
    asked = parser.parse_args()
    on = report.machine()
    figures = {"compare": _compared(asked.data, asked.vectors, asked.dims, asked.runs)}
    if asked.documents:
        figures["documents"] = _embedded(asked.data, asked.documents, asked.questions)
    report.show("vectors", on, figures)


# ---------------------------------------------------------------- made-up vectors


def _compared(data: Path, count: int, dims: int, runs: int) -> dict[str, Any]:
    random = np.random.default_rng(1)
    floats = random.standard_normal((count, dims), dtype=np.float32)
    query = random.standard_normal(dims, dtype=np.float32)
    whole = Matrix(dims, compare_numpy)
    for start in range(0, count, BATCH):
        rows = quantize([row.tobytes() for row in floats[start : start + BATCH]])
        whole.add(range(start + 1, start + 1 + len(rows)), range(len(rows)), rows)
    (wanted,) = quantize([query.tobytes()])
    lengths = np.linalg.norm(floats, axis=1)
    best = set((np.argsort(-(floats @ query) / lengths)[:TOP] + 1).tolist())
    del floats
    part = whole.parts()[0]
    once = _least(lambda: part.rows.reshape(-1).view(np.int64).sum(), runs)
    found: dict[str, Any] = {"vectors": count, "dims": dims, "reading_once_ms": round(once * 1000, 2)}
    for name, (compare, goal) in COMPARE.items():
        matrix = Matrix(dims, compare, first=part)
        took = _least(partial(matrix.nearest, wanted, TOP), runs)
        found[name] = {
            "ms": round(took * 1000, 2),
            "per_reading": round(took / once, 2),
            "goal_per_reading": goal,
            "recall": len(best & {row for row, _ in matrix.nearest(wanted, TOP)}) / TOP,
        }
    fixed = sum(each.nbytes for each in part) / part.rows.nbytes
    with fresh_state(data) as state, Folder.open(str(state)) as folder:
        told = mapped.Told("0" * 12, 1, dims)
        mapped.write(folder, told, whole.parts())
        opening = _least(lambda: mapped.opened(folder, told), runs)
    found |= {"opening_per_reading": round(opening / once, 2), "goal_opening_per_reading": 1.5}
    return found | {"memory_per_int8": round(fixed, 2), "goal_memory_per_int8": 1.2}


def _least(work: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


# ---------------------------------------------------------------- the real program


def _embedded(data: Path, documents: int, count: int) -> dict[str, Any]:
    home = corpus.make(data, corpus.shape_of(documents))
    questions = corpus.questions(home, count)
    with fresh_state(data) as state, Session([*argv(home, state), "--spec", '{"model": "builtin"}']) as started:
        started.open()
        started.settle()
        began = time.perf_counter()
        meanwhile, chunks = _while_it_embeds(started, questions)
        took = time.perf_counter() - began
        idle = [_ask(started, question)[0] for question in questions]
        return {
            "documents": documents,
            "chunks": chunks,
            "embedded_s": round(took, 1),
            "chunks_per_s": round(chunks / took, 1),
            "goal_embedded_s": 720 if documents == 10_000 else None,
            **report.spread("idle", idle, "ms"),
            **({"goal_idle_p50_ms": 20, "goal_idle_p95_ms": 50} if documents == 10_000 else {}),
            **report.spread("meanwhile", meanwhile, "ms"),
            "meanwhile_p95_per_idle_p95": round(report.at(meanwhile, 0.95) / report.at(idle, 0.95), 2),
            "goal_meanwhile_p95_per_idle_p95": 2,
            "rss_mib": started.memory_mib(),
        }


def _while_it_embeds(started: Session, questions: list[str]) -> tuple[list[float], int]:
    """The times of searches until all is embedded, and of how many chunks that was."""
    times: list[float] = []
    chunks = 0
    while True:
        took, progress = _ask(started, questions[len(times) % len(questions)])
        if progress is None:
            return times or [took], chunks
        chunks = progress["of"]
        times.append(took)
        report.progress(f"{progress['done']:,} of {chunks:,} passages are embedded")
        time.sleep(MEANWHILE_S)


def _ask(started: Session, question: str) -> tuple[float, dict[str, int] | None]:
    began = time.perf_counter()
    answer: dict[str, Any] = started.ask("search", query=question)
    return (time.perf_counter() - began) * 1000, answer.get("embedded")


if __name__ == "__main__":
    main()
