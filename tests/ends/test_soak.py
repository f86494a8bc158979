"""Sessions that come, search, change files and go, over several agents and for a long time: the service does not grow.

`$LNK_SOAK_S` says for how many seconds, 120 where it is not set.
"""

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from random import Random
from statistics import mean
from typing import Final, NamedTuple

import pytest

from ends.faults import SEED
from ends.test_service import ERAS, Owner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SECONDS: Final = float(os.environ.get("LNK_SOAK_S") or 120)
AGENTS: Final = 4
FILES: Final = 20  # of an agent, which are written again and again: the folder does not grow, so nor may its index
CALLS: Final = 10  # of a session
EVERY_S: Final = 0.5
GROWTH_MAX: Final = 1.05
SAMPLES_MIN: Final = 9
WORDS: Final = "harbour lantern meadow copper violin thistle granite orchard saffron willow anchor ember".split()


class Sample(NamedTuple):
    """What a process holds."""

    bytes: int
    descriptors: int


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path)
    yield owner
    owner.end()


def sample(pid: int) -> Sample:
    """Its private memory and its descriptors.

    Only what it has written: pages of libraries' files are private or shared as other programs come and go.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (kib,) = (int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))
    return Sample(kib << 10, len(os.listdir(f"/proc/{pid}/fd")))


class Load:
    """Sessions of one agent, one after the other, each of which searches, changes documents and writes a note."""

    def __init__(self, owner: Owner, name: str, agent: str, number: int) -> None:
        self._owner, self._name, self._agent = owner, name, agent
        self._chance = Random(SEED + number)
        self.sessions = 0

    def run(self, until: float) -> None:
        """Until then, on the clock of `time.monotonic`."""
        while time.monotonic() < until:
            begin = self._owner.proxied if self.sessions % 2 else self._owner.relayed
            wire = begin(self._agent).open(ERAS[self.sessions // 2 % 2])
            for _ in range(CALLS):
                text = " ".join(self._chance.choices(WORDS, k=80))
                self._owner.document(self._name, f"{self._chance.randrange(FILES)}.md", f"# {text[:30]}\n\n{text}\n")
                assert wire.paths(text[:30])
            noted = wire.take(wire.put_call("remember", note=f"tea {self.sessions}", **self._before()))["result"]
            assert not noted.get("isError"), noted
            assert wire.end() == 0
            self._owner.sessions.remove(wire)
            self.sessions += 1

    def _before(self) -> dict[str, str]:
        return {"replaces": f"tea {self.sessions - 1}"} if self.sessions else {}


def test_the_services_memory_and_descriptors_stay_what_they_are_however_many_sessions_come_and_go(owner):
    """The mean of the last third of the time is held against that of the middle third; the first warms up."""
    agents = {f"agent{number}": owner.agent(f"agent{number}") for number in range(AGENTS)}
    stays = [owner.proxied(agent).open() for agent in agents.values()]  # one service lives through it all
    (host,), (engine,) = owner.hosts(), owner.engines()
    loads = [Load(owner, name, agent, number) for number, (name, agent) in enumerate(agents.items())]
    samples: dict[int, list[Sample]] = {host: [], engine: []}
    with ThreadPoolExecutor(AGENTS) as workers:
        until = time.monotonic() + SECONDS
        working = {workers.submit(load.run, until) for load in loads}
        while not wait(working, timeout=EVERY_S, return_when=FIRST_EXCEPTION).done >= working:
            for pid, found in samples.items():
                found.append(sample(pid))
            if any(each.done() and each.exception() for each in working):
                break
        for each in working:
            each.result()
    assert (owner.hosts(), owner.engines()) == ([host], [engine])
    assert all(wire.paths("lantern meadow copper") for wire in stays)
    assert [wire.said() for wire in stays] == [""] * AGENTS
    report = {}
    for pid, found in samples.items():
        assert len(found) >= SAMPLES_MIN
        third = len(found) // 3
        for what in Sample._fields:
            middle, last = (
                mean(getattr(each, what) for each in part) for part in (found[third:-third], found[-third:])
            )
            report["host" if pid == host else "engine", what] = (round(middle), round(last))
    assert all(last <= GROWTH_MAX * middle for middle, last in report.values()), report
