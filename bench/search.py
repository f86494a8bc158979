"""How long a search takes at the client, and what the engine's processor time of it is."""

import argparse
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from bench import corpus, report
from bench.engine import Session, fresh_state, session, undisturbed

GOALS_MS: Final = {2_000: {"goal_p50_ms": 2, "goal_p95_ms": 8}, 10_000: {"goal_p50_ms": 7, "goal_p95_ms": 20}}
GOALS_CHUNKED_MS: Final = {100_000: {"goal_p50_ms": 20}}
WARM: Final = 20


class Times(NamedTuple):
    """A call's time at the client and the engine's processor time, in ms, and the characters of its answer."""

    wall_ms: float
    cpu_ms: float
    chars: int


def main() -> None:
    """Run the measurement."""
    parser = report.parser("bench.search", __doc__ or "")
    parser.add_argument("--files", type=int, nargs="*", default=[2_000, 10_000], help="files a folder (2000 10000)")
    parser.add_argument("--chunks", type=int, nargs="*", default=[100_000], help="chunks a folder (100000)")
    parser.add_argument("--questions", type=int, default=200, help="questions (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often all are asked (%(default)s)")
    parser.add_argument("--tokens", type=int, help="size of an answer; the engine's own where left out")
    asked = parser.parse_args()
    on = report.machine()
    figures = [
        {"files": files, **_folder(corpus.shape_of(files), asked), **GOALS_MS.get(files, {})} for files in asked.files
    ]
    figures += [
        {"asked_chunks": chunks, **_folder(corpus.chunked(chunks), asked), **GOALS_CHUNKED_MS.get(chunks, {})}
        for chunks in asked.chunks
    ]
    report.show("search", on, {"folders": figures})


def _folder(shape: corpus.Shape, asked: argparse.Namespace) -> dict[str, Any]:
    """`wall` and `cpu` are of the first round; `least_wall` takes each question's least over all rounds."""
    home = corpus.make(asked.data, shape)
    count: int = asked.questions
    every = corpus.questions(home, count + WARM)
    with fresh_state(asked.data) as state, session(home, state) as started:
        report.progress(f"indexing {shape.files:,} files")
        started.settle()
        report.progress(f"asking {count} questions")
        for question in every[count:]:
            _ask(started, question, asked.tokens)
        rounds = []
        for _ in range(asked.rounds):
            with undisturbed():
                rounds.append([_ask(started, question, asked.tokens) for question in every[:count]])
        chunks = _chunks(state)
    least = [min(each.wall_ms for each in times) for times in zip(*rounds, strict=True)]
    return {
        "questions": count,
        "chunks": chunks,
        **report.spread("wall", [each.wall_ms for each in rounds[0]], "ms"),
        **report.spread("cpu", [each.cpu_ms for each in rounds[0]], "ms"),
        **report.spread("least_wall", least, "ms"),
        "answer_chars_mean": round(sum(each.chars for each in rounds[0]) / count),
    }


def _ask(started: Session, question: str, tokens: int | None) -> Times:
    more = {} if tokens is None else {"tokens": tokens}
    used, began = started.cpu_s(), time.perf_counter()
    answer = started.call("search", {"query": question, **more})
    wall = time.perf_counter() - began
    if answer.failed:
        raise SystemExit(f"{question!r} was refused: {answer.text}")
    return Times(wall * 1000, (started.cpu_s() - used) * 1000, len(answer.text))


def _chunks(state: Path) -> int:
    """How many chunks the index has."""
    db = apsw.Connection(str(state / "link" / "index.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(db.execute("SELECT count(*) FROM chunks").get)
    finally:
        db.close()


if __name__ == "__main__":
    main()
