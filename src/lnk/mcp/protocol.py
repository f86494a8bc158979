"""The words of MCP that both ends share: revisions, keys of `_meta`, error codes, and reading one line."""

import json
from typing import Any, Final

from lnk.lines import TooLong, clean

MODERN: Final = ("2026-07-28",)
HANDSHAKE: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
SUPPORTED: Final = (*MODERN, *HANDSHAKE)

VERSION_META: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_META: Final = "io.modelcontextprotocol/clientInfo"
CAPABILITIES_META: Final = "io.modelcontextprotocol/clientCapabilities"
SERVER_META: Final = "io.modelcontextprotocol/serverInfo"

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
UNSUPPORTED_VERSION: Final = -32022

BATCH_MAX: Final = 100  # messages in one array, which one revision of the protocol has
ID_CHARS_MAX: Final = 1_000  # an id comes back with its answer: no answer is made large by it

Message = dict[str, Any]


class ProtocolError(Exception):
    """A JSON-RPC error to answer with: code, message, data."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data

    def as_json(self) -> Message:
        """The `error` object of an answer."""
        found: Message = {"code": self.code, "message": self.message}
        return found if self.data is None else {**found, "data": self.data}


def parse_line(line: bytes | TooLong, limit: int) -> list[Any]:
    """The messages of one line: one, or those of an array. Raises ProtocolError for what is no JSON."""
    if isinstance(line, TooLong):
        raise ProtocolError(INVALID_REQUEST, f"The line is over {limit:,} bytes; send less in one message.")
    try:
        found = json.loads(line.decode("utf-8"))
        # Half of a surrogate pair is no text: replaced here, once, so that nothing behind has to think of it.
        found = clean(found) if b"\\ud" in line or b"\\uD" in line else found
    except UnicodeDecodeError:
        raise ProtocolError(PARSE_ERROR, "The line is not UTF-8.") from None
    except RecursionError:
        raise ProtocolError(PARSE_ERROR, "The line is nested too deeply.") from None
    except ValueError as error:
        raise ProtocolError(PARSE_ERROR, f"The line is not JSON: {str(error)[:200]}.") from None
    if not isinstance(found, list):
        return [found]
    if not 1 <= len(found) <= BATCH_MAX:
        raise ProtocolError(INVALID_REQUEST, f"A batch holds from 1 to {BATCH_MAX} messages.")
    return found


def valid_id(value: Any) -> bool:
    """Whether `value` may be a request's id: text, or a number that is one."""
    if isinstance(value, str):
        return len(value) <= ID_CHARS_MAX
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
