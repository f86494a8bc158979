"""The house in order: types, style, docstrings, links that lead somewhere, no trace of the machine it was made on."""

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = [folder for folder in ("src", "tests", "bench", "fuzz") if (ROOT / folder).is_dir()]
EXAMPLE = ROOT / "src" / "lnk" / "example"  # a person's files: they may be written in any way
MADE = {"__pycache__", "build", "dist", "node_modules"}


def _files() -> Iterator[Path]:
    """The files that are kept: all but what tools make."""
    waiting = [ROOT]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            if path.name in MADE or path.name.endswith(".egg-info") or (path.name[0] == "." and path.is_dir()):
                continue
            if path.is_dir():
                waiting.append(path)
            else:
                yield path


def _texts() -> Iterator[tuple[str, str]]:
    """Path and text of every file that is text."""
    for path in _files():
        data = path.read_bytes()
        if b"\0" not in data:
            yield str(path.relative_to(ROOT)), data.decode("utf-8", "replace")


def _run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed (it is in the extra `test`): the code was not checked with it")
    return subprocess.run([sys.executable, "-m", tool, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_the_code_has_strict_types():
    checked = _run("mypy", "--strict", *(folder for folder in CODE if folder != "tests"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("way", [("check", "--no-fix"), ("format", "--check")], ids=["rules", "format"])
def test_the_code_is_in_the_house_style(way):
    checked = _run("ruff", *way, *CODE)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_module_says_what_it_holds():
    silent = [
        str(path.relative_to(ROOT))
        for folder in CODE
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert silent == []


def test_no_file_names_a_path_of_the_machine_it_was_made_on():
    machine = re.compile("(?<![\\w.~*>-])/(?:work|root|tmp)/[\\w-]")
    named = [
        f"{path}: {line.strip()[:100]}" for path, text in _texts() for line in text.splitlines() if machine.search(line)
    ]
    assert named == []


def test_no_file_names_a_registry():
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("jfrog", "io"))]
    named = [(path, host) for path, text in _texts() for host in hosts if host in text]
    assert named == []


def test_every_text_is_utf_8_and_ends_its_lines_with_lf():
    odd = []
    for path in _files():
        data = path.read_bytes()
        if b"\0" in data or EXAMPLE in path.parents:
            continue
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            odd.append(f"{path.relative_to(ROOT)} is not UTF-8")
        if b"\r" in data or (data and not data.endswith(b"\n")):
            odd.append(f"{path.relative_to(ROOT)} has a line end of another kind, or none at its end")
    assert odd == []


LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
PAGES = [
    str(path.relative_to(ROOT))
    for path in [
        *sorted(ROOT.glob("*.md")),
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("bench/*.md")),
        *sorted(ROOT.glob("fuzz/*.md")),
    ]
]


@pytest.mark.parametrize("page", PAGES)
def test_a_link_of_a_page_leads_to_a_file_and_a_heading_that_are_there(page):
    text = FENCED.sub("", (ROOT / page).read_text("utf-8"))
    lost = []
    for target in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        if not file.exists() or (heading and heading not in _anchors(file.read_text("utf-8"))):
            lost.append(target)
    assert lost == []


def _anchors(text: str) -> set[str]:
    """The names that a page's headings have as targets of links."""
    headings = re.findall(r"^#{1,6} +(.*?) *#*$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
