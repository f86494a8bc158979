"""How much an answer holds. Its size is that of its JSON text: what the client has to take. No I/O."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from lnk.contract.spec import TOKENS_MAX, TOKENS_MIN
from lnk.errors import Invalid

TOKENS: Final = 6_000
CHARS_PER_TOKEN: Final = 4
BYTES: Final = 32 * 1024 - 1  # a harness keeps 32 KiB of an answer, so that it arrives whole
NEXT_AROUND: Final = 60  # of a `next`, beside what it names
AROUND: Final = 160  # characters of an answer around its entries: brackets, names, counts

T = TypeVar("T")


class Budget:
    """Characters, and by default bytes too, that are left of an answer."""

    def __init__(self, tokens: int | None, spec_tokens: int | None) -> None:
        """`tokens` as the call asks, else as the spec says, else TOKENS. Raises Invalid for a negative number."""
        if tokens is not None and tokens < 0:
            raise Invalid(f"tokens is {tokens}; give a number from {TOKENS_MIN} to {TOKENS_MAX:,}, or leave it out.")
        asked = tokens or spec_tokens
        self.chars = CHARS_PER_TOKEN * min(max(asked or TOKENS, TOKENS_MIN), TOKENS_MAX) - AROUND
        self.bytes = self.chars * 4 if asked else BYTES - AROUND

    def spend(self, value: Any) -> None:
        """Count `value` whether it fits or not."""
        chars, size = measure(value)
        self.chars -= chars + 1
        self.bytes -= size + 1

    def fill(self, values: Iterable[T], *, at_least: int = 0, after: Callable[[T], int] | None = None) -> list[T]:
        """The first of `values` that fit, whole; `at_least` so many whatever their size.

        `after`: the characters of the `next` that an answer needs which stops behind a value.
        """
        taken: list[T] = []
        for value in values:
            chars, size = measure(value)
            more = after(value) if after else 0
            if len(taken) >= at_least and (chars + more >= self.chars or size + more >= self.bytes):
                break
            self.chars -= chars + 1
            self.bytes -= size + 1
            taken.append(value)
        return taken


def measure(value: Any) -> tuple[int, int]:
    """The characters and bytes of `value` as JSON."""
    text = msgspec.json.encode(value)
    return len(text) if text.isascii() else len(text.decode()), len(text)


def next_chars(path: str) -> int:
    """The characters of a `next` that names a path: coded for any client, it is a third longer than its bytes."""
    return len(path.encode("utf-8", "replace")) * 4 // 3 + NEXT_AROUND


def cut_to(text: str, budget: Budget) -> str:
    """As much of one line as fits, at least one character."""
    low, high = 1, min(len(text), max(budget.chars, 1))
    while low < high:
        middle = (low + high + 1) // 2
        chars, size = measure(text[:middle])
        if chars <= budget.chars and size <= budget.bytes:
            low = middle
        else:
            high = middle - 1
    return text[:low]
