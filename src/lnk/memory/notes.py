"""The agent's notes: one Markdown file, a line a note, kept in mind in every conversation.

The one file that the engine changes. Read afresh before each change, and written whole in one step, so that what
a person wrote in it by hand stays byte for byte. A line is what LF ends, nothing else.
"""

import errno
import os
from typing import Final, NamedTuple

from lnk.contract.spec import format_size
from lnk.errors import Conflict, Full, Invalid, Missing, Refused, from_os
from lnk.folder import Folder, read_all

FILE_BYTES_MAX: Final = 1 << 20
SHOWN_LINES: Final = 20  # of lines that all hold a text, or of notes where none does
SHOWN_CHARS: Final = 200
TRIES: Final = 5  # when the file is changed by hand between reading and writing


class Kept(NamedTuple):
    """The whole notes after a write, their bytes, and the most that they may hold."""

    notes: str
    bytes: int
    of: int


class Notes:
    """The notes file `path`, at most `limit` bytes after a write."""

    def __init__(self, path: str, limit: int) -> None:
        self._folder_path, _, self._name = path.rpartition("/")
        if not self._name or self._name in (".", "..") or not self._folder_path:
            raise Invalid(f"The notes file {path!r} is not the absolute path of a file.")
        self.limit = limit

    def sweep(self) -> None:
        """Take away what a write that a crash cut short left behind."""
        try:
            with self._folder() as folder, folder.locked():
                folder.sweep(self._name)
        except (Missing, Refused, OSError):
            return  # said when it matters: at the next read or write

    def text(self) -> str:
        """The notes as they are now; empty where there is no file yet. Raises Refused, Full, Unavailable."""
        try:
            with self._folder() as folder:
                return (folder.read(self._name, FILE_BYTES_MAX) or b"").decode("utf-8", "replace")
        except Missing:
            return ""

    def remember(self, note: str | None, replaces: str | None, forget: str | None) -> Kept:
        """Add a line, change the one line that holds `replaces`, or forget the one that holds `forget`.

        Raises Invalid, Missing or Conflict (no line, several), Full, Refused, Unavailable; the file is then as it was.
        """
        if forget is not None and (note is not None or replaces is not None):
            raise Invalid("Give note alone to add, note and replaces to change, or forget alone to remove one line.")
        if note is None and forget is None:
            raise Invalid("Give note (the line to add), or forget (a piece of the line to remove).")
        line = None if note is None else _line(note)
        sought = replaces if replaces is not None else forget
        if sought is not None and not sought.strip():
            raise Invalid("The text to look for is blank, which every line holds; give a piece of the one line meant.")
        try:
            with self._folder() as folder, folder.locked():
                for _ in range(TRIES):
                    data, was = self._read(folder)
                    changed = self._changed(data, line, sought)
                    try:
                        folder.replace(self._name, changed, unless_changed=was)
                    except Conflict:
                        continue  # changed by hand meanwhile: what it holds now is what we change
                    return Kept(changed.decode("utf-8", "replace"), len(changed), self.limit)
        except OSError as error:
            raise from_os(error, f"lock the folder {self._folder_path}") from None
        raise Conflict("The notes are being changed by another program; nothing was written, try again.")

    def _folder(self) -> Folder:
        """The notes' folder, reached through its parent, which need not be listed (mode 0711)."""
        parent, _, name = self._folder_path.rpartition("/")
        with Folder.open(parent or "/", passage=True) as passage:
            try:
                return passage.folder(name) if name else Folder.open("/")
            except OSError as error:
                if error.errno == errno.ENOTDIR and os.path.islink(self._folder_path):
                    error = OSError(errno.ELOOP, "")
                raise from_os(error, f"open the notes' folder {self._folder_path}") from None

    def _read(self, folder: Folder) -> tuple[bytes, os.stat_result | None]:
        try:
            fd, found = folder.open_file(self._name)
        except FileNotFoundError:
            return b"", None
        except OSError as error:
            raise from_os(error, f"read {self._folder_path}/{self._name}") from None
        try:
            data = read_all(fd, FILE_BYTES_MAX)
        except OSError as error:
            raise from_os(error, f"read {self._folder_path}/{self._name}") from None
        finally:
            os.close(fd)
        if len(data) > FILE_BYTES_MAX:
            raise Full(f"{self._name} is over {format_size(FILE_BYTES_MAX)}; shorten it by hand.")
        return data, found

    def _changed(self, data: bytes, line: bytes | None, sought: str | None) -> bytes:
        """The notes after the change. Raises as `remember` says."""
        if sought is None:
            assert line is not None
            changed = _added(data, line)
        else:
            start, end = _found(data, sought)
            if line is None:
                changed = data[:start] + data[end:]
            else:
                ending = b"\r\n" if data[start:end].endswith(b"\r\n") else b"\n" if data[:end].endswith(b"\n") else b""
                changed = data[:start] + line + ending + data[end:]
        if len(changed) > self.limit and len(changed) >= len(data):
            raise Full(self._no_room(len(data), len(changed)))
        return changed

    def _no_room(self, size: int, would: int) -> str:
        most = f"the notes hold at most {self.limit:,} bytes ({format_size(self.limit)})"
        if size > self.limit:
            over = size - self.limit
            return (
                f"Nothing was written: {most} and have {size:,}, {over:,} too many already;"
                " forget or shorten some lines first."
            )
        return (
            f"Nothing was written: {most}, have {size:,}, and would have {would:,};"
            f" {self.limit - size:,} bytes are free."
            " Write it shorter, or forget a line first."
        )


def _line(note: str) -> bytes:
    """A note as its line, without the line end. Raises Invalid for a blank one."""
    text = " ".join(note.replace("\0", " ").splitlines()).strip()
    if not text or text in ("-", "*"):
        raise Invalid("The note is blank; give what to remember.")
    return (text if text.startswith("- ") else f"- {text}").encode("utf-8", "replace")


def _added(data: bytes, line: bytes) -> bytes:
    ending = b"\r\n" if data.endswith(b"\r\n") else b"\n"
    if data and not data.endswith(b"\n"):
        data += ending
    return data + line + ending


def _found(data: bytes, sought: str) -> tuple[int, int]:
    """Where the one line that holds `sought` begins and ends, its line end included."""
    lines = _spans(data)
    exact = sought.encode("utf-8", "replace")
    holding = [span for span in lines if exact in data[span[0] : span[1]]]
    if not holding:
        folded = sought.casefold()
        holding = [span for span in lines if folded in data[span[0] : span[1]].decode("utf-8", "replace").casefold()]
    if len(holding) == 1:
        return holding[0]
    shown = _shown(data, holding or [span for span in lines if data[span[0] : span[1]].strip()])
    if holding:
        raise Invalid(f"{len(holding)} lines hold that text; give more of the one that is meant:\n{shown}")
    raise Missing(f"No line of the notes holds that text. They are:\n{shown}" if shown else "There are no notes yet.")


def _spans(data: bytes) -> list[tuple[int, int]]:
    spans, start = [], 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        spans.append((start, end))
        start = end
    return spans


def _shown(data: bytes, spans: list[tuple[int, int]]) -> str:
    lines = [
        data[start:end].decode("utf-8", "replace").strip("\r\n")[:SHOWN_CHARS] for start, end in spans[:SHOWN_LINES]
    ]
    if len(spans) > SHOWN_LINES:
        lines.append(f"… and {len(spans) - SHOWN_LINES} more")
    return "\n".join(lines)


def prompt_text(notes: str, most: int) -> str:
    """The notes as they stand in a prompt: whole up to `most` bytes, else cut at a line, and that said.

    A single line that is longer is cut at a character.
    """
    data = notes.encode("utf-8", "replace")
    if len(data.removesuffix(b"\n")) <= most:
        return notes
    kept = data[: data.rfind(b"\n", 0, most + 1) + 1] or data[:most]
    text = kept.decode("utf-8", "ignore").rstrip("\n")
    return (
        f"{text}\n(cut: the notes hold {len(data):,} bytes, and {most:,} are shown; `read` notes.md gives the rest)\n"
    )
