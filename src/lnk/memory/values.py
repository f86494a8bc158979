"""What the five calls take and give: one definition each for the type, the parser and the JSON Schema."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What a call takes. Arguments of other names are left alone: clients add their own."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a call gives; what is not so is left out."""


Path = Annotated[str, Meta(description="a document or folder: memory/…, chats/…")]
Kind = Literal["document", "conversation"]
Tokens = Annotated[int, Meta(description="answer size, 50-50000 (default 6000)")]
Next = Annotated[str, Meta(description="`next` of the last answer")]
Since = Annotated[float | str, Meta(description="2026-11-02, 2026-11-02T09:30, or `now` of list")]
Range = list[int]  # first and last


class Count(Answer, frozen=True):
    done: int
    of: int


class SearchArguments(Arguments, frozen=True):
    query: Annotated[str, Meta(description="empty with since or path: the newest")]
    since: Since | None = None
    path: Path | None = None
    kind: Kind | None = None
    tokens: Tokens | None = None
    next: Next | None = None


class Result(Answer, frozen=True):
    path: str
    title: str
    kind: str
    changed: str
    matched: list[str]
    lines: Range
    text: str
    pages: Range | None = None
    copies: list[str] | None = None


class Found(Answer, frozen=True):
    results: list[Result]
    next: str | None = None
    embedded: Count | None = None
    indexed: Count | None = None
    stale: str | None = None
    empty: str | None = None


class ReadArguments(Arguments, frozen=True):
    path: Annotated[str, Meta(description="as search gives it; or notes.md, skills/<name>/SKILL.md")]
    line: Annotated[int, Meta(description="first line")] | None = None
    tokens: Tokens | None = None


class Read(Answer, frozen=True):
    path: str
    title: str
    kind: str
    changed: str
    text: str
    lines: Range
    of: int
    pages: Range | None = None
    next: int | None = None
    cut: bool | None = None
    stale: str | None = None


class ListArguments(Arguments, frozen=True):
    path: Path | None = None
    kind: Literal["document", "conversation", "skill", "notes"] | None = None
    since: Since | None = None
    tokens: Tokens | None = None
    next: Next | None = None


class Entry(Answer, frozen=True):
    path: str
    title: str
    kind: str
    changed: str
    bytes: int
    state: Literal["new", "changed"] | None = None
    left_out: str | None = None


class Removed(Answer, frozen=True):
    path: str
    title: str
    removed: str


class Listed(Answer, frozen=True):
    documents: list[Entry]
    now: float
    removed: list[Removed] | None = None
    left: int | None = None
    next: str | None = None
    indexed: Count | None = None
    stale: str | None = None
    remade: str | None = None


class LinksArguments(Arguments, frozen=True):
    path: str
    tokens: Tokens | None = None


class LinkTo(Answer, frozen=True, rename={"written": "as"}):
    written: str
    line: int
    path: str | None = None
    title: str | None = None
    missing: bool | None = None


class LinkFrom(Answer, frozen=True, rename={"written": "as"}):
    path: str
    title: str
    written: str
    line: int


class Linked(Answer, frozen=True):
    path: str
    to: list[LinkTo]
    from_: list[LinkFrom] = msgspec.field(name="from")
    left: int | None = None
    indexed: Count | None = None
    stale: str | None = None


class RememberArguments(Arguments, frozen=True):
    note: Annotated[str, Meta(description="the line to add, or the new one for replaces")] | None = None
    replaces: Annotated[str, Meta(description="a piece of the one line to change")] | None = None
    forget: Annotated[str, Meta(description="a piece of the one line to remove")] | None = None


class Remembered(Answer, frozen=True):
    notes: str
    bytes: int
    of: int
