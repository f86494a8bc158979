"""The house's plan, `lnk.layers`, held against every import there is, in functions too, and against what is loaded."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import lnk
from lnk.documents.content import AGAIN, KINDS
from lnk.layers import LAYERS, PACKAGES, closure, layer_of

PACKAGE = Path(lnk.__file__).parent
PROJECT = PACKAGE.parent.parent / "pyproject.toml"


def _modules() -> dict[str, Path]:
    """Every module of ours by its name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ["lnk", *path.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imports(name: str) -> Iterator[str]:
    """What a module imports, anywhere in it, each as the module that is loaded for it."""
    path = MODULES[name]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            inner = [f"{base}.{alias.name}" for alias in node.names]
            yield from ([each for each in inner if each in MODULES] or [base])
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in IMPORTERS:
            if name in NAMED:
                yield from NAMED[name]
            else:
                yield f"{ast.unparse(node)} (an import that cannot be followed)"


# What a module imports by a name that it is told, which is one of these.
NAMED = {"lnk.documents.child": [kind.module for kind in (*KINDS.values(), *AGAIN.values())]}
IMPORTERS = ("import_module", "__import__", "exec", "eval")


def test_every_module_of_ours_belongs_to_one_layer():
    assert len(MODULES) > 30
    assert [name for name in MODULES if layer_of(name) is None] == ["lnk"]
    assert [layer for layer in LAYERS if layer not in MODULES and layer not in ("lnk.agent", "lnk.cli")] == []


@pytest.mark.parametrize("name", [name for name in MODULES if name != "lnk"])
def test_a_module_imports_what_its_layer_may_and_nothing_else(name):
    layer = layer_of(name)
    assert layer
    may = {layer, "lnk", *LAYERS[layer].own}
    wrong = []
    for target in _imports(name):
        top = target.split(".")[0]
        if top == "lnk":
            if (layer_of(target) or target) not in may:
                wrong.append(target)
        elif top not in sys.stdlib_module_names and top not in _packages(layer):
            wrong.append(target)
    assert wrong == []


def test_the_package_itself_imports_nothing():
    assert list(_imports("lnk")) == []


def test_a_layer_may_import_only_what_stands_above_it():
    order = list(LAYERS)
    upward = [(layer, own) for layer in order for own in LAYERS[layer].own if order.index(own) >= order.index(layer)]
    assert upward == []


def test_the_engine_knows_no_harness_agent_or_command_line():
    """What is true of any folder of text stands below: memory never sees who uses it, nor do protocol and contract."""
    above = {"lnk.service", "lnk.agent", "lnk.cli", "lnk.harness", "lnk.models"}
    assert {
        layer: above & set(closure(layer)) for layer in ("lnk.memory", "lnk.contract", "lnk.mcp", "lnk.folder")
    } == {
        "lnk.memory": set(),
        "lnk.contract": set(),
        "lnk.mcp": set(),
        "lnk.folder": set(),
    }
    assert "lnk.memory" not in closure("lnk.agent")
    assert set(closure("lnk.mcp")) == {"lnk.mcp", "lnk.errors", "lnk.lines", "lnk.streams"}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_closure_is_a_layer_and_all_beneath_it_once(layer):
    found = closure(layer)
    assert found[0] == layer
    assert len(set(found)) == len(found)
    assert set(found) == {layer, *(each for own in LAYERS[layer].own for each in closure(own))}


def test_no_layer_has_a_name_of_ours_that_is_not_there():
    assert layer_of("lnk.memory.index") == layer_of("lnk.memory") == "lnk.memory"
    assert [layer_of(name) for name in ("lnk", "lnk.memories", "json", "lnks.memory", "")] == [None] * 5


def _packages(layer: str) -> set[str]:
    return {PACKAGES.get(name, name) for name in LAYERS[layer].distributions}


def test_distributions_are_those_that_the_project_asks_for():
    project = tomllib.loads(PROJECT.read_text())["project"]
    lines = [
        *project["dependencies"],
        *(line for extra in ("meaning", "office", "sandbox") for line in project["optional-dependencies"][extra]),
    ]
    asked = {line.split(">")[0] for line in lines}
    assert {name for layer in LAYERS.values() for name in layer.distributions} == asked


LOAD = """
import importlib, sys
for name in sys.argv[1].split(","):
    importlib.import_module(name)
print(*sorted(sys.modules))
"""


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer in MODULES])
def test_a_program_of_a_layer_loads_its_closure_and_no_more(layer):
    """Its sandbox reads these packages alone: what is loaded beside them would not be there."""
    names = [name for name in MODULES if layer_of(name) == layer]
    child = subprocess.run([sys.executable, "-c", LOAD, ",".join(names)], capture_output=True, text=True, check=True)
    loaded = child.stdout.split()
    ours = {layer_of(name) or name for name in loaded if name.split(".")[0] == "lnk"}
    assert ours <= {*closure(layer), "lnk"}
    allowed = {name for each in closure(layer) for name in _packages(each)}
    known = {name for each in LAYERS for name in _packages(each)}
    assert {name for name in loaded if name in known} <= allowed
