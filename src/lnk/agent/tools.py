"""The tools of a person's agents: how each is defined, and what is logged of its calls.

A tool is a program that speaks MCP and runs outside every agent's sandbox; `lnk.agent.proxy` stands before it.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from lnk.agent.journal import aside, format_time
from lnk.agent.toolfolder import DEFINITION, DEFINITION_BYTES_MAX, LOG, TOOLS, check_name, folder_of
from lnk.contract.shape import Value, format_value, parse
from lnk.errors import Conflict, Corrupt, Full, Invalid, Missing, from_os
from lnk.folder import Folder, make_folder, sync

LOG_BYTES_MAX: Final = 32 << 20  # of one file: it is moved aside at 8 MiB, by whoever writes the next line
_CALL_CHARS_MAX: Final = 128


class ServedBy(Value, frozen=True):
    """A service that serves a tool: its `<dir>`, whose memory it is, and the calls that only read."""

    path: str
    agent: str
    repeats: list[str]


class Tool(Value, frozen=True):
    """A tool: what it runs, and the calls that do not ask. `made_of`: what it was defined from, for who defines it.

    Where a `service` serves it, `argv` is the same session, for whoever does not know of services.
    """

    name: str
    argv: list[str]
    allow: list[str] = msgspec.field(default_factory=list)
    title: str = ""
    made: str = ""
    stopped: bool = False
    service: ServedBy | None = None
    made_of: dict[str, str] = msgspec.field(default_factory=dict)


def variable(name: str) -> str:
    """The variable in which an agent finds the tool's address."""
    return f"LNK_TOOL_{name.upper().replace('-', '_')}"


def find_program(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command with the absolute path of its program. Raises Invalid, and Missing where it is not there."""
    if not argv or not argv[0]:
        raise Invalid("There is no command for the tool; give it behind --, as in `-- my-server --stdio`.")
    found = shutil.which(os.path.expanduser(argv[0]), path=environment.get("PATH", os.defpath))
    if not found:
        raise Missing(f"There is no program {argv[0]}; give its path, or install it first.")
    return [os.path.abspath(found), *argv[1:]]


class Tools:
    """The tools in one `Link` folder."""

    def __init__(self, link_home: str) -> None:
        self._home = link_home
        self.root = f"{link_home}/{TOOLS}"

    def folder(self, name: str) -> str:
        """Where everything of the tool lies. Raises Invalid."""
        return folder_of(self._home, name)

    def add(self, tool: Tool) -> Tool:
        """Defines the tool, in the place of one of that name; on the disk when this returns. As it was written.

        Raises Invalid, Full, and Conflict where another tool's variable is the same.
        """
        _check(tool)
        tool = msgspec.structs.replace(tool, made=tool.made or format_time(time.time()))
        data = format_value(tool).encode() + b"\n"
        if len(data) > DEFINITION_BYTES_MAX:
            raise Full(f"The definition of {tool.name} is over {DEFINITION_BYTES_MAX:,} bytes; give a shorter command.")
        make_folder(self.root, 0o700)
        with Folder.open(os.path.realpath(self.root)) as tools, tools.locked():
            for other in self.names():
                if other != tool.name and variable(other) == variable(tool.name):
                    raise Conflict(f"The tool {other} has the variable ${variable(other)} already; take another name.")
            make_folder(f"{tools.path}/{tool.name}", 0o700)
            with _opened(tools, tool.name) as folder, folder.locked():
                try:
                    os.fchmod(folder.fd, 0o700)
                except OSError as error:
                    raise from_os(error, f"make {folder.path} yours alone") from None
                folder.replace(DEFINITION, data, unless_changed=folder.stat(DEFINITION))
            sync(tools.fd)
        return tool

    def get(self, name: str) -> Tool:
        """The tool of that name. Raises Missing, Corrupt, Invalid."""
        check_name(name)
        try:
            with Folder.open(self.folder(name)) as folder:
                data = folder.read(DEFINITION, DEFINITION_BYTES_MAX)
        except Missing:
            data = None
        if data is None:
            known = ", ".join(self.names()) or "none yet"
            raise Missing(f"There is no tool {name!r} (there are: {known}); `lnk sandbox tool add {name}` defines it.")
        try:
            tool = parse(data, Tool, f"The definition of the tool {name}")
            _check(tool)
        except Invalid as error:
            raise Corrupt(f"{error} Define it again.") from None
        if tool.name != name:
            raise Corrupt(f"The definition of the tool {name} is that of {tool.name[:64]!r}; define it again.")
        return tool

    def remove(self, name: str, end: Callable[[], int] = lambda: 0) -> int:
        """The tool is no more, nor what was logged of it; its sessions are ended by `end`, whose number it gives.

        Its definition goes first: no session begins any more, and what a crash leaves is no tool. Raises Missing,
        Invalid.
        """
        path = self.folder(name)
        try:
            os.unlink(f"{path}/{DEFINITION}")
        except OSError as error:
            raise from_os(error, f"remove the tool {name}") from None
        ended = end()
        with Folder.open(os.path.realpath(self.root)) as tools:
            tools.remove_tree(name)
        return ended

    def clear(self, end: Callable[[str], int]) -> tuple[list[str], int]:
        """No tool is there any more, whatever its folder holds; `end` ends the sessions of the one of that name.

        Gives the names of those that were defined, and how many sessions ended.
        """
        names, ended = self.names(), 0
        try:
            with Folder.open(os.path.realpath(self.root)) as tools:
                for name in os.listdir(tools.fd):
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        os.unlink(f"{name}/{DEFINITION}", dir_fd=tools.fd)
                    with contextlib.suppress(Invalid):  # what is called so never was a tool
                        ended += end(name)
                    tools.remove_tree(name)
        except Missing:
            pass  # there never was one
        except OSError as error:
            raise from_os(error, f"remove the tools in {self.root}") from None
        return names, ended

    def log(self, name: str, limit: int) -> list[dict[str, Any]]:
        """The last calls of the tool, at most `limit`, oldest first. Raises Missing."""
        self.get(name)
        with Folder.open(self.folder(name)) as folder:
            data = [folder.read(file, LOG_BYTES_MAX) or b"" for file in (aside(LOG), LOG)]
        found: list[dict[str, Any]] = []
        for line in reversed(b"".join(data).splitlines()):
            if len(found) >= limit:
                break
            with contextlib.suppress(ValueError, TypeError):  # a line that a full disk cut short
                found.append(dict(json.loads(line)))
        return found[::-1]

    def names(self) -> list[str]:
        """The names of what is defined, whether it can be understood or not."""
        try:
            names = sorted(os.listdir(self.root))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise from_os(error, f"list {self.root}") from None
        return [name for name in names if os.path.isfile(f"{self.root}/{name}/{DEFINITION}")]


@contextlib.contextmanager
def _opened(tools: Folder, name: str) -> Iterator[Folder]:
    try:
        folder = tools.folder(name)
    except OSError as error:
        raise from_os(error, f"open {tools.path}/{name}") from None
    with folder:
        yield folder


def _check(tool: Tool) -> None:
    """Raises Invalid for what can be no tool."""
    check_name(tool.name)
    if not tool.argv or not os.path.isabs(tool.argv[0]):
        raise Invalid(f"The command of the tool {tool.name} begins with no absolute path of a program.")
    if any("\0" in word for word in tool.argv):
        raise Invalid(f"The command of the tool {tool.name} holds a NUL, which no command can.")
    for call in tool.allow:
        if not call or len(call) > _CALL_CHARS_MAX:
            raise Invalid(f"{call[:64]!r} is no call's name, which has 1 to {_CALL_CHARS_MAX} characters.")
