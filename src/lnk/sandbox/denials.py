"""What a sandbox holds: bait laid out, the probe run in a sandbox like an engine's, what came of it judged outside.

It believes the probe only where nothing outside can tell: what arrived at a socket, and whether a file changed, is
looked at here.
"""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from lnk.contract.shape import Value, format_value, parse
from lnk.errors import Unavailable
from lnk.sandbox import probe
from lnk.sandbox.bait import UNCHANGED, VARIABLE, Laid, laid
from lnk.sandbox.launch import launch
from lnk.sandbox.probe import CHANGED, DONE, FAILED, PROBES, UNTRIED, WATCHING, WORKS, Outcome
from lnk.sandbox.ways import Tried, Way

RUN_S: Final = 60  # for all probes together, which take a second
LINE_BYTES_MAX: Final = 1 << 20  # of what the probe says, which is a hundredth of it
SAID_BYTES_MAX: Final = 4096  # of what a sandbox that does not start says
NO_WORD: Final[Outcome] = (UNTRIED, "it did not say")

NO_OPENING: Final = (Way.LANDLOCK, Way.MACOS, Way.NONE)  # the ways in which no port is a program's own

# What a way is known not to deny, and why that is so: told, not counted.
DIFFERS: Final[dict[Way, dict[str, str]]] = {
    Way.LANDLOCK: {
        "see a process outside": "Landlock does not hide the numbers of processes",
        "ask the kernel about a process outside": "Landlock does not hide the numbers of processes",
    },
}
NEEDS_A_MODEL: Final = (
    "reach its model",
    "reach what the machine has at the model's number",
    "send a datagram at the model's number",
)
WITH_A_MODEL: Final = {"listen on a port": "of a loopback of its own, which nothing outside reaches"}


class Row(Value, frozen=True):
    """One probe and what came of it: `how` it was denied or failed, or why that is no fault, in a few words."""

    group: str
    probe: str
    expected: Literal["denied", "works"]
    outcome: Literal["denied", "works", "untried"]
    how: str = ""
    holds: bool = True


class Table(Value, frozen=True):
    """All rows of one way; `model`: with the one opening to a model."""

    way: Way
    model: bool
    rows: tuple[Row, ...]

    def faults(self) -> list[Row]:
        """What does not hold."""
        return [row for row in self.rows if not row.holds]


def tables(way: Tried, environment: Mapping[str, str]) -> list[Table]:
    """What holds without a model and, where this way has an opening to one, with it. Raises as `table` does."""
    kinds = (False,) if way.way in NO_OPENING else (False, True)
    return [table(way, environment, model=model) for model in kinds]


def table(way: Tried, environment: Mapping[str, str], *, model: bool = False) -> Table:
    """What holds in a sandbox made this way; nothing is left of the trial. Raises Unavailable where it does not run."""
    with laid(model=model) as bait:
        found = _run(bait, way, environment)
        rows = judge(found, bait.seen(), way.way, model=model)
    return Table(way=way.way, model=model, rows=rows)


def judge(
    found: Mapping[str, Mapping[str, Sequence[str]]], seen: Mapping[str, bool], way: Way, *, model: bool
) -> tuple[Row, ...]:
    """The rows for what the probe said and what was `seen` outside: whether it was done, by the probe's name.

    A probe that did not say what came of it holds nothing: neither was it denied, nor does it work.
    """
    excused = {**DIFFERS.get(way, {}), **(WITH_A_MODEL if model else {})}
    rows = []
    for group, probes in PROBES.items():
        for name in probes:
            if name in NEEDS_A_MODEL and not model:
                continue
            outcome, how = found.get(group, {}).get(name, NO_WORD)
            if name in seen and outcome != UNTRIED:
                outcome, how = (DONE, "") if seen[name] else (FAILED, how or "nothing of it outside")
            rows.append(_row(group, name, (outcome, how), excused))
    rows.append(_row("files", UNCHANGED, (DONE if seen.get(UNCHANGED) else FAILED, ""), excused))
    return tuple(rows)


def _row(group: str, name: str, outcome: Outcome, excused: Mapping[str, str]) -> Row:
    expected: Literal["denied", "works"] = "works" if group == WORKS else "denied"
    what, how = outcome
    if what == UNTRIED:
        return Row(group=group, probe=name, expected=expected, outcome="untried", how=how, holds=outcome != NO_WORD)
    came: Literal["denied", "works"] = "works" if what == DONE else "denied"
    if came != expected and name in excused:
        return Row(group=group, probe=name, expected=expected, outcome=came, how=excused[name])
    return Row(group=group, probe=name, expected=expected, outcome=came, how=how, holds=came == expected)


# ---------------------------------------------------------------- running


def _run(laid: Laid, way: Tried, environment: Mapping[str, str]) -> dict[str, dict[str, Outcome]]:
    """What the probe says."""
    argv = [sys.executable, "-P", probe.__file__, format_value(laid.bait._asdict())]
    with (
        tempfile.TemporaryFile() as errors,
        launch(laid.policy(environment), argv, way, openings=() if laid.opening is None else (laid.opening,)) as start,
    ):
        process = subprocess.Popen(
            start.argv,
            env={**start.environment, VARIABLE: laid.bait.word},
            pass_fds=start.fds,
            stdin=laid.terminal,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        laid.started()
        with _ended(process):
            said = _heard(process, laid)
        if process.returncode:
            errors.seek(0)
            why = errors.read(SAID_BYTES_MAX).decode(errors="replace").strip()
            raise Unavailable(f"The probe did not run in {way.way} (status {process.returncode}): {why or 'no word'}.")
    return parse(said, dict[str, dict[str, Outcome]], "What the probe says")


def _heard(process: "subprocess.Popen[bytes]", laid: Laid) -> bytes:
    """The last line that it says; when it says that it watches, a document is changed."""
    assert process.stdout
    said = b""
    while line := process.stdout.readline(LINE_BYTES_MAX):
        said = line
        if line.strip() == WATCHING.encode():
            Path(laid.bait.documents, CHANGED).write_text("# Changed\n")
    return said


@contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """It has ended afterwards, killed when it takes too long or nobody listens any more."""
    timer = threading.Timer(RUN_S, process.kill)
    timer.start()
    with process:
        try:
            yield
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
