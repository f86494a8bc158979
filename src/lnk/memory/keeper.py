"""Brings the index up to date with the folder, in a thread of its own, when a call asks for it.

A call sees every change made before it began: either the kernel proves that there was none, or the folder is
looked at first. The first index runs behind, and a call that cannot wait for it says how far it is. A folder that
cannot be read for the moment is never taken for an empty one.
"""

import contextlib
import errno
import os
import stat as stat_module
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from lnk.documents.content import FILE_BYTES_MAX, kind_of
from lnk.errors import Corrupt, LinkError, Missing
from lnk.folder import Folder, read_all
from lnk.memory import embedded
from lnk.memory.analyse import ANALYSIS, forget
from lnk.memory.extract import AT_ONCE, Extraction, read_again
from lnk.memory.index import Found, Index
from lnk.memory.names import key
from lnk.memory.parse import Parsed, digest_of, left_out, parse
from lnk.memory.turns import Calls, Turns
from lnk.memory.walk import IGNORE_FILE, RACY_NS, Report, Source, lasting, stamp
from lnk.memory.watch import Watch

FIRST_WAIT_S: Final = 2.0  # how long a call waits for the first index before it says how far it is
WAIT_S: Final = 20.0  # and for any later change: a client gives up after 30 s at the earliest
BEGIN_S: Final = 0.25  # after start, so that `initialize` and `tools/list` have the processor first
TELL_S: Final = 0.25  # how often a waiting call tells its progress
DOCUMENTS_WAIT_S: Final = 2.0  # how long a call waits where no more than so many documents are left to read
DOCUMENTS_FEW: Final = 4
RESCAN_S: Final = 60.0  # what the kernel does not tell of (a mapped file) is found by a scan this often, behind
BATCH_CHARS: Final = 1 << 20  # a transaction's worth: small enough to be over before anyone waits for it
BATCH_FILES: Final = 500
CLEAN_S: Final = 0.2  # after the last change, what was deleted is overwritten in the log too
CHECKED_MAX: Final = 500  # paths looked at one by one; with more, one scan of everything is cheaper
SHARED_MAX: Final = 1000  # files with several names are looked at one by one; with more, each call scans
READ_TRIES: Final = 3
_TROUBLES_MAX: Final = 3  # said in one answer


class Freshness(NamedTuple):
    """How far the index is behind the folder: nothing when `indexed` and `stale` are None."""

    indexed: tuple[int, int] | None
    stale: str | None


class Keeper:
    """Owns the writing connection. `fresh` before each call; `stop` at the end."""

    def __init__(
        self,
        index: Callable[[], Index],
        sources: list[Source],
        told: Callable[[], None] | None = None,
        *,
        sweeps: bool = False,
        turns: Turns | None = None,
        calls: Calls | None = None,
    ) -> None:
        """`told` hears of each time that the index was brought up to the folder; `sweeps`: nobody embeds here.

        `turns`: those at reading documents, which others take too. `calls`: those to which indexing gives way.
        """
        self._sweeps = sweeps
        self._open = index
        self._told = told
        self._sources = [_Part(source) for source in sources]
        self._index: Index | None = None
        self._state = threading.Condition()
        self._asked = 0  # look requests made, and the latest that is answered
        self._answered = 0
        self._full = True  # the next look must list everything
        self._stopping = False
        self._given_up = False
        self._begun = threading.Event()
        self._done, self._of = 0, 0
        self._complete = False
        self._stale: str | None = None
        self._scanned = 0.0
        self._known: dict[str, bytes] = {}
        self._version: object = None
        self._waiting = 0  # documents that the last look left to be read
        self._resting = False  # the memory that only saves work is to be given back
        self._unclean = False  # the log beside the index may hold what was deleted
        self._calls = calls or Calls()
        self._documents = Extraction(index, sources, self._document_read, turns or Turns(AT_ONCE))
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    def start(self) -> None:
        """Begin to index, behind."""
        self._thread.start()

    def stop(self, wait_s: float) -> bool:
        """End at the next document. False where that did not happen within `wait_s`."""
        with self._state:
            self._stopping = True
            self._state.notify_all()
        self._begun.set()
        until = time.monotonic() + wait_s
        ended = self._documents.stop(wait_s)
        self._thread.join(max(0.0, until - time.monotonic()))
        return ended and not self._thread.is_alive()

    def has_ended(self) -> bool:
        """Whether its threads are over."""
        return self._documents.has_ended() and not self._thread.is_alive()

    def give_up(self) -> None:
        """The call that waits no longer does. It waits for nobody: the lock may be held by who looks at a folder that
        hangs, and then the call hears of it when that is over, or within TELL_S.
        """
        self._given_up = True
        if self._state.acquire(blocking=False):
            self._state.notify_all()
            self._state.release()

    def rest(self) -> None:
        """Nobody has asked for a while: memory that only saves work is given back, by the thread whose it is."""
        with self._state:
            self._resting = True
            self._state.notify_all()

    def look_again(self) -> None:
        """The index is another: all is to be listed, and indexed behind as at first."""
        with self._state:
            self._full, self._complete = True, False
            self._state.notify_all()

    def fresh(self, progress: Callable[[int, int], None] | None = None, wait_s: float | None = None) -> Freshness:
        """Waits until every change made before this call is indexed, or as long as is sensible."""
        self._begun.set()
        began = time.monotonic()
        with self._state:
            self._given_up = False
            if self._answered != self._asked or not self._proved():
                self._asked += 1
                self._state.notify_all()
            elif began - self._scanned > RESCAN_S:
                self._full = True
                self._asked += 1
                self._state.notify_all()
                return self._freshness(self._documents.left)
            mine = self._asked
            until = began + (wait_s if wait_s is not None else WAIT_S if self._complete else FIRST_WAIT_S)
            told = -1
            while self._answered < mine and not (self._given_up or self._stopping) and self._thread.is_alive():
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._state.wait(min(left, TELL_S))
                if progress and self._of and self._done != told and self._answered < mine:
                    told = self._done
                    progress(self._done, self._of)
            if self._answered < mine and (self._done < self._of or not self._complete):
                return Freshness((self._done, self._of), self._stale)
            if wait_s is None:
                until = min(until, time.monotonic() + DOCUMENTS_WAIT_S)
            return self._freshness(self._documents_left(progress, until, whole=wait_s is not None))

    def _freshness(self, left: int) -> Freshness:
        """With so many documents left to read."""
        left = min(left, self._of)
        return Freshness((self._of - left, self._of) if left else None, self._stale)

    def _documents_left(self, progress: Callable[[int, int], None] | None, until: float, *, whole: bool) -> int:
        """How many documents wait to be read, after a moment where that are few; `whole`: after all, if need be."""
        told = -1
        while (left := self._documents.left) and (whole or left <= DOCUMENTS_FEW) and not self._given_up:
            if self._stopping or time.monotonic() >= until:
                break
            if progress and left != told:
                told = left
                progress(self._of - left, self._of)
            self._state.wait(min(max(0.0, until - time.monotonic()), TELL_S))
        return left

    def _document_read(self) -> None:
        with self._state:
            self._unclean = self._unclean or not self._documents.left  # what was there before leaves the log too
            self._state.notify_all()
        if self._told:
            self._told()

    def _proved(self) -> bool:
        return self._complete and not self._full and self._stale is None and all(part.quiet() for part in self._sources)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        self._begun.wait(BEGIN_S)
        while True:
            with self._state:
                while self._answered == self._asked and self._complete and not self._stopping:
                    self._give_back()
                    self._state.wait(CLEAN_S if self._unclean else None)
                    if self._unclean:
                        self._clean()
                if self._stopping:
                    break
                mine, full = self._asked, self._full
                self._full = False
            try:
                stale = self._look(full)
            except Exception as error:  # the top of the thread: said, and tried again with the next call
                sys.stderr.write(f"lnk-link-memory: indexing failed: {type(error).__name__}: {error}\n")
                self._forget_index()
                stale = f"The index could not be brought up to date ({type(error).__name__}); the log says how."
            forget()
            with self._state:
                self._stale = stale
                self._complete = self._complete or not self._stopping
                self._answered = mine
                self._state.notify_all()
            if self._told:
                self._told()
        if self._unclean:
            self._clean()
        for part in self._sources:
            part.close()
        if self._index:
            self._index.close()

    def _give_back(self) -> None:
        if self._resting and self._index is not None:
            self._index.rest()
        self._resting = False

    def _clean(self) -> None:
        """What was deleted leaves the log too, after the calls that waited for it have their answers."""
        try:
            if self._index is not None and self._sweeps:
                embedded.sweep(self._index)  # else whoever embeds does, after it took up what it could
            self._unclean = self._index is not None and not self._index.overwrite()
        except LinkError:
            self._unclean = False  # the next look meets it, and says it

    def _look(self, full: bool) -> str | None:
        """One look at the folder, and the index brought up to it. What keeps it from being up to date, or None."""
        try:
            index = self._current()
            # The index may be another since the last look, and what could not be looked at is tried again.
            full = full or self._full or self._stale is not None
            troubles = []
            self._waiting = 0
            with index.alone():
                self._load(index)
                for part in self._sources:
                    if trouble := part.prepare(self._known):
                        troubles.append(trouble)
                    elif part.usable:
                        troubles += self._part(index, part, full)
            if self._waiting:
                self._documents.poke(self._waiting)
            return " ".join(troubles) or None
        except Corrupt as error:
            self._forget_index()
            return str(error)
        except LinkError as error:
            self._full = True
            return str(error)

    def _part(self, index: Index, part: "_Part", full: bool) -> list[str]:
        paths, lost = part.drain()
        if full or lost or not part.watched or IGNORE_FILE in paths or len(paths) > CHECKED_MAX:
            self._scan(index, part)
        elif paths or part.shared:
            self._check(index, part, paths | part.shared.keys())
        if part.report.failed:
            self._full = True
        return part.troubles(self._known)

    def _current(self) -> Index:
        if self._index is not None and self._index.replaced():
            self._forget_index()
        if self._index is None:
            self._index = self._open()
            if self._index.fact("analysis") != ANALYSIS:
                with self._index.alone(), self._index.writing():
                    self._index.analyse_again()
            with self._index.alone():
                read_again(self._index)
        return self._index

    def _forget_index(self) -> None:
        if self._index:
            with contextlib.suppress(Exception):
                self._index.close()
        self._index, self._version, self._full = None, None, True

    def _load(self, index: Index) -> None:
        """What the index has, read again where another process changed it. Under its lock."""
        version = (index.inode, index.value("PRAGMA data_version"))
        if version != self._version:
            self._known = dict(index.db.execute("SELECT path, stamp FROM documents"))
            self._version = version

    def _scan(self, index: Index, part: "_Part") -> None:
        """All of a part listed and compared."""
        source = part.source
        report = part.report = Report()
        part.renew_watch()
        known = self._known
        changed = list(source.walk(part.folder, report, part.entered, known=known))
        for one in source.blocked(report):
            if known.get(one.path) == one.stamp:
                report.same.add(one.path)
            else:
                changed.append(one)
        self._scanned = time.monotonic()
        part.shared = report.shared
        here = report.same.union(one.path for one in changed)
        report.same = set()  # the report stays, and these are as many as there are files
        others = sum(not path.startswith(source.prefix) for path in known) if len(self._sources) > 1 else 0
        gone = set[str]()
        if changed or others + len(here) != len(known):
            gone = {path for path in known.keys() - here if path.startswith(source.prefix)}
        if gone and report.unreadable:
            beneath = tuple(path + "/" for path in report.unreadable)
            gone = (
                set() if source.root in report.unreadable else {path for path in gone if not path.startswith(beneath)}
            )
        if gone and not here and not part.same_folder(index):
            part.empty = True
            return
        part.empty = False
        if index.fact(f"read {source.root}") is None:
            with index.writing(durable=True):
                index.wait_for((one for one in changed if one.path not in known), seen=0)
                index.set_fact(f"read {source.root}", index.tick())
            known.update((one.path, b"") for one in changed if one.path not in known)
        part.note_folder(index)
        self._apply(index, part, changed, sorted(gone), others + len(here))

    def _check(self, index: Index, part: "_Part", paths: set[str]) -> None:
        """What the kernel said may have changed, looked at path by path."""
        found: dict[str, Found] = {}
        gone: set[str] = set()
        folders: list[str] = []  # of which all that is not found is gone
        shared = set(part.shared)
        for path in paths:
            name = key(part.source.prefix + path)
            try:
                file = part.look(path, found)
            except OSError as error:
                part.report.failed[name] = error.strerror or "it could not be looked at"
                continue
            if name in self._known:
                gone.add(name)
            elif not file and not any(blocked.startswith(name) for blocked in part.report.unreadable):
                folders += [name + "/", key(part.source.prefix + path + "/")]
        if part.shared.keys() - shared:
            self._full = True  # a file got a second name; which its first is, the kernel does not tell
        if folders:
            gone.update(path for path in self._known if path.startswith(tuple(folders)))
        found |= {one.path: one for one in part.source.blocked(part.report)}
        gone -= found.keys()
        changed = [one for one in found.values() if self._known.get(one.path) != one.stamp]
        new = sum(path not in self._known for path in found)
        self._apply(index, part, changed, sorted(gone), len(self._known) + new)

    def _apply(self, index: Index, part: "_Part", changed: list[Found], gone: list[str], of: int) -> None:
        """The changes written, newest first, batch by batch; what is not reached stays as changed."""
        with self._state:
            self._of, self._done = of, of - len(changed)
        changed = self._leave_documents(index, changed)
        changed.sort(key=lambda one: one.mtime_ns, reverse=True)
        self._unclean = self._unclean or bool(gone or changed)
        for start in range(0, len(gone), BATCH_FILES):
            batch = gone[start : start + BATCH_FILES]
            with index.writing(durable=True):
                index.drop(batch, index.tick())
            for path in batch:
                self._known.pop(path, None)
            if self._stopping:
                return
        for ready in self._batches(part, changed):
            new = any(one.path not in self._known for one, _ in ready)
            with index.writing(durable=new):
                index.put(ready, index.tick())
            self._known.update((one.path, one.stamp) for one, _ in ready)
            with self._state:
                self._done += len(ready)
                self._state.notify_all()
            if self._stopping:
                return

    def _leave_documents(self, index: Index, changed: list[Found]) -> list[Found]:
        """What of the changed is text. The documents among them are read behind, and wait in the index."""
        later = [one for one in changed if one.left_out is None and kind_of(one.path)]
        if not later:
            return changed
        if fresh := [one for one in later if self._known.get(one.path) != b""]:
            new = [one for one in fresh if one.path not in self._known]
            with index.writing(durable=bool(new)):
                index.wait_for(new, index.tick())
                index.read_later(one.path for one in fresh)
            self._known.update((one.path, b"") for one in fresh)
        self._waiting += len(later)
        return [one for one in changed if one.left_out is not None or not kind_of(one.path)]

    def _batches(self, part: "_Part", changed: list[Found]) -> Iterator[list[tuple[Found, Parsed | None]]]:
        ready: list[tuple[Found, Parsed | None]] = []
        size = 0
        for one in changed:
            self._calls.give_way()
            if self._stopping:
                break
            read = self._read(part, one)
            if read is None:
                continue  # gone meanwhile: the next look says so
            ready.append(read)
            size += one.bytes
            if size >= BATCH_CHARS or len(ready) >= BATCH_FILES:
                yield ready
                ready, size = [], 0
        if ready:
            yield ready

    def _unread(self, part: "_Part", one: Found, error: OSError) -> tuple[Found, Parsed] | None:
        """A file that cannot be read: left out for want of a right, else as it was, and tried again."""
        path = one.path[len(part.source.prefix) :]
        refused = lasting(error) and not os.access(path, os.R_OK, dir_fd=part.folder.fd)
        if refused or error.errno in (errno.EINVAL, errno.ELOOP):
            return one, left_out(one.path, f"it could not be read: {error.strerror}")
        part.report.failed[one.path] = error.strerror or "it could not be read"
        return None

    def _read(self, part: "_Part", one: Found) -> tuple[Found, Parsed | None] | None:
        """A file read and parsed; None for Parsed where its content is what the index has."""
        if one.left_out:
            return one, left_out(one.path, one.left_out)
        path = one.path[len(part.source.prefix) :]
        for _ in range(READ_TRIES):
            try:
                fd, before = part.folder.open_file(path)
                try:
                    data = read_all(fd, FILE_BYTES_MAX)
                    after = os.fstat(fd)
                finally:
                    os.close(fd)
            except FileNotFoundError:
                return None
            except OSError as error:
                return self._unread(part, one, error)
            if stamp(before) == stamp(after):
                break
        mark = stamp(after)
        if stamp(before) != mark or time.time_ns() - after.st_ctime_ns < RACY_NS:
            mark = b""  # to be read again at the next look, when the clock has moved on
        found = one._replace(stamp=mark, bytes=after.st_size, mtime_ns=after.st_mtime_ns, ctime_ns=after.st_ctime_ns)
        assert self._index
        had = self._index.value("SELECT digest FROM documents WHERE path = ? AND left_out IS NULL", one.path)
        return found, None if had == digest_of(data) else _parsed(one, data)


def _parsed(one: Found, data: bytes) -> Parsed:
    """A fault in taking up one file is that file's alone, and is said of it."""
    try:
        return parse(one.path, one.kind, data)
    except Exception as error:
        sys.stderr.write(f"lnk-link-memory: a document could not be parsed: {type(error).__name__}\n")
        return left_out(one.path, f"it could not be parsed ({type(error).__name__})", digest_of(data))


class _Part:
    """A source as the keeper holds it: its open folder, its watch, and what the last look met."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.report = Report()
        self.shared: dict[str, bytes] = {}
        self.empty = False
        self._folder: Folder | None = None
        self._watch: Watch | None = None
        self._missing = False

    @property
    def folder(self) -> Folder:
        assert self._folder
        return self._folder

    @property
    def watched(self) -> bool:
        return self._watch is not None and len(self.shared) <= SHARED_MAX

    def close(self) -> None:
        if self._watch:
            self._watch.close()
        if self._folder:
            self._folder.close()
        self._watch = self._folder = None

    def quiet(self) -> bool:
        """Whether nothing changed: the kernel has told of nothing, and the path still means this folder."""
        if self._missing:
            return not os.path.lexists(self.source.path)
        if not self.watched or not self._same_path():
            return False
        assert self._watch and self._folder
        if not self._watch.quiet():
            return False
        with contextlib.suppress(OSError):
            return all((found := self.folder.stat(path)) and stamp(found) == mark for path, mark in self.shared.items())
        return False

    def prepare(self, known: dict[str, bytes]) -> str | None:
        """Opens the folder where that is needed. What is wrong with it, or None. `known`: the documents there are."""
        if self._folder is not None and not self._same_path():
            self.close()
        if self._folder is None:
            self._missing = False
            try:
                self._folder = self.source.open()
            except Missing as error:
                # Before somebody makes it there is nothing wrong, and nothing to remove.
                self._missing = not any(path.startswith(self.source.prefix) for path in known)
                return None if self._missing else f"{error} {self._before()}"
            except LinkError as error:
                return f"{error} {self._before()}"
        with contextlib.suppress(LinkError):
            self.source.read_ignore(self._folder)
        return None

    @property
    def usable(self) -> bool:
        return self._folder is not None

    def renew_watch(self) -> None:
        """A watch that knows of nothing yet, before all is listed."""
        if self._watch:
            self._watch.close()
            self._watch = None
        with contextlib.suppress(OSError):
            self._watch = Watch(self.folder.fd)

    def entered(self, handle: int, prefix: str) -> None:
        """A folder is about to be listed."""
        if self._watch:
            try:
                self._watch.add(handle, prefix)
            except OSError:  # no more watches for this user, or no /proc: each call scans
                self._watch.close()
                self._watch = None

    def look(self, path: str, found: dict[str, Found]) -> bool:
        """Adds to `found` what is at `path` now, or beneath it. False where it is a folder, or gone. Raises OSError."""
        self.shared.pop(path, None)
        here = self.source.prefix + path + "/"
        for blocked in [each for each in self.report.unreadable if (each + "/").startswith(here)]:
            del self.report.unreadable[blocked]
        kind = self.folder.stat(path)
        if kind is None:
            return False
        if stat_module.S_ISDIR(kind.st_mode):
            found.update((one.path, one) for one in self.source.walk(self.folder, self.report, self.entered, path))
            return False
        if one := self.source.look(self.folder, path, self.report):
            found[one.path] = one
        return True

    def drain(self) -> tuple[set[str], bool]:
        return self._watch.drain() if self._watch else (set(), True)

    def same_folder(self, index: Index) -> bool:
        """Whether this is the folder that was indexed, and not an empty one in its place."""
        return index.fact(f"folder {self.source.root}") in (None, self._identity())

    def note_folder(self, index: Index) -> None:
        """Keep which folder it is that was indexed."""
        if index.fact(f"folder {self.source.root}") != self._identity():
            with index.writing():
                index.set_fact(f"folder {self.source.root}", self._identity())

    def troubles(self, known: dict[str, bytes]) -> list[str]:
        """What of the folder could not be looked at though it held documents, a sentence each."""
        if self.empty:
            return [
                f"{self.source.path} is empty and not the folder that it was, as when a disk is not mounted."
                f" {self._before()} If it is meant to be empty, run `lnk agent memory reindex`."
            ]
        held = [
            f"{path}/ cannot be read ({reason}). What is said of it is from before."
            for path, reason in self.report.unreadable.items()
            if path == self.source.root or any(each.startswith(path + "/") and each != path + "/" for each in known)
        ]
        held += [
            f"{path} could not be looked at ({reason}); what is said of it is from before, ask again."
            for path, reason in self.report.failed.items()
            if path not in self.report.unreadable
        ]
        return held[:_TROUBLES_MAX]

    def _before(self) -> str:
        return f"What is said of {self.source.root}/ is from before."

    def _identity(self) -> str:
        return ":".join(map(str, self.folder.identity()))

    def _same_path(self) -> bool:
        """Whether the path still names the folder that is held."""
        try:
            found = os.stat(self.source.path, follow_symlinks=False)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self.folder.identity()
