"""MCP clients and their configuration: how each is told of an agent's memory, and of it no more. What else stands
in their files stays as it is."""

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from lnk.agent.folders import MAIN, Agent, format_string
from lnk.errors import Conflict, Corrupt, Invalid
from lnk.folder import Folder, make_folder

FILE_BYTES_MAX: Final = 32 << 20  # Claude Code keeps its history in the same file


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A client: where its configuration lies, under which key its servers stand, and how it is started anew."""

    name: str
    title: str
    path: Callable[[Mapping[str, str]], str]
    key: str
    after: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A client's configuration file as it is to be; `changed` is False where it is that already."""

    path: str
    before: bytes | None
    after: bytes
    entry: str

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
        ),
        Client(name="codex", title="Codex", path=_codex, key="mcp_servers", after="Start `codex` anew."),
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
        ),
    )
}


def client(name: str) -> Client:
    """The client of that name. Raises Invalid, naming those there are."""
    if name not in CLIENTS:
        raise Invalid(f"There is no set-up for the client {name[:40]!r}; there is for {', '.join(CLIENTS)}.")
    return CLIENTS[name]


def server_name(agent: Agent) -> str:
    """What the memory of an agent is called in a client."""
    return "link-memory" if agent.name == MAIN else f"link-memory-{agent.name}"


def server_entry(agent: Agent, environment: Mapping[str, str]) -> dict[str, Any]:
    """The server as clients describe one: absolute paths, since a client has its own PATH and folder."""
    argv = ["-P", "-m", "lnk.cli.program", "agent", "memory", "serve", "--agent", agent.name]
    entry: dict[str, Any] = {"command": os.path.abspath(sys.executable), "args": argv}
    if environment.get("LNK_HOME"):
        entry["env"] = {"LNK_HOME": os.path.abspath(os.path.expanduser(environment["LNK_HOME"]))}
    return entry


def plan(which: Client, agent: Agent, environment: Mapping[str, str], *, remove: bool = False) -> Change:
    """The client's configuration with the agent's memory in it, or taken out. Nothing is written.

    Raises Corrupt where the file is not understood.
    """
    path = os.path.realpath(which.path(environment))  # a person may keep it elsewhere and link it here
    before = _read(path)
    entry = None if remove else server_entry(agent, environment)
    name = server_name(agent)
    if which.name == "codex":
        after = _in_toml(before or b"", path, which.key, name, entry)
        shown = _toml_entry(which.key, name, entry) if entry else ""
    else:
        if entry is not None and which.name in ("claude-code", "vscode"):
            entry = {"type": "stdio", **entry}
        after = _in_json(before, path, which.key, name, entry)
        shown = json.dumps({which.key: {name: entry}}, indent=2, ensure_ascii=False) if entry else ""
    if remove and before is None:
        after = b""
        return Change(path=path, before=b"", after=after, entry=shown)
    return Change(path=path, before=before, after=after, entry=shown)


def write(change: Change) -> None:
    """Makes the change, whole or not at all. Raises Conflict where the file is another by now."""
    parent, _, name = change.path.rpartition("/")
    make_folder(parent)
    with Folder.open(os.path.realpath(parent)) as folder, folder.locked():
        was = folder.stat(name)
        if (folder.read(name, FILE_BYTES_MAX) if was else None) != change.before:
            raise Conflict(f"{change.path} was changed meanwhile; run it again.")
        folder.replace(name, change.after, unless_changed=was)


def _read(path: str) -> bytes | None:
    parent, _, name = path.rpartition("/")
    if not os.path.isdir(parent):
        return None
    with Folder.open(parent) as folder:
        return folder.read(name, FILE_BYTES_MAX)


def _in_json(before: bytes | None, path: str, key: str, name: str, entry: dict[str, Any] | None) -> bytes:
    if before is None or not before.strip():
        return _json({key: {name: entry}}) if entry else before or b""
    try:
        found = json.loads(before.decode("utf-8-sig"))
    except ValueError as error:
        raise Corrupt(
            f"{path} is not plain JSON ({error}), perhaps for its comments; it was not touched."
            " Add the lines that `--print` shows by hand."
        ) from None
    servers = found.get(key, {}) if isinstance(found, dict) else None
    if not isinstance(servers, dict):
        raise Corrupt(f'{path} has no object "{key}" where one should be; it was not touched.')
    if servers.get(name) == entry:
        return before
    servers = {each: value for each, value in servers.items() if each != name or entry}
    if entry:
        servers[name] = entry
    return _json({**found, key: servers}, _indent(before))


def _json(value: Any, indent: int | str = 2) -> bytes:
    return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode()


def _indent(before: bytes) -> int | str:
    found = re.search(rb"\n([ \t]+)\"", before)
    return found[1].decode() if found else 2


def _in_toml(before: bytes, path: str, key: str, name: str, entry: dict[str, Any] | None) -> bytes:
    """Edited as text, so that comments and order stay; then read again, to be sure that nothing else changed."""
    try:
        text = before.decode("utf-8")
        had = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{path} is not valid TOML ({error}); it was not touched.") from None
    servers = had.get(key, {})
    if servers.get(name) == entry:
        return before
    after = _without_table(text, key, name)
    if entry:
        after = after.rstrip("\n") + ("\n\n" if after.strip() else "") + _toml_entry(key, name, entry)
    others = {each: value for each, value in servers.items() if each != name}
    wanted = {each: value for each, value in had.items() if each != key}
    if others or entry:
        wanted[key] = {**others, name: entry} if entry else others
    found = tomllib.loads(after)
    if not found.get(key, True):
        del found[key]
    if found != wanted:
        raise Corrupt(f"{path} cannot be edited safely as it is written; add the lines that `--print` shows by hand.")
    return after.encode()


def _without_table(text: str, key: str, name: str) -> str:
    """`text` without the table `[key.name]` and those beneath it."""
    quoted = rf'(?:{re.escape(name)}|"{re.escape(name)}"|\'{re.escape(name)}\')'
    head = re.compile(rf"[ \t]*\[[ \t]*{re.escape(key)}[ \t]*\.[ \t]*{quoted}[ \t]*(?:\.[^\]]*)?\][ \t]*(?:#.*)?\r?\n?")
    kept, within = [], False
    for line in text.splitlines(keepends=True):
        if re.match(r"[ \t]*\[", line):
            within = bool(head.fullmatch(line))
        if not within:
            kept.append(line)
    return "".join(kept)


def _toml_entry(key: str, name: str, entry: dict[str, Any]) -> str:
    shown = name if re.fullmatch("[A-Za-z0-9_-]+", name) else format_string(name)
    lines = [f"[{key}.{shown}]", f"command = {format_string(entry['command'])}"]
    lines.append(f"args = [{', '.join(format_string(each) for each in entry['args'])}]")
    if "env" in entry:
        lines.append("env = { " + ", ".join(f"{k} = {format_string(v)}" for k, v in entry["env"].items()) + " }")
    return "\n".join(lines) + "\n"
