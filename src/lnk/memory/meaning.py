"""Search by meaning over one index: which model serves, its vectors made behind, and a question's vector in time.

Words never wait for a model: a search waits for its question's vector about as long as this model takes, and not at
all for one that does not answer. One process of all that share an index embeds, under a kernel lock; the others
find the vectors in the index.
"""

import contextlib
import fcntl
import os
import queue
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from lnk.errors import LinkError, Unavailable, from_os
from lnk.folder import Folder
from lnk.memory import embedded
from lnk.memory.embedded import Kept, Progress
from lnk.memory.embedding import PROBE, Encoder
from lnk.memory.filters import Filter
from lnk.memory.index import Index
from lnk.memory.ranking import Hit
from lnk.memory.vectors import quantize

LOCK: Final = "embed.lock"
BATCH_CHUNKS: Final = 16
RETRY_S: Final = 10.0  # how often a model that did not answer is asked again, and another process's lock looked at
WAIT_LEAST_S: Final = 0.3  # a search waits for its question's vector so long at least, once,
WAIT_MOST_S: Final = 1.0  # and so long at most, where this model takes long by itself
WAIT_TIMES: Final = 4.0  # as many times as a question took lately
ENOUGH: Final = 0.5  # of the chunks: from so many on the model that was asked for serves
QUESTIONS_KEPT: Final = 64  # whose vectors are known, for the next page and the same question again
NICE: Final = 10


class Pair(NamedTuple):
    """One model's encoder twice: for documents, and for questions, which do not wait for documents."""

    documents: Encoder
    questions: Encoder


class _Model:
    """A model as it stands. `id` is its vectors' in the index; `checked`: it still is the model that made them."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.name = pair.documents.model
        self.id: int | None = None
        self.probe = b""
        self.kept: Kept | None = None
        self.checked = False
        self.share = 0.0  # of the chunks that have a vector
        self.takes_s = WAIT_MOST_S / WAIT_TIMES  # a question, lately; at first it may have to be loaded
        self.silent = False  # it did not answer the last question in time
        self.why: str | None = None  # it did not answer at all

    def be(self, number: int, probe: bytes) -> None:
        """The vectors under this id are the model's."""
        if number != self.id:
            self.id, self.probe, self.kept = number, probe, Kept(number, len(probe) // 4)


class Question:
    """A question on its way to its vector."""

    def __init__(self, text: str, model: _Model | None = None) -> None:
        self.text = text
        self.model = model
        self.vector: bytes | None = None
        self.wait_s = 0.0
        self.ready = threading.Event()


class Meaning:
    """Owns the encoders, the thread that embeds and the one that asks. `ask` and `rank` are for the calls' thread."""

    def __init__(self, open_index: Callable[[], Index], state: Folder, pairs: Sequence[Pair]) -> None:
        """`pairs`: the models in the order in which they are asked; none: no model is there."""
        self._open = open_index
        self._state = state
        self._models = [_Model(pair) for pair in pairs]
        self._changed = threading.Condition()
        self._stopping = False
        self._poked = False
        self._embedded_at = -1  # the index's count of changes to chunks when all had vectors
        self._asked: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._answers: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._threads = [
            threading.Thread(target=self._embed, name="embed", daemon=True),
            threading.Thread(target=self._answer, name="ask", daemon=True),
        ]

    def start(self) -> None:
        """Begin to embed, behind, when `poke` says that there is something."""
        if self._models:
            for thread in self._threads:
                thread.start()

    def stop(self, wait_s: float) -> bool:
        """End at once; what is not kept yet is embedded the next time. False where that took longer than `wait_s`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._asked.put(None)
        for model in self._models:
            for encoder in model.pair:
                encoder.close()
        until = time.monotonic() + wait_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def poke(self) -> None:
        """There may be something new to embed."""
        with self._changed:
            self._poked = True
            self._changed.notify_all()

    # ------------------------------------------------------------ a search

    def ask(self, index: Index, text: str) -> Question:
        """Sends a question to the model that serves; `rank` takes its vector."""
        self._take_up(index)
        model = self._serving()
        question = Question(text, model)
        if model is None or model.id is None:
            return question
        if model.checked and (vector := self._answers.get((model.id, text))):
            question.vector = vector
            question.ready.set()
            return question
        question.wait_s = 0.0 if model.silent else min(max(WAIT_TIMES * model.takes_s, WAIT_LEAST_S), WAIT_MOST_S)
        self._asked.put(question)
        return question

    def rank(
        self, index: Index, question: Question, where: Filter
    ) -> tuple[Callable[[int], list[Hit]] | None, Progress]:
        """What gives the documents nearest to the question, as many as asked for, and how far the model got.

        None: the model did not answer in time, or there is none.
        """
        model = question.model
        if model is None or model.kept is None:
            return None, embedded.progress(index, None)
        question.ready.wait(question.wait_s)
        kept, vector = model.kept, question.vector
        if kept is None or vector is None:
            model.silent = True
            return None, embedded.progress(index, None)
        progress = kept.refresh(index)
        model.share = progress.share
        return lambda best: kept.rank(index, vector, where, best), progress

    def progress(self, index: Index) -> tuple[str | None, Progress, str | None]:
        """The model that serves, how far it got, and why none does, or one that should does not."""
        self._take_up(index)
        model = self._serving()
        why = next((each.why for each in self._models if each.why), None)
        if model is None or model.kept is None:
            return None, embedded.progress(index, None), why
        return model.name, embedded.progress(index, model.id), why

    def _take_up(self, index: Index) -> None:
        """A model's vectors may be there from before, though it is not loaded yet."""
        for model in self._models:
            if model.id is None and not model.checked and (found := embedded.latest(index, model.name)):
                model.be(*found)
                model.share = embedded.progress(index, model.id).share

    def _serving(self) -> _Model | None:
        """The model that was asked for where it has most of the folder, else the one that has more of it."""
        there = [model for model in self._models if model.id is not None]
        for model in there:
            if model.share >= ENOUGH and not model.why:
                return model
        return max(there, key=lambda model: (not model.why, model.share), default=None)

    def _answer(self) -> None:
        """The thread that asks: one question after the other."""
        while (question := self._asked.get()) is not None:
            model = question.model
            assert model
            try:
                if not model.checked and not self._still(model):
                    continue  # another model answers there by now: its vectors are made first
                began = time.monotonic()
                (vector,) = model.pair.questions.encode([question.text], query=True)
                model.takes_s = max(time.monotonic() - began, model.takes_s * 0.8)
            except (LinkError, ValueError) as error:
                model.why, model.silent = str(error), True
            else:
                model.why, model.silent = None, False
                if vector is not None and model.id is not None:
                    question.vector = self._answers[model.id, question.text] = vector
                    while len(self._answers) > QUESTIONS_KEPT:
                        self._answers.popitem(last=False)
            finally:
                question.ready.set()

    def _still(self, model: _Model) -> bool:
        """Whether the model that answers is the one whose vectors the index has."""
        (probe,) = model.pair.questions.encode([PROBE], query=False)
        if probe is not None and embedded.same(probe, model.probe):
            model.checked = True
            return True
        model.id, model.kept = None, None
        self.poke()
        return False

    # ------------------------------------------------------------ behind

    def _embed(self) -> None:
        """The thread that embeds: a pass whenever something changed, and while a model does not answer."""
        with contextlib.suppress(OSError, AttributeError):  # where each thread has its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        index: Index | None = None
        again = False
        while True:
            with self._changed:
                if not (self._poked or self._stopping):
                    self._changed.wait(RETRY_S if again else None)
                self._poked = False
                if self._stopping:
                    break
            try:
                if index is not None and index.replaced():
                    index.close()
                    index = None
                index = index or self._open()
                again = self._pass(index)
            except Exception as error:  # the top of the thread: said, and tried again
                again = True
                if not self._stopping:
                    sys.stderr.write(f"lnk-link-memory: embedding failed: {type(error).__name__}: {error}\n")
        if index is not None:
            index.close()

    def _pass(self, index: Index) -> bool:
        """Everything that waits is embedded. Whether to come again though nothing changed."""
        chunks = embedded.changes(index)[0]
        if chunks == self._embedded_at and self._models[0].checked:
            return False
        for place, model in enumerate(self._models):
            try:
                if not self._model(index, model, short=place > 0):
                    return True
            except Unavailable as error:
                if self._stopping:
                    return False
                model.why, model.checked = str(error), False
                continue
            if place == 0:
                self._embedded_at = chunks
            return place > 0
        return True

    def _model(self, index: Index, model: _Model, *, short: bool) -> bool:
        """What waits for this model is embedded. False where some is left: another process is at it, or time is up."""
        self._take_up(index)
        if model.id is not None and not embedded.waiting(index, model.id):
            model.share = 1.0
            embedded.sweep(index)
            return True
        with self._alone() as alone:
            if not alone:
                return False
            if not model.checked:
                self._bind(index, model)
            assert model.id is not None
            until = time.monotonic() + RETRY_S if short else None
            chunks = embedded.waiting(index, model.id)
            for at in range(0, len(chunks), BATCH_CHUNKS):
                if self._stopping or (until and time.monotonic() > until):
                    return False
                self._batch(index, model, chunks[at : at + BATCH_CHUNKS])
                model.share = max(model.share, 1 - (len(chunks) - at) / max(1, embedded.progress(index, None).of))
            embedded.sweep(index)
        return True

    def _bind(self, index: Index, model: _Model) -> None:
        """Which model it is that answers, by its vector of a fixed sentence."""
        (probe,) = model.pair.documents.encode([PROBE])
        if probe is None:
            raise Unavailable(f"The model {model.name} takes no text.")
        model.be(embedded.model_id(index, model.name, probe), probe)
        model.checked, model.why = True, None

    def _batch(self, index: Index, model: _Model, chunks: list[int]) -> None:
        assert model.id is not None
        items = embedded.read(index, chunks, model.pair.documents.tokens)
        texts = list(dict.fromkeys(one.text for one in items))
        vectors = embedded.known(index, model.id, texts)
        new = [text for text in texts if text not in vectors]
        # The fixed sentence goes with each batch: a server may have been given another model since the last.
        *made, probe = model.pair.documents.encode([*new, PROBE]) if new else [model.probe]
        if probe is None or not embedded.same(probe, model.probe):
            model.checked, model.id, model.kept = False, None, None
            raise Unavailable(f"Another model answers in the place of {model.name}; its vectors are made anew.")
        there = [vector for vector in made if vector is not None]
        whole = iter(quantize(there))
        vectors |= {text: b"" if vector is None else next(whole) for text, vector in zip(new, made, strict=True)}
        embedded.keep(index, model.id, [(one, vectors[one.text]) for one in items])

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Holds the kernel lock of whoever embeds over this index; False where another process has it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(LOCK, flags, 0o600, dir_fd=self._state.fd)
        except OSError as error:
            raise from_os(error, f"lock the vectors in {self._state.path}") from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(fd)
