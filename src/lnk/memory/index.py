"""The index file: opened or made, written to, and checked. One SQLite file, its schema in `schema.sql`.

Everything in it is derived from the folder but the first-seen times and the list of what was removed. So one that
is missing, broken, another program's or another version's is made again, and that is said (`Index.made_again`). But
one that a newer program put in the place of ours while we had it open is left alone: that program uses it now.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import apsw

from lnk.errors import Conflict, Corrupt, Full, LinkError, Refused, Unavailable, from_os
from lnk.folder import Folder
from lnk.memory import mapped
from lnk.memory.analyse import ANALYSIS
from lnk.memory.names import folded_name
from lnk.memory.parse import Parsed, columns
from lnk.memory.times import in_words

FILE: Final = "index.sqlite"
LOCK: Final = "index.lock"
VERSION: Final = 3
APPLICATION: Final = 0x4C4E4B4D  # "LNKM"
CHUNK_BITS: Final = 20
REMOVED_MAX: Final = 10_000

_BUSY_MS: Final = 10_000  # another process's transaction is over long before
_ROOM_BYTES: Final = 256 * 1024  # what an index and the files beside it need at the least
# Of pages, while there is work; when there is none it is given back (`rest`). A search is as quick with a part of it.
_CACHE_KIB: Final = 8192
_CACHE_READING_KIB: Final = 512
_SIDE_FILES: Final = ("", "-wal", "-shm", "-journal")
_ADD_WORDS: Final = "INSERT INTO words (rowid, title, body, extra) VALUES (?, ?, ?, ?)"
_BROKEN = (apsw.CorruptError, apsw.NotADBError)


class Newer(Conflict):
    """A newer program has put its own index in the place of ours."""


class Gone(Unavailable):
    """The folder that the index lies in is gone, and no index can be made in it any more."""


class Found(NamedTuple):
    """A file as a listing saw it: `stamp` tells whether it changed; times in ns; `left_out` says why it is not read."""

    path: str
    kind: str
    stamp: bytes
    bytes: int
    mtime_ns: int
    ctime_ns: int
    left_out: str | None


class Index:
    """One connection to the index, for one thread. `state` is the folder that it lies in."""

    def __init__(self, state: Folder, *, again: bool = False, writes: bool = True) -> None:
        """Opens the index, or makes it. Where there is none though its lock is there, it was deleted.

        `writes`: this connection writes more than facts. `again`: this program had it open before, and leaves a newer
        program's alone, for which it raises Newer. Raises Refused, Full or Unavailable where it cannot be opened.
        """
        self.state = state
        self._again = again
        self._cache_kib = _CACHE_KIB if writes else _CACHE_READING_KIB
        self.made_again: str | None = None
        with _made_one_at_a_time(state):
            self.db = self._open_or_make()
        self.inode = self._inode()

    def close(self) -> None:
        """Give the connection back; the last one over all processes folds the log into the file."""
        self.db.close()

    def rest(self) -> None:
        """Give back the memory that only saves reading again; nothing where it could not be opened again."""
        with contextlib.suppress(apsw.ConnectionClosedError):
            self.db.release_memory()

    @property
    def path(self) -> str:
        return f"{self.state.path}/{FILE}"

    def replaced(self) -> bool:
        """Whether the file was deleted, or made again by another process, since it was opened."""
        return self._inode() != self.inode

    def discard(self) -> None:
        """Throw the file away because it is damaged, unless another process has made it again already."""
        with _made_one_at_a_time(self.state):
            if not self.replaced():
                self._unlink()

    def _unlink(self) -> None:
        for side in _SIDE_FILES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(FILE + side, dir_fd=self.state.fd)
        mapped.forget(self.state)

    def _inode(self) -> int:
        with contextlib.suppress(OSError):
            found = self.state.stat(FILE)
            return found.st_ino if found else 0
        return 0

    # ------------------------------------------------------------ opening

    def _open_or_make(self) -> apsw.Connection:
        why = "it was deleted" if self.state.stat(LOCK) else None
        if self._inode():
            try:
                db = self._connect()
                why = _wrong(db)
                if why is None:
                    return db
                db.close()
            except _BROKEN:
                why = "it was damaged"
            except apsw.Error as error:
                raise translated(error, self.path) from None
        try:
            self._unlink()
            # Made here, so that its mode, which SQLite gives to the files beside it too, is ours.
            os.close(os.open(FILE, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self.state.fd))
            db = self._connect()
            self._make(db, why)
        except OSError as error:
            raise from_os(error, f"make the index in {self.state.path}") from None
        except apsw.Error as error:
            raise translated(error, self.path) from None
        self.made_again = why
        return db

    def _connect(self) -> apsw.Connection:
        path = os.path.realpath(self.state.path)
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
        db = apsw.Connection(f"{path}/{FILE}", flags=flags)
        db.set_busy_timeout(_BUSY_MS)
        if self._again:
            self._leave_newer(db)
        for pragma in (
            "trusted_schema=OFF",
            "cell_size_check=ON",
            "secure_delete=ON",
            "recursive_triggers=ON",
            "temp_store=MEMORY",
            f"cache_size=-{self._cache_kib}",
            "journal_mode=WAL",
            "synchronous=NORMAL",
        ):
            db.execute(f"PRAGMA {pragma}")
        return db

    def _leave_newer(self, db: apsw.Connection) -> None:
        """Raises Newer where the index is a newer program's, before anything is written to it."""
        version = int(db.pragma("user_version"))
        if db.pragma("application_id") == APPLICATION and version > VERSION:
            db.close()
            raise Newer(
                f"The index in {self.state.path} is a newer Link's by now (version {version}, and this one's is"
                f" {VERSION}) and is left as it is: end this session, and start it again."
            )

    def _make(self, db: apsw.Connection, why: str | None) -> None:
        schema = _schema()
        made = time.time_ns() // 1000
        facts = {"analysis": ANALYSIS, "clock": made, "made": made, "again": why, "name": os.urandom(6).hex()}
        with _transaction(db):
            db.execute(schema)
            db.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
            db.execute(f"PRAGMA application_id={APPLICATION}; PRAGMA user_version={VERSION}")
        os.close(os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self.state.fd))

    # ------------------------------------------------------------ reading

    def fact(self, name: str) -> Any:
        """The value of a fact, or None."""
        return self.value("SELECT value FROM facts WHERE name = ?", name)

    def set_fact(self, name: str, value: Any) -> None:
        """Keeps a fact."""
        self.db.execute(
            "INSERT INTO facts VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2 WHERE value IS NOT ?2",
            (name, value),
        )

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return list(self.db.execute(sql, values))

    def value(self, sql: str, *values: Any) -> Any:
        """The first value of a query's first row, or None."""
        return self.db.execute(sql, values).get

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What is read inside is of one moment. Raises Corrupt, Unavailable."""
        try:
            with self.db:
                yield
        except apsw.Error as error:
            raise translated(error, self.path) from None

    # ------------------------------------------------------------ writing

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the kernel lock under which the index is brought up to date: one process at a time."""
        with self.state.alone(LOCK):
            yield

    @contextmanager
    def writing(self, *, durable: bool = False) -> Iterator[None]:
        """One transaction. `durable`: on the disk when it ends, for what cannot be derived again. Raises Full, …"""
        try:
            self.db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            with _transaction(self.db):
                yield
        except apsw.Error as error:
            raise translated(error, self.path) from None

    def tick(self) -> int:
        """The index's time now, in microseconds: later than every time it gave before. Inside `writing`."""
        now = max(time.time_ns() // 1000, (self.fact("clock") or 0) + 1)
        self.set_fact("clock", now)
        return now

    def wait_for(self, found: Iterable[Found], seen: int) -> None:
        """Rows for files that are to be indexed, as first seen at `seen` (0: they were there before)."""
        self.db.executemany(
            "INSERT INTO documents (path, name, kind, title, stamp, bytes, changed, seen, noted, altered)"
            " VALUES (?, ?, ?, ?, x'', ?, ?, ?, ?, ?)",
            (
                (
                    *(one.path, folded_name(one.path), one.kind, "", one.bytes, one.mtime_ns // 10**9, seen, seen),
                    max(0, min(one.mtime_ns // 1000, time.time_ns() // 1000)),
                )
                for one in found
            ),
        )

    def read_later(self, paths: Iterable[str], *, anew: bool = False) -> None:
        """These documents wait to be read, with the text that they had until then; `anew`: though they are the same."""
        had = "x''" if anew else "digest"
        for path in paths:
            self.db.execute(
                f"UPDATE documents SET stamp = x'', left_out = NULL, digest = CASE WHEN left_out IS NULL"
                f" AND digest IS NOT NULL THEN {had} END WHERE path = ?",
                (path,),
            )
            self.db.execute("DELETE FROM removed WHERE path = ?", (path,))

    def put(self, documents: Iterable[tuple[Found, Parsed | None]], at: int) -> None:
        """The documents as they are now, in place of what was there. None: the file has the bytes that it had."""
        words: list[tuple[int, str, str, str]] = []
        for found, parsed in documents:
            if parsed is None:
                self._same(found)
            else:
                words += self._put(found, parsed, at)
        # Last and together: FTS5 writes out what it gathers whenever a statement with a trigger begins. And in order:
        # it does the same before each row whose number is lower than the last one's.
        words.sort()
        self.db.executemany(_ADD_WORDS, words)

    def _put(self, found: Found, parsed: Parsed, at: int) -> Iterator[tuple[int, str, str, str]]:
        """A document's row, chunks and links; its words, to be written."""
        had = self.db.execute("SELECT id, digest, left_out FROM documents WHERE path = ?", (found.path,)).fetchone()
        changed = max(0, min(found.mtime_ns, at * 1000)) // 10**9
        altered = max(0, min(at, max(found.mtime_ns, found.ctime_ns) // 1000))
        waited = had is not None and had[1] is None and had[2] is None
        if had is None:
            sql = (
                "INSERT INTO documents (path, name, kind, title, stamp, bytes, changed, seen, noted, altered)"
                " VALUES (?, ?, ?, '', x'', 0, 0, ?, ?, ?)"
            )
            self.db.execute(sql, (found.path, folded_name(found.path), found.kind, at, at, altered))
            self.db.execute("DELETE FROM removed WHERE path = ?", (found.path,))
            document = self.db.last_insert_rowid()
        else:
            document = had[0]
            if not waited:
                self._take_out(document)
        self.db.execute(
            "UPDATE documents SET title = ?, stamp = ?, bytes = ?, changed = ?, digest = ?, lines = ?, pages = ?,"
            " words = ?, sketch = ?, left_out = ? WHERE id = ?",
            (
                *(parsed.title, found.stamp, found.bytes, changed, parsed.digest, parsed.lines, parsed.pages),
                *(parsed.words, parsed.sketch, parsed.left_out, document),
            ),
        )
        if had is not None and not waited:
            self.db.execute("UPDATE documents SET noted = ?, altered = ? WHERE id = ?", (at, altered, document))
        first = document << CHUNK_BITS
        self.db.executemany(
            "INSERT INTO chunks VALUES (?, ?, ?)",
            ((first + number, chunk.first_line, chunk.text) for number, chunk in enumerate(parsed.chunks)),
        )
        self.db.executemany(
            "INSERT INTO links VALUES (?, ?, ?, ?, ?)",
            ((document, number, link.line, link.written, link.wiki) for number, link in enumerate(parsed.links)),
        )
        self.db.executemany(
            "INSERT INTO link_targets VALUES (?, ?, ?, ?, ?)",
            (
                (document, number, rank, target, folded_name(target))
                for number, link in enumerate(parsed.links)
                for rank, target in enumerate(link.targets)
            ),
        )
        day = in_words(changed)
        return (
            (first + number, f"{title} {day}", body, extra) for number, (title, body, extra) in enumerate(parsed.rows)
        )

    def _same(self, found: Found) -> None:
        changed = max(0, min(found.mtime_ns, time.time_ns())) // 10**9
        ((document, before),) = self.rows("SELECT id, changed FROM documents WHERE path = ?", found.path)
        again = in_words(before) != in_words(changed)
        if again:
            self._take_words(document)
        self.db.execute("UPDATE documents SET stamp = ?, changed = ? WHERE id = ?", (found.stamp, changed, document))
        if again:
            self.db.executemany(_ADD_WORDS, self._words(document))

    def drop(self, paths: Sequence[str], at: int) -> None:
        """These files are gone: only path and title stay, among the latest REMOVED_MAX."""
        for path in paths:
            row = self.db.execute(
                "SELECT id, title, kind, left_out IS NULL AND digest IS NOT NULL FROM documents WHERE path = ?", (path,)
            ).fetchone()
            if row is None:
                continue
            document, title, kind, indexed = row
            self._take_out(document)
            self.db.execute("DELETE FROM documents WHERE id = ?", (document,))
            if indexed:
                self.db.execute(
                    "INSERT INTO removed VALUES (?, ?, ?, ?) ON CONFLICT (path) DO UPDATE SET"
                    " title = excluded.title, kind = excluded.kind, removed = excluded.removed",
                    (path, title, kind, at),
                )
        over = (self.value("SELECT count(*) FROM removed") or 0) - REMOVED_MAX
        if over > 0:
            self.db.execute(
                "DELETE FROM removed WHERE path IN (SELECT path FROM removed ORDER BY removed, path LIMIT ?)", (over,)
            )

    def _take_out(self, document: int) -> None:
        """A document's chunks, words and links. FTS5 must be told the words that it was given to take them out."""
        first, last = document << CHUNK_BITS, (document + 1 << CHUNK_BITS) - 1
        self._take_words(document)
        self.db.execute("DELETE FROM chunks WHERE id BETWEEN ? AND ?", (first, last))
        self.db.execute("DELETE FROM links WHERE document = ?", (document,))
        self.db.execute("DELETE FROM link_targets WHERE document = ?", (document,))

    def _take_words(self, document: int) -> None:
        sql = "INSERT INTO words (words, rowid, title, body, extra) VALUES ('delete', ?, ?, ?, ?)"
        self.db.executemany(sql, self._words(document))

    def _words(self, document: int) -> list[tuple[int, str, str, str]]:
        """A document's rows in `words`, as they were and are made from its chunks."""
        rows = self.rows(
            "SELECT chunks.id, title, path, text, changed FROM chunks JOIN documents ON documents.id = ?1"
            " WHERE chunks.id BETWEEN ?1 << ?2 AND ((?1 + 1) << ?2) - 1",
            document,
            CHUNK_BITS,
        )
        return [(row[0], *_columns(*row)) for row in rows]

    def analyse_again(self) -> None:
        """All words made again from the chunks, for an index whose words another analysis gave."""
        self.db.execute("INSERT INTO words (words) VALUES ('delete-all')")
        for (document,) in self.rows("SELECT id FROM documents ORDER BY id"):
            self.db.executemany(_ADD_WORDS, self._words(document))
        self.set_fact("analysis", ANALYSIS)

    def clear(self) -> None:
        """Everything to be indexed again: what is derived goes, first-seen times and the removed list stay."""
        self.db.execute("INSERT INTO words (words) VALUES ('delete-all')")
        self.db.execute("DELETE FROM chunks; DELETE FROM links; DELETE FROM link_targets")
        self.db.execute("UPDATE documents SET stamp = x'', digest = NULL, left_out = NULL, sketch = NULL, words = 0")

    def overwrite(self) -> bool:
        """Nothing deleted stays in the log beside the file; False where somebody reads it just now. Raises Full, …"""
        self.db.set_busy_timeout(0)
        try:
            self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.BusyError, apsw.LockedError):
            return False
        except apsw.Error as error:
            raise translated(error, self.path) from None
        finally:
            self.db.set_busy_timeout(_BUSY_MS)
        return True


def _columns(chunk: int, title: str, path: str, text: str, changed: int) -> tuple[str, str, str]:
    """The words of a chunk: the day of its document's change stands with the title."""
    named, body, extra = columns(title, path, chunk & (1 << CHUNK_BITS) - 1, text)
    return f"{named} {in_words(changed)}", body, extra


def translated(error: apsw.Error, path: str) -> LinkError:
    """SQLite's error as one of ours, saying what to do."""
    if isinstance(error, _BROKEN):
        return Corrupt(f"The index {path} is damaged; it is made again by itself, or by `lnk agent memory reindex`.")
    if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and _no_room(path)):
        return Full(f"The disk that holds the index {path} is full; free some space and ask again.")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return Unavailable(f"The index {path} is locked by another program; ask again in a moment.")
    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError | apsw.AuthError):
        return Refused(f"The index {path} cannot be opened for writing; check the folder's owner and mode.")
    if isinstance(error, apsw.InterruptError):
        return Conflict("The call was cancelled.")
    return Unavailable(f"The index {path} could not be used: {error}.")


def _no_room(path: str) -> bool:
    """Whether the disk has no room: SQLite tells of some such failures only that there was one."""
    try:
        found = os.statvfs(os.path.dirname(path))
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _ROOM_BYTES


def _wrong(db: apsw.Connection) -> str | None:
    """Why this file is not an index of this version, or None where it is."""
    application = db.pragma("application_id")
    version = db.pragma("user_version")
    if application == 0 and version == 0:
        return "it was not finished"
    if application != APPLICATION:
        return "it was another program's file"
    if version != VERSION:
        return f"it was of version {version}, and this program's is {VERSION}"
    db.execute("SELECT value FROM facts WHERE name = 'name'").get  # noqa: B018
    db.execute("SELECT count(*) FROM documents WHERE id < 2").get  # noqa: B018
    return None


def _schema() -> str:
    with open(__file__.rpartition("/")[0] + "/schema.sql", encoding="utf-8") as file:
        return file.read()


@contextmanager
def _transaction(db: apsw.Connection) -> Iterator[None]:
    """One transaction. SQLite ends it by itself on a full disk: then there is nothing to roll back."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


@contextmanager
def _made_one_at_a_time(state: Folder) -> Iterator[None]:
    """Two processes that start at once make one index: the folder's kernel lock, held for the opening alone."""
    try:
        with state.locked():
            yield
    except OSError as error:
        raise from_os(error, f"lock the folder {state.path}") from None
