"""The contract of a memory engine, `lnk-<engine>`: what its `command` prints, and whose conversation a call is of.

Source: the engine contract of the documents ("Memory engines"); requirements CONTRACT-2 and NOTES-8, -9.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec.structs import asdict

from lnk.contract.shape import Value, parse, schema
from lnk.contract.spec import Spec, check_model
from lnk.contract.thread import THREAD, THREAD_CHARS_MAX, THREAD_META
from lnk.errors import Invalid, Refused

READ_CALLS: Final = ("search", "read", "list", "links")
NOTES_CALL: Final = "remember"
SERVE_MANY: Final = "serve-many"  # of an engine that is `shared`: `serve-many <socket> <agents>`
# Of what `command` prints. An engine says more only by mistake, or to find out what its reader does with it.
SERVE_BYTES_MAX: Final = 64 << 10
WORDS_MAX: Final = 256  # of argv
ALLOWED_MAX: Final = 64
PROGRAMS_MAX: Final = 16

_CALL = re.compile(r"[A-Za-z0-9_./-]{1,128}")  # as MCP names a tool
_PLUGIN = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
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


def parse_serve(printed: bytes, program: str) -> Serve:
    """What the engine's program, at the path `program`, printed, held to the contract; `argv` begins with that path.

    Raises Invalid for what is no Serve, Refused where it names another program.
    """
    what = f"What {program} printed"
    if len(printed) > SERVE_BYTES_MAX:
        raise Invalid(f"{what} is over {SERVE_BYTES_MAX:,} bytes, which is no command; mend the engine.")
    serve = parse(printed, Serve, what)
    name = program.rpartition("/")[2]
    if not serve.argv or serve.argv[0].rpartition("/")[2] != name:
        raise Refused(f"{program} printed a command that is another program's: {serve.argv[:1]}; it is not run.")
    for wrong in _wrong(serve):
        raise Invalid(f"{what} is not valid: {wrong}; mend the engine.")
    return Serve(**{**asdict(serve), "argv": [program, *serve.argv[1:]]})


def _wrong(serve: Serve) -> Iterator[str]:
    """What in it is not as the contract has it."""
    if len(serve.argv) > WORDS_MAX or any("\0" in word for word in serve.argv):
        yield f"`argv` has more than {WORDS_MAX} words, or one that no program can be given"
    named: tuple[tuple[str, Sequence[str], int, re.Pattern[str]], ...] = (
        ("allow", serve.allow or (), ALLOWED_MAX, _CALL),
        ("programs", serve.programs or (), PROGRAMS_MAX, _PLUGIN),
    )
    for field, names, most, form in named:
        if len(names) > most:
            yield f"`{field}` names {len(names):,}, more than {most}"
        yield from (f"`{field}` names {name[:40]!r}" for name in names if not form.fullmatch(name))
    if serve.model is not None:
        try:
            check_model(serve.model)
        except Invalid:
            yield f"`model` is {serve.model[:40]!r}, which is not a model's name"
    if serve.model is not None and serve.models is False:
        yield "it asks for a `model`, but its `models` says that it reaches none"


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
        if not THREAD.fullmatch(thread):
            raise Invalid(f"The owner's threads list {thread[:THREAD_CHARS_MAX]!r}, which is not a thread's name.")
    return frozenset(threads)


def thread_of(meta: dict[str, Any]) -> str:
    """The conversation that a call names in its `_meta`. Raises Refused where it names none, or no thread's name."""
    thread = meta.get(THREAD_META)
    if not isinstance(thread, str) or not THREAD.fullmatch(thread):
        raise Refused(
            f'This call does not say which conversation it is of: set _meta["{THREAD_META}"] to the thread\'s name.'
        )
    return thread


def owners(thread: str, listed: frozenset[str]) -> bool:
    """Whether the conversation `thread` is the owner's: `link:<name>`, or one that Link lists. All else is not."""
    if thread.startswith(_OTHERS):
        return False
    return bool(_NAMED.fullmatch(thread)) or thread in listed
