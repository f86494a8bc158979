"""A table of a TOML file that a person writes, as a value: what it may say is what the value's type says."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar, get_args

import msgspec

from lnk.contract.shape import Value
from lnk.errors import Invalid

SHOWN_CHARS: Final = 40  # of a text in an error
NUMBER_MAX: Final = 10**20  # the first that is not shown

T = TypeVar("T", bound=Value)


def parse_table(said: object, kind: type[T], file: str, table: str = "") -> T:
    """The table `[table]` of the file (empty: all of it) as a `kind`, whose fields are such tables, or say in their
    description what may stand there.

    Raises Invalid with one sentence that names the file, the key as it is typed, and what is allowed.
    """
    if not isinstance(said, dict):
        raise Invalid(f"{file} has {table} = {_shown(said)}; write [{table}] above its keys.")
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    values: dict[str, object] = {}
    for key, value in said.items():
        if key not in fields:
            raise Invalid(f"{file} has {_typed(table, key, value)}, where only {_named(key, fields)}.")
        inner = next((part for part in _parts(fields[key]) if _is_table(part)), None)
        if inner:
            values[key] = parse_table(value, inner, file, f"{table}.{key}" if table else key)
        else:
            values[key] = _value(value, fields[key], f"{file} has {_typed(table, key, value)}")
    return kind(**values)


def _value(value: object, kind: Any, begin: str) -> object:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        allowed = next((part.description for part in _parts(kind) if isinstance(part, msgspec.Meta)), "another")
        raise Invalid(f"{begin} = {_shown(value)}; give {allowed}.") from None


def _parts(kind: Any) -> Iterator[Any]:
    """What a type is put together from: the choices of a union, and what is said of each."""
    yield kind
    for part in get_args(kind):
        yield from _parts(part)


def _is_table(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, Value)


def _typed(table: str, key: str, value: object) -> str:
    """The key as the person typed it."""
    if isinstance(value, dict):
        return f"[{table}.{key}]" if table else f"[{key}]"
    return f"[{table}] {key}" if table else key


def _shown(value: object) -> str:
    """A value in an error. A list or table is not shown: it may hold anything."""
    if isinstance(value, str):
        return repr(value[:SHOWN_CHARS])
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value) if isinstance(value, float) or abs(value) < NUMBER_MAX else "a number beyond all measure"
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return "a date or a time"


def _named(key: str, known: Iterable[str]) -> str:
    """The keys that may stand, and the one that was likely meant."""
    import difflib  # wanted only where something is wrong

    names = list(known)
    near = difflib.get_close_matches(key, names, 1)
    return f"{', '.join(names)} may stand" + (f"; perhaps {near[0]} is meant" if near else "")
