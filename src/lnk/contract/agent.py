"""What an agent's `spec.toml` and `sandbox.toml` may say: the opinions for it, and what it may write of its own.

Link reads them, and tells each program its part: an engine `[tool.memory]`, a harness the rest.
"""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from lnk.contract.shape import Value
from lnk.contract.spec import Spec, check_spec, parse_size
from lnk.contract.tables import parse_table
from lnk.errors import Corrupt, Invalid

WINDOW_UNKNOWN: Final = 32_768  # tokens of a model that nobody described
WINDOW_MAX: Final = 100_000_000  # no model has a hundredth of it: a typo

_Text = Annotated[str, Meta(description="text in quotes")]
_Tokens = Annotated[int, Meta(ge=1, le=WINDOW_MAX, description=f"a whole number of tokens, 1 to {WINDOW_MAX:,}")]
_Share = Annotated[float, Meta(ge=0, le=1, description="a share from 0 to 1")]
_Section = Annotated[str, Meta(description='the name of a file in quotes, such as "instructions/base.md"')]
_Size = Annotated[str, Meta(description='a size such as "4 KB", at most "1 MB"')]


class Tool(Value, frozen=True):
    """The tools that the agent has opinions for: `memory` is what an engine is told."""

    memory: Spec | None = None


class Sizes(Value, frozen=True):
    """The most of each section of the agent's instructions."""

    base: _Size | None = None
    model: _Size | None = None
    tools: _Size | None = None
    environment: _Size | None = None
    skills: _Size | None = None
    standing: _Size | None = None
    notes: _Size | None = None


class Instructions(Value, frozen=True):
    """What stands for each section of the agent's instructions; Link's own where it is left out."""

    base: _Section | None = None
    model: _Section | None = None
    tools: _Section | None = None
    environment: _Section | None = None
    skills: _Section | None = None
    standing: _Section | None = None
    notes: _Section | None = None
    max: Sizes = Sizes()


class Window(Value, frozen=True):
    """How much of a conversation is sent: `max` whatever is known of the model, `unknown` where nothing is.

    `answer` and `margin` are shares of it that are kept free.
    """

    max: _Tokens | None = None
    unknown: _Tokens = WINDOW_UNKNOWN
    answer: _Share | None = None
    margin: _Share | None = None


class Model(Value, frozen=True):
    """The model that speaks for the agent. `key_env` names the variable with its key; the key itself stands nowhere."""

    provider: _Text | None = None
    name: _Text | None = None
    url: _Text | None = None
    key_env: _Text | None = None
    answer: _Tokens | None = None


class SpecFile(Value, frozen=True):
    """`spec.toml`."""

    tool: Tool = Tool()
    instructions: Instructions = Instructions()
    window: Window = Window()
    model: Model = Model()


class Files(Value, frozen=True):
    """What the agent may do with its own: `instructions`, to which its notes belong, locked by "read"."""

    instructions: Annotated[Literal["read", "write"], Meta(description='"read" or "write"')] = "write"


class SandboxFile(Value, frozen=True):
    """`sandbox.toml`."""

    files: Files = Files()


def parse_spec_file(said: dict[str, Any], file: str) -> SpecFile:
    """What the TOML of the `file` says. Raises Corrupt, naming the key and what may stand there.

    Of `[tool.memory]` it raises Invalid, as the engine would to which it is told.
    """
    tool = said.get("tool")
    if isinstance(tool, dict) and "memory" in tool:
        _check_memory(parse_table(tool["memory"], Spec, file, "tool.memory"), file)
    try:
        spec = parse_table(said, SpecFile, file)
        for section in Sizes.__struct_fields__:
            if (size := getattr(spec.instructions.max, section)) is not None:
                parse_size(size, f"{file}, [instructions.max] {section}")
    except Invalid as error:
        raise Corrupt(str(error)) from None
    return spec


def _check_memory(spec: Spec, file: str) -> None:
    try:
        check_spec(spec)
    except Invalid as error:
        raise Invalid(f"{file}, [tool.memory]: {error}") from None


def parse_sandbox_file(said: dict[str, Any], file: str) -> SandboxFile:
    """What the TOML of the `file` says. Raises Corrupt, naming the key and what may stand there."""
    try:
        return parse_table(said, SandboxFile, file)
    except Invalid as error:
        raise Corrupt(str(error)) from None
