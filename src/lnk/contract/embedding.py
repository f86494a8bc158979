"""An embedding model as one program tells another of it: where it listens, and what has to be known to ask it.

The address is `$LNK_MEMORY_MODEL`. What is known of the model travels behind its `#`, which no client sends to the
server, so an engine that does not look for it asks the same server the same way.
"""

import re
from typing import Final
from urllib.parse import quote, unquote

from lnk.contract.shape import Value, format_value, parse
from lnk.errors import Invalid

ADDRESS_CHARS_MAX: Final = 4096
TOKENS: Final = 512  # an input's, where nothing is known of the model: what the smallest take
TOKENS_MAX: Final = 131_072
DIMS_MAX: Final = 8192
INSTRUCTION_CHARS_MAX: Final = 1000

_HTTP = re.compile(r"http://(127(?:\.\d{1,3}){3}|localhost|\[::1\]):(\d{1,5})((?:/[A-Za-z0-9._~-]+)*)/?")
_UNIX = re.compile(r"unix:(/[^\0#]+)")


class Facts(Value, frozen=True):
    """What has to be known to ask a model. `query` and `document` are put before a question and a document's part.

    `dims`: how many numbers of a vector are kept (the model allows it), all where left out; `tokens`: how long one
    input may be; `pooling`: how a server that has to be told makes one vector of many (`last`, `mean`, `cls`).
    """

    query: str = ""
    document: str = ""
    dims: int | None = None
    tokens: int = TOKENS
    pooling: str | None = None


class Address(Value, frozen=True):
    """Where a model listens. `host` and `port`, or the path of a `socket`; `base` is what stands before /embeddings."""

    host: str = "localhost"
    port: int = 0
    socket: str | None = None
    base: str = ""
    facts: Facts = Facts()


def parse_address(text: str) -> Address | None:
    """`$LNK_MEMORY_MODEL`: `http://127.0.0.1:<port>/v1` or `unix:<path>`, with facts behind a `#`. None for nothing.

    Raises Invalid for any other: a model elsewhere is never asked.
    """
    text = text.strip()
    if not text:
        return None
    where, _, told = text.partition("#")
    facts = check_facts(parse(unquote(told), Facts, "what $LNK_MEMORY_MODEL says of the model")) if told else Facts()
    if len(text) <= ADDRESS_CHARS_MAX:
        if (found := _HTTP.fullmatch(where)) and 0 < int(found[2]) < 65_536:
            return Address(host=found[1].strip("[]"), port=int(found[2]), base=found[3], facts=facts)
        if found := _UNIX.fullmatch(where):
            return Address(socket=found[1], base="/v1", facts=facts)
    raise Invalid(
        f"$LNK_MEMORY_MODEL is {where[:80]!r}; give the address of a model on this machine:"
        " http://127.0.0.1:<port>/v1 or unix:<path>, or nothing."
    )


def format_address(url: str, facts: Facts) -> str:
    """`url` with `facts` behind it, as `parse_address` reads it."""
    told = format_value(facts)
    return url if told == "{}" else f"{url}#{quote(told, safe='')}"


def check_facts(facts: Facts) -> Facts:
    """`facts`. Raises Invalid where one of them cannot be."""
    if facts.dims is not None and not 1 <= facts.dims <= DIMS_MAX:
        raise Invalid(f'A model\'s "dims" is {facts.dims}; give a number from 1 to {DIMS_MAX:,}.')
    if not 16 <= facts.tokens <= TOKENS_MAX:
        raise Invalid(f'A model\'s "tokens" is {facts.tokens}; give a number from 16 to {TOKENS_MAX:,}.')
    if facts.pooling not in (None, "last", "mean", "cls"):
        raise Invalid(f'A model\'s "pooling" is {facts.pooling[:40]!r}; it is last, mean or cls.')
    for told in (facts.query, facts.document):
        if len(told) > INSTRUCTION_CHARS_MAX:
            raise Invalid(f"A model's instruction is over {INSTRUCTION_CHARS_MAX:,} characters; shorten it.")
    return facts
