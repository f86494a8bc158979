"""TOML edited as text: a table put in, changed or taken out, and every other line, comments too, as it was.

What is a header and where a value ends is asked of `tomllib`, so that a line inside a text or a list is not taken for
one. Whoever calls reads the outcome again: what is written in another form than tables comes out unchanged or wrong.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

Path = tuple[str, str]  # the parts of a table's name


def values(text: str) -> dict[str, Any] | None:
    """What `text` says, None where it is no TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def format_string(text: str) -> str:
    """`text` as a basic string of TOML, which JSON's strings are but for DEL."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def table(path: Path, entry: Mapping[str, Any]) -> str:
    """The table of that name, with its values."""
    return f"[{'.'.join(map(_key, path))}]\n" + "".join(_line(key, value) for key, value in entry.items())


def with_table(text: str, path: Path, entry: Mapping[str, Any]) -> str:
    """`text` and the table after it, an empty line between them."""
    end = _line_end(text)
    if text and not text.endswith("\n"):
        text += end
    return text + (end if text else "") + table(path, entry).replace("\n", end)


def without_table(text: str, path: Path) -> str:
    """`text` without the table, those beneath it, and the empty line before it; comments after it are not its own."""
    kept: list[str] = []
    after: list[str] = []
    within = False
    for parts, lines in _sections(text):
        if parts[:2] == path:
            if not within and kept and not kept[-1].strip():
                kept.pop()
            after = lines[_own_length(lines) :]
            within = True
        else:
            kept += after + lines
            after = []
            within = False
    return "".join(kept + after)


def with_values(text: str, path: Path, changes: Mapping[str, Any]) -> str:
    """`text` with some values of the table changed where they stand, taken out for None, or put in after its header."""
    end = _line_end(text)
    kept: list[str] = []
    for parts, lines in _sections(text):
        kept += _changed(lines, changes, end) if parts == path else lines
    return "".join(kept)


def _changed(lines: Sequence[str], changes: Mapping[str, Any], end: str) -> Iterator[str]:
    new = {key: _line(key, value).replace("\n", end) for key, value in changes.items() if value is not None}
    statements = list(_statements(lines[1:]))
    there = {key for keys, _ in statements for key in keys}
    yield lines[0] if lines[0].endswith("\n") else lines[0] + end
    yield from (line for key, line in new.items() if key not in there)
    for keys, own in statements:
        if keys & changes.keys():
            yield from (new.pop(key) for key in keys if key in new)  # the first of several dotted ones stands for all
        else:
            yield from own


def _statements(lines: Sequence[str]) -> Iterator[tuple[set[str], list[str]]]:
    """Each value with its key, or each comment and empty line without one."""
    part: list[str] = []
    for line in lines:
        part.append(line)
        if (found := values("".join(part))) is not None:
            yield set(found), part
            part = []


def _sections(text: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """The parts of each table's name, and its lines from the header to the next; the first has no name."""
    name: tuple[str, ...] = ()
    lines: list[str] = []
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        if line.lstrip(" \t").startswith("[") and values("".join(lines)) is not None:
            yield name, lines
            name, lines = _name(line), []
        lines.append(line)
    yield name, lines


def _name(header: str) -> tuple[str, ...]:
    parts: list[str] = []
    at: Any = values(header)
    while isinstance(at, dict) and at:
        ((part, at),) = at.items()
        parts.append(part)
    return tuple(parts) if isinstance(at, dict) else ()  # a list: one of many tables of that name


def _own_length(lines: Sequence[str]) -> int:
    """How many lines there are without the comments and empty lines at the end."""
    length = len(lines)
    while length and (not lines[length - 1].strip() or lines[length - 1].lstrip().startswith("#")):
        length -= 1
    return length


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line(key: str, value: Any) -> str:
    return f"{_key(key)} = {_value(value)}\n"


def _key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else format_string(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return format_string(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + " }"
    return json.dumps(value, default=str)
