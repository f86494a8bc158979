"""What a folder holds: every file that may be a document, each folder opened by its handle, no link followed."""

import contextlib
import errno
import os
import stat
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from lnk.documents.content import FILE_BYTES_MAX, KINDS, NEEDS_OFFICE, OLD_ENDINGS, OLD_FORMAT
from lnk.folder import FOLDER, Folder, open_beneath
from lnk.memory.index import Found
from lnk.memory.names import ROOTS, key
from lnk.memory.text import BINARY_ENDINGS

DEPTH_MAX: Final = 100  # folders in folders; each holds a descriptor while it is listed
PATH_BYTES_MAX: Final = 4000  # the kernel takes 4,095 at once
IGNORE_FILE: Final = ".memoryignore"
IGNORE_BYTES_MAX: Final = 1 << 20
CONVERSATION: Final = "conversation.md"

TOO_LARGE: Final = "it is over 32 MiB"
NOT_UTF8: Final = "its name is not UTF-8"
TOO_DEEP: Final = f"it lies more than {DEPTH_MAX} folders deep, or its path is too long"
BY_NAME: Final = "by its name it is no text"

RACY_NS: Final = 50_000_000  # a file changed so shortly before it was read may change again under the same stamp

NOTHING: Final[Mapping[str, bytes]] = {}

_STAMP = struct.Struct("<QQQQ")
_64_BITS: Final = (1 << 64) - 1  # a file's time may lie before 1970, or so late that its nanoseconds need more
_SKIPPED_FOLDERS: Final = frozenset(("node_modules", "__pycache__"))
_TEMPORARY_ENDINGS: Final = (".swp", ".swo", ".swx", ".tmp", ".part", ".crdownload")


def stamp(found: os.stat_result) -> bytes:
    """What tells whether a file changed: size, mtime, ctime and inode. Any of them alone has been seen to lie."""
    return _STAMP.pack(found.st_size, found.st_mtime_ns & _64_BITS, found.st_ctime_ns & _64_BITS, found.st_ino)


def unwanted(name: str) -> str | None:
    """Why a file or folder of this name is left out unseen, or None."""
    if name[0] == ".":
        return "hidden"
    if name[-1] == "~" or name.startswith("~$") or name.endswith(_TEMPORARY_ENDINGS):
        return "temporary"
    if name in _SKIPPED_FOLDERS:
        return "of a program"
    return None


class Report:
    """What a walk met beside files: what was left out and how often, and folders that could not be read."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.unreadable: dict[str, str] = {}
        self.failed: dict[str, str] = {}  # what could not be looked at just now: the next look tries again
        self.shared: dict[str, bytes] = {}  # files with other names too, which may change from there
        self.same: set[str] = set()  # files that are as they are known, of which the walk says no more

    def cannot_read(self, path: str, error: OSError) -> None:
        """A folder that cannot be read: for want of a right, until that changes; else just now."""
        self.unreadable[path] = error.strerror or "it could not be read"
        if not lasting(error):
            self.failed[path] = self.unreadable[path]


def lasting(error: OSError) -> bool:
    """Whether a file or folder cannot be read until somebody changes its mode or owner, which the kernel tells."""
    return error.errno in (errno.EACCES, errno.EPERM)


class Source:
    """One part of what is indexed: the documents beneath `memory/`, or the conversations beneath `chats/`."""

    def __init__(self, kind: str, path: str) -> None:
        self.kind = kind
        self.path = path
        self.root = ROOTS[kind]
        self.prefix = self.root + "/"
        self._ignore: Any = None
        self._known: Mapping[str, bytes] = NOTHING

    def open(self) -> Folder:
        """The folder, by its handle. Raises Missing, Refused, Unavailable."""
        return Folder.open(self.path)

    def read_ignore(self, folder: Folder) -> None:
        """Take up the rules of `.memoryignore` as they are now."""
        data = folder.read(IGNORE_FILE, IGNORE_BYTES_MAX) if self.kind == "document" else None
        if not data:
            self._ignore = None
            return
        from pathspec import GitIgnoreSpec  # 30 ms, for those who have such a file

        patterns: list[Any] = []
        for line in data.decode("utf-8", "replace").splitlines():
            with contextlib.suppress(Exception):  # a line that is no pattern costs itself alone
                patterns.extend(GitIgnoreSpec.from_lines([line]).patterns)
        self._ignore = GitIgnoreSpec(patterns)

    def ignored(self, path: str, *, folder: bool = False) -> bool:
        """Whether `.memoryignore` leaves out `path`, given relative to the folder."""
        return self._ignore is not None and self._ignore.match_file(path + "/" if folder else path)

    def walk(
        self,
        folder: Folder,
        report: Report,
        entered: Callable[[int, str], None],
        at: str = "",
        known: Mapping[str, bytes] = NOTHING,
    ) -> Iterator[Found]:
        """Every file of the folder, or beneath `at` in it, but for those whose stamp is `known`.

        `entered` hears of each folder before it is listed.
        """
        self._known = known
        if at and not self.wanted(at):
            return
        if self.kind == "conversation":
            yield from self._conversations(folder, report, entered, at)
        else:
            yield from self._documents(folder, report, entered, at)

    def look(self, folder: Folder, path: str, report: Report) -> Found | None:
        """The one file `path`, given relative to the folder, or None where there is none to index. Raises OSError."""
        parts = path.split("/")
        if self.kind == "conversation":
            if len(parts) != 2 or parts[1] != CONVERSATION or unwanted(parts[0]):
                return None
        elif any(unwanted(part) for part in parts):
            return None
        self._known = NOTHING
        found = folder.stat(path)
        return None if found is None else self._file(path, found, report)

    def wanted(self, folder: str) -> bool:
        """Whether the folder at this path, given relative to ours, is one that is entered."""
        return not any(unwanted(part) for part in folder.split("/")) and not self.ignored(folder, folder=True)

    def blocked(self, report: Report) -> list[Found]:
        """Folders that could not be read, as entries of their own."""
        return [
            _out(self, path[len(self.prefix) :] + "/", f"it cannot be read: {reason}")
            for path, reason in report.unreadable.items()
            if path != self.root
        ]

    # ------------------------------------------------------------ inside

    def _documents(
        self, folder: Folder, report: Report, entered: Callable[[int, str], None], at: str
    ) -> Iterator[Found]:
        waiting: list[tuple[str, int]] = []
        if not at:
            waiting.append(("", 0))
        elif (out := self._folder(at, at.count("/"), report, waiting)) is not None:
            yield out
        while waiting:
            path, depth = waiting.pop()
            handle = self._enter(folder, path, report)
            if handle is not None:
                try:
                    prefix = path + "/" if path else ""
                    yield from self._list(handle, prefix, depth, report, entered, waiting)
                finally:
                    os.close(handle)

    def _enter(self, folder: Folder, path: str, report: Report) -> int | None:
        try:
            return open_beneath(folder.fd, path, FOLDER) if path else os.dup(folder.fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EXDEV):
                return None  # gone or swapped for a link since it was listed
            report.cannot_read((self.prefix + path).rstrip("/"), error)
            return None

    def _list(
        self,
        handle: int,
        prefix: str,
        depth: int,
        report: Report,
        entered: Callable[[int, str], None],
        folders: list[tuple[str, int]],
    ) -> Iterator[Found]:
        entered(handle, prefix)
        try:
            entries = list(os.scandir(handle))
        except OSError as error:
            report.cannot_read((self.prefix + prefix).rstrip("/"), error)
            return
        for entry in entries:
            if reason := unwanted(entry.name):
                report.left_out[reason] += 1
                continue
            path = prefix + entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    found = self._folder(path, depth, report, folders)
                elif entry.is_symlink():
                    report.left_out["link"] += 1
                    continue
                else:
                    found = self._file(path, entry.stat(follow_symlinks=False), report)
            except FileNotFoundError:
                continue
            except OSError as error:  # the folder may be listed but not entered
                report.cannot_read((self.prefix + prefix).rstrip("/"), error)
                return
            if found is not None:
                yield found

    def _folder(self, path: str, depth: int, report: Report, folders: list[tuple[str, int]]) -> Found | None:
        """A folder to enter, or why it is not entered."""
        if not _is_text(path):
            return _out(self, path + "/", NOT_UTF8)
        if self.ignored(path, folder=True):
            report.left_out["in " + IGNORE_FILE] += 1
        elif depth >= DEPTH_MAX or len(os.fsencode(path)) > PATH_BYTES_MAX:
            return _out(self, path + "/", TOO_DEEP)
        else:
            folders.append((path, depth + 1))
        return None

    def _file(self, path: str, found: os.stat_result, report: Report) -> Found | None:
        if not stat.S_ISREG(found.st_mode):
            report.left_out["link" if stat.S_ISLNK(found.st_mode) else "no regular file"] += 1
            return None
        if self._ignore is not None and self.ignored(path):
            report.left_out["in " + IGNORE_FILE] += 1
            return None
        mark = stamp(found)
        if found.st_nlink > 1:
            report.shared[path] = mark
        name = key(self.prefix + path)
        if self._known.get(name) == mark:
            report.same.add(name)
            return None
        reason = None
        if found.st_size > FILE_BYTES_MAX:
            reason = TOO_LARGE
        elif not path.isascii() and not _is_text(path):
            reason = NOT_UTF8
        else:
            reason = _by_ending(path.rpartition(".")[2].lower())
        size, mtime, ctime = found.st_size, found.st_mtime_ns, found.st_ctime_ns
        return Found(name, self.kind, mark, size, mtime, ctime, reason)

    def _conversations(
        self, folder: Folder, report: Report, entered: Callable[[int, str], None], at: str
    ) -> Iterator[Found]:
        if not at:
            entered(folder.fd, "")
        try:
            names = [at.split("/")[0]] if at else [entry.name for entry in os.scandir(folder.fd)]
        except OSError as error:
            report.cannot_read(self.root, error)
            return
        for name in names:
            if reason := unwanted(name):
                report.left_out[reason] += 1
                continue
            try:
                handle = os.open(name, FOLDER, dir_fd=folder.fd)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                    report.cannot_read(self.prefix + name, error)
                continue
            try:
                entered(handle, name + "/")
                found = os.stat(CONVERSATION, dir_fd=handle, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                report.cannot_read(self.prefix + name, error)
                continue
            finally:
                os.close(handle)
            if (file := self._file(f"{name}/{CONVERSATION}", found, report)) is not None:
                yield file


def _out(source: Source, path: str, reason: str) -> Found:
    """A folder that is not entered, as an entry of its own."""
    return Found(key(source.prefix + path), source.kind, b"-", 0, 0, 0, reason)


def _by_ending(ending: str) -> str | None:
    """Why a file with this ending is not read, or None where it is looked at what it is."""
    if ending in BINARY_ENDINGS:
        return BY_NAME
    if ending in OLD_ENDINGS:
        return OLD_FORMAT
    return None if ending not in KINDS or KINDS[ending].there() else NEEDS_OFFICE


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
