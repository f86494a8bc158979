"""What the tests of search by meaning share: sessions with a model, what it was asked, and the vectors in the index."""

import os
import struct
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

import apsw

from conftest import Place, Session
from ends.faults import soon
from ends.model_server import BEHAVIOURS, Asked, ModelServer, Part
from lnk.memory.embedding import PROBE, TITLE, inputs
from lnk.memory.index import CHUNK_BITS
from lnk.memory.vectors import quantize

SPEC: Final = '{"model": "test"}'
SAME: Final = {"auto": "car", "repaired": "fixed", "shrub": "bush", "spanner": "torque"}  # words that mean the same
DIMS: Final = 64
TOKENS: Final = 512  # of an input, where an address says no more
ZZZ: Final = "zzz"  # no document's word


def told(url: str) -> dict[str, str]:
    """An engine's environment: the model's address."""
    return {**os.environ, "LNK_MEMORY_MODEL": url}


def complete(session: Session) -> Session:
    """Waits until everything that is there has its vectors."""
    assert soon(lambda: "embedded" not in session.search(ZZZ)), session.search(ZZZ)
    return session


def found(session: Session, query: str, **more: object) -> dict[str, list[str]]:
    """Path -> what found it, best first."""
    return {hit["path"]: hit["matched"] for hit in session.search(query, **more)["results"]}


def first(session: Session, query: str, **more: object) -> tuple[str, list[str]]:
    """The best hit's path, and what found it."""
    return next(iter(found(session, query, **more).items()), ("", []))


def texts(server: ModelServer, since: int = 0) -> list[str]:
    """The documents' texts asked for from a request on: a batch is of two texts or more, a question is one."""
    asked = [each.texts for each in server.asked[since:]]
    return [text for batch in asked if len(batch) > 1 for text in batch if text != PROBE]


class Held:
    """A behaviour: right, but a batch of documents waits at a gate when `through` have passed it."""

    def __init__(self, through: int = 0) -> None:
        self._through = through
        self._gate = threading.Condition()
        self._waits = False

    def __call__(self, server: ModelServer, asked: Asked) -> Iterator[Part]:
        if len(asked.texts) > 1:
            with self._gate:
                self._waits = self._through <= 0
                self._gate.notify_all()
                self._gate.wait_for(lambda: self._through > 0 or server.ending.is_set())
                self._through -= 1
                self._waits = False
        yield from BEHAVIOURS["right"](server, asked)

    def wait(self) -> None:
        """Until a batch waits."""
        with self._gate:
            assert self._gate.wait_for(lambda: self._waits, 20)

    def let(self, through: int = 1_000_000) -> None:
        """So many more pass."""
        with self._gate:
            self._through = through
            self._gate.notify_all()


# ------------------------------------------------------------ the vectors in the index


class Row(NamedTuple):
    """A vector in the index that is of a chunk. `text` is None for a title, `title` where the document is gone."""

    model: int
    chunk: int
    part: int
    vector: bytes
    text: str | None
    title: str | None

    def embedded(self, tokens: int) -> str | None:
        """The text that the vector must be of; None where there is no such chunk, or no such part of it."""
        if self.title is None or (self.text is None and self.chunk & TITLE != TITLE):
            return None
        parts = inputs(self.title, self.text or "", tokens)
        return parts[self.part] if self.part < len(parts) else None


def rows(place: Place) -> list[Row]:
    """Every vector in the index that is of a chunk."""
    sql = (
        "SELECT model, chunk, part, vector, text, title FROM vectors LEFT JOIN chunks ON chunks.id = chunk"
        f" LEFT JOIN documents ON documents.id = chunk >> {CHUNK_BITS} WHERE chunk IS NOT NULL ORDER BY chunk, part"
    )
    return [Row(*row) for row in read(place, sql)]


def read(place: Place, sql: str) -> list[tuple]:
    """What the index holds."""
    db = apsw.Connection(str(place.state / "index.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return list(db.execute(sql))
    finally:
        db.close()


def wrong_rows(place: Place, server: ModelServer, model: str = "", *, tokens: int = TOKENS) -> list[Row]:
    """The vectors in the index that are not what the server, or another `model` of it, gives for their text."""
    return [
        row
        for row in rows(place)
        if (text := row.embedded(tokens)) is None or not _close(row.vector, server.vector(text, model))
    ]


def _close(whole: bytes, numbers: list[float]) -> bool:
    """Whether a vector of the index is this one, but for rounding."""
    (right,) = quantize([struct.pack(f"<{len(numbers)}f", *numbers)])
    pairs = zip(memoryview(right).cast("b"), memoryview(whole).cast("b"), strict=False)
    return len(right) == len(whole) and all(abs(one - other) <= 1 for one, other in pairs)
