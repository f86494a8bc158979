"""Search: the documents that answer a question best, each with the passage that does, as many as an answer holds."""

import base64
import binascii
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

import msgspec

from lnk.errors import Invalid
from lnk.memory.analyse import analyse, words_of
from lnk.memory.budget import NEXT_AROUND, Budget, next_chars
from lnk.memory.embedding import TITLE
from lnk.memory.filters import Filter
from lnk.memory.index import CHUNK_BITS, Index
from lnk.memory.lexical import Words
from lnk.memory.parse import pages_of
from lnk.memory.ranking import (
    BEST,
    BEST_WITH_COPIES,
    COVERING,
    Document,
    Group,
    Hit,
    merged,
    newest_first,
    without_copies,
)
from lnk.memory.times import format_time
from lnk.memory.values import Result

PASSAGE_CHUNKS: Final = 3  # a passage is the best chunk, and the next best where they touch
PASSAGE_CHARS: Final = 2000  # and where all is no longer than this
COPIES_SHOWN: Final = 20
RESULTS_AT_ONCE: Final = 32  # whose texts are asked for together: about what an answer holds
ID_CHARS: Final = 7  # of one document's id in a `next`
_START_AGAIN: Final = "Leave `next` out to start again: it is not one that was given for this question and this index."
_COLUMNS: Final = "id, path, title, kind, changed, words, sketch, pages"


class Cursor:
    """The `next` of one question over one index: opaque to the client, checked when it comes back."""

    def __init__(self, index: Index, *question: Any) -> None:
        told = msgspec.json.encode([index.fact("name"), *question])
        self._mark = hashlib.sha256(told).digest()[:6]

    def format(self, where: Any) -> str:
        """`where` as text."""
        body = msgspec.msgpack.encode(where)
        check = hashlib.sha256(self._mark + body).digest()[:6]
        return base64.urlsafe_b64encode(check + body).decode().rstrip("=")

    def parse(self, text: str | None, kind: Any) -> Any:
        """What `format` was given, or None for no text. Raises Invalid for any other."""
        if text is None:
            return None
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            if hashlib.sha256(self._mark + data[6:]).digest()[:6] != data[:6]:
                raise ValueError
            return msgspec.msgpack.decode(data[6:], type=kind)
        except (ValueError, binascii.Error, msgspec.DecodeError, UnicodeEncodeError):
            raise Invalid(_START_AGAIN) from None


Near = Callable[[int], list[Hit]]


def ranked(index: Index, words: Words, query: str, where: Filter, near: Near | None = None) -> list[Group]:
    """The documents for `query`: ranked, near ties newest first, copies together.

    `near` gives as many documents as it is asked for by meaning; without it words alone rank.
    """
    best = BEST
    while True:
        by_words = words.rank(query, where, best)
        by_meaning = near(best) if near else []
        hits = by_words
        if by_meaning:
            hits = merged(by_words, by_meaning, words.coverage(query, by_words[:COVERING]))
        documents = _documents(index, [hit.document for hit in hits])
        hits = newest_first([hit for hit in hits if hit.document in documents], documents)
        groups = without_copies(hits, documents, lambda each: _words_of(index, each))
        more = len(by_words) >= best or len(by_meaning) >= best
        if len(groups) >= BEST // 2 or not more or best >= BEST_WITH_COPIES:
            return groups
        best *= 4  # copies took most places: what else there is must not be hidden by them


def page(index: Index, groups: list[Group], given: list[int], budget: Budget) -> tuple[list[Result], list[int] | None]:
    """The results that fit after those given already, and what is then given, or None where that is all.

    A document is known by its id, so that what is removed or moves in the ranking meanwhile is neither skipped nor
    given twice.
    """
    had = set(given)
    left = [group for group in groups if not had.intersection(each.id for each in group.documents)]
    most = NEXT_AROUND + ID_CHARS * (len(given) + sum(len(group.documents) for group in left))
    results = budget.fill(_results(index, left), at_least=1, after=lambda _: most)
    now = [*given, *(each.id for group in left[: len(results)] for each in group.documents)]
    return results, now if len(results) < len(left) else None


def newest(index: Index, where: Filter, after: tuple[int, str] | None, budget: Budget) -> tuple[list[Result], Any]:
    """A listing by newest for a question without words; and where it stopped, or None."""
    condition, values = where.documents()
    sql = f"SELECT {_COLUMNS} FROM documents WHERE {condition}"
    if after:
        sql += " AND (changed < ? OR (changed = ? AND path > ?))"
        values = (*values, after[0], after[0], after[1])
    sql += " ORDER BY changed DESC, path LIMIT ?"
    documents = [Document(*row) for row in index.rows(sql, *values, budget.chars // 60 + 2)]
    results = budget.fill(
        (_first_part(index, each) for each in documents), at_least=1, after=lambda each: next_chars(each.path)
    )
    if len(results) == len(documents):
        return results, None
    last = documents[len(results) - 1]
    return results, (last.changed, last.path)


def _documents(index: Index, ids: list[int]) -> dict[int, Document]:
    marks = ",".join("?" * len(ids))
    rows = index.rows(f"SELECT {_COLUMNS} FROM documents WHERE id IN ({marks})", *ids)
    return {row[0]: Document(*row) for row in rows}


def _words_of(index: Index, document: int) -> dict[bytes, int]:
    texts = index.rows(
        "SELECT text FROM chunks WHERE id BETWEEN ? AND ?", document << CHUNK_BITS, (document + 1 << CHUNK_BITS) - 1
    )
    return Counter(words_of(analyse(text).body for (text,) in texts))


def _results(index: Index, groups: list[Group]) -> Iterator[Result]:
    """The passage is the document's that was found; what is shown of a group is the one with the shortest path."""
    for start in range(0, len(groups), RESULTS_AT_ONCE):
        some = groups[start : start + RESULTS_AT_ONCE]
        wanted = [_passage(group) for group in some]
        texts = _texts(index, chain(*wanted))
        for group, chunks in zip(some, wanted, strict=True):
            shown = group.documents[0]
            best = group.hit.chunks[0] + (shown.id - group.hit.document << CHUNK_BITS)
            found = _fitting([chunk for chunk in chunks if chunk in texts], best, texts)
            if not found:  # a copy that is cut into other chunks
                found = list(_texts(index, [shown.id << CHUNK_BITS]).values())
            copies = [each.path for each in group.documents[1:]][:COPIES_SHOWN]
            yield _as_result(shown, found, list(group.hit.matched), copies)


def _fitting(chunks: list[int], best: int, texts: dict[int, tuple[int, str]]) -> list[tuple[int, str]]:
    """The best chunk, with its neighbours as long as the passage stays short enough to be one."""
    if not chunks:
        return []
    first = last = best if best in chunks else chunks[0]
    left = PASSAGE_CHARS - len(texts[first][1])
    for chunk in sorted(chunks, key=lambda each: abs(each - best)):
        if chunk in (first - 1, last + 1) and len(texts[chunk][1]) <= left:
            left -= len(texts[chunk][1])
            first, last = min(first, chunk), max(last, chunk)
    return [texts[chunk] for chunk in range(first, last + 1)]


def _first_part(index: Index, document: Document) -> Result:
    return _as_result(document, list(_texts(index, [document.id << CHUNK_BITS]).values()), [], [])


def _texts(index: Index, chunks: Iterable[int]) -> dict[int, tuple[int, str]]:
    """The first line and the text of each of these chunks that there is."""
    asked = list(chunks)
    marks = ",".join("?" * len(asked))
    rows = index.rows(f"SELECT id, first_line, text FROM chunks WHERE id IN ({marks})", *asked)
    return {chunk: (line, text) for chunk, line, text in rows}


def _as_result(document: Document, found: list[tuple[int, str]], matched: list[str], copies: list[str]) -> Result:
    line, text = found[0][0], "".join(text for _, text in found)
    body = text.strip("\r\n")
    first = line + text[: len(text) - len(text.lstrip("\r\n"))].count("\n")
    last = first + body.count("\n")
    return Result(
        path=document.path,
        title=document.title,
        kind=document.kind,
        changed=format_time(document.changed),
        matched=matched,
        lines=[first, last],
        pages=pages_of(document.pages, first, last),
        text=body,
        copies=copies or None,
    )


def _passage(group: Group) -> range:
    """The best chunk with those of the next best that touch it, in the document that is shown."""
    hit = group.hit
    # A title's vector stands for the document's beginning.
    chunks = [chunk - TITLE if chunk & TITLE == TITLE else chunk for chunk in hit.chunks[:PASSAGE_CHUNKS]]
    best = first = last = chunks[0]
    for chunk in sorted(chunks[1:], key=lambda each: abs(each - best)):
        if chunk == first - 1:
            first = chunk
        elif chunk == last + 1:
            last = chunk
    moved = group.documents[0].id - hit.document << CHUNK_BITS
    return range(first + moved, last + moved + 1)
