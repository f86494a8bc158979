"""Vectors in memory: one model's, as int8, all compared with a question's. No index that skips any of them.

Each number is a share of its vector's largest, in 127ths, so that a vector keeps its direction whatever its size; the
score is the cosine of the two, from -1 to 1. Two implementations do the comparing: SimSIMD where it is installed,
else NumPy by blocks. Both are imported late: no NumPy is loaded where nothing has a vector.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lnk.memory.mapped import Part

if TYPE_CHECKING:
    import numpy as np

BLOCK_ROWS: Final = 512  # of NumPy's way: as floats they stay in the processor's cache
SAMPLED: Final = 16  # every so many scores are looked at to guess where the best end
GROWTH: Final = 1.25  # room is made for a quarter more than there is
_FEW: Final = 4096  # with fewer rows all scores are sorted


class Compare(Protocol):
    """The dot products of a question (int8, `dims`) with each row of a matrix (int8, rows x dims), as float32."""

    def __call__(self, rows: "np.ndarray[Any, Any]", query: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]": ...


def compare_simsimd(rows: "np.ndarray[Any, Any]", query: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """By SimSIMD's kernels for the processor at hand."""
    import numpy as np
    import simsimd

    return np.asarray(simsimd.cdist(query[None, :], rows, metric="dot", out_dtype="f32")).reshape(-1)


def compare_numpy(rows: "np.ndarray[Any, Any]", query: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """By NumPy: blocks of rows made floats, so that its matrix product is used."""
    import numpy as np

    count, dims = rows.shape
    out = np.empty(count, np.float32)
    block = np.empty((min(BLOCK_ROWS, count), dims), np.float32)
    wanted = query.astype(np.float32)
    for start in range(0, count, BLOCK_ROWS):
        end = min(start + BLOCK_ROWS, count)
        np.copyto(block[: end - start], rows[start:end])
        np.dot(block[: end - start], wanted, out=out[start:end])
    return out


def best_compare() -> Compare:
    """The faster one that is there."""
    try:
        import simsimd  # noqa: F401
    except ImportError:
        return compare_numpy
    return compare_simsimd


def quantize(vectors: Sequence[bytes]) -> list[bytes]:
    """Vectors of float32 (little-endian bytes) as int8."""
    import numpy as np

    if not vectors:
        return []
    floats = np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), -1)
    largest = np.abs(floats).max(axis=1, keepdims=True)
    whole = np.rint(floats * (127 / np.where(largest == 0, 1, largest))).astype(np.int8)
    return [row.tobytes() for row in whole]


class Scored(NamedTuple):
    """A row that was found: its id in the index, and its score."""

    row: int
    score: float


class Matrix:
    """The vectors of one model, in the order of their ids. Rows are added; what is gone stays until it is made again.

    So whoever asks must look up in the index which of the found rows are still there: ids are never given twice.
    """

    def __init__(self, dims: int, compare: Compare | None = None, first: Part | None = None) -> None:
        """`first`: rows that are in memory already; others come behind them."""
        import numpy as np

        self.dims = dims
        self._compare = compare or best_compare()
        self._first = first
        self._own = Part(
            np.empty((0, dims), np.int8), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
        )
        self._owned = 0  # rows of it that are used

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._owned + (len(self._first.ids) if self._first else 0)

    @property
    def last(self) -> int:
        """The highest id in it, 0 where there is none."""
        return int(self.parts()[-1].ids[-1]) if self.count else 0

    def parts(self) -> list[Part]:
        """The rows that there are, one part behind the other."""
        own = Part(*(each[: self._owned] for each in self._own))
        return [part for part in (self._first, own) if part is not None and len(part.ids)]

    def add(self, ids: Sequence[int], documents: Sequence[int], vectors: Sequence[bytes]) -> None:
        """More rows, of higher ids: each a vector of `dims` int8, and the document that it is of."""
        import numpy as np

        if not ids:
            return
        start, self._owned = self._owned, self._owned + len(ids)
        if self._owned > len(self._own.ids):
            room = int(self._owned * GROWTH) if len(self._own.ids) else self._owned
            self._own = Part(*(_with_room(each, room) for each in self._own))
        rows = np.frombuffer(b"".join(vectors), np.int8).reshape(len(ids), self.dims)
        self._own.rows[start : self._owned] = rows
        self._own.ids[start : self._owned] = ids
        self._own.documents[start : self._owned] = documents
        for at in range(0, len(ids), BLOCK_ROWS):  # as floats all at once would take four times their room
            lengths = np.linalg.norm(rows[at : at + BLOCK_ROWS].astype(np.float32), axis=1)
            self._own.shorten[start + at : start + at + len(lengths)] = 1 / np.where(lengths == 0, 1, lengths)

    def nearest(self, query: bytes, most: int, among: Callable[[], set[int]] | None = None) -> list[Scored]:
        """The `most` rows that are nearest to `query` (int8), nearest first. `among`: the documents that count."""
        import numpy as np

        if not self.count:
            return []
        wanted = np.frombuffer(query, np.int8)
        parts = self.parts()
        scores = np.concatenate([self._compare(part.rows, wanted) * part.shorten for part in parts])
        if among is not None:
            allowed = np.fromiter(among(), np.int64)
            scores[~np.isin(np.concatenate([part.documents for part in parts]), allowed)] = -np.inf
        found = _highest(scores, most)
        ids = [part.ids for part in parts]
        length = float(np.linalg.norm(wanted.astype(np.float32))) or 1.0
        return [Scored(_at(ids, int(at)), float(scores[at]) / length) for at in found if scores[at] > -np.inf]


def _at(parts: "list[np.ndarray[Any, Any]]", place: int) -> int:
    for part in parts:
        if place < len(part):
            return int(part[place])
        place -= len(part)
    raise IndexError(place)


def _with_room(old: "np.ndarray[Any, Any]", room: int) -> "np.ndarray[Any, Any]":
    import numpy as np

    new = np.empty((room, *old.shape[1:]), old.dtype)
    new[: len(old)] = old
    return new


def _highest(scores: "np.ndarray[Any, Any]", most: int) -> "np.ndarray[Any, Any]":
    """Where the `most` highest scores stand, highest first.

    A guess from a sample of where they end leaves few to sort: a third of a whole partition's time.
    """
    import numpy as np

    if len(scores) > max(_FEW, 8 * most):
        sample = scores[::SAMPLED]
        rank = len(sample) - min(len(sample), 2 + 2 * most // SAMPLED)
        floor = np.partition(sample, rank)[rank]
        above = np.flatnonzero(scores >= floor)
        if most <= len(above) < len(scores) // 4:
            return above[np.argsort(-scores[above], kind="stable")[:most]]
    if len(scores) > 2 * most:
        best = np.argpartition(scores, len(scores) - most)[-most:]
        best.sort()
        return best[np.argsort(-scores[best], kind="stable")]
    return np.argsort(-scores, kind="stable")[:most]
