"""The text of PDF, Word and other documents, taken up behind everything that is text already: newest first, in cages.

A document that waits stands in the index without a stamp. One process of all that share an index reads them, under a
kernel lock; the others see in the index how many are left.
"""

import contextlib
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from lnk.documents.cage import Cage, Stopped
from lnk.documents.content import KINDS, LeftOut, kind_of
from lnk.errors import LinkError
from lnk.memory.index import Found, Index
from lnk.memory.parse import Parsed, left_out, parse_content
from lnk.memory.turns import GivenUp, Turns
from lnk.memory.walk import RACY_NS, Source, stamp

if TYPE_CHECKING:
    from concurrent.futures import Future  # 4 ms, for those who have a document to read

LOCK: Final = "documents.lock"
AT_ONCE: Final = 2
RETRY_S: Final = 1.0  # until what changed while it was read, or another process's lock, is looked at again
BLOCK_BYTES: Final = 1 << 20
READERS: Final = f"1 {' '.join(sorted(KINDS))}"  # raised with any change of what a reader gives

_Taken = tuple[Found, Parsed | None] | None


class Waiting(NamedTuple):
    """A document to read: its path in the index, and the digest of what the index has of it."""

    path: str
    digest: bytes | None


def waiting(index: Index) -> list[Waiting]:
    """The documents that are to be read, the newest first."""
    rows = index.rows("SELECT path, digest FROM documents WHERE stamp = x'' AND left_out IS NULL ORDER BY changed DESC")
    return [Waiting(*row) for row in rows if kind_of(row[0])]


def read_again(index: Index) -> None:
    """Where the readers are others than before, or more are installed, what they may read now waits for them."""
    there = f"{READERS}: {' '.join(ending for ending, kind in KINDS.items() if kind.there())}"
    if index.fact("readers") == there:
        return
    known = [path for (path,) in index.rows("SELECT path FROM documents") if kind_of(path)]
    with index.writing():
        index.read_later(known, anew=True)
        index.set_fact("readers", there)


class Extraction:
    """Owns the thread that reads documents. `left` is how many wait, as far as it knows."""

    def __init__(
        self, index: Callable[[], Index], sources: Sequence[Source], told: Callable[[], None], turns: Turns
    ) -> None:
        """`told` hears of each document that was taken up. `turns`: each document is read in one of these."""
        self._turns = turns
        self._open = index
        self._sources = sources
        self._told = told
        self._cage = Cage(plugin())
        self._changed = threading.Condition()
        self._poked = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.left = 0

    def poke(self, left: int) -> None:
        """So many at least may be waiting now. The thread is started with the first."""
        with self._changed:
            self.left = max(self.left, left)
            self._poked = True
            self._changed.notify_all()
            if self._thread is None and not self._stopping and left:
                self._thread = threading.Thread(target=self._run, name="documents", daemon=True)
                self._thread.start()

    def stop(self, wait_s: float) -> bool:
        """End at once: what is being read waits for the next time. False where that took longer than `wait_s`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._cage.stop()
        if self._thread is None:
            return True
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def has_ended(self) -> bool:
        """Whether its thread is over, or never began."""
        return self._thread is None or not self._thread.is_alive()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        index: Index | None = None
        again_s: float | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._poked or self._stopping, again_s)
                self._poked = False
            if self._stopping:
                break
            try:
                if index is not None and index.replaced():
                    index.close()
                    index = None
                index = index or self._open()
                self._pass(index)
                self._say_left(len(waiting(index)))
                again_s = RETRY_S if self.left else None
            except Exception as error:  # the top of the thread: said, and tried again
                again_s = RETRY_S
                if not self._stopping:
                    sys.stderr.write(f"lnk-link-memory: reading documents failed: {type(error).__name__}: {error}\n")
        if index is not None:
            with contextlib.suppress(Exception):
                index.close()

    def _pass(self, index: Index) -> None:
        """All that waits is read, two at once; what comes meanwhile takes its place by its time."""
        from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

        with index.state.alone(LOCK, wait=False) as alone, ThreadPoolExecutor(AT_ONCE, "document") as pool:
            if not alone:
                return
            queue, tried = waiting(index), set[str]()
            running: dict[Future[_Taken], Waiting] = {}
            while (queue or running) and not self._stopping:
                if self._poked:
                    self._poked = False
                    queue = waiting(index)
                queue = [one for one in queue if one.path not in tried]
                while queue and len(running) < AT_ONCE:
                    one = queue.pop(0)
                    tried.add(one.path)
                    running[pool.submit(self._take, one)] = one
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    self._keep(index, running.pop(future), future.result())
                self._say_left(len(queue) + len(running))

    def _say_left(self, left: int) -> None:
        with self._changed:
            self.left = left
        self._told()

    def _take(self, one: Waiting) -> _Taken:
        """A document read, None where it is gone or we are to end; no Parsed where the index has its content."""
        source = next(each for each in self._sources if one.path.startswith(each.prefix))
        path = one.path[len(source.prefix) :]
        try:
            with source.open() as folder:
                try:
                    fd, before = folder.open_file(path)
                except PermissionError as error:
                    seen = folder.stat(path)
                    return seen and (_found(one.path, source.kind, seen, seen), _unread(one.path, error))
                try:
                    digest = _digest(fd)
                    parsed = None if digest == one.digest else self._read(one.path, fd, digest)
                    return _found(one.path, source.kind, before, os.fstat(fd)), parsed
                finally:
                    os.close(fd)
        except (OSError, LinkError, Stopped, GivenUp):  # gone, or to be tried again
            return None

    def _read(self, path: str, fd: int, digest: bytes) -> Parsed:
        kind = kind_of(path)
        assert kind
        try:
            with self._turns.turn(lambda: self._stopping):
                content = self._cage.read(fd, kind)
            return parse_content(path, digest, content)
        except LeftOut as why:
            return left_out(path, str(why), digest)
        except (OSError, Stopped, GivenUp):
            raise
        except Exception as error:  # a fault in taking up one document is that document's alone, and is said of it
            sys.stderr.write(f"lnk-link-memory: a document could not be parsed: {type(error).__name__}\n")
            return left_out(path, f"it could not be parsed ({type(error).__name__})", digest)

    def _keep(self, index: Index, one: Waiting, taken: _Taken) -> None:
        """What was read is put into the index, unless the document went or was read again meanwhile."""
        if taken is None:
            return
        with index.alone(), index.writing(durable=one.digest is None):
            if index.value("SELECT 1 FROM documents WHERE path = ? AND stamp = x''", one.path):
                index.put([taken], index.tick())


def plugin() -> str | None:
    """The program of the plugin `link-documents`, where that is installed beside ours; else we read documents."""
    program = os.path.join(os.path.dirname(sys.executable), "lnk-link-documents")
    return program if KINDS["odt"].there() and os.access(program, os.X_OK) else None


def _unread(path: str, error: OSError) -> Parsed:
    return left_out(path, f"it could not be read: {error.strerror}")


def _found(path: str, kind: str, before: os.stat_result, after: os.stat_result) -> Found:
    """The file as it was read; without a stamp, to be read again, where it changed meanwhile or may have."""
    racy = stamp(before) != stamp(after) or time.time_ns() - after.st_ctime_ns < RACY_NS
    return Found(path, kind, b"" if racy else stamp(after), after.st_size, after.st_mtime_ns, after.st_ctime_ns, None)


def _digest(fd: int) -> bytes:
    """The digest of a file's content; its place is at the beginning again."""
    digest = hashlib.sha256()
    while block := os.read(fd, BLOCK_BYTES):
        digest.update(block)
    os.lseek(fd, 0, os.SEEK_SET)
    return digest.digest()
