"""Agents and their folders: `~/Link/Agents/<name>/`, what an agent is called, and where everything of it lies."""

import contextlib
import os
import pwd
import re
import secrets
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from lnk.agent.toml import format_string
from lnk.contract.agent import SandboxFile, SpecFile, parse_sandbox_file, parse_spec_file
from lnk.errors import Conflict, Corrupt, Invalid, LinkError, Missing, Refused, from_os
from lnk.folder import Folder, make_folder, must_be_folder

FILE: Final = "agent.toml"
REMOVED: Final = "agent.removed.toml"
SPEC: Final = "spec.toml"
SANDBOX: Final = "sandbox.toml"
MAIN: Final = "main"
FILE_BYTES_MAX: Final = 1 << 20
PASSAGE_MODE: Final = 0o711

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID = re.compile(r"a_[a-z2-7]{12}")
_STORE = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_ID_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"


class Agent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent: `id` never changes, `folder` is absolute, `documents` a folder elsewhere that stands for `memory/`.

    `store`: the driver that keeps its conversations, where that is not its folder; its program is `lnk-<store>-store`.
    """

    id: str
    name: str
    owner: str
    created: str
    folder: str
    documents: str | None = None
    store: str | None = None

    @property
    def home(self) -> str:
        """What its tools work in."""
        return f"{self.folder}/Home"

    @property
    def own(self) -> str:
        """Its own folder: opened for traversal, not listed."""
        return f"{self.folder}/Agent"

    @property
    def notes(self) -> str:
        """Its notes file."""
        return f"{self.own}/memory/notes.md"

    def state(self, engine: str) -> str:
        """Where the memory engine typed as `engine` keeps its index."""
        return f"{self.own}/memory/{engine}"


def owner_name() -> str:
    """The user's name, who owns what is made here."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user-{os.getuid()}"


class Agents:
    """The agents in one `Link` folder."""

    def __init__(self, home: str) -> None:
        self.folder = f"{home}/Agents"

    def new(self, name: str, *, documents: str | None = None) -> Agent:
        """Makes the agent `name`, or takes up again one that was removed but for its files.

        Raises Conflict where there is one, Invalid, Missing and Refused.
        """
        check_name(name)
        documents = None if documents is None else self._elsewhere(name, documents)
        with self._alone():
            if self._has(name):
                raise Conflict(f"There is an agent {name!r} already; `lnk agent show {name}` shows it.")
            return self._make(name, documents)

    def get(self, name: str) -> Agent:
        """The agent `name`. Raises Missing, and Corrupt where its file cannot be understood."""
        check_name(name)
        if not self._has(name):
            known = ", ".join(agent.name for agent in self.all()) or "none yet"
            raise Missing(f"There is no agent {name!r} (there are: {known}); `lnk agent new {name}` makes it.")
        return _read(f"{self.folder}/{name}")

    def by_id(self, agent_id: str) -> Agent:
        """The agent of that id, whatever it is called. Raises Missing, Conflict where a copy has it too."""
        found = [agent for agent in self.all() if agent.id == agent_id]
        if not found:
            raise Missing(f"There is no agent with the id {agent_id[:64]!r}; `lnk agent list` shows them.")
        if len(found) > 1:
            names = ", ".join(agent.name for agent in found)
            raise Conflict(f"The agents {names} have the same id {agent_id}; remove the folder that is a copy.")
        return found[0]

    def need(self, name: str, documents: str | None = None) -> Agent:
        """The agent `name`; `main`, and one for a folder of `documents`, are made where there is none.

        Raises Conflict where it serves another folder.
        """
        check_name(name)
        wanted = None if documents is None else self._elsewhere(name, documents)
        if name != MAIN and wanted is None:
            return self.get(name)
        with self._alone():
            agent = self.get(name) if self._has(name) else self._make(name, wanted)
            if wanted is None or agent.documents == wanted:
                return agent
            if agent.documents is None and _is_empty(f"{agent.home}/memory"):
                agent = msgspec.structs.replace(agent, documents=wanted)
                _write(agent)
                return agent
        has = agent.documents or f"{agent.home}/memory"
        raise Conflict(
            f"The agent {name!r} has the documents of {has}; add --agent NAME to give {wanted} its own agent."
        )

    def all(self) -> list[Agent]:
        """Every agent, by name; one whose file cannot be read is left out."""
        return self.listed()[0]

    def listed(self) -> tuple[list[Agent], list[LinkError]]:
        """Every agent, by name, and what is wrong with the file of each that cannot be read."""
        try:
            names = sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return [], []
        except OSError as error:
            raise from_os(error, f"list {self.folder}") from None
        found: list[Agent] = []
        wrong: list[LinkError] = []
        for name in names:
            if _NAME.fullmatch(name) and self._has(name):
                try:
                    found.append(_read(f"{self.folder}/{name}"))
                except LinkError as error:
                    wrong.append(error)
        return found, wrong

    def remove(self, name: str, *, files: bool, first: Callable[[Agent], object]) -> Agent:
        """The agent is no more, once `first` has ended what runs for it, and removed what can be made again.

        `files`: so is everything of it, else what cannot be made again stays. Raises Refused where its folder is a
        link: what that leads to is deleted by whoever made it.
        """
        agent = self.get(name)
        if files and os.path.islink(agent.folder):
            raise Refused(f"{agent.folder} is a link; delete what it leads to yourself, then remove the agent.")
        first(agent)
        with self._alone():
            if files:
                with Folder.open(os.path.realpath(self.folder)) as folder:
                    folder.remove_tree(name)
                return agent
            try:
                os.rename(f"{agent.own}/{FILE}", f"{agent.own}/{REMOVED}")
            except OSError as error:
                raise from_os(error, f"remove {agent.folder}") from None
        return agent

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time makes or removes agents."""
        make_folder(self.folder, 0o755)
        with Folder.open(os.path.realpath(self.folder)) as folder, folder.locked():
            yield

    def _elsewhere(self, name: str, documents: str) -> str:
        """A folder of documents for the agent `name`, which is none of its own: that would be deleted with it."""
        path = documents_folder(documents)
        own = os.path.realpath(f"{self.folder}/{name}")
        if path == own or path.startswith(own + "/"):
            raise Refused(f"{path} lies in the agent's own folder; leave --documents out to use its memory/.")
        agents = os.path.realpath(self.folder)
        if path == agents or path.startswith(agents + "/"):
            raise Refused(f"{path} lies in Link's folder of agents, each of which has its own; give another folder.")
        return path

    def _has(self, name: str) -> bool:
        return os.path.isfile(f"{self.folder}/{name}/Agent/{FILE}")

    def _make(self, name: str, documents: str | None) -> Agent:
        folder = f"{self.folder}/{name}"
        agent = Agent(
            id="a_" + "".join(secrets.choice(_ID_LETTERS) for _ in range(12)),
            name=name,
            owner=owner_name(),
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            folder=folder,
            documents=documents,
        )
        make_folder(f"{agent.home}/memory", 0o755)
        _make_passage(agent.own)
        for part in ("chats", "instructions", "skills", "memory"):
            make_folder(f"{agent.own}/{part}", 0o700)
        removed = f"{agent.own}/{REMOVED}"
        if os.path.isfile(removed):
            kept = _read(folder, REMOVED)
            agent = msgspec.structs.replace(
                agent, id=kept.id, created=kept.created, documents=documents or kept.documents
            )
        _write(agent)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(removed)
        return agent


def read_spec(agent: Agent) -> SpecFile:
    """The agent's `spec.toml`, all as Link has it where there is none.

    Raises Corrupt, naming the line, or the key and what may stand there; Invalid for what no engine takes; Refused for
    a link, and so on.
    """
    return parse_spec_file(_read_toml(agent, SPEC), f"{agent.own}/{SPEC}")


def read_sandbox(agent: Agent) -> SandboxFile:
    """The same of the agent's `sandbox.toml`."""
    return parse_sandbox_file(_read_toml(agent, SANDBOX), f"{agent.own}/{SANDBOX}")


def _read_toml(agent: Agent, name: str) -> dict[str, Any]:
    with Folder.open(os.path.realpath(agent.own), passage=True) as folder:
        data = folder.read(name, FILE_BYTES_MAX)
    return {} if data is None else _parse(data, f"{agent.own}/{name}")


def _parse(data: bytes, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is no TOMLDecodeError
        raise Corrupt(f"{path} is not valid TOML: {error}; mend it by hand, nothing was changed.") from None


def _read(folder: str, name: str = FILE) -> Agent:
    path = f"{folder}/Agent/{name}"
    with Folder.open(os.path.realpath(f"{folder}/Agent"), passage=True) as own:
        data = own.read(name, FILE_BYTES_MAX)
    found = _parse(data or b"", path)
    try:
        agent = msgspec.convert({**found, "folder": folder}, Agent)
    except msgspec.ValidationError as error:
        raise Corrupt(f"{path} does not describe an agent: {error}; mend it by hand.") from None
    if not _ID.fullmatch(agent.id):
        raise Corrupt(f'{path} has the id {agent.id!r}; an id is "a_" and 12 of a-z and 2-7. Mend it by hand.')
    if agent.store is not None and not _STORE.fullmatch(agent.store):
        raise Corrupt(f"{path} has the store {agent.store!r}, which is no driver's name; mend it by hand.")
    documents = agent.documents and os.path.expanduser(agent.documents)  # a person may have written it
    if documents is not None and (not os.path.isabs(documents) or "\0" in documents):
        raise Corrupt(f"{path} has the documents {documents!r}; give the folder's whole path. Mend it by hand.")
    # An agent is called as its folder is: one that was renamed answers to the new name.
    return msgspec.structs.replace(agent, name=os.path.basename(folder), documents=documents)


def _write(agent: Agent) -> None:
    lines = [
        f"{key} = {format_string(value)}" for key, value in msgspec.structs.asdict(agent).items() if _kept(key, value)
    ]
    with Folder.open(os.path.realpath(agent.own)) as folder, folder.locked():
        folder.replace(FILE, ("\n".join(lines) + "\n").encode(), unless_changed=folder.stat(FILE))


def _kept(key: str, value: object) -> bool:
    return key != "folder" and value is not None


def check_name(name: str) -> None:
    """Raises Invalid for what can be no agent's name."""
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{name[:64]!r} is no agent's name: use letters, digits, dots, dashes and underscores, at most 64."
        )


def documents_folder(path: str) -> str:
    """A person's folder as the engine gets it: absolute, links on the way resolved here, once.

    Raises Invalid, Missing and Refused.
    """
    if not path:
        raise Invalid("The name of the folder of documents is empty; give one, or leave --documents out.")
    path = os.path.realpath(os.path.expanduser(path))
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Invalid(f"The folder of documents {path!r} is not UTF-8; rename it, or give another.") from None
    must_be_folder(path, "The folder of documents")
    if not os.access(path, os.R_OK | os.X_OK):
        raise Refused(f"The folder of documents {path} cannot be read; check its owner and mode.")
    return path


def _make_passage(path: str) -> None:
    """An agent's own folder, which others may go through but not list, whatever the umask is."""
    make_folder(path, PASSAGE_MODE)
    try:
        os.chmod(path, PASSAGE_MODE)
    except OSError as error:
        raise from_os(error, f"set the mode of {path}") from None


def _is_empty(path: str) -> bool:
    try:
        return not os.listdir(path)
    except OSError:
        return True
