"""Text to the words that are indexed, and a question to the terms that are looked up: one analysis for both.

FTS5's unicode61 lower-cases, strips accents and cuts at what is no letter or digit. Before it, this module does
what unicode61 cannot: compatible forms (NFKC), letters that are no accents (ß, ł, ı), marks of Arabic and Hebrew,
scripts without spaces (every two or three neighbouring characters, and each last one), `C++` and its kin, emoji. What a
word holds besides itself (`foo_bar`'s parts need nothing; `getUserName` does) goes into a column of its own.
"""

import re
import unicodedata
from collections.abc import Iterable
from itertools import pairwise
from struct import pack
from typing import Final, NamedTuple
from zlib import crc32

# Raised with any change of what comes out here: an index made by another analysis is analysed again.
ANALYSIS: Final = f"3 unicode {unicodedata.unidata_version}"

TERMS_MAX: Final = 64  # 64 terms cost 2 ms, 20,000 cost 71: nobody types more
PARTS_MAX: Final = 16  # parts of one word that are looked up next to each other: each costs what a term costs
_MEMO_MAX: Final = 50_000  # words kept with what they hold, about 10 MB

# Thai, Lao, Burmese, Khmer: written without spaces, a syllable two or three characters.
_SYLLABLES = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0edf\u1000-\u109f\u1780-\u17ff"
# Kana, Chinese, Hangul and their extensions: without spaces too, or, as Korean, with endings that hang on the word.
_CHARACTERS = (
    "\u1100-\u11ff\u3005-\u3007\u3031-\u3035\u3040-\u30ff\u3105-\u312f\u3131-\u318e\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_RUN = re.compile(f"([{_SYLLABLES}]+)|[{_CHARACTERS}]+")
_EMOJI = re.compile("[\u2190-\u2bff\U0001f000-\U0001faff]")
_GREEK = "".join(map(chr, (*range(0x386, 0x3CF), *range(0x1F00, 0x1FFD))))
_FOLD: Final = {
    "ё": "е",
    "Ё": "Е",
    **{char: base for char in _GREEK if (base := unicodedata.normalize("NFD", char)[0]) != char},
    "ß": "ss",
    "ẞ": "SS",
    "œ": "oe",
    "Œ": "OE",
    "æ": "ae",
    "Æ": "AE",
    "ø": "o",
    "Ø": "O",
    "ł": "l",
    "Ł": "L",
    "đ": "d",
    "Đ": "D",
    "ð": "d",
    "Ð": "D",
    "þ": "th",
    "Þ": "TH",
    "ħ": "h",
    "Ħ": "H",
    "ı": "i",
    "İ": "I",
    "’": "'",
    "‘": "'",
    "ʼ": "'",
    "＇": "'",
    "‐": "-",
    "‑": "-",
    "ς": "σ",
    "أ": "ا",
    "إ": "ا",
    "آ": "ا",
    "ٱ": "ا",
    "ى": "ي",
    "ؤ": "و",
    "ئ": "ي",
    "ـ": "",
}
_FOLDED = re.compile("[" + "".join(_FOLD) + "]")
# Hebrew points, Arabic vowels, and what is there but not seen: zero width, soft hyphen, variation selectors.
_UNSEEN = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8"
    "\u00ad\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff]"
)
# Arabic writes "and", and "in the", "like the", "for the", as one word with what follows: xquad hit@1 0.79 -> 0.86.
_ARABIC = re.compile(
    "(?<![\u0620-\u064a])\u0648?(?:[\u0628\u0643\u0641]?\u0627\u0644|\u0644\u0644)?(?=[\u0620-\u064a]{3})"
)
_SPECIAL = re.compile(r"(?<!\w)(?:([cfj])#(?!\w)|(c)\+\+(?!\w)|\.(net)\b)", re.IGNORECASE)
_MAYBE_SHARP = re.compile(r"#(?<=[cfjCFJ]#)")  # headings hold so many others
_JOINED = re.compile(r"\w+(?:['-]\w+)*")


def _spaced(joining: str) -> bytes:
    """The table of `bytes.translate` that makes each ASCII character a space that is in no word, nor `joining` two."""
    between = bytes(number for number in range(128) if not chr(number).isalnum() and chr(number) not in joining)
    return bytes.maketrans(between, b" " * len(between))


_SPACED = _spaced("_")
_SPACED_BUT_JOINED = _spaced("_-'")
_SPACED_UNIT = re.compile(r"\d(?<![\d.,]\d)[\d.,]*+ [A-Za-z%]{1,3}\b")  # each run of digits is tried once
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z][a-z]*")
_MIXED = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
_VERSION = re.compile(r"\b[vV](\d+(?:\.\d+)+)")
_LEADING = re.compile(r"(\d+)([^\W\d_]+)?")
_NO_WORD = re.compile(r"[\W_]+")
_PART = re.compile(r"[^\W_]+")


class Analysed(NamedTuple):
    """A text's columns for FTS5."""

    body: str
    extra: str


class _Held(dict[bytes, str]):
    """What stands between spaces -> what its words hold besides themselves, worked out once: words repeat."""

    def __missing__(self, piece: bytes) -> str:
        if len(self) >= _MEMO_MAX:
            self.clear()
        found = self[piece] = " ".join(filter(None, map(_held, _JOINED.findall(piece.decode()))))
        return found


_holds = _Held()


def forget() -> None:
    """Give back what was kept to index faster."""
    _holds.clear()


def analyse(text: str) -> Analysed:
    """The columns of `text`."""
    folded = fold(text)
    body = folded if folded.isascii() else _RUN.sub(_neighbours, folded)
    extra: list[str] = []
    numbers = versions = False
    # As bytes: a translation of those is a table, of text a lookup a character.
    for piece in set(body.encode("utf-8", "replace").translate(_SPACED_BUT_JOINED).split()):
        if piece.isalpha() and (piece.islower() or piece[1:].islower()):
            continue  # nearly all: it holds itself alone
        numbers = numbers or not piece.isalpha()
        versions = versions or b"v" in piece or b"V" in piece
        if held := _holds[piece]:
            extra.append(held)
    if numbers:
        extra.extend(found.replace(" ", "") for found in _SPACED_UNIT.findall(folded))
    if versions:
        extra.extend(_VERSION.findall(folded))
    return Analysed(body, " ".join(sorted(extra)))


def words_of(bodies: Iterable[str]) -> list[bytes]:
    """The words of analysed bodies in small letters, for `sketch` and for counting."""
    return "\n".join(bodies).lower().encode("utf-8", "replace").translate(_SPACED).split()


def fold(text: str) -> str:
    """`text` in the form in which its words are compared, but for case and accents, which FTS5 takes off."""
    if not text.isascii():
        text = _FOLDED.sub(lambda found: _FOLD[found[0]], unicodedata.normalize("NFKC", text))
        text = _EMOJI.sub(_emoji, _UNSEEN.sub("", text))
        if "\u0627" in text:  # alef, which no Arabic text is without
            text = _ARABIC.sub("", text)
    if ("#" in text and _MAYBE_SHARP.search(text)) or "++" in text or ".n" in text or ".N" in text:
        text = _SPECIAL.sub(_named, text)
    return text.replace("\0", " ")


def terms(query: str) -> list[str]:
    """The terms of a question as FTS5 takes them, each quoted, at most TERMS_MAX, each once, in the question's order.

    None where it holds no word. A run of a script without spaces gives each two (or three) neighbours, one that is
    shorter whatever begins with it; anything else is one term, in which all parts of a word stand next to each other.
    """
    found: dict[str, None] = {}
    for word in fold(query).split():
        at = 0
        for run in _RUN.finditer(word):
            _add_word(word[at : run.start()], found)
            _add_run(run, found)
            at = run.end()
        _add_word(word[at:], found)
        if len(found) >= TERMS_MAX:
            break
    return list(found)[:TERMS_MAX]


# Words that a question has for its grammar alone.
_GRAMMAR: Final = frozenset(
    f'"{word}"'
    for word in (
        "a an the and or of to in on at for with is are was were be been do does did have has had what when where which"
        " who whom whose why how i you he she it we they my your his her its our their me him them this that these"
        " those there"
    ).split()
)
_LEFT: Final = 3
_ENDING_FROM: Final = 6  # letters of a word that has an ending to take off


def telling(asked: list[str]) -> list[str]:
    """The terms of a question without those that it has for its grammar, where at least three others are left.

    LoCoMo hit@1 0.71 -> 0.75; vault_links stays.
    """
    left = [term for term in asked if term not in _GRAMMAR]
    return left if len(left) >= _LEFT else asked


def any_ending(asked: list[str], query: str) -> list[str]:
    """The terms of a question, each word's last letters left open where `query` is not in plain letters alone.

    Most such languages have endings, and English has its own in the index (`porter`).
    """
    if query.isascii():
        return asked
    return [_open_ended(term) for term in asked]


def _open_ended(term: str) -> str:
    word = term[1:-1]
    if len(word) < _ENDING_FROM or not word.isalpha() or has_unspaced(word):
        return term
    return _quoted(word[: -2 if len(word) < _ENDING_FROM + 2 else -3]) + "*"


def most_like(word: str, others: Iterable[str], least: float, most: int) -> list[tuple[float, str]]:
    """Of `others` the `most` that are like `word`, most like first, none below `least`, each with how like it is.

    That is the share of three neighbouring letters that they have in common (Dice), 0 to 1. Both ends count as one.
    """
    framed = f" {word} "
    mine = {framed[at : at + 3] for at in range(len(word))}
    # Looks into a text take a third of the time that sets of both words' letters do; `other` has as many as letters.
    shares = ((2 * sum(map(f" {other} ".__contains__, mine)) / (len(mine) + len(other)), other) for other in others)
    return sorted((found for found in shares if found[0] >= least), reverse=True)[:most]


def has_unspaced(text: str) -> bool:
    """Whether a script without spaces is in `text`."""
    return not text.isascii() and _RUN.search(text) is not None


def _add_word(word: str, found: dict[str, None]) -> None:
    parts = _PART.findall(word)
    if len(parts) > PARTS_MAX:  # no word that a person types
        for at in range(0, PARTS_MAX * TERMS_MAX, PARTS_MAX):
            if parts[at : at + PARTS_MAX]:
                found[_quoted(" ".join(parts[at : at + PARTS_MAX]).lower())] = None
        return
    if not parts:
        return
    found[_quoted(word.lower())] = None
    joined = word.replace("'s", "").replace("'", "").replace("-", "")
    if joined != word and _NO_WORD.sub("", joined) == joined:
        found[_quoted(joined.lower())] = None


def _add_run(run: re.Match[str], found: dict[str, None]) -> None:
    text, together = run[0], _together(run)
    if len(text) < together:
        found[_quoted(text) + "*"] = None
    for at in range(len(text) - together + 1):
        found[_quoted(text[at : at + together])] = None


def _quoted(term: str) -> str:
    return '"' + term.replace('"', '""') + '"'


def _neighbours(run: re.Match[str]) -> str:
    text, together = run[0], _together(run)
    return " " + " ".join([text[at : at + together] for at in range(len(text))]) + " "


def _together(run: re.Match[str]) -> int:
    """How many characters of a run are a term. Thai in threes: xquad hit@1 0.83 -> 0.91."""
    return 3 if run[1] else 2


def _emoji(found: re.Match[str]) -> str:
    return f" zzu{ord(found[0]):x} "


def _named(found: re.Match[str]) -> str:
    if found[1]:
        return f" zz{found[1]}sharp "
    return " zzcplusplus " if found[2] else " zzdotnet "


def _held(word: str) -> str:
    if "-" in word or "'" in word:
        joined = word.removesuffix("'s").replace("-", "").replace("'", "")
        inner = [held for part in word.replace("'", "-").split("-") if (held := _held(part))]
        return " ".join([joined, *inner])
    if word[0].isdigit():
        found = _LEADING.match(word)
        return " ".join(filter(None, found.groups())) if found and found[1] != word else ""
    if word.islower() or not word.isascii() or not _MIXED.search(word):
        return ""
    parts = _CAMEL.findall(word)
    if len(parts) < 2:
        return ""
    return " ".join([*parts, *(first + second for first, second in pairwise(parts))])


SKETCH_MARKS: Final = 32  # the estimate of a share of words is then off by 7 points: enough to pick who is compared
SHORT_WORDS: Final = 20  # from so many words on, nine in ten make a copy; below, all


def sketch(words: list[bytes]) -> bytes:
    """What stands for a document's words when copies are looked for.

    A short document: all its words whatever their order, so equal means the same words. A longer one: the
    SKETCH_MARKS lowest marks of its distinct words, whose share in common estimates that of the words
    (Broder, "On the resemblance and containment of documents", 1997).
    """
    if len(words) < SHORT_WORDS:
        return b" ".join(sorted(words))
    lowest = sorted(set(map(crc32, set(words))))[:SKETCH_MARKS]
    return pack(f">{len(lowest)}I", *lowest)
