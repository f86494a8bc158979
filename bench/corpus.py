"""Folders of notes to measure with, made here from invented words, the same at each making.

To a word index they look like a person's notes: words as frequent as in a natural language (Zipf and Mandelbrot's
law), each note with some words of its own, headings, links, front matter, code, and other scripts in every 20th.
Knows nothing of the engine.
"""

import os
import random
import re
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

SEED: Final = 20_261_102
VOCABULARY: Final = 30_000
FOLDER_FILES: Final = 50
LATEST: Final = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp())  # the time of the newest file, in s
SPREAD_S: Final = 5 * 365 * 86_400
CHUNKED_BYTES: Final = 5_000  # a file of four headings whose sections stay under the engine's 1,500 characters
CHUNKED_HEADINGS: Final = 4
QUESTION_WORDS: Final = (3, 12)

# Ranks up to which words are of so many syllables: frequent words are short.
_SYLLABLES: Final = ((400, 1), (6_000, 2), (VOCABULARY, 3))
_ONSETS: Final = "b d f g h k l m n p r s t v w z br dr fl gr kl pr sk st tr".split()
_VOWELS: Final = "a e i o u a e i o ai ea ou".split()
_ENDS: Final = ["", "", "", "", "", *"n r s l t m nd st".split()]
_TOPIC_WORDS: Final = 12
_TOPIC_SHARE: Final = 0.12
_SCRIPTS: Final = (
    ("", "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可"),
    ("", "のにをはがとでもからまよりこれそあるいうてしたなくだせんきつちすみやカタロテスンイル日本語会議予定記録"),
    (" ", "абвгдежзийклмнопрстуфхцчшщыьэюя"),
    (" ", "abcdefghilmnoprstuvéèêàâçôûïüöäñíóúåøæœß"),
)


class Shape(NamedTuple):
    """How a folder is made up. `headings`: as many in each file, or None for as many as its length asks for."""

    files: int
    total_bytes: int
    low_bytes: int
    high_bytes: int
    headings: int | None = None

    @property
    def name(self) -> str:
        """What the folder is called."""
        return f"{self.files}-files-{self.total_bytes // 1000}-kB"


def shape_of(files: int) -> Shape:
    """The shape for so many files: 2,000 have 2.2 MB, 10,000 have 18 MB, 100,000 have 30 MB."""
    if files <= 2_000:
        return Shape(files, files * 1_100, 300, 12_000)
    if files <= 20_000:
        return Shape(files, files * 1_800, 300, 12_000)
    return Shape(files, files * 300, 200, 400)


def chunked(chunks: int) -> Shape:
    """The shape for so many chunks, four to a file."""
    files = max(1, chunks // CHUNKED_HEADINGS)
    return Shape(files, files * CHUNKED_BYTES, CHUNKED_BYTES - 600, CHUNKED_BYTES + 400, CHUNKED_HEADINGS)


def make(folder: Path, shape: Shape, seed: int = SEED) -> Path:
    """The folder of `shape` beneath `folder`: `<it>/memory` holds the notes. Made once, found again later."""
    home = folder / shape.name
    done = folder / f"{shape.name}.{seed}.done"
    if done.exists():
        return home
    sys.stderr.write(f"making {shape.files:,} files of {shape.total_bytes / 1e6:.1f} MB in {home}\n")
    shutil.rmtree(home, ignore_errors=True)
    names = _names(shape.files, seed)
    for path in {path.rpartition("/")[0] for path, _ in names}:
        (home / "memory" / path).mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(_sizes(shape, seed)):
        file = home / "memory" / names[number][0]
        rng = random.Random(f"{seed} note {number}")
        file.write_bytes(_Note(rng, names, number, size, shape.headings).text())
        at = LATEST - rng.randrange(SPREAD_S)
        os.utime(file, (at, at))
    done.touch()
    return home


def questions(home: Path, n: int = 200, seed: int = SEED) -> list[str]:
    """`n` questions of 3 to 12 words: one half as frequent words as the notes', one half words in a row of a note."""
    rng = random.Random(f"{seed} questions")
    files = sorted((home / "memory").rglob("*.md"))
    asked: list[str] = []
    while len(asked) < n:
        words = _in_a_row(rng, files) if len(asked) % 2 else _drawn(rng, rng.randint(*QUESTION_WORDS))
        if len(words) >= QUESTION_WORDS[0]:
            asked.append(" ".join(words))
    return asked


def _in_a_row(rng: random.Random, files: list[Path]) -> list[str]:
    words = re.findall(r"\w+", rng.choice(files).read_text(encoding="utf-8"))
    start = rng.randrange(max(1, len(words) - QUESTION_WORDS[1]))
    return words[start : start + rng.randint(*QUESTION_WORDS)]


# ---------------------------------------------------------------- words


@cache
def words() -> tuple[list[str], list[float]]:
    """The vocabulary, most frequent first, and the running sum of the frequencies."""
    rng = random.Random(f"{SEED} words")
    found: dict[str, None] = {}
    for rank, syllables in _SYLLABLES:
        while len(found) < rank:
            word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables))
            found[word + rng.choice(_ENDS)] = None
    return list(found), list(accumulate(1 / (rank + 2.7) for rank in range(VOCABULARY)))


def _drawn(rng: random.Random, count: int) -> list[str]:
    vocabulary, sums = words()
    return rng.choices(vocabulary, cum_weights=sums, k=count)


def _names(files: int, seed: int) -> list[tuple[str, str]]:
    """Path and title of each note, by its number."""
    rng = random.Random(f"{seed} names")
    vocabulary, _ = words()
    rare = vocabulary[200:]
    folders = [f"{rng.choice(rare)}-{number}" for number in range(max(1, files // FOLDER_FILES))]
    found = []
    for number in range(files):
        title = [*rng.sample(rare, 2), *_drawn(rng, rng.randrange(3))]
        found.append((f"{rng.choice(folders)}/{'-'.join(title)}-{number}.md", " ".join(title).capitalize()))
    return found


def _sizes(shape: Shape, seed: int) -> list[int]:
    """The bytes of each file, spread as lengths of notes are: many short ones, few long. Their sum is the shape's."""
    rng = random.Random(f"{seed} sizes")
    drawn = [rng.lognormvariate(0, 0.9) for _ in range(shape.files)]
    low, high = 0.0, float(shape.high_bytes)
    for _ in range(40):  # the factor is found by halving: limits make the sum no straight line of it
        middle = (low + high) / 2
        total = sum(min(max(middle * each, shape.low_bytes), shape.high_bytes) for each in drawn)
        low, high = (middle, high) if total < shape.total_bytes else (low, middle)
    return [int(min(max(low * each, shape.low_bytes), shape.high_bytes)) for each in drawn]


# ---------------------------------------------------------------- notes


class _Note:
    """One note being written: part by part, until it has its size."""

    def __init__(
        self, rng: random.Random, names: list[tuple[str, str]], number: int, size: int, headings: int | None
    ) -> None:
        self._rng = rng
        self._names = names
        self._title = names[number][1]
        self._size = size
        self._headings = headings
        self._script = rng.choice(_SCRIPTS) if rng.random() < 0.05 else None
        topic = rng.sample(words()[0][500:], _TOPIC_WORDS)
        drawn = _drawn(rng, size // 3 + 100)
        self._words: Iterator[str] = iter(rng.choice(topic) if rng.random() < _TOPIC_SHARE else each for each in drawn)

    def text(self) -> bytes:
        """The note's bytes, its size to the byte but for a character's rest."""
        parts = [self._front(), f"# {self._title}\n\n"]
        size = sum(map(len, parts))
        told = 0
        while size < self._size:
            if self._due(size, told):
                told += 1
                parts.append(f"## {self._some(self._rng.randint(1, 4)).capitalize()}\n\n")
            else:
                parts.append(self._part())
            size += len(parts[-1].encode())
        return "".join(parts).encode()[: self._size].decode(errors="ignore").rstrip().encode() + b"\n"

    def _due(self, size: int, told: int) -> bool:
        if self._headings is None:
            return self._rng.random() < 0.12
        return told < self._headings and size >= told * self._size // self._headings

    def _front(self) -> str:
        if self._headings is not None or self._rng.random() > 0.2:
            return ""
        day = datetime.fromtimestamp(LATEST - self._rng.randrange(SPREAD_S), UTC).date()
        return f"---\ndate: {day}\ntags: [{self._some(1)}, {self._some(1)}]\n---\n\n"

    def _part(self) -> str:
        kind = self._rng.random()
        if kind < 0.12:
            return "".join(f"- {self._some(self._rng.randint(2, 9))}\n" for _ in range(self._rng.randint(2, 5))) + "\n"
        if kind < 0.16:
            return f"```\n{self._code()}```\n\n"
        if self._script and kind < 0.6:
            return self._foreign() + "\n\n"
        return " ".join(self._sentence() for _ in range(self._rng.randint(1, 4))) + "\n\n"

    def _some(self, count: int) -> str:
        return " ".join(next(self._words, "end") for _ in range(count))

    def _sentence(self) -> str:
        rng = self._rng
        found = self._some(rng.randint(4, 18)).capitalize()
        kind = rng.random()
        if kind < 0.15:
            found = found.replace(" ", ", ", 1)
        elif kind < 0.25:
            found += " " + self._named()
        elif kind < 0.33:
            found += " " + self._linked()
        return found + (rng.choice("?!:") if kind > 0.9 else ".")

    def _named(self) -> str:
        """A number, a day, a version or an identifier."""
        rng = self._rng
        one, other = self._some(1), self._some(1)
        return rng.choice(
            (
                str(rng.randrange(10_000)),
                f"{rng.randint(2019, 2026)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
                f"v{rng.randrange(9)}.{rng.randrange(30)}",
                f"`{one}_{other}`",
                f"{one}{other.capitalize()}",
                f"{one.upper()[:3]}-{rng.randrange(1000)}",
            )
        )

    def _linked(self) -> str:
        path, title = self._rng.choice(self._names)
        if self._rng.random() < 0.7:
            return f"[[{path.rpartition('/')[2][:-3]}]]"
        return f"[{title}](../{path})"

    def _code(self) -> str:
        return "".join(
            f"{self._some(1)}_{self._some(1)} = {self._some(1)}({self._rng.randrange(100)})\n"
            for _ in range(self._rng.randint(2, 6))
        )

    def _foreign(self) -> str:
        assert self._script
        between, letters = self._script
        rng = self._rng
        if not between:
            return "".join(rng.choices(letters, k=rng.randint(15, 60))) + "。"
        return " ".join("".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(rng.randint(5, 20))) + "."
