"""An agent's memory: which engine serves it, with what, and a session with it. Any engine of the contract will do."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from lnk import __version__
from lnk.agent.folders import Agent, read_toml
from lnk.contract.memory import Serve
from lnk.contract.shape import format_value, parse
from lnk.errors import Corrupt, LinkError, Missing, Refused, Unavailable
from lnk.mcp.client import Program

ENGINE: Final = "link"
MEMORIES: Final = {"link": "link-memory"}  # how an engine is typed -> its plugin; any other name is its own plugin
COMMAND_WAIT_S: Final = 20
_STATUSES = {kind.status: kind for kind in LinkError.__subclasses__()}


def program_of(engine: str = ENGINE) -> str:
    """The absolute path of an engine's program: beside our own interpreter, else on the PATH. Raises Missing."""
    name = f"lnk-{MEMORIES.get(engine, engine)}"
    beside = os.path.join(os.path.dirname(sys.executable), name)
    found = beside if os.access(beside, os.X_OK) else shutil.which(name)
    if not found:
        raise Missing(f"The program {name} is not installed beside {sys.executable}, nor on the PATH.")
    return os.path.abspath(found)


def serve_of(agent: Agent, environment: Mapping[str, str], engine: str = ENGINE) -> Serve:
    """How the engine serves the agent, as its `command` prints it, `argv[0]` made absolute. Raises what it refuses."""
    program = program_of(engine)
    argv = [program, "command", agent.home, agent.state(engine), agent.own]
    serve = parse(run(argv, engine_environment(agent, environment)), Serve, f"What {program} printed")
    if not serve.argv or os.path.basename(serve.argv[0]) != os.path.basename(program):
        raise Refused(f"{program} printed a command that is another program's: {serve.argv[:1]}; it is not run.")
    return msgspec.structs.replace(serve, argv=[program, *serve.argv[1:]])


def engine_environment(agent: Agent, environment: Mapping[str, str]) -> dict[str, str]:
    """What an engine's command is told: the agent's opinions, its notes file where they may be written."""
    told = {key: value for key, value in environment.items() if not key.startswith("LNK_MEMORY_")}
    spec = _table(agent, "spec.toml", "tool").get("memory")
    if spec is not None:
        told["LNK_MEMORY_SPEC"] = format_value(spec)
    files = _table(agent, "sandbox.toml", "files")
    instructions = files.get("instructions", "write")
    if instructions not in ("read", "write"):
        raise Corrupt(f'{agent.own}/sandbox.toml has [files] instructions = {instructions!r}; it is "read" or "write".')
    if instructions == "write":
        told["LNK_MEMORY_NOTES"] = agent.notes
    if agent.documents:
        told["LNK_MEMORY_DOCUMENTS"] = agent.documents
    return told


def _table(agent: Agent, file: str, name: str) -> dict[str, Any]:
    """A table of one of the agent's files; empty where there is none. Raises Corrupt where it is no table."""
    found = read_toml(agent, file).get(name, {})
    if not isinstance(found, dict):
        raise Corrupt(f"{agent.own}/{file} has {name} = {found!r}, where a table [{name}] should be; mend it by hand.")
    return found


def run(argv: list[str], environment: Mapping[str, str], wait_s: float | None = COMMAND_WAIT_S) -> str:
    """What a command of the engine prints. Raises the kind of error that its exit status says, in its own words."""
    try:
        done = subprocess.run(
            argv, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, timeout=wait_s
        )
    except OSError as error:
        raise Missing(f"Could not start {argv[0]}: {error.strerror}.") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{argv[0]} {argv[1]} did not answer within {wait_s:g} s.") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        said = said.partition(": ")[2] or said or f"{argv[0]} ended with status {done.returncode}."
        raise _STATUSES.get(done.returncode, Unavailable)(said)
    return done.stdout.decode("utf-8", "replace")


def session(agent: Agent, environment: Mapping[str, str], *, hear: Callable[[str], None] | None = None) -> Program:
    """A session with the agent's memory, over MCP; `hear` is given what the engine says beside. Use as a context."""
    return Program(serve_of(agent, environment).argv, version=__version__, hear=hear)
