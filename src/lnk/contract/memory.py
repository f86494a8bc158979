"""The contract of a memory engine, `lnk-<engine>`: what its `command` prints, and whose conversation a call is of.

Source: the engine contract of the documents ("Memory engines"); requirements CONTRACT-2 and NOTES-8, -9.
"""

import re
from typing import Any, Final

from lnk.contract.shape import Value, parse, schema
from lnk.contract.spec import Spec
from lnk.errors import Invalid, Refused

THREAD_META: Final = "link.local/thread"
THREAD_CHARS_MAX: Final = 120
READ_CALLS: Final = ("search", "read", "list", "links")
NOTES_CALL: Final = "remember"

_THREAD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@=:-]{0,119}")
_NAMED = re.compile(r"link:[A-Za-z0-9._+@=:-]+")
# Whoever these are, they are not the owner, even where a list says so: it fails closed.
_OTHERS = ("agent-", "team-", "task-")


class Serve(Value, frozen=True):
    """What `lnk-<engine> command` prints: how to serve MCP over stdio, and what its sandbox needs."""

    argv: list[str]
    allow: list[str] | None = None
    models: bool | None = None
    model: str | None = None
    shared: bool | None = None
    programs: list[str] | None = None


class Served(Value, frozen=True):
    """One agent in a service's `<agents>`: the command that was printed for it, and its `$LNK_MEMORY_MODEL`."""

    argv: list[str]
    env: dict[str, str] | None = None


TYPES: Final[dict[str, Any]] = {"Serve": Serve, "Served": Served, "Agents": dict[str, Served], "Spec": Spec}


def schemas(name: str | None = None) -> dict[str, Any]:
    """The JSON Schema of the type `name`, or of all by name. Raises Invalid for a name that is none."""
    if name is None:
        return {each: schema(kind) for each, kind in TYPES.items()}
    if name not in TYPES:
        raise Invalid(f"There is no contract type {name!r}; there are {', '.join(TYPES)}.")
    return schema(TYPES[name])


def parse_threads(text: str) -> frozenset[str]:
    """The threads that count as the owner's (`$LNK_MEMORY_THREADS`, a JSON list). Raises Invalid."""
    if not text.strip():
        return frozenset()
    threads = parse(text, list[str], "the list of the owner's threads ($LNK_MEMORY_THREADS)")
    for thread in threads:
        if not _THREAD.fullmatch(thread):
            raise Invalid(f"The owner's threads list {thread[:THREAD_CHARS_MAX]!r}, which is not a thread's name.")
    return frozenset(threads)


def thread_of(meta: dict[str, Any]) -> str:
    """The conversation that a call names in its `_meta`. Raises Refused where it names none, or no thread's name."""
    thread = meta.get(THREAD_META)
    if not isinstance(thread, str) or not _THREAD.fullmatch(thread):
        raise Refused(
            f'This call does not say which conversation it is of: set _meta["{THREAD_META}"] to the thread\'s name.'
        )
    return thread


def owners(thread: str, listed: frozenset[str]) -> bool:
    """Whether the conversation `thread` is the owner's: `link:<name>`, or one that Link lists. All else is not."""
    if thread.startswith(_OTHERS):
        return False
    return bool(_NAMED.fullmatch(thread)) or thread in listed
