"""What is found, put in order: each weight in one place, with its reason. Pure: scores, dates and sketches in.

Scores are positive here, more is better; SQLite's bm25 is negative.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from struct import unpack
from typing import Final, NamedTuple

from lnk.memory.analyse import SHORT_WORDS, SKETCH_MARKS

WORDS: Final = "words"
MEANING: Final = "meaning"

TITLE_WEIGHT: Final = 4.0  # the documents': a word in the title counts four times one in the text
BODY_WEIGHT: Final = 1.0
EXTRA_WEIGHT: Final = 0.5  # parts of words and of the path: as good as found, but less than what is written
BEST: Final = 50  # each list ranks its best so many documents
# A document is its best chunk and a little of the next two: LoCoMo hit@1 0.636 -> 0.667, vault 0.377 -> 0.474.
CHUNK_SHARES: Final = (1.0, 0.3, 0.1)
# Documents within a twentieth of the best score around them match about as well, by bm25 as by merged scores.
# LoCoMo, where age says nothing, MRR by words: 0.838 without, 0.836 with it, 0.828 with a tenth.
NEAR_TIE: Final = 0.05
# A newer document that shares half of its words with an older one passes it from so far off: newer above older 0.86 ->
# 0.96, and no set of others loses anything.
VERSION_TIE: Final = 0.2
VERSION_SHARE: Final = 0.5
VERSION_PLACES: Final = 20  # and from no more places below
VERSION_FIRST: Final = 30  # as many as an answer shows
VERSION_WORDS: Final = 0.5  # the shorter one has at least half as many
COVERING: Final = 3  # documents of the words' list of which the best says how much of the question words cover
WORDS_LEAST: Final = 0.2  # the words' share where their best documents hold nothing of the question,
WORDS_SPAN: Final = 0.7  # and how much it grows to where one holds all
# Two neighbours of a script without spaces are seldom both of one word, so no document covers all of a question:
# cmrc2018_zh hit@1 0.942 -> 0.977, jsquad_ja 0.902 -> 0.924, and across languages as before.
UNSPACED_COVERS: Final = 3.0
BEST_WITH_COPIES: Final = 3200  # so far is looked where copies of one text take the places of the best
COPY_SHARE: Final = 0.9
MARKS_KEPT: Final = 128  # of documents found lately, 3 KB each; 2048: a search 2 % quicker, 0.3 MB more an agent
COPY_ESTIMATE: Final = 0.55  # of the shares of two sketches; 0.9 of the words is 0.82 there, four errors above this


class Hit(NamedTuple):
    """A document that was found: its score, its matching chunks, best first, and what found it."""

    document: int
    score: float
    chunks: tuple[int, ...]
    matched: tuple[str, ...] = (WORDS,)


class Document(NamedTuple):
    """What is known of a found document."""

    id: int
    path: str
    title: str
    kind: str
    changed: int
    words: int
    sketch: bytes
    pages: bytes | None = None


class Group(NamedTuple):
    """A document to show and its copies, the one with the shortest path first."""

    hit: Hit
    documents: tuple[Document, ...]


def by_document(rows: Sequence[tuple[int, float]], bits: int, most: int = BEST) -> list[Hit]:
    """Chunks (id, score), best first, as the best `most` documents, best first."""
    scores: dict[int, float] = {}
    chunks: dict[int, list[int]] = {}
    for chunk, score in rows:
        document = chunk >> bits
        mine = chunks.get(document)
        if mine is None:
            chunks[document] = [chunk]
            scores[document] = CHUNK_SHARES[0] * score
        elif len(mine) < len(CHUNK_SHARES):
            scores[document] += CHUNK_SHARES[len(mine)] * score
            mine.append(chunk)
    best = sorted(sorted(scores), key=scores.__getitem__, reverse=True)[:most]
    return [Hit(document, scores[document], tuple(chunks[document])) for document in best]


def merged(words: Sequence[Hit], meaning: Sequence[Hit], coverage: float) -> list[Hit]:
    """The two lists as one, best first. `coverage`: how much of the question the words' best documents hold, 0 to 1.

    Each list's scores are scaled from 1 (its best) to 0 (its last) and added by shares. A document's passage is that
    of the list which gives it more.
    """
    share = WORDS_LEAST + WORDS_SPAN * coverage
    found: dict[int, list[tuple[float, Hit]]] = {}
    for hits, weight in ((words, share), (meaning, 1 - share)):
        if hits:
            best, last = hits[0].score, hits[-1].score
            for hit in hits:
                scaled = (hit.score - last) / (best - last) if best > last else 1.0
                found.setdefault(hit.document, []).append((weight * scaled, hit))
    together = []
    for document, parts in found.items():
        more = max(parts, key=lambda part: part[0])[1]
        matched = tuple(name for _, hit in parts for name in hit.matched)
        together.append(Hit(document, sum(score for score, _ in parts), more.chunks, matched))
    together.sort(key=lambda hit: (-hit.score, hit.document))
    return together


def newest_first(hits: Sequence[Hit], documents: dict[int, Document], near: float = NEAR_TIE) -> list[Hit]:
    """Near ties put newest first. A group is all within `near` of its best, so none passes what is clearly better.

    Then a newer document passes an older one that says nearly the same, from a little further off.
    """
    ordered: list[Hit] = []
    start = 0
    while start < len(hits):
        floor = hits[start].score * (1 - near)
        end = start + 1
        while end < len(hits) and hits[end].score >= floor:
            end += 1
        group = sorted(hits[start:end], key=lambda hit: documents[hit.document].changed, reverse=True)
        ordered.extend(group)
        start = end
    return _newer_versions_first(ordered, documents)


def _newer_versions_first(hits: list[Hit], documents: dict[int, Document]) -> list[Hit]:
    ordered: list[Hit] = []
    left = list(hits)
    while left and len(ordered) < VERSION_FIRST:
        hit, one = left[0], documents[left[0].document]
        floor = hit.score * (1 - VERSION_TIE)
        newer = (
            place
            for place, each in enumerate(left[:VERSION_PLACES])
            if each.score >= floor
            and documents[each.document].changed > one.changed
            and _says_the_same(one, documents[each.document])
        )
        # The newest of several comes up step by step: each passes the one before it.
        place = next(newer, 0)
        moved = left.pop(place)
        if place:
            left.insert(0, moved._replace(score=hit.score))
        else:
            ordered.append(moved)
    return ordered + left


def _says_the_same(one: Document, other: Document) -> bool:
    """Whether about half of the words of two documents are the same, by their sketches."""
    if not VERSION_WORDS <= one.words / max(1, other.words) <= 1 / VERSION_WORDS:
        return False
    if one.words < SHORT_WORDS or other.words < SHORT_WORDS:
        if one.words >= SHORT_WORDS or other.words >= SHORT_WORDS:
            return False  # sketches of different kinds tell nothing of each other
        mine, others = set(one.sketch.split()), set(other.sketch.split())
        return len(mine & others) >= VERSION_SHARE * len(mine | others) > 0
    return _estimate(_marks(one.sketch), _marks(other.sketch)) >= VERSION_SHARE


def without_copies(
    hits: Sequence[Hit], documents: dict[int, Document], words_of: Callable[[int], dict[bytes, int]]
) -> list[Group]:
    """Each document once, its copies with it. A copy is one of the group's best-placed member, never of another copy.

    `words_of` gives a document's words and how often each stands there; it is asked only where a sketch says "maybe".
    """
    groups: list[tuple[Hit, list[Document]]] = []
    words_of = cache(words_of)

    def copies(one: Document, lead: Document) -> bool:
        if one.words < SHORT_WORDS or lead.words < SHORT_WORDS:
            return one.words == lead.words > 0 and one.sketch == lead.sketch
        return maybe_copy(_marks(one.sketch), _marks(lead.sketch)) and is_copy(words_of(one.id), words_of(lead.id))

    for hit in hits:
        one = documents[hit.document]
        fewest, most = COPY_SHARE * one.words, one.words / COPY_SHARE
        for first, members in groups:
            lead = documents[first.document]
            if fewest <= lead.words <= most and copies(one, lead):
                members.append(one)
                break
        else:
            groups.append((hit, [one]))
    return [Group(hit, tuple(sorted(members, key=lambda each: (len(each.path), each.path)))) for hit, members in groups]


def maybe_copy(one: frozenset[int], other: frozenset[int]) -> bool:
    """Whether two documents may be copies, by their lowest marks."""
    return _estimate(one, other, COPY_ESTIMATE) >= COPY_ESTIMATE


def _estimate(one: frozenset[int], other: frozenset[int], least: float = VERSION_SHARE) -> float:
    """The share of words in common, by two documents' lowest marks; 0 where it is below `least`."""
    both = one & other
    if len(both) < least * min(len(one), len(other)):
        return 0.0  # no estimate can be higher: the quick answer, which nearly all get
    lowest = sorted(one | other)[:SKETCH_MARKS]
    return sum(mark in both for mark in lowest) / max(1, len(lowest))


def is_copy(one: dict[bytes, int], other: dict[bytes, int]) -> bool:
    """Whether nine in ten words of the longer stand in the other as often."""
    shared = sum(min(count, other.get(word, 0)) for word, count in one.items())
    return shared >= COPY_SHARE * max(sum(one.values()), sum(other.values()))


def forget() -> None:
    """Give back what was kept to tell copies faster."""
    _marks.cache_clear()


@lru_cache(maxsize=MARKS_KEPT)
def _marks(sketch: bytes) -> frozenset[int]:
    return frozenset(unpack(f">{len(sketch) // 4}I", sketch))
