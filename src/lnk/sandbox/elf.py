"""Where a program's file says that its shared libraries lie, beside the folders of the system."""

import os
import struct
from typing import Final

MAGIC: Final = b"\x7fELF"
HEADERS_MAX: Final = 64  # a real file has some ten
ENTRIES_BYTES_MAX: Final = 1 << 14
STRING_BYTES_MAX: Final = 4096
_IS_64: Final = 2
_LITTLE: Final = 1
_LOADED, _DYNAMIC = 1, 2  # kinds of a part
_END, _STRINGS, _FIRST_PATHS, _PATHS = 0, 5, 15, 29  # kinds of a dynamic entry: DT_NULL, STRTAB, RPATH, RUNPATH


def library_folders(path: str) -> list[str]:
    """The folders, absolute, that the program's or library's file names; none for a file that is not a 64-bit ELF."""
    try:
        with open(path, "rb", buffering=0) as file:
            named = _named(file.fileno())
    except (OSError, OverflowError, struct.error):
        return []
    origin = os.path.dirname(os.path.realpath(path))
    folders = [each.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for each in named]
    return [os.path.normpath(each) for each in folders if os.path.isabs(each)]


def _named(fd: int) -> list[str]:
    head = os.pread(fd, 64, 0)
    if len(head) < 64 or head[:4] != MAGIC or head[4] != _IS_64 or head[5] != _LITTLE:
        return []
    at, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    loaded, dynamic = [], b""
    for number in range(min(count, HEADERS_MAX)):
        part = os.pread(fd, 56, at + number * size)
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", part)
        if kind == _LOADED:
            loaded.append((address, offset, length))
        elif kind == _DYNAMIC:
            dynamic = os.pread(fd, min(length, ENTRIES_BYTES_MAX), offset)
    entries: dict[int, int] = {}
    for kind, value in struct.iter_unpack("<QQ", dynamic[: len(dynamic) // 16 * 16]):
        if kind == _END:
            break
        entries[kind] = value
    name = entries.get(_PATHS, entries.get(_FIRST_PATHS))
    strings = entries.get(_STRINGS)
    if name is None or strings is None:
        return []
    within = [offset + strings - start for start, offset, length in loaded if start <= strings < start + length]
    if not within:
        return []
    text = os.pread(fd, STRING_BYTES_MAX, within[0] + name).partition(b"\0")[0]
    return [os.fsdecode(each) for each in text.split(b":") if each]
