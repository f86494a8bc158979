"""An embedding server for tests: right by default, and wrong in the way it is told to be. It records what it is asked.

In a test `with ModelServer("nan") as server:` and `server.url`; as a program
`python tests/ends/model_server.py --port 0 --behave nan`, which prints its address and serves until it is killed.
Its vectors are the sums of vectors that belong to the words of a text, so that texts about the same are near.
"""

import argparse
import base64
import contextlib
import gzip
import hashlib
import json
import os
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

WAIT_S: Final = 20.0  # for what has happened long before
HEAD_BYTES_MAX: Final = 1 << 16
PIECE: Final = bytes(1 << 16)  # of an answer that does not end
TOO_MANY_NUMBERS: Final = 8193  # the contract takes 8,192
NO_FIELDS: Final[Mapping[str, str]] = {}
LARGE: Final = 10_000_000_000

Entry = dict[str, Any]
Part = bytes | None  # what a behaviour sends next; None hangs up


class Asked(NamedTuple):
    """One request, and the number of the connection that it came on."""

    connection: int
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def texts(self) -> list[str]:
        """The texts whose vectors are asked for."""
        told = self.body.get("input", [])
        return [told] if isinstance(told, str) else list(told)


class ModelServer:
    """Serves from `__enter__` to `__exit__`, on a port of 127.0.0.1 or on the Unix socket `path`.

    `behave` is one of BEHAVIOURS by name, `says-<status>`, or a function of their kind. It may be set at any time, as
    may the rest. `over`: characters past which a text is refused with `status`, and with it all of its request.
    `words`: what a refusal says. `same`: words taken for others, {"auto": "car"}. `elsewhere`: where `says-302` leads.
    `pause_s`: after each byte of `slow`.
    """

    def __init__(
        self,
        behave: "str | Behaviour" = "right",
        *,
        host: str = "127.0.0.1",
        path: str | Path | None = None,
        port: int = 0,
        dims: int = 8,
        model: str = "test",
        over: int | None = None,
        status: int = 400,
        words: str = "no",
        same: Mapping[str, str] | None = None,
        elsewhere: str = "",
        pause_s: float = 1.0,
    ) -> None:
        self.behave, self.dims, self.model, self.over, self.status = behave, dims, model, over, status
        self.words, self.same, self.elsewhere = words, dict(same or {}), elsewhere
        self.pause_s = pause_s
        self.asked: list[Asked] = []
        self.connections = 0
        self.sent_bytes = 0
        self.ending = threading.Event()
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._path = path
        self._host = f"[{host}]" if ":" in host else host
        self._listening = self._listen(host, port)

    @property
    def url(self) -> str:
        """The address as `$LNK_MEMORY_MODEL` names it."""
        return f"unix:{self._path}" if self._path else f"http://{self._host}:{self.port}/v1"

    @property
    def port(self) -> int:
        """Where it listens, if that is a port."""
        return int(self._listening.getsockname()[1])

    def vector(self, text: str, model: str = "") -> list[float]:
        """The vector of a text as it is sent: of no particular length. `model`: as another gives it."""
        words = [self.same.get(word, word) for word in re.findall(r"\w+", text.casefold())]
        parts = [_word(f"{model or self.model}\0{word}", self.dims) for word in words or [f"\0{text}"]]
        return [_float32(sum(column)) for column in zip(*parts, strict=True)]

    def wait_asked(self, count: int) -> list[Asked]:
        """What it was asked, as soon as that are `count` requests."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, WAIT_S), self.asked
            return list(self.asked)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Dead from now on, as a server that was killed."""
        self.ending.set()
        with self._changed:
            for each in (self._listening, *self._open):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    # ------------------------------------------------------------ connections

    def _listen(self, host: str, port: int) -> socket.socket:
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)  # a server that was killed leaves it
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(str(self._path))
        else:
            listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
        listening.listen(64)
        return listening

    def _accept(self) -> None:
        while not self.ending.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with self._changed:
                self.connections += 1
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection, self.connections), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as heard:
            while not self.ending.is_set() and (asked := self._hear(heard, number)):
                with self._changed:
                    self.asked.append(asked)
                    self._changed.notify_all()
                if not self._say(connection, asked):
                    break
        with self._changed:
            self._open.discard(connection)

    def _hear(self, heard: Any, number: int) -> Asked | None:
        """The next request, None where there is none or it is to be left unread."""
        line = heard.readline(HEAD_BYTES_MAX).decode("latin-1").split()
        if len(line) != 3:
            return None
        headers = {}
        while field := heard.readline(HEAD_BYTES_MAX).decode("latin-1").strip():
            name, _, value = field.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        body = {} if self.behave == "early" and self.over and length > self.over else _json(heard.read(length))
        return Asked(number, line[0], line[1], headers, body)

    def _say(self, connection: socket.socket, asked: Asked) -> bool:
        """Whether the connection is to be served further."""
        for part in self._answer(asked):
            if part is None or self.ending.is_set():
                return False
            connection.sendall(part)
            self.sent_bytes += len(part)
        return True

    def _answer(self, asked: Asked) -> Iterator[Part]:
        if not (asked.method == "POST" and asked.path.endswith("/embeddings")):
            return iter((_http(b"{}", 404),))
        if not isinstance(self.behave, str):
            return self.behave(self, asked)
        if self.over is not None and self.behave != "early" and any(len(text) > self.over for text in asked.texts):
            return iter((_trouble(self.status, self.words),))
        if self.behave.startswith("says-"):
            return iter((self._says(int(self.behave.removeprefix("says-"))),))
        return BEHAVIOURS[self.behave](self, asked)

    def _says(self, status: int) -> bytes:
        more = {"Location": f"{self.elsewhere}/embeddings"} if 300 <= status < 400 else {}
        if status in (429, 503):
            more["Retry-After"] = "7"
        return _trouble(status, self.words, more)

    # ------------------------------------------------------------ answers

    def entries(self, asked: Asked, model: str = "") -> list[Entry]:
        """What a right answer holds of each text, as numbers."""
        vectors = [self.vector(text, model) for text in asked.texts]
        return [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]

    def body(self, asked: Asked, entries: list[Entry]) -> bytes:
        """The JSON of an answer, its vectors in the form that was asked for. It names another model, as many do."""
        coded = asked.body.get("encoding_format") == "base64"
        data = [{**each, "embedding": _base64(each["embedding"])} for each in entries] if coded else entries
        return json.dumps(
            {"object": "list", "model": "gpt-3.5-turbo", "usage": {"total_tokens": 1}, "data": data}
        ).encode()


Behaviour = Callable[[ModelServer, Asked], Iterator[Part]]


def _json(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _word(word: str, dims: int) -> list[float]:
    """A word's own numbers: from -1 to 1, and none of them 0."""
    drawn = hashlib.shake_256(word.encode("utf-8", "replace")).digest(2 * dims)
    return [number / 32768 - 1 + 1 / 65536 for number in struct.unpack(f"<{dims}H", drawn)]


def _float32(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def _base64(numbers: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def _http(body: bytes, status: int = 200, fields: Mapping[str, str] = NO_FIELDS) -> bytes:
    """A whole answer."""
    return _head({"Content-Length": str(len(body)), **fields}, status) + body


def _head(fields: Mapping[str, str], status: int = 200) -> bytes:
    lines = "".join(f"{name}: {told}\r\n" for name, told in {"Content-Type": "application/json", **fields}.items())
    return f"HTTP/1.1 {status} told so\r\n{lines}\r\n".encode()


def _trouble(status: int, words: str, fields: Mapping[str, str] = NO_FIELDS) -> bytes:
    return _http(json.dumps({"error": {"code": status, "message": words}}).encode(), status, fields)


def _chunk(part: bytes) -> bytes:
    return b"%x;a=b\r\n%b\r\n" % (len(part), part)


# ------------------------------------------------------------ behaviours


def _of_entries(change: Callable[[ModelServer, list[Entry]], list[Entry]]) -> Behaviour:
    """A whole answer whose entries are changed."""

    def behaviour(server: ModelServer, asked: Asked) -> Iterator[Part]:
        yield _http(server.body(asked, change(server, server.entries(asked))))

    return behaviour


def _of_last(change: Callable[[list[float]], list[float]]) -> Behaviour:
    """A whole answer with the last of its vectors changed."""
    return _of_entries(
        lambda server, entries: [*entries[:-1], {**entries[-1], "embedding": change(entries[-1]["embedding"])}]
    )


def _of_body(change: Callable[[bytes], bytes], fields: Mapping[str, str] = NO_FIELDS) -> Behaviour:
    """A whole answer whose JSON is changed."""

    def behaviour(server: ModelServer, asked: Asked) -> Iterator[Part]:
        yield _http(change(server.body(asked, server.entries(asked))), 200, fields)

    return behaviour


def _numbered(*numbers: int) -> Behaviour:
    """A whole answer whose first entries say that they are of these texts."""
    return _of_entries(
        lambda server, entries: [
            {**each, "index": numbers[at] if at < len(numbers) else at} for at, each in enumerate(entries)
        ]
    )


def _lists(behave: str) -> Behaviour:
    """As another behaviour, by a server that does not know `encoding_format`."""
    return lambda server, asked: BEHAVIOURS[behave](server, asked._replace(body={"input": asked.texts}))


def _other_model(server: ModelServer, asked: Asked) -> Iterator[Part]:
    yield _http(server.body(asked, server.entries(asked, f"not {server.model}")))


def _endless(server: ModelServer, asked: Asked) -> Iterator[Part]:
    yield _head({"Content-Length": str(LARGE)})
    while True:
        yield PIECE


def _endless_unsaid(server: ModelServer, asked: Asked) -> Iterator[Part]:
    yield _head({"Connection": "close"})
    while True:
        yield PIECE


def _endless_chunks(server: ModelServer, asked: Asked) -> Iterator[Part]:
    yield _head({"Transfer-Encoding": "chunked"})
    while True:
        yield _chunk(PIECE)


def _endless_headers(server: ModelServer, asked: Asked) -> Iterator[Part]:
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"X: y\r\n"


def _endless_header(server: ModelServer, asked: Asked) -> Iterator[Part]:
    yield b"HTTP/1.1 200 OK\r\nX: "
    while True:
        yield PIECE


def _endless_continue(server: ModelServer, asked: Asked) -> Iterator[Part]:
    while True:
        yield b"HTTP/1.1 100 Continue\r\n\r\n"


def _endless_trouble(server: ModelServer, asked: Asked) -> Iterator[Part]:
    yield _head({"Transfer-Encoding": "chunked"}, 400)
    while True:
        yield _chunk(PIECE)


def _slow(server: ModelServer, asked: Asked) -> Iterator[Part]:
    for byte in _http(server.body(asked, server.entries(asked))):
        yield bytes((byte,))
        server.ending.wait(server.pause_s)


def _silent(server: ModelServer, asked: Asked) -> Iterator[Part]:
    server.ending.wait()
    yield None


def _chunked(server: ModelServer, asked: Asked) -> Iterator[Part]:
    body = server.body(asked, server.entries(asked))
    yield _head({"Transfer-Encoding": "chunked"})
    for at in range(0, len(body), 100):
        yield _chunk(body[at : at + 100])
    yield b"0\r\nTrailer: x\r\n\r\n"


def _broken(server: ModelServer, asked: Asked) -> Iterator[Part]:
    answer = _http(server.body(asked, server.entries(asked)))
    yield answer[: len(answer) - 20]
    yield None


def _broken_chunk(server: ModelServer, asked: Asked) -> Iterator[Part]:
    body = server.body(asked, server.entries(asked))
    yield _head({"Transfer-Encoding": "chunked"}) + _chunk(body)[:-20]
    yield None


def _hung_up(server: ModelServer, asked: Asked) -> Iterator[Part]:
    yield None


def _hung_up_later(server: ModelServer, asked: Asked) -> Iterator[Part]:
    """Answers the first request of a connection; a later one finds it closed only when it is already sent."""
    if sum(each.connection == asked.connection for each in server.asked) == 1:
        yield _http(server.body(asked, server.entries(asked)))
    else:
        yield None


def _hung_up_after(server: ModelServer, asked: Asked) -> Iterator[Part]:
    """Says that the connection stays, and closes it."""
    yield _http(server.body(asked, server.entries(asked)), fields={"Connection": "keep-alive"})
    yield None


def _surplus(server: ModelServer, asked: Asked) -> Iterator[Part]:
    """More than the length that it said: what reads on there takes it for the next answer."""
    yield _http(server.body(asked, server.entries(asked))) + b"HTTP/1.1 404 surplus\r\n\r\n" + PIECE


def _bare(server: ModelServer, asked: Asked) -> Iterator[Part]:
    """As HTTP/0.9 answers."""
    yield server.body(asked, server.entries(asked))
    yield None


def _old(server: ModelServer, asked: Asked) -> Iterator[Part]:
    """As HTTP/1.0 answers: no length, and the end is the end."""
    yield b"HTTP/1.0 200 OK\r\n\r\n" + server.body(asked, server.entries(asked))
    yield None


def _early(server: ModelServer, asked: Asked) -> Iterator[Part]:
    """Refuses a long request before it has read it, and hangs up on the rest."""
    if asked.body:
        yield _http(server.body(asked, server.entries(asked)))
    else:
        yield _trouble(413, "too large")
        yield None


_NAN, _INF = float("nan"), float("inf")
_HUGE = b"9" * 5000

BEHAVIOURS: Final[dict[str, Behaviour]] = {
    # right, in other ways
    "right": _of_entries(lambda server, entries: entries),
    "lists": _lists("right"),
    "shuffled": _of_entries(lambda server, entries: entries[::-1]),
    "chunked": _chunked,
    "old": _old,
    "cookie": _of_body(lambda body: body, {"Set-Cookie": "session=1; Path=/"}),
    "hung-up-after": _hung_up_after,
    "hung-up-later": _hung_up_later,
    "surplus": _surplus,
    "early": _early,
    # another model than before
    "other-model": _other_model,
    "other-dims": _of_entries(
        lambda server, entries: [{**each, "embedding": [*each["embedding"], 1.0]} for each in entries]
    ),
    # vectors that are none
    "nan": _of_last(lambda numbers: [*numbers[:-1], _NAN]),
    "nan-list": _lists("nan"),
    "inf": _of_last(lambda numbers: [_INF, *numbers[1:]]),
    "zeros": _of_last(lambda numbers: [0.0] * len(numbers)),
    "one-longer": _of_last(lambda numbers: [*numbers, 1.0]),
    "one-empty": _of_last(lambda numbers: []),
    "too-long": _of_entries(
        lambda server, entries: [{**each, "embedding": [1.0] * TOO_MANY_NUMBERS} for each in entries]
    ),
    "odd-bytes": _of_body(lambda body: re.sub(rb'"embedding": "[^"]*"', b'"embedding": "AAAAAAA="', body)),
    "not-base64": _of_body(lambda body: re.sub(rb'"embedding": "[^"]*"', b'"embedding": "%%%%"', body)),
    "null": _of_body(lambda body: re.sub(rb'"embedding": "[^"]*"', b'"embedding": [0.5, null]', body)),
    "huge-numbers": _of_body(lambda body: re.sub(rb'"embedding": "[^"]*"', b'"embedding": [1, %b]' % _HUGE, body)),
    "huge-exponent": _of_body(lambda body: re.sub(rb'"embedding": "[^"]*"', b'"embedding": [1e999]', body)),
    # whose vectors they are
    "too-few": _of_entries(lambda server, entries: entries[:-1]),
    "too-many": _of_entries(lambda server, entries: [*entries, {**entries[-1], "index": len(entries)}]),
    "twice": _numbered(0, 0),
    "negative": _numbered(-1),
    "huge-index": _numbered(1 << 80),
    "no-index": _of_entries(lambda server, entries: [{"embedding": each["embedding"]} for each in entries]),
    # answers that are none
    "not-json": _of_body(lambda body: b"<html>It works!</html>"),
    "not-utf8": _of_body(lambda body: b'{"data": "\xff\xfe"}'),
    "nested": _of_body(lambda body: b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"," + body[1:]),
    "list": _of_body(lambda body: b"[]"),
    "nothing": _of_body(lambda body: b""),
    "gzip": _of_body(gzip.compress, {"Content-Encoding": "gzip"}),
    "bare": _bare,
    "hung-up": _hung_up,
    "broken": _broken,
    "broken-chunk": _broken_chunk,
    # without end
    "endless": _endless,
    "endless-unsaid": _endless_unsaid,
    "endless-chunks": _endless_chunks,
    "endless-headers": _endless_headers,
    "endless-header": _endless_header,
    "endless-continue": _endless_continue,
    "endless-trouble": _endless_trouble,
    "slow": _slow,
    "silent": _silent,
}


def main() -> None:
    """Serves as its arguments say; prints the address first."""
    parser = argparse.ArgumentParser(description="An embedding server for tests.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", help="the path of a Unix socket")
    where.add_argument("--port", type=int, help="of 127.0.0.1; 0 for a free one")
    parser.add_argument("--behave", default="right", help=f"{', '.join(BEHAVIOURS)}, or says-<status>")
    parser.add_argument("--dims", type=int, default=8)
    parser.add_argument("--model", default="test", help="whose vectors: another name, other vectors")
    parser.add_argument("--over", type=int, help="characters past which a text is refused")
    parser.add_argument("--status", type=int, default=400, help="with which it is")
    told = parser.parse_args()
    if told.behave not in BEHAVIOURS and not re.fullmatch(r"says-[1-9]\d\d", told.behave):
        parser.error(f"{told.behave} is no behaviour")
    more = {"dims": told.dims, "model": told.model, "over": told.over, "status": told.status}
    with ModelServer(told.behave, path=told.socket, port=told.port or 0, **more) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            server.ending.wait()


if __name__ == "__main__":
    main()
