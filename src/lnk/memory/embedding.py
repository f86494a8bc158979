"""What is embedded, and by what: the one seam for whatever makes vectors, and the texts that it is given. Pure."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, Protocol

from lnk.memory.index import CHUNK_BITS

TITLE: Final = (1 << CHUNK_BITS) - 1  # the number of a title among a document's chunks
PROBE: Final = "The quick brown fox jumps over the lazy dog."  # tells a model from another of the same name
PROBE_SAME: Final = 0.99  # the cosine of one model's vectors of it: a few thousandths off between runs and builds
HEADROOM: Final = 0.8  # of a model's tokens: the estimate is a quarter off at worst
TITLE_TOKENS: Final = 0.25  # of an input's tokens: so much of it a title may take
QUESTION_TOKENS: Final = 512  # of a question that are asked for: whoever pastes a text in waits for no more


class Encoder(Protocol):
    """What makes vectors: an endpoint, or the built-in encoder. `model` is the name kept with its vectors."""

    model: str
    tokens: int  # the most that one input may have

    @property
    def wait_s(self) -> float:
        """For which it asked to be left alone with its last answer; 0.0: it did not."""

    def encode(self, texts: Sequence[str], *, query: bool = False) -> list[bytes | None]:
        """A vector of length 1 a text (float32, little-endian); None where the model does not take the text.

        Raises Unavailable where the model does not answer, or not as it should.
        """

    def knows(self, text: str) -> bool:
        """Whether the model was made for the script of `text`: what it says of another does harm."""

    def close(self) -> None:
        """Give everything back. From any thread; an `encode` under way ends with Unavailable."""


# ---------------------------------------------------------------- what is embedded

_WIDE: Final = (  # scripts of which a character is most of a token, or more than one
    (0x0370, 0x03FF, 1.0),  # Greek
    (0x0900, 0x0DFF, 1.0),  # Devanagari and its kin
    (0x0E00, 0x0EFF, 0.8),  # Thai, Lao
    (0x1000, 0x11FF, 0.8),  # Burmese, Georgian, Hangul letters
    (0x3000, 0x9FFF, 0.8),  # kana, Chinese
    (0xA000, 0xD7FF, 0.8),  # Yi, Hangul
    (0xF900, 0xFAFF, 0.8),
    (0x1F000, 0x3FFFF, 1.0),
)


def tokens_of(text: str) -> float:
    """About how many tokens a model makes of `text`; by script, since none is at hand (`docs/decisions/meaning.md`)."""
    if text.isascii():
        return len(text) / 3.6
    return sum(_share(char) for char in text)


def _share(char: str) -> float:
    number = ord(char)
    if number < 128:
        return 1 / 3.6
    for first, last, share in _WIDE:
        if first <= number <= last:
            return share
    return 1 / 1.8


def inputs(title: str, text: str, tokens: int) -> list[str]:
    """What is embedded of one chunk: the title and the text; several parts where a model takes no more at once.

    Without a text it is the title alone. Nothing of the text is left out.
    """
    body = text.strip()
    if not body:
        title, body = "", title.strip()
    most = tokens * HEADROOM
    head = _cut(title, most * TITLE_TOKENS).rstrip() + "\n\n" if title else ""
    left = most - tokens_of(head)
    parts = []
    while True:
        part = _cut(body, left)
        parts.append(head + part.rstrip())
        body = body[len(part) :].lstrip()
        if not body:
            return parts


def question_of(text: str, tokens: int) -> str:
    """As much of a question as is embedded: its beginning, where a model takes no more."""
    return _cut(text, min(tokens, QUESTION_TOKENS) * HEADROOM)


def _cut(text: str, tokens: float) -> str:
    """As much of the beginning of `text` as has `tokens`, to the end of a line or a word where one is near."""
    if tokens_of(text) <= tokens:
        return text
    at, used = 0, 0.0
    while at < len(text) and (used := used + _share(text[at])) <= tokens:
        at += 1
    at = max(at, 1)
    for mark in ("\n", ". ", "。", " "):
        end = text.rfind(mark, at * 2 // 3, at)
        if end >= 0:
            return text[: end + len(mark)]
    return text[:at]


def mark_of(text: str) -> bytes:
    """What stands for a text that was embedded, so that the same text is not embedded again."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=12).digest()


def digits_off(title: str) -> str:
    """A title without its digits: titles that differ only there tell documents apart for nobody."""
    return "".join(char for char in title.casefold() if not char.isdigit())
