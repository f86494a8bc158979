"""Real documents broken by chance, each read in a cage of its own: it is read, or left out with a reason, and no more.

The cage and the child are the engine's own (`lnk.documents`), limits and all, but that a child is forked from a process
that has the readers imported: a tenth of the time of one that starts anew. See README.md.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from importlib import import_module
from itertools import count as count_from
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from lnk.documents import child, content, mail, pdf
from lnk.documents.cage import Cage
from lnk.documents.child import LIMITS
from lnk.documents.content import AGAIN, CRASHED, KINDS, TOO_LONG, TOO_MUCH_MEMORY, LeftOut, kind_of

READ: Final = "read"
REASONS: Final = frozenset(
    (
        *(
            content.ENCRYPTED,
            content.DAMAGED,
            content.NO_TEXT,
            content.TEXT_TOO_LARGE,
            content.BOMB,
            content.OLD_FORMAT,
        ),
        *(CRASHED, TOO_LONG, TOO_MUCH_MEMORY),
        *(child.FILE_TOO_LARGE, mail.HEADERS_TOO_LARGE, pdf.TOO_MANY_PAGES, pdf.XFA),
    )
)
KEPT: Final = frozenset((CRASHED, TOO_LONG, TOO_MUCH_MEMORY))  # no faults, for they cost one document, but worth a look
AT_ONCE: Final = 2
SLICE: Final = 25  # mutations that a process is given at once
LOOK_S: Final = 0.5
SAY_S: Final = 2.0
FILE_BYTES_MAX: Final = 4 << 20  # larger ones take their time and break in the same ways
PARTS_BYTES_MAX: Final = 16 << 20  # unpacked, to be broken within
CHANGES_MAX: Final = 12
CPU_OVER_S: Final = 2.0  # the kernel looks once a second, and ends by force a second after the limit
_FLATE: Final = re.compile(rb"stream\r?\n(.{8,}?)\r?\nendstream", re.DOTALL)
_NAME: Final = re.compile(rb"<([A-Za-z][\w:.-]*)")
_VALUE: Final = re.compile(rb"=\"([^\"<]*)\"")
_LEAF: Final = re.compile(rb"<([\w:.-]+)(?:\s[^<>]*)?(?:/>|>[^<>]*</\1>)")
_VALUES: Final = (b"", b"0", b"-1", b"65536", b"99999999999999999999", b"1e9", b"../../x", b"%1.%9", b"x" * 5000)
_PIECES: Final = tuple(
    b"< > & \" ' { } \\ ; = 0 -1 65536 4294967295 99999999999999999999 [ ] << >> ( ) % / \0 \n \xff obj stream endobj R"
    b" \\par {\\* \\u-1? \\bin9 &#x0; <![CDATA[ </ --b".split(b" ")
)


class Outcome(NamedTuple):
    """What became of one mutation: READ or a reason; `fault`: what must not be; what its children took at the most."""

    kind: str
    number: int
    name: str
    came: str
    fault: str | None
    cpu_s: float
    rss_mib: float


# ---------------------------------------------------------------- files, broken


@cache
def files(folder: Path, kind: str) -> list[Path]:
    """Every document of a kind in a folder, in the order of their paths."""
    found = sorted(path for path in folder.rglob("*") if kind_of(path.name) == kind and path.is_file())
    return [path for path in found if 0 < path.stat().st_size <= FILE_BYTES_MAX]


def broken(kind: str, number: int, seed: int, folder: Path) -> tuple[str, bytes]:
    """The name of a file of that kind, and the `number`-th mutation of it: the same for the same seed and folder.

    Nothing is kept of it: what this process holds, a child that is forked from it holds too.
    """
    chance = random.Random(f"{seed} {kind} {number}")
    one, another = chance.choice(files(folder, kind)), chance.choice(files(folder, kind))
    data, other = one.read_bytes(), another.read_bytes()
    if chance.random() < 0.5:
        within = _pdf_within(data, chance) if kind == "pdf" else _zip_within(data, other, chance)
        if within is not None:
            return one.name, within
    return one.name, _mutated(data, other, chance)


def _mutated(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """With bytes flipped and changed, pieces left out, doubled, moved and put in; cut; or joined to another's end."""
    way = chance.random()
    if way < 0.15:
        return data[: chance.randrange(len(data) + 1)]
    if way < 0.3:
        return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]
    made = bytearray(data)
    for _ in range(_few(chance)):
        _change(made, other, chance)
    return bytes(made)


def _few(chance: random.Random) -> int:
    """How many changes: most often few, so that more than the first of a reader's checks is reached."""
    return 1 + int(CHANGES_MAX * chance.random() ** 3)


def _change(made: bytearray, other: bytes, chance: random.Random) -> None:
    at, size = chance.randrange(len(made) + 1), chance.choice((1, 1, 2, 4, 16, 100, 1000))
    start = chance.randrange(len(made) + 1)
    match chance.randrange(7):
        case 0 if at < len(made):
            made[at] ^= 1 << chance.randrange(8)
        case 1:
            made[at : at + size] = chance.randbytes(size)
        case 2:
            del made[at : at + size]
        case 3:
            made[at:at] = made[start : start + size]
        case 4:
            made[at : at + size] = other[start : start + size]
        case 5:
            made[at:at] = chance.choice(_PIECES)
        case _:
            made[at : at + size] = chance.choice(_PIECES) * chance.choice((1, 1, 50))


def _rewritten(data: bytes, chance: random.Random) -> bytes:
    """XML that is as well-formed as before: other names, other values, elements repeated."""
    for _ in range(_few(chance)):
        match chance.randrange(3):
            case 0 if names := sorted(set(_NAME.findall(data))):
                old, new = chance.choice(names), chance.choice(names)
                data = re.sub(rb"(</?)%s(?=[\s/>])" % re.escape(old), rb"\g<1>" + new, data)
            case 1 if values := [found.span(1) for found in _VALUE.finditer(data)]:
                (begin, end), (from_, to) = chance.choice(values), chance.choice(values)
                value = chance.choice((data[from_:to], *_VALUES))
                data = data[:begin] + value + data[end:]
            case _ if leaves := [found.span() for found in _LEAF.finditer(data)]:
                begin, end = chance.choice(leaves)
                data = data[:begin] + data[begin:end] * chance.choice((0, 2, 2, 500)) + data[end:]
    return data


def _zip_within(data: bytes, other: bytes, chance: random.Random) -> bytes | None:
    """An archive with one part broken, where no checksum tells; None where it is none."""
    parts = _parts(data)
    if not parts:
        return None
    name = chance.choice(sorted(parts))
    of_other = _parts(other).get(name) or parts[name]
    if chance.random() < 0.6:
        changed = _rewritten(parts[name], chance)
    else:
        changed = _mutated(parts[name], of_other, chance)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, part in {**parts, name: changed}.items():
            archive.writestr(zipfile.ZipInfo(each), part, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _parts(data: bytes) -> Mapping[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(part.file_size for part in archive.infolist()) > PARTS_BYTES_MAX:
                return {}
            return {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError, RuntimeError):
        return {}


def _pdf_within(data: bytes, chance: random.Random) -> bytes | None:
    """A PDF with one of its packed streams broken within; None where none is packed."""
    found = list(_FLATE.finditer(data))
    chance.shuffle(found)
    for each in found[:8]:
        with contextlib.suppress(zlib.error):
            inner = zlib.decompressobj().decompress(each[1], PARTS_BYTES_MAX)
            begin, end = each.span(1)
            return data[:begin] + zlib.compress(_mutated(inner, inner, chance)) + data[end:]
    return None


# ---------------------------------------------------------------- the cage


class _Child(subprocess.Popen[bytes]):
    """As much of a process as a cage asks of it, already started; and what it took."""

    def __init__(self, pid: int, output: int) -> None:
        self.pid = pid
        self.stdout = os.fdopen(output, "rb", buffering=0)
        self.cpu_s = self.rss_mib = 0.0

    def wait(self, timeout: float | None = None) -> int:
        _, status, used = os.wait4(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s, self.rss_mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
        return self.returncode


class ForkingCage(Cage):
    """A cage whose children are forked from this process, which has one thread and the readers imported."""

    def __init__(self) -> None:
        super().__init__()
        self.children: list[_Child] = []

    def _start(self, fd: int, argv: list[str]) -> subprocess.Popen[bytes]:
        told = argv[argv.index("-c") + 2 :]
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become(fd, theirs, told)
        os.close(theirs)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)
        self.children.append(_Child(pid, ours))
        return self.children[-1]


def _become(document: int, output: int, told: Sequence[str]) -> None:
    """The engine's child; it does not come back."""
    try:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for to, fd in enumerate((document, output, nowhere)):
            os.dup2(fd, to)
        os.chdir("/")
        os.environ.clear()
        sys.argv = ["-c", *told]
        child.main()
    finally:
        os._exit(1)


def tried(cage: ForkingCage, kind: str, data: bytes) -> tuple[str, str | None]:
    """What comes of a document, and what must not be."""
    cage.children.clear()
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            cage.read(file.fileno(), kind)
            came = READ
        except LeftOut as reason:
            came = str(reason)
        except Exception as error:  # what the engine would have to live with
            return CRASHED, f"the cage raised {type(error).__name__}: {error}"
    return came, _fault(came, cage.children)


def _fault(came: str, children: Sequence[_Child]) -> str | None:
    if came != READ and came not in REASONS:
        return f"an unknown reason: {came}"
    if max(each.rss_mib for each in children) * (1 << 20) > LIMITS.memory_bytes:
        return "over the limit on memory"
    if max(each.cpu_s for each in children) > LIMITS.cpu_s + CPU_OVER_S:
        return "over the limit on processor time"
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
        return "a child is left"
    return None


# ---------------------------------------------------------------- one process of several


class Asked(NamedTuple):
    """What a process is told once."""

    folder: Path
    keep: Path | None
    seed: int


_told: tuple[Asked, Event] | None = None


def _begin(asked: Asked, stop: Event) -> None:
    global _told
    _told = asked, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it says when to stop
    for kind in (*KINDS.values(), *AGAIN.values()):
        if kind.there():
            import_module(kind.module)


def _slice(kind: str, numbers: range) -> list[Outcome]:
    """What became of these mutations, as far as there was time."""
    assert _told
    asked, stop = _told
    cage = ForkingCage()
    found = []
    for number in numbers:
        if stop.is_set():
            break
        name, data = broken(kind, number, asked.seed, asked.folder)
        came, fault = tried(cage, kind, data)
        cpu_s, rss_mib = (max((getattr(each, what) for each in cage.children), default=0.0) for what in _TOOK)
        found.append(Outcome(kind, number, name, came, fault, cpu_s, rss_mib))
        if asked.keep and (fault or came in KEPT):
            (asked.keep / f"{kind}-{asked.seed}-{number}.{kind}").write_bytes(data)
    return found


_TOOK: Final = ("cpu_s", "rss_mib")


# ---------------------------------------------------------------- the run


class _Summary:
    def __init__(self) -> None:
        self.came: dict[str, Counter[str]] = {}
        self.told: list[Outcome] = []
        self.faults: list[str] = []
        self.count = 0
        self.cpu_s = self.rss_mib = 0.0

    def add(self, outcomes: Sequence[Outcome]) -> None:
        for each in outcomes:
            self.count += 1
            self.came.setdefault(each.kind, Counter())[each.came] += 1
            self.cpu_s, self.rss_mib = max(self.cpu_s, each.cpu_s), max(self.rss_mib, each.rss_mib)
            if each.fault or each.came in KEPT:
                self.told.append(each)
            if each.fault:
                self.faults.append(f"{each.kind} {each.number} ({each.name}): {each.fault}")


def _slices(kinds: Sequence[str], first: int, count: int | None) -> Iterator[tuple[str, range]]:
    """Slices of each kind in turn: `count` mutations of each, or without end."""
    for at in count_from(first, SLICE) if count is None else range(first, first + count, SLICE):
        until = at + SLICE if count is None else min(at + SLICE, first + count)
        yield from ((kind, range(at, until)) for kind in kinds)


def run(asked: Asked, work: Iterator[tuple[str, range]], until: float) -> _Summary:
    """All of the work, or as much of it as ends by `until` (`time.monotonic`) or an interrupt."""
    found = _Summary()
    interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    running: set[Future[list[Outcome]]] = set()
    began = said = time.monotonic()
    try:
        with ProcessPoolExecutor(AT_ONCE, context, _begin, (asked, stop)) as pool:
            while True:
                ending = interrupted or time.monotonic() >= until
                if ending:
                    stop.set()
                while not ending and len(running) < AT_ONCE and (piece := next(work, None)):
                    running.add(pool.submit(_slice, *piece))
                if not running:
                    break
                done, running = wait(running, LOOK_S, FIRST_COMPLETED)
                for each in done:
                    found.add(each.result())
                if time.monotonic() - said > SAY_S:
                    said = time.monotonic()
                    _say(f"{found.count:,} in {said - began:.0f} s; {len(found.told)} told of")
    except BrokenProcessPool:
        found.faults.append("a process that reads documents died")
    finally:
        for number, old in before.items():
            signal.signal(number, old)
    return found


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _summary(found: _Summary, seed: int, seconds: float) -> dict[str, Any]:
    return {
        "seed": seed,
        "mutations": found.count,
        "seconds": round(seconds, 1),
        "by_kind": {kind: dict(came.most_common()) for kind, came in sorted(found.came.items())},
        "cpu_max_s": round(found.cpu_s, 2),
        "rss_max_mib": round(found.rss_mib, 1),
        "told": [
            {"kind": each.kind, "number": each.number, "file": each.name, "came": each.came} for each in found.told
        ],
        "faults": found.faults,
    }


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz.documents", description=__doc__)
    long = parser.add_mutually_exclusive_group()
    long.add_argument("--minutes", type=float, default=10.0, metavar="N", help="how long (%(default)s)")
    long.add_argument("--count", type=int, metavar="N", help="so many mutations of each kind instead")
    parser.add_argument("--kind", choices=KINDS, action="append", help="of this kind alone; may be given several times")
    parser.add_argument("--files", type=Path, metavar="DIR", help="the folder of real files ($LNK_CASES)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where what crashed or was a fault is put")
    parser.add_argument("--seed", type=int, help="the seed of a run, to have it again")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first mutation (0)")
    asked = parser.parse_args(argv)
    if asked.files is None and os.environ.get("LNK_CASES"):
        asked.files = Path(os.environ["LNK_CASES"])
    if asked.files is None or not asked.files.is_dir():
        parser.error("name a folder of real files by --files or LNK_CASES.")
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program. Its exit status: 1 where there was a fault, 2 where it is used wrongly."""
    asked = _arguments(argv)
    seed: int = int.from_bytes(os.urandom(4)) if asked.seed is None else asked.seed
    kinds = [kind for kind in asked.kind or KINDS if KINDS[kind].there() and files(asked.files, kind)]
    if not kinds:
        _say(f"No file in {asked.files} is of such a kind, and of at most {FILE_BYTES_MAX >> 20} MiB.")
        return 2
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
    _say(f"seed {seed}: " + ", ".join(f"{len(files(asked.files, kind))} {kind}" for kind in kinds))
    began = time.monotonic()
    until = began + asked.minutes * 60 if asked.count is None else float("inf")
    found = run(Asked(asked.files, asked.keep, seed), _slices(kinds, asked.first, asked.count), until)
    json.dump(_summary(found, seed, time.monotonic() - began), sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
