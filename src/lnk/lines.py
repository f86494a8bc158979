"""Lines of JSON over a stream: cut out of bytes as they come, and written compactly.

Knows no protocol and does no I/O. A line is what LF ends.
"""

import re
from typing import Any, Final

LINE_BYTES_MAX: Final = 1 << 20  # a line of MCP; an answer is far smaller, so more is a mistake or an attack


_LONE = re.compile("[\ud800-\udfff]")


class TooLong:
    """Stands for a line that passed the limit and was thrown away up to its LF."""


TOO_LONG: Final = TooLong()


class Lines:
    """Cuts a stream into lines of at most `limit` bytes; what is over is dropped, never kept."""

    def __init__(self, limit: int = LINE_BYTES_MAX, *, ends: bool = False) -> None:
        """`ends`: each line is given with its LF, so that who passes it on need not copy it."""
        self._limit = limit
        self._kept = 1 if ends else 0
        self._parts: list[bytes] = []
        self._held = 0
        self._dropping = False

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """The lines that `data` completes, each without its LF unless `ends`, in order."""
        found: list[bytes | TooLong] = []
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._hold(data[start : end + self._kept])
            found.append(self._take())
            start = end + 1
        self._hold(data[start:])
        return found

    @property
    def over(self) -> bool:
        """Whether the line that is still coming has passed the limit already."""
        return self._dropping

    def rest(self) -> bytes | TooLong | None:
        """What stands after the last LF when the stream ends, or None."""
        return self._take() if self._held or self._dropping else None

    def _hold(self, part: bytes) -> None:
        if not part or self._dropping:
            return
        if self._held + len(part) > self._limit:
            self._parts, self._held, self._dropping = [], 0, True
            return
        self._parts.append(part)
        self._held += len(part)

    def _take(self) -> bytes | TooLong:
        line = TOO_LONG if self._dropping else b"".join(self._parts)
        self._parts, self._held, self._dropping = [], 0, False
        return line


def format_line(value: Any) -> bytes:
    """`value` as one line of compact UTF-8 JSON, LF included."""
    import msgspec  # 4 MB, which who only cuts lines does without

    return msgspec.json.encode(value) + b"\n"


def clean(value: Any) -> Any:
    """`value` with each half of a surrogate pair in its strings replaced by U+FFFD, so that it is UTF-8."""
    if isinstance(value, str):
        return value if value.isascii() else _LONE.sub("\ufffd", value)
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return value
