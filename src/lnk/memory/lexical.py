"""The words' list: chunks that hold a question's terms, ranked by bm25 (FTS5), the title counting four times."""

import math
from typing import Any, Final

from lnk.memory.analyse import terms
from lnk.memory.filters import Filter
from lnk.memory.index import CHUNK_BITS, Index
from lnk.memory.ranking import BEST, BODY_WEIGHT, EXTRA_WEIGHT, TITLE_WEIGHT, Hit, by_document

ROWS: Final = 300  # chunks fetched for BEST documents at first; more where few documents have many chunks
ROWS_MAX: Final = 20_000
# FTS5 counts a word that half of all chunks hold as nothing, which in a small folder is most words. So there the
# same formula is worked out here, with an idf that is never near zero; 500 rows cost 3 ms.
SMALL: Final = 500
# Beyond, words that every fourth chunk holds are dropped: 83 -> 12 ms at 100,000 chunks for at most 1.2 points of
# hit@1; at 1,000 chunks (vault_links, cmrc2018_zh, jsquad_ja) half the time, and not one point lost.
COMMON_FROM: Final = SMALL
COMMON_SHARE: Final = 0.25
COUNTS_HOLD: Final = 0.05  # the share of the chunks that may change until all is counted again
_K1: Final = 1.2
_B: Final = 0.75
_WEIGHTS: Final = (TITLE_WEIGHT, BODY_WEIGHT, EXTRA_WEIGHT)
_COUNTS_MAX: Final = 10_000


class Words:
    """Finds by words in one index. Keeps how common words are until the index changes."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._chunks = 0
        self._counted_at = -1  # the count of changes then
        self._counts: dict[str, int] = {}
        index.db.register_fts5_function("small_bm25", _small_bm25)

    def rank(self, query: str, where: Filter, best: int = BEST) -> list[Hit]:
        """The `best` documents for `query`, best first. Empty where nothing matches or it holds no word."""
        asked = self._rare(terms(query))
        if not asked:
            return []
        score = "small_bm25(words)" if self._chunks <= SMALL else f"bm25(words, {', '.join(map(str, _WEIGHTS))})"
        sql = f"SELECT rowid, -{score} AS score FROM words WHERE words MATCH ?"
        values: tuple[Any, ...] = ()
        if where:
            condition, values = where.documents()
            sql += f" AND rowid >> {CHUNK_BITS} IN (SELECT id FROM documents WHERE {condition})"
        sql += " ORDER BY score DESC LIMIT ?"
        limit = ROWS
        while True:
            rows = self._index.rows(sql, " OR ".join(asked), *values, limit)
            hits = by_document(rows, CHUNK_BITS, best)
            if len(hits) >= best or len(rows) < limit or limit >= ROWS_MAX:
                return hits
            limit *= 8

    def matching(self, query: str) -> int:
        """How many documents match `query` where nothing is filtered."""
        asked = terms(query)
        if not asked:
            return 0
        sql = f"SELECT count(DISTINCT rowid >> {CHUNK_BITS}) FROM words WHERE words MATCH ?"
        return int(self._index.value(sql, " OR ".join(asked)) or 0)

    def _rare(self, asked: list[str]) -> list[str]:
        """The terms without those that are too common to tell anything, where there are enough chunks for that."""
        changes = self._index.value("SELECT value FROM counts WHERE name = 'chunks'")
        if abs(changes - self._counted_at) > COUNTS_HOLD * self._chunks:
            self._counted_at = changes
            # As many as there are chunks, counted without reading their texts; at 100,000 that takes a millisecond.
            self._chunks = self._index.value("SELECT count(*) FROM words_docsize") or 0
            self._counts.clear()
        if self._chunks < COMMON_FROM:
            return asked
        most = COMMON_SHARE * self._chunks
        return [term for term in asked if self._count(term) <= most] or asked

    def _count(self, term: str) -> int:
        word = term[1:-1]
        if not (word.isascii() and word.isalnum()):
            return 0  # several words next to each other, or one whose indexed form FTS5 alone knows: rare
        if word not in self._counts:
            if len(self._counts) >= _COUNTS_MAX:
                self._counts.clear()
            self._counts[word] = self._index.value("SELECT doc FROM word_counts WHERE term = ?", word) or 0
        return self._counts[word]


def _small_bm25(api: Any, *_: Any) -> float:
    """FTS5's own formula (Okapi BM25, k1 1.2, b 0.75) but for an idf of log(1 + …), which never falls to zero."""
    kept = api.aux_data
    if kept is None:
        rows = api.row_count
        counts = []
        for phrase in range(len(api.phrases)):
            count = [0]
            api.query_phrase(phrase, _count_one, count)
            counts.append(math.log(1 + (rows - count[0] + 0.5) / (count[0] + 0.5)))
        kept = api.aux_data = (counts, max(1.0, api.column_total_size(-1) / max(1, rows)))
    idf, average = kept
    norm = _K1 * (1 - _B + _B * api.column_size(-1) / average)
    total = 0.0
    for phrase, weight in enumerate(idf):
        often = sum(share * len(places) for share, places in zip(_WEIGHTS, api.phrase_locations(phrase), strict=False))
        if often:
            total += weight * often * (_K1 + 1) / (often + norm)
    return -total


def _count_one(_: Any, count: list[int]) -> None:
    count[0] += 1
