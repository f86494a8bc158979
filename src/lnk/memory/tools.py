"""The five calls as tools: their names, words, schemas, and how each is made. Knows no protocol."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from lnk.contract.shape import convert, schema
from lnk.errors import Invalid
from lnk.memory.engine import Engine, Progress
from lnk.memory.values import (
    Answer,
    Arguments,
    Found,
    Linked,
    LinksArguments,
    ListArguments,
    Listed,
    Read,
    ReadArguments,
    RememberArguments,
    Remembered,
    SearchArguments,
)

READS: Final = {"readOnlyHint": True, "openWorldHint": False}
WRITES: Final = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False}


class WrongShape(Invalid):
    """The arguments are not what the call takes."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One call: what it takes and gives, and what makes it."""

    name: str
    title: str
    description: str
    takes: type[Arguments]
    gives: type[Answer]
    annotations: dict[str, bool]
    make: Callable[[Engine, Any, Progress | None], Answer]

    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of what it takes."""
        return schema(self.takes)

    def output_schema(self) -> dict[str, Any]:
        """The JSON Schema of what it gives."""
        return schema(self.gives)

    def parse(self, arguments: Mapping[str, Any]) -> Arguments:
        """The arguments. Models fill in what may be left out: null, blank and 0 mean nothing. Raises WrongShape."""
        fields = self.takes.__struct_fields__
        needed = fields[: len(fields) - len(self.takes.__struct_defaults__)]
        given = {name: value for name, value in arguments.items() if name in needed or not _blank(value)}
        try:
            return msgspec.convert(given, self.takes, strict=False)
        except (msgspec.ValidationError, OverflowError, RecursionError, ValueError):
            pass
        try:
            return convert(given, self.takes, f"What {self.name} was given")
        except Invalid as error:
            raise WrongShape(str(error)) from None


def _blank(value: Any) -> bool:
    return value is None or value == 0 or (isinstance(value, str) and not value.strip())


TOOLS: Final = (
    Tool(
        name="search",
        title="Search memory",
        description=(
            "Search the owner's documents and past conversations by words and meaning, in any language: documents, each"
            " with its passage that answers."
        ),
        takes=SearchArguments,
        gives=Found,
        annotations=READS,
        make=lambda engine, asked, progress: engine.search(asked, progress),
    ),
    Tool(
        name="read",
        title="Read a document",
        description="Read a document's text, whole lines from `line` on; `next` is where to go on.",
        takes=ReadArguments,
        gives=Read,
        annotations=READS,
        make=lambda engine, asked, progress: engine.read(asked, progress),
    ),
    Tool(
        name="list",
        title="List documents",
        description=(
            "List documents, or with `since` what is new, changed or removed. Give `now` back as `since` to hear only"
            " what came after."
        ),
        takes=ListArguments,
        gives=Listed,
        annotations=READS,
        make=lambda engine, asked, progress: engine.list(asked, progress),
    ),
    Tool(
        name="links",
        title="Links of a document",
        description="What a document links to, and what links to it.",
        takes=LinksArguments,
        gives=Linked,
        annotations=READS,
        make=lambda engine, asked, progress: engine.links(asked, progress),
    ),
    Tool(
        name="remember",
        title="Remember in the notes",
        description=(
            "Keep a short line in the notes, in mind in every conversation. `note` adds it; `note` with `replaces`"
            " changes the one line that holds that text; `forget` removes it."
        ),
        takes=RememberArguments,
        gives=Remembered,
        annotations=WRITES,
        make=lambda engine, asked, progress: engine.remember(asked, progress),
    ),
)


def tools_for(engine: Engine) -> tuple[Tool, ...]:
    """The tools that an engine offers: `remember` only where it may write notes."""
    return TOOLS if engine.notes else TOOLS[:-1]
