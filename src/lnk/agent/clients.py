"""MCP clients and their configuration: how each is told of an agent's memory, and of it no more. What else stands
in their files stays as it is."""

import codecs
import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec

from lnk.agent import toml
from lnk.agent.folders import MAIN
from lnk.errors import Conflict, Corrupt, Invalid
from lnk.folder import Folder, make_folder

PROGRAM: Final = "lnk.cli.program"  # the module that earlier releases had run
RUN: Final = "lnk/agent/run.py"  # the end of the path of the file that is run
FILE_BYTES_MAX: Final = 32 << 20  # Claude Code keeps its history in the same file


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A client: where its configuration lies, under which key its servers stand, and how it is started anew.

    `typed`: it wants the kind of each server said; `toml`: its configuration is TOML, not JSON.
    """

    name: str
    title: str
    path: Callable[[Mapping[str, str]], str]
    key: str
    after: str
    typed: bool = False
    toml: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A client's configuration file as it is to be; `changed` is False where it is that already. None: no file."""

    path: str
    before: bytes | None
    after: bytes | None

    @property
    def changed(self) -> bool:
        """Whether anything is to be written."""
        return self.before != self.after


def _home(environment: Mapping[str, str]) -> str:
    return environment.get("HOME") or os.path.expanduser("~")


def _vscode(environment: Mapping[str, str]) -> str:
    if sys.platform == "darwin":
        return f"{_home(environment)}/Library/Application Support/Code/User/mcp.json"
    return f"{environment.get('XDG_CONFIG_HOME') or _home(environment) + '/.config'}/Code/User/mcp.json"


def _claude(environment: Mapping[str, str]) -> str:
    return f"{environment.get('CLAUDE_CONFIG_DIR') or _home(environment)}/.claude.json"


def _codex(environment: Mapping[str, str]) -> str:
    return f"{environment.get('CODEX_HOME') or _home(environment) + '/.codex'}/config.toml"


CLIENTS: Final = {
    client.name: client
    for client in (
        Client(
            name="claude-code",
            title="Claude Code",
            path=_claude,
            key="mcpServers",
            after="Start `claude` anew; `/mcp` shows it.",
            typed=True,
        ),
        Client(name="codex", title="Codex", path=_codex, key="mcp_servers", after="Start `codex` anew.", toml=True),
        Client(
            name="cursor",
            title="Cursor",
            path=lambda environment: f"{_home(environment)}/.cursor/mcp.json",
            key="mcpServers",
            after="Open Cursor's settings, MCP, and turn it on.",
        ),
        Client(
            name="gemini-cli",
            title="Gemini CLI",
            path=lambda environment: f"{_home(environment)}/.gemini/settings.json",
            key="mcpServers",
            after="Start `gemini` anew; `/mcp` shows it.",
        ),
        Client(
            name="vscode",
            title="VS Code",
            path=_vscode,
            key="servers",
            after="Run `MCP: List Servers` in VS Code and start it.",
            typed=True,
        ),
    )
}


def client(name: str) -> Client:
    """The client of that name. Raises Invalid, naming those there are."""
    if name not in CLIENTS:
        raise Invalid(f"There is no set-up for the client {name[:40]!r}; there is for {', '.join(CLIENTS)}.")
    return CLIENTS[name]


def place_of(which: Client, environment: Mapping[str, str]) -> str:
    """Where the client's configuration really lies: a person may keep it elsewhere and link it there."""
    return os.path.realpath(which.path(environment))


def server_name(agent: str) -> str:
    """What the memory of the agent of that name is called in a client."""
    return "link-memory" if agent == MAIN else f"link-memory-{agent}"


def server_entry(which: Client, tool: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The server as the client describes one: a session with the tool `tool`, so that every call goes by its proxy.

    Absolute paths, since a client has its own PATH and folder.
    """
    argv = ["-I", "-S", os.path.join(os.path.dirname(os.path.abspath(__file__)), "run.py"), tool]
    entry: dict[str, Any] = {"type": "stdio"} if which.typed else {}
    entry |= {"command": os.path.abspath(sys.executable), "args": argv}
    if environment.get("LNK_HOME"):
        entry["env"] = {"LNK_HOME": os.path.abspath(os.path.expanduser(environment["LNK_HOME"]))}
    return entry


def lines_of(which: Client, name: str, entry: Mapping[str, Any]) -> str:
    """The lines that a person who edits the file by hand puts there."""
    if which.toml:
        return toml.table((which.key, name), entry)
    return json.dumps({which.key: {name: entry}}, indent=2, ensure_ascii=False) + "\n"


def plan(which: Client, name: str, entry: Mapping[str, Any] | None, environment: Mapping[str, str]) -> Change:
    """The client's configuration with the server `name` in it, or taken out where `entry` is None. Nothing is written.

    Raises Corrupt where the file is not understood, or could not be edited without changing something else.
    """
    path = place_of(which, environment)
    before = _read(path)
    if before is None and entry is None:
        return Change(path=path, before=None, after=None)
    edit = _in_toml if which.toml else _in_json
    try:
        after = edit(before or b"", which.key, name, entry)
    except RecursionError:
        raise _by_hand(path, "is nested too deeply") from None
    except ValueError as error:
        raise _by_hand(path, str(error)) from None
    return Change(path=path, before=before, after=after)


def ours(which: Client, environment: Mapping[str, str]) -> list[str]:
    """The names of those servers in the client's configuration that are sessions with tools of ours.

    Raises Corrupt where it is not understood and may name one.
    """
    path = place_of(which, environment)
    data = _read(path) or b""
    if PROGRAM.encode() not in data and os.path.basename(RUN).encode() not in data:
        return []
    try:
        found = _text_and_values(data)[1] if which.toml else _parsed(data)
        servers = found.get(which.key, {}).items()
        return [name for name, entry in servers if isinstance(entry, dict) and _has_ours(entry.get("args") or ())]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _by_hand(path, str(error)) from None


def _has_ours(words: Iterable[object]) -> bool:
    """Whether one of these, of a server's command, names a program of ours."""
    return any(word == PROGRAM or (isinstance(word, str) and word.endswith(f"/{RUN}")) for word in words)


def write(change: Change) -> None:
    """Makes the change, whole or not at all. Raises Conflict where the file is another by now."""
    assert change.after is not None
    parent, _, name = change.path.rpartition("/")
    make_folder(parent)
    with Folder.open(os.path.realpath(parent)) as folder, folder.locked():
        was = folder.stat(name)
        if (folder.read(name, FILE_BYTES_MAX) if was else None) != change.before:
            raise Conflict(f"{change.path} was changed meanwhile; run it again.")
        folder.replace(name, change.after, unless_changed=was)


def _by_hand(path: str, why: str) -> Corrupt:
    return Corrupt(f"{path} {why}; it was not touched. Edit it by hand, by the lines that `--print` shows.")


def _read(path: str) -> bytes | None:
    parent, _, name = path.rpartition("/")
    if not os.path.isdir(parent):
        return None
    with Folder.open(parent) as folder:
        return folder.read(name, FILE_BYTES_MAX)


def _merged(had: object, entry: Mapping[str, Any]) -> dict[str, Any]:
    """`entry` over what stood there: what a person added to it stays, in its place."""
    if not isinstance(had, dict):
        return dict(entry)
    kept = had.get("env")
    env = {key: value for key, value in kept.items() if key != "LNK_HOME"} if isinstance(kept, dict) else {}
    env |= entry.get("env", {})
    merged = {**had, **entry}
    merged.pop("env", None)
    return {**merged, "env": env} if env else merged


# ---------------------------------------------------------------- JSON


def _in_json(before: bytes, key: str, name: str, entry: Mapping[str, Any] | None) -> bytes:
    """Read and written again, since JSON has no comments to lose. Raises ValueError, RecursionError."""
    if not before.strip():
        return _json({key: {name: entry}}) if entry else before
    found = _parsed(before)
    servers = found.get(key, {}) if isinstance(found, dict) else None
    if not isinstance(servers, dict):
        raise ValueError(f'has no object "{key}" where one should be')
    wanted = {each: value for each, value in servers.items() if each != name or entry}
    if entry:
        wanted[name] = _merged(servers.get(name), entry)
    return before if wanted == servers else _json({**found, key: wanted}, like=before)


def _parsed(data: bytes) -> Any:
    """What the JSON says. Raises ValueError also for what could not be written again as it was."""
    try:
        return json.loads(
            data.decode("utf-8-sig"), parse_float=_number, parse_constant=_number, object_pairs_hook=_object
        )
    except ValueError as error:
        raise ValueError(f"is not plain JSON ({error}), perhaps for its comments") from None


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number) or Decimal(text) != Decimal(repr(number)):
        raise ValueError(f"the number {text[:40]} cannot be kept exactly")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _json(value: Any, like: bytes = b"\n") -> bytes:
    """`value` written as `like` is: its indentation, line ends and mark at the start."""
    text = json.dumps(value, indent=_indent(like), ensure_ascii=False) + ("\n" if like.endswith(b"\n") else "")
    if b"\r\n" in like:
        text = text.replace("\n", "\r\n")
    mark = codecs.BOM_UTF8 if like.startswith(codecs.BOM_UTF8) else b""
    return mark + text.encode("utf-8", "backslashreplace")  # half a character, as JavaScript cuts it: JSON's own escape


def _indent(before: bytes) -> int | str:
    found = re.search(rb"\n([ \t]+)\"", before)
    return found[1].decode() if found else 2


# ---------------------------------------------------------------- TOML


def _in_toml(before: bytes, key: str, name: str, entry: Mapping[str, Any] | None) -> bytes:
    """Edited as text, so that comments and order stay; then read again, to be sure that nothing else changed.

    Raises ValueError, RecursionError.
    """
    text, had = _text_and_values(before)
    servers = had.get(key, {})
    if not isinstance(servers, dict):
        raise ValueError(f"has no table [{key}] where one should be")
    stood = servers.get(name)
    merged = _merged(stood, entry) if entry else None
    if stood == merged:
        return before
    after = _edited(text, (key, name), stood, merged)
    wanted = {**had, key: {**servers, name: merged}}
    if merged is None:
        del wanted[key][name]
    if _without_empty(toml.values(after), key) != _without_empty(wanted, key):
        raise ValueError("cannot be edited safely as it is written")
    return after.encode()


def _text_and_values(data: bytes) -> tuple[str, dict[str, Any]]:
    try:
        text = data.decode("utf-8")
        return text, tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"is not valid TOML ({error})") from None


def _edited(text: str, path: toml.Path, stood: object, merged: Mapping[str, Any] | None) -> str:
    if stood is None:
        return toml.with_table(text, path, merged or {})
    if merged is None:
        return toml.without_table(text, path)
    had = stood if isinstance(stood, dict) else {}
    changes = {key: merged.get(key) for key in {**had, **merged} if had.get(key) != merged.get(key)}
    return toml.with_values(text, path, changes)


def _without_empty(found: dict[str, Any] | None, key: str) -> dict[str, Any] | None:
    """A table of servers without a server says what none says."""
    return found if found is None else {each: value for each, value in found.items() if each != key or value}
