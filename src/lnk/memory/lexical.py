"""The words' list: chunks that hold a question's terms, ranked by bm25 (FTS5), the title counting four times."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import apsw

from lnk.memory.analyse import any_ending, has_unspaced, most_like, telling, terms
from lnk.memory.filters import Filter
from lnk.memory.index import CHUNK_BITS, Index
from lnk.memory.ranking import BEST, BODY_WEIGHT, EXTRA_WEIGHT, TITLE_WEIGHT, UNSPACED_COVERS, Hit, by_document

ROWS: Final = 300  # chunks fetched for BEST documents at first; more where few documents have many chunks
ROWS_MAX: Final = 20_000
# FTS5 counts a word that half of all chunks hold as nothing, which in a small folder is most words. So there the
# same formula is worked out here, with an idf that is never near zero; 500 rows cost 3 ms.
SMALL: Final = 500
# Beyond, words that every fourth chunk holds are dropped: 83 -> 12 ms at 100,000 chunks for at most 1.2 points of
# hit@1; at 1,000 chunks (vault_links, cmrc2018_zh, jsquad_ja) half the time, and not one point lost.
COMMON_FROM: Final = SMALL
COMMON_SHARE: Final = 0.25
# Neighbouring words of a question side by side: LoCoMo hit@1 +0.016, vault_links +0.008, at some 50 us a pair.
BESIDE_TERMS_MAX: Final = 16
BESIDE_ROWS_MAX: Final = 5000  # of the rarer word; where more hold it, it tells little and takes long
# A word that so few chunks hold is looked up as the words most like it too: its other forms, what it is made of, what
# was meant. They begin as it does, so that they stand together in the index. xquad's mean hit@1 0.881 -> 0.898.
ALIKE_CHUNKS_MAX: Final = 8
ALIKE_BEGINNING: Final = 3  # letters, of a word that has more
ALIKE_LEAST: Final = 0.4  # of their groups of three letters in common; 0.5: 0.897
ALIKE_WORDS_MAX: Final = 5  # 4 to 20: within 0.003
ALIKE_POWER: Final = 3  # of the likeness: how much a like word counts; 2: 0.899, link_recall as well
ALIKE_ALONE: Final = 0.8  # of what a word scores itself, where nothing else is asked
COUNTS_HOLD: Final = 0.05  # the share of the chunks that may change until all is counted again
HELD_MAX: Final = 62  # terms of a question that are looked for in the best documents
_K1: Final = 1.2
_B: Final = 0.75
_WEIGHTS: Final = (TITLE_WEIGHT, BODY_WEIGHT, EXTRA_WEIGHT)
_COUNTS_MAX: Final = 10_000
_FULL_MOST: Final = 0.99  # of what a word can score in a chunk: counts may be a little old
_TOKENIZER: Final = ("porter", "unicode61", "remove_diacritics", "2", "categories", "L* N* Co Mn Mc")  # as the schema's


class Words:
    """Finds by words in one index. Keeps how common words are until the index changes."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._chunks = 0
        self._counted_at = -1  # the count of changes then
        self._counts: dict[str, int] = {}
        self._likes: dict[str, list[tuple[str, float]]] = {}
        index.db.register_fts5_function("small_bm25", _small_bm25)
        index.db.register_fts5_function("held", _held)
        self._tokenize = index.db.fts5_tokenizer(_TOKENIZER[0], list(_TOKENIZER[1:]))

    def forget(self) -> None:
        """Give back what was kept to look up less."""
        self._counts.clear()
        self._likes.clear()

    def rank(self, query: str, where: Filter, best: int = BEST) -> list[Hit]:
        """The `best` documents for `query`, best first. Empty where nothing matches or it holds no word."""
        asked = self._rare(telling(terms(query)))
        if not asked:
            return []
        match = " OR ".join(self._open(asked, query))
        alike = self._alike_rows(asked, where)
        limit = ROWS
        while True:
            found = self._scored(match, where, limit)
            rows = self._nearer(asked, _added(found, alike) if alike else found)
            hits = by_document(rows, CHUNK_BITS, best)
            if len(hits) >= best or len(found) < limit or limit >= ROWS_MAX:
                return hits
            limit *= 8

    def _scored(self, match: str, where: Filter, limit: int) -> list[tuple[int, float]]:
        """The chunks that match, with their scores, best first."""
        score = "small_bm25(words)" if self._chunks <= SMALL else f"bm25(words, {', '.join(map(str, _WEIGHTS))})"
        sql = f"SELECT rowid, -{score} AS score FROM words WHERE words MATCH ?"
        values: tuple[Any, ...] = ()
        if where:
            condition, values = where.documents()
            sql += f" AND rowid >> {CHUNK_BITS} IN (SELECT id FROM documents WHERE {condition})"
        return self._index.rows(sql + " ORDER BY score DESC LIMIT ?", match, *values, limit)

    def _open(self, asked: list[str], query: str) -> list[str]:
        """The terms with the endings of those left open that are not so rare that they are looked up otherwise."""
        open_ended = any_ending(asked, query)
        if open_ended is asked:
            return asked
        return [
            term if self._count(term) <= ALIKE_CHUNKS_MAX else more
            for term, more in zip(asked, open_ended, strict=True)
        ]

    def _alike_rows(self, asked: list[str], where: Filter) -> dict[int, float]:
        """What chunks score more where the words most like a rare one count as that word, each by its share.

        In bm25 a word that a chunk holds so often, for its length, gives idf * (k1 + 1) * x / (1 + x): the x of each
        are added by their shares, and how many chunks hold it as well.
        """
        more: dict[int, float] = {}
        for term in asked:
            if not (alike := self._alike(term)):
                continue
            itself = dict(self._scored(term, where, ROWS))
            together: dict[int, float] = {}
            for other, share in [(term, 1.0), *alike]:
                full = self._weight(self._count(other)) * (_K1 + 1)
                for row, score in itself.items() if other is term else self._scored(other, where, ROWS):
                    part = min(score / full, _FULL_MOST)
                    together[row] = together.get(row, 0.0) + share * part / (1 - part)
            weight = self._weight(self._count(term) + sum(share * self._count(other) for other, share in alike))
            scores = {row: weight * (_K1 + 1) * often / (1 + often) for row, often in together.items()}
            if len(asked) == 1 and itself:  # asked for alone, a word comes first where it stands itself
                most = ALIKE_ALONE * min(itself.values())
                scores = {row: min(score, most) for row, score in scores.items()} | itself
            for row, score in scores.items():
                more[row] = more.get(row, 0.0) + score - itself.get(row, 0.0)
        return more

    def _weight(self, count: float) -> float:
        """The idf by which a word counts that so many chunks hold, as in what scores."""
        if self._chunks <= SMALL:
            return math.log(1 + (self._chunks - count + 0.5) / (count + 0.5))
        return math.log(max((self._chunks - count + 0.5) / (count + 0.5), 1.0001))

    def _alike(self, term: str) -> list[tuple[str, float]]:
        """The words in the index that are most like a rare one, and how much each counts."""
        if self._count(term) > ALIKE_CHUNKS_MAX:
            return []
        if term not in self._likes:
            if len(self._likes) >= _COUNTS_MAX:
                self._likes.clear()
            self._likes[term] = self._most_like(self._tokens(term))
        return self._likes[term]

    def _most_like(self, words: list[str]) -> list[tuple[str, float]]:
        if len(words) != 1 or len(words[0]) <= ALIKE_BEGINNING or not words[0].isalpha() or has_unspaced(words[0]):
            return []
        word, first = words[0], words[0][:ALIKE_BEGINNING]
        last = first[:-1] + chr(ord(first[-1]) + 1)
        there = dict(self._index.rows("SELECT term, doc FROM word_counts WHERE term >= ? AND term < ?", first, last))
        others = (other for other in there if other != word and other.isalpha())
        found = [(f'"{other}"', other, like) for like, other in most_like(word, others, ALIKE_LEAST, ALIKE_WORDS_MAX)]
        # Of a stem that has another stem, the words of that are found: they are counted when they are asked for.
        self._counts.update((term, there[other]) for term, other, _ in found if self._tokens(term) == [other])
        return [(term, like**ALIKE_POWER) for term, _, like in found]

    def _nearer(self, asked: list[str], rows: list[tuple[int, float]]) -> list[tuple[int, float]]:
        """Rows score more where two neighbouring words of the question stand side by side: the lesser's weight."""
        if len(asked) > BESIDE_TERMS_MAX or any(map(has_unspaced, asked)):
            return rows
        more: dict[int, float] = {}
        for one, other in pairwise(asked):
            if min(self._count(one), self._count(other)) <= BESIDE_ROWS_MAX:
                weight = min(self._idf(one), self._idf(other))
                match = f"body : NEAR({one} {other}, 0)"
                for (row,) in self._index.db.execute("SELECT rowid FROM words WHERE words MATCH ?", (match,)):
                    more[row] = more.get(row, 0.0) + weight
        if not more:
            return rows
        return sorted(((row, score + more.get(row, 0.0)) for row, score in rows), key=lambda row: -row[1])

    def coverage(self, query: str, hits: Sequence[Hit]) -> float:
        """How much of the question's telling weight (idf) the one of these documents holds that holds most: 0 to 1."""
        asked = self._rare(telling(terms(query)))[:HELD_MAX]
        if not asked or not hits or not self._chunks:
            return 0.0
        # A word like a rare one holds as much of it as its share.
        parts = [(phrase, at, 1.0) for at, phrase in enumerate(self._open(asked, query))]
        parts += [(phrase, at, share) for at, term in enumerate(asked) for phrase, share in self._alike(term)]
        parts = parts[:HELD_MAX]
        weights = [self._idf(term) for term in asked]
        chunks = [chunk for hit in hits for chunk in hit.chunks]
        marks = ",".join("?" * len(chunks))
        sql = f"SELECT rowid, held(words) FROM words WHERE words MATCH ? AND rowid IN ({marks})"
        held: dict[int, int] = {}
        for chunk, bits in self._index.rows(sql, " OR ".join(phrase for phrase, _, _ in parts), *chunks):
            document = chunk >> CHUNK_BITS
            held[document] = held.get(document, 0) | bits
        best = 0.0
        for bits in held.values():
            shares = [0.0] * len(asked)
            for place, (_, at, share) in enumerate(parts):
                if bits >> place & 1 and share > shares[at]:
                    shares[at] = share
            best = max(best, sum(a * b for a, b in zip(shares, weights, strict=True)))
        share = best / sum(weights)
        return min(1.0, share * UNSPACED_COVERS) if has_unspaced(query) else share

    def _idf(self, term: str) -> float:
        count = self._count(term)
        return math.log(1 + (self._chunks - count + 0.5) / (count + 0.5))

    def matching(self, query: str) -> int:
        """How many documents match `query` where nothing is filtered."""
        asked = telling(terms(query))
        if not asked:
            return 0
        sql = f"SELECT count(DISTINCT rowid >> {CHUNK_BITS}) FROM words WHERE words MATCH ?"
        return int(self._index.value(sql, " OR ".join(any_ending(asked, query))) or 0)

    def _rare(self, asked: list[str]) -> list[str]:
        """The terms without those that are too common to tell anything, where there are enough chunks for that."""
        changes = self._index.value("SELECT value FROM counts WHERE name = 'chunks'")
        if abs(changes - self._counted_at) > COUNTS_HOLD * self._chunks:
            self._counted_at = changes
            # As many as there are chunks, counted without reading their texts; at 100,000 that takes a millisecond.
            self._chunks = self._index.value("SELECT count(*) FROM words_docsize") or 0
            self.forget()
        if self._chunks < COMMON_FROM:
            return asked
        most = COMMON_SHARE * self._chunks
        return [term for term in asked if self._count(term) <= most] or asked

    def _count(self, term: str) -> int:
        if term.endswith("*"):
            return 0  # whatever begins so: not worth a look at all of it
        if term not in self._counts:
            if len(self._counts) >= _COUNTS_MAX:
                self._counts.clear()
            words = self._tokens(term)
            # Several words next to each other are as rare as the rarest, about.
            sql = "SELECT doc FROM word_counts WHERE term = ?"
            self._counts[term] = min((self._index.value(sql, word) or 0 for word in words), default=0)
        return self._counts[term]

    def _tokens(self, term: str) -> list[str]:
        """The words of a term as they stand in the index."""
        found = self._tokenize(
            term.encode(), apsw.FTS5_TOKENIZE_QUERY, None, include_offsets=False, include_colocated=False
        )
        return [str(word) for word in found]


def _added(rows: list[tuple[int, float]], more: dict[int, float]) -> list[tuple[int, float]]:
    """The rows with what each scores more, and those that score nothing else, best first."""
    scores = dict(rows)
    for row, score in more.items():
        scores[row] = scores.get(row, 0.0) + score
    return sorted(scores.items(), key=lambda row: -row[1])


def _held(api: Any, *_: Any) -> int:
    """Which of the question's first terms a chunk holds, a bit each, as many as SQLite's numbers have."""
    return sum(1 << phrase for phrase in range(min(len(api.phrases), HELD_MAX)) if any(api.phrase_columns(phrase)))


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
