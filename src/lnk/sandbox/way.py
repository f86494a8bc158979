"""A way to confine a program, and what came of trying it. It tries nothing."""

from enum import StrEnum
from typing import Final

from lnk.contract.shape import Value


class Way(StrEnum):
    """A way to confine, as a person reads it."""

    BUBBLEWRAP = "bubblewrap"
    BUNDLED = "bundled bubblewrap"
    LANDLOCK = "landlock"
    MACOS = "sandbox-exec"
    NONE = "none"


class Tried(Value, frozen=True):
    """What came of trying a way. `why`: why it does not work and what helps, or what is weaker in it."""

    way: Way
    works: bool
    program: str | None = None
    why: str = ""


UNCONFINED: Final = Tried(way=Way.NONE, works=True, why="The program can do all that you can: nothing confines it.")
