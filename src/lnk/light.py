"""Stands for `typing` in the small programs of which one runs for each session: 0.6 MB and 5 ms less for each.

`stand_in` is called before all else, and only where nothing is wanted of it but annotations, `Final` and `NamedTuple`.
"""

import sys
from collections import namedtuple
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMES = ("Any", "Final", "Literal", "NoReturn", "Self")


class _Anything:
    """What an annotation names; nobody looks at it."""

    def __getitem__(self, _: object) -> "_Anything":
        return self

    def __or__(self, _: object) -> "_Anything":
        return self

    __ror__ = __or__


class _Named(type):
    def __new__(cls, name: str, bases: tuple[type, ...], body: "dict[str, Any]") -> type:
        if not bases:
            return super().__new__(cls, name, bases, body)
        fields = list(_annotations(body))
        defaults = [body[field] for field in fields if field in body]
        made = namedtuple(name, fields, defaults=defaults, module=str(body["__module__"]))  # type: ignore[misc]
        for key, value in body.items():
            if key not in fields and not key.startswith("__"):
                setattr(made, key, value)
        return made


def _annotations(body: "dict[str, Any]") -> dict[str, object]:
    """A class body's; since Python 3.14 they are made when asked for."""
    annotate = body.get("__annotate_func__")
    return dict(annotate(1) if annotate else body.get("__annotations__", {}))


def stand_in() -> None:
    """From now on an `import typing` of this process finds this."""
    found = ModuleType("typing")
    for name in _NAMES:
        setattr(found, name, _Anything())
    found.NamedTuple = _Named("NamedTuple", (), {})  # type: ignore[attr-defined]
    found.TYPE_CHECKING = False  # type: ignore[attr-defined]
    sys.modules.setdefault("typing", found)
