"""A zip archive that may be hostile: its parts by name, within limits on their number, their size and their ratio."""

import io
import zipfile
import zlib
from typing import Final

from lnk.documents.content import BOMB, DAMAGED, ENCRYPTED, LeftOut

PARTS_MAX: Final = 10_000
PART_BYTES_MAX: Final = 64 << 20
TOTAL_BYTES_MAX: Final = 128 << 20  # of all parts that are read
RATIO_MAX: Final = 200  # a real repetitive file has 30, a bomb 1,000
RATIO_FROM_BYTES: Final = 1 << 20
_ENCRYPTED_BIT: Final = 1
_BROKEN: Final = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError, RuntimeError)


class Archive:
    """The parts of a zip archive. What its directory says is believed only as far as it is less than allowed."""

    def __init__(self, data: bytes) -> None:
        """Raises LeftOut where it is no archive, or has too many parts."""
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except _BROKEN:
            raise LeftOut(DAMAGED) from None
        self._parts = {part.filename: part for part in self._zip.infolist()}
        if len(self._zip.infolist()) > PARTS_MAX:
            raise LeftOut(BOMB)
        self._left = TOTAL_BYTES_MAX

    @property
    def names(self) -> list[str]:
        """The names of all parts, in the archive's order."""
        return list(self._parts)

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def read(self, name: str) -> bytes:
        """One part, whole. Raises LeftOut where it is not there, encrypted, damaged or a bomb."""
        part = self._parts.get(name)
        if part is None:
            raise LeftOut(DAMAGED)
        if part.flag_bits & _ENCRYPTED_BIT:
            raise LeftOut(ENCRYPTED)
        most = min(PART_BYTES_MAX, self._left, max(RATIO_FROM_BYTES, part.compress_size * RATIO_MAX))
        if part.file_size > most:
            raise LeftOut(BOMB)
        try:
            with self._zip.open(part) as file:
                data = file.read(most + 1)
        except _BROKEN:
            raise LeftOut(DAMAGED) from None
        if len(data) > most:
            raise LeftOut(BOMB)
        self._left -= len(data)
        return data
