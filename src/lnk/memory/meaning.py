"""Search by meaning over one index: which model serves, its vectors made behind, and a question's vector in time.

Words never wait for a model: a search waits for its question's vector about as long as this model takes, and not at
all for one that does not answer. One process of all that share an index embeds, under a kernel lock; the others
find the vectors in the index. A model is known by its vector of a fixed sentence, which goes with every batch and
every question, so that the vectors of two models are never compared.
"""

import contextlib
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from lnk.errors import Unavailable
from lnk.folder import Folder
from lnk.memory import embedded
from lnk.memory.embedded import Kept, Progress
from lnk.memory.embedding import PROBE, Encoder, question_of
from lnk.memory.filters import Filter
from lnk.memory.index import Index
from lnk.memory.ranking import Hit
from lnk.memory.vectors import quantize

LOCK: Final = "embed.lock"
BATCH_CHUNKS: Final = 16
ASIDE_MOST: Final = 3  # texts left aside one after the other: with more it is the model that fails, not the text
ASIDE_S: Final = 3600.0  # how long a text is left aside at which the model fails though it takes others
RETRY_S: Final = 10.0  # how often a model that did not answer is asked again, and another process's lock looked at
RETRY_FIRST_S: Final = 0.5  # and after its first failure, twice as long after each other: it may only be starting
TURN_S: Final = 10.0  # how long one model embeds until another has its turn, or what is newer
WAIT_LEAST_S: Final = 0.3  # a search waits for its question's vector so long at least, once,
WAIT_MOST_S: Final = 1.0  # and so long at most, where this model takes long by itself
WAIT_TIMES: Final = 4.0  # as many times as a question took lately
ENOUGH: Final = 0.5  # of the chunks: from so many on the model that was asked for serves
QUESTIONS_KEPT: Final = 64  # whose vectors are known, for the next page and the same question again
NICE: Final = 10


def which(shares: Sequence[float]) -> int | None:
    """Which of the models ranks, by the share of the chunks that each has, in the order in which they are asked.

    The first that has enough, else the one that has most; None where there is none.
    """
    enough = (at for at, share in enumerate(shares) if share >= ENOUGH)
    return next(enough, max(range(len(shares)), key=shares.__getitem__, default=None))


class Turn(Enum):
    """How a model's turn to embed ended."""

    DONE = auto()  # nothing waits for it
    OVER = auto()  # some is left: its time is up, or there is something newer
    ELSEWHERE = auto()  # another process embeds over this index


class Pair(NamedTuple):
    """One model's encoder twice: for documents, and for questions, which do not wait for documents."""

    documents: Encoder
    questions: Encoder


class _Bound(NamedTuple):
    """The vectors that are a model's: their id in the index of this name, the fixed sentence's, and all in memory."""

    within: str
    id: int
    probe: bytes
    kept: Kept

    def at(self, index: Index) -> tuple[str, int, int]:
        """What it is, and the count of changes to the index's chunks by now."""
        return self.within, self.id, embedded.changes(index)[0]


class _Silent(Exception):
    """The model did not answer, or not as it should; says why."""


class _Another(Exception):
    """It is another model that answers."""


class _Model:
    """A model as it stands. What it is bound to changes whole, so that any thread may look."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.name = pair.documents.model
        self.bound: _Bound | None = None
        self.share = 0.0  # of the chunks that have a vector
        self.takes_s = WAIT_MOST_S / WAIT_TIMES  # a question, lately; at first it may have to be loaded
        self.silent = False  # it did not answer the last question in time
        self.fails = False  # it did not answer at all
        self.again_s = RETRY_FIRST_S  # when it is asked again then
        self.batch = BATCH_CHUNKS  # chunks at once: half as many after a batch that failed, one more after each other
        self.aside: set[int] = set()  # chunks that it fails at
        self.whole_at: tuple[str, int, int] | None = None  # bound to what, and the count of changes, when all was done
        self._aside_until = 0.0
        self._replaced = False  # another model answered in its place
        self._lock = threading.Lock()

    def take_up(self, index: Index) -> _Bound | None:
        """What it is bound to in this index. Its vectors may be there from before, though nobody asked it yet."""
        name = index.fact("name")
        with self._lock:
            if self.bound and self.bound.within == name:
                return self.bound
            found = None if self._replaced else embedded.latest(index, self.name)
            self.bound = _Bound(name, *found, Kept(found[0], len(found[1]) // 4)) if found else None
            self.share = embedded.progress(index, found[0]).share if found else 0.0
            return self.bound

    def bind(self, index: Index, probe: bytes) -> _Bound:
        """It answers, and this is its vector of the fixed sentence."""
        name, number = index.fact("name"), embedded.model_id(index, self.name, probe)
        with self._lock:
            had = self.bound
            if had is None or (had.within, had.id) != (name, number):
                self.share = embedded.progress(index, number).share
                self.bound = had = _Bound(name, number, probe, Kept(number, len(probe) // 4))
            self._replaced, self.silent, self.fails, self.again_s = False, False, False, RETRY_FIRST_S
            self.take_back()
            return had

    def leave_aside(self, chunk: int) -> None:
        """It fails at this chunk, again and alone, though it takes others."""
        self.aside.add(chunk)
        self._aside_until = time.monotonic() + ASIDE_S

    def take_back(self, *, late: bool = False) -> None:
        """What was left aside is tried again; `late`: where it is long ago."""
        if self.aside and (not late or time.monotonic() > self._aside_until):
            self.aside.clear()
            self.whole_at = None

    def unbind(self, bound: _Bound) -> None:
        """Another model answers: what the index has of this name is not believed until it is bound again."""
        with self._lock:
            self._replaced = True
            if self.bound is bound:
                self.bound = None


class Question:
    """A question on its way to its vector."""

    def __init__(self, text: str, model: _Model | None = None, bound: _Bound | None = None) -> None:
        self.text = text
        self.model = model
        self.bound = bound
        self.vector: bytes | None = None
        self.known = True  # the model knows its script
        self.wait_s = 0.0
        self.ready = threading.Event()


class Meaning:
    """Owns the encoders, the thread that embeds and the one that asks. `ask` and `rank` are for the calls' thread."""

    def __init__(self, open_index: Callable[[], Index], state: Folder, pairs: Sequence[Pair]) -> None:
        """`pairs`: the models in the order in which they are asked; none: no model is there."""
        self._open = open_index
        self._state = state
        self._models = [_Model(pair) for pair in pairs]
        self._stopping = False
        self._changed = threading.Condition()
        self._poked = False
        self._asked = threading.Condition()
        self._question: Question | None = None  # the newest, until it is taken; nobody waits for an older one
        self._answers: OrderedDict[tuple[str, int, str], bytes] = OrderedDict()
        self._threads = [
            threading.Thread(target=self._embed, name="embed", daemon=True),
            threading.Thread(target=self._answer, name="ask", daemon=True),
        ]

    @property
    def there(self) -> bool:
        """Whether there is any model that may embed."""
        return bool(self._models)

    def start(self) -> None:
        """Begin to embed, behind, when `poke` says that there is something."""
        if self.there:
            for thread in self._threads:
                thread.start()

    def stop(self, wait_s: float) -> bool:
        """End at once; what is not kept yet is embedded the next time. False where that took longer than `wait_s`."""
        until = time.monotonic() + wait_s
        self._stopping = True
        for waits in (self._changed, self._asked):
            with waits:
                waits.notify_all()
        for model in self._models:
            for encoder in model.pair:
                encoder.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        return self.has_ended()

    def has_ended(self) -> bool:
        """Whether its threads are over, or never began."""
        return not any(thread.is_alive() for thread in self._threads)

    def poke(self) -> None:
        """There may be something new to embed."""
        with self._changed:
            self._poked = True
            self._changed.notify_all()

    # ------------------------------------------------------------ a search

    def ask(self, index: Index, text: str) -> Question:
        """Sends a question to the model that serves; `rank` takes its vector."""
        model, bound = self._serving(index)
        question = Question(text, model, bound)
        if model is None or bound is None:
            return question
        if not model.pair.questions.knows(text):
            question.known = False
            question.ready.set()
            return question
        if vector := self._answers.get((bound.within, bound.id, text)):
            question.vector = vector
            question.ready.set()
            return question
        question.wait_s = 0.0 if model.silent else min(max(WAIT_TIMES * model.takes_s, WAIT_LEAST_S), WAIT_MOST_S)
        with self._asked:
            self._question = question
            self._asked.notify_all()
        return question

    def wait(self, question: Question) -> None:
        """Until the question has its vector, as long as is sensible; a second time it is not waited for."""
        if question.model and not question.ready.wait(question.wait_s) and question.wait_s:
            question.model.silent = True
        question.wait_s = 0.0

    def rank(
        self, index: Index, question: Question, where: Filter
    ) -> tuple[Callable[[int], list[Hit]] | None, Progress]:
        """What gives the documents nearest to the question, as many as asked for, and how far the model got.

        None: the model did not answer in time, or there is none.
        """
        model, bound = question.model, question.bound
        if model is None or bound is None or bound.within != index.fact("name"):
            self.poke()
            return None, embedded.progress(index, None)
        if model.whole_at != bound.at(index):
            self.poke()  # another process may have changed the index, and not the folder
        self.wait(question)
        vector = question.vector
        if vector is None and question.known:
            return None, embedded.progress(index, None)
        progress = bound.kept.refresh(index)
        model.share = progress.share
        if vector is None:
            return lambda best: [], progress
        return lambda best: bound.kept.rank(index, vector, where, best), progress

    def _serving(self, index: Index) -> tuple[_Model | None, _Bound | None]:
        """The model that ranks; one that fails only where all do."""
        there = [(model, bound) for model in self._models if (bound := model.take_up(index))]
        well = [one for one in there if not one[0].fails] or there
        at = which([model.share for model, _ in well])
        return (None, None) if at is None else well[at]

    def _answer(self) -> None:
        """The thread that asks: one question after the other, and of those that came meanwhile the newest alone."""
        while True:
            with self._asked:
                self._asked.wait_for(lambda: self._question or self._stopping)
                question, self._question = self._question, None
            if question is None or self._stopping:
                return
            try:
                self._find(question)
            except Exception as error:  # the top of the thread: said, and the next question is asked
                sys.stderr.write(f"lnk-link-memory: asking failed: {type(error).__name__}: {error}\n")
            finally:
                question.ready.set()

    def _find(self, question: Question) -> None:
        """The question's vector, where the model that gives it is the one whose vectors the index has."""
        model, bound = question.model, question.bound
        assert model and bound
        encoder = model.pair.questions
        began = time.monotonic()
        try:
            (vector,) = encoder.encode([question_of(question.text, encoder.tokens)], query=True)
            (probe,) = encoder.encode([PROBE])
        except Unavailable:
            first, model.fails, model.silent = not model.fails, True, True
            if first:
                self.poke()  # it is looked after, and another may have to take its place
            return
        took = time.monotonic() - began
        if probe is None or not embedded.same(probe, bound.probe) or len(vector or probe) != len(probe):
            model.unbind(bound)
            self.poke()
            return
        model.takes_s = max(took, model.takes_s * 0.8)
        model.silent = took > WAIT_MOST_S
        if model.fails:
            model.fails = False
            self.poke()  # what waits for it need not wait for its turn
        if vector is not None:
            question.vector = self._answers[bound.within, bound.id, question.text] = vector
            while len(self._answers) > QUESTIONS_KEPT:
                self._answers.popitem(last=False)

    # ------------------------------------------------------------ behind

    def _embed(self) -> None:
        """The thread that embeds: a pass whenever something changed, and while a model does not answer."""
        if sys.platform == "linux":  # where a thread has a priority of its own
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, NICE)
        index: Index | None = None
        again_s: float | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._poked or self._stopping, again_s)
                self._poked = False
            if self._stopping:
                break
            try:
                if index is not None and index.replaced():
                    index.close()
                    index = None
                index = index or self._open()
                again_s = self._pass(index)
                index.rest()
            except Exception as error:  # the top of the thread: said, and tried again
                again_s = RETRY_S
                if not self._stopping:
                    sys.stderr.write(f"lnk-link-memory: embedding failed: {type(error).__name__}: {error}\n")
        if index is not None:
            index.close()

    def _pass(self, index: Index) -> float | None:
        """Each model has its turn to embed. In how many seconds to come again though nothing changed, or None."""
        again_s = RETRY_S
        for place, model in enumerate(self._models):
            first = place == 0
            try:
                turn = self._model(index, model, short=not first or self._others_wait())
            except _Silent:
                model.fails = True
                again_s = max(model.again_s, model.pair.documents.wait_s)
                model.again_s = min(2 * model.again_s, RETRY_S)
                continue
            except _Another:
                return RETRY_S
            if turn is Turn.OVER and first and self._others_wait():
                again_s = 0.0
                continue
            if turn is Turn.OVER:
                return 0.0
            if turn is Turn.DONE and first:
                return ASIDE_S if model.aside else None
            return again_s
        if all(model.fails for model in self._models):
            embedded.sweep(index)  # nobody is there to take up what was deleted: it does not wait for that
        return again_s

    def _others_wait(self) -> bool:
        """Whether none has enough to rank by, so that the first, which may be slow, takes turns with the others."""
        first, *others = self._models
        return first.share < ENOUGH and any(other.share < ENOUGH and not other.fails for other in others)

    def _model(self, index: Index, model: _Model, *, short: bool) -> Turn:
        """What waits for this model is embedded, or as much as gets its turn when that is `short`."""
        if not embedded.progress(index, None).of:
            return Turn.DONE  # it is not even started for an empty folder
        bound = model.take_up(index)
        if bound is None or model.fails:
            bound = self._bind(index, model)
        model.take_back(late=True)
        now = bound.at(index)
        if model.whole_at == now:
            return Turn.DONE
        with self._state.alone(LOCK, wait=False) as alone:
            if not alone:
                return Turn.ELSEWHERE
            if not self._waiting(index, model, bound, short=short):
                return Turn.OVER
            embedded.sweep(index)
        model.share, model.whole_at = 1.0, now
        return Turn.DONE

    def _bind(self, index: Index, model: _Model) -> _Bound:
        """Which model it is that answers, by its vector of a fixed sentence."""
        (probe,) = _encode(model, [PROBE])
        if probe is None:
            raise _Silent(f"The model {model.name} takes no text.")
        return model.bind(index, probe)

    def _waiting(self, index: Index, model: _Model, bound: _Bound, *, short: bool) -> bool:
        """Embeds what waits, newest first. False where that is not all: time is up, or there is something newer.

        What is newer waits for TURN_S, so that a file which always changes is not all that is ever embedded.
        """
        chunks = [chunk for chunk in embedded.waiting(index, bound.id) if chunk not in model.aside]
        done, of = embedded.progress(index, bound.id)
        changes, until, at = embedded.changes(index)[0], time.monotonic() + TURN_S, 0
        failed, once = 0, -1
        while at < len(chunks):
            if self._stopping or index.replaced():
                return False
            late = at > 0 and time.monotonic() > until
            if late and (short or (self._poked and embedded.changes(index)[0] != changes)):
                return False
            some = chunks[at : at + model.batch]
            try:
                self._batch(index, model, bound, some)
            except _Silent as error:
                _encode(model, [PROBE, PROBE])  # where it fails at this too, it is not the texts
                if len(some) > 1 or some[0] != once:
                    model.batch, once = max(1, len(some) // 2), some[0]
                    continue
                failed += 1
                if failed > ASIDE_MOST:
                    raise
                model.leave_aside(some[0])
                sys.stderr.write(f"lnk-link-memory: a text is left to its words for now: {error}\n")
            else:
                failed, model.batch = 0, min(model.batch + 1, BATCH_CHUNKS)
            at += len(some)
            model.share = min(1.0, (done + at) / max(1, of))
        return True

    def _batch(self, index: Index, model: _Model, bound: _Bound, chunks: list[int]) -> None:
        items = embedded.read(index, chunks, model.pair.documents.tokens)
        texts = list(dict.fromkeys(one.text for one in items))
        vectors = embedded.known(index, bound.id, texts)
        if new := [text for text in texts if text not in vectors]:
            # The fixed sentence goes with each batch: a server may have been given another model since the last.
            *made, probe = _encode(model, [*new, PROBE])
            if probe is None or not embedded.same(probe, bound.probe):
                model.unbind(bound)
                raise _Another
            whole = iter(quantize([vector for vector in made if vector is not None]))
            vectors |= {text: b"" if vector is None else next(whole) for text, vector in zip(new, made, strict=True)}
        embedded.keep(index, bound.id, [(one, vectors[one.text]) for one in items])


def _encode(model: _Model, texts: Sequence[str]) -> list[bytes | None]:
    """The vectors of a document's texts. Raises _Silent."""
    try:
        return model.pair.documents.encode(texts)
    except Unavailable as error:
        raise _Silent(str(error)) from None
