"""README, changelog and docs against the program: every command in them exists, and the first one prints what the
README shows."""

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import WORDS_ALONE
from lnk.cli import commands as person
from lnk.service import program as engine

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
WORDS_MAX = 700
# Named by the README and written after it. One that is there is looked at like every other.
NOT_YET = {"bench/README.md"}

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
CODE = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"(?:^|[\s/$])(lnk(?:-link-memory)?) +([^#;&|]*(?:\|[^#;&|]*)*)")


def blocks(kind: str) -> list[str]:
    """The README's blocks of code of one kind."""
    return [text for found, text in BLOCK.findall(README) if found == kind]


def documents() -> list[Path]:
    """The texts in which commands are named."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]


def named() -> Iterator[tuple[str, str]]:
    """Each command that stands as code in a document, and the document."""
    for path in dict.fromkeys(documents()):
        text = path.read_text("utf-8")
        code = [line for _, block in BLOCK.findall(text) for line in block.splitlines()]
        code += [re.sub(r"\s+", " ", span) for span in CODE.findall(BLOCK.sub("", text))]
        for line in code:
            for name, rest in COMMAND.findall(line):
                if re.match(r"[a-z-]", rest):
                    yield f"{name} {rest.strip()}", str(path.relative_to(ROOT))


def parser_of(command: str) -> argparse.ArgumentParser:
    return engine.parser() if command.startswith("lnk-link-memory") else person.parser()


def below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands under a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def check(command: str) -> None:
    """Fails where `command`, of which parts may be left out, or choices given as `a | b`, is none of the program's."""
    parser, last = parser_of(command), None
    for part in command.split()[1:]:
        word = part.strip("[](),.:`")
        if part == "|":
            parser = last or parser
        elif below(parser) and re.fullmatch("[a-z-]+", word) and not word.startswith("-"):
            assert word in below(parser), f"{command!r}: there is no {word!r} under {parser.prog!r}"
            last, parser = parser, below(parser)[word]
        elif word.startswith("--"):
            flags = [flag for action in parser._actions for flag in action.option_strings]
            assert word.partition("=")[0] in flags, f"{command!r}: {parser.prog!r} has no {word!r}"


@pytest.mark.parametrize("line", [line for block in blocks("console") for line in block.splitlines()])
def test_every_command_that_the_readme_shows_is_a_valid_one(line):
    prompt, path, *argv = shlex.split(line)
    assert (prompt, path) == ("$", ".venv/bin/lnk")
    assert person.parser().parse_args(argv).run


@pytest.mark.parametrize(("command", "document"), sorted(set(named())))
def test_every_command_named_in_the_documents_exists(command, document):
    check(command)


def test_the_check_of_named_commands_finds_what_is_not_there():
    assert len(set(named())) >= 5
    check("lnk agent memory search | read | list")
    check("lnk agent new NAME [--documents DIR]")
    for wrong in (
        "lnk agent memory find",
        "lnk agent memory search | find",
        "lnk agent new --copy",
        "lnk-link-memory x",
    ):
        with pytest.raises(AssertionError):
            check(wrong)


def test_the_readme_is_short():
    assert len(README.split()) < WORDS_MAX


def test_the_first_command_prints_what_the_readme_shows(tmp_path):
    command, shown = blocks("sh")[0], blocks("")[0]
    question = re.search(r'lnk agent memory try "([^"]+)"$', command.strip())
    assert question
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lnk"), "agent", "memory", "try", question[1]],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": WORDS_ALONE},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    wanted, printed = shown.splitlines(), done.stdout.splitlines()
    assert len(wanted) >= 6
    for line, real in zip(wanted, printed, strict=False):
        line, real = (re.sub(r"\d+\.\d s", "N s", each) for each in (line, real))
        assert real.startswith(line.removesuffix("…").rstrip()) if line.endswith("…") else real == line


@pytest.mark.parametrize(
    "target",
    sorted(set(re.findall(r"\]\(([^)#]+)", README))),
)
def test_every_file_that_the_readme_links_to_is_there(target):
    if re.match(r"[a-z]+:", target):
        pytest.skip("an address, not a file")
    if target in NOT_YET and not (ROOT / target).exists():
        pytest.skip(f"NOT WRITTEN YET: {target}")
    assert (ROOT / target).is_dir() if target.endswith("/") else (ROOT / target).is_file()
