"""A model's vectors as a file beside the index, mapped into memory: a large folder's are there at once, and shared.

A cache only: what is in it is in the index too, and whatever is found in it is looked up there. One that is of another
index or model, cut short, or not there is made again. A vector whose chunk is gone is overwritten in its place.
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lnk.errors import from_os
from lnk.folder import Folder, write_all

if TYPE_CHECKING:
    import numpy as np

MAGIC: Final = b"LNKVEC1\n"
_HEAD = struct.Struct("<8s16sIIQ24x")  # 64 bytes: the magic, the index's name, model, dims, rows
_FIXED_BYTES: Final = 8 + 8 + 4  # of a row: its id, its document, one through its length


class Told(NamedTuple):
    """Whose vectors a file holds: the index's random name, the model's id in it, and how many numbers each has."""

    name: str
    model: int
    dims: int

    @property
    def file(self) -> str:
        return f"vectors-{self.model}.cache"


class Part(NamedTuple):
    """Rows in the order of their ids: `rows` int8 (n x dims), `ids` and `documents` int64, `shorten` float32."""

    rows: "np.ndarray[Any, Any]"
    ids: "np.ndarray[Any, Any]"
    documents: "np.ndarray[Any, Any]"
    shorten: "np.ndarray[Any, Any]"


def opened(state: Folder, told: Told) -> Part | None:
    """The mapped file, or None where there is none that fits."""
    import numpy as np

    try:
        fd, found = state.open_file(told.file)
    except OSError:
        return None
    try:
        count = _rows_of(os.pread(fd, _HEAD.size, 0), found.st_size, told)
        if not count:
            return None
        held = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    at = _HEAD.size
    ids = np.frombuffer(held, np.int64, count, at)
    documents = np.frombuffer(held, np.int64, count, at + 8 * count)
    shorten = np.frombuffer(held, np.float32, count, at + 16 * count)
    rows = np.frombuffer(held, np.int8, count * told.dims, at + _FIXED_BYTES * count)
    return Part(rows.reshape(count, told.dims), ids, documents, shorten)


def write(state: Folder, told: Told, parts: Iterable[Part]) -> None:
    """The file made of `parts`, which follow each other by their ids, in place of what was there. Raises Full, …"""
    import numpy as np

    found = list(parts)
    count = sum(len(part.ids) for part in found)
    fresh = f".{told.file}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(fresh, flags, 0o600, dir_fd=state.fd)
        try:
            write_all(fd, _HEAD.pack(MAGIC, told.name.encode(), told.model, told.dims, count))
            for each in ("ids", "documents", "shorten", "rows"):
                for part in found:
                    write_all(fd, np.ascontiguousarray(getattr(part, each)).data.cast("B"))
            os.fsync(fd)  # nobody could tell a file that a power cut left with holes from a whole one
        finally:
            os.close(fd)
        os.rename(fresh, told.file, src_dir_fd=state.fd, dst_dir_fd=state.fd)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(fresh, dir_fd=state.fd)
        raise from_os(error, f"write {state.path}/{told.file}") from None


def forget(state: Folder) -> None:
    """Take all of them away: the index that they belong to is gone."""
    for name in os.listdir(state.fd):
        if name.startswith(("vectors-", ".vectors-")):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=state.fd)


def blank(state: Folder, told: Told, ids: Sequence[int]) -> None:
    """The vectors of these ids overwritten with nothing, for whoever has the file mapped too."""
    import numpy as np

    part = opened(state, told)
    if part is None or not ids:
        return
    wanted = np.asarray(ids, np.int64)
    places = np.searchsorted(part.ids, wanted)
    places = places[(places < len(part.ids)) & (part.ids[np.minimum(places, len(part.ids) - 1)] == wanted)]
    try:
        fd = os.open(told.file, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=state.fd)
        try:
            first = _HEAD.size + _FIXED_BYTES * len(part.ids)
            for place in places:
                os.pwrite(fd, bytes(told.dims), first + int(place) * told.dims)
        finally:
            os.close(fd)
    except OSError as error:
        raise from_os(error, f"write {state.path}/{told.file}") from None


def _rows_of(head: bytes, size: int, told: Told) -> int:
    """How many rows the file has; 0 where it is not what it should be."""
    if len(head) < _HEAD.size:
        return 0
    magic, index, model, dims, count = _HEAD.unpack(head)
    same = (magic, index.rstrip(b"\0"), model, dims) == (MAGIC, told.name.encode(), told.model, told.dims)
    return count if same and size == _HEAD.size + (_FIXED_BYTES + dims) * count else 0
