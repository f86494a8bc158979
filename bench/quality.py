"""How well the engine finds: sets of questions asked over MCP, and where in its answers the right documents stand."""

import argparse
import importlib
import itertools
import math
import os
import re
import statistics
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from bench import report, sets
from bench.engine import Session, argv, fresh_state
from bench.sets import Document, Question, Set
from lnk.errors import LinkError, Usage

DEPTH: Final = 10  # places that count
TOKENS: Final = 15_000  # ten passages of three chunks, and their JSON
TRIES_MAX: Final = 20
PAGES_MAX: Final = 100
NAME_CHARS_MAX: Final = 60  # four bytes each and an ending are less than the 255 of a file's name
EMBED_WAIT_S: Final = 600  # without one more chunk embedded
EMBED_LOOK_S: Final = 0.1
EMBED_TELL_S: Final = 10
UNDATED: Final = 1_600_000_000  # one time for all that have no date, so that none is newer than another
CONVERSATIONS: Final = ("locomo_sessions",)
FALSE_PREMISE: Final = "adversarial"  # LoCoMo's: nothing answers them, though something is given as the answer
TUNED: Final = ("lnk.memory.ranking", "lnk.memory.lexical")

_PARTIAL: Final = {"stale", "indexed", "embedded"}
_SPEAKER: Final = re.compile(r"([^:\n]{1,40}): (.*)", re.DOTALL)


class Encoder(NamedTuple):
    """What finds by meaning: `model` as the spec says it, `url` where it is served."""

    name: str
    model: str
    url: str | None


class Ranking(NamedTuple):
    """What one question found: the ids at each place, the shown one first and its copies behind; the first call's ms.

    `meaning`: how many of the places were found by meaning.
    """

    question: Question
    places: tuple[tuple[str, ...], ...]
    ms: float
    meaning: int


class Run(msgspec.Struct, kw_only=True):
    """One set asked with one encoder."""

    rankings: list[Ranking] = []
    documents: int = 0
    chunks: int = 0
    indexing_s: float = 0
    embedding_s: float = 0


class Saved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question's ranking as a line of a file; `copies` of a ranked document stand at its place."""

    set: str
    encoder: str
    id: str
    ranked: list[str]
    copies: dict[str, list[str]] = {}


_Runs = dict[str, dict[str, dict[str, Saved]]]  # by set, encoder and question


def main() -> None:
    """Run the measurement."""
    asked = _parser().parse_args()
    try:
        _measure(asked)
    except LinkError as error:
        report.progress(f"bench.quality: {error}")
        raise SystemExit(error.status) from None


def _parser() -> argparse.ArgumentParser:
    parser = report.parser("bench.quality", __doc__ or "")
    named = os.environ.get("LNK_BENCH_SETS") or None
    parser.add_argument("sets", nargs="*", metavar="SET", help="sets to ask; all that there are where left out")
    parser.add_argument("--sets", dest="folder", default=named, type=Path, metavar="DIR", help="the sets' folder")
    parser.add_argument("--held", type=Path, metavar="DIR", help="where the questions are that were held out")
    parser.add_argument("--which", choices=("open", "held", "all"), default="open", help="questions (%(default)s)")
    parser.add_argument(
        "--encoder",
        action="append",
        metavar="none|builtin|NAME=URL",
        help="what finds by meaning, once or more often (none)",
    )
    parser.add_argument(
        "--form",
        choices=FORMS,
        help="how all are written: to memory/, to chats/ with a heading a turn as a harness does, or to chats/ with a"
        f" paragraph a turn (conversations for {', '.join(CONVERSATIONS)}, documents for all others)",
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write each question's ranking as JSON lines")
    parser.add_argument("--against", type=Path, metavar="FILE", help="count what is better and worse than a saved run")
    return parser


def _measure(asked: argparse.Namespace) -> None:
    if asked.folder is None:
        raise Usage("No sets to ask: say with --sets DIR or $LNK_BENCH_SETS which folder holds them.")
    folder = sets.Folder(asked.folder, asked.held, asked.which)
    names = folder.names()
    for name in asked.sets:
        if name not in names:
            raise Usage(f"There is no set {name!r} in {asked.folder}; there are {', '.join(names)}.")
    encoders = [_encoder(text) for text in asked.encoder or ["none"]]
    before = _read_saved(asked.against) if asked.against else None
    on = report.machine()
    rows = []
    with _kept(asked.save) as keep:
        for name, encoder in itertools.product(asked.sets or names, encoders):
            found = folder.load(name)
            form = asked.form or ("conversations" if name in CONVERSATIONS else "documents")
            run = _run(found, encoder, form, asked.data)
            lines = [_as_saved(name, encoder.name, each) for each in run.rankings]
            keep(lines)
            rows.append({"set": name, "encoder": encoder.name, "form": form, **_figures(run)})
            if before is not None:
                rows[-1]["against"] = _compare(run.rankings, lines, before)
    report.show("quality", on, {"which": asked.which, "sets": rows, "constants": constants()})


def _encoder(text: str) -> Encoder:
    if text in ("none", "builtin"):
        return Encoder(text, text, None)
    name, _, url = text.partition("=")
    if not name or not url:
        raise Usage(f"--encoder is {text[:80]!r}; give none, builtin, or a model's name and its address as NAME=URL.")
    return Encoder(name, name, url)


def constants() -> dict[str, dict[str, Any]]:
    """What the engine's ranking is set to: the numbers, and tuples of numbers, with names in capitals."""
    return {
        name.rpartition(".")[2]: {
            each: value for each, value in vars(importlib.import_module(name)).items() if each.isupper() and _set(value)
        }
        for name in TUNED
    }


def _set(value: object) -> bool:
    numbers = value if isinstance(value, tuple) else (value,)
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers)


# ---------------------------------------------------------------- documents as files


def lay_out(documents: Sequence[Document], form: str, home: Path, agent: Path) -> dict[str, str]:
    """Write `documents` as the engine finds them. The id of each by the path that answers will give."""
    ids: dict[str, str] = {}
    for document in documents:
        name, number = _safe(document.id), 1
        while (path := _path(form, name if number == 1 else f"{name}-{number}")) in ids:
            number += 1
        file = (home if form == "documents" else agent) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(FORMS[form](document), encoding="utf-8", newline="\n")
        at = _moment(document).timestamp() if document.date else UNDATED
        os.utime(file, (at, at))
        ids[path] = document.id
    return ids


def _path(form: str, name: str) -> str:
    return f"memory/{name}.md" if form == "documents" else f"chats/{name}/conversation.md"


def _safe(name: str) -> str:
    """A file's name that says what `name` says."""
    plain = re.sub(r"[^\w.()',&+-]+", "-", unicodedata.normalize("NFKC", name))
    return plain[:NAME_CHARS_MAX].strip("-.") or "document"


def _moment(document: Document) -> datetime:
    found = datetime.fromisoformat(document.date or "")
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _as_document(document: Document) -> str:
    """Its title as a heading, where the text does not begin with it, and the text."""
    heading = f"# {document.title}"
    if not document.title or document.text.partition("\n")[0].strip() == heading:
        return document.text + "\n"
    return f"{heading}\n\n{document.text}\n"


def _as_conversation(document: Document) -> str:
    """As chats/ has them: a heading with time and speaker over what each says."""
    when = f"{_moment(document):%Y-%m-%d %H:%M} · " if document.date else ""
    turns = []
    for turn in document.text.split("\n\n"):
        found = _SPEAKER.fullmatch(turn)
        turns.append(f"## {when}{found[1]}\n\n{found[2]}" if found else turn)
    return "\n\n".join([f"# {document.title}", *turns]) + "\n"


FORMS: Final = {"documents": _as_document, "conversations": _as_conversation, "paragraphs": _as_document}


# ---------------------------------------------------------------- the engine asked


def _run(found: Set, encoder: Encoder, form: str, data: Path) -> Run:
    """Each scope a folder and an engine of its own."""
    run = Run()
    parts = sets.scopes(found)
    report.progress(
        f"{found.name}, encoder {encoder.name}: {len(found.questions):,} questions in {len(parts)} scope(s)"
    )
    for scope, (documents, questions) in parts.items():
        report.progress(f"  {scope or 'all'}: {len(documents):,} documents, {len(questions):,} questions")
        with fresh_state(data) as work:
            ids = lay_out(documents, form, work / "home", work / "agent")
            _ask_all(run, work, encoder, ids, questions)
    if encoder.model != "none" and not any(each.meaning for each in run.rankings):
        report.progress(f"  NOTHING was found by meaning: these are figures of words alone, not of {encoder.name}")
    return run


def _ask_all(run: Run, work: Path, encoder: Encoder, ids: Mapping[str, str], questions: Iterable[Question]) -> None:
    command = [*argv(work / "home", work), "--spec", msgspec.json.encode({"model": encoder.model}).decode()]
    environment = {**os.environ, "TZ": "UTC", "LNK_MEMORY_MODEL": encoder.url or ""}
    began = time.perf_counter()
    with Session(command, env=environment) as started:
        started.open()
        started.settle()
        indexed = time.perf_counter()
        _embedded(started)
        run.indexing_s += indexed - began
        run.embedding_s += time.perf_counter() - indexed
        documents, chunks = _counts(work)
        if documents != len(ids):
            raise LinkError(f"{len(ids):,} documents were written and {documents:,} are indexed: nothing to count.")
        run.documents += documents
        run.chunks += chunks
        run.rankings += [_ask(started, question, ids) for question in questions]


def _embedded(started: Session) -> None:
    """Waits until all that is indexed is found by meaning too, where the engine does that."""
    most, since, told = -1, time.monotonic(), time.monotonic()
    while isinstance(how := started.ask("search", query="a", tokens=50).get("embedded"), dict):
        now = time.monotonic()
        if how["done"] > most:
            most, since = how["done"], now
        elif now - since > EMBED_WAIT_S:
            raise LinkError(f"Nothing was embedded for {EMBED_WAIT_S} s, after {most:,} of {how['of']:,}.")
        if now - told > EMBED_TELL_S:
            told = now
            report.progress(f"    {most:,} of {how['of']:,} embedded")
        time.sleep(EMBED_LOOK_S)


def _counts(work: Path) -> tuple[int, int]:
    """How many documents and chunks the index has."""
    db = apsw.Connection(str(work / "link" / "index.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        documents = db.execute("SELECT count(*) FROM documents WHERE digest IS NOT NULL AND left_out IS NULL").get
        return int(documents), int(db.execute("SELECT count(*) FROM chunks").get)
    finally:
        db.close()


def _ask(started: Session, question: Question, ids: Mapping[str, str]) -> Ranking:
    """One question, its answer gone on with until DEPTH places that count are there, or no more."""
    places: list[tuple[str, ...]] = []
    meaning: list[bool] = []
    ms = 0.0
    more: dict[str, object] = {}
    for page in range(PAGES_MAX):
        began = time.perf_counter()
        answer: Any = started.ask("search", query=question.query, tokens=TOKENS, **more)
        if page == 0:
            ms = (time.perf_counter() - began) * 1000
        for _ in range(TRIES_MAX):  # on a busy machine a question's vector may come too late, once
            if "embedded" not in answer:
                break
            answer = started.ask("search", query=question.query, tokens=TOKENS, **more)
        if partial := _PARTIAL.intersection(answer):
            raise LinkError(f"The engine answered from a part of what there is: it says {', '.join(partial)}.")
        for result in answer["results"]:
            named = [ids[path] for path in (result["path"], *result.get("copies", ()))]
            if left := tuple(each for each in named if each not in question.exclude):
                places.append(left)
                meaning.append("meaning" in result["matched"])
        if len(places) >= DEPTH or "next" not in answer:
            break
        more = {"next": answer["next"]}
    return Ranking(question, tuple(places[:DEPTH]), ms, sum(meaning[:DEPTH]))


# ---------------------------------------------------------------- figures


def score(places: Sequence[tuple[str, ...]], relevant: Iterable[str]) -> dict[str, float]:
    """One ranking's figures, gains binary. hit@k: any relevant one in the first k; recall@k: the share of them.

    nDCG as Jarvelin and Kekalainen (2002), relevant ones at one place counted once.
    """
    wanted = set(relevant)
    found = [len(wanted.intersection(place)) for place in places[:DEPTH]]
    at = [rank for rank, count in enumerate(found, 1) if count]
    best = min(DEPTH, len(at) + len(wanted) - sum(found))
    return {
        **{f"hit@{most}": float(any(found[:most])) for most in (1, 5, 10)},
        "recall@5": sum(found[:5]) / len(wanted),
        "ndcg@10": _gain(at) / _gain(range(1, best + 1)),
        "mrr@10": 1 / at[0] if at else 0.0,
    }


def _gain(ranks: Iterable[int]) -> float:
    return sum(1 / math.log2(rank + 1) for rank in ranks)


def newer_first(places: Iterable[tuple[str, ...]], question: Question) -> bool | None:
    """Whether the newer version stands above the older; None where neither is found."""
    for each in itertools.chain.from_iterable(places):
        if each in question.relevant:
            return True
        if each == question.older:
            return False
    return None


def _figures(run: Run) -> dict[str, Any]:
    rankings = run.rankings
    found = _means(rankings)
    categories = sorted({each.question.category for each in rankings})
    if len(categories) > 1:
        found["categories"] = {
            category: _means([each for each in rankings if each.question.category == category])
            for category in categories
        }
        if FALSE_PREMISE in categories:
            true = [each for each in rankings if each.question.category != FALSE_PREMISE]
            found[f"without_{FALSE_PREMISE}"] = _means(true)
        if all(each.question.category == each.question.scope for each in rankings):
            found |= _by_scope(found["categories"])
    places = sum(len(each.places) for each in rankings)
    return {
        **found,
        "found_by_meaning": round(sum(each.meaning for each in rankings) / max(1, places), 3),
        "documents": run.documents,
        "chunks": run.chunks,
        "indexing_s": round(run.indexing_s, 2),
        "embedding_s": round(run.embedding_s, 2),
        "median_ms": round(statistics.median(each.ms for each in rankings), 2),
    }


def _by_scope(figures: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The mean over categories that are scopes, such as languages, each counting the same; and the worst."""
    worst = min(figures, key=lambda each: figures[each]["hit@1"])
    mean = statistics.fmean(each["hit@1"] for each in figures.values())
    return {"mean_hit@1": round(mean, 4), "worst_hit@1": figures[worst]["hit@1"], "worst": worst}


def _means(rankings: Sequence[Ranking]) -> dict[str, Any]:
    """The means of `rankings`, and the standard error of hit@1."""
    scores = [score(each.places, each.question.relevant) for each in rankings]
    found: dict[str, Any] = {"n": len(scores)}
    found |= {name: round(statistics.fmean(each[name] for each in scores), 4) for name in scores[0]}
    hit = statistics.fmean(each["hit@1"] for each in scores)
    found["hit@1_se"] = round(math.sqrt(hit * (1 - hit) / len(scores)), 4)
    if rankings[0].question.older:
        told = [newer for each in rankings if (newer := newer_first(each.places, each.question)) is not None]
        found |= {"newer_above_older": round(statistics.fmean(told), 4), "either_found": len(told)}
    return found


# ---------------------------------------------------------------- two runs compared


def _as_saved(name: str, encoder: str, ranking: Ranking) -> Saved:
    return Saved(
        set=name,
        encoder=encoder,
        id=ranking.question.id,
        ranked=[place[0] for place in ranking.places],
        copies={place[0]: list(place[1:]) for place in ranking.places if len(place) > 1},
    )


@contextmanager
def _kept(file: Path | None) -> Iterator[Callable[[list[Saved]], None]]:
    """Takes rankings to write to `file`, where there is one: after each set, so that a long run leaves what it did."""
    if file is None:
        yield lambda _: None
        return
    try:
        opened = file.open("wb", buffering=0)
    except OSError as error:
        raise Usage(f"Could not write {file}: {error.strerror}.") from None

    def keep(lines: list[Saved]) -> None:
        opened.write(msgspec.json.Encoder().encode_lines(lines))

    with opened:
        yield keep


def _read_saved(file: Path) -> _Runs:
    found: _Runs = {}
    for each in sets.read_lines(file, Saved):
        found.setdefault(each.set, {}).setdefault(each.encoder, {})[each.id] = each
    return found


def _compare(rankings: Iterable[Ranking], lines: Iterable[Saved], before: _Runs) -> dict[str, Any]:
    """How many questions have an answer in the first place now and had none before, and the other way round.

    Against the same encoder's run of the set, or where there is none the only one there is.
    """
    better = worse = of = 0
    encoder = ""
    for ranking, line in zip(rankings, lines, strict=True):
        runs = before.get(line.set, {})
        encoder = line.encoder if line.encoder in runs or len(runs) != 1 else next(iter(runs))
        if then := runs.get(encoder, {}).get(line.id):
            now_hit, then_hit = (_answered(each, ranking.question) for each in (line, then))
            better += now_hit and not then_hit
            worse += then_hit and not now_hit
            of += 1
    return {"encoder": encoder, "of": of, "better": better, "worse": worse}


def _answered(line: Saved, question: Question) -> bool:
    first = line.ranked[:1]
    return any(each in question.relevant for each in [*first, *(line.copies.get(first[0], ()) if first else ())])


if __name__ == "__main__":
    main()
