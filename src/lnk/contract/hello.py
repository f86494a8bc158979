"""The first line of a connection to an engine that serves many agents, and what it is answered.

It is Link that writes it, never an agent. The standard library alone: whoever stands before the engine reads it too.
"""

import json
import re
from typing import Any, Final

from lnk.errors import Invalid, LinkError, Refused

LINE_BYTES_MAX: Final = 64 << 10
OUTDATED: Final = b'{"outdated": true}'  # said to the engine alone: a newer service is there, for who can move to it
LINE_S: Final = 5.0  # from the connection to the line's end
AGENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")  # as a file may be called: it names one in `<dir>`

# What else the documents let stand in it, which is not served yet: a session of an agent that lives elsewhere, a
# team's, and the controls.
_BOUND: Final = ("bound", "team")
_CONTROLS: Final = ("changed", "flush", "end")


def parse_hello(line: bytes) -> str:
    """The id of the agent whose session the connection is to be. Raises Invalid, and Refused for what is not served.

    What two readers could take for two things is none: a key that is there twice, or a line that is not UTF-8.
    """
    said = _read(line)
    for key in _CONTROLS:
        if key in said:
            raise Refused(f"The control {key!r} is not served: no bound agents are.")
    for key in _BOUND:
        if key in said:
            raise Refused(f"Sessions with {key!r} are not served: only those of agents on this machine are.")
    if set(said) != {"agent"}:
        raise Invalid('The first line is {"agent": "<agent id>"}, and nothing else.')
    agent = said["agent"]
    if not isinstance(agent, str) or not AGENT.fullmatch(agent):
        named = repr(agent[:64]) if isinstance(agent, str) else "no text"
        raise Invalid(f'The "agent" of the first line is {named}, and is to be an agent\'s id.')
    return agent


def format_hello(agent: str) -> bytes:
    """The first line of a session of that agent."""
    return json.dumps({"agent": agent}).encode() + b"\n"


def format_welcome(error: LinkError | str | None = None) -> bytes:
    """What the first line is answered: the session begins, or `error` is why it does not."""
    return json.dumps({"ok": True} if error is None else {"error": str(error)}).encode() + b"\n"


def parse_welcome(line: bytes) -> str | None:
    """Why the session does not begin; None where it does. Raises Invalid for what is no welcome."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict):
        if said.get("ok") is True:
            return None
        if isinstance(said.get("error"), str):
            return str(said["error"])
    raise Invalid("What the memory service answered is no welcome.")


def _read(line: bytes) -> dict[str, Any]:
    if len(line) > LINE_BYTES_MAX:
        raise Invalid(f"The first line is over {LINE_BYTES_MAX:,} bytes.")
    try:
        said = json.loads(line.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError:
        raise Invalid("The first line is not UTF-8.") from None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise Invalid("The first line is no JSON object.")
    return said


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Invalid("The first line has a key twice.")
    return found


def _constant(name: str) -> None:
    raise Invalid(f"The first line is no JSON: {name} is none of its numbers.")
