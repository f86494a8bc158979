"""The vectors in the index: which chunks wait for one, vectors kept, and one model's held in memory for searches.

A chunk that is gone takes its vector out of every search in the same transaction, by a trigger, whoever removed it.
What is held in memory may be behind: what it finds is looked up in the index, and ids are never given twice.
"""

import contextlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from lnk.errors import LinkError
from lnk.memory import mapped
from lnk.memory.embedding import PROBE_SAME, TITLE, digits_off, inputs, mark_of
from lnk.memory.filters import INDEXED, Filter
from lnk.memory.index import CHUNK_BITS, Index
from lnk.memory.parse import named
from lnk.memory.ranking import BEST, MEANING, Hit
from lnk.memory.vectors import Matrix, Scored, quantize

ROWS: Final = 400  # vectors looked up for BEST documents at first; more where few documents have many
LOADED_ROWS: Final = 4096  # read at once, so that a folder's vectors are never there twice
MAPPED_FROM: Final = 2000  # rows from which a file beside the index is worth it; read from the index they take 10 ms
MAPPED_GROWTH: Final = 0.2  # the share of all that it may lack
GONE_MOST: Final = 0.1  # of the rows in memory; with more that are gone, all are read again


class Waiting(NamedTuple):
    """A text to embed: a part of a chunk. `title` and `digest` are the document's that it was read from."""

    chunk: int
    part: int
    text: str
    title: str
    digest: bytes


class Progress(NamedTuple):
    """How many chunks have a vector, and how many there are."""

    done: int
    of: int

    @property
    def share(self) -> float:
        return self.done / self.of if self.of else 0.0


def latest(index: Index, name: str) -> tuple[int, bytes] | None:
    """The id and the probe of the model of this name that gave vectors last, or None."""
    rows = index.rows("SELECT id, probe FROM models WHERE name = ? ORDER BY id DESC LIMIT 1", name)
    return rows[0] if rows else None


def model_id(index: Index, name: str, probe: bytes) -> int:
    """The id of the model that gives the vector `probe` (float32) for the fixed sentence; a new one where none does."""
    with index.writing():
        for found, had in index.rows("SELECT id, probe FROM models WHERE name = ? ORDER BY id DESC", name):
            if same(had, probe):
                return int(found)
        index.db.execute("INSERT INTO models (name, dims, probe) VALUES (?, ?, ?)", (name, len(probe) // 4, probe))
        return index.db.last_insert_rowid()


def same(one: bytes, other: bytes) -> bool:
    """Whether two vectors of length 1 (float32) of the fixed sentence are of the same model."""
    if len(one) != len(other):
        return False
    return sum(a * b for a, b in zip(array("f", one), array("f", other), strict=True)) >= PROBE_SAME


def waiting(index: Index, model: int) -> list[int]:
    """The chunks, and titles, that have no vector of the model yet: those of the newest documents first."""
    rows = index.rows(
        "SELECT documents.changed, chunks.id FROM chunks JOIN documents ON documents.id = chunks.id >> ?"
        " WHERE NOT EXISTS (SELECT 1 FROM vectors WHERE model = ? AND chunk = chunks.id)",
        CHUNK_BITS,
        model,
    )
    wanted = telling_titles(index)
    had = {
        chunk >> CHUNK_BITS
        for (chunk,) in index.rows(
            "SELECT chunk FROM vectors WHERE model = ? AND part = 0 AND chunk & ? = ?", model, TITLE, TITLE
        )
    }
    rows += [(changed, document << CHUNK_BITS | TITLE) for document, changed in wanted.items() if document not in had]
    rows.sort(key=lambda row: (-row[0], row[1]))
    return [chunk for _, chunk in rows]


def telling_titles(index: Index) -> dict[int, int]:
    """The documents whose title is their file's name and tells them apart, with their time of change.

    A title that repeats, or differs from another in digits alone, misleads by meaning (RANK-4).
    """
    rows = index.rows(f"SELECT id, changed, path, title, kind FROM documents WHERE {INDEXED}")
    often = Counter(digits_off(title) for _, _, _, title, _ in rows)
    return {
        document: changed
        for document, changed, path, title, kind in rows
        if kind == "document" and often[digits_off(title)] == 1 and title == named(path, kind)
    }


def read(index: Index, chunks: Sequence[int], tokens: int) -> list[Waiting]:
    """The texts of these chunks and titles, for a model that takes so many tokens at once."""
    marks = ",".join("?" * len(chunks))
    rows = index.rows(
        "SELECT chunks.id, text, title, digest FROM chunks JOIN documents ON documents.id = chunks.id >> ?"
        f" WHERE chunks.id IN ({marks})",
        CHUNK_BITS,
        *chunks,
    )
    titles = [chunk >> CHUNK_BITS for chunk in chunks if chunk & TITLE == TITLE]
    marks = ",".join("?" * len(titles))
    rows += index.rows(
        f"SELECT id << ? | ?, '', title, digest FROM documents WHERE id IN ({marks}) AND {INDEXED}",
        CHUNK_BITS,
        TITLE,
        *titles,
    )
    found = {row[0]: row for row in rows}
    return [
        Waiting(chunk, part, given, title, digest)
        for chunk, text, title, digest in (found[chunk] for chunk in chunks if chunk in found)
        for part, given in enumerate(inputs(title, text, tokens))
    ]


def known(index: Index, model: int, texts: Iterable[str]) -> dict[str, bytes]:
    """Of these texts those that the model embedded before, with their vectors."""
    found = {}
    for text in texts:
        vector = index.value("SELECT vector FROM vectors WHERE mark = ? AND model = ? LIMIT 1", mark_of(text), model)
        if vector is not None:
            found[text] = vector
    return found


def keep(index: Index, model: int, vectors: Iterable[tuple[Waiting, bytes]]) -> None:
    """Vectors (int8; empty: the model takes no such text) written, but for those whose document changed meanwhile."""
    with index.writing():
        index.db.executemany(
            "INSERT OR REPLACE INTO vectors (model, chunk, part, mark, vector) SELECT ?, ?, ?, ?, ? WHERE EXISTS"
            " (SELECT 1 FROM documents WHERE id = ? AND digest = ? AND title = ?)",
            (
                (
                    *(model, one.chunk, one.part, mark_of(one.text), vector),
                    *(one.chunk >> CHUNK_BITS, one.digest, one.title),
                )
                for one, vector in vectors
            ),
        )


def sweep(index: Index) -> None:
    """After all is embedded: the vectors of chunks that are gone are deleted, and a large model's are kept mapped.

    Raises Corrupt, Unavailable, Full.
    """
    with index.reading():
        models = index.rows("SELECT id, dims FROM models")
        gone = _gone(index) if models else []
    if gone:
        with index.writing():
            index.db.executemany("DELETE FROM vectors WHERE id = ?", ((row,) for row, _ in gone))
    for model, dims in models:
        with index.reading():
            told = _told(index, model, dims)
            mapped.blank(index.state, told, [row for row, of in gone if of == model])
            part = mapped.opened(index.state, told)
            there = index.value("SELECT count(*) FROM vectors WHERE model = ?", model)
            if there - (len(part.ids) if part else 0) <= max(MAPPED_FROM, there * MAPPED_GROWTH):
                continue
            matrix = Matrix(dims)
            _fill(index, matrix, model)
        with contextlib.suppress(LinkError):  # no room for it: the vectors are read from the index
            mapped.write(index.state, told, matrix.parts())


def _gone(index: Index) -> list[tuple[int, int]]:
    """The vectors, and each one's model, that no chunk or telling title has any longer."""
    gone = index.rows("SELECT id, model FROM vectors WHERE chunk IS NULL")
    telling = telling_titles(index)  # one that came to repeat misleads from now on
    titles = index.rows("SELECT id, model, chunk >> ? FROM vectors WHERE chunk & ? = ?", CHUNK_BITS, TITLE, TITLE)
    return gone + [(row, model) for row, model, document in titles if document not in telling]


def _told(index: Index, model: int, dims: int) -> mapped.Told:
    return mapped.Told(index.fact("name"), model, dims)


def _fill(index: Index, matrix: Matrix, model: int) -> None:
    """The rows that are not in it yet."""
    for rows in _batches(index, model, matrix.last, matrix.dims):
        matrix.add(*zip(*rows, strict=True))


def changes(index: Index) -> tuple[int, int, int]:
    """The index's counts of changes: to chunks, to vectors, and vectors that are gone."""
    found = dict(index.rows("SELECT name, value FROM counts"))
    return found["chunks"], found["vectors"], found["vectors gone"]


class Kept:
    """The vectors of one model in memory, brought up to the index before each search."""

    def __init__(self, model: int, dims: int) -> None:
        self.model = model
        self._dims = dims
        self._matrix: Matrix | None = None
        self._seen: tuple[int, int, int] | None = None
        self._gone = 0  # the count of those gone when all were read
        self._progress = Progress(0, 0)

    def refresh(self, index: Index) -> Progress:
        """What was added is read, and all again where much is gone. How far the model got."""
        now = changes(index)
        if now != self._seen:
            self._seen = now
            self._progress = progress(index, self.model)
            if self._matrix is None or now[2] - self._gone > GONE_MOST * self._matrix.count + ROWS:
                told = _told(index, self.model, self._dims)
                self._matrix = Matrix(self._dims, first=mapped.opened(index.state, told))
                self._gone = now[2]
            _fill(index, self._matrix, self.model)
        return self._progress

    def rank(self, index: Index, query: bytes, where: Filter, best: int = BEST) -> list[Hit]:
        """The `best` documents for a question's vector (float32): each by its nearest chunk, nearest first."""
        if not self._matrix or not self._matrix.count:
            return []
        (wanted,) = quantize([query])
        rows = ROWS
        while True:
            found = self._matrix.nearest(wanted, rows, (lambda: _documents(index, where)) if where else None)
            hits = self._hits(index, found)
            if len(hits) >= best or len(found) < rows:
                return hits[:best]
            rows *= 8

    def _hits(self, index: Index, found: list[Scored]) -> list[Hit]:
        there: dict[int, int] = {}
        for at in range(0, len(found), LOADED_ROWS):
            some = [one.row for one in found[at : at + LOADED_ROWS]]
            marks = ",".join("?" * len(some))
            there.update(
                index.rows(f"SELECT id, chunk FROM vectors WHERE id IN ({marks}) AND chunk IS NOT NULL", *some)
            )
        scores: dict[int, float] = {}
        chunks: dict[int, list[int]] = {}
        for row, score in found:
            if (chunk := there.get(row)) is not None:
                document = chunk >> CHUNK_BITS
                scores.setdefault(document, score)
                mine = chunks.setdefault(document, [])
                if chunk not in mine:
                    mine.append(chunk)
        return [Hit(document, score, tuple(chunks[document]), (MEANING,)) for document, score in scores.items()]


def progress(index: Index, model: int | None) -> Progress:
    """How many chunks have a vector of the model, of how many there are."""
    of = index.value("SELECT count(*) FROM words_docsize") or 0
    if model is None:
        return Progress(0, of)
    sql = "SELECT count(*) FROM vectors WHERE model = ? AND part = 0 AND chunk & ? <> ?"
    return Progress(min(index.value(sql, model, TITLE, TITLE) or 0, of), of)


def _batches(index: Index, model: int, last: int, dims: int) -> Iterator[list[tuple[int, int, bytes]]]:
    while True:
        rows = index.rows(
            "SELECT id, chunk >> ?, vector FROM vectors WHERE id > ? AND model = ? AND chunk IS NOT NULL"
            " AND length(vector) = ? ORDER BY id LIMIT ?",
            *(CHUNK_BITS, last, model, dims, LOADED_ROWS),
        )
        if rows:
            yield rows
        if len(rows) < LOADED_ROWS:
            return
        last = rows[-1][0]


def _documents(index: Index, where: Filter) -> set[int]:
    condition, values = where.documents()
    return {document for (document,) in index.rows(f"SELECT id FROM documents WHERE {condition}", *values)}
