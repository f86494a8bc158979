"""What stands for `typing` in the small programs: their values are what they are under it, and little is loaded."""

import json
import subprocess
import sys
import sysconfig
import typing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lnk
from lnk.light import stand_in

SOURCE = Path(lnk.__file__).parent.parent
PROGRAMS = ["lnk.agent.proxy", "lnk.agent.listener", "lnk.agent.host"]
MODULES = [
    *PROGRAMS,
    *("lnk.agent.asks", "lnk.agent.connect", "lnk.agent.gate", "lnk.agent.journal", "lnk.agent.served"),
    *("lnk.agent.toolfolder", "lnk.contract.hello", "lnk.doorway", "lnk.sockets", "lnk.streams"),
]
WAIT_S = 60

# Says what was loaded, and of each value of ours what whoever uses it can tell.
LOADS = """
import sys
sys.path.append(sys.argv[1])
if sys.argv[2] == "light":
    from lnk.light import stand_in
    stand_in()
import importlib
for name in sys.argv[3:]:
    importlib.import_module(name)
loaded = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
import json
values = {}
for name in [name for name in loaded if name.startswith("lnk.")]:
    for word, found in vars(sys.modules[name]).items():
        if isinstance(found, type) and hasattr(found, "_fields") and found.__module__ == name:
            values[f"{name}.{word}"] = {
                "fields": found._fields,
                "matched": found.__match_args__,
                "defaults": {field: repr(value) for field, value in found._field_defaults.items()},
                "more": sorted(each for each in vars(found) if not each.startswith("_")),
                "shown": repr(found(*range(len(found._fields)))),
                "tuple": found.__bases__ == (tuple,),
            }
print(json.dumps({"loaded": loaded, "values": values}))
"""


def loaded(kind: str, *modules: str) -> dict[str, Any]:
    """What a program that imports these has then, and is."""
    argv = [sys.executable, "-I", "-S", "-c", LOADS, str(SOURCE), kind, *modules]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_the_values_of_small_programs_are_what_they_are_under_the_real_typing():
    light, real = loaded("light", *MODULES), loaded("real", *MODULES)
    assert (light["loaded"]["typing"], bool(real["loaded"]["typing"])) == (None, True)
    assert light["values"] == real["values"]
    assert {"lnk.agent.gate.Record", "lnk.agent.toolfolder.Definition", "lnk.doorway.Said"} <= set(light["values"])
    assert light["values"]["lnk.agent.toolfolder.Definition"]["defaults"] == {"service": "None"}
    assert "engine" in light["values"]["lnk.agent.served.Entry"]["more"]


@pytest.mark.parametrize("module", MODULES)
def test_a_small_program_loads_the_standard_library_and_what_is_ours_alone(module: str):
    found = loaded("light", module)["loaded"]
    inside = (str(SOURCE / "lnk"), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    assert {name: path for name, path in found.items() if path and not path.startswith(inside)} == {}
    assert {name for name, path in found.items() if path and "site-packages" in path} == set()
    assert found["typing"] is None
    assert module in found


def test_the_program_that_runs_for_each_session_loads_nothing_heavy():
    heavy = {"asyncio", "dataclasses", "hashlib", "lnk.agent.asks", "msgspec", "shutil", "socket", "ssl", "subprocess"}
    assert heavy & set(loaded("light", "lnk.agent.proxy")["loaded"]) == set()


# ------------------------------------------------------------ the stand-in by itself


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What a program finds as `typing` that has not loaded it before."""
    monkeypatch.delitem(sys.modules, "typing")
    stand_in()
    return sys.modules["typing"]


def test_where_typing_is_loaded_already_it_stays():
    stand_in()
    assert sys.modules["typing"] is typing


def test_a_value_has_its_fields_defaults_and_methods(light: ModuleType):
    class Point(light.NamedTuple):  # type: ignore[name-defined,misc]
        x: int
        y: "int | None" = None
        z: light.Any | None = ()  # type: ignore[name-defined]

        @property
        def plain(self) -> bool:
            return self.y is None

        def moved(self, by: int) -> "Point":
            return self._replace(x=self.x + by)

        @staticmethod
        def origin() -> "Point":
            return Point(0)

    made = Point(1)
    assert made == (1, None, ()) and isinstance(made, Point) and isinstance(made, tuple)
    assert Point(y=3, x=2).moved(5) == Point(7, 3)
    assert (made.plain, Point(1, 2).plain, Point.origin()) == (True, False, Point(0))
    assert (Point._fields, Point._field_defaults) == (("x", "y", "z"), {"y": None, "z": ()})
    assert (Point.__module__, repr(made)) == (__name__, "Point(x=1, y=None, z=())")
    with pytest.raises(TypeError):
        Point()


def test_the_names_that_annotations_take_can_be_used_in_them(light: ModuleType):
    limit: light.Final[int] = 3  # type: ignore[valid-type]
    for one in (light.Final, light.Any, light.Literal, light.NoReturn, light.Self):
        assert one["a", "b"] is one and one | None is one and None | one is one
        assert Callable[[one], dict[str, one]]
    assert (limit, light.TYPE_CHECKING) == (3, False)


def test_a_class_body_whose_annotations_are_made_when_asked_for_is_the_same_value(light: ModuleType):
    """As Python 3.14 makes one; 1 asks for the annotations' values."""
    asked = []

    def annotate(form: int) -> dict[str, Any]:
        asked.append(form)
        if form != 1:
            raise NotImplementedError
        return {"x": int, "y": "Point | None"}

    body = {"__module__": "there", "__qualname__": "Point", "__annotate_func__": annotate, "__static_attributes__": ()}
    point = type(light.NamedTuple)("Point", (light.NamedTuple,), {**body, "y": 2, "sum": lambda self: self.x + self.y})
    assert (point._fields, point._field_defaults, asked) == (("x", "y"), {"y": 2}, [1])
    assert (point(1).sum(), point.__module__) == (3, "there")
