"""How the engines of one process keep from slowing each other: turns at slow work, and work that gives way to calls."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

LOOK_S: Final = 0.2
# One interpreter does them all: with more at once they only take it from each other. But nobody waits long for two
# that do not end: those are in the index, and need no interpreter.
AT_ONCE: Final = 2
TURN_WAIT_S: Final = 0.25
GIVE_WAY_S: Final = 0.05  # for which what is done behind gives way at most: so it gets on under any load


class GivenUp(Exception):
    """Whoever waited for a turn waits no longer."""


class Turns:
    """So much of some work at once, in the order in which it was asked for: nobody passes who asks again and again."""

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = at_once
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._under_way = 0

    @contextlib.contextmanager
    def turn(self, given_up: Callable[[], bool]) -> Iterator[None]:
        """Waits for a turn, and has it. Raises GivenUp where `given_up` comes to say so before."""
        me = object()
        with self._changed:
            self._waiting.append(me)
            try:
                while self._waiting[0] is not me or self._under_way >= self._at_once:
                    if given_up():
                        raise GivenUp
                    self._changed.wait(LOOK_S)
                self._under_way += 1
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()


class Calls:
    """The calls that somebody waits for, to which what is done behind gives way: one interpreter does both."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        """`at_once`: so many are under way; the others wait a moment."""
        self._turns = threading.Semaphore(at_once)
        self._changed = threading.Condition()
        self._under_way = 0
        self._ended = time.monotonic()

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """A call is, as long as this lasts."""
        with self._changed:
            self._under_way += 1
        try:
            mine = self._turns.acquire(timeout=TURN_WAIT_S)
            try:
                yield
            finally:
                if mine:
                    self._turns.release()
        finally:
            with self._changed:
                self._under_way -= 1
                if not self._under_way:
                    self._ended = time.monotonic()
                    self._changed.notify_all()

    def quiet_s(self) -> float:
        """How long there has been none."""
        return 0.0 if self._under_way else time.monotonic() - self._ended

    def give_way(self) -> None:
        """Waits until no call is under way, for a moment at most."""
        if self._under_way:
            with self._changed:
                self._changed.wait_for(lambda: not self._under_way, GIVE_WAY_S)
