"""How much an answer holds. Its size is that of its JSON text: what the client has to take. No I/O."""

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from lnk.contract.spec import TOKENS_MAX, TOKENS_MIN
from lnk.errors import Invalid

TOKENS: Final = 6_000
CHARS_PER_TOKEN: Final = 4
BYTES: Final = 32 * 1024 - 1  # a harness keeps 32 KiB of an answer, so that it arrives whole
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

    def take(self, value: Any) -> bool:
        """Whether `value` still fits; if so it is counted."""
        chars, size = measure(value)
        if chars + 1 > self.chars or size + 1 > self.bytes:
            return False
        self.chars -= chars + 1
        self.bytes -= size + 1
        return True

    def spend(self, value: Any) -> None:
        """Count `value` whether it fits or not."""
        chars, size = measure(value)
        self.chars -= chars + 1
        self.bytes -= size + 1

    def fill(self, values: Iterable[T], *, at_least: int = 0) -> list[T]:
        """The first of `values` that fit, whole; `at_least` so many whatever their size."""
        taken: list[T] = []
        for value in values:
            if self.take(value):
                taken.append(value)
            elif len(taken) < at_least:
                self.spend(value)
                taken.append(value)
            else:
                break
        return taken


def measure(value: Any) -> tuple[int, int]:
    """The characters and bytes of `value` as JSON."""
    text = msgspec.json.encode(value)
    return len(text) if text.isascii() else len(text.decode()), len(text)


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
