"""What the engines of one process share, so that many cost little more than one: encoders, and turns at slow work."""

import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Final

from lnk.contract.embedding import Address
from lnk.contract.spec import MODEL_ASKED, NONE
from lnk.errors import Unavailable
from lnk.memory import builtin
from lnk.memory.embedding import Encoder
from lnk.memory.meaning import Pair
from lnk.memory.turns import Calls, GivenUp, Turns

DOCUMENTS_AT_ONCE: Final = 3  # read by all engines; one engine reads two, so that another has always one


class _Kept:
    """An encoder, as long as somebody uses it."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.turns = Turns()
        self.users = 0


class _Use:
    """One engine's use of an encoder: its documents go in turn with the others', a question goes at once."""

    def __init__(self, kept: _Kept, closed: Callable[[], object]) -> None:
        self.model = kept.encoder.model
        self.tokens = kept.encoder.tokens
        self._kept = kept
        self._closed = closed
        self._is_closed = False

    @property
    def wait_s(self) -> float:
        """As the encoder says."""
        return self._kept.encoder.wait_s

    def encode(self, texts: Sequence[str], *, query: bool = False) -> list[bytes | None]:
        """As the encoder does it. Raises Unavailable."""
        try:
            if query or len(texts) == 1:
                return self._kept.encoder.encode(texts, query=query)
            with self._kept.turns.turn(lambda: self._is_closed):
                return self._kept.encoder.encode(texts)
        except GivenUp:
            raise Unavailable("The engine is closed.") from None

    def knows(self, text: str) -> bool:
        """As the encoder says."""
        return self._kept.encoder.knows(text)

    def close(self) -> None:
        """It is used no more, which ends it where nobody else uses it. Closing twice does no harm."""
        if not self._is_closed:
            self._is_closed = True
            self._closed()


class Shared:
    """One for each process, or for each engine that is alone in it."""

    def __init__(self) -> None:
        self.documents = Turns(DOCUMENTS_AT_ONCE)
        self.calls = Calls()
        self._lock = threading.Lock()
        self._kept: dict[Hashable, _Kept] = {}

    def models(self, model: str | None, address: Address | None) -> list[Pair]:
        """What ranks by meaning, in the order in which it is asked: the model that the spec names, at its address, and
        the built-in encoder where that may stand for it.
        """
        pairs = []
        if address and model not in (builtin.MODEL, NONE):
            from lnk.memory.endpoint import QUERY_S, Endpoint  # only where there is one

            name = model or MODEL_ASKED
            # The fixed sentence goes with each question: it may not take longer than one.
            questions = self.use((name, address, "questions"), lambda: Endpoint(address, name, documents_s=QUERY_S))
            pairs.append(Pair(self.use((name, address), lambda: Endpoint(address, name)), questions))
        if model in (None, builtin.MODEL) and builtin.installed():
            encoder = self.use(builtin.MODEL, builtin.Builtin)
            pairs.append(Pair(encoder, encoder))
        return pairs

    def use(self, key: Hashable, make: Callable[[], Encoder]) -> Encoder:
        """The encoder of that key, made where nobody uses it yet, until what is given back is closed."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                kept = self._kept[key] = _Kept(make())
            kept.users += 1
            return _Use(kept, lambda: self._leave(key, kept))

    def _leave(self, key: Hashable, kept: _Kept) -> None:
        with self._lock:
            kept.users -= 1
            if kept.users:
                return
            del self._kept[key]
        kept.encoder.close()


@cache
def _trim() -> Callable[[int], object] | None:
    """What gives the C library's free memory back to the system, where it has such a thing."""
    import ctypes  # loaded already by what watches folders

    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """What this process has freed goes back to the system."""
    if trim := _trim():
        trim(0)
