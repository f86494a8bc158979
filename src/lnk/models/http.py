"""One request to a server on this machine: at most so long, at most so many bytes, never another address.

No redirect is followed, no proxy asked, no name looked up. What goes wrong is said as what the server did, to stand
after its name: "did not answer in time".
"""

import base64
import binascii
import math
import re
import socket
import time
from array import array
from typing import Any, Final

import msgspec

from lnk.contract.embedding import DIMS_MAX, Address
from lnk.contract.shape import Value
from lnk.errors import Missing, Refused, Unavailable

ANSWER_BYTES_MAX: Final = 4 << 20  # a list of 1,000 models, or one vector, is far smaller
SAID_CHARS_MAX: Final = 160  # of a server's own words in ours
PROBE: Final = "Is anybody there?"

_LOOPBACK = re.compile(r"127(\.\d{1,3}){3}|::1")


class Answer(Value, frozen=True):
    """What a server answered."""

    status: int
    body: bytes


class _Socket(socket.socket):
    """A socket whose every wait ends at `until`, on the clock of `time.monotonic`."""

    until: float

    def recv_into(self, *arguments: Any) -> int:
        self.wait()
        return super().recv_into(*arguments)

    def wait(self) -> None:
        """The next call may take what is left of the time."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)


def ask(address: Address, path: str, body: Any = None, *, until: float) -> Answer:
    """The answer to GET `path`, or to POST of `body` as JSON, whole by `until` on the clock of `time.monotonic`.

    Raises Missing where nothing listens, Unavailable for any other failure.
    """
    import http.client  # a quick command does without it

    if not _LOOPBACK.fullmatch(address.host):
        raise Refused("is not on this machine, and is never asked")
    connection = http.client.HTTPConnection(address.host, address.port)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with _Socket(family, socket.SOCK_STREAM) as stream:
            stream.until = until
            stream.wait()
            stream.connect((address.host, address.port))
            connection.sock = stream
            method, data = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
            sent = {"Content-Type": "application/json"} if data else {}
            connection.request(method, path, data, {"Accept": "application/json", "Connection": "close", **sent})
            response = connection.getresponse()
            answer = Answer(status=response.status, body=response.read(ANSWER_BYTES_MAX + 1))
    except ConnectionRefusedError:
        raise Missing("does not run") from None
    except TimeoutError:
        raise Unavailable("did not answer in time") from None
    except (OSError, http.client.HTTPException, ValueError):
        raise Unavailable("broke off, or speaks no HTTP") from None
    if len(answer.body) > ANSWER_BYTES_MAX:
        raise Unavailable(f"answered with more than {ANSWER_BYTES_MAX:,} bytes")
    return answer


def ask_json(address: Address, path: str, body: Any = None, *, until: float) -> Any:
    """The JSON of an answer that worked. Raises Missing where nothing listens, Unavailable for any other failure."""
    answer = ask(address, path, body, until=until)
    if 300 <= answer.status < 400:
        raise Unavailable(f"sends on from {path} to another address, which is not followed")
    try:
        found = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        found = None
    if answer.status != 200:
        said = _said(found)
        raise Unavailable(f"answered {path} with status {answer.status}" + (f": {said}" if said else ""))
    if found is None:
        raise Unavailable(f"answered {path} with what is no JSON")
    return found


def vector_length(address: Address, model: str, *, until: float) -> int:
    """How many numbers a vector of `model` has, seen by asking for one. Raises Missing and Unavailable."""
    path = f"{address.base}/embeddings"
    found = ask_json(address, path, {"model": model, "input": PROBE}, until=until)
    try:
        vector = _numbers(found["data"][0]["embedding"])
    except (LookupError, TypeError):
        raise Unavailable(f"answered {path} with no vector") from None
    if not 0 < len(vector) <= DIMS_MAX:
        raise Unavailable(f"answered {path} with a vector of {len(vector):,} numbers")
    if not all(map(math.isfinite, vector)) or not any(vector):
        raise Unavailable(
            f"answered {path} with a vector that is no direction: its numbers are not finite, or all zero"
        )
    return len(vector)


def _numbers(said: object) -> list[float]:
    """A vector's numbers, given as a list or, as some do unasked, as base64 of float32. Raises TypeError."""
    if isinstance(said, str):
        try:
            return array("f", base64.b64decode(said, validate=True)).tolist()
        except (binascii.Error, ValueError):
            raise TypeError from None
    if not isinstance(said, list) or any(type(number) not in (int, float) for number in said):
        raise TypeError
    return said


def _said(found: object) -> str:
    """A server's own words for what went wrong, where it has some: `{"error": "…"}`, `{"error": {"message": "…"}}`."""
    error = found.get("error") if isinstance(found, dict) else None
    error = error.get("message") if isinstance(error, dict) else error
    return " ".join(error.split())[:SAID_CHARS_MAX].rstrip(".") if isinstance(error, str) else ""
