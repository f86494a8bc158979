"""A zip archive that may be hostile: its parts by name, within limits on their number, their size and their ratio."""

import codecs
import io
import zipfile
import zlib
from itertools import pairwise
from typing import Final

from lnk.documents.content import BOMB, DAMAGED, ENCRYPTED, OLD_FORMAT, LeftOut

PARTS_MAX: Final = 10_000
PART_BYTES_MAX: Final = 64 << 20
TOTAL_BYTES_MAX: Final = 128 << 20  # of all parts that are read
RATIO_MAX: Final = 200  # a real repetitive file has 30, a bomb 1,000
RATIO_FROM_BYTES: Final = 1 << 20
_ENCRYPTED_BIT: Final = 1
_WAYS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may ask for any amount of memory
_ENTRY: Final = b"PK\x01\x02"  # begins each line of the directory
_HEADER_BYTES: Final = 30  # stands before each part, at least
_BROKEN: Final = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError, RuntimeError)

# What Office wrote before it wrote archives, and writes around an archive that it encrypts: a container of streams.
_CONTAINER: Final = b"\xd0\xcf\x11\xe0"
_ENCRYPTED_STREAM: Final = "EncryptedPackage".encode("utf-16-le")
_OLD_STREAMS: Final = tuple(
    name.encode("utf-16-le") for name in ("WordDocument", "Workbook", "Book", "PowerPoint Document")
)

codecs.lookup("cp437")  # of names that are not UTF-8; later it could not be loaded


class Archive:
    """The parts of a zip archive. What its directory says is believed only as far as it is less than allowed.

    Of a name, `\\` is `/`, and one that is not there as it is written is found in other case.
    """

    def __init__(self, data: bytes) -> None:
        """Raises LeftOut where it is no archive, has too many parts, or parts that lie over one another."""
        if data.startswith(_CONTAINER):
            raise LeftOut(_container(data))
        if data.count(_ENTRY) > PARTS_MAX:  # before each becomes an object
            raise LeftOut(BOMB)
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (*_BROKEN, IndexError, KeyError):
            raise LeftOut(DAMAGED) from None
        parts = self._zip.infolist()
        if _overlap(parts, self._zip.start_dir):
            raise LeftOut(DAMAGED)
        self._parts: dict[str, zipfile.ZipInfo] = {}
        self._twice: set[str] = set()
        for part in parts:
            name = part.filename.replace("\\", "/").lstrip("/")
            if (other := self._parts.setdefault(name, part)) is not part and _differ(part, other):
                self._twice.add(name)
        self._folded = {name.lower(): name for name in reversed(self._parts)}
        self._left = TOTAL_BYTES_MAX

    @property
    def names(self) -> list[str]:
        """The names of all parts, in the archive's order."""
        return list(self._parts)

    def __contains__(self, name: str) -> bool:
        return name in self._parts or name.lower() in self._folded

    def read(self, name: str) -> bytes:
        """One part, whole. Raises LeftOut where it is not there, is there twice, encrypted, damaged or a bomb."""
        if name not in self._parts:
            name = self._folded.get(name.lower(), name)
        part = self._parts.get(name)
        if part is None or name in self._twice:
            raise LeftOut(DAMAGED)
        if part.flag_bits & _ENCRYPTED_BIT:
            raise LeftOut(ENCRYPTED)
        if part.compress_type not in _WAYS:
            raise LeftOut(DAMAGED)
        most = min(PART_BYTES_MAX, self._left, max(RATIO_FROM_BYTES, part.compress_size * RATIO_MAX))
        if part.file_size > most:
            raise LeftOut(BOMB)
        try:
            with self._zip.open(part) as file:
                data = file.read(most + 1)
        except _BROKEN:
            raise LeftOut(DAMAGED) from None
        if len(data) != part.file_size:
            raise LeftOut(DAMAGED)
        self._left -= len(data)
        return data


def _container(data: bytes) -> str:
    """Why a container of streams is left out."""
    if _ENCRYPTED_STREAM in data:
        return ENCRYPTED
    return OLD_FORMAT if any(name in data for name in _OLD_STREAMS) else DAMAGED


def _overlap(parts: list[zipfile.ZipInfo], directory: int) -> bool:
    """Whether one byte of the archive belongs to two parts, or to one and the directory, which begins there."""
    spans = sorted((part.header_offset, part.header_offset + _HEADER_BYTES + part.compress_size) for part in parts)
    spans.append((directory, directory))
    return any(end > begin for (_, end), (begin, _) in pairwise(spans))


def _differ(one: zipfile.ZipInfo, other: zipfile.ZipInfo) -> bool:
    return (one.CRC, one.file_size) != (other.CRC, other.file_size)
