"""Times as they come in and go out: `since`, and RFC 3339."""

import time
from datetime import datetime
from typing import Final, NamedTuple

from lnk.errors import Invalid

_YEAR_3000: Final = 32_503_680_000
_YEAR_1000: Final = -30_610_224_000
_YEAR_9999: Final = 253_370_764_800
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_HELP: Final = 'write a date such as "2026-11-02" or "2026-11-02T09:30", or the number that list gave as "now"'


class Since(NamedTuple):
    """A moment in microseconds. `exact`: one that `list` gave, on the index's own clock; else a time of the owner's."""

    at: int
    exact: bool


def parse_since(value: float | str) -> Since:
    """A date (without a zone it is the owner's local time, a day begins at midnight), or seconds. Raises Invalid."""
    if isinstance(value, str):
        text = value.strip()
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            try:
                value = float(text)
            except ValueError:
                raise Invalid(f"since is {text[:40]!r}, which is no date; {_HELP}.") from None
        else:
            try:
                return Since(round(moment.timestamp() * 1_000_000), False)  # without a zone: this machine's
            except (OverflowError, ValueError, OSError):
                raise Invalid(f"since is {text[:40]!r}, which is no date of our time; {_HELP}.") from None
    if not 0 <= value <= _YEAR_3000:
        raise Invalid(f"since is {value:g}, which is no number of seconds since 1970; {_HELP}.")
    return Since(round(value * 1_000_000), True)


def in_words(seconds: float) -> str:
    """The day as it is spoken of, in UTC: "8 May 2023". A question that names a date finds what is of it."""
    day = time.gmtime(min(max(int(seconds), 0), _YEAR_9999))
    return f"{day.tm_mday} {_MONTHS[day.tm_mon - 1]} {day.tm_year}"


def format_time(seconds: float) -> str:
    """RFC 3339 in UTC, to the second. A time that cannot be written so is one of a broken clock: now stands for it."""
    if not _YEAR_1000 <= seconds <= _YEAR_9999:
        seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(seconds)))
